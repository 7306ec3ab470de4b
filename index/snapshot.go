package index

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
	"github.com/kvindex/kvindex/index/internal/record"
)

// A snapshot is written pod by pod. It shows a pod as it was at one moment, its cut, and
// nobody waits for more than a step of some hundred names.
//
// # The names at the cut
//
// At the cut, the small parts of a source are noted: cursors, groups, lanes, the stores that
// wait. The names follow: after the cut, a walk goes through the tables of names in the
// order of their positions, in steps. A writer that comes to a name which the walk has not
// reached (source.name) first notes the name as it is, and marks it as noted. So the first
// note of a name is its state at the cut. The walk notes the names that are not marked. A
// writer that makes a new name marks it too, so the walk skips it.
//
//	   walk ->                 d.at
//	┌───────────────────────────┬──────────────────────────────┐ positions
//	│ written: changes go on    │ a change notes the name first│
//	└───────────────────────────┴──────────────────────────────┘
//
// A note pins its places, and has no records of slabs, so that it costs a writer little,
// however long the chain before the place is. The dumper makes records of the notes, a few
// at a time, slabs before the names that are there.
//
// Pinned places cannot be evicted. A block that was evicted between the cut and its note
// is left out of the snapshot, and counts as evicted there.
//
// # Idle names
//
// The order of the queue is not in the names. So before the cut the queue is numbered,
// in steps, and names that become idle later get higher numbers.
//
// # Who waits for whom
//
// The dumper fills sections while it holds locks, and writes them while it holds none. It
// fills up to maxAhead bytes of them before it writes the first, so that a pod of some
// million blocks is read at once even if the write function hangs. Beyond that the walk
// waits, and notes pile up: at a bound the dumper gives the snapshot up. Readers forget a
// pod that is removed meanwhile at once, and its memory goes when the pod is written.
//
// # Why so
//
// A snapshot that writes names again which change behind the walk needs rounds that may not
// come to an end, and has sections that contradict each other: one key at two places, names
// that were forgotten. A copy of a segment of names at its first change makes one store of
// 512 blocks pay for 512 segments.
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

	// keptCounts is how many counters a record of a source has: all but Aged, which is 0 while
	// no Apply is in progress.
	keptCounts = unsafe.Sizeof(Counts{})/8 - 1
	// ageShift is where the age of a lane stands in the byte of its tier.
	ageShift = 4
	// sectionLimit bounds the bytes of a section.
	sectionLimit = 4 << 20
	// someHashes bounds the hashes of a record.
	someHashes = 1 << 8
)

const (
	// minSection and maxSection bound the bytes of a section in memory, and maxAhead
	// those of all sections that wait until they are written. Parts of the budget bound
	// them too, and the notes.
	minSection  = 8 << 10
	maxSection  = 1 << 20
	maxAhead    = 32 << 20
	sectionPart = 512
	aheadPart   = 64
	notesPart   = 8
	// notePiece is how many bytes of notes are allocated at once.
	notePiece = 8 << 10
	// someNotes and someSlabs bound the records of a step.
	someNotes = 512
	someSlabs = 8
	// recordRoom is the free bytes that a section needs for a name and some slabs.
	recordRoom = someSlabs*forest.DumpBytes + 4<<10
	// someIdle is how many idle names are numbered in a step.
	someIdle = 1 << 12
	newIdle  = 1 << 31 // the first number of names that become idle meanwhile
)

// dumper writes a snapshot.
type dumper struct {
	sections
	sources []*source
	written uint64 // sources

	// The source that is written.
	of     *source
	sets   map[string]byte // by their lanes
	last   []byte          // the lanes of the set of the last name
	set    byte            // the number of that set
	lanes  []byte          // of a name
	note   []byte          // the rest of a piece
	refs   []uint32
	picked []names.Picked[Hash]
	locs   []loc

	noted    int // bytes of notes; guarded by ground.mu
	notesMax int
	overflow bool
}

// Snapshot passes the contents of the index to write, in sections of at most sectionLimit
// bytes, which only Restore reads. Snapshot holds no lock while write runs. It calls cut
// once for each pod. cut calls its function once, at a moment at which no message of that
// pod is being applied: that moment is the one that the snapshot shows. The function writes
// nothing, and takes at most some ms.
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
	w := &dumper{sections: sections{m: m, g: g, write: write}}
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

// locked calls f with the locks of a source, and lets others that wait for the locks go on
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
			d := &sourceDump{w: w, s: s, forgets: s.hidden.forgets}
			d.order = idleOrder{of: d, next: s.idle.first, late: newIdle}
			d.grow(mem.SizeOf[sourceDump]())
			s.dump, s.idle.order = d, &d.order
			w.sources = append(w.sources, s)
		}
		more = s.dump.order.count(&s.idle, most)
	})
	return more
}

// cut notes everything but the names. It returns false for a source that was removed.
func (w *dumper) cut(s *source) (ok bool) {
	s.locked(func() {
		d := s.dump
		if d == nil || s.removed.Load() {
			return
		}
		ok, d.cut, s.idle.order = true, true, nil
		d.clock = s.f.Now()
		d.seen.Init(s.names.Salt(), s.mem)
		d.head = d.appendHead(nil)
		numbers := make([]uint32, len(s.waits.slots))
		for p := s.waits.oldest; p != nil; p = p.newer {
			numbers[p.number] = uint32(len(d.stores))
			d.stores = append(d.stores, *p)
			d.stores[len(d.stores)-1].riches = slices.Clone(p.riches)
		}
		s.waits.eachParent(func(first uint32) {
			for i := first; i != 0; i = s.waits.slots[i].p.nextWait {
				d.waits = append(d.waits, numbers[i])
			}
		})
		d.grow(cap(d.head) + s.waits.bytes() + 4*cap(d.waits))
	})
	return ok
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
	tail = record.AppendBool(binary.AppendUvarint(tail, d.evicted), d.doubts)
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

// walk notes the names of the next segment that are not marked. It makes a record of a plain
// name at once if the slab has a record.
func (w *dumper) walk(d *sourceDump) {
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

// direct makes a record of a plain name, if no other record has to come first.
func (w *dumper) direct(d *sourceDump, h Hash, l loc) bool {
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

// end releases the sourceDump of a source, in steps.
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

// done releases everything.
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
