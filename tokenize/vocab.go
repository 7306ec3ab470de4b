package tokenize

import (
	"bytes"
	"hash/maphash"
	"math/bits"
)

// A vocab maps texts to ids: all texts in one array, and a hash table of their
// numbers with linear probing, at most half full. A Go map of strings takes three
// times the memory and twice the time. It is read-only once its table is made.
type vocab struct {
	text    []byte
	ends    []uint32 // by number: where its text ends; the next one's begins there
	ids     []uint32 // by number
	longest int      // bytes of the longest text

	slots []uint32 // number plus one, under tagBits of the hash; 0 is empty
	seed  maphash.Seed
}

// A slot has the number of a text, plus one, in its low bits; the others distinguish
// most texts without a look at them.
const (
	numberMask = 1<<idBits - 1
	tagMask    = ^uint32(numberMask)
)

func (v *vocab) len() int { return len(v.ids) }

func (v *vocab) size() int {
	return cap(v.text) + 4*(cap(v.ends)+cap(v.ids)+cap(v.slots))
}

// add appends a text, before the table is made.
func (v *vocab) add(text []byte, id uint32) {
	v.text = append(v.text, text...)
	v.close(id)
}

// close makes a text of the bytes appended to v.text since the last one.
func (v *vocab) close(id uint32) {
	v.ends = append(v.ends, uint32(len(v.text)))
	v.ids = append(v.ids, id)
	v.longest = max(v.longest, len(v.at(v.len()-1)))
}

// at returns the text with number i.
func (v *vocab) at(i int) []byte {
	from := uint32(0)
	if i > 0 {
		from = v.ends[i-1]
	}
	return v.text[from:v.ends[i]]
}

// index makes the table. It returns the number of a text that is repeated, -1
// if none is.
func (v *vocab) index() int {
	v.seed = maphash.MakeSeed()
	v.slots = make([]uint32, 1<<bits.Len(uint(2*v.len())))
	mask := uint32(len(v.slots) - 1)
	for i := range v.ids {
		text := v.at(i)
		hash := v.hash(text)
		if v.find(hash, text) >= 0 {
			return i
		}
		h := uint32(hash)
		for v.slots[h&mask] != 0 {
			h++
		}
		v.slots[h&mask] = uint32(hash>>32)&tagMask | uint32(i+1)
	}
	return -1
}

func (v *vocab) hash(text []byte) uint64 { return maphash.Bytes(v.seed, text) }

// find returns the number of the text with this hash, -1 for none.
func (v *vocab) find(hash uint64, text []byte) int {
	mask := uint32(len(v.slots) - 1)
	tag := uint32(hash>>32) & tagMask
	for h := uint32(hash); ; h++ {
		s := v.slots[h&mask]
		if s == 0 {
			return -1
		}
		if i := int(s&numberMask) - 1; s&tagMask == tag && bytes.Equal(v.at(i), text) {
			return i
		}
	}
}

// id returns the id of text.
func (v *vocab) id(text []byte) (uint32, bool) {
	if i := v.find(v.hash(text), text); i >= 0 {
		return v.ids[i], true
	}
	return 0, false
}
