// Package redisindex keeps an index in Redis or Valkey, for any number of processes: those
// that follow engines write it, and all can ask it, also those that hold nothing themselves.
//
// A gateway that can hold the index in memory should: it answers in microseconds, and this
// one needs a round trip or two. This one is for small readers, functions and tools.
//
// # How it works
//
// What the engines' own names mean, how copies are counted, what waits for its parent: all
// that is exact state, and only who follows the engine needs it. So a writer keeps it in an
// index.Memory, which also takes all decisions. Redis gets what follows: which holder has
// which key.
//
// The keys of prompts are in buckets of 32, by their place in the prompt, each under the name
// of its first key. A prompt of 512 blocks is 16 buckets, which a reader names without having
// asked for anything else, and all who share its beginning meet in them. Each writer has a
// section of its own in a bucket, and always writes it whole: so what he writes twice, or
// again after an error, does no harm, and he never has to read what is there. A section has
// numbers for the holders. What they mean is in the registry of the model, which a reader
// keeps, and of which each of his questions fetches the version. So a pod that has gone, or a
// cache that was emptied, is one write to the registry, whatever the buckets still have.
//
// Each source has one writer: the first that fed it. A lease says that he lives. Who follows
// the same engines stands by, and takes over when the lease has ended: he writes what he knows
// into his own sections, and then puts himself into the registry.
//
// # What readers can rely on
//
// An Apply returns when Redis has everything: a Match that begins then sees it. If Redis does not
// answer for Config.Timeout, the error wraps index.ErrDelayed: what was applied is kept, and
// written when Redis is back.
//
// Rows are Stale if the lease of their writer has ended. So they are if a server has lost
// what a writer wrote there, as after a failover: he finds out, and writes everything anew,
// under another name. That is seen in time if a failover takes longer than Config.Lease, as it
// does by the defaults of Sentinel and Cluster.
//
// Whatever Redis evicts or loses makes figures too low, never too high, until it is written
// again. Each key has a TTL.
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
	"github.com/redis/go-redis/v9"
)

// Defaults of Config.
const (
	DefaultPrefix  = "kvindex:"
	DefaultLease   = 2 * time.Second
	DefaultTTL     = time.Hour
	DefaultTimeout = time.Second
	DefaultSweep   = 1000
)

// Config configures an Index. The zero value is the default. All processes of an index have
// the same Prefix.
type Config struct {
	// Prefix is what all keys in Redis begin with. With a hash tag, as in "{fleet-a}:", all are
	// on one server of a cluster.
	Prefix string
	// Lease is how long the word of a writer counts after it was last heard, 100 ms at least.
	// A failover must take longer than that: see the package comment.
	Lease time.Duration
	// TTL is how long Redis keeps what nobody writes again, a minute at least. Writers renew
	// what is held.
	TTL time.Duration
	// Timeout bounds how long an Apply waits for Redis. It should be well above the time
	// that a write takes.
	Timeout time.Duration
	// Sweep is how many buckets a second a writer looks at to renew them, and to take away what
	// is not held any more. It is more if the TTL asks for that.
	Sweep int
	// Seed of the locals and roots, for an index that does not exist yet; zero: a random one.
	Seed [16]byte
	// Degrade has Match answer without rows, and with Matches.Degraded, where it would
	// return an error of Redis.
	Degrade bool
	// Memory is what a writer knows of its sources. Its Seed and Mirror are not looked at.
	Memory index.MemoryConfig
}

// ErrSeed is wrapped by errors about an index that was made anew with another seed, because all
// of it was deleted or evicted: it must be opened again. A Config.Seed prevents that.
var ErrSeed = errors.New("redisindex: the index has another seed than before")

// Index is an index in Redis. It is safe for concurrent use.
type Index struct {
	client redis.UniversalClient
	c      Config
	names  names
	seed   [16]byte
	mark   string // of the seed, in versions
	mem    *index.Memory
	closed atomic.Bool

	readers  sync.Map // model to *registryCache
	leases   leases
	listing  listingCache
	splits   splits
	garbage  atomic.Uint64 // values that made no sense
	lookedUp atomic.Int64  // when, in unix nanoseconds
	cause    atomic.Pointer[cause]
	probing  turn

	mu sync.Mutex // guards all below, and is the last lock
	buckets
	writer

	start   sync.Once
	life    context.Context // until Close
	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}
}

var (
	_ index.Index           = (*Index)(nil)
	_ index.Directory       = (*Index)(nil)
	_ index.Describer       = (*Index)(nil)
	_ index.SourceDescriber = (*Index)(nil)
	_ index.SourceRemover   = (*Index)(nil)
	_ index.Explainer       = (*Index)(nil)
	_ index.Sizer           = (*Index)(nil)
)

// New opens the index of a prefix, and makes it if there is none. The client must have
// ContextTimeoutEnabled, which bounds what is asked by the contexts of those who ask. Close
// does not close it.
func New(client redis.UniversalClient, c Config) (*Index, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	parts := uint64(1)
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
	case *redis.ClusterClient:
		if cl == nil {
			return nil, errNoClient
		}
		if !cl.Options().ContextTimeoutEnabled {
			return nil, errNoTimeouts
		}
		parts = 64
	}
	ix := &Index{client: client, c: c, names: names{c.Prefix, parts}, wake: make(chan struct{}, 1)}
	ix.listing.turn, ix.probing = newTurn(), newTurn()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := ix.open(ctx); err != nil {
		return nil, fmt.Errorf("redisindex: prefix %q: %w", c.Prefix, err)
	}
	mc := c.Memory
	mc.Seed, mc.Mirror = ix.seed, (*mirror)(ix)
	mem, err := index.NewMemory(mc)
	if err != nil {
		return nil, fmt.Errorf("redisindex: Config.Memory: %w", err)
	}
	ix.mem = mem
	ix.mark = bytesOf(fingerprint(ix.seed))
	ix.buckets.init()
	ix.writer.init()
	ix.life, ix.stop = context.WithCancel(context.Background())
	return ix, nil
}

var errNoClient = errors.New("redisindex: the client is nil")

var errNoTimeouts = errors.New("redisindex: the client's options need ContextTimeoutEnabled: true, or a slow server would hold up callers whatever their contexts say")

func (c *Config) fill() error {
	def := func(d *time.Duration, v, least time.Duration, name string) error {
		if *d == 0 {
			*d = v
		}
		if *d < least {
			return fmt.Errorf("redisindex: Config.%s is %v, at least %v", name, *d, least)
		}
		return nil
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Sweep == 0 {
		c.Sweep = DefaultSweep
	}
	if _, tag, ok := strings.Cut(c.Prefix, "{"); ok && strings.HasPrefix(tag, "}") {
		return fmt.Errorf("redisindex: Config.Prefix is %q: keys with empty braces have no common server in a cluster", c.Prefix)
	}
	if c.Sweep < 0 {
		return fmt.Errorf("redisindex: Config.Sweep is %d", c.Sweep)
	}
	return errors.Join(
		def(&c.Lease, DefaultLease, 100*time.Millisecond, "Lease"),
		def(&c.TTL, DefaultTTL, time.Minute, "TTL"),
		def(&c.Timeout, DefaultTimeout, time.Millisecond, "Timeout"),
	)
}

// The root has what all processes of an index agree on.
const (
	rootHead  = "kvindex 1 "
	rootBytes = len(rootHead) + 16 + 8
	// rootLives is how many TTLs the root has.
	rootLives = 24
)

func (ix *Index) root() string {
	return rootHead + string(ix.seed[:]) + bytesOf(ix.names.parts)
}

// open agrees with the others on the seed and the number of parts.
func (ix *Index) open(ctx context.Context) error {
	if ix.seed = ix.c.Seed; ix.seed == ([16]byte{}) {
		rand.Read(ix.seed[:]) // never fails
	}
	key := ix.names.root()
	if err := ix.client.SetNX(ctx, key, ix.root(), rootLives*ix.c.TTL).Err(); err != nil {
		return err
	}
	got, err := ix.client.Get(ctx, key).Result()
	if err != nil {
		return err
	}
	if len(got) != rootBytes || got[:len(rootHead)] != rootHead {
		return fmt.Errorf("%q is of another program, or of another version of this one", key)
	}
	copy(ix.seed[:], got[len(rootHead):])
	if ix.names.parts = u64(got[len(rootHead)+16:]); ix.names.parts == 0 || ix.names.parts > maxParts {
		return fmt.Errorf("%q says that there are %d parts", key, ix.names.parts)
	}
	if c := ix.c.Seed; c != ([16]byte{}) && c != ix.seed {
		return fmt.Errorf("%w: Config.Seed is not that of the index", ErrSeed)
	}
	return nil
}

// fingerprint tells seeds apart without giving them away.
func fingerprint(seed [16]byte) uint64 {
	k := index.Chain(index.Key(binary.LittleEndian.Uint64(seed[:8])), index.Local(binary.LittleEndian.Uint64(seed[8:])))
	return uint64(index.Chain(index.Chain(k, index.Local(k)), 1))
}

// Seed implements index.Index.
func (ix *Index) Seed() [16]byte { return ix.seed }

// lookUpEvery is how often a client of a cluster looks up anew who serves what, at most.
const lookUpEvery = 100 * time.Millisecond

// lookUp has the client of a cluster look up who serves what, after an error that no server
// sent. By itself the client does that when another server says so, but not if one is dead.
func (ix *Index) lookUp(err error) {
	cluster, ok := ix.client.(*redis.ClusterClient)
	var said redis.Error
	if !ok || err == nil || errors.As(err, &said) || errors.Is(err, context.Canceled) {
		return
	}
	last := ix.lookedUp.Load()
	if now := time.Now().UnixNano(); now-last > int64(lookUpEvery) && ix.lookedUp.CompareAndSwap(last, now) {
		cluster.ReloadState(context.Background()) // it does not wait
	}
}

// usable returns why nothing can be done.
func (ix *Index) usable(ctx context.Context) error {
	if ix.closed.Load() {
		return index.ErrClosed
	}
	return ctx.Err()
}

// Apply implements index.Index. It waits until Redis has what was applied, unless another
// process writes the source. An error that wraps index.ErrDelayed says why Redis does not
// have it yet.
func (ix *Index) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Applied, error) {
	if err := ix.usable(ctx); err != nil {
		return index.Applied{}, err
	}
	ix.run()
	done, err := ix.mem.Apply(ctx, src, cur, changes)
	if err != nil || done.Duplicate {
		return done, err
	}
	s, change := ix.applied(src, cur)
	return done, ix.await(ctx, s, change)
}

// Cursor implements index.Index. Of sources that this process does not feed there is none:
// what another one has seen says nothing of what this one knows.
func (ix *Index) Cursor(ctx context.Context, src index.Source, stream string) (index.Cursor, error) {
	if err := ix.usable(ctx); err != nil {
		return index.Cursor{}, err
	}
	return ix.mem.Cursor(ctx, src, stream)
}

// Remove implements index.Index. A pod that another process feeds, and that lives, is that one's to
// remove.
func (ix *Index) Remove(ctx context.Context, pod string) error {
	if err := ix.usable(ctx); err != nil {
		return err
	}
	ix.run()
	if err := ix.mem.Remove(ctx, pod); err != nil {
		return err
	}
	return ix.remove(ctx, pod, func(src index.Source) bool { return src.Pod == pod })
}

// RemoveSource implements index.SourceRemover, as Remove does.
func (ix *Index) RemoveSource(ctx context.Context, src index.Source) error {
	if err := ix.usable(ctx); err != nil {
		return err
	}
	ix.run()
	if err := ix.mem.RemoveSource(ctx, src); err != nil {
		return err
	}
	return ix.remove(ctx, src.Pod, func(s index.Source) bool { return s == src })
}

// Describe implements index.Describer, for the sources that this process feeds.
func (ix *Index) Describe(dst []index.SourceInfo) []index.SourceInfo { return ix.mem.Describe(dst) }

// DescribeSource implements index.SourceDescriber, for a source that this process feeds.
func (ix *Index) DescribeSource(src index.Source) (index.SourceInfo, bool) {
	return ix.mem.DescribeSource(src)
}

// Explain implements index.Explainer, for a source that this process feeds.
func (ix *Index) Explain(ctx context.Context, src index.Source, b index.Block) (index.Trace, error) {
	return ix.mem.Explain(ctx, src, b)
}

// Usage implements index.Sizer: it is that of the Memory.
func (ix *Index) Usage() index.Usage { return ix.mem.Usage() }

// Close ends the writing, and gives the leases back, so that others may take over at once. What
// was not written yet is not written any more. It waits for that for Config.Timeout at most.
func (ix *Index) Close() error {
	if ix.closed.Swap(true) {
		return nil
	}
	ix.start.Do(func() {}) // no run begins any more
	ix.stop()
	ix.running.Wait()
	ix.probing <- struct{}{} // no probe begins any more
	ix.giveBack()
	ix.mu.Lock()
	ix.progress()
	ix.mu.Unlock()
	return ix.mem.Close()
}

// run begins to write, with the first that is to be written.
func (ix *Index) run() {
	ix.start.Do(func() {
		ix.running.Go(func() { ix.write(ix.life) })
	})
}

// Prefix returns Config.Prefix, or its default.
func (ix *Index) Prefix() string { return ix.c.Prefix }
