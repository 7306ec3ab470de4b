package tokenize

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A normalizer changes a text before it is cut into pieces (tokenizers 0.23.2,
// normalizers/). The zero value changes nothing.
type normalizer struct {
	steps []normalStep // in the order in which they are applied, maxSteps at most
}

// A normalStep is one component of a normalizer that is not a sequence.
type normalStep interface {
	// apply appends the normalized form of s to dst, or reports false if that is s. start is
	// that of normalizer.apply, which checks the length of the result. A step that can make
	// many bytes of one returns w.tooLong itself as soon as it has more than w.left.
	apply(w *normalScratch, dst, s []byte, start bool) (result []byte, changed bool, err error)

	// boundary is that of normalizer.
	boundary(l, r rune) (nl, nr rune, ok bool)

	// keepsStart is that of normalizer.
	keepsStart() bool
}

// A normalScratch is the memory of one normalization.
type normalScratch struct {
	most          int           // bytes of a result; 0: maxText
	made          [maxSteps]int // by step: bytes of its results since start
	left          int           // of most, for the current step
	texts         [2][]byte     // results of steps, in turn
	marks, sorted []uint32      // of a composer
}

func (w *normalScratch) bytes() int {
	return cap(w.texts[0]) + cap(w.texts[1]) + 4*(cap(w.marks)+cap(w.sorted))
}

// apply returns s normalized: s itself if that changes nothing, else memory of w
// that the next call with w overwrites. Without start s continues the text of the
// calls before. It returns ErrTextTooLong if the results since start, or what a step
// makes on the way to them, have more than w.most bytes: a text could grow to many
// times its own length. So a text in parts gets the error that it gets as a whole.
func (n *normalizer) apply(w *normalScratch, s []byte, start bool) ([]byte, error) {
	next := 0
	for i, step := range n.steps {
		if start {
			w.made[i] = 0
		}
		w.left = w.limit() - w.made[i]
		out, changed, err := step.apply(w, w.texts[next][:0], s, start)
		if err != nil {
			return nil, err
		}
		if changed {
			w.texts[next] = out
			s = out
			next = 1 - next
		}
		if len(s) > w.left {
			return nil, w.tooLong()
		}
		w.made[i] += len(s)
	}
	return s, nil
}

func (w *normalScratch) limit() int {
	if w.most > 0 {
		return w.most
	}
	return maxText
}

func (w *normalScratch) tooLong() error {
	return fmt.Errorf("tokenize: %w: more than %d bytes once normalized", ErrTextTooLong, w.limit())
}

// boundary reports whether a text can be normalized in two parts, cut between l and r: for all
// texts A and B, A+l+r+B becomes the form of A+l and then that of r+B without start. nl is the
// last code point of the first part, and nr the first of the second whatever B is. It may
// report false where that holds.
func (n *normalizer) boundary(l, r rune) (nl, nr rune, ok bool) {
	for _, step := range n.steps {
		if l, r, ok = step.boundary(l, r); !ok {
			return 0, 0, false
		}
	}
	return l, r, true
}

// keepsStart reports whether the result begins where the text does, for any text: nothing is
// cut from its beginning, nor more than one code point replaced. The official library finds a
// text's first piece by the origin of its first code point in the text, or of the last one
// that it replaces.
func (n *normalizer) keepsStart() bool {
	return !slices.ContainsFunc(n.steps, func(s normalStep) bool { return !s.keepsStart() })
}

// A prepend begins a text that is not empty (normalizers/prepend.rs).
type prepend string

func (p prepend) apply(_ *normalScratch, dst, s []byte, start bool) ([]byte, bool, error) {
	if !start || len(s) == 0 {
		return dst, false, nil
	}
	return append(append(dst, p...), s...), true, nil
}

func (prepend) boundary(l, r rune) (rune, rune, bool) { return l, r, true }

func (prepend) keepsStart() bool { return true }

// A replace puts content in the place of each pattern, which is not empty
// (normalizers/replace.rs).
type replace struct{ pattern, content []byte }

func (p *replace) apply(w *normalScratch, dst, s []byte, _ bool) ([]byte, bool, error) {
	i := bytes.Index(s, p.pattern)
	if i < 0 {
		return dst, false, nil
	}
	for ; i >= 0; i = bytes.Index(s, p.pattern) {
		dst = append(append(dst, s[:i]...), p.content...)
		if len(dst) > w.left {
			return dst, false, w.tooLong()
		}
		s = s[i+len(p.pattern):]
	}
	return append(dst, s...), true, nil
}

// boundary: no match lies across l and r if the pattern does not have them side
// by side.
func (p *replace) boundary(l, r rune) (rune, rune, bool) {
	var pair [2 * utf8.UTFMax]byte
	if bytes.Contains(p.pattern, utf8.AppendRune(utf8.AppendRune(pair[:0], l), r)) {
		return 0, 0, false
	}
	first, n := utf8.DecodeRune(p.pattern)
	last, _ := utf8.DecodeLastRune(p.pattern)
	return replacement{p.content, n == len(p.pattern)}.boundary(l, r, l == last, r == first)
}

func (p *replace) keepsStart() bool {
	return len(p.content) > 0 && utf8.RuneCount(p.pattern) == 1
}

// A replacement puts content in the place of each match.
type replacement struct {
	content []byte
	always  bool // a character that may match does so whatever is before and after
}

// boundary returns the code points on the two sides of a boundary that no match
// lies across. lMatches: l may end a match. rMatches: r may begin one.
func (p replacement) boundary(l, r rune, lMatches, rMatches bool) (rune, rune, bool) {
	if !lMatches && !rMatches {
		return l, r, true
	}
	if !p.always || len(p.content) == 0 {
		return 0, 0, false
	}
	if lMatches {
		l, _ = utf8.DecodeLastRune(p.content)
	}
	if rMatches {
		r, _ = utf8.DecodeRune(p.content)
	}
	return l, r, true
}

// A replaceRun puts content in the place of each run of blanks: white space, or
// spaces only. A shorter one than least code points stays.
type replaceRun struct {
	all     bool // white space
	least   int  // 1 or 2
	content []byte
}

func (p *replaceRun) apply(w *normalScratch, dst, s []byte, _ bool) ([]byte, bool, error) {
	done, changed := 0, false // s[:done] is in dst
	for i := p.next(s, 0); i < len(s); i = p.next(s, i) {
		end, n := p.run(s, i)
		if n >= p.least {
			dst = append(append(dst, s[done:i]...), p.content...)
			done, changed = end, true
		}
		if len(dst) > w.left {
			return dst, false, w.tooLong()
		}
		i = end
	}
	if !changed {
		return dst, false, nil
	}
	return append(dst, s[done:]...), true, nil
}

// next returns the beginning of the next run.
func (p *replaceRun) next(s []byte, i int) int {
	if p.all {
		return skip(s, i, anything&^space)
	}
	if n := bytes.IndexByte(s[i:], ' '); n >= 0 {
		return i + n
	}
	return len(s)
}

// run returns the end of the run that begins at i, and its number of code points.
func (p *replaceRun) run(s []byte, i int) (end, n int) {
	for i < len(s) {
		c, width := classAt(s, i)
		if c&space == 0 || !p.all && s[i] != ' ' {
			break
		}
		i += width
		n++
	}
	return i, n
}

func (p *replaceRun) boundary(l, r rune) (rune, rune, bool) {
	blank := func(r rune) bool { return r == ' ' || p.all && classOf(r)&space != 0 }
	if blank(l) && blank(r) {
		return 0, 0, false
	}
	return replacement{p.content, p.least == 1}.boundary(l, r, blank(l), blank(r))
}

func (*replaceRun) keepsStart() bool { return false }

// A strip cuts white space off (normalizers/strip.rs).
type strip struct{ left, right bool }

func (p strip) apply(_ *normalScratch, dst, s []byte, start bool) ([]byte, bool, error) {
	from, to := 0, len(s)
	if p.left && start {
		from = skip(s, 0, space)
	}
	if p.right {
		to = stripSpace(s, from, to)
	}
	if to-from == len(s) {
		return dst, false, nil
	}
	return append(dst, s[from:to]...), true, nil
}

func (p strip) boundary(l, r rune) (rune, rune, bool) {
	return l, r, classOf(l)&space == 0 && classOf(r)&space == 0
}

func (p strip) keepsStart() bool { return !p.left }

// parseNormalizer reads the normalizer section; raw is empty or null for none.
func parseNormalizer(raw []byte) (normalizer, error) {
	var n normalizer
	if len(raw) == 0 || string(raw) == "null" {
		return n, nil
	}
	err := n.parse(raw, maxNesting)
	return n, err
}

// maxNesting bounds sequences within sequences.
const maxNesting = 8

// parse adds the steps of a component.
func (n *normalizer) parse(raw []byte, nesting int) error {
	o, err := parseComponent("normalizer", raw)
	if err != nil {
		return err
	}
	if o.kind == "Sequence" {
		return n.parseSequence(o, nesting)
	}
	step, err := parseNormalStep(o)
	if err != nil {
		return err
	}
	if len(n.steps) == maxSteps {
		return malformed("normalizer: more than %d steps", maxSteps)
	}
	n.steps = append(n.steps, step)
	return nil
}

func (n *normalizer) parseSequence(o component, nesting int) error {
	if nesting == 0 {
		return unsupported("normalizer Sequence more than %d deep", maxNesting)
	}
	if err := o.only("normalizers"); err != nil {
		return err
	}
	items, err := o.list("normalizers", maxSteps)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := n.parse(item, nesting-1); err != nil {
			return err
		}
	}
	return nil
}

func parseNormalStep(o component) (normalStep, error) {
	switch o.kind {
	case "NFD", "NFC", "NFKD", "NFKC":
		kind := o.kind
		return form{compose: kind[len(kind)-1] == 'C', compat: kind[2] == 'K'}, o.only()
	case "Prepend":
		if err := o.only("prepend"); err != nil {
			return nil, err
		}
		text, err := o.text("prepend")
		if err == nil && text == "" {
			// It shifts the official library's offsets, which then may abort it.
			err = unsupported("normalizer Prepend of nothing")
		}
		return prepend(text), err
	case "Strip":
		return parseStrip(o)
	case "Replace":
		return parseReplace(o)
	}
	return nil, unsupported("normalizer %.60q", o.kind)
}

func parseStrip(o component) (normalStep, error) {
	var p strip
	err := o.only("strip_left", "strip_right")
	if err == nil {
		p.left, err = o.flag("strip_left")
	}
	if err == nil {
		p.right, err = o.flag("strip_right")
	}
	return p, err
}

func parseReplace(o component) (normalStep, error) {
	if err := o.only("pattern", "content"); err != nil {
		return nil, err
	}
	content, err := o.text("content")
	if err != nil {
		return nil, err
	}
	p, err := parseObject("normalizer Replace pattern", o.values["pattern"])
	if err != nil {
		return nil, err
	}
	if len(p.values) != 1 {
		return nil, malformed("normalizer Replace pattern has %d fields, not one", len(p.values))
	}
	if _, ok := p.values["Regex"]; ok {
		pattern, err := p.text("Regex")
		if err != nil {
			return nil, err
		}
		return parseReplaceRegex(pattern, content)
	}
	if err := p.only("String"); err != nil {
		return nil, err
	}
	pattern, err := p.text("String")
	if err != nil {
		return nil, err
	}
	if pattern == "" {
		// It would match before each code point.
		return nil, unsupported("normalizer Replace of an empty pattern")
	}
	return &replace{[]byte(pattern), []byte(content)}, nil
}

// parseReplaceRegex finds patterns by their text, as the scanners do, and literal patterns.
func parseReplaceRegex(pattern, content string) (normalStep, error) {
	if pattern != "" && !strings.ContainsAny(pattern, `\^$.|?*+()[]{}`) {
		return &replace{[]byte(pattern), []byte(content)}, nil
	}
	switch pattern {
	case " +":
		return &replaceRun{least: 1, content: []byte(content)}, nil
	case " {2,}":
		return &replaceRun{least: 2, content: []byte(content)}, nil
	case `\s+`:
		return &replaceRun{all: true, least: 1, content: []byte(content)}, nil
	}
	return nil, unsupported("normalizer Replace pattern %.400q", pattern)
}
