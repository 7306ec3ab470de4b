package tokenize_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// A plainRanks encodes like tiktoken 0.14.0 (src/lib.rs), but slowly. A piece that is a token is
// that token. Otherwise the two neighbours that make the token of the lowest rank are merged, the
// leftmost first.
type plainRanks map[string]uint32

func (ranks plainRanks) encode(piece string) (ids []uint32) {
	if id, ok := ranks[piece]; ok {
		return []uint32{id}
	}
	parts := strings.Split(piece, "")
	if !isASCII(piece) {
		parts = nil
		for i := range len(piece) {
			parts = append(parts, piece[i:i+1])
		}
	}
	for {
		at := -1
		for i := range len(parts) - 1 {
			rank, ok := ranks[parts[i]+parts[i+1]]
			if ok && (at < 0 || rank < ranks[parts[at]+parts[at+1]]) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	for _, part := range parts {
		ids = append(ids, ranks[part])
	}
	return ids
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

func (ranks plainRanks) file(r *rand.Rand) []byte {
	var b bytes.Buffer
	tokens := slices.Sorted(maps.Keys(ranks))
	r.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
	for _, token := range tokens {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), ranks[token])
	}
	return b.Bytes()
}

// randomRanks has all bytes, and tokens of a few letters with random ranks: some are no merge of
// two others, many are several.
func randomRanks(r *rand.Rand, letters string) plainRanks {
	var tokens []string
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	seen := map[string]bool{}
	for range 10 + r.IntN(60) {
		token := make([]byte, 2+r.IntN(6))
		for i := range token {
			token[i] = letters[r.IntN(len(letters))]
		}
		if !seen[string(token)] {
			seen[string(token)] = true
			tokens = append(tokens, string(token))
		}
	}
	r.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
	ranks := plainRanks{}
	for i, token := range tokens {
		ranks[token] = uint32(3 * i)
	}
	return ranks
}

func TestTiktokenAsReference(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	pieces := 0
	for range 60 / sampled() {
		letters := "abcdé"[:1+r.IntN(4)]
		if r.IntN(4) == 0 {
			letters = "aé"
		}
		ranks := randomRanks(r, letters)
		special := map[string]uint32{"<|end|>": 5000}
		bpe, err := tokenize.ParseTiktoken(bytes.NewReader(ranks.file(r)), gpt2Pattern, special)
		must(t, err)
		runes := []rune(letters)
		for range 25 {
			text := randomLetters(r, runes, 1+r.IntN(3*tokenize.LongPiece))
			var want []uint32
			for _, piece := range gpt2Reference.pieces(text) {
				want = append(want, ranks.encode(piece)...)
			}
			pieces++
			if got := encode(t, bpe, text, true); !slices.Equal(got, want) {
				t.Fatalf("%q: got %v, want %v", text, got, want)
			}
			want = append(append(slices.Clone(want), 5000), want...)
			if got := encode(t, bpe, text+"<|end|>"+text, false); !slices.Equal(got, want) {
				t.Fatalf("%q twice: got %v, want %v", text, got, want)
			}
		}
	}
	t.Logf("%d texts", pieces)
}

func TestTiktokenRefusals(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	good := randomRanks(r, "ab").file(r)
	with := func(line string) []byte { return append(bytes.Clone(good), line...) }
	line := func(token string, id int) string {
		return fmt.Sprintf("%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), id)
	}
	var ways strings.Builder
	for n := 1; n <= tokenize.MaxRankedToken; n++ {
		for b := range 256 {
			if n > 1 && b >= 40 {
				break
			}
			ways.WriteString(line(strings.Repeat(string([]byte{byte(b)}), n), n*256+b))
		}
	}
	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	for _, c := range []struct {
		name    string
		file    []byte
		pattern string
		special map[string]uint32
		kind    error
		want    string
	}{
		{"pattern", good, `\w+`, nil, unsupported, `pattern "\\w+"`},
		{"a possessive interval", good, `\p{N}{1,3}+|\P{N}`, nil, unsupported, "pattern"},
		{"the end of the text", good, `\s+$|\S+|\s`, nil, unsupported, "pattern"},
		{"nothing", nil, gpt2Pattern, nil, unsupported, "without the byte 0x00"},
		{"a byte is missing", []byte("AA== 0\n"), gpt2Pattern, nil, unsupported, "without the byte 0x01"},
		{"one field", with("AAAA\n"), gpt2Pattern, nil, malformed, "not a token and a rank"},
		{"three fields", with("AAAA 1 2\n"), gpt2Pattern, nil, malformed, "not a token and a rank"},
		{"not base64", with("A 9999\n"), gpt2Pattern, nil, malformed, "not base64"},
		{"nothing in base64", with("==== 9999\n"), gpt2Pattern, nil, malformed, "not base64"},
		{"rank not a number", with("enp6 x\n"), gpt2Pattern, nil, malformed, "not an integer"},
		{"rank negative", with("enp6 -1\n"), gpt2Pattern, nil, malformed, "not an integer"},
		{"rank too large", with(fmt.Sprintf("enp6 %d\n", tokenize.MaxVocab)), gpt2Pattern, nil, malformed, "not an integer"},
		{"rank twice", with("enp6 3\n"), gpt2Pattern, nil, malformed, "rank 3, which another has"},
		{"token twice", with("AA== 9999\n"), gpt2Pattern, nil, malformed, `token "\x00" is repeated`},
		{"token too long", with(line(strings.Repeat("a", tokenize.MaxRankedToken+1), 9999)), gpt2Pattern, nil, malformed, "more than 512 bytes"},
		{"line too long", with(strings.Repeat("a", 1<<17)), gpt2Pattern, nil, malformed, "a line has more than"},
		{"too many ways to merge", []byte(ways.String()), gpt2Pattern, nil, malformed, "ways to merge"},
		{"gzip cut short", zip(t, good)[:100], gpt2Pattern, nil, malformed, "gzip"},
		{"special token empty", good, gpt2Pattern, map[string]uint32{"": 5000}, malformed, "empty"},
		{"special token not UTF-8", good, gpt2Pattern, map[string]uint32{"\xff": 5000}, malformed, "UTF-8"},
		{"special token with a rank", good, gpt2Pattern, map[string]uint32{"<x>": 3}, malformed, "id 3"},
		{"special token with a large id", good, gpt2Pattern, map[string]uint32{"<x>": tokenize.MaxVocab}, malformed, "not below"},
		{"special tokens that begin alike", good, gpt2Pattern, map[string]uint32{"<x": 5000, "<x>": 5001}, unsupported, `"<x>", which begins with another, "<x"`},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			_, err := tokenize.ParseTiktoken(bytes.NewReader(c.file), c.pattern, c.special)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q and %v", err, c.want, c.kind)
			}
		})
	}
}

func TestLoadTiktoken(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	ranks := randomRanks(r, "the")
	dir := t.TempDir()
	for name, file := range map[string][]byte{
		"plain": ranks.file(r), "gzip": zip(t, ranks.file(r)),
		"with empty lines": append([]byte("\n\r\n"), bytes.ReplaceAll(ranks.file(r), []byte("\n"), []byte("\r\n"))...),
	} {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, file, 0o600))
		bpe, err := tokenize.LoadTiktoken(path, gpt2Pattern, nil)
		must(t, err)
		if got, want := encode(t, bpe, "thethethete", true), ranks.encode("thethethete"); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if _, err := tokenize.LoadTiktoken(filepath.Join(dir, "none"), gpt2Pattern, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := tokenize.LoadTiktoken(filepath.Join(dir, "plain"), "x", nil); !errors.Is(err, tokenize.ErrUnsupported) || !strings.Contains(err.Error(), dir) {
		t.Errorf("no pattern: %v", err)
	}
}

func TestTiktokenEncodings(t *testing.T) {
	for name, want := range map[string]struct{ tokens, first, last int }{
		"r50k_base":     {1, 50256, 50256},
		"p50k_base":     {1, 50256, 50256},
		"p50k_edit":     {4, 50256, 50283},
		"cl100k_base":   {5, 100257, 100276},
		"o200k_base":    {2, 199999, 200018},
		"o200k_harmony": {1091, 199998, 201087},
	} {
		pattern, special, err := tokenize.TiktokenEncoding(name)
		if err != nil || pattern == "" {
			t.Fatalf("%s: pattern %q, %v", name, pattern, err)
		}
		ids := slices.Sorted(maps.Values(special))
		if len(special) != want.tokens || int(ids[0]) != want.first || int(ids[len(ids)-1]) != want.last {
			t.Errorf("%s: %d special tokens from %d to %d, want %v", name, len(special), ids[0], ids[len(ids)-1], want)
		}
	}
	if _, _, err := tokenize.TiktokenEncoding("gpt-4"); !errors.Is(err, tokenize.ErrUnsupported) {
		t.Errorf("no encoding: %v", err)
	}
}

func FuzzParseTiktoken(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 3))
	f.Add(randomRanks(r, "ab").file(r))
	f.Add([]byte("AA== 0\nAQ== 1\n"))
	f.Add([]byte("\x1f\x8b"))
	bytesOnly := plainRanks{}
	for b := range uint32(256) {
		bytesOnly[string([]byte{byte(b)})] = b
	}
	base := bytesOnly.file(r)
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, file := range [][]byte{file, append(bytes.Clone(base), file...)} {
			bpe, err := tokenize.ParseTiktoken(bytes.NewReader(file), gpt2Pattern, map[string]uint32{"<x>": 1 << 20})
			if err != nil {
				checkParseError(t, err)
				continue
			}
			for _, text := range []string{"", " the <x> y\n1 ", strings.Repeat("the", 50), "\xff日本"} {
				encode(t, bpe, text, true)
			}
		}
	})
}
