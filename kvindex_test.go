package kvindex_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/inmemory"
)

var ctx = context.Background()

// words is a tokenizer: one id for each byte, and 1 in front as BOS.
type words struct{}

func (words) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if text == "fail" {
		return dst, errors.New("no such text")
	}
	if special && text != "nothing" {
		dst = append(dst, 1)
	}
	for _, b := range []byte(text) {
		if text == "nothing" {
			break
		}
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

func open(t testing.TB, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.New(opts...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	return ix
}

// memory opens an index in memory with testSeed.
func memory(t testing.TB) inmemory.Memory {
	t.Helper()
	m, err := inmemory.New(index.MemoryConfig{Seed: testSeed})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// alteredIndex is an index in memory with some methods replaced.
type alteredIndex struct {
	inmemory.Memory
	// before, if set, is called before Apply, Cursor, Remove and RemoveSource; they return its
	// error.
	before func(ctx context.Context, call string, src index.Source) error
	match  func(ctx context.Context, q *index.Query, m *index.Matches) error // if set, replaces Match
}

func (a *alteredIndex) may(ctx context.Context, call string, src index.Source) error {
	if a.before == nil {
		return nil
	}
	return a.before(ctx, call, src)
}

func (a *alteredIndex) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	if err := a.may(ctx, "Apply", src); err != nil {
		return index.Effect{}, err
	}
	return a.Memory.Apply(ctx, src, cur, changes)
}

func (a *alteredIndex) Cursor(ctx context.Context, src index.Source, stream string) (index.Cursor, error) {
	if err := a.may(ctx, "Cursor", src); err != nil {
		return index.Cursor{}, err
	}
	return a.Memory.Cursor(ctx, src, stream)
}

func (a *alteredIndex) Remove(ctx context.Context, pod string) error {
	if err := a.may(ctx, "Remove", index.Source{Pod: pod}); err != nil {
		return err
	}
	return a.Memory.Remove(ctx, pod)
}

func (a *alteredIndex) RemoveSource(ctx context.Context, src index.Source) error {
	if err := a.may(ctx, "RemoveSource", src); err != nil {
		return err
	}
	return a.Memory.RemoveSource(ctx, src)
}

func (a *alteredIndex) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	if a.match != nil {
		return a.match(ctx, q, m)
	}
	return a.Memory.Match(ctx, q, m)
}

func withProfile(p kvindex.Profile) kvindex.Option {
	return kvindex.WithProfile(func(string, string) kvindex.Profile { return p })
}

func ingest(t testing.TB, ix *kvindex.Indexer, pod string, evs ...fakeengine.Event) {
	t.Helper()
	must(t, ix.Ingest(pod, "m", fakeengine.Payload(1, 0, evs...)))
}

func score(t testing.TB, ix *kvindex.Indexer, r kvindex.Request) []kvindex.PodScore {
	t.Helper()
	if r.Model == "" {
		r.Model = "m"
	}
	var a kvindex.Answer
	must(t, ix.ScoreRequest(ctx, &r, &a))
	return a.Pods
}

// blocks returns the number of leading blocks of a prompt that the only pod matches.
func blocks(t testing.TB, ix *kvindex.Indexer, pod string, p fakeengine.Prompt) int {
	t.Helper()
	return score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{pod}})[0].MatchedBlocks
}

// The constants of the API are converted to the internal ones by number.
func TestConstants(t *testing.T) {
	for i, c := range kvindex.Constants {
		if c[0] != c[1] {
			t.Errorf("constant %d of the list is %d, the internal one %d", i, c[0], c[1])
		}
	}
}

func TestScoreText(t *testing.T) {
	ix := open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}}))
	text := "a prompt of some forty letters, give or take a few"
	tokens, _ := words{}.Encode(ctx, nil, text, true)
	p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: 1}
	ingest(t, ix, "a", p.Stored(0, 1))
	ingest(t, ix, "b", p.Stored(0, 3))
	got, err := ix.Score(ctx, text, "m", nil)
	must(t, err)
	want := []kvindex.PodScore{
		{Pod: "b", Score: 48, PredictedTokens: 48, MatchedBlocks: 3, BlockTokens: 16, Tiers: [index.NumTiers]int{3}, CachedTokens: 48, State: kvindex.StateLive},
		{Pod: "a", Score: 16, PredictedTokens: 16, MatchedBlocks: 1, BlockTokens: 16, Tiers: [index.NumTiers]int{1}, CachedTokens: 16, State: kvindex.StateLive},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// Calls that Close interrupts succeed or return ErrClosed.
func TestCloseWhileBusy(t *testing.T) {
	for range 200 {
		ix := open(t)
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				p := fakeengine.NewPrompt(uint64(w), 16, 2)
				for {
					err := ix.Ingest(fmt.Sprint(w), fmt.Sprint(w), fakeengine.Payload(1, 0, p.Stored(0, 2)))
					if err == nil {
						err = ix.ScoreRequest(ctx, &kvindex.Request{Model: fmt.Sprint(w), Tokens: p.Tokens}, new(kvindex.Answer))
					}
					if errors.Is(err, kvindex.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		ix.Close()
		wg.Wait()
	}
}

// TestCloseDuringScore: a score that Close ends counts nowhere.
func TestCloseDuringScore(t *testing.T) {
	m := &alteredIndex{Memory: memory(t)}
	ix := open(t, kvindex.WithIndex(m), kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { t.Errorf("the hook gets %+v", s) }}))
	m.match = func(context.Context, *index.Query, *index.Matches) error {
		must(t, ix.Close())
		return index.ErrClosed
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: []uint32{1}, Pods: []string{"a"}}, new(kvindex.Answer))
	if n := ix.Stats().Scores.Outcomes; !errors.Is(err, kvindex.ErrClosed) || counted(n) > 0 {
		t.Errorf("%v, %v", err, n)
	}
}

func TestClose(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	ingest(t, ix, "a", p.Stored(0, 2))
	for range 2 {
		must(t, ix.Close())
	}
	_, scoreErr := ix.Score(ctx, "x", "m", nil)
	_, messageErr := ix.IngestMessage(message("s", 0, 1, 0))
	for name, err := range map[string]error{
		"Score":         scoreErr,
		"ScoreRequest":  ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens}, new(kvindex.Answer)),
		"Ingest":        ix.Ingest("a", "m", fakeengine.Payload(1, 0)),
		"IngestMessage": messageErr,
		"ApplyBatch":    ix.ApplyBatch("a", "m", new(events.Batch)),
		"MarkLost":      ix.MarkLost("a", 0),
		"RemovePod":     ix.RemovePod("a"),
		"NoteOpened":    ix.Sink().StreamNote("a", "m", "s", events.NoteOpened),
		"NoteLost":      ix.Sink().StreamNote("a", "m", "s", events.NoteLost),
		"NoteRestarted": ix.Sink().StreamNote("a", "m", "s", events.NoteRestarted),
		"NoteRewound":   ix.Sink().StreamNote("a", "m", "s", events.NoteRewound),
	} {
		if !errors.Is(err, kvindex.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := ix.Pods(nil); len(got) != 0 {
		t.Errorf("Pods: %+v", got)
	}
	if got, ok := ix.Pod("a", "m"); ok {
		t.Errorf("Pod: %+v", got)
	}
	if n := ix.Stats(); n.Messages != 1 || n.Blocks[kvindex.TierGPU] != 0 {
		t.Errorf("Stats: %+v", n)
	}
}

// TestConcurrent adds and removes pods, ranks, adapters and names while readers check what no state
// allows.
func TestConcurrent(t *testing.T) {
	ix := open(t, kvindex.WithResolver(aliases{"alias": {"m", ""}, "alias-sql": {"m", "sql"}}.resolve))
	p := fakeengine.NewPrompt(1, 16, 32)
	adapted := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 2 << 32}.Stored(0, 4)
	adapted.Adapter = "sql"
	said(t, ix, "steady", 500, p.Stored(0, 32), adapted)
	const rounds, ranks = 300, 100
	var writers, readers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			pod := fmt.Sprint("w", w)
			for i := range rounds {
				n := 1 + i%31
				s := p.Stored(0, n)
				s.Adapter = []string{"", "a", "b"}[i%3]
				ingest(t, ix, pod, s)
				m := message("s", uint64(i/2), float64(i), 1, p.Stored(0, n), p.Removed(0))
				m.Pod = pod
				if _, err := ix.IngestMessage(m); err != nil {
					t.Error(err)
				}
				if err := ix.Ingest(pod, "m", []byte{7}); !errors.Is(err, kvindex.ErrMalformed) {
					t.Error(err)
				}
				switch i % 7 {
				case 0:
					ingest(t, ix, pod, fakeengine.Cleared{})
				case 1:
					if err := ix.RemovePod(pod); err != nil {
						t.Error(err)
					}
				}
				if i < ranks && i%3 == w {
					said(t, ix, "steady", i, p.Stored(0, 3))
				}
			}
		})
	}
	var done atomic.Bool
	ask := func(f func()) {
		readers.Go(func() {
			for !done.Load() {
				f()
			}
		})
	}
	all, shared := kvindex.Request{Model: "alias", Ranks: true}, kvindex.Request{Model: "alias-sql", Candidates: ix.Candidates("alias-sql", []string{"steady", "w0"})}
	for q, want := range map[*kvindex.Request]int{&all: 32, &shared: 4} {
		seen := 0
		q.Tokens = p.Tokens
		ask(func() {
			scores := score(t, ix, *q)
			scores = slices.DeleteFunc(scores, func(s kvindex.PodScore) bool { return s.Pod != "steady" })
			if len(scores) == 0 || scores[0].Rank != 500 || scores[0].MatchedBlocks != want || scores[0].State != kvindex.StateLive {
				t.Errorf("the steady pod: %+v", scores)
			}
			seen = max(seen, len(scores))
			slices.SortFunc(scores, func(a, b kvindex.PodScore) int { return a.Rank - b.Rank })
			if len(scores) < seen || len(slices.Compact(scores)) < len(scores) {
				t.Errorf("%d ranks, after %d", len(scores), seen)
			}
		})
	}
	ask(func() {
		for _, pod := range []string{"steady", "w0", "w1"} {
			e, err := ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens}, pod)
			if err != nil || e.Err != nil || !slices.Contains(causeNames, e.Cause) {
				t.Errorf("%v, %v", e, err)
			} else if e.Cause == "evicted" && e.Block*e.BlockTokens != e.Score.CachedTokens {
				t.Error(e) // not of one moment
			}
		}
	})
	ask(func() {
		ix.Pods(nil)
		if s := ix.Stats(); s.MalformedBy["type"] != s.Malformed {
			t.Errorf("%v of %d", s.MalformedBy, s.Malformed)
		}
	})
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if s := ix.Stats(); s.Malformed != 3*rounds {
		t.Errorf("%d malformed", s.Malformed)
	}
	if e := explain(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens}, "w0"); e.Cause == "unexplained" {
		t.Errorf("nothing changes any more: %s", e)
	}
}

// BenchmarkHeap reports all live heap for each held block.
func BenchmarkHeap(b *testing.B) {
	const prompts, size = 400, 512
	for b.Loop() {
		r := rand.New(rand.NewPCG(1, 1))
		ix := open(b)
		before := liveHeap()
		for i := range prompts {
			p := fakeengine.Prompt{Tokens: randomTokens(r, size*16), Size: 16, Hash: uint64(i+1) << 32}
			ingest(b, ix, "a", p.Stored(0, size))
		}
		b.ReportMetric(float64(liveHeap()-before)/(prompts*size), "B/block")
		runtime.KeepAlive(ix)
	}
}

// BenchmarkHeapFleet reports the live heap of 40 pods of 200,000 blocks each, none shared: the
// example of docs/memory.md.
func BenchmarkHeapFleet(b *testing.B) {
	const pods, chains, length = 40, 400, 500
	for _, size := range []int{16, 64} {
		b.Run(fmt.Sprintf("block=%d", size), func(b *testing.B) {
			for b.Loop() {
				r := rand.New(rand.NewPCG(1, 1))
				ix := open(b)
				before := liveHeap()
				for pod := range pods {
					for range chains {
						stored := events.Event{Kind: events.Stored, Tokens: randomTokens(r, length*size), BlockSize: size}
						for range length {
							stored.Hashes = append(stored.Hashes, r.Uint64())
						}
						must(b, ix.ApplyBatch(fmt.Sprint("pod-", pod), "m", &events.Batch{Events: []events.Event{stored}}))
					}
				}
				heap := float64(liveHeap() - before)
				b.ReportMetric(heap/1e6, "MB")
				b.ReportMetric(heap/(pods*chains*length), "B/block")
				runtime.KeepAlive(ix)
			}
		})
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

var long = flag.Bool("long", false, "long form: run all random histories, and want each rule to fire often")

// choose returns the amount of work: usual, all with -long, or a third of usual with -short.
func choose(usual, all int) int {
	switch {
	case *long:
		return all
	case testing.Short():
		return max(1, usual/3)
	}
	return usual
}
