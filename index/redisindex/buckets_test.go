package redisindex

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/redis/go-redis/v9"
)

// section returns a section as putSection writes it.
func section(writer, seq uint64, body string) string {
	return bytesOf(writer) + bytesOf(seq) + string(binary.LittleEndian.AppendUint32(nil, uint32(len(body)))) + body
}

// mapServer is an Index whose server is maps.
type mapServer struct {
	testing.TB
	*redisIndex
	values, rows map[string]string
	last         *registry // read last
}

func newMapServer(tb testing.TB, c index.MemoryConfig) *mapServer {
	ix := &redisIndex{wake: make(chan struct{}, 1), names: names{"p:", 64}}
	must(tb, ix.c.fill())
	ix.c.Memory, ix.seed = c, [16]byte{1}
	must(tb, ix.openMemory())
	tb.Cleanup(func() { ix.mem.Close() })
	ix.mark = bytesOf(fingerprint(ix.seed))
	ix.buckets.init()
	ix.writer.init()
	return &mapServer{TB: tb, redisIndex: ix, values: make(map[string]string), rows: map[string]string{versionField: ix.mark}}
}

var errLink = errors.New("the link is cut")

// deliver carries out a batch. fail returns errors for the parts that fail, half of which are
// carried out nevertheless.
func (s *mapServer) deliver(b *batch, fail func() error, coin func() bool) {
	ctx := context.Background()
	s.seq++
	token := redis.NewCmd(ctx)
	token.SetVal(int64(1))
	for model := range b.rows {
		b.parts[registryPart(model)] = token
	}
	for i := range b.puts {
		put := &b.puts[i]
		b.parts[put.part] = token
		put.reply = redis.NewCmd(ctx)
		put.reply.SetVal(int64(1)) // number of sections
		err := fail()
		if err != nil {
			put.reply.SetErr(err)
			b.err = err
		}
		if err == nil || coin() {
			s.values[put.key] = valueHead + section(s.id, s.seq, put.body)
		}
	}
	for _, rows := range b.rows {
		reply := redis.NewCmd(ctx)
		var out []any
		for i, t := range rows {
			if t.row != "" {
				s.rows[fieldOf(t.Source)] = t.row
			}
			out = append(out, int64(1))
			rows[i].reply, rows[i].at = reply, i
		}
		if reply.SetVal(out); fail() != nil {
			reply.SetErr(errLink)
			b.err = errLink
		}
	}
}

// match is Index.Match on the maps.
func (s *mapServer) match(q *index.Query) *index.Matches {
	r, err := s.read(q.Candidates.Model(), s.rows, s.last)
	if err != nil {
		s.Fatal(err)
	}
	s.last = r
	w := &walker{ix: s.redisIndex, q: q, parts: []part{registryPart(q.Candidates.Model())}}
	if err := w.addPaths(r); err != nil {
		s.Fatal(err)
	}
	w.begin(r)
	for trip := 0; trip == 0 || w.goesOn(); trip++ {
		from := len(w.asked)
		for i := range w.paths {
			w.choose(i, trip)
		}
		for i := from; i < len(w.asked); i++ {
			w.asked[i].value = s.values[w.asked[i].name]
			w.look(&w.asked[i])
		}
	}
	w.checkLeases()
	m := new(index.Matches)
	w.answer(m)
	return m
}

// plainRow is a comparable row.
type plainRow struct {
	index.View
	index.Layout
	index.Row
	held [index.NumTiers][]uint64
	bits bool
}

func plainRows(rows []index.Row) (all []plainRow) {
	for _, r := range rows {
		p := plainRow{View: *r.View, Layout: *r.Layout, Row: r, bits: r.Held != nil}
		if p.bits {
			for t, set := range r.Held {
				p.held[t] = slices.Clone(set)
			}
		}
		p.View.Layout, p.Row.View, p.Held, p.Stale = nil, nil, nil, false
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b plainRow) int {
		x, y := a.View, b.View
		return cmp.Or(cmp.Compare(x.Source.Pod, y.Source.Pod), cmp.Compare(x.Source.Rank, y.Source.Rank),
			cmp.Compare(x.Group.ID, y.Group.ID), cmp.Compare(x.BlockSize, y.BlockSize))
	})
	return all
}

// same compares the maps' answer with the Memory's, and returns the number of rows.
func (s *mapServer) same(p *prompt, held bool) int {
	q := &index.Query{Candidates: index.NewCandidates("m", nil), Held: held, Keys: func(v index.Variant) ([]index.Key, error) {
		if v != p.Variant {
			return nil, nil
		}
		return p.keys, nil
	}}
	var want index.Matches
	if err := s.mem.Match(context.Background(), q, &want); err != nil {
		s.Fatal(err)
	}
	got, expected := plainRows(s.match(q).Rows), plainRows(want.Rows)
	if !reflect.DeepEqual(got, expected) {
		s.Fatalf("prompt of %d keys, held %v:\n got %+v\nwant %+v", len(p.keys), held, got, expected)
	}
	return len(got)
}

// prompt is a prompt in a variant.
type prompt struct {
	index.Variant
	root   index.Key
	locals []index.Local
	keys   []index.Key
}

// fork returns a prompt that shares the first n units of p.
func (p *prompt) fork(r *rand.Rand, n, more int) *prompt {
	f := &prompt{Variant: p.Variant, root: p.root, locals: slices.Clone(p.locals[:n]), keys: slices.Clone(p.keys[:n])}
	for range more {
		last := f.root
		if len(f.keys) > 0 {
			last = f.keys[len(f.keys)-1]
		}
		f.locals = append(f.locals, index.Local(r.Uint64()))
		f.keys = append(f.keys, index.Chain(last, f.locals[len(f.locals)-1]))
	}
	return f
}

// hash names the first n blocks of a size in units.
func (p *prompt) hash(units, n int) index.Hash {
	return index.Hash(uint64(p.keys[units*n-1])*31 + uint64(units))
}

// store stores blocks from to to.
func (p *prompt) store(units, from, to int) index.Change {
	c := index.Change{
		Op: index.OpStore, Copies: index.CopiesSet, Variant: p.Variant, BlockSize: units * p.Unit,
		Root: p.root, HasParent: from > 0, Locals: p.locals[from*units : to*units],
	}
	if from > 0 {
		c.Parent = p.hash(units, from)
	}
	for n := from + 1; n <= to; n++ {
		c.Hashes = append(c.Hashes, p.hash(units, n))
	}
	return c
}

func (p *prompt) remove(units, from, to int) index.Change {
	return index.Change{Op: index.OpRemove, Hashes: p.store(units, from, to).Hashes}
}

// newPrompts returns prompts with all kinds of forks.
func newPrompts(r *rand.Rand) (all []*prompt) {
	for _, system := range []struct{ units, children int }{{13, 500}, {45, 400}, {8, 150}, {32, 100}, {77, 200}} {
		s := (&prompt{Variant: index.Variant{Unit: 16}, root: index.Key(r.Uint64())}).fork(r, 0, system.units)
		all = append(all, s)
		for range system.children {
			all = append(all, s.fork(r, system.units-r.IntN(2)*r.IntN(4), 1+r.IntN(40)))
		}
	}
	for range 200 {
		p := all[r.IntN(len(all))]
		all = append(all, p.fork(r, r.IntN(len(p.keys)+1), 1+r.IntN(60)))
	}
	for range 60 {
		s := &prompt{Variant: index.Variant{Unit: 8}, root: index.Key(r.Uint64())}
		all = append(all, s.fork(r, 0, 3+r.IntN(90)))
	}
	return all
}

// bucketFirings counts the cases that tests of buckets cover.
type bucketFirings struct {
	splits                            [levels]int
	lines, buckets, ends, cut, gone   int
	rows, failed, between, late, long int
}

func (f *bucketFirings) check(t *testing.T, least bucketFirings) {
	t.Logf("%+v", *f)
	got, want := reflect.ValueOf(*f), reflect.ValueOf(least)
	for i := range got.NumField() {
		if got.Field(i).Kind() == reflect.Int && got.Field(i).Int() < want.Field(i).Int() {
			t.Errorf("%s: %d times, at least %d", got.Type().Field(i).Name, got.Field(i).Int(), want.Field(i).Int())
		}
	}
	for level, n := range least.splits {
		if f.splits[level] < n {
			t.Errorf("splits of level %d: %d, at least %d", level, f.splits[level], n)
		}
	}
}

// glimpse is the last seen state of a bucket.
type glimpse struct {
	split bool
	lines map[index.Key][]index.Key // by the first key
}

// look compares the buckets with their last state.
func (f *bucketFirings) look(ix *redisIndex, was map[*bucket]glimpse) {
	for b := range was {
		if b.at < 0 {
			f.buckets++
			delete(was, b)
		}
	}
	for _, b := range ix.all {
		before := was[b]
		if !b.dirty && before.split == b.split && len(before.lines) == len(b.lines) {
			continue
		}
		now := glimpse{b.split, make(map[index.Key][]index.Key)}
		if b.split && !before.split {
			f.splits[b.level]++
		}
		for _, l := range b.lines {
			now.lines[l.keys[0]] = slices.Clone(l.keys)
			if old := before.lines[l.keys[0]]; !slices.Equal(old[:min(len(old), len(l.keys))], l.keys[:min(len(old), len(l.keys))]) {
				f.ends++
			}
			all := uint32(0)
			for _, h := range l.held {
				if ix.numbers[h.number] == nil {
					f.gone++
				}
				all |= h.mask
			}
			if bits.Len32(all)-l.slot < len(l.keys) {
				f.cut++
			}
		}
		for first := range before.lines {
			if now.lines[first] == nil && !b.split {
				f.lines++
			}
		}
		was[b] = now
	}
}

// checkBatch checks a batch's buckets; nothing changes meanwhile.
func (s *mapServer) checkBatch(b *batch, saw *bucketFirings) {
	for i := range b.puts {
		put := &b.puts[i]
		if got := string(s.encode(put.bucket)); got != put.body {
			s.Fatalf("a bucket of level %d is encoded as %x, and then as %x", put.level, put.body, got)
		}
		if s.hasGone(put.bucket) {
			s.Fatal("a bucket has something of holders that have gone, after it was encoded")
		}
		if len(put.body) > maxSection {
			saw.long++
			if len(put.lines) != 1 && put.level < levels-1 {
				s.Fatalf("a section of level %d has %d bytes in %d lines", put.level, len(put.body), len(put.lines))
			}
		}
		for i := range put.lines {
			for _, h := range put.lines[i].held {
				if l := &put.lines[i]; h.mask == 0 || bits.TrailingZeros32(h.mask) < l.slot || bits.Len32(h.mask) > l.slot+len(l.keys) {
					s.Fatalf("holder %d has %b of %d keys at slot %d", h.number, h.mask, len(l.keys), l.slot)
				}
			}
		}
		if fine := find(put.body, nil, new(findResult)); put.body != "" && !fine {
			s.Fatalf("a body makes no sense: %x", put.body)
		}
	}
}

// mixture makes random changes.
type mixture struct {
	*rand.Rand
	prompts []*prompt
	sources []index.Source
}

func newMixture(seed uint64) *mixture {
	r := rand.New(rand.NewPCG(seed, 5))
	m := &mixture{Rand: r, prompts: newPrompts(r)}
	for pod := range 7 {
		m.sources = append(m.sources, index.Source{Pod: fmt.Sprint("pod", pod), Model: "m", Rank: pod % 2})
	}
	m.sources = append(m.sources, index.Source{Pod: "pod0", Model: "m", Rank: 1})
	return m
}

func (r *mixture) pick() *prompt { return r.prompts[r.IntN(len(r.prompts))] }

// apply applies a random change to a source.
func (r *mixture) apply(tb testing.TB, mem inmemory.Memory, src index.Source) {
	ctx := context.Background()
	var changes []index.Change
	switch n := r.IntN(200); n {
	case 0:
		changes = append(changes, index.Change{Op: index.OpClear})
	case 1:
		changes = append(changes, index.Change{Op: index.OpClearTier, Tier: index.TierCPU})
	case 2:
		if err := mem.Remove(ctx, src.Pod); err != nil {
			tb.Error(err)
		}
		return
	case 3:
		if err := mem.RemoveSource(ctx, src); err != nil {
			tb.Error(err)
		}
		return
	default:
		for range 1 + r.IntN(12) {
			p := r.pick()
			units := 1
			if p.Unit == 8 { // blocks of 24 tokens
				units = 3
			} else if src.Pod == "pod1" || r.IntN(20) == 0 {
				units = 2
			}
			blocks := len(p.keys) / units
			if blocks == 0 {
				continue
			}
			from, to := 0, 1+r.IntN(blocks)
			if r.IntN(4) > 0 {
				to = blocks
			}
			if r.IntN(3) == 0 {
				from = r.IntN(to)
			}
			var c index.Change
			if n < 90 {
				c = p.remove(units, from, to)
			} else if c = p.store(units, from, to); r.IntN(6) == 0 {
				c.Locals, c.Root = nil, 0
				c.Tier, c.HasParent = index.TierCPU+index.Tier(r.IntN(2)), false
			}
			if src.Pod == "pod2" && r.IntN(2) == 0 {
				c.Group = index.Group{ID: 1, Kind: index.GroupWindow, Window: 64}
			}
			changes = append(changes, c)
		}
	}
	if _, err := mem.Apply(ctx, src, index.Cursor{}, changes); err != nil {
		tb.Error(err)
	}
}

// After each commit the buckets have the Memory's blocks, with failures and with changes during a
// commit. At the end nothing is left.
func TestBucketsRandom(t *testing.T) {
	var saw bucketFirings
	for seed := range uint64(4) {
		var c index.MemoryConfig
		if seed%2 == 1 {
			c.Bytes = index.MinMemory // small, to evict blocks
		}
		s, r := newMapServer(t, c), newMixture(seed)
		was := make(map[*bucket]glimpse)
		step := func() { r.apply(t, s.mem, r.sources[r.IntN(len(r.sources))]) }
		fail := func() error {
			if r.IntN(40) == 0 {
				saw.failed++
				return errLink
			}
			return nil
		}
		coin := func() bool { return r.IntN(2) == 0 }
		flush := func(during func()) {
			for more := true; more; {
				saw.look(s.redisIndex, was)
				b := s.take()
				s.checkBatch(b, &saw)
				if len(b.puts) > 0 {
					during()
				}
				s.deliver(b, fail, coin)
				more = s.settle(b)
			}
			saw.look(s.redisIndex, was)
		}
		for range 150 {
			for range 1 + r.IntN(4) {
				step()
			}
			flush(func() {
				for range r.IntN(3) {
					saw.between++
					step()
				}
			})
			for range 3 {
				saw.rows += s.same(r.pick(), r.IntN(2) == 0)
			}
			if r.IntN(4) == 0 {
				s.sweepOwn()
			}
		}
		for _, p := range r.prompts {
			saw.rows += s.same(p, true)
		}
		for _, src := range r.sources {
			must(t, s.mem.Remove(t.Context(), src.Pod))
		}
		for range 10 {
			saw.late += len(s.all)
			s.sweepOwn()
			for range len(s.all) {
				s.sweepOwn()
			}
			flush(func() {})
		}
		if len(s.all) > 0 || len(s.numbers) > 0 || len(s.dirty) > 0 {
			t.Errorf("%d buckets, %d holders, %d dirty buckets are left", len(s.all), len(s.numbers), len(s.dirty))
		}
		for key, value := range s.values {
			if value != valueHead+section(s.id, u64(value[len(valueHead)+8:]), "") {
				t.Fatalf("%q has %x at the end", key, value)
			}
		}
		if n := s.unreadable.Load(); n > 0 {
			t.Errorf("%d values made no sense", n)
		}
	}
	saw.check(t, bucketFirings{
		splits: [levels]int{12, 6, 0}, lines: 1000, buckets: 5000, ends: 1, cut: 1000, gone: 10_000,
		rows: 20_000, failed: 500, between: 1000, late: 1000,
	})
}

// TestBucketsRandom with concurrent Applies, while another goroutine commits.
func TestBucketsConcurrent(t *testing.T) {
	s, r := newMapServer(t, index.MemoryConfig{}), newMixture(77)
	var appliers sync.WaitGroup
	for i, src := range r.sources {
		own := &mixture{rand.New(rand.NewPCG(uint64(i), 6)), r.prompts, r.sources}
		appliers.Go(func() {
			for range 150 {
				own.apply(t, s.mem, src)
			}
		})
	}
	done := make(chan struct{})
	go func() { appliers.Wait(); close(done) }()
	commits, more := 0, true
	for running := true; running || more; commits++ {
		select {
		case <-done:
			running = false
		default:
		}
		b := s.take()
		s.deliver(b, func() error { return nil }, nil)
		more = s.settle(b)
		s.sweepOwn()
	}
	rows := 0
	for _, p := range r.prompts {
		rows += s.same(p, true)
	}
	if t.Logf("%d commits, %d rows", commits, rows); commits < 50 || rows < 500 {
		t.Error("there are too few of these")
	}
}

// The memory of whole buckets in Redis.
func TestBytesOfBuckets(t *testing.T) {
	const blocks = 512
	r := rand.New(rand.NewPCG(1, 2))
	p := (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(r, 0, blocks)
	s := newMapServer(t, index.MemoryConfig{})
	size := func() (n int) {
		s.commit(false, func() {})
		for _, v := range s.values {
			n += len(v)
		}
		return n
	}
	apply := func(from, to int) {
		for pod := from; pod < to; pod++ {
			_, err := s.mem.Apply(t.Context(), index.Source{Pod: fmt.Sprint(pod), Model: "m"}, index.Cursor{}, []index.Change{p.store(1, 0, blocks)})
			must(t, err)
		}
	}
	apply(0, 16)
	at16 := float64(size()) / blocks
	apply(16, 2000)
	further := (float64(size())/blocks - at16) / (2000 - 16)
	t.Logf("%.2f bytes a block at 16 holders, %.3f for each further one", at16, further)
	if at16 > 17 || further > 12.0/32 {
		t.Error("that is more than 17, or more than 12 a bucket for each further holder")
	}
	// A single line is not split, whatever its number of holders.
	for _, b := range s.all {
		if n := len(s.encode(b)); b.split || n <= maxSection {
			t.Fatalf("a bucket of one line and 2000 holders has %d bytes, split %v", n, b.split)
		}
	}
}

// Many forks of one prompt are in several buckets before anything is encoded, so that each is found
// quickly.
func TestManyForks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := newMapServer(t, index.MemoryConfig{})
	p := (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(r, 0, 13)
	var changes []index.Change
	var forks []*prompt
	for range 7000 {
		f := p.fork(r, 13, 1+r.IntN(3))
		forks = append(forks, f)
		changes = append(changes, f.store(1, 0, len(f.keys)))
	}
	s.apply(changes...)
	for _, b := range s.all {
		if len(b.lines) > maxLines+1 {
			t.Fatalf("a bucket of level %d has %d lines", b.level, len(b.lines))
		}
	}
	s.commit(false, func() {})
	for key, value := range s.values {
		if len(value) > len(valueHead)+sectionHead+maxSection {
			t.Errorf("%q has %d bytes", key, len(value))
		}
	}
	for range 300 {
		if f := forks[r.IntN(len(forks))]; s.same(f, false) != 1 {
			t.Fatal("a fork has no row")
		}
	}
}

// If more buckets are split at once than a commit takes, all of their parts are written.
func TestManySplits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := newMapServer(t, index.MemoryConfig{})
	var changes []index.Change
	var forks []*prompt
	for range maxCommit {
		p := (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(r, 0, 1)
		for range 8 {
			f := p.fork(r, 1, 31)
			forks = append(forks, f)
			changes = append(changes, f.store(1, 0, len(f.keys)))
		}
	}
	s.apply(changes...)
	for commits := 0; len(s.dirty) > 0; commits++ {
		if commits == 100 {
			t.Fatalf("%d buckets are never written", len(s.dirty))
		}
		b := s.take()
		s.deliver(b, func() error { return nil }, nil)
		s.settle(b)
	}
	for range 300 {
		if f := forks[r.IntN(len(forks))]; s.same(f, false) != 1 {
			t.Fatal("a fork has no row")
		}
	}
}

// commit writes the dirty buckets. during runs while the first batch is sent; with failed that
// batch is not carried out.
func (s *mapServer) commit(failed bool, during func()) {
	for more := true; more; failed, during = false, func() {} {
		b := s.take()
		during()
		s.deliver(b, func() error {
			if failed {
				return errLink
			}
			return nil
		}, func() bool { return false })
		more = s.settle(b)
	}
}

// crowd stores enough forks of a prompt to split its last bucket.
func (s *mapServer) crowd(r *rand.Rand, p *prompt) (forks []*prompt) {
	for range 100 {
		f := p.fork(r, len(p.keys), 3)
		forks = append(forks, f)
		s.apply(f.store(1, 0, len(f.keys)))
	}
	return forks
}

func (s *mapServer) apply(changes ...index.Change) {
	if _, err := s.mem.Apply(context.Background(), index.Source{Pod: "pod", Model: "m"}, index.Cursor{}, changes); err != nil {
		s.Fatal(err)
	}
}

// A split bucket that lost its last part keeps its mark if it gets another part while it is
// written.
func TestSplitBucketFillsAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := newMapServer(t, index.MemoryConfig{})
	nothing := func() {}
	p := (&prompt{Variant: index.Variant{Unit: 16}, root: 7}).fork(r, 0, 1)
	forks := s.crowd(r, p)
	s.commit(false, nothing)
	top := s.byKey[0][p.keys[0]]
	if top == nil || !top.split {
		t.Fatal("the bucket is not split")
	}
	for _, f := range forks {
		s.apply(f.remove(1, 0, len(f.keys)))
	}
	for again := 0; ; again++ {
		b := s.take()
		last := slices.ContainsFunc(b.puts, func(put bucketWrite) bool { return put.bucket == top && put.body == "" })
		if last {
			s.apply(forks[1].store(1, 0, 4))
		}
		s.deliver(b, func() error { return nil }, nil)
		s.settle(b)
		if last {
			break
		}
		if again == 10 {
			t.Fatal("the bucket was never empty")
		}
	}
	s.commit(false, nothing)
	if s.same(forks[1], true) != 1 {
		t.Error("a row is missing")
	}
}
