// Sending: a routed prompt becomes a ticket and a prediction, and a message may end the prediction.

package predict

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/prompt"
)

// Sending is a prompt that is routed to a rank.
type Sending struct {
	Source index.Source
	State  string // of the rank, for stats.Observations

	// Tokens, Cached and Predicted are the length of the prompt and the figures of the rank.
	// Applied is the number of messages of the pod before the index was queried for these.
	Tokens, Cached, Predicted int
	Applied                   uint64

	View    *index.View // the blocks of the rank, without a Source
	Lent    bool        // the blocks are those of other pods
	Variant index.Variant
	keys    []index.Key
	last    index.Local // of the last block that is not held
	whole   bool        // all blocks are held
}

// Send makes a ticket and a prediction.
func (l *Ledger) Send(p *Pod, s *Sending) (Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.expire(now)
	if f := p.form.Load(); f != nil && s.Lent { // the pod has announced its blocks since
		if !sameBlocks(f, s.View) {
			return Ticket{}, fmt.Errorf("%w: %.100q announced its first blocks after the score", ErrBlockSize, s.Source.Pod)
		}
		s.Lent = false
	}
	var h *holder
	if !p.gone {
		h = l.holder(p, s.Source, s.View, s.Variant)
	}
	if h == nil {
		return Ticket{}, fmt.Errorf("%w: %.100q was removed, or has more than %d ranks", ErrNotInRequest, s.Source.Pod, engine.MaxRanks)
	}
	h.lent = s.Lent
	slot := l.issue(now, l.row(s.Source.Model, s.State))
	t := l.at(slot)
	t.prompt, t.cached, t.predicted = int32(s.Tokens), int32(s.Cached), int32(s.Predicted)
	if a := p.approx.Load(); a != nil {
		if e := a.of(h.view); e != nil {
			l.believed++
			t.believed = &estimatedPast{of: e, block: a.BlockTokens, past: e.cache.Sent(s.keys, a.stride, now)}
		}
	}
	if s.whole {
		l.predictions.confirmed++
	} else {
		l.predict(slot, h, s.keys, s.last)
		if p.applied.Load() != s.Applied && t.h != nil { // the last store may have come since
			if h.suspect(t, slot); len(h.near) > 2*h.live { // no message of the rank has cleared it
				l.forgetEnded(h)
			}
		}
	}
	l.makeRoom()
	return Ticket{l, slot, t.serial}, nil
}

// FindLast finds the last whole block that is not held.
func (s *Sending) FindLast(run *prompt.Run, row *index.Row) {
	s.keys = run.Keys
	units := s.View.BlockSize / s.Variant.Unit
	b := len(run.Keys)/units - 1
	for ; b >= 0 && row != nil && isSet(row.Held[index.TierGPU], b); b-- {
	}
	if s.whole = b < 0; s.whole {
		return
	}
	at, before := (b+1)*units-1, run.Root
	if at > 0 {
		before = run.Keys[at-1]
	}
	s.last = unchain(before, run.Keys[at])
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

// isSet reports whether bit i is set.
func isSet(bits []uint64, i int) bool { return i/64 < len(bits) && bits[i/64]>>(i%64)&1 == 1 }

// suspect notes that a prediction may be complete. The next message of the pod checks it.
func (h *holder) suspect(t *ticket, slot uint32) {
	if !t.near {
		t.near = true
		h.near = append(h.near, ticketName{slot, t.serial})
	}
}

// forgetEnded leaves in near only the suspects whose predictions live. mu is held.
func (l *Ledger) forgetEnded(h *holder) {
	h.near = slices.DeleteFunc(h.near, func(n ticketName) bool {
		t := l.at(n.slot)
		return !t.near || t.serial != n.serial
	})
}

// holderOf returns the holder of a rank, or nil. Ledger.mu is held.
func (p *Pod) holderOf(rank int) *holder {
	for _, h := range p.holders {
		if h.view.Source.Rank == rank {
			return h
		}
	}
	return nil
}

// Confirmation is the check of predictions that a message may have completed.
type Confirmation struct {
	Suspects []Suspect
	keys     []index.Key   // of all suspects
	run      [1]prompt.Run // of the suspect that is checked
}

// Suspect is a prediction to check.
type Suspect struct {
	slot   uint32
	serial uint64
	View   *index.View

	variant  index.Variant
	from, to int // its part of keys
}

// Find ends or finds the predictions of a rank to which changes were applied. It reports whether
// there are suspects to check.
func (c *Confirmation) Find(l *Ledger, p *Pod, rank int, changes []index.Change, done *index.Effect) bool {
	p.applied.Add(1)
	if p.predicted.Load() == 0 {
		return false
	}
	for i := range changes {
		if ch := &changes[i]; ch.Op == index.OpClear || ch.Op == index.OpClearTier && ch.Tier == index.TierGPU {
			l.Lose(p, rank, false)
			return false
		}
	}
	c.Suspects, c.keys = c.Suspects[:0], c.keys[:0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := p.holderOf(rank); h != nil && h.live > 0 {
		c.findOf(l, h, changes, done)
	}
	return len(c.Suspects) > 0
}

// Prompt returns the keys of a suspect, valid until the next call, and the tokens that they cover.
func (c *Confirmation) Prompt(s *Suspect) (runs []prompt.Run, tokens int) {
	c.run[0] = prompt.Run{Variant: s.variant, Keys: c.keys[s.from:s.to]}
	return c.run[:], (s.to - s.from) * s.variant.Unit
}

// Holds reports whether a row holds all whole blocks of the prompt, of so many tokens, in the gpu.
func (s *Suspect) Holds(rows []index.Row, tokens int) bool {
	blocks := tokens / s.View.BlockSize
	return slices.ContainsFunc(rows, func(r index.Row) bool {
		return r.Source == s.View.Source && r.Group.ID == s.View.Group.ID && r.BlockSize == s.View.BlockSize && int(r.GPU) >= blocks
	})
}

// Confirm ends a prediction whose blocks are all held, if it still lives.
func (l *Ledger) Confirm(s *Suspect) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.at(s.slot); t.serial == s.serial {
		l.end(s.slot, &l.predictions.confirmed)
	}
}

// findOf finds the predictions of a holder that changes may have completed. It reads the clock
// only if there are any. Ledger.mu is held.
func (c *Confirmation) findOf(l *Ledger, h *holder, changes []index.Change, done *index.Effect) {
	odd := done.Counts.Joined+done.Counts.Restored > 0 // blocks that no store of this batch names
	for i := range changes {
		ch := &changes[i]
		if ch.Op != index.OpStore || ch.Tier != index.TierGPU {
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
	l.forgetEnded(h)
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
	for _, n := range h.near {
		c.add(l, h, n.slot)
	}
}

// add adds a prediction to the suspects.
func (c *Confirmation) add(l *Ledger, h *holder, slot uint32) {
	t, from := l.at(slot), len(c.keys)
	c.keys = l.tree.Keys(c.keys, t.path)
	c.Suspects = append(c.Suspects, Suspect{slot, t.serial, h.view, h.variant, from, len(c.keys)})
}
