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
	defined  = regexp.MustCompile(`(?m)^- \*\*[a-z][a-z ]*\*\*: `)
)

// pages are the pages of docs, by path.
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

// prose returns a page without code.
func prose(text string) string {
	return quoted.ReplaceAllString(indented.ReplaceAllString(fences.ReplaceAllString(text, ""), ""), "")
}

// TestPageWords: docs/glossary.md defines the words of the project, and no other page does. A page
// links the glossary at the latest in the line in which it first uses one of the project's own
// words.
func TestPageWords(t *testing.T) {
	texts := pages(t)
	glossary := texts["docs/glossary.md"]
	words := []string{"view", "hole", "source", "unit", "stream", "chain"}
	ours := regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)s?\b`)
	for _, word := range words {
		if !strings.Contains(glossary, "\n### "+word+"\n") {
			t.Errorf("docs/glossary.md does not define %q", word)
		}
	}
	for page, text := range texts {
		if page == "docs/glossary.md" {
			continue
		}
		if defined.MatchString(text) {
			t.Errorf("%s defines a word of its own: %q", page, defined.FindString(text))
		}
		text = prose(text)
		used := ours.FindStringIndex(text)
		if used == nil {
			continue
		}
		before := text[:used[1]]
		line, _, _ := strings.Cut(text[used[1]:], "\n")
		if !strings.Contains(before+line, "glossary.md") {
			t.Errorf("%s uses %q without a link to the glossary", page, text[used[0]:used[1]])
		}
	}
}

// TestGlossary: each word has one definition of at most two sentences.
func TestGlossary(t *testing.T) {
	sentence := regexp.MustCompile(`[.!?](\s|$)`)
	seen := make(map[string]bool)
	for _, entry := range strings.Split(prose(read(t, "docs/glossary.md")), "\n### ")[1:] {
		word, definition, _ := strings.Cut(entry, "\n")
		definition, _, _ = strings.Cut(definition, "\n#")
		if n := len(sentence.FindAllString(definition, -1)); n < 1 || n > 2 || seen[word] {
			t.Errorf("%q has %d sentences, or comes twice", word, n)
		}
		seen[word] = true
	}
	if len(seen) < 40 {
		t.Errorf("%d words", len(seen))
	}
}

// TestPageSizes: pages and cells of tables are short.
func TestPageSizes(t *testing.T) {
	texts := pages(t)
	for page, text := range texts {
		if n := len(strings.Fields(text)); n > 2200 {
			t.Errorf("%s has %d words, 2,200 at most", page, n)
		}
	}
	texts["README.md"] = read(t, "README.md")
	for page, text := range texts {
		for _, line := range strings.Split(fences.ReplaceAllString(text, ""), "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			for _, cell := range strings.Split(line, "|") {
				if n := len(strings.Fields(cell)); n > 20 {
					t.Errorf("%s: a cell has %d words, 20 at most: %s", page, n, cell)
				}
			}
		}
	}
}

// TestReadmeWords: README.md explains its words once, in bold, and does not use them before.
func TestReadmeWords(t *testing.T) {
	prose := quoted.ReplaceAllString(fences.ReplaceAllString(read(t, "README.md"), ""), "")
	for _, w := range []string{"pod", "KV event", "block", "score"} {
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
	must(t, err)
	return names
}

// TestPageCommands: the package and the test, fuzz target or benchmark of a page's go test command
// exist. CI runs the commands in blocks of sh; this is the only check of the others.
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
				for _, dir := range regexp.MustCompile(` \./([a-z][a-z/-]*)`).FindAllStringSubmatch(command, -1) {
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

// TestEngineCommands: JSON for engines on pages is valid, has fields of vLLM's KVEventsConfig
// (vllm/config/kv_events.py) with values of their types, and leaves room between the ports of
// events and of replays for several ranks.
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
