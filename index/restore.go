package index

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// A snapshot is read record by record, in the order in which it was written, and each
// record is checked before it is used: nothing in it is trusted more than what a pod
// says. What is restored is made by the same steps as by an Apply, so counts are never
// read, but counted.
//
//   - Slabs are placed key by key (Forest.Place). So two records of one key are one
//     place, as after a slab was given up while the snapshot was written, and no parents
//     can form a circle. What Place does not see is a key that is in the middle of
//     another slab: at the end all keys are compared.
//   - A slab is pinned until the end, because the names that need it may come later.
//   - If memory runs short, the pins are taken off, and the coldest slabs are evicted as
//     by any writer, with the names that are there. Names of such slabs that come later
//     are counted as evicted.
//   - The queue of idle names is sorted when a source is done. Stores that wait are kept
//     until then, because they refer to names.
//
// One thing cannot be checked: that a key follows from the one before it, because the tokens
// are not kept. Somebody who forges a snapshot with keys that he knows makes chains miss, and
// no more. The number of names of a source is a promise: room is made for as many names as the
// bytes that were read pay for.

// errRecord is wrapped by the errors about a snapshot that says what cannot be.
var errRecord = errors.New("index: wrong snapshot")

// restorer reads a snapshot.
type restorer struct {
	m *memory
	g *ground
	f *forest.Forest

	section int
	all     []byte // the section
	b       []byte // what is left of it
	record  []byte // from the record on that is read
	short   bool   // a record was cut off
	credit  int    // bytes that names may take before they are read

	began, ended bool
	clock        uint32
	sources      uint64
	variants     []Variant
	numbers      []uint32 // of the variants here

	slabs []restoredSlab
	apart map[uint32][]loc // of the slabs of which the keys do not follow each other
	taken int              // bytes of slabs
	tries int              // to make room, since it was of no use
	tight int              // how many do nothing then
	keys  [maxSlabKeys]forest.Key
	locs  [maxSlabKeys]loc
	row   []loc

	// Of the source that is read; nil: none is.
	s        *source
	plain    []plainRecord
	named    []Hash // by them
	placed   []loc  // at which they are
	lanes    [maxLanes]*lane
	sets     [][]*lane
	order    []uint32 // of idle names, by their number in source.idle
	stores   []restoredStore
	waits    []uint32 // of stores, in the order in which they wait
	names    uint64
	expected uint64 // names, as the snapshot says
}

// maxSlabKeys is how many keys a slab has at most.
const maxSlabKeys = 32

// restoredSlab is a slab of the snapshot: the place of its first key, from which the
// others follow. The place 0 is nowhere: it was evicted.
type restoredSlab struct {
	first   loc
	n       uint8
	variant uint8
	apart   bool
}

const (
	restoredSlabBytes = 8
	// somePlain is how many plain names are looked up together.
	somePlain = 256
	// creditEach is how many bytes room for names may take for each byte that was read.
	creditEach = 2
)

// Restore fills an empty index from the sections that Snapshot wrote. read returns io.EOF
// behind the last one. m must be new, and without a Mirror. It is closed if what is read is wrong.
func (m *memory) Restore(ctx context.Context, read func() ([]byte, error)) error {
	m.mu.Lock()
	g, models := m.ground, len(*m.models.Load())
	m.mu.Unlock()
	switch {
	case g == nil:
		return ErrClosed
	case g.mirror != nil:
		return errors.New("index: Restore into an index with a Mirror")
	case models > 0:
		return errors.New("index: Restore into an index that is not empty")
	}
	r := &restorer{m: m, g: g, f: g.forest, slabs: make([]restoredSlab, 1), apart: make(map[uint32][]loc)}
	g.mu.Lock()
	g.forest.Still = true // places are kept by number
	g.mu.Unlock()
	err := r.run(ctx, read)
	if err != nil {
		m.Close()
		return err
	}
	m.checked()
	return nil
}

func (r *restorer) run(ctx context.Context, read func() ([]byte, error)) error {
	for ; ; r.section++ {
		if r.m.closed.Load() {
			return ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		section, err := read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		r.all, r.b = section, section
		r.credit += creditEach * len(section)
		if err := r.records(); err != nil {
			return fmt.Errorf("%w: section %d, at %d of %d: %w", errRecord, r.section, len(r.all)-len(r.b), len(r.all), err)
		}
	}
	if !r.ended {
		return fmt.Errorf("%w: it has no end", errRecord)
	}
	return r.finish()
}

// finish takes the pins off.
func (r *restorer) finish() error {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if k, ok := r.f.Doubled(r.m.salt[0]); ok {
		return fmt.Errorf("%w: key %x is in two places", errRecord, k)
	}
	r.pin(false)
	r.f.Still = false
	r.g.addTables(-r.taken)
	r.f.Reclaim()
	return nil
}

// records reads a section.
func (r *restorer) records() error {
	if len(r.b) > sectionLimit {
		return fmt.Errorf("%d bytes, at most %d", len(r.b), sectionLimit)
	}
	for len(r.b) > 0 {
		if r.ended {
			return errors.New("a record behind the end")
		}
		switch tag := r.b[0]; {
		case tag == tagBegin && !r.began:
			if err := r.begin(); err != nil {
				return err
			}
		case !r.began:
			return errors.New("it does not begin as one")
		case tag == tagSource && r.s == nil:
			if err := r.source(); err != nil {
				return err
			}
		case tag == tagEnd && r.s == nil:
			if err := r.end(); err != nil {
				return err
			}
		case r.s != nil:
			if err := r.ofSource(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a record of kind %d, which is of a source", tag)
		}
	}
	return nil
}

// ofSource reads records of a source, until one is of none.
func (r *restorer) ofSource() (err error) {
	s := r.s
	s.locked(func() {
		r.reserve()
		for n := 0; err == nil && r.s != nil && len(r.b) > 0; n++ {
			if n%yieldAfter == 0 {
				s.tenant.report()
				s.f.Reclaim()
			}
			r.record = r.b
			if tag := r.b[0]; tag >= tagPlain {
				err = r.plainNames()
			} else {
				r.byte()
				err = r.other(tag)
			}
			if err == nil && r.short {
				err = fmt.Errorf("a record of kind %d is cut off", r.record[0])
			}
			if err != nil {
				r.b = r.record
			}
		}
		s.tenant.report()
	})
	return err
}

// reserve makes room for the names that are expected, as far as bytes that were read pay
// for it. Where memory may not do for all, it is left to those that come.
func (r *restorer) reserve() {
	names := &r.s.names
	more := r.expected - uint64(names.Len())
	if r.credit < nameCost || r.expected <= uint64(names.Len()) || more > uint64(max(r.g.pages(), 0))/(4*nameCost) {
		return
	}
	before := names.Bytes()
	names.Reserve(names.Len() + int(min(more, uint64(r.credit/nameCost))))
	r.credit -= names.Bytes() - before
}

func (r *restorer) other(tag byte) error {
	switch tag {
	case forest.DumpSlab:
		return r.slab()
	case forest.DumpSlots:
		return r.slots()
	case tagSet:
		return r.set()
	case tagIdleName:
		return r.idleName()
	case tagRichName:
		return r.richName()
	case tagStore:
		return r.store()
	case tagHashes:
		return r.hashes()
	case tagLocals:
		return r.locals()
	case tagWaits:
		for n := r.uvarint(); n > 0 && !r.short; n-- {
			r.waits = append(r.waits, uint32(r.uvarint()))
		}
		return nil
	case tagDone:
		return r.done()
	}
	return fmt.Errorf("a record of kind %d", tag)
}

// Words of records. Where one is cut off, short is set, and zeros are returned.

func (r *restorer) take(n int) []byte {
	if n > len(r.b) {
		r.short, r.b = true, nil
		return make([]byte, 8)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *restorer) byte() byte     { return r.take(1)[0] }
func (r *restorer) bool() bool     { return r.byte() != 0 }
func (r *restorer) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *restorer) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *restorer) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.short, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// int reads a number that has a sign. One that is none here is cut off.
func (r *restorer) int() int {
	v, n := binary.Varint(r.b)
	if n <= 0 || int64(int(v)) != v {
		r.short, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *restorer) text() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.short, r.b = true, nil
		return ""
	}
	return string(r.take(int(n)))
}

func (r *restorer) variant() Variant {
	v := Variant{Unit: r.int(), Media: r.byte()}
	v.Block, v.Pairs = r.int(), r.bool()
	return v
}

// mediaForms is how many values Variant.Media has.
const mediaForms = 3

// cut reads how blocks are cut. It returns false if none can be.
func (r *restorer) cut() (c cut, ok bool) {
	c = cut{r.variant(), r.int()}
	v := c.variant
	return c, c == (cut{}) || v.Unit > 0 && v.Media < mediaForms && c.size > 0 && c.size%v.Unit == 0
}

// isLater reports whether a time is after the clock of the source.
func (r *restorer) isLater(t uint32) bool { return int32(t-r.clock) > 0 }

func (r *restorer) begin() error {
	r.byte()
	if v := r.byte(); v != snapshotVersion {
		return fmt.Errorf("an index of version %d, this one reads %d", v, snapshotVersion)
	}
	if seed := r.take(16); r.short || [16]byte(seed) != r.m.cfg.Seed {
		return errors.New("it is of another seed")
	}
	r.began = true
	return nil
}

func (r *restorer) end() error {
	r.byte()
	n, clock := r.uvarint(), r.uint32()
	switch {
	case r.short:
		return errors.New("the end is cut off")
	case n != r.sources:
		return fmt.Errorf("%d sources, said to be %d", r.sources, n)
	}
	r.f.SetNow(clock)
	r.ended = true
	return nil
}

// source reads the beginning of a source.
func (r *restorer) source() error {
	r.byte()
	id := Source{Pod: r.text(), Model: r.text(), Rank: r.int()}
	if r.short {
		return errors.New("a source is cut off")
	}
	if md := (*r.m.models.Load())[id.Model]; md != nil && md.source(id) != nil {
		return fmt.Errorf("pod %q, model %q, rank %d is there twice", id.Pod, id.Model, id.Rank)
	}
	s, err := r.m.source(id)
	if err != nil {
		return err
	}
	s.locked(func() { err = r.head(s) })
	if err != nil {
		return fmt.Errorf("pod %q, model %q, rank %d: %w", id.Pod, id.Model, id.Rank, err)
	}
	r.s = s
	r.sets, r.order, r.names = nil, nil, 0
	r.stores, r.waits = nil, nil
	return nil
}

// head reads what is known of a source beside its names.
func (r *restorer) head(s *source) error {
	r.clock, s.cleared = r.uint32(), r.uint32()
	r.expected = r.uvarint()
	s.evicted, s.doubts = r.uvarint(), r.bool()
	r.f.SetNow(r.clock)
	words := s.counts.words()
	for i := range words {
		words[i] = r.uvarint()
	}
	if err := r.cursors(s); err != nil {
		return err
	}
	if err := r.readVariants(); err != nil {
		return err
	}
	for n := r.byte(); n > 0 && !r.short; n-- {
		if err := r.group(s); err != nil {
			return err
		}
	}
	if err := r.readLanes(s); err != nil {
		return err
	}
	if r.short {
		return errors.New("it is cut off")
	}
	if len(s.lanes.groups) > 0 {
		s.publish()
	}
	s.tenant.report()
	return nil
}

func (r *restorer) cursors(s *source) error {
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		c := Cursor{Stream: r.text(), Epoch: r.uvarint(), Next: r.uvarint()}
		c.Time, c.Digest = math.Float64frombits(r.uint64()), r.uint64()
		i, ok := s.cursors.find(c.Stream)
		switch {
		case r.short:
			return nil
		case ok || i < len(s.cursors.all):
			return fmt.Errorf("the cursor of stream %q is not behind the others", c.Stream)
		case !r.relieve(nil, func() bool { return r.g.pages()+r.g.admits > int64(s.cursors.growth(c.Stream)) }):
			return r.g.errFull(s.id, fmt.Sprintf(", stream %q", c.Stream))
		}
		s.cursors.insert(i, c.Stream)
		c.Stream = s.cursors.all[i].Stream
		s.cursors.all[i] = c
	}
	return nil
}

// readVariants reads the variants that are known by now.
func (r *restorer) readVariants() error {
	n := int(r.byte())
	if n < len(r.variants) || n > forest.MaxVariants {
		return fmt.Errorf("%d variants behind %d", n, len(r.variants))
	}
	for i := range n {
		v := r.variant()
		switch {
		case r.short:
			return nil
		case i < len(r.variants) && v != r.variants[i]:
			return fmt.Errorf("variant %d is %v and %v", i, v, r.variants[i])
		case i < len(r.variants):
			continue
		case slices.Contains(r.variants, v):
			return fmt.Errorf("variant %v is there twice", v)
		}
		number, ok := r.g.variant(v)
		if !ok {
			return fmt.Errorf("more than %d variants", forest.MaxVariants)
		}
		r.variants, r.numbers = append(r.variants, v), append(r.numbers, number)
	}
	return nil
}

func (r *restorer) group(s *source) error {
	of := Group{ID: int(r.byte()), Kind: GroupKind(r.byte()), Window: r.int(), Draft: r.bool()}
	told, uncounted := r.bool(), r.bool()
	by, ok := r.cut()
	grain := r.int()
	switch {
	case r.short:
		return nil
	case of.ID >= MaxGroups || len(s.lanes.groups) > 0 && of.ID <= s.lanes.groups[len(s.lanes.groups)-1].ID || of.Kind > GroupOther:
		return fmt.Errorf("group %+v", of)
	case !ok || grain < 0 || grain > by.size:
		return fmt.Errorf("group %d has blocks of %+v, and of %d tokens", of.ID, by, grain)
	}
	g := s.lanes.newGroup(of)
	g.told, g.uncounted, g.cut, g.grain = told, uncounted, by, grain
	return nil
}

func (r *restorer) readLanes(s *source) error {
	r.lanes = [maxLanes]*lane{}
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		number, group, t := r.byte(), int(r.byte()), Tier(r.byte())
		by, ok := r.cut()
		lost := r.bool()
		switch {
		case r.short:
			return nil
		case group >= len(s.lanes.groups) || t >= NumTiers || !ok || r.lanes[number] != nil || !s.lanes.fits(by):
			return fmt.Errorf("lane %d of group %d, tier %v, blocks of %+v", number, group, t, by)
		}
		ln := s.lanes.add(s.lanes.groups[group], t, by)
		if ln == nil {
			return errors.New("there are too many lanes")
		}
		r.lanes[number] = ln
		if lost {
			r.f.Lose(ln.ord)
		}
	}
	return nil
}

// slab reads the first record of a slab.
func (r *restorer) slab() error {
	before, variant, used := r.uvarint(), int(r.byte()), r.uint32()
	prev, ok := r.placeOf(before)
	switch {
	case r.short:
		return nil
	case before != 0 && !ok:
		return fmt.Errorf("slab %d is behind %d, which is not there", len(r.slabs), before)
	case variant >= len(r.variants) || r.variants[variant].Unit <= 0:
		return fmt.Errorf("slab %d is of variant %d", len(r.slabs), variant)
	case prev != 0 && r.f.Variant(prev) != r.numbers[variant]:
		return fmt.Errorf("slab %d is of variant %d, and what is before it is not", len(r.slabs), variant)
	}
	if r.isLater(used) {
		used = r.clock
	}
	if len(r.slabs) == cap(r.slabs) {
		r.taken += restoredSlabBytes * len(r.slabs)
		r.g.addTables(restoredSlabBytes * len(r.slabs))
	}
	r.slabs = append(r.slabs, restoredSlab{variant: uint8(r.numbers[variant])})
	return r.place(len(r.slabs)-1, prev, before == 0 || prev != 0, r.numbers[variant], used)
}

// slots reads which slots were written later.
func (r *restorer) slots() error {
	number := r.uvarint()
	if r.short || number == 0 || number >= uint64(len(r.slabs)) {
		return fmt.Errorf("slots of slab %d of %d", number, len(r.slabs)-1)
	}
	last := r.locOf(int(number), int(r.slabs[number].n)-1)
	variant := uint32(0)
	if last != 0 {
		variant = r.f.Variant(last)
	}
	return r.place(int(number), last, last != 0, variant, r.clock)
}

// place reads keys of a slab that follow prev. there: what they follow is here. It makes
// room until there are slabs: bytes that no slab can have are of no use.
func (r *restorer) place(number int, prev loc, there bool, variant, used uint32) error {
	n, of := int(r.byte()), &r.slabs[number]
	if r.short || n == 0 || n+int(of.n) > maxSlabKeys {
		return fmt.Errorf("slab %d has %d keys and %d more", number, of.n, n)
	}
	b := r.take(8 * n)
	if r.short {
		return nil
	}
	keys, locs := r.keys[:n], r.locs[:n]
	for i := range keys {
		keys[i] = forest.Key(binary.LittleEndian.Uint64(b[8*i:]))
	}
	clear(locs)
	for try := range 4 {
		if !there {
			break
		}
		r.f.SetNow(used)
		r.f.AnySize = try > 0
		done := r.f.Place(prev, variant, keys, locs)
		r.f.SetNow(r.clock)
		r.f.AnySize = false
		if done {
			break
		}
		clear(locs)
		if !r.relieve([]loc{prev}, func() bool { return int64(r.f.FreeSlabs()) >= r.g.part/2 || r.f.Grows() }) {
			break
		}
	}
	r.add(number, locs)
	return nil
}

// add notes the places of more keys of a slab, and pins them.
func (r *restorer) add(number int, more []loc) {
	was := r.locsOf(number)
	all := append(slices.Clone(was), more...)
	pinLocs(r.f, all, true)
	pinLocs(r.f, was, false)
	of := &r.slabs[number]
	of.first, of.n, of.apart = all[0], uint8(len(all)), false
	for i, l := range all {
		of.apart = of.apart || l == 0 || l != all[0]+loc(i)
	}
	if of.apart {
		r.apart[uint32(number)] = all
	}
}

// locsOf returns the places of a slab's keys.
func (r *restorer) locsOf(number int) []loc {
	of := &r.slabs[number]
	if of.apart {
		return r.apart[uint32(number)]
	}
	r.row = r.row[:0]
	for i := range loc(of.n) {
		r.row = append(r.row, of.first+i)
	}
	return r.row
}

// locOf returns the place of a slot of a slab; 0: it was evicted.
func (r *restorer) locOf(number, slot int) loc {
	of := &r.slabs[number]
	if of.apart {
		return r.apart[uint32(number)][slot]
	}
	return of.first + loc(slot)
}

// placeOf returns the place of a slot of a slab, as records have it, or false if there is
// none.
func (r *restorer) placeOf(v uint64) (l loc, ok bool) {
	number, slot := v>>5, int(v&31)
	if number == 0 || number >= uint64(len(r.slabs)) || slot >= int(r.slabs[number].n) {
		return 0, false
	}
	return r.locOf(int(number), slot), true
}

// pinLocs pins each slab in which some places are, once in a row, or takes that back.
func pinLocs(f *forest.Forest, locs []loc, pin bool) {
	for i, l := range locs {
		switch {
		case l == 0 || i > 0 && locs[i-1] != 0 && locs[i-1].Slab() == l.Slab():
		case pin:
			f.Pin(l)
		default:
			f.Unpin(l)
		}
	}
}

// relieve makes room until ok, which places nothing, and finds out what was evicted. It
// keeps some places.
func (r *restorer) relieve(keep []loc, ok func() bool) bool {
	if ok() {
		return true
	}
	if r.tries < r.tight { // it was of no use a while ago
		r.tries++
		return false
	}
	pinLocs(r.f, keep, true)
	r.pin(false)
	if r.order != nil {
		r.sortIdle()
	}
	if r.s != nil {
		r.s.tenant.report()
	}
	done := r.g.makeRoom(r.s, ok)
	for number := range r.slabs {
		locs := r.locsOf(number)
		if !slices.ContainsFunc(locs, func(l loc) bool { return l != 0 && !r.f.Lives(l) }) {
			continue
		}
		locs = slices.Clone(locs)
		for i, l := range locs {
			if l != 0 && !r.f.Lives(l) {
				locs[i] = 0
			}
		}
		r.slabs[number].apart = true
		r.apart[uint32(number)] = locs
	}
	r.pin(true)
	pinLocs(r.f, keep, false)
	if r.tries, r.tight = 0, 0; !done {
		r.tight = len(r.slabs)
	}
	return done
}

// pin pins all slabs, or takes that back.
func (r *restorer) pin(pin bool) {
	for number := range r.slabs {
		pinLocs(r.f, r.locsOf(number), pin)
	}
}

// roomFor makes room for a name at some places.
func (r *restorer) roomFor(at []loc) bool {
	return !r.g.full() || r.relieve(at, func() bool { return r.g.pages() >= r.g.part/4 })
}

// ref reads a place. 0: it was evicted.
func (r *restorer) ref(v uint64) (l loc, err error) {
	l, ok := r.placeOf(v)
	if !ok && !r.short {
		return 0, fmt.Errorf("a name at slot %d of slab %d of %d", v&31, v>>5, len(r.slabs)-1)
	}
	return l, nil
}

func (r *restorer) set() error {
	n := int(r.byte()) + 1
	set := make([]*lane, 0, 1)
	for _, number := range r.take(n) {
		ln := r.lanes[number]
		if r.short {
			return nil
		}
		if ln == nil || slices.Contains(set, ln) {
			return fmt.Errorf("lane %d in a set", number)
		}
		set = append(set, ln)
	}
	if len(r.sets) == maxSets {
		return fmt.Errorf("more than %d sets", maxSets)
	}
	r.sets = append(r.sets, set)
	return nil
}

// plainRecord is a record of a name that some lanes hold.
type plainRecord struct {
	record []byte // from it on
	loc    loc
	set    int
}

// plainNames reads plain names as long as there are any, but only some: their places and
// what the tables have of them are asked for together.
func (r *restorer) plainNames() error {
	r.plain, r.named, r.placed = r.plain[:0], r.named[:0], r.placed[:0]
	for len(r.plain) < somePlain && len(r.b) > 0 && r.b[0] >= tagPlain {
		p := plainRecord{record: r.b, set: int(r.byte() - tagPlain)}
		h, v := Hash(r.uint64()), r.uvarint()
		l, err := r.ref(v)
		if (err != nil || r.short) && len(r.plain) > 0 { // those before it come first
			r.b, r.short = p.record, false
			break
		}
		if err != nil || r.short {
			return err
		}
		p.loc = l
		r.plain, r.named = append(r.plain, p), append(r.named, h)
		if l != 0 {
			r.placed = append(r.placed, l)
		}
	}
	r.s.names.Prefetch(r.named)
	r.f.Prefetch(r.placed)
	for i := range r.plain {
		p := &r.plain[i]
		r.record = p.record
		if err := r.plainName(r.named[i], p.loc, p.set); err != nil {
			return err
		}
	}
	return nil
}

// plainName adds a name that the lanes of a set hold.
func (r *restorer) plainName(h Hash, l loc, set int) error {
	if set >= len(r.sets) {
		return fmt.Errorf("name %x is held by set %d of %d", uint64(h), set, len(r.sets))
	}
	s, at := r.s, [1]loc{l}
	r.names++
	if l == 0 || !r.roomFor(at[:]) || !r.f.Lives(l) {
		for _, ln := range r.sets[set] {
			r.lose(ln)
		}
		return nil
	}
	if s.lanes.holdsAt(l) {
		return fmt.Errorf("name %x has the key of another one, and does not say so", uint64(h))
	}
	if s.names.Add(h, value(l)) != 0 {
		return fmt.Errorf("name %x is there twice", uint64(h))
	}
	s.f.Ref(l)
	for _, ln := range r.sets[set] {
		s.f.Hold(l, ln.ord)
		s.lanes.count(ln, 1)
	}
	if s.shared.names != nil {
		s.shared.names.add(l, sharedName{hash: h})
	}
	return nil
}

// lose counts a holding that has no room.
func (r *restorer) lose(ln *lane) {
	r.s.evicted++
	r.s.doubts = true
	r.g.lost++
	r.f.Lose(ln.ord)
}

func (r *restorer) idleName() error {
	h, v := Hash(r.uint64()), r.uvarint()
	order, since := r.uint32(), r.uint32()
	l, err := r.ref(v)
	if err != nil || r.short {
		return err
	}
	r.names++
	at := [1]loc{l}
	switch s := r.s; {
	case r.isLater(since):
		return fmt.Errorf("name %x is idle from a time on that is to come", uint64(h))
	case l == 0 || !r.roomFor(at[:]) || !r.f.Lives(l):
		s.counts.Forgotten++
	case s.names.Get(h) != 0:
		return fmt.Errorf("name %x is there twice", uint64(h))
	default:
		s.f.Ref(l)
		n := s.name(h)
		n.becomeIdle(l)
		r.becameIdle(n.number(), order, since)
	}
	return nil
}

// becameIdle notes the place in the queue of an element.
func (r *restorer) becameIdle(i, order, since uint32) {
	for int(i) >= len(r.order) {
		r.order = append(r.order, 0)
	}
	r.order[i] = order
	r.s.idle.at(i).since = since
}

func (r *restorer) orderOf(i uint32) uint32 {
	if int(i) < len(r.order) {
		return r.order[i]
	}
	return ^uint32(0)
}

// sortIdle puts the queue of idle names in order.
func (r *restorer) sortIdle() {
	s := r.s
	var queue []uint32
	for i := s.idle.first; i != 0; i = s.idle.at(i).next {
		queue = append(queue, i)
	}
	slices.SortStableFunc(queue, func(a, b uint32) int { return cmp.Compare(r.orderOf(a), r.orderOf(b)) })
	s.idle.first, s.idle.last = 0, 0
	for _, i := range queue {
		s.idle.link(i)
	}
}

// copyRecord is what a lane has of a rich name.
type copyRecord struct {
	ln                *lane
	copies            uint32
	reported, chained bool
	parent            Hash
}

// richRecord is what a record says of a rich name. A key at 0 was evicted.
type richRecord struct {
	hash    Hash
	keys    []richKey
	copies  []copyRecord
	holders int
	order   uint32
	since   uint32
}

type richKey struct {
	loc     loc
	variant uint32
	several bool // names with it were hidden
}

// richName reads a name of any kind.
func (r *restorer) richName() error {
	n, err := r.richRecord()
	if err != nil || r.short {
		return err
	}
	r.names++
	locs := make([]loc, len(n.keys))
	for i := range n.keys {
		locs[i] = n.keys[i].loc
	}
	room := r.roomFor(locs)
	for i := range n.keys {
		if k := &n.keys[i]; k.loc != 0 && !r.f.Lives(k.loc) {
			k.loc = 0
		}
	}
	if r.evict(n, room) {
		return nil
	}
	return r.build(n)
}

func (r *restorer) richRecord() (*richRecord, error) {
	n := &richRecord{hash: Hash(r.uint64())}
	keys, count := int(r.byte()), int(r.byte())|int(r.byte())<<8
	flags := r.byte()
	for range keys {
		v := r.uvarint()
		l, err := r.ref(v >> 1)
		if err != nil || r.short {
			return nil, err
		}
		k := richKey{l, uint32(r.slabs[v>>6].variant), v&1 != 0}
		same := 0
		for _, o := range n.keys {
			if o.variant == k.variant {
				same++
			}
			if o.loc == l && l != 0 {
				return nil, fmt.Errorf("name %x has a key twice", uint64(n.hash))
			}
		}
		if same > 1 {
			return nil, fmt.Errorf("name %x has three keys of one variant", uint64(n.hash))
		}
		n.keys = append(n.keys, k)
	}
	for range count {
		c, err := r.copyRecord()
		if err != nil || r.short {
			return nil, err
		}
		if slices.ContainsFunc(n.copies, func(o copyRecord) bool { return o.ln == c.ln }) {
			return nil, fmt.Errorf("name %x is held twice by a lane", uint64(n.hash))
		}
		if n.copies = append(n.copies, c); c.copies > 0 {
			n.holders++
		}
	}
	n.order, n.since = ^uint32(0), r.clock
	idle := flags&richIsIdle != 0
	if idle {
		n.order, n.since = r.uint32(), r.uint32()
	}
	switch {
	case r.short:
		return nil, nil
	case idle != (n.holders == 0) || r.isLater(n.since):
		return nil, fmt.Errorf("name %x has %d holders, and is idle from %d on: %v", uint64(n.hash), n.holders, n.since, idle)
	case n.holders == 0 && keys == 0:
		return nil, fmt.Errorf("name %x has neither keys nor holders", uint64(n.hash))
	case r.s.names.Get(n.hash) != 0:
		return nil, fmt.Errorf("name %x is there twice", uint64(n.hash))
	}
	return n, nil
}

func (r *restorer) copyRecord() (c copyRecord, err error) {
	number, flags := r.byte(), r.byte()
	c = copyRecord{ln: r.lanes[number], copies: r.uint32(), reported: flags&copyReported != 0, chained: flags&copyChained != 0}
	if c.chained {
		c.parent = Hash(r.uint64())
	}
	switch {
	case r.short:
	case c.ln == nil:
		err = fmt.Errorf("lane %d, which is not there", number)
	case c.copies == 0 && !c.reported || c.reported && c.ln.tier != TierGPU:
		err = fmt.Errorf("%d copies in tier %v, reported: %v", c.copies, c.ln.tier, c.reported)
	}
	return c, err
}

// evict takes from a name what was evicted of it, as source.bury does, and returns true
// if nothing is left.
func (r *restorer) evict(n *richRecord, room bool) bool {
	var gone []Variant
	left := 0
	ambiguous := false
	for i, k := range n.keys {
		if k.loc != 0 {
			left++
		} else {
			gone = append(gone, r.g.variants[k.variant])
		}
		ambiguous = ambiguous || slices.ContainsFunc(n.keys[:i], func(o richKey) bool { return o.variant == k.variant })
	}
	if room && len(gone) == 0 {
		return false
	}
	whole := !room || left == 0 || ambiguous
	n.keys = slices.DeleteFunc(n.keys, func(k richKey) bool { return k.loc == 0 })
	n.copies = slices.DeleteFunc(n.copies, func(c copyRecord) bool {
		if !whole && !slices.Contains(gone, c.ln.group.cutOf(c.ln).variant) {
			return false
		}
		r.s.doubts = true
		if c.copies > 0 {
			n.holders--
			r.lose(c.ln)
		}
		return true
	})
	return whole
}

// build makes a rich name.
func (r *restorer) build(of *richRecord) error {
	s := r.s
	n := s.name(of.hash)
	n.enrich()
	for _, k := range of.keys {
		s.f.Ref(k.loc)
		n.addKey(k.loc)
	}
	if of.holders > 0 && !n.claimKeys() { // too many names, or no room to note them
		for _, c := range of.copies {
			if c.copies > 0 {
				r.lose(c.ln)
			}
		}
		n.forget()
		return nil
	}
	hidden := false
	for _, c := range slices.Backward(of.copies) {
		rich := n.rich()
		rich.first = s.copies.take(copyCount{
			parent: c.parent, copies: c.copies, next: rich.first, lane: c.ln.number, chained: c.chained, reported: c.reported,
		})
		if c.copies == 0 {
			c.ln.hidden++
			hidden = true
			continue
		}
		rich.holders++
		s.lanes.count(c.ln, 1)
		for _, k := range of.keys {
			s.f.Hold(k.loc, c.ln.ord)
		}
	}
	for _, k := range of.keys {
		if hidden {
			n.hide(k.loc)
			at := s.hidden.names.at(k.loc)
			at.many = at.many || k.several
		}
	}
	if of.holders == 0 {
		i := s.idle.push(idleName{hash: of.hash})
		n.rich().idle = i
		r.becameIdle(i, of.order, of.since)
	}
	n.simplify()
	return nil
}

// restoredStore is a store that waits.
type restoredStore struct {
	p     *pending
	void  []bool // by hash: it has no say in it
	waits bool
}

// store reads what is known of a store beside its hashes and locals.
func (r *restorer) store() error {
	id := int(r.byte())
	p := &pending{tier: Tier(r.byte())}
	p.parked = r.bool()
	st := restoredStore{p: p, waits: r.bool()}
	p.blind, p.since, p.parent.hash = r.bool(), r.uint32(), Hash(r.uint64())
	by, ok := r.cut()
	variant, need, units := int(r.byte()), r.uvarint(), r.uvarint()
	p.fromRoot, p.root = r.bool(), Key(r.uint64())
	if r.short {
		return nil
	}
	p.cut, p.need, p.units = by, int(min(need, 1<<30)), int(min(units, 1<<30))
	if p.group = r.s.lanes.group(id); p.group == nil || p.tier >= NumTiers || !ok || variant >= len(r.numbers) || r.isLater(p.since) {
		return fmt.Errorf("a store of group %d, tier %v, blocks of %+v, variant %d waits", id, p.tier, by, variant)
	}
	p.parent.variant = r.numbers[variant]
	r.stores = append(r.stores, st)
	return nil
}

func (r *restorer) hashes() error {
	if len(r.stores) == 0 {
		return errors.New("hashes of no store")
	}
	st := &r.stores[len(r.stores)-1]
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		st.p.hashes = append(st.p.hashes, Hash(r.uint64()))
		st.void = append(st.void, r.bool())
	}
	return nil
}

func (r *restorer) locals() error {
	if len(r.stores) == 0 {
		return errors.New("locals of no store")
	}
	st := &r.stores[len(r.stores)-1]
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		st.p.locals = append(st.p.locals, Local(r.uint64()))
	}
	return nil
}

// fits reports whether a store can be one that waits.
func (st *restoredStore) fits() bool {
	p, units := st.p, 0
	if len(p.hashes) == 0 {
		return false
	}
	if p.parked || p.need > 0 {
		if p.tier != TierGPU || p.cut == (cut{}) {
			return false
		}
		if units = p.cut.size / p.cut.variant.Unit; units > MaxBlockUnits {
			return false
		}
	}
	switch {
	case p.parked:
		return st.waits && p.need == 0 && len(p.locals) == len(p.hashes)*units
	case p.need > 0:
		return p.need == p.group.runBlocks(p.cut.size) && p.units%units == 0 && len(p.hashes) < p.units/units &&
			(len(p.locals) == p.units || len(p.locals) == 0 && !st.waits)
	}
	return !st.waits && len(p.locals) == 0
}

// queue has a store wait again.
func (r *restorer) queue(st *restoredStore) error {
	s, p := r.s, st.p
	if !st.fits() {
		return fmt.Errorf("a store of %d hashes and %d locals cannot wait: %+v", len(p.hashes), len(p.locals), *p)
	}
	since := p.since
	if p.parked || p.need > 0 {
		p.riches = make([]uint32, len(p.hashes))
	}
	if p.parked {
		s.waits.parked++
	}
	r.relieve(nil, func() bool { return r.g.pages() > int64(p.cost()) })
	s.waits.push(p)
	p.since = since
	first := make(map[Hash]bool)
	for i, h := range p.hashes {
		void, again := first[h]
		if !again {
			void = st.void[i]
			first[h] = void
		}
		if p.riches != nil && !void {
			s.waits.enlist(p, i)
		}
	}
	return nil
}

// wait has stores wait for their parents.
func (r *restorer) wait() error {
	s := r.s
	for _, i := range r.waits {
		if int(i) >= len(r.stores) || !r.stores[i].waits || r.stores[i].p.waits {
			return fmt.Errorf("store %d of %d waits", i, len(r.stores))
		}
		p := r.stores[i].p
		if p.number == 0 {
			continue // it was dropped
		}
		if l, n := s.locOf(p.parent); n > 0 && !s.f.Dead(l) {
			return fmt.Errorf("store %d waits for %x, which is there", i, uint64(p.parent.hash))
		}
		s.waits.wait(p)
	}
	for i := range r.stores {
		if st := &r.stores[i]; st.waits != st.p.waits && st.p.number != 0 {
			return fmt.Errorf("store %d waits for nothing", i)
		}
	}
	return nil
}

// done reads the end of a source.
func (r *restorer) done() error {
	s := r.s
	count, evicted, doubts := r.uvarint(), r.uvarint(), r.bool()
	n := r.uvarint()
	if n > maxLanes {
		return fmt.Errorf("%d lanes", n)
	}
	lost := r.take(int(n))
	switch {
	case r.short:
		return nil
	case count != r.names:
		return fmt.Errorf("%d names, said to be %d", r.names, count)
	}
	s.evicted += evicted
	s.doubts = s.doubts || doubts
	for _, number := range lost[:n] {
		if r.lanes[number] == nil {
			return fmt.Errorf("lane %d, which is not there", number)
		}
		r.f.Lose(r.lanes[number].ord)
	}
	r.sortIdle()
	r.order = nil
	for i := range r.stores {
		if err := r.queue(&r.stores[i]); err != nil {
			return err
		}
	}
	if err := r.wait(); err != nil {
		return err
	}
	if err := r.allWait(); err != nil {
		return err
	}
	for s.waits.cost > s.cfg.PendingBytes {
		s.waits.drop(s.waits.oldest)
	}
	s.forgetIdle(s.cfg.IdleNames, s.idle.len())
	s.tenant.report()
	r.s = nil
	r.sources++
	return nil
}

// allWait returns an error if a name without a key is in no store that waits.
func (r *restorer) allWait() (err error) {
	s := r.s
	if s.keyless == 0 {
		return nil
	}
	waits := make(map[Hash]bool)
	for p := s.waits.oldest; p != nil; p = p.newer {
		for _, h := range p.hashes {
			waits[h] = true
		}
	}
	s.names.Each(func(h Hash, v value) {
		if n := (name{s, h, v}); n.unplaced() && !waits[h] {
			err = fmt.Errorf("name %x has no key, and is of no store that waits", uint64(h))
		}
	})
	return err
}
