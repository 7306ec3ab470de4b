// Mutants breaks the rules of the project one at a time and checks that for
// each a named test fails. It changes no file: the compiler is shown the broken
// ones through an overlay, those of a package all in one test binary.
//
//	go run ./internal/mutants                            # all
//	go run ./internal/mutants name ...                   # those
//	go run ./internal/mutants -of ./events,./index       # those of the packages
//	go run ./internal/mutants -of ./events -turn 3       # and a tenth of all others
//
// Without names every row is checked to name a function and a text in it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// mutant replaces old, which must stand exactly once in what it breaks.
type mutant struct {
	name     string
	breaks   string // a function, method (Type.Method) or variable of the package
	old, new string
	test     string // that must fail
}

// table has the mutants of a package: those whose tests are in one package.
type table struct {
	breaks string // the package
	tests  string // "": the same
	rows   []mutant
}

// tables has a file for each package, so that its rules stand in one place.
var tables = []table{
	rootMutants, indexMutants, indexMutantsOfRoot, forestMutants, forestMutantsOfIndex, memMutants, namesMutants, eventsMutants, zmtpMutants, tokenizeMutants, chatMutants, chatcheckMutants, jinjaMutants, routerMutants, quickstartMutants, declsMutants, kvindextestMutants, reuseMutants, sectionsMutants, snapshotfileMutants, replicaMutants, prefixcacheMutants, sentMutants, predictionsMutants, discoveryMutants, k8sMutants, redisindexMutants, fleetMutants, approximateMutants, estimateMutants, routeMutants, trackerMutants,
}

func main() {
	var s selection
	flag.Func("of", "`packages`, separated by commas, of which all mutants are tried", func(list string) error {
		s.some, s.packages = true, strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
		return nil
	})
	flag.Func("turn", "a `number`: of the other packages a tenth of the mutants is tried, all in ten turns", func(n string) error {
		turn, err := strconv.ParseUint(n, 10, 63)
		s.some, s.tenth, s.turn = true, true, int(turn%turns)
		return err
	})
	flag.Parse()
	s.names = flag.Args()
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// turns is how many it takes until each mutant has been tried.
const turns = 10

// A selection says which mutants to try; the zero selection is all of them.
type selection struct {
	names    []string
	some     bool     // without names: those of packages, and a tenth of the others
	packages []string // that are broken, or whose tests must fail
	tenth    bool
	turn     int // which tenth
}

// atOnce is how many mutants are tried at a time.
const atOnce = 2

func run(s selection) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	chosen, of, err := s.choose()
	if err != nil {
		return err
	}
	if err := weaveAll(dir, chosen); err != nil {
		return err
	}
	var next, killed atomic.Int64
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := next.Add(1); int(i) <= len(chosen); i = next.Add(1) {
				t := chosen[i-1]
				switch dead, err := t.kill(dir); {
				case err != nil:
					fmt.Printf("%s (%s): %v\n", t.name, t.breaks, err)
				case dead:
					killed.Add(1)
				default:
					fmt.Printf("ALIVE: %s (%s): %s passes\n", t.name, t.breaks, t.test)
				}
			}
		})
	}
	wg.Wait()
	n := int(killed.Load())
	fmt.Printf("%d of %d mutants killed, there are %d\n", n, len(chosen), of)
	if n < len(chosen) || of == 0 {
		return fmt.Errorf("%d mutants were not killed", len(chosen)-n)
	}
	return nil
}

// trial is a mutant under its number, which tells it from the others.
type trial struct {
	mutant
	n        int
	pkg      string // whose test must fail
	at       place
	err      error         // why it cannot be tried
	woven    string        // the test binary that has it among others, if one has
	patience time.Duration // until a test that has not ended has failed: more than all those of its package take
}

// choose returns the mutants of a selection, each with what it breaks, and how
// many there are. Without names, rows that break nothing are among them.
func (s selection) choose() (chosen []*trial, all int, err error) {
	var rest []*trial
	unknown := slices.Clone(s.names)
	for _, t := range tables {
		src, err := load(t.breaks)
		if err != nil {
			return nil, 0, err
		}
		for _, m := range t.rows {
			all++
			one := &trial{mutant: m, n: all, pkg: cmp.Or(t.tests, t.breaks), patience: time.Minute}
			one.at, one.err = src.find(m)
			unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == m.name })
			switch {
			case len(s.names) == 0 && one.err != nil,
				slices.Contains(s.names, m.name),
				len(s.names) == 0 && !s.some,
				slices.Contains(s.packages, t.breaks),
				slices.Contains(s.packages, one.pkg):
				chosen = append(chosen, one)
			default:
				rest = append(rest, one)
			}
		}
	}
	if len(unknown) > 0 {
		return nil, 0, fmt.Errorf("there is no mutant %q", unknown)
	}
	if s.tenth {
		// Neighbours, because they share a binary.
		chosen = append(chosen, rest[s.turn*len(rest)/turns:(s.turn+1)*len(rest)/turns]...)
	}
	return chosen, all, nil
}

// kill reports whether the mutant's test fails on it. It works in dir.
func (t *trial) kill(dir string) (bool, error) {
	if t.err != nil {
		return false, t.err
	}
	bin := t.woven
	if bin == "" { // it is built alone
		bin = filepath.Join(dir, fmt.Sprintf("%d.test", t.n))
		defer os.Remove(bin)
		if err := build(bin, t.pkg, map[string][]byte{t.at.file: t.broken()}); err != nil {
			return false, err
		}
	}
	out, err := test(bin, t.pkg, t.n, t.pattern(), t.patience)
	if err == nil { // what must not happen for a while may come later on a busy machine
		out, err = test(bin, t.pkg, t.n, t.pattern(), t.patience)
	}
	switch text := string(out); {
	case err == nil && strings.Contains(text, "no tests to run"):
		return false, fmt.Errorf("there is no test %s", t.test)
	case err == nil:
		return false, nil
	case !strings.Contains(text, "--- FAIL: "+strings.SplitN(t.test, "/", 2)[0]) && !strings.Contains(text, "panic: "):
		return false, fmt.Errorf("%s did not run: %w\n%s", t.test, err, text)
	}
	return true, nil
}

// pattern matches each part of the test's name whole, so that the mutant does
// not die for another.
func (t *trial) pattern() string {
	return "^" + strings.ReplaceAll(t.test, "/", "$/^") + "$"
}

// build makes the test binary of a package in which files, some perhaps new, are
// other ones.
func build(bin, pkg string, files map[string][]byte) error {
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for file, src := range files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		shown := fmt.Sprintf("%s.%d.go", bin, len(overlay.Replace))
		defer os.Remove(shown)
		if err := os.WriteFile(shown, src, 0o600); err != nil {
			return err
		}
		overlay.Replace[abs] = shown
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	if err := os.WriteFile(bin+".json", list, 0o600); err != nil {
		return err
	}
	defer os.Remove(bin + ".json")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", bin+".json", "-o", bin, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("does not build: %w\n%s", err, out)
	}
	return nil
}

// test runs tests of a binary on mutant n, or with none if n is 0.
func test(bin, pkg string, n int, pattern string, timeout time.Duration) ([]byte, error) {
	// Behind the binary's own timeout, which says where it hung.
	ctx, cancel := context.WithTimeout(context.Background(), timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.failfast", "-test.paniconexit0", "-test.timeout", timeout.String(), "-test.run", pattern)
	if pkg == "./events" {
		cmd.Args = append(cmd.Args, "-test.short") // its tests then wait less for what will not come
	}
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chosenEnv, n))
	cmd.WaitDelay = 10 * time.Second // for what it started
	return cmd.CombinedOutput()
}
