package forest

import (
	"math/bits"
	"sync/atomic"
)

// Reader is somebody who reads: as long as it is inside, nothing that it can
// reach is used for something else.
type Reader struct{ inside *atomic.Int64 }

// Enter lets a reader in. It waits for nobody.
func (f *Forest) Enter() Reader { return Reader{f.enter()} }

// Leave must be called once.
func (r Reader) Leave() { r.inside.Add(-1) }

// Path is the way of some keys, a prompt's, through the slabs. What the slabs say
// is read as it is asked for, and once. A Path is for one Reader that is inside;
// its zero value is ready for Begin, and keeps its memory for the next one.
type Path[K ~uint64] struct {
	f     *Forest
	keys  []K
	spans []Span
	end   int    // keys that the spans cover
	slab  uint32 // of the last span
	done  bool
}

// Span is the part of a path that is in one slab, from its first slot on.
type Span struct {
	At, N  int // the number of its first key, and how many there are
	header header
}

// Begin begins a path. The keys must stay what they are until it is not used any
// more.
func (p *Path[K]) Begin(f *Forest, keys []K) {
	*p = Path[K]{f: f, keys: keys, spans: p.spans[:0]}
}

// Release lets go of the forest and the keys.
func (p *Path[K]) Release() { p.f, p.keys = nil, nil }

// Len returns the number of keys.
func (p *Path[K]) Len() int { return len(p.keys) }

// End returns how many leading keys the spans cover that were asked for.
func (p *Path[K]) End() int { return p.end }

// Span returns span i, or false if the path ends before it: behind the last key,
// or where the next key is not in the forest.
func (p *Path[K]) Span(i int) (*Span, bool) {
	for i >= len(p.spans) {
		if p.done || !p.extend() {
			p.done = true
			return nil, false
		}
	}
	return &p.spans[i], true
}

// Spans returns all spans, also those behind keys that are not in the forest.
// Span and End must not be called after it.
func (p *Path[K]) Spans() []Span {
	for !p.done {
		if !p.extend() {
			p.end++
			p.done = p.end >= len(p.keys)
		}
	}
	return p.spans
}

// extend goes into the next slab. Slabs of a chain that was stored at once are
// neighbours, so the next one is tried before the head table is asked. That is
// no guess about the answer: a key is in one place only, so a slab that is held
// and begins with the key is the one.
func (p *Path[K]) extend() bool {
	if p.end == len(p.keys) {
		return false
	}
	k := Key(p.keys[p.end])
	f := p.f
	chunks := *f.chunks.Load()
	id := p.slab + 1
	var h header
	if c := id / chunkSlabs; int(c) < len(chunks) && p.slab != 0 {
		h = chunks[c].meta[id%chunkSlabs].load()
	}
	if h.kind() == kindNone || atomic.LoadUint64(&chunks[id/chunkSlabs].slab(id)[0]) != uint64(k) {
		if id = f.heads.find(f, k); id == 0 {
			return false
		}
		h = f.meta(id).load()
	}
	p.slab = id
	s := Span{At: p.end, header: h}
	s.N = same(f.keys(id), p.keys[p.end:min(len(p.keys), p.end+h.written())])
	p.spans = append(p.spans, s)
	p.end += s.N
	return s.N > 0
}

// same returns how many leading keys are those of a slab.
func same[K ~uint64](slab []uint64, keys []K) int {
	if len(keys) > len(slab) {
		return 0
	}
	for i, k := range keys {
		if atomic.LoadUint64(&slab[i]) != uint64(k) {
			return i
		}
	}
	return len(keys)
}

// Ends returns the slots of s at which every n-th key of the path ends.
func (s *Span) Ends(n int) uint32 {
	all := uint32(1)<<s.N - 1 // N may be 32
	if n == 1 {
		return all
	}
	var set uint32
	for slot := n - 1 - s.At%n; slot < s.N; slot += n {
		set |= 1 << slot
	}
	return set
}

// Holder returns the holder of the span's slab and its slots, if there is just
// one.
func (s *Span) Holder() (ord, mask uint32, ok bool) {
	return s.header.ord(), s.header.mask(), s.header.kind() == kindOne
}

// Record returns who holds the slots of a span, if its slab has several holders.
func (p *Path[K]) Record(s *Span) (r Record, ok bool) {
	if s.header.kind() != kindRecord {
		return Record{}, false
	}
	return Record{p.f.recs.at(s.header.record())}, true
}

// Record is what a reader sees of a slab's holders: each is in a row or an entry,
// or, while it moves, in two. What one call claims was true at that moment.
type Record struct{ words record }

// Rows returns the number of rows, Row one of them.
func (r Record) Rows() int { return r.words.rows() }
func (r Record) Row(i int) Row {
	mask, bitmap := r.words.row(i)
	return Row{mask, uint32(r.words.first()), bitmap}
}

// Entries returns the entries.
func (r Record) Entries() Entries { return r.words.entries() }

// Entries are holders with slots of their own.
type Entries []uint64

// At returns a holder and its slots; 0: the entry is free.
func (e Entries) At(i int) (ord, mask uint32) {
	word := atomic.LoadUint64(&e[i])
	return uint32(word >> 32), uint32(word)
}

// Row is the holders of the same slots.
type Row struct {
	Mask   uint32
	first  uint32
	bitmap []uint64
}

// Word returns the holders with the ordinals from 64*n on, a bit each.
func (r *Row) Word(n uint32) uint64 {
	if n -= r.first; n < uint32(len(r.bitmap)) {
		return atomic.LoadUint64(&r.bitmap[n])
	}
	return 0
}

// HoldersIn calls f for each holder of a span's slab that is in set, a bitmap of
// ordinals.
func (p *Path[K]) HoldersIn(s *Span, set []uint64, f func(ord, mask uint32)) {
	has := func(ord uint32) bool { return int(ord>>6) < len(set) && set[ord>>6]>>(ord&63)&1 != 0 }
	if ord, mask, ok := s.Holder(); ok && has(ord) {
		f(ord, mask)
	}
	r, ok := p.Record(s)
	if !ok {
		return
	}
	for i := range r.Rows() {
		row := r.Row(i)
		first := int(row.first)
		for word := first; word < min(first+len(row.bitmap), len(set)); word++ {
			if set[word] == 0 {
				continue
			}
			for here := row.Word(uint32(word)) & set[word]; here != 0; here &= here - 1 {
				f(uint32(word)<<6|uint32(bits.TrailingZeros64(here)), row.Mask)
			}
		}
	}
	entries := r.Entries()
	for i := range entries {
		if ord, mask := entries.At(i); mask != 0 && has(ord) {
			f(ord, mask)
		}
	}
}

// Mask returns the slots of a span's slab that ord holds.
func (p *Path[K]) Mask(s *Span, ord uint32) uint32 {
	if one, mask, ok := s.Holder(); ok && one == ord {
		return mask
	}
	r, ok := p.Record(s)
	if !ok {
		return 0
	}
	word, bit, ok := r.words.bit(ord)
	for i := range r.Rows() {
		if row := r.Row(i); ok && atomic.LoadUint64(&row.bitmap[word])&bit != 0 {
			return row.Mask
		}
	}
	entries := r.Entries()
	for i := range entries {
		if o, mask := entries.At(i); o == ord && mask != 0 {
			return mask
		}
	}
	return 0
}
