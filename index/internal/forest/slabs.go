package forest

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Slabs come in chunks of one size. A chunk without slabs in use goes back to the
// heap. Slabs that are ready for use are linked through their parent, those that a
// reader may still see through their parent too, with the epoch in their refs.

// chunk has slabs of one size. Its part for writers alone is chunkInfo.
type chunk struct {
	keys  []uint64 // nil: the number is free
	meta  *[chunkSlabs]slabMeta
	slots uint32 // of a slab: minSlots, twice or four times that
}

func (c *chunk) slab(id uint32) []uint64 {
	at := id % chunkSlabs * c.slots
	return c.keys[at : at+c.slots : at+c.slots]
}

// slabSizes is the number of sizes.
const slabSizes = 3

// sizeFor returns the size, by number, of a slab for a run of n keys.
func sizeFor(n int) int { return min(bits.Len(uint(n-1)/minSlots), slabSizes-1) }

// slabs are the slabs that are not in use, and the state of the chunks.
type slabs struct {
	chunks  []chunkInfo
	dead    []uint64              // a bit for each slab: it was evicted or moved, and has names
	open    [slabSizes]uint32     // the first chunk with a slab that is ready, plus one
	last    [slabSizes]uint32     // the last one, plus one
	depths  []*[chunkSlabs]uint32 // by chunk, with a Watcher; nil: the number is free
	numbers uint32                // the first free number of a chunk, plus one
	// leaving are those that a reader may see, oldest first; none: 0.
	leaving, leavingLast uint32
	waiting              int
	dying                int // dead slabs with names
	bytes                int
	free                 [slabSizes]int // slabs that are ready, but for chunks that leave
}

type chunkInfo struct {
	free       uint32 // the first slab of those that are ready and were in use
	next, prev uint32 // of the chunks with slabs that are ready, plus one
	ready      uint16 // slabs
	fresh      uint16 // slabs from there on were never in use
	pins       uint32 // slabs that may not be moved
	size       uint8
	listed     bool
	leaves     bool // no slab in it is used any more
}

const (
	chunkBytes  = int(unsafe.Sizeof(chunk{}))
	infoBytes   = int(unsafe.Sizeof(chunkInfo{}))
	metaBytes   = int(unsafe.Sizeof(slabMeta{}))
	wordBytes   = int(unsafe.Sizeof(uint64(0)))
	nowhere     = 0
	slabsShared = 1 // slab 0 is no slab
)

// take has n bytes counted.
func (f *Forest) take(n int) { f.mem.Add(n) }

// slabBytes returns what a slab of some slots takes.
func slabBytes(slots int) int { return slots*wordBytes + metaBytes }

func (f *Forest) takeSlab(size int) uint32 {
	s := &f.slabs
	if s.open[size] == nowhere {
		other := slices.IndexFunc(s.open[:], func(c uint32) bool { return c != nowhere })
		smaller := other >= 0 && other < size
		if smaller && f.mem.Frugal() || !f.newChunk(size) {
			if other < 0 || !smaller && !f.AnySize {
				return 0
			}
			size = other
		}
	}
	n := s.open[size] - 1
	c := &s.chunks[n]
	var id uint32
	if c.fresh < chunkSlabs {
		id = n*chunkSlabs + uint32(c.fresh)
		c.fresh++
	} else {
		id = c.free
		c.free = uint32(f.meta(id).parent)
	}
	s.free[size]--
	if c.ready--; c.ready == 0 {
		s.unlist(n)
	}
	return id
}

// newChunk adds a chunk, or returns false if there are no more, or it would be too much.
func (f *Forest) newChunk(size int) bool {
	s := &f.slabs
	chunks := *f.chunks.Load()
	if s.numbers == nowhere && len(chunks) == maxSlabs/chunkSlabs {
		return false
	}
	slots := minSlots << size
	bytes := f.chunkSize(size)
	if f.mem.Load()+int64(bytes) > f.most {
		return false
	}
	f.countSlabs(bytes)
	c := chunk{make([]uint64, chunkSlabs*slots), new([chunkSlabs]slabMeta), uint32(slots)}
	n := uint32(len(chunks))
	if s.numbers != nowhere {
		n = s.numbers - 1
		s.numbers = s.chunks[n].next
		chunks = slices.Clone(chunks)
		chunks[n] = c
	} else {
		was := cap(s.chunks)
		chunks = append(chunks, c)
		s.chunks = append(s.chunks, chunkInfo{})
		f.countSlabs(mem.Size(cap(s.chunks)*infoBytes) - mem.Size(was*infoBytes))
		was = cap(s.dead)
		s.dead = append(s.dead, make([]uint64, chunkSlabs/64)...)
		f.countSlabs(mem.Size(cap(s.dead)*wordBytes) - mem.Size(was*wordBytes))
	}
	f.setChunks(chunks)
	if f.watcher != nil {
		f.addDepths(n)
	}
	s.chunks[n] = chunkInfo{size: uint8(size), ready: chunkSlabs}
	if n == 0 {
		s.chunks[n].fresh = slabsShared
		s.chunks[n].ready -= slabsShared
	}
	s.free[size] += int(s.chunks[n].ready)
	s.list(n)
	return true
}

func (f *Forest) setChunks(chunks []chunk) {
	was := cap(*f.chunks.Load())
	f.countSlabs(mem.PointerSize(cap(chunks)*chunkBytes) - mem.PointerSize(was*chunkBytes))
	f.chunks.Store(&chunks)
}

func (f *Forest) countSlabs(n int) {
	f.slabs.bytes += n
	f.take(n)
}

// chunkSize returns what a chunk of slabs of a size takes.
func (f *Forest) chunkSize(size int) int {
	return mem.Size(chunkSlabs*(minSlots<<size)*wordBytes) + mem.Size(chunkSlabs*metaBytes) + f.depthSize()
}

// Grows reports whether memory has room for more slabs, of any size.
func (f *Forest) Grows() bool { return f.mem.Load()+int64(f.chunkSize(slabSizes-1)) <= f.most }

// FreeSlabs returns the bytes of the slabs that are ready for use.
func (f *Forest) FreeSlabs() (bytes int) {
	for size, n := range f.slabs.free {
		bytes += n * slabBytes(minSlots<<size)
	}
	return bytes
}

// list puts a chunk behind those of its size with slabs that are ready.
func (s *slabs) list(n uint32) {
	c := &s.chunks[n]
	last := &s.last[c.size]
	c.prev, c.next, c.listed = *last, nowhere, true
	if *last == nowhere {
		s.open[c.size] = n + 1
	} else {
		s.chunks[*last-1].next = n + 1
	}
	*last = n + 1
}

func (s *slabs) unlist(n uint32) {
	c := &s.chunks[n]
	if c.prev == nowhere {
		s.open[c.size] = c.next
	} else {
		s.chunks[c.prev-1].next = c.next
	}
	if c.next == nowhere {
		s.last[c.size] = c.prev
	} else {
		s.chunks[c.next-1].prev = c.prev
	}
	c.listed = false
}

// leave has a slab wait until no reader sees it.
func (f *Forest) leave(id uint32, m *slabMeta) {
	s := &f.slabs
	m.store(0)
	m.parent, m.refs, m.kids = 0, f.epochs.Mark(), 0
	if s.leaving == 0 {
		s.leaving = id
	} else {
		f.meta(s.leavingLast).parent = Loc(id)
	}
	s.leavingLast = id
	s.waiting++
}

// reclaimSlabs makes slabs ready that no reader sees.
func (f *Forest) reclaimSlabs() {
	s := &f.slabs
	for s.leaving != 0 {
		id := s.leaving
		m := f.meta(id)
		if !f.epochs.Passed(m.refs) {
			return
		}
		s.leaving = uint32(m.parent)
		s.waiting--
		f.makeReady(id, m)
	}
}

func (f *Forest) makeReady(id uint32, m *slabMeta) {
	s := &f.slabs
	n := id / chunkSlabs
	c := &s.chunks[n]
	m.parent, c.free = Loc(c.free), id
	c.ready++
	if c.leaves {
		if c.ready == chunkSlabs {
			f.dropChunk(n)
		}
		return
	}
	s.free[c.size]++
	if !c.listed {
		s.list(n)
	}
	if c.ready == chunkSlabs && (s.open[c.size] != n+1 || s.last[c.size] != n+1) {
		s.unlist(n)
		s.free[c.size] -= chunkSlabs
		f.dropChunk(n)
	}
}

// dropChunk gives a chunk without slabs in use, which is not listed, back to the heap.
func (f *Forest) dropChunk(n uint32) {
	s := &f.slabs
	f.countSlabs(-f.chunkSize(int(s.chunks[n].size)))
	chunks := slices.Clone(*f.chunks.Load())
	chunks[n] = chunk{}
	if f.watcher != nil {
		s.depths[n] = nil
	}
	f.setChunks(chunks)
	s.chunks[n] = chunkInfo{next: s.numbers}
	s.numbers = n + 1
}
