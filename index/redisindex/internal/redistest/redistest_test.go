package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // the client logs each refused connection
	os.Exit(m.Run())
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

	// A cut shard: its master takes writes that are lost when the nodes elect its replica. The
	// other shards keep theirs.
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

// failovers checks by one key which writes survive failovers. The client follows them.
func failovers(t *testing.T, client redis.UniversalClient, failover func(lose func()) time.Duration,
	master func() *redistest.Server, heal func(),
) {
	t.Helper()
	for round := range 2 {
		kept, lost := fmt.Sprintf("{kept}%d", round), fmt.Sprintf("{kept}lost%d", round)

		// Writers continue during a failover, which loses nothing acknowledged.
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

// set writes a key once a write is acknowledged.
func set(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	try(t, client, func() error { return client.Set(t.Context(), key, "1", 0).Err() })
}

// get reads a key, or "" if it is missing.
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

// try calls f until it succeeds: a client notices a failover late. A cluster's client looks for a
// new master only when the cluster refers it there.
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
