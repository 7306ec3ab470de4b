package kvindex_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// fleet has pods that hold a prompt which nobody asks for, so that they are known.
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

// Prompts that nobody holds, or that all hold the same of, spread evenly: each pod
// is first for its share of them, and so each of the rest behind each first one.
func TestTiesSpread(t *testing.T) {
	const prompts, n = 40_000, 16
	for _, warm := range []bool{false, true} {
		ix := open(t, kvindex.WithKeySeed(testSeed))
		names := fleet(t, ix, n)
		system := fakeengine.NewPrompt(1, 16, 4)
		if warm {
			for _, name := range names {
				ingest(t, ix, name, system.Stored(0, 3))
			}
		}
		c := ix.Candidates("m", nil)
		first, second := make(map[string]int), make(map[[2]string]int)
		tokens := slices.Clone(system.Tokens)
		for i := range uint32(prompts) {
			tokens[len(tokens)-1] = i // all that tells one from another
			s := score(t, ix, kvindex.Request{Model: "m", Tokens: tokens, Candidates: c})
			if want := map[bool]int{true: 48}[warm]; s[0].CachedTokens != want || s[n-1].CachedTokens != want {
				t.Fatalf("no tie: %+v", s)
			}
			first[s[0].Pod]++
			second[[2]string{s[0].Pod, s[1].Pod}]++
			if i%16 > 0 {
				continue
			}
			if again := score(t, ix, kvindex.Request{Tokens: tokens}); !slices.Equal(again, s) {
				t.Fatalf("the same prompt: %v, then %v", podsOf(s), podsOf(again))
			}
		}
		for _, a := range names {
			if got, share := first[a], prompts/n; got < share*9/10 || got > share*11/10 {
				t.Errorf("warm %v: %s is first for %d prompts, its share is %d", warm, a, got, share)
			}
			for _, b := range names {
				const share = prompts / n / (n - 1) // 5 standard deviations are 65
				if got := second[[2]string{a, b}]; a != b && (got < share-65 || got > share+65) {
					t.Errorf("warm %v: %s follows %s for %d prompts, its share is %d", warm, b, a, got, share)
				}
			}
		}
	}
}

// Scores come in the order of a plain sort by what would be reused, place and name,
// however the candidates are given and however many are wanted.
func TestTiesAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	for round := range 300 {
		ix := open(t, kvindex.WithKeySeed(testSeed))
		names := fleet(t, ix, 1+r.IntN(1+round%40))
		p := fakeengine.Prompt{Tokens: randomTokens(r, 16*(1+r.IntN(90))), Size: 16, Hash: 1}
		cached := make(map[string]int)
		for _, name := range names {
			if n := min(r.IntN(2+round%4), len(p.Tokens)/16-1); n > 0 {
				ingest(t, ix, name, p.Stored(0, n))
				cached[name] = 16 * n
			}
		}
		slices.SortFunc(names, func(a, b string) int {
			place := func(pod string) uint32 { return kvindex.Place(ix, pod, "", "", p.Tokens, nil) }
			return cmp.Or(cached[b]-cached[a], cmp.Compare(place(b), place(a)), cmp.Compare(a, b))
		})
		given := append(slices.Clone(names), names[:r.IntN(len(names))]...)
		r.Shuffle(len(given), func(i, j int) { given[i], given[j] = given[j], given[i] })
		for top := range len(names) + 2 {
			want := names
			if top > 0 {
				want = names[:min(top, len(names))]
			}
			for kind, q := range map[string]kvindex.Request{
				"all":            {},
				"names":          {Pods: given},
				"all, resolved":  {Candidates: ix.Candidates("m", nil)},
				"some, resolved": {Candidates: ix.Candidates("m", given)},
			} {
				q.Model, q.Tokens, q.Top = "m", p.Tokens, top
				if got := podsOf(score(t, ix, q)); !slices.Equal(got, want) {
					t.Fatalf("round %d, %s, top %d: %v, want %v, cached %v", round, kind, top, got, want, cached)
				}
			}
		}
	}
}

// A pod that comes or goes moves those prompts alone that are its own.
func TestTiesKeepTheirOrder(t *testing.T) {
	ix := open(t)
	names := fleet(t, ix, 9)
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		tokens := randomTokens(r, 1+r.IntN(100))
		all := podsOf(score(t, ix, kvindex.Request{Tokens: tokens}))
		gone := names[r.IntN(len(names))]
		without := func(name string) bool { return name == gone }
		rest := podsOf(score(t, ix, kvindex.Request{Tokens: tokens, Pods: slices.DeleteFunc(slices.Clone(names), without)}))
		if want := slices.DeleteFunc(all, without); !slices.Equal(rest, want) {
			t.Fatalf("without %s: %v, want %v", gone, rest, want)
		}
	}
}

// Indexers of one seed agree, and a client that does not know it cannot aim.
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
	// Pinned, because gateways of different versions are to agree.
	got := strings.Join(podsOf(score(t, a, kvindex.Request{Tokens: fakeengine.NewPrompt(3, 16, 100).Tokens, Salt: "s", Pods: names[:6]})), " ")
	if want := "pod-004 pod-000 pod-001 pod-005 pod-002 pod-003"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// All that separates a prompt from others bears on its ties.
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

// Places are the same whatever the index asked for: nothing, or other units than theirs,
// with media and without.
func TestTiesOfOtherUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	for _, kind := range []string{"silent", "16", "8", "bare", "pad", "pairs"} {
		ix := open(t, withProfile(kvindex.Profile{Media: map[string]kvindex.MediaForm{"bare": kvindex.MediaBare, "pad": kvindex.MediaPad}[kind]}))
		var names []string
		size := map[string]int{"8": 8}[kind]
		for i := range 20 {
			name := fmt.Sprint("pod-", i)
			names = append(names, name)
			if kind == "silent" {
				continue
			}
			if kind == "pairs" {
				e := events.Event{Kind: events.Stored, Hashes: []uint64{1}, Tokens: randomTokens(r, 32), Pairs: true, BlockSize: 16}
				must(t, ix.ApplyBatch(name, "m", &events.Batch{Events: []events.Event{e}}))
				continue
			}
			ingest(t, ix, name, fakeengine.NewPrompt(1<<40, cmp.Or(size, 16), 1).Stored(0, 1))
		}
		for range 20 {
			q := kvindex.Request{Model: "m", Tokens: randomTokens(r, 40+r.IntN(20)), Pods: names}
			if kind != "silent" {
				q.Adapter = []string{"", "sql"}[r.IntN(2)]
			}
			if r.IntN(2) == 0 {
				q.Media = []kvindex.Media{{Hash: "7", Offset: 3, Length: 20}}
			}
			want := slices.Clone(names)
			slices.SortFunc(want, func(a, b string) int {
				place := func(pod string) uint32 { return kvindex.Place(ix, pod, q.Adapter, "", q.Tokens, q.Media) }
				return cmp.Compare(place(b), place(a))
			})
			if got := podsOf(score(t, ix, q)); !slices.Equal(got, want) {
				t.Errorf("%s, %+v: %v, want %v", kind, q, got, want)
			}
		}
	}
}

// BenchmarkTies scores a new prompt each time, of which all pods hold nothing, or
// the same; or no two the same.
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
