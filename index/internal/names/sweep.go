package names

import "unsafe"

// Sweep appends to dst those names of a segment whose values are picked: of values
// below 1<<31 by the bit v>>5 of a set, of others by pick. The segment is at a position,
// as in Some. It returns how many names it has seen, too.
func (t *Table[H, V]) Sweep(dst []H, pos uint64, set []uint64, pick func(V) bool) (picked []H, next uint64, seen int) {
	s, next := t.at(pos)
	for i := range s.lines {
		l := &s.lines[i]
		for j := range min(l.count(), lineNames) {
			v := l.value[j]
			if v>>31 == 0 {
				if set[v>>11]>>(v>>5&63)&1 == 0 {
					continue
				}
			} else if !pick(V(v)) {
				continue
			}
			dst = append(dst, H(l.hash[j]))
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
