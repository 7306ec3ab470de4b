package chatcheck_test

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

// direct answers without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// versions are those of vLLM that shape otherwise than the one before, and what a
// check finds of that, where content is a string and where it is in parts.
var versions = []struct {
	engine         string
	strings, parts chat.Features
}{
	{"0.9", 0, 0},
	{"0.9.2", 0, 0},
	{"0.10", 0, 0},
	{"0.10.1", 0, 0},
	{"0.11", chat.FeatureArguments | chat.FeatureEmptyParts, chat.FeatureArguments | chat.FeatureEmptyParts},
	{"0.11.1", chat.FeatureReasoning, chat.FeatureReasoning},
	{"0.12", 0, 0},
	{"0.13", chat.FeatureDeveloper | chat.FeatureEmptyCalls, chat.FeatureDeveloper | chat.FeatureEmptyCalls},
	{"0.14", 0, 0},
	{"0.16", 0, 0},
	{"0.18", 0, chat.FeatureStringParts},
	{"0.20", 0, chat.FeatureToolCalls},
	{"0.21", 0, 0},
	{"0.22", 0, 0},
	{"0.23", chat.FeatureDeveloper | chat.FeatureArguments, chat.FeatureDeveloper | chat.FeatureArguments},
	{"0.24", 0, 0},
	{"0.26", 0, chat.FeaturePartFields},
	{"0.27", chat.FeatureToolFields, chat.FeatureToolFields},
	{"main", chat.FeatureBillingHeader | chat.FeatureArguments, chat.FeatureBillingHeader | chat.FeatureArguments},
}

// unasked are shapes that versions differ in and no conversation has.
var unasked = regexp.MustCompile(`"(task|defer_loading|reasoning_content)":|"reasoning": ""|"strict": [^tf]|"strict": "`)

var long = flag.Bool("long", false, "long form: compare all recorded chats in TestCheckFindsVersions, and not a quarter")

// A model of any version, checked with an engine of any other, tells what that does of
// every chat that uses none of what differs.
func TestCheckFindsVersions(t *testing.T) {
	raw, err := os.ReadFile("../testdata/shapes.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Body string }
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	var requests []*chat.Request
	sampled := 4
	if *long {
		sampled = 1
	}
	for i, row := range rows {
		if i%sampled > 0 {
			continue
		}
		if r, err := chat.Parse([]byte(row.Body)); err == nil && !unasked.MatchString(row.Body) {
			requests = append(requests, r)
		}
	}
	const all = "{% for m in messages %}{{ m }}{% endfor %}{{ tools }}{{ documents }}{{ enable_thinking }}{{ thinking }}{{ add_generation_prompt }}"
	compared := 0
	for _, format := range []string{"string", "openai"} {
		models := make([]*chat.Model, len(versions))
		texts := make([][]string, len(versions)) // "" of what is refused
		for i, v := range versions {
			models[i] = newModel(t, all, chat.Options{Engine: v.engine, ContentFormat: format})
			for _, r := range requests {
				text := ""
				if x, err := models[i].RenderAnyway(r, nil); err == nil {
					text = x.Text
				}
				texts[i] = append(texts[i], text)
			}
		}
		for i, engine := range versions {
			client := &http.Client{Transport: direct{answers(models[i], func(body) {})}}
			for j, model := range versions {
				r := check(t, chatcheck.Engine{URL: "http://engine", Model: `na"me`, Client: client}, models[j])
				want := engine.strings
				if format == "openai" {
					want = engine.parts
				}
				if i == j+1 && r.Differs() != want || i == j && r.Differs() != 0 {
					t.Errorf("content as %s: %s differs in %s from %s, want %s\n%s", format, engine.engine, r.Differs(), model.engine, want, r)
				}
				for k, request := range requests {
					if request.Features()&r.Differs() != 0 || texts[i][k] == "" || texts[j][k] == "" {
						continue
					}
					compared++
					if texts[i][k] != texts[j][k] {
						t.Errorf("content as %s, %s but %s:\n got %s\nwant %s", format, model.engine, r.Differs(), texts[j][k], texts[i][k])
					}
				}
			}
		}
	}
	if t.Logf("%d chats compared", compared); compared < 30_000/sampled {
		t.Error("few")
	}
}
