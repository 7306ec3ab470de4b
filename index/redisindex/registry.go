package redisindex

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/redis/go-redis/v9"
)

// The registry is a hash of a model, with a version that never repeats: it begins with the
// mark of the seed, the writer and the commit, and ends with the server's time, because a
// script may run twice. A reader compares only the version.
//
// # A lease for each part of the keys
//
// In a cluster, one server may fail over while the others go on. So buckets are in 64 parts,
// each in one hash slot, with a token and a lease of its own. The lease of a part is renewed
// together with its token. A reader of a bucket requests the lease of its part, at most twice
// a second, and uses it no longer than it lasts. Without a cluster there is one part.

// A registry is that of a model, as a reader has it. It never changes. It is valid as long as
// Redis has the same version.
type registry struct {
	version  string
	sources  []*registeredSource // ordered by pod, then rank
	views    []place             // in the order of sources
	lanes    []laneOf            // in the order of views
	variants []index.Variant
	writers  []uint64
	numbers  map[uint64]*numbers // by writer
}

// A registeredSource is a source in a registry.
type registeredSource struct {
	index.Source
	*row
	text  string // of row
	views []*view
	bits  bool // its rows always have bits
}

// A view is a row of a Match: the lanes that differ only in their tier.
type view struct {
	index.View
	variant index.Variant
	units   int // of a block
	evicted bool
	lanes   []lane
}

// A place is a view in a registry. Its lanes are lanes[first:last] there.
type place struct {
	*view
	source      int32
	first, last int32
}

// laneOf is a lane in a registry: the place of its view, and its tier.
type laneOf struct {
	place int32
	tier  index.Tier
}

// numbers finds lanes by the numbers of one writer.
type numbers struct {
	first uint32
	dense []int32          // place plus one, from first on
	rest  map[uint32]int32 // instead, if numbers are far apart
}

func (n *numbers) find(number uint32) int32 {
	if n.rest != nil {
		return n.rest[number]
	}
	if i := number - n.first; uint64(i) < uint64(len(n.dense)) && number >= n.first {
		return n.dense[i]
	}
	return 0
}

// newNumbers finds the lanes of a writer, by number. A number that comes twice has no lane.
func newNumbers(by map[uint32]int32) *numbers {
	n := &numbers{first: ^uint32(0)}
	last := uint32(0)
	for number := range by {
		n.first, last = min(n.first, number), max(last, number)
	}
	if int64(last)-int64(n.first) > int64(16*len(by)+4096) {
		n.rest = by
		return n
	}
	n.dense = make([]int32, last-n.first+1)
	for number, at := range by {
		n.dense[number-n.first] = at
	}
	return n
}

// A registryCache keeps the registry of a model, and lets one caller at a time fetch it.
type registryCache struct {
	turn
	now atomic.Pointer[registry]
	all *index.Candidates // of the model
	fed atomic.Bool       // this process has fed a source of it
}

// A turn is a lock whose waiters respect their contexts.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) unlock() { <-t }

func (ix *redisIndex) cacheOf(model string) *registryCache {
	if c, ok := ix.readers.Load(model); ok {
		return c.(*registryCache)
	}
	c, _ := ix.readers.LoadOrStore(model, &registryCache{turn: newTurn(), all: index.NewCandidates(model, nil)})
	return c.(*registryCache)
}

// feeds reports whether this process has fed a source of a model.
func (ix *redisIndex) feeds(model string) bool {
	c, ok := ix.readers.Load(model)
	return ok && c.(*registryCache).fed.Load()
}

// fetch returns the registry of a model in a recent version, or a newer one.
func (ix *redisIndex) fetch(ctx context.Context, model, version string) (*registry, error) {
	c := ix.cacheOf(model)
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.unlock()
	defer ix.forgetModel(model, c)
	was := c.now.Load()
	if was != nil && was.version == version {
		return was, nil
	}
	p := ix.client.Pipeline()
	rows := p.HGetAll(ctx, ix.names.registry(model))
	if err := exec(ctx, p); err != nil {
		return nil, fmt.Errorf("the registry of model %q: %w", model, err)
	}
	r, err := ix.read(model, rows.Val(), was)
	if err != nil {
		return nil, err
	}
	c.now.Store(r)
	return r, nil
}

// forgetModel drops the cache of a model without a registry, because clients may name any
// model.
func (ix *redisIndex) forgetModel(model string, c *registryCache) {
	ix.mu.Lock() // fed is set under it
	defer ix.mu.Unlock()
	if r := c.now.Load(); !c.fed.Load() && (r == nil || r.version == "") {
		ix.readers.CompareAndDelete(model, c)
	}
}

// read makes a registry of its rows. It reuses the sources of was whose rows have not changed.
func (ix *redisIndex) read(model string, rows map[string]string, was *registry) (*registry, error) {
	r := &registry{version: rows[versionField], numbers: make(map[uint64]*numbers)}
	if err := ix.ours(r.version); err != nil {
		return nil, err
	}
	known := make(map[index.Source]*registeredSource)
	if was != nil {
		for _, l := range was.sources {
			known[l.Source] = l
		}
	}
	for field, text := range rows {
		if field == versionField {
			continue
		}
		src, ok := sourceOf(model, field)
		if l := known[src]; ok && l != nil && l.text == text {
			r.sources = append(r.sources, l)
			continue
		}
		of, fine := readRow(text)
		if !ok || !fine {
			ix.unreadable.Add(1)
			continue
		}
		r.sources = append(r.sources, list(src, of, text))
	}
	slices.SortFunc(r.sources, func(a, b *registeredSource) int { return compareSources(a.Source, b.Source) })
	r.number()
	return r, nil
}

func compareSources(a, b index.Source) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank))
}

// ours returns an error if a version belongs to an index with another seed.
func (ix *redisIndex) ours(version string) error {
	if version != "" && (len(version) < len(ix.mark) || version[:len(ix.mark)] != ix.mark) {
		return ErrSeed
	}
	return nil
}

// list makes the views of a source.
func list(src index.Source, of *row, text string) *registeredSource {
	l := &registeredSource{Source: src, row: of, text: text}
	l.bits = len(of.layout.Groups) != 1 || of.layout.Groups[0].Kind != index.GroupFull
	for _, ln := range of.lanes {
		v := l.viewOf(&ln)
		v.evicted = v.evicted || ln.evicted
		v.lanes = append(v.lanes, ln)
	}
	return l
}

// viewOf returns the view of a lane, or adds it.
func (l *registeredSource) viewOf(ln *lane) *view {
	for _, v := range l.views {
		if v.Group.ID == ln.group.ID && v.variant == ln.variant && v.BlockSize == ln.size {
			return v
		}
	}
	v := &view{variant: ln.variant, units: ln.size / ln.variant.Unit, View: index.View{
		Source: l.Source, Group: ln.group, BlockSize: ln.size, Pairs: ln.variant.Pairs, Layout: l.layout,
	}}
	l.views = append(l.views, v)
	return v
}

// number assigns places to views and lanes.
func (r *registry) number() {
	by := make(map[uint64]map[uint32]int32)
	for i, l := range r.sources {
		if by[l.writer] == nil {
			by[l.writer] = make(map[uint32]int32)
			r.writers = append(r.writers, l.writer)
		}
		for _, v := range l.views {
			if !slices.Contains(r.variants, v.variant) {
				r.variants = append(r.variants, v.variant)
			}
			at := place{v, int32(i), int32(len(r.lanes)), int32(len(r.lanes) + len(v.lanes))}
			for _, ln := range v.lanes {
				r.lanes = append(r.lanes, laneOf{int32(len(r.views)), ln.tier})
				if n := by[l.writer]; n[ln.number] == 0 {
					n[ln.number] = int32(len(r.lanes))
				} else {
					n[ln.number] = -1
				}
			}
			r.views = append(r.views, at)
		}
	}
	for writer, numbers := range by {
		r.numbers[writer] = newNumbers(numbers)
	}
}

// doubts reports whether buckets that were fetched before now was may have outdated sections
// of a source that now would show.
func (r *registry) doubts(now *registry) bool {
	was := r.sources
	for _, l := range now.sources {
		for len(was) > 0 && compareSources(was[0].Source, l.Source) < 0 {
			was = was[1:]
		}
		same := len(was) > 0 && was[0].Source == l.Source && was[0].writer == l.writer && !was[0].behind
		if !same && !l.behind && len(l.lanes) > 0 {
			return true
		}
	}
	return false
}

// leases has the known leases of writers.
type leases struct {
	mu sync.Mutex
	of map[leaseKey]leaseState
}

type leaseKey struct {
	writer uint64
	part   part
}

// leaseState is until when a lease counts, and when it was requested.
type leaseState struct{ until, asked time.Time }

const (
	// leaseAge bounds the age of an answer: readers must soon see that a writer has ended its
	// lease.
	leaseAge  = 500 * time.Millisecond
	maxLeases = 1 << 16
)

// holds reports whether a lease counts now, and whether that is known. The absence of a lease
// is known if it was requested after since: a writer may have got it after an earlier request.
func (l *leases) holds(k leaseKey, now, since time.Time) (holds, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.of[k]
	if holds = now.Before(st.until); holds {
		return true, now.Sub(st.asked) < leaseAge
	}
	return false, st.until.IsZero() && !st.asked.IsZero() && !st.asked.Before(since)
}

// note records the answer to a request at a time: how long the lease lasts.
func (l *leases) note(k leaseKey, asked time.Time, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of) >= maxLeases {
		maps.DeleteFunc(l.of, func(_ leaseKey, st leaseState) bool { return asked.Sub(st.asked) >= leaseAge })
	}
	if l.of == nil || len(l.of) >= maxLeases {
		l.of = make(map[leaseKey]leaseState)
	}
	st := leaseState{asked: asked}
	if lasts > 0 {
		st.until = asked.Add(lasts)
	}
	l.of[k] = st
}

// A leaseQuestion is a request for a lease in a pipeline.
type leaseQuestion struct {
	leaseKey
	reply *redis.DurationCmd
}
