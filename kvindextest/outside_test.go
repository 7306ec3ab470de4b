package kvindextest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// TestOutside: a module outside of this repository, with a copy of the quickstart, can
// test its gateway with kvindextest. The test needs no network.
func TestOutside(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no module is built outside of this one: there is no go command")
	}
	if testing.Short() {
		t.Skip("no module is built outside of this one: -short")
	}
	root, err := filepath.Abs("..")
	must(t, err)
	dir := t.TempDir()
	copyTo(t, dir, "testdata/outside/*.go", "../go.sum")
	copyTo(t, filepath.Join(dir, "quickstart"), "../examples/quickstart/*.go")
	if err := os.Remove(filepath.Join(dir, "quickstart/main_test.go")); err != nil { // this file imports an internal package
		t.Fatal(err)
	}
	mod := "module example.com/gateway\n\ngo 1.25\n\nrequire github.com/kvindex/kvindex v0.0.0\n\nreplace github.com/kvindex/kvindex => " + root + "\n"
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o666))
	cmd := exec.CommandContext(zmtptest.Context(t), "go", "test", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// copyTo copies files to a folder, which it makes.
func copyTo(t *testing.T, dir string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		files, err := filepath.Glob(p)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", p, files, err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err == nil {
				err = os.MkdirAll(dir, 0o777)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(f)), data, 0o666)
			}
			must(t, err)
		}
	}
}
