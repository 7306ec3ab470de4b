package kvindex

import (
	"encoding/binary"
	"slices"

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
	mediaBare                       // an item without offset overlaps the block that the unit begins
	embeds                          // prompt embeddings
	unreadable                      // an extra key of a form that is not known
)

// mediaAt places an item that starts at a token. Both paths use it: an engine
// tells the start within a block, a request within the prompt.
func mediaAt(id string, token, unit int) extra {
	return extra{token / unit, mediaStart, xxh3.HashString(id), uint32(token % unit)}
}

const extraLen = 1 + 8 + 4

// locals appends the locals of the whole units of tokens; a partial tail gives
// none. extras are ordered by unit.
//
// A unit without extras hashes 4*unit bytes and one with k of them 4*unit +
// 13*k, so within a variant no two contents give the same bytes.
func (h hasher) locals(dst []index.Local, tokens []uint32, unit int, extras []extra) []index.Local {
	var buf [4*16 + 2*extraLen]byte
	b := buf[:4*unit]
	dst = slices.Grow(dst, len(tokens)/unit)
	for i := 0; (i+1)*unit <= len(tokens); i++ {
		for j, t := range tokens[i*unit : (i+1)*unit] {
			binary.LittleEndian.PutUint32(b[4*j:], t)
		}
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
