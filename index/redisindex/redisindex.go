// Package redisindex keeps an index in Redis or Valkey that any number of processes share.
// Writers follow the engines and write the index. Readers query it, and keep nothing in
// memory.
//
// A gateway that can hold the index in memory should do so: index.NewMemory answers in
// microseconds, and this index needs one round trip or more. It is for small readers,
// functions and tools.
//
//	client := redis.NewClient(&redis.Options{Addr: "redis:6379", ContextTimeoutEnabled: true})
//	shared, err := redisindex.New(client, redisindex.Config{Prefix: "fleet-a:"})
//	...
//	indexer, err := kvindex.New(kvindex.WithIndex(shared))
//
// An Indexer that follows engines (events.Subscriber, events.Fleet) is a writer now, and any
// other one is a reader. docs/redis.md describes how to run them.
//
// # How it works
//
// The rules of an index need exact state: the keys behind an engine's hashes, the number of
// copies of each block, the blocks that wait for their parent. Only the writer of a pod needs
// that state. The writer keeps it in an index in memory, the Memory, which takes all
// decisions. Redis has the result: the keys of each holder.
//
// The keys of a prompt lie in buckets of 32 keys, by their place in the prompt. The first key
// of a bucket is its name. A prompt of 512 blocks has 16 buckets. A reader computes their
// names without a query, and prompts that begin alike share their first buckets. Each writer
// has a section of its own in a bucket, and always writes the whole section. So a repeated
// write does no harm, and a writer never reads Redis to write.
//
// A section names holders by numbers. The registry of the model maps the numbers to holders. A
// reader keeps the registry, and fetches its version with each Match. So one write to the
// registry removes a pod or empties a cache: numbers that the registry does not name count for
// nothing, whatever the buckets still have.
//
// A source has one writer: the first that fed it. A lease shows that this writer is alive.
// Other writers that follow the same engine stand by. When the lease has ended, one of them
// takes the source over: it writes its own sections for the whole source, and then the
// registry.
//
// # What readers can rely on
//
// Apply returns when Redis has all changes. A Match that begins after that sees them. If Redis
// does not answer within Config.Timeout, Apply returns an error although the changes were
// applied. The writer keeps them, and writes them when Redis is back.
//
// A row is Stale if the lease of its writer has ended. It is Stale, too, if a server has lost
// writes, as a failover can do. The writer finds the loss with its next write, and writes
// everything again under another name. It finds it in time if a failover takes longer than
// Config.Lease, as it does with the defaults of Sentinel and Cluster.
//
// Keys that Redis evicts or loses make figures too low, and never too high, until the writer
// has written them again. Each key has a TTL.
package redisindex

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/trace"
	"github.com/redis/go-redis/v9"
)

// Defaults of Config.
const (
	defaultPrefix  = "kvindex:"
	defaultLease   = 2 * time.Second
	defaultTTL     = time.Hour
	defaultTimeout = time.Second
)

// Config configures an Index. The zero value has the defaults. All processes of an index have
// the same Prefix.
type Config struct {
	// Prefix is the beginning of all keys in Redis; "": "kvindex:". With a hash tag, as in
	// "{fleet-a}:", all keys are on one server of a cluster.
	Prefix string
	// Lease is how long a writer counts as alive after its last write to Redis: at least 100
	// ms; 0: 2 seconds. A failover must take longer: see the package comment.
	Lease time.Duration
	// TTL is how long Redis keeps a key without a write: at least a minute, and four times
	// Lease; 0: an hour. Writers renew the keys in use.
	TTL time.Duration
	// Timeout is how long an Apply waits for Redis; 0: a second. It should be well above the
	// time of a write.
	Timeout time.Duration
	// Degrade makes Match answer without rows in place of an error of Redis, which is then in
	// Matches.Degraded.
	Degrade bool
	// Memory configures the Memory in which a writer keeps its sources. Its Seed, unless it is
	// zero, is that of the index: New makes an index with it, or refuses one with another. Its
	// Bytes do not include the buckets of the writer: some 20 bytes more for each block, and half
	// a byte for each further holder of the block.
	Memory index.MemoryConfig
}

// The errors that a caller can test for with errors.Is.
var (
	// ErrSeed is wrapped by errors about an index that has another seed than this process. The
	// whole index was deleted or evicted, and another process has made a new one. Open it again,
	// with New. It does not happen if all processes have the same Memory.Seed.
	ErrSeed = errors.New("redisindex: the index has another seed than before")
	// ErrDelayed is wrapped by errors of Apply about changes that were applied and not written to
	// Redis in time. The writer goes on to write them: do not apply them again.
	ErrDelayed = sharedindex.ErrDelayed
)

// Index is an index in Redis. It is safe for concurrent use. Beside the contract of index.Index:
//
//   - Apply waits until Redis has the changes, unless another process writes the source. If
//     Redis does not have them in time, that is an error that wraps ErrDelayed, and all
//     changes were applied.
//   - A source of another process has no Cursor here: the messages of another process prove
//     nothing about this one.
//   - Remove and RemoveSource remove sources of this process, and those of processes whose
//     lease has ended. The sources of another living process stay.
//   - Describe and DescribeSource are about the sources of this process. MemoryUsage is that of
//     Config.Memory.
//   - Close ends the leases, so that another writer can take over at once. Unwritten changes
//     stay unwritten. Close waits for requests under way, for Config.Lease or 3 seconds at
//     most, and then for Config.Timeout. A second Close does nothing.
//
// Give it to kvindex.WithIndex as New has returned it: other processes do not see the changes
// that go through a wrapper of it.
type Index interface {
	index.Index
	index.Describer
	index.SourceRemover
	// Unreadable counts the values of Redis that were not readable: of another program with the
	// same Prefix, or damaged. Answers lack them. A value counts each time that it is read.
	Unreadable() uint64
}

// redisIndex is the Index.
type redisIndex struct {
	// client gets only pipelines. For a single command a ClusterClient requests a server's
	// list of commands, and waits 5 seconds for that, ignoring the context.
	client redis.UniversalClient
	c      Config
	names  names
	seed   [16]byte
	mark   string // of the seed, in versions
	mem    inmemory.Memory
	closed atomic.Bool
	remote

	mu sync.Mutex // guards all fields below, and is the last lock
	buckets
	writer

	start   sync.Once
	life    context.Context // until Close
	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}
}

// remote is the cached state of Redis, for Match.
type remote struct {
	readers    sync.Map // model to *registryCache
	leases     leases
	listing    listingCache
	splits     splits
	unreadable atomic.Uint64 // values
	lookedUp   atomic.Int64  // when, in unix nanoseconds
	cause      atomic.Pointer[cause]
	probing    turn
}

var (
	_ sharedindex.Directory = (*redisIndex)(nil)
	_ inmemory.Explainer    = (*redisIndex)(nil)
)

// New opens the index of a prefix, or makes it. It waits for Redis for 5 seconds at most. The
// options of the client must have ContextTimeoutEnabled: else a call ignores its context while
// it waits for a slow server. The client must read from masters, because a replica may lack
// the latest writes. Close does not close the client.
//
// New starts nothing. The first change starts the goroutine that writes.
func New(client redis.UniversalClient, c Config) (Index, error) {
	ix, err := newIndex(client, c)
	if err != nil {
		return nil, err
	}
	return ix, nil
}

func newIndex(client redis.UniversalClient, c Config) (*redisIndex, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	parts, at := uint64(1), "Redis"
	switch cl := client.(type) {
	case nil:
		return nil, errNoClient
	case *redis.Client:
		if cl == nil {
			return nil, errNoClient
		}
		if !cl.Options().ContextTimeoutEnabled {
			return nil, errNoTimeouts
		}
		at = cl.Options().Addr
	case *redis.ClusterClient:
		if cl == nil {
			return nil, errNoClient
		}
		if !cl.Options().ContextTimeoutEnabled {
			return nil, errNoTimeouts
		}
		if cl.Options().ReadOnly {
			return nil, errReplicas
		}
		parts, at = 64, strings.Join(cl.Options().Addrs, ", ")
	case *redis.Ring:
		return nil, errRing
	}
	ix := &redisIndex{client: client, c: c, names: names{c.Prefix, parts}, wake: make(chan struct{}, 1)}
	ix.listing.turn, ix.probing = newTurn(), newTurn()
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	switch err := ix.open(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("redisindex: prefix %q: the index at %s was not read within %v: %w", c.Prefix, at, openTime, err)
	case err != nil:
		return nil, fmt.Errorf("redisindex: prefix %q at %s: %w", c.Prefix, at, err)
	}
	if err := ix.openMemory(); err != nil {
		return nil, fmt.Errorf("redisindex: Config.Memory: %w", err)
	}
	ix.mark = bytesOf(fingerprint(ix.seed))
	ix.buckets.init()
	ix.writer.init()
	ix.life, ix.stop = context.WithCancel(context.Background())
	return ix, nil
}

// openTime is how long New waits for Redis.
const openTime = 5 * time.Second

var errNoClient = errors.New("redisindex: the client is nil")

var errNoTimeouts = errors.New("redisindex: the client's options need ContextTimeoutEnabled: true, or a slow server holds up callers after their contexts have ended")

var errRing = errors.New("redisindex: the client is a Ring, whose servers do not have the same keys before and after one of them fails: use a cluster")

var errReplicas = errors.New("redisindex: the client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly): these may lack the latest writes")

func (c *Config) fill() error {
	def := func(d *time.Duration, v, least time.Duration, name string) error {
		if *d == 0 {
			*d = v
		}
		if *d < least {
			return fmt.Errorf("redisindex: Config.%s is %v, must be at least %v", name, *d, least)
		}
		return nil
	}
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if _, tag, ok := strings.Cut(c.Prefix, "{"); ok && strings.HasPrefix(tag, "}") {
		return fmt.Errorf("redisindex: Config.Prefix is %q: keys with empty braces have no common server in a cluster", c.Prefix)
	}
	if err := errors.Join(
		def(&c.Lease, defaultLease, 100*time.Millisecond, "Lease"),
		def(&c.TTL, defaultTTL, time.Minute, "TTL"),
		def(&c.Timeout, defaultTimeout, time.Millisecond, "Timeout"),
	); err != nil {
		return err
	}
	if c.Lease > c.TTL/4 { // or keys end between two heartbeats
		return fmt.Errorf("redisindex: Config.TTL is %v, must be at least four times Config.Lease, which is %v", c.TTL, c.Lease)
	}
	return nil
}

// The root has the common settings of all processes of an index.
const (
	rootHead  = "kvindex 1 "
	rootBytes = len(rootHead) + 16 + 8
	// rootLives is the lifetime of the root, in TTLs.
	rootLives = 24
)

func (ix *redisIndex) root() string {
	return rootHead + string(ix.seed[:]) + bytesOf(ix.names.parts)
}

// open agrees with the other processes on the seed and the number of parts.
func (ix *redisIndex) open(ctx context.Context) error {
	if ix.seed = ix.c.Memory.Seed; ix.seed == ([16]byte{}) {
		rand.Read(ix.seed[:]) // never fails
	}
	key := ix.names.root()
	p := ix.client.Pipeline()
	made := p.SetNX(ctx, key, ix.root(), rootLives*ix.c.TTL)
	root := p.Get(ctx, key)
	_ = exec(ctx, p) // each has its own error
	got, err := root.Result()
	if denied := made.Err(); denied != nil && (err != nil || !redis.HasErrorPrefix(denied, "NOPERM")) {
		return denied // a user with read permission can open an existing index
	} else if err != nil {
		return err
	}
	if len(got) != rootBytes || got[:len(rootHead)] != rootHead {
		return fmt.Errorf("%q is of another program, or of another version of this one", key)
	}
	copy(ix.seed[:], got[len(rootHead):])
	if ix.names.parts = u64(got[len(rootHead)+16:]); ix.names.parts == 0 || ix.names.parts > maxParts {
		return fmt.Errorf("%q has %d parts", key, ix.names.parts)
	}
	if c := ix.c.Memory.Seed; c != ([16]byte{}) && c != ix.seed {
		return fmt.Errorf("%w: Config.Memory.Seed is not that of the index", ErrSeed)
	}
	return nil
}

// fingerprint identifies a seed without revealing it.
func fingerprint(seed [16]byte) uint64 {
	k := index.Chain(index.Key(binary.LittleEndian.Uint64(seed[:8])), index.Local(binary.LittleEndian.Uint64(seed[8:])))
	return uint64(index.Chain(index.Chain(k, index.Local(k)), 1))
}

// openMemory opens the Memory, with ix as its mirror.
func (ix *redisIndex) openMemory() (err error) {
	c := ix.c.Memory
	c.Seed = ix.seed
	if ix.mem, err = inmemory.New(c); err != nil {
		return err
	}
	ix.mem.(mirroredMemory).MirrorTo((*mirror)(ix))
	return nil
}

// Seed implements index.Index.
func (ix *redisIndex) Seed() [16]byte { return ix.seed }

// lookUpEvery is the least time between two lookups of a cluster's topology.
const lookUpEvery = 100 * time.Millisecond

// lookUp makes the client of a cluster look up the topology, after an error that no server
// sent. The client does that itself when another server redirects it, but not if one is dead.
func (ix *redisIndex) lookUp(err error) {
	cluster, ok := ix.client.(*redis.ClusterClient)
	var reply redis.Error
	if !ok || err == nil || errors.As(err, &reply) || errors.Is(err, context.Canceled) {
		return
	}
	last := ix.lookedUp.Load()
	if now := time.Now().UnixNano(); now-last > int64(lookUpEvery) && ix.lookedUp.CompareAndSwap(last, now) {
		cluster.ReloadState(context.Background()) // it does not wait
	}
}

// usable returns an error if the index cannot be used.
func (ix *redisIndex) usable(ctx context.Context) error {
	if ix.closed.Load() {
		return index.ErrClosed
	}
	return ctx.Err()
}

// Apply implements index.Index.
func (ix *redisIndex) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	if err := ix.usable(ctx); err != nil {
		return index.Effect{}, err
	}
	ix.run()
	done, err := ix.mem.Apply(ctx, src, cur, changes)
	if err != nil || done.Duplicate {
		return done, err
	}
	return done, ix.await(ctx, ix.applied(src, cur))
}

// Cursor implements index.Index.
func (ix *redisIndex) Cursor(ctx context.Context, src index.Source, stream string) (index.Cursor, error) {
	if err := ix.usable(ctx); err != nil {
		return index.Cursor{}, err
	}
	return ix.mem.Cursor(ctx, src, stream)
}

// Remove implements index.Index.
func (ix *redisIndex) Remove(ctx context.Context, pod string) error {
	if err := ix.usable(ctx); err != nil {
		return err
	}
	ix.run()
	if err := ix.mem.Remove(ctx, pod); err != nil {
		return err
	}
	return ix.remove(ctx, pod, func(src index.Source) bool { return src.Pod == pod })
}

// RemoveSource implements index.SourceRemover.
func (ix *redisIndex) RemoveSource(ctx context.Context, src index.Source) error {
	if err := ix.usable(ctx); err != nil {
		return err
	}
	ix.run()
	if err := ix.mem.RemoveSource(ctx, src); err != nil {
		return err
	}
	return ix.remove(ctx, src.Pod, func(s index.Source) bool { return s == src })
}

// Describe implements index.Describer.
func (ix *redisIndex) Describe(dst []index.SourceInfo) []index.SourceInfo {
	return ix.mem.Describe(dst)
}

// DescribeSource implements index.Describer.
func (ix *redisIndex) DescribeSource(src index.Source) (index.SourceInfo, bool) {
	return ix.mem.DescribeSource(src)
}

// Explain implements inmemory.Explainer, for a source of this process.
func (ix *redisIndex) Explain(ctx context.Context, src index.Source, b inmemory.Block) (trace.Trace, error) {
	return ix.mem.Explain(ctx, src, b)
}

// Unreadable implements Index.
func (ix *redisIndex) Unreadable() uint64 { return ix.unreadable.Load() }

// MemoryUsage implements index.Describer.
func (ix *redisIndex) MemoryUsage() index.MemoryUsage { return ix.mem.MemoryUsage() }

// Close implements index.Index.
func (ix *redisIndex) Close() error {
	if ix.closed.Swap(true) {
		return nil
	}
	ix.start.Do(func() {}) // no run begins any more
	ix.stop()
	ix.running.Wait()
	ix.probing <- struct{}{} // no probe begins any more
	ix.giveBack()
	ix.mu.Lock()
	close(ix.moved) // waiters return
	ix.mu.Unlock()
	return ix.mem.Close()
}

// run starts the writing goroutine, with the first change.
func (ix *redisIndex) run() {
	ix.start.Do(func() {
		ix.running.Go(func() { ix.write(ix.life) })
	})
}
