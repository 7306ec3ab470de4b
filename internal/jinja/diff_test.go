package jinja

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/testdata"
)

var (
	programs = flag.Int("programs", 300, "how many programs TestDifferential compares; long form: 2000, from which on other tests try all they have, too")
	seed     = flag.Uint64("seed", 1, "of the programs of TestDifferential")
)

// longRun reports whether tests try all they have.
func longRun() bool { return *programs >= 2000 }

// An outcome is how a program fares here and with Jinja2.
type outcome int

const (
	bothRender outcome = iota // the same bytes
	bothFail                  // with an error
	refused                   // ErrUnsupported here
	limited                   // one of them hit a limit, rightly
	differ                    // both render, and differ
	onlyJinja2                // renders
	onlyHere                  // renders
	overLimits                // here, though nothing is large
	panicked                  // here
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"rendered the same", "failed in both", "refused here", "too large", "DIFFERENT", "ONLY JINJA2 RENDERS", "ONLY KVINDEX RENDERS", "LIMIT EXCEEDED", "PANIC"}

func (o outcome) bad() bool { return o >= differ }

func judge(p *program, theirs answer, out string, err error) outcome {
	switch {
	case errors.Is(err, errPanic):
		return panicked
	case errors.Is(err, ErrUnsupported):
		return refused
	case theirs.Limit != "":
		return limited
	case errors.Is(err, ErrLimit):
		if theirs.Class != "" {
			return limited
		}
		return overLimits
	case theirs.Output == nil && err != nil:
		return bothFail
	case theirs.Output == nil:
		return onlyHere
	case err != nil:
		return onlyJinja2
	case *theirs.Output != out:
		return differ
	}
	return bothRender
}

// TestDifferential compares random programs with Jinja2 itself. A long run:
//
//	go test -run TestDifferential ./internal/jinja -programs 100000 -seed 7 -v
func TestDifferential(t *testing.T) {
	n := *programs
	if testing.Short() {
		n /= 8
	}
	c := compared(t, n, func(i uint64, old bool) *program { return generate(*seed, i, old) })
	c.reportCoverage(t)
}

// TestDifferentialRealTemplates renders random conversations by the real templates,
// some of them with a token dropped or moved.
func TestDifferentialRealTemplates(t *testing.T) {
	var templates []string
	for _, path := range testdata.Glob(t, "real templates", "templates", "*.jinja") {
		source, err := os.ReadFile(path)
		must(t, err)
		templates = append(templates, string(source))
	}
	n := *programs / 4
	if testing.Short() {
		n /= 4
	}
	compared(t, n, func(i uint64, old bool) *program {
		return generateConversation(templates[i%uint64(len(templates))], *seed, i, old)
	})
}

// compared compares n programs and reports what differs.
func compared(t *testing.T, n int, produce func(i uint64, old bool) *program) *comparison {
	python := pythonWithJinja(t)
	workers := min(2, runtime.NumCPU())
	runs := make([]*comparison, workers)
	var wait sync.WaitGroup
	for w := range runs {
		c := &comparison{oracle: startOracle(t, python), uses: map[string]int{}, generated: map[string]int{}, refusals: map[string]int{}, classes: map[string]int{}}
		runs[w] = c
		wait.Add(1)
		go func() {
			defer wait.Done()
			c.err = c.run(produce, w, workers, n)
		}()
	}
	wait.Wait()
	all := runs[0]
	for _, c := range runs[1:] {
		all.add(c)
	}
	for _, c := range runs {
		if c.err != nil {
			t.Fatalf("the oracle: %v", c.err)
		}
	}
	all.report(t, n)
	return all
}

// A comparison is the results of some programs.
type comparison struct {
	oracle    *oracle
	outcomes  [outcomeCount]int
	uses      map[string]int // of programs that both rendered
	generated map[string]int
	refusals  map[string]int
	classes   map[string]int // of exceptions that differ
	sameClass int
	rendered  int // by Jinja2
	failures  []*failure
	err       error
}

type failure struct {
	*program
	index   uint64
	outcome outcome
	theirs  answer
	out     string
	err     error
}

func (f *failure) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %d: %s\ntemplate %q\n", f.index, outcomeNames[f.outcome], f.template)
	if f.vars.Len() > 0 {
		var v strings.Builder
		for i := range f.vars.Len() {
			k, value := f.vars.At(i)
			fmt.Fprintf(&v, " %s=%s", k, jsonOf(value))
		}
		fmt.Fprintf(&b, "with%s\n", v.String())
	}
	if f.theirs.Output != nil {
		fmt.Fprintf(&b, "jinja2:  %q\n", *f.theirs.Output)
	} else {
		fmt.Fprintf(&b, "jinja2:  %s %s%s\n", f.theirs.Class, f.theirs.Message, f.theirs.Limit)
	}
	if f.err != nil {
		fmt.Fprintf(&b, "kvindex: %v", f.err)
	} else {
		fmt.Fprintf(&b, "kvindex: %q", f.out)
	}
	return b.String()
}

func jsonOf(v python.Value) string {
	var b bytes.Buffer
	appendJSON(&b, v)
	return b.String()
}

// run compares those programs of n whose turn is this worker's.
func (c *comparison) run(produce func(i uint64, old bool) *program, worker, workers, n int) error {
	const batch = 64
	for i := worker; i < n; i += workers * batch {
		var list []*program
		var indices []uint64
		for j := i; j < n && len(list) < batch; j += workers {
			list = append(list, produce(uint64(j), c.oracle.old()))
			indices = append(indices, uint64(j))
		}
		if err := c.oracle.send(list); err != nil {
			return err
		}
		var outs []string
		var errs []error
		for _, p := range list {
			out, err := p.render()
			outs, errs = append(outs, out), append(errs, err)
		}
		answers, err := c.oracle.receive()
		if err != nil {
			return err
		}
		for k, p := range list {
			c.note(p, indices[k], answers[k], outs[k], errs[k])
		}
	}
	return nil
}

func (c *comparison) note(p *program, index uint64, theirs answer, out string, err error) {
	o := judge(p, theirs, out, err)
	c.outcomes[o]++
	if theirs.Output != nil {
		c.rendered++
	}
	for use, n := range p.uses {
		c.generated[use] += n
		if o == bothRender {
			c.uses[use] += n
		}
	}
	switch {
	case o == refused:
		var e *Error
		errors.As(err, &e)
		c.refusals[e.Message]++
	case o == bothFail:
		var e *Error
		if errors.As(err, &e) && e.Class == theirs.Class {
			c.sameClass++
		} else if e != nil {
			c.classes[theirs.Class+", here "+e.Class]++
		}
	case o.bad():
		c.failures = append(c.failures, &failure{p, index, o, theirs, out, err})
	}
}

func (c *comparison) add(d *comparison) {
	for o := range c.outcomes {
		c.outcomes[o] += d.outcomes[o]
	}
	for into, from := range map[*map[string]int]map[string]int{&c.uses: d.uses, &c.generated: d.generated, &c.refusals: d.refusals, &c.classes: d.classes} {
		for k, n := range from {
			(*into)[k] += n
		}
	}
	c.sameClass += d.sameClass
	c.rendered += d.rendered
	c.failures = append(c.failures, d.failures...)
}

func (c *comparison) report(t *testing.T, n int) {
	names := c.oracle.names
	t.Logf("%d programs of seed %d against Jinja2 %s, MarkupSafe %s, Python %s", n, *seed, names.Jinja2, names.Markupsafe, names.Python)
	for o, count := range c.outcomes {
		if count > 0 {
			t.Logf("%8d %s", count, outcomeNames[o])
		}
	}
	t.Logf("%8d rendered by Jinja2 (%.1f %%)", c.rendered, 100*float64(c.rendered)/float64(n))
	t.Logf("%8d of the errors of the same class; others:%s", c.sameClass, most(c.classes, 12))
	t.Logf("refused:%s", most(c.refusals, 40))
	slices.SortFunc(c.failures, func(a, b *failure) int { return int(a.index) - int(b.index) })
	shown, similar := map[string]bool{}, map[string]int{}
	for i, f := range c.failures {
		if f.err != nil {
			_, message, _ := strings.Cut(f.err.Error(), ": ")
			if similar[message]++; similar[message] > 2 {
				continue
			}
		}
		if len(shown) == 30 || i == 100 {
			t.Errorf("%d more differences", len(c.failures)-i)
			break
		}
		if !shown[f.template] {
			shown[f.template] = true
			t.Error(f)
		}
	}
}

// most lists the most frequent of counts, rarest the least.
func most(counts map[string]int, n int) string {
	return tally(counts, n, func(a, b int) int { return b - a })
}

func rarest(counts map[string]int, n int) string {
	return tally(counts, n, func(a, b int) int { return a - b })
}

func tally(counts map[string]int, n int, compare func(a, b int) int) string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if d := compare(counts[a], counts[b]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	for _, k := range keys[:min(n, len(keys))] {
		fmt.Fprintf(&b, "\n%8d %s", counts[k], k)
	}
	return b.String()
}
