package tokenize_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

func zip(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		tb.Fatal(err)
	}
	must(tb, z.Close())
	return b.Bytes()
}

func TestLoadFindsTheFile(t *testing.T) {
	tiny := readTiny(t)
	for _, c := range []struct {
		name, file, load string
		data             []byte
	}{
		{"file", "any.json", "any.json", tiny},
		{"gzip'd file", "any.json.gz", "any.json.gz", zip(t, tiny)},
		{"gzip'd file of another name", "tokenizer.json", "tokenizer.json", zip(t, tiny)},
		{"folder", "tokenizer.json", "", tiny},
		{"folder with a gzip'd file", "tokenizer.json.gz", "", zip(t, tiny)},
		{"plain file with a gzip'd file's name", "tokenizer.json.gz", "", tiny},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, c.file), c.data, 0o600))
			bpe, err := tokenize.Load(filepath.Join(dir, c.load))
			must(t, err)
			if got, want := encode(t, bpe, "the wall", true), encode(t, loadTiny(t), "the wall", true); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	pointer := filepath.Join(t.TempDir(), "tokenizer.json")
	must(t, os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9085657\n"), 0o600))
	if _, err := tokenize.Load(pointer); !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), pointer) || !strings.Contains(err.Error(), "git lfs pull") {
		t.Errorf("a git LFS pointer: %v", err)
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none.json")} {
		if _, err := tokenize.Load(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestParsePassesReadErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	if _, err := tokenize.Parse(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type dict = map[string]any

func byteLevel(changes dict) dict {
	b := dict{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	for k, v := range changes {
		b[k] = v
	}
	return b
}

func split(changes dict) dict {
	s := dict{"type": "Split", "pattern": dict{"Regex": llama3Pattern}, "behavior": "Isolated", "invert": false}
	for k, v := range changes {
		s[k] = v
	}
	return s
}

func sequence(items ...any) dict { return dict{"type": "Sequence", "pretokenizers": items} }

func addedToken(id int, content string, changes dict) dict {
	a := dict{
		"id": id, "content": content, "single_word": false, "lstrip": false,
		"rstrip": false, "normalized": false, "special": false,
	}
	for k, v := range changes {
		a[k] = v
	}
	return a
}

func template(single ...any) dict {
	return dict{
		"type": "TemplateProcessing", "single": single, "pair": []any{},
		"special_tokens": dict{"<b>": dict{"id": "<b>", "ids": []any{1}, "tokens": []any{"<b>"}}},
	}
}

// special returns a template with a special token of these fields.
func special(fields any) dict {
	t := template(textPiece, beginPiece)
	t["special_tokens"] = dict{"<b>": fields}
	return t
}

func manyIDs() dict {
	t := special(dict{"ids": slices.Repeat([]any{1}, 600)})
	t["single"] = []any{beginPiece, textPiece, beginPiece}
	return t
}

var (
	textPiece  = dict{"Sequence": dict{"id": "A", "type_id": 0}}
	beginPiece = dict{"SpecialToken": dict{"id": "<b>", "type_id": 0}}
)

// tinySize is the size of tiny.json's vocabulary.
const tinySize = 653

// Unsupported and malformed parts are named in the error.
func TestRefusals(t *testing.T) {
	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	section := func(name string, v any) []byte { return variant(t, dict{name: v}, nil) }
	model := func(name string, v any) []byte { return variant(t, nil, dict{name: v}) }
	added := func(tokens ...any) []byte { return section("added_tokens", tokens) }
	post := func(v any) []byte { return section("post_processor", v) }
	vocab := func(token string, id any) []byte {
		v := fromJSON[struct{ Model struct{ Vocab dict } }](t, readTiny(t)).Model.Vocab
		v[token] = id
		return model("vocab", v)
	}
	unknown := func(token string) []byte {
		v := fromJSON[struct{ Model struct{ Vocab dict } }](t, readTiny(t)).Model.Vocab
		delete(v, "Ā") // the byte 0x00
		return variant(t, dict{"added_tokens": nil}, dict{"vocab": v, "merges": []any{}, "unk_token": token})
	}

	for _, c := range []struct {
		name string
		file []byte
		kind error
		want string
	}{
		{"empty", nil, malformed, "not JSON"},
		{"text", []byte("hello"), malformed, "not an object"},
		{"empty object", []byte("{}"), malformed, "model is missing"},
		{"a section twice", []byte(`{"version":"1.0","version":"1.0"}`), malformed, `two fields "version"`},
		{"model twice", []byte(`{"model":{"vocab":{},"merges":[]},"model":{}}`), malformed, `two fields "model"`},
		{"nested deep", []byte(`{"padding":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}"), malformed, "not JSON"},
		{"nested without end", []byte(`{"padding":` + strings.Repeat("[", tokenize.MaxSection+1)), malformed, "a section has more than"},
		{"more after the file", append(readTiny(t), '1'), malformed, "not JSON"},
		{"not UTF-8", []byte("{\"version\":\"\xff\"}"), malformed, "not UTF-8"},
		{"gzip'd nothing", zip(t, nil), malformed, "not JSON"},
		{"gzip cut short", zip(t, readTiny(t))[:2000], malformed, "gzip"},
		{"gzip with a bad sum", append(zip(t, readTiny(t))[:len(zip(t, readTiny(t)))-8], make([]byte, 8)...), malformed, "gzip"},
		{"gzip and more", append(zip(t, readTiny(t)), "more"...), malformed, "gzip"},
		{"unknown section", section("extra", 1), unsupported, `field "extra"`},
		{"section in another case", section("Normalizer", nil), unsupported, `field "Normalizer"`},

		{"version", section("version", "2.0"), unsupported, `version "2.0"`},
		{"version not text", section("version", 1), malformed, `"version"`},
		{"truncation", section("truncation", dict{"max_length": 512}), unsupported, "truncation is"},
		{"padding", section("padding", dict{"strategy": dict{"Fixed": 8}}), unsupported, "padding is"},
		{"padding field", section("padding", dict{"strategy": "BatchLongest", "x": 1}), unsupported, `padding field "x"`},
		{"padding not an object", section("padding", 1), malformed, "padding is not an object"},
		{"decoder", section("decoder", dict{"type": "Other"}), unsupported, `decoder "Other"`},
		{"decoder not an object", section("decoder", 1), malformed, "decoder is not an object"},

		{"post-processor field", post(byteLevel(dict{"x": 1})), unsupported, `post_processor ByteLevel field "x"`},
		{"two templates", post(dict{"type": "Sequence", "processors": []any{template(textPiece), template(textPiece)}}), unsupported, "second TemplateProcessing"},
		{"sequence in sequence", post(dict{"type": "Sequence", "processors": []any{dict{"type": "Sequence", "processors": []any{}}}}), unsupported, `"Sequence"`},
		{"template without text", post(template(beginPiece)), unsupported, "0 times"},
		{"template with text twice", post(template(textPiece, textPiece)), unsupported, "2 times"},
		{"template with a second text", post(template(dict{"Sequence": dict{"id": "B", "type_id": 0}})), unsupported, `"B"`},
		{"template with unknown token", post(template(textPiece, dict{"SpecialToken": dict{"id": "<c>", "type_id": 0}})), malformed, `"<c>"`},
		{"template piece", post(template(textPiece, dict{"Other": dict{}})), unsupported, `field "Other"`},
		{"template piece of two", post(template(dict{"Sequence": dict{}, "SpecialToken": dict{}})), malformed, "2 values"},
		{"template piece not an object", post(template("$A")), malformed, "not an object"},
		{"sequence field of post-processors", post(dict{"type": "Sequence", "processors": []any{}, "x": 1}), unsupported, `field "x"`},
		{"sequence not of an array", post(dict{"type": "Sequence", "processors": 1}), malformed, `"processors"`},
		{"sequence of null post-processors", post(dict{"type": "Sequence", "processors": []any{nil}}), unsupported, "post_processor null"},
		{"post-processor not an object", post(1), malformed, "post_processor is not an object"},
		{"template field", post(dict{"type": "TemplateProcessing", "x": 1}), unsupported, `TemplateProcessing field "x"`},
		{"template without pieces", post(dict{"type": "TemplateProcessing"}), malformed, `"single"`},
		{"template without tokens", post(dict{"type": "TemplateProcessing", "single": []any{}}), malformed, "special_tokens is missing"},
		{"template token not an object", post(template(textPiece, dict{"SpecialToken": 1})), malformed, "not an object"},
		{"template token field", post(template(textPiece, dict{"SpecialToken": dict{"id": "<b>", "x": 1}})), unsupported, `field "x"`},
		{"template id", post(special(dict{"ids": []any{-1}})), malformed, `"<b>" has an id`},
		{"template ids", post(special(dict{"ids": 1})), malformed, `"ids"`},
		{"template ids field", post(special(dict{"x": 1})), unsupported, `field "x"`},
		{"template ids not an object", post(special(nil)), malformed, "not an object"},
		{"template ids too many", post(manyIDs()), malformed, "adds more than"},
		{"template too long", post(template(slices.Repeat([]any{beginPiece}, 2000)...)), malformed, "more than"},

		{"no model", section("model", nil), malformed, "model is not an object"},
		{"model type", model("type", "Unigram"), unsupported, `model "Unigram"`},
		{"model type not text", model("type", 1), malformed, `"type"`},
		{"affix not text", model("end_of_word_suffix", 1), malformed, `"end_of_word_suffix"`},
		{"fuse_unk not a flag", model("fuse_unk", 1), malformed, `"fuse_unk"`},
		{"model field", model("x", 1), unsupported, `model field "x"`},
		{"dropout", model("dropout", 0.1), unsupported, "model dropout"},
		{"continuing_subword_prefix", model("continuing_subword_prefix", "##"), unsupported, `continuing_subword_prefix "##"`},
		{"end_of_word_suffix", model("end_of_word_suffix", "</w>"), unsupported, `end_of_word_suffix "</w>"`},
		{"byte_fallback not a flag", model("byte_fallback", 1), malformed, `"byte_fallback"`},
		{"model twice the field", []byte(`{"model":{"dropout":null,"dropout":null}}`), malformed, `model has two fields "dropout"`},
		{"vocab twice", []byte(`{"model":{"vocab":{},"vocab":{}}}`), malformed, `model has two fields "vocab"`},
		{"model without vocab", []byte(`{"model":{"merges":[]}}`), unsupported, "without vocab or without merges"},
		{"model without merges", []byte(`{"model":{"vocab":{}}}`), unsupported, "without vocab or without merges"},
		{"model field too long", model("x", strings.Repeat("a", tokenize.MaxSetting)), malformed, "more than"},
		{"Unigram, untyped", []byte(`{"model":{"unk_id":2,"vocab":[["a",0.5]]}}`), unsupported, "vocab is a list"},
		{"an unk_token that is needed", unknown("<none>"), malformed, `unk_token "<none>"`},
		{"ignore_merges not a flag", model("ignore_merges", 1), malformed, `"ignore_merges"`},
		{"unk_token not text", model("unk_token", 1), malformed, `"unk_token"`},
		{"vocab not an object", model("vocab", 5), malformed, `"vocab"`},
		{"token too long", vocab(strings.Repeat("a", tokenize.MaxToken+1), 700), malformed, "more than 4096 bytes"},
		{"merges not an array", model("merges", dict{}), malformed, `"merges"`},
		{"token twice", []byte(`{"pre_tokenizer":` + asJSON(t, byteLevel(nil)) + `,"model":{"vocab":{"a":1,"a":2},"merges":[]}}`), malformed, `token "a" is repeated`},
		{"id twice", vocab("new", 5), malformed, "id 5"},
		{"id negative", vocab("new", -1), malformed, `"new"`},
		{"id a fraction", vocab("new", 1000.5), malformed, `"new"`},
		{"id null", vocab("new", nil), malformed, `"new"`},
		{"id too large", vocab("new", tokenize.MaxVocab), malformed, `"new"`},
		{"id past 64 bits", vocab("new", json.Number("99999999999999999999999")), malformed, `"new"`},
		{"merge of an unknown token", model("merges", []any{[]any{"t", "日"}}), malformed, "merges: 0"},
		{"merge to an unknown token", model("merges", []any{[]any{"z", "q"}}), malformed, "merges: 0"},
		{"merge of one", model("merges", []any{[]any{"t"}}), malformed, "not a pair"},
		{"merge of null", model("merges", []any{[]any{"t", nil}}), malformed, "not a pair"},
		{"merge line of one", model("merges", []any{"t"}), malformed, "not a pair"},
		{"merge line with nothing", model("merges", []any{"t "}), malformed, "not a pair"},
		{"merge a number", model("merges", []any{5}), malformed, "not a pair"},
		{"merges of both forms", model("merges", []any{[]any{"h", "e"}, "h e"}), malformed, "form"},

		{"added token not an object", added(1), malformed, "not an object"},
		{"added token field", added(addedToken(tinySize, "x", dict{"y": 1})), unsupported, `added token field "y"`},
		{"added token null flag", added(addedToken(tinySize, "<x>", dict{"lstrip": nil})), malformed, `"lstrip"`},
		{"added token without content", added(addedToken(tinySize, "", dict{"content": nil})), malformed, `"content"`},
		{"added token twice", added(addedToken(tinySize, "<x>", nil), addedToken(tinySize, "<x>", nil)), malformed, "is repeated"},
		{"added token with another id", added(addedToken(700, "<x>", nil)), malformed, `"<x>" has id 700`},
		{"added token with the vocabulary's content", added(addedToken(tinySize, "he", nil)), malformed, `"he" has id 653`},
		{"added token too long", added(addedToken(tinySize, strings.Repeat("a", tokenize.MaxToken+1), nil)), malformed, "4097 bytes"},
		{"added tokens not an array", section("added_tokens", dict{}), malformed, `"added_tokens"`},
		{"too many added tokens", section("added_tokens", make([]any, tokenize.MaxAdded+1)), malformed, "more than"},
		{
			"white space claimed twice", added(addedToken(tinySize, "<x>", dict{"rstrip": true}), addedToken(tinySize+1, " y", nil)),
			unsupported, `" y" that begins with white space beside "<x>" with rstrip`,
		},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			_, err := tokenize.Parse(bytes.NewReader(c.file))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q and %v", err, c.want, c.kind)
			}
			if len(err.Error()) > 600 || !strings.HasPrefix(err.Error(), "tokenize: ") {
				t.Errorf("message: %v", err)
			}
		})
	}
}

// Valid and invalid JSON, by the rules of encoding/json, in a name, a token, an id and a section.
func TestParseIsStrict(t *testing.T) {
	good := `{"version":"1.0","pre_tokenizer":` + asJSON(t, byteLevel(nil)) + `,"model":{"type":"BPE","vocab":{"\ud83d\ude00\n":0,"a":1,"aa":12},"merges":[["a","a"]]}}`
	if _, err := tokenize.Parse(strings.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{`"a":1`, `"a":01`}, {`"a":1`, `"a":1.0`}, {`"a":1`, `"a":+1`}, {`"a":1`, `"a":`}, {`"a":1`, `"a" 1`}, {`"a":1`, `"a":1 2`},
		{`"a":1`, `"a":1,`}, {`"a":1`, `,"a":1`}, {`"a":1`, `a:1`}, {`"a":1`, `"a":"1"`}, {`"a":1`, `"a":1]`}, {`"a":1`, `"a":99999999999`},
		{`\ud83d\ude00`, `\ud83d`}, {`\ud83d\ude00`, `\ude00\ud83d`}, {`\ud83d\ude00`, `\ud83d\u0041`}, {`\ud83d\ude00`, `\ud83d\n`},
		{`\ud83d`, `\ud83`}, {`\ud83d`, `\uD83G`}, {`\ud83d\ude00`, "\\u\x10000"}, {`\n`, `\x`}, {`\n`, "\n"}, {`\n`, "\x00"}, {`\n`, "\xff"}, {`\n`, "\xed\xa0\x80"},
		{`1.0`, `1.0\ud83d`}, {`1.0`, "1.0\xff"}, {`1.0`, "1.0\n"}, {`"1.0"`, `"1.0" "1.0"`}, {`"1.0"`, ``}, {`"1.0"`, `1.0.0`},
		{`[["a","a"]]`, `[["a" "a"]]`}, {`[["a","a"]]`, `[["a","a"],]`}, {`[["a","a"]]`, `[["a","a",]]`}, {`[["a","a"]]`, `[["a","a"]`},
		{`}}`, `}`}, {`}}`, `}}}`}, {`}}`, `}} x`}, {`{"version"`, `{,"version"`}, {`{"version"`, "\xef\xbb\xbf{\"version\""},
	} {
		file := strings.Replace(good, c[0], c[1], 1)
		for name, r := range map[string]io.Reader{"": strings.NewReader(file), " a byte at a time": iotest.OneByteReader(strings.NewReader(file))} {
			if _, err := tokenize.Parse(r); !errors.Is(err, tokenize.ErrMalformed) {
				t.Errorf("%q for %q%s: got %v", c[1], c[0], name, err)
			}
		}
	}
}

// Values that cross the end of the read buffer, at any byte, are read whole.
func TestParseAcrossTheBuffer(t *testing.T) {
	tiny := readTiny(t)
	want := encode(t, loadTiny(t), "the wall", true)
	for _, n := range []int{0, 1, tokenize.StreamBuffer - 1, tokenize.StreamBuffer, tokenize.StreamBuffer + 1} {
		file := append(bytes.Repeat([]byte(" "), n), tiny...)
		if got := encode(t, parse(t, file), "the wall", true); !slices.Equal(got, want) {
			t.Errorf("after %d spaces: got %v", n, got)
		}
	}
	bpe, err := tokenize.Parse(iotest.OneByteReader(bytes.NewReader(tiny)))
	must(t, err)
	if got := encode(t, bpe, "the wall", true); !slices.Equal(got, want) {
		t.Errorf("a byte at a time: got %v", got)
	}
}

// The order of fields and the escapes of strings do not matter.
func TestParseForms(t *testing.T) {
	type field struct {
		name  string
		value json.RawMessage
	}
	write := func(fields ...field) json.RawMessage {
		var b []string
		for _, f := range fields {
			b = append(b, asJSON(t, f.name)+":"+string(f.value))
		}
		return json.RawMessage("{" + strings.Join(b, ",") + "}")
	}
	file := fromJSON[map[string]json.RawMessage](t, readTiny(t))
	model := fromJSON[map[string]json.RawMessage](t, file["model"])
	want := encode(t, loadTiny(t), readProse(t), true)
	for name, text := range map[string][]byte{
		"vocab first": write(field{"model", write(field{"vocab", model["vocab"]}, field{"merges", model["merges"]})},
			field{"pre_tokenizer", file["pre_tokenizer"]}, field{"added_tokens", file["added_tokens"]}),
		"merges first": write(field{"added_tokens", file["added_tokens"]}, field{"pre_tokenizer", file["pre_tokenizer"]},
			field{"model", write(field{"merges", model["merges"]}, field{"type", json.RawMessage(`"BPE"`)}, field{"vocab", model["vocab"]})}),
		"escaped":                         escaped(readTiny(t)),
		"padding of none":                 variant(t, dict{"padding": dict{"strategy": "BatchLongest", "pad_to_multiple_of": nil, "pad_id": 0}}, nil),
		"dropout of none":                 bytes.Replace(readTiny(t), []byte(`"dropout":null`), []byte(`"dropout":0.0`), 1),
		"another decoder":                 variant(t, dict{"decoder": dict{"type": "Sequence", "decoders": []any{dict{"type": "Fuse"}}}}, nil),
		"an unk_token that no text needs": variant(t, nil, dict{"unk_token": "<none>"}),
	} {
		if got := encode(t, parse(t, text), readProse(t), false); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, clip(got), clip(want))
		}
	}
}

// escaped writes everything but ASCII as escapes.
func escaped(file []byte) []byte {
	var b []byte
	for _, r := range string(file) {
		switch {
		case r < 0x80:
			b = append(b, byte(r))
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04X`, r)
		default:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		}
	}
	return b
}

func asJSON(tb testing.TB, v any) string {
	tb.Helper()
	b, err := json.Marshal(v)
	must(tb, err)
	return string(b)
}

// Optional sections may be left out or empty.
func TestLeastFile(t *testing.T) {
	file := fromJSON[dict](t, readTiny(t))
	for _, name := range []string{"version", "truncation", "padding", "added_tokens", "normalizer", "post_processor", "decoder"} {
		delete(file, name)
	}
	bpe := parse(t, []byte(asJSON(t, file)))
	if got, want := encode(t, bpe, "the wall", true), encode(t, loadTiny(t), "the wall", true); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	indented, err := json.MarshalIndent(file, "\t", "  ")
	must(t, err)
	if got, want := encode(t, parse(t, append([]byte("\r\n\t "), indented...)), "the wall", true), encode(t, bpe, "the wall", true); !slices.Equal(got, want) {
		t.Errorf("indented: got %v, want %v", got, want)
	}
}

// Every prefix of a file is an error, gzipped or not.
func TestTruncatedFiles(t *testing.T) {
	for name, file := range map[string][]byte{"plain": bytes.TrimSpace(readTiny(t)), "gzip": zip(t, readTiny(t))} {
		for n := 0; n < len(file); n += 1 + n/50 {
			if _, err := tokenize.Parse(bytes.NewReader(file[:n])); !errors.Is(err, tokenize.ErrMalformed) {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(file), err)
			}
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// The memory for a file is in proportion to its size, whatever it contains.
const (
	parseFixed   = 4 << 20
	parsePerByte = 64
)

func checkParseMemory(tb testing.TB, name string, file []byte) {
	tb.Helper()
	got := allocated(func() { tokenize.Parse(bytes.NewReader(file)) })
	if limit := uint64(parseFixed + parsePerByte*len(file)); got > limit {
		tb.Errorf("%s: %d bytes allocated for %d", name, got, len(file))
	}
}

func TestParseMemory(t *testing.T) {
	const n = 200_000
	prefix := `{"pre_tokenizer":` + asJSON(t, byteLevel(nil)) + `,`
	var vocab, fields strings.Builder
	for i := range n {
		fmt.Fprintf(&vocab, `"%x":%d,`, i, i)
		fmt.Fprintf(&fields, `"%x":0,`, i)
	}
	for name, file := range map[string]string{
		"elements":   prefix + `"model":{"vocab":{},"merges":[` + strings.Repeat("0,", n) + `0]}}`,
		"added":      `{"added_tokens":[` + strings.Repeat("0,", n) + `0]}`,
		"vocabulary": prefix + `"model":{"vocab":{` + vocab.String() + `"x":0},"merges":[]}}`,
		"sections":   `{` + fields.String() + `"x":0}`,
		"fields":     `{"model":{` + fields.String() + `"x":0}}`,
		"pieces":     prefix + `"post_processor":{"type":"TemplateProcessing","pair":[],"special_tokens":{},"single":[` + strings.Repeat("0,", n) + `0]}}`,
		"nested":     strings.Repeat(`{"a":`, n),
		"long text":  `{"version":"` + strings.Repeat(`\u0041`, n) + `"}`,
	} {
		if _, err := tokenize.Parse(strings.NewReader(file)); err == nil {
			t.Errorf("%s: no error", name)
		}
		checkParseMemory(t, name, []byte(file))
	}
}

// The size counted for a tokenizer is its memory on the heap.
func TestSize(t *testing.T) {
	if raced {
		t.Log("not under the race detector, which has memory of its own")
		return
	}
	check := func(name string, n int, open func() *tokenize.BPE) {
		size := uint64(n * tokenize.Size(open()))
		live := liveHeap(func() any {
			all := make([]*tokenize.BPE, n)
			for i := range all {
				all[i] = open()
			}
			return all
		})
		t.Logf("%d of %s: size %d, on the heap %d", n, name, size, live)
		if size > live+live/4 || live > size+size/4 {
			t.Errorf("%d of %s: size %d, on the heap %d", n, name, size, live)
		}
	}
	check("tiny", 400, func() *tokenize.BPE { return loadTiny(t) })
	check("gpt2", 1, func() *tokenize.BPE {
		bpe, err := tokenize.Load(testdata.Path(t, "the size of gpt2", "tokens", "gpt2"))
		must(t, err)
		return bpe
	})
}

// A file is never in memory as a whole: loading takes little more than its result.
func TestLoadingTakesLittleMemory(t *testing.T) {
	path := testdata.Path(t, "the memory that loading 128,000 tokens takes", "tokens", "llama3")
	peak := peakHeap(func() {
		if _, err := tokenize.Load(path); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d bytes at most", peak)
	if peak > 40_000_000 {
		t.Errorf("%d bytes at most", peak)
	}
}

// A small file that unpacks to a large one is rejected at the limit.
func TestParseStopsAtTheLimit(t *testing.T) {
	// The members of a gzip file are concatenated.
	file := bytes.Repeat(zip(t, bytes.Repeat([]byte(" "), 1<<20)), tokenize.MaxFile>>20+100)
	got := allocated(func() {
		if _, err := tokenize.Parse(bytes.NewReader(file)); !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("got %v", err)
		}
	})
	if got > 10*tokenize.MaxFile {
		t.Errorf("%d bytes allocated", got)
	}
}

// checkParseError checks the error for a readable file.
func checkParseError(tb testing.TB, err error) {
	tb.Helper()
	if !errors.Is(err, tokenize.ErrMalformed) && !errors.Is(err, tokenize.ErrUnsupported) {
		tb.Errorf("got %v", err)
	}
	if len(err.Error()) > 1000 {
		tb.Errorf("an error of %d bytes", len(err.Error()))
	}
}

// FuzzParse parses a file, or one section or field of the model in an otherwise valid file, so that
// fuzzing gets past the JSON.
func FuzzParse(f *testing.F) {
	f.Add("", string(readTiny(f)))
	f.Add("", string(zip(f, readTiny(f))))
	base := fromJSON[map[string]json.RawMessage](f, variant(f, nil, dict{
		"vocab": fromJSON[dict](f, variantVocab(f)), "merges": []any{},
	}))
	base["added_tokens"] = json.RawMessage("[]")
	model := fromJSON[map[string]json.RawMessage](f, base["model"])
	for name, value := range base {
		f.Add(name, string(value))
	}
	for name, value := range model {
		f.Add(name, string(value))
	}
	f.Add("added_tokens", asJSON(f, []any{addedToken(256, "<x>", dict{"rstrip": true}), addedToken(257, "y", dict{"normalized": true})}))
	f.Add("pre_tokenizer", asJSON(f, sequence(split(nil), byteLevel(dict{"use_regex": false}))))
	f.Add("post_processor", asJSON(f, dict{"type": "Sequence", "processors": []any{byteLevel(nil), template(beginPiece, textPiece)}}))
	for _, section := range sections {
		f.Add("normalizer", section)
	}
	for _, section := range []preTokenizer{falconLike, commandRLike, llama3Like, gemmaLike, metaspace("first", false), levelStep(true, true)} {
		f.Add("pre_tokenizer", asJSON(f, section))
	}
	f.Add("merges", `["#version: 0.2", "a b"]`)
	f.Add("merges", `[["a", "b"]]`)
	with := func(t *testing.T, fields map[string]json.RawMessage, name, value string) []byte {
		changed := maps.Clone(fields)
		changed[name] = json.RawMessage(value)
		return []byte(asJSON(t, changed))
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		text := []byte(value)
		if name != "" {
			if !json.Valid(text) {
				return
			}
			if _, ok := model[name]; ok {
				name, value = "model", string(with(t, model, name, value))
			}
			text = with(t, base, name, value)
		}
		if !bytes.HasPrefix(text, []byte("\x1f\x8b")) { // the bound of a gzip file is on its unpacked size
			checkParseMemory(t, "fuzzed", text)
		}
		bpe, err := tokenize.Parse(bytes.NewReader(text))
		if err != nil {
			checkParseError(t, err)
			return
		}
		for _, text := range []string{"", " the <x> y\n1 ", strings.Repeat("the", 50), "\xff日本<|end|>"} {
			encode(t, bpe, text, true)
		}
	})
}
