package tokenize_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// pretrained writes tiny.json, with sections replaced, and a config into a folder.
func pretrained(tb testing.TB, sections, config dict) string {
	tb.Helper()
	dir := tb.TempDir()
	text, err := json.Marshal(config)
	must(tb, err)
	for name, data := range map[string][]byte{
		"tokenizer.json": variant(tb, sections, nil), "tokenizer_config.json": text,
	} {
		must(tb, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return dir
}

func configOf(class string, changes dict) dict {
	c := dict{"tokenizer_class": class, "chat_template": "{{ messages }}", "model_max_length": 1e30}
	for k, v := range changes {
		c[k] = v
	}
	return c
}

func configToken(content string, changes dict) dict {
	a := addedToken(0, content, changes)
	delete(a, "id")
	return a
}

// endID is the id of <|end|>, the only added token of tiny.json.
const endID = tinySize

func TestLoadPretrained(t *testing.T) {
	bos := dict{"post_processor": template(beginPiece, textPiece)} // the token 1
	for _, c := range []struct {
		name     string
		sections dict
		config   dict
		text     string
		want     []uint32
	}{
		{"class that keeps the file's tokens", bos, configOf("PreTrainedTokenizerFast", nil), "a", []uint32{1, 97}},
		{"class without Fast", bos, configOf("Qwen2Tokenizer", nil), "a", []uint32{1, 97}},
		{"class with a template", nil, configOf("LlamaTokenizerFast", dict{"add_bos_token": true, "bos_token": "<|end|>"}), "a", []uint32{endID, 97}},
		{"both ends", nil, configOf("LlamaTokenizer", dict{
			"add_bos_token": true, "bos_token": "<|end|>", "add_eos_token": true,
			"eos_token": dict{"__type": "AddedToken", "content": "<|end|>", "lstrip": false, "normalized": true, "rstrip": false, "single_word": false},
		}), "b", []uint32{endID, 98, endID}},
		{"no token", bos, configOf("LlamaTokenizer", dict{"add_bos_token": false, "bos_token": "<|end|>"}), "a", []uint32{97}},
		{"named token that is not there", nil, configOf("GPT2Tokenizer", dict{"pad_token": "<pad>"}), "<pad>", []uint32{endID + 1}},
		{"additional special tokens", nil, configOf("GPT2Tokenizer", dict{
			"additional_special_tokens": []any{"<x>", "<y>", dict{"content": "<|end|>"}},
		}), "<x><y><|end|>", []uint32{endID + 1, endID + 2, endID}},
		{"tokens of the model's own", nil, configOf("GPT2Tokenizer", dict{
			"extra_special_tokens": dict{"image_token": "<x>"},
		}), "<x>", []uint32{endID + 1}},
		{"token of the decoder", nil, configOf("GPT2Tokenizer", dict{
			"added_tokens_decoder": dict{"654": configToken("<b>", nil), "655": configToken("<a>", nil)},
		}), "<a><b>", []uint32{endID + 2, endID + 1}},
		{"truncation and padding, which transformers turns off", dict{
			"truncation": dict{"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
			"padding":    dict{"strategy": dict{"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": nil, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
		}, configOf("PreTrainedTokenizerFast", nil), "ab<|end|>", []uint32{97, 98, endID}},
		{"flags of the decoder", nil, configOf("GPT2Tokenizer", dict{
			"added_tokens_decoder": dict{"653": configToken("<|end|>", dict{"rstrip": true, "special": true})},
		}), "<|end|>  a", []uint32{endID, 97}},
		{"flags of a named token", nil, configOf("GPT2Tokenizer", dict{
			"eos_token": "<|end|>", "additional_special_tokens": []any{"<|end|>"},
			"added_tokens_decoder": dict{"653": configToken("<|end|>", dict{"rstrip": true, "special": true})},
		}), "<|end|>  a", []uint32{endID, 97}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bpe, err := tokenize.LoadPretrained(pretrained(t, c.sections, c.config))
			must(t, err)
			if got := encode(t, bpe, c.text, true); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestLoadPretrainedRefusals(t *testing.T) {
	bos := dict{"post_processor": template(beginPiece, textPiece)}
	for _, c := range []struct {
		name     string
		sections dict
		config   dict
		kind     error
		want     string
	}{
		{"no class", nil, dict{}, tokenize.ErrUnsupported, "tokenizer_class"},
		{"class", nil, configOf("KimiTokenizer", nil), tokenize.ErrUnsupported, `tokenizer_class "KimiTokenizer"`},
		{"Python", nil, configOf("LlamaTokenizer", dict{"auto_map": dict{"AutoTokenizer": []any{"x.y", nil}}}), tokenize.ErrUnsupported, "auto_map"},
		{"split_special_tokens", nil, configOf("GPT2Tokenizer", dict{"split_special_tokens": true}), tokenize.ErrUnsupported, "split_special_tokens"},
		{"flag", nil, configOf("GPT2Tokenizer", dict{"add_bos_token": "yes"}), tokenize.ErrMalformed, `"add_bos_token"`},
		{"token", nil, configOf("GPT2Tokenizer", dict{"bos_token": 5}), tokenize.ErrMalformed, "bos_token"},
		{"decoder", nil, configOf("GPT2Tokenizer", dict{"added_tokens_decoder": []any{}}), tokenize.ErrMalformed, "added_tokens_decoder"},
		{"id", nil, configOf("GPT2Tokenizer", dict{"added_tokens_decoder": dict{"-1": configToken("<b>", nil)}}), tokenize.ErrMalformed, "added_tokens_decoder"},
		{"id of another place", nil, configOf("GPT2Tokenizer", dict{"added_tokens_decoder": dict{"700": configToken("<b>", nil)}}), tokenize.ErrMalformed, "its place gives it 654"},
		{"default that the versions differ on", nil, configOf("LlamaTokenizer", dict{"bos_token": "<|end|>"}), tokenize.ErrUnsupported, "transformers 4"},
		{"setting that the versions differ on", bos, configOf("GPT2Tokenizer", dict{"add_bos_token": false}), tokenize.ErrUnsupported, "transformers 4"},
		{"setting that is null in one version and there in the other", bos, configOf("GPT2Tokenizer", dict{"add_bos_token": nil}), tokenize.ErrUnsupported, "transformers 4"},
		{"no token to begin with", nil, configOf("LlamaTokenizer", dict{"add_bos_token": true}), tokenize.ErrUnsupported, "does not name"},
		{"token with flags", nil, configOf("GPT2Tokenizer", dict{"mask_token": dict{"content": "<m>", "lstrip": true}}), tokenize.ErrUnsupported, `"<m>"`},
		{"slow", nil, configOf("GPT2Tokenizer", dict{"from_slow": true}), tokenize.ErrUnsupported, "tokenizer.model"},
		{"slow by its prefix space", nil, configOf("LlamaTokenizer", dict{"add_prefix_space": false, "add_bos_token": false}), tokenize.ErrUnsupported, "tokenizer.model"},
		{"prefix space", nil, configOf("GPT2Tokenizer", dict{"add_prefix_space": true}), tokenize.ErrUnsupported, "add_prefix_space true"},
		{
			"prefix space by default", dict{"pre_tokenizer": byteLevel(dict{"add_prefix_space": true})},
			configOf("GPT2Tokenizer", nil), tokenize.ErrUnsupported, "add_prefix_space false",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tokenize.LoadPretrained(pretrained(t, c.sections, c.config))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for half, name := range map[string]string{"\xff": "not UTF-8", `\ud800`: "half a surrogate pair"} {
		dir := pretrained(t, nil, nil)
		write(t, dir, "tokenizer_config.json", `{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"654": {"content": "<`+half+`>",
			"lstrip": false, "rstrip": false, "single_word": false, "normalized": false, "special": true}}}`)
		if _, err := tokenize.LoadPretrained(dir); !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), name) {
			t.Errorf("a token with %q: got %v", half, err)
		}
	}
	lost := pretrained(t, nil, configOf("GPT2Tokenizer", nil))
	config := filepath.Join(lost, "tokenizer_config.json")
	must(t, errors.Join(os.Remove(config), os.Symlink("gone", config)))
	pool, err := tokenize.NewPool(tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return lost, nil }})
	must(t, err)
	defer pool.Close()
	if err := pool.Preload(t.Context(), "m"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a config whose link leads nowhere: got %v", err)
	}
	if _, err := tokenize.LoadPretrained(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no tokenizer files: no tokenizer_config.json, and no tokenizer.json in ") {
		t.Errorf("empty folder: got %v", err)
	}
}

// The configs of the nine families change their tokenizer.json only for DeepSeek-V3: it adds a
// token at the beginning.
func TestLoadPretrainedOfFamilies(t *testing.T) {
	families := tried()
	if !*long {
		families = []string{"deepseekv3", "llama2"}
	}
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			bpe, err := tokenize.LoadPretrained(testdata.Path(t, "the config of "+family, "tokens", family))
			must(t, err)
			want := encode(t, loadOutside(t, family), "the harbour", true)
			if family == "deepseekv3" {
				want = append([]uint32{0}, want...)
			}
			if got := encode(t, bpe, "the harbour", true); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}
