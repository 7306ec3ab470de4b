package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A stream reads JSON through a small buffer, so that a large file never is in
// memory at once. It is strict: skipped text is UTF-8 and JSON, and no
// string has half a surrogate pair.
type stream struct {
	r        io.Reader
	buf      []byte
	from, to int   // buf[from:to] has been read and not used
	read     int   // bytes so far
	err      error // of reading; io.EOF at the end
}

const streamBuffer = 1 << 15

func newStream(r io.Reader) *stream { return &stream{r: r, buf: make([]byte, streamBuffer)} }

// fill reads until the buffer has at least one byte; false at the end or after an error.
func (s *stream) fill() bool {
	for empty := 0; s.from == s.to; empty++ {
		if s.err == nil && empty == 100 {
			s.err = io.ErrNoProgress
		}
		if s.err != nil {
			return false
		}
		var n int
		n, s.err = s.r.Read(s.buf)
		s.from, s.to = 0, n
		if s.read += n; s.read > maxFile {
			s.from, s.to = 0, 0
			s.err = malformed("longer than %d bytes", maxFile)
		}
	}
	return true
}

// peek returns the next byte that is not white space, 0 if there is none.
func (s *stream) peek() byte {
	for s.fill() {
		switch b := s.buf[s.from]; b {
		case ' ', '\n', '\t', '\r':
			s.from++
		default:
			return b
		}
	}
	return 0
}

// broken is the error of a text that is no JSON.
func (s *stream) broken() error {
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		return s.err
	}
	return malformed("not JSON, or cut off")
}

// skip passes over the byte b, which may come after white space.
func (s *stream) skip(b byte) error {
	if s.peek() != b {
		return s.broken()
	}
	s.from++
	return nil
}

// end checks that nothing follows.
func (s *stream) end() error {
	if s.peek() != 0 || !errors.Is(s.err, io.EOF) {
		return s.broken()
	}
	return nil
}

// members reads an object: f is called with each name, and reads its value.
func (s *stream) members(f func(name []byte) error) error {
	var name []byte
	return s.items('{', '}', func() (err error) {
		if name, err = s.text(name[:0], maxToken); err != nil {
			return err
		}
		if err := s.skip(':'); err != nil {
			return err
		}
		return f(name)
	})
}

// elements reads an array: f is called before each element, and reads it.
func (s *stream) elements(f func() error) error { return s.items('[', ']', f) }

func (s *stream) items(begin, end byte, f func() error) error {
	if err := s.skip(begin); err != nil {
		return err
	}
	if s.peek() == end {
		s.from++
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if s.peek() == end {
			s.from++
			return nil
		}
		if err := s.skip(','); err != nil {
			return err
		}
	}
}

// text appends the text of a string of at most limit bytes.
func (s *stream) text(dst []byte, limit int) ([]byte, error) {
	if err := s.skip('"'); err != nil {
		return dst, err
	}
	start := len(dst)
	for s.fill() {
		run := s.buf[s.from : s.from+plainRun(s.buf[s.from:s.to])]
		s.from += len(run)
		dst = append(dst, run...)
		if len(dst)-start > limit {
			return dst, malformed("a string has more than %d bytes", limit)
		}
		if s.from == s.to {
			continue
		}
		switch s.buf[s.from] {
		case '"':
			s.from++
			if !utf8.Valid(dst[start:]) {
				return dst, errNotUTF8
			}
			return dst, nil
		case '\\':
			var err error
			if dst, err = s.escape(dst); err != nil {
				return dst, err
			}
		default:
			return dst, s.broken()
		}
	}
	return dst, s.broken()
}

var errNotUTF8 = malformed("not UTF-8")

// plainRun returns how many bytes at the start of b stand for themselves in a string.
func plainRun(b []byte) int {
	for i, c := range b {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(b)
}

var afterNumber = []byte(",}] \n\t\r")

// id reads a token id below limit; false if the value is none.
func (s *stream) id(limit uint32) (id uint32, ok bool, err error) {
	s.peek()
	var digits [len("4294967295")]byte
	n := 0
	for ; s.fill() && bytes.IndexByte(afterNumber, s.buf[s.from]) < 0; n++ {
		if n == len(digits) {
			return 0, false, nil
		}
		digits[n] = s.buf[s.from]
		s.from++
	}
	if s.from == s.to {
		return 0, false, s.broken()
	}
	id, ok = parseID(digits[:n], limit)
	return id, ok && (digits[0] != '0' || n == 1), nil
}

// next takes a byte, 0 if there is none.
func (s *stream) next() byte {
	if !s.fill() {
		return 0
	}
	s.from++
	return s.buf[s.from-1]
}

// escape appends the character of the escape that begins here.
func (s *stream) escape(dst []byte) ([]byte, error) {
	s.from++
	c := s.next()
	if c != 'u' {
		i := strings.IndexByte(`"\/bfnrt`, c)
		if i < 0 {
			return dst, s.broken()
		}
		return append(dst, "\"\\/\b\f\n\r\t"[i]), nil
	}
	r, ok := s.hex()
	if ok && utf16.IsSurrogate(r) {
		ok = s.next() == '\\' && s.next() == 'u'
		low, isHex := s.hex()
		r = utf16.DecodeRune(r, low)
		ok = ok && isHex && r != utf8.RuneError
	}
	if !ok {
		return dst, s.broken()
	}
	return utf8.AppendRune(dst, r), nil
}

// hex takes the four digits of a \u escape.
func (s *stream) hex() (r rune, ok bool) {
	for range 4 {
		i := strings.IndexByte("0123456789abcdefABCDEF", s.next())
		if i < 0 {
			return 0, false
		}
		if i >= 16 {
			i -= 6
		}
		r = r<<4 | rune(i)
	}
	return r, true
}

// halfSurrogate reports whether a valid JSON text has the escape of a surrogate that is not
// one of a pair: UTF-8 cannot have it, and encoding/json would make U+FFFD of it.
func halfSurrogate(raw []byte) bool {
	high := rune(0) // the one just before, if any
	for i := 0; i < len(raw); i++ {
		r := rune(0)
		if raw[i] == '\\' {
			i++
			if raw[i] == 'u' {
				code, _ := strconv.ParseUint(string(raw[i+1:i+5]), 16, 16)
				r = rune(code)
				i += 4
			}
		}
		switch {
		case high != 0 && utf16.DecodeRune(high, r) == utf8.RuneError:
			return true
		case high != 0:
			high = 0
		case utf16.IsSurrogate(r):
			high = r
		}
	}
	return high != 0
}

// value returns the raw text of a value of at most limit bytes.
func (s *stream) value(limit int) ([]byte, error) {
	var raw []byte
	s.peek()
	for depth, inString, escaped := 0, false, false; ; {
		if !s.fill() {
			break
		}
		n, done := valueRun(s.buf[s.from:s.to], &depth, &inString, &escaped)
		raw = append(raw, s.buf[s.from:s.from+n]...)
		s.from += n
		if len(raw) > limit {
			return nil, malformed("a section has more than %d bytes", limit)
		}
		if done {
			break
		}
	}
	raw = bytes.TrimRight(raw, " \n\t\r")
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		return nil, s.err
	}
	return raw, checkJSON(raw)
}

// checkJSON returns an error for a text that is no JSON, or that no tokenizer takes: Python reads
// half a surrogate pair, and tokenizers refuses the text that has it.
func checkJSON(raw []byte) error {
	switch {
	case !utf8.Valid(raw):
		return errNotUTF8
	case !json.Valid(raw):
		return malformed("not JSON, or cut off")
	case halfSurrogate(raw):
		return malformed("half a surrogate pair")
	}
	return nil
}

// valueRun returns how many bytes of b belong to a value, and whether it ends
// there: before a comma or a closing bracket that is not its own.
func valueRun(b []byte, depth *int, inString, escaped *bool) (n int, done bool) {
	for i, c := range b {
		switch {
		case *escaped:
			*escaped = false
		case *inString:
			*escaped = c == '\\'
			*inString = c != '"'
		case c == '"':
			*inString = true
		case c == '{' || c == '[':
			*depth++
		case *depth == 0 && (c == ',' || c == '}' || c == ']'):
			return i, true
		case c == '}' || c == ']':
			*depth--
		}
	}
	return len(b), false
}
