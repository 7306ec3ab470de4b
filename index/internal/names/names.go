// Package names has the table of the names that an engine has for its blocks.
package names

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Table maps hashes that an engine may have chosen to values of 32 bits that are
// not 0, in 12.8 bytes a place. It belongs to one goroutine at a time, and must be
// made ready by Init.
//
// It is an extendible hash table. A directory by the top bits of a mixed hash
// points to segments, each an array of cache lines that holds five names a
// line; a full line passes what it has no room for to the next one. A segment
// grows by half until it is split, so that one growth takes microseconds and
// little room stands empty. Its lines take all of what the heap gives for them.
type Table[H ~uint32 | ~uint64, V ~uint32] struct {
	salt    [2]uint64
	depth   uint
	segs    []*segment
	deepest int // segments of the directory's depth
	n       int
	seen    uint32 // what Prefetch has seen
	bytes   int    // of the directory, the segments and their lines
	mem     *mem.Count
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
	segmentLines = 256 // about, at most
	minLines     = 4

	lineBytes = int(unsafe.Sizeof(line{}))
)

// account notes that the table takes so many bytes more.
func (t *Table[H, V]) account(bytes int) {
	t.bytes += bytes
	t.mem.Add(bytes)
}

// roomy returns how many lines there are in what the heap gives for some.
func roomy(lines int) int { return mem.Size(lines*lineBytes) / lineBytes }

// fits reports whether a segment that would grow is to take another name instead,
// because memory is short.
func (t *Table[H, V]) fits(s *segment) bool { return t.mem.Frugal() && s.n < s.most() }

// most returns how many names a segment has at most.
func (s *segment) most() int { return len(s.lines) * lineNames * 94 / 100 }

// linesFor returns how many lines n names get that have room to grow: five places
// for 3.2 names.
func linesFor(n int) int { return roomy(max(n*5/16+1, minLines)) }

// empty makes a segment an empty one of so many lines, or a few more. Its old content is
// not accounted for.
func (t *Table[H, V]) empty(s *segment, lines int, depth uint) {
	lines = roomy(lines)
	t.account(lines * lineBytes)
	*s = segment{lines: make([]line, lines), limit: lines * lineNames * 85 / 100, depth: depth}
}

func (t *Table[H, V]) newSegment(lines int, depth uint) *segment {
	t.account(mem.SizeOf[segment]())
	s := new(segment)
	t.empty(s, lines, depth)
	return s
}

// drop takes a segment that is in the directory no more out of the account.
func (t *Table[H, V]) drop(s *segment) {
	t.account(-mem.SizeOf[segment]() - len(s.lines)*lineBytes)
}

// resize gives the table a directory of another depth, in which at returns the segment
// of each place.
func (t *Table[H, V]) resize(depth uint, at func(int) *segment) {
	t.account(mem.PointerSize(int(unsafe.Sizeof(t.segs[0])) << depth))
	segs := make([]*segment, 1<<depth)
	for i := range segs {
		segs[i] = at(i)
	}
	t.account(-mem.SliceSize(t.segs))
	t.segs, t.depth = segs, depth
}

// mixed spreads a hash, which an engine may have chosen: a salt of ours is in
// both factors.
func (t *Table[H, V]) mixed(h uint64) uint64 {
	hi, lo := bits.Mul64(h^t.salt[0], t.salt[1])
	return hi ^ lo
}

// Init makes an empty table. c counts its memory on the heap. The salt
// should be secret and random, so that nobody can choose hashes that fall together.
func (t *Table[H, V]) Init(salt [2]uint64, c *mem.Count) {
	*t = Table[H, V]{salt: [2]uint64{salt[0], salt[1] | 1}, mem: c}
	t.resize(0, func(int) *segment { return t.newSegment(minLines, 0) })
	t.deepest = 1
}

// Salt returns a salt for other tables.
func (t *Table[H, V]) Salt() [2]uint64 { return t.salt }

// Release lets all of the table go. It must be made ready by Init again before it is
// used for anything but Len and Bytes, which are 0.
func (t *Table[H, V]) Release() {
	t.account(-t.bytes)
	*t = Table[H, V]{}
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

// Prefetch loads the memory of some hashes, so that work on them one after the
// other does not wait for each.
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
	for s.n >= s.limit && !t.fits(s) {
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
	for left := len(s.lines); ; left-- {
		l := &s.lines[i]
		if j := l.index(h); j >= 0 {
			last := l.count() - 1
			l.hash[j], l.value[j] = l.hash[last], l.value[last]
			l.fill--
			break
		}
		if l.fill < passedOne || left == 1 {
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

// splitsAt is how many lines a segment has before it is split. It differs from one
// to the other, so that not all are emptiest at once.
func (s *segment) splitsAt(mixed uint64) int {
	prefix := mixed >> 1 >> (63 - s.depth)
	return segmentLines*3/4 + int(prefix*0x9E3779B97F4A7C15>>32*(segmentLines/2)>>32)
}

func (t *Table[H, V]) grow(mixed uint64, s *segment) {
	n, most := len(s.lines), s.splitsAt(mixed)
	if n < most {
		t.refill(s, min(n*3/2, most))
		return
	}
	if s.depth == t.depth && len(t.segs) > 16 && len(t.segs) > t.n/64 {
		t.refill(s, n*3/2) // the directory would outgrow what it is for
		return
	}
	if s.depth == t.depth {
		t.resize(t.depth+1, func(i int) *segment { return t.segs[i/2] })
		t.deepest = 0
	}
	bit := 63 - s.depth
	var count [2]int
	s.each(func(h uint64, _ uint32) { count[t.mixed(h)>>bit&1]++ })
	var halves [2]*segment
	for i := range halves {
		halves[i] = t.newSegment(linesFor(count[i]), s.depth+1)
	}
	t.move(s.lines, halves[0], halves[1], bit)
	t.drop(s)
	of := t.places(mixed, s.depth)
	for i := range of {
		of[i] = halves[2*i/len(of)]
	}
	if s.depth+1 == t.depth {
		t.deepest += 2
	}
}

// Reserve makes the table ready for n names in all, if there are few yet, and memory is
// not short.
func (t *Table[H, V]) Reserve(n int) {
	lines, depth := n*4/15, uint(0) // three places of four are taken
	for lines>>depth > segmentLines*3/4 {
		depth++
	}
	lines = max((lines+1<<depth-1)>>depth, minLines)
	if depth < t.depth || n <= t.n+t.Room() || t.mem.Frugal() {
		return
	}
	old := *t
	t.account(mem.PointerSize(int(unsafe.Sizeof(t.segs[0])) << depth))
	t.segs, t.depth = make([]*segment, 1<<depth), depth
	for i := range t.segs {
		t.segs[i] = t.newSegment(lines, depth)
	}
	t.deepest = len(t.segs)
	for pos, end := uint64(0), false; !end; end = pos == 0 {
		var from *segment
		from, pos = old.at(pos)
		from.each(func(h uint64, v uint32) {
			mixed := t.mixed(h)
			s := t.segmentOf(mixed)
			for s.n >= s.limit {
				t.grow(mixed, s)
				s = t.segmentOf(mixed)
			}
			s.put(mixed, h, v)
		})
		t.drop(from)
	}
	t.account(-mem.SliceSize(old.segs))
}

// places returns the part of the directory that is for a segment of some depth.
func (t *Table[H, V]) places(mixed uint64, depth uint) []*segment {
	n := 1 << (t.depth - depth)
	first := int(mixed>>(64-t.depth)) &^ (n - 1)
	return t.segs[first : first+n]
}

// refill gives a segment other lines.
func (t *Table[H, V]) refill(s *segment, lines int) {
	old := s.lines
	t.empty(s, lines, s.depth)
	t.move(old, s, s, 0)
	t.account(-len(old) * lineBytes)
}

// move adds the names of some lines to one of two segments, by a bit of the
// mixed hash.
func (t *Table[H, V]) move(from []line, zero, one *segment, bit uint) {
	to := [2]*segment{zero, one}
	for i := range from {
		old := &from[i]
		for j := range old.count() {
			mixed := t.mixed(old.hash[j])
			to[mixed>>bit&1].put(mixed, old.hash[j], old.value[j])
		}
	}
}

// put adds a name that is not there, for which there is room.
func (s *segment) put(mixed, h uint64, v uint32) {
	at := s.home(mixed)
	l := &s.lines[at]
	for l.count() == lineNames {
		l.fill += passedOne
		if at++; at == len(s.lines) {
			at = 0
		}
		l = &s.lines[at]
	}
	l.append(h, v)
	s.n++
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
	inside := pos<<s.depth != 0 // hashes before pos were seen before two segments became one
	s.each(func(h uint64, _ uint32) {
		if !inside || t.mixed(h) >= pos {
			dst = append(dst, H(h))
		}
	})
	return dst, next
}

// Compact gives back room at a position, as Some has them. Neighbours with few names
// become one segment, and a segment that is not 60 % full is filled again to fit; if
// memory is short, one that is not 80 % full. It takes some microseconds. A walk by Some may be in progress.
func (t *Table[H, V]) Compact(pos uint64) {
	s, _ := t.at(pos)
	for s.depth > 0 {
		o, _ := t.at(pos ^ 1<<(64-s.depth))
		if o.depth != s.depth || linesFor(s.n+o.n) > segmentLines/2 {
			break
		}
		s = t.merge(pos, s, o)
	}
	lines, part := linesFor(s.n), 60
	if t.mem.Frugal() {
		lines, part = roomy(max(s.n*4/17+1, minLines)), 80 // 85 %
	}
	if lines < len(s.lines) && 100*s.n < part*s.limit {
		t.refill(s, lines)
	}
}

// merge makes two halves one segment, and the directory as short as it can be.
func (t *Table[H, V]) merge(pos uint64, s, o *segment) *segment {
	one := t.newSegment(linesFor(s.n+o.n), s.depth-1)
	t.move(s.lines, one, one, 0)
	t.move(o.lines, one, one, 0)
	of := t.places(pos, one.depth)
	for i := range of {
		of[i] = one
	}
	t.drop(s)
	t.drop(o)
	if s.depth == t.depth {
		t.deepest -= 2
	}
	for t.deepest == 0 {
		t.resize(t.depth-1, func(i int) *segment { return t.segs[2*i] })
		for i := 0; i < len(t.segs); i += 1 << (t.depth - t.segs[i].depth) {
			if t.segs[i].depth == t.depth {
				t.deepest++
			}
		}
	}
	return one
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

// Bytes returns what the table has on the heap.
func (t *Table[H, V]) Bytes() int { return t.bytes }

// Check looks at all of t and returns the first fault of its counts.
func (t *Table[H, V]) Check() error {
	n, deepest, bytes := 0, 0, mem.SliceSize(t.segs)
	for i := 0; i < len(t.segs); {
		s := t.segs[i]
		names := 0
		s.each(func(uint64, uint32) { names++ })
		if names != s.n || s.n > s.most() {
			return fmt.Errorf("a segment for %d names has %d, counted %d", s.limit, names, s.n)
		}
		n += names
		bytes += mem.SizeOf[segment]() + mem.Size(len(s.lines)*lineBytes)
		if s.depth == t.depth {
			deepest++
		}
		i += 1 << (t.depth - s.depth)
	}
	if n != t.n || deepest != t.deepest || bytes != t.bytes {
		return fmt.Errorf("%d names in %d bytes, %d segments of depth %d; counted %d, %d, %d",
			n, bytes, deepest, t.depth, t.n, t.bytes, t.deepest)
	}
	return nil
}
