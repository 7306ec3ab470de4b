package forest

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Reader is somebody who reads: as long as it is inside, nothing that it can
// reach is used for something else.
type Reader struct{ inside *atomic.Int64 }

// Enter lets a reader in. It waits for nobody.
func (f *Forest) Enter() Reader { return Reader{f.epochs.Enter()} }

// Leave must be called once.
func (r Reader) Leave() { r.inside.Add(-1) }

// Path is the way of some keys, a prompt's, through the slabs. The content of a slab
// is read when it is requested, and once. A Path is for one Reader that is inside;
// its zero value is ready for Begin, and keeps its memory for the next one.
type Path struct {
	f     *Forest
	keys  []uint64
	spans []Span
	end   int    // keys that the spans cover
	slab  uint32 // of the last span
	done  bool   // the next key is not there
}

// Span is the part of a path that is in one slab, from its first slot on.
type Span struct {
	At, N  int // the number of its first key, and how many there are
	header header
}

// Begin begins a path. It is no method, because keys may be of any type of 64 bits. The keys must stay what they are until it is not used any
// more.
func Begin[K ~uint64](p *Path, f *Forest, keys []K) {
	*p = Path{f: f, keys: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(keys))), len(keys)), spans: p.spans[:0]}
}

// Touch marks the last slab of the requested spans as used now.
func (p *Path) Touch() {
	if p.slab != 0 {
		p.f.touch(p.f.meta(p.slab))
	}
}

// Release lets go of the forest and the keys.
func (p *Path) Release() { p.f, p.keys = nil, nil }

// Len returns the number of keys.
func (p *Path) Len() int { return len(p.keys) }

// End returns how many leading keys the requested spans cover.
func (p *Path) End() int { return p.end }

// Span returns span i, or false if the path ends before it: behind the last key,
// or where the next key is not in the forest. Spans are requested in order.
func (p *Path) Span(i int) (*Span, bool) {
	if i == len(p.spans) && !p.extend() {
		return nil, false
	}
	return &p.spans[i], true
}

// extend goes into the next slab. Slabs of a chain that was stored at once are
// neighbours, so the next one is tried before the head table is searched. That is
// no guess about the answer: a key is in one place only, so a slab that is held
// and begins with the key is the one.
func (p *Path) extend() bool {
	if p.done || p.end == len(p.keys) {
		return false
	}
	k := Key(p.keys[p.end])
	f := p.f
	chunks := *f.chunks.Load()
	id := p.slab + 1
	var h header
	if c := id / chunkSlabs; int(c) < len(chunks) && p.slab != 0 && chunks[c].meta != nil {
		h = chunks[c].meta[id%chunkSlabs].load()
	}
	if h.kind() == kindNone || h.kind() == kindDead || atomic.LoadUint64(&chunks[id/chunkSlabs].slab(id)[0]) != uint64(k) {
		for h = kindDead << 62; h.kind() == kindDead; h = f.meta(id).load() { // it was moved since
			if id = f.heads.find(f, k); id == 0 {
				p.done = true
				return false
			}
		}
	}
	p.slab = id
	s := Span{At: p.end, header: h}
	s.N = same(f.keys(id), p.keys[p.end:min(len(p.keys), p.end+h.written())])
	p.spans = append(p.spans, s)
	p.end += s.N
	p.done = s.N == 0
	return !p.done
}

// same returns how many leading keys are those of a slab.
func same(slab, keys []uint64) int {
	if len(keys) > len(slab) {
		return 0
	}
	for i, k := range keys {
		if atomic.LoadUint64(&slab[i]) != k {
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
func (p *Path) Record(s *Span) (r Record, ok bool) {
	if s.header.kind() != kindRecord {
		return Record{}, false
	}
	return Record{p.f.recs.at(s.header.record())}, true
}

// Record has the holders of a slab as a reader sees them: each is in a row or an entry,
// or, while it moves, in two. The result of a call was true at that moment.
type Record struct{ words record }

// Rows returns the number of rows, Row the slots of one of them and its holders: a
// bit each, from the ordinal 64*First on.
func (r Record) Rows() int     { return r.words.rows() }
func (r Record) First() uint32 { return uint32(r.words.first()) }
func (r Record) Row(i int) (mask uint32, holders Bits) {
	mask, bitmap := r.words.row(i)
	return mask, bitmap
}

// Entries returns the entries.
func (r Record) Entries() Entries { return r.words.entries() }

// Entries are holders with slots of their own.
type Entries []uint64

// At returns a holder and its slots; no slots: the entry is free.
func (e Entries) At(i int) (ord, mask uint32) {
	word := atomic.LoadUint64(&e[i])
	return uint32(word >> 32), uint32(word)
}

// Bits are a bitmap of which writers change words.
type Bits []uint64

// Word returns word i of b.
func (b Bits) Word(i uint32) uint64 { return atomic.LoadUint64(&b[i]) }

// HoldersIn calls f for each holder of a span's slab that is in set, a bitmap of
// ordinals.
func (p *Path) HoldersIn(s *Span, set []uint64, f func(ord, mask uint32)) {
	has := func(ord uint32) bool { return int(ord>>6) < len(set) && set[ord>>6]>>(ord&63)&1 != 0 }
	if ord, mask, ok := s.Holder(); ok && has(ord) {
		f(ord, mask)
	}
	r, ok := p.Record(s)
	if !ok {
		return
	}
	for i := range r.Rows() {
		mask, holders := r.Row(i)
		first := r.First()
		for j := range uint32(len(holders)) {
			word := first + j
			if int(word) >= len(set) {
				break
			}
			if set[word] == 0 {
				continue
			}
			for here := holders.Word(j) & set[word]; here != 0; here &= here - 1 {
				f(word<<6|uint32(bits.TrailingZeros64(here)), mask)
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
