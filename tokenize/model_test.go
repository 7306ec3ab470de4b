package tokenize_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize"
)

// A plainModel encodes a piece like merge_word and merge_all of tokenizers 0.23.2 (models/bpe), but
// slowly: it looks through all pairs for each merge.
type plainModel struct {
	vocab                        map[string]uint32
	merges                       [][2]string
	unknown                      string // "" for none
	fuse, fallBack, ignoreMerges bool
	byteLevel                    bool
}

func (m *plainModel) section(tb testing.TB) string {
	tb.Helper()
	section := dict{
		"type": "BPE", "vocab": m.vocab, "merges": m.merges, "unk_token": nil,
		"fuse_unk": m.fuse, "byte_fallback": m.fallBack, "ignore_merges": m.ignoreMerges,
	}
	if m.merges == nil {
		section["merges"] = []any{}
	}
	if m.unknown != "" {
		section["unk_token"] = m.unknown
	}
	return asJSON(tb, section)
}

// byteCharacter returns the character for a byte in byte-level files.
func byteCharacter(b byte) rune {
	next := rune(0x100)
	for c := range rune(256) {
		prints := c >= '!' && c <= '~' || c >= 0xa1 && c != 0xad
		if c == rune(b) && prints {
			return c
		}
		if c == rune(b) {
			return next
		}
		if !prints {
			next++
		}
	}
	return -1
}

func (m *plainModel) encode(piece string) (ids []uint32) {
	if m.byteLevel {
		var mapped []rune
		for _, b := range []byte(piece) {
			mapped = append(mapped, byteCharacter(b))
		}
		piece = string(mapped)
	}
	if id, ok := m.vocab[piece]; ok && m.ignoreMerges {
		return []uint32{id}
	}
	return m.merge(m.symbols(piece))
}

// symbols follows the order of merge_word: an unknown token is added when the next character has a
// token, or is unknown too.
func (m *plainModel) symbols(piece string) (ids []uint32) {
	waits := false
	for _, r := range piece {
		if id, ok := m.vocab[string(r)]; ok {
			if waits {
				ids = append(ids, m.vocab[m.unknown])
			}
			waits = false
			ids = append(ids, id)
			continue
		}
		if bytes, ok := m.bytesOf(r); ok {
			ids = append(ids, bytes...)
			continue
		}
		if m.unknown == "" {
			continue
		}
		if waits && !m.fuse {
			ids = append(ids, m.vocab[m.unknown])
		}
		waits = true
	}
	if waits {
		ids = append(ids, m.vocab[m.unknown])
	}
	return ids
}

func (m *plainModel) bytesOf(r rune) (ids []uint32, ok bool) {
	if !m.fallBack {
		return nil, false
	}
	for _, b := range []byte(string(r)) {
		id, ok := m.vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			return nil, false
		}
		ids = append(ids, id)
	}
	return ids, true
}

func (m *plainModel) merge(ids []uint32) []uint32 {
	type merge struct {
		rank int
		id   uint32
	}
	merges := map[[2]uint32]merge{}
	for rank, pair := range m.merges {
		merges[[2]uint32{m.vocab[pair[0]], m.vocab[pair[1]]}] = merge{rank, m.vocab[pair[0]+pair[1]]}
	}
	for {
		at, best := -1, merge{}
		for i := range len(ids) - 1 {
			if found, ok := merges[[2]uint32{ids[i], ids[i+1]}]; ok && (at < 0 || found.rank < best.rank) {
				at, best = i, found
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.id)
	}
}

// randomModel has few characters, so that many merges compete. Some have no token, or fall back to
// bytes that may be missing.
func randomModel(r *rand.Rand) (*plainModel, []rune) {
	characters := []rune("ab\tc▁é日\x00\U0001f600")
	m := &plainModel{
		vocab: map[string]uint32{}, byteLevel: r.IntN(3) == 0,
		fuse: r.IntN(2) == 0, fallBack: r.IntN(3) > 0, ignoreMerges: r.IntN(4) == 0,
	}
	var tokens []string
	add := func(token string) {
		if _, ok := m.vocab[token]; !ok && len(token) < 60 {
			m.vocab[token] = uint32(len(m.vocab) * 3)
			tokens = append(tokens, token)
		}
	}
	if r.IntN(2) == 0 {
		m.unknown = "<unk>"
		add(m.unknown)
	}
	bytesMissing := []int{0, 0, 0, 200}[r.IntN(4)]
	for b := range 256 {
		if b < 0x80 && r.IntN(256) < 128 || r.IntN(256) >= bytesMissing {
			m.vocab[fmt.Sprintf("<0x%02X>", b)] = uint32(len(m.vocab) * 3)
		}
	}
	for _, c := range characters {
		if m.byteLevel {
			for _, b := range []byte(string(c)) {
				if r.IntN(8) > 0 {
					add(string(byteCharacter(b)))
				}
			}
		} else if r.IntN(4) > 0 {
			add(string(c))
		}
	}
	if r.IntN(8) == 0 {
		tokens = append(tokens, "<0x00>", "<0xE6>") // merges of byte tokens
		add("<0x00><0xE6>")
		add("a<0x00>")
	}
	if len(tokens) == 0 {
		add("a")
	}
	for range 4 + r.IntN(40) {
		add(tokens[r.IntN(len(tokens))] + tokens[r.IntN(len(tokens))])
	}
	m.merges = randomMerges(r, tokens, m.vocab)
	return m, characters
}

// randomMerges returns half of the merges that make a token, in any order, and some twice.
func randomMerges(r *rand.Rand, tokens []string, vocab map[string]uint32) (merges [][2]string) {
	for _, token := range tokens {
		for cut := 1; cut < len(token); cut++ {
			_, ok1 := vocab[token[:cut]]
			_, ok2 := vocab[token[cut:]]
			for ok1 && ok2 && r.IntN(2) == 0 {
				merges = append(merges, [2]string{token[:cut], token[cut:]})
			}
		}
	}
	r.Shuffle(len(merges), func(i, j int) { merges[i], merges[j] = merges[j], merges[i] })
	return merges
}

func randomLetters(r *rand.Rand, characters []rune, n int) string {
	text := make([]rune, n)
	few := 1 + r.IntN(len(characters))
	for i := range text {
		text[i] = characters[r.IntN(few)]
	}
	return string(text)
}

func TestRandomModelsAsReference(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	pieces, cutting, parted := 0, 0, 0
	for range 600 / sampled() {
		plain, characters := randomModel(r)
		m, err := tokenize.ParseModel(plain.section(t), plain.byteLevel)
		must(t, err)
		if m.Cuts() {
			cutting++
		}
		r.Shuffle(len(characters), func(i, j int) { characters[i], characters[j] = characters[j], characters[i] })
		for i := range 12 {
			n := 1 + r.IntN(12)
			if i == 0 {
				n = r.IntN(3 * tokenize.LongPiece)
			}
			text := randomLetters(r, characters, n)
			got, again, err := m.EncodePiece(text)
			must(t, err)
			if want := plain.encode(text); !slices.Equal(got, want) || !slices.Equal(again, want) {
				t.Fatalf("%q: got %v, then %v, want %v by\n%s", text, got, again, want, plain.section(t))
			}
			pieces++
			parted += checkParts(t, m, plain, text)
		}
	}
	t.Logf("%d pieces, %d models cut, %d places to part at", pieces, cutting, parted)
	if *long && (cutting < 120 || parted < 5000) {
		t.Errorf("too few models cut, or too few places to part at")
	}
}

// checkParts compares a text with its parts at each position where the model may cut it, and
// returns the number of positions.
func checkParts(tb testing.TB, m *tokenize.Model, plain *plainModel, text string) (n int) {
	tb.Helper()
	for at := range text {
		l, _ := utf8.DecodeLastRuneInString(text[:at])
		next, _ := utf8.DecodeRuneInString(text[at:])
		if at == 0 || !m.Parts(l, next) {
			continue
		}
		n++
		got := append(plain.encode(text[:at]), plain.encode(text[at:])...)
		if want := plain.encode(text); !slices.Equal(got, want) {
			tb.Fatalf("%q at %d: got %v, want %v by\n%s", text, at, got, want, plain.section(tb))
		}
	}
	return n
}

// Models treat a character without a token differently.
func TestUnknownCharacters(t *testing.T) {
	vocab := map[string]uint32{"a": 0, "b": 1, "ab": 2, "<unk>": 3, "<0xC3>": 4, "<0xA9>": 5, "<0xE6>": 6, "a<unk>": 7}
	for _, c := range []struct {
		name  string
		model plainModel
		text  string
		want  []uint32
	}{
		{"left out", plainModel{}, "axb", []uint32{2}},
		{"one for each", plainModel{unknown: "<unk>"}, "axxb", []uint32{0, 3, 3, 1}},
		{"one for all", plainModel{unknown: "<unk>", fuse: true}, "axxb", []uint32{0, 3, 1}},
		{"at the end", plainModel{unknown: "<unk>", fuse: true}, "xbxx", []uint32{3, 1, 3}},
		{"bytes", plainModel{unknown: "<unk>", fallBack: true}, "aéb", []uint32{0, 4, 5, 1}},
		{"not all bytes", plainModel{unknown: "<unk>", fallBack: true}, "a日b", []uint32{0, 3, 1}},
		{"bytes overtake", plainModel{unknown: "<unk>", fallBack: true}, "日éb", []uint32{4, 5, 3, 1}},
		{"bytes do not part", plainModel{unknown: "<unk>", fallBack: true, fuse: true}, "日é日", []uint32{4, 5, 3}},
		{"bytes, or left out", plainModel{fallBack: true}, "a日b", []uint32{2}},
		{"merged", plainModel{unknown: "<unk>", merges: [][2]string{{"a", "<unk>"}}}, "axb", []uint32{7, 1}},
	} {
		c.model.vocab = vocab
		if c.model.merges == nil {
			c.model.merges = [][2]string{{"a", "b"}}
		}
		m, err := tokenize.ParseModel(c.model.section(t), false)
		must(t, err)
		got, _, err := m.EncodePiece(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q: got %v, %v, want %v", c.name, c.text, got, err, c.want)
		}
		if plain := c.model.encode(c.text); !slices.Equal(plain, c.want) {
			t.Errorf("%s: %q: the reference has %v, want %v", c.name, c.text, plain, c.want)
		}
	}
}

// bytesVocab has all byte tokens and these.
func bytesVocab(tokens ...string) map[string]uint32 {
	vocab := map[string]uint32{}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = uint32(b)
	}
	for _, token := range tokens {
		vocab[token] = uint32(len(vocab))
	}
	return vocab
}

// A piece is cut only where no merge can cross.
func TestParts(t *testing.T) {
	merges := [][2]string{{"▁", "a"}, {"▁", "▁"}, {"a", "b"}, {">", "▁"}}
	vocab := bytesVocab("▁", "a", "b", ">", "▁a", "▁▁", "ab", ">▁", "<0x41>a")
	withoutTab := bytesVocab("▁", "a", "b", ">", "▁a", "▁▁", "ab", ">▁", "\t")
	delete(withoutTab, "<0x09>")
	withoutByte := bytesVocab("▁", "a", "b", ">", "▁a", "▁▁", "ab", ">▁")
	delete(withoutByte, "<0xE6>")
	for _, c := range []struct {
		name  string
		model plainModel
		cuts  bool
		parts map[string]bool
	}{
		{"all bytes", plainModel{vocab: vocab, fallBack: true, merges: merges}, true, map[string]bool{
			"▁a": false, "▁▁": false, "ab": false, ">▁": false, "a▁": true, "b▁": true, "ba": true, "日本": true, "▁日": true,
		}},
		{"a byte that is a token", plainModel{vocab: withoutTab, fallBack: true, merges: merges}, true, map[string]bool{"a▁": true, "\t\t": true}},
		{"merges ignored", plainModel{vocab: vocab, fallBack: true, ignoreMerges: true, merges: merges}, true, map[string]bool{"a▁": false}},
		{"a byte is missing", plainModel{vocab: withoutByte, fallBack: true, merges: merges}, false, map[string]bool{"a▁": false}},
		{"no bytes", plainModel{vocab: vocab, unknown: "a", merges: merges}, false, map[string]bool{"a▁": false}},
		{"byte-level", plainModel{vocab: vocab, fallBack: true, byteLevel: true, merges: merges}, false, map[string]bool{"a▁": false}},
		{
			"bytes merge", plainModel{vocab: vocab, fallBack: true, merges: append(merges, [2]string{"<0x41>", "a"})},
			false, map[string]bool{"a▁": false},
		},
	} {
		m, err := tokenize.ParseModel(c.model.section(t), c.model.byteLevel)
		must(t, err)
		if m.Cuts() != c.cuts {
			t.Errorf("%s: cuts is %v", c.name, m.Cuts())
		}
		for pair, want := range c.parts {
			if s := []rune(pair); m.Parts(s[0], s[1]) != want {
				t.Errorf("%s: parts(%q) is %v", c.name, pair, !want)
			}
		}
	}
}

// Kept pieces replace each other, and are not mixed up with those of other ids.
func TestKeptPiecesAsReference(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	bpe, cold := loadTiny(t), loadTiny(t)
	tokenize.Cold(cold)
	words := strings.Fields(readProse(t))
	for range 40 {
		text := englishLike(words, 8<<10, r)
		if got, want := encode(t, bpe, text, true), encode(t, cold, text, true); !slices.Equal(got, want) {
			t.Fatalf("%.200q: got %v, want %v", text, clip(got), clip(want))
		}
	}
}
