// Package harmony writes conversations as OpenAI's crate openai-harmony 0.0.8 does, for gpt-oss
// (src/encoding.rs, render_conversation_for_completion).
//
// The crate makes ids, piece by piece, and never takes a special token out of a piece. This
// package makes one text with special tokens by name, and the places at which it has to be cut
// so that a tokenizer makes the same ids of it.
package harmony

import (
	"errors"
	"math/big"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// errUnknown is wrapped by errors about what the crate may accept, and this package does not.
var errUnknown = errors.New("not known here")

// Special tokens.
const (
	start   = "<|start|>"
	message = "<|message|>"
	channel = "<|channel|>"
	end     = "<|end|>"
	call    = "<|call|>"
)

// A Text is what was written so far. The zero Text is ready for use.
type Text struct {
	buf   []byte
	cuts  []int
	piece bool // the last write was a piece of text, not a special token
}

// String returns the text.
func (t *Text) String() string { return string(t.buf) }

// Cuts returns the places between bytes at which the text has to be cut, rising.
func (t *Text) Cuts() []int { return t.cuts }

// Grow makes room for n bytes.
func (t *Text) Grow(n int) {
	if cap(t.buf)-len(t.buf) < n {
		t.buf = append(make([]byte, 0, len(t.buf)+n), t.buf...)
	}
}

func (t *Text) special(token string) {
	t.buf = append(t.buf, token...)
	t.piece = false
}

// text writes a piece, which the crate encodes apart and without special tokens.
func (t *Text) text(s string) {
	if s == "" {
		return
	}
	from := len(t.buf)
	if t.piece && (s[0] != ' ' || t.buf[from-1] <= ' ' || t.buf[from-1] >= 0x80) {
		t.cuts = append(t.cuts, from)
	}
	t.buf = append(t.buf, s...)
	t.piece = true
	for i := 0; ; {
		at := strings.Index(s[i:], "<|")
		if at < 0 {
			return
		}
		i += at + len("<|")
		if special(s[i:]) > 0 {
			t.cuts = append(t.cuts, from+i)
		}
	}
}

// IsSpecial reports whether s looks like a special token, for which a text is cut.
func IsSpecial(s string) bool {
	rest, ok := strings.CutPrefix(s, "<|")
	return ok && special(rest) == len(rest) && rest != ""
}

// special returns the length of the special token, behind "<|", that s seems to begin with; 0 if
// there is none. The pattern of o200k always ends a word between the two, so that a cut there
// changes nothing else.
func special(s string) int {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
		case i > 0 && ('0' <= c && c <= '9' || c == '_'):
		default:
			if i > 0 && strings.HasPrefix(s[i:], "|>") {
				return i + len("|>")
			}
			return 0
		}
	}
	return 0
}

// A Header begins a message.
type Header struct {
	Author    string // the role, or the name of a tool
	Recipient string // "": all
	Channel   string // "": none
	Type      string // of the content; "": none
}

// Message writes a message of some pieces of text.
func (t *Text) Message(h Header, pieces ...string) {
	t.header(h)
	for _, p := range pieces {
		t.text(p)
	}
	if h.Author == "assistant" && h.Recipient != "" {
		t.special(call)
		return
	}
	t.special(end)
}

func (t *Text) header(h Header) {
	t.special(start)
	t.text(h.Author)
	if h.Recipient != "" {
		t.text(" to=" + h.Recipient)
	}
	if h.Channel != "" {
		t.special(channel)
		t.text(h.Channel)
	}
	if h.Type != "" {
		t.text(" " + h.Type)
	}
	t.special(message)
}

// Completion writes the beginning of the answer.
func (t *Text) Completion() {
	t.special(start)
	t.text("assistant")
}

// System writes the message about the model. effort is low, medium or high. functions: the
// conversation has functions.
func (t *Text) System(effort, date string, functions bool) {
	s := "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " + date +
		"\n\nReasoning: " + effort +
		"\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	if functions {
		s += "\nCalls to these tools must go to the commentary channel: 'functions'."
	}
	t.Message(Header{Author: "system"}, s)
}

// A Function is one that the model may call.
type Function struct {
	Name, Description string
	Parameters        *python.Dict // nil: none
}

// Developer writes instructions, nil without, and functions.
func (t *Text) Developer(instructions *string, functions []Function) error {
	var b schemas
	if instructions != nil {
		b.add("# Instructions\n\n", *instructions)
	}
	if len(functions) > 0 {
		if instructions != nil {
			b.add("\n\n")
		}
		b.add("# Tools\n\n## functions\n\nnamespace functions {\n\n")
		for _, f := range functions {
			b.function(f)
		}
		b.add("} // namespace functions")
	}
	if b.err != nil {
		return b.err
	}
	t.Message(Header{Author: "developer"}, string(b.buf))
	return nil
}

// maxSchemas bounds the text of functions, in bytes. Indentation makes it longer than they are.
const maxSchemas = 4 << 20

// schemas are JSON schemas as types of TypeScript (template_tools_section and
// json_schema_to_typescript).
type schemas struct {
	buf []byte
	err error
}

func (b *schemas) add(texts ...string) {
	for _, s := range texts {
		b.buf = append(b.buf, s...)
	}
}

func (b *schemas) function(f Function) {
	for line := range strings.Lines(f.Description) {
		line, ended := strings.CutSuffix(line, "\n")
		if ended {
			line = strings.TrimSuffix(line, "\r")
		}
		b.add("// ", line, "\n")
	}
	b.add("type ", f.Name, " = (")
	if f.Parameters != nil {
		b.add("_: ")
		b.schema(f.Parameters, "")
	}
	b.add(") => any;\n\n")
}

func get(v python.Value, name string) (python.Value, bool) {
	if o, ok := v.(*python.Dict); ok {
		return o.Lookup(name)
	}
	return nil, false
}

func getText(v python.Value, name string) (string, bool) {
	v, _ = get(v, name)
	s, ok := v.(string)
	return s, ok
}

func getList(v python.Value, name string) ([]python.Value, bool) {
	v, _ = get(v, name)
	if l, ok := v.(*python.List); ok {
		return l.Items, true
	}
	return nil, false
}

func (b *schemas) schema(v python.Value, indent string) {
	if b.full() {
		return
	}
	if variants, ok := getList(v, "oneOf"); ok {
		b.variants(variants, indent)
		return
	}
	if types, ok := getList(v, "type"); ok {
		if b.types(types) {
			return
		}
	}
	kind, _ := getText(v, "type")
	switch kind {
	case "object":
		b.object(v, indent)
	case "string":
		b.enum(v)
	case "number", "integer":
		b.add("number")
	case "boolean":
		b.add("boolean")
	case "array":
		items, ok := get(v, "items")
		if !ok {
			b.add("Array<any>")
			return
		}
		b.schema(items, indent)
		b.add("[]")
	default:
		b.add("any")
	}
}

// full reports whether there was an error, such as a text that is too long.
func (b *schemas) full() bool {
	if len(b.buf) > maxSchemas {
		b.err = errUnknown
	}
	return b.err != nil
}

func (b *schemas) types(types []python.Value) bool {
	n := 0
	for _, v := range types {
		s, ok := v.(string)
		if !ok {
			continue
		}
		if n++; n > 1 {
			b.add(" | ")
		}
		if s == "integer" {
			s = "number"
		}
		b.add(s)
	}
	return n > 0
}

func (b *schemas) enum(v python.Value) {
	values, _ := getList(v, "enum")
	n := 0
	for _, v := range values {
		if s, ok := v.(string); ok {
			if n++; n > 1 {
				b.add(" | ")
			}
			b.add(`"`, s, `"`)
		}
	}
	if n == 0 {
		b.add("string")
	}
}

func (b *schemas) variants(variants []python.Value, indent string) {
	for _, v := range variants {
		b.add("\n", indent, " | ")
		b.nullable(v, indent+"   ")
		var comments []string
		if s, ok := getText(v, "description"); ok {
			comments = append(comments, s)
		}
		if d, ok := get(v, "default"); ok {
			s, isText := d.(string)
			if isText && isEnum(v) { // here as JSON, elsewhere bare
				s = "default: " + b.json(s)
			} else {
				s = b.defaultOf(v, d)
			}
			comments = append(comments, s)
		}
		if len(comments) > 0 {
			b.add(" // ", strings.Join(comments, " "))
		}
	}
}

// nullable writes a schema, and null if it may be null.
func (b *schemas) nullable(v python.Value, indent string) {
	from := len(b.buf)
	b.schema(v, indent)
	if on, _ := get(v, "nullable"); on == true && !strings.Contains(string(b.buf[from:]), "null") {
		b.add(" | null")
	}
}

func isEnum(v python.Value) bool {
	values, _ := getList(v, "enum")
	return len(values) > 0
}

// defaultOf returns the comment about the default of v.
func (b *schemas) defaultOf(v, d python.Value) string {
	s, ok := d.(string)
	switch {
	case !ok:
		return "default: " + b.json(d)
	case isEnum(v):
		return "default: " + s
	}
	return `default: "` + s + `"`
}

func (b *schemas) object(v python.Value, indent string) {
	if s, ok := getText(v, "description"); ok {
		b.add(indent, "// ", s, "\n")
	}
	b.add("{\n")
	properties, _ := get(v, "properties")
	if o, ok := properties.(*python.Dict); ok {
		required := make(map[string]bool)
		list, _ := getList(v, "required")
		for _, name := range list {
			if s, ok := name.(string); ok {
				required[s] = true
			}
		}
		for i := range o.Len() {
			if b.full() {
				return
			}
			key, p := o.At(i)
			name := key.(string)
			mark := "?"
			if required[name] {
				mark = ""
			}
			b.property(name+mark, p, indent)
		}
	}
	b.add(indent, "}")
}

func (b *schemas) property(name string, v python.Value, indent string) {
	if s, ok := getText(v, "title"); ok {
		b.add(indent, "// ", s, "\n", indent, "//\n")
	}
	_, oneOf := get(v, "oneOf")
	if s, ok := getText(v, "description"); ok && !oneOf {
		b.add(indent, "// ", s, "\n")
	}
	if examples, _ := getList(v, "examples"); len(examples) > 0 {
		b.add(indent, "// Examples:\n")
		for _, e := range examples {
			if s, ok := e.(string); ok {
				b.add(indent, `// - "`, s, "\"\n")
			}
		}
	}
	if variants, ok := getList(v, "oneOf"); ok {
		b.alternatives(name, v, variants, indent)
		return
	}
	b.add(indent, name, ": ")
	b.nullable(v, indent+"    ")
	b.add(",")
	if d, ok := get(v, "default"); ok && !oneOf {
		b.add(" // ", b.defaultOf(v, d))
	}
	b.add("\n")
}

// alternatives writes a property that is one of several.
func (b *schemas) alternatives(name string, v python.Value, variants []python.Value, indent string) {
	description, described := getText(v, "description")
	above := described
	if described && len(variants) > 0 {
		if s, ok := getText(variants[0], "description"); ok && s == description {
			above = false
		}
	}
	if above {
		b.add(indent, "// ", description, "\n")
	}
	if d, ok := get(v, "default"); ok {
		b.add(indent, "// ", b.defaultOf(v, d), "\n")
	}
	b.add(indent, name, ":\n")
	for i, variant := range variants {
		b.add(indent, " | ")
		b.nullable(variant, indent+"   ")
		var comments []string
		s, ok := getText(variant, "description")
		if ok && (i > 0 || !above) && (!described || s != description) {
			comments = append(comments, s)
		}
		if d, ok := get(variant, "default"); ok {
			comments = append(comments, b.defaultOf(variant, d))
		}
		if len(comments) > 0 {
			b.add(" // ", strings.Join(comments, " "))
		}
		b.add("\n")
	}
	b.add(indent, ",\n")
}

// json returns a value as serde_json writes what it read of Python's json.dumps.
func (b *schemas) json(v python.Value) string {
	out, err := appendJSON(nil, v)
	if err != nil && b.err == nil {
		b.err = err
	}
	return string(out)
}

func appendJSON(b []byte, v python.Value) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case *big.Int:
		if !v.IsUint64() {
			return b, errUnknown
		}
		return v.Append(b, 10), nil
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v), nil
	case *python.List:
		b = append(b, '[')
		for i, item := range v.Items {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, item); err != nil {
				return b, err
			}
		}
		return append(b, ']'), nil
	case *python.Dict:
		b = append(b, '{')
		for i := range v.Len() {
			key, item := v.At(i)
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, key.(string)), ':')
			if b, err = appendJSON(b, item); err != nil {
				return b, err
			}
		}
		return append(b, '}'), nil
	}
	return b, errUnknown
}

func appendString(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		default:
			if at := strings.IndexByte("\bb\ff\nn\rr\tt", c); at >= 0 {
				b = append(b, '\\', "\bb\ff\nn\rr\tt"[at+1])
			} else {
				b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
			}
		}
	}
	return append(b, '"')
}

// appendFloat accepts the floats whose decimal every reader takes for the same: of 15 digits at
// most, and times a power of ten that is exact.
func appendFloat(b []byte, v float64) ([]byte, error) {
	if v == 0 {
		return strconv.AppendFloat(b, v, 'f', 1, 64), nil
	}
	s := strconv.FormatFloat(v, 'e', -1, 64)
	mantissa, exponent, ok := strings.Cut(s, "e")
	n, err := strconv.Atoi(exponent)
	if !ok || err != nil || n < -8 || n > 22 || len(strings.TrimLeft(mantissa, "-")) > len("1.23456789012345") {
		return b, errUnknown
	}
	if n < -5 || n > 15 {
		return append(append(append(b, mantissa...), 'e'), strconv.Itoa(n)...), nil
	}
	from := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	if !strings.Contains(string(b[from:]), ".") {
		b = append(b, ".0"...)
	}
	return b, nil
}
