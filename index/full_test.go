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
			for round := 0; m.Usage().Evicted == 0 && f.full == 0 && round < 20; round++ {
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
			u := m.Usage()
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
