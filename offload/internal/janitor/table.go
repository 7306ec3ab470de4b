package janitor

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
	"time"

	"github.com/kvindex/kvindex/offload/internal/queues"
)

// Order selects the block that goes first.
type Order string

// The orders, which are those of package offload.
const (
	LRU    Order = "lru"    // the one that was read or written longest ago
	FIFO   Order = "fifo"   // the one that was written longest ago
	S3FIFO Order = "s3fifo" // of those that were not read, or not again, the one that came longest ago
)

// key names a block. A chunk of several blocks of the engine is one block here.
type key struct {
	hashOf
	space uint16 // number of the folder
	group uint16
}

// block has the state of a block's files, of which there is one at least. Its size counts:
// TestBytes.
type block struct {
	key
	reported bool       // as stored
	queued   bool       // in table.queues
	size     int64      // bytes of all files
	used     int64      // Unix ns: the last write or read of any file
	written  int64      // Unix ns: the last write of any file
	ranks    *rankFiles // nil: rank 0 alone
	pos      uint32     // in table.heap
	zero     bool       // the file of rank 0 is there; without ranks
	seen     bool       // in this scan
	read     bool       // since S3-FIFO looked at it last
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

	queues *queues.S3FIFO // nil: another order
	fresh  []uint32       // slots to be queued by arrange
}

// The settings of S3-FIFO. A janitor sees one use at most between two looks.
const (
	smallShare = 10 // the small queue has one of so many blocks
	promoteAt  = 1
	ghosts     = 1 << 17
)

func newTable(order Order, young time.Duration) *table {
	t := &table{order: order, young: int64(young), seed: maphash.MakeSeed(), index: make([]uint32, 64)}
	if order == S3FIFO {
		t.queues = queues.NewS3FIFO(0, ghosts)
		t.queues.PromoteAt = promoteAt
		t.queues.Key = func(slot uint32) []byte { return t.at(slot).appendTo(nil) }
	}
	return t
}

func (t *table) at(slot uint32) *block { return &t.slabs[slot/slabBlocks][slot%slabBlocks] }

func (t *table) len() int { return len(t.heap) }

// all has all blocks. The one that comes may be removed.
func (t *table) all() iter.Seq[uint32] { return slices.Values(slices.Clone(t.heap)) }

func (t *table) home(k *key) int {
	var b [maxHashBytes + 4]byte
	return int(maphash.Bytes(t.seed, k.appendTo(b[:0])) & uint64(len(t.index)-1))
}

func (k *key) appendTo(b []byte) []byte {
	return append(append(b, k.digits[:]...), byte(k.space), byte(k.space>>8), byte(k.group), byte(k.group>>8))
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
	if len(t.fresh) > t.len()+slabBlocks { // where no candidate is asked for, blocks come and go
		t.arrange()
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
	if t.queues != nil {
		t.fresh = append(t.fresh, slot)
	}
	return slot
}

// arrange queues what was added, in the order of writes.
func (t *table) arrange() {
	if len(t.fresh) == 0 {
		return
	}
	t.queues.Grow(len(t.slabs) * slabBlocks)
	fresh := slices.DeleteFunc(t.fresh, func(slot uint32) bool { return t.at(slot).length == 0 || t.at(slot).queued })
	slices.SortFunc(fresh, func(x, y uint32) int {
		a, b := t.at(x), t.at(y)
		return cmp.Or(cmp.Compare(a.written, b.written), compareKeys(&a.key, &b.key))
	})
	for _, slot := range fresh {
		if b := t.at(slot); !b.queued { // a slot that was free meanwhile is there twice
			b.queued = true
			t.queues.Insert(slot)
		}
	}
	t.fresh = nil
}

// candidate returns the block to look at next in the order S3FIFO.
func (t *table) candidate(w *queues.Walk, now int64) (slot uint32, ok bool) {
	t.arrange()
	t.queues.Share = t.len() / smallShare
	for slot, ok = t.queues.Next(w); ok && now < t.at(slot).written+t.young; slot, ok = t.queues.Next(w) {
		t.queues.Pass(w, slot)
	}
	return slot, ok
}

// stays reports whether a block stays that candidate has returned, and that may have been read or
// written since.
func (t *table) stays(w *queues.Walk, slot uint32, now int64) bool {
	b := t.at(slot)
	if now < b.written+t.young {
		t.queues.Pass(w, slot)
		return true
	}
	if b.read {
		b.read = false
		t.queues.Touch(slot)
	}
	return t.queues.Stays(w, slot)
}

func (t *table) remove(slot uint32) {
	b := t.at(slot)
	if b.queued {
		t.queues.Evict(slot)
	}
	i, mask := t.place(&b.key), len(t.index)-1
	// The entries that follow in the row move up, unless its home is behind the gap.
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

// put records that the file of a rank is there.
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
	b.read = b.read || used > b.used && used > written
	b.written, b.used = max(b.written, written), max(b.used, used)
	t.fix(slot)
}

// postpone puts a block behind all others.
func (t *table) postpone(slot uint32, now int64) {
	b := t.at(slot)
	b.written, b.used = max(b.written, now), max(b.used, now)
	t.fix(slot)
}

// drop records that the file of a rank is not there. A block without files is removed.
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
	return compareKeys(&a.key, &b.key) < 0
}

func compareKeys(a, b *key) int {
	return cmp.Or(bytes.Compare(a.hash(), b.hash()), cmp.Compare(a.group, b.group), cmp.Compare(a.space, b.space))
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
