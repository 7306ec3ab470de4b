package kvindex_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

var testSeed = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func randomTokens(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(150000)
	}
	return tokens
}

// TestVariantKeys: shared indexes compare keys of every variant, so they must never change, nor
// depend on earlier variants.
func TestVariantKeys(t *testing.T) {
	var wanted []index.Variant
	var got [][]index.Key
	ix := open(t, kvindex.WithIndex(&alteredIndex{Memory: memory(t), match: func(_ context.Context, q *index.Query, _ *index.Matches) error {
		got = nil
		for _, v := range wanted {
			keys, err := q.Keys(v)
			must(t, err)
			got = append(got, slices.Clone(keys))
		}
		return nil
	}}))
	all := []index.Variant{
		{Unit: 16},
		{Unit: 16, Media: uint8(kvindex.MediaBare), Block: 16},
		{Unit: 16, Media: uint8(kvindex.MediaBare), Block: 32},
		{Unit: 16, Media: uint8(kvindex.MediaPad)},
		{Unit: 16, Media: uint8(kvindex.MediaPad), Pairs: true},
		{Unit: 16, Pairs: true},
		{Unit: 8},
		{Unit: 8, Media: uint8(kvindex.MediaPad)},
	}
	plain := kvindex.Request{Model: "m", Salt: "salt", Tokens: fakeengine.NewPrompt(1, 16, 3).Tokens, Pods: []string{"a"}}
	media := plain
	media.Media = []kvindex.Media{{Hash: "11", Offset: 17, Length: 20}}
	ask := func(q kvindex.Request, variants ...index.Variant) [][]index.Key {
		wanted = variants
		score(t, ix, q)
		return got
	}
	seen := make(map[index.Key]bool)
	var sum index.Key
	for _, q := range []kvindex.Request{plain, media} {
		forward := ask(q, all...)
		backward := slices.Clone(all)
		slices.Reverse(backward)
		again := ask(q, backward...)
		slices.Reverse(again)
		for i, v := range all {
			alone := ask(q, v)[0]
			if !slices.Equal(alone, forward[i]) || !slices.Equal(alone, again[i]) {
				t.Errorf("%+v: %x alone, %x after others, %x before them", v, alone, forward[i], again[i])
			}
			want := 48 / v.Unit
			if v.Pairs {
				want = 47 / v.Unit
			}
			if len(alone) != want {
				t.Errorf("%+v: %d keys, want %d", v, len(alone), want)
			}
			for j, k := range alone {
				// Media make no difference before the first item.
				if seen[k] && (q.Media == nil || (j+1)*v.Unit > 16) {
					t.Errorf("%+v: key %d is that of another variant or prompt", v, j)
				}
				seen[k] = true
				sum = index.Chain(sum, index.Local(k))
			}
		}
	}
	if sum != 0x699fa4f153b7b5a1 {
		t.Errorf("the keys are others: %#x", sum)
	}
}

// Equal tokens of another rank, model, adapter or salt are other blocks.
func TestScopes(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 6)
	q := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 2 << 32}
	r := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: 3 << 32}
	with := func(s *fakeengine.Stored, adapter, salt string) *fakeengine.Stored {
		s.Adapter = adapter
		for i := range s.Hashes {
			var keys []enginehash.Extra
			if adapter != "" {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: adapter})
			}
			if salt != "" && i == 0 && s.Parent == nil {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: salt})
			}
			s.Extra = append(s.Extra, keys)
		}
		return s
	}
	ingest(t, ix, "a", with(p.Stored(0, 1), "lora", ""), with(p.Stored(1, 2), "lora", ""))
	ingest(t, ix, "a", with(q.Stored(0, 1), "", "pepper"), with(q.Stored(1, 3), "", "pepper"))
	ingest(t, ix, "a", with(r.Stored(0, 1), "lora", "pepper"), with(r.Stored(1, 4), "lora", "pepper"))
	must(t, ix.Ingest("a", "other", fakeengine.Payload(1, 0, p.Stored(0, 5))))
	must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 1, p.Stored(0, 6))))
	for _, c := range []struct {
		model, adapter, salt string
		want, rank           int
	}{
		{"m", "", "", 6, 1},
		{"m", "lora", "", 2, 0},
		{"m", "", "pepper", 3, 0},
		{"m", "lora", "pepper", 4, 0},
		{"m", "lora", "sugar", 0, 0},
		{"m", "nora", "", 0, 0},
		{"other", "", "", 5, 0},
		{"other", "lora", "", 0, 0},
		{"lora", "", "", 2, 0}, // the adapter by name alone
		{"lora", "", "pepper", 4, 0},
		{"never", "", "", 0, 0},
	} {
		s := score(t, ix, kvindex.Request{Model: c.model, Adapter: c.adapter, Salt: c.salt, Tokens: p.Tokens, Pods: []string{"a"}})[0]
		if s.MatchedBlocks != c.want || s.Rank != c.rank {
			t.Errorf("model %q, adapter %q, salt %q: %d blocks of rank %d, want %d of %d", c.model, c.adapter, c.salt, s.MatchedBlocks, s.Rank, c.want, c.rank)
		}
	}
	must(t, ix.Ingest("b", "third", fakeengine.Payload(1, 0, with(p.Stored(0, 1), "lora", ""))))
	if got := score(t, ix, kvindex.Request{Model: "lora", Tokens: p.Tokens, Pods: []string{"a"}})[0]; got.MatchedBlocks != 2 {
		t.Errorf("the adapter of the requested pods: %+v", got)
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "lora", Tokens: p.Tokens}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrRequest) || !strings.Contains(err.Error(), `both "m" and "third"`) {
		t.Errorf("an adapter of two models: %v", err)
	}
}

// With MediaPad hashes have to be integers; other engines accept any.
func TestMediaHashes(t *testing.T) {
	ix := open(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		if pod == "sglang" {
			return kvindex.Profile{Media: kvindex.MediaPad}
		}
		return kvindex.Profile{}
	}))
	p := fakeengine.NewPrompt(1, 16, 2)
	for _, pod := range []string{"sglang", "vllm"} {
		ingest(t, ix, pod, p.Stored(0, 2))
	}
	var a kvindex.Answer
	for _, hash := range []string{"cat", "0x12", "1.5", "-", "+3", "1 "} {
		q := kvindex.Request{Model: "m", Tokens: p.Tokens, Media: []kvindex.Media{{Hash: hash, Offset: 16, Length: 4}}}
		err := ix.ScoreRequest(ctx, &q, &a)
		if !errors.Is(err, kvindex.ErrRequest) || !strings.Contains(err.Error(), strconv.Quote(hash)) || !strings.Contains(err.Error(), "media 0") || len(a.Pods) > 0 {
			t.Errorf("hash %q: %v, %+v", hash, err, a.Pods)
		}
		q.Pods = []string{"vllm"}
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].MatchedBlocks != 1 {
			t.Errorf("hash %q: %v, %+v", hash, err, a.Pods)
		}
	}
	for _, m := range []kvindex.Media{{Hash: "5", Offset: 20, Length: math.MaxInt}, {Hash: "-123456789012345678901234567890", Offset: 31, Length: 0}} {
		q := kvindex.Request{Model: "m", Tokens: p.Tokens, Media: []kvindex.Media{m}}
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// Of nested items vLLM hashes those that begin later; each item has at least one token.
func TestNestedItems(t *testing.T) {
	ix := open(t, withProfile(kvindex.Profile{Media: kvindex.MediaBare}))
	p := fakeengine.NewPrompt(1, 16, 4)
	s := p.Stored(0, 4)
	video, end := enginehash.Text("video"), enginehash.Text("end")
	s.Extra = [][]enginehash.Extra{{video}, {video}, {video}, {end}}
	ingest(t, ix, "a", s)
	q := kvindex.Request{Tokens: p.Tokens, Media: []kvindex.Media{
		{Hash: "video", Offset: 0, Length: 40}, {Hash: "audio", Offset: 4, Length: 2}, {Hash: "end", Offset: 48},
	}}
	if got := score(t, ix, q)[0].MatchedBlocks; got != 4 {
		t.Errorf("%d blocks", got)
	}
}

// BenchmarkKeys hashes 512 new units of 16 tokens.
func BenchmarkKeys(b *testing.B) {
	ix := open(b)
	tokens := randomTokens(rand.New(rand.NewPCG(4, 4)), 8192)
	b.ReportAllocs()
	for b.Loop() {
		tokens[0]++
		kvindex.HashPrompt(ix, "m", tokens)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/block")
}
