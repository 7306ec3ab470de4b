package kvindex

import (
	"cmp"
	"slices"

	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/internal/view"
)

// Ranks: an answer with an entry for each rank (Request.Ranks).
//
// What a score finds is kept by entry: an entry is a candidate, or else a rank of one.
// Without Request.Ranks there is no list of entries, and a candidate's position is that
// of its entry.

// entry is a rank of a candidate, for an answer of ranks.
type entry struct {
	pod   int32 // the candidate
	rank  int
	state view.State
}

// before orders entries by candidate, then by the number of the rank.
func (e entry) before(o entry) int {
	if e.pod != o.pod {
		return int(e.pod - o.pod)
	}
	return cmp.Compare(e.rank, o.rank)
}

// listRanks makes each known rank of the candidates an entry, in the order of before.
// It comes behind the match, so that no rank of a row is missing that the Indexer
// heard meanwhile. Others with rows are another Indexer's that writes to the index.
func (sc *scorer) listRanks() {
	n := len(sc.set.names)
	counts := slices.Grow(sc.counts[:0], n)[:n]
	clear(counts)
	entries := sc.entries[:0]
	for pod, pm := range sc.set.states {
		var ranks []view.Rank
		if pm != nil {
			ranks = pm.shown.Ranks()
		}
		counts[pod] = int32(len(ranks))
		for _, r := range ranks {
			entries = append(entries, entry{int32(pod), r.Number, r.State})
		}
	}
	heard := entries
	for i := range sc.matches.Rows {
		row := &sc.matches.Rows[i]
		e := entry{row.Pod, row.Source.Rank, sc.set.state(row.Pod)}
		if i < sc.forecast.Real {
			e.state = min(e.state, view.Uncertain)
		}
		if _, ok := slices.BinarySearchFunc(heard, e, entry.before); !ok {
			entries = append(entries, e)
			counts[row.Pod]++
		}
	}
	for pod, count := range counts {
		if count == 0 {
			entries = append(entries, entry{int32(pod), 0, sc.set.state(int32(pod))})
		}
	}
	if len(entries) > len(heard) {
		slices.SortFunc(entries, entry.before)
		entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.before(b) == 0 })
	}
	sc.counts, sc.entries = counts, entries
}

// entry returns the entry of a candidate's rank, or, if there is none, the next one in
// the order of before. It is for the time between listRanks and spreadRanks.
func (sc *scorer) entry(pod int32, rank int) int32 {
	if len(sc.entries) == 0 {
		return pod
	}
	at, _ := slices.BinarySearchFunc(sc.entries, entry{pod: pod, rank: rank}, entry.before)
	return int32(at)
}

// spreadRanks brings the entries of each candidate, with what was found of them, into
// the order of their places.
func (sc *scorer) spreadRanks() {
	prompt, n := sc.prompt.TieHash(), len(sc.entries)
	places := slices.Grow(sc.places[:0], n)[:n]
	hashes := slices.Grow(sc.ofEntries[:0], n)[:n]
	from := 0
	for i, e := range sc.entries {
		if e.pod != sc.entries[from].pod {
			slices.Sort(places[from:i])
			from = i
		}
		hashes[i] = sc.set.hashes[e.pod]
		places[i] = uint64(^ranking.PlaceOfRank(prompt, hashes[i], e.rank))<<32 | uint64(i)
	}
	slices.Sort(places[from:])
	entries, best := sc.otherEntries[:0], sc.otherBest[:0]
	for _, p := range places {
		entries = append(entries, sc.entries[uint32(p)])
		best = append(best, sc.best[uint32(p)])
	}
	sc.places, sc.ofEntries, sc.hashes = places, hashes, hashes
	sc.entries, sc.otherEntries = entries, sc.entries
	sc.best, sc.otherBest = best, sc.best
}
