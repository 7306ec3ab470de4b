package tokenize

import (
	"maps"
	"slices"
)

// A Pattern is a pattern for tests.
type Pattern struct {
	Scan  func(s []byte, i int) (int, bool)
	Spans func(l, r rune) bool
	Total bool
}

func (p pattern) forTests() Pattern { return Pattern{p.scan, p.spans, p.total} }

// PatternOf is patternOf.
func PatternOf(regex string) (Pattern, bool) {
	p, ok := patternOf(regex)
	return p.forTests(), ok
}

// What the components and ByteLevel have built in.
var (
	Digits       = digits.forTests()
	Punctuation  = punctuation.forTests()
	MappedDigits = mappedDigits.forTests()
)

// GPT2Pattern is gpt2Pattern.
const GPT2Pattern = gpt2Pattern

// InProperty reports whether a pattern's \p{name} has r.
func InProperty(name string, r rune) bool {
	c, ok := property(name)
	return ok && classOf(r)&c != 0
}

// ProgramOf is PatternOf without the scanners by hand.
func ProgramOf(regex string) Pattern {
	p, _ := parseRegex(regex)
	p.prepare()
	return pattern{scan: p.scan}.forTests()
}

// KnownPatterns are those that are scanned by hand.
func KnownPatterns() []string { return slices.Collect(maps.Keys(knownScanners)) }
