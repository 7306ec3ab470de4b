// Long words are merged in batches: the order of a heap, at a cost in proportion to the
// merges. mergeLong has the proof.

package tokenize

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// A pair is stored in one word: 21 bits for each of its two, then its value plus
// one, so that zero is an empty slot.
const (
	idBits   = 21
	rankBits = 64 - 2*idBits
	rankMask = 1<<rankBits - 1
)

// noMerge is the rank of a pair that does not merge: after all others.
const noMerge = ^uint32(0)

// A pairTable maps pairs of numbers of idBits to values of rankBits: a hash table
// with linear probing, at most three quarters full. It is read-only once made.
type pairTable struct {
	slots []uint64 // length a power of two
	seed  uint64   // random, so that no file can choose where its pairs fall
}

func newPairTable(n int) pairTable {
	return pairTable{slots: make([]uint64, 1<<bits.Len(uint(n+n/3))), seed: rand.Uint64()}
}

func pairKey(a, b uint32) uint64 { return uint64(a)<<idBits | uint64(b) }

// slot returns the slot where the search for key begins.
func (t *pairTable) slot(key uint64) uint64 {
	hi, lo := bits.Mul64(key^t.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// set gives the pair a value; the last one counts.
func (t *pairTable) set(a, b, value uint32) {
	key := pairKey(a, b)
	mask := uint64(len(t.slots) - 1)
	h := t.slot(key)
	for t.slots[h&mask] != 0 && t.slots[h&mask]>>rankBits != key {
		h++
	}
	t.slots[h&mask] = key<<rankBits | uint64(value+1)
}

// value returns the pair's value, noMerge for none.
func (t *pairTable) value(a, b uint32) uint32 {
	key := pairKey(a, b)
	mask := uint64(len(t.slots) - 1)
	for h := t.slot(key); ; h++ {
		s := t.slots[h&mask]
		if s == 0 || s>>rankBits == key {
			return uint32(s&rankMask) - 1 // an empty slot wraps to noMerge
		}
	}
}

// A mergeTable maps pairs of ids to the ranks of their merges.
type mergeTable struct {
	ranks  pairTable
	result []uint32 // by rank: the id that the pair becomes
}

// newMergeTable returns a table for n pairs of as many ranks.
func newMergeTable(n int) *mergeTable {
	return &mergeTable{ranks: newPairTable(n), result: make([]uint32, 0, n)}
}

// add gives the pair the next rank. Of two merges of one pair the last counts.
func (t *mergeTable) add(a, b, result uint32) {
	t.ranks.set(a, b, uint32(len(t.result)))
	t.result = append(t.result, result)
}

// rank returns the rank of the pair's merge, noMerge for none.
func (t *mergeTable) rank(a, b uint32) uint32 { return t.ranks.value(a, b) }

func (t *mergeTable) size() int { return 8*cap(t.ranks.slots) + 4*cap(t.result) }

// A mergeList has the merges of a file, by rank, as pairs of tokens' texts.
type mergeList struct {
	text    []byte
	lengths []uint16 // of the two texts of each merge
}

func (l *mergeList) len() int { return len(l.lengths) / 2 }

// each calls f with the two texts of each merge.
func (l *mergeList) each(f func(i int, a, b []byte) error) error {
	from := 0
	for i := range l.len() {
		mid := from + int(l.lengths[2*i])
		to := mid + int(l.lengths[2*i+1])
		if err := f(i, l.text[from:mid], l.text[mid:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// resolve makes the table.
func (l *mergeList) resolve(v *vocab) (*mergeTable, error) {
	t := newMergeTable(l.len())
	var joined []byte
	err := l.each(func(i int, a, b []byte) error {
		joined = append(append(joined[:0], a...), b...)
		left, ok1 := v.id(a)
		right, ok2 := v.id(b)
		result, ok3 := v.id(joined)
		if !ok1 || !ok2 || !ok3 {
			return malformed("merges: %d, %.60q and %.60q: they or their result are not in the vocabulary", i, a, b)
		}
		t.add(left, right, result)
		return nil
	})
	return t, err
}

// haveBytes reports whether a merge has a token that a byte falls back to.
func (l *mergeList) haveBytes() bool {
	isByte := func(s []byte) bool { return len(s) == len("<0x00>") && bytes.HasPrefix(s, []byte("<0x")) }
	found := false
	_ = l.each(func(_ int, a, b []byte) error {
		found = found || isByte(a) || isByte(b)
		return nil
	})
	return found
}

// readMerges reads the merges, which come in two forms: "a b" and ["a", "b"].
func readMerges(s *stream) (*mergeList, error) {
	if s.peek() != '[' {
		return nil, malformed("model: field \"merges\" is not an array")
	}
	l := new(mergeList)
	form := byte(0) // the first byte of each merge
	err := s.elements(func() error {
		if form == 0 {
			form = s.peek()
		}
		if s.peek() != form {
			return malformed("merges: %d is not in the form of those before it", l.len())
		}
		if l.len() == maxMerges {
			return malformed("merges: more than %d", maxMerges)
		}
		switch form {
		case '"':
			return l.readLine(s)
		case '[':
			return l.readPair(s)
		}
		return l.notAPair()
	})
	return l, err
}

func (l *mergeList) notAPair() error { return malformed("merges: %d is not a pair of tokens", l.len()) }

// readLine reads "a b". It passes over the version line that merges.txt begins
// with and that old files still have.
func (l *mergeList) readLine(s *stream) (err error) {
	from := len(l.text)
	if l.text, err = s.text(l.text, 2*maxToken+1); err != nil {
		return err
	}
	line := l.text[from:]
	if bytes.HasPrefix(line, []byte("#version")) {
		l.text = l.text[:from]
		return nil
	}
	space := bytes.IndexByte(line, ' ')
	if space < 0 || bytes.IndexByte(line[space+1:], ' ') >= 0 {
		return l.notAPair()
	}
	l.text = slices.Delete(l.text, from+space, from+space+1)
	return l.close(space, len(line)-space-1)
}

// readPair reads ["a", "b"].
func (l *mergeList) readPair(s *stream) error {
	n := 0
	var lengths [2]int
	err := s.elements(func() (err error) {
		if n == 2 || s.peek() != '"' {
			return l.notAPair()
		}
		from := len(l.text)
		l.text, err = s.text(l.text, maxToken)
		lengths[n] = len(l.text) - from
		n++
		return err
	})
	if err != nil {
		return err
	}
	return l.close(lengths[0], lengths[1])
}

// close makes a merge of what was appended to l.text.
func (l *mergeList) close(a, b int) error {
	if a == 0 || b == 0 || a > maxToken || b > maxToken {
		return l.notAPair()
	}
	l.lengths = append(l.lengths, uint16(a), uint16(b))
	return nil
}

// longPiece is the number of bytes from which the lists beat the loop.
const longPiece = 64

// A mergeScratch is the memory that pieces are merged in.
type mergeScratch struct {
	call
	ids   []uint32
	ranks []uint32
	lists pairLists
}

func (w *mergeScratch) bytes() int {
	l := &w.lists
	return 4*(cap(w.ids)+cap(w.ranks)+cap(l.heads)+cap(l.ranks)+cap(l.taken)) + 24*(cap(l.symbols)+cap(l.batches))
}

// merge does what merge_all does in tokenizers 0.23.2, models/bpe/word.rs.
// It applies merges to w.ids, the ids of a piece's bytes, the lowest rank
// first and of equal ranks the leftmost, until none applies. The ids that are
// left are returned; they stay w's.
func (t *mergeTable) merge(w *mergeScratch) ([]uint32, error) {
	if len(w.ids) < longPiece {
		return t.mergeShort(w), nil
	}
	return t.mergeLong(w)
}

// mergeShort searches the lowest rank each time: quadratic, and the fastest for a word.
func (t *mergeTable) mergeShort(w *mergeScratch) []uint32 {
	ids, ranks := w.ids, w.ranks[:0]
	for i := 1; i < len(ids); i++ {
		ranks = append(ranks, t.rank(ids[i-1], ids[i]))
	}
	w.ranks = ranks // with its new capacity
	for {
		best, at := noMerge, 0
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if best == noMerge {
			return ids
		}
		ids[at] = t.result[best]
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = t.rank(ids[at-1], ids[at])
		}
		if at < len(ranks) {
			ranks[at] = t.rank(ids[at], ids[at+1])
		}
	}
}

// mergeLong takes the pairs of the lowest rank together and merges them from the
// left. A merge that makes a pair of a lower rank interrupts them: that pair, and
// what comes of it, goes first.
//
// This is the order of merge, one pair at a time, because a batch never grows.
// When it is taken no pair of a lower rank is left. So all that is merged before
// the batch is done holds a result of the batch, and is longer than the two
// tokens that its rank stands for: it cannot be one of them.
func (t *mergeTable) mergeLong(w *mergeScratch) ([]uint32, error) {
	l := &w.lists
	err := l.reset(&w.call, t, w.ids)
	for turns := 1; err == nil && l.step(t); turns++ {
		if turns%checkEvery == 0 {
			err = w.rest()
		}
	}
	if err != nil {
		w.lists = pairLists{} // they are not empty, as reset wants them
		return nil, err
	}
	left := w.ids[:0]
	for i := int32(0); int(i) < len(l.symbols); i = l.symbols[i].next {
		left = append(left, l.symbols[i].id)
	}
	return left, nil
}

// pairLists has the pairs of a long piece that merge, each either in the list of
// its rank or taken into a batch.
type pairLists struct {
	symbols []symbol
	heads   []int32 // by rank: the last pair added to the list, plus one; 0 for none
	ranks   minHeap // each rank that has a list; also some whose list is gone
	batches []batch // each interrupted by the next, so of falling ranks
	taken   []int32 // the pairs of all batches
}

// A symbol is a token of the piece, at the position of its first byte, together
// with the pair that it begins.
type symbol struct {
	id         uint32
	rank       uint32 // of the pair; noMerge if it does not merge
	prev, next int32  // the positions of its neighbours; -1 and len(symbols) at the ends
	newer      int32  // the next pair in the list, plus one; 0 at the end, inBatch if taken
	older      int32
}

const inBatch = -1

// A batch is taken[from:to] of pairLists, all of one rank, ascending.
type batch struct {
	rank     uint32
	from, to int
}

// reset makes the lists of a piece. All lists are empty before.
func (l *pairLists) reset(c *call, t *mergeTable, ids []uint32) error {
	if len(l.heads) < len(t.result) {
		l.heads = make([]int32, len(t.result))
	}
	if cap(l.symbols) < len(ids) {
		l.symbols = make([]symbol, 0, len(ids)) // slices.Grow would write all of it first
	}
	l.symbols = l.symbols[:0]
	for i, id := range ids {
		if i%checkEvery == checkEvery-1 {
			if err := c.rest(); err != nil {
				return err
			}
		}
		l.symbols = append(l.symbols, symbol{id: id, rank: noMerge, prev: int32(i) - 1, next: int32(i) + 1})
		if i > 0 {
			l.add(t, int32(i)-1)
		}
	}
	return nil
}

// step merges a pair or takes a list; false if nothing is left to do.
func (l *pairLists) step(t *mergeTable) bool {
	last := len(l.batches) - 1
	if last < 0 || len(l.ranks) > 0 && l.ranks[0] < l.batches[last].rank {
		return l.take()
	}
	b := &l.batches[last]
	if b.from == b.to {
		l.batches = l.batches[:last]
		return true
	}
	i := l.taken[b.from]
	b.from++
	l.merge(t, i, b.rank)
	return true
}

// take makes the list of the lowest rank a batch; false if there is none.
func (l *pairLists) take() bool {
	if len(l.ranks) == 0 {
		return false
	}
	rank := l.ranks.pop()
	from := 0
	if last := len(l.batches) - 1; last >= 0 {
		from = l.batches[last].to
	}
	taken := l.taken[:from]
	for i := l.heads[rank]; i != 0; i = l.symbols[i-1].older {
		taken = append(taken, i-1)
		l.symbols[i-1].newer = inBatch
	}
	l.heads[rank] = 0
	// The list has the newest first, which is the rightmost: then sorting comes to
	// a look at each.
	slices.Reverse(taken[from:])
	slices.Sort(taken[from:])
	l.taken = taken
	l.batches = append(l.batches, batch{rank, from, len(taken)})
	return true
}

// merge merges the pair that begins at i, unless it is not of this rank any more:
// a merge since it was taken may have had one of its tokens.
func (l *pairLists) merge(t *mergeTable, i int32, rank uint32) {
	s := &l.symbols[i]
	if s.rank != rank {
		return
	}
	l.remove(s.next)
	s.id, s.rank, s.next = t.result[rank], noMerge, l.symbols[s.next].next
	if int(s.next) < len(l.symbols) {
		l.symbols[s.next].prev = i
		l.add(t, i)
	}
	if s.prev >= 0 {
		l.remove(s.prev)
		l.add(t, s.prev)
	}
}

// add puts the pair that begins at i into the list of its rank, if it merges.
func (l *pairLists) add(t *mergeTable, i int32) {
	s := &l.symbols[i]
	s.rank = t.rank(s.id, l.symbols[s.next].id)
	if s.rank == noMerge {
		return
	}
	head := &l.heads[s.rank]
	s.newer, s.older = 0, *head
	if *head == 0 {
		l.ranks.push(s.rank)
	} else {
		l.symbols[*head-1].newer = i + 1
	}
	*head = i + 1
}

// remove takes the pair that begins at i out of its list, if it is in one. In a
// batch it stays, without its rank.
func (l *pairLists) remove(i int32) {
	s := &l.symbols[i]
	if s.rank == noMerge {
		return
	}
	if s.newer > 0 {
		l.symbols[s.newer-1].older = s.older
	} else if s.newer == 0 {
		l.heads[s.rank] = s.older
	}
	if s.newer >= 0 && s.older != 0 {
		l.symbols[s.older-1].newer = s.newer
	}
	s.rank = noMerge
}

// A minHeap is a binary heap of ranks.
type minHeap []uint32

func (h *minHeap) push(rank uint32) {
	s := append(*h, rank)
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent] <= rank {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = rank
	*h = s
}

func (h *minHeap) pop() uint32 {
	s := *h
	top, last := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if last <= s[child] {
			break
		}
		s[i] = s[child]
		i = child
	}
	s[i] = last
	return top
}
