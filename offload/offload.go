// Package offload stores blocks of KV bytes in the memory of a host and on its disk.
//
// It cannot touch the memory of a GPU: an engine, or a connector in it, copies between the
// two. A tier pays only where loading a block takes less time than computing it again:
// docs/offload.md has the arithmetic.
//
// Start at [Open]. A [Store] holds blocks of one [Space] in memory. [Segments] is a
// [Backend], blocks of any number of spaces in the files of a directory.
package offload

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// The reasons for which an operation stops early. Each is wrapped with what it is about.
var (
	// ErrMisaligned is returned for buffers that are not blocks of the space, and for keys
	// that are not as many as the blocks.
	ErrMisaligned = errors.New("offload: not whole blocks")
	// ErrTooLong is returned for what lies beyond Config.MaxTokens.
	ErrTooLong = errors.New("offload: chain too long")
	// ErrNoMemory is returned if all blocks of a store are pinned.
	ErrNoMemory = errors.New("offload: no memory that is not pinned")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("offload: closed")
	// ErrCorrupt is returned by a Backend for a block whose bytes are not those that were
	// put. The block is absent from then on.
	ErrCorrupt = errors.New("offload: corrupt block")
)

// Space is all that must be equal for the bytes of two blocks to be interchangeable.
type Space struct {
	Model, DType string
	Layout       string // the order of the bytes in a block; the package does not interpret it
	HashAlgo     string // what the keys are hashes by, with its seed if it has one
	BlockTokens  int    // tokens of a block
	BlockBytes   int    // bytes of a block
	Rank, Ranks  int    // the shard of the model: Rank of Ranks, the first is 0
	Group        int    // KV-cache group of a hybrid model
}

// SpaceID names a space on disk: the beginning of the SHA-256 of its fields.
type SpaceID [16]byte

// maxBlockBytes bounds a block, and with it what a header of a file can make a reader
// allocate.
const maxBlockBytes = 1 << 30

// ID returns the same value for equal spaces, and different values for different ones.
func (sp Space) ID() SpaceID {
	h := sha256.New()
	for _, s := range []string{sp.Model, sp.DType, sp.Layout, sp.HashAlgo} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	fmt.Fprintf(h, ":%d:%d:%d:%d:%d", sp.BlockTokens, sp.BlockBytes, sp.Rank, sp.Ranks, sp.Group)
	return SpaceID(h.Sum(nil)[:len(SpaceID{})])
}

func (sp Space) validate() error {
	switch {
	case sp.BlockTokens < 1:
		return fmt.Errorf("offload: Space.BlockTokens is %d", sp.BlockTokens)
	case sp.BlockBytes < 1 || sp.BlockBytes > maxBlockBytes:
		return fmt.Errorf("offload: Space.BlockBytes is %d, not 1 to %d", sp.BlockBytes, maxBlockBytes)
	case sp.Ranks < 1 || sp.Rank < 0 || sp.Rank >= sp.Ranks:
		return fmt.Errorf("offload: Space.Rank is %d of %d", sp.Rank, sp.Ranks)
	case sp.Group < 0:
		return fmt.Errorf("offload: Space.Group is %d", sp.Group)
	}
	return nil
}

// Key is the engine's own hash of a block, which names the block and all before it. A hash
// shorter than 32 bytes is followed by zeros.
type Key [32]byte

// KeyOf returns the key of an engine's block hash of 1 to 32 bytes.
func KeyOf(hash []byte) (Key, error) {
	var k Key
	if len(hash) < 1 || len(hash) > len(k) {
		return k, fmt.Errorf("offload: a block hash of %d bytes, not 1 to %d", len(hash), len(k))
	}
	copy(k[:], hash)
	return k, nil
}

// Keys makes keys for hosts whose engine has none: the key of a block is the SHA-256 of the
// key before it and its tokens, each in 4 bytes, little-endian. The parent is the key
// before the first block, or the zero Key where a prompt begins. Tokens behind the last whole
// block have no key. Keys takes time linear in the tokens. It panics if blockTokens is less
// than 1.
func Keys(parent Key, blockTokens int, tokens []uint32) []Key {
	keys := make([]Key, 0, len(tokens)/blockTokens)
	in := make([]byte, 0, len(parent)+4*blockTokens)
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		in = append(in[:0], parent[:]...)
		for _, t := range tokens[:blockTokens] {
			in = binary.LittleEndian.AppendUint32(in, t)
		}
		parent = sha256.Sum256(in)
		keys = append(keys, parent)
	}
	return keys
}

// Chunk is a part of a chain that is worth one operation.
type Chunk struct {
	Prefix, Keys []Key // what lies before the chunk; the chunk
	Next         []Key // the chunk after it, to be fetched ahead; empty for the last
}

// Chunks divides a chain into chunks of so many tokens, rounded down to blocks, but at least
// 4 blocks. Zero tokens are 512.
func (sp Space) Chunks(chain []Key, tokens int) iter.Seq[Chunk] {
	if tokens == 0 {
		tokens = 512
	}
	n := min(max(tokens/sp.BlockTokens, 4), max(len(chain), 1)) // so that no sum overflows
	return func(yield func(Chunk) bool) {
		for from := 0; from < len(chain); from += n {
			to := min(from+n, len(chain))
			c := Chunk{Prefix: chain[:from], Keys: chain[from:to], Next: chain[to:min(to+n, len(chain))]}
			if !yield(c) {
				return
			}
		}
	}
}
