package forest

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/epochs"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// ordinals number the holders. Those of one model, that is of one Holders, are taken
// by blocks of 64, so that the bitmaps of records and readers are short.
type ordinals struct {
	all    []ordinal
	blocks []*Holders // whose the ordinals are; nil: nobody's
	spare  int        // blocks that are nobody's
	// leaving are those that a reader may take for the old holder, oldest first,
	// plus one.
	leaving, last uint32
	waiting       int
	bytes         int
	anyLost       atomic.Bool
	lost          atomic.Pointer[[]atomic.Uint64] // a bit for each: see Lost
}

// ordinal is what there is of an ordinal that nobody has.
type ordinal struct {
	next  uint32 // plus one
	epoch uint32
}

// Holders has the ordinals of holders whose blocks often are the same. Its zero value
// is ready.
type Holders struct {
	free  uint32 // the first that is ready, plus one
	taken int    // and not ready again
}

const (
	ordinalBytes = int(unsafe.Sizeof(ordinal{}))
	ordinalBlock = 64
)

// TakeOrdinal returns the ordinal of a new holder, or false if there are no more.
func (f *Forest) TakeOrdinal(of *Holders) (ord uint32, ok bool) {
	if of.free == 0 && !f.takeBlock(of) {
		return 0, false
	}
	o := &f.ords
	ord = of.free - 1
	of.free = o.all[ord].next
	of.taken++
	return ord, true
}

// takeBlock gives 64 ordinals to some holders.
func (f *Forest) takeBlock(of *Holders) bool {
	o := &f.ords
	if o.spare > 0 {
		o.spare--
		o.giveBlock(slices.Index(o.blocks, nil), of)
		return true
	}
	if len(o.all) == maxOrds {
		return false
	}
	was := o.size()
	o.blocks = append(o.blocks, of)
	o.all = append(o.all, make([]ordinal, ordinalBlock)...)
	if old := o.lost.Load(); old == nil || len(*old) < cap(o.blocks) {
		lost := make([]atomic.Uint64, cap(o.blocks))
		if old != nil {
			for i := range *old {
				lost[i].Store((*old)[i].Load())
			}
		}
		o.lost.Store(&lost)
	}
	o.giveBlock(len(o.blocks)-1, of)
	f.take(o.size() - was)
	o.bytes = o.size()
	return true
}

// giveBlock links the ordinals of a block, lowest first.
func (o *ordinals) giveBlock(i int, of *Holders) {
	o.blocks[i] = of
	first := uint32(i * ordinalBlock)
	for ord := first; ord < first+ordinalBlock; ord++ {
		o.all[ord].next = ord + 2
	}
	o.all[first+ordinalBlock-1].next = of.free
	of.free = first + 1
}

func (o *ordinals) size() int {
	n := mem.Size(cap(o.all)*ordinalBytes) + mem.PointerSize(cap(o.blocks)*wordBytes)
	if lost := o.lost.Load(); lost != nil {
		n += mem.Size(len(*lost) * wordBytes)
	}
	return n
}

// RetireOrdinal gives an ordinal back. No slab may have it any more, and readers
// that resolve their candidates from now on must not get it. It is used anew when
// no reader can take it for the old one.
func (f *Forest) RetireOrdinal(ord uint32) {
	o := &f.ords
	o.all[ord] = ordinal{epoch: f.epochs.Mark()}
	if o.leaving == 0 {
		o.leaving = ord + 1
	} else {
		o.all[o.last-1].next = ord + 1
	}
	o.last = ord + 1
	o.waiting++
}

func (o *ordinals) reclaim(e *epochs.Epochs) {
	for o.leaving != 0 {
		ord := o.leaving - 1
		at := &o.all[ord]
		if !e.Passed(at.epoch) {
			return
		}
		o.leaving = at.next
		o.waiting--
		(*o.lost.Load())[ord>>6].And(^(uint64(1) << (ord & 63)))
		of := o.blocks[ord/ordinalBlock]
		at.next = of.free
		of.free = ord + 1
		if of.taken--; of.taken == 0 {
			o.takeBack(of)
		}
	}
}

// takeBack takes all blocks of holders that have no ordinals.
func (o *ordinals) takeBack(of *Holders) {
	of.free = 0
	for i := range o.blocks {
		if o.blocks[i] == of {
			o.blocks[i] = nil
			o.spare++
		}
	}
}

// Lost reports whether a holder lost a block since it has its ordinal, because the
// block was evicted. It is for readers too.
func (f *Forest) Lost(ord uint32) bool {
	lost := *f.ords.lost.Load()
	return lost[ord>>6].Load()>>(ord&63)&1 != 0
}

// Lose notes that a holder lost a block.
func (f *Forest) Lose(ord uint32) {
	if f.Lost(ord) { // readers share the word
		return
	}
	(*f.ords.lost.Load())[ord>>6].Or(1 << (ord & 63))
	f.ords.anyLost.Store(true)
	if f.watcher != nil {
		f.watcher.Lost(ord)
	}
}

// AnyLost reports whether anybody ever lost a block.
func (f *Forest) AnyLost() bool { return f.ords.anyLost.Load() }
