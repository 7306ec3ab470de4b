package syntax

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// The lexer is Jinja2 3.1.6's (lexer.py) with trim_blocks and lstrip_blocks, no
// line statements and the standard delimiters. As there, a token is lexed when the
// parser comes to it, so that the first error of a template is the same.

// A token's kind is one of the kinds below or, of an operator, the operator itself.
type token struct {
	kind string
	at   Pos
	text string // of kindData, kindName
	// value is that of kindString (string), kindInteger (int64) and kindFloat (float64).
	value any
}

const (
	kindData     = "text"
	kindName     = "name"
	kindString   = "string"
	kindInteger  = "integer"
	kindFloat    = "float"
	kindVarBegin = "{{"
	kindVarEnd   = "}}"
	kindTagBegin = "{%"
	kindTagEnd   = "%}"
	kindEnd      = "end of template"
)

// describe names a token in errors.
func (t token) describe() string {
	if t.kind == kindName {
		return t.text
	}
	return t.kind
}

type lexState uint8

const (
	inText lexState = iota
	inComment
	inRaw
	inVar
	inTag
)

type lexer struct {
	source string // of normalized newlines
	pos    int
	state  lexState
	// brackets are the closing brackets awaited; an end of tag that looks like
	// operators is none as long as there are any.
	brackets []byte
	begin    token // of the tag behind the text just returned, if it has a kind
	last     Pos   // where the last token began
}

// normalizeNewlines makes each \r\n and \r a \n.
func normalizeNewlines(source string) string {
	if strings.IndexByte(source, '\r') < 0 {
		return source
	}
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
}

// place returns line and column, from 1, of a place that parse left in a node.
func place(source string, at Pos) (line, col int) {
	source = normalizeNewlines(source)
	before := source[:min(int(at), len(source))]
	start := strings.LastIndexByte(before, '\n') + 1
	return 1 + strings.Count(before, "\n"), 1 + utf8.RuneCountInString(before[start:])
}

// Locate gives an error that has none the place of the node at which it arose.
func Locate(err error, source string, at Pos) error {
	var e *exception.Error
	if !errors.As(err, &e) || e.Line > 0 {
		return err
	}
	located := *e
	located.Line, located.Col = place(source, at)
	return &located
}

// A syntaxError is the panic value of lexer and parser; parse recovers it.
type syntaxError struct {
	at  Pos
	err error
}

func failAt(at Pos, format string, args ...any) {
	panic(syntaxError{at, exception.New("TemplateSyntaxError", format, args...)})
}

func refuseAt(at Pos, format string, args ...any) {
	panic(syntaxError{at, exception.Unsupported(format, args...)})
}

// next returns the next token; at the end, again and again, one of kindEnd. That
// lies, as Jinja2 has it, where the last token lay.
func (l *lexer) next() token {
	for {
		t := l.begin
		l.begin = token{}
		if t.kind == "" {
			if l.pos == len(l.source) {
				return token{kind: kindEnd, at: l.last}
			}
			switch l.state {
			case inText:
				t = l.lexText()
			case inComment:
				l.skipComment()
			case inRaw:
				t = l.lexRaw()
			case inVar, inTag:
				t = l.lexCode()
			}
		}
		if t.kind != "" {
			l.last = t.at
			return t
		}
	}
}

// lexText goes to behind the beginning of the next tag, comment or raw block, and
// returns the text before it or, if there is none, the tag's token.
func (l *lexer) lexText() token {
	start := l.pos
	i := start
	for {
		n := strings.IndexByte(l.source[i:], '{')
		if n < 0 || i+n+1 == len(l.source) {
			l.pos = len(l.source)
			return token{kind: kindData, at: Pos(start), text: l.source[start:]}
		}
		if i += n; strings.IndexByte("{%#", l.source[i+1]) >= 0 {
			break
		}
		i++
	}
	l.pos = i + 2
	sign := l.sign()
	var begin token
	switch l.source[i+1] {
	case '{':
		l.state = inVar
		begin = token{kind: kindVarBegin, at: Pos(i)}
	case '#':
		l.state = inComment
	default:
		if end := l.rawBegin(i + 2); end >= 0 {
			l.pos, l.state = end, inRaw
		} else {
			l.state = inTag
			begin = token{kind: kindTagBegin, at: Pos(i)}
		}
	}
	text := l.strip(start, i, sign, l.state != inVar)
	if text == "" {
		return begin
	}
	l.begin = begin
	return token{kind: kindData, at: Pos(start), text: text}
}

// sign takes a sign of white space control.
func (l *lexer) sign() byte {
	if l.pos < len(l.source) && (l.source[l.pos] == '-' || l.source[l.pos] == '+') {
		l.pos++
		return l.source[l.pos-1]
	}
	return 0
}

// strip returns the text from start to the tag at end without what the tag's sign
// or, with lstrip, its standing first in its line removes.
func (l *lexer) strip(start, end int, sign byte, lstrip bool) string {
	text := l.source[start:end]
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, chars.IsSpace)
	case sign == 0 && lstrip:
		line := strings.LastIndexByte(text, '\n') + 1
		if line > 0 || start == 0 || l.source[start-1] == '\n' {
			if strings.TrimLeftFunc(text[line:], chars.IsSpace) == "" {
				return text[:line]
			}
		}
	}
	return text
}

// rawBegin returns the end of "{% raw %}" from behind its "{%", or -1.
func (l *lexer) rawBegin(i int) int {
	if i < len(l.source) && (l.source[i] == '-' || l.source[i] == '+') {
		i++
	}
	i, ok := l.word(i, "raw")
	switch rest := l.source[i:]; {
	case !ok:
	case strings.HasPrefix(rest, "-%}"):
		return l.skipSpace(i + 3)
	case strings.HasPrefix(rest, "%}"):
		return i + 2
	}
	return -1
}

// word goes over a word with white space around it.
func (l *lexer) word(i int, word string) (int, bool) {
	i = l.skipSpace(i)
	if !strings.HasPrefix(l.source[i:], word) {
		return i, false
	}
	return l.skipSpace(i + len(word)), true
}

func (l *lexer) skipSpace(i int) int {
	return len(l.source) - len(strings.TrimLeftFunc(l.source[i:], chars.IsSpace))
}

// lexRaw goes to behind "{% endraw %}" and returns the text before it, if any.
func (l *lexer) lexRaw() token {
	start := l.pos
	for i := start; ; i += 2 {
		n := strings.Index(l.source[i:], "{%")
		if n < 0 {
			failAt(Pos(start), "a raw block has no end")
		}
		i += n
		l.pos = i + 2
		sign := l.sign()
		after, ok := l.word(l.pos, "endraw")
		if !ok {
			continue
		}
		if after = l.tagEnd(after); after < 0 {
			continue
		}
		l.pos, l.state = after, inText
		if text := l.strip(start, i, sign, true); text != "" {
			return token{kind: kindData, at: Pos(start), text: text}
		}
		return token{}
	}
}

// tagEnd returns where "%}" with sign at i ends, with what it removes behind it,
// or -1.
func (l *lexer) tagEnd(i int) int {
	switch rest := l.source[i:]; {
	case strings.HasPrefix(rest, "-%}"):
		return l.skipSpace(i + 3)
	case strings.HasPrefix(rest, "+%}"):
		return i + 3
	case strings.HasPrefix(rest, "%}\n"):
		return i + 3
	case strings.HasPrefix(rest, "%}"):
		return i + 2
	}
	return -1
}

func (l *lexer) skipComment() {
	n := strings.Index(l.source[l.pos:], "#}")
	if n < 0 {
		failAt(Pos(l.pos), "a comment has no end")
	}
	sign := byte(0)
	if n > 0 {
		sign = l.source[l.pos+n-1]
	}
	l.pos += n + 2
	l.state = inText
	switch {
	case sign == '-':
		l.pos = l.skipSpace(l.pos)
	case sign != '+' && strings.HasPrefix(l.source[l.pos:], "\n"):
		l.pos++
	}
}

// lexCode returns the next token within a tag, or none at the end of the template.
func (l *lexer) lexCode() token {
	if t, ok := l.lexEnd(); ok {
		return t
	}
	if i := l.skipSpace(l.pos); i > l.pos {
		l.pos = i
		return token{}
	}
	switch c := l.source[l.pos]; {
	case '0' <= c && c <= '9':
		return l.lexNumber()
	case isNameByte(c) || c >= utf8.RuneSelf:
		return l.lexName()
	case c == '\'' || c == '"':
		return l.lexString(c)
	}
	return l.lexOperator()
}

// lexEnd returns the end of the tag, if it is here.
func (l *lexer) lexEnd() (token, bool) {
	if len(l.brackets) > 0 {
		return token{}, false
	}
	start := l.pos
	if l.state == inTag {
		if end := l.tagEnd(start); end >= 0 {
			l.pos, l.state = end, inText
			return token{kind: kindTagEnd, at: Pos(start)}, true
		}
		return token{}, false
	}
	switch rest := l.source[start:]; {
	case strings.HasPrefix(rest, "-}}"):
		l.pos = l.skipSpace(start + 3)
	case strings.HasPrefix(rest, "}}"):
		l.pos = start + 2
	default:
		return token{}, false
	}
	l.state = inText
	return token{kind: kindVarEnd, at: Pos(start)}, true
}

func isNameByte(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func (l *lexer) lexName() token {
	start := l.pos
	i := start
	for i < len(l.source) && isNameByte(l.source[i]) {
		i++
	}
	if r, _ := utf8.DecodeRuneInString(l.source[i:]); r >= utf8.RuneSelf && !chars.IsSpace(r) {
		refuseAt(Pos(i), "the character %q of a name", r)
	}
	l.pos = i
	return token{kind: kindName, at: Pos(start), text: l.source[start:i]}
}

func (l *lexer) unexpected() {
	r, _ := utf8.DecodeRuneInString(l.source[l.pos:])
	failAt(Pos(l.pos), "unexpected character %q", r)
}

// lexNumber lexes the longest number here, which a letter may follow at once.
func (l *lexer) lexNumber() token {
	start := l.pos
	end := l.float()
	kind := kindFloat
	if end < 0 {
		kind, end = kindInteger, l.integer()
	}
	if end < len(l.source) && (isNameByte(l.source[end]) || l.source[end] >= utf8.RuneSelf) {
		refuseAt(Pos(start), "a number with other characters than digits")
	}
	l.pos = end
	t := token{kind: kind, at: Pos(start)}
	text := l.source[start:end]
	var err error
	if kind == kindInteger {
		t.value, err = strconv.ParseInt(text, 10, 64)
	} else {
		t.value, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		refuseAt(t.at, "the number %.40s", text)
	}
	return t
}

// float returns where a float ends that begins here, or -1.
func (l *lexer) float() int {
	if l.pos > 0 && l.source[l.pos-1] == '.' {
		return -1 // as in x.1.2
	}
	end := l.digits(l.pos)
	isFloat := false
	if end < len(l.source) && l.source[end] == '.' {
		if i := l.digits(end + 1); i > end+1 {
			end, isFloat = i, true
		}
	}
	if end < len(l.source) && (l.source[end] == 'e' || l.source[end] == 'E') {
		i := end + 1
		if i < len(l.source) && (l.source[i] == '+' || l.source[i] == '-') {
			i++
		}
		if j := l.digits(i); j > i {
			end, isFloat = j, true
		}
	}
	if !isFloat {
		return -1
	}
	return end
}

// integer returns where the integer ends that begins here.
func (l *lexer) integer() int {
	if l.source[l.pos] != '0' {
		return l.digits(l.pos)
	}
	i := l.pos
	for i < len(l.source) && l.source[i] == '0' {
		i++
	}
	return i
}

// digits returns where the digits from i on end.
func (l *lexer) digits(i int) int {
	for i < len(l.source) && isDigit(l.source[i]) {
		i++
	}
	return i
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) lexString(quote byte) token {
	start := l.pos
	escaped := false
	i := start + 1
	for {
		if i >= len(l.source) {
			l.unexpected()
		}
		c := l.source[i]
		if c == quote {
			break
		}
		if c == '\\' {
			escaped = true
			i++
		}
		i++
	}
	s := l.source[start+1 : i]
	if escaped {
		s = unescapeLiteral(s, Pos(start+1))
	}
	l.pos = i + 1
	return token{kind: kindString, at: Pos(start), value: s}
}

// escapes are the escapes of one letter.
const escapes = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"

// unescapeLiteral decodes a string as Python's unicode-escape does: an unknown escape stays
// as it is.
func unescapeLiteral(s string, at Pos) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		n := strings.IndexByte(s[i:], '\\')
		if n < 0 {
			b.WriteString(s[i:])
			break
		}
		b.WriteString(s[i : i+n])
		i += n + 2 // the lexer saw to a character behind each backslash
		switch c := s[i-1]; {
		case c >= utf8.RuneSelf || strings.IndexByte("\n01234567N", c) >= 0:
			refuseAt(at+Pos(i-2), "the escape %.20q", s[i-2:])
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			b.WriteRune(hexEscape(s[i:min(i+n, len(s))], n, at+Pos(i-2)))
			i += n
		default:
			if k := strings.IndexByte(escapes, c); k >= 0 && k%2 == 0 {
				b.WriteByte(escapes[k+1])
			} else {
				b.WriteByte('\\')
				b.WriteByte(c)
			}
		}
	}
	return b.String()
}

func hexEscape(digits string, n int, at Pos) rune {
	r, err := strconv.ParseUint(digits, 16, 32)
	switch {
	case err != nil || len(digits) < n || r > unicode.MaxRune:
		failAt(at, "a broken escape in a string")
	case 0xd800 <= r && r < 0xe000:
		refuseAt(at, "a surrogate in a string")
	}
	return rune(r)
}

func (l *lexer) lexOperator() token {
	at := Pos(l.pos)
	rest := l.source[l.pos:]
	n := 1
	if len(rest) > 1 {
		switch rest[:2] {
		case "**", "//", "==", "!=", ">=", "<=":
			n = 2
		}
	}
	if n == 1 && strings.IndexByte("+-/*%~[](){}><=.:|,;", rest[0]) < 0 {
		l.unexpected()
	}
	op := rest[:n]
	l.balance(op, at)
	l.pos += n
	return token{kind: op, at: at}
}

// balance counts an operator that is a bracket.
func (l *lexer) balance(op string, at Pos) {
	switch op {
	case "{":
		l.brackets = append(l.brackets, '}')
	case "(":
		l.brackets = append(l.brackets, ')')
	case "[":
		l.brackets = append(l.brackets, ']')
	case "}", ")", "]":
		top := len(l.brackets) - 1
		if top < 0 {
			failAt(at, "unexpected %q", op)
		}
		if l.brackets[top] != op[0] {
			failAt(at, "unexpected %q, expected %q", op, l.brackets[top:top+1])
		}
		l.brackets = l.brackets[:top]
	}
}
