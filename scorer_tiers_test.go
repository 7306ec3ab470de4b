package kvindex_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// inTier makes a store one of hashes alone in a lower tier, as vLLM's connector publishes it.
func inTier(medium string, s *fakeengine.Stored) *fakeengine.Stored {
	s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, medium
	return s
}

// gpuHolds returns the events of a pod with the first blocks of a prompt in its GPU, more in its
// host memory, and more on disk. The GPU has held all of them.
func gpuHolds(p fakeengine.Prompt, gpu, cpu, disk int) []fakeengine.Event {
	evs := []fakeengine.Event{p.Stored(0, max(gpu, cpu, disk))}
	if cpu > 0 {
		evs = append(evs, inTier("CPU", p.Stored(0, cpu)))
	}
	if disk > 0 {
		evs = append(evs, inTier("STORAGE", p.Stored(0, disk)))
	}
	for b := gpu; b < max(cpu, disk); b++ {
		evs = append(evs, p.Removed(b))
	}
	return evs
}

// tokensOf shows the figures of a score that lower tiers affect.
func tokensOf(s kvindex.PodScore) string {
	return fmt.Sprintf("%s %d+%d+%d %.4g %v", s.Pod, s.PredictedTokens, s.LoadedTokens, s.FetchedTokens, s.Score, s.UpperBound)
}

// TestLowerTiers: blocks that only lower tiers hold count by the weights of the tiers, each token
// once, and answers are sorted accordingly.
func TestLowerTiers(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	weights := [index.NumTiers]float64{index.TierCPU: 0.5, index.TierDisk: 0.25}
	for name, c := range map[string]struct {
		profile kvindex.Profile
		pods    map[string][]fakeengine.Event
		want    []string
	}{
		"each tier": {
			kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone},
			map[string][]fakeengine.Event{
				"gpu": gpuHolds(p, 4, 0, 0), "cpu": gpuHolds(p, 2, 6, 0), "disk": gpuHolds(p, 2, 3, 6), "none": {p.Stored(0, 1), p.Removed(0)},
			},
			[]string{"cpu 32+64+0 83.2 false", "disk 32+16+48 68.8 false", "gpu 64+0+0 64 false", "none 0+0+0 0 false"},
		},
		"other weights": {
			kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, Weights: weights},
			map[string][]fakeengine.Event{"gpu": gpuHolds(p, 5, 0, 0), "cpu": gpuHolds(p, 2, 6, 0), "disk": gpuHolds(p, 2, 3, 6)},
			[]string{"gpu 80+0+0 80 false", "cpu 32+64+0 64 false", "disk 32+16+48 52 false"},
		},
		"weights that only break ties": {
			kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, Weights: [index.NumTiers]float64{index.TierCPU: 0.0005}},
			map[string][]fakeengine.Event{"0": gpuHolds(p, 2, 0, 0), "1": gpuHolds(p, 2, 3, 0), "2": gpuHolds(p, 2, 4, 0), "3": gpuHolds(p, 2, 5, 0), "4": gpuHolds(p, 2, 6, 0)},
			[]string{"4 32+64+0 32.03 false", "3 32+48+0 32.02 false", "2 32+32+0 32.02 false", "1 32+16+0 32.01 false", "0 32+0+0 32 false"},
		},
		"a chunk of 4 blocks": { // counts as a whole, from the chunk in which the gpu ends
			kvindex.Profile{Chunk: 4, Draft: kvindex.DraftNone},
			map[string][]fakeengine.Event{
				"whole": {p.Stored(0, 8), inTier("CPU", p.Stored(3, 4)), inTier("CPU", p.Stored(7, 8)), p.Removed(2, 3, 4, 5, 6, 7)},
				"torn":  {p.Stored(0, 8), inTier("CPU", p.Stored(3, 4)), inTier("CPU", p.Stored(6, 7)), p.Removed(2, 3, 4, 5, 6, 7)},
				"small": {p.Stored(0, 8), inTier("CPU", p.Stored(3, 4)), p.Removed(3, 4, 5, 6, 7)}, // adds a block, less than a chunk
			},
			[]string{"whole 32+96+0 108.8 false", "small 48+0+0 48 false", "torn 32+0+0 32 false"},
		},
		"a chunk that is not known": {
			kvindex.Profile{},
			map[string][]fakeengine.Event{"a": gpuHolds(p, 2, 6, 0), "b": gpuHolds(p, 2, 2, 0)},
			[]string{"a 32+64+0 83.2 true", "b 32+0+0 32 false"},
		},
		"a chunk that describes itself": {
			kvindex.Profile{Draft: kvindex.DraftNone},
			map[string][]fakeengine.Event{"a": {p.Stored(0, 8), lower("CPU", p.Stored(0, 4)), lower("CPU", p.Stored(4, 8)), p.Removed(1, 2, 3, 4, 5, 6, 7)}},
			[]string{"a 16+112+0 105.6 false"},
		},
		"chunks that describe themselves, without the first": { // a load begins in the chunk that the gpu ends in
			kvindex.Profile{Draft: kvindex.DraftNone},
			map[string][]fakeengine.Event{"a": {p.Stored(0, 8), lower("CPU", p.Stored(2, 4)), lower("CPU", p.Stored(4, 6)), lower("CPU", p.Stored(6, 8)), p.Removed(3, 4, 5, 6, 7)}},
			[]string{"a 48+80+0 112 false"},
		},
		"some chunks describe themselves": { // those of the others may be shorter
			kvindex.Profile{Draft: kvindex.DraftNone},
			map[string][]fakeengine.Event{"a": {p.Stored(0, 8), lower("CPU", p.Stored(0, 4)), inTier("CPU", p.Stored(7, 8)), p.Removed(1, 2, 3, 4, 5, 6, 7)}},
			[]string{"a 16+112+0 105.6 true"},
		},
		"draft layers that are not known": {
			kvindex.Profile{},
			map[string][]fakeengine.Event{
				"a": {p.Stored(0, 8), lower("STORAGE", p.Stored(0, 4)), lower("STORAGE", p.Stored(4, 8)), p.Removed(1, 2, 3, 4, 5, 6, 7)}, "b": {p.Stored(0, 2)},
			},
			[]string{"a 16+0+112 72 true", "b 32+0+0 32 false"},
		},
		"a group that no event names": {
			kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 3, Kind: index.GroupWindow, Window: 32}}},
			map[string][]fakeengine.Event{"a": gpuHolds(p, 2, 6, 0)},
			[]string{"a 32+64+0 83.2 true"},
		},
		"a window that is not known": {
			kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 0, Kind: index.GroupWindow}}},
			map[string][]fakeengine.Event{"a": gpuHolds(p, 2, 6, 0)},
			[]string{"a 32+0+0 32 true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t, withProfile(c.profile))
			for pod, evs := range c.pods {
				ingest(t, ix, pod, evs...)
			}
			var got []string
			for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens}) {
				got = append(got, tokensOf(s))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// lower is a store in a lower tier that describes itself.
func lower(medium string, s *fakeengine.Stored) *fakeengine.Stored {
	s.Medium = medium
	return s
}

// TestOtherChunks: a chunk that describes itself has its own length, whatever the profile, after a
// restart too; one that ends inside a block of its group is ignored.
func TestOtherChunks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	torn := lower("CPU", p.Stored(7, 8))
	torn.Tokens, torn.BlockSize = append(torn.Tokens, 1, 2, 3, 4), 20
	for name, c := range map[string]struct {
		chunk         int
		stores        []fakeengine.Event
		want          string
		others, drops uint64
	}{
		"the same":             {4, []fakeengine.Event{lower("CPU", p.Stored(0, 4)), lower("CPU", p.Stored(4, 8))}, "a 16+112+0 105.6 false", 0, 0},
		"longer":               {2, []fakeengine.Event{lower("CPU", p.Stored(0, 4)), lower("CPU", p.Stored(4, 8))}, "a 16+112+0 105.6 false", 2, 0},
		"shorter":              {8, []fakeengine.Event{lower("CPU", p.Stored(0, 4)), lower("CPU", p.Stored(4, 8))}, "a 16+112+0 105.6 false", 2, 0},
		"of one block":         {2, []fakeengine.Event{lower("CPU", p.Stored(0, 1)), lower("CPU", p.Stored(1, 2))}, "a 16+16+0 28.8 false", 2, 0},
		"of hashes alone":      {4, []fakeengine.Event{inTier("CPU", p.Stored(3, 4)), inTier("CPU", p.Stored(7, 8))}, "a 16+112+0 105.6 false", 0, 0},
		"ends inside a block":  {4, []fakeengine.Event{lower("CPU", p.Stored(0, 4)), torn}, "a 16+0+0 16 false", 0, 1},
		"pages are no chunks":  {4, []fakeengine.Event{lower("CPU_PINNED", p.Stored(0, 4))}, "a 16+48+0 54.4 false", 0, 0},
		"the gpu has no chunk": {4, []fakeengine.Event{p.Stored(0, 1)}, "a 16+0+0 16 false", 0, 0},
	} {
		profile := withProfile(kvindex.Profile{Chunk: c.chunk, Draft: kvindex.DraftNone})
		ix := open(t, profile)
		ingest(t, ix, "a", append(append([]fakeengine.Event{p.Stored(0, 8)}, c.stores...), p.Removed(1, 2, 3, 4, 5, 6, 7))...)
		if got, want := tokensOf(score(t, restoreBytes(t, snapshot(t, ix), profile), kvindex.Request{Tokens: p.Tokens})[0]), c.want; got != want {
			t.Errorf("%s, restored: %s, want %s", name, got, want)
		}
		got := tokensOf(score(t, ix, kvindex.Request{Tokens: p.Tokens})[0])
		if s := ix.Stats(); got != c.want || s.OtherChunks != c.others || s.Unscored != c.drops {
			t.Errorf("%s: %s, %d other chunks, %d dropped; want %s, %d and %d", name, got, s.OtherChunks, s.Unscored, c.want, c.others, c.drops)
		}
	}
}

// TestPages: a store in SGLang's host memory lists pages, each a block of its own. The last token
// is never loaded.
func TestPages(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	ix := open(t)
	ingest(t, ix, "a", p.Stored(0, 4), lower("CPU_PINNED", p.Stored(0, 4)), p.Removed(0, 1, 2, 3))
	for _, c := range []struct {
		tokens int
		gpu    bool // holds the first page again
		want   string
	}{
		{40, false, "a 0+32+0 25.6 false"}, {64, false, "a 0+48+0 38.4 false"}, {66, false, "a 0+64+0 51.2 false"},
		{40, true, "a 16+16+0 28.8 false"}, {17, true, "a 16+0+0 16 false"},
	} {
		if c.gpu {
			ingest(t, ix, "a", p.Stored(0, 1))
		}
		tokens := append(slices.Clone(p.Tokens), 1, 2)[:c.tokens]
		if got := tokensOf(score(t, ix, kvindex.Request{Tokens: tokens})[0]); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	page := p.Removed(1)
	page.Medium = "CPU_PINNED"
	ingest(t, ix, "a", page)
	if got, want := tokensOf(score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]), "a 16+0+0 16 false"; got != want {
		t.Errorf("the second page was removed: got %s, want %s", got, want)
	}
}

// TestPredictedAndLoaded: a token that was routed and is in the host memory counts once.
func TestPredictedAndLoaded(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t, withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}))
	ingest(t, ix, "a", gpuHolds(p, 2, 6, 0)...)
	for routed, want := range map[int]string{3: "a 48+64+0 86.4 false", 8: "a 112+64+0 112 false"} {
		ticket := sends(t, ix, p.Tokens[:16*routed], 0)
		s := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]
		if got := tokensOf(s); got != want || s.CachedTokens != 32 {
			t.Errorf("%d blocks were routed: got %s, want %s", routed, got, want)
		}
		ix.Abandon(ticket)
	}
}

// TestPredictedBesideChunks: a prompt that was routed counts in the blocks of the gpu, also where the
// host memory alone holds something, in longer chunks.
func TestPredictedBesideChunks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for draft, want := range map[kvindex.Draft]string{kvindex.DraftNone: "a 112+64+0 112 false", kvindex.DraftLayers: "a 96+0+0 96 false"} {
		for name, chunk := range map[string]*fakeengine.Stored{"a hash": inTier("CPU", p.Stored(3, 4)), "tokens": lower("CPU", p.Stored(0, 4))} {
			ix, _ := sending(t, withProfile(kvindex.Profile{Chunk: 4, Draft: draft}))
			ingest(t, ix, "a", p.Stored(0, 4), chunk, p.Removed(0, 1, 2, 3))
			sends(t, ix, p.Tokens[:112], 0)
			if got := tokensOf(score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]); got != want {
				t.Errorf("a chunk of %s, draft layers %d: got %s, want %s", name, draft, got, want)
			}
		}
	}
}

// BenchmarkScoreTiers scores 512 blocks, the first half in each pod's GPU: without lower tiers,
// with the same half in host memory, and with all of them there.
func BenchmarkScoreTiers(b *testing.B) {
	p := fakeengine.NewPrompt(1, 16, 512)
	for _, pods := range []int{1, 16, 256} {
		for _, c := range []struct {
			name string
			cpu  int
		}{{"none", 0}, {"same", 256}, {"all", 512}} {
			b.Run(fmt.Sprintf("pods=%d/cpu=%s", pods, c.name), func(b *testing.B) {
				ix := open(b, withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}))
				for i := range pods {
					ingest(b, ix, fmt.Sprint("pod-", i), gpuHolds(p, 256, c.cpu, 0)...)
				}
				score := kvindex.ScoreKeys(ix, "m", p.Tokens)
				b.ReportAllocs()
				for b.Loop() {
					score()
				}
			})
		}
	}
}

// aged ingests a batch with a time.
func aged(t testing.TB, ix *kvindex.Indexer, pod string, at float64, evs ...fakeengine.Event) {
	t.Helper()
	must(t, ix.Ingest(pod, "m", fakeengine.Payload(at, 0, evs...)))
}

// TestMaxAge: blocks of a lower tier are kept for MaxAge after their last store, and removed by the
// next batch after one and a half. The clock is that of the pod's batches.
func TestMaxAge(t *testing.T) {
	const hour = 3600
	p := fakeengine.NewPrompt(1, 16, 8)
	minute := kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, MaxAge: [index.NumTiers]time.Duration{index.TierCPU: time.Minute, index.TierDisk: math.MaxInt64}}
	for name, c := range map[string]struct {
		profile kvindex.Profile
		times   []float64 // of batches that remove nothing
		again   float64   // if not 0: when the first 4 blocks of the disk are stored again, between those
		want    string
	}{
		"at MaxAge":                       {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{hour / 2, hour}, 0, "a 16+16+64 60.8 false"},
		"without a batch":                 {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, nil, 0, "a 16+16+64 60.8 false"},
		"at one and a half":               {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{1.5 * hour}, 0, "a 16+16+0 28.8 false"},
		"in steps":                        {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{hour / 2, hour, 1.5 * hour}, 0, "a 16+16+0 28.8 false"},
		"stored again":                    {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{1.5 * hour}, hour, "a 16+16+32 44.8 false"},
		"stored again, and then no more":  {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{2.5 * hour}, hour, "a 16+16+0 28.8 false"},
		"long after":                      {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{1e6 * hour}, 0, "a 16+16+0 28.8 false"}, // the year 2084
		"no time":                         {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{0}, 0, "a 16+16+0 28.8 false"},
		"back and forth":                  {kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}, []float64{hour, 1, hour, 1 - hour, hour}, 0, "a 16+16+64 60.8 false"},
		"of a minute, and never":          {minute, []float64{30, 60}, 0, "a 16+16+64 60.8 false"},
		"of a minute, and never, 1.5 min": {minute, []float64{1000 * hour}, 0, "a 16+0+80 56 false"},
	} {
		t.Run(name, func(t *testing.T) {
			const start = 1_000_000_800 // a period begins
			ix := open(t, withProfile(c.profile))
			for _, pod := range []string{"a", "b"} {
				aged(t, ix, pod, start, gpuHolds(p, 1, 2, 6)...)
			}
			if c.again > 0 {
				aged(t, ix, "a", start+c.again, inTier("STORAGE", p.Stored(0, 4)))
			}
			for _, at := range c.times {
				if at != 0 {
					at += start
				}
				aged(t, ix, "a", at)
			}
			aged(t, ix, "b", start+1) // b has a clock of its own
			scores := map[string]string{}
			for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens}) {
				scores[s.Pod] = tokensOf(s)
			}
			if scores["a"] != c.want || scores["b"] != "b 16+16+64 60.8 false" {
				t.Errorf("got %v, want %s", scores, c.want)
			}
		})
	}
}

// TestMaxAgeRestored: a snapshot keeps generations and clocks. A kept index without a snapshot
// starts them again.
func TestMaxAgeRestored(t *testing.T) {
	const start, half = 1_000_000_800, 1800
	p := fakeengine.NewPrompt(1, 16, 8)
	profile := withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone})
	held, gone := "a 16+16+64 60.8 false", "a 16+16+0 28.8 false"
	see := func(ix *kvindex.Indexer, when, want string) {
		t.Helper()
		if got := tokensOf(score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	m, err := index.NewMemory(index.MemoryConfig{})
	must(t, err)
	for _, kept := range []bool{false, true} {
		options := []kvindex.Option{profile}
		if kept {
			options = append(options, kvindex.WithIndex(m))
		}
		ix := open(t, options...)
		aged(t, ix, "a", start, gpuHolds(p, 1, 2, 6)...)
		aged(t, ix, "a", start+2*half)
		var b bytes.Buffer
		if !kept {
			must(t, ix.Snapshot(ctx, &b))
			if ix, err = kvindex.Restore(ctx, &b, options...); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ix.Close() })
			aged(t, ix, "a", start+3*half-1)
			see(ix, "restored", held)
			aged(t, ix, "a", start+3*half)
			see(ix, "restored, at 1.5 MaxAge", gone)
			continue
		}
		ix.Close()
		ix = open(t, options...)
		for i, want := range []string{held, gone} { // the third generation is the second by the new clock
			aged(t, ix, "a", start+float64(10+i)*half)
			see(ix, fmt.Sprint("kept, period ", i), want)
		}
	}
}
