package index

import "math/bits"

// names maps the hashes of a source to what it knows of them, a value of 32
// bits that is not 0, in 12.8 bytes a place. It belongs to one writer at a time.
//
// It is an extendible hash table. A directory by the top bits of a mixed hash
// points to segments, each an array of cache lines that holds five names a
// line; a full line passes what it has no room for to the next one. A segment
// grows by a third until it is split, so that one growth takes microseconds and
// little room stands empty.
type names struct {
	salt  [2]uint64
	depth uint
	segs  []*nameSegment
	n     int
	seen  uint32 // what touch has seen
}

// nameLine has its names in front. fill is their number and, from the fourth
// bit on, how many names the search for finds in lines behind this one.
type nameLine struct {
	hash  [lineNames]uint64
	value [lineNames]uint32
	fill  uint32
}

type nameSegment struct {
	lines []nameLine
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

func newSegment(lines int, depth uint) *nameSegment {
	return &nameSegment{lines: make([]nameLine, lines), limit: lines * lineNames * 85 / 100, depth: depth}
}

// mixed spreads a hash, which an engine may have chosen: a salt of ours is in
// both factors.
func (t *names) mixed(h Hash) uint64 {
	hi, lo := bits.Mul64(uint64(h)^t.salt[0], t.salt[1])
	return hi ^ lo
}

func (t *names) init(salt [2]uint64) {
	*t = names{salt: [2]uint64{salt[0], salt[1] | 1}, segs: []*nameSegment{newSegment(minLines, 0)}}
}

func (t *names) segment(mixed uint64) *nameSegment { return t.segs[mixed>>(64-t.depth)] }

// home returns the line where the search for a hash begins. The directory takes
// other bits.
func (s *nameSegment) home(mixed uint64) int {
	return int(uint64(uint32(mixed)) * uint64(len(s.lines)) >> 32)
}

func (l *nameLine) count() int { return int(l.fill & (passedOne - 1)) }

// index returns the place of a hash in its line, or -1.
func (l *nameLine) index(h Hash) int {
	for j, k := range l.hash { // all of them: a loop of one length is predicted
		if k == uint64(h) && j < l.count() {
			return j
		}
	}
	return -1
}

// find returns the value of a hash, nil if it is not there.
func (t *names) find(h Hash) *uint32 {
	mixed := t.mixed(h)
	s := t.segment(mixed)
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

func (t *names) get(h Hash) value {
	if p := t.find(h); p != nil {
		return value(*p)
	}
	return 0
}

// touch asks for the memory of some hashes, so that what is done with them one
// after the other does not wait for each.
func (t *names) touch(hashes []Hash) {
	seen := t.seen
	for _, h := range hashes {
		mixed := t.mixed(h)
		s := t.segment(mixed)
		seen += s.lines[s.home(mixed)].fill
	}
	t.seen = seen
}

// put gives a hash a value.
func (t *names) put(h Hash, v value) {
	if old := t.add(h, v); old != 0 {
		*t.find(h) = uint32(v)
	}
}

// add gives a hash a value unless it has one, which it returns then.
func (t *names) add(h Hash, v value) (old value) {
	mixed := t.mixed(h)
	s := t.segment(mixed)
	for s.n >= s.limit {
		t.grow(mixed, s)
		s = t.segment(mixed)
	}
	home := s.home(mixed)
	if l := &s.lines[home]; l.fill < lineNames && l.index(h) < 0 {
		l.append(uint64(h), uint32(v))
		s.n++
		t.n++
		return 0
	}
	room, i := -1, home
	for range s.lines {
		l := &s.lines[i]
		if j := l.index(h); j >= 0 {
			return value(l.value[j])
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
	s.lines[room].append(uint64(h), uint32(v))
	s.n++
	t.n++
	return 0
}

func (l *nameLine) append(h uint64, v uint32) {
	j := l.count()
	l.hash[j], l.value[j] = h, v
	l.fill++
}

func (t *names) remove(h Hash) {
	mixed := t.mixed(h)
	s := t.segment(mixed)
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
func (s *nameSegment) most(mixed uint64) int {
	prefix := mixed >> 1 >> (63 - s.depth)
	return segmentLines*3/4 + int(prefix*0x9E3779B97F4A7C15>>32*(segmentLines/2)>>32)
}

func (t *names) grow(mixed uint64, s *nameSegment) {
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
		twice := make([]*nameSegment, 2*len(t.segs))
		for i := range twice {
			twice[i] = t.segs[i/2]
		}
		t.segs = twice
		t.depth++
	}
	bit := 63 - s.depth
	var count [2]int
	s.each(func(h Hash, _ uint32) { count[t.mixed(h)>>bit&1]++ })
	var halves [2]*nameSegment
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
func (t *names) refill(s *nameSegment, lines int) {
	old := s.lines
	*s = *newSegment(lines, s.depth)
	t.move(old, s, s, 0)
}

// move adds the names of some lines to one of two segments, by a bit of the
// mixed hash.
func (t *names) move(from []nameLine, zero, one *nameSegment, bit uint) {
	to := [2]*nameSegment{zero, one}
	for i := range from {
		old := &from[i]
		for j := range old.count() {
			mixed := t.mixed(Hash(old.hash[j]))
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

func (s *nameSegment) each(f func(Hash, uint32)) {
	for i := range s.lines {
		l := &s.lines[i]
		for j := range l.count() {
			f(Hash(l.hash[j]), l.value[j])
		}
	}
}

// each calls f for each name. f may not change the table.
func (t *names) each(f func(Hash, value)) {
	for pos, last := uint64(0), false; !last; {
		var s *nameSegment
		s, pos, last = t.next(pos)
		s.each(func(h Hash, v uint32) { f(h, value(v)) })
	}
}

// next returns the segment at a position of the directory and the position
// behind it. A segment that is split or grows keeps its part of the positions.
func (t *names) next(pos uint64) (s *nameSegment, after uint64, last bool) {
	s = t.segment(pos)
	size := uint64(1) << (64 - s.depth) // 0: all
	after = pos&^(size-1) + size
	return s, after, after == 0
}

func (t *names) bytes() int {
	n, last := 8*len(t.segs), (*nameSegment)(nil)
	for _, s := range t.segs {
		if s != last {
			n, last = n+64*len(s.lines)+48, s
		}
	}
	return n
}

// pool has things without pointers, by number from 1, in pages.
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

// give takes i back. A pool that nothing is in any more lets its memory go.
func (p *pool[T]) give(i uint32) {
	if p.free = append(p.free, i); len(p.free) == int(p.next) {
		*p = pool[T]{}
	}
}

func (p *pool[T]) len() int { return int(p.next) - len(p.free) }
