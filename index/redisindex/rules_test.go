package redisindex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

// hand is a process whose writing goroutine is the test, which makes it commit and beat. Its leases
// last.
type hand struct {
	testing.TB
	*redisIndex
	server *redis.Client
	events uint64
}

// newHands returns processes of one index.
func newHands(tb testing.TB, n int) (all []*hand) {
	client := redistest.Standalone(tb).Client(tb)
	for range n {
		ix, err := newIndex(client, Config{Prefix: "h:", Lease: time.Minute})
		must(tb, err)
		ix.start.Do(func() {})
		tb.Cleanup(func() { ix.Close() })
		all = append(all, &hand{TB: tb, redisIndex: ix, server: client})
	}
	return all
}

// apply applies changes with an engine time, without writing them.
func (h *hand) apply(pod string, at float64, changes ...index.Change) {
	h.Helper()
	h.events++
	src, cur := index.Source{Pod: pod, Model: "m"}, index.Cursor{Stream: "s", Next: h.events, Time: at}
	if done, err := h.mem.Apply(h.Context(), src, cur, changes); err != nil || done.Duplicate {
		h.Fatalf("%+v, %v", done, err)
	}
	h.applied(src, cur)
}

// flush commits until everything is written.
func (h *hand) flush() {
	h.Helper()
	for range 20 {
		switch more, err := h.commit(h.Context()); {
		case err != nil:
			h.Fatal(err)
		case !more:
			return
		}
	}
	h.Fatal("there is always more to write")
}

// fail makes a commit of which nothing is carried out.
func (h *hand) fail() {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	cancel()
	if _, err := h.commit(ctx); !errors.Is(err, context.Canceled) {
		h.Fatalf("a commit that fails: %v", err)
	}
}

// rows matches a prompt after reading the leases again.
func (h *hand) rows(p *prompt) map[string]index.Row {
	h.Helper()
	h.leases.of = nil
	var m index.Matches
	q := &index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
	if err := h.Match(h.Context(), q, &m); err != nil {
		h.Fatal(err)
	}
	rows := make(map[string]index.Row)
	for _, r := range m.Rows {
		rows[r.Source.Pod] = r
	}
	return rows
}

// owner returns the writer of a pod, or 0.
func (h *hand) owner(pod string) uint64 {
	row := h.server.HGet(h.Context(), h.names.registry("m"), "s0 "+pod).Val()
	if len(row) < rowHead {
		return 0
	}
	return u64(row)
}

// keysLike returns the keys with a prefix of their own after Config.Prefix and the part.
func (h *hand) keysLike(begin string) []string {
	return h.server.Keys(h.Context(), h.names.prefix+"{*}"+begin+"*").Val()
}

// endsLeases deletes the leases of a writer.
func (h *hand) endsLeases(parts ...part) {
	for _, of := range parts {
		if n := h.server.Del(h.Context(), h.names.lease(of, h.id)).Val(); n != 1 {
			h.Fatalf("there is no lease in %q", of)
		}
	}
}

// writersOf returns the writers of a bucket's sections.
func (h *hand) writersOf(k index.Key) (all []uint64) {
	sections(h.server.Get(h.Context(), h.names.bucket(0, k)).Val(), func(writer, _ uint64, body string) bool {
		if body != "" {
			all = append(all, writer)
		}
		return true
	})
	slices.Sort(all)
	return all
}

func newPrompt(seed uint64, units int) *prompt {
	return (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(rand.New(rand.NewPCG(seed, 1)), 0, units)
}

// Reports of an ended life of a source do not count for its next one.
func TestEndedLife(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	m, src := (*mirror)(s.redisIndex), index.Source{Pod: "a", Model: "m"}
	m.Holders(2, src, nil, []memoryHolder{{ID: 3}})
	m.Holders(1, src, nil, nil)
	m.Gone(1)
	if n := len(s.sources[src].holders); n != 1 {
		t.Errorf("the source has %d holders", n)
	}
}

// A split bucket is marked after its parts are written, so that its lines are visible all the time.
func TestSplitSaysSoLast(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 1)
	first := p.fork(r, 1, 3)
	s.apply(first.store(1, 0, 4))
	s.commit(false, func() {})
	s.crowd(r, p)
	batches := 0
	for more := true; more; batches++ {
		b := s.take()
		s.deliver(b, func() error { return nil }, nil)
		more = s.settle(b)
		if s.same(first, true) != 1 {
			t.Fatal("a row is missing")
		}
	}
	if top := s.byKey[0][p.keys[0]]; !top.split || batches < 2 {
		t.Errorf("split: %v, in %d batches", top.split, batches)
	}
}

// After a change of the writer or of its name a row names the writer only once all buckets are
// written.
func TestRowComesLast(t *testing.T) {
	const units = 32 * (2*maxCommit + 100)
	p := newPrompt(1, units)
	check := func(t *testing.T, w, reader *hand, was uint64) {
		for commits := 1; ; commits++ {
			more, err := w.commit(t.Context())
			must(t, err)
			if w.owner("a") == was && more {
				continue
			}
			row := reader.rows(p)["a"]
			if w.owner("a") != w.id || row.Run != units/8 || row.Stale || commits < 3 {
				t.Errorf("after %d commits a row of %d blocks, stale: %v", commits, row.Run, row.Stale)
			}
			return
		}
	}
	t.Run("written anew", func(t *testing.T) {
		h := newHands(t, 2)
		h[0].apply("a", 1, p.store(8, 0, units/8))
		h[0].flush()
		was := h[0].id
		h[0].beginAnew(t.Context())
		check(t, h[0], h[1], was)
	})
	t.Run("taken over", func(t *testing.T) {
		h := newHands(t, 3)
		for _, w := range h[:2] {
			w.apply("a", 1, p.store(8, 0, units/8))
			w.flush()
		}
		h[0].endsLeases("0", "m:m")
		must(t, h[1].lookAround(t.Context()))
		check(t, h[1], h[2], h[0].id)
	})
}

// A standby writes nothing until the other's lease has ended. History that it lacks keeps the rows
// stale until then.
func TestStandby(t *testing.T) {
	h := newHands(t, 3)
	first, second, reader := h[0], h[1], h[2]
	p, q := newPrompt(1, 40), newPrompt(2, 40)
	for i, w := range h[:2] {
		w.apply("a", float64(10-5*i), p.store(1, 0, 40))
		w.flush()
		w.apply("a", float64(10-5*i), q.store(1, 0, 40))
		w.flush()
	}
	if got := second.writersOf(q.keys[0]); !slices.Equal(got, []uint64{first.id}) {
		t.Errorf("writers %x, and %x stands by", got, second.id)
	}
	look := func() {
		t.Helper()
		must(t, second.lookAround(t.Context()))
		second.flush()
	}
	if look(); second.owner("a") != first.id {
		t.Fatal("the source of a living writer is taken over")
	}
	first.endsLeases("0", "m:m")
	if look(); second.owner("a") != second.id {
		t.Fatal("the source is not taken over")
	}
	for _, c := range []struct {
		at    float64
		stale bool
	}{{math.NaN(), true}, {math.Inf(1), true}, {7, true}, {9.5, true}, {10, false}, {11, false}} {
		second.apply("a", c.at, p.store(1, 0, 40))
		second.flush()
		if row := reader.rows(q)["a"]; row.Run != 40 || row.Stale != c.stale {
			t.Errorf("at %v: %d blocks, stale: %v", c.at, row.Run, row.Stale)
		}
	}
}

// A removal covers writers that are dead when it comes, even if they were behind.
func TestRemoveLeft(t *testing.T) {
	h := newHands(t, 3)
	p := newPrompt(1, 40)
	for i, w := range h[:2] {
		w.apply("a", float64(10-5*i), p.store(1, 0, 40))
		w.flush()
	}
	h[0].endsLeases("m:m")
	must(t, h[1].lookAround(t.Context()))
	h[1].flush()
	if row := h[2].rows(p)["a"]; row.Run != 40 || !row.Stale {
		t.Fatalf("a row of %d blocks, stale: %v", row.Run, row.Stale)
	}
	for _, lives := range []bool{true, false} {
		l, err := h[2].Listing(t.Context())
		must(t, err)
		if !lives {
			h[1].endsLeases("m:m")
		}
		must(t, h[2].Remove(t.Context(), "a"))
		if stays := h[1].owner("a") == h[1].id; len(l.Entries) != 1 || stays != lives {
			t.Errorf("its writer lives: %v, its row stays: %v", lives, stays)
		}
	}
}

// A writer without others takes back a source whose row was deleted.
func TestRowTakenAway(t *testing.T) {
	h := newHands(t, 3)
	p, q := newPrompt(1, 40), newPrompt(2, 40)
	for _, w := range h[:2] {
		for _, of := range []*prompt{p, q} {
			w.apply("a", 1, of.store(1, 0, 40))
			w.flush()
		}
	}
	h[0].server.HDel(t.Context(), h[0].names.registry("m"), "s0 a", versionField)
	for _, c := range []struct {
		since time.Duration // since the row was deleted
		takes bool
	}{{0, false}, {h[1].c.Lease - time.Second, false}, {h[1].c.Lease, true}} {
		if since := &h[1].sources[index.Source{Pod: "a", Model: "m"}].rowless; !since.IsZero() {
			*since = time.Now().Add(-c.since)
		}
		must(t, h[1].lookAround(t.Context()))
		h[1].flush()
		if takes := h[1].owner("a") == h[1].id; takes != c.takes {
			t.Errorf("after %v it takes the source: %v", c.since, takes)
		}
	}
	if row := h[2].rows(q)["a"]; row.Run != 40 || row.Stale {
		t.Errorf("a row of %d blocks, stale: %v", row.Run, row.Stale)
	}
}

// Rows that failed to be written or deleted are repeated.
func TestFailedRowsAreRepeated(t *testing.T) {
	h := newHands(t, 1)[0]
	h.apply("b", 1)
	h.flush() // gives the part a token
	h.apply("a", 1, newPrompt(1, 40).store(1, 0, 40))
	h.fail()
	if h.flush(); h.owner("a") != h.id {
		t.Fatal("there is no row")
	}
	must(t, h.mem.Remove(t.Context(), "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.remove(ctx, "a", func(src index.Source) bool { return src.Pod == "a" }); !errors.Is(err, sharedindex.ErrDelayed) {
		t.Fatalf("a removal that is not written: %v", err)
	}
	h.fail()
	if h.flush(); h.owner("a") != 0 || h.owner("b") != h.id {
		t.Errorf("rows of %x and %x", h.owner("a"), h.owner("b"))
	}
}

// A part without its token has lost its keys: everything is written again under another name, and
// sections of the old one no longer count.
func TestTokenLost(t *testing.T) {
	h := newHands(t, 2)
	w, reader := h[0], h[1]
	p, q := newPrompt(1, 40), newPrompt(2, 40)
	w.apply("a", 1, p.store(1, 0, 40))
	w.flush()
	w.server.Del(t.Context(), w.names.token("0", w.id), w.names.bucket(0, p.keys[32]))
	w.apply("a", 2, q.store(1, 0, 40))
	if _, err := w.commit(t.Context()); !errors.Is(err, errLost) {
		t.Fatalf("a commit where the token is lost: %v", err)
	}
	was := w.id
	w.began = time.Now().Add(-time.Hour) // a lease before
	if more, err := w.commit(t.Context()); !more || err != nil || w.id == was {
		t.Fatalf("more: %v, %v, another name: %v", more, err, w.id != was)
	}
	if left := w.keysLike("l" + bytesOf(was)); len(left) > 0 {
		t.Errorf("leases are left: %q", left)
	}
	w.flush()
	for _, of := range []*prompt{p, q} {
		if row := reader.rows(of)["a"]; row.Run != 40 || row.Stale {
			t.Errorf("%d blocks, stale: %v", row.Run, row.Stale)
		}
		if got := w.writersOf(of.keys[0]); !slices.Equal(got, []uint64{w.id}) {
			t.Errorf("sections of %x, want %x", got, w.id)
		}
	}
}

// hook runs before each pipeline.
type hook func(context.Context, []redis.Cmder)

func (hook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		f(ctx, all)
		return next(ctx, all)
	}
}

// A part is written after its writer's token, as a sweep deletes keys without one.
func TestTokenComesFirst(t *testing.T) {
	server := redistest.Standalone(t)
	client, asks := server.Client(t), server.Client(t)
	ix, err := newIndex(client, Config{Prefix: "h:", Lease: time.Minute})
	must(t, err)
	ix.start.Do(func() {})
	defer ix.Close()
	w := &hand{TB: t, redisIndex: ix, server: asks}
	written := 0
	client.AddHook(hook(func(ctx context.Context, all []redis.Cmder) { // in a pipeline before
		for _, cmd := range all {
			if s := fmt.Sprint(cmd.Args()[1]); s != putSections.sha && s != putSections.text && s != writeRows.sha && s != writeRows.text {
				continue
			}
			written++
			if n := asks.Exists(ctx, w.names.token("0", w.id), w.names.token("m:m", w.id)).Val(); n != 2 {
				t.Errorf("%.40q is sent with %d tokens there", cmd.Args()[:2], n)
			}
		}
	}))
	w.apply("a", 1, newPrompt(1, 40).store(1, 0, 40))
	if w.flush(); written < 3 {
		t.Errorf("only %d were written", written)
	}
}

// A writer that fails to write its changes for longer than a lease does not renew the lease.
func TestLateLease(t *testing.T) {
	w := newHands(t, 1)[0]
	w.apply("a", 1, newPrompt(1, 40).store(1, 0, 40))
	w.flush()
	w.apply("a", 2, newPrompt(2, 40).store(1, 0, 40))
	w.fail()
	w.since = time.Now().Add(-2 * w.c.Lease)
	w.fail()
	w.endsLeases("0", "m:m")
	w.beat(t.Context())
	if left := w.keysLike("l"); len(left) > 0 {
		t.Errorf("leases are renewed: %q", left)
	}
	w.flush()
	w.beat(t.Context())
	if left := w.keysLike("l"); len(left) != 2 {
		t.Errorf("leases %q", left)
	}
}

// Rows without a lease are stale if some of their source was taken over.
func TestStale(t *testing.T) {
	h := newHands(t, 2)
	w, reader := h[0], h[1]
	p := newPrompt(1, 40)
	w.apply("a", 1, p.store(1, 0, 40))
	w.flush()
	for _, of := range []part{"0", "m:m"} {
		if row := reader.rows(p)["a"]; row.Run != 40 || row.Stale {
			t.Errorf("%d blocks, stale: %v", row.Run, row.Stale)
		}
		w.endsLeases(of)
		if row := reader.rows(p)["a"]; row.Run != 40 || !row.Stale {
			t.Errorf("without a lease in %q: %d blocks, stale: %v", of, row.Run, row.Stale)
		}
		w.beat(t.Context())
	}
}

// Rows of a new writer are not stale.
func TestNewWriter(t *testing.T) {
	h := newHands(t, 3)
	p := newPrompt(1, 40)
	for i, w := range h[:2] {
		w.apply(fmt.Sprint(i), 1, p.store(1, 0, 40))
		w.flush()
		rows := h[2].rows(p)
		for pod, row := range rows {
			if row.Run != 40 || row.Stale {
				t.Errorf("pod %s: %d blocks, stale: %v", pod, row.Run, row.Stale)
			}
		}
		if len(rows) != i+1 {
			t.Errorf("%d rows, want %d", len(rows), i+1)
		}
	}
}

// A lease is trusted only while it lasts, and only for a short time without a read.
func TestLeases(t *testing.T) {
	var l leases
	k := leaseKey{1, "0"}
	asked := time.Now()
	for _, c := range []struct {
		lasts, after time.Duration
		holds, known bool
	}{
		{time.Second, 0, true, true},
		{time.Second, leaseAge - 1, true, true},
		{time.Second, leaseAge, true, false},
		{time.Second, time.Second - 1, true, false},
		{time.Second, time.Second, false, false},
		{leaseAge / 2, leaseAge/2 - 1, true, true},
		{leaseAge / 2, leaseAge / 2, false, false},
		{-2, 0, false, true}, // it does not exist
		{-2, leaseAge, false, true},
	} {
		l.note(k, asked, c.lasts)
		if holds, known := l.holds(k, asked.Add(c.after), asked); holds != c.holds || known != c.known {
			t.Errorf("%v after it lasts %v: holds %v, known %v", c.after, c.lasts, holds, known)
		}
	}
	w := &walker{ix: new(redisIndex), r: &registry{writers: []uint64{1}}, written: []leaseKey{k}, began: asked}
	w.ix.leases.note(k, asked.Add(-time.Minute), time.Second)
	if w.checkLeases() {
		t.Error("a lease that has ended is not read again")
	}
	w.ix.leases.note(k, time.Now(), time.Minute)
	if !w.checkLeases() {
		t.Error("a lease that was read is read again")
	}
	if _, known := l.holds(k, asked, asked.Add(1)); known {
		t.Error("that there is no lease is known from before")
	}
	if _, known := l.holds(leaseKey{2, "0"}, asked, time.Time{}); known {
		t.Error("a lease that was never read is known")
	}
}

// A lease that ends while the rows are made makes none stale, if this reader has not read it again.
func TestLeaseEndsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &view{View: index.View{BlockSize: 16}, variant: index.Variant{Unit: 16}, units: 1}
		src := &registeredSource{row: &row{writer: 1, layout: new(index.Layout)}, bits: true, views: []*view{v}}
		r := &registry{
			sources: []*registeredSource{src}, writers: []uint64{1},
			views: []place{{v, 0, 0, 1}}, lanes: []laneOf{{0, index.TierGPU}},
		}
		w := &walker{
			ix: new(redisIndex), q: &index.Query{}, r: r, who: &resolution{of: r, pods: []int32{-1}},
			written: []leaseKey{{1, "0"}}, began: time.Now(),
			at: []int{1}, words: []uint64{1}, holding: []uint64{1},
			paths: []path{{variant: v.variant, keys: make([]index.Key, 1)}},
		}
		w.ix.leases.note(leaseKey{1, "0"}, time.Now(), time.Second)
		if !w.checkLeases() {
			t.Fatal("the lease is not known")
		}
		time.Sleep(time.Second) // the clock runs without a wait
		var m index.Matches
		if w.answer(&m); len(m.Rows) != 1 || m.Rows[0].Stale || m.Rows[0].Run != 1 {
			t.Errorf("rows %+v", m.Rows)
		}
		if w.checkLeases(); !w.stale[0] {
			t.Error("a lease that has ended counts")
		}
	})
}

// A bucket with requested keys is fetched whatever precedes them in it. TestSplitAgain: parts
// requested before a bucket or with it are requested again if the bucket was split since it was
// last seen, by others or again.
func TestSplitAgain(t *testing.T) {
	const writer = 7
	w := &walker{
		ix: &redisIndex{names: names{"t:", 64}}, q: &index.Query{},
		r: &registry{numbers: map[uint64]*numbers{writer: {}}},
	}
	w.paths = []path{{keys: newPrompt(1, 60).keys}}
	p := &w.paths[0]
	for i, step := range []struct {
		seq                uint64 // of the section with the split mark; 0: none
		asked, askedBehind int    // keys requested together with it, and after it
	}{{1, 1, 4}, {1, 5, 0}, {2, 5, 4}, {2, 5, 0}, {0, 5, 0}, {0, 1, 0}, {2, 1, 4}} {
		w.asked, p.pending = w.asked[:0], p.pending[:0]
		w.ask(0, ref{0, 0})
		asked := len(w.asked)
		b := &w.asked[0]
		if step.seq > 0 {
			b.value = valueHead + bytesOf(writer) + bytesOf(step.seq) + "\x01\x00\x00\x00" + string(rune(bodySplit))
		}
		w.look(b)
		w.look(b) // like a newer registry
		if asked != step.asked || len(p.pending) != step.askedBehind {
			t.Errorf("step %d: %d keys with it, and after it %d; want %d and %d", i, asked, len(p.pending), step.asked, step.askedBehind)
		}
	}
}

func TestBehind(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 200)
	s.apply(p.store(1, 0, 200))
	s.commit(false, func() {})
	for _, behind := range []int{0, 31, 32, 33, 63, 64, 199} {
		q := &index.Query{
			Candidates: index.NewCandidates("m", nil), Held: true, Behind: 16 * behind,
			Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil },
		}
		rows := s.match(q).Rows
		if len(rows) != 1 {
			t.Fatalf("behind %d: %d rows", behind, len(rows))
		}
		for block := behind; block < 200; block++ {
			if rows[0].Held[index.TierGPU][block/64]>>(block%64)&1 == 0 {
				t.Errorf("behind %d: block %d is missing", behind, block)
				break
			}
		}
	}
}

// TestRunOf compares with runs counted one by one.
func TestRunOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		w := &walker{at: []int{0, 1, 4}}
		held := make([]bool, 192)
		for range 6 {
			word := ^uint64(0)
			for range 2 {
				word &^= 1 << r.IntN(64)
			}
			w.words = append(w.words, word)
		}
		v := &place{first: int32(r.IntN(2)), last: int32(1 + r.IntN(3))}
		for _, at := range w.at[v.first:v.last] {
			for i := range held {
				held[i] = held[i] || at > 0 && w.words[at-1+i/64]>>(i%64)&1 != 0
			}
		}
		from := r.IntN(193)
		end := from + r.IntN(193-from)
		want := from
		for want < end && held[want] {
			want++
		}
		if got := w.runOf(v, from, end); got != want {
			t.Fatalf("from %d to %d: %d, want %d of %v", from, end, got, want, held)
		}
	}
}

// TestLargeBlocks: a block may end after the buckets of the first trip.
func TestLargeBlocks(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 2048)
	s.apply(p.store(1024, 0, 2)) // a block is longer than the first trip
	s.commit(false, func() {})
	if s.same(p, false) != 1 {
		t.Error("there is no row")
	}
}

// With bits all of a source is fetched, also behind its holes.
func TestBitsBehindAHole(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 1200)
	store, remove := p.store(1, 0, 1200), p.remove(1, 0, 1000)
	store.Group = index.Group{ID: 1, Kind: index.GroupWindow, Window: 64}
	remove.Group = store.Group
	s.apply(store, remove)
	s.commit(false, func() {})
	if s.same(p, false) != 1 {
		t.Error("there is no row")
	}
}

// An eviction is reported to readers, even if the first write fails.
func TestEvictedIsTold(t *testing.T) {
	h := newHands(t, 2)
	p := newPrompt(1, 40)
	h[0].apply("a", 1, p.store(1, 0, 40))
	h[0].flush()
	if h[1].rows(p)["a"].Evicted {
		t.Fatal("something was evicted at first")
	}
	(*mirror)(h[0].redisIndex).Evicted(h[0].sources[index.Source{Pod: "a", Model: "m"}].holders[0].ID)
	h[0].fail()
	h[0].flush()
	if row := h[1].rows(p)["a"]; row.Run != 40 || !row.Evicted {
		t.Errorf("%d blocks, evicted: %v", row.Run, row.Evicted)
	}
}

// Close deletes the leases.
func TestCloseEndsLeases(t *testing.T) {
	h := newHands(t, 1)[0]
	ix, err := newIndex(h.server, h.c)
	must(t, err)
	defer ix.Close()
	if _, err := ix.Apply(t.Context(), index.Source{Pod: "a", Model: "m"}, index.Cursor{}, []index.Change{newPrompt(1, 40).store(1, 0, 40)}); err != nil {
		t.Fatal(err)
	}
	if n := len(h.keysLike("l")); n != 2 {
		t.Fatalf("%d leases", n)
	}
	must(t, ix.Close())
	if left := h.keysLike("l"); len(left) > 0 {
		t.Errorf("leases are left: %q", left)
	}
}

// An Index with Degrade still reports a cancelled context.
func TestDegradeCanceled(t *testing.T) {
	h := newHands(t, 1)[0]
	p := newPrompt(1, 40)
	h.apply("a", 1, p.store(1, 0, 40))
	h.flush()
	c := h.c
	c.Degrade = true
	ix, err := newIndex(h.server, c)
	must(t, err)
	defer ix.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var m index.Matches
	err = ix.Match(ctx, &index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) {
		cancel()
		return p.keys, nil
	}}, &m)
	if !errors.Is(err, context.Canceled) || m.Degraded != nil {
		t.Errorf("%v, degraded: %v", err, m.Degraded)
	}
}

// afterPipeline runs after each pipeline.
type afterPipeline func()

func (afterPipeline) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (afterPipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f afterPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		err := next(ctx, all)
		f()
		return err
	}
}

// TestNoRowsBesideAnError: the context of a writer's Match ends after its last reply.
func TestNoRowsBesideAnError(t *testing.T) {
	h := newHands(t, 1)[0]
	p := newPrompt(1, 40)
	h.apply("a", 1, p.store(1, 0, 40))
	h.flush()
	h.rows(p) // reads the registry
	ctx, cancel := context.WithCancel(t.Context())
	h.server.AddHook(afterPipeline(cancel))
	var m index.Matches
	err := h.Match(ctx, &index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}, &m)
	if !errors.Is(err, context.Canceled) || len(m.Rows) > 0 {
		t.Errorf("%d rows beside the error %v", len(m.Rows), err)
	}
}

// An Apply returns once everything is written.
func TestApplyWaits(t *testing.T) {
	h := newHands(t, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	src := index.Source{Pod: "a", Model: "m"}
	for seed := range uint64(3) {
		h.apply("a", 1, newPrompt(seed, 40).store(1, 0, 40))
		wait := func() error { return h.await(ctx, &sourceWaiter{h.sources[src], h.change, h.moved}) }
		if err := wait(); !errors.Is(err, sharedindex.ErrDelayed) {
			t.Errorf("before a commit: %v", err)
		}
		h.fail()
		if err := wait(); !errors.Is(err, sharedindex.ErrDelayed) {
			t.Errorf("after a commit that failed: %v", err)
		}
		h.flush()
		if err := wait(); err != nil {
			t.Errorf("after a commit: %v", err)
		}
	}
}

// Held keys are renewed twice in a TTL, however slow the sweep should be. Other keys are deleted.
func TestSweepOwn(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	s.sweepRate, s.c.TTL = 1, time.Minute
	p := newPrompt(1, 32*500)
	s.apply(p.store(8, 0, 32*500/8))
	s.commit(false, func() {})
	beats := int(s.c.TTL / 2 / (s.c.Lease / 3))
	sweep := func() {
		for range beats {
			s.sweepOwn()
		}
	}
	if sweep(); len(s.dirty) > 0 {
		t.Fatalf("%d buckets are renewed at once", len(s.dirty))
	}
	for _, off := range []int64{-31, 3600} { // clocks may go back
		for _, b := range s.all {
			b.written += off
		}
		if sweep(); len(s.dirty) != 500 {
			t.Fatalf("%d of 500 buckets are renewed that were written %d seconds from now", len(s.dirty), off)
		}
		s.commit(false, func() {})
	}
	s.sweepRate, s.c.Lease = math.MaxInt, 4*time.Second
	for _, b := range s.all {
		b.written -= 31
	}
	if s.sweepOwn(); len(s.dirty) != 500 {
		t.Errorf("%d of 500 buckets are renewed by a sweep without a bound", len(s.dirty))
	}
	s.commit(false, func() {})
	s.apply(index.Change{Op: index.OpClear})
	s.commit(false, func() {})
	for range 2 { // the order changes when buckets are removed
		sweep()
		s.commit(false, func() {})
	}
	if n := len(s.all); n > 0 {
		t.Errorf("%d buckets are left", n)
	}
}

// Each key has a TTL.
func TestTTLs(t *testing.T) {
	w := newHands(t, 1)[0]
	w.apply("a", 1, newPrompt(1, 40).store(1, 0, 40))
	w.flush()
	keys := w.server.Keys(t.Context(), "h:*").Val()
	for _, key := range keys {
		if ttl := w.server.PTTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%q has no TTL", strings.TrimPrefix(key, "h:"))
		}
	}
	for of, key := range map[string]string{"registry": w.names.registry("m"), "cursors": w.names.cursors("m")} {
		must(t, w.server.PExpire(t.Context(), key, time.Minute).Err())
		if w.beat(t.Context()); w.server.PTTL(t.Context(), key).Val() <= time.Minute {
			t.Errorf("the %s of an idle engine end", of)
		}
	}
	if len(keys) != 10 { // root and models; a registry and its cursors; two buckets; two tokens and leases
		t.Errorf("%d keys: %q", len(keys), keys)
	}
}

// TestManySources: two writers write rows of more sources than fit in a script call.
func TestManySources(t *testing.T) {
	h := newHands(t, 2)
	src := func(i int) index.Source { return index.Source{Pod: fmt.Sprintf("pod-%04d", i), Model: "m"} }
	first := func(i int) bool { return i%3 == 0 && i > maxRows/2 }
	const n = 2*maxRows + 100
	for of, w := range h {
		for i := range n {
			if of == 1 || first(i) {
				w.Publish(src(i), []byte{byte(of)})
			}
		}
		w.flush()
	}
	l, err := h[0].Listing(t.Context())
	if err != nil || len(l.Entries) != n {
		t.Fatalf("%d sources of %d, %v", len(l.Entries), n, err)
	}
	for i, e := range l.Entries {
		of := h[1]
		if first(i) {
			of = h[0]
		}
		if e.Source != src(i) || h[e.Note[0]] != of || of.owner(e.Source.Pod) != of.id {
			t.Fatalf("%v is of %x, with note %d", e.Source, of.owner(e.Source.Pod), e.Note)
		}
		if is := h[1].sources[src(i)].ownership; is == owned == first(i) {
			t.Errorf("the second writer stands as %d to source %d", is, i)
		}
	}
}

// TestPartsOfOthers splits a bucket into parts some of which only have lines of another process.
// The split does not wait for these.
func TestPartsOfOthers(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	r := rand.New(rand.NewPCG(1, 1))
	p := newPrompt(1, 3)
	s.apply(p.store(1, 0, 3))
	s.commit(false, func() {})
	src := index.Source{Pod: "other", Model: "m"}
	s.source(src).ownership, s.source(src).written = other, false
	for range 2 * maxLines {
		f := p.fork(r, 3, 12)
		if _, err := s.mem.Apply(t.Context(), src, index.Cursor{}, []index.Change{f.store(1, 0, 15)}); err != nil {
			t.Fatal(err)
		}
	}
	if !s.byKey[0][p.keys[0]].split {
		t.Fatal("the bucket is not split")
	}
	s.apply(newPrompt(2, 3).store(1, 0, 3))
	for more := true; more; {
		b := s.take()
		if len(b.puts)+len(b.rows) == 0 {
			t.Fatal("there is always more to write, and nothing is written")
		}
		s.deliver(b, func() error { return nil }, func() bool { return true })
		more = s.settle(b)
	}
	if s.written != s.change {
		t.Errorf("changes up to %d of %d are written", s.written, s.change)
	}
	if m := s.match(&index.Query{Candidates: index.NewCandidates("m", nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}); len(m.Rows) != 1 || m.Rows[0].Run != 3 {
		t.Errorf("%+v", m.Rows)
	}
}

// TestFailuresDoNotPileUp: a bucket that changes while commits fail is queued once.
func TestFailuresDoNotPileUp(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 32)
	for n := range 20 {
		s.apply(p.store(1, n, n+1))
		b := s.take()
		s.apply(p.store(1, n+1, n+2))
		puts := len(b.puts)
		s.deliver(b, func() error { // rows succeed
			if puts--; puts < 0 {
				return nil
			}
			return errLink
		}, func() bool { return false })
		s.settle(b)
		if len(s.dirty) != 1 || s.dirty[0].number > s.written+3 || s.dirty[0].number <= s.written {
			t.Fatalf("%d entries for a bucket, the first for change %d, and %d are written", len(s.dirty), s.dirty[0].number, s.written)
		}
	}
	if s.commit(false, func() {}); s.written != s.change {
		t.Errorf("changes up to %d of %d are written", s.written, s.change)
	}
}

// TestAwaitsTheNextBatch: an Apply that one batch did not write waits for the next, even if that is
// already being sent.
func TestAwaitsTheNextBatch(t *testing.T) {
	h := newHands(t, 1)[0]
	h.c.Timeout = time.Minute
	h.apply("a", 1, newPrompt(1, 40).store(1, 0, 40))
	w := &sourceWaiter{h.sources[index.Source{Pod: "a", Model: "m"}], h.change, nil}
	b := h.take()
	done := make(chan error)
	go func() { done <- h.await(t.Context(), w) }()
	for waits := false; !waits; {
		runtime.Gosched()
		h.mu.Lock()
		waits = w.moved != nil
		h.mu.Unlock()
	}
	h.send(t.Context(), b)
	if h.settle(b); h.written != h.change {
		t.Fatal("not all is written")
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the Apply waits for a batch that does not come")
	}
}

// TestCaughtUpIsWrittenFirst: the row of a source that was behind keeps its mark until all changes
// that caught up are written.
func TestCaughtUpIsWrittenFirst(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	p := newPrompt(1, 3)
	s.apply(p.store(1, 0, 3))
	s.commit(false, func() {})
	id := index.Source{Pod: "pod", Model: "m"}
	src := s.sources[id]
	src.behind, src.until = true, 10
	behind := func() bool {
		row, ok := readRow(s.rows[fieldOf(id)])
		return !ok || row.behind
	}
	for _, c := range []struct {
		time         float64
		fails        bool
		behind, next bool // in the row, and after another commit
	}{{9, false, true, true}, {10, true, true, true}, {11, false, true, false}} {
		s.apply(p.store(1, 0, 3))
		s.applied(id, index.Cursor{Time: c.time})
		s.markRow(src)
		commit := func() {
			b := s.take()
			s.deliver(b, func() error {
				if c.fails {
					return errLink
				}
				return nil
			}, func() bool { return true })
			s.settle(b)
		}
		if commit(); behind() != c.behind {
			t.Errorf("at %v, with the removal: behind %v", c.time, !c.behind)
		}
		if commit(); behind() != c.next {
			t.Errorf("at %v, after it: behind %v", c.time, !c.next)
		}
	}
}

// TestCaughtUpMeanwhile: changes applied while a batch is written are not in it.
func TestCaughtUpMeanwhile(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	s.apply(newPrompt(1, 3).store(1, 0, 3))
	id := index.Source{Pod: "pod", Model: "m"}
	src := s.sources[id]
	src.behind, src.until = true, 10
	for _, want := range []bool{true, false} {
		b := s.take()
		s.applied(id, index.Cursor{Time: 11})
		s.deliver(b, func() error { return nil }, func() bool { return true })
		if s.settle(b); src.behind != want {
			t.Fatalf("behind: %v, want %v", src.behind, want)
		}
	}
}

// TestDoubts: changes of a registry that make earlier fetches doubtful.
func TestDoubts(t *testing.T) {
	of := func(pods ...string) *registry { // "pod writer", with "-" if it is behind
		r := new(registry)
		for _, s := range pods {
			pod, writer, _ := strings.Cut(s, " ")
			row := &row{writer: uint64(writer[0]), behind: strings.HasSuffix(writer, "-"), lanes: make([]lane, 1)}
			r.sources = append(r.sources, &registeredSource{Source: index.Source{Pod: pod}, row: row})
		}
		return r
	}
	for _, c := range []struct {
		was, now *registry
		doubts   bool
	}{
		{of("b 1", "d 2"), of("b 1", "d 2"), false},
		{of("b 1", "d 2"), of("d 2"), false},
		{of("b 1", "d 2"), of(), false},
		{of("b 1", "d 2"), of("b 2", "d 2"), true},
		{of("b 1", "d 2"), of("b 1", "d 1"), true},
		{of("b 1", "d 2"), of("b 1", "c 1", "d 2"), true},
		{of("b 1", "d 2"), of("b 2-", "d 2"), false},
		{of("b 1", "d 2-"), of("b 1", "d 2-"), false},
		{of("b 1", "d 2-"), of("b 1", "d 2"), true},
	} {
		if got := c.was.doubts(c.now); got != c.doubts {
			t.Errorf("%v, then %v: %v", c.was.sources, c.now.sources, got)
		}
	}
}

// TestLossIsNotAcknowledged: an Apply does not return with a commit that finds a loss of written
// data.
func TestLossIsNotAcknowledged(t *testing.T) {
	h := newHands(t, 1)[0]
	p := newPrompt(1, 40)
	h.apply("a", 1, p.store(1, 0, 40))
	h.flush()
	h.server.FlushAll(t.Context())
	h.apply("a", 2, newPrompt(2, 40).store(1, 0, 40))
	for range 2 {
		if _, err := h.commit(t.Context()); !errors.Is(err, errLost) || h.written >= h.change || !errors.Is(h.Trouble(), errLost) {
			t.Fatalf("%v; changes up to %d of %d are written; trouble: %v", err, h.written, h.change, h.Trouble())
		}
	}
	h.began = time.Now().Add(-time.Hour)
	if _, err := h.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.flush(); h.written != h.change || h.Trouble() != nil || h.rows(p)["a"].Run != 40 {
		t.Errorf("changes up to %d of %d are written; trouble: %v", h.written, h.change, h.Trouble())
	}
}

// TestDropsOfWhatIsBack: after an error the deletion of a row is not repeated if its source has
// blocks again.
func TestDropsOfWhatIsBack(t *testing.T) {
	s := newMapServer(t, index.MemoryConfig{})
	s.apply(newPrompt(1, 3).store(1, 0, 3))
	s.dropRow(index.Source{Pod: "pod", Model: "m"})
	s.dropRow(index.Source{Pod: "gone", Model: "m"})
	b := s.take()
	s.deliver(b, func() error { return errLink }, func() bool { return true })
	if s.settle(b); len(s.drops) != 1 || !slices.Equal(s.drops["m"], []string{"s0 gone"}) {
		t.Errorf("to be dropped: %q", s.drops)
	}
}

// TestCommitOnTwoServers: the end of a commit goes to another server, which has everything written
// before the commit.
func TestCommitOnTwoServers(t *testing.T) {
	server := redistest.Standalone(t)
	client, asks := server.Client(t), server.Client(t)
	ix, err := newIndex(client, Config{Prefix: "h:", Lease: time.Minute})
	must(t, err)
	ix.start.Do(func() {})
	defer ix.Close()
	w := &hand{TB: t, redisIndex: ix, server: asks}
	p := newPrompt(1, 40)
	w.apply("a", 1, p.store(1, 0, 40))
	w.flush()
	key := ix.names.token("0", ix.id)
	before := asks.Get(t.Context(), key).Val()
	client.AddHook(midPipeline(func() { asks.Set(t.Context(), key, before, time.Minute) }))
	w.apply("a", 2, p.remove(1, 39, 40))
	if _, err := w.commit(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("the error is %v", err)
	}
}

// midPipeline runs in the middle of each pipeline.
type midPipeline func()

func (h midPipeline) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h midPipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h midPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		err := next(ctx, all[:len(all)/2])
		h()
		return errors.Join(err, next(ctx, all[len(all)/2:]))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
