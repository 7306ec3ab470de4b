package index_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/index/internal/mirroring"
	"github.com/kvindex/kvindex/internal/inmemory"
)

type (
	holder = mirroring.Holder[index.Group, index.Tier, index.Variant]
	teller = mirroring.Mirrored[index.Source, index.Layout, holder]
)

// mapMirror keeps the holders in maps, from the calls of a Memory alone. An impossible call is an
// error.
type mapMirror struct {
	testing.TB
	calls *mirrorCalls

	busy    atomic.Bool // during a call
	mu      sync.Mutex  // guards the fields below
	feeds   map[uint64]*mirrorFeed
	sources map[index.Source]uint64 // the last feed
	gone    map[uint64]bool
	holders map[uint32]*mirrorHolder // of all feeds
}

type mirrorFeed struct {
	src     index.Source
	layout  *index.Layout
	holders []*mirrorHolder
}

type mirrorHolder struct {
	holder
	keys    map[index.Key]mirrorPlace
	evicted bool
}

// mirrorPlace is the depth of a key in its chain, and the key at the next multiple of 32 towards
// the root.
type mirrorPlace struct {
	depth int
	above index.Key
}

// mirrorCalls counts the calls of a mirror.
type mirrorCalls struct{ held, late, holders, left, gone, evicted, deep, changed atomic.Int64 }

func newMapMirror(tb testing.TB, of *mirrorCalls) *mapMirror {
	return &mapMirror{
		TB: tb, calls: of, feeds: map[uint64]*mirrorFeed{}, sources: map[index.Source]uint64{},
		gone: map[uint64]bool{}, holders: map[uint32]*mirrorHolder{},
	}
}

// enter locks m for a call; calls never overlap.
func (m *mapMirror) enter() (leave func()) {
	if !m.busy.CompareAndSwap(false, true) {
		m.Error("two calls at one time")
	}
	m.mu.Lock()
	return func() {
		m.mu.Unlock()
		m.busy.Store(false)
	}
}

func (m *mapMirror) Holders(feed uint64, src index.Source, layout *index.Layout, holders []holder) {
	defer m.enter()()
	m.calls.holders.Add(1)
	f := m.feeds[feed]
	if f == nil {
		if last := m.sources[src]; feed <= last || last != 0 && !m.gone[last] {
			m.Errorf("feed %d of %v, after %d", feed, src, last)
		}
		f = &mirrorFeed{src: src}
		m.feeds[feed], m.sources[src] = f, feed
	}
	if m.gone[feed] || f.src != src {
		m.Errorf("feed %d of %v begins again, for %v", feed, f.src, src)
	}
	if layout == nil {
		m.Errorf("feed %d has no layout", feed)
	}
	f.layout = layout
	was := f.holders
	f.holders = nil
	for _, h := range was {
		delete(m.holders, h.ID)
	}
	for _, h := range holders {
		if m.holders[h.ID] != nil {
			m.Errorf("holder %d of feed %d is there already", h.ID, feed)
		}
		of := &mirrorHolder{keys: map[index.Key]mirrorPlace{}}
		if i := slices.IndexFunc(was, func(o *mirrorHolder) bool { return o.ID == h.ID }); i >= 0 {
			of = was[i]
			was = slices.Delete(was, i, i+1)
			if of.Group.ID != h.Group.ID || of.Tier != h.Tier {
				m.Errorf("holder %d was %v and is %v", h.ID, of.holder, h)
			}
			if of.holder != h {
				m.calls.changed.Add(1)
			}
		}
		of.holder = h
		m.holders[h.ID] = of
		f.holders = append(f.holders, of)
	}
	m.calls.left.Add(int64(len(was)))
}

func (m *mapMirror) Gone(feed uint64) {
	defer m.enter()()
	m.calls.gone.Add(1)
	if feed == 0 || m.gone[feed] {
		m.Errorf("feed %d has gone again", feed)
	}
	m.gone[feed] = true
	if f := m.feeds[feed]; f != nil {
		for _, h := range f.holders {
			delete(m.holders, h.ID)
		}
		delete(m.feeds, feed)
	}
}

func (m *mapMirror) Held(holder uint32, run mirroring.Run, was, now uint32) {
	defer m.enter()()
	m.calls.held.Add(1)
	h := m.holders[holder]
	if h == nil {
		m.calls.late.Add(1)
		return
	}
	if was == now || bits.Len32(was|now) > run.Len() || run.Len() > 32 {
		m.Errorf("holder %d has %b of %d keys, and had %b", holder, now, run.Len(), was)
	}
	for i := range run.Len() {
		depth := run.Depth() + i
		at := mirrorPlace{depth, index.Key(run.Key(depth &^ 31))}
		key := index.Key(run.Key(depth))
		if had, ok := h.keys[key]; ok != (was>>i&1 != 0) || ok && had != at {
			m.Errorf("holder %d had %b; of key %d at %v it has %v: %v", holder, was, i, at, had, ok)
		}
		if now>>i&1 == 0 {
			delete(h.keys, key)
			continue
		}
		h.keys[key] = at
		if depth >= 100 {
			m.calls.deep.Add(1)
		}
	}
}

func (m *mapMirror) Evicted(holder uint32) {
	defer m.enter()()
	if h := m.holders[holder]; h != nil {
		if h.evicted {
			m.Errorf("holder %d lost its first block twice", holder)
		}
		h.evicted = true
		m.calls.evicted.Add(1)
	}
}

// mirroredMemory is a Memory that answers from its mirror.
type mirroredMemory struct {
	inmemory.Memory
	mirror *mapMirror
}

func newMirrored(tb testing.TB, c index.MemoryConfig, of *mirrorCalls) mirroredMemory {
	mirror := newMapMirror(tb, of)
	m, err := inmemory.New(c)
	must(tb, err)
	m.(teller).MirrorTo(mirror)
	return mirroredMemory{m, mirror}
}

// Match also calls the Memory's, which marks keys as used and finds faults of the query.
func (m mirroredMemory) Match(ctx context.Context, q *index.Query, out *index.Matches) error {
	prompts := map[index.Variant][]index.Key{}
	own := *q
	own.Keys = func(v index.Variant) (keys []index.Key, err error) {
		if keys, ok := prompts[v]; ok {
			return keys, nil
		}
		if keys, err = q.Keys(v); err == nil {
			prompts[v] = keys
		}
		return keys, err
	}
	if err := m.Memory.Match(ctx, &own, out); err != nil {
		return err
	}
	for {
		out.Reset()
		missing, ok := m.mirror.match(q, prompts, out)
		if !ok {
			return nil
		}
		if _, err := own.Keys(missing); err != nil {
			out.Reset()
			return err
		}
	}
}

// mirrorRow identifies the blocks of a row of a feed.
type mirrorRow struct {
	group   int
	variant index.Variant
	size    int
}

// match appends the rows of all sources, or returns a variant whose keys it needs.
func (m *mapMirror) match(q *index.Query, prompts map[index.Variant][]index.Key, out *index.Matches) (missing index.Variant, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pods := map[string]int32{}
	for i, pod := range q.Candidates.Pods() {
		pods[pod] = int32(i)
	}
	for _, f := range m.feeds {
		pod, ok := pods[f.src.Pod]
		if q.Candidates.Pods() == nil {
			pod, ok = -1, true
		}
		if !ok || f.src.Model != q.Candidates.Model() {
			continue
		}
		of := map[mirrorRow][]*mirrorHolder{}
		for _, h := range f.holders {
			if h.BlockSize > 0 {
				row := mirrorRow{h.Group.ID, h.Variant, h.BlockSize}
				of[row] = append(of[row], h)
			}
		}
		for at, holders := range of {
			keys, ok := prompts[at.variant]
			if !ok {
				return at.variant, true
			}
			row := index.Row{Pod: pod, View: &index.View{
				Source: f.src, Group: holders[0].Group, BlockSize: at.size, Pairs: at.variant.Pairs, Layout: f.layout,
			}}
			var held [index.NumTiers][]uint64
			for _, h := range holders {
				row.Evicted = row.Evicted || h.evicted
				if h.fill(m, keys, at.size/at.variant.Unit, func() []uint64 {
					if held[h.Tier] == nil {
						held[h.Tier] = out.Bits(len(keys) * at.variant.Unit / at.size)
					}
					return held[h.Tier]
				}) {
					row.Held = &held
				}
			}
			if row.Held == nil {
				continue
			}
			countRun(&row)
			if !q.Held && len(f.layout.Groups) == 1 && f.layout.Groups[0].Kind == index.GroupFull {
				if row.Held = nil; row.Run == 0 {
					continue
				}
			}
			out.Rows = append(out.Rows, row)
		}
	}
	return missing, false
}

// fill sets the bits of a prompt's blocks that h holds, and reports whether there are any.
func (h *mirrorHolder) fill(m *mapMirror, keys []index.Key, units int, bits func() []uint64) (any bool) {
	for i, k := range keys {
		at, ok := h.keys[k]
		if !ok {
			continue
		}
		if want := (mirrorPlace{i, keys[i&^31]}); at != want {
			m.Errorf("a key is at %v, want %v", at, want)
		}
		if block := i / units; (i+1)%units == 0 {
			bits()[block/64] |= 1 << (block % 64)
			any = true
		}
	}
	return any
}

// countRun computes the runs of a row from its bits.
func countRun(row *index.Row) {
	for block := 0; ; block++ {
		best := slices.IndexFunc(row.Held[:], func(set []uint64) bool { return block/64 < len(set) && set[block/64]>>(block%64)&1 != 0 })
		if best < 0 {
			return
		}
		if best == int(index.TierGPU) && row.GPU == row.Run {
			row.GPU++
		}
		row.Run++
		row.Tiers[best]++
	}
}

// A Memory that answers from its mirror passes the suite: the mirror receives all holdings.
func TestMirror(t *testing.T) {
	var saw mirrorCalls
	indextest.Run(t, func(tb testing.TB, c indextest.Config) index.Index {
		m := newMirrored(tb, index.MemoryConfig{Bytes: c.Bytes}, &saw)
		m.SetBounds(c.PendingBytes, c.IdleNames)
		return m
	})
	t.Run("Sightings", func(t *testing.T) {
		for _, c := range []struct {
			what   string
			n      *atomic.Int64
			enough int64
		}{
			{"told what a holder holds", &saw.held, 100_000},
			{"told that of nobody", &saw.late, 1000},
			{"told of keys 100 deep", &saw.deep, 10_000},
			{"told the holders", &saw.holders, 10_000},
			{"told that a holder is another one", &saw.changed, 100},
			{"told that a holder has left", &saw.left, 1000},
			{"told that a source has gone", &saw.gone, 1000},
			{"told of evictions", &saw.evicted, 100},
		} {
			t.Logf("%s: %d times", c.what, c.n.Load())
			if enough := c.enough; c.n.Load() == 0 || long() && c.n.Load() < enough {
				t.Errorf("%s: %d times, want %d", c.what, c.n.Load(), enough)
			}
		}
	})
}

// long reports whether the suite of package indextest has its long form.
func long() bool { return flag.Lookup("indextest.seeds").Value.(flag.Getter).Get().(int) >= 24 }

// mirrorStore stores some blocks of a chain.
func mirrorStore(root uint64, from, n int) index.Change {
	c := index.Change{Op: index.OpStore, Copies: index.CopiesExact, Variant: index.Variant{Unit: 16}, BlockSize: 16, Root: index.Key(root * 0x9e3779b97f4a7c15)}
	for i := range n {
		c.Hashes = append(c.Hashes, index.Hash(root<<32|uint64(from+i)))
		c.Locals = append(c.Locals, index.Local(root<<32|uint64(from+i)))
	}
	if from > 0 {
		c.HasParent, c.Parent = true, index.Hash(root<<32|uint64(from-1))
	}
	return c
}

func mustApply(tb testing.TB, ix index.Index, src index.Source, changes ...index.Change) {
	tb.Helper()
	if _, err := ix.Apply(context.Background(), src, index.Cursor{}, changes); err != nil {
		tb.Fatal(err)
	}
}

// A removed source is one call for the mirror, however many blocks it held.
func TestMirrorOfMuchThatGoes(t *testing.T) {
	const blocks = 10_000
	ctx := context.Background()
	src, beside := index.Source{Pod: "a", Model: "m"}, index.Source{Pod: "b", Model: "m"}
	for _, c := range []struct {
		name          string
		holders, gone int64
		left          int // of the source
		do            func(m mirroredMemory) error
	}{
		{"clear", 1, 0, 0, func(m mirroredMemory) error {
			_, err := m.Apply(ctx, src, index.Cursor{}, []index.Change{{Op: index.OpClear}})
			return err
		}},
		{"clear of a tier", 1, 0, 1, func(m mirroredMemory) error {
			_, err := m.Apply(ctx, src, index.Cursor{}, []index.Change{{Op: index.OpClearTier, Tier: index.TierGPU}})
			return err
		}},
		{"removed pod", 0, 1, 0, func(m mirroredMemory) error { return m.Remove(ctx, "a") }},
		{"removed source", 0, 1, 0, func(m mirroredMemory) error { return m.RemoveSource(ctx, src) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			saw := new(mirrorCalls)
			m := newMirrored(t, index.MemoryConfig{}, saw)
			defer m.Close()
			all := mirrorStore(1, 0, blocks)
			mustApply(t, m, src, all, index.Change{Op: index.OpStore, Tier: index.TierCPU, Copies: index.CopiesSet, Hashes: all.Hashes})
			mustApply(t, m, beside, all)
			if n := saw.held.Load(); n < 3*blocks/32 || n > blocks+3*blocks/8 {
				t.Errorf("%d calls that all is held", n)
			}
			feed := m.mirror.sources[src]
			holders, gone, held := saw.holders.Load(), saw.gone.Load(), saw.held.Load()-saw.late.Load()
			must(t, c.do(m))
			m.mirror.mu.Lock()
			f := m.mirror.feeds[feed]
			if f == nil && c.gone == 0 || f != nil && (c.gone > 0 || len(f.holders) != c.left) {
				t.Errorf("the mirror has %+v", f)
			}
			m.mirror.mu.Unlock()
			mustApply(t, m, beside, mirrorStore(2, 0, 1))
			if n := saw.holders.Load() - holders; n != c.holders {
				t.Errorf("%d calls of the holders", n)
			}
			if n := saw.gone.Load() - gone; n != c.gone {
				t.Errorf("%d feeds have gone", n)
			}
			if n := saw.held.Load() - saw.late.Load() - held; n != 1 {
				t.Errorf("%d calls of what a holder holds, want that of the last store", n)
			}
			mustApply(t, m, src, mirrorStore(3, 0, 1))
			if again := m.mirror.sources[src]; c.gone > 0 && again <= feed || c.gone == 0 && again != feed {
				t.Errorf("the feed was %d and is %d", feed, again)
			}
		})
	}
}

// earlyMirror records the first Held, and whether a feed ended before everything was held.
type earlyMirror struct {
	*mapMirror
	once    sync.Once
	began   chan struct{}
	applied atomic.Bool
	early   atomic.Bool
}

func (m *earlyMirror) Held(holder uint32, run mirroring.Run, was, now uint32) {
	m.once.Do(func() { close(m.began) })
	m.mapMirror.Held(holder, run, was, now)
}

func (m *earlyMirror) Gone(feed uint64) {
	m.early.Store(!m.applied.Load())
	m.mapMirror.Gone(feed)
}

// A source removed during a store of it causes no calls, though the store ends with news of its
// group; the mirror would report them.
func TestMirrorOfASourceThatGoesMeanwhile(t *testing.T) {
	deadline := time.Now().Add(2 * time.Minute)
	blocks := 50_000
	for meanwhile := 0; meanwhile < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("removed only %d times while a store was in progress", meanwhile)
		}
		mirror := &earlyMirror{mapMirror: newMapMirror(t, new(mirrorCalls)), began: make(chan struct{})}
		m, err := inmemory.New(index.MemoryConfig{})
		must(t, err)
		m.(teller).MirrorTo(mirror)
		var removal sync.WaitGroup
		removal.Go(func() {
			<-mirror.began
			if err := m.Remove(context.Background(), "a"); err != nil {
				t.Error(err)
			}
		})
		mustApply(t, m, index.Source{Pod: "a", Model: "m"}, mirrorStore(1, 0, blocks))
		mirror.applied.Store(true)
		removal.Wait()
		if n := mirror.calls.gone.Load(); n != 1 {
			t.Errorf("%d feeds have gone", n)
		}
		if mirror.early.Load() {
			meanwhile++
		} else {
			blocks *= 2
		}
		m.Close()
	}
}

// A snapshot's contents never reach a mirror, so it is not restored beside one.
func TestMirrorIsNotRestored(t *testing.T) {
	m := newMirrored(t, index.MemoryConfig{}, new(mirrorCalls))
	defer m.Close()
	src := index.Source{Pod: "a", Model: "m"}
	for range 2 {
		err := m.Restore(context.Background(), func() ([]byte, error) { return nil, io.EOF })
		if err == nil || errors.Is(err, index.ErrClosed) {
			t.Errorf("restored: %v", err)
		}
	}
	mustApply(t, m, src, mirrorStore(1, 0, 10))
	sections := 0
	err := m.Snapshot(context.Background(), func([]byte) error {
		sections++
		return nil
	}, func(_ string, last func() error) error { return last() })
	if err != nil || sections == 0 {
		t.Errorf("%d sections are written: %v", sections, err)
	}
}
