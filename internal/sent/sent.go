// Package sent keeps the prompts that were sent to holders, so that a score can find, for each
// holder, the longest beginning of its prompt that was sent to it.
//
// A prompt is a chain of [index.Key]. Each key of a chain is made of the key before it, so
// two chains with the same key at a position have the same keys at all positions before it.
// The package relies on this in three ways: a binary search finds how many keys two chains
// have in common, the last key of a common part stands for the whole part, and a table finds
// a node of a [Tree] by its first key.
//
// # The tree
//
// A node is a piece of chains, one key or more. Prompts that begin with the same keys share
// the nodes of these keys:
//
//	a b c d e     of holder 1      a b c ─┬─ d e          ends: a b c d e
//	a b c x y z   of holder 2             └─ x y z        ends: a b c x y z
//
// A node has the holders whose prompts go through it or end in it, and their numbers.
// A prompt ends at the end of a node, and a [Prompt] is this node. So a node that is split
// keeps its lower part, and a new node above it gets the upper part.
//
// A node is removed with its last prompt. A node in which no prompt ends and that has one child
// is merged with this child. So a Tree has at most two nodes for each of its prompts, whatever
// it had before.
package sent

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/kvindex/kvindex/index"
)

// Why one tree of all ranks. Equal prompts for many ranks have one chain, and a node has the
// ranks with prompts through it. So a score walks its own keys once, whatever the number
// of ranks and predictions, and finds the longest beginning for each rank. With a tree for each
// rank it would walk them 64 times for 64 pods. A table of all keys would need no walk, but
// takes a key, a rank and a count for each block: several times the bytes, and as many writes
// for each prompt.

// Holder is the number of a holder, one rank of a pod. The caller numbers holders.
type Holder uint32

// Tree has the prompts of holders. The zero value is empty. A Tree must not be copied.
//
// It is not safe for concurrent use. Bytes, Keys and Match change nothing, so goroutines may
// call these at the same time.
type Tree struct {
	root  node  // has no keys, no holders and no end; all top nodes are its children
	nodes table // all nodes but the root
	bytes int64 // of nodes, their keys and their holders
}

// Prompt is one prompt of one holder in a Tree. Prompts with the same keys may be equal. Add
// returns the zero value for a chain without keys: no prompt matches it, and Remove ignores it.
type Prompt struct {
	end *node // nil: no keys
}

// node is a piece of the chains of its holders' prompts.
type node struct {
	keys    []index.Key // at least one; an array of its own
	holders []share     // at least one; by the holder

	parent     *node
	child      *node // the first of its children
	prev, next *node // the other children of parent

	ends uint32   // how many prompts end here
	only [1]share // the array of holders while it is one
}

// share is how many prompts of a holder go through a node or end in it: at least one.
type share struct {
	holder  Holder
	prompts uint32
}

const (
	keyBytes   = int64(unsafe.Sizeof(index.Key(0)))
	shareBytes = int64(unsafe.Sizeof(share{}))

	// leastRoom is the least room of an array. Of less than 16 bytes Go's heap puts several into
	// one place, and the place stays as long as any of them.
	leastRoom = 2
)

// nodeBytes is the size of a node on Go's heap.
var nodeBytes = int64(cap(append([]byte(nil), make([]byte, unsafe.Sizeof(node{}))...)))

// Add adds a prompt of a holder. It copies keys. A prompt that is there already is added
// again, and has to be removed as often as it was added.
func (t *Tree) Add(h Holder, keys []index.Key) Prompt {
	if len(keys) == 0 {
		return Prompt{}
	}
	at := &t.root
	for len(keys) > 0 {
		n := t.nodes.find(at, keys[0])
		if n == nil {
			n = t.newNode(at, keys)
			t.link(n)
			t.nodes.put(n)
		}
		same := common(n.keys, keys)
		if same < len(n.keys) {
			n = t.split(n, same)
		}
		t.addHolder(n, h)
		at, keys = n, keys[same:]
	}
	at.ends++
	return Prompt{at}
}

// Remove removes a prompt that Add has returned for the holder. It must not be called more
// often than Add has returned that.
func (t *Tree) Remove(h Holder, p Prompt) {
	if p.end == nil {
		return
	}
	p.end.ends--
	lowest := p.end // of the nodes that stay
	for n := p.end; n != &t.root; n = n.parent {
		t.removeHolder(n, h)
		if len(n.holders) == 0 {
			t.nodes.take(n)
			t.unlink(n)
			t.free(n)
			lowest = n.parent
		}
	}
	// No other node has lost an end or a child.
	if c := lowest.child; lowest != &t.root && lowest.ends == 0 && c.next == nil {
		t.merge(lowest, c)
	}
}

// Keys appends the chain of a prompt to dst.
func (t *Tree) Keys(dst []index.Key, p Prompt) []index.Key {
	length := 0
	for n := p.end; n != nil; n = n.parent {
		length += len(n.keys)
	}
	dst = slices.Grow(dst, length)
	all := dst[len(dst) : len(dst)+length]
	for n := p.end; n != nil; n = n.parent {
		length -= len(n.keys)
		copy(all[length:], n.keys)
	}
	return dst[:len(dst)+len(all)]
}

// Match calls found once for each holder that has a prompt which begins as keys do: n is the
// most leading keys that one of its prompts has in common with keys, at least 1. From call
// to call n does not get smaller. Match does not allocate.
func (t *Tree) Match(keys []index.Key, found func(h Holder, n int)) {
	at, n := &t.root, 0
	for n < len(keys) {
		next := t.nodes.find(at, keys[n])
		if next == nil {
			break
		}
		at.without(next, n, found)
		at = next
		same := common(at.keys, keys[n:])
		n += same
		if same < len(at.keys) {
			break
		}
	}
	for _, s := range at.holders {
		found(s.holder, n)
	}
}

// Bytes returns how many bytes of heap the tree takes, beside the Tree itself.
func (t *Tree) Bytes() int64 { return t.bytes + t.nodes.bytes() }

// common returns how many leading keys two pieces have in common, of which the first key is
// the same.
func common(a, b []index.Key) int {
	same, most := 1, min(len(a), len(b))
	if a[most-1] == b[most-1] {
		return most
	}
	for most--; same < most; {
		if mid := (same + most) / 2; a[mid] == b[mid] {
			same = mid + 1
		} else {
			most = mid
		}
	}
	return same
}

// without calls found for the holders of a node that a child of it does not have.
func (n *node) without(child *node, keys int, found func(Holder, int)) {
	rest := child.holders
	if len(rest) == len(n.holders) {
		return
	}
	for _, s := range n.holders {
		if len(rest) > 0 && rest[0].holder == s.holder {
			rest = rest[1:]
			continue
		}
		found(s.holder, keys)
	}
}

// search returns where a holder is, or belongs, in the list of a node.
func (n *node) search(h Holder) (int, bool) {
	return slices.BinarySearchFunc(n.holders, h, func(s share, h Holder) int { return cmp.Compare(s.holder, h) })
}

func (t *Tree) addHolder(n *node, h Holder) {
	i, ok := n.search(h)
	if ok {
		n.holders[i].prompts++
		return
	}
	t.bytes -= n.holderBytes()
	if len(n.holders) == cap(n.holders) {
		n.setHolders(n.holders, max(len(n.holders)+1, 2*len(n.holders)))
	}
	n.holders = slices.Insert(n.holders, i, share{h, 1})
	t.bytes += n.holderBytes()
}

func (t *Tree) removeHolder(n *node, h Holder) {
	i, _ := n.search(h)
	if n.holders[i].prompts--; n.holders[i].prompts > 0 {
		return
	}
	n.holders = slices.Delete(n.holders, i, i+1)
	if 4*len(n.holders) <= cap(n.holders) {
		t.bytes -= n.holderBytes()
		n.setHolders(n.holders, len(n.holders))
		t.bytes += n.holderBytes()
	}
}

// setHolders copies a list, into an array with room for at least so many.
func (n *node) setHolders(list []share, room int) {
	to := n.only[:0]
	if room > len(n.only) {
		to = slices.Grow([]share(nil), max(room, leastRoom))
	}
	n.holders = append(to, list...)
}

// holderBytes returns the size of the list of holders outside the node.
func (n *node) holderBytes() int64 {
	if cap(n.holders) <= len(n.only) {
		return 0
	}
	return shareBytes * int64(cap(n.holders))
}

// copyKeys copies two pieces into one.
func (t *Tree) copyKeys(a, b []index.Key) []index.Key {
	keys := slices.Grow([]index.Key(nil), max(len(a)+len(b), leastRoom))
	t.bytes += keyBytes * int64(cap(keys))
	return append(append(keys, a...), b...)
}

// newNode returns a node that is not linked yet.
func (t *Tree) newNode(parent *node, keys []index.Key) *node {
	t.bytes += nodeBytes
	return &node{parent: parent, keys: t.copyKeys(keys, nil)}
}

// free subtracts a node from the bytes.
func (t *Tree) free(n *node) {
	t.bytes -= nodeBytes + keyBytes*int64(cap(n.keys)) + n.holderBytes()
}

// split moves the first keys of a node to a new one above it, and returns this one.
func (t *Tree) split(n *node, keys int) *node {
	upper := t.newNode(n.parent, n.keys[:keys])
	upper.setHolders(n.holders, len(n.holders))
	t.bytes += upper.holderBytes()
	t.nodes.replace(n, upper)
	t.unlink(n)
	t.link(upper)

	t.bytes -= keyBytes * int64(cap(n.keys))
	n.keys = t.copyKeys(n.keys[keys:], nil)
	n.parent = upper
	t.link(n)
	t.nodes.put(n)
	return upper
}

// merge moves the keys of a node to its only child. All prompts of the node are the child's.
func (t *Tree) merge(n, child *node) {
	t.nodes.take(child)
	t.unlink(n)
	t.nodes.replace(n, child)

	t.bytes -= keyBytes * int64(cap(child.keys))
	child.keys = t.copyKeys(n.keys, child.keys)
	child.parent = n.parent
	t.link(child)
	t.free(n)
}

// link makes a node a child of its parent.
func (t *Tree) link(n *node) {
	first := n.parent.child
	n.prev, n.next = nil, first
	if first != nil {
		first.prev = n
	}
	n.parent.child = n
}

func (t *Tree) unlink(n *node) {
	if n.next != nil {
		n.next.prev = n.prev
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		n.parent.child = n.next
	}
}
