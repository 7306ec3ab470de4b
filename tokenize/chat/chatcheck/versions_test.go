package chatcheck_test

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

// direct is a transport that calls its handler without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// versions are the vLLM versions that shape chats in another way than the one before, with the
// features that a check finds different, for content as a string and in parts.
var versions = []struct {
	engine         string
	strings, parts string
}{
	{"0.9", "", ""},
	{"0.9.2", "", ""},
	{"0.10", "", ""},
	{"0.10.1", "", ""},
	{"0.11", "empty_parts,arguments", "empty_parts,arguments"},
	{"0.11.1", "reasoning", "reasoning"},
	{"0.12", "", ""},
	{"0.13", "developer,empty_calls", "developer,empty_calls"},
	{"0.14", "", ""},
	{"0.16", "", ""},
	{"0.18", "", "string_parts"},
	{"0.20", "", "tool_calls"},
	{"0.21", "", ""},
	{"0.22", "", ""},
	{"0.23", "developer,arguments", "developer,arguments"},
	{"0.24", "", ""},
	{"0.26", "", "part_fields"},
	{"0.27", "tool_fields", "tool_fields"},
	{"main", "billing_header,arguments", "billing_header,arguments"},
}

// unasked matches differences between versions that no conversation covers.
var unasked = regexp.MustCompile(`"(task|defer_loading|reasoning_content)":|"reasoning": ""|"strict": [^tf]|"strict": "`)

var long = flag.Bool("long", false, "long form: compare all recorded chats in TestCheckFindsVersions, and not a quarter")

// A check of any version against an engine of any other finds the differences of all chats that use
// none of the differing features.
func TestCheckFindsVersions(t *testing.T) {
	raw, err := os.ReadFile("../testdata/shapes.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Body string }
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	var prompts []*chat.Prompt
	sampled := 4
	switch {
	case *long:
		sampled = 1
	case testing.Short():
		sampled = 12
	}
	for i, row := range rows {
		if i%sampled > 0 {
			continue
		}
		if p, err := chat.Parse("", []byte(row.Body)); err == nil && !unasked.MatchString(row.Body) {
			prompts = append(prompts, p)
		}
	}
	const told = "{% for m in messages %}{{ m }}{% endfor %}{{ tools }}{{ documents }}{{ enable_thinking }}{{ thinking }}{{ add_generation_prompt }}"
	all, compared := allFeatures(t), 0
	for _, format := range []string{"string", "openai"} {
		models := make([]*chat.Model, len(versions))
		texts := make([][]string, len(versions)) // "" if rejected
		uses := make([][]string, len(prompts))   // features
		for i, v := range versions {
			models[i] = newModel(t, told, chat.Options{Engine: v.engine, ContentFormat: format})
			models[i].Exclude("pod", all...)
			for k, p := range prompts {
				text := ""
				if x, err := models[i].RenderAnyway(p, nil); err == nil {
					text = x.Text
				}
				if uses[k] == nil {
					uses[k] = used(models[i], p)
				}
				texts[i] = append(texts[i], text)
			}
		}
		for i, engine := range versions {
			client := &http.Client{Transport: direct{answers(models[i], func(body) {})}}
			for j, model := range versions {
				if testing.Short() && i != j && i != j+1 && (i+j)%4 > 0 {
					continue
				}
				r := check(t, chatcheck.Engine{URL: "http://engine", Model: `na"me`, Client: client}, models[j])
				want := engine.strings
				if format == "openai" {
					want = engine.parts
				}
				if i == j+1 && differing(r) != want || i == j && r.Differs() != nil {
					t.Errorf("content as %s: %s differs in %s from %s, want %s\n%s", format, engine.engine, differing(r), model.engine, want, r)
				}
				differs := func(feature string) bool { return slices.Contains(r.Differs(), feature) }
				for k := range prompts {
					if slices.ContainsFunc(uses[k], differs) || texts[i][k] == "" || texts[j][k] == "" {
						continue
					}
					compared++
					if texts[i][k] != texts[j][k] {
						t.Errorf("content as %s, %s but %s:\n got %s\nwant %s", format, model.engine, differing(r), texts[j][k], texts[i][k])
					}
				}
			}
		}
	}
	if t.Logf("%d chats compared", compared); compared < 30_000/sampled && !testing.Short() {
		t.Error("few")
	}
}
