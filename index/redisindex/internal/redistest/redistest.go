// Package redistest runs real Redis or Valkey servers for tests: one server, a
// master with replicas and sentinels, and a cluster.
//
// Start with [Standalone], [Sentinel] or [Cluster]. All servers listen on
// the loopback interface only. They write nothing to disk unless the test asks for
// it, and they end with the test.
//
// The environment variable KVINDEX_REDIS_SERVER names the server to run, such as
// valkey-server. The default is redis-server. A test without a server is skipped.
// With KVINDEX_REQUIRE_REDIS=1 it fails.
//
// Functions and methods with a [testing.TB] end the test when something fails, so
// call them from the goroutine of the test.
package redistest

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// patience is how long something may take that has to happen. Only a failing test
// waits that long.
const patience = time.Minute

// binary finds the server to run.
func binary(tb testing.TB) string {
	tb.Helper()
	name := os.Getenv("KVINDEX_REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	const advice = "redistest: no server: %v; install redis-server, or name another one in KVINDEX_REDIS_SERVER"
	if os.Getenv("KVINDEX_REQUIRE_REDIS") == "1" {
		tb.Fatalf(advice, err)
	}
	tb.Skipf(advice, err)
	return ""
}

// eventually calls check until it returns nil.
func eventually(tb testing.TB, what string, check func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("redistest: %s: not within %v: %v", what, patience, last)
		case <-poll.C:
		}
	}
}
