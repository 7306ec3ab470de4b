package hub_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/chats"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/hub"
)

// whole are the files of a model, and some that are not needed.
func whole(version string) files {
	return files{
		"tokenizer.json":                           strings.Repeat("tokenizer "+version, 3000),
		"tokenizer_config.json":                    "config " + version,
		"config.json":                              "{}",
		"chat_template.jinja":                      "template " + version,
		"additional_chat_templates/tool_use.jinja": "tools " + version,
		"additional_chat_templates/README.md":      "no template",
		"model.safetensors":                        "weights",
		"README.md":                                "",
		"original/tokenizer.json":                  "of another program",
		"model.safetensors.index.json":             "{}",
		"../out":                                   "a path that leads out",
	}
}

// check compares a folder with the needed files of a commit.
func check(dir string, f files) error {
	var errs []error
	left := map[string]bool{}
	for name, content := range f {
		if ok, _ := hub.Wanted(name); ok {
			left[name] = true
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
				errs = append(errs, fmt.Errorf("%s: %.20q, %v, want %.20q", name, got, err, content))
			}
		}
	}
	errs = append(errs, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err == nil && !d.IsDir() && !left[filepath.ToSlash(rel)] {
			err = fmt.Errorf("%s is there", rel)
		}
		return err
	}))
	return errors.Join(errs...)
}

func TestFind(t *testing.T) {
	h := newFake(t)
	h.token = "hf_secret"
	one := h.commit("org/m", "main", whole("1"))
	dir := t.TempDir()
	c := h.client(dir)
	var mu sync.Mutex
	told := map[string]int64{}
	c.Progress = func(repo, file string, done, size int64) {
		mu.Lock()
		defer mu.Unlock()
		if repo != "org/m" || done > size {
			t.Errorf("progress of %s: %d of %d", repo, done, size)
		}
		told[file] = done
	}
	got, err := c.Find(t.Context(), "org/m")
	if err != nil || filepath.Base(got) != one {
		t.Fatal(got, err)
	}
	must(t, check(got, whole("1")))
	for name, done := range told {
		if int(done) != len(whole("1")[name]) {
			t.Errorf("%s: progress ended at %d", name, done)
		}
	}
	if n := len(h.asked()); n != 1+2*5 {
		t.Errorf("%d requests", n)
	}
	if len(h.leaked) > 0 {
		t.Errorf("the second host saw a token: %q", h.leaked)
	}

	repo := filepath.Join(dir, "models--org--m")
	link, err := os.Readlink(filepath.Join(got, "additional_chat_templates", "tool_use.jinja"))
	if want := "../../../blobs/" + gitSum("tools 1"); err != nil || link != want {
		t.Errorf("a link to %q, %v, want %q", link, err, want)
	}
	if ref, err := os.ReadFile(filepath.Join(repo, "refs", "main")); err != nil || string(ref) != one {
		t.Errorf("the ref: %q, %v", ref, err)
	}
	if _, err := os.Stat(filepath.Join(repo, ".no_exist", one, "added_tokens.json")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".locks", "models--org--m", gitSum("{}")+".lock")); err != nil {
		t.Error(err)
	}
	tree, err := os.ReadFile(filepath.Join(repo, "trees", one+".json"))
	if err != nil || !strings.Contains(string(tree), `"format_version": 1`) || !strings.Contains(string(tree), `"model.safetensors"`) {
		t.Errorf("the tree: %s, %v", tree, err)
	}

	// This client and others find it again without a request.
	for _, model := range []string{"org/m", "org/m@main", "org/m@" + one} {
		for _, c := range []*hub.Client{c, h.client(dir), {Repo: byName, Dir: dir, Offline: true}} {
			if again, err := c.Find(t.Context(), model); err != nil || again != got {
				t.Errorf("%s: %q, %v", model, again, err)
			}
		}
	}
	if r := h.asked(); len(r) > 0 {
		t.Errorf("requests: %q", r)
	}

	// The revision moves: Find stays, Update follows and downloads only changed files.
	two := h.commit("org/m", "main", whole("2"))
	if again, err := c.Find(t.Context(), "org/m"); err != nil || again != got {
		t.Errorf("%q, %v", again, err)
	}
	moved, err := c.Update(t.Context(), "org/m")
	if err != nil || !moved || len(h.asked()) != 1+2*5-1 { // only the head of config.json
		t.Errorf("%v, %v", moved, err)
	}
	next, err := c.Find(t.Context(), "org/m")
	if err != nil || filepath.Base(next) != two {
		t.Errorf("%q, %v", next, err)
	}
	if err := errors.Join(check(next, whole("2")), check(got, whole("1"))); err != nil {
		t.Error(err)
	}
	if moved, err := c.Update(t.Context(), "org/m"); err != nil || moved || len(h.asked()) != 1 {
		t.Errorf("updated again: %v, %v", moved, err)
	}
	if _, err := (&hub.Client{Repo: byName, Dir: dir, Offline: true}).Update(t.Context(), "org/m"); err == nil {
		t.Error("updated offline")
	}
}

// A mirror's listing may have names only, so the metadata of each file is used.
func TestPlainListing(t *testing.T) {
	h := newFake(t)
	h.plain = true
	one := h.commit("org/m", "v1/x", whole("1"))
	dir := t.TempDir()
	got, err := h.client(dir).Find(t.Context(), "org/m@v1/x")
	if err == nil {
		err = check(got, whole("1"))
	}
	must(t, err)
	h.asked()
	if again, err := h.client(dir).Find(t.Context(), "org/m@v1/x"); err != nil || again != got || len(h.asked()) > 0 {
		t.Errorf("%q, %v", again, err)
	}
	if tree, err := os.ReadFile(filepath.Join(dir, "models--org--m", "trees", one+".json")); err != nil || !strings.Contains(string(tree), `"format_version": 0`) {
		t.Errorf("%s, %v", tree, err)
	}
}

// A renamed repository answers with relative redirects.
func TestRenamed(t *testing.T) {
	h := newFake(t)
	h.token = "hf_secret"
	h.commit("new/m", "main", whole("1"))
	h.moved["old/m"] = "new/m"
	got, err := h.client(t.TempDir()).Find(t.Context(), "old/m")
	if err == nil {
		err = check(got, whole("1"))
	}
	if err != nil || !strings.Contains(got, "models--old--m") {
		t.Error(got, err)
	}
	h.moved["new/m"] = "old/m"
	if _, err := h.client(t.TempDir()).Find(t.Context(), "old/m"); err == nil || !strings.Contains(err.Error(), "redirects") {
		t.Error(err)
	}
}

// Names are not trusted.
func TestNames(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	c := h.client(t.TempDir())
	for _, name := range []string{"../m", "org/../m", "a/b/c", "org/m@../main", "org/m@a..b", "org/m@/x", "org--m", "", "org/m@a b", "org/m?x", "org/m@" + strings.Repeat("a", 300)} {
		if _, err := c.Find(t.Context(), name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%.40q: %v", name, err)
		}
	}
	c.Repo = func(string) (string, string, bool) { return "org/m", "", false }
	if _, err := c.Find(t.Context(), "any"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	c.Repo = nil
	if _, err := c.Find(t.Context(), "any"); !errors.Is(err, fs.ErrInvalid) {
		t.Error(err)
	}
	if r := h.asked(); len(r) > 0 {
		t.Errorf("requests: %q", r)
	}
}

// TestWanted: the names are those in the sources of tokenize and chat.
func TestWanted(t *testing.T) {
	name := regexp.MustCompile(`^[a-z_.*]+\.(json|jinja|model|model\.v\*|tiktoken|txt|py)$`)
	n := 0
	for _, dir := range []string{"..", "../chat"} {
		paths, err := filepath.Glob(dir + "/*.go")
		must(t, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			must(t, err)
			ast.Inspect(f, func(x ast.Node) bool {
				if l, ok := x.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if s, _ := strconv.Unquote(l.Value); name.MatchString(s) {
						n++
						s = strings.ReplaceAll(s, "*", "3")
						if ok, err := hub.Wanted(s); !ok || err != nil {
							t.Errorf("%s reads %s, which is not downloaded: %v", path, s, err)
						}
					}
				}
				return true
			})
		}
	}
	if n < 12 {
		t.Errorf("%d names found", n)
	}
	for name, want := range map[string]bool{
		"tokenizer.json.gz": true, "additional_chat_templates/a.jinja.gz": true, "tokenizer.model.v11": true,
		"model.safetensors": false, "sub/tokenizer.json": false, "additional_chat_templates/x/a.jinja": false, "model.safetensors.index.json": false,
	} {
		if ok, err := hub.Wanted(name); ok != want || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	for _, name := range []string{"additional_chat_templates/..jinja", `additional_chat_templates/..\..\x.jinja`, "additional_chat_templates/a b.jinja", "tokenizer.model.v:1"} {
		if _, err := hub.Wanted(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestErrors: errors of the hub are distinguished, and cached.
func TestErrors(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	now := time.Now()
	for fault, want := range map[string]struct {
		is    error
		tries int
	}{
		"gated": {fs.ErrPermission, 1}, "401": {fs.ErrPermission, 1}, "403": {fs.ErrPermission, 1},
		"no repo": {fs.ErrNotExist, 1}, "no revision": {fs.ErrNotExist, 1},
		"429": {nil, 1 + hub.MaxRetries}, "503": {nil, 1 + hub.MaxRetries}, "416": {nil, 1},
	} {
		c := h.client(t.TempDir())
		c.SetNow(func() time.Time { return now })
		h.setFault(func(string) string { return fault })
		_, err := c.Find(t.Context(), "org/m")
		var e *hub.Error
		if !errors.As(err, &e) || e.Status != refusals[fault].status || e.Code != refusals[fault].code || want.is != nil && !errors.Is(err, want.is) {
			t.Errorf("%s: %v", fault, err)
		}
		if e.Code != "" && !strings.Contains(err.Error(), "the hub says why") {
			t.Errorf("%s: %v", fault, err)
		}
		if n := len(h.asked()); n != want.tries {
			t.Errorf("%s: %d requests", fault, n)
		}
		h.setFault(nil)
		_, err = c.Find(t.Context(), "org/m")
		if fault == "503" { // it may be temporary
			if err != nil || len(h.asked()) == 0 {
				t.Errorf("%s: %v", fault, err)
			}
			continue
		}
		if r := h.asked(); err == nil || len(r) > 0 {
			t.Errorf("%s: again: %v, %q", fault, err, r)
		}
		now = now.Add(2 * time.Minute)
		if _, err := c.Find(t.Context(), "org/m"); err != nil {
			t.Errorf("%s: after a while: %v", fault, err)
		}
		h.asked()
	}
	for _, fault := range []string{"html", "no json", "gzip", "bad etag", "other commit", "no entry"} {
		h.setFault(func(string) string { return fault })
		c := h.client(t.TempDir())
		if dir, err := c.Find(t.Context(), "org/m"); err == nil {
			t.Errorf("%s: %s", fault, dir)
		}
		if n := len(h.asked()); n > 1+2*5 {
			t.Errorf("%s: %d requests: tried again", fault, n)
		}
	}
}

// TestRetryAfter: the pauses are the server's, or double.
func TestRetryAfter(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	for fault, wants := range map[string][]time.Duration{
		"429": {2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second},
		"500": {time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second},
	} {
		var pauses []time.Duration
		c := h.client(t.TempDir())
		c.SetPause(func(ctx context.Context, d time.Duration) error { pauses = append(pauses, d); return nil })
		h.setFault(func(string) string { return fault })
		_, err := c.Find(t.Context(), "org/m")
		if err == nil || len(pauses) != len(wants) {
			t.Fatalf("%s: %v, %v", fault, pauses, err)
		}
		for i, d := range pauses {
			if d > wants[i] || d < wants[i]/2 {
				t.Errorf("%s: pause %d is %v, want %v", fault, i, d, wants[i])
			}
		}
	}
}

// Wrong bytes of a file are detected before they become a blob.
func TestBytes(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	for _, fault := range []string{"other bytes", "longer", "shorter", "gzip", "cut", "slow"} {
		dir := t.TempDir()
		c := h.client(dir)
		c.SetStall(10 * time.Millisecond)
		h.setFault(func(kind string) string {
			if kind == "cdn" || kind == "get" {
				return fault
			}
			return ""
		})
		got, err := c.Find(t.Context(), "org/m")
		// A cut file is resumed until it is whole or has one byte left.
		if err == nil && fault != "cut" && fault != "slow" && fault != "shorter" {
			t.Errorf("%s: %s", fault, got)
		}
		if fault == "longer" && !strings.Contains(fmt.Sprint(err), "more than the") { // the size is checked, not only the digest
			t.Errorf("%s: %v", fault, err)
		}
		paths, err := filepath.Glob(filepath.Join(dir, "models--org--m", "blobs", "*"))
		must(t, err)
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if name := filepath.Base(path); err != nil || !strings.HasSuffix(name, ".incomplete") && name != gitSum(string(content)) && name != digestOf("tokenizer.", string(content)) {
				t.Errorf("%s: %s has %d other bytes, %v", fault, name, len(content), err)
			}
		}
		if err := noneLeadsNowhere(filepath.Join(dir, "models--org--m")); err != nil {
			t.Errorf("%s: %v", fault, err)
		}
		h.setFault(nil)
		c.SetStall(0)
		got, err = c.Find(t.Context(), "org/m")
		if err == nil {
			err = check(got, whole("1"))
		}
		if err != nil {
			t.Errorf("after %s: %v", fault, err)
		}
	}
}

// TestTekkenLast: until all other files are there tokenize.Hub finds no model of Mistral.
func TestTekkenLast(t *testing.T) {
	h := newFake(t)
	f := files{"config.json": "{}", "tekken.json": "{}", "tokenizer_config.json": "{}"}
	commit, dir := h.commit("org/m", "main", f), t.TempDir()
	c := h.client(dir)
	c.SetFault(func(op, path string) error {
		if op == "link" && filepath.Base(path) == "tokenizer_config.json" {
			return syscall.ENOSPC
		}
		return nil
	})
	name, cache := "org/m@"+commit, tokenize.Hub{Dir: dir}
	if _, err := c.Find(t.Context(), name); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if got, err := cache.Find(t.Context(), name); err == nil {
		t.Errorf("%s lacks tokenizer_config.json", got)
	}
	c.SetFault(nil)
	want, err := c.Find(t.Context(), name)
	must(t, errors.Join(err, check(want, f)))
	must(t, os.RemoveAll(filepath.Join(dir, "models--org--m", "trees"))) // as if written by another program
	off := &hub.Client{Repo: byName, Dir: dir, Offline: true}
	for _, find := range []func(context.Context, string) (string, error){cache.Find, off.Find} {
		if got, err := find(t.Context(), name); got != want || err != nil {
			t.Error(got, err)
		}
	}
}

// noneLeadsNowhere checks, for other programs, that each link of a snapshot leads to a blob and
// each ref to a snapshot.
func noneLeadsNowhere(repo string) error {
	return filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch rel, _ := filepath.Rel(repo, path); strings.Split(filepath.ToSlash(rel), "/")[0] {
		case "snapshots":
			_, err = os.Stat(path)
		case "refs":
			var commit []byte
			if commit, err = os.ReadFile(path); err == nil {
				_, err = os.Stat(filepath.Join(repo, "snapshots", string(commit), "tokenizer.json"))
			}
		}
		return err
	})
}

// TestResume: bytes received before a lost connection are not requested again.
func TestResume(t *testing.T) {
	h := newFake(t)
	large := files{"tokenizer.json": strings.Repeat("0123456789abcdef", 1<<14)}
	h.commit("org/m", "main", large)
	cuts := 0
	h.setFault(func(kind string) string {
		if kind == "cdn" && cuts < 8 { // more than the retries, as each one has made progress
			cuts++
			return "cut"
		}
		return ""
	})
	dir := t.TempDir()
	c := h.client(dir)
	var got int64
	c.Progress = func(_, _ string, done, _ int64) { got = max(got, done) }
	path, err := c.Find(t.Context(), "org/m")
	if err == nil {
		err = check(path, large)
	}
	if err != nil || got != 1<<18 {
		t.Error(got, err)
	}

	// A part left by an earlier process: right, wrong or too long.
	for name, part := range map[string]string{"right": large["tokenizer.json"][:1000], "wrong": strings.Repeat("x", 1000), "long": strings.Repeat("x", 2<<18), "all": large["tokenizer.json"], "all wrong": strings.Repeat("x", 1<<18)} {
		for _, fault := range []string{"", "no range"} {
			dir := t.TempDir()
			blobs := filepath.Join(dir, "models--org--m", "blobs")
			must(t, errors.Join(os.MkdirAll(blobs, 0o777), os.WriteFile(filepath.Join(blobs, digestOf("tokenizer.json", large["tokenizer.json"])+".kvindex.incomplete"), []byte(part), 0o666)))
			h.setFault(func(string) string { return fault })
			path, err := h.client(dir).Find(t.Context(), "org/m")
			if err == nil {
				err = check(path, large)
			}
			if left, _ := filepath.Glob(filepath.Join(blobs, "*.incomplete")); err != nil || len(left) > 0 {
				t.Errorf("%s, %s: %v, left %q", name, fault, err, left)
			}
		}
	}
}

// TestDisk: a failure of the disk leaves no partial files. Links and flock are not required.
func TestDisk(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	for _, op := range []string{"create", "write", "sync", "rename", "link", "lock"} {
		dir := t.TempDir()
		c := h.client(dir)
		c.SetFault(func(at, path string) error {
			if at == op && !strings.Contains(path, "trees") {
				return &fs.PathError{Op: at, Path: path, Err: syscall.ENOSPC}
			}
			return nil
		})
		if got, err := c.Find(t.Context(), "org/m"); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %q, %v", op, got, err)
		}
		if got, err := (&hub.Client{Repo: byName, Dir: dir, Offline: true}).Find(t.Context(), "org/m"); err == nil {
			t.Errorf("%s: found %s", op, got)
		}
		c.SetFault(nil)
		got, err := c.Find(t.Context(), "org/m")
		if err == nil {
			err = check(got, whole("1"))
		}
		if err != nil {
			t.Errorf("after %s: %v", op, err)
		}
	}
	for _, op := range []string{"link", "lock"} {
		dir := t.TempDir()
		c := h.client(dir)
		c.SetFault(func(at, path string) error {
			if at == op {
				return syscall.ENOTSUP
			}
			return nil
		})
		one, err := c.Find(t.Context(), "org/m")
		if err == nil {
			err = check(one, whole("1"))
		}
		if err != nil {
			t.Errorf("no %s: %v", op, err)
		}
		h.commit("org/m", "main", whole("2"))
		if moved, err := c.Update(t.Context(), "org/m"); err != nil || !moved {
			t.Errorf("no %s: %v, %v", op, moved, err)
		}
		two, err := c.Find(t.Context(), "org/m")
		if err = errors.Join(err, check(one, whole("1")), check(two, whole("2"))); err != nil {
			t.Errorf("no %s: %v", op, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, ".locks", "*", "*"))
		if op == "lock" && (err != nil || len(left) > 0) {
			t.Errorf("soft locks are left: %q, %v", left, err)
		}
		h.commit("org/m", "main", whole("1"))
	}
}

// The wait for a soft lock whose process is gone ends.
func TestSoftLockLeft(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", files{"tokenizer.json": "{}"})
	dir := t.TempDir()
	path := filepath.Join(dir, ".locks", "models--org--m", digestOf("tokenizer.json", "{}")+".lock")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, nil, 0o666)))
	c := h.client(dir)
	c.SetFault(func(op, _ string) error {
		if op == "lock" {
			return syscall.ENOSYS
		}
		return nil
	})
	if got, err := c.Find(t.Context(), "org/m"); err != nil {
		t.Error(got, err)
	}
}

// A read-only cache is read, and never locked.
func TestReadOnly(t *testing.T) {
	h := newFake(t)
	one := h.commit("org/m", "main", whole("1"))
	dir := t.TempDir()
	if _, err := h.client(dir).Find(t.Context(), "org/m"); err != nil {
		t.Fatal(err)
	}
	h.asked()
	repo := filepath.Join(dir, "models--org--m")
	for _, gone := range []string{filepath.Join(dir, ".locks"), filepath.Join(repo, "trees")} {
		must(t, os.RemoveAll(gone))
		c := h.client(dir)
		c.SetFault(func(string, string) error { return syscall.EROFS })
		for range 2 {
			if got, err := c.Find(t.Context(), "org/m"); err != nil || filepath.Base(got) != one {
				t.Errorf("%q, %v", got, err)
			}
		}
		want := 0
		if strings.HasSuffix(gone, "trees") { // as if written by another program
			want = 1
		}
		if r := h.asked(); len(r) != want {
			t.Errorf("requests: %q", r)
		}
		if _, err := os.Stat(filepath.Join(dir, ".locks")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("locked: %v", err)
		}
	}
	// Offline it is used as it is, unless a file is missing.
	off := &hub.Client{Repo: byName, Dir: dir, Offline: true}
	if got, err := off.Find(t.Context(), "org/m"); err != nil || filepath.Base(got) != one {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := off.Find(t.Context(), "org/other"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	c := h.client(dir)
	if _, err := c.Find(t.Context(), "org/m"); err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(filepath.Join(repo, "snapshots", one, "chat_template.jinja")))
	if got, err := off.Find(t.Context(), "org/m"); err == nil || !strings.Contains(err.Error(), "chat_template.jinja") {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := c.Find(t.Context(), "org/m"); err != nil || check(got, whole("1")) != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestShared: concurrent callers for one model share a download, which goes on until the last of
// them has given up.
func TestShared(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	c := h.client(t.TempDir())
	begun, let := make(chan bool), make(chan bool)
	var once sync.Once
	h.setFault(func(string) string {
		once.Do(func() { close(begun); <-let })
		return ""
	})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := c.Find(ctx, "org/m"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	<-begun
	for range 8 {
		all.Go(func() {
			if got, err := c.Find(t.Context(), "org/m@main"); err != nil || check(got, whole("1")) != nil {
				t.Error(got, err)
			}
		})
	}
	for c.Waiting() < 9 {
		runtime.Gosched()
	}
	cancel()
	for c.Waiting() > 8 {
		runtime.Gosched()
	}
	close(let)
	all.Wait()
	if n := len(h.asked()); n != 1+2*5 {
		t.Errorf("%d requests", n)
	}

	// The last caller ends the download.
	c = h.client(t.TempDir())
	ctx, cancel = context.WithCancel(t.Context())
	h.setFault(func(kind string) string {
		if kind == "cdn" {
			cancel()
			return "slow"
		}
		return ""
	})
	c.SetStall(time.Hour)
	if _, err := c.Find(ctx, "org/m"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if c.Waiting() != 0 {
		t.Error("a download is left")
	}
	select {
	case <-h.gone: // the request that has stalled
	case <-time.After(30 * time.Second):
		t.Error("a request is left")
	}
}

// TestPoolAndChats: a pool of tokenizers and the chat templates share the download of a model.
func TestPoolAndChats(t *testing.T) {
	tiny, err := os.ReadFile("../testdata/tiny.json")
	must(t, err)
	h := newFake(t)
	h.commit("org/m", "main", files{
		"tokenizer.json": string(tiny), "tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`,
		"chat_template.jinja": "{{ messages[0].content }}", "model.safetensors": "weights",
	})
	c := h.client(t.TempDir())
	pool, err := tokenize.NewPool(tokenize.PoolConfig{Find: c.Find})
	must(t, err)
	defer pool.Close()
	templates := chats.Models{Find: c.Find}
	var all sync.WaitGroup
	all.Go(func() {
		if err := pool.Preload(t.Context(), "org/m"); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		if m, err := templates.Model(t.Context(), "org/m"); err != nil || m == nil {
			t.Error(err)
		}
	})
	all.Wait()
	if r := h.asked(); len(r) != 1+2*3 {
		t.Errorf("requests: %q", r)
	}
}

// TestEnvironment: endpoint, token, cache and offline mode are those of the official client.
func TestEnvironment(t *testing.T) {
	h := newFake(t)
	h.commit("org/m", "main", whole("1"))
	home := t.TempDir()
	must(t, os.WriteFile(filepath.Join(home, "token"), []byte(" of_file\r\n"), 0o600))
	for _, name := range []string{"HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_ENDPOINT", h.server.URL+"/")
	t.Setenv("HF_HOME", home)
	for _, x := range []struct{ token, variable, value, want string }{
		{"", "", "", "of_file"},
		{"", "HUGGING_FACE_HUB_TOKEN", "of_old", "of_old"},
		{"", "HF_TOKEN", "of_env\n", "of_env"},
		{"explicit", "HF_TOKEN", "of_env", "explicit"},
		{"explicit", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", "explicit"},
		{"", "HF_TOKEN_PATH", filepath.Join(home, "none"), ""},
		{"", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes", ""},
	} {
		t.Run(x.variable+x.token, func(t *testing.T) {
			if x.variable != "" {
				t.Setenv(x.variable, x.value)
			}
			t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "$HF_HOME", "..", "cache")) // variables are expanded
			h.token = x.want
			got, err := (&hub.Client{Repo: byName, Token: x.token}).Find(t.Context(), "org/m")
			if err != nil || !strings.HasPrefix(got, os.ExpandEnv(os.Getenv("HF_HUB_CACHE"))) {
				t.Error(got, err)
			}
		})
	}
	h.token = ""
	h.asked()
	for _, variable := range []string{"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		t.Setenv(variable, "on")
		if _, err := (&hub.Client{Repo: byName}).Find(t.Context(), "org/none"); !errors.Is(err, fs.ErrNotExist) || len(h.asked()) > 0 {
			t.Error(err)
		}
		t.Setenv(variable, "")
	}
	for _, c := range []*hub.Client{{Endpoint: "ftp://x"}, {Endpoint: "http://"}, {Endpoint: ":"}, {Endpoint: h.server.URL, Token: "a\nb"}, {Endpoint: h.server.URL, Token: "ä"}} {
		c.Repo, c.Dir = byName, t.TempDir()
		if _, err := c.Find(t.Context(), "org/m"); !errors.Is(err, fs.ErrInvalid) || c.Token != "" && strings.Contains(err.Error(), c.Token) {
			t.Error(err)
		}
	}
}

// TestToken: only the endpoint gets the token. Another port of its host does not (net/http's client
// would send it there), and a redirect from https to http is not followed.
func TestToken(t *testing.T) {
	var saw []string
	other := func(w http.ResponseWriter, r *http.Request) {
		saw = append(saw, r.Header.Get("Authorization")+r.Header.Get("Referer")+r.Header.Get("Cookie"))
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{}`))
	}
	port := httptest.NewServer(http.HandlerFunc(other))
	defer port.Close()
	for _, secure := range []bool{false, true} {
		asked := ""
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get("Authorization")
			http.Redirect(w, r, port.URL+"/away?signature=secret", http.StatusFound)
		})
		server := httptest.NewUnstartedServer(handler)
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		saw = nil
		c := &hub.Client{Repo: byName, Dir: t.TempDir(), Endpoint: server.URL, Token: "hf_secret", HTTP: server.Client()}
		c.SetPause(nil)
		_, err := c.Find(t.Context(), "org/m")
		if err == nil || asked != "Bearer hf_secret" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, %q", err, asked)
		}
		if want := []string{""}; secure && len(saw) > 0 || !secure && !slices.Equal(saw, want) {
			t.Errorf("https %v: the other server saw %q", secure, saw)
		}
		server.Close()
	}
}

// Limits on the data of a hub.
func TestBounds(t *testing.T) {
	h := newFake(t)
	listings := map[string]string{
		"a file too large": `{"sha":"COMMIT","siblings":[{"rfilename":"tokenizer.json","size":` + strconv.Itoa(hub.MaxFile+1) + `,"blobId":"COMMIT"}]}`,
		"all too large":    `{"sha":"COMMIT","siblings":[` + strings.Repeat(`{"rfilename":"additional_chat_templates/X.jinja","size":`+strconv.Itoa(hub.MaxFile)+`,"blobId":"COMMIT"},`, 5) + `{"rfilename":"x"}]}`,
		"a negative size":  `{"sha":"COMMIT","siblings":[{"rfilename":"tokenizer.json","size":-2,"blobId":"COMMIT"}]}`,
		"a bad digest":     `{"sha":"COMMIT","siblings":[{"rfilename":"tokenizer.json","size":1,"blobId":"../x"}]}`,
		"a bad commit":     `{"sha":"../../../../aaaaaaaaaaaaaaaaaaaaaaaaaaaa","siblings":[{"rfilename":"tokenizer.json"}]}`,
		"a bad name":       `{"sha":"COMMIT","siblings":[{"rfilename":"additional_chat_templates/a\\..\\b.jinja"}]}`,
		"too many":         `{"sha":"COMMIT","siblings":[` + strings.Repeat(`{"rfilename":"additional_chat_templates/X.jinja"},`, 257) + `{"rfilename":"x"}]}`,
		"twice":            `{"sha":"COMMIT","siblings":[{"rfilename":"config.json"},{"rfilename":"config.json"}]}`,
		"no files":         `{"sha":"COMMIT"}`,
		"none wanted":      `{"sha":"COMMIT","siblings":[{"rfilename":"model.safetensors"}]}`,
		"too long":         `{"sha":"COMMIT","siblings":[` + strings.Repeat(" ", hub.MaxListing) + `]}`,
	}
	text := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.note("list", r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(text))
	}))
	defer server.Close()
	for name, l := range listings {
		for i := range strings.Count(l[:min(len(l), 1<<10)], "X.jinja") {
			l = strings.Replace(l, "X.jinja", strconv.Itoa(i)+".jinja", 1)
		}
		text = strings.ReplaceAll(l, "COMMIT", strings.Repeat("ab", 20))
		c := &hub.Client{Repo: byName, Dir: t.TempDir(), Endpoint: server.URL}
		if got, err := c.Find(t.Context(), "org/m"); err == nil || len(h.asked()) != 1 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if made, _ := os.ReadDir(c.Dir); len(made) > 0 {
			t.Errorf("%s: %v was made", name, made)
		}
	}
}

func FuzzParseInfo(f *testing.F) {
	f.Add([]byte(`{"sha":"` + strings.Repeat("ab", 20) + `","siblings":[{"rfilename":"tokenizer.json","size":3,"blobId":"` + strings.Repeat("cd", 20) + `","lfs":{"sha256":"` + strings.Repeat("ef", 32) + `","size":3}}]}`))
	f.Add([]byte(`{"sha":"x","siblings":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		commit, n, err := hub.ParseInfo(text)
		if err == nil && (len(commit) != 40 || n > 100_000) {
			t.Error(commit, n)
		}
	})
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte(`{"format_version": 1, "files": {"tokenizer.json": {"size": 3, "blob_id": "` + strings.Repeat("cd", 20) + `"}, "../x": {"size": 1, "blob_id": ""}}}`))
	f.Add([]byte(`{"format_version": 0, "files": {"additional_chat_templates/../x.jinja": {}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		names, err := hub.ParseTree(text)
		for _, name := range names {
			if err != nil || !filepath.IsLocal(name) || strings.ContainsAny(name, `\:`) || strings.Count(name, "/") > 1 {
				t.Errorf("%q, %v", name, err)
			}
		}
	})
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
