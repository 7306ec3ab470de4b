package ranking

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/view"
)

// Judge finds the best row of each entry of a score. Its memory is used again.
type Judge struct {
	Input

	Entries []entry      // the ranks; empty: each candidate is an entry
	Best    []Best       // by entry
	lowers  []Lower      // by row, if Tiered
	held    []reuse.Held // by group of the present source
	below   []reuse.Held // the same, in lower tiers
	words   []uint64     // of below
	scored  []Best       // memory of Order
	hashes  []uint64     // of the pods of entries, for ties
	sorter  Ranking

	// counts and the fields below are memory of ListRanks and spreadRanks. The other* slices
	// alternate with Entries and Best.
	counts       []int32
	places       []uint64
	ofEntries    []uint64
	otherEntries []entry
	otherBest    []Best
}

// Input is the input of a Judge.
type Input struct {
	Pods         []*view.Pod // the candidates; nil: not registered
	PodHashes    []uint64    // of their names
	Profiled     bool        // some Profile has Groups or Draft, or some pod is a hybrid one
	Tiered       bool        // some pod has tiers below the gpu; then all rows have bits
	Unregistered *view.Plans // plans for rows of candidates that are not registered
	Rows         []index.Row // rows of the index, then rows that were made for hits
	Prompt       *prompt.Prompt
	Forecast     *predict.Forecast
}

// Choose finds the best row of each entry.
func (j *Judge) Choose() {
	n := max(len(j.Pods), len(j.Entries))
	j.Best = slices.Grow(j.Best[:0], n)[:n]
	clear(j.Best)
	rows := j.Rows
	j.lowers = j.lowers[:0]
	if j.Tiered {
		j.lowers = slices.Grow(j.lowers, len(rows))[:len(rows)]
		clear(j.lowers)
	}
	for i := 0; i < len(rows); {
		if rows[i].Held == nil {
			j.improve(rows[i].Pod, j.bestOf(i))
			i++
			continue
		}
		from := i
		for i++; i < len(rows) && rows[i].Held != nil && rows[i].Pod == rows[from].Pod && rows[i].Source == rows[from].Source; i++ {
		}
		if l := rows[from].Layout; j.Tiered && len(l.Groups) == 1 && l.Groups[0].Kind == index.GroupFull {
			j.judgeFull(from, i)
		} else {
			j.judge(from, i)
		}
	}
	for i := range rows {
		if row := &rows[i]; row.Evicted || row.Stale {
			b := &j.Best[j.entry(row.Pod, row.Source.Rank)]
			b.mark(Evicted, row.Evicted)
			b.mark(Stale, row.Stale)
		}
	}
}

// bestOf scores a row of a source of one full-attention group.
func (j *Judge) bestOf(i int) Best {
	row := &j.Rows[i]
	length, again := j.Prompt.LengthIn(row), 0
	b := Best{Matched: int(row.Run) * row.BlockSize, Row: int32(i + 1)}
	if j.Profiled {
		if p := j.Pods[row.Pod]; p != nil {
			group := p.Profile.Corrected(row.Group)
			if group.Draft && !row.Pairs { // SGLang gives up the last pair only
				again = row.BlockSize // the draft layers compute it again
			}
			// A kept index may have a group of another kind, from earlier events.
			b.mark(Upper, group.Kind != index.GroupFull || p.Profile.Lists(row.Layout) || p.Facts().Hybrid)
		}
	}
	b.Cached = max(0, reuse.CachedTokens(int(row.GPU), row.BlockSize, length)-again)
	if j.Forecast.Any() {
		b.Cached = j.Forecast.WithHit(i, row, length, b.Cached, again)
		if j.Forecast.Made(i) {
			b.Marks = 0
		}
	}
	return b
}

// judgeFull scores the rows [from, to) of a source of one full-attention group, which have bits.
func (j *Judge) judgeFull(from, to int) {
	rows := j.Rows[from:to]
	gpu := 0
	for i := range rows {
		if rows[i].GPU > 0 {
			gpu = max(gpu, j.Proven(j.bestOf(from+i)))
		}
	}
	plan, profile := j.planOf(&rows[0])
	j.lower(from, to, gpu, plan, profile)
	for i := range rows {
		if l := &j.lowers[from+i]; rows[i].Run > 0 || j.Forecast.Hit(from+i) || l.Loaded+l.Fetched > 0 {
			b := j.bestOf(from + i)
			b.mark(Upper, l.upper && l.Loaded+l.Fetched > 0)
			j.improve(rows[i].Pod, b)
		}
	}
}

// planOf returns the plan and the profile of the source of a row.
func (j *Judge) planOf(row *index.Row) (*view.Plan, *engine.Profile) {
	if pod := j.Pods[row.Pod]; pod != nil {
		return pod.Plans.Of(row.Layout, &pod.Profile, len(pod.Ranks())), &pod.Profile
	}
	return j.Unregistered.Of(row.Layout, &noProfile, engine.MaxRanks), &noProfile
}

var noProfile engine.Profile // of pods that are not registered

func (j *Judge) improve(pod int32, t Best) {
	at := pod
	if len(j.Entries) > 0 {
		at = j.entry(pod, j.RankOf(t))
	}
	if b := &j.Best[at]; b.Row == 0 || j.better(t, *b) {
		*b = t
	}
}

// better orders the rows of one pod: by the tokens that the engine would reuse, then by those of
// them that are proven, then by the tokens held in any tier, then the lower rank first.
func (j *Judge) better(a, b Best) bool {
	if j.Tiered {
		if by := cmp.Compare(j.Score(a), j.Score(b)); by != 0 {
			return by > 0
		}
	}
	return cmp.Or(a.Cached-b.Cached, j.Proven(a)-j.Proven(b), a.Matched-b.Matched, j.RankOf(b)-j.RankOf(a), int(b.Row-a.Row)) > 0
}

// RankOf returns the rank of a Best.
func (j *Judge) RankOf(b Best) int { return j.Rows[b.Row-1].Source.Rank }

// judge scores the rows [from, to), which are all rows of one source with bits.
func (j *Judge) judge(from, to int) {
	rows := j.Rows[from:to]
	first := &rows[0]
	p, profile := j.planOf(first)
	groups := first.Groups
	j.held = slices.Grow(j.held[:0], len(groups))[:len(groups)]
	clear(j.held)
	most, at, part := -1, -1, -1
	for i := range rows {
		row := &rows[i]
		g := slices.IndexFunc(groups, func(g index.GroupLayout) bool { return g.ID == row.Group.ID })
		if g < 0 {
			continue
		}
		main := p.Main < 0 || g == p.Main
		switch {
		case row.BlockSize == groups[g].BlockSize:
			j.held[g].Blocks = row.Held[index.TierGPU]
		case p.Rule != nil && row.BlockSize == p.Rule.Grain():
			j.held[g].Parts = row.Held[index.TierGPU]
			if main {
				part = i
			}
			continue
		}
		if run := int(row.Run) * row.BlockSize; main && run > most {
			most, at = run, i
		}
	}
	if at < 0 {
		if at, most = part, 0; at < 0 {
			return // the main group holds no block
		}
	}
	length := j.Prompt.LengthIn(first)
	best := Best{Matched: most, Row: int32(from + at + 1)}
	best.mark(Upper, p.Upper || p.Rule == nil)
	if p.Rule != nil {
		best.Cached = p.Rule.Tokens(length, j.held)
	} else {
		best.Cached = reuse.CachedTokens(int(rows[at].GPU), rows[at].BlockSize, length)
	}
	if j.Tiered {
		j.lower(from, to, best.Cached, p, profile)
		l := &j.lowers[from]
		best.mark(Upper, l.upper && l.Loaded+l.Fetched > 0)
	}
	if j.Forecast.Any() {
		at += from
		if j.Forecast.Judge(at, best.Cached, p.Rule, j.held, groups) {
			best.Cached = max(best.Cached, p.Rule.Tokens(length, j.held))
		}
		if j.Forecast.Made(at) {
			best.Marks = 0
		}
	}
	j.improve(first.Pod, best)
}

// Ranks: an answer with an entry for each rank (Request.Ranks).
//
// The best rows are kept by entry: an entry is a candidate or, with Request.Ranks, a rank of
// one. Without Request.Ranks there is no list of entries, and the position of a candidate is
// that of its entry.

// entry is a rank of a candidate, for an answer of ranks.
type entry struct {
	Pod   int32 // the candidate
	Rank  int
	State view.State
}

// before orders entries by candidate, then by the number of the rank.
func (e entry) before(o entry) int {
	if e.Pod != o.Pod {
		return int(e.Pod - o.Pod)
	}
	return cmp.Compare(e.Rank, o.Rank)
}

// ListRanks makes each registered rank of the candidates an entry, in the order of before.
// It comes after the match, so it has all ranks that were registered before the rows were
// read. Other ranks with rows belong to another Indexer that writes to the index.
func (j *Judge) ListRanks() {
	n := len(j.Pods)
	counts := slices.Grow(j.counts[:0], n)[:n]
	clear(counts)
	entries := j.Entries[:0]
	for pod, of := range j.Pods {
		ranks := of.Ranks()
		counts[pod] = int32(len(ranks))
		for _, r := range ranks {
			entries = append(entries, entry{int32(pod), r.Number, r.State})
		}
	}
	heard := entries
	for i := range j.Rows {
		row := &j.Rows[i]
		e := entry{row.Pod, row.Source.Rank, j.Pods[row.Pod].Facts().State}
		if i < j.Forecast.Real {
			e.State = min(e.State, view.Uncertain)
		}
		if _, ok := slices.BinarySearchFunc(heard, e, entry.before); !ok {
			entries = append(entries, e)
			counts[row.Pod]++
		}
	}
	for pod, count := range counts {
		if count == 0 {
			entries = append(entries, entry{int32(pod), 0, j.Pods[int32(pod)].Facts().State})
		}
	}
	if len(entries) > len(heard) {
		slices.SortFunc(entries, entry.before)
		entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.before(b) == 0 })
	}
	j.counts, j.Entries = counts, entries
}

// entry returns the entry of a candidate's rank or, if there is none, the next one in
// the order of before. It is valid between ListRanks and spreadRanks.
func (j *Judge) entry(pod int32, rank int) int32 {
	if len(j.Entries) == 0 {
		return pod
	}
	at, _ := slices.BinarySearchFunc(j.Entries, entry{Pod: pod, Rank: rank}, entry.before)
	return int32(at)
}

// spreadRanks sorts the entries of each candidate, with their best rows, by their places.
func (j *Judge) spreadRanks() {
	prompt, n := j.Prompt.TieHash(), len(j.Entries)
	places := slices.Grow(j.places[:0], n)[:n]
	hashes := slices.Grow(j.ofEntries[:0], n)[:n]
	from := 0
	for i, e := range j.Entries {
		if e.Pod != j.Entries[from].Pod {
			slices.Sort(places[from:i])
			from = i
		}
		hashes[i] = j.PodHashes[e.Pod]
		places[i] = uint64(^placeOfRank(prompt, hashes[i], e.Rank))<<32 | uint64(i)
	}
	slices.Sort(places[from:])
	entries, best := j.otherEntries[:0], j.otherBest[:0]
	for _, p := range places {
		entries = append(entries, j.Entries[uint32(p)])
		best = append(best, j.Best[uint32(p)])
	}
	j.places, j.ofEntries, j.hashes = places, hashes, hashes
	j.Entries, j.otherEntries = entries, j.Entries
	j.Best, j.otherBest = best, j.Best
}

// Proven returns how many of the cached tokens of an entry are proven by events.
func (j *Judge) Proven(b Best) int { return j.Forecast.Proven(b.Row, b.Cached) }

// Exclude marks a candidate as NotScorable.
func (j *Judge) Exclude(pod int32) {
	for at := j.entry(pod, 0); at < j.entry(pod+1, 0); at++ {
		j.Best[at].Cached = NotScorable
	}
}

// Order returns the best entries, the best first; with top 0 all of them.
func (j *Judge) Order(top int) []int32 {
	if len(j.Entries) > 0 {
		j.spreadRanks()
	} else {
		j.hashes = j.PodHashes
	}
	best := j.Best
	if j.Tiered {
		j.scored = append(j.scored[:0], best...)
		best = j.scored
		for i := range best {
			if best[i].Cached != NotScorable {
				best[i].Cached = int(math.Float32bits(float32(j.Score(best[i])))) // the order of numbers from 0 on is that of their bits
			}
		}
	}
	return j.sorter.Rank(best, top, j.hashes, j.Prompt.TieHash())
}

// Release keeps the memory of j, and nothing of its score.
func (j *Judge) Release() {
	j.Input, j.hashes = Input{}, nil
	j.Best, j.Entries = j.Best[:0], j.Entries[:0]
}
