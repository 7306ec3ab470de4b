package index

import (
	"encoding/binary"
	"fmt"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// maxDumpTicks is more than how far the clock goes on while a snapshot is written.
const maxDumpTicks = 1 << 28

// slab reads the first record of a slab.
func (r *restorer) slab() error {
	before, variant, used := r.Uvarint(), int(r.Byte()), r.Uint32()
	prev, ok := r.slabs.placeOf(before)
	switch {
	case r.Short:
		return nil
	case before != 0 && !ok:
		return fmt.Errorf("slab %d is behind %d, which is not there", len(r.slabs.all), before)
	case variant >= len(r.variants) || r.variants[variant].Unit <= 0:
		return fmt.Errorf("slab %d is of variant %d", len(r.slabs.all), variant)
	case prev != 0 && r.f.Variant(prev) != r.numbers[variant]:
		return fmt.Errorf("slab %d is of variant %d, and what is before it is not", len(r.slabs.all), variant)
	}
	if used-r.clock < maxDumpTicks { // it was used while the snapshot was written
		used = r.clock
	}
	number := r.slabs.open(r.numbers[variant])
	return r.place(number, keyRun{prev, before == 0 || prev != 0, r.numbers[variant], used})
}

// slots reads more slots of a slab.
func (r *restorer) slots() error {
	number := r.Uvarint()
	if r.Short || number == 0 || number >= uint64(len(r.slabs.all)) {
		return fmt.Errorf("slots of slab %d of %d", number, len(r.slabs.all)-1)
	}
	last := r.slabs.locOf(int(number), int(r.slabs.all[number].n)-1)
	variant := uint32(0)
	if last != 0 {
		variant = r.f.Variant(last)
	}
	return r.place(int(number), keyRun{last, last != 0, variant, r.clock})
}

// keyRun is the position of keys of a slab.
type keyRun struct {
	prev    loc  // the place before them; 0: a root
	there   bool // that place was not evicted
	variant uint32
	used    uint32
}

// place reads keys of a slab, and places them. It makes room until slabs are free: other
// free bytes are of no use.
func (r *restorer) place(number int, at keyRun) error {
	n, of := int(r.Byte()), &r.slabs.all[number]
	if r.Short || n == 0 || n+int(of.n) > maxSlabKeys {
		return fmt.Errorf("slab %d has %d keys and %d more", number, of.n, n)
	}
	b := r.Take(8 * n)
	if r.Short {
		return nil
	}
	keys, locs := r.keys[:n], r.locs[:n]
	for i := range keys {
		keys[i] = forest.Key(binary.LittleEndian.Uint64(b[8*i:]))
	}
	clear(locs)
	for try := range 4 {
		if !at.there {
			break
		}
		r.f.SetNow(at.used)
		r.f.AnySize = try > 0
		done := r.f.Place(at.prev, at.variant, keys, locs)
		r.f.SetNow(r.clock)
		r.f.AnySize = false
		if done {
			break
		}
		clear(locs)
		if !r.relieve([]loc{at.prev}, func() bool { return int64(r.f.FreeSlabs()) >= r.g.part/2 || r.f.Grows() }) {
			break
		}
	}
	r.slabs.add(number, locs)
	return nil
}

// relieve makes room until ok returns true, and updates the slabs. ok must place nothing.
// The slabs of keep are not evicted.
func (r *restorer) relieve(keep []loc, ok func() bool) bool {
	if ok() {
		return true
	}
	if r.tries < r.tight { // it failed not long ago
		r.tries++
		return false
	}
	pinLocs(r.f, keep, true)
	r.slabs.pin(false)
	if r.order != nil {
		r.sortIdle()
	}
	if r.s != nil {
		r.s.tenant.report()
	}
	done := r.g.makeRoom(r.s, ok)
	r.slabs.dropDead()
	r.slabs.pin(true)
	pinLocs(r.f, keep, false)
	if r.tries, r.tight = 0, 0; !done {
		r.tight = len(r.slabs.all)
	}
	return done
}

// roomFor makes room for a name at some places.
func (r *restorer) roomFor(at []loc) bool {
	return !r.g.full() || r.relieve(at, func() bool { return r.g.pages() >= r.g.part/4 })
}
