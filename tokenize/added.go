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
	normalized                 bool
}

// A matcher finds added tokens: at each place the longest one, and after a match
// the next from its end, as the official Aho-Corasick automaton (leftmost-longest)
// does (tokenizers 0.23.2, tokenizer/added_vocabulary.rs).
type matcher struct {
	tokens []addedToken    // sorted by content, no two alike, none empty
	byByte [256]tokenRange // tokens that begin with a byte
	edges  edges
	single bool // one has single_word

	second [256]bool // bytes that come second in a token
	short  [256]bool // bytes that are a token
}

// A tokenRange is tokens[from:to] of a matcher.
type tokenRange struct{ from, to int32 }

// newMatcher returns nil for no tokens.
func newMatcher(tokens []addedToken) (*matcher, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	slices.SortFunc(tokens, func(a, b addedToken) int { return cmp.Compare(a.content, b.content) })
	if err := checkTogether(tokens); err != nil {
		return nil, err
	}
	m := &matcher{tokens: tokens, edges: edgesOf(tokens)}
	for i, t := range tokens {
		r := &m.byByte[t.content[0]]
		if r.to == 0 {
			r.from = int32(i)
		}
		r.to = int32(i) + 1
		m.single = m.single || t.singleWord
		if len(t.content) == 1 {
			m.short[t.content[0]] = true
		} else {
			m.second[t.content[1]] = true
		}
	}
	return m, nil
}

// size returns the bytes of memory of a matcher.
func (m *matcher) size() int {
	if m == nil {
		return 0
	}
	n := 8*len(m.byByte) + 16*(len(m.edges.inside)+len(m.edges.last)+len(m.edges.alone))
	for _, t := range m.tokens {
		n += len(t.content) + 32
	}
	return n
}

// find returns the first token that begins in s[i:end] and its place; nil and end for none.
// Most files have hundreds of tokens that begin alike, and text has that character, so find
// checks the second byte, too.
func (m *matcher) find(s []byte, i, end int) (*addedToken, int) {
	for ; i < end; i++ {
		r := m.byByte[s[i]]
		if r.to > r.from && (m.short[s[i]] || i+1 < len(s) && m.second[s[i+1]]) {
			if t := m.longest(s[i:], r); t != nil {
				return t, i
			}
		}
	}
	return nil, end
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

// An addedSet has the added tokens of a file, in order, as the official library
// holds them (tokenizers 0.23.2, tokenizer/added_vocabulary.rs).
type addedSet struct {
	vocab     *vocab // of the model
	next      uint32 // the id of the next token that the vocabulary does not have
	tokens    []addedToken
	byContent map[string]int
	byID      map[uint32]int
}

// parseAdded reads the added_tokens section.
func parseAdded(file object, v *vocab) (*addedSet, error) {
	set := &addedSet{vocab: v, next: uint32(v.len()), byContent: map[string]int{}, byID: map[uint32]int{}}
	if file.absent("added_tokens") {
		return set, nil
	}
	items, err := file.list("added_tokens", maxAdded)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		o, err := parseObject("added token", item)
		if err != nil {
			return nil, err
		}
		t, err := parseAddedToken(o, "id")
		if err != nil {
			return nil, err
		}
		if _, ok := set.byContent[t.content]; ok {
			return nil, malformed("added token %.60q is repeated", t.content)
		}
		id, ok := parseID(o.values["id"], maxVocab)
		if !ok && t.content != "" {
			return nil, malformed("added token %.60q has id %.20s", t.content, o.values["id"])
		}
		if err := set.add(t, id); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// parseAddedToken reads an added token that may have further fields.
func parseAddedToken(o object, further ...string) (t addedToken, err error) {
	if err := o.only(append(further, "content", "single_word", "lstrip", "rstrip", "normalized", "special")...); err != nil {
		return t, err
	}
	if t.content, err = o.text("content"); err != nil {
		return t, err
	}
	if len(t.content) > maxContent {
		return t, malformed("an added token has %d bytes, more than %d", len(t.content), maxContent)
	}
	// special only matters for decoding: the text of a special token counts as the token.
	var special bool
	for _, f := range []struct {
		name string
		flag *bool
	}{
		{"single_word", &t.singleWord}, {"lstrip", &t.lstrip}, {"rstrip", &t.rstrip},
		{"normalized", &t.normalized}, {"special", &special},
	} {
		if *f.flag, err = o.flag(f.name); err != nil {
			return t, err
		}
	}
	return t, nil
}

// add puts t into the set, or in place of the token of that content. The official library
// skips an empty one, and does not take ids from the file: the id is the vocabulary's if that
// has the content, else the next free one. A file with another id would encode to ids that it
// does not name.
func (s *addedSet) add(t addedToken, id uint32) error {
	if t.content == "" {
		return nil
	}
	if t.id = s.place(t.content); t.id != id {
		return malformed("added token %.60q has id %d, but its place gives it %d", t.content, id, t.id)
	}
	return s.put(t)
}

// place returns the id of the content, or the one that it would get.
func (s *addedSet) place(content string) uint32 {
	if i, ok := s.byContent[content]; ok {
		return s.tokens[i].id
	}
	if id, ok := s.vocab.id([]byte(content)); ok {
		return id
	}
	return s.next
}

// resume makes the next free id the one for tokens that are added to a tokenizer that has its
// own.
func (s *addedSet) resume() {
	for id := range s.byID {
		if id >= s.next {
			s.next = id + 1
		}
	}
}

// put puts t into the set, at the place of its id. Of two tokens with one id the official
// library finds only the later one, in the text that both have left.
func (s *addedSet) put(t addedToken) error {
	i, ok := s.byContent[t.content]
	if other, taken := s.byID[t.id]; taken && (!ok || other != i) {
		return malformed("added tokens %.60q and %.60q both have id %d", s.tokens[other].content, t.content, t.id)
	}
	if ok {
		s.tokens[i] = t
		return nil
	}
	if _, ok := s.vocab.id([]byte(t.content)); !ok {
		s.next++
	}
	s.byContent[t.content], s.byID[t.id] = len(s.tokens), len(s.tokens)
	s.tokens = append(s.tokens, t)
	return nil
}

// matchers returns a matcher of the tokens in a text as it comes, and one of the tokens in the
// normalized text, by their own normalized text.
func (s *addedSet) matchers(n *normalizer) (plain, normalized *matcher, err error) {
	var raw, changed []addedToken
	for _, t := range s.tokens {
		if !t.normalized {
			raw = append(raw, t)
			continue
		}
		text, err := n.apply(&normalScratch{most: maxContent}, []byte(t.content), true)
		if err != nil {
			return nil, nil, malformed("added token %d has more than %d bytes once it is normalized", t.id, maxContent)
		}
		if t.content = string(text); t.content == "" {
			return nil, nil, malformed("added token %d is empty once it is normalized", t.id)
		}
		changed = append(changed, t)
	}
	if plain, err = newMatcher(raw); err != nil {
		return nil, nil, err
	}
	normalized, err = newMatcher(changed)
	return plain, normalized, err
}

// checkTogether refuses tokens, sorted by content, that the official library
// cannot have together: two alike, or one that may claim white space that another
// has already taken, which it then encodes twice, or aborts.
func checkTogether(tokens []addedToken) error {
	var spaced, rstrip string
	for i, t := range tokens {
		if i > 0 && tokens[i-1].content == t.content {
			return malformed("added tokens %d and %d are both %.60q", tokens[i-1].id, t.id, t.content)
		}
		if c, _ := classAt([]byte(t.content), 0); c&space != 0 {
			spaced = t.content
		}
		if t.rstrip {
			rstrip = t.content
		}
	}
	if spaced != "" && rstrip != "" {
		return unsupported("added token %.60q that begins with white space beside %.60q with rstrip", spaced, rstrip)
	}
	return nil
}

// cut appends the ids of s: those of the added tokens in it, and those that between appends
// for s[from:to] between them, which is never empty. A nil matcher has no tokens.
func (m *matcher) cut(w *scratch, dst []uint32, s []byte, between func(dst []uint32, from, to int) ([]uint32, error)) ([]uint32, error) {
	from := 0 // s[:from] is done
	var err error
	for at := 0; m != nil; {
		window := min(at+checkEvery, len(s))
		token, begin := m.find(s, at, window)
		if err = w.spend(begin - at); err != nil {
			return nil, err
		}
		if token == nil && window == len(s) {
			break
		}
		if token == nil {
			at = window
			continue
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
		if err = w.spend(at - begin); err != nil {
			return nil, err
		}
		dst = append(dst, token.id)
		from = at
	}
	if from < len(s) {
		return between(dst, from, len(s))
	}
	return dst, nil
}
