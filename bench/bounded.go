package bench

import (
	"cmp"
	"container/heap"
	"sort"

	"github.com/kvindex/kvindex/index"
)

// Order is the order in which leaves are evicted.
type Order uint8

// The orders.
const (
	OldestUse    Order = iota // the least recently stored or requested first: an exact LRU
	FarthestNext              // the one whose next request is latest, or never comes: Belady's rule
)

// BoundedModel is a model of an index with room for a number of blocks. To make room, it
// evicts leaves for all their holders. A leaf is a block that no other block follows. The
// block before it inherits the later time of both. A store is dropped if the pod does not
// hold the parent in the model.
type BoundedModel struct {
	room   int
	order  Order
	uses   *Uses
	now    int
	root   node // before all chains; it is no block
	nodes  map[index.Hash]*node
	leaves leaves
}

// node is a block that somebody holds.
type node struct {
	hash     index.Hash
	parent   *node
	depth    int
	children int
	holders  uint64 // by pod
	at       int    // when it was used, or one that was behind it; of FarthestNext the request that did
	rank     int    // leaves of the lowest rank go first, of equal ranks the oldest
	place    int    // in the leaves; -1: it is none
}

// NewBoundedModel returns an empty BoundedModel, for 64 pods at most. Only FarthestNext needs
// uses: those of all requests.
func NewBoundedModel(room int, order Order, uses *Uses) *BoundedModel {
	return &BoundedModel{room: room, order: order, uses: uses, nodes: make(map[index.Hash]*node),
		root: node{depth: -1, holders: ^uint64(0), place: -1}}
}

// Len returns the number of blocks.
func (b *BoundedModel) Len() int { return len(b.nodes) }

// Do does an operation, which must be one of Play. For a score it returns the number of
// leading blocks that the pod that serves the request holds in the model.
func (b *BoundedModel) Do(op *Op) int {
	b.now++
	switch op.Kind {
	case OpScore:
		return b.score(op)
	case OpStore:
		b.store(op)
	case OpRemove:
		for _, h := range op.Hashes {
			if n := b.nodes[h]; n != nil {
				if n.holders &^= 1 << op.Pod; n.holders == 0 {
					b.drop(n)
				}
			}
		}
	}
	return 0
}

// score searches by halves: nobody holds a block without the one before it.
func (b *BoundedModel) score(op *Op) int {
	held := func(by uint64) int {
		return sort.Search(len(op.Keys), func(i int) bool {
			n := b.nodes[HashOf(op.Keys[i])]
			return n == nil || n.holders&by == 0
		})
	}
	if n := held(^uint64(0)); n > 0 {
		b.touch(b.nodes[HashOf(op.Keys[n-1])], op)
	}
	return held(1 << op.Pod)
}

func (b *BoundedModel) store(op *Op) {
	last := &b.root
	if op.Store.HasParent {
		if last = b.nodes[op.Store.Parent]; last == nil || last.holders&(1<<op.Pod) == 0 {
			return
		}
	}
	for _, h := range op.Store.Hashes {
		n := b.nodes[h]
		if n == nil {
			n = &node{hash: h, parent: last, depth: last.depth + 1, place: -1}
			b.nodes[h] = n
			if last.place >= 0 {
				heap.Remove(&b.leaves, last.place)
			}
			last.children++
		}
		n.holders |= 1 << op.Pod
		last = n
	}
	b.touch(last, op)
	for len(b.nodes) > b.room {
		b.drop(b.leaves[0])
	}
}

// touch records that a block was used. The blocks before it were used, too: they get the
// time when the block is evicted.
func (b *BoundedModel) touch(n *node, op *Op) {
	if b.order == FarthestNext {
		b.date(n, op.Request)
	} else {
		b.date(n, b.now)
	}
}

func (b *BoundedModel) date(n *node, at int) {
	n.at = max(n.at, at)
	n.rank = n.at
	if b.order == FarthestNext {
		n.rank = -b.uses.next(n.at, n.depth)
	}
	switch {
	case n.children > 0:
	case n.place < 0:
		heap.Push(&b.leaves, n)
	default:
		heap.Fix(&b.leaves, n.place)
	}
}

// drop forgets a leaf.
func (b *BoundedModel) drop(n *node) {
	heap.Remove(&b.leaves, n.place)
	delete(b.nodes, n.hash)
	if n.parent.children--; n.parent != &b.root {
		b.date(n.parent, n.at)
	}
}

// leaves is a heap of the nodes without children.
type leaves []*node

// Len implements heap.Interface.
func (l leaves) Len() int { return len(l) }

// Less implements heap.Interface.
func (l leaves) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].rank, l[j].rank), cmp.Compare(l[i].at, l[j].at)) < 0
}

// Swap implements heap.Interface.
func (l leaves) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

// Push implements heap.Interface.
func (l *leaves) Push(n any) {
	n.(*node).place = len(*l)
	*l = append(*l, n.(*node))
}

// Pop implements heap.Interface.
func (l *leaves) Pop() any {
	n := (*l)[len(*l)-1]
	n.place = -1
	*l = (*l)[:len(*l)-1]
	return n
}

// Uses has, for the blocks of each request, the next request for them. Its zero value is
// ready.
type Uses struct {
	last map[index.Key]int32 // by block: the last request for it
	// runs has of each request the runs that its blocks fall into, by the next
	// request for them. The blocks behind the last run are not requested again.
	runs [][]run
}

// run ends before block end. request is the next one for its blocks.
type run struct{ end, request int32 }

// Add records the scores of Play, in their order.
func (u *Uses) Add(op *Op) {
	if u.last == nil {
		u.last = make(map[index.Key]int32)
	}
	u.runs = append(u.runs, nil)
	now := int32(op.Request)
	for i, k := range op.Keys {
		if before, ok := u.last[k]; ok {
			// The last request for a block had those before it too, so the
			// runs of a request grow at their end only.
			runs := &u.runs[before]
			if n := len(*runs); n == 0 || (*runs)[n-1].request != now {
				*runs = append(*runs, run{request: now})
			}
			(*runs)[len(*runs)-1].end = int32(i + 1)
		}
		u.last[k] = now
	}
}

// never is later than all requests.
const never = 1 << 30

// next returns the next request for the block of a request at a depth, or never.
func (u *Uses) next(request, depth int) int {
	runs := u.runs[request]
	i := sort.Search(len(runs), func(i int) bool { return int(runs[i].end) > depth })
	if i == len(runs) {
		return never
	}
	return int(runs[i].request)
}
