package tokenize

import (
	"bytes"
	"context"
	"slices"
)

// A model turns a piece into ids (tokenizers 0.23.2, models/bpe/model.rs).
type model struct {
	bytes   [256]uint32       // the id of each byte
	words   map[string]uint32 // the pieces that are one token without merging
	longest int               // bytes of the longest of words
	merges  *mergeTable
}

// encode appends the ids of piece, which is not empty.
func (t *model) encode(w *scratch, dst []uint32, piece []byte) ([]uint32, error) {
	if len(piece) <= t.longest {
		if id, ok := t.words[string(piece)]; ok {
			return append(dst, id), nil
		}
	}
	ids, err := t.mergePiece(w.ctx, &w.merge, piece)
	return append(dst, ids...), err
}

func (t *model) mergePiece(ctx context.Context, w *mergeScratch, piece []byte) ([]uint32, error) {
	w.ids = slices.Grow(w.ids[:0], len(piece))
	for _, b := range piece {
		w.ids = append(w.ids, t.bytes[b])
	}
	return t.merges.merge(ctx, w)
}

// parseModel reads the model section (tokenizers 0.23.2,
// models/bpe/serialization.rs), and returns the vocabulary as the file writes it.
func parseModel(raw []byte) (t *model, vocab map[string]uint32, err error) {
	t = new(model)
	o, err := parseObject("model", raw)
	if err != nil {
		return nil, nil, err
	}
	ignoreMerges, err := parseModelSettings(o)
	if err != nil {
		return nil, nil, err
	}
	vocab, err = parseVocab(o)
	if err != nil {
		return nil, nil, err
	}
	if t.merges, err = parseMerges(o, vocab); err != nil {
		return nil, nil, err
	}
	tokens := bytesOf(vocab)
	for b := range 256 {
		id, ok := tokens[string([]byte{byte(b)})]
		if !ok {
			// An unknown token, or nothing at all, would stand for it.
			return nil, nil, unsupported("a vocabulary without the byte %#02x", b)
		}
		t.bytes[b] = id
	}
	if !ignoreMerges {
		t.dropUnmerged(tokens)
	}
	t.words = tokens
	for word := range tokens {
		t.longest = max(t.longest, len(word))
	}
	return t, vocab, nil
}

// parseModelSettings checks all fields but vocab and merges. unk_token and the
// two settings about it would stand for bytes that the vocabulary lacks; none may
// be lacking.
func parseModelSettings(o object) (ignoreMerges bool, err error) {
	// Old files have no type: the fields tell.
	if _, ok := o.values["type"]; ok {
		kind, err := o.text("type")
		if err != nil {
			return false, err
		}
		if kind != "BPE" {
			return false, unsupported("model %.60q", kind)
		}
	}
	if err := o.only("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
		"fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"); err != nil {
		return false, err
	}
	if !o.absent("dropout") {
		return false, unsupported("model dropout")
	}
	if !o.absent("unk_token") {
		if _, err := o.text("unk_token"); err != nil {
			return false, err
		}
	}
	for _, name := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if o.absent(name) {
			continue
		}
		affix, err := o.text(name)
		if err != nil {
			return false, err
		}
		if affix != "" {
			return false, unsupported("model %s %.60q", name, affix)
		}
	}
	for _, name := range []string{"fuse_unk", "byte_fallback"} {
		if o.absent(name) {
			continue
		}
		on, err := o.flag(name)
		if err != nil {
			return false, err
		}
		if on {
			return false, unsupported("model %s", name)
		}
	}
	if o.absent("ignore_merges") {
		return false, nil
	}
	return o.flag("ignore_merges")
}

func parseVocab(o object) (map[string]uint32, error) {
	raw := o.values["vocab"]
	if len(raw) == 0 || raw[0] != '{' {
		return nil, malformed("model: field \"vocab\" is not an object")
	}
	vocab := map[string]uint32{}
	taken := make([]uint64, maxVocab/64) // a bit for each id
	err := eachMember(raw, func(key, value []byte) error {
		token := unquote(key)
		if len(token) > maxToken {
			return malformed("vocab: a token has %d bytes, more than %d", len(token), maxToken)
		}
		id, ok := parseID(value, maxVocab)
		if !ok {
			return malformed("vocab: token %.60q has an id that is not an integer below %d", token, maxVocab)
		}
		if taken[id/64]>>(id%64)&1 != 0 {
			return malformed("vocab: token %.60q has id %d, which another has", token, id)
		}
		taken[id/64] |= 1 << (id % 64)
		if _, ok := vocab[string(token)]; ok {
			return malformed("vocab: token %.60q is there twice", token)
		}
		vocab[string(token)] = id
		return nil
	})
	return vocab, err
}

// parseMerges reads the merges, which come in two forms: "a b" and ["a", "b"].
func parseMerges(o object, vocab map[string]uint32) (*mergeTable, error) {
	raw := o.values["merges"]
	if len(raw) == 0 || raw[0] != '[' {
		return nil, malformed("model: field \"merges\" is not an array")
	}
	var pairs [][2]uint32
	var results []uint32
	var joined []byte
	form := raw[afterSpace(raw, 1)] // the first byte of the first merge
	err := eachElement(raw, func(item []byte) error {
		if item[0] != form {
			return malformed("merges: %d is not in the form of those before it", len(results))
		}
		if len(results) == maxMerges {
			return malformed("merges: more than %d", maxMerges)
		}
		a, b, ok := parseMerge(item)
		if !ok {
			return malformed("merges: %d is not a pair of tokens", len(results))
		}
		if a == nil {
			return nil
		}
		joined = append(append(joined[:0], a...), b...)
		left, ok1 := vocab[string(a)]
		right, ok2 := vocab[string(b)]
		result, ok3 := vocab[string(joined)]
		if !ok1 || !ok2 || !ok3 {
			return malformed("merges: %d, %.60q and %.60q: they or what they make are not in the vocabulary", len(results), a, b)
		}
		pairs = append(pairs, [2]uint32{left, right})
		results = append(results, result)
		return nil
	})
	if err != nil {
		return nil, err
	}
	t := newMergeTable(len(pairs))
	for i, p := range pairs {
		t.add(p[0], p[1], results[i])
	}
	return t, nil
}

// parseMerge returns the two tokens of a merge; neither is empty. It returns nil
// for the version line that merges.txt begins with and that old files still have.
func parseMerge(item []byte) (a, b []byte, ok bool) {
	switch item[0] {
	case '"':
		line := unquote(item)
		if bytes.HasPrefix(line, []byte("#version")) {
			return nil, nil, true
		}
		a, b, _ = bytes.Cut(line, []byte(" "))
		return a, b, len(a) > 0 && len(b) > 0 && bytes.IndexByte(b, ' ') < 0
	case '[':
		n := 0
		for i := afterSpace(item, 1); item[i] != ']'; n++ {
			if item[i] != '"' || n == 2 {
				return nil, nil, false
			}
			end := valueEnd(item, i)
			a, b = b, unquote(item[i:end])
			i = nextItem(item, end)
		}
		return a, b, n == 2 && len(a) > 0 && len(b) > 0
	}
	return nil, nil, false
}

// bytesOf returns the vocabulary by the bytes that its tokens stand for. A token
// with a character that stands for no byte is left out: no text can give it.
func bytesOf(vocab map[string]uint32) map[string]uint32 {
	alphabet := byteAlphabet()
	type span struct {
		from, to int
		id       uint32
	}
	spans := make([]span, 0, len(vocab))
	var text []byte
	for token, id := range vocab {
		from := len(text)
		decodes := true
		for _, r := range token {
			if int(r) >= len(alphabet) || alphabet[r] < 0 {
				decodes = false
				break
			}
			text = append(text, byte(alphabet[r]))
		}
		if !decodes {
			text = text[:from]
			continue
		}
		spans = append(spans, span{from, len(text), id})
	}
	// One string for all: a hundred thousand small ones would cost twice the memory.
	all := string(text)
	tokens := make(map[string]uint32, len(spans))
	for _, s := range spans {
		tokens[all[s.from:s.to]] = s.id
	}
	return tokens
}

// byteAlphabet returns, for each character that byte-level files write a byte
// with, the byte; -1 for others. Bytes that print in Latin-1 stand for
// themselves, the rest for the characters from U+0100 on.
func byteAlphabet() [0x144]int16 {
	var alphabet [0x144]int16
	for i := range alphabet {
		alphabet[i] = -1
	}
	next := 0x100
	for b := range 256 {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			alphabet[b] = int16(b)
			continue
		}
		alphabet[next] = int16(b)
		next++
	}
	return alphabet
}

// dropUnmerged deletes the tokens that merging does not make of their own bytes.
// What is left can be looked up instead of merged.
func (t *model) dropUnmerged(tokens map[string]uint32) {
	w := new(mergeScratch)
	for token, id := range tokens {
		ids, err := t.mergePiece(context.Background(), w, []byte(token))
		if err != nil || len(ids) != 1 || ids[0] != id {
			delete(tokens, token)
		}
	}
}
