// Package mem counts the bytes of heap that the structures of an index take.
package mem

import (
	"sync"
	"sync/atomic"
)

// Count is how many bytes some structures take together. Its zero value is ready. It
// is safe for concurrent use. A structure adds what it is about to allocate, as Size or
// PointerSize says, and takes away what it has let go of.
type Count struct{ n atomic.Int64 }

// Add adds n bytes, which may be negative.
func (c *Count) Add(n int) { c.n.Add(int64(n)) }

// Load returns the bytes.
func (c *Count) Load() int64 { return c.n.Load() }

// pageSize is the unit of allocations that are larger than the largest size class.
const pageSize = 8192

// classes are the sizes that Go's heap has for small things, as append shows them.
var classes = sync.OnceValue(func() (sizes []int) {
	for n := 1; n <= 32<<10; n = sizes[len(sizes)-1] + 1 {
		sizes = append(sizes, cap(append([]byte(nil), make([]byte, n)...)))
	}
	return sizes
})

// Size returns what Go's heap takes for an allocation of n bytes without pointers.
func Size(n int) int {
	if n == 0 {
		return 0
	}
	sizes := classes()
	if n > sizes[len(sizes)-1] {
		return (n + pageSize - 1) / pageSize * pageSize
	}
	lo, hi := 0, len(sizes)-1
	for lo < hi {
		if mid := (lo + hi) / 2; sizes[mid] < n {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return sizes[lo]
}

// PointerSize returns what Go's heap takes for an allocation of n bytes with
// pointers. From 512 bytes on it has a word of its own there.
func PointerSize(n int) int {
	if n > 512 && n <= 32<<10-8 {
		n += 8
	}
	return Size(n)
}
