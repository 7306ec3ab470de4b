// Package enginehash computes the names that vLLM gives to blocks, bit by bit
// as the engine does, for the algorithm sha256_cbor.
//
// A chain begins with [NoneHash] and goes on block by block with
// [Hasher.Block]; [Digest.Int] is what the engine publishes by default.
//
// Reproduced: vLLM 0.10.2 and later, v1/core/kv_cache_utils.py
// (hash_block_tokens, generate_block_hash_extra_keys) and utils/hashing.py.
package enginehash

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// CBOR is written by hand. fxamacker/cbor v2 takes 3.5 times as long for a block hash, with
// six allocations (BENCHMARKS.md). The tests have it as an independent encoder.

// Digest is the full name of a block and of the prefix that ends with it.
type Digest [sha256.Size]byte

// Int is the digest as the engine publishes it unless it is configured to publish
// bytes: the last 8 bytes, big-endian.
func (d Digest) Int() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// NoneHash is the parent of the first block of every chain of an engine that
// was started with seed as its PYTHONHASHSEED. An engine without that variable
// draws its own at each start, which nobody outside can know.
func NoneHash(seed string) Digest {
	return sha256.Sum256(appendText(nil, seed))
}

// A Hasher names blocks. Its zero value is ready; it keeps nothing but memory
// from one block to the next. It is not safe for concurrent use.
type Hasher struct {
	buf []byte
}

// Block is the name of the block that holds tokens and follows parent. The
// other parts of the engine's hash input come as extra, in the engine's
// order: adapter, media, salt (in the first block only), prompt embeddings.
func (h *Hasher) Block(parent Digest, tokens []uint32, extra []Extra) Digest {
	b := append(h.buf[:0], majorArray|3, majorBytes|oneByte, byte(len(parent)))
	b = append(b, parent[:]...)
	b = appendTokens(appendHead(b, majorArray, uint64(len(tokens))), tokens)
	if len(extra) == 0 {
		b = append(b, null)
	} else {
		b = appendHead(b, majorArray, uint64(len(extra)))
		for i := range extra {
			b = extra[i].append(b)
		}
	}
	h.buf = b
	return sha256.Sum256(b)
}

// CBOR (RFC 8949) writes an item as a head, whose upper three bits are the
// major type, and its content. A number below 24 lies in the head itself, else
// the head has the number of bytes in which it follows.
const (
	majorUint     = 0 << 5
	majorNegative = 1 << 5
	majorBytes    = 2 << 5
	majorText     = 3 << 5
	majorArray    = 4 << 5

	oneByte    = 24
	twoBytes   = 25
	fourBytes  = 26
	eightBytes = 27

	null = 0xf6
)

// appendHead writes n in the shortest form, as canonical CBOR wants it.
func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < oneByte:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|oneByte, byte(n))
	case n < 1<<16:
		return append(b, major|twoBytes, byte(n>>8), byte(n))
	case n < 1<<32:
		return append(b, major|fourBytes, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|eightBytes), n)
}

// appendTokens is appendHead for many numbers of 32 bits: most of the time
// that naming a block takes beside SHA-256 itself goes here, so room is made
// once and numbers are written in place.
func appendTokens(b []byte, tokens []uint32) []byte {
	b = slices.Grow(b, 5*len(tokens))
	n := len(b)
	b = b[:n+5*len(tokens)]
	for _, t := range tokens {
		switch {
		case t < oneByte:
			b[n] = majorUint | byte(t)
			n++
		case t < 1<<8:
			b[n], b[n+1] = majorUint|oneByte, byte(t)
			n += 2
		case t < 1<<16:
			b[n] = majorUint | twoBytes
			binary.BigEndian.PutUint16(b[n+1:], uint16(t))
			n += 3
		default:
			b[n] = majorUint | fourBytes
			binary.BigEndian.PutUint32(b[n+1:], t)
			n += 5
		}
	}
	return b[:n]
}

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, majorText, uint64(len(s))), s...)
}

func appendInt(b []byte, n int64) []byte {
	if n < 0 {
		return appendHead(b, majorNegative, uint64(-1-n))
	}
	return appendHead(b, majorUint, uint64(n))
}
