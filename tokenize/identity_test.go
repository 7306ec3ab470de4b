package tokenize_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// TestIdentity: everything that changes ids changes the identity, and nothing else does.
func TestIdentity(t *testing.T) {
	seen := map[[32]byte]string{}
	same := func(name string, all ...*tokenize.BPE) {
		t.Helper()
		id := all[0].Identity()
		if other, ok := seen[id]; ok || id == [32]byte{} {
			t.Errorf("%s has the identity of %q", name, other)
		}
		seen[id] = name
		for i, bpe := range all {
			if bpe.Identity() != id {
				t.Errorf("%s, number %d has another identity", name, i)
			}
		}
	}
	tiny := readTiny(t)
	dir := func(config string) string {
		dir := t.TempDir()
		for name, content := range map[string]string{"tokenizer.json": string(tiny), "tokenizer_config.json": config} {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		return dir
	}
	pretrained := func(config string) *tokenize.BPE {
		t.Helper()
		bpe, err := tokenize.LoadPretrained(dir(config))
		must(t, err)
		return bpe
	}
	const config = `{"tokenizer_class": "PreTrainedTokenizer"}`
	const eos = `{"tokenizer_class": "PreTrainedTokenizer", "eos_token": "<|eos|>"}`
	alone, err := tokenize.Load(dir(config))
	must(t, err)
	same("tiny.json", loadTiny(t), parse(t, tiny), parse(t, zip(t, tiny)), alone)
	same("with a byte more", parse(t, append(bytes.Clone(tiny), '\n')))
	same("another", parse(t, another(t)))
	same("with a config", pretrained(config), pretrained(config))
	same("with another config", pretrained(eos))

	ranksWith := func(zero uint32) string {
		var b strings.Builder
		for i := range 256 {
			id := uint32(i)
			if i == 0 {
				id = zero
			}
			fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(i)}), id)
		}
		return b.String()
	}
	ranks := ranksWith(0)
	tiktoken := func(ranks, pattern string, special map[string]uint32) *tokenize.BPE {
		t.Helper()
		bpe, err := tokenize.ParseTiktoken(bytes.NewReader([]byte(ranks)), pattern, special)
		must(t, err)
		return bpe
	}
	gpt2, _, err := tokenize.TiktokenEncoding("r50k_base")
	must(t, err)
	same("ranks", tiktoken(ranks, gpt2, nil), tiktoken(ranks, gpt2, map[string]uint32{}))
	same("ranks with a line more", tiktoken(ranks+"\n", gpt2, nil))
	same("ranks with another pattern", tiktoken(ranks, llama3Pattern, nil))
	many := func() map[string]uint32 {
		special := map[string]uint32{}
		for i := range uint32(20) {
			special[string(rune('a'+i))+"|"] = 1000 + i
		}
		return special
	}
	same("ranks with special tokens", tiktoken(ranks, gpt2, many()), tiktoken(ranks, gpt2, many()), tiktoken(ranks, gpt2, many()))
	same("ranks with a special token", tiktoken(ranks, gpt2, map[string]uint32{"<a>": 1000}))
	same("ranks with another id", tiktoken(ranks, gpt2, map[string]uint32{"<a>": 1001}))
	same("ranks with another special token", tiktoken(ranks, gpt2, map[string]uint32{"<b>": 1000}))
	same("ranks with two", tiktoken(ranks, gpt2, map[string]uint32{"<a>": 1000, "<b>": 1001}))
	// The concatenated bytes of two tokens and their ids equal those of this one.
	ranks = ranksWith(300)
	same("ranks with a long special token", tiktoken(ranks, gpt2, map[string]uint32{"<a>\x00\x00\x00\x00<b>": 1001}))
	same("ranks with its parts", tiktoken(ranks, gpt2, map[string]uint32{"<a>": 0, "<b>": 1001}))

	p := openPool(t, tokenize.PoolConfig{Find: func(_ context.Context, model string) (string, error) { return model, nil }})
	for _, model := range []string{dir(config), "testdata/tiny.json"} {
		want := alone.Identity()
		if model != "testdata/tiny.json" {
			want = pretrained(config).Identity()
		}
		if got := hold(t, p, model).Identity(); got != want {
			t.Errorf("%s in a pool has another identity", model)
		}
	}
}
