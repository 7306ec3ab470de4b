package tokenize_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// A reference encodes slowly: patterns by backtracking, merges by a scan of the whole word for
// each.
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

// variant returns tiny.json with sections and fields of the model replaced.
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
	must(tb, err)
	return b
}
