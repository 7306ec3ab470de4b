package names

import "unsafe"

// Sweep appends to dst those names of a segment whose values are picked. The segment
// is at a position, as in Some. It returns how many names it has seen, too.
func (t *Table[H, V]) Sweep(dst []H, pos uint64, pick func(V) bool) (picked []H, next uint64, seen int) {
	s, next := t.at(pos)
	for i := range s.lines {
		l := &s.lines[i]
		for j := range l.count() {
			if pick(V(l.value[j])) {
				dst = append(dst, H(l.hash[j]))
			}
		}
	}
	return dst, next, s.n
}

// HasRoom reports whether a hash could be added without more memory.
func (t *Table[H, V]) HasRoom(h H) bool {
	s := t.segmentOf(t.mixed(uint64(h)))
	return s.n < s.limit
}

// Room returns about how many names could be added without more memory, if they fell
// where there is room.
func (t *Table[H, V]) Room() int {
	return max(t.Bytes()/int(unsafe.Sizeof(line{}))*lineNames*85/100-t.n, 0)
}
