package forest

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/epochs"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// arena has the memory of the records: pages without pointers. A page has pieces of
// one size, or one larger piece. An address is page<<pageBits | word. Free pieces of
// a page are linked through their second word, those that a reader may still see
// through their third, with the epoch.
type arena struct {
	pages   atomic.Pointer[[][]uint64]
	count   *mem.Count
	info    []pageInfo
	open    [numClasses]uint32 // the first page with free pieces, plus one
	empty   uint32             // the first page of pieceWords that has no class, plus one
	empties int
	numbers uint32 // the first free number of a page, plus one
	// leaving are the pieces that a reader may see, oldest first.
	leaving, last    uint32
	waiting          int
	bytes, freeBytes int
}

type pageInfo struct {
	next, prev uint32 // page of the list that it is in, plus one
	free       uint32 // address of the first free piece that was in use
	used       uint16 // pieces
	fresh      uint16 // pieces from there on were never in use
	class      uint8
	listed     bool
}

const (
	pageBits  = 10
	pageWords = 1 << pageBits
	maxPiece  = 256 // words, of a piece that shares its page
	hugeClass = 255 // a piece of any size with a page of its own

	// numClasses is how many sizes of pieces there are.
	numClasses = 25
	// keptEmpty is how many pages are kept that nothing is in.
	keptEmpty = 16

	pageBytes     = pageWords * wordBytes
	pageInfoBytes = int(unsafe.Sizeof(pageInfo{}))
	sliceBytes    = int(unsafe.Sizeof([]uint64{}))
	noPiece       = ^uint32(0)
)

// classWords are the sizes of pieces: four to a power of two.
var classWords = func() (sizes [numClasses]int) {
	i := 0
	for n := 4; n < maxPiece; n *= 2 {
		for k := range 4 {
			sizes[i] = n + k*n/4
			i++
		}
	}
	sizes[i] = maxPiece
	return sizes
}()

func (a *arena) init(count *mem.Count) {
	a.count = count
	a.pages.Store(new([][]uint64))
	a.leaving = noPiece
}

func (a *arena) take(n int) {
	a.bytes += n
	a.count.Add(n)
}

// at returns the record at an address. Readers load its words by atomics.
func (a *arena) at(addr uint32) record {
	page := (*a.pages.Load())[addr>>pageBits]
	r := page[addr&(pageWords-1):]
	if class := r[0] & 255; class != hugeClass {
		r = r[:classWords[class]]
	}
	return record(r)
}

// get returns a piece of at least n words, with its class in word 0.
func (a *arena) get(n int) (record, uint32) {
	if n > maxPiece {
		return a.getHuge(n)
	}
	class, _ := slices.BinarySearch(classWords[:], n)
	size := uint32(classWords[class])
	if a.open[class] == nowhere {
		a.open[class] = a.emptyPage() + 1
		a.info[a.open[class]-1] = pageInfo{class: uint8(class), free: noPiece, listed: true}
		a.freeBytes += pageBytes
	}
	n0 := a.open[class] - 1
	p := &a.info[n0]
	var addr uint32
	r := (*a.pages.Load())[n0]
	if p.free != noPiece {
		addr = p.free
		r = r[addr&(pageWords-1):][:size]
		p.free = uint32(r[1])
	} else {
		addr = n0<<pageBits + uint32(p.fresh)*size
		p.fresh++
		r = r[addr&(pageWords-1):][:size]
	}
	p.used++
	a.freeBytes -= int(size) * wordBytes
	if p.free == noPiece && uint32(p.fresh+1)*size > pageWords {
		a.unlist(n0)
	}
	r[0] = uint64(class)
	return record(r), addr
}

// emptyPage returns the number of a page for pieces.
func (a *arena) emptyPage() uint32 {
	if a.empty != nowhere {
		n := a.empty - 1
		a.empty = a.info[n].next
		a.empties--
		a.freeBytes -= pageBytes
		return n
	}
	a.take(pageBytes)
	return a.newPage(make([]uint64, pageWords))
}

// newPage gives a page a number.
func (a *arena) newPage(page []uint64) uint32 {
	pages := *a.pages.Load()
	n := uint32(len(pages))
	if a.numbers != nowhere {
		n = a.numbers - 1
		a.numbers = a.info[n].next
		pages = slices.Clone(pages)
		pages[n] = page
	} else {
		was := cap(a.info)
		pages = append(pages, page)
		a.info = append(a.info, pageInfo{})
		a.take(mem.Size(cap(a.info)*pageInfoBytes) - mem.Size(was*pageInfoBytes))
	}
	a.setPages(pages)
	return n
}

func (a *arena) setPages(pages [][]uint64) {
	was := cap(*a.pages.Load())
	a.take(mem.PointerSize(cap(pages)*sliceBytes) - mem.PointerSize(was*sliceBytes))
	a.pages.Store(&pages)
}

func (a *arena) getHuge(n int) (record, uint32) {
	n = mem.Size(n*wordBytes) / wordBytes
	a.take(n * wordBytes)
	page := make([]uint64, n)
	page[0] = hugeClass
	return page, a.newPage(page) << pageBits
}

// list puts a page before those of its class with free pieces.
func (a *arena) list(n uint32) {
	p := &a.info[n]
	first := &a.open[p.class]
	p.next, p.prev, p.listed = *first, nowhere, true
	if *first != nowhere {
		a.info[*first-1].prev = n + 1
	}
	*first = n + 1
}

func (a *arena) unlist(n uint32) {
	p := &a.info[n]
	if p.prev == nowhere {
		a.open[p.class] = p.next
	} else {
		a.info[p.prev-1].next = p.next
	}
	if p.next != nowhere {
		a.info[p.next-1].prev = p.prev
	}
	p.listed = false
}

// give takes a piece back, to be used when no reader sees it any more.
func (a *arena) give(e *epochs.Epochs, addr uint32) {
	a.at(addr)[2] = uint64(e.Mark())<<32 | uint64(noPiece)
	if a.leaving == noPiece {
		a.leaving = addr
	} else {
		at := a.at(a.last)
		at[2] = at[2]>>32<<32 | uint64(addr)
	}
	a.last = addr
	a.waiting++
}

func (a *arena) reclaim(e *epochs.Epochs) {
	for a.leaving != noPiece {
		addr := a.leaving
		r := a.at(addr)
		if !e.Passed(uint32(r[2] >> 32)) {
			break
		}
		a.leaving = uint32(r[2])
		a.waiting--
		a.makeReady(addr, r)
	}
	if a.empties > 2*keptEmpty {
		a.dropEmpty()
	}
}

func (a *arena) makeReady(addr uint32, r record) {
	n := addr >> pageBits
	if r.class() == hugeClass {
		a.take(-len(r) * wordBytes)
		pages := slices.Clone(*a.pages.Load())
		pages[n] = nil
		a.setPages(pages)
		a.info[n].next = a.numbers
		a.numbers = n + 1
		return
	}
	p := &a.info[n]
	r[1] = uint64(p.free)
	p.free = addr
	p.used--
	a.freeBytes += len(r) * wordBytes
	if !p.listed {
		a.list(n)
	}
	if p.used == 0 {
		a.unlist(n)
		p.next = a.empty
		a.empty = n + 1
		a.empties++
	}
}

// dropEmpty gives pages that nothing is in back to the heap, but for some.
func (a *arena) dropEmpty() {
	pages := slices.Clone(*a.pages.Load())
	for a.empties > keptEmpty {
		n := a.empty - 1
		a.empty = a.info[n].next
		a.empties--
		pages[n] = nil
		a.info[n].next = a.numbers
		a.numbers = n + 1
		a.take(-pageBytes)
		a.freeBytes -= pageBytes
	}
	a.setPages(pages)
}
