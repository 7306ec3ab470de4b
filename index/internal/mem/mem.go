// Package mem counts the bytes of heap that the structures of an index take.
package mem

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Count is how many bytes some structures take together. Its zero value is ready. It
// is safe for concurrent use. A structure adds what it is about to allocate, by Size or
// PointerSize, and subtracts what it frees.
type Count struct {
	n      atomic.Int64
	frugal atomic.Bool
}

// SetFrugal sets whether structures should rather be full, and slower, than grow.
func (c *Count) SetFrugal(yes bool) {
	if c.frugal.Load() != yes {
		c.frugal.Store(yes)
	}
}

// Frugal returns the last value of SetFrugal.
func (c *Count) Frugal() bool { return c.frugal.Load() }

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

// tinySize is what things without pointers share that are smaller. It stays as long as
// any of them, so each may be the one that keeps it.
const tinySize = 16

// Size returns what Go's heap takes for an allocation of n bytes without pointers, at
// most.
func Size(n int) int {
	if n > 0 && n < tinySize {
		return tinySize
	}
	return sizeOf(n)
}

func sizeOf(n int) int {
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

// wordBytes is the size of a pointer.
const wordBytes = int(unsafe.Sizeof(uintptr(0)))

// PointerSize returns what Go's heap takes for an allocation of n bytes with
// pointers. Above 512 bytes, and 128 on 32 bits, it has 8 bytes of its own there.
func PointerSize(n int) int {
	if n > 8*wordBytes*wordBytes && n <= 32<<10-8 {
		n += 8
	}
	return sizeOf(n)
}

// SizeOf returns what Go's heap takes for a T, which has pointers.
func SizeOf[T any]() int {
	var v T
	return PointerSize(int(unsafe.Sizeof(v)))
}

// SliceSize returns what Go's heap takes for the array of a slice with pointers.
func SliceSize[T any](s []T) int {
	var v T
	return PointerSize(cap(s) * int(unsafe.Sizeof(v)))
}

// Append appends v to a slice with pointers of which c counts the array, and whose
// earlier array nobody keeps.
func Append[T any](c *Count, s []T, v T) []T {
	if len(s) < cap(s) {
		return append(s, v)
	}
	room := max(1, 2*cap(s))
	c.Add(PointerSize(room * int(unsafe.Sizeof(v))))
	more := append(make([]T, 0, room), s...)
	c.Add(-SliceSize(s))
	return append(more, v)
}

// AppendPlain is Append for a slice without pointers.
func AppendPlain[T any](c *Count, s []T, v T) []T {
	if len(s) < cap(s) {
		return append(s, v)
	}
	size := int(unsafe.Sizeof(v))
	room := max(1, 2*cap(s))
	c.Add(Size(room * size))
	more := append(make([]T, 0, room), s...)
	c.Add(-Size(cap(s) * size))
	return append(more, v)
}
