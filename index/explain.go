package index

import (
	"context"
	"fmt"
)

// Explainer is an optional ability of an Index: it says what is known of a block that
// no row counts. It is for people who ask why, not for routing.
type Explainer interface {
	// Explain says what a source knows of a block. A source that is not there knows
	// nothing. It changes nothing. A block whose Size is not a multiple of its unit is
	// an error that wraps ErrInvalid.
	Explain(ctx context.Context, src Source, b Block) (Trace, error)
}

// Block is a block of a prompt.
type Block struct {
	Variant Variant
	Size    int     // tokens
	Number  int     // which one of the prompt it is, from 0 on
	Key     Key     // of the prefix that it ends
	Locals  []Local // of the whole prompt
}

// Trace is what a source knows of a block that it does not hold.
type Trace struct {
	// Gone says what became of the block if a name of it is kept that nobody of
	// the source holds anything by. Of several such names, the highest counts.
	Gone Gone
	// Parked is the number of stores that wait for their parent, and whose blocks
	// are those of the prompt, from block ParkedAt or a later one on, as far as both
	// go; those are not counted whose first block was removed since. ParkedAt is not
	// before the block. What comes before them may differ: it is not known.
	Parked, ParkedAt int
	// Unplaced is the number of hashes that the source holds in blocks of the same
	// variant and size, or of a size that is not known, and of which neither the prefix
	// nor the tokens are known. The block may be one of them.
	Unplaced int
}

// Gone is how a block went.
type Gone uint8

// The ways.
const (
	GoneNever   Gone = iota // no such name is kept
	GoneCleared             // by the last OpClear, or before that
	GoneRemoved             // since the last OpClear
	GoneHidden              // likewise, but a store of it was not counted: it may be there (CopiesGuarded)
)

var _ Explainer = (*Memory)(nil)

// Explain implements Explainer. It looks at all names of the source that nobody holds
// (MemoryConfig.IdleNames) and at all of its stores that wait, which takes some
// milliseconds at the most. An Apply of this source waits meanwhile, and nothing else.
func (m *Memory) Explain(ctx context.Context, src Source, b Block) (Trace, error) {
	if m.closed.Load() {
		return Trace{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Trace{}, err
	}
	if err := b.Validate(); err != nil {
		return Trace{}, err
	}
	md := (*m.models.Load())[src.Model]
	if md == nil {
		return Trace{}, nil
	}
	s := md.source(src)
	if s == nil {
		return Trace{}, nil
	}
	at := b.starts()
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.removed.Load() { // what its names refer to may be used again
		return Trace{}, nil
	}
	t := Trace{Gone: s.gone(b.Key)}
	by := cut{b.Variant, b.Size}
	unplaced := make(map[Hash]bool)
	for p := s.oldest; p != nil; p = p.newer {
		switch {
		case !p.parked:
			s.addUnplaced(unplaced, p, by)
		case p.cut == by && !p.isVoid(0):
			t.note(b.find(p.locals, at))
		}
	}
	t.Unplaced = len(unplaced)
	return t, nil
}

// addUnplaced adds the hashes of a store that have no key and may be blocks of a cut.
func (s *source) addUnplaced(to map[Hash]bool, p *pending, by cut) {
	for _, hash := range p.hashes {
		n := s.seen(hash)
		if h := n.holding(p.group, p.tier); n.unplaced() && h.copies > 0 {
			if of := p.group.cutOf(h.lane); of == by || of == (cut{}) {
				to[hash] = true
			}
		}
	}
}

// gone says how the block with a key went. The model's lock is not needed: a slab
// that a name refers to stays, and a key that is written stays what it is.
func (s *source) gone(k Key) (g Gone) {
	var buf [2]loc
	for i := s.idleFirst; i != 0; i = s.idle.at(i).next {
		idle := s.idle.at(i)
		n := s.seen(idle.hash)
		for _, l := range n.locs(&buf) {
			if Key(s.f.Key(l)) != k {
				continue
			}
			how := GoneCleared
			if int32(idle.since-s.cleared) >= 0 {
				how = GoneRemoved
			}
			if n.isRich() && n.isHiddenExcept(0) {
				how = GoneHidden
			}
			g = max(g, how)
		}
	}
	return g
}

// Validate reports what makes no sense in b, wrapping ErrInvalid. Each backend calls it
// first.
func (b *Block) Validate() error {
	if unit := b.Variant.Unit; b.Size <= 0 || unit <= 0 || b.Size%unit != 0 {
		return fmt.Errorf("%w: block size %d is not a multiple of unit %d", ErrInvalid, b.Size, unit)
	}
	if b.Number < 0 {
		return fmt.Errorf("%w: block %d", ErrInvalid, b.Number)
	}
	return nil
}

// maxStarts bounds at how many places of a prompt a parked store is looked for.
const maxStarts = 16

// starts are the blocks of the prompt from b on, by their first local: a few of each.
func (b *Block) starts() map[Local][]int {
	at := make(map[Local][]int)
	units := b.Size / b.Variant.Unit
	for i := b.Number; (i+1)*units <= len(b.Locals); i++ {
		l := b.Locals[i*units]
		if len(at[l]) < maxStarts {
			at[l] = append(at[l], i)
		}
	}
	return at
}

// find returns the first block of the prompt, from b on, from which on it goes on with
// locals, as far as both go; or -1.
func (b *Block) find(locals []Local, starts map[Local][]int) int {
	units := b.Size / b.Variant.Unit
next:
	for _, i := range starts[locals[0]] {
		for j, l := range b.Locals[i*units : min(len(b.Locals), i*units+len(locals))] {
			if l != locals[j] {
				continue next
			}
		}
		return i
	}
	return -1
}

// note counts a store that waits and begins at a block, if it is not -1.
func (t *Trace) note(at int) {
	if at < 0 {
		return
	}
	if t.Parked == 0 || at < t.ParkedAt {
		t.ParkedAt = at
	}
	t.Parked++
}
