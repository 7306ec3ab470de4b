package python

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// A textMethod is a method of str.
type textMethod struct {
	params []string // as of Arguments.Bind
	fn     func(m *Machine, s string, a []Value) (Value, error)
}

// strMethods are the methods of CPython 3.11's str but format and those of lackingAttrs, as far as
// chat templates go: without the start and the end of a search, and without a choice of affixes.
var strMethods = map[string]textMethod{
	"capitalize":   {nil, (*Machine).capitalize},
	"count":        {searchParams, (*Machine).strCount},
	"endswith":     {searchParams, affix("endswith", strings.HasSuffix)},
	"find":         {searchParams, find(strings.Index)},
	"isdigit":      {nil, func(m *Machine, s string, _ []Value) (Value, error) { return IsDigits(s), m.Kinds(len(s)) }},
	"join":         {[]string{"/iterable"}, (*Machine).strJoin},
	"lower":        {nil, (*Machine).lower},
	"lstrip":       {[]string{"/chars?"}, strip(true, false)},
	"removeprefix": {[]string{"/prefix"}, remove("removeprefix", strings.TrimPrefix)},
	"removesuffix": {[]string{"/suffix"}, remove("removesuffix", strings.TrimSuffix)},
	"replace":      {[]string{"/old", "/new", "/count?"}, (*Machine).strReplace},
	"rfind":        {searchParams, find(strings.LastIndex)},
	"rsplit":       {[]string{"sep?", "maxsplit?"}, split(true)},
	"rstrip":       {[]string{"/chars?"}, strip(false, true)},
	"split":        {[]string{"sep?", "maxsplit?"}, split(false)},
	"splitlines":   {[]string{"keepends?"}, (*Machine).SplitLines},
	"startswith":   {searchParams, affix("startswith", strings.HasPrefix)},
	"strip":        {[]string{"/chars?"}, strip(true, true)},
	"title":        {nil, (*Machine).title},
	"upper":        {nil, (*Machine).upper},
}

var searchParams = []string{"/sub", "/start?", "/end?"}

func (m *Machine) upper(s string, _ []Value) (Value, error) {
	if err := m.charge(len(s)); err != nil {
		return nil, err
	}
	if chars.IsASCII(s) {
		return strings.ToUpper(s), nil
	}
	return m.transform(s, func(dst []byte, _ int, r rune) []byte { return chars.AppendForm(dst, r, chars.Upper) })
}

// charge charges a text of n bytes, and looking at each of its characters.
func (m *Machine) charge(n int) error {
	if err := m.Alloc(n); err != nil {
		return err
	}
	return m.Chars(2 * n)
}

// transform returns the text that add appends for each code point, which is at most three
// times as long. at is where r stands.
func (m *Machine) transform(s string, add func(dst []byte, at int, r rune) []byte) (Value, error) {
	if err := m.Alloc(3 * len(s)); err != nil {
		return nil, err
	}
	if err := m.Kinds(3 * len(s)); err != nil {
		return nil, err
	}
	dst := make([]byte, 0, len(s)+len(s)/8)
	for i, r := range s {
		dst = add(dst, i, r)
	}
	return string(dst), nil
}

func (m *Machine) lower(s string, _ []Value) (Value, error) {
	if err := m.charge(len(s)); err != nil {
		return nil, err
	}
	if chars.IsASCII(s) {
		return strings.ToLower(s), nil
	}
	return m.transform(s, func(dst []byte, at int, r rune) []byte { return appendLower(dst, s, at, r) })
}

// capitalSigma is the letter whose lower case depends on where it stands.
const capitalSigma = 'Σ'

// appendLower appends the lower case of r, which stands at s[at:].
func appendLower(dst []byte, s string, at int, r rune) []byte {
	if r == capitalSigma && finalSigma(s[:at], s[at+len("Σ"):]) {
		return append(dst, "ς"...)
	}
	return chars.AppendForm(dst, r, chars.Lower)
}

// finalSigma reports whether a sigma between before and after ends a word (CPython
// 3.11, unicodeobject.c: handle_capital_sigma).
func finalSigma(before, after string) bool {
	for before != "" {
		r, size := utf8.DecodeLastRuneInString(before)
		if c := chars.Of(r); !c.Is(chars.Ignorable) {
			if !c.Is(chars.Cased) {
				return false
			}
			break
		}
		before = before[:len(before)-size]
	}
	if before == "" {
		return false
	}
	for _, r := range after {
		if c := chars.Of(r); !c.Is(chars.Ignorable) {
			return !c.Is(chars.Cased)
		}
	}
	return true
}

func (m *Machine) capitalize(s string, _ []Value) (Value, error) {
	return m.transform(s, func(dst []byte, at int, r rune) []byte {
		if at == 0 {
			return chars.AppendForm(dst, r, chars.Title)
		}
		return appendLower(dst, s, at, r)
	})
}

func (m *Machine) title(s string, _ []Value) (Value, error) {
	within := false
	return m.transform(s, func(dst []byte, at int, r rune) []byte {
		if within {
			dst = appendLower(dst, s, at, r)
		} else {
			dst = chars.AppendForm(dst, r, chars.Title)
		}
		within = chars.Of(r).Is(chars.Cased)
		return dst
	})
}

// textArgument returns an argument that must be a str.
func textArgument(fn string, v Value) (string, error) {
	s, ok := AsString(v)
	if !ok {
		return "", exception.New("TypeError", "%s() argument must be str, not %s", fn, TypeName(v))
	}
	return s, nil
}

// intOption returns an optional argument that is an int.
func (m *Machine) intOption(v Value, def int) (int, error) {
	if v == Missing {
		return def, nil
	}
	return m.intArgument(v)
}

// given returns an optional argument, or None.
func given(v Value) Value {
	if v == Missing {
		return nil
	}
	return v
}

// searched returns the argument of a search, which has no start and no end.
func searched(fn string, a []Value) (string, error) {
	if a[1] != Missing || a[2] != Missing {
		return "", exception.Unsupported("str.%s from a start on", fn)
	}
	return textArgument(fn, a[0])
}

// find returns the method that finds a text by index, in code points; -1 if it is not there.
func find(index func(s, sub string) int) func(*Machine, string, []Value) (Value, error) {
	return func(m *Machine, s string, a []Value) (Value, error) {
		sub, err := searched("find", a)
		if err != nil {
			return nil, err
		}
		if err := m.Chars(2 * len(s)); err != nil {
			return nil, err
		}
		at := index(s, sub)
		if at < 0 {
			return int64(-1), nil
		}
		n, err := m.runes(s[:at])
		return int64(n), err
	}
}

func (m *Machine) strCount(s string, a []Value) (Value, error) {
	sub, err := searched("count", a)
	if err != nil {
		return nil, err
	}
	n, err := m.count(s, sub)
	return int64(n), err
}

// count returns how often sub is in s, which is charged as it is found.
func (m *Machine) count(s, sub string) (int, error) {
	if sub == "" {
		n, err := m.runes(s)
		return n + 1, err
	}
	if err := m.find(len(s), sub); err != nil || len(sub) == 1 {
		return strings.Count(s, sub), err
	}
	for n := 0; ; n++ {
		i := strings.Index(s, sub)
		if i < 0 {
			return n, nil
		}
		if err := m.Step(1); err != nil {
			return 0, err
		}
		s = s[i+len(sub):]
	}
}

// affix returns startswith or endswith.
func affix(name string, has func(s, affix string) bool) func(*Machine, string, []Value) (Value, error) {
	return func(m *Machine, s string, a []Value) (Value, error) {
		if _, ok := a[0].(*Tuple); ok {
			return nil, exception.Unsupported("str.%s of a tuple", name)
		}
		t, err := searched(name, a)
		if err != nil {
			return nil, err
		}
		return has(s, t), m.Scan(StepParts + 2*min(len(t), len(s)))
	}
}

// strip returns the method that strips chars, or white space, of the sides.
func strip(left, right bool) func(*Machine, string, []Value) (Value, error) {
	return func(m *Machine, s string, a []Value) (Value, error) {
		cut, ok := AsString(a[0])
		if !ok && given(a[0]) != nil {
			return nil, exception.New("TypeError", "strip arg must be None or str")
		}
		is := chars.IsSpace
		if ok {
			if err := m.Alloc(8 * len(cut)); err != nil {
				return nil, err
			}
			if err := m.Kinds(len(cut)); err != nil {
				return nil, err
			}
			is = newRuneSet(cut).has
		}
		// Only the stripped characters are looked at, and each is charged then.
		cuts := func(r rune) bool { return m.Kinds(1) == nil && is(r) }
		kept := s
		if left {
			kept = strings.TrimLeftFunc(kept, cuts)
		}
		if right {
			kept = strings.TrimRightFunc(kept, cuts)
		}
		return kept, m.Step(0)
	}
}

// A runeSet is a set of code points.
type runeSet struct {
	ascii  [2]uint64
	others map[rune]struct{}
}

func newRuneSet(s string) *runeSet {
	set := &runeSet{}
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			set.ascii[r/64] |= 1 << (r % 64)
		case set.others == nil:
			set.others = map[rune]struct{}{r: {}}
		default:
			set.others[r] = struct{}{}
		}
	}
	return set
}

func (s *runeSet) has(r rune) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r/64]>>(r%64)&1 == 1
	}
	_, ok := s.others[r]
	return ok
}

// remove returns removeprefix or removesuffix.
func remove(name string, trim func(s, affix string) string) func(*Machine, string, []Value) (Value, error) {
	return func(m *Machine, s string, a []Value) (Value, error) {
		t, err := textArgument(name, a[0])
		if err != nil {
			return nil, err
		}
		return trim(s, t), m.Scan(2 * min(len(s), len(t)))
	}
}

func (m *Machine) strReplace(s string, a []Value) (Value, error) {
	old, err := textArgument("replace", a[0])
	if err != nil {
		return nil, err
	}
	by, err := textArgument("replace", a[1])
	if err != nil {
		return nil, err
	}
	most, err := m.intOption(a[2], -1)
	if err != nil {
		return nil, err
	}
	n, err := m.count(s, old)
	if err != nil {
		return nil, err
	}
	if most >= 0 {
		n = min(n, most)
	}
	if n == 0 {
		return s, nil
	}
	if err := m.find(len(s), old); err != nil {
		return nil, err
	}
	if err := m.Step(n); err != nil {
		return nil, err
	}
	if err := m.Alloc(len(s)); err != nil {
		return nil, err
	}
	if err := m.AllocMany(n, len(by)); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, by, n), nil
}

// strJoin joins texts by s.
func (m *Machine) strJoin(s string, a []Value) (Value, error) {
	items, err := m.List(a[0])
	if err != nil {
		if exception.Is(err, "TypeError") {
			err = exception.New("TypeError", "can only join an iterable")
		}
		return nil, err
	}
	texts := make([]string, 0, len(items))
	for i, item := range items {
		t, ok := AsString(item)
		if !ok {
			return nil, exception.New("TypeError", "sequence item %d: expected str instance, %s found", i, TypeName(item))
		}
		if err := m.Alloc(len(t) + len(s) + 64); err != nil {
			return nil, err
		}
		texts = append(texts, t)
	}
	return strings.Join(texts, s), nil
}

// separator returns the argument sep of a method; ok is false for None.
func separator(v Value) (sep string, ok bool, err error) {
	if v = given(v); v == nil {
		return "", false, nil
	}
	sep, ok = AsString(v)
	switch {
	case !ok:
		err = exception.New("TypeError", "must be str or None, not %s", TypeName(v))
	case sep == "":
		err = exception.New("ValueError", "empty separator")
	}
	return sep, true, err
}

// split returns split or rsplit.
func split(right bool) func(*Machine, string, []Value) (Value, error) {
	return func(m *Machine, s string, a []Value) (Value, error) {
		most, err := m.intOption(a[1], -1)
		if err != nil {
			return nil, err
		}
		if most < 0 {
			most = math.MaxInt
		}
		sep, ok, err := separator(a[0])
		if err != nil {
			return nil, err
		}
		if err := m.splitting(len(s), sep, ok, right); err != nil {
			return nil, err
		}
		cut := func(s string) (piece, rest string, more bool) { return cutAround(s, sep, right) }
		if !ok {
			s = trimSpace(s, right)
			if s == "" {
				return &List{}, nil
			}
			cut = func(s string) (piece, rest string, more bool) { return cutSpace(s, right) }
		}
		return m.splitBy(s, most, right, cut)
	}
}

// splitting charges looking for what n bytes are split at, white space without a sep.
func (m *Machine) splitting(n int, sep string, bySep, right bool) error {
	switch {
	case !bySep:
		return m.Chars(4 * n)
	case right:
		return m.Chars(2 * n)
	}
	return m.find(n, sep)
}

// splitBy cuts pieces off the left or the right of s.
func (m *Machine) splitBy(s string, most int, right bool, cut func(string) (string, string, bool)) (Value, error) {
	var items []Value
	for more := true; more; {
		if err := m.Step(1); err != nil {
			return nil, err
		}
		if err := m.Alloc(48); err != nil {
			return nil, err
		}
		piece := s
		if more = most > 0; more {
			most--
			piece, s, more = cut(s)
		}
		items = append(items, piece)
	}
	if right {
		slices.Reverse(items)
	}
	return &List{Items: items}, nil
}

// cutAround cuts s at the first or the last sep: piece is the outer side.
func cutAround(s, sep string, right bool) (piece, rest string, more bool) {
	if !right {
		return strings.Cut(s, sep)
	}
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[i+len(sep):], s[:i], true
}

// cutSpace cuts a text, which does not begin with white space at the side that it
// is cut from, at its next white space.
func cutSpace(s string, right bool) (piece, rest string, more bool) {
	if right {
		i := strings.LastIndexFunc(s, chars.IsSpace)
		if i < 0 {
			return s, "", false
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		rest = trimSpace(s[:i], true)
		return s[i+size:], rest, rest != ""
	}
	i := strings.IndexFunc(s, chars.IsSpace)
	if i < 0 {
		return s, "", false
	}
	rest = trimSpace(s[i:], false)
	return s[:i], rest, rest != ""
}

func trimSpace(s string, right bool) string {
	if right {
		return strings.TrimRightFunc(s, chars.IsSpace)
	}
	return strings.TrimLeftFunc(s, chars.IsSpace)
}

// SplitLines is str.splitlines; a has its arguments, as Arguments.Bind returns them.
func (m *Machine) SplitLines(s string, a []Value) (Value, error) {
	keep, err := m.intOption(a[0], 0)
	if err != nil {
		return nil, err
	}
	var items []Value
	for s != "" {
		if err := m.Alloc(48); err != nil {
			return nil, err
		}
		if err := m.Step(1); err != nil {
			return nil, err
		}
		line, end := s, ""
		if i := strings.IndexFunc(s, chars.IsLineEnd); i >= 0 {
			_, size := utf8.DecodeRuneInString(s[i:])
			if strings.HasPrefix(s[i:], "\r\n") {
				size = 2
			}
			line, end = s[:i], s[i:i+size]
		}
		if keep != 0 {
			items = append(items, s[:len(line)+len(end)])
		} else {
			items = append(items, line)
		}
		if err := m.Chars(4 * len(line)); err != nil {
			return nil, err
		}
		s = s[len(line)+len(end):]
	}
	return &List{Items: items}, nil
}

// IsDigits is Python's str.isdigit.
func IsDigits(s string) bool {
	for _, r := range s {
		if !chars.Of(r).Is(chars.Digit) {
			return false
		}
	}
	return s != ""
}
