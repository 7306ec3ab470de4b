// Resuming depends on two characters. Everything that could carry a decision across a place in
// the text is checked for the characters on its two sides: added tokens, the normalizer, each
// step that cuts, the merges. Where none can, the ids to the left are final. It is not the
// last position in every case, but the check is local.
//
// Marks cut a text at places to resume from. EncodeMarks encodes the text between two such
// places as a part of its own, so the ids are those of Encode, and a place costs a check of
// some four characters. Any two places of one text go together: the checks of a place are
// about two characters, or about an added token that begins there, and no place is within an
// added token. The normalized lengths of the parts are summed up, so a text is too long in
// parts exactly if it is as a whole. The search for a place gives up after maxWalk bytes,
// because a text of one letter would cost as much to search as to encode.

package tokenize

import (
	"context"
	"unicode/utf8"
)

// resume returns the last position of text from least on, in bytes, before which no
// appended text changes the ids; 0 if there is none. least is at least 1. For
// p := t.resume(text, 1) and every text longer that begins with text,
//
//	Encode(longer) == Encode(text[:p]) + the ids of longer from p on
//
// except that the tokens which the model puts after a text come once, at the end.
//
// Such a position is the beginning of an added token, or a place between two characters
// that no added token, normalizer, piece or merge can contain together. In most
// languages every word has one.
func (t *BPE) resume(text string, least int) int {
	r, n := utf8.DecodeLastRuneInString(text)
	for p := len(text) - n; p >= least; {
		l, width := utf8.DecodeLastRuneInString(text[:p])
		if t.settled(l, width, r, n, text[p:]) {
			return p
		}
		p -= width
		r, n = l, width
	}
	return 0
}

// settled reports whether encoding may resume between l and r, which begins
// rest. Bytes that are not UTF-8 (U+FFFD of width 1) may yet become part of a
// character.
func (t *BPE) settled(l rune, lWidth int, r rune, rWidth int, rest string) bool {
	if l == utf8.RuneError && lWidth == 1 || r == utf8.RuneError && rWidth == 1 {
		return false
	}
	// Behind white space, lookaheads and lstrip depend on what is to the right.
	if classOf(l)&space != 0 {
		return false
	}
	if t.plain.begins(rest) && classOf(r)&space == 0 {
		return !t.plain.joins(l, r)
	}
	nl, nr, ok := t.normalizer.boundary(l, r)
	if !ok || !t.pre.restarts(nl, nr) || !t.pre.ends(nl, nr) && !t.model.parts(t.pre.rewritten(nl), t.pre.rewritten(nr)) {
		return false
	}
	// Last, because hardly any place fails here, and maps are slow.
	return !t.plain.joins(l, r) && !t.plain.borders(l, r) && !t.normalized.joins(nl, nr) && !t.normalized.borders(nl, nr)
}

// EncodeMarks is Encode for a text that grows. It appends the ids of p.Text[p.From:], and
// finds at p.Marks where an encoding of a text with the same beginning may go on. An Indexer
// with a prompt cache calls it.
//
// EncodeMarks sets Resume and Tokens of the marks at which encoding may resume, and returns
// these marks in kept, which is the beginning of p.Marks. The rest of p.Marks is undefined.
// A mark is left out if there is no position between the mark before, or p.From, and itself,
// and if there is none within 256 bytes before it, or fewer where the marks before were left
// out.
//
// p.From is 0, or the Resume of a mark of a text with which p.Text begins up to the mark. The
// tokens that the model puts before a text are in the result only if p.From is 0. Tokens
// counts from there: the ids before a mark of p.Text are those before that mark and these.
//
// The errors are those of Encode, and one about positions that are outside of p.Text or do
// not ascend. kept is nil then. ErrTextTooLong is about all of p.Text, as Encode returns
// it, with one exception: of a text of at most 1 MiB, the part before p.From does not count
// for the bound on normalized text. Such a text can only be too long if the normalizer makes
// more than 16 bytes of one, and no normalizer of a known model does.
//
// With room in dst EncodeMarks allocates nothing more than Encode does.
func (t *BPE) EncodeMarks(ctx context.Context, dst []uint32, p Passage) (ids []uint32, kept []Mark, err error) {
	return t.encode(call{ctx, context.Context.Err}, dst, p)
}

// edges are the characters of added tokens that matter for cuts of a text.
type edges struct {
	inside map[[2]rune]bool // neighbours in a token
	last   map[rune]bool    // last in a token: behind it, a text may be at the beginning of a segment
	alone  map[rune]bool    // first in a token with single_word, which depends on the character before it
}

func edgesOf(tokens []addedToken) edges {
	e := edges{map[[2]rune]bool{}, map[rune]bool{}, map[rune]bool{}}
	for _, t := range tokens {
		prev := rune(-1)
		for _, r := range t.content {
			if prev >= 0 {
				e.inside[[2]rune{prev, r}] = true
			} else if t.singleWord {
				e.alone[r] = true
			}
			prev = r
		}
		e.last[prev] = true
	}
	return e
}

// joins reports whether a token may have l right before r.
func (m *matcher) joins(l, r rune) bool { return m != nil && m.edges.inside[[2]rune{l, r}] }

// borders reports whether a token may end with l, or must see l if it begins with r.
func (m *matcher) borders(l, r rune) bool {
	return m != nil && (m.edges.last[l] || m.edges.alone[r])
}

// begins reports whether a token is found where s begins, whatever comes before and after s.
func (m *matcher) begins(s string) bool {
	if m == nil || m.single {
		return false
	}
	first := m.byByte[s[0]]
	return first.from < first.to && m.longest([]byte(s[:min(len(s), maxContent)]), first) != nil
}
