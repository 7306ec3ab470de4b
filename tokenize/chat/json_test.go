package chat_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// What json.loads of Python 3.11 gives for the texts, and whether it raises.
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
	if _, err := chat.ShowJSON(strings.Repeat("[", 100) + strings.Repeat("]", 100)); err != nil {
		t.Error(err)
	}
	if _, err := chat.ShowJSON("-" + strings.Repeat("1", 4300)); err != nil {
		t.Error(err)
	}
}
