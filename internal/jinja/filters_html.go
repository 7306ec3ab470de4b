package jinja

import (
	"bytes"
	"html"
	"strings"
	"unicode/utf8"
)

// The filters of HTML and URLs (Jinja2 3.1.6, filters.py; markupsafe 3.0.3).

func escapeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("escape", "/s"); err != nil {
		return nil, err
	}
	s, err := m.escape(v)
	return Markup(s), err
}

func forceescapeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_forceescape", "value"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	s, err = m.escape(s)
	return Markup(s), err
}

func safeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_mark_safe", "value"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	return Markup(s), err
}

// xmlattrFilter writes a dict as attributes of a tag.
func xmlattrFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_xmlattr", "d", "autospace?")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, noAttribute(v, "items")
	}
	space, err := m.truth(or(b[1], true))
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := range d.Len() {
		if err := m.step(1); err != nil {
			return nil, err
		}
		key, value := d.At(i)
		if value == nil || isUndefined(value) {
			continue
		}
		if space || out.Len() > 0 {
			out.WriteByte(' ')
		}
		if err := m.xmlAttribute(&out, key, value); err != nil {
			return nil, err
		}
	}
	return out.String(), nil
}

func (m *machine) xmlAttribute(out *strings.Builder, key, value Value) error {
	name, ok := asString(key)
	if !ok {
		return raise("TypeError", "expected string or bytes-like object, got '%s'", typeName(key))
	}
	if err := m.kinds(len(name)); err != nil {
		return err
	}
	if strings.ContainsAny(name, " \t\n\v\f\r/>=") {
		return raise("ValueError", "Invalid character in attribute name: %q", name)
	}
	name, err := m.escape(key)
	if err != nil {
		return err
	}
	text, err := m.escape(value)
	if err != nil {
		return err
	}
	if err := m.alloc(2 * (len(name) + len(text) + 4)); err != nil {
		return err
	}
	for _, s := range [...]string{name, `="`, text, `"`} {
		out.WriteString(s)
	}
	return nil
}

func striptagsFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_striptags", "value"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	if err != nil {
		return nil, err
	}
	return m.stripTags(s)
}

// stripTags is Markup.striptags: it takes comments and tags out, makes one space of
// any, and undoes escapes.
func (m *machine) stripTags(s string) (string, error) {
	// Copies of the text, and what unescaping may make of it.
	if err := m.alloc(6 * len(s)); err != nil {
		return "", err
	}
	if err := m.unescaping(s); err != nil {
		return "", err
	}
	text := withoutAll([]byte(s), "<!--", "-->")
	text = withoutAll(text, "<", ">")
	return unescapeHTML(strings.Join(strings.FieldsFunc(string(text), isSpace), " ")), nil
}

// withoutAll cuts out, again and again, the first open up to the first end at or
// behind it, of which what is left may make a new one. It changes s.
func withoutAll(s []byte, open, end string) []byte {
	kept, rest := 0, 0 // s is s[:kept] and s[rest:]; open is not in s[:kept]
	for {
		start := bytes.Index(s[rest:], []byte(open))
		if start < 0 {
			break
		}
		size := bytes.Index(s[rest+start:], []byte(end))
		if size < 0 {
			break
		}
		kept += copy(s[kept:], s[rest:rest+start])
		rest += start + size + len(end)
		// The end of what is kept may begin the next open.
		back := min(len(open)-1, kept)
		kept -= back
		rest -= back
		copy(s[rest:], s[kept:kept+back])
	}
	return append(s[:kept], s[rest:]...)
}

// unescaping charges stripTags or unescapeHTML of s.
func (m *machine) unescaping(s string) error {
	if err := m.chars(8 * len(s)); err != nil {
		return err
	}
	return m.step(20 * strings.Count(s, "&"))
}

// longestReference is how much of a named character reference is read.
const longestReference = 32

// unescapeHTML is Python's html.unescapeHTML.
func unescapeHTML(s string) string {
	if strings.IndexByte(s, '&') < 0 {
		return s
	}
	var out strings.Builder
	for {
		text, rest, found := strings.Cut(s, "&")
		out.WriteString(text)
		if !found {
			return out.String()
		}
		if n := numericReference(&out, rest); n > 0 {
			s = rest[n:]
			continue
		}
		n := referenceName(rest)
		switch name := rest[:n]; name {
		// Package html has all names of HTML5 but these.
		case "nGt;":
			out.WriteString("\u226b\u20d2")
		case "nLt;":
			out.WriteString("\u226a\u20d2")
		default:
			out.WriteString(html.UnescapeString("&" + name))
		}
		s = rest[n:]
	}
}

// referenceName returns the length of what may be a name and a ";".
func referenceName(s string) int {
	chars := 0
	for i, r := range s {
		switch r {
		case '\t', '\n', '\f', ' ', '<', '&', '#':
			return i
		case ';':
			if i == 0 {
				return 0
			}
			return i + 1
		}
		if chars++; chars > longestReference {
			return i
		}
	}
	return len(s)
}

// numericReference writes the character of a reference such as "#38;" at the start
// of s and returns the reference's length, 0 if there is none.
func numericReference(out *strings.Builder, s string) int {
	base, i := 10, 1
	if len(s) > 1 && s[1]|0x20 == 'x' {
		base, i = 16, 2
	}
	if s == "" || s[0] != '#' {
		return 0
	}
	from, n := i, 0
	for ; i < len(s); i++ {
		_, ok := plainDigits(s[i:i+1], base)
		if !ok {
			break
		}
		d, _ := parseInt(s[i:i+1], base)
		n = min(n*base+int(d.(int64)), utf8.MaxRune+1)
	}
	if i == from {
		return 0
	}
	if i < len(s) && s[i] == ';' {
		i++
	}
	switch {
	case n > utf8.MaxRune || n == 0 || n >= 0xd800 && n <= 0xdfff:
		out.WriteRune(utf8.RuneError)
	case n == '\r':
		out.WriteByte('\r')
	case n >= 0x80 && n <= 0x9f:
		out.WriteRune(windows1252[n-0x80])
	case !isControl(n):
		out.WriteRune(rune(n))
	}
	return i
}

// isControl reports whether HTML5 has no reference for a character, which Python drops.
func isControl(n int) bool {
	return n < ' ' && n != '\t' && n != '\n' && n != '\f' || n == 0x7f ||
		n >= 0xfdd0 && n <= 0xfdef || n&0xfffe == 0xfffe
}

// windows1252 has HTML5's characters for U+0080 to U+009F.
var windows1252 = [32]rune{
	'€', 0x81, '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', 0x8d, 'Ž', 0x8f,
	0x90, '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', 0x9d, 'ž', 'Ÿ',
}

// urlencodeFilter quotes a text, or makes a query of a dict or of pairs.
func urlencodeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_urlencode", "value"); err != nil {
		return nil, err
	}
	if d, ok := v.(*Dict); ok {
		v = &View{of: d, kind: viewItems}
	}
	_, isText := asString(v)
	if iterable, err := m.iterable(v); err != nil {
		return nil, err
	} else if isText || !iterable {
		out, err := m.appendQuoted(nil, v, false)
		return string(out), err
	}
	var out []byte
	first := true
	err := m.visit(v, func(item Value) error {
		key, value, err := m.pair(item)
		if err != nil {
			return err
		}
		if !first {
			out = append(out, '&')
		}
		first = false
		if out, err = m.appendQuoted(out, key, true); err != nil {
			return err
		}
		out, err = m.appendQuoted(append(out, '='), value, true)
		return err
	})
	return string(out), err
}

// pair unpacks v into two.
func (m *machine) pair(v Value) (first, second Value, err error) {
	items, err := m.list(v)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case len(items) < 2:
		return nil, nil, raise("ValueError", "not enough values to unpack (expected 2, got %d)", len(items))
	case len(items) > 2:
		return nil, nil, raise("ValueError", "too many values to unpack (expected 2)")
	}
	return items[0], items[1], nil
}

// appendQuoted quotes str(v) as for a path of a URL, or for a query.
func (m *machine) appendQuoted(dst []byte, v Value, query bool) ([]byte, error) {
	s, err := m.str(v)
	if err != nil {
		return dst, err
	}
	if err := m.alloc(6*len(s) + 2); err != nil {
		return dst, err
	}
	if err := m.chars(6 * len(s)); err != nil {
		return dst, err
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z' || isDigit(c) || strings.IndexByte("_.-~", c) >= 0, c == '/' && !query:
			dst = append(dst, c)
		case c == ' ' && query:
			dst = append(dst, '+')
		default:
			dst = append(dst, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return dst, nil
}
