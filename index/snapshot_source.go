package index

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
	"github.com/kvindex/kvindex/index/internal/record"
)

// sourceDump is the part of a source in a snapshot in progress. source.writer guards it, and
// ground.mu too if a method uses the forest.
type sourceDump struct {
	w     *dumper
	s     *source
	cut   bool // the cut was made
	clock uint32
	head  []byte
	// stores are the stores that waited at the cut. waits are the numbers of those that
	// waited for a parent, in their order.
	stores []waitingStore
	waits  []uint32

	order idleOrder

	at    uint64 // the position of the walk
	end   bool   // it is at the end
	seen  names.Table[Hash, uint32]
	notes [][]byte
	bytes int // of all but seen

	names   uint64 // how many were noted
	evicted uint64 // holdings that were left out
	doubts  bool   // the engine may hold some of them
	lost    [maxLanes]bool
	forgets uint32 // source.hidden.forgets, when it began
	bury    bool   // the source was removed, and is to be buried
}

// grow counts more bytes.
func (d *sourceDump) grow(bytes int) {
	d.bytes += bytes
	d.s.mem.Add(bytes)
}

// idleOrder numbers the queue of idle names, which the names do not show. Elements before
// next have their final numbers.
type idleOrder struct {
	of      *sourceDump
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

// appendHead appends the record that begins a source.
func (d *sourceDump) appendHead(b []byte) []byte {
	s := d.s
	b = append(b, tagSource)
	b = record.AppendText(record.AppendText(b, s.id.Pod), s.id.Model)
	b = binary.AppendVarint(b, int64(s.id.Rank))
	b = binary.LittleEndian.AppendUint32(b, s.f.Now())
	b = binary.LittleEndian.AppendUint32(b, s.cleared)
	b = binary.AppendUvarint(b, uint64(s.names.Len()))
	b = record.AppendBool(binary.AppendUvarint(b, s.evicted), s.doubts)
	for _, n := range s.counts.words()[:keptCounts] {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(s.cursors.all)))
	for i := range s.cursors.all {
		c := &s.cursors.all[i]
		b = binary.AppendUvarint(binary.AppendUvarint(record.AppendText(b, c.Stream), c.Epoch), c.Next)
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
		b = record.AppendBool(record.AppendBool(record.AppendBool(b, g.Draft), g.declared), g.uncounted)
		b = binary.AppendVarint(appendCut(b, g.cut), int64(g.grain))
	}
	lanes := []byte(nil)
	n := 0
	for i, g := range s.lanes.groups {
		for t, of := range g.lanes {
			for _, ln := range of {
				n++
				lanes = append(lanes, byte(ln.number), byte(i), byte(t)|ln.age<<ageShift)
				lanes = record.AppendBool(appendCut(lanes, ln.cut), s.f.Lost(ln.ord))
			}
		}
	}
	return append(binary.AppendUvarint(b, uint64(n)), lanes...)
}
