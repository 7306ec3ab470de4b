package forest

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"
)

// A dump is records of the slabs that some places depend on. Each
// record gives a number to a slab, from 1 on, or has the slots that were written since
// its last record. The slab before another one has the earlier record. A slab that is given
// up and used again gets another number.

// dump is a dump in progress.
type dump struct {
	at    []*[chunkSlabs]slabRecord // by chunk; nil: none of its slabs has a number
	n     uint32                    // slabs with a number
	way   []Loc                     // from a place up to what has a record; nothing is moved meanwhile
	top   bool                      // way is whole
	bytes int
}

// slabRecord is the last record of a slab in a dump.
type slabRecord struct {
	number uint32 // 0: it has none
	slots  uint32 // that have records
}

// The kinds of records: their first byte.
const (
	DumpSlab  = 1 // before (number<<5 | slot, 0: nothing), variant, time, keys
	DumpSlots = 2 // number, keys
)

// DumpBytes is the bound of a record of a slab.
const DumpBytes = 1 + 5 + 1 + 4 + 1 + slabSlots*wordBytes

// BeginDump begins a dump. There is one at a time.
func (f *Forest) BeginDump() { f.dump = new(dump) }

// HandOn goes on with so many slabs, and reports whether it has seen all. The slab before another
// one takes over its time, as it will when that one goes, so that a part of a dump shows how
// cold its slabs are.
func (f *Forest) HandOn(s *Survey, n int) (done bool) {
	return f.eachSlab(s, n, func(_ uint32, _ *chunk, m *slabMeta) {
		for used := atomic.LoadUint32(&m.used); m.parent != 0; {
			m = f.meta(f.before(m).Slab())
			if int32(used-atomic.LoadUint32(&m.used)) <= 0 {
				return
			}
			atomic.StoreUint32(&m.used, used)
		}
	})
}

// EndDump ends it, and returns how many slabs have a number.
func (f *Forest) EndDump() (slabs uint32) {
	f.countSlabs(-f.dump.bytes)
	slabs = f.dump.n
	f.dump = nil
	return slabs
}

// of returns what there is of a slab.
func (d *dump) of(f *Forest, id uint32) *slabRecord {
	for n := int(id / chunkSlabs); n >= len(d.at); {
		d.at = append(d.at, nil)
	}
	page := &d.at[id/chunkSlabs]
	if *page == nil {
		*page = new([chunkSlabs]slabRecord)
		d.bytes += int(unsafe.Sizeof(**page)) + 2*wordBytes
		f.countSlabs(int(unsafe.Sizeof(**page)) + 2*wordBytes)
	}
	return &(*page)[id%chunkSlabs]
}

// forgetDumped removes the number of a slab that begins another life.
func (f *Forest) forgetDumped(id uint32) {
	if d := f.dump; d != nil && int(id/chunkSlabs) < len(d.at) && d.at[id/chunkSlabs] != nil {
		d.at[id/chunkSlabs][id%chunkSlabs] = slabRecord{}
	}
}

// moveDumped moves the number of a slab that was moved.
func (f *Forest) moveDumped(id, to uint32) {
	if f.dump != nil {
		was := *f.dump.of(f, id)
		f.forgetDumped(id)
		*f.dump.of(f, to) = was
	}
}

// Dump appends to dst the records that are needed for l, but no more than most, and
// returns the number of the slab of l with the slot: number<<5 | slot. If that is 0, the
// call is to be repeated, with nothing else between. l is pinned.
func (f *Forest) Dump(dst []byte, l Loc, most int) (records []byte, number uint32) {
	d := f.dump
	for at := l; !d.top; most-- {
		if n := len(d.way); n > 0 {
			at = f.parent(d.way[n-1])
		}
		if at == 0 || at.Slot() < int(d.of(f, at.Slab()).slots) {
			d.top = true
			break
		}
		if most == 0 {
			return dst, 0
		}
		d.way = append(d.way, at)
	}
	for ; len(d.way) > 0; most-- {
		if most <= 0 {
			return dst, 0
		}
		at := d.way[len(d.way)-1]
		d.way = d.way[:len(d.way)-1]
		dst = f.dumpSlab(dst, at.Slab())
	}
	d.top = false
	return dst, d.of(f, l.Slab()).number<<5 | uint32(l.Slot())
}

// Dumped is Dump where that needs no records, else 0.
func (f *Forest) Dumped(l Loc) uint32 {
	if of := f.dump.of(f, l.Slab()); l.Slot() < int(of.slots) {
		return of.number<<5 | uint32(l.Slot())
	}
	return 0
}

func (f *Forest) dumpSlab(dst []byte, id uint32) []byte {
	d, m := f.dump, f.meta(id)
	of, from := d.of(f, id), 0
	if of.number == 0 {
		d.n++
		of.number = d.n
		before := uint32(0)
		if p := f.parent(locOf(id, 0)); p != 0 {
			before = d.of(f, p.Slab()).number<<5 | uint32(p.Slot())
		}
		dst = append(dst, DumpSlab)
		dst = binary.AppendUvarint(dst, uint64(before))
		dst = append(dst, byte(m.refs>>refsBits))
		dst = binary.LittleEndian.AppendUint32(dst, atomic.LoadUint32(&m.used))
	} else {
		from = int(of.slots)
		dst = append(dst, DumpSlots)
		dst = binary.AppendUvarint(dst, uint64(of.number))
	}
	written := m.load().written()
	of.slots = uint32(written)
	dst = append(dst, byte(written-from))
	for _, k := range f.keys(id)[from:written] {
		dst = binary.LittleEndian.AppendUint64(dst, k)
	}
	return dst
}

// SetNow sets the clock.
func (f *Forest) SetNow(now uint32) { f.now.Store(now) }

// Lives reports whether a slab is in use and was not evicted. It must have been in use
// when a slab was placed last.
func (f *Forest) Lives(l Loc) bool {
	c := (*f.chunks.Load())[l.Slab()/chunkSlabs]
	if c.meta == nil {
		return false
	}
	m := &c.meta[l.Slab()%chunkSlabs]
	return m.header != 0 && !m.dead()
}

// Doubled returns a key that is in two slots, of a few million keys at a time. The salt
// is random: it spreads keys that somebody may have chosen. Bits tell which keys fall
// together with another one, and those few are sorted.
func (f *Forest) Doubled(salt uint64) (k Key, ok bool) { return f.doubled(salt, f.slots>>22+1) }

func (f *Forest) doubled(salt uint64, parts int) (k Key, ok bool) {
	const bitsEach = 16
	shift := 64 - bits.Len(uint(f.slots/parts*bitsEach|63))
	once, twice := make([]uint64, 1<<(64-shift)/64), make([]uint64, 1<<(64-shift)/64)
	var together []uint64
	for part := range parts {
		clear(once)
		clear(twice)
		bit := func(k uint64) (word int, mask uint64, here bool) {
			of, _ := bits.Mul64((k^salt)*0x9E3779B97F4A7C15, uint64(parts))
			at := (k ^ salt) * 0xD6E8FEB86659FD93 >> shift
			return int(at / 64), 1 << (at % 64), int(of) == part
		}
		f.eachKey(func(k uint64) {
			if word, mask, here := bit(k); here {
				twice[word] |= once[word] & mask
				once[word] |= mask
			}
		})
		together = together[:0]
		f.eachKey(func(k uint64) {
			if word, mask, here := bit(k); here && twice[word]&mask != 0 {
				together = append(together, k)
			}
		})
		slices.Sort(together)
		for i := 1; i < len(together); i++ {
			if together[i] == together[i-1] {
				return Key(together[i]), true
			}
		}
	}
	return 0, false
}

// eachKey calls each for all keys.
func (f *Forest) eachKey(each func(uint64)) {
	chunks := *f.chunks.Load()
	for i := range chunks {
		c := &chunks[i]
		if c.meta == nil {
			continue
		}
		for j := range c.meta {
			if m := &c.meta[j]; m.header != 0 && !m.dead() {
				for _, k := range c.slab(uint32(j))[:header(m.header).written()] {
					each(k)
				}
			}
		}
	}
}
