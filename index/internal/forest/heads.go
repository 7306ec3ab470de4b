package forest

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// heads finds the slab that begins with a key. It is an extendible hash table:
// a directory of segments by the key's top bits, each a page that is split, or
// cleaned of what was deleted, on its own; so it grows by a page at a time, and
// no writer pays for all of it. Two half-empty segments become one. Readers need no
// lock: a slot is one word, and a segment that was replaced stays as it was for those
// who still look at it.
type heads struct {
	dir   atomic.Pointer[headDir]
	bytes int
	count *mem.Count
}

// headDir is the directory: a segment of depth d stands in 2^(depth-d) places.
type headDir struct {
	depth uint
	segs  []atomic.Pointer[headSegment]
}

const (
	headLines = 63 // of 8 slots, so that a segment is a page
	headSlots = headLines * 8
	headFull  = headSlots * 85 / 100
	headSplit = headSlots * 60 / 100 // with fewer live ones a full segment is but cleaned
	headTight = headSlots * 75 / 100 // the same if memory is short
	headMerge = headSlots * 40 / 100 // with fewer live ones together, two are made one
	headTomb  = ^uint64(0)
)

// headSegment has for each head a slot: the key's low half and the slab.
type headSegment struct {
	slots [headSlots]uint64
	live  uint32 // slots with a head
	used  uint32 // and deleted ones
	depth uint32
	_     [52]byte
}

const segmentBytes = int(unsafe.Sizeof(headSegment{}))

func newHeads(count *mem.Count) *heads {
	h := &heads{count: count}
	d := &headDir{segs: make([]atomic.Pointer[headSegment], 1)}
	d.segs[0].Store(new(headSegment))
	h.take(segmentBytes + d.bytes())
	h.dir.Store(d)
	return h
}

func (h *heads) take(n int) {
	h.bytes += n
	h.count.Add(n)
}

func (d *headDir) bytes() int {
	return mem.Size(int(unsafe.Sizeof(*d))) + mem.PointerSize(len(d.segs)*int(unsafe.Sizeof(d.segs[0])))
}

func (d *headDir) place(k Key) *atomic.Pointer[headSegment] {
	return &d.segs[uint64(k)>>(64-d.depth)] // a shift by 64 gives 0
}

// headLine is where the search for a key begins: it takes other bits than the
// directory and the slot do.
func headLine(k Key) int {
	hi, _ := bits.Mul32(uint32(k>>16), headLines)
	return int(hi)
}

// find returns the slab that begins with k, or 0.
func (h *heads) find(f *Forest, k Key) uint32 {
	d := h.dir.Load()
	s := d.place(k).Load()
	line := headLine(k)
	for range headLines {
		slots := (*[8]uint64)(s.slots[8*line:])
		for i := range slots {
			slot := atomic.LoadUint64(&slots[i])
			if slot == 0 {
				return 0
			}
			if slot>>32 == uint64(uint32(k)) && slot != headTomb {
				if id := uint32(slot); atomic.LoadUint64(&f.keys(id)[0]) == uint64(k) {
					return id
				}
			}
		}
		if line++; line == headLines {
			line = 0
		}
	}
	return 0
}

func (h *heads) add(f *Forest, k Key, id uint32) {
	p := h.dir.Load().place(k)
	s := p.Load()
	for s.used >= headFull {
		if s.live < headSplit || h.count.Frugal() && s.live < headTight {
			h.clean(f, k, s)
		} else {
			h.split(f, k, s)
		}
		p = h.dir.Load().place(k)
		s = p.Load()
	}
	s.put(k, id)
}

func (s *headSegment) put(k Key, id uint32) {
	for line := headLine(k); ; line = (line + 1) % headLines {
		for i := 8 * line; i < 8*line+8; i++ {
			if s.slots[i] != 0 && s.slots[i] != headTomb {
				continue
			}
			if s.slots[i] == 0 {
				s.used++
			}
			s.live++
			atomic.StoreUint64(&s.slots[i], uint64(k)<<32|uint64(id))
			return
		}
	}
}

func (h *heads) remove(f *Forest, k Key, id uint32) {
	s := h.dir.Load().place(k).Load()
	want := uint64(k)<<32 | uint64(id)
	for line := headLine(k); ; line = (line + 1) % headLines {
		for i := 8 * line; i < 8*line+8; i++ {
			if s.slots[i] == want {
				atomic.StoreUint64(&s.slots[i], headTomb)
				if s.live--; s.live < h.merges()/2 && s.depth > 0 {
					h.merge(f, k, s)
				}
				return
			}
		}
	}
}

// replace has k found in another slab, which begins with it too.
func (h *heads) replace(k Key, id, by uint32) {
	s := h.dir.Load().place(k).Load()
	want := uint64(k)<<32 | uint64(id)
	for line := headLine(k); ; line = (line + 1) % headLines {
		for i := 8 * line; i < 8*line+8; i++ {
			if s.slots[i] == want {
				atomic.StoreUint64(&s.slots[i], uint64(k)<<32|uint64(by))
				return
			}
		}
	}
}

// merges returns how many heads two segments have at most that are made one.
func (h *heads) merges() uint32 {
	if h.count.Frugal() {
		return headSplit
	}
	return headMerge
}

// merge puts s and the other half of what they once were in one segment, if there is
// room.
func (h *heads) merge(f *Forest, k Key, s *headSegment) {
	d := h.dir.Load()
	bit := Key(1) << (64 - s.depth)
	other := d.place(k ^ bit).Load()
	if other.depth != s.depth || s.live+other.live > h.merges() {
		return
	}
	both := &headSegment{depth: s.depth - 1}
	h.take(segmentBytes)
	for _, half := range []*headSegment{s, other} {
		half.each(func(id uint32) { both.put(Key(f.keys(id)[0]), id) })
	}
	h.publish(k, both)
	h.take(-2 * segmentBytes)
}

// clean replaces s by a copy without the deleted slots.
func (h *heads) clean(f *Forest, k Key, s *headSegment) {
	fresh := &headSegment{depth: s.depth}
	s.each(func(id uint32) { fresh.put(Key(f.keys(id)[0]), id) })
	h.publish(k, fresh)
}

func (h *heads) split(f *Forest, k Key, s *headSegment) {
	if d := h.dir.Load(); uint(s.depth) == d.depth {
		twice := &headDir{depth: d.depth + 1, segs: make([]atomic.Pointer[headSegment], 2*len(d.segs))}
		for i := range twice.segs {
			twice.segs[i].Store(d.segs[i/2].Load())
		}
		h.take(twice.bytes())
		h.dir.Store(twice)
		h.take(-d.bytes())
	}
	bit := Key(1) << (63 - s.depth)
	h.take(segmentBytes)
	halves := [2]*headSegment{{depth: s.depth + 1}, {depth: s.depth + 1}}
	s.each(func(id uint32) {
		key := Key(f.keys(id)[0])
		half := halves[0]
		if key&bit != 0 {
			half = halves[1]
		}
		half.put(key, id)
	})
	h.publish(k&^bit, halves[0])
	h.publish(k|bit, halves[1])
}

// publish puts s in all its places.
func (h *heads) publish(k Key, s *headSegment) {
	d := h.dir.Load()
	places := 1 << (d.depth - uint(s.depth))
	first := int(uint64(k)>>(64-d.depth)) &^ (places - 1)
	for i := range places {
		d.segs[first+i].Store(s)
	}
}

func (s *headSegment) each(f func(id uint32)) {
	for _, slot := range s.slots {
		if slot != 0 && slot != headTomb {
			f(uint32(slot))
		}
	}
}
