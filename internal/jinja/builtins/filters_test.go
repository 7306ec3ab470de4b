package builtins

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A recordedCall is a line of the recording.
type recordedCall struct {
	kind, name string
	value      python.Value
	args       python.Arguments
	want       string
}

// TestRecordedFilters repeats what testdata/record_filters.py recorded of Jinja2 3.1.6 and
// CPython 3.11.7.
func TestRecordedFilters(t *testing.T) {
	f, err := os.Open("testdata/filters.jsonl.gz")
	must(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	must(t, err)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	calls, names, refused, classes := 0, map[string]int{}, map[string]int{}, 0
	for lines.Scan() {
		m := python.NewMachine(python.Limits{})
		c, err := readCall(m, lines.Bytes())
		if err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		calls++
		names[c.kind+" "+c.name]++
		got, err := c.do(m)
		var e *exception.Error
		switch {
		case errors.Is(err, exception.ErrUnsupported), errors.Is(err, exception.ErrLimit) && !strings.HasPrefix(c.want, "!"):
			refused[c.name+": "+err.Error()]++
			continue
		case errors.Is(err, exception.ErrLimit):
			continue
		case errors.As(err, &e):
			got = "!" + e.Class
		case err != nil:
			t.Fatal(err)
		}
		if got == c.want {
			continue
		}
		if strings.HasPrefix(got, "!") && strings.HasPrefix(c.want, "!") {
			classes++
			if testing.Verbose() {
				t.Logf("%s\n is %s, not %s (%v)", lines.Bytes(), got, c.want, err)
			}
			continue
		}
		t.Errorf("%s\n is %s, not %s (%v)", lines.Bytes(), got, c.want, err)
	}
	must(t, lines.Err())
	for name := range Filters {
		if names["f "+name] == 0 && !RefusedFilters[name] {
			t.Errorf("filter %s was not recorded", name)
		}
	}
	for name := range Tests {
		if names["t "+name] == 0 {
			t.Errorf("test %s was not recorded", name)
		}
	}
	for what, n := range refused {
		t.Logf("refused %d times: %s", n, what)
	}
	t.Logf("%d calls of %d filters, tests and globals; %d errors of another class", calls, len(names), classes)
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// do calls what was recorded and shows what it gives as record_filters.py does.
func (c recordedCall) do(m *python.Machine) (string, error) {
	var v python.Value
	var err error
	switch c.kind {
	case "f":
		v, err = filter(m, c.name, c.value, c.args)
	case "t":
		v, err = test(m, c.name, c.value, c.args)
	default:
		if c.kind == "s" {
			m.Now = c.now
		}
		g, _ := Global(c.name)
		v, err = g.(python.Callable).Call(m, c.args)
	}
	if err != nil {
		return "", err
	}
	return show(m, v)
}

// now is the time that the value is: year, month, day and so on to microseconds.
func (c recordedCall) now() time.Time {
	var n [7]int
	for i, v := range c.value.(*python.List).Items {
		n[i] = int(v.(int64))
	}
	return time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], n[6]*1000, time.UTC)
}

func show(m *python.Machine, v python.Value) (string, error) {
	switch v := v.(type) {
	case *python.Undefined:
		return "Undefined", nil
	case *python.Iterator:
		items, err := m.List(v)
		if err != nil {
			return "", err
		}
		s, err := show(m, &python.List{Items: items})
		return "iterator " + s, err
	case *python.Namespace:
		s, err := m.Repr(v.Attrs)
		return "Namespace <Namespace " + s + ">", err
	case *python.View:
		items, err := m.List(v)
		if err != nil {
			return "", err
		}
		s, err := show(m, &python.List{Items: items})
		return python.TypeName(v) + " " + s, err
	case python.Markup:
		return "Markup " + string(v), nil
	case *python.Range:
		return fmt.Sprintf("range %d %d %d", v.Start, v.Stop, v.Step), nil
	}
	s, err := m.Repr(v)
	return python.TypeName(v) + " " + s, err
}

func readCall(m *python.Machine, line []byte) (c recordedCall, err error) {
	var parts [6]json.RawMessage
	if err := json.Unmarshal(line, &parts); err != nil {
		return c, err
	}
	args, kwargs := parts[3], parts[4]
	for i, to := range map[int]*string{0: &c.kind, 1: &c.name, 5: &c.want} {
		if err := json.Unmarshal(parts[i], to); err != nil {
			return c, err
		}
	}
	if c.value, err = readValue(m, parts[2]); err != nil {
		return c, err
	}
	list, err := readValue(m, args)
	if err != nil {
		return c, err
	}
	c.args.List = list.(*python.List).Items
	d := json.NewDecoder(strings.NewReader(string(kwargs)))
	if _, err := d.Token(); err != nil {
		return c, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return c, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return c, err
		}
		v, err := readValue(m, raw)
		if err != nil {
			return c, err
		}
		c.args.Named = append(c.args.Named, python.Argument{Name: name.(string), Value: v})
	}
	return c, nil
}

func readValues(m *python.Machine, raw json.RawMessage) ([]python.Value, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	return readEach(m, parts)
}

func readEach(m *python.Machine, parts []json.RawMessage) ([]python.Value, error) {
	values := make([]python.Value, len(parts))
	for i, p := range parts {
		var err error
		if values[i], err = readValue(m, p); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// readValue reads a value as record_filters.py encodes it.
func readValue(m *python.Machine, raw json.RawMessage) (python.Value, error) {
	switch raw[0] {
	case '[':
		items, err := readValues(m, raw)
		return &python.List{Items: items}, err
	case '{':
		var tagged map[string]json.RawMessage
		if err := json.Unmarshal(raw, &tagged); err != nil {
			return nil, err
		}
		for tag, raw := range tagged {
			return readTagged(m, tag, raw)
		}
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case 't', 'f':
		return raw[0] == 't', nil
	case 'n':
		return nil, nil
	}
	return nil, fmt.Errorf("bad value %s", raw)
}

func readTagged(m *python.Machine, tag string, raw json.RawMessage) (python.Value, error) {
	var s string
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
	}
	switch tag {
	case "m":
		return python.Markup(s), nil
	case "u":
		return &python.Undefined{Name: s, Of: python.Missing}, nil
	case "i":
		return parsedInt(s), nil
	case "f":
		if s == "nan" {
			return math.NaN(), nil
		}
		return strconv.ParseFloat(s, 64)
	case "n":
		attrs, err := readValue(m, raw)
		if err != nil {
			return nil, err
		}
		return &python.Namespace{Attrs: attrs.(*python.Dict)}, nil
	case "v":
		parts, err := readValues(m, raw)
		if err != nil {
			return nil, err
		}
		kind := map[python.Value]python.ViewKind{"keys": python.ViewKeys, "values": python.ViewValues, "items": python.ViewItems}[parts[0]]
		return &python.View{Of: parts[1].(*python.Dict), Kind: kind}, nil
	case "r":
		ends, err := readValues(m, raw)
		if err != nil {
			return nil, err
		}
		return &python.Range{Start: ends[0].(int64), Stop: ends[1].(int64), Step: ends[2].(int64)}, nil
	}
	items, err := readValues(m, raw)
	if err != nil {
		return nil, err
	}
	switch tag {
	case "t":
		return &python.Tuple{Items: items}, nil
	case "g":
		return newGenerator(m, func() (nextFunc, error) {
			it, err := m.Iterate(&python.List{Items: items})
			return it.Next, err
		})
	case "d":
		d := &python.Dict{}
		for _, item := range items {
			pair := item.(*python.List).Items
			if err := d.SetValue(m, pair[0], pair[1]); err != nil {
				return nil, err
			}
		}
		return d, nil
	}
	return nil, fmt.Errorf("bad tag %s", tag)
}

// parsedInt returns an int of any length, of its digits.
func parsedInt(digits string) python.Value {
	n, ok := new(big.Int).SetString(digits, 0)
	switch {
	case !ok:
		panic("no int: " + digits)
	case n.IsInt64():
		return n.Int64()
	}
	return n
}
