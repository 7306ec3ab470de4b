package picker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/kvindex/kvindex"
)

// ErrNoUsage is wrapped by the errors of UsageReader.Usage.
var ErrNoUsage = errors.New("picker: no usage")

// A UsageReader reads the token usage of an engine's answer while the host copies the answer
// to its client. It passes each Read to the body of the answer, changes no byte, reads
// nothing ahead and takes less than 1 KiB of memory whatever the answer. It is for one
// goroutine.
//
// It reads whole answers (JSON) and streams (server-sent events) in these forms:
//
//   - OpenAI chat completions and completions, and vLLM's /inference/v1/generate:
//     usage.prompt_tokens and usage.prompt_tokens_details.cached_tokens. Of a stream the last
//     usage counts.
//   - OpenAI responses: usage.input_tokens and usage.input_tokens_details.cached_tokens; in a
//     stream response.usage.
//   - Anthropic messages: the prompt is the sum of usage.input_tokens,
//     cache_read_input_tokens and cache_creation_input_tokens. A stream begins with
//     message.usage, and the usage of its message_delta replaces the figures that it names.
//     The first usage alone does not count: engines write 0 in it for a figure that they do
//     not have yet.
//   - SGLang's own /generate: meta_info.prompt_tokens and meta_info.cached_tokens.
//
// # Missing figures
//
// CachedTokens is -1 if the engine does not report cached tokens: vLLM needs
// --enable-prompt-tokens-details, SGLang --enable-cache-report (not for /generate). With
// these flags, some engines also leave the figure out where it is 0: vLLM 0.22
// (vllm/entrypoints/openai/chat_completion/serving.py; vLLM 0.27.1 writes 0), and SGLang
// (UsageProcessor in sglang/srt/entrypoints/openai/usage_processor.py, and
// sglang/srt/entrypoints/anthropic/response_conversion.py). A UsageReader cannot distinguish
// the two and reports -1. A host whose engines all have the flag can take the -1 of
// an answer that ended well, beside a known PromptTokens, for 0.
//
// Engines differ in the input_tokens of Anthropic messages. Some versions of vLLM
// (vllm/entrypoints/anthropic/serving.py at commit 0001948) count cached tokens in it and
// report no cached tokens: PromptTokens is right, CachedTokens -1. Some versions of SGLang
// (sglang/srt/entrypoints/anthropic/serving.py at commit 0198d48) count cached tokens in it
// and report them in cache_read_input_tokens too: PromptTokens is too high by CachedTokens.
//
// SGLang computes the prompt of a request with n above 1 before it sends the n copies of it to
// its scheduler, so their cached tokens count that prompt (handle_batch_request in
// sglang/srt/managers/tokenizer_manager.py). A list, as /generate then answers, has no usage
// for a UsageReader.
type UsageReader struct {
	body        io.Reader
	err         error // the first of body
	encoding    string
	contentType string
	format      answerFormat
	column      int // in a stream: bytes of dataField that the line begins with; -1: another line
	scanner     usageScanner
}

type answerFormat uint8

const (
	unknownFormat answerFormat = iota // no byte but blanks has been read
	encodedFormat
	jsonFormat
	streamFormat
)

const dataField = "data:"

// UsageOf returns a reader of the answer with the header h and the given body. A nil body is
// an empty answer. The host must read the answer from the UsageReader, to its end, and then
// call Usage.
//
// The answer must not be compressed. Drop Accept-Encoding from the request to the engine, or
// let the http.Transport decompress the answer.
func UsageOf(h http.Header, body io.Reader) *UsageReader {
	u := &UsageReader{body: body, contentType: h.Get("Content-Type")}
	if body == nil {
		u.body = http.NoBody
	}
	if e := strings.Join(h.Values("Content-Encoding"), ", "); e != "" && !strings.EqualFold(e, "identity") {
		u.encoding, u.format = e, encodedFormat
	}
	u.scanner.current.reset()
	u.scanner.known.reset()
	return u
}

// Read reads from the body of the answer.
func (u *UsageReader) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if u.err == nil {
		u.err = err
	}
	b := p[:n]
	if u.format == unknownFormat {
		for len(b) > 0 && strings.IndexByte(" \t\r\n\xef\xbb\xbf", b[0]) >= 0 { // blanks and a byte order mark
			b = b[1:]
		}
		u.detect(b)
	}
	switch u.format {
	case jsonFormat:
		u.scanner.scan(b)
	case streamFormat:
		u.scanLines(b)
	}
	return n, err
}

// detect sets the format by the first byte. Beside an object, a stream begins with one of
// the fields data, event, id and retry, or with a comment.
func (u *UsageReader) detect(b []byte) {
	switch {
	case len(b) == 0:
	case b[0] != '{' && (strings.HasPrefix(u.contentType, "text/event-stream") || strings.IndexByte("deir:", b[0]) >= 0):
		u.format = streamFormat
	default:
		u.format = jsonFormat
	}
}

// scanLines gives the scanner the data of events. A blank line ends an event. CR needs no
// care: it is white space in JSON.
func (u *UsageReader) scanLines(b []byte) {
	for len(b) > 0 {
		if 0 <= u.column && u.column < len(dataField) {
			switch c := b[0]; {
			case c == '\n':
				if u.column == 0 {
					u.scanner.endEvent()
				}
				u.column = 0
			case c == dataField[u.column]:
				u.column++
			case c != '\r':
				u.column = -1
			}
			b = b[1:]
			continue
		}
		line, end := b, bytes.IndexByte(b, '\n')
		if end >= 0 {
			line = b[:end+1]
		}
		if u.column > 0 {
			u.scanner.scan(line) // with its LF, so that no token goes on in the next line
		}
		if end >= 0 {
			u.column = 0
		}
		b = b[len(line):]
	}
}

// Usage returns the usage of the answer. The error is nil only if both figures are known.
// Otherwise it wraps ErrNoUsage and has the reason why a figure is missing, and the missing figure is -1.
// A figure that does not fit is missing: one that is not an integer from 0 to 2147483647, or
// cached tokens that exceed the prompt tokens.
//
// Usage before the end of the answer returns the figures that are known by then, and an error.
func (u *UsageReader) Usage() (kvindex.Usage, error) {
	usage, missing := u.scanner.known.usage()
	s := &u.scanner
	var why string
	switch {
	case u.encoding != "":
		why = fmt.Sprintf("the answer is %s-encoded: drop Accept-Encoding from the request to the engine", u.encoding)
	case u.err == nil && !u.complete():
		why = "the answer has not ended"
	case u.err != nil && !errors.Is(u.err, io.EOF):
		return usage, fmt.Errorf("%w: the answer is cut off: %w", ErrNoUsage, u.err)
	case s.failed:
		why = "the answer is an error of the engine"
	case u.format == unknownFormat:
		why = "the answer is empty"
	case !s.object:
		why = fmt.Sprintf("the answer has no JSON object (Content-Type %q)", u.contentType)
	case s.malformed || s.state == inOther && u.format == jsonFormat:
		why = "the answer has malformed JSON"
	case s.state != atStart && s.state != inOther:
		why = "the answer is cut off: its JSON does not end"
	case !s.found && s.started:
		why = "the stream is cut off: it has no message_delta with usage"
	case !s.found && u.format == streamFormat:
		why = `the stream has no usage: an OpenAI request needs "stream_options": {"include_usage": true}`
	case !s.found:
		why = "the answer has no usage"
	case missing != "":
		why = missing
	default:
		return usage, nil
	}
	return usage, fmt.Errorf("%w: %s", ErrNoUsage, why)
}

// complete reports whether all of a JSON answer was read: a host that decodes it may stop
// before the end of the body.
func (u *UsageReader) complete() bool {
	return u.format == jsonFormat && u.scanner.object && u.scanner.state == atStart
}

// usageField is the meaning of a key: a figure, an object to look into, or an error.
type usageField uint8

const (
	noField usageField = iota
	promptTokens
	inputTokens
	readTokens
	createdTokens
	cachedTokens
	numFigures // the number of the figures above
	errorField
	rootObject
	messageObject // message_start of Anthropic
	responseObject
	usageObject
	detailsObject
	metaObject
)

// usageFields are the keys with a meaning, by the object that they are in. All other keys are
// skipped, with their values.
var usageFields = [...]map[string]usageField{
	rootObject: {
		"usage": usageObject, "message": messageObject, "response": responseObject,
		"meta_info": metaObject, "error": errorField,
	},
	messageObject:  {"usage": usageObject},
	responseObject: {"usage": usageObject},
	usageObject: {
		"prompt_tokens": promptTokens, "prompt_tokens_details": detailsObject,
		"input_tokens": inputTokens, "input_tokens_details": detailsObject,
		"cache_read_input_tokens": readTokens, "cache_creation_input_tokens": createdTokens,
	},
	detailsObject: {"cached_tokens": cachedTokens},
	metaObject:    {"prompt_tokens": promptTokens, "cached_tokens": cachedTokens},
}

const (
	missingFigure = -1
	wrongFigure   = -2
)

type usageFigures [numFigures]int64

func (f *usageFigures) reset() {
	for i := range f {
		f[i] = missingFigure
	}
}

// usage returns the usage, and why a figure of it is missing.
func (f *usageFigures) usage() (u kvindex.Usage, missing string) {
	prompt, cached := f[promptTokens], f[cachedTokens]
	if cached == missingFigure {
		cached = f[readTokens]
	}
	if prompt == missingFigure && f[inputTokens] != missingFigure {
		prompt = max(f[inputTokens], 0) + max(f[readTokens], 0) + max(f[createdTokens], 0)
		if min(f[inputTokens], f[readTokens], f[createdTokens]) == wrongFigure || prompt > math.MaxInt32 {
			prompt = wrongFigure
		}
	}
	switch {
	case prompt == missingFigure:
		missing = "the usage has no prompt_tokens and no input_tokens"
	case prompt == wrongFigure:
		missing = "the prompt tokens are not an integer from 0 to 2147483647"
	case cached == missingFigure:
		missing = "the usage has no cached tokens: vLLM needs --enable-prompt-tokens-details, SGLang --enable-cache-report; some versions leave out 0"
	case cached == wrongFigure:
		missing = "the cached tokens are not an integer from 0 to 2147483647"
	case cached > prompt:
		missing = fmt.Sprintf("the cached tokens (%d) exceed the prompt tokens (%d)", cached, prompt)
		cached = missingFigure
	}
	return kvindex.Usage{PromptTokens: int(max(prompt, -1)), CachedTokens: int(max(cached, -1))}, missing
}

type scanState uint8

const (
	atStart   scanState = iota // before an object
	atKey                      // before a key or the end of an object
	inKey                      // in a key that can be one of usageFields
	atColon                    // after a key
	atValue                    // after a colon
	inNumber                   // in a figure
	inLiteral                  // in a number, true, false or null to skip
	inString                   // in a string to skip, which is followed by the state next
	inEscape                   // after a backslash in it
	inNested                   // in an object or array to skip
	atComma                    // after a value
	inOther                    // in no object or in malformed JSON, up to the end of the event
)

// A usageScanner scans JSON objects. It looks into the objects of usageFields and skips all other
// values, of which it counts the brackets only.
type usageScanner struct {
	state     scanState
	next      scanState
	field     usageField    // of the last key
	open      int           // number of objects in path
	path      [4]usageField // the open objects that are looked into
	depth     int           // open brackets of the value that is skipped
	keySize   int
	key       [32]byte
	number    int64
	current   usageFigures // of the last usage, which may not have ended
	known     usageFigures // of the last usage that has ended
	object    bool         // an object has begun
	found     bool         // known is set
	started   bool         // current is that of an Anthropic stream's message_start
	failed    bool         // the answer has an error
	malformed bool
}

func (s *usageScanner) scan(b []byte) {
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch s.state {
		case inString:
			for c != '"' && c != '\\' {
				if i++; i == len(b) {
					return
				}
				c = b[i]
			}
			s.state = s.next
			if c == '\\' {
				s.state = inEscape
			}
		case inEscape:
			s.state = inString
		case inNested:
			switch c {
			case '"':
				s.state, s.next = inString, inNested
			case '{', '[':
				s.depth++
			case '}', ']':
				if s.depth--; s.depth == 0 {
					s.state = atComma
				}
			}
		case inKey:
			switch {
			case c == '"':
				s.field = usageFields[s.path[s.open-1]][string(s.key[:s.keySize])]
				s.state = atColon
			case c == '\\' || s.keySize == len(s.key):
				s.field = noField
				s.state, s.next = inString, atColon
				i-- // c is scanned again
			default:
				s.key[s.keySize] = c
				s.keySize++
			}
		case inNumber:
			switch {
			case isDelimiter(c):
				s.current[s.field] = s.number
				s.state = atComma
				i--
			case s.number > 0 && '0' <= c && c <= '9':
				if s.number = s.number*10 + int64(c-'0'); s.number > math.MaxInt32 {
					s.number = wrongFigure
				}
			default:
				s.number = wrongFigure
			}
		case inLiteral:
			if isDelimiter(c) {
				s.state = atComma
				i--
			}
		case inOther:
			return
		default:
			if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
				s.token(c)
			}
		}
	}
}

func isDelimiter(c byte) bool {
	return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\t' || c == '\r' || c == '\n'
}

// token scans a byte between keys and values.
func (s *usageScanner) token(c byte) {
	switch {
	case s.state == atStart && c == '{':
		s.object = true
		s.openObject(rootObject)
	case s.state == atStart:
		s.state = inOther
	case s.state == atKey && c == '"':
		s.state, s.keySize = inKey, 0
	case s.state == atColon && c == ':':
		s.state = atValue
	case s.state == atComma && c == ',':
		s.state = atKey
	case (s.state == atKey || s.state == atComma) && c == '}':
		s.closeObject()
	case s.state == atValue && !isDelimiter(c) && c != ':':
		s.value(c)
	default:
		s.state, s.malformed = inOther, true
	}
}

// value scans the first byte of the value of s.field.
func (s *usageScanner) value(c byte) {
	figure := noField < s.field && s.field < numFigures
	switch {
	case figure && '0' <= c && c <= '9':
		s.state, s.number = inNumber, int64(c-'0')
		return
	case c == '{' && s.field > rootObject:
		s.openObject(s.field)
		return
	case figure && c != 'n': // null is no figure
		s.current[s.field] = wrongFigure
	case s.field == errorField && c != 'n':
		s.failed = true
	}
	switch c {
	case '{', '[':
		s.state, s.depth = inNested, 1
	case '"':
		s.state, s.next = inString, atComma
	default:
		s.state = inLiteral
	}
}

func (s *usageScanner) openObject(f usageField) {
	delta := s.started && f == usageObject && s.path[s.open-1] == rootObject
	if (f == usageObject || f == metaObject) && !delta {
		s.current.reset()
	}
	s.path[s.open] = f
	s.open++
	s.state = atKey
}

func (s *usageScanner) closeObject() {
	s.open--
	s.state = atComma
	switch f := s.path[s.open]; {
	case f == rootObject:
		s.state = atStart
	case f == usageObject && s.path[s.open-1] == messageObject:
		s.started = true
	case f == usageObject || f == metaObject:
		s.known, s.found = s.current, true
	}
}

// endEvent ends an event of a stream. Each event has JSON of its own.
func (s *usageScanner) endEvent() {
	if s.state != atStart && s.state != inOther {
		s.malformed = true
	}
	s.state, s.open = atStart, 0
}
