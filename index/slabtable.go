package index

import (
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// maxSlabKeys is how many keys a slab has at most.
const maxSlabKeys = 32

// slabTable is the slabs of a snapshot, by their numbers, which begin with 1. It pins their
// keys in the forest.
type slabTable struct {
	g     *ground
	f     *forest.Forest
	all   []restoredSlab
	apart map[uint32][]loc // the places of slabs whose keys do not follow each other
	bytes int
	row   []loc // of locsOf
}

// restoredSlab is a slab of the snapshot. The places of its keys follow that of the first,
// unless apart. The place 0 was evicted.
type restoredSlab struct {
	first   loc
	n       uint8
	variant uint8
	apart   bool
}

const restoredSlabBytes = 8

func newSlabTable(g *ground) slabTable {
	return slabTable{g: g, f: g.forest, all: make([]restoredSlab, 1), apart: make(map[uint32][]loc)}
}

// open adds a slab without keys, and returns its number.
func (st *slabTable) open(variant uint32) (number int) {
	if len(st.all) == cap(st.all) {
		st.bytes += restoredSlabBytes * len(st.all)
		st.g.addTables(restoredSlabBytes * len(st.all))
	}
	st.all = append(st.all, restoredSlab{variant: uint8(variant)})
	return len(st.all) - 1
}

// add adds the places of more keys to a slab, and pins them.
func (st *slabTable) add(number int, more []loc) {
	was := st.locsOf(number)
	all := append(slices.Clone(was), more...)
	pinLocs(st.f, all, true)
	pinLocs(st.f, was, false)
	of := &st.all[number]
	of.first, of.n, of.apart = all[0], uint8(len(all)), false
	for i, l := range all {
		of.apart = of.apart || l == 0 || l != all[0]+loc(i)
	}
	if of.apart {
		st.apart[uint32(number)] = all
	}
}

// locsOf returns the places of a slab's keys. The result is valid until the next call.
func (st *slabTable) locsOf(number int) []loc {
	of := &st.all[number]
	if of.apart {
		return st.apart[uint32(number)]
	}
	st.row = st.row[:0]
	for i := range loc(of.n) {
		st.row = append(st.row, of.first+i)
	}
	return st.row
}

// locOf returns the place of a slot of a slab; 0: it was evicted.
func (st *slabTable) locOf(number, slot int) loc {
	of := &st.all[number]
	if of.apart {
		return st.apart[uint32(number)][slot]
	}
	return of.first + loc(slot)
}

// placeOf returns the place of a slot of a slab, by its number in records, or false if there
// is none.
func (st *slabTable) placeOf(v uint64) (l loc, ok bool) {
	number, slot := v>>5, int(v&31)
	if number == 0 || number >= uint64(len(st.all)) || slot >= int(st.all[number].n) {
		return 0, false
	}
	return st.locOf(int(number), slot), true
}

// dropDead replaces the places that were evicted by 0.
func (st *slabTable) dropDead() {
	dead := func(l loc) bool { return l != 0 && !st.f.Lives(l) }
	for number := range st.all {
		locs := st.locsOf(number)
		if !slices.ContainsFunc(locs, dead) {
			continue
		}
		locs = slices.Clone(locs)
		for i, l := range locs {
			if dead(l) {
				locs[i] = 0
			}
		}
		st.all[number].apart = true
		st.apart[uint32(number)] = locs
	}
}

// pin pins all slabs, or unpins them.
func (st *slabTable) pin(pin bool) {
	for number := range st.all {
		pinLocs(st.f, st.locsOf(number), pin)
	}
}

// pinLocs pins the slab of each place, or unpins it. Places of one slab in a row count once.
func pinLocs(f *forest.Forest, locs []loc, pin bool) {
	for i, l := range locs {
		switch {
		case l == 0 || i > 0 && locs[i-1] != 0 && locs[i-1].Slab() == l.Slab():
		case pin:
			f.Pin(l)
		default:
			f.Unpin(l)
		}
	}
}
