package systemtest

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/kvindex/kvindex/internal/decls"
)

// documents are all pages for people, by path, those of docs included.
func documents(t *testing.T) []string {
	pages, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	all := []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md"}
	for _, p := range pages {
		all = append(all, "docs/"+filepath.Base(p))
	}
	return all
}

var (
	fence   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	inline  = regexp.MustCompile("`[^`\n]+`")
)

// TestLinks: link targets of the documents exist, anchors too.
func TestLinks(t *testing.T) {
	_, err := os.Stat("../../docs")
	noDocs := errors.Is(err, os.ErrNotExist)
	for _, doc := range documents(t) {
		for _, l := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, doc), ""), -1) {
			file, anchor, anchored := strings.Cut(l[1], "#")
			if strings.Contains(l[1], ":") || noDocs && strings.HasPrefix(file, "docs/") {
				continue
			}
			target := doc
			if file != "" {
				target = path.Join(path.Dir(doc), file)
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: %s: %v", doc, l[1], err)
			} else if anchored && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: %s: %s has no such heading", doc, l[1], target)
			}
		}
	}
}

// anchors returns the anchors of a document's headings, as GitHub makes them: in lower case, with
// hyphens for spaces, without other characters than letters, digits, hyphens and underscores, and
// with a number after repeated ones.
func anchors(text string) (all []string) {
	seen := map[string]int{}
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		a := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, link.ReplaceAllString(h[1], "]"))
		if seen[a]++; seen[a] > 1 {
			a += "-" + strconv.Itoa(seen[a]-1)
		}
		all = append(all, a)
	}
	return all
}

func TestAnchors(t *testing.T) {
	got := anchors("# What `Explain` says: *all* of it\n## Try_it\n```\n# no heading\n```\n## Try_it\n## A [link](to/it.md), 2.0\n")
	if want := []string{"what-explain-says-all-of-it", "try_it", "try_it-1", "a-link-20"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReadme: README.md has at most 700 words outside of code and tables, and 950 with tables; it
// installs before it explains, and links a gateway of 60 lines.
func TestReadme(t *testing.T) {
	text := read(t, "README.md")
	words, all := 0, 0
	for _, line := range strings.Split(fence.ReplaceAllString(text, ""), "\n") {
		n := len(strings.Fields(line))
		if all += n; !strings.HasPrefix(line, "|") {
			words += n
		}
	}
	if words > 700 || all > 950 {
		t.Errorf("README.md has %d words of prose and %d with tables, 700 and 950 at most", words, all)
	}
	at := 0
	for _, part := range []string{"go get ", "picker.New(", "go run ./examples/quickstart", "go test ./...", "## Why", "## Engines", "## Does it work?", "## Documentation", "## Limits"} {
		i := strings.Index(text[at:], part)
		if i < 0 {
			t.Fatalf("README.md has no %q in its place", part)
		}
		at += i
	}
	if n := strings.Count(read(t, "examples/router/main.go"), "\n"); n > 60 {
		t.Errorf("examples/router/main.go has %d lines, 60 at most", n)
	}
}

// TestDesign: a newcomer can read DESIGN.md in twenty minutes.
func TestDesign(t *testing.T) {
	if n := len(strings.Fields(read(t, "DESIGN.md"))); n > 4000 {
		t.Errorf("DESIGN.md has %d words, 4,000 at most", n)
	}
}

// TestNames: names of the library in README.md and the pages of docs exist: pkg.Name,
// pkg.Type.Member, and Type.Member of a type of the library, in backticks or in a program; in
// README.md also each Name( in backticks.
func TestNames(t *testing.T) {
	library := loadAPI(t)
	for _, doc := range documents(t) {
		if doc != "README.md" && !strings.HasPrefix(doc, "docs/") {
			continue
		}
		for _, e := range library.unknown(read(t, doc), doc == "README.md", doc != "docs/from-llm-d.md") {
			t.Errorf("%s: %s", doc, e)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	library := loadAPI(t)
	good := "`kvindex.New`, `events.SubscriberConfig.OnError`, `chatcheck.Engine.Check`, `Indexer.Score(ctx)`, `kvindex.ModelsConfig.Find`," +
		" `Traffic.Malformed`, `index.Index.Apply`, `os.Open`, `KVEventsConfig.Endpoint`\n```go\nkvindex.New()\n```\n```text\nkvindex.Nothing\n```\n`LoadModel(dir)`"
	if got := library.unknown(good, true, true); len(got) > 0 {
		t.Errorf("%q are there", got)
	}
	bad := "`kvindex.Nothing`, `events.SubscriberConfig.Nothing`, `Indexer.Nothing`, `Message.Nothing`, `Nothing()`\n```go\nchat.Nothing()\n```\n"
	if got := library.unknown(bad, true, true); len(got) != 6 {
		t.Errorf("%q, want 6", got)
	}
}

// api has the exported names of the library's packages, with the members of types by decls.Members.
type api map[string]map[string]bool

func loadAPI(t *testing.T) api {
	t.Helper()
	a := api{}
	for pkg, dir := range map[string]string{
		"kvindex": ".", "events": "events", "index": "index", "indextest": "index/indextest", "kvindextest": "kvindextest",
		"tokenize": "tokenize", "hub": "tokenize/hub", "remote": "tokenize/remote", "chat": "tokenize/chat", "chatcheck": "tokenize/chat/chatcheck", "discovery": "events/discovery", "publish": "events/publish", "k8s": "events/k8s", "redisindex": "index/redisindex", "epp": "epp", "prometheus": "metrics/prometheus", "otel": "metrics/otel", "offload": "offload", "backendtest": "offload/backendtest",
		"picker": "picker", "stats": "stats", "route": "route", "field": "route/field",
	} {
		a[pkg] = map[string]bool{}
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		must(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			src, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, d := range src.Decls {
				for _, name := range append(decls.Names(d), decls.Members(d)...) {
					a[pkg][name] = true
				}
			}
		}
	}
	return a
}

var (
	qualified = regexp.MustCompile(`(?:^|[^\w.])([a-z]\w*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	member    = regexp.MustCompile(`(?:^|[^\w.])([A-Z]\w*)\.([A-Z]\w*)`)
	called    = regexp.MustCompile(`(?:^|[^\w.])([A-Z]\w*)\(`)
)

// unknown returns the names in a text that are not the library's.
func (a api) unknown(text string, calls, members bool) (names []string) {
	var code []string
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		if block[1] == "go" {
			code = append(code, block[2])
		}
	}
	spans := inline.FindAllString(fence.ReplaceAllString(text, ""), -1)
	for _, c := range append(code, spans...) {
		for _, m := range qualified.FindAllStringSubmatch(c, -1) {
			if a[m[1]] != nil && (!a[m[1]][m[2]] || m[3] != "" && !a.has(m[2], m[3])) {
				names = append(names, strings.TrimSpace(m[0]))
			}
		}
	}
	for _, c := range spans {
		for _, m := range member.FindAllStringSubmatch(c, -1) {
			if members && a.any(m[1]) && !a.has(m[1], m[2]) {
				names = append(names, m[0])
			}
		}
		for _, m := range called.FindAllStringSubmatch(c, -1) {
			if calls && !a.any(m[1]) {
				names = append(names, m[0])
			}
		}
	}
	return names
}

// any reports whether a package has the name.
func (a api) any(name string) bool {
	for _, names := range a {
		if names[name] {
			return true
		}
	}
	return false
}

// has reports whether a type of a package has a member, its own or an embedded one.
func (a api) has(of, member string) bool {
	if a.any(of + "." + member) {
		return true
	}
	for _, names := range a {
		for name := range names {
			if embedded, ok := strings.CutPrefix(name, of+".="); ok && embedded != of && a.has(embedded, member) {
				return true
			}
		}
	}
	return false
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", file))
	must(t, err)
	return string(text)
}
