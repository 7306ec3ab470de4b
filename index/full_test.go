package index

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestFullOfEachKind fills an index to its bound with each kind of content. Then new chains of
// other pods are kept, within the budget by the heap. If the content cannot be evicted, an error
// reports the lack of room.
func TestFullOfEachKind(t *testing.T) {
	if testing.Short() {
		t.Skip("a budget is not filled by each kind of content: -short")
	}
	kinds := append(contents[:len(contents):len(contents)], []struct {
		name string
		fill func(*filler)
	}{
		// Chains after a prompt of two tenants with hidden salts.
		{"chains behind a prefix of two hashes", func(f *filler) {
			for pod := range 8 {
				c := f.chain(64)
				f.apply(pod, c, f.renamed(c))
			}
			for i := range 600 {
				f.apply(i%8, f.chain(64))
			}
		}},
		{"one long prefix of ten hashes", func(f *filler) {
			c := f.chain(4096)
			for range 10 {
				f.apply(0, c)
				c = f.renamed(c)
			}
		}},
		{"groups", func(f *filler) {
			for id := range MaxGroups {
				for pod := range 100 {
					c := f.chain(1)
					c.Group = Group{ID: id}
					f.apply(pod, c)
				}
			}
		}},
	}...)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			f := &filler{tb: t, r: rand.New(rand.NewPCG(4, 4)), tolerant: true}
			before := liveHeap()
			m, err := newMemory(MemoryConfig{Bytes: MinMemory})
			must(t, err)
			f.m = m
			for round := 0; m.MemoryUsage().Evicted == 0 && f.full == 0 && round < 20; round++ {
				kind.fill(f)
			}
			kept, refused, full := 0, 0, f.full
			_, by := m.usage()
			stays := by.sources > MinMemory/4 // cannot be evicted
			for i := range 300 {
				c := f.chain(16)
				was := f.full
				pod := 50_000 + i%8
				f.apply(pod, c)
				switch {
				case f.full > was, stays && f.evicted > 0:
					refused++
				case f.holds(pod, c):
					kept++
				}
			}
			u := m.MemoryUsage()
			heap := liveHeap() - before
			t.Logf("%d kept, %d refused, %d before; heap %d; %+v", kept, refused, full, heap, u)
			if u.Total > u.Budget || heap > u.Budget {
				t.Errorf("%d bytes of heap, %d counted, of %d", heap, u.Total, u.Budget)
			}
			if kept+refused < 300*9/10 {
				t.Errorf("%d of 300 fresh chains are kept, %d were refused", kept, refused)
			}
			if err := m.check(); err != nil {
				t.Error(err)
			}
			runtime.KeepAlive(m)
		})
	}
}

// A store that waits and has too many hashes for the room may list one of them twice, of which the
// second is dropped with the rest.
func TestWaitingStoreWithoutRoom(t *testing.T) {
	for name, more := range map[string]int{"parked": 0, "masked": 1} {
		t.Run(name, func(t *testing.T) {
			m, err := newMemory(MemoryConfig{Bytes: MinMemory})
			must(t, err)
			defer m.Close()
			apply := func(pod string, first Hash, hashes int) Counts {
				t.Helper()
				c := Change{Op: OpStore, Copies: CopiesExact, Variant: Variant{Unit: 16}, BlockSize: 16, HasParent: true, Parent: 1}
				if more > 0 {
					c.Group = Group{Kind: GroupWindow, Window: 64}
				}
				for i := range Hash(hashes) {
					c.Hashes = append(c.Hashes, first+i)
				}
				c.Hashes = append(c.Hashes, first)
				c.Locals = make([]Local, len(c.Hashes)+more)
				done, err := m.Apply(context.Background(), Source{Pod: pod, Model: "m"}, Cursor{}, []Change{c})
				must(t, err)
				return done.Counts
			}
			for i := range Hash(40) { // older stores, which make room afterwards
				apply("b", 2+64*i, 64)
			}
			n := apply("a", 2, 10_000)
			info, _ := m.DescribeSource(Source{Pod: "a", Model: "m"})
			if n.Dropped != 1 || info.Unplaced < 1000 {
				t.Fatalf("%+v, %+v", n, info)
			}
			must(t, m.check())
		})
	}
}

// holds reports whether a stored chain is matched whole.
func (f *filler) holds(pod int, c Change) bool {
	f.tb.Helper()
	var out Matches
	src, p := fillerPod(pod), prompt{root: c.Root, locals: c.Locals}
	q := Query{Candidates: NewCandidates(src.Model, []string{src.Pod}), Keys: p.keys}
	if err := f.m.Match(context.Background(), &q, &out); err != nil {
		f.tb.Fatal(err)
	}
	return len(out.Rows) > 0 && int(out.Rows[0].Run) == len(c.Hashes)
}
