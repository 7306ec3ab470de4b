// Package indextest is the suite that every backend of package index must
// pass: [Run]. [NewPlain] returns a backend that passes it and is easy to read.
package indextest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/trace"
)

// Config has the bounds that the suite reaches. 0 is the default of the backend. The
// contract requires the first two.
type Config struct {
	// PendingBytes bounds what waits for a name in a source. A store that waits
	// counts for 256 bytes at least, whatever it takes.
	PendingBytes int
	// IdleNames is the number of names of a source that are kept although no holder
	// holds their blocks.
	IdleNames int
	// Bytes bounds the memory of the backend, index.MinMemory or more. A backend
	// without such a bound ignores it. One that has it reports it by [index.Describer].
	Bytes int64
}

// Run checks a backend. open returns a new empty one; the suite closes it.
func Run(t *testing.T, open func(testing.TB, Config) index.Index) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ix := open(t, Config{})
			defer ix.Close()
			c.run(&tester{T: t, ix: ix})
		})
	}
	for _, c := range boundCases {
		t.Run(c.name, func(t *testing.T) {
			ix := open(t, Config{Bytes: leastBound})
			defer ix.Close()
			if !isBounded(ix) {
				t.Log("the backend has no bound in bytes")
				return
			}
			c.run(&tester{T: t, ix: ix})
		})
	}
	t.Run("PendingBound", func(t *testing.T) { testPendingBound(t, open) })
	t.Run("ForgottenThenReported", func(t *testing.T) { testForgottenThenReported(t, open) })
	t.Run("ForgottenAndHidden", func(t *testing.T) { testForgottenAndHidden(t, open) })
	t.Run("NamesBound", func(t *testing.T) { testNamesBound(t, open) })
	t.Run("Random", func(t *testing.T) { testRandomSeeds(t, open) })
	t.Run("Ages", func(t *testing.T) { testAges(t, open) })
	t.Run("Bound", func(t *testing.T) { testBoundSeeds(t, open) })
	t.Run("History", func(t *testing.T) { testHistory(t, open, Config{}) })
	t.Run("HistoryAtABound", func(t *testing.T) { testHistory(t, open, Config{Bytes: 2 * leastBound}) })
	t.Run("Close", func(t *testing.T) { testClose(t, open) })
}

// tester is a test with an index and the words to speak to it.
type tester struct {
	*testing.T
	ix index.Index
}

const (
	size = 16 // of a block, unless a test is about sizes
	unit = 16
)

var (
	ctx     = context.Background()
	variant = index.Variant{Unit: unit}
	podA    = index.Source{Pod: "a", Model: "m"}
	podB    = index.Source{Pod: "b", Model: "m"}
	full    = index.Group{}
	window  = index.Group{ID: 1, Kind: index.GroupWindow, Window: 32}
)

// chain is a prompt of one root: its units and the engine's names for its
// blocks.
type chain struct {
	root   index.Key
	locals []index.Local
	hashes []index.Hash
}

// newChain has n units and as many blocks of one unit. Equal names and numbers
// give equal chains.
func newChain(root uint64, n int) chain {
	c := chain{root: index.Key(root * 0x9E3779B97F4A7C15)}
	for i := range n {
		c.locals = append(c.locals, index.Local(root<<32|uint64(i)))
		c.hashes = append(c.hashes, index.Hash(root<<48|uint64(i)<<8|7))
	}
	return c
}

// fork shares the first n blocks of c and goes on with others.
func (c chain) fork(n, more int, salt uint64) chain {
	f := chain{c.root, slices.Clone(c.locals[:n]), slices.Clone(c.hashes[:n])}
	for i := range more {
		f.locals = append(f.locals, index.Local(salt<<40|uint64(n+i)))
		f.hashes = append(f.hashes, index.Hash(uint64(c.hashes[0])^salt<<32^uint64(n+i)<<8))
	}
	return f
}

func (c chain) keys(v index.Variant) ([]index.Key, error) {
	if v != variant {
		return nil, nil
	}
	var keys []index.Key
	k := c.root
	for _, l := range c.locals {
		k = index.Chain(k, l)
		keys = append(keys, k)
	}
	return keys, nil
}

// store announces blocks [from, to) of c in the gpu, counted exactly.
func (c chain) store(from, to int) index.Change {
	ch := index.Change{
		Op: index.OpStore, Group: full, Copies: index.CopiesExact,
		Hashes: c.hashes[from:to], Variant: variant, BlockSize: size, Locals: c.locals[from:to],
		Root: c.root, // which does not count behind a parent
	}
	if from > 0 {
		ch.HasParent, ch.Parent = true, c.hashes[from-1]
	}
	return ch
}

func (c chain) remove(blocks ...int) index.Change {
	ch := index.Change{Op: index.OpRemove, Group: full}
	for _, b := range blocks {
		ch.Hashes = append(ch.Hashes, c.hashes[b])
	}
	return ch
}

func with(ch index.Change, set func(*index.Change)) index.Change {
	set(&ch)
	return ch
}

func guarded(ch index.Change) index.Change {
	return with(ch, func(c *index.Change) { c.Copies = index.CopiesGuarded })
}

// inPart is a guarded change in a view without its beginning.
func inPart(ch index.Change) index.Change {
	return with(ch, func(c *index.Change) { c.Copies, c.Partial = index.CopiesGuarded, true })
}

// double is a store of c in blocks of twice the size, numbered from 0.
func (c chain) double(from, to int) index.Change {
	ch := c.store(2*from, 2*to)
	ch.BlockSize, ch.Hashes = 2*size, nil
	for b := from; b < to; b++ {
		ch.Hashes = append(ch.Hashes, c.hashes[2*b+1])
	}
	return ch
}

func inTier(t index.Tier, ch index.Change) index.Change {
	return with(ch, func(c *index.Change) { c.Tier = t })
}

func inGroup(g index.Group, ch index.Change) index.Change {
	return with(ch, func(c *index.Change) { c.Group = g })
}

// masks is a prompt of masked stores.
var (
	masks       = newChain(1, 12)
	draftWindow = index.Group{ID: 1, Kind: index.GroupWindow, Window: 32, Draft: true}
)

// masked is a store of c that keeps some blocks, numbered from 1, which it does not
// name. It ends with a multiple of four, or one block later in a draft group.
func masked(g index.Group, c chain, kept ...int) index.Change { return maskedFrom(0, g, c, kept...) }

// maskedFrom is masked behind block from.
func maskedFrom(from int, g index.Group, c chain, kept ...int) index.Change {
	to := min(max((kept[len(kept)-1]-1)/4*4+4, from+4), len(c.hashes))
	ch := inGroup(g, c.store(from, to))
	ch.Hashes = nil
	for _, b := range kept {
		ch.Hashes = append(ch.Hashes, c.hashes[b-1])
	}
	return ch
}

// blocks64 is the store of c in blocks of 64 tokens, of a full group with ID 4.
func blocks64(c chain) index.Change { return inBlocksOf(64, c) }

func inBlocksOf(tokens int, c chain) index.Change {
	n := tokens / size
	ch := inGroup(index.Group{ID: 4}, c.store(0, len(c.hashes)/n*n))
	ch.BlockSize, ch.Hashes = tokens, nil
	for i := n - 1; i < len(c.hashes); i += n {
		ch.Hashes = append(ch.Hashes, c.hashes[i])
	}
	return ch
}

// bare strips a store of all but its hashes.
func bare(t index.Tier, ch index.Change) index.Change {
	return with(ch, func(c *index.Change) {
		c.Tier, c.Locals, c.BlockSize, c.Variant, c.HasParent, c.Parent, c.Root = t, nil, 0, index.Variant{}, false, 0, 0
	})
}

var clearAll = index.Change{Op: index.OpClear}

func (t *tester) apply(src index.Source, changes ...index.Change) index.Counts {
	t.Helper()
	done, err := t.ix.Apply(ctx, src, index.Cursor{}, changes)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return done.Counts
}

func (t *tester) remove(pod string) {
	t.Helper()
	if err := t.ix.Remove(ctx, pod); err != nil {
		t.Fatal(err)
	}
}

func (t *tester) match(c chain, pods []string, held bool) []index.Row {
	t.Helper()
	return t.query(index.Query{Candidates: index.NewCandidates("m", pods), Keys: c.keys, Held: held})
}

func (t *tester) query(q index.Query) []index.Row {
	t.Helper()
	var m index.Matches
	if err := t.ix.Match(ctx, &q, &m); err != nil {
		t.Fatalf("Match: %v", err)
	}
	return m.Rows
}

// row returns the row of a source and group with blocks of the usual size; its
// zero value if there is none.
func (t *tester) row(src index.Source, group int, c chain) index.Row {
	t.Helper()
	return t.rowOf(src, group, size, c)
}

func (t *tester) rowOf(src index.Source, group, blockSize int, c chain) (found index.Row) {
	t.Helper()
	for _, r := range t.match(c, nil, false) {
		if r.Source == src && r.Group.ID == group && r.BlockSize == blockSize {
			if found.View != nil {
				t.Fatalf("two rows for %v group %d", src, group)
			}
			found = r
		}
	}
	return found
}

// gpuBits returns which of the first 64 blocks the gpu tier of a group of a hybrid
// source holds.
func (t *tester) gpuBits(src index.Source, group int, c chain) uint64 {
	t.Helper()
	if r := t.row(src, group, c); r.Held != nil && r.Held[index.TierGPU] != nil {
		return r.Held[index.TierGPU][0]
	}
	return 0
}

// want checks the leading run of a source in its first group.
func (t *tester) want(src index.Source, c chain, run int) {
	t.Helper()
	if got := int(t.row(src, 0, c).Run); got != run {
		t.Errorf("%s/%d holds %d blocks, want %d", src.Pod, src.Rank, got, run)
	}
}

// wantMasked checks which blocks of the usual size podA holds in a group, numbered from 1.
func (t *tester) wantMasked(g index.Group, c chain, blocks ...int) {
	t.Helper()
	var got []int
	for _, r := range t.match(c, nil, true) {
		if r.Source != podA || r.Group.ID != g.ID || r.BlockSize != size {
			continue
		}
		for b := range c.hashes {
			if r.Held[index.TierGPU][b/64]>>(b%64)&1 != 0 {
				got = append(got, b+1)
			}
		}
	}
	if !slices.Equal(got, blocks) {
		t.Errorf("group %d holds blocks %v, want %v", g.ID, got, blocks)
	}
}

type testCase struct {
	name string
	run  func(*tester)
}

// Each case is a sentence of the contract.
var cases = []testCase{
	{"ABlockOfTwoNames", func(t *tester) {
		c := newChain(1, 3)
		d := chain{c.root, c.locals, []index.Hash{91, 92, 93}} // as hidden salts make them
		t.apply(podA, c.store(0, 3), d.store(0, 3))
		for i, step := range []struct {
			do   index.Change
			want int
		}{{c.remove(2, 1), 3}, {d.remove(1), 1}, {d.remove(0), 1}, {c.remove(0), 0}, {d.store(0, 1), 1}, {c.store(1, 2), 3}, {d.remove(0), 0}} {
			t.apply(podA, step.do)
			if got := int(t.row(podA, 0, c).Run); got != step.want {
				t.Errorf("step %d: %d blocks, want %d", i, got, step.want)
			}
		}
	}},
	{"AChildRestoresALongPrompt", func(t *tester) {
		const n = 700 // more than is stored at once
		c := newChain(1, n+1)
		t.apply(podA, guarded(c.store(0, n)), guarded(c.store(0, n)))
		for b := n - 1; b >= 0; b-- {
			t.apply(podA, c.remove(b))
		}
		t.want(podA, c, 0)
		if got := t.apply(podA, guarded(c.store(n, n+1))); got.Restored != n {
			t.Errorf("counts %+v", got)
		}
		t.want(podA, c, n+1)
	}},
	{"TheEndOfALargePodIsSeenAtOnce", func(t *tester) {
		c := newChain(1, 30000)
		keys, _ := c.keys(variant)
		q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return keys, nil }, Held: true}
		sources := func() (names string) {
			for _, r := range t.query(q) {
				names += r.Source.Pod
			}
			return names
		}
		t.apply(podA, c.store(0, 30000))
		t.apply(podB, c.store(0, 1))
		if got := sources(); got != "ab" && got != "ba" {
			t.Errorf("pods %q", got)
		}
		t.remove("a")
		if got := sources(); got != "b" {
			t.Errorf("pods %q after the end of one", got)
		}
	}},
	{"CandidatesOfAModelThatCameBack", func(t *tester) {
		c := newChain(1, 3)
		of := index.NewCandidates("m", []string{"a", "b"})
		for i, src := range []index.Source{podA, podB, podB, podA} {
			t.apply(src, c.store(0, 3))
			rows := t.query(index.Query{Candidates: of, Keys: c.keys})
			if len(rows) != 1 || rows[0].Source != src || of.Pods()[rows[0].Pod] != src.Pod {
				t.Errorf("life %d: %+v", i, rows)
			}
			t.remove(src.Pod) // and the model with it
		}
	}},
	{"PodsMayChangeWhileKeysAreMade", func(t *tester) {
		c := newChain(1, 8)
		by8 := with(c.store(0, 4), func(c *index.Change) { c.Variant.Unit, c.BlockSize = 8, 8 })
		podC := index.Source{Pod: "c", Model: "m"}
		t.apply(podA, c.store(0, 8))
		t.apply(podB, c.store(0, 1))
		asked := 0
		q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(v index.Variant) ([]index.Key, error) {
			if asked++; asked > 1 {
				return c.keys(v)
			}
			t.remove("a")
			for range 4 {
				t.apply(podB, c.store(1, 2), c.remove(1)) // time for reusing what was a's
			}
			t.apply(podC, c.store(0, 3), by8)
			return c.keys(v)
		}}
		runs := map[index.Source]int32{}
		for _, r := range t.query(q) {
			runs[r.Source] += r.Run
		}
		if want := (map[index.Source]int32{podB: 1, podC: 3}); !maps.Equal(runs, want) || asked != 2 {
			t.Errorf("Keys was called %d times: %v", asked, runs)
		}
	}},
	{"CandidatesAreNoOthers", func(t *tester) {
		c, d := newChain(1, 4), newChain(2, 4)
		of := index.NewCandidates("m", []string{"a"})
		rows := func() int { return len(t.query(index.Query{Candidates: of, Keys: c.keys})) }
		t.apply(podB, c.store(0, 4))
		t.apply(podA, c.store(0, 4))
		if rows() != 1 {
			t.Error("a pod is not seen")
		}
		t.apply(podA, clearAll)
		for range 4 {
			t.apply(podB, d.remove(0)) // time for reusing what was a's
		}
		t.apply(podB, bare(index.TierCPU, c.store(0, 4)), bare(index.TierDisk, c.store(0, 4)), inGroup(window, c.store(0, 4)))
		if rows() != 0 {
			t.Error("a row has blocks of another pod")
		}
	}},
	{"AGroupIsWhatItsFirstStoreInTheGPUSays", func(t *tester) {
		c := newChain(1, 2)
		unlike := index.Group{ID: window.ID} // as events of a tier that leave out the kind
		see := func(when string, want index.Group) {
			t.Helper()
			if r := t.row(podA, window.ID, c); r.View == nil || r.Group != want || r.Groups[0].Group != want {
				t.Errorf("%s: row %+v", when, r)
			}
		}
		t.apply(podA, inGroup(unlike, bare(index.TierCPU, c.store(0, 2))), inGroup(window, c.store(0, 2)))
		see("named after a tier spoke", window)
		t.apply(podA, inGroup(unlike, bare(index.TierCPU, c.store(0, 2))))
		see("a tier speaks again", window)
		t.apply(podA, inGroup(unlike, c.store(0, 2)))
		see("another kind", window)
		t.apply(podA, clearAll, inGroup(unlike, c.store(0, 2)))
		see("announced again after a clear", unlike)
	}},
	{"HolesAreExact", func(t *tester) {
		c := newChain(1, 20)
		t.apply(podA, c.store(0, 20))
		t.apply(podA, c.remove(7))
		t.want(podA, c, 7)
		held := t.match(c, nil, true)[0].Held[index.TierGPU]
		if want := uint64(1<<20 - 1 - 1<<7); held[0] != want {
			t.Errorf("held %b, want %b", held[0], want)
		}
		t.apply(podA, c.store(7, 8))
		t.want(podA, c, 20)
	}},
	{"UniqueStoreOfAHeldBlock", func(t *tester) {
		c := newChain(1, 8)
		unique := func(ch index.Change) index.Change { return with(ch, func(c *index.Change) { c.Unique = true }) }
		lower := func(tier index.Tier, from, to int) index.Change { return unique(bare(tier, c.store(from, to))) }
		chunk := unique(with(c.store(2, 4), func(c *index.Change) { c.Tier = index.TierCPU })) // blocks 2 and 3 as one
		removed := with(c.remove(1), func(c *index.Change) { c.Tier = index.TierCPU })
		elsewhere := with(c.remove(1), func(c *index.Change) { c.Tier = index.TierDisk })
		t.apply(podA, c.store(0, 8), c.store(0, 8)) // copies in the gpu
		for i, step := range []struct {
			changes   []index.Change
			cleared   uint64
			cpu, disk uint64
		}{
			{[]index.Change{lower(index.TierCPU, 0, 3), lower(index.TierDisk, 0, 2)}, 0, 0b111, 0b11},
			{[]index.Change{lower(index.TierCPU, 3, 4)}, 0, 0b1111, 0b11},
			{[]index.Change{removed, lower(index.TierCPU, 1, 2)}, 0, 0b1111, 0b11},
			{[]index.Change{unique(c.store(0, 2))}, 0, 0b1111, 0b11}, // in the gpu
			{[]index.Change{lower(index.TierCPU, 5, 6), lower(index.TierCPU, 5, 6)}, 0, 0b101111, 0b11},
			{[]index.Change{elsewhere, lower(index.TierCPU, 6, 7), lower(index.TierCPU, 1, 2)}, 1, 0b1000010, 0b01},
			{[]index.Change{lower(index.TierDisk, 3, 4), lower(index.TierDisk, 0, 1)}, 1, 0b1000010, 0b1001},
			{[]index.Change{bare(index.TierCPU, c.store(6, 7))}, 0, 0b1000010, 0b1001},
			{[]index.Change{chunk}, 0, 0b1000010, 0b1001},
			{[]index.Change{chunk}, 1, 0, 0b1001},
		} {
			if got := t.apply(podA, step.changes...); got.Cleared != step.cleared {
				t.Errorf("step %d: %d tiers were cleared, want %d", i, got.Cleared, step.cleared)
			}
			var cpu, disk, chunks uint64
			for _, r := range t.match(c, nil, true) {
				switch set := r.Held; {
				case r.BlockSize > size && set[index.TierCPU] != nil:
					chunks |= set[index.TierCPU][0]
				case r.BlockSize == size:
					if set[index.TierCPU] != nil {
						cpu |= set[index.TierCPU][0]
					}
					if set[index.TierDisk] != nil {
						disk |= set[index.TierDisk][0]
					}
				}
			}
			if cpu != step.cpu || disk != step.disk || (chunks != 0) != (i >= 8) {
				t.Errorf("step %d: cpu %b, disk %b, chunks %b, want %b and %b", i, cpu, disk, chunks, step.cpu, step.disk)
			}
		}
	}},
	{"BitsEndWithThePrompt", func(t *tester) {
		two := index.Change{Op: index.OpStore, Group: index.Group{ID: 1, Kind: index.GroupMamba}, Copies: index.CopiesExact, Variant: variant, BlockSize: 2 * unit}
		one, some, many := newChain(1, 140), newChain(2, 140), newChain(3, 140)
		for i, c := range []chain{one, some, many} {
			two.Locals, two.Root, two.Hashes = c.locals, c.root, nil
			for b := 1; b < 140; b += 2 {
				two.Hashes = append(two.Hashes, c.hashes[b])
			}
			switch i {
			case 0:
				t.apply(podA, inGroup(window, c.store(0, 140)))
			case 1:
				t.apply(podA, inGroup(window, c.store(0, 140)), two)
			default:
				for n := range 8 {
					t.apply(index.Source{Pod: fmt.Sprint(n), Model: "m"}, inGroup(window, c.store(0, 140)), two)
				}
			}
			for _, n := range []int{1, 5, 63, 64, 65, 127, 128, 129, 131} {
				for _, r := range t.match(chain{c.root, c.locals[:n], c.hashes[:n]}, nil, false) {
					blocks := n * unit / r.BlockSize
					set, ones := r.Held[index.TierGPU], 0
					for _, word := range set {
						ones += bits.OnesCount64(word)
					}
					if len(set) != (blocks+63)/64 || ones != blocks || int(r.Run) != blocks || int(r.GPU) != blocks || int(r.Tiers[index.TierGPU]) != blocks {
						t.Errorf("%d units: %s with %b", n, rowText(r), set)
					}
				}
			}
		}
	}},
	{"BitsOfALongPrompt", func(t *tester) {
		// Chains that fork at odd places, of which each group of some sources holds
		// other blocks, in blocks of one to three units.
		r := rand.New(rand.NewPCG(1, 2))
		c := newChain(1, 300)
		prompts := []chain{c, c.fork(5, 300, 2), c.fork(37, 250, 3), c.fork(101, 199, 4)}
		type blocks struct {
			src   index.Source
			group int
			units int
			chain int
		}
		held := map[blocks][]uint64{}
		for i := range 9 {
			src := index.Source{Pod: fmt.Sprint(i / 2), Model: "m", Rank: i % 2}
			for n, p := range prompts {
				for g := range 3 {
					units := []int{1, 1, 2, 3}[(g+i)%4]
					ch := index.Change{Op: index.OpStore, Group: index.Group{ID: g, Kind: index.GroupMamba}, Copies: index.CopiesSet, Variant: variant, BlockSize: units * unit, Locals: p.locals, Root: p.root}
					gone := index.Change{Op: index.OpRemove, Group: ch.Group}
					set := make([]uint64, 5)
					for b := range len(p.locals) / units {
						h := p.hashes[(b+1)*units-1]
						ch.Hashes = append(ch.Hashes, h)
						if (b+1)*units > 101 && r.IntN(1+g) > 0 { // not what is shared
							gone.Hashes = append(gone.Hashes, h)
						} else {
							set[b/64] |= 1 << (b % 64)
						}
					}
					ch.Locals = ch.Locals[:len(ch.Hashes)*units]
					held[blocks{src, g, units, n}] = set[:(len(ch.Hashes)+63)/64]
					t.apply(src, ch, gone)
				}
			}
		}
		for n, p := range prompts {
			for _, r := range t.match(p, nil, false) {
				of := blocks{r.Source, r.Group.ID, r.BlockSize / unit, n}
				if want := held[of]; r.Held == nil || !slices.Equal(r.Held[index.TierGPU], want) {
					t.Errorf("%+v: %s with %v, want %b", of, rowText(r), r.Held, want)
				}
				delete(held, of)
			}
		}
		if len(held) > 0 {
			t.Errorf("no rows of %v", held)
		}
	}},
	{"BitsInAllTiers", func(t *tester) {
		c := newChain(1, 200)
		t.apply(podA, inGroup(window, newChain(2, 1).store(0, 1)), c.store(0, 200), bare(index.TierCPU, c.store(60, 150)), bare(index.TierDisk, c.store(140, 160)))
		for b := 70; b < 180; b++ {
			if b/10 != 8 {
				t.apply(podA, c.remove(b))
			}
		}
		rows := t.match(c, nil, false)
		if len(rows) != 1 {
			t.Fatalf("rows %+v", rows)
		}
		r := rows[0]
		if want := [index.NumTiers]int32{80, 70, 10}; r.Run != 160 || r.GPU != 70 || r.Tiers != want {
			t.Errorf("row %s", rowText(r))
		}
		for tier, ranges := range map[index.Tier][][2]int{index.TierGPU: {{0, 70}, {80, 90}, {180, 200}}, index.TierCPU: {{60, 150}}, index.TierDisk: {{140, 160}}} {
			want := make([]uint64, 4)
			for _, of := range ranges {
				for b := of[0]; b < of[1]; b++ {
					want[b/64] |= 1 << (b % 64)
				}
			}
			if !slices.Equal(r.Held[tier], want) {
				t.Errorf("%v: %b, want %b", tier, r.Held[tier], want)
			}
		}
		if r.Held[index.TierRemote] != nil {
			t.Errorf("remote: %b", r.Held[index.TierRemote])
		}
	}},
	{"AllHolders", func(t *tester) {
		c := newChain(1, 3)
		for n := range 1500 {
			t.apply(index.Source{Pod: fmt.Sprint(n), Model: "m"}, c.store(0, 1+n%3))
		}
		count := [4]int{}
		for _, r := range t.match(c, nil, false) {
			count[r.Run]++
		}
		if count != [4]int{0, 500, 500, 500} {
			t.Errorf("pods by run: %v", count)
		}
		t.apply(index.Source{Pod: "700", Model: "m"}, c.remove(0))
		if n := len(t.match(c, nil, false)); n != 1499 {
			t.Errorf("%d pods after one removal", n)
		}
	}},
	{"CandidatesFollowThePods", func(t *tester) {
		c := newChain(1, 3)
		for name, of := range map[string]*index.Candidates{"every": index.NewCandidates("m", nil), "named": index.NewCandidates("m", []string{"a", "b"})} {
			runs := func() string {
				rows := t.query(index.Query{Candidates: of, Keys: c.keys})
				slices.SortFunc(rows, func(a, b index.Row) int { return strings.Compare(a.Source.Pod, b.Source.Pod) })
				text := ""
				for _, r := range rows {
					text += fmt.Sprint(r.Source.Pod, r.Run, " ")
				}
				return text
			}
			steps := []struct {
				do   func()
				want string
			}{
				{func() {}, ""},
				{func() { t.apply(podB, c.store(0, 1)) }, "b1 "},
				{func() { t.apply(podA, c.store(0, 3)) }, "a3 b1 "},
				{func() { t.apply(podA, clearAll) }, "b1 "},
				{func() { t.apply(podA, c.store(0, 2)) }, "a2 b1 "},
				{func() { t.remove("a") }, "b1 "},
				{func() { t.remove("b") }, ""},
				{func() { t.apply(podA, c.store(0, 3)) }, "a3 "},
				{func() { t.remove("a") }, ""},
			}
			for i, s := range steps {
				s.do()
				if got := runs(); got != s.want {
					t.Errorf("%s, step %d: %q, want %q", name, i, got, s.want)
				}
			}
		}
	}},
	{"KeysOncePerVariant", func(t *tester) {
		c := newChain(1, 8)
		asked := map[index.Variant]int{}
		match := func(pods ...string) {
			t.Helper()
			clear(asked)
			t.query(index.Query{Candidates: index.NewCandidates("m", pods), Keys: func(v index.Variant) ([]index.Key, error) {
				asked[v]++
				return c.keys(v)
			}})
		}
		by8 := with(c.store(0, 4), func(c *index.Change) { c.Variant.Unit, c.BlockSize = 8, 8 })
		t.apply(podA, c.store(0, 8), inGroup(window, c.store(0, 8)), with(c.store(0, 8), func(c *index.Change) { c.BlockSize, c.Hashes = 32, []index.Hash{1, 2, 3, 4} }))
		t.apply(podB, by8)
		match("a", "b")
		if len(asked) != 2 || asked[variant] != 1 || asked[index.Variant{Unit: 8}] != 1 {
			t.Errorf("Keys was called for %v", asked)
		}
		match("a")
		if len(asked) != 1 || asked[variant] != 1 {
			t.Errorf("pod a alone: Keys was called for %v", asked)
		}
	}},
	{"ManyHolders", func(t *tester) {
		const pods = 9000
		c, d := newChain(1, 2), newChain(2, 40)
		for n := range pods {
			src := index.Source{Pod: fmt.Sprint(n), Model: "m"}
			t.apply(src, c.store(0, 1+n%2))
			if n%100 == 0 {
				t.apply(src, d.store(0, 33+n%200/100))
			}
		}
		count := [41]int{}
		for _, of := range []chain{c, d} {
			for _, r := range t.match(of, nil, false) {
				count[r.Run]++
			}
		}
		if count[1] != pods/2 || count[2] != pods/2 || count[33] != pods/200 || count[34] != pods/200 {
			t.Errorf("pods by run: %v", count)
		}
		for n := range pods {
			if n%3 > 0 {
				t.remove(fmt.Sprint(n))
			}
		}
		if n := len(t.match(c, nil, false)); n != (pods+2)/3 {
			t.Errorf("%d pods are left", n)
		}
	}},
	{"ModelsNeverMix", func(t *tester) {
		c := newChain(1, 4)
		t.apply(index.Source{Pod: "a", Model: "other"}, c.store(0, 4))
		t.want(podA, c, 0)
		t.apply(podA, c.store(0, 2))
		t.apply(index.Source{Pod: "a", Model: "other"}, clearAll)
		t.want(podA, c, 2)
	}},
	{"CopiesExact", func(t *tester) {
		c := newChain(1, 2)
		t.apply(podA, c.store(0, 1), c.store(0, 1), c.store(0, 1))
		for range 2 {
			t.apply(podA, c.remove(0))
			t.want(podA, c, 1)
		}
		t.apply(podA, c.remove(0))
		t.want(podA, c, 0)
	}},
	{"CopiesSet", func(t *tester) {
		c := newChain(1, 1)
		set := with(c.store(0, 1), func(c *index.Change) { c.Copies = index.CopiesSet })
		t.apply(podA, set, set, c.remove(0))
		t.want(podA, c, 0)
	}},
	{"CopiesGuardedTakesARepeatFromTheRootForAReport", func(t *tester) {
		c := newChain(1, 3)
		t.apply(podA, guarded(c.store(0, 3)))
		if n := t.apply(podA, guarded(c.store(0, 3))); n.Reports != 3 {
			t.Errorf("counts %+v", n)
		}
		t.apply(podA, c.remove(2))
		t.want(podA, c, 2)
	}},
	{"AReportOfAGroupWithoutAllBlocksAddsWhatIsSure", func(t *tester) {
		c := newChain(1, 8)
		chunked := index.Group{ID: 2, Kind: index.GroupChunked, Window: 48} // three blocks
		mamba := index.Group{ID: 3, Kind: index.GroupMamba}
		other := index.Group{ID: 4, Kind: index.GroupOther}
		sure := func(name string, g index.Group, held uint64, changes ...index.Change) {
			t.remove("a")
			for _, ch := range changes {
				t.apply(podA, ch)
			}
			if got := t.gpuBits(podA, g.ID, c); got != held {
				t.Errorf("%s: blocks %b, want %b", name, got, held)
			}
		}
		for _, r := range []struct {
			group        index.Group
			blocks       int
			live, unsure uint64
		}{
			{window, 8, 0b11000000, 0b11000000}, {window, 1, 1, 1}, {index.Group{ID: 1, Kind: index.GroupWindow}, 8, 0, 0},
			{index.Group{ID: 1, Kind: index.GroupWindow, Window: 1}, 8, 0, 0},
			{chunked, 8, 0b11000000, 0b11000000}, {chunked, 6, 0, 0}, {chunked, 7, 0b1000000, 0b1000000},
			{index.Group{ID: 2, Kind: index.GroupChunked, Window: 40}, 7, 0, 0}, {index.Group{ID: 2, Kind: index.GroupChunked}, 8, 0, 0},
			{mamba, 8, 0b10000000, 0}, {other, 8, 0, 0},
		} {
			report := guarded(inGroup(r.group, c.store(0, r.blocks)))
			gone := inGroup(r.group, c.remove(0, 1, 2, 3, 4, 5, 6, 7))
			sure(fmt.Sprintf("live, %+v", r), r.group, r.live, guarded(c.store(0, 8)), report, report, gone, report)
			sure(fmt.Sprintf("partial, %+v", r), r.group, r.unsure, inPart(report))
		}
	}},
	{"ASparseStoreBehindANewPromptIsNoReport", func(t *tester) {
		c, d := newChain(1, 4), newChain(2, 1)
		chunked := index.Group{ID: 2, Kind: index.GroupChunked, Window: 32}
		small := index.Group{ID: 2, Kind: index.GroupWindow, Window: 1}
		early := index.Group{ID: 2, Kind: index.GroupFull}
		late := index.Group{ID: 1, Kind: index.GroupChunked, Window: 32}
		store := func(g index.Group) index.Change { return guarded(inGroup(g, c.store(0, 4))) }
		for _, r := range []struct {
			name  string
			group index.Group
			held  uint64
			steps [][]index.Change
		}{
			{"with its prompt", chunked, 0b1111, [][]index.Change{{store(full), store(chunked)}}},
			{"a report in the same batch", chunked, 0b1100, [][]index.Change{{store(full), store(chunked), store(full), store(chunked), inGroup(chunked, c.remove(0, 1))}}},
			{"in a later batch", chunked, 0, [][]index.Change{{store(full)}, {store(chunked)}}},
			{"in a group before the full one", late, 0b1111, [][]index.Change{{guarded(inGroup(early, d.store(0, 1)))}, {store(late), store(early)}}},
			{"a report in a group before the full one", late, 0, [][]index.Change{{store(early), store(late)}}},
			{"the full group lacks its end", late, 0b1111, [][]index.Change{{guarded(inGroup(early, c.store(0, 3)))}, {store(late)}}},
			{"a window of one token", small, 0, [][]index.Change{{store(full)}, {store(small)}}},
			{"a prompt before a clear", chunked, 0, [][]index.Change{{store(full), {Op: index.OpClear}, inTier(index.TierCPU, store(full)), store(chunked)}}},
		} {
			t.remove("a")
			for _, changes := range r.steps {
				t.apply(podA, changes...)
			}
			if got := t.gpuBits(podA, r.group.ID, c); got != r.held {
				t.Errorf("%s: blocks %b, want %b", r.name, got, r.held)
			}
		}
	}},
	{"APartOfABlockIsNoReport", func(t *tester) {
		c := newChain(1, 4)
		mamba := index.Group{ID: 1, Kind: index.GroupMamba}
		part := guarded(inGroup(mamba, c.store(0, 1)))
		t.apply(podA, guarded(inGroup(mamba, c.double(0, 2))), part, part, inGroup(mamba, c.remove(0)))
		if got := t.match(c, nil, true); !slices.ContainsFunc(got, func(r index.Row) bool { return r.BlockSize == size && r.Run == 1 }) {
			t.Errorf("rows %+v", got)
		}
	}},
	{"AHitInsideABlockReportsOneMore", func(t *tester) {
		// Blocks of two units. Behind the first the engine has a part of the next.
		mamba := index.Group{ID: 1, Kind: index.GroupMamba}
		c := newChain(1, 8)
		known := []index.Change{guarded(c.double(0, 1)), guarded(inGroup(mamba, c.double(0, 1))), guarded(c.store(2, 3))}
		masked := guarded(inGroup(mamba, c.double(0, 2)))
		masked.Hashes = masked.Hashes[1:]
		another := guarded(inGroup(mamba, c.fork(3, 1, 9).double(0, 2)))
		another.Hashes = another.Hashes[1:]
		for _, r := range []struct {
			name  string
			run   int32
			apply []index.Change
		}{
			{"a report", 1, []index.Change{guarded(c.double(0, 2))}},
			{"a child shows that it was a store", 3, []index.Change{guarded(c.double(0, 2)), guarded(c.double(2, 3))}},
			{"a masked store shows that it was a store", 2, []index.Change{guarded(c.double(0, 2)), masked}},
			{"two more blocks", 3, []index.Change{guarded(c.double(0, 3))}},
			{"a masked store of another prompt", 1, []index.Change{guarded(c.double(0, 2)), another}},
			{"a masked store of a later batch", 1, []index.Change{guarded(c.double(0, 2)), {}, masked}},
			{"a masked store that does not assign its media to blocks", 1, []index.Change{guarded(c.double(0, 2)), with(masked, func(c *index.Change) { c.UncertainLocals = true })}},
		} {
			t.remove("a")
			t.apply(podA, known...)
			for rest := r.apply; len(rest) > 0; { // a batch ends with a change of nothing
				n := slices.IndexFunc(rest, func(c index.Change) bool { return c.Op == 0 })
				if n < 0 {
					n = len(rest)
				}
				t.apply(podA, rest[:n]...)
				rest = rest[min(n+1, len(rest)):]
			}
			if got := t.rowOf(podA, 0, 2*size, c); got.Run != r.run {
				t.Errorf("%s: row %+v", r.name, got)
			}
		}
		// Without a Mamba group no hit ends there.
		t.remove("a")
		t.apply(podA, guarded(c.double(0, 1)), guarded(c.store(2, 3)), guarded(c.double(0, 2)))
		if got := t.rowOf(podA, 0, 2*size, c); got.Run != 2 {
			t.Errorf("full groups alone: row %+v", got)
		}
		// In a view without its beginning it is unknown whether there are parts.
		state := inPart(inGroup(mamba, c.store(0, 1)))
		for _, batches := range [][][]index.Change{{{state}, {inPart(c.store(0, 2))}}, {{inPart(c.store(0, 2)), state}}} {
			t.remove("a")
			for _, changes := range batches {
				t.apply(podA, changes...)
			}
			if r := t.row(podA, 0, c); r.Run != 1 {
				t.Errorf("partial: row %+v", r)
			}
		}
		// The last block of a report is not hidden if the same hash is held by then.
		twice := inPart(c.store(0, 3))
		twice.Hashes = []index.Hash{twice.Hashes[0], twice.Hashes[1], twice.Hashes[0]}
		t.remove("a")
		if n := t.apply(podA, state, twice, c.remove(0)); n.UnknownRemove != 0 {
			t.Errorf("counts %+v", n)
		}
	}},
	{"AMaskedStoreFollowsFromABoundary", func(t *tester) {
		for _, batch := range [][]index.Change{{masked(window, masks, 3, 4, 7, 8), blocks64(masks)}, {blocks64(masks), masked(window, masks, 3, 4, 7, 8)}} {
			t.remove("a")
			t.apply(podA, batch...)
			t.wantMasked(window, masks, 3, 4, 7, 8)
			t.apply(podA, inGroup(window, masks.remove(2, 7)))
			t.wantMasked(window, masks, 4, 7)
		}
	}},
	{"AMaskedStoreFollowsFromABoundaryThatIsNamedLater", func(t *tester) {
		t.apply(podA, masked(window, masks, 3, 4, 7, 8))
		t.apply(podA, inGroup(window, masks.remove(6)))
		t.wantMasked(window, masks)
		t.apply(podA, blocks64(masks))
		t.wantMasked(window, masks, 3, 4, 8)
	}},
	{"WhatIsNotPlacedIsCounted", func(t *tester) {
		d, ok := t.ix.(index.Describer)
		if !ok {
			t.Skip("no index.Describer")
		}
		want := func(n int) {
			t.Helper()
			if infos := d.Describe(nil); len(infos) != 1 || infos[0].Unplaced != n {
				t.Errorf("%+v, want %d unplaced hashes", infos, n)
			}
		}
		twice := with(masked(window, masks, 7, 8), func(c *index.Change) { c.Group.ID = 2 })
		t.apply(podA, masked(window, masks, 3, 4, 7, 8), twice)
		want(4)
		t.apply(podA, inGroup(window, masks.remove(2, 6)))
		want(3) // the other group holds one of them
		t.apply(podA, newChain(2, 6).store(3, 6))
		want(6) // a parked store has hashes, too
		t.apply(podA, blocks64(masks))
		want(3)
		t.apply(podA, newChain(2, 6).store(0, 3))
		want(0)
	}},
	{"AChildOfWhatFollowsIsJoined", func(t *tester) {
		d := masks.fork(3, 2, 9)
		t.apply(podA, inGroup(index.Group{ID: 3}, d.store(3, 5)), masked(window, masks, 3, 4))
		n := t.apply(podA, blocks64(masks))
		if r := t.match(d, nil, true); n.Joined != 1 || !slices.ContainsFunc(r, func(r index.Row) bool {
			return r.Group.ID == 3 && r.Held[index.TierGPU][0] == 0b11000
		}) {
			t.Errorf("counts %+v, rows %+v", n, r)
		}
	}},
	{"OnlyAsFarAsTheRunGoes", func(t *tester) {
		t.apply(podA, blocks64(masks), masked(window, masks, 2, 3, 4, 6, 7, 8))
		t.wantMasked(window, masks, 3, 4, 7, 8)
	}},
	{"ARunIsWhole", func(t *tester) {
		// The window needs three blocks. Fewer of the second run are listed.
		three := index.Group{ID: 1, Kind: index.GroupWindow, Window: 34}
		t.apply(podA, blocks64(masks), masked(three, masks, 3, 4, 7, 8))
		t.wantMasked(three, masks, 3, 4, 8)
	}},
	{"ABlockBeforeTheStoreIsInNoRun", func(t *tester) {
		t.apply(podA, blocks64(masks), with(masked(window, masks, 1, 8), func(c *index.Change) { c.Hashes[0] = 5 }))
		t.wantMasked(window, masks, 7, 8)
	}},
	{"NothingFollowsWithoutAWindow", func(t *tester) {
		for _, g := range []index.Group{{ID: 1, Kind: index.GroupWindow}, {ID: 1, Kind: index.GroupMamba, Window: 32}, {ID: 1, Window: 32}} {
			t.remove("a")
			t.apply(podA, blocks64(masks), masked(g, masks, 3, 4))
			t.wantMasked(g, masks, 4)
		}
	}},
	{"NothingFollowsFromABlockThatIsNoLarger", func(t *tester) {
		t.apply(podA, masks.store(0, 4), masked(window, masks, 5, 6, 4+3, 8), masked(index.Group{ID: 2, Kind: index.GroupWindow, Window: 32}, masks, 3, 4))
		t.wantMasked(window, masks)
		t.wantMasked(index.Group{ID: 2}, masks, 3, 4) // which are named
		one := inGroup(index.Group{ID: 3}, masks.store(4, 8))
		one.Hashes = slices.Clone(one.Hashes)
		one.Hashes[0], one.Hashes[1], one.Hashes[2] = 1, 2, 3
		t.apply(podA, one) // names block 8, and no other
		t.wantMasked(window, masks, 8)
	}},
	{"WhatIsBetweenFollowsIfNoBlockIsLeftOut", func(t *tester) {
		// Blocks 3 and 6 are named by groups whose blocks are no larger.
		named := func(b int) index.Change {
			ch := inGroup(index.Group{ID: 3}, masks.store(0, b))
			ch.Hashes = slices.Clone(ch.Hashes)
			for i := range b - 1 {
				ch.Hashes[i] = index.Hash(100*b + i)
			}
			return ch
		}
		t.apply(podA, named(3), named(6), masked(window, masks, 3, 4, 5, 6), masked(index.Group{ID: 2, Kind: index.GroupWindow, Window: 32}, masks, 3, 4, 6))
		t.wantMasked(window, masks, 3, 4, 5, 6)
	}},
	{"TheBlockBehindABoundaryOfADraftGroup", func(t *tester) {
		t.apply(podA, blocks64(masks), masked(draftWindow, masks, 3, 4, 5, 7, 8, 9))
		t.wantMasked(draftWindow, masks, 3, 4, 5, 7, 8, 9)
	}},
	{"NoBlockBehindABoundaryWithoutDraft", func(t *tester) {
		t.apply(podA, blocks64(masks), masked(window, masks, 3, 4, 5, 7, 8, 9))
		t.wantMasked(window, masks, 3, 4, 7, 8)
	}},
	{"UncertainTokensPlaceNothing", func(t *tester) {
		t.apply(podA, blocks64(masks), with(masked(draftWindow, masks, 3, 4, 5, 7, 8, 9), func(c *index.Change) { c.UncertainLocals = true }))
		t.wantMasked(draftWindow, masks, 3, 4, 7, 8)
	}},
	{"ADraftGroupsStoreMayBeginBehindABoundary", func(t *tester) {
		// Behind block 4, which is a boundary, and behind block 5, which is none.
		t.apply(podA, blocks64(masks), maskedFrom(4, draftWindow, masks, 5, 7, 8, 9))
		t.wantMasked(draftWindow, masks, 5, 7, 8, 9)
		t.remove("a")
		t.apply(podA, blocks64(masks), masks.store(0, 5), with(maskedFrom(5, draftWindow, masks, 6, 7, 8, 9), func(c *index.Change) { c.Hashes[0] = 5 }))
		t.wantMasked(draftWindow, masks, 7, 8, 9)
	}},
	{"OneHashIsBehindABoundaryWhereAStoreBegins", func(t *tester) {
		t.apply(podA, blocks64(masks), maskedFrom(4, draftWindow, masks, 5))
		t.wantMasked(draftWindow, masks, 5)
		t.remove("a")
		t.apply(podA, maskedFrom(4, draftWindow, masks, 5), blocks64(masks))
		t.wantMasked(draftWindow, masks, 5)
		t.remove("a")
		short := index.Group{ID: 1, Kind: index.GroupWindow, Window: 17, Draft: true} // a run is one block
		t.apply(podA, blocks64(masks.fork(4, 8, 1)), maskedFrom(4, short, masks, 8))
		t.wantMasked(short, masks)
	}},
	{"ADraftGroupsStoreWaitsForItsParent", func(t *tester) {
		d := masks.fork(4, 8, 1)
		t.apply(podA, maskedFrom(4, draftWindow, d, 5))
		t.wantMasked(draftWindow, d)
		t.apply(podA, blocks64(masks))
		t.wantMasked(draftWindow, d, 5)
	}},
	{"ABoundaryInTheMiddleOfARun", func(t *tester) {
		// Blocks of 32 tokens end at blocks 10 and 12 of a run of three. The run before
		// that has its draft block at 7.
		three := index.Group{ID: 1, Kind: index.GroupWindow, Window: 49, Draft: true}
		c := newChain(1, 14)
		t.apply(podA, inBlocksOf(32, c), masked(three, c, 4, 5, 6, 7, 10, 11, 12, 13))
		t.wantMasked(three, c, 4, 5, 6, 7, 10, 11, 12, 13)
	}},
	{"ARunThatGoesOnBehindTheStore", func(t *tester) {
		// The store ends with the draft block of boundary 8, in the middle of the run of
		// boundary 12. Block 5 is the draft block of boundary 4.
		six := index.Group{ID: 1, Kind: index.GroupWindow, Window: 97, Draft: true}
		c := newChain(1, 14)
		t.apply(podA, inBlocksOf(64, c), maskedFrom(4, six, c, 5, 7, 8, 9))
		t.wantMasked(six, c, 7, 8, 9)
	}},
	{"WhatFollowsHasTheScopeOfItsBoundary", func(t *tester) {
		// A masked store does not name the salt of a first block that it leaves out.
		salted := masks
		salted.root++
		ch := masked(window, salted, 3, 4)
		ch.Root = masks.root
		t.apply(podA, blocks64(salted), ch)
		t.wantMasked(window, masks)
		t.wantMasked(window, salted, 3, 4)
	}},
	{"NothingFollowsFromAnAmbiguousHash", func(t *tester) {
		other := masks
		other.root++
		t.apply(podA, blocks64(masks), blocks64(other), masked(window, masks, 3, 4, 7, 8))
		t.wantMasked(window, masks, 4, 8) // the boundaries are held, by both of their keys
	}},
	{"AHashThatWasRemovedDoesNotFollow", func(t *tester) {
		t.apply(podA, masked(window, masks, 3, 4, 7, 8))
		t.apply(podA, inGroup(window, masks.remove(6)), bare(index.TierGPU, inGroup(window, masks.store(6, 7))))
		t.apply(podA, blocks64(masks))
		t.wantMasked(window, masks, 3, 4, 8)
	}},
	{"WhatAnotherGroupRemovedFollows", func(t *tester) {
		other := index.Group{ID: 2, Kind: index.GroupWindow, Window: 32}
		t.apply(podA, masked(window, masks, 3, 4, 7, 8), masked(other, masks, 7, 8))
		t.apply(podA, inGroup(other, masks.remove(6)))
		t.apply(podA, blocks64(masks))
		t.wantMasked(window, masks, 3, 4, 7, 8)
	}},
	{"NothingFollowsFromHashesThatContradictEachOther", func(t *tester) {
		crowded := masked(window, masks, 4, 1, 2, 3, 5, 8)
		turned := masked(window, masks, 3, 8, 4)
		for _, ch := range []index.Change{crowded, turned} {
			t.remove("a")
			t.apply(podA, ch, blocks64(masks))
			t.wantMasked(window, masks, 4, 8)
		}
	}},
	{"RunsThatMeet", func(t *tester) {
		three := index.Group{ID: 1, Kind: index.GroupWindow, Window: 40, Draft: true}
		t.apply(podA, blocks64(masks), masks.store(8, 12), masked(three, masks, 6, 7, 8, 9, 10, 11, 12))
		t.wantMasked(three, masks, 6, 7, 8, 9, 10, 11, 12)
	}},
	{"ADraftBlockThatIsKnown", func(t *tester) {
		c := newChain(1, 14)
		four := index.Group{ID: 1, Kind: index.GroupWindow, Window: 65, Draft: true}
		t.apply(podA, inBlocksOf(32, c), c.store(6, 7), c.store(12, 13), maskedFrom(7, four, c, 9, 10, 11, 12, 13))
		t.wantMasked(four, c, 9, 10, 11, 12, 13)
	}},
	{"NothingFollowsFromLargerBlocksOfTheGroup", func(t *tester) {
		t.apply(podA, inGroup(window, blocks64(masks)), masked(window, masks, 3, 4))
		t.wantMasked(window, masks)
		other := index.Group{ID: 2, Kind: index.GroupWindow, Window: 32}
		t.apply(podA, masked(other, masks, 3, 4))
		t.wantMasked(other, masks, 3, 4)
	}},
	{"NothingFollowsFromADraftBlock", func(t *tester) {
		c := newChain(1, 4).fork(4, 6, 1)
		t.apply(podA, blocks64(newChain(1, 4)), c.store(4, 5), maskedFrom(4, draftWindow, c, 5, 7, 8, 9))
		t.wantMasked(draftWindow, c, 5)
	}},
	{"APartOfABlockCountsAtItsOwnBoundaryUntilItIsRemoved", func(t *tester) {
		mamba := index.Group{ID: 1, Kind: index.GroupMamba}
		part := inGroup(mamba, masks.store(5, 6))
		t.apply(podA, masks.store(0, 8), inGroup(mamba, blocks64(masks)), part)
		t.wantMasked(mamba, masks, 6)
		t.apply(podA, inGroup(mamba, masks.remove(5)))
		t.wantMasked(mamba, masks)
	}},
	{"APartOfABlockInALowerTier", func(t *tester) {
		mamba := index.Group{ID: 1, Kind: index.GroupMamba}
		part, whole := inGroup(mamba, masks.store(4, 5)), inGroup(mamba, blocks64(masks))
		cpu := func(i int) index.Change { return bare(index.TierCPU, inGroup(mamba, masks.store(i, i+1))) }
		t.apply(podA, masks.store(0, 8), whole, part, cpu(7), cpu(4), inGroup(mamba, masks.remove(4, 7)))
		seen := func(step string, blocks, parts uint64) {
			t.Helper()
			var got [2]uint64
			for _, row := range t.match(masks, nil, true) {
				if row.Group.ID == 1 && row.Held[index.TierCPU] != nil {
					got[map[bool]int{true: 0, false: 1}[row.BlockSize == 64]] = row.Held[index.TierCPU][0]
				}
			}
			if got != [2]uint64{blocks, parts} {
				t.Errorf("%s: blocks %b, parts %b", step, got[0], got[1])
			}
		}
		seen("stored", 0b10, 0b10000)
		t.apply(podA, inTier(index.TierCPU, inGroup(mamba, masks.remove(4))))
		seen("removed", 0b10, 0)
	}},
	{"PartsInALowerTierNameTheirHashes", func(t *tester) {
		parts := func(sure bool) index.Change {
			return with(inTier(index.TierCPU, masks.store(4, 6)), func(c *index.Change) { c.UncertainLocals = !sure })
		}
		for i, want := range []int{0, 1} { // the block behind them is parked until they are named
			t.apply(podA, inGroup(index.Group{}, blocks64(masks)), parts(i == 1), masks.store(6, 7))
			parked := 0
			for _, row := range t.match(masks, nil, true) {
				if row.BlockSize == size && row.Held[index.TierGPU] != nil {
					parked += bits.OnesCount64(row.Held[index.TierGPU][0])
				}
			}
			if parked != want {
				t.Errorf("certain %v: %d parts are held behind the parts of the lower tier, want %d", i == 1, parked, want)
			}
		}
	}},
	{"AfterAnAmbiguousRemovalNoReportIsCounted", func(t *tester) {
		c, d := newChain(1, 2), newChain(2, 2)
		d.hashes = c.hashes
		t.apply(podA, guarded(d.store(0, 1)), guarded(c.store(0, 2)), c.remove(0), guarded(c.store(0, 2)), c.remove(1))
		t.want(podA, c, 1)
		e := newChain(3, 4) // nor a store of a window
		t.apply(podA, guarded(inGroup(window, e.store(0, 4))))
		if got := t.gpuBits(podA, 1, e); got != 0b1100 {
			t.Errorf("blocks %b", got)
		}
	}},
	{"TheLastTierOfRunsOfAnyLength", func(t *tester) {
		for n := 1; n <= 70; n++ {
			c := newChain(uint64(n), n)
			t.apply(podA, c.store(0, n), bare(index.TierCPU, c.store(n-1, n)), c.remove(n-1))
			if r := t.row(podA, 0, c); int(r.Run) != n || int(r.GPU) != n-1 {
				t.Errorf("%d blocks: row %+v", n, r)
			}
		}
	}},
	{"LowerTiersAreSets", func(t *tester) {
		c := newChain(1, 1)
		cpu := bare(index.TierCPU, c.store(0, 1))
		t.apply(podA, c.store(0, 1), cpu, cpu, c.remove(0), inTier(index.TierCPU, c.remove(0)))
		t.want(podA, c, 0)
	}},
	{"ABlockGoesWithTheThirdGenerationAfterItsOwn", func(t *tester) {
		c := newChain(1, 4)
		cpu := func(from, to int) index.Change { return bare(index.TierCPU, c.store(from, to)) }
		disk := bare(index.TierDisk, c.store(0, 4))
		mamba := index.Group{ID: 1, Kind: index.GroupMamba}
		age := index.Change{Op: index.OpAge, Tier: index.TierCPU}
		t.apply(podA, age, c.store(0, 4), cpu(0, 4), disk, inGroup(mamba, c.store(0, 4)), inGroup(mamba, cpu(0, 4)))
		for i, step := range []struct {
			changes    []index.Change
			cpu, mamba uint64
		}{
			{[]index.Change{age, age}, 0b1111, 0b1111},
			{[]index.Change{cpu(0, 1), cpu(0, 1)}, 0b1111, 0b1111},
			{[]index.Change{age, inGroup(mamba, cpu(1, 2))}, 0b0001, 0b0010},
			{[]index.Change{age}, 0b0001, 0b0010},
			{[]index.Change{cpu(2, 3), inTier(index.TierCPU, c.remove(0)), age}, 0b0100, 0b0010},
			{[]index.Change{age, age}, 0, 0},
			{[]index.Change{cpu(0, 4), age, age, age, cpu(1, 2)}, 0b0010, 0},
			{[]index.Change{age, {Op: index.OpClearTier, Tier: index.TierCPU}, cpu(3, 4), age, age}, 0b1000, 0},
			{[]index.Change{age, age, age}, 0, 0},
		} {
			t.apply(podA, step.changes...)
			for _, r := range t.match(c, nil, true) {
				want, gone := step.cpu, uint64(0)
				if r.Group == mamba {
					want = step.mamba
				} else if r.Held[index.TierDisk][0] != 0b1111 {
					t.Errorf("step %d: the disk holds %b", i, r.Held[index.TierDisk])
				}
				if of := r.Held[index.TierCPU]; of != nil {
					gone = of[0]
				}
				if gone != want || r.GPU != 4 {
					t.Errorf("step %d: group %d: the cpu holds %b, want %b: %s", i, r.Group.ID, gone, want, rowText(r))
				}
			}
		}
	}},
	{"AChunkOfALowerTierIsOneBlock", func(t *tester) {
		c := newChain(1, 8)
		t.apply(podA, inTier(index.TierCPU, c.store(0, 4)), inTier(index.TierCPU, c.store(4, 8)))
		if rows := t.match(c, nil, true); len(rows) != 0 {
			t.Fatalf("a tier alone gave names: %+v", rows)
		}
		t.apply(podA, c.store(0, 8))
		for b := range 8 {
			t.apply(podA, c.remove(b))
		}
		rows := t.match(c, nil, false)
		if len(rows) != 1 || rows[0].BlockSize != 4*size || rows[0].Run != 2 {
			t.Fatalf("rows %+v", rows)
		}
		// Blocks inside a chunk are none.
		if got := t.apply(podA, inTier(index.TierCPU, c.remove(1)), inTier(index.TierCPU, c.remove(6))); got.UnknownRemove != 2 {
			t.Errorf("%+v", got)
		}
		t.apply(podA, inTier(index.TierCPU, c.remove(7)))
		if rows = t.match(c, nil, false); rows[0].Run != 1 {
			t.Errorf("rows %+v", rows)
		}
	}},
	{"ABareStoreInALowerTierIsOfBlocks", func(t *tester) {
		c := newChain(1, 8)
		t.apply(podA, c.store(0, 8), bare(index.TierCPU, c.store(0, 4)), bare(index.TierDisk, c.store(4, 8)))
		for b := range 8 {
			t.apply(podA, c.remove(b))
		}
		t.apply(podA, inTier(index.TierDisk, c.remove(6))) // one of them
		if r := t.row(podA, 0, c); r.BlockSize != size || r.Run != 6 || r.GPU != 0 || r.Tiers[index.TierCPU] != 4 {
			t.Errorf("row %+v", r)
		}
	}},
	{"BlocksOfOneSizeInTwoVariants", func(t *tester) {
		c := newChain(1, 8)
		by8 := with(c.store(0, 4), func(c *index.Change) { c.Variant.Unit, c.BlockSize, c.Root = 8, 8, 5 })
		long := with(c.store(0, 8), func(c *index.Change) { c.BlockSize, c.Hashes = 32, []index.Hash{11, 12, 13, 14} })
		t.apply(podA, by8, inTier(index.TierCPU, by8), long)
		var runs [index.NumTiers]int32
		rows := t.query(index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(v index.Variant) ([]index.Key, error) {
			if v == variant {
				return c.keys(v)
			}
			return chain{root: 5, locals: c.locals}.keys(variant)
		}})
		for _, r := range rows {
			if r.BlockSize == 32 {
				for tier, n := range r.Tiers {
					runs[tier] += n
				}
			}
		}
		if runs != [index.NumTiers]int32{index.TierGPU: 4, index.TierCPU: 1} {
			t.Errorf("rows %+v", rows)
		}
	}},
	{"AParkedStoreNeverLandsAtTheWrongDepth", func(t *tester) {
		c := newChain(1, 4)
		t.apply(podA, c.store(2, 4))
		wrong := chain{c.root, c.locals[2:], c.hashes[2:]}
		t.want(podA, wrong, 0)
		t.apply(podA, clearAll, c.store(0, 2))
		t.want(podA, c, 2)
	}},
	{"ALongChainOfOrphans", func(t *tester) {
		c := newChain(1, 5000)
		for i := 4999; i > 0; i-- {
			t.apply(podA, c.store(i, i+1))
		}
		t.apply(podA, c.store(0, 1))
		t.want(podA, c, 5000)
	}},
	{"AmbiguousHashes", func(t *tester) {
		c, d := newChain(1, 3), newChain(2, 3)
		d.hashes = slices.Clone(c.hashes)
		if n := t.apply(podA, c.store(0, 1), d.store(0, 1)); n.Ambiguous != 1 {
			t.Errorf("counts %+v", n)
		}
		t.want(podA, c, 1)
		t.want(podA, d, 1)
		t.apply(podA, c.store(1, 2)) // of which of the two?
		t.want(podA, c, 1)
		t.want(podA, d, 1)
		t.apply(podA, c.remove(0))
		t.want(podA, c, 0)
		t.want(podA, d, 0)
	}},
	{"AHashUsedAnewAfterItsBlockHasGone", func(t *tester) {
		c, d := newChain(1, 2), newChain(2, 2)
		d.hashes = c.hashes
		t.apply(podA, c.store(0, 1), c.remove(0), d.store(0, 2))
		t.want(podA, c, 0)
		t.want(podA, d, 2)
	}},
	{"RemoveSourceForgetsASource", func(t *tester) {
		x, ok := t.ix.(index.SourceRemover)
		if !ok {
			t.Log("no index.SourceRemover")
			return
		}
		c := newChain(1, 4)
		rank1 := index.Source{Pod: "a", Model: "m", Rank: 1}
		other := index.Source{Pod: "a", Model: "other"}
		cursor := index.Cursor{Stream: "s", Next: 9}
		for _, src := range []index.Source{podA, rank1, other, podB} {
			if _, err := t.ix.Apply(ctx, src, cursor, []index.Change{c.store(0, 4)}); err != nil {
				t.Fatal(err)
			}
		}
		t.want(podA, c, 4) // a backend may remember where it found what
		for _, src := range []index.Source{podA, podA, {Pod: "a", Model: "none"}, {Pod: "none", Model: "m"}, {Pod: "b", Model: "m", Rank: 1}} {
			if err := x.RemoveSource(ctx, src); err != nil {
				t.Fatal(err)
			}
		}
		t.want(podA, c, 0)
		t.want(rank1, c, 4)
		t.want(podB, c, 4)
		for src, want := range map[index.Source]index.Cursor{podA: {}, rank1: cursor, other: cursor} {
			if got, err := t.ix.Cursor(ctx, src, "s"); err != nil || got != want {
				t.Errorf("%v: cursor %+v, %v, want %+v", src, got, err, want)
			}
			d, ok := t.ix.(index.Describer)
			if !ok {
				continue
			}
			if info, ok := d.DescribeSource(src); ok != (want != index.Cursor{}) || ok && (info.Source != src || info.Blocks != [index.NumTiers]int{4}) {
				t.Errorf("%+v, %v", info, ok)
			}
		}
		t.apply(podA, c.store(1, 2))
		t.want(podA, c, 0) // its names have gone too
		t.apply(podA, c.store(0, 1))
		t.want(podA, c, 2)
		for _, src := range []index.Source{podA, rank1} {
			if err := x.RemoveSource(ctx, src); err != nil {
				t.Fatal(err)
			}
		}
		if rows := t.match(c, nil, false); len(rows) != 1 || rows[0].Source != podB {
			t.Errorf("rows %+v", rows)
		}
	}},
	{"CursorsMakeRepeatsANoOp", func(t *tester) {
		c := newChain(1, 4)
		at := func(stream string, epoch, next uint64, ch index.Change) index.Effect {
			t.Helper()
			done, err := t.ix.Apply(ctx, podA, index.Cursor{Stream: stream, Epoch: epoch, Next: next, Time: float64(next) / 2, Digest: ^next}, []index.Change{ch})
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		if got := at("s", 0, 5, c.store(0, 1)); got.Duplicate {
			t.Errorf("first: %+v", got)
		}
		for _, next := range []uint64{5, 4, 1} {
			if got := at("s", 0, next, c.remove(0)); !got.Duplicate {
				t.Errorf("again at %d: %+v", next, got)
			}
		}
		t.want(podA, c, 1)
		if got := at("other", 0, 1, c.store(1, 2)); got.Duplicate {
			t.Errorf("another stream: %+v", got)
		}
		if got := at("s", 1, 1, c.store(2, 3)); got.Duplicate {
			t.Errorf("a later epoch: %+v", got)
		}
		if got := at("s", 0, 9, c.remove(0)); !got.Duplicate {
			t.Errorf("an earlier epoch: %+v", got)
		}
		t.want(podA, c, 3)
		if err := t.ix.Remove(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if got := at("s", 0, 1, c.store(0, 1)); got.Duplicate {
			t.Errorf("after Remove: %+v", got)
		}
	}},
	{"AStoreAfterTheLargestRemaining", func(t *tester) {
		c := newChain(1, 1)
		left := func(n uint32) index.Change {
			return with(c.remove(0), func(ch *index.Change) { ch.Remaining = []uint32{n} })
		}
		t.apply(podA, c.store(0, 1), left(math.MaxUint32), c.store(0, 1))
		t.want(podA, c, 1)
		t.apply(podA, left(0))
		t.want(podA, c, 0)
	}},
	{"WhichOfTwoNamesIsHiddenIsNotGuessed", func(t *tester) {
		for _, src := range []index.Source{podA, podB} {
			c := newChain(1, 4)
			d := chain{c.root, c.locals, []index.Hash{91, 92, 93, 94}} // as hidden salts make them
			t.apply(src, guarded(c.store(0, 3)), guarded(c.store(0, 3)), guarded(d.store(0, 3)), guarded(d.store(0, 3)))
			t.apply(src, c.remove(2, 1, 0), d.remove(2, 1, 0))
			if src == podB {
				c = d
			}
			t.apply(src, guarded(c.store(3, 4))) // proves that blocks of c are there, not of d
			t.apply(src, c.remove(3, 2, 1, 0))
			t.want(src, c, 0)
		}
	}},
	{"CursorIsTheStoredOne", func(t *tester) {
		c := newChain(1, 4)
		want := func(src index.Source, stream string, want index.Cursor) {
			t.Helper()
			if got, err := t.ix.Cursor(ctx, src, stream); err != nil || got != want {
				t.Errorf("%v, stream %q: %+v, %v, want %+v", src, stream, got, err, want)
			}
		}
		t.apply(podB, c.store(0, 1))
		want(podA, "s", index.Cursor{})
		if d, ok := t.ix.(index.Describer); ok {
			if known := d.Describe(nil); len(known) != 1 {
				t.Errorf("asking for a cursor made %+v", known)
			}
		}
		first := index.Cursor{Stream: "s", Epoch: 1, Next: 7, Time: 3.5, Digest: math.MaxUint64}
		for _, cur := range []index.Cursor{
			first, {Stream: "s", Epoch: 1, Next: 6, Time: 9, Digest: 8}, {Stream: "s", Epoch: 1, Next: 7, Time: 9, Digest: 8}, {Stream: "other", Next: 2},
		} {
			if _, err := t.ix.Apply(ctx, podA, cur, []index.Change{c.store(0, 1)}); err != nil {
				t.Fatal(err)
			}
		}
		want(podA, "s", first)
		want(podA, "other", index.Cursor{Stream: "other", Next: 2})
		want(podA, "third", index.Cursor{})
		want(podB, "s", index.Cursor{})
		want(index.Source{Pod: "a", Model: "m", Rank: 1}, "s", index.Cursor{})
		t.apply(podA, index.Change{Op: index.OpClear})
		want(podA, "s", first)
		next := index.Cursor{Stream: "s", Epoch: 1, Next: 8, Digest: 1} // its time is not known
		if _, err := t.ix.Apply(ctx, podA, next, nil); err != nil {
			t.Error(err)
		}
		want(podA, "s", next)
		t.remove("a")
		want(podA, "s", index.Cursor{})
	}},
	{"AnErrorOfKeysEndsMatch", func(t *tester) {
		c := newChain(1, 4)
		t.apply(podA, c.store(0, 4))
		none := errors.New("no keys")
		q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return nil, none }}
		var m index.Matches
		if err := t.ix.Match(ctx, &q, &m); !errors.Is(err, none) || len(m.Rows) > 0 {
			t.Errorf("%v, rows %+v", err, m.Rows)
		}
		t.want(podA, c, 4)
	}},
	{"MemosOfOthers", func(t *tester) {
		c := newChain(1, 4)
		t.apply(podA, c.store(0, 4))
		of := index.NewCandidates("m", []string{"a"})
		of.SetMemo("of another backend")
		m := index.Matches{Memo: "of another backend"}
		for range 2 {
			if err := t.ix.Match(ctx, &index.Query{Candidates: of, Keys: c.keys}, &m); err != nil || len(m.Rows) != 1 || m.Rows[0].Run != 4 {
				t.Errorf("%v, rows %+v", err, m.Rows)
			}
		}
	}},
	{"AnInvalidChangeAppliesNothing", func(t *tester) {
		c := newChain(1, 4)
		good := c.store(0, 4)
		for name, bad := range map[string]index.Change{
			"op":        {Op: 9},
			"tier":      inTier(index.NumTiers, good),
			"group":     inGroup(index.Group{ID: -1}, good),
			"big group": inGroup(index.Group{ID: index.MaxGroups}, good),
			"unit":      with(good, func(c *index.Change) { c.Variant.Unit = 0 }),
			"size":      with(good, func(c *index.Change) { c.BlockSize = -16 }),
			"ragged":    with(good, func(c *index.Change) { c.BlockSize = 48 }),
			"hashes":    with(good, func(c *index.Change) { c.Locals = c.Locals[:2] }),
			"huge block": with(good, func(c *index.Change) {
				c.BlockSize, c.Hashes, c.Locals = 16*(index.MaxBlockUnits+1), c.Hashes[:1], make([]index.Local, index.MaxBlockUnits+1)
			}),
			"huge unit": with(good, func(c *index.Change) { // 20 units of it are 4, in 64 bits
				c.Variant.Unit, c.BlockSize, c.Locals = math.MaxInt/8+1, math.MaxInt/8+1, make([]index.Local, 20)
			}),
			"window":     inGroup(index.Group{Kind: index.GroupWindow, Window: -1}, good),
			"copies":     with(good, func(c *index.Change) { c.Copies = 9 }),
			"remaining":  with(c.remove(0, 1), func(c *index.Change) { c.Remaining = []uint32{1} }),
			"gone group": inGroup(index.Group{ID: 1 << 30}, c.remove(0)),
			"age":        {Op: index.OpAge},
			"age tier":   {Op: index.OpAge, Tier: index.NumTiers},
		} {
			_, err := t.ix.Apply(ctx, podA, index.Cursor{Stream: "s", Next: 1}, []index.Change{good, bad})
			if !errors.Is(err, index.ErrInvalid) {
				t.Errorf("%s: error %v", name, err)
			}
			t.want(podA, c, 0)
		}
		if done, err := t.ix.Apply(ctx, podA, index.Cursor{Stream: "s", Next: 1}, []index.Change{good}); err != nil || done.Duplicate {
			t.Errorf("the cursor moved: %+v, %v", done, err)
		}
	}},
	{"ApplyKeepsNoSlice", func(t *tester) {
		c := newChain(1, 6)
		orphan, head := c.store(3, 6), c.store(0, 3)
		for _, ch := range []*index.Change{&orphan, &head} {
			ch.Hashes, ch.Locals = slices.Clone(ch.Hashes), slices.Clone(ch.Locals)
			t.apply(podA, *ch)
			clear(ch.Hashes)
			clear(ch.Locals)
		}
		t.want(podA, c, 6)
	}},
	{"DegenerateKeys", func(t *tester) {
		c := newChain(0, 5) // root 0, and all hashes and locals zero or one
		for i := range c.locals {
			c.locals[i], c.hashes[i] = 0, index.Hash(i)
		}
		c.hashes[4] = ^index.Hash(0)
		t.apply(podA, c.store(0, 5))
		t.want(podA, c, 5)
		t.apply(podA, c.remove(4, 0))
		t.want(podA, c, 0)
		t.apply(podA, c.store(0, 1))
		t.want(podA, c, 4)
	}},
	{"OneMatchesForManyQueries", func(t *tester) {
		c := newChain(1, 130)
		t.apply(podA, c.store(0, 130))
		t.apply(podB, c.store(0, 65))
		var m index.Matches
		for i, c := range []chain{c, c.fork(3, 127, 9), c} {
			q := index.Query{Candidates: index.NewCandidates("m", nil), Keys: c.keys, Held: true}
			if err := t.ix.Match(ctx, &q, &m); err != nil || len(m.Rows) != 2 {
				t.Fatalf("%v, %v", m.Rows, err)
			}
			for _, r := range m.Rows {
				n := 0
				for b := range 130 {
					n += int(r.Held[index.TierGPU][b/64] >> (b % 64) & 1)
				}
				want := map[index.Source]int{podA: 130, podB: 65}[r.Source]
				if i == 1 {
					want = 3
				}
				if n != want || int(r.Run) != want {
					t.Errorf("%d bits and a run of %d, want %d", n, r.Run, want)
				}
			}
		}
	}},
	{"ATraceOfABlock", func(t *tester) { testTrace(t) }},
	{"SeedIsStable", func(t *tester) {
		if a, b := t.ix.Seed(), t.ix.Seed(); a != b || a == ([16]byte{}) {
			t.Errorf("seeds %x, %x", a, b)
		}
	}},
}

func testPendingBound(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{PendingBytes: 64 << 10})
	defer ix.Close()
	tt := &tester{T: t, ix: ix}
	c := newChain(1, 4000)
	var total index.Counts
	for i := 1; i < 4000; i++ {
		total.Add(tt.apply(podA, c.store(i, i+1)))
	}
	if total.Parked != 3999 || total.Dropped == 0 {
		t.Fatalf("counts %+v", total)
	}
	// The oldest went, so the head finds no child; the newest stayed.
	tt.apply(podA, c.store(0, 1))
	tt.want(podA, c, 1)
	joined := tt.apply(podA, c.store(1, 3995)).Joined
	if joined == 0 || joined > 64<<10/256 {
		t.Errorf("joined %d", joined)
	}
	tt.want(podA, c, 4000)

	// Blocks that are known by hash alone are bounded too, and the bound takes none
	// that has a name.
	d := newChain(2, 4000)
	total = index.Counts{}
	for i := range 4000 {
		total.Add(tt.apply(podA, bare(index.TierCPU, d.store(i, i+1))))
	}
	if total.Dropped < 3000 {
		t.Errorf("counts %+v", total)
	}
	tt.want(podA, c, 4000)
	tt.apply(podA, d.store(0, 4000), d.remove(0))
	tt.want(podA, d, 0)
}

// A block that was forgotten at a bound may be there: then a report is not
// taken for a store, even if it names a block that is not known any more.
func testForgottenThenReported(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{IdleNames: 4})
	defer ix.Close()
	tt := &tester{T: t, ix: ix}
	c := newChain(1, 2)
	tt.apply(podA, guarded(c.store(0, 2)), guarded(c.store(0, 1)), c.remove(0)) // a copy of block 0 stays
	for i := range uint64(5) {
		d := newChain(10+i, 1)
		tt.apply(podA, guarded(d.store(0, 1)), d.remove(0))
	}
	tt.apply(podA, guarded(c.store(0, 2)), c.remove(1))
	tt.want(podA, c, 1)
}

// testForgottenAndHidden: one of two names of a prefix is hidden and then forgotten
// at the bound, the other one is hidden later. A child proves that the prefix is
// there, and not by which name.
func testForgottenAndHidden(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{IdleNames: 2})
	defer ix.Close()
	it := &tester{T: t, ix: ix}
	c := newChain(1, 3)
	d := chain{c.root, c.locals, []index.Hash{91}}
	others := []chain{newChain(8, 1), newChain(9, 1)}
	it.apply(podA, guarded(c.store(0, 2)), guarded(c.store(0, 2)), others[0].store(0, 1), others[1].store(0, 1))
	it.apply(podA, c.remove(0), c.remove(1), guarded(d.store(0, 1))) // the engine has another copy of both
	it.apply(podA, others[0].remove(0))                              // c's first block is forgotten
	it.apply(podA, others[0].store(0, 1), guarded(d.store(0, 1)), d.remove(0))
	it.apply(podA, guarded(c.store(2, 3)))
	it.apply(podA, c.remove(2), c.remove(1), c.remove(0))
	it.want(podA, c, 0)
}

func testNamesBound(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{IdleNames: 10})
	defer ix.Close()
	tt := &tester{T: t, ix: ix}
	c, d := newChain(1, 30), newChain(2, 30)
	tt.apply(podA, c.store(0, 30), d.store(0, 10))
	total := tt.apply(podA, d.remove(9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
	if total.Forgotten != 0 {
		t.Fatalf("counts %+v", total)
	}
	tt.apply(podA, d.store(10, 11))
	tt.apply(podA, d.store(0, 10))
	tt.want(podA, d, 11) // chained from a name without holders
	total = tt.apply(podA, d.remove(10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
	if total.Forgotten != 1 {
		t.Errorf("counts %+v", total)
	}
	tt.want(podA, c, 30) // held names are not touched
	if n := tt.apply(podA, d.store(11, 12)); n.Parked != 1 {
		t.Errorf("counts %+v", n)
	}
}

// block is a block of c.
func (c chain) block(n int) inmemory.Block {
	keys, _ := c.keys(variant)
	return inmemory.Block{Variant: variant, Size: size, Number: n, Key: keys[n], Locals: c.locals}
}

// testTrace is for the backends of this module.
func testTrace(t *tester) {
	x, ok := t.ix.(inmemory.Explainer)
	if !ok {
		t.Skip("no inmemory.Explainer")
	}
	c := newChain(1, 6)
	other := c.fork(3, 3, 9)
	want := func(src index.Source, b inmemory.Block, want trace.Trace) {
		t.Helper()
		if got, err := x.Explain(ctx, src, b); err != nil || got != want {
			t.Errorf("block %d: %+v, %v, want %+v", b.Number, got, err, want)
		}
	}
	none := trace.Trace{}
	want(podA, c.block(0), none)
	t.apply(podB, c.store(0, 6), c.remove(5))
	t.apply(podA, c.store(0, 3), c.remove(2))
	want(podA, c.block(1), none) // it is held
	want(podA, c.block(2), trace.Trace{Gone: trace.GoneRemoved})
	want(podA, c.block(3), none) // another pod has it
	t.apply(podA, c.store(2, 3), bare(index.TierCPU, c.store(2, 3)), c.remove(2))
	want(podA, c.block(2), none) // a lower tier has it
	t.apply(podA, index.Change{Op: index.OpClearTier, Tier: index.TierCPU})
	want(podA, c.block(2), trace.Trace{Gone: trace.GoneRemoved})
	want(podA, c.block(1), none)

	t.apply(podA, clearAll)
	for n := range 3 {
		want(podA, c.block(n), trace.Trace{Gone: trace.GoneCleared})
	}
	t.apply(podA, c.store(0, 1), c.remove(0))
	want(podA, c.block(0), trace.Trace{Gone: trace.GoneRemoved})
	want(podA, c.block(1), trace.Trace{Gone: trace.GoneCleared})
	t.apply(podA, guarded(c.store(0, 1)), guarded(c.store(0, 1)), c.remove(0))
	want(podA, c.block(0), trace.Trace{Gone: trace.GoneHidden})

	// Stores that wait, from block 4 on: the parent was never named.
	t.apply(podA, c.store(4, 5), c.store(5, 6), other.store(5, 6))
	want(podA, c.block(3), trace.Trace{Parked: 2, ParkedAt: 4})
	want(podA, c.block(4), trace.Trace{Parked: 2, ParkedAt: 4})
	want(podA, c.block(5), trace.Trace{Parked: 1, ParkedAt: 5})
	want(podA, other.block(3), trace.Trace{Parked: 1, ParkedAt: 5})
	want(podA, newChain(2, 6).block(0), none)
	longer := c.fork(5, 3, 8)
	want(podA, longer.block(3), trace.Trace{Parked: 1, ParkedAt: 4})
	third := index.Source{Pod: "a", Model: "m", Rank: 1}
	t.apply(third, c.store(4, 6))
	want(third, c.block(3), trace.Trace{Parked: 1, ParkedAt: 4})
	want(third, longer.block(3), none) // it begins alike
	t.apply(podA, c.remove(5))
	want(podA, c.block(5), none)
	want(podA, c.block(3), trace.Trace{Parked: 1, ParkedAt: 4})
	sizes := c.block(0)
	sizes.Size = 2 * size
	want(podA, sizes, trace.Trace{Gone: trace.GoneHidden})
	sizes.Key = 0
	want(podA, sizes, none)

	// Hashes of which neither the prefix nor the tokens are known.
	fresh := index.Source{Pod: "b", Model: "m", Rank: 1}
	t.apply(fresh, masked(window, masks, 7, 8), bare(index.TierCPU, masks.store(7, 9)))
	want(fresh, c.block(0), trace.Trace{Unplaced: 3})
	want(fresh, sizes, trace.Trace{Unplaced: 2}) // no store has named the size of those in the cpu tier
	t.apply(fresh, newChain(3, 1).store(0, 1))
	want(fresh, sizes, none)
	t.apply(fresh, blocks64(masks))
	want(fresh, c.block(0), trace.Trace{Unplaced: 1})
	t.apply(fresh, index.Change{Op: index.OpClearTier, Tier: index.TierCPU})
	want(fresh, c.block(0), none)

	sizes.Size = size + 1
	if _, err := x.Explain(ctx, podA, sizes); !errors.Is(err, index.ErrInvalid) {
		t.Errorf("a block of %d tokens: %v", sizes.Size, err)
	}
	if _, err := x.Explain(ctx, podA, inmemory.Block{Variant: variant, Size: size, Number: -1}); !errors.Is(err, index.ErrInvalid) {
		t.Errorf("block -1: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := x.Explain(cancelled, podA, c.block(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
	t.ix.Close()
	if _, err := x.Explain(ctx, podA, c.block(0)); !errors.Is(err, index.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func testClose(t *testing.T, open func(testing.TB, Config) index.Index) {
	ix := open(t, Config{})
	for range 2 {
		if err := ix.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c := newChain(1, 1)
	_, err := ix.Apply(ctx, podA, index.Cursor{}, []index.Change{c.store(0, 1)})
	_, errCursor := ix.Cursor(ctx, podA, "s")
	for name, err := range map[string]error{
		"Apply":  err,
		"Cursor": errCursor,
		"Match":  ix.Match(ctx, &index.Query{Candidates: index.NewCandidates("m", nil), Keys: c.keys}, new(index.Matches)),
		"Remove": ix.Remove(ctx, "a"),
	} {
		if !errors.Is(err, index.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	open2 := open(t, Config{})
	defer open2.Close()
	tt := &tester{T: t, ix: open2}
	tt.apply(podA, c.store(0, 1))
	_, err = open2.Apply(cancelled, podA, index.Cursor{}, []index.Change{clearAll})
	_, errCursor = open2.Cursor(cancelled, podA, "s")
	for name, err := range map[string]error{
		"Apply":  err,
		"Cursor": errCursor,
		"Match":  open2.Match(cancelled, &index.Query{Candidates: index.NewCandidates("m", nil), Keys: c.keys}, new(index.Matches)),
		"Remove": open2.Remove(cancelled, "a"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s of a cancelled context: %v", name, err)
		}
	}
	tt.want(podA, c, 1)
	if of, ok := open2.(index.SourceRemover); ok {
		if err := of.RemoveSource(cancelled, podA); !errors.Is(err, context.Canceled) {
			t.Errorf("RemoveSource of a cancelled context: %v", err)
		}
		if err := ix.(index.SourceRemover).RemoveSource(ctx, podA); !errors.Is(err, index.ErrClosed) {
			t.Errorf("RemoveSource: %v", err)
		}
	}
	if err := open2.Match(ctx, &index.Query{Keys: c.keys}, new(index.Matches)); !errors.Is(err, index.ErrInvalid) {
		t.Errorf("Match without candidates: %v", err)
	}
}
