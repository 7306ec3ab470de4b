package redisindex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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

func TestStandalone(t *testing.T) { indextest.Run(t, writersOf(redistest.Standalone(t).Client(t))) }

func TestCluster(t *testing.T) { indextest.Run(t, writersOf(clusterClient(t))) }

// TestReader has the suite ask an index that nothing is applied to.
func TestReader(t *testing.T) { indextest.Run(t, readersOf(redistest.Standalone(t).Client(t))) }

func TestReaderOfCluster(t *testing.T) { indextest.Run(t, readersOf(clusterClient(t))) }

func clusterClient(t *testing.T) *redis.ClusterClient {
	// Nodes that are not heard for a while because the machine is busy are not down.
	options := redistest.Cluster(t, 3, 0, "--cluster-node-timeout", "30000").Options()
	options.ContextTimeoutEnabled = true
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

func writersOf(client redis.UniversalClient) func(testing.TB, indextest.Config) index.Index {
	return func(tb testing.TB, c indextest.Config) index.Index { return openBound(tb, client, c) }
}

func openBound(tb testing.TB, client redis.UniversalClient, c indextest.Config) *redisindex.Index {
	return open(tb, client, redisindex.Config{
		Memory:  index.MemoryConfig{PendingBytes: c.PendingBytes, IdleNames: c.IdleNames, Bytes: c.Bytes},
		Timeout: time.Minute, // the machine may be busy
	})
}

// asked is an index that is asked by another one.
type asked struct {
	*redisindex.Index
	reader *redisindex.Index
}

func readersOf(client redis.UniversalClient) func(testing.TB, indextest.Config) index.Index {
	return func(tb testing.TB, c indextest.Config) index.Index {
		ix := openBound(tb, client, c)
		return asked{ix, open(tb, client, redisindex.Config{Prefix: ix.Prefix()})}
	}
}

// Match asks the writer, too, which at its bound keeps what it is asked about itself.
func (a asked) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	keys := make(map[index.Variant][]index.Key)
	once := *q
	once.Keys = func(v index.Variant) (_ []index.Key, err error) {
		keys[v], err = q.Keys(v)
		return keys[v], err
	}
	if err := a.reader.Match(ctx, &once, m); err != nil {
		return err
	}
	once.Keys = func(v index.Variant) ([]index.Key, error) { return keys[v], nil }
	var of index.Matches
	return a.Index.Match(ctx, &once, &of)
}

func (a asked) Close() error { return errors.Join(a.Index.Close(), a.reader.Close()) }

func TestNoClient(t *testing.T) {
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := redisindex.New(client, redisindex.Config{}); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%T: %v", client, err)
		}
	}
}

// TestGoroutines: a closed index has none, also if it was closed while a server was away.
func TestGoroutines(t *testing.T) {
	s := redistest.Standalone(t)
	before := runtime.NumGoroutine()
	for _, away := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true})
		ix := open(t, client, redisindex.Config{})
		storeAll(t, ix, podNamed(1), newPrompt(rand.New(rand.NewPCG(1, 1)), 100))
		if away {
			s.Kill(t)
		}
		if err := ix.Close(); err != nil {
			t.Error(err)
		}
		client.Close()
		waitFor(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
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
