package redisindex

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/kvindex/kvindex/index"
)

// Sections and not shared masks. A bucket could have one list of keys and one mask for each
// holder, which scripts change bit by bit. Then a script must parse keys and masks, two
// writers change the same bytes, and a command that runs twice or late must be detected:
// client libraries send a pipeline again by themselves after a cut. A section is one writer's
// whole content of a bucket, so the same write may come twice, and an older one is refused by
// its number. The price is that two writers have the keys of a bucket twice, and that each
// change of a bucket writes all of it: some 300 bytes, a few kilobytes where a thousand pods
// hold it.
//
// # Buckets by place, split by size
//
// A reader computes the names of a prompt's buckets without a query, because a key of the
// prompt itself names each bucket. If many prompts fork inside of one bucket it is split into
// parts of 8 keys, and these into single keys; in a part each fork has a value of its own.
// Parts are joined again only when empty: a reader that has seen the split must find them. A
// reader remembers split buckets, and fetches the parts in the trip of the bucket. A new split
// costs a trip more, and no wrong answer.

// The value of a bucket has a section for each writer with keys in it. Writers never touch the
// sections of others.
//
//	value    = "K" 1 section...
//	section  = writer:8 seq:8 length:4 body
//	body     = 1                                the bucket is split: look at its parts
//	         | 0 line...
//	line     = slot:1 n:1 key:8 (n of them) length group...   from that slot on
//	group    = mask:4 count number (the first as it is, the others as differences)
//
// Numbers without a size are uvarints, others are little-endian. A bit of a mask is a slot of
// the bucket. A number is a holder of the writer of the section. All holders of a group hold
// the same slots.
const (
	valueHead   = "K\x01"
	sectionHead = 20

	bodyLines = 0
	bodySplit = 1
)

// Buckets hold the keys from a multiple of their span in a prompt on. The first key of that
// range names the bucket. One that becomes too large is split into buckets of the next level;
// those of the last have one key.
const levels = 3

var spans = [levels]int{32, 8, 1}

// maxSection bounds the section of a bucket, in bytes, before the bucket is split, if it has
// more than one line. A section of one line has 290 bytes, and one or two for each holder.
const maxSection = 2048

// maxLines bounds the lines of a bucket before it is split, as long as it was not encoded.
// More do not fit into a section, and make the search for one longer.
const maxLines = maxSection / 16

// A line is a run of keys of a bucket.
type line struct {
	slot int // of the first key
	keys []index.Key
	held []lineHolder // by number
	// anchor is the key that names the part of the next level with the first key.
	anchor index.Key
}

// A lineHolder is a holder and the mask of its slots.
type lineHolder struct{ number, mask uint32 }

// appendLine appends a line with its holders in who.
func appendLine(b []byte, l *line, who []lineHolder) []byte {
	all := uint32(0)
	for _, h := range who {
		all |= h.mask
	}
	if all == 0 {
		return b
	}
	n := bits.Len32(all) - l.slot // keys behind the last held one are not written
	b = append(b, byte(l.slot), byte(n))
	for _, k := range l.keys[:n] {
		b = binary.LittleEndian.AppendUint64(b, uint64(k))
	}
	slices.SortFunc(who, func(a, b lineHolder) int {
		return cmp.Or(cmp.Compare(a.mask, b.mask), cmp.Compare(a.number, b.number))
	})
	var buf [256]byte
	groups := buf[:0]
	for len(who) > 0 {
		n := 1
		for n < len(who) && who[n].mask == who[0].mask {
			n++
		}
		groups = binary.LittleEndian.AppendUint32(groups, who[0].mask)
		groups = binary.AppendUvarint(groups, uint64(n))
		last := uint32(0)
		for _, h := range who[:n] {
			groups = binary.AppendUvarint(groups, uint64(h.number-last))
			last = h.number
		}
		who = who[n:]
	}
	b = binary.AppendUvarint(b, uint64(len(groups)))
	return append(b, groups...)
}

// A reader reads values of other processes. After an invalid one it is bad, and returns zeros.
type reader struct {
	s   string
	bad bool
}

func (r *reader) fail() { r.s, r.bad = "", true }

func (r *reader) bytes(n uint64) (s string) {
	if n > uint64(len(r.s)) {
		r.fail()
		return ""
	}
	s, r.s = r.s[:n], r.s[n:]
	return s
}

func (r *reader) byte() byte {
	if len(r.s) == 0 {
		r.fail()
		return 0
	}
	b := r.s[0]
	r.s = r.s[1:]
	return b
}

func (r *reader) u32() uint32 {
	if len(r.s) < 4 {
		r.fail()
		return 0
	}
	v := u32(r.s)
	r.s = r.s[4:]
	return v
}

func (r *reader) u64() uint64 {
	lo := r.u32()
	return uint64(r.u32())<<32 | uint64(lo)
}

func (r *reader) uvarint() (v uint64) {
	if len(r.s) > 0 && r.s[0] < 0x80 {
		v = uint64(r.s[0])
		r.s = r.s[1:]
		return v
	}
	for i := 0; i < len(r.s) && i < binary.MaxVarintLen64; i++ {
		b := r.s[i]
		if b < 0x80 {
			r.s = r.s[i+1:]
			return v | uint64(b)<<(7*i)
		}
		v |= uint64(b&0x7f) << (7 * i)
	}
	r.fail()
	return 0
}

func u32(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func u64(s string) uint64 { return uint64(u32(s)) | uint64(u32(s[4:]))<<32 }

// sections calls each for the sections of a value. It returns false if the value is invalid,
// or each has returned false; the sections of other writers count all the same.
func sections(value string, each func(writer, seq uint64, body string) bool) bool {
	if len(value) < len(valueHead) || value[:len(valueHead)] != valueHead {
		return false
	}
	r, fine := reader{s: value[len(valueHead):]}, true
	for len(r.s) > 0 {
		writer, seq := r.u64(), r.u64()
		body := r.bytes(uint64(r.u32()))
		if r.bad {
			return false
		}
		fine = each(writer, seq, body) && fine
	}
	return fine
}

// findings receives the content of a body for a prompt.
type findings interface {
	// holder receives the slots of the prompt that a group of holders has.
	holder(number, mask uint32)
	// split: the bucket is split.
	split()
}

// find reports the content of a body for the keys of a prompt from the bucket's first slot on,
// at most as many as its span. It returns false if the body is invalid; earlier findings are
// true.
func find[F findings](body string, keys []index.Key, f F) bool {
	r := reader{s: body}
	switch r.byte() {
	case bodySplit:
		f.split()
		return true
	case bodyLines:
	default:
		return false
	}
	for len(r.s) > 0 && !r.bad {
		slot, n := int(r.byte()), int(r.byte())
		if slot+n > spans[0] || n == 0 {
			return false
		}
		run := r.bytes(uint64(8 * n))
		groups := r.bytes(r.uvarint())
		if r.bad {
			return false
		}
		same := 0
		for same < n && slot+same < len(keys) && keys[slot+same] == index.Key(u64(run[8*same:])) {
			same++
		}
		if same == 0 {
			continue
		}
		here := uint32((uint64(1)<<same - 1) << slot)
		g := reader{s: groups}
		for len(g.s) > 0 {
			mask, count := g.u32(), g.uvarint()
			if count > uint64(len(g.s)) {
				return false
			}
			mask &= here
			for number := uint32(0); count > 0; count-- {
				number += uint32(g.uvarint())
				if mask != 0 && !g.bad {
					f.holder(number, mask)
				}
			}
		}
		if g.bad {
			return false
		}
	}
	return !r.bad
}
