package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Ingestion selects the blocks of a Store's memory that are written to its Backend.
type Ingestion string

// The ingestions.
const (
	Hot     Ingestion = "hot"     // those that are used again, by the policy
	All     Ingestion = "all"     // each that is stored
	Evicted Ingestion = "evicted" // those that leave the memory to make room
)

// Disk is what a Store does with the Backend below its memory. Zero fields have the
// defaults named here.
type Disk struct {
	Backend Backend   // nil: memory alone
	Ingest  Ingestion // Hot
	// MaxInFlight bounds the tokens that wait to be written or are being written; a block
	// beyond is not written, and counted (DiskStats.OverQuota). The default is an eighth of the memory. The blocks
	// of Hot and All are pinned meanwhile; those of Evicted have memory beside MemoryBytes.
	MaxInFlight int
	// A chain is read from the Backend if so many of its blocks, and such a part of them,
	// are not in memory: 4 and 0.1.
	MinMissing     int
	MinMissingPart float64
	// PerToken limits the time of a read, by the tokens that are missing. 0 is no limit;
	// the context of an operation is one in any case.
	PerToken time.Duration
	// OnError is called with each error of the Backend, which names the tier and the operation (has,
	// get, put, delete); nil: nothing is. That a caller gave up is no error. No lock is held. Several
	// goroutines can call it, and the use of the Backend waits for it.
	OnError func(error)
}

func (d *Disk) complete(capacity, blockTokens int) (quota int, err error) {
	if d.Backend == nil {
		return 0, nil
	}
	if d.Ingest == "" {
		d.Ingest = Hot
	}
	if d.MinMissing == 0 {
		d.MinMissing = 4
	}
	if d.MinMissingPart == 0 {
		d.MinMissingPart = 0.1
	}
	quota = max(capacity/8, 1)
	if d.MaxInFlight != 0 {
		quota = d.MaxInFlight / blockTokens
	}
	switch {
	case d.Ingest != Hot && d.Ingest != All && d.Ingest != Evicted:
		return 0, fmt.Errorf("offload: Disk.Ingest is %q, not one of %q, %q and %q", d.Ingest, Hot, All, Evicted)
	case quota < 1 || quota > capacity:
		return 0, fmt.Errorf("offload: Disk.MaxInFlight is %d tokens, not 1 to %d blocks of %d", d.MaxInFlight, capacity, blockTokens)
	case d.MinMissing < 0 || !(d.MinMissingPart >= 0 && d.MinMissingPart <= 1) || d.PerToken < 0:
		return 0, fmt.Errorf("offload: Disk.MinMissing is %d, MinMissingPart %v, PerToken %v", d.MinMissing, d.MinMissingPart, d.PerToken)
	}
	return quota, nil
}

// write is a block on its way to the Backend. Its slot is pinned.
type write struct {
	number  uint64 // of all writes that were ever in the queue, from 1 on
	key     Key
	slot    uint32
	evicted bool // nobody else has the slot
}

// opBatch is how many blocks one Put has.
const opBatch = 32

// ingest queues a block to be written, and reports false if too many wait.
func (s *Store) ingest(key Key, slot uint32, evicted bool) bool {
	if len(s.behind.queue) >= s.quota {
		s.count.disk.OverQuota++
		return false
	}
	s.pin(slot)
	s.behind.queued++
	s.behind.queue = append(s.behind.queue, write{s.behind.queued, key, slot, evicted})
	if !s.behind.writing {
		s.behind.writing = true
		s.io.Add(1)
		go s.writeBehind()
	}
	return true
}

// writeBehind writes the queue until it is empty.
func (s *Store) writeBehind() {
	defer s.io.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.behind.queue) > 0 {
		s.behind.batch = min(opBatch, len(s.behind.queue))
		batch := s.behind.queue[:s.behind.batch]
		keys, src := make([]Key, len(batch)), make([][]byte, len(batch))
		for i, w := range batch {
			keys[i], src[i] = w.key, s.block(w.slot)
		}
		s.mu.Unlock()
		begun := time.Now()
		n, err := s.cfg.Disk.Backend.Put(context.Background(), s.space, keys, src)
		took := time.Since(begun)
		s.failed(context.Background(), "put", err)
		s.mu.Lock()
		s.count.disk.Writes.add(took)
		s.count.disk.Written += uint64(n)
		s.count.disk.Unwritten += uint64(len(keys) - n)
		for _, w := range batch {
			s.finish(w)
		}
		s.behind.batch = 0
		s.shorten(s.behind.queue[len(batch):])
	}
	s.behind.queue, s.behind.writing = nil, false
}

// finish gives the slot of a write back.
func (s *Store) finish(w write) {
	if w.evicted {
		s.behind.leaving--
	}
	s.unpin(w.slot)
}

// shorten sets the queue, and wakes those that wait for it.
func (s *Store) shorten(queue []write) {
	s.behind.queue = queue
	close(s.behind.progress)
	s.behind.progress = make(chan struct{})
}

// errSlow is the cause of a context whose time by Disk.PerToken is over.
var errSlow = errors.New("time limit")

// failed reports an error of the Backend, unless a caller gave up. No lock is held.
func (s *Store) failed(ctx context.Context, op string, err error) {
	if err == nil || ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSlow) {
		return
	}
	if s.cfg.Disk.OnError != nil {
		s.cfg.Disk.OnError(fmt.Errorf("%s: %s: %w", TierDisk, op, err))
	}
}

// Flush waits until the blocks that were queued when it was called are written, or could
// not be: Stats counts both.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	queued := s.behind.queued
	s.mu.Unlock()
	return s.wait(ctx, queued)
}

// wait waits until the writes up to a number are out of the queue.
func (s *Store) wait(ctx context.Context, until uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.behind.queue) > 0 && s.behind.queue[0].number <= until {
		progress := s.behind.progress
		s.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Prefetch begins to read the blocks of a chain that the memory lacks, and does not wait. It does
// nothing while 8 other chains are fetched ahead.
func (s *Store) Prefetch(ctx context.Context, chain []Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable(ctx) != nil || s.prefetches >= maxPrefetches {
		return
	}
	s.prefetches++
	s.io.Add(1)
	chain = slices.Clone(chain)
	go func() {
		defer s.io.Done()
		held := s.held(chain)
		slots, _ := s.beneath(ctx, chain, len(held))
		s.release(append(held, slots...))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.prefetches--
	}()
}

// maxPrefetches is how many chains are fetched ahead at a time.
const maxPrefetches = 8

// held pins what is in memory of a chain, which is no use of it.
func (s *Store) held(chain []Key) (slots []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range chain[:s.prefix(chain)] {
		slots = append(slots, s.mem.slots[k])
		s.pin(s.mem.slots[k])
	}
	return slots
}

// reading is a read of the Backend that somebody waits for, or has given up. The lock of
// the Store guards it until done is closed.
type reading struct {
	done     chan struct{}
	finished bool
	given    bool // up: the slots go when the read has ended
	slots    []uint32
	err      error
}

// beneath returns pinned slots for what lies behind the first n blocks of a chain, in memory
// or in the Backend. The first n are pinned by the caller.
func (s *Store) beneath(ctx context.Context, chain []Key, n int) ([]uint32, error) {
	d, missing := &s.cfg.Disk, len(chain)-n
	if d.Backend == nil || missing == 0 || missing < d.MinMissing || float64(missing) < d.MinMissingPart*float64(len(chain)) {
		return nil, nil
	}
	s.mu.Lock()
	if err := s.usable(ctx); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.io.Add(1)
	s.reading++
	s.mu.Unlock()
	cancel := context.CancelFunc(func() {})
	if d.PerToken > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(missing*s.cfg.Space.BlockTokens)*d.PerToken, errSlow)
	}
	defer cancel()
	r := &reading{done: make(chan struct{})}
	chain = slices.Clone(chain) // the caller may change it when a read is given up
	go func() {
		defer s.io.Done()
		slots, err := s.read(ctx, chain, n)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reading--
		r.slots, r.err, r.finished = slots, err, true
		if err != nil {
			s.count.disk.Failed++
		}
		if r.given {
			s.count.disk.Late++
			for _, slot := range slots {
				s.unpin(slot)
			}
		}
		close(r.done)
	}()
	select {
	case <-r.done:
		return r.slots, r.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.finished {
		return r.slots, r.err
	}
	r.given = true
	return nil, fmt.Errorf("offload: %d blocks of the disk: %w", missing, ctx.Err())
}

// read reads the blocks that the Backend has of a chain behind its first n blocks.
// It returns pinned slots.
func (s *Store) read(ctx context.Context, chain []Key, n int) (slots []uint32, err error) {
	found, deletes, hasErr := s.find(ctx, chain[n:])
	if hasErr != nil && len(found) == 0 {
		return nil, hasErr
	}
	var keys []Key // that are read
	var at []int   // their places in slots
	var dst [][]byte
	s.mu.Lock()
	if s.closed { // and without memory, if no lease is out
		s.mu.Unlock()
		return nil, ErrClosed
	}
	own := s.hold(chain[n:])
	for _, k := range chain[n:] {
		slot, ok := s.mem.slots[k]
		if !ok {
			if !found[k] {
				break
			}
			if slot, err = s.roomBeside(&own); err != nil {
				break
			}
			keys, at = append(keys, k), append(at, len(slots))
		}
		s.pin(slot)
		slots = append(slots, slot)
	}
	s.letGo(own)
	for _, i := range at {
		dst = append(dst, s.block(slots[i]))
	}
	s.mu.Unlock()

	begun := time.Now()
	m, getErr := s.cfg.Disk.Backend.Get(ctx, s.space, keys, dst)
	took := time.Since(begun)
	if errors.Is(getErr, ErrCorrupt) {
		s.tellLost(keys[m:])
	}
	s.failed(ctx, "get", getErr)

	s.mu.Lock()
	defer s.mu.Unlock()
	if len(keys) > 0 {
		s.count.disk.Reads.add(took)
	}
	s.count.disk.Hits += uint64(m)
	s.count.disk.Misses += uint64(len(chain) - n - len(slots) + len(keys) - m)
	if m < len(keys) { // nothing behind a hole
		for _, slot := range slots[at[m]:] {
			s.unpin(slot)
		}
		slots = slots[:at[m]]
	}
	if deletes == s.deletes && !s.closed {
		s.commit(chain[:n], chain[n:n+len(slots)], slots, false)
	}
	return slots, errors.Join(hasErr, err, getErr)
}

// find returns the keys that the memory lacks and the Backend has, as far as it reports them.
func (s *Store) find(ctx context.Context, keys []Key) (found map[Key]bool, deletes uint64, err error) {
	var lacks []Key
	s.mu.Lock()
	for _, k := range keys {
		if _, ok := s.mem.slots[k]; !ok {
			lacks = append(lacks, k)
		}
	}
	deletes = s.deletes
	s.mu.Unlock()
	hit := make([]bool, len(lacks))
	err = s.cfg.Disk.Backend.Has(ctx, s.space, lacks, hit)
	s.failed(ctx, "has", err)
	found = make(map[Key]bool)
	for i, k := range lacks {
		if hit[i] {
			found[k] = true
		}
	}
	return found, deletes, err
}
