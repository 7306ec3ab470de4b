package reuse

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/kvindex/kvindex/index"
)

// A Load is the rule by which vLLM's OffloadingConnector loads blocks from the tiers
// below the gpu, for the groups of one pod. It never changes, so it is safe for
// concurrent use. It must be made by [NewLoad].
//
// The connector stores and loads chunks, each of so many blocks of a group. A load begins
// with the chunk that the gpu's part ends in. It ends at the last token for which each
// group has its chunks: a full-attention group all up to the token, a window group those
// of the window before it, a Mamba group the last one. The groups are taken one after
// another. If the gain is less than a chunk of the present group, nothing is loaded.
//
// The rule follows get_num_new_matched_tokens of
// vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py at the commits
// of the package comment. It covers no requests that exclude tiers or prefix caching. Nor
// does it cover waiting: a request waits while a chunk that it needs is being stored, or
// loaded for another request. For one full-attention group, SimpleCPUOffloadConnector has
// the same rule, but it never loads the last token.
type Load struct {
	groups  []loadGroup // full attention first, then by decreasing window
	windows int         // the first of groups that has a window

	chunk  int    // blocks
	starts uint64 // the bits at multiples of chunk
	unit   int    // a load begins at a multiple of so many tokens
	floor  int    // the search ends at a multiple of so many tokens; 0: at any token
	grain  int    // a load may end inside a block, at multiples of grain tokens; 0: it may not
	more   []int  // all but the first of groups, as numbers of NewLoad
}

// loadGroup is a group as the connector sees it.
type loadGroup struct {
	number int // in the groups of NewLoad
	tokens int // of a chunk
	window int // chunks; 0: full attention
	draft  bool
}

// NewLoad returns the rule for groups, which are those of [New], and chunks of so many
// blocks. Grain is that of New: the unit in tokens at whose multiples a load may end
// inside a block. It counts only where the connector has such loads: if a chunk is one
// block, all blocks are equal, some Mamba group has blocks larger than the grain, and
// there are no windows and no draft layers. With decode context parallelism the connector
// has no such loads. The groups do not show that: grain must be 0 then.
//
// Mamba groups are taken to be in the mode "align". Groups that New leaves out are left
// out.
//
// It is an error if [New] refuses the groups, and if the connector cannot have them.
func NewLoad(groups []Group, chunk, grain int) (*Load, error) {
	p, err := New(groups, grain)
	if err != nil {
		return nil, err
	}
	if chunk < 1 {
		return nil, fmt.Errorf("reuse: chunk of %d blocks, at least 1 is needed", chunk)
	}
	l := &Load{chunk: chunk, unit: p.unit}
	for i := 0; i < 64; i += min(chunk, 64) {
		l.starts |= 1 << i
	}
	for i, g := range groups {
		if !g.isKnown() {
			continue
		}
		if err := l.add(g, i); err != nil {
			return nil, fmt.Errorf("reuse: group %d of %d: %w", i, len(groups), err)
		}
	}
	slices.SortStableFunc(l.groups, func(a, b loadGroup) int { return cmp.Compare(b.reach(), a.reach()) })
	for _, g := range l.groups {
		if g.window == 0 {
			l.windows++
		}
	}
	if grain > 0 && l.hasTails(groups, grain, p.left) {
		l.grain = grain
		for _, g := range l.groups[1:] {
			l.more = append(l.more, g.number)
		}
	}
	return l, nil
}

// add adds group i.
func (l *Load) add(g Group, i int) error {
	if l.chunk > maxAlignment/g.Block {
		return fmt.Errorf("chunk of %d blocks of %d tokens, at most %d tokens are possible", l.chunk, g.Block, maxAlignment)
	}
	added := loadGroup{number: i, tokens: l.chunk * g.Block, draft: g.Draft}
	switch g.Kind {
	case index.GroupWindow, index.GroupChunked:
		added.window = (g.Window-1)/added.tokens + 1
	case index.GroupMamba:
		if l.floor > 0 && l.floor != added.tokens {
			return errors.New("blocks of another size than those of the Mamba group before, which the connector refuses")
		}
		added.window, l.floor = 1, added.tokens
	}
	l.groups = append(l.groups, added)
	return nil
}

// reach is the number of chunks that a token looks back on.
func (g loadGroup) reach() int {
	if g.window == 0 {
		return math.MaxInt
	}
	return g.window
}

// hasTails reports whether a load may end inside a block. A group that is left out may
// be the Mamba group that this needs; so Tokens remains an upper bound.
func (l *Load) hasTails(groups []Group, grain int, left bool) bool {
	mamba := left
	for _, g := range l.groups {
		kind := groups[g.number].Kind
		if l.chunk > 1 || g.draft || g.tokens != l.groups[0].tokens || kind != index.GroupFull && kind != index.GroupMamba {
			return false
		}
		mamba = mamba || kind == index.GroupMamba && g.tokens > grain
	}
	return mamba
}

// Grain returns the unit in tokens at whose multiples a load may end inside a block; 0:
// it ends where chunks end.
func (l *Load) Grain() int { return l.grain }

// Tokens returns how many tokens of a prompt of length tokens need not be computed: the
// gpu tokens, as [Plan.Tokens] returns them, and behind them the loaded ones. Where a load
// reaches further, it begins at the last block end of the gpu tokens. Tokens returns at
// least gpu. It may return length: with full attention alone, the connector loads the
// last token, too, which the engine then computes again.
//
// held has what can be loaded of each group, in the order of the groups of [NewLoad]; a
// missing one has nothing. Bit i of Blocks means that the chunk whose last block is
// block i can be loaded. Other bits are ignored: the blocks inside a chunk cannot be
// loaded alone. Parts is read where [Load.Grain] is not 0, and has the entries that can be
// loaded and end at multiples of it. Nothing is allocated.
func (l *Load) Tokens(length, gpu int, held []Held) int {
	gpu = max(gpu, 0)
	if gpu >= length {
		return gpu
	}
	end := l.chunksEnd(length, gpu-gpu%l.unit, held)
	if l.grain > 0 {
		end = l.tailEnd(length, end, held)
	}
	return max(gpu, end)
}

// chunksEnd returns where a load of chunks ends that begins behind local tokens; local:
// there is none.
func (l *Load) chunksEnd(length, local int, held []Held) int {
	end := length
	if l.windows < len(l.groups) {
		end-- // the last token is computed again, and needs the window before it
	}
	if l.floor > 0 {
		end -= end % l.floor
	}
	// Each group in turn takes the end so far or an earlier one. An earlier one that
	// follows a window group sends the window groups into another round. A bit of dropped
	// means that a group with draft layers has given up its chunk at the present end.
	dropped := uint64(0)
	for first := 0; first < len(l.groups); {
		next := len(l.groups)
		for i := first; i < len(l.groups); i++ {
			g := &l.groups[i]
			drop := g.draft && dropped>>i&1 == 0
			if drop {
				dropped |= 1 << i
			}
			row := chunkRow{words: wordsOf(held, g.number, false), size: l.chunk, starts: l.starts}
			n := g.end(row, end, length, local, drop)
			if n-local < g.tokens {
				return local
			}
			if n < end {
				if !g.draft {
					dropped = 0
				}
				if i > l.windows {
					next = l.windows
				}
			}
			end = n
		}
		first = next
	}
	return end
}

// end returns before, or the earlier token up to which g has its chunks in row. If drop is set,
// the last chunk of them is given up.
func (g *loadGroup) end(row chunkRow, before, length, local int, drop bool) int {
	all := length / g.tokens
	before = min(before, all*g.tokens)
	from, to, need := local/g.tokens, before/g.tokens, g.window
	if before%g.tokens > 0 {
		to++ // the chunk that the end is in
	}
	switch {
	case need == 0:
		to = row.run(from, to)
	case drop: // it looks one chunk further
		to = row.window(from, min(to+1, all), need+1)
	default:
		to = row.window(from, to, need)
	}
	if drop {
		to--
	}
	return min(before, to*g.tokens)
}

// tailEnd returns the last boundary inside the block behind end for which all groups
// have an entry; end: there is none.
func (l *Load) tailEnd(length, end int, held []Held) int {
	last := end + min(l.groups[0].tokens, length-end) - 1
	tails := row{words: wordsOf(held, l.groups[0].number, true), held: held, more: l.more, parts: true}
	return max(end, tails.last(end/l.grain, last/l.grain)*l.grain)
}

// chunkRow has the chunks of a group: of the bits of its blocks, those of the last blocks
// of chunks.
type chunkRow struct {
	words  []uint64
	size   int    // of a chunk, in blocks
	starts uint64 // the bits at multiples of size
}

// present and absent choose the bits of chunkRow.word.
const (
	present = uint64(0)
	absent  = ^uint64(0)
)

// word returns the bits of word i that stand for chunks, set for those that are present or
// for those that are absent.
func (r *chunkRow) word(i int, which uint64) uint64 {
	return (r.words[i] ^ which) & (r.starts << uint(r.size-1-64*i%r.size))
}

// within returns n, or the number of chunks in the words if that is smaller.
func (r *chunkRow) within(n int) int { return min(n, 64*len(r.words)/r.size) }

// run returns where the run of chunks ends that begins with chunk from: the first
// absent one, at most to.
func (r *chunkRow) run(from, to int) int {
	to = r.within(to)
	for i := from * r.size; i < to*r.size; i = (i | 63) + 1 {
		if w := r.word(i/64, absent) >> (uint(i) % 64); w != 0 {
			return min((i+bits.TrailingZeros64(w))/r.size, to)
		}
	}
	return to
}

// window returns the end of the last run of need or more chunks in [from, to). If there
// is none, it returns the end of the run that begins with chunk from.
func (r *chunkRow) window(from, to, need int) int {
	for to = r.within(to); ; {
		end := r.last(from, to, present)
		start := r.last(from, end, absent)
		if start == from || end-start >= need {
			return end
		}
		to = start
	}
}

// last returns the place after the last chunk in [from, to) that is present, or absent;
// from: there is none.
func (r *chunkRow) last(from, to int, which uint64) int {
	for i := to * r.size; i > from*r.size; i = (i - 1) &^ 63 {
		if w := r.word((i-1)/64, which) << (uint(-i) % 64); w != 0 {
			return max(from, (i-bits.LeadingZeros64(w))/r.size)
		}
	}
	return from
}
