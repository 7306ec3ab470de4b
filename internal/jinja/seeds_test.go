package jinja

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

var record = flag.Bool("record", false, "TestSeeds and TestRecordedPrograms ask Jinja2 3.1.6 and write their files")

// A seed is a small program with Jinja2 3.1.6's answer: mostly one that once
// differed.
type recordedSeed struct {
	Template string          `json:"t"`
	Vars     json.RawMessage `json:"v,omitempty"`
	answer
}

const seedsFile = "testdata/diff_seeds.jsonl"

// TestSeeds renders the small programs of testdata, without Python.
func TestSeeds(t *testing.T) {
	text, err := os.ReadFile(seedsFile)
	must(t, err)
	var seeds []recordedSeed
	var list []*program
	for line := range strings.Lines(string(text)) {
		var s recordedSeed
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		vars := python.Value(&python.Dict{})
		if s.Vars != nil {
			if vars, err = valueOfJSON(s.Vars); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		seeds, list = append(seeds, s), append(list, &program{template: s.Template, vars: vars.(*python.Dict)})
	}
	if *record {
		recordSeeds(t, seeds, list)
	}
	counts := map[outcome]int{}
	for i, p := range list {
		out, err := p.render()
		o := judge(p, seeds[i].answer, out, err)
		if counts[o]++; o.bad() {
			t.Error(&failure{p, uint64(i), o, seeds[i].answer, out, err})
		}
	}
	t.Logf("%d programs: %d rendered as recorded, %d errors as there, %d refused", len(list), counts[bothRender], counts[bothFail], counts[refused])
}

func recordSeeds(t *testing.T, seeds []recordedSeed, list []*program) {
	answers := askNew(t, list)
	var b bytes.Buffer
	for i := range seeds {
		seeds[i].answer = answers[i]
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		must(t, enc.Encode(seeds[i]))
	}
	must(t, os.WriteFile(seedsFile, b.Bytes(), 0o644))
}

// askNew asks Jinja2 3.1.6, and no other.
func askNew(t *testing.T, list []*program) []answer {
	o := startOracle(t, pythonWithJinja(t))
	if o.old() {
		t.Fatalf("Jinja2 %s with MarkupSafe %s is not what this package reproduces", o.names.Jinja2, o.names.Markupsafe)
	}
	var answers []answer
	for len(list) > 0 {
		n := min(64, len(list))
		some, err := o.ask(list[:n])
		must(t, err)
		answers, list = append(answers, some...), list[n:]
	}
	return answers
}

const recordedFile, recordedPrograms, recordedSeedNumber = "testdata/diff_recorded.txt", 1000, 1000

// TestRecordedPrograms compares random programs with hashes of what Jinja2 3.1.6
// made of them, without Python. A change of the generator needs a new recording.
func TestRecordedPrograms(t *testing.T) {
	var list []*program
	all := sha256.New()
	for i := range uint64(recordedPrograms) {
		p := generate(recordedSeedNumber, i, false)
		fmt.Fprintf(all, "%q %s\n", p.template, jsonOf(p.vars))
		list = append(list, p)
	}
	head := fmt.Sprintf("Jinja2 3.1.6 on the programs of hash %x", all.Sum(nil)[:8])
	if *record {
		var b strings.Builder
		fmt.Fprintln(&b, head)
		for _, a := range askNew(t, list) {
			fmt.Fprintln(&b, recordedAnswer(a))
		}
		must(t, os.WriteFile(recordedFile, []byte(b.String()), 0o644))
	}
	text, err := os.ReadFile(recordedFile)
	must(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if lines[0] != head || len(lines) != len(list)+1 {
		t.Fatalf("the generator makes other programs than those recorded: record them anew by -record")
	}
	same, refusals := 0, 0
	for i, p := range list {
		out, err := p.render()
		ours := answer{Class: "error"}
		if err == nil {
			ours = answer{Output: &out}
		}
		switch {
		case errors.Is(err, errPanic):
			t.Errorf("program %d: %v", i, err)
		case errors.Is(err, ErrUnsupported):
			refusals++
		case recordedAnswer(ours) != lines[i+1]:
			t.Errorf("program %d: got %q %v, not what Jinja2 gives\n%s", i, out, err, p.template)
		default:
			same++
		}
	}
	t.Logf("%d programs: %d as recorded, %d refused", len(list), same, refusals)
}

// recordedAnswer is an answer's line: a hash of an output, or that it is an error.
func recordedAnswer(a answer) string {
	if a.Output == nil {
		return "error"
	}
	sum := sha256.Sum256([]byte(*a.Output))
	return hex.EncodeToString(sum[:6])
}
