package fakeengine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// rig is an engine that keeps its batches, and whose invariants are checked after every step.
type rig struct {
	*fakeengine.Engine
	t        testing.TB
	payloads [][]byte
	read     int // batches already returned
}

func newRig(t testing.TB, cfg fakeengine.Config) *rig {
	t.Helper()
	r := &rig{t: t}
	cfg.Publish = func(p []byte) { r.payloads = append(r.payloads, p) }
	e, err := fakeengine.New(cfg)
	must(t, err)
	r.Engine = e
	return r
}

func (r *rig) submit(q fakeengine.Request) *fakeengine.Handle {
	r.t.Helper()
	h, err := r.Submit(q)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *rig) step() bool {
	r.t.Helper()
	ran := r.Step()
	if err := r.CheckInvariants(); err != nil {
		r.t.Fatal(err)
	}
	return ran
}

func (r *rig) drain() {
	r.t.Helper()
	for r.step() {
	}
}

// run submits a prompt, serves it and all waiting requests, and returns its handle.
func (r *rig) run(q fakeengine.Request) *fakeengine.Handle {
	r.t.Helper()
	h := r.submit(q)
	r.drain()
	if !h.Done() {
		r.t.Fatal("the engine has nothing to do, but the request is not done")
	}
	return h
}

// news describes each batch published since the last call by a string. A stored event is +from:to
// by its tokens, which must be consecutive, with /last token of the parent if any; a removed event
// is -last token of its block.
func (r *rig) news() []string {
	r.t.Helper()
	var out []string
	last := map[enginehash.Digest]uint32{} // of all blocks ever stored
	for i, p := range r.payloads {
		b, err := decode(p)
		if err != nil {
			r.t.Fatal(err)
		}
		var words []string
		for _, e := range b.Events {
			words = append(words, shorten(r.t, e, last))
		}
		if i >= r.read {
			out = append(out, strings.Join(words, " "))
		}
	}
	r.read = len(r.payloads)
	return out
}

func shorten(t testing.TB, e fakeengine.Event, last map[enginehash.Digest]uint32) string {
	t.Helper()
	switch e := e.(type) {
	case *fakeengine.Removed:
		if len(e.Hashes) != 1 {
			t.Fatalf("%d hashes in a removed event", len(e.Hashes))
		}
		return fmt.Sprint("-", last[e.Hashes[0]])
	case *fakeengine.Stored:
		n := len(e.Tokens) / len(e.Hashes)
		if n != e.BlockSize {
			t.Fatalf("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
		}
		for i, h := range e.Hashes {
			last[h] = e.Tokens[(i+1)*n-1]
		}
		s := fmt.Sprintf("+%d:%d", e.Tokens[0], e.Tokens[len(e.Tokens)-1]+1)
		if e.Parent != nil {
			s += fmt.Sprint("/", last[*e.Parent])
		}
		return s
	}
	return "clear"
}

func (r *rig) wantNews(want ...string) {
	r.t.Helper()
	if got := r.news(); !slices.Equal(got, want) {
		r.t.Fatalf("published %q, want %q", got, want)
	}
}

func (r *rig) wantCopies(tokens []uint32, want ...int) {
	r.t.Helper()
	if got := r.Copies(tokens, "", ""); !slices.Equal(got, want) {
		r.t.Fatalf("copies %v, want %v", got, want)
	}
}

// count returns the tokens from to to.
func count(from, to uint32) []uint32 {
	var out []uint32
	for t := from; t < to; t++ {
		out = append(out, t)
	}
	return out
}

// small is a config in which few tokens show a rule.
func small(blocks int) fakeengine.Config {
	return fakeengine.Config{BlockSize: 4, Blocks: blocks + 1, TokenBudget: 64}
}

// TestWhatARequestLeaves: a request leaves all full blocks of its tokens but the last one.
func TestWhatARequestLeaves(t *testing.T) {
	for prompt := 1; prompt < 14; prompt++ {
		for output := 1; output < 10; output++ {
			r := newRig(t, small(20))
			h := r.run(fakeengine.Request{Tokens: count(1, uint32(prompt)+1), MaxTokens: output})
			all := append(count(1, uint32(prompt)+1), h.Output()...)
			if got, want := r.Held(all, "", ""), (prompt+output-1)/4*4; got != want {
				t.Errorf("prompt %d, output %d: held %d, want %d", prompt, output, got, want)
			}
			if want := min(r.Held(all, "", ""), (len(all)-1)/4*4); r.Cached(all, "", "") != want {
				t.Errorf("prompt %d, output %d: cached %d, want %d", prompt, output, r.Cached(all, "", ""), want)
			}
		}
	}
}

func TestSamePromptAtOnce(t *testing.T) {
	t.Run("one after the other", func(t *testing.T) {
		r := newRig(t, small(20))
		r.submit(fakeengine.Request{Tokens: count(1, 14)})
		h := r.submit(fakeengine.Request{Tokens: count(1, 14)})
		r.step()
		r.wantNews("+1:13") // the second hits the blocks that the first is about to compute
		if h.CachedTokens() != 12 {
			t.Errorf("cached tokens %d", h.CachedTokens())
		}
	})
	t.Run("side by side in chunks", func(t *testing.T) {
		cfg := small(20)
		cfg.ChunkTokens = 4
		r := newRig(t, cfg)
		r.submit(fakeengine.Request{Tokens: count(1, 14)})
		h := r.submit(fakeengine.Request{Tokens: count(1, 14)})
		r.drain()
		r.wantNews("+1:5 +5:9/4", "+5:9/4 +9:13/8", "+9:13/8")
		r.wantCopies(count(1, 14), 1, 2, 2)
		if h.CachedTokens() != 4 {
			t.Errorf("cached tokens %d", h.CachedTokens())
		}
	})
	t.Run("equal outputs", func(t *testing.T) {
		cfg := small(20)
		r := newRig(t, cfg)
		a := r.submit(fakeengine.Request{Tokens: count(1, 7), MaxTokens: 7, Greedy: true})
		b := r.submit(fakeengine.Request{Tokens: count(1, 7), MaxTokens: 7, Greedy: true})
		r.drain()
		if !slices.Equal(a.Output(), b.Output()) {
			t.Fatalf("outputs %v, %v", a.Output(), b.Output())
		}
		r.wantCopies(append(count(1, 7), a.Output()...), 1, 2, 2)
	})
}

func TestEvictionOrder(t *testing.T) {
	t.Run("tail first, on reuse only, once per copy", func(t *testing.T) {
		r := newRig(t, small(6))
		r.run(fakeengine.Request{Tokens: count(1, 13)})
		r.run(fakeengine.Request{Tokens: count(1, 13)})
		r.wantNews("+1:13", "+9:13/8")
		r.wantCopies(count(1, 13), 1, 1, 2)
		// The copy that was hit last is the youngest. The queue: two blocks never used, the first
		// request's third block, the second's third, then their second and first.
		r.run(fakeengine.Request{Tokens: count(101, 117)})
		r.wantNews("-12 -12 +101:117")
		r.wantCopies(count(1, 13), 1, 1, 0)
		r.run(fakeengine.Request{Tokens: count(201, 205)})
		r.wantNews("-8 +201:205")
		if got := r.Counts(); got.Removed != 3 || got.RemovedCopies != 1 || got.StoredCopies != 1 || got.Stored != 9 {
			t.Errorf("counts %+v", got)
		}
	})
	t.Run("a hit is used last", func(t *testing.T) {
		r := newRig(t, small(4))
		r.run(fakeengine.Request{Tokens: count(1, 5)})
		r.run(fakeengine.Request{Tokens: count(11, 15)})
		r.run(fakeengine.Request{Tokens: count(1, 6)}) // a hit, and a partly filled block
		r.news()
		r.run(fakeengine.Request{Tokens: count(21, 33)})
		r.wantNews("-14 +21:33")
		r.wantCopies(count(1, 5), 1)
	})
	t.Run("the oldest copy is hit", func(t *testing.T) {
		r := newRig(t, small(6))
		r.run(fakeengine.Request{Tokens: count(1, 13)})
		oldest := r.BlockIDs(count(1, 13), "", "")
		r.run(fakeengine.Request{Tokens: count(1, 13)})
		r.run(fakeengine.Request{Tokens: count(1, 14)})
		r.run(fakeengine.Request{Tokens: count(101, 113)}) // two free blocks and the other copy
		r.wantNews("+1:13", "+9:13/8", "-12 +101:113")
		if got := r.BlockIDs(count(1, 13), "", ""); !slices.Equal(got, oldest) {
			t.Errorf("left are blocks %v, want %v", got, oldest)
		}
	})
	t.Run("blocks without a hash, last first", func(t *testing.T) {
		r := newRig(t, small(20))
		h := r.submit(fakeengine.Request{Tokens: count(1, 14), MaxTokens: 3})
		r.step()
		ids := r.BlockIDs(count(1, 14), "", "")
		r.EvictBlocks(ids...)
		r.drain()
		slices.Reverse(ids)
		r.run(fakeengine.Request{Tokens: count(101, 118)})
		// The first block was never full.
		if got := r.BlockIDs(count(101, 118), "", ""); !h.Done() || !slices.Equal(got[1:], ids) {
			t.Errorf("used again: blocks %v, want %v", got, ids)
		}
	})
	for _, tc := range []struct {
		form fakeengine.Form
		want string
	}{
		{fakeengine.FormMaps, "+21:25"},
		{fakeengine.FormArrays12, "-4 +21:25"},
		{fakeengine.FormArrays7, "-4 +21:25"},
	} {
		t.Run(fmt.Sprint("a block without a hash, form ", tc.form), func(t *testing.T) {
			cfg := small(4)
			cfg.Encoding.Form = tc.form
			r := newRig(t, cfg)
			r.run(fakeengine.Request{Tokens: count(1, 5)})
			r.run(fakeengine.Request{Tokens: count(11, 22)}) // three blocks, one partly filled
			r.news()
			r.run(fakeengine.Request{Tokens: count(21, 25)})
			r.wantNews(tc.want)
		})
	}
}

func TestPreemption(t *testing.T) {
	r := newRig(t, small(6))
	a := r.submit(fakeengine.Request{Tokens: count(1, 8), Output: count(8, 17)})
	b := r.submit(fakeengine.Request{Tokens: count(101, 108), Output: count(108, 117)})
	c := r.submit(fakeengine.Request{Tokens: count(201, 206), Output: count(206, 208)})
	r.step()
	r.wantNews("+1:5 +101:105 +201:205")
	r.step()
	r.wantNews("+5:9/4 +105:109/104") // and the last of c
	if !c.Done() || r.Free() != 2 || r.Running() != 2 {
		t.Fatalf("c done: %v, %d blocks free, %d running", c.Done(), r.Free(), r.Running())
	}
	r.step() // each needs a third block: the free one without a hash, then c's
	r.wantNews("-204")
	for range 3 {
		r.step()
	}
	r.wantNews("+9:13/8 +109:113/108")
	waiting := r.submit(fakeengine.Request{Tokens: count(301, 303)})
	r.step() // a needs a fourth block: b is preempted, and its last block is reused first
	if r.Running() != 1 || r.Waiting() != 2 {
		t.Fatalf("%d running, %d waiting", r.Running(), r.Waiting())
	}
	r.wantNews("-112")
	r.step()
	r.step()
	if !a.Done() || b.Done() || waiting.Done() {
		t.Fatalf("done: %v, %v, %v", a.Done(), b.Done(), waiting.Done())
	}
	r.wantNews()
	// b precedes the request that arrived while it ran, and hits its remaining blocks. It gets a's
	// last block, which has no hash, and the one before; the other gets the next.
	r.step()
	r.wantNews("-12 +109:113/108 -8")
	r.drain()
	if !b.Done() || !waiting.Done() || !slices.Equal(b.Output(), count(108, 117)) {
		t.Fatalf("done: %v, %v, output %v", b.Done(), waiting.Done(), b.Output())
	}
	if b.CachedTokens() != 0 {
		t.Errorf("cached tokens %d: the first admission counts", b.CachedTokens())
	}
	if got := r.Counts(); got.Preempted != 1 || got.Hits != 0 {
		t.Errorf("counts %+v", got)
	}
}

// TestNobodyIsAdmittedAfterPreemption: not in the same step, even with room.
func TestNobodyIsAdmittedAfterPreemption(t *testing.T) {
	cfg := small(8)
	cfg.ChunkTokens, cfg.AdmitByChunk = 8, true
	r := newRig(t, cfg)
	r.submit(fakeengine.Request{Tokens: count(1, 8), MaxTokens: 9})
	r.submit(fakeengine.Request{Tokens: count(101, 121), MaxTokens: 2, SkipReadingPrefixCache: true})
	for _, running := range []int{2, 2, 2, 1, 2} { // 20 tokens of the second fill the pool; it needs one more block
		r.step()
		if r.Running() != running {
			t.Fatalf("%d running, want %d", r.Running(), running)
		}
	}
	r.drain()
}

func TestReset(t *testing.T) {
	r := newRig(t, small(20))
	h := r.submit(fakeengine.Request{Tokens: count(1, 6), MaxTokens: 3})
	r.step()
	if r.Reset() || r.Pending() {
		t.Fatal("reset while a request is running")
	}
	r.drain()
	if !h.Done() || !r.Reset() || !r.Pending() {
		t.Fatal("no reset, although nothing is running")
	}
	r.wantNews("+1:5")
	if got := r.Held(count(1, 6), "", ""); got != 0 {
		t.Fatalf("held %d tokens after a reset", got)
	}
	if r.step() || !r.Pending() {
		t.Fatal("an idle engine published")
	}
	r.wantNews()
	r.run(fakeengine.Request{Tokens: count(1, 6)})
	r.wantNews("clear +1:5") // not hit, and no removal
	if r.Pending() {
		t.Error("events are pending after a step")
	}
	if got := r.Counts(); got.Cleared != 1 || got.Refused != 1 {
		t.Errorf("counts %+v", got)
	}
}

func TestResetRunning(t *testing.T) {
	r := newRig(t, small(20))
	a := r.submit(fakeengine.Request{Tokens: count(1, 6), Output: count(6, 10)})
	b := r.submit(fakeengine.Request{Tokens: count(101, 106), Output: count(106, 110)})
	r.step()
	r.step()
	r.news()
	r.ResetRunning()
	if r.Running() != 0 || r.Waiting() != 2 {
		t.Fatalf("%d running, %d waiting", r.Running(), r.Waiting())
	}
	r.step()
	r.wantNews("clear +1:5 +101:105") // in their old order
	r.drain()
	if !a.Done() || !b.Done() || r.Counts().Preempted != 2 {
		t.Errorf("done: %v, %v, %d preempted", a.Done(), b.Done(), r.Counts().Preempted)
	}
}

func TestReportFull(t *testing.T) {
	cfg := small(8)
	cfg.AdmitByChunk = false
	r := newRig(t, cfg)
	r.run(fakeengine.Request{Tokens: count(1, 10)})
	r.wantNews("+1:9")
	other := r.submit(fakeengine.Request{Tokens: count(101, 117), MaxTokens: 3}) // 4 blocks, then 5
	r.step()
	h := r.submit(fakeengine.Request{Tokens: count(1, 18), ReportFull: true}) // 5 blocks, 2 of them hit
	r.step()
	r.step()
	r.wantNews("+101:117", "+1:9", "+1:9") // one for each failed attempt
	if !other.Done() || h.Done() || r.Counts().Reported != 4 {
		t.Fatalf("done: %v, %v, %d reported", other.Done(), h.Done(), r.Counts().Reported)
	}
	r.drain()
	r.wantNews("+1:9 -116 +9:17/8")
	r.wantCopies(count(1, 18), 1, 1, 1, 1)

	old := fakeengine.Config{BlockSize: 4, Encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12}}
	r = newRig(t, old)
	r.run(fakeengine.Request{Tokens: count(1, 10)})
	r.run(fakeengine.Request{Tokens: count(1, 10), ReportFull: true})
	r.wantNews("+1:9")
}

func TestScopes(t *testing.T) {
	cfg := small(40)
	cfg.Rank = 3
	r := newRig(t, cfg)
	type scope struct{ adapter, salt string }
	scopes := []scope{{}, {"tuned", ""}, {"", "tenant"}, {"tuned", "tenant"}, {"other", ""}}
	for i, s := range scopes {
		h := r.run(fakeengine.Request{Tokens: count(1, 10), Adapter: s.adapter, Salt: s.salt})
		if h.CachedTokens() != 0 {
			t.Errorf("scope %d hits another's blocks", i)
		}
		if h := r.run(fakeengine.Request{Tokens: count(1, 10), Adapter: s.adapter, Salt: s.salt}); h.CachedTokens() != 8 {
			t.Errorf("scope %d does not hit its own blocks", i)
		}
		if got := r.Held(count(1, 10), s.adapter, s.salt); got != 8 {
			t.Errorf("scope %d: held %d", i, got)
		}
	}
	ids := map[string]int{"": 0, "tuned": 1, "other": 2}
	for i, s := range scopes {
		b, err := decode(r.payloads[i])
		must(t, err)
		e := b.Events[0].(*fakeengine.Stored)
		var first, rest []enginehash.Extra
		if s.adapter != "" {
			first, rest = append(first, enginehash.Text(s.adapter)), append(rest, enginehash.Text(s.adapter))
		}
		if s.salt != "" {
			first = append(first, enginehash.Text(s.salt))
		}
		if len(e.Extra) != 2 || !slices.Equal(e.Extra[0], first) || !slices.Equal(e.Extra[1], rest) {
			t.Errorf("scope %d: extra keys %v, want %v, %v", i, e.Extra, first, rest)
		}
		if e.Adapter != s.adapter || e.AdapterID != ids[s.adapter] || b.Rank != 3 {
			t.Errorf("scope %d: adapter %q, id %d, rank %d", i, e.Adapter, e.AdapterID, b.Rank)
		}
		parent := enginehash.NoneHash("")
		for j, extra := range [][]enginehash.Extra{first, rest} {
			parent = new(enginehash.Hasher).Block(parent, e.Tokens[j*4:j*4+4], extra)
			if e.Hashes[j].Int() != parent.Int() {
				t.Errorf("scope %d: block %d is named %d, want %d", i, j, e.Hashes[j].Int(), parent.Int())
			}
		}
	}
}

func TestOutputs(t *testing.T) {
	prompt := count(1, 10)
	run := func(cfg fakeengine.Config, q fakeengine.Request) []uint32 {
		q.Tokens = prompt
		return newRig(t, cfg).run(q).Output()
	}
	forced := run(small(20), fakeengine.Request{Output: count(50, 54), MaxTokens: 6})
	if len(forced) != 6 || !slices.Equal(forced[:4], count(50, 54)) {
		t.Errorf("output %v", forced)
	}
	if got := run(small(20), fakeengine.Request{Output: count(50, 54), MaxTokens: 2}); !slices.Equal(got, count(50, 52)) {
		t.Errorf("output %v", got)
	}
	if got := run(small(20), fakeengine.Request{}); len(got) != 1 {
		t.Errorf("output %v", got)
	}

	greedy := fakeengine.Request{MaxTokens: 8, Greedy: true}
	one, other, tuned := small(20), small(20), greedy
	one.Model, other.Model, other.Seed, tuned.Adapter = "m", "m", 7, "tuned"
	if a, b := run(one, greedy), run(other, greedy); !slices.Equal(a, b) {
		t.Errorf("one model has %v and %v", a, b)
	}
	if a, b := run(one, greedy), run(small(20), greedy); slices.Equal(a, b) {
		t.Errorf("two models say %v", a)
	}
	if a, b := run(one, greedy), run(one, tuned); slices.Equal(a, b) {
		t.Errorf("with and without an adapter: %v", a)
	}
	drawn := fakeengine.Request{MaxTokens: 8}
	if a, b := run(one, drawn), run(other, drawn); slices.Equal(a, b) {
		t.Errorf("two seeds draw %v", a)
	}
	if a, b := run(one, drawn), run(one, drawn); !slices.Equal(a, b) {
		t.Errorf("one seed draws %v and %v", a, b)
	}
	few := small(20)
	few.Vocabulary = 3
	if got := run(few, fakeengine.Request{MaxTokens: 30}); slices.Max(got) > 2 {
		t.Errorf("tokens beyond the vocabulary: %v", got)
	}
}

func TestClock(t *testing.T) {
	times := func(cfg fakeengine.Config) (out []float64) {
		r := newRig(t, cfg)
		r.run(fakeengine.Request{Tokens: count(1, 5), MaxTokens: 5})
		for _, p := range r.payloads {
			b, err := decode(p)
			must(t, err)
			out = append(out, b.Time)
		}
		return out
	}
	if got, want := times(small(20)), []float64{1. / 64, 5. / 64}; !slices.Equal(got, want) {
		t.Errorf("times %v, want %v", got, want)
	}
	cfg, now := small(20), 100.
	cfg.Now = func() float64 { now++; return now }
	if got, want := times(cfg), []float64{101, 102}; !slices.Equal(got, want) {
		t.Errorf("times %v, want %v", got, want)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		cfg  fakeengine.Config
		want []string
	}{
		{fakeengine.Config{}, nil},
		{fakeengine.Config{BlockSize: -1, Blocks: 1, TokenBudget: -2, MaxRunning: -3, Rank: -4, ChunkTokens: -5},
			[]string{"BlockSize", "Blocks", "TokenBudget", "MaxRunning", "Rank", "ChunkTokens"}},
	} {
		_, err := fakeengine.New(tc.cfg)
		if (err == nil) != (len(tc.want) == 0) {
			t.Errorf("New(%+v): %v", tc.cfg, err)
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("New(%+v): %v, want it to name %s", tc.cfg, err, w)
			}
		}
	}

	r := newRig(t, small(5))
	for _, q := range []fakeengine.Request{
		{},
		{Tokens: count(1, 21)},
		{Tokens: count(1, 11), MaxTokens: 11},
		{Tokens: count(1, 11), MaxTokens: -1},
	} {
		if _, err := r.Submit(q); err == nil {
			t.Errorf("a request of %d tokens for %d was accepted", len(q.Tokens), q.MaxTokens)
		}
	}
	r.run(fakeengine.Request{Tokens: count(1, 11), MaxTokens: 10}) // fills the pool
}

// TestKeepsNoSlices: callers may reuse their slices.
func TestKeepsNoSlices(t *testing.T) {
	r := newRig(t, small(20))
	prompt, output := count(1, 10), count(10, 14)
	h := r.submit(fakeengine.Request{Tokens: prompt, Output: output})
	clear(prompt)
	clear(output)
	r.drain()
	r.wantNews("+1:9", "+9:13/8")
	clear(h.Output())
	if !slices.Equal(h.Output(), count(10, 14)) {
		t.Errorf("output %v", h.Output())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
