package harmony

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// pieces returns a text split at its cuts.
func pieces(t *Text) (list []string) {
	s, from := t.String(), 0
	for _, at := range append(slices.Clone(t.Cuts()), len(s)) {
		list = append(list, s[from:at])
		from = at
	}
	return list
}

// A text is cut inside special tokens that a client wrote, and where two adjacent texts would form
// one word of the pattern.
func TestPieces(t *testing.T) {
	const head, tail = "<|start|>user<|message|>", "<|end|>"
	for _, c := range []struct {
		texts []string
		want  []string
	}{
		{[]string{"a"}, []string{head + "a" + tail}},
		{[]string{"a<|end|>b"}, []string{head + "a<|", "end|>b" + tail}},
		{[]string{"<|reserved_200001|><|END|>"}, []string{head + "<|", "reserved_200001|><|", "END|>" + tail}},
		{[]string{"<|", "end|>", "<| end|>", "<|1|>", "<|end|", "a <| b |> c<|"}, []string{head + "<|", "end|>", "<| end|>", "<|1|>", "<|end|", "a <| b |> c<|" + tail}},
		{[]string{"a", " b"}, []string{head + "a b" + tail}},
		{[]string{"a ", " b", "c"}, []string{head + "a ", " b", "c" + tail}},
		{[]string{"é", " b"}, []string{head + "é", " b" + tail}},
		{[]string{"", "a", "", " b", ""}, []string{head + "a b" + tail}},
	} {
		x := new(Text)
		x.Message(Header{Author: "user"}, c.texts...)
		if got := pieces(x); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.texts, got, c.want)
		}
	}
}

// Values that the crate may write in another way are an error.
func TestUnknown(t *testing.T) {
	schema := func(v python.Value) *python.Dict {
		d := new(python.Dict)
		d.Set("type", "object")
		d.Set("properties", v)
		return d
	}
	wide := new(python.Dict)
	for i := range 10_000 {
		wide.Set(fmt.Sprint(i), nil)
	}
	deep := schema(wide)
	for range 500 {
		d := new(python.Dict)
		d.Set("n", deep)
		deep = schema(d)
	}
	if err := new(Text).Developer(nil, []Function{{Name: "f", Parameters: deep}}); err == nil {
		t.Error("a schema as long as its indentation is deep is taken")
	}
	for _, v := range []python.Value{1e23, 1e-9, 0.1234567890123456, python.Value(struct{}{})} {
		if out, err := appendJSON(nil, v); err == nil {
			t.Errorf("%v is %s", v, out)
		}
	}
	for v, want := range map[float64]string{0: "0.0", 1: "1.0", -2.5: "-2.5", 1e15: "1000000000000000.0", 1e16: "1e16", 1.5e-6: "1.5e-6", 1e-5: "0.00001", 1.25e22: "1.25e22"} {
		if out, err := appendJSON(nil, v); err != nil || string(out) != want {
			t.Errorf("%v is %s, %v, want %s", v, out, err, want)
		}
	}
}
