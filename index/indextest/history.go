package indextest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
)

// The history check. Writers and readers share an index. Each write notes in a
// log, by a clock that all share, when it began and when it had returned, what
// its source may hold meanwhile, and what it holds afterwards. A reader notes
// when it called Match and when that had returned. Then by the contract
//
//   - each block that a row claims was possibly held at some moment between:
//     after the last write that had returned by then, or during one that had not,
//   - if no write of the source was under way, its rows are exact.
//
// The model of the random histories has the blocks that a source holds; within one change
// it only gains or only loses blocks, so the blocks held at the end of each change
// of an Apply is all that can be seen during it.
//
// At a bound of the backend a source may lack what it holds, at any moment. Then only the
// first of the two is checked, and not the place and the cut of a block: see
// modelSource.holds.
type history struct {
	t       *testing.T
	ix      index.Index
	flood   *flood // nil: there is no bound
	clock   atomic.Uint64
	prompts []string
	number  map[string]int   // of each prefix of the prompts
	paths   map[string][]int // of each prompt: the numbers of its prefixes, by letters
	logs    map[index.Source]*sourceLog
	racers  map[index.Source]*raceLog
	saw     sightings
	tick    chan struct{} // gets something after an answer, if it is empty
	done    chan struct{}
	finish  func() // closes done
}

// sightings count what was checked. Rows are those of sources that were written
// to meanwhile, but for the exact ones; cut and grown ones are shorter and longer
// than before those writes.
type sightings struct {
	matches, claims, exact, overlapped, cut, grown atomic.Int64
	raced, racedSurely, racedGone                  atomic.Int64 // rows of sources that several write to
	removals, clears, tierClears, flickers         atomic.Int64
	late                                           atomic.Int64 // not checked: the log was forgotten
}

// each calls f with each figure and how much is enough of it.
func (s *sightings) each(f func(what string, n, enough int64)) {
	f("matches", s.matches.Load(), 3000)
	f("claims", s.claims.Load(), 100_000)
	f("exact rows", s.exact.Load(), 10_000)
	f("rows during writes", s.overlapped.Load(), 1000)
	f("rows cut", s.cut.Load(), 20)
	f("rows grown", s.grown.Load(), 20)
	f("raced rows", s.raced.Load(), 200)
	f("raced rows with sure blocks", s.racedSurely.Load(), 20)
	f("raced rows gone", s.racedGone.Load(), 20)
	f("removals", s.removals.Load(), 100)
	f("clears", s.clears.Load(), 5)
	f("clears of a tier", s.tierClears.Load(), 5)
}

func (s *sightings) enough() bool {
	all, part := true, int64(choose(30, 10, 1))
	s.each(func(_ string, n, enough int64) { all = all && n >= max(1, enough/part) })
	return all
}

func (s *sightings) String() (text string) {
	s.each(func(what string, n, enough int64) {
		text += fmt.Sprintf("%d %s (at least %d in the long form) ", n, what, enough)
	})
	return text
}

// promptBlocks is the length of the prompts in blocks of 16 tokens: more than a
// machine word has bits, in the finest unit, so that it takes several pieces of
// whatever an index keeps together.
const promptBlocks = 40

func (h *history) running() bool {
	select {
	case <-h.done:
		return false
	default:
		return true
	}
}

// fail ends the history.
func (h *history) fail(format string, args ...any) {
	h.t.Errorf(format, args...)
	h.finish()
}

// newHistory has a few prompts that fork early, late, and where a power of two
// ends. Those of root Z are for the racers.
func newHistory(t *testing.T, ix index.Index) *history {
	h := &history{
		t: t, ix: ix, number: map[string]int{}, paths: map[string][]int{}, tick: make(chan struct{}, 1),
		logs: map[index.Source]*sourceLog{}, racers: map[index.Source]*raceLog{},
	}
	fork := func(p string, at int) string {
		b := []byte(p)
		b[at]++
		return string(b)
	}
	base := func(root string) string {
		for len(root) < 1+2*promptBlocks {
			root += "a"
		}
		return root
	}
	x, y, z := base("X"), base("Y"), base("Z")
	h.prompts = []string{x, fork(x, 65), fork(fork(x, 65), 71), fork(x, 5), y, fork(y, 33), z, fork(z, 33), fork(z, 17)}
	for _, p := range h.prompts {
		path := []int{-1}
		for end := 2; end <= len(p); end++ {
			n, ok := h.number[p[:end]]
			if !ok {
				n = len(h.number)
				h.number[p[:end]] = n
			}
			path = append(path, n)
		}
		h.paths[p] = path
	}
	return h
}

// A snapshot is the content of a source at some moment, or its possible content for some time.
type snapshot struct {
	groups map[int]index.Group
	layout *index.Layout
	rows   map[rowID]*[index.NumTiers]prefixSet
	cache  sync.Map // []modelRow by prompt
}

type rowID struct{ group, size int }

// prefixSet is a set of prefixes by number.
type prefixSet []uint64

func (s prefixSet) has(n int) bool { return n/64 < len(s) && s[n/64]>>(n%64)&1 != 0 }

func (s *prefixSet) add(n int) {
	for n/64 >= len(*s) {
		*s = append(*s, 0)
	}
	(*s)[n/64] |= 1 << (n % 64)
}

func (h *history) snapshot(s *modelSource) *snapshot {
	shot := &snapshot{groups: maps.Clone(s.groups), layout: s.layout(), rows: map[rowID]*[index.NumTiers]prefixSet{}}
	for of, blocks := range s.held {
		for name, b := range blocks {
			if by, ok := s.seen(of.group, name, b); ok && h.flood == nil {
				shot.add(rowID{of.group, by.size}, of.tier, h.number[name])
			} else if h.flood != nil {
				shot.add(rowID{group: of.group}, of.tier, h.number[name])
			}
		}
	}
	return shot
}

func (s *snapshot) add(id rowID, t index.Tier, prefix int) {
	if s.rows[id] == nil {
		s.rows[id] = new([index.NumTiers]prefixSet)
	}
	s.rows[id][t].add(prefix)
}

func (s *snapshot) has(id rowID, t index.Tier, prefix int) bool {
	return s.rows[id] != nil && s.rows[id][t].has(prefix)
}

// merge adds what o holds.
func (s *snapshot) merge(o *snapshot) {
	if s.rows == nil {
		s.rows = map[rowID]*[index.NumTiers]prefixSet{}
	}
	for id, tiers := range o.rows {
		if s.rows[id] == nil {
			s.rows[id] = new([index.NumTiers]prefixSet)
		}
		for t, set := range tiers {
			s.rows[id][t].merge(set)
		}
	}
}

// of returns the expected rows of a prompt.
func (s *snapshot) of(h *history, src index.Source, prompt string) (rows []modelRow) {
	if cached, ok := s.cache.Load(prompt); ok {
		return cached.([]modelRow)
	}
	for id, tiers := range s.rows {
		row := modelRow{view: index.View{
			Source: src, Group: s.groups[id.group], BlockSize: id.size, Layout: s.layout,
		}}
		any := false
		for b := range blocksOf(prompt, id.size) {
			for t := range tiers {
				if tiers[t].has(h.block(prompt, id.size, b)) {
					row.held[t].add(b)
					any = true
				}
			}
		}
		if any {
			rows = append(rows, row)
		}
	}
	s.cache.Store(prompt, rows)
	return rows
}

// block returns the number of the prefix at whose end block b of a prompt is.
func (h *history) block(prompt string, size, b int) int { return h.paths[prompt][(b+1)*size/grain] }

func blocksOf(prompt string, size int) int { return (len(prompt) - 1) * grain / size }

// sourceLog is the writes of a source that one writer owns: the last of them.
type sourceLog struct {
	mu       sync.Mutex
	versions []version
	dropped  uint64 // when the last write that is not here any more had returned
}

const maxVersions = 1 << 16

type version struct {
	begin, end   uint64 // end 0: under way
	during, then *snapshot
}

func (l *sourceLog) begin(h *history, during, then *snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.versions); n == maxVersions {
		l.dropped = l.versions[n/2-1].end
		l.versions = append(l.versions[:0], l.versions[n/2:]...)
	}
	l.versions = append(l.versions, version{begin: h.clock.Add(1), during: during, then: then})
}

func (l *sourceLog) end(h *history) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.versions[len(l.versions)-1].end = h.clock.Add(1)
}

// between returns the blocks that were held before the first write that was under way
// between two moments, and what was during each, or false if that is too long
// ago.
func (l *sourceLog) between(from, to uint64) (before *snapshot, during []*snapshot, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = &snapshot{}
	for _, v := range slices.Backward(l.versions) {
		if v.begin > to {
			continue
		}
		if v.end != 0 && v.end < from {
			before = v.then
			break
		}
		if !slices.Contains(during, v.during) {
			during = append(during, v.during)
		}
	}
	return before, during, from > l.dropped
}

// write has the pods of one writer do what engines do, by the random histories.
func (h *history) write(seed uint64, sources []index.Source) {
	w := newWorld(0) // an engine hash has the same meaning for all writers
	w.r = rand.New(rand.NewPCG(seed, 3))
	w.prompts = h.prompts[:racePrompts]
	m := model{}
	last := map[index.Source]*snapshot{}
	for _, src := range sources {
		last[src] = &snapshot{}
	}
	for h.running() {
		src := sources[w.r.IntN(len(sources))]
		if w.r.IntN(30) == 0 {
			of := slices.DeleteFunc(slices.Clone(sources), func(o index.Source) bool { return o.Pod != src.Pod })
			h.writeRemove(of, last)
			for _, o := range of {
				delete(m, o)
				last[o] = &snapshot{}
			}
			continue
		}
		copies := []index.Copies{index.CopiesExact, index.CopiesGuarded, index.CopiesSet}[src.Rank%3]
		if h.flood != nil && copies == index.CopiesGuarded {
			copies = partial // who would know when that begins
		}
		s := m.source(src)
		if w.only = -1; src.Rank%2 > 0 {
			w.only = []int{full.ID, wide.ID}[src.Rank/2%2]
		}
		var ops []op
		if w.r.IntN(16) == 0 {
			ops = w.hidden(copies)
		} else {
			ops = []op{w.op(copies, s), w.op(copies, s)}[w.r.IntN(2):]
		}
		last[src] = h.writeOps(w, src, s, ops, last[src])
	}
}

func (h *history) writeRemove(of []index.Source, last map[index.Source]*snapshot) {
	for _, src := range of {
		h.logs[src].begin(h, last[src], &snapshot{})
	}
	if err := h.ix.Remove(ctx, of[0].Pod); err != nil {
		h.fail("%v", err)
	}
	for _, src := range of {
		h.logs[src].end(h)
	}
	h.saw.removals.Add(1)
}

// writeOps applies ops to the source that holds before, and returns what it
// holds then.
func (h *history) writeOps(w *world, src index.Source, s *modelSource, ops []op, before *snapshot) (then *snapshot) {
	during := &snapshot{}
	during.merge(before)
	s.counts, s.prompt, s.ops = index.Counts{}, promptStore{}, ops
	changes := make([]index.Change, len(ops))
	var fired firings
	for i := range ops {
		changes[i] = w.change(&ops[i])
		s.apply(&ops[i], &fired)
		then = h.snapshot(s)
		during.merge(then)
	}
	h.logs[src].begin(h, during, then)
	done, err := h.ix.Apply(ctx, src, index.Cursor{}, changes)
	h.logs[src].end(h)
	switch {
	case h.flood != nil && (err == nil || errors.Is(err, index.ErrFull)):
	case err != nil || done.Counts != s.counts:
		h.fail("%v, counted %+v, want %+v", err, done.Counts, s.counts)
	}
	h.saw.clears.Add(int64(fired.clears))
	h.saw.tierClears.Add(int64(fired.tierClears))
	return then
}

// raceLog is the writes of a source that several write to at once, those of each
// in order: stores, and what takes all blocks away, which is a wipe. Of two that
// overlap, either may have been first.
type raceLog struct {
	mu sync.Mutex
	of [racers + 1][]raceWrite // the last is who removes the pod
}

type raceWrite struct {
	begin, end uint64 // end 0: under way
	wipe       bool
	prefixes   prefixSet
}

const (
	racers      = 2 // that write to one source
	racePrompts = 6 // prompts from here on are theirs
)

func (l *raceLog) begin(h *history, who int, wipe bool, prefixes prefixSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[who] = append(l.of[who], raceWrite{begin: h.clock.Add(1), wipe: wipe, prefixes: prefixes})
}

func (l *raceLog) end(h *history, who int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[who][len(l.of[who])-1].end = h.clock.Add(1)
}

// between returns what may have been held at some moment between two others,
// what surely was at each, and whether any write was under way.
func (l *raceLog) between(from, to uint64) (may, must prefixSet, quiet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	quiet = true
	// Stores that had returned at wiped are gone, those that began after sure
	// are not.
	wiped, sure := uint64(0), uint64(0)
	for _, writes := range l.of {
		for _, w := range slices.Backward(writes) {
			if w.begin > to {
				continue
			}
			if w.end == 0 || w.end > from {
				quiet = false
			} else if w.wipe {
				wiped, sure = max(wiped, w.begin), max(sure, w.end)
				break
			}
		}
	}
	for _, writes := range l.of {
		for _, w := range slices.Backward(writes) {
			switch {
			case w.begin > to || w.wipe:
				continue
			case w.begin > sure:
				must.merge(w.prefixes)
			}
			if w.end != 0 && w.end < wiped {
				break
			}
			may.merge(w.prefixes)
		}
	}
	return may, must, quiet
}

func (s *prefixSet) merge(o prefixSet) {
	for len(*s) < len(o) {
		*s = append(*s, 0)
	}
	for i, bits := range o {
		(*s)[i] |= bits
	}
}

// ticks waits for the next answer, and returns false at the end. Those who race
// go by it, to leave moments in which nobody writes.
func (h *history) ticks() bool {
	select {
	case <-h.done:
		return false
	case <-h.tick:
		return true
	}
}

// race stores prompts in a source, and clears it now and then.
func (h *history) race(who int, src index.Source) {
	r := rand.New(rand.NewPCG(uint64(who), 4))
	w := newWorld(0)
	l := h.racers[src]
	for h.ticks() {
		change := clearAll
		var prefixes prefixSet
		if r.IntN(20) > 0 {
			p := h.prompts[racePrompts+r.IntN(len(h.prompts)-racePrompts)]
			o := store(p, 1+r.IntN(promptBlocks))
			for _, name := range o.blocks {
				prefixes.add(h.number[name])
			}
			change = w.change(&o)
		}
		l.begin(h, who, change.Op == index.OpClear, prefixes)
		_, err := h.ix.Apply(ctx, src, index.Cursor{}, []index.Change{change})
		l.end(h, who)
		if err != nil && !errors.Is(err, index.ErrFull) {
			h.fail("%v", err)
		}
	}
}

// raceFlood has others store so much that the bound is passed.
func (h *history) raceFlood() {
	for h.ticks() {
		if err := h.flood.pass(leastBound / 8); err != nil && !errors.Is(err, index.ErrFull) {
			h.fail("%v", err)
		}
	}
}

// raceRemove removes the pod of racing sources now and then.
func (h *history) raceRemove(sources []index.Source) {
	for n := 0; h.ticks(); n++ {
		if n%8 > 0 {
			continue
		}
		for _, src := range sources {
			h.racers[src].begin(h, racers, true, nil)
		}
		if err := h.ix.Remove(ctx, sources[0].Pod); err != nil {
			h.fail("%v", err)
		}
		for _, src := range sources {
			h.racers[src].end(h, racers)
		}
		h.saw.removals.Add(1)
	}
}

// late reports whether the test binary is about to be ended.
func (h *history) late() bool {
	deadline, ok := h.t.Deadline()
	return ok && time.Until(deadline) < 10*time.Second
}

// read queries prompts and checks the answers until enough was seen.
func (h *history) read(seed uint64, prompts []string, candidates []*index.Candidates, enough func(*sightings) bool) {
	r := rand.New(rand.NewPCG(seed, 5))
	for _, c := range candidates { // and some that no other reader has
		candidates = append(candidates[:len(candidates):len(candidates)], index.NewCandidates(c.Model(), c.Pods()))
	}
	keys := map[string]map[int][]index.Key{}
	for _, p := range prompts {
		keys[p] = map[int][]index.Key{}
		for _, unit := range []int{8, 16} {
			keys[p][unit], _ = keysOf(p)(index.Variant{Unit: unit})
		}
	}
	var got index.Matches
	for h.running() {
		c := candidates[r.IntN(len(candidates))]
		p := prompts[r.IntN(len(prompts))]
		q := index.Query{Candidates: c, Held: r.IntN(3) == 0, Keys: func(v index.Variant) ([]index.Key, error) { return keys[p][v.Unit], nil }}
		from := h.clock.Add(1)
		err := h.ix.Match(ctx, &q, &got)
		to := h.clock.Add(1)
		if err != nil {
			h.fail("%v", err)
		} else if diff := h.check(p, &q, got.Rows, from, to); diff != "" {
			h.fail("%s, held %v, of %d pods of %s, between %d and %d: %s", p, q.Held, len(c.Pods()), c.Model(), from, to, diff)
		}
		// Where a write takes as long as some answers, a tick for each answer
		// would leave no moment in which nobody writes.
		if h.saw.racedSurely.Load()*20 >= h.saw.raced.Load() || r.IntN(8) == 0 {
			select {
			case h.tick <- struct{}{}:
			default:
			}
		}
		switch n := h.saw.matches.Add(1); {
		case n%256 != 0:
		case enough(&h.saw):
			h.finish()
		case h.late():
			h.fail("too little was seen before the deadline of the test: %v", &h.saw)
		}
	}
}

// check returns the impossible parts of an answer.
func (h *history) check(prompt string, q *index.Query, rows []index.Row, from, to uint64) string {
	if diff := apart(rows); diff != "" {
		return diff
	}
	of := map[index.Source][]index.Row{}
	for _, r := range rows {
		for _, o := range of[r.Source] {
			if o.Group.ID == r.Group.ID && o.BlockSize == r.BlockSize {
				return fmt.Sprintf("two rows: %s\nand %s", rowText(o), rowText(r))
			}
		}
		of[r.Source] = append(of[r.Source], r)
	}
	pods := q.Candidates.Pods()
	asked := func(src index.Source) bool {
		return src.Model == q.Candidates.Model() && (pods == nil || slices.Contains(pods, src.Pod))
	}
	for src, l := range h.logs {
		if !asked(src) {
			continue
		}
		before, during, ok := l.between(from, to)
		if !ok {
			h.saw.late.Add(1)
		} else if len(during) == 0 && h.flood == nil {
			if diff := compareRows(of[src], before.of(h, src, prompt), pods, q.Held, &firings{}); diff != "" {
				return fmt.Sprintf("nobody writes to %v: %s", src, diff)
			}
			h.saw.exact.Add(int64(len(of[src])))
		} else if diff := h.checkDuring(prompt, of[src], before, during); diff != "" {
			return fmt.Sprintf("%v: %s", src, diff)
		} else if len(during) == 0 {
			h.saw.exact.Add(int64(len(of[src])))
		}
		delete(of, src)
	}
	for src, l := range h.racers {
		if !asked(src) {
			continue
		}
		if diff := h.checkRace(prompt, of[src], l, from, to); diff != "" {
			return fmt.Sprintf("%v: %s", src, diff)
		}
		delete(of, src)
	}
	for _, rows := range of {
		return "there is a row " + rowText(rows[0])
	}
	return ""
}

// checkDuring checks the rows of a source during writes.
func (h *history) checkDuring(prompt string, rows []index.Row, before *snapshot, during []*snapshot) string {
	for i := range rows {
		r := &rows[i]
		id := rowID{r.Group.ID, r.BlockSize}
		prefix := func(b int) int { return h.block(prompt, r.BlockSize, b) }
		if h.flood != nil {
			id.size = 0
		}
		may := func(t index.Tier, b int) bool {
			return before.has(id, t, prefix(b)) ||
				slices.ContainsFunc(during, func(s *snapshot) bool { return s.has(id, t, prefix(b)) })
		}
		if diff := h.checkRow(r, blocksOf(prompt, r.BlockSize), may); diff != "" {
			return fmt.Sprintf("%s: %s", rowText(*r), diff)
		}
		run := 0
		for any := true; any && run < blocksOf(prompt, r.BlockSize); {
			any = false
			for t := range index.Tier(index.NumTiers) {
				any = any || before.has(id, t, prefix(run))
			}
			if any {
				run++
			}
		}
		switch {
		case int(r.Run) < run:
			h.saw.cut.Add(1)
		case int(r.Run) > run:
			h.saw.grown.Add(1)
		}
		h.saw.overlapped.Add(1)
	}
	return ""
}

// checkRow checks that each block that a row claims may be held in the tier of the claim.
func (h *history) checkRow(r *index.Row, blocks int, may func(index.Tier, int) bool) string {
	if int(r.Run) > blocks || r.GPU > r.Run {
		return fmt.Sprintf("of %d blocks", blocks)
	}
	h.saw.claims.Add(int64(r.Run))
	sum, possible := int32(0), [index.NumTiers]int32{}
	for _, n := range r.Tiers {
		sum += n
	}
	for b := range int(r.Run) {
		any := false
		for t := range index.Tier(index.NumTiers) {
			if may(t, b) {
				any = true
				possible[t]++
			}
		}
		if !any || b < int(r.GPU) && !may(index.TierGPU, b) {
			return fmt.Sprintf("block %d is not held", b)
		}
	}
	for t, n := range r.Tiers {
		if n > possible[t] {
			return fmt.Sprintf("%d blocks are held in %v", possible[t], index.Tier(t))
		}
	}
	if sum != r.Run {
		return "the tiers are wrong"
	}
	if r.Held == nil {
		if r.Run == 0 {
			return "it is empty"
		}
		return ""
	}
	var held modelRow
	for t := range index.Tier(index.NumTiers) {
		copy(held.held[t][:], r.Held[t])
		for b := range blocks {
			if held.held[t].has(b) {
				h.saw.claims.Add(1)
				if !may(t, b) {
					return fmt.Sprintf("block %d is not held in %v", b, t)
				}
			}
		}
	}
	if o := held.row(); o.Run != r.Run || o.GPU != r.GPU || o.Tiers != r.Tiers {
		return fmt.Sprintf("its bits say %+v", o)
	}
	return ""
}

func (h *history) checkRace(prompt string, rows []index.Row, l *raceLog, from, to uint64) string {
	may, must, quiet := l.between(from, to)
	prefix := func(b int) int { return h.block(prompt, 16, b) }
	sure := 0
	for quiet && sure < promptBlocks && must.has(prefix(sure)) {
		sure++
	}
	if len(rows) == 0 {
		h.saw.racedGone.Add(1)
		if sure > 0 && h.flood == nil {
			return fmt.Sprintf("there is no row, but %d blocks are held", sure)
		}
		return ""
	}
	r := &rows[0]
	if len(rows) > 1 || r.BlockSize != 16 || r.Group.ID != 0 {
		return fmt.Sprintf("rows %+v", rows)
	}
	diff := h.checkRow(r, promptBlocks, func(t index.Tier, b int) bool { return t == index.TierGPU && may.has(prefix(b)) })
	if diff == "" && int(r.Run) < sure && h.flood == nil {
		diff = fmt.Sprintf("%d blocks are held", sure)
	}
	if diff != "" {
		return fmt.Sprintf("%s: %s", rowText(*r), diff)
	}
	h.saw.raced.Add(1)
	if sure > 0 {
		h.saw.racedSurely.Add(1)
	}
	return ""
}

// testHistory runs writers and readers until enough was seen: first all sorts of
// them, then one of each, because races of a few instructions need two processors
// that do nothing else.
func testHistory(t *testing.T, open func(testing.TB, Config) index.Index, of Config) {
	ix := open(t, of)
	defer ix.Close()
	h := newHistory(t, ix)
	if of.Bytes != 0 {
		if !isBounded(ix) {
			t.Log("the backend has no bound in bytes")
			return
		}
		h.flood = &flood{ix: ix}
	}
	pods := []string{"nobody", "raced", "flicker"}
	for n := range 60 {
		pods = append(pods, fmt.Sprint("still ", n))
		h.writeStill(index.Source{Pod: pods[len(pods)-1], Model: "m"}, 1+n%promptBlocks)
	}
	first := h.flicker(index.Source{Pod: "flicker", Model: "m"}, 0)
	last := h.flicker(index.Source{Pod: "flicker", Model: "m", Rank: 1}, promptBlocks-1)
	var work []func()
	for n := range 3 {
		var sources []index.Source
		for i := range 3 {
			pod := fmt.Sprint("writer ", n, i)
			pods = append(pods, pod)
			for rank := range 1 + i {
				src := index.Source{Pod: pod, Model: "m", Rank: n + rank}
				h.logs[src] = &sourceLog{}
				sources = append(sources, src)
			}
		}
		work = append(work, func() { h.write(uint64(n), sources) })
	}
	raced := []index.Source{{Pod: "raced", Model: "m"}, {Pod: "raced", Model: "of its own"}} // a model that comes and goes
	for _, src := range raced {
		h.racers[src] = &raceLog{}
		for who := range racers {
			work = append(work, func() { h.race(who, src) })
		}
	}
	work = append(work, func() { h.raceRemove(raced) })
	if h.flood != nil {
		work = append(work, h.raceFlood)
	}
	var candidates []*index.Candidates
	for _, src := range raced {
		candidates = append(candidates, index.NewCandidates(src.Model, nil), index.NewCandidates(src.Model, pods))
	}
	evicted := func() uint64 { return ix.(index.Describer).MemoryUsage().Evicted }
	enough := func(s *sightings) bool {
		return s.enough() && (h.flood == nil || evicted() >= uint64(choose(100, 200, 2000)))
	}
	for n := range 3 {
		work = append(work, func() { h.read(uint64(n), h.prompts, candidates, enough) })
	}
	h.run(work...)
	t.Log(&h.saw)
	if h.flood != nil {
		t.Logf("%d blocks were evicted", evicted())
		return
	}
	before := h.saw.overlapped.Load()
	for n, write := range []func(){first, last} {
		matches, overlapped := h.saw.matches.Load()+int64(choose(50, 150, 1500)), h.saw.overlapped.Load()+int64(choose(20, 50, 500))
		enough := func(s *sightings) bool { return s.matches.Load() >= matches && s.overlapped.Load() >= overlapped }
		h.run(write, func() { h.read(uint64(10+n), h.prompts[:1], candidates[:2], enough) })
	}
	t.Logf("%d rows of sources with a block that came or went, %d times in all", h.saw.overlapped.Load()-before, h.saw.flickers.Load())
}

// run does work at once, until one of it has it finish.
func (h *history) run(work ...func()) {
	if h.t.Failed() {
		return
	}
	h.done = make(chan struct{})
	h.finish = sync.OnceFunc(func() { close(h.done) })
	var wg sync.WaitGroup
	for _, f := range work {
		wg.Go(f)
	}
	wg.Wait()
}

// store announces n blocks of 16 tokens of a prompt.
func store(prompt string, n int) op {
	o := op{kind: index.OpStore, copies: index.CopiesExact, blockShape: blockShape{16, 16}, from: prompt[:1], to: prompt[:1+2*n]}
	for b := range n {
		o.blocks = append(o.blocks, prompt[:3+2*b])
	}
	return o
}

// copied is the blocks of a store in the cpu tier.
func copied(o op) op {
	o.bare, o.tier = true, index.TierCPU
	return o
}

// writeStill has a source hold blocks for good: some of two prompts.
func (h *history) writeStill(src index.Source, n int) {
	h.logs[src] = &sourceLog{}
	var ops []op
	for _, p := range []string{h.prompts[0], h.prompts[4]} {
		o := store(p, n)
		cpu, gone := copied(o), op{kind: index.OpRemove}
		cpu.blocks, gone.blocks = o.blocks[n/2:], o.blocks[n-n/4:]
		ops = append(ops, o, cpu, gone)
	}
	h.writeOps(newWorld(0), src, model{}.source(src), ops, &snapshot{})
}

// flicker has a source that keeps a prompt in the cpu tier lose and regain one
// of its blocks in the gpu, as fast as it can.
func (h *history) flicker(src index.Source, block int) (write func()) {
	h.logs[src] = &sourceLog{}
	w := newWorld(0)
	s := model{}.source(src)
	all := store(h.prompts[0], promptBlocks)
	with := h.writeOps(w, src, s, []op{all, copied(all)}, &snapshot{})
	remove := op{kind: index.OpRemove, blocks: all.blocks[block : block+1]}
	back := store(all.to, block+1)
	if back.blocks = remove.blocks; block > 0 {
		back.from = back.blocks[0][:1+2*block]
		back.parent = back.from
	}
	without := h.writeOps(w, src, s, []op{remove}, with)
	changes := [2][]index.Change{{w.change(&back)}, {w.change(&remove)}}
	n := 0 // goes on when the func is called again
	return func() {
		for ; h.running(); n++ {
			h.logs[src].begin(h, with, []*snapshot{with, without}[n%2])
			_, err := h.ix.Apply(ctx, src, index.Cursor{}, changes[n%2])
			h.logs[src].end(h)
			if err != nil {
				h.fail("%v", err)
			}
			h.saw.flickers.Add(1)
		}
	}
}
