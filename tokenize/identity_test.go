package tokenize_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// TestIdentity: all that ids depend on is in the identity, and nothing else.
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
