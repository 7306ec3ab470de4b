package kvindex

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/index"
	"github.com/zeebo/xxh3"
)

// hasher turns tokens into the locals and roots of one index. Equal seeds give
// equal values on every machine.
type hasher struct {
	localSeed, rootSeed uint64
}

func newHasher(seed [16]byte) hasher {
	return hasher{binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])}
}

// scope is what separates equal tokens.
type scope struct {
	model, adapter, salt string
}

// of returns the hasher for the units of an adapter. The adapter is in the
// root already. But vLLM's hash of a first block is the same for an adapter and
// for a salt of that name, so the children of one can name the block of the
// other as their parent: they must not inherit its root and then match.
func (h hasher) of(adapter string) hasher {
	if adapter != "" {
		h.localSeed ^= xxh3.HashStringSeed(adapter, h.rootSeed)
	}
	return h
}

// root returns the key that chains of a scope begin with. Each part is written
// with its length, so that no two scopes give the same bytes.
func (h hasher) root(s scope, v index.Variant) index.Key {
	b := make([]byte, 0, 128)
	for _, part := range [...]string{s.model, s.adapter, s.salt} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	b = binary.AppendUvarint(b, uint64(v.Unit))
	if rest := (index.Variant{Unit: v.Unit}); v != rest {
		b = append(b, byte(v.Media))
		b = binary.AppendUvarint(b, uint64(v.Block))
		b = strconv.AppendBool(b, v.Pairs)
	}
	return index.Key(xxh3.HashSeed(b, h.rootSeed))
}

// extra is what goes into the local of a unit besides its tokens.
type extra struct {
	unit   int
	kind   extraKind
	id     uint64 // xxh3 of the identifier
	offset uint32 // of mediaStart: where in the unit the item starts
}

type extraKind byte

const (
	mediaStart extraKind = iota + 1 // a media item starts in the unit
	mediaBare                       // an item overlaps the block that the unit begins
	embeds                          // prompt embeddings
	unreadable                      // an extra key of a form that is not known
)

// mediaAt places an item that starts at a token. Both paths use it: an engine
// tells the start within a block, a request within the prompt.
func mediaAt(id string, token, unit int) extra {
	return extra{token / unit, mediaStart, xxh3.HashString(id), uint32(token % unit)}
}

// bareMedia appends the items of a prompt, by the blocks that they overlap, as
// vLLM went through them (v1/core/kv_cache_utils.py, _gen_mm_extra_hash_keys,
// before 2026-03-20). The salt comes behind the media of the first block.
func bareMedia(dst []extra, media []Media, salt string, v index.Variant, tokens int) []extra {
	for from := 0; from+v.Block <= tokens; from += v.Block {
		to, first := from+v.Block, from/v.Unit
		for len(media) > 0 && media[0].Offset < to {
			m := &media[0]
			end := m.Offset + min(max(m.Length, 1), tokens-m.Offset)
			if end > from {
				dst = append(dst, extra{first, mediaBare, xxh3.HashString(m.Hash), 0})
			}
			if end > to {
				break
			}
			media = media[1:]
		}
		if from == 0 && salt != "" {
			dst = append(dst, extra{first, mediaBare, xxh3.HashString(salt), 0})
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

const extraLen = 1 + 8 + 4

// locals appends the locals of the whole units of tokens; a partial tail gives
// none. extras are ordered by unit. Pairs are hashed as the tokens that they
// are, so a unit of them is of twice as many.
//
// A unit without extras hashes 4*unit bytes and one with k of them 4*unit +
// 13*k, so within a variant no two contents give the same bytes.
func (h hasher) locals(dst []index.Local, tokens []uint32, unit int, extras []extra) []index.Local {
	var buf [4*32 + 2*extraLen]byte
	b := buf[:4*unit]
	dst = slices.Grow(dst, len(tokens)/unit)
	for i := 0; (i+1)*unit <= len(tokens); i++ {
		putTokens(b, tokens[i*unit:(i+1)*unit])
		full := b
		for len(extras) > 0 && extras[0].unit == i {
			x := extras[0]
			extras = extras[1:]
			full = append(full, byte(x.kind))
			full = binary.LittleEndian.AppendUint64(full, x.id)
			full = binary.LittleEndian.AppendUint32(full, x.offset)
		}
		dst = append(dst, index.Local(xxh3.HashSeed(full, h.localSeed)))
	}
	return dst
}

// keys appends the prefix keys at the end of each unit. By the chain rule,
// keys(root, a+b) = keys(root, a) ++ keys(last key of a, b).
func keys(dst []index.Key, prev index.Key, locals []index.Local) []index.Key {
	dst = slices.Grow(dst, len(locals))
	for _, l := range locals {
		prev = index.Chain(prev, l)
		dst = append(dst, prev)
	}
	return dst
}

// Ties. Pods that would reuse the same of a prompt are ordered by a rendezvous: the
// prompt gives each pod a place, whoever else is asked for. So prompts that nobody
// holds spread evenly, equal ones go to the same pod, and a pod that comes or goes
// moves no prompt but its own.

// tieTokens is how many tokens at either end of a prompt its places depend on. A
// prompt of more is told from another by these and its length.
const tieTokens = 512

// prompt returns the hash of a prompt by which ties are broken: of its tokens and of
// what else separates it from others, but not of the model. It writes what it hashes
// to b, which it returns.
func (h hasher) prompt(b []byte, s scope, tokens []uint32, media []Media) (uint64, []byte) {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tokens)))
	b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(s.adapter))
	b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(s.salt))
	for i := range media {
		b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(media[i].Hash))
	}
	if len(tokens) <= 2*tieTokens {
		b = appendTokens(b, tokens)
	} else {
		b = appendTokens(b, tokens[:tieTokens])
		b = appendTokens(b, tokens[len(tokens)-tieTokens:])
	}
	return xxh3.HashSeed(b, h.localSeed), b
}

func appendTokens(b []byte, tokens []uint32) []byte {
	at := len(b)
	b = slices.Grow(b, 4*len(tokens))[:at+4*len(tokens)]
	putTokens(b[at:], tokens)
	return b
}

// putTokens writes tokens, two a word where it can.
func putTokens(to []byte, tokens []uint32) {
	for len(tokens) >= 8 && len(to) >= 32 {
		t, b := (*[8]uint32)(tokens), (*[32]byte)(to)
		binary.LittleEndian.PutUint64(b[0:], uint64(t[0])|uint64(t[1])<<32)
		binary.LittleEndian.PutUint64(b[8:], uint64(t[2])|uint64(t[3])<<32)
		binary.LittleEndian.PutUint64(b[16:], uint64(t[4])|uint64(t[5])<<32)
		binary.LittleEndian.PutUint64(b[24:], uint64(t[6])|uint64(t[7])<<32)
		tokens, to = tokens[8:], to[32:]
	}
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(to[4*i:], t)
	}
}

// pod returns the hash of a pod's name for place.
func (h hasher) pod(name string) uint64 { return xxh3.HashStringSeed(name, h.rootSeed) }

// place says where a pod stands among equals for a prompt, by the hashes of both:
// the highest is first.
func place(prompt, pod uint64) uint32 {
	high, low := bits.Mul64(prompt^pod, 0x9e3779b97f4a7c15)
	return uint32((high ^ low) >> 32)
}

// placeOfRank is place for the ranks of one pod among each other.
func placeOfRank(prompt, pod uint64, rank int) uint32 {
	high, low := bits.Mul64(pod^uint64(rank), 0x9e3779b97f4a7c15)
	return place(prompt, high^low)
}
