// Package hashing makes the keys of tokens, and the hashes of prompts by which equal pods are
// ordered.
//
// # Keys
//
// Prompts are not trusted, so nobody may make two keys equal without the seed. The local of a
// unit is therefore a universal hash; the comment "Units" below has the formula and the proof.
// Two different contents of a unit, tokens and extras, have equal locals with a probability of
// at most 2^-63, whatever they are. Among 100 million different units the chance of any two
// equal locals is at most 6 in 10,000. xxh3 has no such bound and is no faster, even over a
// view of the tokens as bytes.
//
// index.Chain is public, and a bijection of either argument. So two prefixes that end with
// equal units have different keys if the keys before that unit differ. If they end with
// different units, one value of a local in 2^64 makes the keys equal. That is 3 in 10,000 for
// any two of 100 million keys, if locals behave like independent numbers. No proof covers
// units that come in both prefixes, in another order or more often. So locals are mixed before
// they are chained, and TestChainOfRepeatedUnits of package index counts equal keys in words
// of 10 bits. A product whose halves are xored is no faster, and was 8 times as often equal in
// words of 16 bits.
//
// Roots, names and the ids of media and adapters are xxh3. It is seeded, except for the ids of
// media and for salts in units: there a client who chooses ids can find two that are equal.
// TestKnownKeys pins the values that shared indexes depend on.
//
// # Ties
//
// If the first of equal pods got each prompt, one pod would get all cold traffic. So a
// rendezvous hash of prompt and pod decides (internal/ranking). The whole prompt counts and not
// its beginning: prompts that share a system prompt must spread while no pod holds it, and once
// a pod does they meet there by their score. The locals of its units of 16 tokens are added up,
// each times an odd number for its place, so the sum of a longer prompt continues from that of
// its beginning. The hash is seeded, so a client cannot aim at a pod. It costs 3 to 4 ns a pod
// where 64 or more are equal, 0.3 us for a long prompt, and 2 us more if no pod of the request
// has plain units of 16.
//
// A request that cannot be scored is hashed as it came, because its pods are equal too.
package hashing

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"unsafe"

	"github.com/kvindex/kvindex/index"
	"github.com/zeebo/xxh3"
)

// Hasher makes the locals and roots of one index. Equal seeds give equal values on every
// machine.
type Hasher struct {
	rootSeed, tieSeed uint64
	units             *unitKeys
	start             wide // added to each unit; it has the adapter
}

// New returns the Hasher of an index with this seed.
func New(seed [16]byte) Hasher {
	k := &unitKeys{seed: seed}
	for n := range k.scope {
		k.scope[n] = expand(seed, forScope, n)
	}
	for n := range k.tokens {
		k.tokens[n] = expand(seed, forTokens, n)
		k.extras[n] = expand(seed, forExtras, n)
	}
	seeds := k.scope[scopeSeeds]
	return Hasher{seeds.lo, seeds.hi, k, k.scope[scopeStart]}
}

// Scope separates equal tokens.
type Scope struct {
	Model, Adapter, Salt string
}

// Of returns the hasher for the units of an adapter. The adapter is in the
// root already. But vLLM's hash of a first block is the same for an adapter and
// for a salt of that name, so the children of one can name the block of the
// other as their parent: they must not inherit its root and then match.
func (h Hasher) Of(adapter string) Hasher {
	if adapter != "" {
		h.start = h.start.plus(&h.units.scope[scopeAdapter], xxh3.HashStringSeed(adapter, h.rootSeed))
	}
	return h
}

// Root returns the key that chains of a scope begin with. Each part is written
// with its length, so that no two scopes give the same bytes.
func (h Hasher) Root(s Scope, v index.Variant) index.Key {
	b := make([]byte, 0, 128)
	for _, part := range [...]string{s.Model, s.Adapter, s.Salt} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	b = binary.AppendUvarint(b, uint64(v.Unit))
	if rest := (index.Variant{Unit: v.Unit}); v != rest {
		b = append(b, v.Media)
		b = binary.AppendUvarint(b, uint64(v.Block))
		b = strconv.AppendBool(b, v.Pairs)
	}
	return index.Key(xxh3.HashSeed(b, h.rootSeed))
}

// Extra is an item that goes into the local of a unit beside its tokens.
type Extra struct {
	Unit   int
	Kind   ExtraKind
	ID     uint64 // xxh3 of the identifier
	Offset uint32 // for MediaStart: the start of the item within the unit
}

// ExtraKind is the kind of an Extra.
type ExtraKind byte

const (
	MediaStart ExtraKind = iota + 1 // a media item starts in the unit
	MediaBare                       // an item overlaps the block that the unit begins
	Embeds                          // prompt embeddings
	Unreadable                      // an extra key of an unknown form
)

// The values of index.Variant.Media: the forms in which engines put media into blocks.
const (
	FormOffsets uint8 = iota // each item at its offset
	FormBare                 // each item in the blocks that it overlaps
	FormPad                  // over the tokens of the item

	NumForms = iota
)

// MediaAt places an item that starts at a token. Both paths use it: an event has
// the start within a block, and a request has the start within the prompt.
func MediaAt(id string, token, unit int) Extra {
	return Extra{token / unit, MediaStart, xxh3.HashString(id), uint32(token % unit)}
}

// BareAt places an item, or a salt, that overlaps the block which a unit begins.
func BareAt(id string, unit int) Extra {
	return Extra{unit, MediaBare, xxh3.HashString(id), 0}
}

// Units. The content of a unit is written as pairs of words of 64 bits: two tokens a word,
// the first in the lower half, as many words of zero as it takes to fill the last pair,
// then a pair for each extra. Each pair has a secret key of two words, and
//
//	sum   = (a + key) * (b + key') of all pairs (a, b), mod 2^128
//	local = mix(upper half of (start + k * sum's upper half + k' * its lower half, mod 2^128))
//
// where factors are mod 2^64. start, k and k' are secret and have 128 bits; in start are,
// each times a key of its own, the unit, the adapter's hash and the number of extras.
//
// Two different contents have equal locals with a probability of at most 2^-63 over the
// keys, whatever the contents are. So nobody can choose such contents without the keys.
//
//   - If they differ in a pair, their sums are equal for at most one of 2^64 values of a key
//     (NH: Black, Halevi, Krawczyk, Krovetz, Rogaway, UMAC, 1999). Say that a is another one,
//     so the first factors are c and c', which differ. The sums are equal only if
//     c*u - c'*u' is what all other pairs make it, where u and u' are the second factors,
//     whose difference is given. If two values of the key of b did that, x apart, then
//     c*x = c'*x, or c*x = c'*(x - 2^64) where one of u and u' wraps around, mod 2^128. The
//     first needs c = c', and the second c = c' = 0.
//   - If their sums differ, or units, adapters or numbers of extras do, the upper halves
//     are equal for exactly one of 2^64 values of start and a key (Dietzfelbinger, Universal
//     hashing and k-wise independent random variables via integer arithmetic without
//     primes, 1996): let a word differ by d, and let 2^v be the largest power of 2
//     that divides d. Then d * key is any multiple of 2^v, so the two numbers differ by any
//     D of those that are 2^v apart. Their upper halves are equal for 2^64 - |D| of the 2^64
//     lower halves that start may give the first, if |D| < 2^64, else for none. That is
//     2^64 * 2^64/2^v of 2^64 * 2^128/2^v cases.
//   - mix is a bijection. It breaks the sums that similar contents have in common.
//
// The keys are made from the seed by SHA-256, so they are as good as random for everyone
// who does not know the seed.

// wide is a number of 128 bits.
type wide struct{ hi, lo uint64 }

// pair returns s + (a + key) * (b + key').
func (s wide) pair(key *wide, a, b uint64) wide {
	hi, lo := bits.Mul64(a+key.lo, b+key.hi)
	lo, carry := bits.Add64(s.lo, lo, 0)
	hi, _ = bits.Add64(s.hi, hi, carry)
	return wide{hi, lo}
}

// plus returns s + key * word.
func (s wide) plus(key *wide, word uint64) wide {
	hi, lo := bits.Mul64(key.lo, word)
	lo, carry := bits.Add64(s.lo, lo, 0)
	hi, _ = bits.Add64(s.hi, hi+key.hi*word, carry)
	return wide{hi, lo}
}

// local returns the local of a unit with sum s.
func (s wide) local(k *unitKeys, start wide) index.Local {
	x := start.plus(&k.scope[scopeHigh], s.hi).plus(&k.scope[scopeLow], s.lo).hi
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return index.Local(x ^ x>>29)
}

// word returns two tokens as a word.
func word(a, b uint32) uint64 { return uint64(a) | uint64(b)<<32 }

// unitKeys are the keys of units: for the scope, and for pairs of tokens and extras by their
// places, as many as are common.
type unitKeys struct {
	seed           [16]byte
	scope          [numScope]wide
	tokens, extras [8]wide // tokens: enough for 16 of EAGLE's pairs
}

// The uses of keys.
const (
	forScope byte = iota
	forTokens
	forExtras
)

// The keys for the scope.
const (
	scopeStart = iota
	scopeUnit
	scopeAdapter
	scopeExtras // how many there are
	scopeHigh   // the sum's halves
	scopeLow
	scopeSeeds // the seeds of xxh3
	numScope
)

// expand derives a key from the seed.
func expand(seed [16]byte, what byte, n int) wide {
	var b [16 + 1 + 8]byte
	copy(b[:], seed[:])
	b[16] = what
	binary.LittleEndian.PutUint64(b[17:], uint64(n))
	sum := sha256.Sum256(b[:])
	return wide{binary.LittleEndian.Uint64(sum[8:]), binary.LittleEndian.Uint64(sum[:])}
}

// ofTokens returns the keys of so many tokens.
func (k *unitKeys) ofTokens(unit int) []wide {
	keys := k.tokens[:]
	for n := len(keys); n < (unit+3)/4; n++ {
		keys = append(keys, expand(k.seed, forTokens, n))
	}
	return keys
}

func (k *unitKeys) ofExtra(n int) wide {
	if n < len(k.extras) {
		return k.extras[n]
	}
	return expand(k.seed, forExtras, n)
}

// sumOf returns the sum of the tokens of a unit.
func sumOf(keys []wide, tokens []uint32) (s wide) {
	for ; len(tokens) >= 4; keys, tokens = keys[1:], tokens[4:] {
		s = s.pair(&keys[0], word(tokens[0], tokens[1]), word(tokens[2], tokens[3]))
	}
	if len(tokens) > 0 {
		a, b := uint64(tokens[0]), uint64(0)
		if len(tokens) > 1 {
			a = word(tokens[0], tokens[1])
		}
		if len(tokens) > 2 {
			b = uint64(tokens[2])
		}
		s = s.pair(&keys[0], a, b)
	}
	return s
}

// Locals appends the locals of the whole units of tokens; a partial tail gives
// none. extras are ordered by unit. EAGLE's pairs are hashed as the tokens that they
// are, so a unit of them is of twice as many.
func (h Hasher) Locals(dst []index.Local, tokens []uint32, unit int, extras []Extra) []index.Local {
	from, n := len(dst), len(tokens)/unit
	dst = slices.Grow(dst, n)[:from+n]
	locals, keys := dst[from:], h.units.ofTokens(unit)
	start := h.start.plus(&h.units.scope[scopeUnit], uint64(unit))
	if unit == 16 && n > 0 { // a view of nothing may reach beyond it
		locals16(locals, tokens, h.units, start)
	} else {
		for i := range locals {
			locals[i] = sumOf(keys, tokens[i*unit:(i+1)*unit]).local(h.units, start)
		}
	}
	for len(extras) > 0 && extras[0].Unit < n {
		i, count := extras[0].Unit, 0
		s := sumOf(keys, tokens[i*unit:(i+1)*unit])
		for ; count < len(extras) && extras[count].Unit == i; count++ {
			key, x := h.units.ofExtra(count), &extras[count]
			s = s.pair(&key, x.ID, uint64(x.Kind)|uint64(x.Offset)<<8)
		}
		locals[i] = s.local(h.units, start.plus(&h.units.scope[scopeExtras], uint64(count)))
		extras = extras[count:]
	}
	return dst
}

// locals16 is sumOf and wide.local for the common unit of 16 tokens, written out: it
// takes a third of the time. The view of the tokens spares the bounds of each unit.
func locals16(locals []index.Local, tokens []uint32, k *unitKeys, start wide) {
	units := unsafe.Slice((*[16]uint32)(unsafe.Pointer(unsafe.SliceData(tokens))), len(locals))
	for i := range units {
		t := &units[i]
		s := wide{}.pair(&k.tokens[0], word(t[0], t[1]), word(t[2], t[3]))
		s = s.pair(&k.tokens[1], word(t[4], t[5]), word(t[6], t[7]))
		s = s.pair(&k.tokens[2], word(t[8], t[9]), word(t[10], t[11]))
		s = s.pair(&k.tokens[3], word(t[12], t[13]), word(t[14], t[15]))
		locals[i] = s.local(k, start)
	}
}

// Keys appends the prefix keys at the end of each unit. By the chain rule,
// Keys(root, a+b) = Keys(root, a) ++ Keys(last key of a, b).
func Keys(dst []index.Key, prev index.Key, locals []index.Local) []index.Key {
	from := len(dst)
	dst = slices.Grow(dst, len(locals))[:from+len(locals)]
	for i, l := range locals {
		prev = index.Chain(prev, l)
		dst[from+i] = prev
	}
	return dst
}

// Ties. Pods that would reuse the same number of tokens are ordered by a rendezvous hash: the
// prompt gives each pod a place that does not depend on the other pods. So prompts that no pod
// holds spread evenly, equal prompts go to the same pod, and a pod that comes or goes moves
// only its own prompts.

// TieUnit is the unit by which the tokens of a prompt go into its places, whatever the
// units of its pods.
const TieUnit = 16

// A Fold is a hash of the beginning of a prompt, in whole units of TieUnit tokens. The
// zero value is the hash of no units.
type Fold uint64

// Plus adds further units; first is the number of the first of them. Their locals have the
// adapter, and no media.
func (f Fold) Plus(first int, locals []index.Local) Fold {
	for i, l := range locals {
		f += Fold(l) * Fold(2*(first+i)+1)
	}
	return f
}

// PromptFold is the input of places from the tokens of a prompt: a hash of all whole units, and
// the rest.
type PromptFold struct {
	Units Fold     // hash of all whole units
	Tail  []uint32 // the tokens after them
	Count int      // number of all tokens
}

// FoldOf folds a prompt whose units have these locals.
func FoldOf(tokens []uint32, locals []index.Local) PromptFold {
	return PromptFold{Fold(0).Plus(0, locals), tokens[TieUnit*len(locals):], len(tokens)}
}

// AppendPrompt appends the input of Tie for a prompt: its tokens, adapter and salt, but not its
// model. The hashes of its media follow (AppendName).
func AppendPrompt(b []byte, s Scope, t PromptFold) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Count)) // so that no two prompts give the same bytes
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Units))
	for _, token := range t.Tail {
		b = binary.LittleEndian.AppendUint32(b, token)
	}
	b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(s.Adapter))
	return binary.LittleEndian.AppendUint64(b, xxh3.HashString(s.Salt))
}

// AppendName appends the hash of a name, such as the hash of a media item.
func AppendName(b []byte, name string) []byte {
	return binary.LittleEndian.AppendUint64(b, xxh3.HashString(name))
}

// Tie returns the hash of a prompt that breaks ties.
func (h Hasher) Tie(prompt []byte) uint64 { return xxh3.HashSeed(prompt, h.tieSeed) }

// tieEdge is how much of a long request's beginning and end its ties are made of, in bytes.
// A request that is not scorable may be long: a body has up to 256 MiB.
const tieEdge = 128 << 10

// edges returns a hash of a text, of a long one without the middle.
func edges(text []byte, seed uint64) uint64 {
	sum := xxh3.HashSeed(text[:min(len(text), tieEdge)], seed)
	if n := len(text); n > tieEdge {
		sum = sum*0x9e3779b97f4a7c15 ^ xxh3.HashSeed(text[max(n-tieEdge, tieEdge):], seed+uint64(n))
	}
	return sum
}

// Request replaces Tie for a request that could not be scored: it returns a hash of the request
// as it came, of a long one without the middle.
func (h Hasher) Request(body []byte, prompt string, tokens []uint32) uint64 {
	sum := edges(body, h.tieSeed) ^ edges(unsafe.Slice(unsafe.StringData(prompt), len(prompt)), h.tieSeed+1)
	for _, token := range tokens {
		sum = (sum ^ uint64(token)) * 0x9e3779b97f4a7c15
		sum ^= sum >> 32
	}
	return sum
}

// Pod returns the hash of a pod's name for ranking.
func (h *Hasher) Pod(name string) uint64 { return xxh3.HashStringSeed(name, h.rootSeed) }
