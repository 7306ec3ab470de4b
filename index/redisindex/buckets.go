package redisindex

import (
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/internal/mirroring"
)

// The state that this process writes to Redis: its holders and their keys, in buckets. It
// follows the Memory as its Mirror. So the section of a bucket can be written at any moment,
// as often as need be, and the writer never reads Redis to write it.

// A bucket is one of this process.
type bucket struct {
	level int
	name  index.Key
	lines []line // none, if it is split
	split bool
	up    *bucket // this one is a part of it
	parts int     // buckets that are parts of it
	// fresh: up was split into this and others, and Redis does not have it yet. unwritten counts
	// fresh parts: until it is 0, up does not appear as split.
	fresh     bool
	unwritten int
	at        int  // in buckets.all; -1: it was dropped
	dirty     bool // it is in buckets.dirty
	// known: Redis may have a value of the bucket. written is the time of the last write.
	known   bool
	written int64 // unix seconds
}

// A holder is one of the Memory.
type holder struct {
	memoryHolder
	number  uint32 // it is never used again
	source  *source
	evicted bool
}

// buckets are all buckets of this process. redisIndex.mu guards it.
type buckets struct {
	byKey   [levels]map[index.Key]*bucket
	all     []*bucket
	holders []*holder          // by ID; nil: not published
	numbers map[uint32]*holder // of holders
	last    uint32             // number that was given

	// change counts changes. dirty are the buckets with unwritten changes, each with the
	// change that made it dirty, in the order in which they are written.
	change uint64
	dirty  []change
	body   []byte       // memory of encode
	who    []lineHolder // memory of encode
}

// change is a bucket that is to be written.
type change struct {
	*bucket
	number uint64
}

func (s *buckets) init() {
	for i := range s.byKey {
		s.byKey[i] = make(map[index.Key]*bucket)
	}
	s.numbers = make(map[uint32]*holder)
}

// meet records the present holders of a source, and forgets the others.
func (s *buckets) meet(src *source, now []memoryHolder) {
	was := src.holders
	src.holders = make([]*holder, 0, len(now))
	for _, h := range now {
		i := slices.IndexFunc(was, func(o *holder) bool { return o != nil && o.ID == h.ID })
		if i >= 0 {
			was[i].memoryHolder = h
			src.holders = append(src.holders, was[i])
			was[i] = nil
			continue
		}
		s.last++
		of := &holder{memoryHolder: h, number: s.last, source: src}
		src.holders = append(src.holders, of)
		s.numbers[of.number] = of
		for int(h.ID) >= len(s.holders) {
			s.holders = append(s.holders, nil)
		}
		s.holders[h.ID] = of
	}
	for _, h := range was {
		if h != nil {
			s.forget(h)
		}
	}
}

// forget removes a holder. Its keys stay in the lines until they are written.
func (s *buckets) forget(h *holder) {
	delete(s.numbers, h.number)
	if s.holders[h.ID] == h {
		s.holders[h.ID] = nil
	}
}

// A holding is the change of a holder's keys in a run, by bits of the run.
type holding struct {
	number       uint32 // of the holder
	run          mirroring.Run
	changed, now uint32
}

// hold records that a holder has the keys of run with a bit in now. Before it had those with
// a bit in was.
func (s *buckets) hold(h *holder, run mirroring.Run, was, now uint32) {
	s.put(nil, 0, holding{h.number, run, was ^ now, now}, run.Depth(), run.Depth()+run.Len())
}

// put records the part of h from one depth to another, in the buckets of a level below up.
func (s *buckets) put(up *bucket, level int, h holding, from, to int) {
	span, depth := spans[level], h.run.Depth()
	for start := from - from%span; start < to; start += span {
		a, z := max(from, start), min(to, start+span)
		here := uint32((uint64(1)<<(z-a) - 1) << (a - depth))
		if h.changed&here == 0 {
			continue
		}
		name := index.Key(h.run.Key(start))
		b := s.byKey[level][name]
		if b == nil {
			if h.now&here == 0 {
				continue
			}
			if b = s.add(up, level, name); up != nil && up.parts == 1 {
				s.markBucket(up) // it may have been written as empty
			}
		}
		if b.split {
			s.put(b, level+1, h, a, z)
			continue
		}
		b.put(h.number, h.run, a, z, (h.now&here)>>(a-depth)<<(a-start))
		if len(b.lines) > maxLines && level < levels-1 {
			s.split(b)
		}
		s.markBucket(b)
	}
}

func (s *buckets) add(up *bucket, level int, name index.Key) *bucket {
	b := &bucket{level: level, name: name, up: up, at: len(s.all)}
	s.all = append(s.all, b)
	s.byKey[level][name] = b
	if up != nil {
		up.parts++
	}
	return b
}

// dropEmpty forgets a bucket that is empty, here and in Redis.
func (s *buckets) dropEmpty(b *bucket) {
	if b.at < 0 || len(b.lines) > 0 || b.parts > 0 || b.known || b.dirty {
		return
	}
	s.appear(b)
	last := s.all[len(s.all)-1]
	s.all[b.at], last.at = last, b.at
	s.all[len(s.all)-1] = nil
	s.all = s.all[:len(s.all)-1]
	b.at = -1
	delete(s.byKey[b.level], b.name)
	if b.up != nil {
		if b.up.parts--; b.up.parts == 0 {
			s.markBucket(b.up)
		}
	}
}

// appear records that Redis has a bucket, so that the bucket which it is a part of may appear as
// split.
func (s *buckets) appear(b *bucket) {
	if b.fresh {
		b.fresh = false
		b.up.unwritten--
	}
}

// markBucket marks a bucket as dirty.
func (s *buckets) markBucket(b *bucket) {
	s.change++
	if !b.dirty {
		b.dirty = true
		s.dirty = append(s.dirty, change{b, s.change})
	}
}

// put sets the slots of mask for a holder, and clears its others, of the keys of run from
// one depth to another.
func (b *bucket) put(number uint32, run mirroring.Run, from, to int, mask uint32) {
	slot := from % spans[b.level]
	first := index.Key(run.Key(from))
	i := slices.IndexFunc(b.lines, func(l line) bool { return l.slot == slot && l.keys[0] == first })
	if i < 0 {
		if mask == 0 {
			return
		}
		i = len(b.lines)
		b.lines = append(b.lines, line{slot: slot, keys: make([]index.Key, 0, to-from)})
		if b.level == 0 {
			b.lines[i].anchor = index.Key(run.Key(from - from%spans[1]))
		}
	}
	l := &b.lines[i]
	// The end may be of another run, which began alike and which no holder has.
	for n := min(len(l.keys), to-from); n > 0 && l.keys[n-1] != index.Key(run.Key(from+n-1)); n-- {
		l.keys = l.keys[:n-1]
	}
	for d := from + len(l.keys); d < to; d++ {
		l.keys = append(l.keys, index.Key(run.Key(d)))
	}
	if l.set(number, mask); len(l.held) == 0 {
		b.dropLine(i)
	}
}

func (b *bucket) dropLine(i int) {
	last := len(b.lines) - 1
	b.lines[i] = b.lines[last]
	b.lines[last] = line{}
	b.lines = b.lines[:last]
}

// set sets the mask of a holder; 0 removes it.
func (l *line) set(number, mask uint32) {
	i, found := slices.BinarySearchFunc(l.held, number, func(h lineHolder, n uint32) int {
		return int(int64(h.number) - int64(n))
	})
	switch {
	case found && mask == 0:
		l.held = slices.Delete(l.held, i, i+1)
	case found:
		l.held[i].mask = mask
	case mask != 0:
		l.held = slices.Insert(l.held, i, lineHolder{number, mask})
	}
}

// encode returns the body of a bucket's section, in memory that is used again; it is empty for
// an empty bucket. It drops the keys of removed holders. If the body would be too long, it is
// that of a split bucket, and the parts are dirty.
func (s *buckets) encode(b *bucket) []byte {
	s.body = s.body[:0]
	if b.split {
		if b.parts > 0 {
			s.body = append(s.body, bodySplit)
		}
		return s.body
	}
	s.body = append(s.body, bodyLines)
	full := 0
	for i := 0; i < len(b.lines); {
		l := &b.lines[i]
		kept := l.held[:0]
		s.who = s.who[:0]
		for _, h := range l.held {
			of := s.numbers[h.number]
			if of == nil {
				continue
			}
			kept = append(kept, h)
			if of.source.written {
				s.who = append(s.who, h)
			}
		}
		if l.held = kept; len(kept) == 0 {
			b.dropLine(i)
			continue
		}
		was := len(s.body)
		if s.body = appendLine(s.body, l, s.who); len(s.body) > was {
			full++
		}
		i++
	}
	switch {
	case full == 0:
		return s.body[:0]
	case len(s.body) > maxSection && full > 1 && b.level < levels-1:
		s.split(b)
		s.body = append(s.body[:0], bodySplit)
	}
	return s.body
}

// split moves the lines of a bucket to parts of it.
func (s *buckets) split(b *bucket) {
	level, span := b.level+1, spans[b.level+1]
	b.split = true
	for _, l := range b.lines {
		for slot := l.slot; slot < l.slot+len(l.keys); slot += span - slot%span {
			n := min(span-slot%span, l.slot+len(l.keys)-slot)
			at := slot - l.slot
			var who []lineHolder
			mine := uint32((uint64(1)<<n - 1) << slot)
			for _, h := range l.held {
				if mask := h.mask & mine; mask != 0 {
					who = append(who, lineHolder{h.number, mask >> (slot - slot%span)})
				}
			}
			if len(who) == 0 {
				continue
			}
			name := l.keys[at]
			if slot%span != 0 { // only where the line begins
				name = l.anchor
			}
			part := s.byKey[level][name]
			if part == nil {
				part = s.add(b, level, name)
				part.fresh = true
				b.unwritten++
			}
			part.lines = append(part.lines, line{slot: slot % span, keys: slices.Clone(l.keys[at : at+n]), held: who})
			s.markBucket(part)
		}
	}
	b.lines = nil
}

// holds reports whether a holder of some sources has keys in a bucket.
func (s *buckets) holds(b *bucket, by map[*source]bool) bool {
	return s.anyHolder(b, func(h *holder) bool { return h != nil && by[h.source] })
}

// hasGone reports whether a bucket has keys of removed holders.
func (s *buckets) hasGone(b *bucket) bool {
	return s.anyHolder(b, func(h *holder) bool { return h == nil })
}

func (s *buckets) anyHolder(b *bucket, is func(*holder) bool) bool {
	for i := range b.lines {
		for _, h := range b.lines[i].held {
			if is(s.numbers[h.number]) {
				return true
			}
		}
	}
	return false
}
