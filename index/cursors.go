package index

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// cursorList is the cursors of a source, ordered by their streams.
type cursorList struct {
	mem *mem.Count
	all []Cursor
}

// find returns the position of a stream's cursor, or the position where it belongs.
func (l *cursorList) find(stream string) (i int, ok bool) {
	return slices.BinarySearchFunc(l.all, stream, func(c Cursor, stream string) int {
		return strings.Compare(c.Stream, stream)
	})
}

// growth returns how many bytes the cursor of one more stream takes, at most.
func (l *cursorList) growth(stream string) int {
	n := mem.Size(len(stream))
	if len(l.all) == cap(l.all) {
		n += mem.PointerSize(max(1, 2*cap(l.all)) * int(unsafe.Sizeof(Cursor{})))
	}
	return n
}

// insert makes room at i for the cursor of a stream.
func (l *cursorList) insert(i int, stream string) {
	l.mem.Add(mem.Size(len(stream)))
	l.all = mem.Append(l.mem, l.all, Cursor{})
	copy(l.all[i+1:], l.all[i:])
	l.all[i] = Cursor{Stream: strings.Clone(stream)}
}

func (l *cursorList) bytes() int {
	n := mem.SliceSize(l.all)
	for i := range l.all {
		n += mem.Size(len(l.all[i].Stream))
	}
	return n
}
