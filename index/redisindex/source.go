package redisindex

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/internal/mirroring"
	"github.com/kvindex/kvindex/internal/sharedindex"
)

// A delay ends by itself. An Apply whose changes Redis does not have yet returns a
// sharedindex.Delay: the rank is uncertain, here and for readers, until the writer has written
// them. If a rank waited for its next message, it would stay uncertain for as long as its
// engine is idle.

// A source is one that this process feeds, or has a note about. redisIndex.mu guards it.
type source struct {
	index.Source
	feed    uint64 // in the Memory; 0: there is none
	layout  *index.Layout
	holders []*holder
	note    []byte
	time    float64 // of the engine's clock, by the newest cursor that has one
	fed     bool    // some changes were applied here
	removed bool    // it is no longer in writer.sources

	ownership
	written bool // its holders are in the sections of buckets
	// Of taking: the accepted writers before (one of them has it), the cursor that was left,
	// and the change up to which buckets have to be written first.
	from, left string
	ready      uint64
	// behind: the writer before had seen more of the engine, up to that time.
	behind bool
	until  float64
	caught uint64 // the change with which it caught up; 0: it has not
	// rowless is since when the source of another writer has no row in the registry.
	rowless time.Time

	dirty  bool // it is in writer.sources
	row    bool // so is its row, and not just the cursor
	change uint64
}

// The Memory's reports about holders.
type (
	memoryHolder   = mirroring.Holder[index.Group, index.Tier, index.Variant]
	mirroredMemory = mirroring.Mirrored[index.Source, index.Layout, memoryHolder]
)

// A mirror is an Index as the mirror of its Memory.
type mirror redisIndex

// Holders implements mirroring.Mirror.
func (m *mirror) Holders(feed uint64, id index.Source, layout *index.Layout, holders []memoryHolder) {
	ix := (*redisIndex)(m)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	src := ix.source(id)
	if feed < src.feed {
		return // of a life that has ended
	}
	if src.feed != feed {
		ix.leave(src)
		src.feed = feed
		ix.byFeed[feed] = src
	}
	src.layout = layout
	ix.meet(src, holders)
	ix.markRow(src)
}

// Gone implements mirroring.Mirror.
func (m *mirror) Gone(feed uint64) {
	ix := (*redisIndex)(m)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if src := ix.byFeed[feed]; src != nil {
		ix.leave(src)
	}
}

// Held implements mirroring.Mirror.
func (m *mirror) Held(id uint32, run mirroring.Run, was, now uint32) {
	ix := (*redisIndex)(m)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(id) < len(ix.holders) && ix.holders[id] != nil {
		ix.hold(ix.holders[id], run, was, now)
	}
}

// Evicted implements mirroring.Mirror.
func (m *mirror) Evicted(id uint32) {
	ix := (*redisIndex)(m)
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if int(id) < len(ix.holders) && ix.holders[id] != nil {
		h := ix.holders[id]
		h.evicted = true
		ix.markRow(h.source)
	}
}

// leave drops all keys of a source.
func (ix *redisIndex) leave(src *source) {
	ix.meet(src, nil)
	delete(ix.byFeed, src.feed)
	src.feed, src.layout = 0, nil
	ix.markRow(src)
}

// source returns a source, or adds it.
func (ix *redisIndex) source(id index.Source) *source {
	src := ix.sources[id]
	if src == nil {
		src = &source{Source: id, written: true}
		ix.sources[id] = src
		ix.byPod[id.Pod] = append(ix.byPod[id.Pod], src)
	}
	return src
}

// dismiss forgets a source.
func (ix *redisIndex) dismiss(src *source) {
	delete(ix.sources, src.Source)
	src.removed = true
	of := slices.DeleteFunc(ix.byPod[src.Pod], func(o *source) bool { return o == src })
	if ix.byPod[src.Pod] = of; len(of) == 0 {
		delete(ix.byPod, src.Pod)
	}
}

// markRow marks the row of a source as dirty.
func (ix *redisIndex) markRow(src *source) {
	src.row = true
	ix.markSource(src)
}

func (ix *redisIndex) markSource(src *source) {
	ix.change++
	src.change = ix.change
	if !src.dirty {
		src.dirty = true
		ix.dirtySources = append(ix.dirtySources, src)
	}
}

// applied records an Apply to a source, and returns the waiter for it.
func (ix *redisIndex) applied(id index.Source, cur index.Cursor) *sourceWaiter {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	src := ix.source(id)
	if !src.fed {
		src.fed, src.row = true, true
		ix.cacheOf(id.Model).fed.Store(true)
	}
	if cur.Time <= math.MaxFloat64 { // that of a host may be NaN
		src.time = max(src.time, cur.Time)
	}
	ix.markSource(src)
	if src.behind && src.caught == 0 && src.time >= src.until {
		src.caught = src.change
		ix.catching = append(ix.catching, src)
	}
	ix.poke()
	return &sourceWaiter{src, ix.change, ix.moved}
}

// poke wakes the writer.
func (ix *redisIndex) poke() {
	select {
	case ix.wake <- struct{}{}:
	default:
	}
}

// A sourceWaiter waits until a change of a source is written.
type sourceWaiter struct {
	*source
	change uint64
	moved  chan struct{} // closed when a batch is settled that may have the change
}

// await waits until a change of a source is written, if this process writes the source. For a
// removed source it waits for the removal.
func (ix *redisIndex) await(ctx context.Context, w *sourceWaiter) error {
	var timer *time.Timer
	for {
		ix.mu.Lock()
		mine := !w.removed
		done := mine && w.ownership == other || ix.written >= w.change && (w.ownership == owned || !mine)
		if w.moved == nil { // the batch before did not have all of it
			if w.moved = ix.flying; w.moved == nil {
				w.moved = ix.moved
			}
		}
		trouble, since := ix.trouble, ix.busy
		if trouble != nil {
			since = ix.since
		}
		ix.mu.Unlock()
		switch {
		case done:
			return nil
		case ix.closed.Load():
			return ix.delayed(w, index.ErrClosed)
		case !since.IsZero() && time.Since(since) > ix.c.Timeout: // others have waited for that long
			return ix.delayed(w, trouble)
		}
		if timer == nil {
			timer = time.NewTimer(ix.c.Timeout)
			defer timer.Stop()
		}
		select {
		case <-w.moved:
			w.moved = nil
		case <-ctx.Done():
			why := ctx.Err()
			if trouble != nil {
				why = fmt.Errorf("%w; before: %w", why, trouble)
			}
			return ix.delayed(w, why)
		case <-timer.C:
			return ix.delayed(w, trouble)
		}
	}
}

// A delayedError is a sharedindex.Delay.
type delayedError struct {
	source index.Source
	why    error
	seen   context.Context
}

func (e *delayedError) Error() string {
	return fmt.Sprintf("%v: pod %q, model %q, rank %d: redis: %v", sharedindex.ErrDelayed, e.source.Pod, e.source.Model, e.source.Rank, e.why)
}

func (e *delayedError) Unwrap() []error       { return []error{sharedindex.ErrDelayed, e.why} }
func (e *delayedError) Seen() context.Context { return e.seen }

// delayed returns the error of a caller that stops waiting; why may be nil.
func (ix *redisIndex) delayed(w *sourceWaiter, why error) error {
	if why == nil {
		why = fmt.Errorf("no answer for %v", ix.c.Timeout)
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.overdue == nil {
		ix.overdue = new(delayNotice)
		ix.overdue.seen, ix.overdue.done = context.WithCancel(context.Background())
	}
	ix.overdue.change = max(ix.overdue.change, w.change)
	e := &delayedError{w.Source, why, ix.overdue.seen}
	if ix.written >= w.change { // meanwhile
		ix.endDelay()
	}
	return e
}

// A delayNotice goes to callers that stopped waiting.
type delayNotice struct {
	change uint64 // the last one with a waiter
	seen   context.Context
	done   context.CancelFunc
}

// endDelay ends the notice when all is written. mu is held.
func (ix *redisIndex) endDelay() {
	if o := ix.overdue; o != nil && ix.written >= o.change {
		o.done()
		ix.overdue = nil
	}
}

// Publish implements sharedindex.Directory.
func (ix *redisIndex) Publish(id index.Source, note []byte) {
	if ix.closed.Load() {
		return
	}
	ix.run()
	ix.mu.Lock()
	defer ix.mu.Unlock()
	src := ix.source(id)
	src.note = note
	ix.markRow(src)
	ix.poke()
}
