package tokenize_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

const tekkenControls = 20

// tekkenFile returns a tekken.json with tokens by rank, and more that are unused.
func tekkenFile(pattern string, tokens []string, unused int) dict {
	list := make([]any, len(tokens))
	for i, token := range tokens {
		list[i] = dict{"rank": i, "token_bytes": base64.StdEncoding.EncodeToString([]byte(token)), "token_str": nil}
	}
	controls := make([]any, 3)
	for i, name := range []string{"<unk>", "<s>", "[INST]"} {
		controls[i] = dict{"rank": i, "token_str": name, "is_control": true}
	}
	return dict{
		"config": dict{
			"pattern": pattern, "num_vocab_tokens": len(tokens), "version": "v7",
			"default_vocab_size": tekkenControls + len(tokens) - unused, "default_num_special_tokens": tekkenControls,
		},
		"vocab": list, "special_tokens": controls, "version": 1, "type": "Tekken",
	}
}

// tekkenTokens returns all bytes and further tokens in random order.
func tekkenTokens(r *rand.Rand) []string {
	var tokens []string
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	more := slices.Sorted(maps.Keys(randomRanks(r, "abcdé")))
	more = slices.DeleteFunc(more, func(s string) bool { return len(s) == 1 })
	r.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
	return append(tokens, more...)
}

func TestTekkenAsReference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 43))
	for range 60 / sampled() {
		tokens := tekkenTokens(r)
		unused := r.IntN(5)
		ranks := plainRanks{}
		for i, token := range tokens[:len(tokens)-unused] {
			ranks[token] = uint32(i + tekkenControls)
		}
		bpe, err := tokenize.Parse(strings.NewReader(asJSON(t, tekkenFile(gpt2Pattern, tokens, unused))))
		must(t, err)
		for range 25 {
			text := randomLetters(r, []rune("abcdé[]<>sINST "), 1+r.IntN(60)) + []string{"", "[INST]", "<s>"}[r.IntN(3)]
			want := []uint32{1}
			for _, piece := range gpt2Reference.pieces(text) {
				want = append(want, ranks.encode(piece)...)
			}
			if got := encode(t, bpe, text, true); !slices.Equal(got, want) {
				t.Fatalf("%q: got %v, want %v", text, got, want)
			}
			if got := encode(t, bpe, text, false); !slices.Equal(got, want[1:]) {
				t.Fatalf("%q without special: got %v, want %v", text, got, want[1:])
			}
		}
	}
}

// TestTekkenAsMistralCommon has ids of the Tekkenizer of mistral-common 1.11.7.
func TestTekkenAsMistralCommon(t *testing.T) {
	var tokens []string
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	tokens = append(tokens, "ab", "bc", "abc", " a", "IN", "ST", "INST", "é", "zz")
	bpe, err := tokenize.Parse(strings.NewReader(asJSON(t, tekkenFile(gpt2Pattern, tokens, 1))))
	must(t, err)
	for text, want := range map[string][]uint32{
		"":                {1},
		"abc ab":          {1, 278, 52, 276},
		"[INST] a[/INST]": {1, 111, 282, 113, 279, 111, 67, 282, 113},
		"<s>zzé":          {1, 80, 135, 82, 142, 142, 283},
		"ab\n\n cab":      {1, 276, 30, 30, 52, 119, 276},
	} {
		if got := encode(t, bpe, text, true); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

// fromByteLevel returns the bytes of s in a byte-level file: printable ones as themselves, the
// others from U+0100 on.
func fromByteLevel(s string) string {
	var b []byte
	for _, r := range s {
		switch {
		case r < 0x100:
			b = append(b, byte(r))
		case r < 0x121:
			b = append(b, byte(r-0x100))
		case r < 0x143:
			b = append(b, byte(r-0x121+0x7f))
		default:
			b = append(b, 0xad)
		}
	}
	return string(b)
}

// TestTekkenAsOfficial converts a tokenizer.json to tekken.json. The ids are equal, unless a text
// has a control token.
func TestTekkenAsOfficial(t *testing.T) {
	if testing.Short() {
		t.Skip("no tekken.json is made of a tokenizer.json: -short")
	}
	folder := filepath.Dir(testdata.Path(t, "a tokenizer.json as tekken.json, on 13,063 texts", "tokens", "tekken", "tokenizer.json.gz"))
	var file struct {
		Model struct{ Vocab map[string]uint32 }
		Pre   struct {
			Steps []struct{ Pattern struct{ Regex string } } `json:"pretokenizers"`
		} `json:"pre_tokenizer"`
	}
	f, err := os.Open(filepath.Join(folder, "tokenizer.json.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&file)
	}
	must(t, err)
	const controls = 1000
	tokens := make([]string, len(file.Model.Vocab)-controls)
	for written, id := range file.Model.Vocab {
		if id >= controls {
			tokens[id-controls] = fromByteLevel(written)
		}
	}
	changed := tekkenFile(file.Pre.Steps[0].Pattern.Regex, tokens, 0)
	changed["config"].(dict)["default_num_special_tokens"] = controls
	changed["config"].(dict)["default_vocab_size"] = controls + len(tokens)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "tekken.json"), []byte(asJSON(t, changed)), 0o600))
	bpe, err := tokenize.LoadPretrained(dir)
	must(t, err)
	official := loadOutside(t, "tekken")
	compared := 0
	for row, text := range testdata.Each[string](t, testdata.Path(t, "", "tokens", "probes.jsonl.gz"), sampled()) {
		if row%sampled() != 0 || strings.Contains(text, "[") || strings.Contains(text, "<") {
			continue
		}
		compared++
		if got, want := encode(t, bpe, text, true), encode(t, official, text, true); !slices.Equal(got, want) {
			t.Errorf("row %d %.80q: got %v, want %v", row, text, clip(got), clip(want))
		}
	}
	if compared < 10_000/sampled() {
		t.Errorf("%d texts", compared)
	}
	if got := encode(t, bpe, "a [INST]", false); slices.Contains(got, 3) || len(got) < 3 {
		t.Errorf("a control token in a text is %v", got)
	}
}

func TestTekkenRefusals(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 43))
	tokens := tekkenTokens(r)
	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	config := func(name string, v any) func(file dict) {
		return func(file dict) { file["config"].(dict)[name] = v }
	}
	token := func(i int, name string, v any) func(file dict) {
		return func(file dict) { file["vocab"].([]any)[i].(dict)[name] = v }
	}
	for _, c := range []struct {
		name   string
		change func(file dict)
		kind   error
		want   string
	}{
		{"no vocab", func(file dict) { delete(file, "vocab") }, malformed, "without vocab"},
		{"no config", func(file dict) { delete(file, "config") }, malformed, "without vocab or config"},
		{"a vocab that is an object", func(file dict) { file["vocab"] = dict{} }, malformed, "vocab is not an array"},
		{"a token that is a string", func(file dict) { file["vocab"].([]any)[7] = "a" }, malformed, "token 7 is not an object"},
		{"both kinds", func(file dict) { file["normalizer"] = nil }, unsupported, "of a tekken.json"},
		{"another field", func(file dict) { file["x"] = nil }, unsupported, `field "x"`},
		{"pattern", config("pattern", `\w+`), unsupported, "pattern"},
		{"no pattern", config("pattern", nil), malformed, `"pattern"`},
		{"a size that is text", config("default_vocab_size", "9"), malformed, "default_vocab_size"},
		{"more than there are", config("default_vocab_size", 99_999), malformed, "99999 tokens"},
		{"less than the bytes", config("default_vocab_size", 256), malformed, "256 tokens"},
		{"a rank", token(300-256, "rank", 5), malformed, "token 44 has another rank"},
		{"a rank that is no number", token(3, "rank", "3"), malformed, "token 3 has another rank"},
		{"no rank", func(file dict) { delete(file["vocab"].([]any)[9].(dict), "rank") }, malformed, "token 9 has no rank"},
		{"a field of a token", token(9, "x", 1), malformed, `token 9 has the field "x"`},
		{"no base64", token(257, "token_bytes", "A"), malformed, "token 257 is not base64"},
		{"an empty token", token(257, "token_bytes", ""), malformed, "token 257 is not base64"},
		{"a byte out of place", token(9, "token_bytes", "AA=="), malformed, "token 9 is not the byte 9"},
		{"a token twice", func(file dict) {
			list := file["vocab"].([]any)
			list[257].(dict)["token_bytes"] = list[256].(dict)["token_bytes"]
		}, malformed, "token 257 is repeated"},
		{"no beginning", func(file dict) { file["special_tokens"] = []any{} }, malformed, "without <s>"},
		{"special tokens that are none", func(file dict) { file["special_tokens"] = dict{} }, malformed, "special_tokens"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			file := tekkenFile(gpt2Pattern, tokens, 0)
			c.change(file)
			_, err := tokenize.Parse(strings.NewReader(asJSON(t, file)))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v about %q", err, c.kind, c.want)
			}
		})
	}
	whole := asJSON(t, tekkenFile(gpt2Pattern, tokens[:260], 0))
	for n := range 200 {
		if _, err := tokenize.Parse(strings.NewReader(whole[:len(whole)*n/200])); err == nil {
			t.Fatalf("cut after %d of 200 parts it loads", n)
		}
	}
	if _, err := tokenize.Parse(strings.NewReader(strings.Replace(whole, `"vocab":`, `"vocab":[],"vocab":`, 1))); !errors.Is(err, malformed) {
		t.Errorf("two vocabs: %v", err)
	}
}

func FuzzTekken(f *testing.F) {
	r := rand.New(rand.NewPCG(2, 43))
	base := tekkenFile(gpt2Pattern, tekkenTokens(r)[:300], 3)
	f.Add("config", asJSON(f, base["config"]))
	f.Add("vocab", asJSON(f, base["vocab"]))
	f.Add("special_tokens", asJSON(f, base["special_tokens"]))
	f.Add("normalizer", "null")
	f.Fuzz(func(t *testing.T, name, value string) {
		file := maps.Clone(base)
		delete(file, name)
		text := strings.TrimSuffix(asJSON(t, file), "}") + "," + asJSON(t, name) + ":" + value + "}"
		checkParseMemory(t, "fuzzed", []byte(text))
		bpe, err := tokenize.Parse(bytes.NewReader([]byte(text)))
		if err != nil {
			checkParseError(t, err)
			return
		}
		encode(t, bpe, " the [INST] y\n1 \xff日本", true)
	})
}

// TestTekkenFolder: a folder without tokenizer.json uses its tekken.json, whatever is in
// tokenizer_config.json.
func TestTekkenFolder(t *testing.T) {
	c := newHubCache(t)
	c.ref("models--m", "main", oneCommit)
	write := func(name, content string) {
		c.write([]byte(content), "models--m", "snapshots", oneCommit, name)
	}
	write("tekken.json", asJSON(t, tekkenFile(gpt2Pattern, tekkenTokens(rand.New(rand.NewPCG(4, 43))), 0)))
	write("tokenizer_config.json", `{"tokenizer_class": "MistralCommonBackend"}`)
	dir, err := tokenize.Hub{Dir: c.dir}.Find(t.Context(), "m")
	must(t, err)
	pool, err := tokenize.NewPool(tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return dir, nil }})
	must(t, err)
	defer pool.Close()
	fromDir, err := tokenize.Load(dir)
	must(t, err)
	pretrained, err := tokenize.LoadPretrained(dir, "0.31")
	must(t, err)
	for _, got := range []tokenize.Tokenizer{fromDir, pretrained, pool.Tokenizer("m")} {
		if ids := encode(t, got, "!", true); !slices.Equal(ids, []uint32{1, tekkenControls + '!'}) {
			t.Errorf("%T: %v", got, ids)
		}
	}
	if _, err := tokenize.LoadPretrained(dir, "0.1"); err == nil {
		t.Error("an unknown version is accepted")
	}
	write("tokenizer.json", string(readTiny(t)))
	if _, err := tokenize.LoadPretrained(dir); !errors.Is(err, tokenize.ErrUnsupported) || !strings.Contains(err.Error(), "MistralCommonBackend") {
		t.Errorf("with a tokenizer.json: %v", err)
	}
}
