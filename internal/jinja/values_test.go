package jinja

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
)

// TestRecordedValues repeats what testdata/record_values.py recorded of CPython
// 3.11.7 and Jinja2 3.1.6.
func TestRecordedValues(t *testing.T) {
	lines := recorded(t)
	refused, many := map[string]int{}, 0
	for n, line := range lines {
		m := newMachine(&Env{}, nil)
		var parts []json.RawMessage
		var result any
		must(t, json.Unmarshal([]byte(line), &parts))
		must(t, json.Unmarshal(parts[len(parts)-1], &result))
		row, err := readEach(m, parts[:len(parts)-1])
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		got, err := m.replay(row)
		want := encodedText(result)
		if errors.Is(err, ErrUnsupported) {
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
func (m *machine) replay(row []Value) (Value, error) {
	switch op, a := row[0].(string), row[1:]; op {
	case "bin":
		return m.binary(a[0].(string), a[1], a[2])
	case "cmp":
		return m.compareBy(a[0].(string), a[1], a[2])
	case "un":
		return m.unaryBy(a[0].(string), a[1])
	case "getitem":
		return m.getitem(a[0], a[1])
	case "index":
		return m.index(a[0], a[1])
	case "getattr":
		return m.getattr(a[0], a[1].(string))
	case "slice":
		return m.slice(a[0], a[1], a[2], a[3])
	case "dict":
		d := &Dict{}
		for _, p := range a[0].(*List).Items {
			pair := p.(*List).Items
			if err := d.set(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
		return d, nil
	default:
		args := arguments{list: a[2].(*List).Items}
		for i := range a[3].(*Dict).Len() {
			k, v := a[3].(*Dict).At(i)
			args.named = append(args.named, argument{k.(string), v})
		}
		v, ok, err := m.callMethod(a[0], a[1].(string), args)
		if ok || err != nil {
			return v, err
		}
		if v, err = m.getattr(a[0], a[1].(string)); err != nil {
			return nil, err
		}
		if u, ok := v.(*Undefined); ok {
			return nil, u.fail()
		}
		return nil, fmt.Errorf("no method %s of %s", a[1], typeName(a[0]))
	}
}

func (m *machine) compareBy(op string, a, b Value) (Value, error) {
	switch op {
	case "==":
		ok, err := m.equal(a, b)
		return ok, err
	case "!=":
		ok, err := m.equal(a, b)
		return !ok, err
	case "in":
		ok, err := m.contains(a, b)
		return ok, err
	}
	ok, err := m.less(op, a, b)
	return ok, err
}

func (m *machine) unaryBy(op string, a Value) (v Value, err error) {
	switch op {
	case "truth":
		v, err = m.truth(a)
	case "len":
		var n int
		n, err = m.length(a)
		v = int64(n)
	case "str":
		v, err = m.str(a)
	case "repr":
		v, err = m.repr(a)
	case "list":
		var items []Value
		items, err = m.list(a)
		v = &List{Items: items}
	case "hash":
		d := &Dict{}
		err = d.set(m, a, int64(1))
		v = d
	default:
		v, err = m.unary(op, a)
	}
	return v, err
}

// resultOf encodes what an operation gave as it is recorded.
func resultOf(m *machine, v Value, err error) any {
	var e *Error
	switch {
	case errors.As(err, &e) && e.Class != "":
		return map[string]any{"e": e.Class}
	case err != nil:
		return "error: " + err.Error()
	}
	return encoded(v)
}

func encoded(v Value) any {
	one := func(kind string, v any) any { return map[string]any{kind: v} }
	switch v := v.(type) {
	case int64, *big.Int:
		return one("i", fmt.Sprintf("%#x", v))
	case float64:
		return one("f", string(appendFloat(nil, v)))
	case Markup:
		return one("m", string(v))
	case *List:
		return encodedItems(v.Items)
	case *Tuple:
		return one("t", encodedItems(v.Items))
	case *Dict:
		return one("d", encodedPairs(v))
	case *Range:
		return one("r", encodedItems([]Value{v.Start, v.Stop, v.Step}))
	case *View:
		return one("v", []any{strings.TrimPrefix(v.kind.String(), "dict_"), encoded(v.of)})
	case *Namespace:
		return one("n", encoded(v.attrs))
	case *Undefined:
		if v.Of == missing {
			return one("u", v.Name)
		}
		return one("u", "")
	case nil, bool, string:
		return v
	}
	return "?" + typeName(v)
}

func encodedItems(items []Value) any {
	list := make([]any, len(items))
	for i := range items {
		list[i] = encoded(items[i])
	}
	return list
}

func encodedPairs(d *Dict) any {
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
