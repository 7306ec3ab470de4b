// Package names has the table of the names that an engine has for its blocks.
package names

import (
	"math/bits"
	"unsafe"
)

// Table maps hashes that an engine may have chosen to values of 32 bits that are
// not 0, in 12.8 bytes a place. It belongs to one goroutine at a time, and must be
// made ready by Init.
//
// It is an extendible hash table. A directory by the top bits of a mixed hash
// points to segments, each an array of cache lines that holds five names a
// line; a full line passes what it has no room for to the next one. A segment
// grows by a third until it is split, so that one growth takes microseconds and
// little room stands empty.
type Table[H ~uint64, V ~uint32] struct {
	salt  [2]uint64
	depth uint
	segs  []*segment
	n     int
	seen  uint32 // what Prefetch has seen
}

// line has its names in front. fill is their number and, from the fourth
// bit on, how many names the search for finds in lines behind this one.
type line struct {
	hash  [lineNames]uint64
	value [lineNames]uint32
	fill  uint32
}

type segment struct {
	lines []line
	n     int
	limit int // of n
	depth uint
}

const (
	lineNames    = 5
	fillBits     = 3
	passedOne    = 1 << fillBits
	segmentLines = 512 // about, at most
	minLines     = 4
)

func newSegment(lines int, depth uint) *segment {
	return &segment{lines: make([]line, lines), limit: lines * lineNames * 85 / 100, depth: depth}
}

// mixed spreads a hash, which an engine may have chosen: a salt of ours is in
// both factors.
func (t *Table[H, V]) mixed(h uint64) uint64 {
	hi, lo := bits.Mul64(h^t.salt[0], t.salt[1])
	return hi ^ lo
}

// Init makes an empty table. The salt should be secret and random, so that nobody
// can choose hashes that fall together.
func (t *Table[H, V]) Init(salt [2]uint64) {
	*t = Table[H, V]{salt: [2]uint64{salt[0], salt[1] | 1}, segs: []*segment{newSegment(minLines, 0)}}
}

func (t *Table[H, V]) segmentOf(mixed uint64) *segment { return t.segs[mixed>>(64-t.depth)] }

// home returns the line where the search for a hash begins. The directory takes
// other bits.
func (s *segment) home(mixed uint64) int {
	return int(uint64(uint32(mixed)) * uint64(len(s.lines)) >> 32)
}

func (l *line) count() int { return int(l.fill & (passedOne - 1)) }

// index returns the place of a hash in its line, or -1.
func (l *line) index(h uint64) int {
	for j, k := range l.hash { // all of them: a loop of one length is predicted
		if k == h && j < l.count() {
			return j
		}
	}
	return -1
}

// find returns the value of a hash, nil if it is not there.
func (t *Table[H, V]) find(h uint64) *uint32 {
	mixed := t.mixed(h)
	s := t.segmentOf(mixed)
	i := s.home(mixed)
	for range s.lines {
		l := &s.lines[i]
		if j := l.index(h); j >= 0 {
			return &l.value[j]
		}
		if l.fill < passedOne {
			break
		}
		if i++; i == len(s.lines) {
			i = 0
		}
	}
	return nil
}

// Get returns the value of a hash, 0 if it has none.
func (t *Table[H, V]) Get(h H) V {
	if p := t.find(uint64(h)); p != nil {
		return V(*p)
	}
	return 0
}

// Prefetch asks for the memory of some hashes, so that what is done with them one
// after the other does not wait for each.
func (t *Table[H, V]) Prefetch(hashes []H) {
	seen := t.seen
	for _, h := range hashes {
		mixed := t.mixed(uint64(h))
		s := t.segmentOf(mixed)
		seen += s.lines[s.home(mixed)].fill
	}
	t.seen = seen
}

// Put gives a hash a value.
func (t *Table[H, V]) Put(h H, v V) {
	if p := t.find(uint64(h)); p != nil {
		*p = uint32(v)
		return
	}
	t.Add(h, v)
}

// Add gives a hash a value unless it has one, which it returns then.
func (t *Table[H, V]) Add(hash H, v V) (old V) {
	h := uint64(hash)
	mixed := t.mixed(h)
	s := t.segmentOf(mixed)
	for s.n >= s.limit {
		t.grow(mixed, s)
		s = t.segmentOf(mixed)
	}
	home := s.home(mixed)
	if l := &s.lines[home]; l.fill < lineNames && l.index(h) < 0 {
		l.append(h, uint32(v))
		s.n++
		t.n++
		return 0
	}
	room, i := -1, home
	for range s.lines {
		l := &s.lines[i]
		if j := l.index(h); j >= 0 {
			return V(l.value[j])
		}
		if room < 0 && l.count() < lineNames {
			room = i
		}
		if l.fill < passedOne && room >= 0 {
			break
		}
		if i++; i == len(s.lines) {
			i = 0
		}
	}
	for home != room {
		s.lines[home].fill += passedOne
		if home++; home == len(s.lines) {
			home = 0
		}
	}
	s.lines[room].append(h, uint32(v))
	s.n++
	t.n++
	return 0
}

func (l *line) append(h uint64, v uint32) {
	j := l.count()
	l.hash[j], l.value[j] = h, v
	l.fill++
}

// Remove takes a hash away, if it is there.
func (t *Table[H, V]) Remove(hash H) {
	h := uint64(hash)
	mixed := t.mixed(h)
	s := t.segmentOf(mixed)
	home := s.home(mixed)
	i := home
	for range s.lines {
		l := &s.lines[i]
		if j := l.index(h); j >= 0 {
			last := l.count() - 1
			l.hash[j], l.value[j] = l.hash[last], l.value[last]
			l.fill--
			break
		}
		if l.fill < passedOne {
			return
		}
		if i++; i == len(s.lines) {
			i = 0
		}
	}
	for home != i {
		s.lines[home].fill -= passedOne
		if home++; home == len(s.lines) {
			home = 0
		}
	}
	s.n--
	t.n--
	if len(s.lines) > minLines && s.n < len(s.lines) {
		t.refill(s, max(len(s.lines)/3, minLines))
	}
}

// most is how many lines a segment has before it is split. It differs from one
// to the other, so that not all are emptiest at once.
func (s *segment) most(mixed uint64) int {
	prefix := mixed >> 1 >> (63 - s.depth)
	return segmentLines*3/4 + int(prefix*0x9E3779B97F4A7C15>>32*(segmentLines/2)>>32)
}

func (t *Table[H, V]) grow(mixed uint64, s *segment) {
	n, most := len(s.lines), s.most(mixed)
	if n < most {
		t.refill(s, min(n*3/2, most))
		return
	}
	if s.depth == t.depth && len(t.segs) > 16 && len(t.segs) > t.n/64 {
		t.refill(s, n*3/2) // the directory would outgrow what it is for
		return
	}
	if s.depth == t.depth {
		twice := make([]*segment, 2*len(t.segs))
		for i := range twice {
			twice[i] = t.segs[i/2]
		}
		t.segs = twice
		t.depth++
	}
	bit := 63 - s.depth
	var count [2]int
	s.each(func(h uint64, _ uint32) { count[t.mixed(h)>>bit&1]++ })
	var halves [2]*segment
	for i := range halves {
		halves[i] = newSegment(max(count[i]*5/16+1, minLines), s.depth+1) // five places for 3.2 names
	}
	t.move(s.lines, halves[0], halves[1], bit)
	places := 1 << (t.depth - s.depth)
	first := int(mixed>>(64-t.depth)) &^ (places - 1)
	for i := range places {
		t.segs[first+i] = halves[2*i/places]
	}
}

// refill gives a segment other lines.
func (t *Table[H, V]) refill(s *segment, lines int) {
	old := s.lines
	*s = *newSegment(lines, s.depth)
	t.move(old, s, s, 0)
}

// move adds the names of some lines to one of two segments, by a bit of the
// mixed hash.
func (t *Table[H, V]) move(from []line, zero, one *segment, bit uint) {
	to := [2]*segment{zero, one}
	for i := range from {
		old := &from[i]
		for j := range old.count() {
			mixed := t.mixed(old.hash[j])
			s := to[mixed>>bit&1]
			at := s.home(mixed)
			l := &s.lines[at]
			for l.count() == lineNames {
				l.fill += passedOne
				if at++; at == len(s.lines) {
					at = 0
				}
				l = &s.lines[at]
			}
			l.append(old.hash[j], old.value[j])
			s.n++
		}
	}
}

func (s *segment) each(f func(uint64, uint32)) {
	for i := range s.lines {
		l := &s.lines[i]
		for j := range l.count() {
			f(l.hash[j], l.value[j])
		}
	}
}

// Each calls f for each name. f may not change the table.
func (t *Table[H, V]) Each(f func(H, V)) {
	var p Position
	t.Walk(&p, t.n+1, f)
}

// Position is how far a Walk has come. The zero Position is the beginning.
type Position struct {
	segment uint64 // position of the directory
	line    int
	end     bool
}

// Walk goes on at p with n names, or a few more, and returns how many of n it did
// not need, and whether it has come to the end. The table must not change between
// the beginning and the end, nor by f.
func (t *Table[H, V]) Walk(p *Position, n int, f func(H, V)) (left int, done bool) {
	for !p.end {
		s, after := t.at(p.segment)
		for ; p.line < len(s.lines); p.line++ {
			if n <= 0 {
				return 0, false
			}
			l := &s.lines[p.line]
			for j := range l.count() {
				f(H(l.hash[j]), V(l.value[j]))
			}
			n -= l.count()
		}
		*p = Position{segment: after, end: after == 0}
	}
	return max(n, 0), true
}

// Some appends some names to dst, those from a position on: 0 is the beginning.
// It returns the position behind them, 0 at the end. The table may change between
// two calls: names that are there all the time are among those of one of them.
func (t *Table[H, V]) Some(dst []H, pos uint64) (names []H, next uint64) {
	s, next := t.at(pos)
	s.each(func(h uint64, _ uint32) { dst = append(dst, H(h)) })
	return dst, next
}

// at returns the segment at a position of the directory and the position behind
// it, 0 at the end. A segment that is split or grows keeps its part of the
// positions.
func (t *Table[H, V]) at(pos uint64) (s *segment, after uint64) {
	s = t.segmentOf(pos)
	size := uint64(1) << (64 - s.depth) // 0: all
	return s, pos&^(size-1) + size
}

// Len returns the number of names.
func (t *Table[H, V]) Len() int { return t.n }

// Bytes returns what the table takes.
func (t *Table[H, V]) Bytes() int {
	n, last := int(unsafe.Sizeof(t.segs[0]))*len(t.segs), (*segment)(nil)
	for _, s := range t.segs {
		if s != last {
			n, last = n+int(unsafe.Sizeof(line{}))*len(s.lines)+int(unsafe.Sizeof(*s)), s
		}
	}
	return n
}
