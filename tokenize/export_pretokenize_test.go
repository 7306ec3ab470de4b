package tokenize

import "encoding/json"

// The places of a text given to a PreTokenizer.
const (
	TextStart  = textStart
	PieceStart = pieceStart
	Inside     = inside
)

// A PreTokenizer is a pre_tokenizer section by itself.
type PreTokenizer struct{ made preTokenizer }

// NewPreTokenizer parses a section: JSON without surrounding white space.
func NewPreTokenizer(section string) (PreTokenizer, error) {
	if !json.Valid([]byte(section)) {
		return PreTokenizer{}, malformed("not JSON")
	}
	p, err := parsePreTokenizer([]byte(section))
	return PreTokenizer{p}, err
}

func (p PreTokenizer) ByteLevel() bool         { return p.made.byteLevel }
func (p PreTokenizer) Steps() int              { return len(p.made.steps) }
func (p PreTokenizer) Restarts(l, r rune) bool { return p.made.restarts(l, r) }
func (p PreTokenizer) Ends(l, r rune) bool     { return p.made.ends(l, r) }
func (p PreTokenizer) Isolated(i int) bool     { return p.made.steps[i].behavior == isolated }
func PostProcessor(section string) (before, after []uint32, err error) {
	if !json.Valid([]byte(section)) {
		return nil, nil, malformed("not JSON")
	}
	file, err := parseObject("the file", []byte(`{"post_processor":`+section+`}`))
	if err != nil {
		return nil, nil, err
	}
	return parsePostProcessor(file)
}

// Pieces returns the pieces of text at this place.
func (p PreTokenizer) Pieces(text string, at place) []string {
	if text == "" {
		return nil
	}
	return p.pieces(nil, []byte(text), 0, at)
}

func (p PreTokenizer) pieces(dst []string, s []byte, depth int, at place) []string {
	if depth == len(p.made.steps) {
		return append(dst, string(s))
	}
	t := &p.made.steps[depth]
	if t.rewrite != nil {
		s = t.rewrite(nil, s, at)
	}
	for i := 0; i < len(s); {
		var to int
		from := i
		if t.behavior == isolated {
			to, _ = t.scan(s, i)
		} else {
			from, to = t.next(s, i)
		}
		if from < to {
			dst = p.pieces(dst, s[from:to], depth+1, pieceStart)
		}
		i = to
	}
	return dst
}

// CountScans returns how often the single step of a section calls its scanner for text.
func CountScans(section, text string) (calls int) {
	p, err := NewPreTokenizer(section)
	if err != nil {
		panic(err)
	}
	t := &p.made.steps[0]
	scan := t.scan
	t.scan = func(s []byte, i int) (int, bool) {
		calls++
		return scan(s, i)
	}
	p.Pieces(text, textStart)
	return calls
}

// Lookahead reports whether the lookahead of a regular expression is known, and whether matches
// that end with a space or a digit depend on it.
func Lookahead(regex string) (known, atSpace, atDigit bool) {
	ends, ok := lookahead(regex)
	return ok, ends&space != 0, ends&number != 0
}
