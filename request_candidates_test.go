package kvindex_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// Candidates without a model serve each model that a request names, as Request.Pods do.
func TestCandidatesOfAnyModel(t *testing.T) {
	ix := open(t, kvindex.WithModel("text", kvindex.Model{Tokenizer: words{}}))
	p := fakeengine.NewPrompt(1, 16, 4)
	for pod, model := range map[string]string{"a": "m", "b": "m2"} {
		must(t, ix.Ingest(pod, model, fakeengine.Payload(1, 0, p.Stored(0, 2))))
	}
	pods := []string{"a", "b", "c"}
	any := ix.Candidates("", pods)
	for i := range 200 {
		for _, model := range []string{"m", "m2", "nobody's", fmt.Sprint("name", i)} {
			var want, got kvindex.Answer
			must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: p.Tokens, Pods: pods}, &want))
			must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: p.Tokens, Candidates: any}, &got))
			if !slices.Equal(got.Pods, want.Pods) || fmt.Sprint(got.Unknown) != fmt.Sprint(want.Unknown) {
				t.Fatalf("%s: got %v %v, want %v %v", model, got.Pods, got.Unknown, want.Pods, want.Unknown)
			}
		}
	}
	body := kvindex.Request{Body: []byte(`{"model": "m2", "prompt": [1, 2, 3]}`), Candidates: any}
	if err := ix.ScoreRequest(ctx, &body, new(kvindex.Answer)); err != nil {
		t.Error(err)
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Tokens: p.Tokens, Candidates: any}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrRequest) {
		t.Errorf("no model: %v", err)
	}
	if e, err := ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Candidates: any}, "d"); err != nil || e.Model != "m" {
		t.Errorf("Explain: %v %v", e, err)
	}
}

// A pod's adapters are found by name as long as it is there, and many of one
// pod do not push out those of another.
func TestAdaptersByName(t *testing.T) {
	ix := open(t, kvindex.WithModel("taken", kvindex.Model{Tokenizer: words{}}))
	p := fakeengine.NewPrompt(1, 16, 1)
	hash := uint64(0)
	adapter := func(pod, model, name string) {
		hash++
		s := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: hash << 32}.Stored(0, 1)
		s.Adapter = name
		must(t, ix.Ingest(pod, model, fakeengine.Payload(1, 0, s)))
	}
	for i := range kvindex.MaxAdapters + 2 {
		adapter("evil", "m2", fmt.Sprint("a", i))
	}
	adapter("evil", "m2", "sql")
	adapter("evil", "m2", "taken")
	adapter("good", "m", "sql")
	find := func(name string, pods ...string) int {
		return score(t, ix, kvindex.Request{Model: name, Tokens: p.Tokens, Pods: pods})[0].MatchedBlocks
	}
	if find("sql", "good") != 1 || find("a5", "evil") != 1 || find("taken", "evil") != 0 {
		t.Error("adapters are not found by name")
	}
	if n := ix.Stats().Adapters; n != 4 {
		t.Errorf("%d adapters too many", n)
	}
	must(t, ix.RemovePod("evil"))
	if s := score(t, ix, kvindex.Request{Model: "sql", Tokens: p.Tokens}); len(s) != 1 || s[0].Pod != "good" {
		t.Errorf("%+v", s)
	}
}
