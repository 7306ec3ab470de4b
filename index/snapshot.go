package index

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// A snapshot is written pod by pod. Everything of a pod is as it was at one moment, its
// cut, and nobody waits for more than a step of some hundred names.
//
// # What is kept
//
// At the cut, all that is small is noted: cursors, groups, lanes, the stores that wait.
// The names are not: a walk goes through the tables of names in the order of their
// positions, in steps, after the cut. A writer that comes to a name which the walk has
// not reached (source.name) first notes what the name was, and that it did. So the first
// note of a name says what it was at the cut. The walk notes the names that nobody else
// has noted, and those that came since the cut were noted by who made them: as nothing.
//
//	   walk ->                 d.at
//	┌───────────────────────────┬──────────────────────────────┐ positions
//	│ written: changes go on    │ a change notes the name first│
//	└───────────────────────────┴──────────────────────────────┘
//
// A note keeps its places by a Pin, and has no records of slabs, so that it costs a
// writer little, whatever is before the place. The one who writes the snapshot makes
// records of the notes, a few at a time, slabs before the names that are there.
//
// Notes of what is pinned cannot be evicted. What was evicted between the cut and its
// note is left out of the snapshot, as evicted.
//
// # Idle names
//
// The order of the queue is not in the names. So before the cut the queue is numbered,
// in steps, and what comes into it later gets higher numbers.
//
// # Who waits for whom
//
// Sections are filled while locks are held, and written when none is. Up to
// maxAhead bytes of them are filled before the first is written, so that a pod of some
// million blocks is read at once even if the writer hangs. Beyond that the walk waits,
// and notes pile up: at a bound the snapshot is given up. A pod that is removed
// meanwhile is forgotten by readers at once, and by its memory when it is written.
//
// # Why so
//
// To write names again that change behind the walk needs rounds that may not come to an
// end, and sections that contradict each other: one key at two places, names that were
// forgotten. To copy a segment of names at its first change makes one store of 512
// blocks pay for 512 segments.
//
// With a note before the first change of a name, everything of a pod is of one moment, each
// name is written once, and a store pays only for its own names. Sections and notes are counted
// in the budget.

// The kinds of records, beside forest.DumpSlab and forest.DumpSlots. A plain name begins
// with tagPlain and the number of the set of its lanes.
const (
	tagBegin byte = iota + 3
	tagSource
	tagSet
	tagIdleName
	tagRichName
	tagStore
	tagHashes
	tagLocals
	tagWaits
	tagDone
	tagEnd
	tagPlain byte = 16
	maxSets       = 256 - int(tagPlain)

	// snapshotVersion is the version of the records.
	snapshotVersion = 1
	// sectionLimit is the most bytes that a section has.
	sectionLimit = 4 << 20
	// someHashes is how many a record of a store has.
	someHashes = 1 << 8
)

const (
	// minSection and maxSection bound a section that is filled, in bytes, and
	// maxAhead those that wait until they are written. Parts of the budget bound them
	// too, and the notes.
	minSection  = 8 << 10
	maxSection  = 1 << 20
	maxAhead    = 32 << 20
	sectionPart = 512
	aheadPart   = 64
	notesPart   = 8
	// notePiece is what notes are allocated in.
	notePiece = 8 << 10
	// someNotes and someSlabs is how many become records in a step.
	someNotes = 512
	someSlabs = 8
	// recordRoom is what must be free in a section for a name and some slabs.
	recordRoom = someSlabs*forest.DumpBytes + 4<<10
	// someIdle is how many idle names are numbered in a step.
	someIdle = 1 << 12
	newIdle  = 1 << 31 // the first number of those that become idle meanwhile
)

// dumper writes a snapshot.
type dumper struct {
	m       *memory
	g       *ground
	write   func([]byte) error
	size    int // of a section
	most    int // sections that wait
	sources []*source
	written uint64 // sources

	open       []byte // the section that is filled
	full, free [][]byte
	taken      int // bytes of all

	// Of the source that is written.
	of     *source
	sets   map[string]byte // by their lanes
	last   []byte          // the lanes of the set of the last name
	set    byte            // which has this number
	lanes  []byte          // of a name
	note   []byte          // what is left of a piece
	refs   []uint32
	picked []names.Picked[Hash]
	locs   []loc

	noted    int // bytes of notes; guarded by ground.mu
	notesMax int
	overflow bool
}

// dumping is a source that is being written. It is guarded by source.writer, and what
// has to do with the forest by ground.mu too.
type dumping struct {
	w     *dumper
	s     *source
	cut   bool // the moment was
	clock uint32
	head  []byte
	// stores are those that wait, as they were, and waits the numbers of those among
	// them that wait for a parent, in their order.
	stores []pending
	waits  []uint32

	order idleOrder

	at    uint64 // the position of the walk
	end   bool   // it is at the end
	seen  names.Table[Hash, uint32]
	notes [][]byte
	bytes int // of all but seen

	names   uint64 // that were noted
	evicted uint64 // holdings that were left out
	doubts  bool   // and some of them may be there
	lost    [maxLanes]bool
	forgets uint32 // source.hidden.forgets, when it began
	bury    bool   // the source was removed
}

// Snapshot has write write what the index holds, in sections of at most sectionLimit
// bytes, which only Restore understands. Nothing is held while write runs. For each
// pod, cut is called once: it calls last once, at a moment at which no message of
// that pod is being applied, and last notes what is left of the pod up to that
// moment: it writes nothing, and takes at most some ms.
func (m *memory) Snapshot(ctx context.Context, write func([]byte) error, cut func(string, func() error) error) error {
	select {
	case m.dumps <- struct{}{}:
		defer func() { <-m.dumps }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	g := m.ground
	m.mu.Unlock()
	if g == nil {
		return ErrClosed
	}
	w := &dumper{m: m, g: g, write: write}
	w.size = int(min(max(g.budget/sectionPart, minSection), maxSection))
	w.most = int(min(g.budget/aheadPart, maxAhead)) / w.size
	g.mu.Lock()
	w.notesMax = int(min(g.budget/notesPart, maxAhead+g.mem.Load()/16))
	g.forest.BeginDump()
	g.dumping = true
	g.mu.Unlock()
	defer w.done()
	var s forest.Survey
	for done := false; !done; {
		if err := w.ended(ctx); err != nil {
			return err
		}
		g.mu.Lock()
		done = g.forest.HandOn(&s, stepSlabs)
		g.mu.Unlock()
	}
	return w.run(ctx, cut)
}

func (w *dumper) run(ctx context.Context, cut func(string, func() error) error) error {
	if !w.take() {
		return fmt.Errorf("%w: a snapshot needs %d bytes", ErrFull, w.size)
	}
	w.open, w.free = w.free[0], nil
	seed := w.m.Seed()
	w.open = append(w.open, tagBegin, snapshotVersion)
	w.open = append(w.open, seed[:]...)
	for _, pod := range w.m.podNames() {
		if err := w.pod(ctx, pod, cut); err != nil {
			return err
		}
	}
	if err := w.room(ctx, recordRoom); err != nil {
		return err
	}
	w.g.mu.Lock()
	w.open = append(w.open, tagEnd)
	w.open = binary.AppendUvarint(w.open, w.written)
	w.open = binary.LittleEndian.AppendUint32(w.open, w.g.forest.Now())
	w.g.mu.Unlock()
	w.full, w.open = append(w.full, w.open), nil
	return w.flush(ctx)
}

// podNames returns the pods, by name.
func (m *memory) podNames() (pods []string) {
	for _, md := range *m.models.Load() {
		md.pods.Range(func(pod, _ any) bool {
			pods = append(pods, pod.(string))
			return true
		})
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// sourcesOf returns the sources of a pod.
func (m *memory) sourcesOf(pod string) (sources []*source) {
	for _, md := range *m.models.Load() {
		if p, ok := md.pods.Load(pod); ok {
			sources = append(sources, *p.(*podSources).list.Load()...)
		}
	}
	slices.SortFunc(sources, func(a, b *source) int { return compareSources(a.id, b.id) })
	return sources
}

func compareSources(a, b Source) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Rank, b.Rank))
}

// pod writes a pod.
func (w *dumper) pod(ctx context.Context, pod string, cut func(string, func() error) error) error {
	for _, s := range w.m.sourcesOf(pod) {
		for more := true; more; {
			more = w.number(s, someIdle)
			if err := w.ended(ctx); err != nil {
				return err
			}
		}
	}
	var of []*source
	err := cut(pod, func() error {
		if err := w.ended(ctx); err != nil {
			return err
		}
		for _, s := range w.m.sourcesOf(pod) {
			w.number(s, math.MaxInt)
			if w.cut(s) {
				of = append(of, s)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range of {
		if err := w.source(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range w.sources { // and those that were removed before the cut
		w.end(s)
	}
	w.sources = w.sources[:0]
	return w.flush(ctx)
}

// locked calls f with the locks of a source, and lets those that wait for them go on
// before it returns.
func (s *source) locked(f func()) {
	defer runtime.Gosched()
	s.writer.Lock()
	defer s.writer.Unlock()
	s.ground.mu.Lock()
	defer s.ground.mu.Unlock()
	f()
}

// number numbers some idle names of a source, and reports whether there are more.
func (w *dumper) number(s *source, most int) (more bool) {
	s.locked(func() {
		if s.removed.Load() {
			return
		}
		if s.dump == nil {
			d := &dumping{w: w, s: s, forgets: s.hidden.forgets}
			d.order = idleOrder{of: d, next: s.idle.first, late: newIdle}
			d.grow(mem.SizeOf[dumping]())
			s.dump, s.idle.order = d, &d.order
			w.sources = append(w.sources, s)
		}
		more = s.dump.order.count(&s.idle, most)
	})
	return more
}

// grow counts so many bytes more.
func (d *dumping) grow(bytes int) {
	d.bytes += bytes
	d.s.mem.Add(bytes)
}

// cut notes what is not noted name by name. It returns false for a source that was
// removed.
func (w *dumper) cut(s *source) (ok bool) {
	s.locked(func() {
		d := s.dump
		if d == nil || s.removed.Load() {
			return
		}
		ok, d.cut, s.idle.order = true, true, nil
		d.clock = s.f.Now()
		d.seen.Init(s.names.Salt(), s.mem)
		d.head = s.appendHead(nil)
		numbers := make([]uint32, len(s.waits.slots))
		for p := s.waits.oldest; p != nil; p = p.newer {
			numbers[p.number] = uint32(len(d.stores))
			d.stores = append(d.stores, *p)
			d.stores[len(d.stores)-1].riches = slices.Clone(p.riches)
		}
		if s.waits.parents != nil {
			s.waits.parents.Each(func(_ Hash, first uint32) {
				for i := first; i != 0; i = s.waits.slots[i].p.nextWait {
					d.waits = append(d.waits, numbers[i])
				}
			})
		}
		d.grow(cap(d.head) + s.waits.bytes() + 4*cap(d.waits))
	})
	return ok
}

// name notes what a name was at the cut, before it changes.
func (d *dumping) name(h Hash) {
	s := d.s
	if !d.cut || d.end || s.names.Position(h) < d.at || d.w.overflow || d.seen.Add(h, 1) != 0 {
		return
	}
	d.w.overflow = d.w.noted+d.seen.Bytes() > d.w.notesMax
	if v := s.names.Get(h); v != 0 {
		d.keep(&name{s, h, v})
	}
}

// idleOrder numbers the queue of idle names, which the names do not show. Elements before
// next have their final numbers.
type idleOrder struct {
	of      *dumping
	numbers []uint32 // by their numbers in source.idle
	next    uint32
	early   uint32 // the number of the element before next
	late    uint32 // the number of the next name that becomes idle
}

// count numbers at most n elements, and reports whether there are more.
func (o *idleOrder) count(q *idleQueue, n int) (more bool) {
	for ; n > 0 && o.next != 0; n-- {
		i := o.next
		o.next = q.at(i).next
		o.early++
		o.set(i, o.early)
	}
	return o.next != 0
}

// add numbers an element that was pushed.
func (o *idleOrder) add(i uint32) {
	if o != nil {
		o.set(i, o.late)
		o.late++
	}
}

// skip records that element i leaves the queue.
func (o *idleOrder) skip(i, next uint32) {
	if o != nil && o.next == i {
		o.next = next
	}
}

func (o *idleOrder) set(i, number uint32) {
	if int(i) >= len(o.numbers) {
		was := cap(o.numbers)
		o.numbers = slices.Grow(o.numbers, int(i)+1-len(o.numbers))
		o.numbers = o.numbers[:cap(o.numbers)]
		o.of.grow(mem.Size(4*cap(o.numbers)) - mem.Size(4*was))
	}
	o.numbers[i] = number
}

// keep notes what a name is.
func (d *dumping) keep(n *name) {
	s := n.s
	switch {
	case n.isRich():
		d.keepRich(n)
	case n.isPlain() && s.f.Dead(loc(n.value)):
		for _, ln := range s.lanes.all {
			if ln != nil && s.f.Holds(loc(n.value), ln.ord) {
				d.lose(ln)
			}
		}
	case n.isPlain():
		l := s.f.Here(loc(n.value))
		p := d.piece(14 + maxLanes)
		*p = binary.LittleEndian.AppendUint64(append(*p, tagPlain), uint64(n.hash))
		*p = binary.LittleEndian.AppendUint32(*p, uint32(l))
		at := len(*p)
		*p = s.lanes.appendHolders(append(*p, 0), l)
		(*p)[at] = byte(len(*p) - at - 2)
		s.f.Pin(l)
		d.names++
	default:
		i := s.idle.at(n.number())
		l := s.f.Here(i.loc)
		if s.f.Dead(l) {
			return
		}
		p := d.piece(21)
		*p = binary.LittleEndian.AppendUint64(append(*p, tagIdleName), uint64(n.hash))
		*p = binary.LittleEndian.AppendUint32(*p, uint32(l))
		*p = binary.LittleEndian.AppendUint32(*p, d.order.numbers[n.number()])
		*p = binary.LittleEndian.AppendUint32(*p, i.since)
		s.f.Pin(l)
		d.names++
	}
}

// lose notes that a holding is left out because it was evicted.
func (d *dumping) lose(ln *lane) {
	d.evicted++
	d.doubts = true
	d.lost[ln.number] = true
}

// The flags of a rich name and of its copies.
const (
	richIsIdle = 1 << iota
	copyReported
	copyChained
	keyShared = 1 << 31 // of a key: several names with it were hidden
)

// keepRich is keep for a rich name. Of what was evicted it says what source.bury would
// leave.
func (d *dumping) keepRich(n *name) {
	var buf [2]loc
	s, r := n.s, n.rich()
	keys := slices.Clone(n.locs(&buf))
	for i, l := range keys {
		keys[i] = s.f.Here(l)
	}
	gone := slices.DeleteFunc(slices.Clone(keys), func(l loc) bool { return !s.f.Dead(l) })
	whole := len(gone) > 0 && (len(gone) == len(keys) || n.ambiguous())
	keys = slices.DeleteFunc(keys, s.f.Dead)
	hidden, copies := n.isHiddenExcept(0), 0
	for i := r.first; i != 0; i = s.copies.at(i).next {
		copies++
	}
	p := d.piece(21 + 4*len(keys) + 14*copies)
	was := len(*p)
	*p = binary.LittleEndian.AppendUint64(append(*p, tagRichName), uint64(n.hash))
	head := len(*p)
	*p = append(*p, byte(len(keys)), 0, 0, 0)
	for _, l := range keys {
		v := uint32(l)
		if at := s.hidden.names.at(l); hidden && (d.forgets != s.hidden.forgets || at != nil && at.many) {
			v |= keyShared
		}
		*p = binary.LittleEndian.AppendUint32(*p, v)
	}
	copies = 0
	holders := 0
	for i := r.first; i != 0; {
		c := s.copies.at(i)
		i = c.next
		ln := s.lanes.all[c.lane]
		variant := func(l loc) bool { return s.variantAt(l) == ln.group.cutOf(ln).variant }
		switch {
		case (whole || slices.ContainsFunc(gone, variant)) && c.copies > 0:
			d.lose(ln)
			continue
		case whole || slices.ContainsFunc(gone, variant):
			d.doubts = true
			continue
		case c.copies > 0:
			holders++
		}
		copies++
		*p = appendCopy(*p, c, len(keys) == 0)
	}
	if whole {
		*p = (*p)[:was]
		return
	}
	binary.LittleEndian.PutUint16((*p)[head+1:], uint16(copies))
	if holders == 0 {
		(*p)[head+3] = richIsIdle
		order, since := d.order.late, d.clock
		if r.idle != 0 {
			order, since = d.order.numbers[r.idle], s.idle.at(r.idle).since
		} else {
			d.order.late++
		}
		*p = binary.LittleEndian.AppendUint32(*p, order)
		*p = binary.LittleEndian.AppendUint32(*p, since)
	}
	for _, l := range keys {
		s.f.Pin(l)
	}
	d.names++
}

// appendCopy appends what a lane has of a name. parent: the name has no key.
func appendCopy(p []byte, c *copyCount, parent bool) []byte {
	flags := byte(0)
	if c.reported {
		flags |= copyReported
	}
	if c.chained && parent {
		flags |= copyChained
	}
	p = append(p, byte(c.lane), flags)
	p = binary.LittleEndian.AppendUint32(p, c.copies)
	if flags&copyChained != 0 {
		p = binary.LittleEndian.AppendUint64(p, uint64(c.parent))
	}
	return p
}

// piece returns the notes with room for so many bytes.
func (d *dumping) piece(bytes int) *[]byte {
	if n := len(d.notes); n > 0 && cap(d.notes[n-1])-len(d.notes[n-1]) >= bytes {
		return &d.notes[n-1]
	}
	size := mem.Size(max(notePiece, bytes))
	d.grow(size)
	d.w.noted += size
	d.notes = append(d.notes, make([]byte, 0, size))
	return &d.notes[len(d.notes)-1]
}

// source writes a source that was cut.
func (w *dumper) source(ctx context.Context, s *source) error {
	d := s.dump
	w.of, w.sets, w.last = s, make(map[string]byte), nil
	if err := w.put(ctx, d.head); err != nil {
		return err
	}
	for !d.end {
		s.locked(func() { w.walk(d) })
		if err := w.drain(ctx, d); err != nil {
			return err
		}
	}
	if err := w.stores(ctx, d); err != nil {
		return err
	}
	tail := binary.AppendUvarint([]byte{tagDone}, d.names)
	tail = appendBool(binary.AppendUvarint(tail, d.evicted), d.doubts)
	lost := make([]byte, 0, maxLanes)
	for i := range d.lost {
		if d.lost[i] {
			lost = append(lost, byte(i))
		}
	}
	tail = append(binary.AppendUvarint(tail, uint64(len(lost))), lost...)
	if err := w.put(ctx, tail); err != nil {
		return err
	}
	w.written++
	w.end(s)
	return nil
}

// walk notes the names of the next segment that nobody has noted. Of a plain name of
// which the slab has a record it makes a record at once.
func (w *dumper) walk(d *dumping) {
	s := w.of
	w.picked, d.at = names.Part(&s.names, w.picked[:0], d.at)
	w.locs = w.locs[:0]
	for _, p := range w.picked {
		if v := value(p.Value); v.isPlain() {
			w.locs = append(w.locs, loc(v))
		}
	}
	s.f.Prefetch(w.locs)
	for _, p := range w.picked {
		if d.seen.Len() > 0 && d.seen.Get(p.Hash) != 0 {
			d.seen.Remove(p.Hash)
			continue
		}
		if v := value(p.Value); !v.isPlain() || !w.direct(d, p.Hash, loc(v)) {
			d.keep(&name{s, p.Hash, v})
		}
	}
	d.end = d.at == 0
}

// direct makes a record of a plain name, if that needs nothing else before it.
func (w *dumper) direct(d *dumping, h Hash, l loc) bool {
	s := w.of
	if len(w.open) > w.size-recordRoom || s.f.Dead(l) {
		return false
	}
	ref := s.f.Dumped(s.f.Here(l))
	if ref == 0 {
		return false
	}
	w.lanes = s.lanes.appendHolders(w.lanes[:0], l)
	set, ok := w.setOf(w.lanes)
	if ok {
		w.open = appendPlain(w.open, set, h, ref)
		d.names++
	}
	return ok
}

// setOf returns the number of a set of lanes, with a record if it is new, or false if
// there are too many.
func (w *dumper) setOf(lanes []byte) (set byte, ok bool) {
	if slices.Equal(lanes, w.last) {
		return w.set, true
	}
	if set, ok = w.sets[string(lanes)]; !ok {
		if len(w.sets) == maxSets {
			return 0, false
		}
		set = byte(len(w.sets))
		w.sets[string(lanes)] = set
		w.open = append(w.open, tagSet, byte(len(lanes)-1))
		w.open = append(w.open, lanes...)
	}
	w.last, w.set = append(w.last[:0], lanes...), set
	return set, true
}

func appendPlain(b []byte, set byte, h Hash, ref uint32) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, tagPlain+set), uint64(h))
	return binary.AppendUvarint(b, uint64(ref))
}

// drain makes records of the notes.
func (w *dumper) drain(ctx context.Context, d *dumping) error {
	for more := true; more; {
		if err := w.room(ctx, recordRoom); err != nil {
			return err
		}
		var overflow bool
		more, overflow = w.some(d)
		runtime.Gosched() // who waits for the lock goes first
		if overflow {
			return fmt.Errorf("index: the snapshot of pod %q is given up: more than %d bytes of notes about it", w.of.id.Pod, w.notesMax)
		}
	}
	return nil
}

// some makes records of some notes, and reports whether there are more. It ends where a
// section is full.
func (w *dumper) some(d *dumping) (more, overflow bool) {
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	f := w.g.forest
	for n := someNotes; n > 0 && len(w.open) <= w.size-recordRoom; n-- {
		if len(w.note) == 0 && !w.nextPiece(d) {
			return false, w.overflow
		}
		keys, size := noteSize(w.note)
		for len(w.refs) < len(keys)/4 {
			var ref uint32
			if w.open, ref = f.Dump(w.open, keyAt(keys, len(w.refs)), someSlabs); ref == 0 {
				return true, w.overflow
			}
			w.refs = append(w.refs, ref)
		}
		w.record(keys, size)
		w.unpin(keys)
		w.note = w.note[size:]
		w.refs = w.refs[:0]
	}
	return true, w.overflow
}

// nextPiece goes on to the next piece of notes.
func (w *dumper) nextPiece(d *dumping) bool {
	for len(w.note) == 0 && len(d.notes) > 0 {
		size := cap(d.notes[0])
		w.note, d.notes[0] = d.notes[0], nil
		d.notes = d.notes[1:]
		d.grow(-size)
		w.noted -= size
	}
	return len(w.note) > 0
}

// noteSize returns the keys of a note, and how many bytes it has.
func noteSize(note []byte) (keys []byte, size int) {
	switch note[0] {
	case tagPlain:
		return note[9:13], 15 + int(note[13])
	case tagIdleName:
		return note[9:13], 21
	}
	size = richHead + 4*int(note[9])
	keys = note[richHead:size]
	for range binary.LittleEndian.Uint16(note[10:]) {
		if size += 6; note[size-5]&copyChained != 0 {
			size += 8
		}
	}
	if note[12]&richIsIdle != 0 {
		size += 8
	}
	return keys, size
}

// richHead is how many bytes a rich name has before its keys.
const richHead = 13

func keyAt(keys []byte, i int) loc {
	return loc(binary.LittleEndian.Uint32(keys[4*i:]) &^ keyShared)
}

// unpin lets go of the keys of a note.
func (w *dumper) unpin(keys []byte) {
	for i := range len(keys) / 4 {
		w.g.forest.Unpin(keyAt(keys, i))
	}
}

// record makes a record of the next note.
func (w *dumper) record(keys []byte, size int) {
	note := w.note[:size]
	switch note[0] {
	case tagPlain:
		w.plain(note[1:9], note[14:])
	case tagIdleName:
		w.open = append(w.open, note[:9]...)
		w.open = binary.AppendUvarint(w.open, uint64(w.refs[0]))
		w.open = append(w.open, note[13:]...)
	default:
		w.open = append(w.open, note[:richHead]...)
		for i, ref := range w.refs {
			w.open = binary.AppendUvarint(w.open, uint64(ref)<<1|uint64(keys[4*i+3]>>7))
		}
		w.open = append(w.open, note[richHead+len(keys):]...)
	}
}

// plain makes a record of a plain name, or of a rich one if there are too many sets of
// lanes.
func (w *dumper) plain(hash, lanes []byte) {
	set, ok := w.setOf(lanes)
	if !ok {
		w.open = append(append(w.open, tagRichName), hash...)
		w.open = append(w.open, 1, byte(len(lanes)), byte(len(lanes)>>8), 0)
		w.open = binary.AppendUvarint(w.open, uint64(w.refs[0])<<1)
		for _, ln := range lanes {
			w.open = appendCopy(w.open, &copyCount{lane: uint32(ln), copies: 1}, false)
		}
		return
	}
	w.open = appendPlain(w.open, set, Hash(binary.LittleEndian.Uint64(hash)), w.refs[0])
}

// stores writes the stores that waited.
func (w *dumper) stores(ctx context.Context, d *dumping) error {
	for i := range d.stores {
		p := &d.stores[i]
		if err := w.put(ctx, appendStore(nil, p)); err != nil {
			return err
		}
		for at := 0; at < len(p.hashes); at += someHashes {
			to := min(at+someHashes, len(p.hashes))
			b := binary.AppendUvarint([]byte{tagHashes}, uint64(to-at))
			for j := at; j < to; j++ {
				b = binary.LittleEndian.AppendUint64(b, uint64(p.hashes[j]))
				b = appendBool(b, p.isVoid(j))
			}
			if err := w.put(ctx, b); err != nil {
				return err
			}
		}
		for some := range slices.Chunk(p.locals, someHashes) {
			b := binary.AppendUvarint([]byte{tagLocals}, uint64(len(some)))
			for _, l := range some {
				b = binary.LittleEndian.AppendUint64(b, uint64(l))
			}
			if err := w.put(ctx, b); err != nil {
				return err
			}
		}
	}
	for some := range slices.Chunk(d.waits, someHashes) {
		b := binary.AppendUvarint([]byte{tagWaits}, uint64(len(some)))
		for _, i := range some {
			b = binary.AppendUvarint(b, uint64(i))
		}
		if err := w.put(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// appendHead appends the record that begins a source.
func (s *source) appendHead(b []byte) []byte {
	b = append(b, tagSource)
	b = appendText(appendText(b, s.id.Pod), s.id.Model)
	b = binary.AppendVarint(b, int64(s.id.Rank))
	b = binary.LittleEndian.AppendUint32(b, s.f.Now())
	b = binary.LittleEndian.AppendUint32(b, s.cleared)
	b = binary.AppendUvarint(b, uint64(s.names.Len()))
	b = appendBool(binary.AppendUvarint(b, s.evicted), s.doubts)
	for _, n := range s.counts.words() {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(s.cursors.all)))
	for i := range s.cursors.all {
		c := &s.cursors.all[i]
		b = binary.AppendUvarint(binary.AppendUvarint(appendText(b, c.Stream), c.Epoch), c.Next)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(c.Time))
		b = binary.LittleEndian.AppendUint64(b, c.Digest)
	}
	b = append(b, byte(len(s.ground.variants)))
	for _, v := range s.ground.variants {
		b = appendVariant(b, v)
	}
	b = append(b, byte(len(s.lanes.groups)))
	for _, g := range s.lanes.groups {
		b = append(b, byte(g.ID), byte(g.Kind))
		b = binary.AppendVarint(b, int64(g.Window))
		b = appendBool(appendBool(appendBool(b, g.Draft), g.told), g.uncounted)
		b = binary.AppendVarint(appendCut(b, g.cut), int64(g.grain))
	}
	lanes := []byte(nil)
	n := 0
	for i, g := range s.lanes.groups {
		for t, of := range g.lanes {
			for _, ln := range of {
				n++
				lanes = append(lanes, byte(ln.number), byte(i), byte(t))
				lanes = appendBool(appendCut(lanes, ln.cut), s.f.Lost(ln.ord))
			}
		}
	}
	return append(binary.AppendUvarint(b, uint64(n)), lanes...)
}

// appendStore appends what a store is that waits, but for its hashes and locals.
func appendStore(b []byte, p *pending) []byte {
	b = append(b, tagStore, byte(p.group.ID), byte(p.tier))
	b = appendBool(appendBool(appendBool(b, p.parked), p.waits), p.blind)
	b = binary.LittleEndian.AppendUint32(b, p.since)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.parent.hash))
	b = append(appendCut(b, p.cut), byte(p.parent.variant))
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.need)), uint64(p.units))
	return binary.LittleEndian.AppendUint64(appendBool(b, p.fromRoot), uint64(p.root))
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendBool(b []byte, yes bool) []byte {
	if yes {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendVariant(b []byte, v Variant) []byte {
	b = append(binary.AppendVarint(b, int64(v.Unit)), v.Media)
	return appendBool(binary.AppendVarint(b, int64(v.Block)), v.Pairs)
}

func appendCut(b []byte, c cut) []byte {
	return binary.AppendVarint(appendVariant(b, c.variant), int64(c.size))
}

// ended returns why a snapshot cannot go on.
func (w *dumper) ended(ctx context.Context) error {
	if w.m.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// put writes a record.
func (w *dumper) put(ctx context.Context, record []byte) error {
	if len(record) > sectionLimit {
		return fmt.Errorf("index: a record of %d bytes of pod %q, at most %d", len(record), w.of.id.Pod, sectionLimit)
	}
	if err := w.room(ctx, len(record)); err != nil {
		return err
	}
	w.open = append(w.open, record...)
	return nil
}

// room begins another section if the one that is filled has no room for so many bytes.
func (w *dumper) room(ctx context.Context, bytes int) error {
	if err := w.ended(ctx); err != nil {
		return err
	}
	if len(w.open) == 0 || len(w.open)+bytes <= w.size {
		return nil
	}
	w.full, w.open = append(w.full, w.open), nil
	if len(w.free) == 0 && (len(w.full) >= w.most || !w.take()) {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	w.open, w.free = w.free[len(w.free)-1], w.free[:len(w.free)-1]
	return nil
}

// take takes memory for another section, if there is room for it.
func (w *dumper) take() bool {
	g := w.g
	g.mu.Lock()
	defer g.mu.Unlock()
	ok := func() bool { return g.pages() > int64(w.size) }
	if w.taken == 0 { // what cannot be refused
		ok = func() bool { return g.budget-g.mem.Load() > g.slack/4+int64(w.size) }
	}
	if !g.makeRoom(nil, ok) {
		return false
	}
	g.addTables(w.size)
	w.taken += w.size
	w.free = append(w.free, make([]byte, 0, w.size))
	return true
}

// flush writes all sections that are full.
func (w *dumper) flush(ctx context.Context) error {
	for len(w.full) > 0 {
		if err := w.ended(ctx); err != nil {
			return err
		}
		if err := w.write(w.full[0]); err != nil {
			return err
		}
		w.free = append(w.free, w.full[0][:0])
		w.full = w.full[1:]
	}
	return nil
}

// end lets go of the dumping of a source, in steps.
func (w *dumper) end(s *source) {
	if w.of != s {
		w.of, w.note = s, nil
	}
	for more := true; more; {
		bury := false
		s.locked(func() {
			d := s.dump
			if more = d != nil; !more {
				return
			}
			d.end = true
			for n := someNotes; n > 0 && (len(w.note) > 0 || w.nextPiece(d)); n-- {
				keys, size := noteSize(w.note)
				w.unpin(keys)
				w.note = w.note[size:]
			}
			if len(w.note)+len(d.notes) > 0 {
				return
			}
			if d.cut {
				d.seen.Release()
			}
			d.grow(-d.bytes)
			s.dump, s.idle.order, bury, more = nil, nil, d.bury, false
		})
		if bury {
			w.m.bury(s)
		}
	}
}

// done lets go of all.
func (w *dumper) done() {
	if w.of != nil {
		w.end(w.of) // it has a piece in hand
	}
	for _, s := range w.sources {
		w.end(s)
	}
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	w.g.addTables(-w.taken)
	w.g.forest.EndDump()
	w.g.dumping = false
}
