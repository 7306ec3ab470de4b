package kvindex

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/prefixcache"
)

// A prompt is what a request asks about, and the keys of it. Its memory is used again.
type prompt struct {
	hashes *hashing.Hasher
	seed   [16]byte           // of the index
	cache  *prefixcache.Cache // of texts; nil: none

	scope  hashing.Scope
	text   string   // that the prompt was made of, if it was
	ids    []uint32 // nil if not all of them are known
	length int      // in tokens
	media  []Media
	known  textLocals
	allIDs bool // all ids are needed

	keys  []index.Key // of all variants, one after the other
	runs  []keyRun    // of keys
	given []keyRun    // in place of those of a prompt; nil: none

	hash   uint64 // of ties, if hashed is not empty
	hashed []byte // what it is of

	// Memory, and what is in it: the tokens of a text, those of a chat with media, each with
	// all of its tokens, the ids with their media written over them, and the pairs of these.
	tokens, expanded, padded, pairs []uint32
	locals                          []index.Local
	plain                           index.Variant // that locals are of, if nothing but tokens is in them: its Unit and Pairs
	extras                          []hashing.Extra
}

// set makes p the prompt of a request, before its text is read.
func (p *prompt) set(r *Request) {
	p.ids, p.media, p.text = r.Tokens, r.Media, r.Prompt
	p.length = len(p.ids)
}

// begin forgets the keys that were made.
func (p *prompt) begin() { p.keys, p.runs, p.plain = p.keys[:0], p.runs[:0], index.Variant{} }

// release keeps the memory of p, and nothing of its request.
func (p *prompt) release() {
	p.scope, p.text, p.ids, p.media = hashing.Scope{}, "", nil, nil
	p.known.release()
	p.allIDs, p.plain = false, index.Variant{}
	p.runs, p.given, p.hashed = p.runs[:0], nil, p.hashed[:0]
}

func (p *prompt) keysIn(v index.Variant) ([]index.Key, error) {
	if p.given != nil {
		if r := runOf(p.given, v); r != nil {
			return r.keys, nil
		}
		return nil, nil
	}
	if k := &p.known; p.cache != nil && !slices.Contains(k.asked, v) {
		k.asked = append(k.asked, v)
	}
	if p.known.tokenizer != nil {
		return p.knownKeys(v)
	}
	if err := p.cut(v); err != nil {
		return nil, err
	}
	return p.keysOf(v, p.locals), nil
}

func (p *prompt) keysOf(v index.Variant, locals []index.Local) []index.Key {
	s := p.scope
	if MediaForm(v.Media) == MediaBare {
		s.Salt = "" // it is in the first unit
	}
	r := keyRun{variant: v, root: p.hashes.Root(s, v)}
	from := len(p.keys)
	p.keys = hashing.Keys(p.keys, r.root, locals)
	r.keys = p.keys[from:len(p.keys):len(p.keys)]
	p.runs = append(p.runs, r)
	return r.keys
}

func (p *prompt) cut(v index.Variant) error {
	tokens := p.ids
	p.extras = p.extras[:0]
	switch MediaForm(v.Media) {
	case MediaOffsets:
		for i := range p.media {
			p.extras = append(p.extras, hashing.MediaAt(p.media[i].Hash, p.media[i].Offset, v.Unit))
		}
	case MediaBare:
		p.extras = bareMedia(p.extras, p.media, p.scope.Salt, v, len(tokens))
	case MediaPad:
		if len(p.media) > 0 {
			p.padded = append(p.padded[:0], tokens...)
			tokens = p.padded
			if err := pad(tokens, p.media); err != nil {
				return err
			}
		}
	}
	plain := index.Variant{Unit: v.Unit, Pairs: v.Pairs}
	if len(p.media) > 0 || len(p.extras) > 0 {
		plain = index.Variant{}
	} else if plain == p.plain {
		return nil
	}
	p.plain = plain
	width := v.Unit
	if v.Pairs {
		p.pairs = appendPairs(p.pairs[:0], tokens)
		tokens = p.pairs
		width *= 2
	}
	p.locals = p.hashes.Of(p.scope.Adapter).Locals(p.locals[:0], tokens, width, p.extras)
	return nil
}

// tieHash returns the hash of the prompt by which ties are broken.
func (p *prompt) tieHash() uint64 {
	if len(p.hashed) == 0 {
		ties := p.known.ties
		if p.known.tokenizer == nil {
			if p.plain != firstForms[0] {
				p.locals = p.hashes.Of(p.scope.Adapter).Locals(p.locals[:0], p.ids, hashing.TieUnit, nil)
				p.plain = firstForms[0]
			}
			ties = hashing.FoldOf(p.ids, p.locals)
		}
		p.hashed = hashing.AppendPrompt(p.hashed, p.scope, ties)
		for i := range p.media {
			p.hashed = hashing.AppendName(p.hashed, p.media[i].Hash)
		}
		p.hash = p.hashes.Tie(p.hashed)
	}
	return p.hash
}

// bareMedia appends the items of a prompt, by the blocks that they overlap, as
// vLLM went through them (v1/core/kv_cache_utils.py, _gen_mm_extra_hash_keys,
// before 2026-03-20). The salt comes behind the media of the first block.
func bareMedia(dst []hashing.Extra, media []Media, salt string, v index.Variant, tokens int) []hashing.Extra {
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
func pad(tokens []uint32, media []Media) error {
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

// appendPairs appends what EAGLE's tree has of a prompt: each token with the
// next.
func appendPairs(dst, tokens []uint32) []uint32 {
	for i := 1; i < len(tokens); i++ {
		dst = append(dst, tokens[i-1], tokens[i])
	}
	return dst
}
