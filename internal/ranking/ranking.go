// Package ranking finds the best row of each pod and orders the pods of an answer: the best first,
// and equal pods by a hash of the prompt and of the pods, so that prompts spread over pods in the
// same way in all processes. It queries no index.
package ranking

import (
	"math"
	"math/bits"
	"slices"
)

// NotScorable stands for the cached tokens of a pod for which the chat is not scorable. It is less
// than the 0 of a pod that holds nothing.
const NotScorable = -1

// Best is the best row of an entry so far. It has four fields: the compiler keeps no more in
// registers.
type Best struct {
	Cached, Matched int   // tokens; Cached includes routed prompts
	Row             int32 // the position of the row plus one; 0: none
	Marks           Marks
}

// Marks are the flags of a Best.
type Marks uint8

const (
	Upper   Marks = 1 << iota // Cached is an upper bound
	Evicted                   // the index has evicted blocks of some row of the entry
	Stale                     // some row of the entry may be outdated
)

// mark adds m if set is true.
func (b *Best) mark(m Marks, set bool) {
	if set {
		b.Marks |= m
	}
}

// place returns the place of a pod among equal pods for a prompt, by the hashes of both. The
// highest place comes first.
func place(prompt, pod uint64) uint32 {
	high, low := bits.Mul64(prompt^pod, 0x9e3779b97f4a7c15)
	return uint32((high ^ low) >> 32)
}

// placeOfRank is place for the ranks of one pod among each other.
func placeOfRank(prompt, pod uint64, rank int) uint32 {
	high, low := bits.Mul64(pod^uint64(rank), 0x9e3779b97f4a7c15)
	return place(prompt, high^low)
}

// Tie orders equal ranks for a prompt, by the hashes of the prompt and of their pods, the lowest
// first: by place, then by placeOfRank. This is the order of equal entries in an answer.
func Tie(prompt, pod uint64, rank int) uint64 {
	return uint64(^place(prompt, pod))<<32 | uint64(^placeOfRank(prompt, pod, rank))
}

// Ranking is the memory of Rank. The zero value has none.
type Ranking struct {
	order  []int32
	keys   []uint64 // sort keys of entries
	starts []int32  // the start of the entries for each part of the places
}

// Rank returns the indexes of the best entries, the best first: top of them or, with 0, all.
// Entries with equal Cached come in the order of place, by the hashes of their pods, then as
// they are in best. The order is valid until the next Rank.
func (r *Ranking) Rank(best []Best, top int, pods []uint64, prompt uint64) (order []int32) {
	if top > 0 && top < len(best) {
		r.rankBest(best, top, pods, prompt)
		return r.order
	}
	r.order = slices.Grow(r.order[:0], len(best))[:len(best)]
	order = r.order
	// Most often only some entries hold anything: the others need no sorting.
	some, none := 0, len(order)
	sorted, last, least := true, math.MaxInt, 0
	for i := range best {
		if cached := best[i].Cached; cached > 0 {
			order[some] = int32(i)
			some++
			sorted, last = sorted && cached <= last, cached
		} else {
			none--
			order[none] = int32(i)
			least = min(least, cached)
		}
	}
	most := func(a, b int32) int { return best[b].Cached - best[a].Cached }
	if !sorted {
		slices.SortFunc(order[:some], most)
	}
	if least < 0 {
		slices.SortFunc(order[some:], most)
	}
	for rest := order; len(rest) > 1; {
		n, cached := 1, best[rest[0]].Cached
		if best[rest[len(rest)-1]].Cached == cached { // most often both are 0
			n = len(rest)
		}
		for n < len(rest) && best[rest[n]].Cached == cached {
			n++
		}
		if n > 1 {
			r.spread(rest[:n], pods, prompt)
		}
		rest = rest[n:]
	}
	return order
}

// spread orders entries with equal Cached. Places are evenly distributed, so each entry is put
// near its final position at once, and few have to be moved then.
func (r *Ranking) spread(tied []int32, pods []uint64, prompt uint64) {
	n := len(tied)
	width := bits.Len(uint(n)) // of parts, more than entries
	shift := 64 - width
	r.keys = slices.Grow(r.keys[:0], 2*n)[:2*n]
	r.starts = slices.Grow(r.starts[:0], 1<<width)[:1<<width]
	clear(r.starts)
	keys, sorted, starts := r.keys[:n], r.keys[n:], r.starts
	for i, at := range tied {
		key := uint64(^place(prompt, pods[at]))<<32 | uint64(at)
		keys[i] = key
		starts[key>>shift]++
	}
	sum := int32(0)
	for i, count := range starts {
		starts[i] = sum
		sum += count
	}
	for _, key := range keys {
		at := starts[key>>shift]
		starts[key>>shift] = at + 1
		sorted[at] = key
	}
	for i, key := range sorted {
		for ; i > 0 && sorted[i-1] > key; i-- {
			sorted[i] = sorted[i-1]
		}
		sorted[i] = key
	}
	for i, key := range sorted {
		tied[i] = int32(uint32(key))
	}
}

// rankBest is Rank for fewer than all entries. It computes places only if some of the best entries
// are equal, or equal to the best of the rest.
func (r *Ranking) rankBest(best []Best, top int, pods []uint64, prompt uint64) {
	r.keys = slices.Grow(r.keys[:0], len(best))[:len(best)]
	keys := r.keys
	for i := range keys {
		keys[i] = uint64(best[i].Cached-NotScorable) << 32
	}
	rest := r.chooseBest(top)
	least := keys[r.order[top-1]]
	tied := rest == least
	for i := 1; i < top; i++ {
		tied = tied || keys[r.order[i]] == keys[r.order[i-1]]
	}
	if !tied {
		return
	}
	for i, key := range keys {
		if key >= least {
			keys[i] = key | uint64(place(prompt, pods[i]))
		}
	}
	r.chooseBest(top)
}

// chooseBest fills order with the entries of the highest keys, and returns the highest of the
// rest.
func (r *Ranking) chooseBest(top int) (rest uint64) {
	order := r.order[:0]
	last := uint64(0) // the lowest of those in order, once it is full
	for i, key := range r.keys {
		at := len(order)
		switch {
		case at < top:
			order = append(order, 0)
		case key <= last:
			rest = max(rest, key)
			continue
		default:
			at--
			rest = last
		}
		for ; at > 0 && key > r.keys[order[at-1]]; at-- {
			order[at] = order[at-1]
		}
		order[at] = int32(i)
		last = r.keys[order[len(order)-1]]
	}
	r.order = order
	return rest
}
