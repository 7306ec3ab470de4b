package redisindex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

var prefixes atomic.Int64

// open returns an empty index.
func open(tb testing.TB, client redis.UniversalClient, c redisindex.Config) *redisindex.RedisIndex {
	tb.Helper()
	if c.Prefix == "" {
		c.Prefix = fmt.Sprintf("t%d:", prefixes.Add(1))
	}
	ix, err := redisindex.Open(client, c)
	must(tb, err)
	tb.Cleanup(func() { ix.Close() })
	return ix
}

func TestStandalone(t *testing.T) { indextest.Run(t, writersOf(redistest.Standalone(t).Client(t))) }

func TestCluster(t *testing.T) { indextest.Run(t, writersOf(clusterClient(t))) }

// TestReader runs the suite on an index whose answers another one reads.
func TestReader(t *testing.T) { indextest.Run(t, readersOf(redistest.Standalone(t).Client(t))) }

func TestReaderOfCluster(t *testing.T) { indextest.Run(t, readersOf(clusterClient(t))) }

func clusterClient(t *testing.T) *redis.ClusterClient {
	// The timeout is long, so that a busy machine does not make nodes look dead.
	options := redistest.Cluster(t, 3, 0, "--cluster-node-timeout", "30000").Options()
	options.ContextTimeoutEnabled = true
	client := redis.NewClusterClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

func writersOf(client redis.UniversalClient) func(testing.TB, indextest.Config) index.Index {
	return func(tb testing.TB, c indextest.Config) index.Index { return openBound(tb, client, c) }
}

func openBound(tb testing.TB, client redis.UniversalClient, c indextest.Config) *redisindex.RedisIndex {
	ix := open(tb, client, redisindex.Config{
		Memory:  index.MemoryConfig{Bytes: c.Bytes},
		Timeout: time.Minute, // the machine may be busy
	})
	ix.SetBounds(c.PendingBytes, c.IdleNames)
	return ix
}

// writerAndReader is an index whose answers come from another one.
type writerAndReader struct {
	*redisindex.RedisIndex
	reader *redisindex.RedisIndex
}

func readersOf(client redis.UniversalClient) func(testing.TB, indextest.Config) index.Index {
	return func(tb testing.TB, c indextest.Config) index.Index {
		ix := openBound(tb, client, c)
		return writerAndReader{ix, open(tb, client, redisindex.Config{Prefix: ix.Prefix()})}
	}
}

// Match also calls the writer's, which marks the blocks as used for evictions.
func (a writerAndReader) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
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
	return a.RedisIndex.Match(ctx, &once, &of)
}

func (a writerAndReader) Close() error { return errors.Join(a.RedisIndex.Close(), a.reader.Close()) }

func TestNoClient(t *testing.T) {
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := redisindex.Open(client, redisindex.Config{}); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%T: %v", client, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{ContextTimeoutEnabled: true})
	defer ring.Close()
	if _, err := redisindex.Open(ring, redisindex.Config{}); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a Ring: %v", err)
	}
}

// TestNoAnswer: if Redis does not answer in time, the error has its address.
func TestNoAnswer(t *testing.T) {
	late := func(context.Context, string, string) (net.Conn, error) { return nil, context.DeadlineExceeded }
	for at, client := range map[string]redis.UniversalClient{
		"10.0.0.7:6379":                redis.NewClient(&redis.Options{Addr: "10.0.0.7:6379", ContextTimeoutEnabled: true, MaxRetries: -1, Dialer: late}),
		"10.0.0.7:6379, 10.0.0.8:6379": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.7:6379", "10.0.0.8:6379"}, ContextTimeoutEnabled: true, MaxRetries: -1, MaxRedirects: -1, Dialer: late}),
	} {
		_, err := redisindex.Open(client, redisindex.Config{Prefix: "p:"})
		if want := `redisindex: prefix "p:": the index at ` + at + " was not read within 5s: "; !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		client.Close()
	}
}

// TestSeed: the first process makes the index with its seed, and a process with another is refused.
func TestSeed(t *testing.T) {
	client := redistest.Standalone(t).Client(t)
	with := func(seed byte) redisindex.Config {
		return redisindex.Config{Prefix: "p:", Memory: index.MemoryConfig{Seed: [16]byte{seed}}}
	}
	for _, c := range []redisindex.Config{with(1), with(0), with(1)} {
		if got := open(t, client, c).Seed(); got != [16]byte{1} {
			t.Errorf("with the seed %v the index has %v", c.Memory.Seed, got)
		}
	}
	if _, err := redisindex.Open(client, with(2)); !errors.Is(err, redisindex.ErrSeed) {
		t.Errorf("another seed: %v", err)
	}
}

// TestReplicas: clients that may read outdated values are refused.
func TestReplicas(t *testing.T) {
	for _, o := range []redis.ClusterOptions{{ReadOnly: true}, {RouteByLatency: true}, {RouteRandomly: true}} {
		o.ContextTimeoutEnabled = true
		client := redis.NewClusterClient(&o)
		if _, err := redisindex.Open(client, redisindex.Config{}); err == nil || !strings.Contains(err.Error(), "replicas") {
			t.Errorf("the error is %v", err)
		}
		client.Close()
	}
	a, b := redistest.Standalone(t), redistest.Standalone(t)
	b.Follow(t, a)
	open(t, a.Client(t), redisindex.Config{Prefix: "p:"})
	eventually(t, "the replica has the index", func() error { return b.Client(t).Get(t.Context(), "p:root").Err() })
	if _, err := redisindex.Open(b.Client(t), redisindex.Config{Prefix: "p:"}); !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("the error is %v", err)
	}
}

// TestGoroutines: a closed index has none, even if it was closed while a server was away.
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

// These are the commands of docs/redis.md.
const (
	readCommands    = "get mget hget hgetall smembers exists pttl"
	writeCommands   = "set setnx hmget hset hdel sadd pexpire unlink scan time eval evalsha"
	clusterCommands = " cluster|slots"
)

// usersOf returns the commands that give a server a reader and a writer.
func usersOf(more string) []string {
	return append(
		redistest.UserArgs("writer", "secret", "t", strings.Fields(readCommands+" "+writeCommands+more)...),
		redistest.UserArgs("reader", "secret", "t", strings.Fields(readCommands+more)...)...)
}

// TestCommands: users with exactly the documented permissions can do everything.
func TestCommands(t *testing.T) {
	t.Run("standalone", func(t *testing.T) {
		s := redistest.Standalone(t, usersOf("")...)
		wantCommands(t, []*redistest.Server{s}, func(user string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: s.Addr(), Username: user, Password: "secret", ContextTimeoutEnabled: true})
		})
	})
	t.Run("cluster", func(t *testing.T) {
		g := redistest.Cluster(t, 3, 0, usersOf(clusterCommands)...)
		wantCommands(t, g.Servers, func(user string) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: g.Addrs(), Username: user, Password: "secret", ContextTimeoutEnabled: true})
		})
	})
}

func wantCommands(t *testing.T, servers []*redistest.Server, clientOf func(user string) redis.UniversalClient) {
	as := func(user string) redis.UniversalClient {
		client := clientOf(user)
		t.Cleanup(func() { client.Close() })
		return client
	}
	for _, s := range servers {
		s.Do(t, "CONFIG", "RESETSTAT")
	}
	prefix := fmt.Sprintf("t%d:", prefixes.Add(1))
	if _, err := redisindex.Open(as("reader"), redisindex.Config{Prefix: prefix}); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("an index is made by a reader: %v", err)
	}
	ix := open(t, as("writer"), redisindex.Config{Prefix: prefix, Lease: 200 * time.Millisecond})
	reader := open(t, as("reader"), redisindex.Config{Prefix: prefix})
	p := newPrompt(rand.New(rand.NewPCG(1, 1)), 100)
	storeAll(t, ix, podNamed(1), p)
	for _, of := range []*redisindex.RedisIndex{ix, reader} {
		waitFor(t, "all beats do without more", func() bool {
			listing, err := of.Listing(t.Context())
			must(t, err)
			return len(listing.Entries) == 1 && !listing.Entries[0].Stale && of.Trouble() == nil
		})
		var m index.Matches
		q := index.Query{Candidates: index.NewCandidates("llama-3", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
		if err := of.Match(t.Context(), &q, &m); err != nil || len(m.Rows) != 1 || m.Rows[0].Run != 100 {
			t.Errorf("%d rows, %v", len(m.Rows), err)
		}
	}
	if err := ix.Remove(t.Context(), podNamed(1).Pod); err != nil {
		t.Error(err)
	}
	c := p.store(0)
	if _, err := reader.Apply(t.Context(), podNamed(1), index.Cursor{}, []index.Change{c}); !errors.Is(err, sharedindex.ErrDelayed) || !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("a reader writes: %v", err)
	}
	for _, s := range servers { // see Index.client
		if stats := fmt.Sprint(s.Do(t, "INFO", "commandstats")); strings.Contains(stats, "cmdstat_command:") {
			t.Error("the client sent COMMAND")
		}
	}
}
