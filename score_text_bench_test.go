package kvindex_test

import (
	"fmt"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// BenchmarkScoreText scores prompts of 32 kB of text for 64 pods: tokenizing,
// hashing and looking up, in an index of a million blocks. One to eight pods hold
// the first three quarters of each prompt. No prompt comes twice in a thousand
// scores. "tokenizing" is its part of the time.
func BenchmarkScoreText(b *testing.B) {
	const prompts, size, pods, blocks = 1000, 32 << 10, 64, 1_000_000
	t, err := tokenize.Load(testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3"))
	if err != nil {
		b.Fatal(err)
	}
	p := testdata.NewProse(b, "texts to score", 1)
	ix := open(b, kvindex.WithTokenizer("m", t))
	texts := make([]string, prompts)
	hold := func(hash int, tokens []uint32, holders int) int {
		q := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(hash+1) << 32}
		first := p.IntN(pods)
		for i := range holders {
			ingest(b, ix, fmt.Sprint("pod", (first+i)%pods), q.Stored(0, len(tokens)/16))
		}
		return len(tokens) / 16
	}
	held := 0
	for i := range texts {
		texts[i] = p.Text(size)
		ids, err := t.Encode(ctx, nil, texts[i], true)
		if err != nil {
			b.Fatal(err)
		}
		held += hold(i, ids[:len(ids)*3/4], 1+p.IntN(8))
	}
	for i := prompts; held < blocks; i++ {
		held += hold(i, randomTokens(p.Rand, 512*16), 1)
	}
	names := make([]string, pods)
	for i := range names {
		names[i] = fmt.Sprint("pod", i)
	}
	at := 0
	next := func() string {
		at = (at + 1) % prompts
		return texts[at]
	}
	b.Run(fmt.Sprintf("bytes=%d/pods=%d/blocks=%d", size, pods, blocks), func(b *testing.B) {
		q := kvindex.Request{Candidates: ix.Candidates("m", names)}
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
		b.ReportAllocs()
		for b.Loop() {
			if ids, err = t.Encode(ctx, ids[:0], next(), true); err != nil {
				b.Fatal(err)
			}
		}
	})
}
