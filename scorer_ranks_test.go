package kvindex_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// said ingests events of a rank whose history is complete.
func said(t testing.TB, ix *kvindex.Indexer, pod string, rank int, evs ...fakeengine.Event) {
	t.Helper()
	must(t, ix.Ingest(pod, "m", fakeengine.Payload(1, rank, evs...)))
}

// ofRanks returns the answer with ranks for a prompt, sorted by pod and rank.
func ofRanks(t testing.TB, ix *kvindex.Indexer, tokens []uint32) []kvindex.PodScore {
	t.Helper()
	s := score(t, ix, kvindex.Request{Tokens: tokens, Ranks: true})
	slices.SortFunc(s, func(a, b kvindex.PodScore) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Rank, b.Rank))
	})
	return s
}

// shownRanks writes scores as pod/rank=matched/state.
func shownRanks(scores []kvindex.PodScore) string {
	var b strings.Builder
	for _, s := range scores {
		fmt.Fprintf(&b, "%s/%d=%d/%v ", s.Pod, s.Rank, s.MatchedBlocks, s.State)
	}
	return strings.TrimSpace(b.String())
}

// rankModel is a rank's holding of one prompt: gpu leading blocks in the GPU, and those up to run
// below.
type rankModel struct{ gpu, run int }

// fleetModel is a plain fleet: pods with their ranks, and one prompt for all.
type fleetModel struct {
	ix       *kvindex.Indexer
	tokens   []uint32
	sizes    map[string]int // of blocks, by pod
	ranks    map[string]map[int]rankModel
	excluded map[string]bool
}

// prompt returns the prompt with the hashes of one rank.
func (f *fleetModel) prompt(pod string, rank int) fakeengine.Prompt {
	return fakeengine.Prompt{Tokens: f.tokens, Size: f.sizes[pod], Hash: uint64(rank+1) << 32}
}

// holds sets the blocks of a rank.
func (f *fleetModel) holds(t *testing.T, pod string, rank int, m rankModel) {
	t.Helper()
	p := f.prompt(pod, rank)
	evs := []fakeengine.Event{fakeengine.Cleared{}}
	if m.run > 0 {
		evs = append(evs, p.Stored(0, m.run))
	}
	for b := m.gpu; b < m.run; b++ {
		lower := p.Stored(b, b+1)
		lower.Tokens, lower.BlockSize, lower.Parent, lower.Medium = nil, 0, nil, "cpu"
		evs = append(evs, lower, p.Removed(b))
	}
	said(t, f.ix, pod, rank, evs...)
	if f.ranks[pod] == nil {
		f.ranks[pod] = make(map[int]rankModel)
	}
	f.ranks[pod][rank] = m
}

// answer returns the expected answer for pods.
func (f *fleetModel) answer(pods []string) (want []kvindex.PodScore) {
	states := make(map[string]map[int]kvindex.State)
	for _, info := range f.ix.Pods(nil) {
		states[info.Pod] = make(map[int]kvindex.State)
		for _, s := range info.Ranks {
			states[info.Pod][s.Rank] = s.State
		}
		if len(info.Ranks) == 0 {
			states[info.Pod][0] = info.State
		}
	}
	for _, pod := range pods {
		ranks := f.ranks[pod]
		if len(ranks) == 0 {
			ranks = map[int]rankModel{0: {}}
		}
		for rank, m := range ranks {
			s := kvindex.PodScore{Pod: pod, Rank: rank, State: states[pod][rank], NotScorable: f.excluded[pod]}
			if m.run > 0 && !s.NotScorable {
				s.BlockTokens, s.MatchedBlocks, s.Tiers = f.sizes[pod], m.run, [index.NumTiers]int{m.gpu, m.run - m.gpu}
				s.CachedTokens = min(m.gpu, (len(f.tokens)-1)/s.BlockTokens) * s.BlockTokens
				s.PredictedTokens, s.LoadedTokens = s.CachedTokens, (m.run-m.gpu)*s.BlockTokens
				s.Score, s.UpperBound = float64(s.CachedTokens)+0.8*float64(s.LoadedTokens), s.LoadedTokens > 0
			}
			want = append(want, s)
		}
	}
	score := func(s kvindex.PodScore) float64 {
		if s.NotScorable {
			return -1
		}
		return s.Score
	}
	place := func(pod string) uint32 { return kvindex.Place(f.ix, pod, "", "", f.tokens, nil) }
	turn := func(s kvindex.PodScore) uint32 {
		return kvindex.PlaceOfRank(f.ix, s.Pod, s.Rank, "", "", f.tokens, nil)
	}
	slices.SortFunc(want, func(a, b kvindex.PodScore) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(place(b.Pod), place(a.Pod)), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(turn(b), turn(a)), a.Rank-b.Rank)
	})
	return want
}

// TestRanksAgainstModel scores random fleets: ranks appear, change, are cleared and lost; pods
// appear, disappear, are silent and excluded. Each answer is compared with the model's.
func TestRanksAgainstModel(t *testing.T) {
	template, err := chat.New(turns+"{{ tools }}", map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	compared, tied := 0, 0
	for round := range choose(150, 150) {
		r := rand.New(rand.NewPCG(7, uint64(round)))
		ix := open(t, kvindex.WithKeySeed(testSeed), kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: template}))
		text := make([]byte, 20+r.IntN(300))
		for i := range text {
			text[i] = byte('a' + r.IntN(26))
		}
		body := fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}],"tools":[{"type":"function","function":{"name":"tide"}}]}`, text)
		asked, err := chat.Parse("", body)
		must(t, err)
		rendered, err := template.Render(asked, nil)
		must(t, err)
		f := &fleetModel{ix, bytesOf(rendered.Text), map[string]int{}, map[string]map[int]rankModel{}, map[string]bool{}}
		most := []int{1, 2, 3, 5, 40}[r.IntN(5)] // ranks of a pod
		var names []string
		for i := range 1 + r.IntN(9) {
			name := fmt.Sprint("pod-", i)
			names = append(names, name)
			f.sizes[name] = []int{16, 16, 32, 8}[r.IntN(4)]
			template.Exclude(name)
		}
		known := make(map[string]bool)
		for range 3 * most {
			pod, rank := names[r.IntN(len(names))], r.IntN(most)*(1+r.IntN(2)*97)
			run := min(r.IntN(2+round%4), len(f.tokens)/f.sizes[pod])
			_, heard := f.ranks[pod][rank]
			switch op := r.IntN(12); {
			case op == 0:
				must(t, ix.RemovePod(pod))
				delete(f.ranks, pod)
				delete(known, pod)
			case op == 1:
				_ = ix.Sink().StreamNote(pod, "m", fmt.Sprint("to come ", r.IntN(2)), events.NoteOpened)
				known[pod] = true
			case op == 2 && heard:
				must(t, ix.MarkLost(pod, rank))
				f.ranks[pod][rank] = rankModel{}
			case op == 3:
				f.excluded[pod] = !f.excluded[pod]
				template.Exclude(pod, map[bool][]string{true: {"tools"}}[f.excluded[pod]]...)
			case op == 4 && heard && run < f.ranks[pod][rank].gpu:
				said(t, ix, pod, rank, f.prompt(pod, rank).Removed(run))
				f.ranks[pod][rank] = rankModel{run, run}
			default:
				f.holds(t, pod, rank, rankModel{run - r.IntN(run+1)*r.IntN(2), run})
				known[pod] = true
			}
		}
		given := append(slices.Clone(names), names[:r.IntN(len(names))]...)
		r.Shuffle(len(given), func(i, j int) { given[i], given[j] = given[j], given[i] })
		all, heard := f.answer(names), f.answer(slices.Sorted(maps.Keys(known)))
		for i := range all[1:] {
			if all[i].Score == all[i+1].Score && all[i].Pod == all[i+1].Pod {
				tied++
			}
		}
		for top := range len(all) + 2 {
			for kind, c := range map[string]struct {
				q    kvindex.Request
				want []kvindex.PodScore
			}{
				"all":            {kvindex.Request{Model: "m"}, heard},
				"names":          {kvindex.Request{Pods: given}, all},
				"all, resolved":  {kvindex.Request{Candidates: ix.Candidates("m", nil)}, heard},
				"some, resolved": {kvindex.Request{Candidates: ix.Candidates("m", given)}, all},
			} {
				c.q.Body, c.q.Ranks, c.q.Top = body, true, top
				want := c.want
				if top > 0 {
					want = want[:min(top, len(want))]
				}
				var a kvindex.Answer
				must(t, ix.ScoreRequest(ctx, &c.q, &a))
				if got := a.Pods; !slices.Equal(got, want) {
					t.Fatalf("round %d, %s, top %d:\n%+v, want\n%+v", round, kind, top, got, want)
				}
				compared++
			}
		}
		f.firstOfEach(t, kvindex.Request{Body: body, Pods: given})
		f.firstOfEach(t, kvindex.Request{Body: body, Candidates: ix.Candidates("m", nil)})
	}
	if compared < choose(5000, 5000) || tied < choose(900, 900) {
		t.Errorf("%d answers compared, %d ties of ranks of one pod", compared, tied)
	}
}

// firstOfEach checks that the first entry of each pod has the position and tokens of the pod's
// entry in an answer without ranks.
func (f *fleetModel) firstOfEach(t *testing.T, q kvindex.Request) {
	t.Helper()
	plain := score(t, f.ix, q)
	for q.Top = range len(plain) {
		if got := score(t, f.ix, q); q.Top > 0 && !slices.Equal(got, plain[:q.Top]) {
			t.Fatalf("the best %d of %+v: %+v", q.Top, plain, got)
		}
	}
	q.Top = 0
	q.Ranks = true
	var first []kvindex.PodScore
	for _, s := range score(t, f.ix, q) {
		if !slices.ContainsFunc(first, func(o kvindex.PodScore) bool { return o.Pod == s.Pod }) {
			first = append(first, s)
		}
	}
	if !slices.EqualFunc(first, plain, func(a, b kvindex.PodScore) bool {
		return a.Pod == b.Pod && a.CachedTokens == b.CachedTokens && a.NotScorable == b.NotScorable
	}) {
		t.Fatalf("with ranks %+v, without %+v", first, plain)
	}
}

// Prompts that no rank holds, or all hold alike, spread evenly over the ranks of each pod, and
// equal prompts meet.
func TestRanksSpread(t *testing.T) {
	const prompts, pods, ranks = 20_000, 4, 5
	for _, warm := range []bool{false, true} {
		ix := open(t, kvindex.WithKeySeed(testSeed))
		system := fakeengine.NewPrompt(1, 16, 4)
		held := map[bool]fakeengine.Prompt{false: fakeengine.NewPrompt(1<<40, 16, 4), true: system}[warm]
		for i := range pods * ranks {
			said(t, ix, fmt.Sprint("pod-", i/ranks), i%ranks, held.Stored(0, 3))
		}
		first, second, across := make(map[string]int), make(map[string]int), make(map[string]int)
		name := func(s kvindex.PodScore) string { return fmt.Sprint(s.Pod, "/", s.Rank) }
		tokens := slices.Clone(system.Tokens)
		for i := range uint32(prompts) {
			tokens[len(tokens)-1] = i
			q := kvindex.Request{Tokens: tokens, Ranks: true}
			s := score(t, ix, q)
			first[name(s[0])]++
			second[name(s[0])+" "+name(s[1])]++
			ofPod := func(pod string) kvindex.PodScore {
				return s[slices.IndexFunc(s, func(s kvindex.PodScore) bool { return s.Pod == pod })]
			}
			across[name(ofPod("pod-0"))+" "+name(ofPod("pod-1"))]++
			if again := score(t, ix, q); !slices.Equal(again, s) {
				t.Fatalf("the same prompt: %s, then %s", shownRanks(s), shownRanks(again))
			}
		}
		const share = prompts / pods / ranks // 5 standard deviations are 154
		const next = share / (ranks - 1)     // ... 79
		const both = prompts / ranks / ranks // ... 139
		if len(first) != pods*ranks || len(second) != pods*ranks*(ranks-1) || len(across) != ranks*ranks {
			t.Errorf("warm %v: %d ranks are first, with %d second, and %d of other pods", warm, len(first), len(second), len(across))
		}
		for rank, n := range first {
			if n < share-154 || n > share+154 {
				t.Errorf("warm %v: %s is first for %d prompts, its share is %d", warm, rank, n, share)
			}
		}
		for pair, n := range second {
			if n < next-79 || n > next+79 {
				t.Errorf("warm %v: %s are first and second for %d prompts, their share is %d", warm, pair, n, next)
			}
		}
		for pair, n := range across {
			if n < both-139 || n > both+139 {
				t.Errorf("warm %v: %s are the first of their pods for %d prompts, their share is %d", warm, pair, n, both)
			}
		}
	}
	// Pinned, because gateways of different versions have to agree.
	ix := open(t, kvindex.WithKeySeed(testSeed))
	other := fakeengine.NewPrompt(1<<40, 16, 1)
	for i := range 10 {
		said(t, ix, fmt.Sprint("pod-00", i/5), i%5, other.Stored(0, 1))
	}
	got := shownRanks(score(t, ix, kvindex.Request{Tokens: fakeengine.NewPrompt(3, 16, 100).Tokens, Salt: "s", Ranks: true}))
	if want := "pod-000/4=0/live pod-000/3=0/live pod-000/0=0/live pod-000/1=0/live pod-000/2=0/live pod-001/4=0/live pod-001/3=0/live pod-001/0=0/live pod-001/1=0/live pod-001/2=0/live"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A change of one rank does not affect the blocks and states of others.
func TestRanksApart(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	of := func(rank int, seq uint64, evs ...fakeengine.Event) kvindex.Message {
		return message(fmt.Sprint("s", rank), seq, float64(seq+1), rank, evs...)
	}
	engineStarted := func(rank int, evs ...fakeengine.Event) kvindex.Message {
		return message(fmt.Sprint("s", rank), 0, 100, rank, evs...)
	}
	const rest0, rest2 = "a/0=4/live", "a/2=4/live"
	for _, c := range []struct {
		name string
		act  act
		opts []kvindex.Option
		want string // of rank 1
	}{
		{name: "removed", act: brings(of(1, 2, p.Removed(1))), want: "a/1=1/live"},
		{name: "cleared", act: brings(of(1, 2, fakeengine.Cleared{})), want: "a/1=0/live"},
		{name: "restarted", act: brings(engineStarted(1, p.Stored(0, 2))), want: "a/1=2/live"},
		{name: "restart told", act: restarted("s1"), want: "a/1=0/unknown"},
		{name: "rewound", act: func(t *testing.T, ix *kvindex.Indexer) {
			must(t, ix.Sink().StreamNote("a", "m", "s1", events.NoteRewound))
		}, want: "a/1=0/replaying"},
		{name: "lost", act: brings(of(1, 9, p.Stored(0, 1))), want: "a/1=1/partial"},
		{name: "lost and kept", act: brings(of(1, 9)), opts: []kvindex.Option{kvindex.WithKeepOnLoss()}, want: "a/1=4/uncertain"},
		{name: "marked", act: func(t *testing.T, ix *kvindex.Indexer) {
			must(t, ix.MarkLost("a", 1))
		}, want: "a/1=0/partial"},
		{name: "held back", act: brings(hold(of(1, 9))), want: "a/1=4/replaying"},
		{name: "connection lost", act: note("s1", events.NoteLost), want: "a/1=4/uncertain"},
		{name: "another address", act: brings(message("elsewhere", 7, 7, 1, p.Stored(0, 3))), want: "a/1=3/partial"},
		{name: "a silent stream", act: note("s3", events.NoteOpened), want: "a/1=4/live"},
		{name: "a rank comes", act: brings(of(3, 0, p.Stored(0, 1))), want: "a/1=4/live"},
	} {
		ix := open(t, c.opts...)
		for rank := range 3 {
			brings(of(rank, 0, p.Stored(0, 2)), of(rank, 1, p.Stored(2, 4)))(t, ix)
		}
		if got, want := shownRanks(ofRanks(t, ix, p.Tokens)), rest0+" a/1=4/live "+rest2; got != want {
			t.Fatalf("%s: before: %s, want %s", c.name, got, want)
		}
		c.act(t, ix)
		want := rest0 + " " + c.want + " " + rest2
		if c.name == "a rank comes" {
			want += " a/3=1/live"
		}
		if got := shownRanks(ofRanks(t, ix, p.Tokens)); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
}

// A rank that another Indexer wrote to the index has an entry, and its blocks are uncertain. Its
// pod has no entry for an unknown rank.
func TestRanksOfAnother(t *testing.T) {
	shared := memory(t)
	reader, writer := open(t, kvindex.WithIndex(shared)), open(t, kvindex.WithIndex(shared))
	p := fakeengine.NewPrompt(1, 16, 4)
	said(t, reader, "b", 1, p.Stored(0, 2))
	said(t, reader, "c", 0, p.Stored(0, 1))
	for _, c := range []struct {
		pod    string
		rank   int
		blocks int
	}{{"a", 7, 3}, {"b", 0, 3}, {"b", 5, 2}} {
		said(t, writer, c.pod, c.rank, p.Stored(0, c.blocks))
	}
	window := p.Stored(0, 2) // a second row of one rank
	window.Group, window.Kind, window.Window = 1, "sliding_window", 32
	said(t, writer, "a", 7, window)
	s := score(t, reader, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a", "b", "c", "d"}, Ranks: true})
	slices.SortFunc(s, func(a, b kvindex.PodScore) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), a.Rank-b.Rank) })
	const want = "a/7=3/unknown b/0=3/uncertain b/1=2/live b/5=2/uncertain c/0=1/live d/0=0/unknown"
	if got := shownRanks(s); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The groups of one rank are judged together, apart from those of others.
func TestRanksOfAHybrid(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	window := func(blocks int) *fakeengine.Stored {
		s := p.Stored(0, blocks)
		s.Group, s.Kind, s.Window = 1, "sliding_window", 32
		return s
	}
	gone := p.Removed(5)
	gone.Group = 1
	said(t, ix, "a", 0, p.Stored(0, 6), window(6))
	said(t, ix, "a", 1, p.Stored(0, 6), window(3))
	said(t, ix, "a", 2, p.Stored(0, 6), window(6), gone)
	said(t, ix, "a", 3, p.Stored(0, 6), window(6), p.Removed(0))
	said(t, ix, "a", 4, p.Stored(0, 2))
	var got []int
	for _, s := range ofRanks(t, ix, p.Tokens) {
		got = append(got, s.CachedTokens)
	}
	if want := []int{96, 48, 80, 0, 32}; !slices.Equal(got, want) {
		t.Errorf("ranks have %d tokens cached, want %d", got, want)
	}
}

// An explanation is about a pod, and counters are about its best entry.
func TestRanksExplainedAndCounted(t *testing.T) {
	var told []kvindex.ScoreReport
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { told = append(told, s) }}))
	p := fakeengine.NewPrompt(1, 16, 4)
	for rank, n := range []int{1, 3, 2} {
		said(t, ix, "a", rank, p.Stored(0, n))
	}
	for _, q := range []kvindex.Request{{Pods: []string{}}, {Pods: []string{"a"}}, {Candidates: ix.Candidates("m", nil)}} {
		q.Model, q.Tokens = "m", p.Tokens
		want, err := ix.Explain(ctx, &q, "a")
		must(t, err)
		q.Ranks = true
		got, err := ix.Explain(ctx, &q, "a")
		if err != nil || !reflect.DeepEqual(got, want) || got.Score.Rank != 1 || got.Score.CachedTokens != 48 || !q.Ranks {
			t.Errorf("%v, %v\nwant %v", got, err, want)
		}
	}
	score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: true})
	if s := ix.Stats().Scores; s.CachedTokens != 48 || s.PromptTokens != 64 || len(told) != 1 || told[0].CachedTokens != 48 {
		t.Errorf("counted %+v, the hook received %+v", s, told)
	}
}

// fleet registers pods that hold another prompt.
func fleet(t testing.TB, ix *kvindex.Indexer, n int) (names []string) {
	t.Helper()
	other := fakeengine.NewPrompt(1<<40, 16, 1)
	for i := range n {
		names = append(names, fmt.Sprintf("pod-%03d", i))
		ingest(t, ix, names[i], other.Stored(0, 1))
	}
	return names
}

func podsOf(scores []kvindex.PodScore) (names []string) {
	for _, s := range scores {
		names = append(names, s.Pod)
	}
	return names
}

// Indexers of one seed agree, and clients without it cannot choose a pod.
func TestTiesAreSeeded(t *testing.T) {
	a, b, c := open(t, kvindex.WithKeySeed(testSeed)), open(t, kvindex.WithKeySeed(testSeed)), open(t)
	names := fleet(t, a, 16)
	r := rand.New(rand.NewPCG(1, 2))
	same := 0
	for range 100 {
		q := kvindex.Request{Tokens: randomTokens(r, 40), Pods: names}
		if x, y := podsOf(score(t, a, q)), podsOf(score(t, b, q)); !slices.Equal(x, y) {
			t.Fatalf("one seed: %v, and %v", x, y)
		}
		if podsOf(score(t, a, q))[0] == podsOf(score(t, c, q))[0] {
			same++
		}
	}
	if same > 25 {
		t.Errorf("of 100 prompts %d have the same first pod with another seed", same)
	}
	// Pinned, because gateways of different versions have to agree.
	got := strings.Join(podsOf(score(t, a, kvindex.Request{Tokens: fakeengine.NewPrompt(3, 16, 100).Tokens, Salt: "s", Pods: names[:6]})), " ")
	if want := "pod-004 pod-000 pod-001 pod-005 pod-002 pod-003"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Everything that distinguishes a prompt changes its ties.
func TestTiesOfOtherPrompts(t *testing.T) {
	ix := open(t)
	names := fleet(t, ix, 30)
	long := fakeengine.NewPrompt(3, 16, 101).Tokens[:16*100+9]
	changed := func(at int) []uint32 {
		tokens := slices.Clone(long)
		tokens[at]++
		return tokens
	}
	order := func(q kvindex.Request) string {
		q.Pods = names
		return strings.Join(podsOf(score(t, ix, q)), " ")
	}
	plain := order(kvindex.Request{Tokens: long})
	seen := map[string]string{plain: "plain"}
	for name, q := range map[string]kvindex.Request{
		"first token":       {Tokens: changed(0)},
		"token 800":         {Tokens: changed(800)},
		"last of the units": {Tokens: changed(1599)},
		"first behind them": {Tokens: changed(1600)},
		"last token":        {Tokens: changed(len(long) - 1)},
		"a token less":      {Tokens: slices.Delete(slices.Clone(long), 700, 701)},
		"the last one less": {Tokens: long[:len(long)-1]},
		"one of zero more":  {Tokens: append(slices.Clone(long), 0)},
		"units turned":      {Tokens: slices.Concat(long[:320], long[336:352], long[320:336], long[352:])},
		"salt":              {Tokens: long, Salt: "s"},
		"adapter":           {Tokens: long, Adapter: "s"},
		"no whole unit":     {Tokens: long[:9]},
		"its adapter":       {Tokens: long[:9], Adapter: "s"},
		"media":             {Tokens: long, Media: []kvindex.Media{{Hash: "s"}}},
		"other media":       {Tokens: long, Media: []kvindex.Media{{Hash: "t"}}},
	} {
		got := order(q)
		if other := seen[got]; other != "" {
			t.Errorf("%s: the order is that of %s", name, other)
		}
		seen[got] = name
	}
}

// BenchmarkTies scores new prompts of which all pods hold nothing, or the same, or all a different
// part.
func BenchmarkTies(b *testing.B) {
	for _, pods := range []int{16, 64, 512} {
		for _, kind := range []string{"cold", "warm", "distinct"} {
			for _, top := range []int{0, 1} {
				b.Run(fmt.Sprintf("%s/pods=%d/top=%d", kind, pods, top), func(b *testing.B) {
					ix := open(b)
					p := fakeengine.NewPrompt(1, 16, 513)
					other := fakeengine.NewPrompt(2, 16, 1)
					var names []string
					for i := range pods {
						names = append(names, fmt.Sprint("pod", i))
						switch kind {
						case "cold":
							ingest(b, ix, names[i], other.Stored(0, 1))
						case "warm":
							ingest(b, ix, names[i], p.Stored(0, 1))
						case "distinct":
							ingest(b, ix, names[i], p.Stored(0, i+1))
						}
					}
					q := kvindex.Request{Tokens: p.Tokens[:32], Candidates: ix.Candidates("m", names), Top: top}
					if kind == "distinct" {
						q.Tokens = p.Tokens
					}
					var a kvindex.Answer
					b.ReportAllocs()
					for b.Loop() {
						q.Tokens[len(q.Tokens)-1]++
						if err := ix.ScoreRequest(ctx, &q, &a); err != nil || top == 1 && len(a.Pods) != 1 {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
