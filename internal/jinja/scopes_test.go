package jinja

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"strings"
	"testing"
)

// TestScopes renders programs as Jinja2 3.1.6 does on CPython 3.11 (see
// testdata/record_scopes.py). KVINDEX_SCOPES may name a file with more of them.
func TestScopes(t *testing.T) {
	name := os.Getenv("KVINDEX_SCOPES")
	if name == "" {
		name = "testdata/scopes.jsonl"
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	lines.Scan()
	vars, _ := decode(t, lines.Bytes()).(*Dict).Lookup("vars")
	rows, refused := 0, 0
	for lines.Scan() {
		var row struct {
			T, Err  string
			Out     *string
			Compile bool
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		rows++
		var out []byte
		tmpl, err := Compile(row.T)
		compiled := err == nil
		if compiled {
			out, err = tmpl.Render(nil, vars.(*Dict), nil)
		}
		var e *Error
		switch {
		case errors.Is(err, ErrUnsupported):
			refused++
			t.Logf("%s\nrefused: %v", row.T, err)
		case row.Out != nil && (err != nil || string(out) != *row.Out):
			t.Errorf("%s\ngot  %q, error %v\nwant %q", row.T, out, err, *row.Out)
		case row.Out == nil && (!errors.As(err, &e) || e.Class != row.Err || compiled == row.Compile):
			t.Errorf("%s\ngot  %q, error %v\nwant %s, at compiling: %v", row.T, out, err, row.Err, row.Compile)
		}
	}
	t.Logf("%d programs, %d refused", rows, refused)
	if rows < 300 || refused*20 > rows {
		t.Errorf("%d programs of which %d are refused prove too little", rows, refused)
	}
}

// decode makes a value of JSON.
func decode(t testing.TB, data []byte) Value {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeNext(d)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func decodeNext(d *json.Decoder) (Value, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Delim:
		if tok == '{' {
			return decodeDict(d)
		}
		list := &List{}
		for d.More() {
			v, err := decodeNext(d)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, v)
		}
		_, err := d.Token()
		return list, err
	case json.Number:
		if strings.ContainsAny(tok.String(), ".eE") {
			return tok.Float64()
		}
		n, _ := new(big.Int).SetString(tok.String(), 10)
		return integer(n), nil
	}
	return tok, nil
}

func decodeDict(d *json.Decoder) (Value, error) {
	dict := &Dict{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decodeNext(d)
		if err != nil {
			return nil, err
		}
		dict.Set(key.(string), v)
	}
	_, err := d.Token()
	return dict, err
}
