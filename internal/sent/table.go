package sent

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index"
)

// table finds the nodes of a tree by their parents and first keys. The zero value is empty.
// A map would not shrink, and would not report its bytes.
//
// It has open addressing: a node is in its home or after it, and no slot between is free.
type table struct {
	slots []slot           // none without nodes; else at least a quarter is free
	used  int              // slots with a node
	least [leastSlots]slot // the array of slots while these are enough
}

// slot is free if it has no node.
type slot struct {
	first index.Key
	node  *node
}

// leastSlots is how many slots a table has for one node.
const leastSlots = 4

// bytes returns the size of the slots outside the table.
func (t *table) bytes() int64 {
	if len(t.slots) <= leastSlots {
		return 0
	}
	return int64(cap(t.slots)) * int64(unsafe.Sizeof(slot{}))
}

// home returns the slot at which the search for a key begins.
func (t *table) home(first index.Key) int {
	hi, _ := bits.Mul64(uint64(first)*0x9e3779b97f4a7c15, uint64(len(t.slots)))
	return int(hi)
}

func (t *table) after(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

// find returns the child of a node that begins with a key, or nil.
func (t *table) find(parent *node, first index.Key) *node {
	if t.used == 0 {
		return nil
	}
	for i := t.home(first); t.slots[i].node != nil; i = t.after(i) {
		if s := &t.slots[i]; s.first == first && s.node.parent == parent {
			return s.node
		}
	}
	return nil
}

// slotOf returns where a node is.
func (t *table) slotOf(n *node) int {
	i := t.home(n.keys[0])
	for t.slots[i].node != n {
		i = t.after(i)
	}
	return i
}

// put adds a node.
func (t *table) put(n *node) {
	if t.used++; 4*t.used > 3*len(t.slots) {
		t.resize(max(2*len(t.slots), leastSlots))
	}
	t.place(slot{n.keys[0], n})
}

func (t *table) place(s slot) {
	i := t.home(s.first)
	for t.slots[i].node != nil {
		i = t.after(i)
	}
	t.slots[i] = s
}

// replace puts a node with the same first key into the slot of another.
func (t *table) replace(n, by *node) { t.slots[t.slotOf(n)].node = by }

// take removes a node. The nodes after it move up, so that no free slot is between a node and
// its home.
func (t *table) take(n *node) {
	free := t.slotOf(n)
	for i := t.after(free); t.slots[i].node != nil; i = t.after(i) {
		if t.distance(t.home(t.slots[i].first), i) >= t.distance(free, i) {
			t.slots[free] = t.slots[i]
			free = i
		}
	}
	t.slots[free] = slot{}
	if t.used--; t.used == 0 {
		t.slots = nil
	} else if 8*t.used < len(t.slots) {
		t.resize(len(t.slots) / 2)
	}
}

// distance returns how many steps of after lead from a slot to another.
func (t *table) distance(from, to int) int {
	if to < from {
		to += len(t.slots)
	}
	return to - from
}

// resize moves all nodes to at least so many slots: as many as Go's heap allocates anyway.
func (t *table) resize(slots int) {
	old := t.slots
	t.slots = t.least[:]
	if slots > leastSlots {
		t.slots = slices.Grow([]slot(nil), slots)
		t.slots = t.slots[:cap(t.slots)]
	}
	for _, s := range old {
		if s.node != nil {
			t.place(s)
		}
	}
	clear(old)
}
