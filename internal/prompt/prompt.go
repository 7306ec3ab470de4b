// Package prompt makes the keys of the prompt of a request, in each variant in which an engine
// may cut it. It encodes only the part of a text whose beginning is not in the prompt cache.
package prompt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A Prompt is the prompt of a request and its keys. Its memory is used again.
type Prompt struct {
	hashes *hashing.Hasher
	seed   [16]byte           // of the index
	cache  *prefixcache.Cache // of texts; nil: none

	Scope  hashing.Scope
	Text   string          // the text of the prompt, if it has one
	Chat   *chat.Rendering // that encodes Text; nil: Text is one
	IDs    []uint32        // nil if not all of them are known
	Length int             // in tokens
	Media  []chat.Media
	known  textLocals
	AllIDs bool // requests all ids, without the cache

	keys  []index.Key // of all variants, one after the other
	runs  []Run       // parts of keys, by variant
	given []Run       // set by Use, and used instead of runs; nil: none

	Asked []index.Variant // variants that the index has requested, if there is a cache

	hash   uint64 // for ties, if hashed is not empty
	hashed []byte // the input of hash

	memory
}

// memory is used again by the next prompt: the tokens of a text, the tokens of a chat with its
// media expanded, the ids with media written over them, and the pairs of these.
type memory struct {
	tokens, expanded, padded, pairs []uint32

	extras []hashing.Extra
	Locals []index.Local
	plain  index.Variant // Unit and Pairs of Locals, if they have nothing but tokens
}

// Set makes p the prompt of a request, before its text is read.
func (p *Prompt) Set(text string, ids []uint32, media []chat.Media) {
	p.IDs, p.Media, p.Text, p.Chat = ids, media, text, nil
	p.Length = len(p.IDs)
}

// Init makes p ready for prompts of an index with this hasher and seed. cache may be nil.
func (p *Prompt) Init(h *hashing.Hasher, seed [16]byte, cache *prefixcache.Cache) {
	p.hashes, p.seed, p.cache = h, seed, cache
}

// Use makes p a prompt of so many tokens that has only these keys.
func (p *Prompt) Use(keys []Run, length int) { p.given, p.Length = keys, length }

// Given reports whether Use has set the keys.
func (p *Prompt) Given() bool { return p.given != nil }

// Freeze makes the present keys the only ones, and returns the keys of an earlier Use, to be
// restored by Use.
func (p *Prompt) Freeze() (given []Run) {
	given, p.given = p.given, p.Runs()
	return given
}

// Runs returns the keys in all variants in which they were made or given.
func (p *Prompt) Runs() []Run {
	if p.given != nil {
		return p.given
	}
	return p.runs
}

// Swap moves the keys to runs and keys, and takes their memory for the next keys.
func (p *Prompt) Swap(runs *[]Run, keys *[]index.Key) {
	*runs, p.runs = p.runs, (*runs)[:0]
	*keys, p.keys = p.keys, (*keys)[:0]
}

// Begin forgets the keys that were made.
func (p *Prompt) Begin() { p.keys, p.runs, p.plain = p.keys[:0], p.runs[:0], index.Variant{} }

// Release keeps the memory of p, and nothing of its request.
func (p *Prompt) Release() {
	p.Scope, p.Text, p.Chat, p.IDs, p.Media = hashing.Scope{}, "", nil, nil, nil
	p.known.release()
	p.Asked = p.Asked[:0]
	p.AllIDs, p.plain = false, index.Variant{}
	p.runs, p.given, p.hashed = p.runs[:0], nil, p.hashed[:0]
}

// KeysIn returns the keys of the prompt in a variant. It is index.Query.Keys.
func (p *Prompt) KeysIn(v index.Variant) ([]index.Key, error) {
	if p.given != nil {
		if r := RunIn(p.given, v); r != nil {
			return r.Keys, nil
		}
		return nil, nil
	}
	if p.cache != nil && !slices.Contains(p.Asked, v) {
		p.Asked = append(p.Asked, v)
	}
	if p.known.tokenizer != nil {
		return p.knownKeys(v)
	}
	locals, err := p.Cut(v)
	if err != nil {
		return nil, err
	}
	return p.keysOf(v, locals), nil
}

// keysOf returns the keys of the prompt from its locals in a variant.
func (p *Prompt) keysOf(v index.Variant, locals []index.Local) []index.Key {
	s := p.Scope
	if v.Media == hashing.FormBare {
		s.Salt = "" // it is in the first unit
	}
	r := Run{Variant: v, Root: p.hashes.Root(s, v)}
	from := len(p.keys)
	p.keys = hashing.Keys(p.keys, r.Root, locals)
	r.Keys = p.keys[from:len(p.keys):len(p.keys)]
	p.runs = append(p.runs, r)
	return r.Keys
}

// Cut returns the locals of the prompt in a variant, valid until the next call. Locals that have
// nothing but tokens are shared by the forms of media.
func (p *Prompt) Cut(v index.Variant) ([]index.Local, error) {
	tokens := p.IDs
	p.extras = p.extras[:0]
	switch v.Media {
	case hashing.FormOffsets:
		for i := range p.Media {
			p.extras = append(p.extras, hashing.MediaAt(p.Media[i].Hash, p.Media[i].Offset, v.Unit))
		}
	case hashing.FormBare:
		p.extras = bareMedia(p.extras, p.Media, p.Scope.Salt, v, len(tokens))
	case hashing.FormPad:
		if len(p.Media) > 0 {
			p.padded = append(p.padded[:0], tokens...)
			tokens = p.padded
			if err := pad(tokens, p.Media); err != nil {
				return nil, err
			}
		}
	}
	plain := index.Variant{Unit: v.Unit, Pairs: v.Pairs}
	if len(p.Media) > 0 || len(p.extras) > 0 {
		plain = index.Variant{}
	} else if plain == p.plain {
		return p.Locals, nil
	}
	p.plain = plain
	width := v.Unit
	if v.Pairs {
		p.pairs = appendPairs(p.pairs[:0], tokens)
		tokens = p.pairs
		width *= 2
	}
	p.Locals = p.hashes.Of(p.Scope.Adapter).Locals(p.Locals[:0], tokens, width, p.extras)
	return p.Locals, nil
}

// LengthIn returns the length of the prompt in the items of a row: tokens, or pairs.
func (p *Prompt) LengthIn(row *index.Row) int {
	if row.Pairs {
		return p.Length - 1
	}
	return p.Length
}

// TieHash returns the hash of the prompt by which ties are broken.
func (p *Prompt) TieHash() uint64 {
	if len(p.hashed) == 0 {
		ties := p.known.ties
		if p.known.tokenizer == nil {
			if p.plain != FirstForms[0] {
				p.Locals = p.hashes.Of(p.Scope.Adapter).Locals(p.Locals[:0], p.IDs, hashing.TieUnit, nil)
				p.plain = FirstForms[0]
			}
			ties = hashing.FoldOf(p.IDs, p.Locals)
		}
		p.hashed = hashing.AppendPrompt(p.hashed, p.Scope, ties)
		for i := range p.Media {
			p.hashed = hashing.AppendName(p.hashed, p.Media[i].Hash)
		}
		p.hash = p.hashes.Tie(p.hashed)
	}
	return p.hash
}

// bareMedia appends the items of a prompt, by the blocks that they overlap, in
// vLLM's order (v1/core/kv_cache_utils.py, _gen_mm_extra_hash_keys,
// before 2026-03-20). The salt comes after the media of the first block.
func bareMedia(dst []hashing.Extra, media []chat.Media, salt string, v index.Variant, tokens int) []hashing.Extra {
	for from := 0; from+v.Block <= tokens; from += v.Block {
		to, first := from+v.Block, from/v.Unit
		for len(media) > 0 && media[0].Offset < to {
			m := &media[0]
			end := m.Offset + min(max(m.Length, 1), tokens-m.Offset)
			if end > from {
				dst = append(dst, hashing.BareAt(m.Hash, first))
			}
			if end > to {
				break
			}
			media = media[1:]
		}
		if from == 0 && salt != "" {
			dst = append(dst, hashing.BareAt(salt, first))
		}
	}
	return dst
}

// pad writes the items of a prompt over their tokens, as SGLang does
// (srt/managers/schedule_batch.py, MM_PAD_SHIFT_VALUE, 2026-08-22).
func pad(tokens []uint32, media []chat.Media) error {
	for i := range media {
		m := &media[i]
		hash, ok := lowBits(m.Hash)
		if !ok {
			return fmt.Errorf("%w: media %d: hash %q is not an integer, as SGLang's are", ErrRequest, i, m.Hash)
		}
		of := tokens[m.Offset:]
		for j := range min(m.Length, len(of)) {
			of[j] = padShift + hash
		}
	}
	return nil
}

const (
	padShift = 1_000_000
	padBits  = 30
)

// lowBits returns the last padBits bits of a decimal integer of any length.
func lowBits(decimal string) (n uint32, ok bool) {
	digits, negative := strings.CutPrefix(decimal, "-")
	for _, d := range []byte(digits) {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint32(d-'0')
	}
	if negative {
		n = -n
	}
	return n & (1<<padBits - 1), digits != ""
}

// appendPairs appends the pairs of EAGLE's tree: each token with the next.
func appendPairs(dst, tokens []uint32) []uint32 {
	for i := 1; i < len(tokens); i++ {
		dst = append(dst, tokens[i-1], tokens[i])
	}
	return dst
}
