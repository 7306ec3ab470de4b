package kvindex

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/internal/sent"
)

// A score of ranks that prompts were sent to counts the beginning that these have in common
// with its own prompt as held in the gpu, in all groups. A rank that the index has no row of
// gets one that holds nothing. Where a beginning ends inside a row's blocks, held ones may
// follow behind it: then the index is asked once more, for bits.

// hit is a rank to which a beginning of the prompt was sent.
type hit struct {
	pod    int32 // the candidate
	view   *index.View
	tokens int // of the beginning, or pairs: whole blocks of the main group
	found  bool

	from, to int32 // the rows of scorer.behind that are about the rank
}

// noneHeld is Row.Held of a source that holds nothing of a prompt.
var noneHeld [index.NumTiers][]uint64

// foresee finds out to which ranks of the candidates beginnings of the prompt were sent; rank
// -1: all.
func (sc *scorer) foresee(ctx context.Context, rank int) error {
	sc.real = len(sc.matches.Rows)
	l := sc.x.ledger
	if l.live.Load() == 0 && !sc.set.approximate {
		return nil
	}
	now := l.now()
	if l.due.Load() <= now {
		l.mu.Lock()
		l.expire(now)
		l.mu.Unlock()
	}
	sc.findHits(rank, now)
	if len(sc.hits) == 0 {
		return nil
	}
	return sc.layHits(ctx)
}

// findHits fills sc.hits, in the order of candidates and ranks.
func (sc *scorer) findHits(rank int, now int64) {
	l := sc.x.ledger
	l.mu.RLock()
	defer l.mu.RUnlock()
	sc.sentTo = slices.Grow(sc.sentTo[:0], len(l.holders))[:len(l.holders)]
	clear(sc.sentTo)
	runs := sc.prompt.runs
	if sc.prompt.given != nil {
		runs = sc.prompt.given
	}
	sc.anySent = false
	for i := range runs {
		l.tree.Match(runs[i].keys, sc.note)
	}
	if !sc.anySent && !sc.set.approximate {
		return
	}
	sc.hitsOf = slices.Grow(sc.hitsOf[:0], len(sc.set.states)+1)
	for pod, pm := range sc.set.states {
		sc.hitsOf = append(sc.hitsOf, int32(len(sc.hits)))
		if pm == nil {
			continue
		}
		for _, h := range pm.holders {
			if h.lent && !sc.set.lent.has(h) {
				continue // the other pods do not have such blocks any more
			}
			if n := int(sc.sentTo[h.number]) * h.variant.Unit; n > 0 {
				sc.addHit(rank, int32(pod), h.view, n)
			}
		}
		if a := pm.approx.Load(); a != nil {
			if r := runOf(runs, a.variant); r != nil {
				for _, e := range a.ranks {
					sc.addHit(rank, int32(pod), e.view, e.cache.Run(r.keys, a.stride, now)*a.BlockTokens)
				}
			}
		}
	}
	sc.hitsOf = append(sc.hitsOf, int32(len(sc.hits)))
}

// addHit adds the whole blocks of so many tokens that were sent, if they are of the rank; -1:
// of any.
func (sc *scorer) addHit(rank int, pod int32, view *index.View, tokens int) {
	tokens -= tokens % view.BlockSize
	if tokens == 0 || rank >= 0 && view.Source.Rank != rank {
		return
	}
	at := len(sc.hits)
	for first := int(sc.hitsOf[pod]); at > first && sc.hits[at-1].view.Source.Rank >= view.Source.Rank; at-- {
		if of := &sc.hits[at-1]; of.view.Source.Rank == view.Source.Rank {
			of.tokens = max(of.tokens, tokens)
			return
		}
	}
	sc.hits = slices.Insert(sc.hits, at, hit{pod: pod, view: view, tokens: tokens})
}

// noteSent is found of sent.Tree.Match.
func (sc *scorer) noteSent(h sent.Holder, units int) {
	sc.sentTo[h], sc.anySent = int32(units), true
}

// layHits has rows know of the hits that are about them.
func (sc *scorer) layHits(ctx context.Context) error {
	for i := range sc.matches.Rows {
		sc.hitOf = append(sc.hitOf, 0)
		row := &sc.matches.Rows[i]
		if at := sc.hitAt(row); at >= 0 {
			main := sc.hits[at].view.Group // a row of another group alone says nothing (judge)
			sc.hits[at].found = sc.hits[at].found || main.Kind != GroupFull || row.Group.ID == main.ID
			sc.hitOf[i] = int32(at) + 1
		}
	}
	for i := range sc.hits {
		h := &sc.hits[i]
		if h.found {
			continue
		}
		n := len(sc.matches.Rows)
		sc.matches.Rows = slices.Grow(sc.matches.Rows, 1)[:n+1]
		row := &sc.matches.Rows[n]
		*row = index.Row{View: h.view, Pod: h.pod}
		if l := h.view.Layout; len(l.Groups) != 1 || l.Groups[0].Kind != GroupFull {
			row.Held = &noneHeld
		}
		sc.hitOf = append(sc.hitOf, int32(i)+1)
	}
	sc.proven = slices.Grow(sc.proven[:0], len(sc.matches.Rows))[:len(sc.matches.Rows)]
	clear(sc.proven)
	behind := math.MaxInt // the tokens that a beginning covers which may go on with held blocks
	for i := range sc.matches.Rows {
		row := &sc.matches.Rows[i]
		if h := sc.hitOf[i]; h != 0 && row.Held == nil {
			if n := sc.hits[h-1].tokens / row.BlockSize; n > int(row.GPU) && n < sc.lengthIn(row)/row.BlockSize {
				behind = min(behind, n*row.BlockSize)
			}
		}
	}
	if behind == math.MaxInt {
		return nil
	}
	return sc.matchBits(ctx, behind)
}

// hitAt returns which hit is about a row, -1: none.
func (sc *scorer) hitAt(row *index.Row) int {
	for i := sc.hitsOf[row.Pod]; i < sc.hitsOf[row.Pod+1]; i++ {
		if sc.hits[i].view.Source.Rank == row.Source.Rank {
			return int(i)
		}
	}
	return -1
}

// matchBits asks the index again, for the bits of all blocks behind so many tokens.
func (sc *scorer) matchBits(ctx context.Context, behind int) error {
	given := sc.prompt.given
	if sc.prompt.given == nil {
		sc.prompt.given = sc.prompt.runs
	}
	sc.query.Held, sc.query.Behind = true, behind
	err := sc.x.index.Match(ctx, &sc.query, &sc.behind)
	sc.prompt.given, sc.query.Held, sc.query.Behind = given, false, 0
	if err != nil {
		return sc.x.failed(fmt.Errorf("kvindex: scoring for model %q: %w", sc.set.base, err))
	}
	if why := sc.behind.Degraded; why != nil {
		sc.degraded = why
	}
	for i := range sc.behind.Rows { // those of a rank stand next to each other
		if at := sc.hitAt(&sc.behind.Rows[i]); at >= 0 {
			h := &sc.hits[at]
			if h.to == 0 {
				h.from = int32(i)
			}
			h.to = int32(i + 1)
		}
	}
	return nil
}

// lengthIn is the length of the prompt in what a row counts: tokens, or pairs.
func (sc *scorer) lengthIn(row *index.Row) int {
	if row.Pairs {
		return sc.prompt.length - 1
	}
	return sc.prompt.length
}

// reach returns how many leading blocks of a row of one full-attention group are held in the
// gpu or were sent.
func (sc *scorer) reach(row *index.Row, h *hit) int {
	n := max(int(row.GPU), h.tokens/row.BlockSize)
	for i := h.from; i < h.to; i++ {
		if r := &sc.behind.Rows[i]; r.Group.ID == row.Group.ID && r.BlockSize == row.BlockSize && r.Held != nil {
			for isSet(r.Held[TierGPU], n) {
				n++
			}
		}
	}
	return n
}

// withHit returns what is judged of such a row with what was sent. again: the tokens that the
// engine computes again.
func (sc *scorer) withHit(i int, b ranking.Best, again int) ranking.Best {
	row := &sc.matches.Rows[i]
	sc.proven[i] = int32(b.Cached)
	if h := sc.hitOf[i]; h != 0 {
		b.Cached = max(b.Cached, cachedTokens(sc.reach(row, &sc.hits[h-1]), row.BlockSize, sc.lengthIn(row))-again)
	}
	b.Marks &= sc.marksOfRow(i)
	return b
}

// withSent adds to what groups hold of a prompt what was sent.
func (sc *scorer) withSent(groups []index.GroupLayout, grain int, h *hit) {
	held := sc.held
	for i := range held {
		size := groups[i].BlockSize
		if size <= 0 {
			continue
		}
		held[i].Blocks = withFirst(held[i].Blocks, h.tokens/size)
		if grain > 0 && grain < size {
			held[i].Parts = withFirst(held[i].Parts, h.tokens/grain)
		}
	}
}

// withFirst returns a copy of bits in which the first n are set.
func withFirst(bits []uint64, n int) []uint64 {
	set := make([]uint64, max(len(bits), n/64+1))
	copy(set, bits)
	for i := range n / 64 {
		set[i] = ^uint64(0)
	}
	set[n/64] |= 1<<(n%64) - 1
	return set
}

// marksOfRow are the marks that a row may have: one that was made for a hit has none.
func (sc *scorer) marksOfRow(i int) ranking.Marks {
	if i < sc.real {
		return ^ranking.Marks(0)
	}
	return 0
}

// provenOf is the cached tokens that events have proven of an entry's best row.
func (sc *scorer) provenOf(b ranking.Best) int {
	if len(sc.hits) == 0 || b.Row == 0 {
		return b.Cached
	}
	return int(sc.proven[b.Row-1])
}
