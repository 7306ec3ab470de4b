package forest

import (
	"math/bits"
	"sync/atomic"
)

// Slabs are evicted from the leaves: those with nothing behind them, by their age,
// which is how long ago they were used. A slab takes over the later time of those that were
// behind it, so the parts of a chain go from its end, and a prefix is left.
//
// A dead slab is not found any more, and readers see nobody in it. Its holders stay
// for writers, who still have to learn from them what the names stood for (Holds);
// nobody else may ask for its key or what was before it. It is free when the last of
// its names has gone.

// holders returns the header as it is, or was before the slab was evicted.
func (m *slabMeta) holders() header {
	h := header(m.header)
	if h.kind() != kindDead {
		return h
	}
	kind := kindNone
	switch {
	case m.kids&flagRecord != 0:
		kind = kindRecord
	case h.mask() != 0:
		kind = kindOne
	}
	return h&^(3<<62) | kind<<62
}

// setHolders stores a header, which readers do not see in a dead slab.
func (m *slabMeta) setHolders(h header) {
	if m.dead() {
		m.kids &^= flagRecord
		if h.kind() == kindRecord {
			m.kids |= flagRecord
		}
		h |= kindDead << 62
	}
	m.store(h)
}

// Dying returns how many slabs that were evicted or moved still have names there.
func (f *Forest) Dying() int { return f.slabs.dying }

// Dead reports whether the slab of l was evicted. It may have been if the caller
// has a name there.
func (f *Forest) Dead(l Loc) bool {
	if f.slabs.dying == 0 {
		return false
	}
	id := f.here(l.Slab())
	return f.slabs.dead[id/64]>>(id%64)&1 != 0
}

// DeadSlabs has a bit for each slab that was evicted or moved and has names.
func (f *Forest) DeadSlabs() []uint64 { return f.slabs.dead }

// kill evicts a slab that nothing is behind.
func (f *Forest) kill(id uint32, m *slabMeta) {
	f.forget(id, m)
	h := header(m.header)
	f.eachHolder(h, func(ord, mask uint32) {
		f.Lose(ord)
		if f.watcher != nil {
			f.watcher.Changed(id, ord, mask, 0)
		}
	})
	m.kids |= flagDead
	m.setHolders(h)
	f.slabs.dead[id/64] |= 1 << (id % 64)
	f.slabs.dying++
}

// lose notes that a slab behind m goes. m takes over its time.
func (f *Forest) lose(m, behind *slabMeta) {
	m.kids--
	if f.ageOf(behind) < f.ageOf(m) {
		atomic.StoreUint32(&m.used, atomic.LoadUint32(&behind.used))
	}
}

// ageOf returns how many ticks ago a slab was used. The clock may have wrapped since.
func (f *Forest) ageOf(m *slabMeta) uint32 {
	used := atomic.LoadUint32(&m.used) // first: it is never after the clock
	return f.now.Load() - used
}

// bury lets go of a dead slab without names.
func (f *Forest) bury(id uint32) {
	f.slabs.dead[id/64] &^= 1 << (id % 64)
	f.slabs.dying--
	f.leave(id, f.meta(id))
}

func (f *Forest) eachHolder(h header, each func(ord, mask uint32)) {
	switch h.kind() {
	case kindOne:
		each(h.ord(), h.mask())
	case kindRecord:
		f.recs.at(h.record()).each(each)
	}
}

// Survey finds out how cold the slabs are, in steps, and then evicts the coldest.
type Survey struct {
	nameBytes int // of a name, on average

	at   uint32 // the slab that is next
	now  uint32
	from uint32            // of the classes after the first, if they have step ticks each
	step uint32            // 0: classes are those of ageClass
	all  int64             // bytes of slabs and their names
	tail [ageClasses]int64 // of leaves, with what would go with each
	// Of the second part: slabs of an age class from least on go, until left bytes
	// have gone.
	least int
	left  int64
}

// An age class has 8 classes for each power of two: less than a tenth of an age.
const (
	ageParts   = 3
	ageClasses = (32 - ageParts + 1) << ageParts
)

func ageClass(age uint32) int {
	if age < 1<<ageParts {
		return int(age)
	}
	shift := bits.Len32(age) - 1 - ageParts
	return (shift+1)<<ageParts | int(age>>shift)&(1<<ageParts-1)
}

// agesOf returns the first age of an age class, and how many it has.
func agesOf(class int) (first, n uint32) {
	if class < 1<<ageParts {
		return uint32(class), 1
	}
	shift := class>>ageParts - 1
	return uint32(1<<ageParts|class&(1<<ageParts-1)) << shift, 1 << shift
}

// Begin begins a survey.
func (f *Forest) Begin(s *Survey, nameBytes int) {
	*s = Survey{nameBytes: nameBytes, at: 1, now: f.now.Load()}
}

func (s *Survey) ageOf(f *Forest, m *slabMeta) int {
	age, since := f.ageOf(m), f.now.Load()-s.now
	age -= min(age, since) // 0: it was used since
	switch {
	case s.step == 0:
		return ageClass(age)
	case age < s.from:
		return 0
	}
	return int(min(1+(age-s.from)/s.step, ageClasses-1))
}

func (s *Survey) bytesOf(slots uint32, m *slabMeta) int64 {
	return int64(slabBytes(int(slots)) + s.nameBytes*int(m.names()))
}

// Look goes on with so many slabs and reports whether it has seen all.
func (f *Forest) Look(s *Survey, n int) (done bool) {
	return f.eachSlab(s, n, func(id uint32, c *chunk, m *slabMeta) {
		age, bytes := s.ageOf(f, m), s.bytesOf(c.slots, m)
		s.all += bytes
		if m.behind() > 0 {
			return
		}
		s.tail[age] += bytes + f.tailOf(s, m, age)
	})
}

// tailOf returns the bytes of what goes with a leaf: the slabs before it that nothing
// else is behind, if they are not younger.
func (f *Forest) tailOf(s *Survey, m *slabMeta, age int) (bytes int64) {
	chunks := *f.chunks.Load()
	for most := 1 << 10; most > 0 && m.parent != 0; most-- {
		id := f.here(m.parent.Slab())
		c := &chunks[id/chunkSlabs]
		if m = &c.meta[id%chunkSlabs]; m.behind() > 1 || s.ageOf(f, m) < age {
			break
		}
		bytes += s.bytesOf(c.slots, m)
	}
	return bytes
}

// coldest has least be where the coldest leaves begin, some bytes, which are want if there
// are as many. If not, part is what may go of the class before: the rest is to be kept.
func (s *Survey) coldest(want, keep int64) (some, part int64) {
	used := s.all
	for _, bytes := range s.tail {
		used -= bytes
	}
	youngest := 0
	for used += s.tail[0]; used < keep && youngest < ageClasses-1; used += s.tail[youngest] {
		youngest++
	}
	for s.least = ageClasses; some < want && s.least > youngest+1; {
		s.least--
		some += s.tail[s.least]
	}
	if some < want && youngest > 0 {
		part = max(used-keep, 0)
	}
	return some, part
}

// Finer reports whether Choose would find too little, because much was used at nearly one
// time: one class has slabs that may go and slabs to keep. Then it begins to look at the
// ages of that class in finer steps.
func (s *Survey) Finer(want, keep int64) bool {
	_, part := s.coldest(want, keep)
	if part == 0 || s.step == 1 {
		return false
	}
	class := s.least - 1
	from, n := agesOf(class)
	if s.step > 0 {
		from, n = s.from+uint32(class-1)*s.step, s.step
	}
	const classes = ageClasses - 2 // others are for what is younger, and older
	*s = Survey{nameBytes: s.nameBytes, at: 1, now: s.now, from: from, step: (n + classes - 1) / classes}
	return true
}

// Choose chooses the coldest slabs, of want bytes together, and begins to evict them.
// It never takes one of the keep bytes that were used last: the slabs behind a slab
// were used with it, and a slab with several leaves behind it counts as used now. It returns
// false if nothing is left then.
func (s *Survey) Choose(want, keep int64) bool {
	some, part := s.coldest(want, keep)
	s.at, s.left = 1, want
	if some == 0 && s.step == 1 { // all of that class was used at one time
		s.least--
		some = part
		s.left = min(want, part)
	}
	return some > 0
}

// Evict goes on with so many slabs, and reports whether it is done. Evicted slabs
// have names: freed is their size in bytes.
func (f *Forest) Evict(s *Survey, n int) (freed int64, done bool) {
	done = f.eachSlab(s, n, func(id uint32, c *chunk, m *slabMeta) {
		for s.left > 0 && m.behind() == 0 && !m.dead() && s.ageOf(f, m) >= s.least {
			bytes := s.bytesOf((*f.chunks.Load())[id/chunkSlabs].slots, m)
			freed += bytes
			s.left -= bytes
			f.kill(id, m)
			if m.parent == 0 {
				return
			}
			before, was := f.before(m), m
			id = before.Slab()
			m = f.meta(id)
			f.lose(m, was)
			if m.names() == 0 && m.behind() == 0 {
				f.giveUp(id, m)
				return
			}
		}
	})
	return freed, done || s.left <= 0
}

// eachSlab calls each for the next n slabs that are in use and not dead.
func (f *Forest) eachSlab(s *Survey, n int, each func(id uint32, c *chunk, m *slabMeta)) (done bool) {
	chunks := *f.chunks.Load()
	last := uint32(len(chunks)) * chunkSlabs
	for ; n > 0 && s.at < last; n-- {
		id := s.at
		c := &chunks[id/chunkSlabs]
		if c.meta == nil {
			s.at = (id/chunkSlabs + 1) * chunkSlabs
			continue
		}
		s.at++
		if m := &c.meta[id%chunkSlabs]; m.header != 0 && !m.dead() {
			each(id, c, m)
		}
	}
	return s.at >= last
}
