package indextest

import (
	"slices"

	"github.com/kvindex/kvindex/index"
)

// forget has the backend forget chains of podA by storing other blocks. Matches use the chains of
// keep all the time.
func (t *tester) forget(keep []chain, chains ...chain) {
	t.Helper()
	f := &flood{ix: t.ix}
	for range 100 {
		if !slices.ContainsFunc(chains, func(c chain) bool { return len(t.match(c, nil, true)) > 0 }) {
			return
		}
		for range 16 { // a query is not to keep what is to be forgotten
			if err := f.pass(leastBound / 8); err != nil {
				t.Fatal(err)
			}
			for _, c := range keep {
				t.match(c, nil, true)
			}
		}
	}
	t.Fatal("a hundred times the bound was stored, and blocks that no Match has used are held")
}

// info returns the backend's description of podA.
func (t *tester) info() index.SourceInfo {
	t.Helper()
	info, ok := describe(t.ix, podA)
	if !ok {
		t.Skip("the backend describes no sources")
	}
	return info
}

// wantReported checks how many blocks of podA are reported as evicted, and Row.Evicted of
// a chain.
func (t *tester) wantReported(c chain, evicted uint64, row bool) {
	t.Helper()
	if got := t.row(podA, 0, c).Evicted; got != row {
		t.Errorf("Row.Evicted is %v, want %v", got, row)
	}
	if got := t.info().Evicted; got != evicted {
		t.Errorf("%d blocks are evicted, want %d", got, evicted)
	}
}

const long = 100 // blocks: more than what goes together

// boundCases are about blocks that were forgotten at a bound in bytes.
var boundCases = []testCase{
	{"ForgottenBlocksAreReported", func(t *tester) {
		c := newChain(1, long)
		t.apply(podA, c.store(0, long))
		t.wantReported(c, 0, false)
		t.forget(nil, c)
		if n := t.apply(podA, with(c.remove(), func(ch *index.Change) { ch.Hashes = c.hashes })); n.UnknownRemove != long {
			t.Errorf("counts %+v", n)
		}
		t.apply(podA, c.store(0, 10))
		t.wantReported(c, long, true)
		t.apply(podA, clearAll)
		t.apply(podA, c.store(0, 20))
		t.wantReported(c, 0, false)
		t.want(podA, c, 20)
	}},
	{"AfterForgettingNoReportIsCounted", func(t *tester) {
		c, d := newChain(1, long), newChain(2, 8)
		e := d.fork(8, 1, 3) // beside the known blocks it has one that may be forgotten
		t.apply(podA, guarded(c.store(0, long)), guarded(d.store(0, 8)))
		t.forget([]chain{d}, c)
		t.apply(podA, c.remove(0)) // then it is known that something was lost
		t.apply(podA, guarded(e.store(0, 9)), d.remove(3))
		if got := t.row(podA, 0, d).Run; got > 3 {
			t.Errorf("%d blocks, want 3: a store of held blocks was counted", got)
		}
		t.apply(podA, clearAll, guarded(d.store(0, 8)), guarded(e.store(0, 9)), d.remove(3))
		t.want(podA, e, 9) // the view is whole again
	}},
	{"AForgottenHiddenBlockDoesNotComeBack", func(t *tester) {
		c := newChain(1, long)
		gone := c.remove()
		gone.Hashes = c.hashes[:60]
		t.apply(podA, guarded(c.store(0, 60)), guarded(c.store(0, 60)), gone)
		t.forget(nil, c)
		if f := (&flood{ix: t.ix, next: 1 << 40}); f.pass(4*leastBound) != nil { // its eviction shows nowhere
			t.Fatal("full")
		}
		if n := t.apply(podA, guarded(c.store(60, long))); n.Restored > 0 {
			t.Errorf("counts %+v", n)
		}
		t.apply(podA, guarded(c.store(0, 1)), c.remove(0))
		t.want(podA, c, 0)
	}},
	{"ARestartAfterForgetting", func(t *tester) {
		c := newChain(1, long)
		cur := index.Cursor{Stream: "s", Epoch: 1, Next: 7}
		apply := func(changes ...index.Change) {
			if done, err := t.ix.Apply(ctx, podA, cur, changes); err != nil || done.Duplicate {
				t.Fatal(done, err)
			}
		}
		apply(c.store(0, long))
		t.forget(nil, c)
		if got, err := t.ix.Cursor(ctx, podA, "s"); got != cur || err != nil {
			t.Errorf("cursor %+v, %v", got, err) // it is kept
		}
		cur = index.Cursor{Stream: "s", Epoch: 2, Next: 1}
		apply(clearAll, c.store(0, 30))
		t.want(podA, c, 30)
		t.wantReported(c, 0, false)
	}},
	{"AMaskedStoreOfForgottenBlocks", func(t *tester) {
		t.apply(podA, blocks64(masks), masked(window, masks, 3, 4, 7, 8, 11, 12))
		t.wantMasked(window, masks, 3, 4, 7, 8, 11, 12)
		t.forget(nil, masks)
		n := t.apply(podA, masked(window, masks, 3, 4, 7, 8, 11, 12))
		t.wantMasked(window, masks)
		if n.Add(t.apply(podA, blocks64(masks))); n.Dropped > 0 { // waiting stores go first at a bound
			t.wantMasked(window, masks)
			return
		}
		t.wantMasked(window, masks, 3, 4, 7, 8, 11, 12)
	}},
	{"AForgottenHashOfTwoPrefixes", func(t *tester) {
		c, d := newChain(1, 1), newChain(2, 2)
		d.hashes[0] = c.hashes[0]
		t.apply(podA, c.store(0, 1), d.store(0, 1))
		for f := (&flood{ix: t.ix}); isBounded(t.ix) && t.info().Evicted == 0; t.match(d, nil, true) {
			if err := f.pass(1); err != nil {
				t.Fatal(err)
			}
		}
		t.apply(podA, d.store(1, 2)) // of which of them is it a child?
		for _, r := range t.match(d, nil, true) {
			if r.Held[index.TierGPU][0]&2 != 0 {
				t.Errorf("the child of a hash that named two prefixes is placed: %+v", r)
			}
		}
	}},
}
