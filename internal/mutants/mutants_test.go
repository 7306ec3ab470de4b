package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPromises(t *testing.T) {
	known := make(map[string]bool)
	for _, p := range promises {
		t.Logf("%s: %d mutants", p.name, len(p.rows))
		if len(p.rows) < 10 {
			t.Errorf("%s has %d mutants, fewer than ten", p.name, len(p.rows))
		}
		for _, m := range p.rows {
			if known[m.name] {
				t.Errorf("two mutants are called %q", m.name)
			}
			known[m.name] = true
		}
	}
}

// TestChangesSince changes, adds and deletes lines and files of a repository, and checks which
// mutants are affected.
func TestChangesSince(t *testing.T) {
	top := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(dir, file, text string) {
		must(os.MkdirAll(filepath.Join(top, dir), 0o700))
		must(os.WriteFile(filepath.Join(top, dir, file), []byte(text), 0o600))
	}
	const code = "package a\n\nfunc Changed() {\n\t_ = 1\n}\n\n// Gone goes.\nfunc Gone() {}\n\nfunc Same() {}\n\nfunc (x *T) Shorter() {\n\t_ = 1\n\t_ = 2\n}\n\ntype T int\n"
	write("a", "a.go", code)
	write("a", "a_test.go", "package a\n\nfunc TestSame() {}\n\nfunc TestOther() {}\n")
	write("", "gone.go", "package main\n")
	write("internal/mutants", "rows.go", "package main\n\nvar a = \"old row\"\n")
	for _, args := range []string{"init -q", "add .", "-c user.name=a -c user.email=a commit -q -m a"} {
		_, err := git(top, strings.Fields(args)...)
		must(err)
	}
	write("a", "a.go", strings.NewReplacer("{\n\t_ = 1\n}", "{\n\t_ = 3\n}", "// Gone goes.\nfunc Gone() {}\n\n", "", "\t_ = 2\n", "").Replace(code))
	write("a", "a_test.go", "package a\n\nfunc TestSame() {}\n\nfunc TestOther() { _ = 1 }\n")
	write("b", "b.go", "package b\n\nvar New int\n")
	write("internal/mutants", "rows.go", "package main\n\nvar a = \"new row\"\n")
	must(os.Remove(filepath.Join(top, "gone.go")))
	c, err := changesSince(top, "HEAD")
	must(err)
	for m, want := range map[mutant]bool{
		{pkg: "./a", breaks: "Changed"}:                       true,
		{pkg: "./a", breaks: "Same"}:                          false,
		{pkg: "./a", breaks: "T.Shorter"}:                     true,
		{pkg: ".", breaks: "Changed"}:                         false,
		{pkg: "./b", breaks: "New"}:                           true,
		{pkg: "./a", breaks: "Same", test: "TestOther/of_it"}: true,
		{pkg: ".", breaks: "a:Changed", test: "TestSame"}:     true,
		{pkg: "./a", breaks: "Same", test: "TestSame"}:        false,
		{pkg: "./a", breaks: "Same", name: "new row"}:         true,
		{pkg: "./a", breaks: "Same", name: "old row"}:         false,
	} {
		if c.concern(m) != want {
			t.Errorf("changes concern %+v: %v", m, !want)
		}
	}
}
