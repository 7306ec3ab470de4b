package chat

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// maxBody bounds the bodies that Parse reads, in bytes, and maxText what is in them beside
// media.
const (
	maxBody = 256 << 20
	maxText = 32 << 20
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

// Limits of a JSON text. An engine's own are Python's: a thousand levels and 4,300
// digits.
const (
	maxDepth  = 100     // arrays and objects in one another
	maxValues = 1 << 17 // keys and values
	maxTokens = 1 << 20 // of a prompt of token ids, which do not count as values
	maxDigits = 4300    // of an integer, as Python's int has it
	maxTools  = 2 << 20 // bytes of a request's tools; a catalog of 260 has 400,000
	maxLong   = 1 << 18 // digits of all integers that do not fit 64 bits
)

// A decoder reads JSON as json.loads of Python 3.12 does: keys in order, of equal ones the
// last value at the first's place, integers of any size apart from floats, and NaN, Infinity
// and -Infinity. It refuses a lone surrogate, which only Python can hold, and a string that is
// not UTF-8.
//
// Each string is copied, once, into memory that it shares with its neighbours. So the
// result has nothing of the text.
type decoder struct {
	s       string
	body    bool // s is a body, and not valid for longer than the decoder
	api     api  // of the body
	at      int
	depth   int
	place   place
	skipped int  // bytes of media that were passed over
	lone    bool // there was a lone surrogate: an error, but only of a text that is JSON
	*counts
}

// A place is where in a body a decoder is, as far as that matters.
type place uint8

const (
	inBody     place = iota
	inMessages       // in the value of messages, or of input of the Responses API
	inContent        // in a message's content, or in the output of a call
	inSystem         // in the value of system of the Messages API
	inResult         // in the content of a block of a message
	inSource         // in the source of such a block, or of a part of its content
	inFeatures       // in the value of features
	inPrompt         // in a field that may have token ids
	inMedia          // in a field that is media, which nothing reads
)

// within returns the place of the value of a key in a body.
func (d *decoder) within(key string) place {
	switch {
	case d.depth == 1:
		switch key {
		case "messages":
			return inMessages
		case "input":
			if d.api == responses {
				return inMessages
			}
		case "system":
			if d.api == messages {
				return inSystem
			}
		case "features":
			return inFeatures
		case "prompt", "token_ids", "input_ids":
			return inPrompt
		case "image_data", "video_data", "audio_data":
			return inMedia
		}
	case d.depth == 2 && d.place == inFeatures && (key == "kwargs_data" || key == "mm_metadata"):
		return inMedia
	case d.depth == 3 && d.place == inMessages && (key == "content" || key == "output" && d.api == responses):
		return inContent
	case d.depth == 5 && d.place == inContent && mediaFields[key]:
		return inMedia
	case key == "source" && d.api == messages && (d.depth == 3 && d.place == inSystem || d.depth == 5 && d.place == inContent || d.depth == 7 && d.place == inResult):
		return inSource
	case d.api == messages && d.depth == 5 && d.place == inContent && key == "content":
		return inResult
	case (d.depth == 4 || d.depth == 6 || d.depth == 8) && d.place == inSource && key == "data":
		return inMedia
	}
	return d.place
}

// A media is a string of media that was checked, and not kept.
type media struct{}

// counts are the counts of a request, over all of its texts, and memory for its strings.
type counts struct {
	values int
	tokens int
	long   int    // digits of integers that do not fit 64 bits
	room   []byte // strings, and behind them room for more
	keys   boxes  // some keys of objects
	short  boxes  // some short strings
}

// boxes are strings as values.
type boxes [32]python.Value

// maxShort bounds short strings, such as roles and types, in bytes.
const maxShort = 16

// A roomful is the memory that strings share, in bytes. Longer strings have their own.
const roomful = 64 << 10

// A syntaxError stands for a JSONDecodeError of json.loads.
type syntaxError struct {
	at  int
	msg string
}

func (e *syntaxError) Error() string { return e.msg + " at byte " + strconv.Itoa(e.at) }

// decode reads a whole text. Its errors are syntaxErrors, and fieldErrors without a
// path.
func decode(s string) (python.Value, error) { return new(counts).decode(s) }

func (n *counts) decode(s string) (python.Value, error) {
	d := decoder{s: s, counts: n}
	return d.whole()
}

// decodeBody is decode for a body of an API. Its result shares no memory with the body.
func (n *counts) decodeBody(body []byte, api api) (python.Value, error) {
	d := decoder{s: unsafe.String(unsafe.SliceData(body), len(body)), body: true, api: api, counts: n}
	return d.whole()
}

func (d *decoder) whole() (python.Value, error) {
	v, err := d.value()
	if err != nil {
		return nil, err
	}
	if d.space(); d.at < len(d.s) {
		return nil, d.fail("more text behind the value")
	}
	if d.lone {
		return nil, badField("", "a lone surrogate in a string, which no tokenizer takes")
	}
	return v, nil
}

func (d *decoder) fail(msg string) error { return &syntaxError{d.at, msg} }

func (d *decoder) space() {
	for d.at < len(d.s) && (d.s[d.at] == ' ' || d.s[d.at] == '\n' || d.s[d.at] == '\t' || d.s[d.at] == '\r') {
		d.at++
	}
}

// next returns the next byte that is not space, without reading it; 0 at the end.
func (d *decoder) next() byte {
	if d.space(); d.at < len(d.s) {
		return d.s[d.at]
	}
	return 0
}

// words are the values that are neither strings, numbers nor containers.
var words = []struct {
	text  string
	value python.Value
}{
	{"null", nil}, {"true", true}, {"false", false}, {"NaN", nan}, {"Infinity", inf}, {"-Infinity", -inf},
}

func (d *decoder) value() (python.Value, error) {
	switch c := d.next(); c {
	case '"':
		if d.place == inMedia {
			return d.media()
		}
		s, err := d.string()
		if len(s) <= maxShort {
			return d.boxed(&d.short, s), err
		}
		return s, err
	case '{', '[':
		if err := d.count(); err != nil {
			return nil, err
		}
		if d.depth++; d.depth > maxDepth {
			return nil, beyond("", "nested deeper than %d", maxDepth)
		}
		if c == '[' && d.place == inPrompt && d.depth <= tokenDepth {
			if ids := d.ids(); ids != nil {
				d.depth--
				return ids, d.countIDs(len(ids))
			}
		}
		d.at++
		container := d.array
		if c == '{' {
			container = d.object
		}
		v, err := container()
		d.depth--
		return v, err
	}
	if err := d.countSmall(); err != nil {
		return nil, err
	}
	if rest := strings.TrimPrefix(d.s[d.at:], "-"); rest != "" && isDigit(rest[0]) {
		return d.number()
	}
	for _, w := range words {
		if strings.HasPrefix(d.s[d.at:], w.text) {
			d.at += len(w.text)
			return w.value, nil
		}
	}
	return nil, d.fail("no value")
}

// countSmall counts a number or a word. Token ids count apart.
func (d *decoder) countSmall() error {
	if d.depth > tokenDepth {
		return d.count()
	}
	return d.countIDs(1)
}

func (d *decoder) countIDs(n int) error {
	if d.tokens += n; d.tokens > maxTokens {
		return beyond("", "more than %d numbers", maxTokens)
	}
	return nil
}

// tokenDepth is that of a token id in {"prompt": [[1]]}.
const tokenDepth = 3

// count counts a string, a container, or a small value.
func (d *decoder) count() error {
	if d.values++; d.values > maxValues {
		return beyond("", "more than %d values", maxValues)
	}
	return nil
}

func (d *decoder) object() (python.Value, error) {
	o := new(python.Dict)
	if d.next() == '}' {
		d.at++
		return o, nil
	}
	for {
		if d.next() != '"' {
			return nil, d.fail("no key")
		}
		key, err := d.string()
		if err != nil {
			return nil, err
		}
		if d.next() != ':' {
			return nil, d.fail("no ':'")
		}
		d.at++
		from, outer := d.at, d.place
		if d.body {
			d.place = d.within(key)
		}
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		d.place = outer
		if d.depth == 1 && key == "tools" && d.at-from > maxTools {
			return nil, beyond("tools", "longer than %d bytes", maxTools)
		}
		o.SetKey(d.boxed(&d.keys, key), v)
		switch d.next() {
		case ',':
			d.at++
		case '}':
			d.at++
			return o, nil
		default:
			return nil, d.fail("neither ',' nor '}'")
		}
	}
}

// boxed returns a key or a short string as a value. Bodies have few of these, many times.
func (d *decoder) boxed(some *boxes, s string) python.Value {
	if s == "" {
		return s
	}
	at := &some[(len(s)+5*int(s[0])+11*int(s[len(s)-1]))%len(some)]
	if had, _ := (*at).(string); had != s {
		*at = s
	}
	return *at
}

func (d *decoder) array() (python.Value, error) {
	l := new(python.List)
	if d.next() == ']' {
		d.at++
		return l, nil
	}
	for {
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
		switch d.next() {
		case ',':
			d.at++
		case ']':
			d.at++
			return l, nil
		default:
			return nil, d.fail("neither ',' nor ']'")
		}
	}
}

// A tokenList is an array of token ids.
type tokenList []uint32

// ids reads an array of nothing but token ids. It returns nil for any other, of which it reads
// nothing.
func (d *decoder) ids() tokenList {
	end := strings.IndexByte(d.s[d.at:], ']')
	if end < 0 {
		return nil
	}
	text := d.s[d.at+1 : d.at+end]
	in := decoder{s: text}
	if !isDigit(in.next()) {
		return nil
	}
	ids := make(tokenList, 0, min(strings.Count(text, ",")+1, maxTokens+1))
	for {
		in.space()
		id, from := uint64(0), in.at
		for ; in.at < len(text) && isDigit(text[in.at]) && in.at-from < 10; in.at++ {
			id = id*10 + uint64(text[in.at]-'0')
		}
		digits := in.at - from
		if digits == 0 || digits > 1 && text[from] == '0' || id > math.MaxUint32 || len(ids) > maxTokens {
			return nil
		}
		ids = append(ids, uint32(id))
		if in.next() != ',' {
			break
		}
		in.at++
	}
	if in.at < len(text) {
		return nil
	}
	d.at += end + 1
	return ids
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (d *decoder) digits() {
	for d.at < len(d.s) && isDigit(d.s[d.at]) {
		d.at++
	}
}

// number reads a number that begins with a digit, or with '-' and a digit.
func (d *decoder) number() (python.Value, error) {
	from := d.at
	if d.s[d.at] == '-' {
		d.at++
	}
	if d.s[d.at] == '0' {
		d.at++
	} else {
		d.digits()
	}
	whole := d.at
	if rest := d.s[d.at:]; len(rest) > 1 && rest[0] == '.' && isDigit(rest[1]) {
		d.at++
		d.digits()
	}
	if rest := d.s[d.at:]; len(rest) > 1 && (rest[0] == 'e' || rest[0] == 'E') {
		sign := 0
		if rest[1] == '+' || rest[1] == '-' {
			sign = 1
		}
		if len(rest) > 1+sign && isDigit(rest[1+sign]) {
			d.at += 1 + sign
			d.digits()
		}
	}
	text := d.s[from:d.at]
	if len(text) > maxText {
		return nil, d.tooLong()
	}
	if d.at > whole {
		f, _ := strconv.ParseFloat(text, 64) // too large a number is infinite, as in Python
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	digits := len(strings.TrimPrefix(text, "-"))
	if digits > maxDigits {
		return nil, badField("", "an integer of more than %d digits", maxDigits)
	}
	if d.long += digits; d.long > maxLong {
		return nil, beyond("", "more than %d digits of long integers", maxLong)
	}
	n, _ := new(big.Int).SetString(text, 10)
	return n, nil
}

// string reads a string from its quotation mark on.
func (d *decoder) string() (string, error) { return d.text(true) }

// media passes over a string of media.
func (d *decoder) media() (python.Value, error) {
	from := d.at
	_, err := d.text(false)
	d.skipped += d.at - from
	return media{}, err
}

// text reads a string from its quotation mark on, 8 bytes at a time: all are written to the
// room, and those behind one with something to do are written anew. If the string is not kept,
// its bytes in the room are overwritten.
func (d *decoder) text(keep bool) (string, error) {
	if err := d.count(); err != nil {
		return "", err
	}
	d.at++
	s, at, start, tried := d.s, d.at, d.at, d.at
	dst, n := d.room[:cap(d.room)], len(d.room)
	from, moved, any := n, false, uint64(0)
	for {
		switch {
		case n+16 <= len(dst): // for 8 bytes, and a rune behind them
		case !keep:
			if from+16 > len(dst) {
				dst, from = make([]byte, 64), 0
			}
			n = from
		default:
			more, err := d.roomFor(at, n-from)
			if err != nil {
				return "", err
			}
			n = copy(more, dst[from:n])
			dst, from, moved = more, 0, true
		}
		if !keep && at >= tried {
			for len(s)-at > piece && isBase64(s[at:at+piece]) {
				at += piece
			}
			tried = at + piece
		}
		for len(s)-at >= 8 && n+16 <= len(dst) {
			x := word(s[at:])
			binary.LittleEndian.PutUint64(dst[n:], x)
			// The lowest byte that is marked is a control character, '"' or '\\'.
			marked := (((x ^ each*('"'^' ')) - each*('"'-1)) | ((x ^ each*'\\') - each)) &^ x & highs
			if marked == 0 {
				any |= x
				at, n = at+8, n+8
				continue
			}
			before := bits.TrailingZeros64(marked) / 8
			any |= x & (1<<(8*before) - 1)
			at, n = at+before, n+before
			break
		}
		if n+16 > len(dst) && len(s)-at >= 8 {
			continue
		}
		if at == len(s) {
			d.at = at
			return "", d.fail("a string without end")
		}
		switch c := s[at]; {
		case c == '"':
			if d.at = at + 1; any&highs != 0 && !utf8.ValidString(s[start:at]) {
				return "", d.fail("a string that is not UTF-8")
			}
			if !keep {
				return "", nil
			}
			if !moved || len(dst)-n > cap(d.room)-len(d.room) {
				d.room = dst[:n]
			}
			if n == from {
				return "", nil
			}
			return unsafe.String(&dst[from], n-from), nil
		case c == '\\':
			d.at = at
			r, err := d.escape()
			if err != nil {
				return "", err
			}
			at = d.at
			n += utf8.EncodeRune(dst[n:], r)
		case c < ' ':
			d.at = at
			return "", d.fail("a control character in a string")
		default: // one of the last bytes of the text
			dst[n] = c
			any |= uint64(c)
			at, n = at+1, n+1
		}
	}
}

// roomFor returns room for the rest of a string of which the next byte is at at and have bytes
// are there: a new room, or for a long string one of its own.
func (d *decoder) roomFor(at, have int) ([]byte, error) {
	if at-d.skipped > maxText {
		return nil, d.tooLong()
	}
	end := at
	for {
		i := strings.IndexByte(d.s[end:], '"')
		if i < 0 {
			end = len(d.s)
			break
		}
		end += i
		if head := d.s[at:end]; (len(head)-len(strings.TrimRight(head, `\`)))%2 == 0 {
			break
		}
		end++
	}
	if end-d.skipped > maxText {
		return nil, d.tooLong()
	}
	size := have + end - at
	if size <= roomful/4 {
		size = min(have+len(d.s)-at, roomful)
	}
	return make([]byte, size+16), nil
}

func (d *decoder) tooLong() error {
	return beyond("", "longer than %d bytes beside its media", maxText)
}

// A piece of a string is in a near cache when it is looked at again.
const piece = 4 << 10

const (
	each  = 0x0101010101010101
	highs = each << 7 // the highest bits of 8 bytes
)

// isBase64 reports whether s, of whole pieces, has only characters as in base64: ASCII behind
// the quotation mark, and no backslash.
func isBase64(s string) bool {
	const to = each * (0x80 - '"' - 1)
	any, all := uint64(0), ^uint64(0)
	for s := s; len(s) >= 64; s = s[64:] {
		a, b, c, d := word(s), word(s[8:]), word(s[16:]), word(s[24:])
		e, f, g, h := word(s[32:]), word(s[40:]), word(s[48:]), word(s[56:])
		any |= a | b | c | d | e | f | g | h
		all &= (a + to) & (b + to) & (c + to) & (d + to) & (e + to) & (f + to) & (g + to) & (h + to)
	}
	return any&highs == 0 && all&highs == highs && strings.IndexByte(s, '\\') < 0
}

// word returns the first 8 bytes of s.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// escapes are the characters behind a backslash, and what they mean.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (d *decoder) escape() (rune, error) {
	if d.at+1 == len(d.s) {
		return 0, d.fail("a string without end")
	}
	if c := escapes[d.s[d.at+1]]; c != 0 {
		d.at += 2
		return rune(c), nil
	}
	r, ok := d.unicode()
	if !ok {
		return 0, d.fail("no such escape")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if low, ok := d.unicode(); ok {
		if r := utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	d.lone = true
	return utf8.RuneError, nil
}

// unicode reads an escape of \u and four digits.
func (d *decoder) unicode() (rune, bool) {
	s := d.s[d.at:]
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	d.at += 6
	return r, true
}
