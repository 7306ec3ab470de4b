package systemtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvindex/kvindex"

// standard are the packages of the standard library that Go blocks of pages can use without
// an import clause. They can use those of the library too.
var standard = []string{
	"bytes", "context", "encoding/json", "errors", "expvar", "fmt", "io", "log", "log/slog", "maps", "math",
	"net", "net/http", "net/http/httputil", "net/url", "os", "os/signal", "path/filepath", "regexp", "slices", "strconv",
	"strings", "sync", "sync/atomic", "syscall", "time",
}

// others are packages of other modules that Go blocks can use, with their directories here.
// Without a directory, uses of a package are not checked.
var others = map[string]string{
	module + "/events/k8s":         "events/k8s",
	module + "/index/redisindex":   "index/redisindex",
	module + "/metrics/prometheus": "metrics/prometheus",
	module + "/offload":            "offload",

	"github.com/redis/go-redis/v9": "", "k8s.io/client-go/kubernetes": "", "k8s.io/client-go/rest": "",
}

// given are the names that a Go block can use without a declaration.
var given = []string{
	"type router struct{ *kvindex.Indexer }",
	"var ctx context.Context",
	"var cancel context.CancelFunc",
	"var running sync.WaitGroup",
	"var ix *kvindex.Indexer",
	"var model kvindex.Model",
	"var models *kvindex.Models",
	"var fleet *events.Fleet",
	"var client kubernetes.Interface",
	"var answer kvindex.Answer",
	"var best kvindex.PodScore",
	"var sent route.Tracker",
	"var quiet map[string]bool",
	"var prompt string",
	"var name string",
	"var body []byte",
	"var payload []byte",
	"var tokens []uint32",
	"var pods []string",
	"var w http.ResponseWriter",
	"var req *http.Request",
	"var response *http.Response",
	"var segments *offload.Segments",
	"var send func(any)",
	"var logAnswer func(*picker.Pick, kvindex.Usage, error)",
	"func must[T any](v T, err error) T { return v }",
}

// forms are the forms of a Go block: declarations, fields, or the body of a function that returns
// an error.
var forms = []string{"%s", "var _ = events.SubscriberConfig{\n%s}", "func _() error {\n%s\nreturn nil\n}"}

// TestPrograms: each Go block of a page compiles as a file or in one of the forms. Unused variables
// and imports are allowed.
func TestPrograms(t *testing.T) {
	check := newChecker(t)
	n := 0
	texts := pages(t)
	texts["README.md"] = read(t, "README.md")
	for page, text := range texts {
		for _, block := range fence.FindAllStringSubmatchIndex(text, -1) {
			if text[block[2]:block[3]] != "go" {
				continue
			}
			n++
			for _, err := range check.errors(text[block[4]:block[5]]) {
				t.Errorf("%s:%d: %v", page, 1+strings.Count(text[:block[4]], "\n"), err)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d programs", n)
	}
}

func TestProgramErrors(t *testing.T) {
	check := newChecker(t)
	for _, good := range []string{
		"package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n",
		"type pod struct{ url.URL }\n\nfunc (p pod) size() int { return len(p.Host) }\n",
		"s, err := ix.Score(ctx, prompt, \"m\", nil)\nif err != nil {\n\treturn err\n}\n",
		"src, err := k8s.Source(client, k8s.LLMD(\"a\", \"b\"))\nif err != nil {\n\treturn err\n}\ngo fleet.Run(ctx, src)\n",
	} {
		if got := check.errors(good); len(got) > 0 {
			t.Errorf("%s: %q", good, got)
		}
	}
	for _, bad := range []string{
		"x := ix.Nothing()\n", "x := nothing\n", "x := \n", "k8s.LLMD(1)\n", "events.NewFleet(1)\n",
	} {
		if got := check.errors(bad); len(got) == 0 {
			t.Errorf("%s has no error", bad)
		}
	}
}

// checker type-checks Go blocks. It implements types.Importer.
type checker struct {
	fset     *token.FileSet
	compiled types.Importer
	parsed   map[string]*types.Package
	byName   map[string]string // import path by the name of the package
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	c := &checker{fset: token.NewFileSet(), parsed: make(map[string]*types.Package), byName: map[string]string{"redis": "github.com/redis/go-redis/v9"}}
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./..."}, standard...)...)
	list.Dir, list.Stderr = "../..", os.Stderr
	out, err := list.Output()
	must(t, err)
	exports := make(map[string]string)
	for _, line := range strings.Split(string(out), "\n") {
		name, file, _ := strings.Cut(line, " ")
		exports[name] = file
		if slices.Contains(standard, name) || strings.HasPrefix(name, module) && !strings.Contains(name, "/internal/") {
			c.byName[path.Base(name)] = name
		}
	}
	for name := range others {
		c.byName[path.Base(name)] = name
	}
	c.compiled = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	return c
}

func (c *checker) Import(path string) (*types.Package, error) {
	dir, other := others[path]
	if !other {
		return c.compiled.Import(path)
	}
	if dir == "" {
		return nil, fmt.Errorf("%s is of another module", path)
	}
	if c.parsed[path] == nil {
		names, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			return nil, err
		}
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		config := types.Config{Importer: c, IgnoreFuncBodies: true, Error: func(error) {}}
		c.parsed[path], _ = config.Check(path, c.fset, files, nil) // its imports of other modules are not found
	}
	return c.parsed[path], nil
}

var (
	usedPackage = regexp.MustCompile(`\b([a-z]\w*)\.[A-Z]`)
	declared    = regexp.MustCompile(`(?m)^(?:func|type|var) (\w+)`)
)

// errors returns the errors of a Go block.
func (c *checker) errors(block string) (errs []error) {
	file, err := parser.ParseFile(c.fset, "", block, parser.SkipObjectResolution)
	head := c.head(block)
	for i := 0; err != nil && i < len(forms); i++ {
		file, err = parser.ParseFile(c.fset, "", head+fmt.Sprintf(forms[i], block), parser.SkipObjectResolution)
	}
	if err != nil {
		return []error{err}
	}
	config := types.Config{Importer: c, Error: func(err error) {
		if e := err.(types.Error); !e.Soft && !strings.HasPrefix(e.Msg, "could not import ") {
			errs = append(errs, errors.New(e.Msg))
		}
	}}
	_, _ = config.Check("page", c.fset, []*ast.File{file}, nil) // errors go to errs
	return errs
}

// head is the part of a file before a Go block: its imports, and the given names that it
// does not declare.
func (c *checker) head(block string) string {
	var own []string
	for _, d := range declared.FindAllStringSubmatch(block, -1) {
		own = append(own, d[1])
	}
	names := ""
	for _, g := range given {
		if !slices.Contains(own, strings.Fields(g)[1]) {
			names += g + "\n"
		}
	}
	clauses := make(map[string]string)
	for _, m := range usedPackage.FindAllStringSubmatch(names+block, -1) {
		if p := c.byName[m[1]]; p != "" {
			clauses[p] = fmt.Sprintf("import %s %q\n", m[1], p)
		}
	}
	return "package page\n" + strings.Join(slices.Collect(maps.Values(clauses)), "") + names
}
