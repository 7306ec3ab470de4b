package redisindex_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/redis/go-redis/v9"
)

var prefixes atomic.Int64

// open returns an empty index.
func open(tb testing.TB, client redis.UniversalClient, c redisindex.Config) *redisindex.Index {
	tb.Helper()
	if c.Prefix == "" {
		c.Prefix = fmt.Sprintf("t%d:", prefixes.Add(1))
	}
	ix, err := redisindex.New(client, c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ix.Close() })
	return ix
}

func TestStandalone(t *testing.T) { conform(t, redistest.Standalone(t).Client(t)) }

func TestCluster(t *testing.T) {
	options := redistest.Cluster(t, 3, 0).Options()
	options.ContextTimeoutEnabled = true
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	conform(t, client)
}

// conform runs the suite of backends.
func conform(t *testing.T, client redis.UniversalClient) {
	indextest.Run(t, func(tb testing.TB, c indextest.Config) index.Index {
		return open(tb, client, redisindex.Config{
			Memory: index.MemoryConfig{PendingBytes: c.PendingBytes, IdleNames: c.IdleNames, Bytes: c.Bytes},
		})
	})
}

func TestNoClient(t *testing.T) {
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := redisindex.New(client, redisindex.Config{}); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%T: %v", client, err)
		}
	}
}

// TestCommands has a user who may do what the documentation asks for, and nothing else.
func TestCommands(t *testing.T) {
	allowed := strings.Fields("get set setnx mget hget hset hdel hgetall sadd smembers exists pttl pexpire unlink scan time eval evalsha")
	server := redistest.Standalone(t, redistest.UserArgs("kv", "secret", "t", allowed...)...)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Username: "kv", Password: "secret", ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { client.Close() })
	ix := open(t, client, redisindex.Config{Lease: 200 * time.Millisecond})
	p := newPrompt(rand.New(rand.NewPCG(1, 1)), 100)
	storeAll(t, ix, podNamed(1), p)
	waitFor(t, "all beats do without more", func() bool {
		listing, err := ix.Listing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(listing.Entries) == 1 && !listing.Entries[0].Stale && ix.Stats().Trouble == nil
	})
	var m index.Matches
	q := index.Query{Candidates: index.NewCandidates("llama-3", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
	if err := ix.Match(t.Context(), &q, &m); err != nil || len(m.Rows) != 1 || m.Rows[0].Run != 100 {
		t.Errorf("%d rows, %v", len(m.Rows), err)
	}
	if err := ix.Remove(t.Context(), podNamed(1).Pod); err != nil {
		t.Error(err)
	}
}
