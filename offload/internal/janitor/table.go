package janitor

import (
	"bytes"
	"hash/maphash"
	"iter"
	"slices"
	"time"
)

// Order says which block goes first.
type Order string

// The orders of the store of package offload that need no more than times.
const (
	LRU  Order = "lru"  // the one that was read or written longest ago
	FIFO Order = "fifo" // the one that was written longest ago
)

// key names a block. A chunk of several blocks of the engine is one block here.
type key struct {
	hashOf
	space uint16 // number of the folder
	group uint16
}

// block is what is known of a block's files, of which there is one at least. Its size counts:
// TestBytes.
type block struct {
	key
	told    bool       // as stored
	size    int64      // bytes of all files
	used    int64      // Unix ns: the last write or read of any file
	written int64      // Unix ns: the last write of any file
	ranks   *rankFiles // nil: rank 0 alone
	pos     uint32     // in table.heap
	zero    bool       // the file of rank 0 is there; unless ranks says so
	seen    bool       // in this scan
}

// rankFiles are the files of a block that has, or had, one of a rank above 0.
type rankFiles struct {
	have, seen uint64 // bits of ranks
	bytes      []int64
}

const slabBlocks = 1 << 12

// table has all blocks of a root. Its heap has exactly the blocks of its index, and that
// which goes first on top. One goroutine uses it.
type table struct {
	order Order
	young int64 // ns that a block stays after it was written
	seed  maphash.Seed
	slabs []*[slabBlocks]block
	free  []uint32 // slots below next that have no block
	next  uint32
	index []uint32 // open addressing, linear probing: slot + 1, or 0; a power of two long
	heap  []uint32
	size  int64 // of all blocks
}

func newTable(order Order, young time.Duration) *table {
	return &table{order: order, young: int64(young), seed: maphash.MakeSeed(), index: make([]uint32, 64)}
}

func (t *table) at(slot uint32) *block { return &t.slabs[slot/slabBlocks][slot%slabBlocks] }

func (t *table) len() int { return len(t.heap) }

// all has all blocks. The one that comes may be removed.
func (t *table) all() iter.Seq[uint32] { return slices.Values(slices.Clone(t.heap)) }

func (t *table) home(k *key) int {
	var h maphash.Hash
	h.SetSeed(t.seed)
	h.Write(k.digits[:])
	h.WriteByte(byte(k.space))
	h.WriteByte(byte(k.space >> 8))
	h.WriteByte(byte(k.group))
	h.WriteByte(byte(k.group >> 8))
	return int(h.Sum64() & uint64(len(t.index)-1))
}

// place returns where a key is in the index, or the empty place where it would be.
func (t *table) place(k *key) int {
	i := t.home(k)
	for t.index[i] != 0 && t.at(t.index[i]-1).key != *k {
		i = (i + 1) & (len(t.index) - 1)
	}
	return i
}

func (t *table) find(k *key) (uint32, bool) {
	p := t.index[t.place(k)]
	return p - 1, p != 0
}

// add returns the slot of a key, which it adds without files if it is not there. The caller
// adds a file, or removes the slot.
func (t *table) add(k *key) uint32 {
	if slot, ok := t.find(k); ok {
		return slot
	}
	if 4*(t.len()+1) > 3*len(t.index) {
		t.index = make([]uint32, 2*len(t.index))
		for _, slot := range t.heap {
			t.index[t.place(&t.at(slot).key)] = slot + 1
		}
	}
	slot := t.next
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if t.next%slabBlocks == 0 {
			t.slabs = append(t.slabs, new([slabBlocks]block))
		}
		t.next++
	}
	*t.at(slot) = block{key: *k, pos: uint32(len(t.heap))}
	t.index[t.place(k)] = slot + 1
	t.heap = append(t.heap, slot)
	t.up(t.len() - 1)
	return slot
}

func (t *table) remove(slot uint32) {
	b := t.at(slot)
	i, mask := t.place(&b.key), len(t.index)-1
	// What follows in the row moves up, unless its home is behind the gap.
	for j := (i + 1) & mask; t.index[j] != 0; j = (j + 1) & mask {
		home := t.home(&t.at(t.index[j] - 1).key)
		if (j-home)&mask >= (j-i)&mask {
			t.index[i], i = t.index[j], j
		}
	}
	t.index[i] = 0
	t.size -= b.size
	p, last := int(b.pos), t.len()-1
	t.swap(p, last)
	t.heap = t.heap[:last]
	if p < last {
		t.fix(t.heap[p])
	}
	*b = block{}
	t.free = append(t.free, slot)
}

// put says that the file of a rank is there.
func (t *table) put(slot uint32, rank int, bytes, written, used int64) {
	b := t.at(slot)
	if rank > 0 && b.ranks == nil {
		b.ranks = &rankFiles{bytes: []int64{b.size}}
		if b.zero {
			b.ranks.have = 1
		}
		if b.seen {
			b.ranks.seen = 1
		}
	}
	before := b.size
	if b.ranks == nil {
		b.size, b.zero, b.seen = bytes, true, true
	} else {
		for len(b.ranks.bytes) <= rank {
			b.ranks.bytes = append(b.ranks.bytes, 0)
		}
		b.size += bytes - b.ranks.bytes[rank]
		b.ranks.bytes[rank] = bytes
		b.ranks.have |= 1 << rank
		b.ranks.seen |= 1 << rank
	}
	t.size += b.size - before
	b.written, b.used = max(b.written, written), max(b.used, used)
	t.fix(slot)
}

// postpone puts a block behind all others.
func (t *table) postpone(slot uint32, now int64) {
	b := t.at(slot)
	b.written, b.used = max(b.written, now), max(b.used, now)
	t.fix(slot)
}

// drop says that the file of a rank is not there. A block without files is removed.
func (t *table) drop(slot uint32, rank int) {
	b := t.at(slot)
	if b.ranks == nil {
		if rank == 0 {
			t.remove(slot)
		}
		return
	}
	if rank < len(b.ranks.bytes) {
		b.size -= b.ranks.bytes[rank]
		t.size -= b.ranks.bytes[rank]
		b.ranks.bytes[rank] = 0
	}
	b.ranks.have &^= 1 << rank
	if b.ranks.have == 0 {
		t.remove(slot)
	}
}

// have has a bit for each rank whose file is there.
func (b *block) have() uint64 {
	switch {
	case b.ranks != nil:
		return b.ranks.have
	case b.zero:
		return 1
	}
	return 0
}

// unsee begins a scan.
func (t *table) unsee() {
	for slot := range t.all() {
		b := t.at(slot)
		b.seen = false
		if b.ranks != nil {
			b.ranks.seen = 0
		}
	}
}

// unseen has a bit for each rank whose file was not seen since unsee.
func (b *block) unseen() uint64 {
	switch {
	case b.ranks != nil:
		return b.ranks.have &^ b.ranks.seen
	case b.seen:
		return 0
	}
	return b.have()
}

// first returns the block that goes first.
func (t *table) first() (uint32, bool) {
	if t.len() == 0 {
		return 0, false
	}
	return t.heap[0], true
}

// time is what the order goes by: the end of the time that a block stays in any case is a
// use of it. So if the first block may not go yet, none may.
func (t *table) time(b *block) int64 {
	if t.order == FIFO {
		return b.written + t.young
	}
	return max(b.used, b.written+t.young)
}

// less orders blocks of one time by their keys, so that all tables of the same blocks have
// one order.
func (t *table) less(x, y uint32) bool {
	a, b := t.at(x), t.at(y)
	if ta, tb := t.time(a), t.time(b); ta != tb {
		return ta < tb
	}
	if c := bytes.Compare(a.hash(), b.hash()); c != 0 {
		return c < 0
	}
	return a.group < b.group || a.group == b.group && a.space < b.space
}

func (t *table) swap(i, j int) {
	h := t.heap
	h[i], h[j] = h[j], h[i]
	t.at(h[i]).pos, t.at(h[j]).pos = uint32(i), uint32(j)
}

func (t *table) up(i int) {
	for i > 0 && t.less(t.heap[i], t.heap[(i-1)/2]) {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

// fix moves a block whose time has changed.
func (t *table) fix(slot uint32) {
	i := int(t.at(slot).pos)
	t.up(i)
	for i = int(t.at(slot).pos); ; {
		child := 2*i + 1
		if child+1 < t.len() && t.less(t.heap[child+1], t.heap[child]) {
			child++
		}
		if child >= t.len() || !t.less(t.heap[child], t.heap[i]) {
			return
		}
		t.swap(i, child)
		i = child
	}
}
