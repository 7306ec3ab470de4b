package index

import (
	"fmt"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// pool has things without pointers, of at least 4 bytes, by number from 1, in pages.
// A thing that was given back begins with the number of the next such one.
type pool[T any] struct {
	mem   *mem.Count // of pages
	pages []*[poolPage]T
	next  uint32 // the largest number that was taken
	free  uint32 // the first thing that was given back; 0: none
	n     int
}

const poolPage = 256

func (p *pool[T]) at(i uint32) *T { return &p.pages[i/poolPage][i%poolPage] }

// link returns where a thing that was given back has the number of the next one.
func (p *pool[T]) link(i uint32) *uint32 { return (*uint32)(unsafe.Pointer(p.at(i))) }

func (p *pool[T]) pageBytes() int { return mem.Size(int(unsafe.Sizeof([poolPage]T{}))) }

func (p *pool[T]) take(v T) uint32 {
	i := p.free
	if i != 0 {
		p.free = *p.link(i)
	} else {
		if p.next++; int(p.next/poolPage) == len(p.pages) {
			p.mem.Add(p.pageBytes())
			p.pages = mem.Append(p.mem, p.pages, new([poolPage]T))
		}
		i = p.next
	}
	p.n++
	*p.at(i) = v
	return i
}

// give takes i back. A pool that nothing is in any more lets its memory go.
func (p *pool[T]) give(i uint32) {
	if p.n--; p.n == 0 {
		p.release()
		return
	}
	*p.link(i) = p.free
	p.free = i
}

// release lets all go.
func (p *pool[T]) release() {
	p.mem.Add(-p.bytes())
	*p = pool[T]{mem: p.mem}
}

func (p *pool[T]) len() int { return p.n }

func (p *pool[T]) bytes() int { return len(p.pages)*p.pageBytes() + mem.SliceSize(p.pages) }

// check returns what is wrong with the numbers of p.
func (p *pool[T]) check() error {
	free := 0
	for i := p.free; i != 0; i = *p.link(i) {
		if free++; i > p.next || free > int(p.next) {
			return fmt.Errorf("%d of %d things were given back, the last is %d", free, p.next, i)
		}
	}
	if free+p.n != int(p.next) {
		return fmt.Errorf("%d things and %d that were given back are not %d", p.n, free, p.next)
	}
	return nil
}

// byLoc has things by the place of a key. A nil byLoc has none.
type byLoc[T any] struct {
	numbers names.Table[loc, uint32]
	things  pool[T]
}

func newByLoc[T any](s *source) *byLoc[T] {
	s.mem.Add(mem.SizeOf[byLoc[T]]())
	b := &byLoc[T]{things: pool[T]{mem: s.mem}}
	b.numbers.Init(s.names.Salt(), s.mem)
	return b
}

// at returns what there is at l, nil if there is nothing.
func (b *byLoc[T]) at(l loc) *T {
	if b == nil {
		return nil
	}
	if i := b.numbers.Get(l); i != 0 {
		return b.things.at(i)
	}
	return nil
}

// add adds a thing at l, where there is none.
func (b *byLoc[T]) add(l loc, v T) { b.numbers.Put(l, b.things.take(v)) }

// remove removes what there is at l.
func (b *byLoc[T]) remove(l loc) {
	b.things.give(b.numbers.Get(l))
	b.numbers.Remove(l)
}

// len returns at how many places there is something.
func (b *byLoc[T]) len() int {
	if b == nil {
		return 0
	}
	return b.numbers.Len()
}

// release lets all go. b is not used again.
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
