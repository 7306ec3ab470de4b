package reuse

import "math/bits"

// row has the bits of blocks, or of partial entries, that all groups of a specification
// hold.
type row struct {
	words []uint64 // of the first group
	held  []Held   // of all groups, if there are more
	more  []int    // the other groups
	parts bool     // bits of partial entries
}

// row returns the blocks that all groups of s hold, or their partial entries.
func (s *spec) row(held []Held, parts bool) row {
	return row{words: wordsOf(held, s.first, parts), held: held, more: s.more, parts: parts}
}

func wordsOf(held []Held, group int, parts bool) []uint64 {
	switch {
	case group >= len(held):
		return nil
	case parts:
		return held[group].Parts
	}
	return held[group].Blocks
}

func (r *row) word(i int) uint64 {
	w := r.words[i]
	if len(r.more) > 0 {
		w = r.and(w, i)
	}
	return w
}

func (r *row) and(w uint64, i int) uint64 {
	for _, group := range r.more {
		words := wordsOf(r.held, group, r.parts)
		if i >= len(words) {
			return 0
		}
		w &= words[i]
	}
	return w
}

// within returns n, or the number of bits if that is smaller.
func (r *row) within(n int) int { return min(n, 64*len(r.words)) }

// run returns where the run of set bits ends that begins at bit from: the first
// bit that is not set, at most to.
func (r *row) run(from, to int) int {
	to = r.within(to)
	for i := from; i < to; i = (i | 63) + 1 {
		if gaps := ^r.word(i/64) >> (uint(i) % 64); gaps != 0 {
			return min(i+bits.TrailingZeros64(gaps), to)
		}
	}
	return max(from, to)
}

// last returns the place after the last set bit in [from, to); from: none is set.
func (r *row) last(from, to int) int {
	to = r.within(to)
	for to > from {
		if w := r.word((to-1)/64) << (uint(-to) % 64); w != 0 {
			return max(from, to-bits.LeadingZeros64(w))
		}
		to = (to - 1) &^ 63
	}
	return from
}

// window returns the last place up to to that stands past bits after a multiple
// of stride and has need set bits before it. If there is none, the run that begins
// at bit 0 counts up to its last place past bits after a multiple of stride:
// window returns the multiple.
func (r *row) window(to, need, stride, past int) int {
	// Each word is read once: first the run that continues from the word above it,
	// then the runs inside of it, then the run that continues below it. For a run that
	// continues, end is the last place in it where a window may end.
	end, goesOn := 0, false
	for to = r.within(to); to > 0; to = (to - 1) &^ 63 {
		base := (to - 1) &^ 63
		w := r.word(base/64) & (^uint64(0) >> (uint(-to) % 64))
		if goesOn {
			ones := bits.LeadingZeros64(^w)
			if end-(base+64-ones) >= need {
				return end
			}
			if ones == 64 {
				continue
			}
		}
		for ends := endsOf(w, need); ends != 0; {
			end = base + bits.Len64(ends)
			at := boundary(end, stride, past)
			if at == end {
				return end
			}
			ends &= 1<<max(at-base, 0) - 1
		}
		ones := bits.TrailingZeros64(^w)
		goesOn = ones > 0
		end = boundary(base+ones, stride, past)
	}
	return end - end%stride
}

// boundary returns the last place up to end that stands past bits after a
// multiple of stride.
func boundary(end, stride, past int) int {
	if stride == 1 {
		return end
	}
	return end - (end-past)%stride
}

// endsOf returns the bits of w at which need set bits end.
func endsOf(w uint64, need int) uint64 {
	if need > 64 {
		return 0
	}
	for n := 1; n < need && w != 0; {
		more := min(n, need-n)
		w &= w << more
		n += more
	}
	return w
}
