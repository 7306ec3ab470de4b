package jinja

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// An oracle is a process of testdata/oracle.py: Jinja2 itself.
type oracle struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	names oracleNames
}

// oracleNames are what Jinja2 and Python have.
type oracleNames struct {
	Python, Jinja2, Markupsafe                string
	Filters, Tests, Globals, Nodes, Operators []string
	Attributes                                map[string][]string
}

// An answer is the oracle's: one of output, exception and limit.
type answer struct {
	Output  *string `json:"o,omitempty"`
	Class   string  `json:"e,omitempty"`
	Message string  `json:"m,omitempty"`
	Limit   string  `json:"l,omitempty"`
}

// pythonWithJinja is a Python that has Jinja2: that of KVINDEX_PYTHON, or one of
// the system's. The test is skipped without.
func pythonWithJinja(t testing.TB) string {
	for _, python := range []string{os.Getenv("KVINDEX_PYTHON"), "python3", "/usr/bin/python3"} {
		if python != "" && exec.Command(python, "-c", "import jinja2").Run() == nil {
			return python
		}
	}
	if os.Getenv("KVINDEX_REQUIRE_JINJA") != "" {
		t.Fatal("no Python with Jinja2")
	}
	t.Skip("no Python with Jinja2: set KVINDEX_PYTHON, or install python3-jinja2")
	return ""
}

func startOracle(t testing.TB, python string) *oracle {
	t.Helper()
	o := &oracle{cmd: exec.Command(python, "-W", "ignore", "testdata/oracle.py")}
	o.cmd.Env = append(os.Environ(), "PYTHONHASHSEED=0", "LC_ALL=C.UTF-8", "TZ=UTC")
	o.cmd.Stderr = os.Stderr
	in, err := o.cmd.StdinPipe()
	must(t, err)
	out, err := o.cmd.StdoutPipe()
	must(t, err)
	must(t, o.cmd.Start())
	t.Cleanup(func() {
		in.Close()
		o.cmd.Wait()
	})
	o.in, o.out = in, bufio.NewReaderSize(out, 1<<20)
	line, err := o.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o.names)
	}
	if err != nil {
		t.Fatalf("the oracle does not start: %v", err)
	}
	return o
}

// old tells whether the oracle's versions differ from those that this package
// reproduces.
func (o *oracle) old() bool { return o.names.Jinja2 != "3.1.6" || o.names.Markupsafe < "3" }

// send asks about programs; receive gets the answers.
func (o *oracle) send(programs []*program) error {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, p := range programs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"t":`)
		appendJSON(&b, p.template)
		b.WriteString(`,"v":`)
		appendJSON(&b, p.vars)
		b.WriteByte('}')
	}
	b.WriteString("]\n")
	_, err := o.in.Write(b.Bytes())
	return err
}

func (o *oracle) receive() ([]answer, error) {
	late := time.AfterFunc(5*time.Minute, func() { o.cmd.Process.Kill() })
	defer late.Stop()
	line, err := o.out.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var answers []answer
	return answers, json.Unmarshal(line, &answers)
}

func (o *oracle) ask(programs []*program) ([]answer, error) {
	if err := o.send(programs); err != nil {
		return nil, err
	}
	return o.receive()
}

// appendJSON writes a value in the form that Python's json reads back as the same.
func appendJSON(b *bytes.Buffer, v python.Value) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case string:
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		enc.Encode(v)
		b.Truncate(b.Len() - 1) // its newline
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		b.WriteString(s)
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case *python.List:
		b.WriteByte('[')
		for i, item := range v.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			appendJSON(b, item)
		}
		b.WriteByte(']')
	case *python.Dict:
		b.WriteByte('{')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			key, value := v.At(i)
			appendJSON(b, key)
			b.WriteByte(':')
			appendJSON(b, value)
		}
		b.WriteByte('}')
	default:
		panic(fmt.Sprintf("no JSON of %T", v))
	}
}

// readJSON reads a value as Python's json does.
func readJSON(d *json.Decoder) (python.Value, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			l := &python.List{}
			for d.More() {
				v, err := readJSON(d)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		m := &python.Dict{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := readJSON(d)
			if err != nil {
				return nil, err
			}
			m.Set(k.(string), v)
		}
		_, err := d.Token()
		return m, err
	case json.Number:
		if strings.ContainsAny(t.String(), ".eE") {
			return t.Float64()
		}
		return parsedInt(t.String()), nil
	default:
		return t, nil
	}
}

func valueOfJSON(text []byte) (python.Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return readJSON(d)
}

// The clock of testdata/oracle.py.
var oracleNow = time.Date(2026, 3, 7, 9, 5, 3, 4567000, time.UTC)

// errPanic is wrapped by the error of a rendering that panicked.
var errPanic = errors.New("panic")

// render compiles and renders a program here.
func (p *program) render() (out string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, r, debug.Stack())
		}
	}()
	t, err := Compile(p.template)
	if err != nil {
		return "", err
	}
	b, err := t.Render(nil, p.vars, &Env{Now: func() time.Time { return oracleNow }})
	return string(b), err
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
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
