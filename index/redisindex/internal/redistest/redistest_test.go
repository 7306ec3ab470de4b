package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // the client logs each connection that a dead server refuses
	os.Exit(m.Run())
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	s := redistest.Standalone(t, "--maxmemory", "10mb")
	client := s.Client(t)
	if err := client.Set(t.Context(), "a", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := s.Do(t, "GET", "a"); got != "1" {
		t.Errorf("GET a = %v, want 1", got)
	}
	if got := s.Do(t, "GET", "b"); got != nil {
		t.Errorf("GET b = %v, want nil", got)
	}
	if got := s.Info(t, "maxmemory"); got != "10485760" {
		t.Errorf("maxmemory = %s", got)
	}
	s.Set(t, "maxmemory", "20mb")
	if got := s.Info(t, "maxmemory"); got != "20971520" {
		t.Errorf("maxmemory = %s after CONFIG SET", got)
	}

	addr := s.Addr()
	s.Kill(t)
	s.Kill(t)
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart(t)
	if s.Addr() != addr {
		t.Errorf("address %s after a restart, %s before", s.Addr(), addr)
	}
	if got := s.Do(t, "DBSIZE"); got != int64(0) {
		t.Errorf("%v keys after a restart without persistence", got)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Standalone(t, "--appendonly", "yes")
	s.Do(t, "SET", "a", "1")
	s.Restart(t)
	if got := s.Do(t, "GET", "a"); got != "1" {
		t.Errorf("GET a = %v after a restart with an append-only file", got)
	}
	s.RestartEmpty(t)
	if got := s.Do(t, "DBSIZE"); got != int64(0) {
		t.Errorf("%v keys after RestartEmpty", got)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	s := redistest.Standalone(t)
	client := s.Client(t)
	s.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := client.Ping(ctx).Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stopped server answers PING with %v", err)
	}
	s.Cont(t)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	s.Stop(t) // a stopped server ends with the test, too
}

func TestReplication(t *testing.T) {
	t.Parallel()
	master, replica := redistest.Standalone(t), redistest.Standalone(t)
	master.Do(t, "SET", "before", "1")
	replica.Follow(t, master)
	if got := replica.Do(t, "GET", "before"); got != "1" {
		t.Errorf("GET before = %v at the replica", got)
	}
	master.CutReplication(t)
	master.Do(t, "SET", "cut", "1")
	if got := replica.Do(t, "GET", "cut"); got != nil {
		t.Errorf("GET cut = %v at the replica", got)
	}
	master.AllowReplication(t)
	replica.Follow(t, master)
	if got := replica.Do(t, "GET", "cut"); got != "1" {
		t.Errorf("GET cut = %v at the replica that may replicate again", got)
	}
	replica.Promote(t)
	if got := replica.Info(t, "role"); got != "master" {
		t.Errorf("role %s after Promote", got)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	g := redistest.Sentinel(t, 500*time.Millisecond)
	t.Logf("start: %v", time.Since(begin))
	client := redis.NewFailoverClient(g.Options())
	t.Cleanup(func() { client.Close() })
	failovers(t, client, func(lose func()) time.Duration { return g.Failover(t, lose) },
		func() *redistest.Server { return g.Master(t) }, func() { g.Heal(t) })
	if got := len(g.Replicas(t)); got != 2 {
		t.Errorf("%d replicas in the end", got)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	c := redistest.Cluster(t, 3, 1)
	t.Logf("start: %v", time.Since(begin))
	client := redis.NewClusterClient(c.Options())
	t.Cleanup(func() { client.Close() })
	slot := c.Slot(t, "{kept}")
	failovers(t, client, func(lose func()) time.Duration { return c.Failover(t, slot, lose) },
		func() *redistest.Server { return c.Master(t, slot) }, func() { c.Heal(t) })
	if got := len(c.Addrs()); got != 6 {
		t.Errorf("%d addresses", got)
	}
	if got := len(c.Replicas(t, slot)); got != 1 {
		t.Errorf("%d replicas in the end", got)
	}

	// A shard that is cut: its master takes writes that are lost when the nodes elect
	// its replica. The other shards keep theirs.
	old := c.Master(t, slot)
	others := 0
	for i := range 100 {
		key := fmt.Sprint(i)
		if c.Master(t, c.Slot(t, key)) != old {
			others++
			set(t, client, key)
		}
	}
	old.CutReplication(t)
	set(t, client, "{kept}cut")
	old.Kill(t)
	begin = time.Now()
	elected := c.Elected(t, slot, old)
	t.Logf("election: %v, with %d keys of other shards", time.Since(begin), others)
	if got := elected.Do(t, "EXISTS", "{kept}cut"); got != int64(0) {
		t.Error("the elected node has what was written to the shard that was cut")
	}
	for i := range 100 {
		key := fmt.Sprint(i)
		if c.Master(t, c.Slot(t, key)) == elected {
			continue
		}
		others--
		if got := get(t, client, key); got != "1" {
			t.Errorf("key %s of another shard is %q", key, got)
		}
	}
	if others != 0 {
		t.Errorf("%d keys moved between shards", others)
	}
}

// failovers checks by one key what failovers keep and lose. A client follows them.
func failovers(t *testing.T, client redis.UniversalClient, failover func(lose func()) time.Duration,
	master func() *redistest.Server, heal func(),
) {
	t.Helper()
	for round := range 2 {
		kept, lost := fmt.Sprintf("{kept}%d", round), fmt.Sprintf("{kept}lost%d", round)

		// Writers go on during a failover, which loses nothing acknowledged.
		old := master()
		ctx, stop := context.WithCancel(t.Context())
		begun, written := make(chan struct{}), make(chan []any, 1)
		go func() {
			keys := []any{"EXISTS"}
			for ctx.Err() == nil {
				key := fmt.Sprint(kept, ":", len(keys))
				if client.Set(ctx, key, "1", 0).Err() != nil {
					continue
				}
				keys = append(keys, key)
				if len(keys) == 2 {
					close(begun)
				}
			}
			written <- keys
		}()
		<-begun
		took := failover(nil)
		stop()
		keys := <-written
		n := len(keys) - 1
		t.Logf("round %d: %v without lost writes, %d written", round, took, n)
		if master() == old {
			t.Errorf("round %d: the same master after a failover", round)
		}
		if got := master().Do(t, keys...); got != int64(n) {
			t.Errorf("round %d: %v of %d writes are there", round, got, n)
		}
		heal()

		old = master()
		set(t, client, kept)
		took = failover(func() { set(t, client, lost) })
		t.Logf("round %d: %v with lost writes", round, took)
		if master() == old {
			t.Errorf("round %d: the same master after a failover", round)
		}
		if got := get(t, client, kept); got != "1" {
			t.Errorf("round %d: what was written before is %q", round, got)
		}
		if got := get(t, client, lost); got != "" {
			t.Errorf("round %d: what had to be lost is %q", round, got)
		}
		begin := time.Now()
		heal()
		t.Logf("round %d: %v to heal", round, time.Since(begin))
		if got := get(t, client, lost); got != "" {
			t.Errorf("round %d: what had to be lost is %q after the old master came back", round, got)
		}
	}
}

// set writes a key, at the first try that is acknowledged.
func set(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	try(t, client, func() error { return client.Set(t.Context(), key, "1", 0).Err() })
}

// get reads a key, or "" if it is not there.
func get(t *testing.T, client redis.UniversalClient, key string) (value string) {
	t.Helper()
	try(t, client, func() (err error) {
		value, err = client.Get(t.Context(), key).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	return value
}

// try calls f until it succeeds: a client needs a moment to learn of a failover. A
// client of a cluster does not look for another master when one is dead, unless it
// is told to.
func try(t *testing.T, client redis.UniversalClient, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		if cluster, ok := client.(*redis.ClusterClient); ok {
			cluster.ReloadState(t.Context())
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := redistest.TLS(t, redistest.UserArgs("index", "secret", "kv:", "get", "set")...)
	options := &redis.Options{Addr: s.TLSAddr, TLSConfig: s.Config, Username: "index", Password: "secret", MaxRetries: -1}
	open := func(change func(*redis.Options)) *redis.Client {
		o := *options
		change(&o)
		client := redis.NewClient(&o)
		t.Cleanup(func() { client.Close() })
		return client
	}
	check := func() {
		t.Helper()
		client := open(func(*redis.Options) {})
		if err := client.Set(t.Context(), "kv:a", "1", 0).Err(); err != nil {
			t.Error(err)
		}
		for name, err := range map[string]error{
			"a key without the prefix": client.Get(t.Context(), "a").Err(),
			"another command":          client.Del(t.Context(), "kv:a").Err(),
		} {
			if !redis.IsPermissionError(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	check()
	if err := open(func(o *redis.Options) { o.Password = "wrong" }).Get(t.Context(), "kv:a").Err(); !redis.IsAuthError(err) {
		t.Errorf("wrong password: %v", err)
	}
	stranger := open(func(o *redis.Options) {
		o.TLSConfig = o.TLSConfig.Clone()
		o.TLSConfig.RootCAs = nil
	})
	if err := stranger.Get(t.Context(), "kv:a").Err(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client that does not know the authority: %v", err)
	}
	s.Restart(t)
	check()
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const n = 20
	addrs := make(chan string, n)
	t.Run("servers", func(t *testing.T) {
		for i := range n {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				addrs <- redistest.Standalone(t).Addr()
			})
		}
	})
	for range n {
		addr := <-addrs
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
		if err := client.Ping(t.Context()).Err(); err == nil {
			t.Errorf("the server at %s outlived its test", addr)
		}
		client.Close()
	}
}

func TestNoServer(t *testing.T) {
	t.Setenv("KVINDEX_REDIS_SERVER", "no-such-server")
	t.Setenv("KVINDEX_REQUIRE_REDIS", "")
	var skipped bool
	t.Run("skip", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		redistest.Standalone(t)
	})
	if !skipped {
		t.Error("a test without a server was not skipped")
	}
}
