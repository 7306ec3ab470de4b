package offload_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/offload"
)

// eventModel is the state that a reader of events keeps.
type eventModel struct {
	t      testing.TB
	events offload.Events
	holds  map[heldBlock]bool
	parent map[offload.Key]offload.Key
	of     map[offload.EventKind]int // number of events
}

type heldBlock struct {
	tier  offload.Tier
	space offload.SpaceID
	key   offload.Key
}

var done = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// read applies the events that wait.
func (w *eventModel) read() {
	events, err := w.events.Next(done)
	if err != nil {
		return
	}
	w.apply(events)
}

func (w *eventModel) apply(events []offload.Event) {
	whole := len(events) > 0 && events[0].Kind == offload.BlocksCleared
	for i, ev := range events {
		w.of[ev.Kind]++
		if whole != (ev.Kind == offload.BlocksCleared && i == 0 || ev.Kind == offload.BlocksStored && whole) {
			w.t.Errorf("event %d of all that is held is %+v", i, ev)
		}
		if ev.Kind == offload.BlocksCleared {
			clear(w.holds)
		}
		parent := ev.Parent
		if whole && parent != (offload.Key{}) {
			w.t.Errorf("event %d of all that is held has a parent", i)
		}
		for _, k := range ev.Keys {
			b := heldBlock{ev.Tier, ev.Space, k}
			if w.holds[b] == (ev.Kind == offload.BlocksStored) {
				w.t.Errorf("%x was reported twice in %s: %d", k[:4], ev.Tier, ev.Kind)
			}
			if ev.Kind == offload.BlocksStored && ev.Tier == offload.TierMemory && !whole {
				if parent != w.parent[k] {
					w.t.Errorf("%x has the parent %x, want %x", k[:4], parent[:4], w.parent[k])
				}
				parent = k
			}
			if ev.Kind == offload.BlocksStored {
				w.holds[b] = true
			} else {
				delete(w.holds, b)
			}
		}
	}
}

func newEventModel(t testing.TB, most int) *eventModel {
	w := &eventModel{t: t, holds: make(map[heldBlock]bool), parent: make(map[offload.Key]offload.Key), of: make(map[offload.EventKind]int)}
	w.events.Most = most
	for branch := range 12 {
		c := chain(branch, 80)
		for i := range c[1:] {
			w.parent[c[i+1]] = c[i]
		}
	}
	return w
}

// compare compares the model with the stores and the disk.
func (w *eventModel) compare(stores []*offload.Store, spaces []offload.Space, b offload.Backend) (n int) {
	w.t.Helper()
	want := make(map[heldBlock]bool)
	for i, s := range stores {
		keys, _ := s.Resident()
		for k := range keys {
			want[heldBlock{offload.TierMemory, spaces[i].ID(), k}] = true
		}
		for branch := range 12 {
			c := chain(branch, 80)
			hit := make([]bool, len(c))
			if err := b.Has(ctx, spaces[i].ID(), c, hit); err != nil {
				w.t.Fatal(err)
			}
			for j, k := range c {
				if hit[j] {
					want[heldBlock{offload.TierDisk, spaces[i].ID(), k}] = true
				}
			}
		}
	}
	for k := range w.holds {
		if !want[k] {
			w.t.Fatalf("%x of %s was reported, but is not there", k.key[:4], k.tier)
		}
	}
	for k := range want {
		if !w.holds[k] {
			w.t.Fatalf("%x of %s is there, but was not reported", k.key[:4], k.tier)
		}
	}
	return len(w.holds)
}

// TestEvents: two stores on one directory have their files removed and restored, are restarted, and
// fail. After each step the reported blocks are those that are there.
func TestEvents(t *testing.T) {
	sum := make(map[offload.EventKind]int)
	for seed := range uint64(max(*seeds/3, 4)) {
		r := rand.New(rand.NewPCG(seed, 9))
		faults, seen, mu := false, make(map[string]int), new(sync.Mutex)
		cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 4 << 15, SegmentBytes: 1 << 15, Buffered: seed%2 == 0}
		if !cfg.Buffered {
			cfg.Bytes, cfg.SegmentBytes = 4<<17, 1<<17
		}
		spaces := []offload.Space{space(600), space(500)}
		var w *eventModel
		var b *offload.Segments
		var stores []*offload.Store
		begin := func() {
			var err error
			if b, err = offload.OpenSegmentsOn(cfg, func(f offload.BlockFile) offload.BlockFile {
				return faulty{f, mu, r, &faults, seen}
			}); err != nil {
				t.Fatal(err)
			}
			w, stores = newEventModel(t, 0), nil
			if err := b.Report(&w.events); err != nil {
				t.Fatal(err)
			}
			for i, sp := range spaces {
				stores = append(stores, opened(t, offload.Config{
					Space: sp, MemoryBytes: int64(sp.BlockBytes) * 100, Events: &w.events,
					Disk: offload.Disk{Backend: b, Ingest: []offload.Ingestion{offload.All, offload.Hot}[i]},
				}))
			}
		}
		begin()
		for step := range 150 {
			faults = !cfg.Buffered && step%50 > 30
			i := r.IntN(len(stores))
			s, sp := stores[i], spaces[i]
			c := chain(r.IntN(12), 4+r.IntN(70))
			from := r.IntN(len(c))
			switch r.IntN(16) {
			case 0:
				_ = s.Delete(ctx, c[from:]...)
			case 1:
				if step%3 > 0 {
					break
				}
				for _, s := range stores {
					closed(t, s)
				}
				w.read()
				for k := range w.holds {
					if k.tier == offload.TierMemory {
						t.Fatal("a closed store has reported no removal")
					}
				}
				faults = false
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				if w.read(); len(w.holds) > 0 {
					t.Fatal("closed segments have reported blocks")
				}
				for kind, n := range w.of {
					sum[kind] += n
				}
				begin()
			case 2, 3, 4, 5, 6:
				l, _ := s.Acquire(ctx, c)
				l.Release()
			default:
				if _, err := s.Write(ctx, c[:from], c[from:], contents(sp, c[from:])); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range stores {
				if err := s.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if r.IntN(8) > 0 {
				w.read()
			} else {
				w.apply(w.events.Held())
			}
			w.compare(stores, spaces, b)
		}
		for kind, n := range w.of {
			sum[kind] += n
		}
		for _, s := range stores {
			closed(t, s)
		}
		b.Close()
	}
	for _, kind := range []offload.EventKind{offload.BlocksStored, offload.BlocksRemoved, offload.BlocksCleared} {
		if sum[kind] < 10 {
			t.Errorf("%d events of kind %d", sum[kind], kind)
		}
	}
}

// TestEventsLag: while several goroutines use the store, a reader that sometimes requests all held
// blocks, or is too slow, gets each block once.
func TestEventsLag(t *testing.T) {
	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 4 << 15, SegmentBytes: 1 << 15, Buffered: true}
	sp := space(600)
	for _, most := range []int{1, 100, 1 << 20} {
		b := openSegments(t, cfg)
		w := newEventModel(t, most)
		if err := b.Report(&w.events); err != nil {
			t.Fatal(err)
		}
		s := opened(t, offload.Config{Space: sp, MemoryBytes: 600 * 200, Events: &w.events, Disk: offload.Disk{Backend: b, Ingest: offload.All}})
		reading, stop := context.WithCancel(ctx)
		stopped := make(chan struct{})
		asked := 0
		go func() {
			defer close(stopped)
			for r := rand.New(rand.NewPCG(9, uint64(most))); ; {
				events, err := w.events.Next(reading)
				if err != nil {
					return
				}
				w.apply(events)
				if r.IntN(4) == 0 {
					w.apply(w.events.Held())
					asked++
				}
			}
		}()
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, uint64(most)))
				for range 100 {
					c := chain(r.IntN(12), 4+r.IntN(70))
					switch from := r.IntN(len(c)); r.IntN(6) {
					case 0:
						_ = s.Delete(ctx, c[from:]...)
					case 1, 2:
						if l, err := s.Acquire(ctx, c); err == nil {
							l.Release()
						}
					default:
						_, _ = s.Write(ctx, c[:from], c[from:], contents(sp, c[from:]))
					}
				}
			})
		}
		wg.Wait()
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		stop()
		<-stopped
		w.read()
		w.compare([]*offload.Store{s}, []offload.Space{sp}, b)
		if late := w.of[offload.BlocksCleared] - asked; late > 0 && most > 100 || late == 0 && most == 1 {
			t.Errorf("Most is %d: %d times too late", most, late)
		}
		closed(t, s)
		b.Close()
	}
}

// TestEventsCorrupt: the blocks on disk are reported at first, and a corrupt block is reported as
// removed when it is found.
func TestEventsCorrupt(t *testing.T) {
	cfg, name, image := filled(t) // 5 of 6 blocks
	sp, c := space(40), chain(0, 6)
	image[bytes.Index(image, content(sp, c[2]))]++
	if err := os.WriteFile(name, image, 0o644); err != nil {
		t.Fatal(err)
	}
	b, w := openSegments(t, cfg), newEventModel(t, 0)
	defer b.Close()
	if err := b.Report(&w.events); err != nil {
		t.Fatal(err)
	}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 40 * 10, Events: &w.events, Disk: offload.Disk{Backend: b}})
	defer closed(t, s)
	stores, spaces := []*offload.Store{s}, []offload.Space{sp}
	w.read()
	if n := w.compare(stores, spaces, b); n != 5 {
		t.Fatalf("%d blocks were reported, want 5", n)
	}
	if l, err := s.Acquire(ctx, c); l.Len() != 2 || !errors.Is(err, offload.ErrCorrupt) {
		t.Fatal(l.Len(), err)
	} else {
		l.Release()
	}
	if d := s.Stats().Disk; d.Reads.N != 1 || d.Hits != 2 || d.Failed != 1 || d.Reads.Sum <= 0 {
		t.Errorf("%+v", d)
	}
	w.read()
	if n := w.compare(stores, spaces, b); n != 6 {
		t.Fatalf("%d blocks were reported, want 2 in memory and 4 on disk", n)
	}
	b.Close()
	if err := b.Report(&w.events); !errors.Is(err, offload.ErrClosed) {
		t.Error(err)
	}
}

// reportFile is a file on which tell is called during the first read, which returns wrong bytes.
type reportFile struct {
	offload.BlockFile
	tell func()
}

func (f reportFile) ReadAt(b []byte, at int64) (int, error) {
	f.tell()
	n, err := f.BlockFile.ReadAt(b, at)
	b[n-1] ^= 1
	return n, err
}

// TestReportDuringGet: Report waits for a read that finds a corrupt block, and the read does not wait
// for Report.
func TestReportDuringGet(t *testing.T) {
	var b *offload.Segments
	var events offload.Events
	var told sync.WaitGroup
	b, err := offload.OpenSegmentsOn(offload.SegmentConfig{Dir: t.TempDir(), Bytes: 1 << 20, SegmentBytes: 1 << 17}, func(f offload.BlockFile) offload.BlockFile {
		return reportFile{f, func() {
			told.Go(func() {
				if err := b.Report(&events); err != nil {
					t.Error(err)
				}
			})
			if _, err := events.Next(ctx); err != nil { // Report has begun
				t.Error(err)
			}
		}}
	})
	must(t, err)
	defer b.Close()
	sp, c := space(4000), chain(0, 1)
	if _, err := b.Put(ctx, sp.ID(), c, contents(sp, c)); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Get(ctx, sp.ID(), c, contents(sp, c)); n != 0 || !errors.Is(err, offload.ErrCorrupt) {
		t.Error(n, err)
	}
	told.Wait()
}
