package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// busyPod is a pod with a record of its changes, so that its state at any moment can be computed.
type busyPod struct {
	mu   sync.Mutex
	name string
	r    *rand.Rand
	log  []busyChange
	cut  int // number of changes at the cut
}

type busyChange struct {
	src Source
	c   Change
}

// pages is the number of independent worlds of randomChange in a pod.
const pages = 400

// next applies another change.
func (p *busyPod) next(tb testing.TB, m *memory, clears bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := p.r.Uint64N(pages)
	c := randomChange(p.r)
	for (!clears || p.r.IntN(20) > 0) && (c.Op == OpClear || c.Op == OpClearTier) {
		c = randomChange(p.r)
	}
	for i := range c.Hashes {
		c.Hashes[i] += Hash(page * 1000)
	}
	c.Parent += Hash(page * 1000)
	c.Root ^= Key(page) << 20
	if clears && p.r.IntN(5000) == 0 {
		p.log = nil
		if err := m.Remove(context.Background(), p.name); err != nil {
			tb.Error(err)
		}
		return
	}
	b := busyChange{Source{Pod: p.name, Model: "m", Rank: p.r.IntN(2)}, c}
	p.log = append(p.log, b)
	if _, err := b.apply(m, len(p.log)); err != nil {
		tb.Error(err)
	}
}

func (b *busyChange) apply(m *memory, n int) (Effect, error) {
	return m.Apply(context.Background(), b.src, Cursor{Stream: "s", Next: uint64(n)}, []Change{b.c})
}

// TestSnapshotBesideWriters writes snapshots while all pods change, to a writer that continues only
// after many changes. Each pod has the state at its cut.
func TestSnapshotBesideWriters(t *testing.T) {
	for seed := range choose(2, 2, 6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testSnapshotBesideWriters(t, uint64(seed), seed%2 > 0) })
	}
}

func testSnapshotBesideWriters(t *testing.T, seed uint64, clears bool) {
	cfg := MemoryConfig{Seed: [16]byte{1}, Bytes: 16 << 20}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	var all []*busyPod
	for i := range 3 {
		p := &busyPod{name: fmt.Sprint("pod ", i), r: rand.New(rand.NewPCG(seed, uint64(i)))}
		all = append(all, p)
		for range choose(4000, 4000, 12000) {
			p.next(t, m, clears)
		}
	}
	var wait sync.WaitGroup
	var stop atomic.Bool
	ended := make(chan struct{})
	ticks := make(chan struct{}, 200)
	for _, p := range all {
		wait.Go(func() {
			for !stop.Load() {
				p.next(t, m, clears)
				select {
				case ticks <- struct{}{}:
				case <-ended:
				}
			}
		})
	}
	wait.Go(func() { // readers do not wait either
		r := rand.New(rand.NewPCG(seed, 9))
		for !stop.Load() {
			m.answer([]Local{0, 1, 0, 1}, r.Uint64N(pages), r)
		}
	})
	var sections [][]byte
	err = m.Snapshot(context.Background(), func(section []byte) error {
		for range 100 {
			<-ticks
		}
		sections = append(sections, slices.Clone(section))
		return nil
	}, func(pod string, last func() error) error {
		p := all[slices.IndexFunc(all, func(p *busyPod) bool { return p.name == pod })]
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cut = len(p.log)
		return last()
	})
	stop.Store(true)
	close(ended)
	wait.Wait()
	must(t, err)
	if err := m.check(); err != nil {
		t.Fatal("after the snapshot: ", err)
	}
	got := restored(t, cfg, sections)
	defer got.Close()
	must(t, got.check())
	if len(sections) < 5 {
		t.Errorf("%d sections: the test tests too little", len(sections))
	}
	if clears {
		return
	}
	want, err := newMemory(cfg)
	must(t, err)
	defer want.Close()
	behind := 0
	for _, p := range all {
		for i := range p.cut {
			if _, err := p.log[i].apply(want, i+1); err != nil {
				t.Fatal(err)
			}
		}
		behind += len(p.log) - p.cut
		p.log = p.log[:p.cut]
	}
	if behind < 100 {
		t.Errorf("%d changes behind the cuts: the test tests too little", behind)
	}
	r := rand.New(rand.NewPCG(seed, 10))
	for i := range 1500 {
		if i%50 == 0 {
			for range 20 {
				page := r.Uint64N(pages)
				if diff := differentIn(want, got, r, page); diff != "" {
					t.Fatalf("seed %d, after %d changes, page %d: %s", seed, i, page, diff)
				}
			}
		}
		p := all[r.IntN(len(all))]
		p.next(t, m, false)
		b := p.log[len(p.log)-1]
		a, err := b.apply(want, len(p.log))
		o, err2 := b.apply(got, len(p.log))
		if err != nil || err2 != nil || a != o {
			t.Fatalf("%+v: %+v %v, and in the copy %+v %v", b, a, err, o, err2)
		}
	}
}
