package chat_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// The results and exceptions of json.loads of Python 3.11.
func TestJSON(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`null`, `None`},
		{` [true,false , 1, 1.0,-0, -0.0, 1e2, 1E+2, 1e-2, 0.5]`, `[true false 1 f1 0 f-0 f100 f100 f0.01 f0.5]`},
		{`[NaN,Infinity,-Infinity,1e999,-1e999]`, `[fNaN f+Inf f-Inf f+Inf f-Inf]`},
		{`[9223372036854775807,9223372036854775808,-9223372036854775808,-9223372036854775809]`,
			`[9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809]`},
		{`{"b":1,"a":2,"b":3}`, `{"b":3 "a":2}`},
		{`"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000é"`, `"\"\\/\b\f\n\r\té😀\x00é"`},
		{`[[],{}]`, `[[] {}]`},
		{"\"\x7f\"", `"\x7f"`},
	} {
		if got, err := chat.ShowJSON(c.text); got != c.want || err != nil {
			t.Errorf("%s: %s, %v", c.text, got, err)
		}
	}
	for _, text := range []string{
		``, ` `, `nul`, `[1,]`, `[,]`, `[1 2]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{1:1}`, `[1`, `{"a":1`, `01`, `-`, `+1`, `1.`, `.5`,
		`1e`, `1e+`, `0x1`, `-Inf`, `"`, `"a`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"", "\"a\\n\t\"", `1 2`, `{} {}`, "\ufeff1", `"\u00:0"`, `"\u00g0"`, "\"\\u00`0\"", `tru`, "\v1",
		`"\ud800`, `["\ud800",]`,
	} {
		if !chat.SyntaxError(text) {
			t.Errorf("%q is taken", text)
		}
	}
	for _, c := range []struct {
		text string
		want error
	}{
		{`"\ud800"`, chat.ErrMalformed}, {`"\udc00"`, chat.ErrMalformed}, {`"\ud800\ud800"`, chat.ErrMalformed}, {`"\ud800x"`, chat.ErrMalformed},
		{strings.Repeat("1", 4301), chat.ErrMalformed}, {"-" + strings.Repeat("1", 4301), chat.ErrMalformed},
		{strings.Repeat("[", 101), chat.ErrNotScorable}, {"[" + strings.Repeat("0,", 1<<20) + "0]", chat.ErrNotScorable},
		{"[" + strings.Repeat(`"",`, 1<<17) + "0]", chat.ErrNotScorable}, {"[" + strings.Repeat("{},", 1<<17) + "0]", chat.ErrNotScorable},
		{"[[[[" + strings.Repeat("0,", 1<<17) + "0]]]]", chat.ErrNotScorable},
	} {
		if _, err := chat.ShowJSON(c.text); !errors.Is(err, c.want) {
			t.Errorf("%.20s: %v", c.text, err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := chat.ShowJSON("[" + strings.Repeat(`"",`, 10_000) + "0]")
	if runtime.ReadMemStats(&after); err != nil || after.TotalAlloc-before.TotalAlloc > 16<<20 {
		t.Errorf("10,000 empty strings: %d bytes are allocated, %v", after.TotalAlloc-before.TotalAlloc, err)
	}
	if _, err := chat.ShowJSON(strings.Repeat("[", 100) + strings.Repeat("]", 100)); err != nil {
		t.Error(err)
	}
	if _, err := chat.ShowJSON("-" + strings.Repeat("1", 4300)); err != nil {
		t.Error(err)
	}
}

// lone reports whether a JSON string has an escaped lone surrogate, which encoding/json replaces.
func lone(raw string) bool {
	high := false
	for i := 0; i < len(raw); {
		var r rune
		n := 1
		if raw[i] == '\\' {
			if n = 2; raw[i+1] == 'u' {
				n = 6
				v, _ := strconv.ParseUint(raw[i+2:i+6], 16, 16)
				r = rune(v)
			}
		}
		i += n
		low := utf16.IsSurrogate(r) && r >= 0xdc00
		if high != low {
			return true
		}
		high = utf16.IsSurrogate(r) && !low
	}
	return false
}

// checkString compares a decoded JSON string with encoding/json's, which also accepts lone
// surrogates and bytes that are not UTF-8.
func checkString(t *testing.T, raw string) {
	t.Helper()
	var want string
	ok := json.Unmarshal([]byte(raw), &want) == nil && utf8.ValidString(raw) && !lone(raw)
	check := func(how, got string, err error) {
		t.Helper()
		if (err == nil) != ok || ok && got != want {
			t.Fatalf("%s of %.200q: %.200q, %v, want %.200q, %v", how, raw, got, err, want, ok)
		}
	}
	got, err := chat.DecodeString(raw)
	check("a text", got, err)
	body := []byte(raw)
	got, err = chat.DecodeBorrowed(body)
	clear(body)
	check("a body", got, err)
	_, err = chat.Parse("", []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":`+raw+`}}]}]}`))
	if (err == nil) != ok {
		t.Fatalf("media of %.200q: %v, want %v", raw, err, ok)
	}
}

var stringPieces = []string{
	`\n`, `\"`, `\\`, `\/`, `\t`, `\u00e9`, `\ud83d\ude00`, `\uFFFD`, "é", "日本", "😀", "\u2028", "\x7f", "<", "'", " ",
}

var badPieces = []string{
	"\x00", "\n", "\x1f", `"`, `\`, `\x`, `\u12`, `\u00g0`, `\ud800`, `\udc00`, `\ud800\ud800`, "\xff", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80",
}

// Strings are decoded as by encoding/json, with anything at any position.
func TestStrings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	plain := strings.Repeat("abcdefghijklmnopqrstuvwxyz012345", 300)
	for range 4000 {
		var b strings.Builder
		b.WriteByte('"')
		bad := r.IntN(3) == 0
		for n := r.IntN(12); n > 0; n-- {
			size := r.IntN(40)
			if r.IntN(40) == 0 {
				size = 4000 + r.IntN(200)
			}
			b.WriteString(plain[:size])
			pieces := stringPieces
			if bad && r.IntN(6) == 0 {
				pieces = badPieces
			}
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		b.WriteString(plain[:r.IntN(40)])
		if r.IntN(30) > 0 {
			b.WriteByte('"')
		}
		checkString(t, b.String())
	}
}

func FuzzString(f *testing.F) {
	for _, s := range append(stringPieces, badPieces...) {
		f.Add(s, uint16(0))
		f.Add(s, uint16(4095))
	}
	f.Fuzz(func(t *testing.T, s string, before uint16) {
		checkString(t, `"`+strings.Repeat("a", int(before)%5000)+s+`"`)
	})
}

// imageBody is a chat with images of size characters of base64 each.
func imageBody(images, size int) []byte {
	data := strings.Repeat("iVBORw0KGgoAAAANSUhEUgAABAAAAAQACAIAAADwf7zUAAEAAElEQVR4nOz925IkSY4k", 1+size/64)[:size]
	part := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}},`
	return []byte(`{"messages":[{"role":"user","content":[` + strings.Repeat(part, images) + `{"type":"text","text":"What is this?"}]}]}`)
}

// imageMessages is a body of the Messages API with images of size characters: one in the system
// prompt, which the engine drops, one in a message and one in the result of a tool.
func imageMessages(size int) []byte {
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + strings.Repeat("iVBORw0K", size/8) + `"}}`
	return []byte(`{"model":"m","max_tokens":5,"system":[` + image + `,{"type":"text","text":"s"}],"messages":[{"role":"user","content":[` + image + `,{"type":"text","text":"What is this?"}]},` +
		`{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"look","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a"},` + image + `]}]}]}`)
}

// imageResponses is a body of the Responses API with images of size characters in a message and in
// the output of a call.
func imageResponses(size int) []byte {
	image := `[{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,` + strings.Repeat("iVBORw0K", size/8) + `"}]`
	return []byte(`{"model":"m","input":[{"role":"user","content":` + image + `},{"type":"function_call","call_id":"c","name":"look","arguments":"{}"},` +
		`{"type":"function_call_output","call_id":"c","output":` + image + `}]}`)
}

// Media are not copied, and not bounded like text.
func TestMediaIsNotCopied(t *testing.T) {
	for path, body := range map[string][]byte{"": imageBody(4, 1<<20), "/v1/messages": imageMessages(chat.MaxText / 8), "/v1/responses": imageResponses(chat.MaxText / 8)} {
		if _, err := chat.Parse(path, body); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := chat.Parse(path, body)
		runtime.ReadMemStats(&after)
		if err != nil || !r.Chat() {
			t.Fatal(err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
			t.Errorf("%d bytes for a body of %d", n, len(body))
		}
	}
	for _, body := range []string{`{"prompt":"`, `{"prompt":1`} {
		long := append([]byte(body), bytes.Repeat([]byte("0"), chat.MaxText)...)
		if _, err := chat.Parse("", append(long, `"}`...)); !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s and so on: %v", body, err)
		}
	}
}

// A Prompt shares no memory with the body.
func TestNothingOfTheBodyIsKept(t *testing.T) {
	const source = "{{ messages }}{{ tools | tojson }}{{ documents }}{{ x }}"
	body := `{"model":"m","cache_salt":"s","messages":[{"role":"user","name":"n","content":"plain"},{"role":"assistant","reasoning":"why","content":[` +
		`{"type":"text","text":"a\nb","more":{"k":["v"]}}],"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"b\"}"}}]}],` +
		`"tools":[{"type":"function","function":{"name":"f","description":"d"}}],"documents":[{"t":"x"}],"chat_template_kwargs":{"x":"y"}}`
	render := func(scribble bool) string {
		b := []byte(body)
		r, err := chat.Parse("", b)
		if err != nil {
			t.Fatal(err)
		}
		if scribble {
			for i := range b {
				b[i] = 'Z'
			}
		}
		x, err := newModel(t, source, chat.Options{}).Render(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Model + r.Salt + x.Text
	}
	if got, want := render(true), render(false); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, body := range []string{`{"prompt":"plain"}`, `{"prompt":"a\nb"}`} {
		b := []byte(body)
		r, err := chat.Parse("", b)
		clear(b)
		if want, _ := chat.Parse("", []byte(body)); err != nil || r.Text != want.Text {
			t.Errorf("%s: %q, %v", body, r.Text, err)
		}
	}
}

// Fields skipped as media never reach a template.
func TestMediaFields(t *testing.T) {
	if name := chat.MediaField(); name != "" {
		t.Errorf("%s is given to templates", name)
	}
	// Elsewhere such a field is not media.
	long := strings.Repeat("x", 1000)
	body := `{"messages":[{"role":"user","content":[{"type":"text","text":"a","other":{"image_url":"` + long + `"}}]}],"documents":[{"image_url":"` + long + `"}],` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"image_url":"` + long + `","file":"` + long + `"}}}]}`
	x, err := newModel(t, "{% for m in messages %}{% for p in m.content %}{{ p.other.image_url }}{% endfor %}{% endfor %}{{ tools[0].function.parameters.image_url }}{{ tools[0].function.parameters.file }}{{ documents[0].image_url }}", chat.Options{}).Render(parse(t, body), nil)
	if err != nil || x.Text != long+long+long+long {
		t.Errorf("%.100q, %v", text(x), err)
	}
	// Only the source of an image in a Messages body is media.
	source := `{"source":{"data":"` + long + `"}}`
	body = `{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"source":{"data":"` + long + `"},"content":[` + source + `],"a":[` + source + `]}}]}],` +
		`"tools":[{"name":"f","input_schema":` + source + `}]}`
	r, err := chat.Parse("/v1/messages", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	x, err = newModel(t, "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a.source.data }}{{ a.content[0].source.data }}{{ a.a[0].source.data }}{{ tools[0].function.parameters.source.data }}", chat.Options{}).Render(r, nil)
	if err != nil || x.Text != long+long+long+long {
		t.Errorf("%.100q, %v", text(x), err)
	}
	body = `{"messages":[{"role":"user","content":[{"type":"text","text":"a","source":{"data":"` + long + `"}}]}]}`
	x, err = newModel(t, "{% for m in messages %}{% for p in m.content %}{{ p.source.data }}{{ p.type }}{% endfor %}{% endfor %}", chat.Options{}).Render(parse(t, body), nil)
	if err != nil || x.Text != long+"text" {
		t.Errorf("a chat: %.100q, %v", text(x), err)
	}
	// The engine prints a tool result of the assistant.
	body = `{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image",` + source[1:] + `]}]}]}`
	if _, err := chat.Parse("/v1/messages", []byte(body)); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), "messages[0].content[0].content[0].source.data") {
		t.Error(err)
	}
	args := strconv.Quote(`{"image_data":"` + long + `","messages":[{"content":[{"image_url":"` + long + `"}]}]}`)
	body = `{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":` + args + `}}]}]}`
	x, err = newModel(t, "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a.image_data }}{{ a.messages[0].content[0].image_url }}", chat.Options{}).Render(parse(t, body), nil)
	if err != nil || x.Text != long+long {
		t.Errorf("%.100q, %v", text(x), err)
	}
}
