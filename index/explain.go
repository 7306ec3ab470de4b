package index

import (
	"context"
	"fmt"

	"github.com/kvindex/kvindex/internal/trace"
)

// block is a block of a prompt.
type block trace.Block[Variant, Key, Local]

// Explain returns the traces of a block in a source. It changes nothing. A source that does
// not exist has no traces. A block whose Size is not a multiple of its unit is an error that
// wraps ErrInvalid. Explain reads all idle names of the source (up to 65,536) and all of its
// stores that wait, which takes some milliseconds at the most. Only an Apply of this source
// waits meanwhile.
func (m *memory) Explain(ctx context.Context, src Source, of trace.Block[Variant, Key, Local]) (trace.Trace, error) {
	if m.closed.Load() {
		return trace.Trace{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return trace.Trace{}, err
	}
	if err := of.Check(of.Variant.Unit); err != nil {
		return trace.Trace{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	b := block(of)
	md := (*m.models.Load())[src.Model]
	if md == nil {
		return trace.Trace{}, nil
	}
	s := md.source(src)
	if s == nil {
		return trace.Trace{}, nil
	}
	at := b.starts()
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.removed.Load() { // the places of its names may be reused
		return trace.Trace{}, nil
	}
	t := trace.Trace{Gone: b.gone(s)}
	by := cut{b.Variant, b.Size}
	unplaced := make(map[Hash]bool)
	for p := s.waits.oldest; p != nil; p = p.newer {
		switch {
		case !p.parked:
			b.addUnplaced(unplaced, s, p)
		case p.cut == by && !p.isVoid(0):
			t.Note(b.find(p.locals, at))
		}
	}
	t.Unplaced = len(unplaced)
	return t, nil
}

// addUnplaced adds the hashes of a store that have no key and may be blocks of a cut.
func (b *block) addUnplaced(to map[Hash]bool, s *source, p *waitingStore) {
	by := cut{b.Variant, b.Size}
	for _, hash := range p.hashes {
		n := s.seen(hash)
		if h := n.holding(p.group, p.tier); n.unplaced() && h.copies > 0 {
			if of := p.group.cutOf(h.lane); of == by || of == (cut{}) {
				to[hash] = true
			}
		}
	}
}

// gone returns how the block went. It needs no lock of the ground: a slab that a name refers
// to stays, and its keys do not change.
func (b *block) gone(s *source) (g trace.Gone) {
	var buf [2]loc
	for i := s.idle.first; i != 0; i = s.idle.at(i).next {
		idle := s.idle.at(i)
		n := s.seen(idle.hash)
		for _, l := range n.locs(&buf) {
			if Key(s.f.Key(l)) != b.Key {
				continue
			}
			how := trace.GoneCleared
			if now := s.f.Now(); now-idle.since <= now-s.cleared {
				how = trace.GoneRemoved
			}
			if n.isRich() && n.isHiddenExcept(0) {
				how = trace.GoneHidden
			}
			g = max(g, how)
		}
	}
	return g
}

// maxStarts bounds the places of a prompt that are compared with a parked store.
const maxStarts = 16

// starts are the blocks of the prompt from b on, by their first local: a few of each.
func (b *block) starts() map[Local][]int {
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

// find returns the first block of the prompt, from b on, at which the prompt continues with
// locals, as far as both go; or -1.
func (b *block) find(locals []Local, starts map[Local][]int) int {
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
