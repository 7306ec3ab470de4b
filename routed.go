package kvindex

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// keptPrompt is what an answer keeps for Routed: the keys of the prompt, so that nothing is
// hashed twice. Its memory goes back to the next score of the answer.
type keptPrompt struct {
	x    *Indexer
	turn atomic.Uint64 // raised by each use: a score, and Routed
	set  *candidateSet
	// tokens is the length of the prompt.
	tokens   int
	runs     []prompt.Run
	keys     []index.Key
	excluded []int32 // candidates for which the chat is not scorable
}

// keepFor hands the keys of the prompt to the answer, for Routed.
func (sc *scorer) keepFor(dst *Answer) {
	k := dst.sent
	if k == nil {
		if k, _ = sc.x.prompted.Get().(*keptPrompt); k == nil {
			k = new(keptPrompt)
		}
		dst.sent = k
	}
	k.x, k.set, k.tokens = sc.x, sc.set, sc.prompt.Length
	sc.prompt.Swap(&k.runs, &k.keys)
	k.excluded = k.excluded[:0]
	if sc.rendering != nil {
		for pod := range sc.rendering.Excluded() {
			if at, ok := slices.BinarySearch(sc.set.names, pod); ok {
				k.excluded = append(k.excluded, int32(at))
			}
		}
	}
	dst.turn = k.turn.Load()
}

// routed is Routed of an Indexer that is open.
func (x *Indexer) routed(a *Answer, pod string, rank int) (Ticket, error) {
	if a == nil || a.sent == nil || a.sent.x != x {
		return Ticket{}, fmt.Errorf("%w: the answer is none of this Indexer's", ErrNotAsked)
	}
	k := a.sent
	if k.turn.Load() != a.turn {
		return Ticket{}, ErrAnswerUsed
	}
	at, ok := slices.BinarySearch(k.set.names, pod)
	switch {
	case !ok:
		return Ticket{}, fmt.Errorf("%w: %.100q is none of %d", ErrNotAsked, pod, len(k.set.names))
	case rank < 0 || rank > math.MaxUint16: // no event names such a rank
		return Ticket{}, fmt.Errorf("%w: pod %.100q: there is no rank %d", ErrNotAsked, pod, rank)
	case slices.Contains(k.excluded, int32(at)):
		return Ticket{}, fmt.Errorf("kvindex: pod %.100q: %w", pod, chat.ErrNotScorable)
	}
	pm := x.servedBy(pod, k.set.base)
	if pm == nil {
		if err := x.refused(pod, k.set.base); err != nil {
			return Ticket{}, fmt.Errorf("%w: %.100q: %w", ErrBlockSize, pod, err)
		}
		if pm = x.sendTo(pod, k.set.base); pm == nil {
			return Ticket{}, fmt.Errorf("%w: %.100q was never heard, and %s", ErrBlockSize, pod, noneLent)
		}
	}
	sc := x.newScorer()
	defer sc.release()
	r := routing{sc: sc, k: k, pm: pm, source: index.Source{Pod: pod, Model: k.set.base, Rank: rank}}
	if err := r.look(); err != nil {
		return Ticket{}, err
	}
	if !k.turn.CompareAndSwap(a.turn, a.turn+1) {
		return Ticket{}, ErrAnswerUsed
	}
	return r.issue()
}

// servedBy returns what a pod serves of a model, nil if nothing is known of it.
func (x *Indexer) servedBy(pod, model string) *podModel {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if md := x.models[model]; md != nil {
		return md.served(pod)
	}
	return nil
}

// self returns pm as the only candidate.
func (pm *podModel) self(x *Indexer, pod, model string) *candidateSet {
	c := pm.alone.Load()
	if c == nil {
		c = &Candidates{x: x, model: model, base: true, pods: []string{pod}}
		pm.alone.Store(c)
	}
	return c.now()
}

// routing is one Routed on its way.
type routing struct {
	sc     *scorer
	k      *keptPrompt
	pm     *podModel
	source index.Source

	applied           uint64 // messages of the pod before the index was asked
	cached, predicted int
	view              *index.View // of the blocks that a prediction is in, but for its Source
	lent              bool        // they are those of other pods
	variant           index.Variant
	run               *prompt.Run
	last              index.Local
	whole             bool // all blocks are held
}

// noneLent says why no block size was taken from other pods.
const noneLent = "the other pods of the model (those with the same Profile.Media) have no block size, or different ones"

// look finds what the rank holds of the prompt, and in which blocks.
func (r *routing) look() error {
	r.sc.set = r.pm.self(r.sc.x, r.source.Pod, r.source.Model)
	r.sc.prompt.Use(r.k.runs, r.k.tokens)
	r.applied = r.pm.applied.Load()
	r.sc.query.Held = true
	ctx, cancel := r.sc.x.applying()
	defer cancel()
	if err := r.sc.match(ctx); err != nil {
		return err
	}
	r.sc.matches.Rows = slices.DeleteFunc(r.sc.matches.Rows, func(row index.Row) bool { return row.Source != r.source })
	if err := r.sc.foresee(ctx, r.source.Rank); err != nil {
		return err
	}
	r.sc.chooseRows()
	best := r.sc.best[0]
	r.cached, r.predicted = r.sc.forecast.provenOf(best), best.Cached
	var row *index.Row
	if best.Row > 0 && int(best.Row) <= r.sc.forecast.real {
		row = &r.sc.matches.Rows[best.Row-1]
		r.view = row.View
	} else if f := r.pm.form.Load(); f != nil {
		r.view = f
	} else {
		r.view, r.lent = r.sc.set.lent[r.pm.profile.Media], true
	}
	if r.view == nil {
		return fmt.Errorf("%w: %.100q has stored nothing, and %s", ErrBlockSize, r.source.Pod, noneLent)
	}
	var ok bool
	if r.variant, ok = engine.VariantOf(r.view.BlockSize, r.view.Pairs, r.pm.profile.Media); ok {
		r.run = prompt.RunIn(r.k.runs, r.variant)
	}
	if r.run == nil {
		return fmt.Errorf("%w: %.100q: its blocks of %d tokens came behind the score", ErrBlockSize, r.source.Pod, r.view.BlockSize)
	}
	r.findLast(row)
	return nil
}

// findLast finds the last whole block that is not held.
func (r *routing) findLast(row *index.Row) {
	units := r.view.BlockSize / r.variant.Unit
	b := len(r.run.Keys)/units - 1
	for ; b >= 0 && row != nil && isSet(row.Held[TierGPU], b); b-- {
	}
	if r.whole = b < 0; r.whole {
		return
	}
	at, before := (b+1)*units-1, r.run.Root
	if at > 0 {
		before = r.run.Keys[at-1]
	}
	r.last = unchain(before, r.run.Keys[at])
}

// unchain returns the local by which index.Chain makes next of prev.
func unchain(prev, next index.Key) (l index.Local) {
	// Bit i of the local and those below decide bit i of the product, and the bit alone
	// turns it over (see index.Chain).
	for bit := index.Local(1); bit != 0; bit <<= 1 {
		wrong := bits.RotateLeft64(uint64(index.Chain(prev, l)^next), 32)
		l |= index.Local(wrong) & bit
	}
	return l
}

func isSet(bits []uint64, i int) bool { return i/64 < len(bits) && bits[i/64]>>(i%64)&1 == 1 }

// issue makes the ticket and the prediction.
func (r *routing) issue() (Ticket, error) {
	l := r.sc.x.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.expire(now)
	if f := r.pm.form.Load(); f != nil && r.lent { // it has come since
		if !sameBlocks(f, r.view) {
			return Ticket{}, fmt.Errorf("%w: %.100q: its blocks came behind the score", ErrBlockSize, r.source.Pod)
		}
		r.lent = false
	}
	var h *holder
	if !r.pm.gone {
		h = l.holder(r.pm, r.source, r.view, r.variant)
	}
	if h == nil {
		return Ticket{}, fmt.Errorf("%w: %.100q was removed, or has more than %d ranks", ErrNotAsked, r.source.Pod, maxRanks)
	}
	h.lent = r.lent
	slot := l.issue(now, l.row(r.source.Model, r.pm.stateOf(r.source.Rank)))
	t := l.at(slot)
	t.prompt, t.cached, t.predicted = int32(r.sc.prompt.Length), int32(r.cached), int32(r.predicted)
	if a := r.pm.approx.Load(); a != nil {
		if e := a.of(h.view); e != nil {
			l.believed++
			t.believed = &estimatedPast{of: e, block: a.BlockTokens, past: e.cache.Sent(r.run.Keys, a.stride, now)}
		}
	}
	if r.whole {
		l.predictions.Confirmed++
	} else {
		l.predict(slot, h, r.run.Keys, r.last)
		if r.pm.applied.Load() != r.applied && t.h != nil { // its store may have come since
			h.suspect(t, slot)
		}
	}
	l.makeRoom()
	return Ticket{l, slot, t.serial}, nil
}

// suspect notes that a prediction may be complete. The next message of the pod has that
// looked at.
func (h *holder) suspect(t *ticket, slot uint32) {
	if !t.near {
		t.near = true
		h.near = append(h.near, slot)
	}
}

// noteApplied ends those predictions of a rank that changes have completed, or made void. The
// changes were applied. pod.mu is held.
func (in *ingest) noteApplied(r *rank, changes []index.Change, done *index.Applied) {
	l, pm := in.x.ledger, in.pm
	pm.applied.Add(1)
	if pm.predicted.Load() == 0 {
		return
	}
	for i := range changes {
		if ch := &changes[i]; ch.Op == index.OpClear || ch.Op == index.OpClearTier && ch.Tier == TierGPU {
			l.lose(pm, r.n, false)
			return
		}
	}
	c := &in.confirming
	c.suspects, c.keys = c.suspects[:0], c.keys[:0]
	l.mu.Lock()
	if h := pm.holderOf(r.n); h != nil && h.live > 0 {
		c.find(l, h, changes, done)
	}
	l.mu.Unlock()
	if len(c.suspects) > 0 {
		in.confirm()
	}
}

// holderOf returns the holder of a rank, nil if there is none. ledger.mu is held.
func (pm *podModel) holderOf(rank int) *holder {
	for _, h := range pm.holders {
		if h.view.Source.Rank == rank {
			return h
		}
	}
	return nil
}

// confirming is the look at predictions that a message may have completed.
type confirming struct {
	suspects []suspect
	keys     []index.Key   // of all suspects
	run      [1]prompt.Run // of the one that is looked at
}

// suspect is a prediction to look at.
type suspect struct {
	slot   uint32
	serial uint64
	view   *index.View

	variant  index.Variant
	from, to int // its part of keys
}

// find lists the predictions of a holder that changes may have completed. The clock is read
// only if there are some. ledger.mu is held.
func (c *confirming) find(l *ledger, h *holder, changes []index.Change, done *index.Applied) {
	odd := done.Counts.Joined+done.Counts.Restored > 0 // blocks that no store here has named
	for i := range changes {
		ch := &changes[i]
		if ch.Op != index.OpStore || ch.Tier != TierGPU {
			continue
		}
		units := ch.BlockSize / max(ch.Variant.Unit, 1)
		if units == 0 || len(ch.Locals) == 0 {
			odd = true
			continue
		}
		for at := units - 1; at < len(ch.Locals); at += units {
			last := ch.Locals[at]
			if h.few[last%fewOf] == 0 {
				continue
			}
			if first := h.byLast[last]; first != 0 {
				for slot := first; ; {
					t := l.at(slot)
					h.suspect(t, slot)
					if slot = t.alike[1]; slot == first {
						break
					}
				}
			}
		}
	}
	if len(h.near) == 0 && !odd {
		return
	}
	l.expire(l.now())
	h.near = slices.DeleteFunc(h.near, func(slot uint32) bool { return !l.at(slot).near || l.at(slot).h != h })
	if odd {
		for _, first := range h.byLast {
			for slot := first; ; {
				t := l.at(slot)
				if !t.near {
					c.add(l, h, slot)
				}
				if slot = t.alike[1]; slot == first {
					break
				}
			}
		}
	}
	for _, slot := range h.near {
		c.add(l, h, slot)
	}
}

// add copies what confirm needs of a prediction.
func (c *confirming) add(l *ledger, h *holder, slot uint32) {
	t, from := l.at(slot), len(c.keys)
	c.keys = l.tree.Keys(c.keys, t.path)
	c.suspects = append(c.suspects, suspect{slot, t.serial, h.view, h.variant, from, len(c.keys)})
}

// confirm asks the index about the suspects. No lock is held but that of pod.order.
func (in *ingest) confirm() {
	c, l, sc := &in.confirming, in.x.ledger, in.x.newScorer()
	defer sc.release()
	sc.set = in.pm.self(in.x, in.pod, in.model)
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	for i := range c.suspects {
		s := &c.suspects[i]
		c.run[0] = prompt.Run{Variant: s.variant, Keys: c.keys[s.from:s.to]}
		sc.prompt.Use(c.run[:], (s.to-s.from)*s.variant.Unit)
		if sc.match(ctx) != nil {
			return // the TTL ends them
		}
		if !sc.holdsAll(s) {
			continue
		}
		l.mu.Lock()
		if t := l.at(s.slot); t.serial == s.serial {
			l.end(s.slot, &l.predictions.Confirmed)
		}
		l.mu.Unlock()
	}
}

// holdsAll reports whether all whole blocks of a prompt are held in the gpu.
func (sc *scorer) holdsAll(s *suspect) bool {
	blocks := sc.prompt.Length / s.view.BlockSize
	return slices.ContainsFunc(sc.matches.Rows, func(r index.Row) bool {
		return r.Source == s.view.Source && r.Group.ID == s.view.Group.ID && r.BlockSize == s.view.BlockSize && int(r.GPU) >= blocks
	})
}
