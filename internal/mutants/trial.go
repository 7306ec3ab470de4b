package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// trial is a mutant under its number.
type trial struct {
	mutant
	n       int
	*source // in which it breaks
	decl    ast.Decl
	from    int   // where old stands
	err     error // why it cannot be tried
	woven   bool  // the test binary of its package has it among others
}

// To build a test binary takes as long as hundreds of its tests. So the mutants
// of a package are woven into one: a function that they change begins with what
// each of them does in its place. The chooser, a file more of the package, has
// the number of the one to run, or 0.
const chooser = "package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar mutant__, _ = strconv.Atoi(os.Getenv(\"KVINDEX_MUTANT\"))\n"

// tryAll tries mutants of a package and returns how many of them were killed. It
// writes files that begin with bin.
func tryAll(bin, pkg string, trials []*trial) (killed int, err error) {
	patience, err := weave(bin, pkg, trials)
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, t := range trials {
		if err := t.try(bin, patience); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return len(trials) - len(failed), errors.Join(failed...)
}

// weave builds a binary for the mutants of a package, less those that can only be
// built alone, and has it pass all of their tests while none is chosen. A test
// that takes longer than patience has failed.
func weave(bin, pkg string, trials []*trial) (patience time.Duration, err error) {
	bodies, files := make(map[ast.Decl]string), make(map[string]string)
	var tests []string
	for _, t := range trials {
		if body := t.body(); body != "" {
			t.woven = true
			bodies[t.decl] += fmt.Sprintf("\nif mutant__ == %d {\n%s\n}\n", t.n, body)
			tests = append(tests, t.pattern())
		}
	}
	for _, t := range trials {
		if t.woven {
			files[t.file] = t.weave(bodies)
			files[filepath.Join(filepath.Dir(t.file), "mutant__.go")] = fmt.Sprintf(chooser, t.Name.Name)
		}
	}
	if len(tests) == 0 {
		return time.Minute, nil
	}
	if err := build(bin, pkg, files); err != nil {
		return 0, fmt.Errorf("all mutants of %s together: %w", pkg, err)
	}
	begun := time.Now()
	if out, err := test(bin, pkg, 0, strings.Join(tests, "|"), 10*time.Minute); err != nil {
		return 0, fmt.Errorf("%s: tests fail although nothing is broken: %w\n%s", pkg, err, out)
	}
	return 10*time.Second + 2*time.Since(begun), nil
}

// try returns no error if the mutant's test fails on it.
func (t *trial) try(bin string, patience time.Duration) error {
	if t.err != nil {
		return t.err
	}
	if !t.woven {
		bin += "alone"
		if err := build(bin, t.pkg, map[string]string{t.file: t.broken(0, len(t.src))}); err != nil {
			return err
		}
	}
	out, err := test(bin, t.pkg, t.n, t.pattern(), patience)
	if err == nil { // a test that waits for a forbidden event may miss it on a busy machine
		out, err = test(bin, t.pkg, t.n, t.pattern(), patience)
	}
	switch text := string(out); {
	case err == nil && strings.Contains(text, "no tests to run"):
		return fmt.Errorf("%s has no test %s", t.pkg, t.test)
	case err == nil:
		return fmt.Errorf("ALIVE: %s of %s passes, though %s is broken", t.test, t.pkg, t.breaks)
	case !strings.Contains(text, "--- FAIL: "+t.function()) && !strings.Contains(text, "panic: "):
		return fmt.Errorf("%s of %s did not run: %w\n%s", t.test, t.pkg, err, text)
	}
	return nil
}

// pattern matches each part of the test's name whole, so that the mutant does
// not die for another.
func (t *trial) pattern() string {
	return "^" + strings.ReplaceAll(t.test, "/", "$/^") + "$"
}

// build makes the test binary of a package in which files, some perhaps new, are
// other ones.
func build(bin, pkg string, files map[string]string) error {
	replace := make(map[string]string)
	for file, src := range files {
		replace[file] = fmt.Sprintf("%s.%d.go", bin, len(replace))
		if err := os.WriteFile(replace[file], []byte(src), 0o600); err != nil {
			return err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	if err := os.WriteFile(bin+".json", list, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", bin+".json", "-o", bin, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("does not build: %w\n%s", err, out)
	}
	return nil
}

// test runs tests of a binary on mutant n, or with none if n is 0.
func test(bin, pkg string, n int, pattern string, timeout time.Duration) ([]byte, error) {
	// Behind the binary's own timeout, which reports where it hung.
	ctx, cancel := context.WithTimeout(context.Background(), timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.failfast", "-test.paniconexit0", "-test.timeout", timeout.String(), "-test.run", pattern)
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), fmt.Sprintf("KVINDEX_MUTANT=%d", n))
	cmd.WaitDelay = 10 * time.Second // for what it started
	return cmd.CombinedOutput()
}
