package tokenize_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

const (
	oneCommit   = "0e9e39f249a16976918f6564b8830bc894c89659"
	otherCommit = "8afb486c1db24fe5011ec46dfbe5b5dccdb575c2"
)

// hubCache writes files as huggingface_hub does: a snapshot links to a blob. A blob's content is
// its name unless the test needs another.
type hubCache struct {
	tb  testing.TB
	dir string
}

func newHubCache(tb testing.TB) hubCache { return hubCache{tb, tb.TempDir()} }

func (c hubCache) path(elem ...string) string {
	c.tb.Helper()
	path := filepath.Join(append([]string{c.dir}, elem...)...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.tb.Fatal(err)
	}
	return path
}

func (c hubCache) write(content []byte, elem ...string) {
	c.tb.Helper()
	if err := os.WriteFile(c.path(elem...), content, 0o600); err != nil {
		c.tb.Fatal(err)
	}
}

func (c hubCache) ref(repo, name, commit string) {
	c.tb.Helper()
	c.write([]byte(commit), repo, "refs", filepath.FromSlash(name))
}

func (c hubCache) snapshot(repo, commit, blob string, content []byte) {
	c.tb.Helper()
	c.write(content, repo, "blobs", blob)
	if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), c.path(repo, "snapshots", commit, "tokenizer.json")); err != nil {
		c.tb.Fatal(err)
	}
}

func (c hubCache) model(name string, content []byte) {
	c.tb.Helper()
	repo := "models--" + strings.ReplaceAll(name, "/", "--")
	c.ref(repo, "main", oneCommit)
	c.snapshot(repo, oneCommit, "blob", content)
}

func TestHubFinds(t *testing.T) {
	c := newHubCache(t)
	const repo = "models--Org.1--a_model-7B"
	c.ref(repo, "main", oneCommit)
	c.ref(repo, "v1.0", otherCommit+"\n")
	c.ref(repo, "refs/pr/1", otherCommit)
	c.ref(repo, "empty", otherCommit[1:]+"0")
	c.ref(repo, oneCommit[1:]+"0", otherCommit) // a branch that looks like a commit
	c.ref(repo, "out", "../../../secret")
	c.ref(repo, "dot", "..")
	c.ref(repo, "nothing", "")
	c.ref(repo, "long", strings.Repeat("a", 1<<20))
	c.snapshot(repo, oneCommit, "b1", []byte("one"))
	c.snapshot(repo, otherCommit, "b2", []byte("other"))
	c.write(nil, repo, "snapshots", otherCommit[1:]+"0", "config.json")
	c.write(nil, repo, "snapshots", otherCommit[2:]+"00", "tokenizer.json", "in a folder")
	must(t, os.Symlink("gone", c.path(repo, "snapshots", otherCommit[3:]+"000", "tokenizer.json")))
	c.snapshot("models--gpt2", oneCommit, "b", []byte("gpt2")) // no refs
	c.ref("models--top", "main", oneCommit)
	c.snapshot("models--top", oneCommit, "b", []byte("top"))
	c.write([]byte("secret"), "secret", "tokenizer.json")
	c.write([]byte("secret"), "models--x", "snapshots", "secret", "tokenizer.json")

	hub := tokenize.Hub{Dir: c.dir}
	for model, want := range map[string]string{
		"Org.1/a_model-7B":                            "one",
		"Org.1/a_model-7B@main":                       "one",
		"Org.1/a_model-7B@v1.0":                       "other",
		"Org.1/a_model-7B@refs/pr/1":                  "other",
		"Org.1/a_model-7B@" + oneCommit:               "one",
		"Org.1/a_model-7B@" + otherCommit:             "other",
		"Org.1/a_model-7B@" + oneCommit[1:] + "0":     "other",
		"gpt2@" + oneCommit:                           "gpt2",
		"top":                                         "top",
		"Org.1/a_model-7B@empty":                      "no tokenizer.json",
		"Org.1/a_model-7B@" + otherCommit[2:] + "00":  "no tokenizer.json",
		"Org.1/a_model-7B@" + otherCommit[3:] + "000": "no tokenizer.json",
		"Org.1/a_model-7B@main/x":                     "no ref",
		"Org.1/a_model-7B@refs/pr":                    "no ref",
		"Org.1/a_model-7B@out":                        "no ref",
		"Org.1/a_model-7B@dot":                        "no ref",
		"Org.1/a_model-7B@long":                       "no ref",
		"Org.1/a_model-7B@nothing":                    "no snapshot nothing",
		"Org.1/a_model-7B@" + oneCommit[:7]:           "no snapshot",
		"Org.1/other":                                 "no snapshot main",
		"gpt2":                                        "no snapshot main",
		"org.1/b":                                     "no snapshot",
		"":                                            "!",
		"@main":                                       "!",
		"gpt2@":                                       "!",
		"/gpt2":                                       "!",
		"gpt2/":                                       "!",
		"a/b/c":                                       "!",
		"..":                                          "!",
		"../secret":                                   "!",
		"x/..":                                        "!",
		".hidden":                                     "!",
		"a..b":                                        "!",
		"a--b":                                        "!",
		"Org.1--a_model-7B":                           "!",
		"-a":                                          "!",
		"a-":                                          "!",
		"a.":                                          "!",
		"org./a":                                      "!",
		"a.git":                                       "!",
		`a\b`:                                         "!",
		"a b":                                         "!",
		"a:b":                                         "!",
		"a\x00b":                                      "!",
		"a\n":                                         "!",
		"日本":                                          "!",
		c.dir + "/secret":                             "!",
		strings.Repeat("a", 97):                       "!",
		strings.Repeat("a", 97) + "/b":                "!",
		"x@../snapshots/secret":                       "!",
		"x@/secret":                                   "!",
		"x@a/../b":                                    "!",
		"x@./a":                                       "!",
		"x@a/":                                        "!",
		"x@a//b":                                      "!",
		`x@a\b`:                                       "!",
		"x@a:b":                                       "!",
		"x@a\x00":                                     "!",
		"x@a b":                                       "!",
		"x@" + strings.Repeat("a/", 127) + "bb":       "!",
		"x@@":                                         "no ref",
	} {
		path, err := hub.Find(t.Context(), model)
		switch {
		case want == "!":
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%.60q: %q, %v", model, path, err)
			}
		case strings.HasPrefix(want, "no "):
			if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), c.dir) {
				t.Errorf("%.60q: %q, %v, want %q and the folder", model, path, err, want)
			}
		default:
			got, readErr := os.ReadFile(filepath.Join(path, "tokenizer.json"))
			if err != nil || readErr != nil || string(got) != want {
				t.Errorf("%.60q: %q, %v, %q, %v", model, path, err, got, readErr)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := hub.Find(ctx, "top"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := (tokenize.Hub{Dir: c.dir}).Find(t.Context(), "Org.1/a_model-7B@none"); err == nil ||
		!strings.Contains(err.Error(), `"hf download Org.1/a_model-7B --revision none"`) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("the error does not name model and revision: %v", err)
	}
}

// The folder is huggingface_hub's.
func TestHubFolder(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the paths of this test are those of unix")
	}
	home := t.TempDir()
	all := []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}
	for want, set := range map[string][]string{
		home + "/.cache/huggingface/hub": nil,
		home + "/xdg/huggingface/hub":    {"XDG_CACHE_HOME=" + home + "/xdg"},
		home + "/hf/hub":                 {"XDG_CACHE_HOME=" + home + "/xdg", "HF_HOME=~/hf"},
		home + "/old":                    {"HF_HOME=" + home + "/hf", "HUGGINGFACE_HUB_CACHE=$HOME/old", "XDG_CACHE_HOME=/xdg"},
		home + "/new":                    {"HF_HOME=" + home + "/hf", "HUGGINGFACE_HUB_CACHE=/old", "HF_HUB_CACHE=${HOME}/new"},
		home + "/set/hub":                {"HF_HOME=" + home + "/set", "HF_HUB_CACHE="},
		home:                             {"HF_HUB_CACHE=~"},
		home + "/a$1/${no such}/$":       {"HF_HUB_CACHE=" + home + "/a$1/${no such}/$"},
	} {
		t.Setenv("HOME", home)
		for _, name := range all {
			t.Setenv(name, "")
		}
		for _, s := range set {
			name, value, _ := strings.Cut(s, "=")
			t.Setenv(name, value)
		}
		hubCache{t, want}.model("org/m", nil)
		path, err := tokenize.Hub{}.Find(t.Context(), "org/m")
		if err != nil || path != filepath.Join(want, "models--org--m", "snapshots", oneCommit) {
			t.Errorf("%q: %q, %v, want it in %s", set, path, err, want)
		}
		must(t, os.RemoveAll(filepath.Join(want, "models--org--m")))
	}
	t.Setenv("HOME", "")
	for _, name := range all {
		t.Setenv(name, "")
	}
	if _, err := (tokenize.Hub{}).Find(t.Context(), "org/m"); err == nil {
		t.Error("found without a home")
	}
}

func FuzzHubFind(f *testing.F) {
	c := newHubCache(f)
	inside := hubCache{f, filepath.Join(c.dir, "hub")}
	inside.model("org/m", []byte("inside"))
	inside.ref("models--org--m", "out", "../../../outside")
	c.write([]byte("outside"), "outside", "tokenizer.json")
	c.write([]byte("outside"), "outside", "snapshots", oneCommit, "tokenizer.json")
	for _, model := range []string{"org/m", "org/m@main", "org/m@out", "org/m@" + oneCommit, "../outside", "org/m@../../../outside", "org/..", "a@b"} {
		f.Add(model)
	}
	hub := tokenize.Hub{Dir: inside.dir}
	f.Fuzz(func(t *testing.T, model string) {
		path, err := hub.Find(t.Context(), model)
		if err != nil {
			return
		}
		if content, err := os.ReadFile(filepath.Join(path, "tokenizer.json")); err != nil || string(content) != "inside" {
			t.Errorf("%q: %s: %q, %v", model, path, content, err)
		}
	})
}
