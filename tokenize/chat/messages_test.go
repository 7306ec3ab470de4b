package chat_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A made row is a body, and for each of some engines the chat that vLLM's own functions made
// of it, or "!" and the exception.
type made struct {
	Body string
	Outs [][2]json.RawMessage // names of engines, and the chat
}

// readMade calls f for each row of a file, or of the files that a variable names.
func readMade(t *testing.T, name, more string, f func(row made)) {
	t.Helper()
	files := []string{filepath.Join("testdata", name)}
	if file := os.Getenv(more); file != "" {
		files = append(files, file)
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		z, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(z)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			var row made
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
				t.Fatal(err)
			}
			f(row)
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// compareMade compares the chats that models make of a body with those of their engines.
func (n *outcomes) compareMade(t *testing.T, path string, row made, models map[string]*chat.Model) {
	t.Helper()
	for _, out := range row.Outs {
		var names []string
		var want string
		if err := errors.Join(json.Unmarshal(out[0], &names), json.Unmarshal(out[1], &want)); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			m := models[name]
			for _, parts := range []bool{false, true} {
				got, err := chat.Made(m, path, row.Body, parts)
				if strings.HasPrefix(want, "!") {
					if err == nil {
						n.lenient++
					}
					continue
				}
				if errors.Is(err, chat.ErrNotScorable) {
					n.refused++
					continue
				}
				made, chatErr := chat.Made(m, "/v1/chat/completions", want, parts)
				switch {
				case errors.Is(chatErr, chat.ErrNotScorable):
					n.refused++
				case (err == nil) != (chatErr == nil), got != made:
					t.Fatalf("%s of %s (parts: %t):\n got %s, %v\nwant %s, %v", name, row.Body, parts, got, err, made, chatErr)
				case err == nil:
					n.taken++
				}
			}
		}
	}
}

const showAll = "{{ messages }}{{ tools }}{{ reasoning_effort }}{{ enable_thinking }}"

// What vLLM's own functions make of 1,500 random bodies of the Messages API: its main with
// system messages kept and folded, 0.27 with a --chat-template that passes its probe and
// without one, and 0.23.
func TestMessagesMade(t *testing.T) {
	models := map[string]*chat.Model{
		"main/preserve": newModel(t, showAll, chat.Options{InlineSystem: "preserve"}),
		"main/fold":     newModel(t, showAll, chat.Options{InlineSystem: "fold"}),
		"0.27/keep":     newModel(t, showAll, chat.Options{Engine: "0.27", Template: showAll}),
		"0.27/merge":    newModel(t, showAll, chat.Options{Engine: "0.27"}),
		"0.23":          newModel(t, showAll, chat.Options{Engine: "0.23"}),
	}
	var n outcomes
	readMade(t, "messages.jsonl.gz", "KVINDEX_MESSAGES", func(row made) {
		n.compareMade(t, "/v1/messages", row, models)
	})
	t.Logf("%+v", n)
	if n.taken < 7000 || n.refused > n.taken {
		t.Errorf("%+v", n)
	}
}

// What vLLM's own probes find of templates: of eight small ones, and of those of models.
func TestInlineProbes(t *testing.T) {
	unknown := 0
	for _, row := range recorded[struct {
		Name, Source     string
		Added            []string
		Inline, Disabled map[string]string
		Merges           *bool
	}](t, "inline.json") {
		source := row.Source
		if source == "" {
			if os.Getenv("KVINDEX_TESTDATA") == "" {
				continue
			}
			b, err := os.ReadFile(testdata.Path(t, "the templates", "templates", row.Name))
			if err != nil {
				t.Fatal(err)
			}
			source = string(b)
		}
		m, err := chat.New("x", map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}, chat.Options{Template: source})
		if err != nil {
			t.Logf("%s: %v", row.Name, err)
			continue
		}
		keeps, err, disabled, passes, parts := chat.Probed(m, row.Added)
		format := "string"
		if parts {
			format = "parts"
		}
		if err != nil {
			t.Logf("%s: %v (%s)", row.Name, err, row.Inline[format])
			unknown++
		} else if want := row.Inline[format]; keeps != strings.HasPrefix(want, "preserve") {
			t.Errorf("%s keeps system messages: %t, want %s", row.Name, keeps, want)
		}
		if disabled != row.Disabled[format] {
			t.Errorf("%s: thinking that is disabled is %q, want %q", row.Name, disabled, row.Disabled[format])
		}
		if row.Merges != nil && passes == *row.Merges {
			t.Errorf("%s passes the old probe: %t", row.Name, passes)
		}
	}
	if unknown > 4 {
		t.Errorf("%d are unknown", unknown)
	}
}
