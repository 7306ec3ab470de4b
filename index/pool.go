package index

import "unsafe"

// pool has things by number from 1, in pages.
type pool[T any] struct {
	pages []*[poolPage]T
	free  []uint32
	next  uint32
}

const poolPage = 256

func (p *pool[T]) at(i uint32) *T { return &p.pages[i/poolPage][i%poolPage] }

func (p *pool[T]) take(v T) uint32 {
	var i uint32
	if n := len(p.free); n > 0 {
		i, p.free = p.free[n-1], p.free[:n-1]
	} else {
		if p.next++; int(p.next/poolPage) == len(p.pages) {
			p.pages = append(p.pages, new([poolPage]T))
		}
		i = p.next
	}
	*p.at(i) = v
	return i
}

// give takes i back. A pool that nothing is in any more keeps a page of its memory, and
// the rest goes.
func (p *pool[T]) give(i uint32) {
	if p.free = append(p.free, i); len(p.free) < int(p.next) {
		return
	}
	clear(p.pages[1:])
	p.pages, p.free, p.next = p.pages[:1], p.free[:0], 0
	if cap(p.free) > poolPage {
		p.free = nil
	}
}

// hasRoom reports whether something can be taken without more memory. An empty pool
// is small.
func (p *pool[T]) hasRoom() bool {
	return len(p.free) > 0 || len(p.pages) == 0 || int(p.next+1)/poolPage < len(p.pages)
}

func (p *pool[T]) len() int { return int(p.next) - len(p.free) }

func (p *pool[T]) bytes() int {
	return len(p.pages)*int(unsafe.Sizeof([poolPage]T{})) + cap(p.free)*int(unsafe.Sizeof(p.next))
}
