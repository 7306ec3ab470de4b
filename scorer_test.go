package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize"
)

// The rank of a pod that counts is the one that would reuse the most, then the one that holds the
// most anywhere, then the first.
func TestRanks(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	lower := func(from, to int) *fakeengine.Stored {
		s := p.Stored(from, to)
		s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, "cpu"
		return s
	}
	evicted := func(from, to int) (ev []fakeengine.Event) {
		ev = append(ev, p.Stored(from, to), lower(from, to))
		for b := from; b < to; b++ {
			ev = append(ev, p.Removed(b))
		}
		return ev
	}
	for name, c := range map[string]struct {
		ranks [][]fakeengine.Event
		want  int
	}{
		"cached":    {[][]fakeengine.Event{{p.Stored(0, 2)}, {p.Stored(0, 4)}, {p.Stored(0, 3)}}, 1},
		"matched":   {[][]fakeengine.Event{{p.Stored(0, 2)}, append([]fakeengine.Event{p.Stored(0, 2)}, evicted(2, 5)...), {p.Stored(0, 2)}}, 1},
		"the gpu":   {[][]fakeengine.Event{evicted(0, 1), {p.Stored(0, 1)}, evicted(0, 1)}, 1},
		"the cpu":   {[][]fakeengine.Event{{p.Stored(0, 1)}, evicted(0, 8), {p.Stored(0, 1)}}, 1},
		"the first": {[][]fakeengine.Event{nil, {p.Stored(0, 2)}, {p.Stored(0, 2)}, {p.Stored(0, 2)}}, 1},
	} {
		ix := open(t)
		for backwards, pod := range []string{"a", "b"} {
			for i := range c.ranks {
				rank := i
				if backwards > 0 {
					rank = len(c.ranks) - 1 - i
				}
				must(t, ix.Ingest(pod, "m", fakeengine.Payload(1, rank, c.ranks[rank]...)))
			}
		}
		for _, s := range score(t, ix, kvindex.Request{Tokens: p.Tokens}) {
			if s.Rank != c.want {
				t.Errorf("%s: pod %s: rank %d, want %d", name, s.Pod, s.Rank, c.want)
			}
		}
	}
}

// shiftedWords is words with other ids.
type shiftedWords uint32

func (s shiftedWords) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b)+uint32(s))
	}
	return dst, nil
}

// A source has tokenizers for models without one of their own, and for adapters on them.
func TestModelsFromASource(t *testing.T) {
	const text = "a prompt of some forty letters, give or take a few"
	var asked []string
	ix := open(t, kvindex.WithModel("named", kvindex.Model{Tokenizer: words{}}), kvindex.WithModels(func(_ context.Context, model string) (kvindex.Model, error) {
		asked = append(asked, model)
		switch model {
		case "none":
			return kvindex.Model{}, nil
		case "other":
			return kvindex.Model{Tokenizer: shiftedWords(2000)}, nil
		}
		return kvindex.Model{Tokenizer: shiftedWords(1000)}, nil
	}))
	for i, c := range []struct {
		model string
		by    tokenize.Tokenizer
	}{{"m", shiftedWords(1000)}, {"other", shiftedWords(2000)}, {"named", words{}}} {
		tokens, err := c.by.Encode(ctx, nil, text, true)
		must(t, err)
		p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(i + 1)}
		must(t, ix.Ingest("pod", c.model, fakeengine.Payload(1, 0, p.Stored(0, 3))))
		on := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(i+1) << 8}.Stored(0, 2)
		on.Adapter = "adapter-of-" + c.model
		must(t, ix.Ingest("pod", c.model, fakeengine.Payload(1, 0, on)))
	}
	for _, c := range []struct {
		name, adapter string
		asked         string // to the source
		matched       int
	}{
		{"m", "", "m", 3},
		{"other", "", "other", 3},
		{"named", "", "", 3},
		{"adapter-of-m", "", "m", 2},
		{"adapter-of-other", "", "other", 2},
		{"adapter-of-named", "", "", 2},
		{"other", "adapter-of-other", "other", 2},
		{"never-heard", "", "never-heard", 0},
	} {
		asked = nil
		for name, r := range map[string]kvindex.Request{
			"by pods":       {Model: c.name, Pods: []string{"pod"}},
			"by candidates": {Candidates: ix.Candidates(c.name, []string{"pod"})},
		} {
			r.Adapter, r.Prompt = c.adapter, text
			var a kvindex.Answer
			must(t, ix.ScoreRequest(ctx, &r, &a))
			if got := a.Pods[0].MatchedBlocks; got != c.matched {
				t.Errorf("%s, %s: %d blocks, want %d", c.name, name, got, c.matched)
			}
		}
		want := []string{c.asked, c.asked}
		if c.asked == "" {
			want = nil
		}
		if !slices.Equal(asked, want) {
			t.Errorf("%s: the source was asked for %q, want %q", c.name, asked, want)
		}
	}
	asked = nil
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: []uint32{1}}, new(kvindex.Answer)); err != nil || asked != nil {
		t.Errorf("tokens: %v, the source was asked for %q", err, asked)
	}
	if _, err := ix.Score(ctx, text, "none", nil); !errors.Is(err, kvindex.ErrNoTokenizer) {
		t.Errorf("a model without: %v", err)
	}
}

// BenchmarkScoreRequest scores 512 blocks of token ids that every pod holds; only the first token
// of the last block changes.
func BenchmarkScoreRequest(b *testing.B) {
	for _, pods := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("blocks=512/pods=%d", pods), func(b *testing.B) {
			ix := open(b)
			p := fakeengine.NewPrompt(1, 16, 512)
			for i := range pods {
				ingest(b, ix, fmt.Sprint("pod", i), p.Stored(0, 511))
			}
			q := kvindex.Request{Model: "m", Tokens: p.Tokens}
			var a kvindex.Answer
			b.ReportAllocs()
			for b.Loop() {
				q.Tokens[511*16]++
				if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].MatchedBlocks != 511 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScoreBest is BenchmarkScoreRequest for the best 8 of 256 resolved pods, beside hashing
// alone.
func BenchmarkScoreBest(b *testing.B) {
	ix := open(b)
	p := fakeengine.NewPrompt(1, 16, 512)
	var pods []string
	for i := range 256 {
		pods = append(pods, fmt.Sprint("pod", i))
		ingest(b, ix, pods[i], p.Stored(0, 511))
	}
	b.Run("hashing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Tokens[511*16]++
			kvindex.HashPrompt(ix, "m", p.Tokens)
		}
	})
	b.Run("best=8/pods=256", func(b *testing.B) {
		q := kvindex.Request{Candidates: ix.Candidates("m", pods), Tokens: p.Tokens, Top: 8}
		var a kvindex.Answer
		b.ReportAllocs()
		for b.Loop() {
			p.Tokens[511*16]++
			if err := ix.ScoreRequest(ctx, &q, &a); err != nil || len(a.Pods) != 8 || a.Pods[7].MatchedBlocks != 511 {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkScoreText scores prompts of 32 kB of text for 64 pods, without a prompt cache:
// tokenizing, hashing and looking up in an index of a million blocks. One to eight pods hold the
// first three quarters of each prompt. A prompt repeats after 1,000 scores. "tokenizing" is that
// step's share of the time.
func BenchmarkScoreText(b *testing.B) {
	w := newTextWorld(b)
	ix := w.open(b, kvindex.WithPromptCache(0))
	at := 0
	next := func() string {
		at = (at + 1) % len(w.texts)
		return w.texts[at]
	}
	b.Run(fmt.Sprintf("bytes=%d/pods=%d/blocks=%d", textSize, len(w.pods), textBlocks), func(b *testing.B) {
		q := kvindex.Request{Candidates: ix.Candidates("m", w.pods)}
		var a kvindex.Answer
		b.ReportAllocs()
		for b.Loop() {
			q.Prompt = next()
			if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].MatchedBlocks < a.PromptTokens/16/2 {
				b.Fatal(err, a.Pods[0])
			}
		}
		b.ReportMetric(float64(a.PromptTokens), "tokens")
		b.ReportMetric(float64(a.Pods[0].MatchedBlocks), "matched")
	})
	b.Run("tokenizing", func(b *testing.B) {
		var ids []uint32
		var err error
		b.ReportAllocs()
		for b.Loop() {
			if ids, err = w.tokenizer.Encode(ctx, ids[:0], next(), true); err != nil {
				b.Fatal(err)
			}
		}
	})
}
