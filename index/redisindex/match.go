package redisindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/redis/go-redis/v9"
)

// A Match uses a registry that it has from before, and fetches its present version with the
// first buckets. It fetches 16 buckets, then more and more, as long as a view holds all of
// them.
//
// Each claim of a Match was true at one moment while it ran: the bucket had it when it was
// fetched, and the registry in the version that came along named its writer. The order of the
// two does not matter. The registry names a number without a gap until its holder is removed.
// A writer's section is true about a number while it is there, whether the registry names the
// number already or not. But that holds for the writer of a source that is not behind, and not
// for its earlier sections. So if a source has another writer now, or one that was behind has
// caught up, the buckets are fetched again (registry.doubts).
//
// Readers have no cache of buckets. It would have to follow all changes, and then a reader is
// a writer's relay. They keep the registry, because each Match fetches its version.
//
// A first trip of two buckets would save a server work for prompts that no pod holds. But a
// missing bucket costs a server a fraction of a microsecond, and a second trip costs a reader
// some 50.

// steps are how many buckets of each variant the trips fetch, the last one for all further
// trips. A missing bucket costs a server less than a trip costs the reader, so the first trip
// has as many as most prompts. allSteps are for queries that need all buckets.
var (
	steps    = []int{16, 112, 448}
	allSteps = []int{128, 448}
)

// A walker is the memory of a Match.
type walker struct {
	ix      *redisIndex
	q       *index.Query
	r       *registry
	who     *resolution
	began   time.Time
	paths   []path
	asked   []bucketQuery // fetched ones, and then those of the present trip
	parts   []part        // of the fetched keys
	leases  []leaseQuestion
	written []leaseKey // the parts in which writers have sections
	stale   []bool     // by writer, as in registry.writers

	at      []int // of lanes: where their bits begin in words, plus one; 0: they have none
	words   []uint64
	holding []uint64 // a bit for each view that has lanes with bits, by its place
	held    [][index.NumTiers][]uint64
	used    index.Matches // of the Memory

	// Of find: the path, the unit at which the bucket begins, the writer's numbers, and
	// whether the bucket is split.
	path    *path
	unit    int
	numbers *numbers
	isSplit bool
}

// A path is a prompt in one variant.
type path struct {
	variant index.Variant
	keys    []index.Key
	next    int       // unit: where the next bucket begins
	pending []ref     // parts of split buckets
	running []viewRun // views with a match whose runs may go on
	units   int       // of the largest block of a view that may begin a run; 0: there is none
	whole   bool      // all of it is needed
	done    bool
}

// A viewRun is a view, by its place, and the number of its leading blocks that are known to be held.
type viewRun struct {
	place int
	run   int
}

// A ref is a bucket of a path, by the unit at which it begins.
type ref struct{ level, unit int }

// parts returns the units at which the parts of a bucket begin, in a path of n units.
func (of ref) parts(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		end := min(of.unit+spans[of.level], n)
		for unit := of.unit; unit < end && yield(unit); unit += spans[of.level+1] {
		}
	}
}

// A bucketQuery is a bucket that was requested from Redis.
type bucketQuery struct {
	ref
	path  int
	part  part
	name  string
	value string
	// split is the known split when its parts were requested; nil: they were not.
	split *split
}

// Match implements index.Index. Its errors are those of Redis, or of a context that ended: the
// second kind includes the reason why Redis did not answer, once it is known. A context should
// have a deadline: go-redis notices a cancellation only when Redis answers, or after its
// ReadTimeout. See Config.Degrade.
func (ix *redisIndex) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	m.Reset()
	if err := ix.usable(ctx); err != nil {
		return err
	}
	if q.Candidates == nil {
		return fmt.Errorf("%w: the query has no Candidates", index.ErrInvalid)
	}
	w, ok := m.Memo.(*walker)
	if !ok {
		w = new(walker)
		m.Memo = w
	}
	w.ix, w.q = ix, q
	err := w.match(ctx, m)
	w.release()
	var asked *askError
	if ix.c.Degrade && errors.As(err, &asked) && !errors.Is(ctx.Err(), context.Canceled) {
		m.Reset()
		m.Degraded, err = err, nil
	}
	return err
}

func (w *walker) release() {
	w.ix, w.q, w.r, w.who, w.path, w.numbers = nil, nil, nil, nil, nil, nil
	for i := range w.paths {
		w.paths[i].keys = nil
	}
	clear(w.asked)
}

func (w *walker) match(ctx context.Context, m *index.Matches) error {
	model := w.q.Candidates.Model()
	r := w.ix.cacheOf(model).now.Load()
	w.began = time.Now()
	w.paths, w.parts = w.paths[:0], append(w.parts[:0], registryPart(model))
	for done := false; !done; {
		var err error
		if r == nil {
			r, err = w.ix.fetch(ctx, model, "")
		}
		if err == nil {
			if err := w.addPaths(r); err != nil {
				return err
			}
			r, done, err = w.follow(ctx, r)
		}
		if err != nil {
			return w.ix.failed(err, w.parts...)
		}
	}
	if err := w.use(ctx); err != nil {
		return err
	}
	w.answer(m)
	return nil
}

// use reports the use of a prompt to the Memory, which evicts by it at its bound.
func (w *walker) use(ctx context.Context) error {
	model := w.q.Candidates.Model()
	if !w.ix.feeds(model) {
		return nil
	}
	return w.ix.mem.Match(ctx, &index.Query{
		Candidates: w.ix.cacheOf(model).all,
		Keys: func(v index.Variant) ([]index.Key, error) {
			if p := w.pathOf(v); p != nil {
				return p.keys, nil
			}
			return nil, nil
		},
	}, &w.used)
}

// addPaths adds the paths that the candidates need. After a new one all buckets are fetched
// again, because a Match answers for a time after the last call of Keys.
func (w *walker) addPaths(r *registry) error {
	w.resolve(r)
	for _, need := range w.who.needs {
		if w.pathOf(need.variant) != nil {
			continue
		}
		keys, err := w.q.Keys(need.variant)
		if err != nil {
			return err
		}
		n := len(w.paths)
		w.paths = slices.Grow(w.paths, 1)[:n+1]
		w.paths[n].variant, w.paths[n].keys = need.variant, keys
	}
	return nil
}

func (w *walker) pathOf(v index.Variant) *path {
	for i := range w.paths {
		if w.paths[i].variant == v {
			return &w.paths[i]
		}
	}
	return nil
}

// resolve finds the sources of r among the candidates.
func (w *walker) resolve(r *registry) {
	if w.who != nil && w.who.of == r {
		return
	}
	c := w.q.Candidates
	if known, ok := c.Memo().(*resolution); ok && known.of == r {
		w.who = known
		return
	}
	w.who = resolve(r, c)
	c.SetMemo(w.who)
}

// follow fetches the buckets that the candidates may hold by r. If Redis has another registry
// than r, it goes on with that one, and returns it. done: the answer is complete; else that
// registry needs other paths.
func (w *walker) follow(ctx context.Context, r *registry) (now *registry, done bool, err error) {
	w.asked, w.parts = w.asked[:0], append(w.parts[:0], registryPart(w.q.Candidates.Model()))
	for i := range w.paths {
		p := &w.paths[i]
		p.next, p.pending = 0, p.pending[:0]
	}
	w.begin(r)
	for trip := 0; ; trip++ {
		version, err := w.trip(ctx, trip)
		if err != nil {
			return nil, false, err
		}
		if trip == 0 && version != r.version {
			was := r
			if r, err = w.ix.fetch(ctx, w.q.Candidates.Model(), version); err != nil {
				return nil, false, err
			}
			if was.doubts(r) {
				return r, false, nil
			}
			w.resolve(r)
			for _, need := range w.who.needs {
				if w.pathOf(need.variant) == nil {
					return r, false, nil
				}
			}
			w.begin(r)
			for i := range w.asked {
				w.look(&w.asked[i])
			}
		}
		if more := w.goesOn(); !more && (w.checkLeases() || trip > 4) {
			return r, true, nil
		}
	}
}

// begin starts the search with r.
func (w *walker) begin(r *registry) {
	w.r = r
	w.resolve(r)
	w.at = slices.Grow(w.at[:0], len(r.lanes))[:len(r.lanes)]
	clear(w.at)
	n := (len(r.views) + 63) / 64
	w.holding = slices.Grow(w.holding[:0], n)[:n]
	clear(w.holding)
	w.words, w.held, w.written = w.words[:0], w.held[:0], w.written[:0]
	for _, writer := range r.writers {
		w.written = append(w.written, leaseKey{writer, w.parts[0]})
	}
	for i := range w.paths {
		p := &w.paths[i]
		p.running, p.units, p.whole, p.done = p.running[:0], 0, false, false
	}
	for _, need := range w.who.needs {
		p := w.pathOf(need.variant)
		p.whole = need.bits || w.q.Held
		if !w.q.Held {
			p.units = need.units
		}
	}
}

// trip fetches the next buckets, with the first trip the version of the registry, and unknown
// leases.
func (w *walker) trip(ctx context.Context, n int) (version string, err error) {
	model := w.q.Candidates.Model()
	from := len(w.asked)
	for i := range w.paths {
		w.choose(i, n)
	}
	now := w.asked[from:]
	if w.ix.names.parts > 1 {
		slices.SortStableFunc(now, func(a, b bucketQuery) int { return cmp.Compare(a.part, b.part) })
	}
	p := w.ix.client.Pipeline()
	var v *redis.StringCmd
	if n == 0 {
		v = p.HGet(ctx, w.ix.names.registry(model), versionField)
	}
	var replies []*redis.SliceCmd
	for left := now; len(left) > 0; {
		same := 1
		for same < len(left) && left[same].part == left[0].part {
			same++
		}
		names := make([]string, same)
		for i := range names {
			names[i] = left[i].name
		}
		replies = append(replies, p.MGet(ctx, names...))
		if !slices.Contains(w.parts, left[0].part) {
			w.parts = append(w.parts, left[0].part)
		}
		left = left[same:]
	}
	began := time.Now()
	w.leases = w.leases[:0]
	for _, writer := range w.r.writers {
		for _, of := range w.parts {
			k := leaseKey{writer, of}
			if _, known := w.ix.leases.holds(k, began, w.began); !known {
				w.leases = append(w.leases, leaseQuestion{k, p.PTTL(ctx, w.ix.names.lease(of, writer))})
			}
		}
	}
	if p.Len() == 0 {
		return "", nil
	}
	if err := exec(ctx, p); err != nil {
		return "", err
	}
	for _, l := range w.leases {
		w.ix.leases.note(l.leaseKey, began, l.reply.Val())
	}
	for _, reply := range replies {
		for _, value := range reply.Val() {
			now[0].value, _ = value.(string)
			w.look(&now[0])
			now = now[1:]
		}
	}
	if v != nil {
		version = v.Val()
		err = w.ix.ours(version)
	}
	return version, err
}

// choose adds the buckets of a path for trip n.
func (w *walker) choose(i, n int) {
	p := &w.paths[i]
	if p.done {
		return
	}
	for _, of := range p.pending {
		w.ask(i, of)
	}
	p.pending = p.pending[:0]
	buckets := steps[min(n, len(steps)-1)]
	if p.whole {
		buckets = allSteps[min(n, len(allSteps)-1)]
		if skip := w.q.Behind / p.variant.Unit / spans[0] * spans[0]; w.q.Held && p.next < skip {
			p.next = skip
		}
	}
	for ; buckets > 0 && p.next < len(p.keys); buckets-- {
		w.ask(i, ref{0, p.next})
		p.next += spans[0]
	}
}

// ask adds a bucket of a path to the trip, and its parts if it was split before.
func (w *walker) ask(path int, of ref) {
	keys := w.paths[path].keys
	k := keys[of.unit]
	split := w.ix.splits.get(of.level, k)
	w.asked = append(w.asked, bucketQuery{ref: of, path: path, part: w.ix.names.partOf(k), name: w.ix.names.bucket(of.level, k), split: split})
	if split != nil {
		for unit := range of.parts(len(keys)) {
			w.ask(path, ref{of.level + 1, unit})
		}
	}
}

// look reads a fetched bucket.
func (w *walker) look(b *bucketQuery) {
	p := &w.paths[b.path]
	w.path, w.unit = p, b.unit
	keys := p.keys[b.unit:min(b.unit+spans[b.level], len(p.keys))]
	found, isSplit := split{level: b.level, name: keys[0]}, false
	fine := b.value == "" || sections(b.value, func(writer, seq uint64, body string) bool {
		if w.numbers = w.r.numbers[writer]; w.numbers == nil || body == "" {
			return true
		}
		if k := (leaseKey{writer, b.part}); !slices.Contains(w.written, k) {
			w.written = append(w.written, k)
		}
		w.isSplit = false
		fine := find(body, keys, w)
		if w.isSplit {
			isSplit = true
			found.by += index.Chain(index.Key(writer), index.Local(seq))
		}
		return fine
	})
	if !fine {
		w.ix.unreadable.Add(1)
	}
	switch {
	case b.level == levels-1:
	case !isSplit:
		if b.split != nil {
			w.ix.splits.forget(b.split)
		}
	case b.split == nil || *b.split != found:
		b.split = new(split)
		*b.split = found
		w.ix.splits.put(b.split)
		for unit := range b.parts(len(p.keys)) {
			p.pending = append(p.pending, ref{b.level + 1, unit})
		}
	}
}

// A split is a bucket that was split when it was last seen. by is the sum of the writers that
// had split it, and of the times. If that has not changed, its parts were there before, and
// may be fetched together with it.
type split struct {
	level int
	name  index.Key
	by    index.Key
}

// splits has as many of them as fit. It is safe for concurrent use.
type splits [1 << 12]atomic.Pointer[split]

func (s *splits) at(level int, k index.Key) *atomic.Pointer[split] {
	return &s[(uint64(k)+uint64(level))%uint64(len(s))]
}

func (s *splits) get(level int, k index.Key) *split {
	if it := s.at(level, k).Load(); it != nil && it.level == level && it.name == k {
		return it
	}
	return nil
}

func (s *splits) put(it *split) { s.at(it.level, it.name).Store(it) }

func (s *splits) forget(it *split) { s.at(it.level, it.name).CompareAndSwap(it, nil) }

// split implements findings.
func (w *walker) split() { w.isSplit = true }

// holder implements findings.
func (w *walker) holder(number, mask uint32) {
	at := w.numbers.find(number)
	if at <= 0 {
		return
	}
	l := &w.r.lanes[at-1]
	v := &w.r.views[l.place]
	if w.who.pods[v.source] == nobody || v.variant != w.path.variant {
		return
	}
	if v.units == 1 {
		set := w.bitsOf(at-1, l, v)
		i, shift := w.unit/64, w.unit%64
		set[i] |= uint64(mask) << shift
		if more := uint64(mask) >> (64 - shift); more != 0 {
			set[i+1] |= more
		}
		return
	}
	for ; mask != 0; mask &= mask - 1 { // a block that does not begin at a multiple of its size is in no row
		if end := w.unit + bits.TrailingZeros32(mask) + 1; end%v.units == 0 {
			block := end/v.units - 1
			w.bitsOf(at-1, l, v)[block/64] |= 1 << (block % 64)
		}
	}
}

// bitsOf returns the bits of a lane, by its place: a bit for each block of the prompt.
func (w *walker) bitsOf(lane int32, l *laneOf, v *place) []uint64 {
	if w.at[lane] == 0 {
		n, from := (len(w.path.keys)/v.units+63)/64, len(w.words)
		w.words = slices.Grow(w.words, n)[:from+n]
		clear(w.words[from:])
		w.at[lane] = from + 1
		w.holds(l.place)
	}
	return w.words[w.at[lane]-1:]
}

// holds records that a view, by its place, holds a block.
func (w *walker) holds(place int32) {
	bit := uint64(1) << (place % 64)
	if w.holding[place/64]&bit != 0 {
		return
	}
	w.holding[place/64] |= bit
	if !w.q.Held && !w.r.sources[w.r.views[place].source].bits {
		w.path.running = append(w.path.running, viewRun{place: int(place)})
	}
}

// goesOn reports whether a view may hold more blocks than are known.
func (w *walker) goesOn() (more bool) {
	for i := range w.paths {
		p := &w.paths[i]
		if p.done {
			continue
		}
		known := min(p.next, len(p.keys))
		for _, of := range p.pending {
			known = min(known, of.unit)
		}
		kept := p.running[:0]
		for _, r := range p.running {
			v := &w.r.views[r.place]
			end := known / v.units
			if r.run = w.runOf(v, r.run, end); r.run == end {
				kept = append(kept, r)
			}
		}
		p.running = kept
		begins := known < p.units // so views without a match may hold their first block
		p.done = len(p.pending) == 0 && p.next >= len(p.keys) || !p.whole && !begins && len(kept) == 0
		more = more || !p.done
	}
	return more
}

// runOf returns the first block from from on that a view does not hold in any tier, or end.
func (w *walker) runOf(v *place, from, end int) int {
	for from < end {
		held := uint64(0)
		for _, at := range w.at[v.first:v.last] {
			if at > 0 {
				held |= w.words[at-1+from/64]
			}
		}
		first := from % 64
		n := bits.TrailingZeros64(^(held >> first))
		if from += n; first+n < 64 {
			break
		}
	}
	return min(from, end)
}

// checkLeases finds the writers whose rows are stale: they have no lease in a part from which
// one of their sections was used. In others they may have none: they have not written there.
// It reports whether all these leases are known. An answer is for this moment: a lease that
// ends later, before it was renewed for this reader, makes no row stale.
func (w *walker) checkLeases() (known bool) {
	known = true
	now := time.Now()
	w.stale = slices.Grow(w.stale[:0], len(w.r.writers))[:len(w.r.writers)]
	clear(w.stale)
	for _, k := range w.written {
		holds, sure := w.ix.leases.holds(k, now, w.began)
		known = known && sure
		if !holds {
			w.stale[slices.Index(w.r.writers, k.writer)] = true
		}
	}
	return known
}

// answer makes the rows.
func (w *walker) answer(m *index.Matches) {
	for i, word := range w.holding {
		for ; word != 0; word &= word - 1 {
			w.addRow(&w.r.views[64*i+bits.TrailingZeros64(word)], m)
		}
	}
}

// addRow adds the row of a view that holds a block.
func (w *walker) addRow(v *place, m *index.Matches) {
	n := len(w.held)
	w.held = slices.Grow(w.held, 1)[:n+1]
	held := &w.held[n]
	*held = [index.NumTiers][]uint64{}
	words := (len(w.pathOf(v.variant).keys)/v.units + 63) / 64
	for lane := v.first; lane < v.last; lane++ {
		if w.at[lane] == 0 {
			continue
		}
		set := w.words[w.at[lane]-1:][:words:words]
		tier := w.r.lanes[lane].tier
		if held[tier] == nil {
			held[tier] = set
			continue
		}
		for i, word := range set {
			held[tier][i] |= word
		}
	}
	of := w.r.sources[v.source]
	row := index.Row{View: &v.View, Pod: w.who.pods[v.source], Evicted: v.evicted, Held: held}
	row.Stale = of.behind || w.stale[slices.Index(w.r.writers, of.writer)]
	row.Count(words)
	if !w.q.Held && !of.bits {
		if row.Held = nil; row.Run == 0 {
			return
		}
	}
	m.Rows = append(m.Rows, row)
}

const nobody = -2

// A resolution maps the sources of a registry to candidates, and has the needs of their views.
type resolution struct {
	of    *registry
	pods  []int32 // of sources: the position among the candidates, -1 if these were not named, or nobody
	needs []need
}

// A need is the part of a prompt, in one variant, that some views have to look up.
type need struct {
	variant index.Variant
	units   int  // of the largest block of those whose rows have no bits; 0: there are none
	bits    bool // rows have bits
}

// resolve finds the sources of a registry among candidates.
func resolve(r *registry, c *index.Candidates) *resolution {
	found := &resolution{of: r, pods: make([]int32, len(r.sources))}
	by := make(map[string]int32, len(c.Pods()))
	for i, pod := range c.Pods() {
		by[pod] = int32(i)
	}
	for i, l := range r.sources {
		found.pods[i] = -1
		if c.Pods() != nil {
			at, ok := by[l.Pod]
			if !ok {
				at = nobody
			}
			found.pods[i] = at
		}
	}
	for i := range r.views {
		if v := &r.views[i]; found.pods[v.source] != nobody {
			found.add(v, r.sources[v.source].bits)
		}
	}
	return found
}

// add adds the need of a view.
func (r *resolution) add(v *place, bits bool) {
	i := slices.IndexFunc(r.needs, func(n need) bool { return n.variant == v.variant })
	if i < 0 {
		i = len(r.needs)
		r.needs = append(r.needs, need{variant: v.variant})
	}
	if n := &r.needs[i]; bits {
		n.bits = true
	} else {
		n.units = max(n.units, v.units)
	}
}
