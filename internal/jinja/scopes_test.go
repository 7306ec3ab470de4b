package jinja

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// TestScopes renders programs as Jinja2 3.1.6 does on CPython 3.11 (see
// testdata/record_scopes.py).
func TestScopes(t *testing.T) {
	data, err := os.ReadFile("testdata/scopes.jsonl")
	must(t, err)
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	lines.Scan()
	head, err := valueOfJSON(lines.Bytes())
	must(t, err)
	vars, _ := head.(*python.Dict).Lookup("vars")
	rows := 0
	for lines.Scan() {
		var row struct {
			T, Err  string
			Out     *string
			Compile bool
		}
		must(t, json.Unmarshal(lines.Bytes(), &row))
		rows++
		var out []byte
		tmpl, err := Compile(row.T)
		compiled := err == nil
		if compiled {
			out, err = tmpl.Render(nil, vars.(*python.Dict), nil)
		}
		var e *Error
		switch {
		case row.Out != nil && (err != nil || string(out) != *row.Out):
			t.Errorf("%s\ngot  %q, error %v\nwant %q", row.T, out, err, *row.Out)
		case row.Out == nil && (!errors.As(err, &e) || e.Class != row.Err || compiled == row.Compile):
			t.Errorf("%s\ngot  %q, error %v\nwant %s, at compiling: %v", row.T, out, err, row.Err, row.Compile)
		}
	}
	if rows < 300 {
		t.Errorf("%d programs prove too little", rows)
	}
}
