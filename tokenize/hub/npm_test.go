package hub_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/hub"
)

// TestNPM: @huggingface/hub 2.17.5 finds our files in the cache, and we find its files.
func TestNPM(t *testing.T) {
	h := newFake(t)
	f := whole("1")
	delete(f, "../out")  // the package rejects it
	f["README.md"] = "x" // the package requests a range even of an empty file
	f["tokenizer.json"] = strings.Repeat("tokenizer", 1<<17)
	one := h.commit("org/m", "main", f)
	type answer struct{ Files, Warnings, Revisions []string }
	node := func(dir, commit string, paths ...string) (a answer) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "node", append([]string{filepath.Join("testdata", "hub.js"), h.server.URL, dir, commit}, paths...)...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) || strings.Contains(string(out), "Cannot find module '@huggingface/hub'") {
			t.Skip("node with its package @huggingface/hub is not there (npm install @huggingface/hub@2.17.5, its folder in NODE_PATH): skipped the comparison of caches")
		}
		if err == nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n") // the package prints each download
			err = json.Unmarshal([]byte(lines[len(lines)-1]), &a)
		}
		if err != nil {
			t.Fatalf("node: %v: %s", err, out)
		}
		if want := []string{"org/m " + one + " main"}; len(a.Warnings) > 0 || !slices.Equal(a.Revisions, want) {
			t.Errorf("its scan: %q, warnings %q, want %q", a.Revisions, a.Warnings, want)
		}
		return a
	}

	// Our download: the package finds each file without a request.
	dir := t.TempDir()
	got, err := h.client(dir).Find(t.Context(), "org/m")
	must(t, err)
	h.asked()
	paths := slices.DeleteFunc(slices.Sorted(maps.Keys(f)), func(name string) bool {
		ok, _ := hub.Wanted(name)
		return !ok
	})
	a := node(dir, one, paths...)
	for i, path := range paths {
		if len(a.Files) != len(paths) || a.Files[i] != filepath.Join(got, path) {
			t.Fatalf("it finds %q", a.Files)
		}
	}
	if r := h.asked(); len(r) > 0 {
		t.Errorf("it asks %q", r)
	}

	// Its download: our client finds it with one request, and then with none.
	dir = t.TempDir()
	a = node(dir, "")
	h.asked()
	for i := range 2 {
		got, err := h.client(dir).Find(t.Context(), "org/m")
		if err != nil || got != a.Files[0] {
			t.Errorf("%q, %v, want %q", got, err, a.Files[0])
		}
		if r := h.asked(); len(r) != 1-i {
			t.Errorf("requests: %q", r)
		}
	}
	node(dir, one)
}
