package builtins

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// TestRecordedValues repeats what testdata/record_values.py recorded of CPython
// 3.11.7 and Jinja2 3.1.6.
func TestRecordedValues(t *testing.T) {
	lines := recorded(t)
	refused, many := map[string]int{}, 0
	for n, line := range lines {
		m := python.NewMachine(python.Limits{})
		var parts []json.RawMessage
		var result any
		must(t, json.Unmarshal([]byte(line), &parts))
		must(t, json.Unmarshal(parts[len(parts)-1], &result))
		row, err := readEach(m, parts[:len(parts)-1])
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		got, err := replay(m, row)
		want := encodedText(result)
		if errors.Is(err, exception.ErrUnsupported) {
			refused[err.Error()]++
			many++
			continue
		}
		if text := encodedText(resultOf(m, got, err)); text != want {
			t.Errorf("line %d: %s\n got %s\nwant %s", n+1, line, text, want)
		}
	}
	t.Logf("%d operations; refused: %v", len(lines), refused)
	if many > len(lines)/100 {
		t.Errorf("%d of %d operations refused", many, len(lines))
	}
}

func recorded(t *testing.T) []string {
	f, err := os.Open("testdata/values.jsonl.gz")
	must(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	must(t, err)
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	var lines []string
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return lines
}

// replay carries out a recorded operation.
func replay(m *python.Machine, row []python.Value) (python.Value, error) {
	switch op, a := row[0].(string), row[1:]; op {
	case "bin":
		return m.Binary(a[0].(string), a[1], a[2])
	case "cmp":
		return compareBy(m, a[0].(string), a[1], a[2])
	case "un":
		return unaryBy(m, a[0].(string), a[1])
	case "getitem":
		return m.Getitem(a[0], a[1])
	case "index":
		return m.Index(a[0], a[1])
	case "getattr":
		return m.Getattr(a[0], a[1].(string))
	case "slice":
		return m.Slice(a[0], a[1], a[2], a[3])
	case "dict":
		d := &python.Dict{}
		for _, p := range a[0].(*python.List).Items {
			pair := p.(*python.List).Items
			if err := d.SetValue(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
		return d, nil
	default:
		args := python.Arguments{List: a[2].(*python.List).Items}
		for i := range a[3].(*python.Dict).Len() {
			k, v := a[3].(*python.Dict).At(i)
			args.Named = append(args.Named, python.Argument{Name: k.(string), Value: v})
		}
		v, ok, err := m.CallMethod(a[0], a[1].(string), args)
		if ok || err != nil {
			return v, err
		}
		if v, err = m.Getattr(a[0], a[1].(string)); err != nil {
			return nil, err
		}
		if u, ok := v.(*python.Undefined); ok {
			return nil, u.Fail()
		}
		return nil, fmt.Errorf("no method %s of %s", a[1], python.TypeName(a[0]))
	}
}

func compareBy(m *python.Machine, op string, a, b python.Value) (python.Value, error) {
	switch op {
	case "==":
		ok, err := m.Equal(a, b)
		return ok, err
	case "!=":
		ok, err := m.Equal(a, b)
		return !ok, err
	case "in":
		ok, err := m.Contains(a, b)
		return ok, err
	}
	ok, err := m.Less(op, a, b)
	return ok, err
}

func unaryBy(m *python.Machine, op string, a python.Value) (v python.Value, err error) {
	switch op {
	case "truth":
		v, err = m.Truth(a)
	case "len":
		var n int
		n, err = m.Length(a)
		v = int64(n)
	case "str":
		v, err = m.Str(a)
	case "repr":
		v, err = m.Repr(a)
	case "list":
		var items []python.Value
		items, err = m.List(a)
		v = &python.List{Items: items}
	case "hash":
		d := &python.Dict{}
		err = d.SetValue(m, a, int64(1))
		v = d
	default:
		v, err = m.Unary(op, a)
	}
	return v, err
}

// resultOf encodes what an operation gave as it is recorded.
func resultOf(m *python.Machine, v python.Value, err error) any {
	var e *exception.Error
	switch {
	case errors.As(err, &e) && e.Class != "":
		return map[string]any{"e": e.Class}
	case err != nil:
		return "error: " + err.Error()
	}
	return encoded(v)
}

func encoded(v python.Value) any {
	one := func(kind string, v any) any { return map[string]any{kind: v} }
	switch v := v.(type) {
	case int64, *big.Int:
		return one("i", fmt.Sprintf("%#x", v))
	case float64:
		return one("f", string(python.AppendFloat(nil, v)))
	case python.Markup:
		return one("m", string(v))
	case *python.List:
		return encodedItems(v.Items)
	case *python.Tuple:
		return one("t", encodedItems(v.Items))
	case *python.Dict:
		return one("d", encodedPairs(v))
	case *python.Range:
		return one("r", encodedItems([]python.Value{v.Start, v.Stop, v.Step}))
	case *python.View:
		return one("v", []any{strings.TrimPrefix(v.Kind.String(), "dict_"), encoded(v.Of)})
	case *python.Namespace:
		return one("n", encoded(v.Attrs))
	case *python.Undefined:
		if v.Of == python.Missing {
			return one("u", v.Name)
		}
		return one("u", "")
	case nil, bool, string:
		return v
	}
	return "?" + python.TypeName(v)
}

func encodedItems(items []python.Value) any {
	list := make([]any, len(items))
	for i := range items {
		list[i] = encoded(items[i])
	}
	return list
}

func encodedPairs(d *python.Dict) any {
	pairs := make([]any, d.Len())
	for i := range pairs {
		k, v := d.At(i)
		pairs[i] = []any{encoded(k), encoded(v)}
	}
	return pairs
}

func encodedText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
