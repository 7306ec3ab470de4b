package tokenize_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

func write(tb testing.TB, dir, name, content string) {
	tb.Helper()
	must(tb, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

// ofType is pretrained with a config.json, or with none if modelType is "none".
func ofType(tb testing.TB, sections, config dict, modelType string) string {
	tb.Helper()
	dir := pretrained(tb, sections, config)
	if modelType != "none" {
		write(tb, dir, "config.json", `{"model_type": `+modelType+`}`)
	}
	return dir
}

// splitting is a tokenizer.json that splits at each h, as no class of transformers 5 does. With its
// pipeline the token "he" never comes out.
func splitting(steps ...any) dict {
	if steps == nil {
		steps = []any{split(dict{"pattern": dict{"String": "h"}}), byteLevel(nil)}
	}
	return dict{"pre_tokenizer": dict{"type": "Sequence", "pretokenizers": steps}}
}

// The class, the type and the engine's version choose the pipeline.
func TestTransformers5MakesPipelines(t *testing.T) {
	const (
		asItStands = "as it stands"
		byClass    = "by the class"
	)
	newest, old := "", "0.19.0"
	made := encode(t, load(t, variant(t, nil, nil)), "the", false)
	given := encode(t, load(t, variant(t, splitting(), nil)), "the", false)
	if slices.Equal(made, given) {
		t.Fatal("both have the same ids: this tests nothing")
	}
	for _, c := range []struct {
		class, modelType, engine string
		want                     string // or parts of an error
	}{
		{"GPT2Tokenizer", `"gpt2"`, newest, byClass},
		{"GPT2Tokenizer", `"gpt2"`, "0.19.1", byClass},
		{"GPT2Tokenizer", `"gpt2"`, old, asItStands},
		{"CodeGenTokenizer", `"phi"`, newest, byClass},
		{"GPT2Tokenizer", `"llama"`, newest, byClass}, // no class is registered for the type, or another one
		{"GPT2Tokenizer", `""`, newest, byClass},
		{"GPT2Tokenizer", `null`, newest, byClass},
		{"PreTrainedTokenizerFast", `"gpt2"`, newest, asItStands},
		{"TokenizersBackend", `"llama"`, newest, asItStands},
		{"BloomTokenizerFast", `"bloom"`, newest, asItStands},
		// The config is wrong for all releases, or for the newest.
		{"LlamaTokenizerFast", `"deepseek_v3"`, newest, asItStands},
		{"LlamaTokenizerFast", `"deepseek_v3"`, "0.20", asItStands},
		{"GPT2Tokenizer", `"phi3"`, "0.19.1", asItStands},
		{"GPT2Tokenizer", `"granite"`, newest, asItStands},
		{"GPT2Tokenizer", `"granite"`, old, asItStands},
		{"GPT2Tokenizer", `"granite"`, "0.20", `GPT2Tokenizer "granite" ByteLevel|Split, ByteLevel|some of its releases`},
		{"LlamaTokenizer", `"mistral"`, newest, asItStands},
		{"LlamaTokenizer", `"mistral"`, "0.20", `LlamaTokenizer "mistral" Metaspace|some of its releases`},
		{"GPT2Tokenizer", `"internvl_chat"`, newest, byClass},
		{"GPT2Tokenizer", `"internvl_chat"`, "0.20", `GPT2Tokenizer "internvl_chat" some of its releases`},
		{"PreTrainedTokenizerFast", `"qwen2"`, newest, byClass}, // a Qwen2Tokenizer
		{"Qwen2Tokenizer", `"qwen2"`, "0.20", byClass},
		{"GPT2Tokenizer", `"qwen2"`, "0.20", `GPT2Tokenizer "qwen2" some of its releases`},
		// No config.json.
		{"GPT2Tokenizer", "none", newest, byClass},
		{"GPT2Tokenizer", "none", old, asItStands},
		{"Qwen2Tokenizer", "none", newest, asItStands},
		{"PreTrainedTokenizerFast", "none", newest, asItStands},
		// Pipelines that the package does not build.
		{"LlamaTokenizerFast", `"llama"`, newest, `LlamaTokenizer "llama" Metaspace|Split, ByteLevel|another kind`},
		{"RobertaTokenizer", `"roberta"`, newest, `RobertaTokenizer "roberta" ByteLevel|Split, ByteLevel`},
		{"RobertaTokenizer", `"roberta"`, old, asItStands},
		{"GPT2Tokenizer", `"gpt2"`, "six", `"six" is no version of vLLM`},
		{"GPT2Tokenizer", `5`, newest, `"model_type" is not a string`},
	} {
		t.Run(strings.Join([]string{c.class, c.modelType, c.engine}, " "), func(t *testing.T) {
			config := configOf(c.class, nil)
			if strings.HasPrefix(c.class, "Llama") {
				config["add_bos_token"] = false
			}
			dir := ofType(t, splitting(), config, c.modelType)
			bpe, err := tokenize.LoadPretrained(dir, c.engine)
			if c.want != asItStands && c.want != byClass {
				if err == nil {
					t.Fatalf("it is loaded: %v", encode(t, bpe, "the", false))
				}
				for _, part := range strings.FieldsFunc(c.want, func(r rune) bool { return r == '|' }) {
					if !containsAll(err.Error(), strings.Fields(part)) {
						t.Errorf("got %v, want %q", err, part)
					}
				}
				return
			}
			must(t, err)
			want := made
			if c.want == asItStands {
				want = given
			}
			if got := encode(t, bpe, "the", false); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func containsAll(s string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s, part) })
}

func load(tb testing.TB, file []byte) *tokenize.BPE {
	tb.Helper()
	bpe, err := tokenize.Parse(strings.NewReader(string(file)))
	must(tb, err)
	return bpe
}

// The pipeline of each class, against a tokenizer.json that has the same one.
func TestPipelinesOfClasses(t *testing.T) {
	nfc := dict{"type": "NFC"}
	const qwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	two := func(steps ...any) dict { return dict{"type": "Sequence", "pretokenizers": steps} }
	spaces := func(scheme string) dict {
		return dict{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}
	}
	underlined := dict{"type": "Replace", "pattern": dict{"String": " "}, "content": "▁"}
	llama2 := dict{"pre_tokenizer": nil, "normalizer": dict{"type": "Sequence", "normalizers": []any{dict{"type": "Prepend", "prepend": "▁"}, underlined}}}
	noBOS := dict{"add_bos_token": false, "unk_token": "<unk>"}
	with := func(d, more dict) dict {
		all := dict{}
		for _, from := range []dict{d, more} {
			for k, v := range from {
				all[k] = v
			}
		}
		return all
	}
	pieces := pieceModel()
	for _, c := range []struct {
		class         string
		config        dict
		file          dict // sections of the file
		made          dict // sections of the class
		model, theirs dict // the model of the file, and of the class
	}{
		{"GPT2Tokenizer", nil, splitting(), dict{}, dict{"ignore_merges": true}, dict{"ignore_merges": false}},
		{"GPT2Tokenizer", dict{"add_prefix_space": true}, splitting(), dict{"pre_tokenizer": byteLevel(dict{"add_prefix_space": true})}, nil, nil},
		{"GPT2Tokenizer", nil, dict{"normalizer": nfc}, dict{}, nil, nil},
		{"CodeGenTokenizer", nil, splitting(), dict{}, nil, nil},
		{"GPTNeoXTokenizer", dict{"add_bos_token": false}, splitting(), dict{"normalizer": nfc}, nil, nil},
		{"CohereTokenizer", dict{"add_bos_token": false}, dict{}, dict{
			"normalizer": nfc, "pre_tokenizer": two(dict{"type": "Digits", "individual_digits": true}, byteLevel(nil)),
		}, nil, nil},
		{"Qwen2Tokenizer", nil, dict{}, dict{
			"normalizer":    nfc,
			"pre_tokenizer": two(split(dict{"pattern": dict{"Regex": qwen}}), byteLevel(dict{"use_regex": false})),
		}, nil, nil},
		{"LlamaTokenizer", noBOS, llama2, dict{"pre_tokenizer": spaces("first")}, pieces, with(pieces, dict{"unk_token": nil})},
		{"LlamaTokenizer", with(noBOS, dict{"legacy": false}), llama2, dict{"pre_tokenizer": spaces("first")}, pieces, pieces},
		{"LlamaTokenizer", with(noBOS, dict{"legacy": true}), llama2, dict{"pre_tokenizer": spaces("always")}, pieces, pieces},
		{"GemmaTokenizer", noBOS, llama2, dict{
			"normalizer": underlined, "pre_tokenizer": dict{"type": "Split", "pattern": dict{"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
		}, pieces, pieces},
	} {
		t.Run(fmt.Sprint(c.class, c.config), func(t *testing.T) {
			dir := pretrained(t, nil, configOf(c.class, c.config))
			write(t, dir, "tokenizer.json", string(variant(t, c.file, c.model)))
			write(t, dir, "config.json", `{"model_type": "of none"}`)
			bpe, err := tokenize.LoadPretrained(dir)
			must(t, err)
			want := load(t, variant(t, c.made, c.theirs))
			differs := false
			for _, text := range []string{"the", " a<|end|> b  a", "in 1999 and 12", "A\u030a he's", "a<|end|>b", "  the\n\n hour", "aba ab", "☺ x"} {
				got, want := encode(t, bpe, text, true), encode(t, want, text, true)
				if !slices.Equal(got, want) {
					t.Errorf("%q: got %v, want %v", text, got, want)
				}
				differs = differs || !slices.Equal(got, encode(t, load(t, variant(t, c.file, c.model)), text, true))
			}
			if !differs {
				t.Error("the class makes what the file has: this tests nothing")
			}
		})
	}
}

// pieceModel is a model like SentencePiece's, with byte fallback.
func pieceModel() dict {
	vocab := dict{"<unk>": 0}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = b + 1
	}
	for _, token := range []string{"▁", "a", "b", "t", "h", "e", "▁a", "▁t", "he", "▁the", "ab", "aba"} {
		vocab[token] = len(vocab)
	}
	for id := len(vocab); id < tinySize; id++ { // <|end|> keeps its id
		vocab[fmt.Sprint("unused", id)] = id
	}
	return dict{
		"vocab": vocab, "merges": []any{"▁ a", "▁ t", "h e", "▁t he", "a b", "ab a"},
		"unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
	}
}

// A class drops the added tokens that added_tokens_decoder does not have.
func TestAddedTokensThatAClassForgets(t *testing.T) {
	config := configOf("GPT2Tokenizer", dict{"added_tokens_decoder": dict{}})
	_, err := tokenize.LoadPretrained(ofType(t, splitting(), config, `"gpt2"`))
	if !errors.Is(err, tokenize.ErrUnsupported) || !containsAll(err.Error(), []string{`"<|end|>"`, "GPT2Tokenizer", `"gpt2"`}) {
		t.Errorf("got %v", err)
	}
	if _, err = tokenize.LoadPretrained(ofType(t, nil, config, `"gpt2"`)); err != nil {
		t.Errorf("a file with the class's pipeline: %v", err)
	}
	gemma := ofType(t, nil, configOf("GemmaTokenizer", dict{"add_bos_token": false}), `"mistral"`)
	write(t, gemma, "tokenizer.json", string(variant(t, dict{
		"normalizer":    dict{"type": "Sequence", "normalizers": []any{dict{"type": "Replace", "pattern": dict{"String": " "}, "content": "▁"}}},
		"pre_tokenizer": dict{"type": "Split", "pattern": dict{"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
	}, pieceModel())))
	if _, err := tokenize.LoadPretrained(gemma, "0.20"); err != nil {
		t.Errorf("a file that has the class's pipeline in all releases: %v", err)
	}
	if _, err := tokenize.LoadPretrained(t.TempDir(), "0.20", "0.20"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("two engines: %v", err)
	}
}

// A pool uses the engine of each name, and one tokenizer for all names with the same ids.
func TestPoolOfEngines(t *testing.T) {
	dir := ofType(t, splitting(), configOf("GPT2Tokenizer", nil), `"gpt2"`)
	engines := map[string]string{"old": "0.11", "older": "0.10", "new": "0.20", "newest": ""}
	pool, err := tokenize.NewPool(tokenize.PoolConfig{
		Find:   func(context.Context, string) (string, error) { return dir, nil },
		Engine: func(model string) string { return engines[model] },
	})
	must(t, err)
	defer pool.Close()
	for model, engine := range engines {
		bpe, err := tokenize.LoadPretrained(dir, engine)
		must(t, err)
		held, err := pool.Tokenizer(model).(tokenize.Holder).Hold(t.Context(), "the")
		must(t, err)
		if held.Identity() != bpe.Identity() || !slices.Equal(encode(t, held, "the", true), encode(t, bpe, "the", true)) {
			t.Errorf("%s: the pool has another tokenizer than LoadPretrained", model)
		}
	}
	if s := pool.Stats(); s.Tokenizers != 2 {
		t.Errorf("%d tokenizers, want one for 4.57 and one for 5", s.Tokenizers)
	}
}

// The layout of 2023: added_tokens.json and special_tokens_map.json.
func TestOlderLayout(t *testing.T) {
	for _, c := range []struct {
		name          string
		config        dict
		added, mapped string
		text          string
		want          []uint32
		wantErr       string
	}{
		{"ids in their order", nil, `{"<b>": 655, "<a>": 654}`, "", "<a><b>", []uint32{654, 655}, ""},
		{"a token that tokenizer.json has", nil, `{"<|end|>": 653, "<a>": 654}`, "", "<|end|><a>", []uint32{653, 654}, ""},
		{"an id that tokenizer.json has", nil, `{"<a>": 653}`, "", "<|end|>", []uint32{653}, ""},
		{"a token of the vocabulary", nil, `{"her": ` + fmt.Sprint(tinyID(t, "her")) + `}`, "", "her", []uint32{tinyID(t, "her")}, ""},
		{"a map", nil, "", `{"bos_token": {"content": "<|end|>", "lstrip": false, "normalized": true, "rstrip": false, "single_word": false}, "additional_special_tokens": ["<x>"]}`, "<x><|end|>", []uint32{654, 653}, ""},
		{"a map before the config", dict{"pad_token": "<p>"}, "", `{"pad_token": "<q>"}`, "<q>", []uint32{654}, ""},
		{"both", dict{"pad_token": "<p>"}, `{"<p>": 654}`, `{"pad_token": "<p>"}`, "<p>", []uint32{654}, ""},
		{"a decoder beside them", dict{"added_tokens_decoder": dict{}}, `{"<a>": 654}`, `{"pad_token": "<q>"}`, "<|end|>", []uint32{653}, ""},
		{"an id of another place", nil, `{"<a>": 700}`, "", "", nil, "its place gives it 654"},
		{"no id", nil, `{"<a>": "654"}`, "", "", nil, `token "<a>" has id`},
		{"no object", nil, `[]`, "", "", nil, "added_tokens.json: "},
		{"cut off", nil, "", `{"bos_token": `, "", nil, "special_tokens_map.json: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := pretrained(t, nil, configOf("PreTrainedTokenizerFast", c.config))
			plain, err := tokenize.LoadPretrained(dir)
			must(t, err)
			for name, content := range map[string]string{"added_tokens.json": c.added, "special_tokens_map.json": c.mapped} {
				if content != "" {
					write(t, dir, name, content)
				}
			}
			bpe, err := tokenize.LoadPretrained(dir)
			if c.wantErr != "" {
				if !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got %v, want %q", err, c.wantErr)
				}
				return
			}
			must(t, err)
			if got := encode(t, bpe, c.text, true); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if same := plain.Identity() == bpe.Identity(); same != (c.config["added_tokens_decoder"] != nil) {
				t.Errorf("the identity is that without the files: %t", same)
			}
		})
	}
}

// A token of added_tokens.json without a role is matched in the normalized text.
func TestOlderTokensAreNormalized(t *testing.T) {
	for mapped, want := range map[string]int{`{}`: 1, `{"pad_token": "<A>"}`: 3} {
		dir := pretrained(t, dict{"normalizer": dict{"type": "Replace", "pattern": dict{"String": "A"}, "content": "a"}}, configOf("PreTrainedTokenizerFast", nil))
		write(t, dir, "added_tokens.json", `{"<A>": 654}`)
		write(t, dir, "special_tokens_map.json", mapped)
		bpe, err := tokenize.LoadPretrained(dir)
		must(t, err)
		if got := encode(t, bpe, "<a>", true); len(got) != want {
			t.Errorf("%s: got %v, want %d tokens", mapped, got, want)
		}
	}
}

func tinyID(tb testing.TB, token string) uint32 {
	tb.Helper()
	file := fromJSON[struct {
		Model struct{ Vocab map[string]uint32 }
	}](tb, readTiny(tb))
	id, ok := file.Model.Vocab[token]
	if !ok {
		tb.Fatalf("tiny.json has no token %q", token)
	}
	return id
}

// Ids of the official library for both versions of transformers.
func TestTokensOfBothTransformers(t *testing.T) {
	dir := testdata.Path(t, "ids of transformers 4.57 and 5", "field", "tokens-v5")
	f, err := os.Open(filepath.Join(dir, "expected.jsonl"))
	must(t, err)
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); rows++ {
		var row struct {
			Text string
			Ids4 []uint32 `json:"ids_4.57"`
			Ids5 []uint32 `json:"ids_5"`
		}
		must(t, json.Unmarshal(lines.Bytes(), &row))
		for engine, want := range map[string][]uint32{"": row.Ids5, "main": row.Ids5, "0.19.1": row.Ids5, "0.28": row.Ids5, "0.19": row.Ids4, "0.9": row.Ids4} {
			bpe, err := tokenize.LoadPretrained(dir, engine)
			must(t, err)
			if got := encode(t, bpe, row.Text, true); !slices.Equal(got, want) {
				t.Errorf("engine %q, %q: got %v, want %v", engine, row.Text, got, want)
			}
		}
	}
	if rows == 0 {
		t.Error("no rows")
	}
}
