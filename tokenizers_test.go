package kvindex_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize"
)

// shifted is words with ids of its own.
type shifted uint32

func (s shifted) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b)+uint32(s))
	}
	return dst, nil
}

// A source has the tokenizers of the models that have none by name, and of the
// adapters on them.
func TestTokenizersFromASource(t *testing.T) {
	const text = "a prompt of some forty letters, give or take a few"
	var asked []string
	ix := open(t, kvindex.WithTokenizer("named", words{}), kvindex.WithTokenizers(func(model string) tokenize.Tokenizer {
		asked = append(asked, model)
		switch model {
		case "none":
			return nil
		case "other":
			return shifted(2000)
		}
		return shifted(1000)
	}))
	for i, c := range []struct {
		model string
		by    tokenize.Tokenizer
	}{{"m", shifted(1000)}, {"other", shifted(2000)}, {"named", words{}}} {
		tokens, err := c.by.Encode(ctx, nil, text, true)
		if err != nil {
			t.Fatal(err)
		}
		p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(i + 1)}
		if err := ix.Ingest("pod", c.model, fakeengine.Payload(1, 0, p.Stored(0, 3))); err != nil {
			t.Fatal(err)
		}
		on := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(i+1) << 8}.Stored(0, 2)
		on.Adapter = "adapter-of-" + c.model
		if err := ix.Ingest("pod", c.model, fakeengine.Payload(1, 0, on)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, adapter string
		asked         string // of the source
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
			if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
				t.Fatal(err)
			}
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

func TestTokenizersOptions(t *testing.T) {
	source := func(string) tokenize.Tokenizer { return nil }
	for want, opts := range map[string][]kvindex.Option{
		"WithTokenizers: the function is nil": {kvindex.WithTokenizers(nil)},
		"WithTokenizers is given twice":       {kvindex.WithTokenizers(source), kvindex.WithTokenizers(source)},
	} {
		if _, err := kvindex.New(opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A pool of tokenizers is a source.
func TestTokenizersOfAPool(t *testing.T) {
	dir := t.TempDir()
	tiny, err := os.ReadFile("tokenize/testdata/tiny.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), tiny, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := errors.New("missing")
	pool, err := tokenize.NewPool(tokenize.PoolConfig{Find: func(_ context.Context, model string) (string, error) {
		if model != "m" {
			return "", missing
		}
		return dir, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ix := open(t, kvindex.WithTokenizers(pool.Tokenizer))
	text := strings.Repeat("the boats come and go ", 20)
	tokens, err := pool.Tokenizer("m").Encode(ctx, nil, text, true)
	if err != nil {
		t.Fatal(err)
	}
	p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: 1}
	ingest(t, ix, "pod", p.Stored(0, 4))
	got, err := ix.Score(ctx, text, "m", nil)
	if err != nil || got[0].MatchedBlocks != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ix.Score(ctx, text, "unknown", nil); !errors.Is(err, missing) {
		t.Errorf("unknown: %v", err)
	}
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ix.Score(ctx, text, "m", nil); !errors.Is(err, tokenize.ErrPoolClosed) {
		t.Errorf("closed: %v", err)
	}
}
