package kvindex_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/stats"
)

// kindNames are vLLM's names of the kinds of groups.
var kindNames = map[index.GroupKind]string{
	index.GroupFull: "full_attention", index.GroupWindow: "sliding_window", index.GroupMamba: "mamba",
	index.GroupChunked: "chunked_local_attention", index.GroupOther: "cross_attention",
}

// hybridGroup is a group of a pod: the blocks of a prompt that it holds.
type hybridGroup struct {
	index.Group
	size int
	held []bool // by block
}

func (g *hybridGroup) bits() (words []uint64) {
	words = make([]uint64, len(g.held)/64+1)
	for b, held := range g.held {
		if held {
			words[b/64] |= 1 << (b % 64)
		}
	}
	return words
}

// events store all blocks and remove those that the group does not hold. With told they carry the
// kind of the group.
func (g *hybridGroup) events(p fakeengine.Prompt, told bool) []fakeengine.Event {
	p = fakeengine.Prompt{Tokens: p.Tokens, Size: g.size, Hash: uint64(g.size) << 32}
	s := p.Stored(0, len(g.held))
	s.Group, s.Kind = g.ID, kindNames[index.GroupOther]
	if told {
		s.Kind = kindNames[g.Kind]
		if g.Kind == index.GroupWindow {
			s.Window = g.Window
		}
	}
	var gone []int
	for b, held := range g.held {
		if !held {
			gone = append(gone, b)
		}
	}
	r := p.Removed(gone...)
	r.Group = g.ID
	return []fakeengine.Event{s, r}
}

// TestHybridsByTheRule: the score of random groups follows the rule for their blocks, and is an
// upper bound where facts are missing.
func TestHybridsByTheRule(t *testing.T) {
	r := rand.New(rand.NewPCG(18, 1))
	seen := map[string]int{}
	for n := range choose(1000, 3000) {
		p := fakeengine.NewPrompt(1, 16, 4+4*r.IntN(8))
		groups := make([]hybridGroup, 1+r.IntN(4))
		profile := kvindex.Profile{Copies: kvindex.CopiesExact, Draft: kvindex.Draft(r.IntN(3))}
		rule, even := make([]reuse.Group, len(groups)), r.IntN(2) == 0
		some := false // a group has Draft set
		for i := range groups {
			g := &groups[i]
			g.ID, g.Kind, g.size = i, index.GroupKind(r.IntN(5)), 16
			if g.Kind == index.GroupWindow || g.Kind == index.GroupChunked {
				g.Window = 16 * (1 + r.IntN(8))
			}
			if g.Kind == index.GroupChunked && !even {
				g.Kind = index.GroupWindow
			}
			if !even {
				g.size <<= r.IntN(3)
			}
			g.held = make([]bool, len(p.Tokens)/g.size)
			often := r.IntN(12)
			for b := range g.held {
				g.held[b] = often == 0 || r.IntN(often+1) > 0
			}
			g.Draft = profile.Draft == kvindex.DraftLayers && g.Kind != index.GroupChunked && r.IntN(2) == 0
			some = some || g.Draft
			if g.Kind == index.GroupOther || (g.Kind == index.GroupChunked || r.IntN(3) == 0) && r.IntN(8) > 0 {
				profile.Groups = append(profile.Groups, g.Group)
			}
		}
		var events []fakeengine.Event
		known := profile.Draft != kvindex.DraftUnknown
		for i := range groups {
			g := &groups[i]
			listed := slices.ContainsFunc(profile.Groups, func(own index.Group) bool { return own.ID == i })
			if g.Draft && !listed {
				profile.Groups = append(profile.Groups, g.Group)
				listed = true
			}
			if !some && profile.Draft == kvindex.DraftLayers && g.Kind != index.GroupChunked {
				g.Draft = true // in all, as none has Draft set
			}
			rule[i] = reuse.Group{Kind: g.Kind, Window: g.Window, Block: g.size, Draft: g.Draft}
			if g.Kind == index.GroupChunked && !listed {
				rule[i].Window = 0
			}
			events = append(events, g.events(p, !listed)...)
		}
		plan, err := reuse.New(rule, 0)
		if err != nil {
			continue
		}
		ix := open(t, withProfile(profile))
		ingest(t, ix, "a", events...)
		tokens := p.Tokens[:len(p.Tokens)-r.IntN(20)]
		held := make([]reuse.Held, len(groups))
		for i := range groups {
			held[i].Blocks = groups[i].bits()
		}
		got, want := score(t, ix, kvindex.Request{Tokens: tokens})[0], plan.Tokens(len(tokens), held)
		one := len(groups) == 1 && groups[0].Kind == index.GroupFull
		bound := plan.UpperBound() || !known && !one
		if got.CachedTokens != want || want > 0 && got.UpperBound != bound {
			t.Fatalf("%d: groups %+v, profile %+v, %d tokens: got %+v, want %d, a bound %v", n, groups, profile, len(tokens), got, want, bound)
		}
		main := slices.IndexFunc(groups, func(g hybridGroup) bool { return g.Kind == index.GroupFull })
		if want > 0 && main >= 0 {
			run := slices.Index(groups[main].held[:len(tokens)/groups[main].size], false)
			if run < 0 {
				run = len(tokens) / groups[main].size
			}
			if got.MatchedBlocks != run || got.BlockTokens != groups[main].size {
				t.Fatalf("%d: groups %+v: %+v, want %d blocks of %d", n, groups, got, run, groups[main].size)
			}
		}
		for _, g := range groups {
			if want > 0 {
				seen[kindNames[g.Kind]]++
			}
			if g.Draft && want > 0 {
				seen["draft"]++
			}
		}
	}
	t.Log(seen)
	for _, kind := range append(slices.Collect(maps.Values(kindNames)), "draft") {
		if seen[kind] < choose(100, 100) {
			t.Errorf("%s: %d times", kind, seen[kind])
		}
	}
}

// hybrid returns the events of a pod that holds n blocks of 16 in a full-attention group, and the
// last of them in a window group and a Mamba group.
func hybrid(p fakeengine.Prompt, n, window int) []fakeengine.Event {
	full := p.Stored(0, n)
	sliding := p.Stored(n-window/16, n)
	sliding.Group, sliding.Kind, sliding.Window = 1, "sliding_window", window
	state := p.Stored(n-1, n)
	state.Group, state.Kind = 2, "mamba"
	return []fakeengine.Event{full, sliding, state}
}

// TestGroupsOfARestartedEngine: an engine that restarts with other groups is judged by these alone.
func TestGroupsOfARestartedEngine(t *testing.T) {
	p, other := fakeengine.NewPrompt(1, 32, 8), fakeengine.NewPrompt(2, 16, 6)
	small := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 5 << 32}
	for name, note := range map[string]act{"by a message": func(*testing.T, *kvindex.Indexer) {}, "by a note": restarted("s")} {
		ix, _ := sending(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone}))
		brings(message("s", 0, 1, 0, hybrid(p, 4, 32)...), message("s", 1, 2, 0), message("s", 2, 3, 0))(t, ix)
		note(t, ix)
		brings(message("s", 1, 4, 0, small.Stored(0, 4)))(t, ix)
		info, s := ix.Pods(nil)[0], score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]
		if g := info.Ranks[0].Groups; len(g) != 1 || g[0].BlockSize != 16 || !info.WantsFullReport || s.CachedTokens != 64 || s.UpperBound {
			t.Errorf("%s: %+v, %+v", name, info, s)
		}
		sends(t, ix, other.Tokens, 0)
		if got, _ := predicted(t, ix, other.Tokens, 0); got != 80 {
			t.Errorf("%s: %d tokens are predicted", name, got)
		}
	}
}

// TestDraftLayers: blocks lost to draft layers, in cases outside TestHybridsByTheRule.
func TestDraftLayers(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for _, c := range []struct {
		name    string
		profile kvindex.Profile
		events  []fakeengine.Event
		cached  int
		bound   bool
	}{
		{"groups that no event names", kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 7, Kind: index.GroupMamba}}},
			[]fakeengine.Event{p.Stored(0, 6)}, 96, true},
		{"the same beside others", kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 7, Kind: index.GroupMamba}}},
			hybrid(p, 6, 48), 96, true},
		{"a window that is larger than its event says", kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 1, Kind: index.GroupWindow, Window: 80}}},
			hybrid(p, 6, 48), 0, false},
	} {
		ix := open(t, withProfile(c.profile))
		ingest(t, ix, "a", c.events...)
		got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]
		if got.CachedTokens != c.cached || got.UpperBound != c.bound || got.Score != float64(c.cached) {
			t.Errorf("%s: %+v, want %d, a bound %v", c.name, got, c.cached, c.bound)
		}
	}
}

// TestLayoutsChange: a source with a new group is judged again, and ranks of one pod have their own
// layouts.
func TestLayoutsChange(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Copies: kvindex.CopiesExact}))
	see := func(what string, cached int, bound bool) {
		t.Helper()
		if got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; got.CachedTokens != cached || got.UpperBound != bound {
			t.Errorf("%s: %+v, want %d, a bound %v", what, got, cached, bound)
		}
	}
	events := hybrid(p, 6, 48)
	ingest(t, ix, "a", events[:2]...)
	see("full and window", 96, false)
	state := p.Stored(3, 4)
	state.Group, state.Kind = 2, "mamba"
	ingest(t, ix, "a", state)
	see("a state before the window's blocks", 0, false)
	ingest(t, ix, "a", events[2])
	see("a state at the end of the window's", 96, false)
	must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 1, p.Stored(0, 7))))
	see("a rank of one group", 112, true)
	ingest(t, ix, "a", &fakeengine.Cleared{}, p.Stored(0, 8))
	see("a cache that was emptied, and of which one group is known since", 112, true)
	ingest(t, ix, "a", hybrid(p, 7, 48)[1:]...)
	see("of which all are known", 112, false)
}

// TestEqualGroupsShareDraft: Draft of one of two equal groups counts for both, also for the
// positions of their masked stores.
func TestEqualGroupsShareDraft(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 16)
	full := fakeengine.Prompt{Tokens: p.Tokens, Size: 64}.Stored(0, 3)
	full.Hashes = nil
	for b := 3; b < 12; b += 4 { // the window groups' names of the prefix
		full.Hashes = append(full.Hashes, fakeengine.IntHash(p.Hash+uint64(b)))
	}
	// The last two blocks before token 128, and the one behind it.
	masked := func(group, window int) *fakeengine.Stored {
		s := p.Stored(0, 12)
		s.Group, s.Kind, s.Window, s.Hashes = group, "sliding_window", window, s.Hashes[6:9]
		return s
	}
	larger := fakeengine.Prompt{Tokens: p.Tokens, Size: 32, Hash: 5 << 32}.Stored(0, 4)
	larger.Group, larger.Kind, larger.Window = 2, "sliding_window", 32
	state := p.Stored(7, 9)
	state.Group, state.Kind, state.Window = 2, "mamba", 32
	profile := kvindex.Profile{
		Copies: kvindex.CopiesExact, Draft: kvindex.DraftLayers,
		Groups: []index.Group{{ID: 1, Kind: index.GroupWindow, Draft: true}},
	}
	for _, c := range []struct {
		name   string
		events []fakeengine.Event
		drafts []int // groups
	}{
		{"equal", []fakeengine.Event{masked(1, 32), masked(2, 32), full}, []int{1, 2}},
		{"the one with Draft is the last", []fakeengine.Event{masked(2, 32), full, masked(1, 32)}, []int{1, 2}},
		{"another window", []fakeengine.Event{masked(1, 32), masked(2, 48), full}, []int{1}},
		{"other blocks", []fakeengine.Event{masked(1, 32), larger, full}, []int{1}},
		{"another kind", []fakeengine.Event{masked(1, 32), state, full}, []int{1}},
	} {
		ix := open(t, withProfile(profile))
		ingest(t, ix, "a", c.events...)
		if len(c.drafts) > 1 {
			if got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; got.CachedTokens != 128 || got.UpperBound {
				t.Errorf("%s: %+v", c.name, got)
			}
		}
		var drafts []int
		for _, g := range ix.Pods(nil)[0].Ranks[0].Groups {
			if g.Draft {
				drafts = append(drafts, g.ID)
			}
		}
		if slices.Sort(drafts); !slices.Equal(drafts, c.drafts) {
			t.Errorf("%s: groups %v have Draft, want %v", c.name, drafts, c.drafts)
		}
	}
}

// TestKeptGroups: the profile changes the kind of a full-attention group in a kept index. The score
// is a bound until the cache is emptied.
func TestKeptGroups(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	ingest(t, open(t, kvindex.WithIndex(m)), "a", p.Stored(0, 6))
	window := index.Group{Kind: index.GroupWindow, Window: 48}
	ix := open(t, kvindex.WithIndex(m), withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{window}}))
	see := func(what string, cached int, bound bool) {
		t.Helper()
		if got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; got.CachedTokens != cached || got.UpperBound != bound {
			t.Errorf("%s: %+v, want %d, a bound %v", what, got, cached, bound)
		}
	}
	see("kept", 96, true)
	ingest(t, ix, "a", &fakeengine.Cleared{}, p.Stored(0, 6), p.Removed(0))
	see("emptied", 96, false)

	same := open(t, kvindex.WithIndex(m), withProfile(kvindex.Profile{Groups: []index.Group{{Kind: index.GroupFull}}}))
	ingest(t, same, "b", p.Stored(0, 6))
	if got := score(t, same, kvindex.Request{Tokens: p.Tokens, Pods: []string{"b"}})[0]; got.CachedTokens != 96 || got.UpperBound {
		t.Errorf("an equal profile: %+v", got)
	}
}

// TestPartsAlone: a prompt shorter than its first block is found by the smaller blocks of the
// groups.
func TestPartsAlone(t *testing.T) {
	p := fakeengine.NewPrompt(1, 64, 2)
	units := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 5 << 32}
	ix := open(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Copies: kvindex.CopiesExact, Grain: 16}))
	var events []fakeengine.Event
	for group, kind := range []string{"full_attention", "mamba"} {
		whole, part, gone := p.Stored(0, 2), units.Stored(0, 2), p.Removed(0, 1)
		whole.Group, whole.Kind, part.Group, part.Kind, gone.Group = group, kind, group, kind, group
		events = append(events, whole, part, gone)
	}
	ingest(t, ix, "a", events...)
	got := score(t, ix, kvindex.Request{Tokens: p.Tokens[:40]})[0]
	if got.CachedTokens != 32 || got.MatchedBlocks != 0 || got.BlockTokens != 64 || got.Tiers != ([index.NumTiers]int{}) || got.UpperBound {
		t.Errorf("%+v", got)
	}
}

// TestWindowsStay: a profile that names a group without a window keeps its window.
func TestWindowsStay(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t, withProfile(kvindex.Profile{Draft: kvindex.DraftLayers, Groups: []index.Group{{ID: 1, Kind: index.GroupWindow, Draft: true}}}))
	events := hybrid(p, 6, 80)[:2] // one block above the window, for the draft layers
	events[1].(*fakeengine.Stored).Window = 64
	ingest(t, ix, "a", events...)
	if got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; got.CachedTokens != 80 || got.UpperBound {
		t.Errorf("%+v", got)
	}
	groups := ix.Pods(nil)[0].Ranks[0].Groups
	if want := []stats.Group{{Group: index.Group{}, BlockSize: 16}, {Group: index.Group{ID: 1, Kind: index.GroupWindow, Window: 64, Draft: true}, BlockSize: 16}}; !slices.Equal(groups, want) {
		t.Errorf("%+v", groups)
	}
}

// TestPlansOfCopies: copies of Layouts cause no allocation, nor do those of an unknown pod.
func TestPlansOfCopies(t *testing.T) {
	m := &alteredIndex{Memory: memory(t)}
	var copies [][]index.View // of one source, an entry for each answer
	next := 0
	m.match = func(ctx context.Context, q *index.Query, dst *index.Matches) error {
		if err := m.Memory.Match(ctx, q, dst); err != nil {
			return err
		}
		for len(copies) < 1000 {
			l := *dst.Rows[0].Layout
			l.Groups = slices.Clone(l.Groups)
			var views []index.View
			for _, r := range dst.Rows {
				v := *r.View
				v.Layout = &l
				views = append(views, v)
			}
			copies = append(copies, views)
		}
		for i := range dst.Rows {
			dst.Rows[i].View = &copies[next][i]
		}
		next = (next + 1) % len(copies)
		return nil
	}
	backend := struct{ index.Index }{m}
	p := fakeengine.NewPrompt(1, 16, 8)
	heard, other := open(t, kvindex.WithIndex(backend)), open(t, kvindex.WithIndex(backend))
	ingest(t, heard, "a", hybrid(p, 6, 48)...)
	for what, score := range map[string]func() int{
		"heard":     kvindex.ScoreKeys(heard, "m", p.Tokens),
		"not heard": kvindex.ScoreKeys(other, "m", p.Tokens, "a"),
	} {
		if n := testing.AllocsPerRun(500, func() {
			if got := score(); got != 96 {
				t.Fatalf("%s: %d", what, got)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// BenchmarkScoreHybrids scores with precomputed keys.
func BenchmarkScoreHybrids(b *testing.B) {
	for _, c := range []struct {
		blocks int
		pods   []int
		groups string
	}{
		{512, []int{1, 16, 256}, "full"},
		{512, []int{1, 16, 256}, "full+window+mamba"},
		{14_000, []int{16}, "full+window"},
		{14_000, []int{16}, "no window whole"},
		{3_500, []int{16}, "no window whole"},
	} {
		for _, pods := range c.pods {
			b.Run(fmt.Sprintf("groups=%s/blocks=%d/pods=%d", c.groups, c.blocks, pods), func(b *testing.B) {
				ix := open(b, withProfile(kvindex.Profile{Draft: kvindex.DraftNone}))
				p := fakeengine.NewPrompt(1, 16, c.blocks)
				want := (c.blocks - 1) * 16
				events := hybrid(p, c.blocks-1, 1024)
				switch c.groups {
				case "full":
					events = events[:1]
				case "full+window":
					events = events[:2]
				case "no window whole":
					events[1] = p.Stored(0, c.blocks-1)
					w := events[1].(*fakeengine.Stored)
					w.Group, w.Kind, w.Window = 1, "sliding_window", 1024
					var gaps []int
					for i := 31; i < c.blocks-1; i += 32 {
						gaps = append(gaps, i)
					}
					gone := p.Removed(gaps...)
					gone.Group = 1
					events, want = append(events[:2], gone), 31*16
				}
				for i := range pods {
					ingest(b, ix, fmt.Sprint("pod", i), events...)
				}
				score := kvindex.ScoreKeys(ix, "m", p.Tokens)
				if got := score(); got != want {
					b.Fatalf("%d tokens, want %d", got, want)
				}
				b.ReportAllocs()
				for b.Loop() {
					score()
				}
			})
		}
	}
}

// TestGroupsThatCannotBeJudged: the longest run of a group bounds the reuse, and the score is
// marked as a bound.
func TestGroupsThatCannotBeJudged(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	group := func(id int, kind string, n int) *fakeengine.Stored {
		s := p.Stored(0, n)
		s.Group, s.Kind = id, kind
		return s
	}
	lower := group(0, "full_attention", 2) // a chunk of two blocks
	lower.Medium = "cpu"
	gone := p.Removed(0, 1, 2, 3)
	for _, c := range []struct {
		name            string
		profile         kvindex.Profile
		events          []fakeengine.Event
		cached, matched int
		bound           bool
	}{
		{"a kind that nobody knows", kvindex.Profile{Draft: kvindex.DraftNone}, []fakeengine.Event{group(0, "new_attention", 5)}, 80, 5, true},
		{"windows that no event says", kvindex.Profile{Draft: kvindex.DraftNone}, []fakeengine.Event{group(0, "sliding_window", 5), group(1, "sliding_window", 3)}, 80, 5, true},
		{"a second group without a kind", kvindex.Profile{Draft: kvindex.DraftNone}, []fakeengine.Event{p.Stored(0, 6), group(1, "", 3)}, 96, 6, true},
		{"a chunk of a lower tier", kvindex.Profile{Draft: kvindex.DraftNone}, []fakeengine.Event{p.Stored(0, 4), group(1, "mamba", 4), lower, gone}, 0, 1, false},
	} {
		ix := open(t, withProfile(c.profile))
		ingest(t, ix, "a", c.events...)
		got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]
		if got.CachedTokens != c.cached || got.MatchedBlocks != c.matched || got.UpperBound != c.bound {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestGrainOfAnotherPod: the events of one pod do not change the Grain of another.
func TestGrainOfAnotherPod(t *testing.T) {
	ix := open(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		if pod == "b" {
			return kvindex.Profile{Grain: 32}
		}
		return kvindex.Profile{}
	}))
	ingest(t, ix, "a", fakeengine.NewPrompt(1, 16, 2).Stored(0, 2))
	_ = ix.Sink().StreamNote("b", "m", "s", events.NoteOpened)
	if pods := ix.Pods(nil); len(pods) != 2 || pods[1].State != kvindex.StateSilent {
		t.Errorf("%+v", pods)
	}
}

// TestProfilesAreCopied: the caller owns the result of Pods.
func TestProfilesAreCopied(t *testing.T) {
	ix := open(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{{ID: 1, Kind: index.GroupWindow, Window: 48}}}))
	p := fakeengine.NewPrompt(1, 16, 8)
	ingest(t, ix, "a", hybrid(p, 6, 48)...)
	ix.Pods(nil)[0].Profile.Groups[0].Window = 1
	must(t, ix.MarkLost("a", 0))
	if got := ix.Pods(nil)[0]; got.Profile.Groups[0].Window != 48 || got.State != kvindex.StatePartial {
		t.Errorf("%+v", got)
	}
}

// TestFullReports: a pod with missing history wants a full report if one would help, and the report
// restores the reusable tokens.
func TestFullReports(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 9)
	in := func(group int, kind string, window int) *fakeengine.Stored {
		s := p.Stored(0, 8)
		s.Group, s.Kind, s.Window = group, kind, window
		return s
	}
	for _, c := range []struct {
		name   string
		group  index.Group // of the operator
		event  *fakeengine.Stored
		wants  bool
		cached int
	}{
		{"full attention alone", index.Group{ID: 0}, in(0, "full_attention", 0), true, 128},
		{"a window", index.Group{ID: 0}, in(1, "sliding_window", 48), true, 128},
		{"a chunk", index.Group{ID: 1, Kind: index.GroupChunked, Window: 48}, in(1, "chunked_local_attention", 0), true, 128},
		{"an unknown chunk", index.Group{ID: 0}, in(1, "chunked_local_attention", 0), false, 128}, // a bound
		{"Mamba", index.Group{ID: 0}, in(1, "mamba", 0), false, 0},
		{"an unknown kind", index.Group{ID: 0}, in(1, "new_attention", 0), false, 128}, // a bound
	} {
		ix := open(t, withProfile(kvindex.Profile{Draft: kvindex.DraftNone, Groups: []index.Group{c.group}}))
		ingest(t, ix, "a", p.Stored(0, 8), c.event)
		must(t, ix.MarkLost("a", 0))
		ingest(t, ix, "a", p.Stored(0, 8), c.event)
		if got := ix.Pods(nil)[0]; got.State != kvindex.StatePartial || got.WantsFullReport != c.wants {
			t.Errorf("%s: %+v", c.name, got)
		}
		if got := score(t, ix, kvindex.Request{Tokens: p.Tokens})[0]; got.CachedTokens != c.cached {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
