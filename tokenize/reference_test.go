package tokenize_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// A reference encodes slowly and plainly: patterns by backtracking over their
// alternatives, merges by looking through the whole word each time.
type reference struct {
	pattern      pattern
	vocab        map[string]uint32
	ranks        map[[2]string]int
	ignoreMerges bool
	special      string // the one added token
	specialID    uint32
	alphabet     [256]string
}

func newReference(tb testing.TB, file []byte, p pattern) *reference {
	tb.Helper()
	f := fromJSON[struct {
		AddedTokens []struct {
			ID      uint32
			Content string
		} `json:"added_tokens"`
		Model struct {
			IgnoreMerges bool `json:"ignore_merges"`
			Vocab        map[string]uint32
			Merges       [][2]string
		}
	}](tb, file)
	ref := &reference{pattern: p, vocab: f.Model.Vocab, ranks: map[[2]string]int{}, ignoreMerges: f.Model.IgnoreMerges}
	for rank, m := range f.Model.Merges {
		ref.ranks[m] = rank
	}
	ref.special, ref.specialID = f.AddedTokens[0].Content, f.AddedTokens[0].ID
	next := rune(0x100)
	for b := range rune(256) {
		if strings.ContainsRune(`!"#$%&'()*+,-./0123456789:;<=>?@[\]^_{|}~`+"`", b) ||
			'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || b >= 0xa1 && b != 0xad {
			ref.alphabet[b] = string(b)
			continue
		}
		ref.alphabet[b] = string(next)
		next++
	}
	return ref
}

func (ref *reference) encode(text string) (ids []uint32) {
	text = string([]rune(text)) // each invalid byte becomes U+FFFD
	for i, part := range strings.Split(text, ref.special) {
		if i > 0 {
			ids = append(ids, ref.specialID)
		}
		for _, piece := range ref.pattern.pieces(part) {
			ids = append(ids, ref.encodePiece(piece)...)
		}
	}
	return ids
}

func (ref *reference) encodePiece(piece string) (ids []uint32) {
	var tokens []string
	for _, b := range []byte(piece) {
		tokens = append(tokens, ref.alphabet[b])
	}
	if id, ok := ref.vocab[strings.Join(tokens, "")]; ok && ref.ignoreMerges {
		return []uint32{id}
	}
	for {
		best, at := -1, 0
		for i := range len(tokens) - 1 {
			if r, ok := ref.ranks[[2]string{tokens[i], tokens[i+1]}]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if best < 0 {
			break
		}
		tokens[at] += tokens[at+1]
		tokens = append(tokens[:at+1], tokens[at+2:]...)
	}
	for _, t := range tokens {
		ids = append(ids, ref.vocab[t])
	}
	return ids
}

// decode returns the text of ids.
func (ref *reference) decode(ids []uint32) string {
	bytesOf := map[rune]byte{}
	for b, s := range ref.alphabet {
		bytesOf[[]rune(s)[0]] = byte(b)
	}
	texts := map[uint32]string{ref.specialID: ref.special}
	for token, id := range ref.vocab {
		var text []byte
		for _, r := range token {
			text = append(text, bytesOf[r])
		}
		texts[id] = string(text)
	}
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(texts[id])
	}
	return b.String()
}

// A pattern is a regular expression's alternatives, tried in order.
type pattern []alternative

// An alternative is a sequence of items.
type alternative []item

// An item matches from min to max code points of a set, as many as it can; with
// ahead it matches nothing, and only where none of the set follows.
type item struct {
	set      func(r rune) bool
	min, max int
	ahead    bool
}

const noMax = 1 << 30

func one(r rune) item                { return item{set: func(c rune) bool { return c == r }, min: 1, max: 1} }
func maybe(set func(rune) bool) item { return item{set: set, max: 1} }
func some(set func(rune) bool) item  { return item{set: set, min: 1, max: noMax} }
func any0(set func(rune) bool) item  { return item{set: set, max: noMax} }

func isNewline(r rune) bool { return r == '\r' || r == '\n' }
func isBlank(r rune) bool   { return r == ' ' }
func isOther(r rune) bool {
	return !tokenize.IsSpace(r) && !tokenize.IsLetter(r) && !tokenize.IsNumber(r)
}
func notSpace(r rune) bool { return !tokenize.IsSpace(r) }

// folded matches r and the code points with its simple case folding.
func folded(r rune) item {
	return item{min: 1, max: 1, set: func(c rune) bool { return strings.EqualFold(string(c), string(r)) }}
}

func contractions(char func(rune) item) (p pattern) {
	for _, word := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		var a alternative
		for _, r := range word {
			a = append(a, char(r))
		}
		p = append(p, a)
	}
	return p
}

var (
	trailingSpace = alternative{some(tokenize.IsSpace), {set: notSpace, ahead: true}}

	gpt2Reference = append(contractions(one),
		alternative{maybe(isBlank), some(tokenize.IsLetter)},
		alternative{maybe(isBlank), some(tokenize.IsNumber)},
		alternative{maybe(isBlank), some(isOther)},
		trailingSpace,
		alternative{some(tokenize.IsSpace)},
	)

	llama3Reference = append(contractions(folded),
		alternative{
			maybe(func(r rune) bool { return !isNewline(r) && !tokenize.IsLetter(r) && !tokenize.IsNumber(r) }),
			some(tokenize.IsLetter),
		},
		alternative{{set: tokenize.IsNumber, min: 1, max: 3}},
		alternative{maybe(isBlank), some(isOther), any0(isNewline)},
		alternative{any0(tokenize.IsSpace), some(isNewline)},
		trailingSpace,
		alternative{some(tokenize.IsSpace)},
	)
)

// pieces returns the matches of the pattern, and what lies between them.
func (p pattern) pieces(text string) (pieces []string) {
	s := []rune(text)
	for len(s) > 0 {
		end := -1
		for _, a := range p {
			if end = a.match(s, 0); end > 0 {
				break
			}
		}
		if end <= 0 {
			end = 1
		}
		pieces = append(pieces, string(s[:end]))
		s = s[end:]
	}
	return pieces
}

// match returns the end of the match that begins at i, -1 for none.
func (a alternative) match(s []rune, i int) int {
	if len(a) == 0 {
		return i
	}
	if a[0].ahead {
		if i < len(s) && a[0].set(s[i]) {
			return -1
		}
		return a[1:].match(s, i)
	}
	n := 0
	for n < a[0].max && i+n < len(s) && a[0].set(s[i+n]) {
		n++
	}
	for ; n >= a[0].min; n-- {
		if end := a[1:].match(s, i+n); end >= 0 {
			return end
		}
	}
	return -1
}

// variant returns tiny.json with its sections and its model's fields replaced.
func variant(tb testing.TB, sections, model map[string]any) []byte {
	tb.Helper()
	file := fromJSON[map[string]any](tb, readTiny(tb))
	for name, v := range sections {
		file[name] = v
	}
	for name, v := range model {
		file["model"].(map[string]any)[name] = v
	}
	b, err := json.Marshal(file)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
