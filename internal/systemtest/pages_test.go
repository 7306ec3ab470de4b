package systemtest

import (
	"encoding/json"
	"io/fs"
	"os"
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

// TestReadmeWords: README.md explains its words once, in bold, and does not use them before.
func TestReadmeWords(t *testing.T) {
	prose := quoted.ReplaceAllString(fences.ReplaceAllString(read(t, "README.md"), ""), "")
	for _, w := range []string{"pod", "block", "KV event", "score", "rank", "live", "partial", "replaying", "uncertain", "silent"} {
		bold := regexp.MustCompile(`(?i)\*\*`+w+`s?\*\*`).FindAllStringIndex(prose, -1)
		first := regexp.MustCompile(`(?i)\b` + w + `s?\b`).FindStringIndex(prose)
		if len(bold) != 1 || first == nil || first[0] < bold[0][0] {
			t.Errorf("%q is explained at %v, and used at %v", w, bold, first)
		}
	}
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
// fuzz target or a benchmark of the name. CI runs the commands in blocks of sh; of the
// others this is all that is looked at.
func TestPageCommands(t *testing.T) {
	tests := testNames(t)
	run := regexp.MustCompile(`-(run|bench|fuzz) '?([^ ')]+)`)
	for page, text := range pages(t) {
		if regexp.MustCompile(`\n    (go (run|test|vet)|bash) `).MatchString(text) {
			t.Errorf("%s: a command is in no block of sh or text", page)
		}
		for _, block := range fence.FindAllStringSubmatch(text, -1) {
			if block[1] != "sh" && block[1] != "text" {
				continue
			}
			for _, command := range strings.Split(block[2], "\n") {
				for _, dir := range regexp.MustCompile(` \./([a-z][a-z/]*)`).FindAllStringSubmatch(command, -1) {
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
						t.Errorf("%s: %s: nothing is named so", page, command)
					}
				}
			}
		}
	}
}

// TestEngineCommands: the JSON that pages give to engines is JSON, names the fields that
// vLLM's KVEventsConfig has (vllm/config/kv_events.py) with values of their types, and
// leaves room between the ports of events and of replays for several ranks.
func TestEngineCommands(t *testing.T) {
	texts, n := pages(t), 0
	texts["README.md"] = read(t, "README.md")
	for page, text := range texts {
		for _, m := range regexp.MustCompile(`--kv-events-config \\?\s*'([^']*)'`).FindAllStringSubmatch(text, -1) {
			var config struct {
				Enabled   bool   `json:"enable_kv_cache_events"`
				Publisher string `json:"publisher"`
				Endpoint  string `json:"endpoint"`
				Replay    string `json:"replay_endpoint"`
				Topic     string `json:"topic"`
			}
			d := json.NewDecoder(strings.NewReader(m[1]))
			d.DisallowUnknownFields()
			if err := d.Decode(&config); err != nil {
				t.Errorf("%s: %s: %v", page, m[1], err)
			}
			n++
			if config.Publisher != "zmq" || !strings.HasSuffix(config.Endpoint, ":5557") || config.Replay != "tcp://*:5657" {
				t.Errorf("%s: %s", page, m[1])
			}
		}
	}
	if n < 8 {
		t.Errorf("%d commands", n)
	}
}
