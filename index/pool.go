package index

import (
	"fmt"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// pool has things without pointers, of at least 4 bytes, by number, in pages. It returns
// empty pages to the heap, but for one. A free thing begins with the number of the next free
// thing of its page.
type pool[T any] struct {
	mem     *mem.Count
	pages   []*[poolPage]T // nil: the number is free
	info    []poolInfo
	open    uint32 // the first page with room, plus one
	last    uint32 // the last one, plus one
	numbers uint32 // the first free number of a page, plus one
	some    int    // pages that are there
	n       int
}

type poolInfo struct {
	next, prev uint32 // of those with room, plus one
	free       uint32 // the first free thing
	used       uint16
	fresh      uint16 // things from this one on were never taken
}

const (
	poolPage   = 64
	noThing    = ^uint32(0)
	poolUnused = 1 // number 0 is nothing
)

func (p *pool[T]) at(i uint32) *T { return &p.pages[i/poolPage][i%poolPage] }

// link returns the link of a free thing to the next one.
func (p *pool[T]) link(i uint32) *uint32 { return (*uint32)(unsafe.Pointer(p.at(i))) }

func (p *pool[T]) pageBytes() int { return mem.Size(int(unsafe.Sizeof([poolPage]T{}))) }

func (p *pool[T]) take(v T) uint32 {
	if p.open == 0 {
		p.newPage()
	}
	n := p.open - 1
	c := &p.info[n]
	i := c.free
	if i != noThing {
		c.free = *p.link(i)
	} else {
		i = n*poolPage + uint32(c.fresh)
		c.fresh++
	}
	if c.used++; c.free == noThing && c.fresh == poolPage {
		p.unlist(n)
	}
	p.n++
	*p.at(i) = v
	return i
}

func (p *pool[T]) newPage() {
	p.mem.Add(p.pageBytes())
	page := new([poolPage]T)
	n := uint32(len(p.pages))
	if p.numbers != 0 {
		n = p.numbers - 1
		p.numbers = p.info[n].next
		p.pages[n] = page
	} else {
		p.pages = mem.Append(p.mem, p.pages, page)
		p.info = mem.AppendPlain(p.mem, p.info, poolInfo{})
	}
	p.info[n] = poolInfo{free: noThing}
	if n == 0 {
		p.info[n].fresh = poolUnused
	}
	p.some++
	p.list(n)
}

// list adds a page to those with room.
func (p *pool[T]) list(n uint32) {
	c := &p.info[n]
	c.prev, c.next = p.last, 0
	if p.last == 0 {
		p.open = n + 1
	} else {
		p.info[p.last-1].next = n + 1
	}
	p.last = n + 1
}

func (p *pool[T]) unlist(n uint32) {
	c := &p.info[n]
	if c.prev == 0 {
		p.open = c.next
	} else {
		p.info[c.prev-1].next = c.next
	}
	if c.next == 0 {
		p.last = c.prev
	} else {
		p.info[c.next-1].prev = c.prev
	}
}

// give takes i back.
func (p *pool[T]) give(i uint32) {
	n := i / poolPage
	c := &p.info[n]
	if c.free == noThing && c.fresh == poolPage {
		p.list(n)
	}
	*p.link(i) = c.free
	c.free = i
	c.used--
	p.n--
	if c.used > 0 {
		return
	}
	if p.some == 1 {
		if len(p.pages) > 8 {
			p.keep(p.pages[n])
		}
		return
	}
	p.unlist(n)
	p.some--
	p.pages[n] = nil
	*c = poolInfo{next: p.numbers}
	p.numbers = n + 1
	p.mem.Add(-p.pageBytes())
}

// keep releases everything but an empty page.
func (p *pool[T]) keep(page *[poolPage]T) {
	mem, was := p.mem, p.bytes()
	*p = pool[T]{mem: mem, pages: []*[poolPage]T{page}, info: []poolInfo{{free: noThing, fresh: poolUnused}}, some: 1}
	p.list(0)
	mem.Add(p.bytes() - was)
}

// release releases everything.
func (p *pool[T]) release() {
	p.mem.Add(-p.bytes())
	*p = pool[T]{mem: p.mem}
}

// len returns the number of things that were taken.
func (p *pool[T]) len() int { return p.n }

// hasRoom reports whether something can be taken without more memory.
func (p *pool[T]) hasRoom() bool { return p.open != 0 }

func (p *pool[T]) bytes() int {
	return p.some*p.pageBytes() + mem.SliceSize(p.pages) + mem.Size(cap(p.info)*int(unsafe.Sizeof(poolInfo{})))
}

// check returns an error if the numbers of p contradict each other.
func (p *pool[T]) check() error {
	all, some, room := 0, 0, 0
	for n := range p.pages {
		if p.pages[n] == nil {
			continue
		}
		some++
		c := &p.info[n]
		free := 0
		for i := c.free; i != noThing; i = *p.link(i) {
			if free++; int(i/poolPage) != n || free > poolPage {
				return fmt.Errorf("thing %d was given back to page %d", i, n)
			}
		}
		used := int(c.fresh) - free
		if n == 0 {
			used -= poolUnused
		}
		if used != int(c.used) {
			return fmt.Errorf("page %d has %d things, counted %d", n, used, c.used)
		}
		if c.free != noThing || c.fresh < poolPage {
			room++
		}
		all += used
	}
	for n := p.open; n != 0; n = p.info[n-1].next {
		room--
	}
	if all != p.n || some != p.some || room != 0 {
		return fmt.Errorf("%d things on %d pages, counted %d and %d; %d pages with room are not listed", all, some, p.n, p.some, room)
	}
	return nil
}

// byLoc has things by the place of a key. A nil byLoc has none.
type byLoc[T any] struct {
	f       *forest.Forest
	numbers names.Table[loc, uint32]
	things  pool[T]
}

func newByLoc[T any](s *source) *byLoc[T] {
	s.mem.Add(mem.SizeOf[byLoc[T]]())
	b := &byLoc[T]{f: s.f, things: pool[T]{mem: s.mem}}
	b.numbers.Init(s.names.Salt(), s.mem)
	return b
}

// at returns the thing at l, or nil.
func (b *byLoc[T]) at(l loc) *T {
	if b == nil {
		return nil
	}
	if i := b.numbers.Get(b.f.Here(l)); i != 0 {
		return b.things.at(i)
	}
	return nil
}

// add adds a thing at l, where there is none.
func (b *byLoc[T]) add(l loc, v T) { b.numbers.Put(b.f.Stay(l), b.things.take(v)) }

// remove removes the thing at l.
func (b *byLoc[T]) remove(l loc) {
	l = b.f.Here(l)
	b.things.give(b.numbers.Get(l))
	b.numbers.Remove(l)
}

// len returns the number of places with a thing.
func (b *byLoc[T]) len() int {
	if b == nil {
		return 0
	}
	return b.numbers.Len()
}

// release removes all things. b must not be used again.
func (b *byLoc[T]) release() {
	if b != nil {
		b.things.mem.Add(-b.bytes())
		*b = byLoc[T]{}
	}
}

func (b *byLoc[T]) bytes() int {
	if b == nil {
		return 0
	}
	return mem.SizeOf[byLoc[T]]() + b.numbers.Bytes() + b.things.bytes()
}

func (b *byLoc[T]) check() error {
	if b == nil {
		return nil
	}
	if err := b.numbers.Check(); err != nil {
		return err
	}
	return b.things.check()
}
