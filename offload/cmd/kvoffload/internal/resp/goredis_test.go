package resp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestGoRedis has go-redis do the same with redis-server and a Server, in both protocols: call by
// call, in a pipeline, and on many connections.
func TestGoRedis(t *testing.T) {
	cfg := small()
	cfg.Password, cfg.MemoryBytes = []byte("secret"), 64<<20
	_, ours := serve(t, cfg)
	theirs := redisServer(t, "--requirepass", "secret")
	for _, protocol := range []int{2, 3} {
		var results [2][]string
		for i, sock := range []string{ours, theirs} {
			c := redis.NewClient(&redis.Options{Network: "unix", Addr: sock, Password: "secret", ClientName: "lmcache", Protocol: protocol, MaxRetries: -1})
			results[i] = useGoRedis(t, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(results[0], results[1]) {
			t.Errorf("RESP%d: %.2000q, redis-server %.2000q", protocol, results[0], results[1])
		}
	}
}

func useGoRedis(t *testing.T, c *redis.Client) (results []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	data := made("go-redis", 0, 10_000)
	note := func(cmd redis.Cmder) {
		t.Helper()
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		results = append(results, cmd.String())
	}
	note(c.FlushAll(ctx))
	note(c.Ping(ctx))
	note(c.Get(ctx, "none"))
	note(c.Set(ctx, "akv_bytes", data, 0))
	note(c.Set(ctx, "ametadata", "m", 0))
	note(c.Exists(ctx, "ametadata", "none"))
	note(c.MGet(ctx, "ametadata", "none", "akv_bytes"))
	note(c.StrLen(ctx, "akv_bytes"))
	note(c.DBSize(ctx))
	var all []string
	keys := c.Scan(ctx, 0, "", 100).Iterator()
	for keys.Next(ctx) {
		all = append(all, keys.Val())
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	results = append(results, fmt.Sprint(all))
	note(c.Set(ctx, "k", data, time.Hour))
	note(c.TTL(ctx, "k"))
	note(c.Set(ctx, "k", data, 1500*time.Second+time.Millisecond)) // PX
	note(c.Del(ctx, "k", "ametadata", "akv_bytes"))

	pipe := c.Pipeline()
	for i := range 100 {
		pipe.Set(ctx, fmt.Sprintf("%dkv_bytes", i), data[i:], 0)
		pipe.Set(ctx, fmt.Sprintf("%dmetadata", i), i, 0)
	}
	for i := range 100 {
		pipe.Get(ctx, fmt.Sprintf("%dmetadata", i))
		pipe.Get(ctx, fmt.Sprintf("%dkv_bytes", i))
	}
	cmds, err := pipe.Exec(ctx)
	must(t, err)
	for _, cmd := range cmds {
		note(cmd)
	}

	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			if got, err := c.Get(ctx, fmt.Sprintf("%dkv_bytes", i)).Result(); err != nil || got != data[i:] {
				t.Errorf("block %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	calls.Wait()
	note(c.FlushAll(ctx))
	note(c.DBSize(ctx))
	return results
}
