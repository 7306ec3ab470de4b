package systemtest

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLongForms: each flag of a test either selects tests or is for a long form, which CI runs with
// -a.
func TestLongForms(t *testing.T) {
	script := read(t, ".ci/run")
	flags := regexp.MustCompile(`flag\.(?:Int|Uint64|Duration|Bool|String)\("([^"]+)", [^"]*"([^"]*)"`)
	picks := regexp.MustCompile(`(^|\.)(seed|from|only|record|update|filters)$`)
	found := 0
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "bench" || d.Name() == ".git") {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "bench_test.go") || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "indextest") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, f := range flags.FindAllStringSubmatch(string(src), -1) {
			found++
			switch long := strings.Contains(f[2], "long form"); {
			case !long && !picks.MatchString(f[1]) && !strings.Contains(f[2], "benchmark"):
				t.Errorf("%s: the usage of -%s does not tell its long form", path, f[1])
			case long && !regexp.MustCompile(`(?m) -`+regexp.QuoteMeta(f[1])+`( |$)`).MatchString(script):
				t.Errorf("%s: .ci/run does not use -%s", path, f[1])
			}
		}
		return nil
	})
	if err != nil || found < 20 {
		t.Errorf("%d flags: %v", found, err)
	}
}
