package offload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Config is what a Store is made of. Zero fields have the defaults named here.
type Config struct {
	Space       Space
	MemoryBytes int64   // bytes of all blocks in memory, rounded down to blocks; required
	SlabBytes   int     // bytes that are mapped at once, when they are first needed; 64 MiB
	Policy      Policy  // DefaultPolicy
	SmallShare  float64 // of S3FIFO: the part of the memory for new blocks; 0.3
	PromoteAt   int     // of S3FIFO: uses that make a new block a hot one, 1 to 3; 1
	MaxTokens   int     // of a chain; blocks beyond are not stored; 0 is no bound
	Disk        Disk    // the tier below the memory
	Events      *Events // gets the events of the blocks in memory; nil: nothing does
}

func (c *Config) complete() error {
	if c.SlabBytes == 0 {
		c.SlabBytes = 64 << 20
	}
	if c.Policy == "" {
		c.Policy = DefaultPolicy
	}
	if c.SmallShare == 0 {
		c.SmallShare = 0.3
	}
	if c.PromoteAt == 0 {
		c.PromoteAt = 1
	}
	if err := c.Space.validate(); err != nil {
		return err
	}
	switch blocks := c.MemoryBytes / int64(c.Space.BlockBytes); {
	case blocks < 1 || blocks > math.MaxInt32:
		return fmt.Errorf("offload: Config.MemoryBytes is %d, which is %d blocks of %d bytes", c.MemoryBytes, blocks, c.Space.BlockBytes)
	case c.SlabBytes < 1:
		return fmt.Errorf("offload: Config.SlabBytes is %d", c.SlabBytes)
	case !(c.SmallShare > 0 && c.SmallShare < 1):
		return fmt.Errorf("offload: Config.SmallShare is %v, not between 0 and 1", c.SmallShare)
	case c.PromoteAt < 1 || c.PromoteAt > 3:
		return fmt.Errorf("offload: Config.PromoteAt is %d, not 1 to 3", c.PromoteAt)
	case c.MaxTokens < 0:
		return fmt.Errorf("offload: Config.MaxTokens is %d", c.MaxTokens)
	}
	return nil
}

// Store holds blocks of one space. Its methods may be called at the same time.
//
// A chain is the keys of a prompt from its first block on. Each operation on a chain is about
// a prefix of it: the result has no holes, and is valid with any error. The
// error is the reason why the prefix is not longer; that a block is not there is no error.
type Store struct {
	cfg      Config
	space    SpaceID
	perSlab  int // blocks of a slab
	capacity int // blocks in memory, but for those that are leaving it
	quota    int // blocks in flight to the Backend

	closing sync.Once

	mu     sync.Mutex // guards all below, and not the bytes of blocks
	closed bool
	mem    memory
	behind behind
	policy policy
	count  counts

	prefetches int
	reading    int
	deletes    uint64
	io         sync.WaitGroup // goroutines with a use of the Backend; Add needs the lock and no close
}

// memory has the blocks of a Store that are in memory, each in a slot.
type memory struct {
	slabs    []slab         // of full length from the start; mapped as far as used
	used     int            // slots that had a block at any time; the next that has not
	free     []uint32       // slots below used without a block
	slots    map[Key]uint32 // the resident blocks
	keys     []Key          // by slot
	resident []bool         // by slot: slots[keys[slot]] is slot
	refs     []int32        // by slot: leases that it is in
	pinned   int            // resident slots with refs
	leased   int            // sum of refs
}

// behind has the blocks that the Backend has still to take.
type behind struct {
	queue    []write       // the oldest first; at most quota
	batch    int           // of queue, those that are being written
	queued   uint64        // writes that were ever in queue
	progress chan struct{} // is closed, and made again, when queue gets shorter
	leaving  int           // evicted blocks in queue
	writing  bool          // writeBehind runs
}

// counts are the events of a Store, guarded by its lock.
type counts struct {
	hits, misses, stored, evicted, refused uint64
	acquires                               Times

	metPinned uint64 // by LRU and FIFO

	disk DiskStats
}

// Stats is a copy of the counters of a Store. Figures about the memory are in blocks, each of
// Space.BlockBytes.
type Stats struct {
	Blocks, Capacity int    // blocks in memory, and how many fit
	Leased           int    // references of leases, reads and writes; 0 when all is done
	Hits, Misses     uint64 // blocks of calls of Acquire and Read
	Stored           uint64 // blocks that came into memory
	Evicted          uint64 // blocks that left it to make room
	Refused          uint64 // blocks that Alloc and Write had no room for
	Acquires         Times  // calls of Acquire and Read: what they did in memory, but for copies
	Disk             DiskStats
}

// Times counts operations by how long they took.
type Times struct {
	N   uint64        // operations
	Sum time.Duration // of all
	// Below[i] counts those that took less than 4^i microseconds and, unless i is 0, not less than
	// a quarter of that. The last counts all that took longer, too.
	Below [12]uint64
}

func (t *Times) add(took time.Duration) {
	t.N++
	t.Sum += took
	i := 0
	for i < len(t.Below)-1 && took >= time.Microsecond<<(2*i) {
		i++
	}
	t.Below[i]++
}

// DiskStats counts what a Store did with its Backend, in blocks, each of Space.BlockBytes.
// A Backend itself counts the blocks that it holds and drops: SegmentStats.
type DiskStats struct {
	InFlight           int    // blocks that wait to be written or are being written
	Reading            int    // reads of chains that have not ended, those that nobody waits for too
	Hits, Misses       uint64 // blocks that were read; blocks that were requested and not there
	Late               uint64 // reads that ended when nobody waited any more
	Written, Unwritten uint64 // blocks that were written; blocks that could not be
	OverQuota          uint64 // blocks that were not written because too many waited
	Reads, Writes      Times  // uses of the Backend for several blocks at once
	Failed             uint64 // reads that ended with an error, that of a context as well
}

// Open returns a store with an empty memory. It starts nothing. Its memory is mapped when
// blocks come.
func Open(cfg Config) (*Store, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, capacity: int(cfg.MemoryBytes / int64(cfg.Space.BlockBytes)), space: cfg.Space.ID(), behind: behind{progress: make(chan struct{})}}
	var err error
	if s.quota, err = s.cfg.Disk.complete(s.capacity, cfg.Space.BlockTokens); err != nil {
		return nil, err
	}
	if b, ok := cfg.Disk.Backend.(*Segments); ok { // else no block would be written
		if err := b.fits(cfg.Space.BlockBytes); err != nil {
			return nil, err
		}
	}
	slots := s.capacity
	if s.cfg.Disk.Ingest == Evicted {
		slots += s.quota
	}
	s.perSlab = min(max(cfg.SlabBytes/cfg.Space.BlockBytes, 1), slots)
	s.mem.slabs = make([]slab, (slots+s.perSlab-1)/s.perSlab)
	s.mem.slots = make(map[Key]uint32)
	s.mem.keys, s.mem.resident, s.mem.refs = make([]Key, slots), make([]bool, slots), make([]int32, slots)
	s.policy, err = newPolicy(cfg, slots, s.capacity, func(slot uint32) []byte { return s.mem.keys[slot][:] }, &s.count)
	return s, err
}

// Lookup returns how many blocks of a chain are in memory, from the first on, and how many
// are in memory or on disk. It is no use of them, and they can be gone when it returns.
func (s *Store) Lookup(ctx context.Context, chain []Key) (memory, all int, err error) {
	s.mu.Lock()
	err, memory = s.usable(ctx), s.prefix(chain)
	s.mu.Unlock()
	if err != nil || s.cfg.Disk.Backend == nil {
		return memory, memory, err
	}
	found, _, err := s.find(ctx, chain[memory:])
	s.mu.Lock()
	defer s.mu.Unlock()
	for all = memory; all < len(chain) && (found[chain[all]] || s.holds(chain[all])); all++ {
	}
	return memory, all, err
}

func (s *Store) holds(key Key) bool {
	_, ok := s.mem.slots[key]
	return ok
}

func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// prefix returns how many blocks of a chain are resident, from the first on.
func (s *Store) prefix(chain []Key) int {
	for i, k := range chain {
		if _, ok := s.mem.slots[k]; !ok {
			return i
		}
	}
	return len(chain)
}

// Acquire returns the blocks of a chain that are there, from the first on, in memory: those
// on the disk are read, if that is worth it by Disk. They stay until the lease is released.
// The lease is never nil, and can be empty. A read that does not end before its context
// does ends in memory that no other has, and its blocks are stored then.
func (s *Store) Acquire(ctx context.Context, chain []Key) (*Lease, error) {
	l := &Lease{s: s}
	if err := s.acquire(ctx, chain, l); err != nil {
		return l, err
	}
	slots, err := s.beneath(ctx, chain, l.Len())
	l.slots = append(l.slots, slots...)
	return l, err
}

// acquire leases what is in memory.
func (s *Store) acquire(ctx context.Context, chain []Key, l *Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	begun := time.Now()
	l.slots = make([]uint32, 0, len(chain))
	for _, k := range chain {
		slot, ok := s.mem.slots[k]
		if !ok {
			break
		}
		l.slots = append(l.slots, slot)
	}
	n := l.Len()
	for i, slot := range slices.Backward(l.slots) { // a policy keeps the beginning of a chain longest
		if s.policy.touch(slot) {
			s.becameHot(chain[i], slot)
		}
		s.pin(slot)
	}
	s.count.hits += uint64(n)
	s.count.misses += uint64(len(chain) - n)
	s.count.acquires.add(time.Since(begun))
	return nil
}

func (s *Store) becameHot(key Key, slot uint32) {
	if s.cfg.Disk.Ingest == Hot {
		s.ingest(key, slot, false)
	}
}

// Read copies the blocks of a chain that are there, from the first on, into dst, and returns
// how many these are. It copies at most len(dst) blocks. Each element of dst is as long as a
// block.
func (s *Store) Read(ctx context.Context, chain []Key, dst [][]byte) (int, error) {
	if err := s.whole("dst", dst); err != nil {
		return 0, err
	}
	l, err := s.Acquire(ctx, chain[:min(len(chain), len(dst))])
	defer l.Release()
	for i := range l.Len() {
		copy(dst[i], l.Block(i))
	}
	return l.Len(), err
}

// whole reports buffers that are not blocks.
func (s *Store) whole(name string, bufs [][]byte) error {
	for i, b := range bufs {
		if len(b) != s.cfg.Space.BlockBytes {
			return fmt.Errorf("%w: %s[%d] has %d bytes, a block %d", ErrMisaligned, name, i, len(b), s.cfg.Space.BlockBytes)
		}
	}
	return nil
}

// Alloc returns n blocks to be filled and given to Commit, or fewer if memory is short, with
// ErrNoMemory. Others can see a block when it is committed. The lease is never nil.
func (s *Store) Alloc(ctx context.Context, n int) (*Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return &Lease{s: s, fresh: true}, err
	}
	slots, err := s.alloc(n)
	return &Lease{s: s, slots: slots, fresh: true}, err
}

// alloc returns pinned slots that are not resident, n of them unless there is an error.
func (s *Store) alloc(n int) ([]uint32, error) {
	var slots []uint32
	for len(slots) < n {
		slot, err := s.room()
		if err != nil {
			s.count.refused += uint64(n - len(slots))
			return slots, err
		}
		s.pin(slot)
		slots = append(slots, slot)
	}
	return slots, nil
}

// room returns a slot without a block, that of an evicted one if there is no other.
func (s *Store) room() (uint32, error) {
	for s.mem.used-len(s.mem.free)-s.behind.leaving >= s.capacity {
		if err := s.evict(); err != nil {
			return 0, err
		}
	}
	if n := len(s.mem.free); n > 0 {
		slot := s.mem.free[n-1]
		s.mem.free = s.mem.free[:n-1]
		return slot, nil
	}
	if at := s.mem.used / s.perSlab; s.mem.used%s.perSlab == 0 {
		blocks := min(s.perSlab, len(s.mem.refs)-s.mem.used)
		m, err := newSlab(blocks * s.cfg.Space.BlockBytes)
		if err != nil {
			return 0, fmt.Errorf("%w: slab %d: %w", ErrNoMemory, at, err)
		}
		s.mem.slabs[at] = m
	}
	s.mem.used++
	return uint32(s.mem.used - 1), nil
}

func (s *Store) evict() error {
	if len(s.mem.slots) == s.mem.pinned { // else each call would look at all
		return ErrNoMemory
	}
	slot, ok := s.policy.victim(func(slot uint32) bool { return s.mem.refs[slot] > 0 })
	if !ok {
		return ErrNoMemory
	}
	s.forget(slot)
	s.count.evicted++
	if s.cfg.Disk.Ingest == Evicted && s.ingest(s.mem.keys[slot], slot, true) {
		s.behind.leaving++
	} else {
		s.mem.free = append(s.mem.free, slot)
	}
	return nil
}

// forget makes a slot no resident one. The policy has dropped it.
func (s *Store) forget(slot uint32) {
	delete(s.mem.slots, s.mem.keys[slot])
	s.mem.resident[slot] = false
	if s.mem.refs[slot] > 0 {
		s.mem.pinned--
	}
	s.cfg.Events.add(Event{Kind: BlocksRemoved, Tier: TierMemory, Space: s.space, Keys: s.mem.keys[slot : slot+1]})
}

func (s *Store) pin(slot uint32) {
	s.mem.refs[slot]++
	s.mem.leased++
	if s.mem.refs[slot] == 1 && s.mem.resident[slot] {
		s.mem.pinned++
	}
}

func (s *Store) unpin(slot uint32) {
	s.mem.refs[slot]--
	s.mem.leased--
	if s.mem.refs[slot] > 0 {
		return
	}
	if s.mem.resident[slot] {
		s.mem.pinned--
	} else {
		s.mem.free = append(s.mem.free, slot)
	}
}

// block returns the bytes of a slot that is pinned.
func (s *Store) block(slot uint32) []byte {
	m, at := s.place(slot)
	size := s.cfg.Space.BlockBytes
	return m.bytes[at : at+size : at+size]
}

// place returns where the block of a slot lies.
func (s *Store) place(slot uint32) (m slab, at int) {
	return s.mem.slabs[int(slot)/s.perSlab], int(slot) % s.perSlab * s.cfg.Space.BlockBytes
}

// Commit stores the blocks of a lease of Alloc under the keys that follow prefix in their
// chain, without a copy, and releases the lease whatever it returns. It returns how many of
// the keys are stored, from the first on. A key that is there already keeps its bytes. There
// are as many keys as blocks in the lease.
func (s *Store) Commit(ctx context.Context, prefix, keys []Key, l *Lease) (int, error) {
	defer l.Release()
	if !l.fresh || l.s != s {
		return 0, errors.New("offload: Commit of a lease that is not of Alloc of this store")
	}
	if len(keys) != l.Len() {
		return 0, fmt.Errorf("%w: %d keys of %d blocks", ErrMisaligned, len(keys), l.Len())
	}
	keys, tooLong := s.bounded(prefix, keys)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	s.commit(prefix, keys, l.slots, true)
	return len(keys), tooLong
}

// bounded cuts off the keys that lie beyond Config.MaxTokens.
func (s *Store) bounded(prefix, keys []Key) ([]Key, error) {
	most := s.cfg.MaxTokens / s.cfg.Space.BlockTokens
	if s.cfg.MaxTokens == 0 || len(prefix)+len(keys) <= most {
		return keys, nil
	}
	return keys[:max(most-len(prefix), 0)], fmt.Errorf("%w: %d blocks, at most %d", ErrTooLong, len(prefix)+len(keys), most)
}

// commit makes pinned slots resident, from the last on, and renews all of the chain before
// them, so that a policy that goes by order lets go of the end of a chain first. New blocks
// are those that the Backend has not given.
func (s *Store) commit(prefix, keys []Key, slots []uint32, isNew bool) {
	var came []bool // for events
	if s.cfg.Events != nil {
		came = make([]bool, len(keys))
	}
	for i := len(keys) - 1; i >= 0; i-- {
		if old, ok := s.mem.slots[keys[i]]; ok {
			s.policy.renew(old)
			continue
		}
		slot := slots[i]
		s.mem.slots[keys[i]], s.mem.keys[slot], s.mem.resident[slot] = slot, keys[i], true
		s.mem.pinned++ // by its lease
		hot := s.policy.insert(slot)
		s.count.stored++
		if came != nil {
			came[i] = true
		}
		if isNew && s.cfg.Disk.Ingest == All {
			s.ingest(keys[i], slot, false)
		} else if isNew && hot {
			s.becameHot(keys[i], slot)
		}
	}
	for i := len(prefix) - 1; i >= 0; i-- {
		if slot, ok := s.mem.slots[prefix[i]]; ok {
			s.policy.renew(slot)
		}
	}
	s.tellStored(prefix, keys, came)
}

// Write copies the blocks of src into the store under the keys that follow prefix in their
// chain, and returns how many of the keys are stored, from the first on. A key that is there
// already keeps its bytes. Each element of src is as long as a block; there are as many keys.
// Write makes no room by what is there of prefix, and by what is there of keys last.
func (s *Store) Write(ctx context.Context, prefix, keys []Key, src [][]byte) (int, error) {
	if err := s.whole("src", src); err != nil {
		return 0, err
	}
	if len(keys) != len(src) {
		return 0, fmt.Errorf("%w: %d keys of %d blocks", ErrMisaligned, len(keys), len(src))
	}
	keys, tooLong := s.bounded(prefix, keys)
	held, l, fresh, err := s.reserve(ctx, prefix, keys)
	defer held.Release()
	defer l.Release()
	for _, i := range fresh {
		copy(l.Block(i), src[i])
	}
	if l.Len() == 0 {
		return 0, errors.Join(err, tooLong)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ErrClosed
	}
	s.commit(prefix, keys[:l.Len()], l.slots, true)
	return l.Len(), errors.Join(err, tooLong)
}

// hold pins what is in memory of keys.
func (s *Store) hold(keys []Key) (slots []uint32) {
	for _, k := range keys {
		if slot, ok := s.mem.slots[k]; ok {
			s.pin(slot)
			slots = append(slots, slot)
		}
	}
	return slots
}

func (s *Store) letGo(slots []uint32) {
	for _, slot := range slots {
		s.unpin(slot)
	}
}

// roomBeside is room for a chain, of which own is held. If there is no other, it lets go of own from
// the end on: without the beginning of a chain its end is of no use.
func (s *Store) roomBeside(own *[]uint32) (uint32, error) {
	for {
		slot, err := s.room()
		last := len(*own) - 1
		if err == nil || last < 0 {
			return slot, err
		}
		s.letGo((*own)[last:])
		*own = (*own)[:last]
	}
}

// reserve pins what is there of prefix, and a slot for each of keys unless there is an
// error: its own, or a fresh one.
func (s *Store) reserve(ctx context.Context, prefix, keys []Key) (held, l *Lease, fresh []int, err error) {
	held, l = &Lease{s: s}, &Lease{s: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return held, l, nil, err
	}
	held.slots = s.hold(prefix)
	own := s.hold(keys)
	defer func() { s.letGo(own) }()
	for i, k := range keys {
		slot, ok := s.mem.slots[k]
		if !ok {
			if slot, err = s.roomBeside(&own); err != nil {
				s.count.refused += uint64(len(keys) - i)
				break
			}
			fresh = append(fresh, i)
		}
		s.pin(slot)
		l.slots = append(l.slots, slot)
	}
	return held, l, fresh, err
}

// Delete removes blocks from memory and disk. One that is in a lease keeps its memory until
// that is released. A block that another call stores or reads meanwhile can stay.
func (s *Store) Delete(ctx context.Context, keys ...Key) error {
	batch, err := s.forgetAll(ctx, keys)
	if err != nil || s.cfg.Disk.Backend == nil {
		return err
	}
	if err := s.wait(ctx, batch); err != nil { // it can have one of them
		return err
	}
	err = s.cfg.Disk.Backend.Delete(ctx, s.space, keys)
	if err != nil {
		s.tellLost(keys)
		s.failed(ctx, "delete", err)
	}
	_, again := s.forgetAll(ctx, nil)
	return errors.Join(err, again)
}

// forgetAll removes blocks from memory, and from the queue to the Backend. It returns the number of
// the last write that is under way, 0 if none is.
func (s *Store) forgetAll(ctx context.Context, keys []Key) (batch uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	s.deletes++ // reads that began before bring none of them back
	gone := make(map[Key]bool, len(keys))
	for _, k := range keys {
		gone[k] = true
		if slot, ok := s.mem.slots[k]; ok {
			s.drop(slot)
		}
	}
	waiting := s.behind.queue[s.behind.batch:]
	left := slices.DeleteFunc(waiting, func(w write) bool {
		if gone[w.key] {
			s.finish(w)
		}
		return gone[w.key]
	})
	s.shorten(s.behind.queue[:s.behind.batch+len(left)])
	if s.behind.batch == 0 {
		return 0, nil
	}
	return s.behind.queue[s.behind.batch-1].number, nil
}

// drop removes a resident slot.
func (s *Store) drop(slot uint32) {
	s.policy.remove(slot)
	s.forget(slot)
	if s.mem.refs[slot] == 0 {
		s.mem.free = append(s.mem.free, slot)
	}
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	disk := s.count.disk
	disk.InFlight, disk.Reading = len(s.behind.queue), s.reading
	return Stats{
		Blocks: len(s.mem.slots), Capacity: s.capacity, Leased: s.mem.leased,
		Hits: s.count.hits, Misses: s.count.misses,
		Stored: s.count.stored, Evicted: s.count.evicted, Refused: s.count.refused, Acquires: s.count.acquires,
		Disk: disk,
	}
}

// Close waits until what is in flight is read and written, and empties the memory, which
// goes when the last lease is released. It does not close the Backend, which several
// stores can share. Close can be called again, and each call waits.
func (s *Store) Close() (err error) {
	s.closing.Do(func() { err = s.close() })
	return err
}

func (s *Store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.mu.Unlock()
	s.io.Wait()
	s.mu.Lock()
	for _, slot := range s.mem.slots {
		s.drop(slot)
	}
	return s.unmap()
}

// unmap gives the memory of a closed store back, if no lease is out.
func (s *Store) unmap() error {
	if !s.closed || s.mem.leased > 0 {
		return nil
	}
	var errs []error
	for _, m := range s.mem.slabs {
		if m.bytes != nil {
			errs = append(errs, m.free())
		}
	}
	s.mem.slabs = nil
	return errors.Join(errs...)
}
