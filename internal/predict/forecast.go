package predict

import (
	"math"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/sent"
)

// A score counts the longest beginning of its prompt that was routed to a rank as held in the
// gpu, in all groups. A rank without a row in the index gets a row that holds nothing. Where a
// beginning ends inside the blocks of a row, held blocks may follow it: then the index is
// queried once more, for bits.

// Candidates are the candidates of a score, for the forecast.
type Candidates struct {
	Pods        []*Pod // nil: not registered
	Lent        *Lent
	Approximate bool // some pods are estimated
}

// hit is a rank to which a beginning of the prompt was routed.
type hit struct {
	pod    int32 // the candidate
	view   *index.View
	tokens int // length of the beginning in tokens or pairs: whole blocks of the main group
	found  bool

	from, to int32 // the rows of the rank in Forecast.Behind
}

// A Forecast has the prompts that were routed to the candidates of a score, beside the rows of
// the index. Without a hit its other fields are not valid. Its memory is used again.
type Forecast struct {
	hits   []hit
	hitsOf []int32 // by candidate: the start of its hits; then the end of the last

	// hitOf and proven are by row of the matches.
	hitOf  []int32 // the position in hits plus one; 0: none
	proven []int32 // cached tokens by events alone
	Real   int     // the number of rows from the index; the others were made for hits

	Behind  index.Matches // rows with bits, if they are needed
	sentTo  []int32       // by sent.Holder: units
	anySent bool
	note    func(sent.Holder, int) // noteSent
}

// noneHeld is Row.Held of a source that holds nothing of a prompt.
var noneHeld [index.NumTiers][]uint64

// Begin begins the forecast of a score with so many rows from the index.
func (f *Forecast) Begin(rows int) { f.Real = rows }

// Find finds the hits, in the order of candidates and ranks; rank -1: of all ranks. It reports
// whether there are any.
func (f *Forecast) Find(l *Ledger, c Candidates, runs []prompt.Run, rank int) bool {
	if l.live.Load() == 0 && !c.Approximate {
		return false
	}
	now := l.now()
	if l.due.Load() <= now {
		l.mu.Lock()
		l.expire(now)
		l.mu.Unlock()
	}
	f.findAt(l, c, runs, rank, now)
	return len(f.hits) > 0
}

// findAt is Find at a time.
func (f *Forecast) findAt(l *Ledger, c Candidates, runs []prompt.Run, rank int, now int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f.sentTo = slices.Grow(f.sentTo[:0], len(l.holders))[:len(l.holders)]
	clear(f.sentTo)
	f.anySent = false
	for i := range runs {
		l.tree.Match(runs[i].Keys, f.note)
	}
	if !f.anySent && !c.Approximate {
		return
	}
	f.hitsOf = slices.Grow(f.hitsOf[:0], len(c.Pods)+1)
	for i, p := range c.Pods {
		f.hitsOf = append(f.hitsOf, int32(len(f.hits)))
		if p == nil {
			continue
		}
		for _, h := range p.holders {
			if h.lent && !c.Lent.has(h) {
				continue // the other pods do not have such blocks any more
			}
			if n := int(f.sentTo[h.number]) * h.variant.Unit; n > 0 {
				f.add(rank, int32(i), h.view, n)
			}
		}
		if a := p.approx.Load(); a != nil {
			if r := prompt.RunIn(runs, a.variant); r != nil {
				for _, e := range a.ranks {
					f.add(rank, int32(i), e.view, e.cache.Run(r.Keys, a.stride, now)*a.BlockTokens)
				}
			}
		}
	}
	f.hitsOf = append(f.hitsOf, int32(len(f.hits)))
}

// add adds a hit with the whole blocks of so many tokens, if view is of the rank; -1: of any
// rank.
func (f *Forecast) add(rank int, pod int32, view *index.View, tokens int) {
	tokens -= tokens % view.BlockSize
	if tokens == 0 || rank >= 0 && view.Source.Rank != rank {
		return
	}
	at := len(f.hits)
	for first := int(f.hitsOf[pod]); at > first && f.hits[at-1].view.Source.Rank >= view.Source.Rank; at-- {
		if of := &f.hits[at-1]; of.view.Source.Rank == view.Source.Rank {
			of.tokens = max(of.tokens, tokens)
			return
		}
	}
	f.hits = slices.Insert(f.hits, at, hit{pod: pod, view: view, tokens: tokens})
}

// Init makes f ready. It must not be copied from then on.
func (f *Forecast) Init() { f.note = f.noteSent }

// noteSent is the callback of sent.Tree.Match.
func (f *Forecast) noteSent(h sent.Holder, units int) {
	f.sentTo[h], f.anySent = int32(units), true
}

// Attach links each hit to its rows, and adds a row for a hit without one. If held blocks may
// follow a hit, so that bits are needed, it returns the tokens of the shortest such hit, else
// math.MaxInt.
func (f *Forecast) Attach(matches *index.Matches, p *prompt.Prompt) (behind int) {
	for i := range matches.Rows {
		f.hitOf = append(f.hitOf, 0)
		row := &matches.Rows[i]
		if at := f.hitAt(row); at >= 0 {
			main := f.hits[at].view.Group // a row of another group alone has no score (Judge.judge)
			f.hits[at].found = f.hits[at].found || main.Kind != index.GroupFull || row.Group.ID == main.ID
			f.hitOf[i] = int32(at) + 1
		}
	}
	for i := range f.hits {
		h := &f.hits[i]
		if h.found {
			continue
		}
		n := len(matches.Rows)
		matches.Rows = slices.Grow(matches.Rows, 1)[:n+1]
		row := &matches.Rows[n]
		*row = index.Row{View: h.view, Pod: h.pod}
		if l := h.view.Layout; len(l.Groups) != 1 || l.Groups[0].Kind != index.GroupFull {
			row.Held = &noneHeld
		}
		f.hitOf = append(f.hitOf, int32(i)+1)
	}
	f.proven = slices.Grow(f.proven[:0], len(matches.Rows))[:len(matches.Rows)]
	clear(f.proven)
	behind = math.MaxInt
	for i := range matches.Rows {
		row := &matches.Rows[i]
		if h := f.hitOf[i]; h != 0 && row.Held == nil {
			if n := f.hits[h-1].tokens / row.BlockSize; n > int(row.GPU) && n < p.LengthIn(row)/row.BlockSize {
				behind = min(behind, n*row.BlockSize)
			}
		}
	}
	return behind
}

// hitAt returns the position of the hit of a row, or -1.
func (f *Forecast) hitAt(row *index.Row) int {
	for i := f.hitsOf[row.Pod]; i < f.hitsOf[row.Pod+1]; i++ {
		if f.hits[i].view.Source.Rank == row.Source.Rank {
			return int(i)
		}
	}
	return -1
}

// AttachBits links each hit to its rows with bits.
func (f *Forecast) AttachBits() {
	for i := range f.Behind.Rows { // those of a rank stand next to each other
		if at := f.hitAt(&f.Behind.Rows[i]); at >= 0 {
			h := &f.hits[at]
			if h.to == 0 {
				h.from = int32(i)
			}
			h.to = int32(i + 1)
		}
	}
}

// reach returns the number of leading blocks of a row of one full-attention group that are held
// in the gpu or were routed.
func (f *Forecast) reach(row *index.Row, h *hit) int {
	n := max(int(row.GPU), h.tokens/row.BlockSize)
	if row.Held != nil {
		for isSet(row.Held[index.TierGPU], n) {
			n++
		}
	}
	for i := h.from; i < h.to; i++ {
		if r := &f.Behind.Rows[i]; r.Group.ID == row.Group.ID && r.BlockSize == row.BlockSize && r.Held != nil {
			for isSet(r.Held[index.TierGPU], n) {
				n++
			}
		}
	}
	return n
}

// WithHit returns the tokens that the engine would reuse by such a row and its hit; cached is
// the number without the hit. again is the number of tokens that the engine computes again.
func (f *Forecast) WithHit(i int, row *index.Row, length, cached, again int) int {
	f.proven[i] = int32(cached)
	if at := f.hitOf[i]; at != 0 {
		h := &f.hits[at-1]
		n, size := f.reach(row, h), row.BlockSize
		if own := h.view.BlockSize; own < size { // the row is of chunks in a lower tier
			n, size, again = h.tokens/own, own, min(again, own)
		}
		cached = max(cached, reuse.CachedTokens(n, size, length)-again)
	}
	return cached
}

// withSent adds the blocks of a hit to the blocks that groups hold.
func withSent(held []reuse.Held, groups []index.GroupLayout, grain int, h *hit) {
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

// Judge notes the cached tokens of a row of several groups without its hit. If the row has a hit
// and there is a rule, it adds the blocks of the hit to held and returns true.
func (f *Forecast) Judge(row, cached int, rule *reuse.Plan, held []reuse.Held, groups []index.GroupLayout) bool {
	f.proven[row] = int32(cached)
	h := f.hitOf[row]
	if h == 0 || rule == nil {
		return false
	}
	withSent(held, groups, rule.Grain(), &f.hits[h-1])
	return true
}

// Hit reports whether a row has a hit.
func (f *Forecast) Hit(row int) bool { return len(f.hits) > 0 && f.hitOf[row] != 0 }

// Any reports whether there are hits.
func (f *Forecast) Any() bool { return len(f.hits) > 0 }

// Clear forgets the hits.
func (f *Forecast) Clear() { f.hits, f.hitOf = f.hits[:0], f.hitOf[:0] }

// Made reports whether a row was made for a hit and does not come from the index.
func (f *Forecast) Made(row int) bool { return row >= f.Real }

// Proven returns how many of the cached tokens of an entry are proven by events. row is the row
// of the entry plus one; 0: none.
func (f *Forecast) Proven(row int32, cached int) int {
	if len(f.hits) == 0 || row == 0 {
		return cached
	}
	return int(f.proven[row-1])
}
