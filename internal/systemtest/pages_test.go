package systemtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fences   = regexp.MustCompile("(?ms)^```.*?^```$")
	indented = regexp.MustCompile(`(?m)^    .*$`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	defined  = regexp.MustCompile(`(?m)^- \*\*([a-z]+)\*\*: `)
)

// pages are the pages of docs, by their paths in the repository.
func pages(t *testing.T) map[string]string {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	texts := make(map[string]string)
	for _, f := range files {
		name := "docs/" + filepath.Base(f)
		texts[name] = read(t, name)
	}
	return texts
}

// anchors are those that GitHub gives to the headings of a document.
func anchors(text string) (found []string) {
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		found = append(found, strings.ReplaceAll(kept, " ", "-"))
	}
	return found
}

// TestPageLinks: what a page links to is there, and so is the heading.
func TestPageLinks(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	for page, text := range pages(t) {
		for _, l := range links.FindAllStringSubmatch(text, -1) {
			target := page
			if l[1] != "" {
				target = path.Join("docs", l[1])
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if l[2] != "" && !slices.Contains(anchors(read(t, target)), l[2]) {
				t.Errorf("%s: %s has no heading %q", page, target, l[2])
			}
		}
	}
}

// TestPageWords: a word of the project that a page explains is explained once, and
// not used before; and the words that nobody else knows are explained on each page
// that uses them.
func TestPageWords(t *testing.T) {
	ours := []string{"view", "hole", "source", "rank", "unit", "stream", "chain"}
	for page, text := range pages(t) {
		prose := quoted.ReplaceAllString(indented.ReplaceAllString(fences.ReplaceAllString(text, ""), ""), "")
		words := slices.Clone(ours)
		for _, d := range defined.FindAllStringSubmatch(prose, -1) {
			words = append(words, d[1])
		}
		slices.Sort(words)
		for _, w := range slices.Compact(words) {
			uses := regexp.MustCompile(`(?i)\b`+w+`s?\b`).FindAllStringIndex(prose, -1)
			definition := "- **" + w + "**: "
			at, n := strings.Index(prose, definition), strings.Count(prose, definition)
			if len(uses) > 0 && (n != 1 || uses[0][0] < at) {
				t.Errorf("%s: %q is explained %d times, at %d, and used at %d", page, w, n, at, uses[0][0])
			}
		}
	}
}

// TestPageNames: a public name that a page writes as code is there, and so is a test,
// a fuzz target and a benchmark. Names with the package of another project before them
// are that project's.
func TestPageNames(t *testing.T) {
	packages := map[string]map[string][]string{}
	for _, dir := range []string{".", "events", "index", "tokenize", "tokenize/chat", "tokenize/chat/chatcheck"} {
		name := path.Base(dir)
		if dir == "." {
			name = "kvindex"
		}
		packages[name] = publicNames(t, dir)
	}
	tests := testNames(t)
	name := regexp.MustCompile(`^(?:([a-z]+)\.)?([A-Z]\w*)(?:\(\))?(?:\.([A-Z]\w*)(?:\(\))?)?(?:\.([A-Z]\w*))?$`)
	for page, text := range pages(t) {
		for _, q := range quoted.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
			m := name.FindStringSubmatch(q[1])
			switch {
			case m == nil || m[1] != "" && packages[m[1]] == nil || q[1] == strings.ToUpper(q[1]): // GOGC
			case regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`).MatchString(m[2]):
				if !slices.Contains(tests, m[2]) {
					t.Errorf("%s: there is no %s", page, m[2])
				}
			default:
				if !known(packages, m[1], slices.DeleteFunc(m[2:], func(s string) bool { return s == "" })) {
					t.Errorf("%s: there is no %s", page, q[1])
				}
			}
		}
	}
}

// known reports whether a package, or any if it is "", has a name: a declaration, or a
// field or method, or either with a field or method of it.
func known(packages map[string]map[string][]string, in string, names []string) bool {
	for pkg, declared := range packages {
		if in != "" && pkg != in {
			continue
		}
		if members, ok := declared[names[0]]; ok && (len(names) == 1 || slices.Contains(members, names[1])) {
			return true
		}
		if in != "" {
			continue
		}
		for _, members := range declared {
			if slices.Contains(members, names[0]) && (len(names) == 1 || known(packages, "", names[1:])) {
				return true
			}
		}
	}
	return false
}

// publicNames are the exported declarations of a package, each with its fields and
// methods, those that it embeds included.
func publicNames(t *testing.T, dir string) map[string][]string {
	fset := token.NewFileSet()
	sources, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, s := range sources {
		if strings.HasSuffix(s, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, s, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, dir)
	if err != nil {
		t.Fatal(err)
	}
	names, embedded := map[string][]string{}, map[string][]string{}
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			for _, n := range v.Names {
				names[n] = nil
			}
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			names[f.Name] = nil
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		names[typ.Name] = nil
		for _, m := range typ.Methods {
			names[typ.Name] = append(names[typ.Name], m.Name)
		}
		for _, spec := range typ.Decl.Specs {
			ast.Inspect(spec.(*ast.TypeSpec).Type, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok {
					for _, id := range f.Names {
						names[typ.Name] = append(names[typ.Name], id.Name)
					}
					if id, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 {
						embedded[typ.Name] = append(embedded[typ.Name], id.Name)
					}
				}
				return true
			})
		}
	}
	for range 2 { // Stats has Counters, and those have StreamStats
		for typ, of := range maps.All(embedded) {
			for _, e := range of {
				names[typ] = append(names[typ], names[e]...)
			}
		}
	}
	return names
}

// testNames are the tests, fuzz targets and benchmarks of the repository.
func testNames(t *testing.T) (names []string) {
	err := filepath.WalkDir("../..", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		src, err := os.ReadFile(file)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`).FindAllSubmatch(src, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestPageCommands: what a page has go test run is there: the package, and a test, a
// fuzz target or a benchmark of the name.
func TestPageCommands(t *testing.T) {
	tests := testNames(t)
	run := regexp.MustCompile(`-(run|bench|fuzz) '?([^ ']+)`)
	for page, text := range pages(t) {
		for _, line := range regexp.MustCompile(`(?m)^    (.*go (?:test|run) .*)$`).FindAllStringSubmatch(text, -1) {
			command, _, _ := strings.Cut(line[1], " #")
			for _, dir := range regexp.MustCompile(` \./?([a-z/]*)`).FindAllStringSubmatch(command, -1) {
				if strings.HasSuffix(command, "...") {
					continue
				}
				if _, err := os.Stat(filepath.Join("../..", dir[1])); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
			for _, r := range run.FindAllStringSubmatch(command, -1) {
				if r[2] == "^$" || r[1] == "bench" && r[2] == "." {
					continue
				}
				pattern, _, _ := strings.Cut(r[2], "/")
				if !slices.ContainsFunc(tests, regexp.MustCompile(pattern).MatchString) {
					t.Errorf("%s: %s: nothing is named so", page, line[1])
				}
			}
		}
	}
}
