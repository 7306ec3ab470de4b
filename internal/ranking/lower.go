// Lower tiers: what an engine would read from tiers below its gpu, and the score of an entry.
//
// A source announces a chunk in a lower tier by the hash of its last block: as a block of the
// group's size (a hash alone), or as one block of the size of the chunk (a store that describes
// itself). Both mean the same, so their bits are joined here, in blocks of the group, at the
// last block of each chunk. Package reuse has the rule.

package ranking

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/view"
)

// Lower is what an engine would read from lower tiers, beyond the cached tokens of its gpu.
type Lower struct {
	Loaded  int  // tokens, from its host memory
	Fetched int  // tokens beyond those, from all lower tiers
	upper   bool // both are upper bounds
	weights [3]float64
}

// The tiers of a load, and of a fetch.
var (
	loadTiers  = []index.Tier{index.TierCPU}
	fetchTiers = []index.Tier{index.TierCPU, index.TierDisk, index.TierRemote, index.TierOther}
)

// lower computes what the source of the rows [from, to) would read behind so many tokens in its
// gpu.
func (j *Judge) lower(from, to, gpu int, plan *view.Plan, p *engine.Profile) {
	rows := j.Rows[from:to]
	l := Lower{weights: [3]float64{p.WeightOf(index.TierGPU), p.WeightOf(index.TierCPU), p.WeightOf(slowest(rows))}}
	if j.Pods[rows[0].Pod].Facts().Paged {
		loaded := max(gpu, j.pages(rows, loadTiers))
		l.Loaded, l.Fetched = loaded-gpu, max(j.pages(rows, fetchTiers)-loaded, 0)
		for i := from; i < to; i++ {
			j.lowers[i] = l
		}
		return
	}
	chunk, known := chunkOf(rows, p, j.Pods[rows[0].Pod].Facts().Single)
	rule := plan.Load(chunk)
	if rule == nil {
		return
	}
	length, total := j.Prompt.LengthIn(&rows[0]), gpu
	if held := j.heldIn(rows, loadTiers, chunk, rule.Grain(), length); held != nil {
		total = max(total, rule.Tokens(length, gpu, held))
		l.Loaded = total - gpu
	}
	if slowest(rows) != index.TierCPU {
		if held := j.heldIn(rows, fetchTiers, chunk, rule.Grain(), length); held != nil {
			l.Fetched = max(rule.Tokens(length, gpu, held)-total, 0)
		}
	}
	l.upper = plan.Upper || !known
	for i := from; i < to; i++ {
		j.lowers[i] = l
	}
}

// pages returns how many tokens SGLang would reuse from its gpu and some tiers: those of the
// leading pages that one of them holds, but the last token. The rule is that of
// Req.init_next_round_input with a host tier (db570fe619ae, 2026-08-22).
func (j *Judge) pages(rows []index.Row, tiers []index.Tier) (most int) {
	for i := range rows {
		row, words := &rows[i], len(rows[i].Held[index.TierGPU])
		held := [index.NumTiers][]uint64{index.TierGPU: row.Held[index.TierGPU]}
		for _, t := range tiers {
			held[t] = row.Held[t]
			words = max(words, len(held[t]))
		}
		here := index.Row{Held: &held}
		here.Count(words)
		most = max(most, reuse.CachedTokens(int(here.Run), row.BlockSize, j.Prompt.LengthIn(row)))
	}
	return most
}

// chunkOf returns how many blocks a chunk of the connector has, by the chunks that describe
// themselves or else by the profile; without either it is one block. known: each chunk of the rows
// shows its length, or the profile does. single: chunks of one block, which their rows do not show,
// contradict the profile.
func chunkOf(rows []index.Row, p *engine.Profile, single bool) (chunk int, known bool) {
	chunk, bare := 0, false
	for i := range rows {
		row := &rows[i]
		if size := sizeOf(row); size > 0 && row.BlockSize > size && row.BlockSize%size == 0 {
			chunk = cmp.Or(chunk, row.BlockSize/size)
		} else {
			bare = bare || slices.ContainsFunc(row.Held[index.TierGPU+1:], func(set []uint64) bool { return set != nil })
		}
	}
	if single {
		return cmp.Or(chunk, 1), true
	}
	return cmp.Or(chunk, p.Chunk, 1), p.Chunk > 0 || chunk > 0 && !bare
}

// sizeOf returns the block size of the group of a row; 0: not known.
func sizeOf(row *index.Row) int {
	if g := groupOf(row); g >= 0 {
		return row.Groups[g].BlockSize
	}
	return 0
}

func groupOf(row *index.Row) int {
	return slices.IndexFunc(row.Groups, func(g index.GroupLayout) bool { return g.ID == row.Group.ID })
}

// slowest returns the tier with the highest number that holds a block of rows.
func slowest(rows []index.Row) index.Tier {
	t := index.TierCPU
	for i := range rows {
		for at, set := range rows[i].Held {
			if set != nil && index.Tier(at) > t {
				t = index.Tier(at)
			}
		}
	}
	return t
}

// heldIn returns the chunks that each group holds in some tiers, by their last blocks, and their
// parts of blocks of grain tokens; nil: there are none. It is valid until the next call.
func (j *Judge) heldIn(rows []index.Row, tiers []index.Tier, chunk, grain, length int) []reuse.Held {
	groups := rows[0].Groups
	held := slices.Grow(j.below[:0], len(groups))[:len(groups)]
	clear(held)
	j.below, j.words = held, j.words[:0]
	some := false
	for i := range rows {
		row := &rows[i]
		size, g := sizeOf(row), groupOf(row)
		if size <= 0 || row.BlockSize != size && row.BlockSize != chunk*size && row.BlockSize != grain {
			continue
		}
		bits, unit := &held[g].Blocks, size
		if row.BlockSize < size {
			bits, unit = &held[g].Parts, grain
		}
		for _, t := range tiers {
			set := row.Held[t]
			if set == nil {
				continue
			}
			some = true
			if *bits == nil {
				*bits = j.zeroes(length/unit/64 + 1)
			}
			join(*bits, set, row.BlockSize/unit)
		}
	}
	if !some {
		return nil
	}
	return held
}

// join sets the last block of each chunk in set, which are of so many blocks.
func join(blocks, set []uint64, chunk int) {
	for i, word := range set {
		if chunk == 1 {
			if i < len(blocks) {
				blocks[i] |= word
			}
			continue
		}
		for ; word != 0; word &= word - 1 {
			at := (64*i+bits.TrailingZeros64(word)+1)*chunk - 1
			if at/64 < len(blocks) {
				blocks[at/64] |= 1 << (at % 64)
			}
		}
	}
}

// zeroes returns n words that are 0. Earlier words stay valid.
func (j *Judge) zeroes(n int) []uint64 {
	from := len(j.words)
	j.words = slices.Grow(j.words, n)[:from+n]
	set := j.words[from : from+n : from+n]
	clear(set)
	return set
}

// Score returns the score of an entry: its tokens by the weights of their tiers, each once.
func (j *Judge) Score(b Best) float64 {
	if b.Row == 0 || len(j.lowers) == 0 {
		return float64(b.Cached)
	}
	l := &j.lowers[b.Row-1]
	if l.weights == [3]float64{} {
		return float64(b.Cached)
	}
	loaded := max(j.Proven(b)+l.Loaded, b.Cached)
	fetched := max(j.Proven(b)+l.Loaded+l.Fetched, loaded)
	return float64(b.Cached)*l.weights[0] + float64(loaded-b.Cached)*l.weights[1] + float64(fetched-loaded)*l.weights[2]
}

// LowerOf returns what the source of an entry would read from lower tiers.
func (j *Judge) LowerOf(b Best) Lower {
	if b.Row == 0 || len(j.lowers) == 0 {
		return Lower{}
	}
	return j.lowers[b.Row-1]
}
