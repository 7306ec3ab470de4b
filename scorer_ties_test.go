package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
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
