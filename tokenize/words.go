package tokenize

import "bytes"

// A wordCache keeps what pieces of several tokens came to, for the next time. It
// is direct-mapped and of a fixed size, and belongs to a call's memory, so that no
// lock is needed. A piece that is one token is found in the vocabulary as fast.
type wordCache []cachedWord

const (
	cachedWords  = 1 << 11
	cachedBytes  = 24 // of the longest piece that is kept
	cachedTokens = 8
)

type cachedWord struct {
	length, tokens uint8 // length 0 is an empty entry
	text           [cachedBytes]byte
	ids            [cachedTokens]uint32
}

func (c wordCache) bytes() int { return cap(c) * (2 + cachedBytes + 4*cachedTokens) }

// find returns the ids of a piece, nil if they are not there.
func (c wordCache) find(hash uint64, piece []byte) []uint32 {
	if len(c) == 0 || len(piece) > cachedBytes {
		return nil
	}
	w := &c[hash%cachedWords]
	if !bytes.Equal(w.text[:w.length], piece) {
		return nil
	}
	return w.ids[:w.tokens]
}

// put keeps the ids of a piece in the place of another's.
func (c *wordCache) put(hash uint64, piece []byte, ids []uint32) {
	if len(piece) > cachedBytes || len(ids) > cachedTokens || len(ids) == 0 {
		return
	}
	if *c == nil {
		*c = make(wordCache, cachedWords)
	}
	w := &(*c)[hash%cachedWords]
	w.length, w.tokens = uint8(copy(w.text[:], piece)), uint8(copy(w.ids[:], ids))
}
