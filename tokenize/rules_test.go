package tokenize_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// Of two fields with one name encoding/json keeps the last. They are an error in every section,
// escaped or not.
func TestFieldsTwice(t *testing.T) {
	normalizer := func(s string) error { _, err := tokenize.ParseNormalizer(s); return err }
	pre := func(s string) error { _, err := tokenize.NewPreTokenizer(s); return err }
	post := func(s string) error { _, _, err := tokenize.PostProcessor(s); return err }
	file := func(section string) error {
		_, err := tokenize.Parse(strings.NewReader(`{"added_tokens":[` + section + `],"model":{"vocab":{},"merges":[]}}`))
		return err
	}
	for _, c := range []struct {
		parse          func(string) error
		section, field string
	}{
		{normalizer, `{"type":"Prepend","prepend":"a","prepend":"b"}`, "prepend"},
		{normalizer, `{"type":"Prepend","prepend":"a","prep\u0065nd":"b"}`, "prepend"},
		{normalizer, `{"type":"NFC","type":"NFD"}`, "type"},
		{normalizer, `{"type":"Replace","pattern":{"String":"a","String":"b"},"content":""}`, "String"},
		{pre, `{"type":"Digits","individual_digits":true,"individual_digits":false}`, "individual_digits"},
		{post, `{"type":"BertProcessing","cls":["a",1],"sep":["b",2],"cls":["c",3]}`, "cls"},
		{file, `{"id":0,"content":"a","id":1,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false}`, "id"},
	} {
		if err := c.parse(c.section); !errors.Is(err, tokenize.ErrMalformed) || !strings.Contains(err.Error(), `two fields "`+c.field+`"`) {
			t.Errorf("%s: got %v", c.section, err)
		}
	}
}

// Tokens get their ids in the order of the ids, not of the config.
func TestDecoderInAnyOrder(t *testing.T) {
	dir := pretrained(t, nil, nil)
	config := `{"tokenizer_class":"GPT2Tokenizer","added_tokens_decoder":{"655":` + asJSON(t, configToken("<a>", nil)) +
		`,"654":` + asJSON(t, configToken("<b>", nil)) + `}}`
	must(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o600))
	bpe, err := tokenize.LoadPretrained(dir)
	must(t, err)
	if got, want := encode(t, bpe, "<a><b>", true), []uint32{655, 654}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The tiktoken library drops text between matches. A pattern that does not match all text is an
// error.
func TestTiktokenNeedsAllOfTheText(t *testing.T) {
	ranks := randomRanks(rand.New(rand.NewPCG(4, 4)), "ab").file(rand.New(rand.NewPCG(4, 5)))
	for _, pattern := range []string{`\p{L}+`, `\S+`, `\s|\p{L}`, `[^a]`} {
		_, err := tokenize.ParseTiktoken(bytes.NewReader(ranks), pattern, nil)
		if !errors.Is(err, tokenize.ErrUnsupported) || !strings.Contains(err.Error(), "pattern") {
			t.Errorf("%s: got %v", pattern, err)
		}
	}
	if _, err := tokenize.ParseTiktoken(bytes.NewReader(ranks), `\s|\S+`, nil); err != nil {
		t.Errorf("of all text: %v", err)
	}
}

// Text after the last match counts, too.
func TestReplaceTooLong(t *testing.T) {
	for _, pattern := range []string{`{"String":" "}`, `{"Regex":" +"}`, `{"Regex":"\\s+"}`} {
		n := normalizerOf(t, `{"type":"Replace","pattern":`+pattern+`,"content":"...."}`)
		text := []byte(" " + strings.Repeat("a", tokenize.MaxText-4))
		if out, err := n.Apply(text, true); err != nil || len(out) != tokenize.MaxText {
			t.Errorf("%s: %d bytes, %v", pattern, len(out), err)
		}
		if out, err := n.Apply(append(text, 'a'), true); !errors.Is(err, tokenize.ErrTextTooLong) {
			t.Errorf("%s: %d bytes, %v, not too long", pattern, len(out), err)
		}
	}
}

// A match has no boundary inside, even between characters that are not at its edges.
func TestBoundaryWithinAMatch(t *testing.T) {
	n := normalizerOf(t, `{"type":"Replace","pattern":{"String":"abcd"},"content":"x"}`)
	for pair, want := range map[string]bool{
		"ab": false, "bc": false, "cd": false, "da": false, "ea": false, "de": false, "cb": true, "be": true, "ec": true,
	} {
		if nl, nr, ok := n.Boundary(rune(pair[0]), rune(pair[1])); ok != want || ok && string([]rune{nl, nr}) != pair {
			t.Errorf("%q: got %q, %q, %v", pair, nl, nr, ok)
		}
	}
}

// The official library's pieces (tokenizers 0.23.2) of three adjacent matches, with and without
// gaps around them.
func TestRunsOfMatches(t *testing.T) {
	for _, c := range []struct {
		behavior       string
		invert         bool
		between, alone []string
	}{
		{"Isolated", false, []string{"a", "-", "-", "-", "b"}, []string{"-", "-", "-"}},
		{"Removed", false, []string{"a", "b"}, nil},
		{"Contiguous", false, []string{"a", "---", "b"}, []string{"---"}},
		{"MergedWithPrevious", false, []string{"a-", "-", "-", "b"}, []string{"-", "-", "-"}},
		{"MergedWithNext", false, []string{"a", "-", "-", "-b"}, []string{"-", "-", "-"}},
		{"Removed", true, []string{"-", "-", "-"}, []string{"-", "-", "-"}},
		{"MergedWithPrevious", true, []string{"a", "-", "-", "-b"}, []string{"-", "-", "-"}},
		{"MergedWithNext", true, []string{"a-", "-", "-", "b"}, []string{"-", "-", "-"}},
	} {
		p, err := tokenize.NewPreTokenizer(asJSON(t, splitBy(preTokenizer{"String": "-"}, c.behavior, c.invert)))
		must(t, err)
		for text, want := range map[string][]string{"a---b": c.between, "---": c.alone} {
			if got := p.Pieces(text, tokenize.TextStart); !slices.Equal(got, want) {
				t.Errorf("%s, invert %v: %q: got %q, want %q", c.behavior, c.invert, text, got, want)
			}
		}
	}
}

// The alternatives of the hand-written scanners, where they matter.
func TestKnownPieces(t *testing.T) {
	regexes := map[string]string{}
	for _, p := range patterns {
		regexes[p.name] = p.regex
	}
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"llama3", "HE'Sa", []string{"HE", "'S", "a"}},
		{"llama3", "it'ſa", []string{"it", "'ſ", "a"}},
		{"llama3", "'llx'LLx", []string{"'ll", "x", "'LL", "x"}},
		{"llama3", "http://a", []string{"http", "://", "a"}},
		{"llama3", ".\n/a", []string{".\n", "/a"}},
		{"llama3", "1234", []string{"123", "4"}},
		{"qwen2", "1234", []string{"1", "2", "3", "4"}},
		{"o200k", "1234", []string{"123", "4"}},
		{"tekken", "1234", []string{"1", "2", "3", "4"}},
		{"o200k", ".\n/a", []string{".\n/", "a"}},
		{"o200k", "ABcDE", []string{"ABc", "DE"}},
		{"o200k", "日A", []string{"日", "A"}},
		{"o200k", "(日A", []string{"(日", "A"}},
		{"o200k", "\u0301AB", []string{"\u0301", "AB"}},
		{"o200k", "don'T", []string{"don'T"}},
		{"o200k", "don'ſa", []string{"don'ſ", "a"}},
		{"tekken", "don'T", []string{"don", "'T"}},
	} {
		p, ok := tokenize.PatternOf(regexes[c.name])
		if !ok {
			t.Fatal(c.name)
		}
		var got []string
		for _, x := range patternSpans(t, p, c.text) {
			got = append(got, x.text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q: got %q, want %q", c.name, c.text, got, c.want)
		}
	}
}

// Hand-written scanners and programs find the same pieces, and programs of similar patterns too.
func TestKnownScannersAsPrograms(t *testing.T) {
	known := tokenize.KnownPatterns()
	for _, regex := range known {
		hand, ok := tokenize.PatternOf(regex)
		if !ok {
			t.Fatalf("%s is not read", regex)
		}
		program := tokenize.ProgramOf(regex)
		texts := newNasty(21, "'s", "'LL", "/", "\r\n")
		for range 10_000 {
			text := []byte(strings.ToValidUTF8(texts.text(), "\ufffd"))
			for i := 0; i < len(text); {
				end, match := hand.Scan(text, i)
				other, matchToo := program.Scan(text, i)
				if end != other || match != matchToo {
					t.Fatalf("%s at %d of %q: %d %v by hand, %d %v by its program", regex, i, text, end, match, other, matchToo)
				}
				i = end
			}
		}
	}
	if len(known) != 5 {
		t.Errorf("%d patterns", len(known))
	}
}
