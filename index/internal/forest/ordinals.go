package forest

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// ordinals number the holders.
type ordinals struct {
	all  []ordinal
	free uint32 // the first that is ready and was in use, plus one
	// leaving are those that a reader may take for the old holder, oldest first,
	// plus one.
	leaving, last uint32
	waiting       int
	bytes         int
	lost          atomic.Pointer[[]atomic.Uint64] // a bit for each: see Lost
}

// ordinal is what there is of an ordinal that nobody has.
type ordinal struct {
	next  uint32 // plus one
	epoch uint32
}

const ordinalBytes = int(unsafe.Sizeof(ordinal{}))

// TakeOrdinal returns the ordinal of a new holder, or false if there are no more.
func (f *Forest) TakeOrdinal() (ord uint32, ok bool) {
	o := &f.ords
	if o.free != 0 {
		ord = o.free - 1
		o.free = o.all[ord].next
		return ord, true
	}
	if len(o.all) == maxOrds {
		return 0, false
	}
	was := cap(o.all)
	o.all = append(o.all, ordinal{})
	grown := mem.Size(cap(o.all)*ordinalBytes) - mem.Size(was*ordinalBytes)
	if words := (cap(o.all) + 63) / 64; grown != 0 {
		lost := make([]atomic.Uint64, words)
		if old := o.lost.Load(); old != nil {
			for i := range *old {
				lost[i].Store((*old)[i].Load())
			}
			grown -= mem.Size(len(*old) * wordBytes)
		}
		o.lost.Store(&lost)
		grown += mem.Size(words * wordBytes)
	}
	o.bytes += grown
	f.take(grown)
	return uint32(len(o.all) - 1), true
}

// RetireOrdinal gives an ordinal back. No slab may have it any more, and readers
// that resolve their candidates from now on must not get it. It is used anew when
// no reader can take it for the old one.
func (f *Forest) RetireOrdinal(ord uint32) {
	o := &f.ords
	o.all[ord] = ordinal{epoch: f.mark()}
	if o.leaving == 0 {
		o.leaving = ord + 1
	} else {
		o.all[o.last-1].next = ord + 1
	}
	o.last = ord + 1
	o.waiting++
}

func (o *ordinals) reclaim(e *epochs) {
	for o.leaving != 0 {
		ord := o.leaving - 1
		at := &o.all[ord]
		if !e.passed(at.epoch) {
			return
		}
		o.leaving = at.next
		o.waiting--
		at.next = o.free
		o.free = ord + 1
		(*o.lost.Load())[ord>>6].And(^(uint64(1) << (ord & 63)))
	}
}

// Lost reports whether a holder lost a block since it has its ordinal, because the
// block was evicted. It is for readers too.
func (f *Forest) Lost(ord uint32) bool {
	lost := *f.ords.lost.Load()
	return lost[ord>>6].Load()>>(ord&63)&1 != 0
}

func (f *Forest) lose(ord uint32) { (*f.ords.lost.Load())[ord>>6].Or(1 << (ord & 63)) }
