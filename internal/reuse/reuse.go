// Package reuse computes how many tokens of a prompt vLLM would reuse, given the
// blocks that each of its KV-cache groups holds: those of the gpu by a [Plan], and those
// that it would load from lower tiers beside them by a [Load].
//
// A Plan follows vLLM at commit 017e9f4448b7 (2026-08-17): find_longest_cache_hit
// of the coordinators in vllm/v1/core/kv_cache_coordinator.py and of the
// managers in vllm/v1/core/single_type_kv_cache_manager.py. It also matches
// recorded runs of two earlier commits: 59401ac9f18c (2026-06-09)
// and, for one group, 00b31a36a2d0 (2025-11-02).
//
// Two features of that commit are not implemented. With a connector that can
// complete diverging groups (supports_divergent_local_hybrid_hits), a model with
// Mamba layers may reuse the blocks of the full-attention group, although a Mamba
// group has fewer. And two groups may differ in facts that are in no event, such as
// the size of their heads. Here groups of one kind, window and block size are equal.
// Where the engine treats them as different, Tokens is mostly right, else too low,
// and in rare cases too high.
//
// Newer source (commit 00b08dc44519) differs in two points. A group
// can stand outside prefix caching: leave it out, or give it as
// [index.GroupOther]. And hits inside blocks need no Mamba group with blocks
// larger than the grain if context parallelism is on: Tokens is too low then.
package reuse

import (
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/index"
)

// Group is a KV-cache group, as the rule needs it.
type Group struct {
	Kind index.GroupKind
	// Window is the window of GroupWindow, the chunk of GroupChunked, in
	// tokens; 0: not known. In other groups it only separates specifications.
	Window int
	Block  int  // tokens in a block, at least 1
	Draft  bool // gives up a block at the end of each hit, for draft layers
}

// Held has the blocks of a prompt that one group holds. The caller must not change the
// words during a call of [Plan.Tokens]. The zero Held holds nothing.
type Held struct {
	// Blocks has block i of the prompt, which ends at token (i+1) * the group's
	// block size, as bit i%64 of word i/64. Missing words are zeros.
	Blocks []uint64
	// Parts has the partial entries: bit i stands for an entry that ends at token
	// (i+1) * [Plan.Grain]. It is read where the Grain is smaller than the
	// group's blocks.
	Parts []uint64
}

// A Plan is the rule for the groups of one pod. It never changes, so it is safe
// for concurrent use. It must be made by [New].
type Plan struct {
	specs []spec // groups of full attention first, then in the order of the engine
	unit  int    // tokens: the least common multiple of the blocks
	grain int    // of hits inside blocks; 0: there are none
	left  bool   // some group is not judged
}

// spec is the specification of equal groups. They are judged together: a block counts
// if each of them holds it.
type spec struct {
	kind   index.GroupKind
	block  int // tokens
	window int // tokens
	draft  bool

	stride int   // a hit ends after a multiple of so many blocks
	fine   int   // hits may end inside a block, at multiples of fine tokens; 0: they may not
	margin int   // how many tokens further to look if a block is given up
	first  int   // the first group of this specification
	more   []int // the others
}

// Limits of a Plan.
const (
	maxGroups    = 64      // bits of a word
	maxAlignment = 1 << 30 // tokens
)

// New returns the rule for groups, which stand in the order of the engine's
// list: that of their IDs. Grain is the unit in tokens at whose multiples hits
// may end inside a block; 0: nowhere. It counts only where vLLM has such hits:
// beside a Mamba group with larger blocks, if all windows and chunks have blocks
// of one grain.
//
// Groups that cut nothing are left out: those of GroupOther, and those of
// GroupWindow and GroupChunked whose Window is not known. See [Plan.UpperBound].
//
// It is an error if no group is left, and if vLLM cannot have such groups.
func New(groups []Group, grain int) (*Plan, error) {
	if len(groups) > maxGroups {
		return nil, fmt.Errorf("reuse: %d groups, at most %d can be judged", len(groups), maxGroups)
	}
	if grain < 0 {
		return nil, fmt.Errorf("reuse: negative grain %d", grain)
	}
	p := &Plan{}
	for i, g := range groups {
		if err := g.validate(grain); err != nil {
			return nil, fmt.Errorf("reuse: group %d of %d: %w", i, len(groups), err)
		}
		if g.isKnown() {
			p.add(g, i)
		} else {
			p.left = true
		}
	}
	if len(p.specs) == 0 {
		return nil, errors.New("reuse: no group of a known kind")
	}
	if err := p.align(grain); err != nil {
		return nil, err
	}
	return p, nil
}

func (g Group) validate(grain int) error {
	switch {
	case g.Kind > index.GroupOther:
		return fmt.Errorf("unknown kind %d", g.Kind)
	case g.Block < 1 || g.Block > maxAlignment:
		return fmt.Errorf("block size %d, not within 1 and %d", g.Block, maxAlignment)
	case g.Window < 0:
		return fmt.Errorf("negative window %d", g.Window)
	case grain > 0 && g.isKnown() && g.Block%grain != 0:
		return fmt.Errorf("the grain %d does not divide the block size %d", grain, g.Block)
	case g.Draft && g.Kind == index.GroupChunked:
		return errors.New("chunked local attention with draft layers, which vLLM refuses")
	}
	return nil
}

// isKnown reports whether the group has all facts that the rule needs.
func (g Group) isKnown() bool {
	switch g.Kind {
	case index.GroupFull, index.GroupMamba:
		return true
	case index.GroupWindow, index.GroupChunked:
		return g.Window > 0
	}
	return false
}

// add files group i under its specification.
func (p *Plan) add(g Group, i int) {
	at := len(p.specs)
	for j := range p.specs {
		s := &p.specs[j]
		if s.kind == g.Kind && s.block == g.Block && s.window == g.Window {
			s.more = append(s.more, i)
			s.draft = s.draft || g.Draft
			return
		}
		if g.Kind == index.GroupFull && s.kind != index.GroupFull {
			at = min(at, j)
		}
	}
	s := spec{kind: g.Kind, block: g.Block, window: g.Window, draft: g.Draft, first: i}
	p.specs = append(p.specs[:at], append([]spec{s}, p.specs[at:]...)...)
}

// align decides where hits may end.
func (p *Plan) align(grain int) error {
	align := 1
	for i := range p.specs {
		if align = lcm(align, p.specs[i].block); align == 0 {
			return fmt.Errorf("reuse: no common multiple of the block sizes up to %d", maxAlignment)
		}
	}
	p.unit = align
	if grain > 0 && p.isFine(grain) {
		p.grain, align = grain, grain
	}
	for i := range p.specs {
		s := &p.specs[i]
		s.stride, s.margin = max(align/s.block, 1), s.block
		if align < s.block {
			s.fine, s.margin = align, align
		}
		if s.kind == index.GroupChunked && s.block != align {
			return fmt.Errorf("reuse: group %d: chunked local attention beside blocks of another size than %d, which vLLM refuses", s.first, s.block)
		}
	}
	return nil
}

// isFine reports whether vLLM has hits inside blocks. A group that is left out may
// be the Mamba group that they need; so Tokens remains an upper bound.
func (p *Plan) isFine(grain int) bool {
	if len(p.specs) == 1 && !p.left {
		return false
	}
	mamba := p.left
	for _, s := range p.specs {
		switch s.kind {
		case index.GroupMamba:
			mamba = mamba || s.block > grain
		case index.GroupWindow, index.GroupChunked:
			if s.block != grain {
				return false
			}
		}
	}
	return mamba
}

// lcm returns the least common multiple of a and b; 0: it is above maxAlignment.
func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	if a/x > maxAlignment/b {
		return 0
	}
	return a / x * b
}

// Grain returns the unit in tokens at whose multiples hits may end inside a block; 0:
// they end where blocks end.
func (p *Plan) Grain() int { return p.grain }

// UpperBound reports whether some group was left out, so that the engine may
// reuse less than [Plan.Tokens] returns. It reuses more only in rare cases
// where there are draft layers.
func (p *Plan) UpperBound() bool { return p.left }

// Tokens returns how many tokens of a prompt of length tokens vLLM would reuse.
// held has what each group holds, in the order of the groups of [New]; a missing
// one holds nothing. Nothing is allocated.
func (p *Plan) Tokens(length int, held []Held) int {
	limit := length - 1 // the last token is always computed: its logits are needed
	if limit <= 0 {
		return 0
	}
	if len(p.specs) == 1 {
		return p.specs[0].hit(limit, p.specs[0].draft, held)
	}
	// Each specification in turn takes the length so far or a smaller one, until
	// none wants a smaller one. A bit of dropped means that a specification with
	// draft layers has given up its block at the present length.
	onePass := len(p.specs) == 2 && p.specs[0].kind == index.GroupFull
	best, dropped := limit, uint64(0)
	for first := true; ; first = false {
		length := best
		for i := range p.specs {
			s := &p.specs[i]
			if s.kind == index.GroupFull && !first {
				continue // a hit of a length is also a hit of a smaller one
			}
			drop, bound := s.draft && dropped>>i&1 == 0, length
			if drop && s.kind != index.GroupMamba { // it looks one block further, and gives that up
				bound += min(s.margin, limit-length)
			}
			n := s.hit(bound, drop, held)
			if drop {
				dropped |= 1 << i
			} else if n < length {
				dropped = 0
			}
			length = n
		}
		if length >= best || onePass {
			return length
		}
		best = length
	}
}

// hit returns the longest hit of s that is not longer than limit tokens. If drop
// is set, the end of it is given up.
func (s *spec) hit(limit int, drop bool, held []Held) int {
	blocks := s.row(held, false)
	switch s.kind {
	case index.GroupWindow:
		return s.windowHit(blocks, limit/s.block, drop) * s.block
	case index.GroupMamba:
		return s.mambaHit(blocks, limit, held)
	case index.GroupChunked:
		// Earlier chunks are never read again: they count as computed.
		return blocks.run(limit/s.window*s.window/s.block, limit/s.block) * s.block
	}
	n := blocks.run(0, limit/s.block) * s.block
	if s.fine > 0 {
		next := min(limit, n+s.block-1) / s.fine // the last boundary inside of the next block
		parts := s.row(held, true)
		n = parts.last(n/s.fine, next) * s.fine
	}
	if drop && n > 0 {
		n -= s.margin
	}
	if s.fine > 0 {
		return n
	}
	return n - n%(s.stride*s.block)
}

// mambaHit returns the last boundary that has a state. Mamba groups have no
// draft layers, so they give up nothing.
func (s *spec) mambaHit(blocks row, limit int, held []Held) int {
	n := blocks.last(0, limit/s.block)
	for n%s.stride != 0 {
		n = blocks.last(0, n-n%s.stride)
	}
	n *= s.block
	if s.fine > 0 {
		parts := s.row(held, true)
		n = max(n, parts.last(0, limit/s.fine)*s.fine)
	}
	return n
}

// windowHit returns the blocks of the longest hit within the first n blocks: up
// to the last boundary before which all blocks are held that the next token looks
// at. If there is none, the blocks at the beginning count as long as they go.
func (s *spec) windowHit(blocks row, n int, drop bool) int {
	past := 0 // blocks after the boundary
	if drop {
		past = 1
	}
	need := past
	if s.window > 1 {
		need += (s.window-2)/s.block + 1
	}
	end := blocks.window(n, max(need, 1), s.stride, past)
	if drop && end > 0 {
		end--
		end -= end % s.stride
	}
	return end
}

// CachedTokens returns the tokens that the engine would reuse of so many leading gpu blocks of a
// size, in a prompt of so many tokens, or pairs.
func CachedTokens(blocks, size, promptTokens int) int {
	if cached := blocks * size; cached < promptTokens {
		return cached
	}
	// The last token is always computed, for its logits: vLLM 2026-08-17,
	// v1/core/kv_cache_manager.py, get_computed_blocks; SGLang 2026-08-22,
	// srt/managers/schedule_batch.py, init_next_round_input. So is EAGLE's last
	// pair.
	return (promptTokens - 1) / size * size
}
