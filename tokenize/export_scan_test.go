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

func PatternOf(regex string) (Pattern, bool) {
	p, ok := patternOf(regex)
	return p.forTests(), ok
}

// The built-in patterns of the components and of ByteLevel.
var (
	Digits       = digits.forTests()
	Punctuation  = punctuation.forTests()
	MappedDigits = mappedDigits.forTests()
)

const GPT2Pattern = gpt2Pattern

// InProperty reports whether r is in the pattern \p{name}.
func InProperty(name string, r rune) bool {
	c, ok := property(name)
	return ok && classOf(r)&c != 0
}

// ProgramOf is PatternOf without the hand-written scanners.
func ProgramOf(regex string) Pattern {
	p, _ := parseRegex(regex)
	p.prepare()
	return pattern{scan: p.scan}.forTests()
}

// KnownPatterns are the patterns with a hand-written scanner.
func KnownPatterns() []string { return slices.Collect(maps.Keys(knownScanners)) }
