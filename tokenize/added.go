package tokenize

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// An addedToken is found in the text before it is split into pieces.
type addedToken struct {
	content                    string
	id                         uint32
	singleWord, lstrip, rstrip bool
}

// A matcher finds added tokens: at each place the longest one, and after a match
// the next from its end, as the official Aho-Corasick automaton (leftmost-longest)
// does (tokenizers 0.23.2, tokenizer/added_vocabulary.rs).
type matcher struct {
	tokens []addedToken    // sorted by content, no two alike, none empty
	byByte [256]tokenRange // tokens that begin with a byte
}

// A tokenRange is tokens[from:to] of a matcher.
type tokenRange struct{ from, to int32 }

// newMatcher returns nil for no tokens.
func newMatcher(tokens []addedToken) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	slices.SortFunc(tokens, func(a, b addedToken) int { return cmp.Compare(a.content, b.content) })
	m := &matcher{tokens: tokens}
	for i, t := range tokens {
		r := &m.byByte[t.content[0]]
		if r.to == 0 {
			r.from = int32(i)
		}
		r.to = int32(i) + 1
	}
	return m
}

// find returns the first token at or after s[i:] and where it begins; nil for none.
func (m *matcher) find(s []byte, i int) (*addedToken, int) {
	for ; i < len(s); i++ {
		if r := m.byByte[s[i]]; r.to > r.from {
			if t := m.longest(s[i:], r); t != nil {
				return t, i
			}
		}
	}
	return nil, len(s)
}

// longest returns the longest token that s begins with, among those in r, which
// all have s[0]. It narrows r to the tokens that have one more byte of s at a
// time; a token that ends there sorts before the others.
func (m *matcher) longest(s []byte, r tokenRange) *addedToken {
	var best *addedToken
	for n := 1; ; n++ {
		if t := &m.tokens[r.from]; len(t.content) == n {
			best = t
			r.from++
		}
		if r.from == r.to || n == len(s) {
			return best
		}
		if r = m.narrow(r, n, s[n]); r.from == r.to {
			return best
		}
	}
}

// narrow returns the tokens in r that have b at byte n; all are longer than n.
func (m *matcher) narrow(r tokenRange, n int, b byte) tokenRange {
	first := func(b int) int32 {
		lo, hi := r.from, r.to
		for lo < hi {
			if mid := (lo + hi) / 2; int(m.tokens[mid].content[n]) < b {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		return lo
	}
	return tokenRange{first(int(b)), first(int(b) + 1)}
}

// alone reports whether s[begin:end] has no word character on either side.
func alone(s []byte, begin, end int) bool {
	if r, n := utf8.DecodeLastRune(s[:begin]); n > 0 && classOf(r)&word != 0 {
		return false
	}
	if end == len(s) {
		return true
	}
	c, _ := classAt(s, end)
	return c&word == 0
}

// stripSpace returns the start of the run of white space at the end of s[from:to].
func stripSpace(s []byte, from, to int) int {
	for to > from {
		r, n := utf8.DecodeLastRune(s[from:to])
		if classOf(r)&space == 0 {
			break
		}
		to -= n
	}
	return to
}

// parseAdded reads the added_tokens section into matchers, in the order in which
// they see the text: first the tokens that look at it as it came, then those that
// look at it normalized. No normalizer is supported, but the order shows where
// tokens of both kinds overlap.
func parseAdded(file object, vocab map[string]uint32) (plainTokens, normalized *matcher, err error) {
	if file.absent("added_tokens") {
		return nil, nil, nil
	}
	items, err := file.list("added_tokens", maxAdded)
	if err != nil {
		return nil, nil, err
	}
	var plain, normalizedTokens []addedToken
	p := addedParser{vocab: vocab, seen: map[string]bool{}, next: uint32(len(vocab))}
	for _, item := range items {
		t, isNormalized, err := p.parse(item)
		switch {
		case err != nil:
			return nil, nil, err
		case t.content == "": // the official library passes over it, too
		case isNormalized:
			normalizedTokens = append(normalizedTokens, t)
		default:
			plain = append(plain, t)
		}
	}
	if err := p.checkSpaces(); err != nil {
		return nil, nil, err
	}
	return newMatcher(plain), newMatcher(normalizedTokens), nil
}

type addedParser struct {
	vocab  map[string]uint32
	seen   map[string]bool
	next   uint32 // id of the next token that the vocabulary does not have
	spaced string // a token that begins with white space, if any
	rstrip string // a token with rstrip, if any
}

func (p *addedParser) parse(raw []byte) (t addedToken, normalized bool, err error) {
	o, err := parseObject("added token", raw)
	if err != nil {
		return t, false, err
	}
	if err := o.only("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"); err != nil {
		return t, false, err
	}
	if t.content, err = o.text("content"); err != nil {
		return t, false, err
	}
	// special is for decoding: the text of a special token counts as the token.
	var special bool
	for _, f := range []struct {
		name string
		flag *bool
	}{
		{"single_word", &t.singleWord}, {"lstrip", &t.lstrip}, {"rstrip", &t.rstrip},
		{"normalized", &normalized}, {"special", &special},
	} {
		if *f.flag, err = o.flag(f.name); err != nil {
			return t, false, err
		}
	}
	if t.content == "" {
		return t, normalized, nil
	}
	if len(t.content) > maxToken {
		return t, false, malformed("an added token has %d bytes, more than %d", len(t.content), maxToken)
	}
	if p.seen[t.content] {
		return t, false, malformed("added token %.60q is there twice", t.content)
	}
	p.seen[t.content] = true
	p.note(t)
	t.id, err = p.id(t.content, o.values["id"])
	return t, normalized, err
}

// id returns the token's id. The official library does not take it from the
// file: it is the vocabulary's if that has the content, else the next free one.
// A file that says otherwise would encode to ids that it does not name.
func (p *addedParser) id(content string, raw []byte) (uint32, error) {
	want, ok := p.vocab[content]
	if !ok {
		want = p.next
		p.next++
	}
	if id, ok := parseID(raw, maxVocab); !ok || id != want {
		return 0, malformed("added token %.60q has id %.20s, but its place gives it %d", content, raw, want)
	}
	return want, nil
}

func (p *addedParser) note(t addedToken) {
	if c, _ := classAt([]byte(t.content), 0); c&space != 0 {
		p.spaced = t.content
	}
	if t.rstrip {
		p.rstrip = t.content
	}
}

// checkSpaces refuses a file in which one token could claim white space that
// another has already taken: the official library then encodes it twice, or aborts.
func (p *addedParser) checkSpaces() error {
	if p.spaced != "" && p.rstrip != "" {
		return unsupported("added token %.60q that begins with white space beside %.60q with rstrip", p.spaced, p.rstrip)
	}
	return nil
}

// cut appends the ids of s: those of the added tokens in it, and what between
// appends for s[from:to] between them, which is never empty. A nil matcher has
// no tokens.
func (m *matcher) cut(dst []uint32, s []byte, between func(dst []uint32, from, to int) ([]uint32, error)) ([]uint32, error) {
	from := 0 // s[:from] is done
	var err error
	for at := 0; m != nil; {
		token, begin := m.find(s, at)
		if token == nil {
			break
		}
		end := begin + len(token.content)
		at = end
		if token.singleWord && !alone(s, begin, end) {
			continue
		}
		if token.lstrip {
			begin = stripSpace(s, from, begin)
		}
		if token.rstrip {
			at = skip(s, end, space)
		}
		if from < begin {
			if dst, err = between(dst, from, begin); err != nil {
				return nil, err
			}
		}
		dst = append(dst, token.id)
		from = at
	}
	if from < len(s) {
		return between(dst, from, len(s))
	}
	return dst, nil
}
