package bench_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
)

// TestSameRuns drives each design with random operations on a few pods and
// prompts that branch off each other, and compares each score with a plain
// model.
func TestSameRuns(t *testing.T) {
	const pods, prompts, steps = 70, 40, 15_000
	forEach(t, func(t *testing.T, d design) {
		r := rand.New(rand.NewPCG(1, 2))
		m := newModel(r, pods, prompts)
		ix := d.index(t, pods, pods*prompts*64)
		for range steps {
			pod, p := r.IntN(pods), &m.prompts[r.IntN(prompts)]
			var err error
			switch n := r.IntN(1000); {
			case n < 2:
				m.removePod(pod)
				err = ix.RemovePod(pod)
			case n < 450:
				if s := m.store(pod, p); s != nil {
					err = ix.Store(pod, s)
				}
			case n < 700:
				err = ix.Remove(pod, m.remove(pod, p))
			default:
				m.score(t, ix, p)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d scores: %d runs, %d of them end at a hole, %d whole", m.scores, m.runs, m.holes, m.whole)
		if m.runs < 10_000 || m.holes < 1_000 || m.whole < 1_000 {
			t.Error("too few")
		}
	})
}

// model knows which pod holds which key, and what the prompts are.
type model struct {
	r       *rand.Rand
	held    []map[index.Key]bool
	prompts []prompt

	scores, runs, holes, whole int
}

type prompt struct {
	root   index.Key
	keys   []index.Key
	locals []index.Local
}

// newModel makes prompts of which most begin as an earlier one does.
func newModel(r *rand.Rand, pods, prompts int) *model {
	m := &model{r: r, held: make([]map[index.Key]bool, pods)}
	for pod := range m.held {
		m.held[pod] = make(map[index.Key]bool)
	}
	for i := range prompts {
		p := prompt{root: index.Key(1 + r.IntN(2))}
		if i > 3 {
			of := m.prompts[r.IntN(i)]
			p.root, p.locals = of.root, slices.Clone(of.locals[:r.IntN(len(of.locals))])
		}
		for range 1 + r.IntN(60) {
			p.locals = append(p.locals, index.Local(r.Uint64()))
		}
		key := p.root
		for _, l := range p.locals {
			key = index.Chain(key, l)
			p.keys = append(p.keys, key)
		}
		m.prompts = append(m.prompts, p)
	}
	return m
}

// hash is what a pod calls a key: half of the pods agree.
func hash(pod int, k index.Key) index.Hash {
	if pod%2 == 0 {
		return index.Hash(k * 0x9e3779b97f4a7c15)
	}
	return index.Hash(k) ^ index.Hash(pod)<<32
}

// store picks a block that pod lacks behind one that it holds, and returns the
// store of a few that it lacks from there on, or nil.
func (m *model) store(pod int, p *prompt) *bench.Store {
	held := m.held[pod]
	var starts []int
	for i, k := range p.keys {
		if !held[k] && (i == 0 || held[p.keys[i-1]]) {
			starts = append(starts, i)
		}
	}
	if len(starts) == 0 {
		return nil
	}
	from := starts[m.r.IntN(len(starts))]
	s := &bench.Store{Root: p.root}
	if from > 0 {
		s.HasParent, s.Parent, s.Root = true, hash(pod, p.keys[from-1]), 0
	}
	to := from + 1 + m.r.IntN(len(p.keys)-from)
	for i := from; i < to && !held[p.keys[i]]; i++ {
		held[p.keys[i]] = true
		s.Hashes = append(s.Hashes, hash(pod, p.keys[i]))
		s.Locals = append(s.Locals, p.locals[i])
	}
	return s
}

// remove takes the end of a prompt from a pod, or some blocks of it.
func (m *model) remove(pod int, p *prompt) []index.Hash {
	var hashes []index.Hash
	from, keep := 0, 3+m.r.IntN(40)
	if m.r.IntN(2) == 0 {
		from, keep = m.r.IntN(len(p.keys)), 0
	}
	for _, k := range slices.Backward(p.keys[from:]) {
		if m.held[pod][k] && (keep == 0 || m.r.IntN(keep) == 0) {
			delete(m.held[pod], k)
			hashes = append(hashes, hash(pod, k))
		}
	}
	return hashes
}

func (m *model) removePod(pod int) { clear(m.held[pod]) }

// score compares the runs of some pods in any order.
func (m *model) score(t *testing.T, ix bench.Index, p *prompt) {
	t.Helper()
	pods := m.r.Perm(len(m.held))[:1+m.r.IntN(len(m.held))]
	runs := make([]int32, len(pods))
	for i := range runs {
		runs[i] = -1
	}
	if err := ix.Scorer(pods).Score(p.keys, runs); err != nil {
		t.Fatal(err)
	}
	m.scores++
	for i, pod := range pods {
		want := 0
		for want < len(p.keys) && m.held[pod][p.keys[want]] {
			want++
		}
		if int(runs[i]) != want {
			t.Fatalf("score %d: pod %d has a run of %d of %d, want %d", m.scores, pod, runs[i], len(p.keys), want)
		}
		switch beyond := p.keys[want:]; {
		case want == 0:
			continue
		case len(beyond) == 0:
			m.whole++
		case slices.ContainsFunc(beyond, func(k index.Key) bool { return m.held[pod][k] }):
			m.holes++
		}
		m.runs++
	}
}

// TestUnknown: what an index cannot know it does not take in silence.
func TestUnknown(t *testing.T) {
	forEach(t, func(t *testing.T, d design) {
		ix := d.index(t, 2, 10)
		child := &bench.Store{HasParent: true, Parent: 7, Hashes: []index.Hash{8}, Locals: []index.Local{1}}
		if err := ix.Store(0, child); !errors.Is(err, bench.ErrUnknown) {
			t.Errorf("a store behind an unknown parent: %v", err)
		}
		if err := ix.Remove(1, []index.Hash{9}); !errors.Is(err, bench.ErrUnknown) {
			t.Errorf("a removal of an unknown block: %v", err)
		}
	})
}

// TestChains: the parts of a chain are the chain, and no two blocks have a name
// in common.
func TestChains(t *testing.T) {
	forEach(t, func(t *testing.T, d design) {
		c := bench.Chains{Len: 40}
		ix := d.index(t, 1, 10*c.Len)
		names := make(map[index.Hash]bool)
		var s bench.Store
		for chain := range 10 {
			for from := 0; from < c.Len; from += 8 {
				c.Store(&s, chain, from, from+8)
				if err := ix.Store(0, &s); err != nil {
					t.Fatal(err)
				}
				for _, h := range s.Hashes {
					names[h] = true
				}
			}
		}
		if len(names) != 10*c.Len {
			t.Errorf("%d names", len(names))
		}
		var runs [1]int32
		for chain := range 11 {
			want := int32(c.Len)
			if chain == 10 {
				want = 0
			}
			if err := ix.Scorer([]int{0}).Score(c.Keys(nil, chain), runs[:]); err != nil || runs[0] != want {
				t.Errorf("chain %d: %d, %v", chain, runs[0], err)
			}
		}
	})
}
