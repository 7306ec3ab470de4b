package kvindex_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

// excluding opens an Indexer with a model, of which pods hold all of a chat with
// tools and all of one without: "a" and "b" of both, "c" of none.
func excluding(t *testing.T) (ix *kvindex.Indexer, m *chat.Model, plain, tools []byte) {
	t.Helper()
	m, err := chat.New(turns+"{{ tools }}", map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	ix = open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
	plain = []byte(`{"model":"m","messages":[{"role":"user","content":"how do boats come and go?"}]}`)
	tools = []byte(`{"model":"m","messages":[{"role":"user","content":"how do boats come and go?"}],"tools":[{"type":"function","function":{"name":"tide"}}]}`)
	for i, body := range [][]byte{plain, tools} {
		r, err := chat.Parse("", body)
		must(t, err)
		x, err := m.Render(r, nil)
		must(t, err)
		holdAll(t, ix, "a", uint64(i+1), bytesOf(x.Text))
		holdAll(t, ix, "b", uint64(i+1), bytesOf(x.Text))
	}
	holdAll(t, ix, "c", 3, bytesOf("another prompt of 32 characters!"))
	return ix, m, plain, tools
}

// A check finds an engine that drops tools: its pod is scored for all other chats,
// and the others for all.
func TestExcludeWhatACheckFinds(t *testing.T) {
	ix, m, plain, tools := excluding(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenize" {
			http.NotFound(w, r)
			return
		}
		raw, _ := io.ReadAll(r.Body)
		if at := strings.Index(string(raw), `,"tools"`); at > 0 {
			raw = append(raw[:at:at], '}')
		}
		request, err := chat.Parse("", raw)
		var x *chat.Rendering
		if err == nil {
			x, err = m.RenderAnyway(request, nil)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"tokens": bytesOf(x.Text)})
	}))
	defer s.Close()
	report, err := chatcheck.Engine{URL: s.URL, Model: "m"}.Check(ctx, m, words{})
	if err != nil || !slices.Equal(report.Differs(), []string{"tools"}) {
		t.Fatalf("%v\n%s", err, report)
	}

	m.Exclude("a", report.Differs()...)
	for _, c := range []struct {
		body []byte
		want string
	}{{plain, "a b"}, {tools, "b"}} {
		if got := holders(score(t, ix, kvindex.Request{Body: c.body})); got != c.want {
			t.Errorf("%s: held by %q, want %q", c.body, got, c.want)
		}
	}
	if a := score(t, ix, kvindex.Request{Body: tools})[2]; a != (kvindex.PodScore{Pod: "a", NotScorable: true, State: a.State}) || a.State == kvindex.StateUnknown {
		t.Errorf("%+v", a)
	}

	m.Exclude("", report.Differs()...)
	var answer kvindex.Answer
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Body: tools}, &answer); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), ": tools") {
		t.Error(err)
	}
	if got := ix.Stats().Scores.Outcomes["not_scorable"]; got != 1 {
		t.Errorf("%d not scorable", got)
	}
	if got := holders(score(t, ix, kvindex.Request{Body: plain})); got != "a b" {
		t.Errorf("held by %q", got)
	}
	m.Exclude("")
	m.Exclude("a")
	if got := holders(score(t, ix, kvindex.Request{Body: tools})); got != "a b" {
		t.Errorf("held by %q", got)
	}
}

// An excluded pod is behind all others, by Top, Candidates and ties too.
func TestExcludedPodsAreLast(t *testing.T) {
	ix, m, plain, tools := excluding(t)
	all := []string{"a", "b", "c", "d", "never"}
	for _, excluded := range [][]string{{"a"}, {"d"}, {"a", "b"}, {"a", "b", "c", "d"}, {"a", "c", "never"}, all} {
		for _, pod := range all {
			m.Exclude(pod)
		}
		for _, pod := range excluded {
			m.Exclude(pod, "tools")
		}
		want := score(t, ix, kvindex.Request{Body: tools, Pods: all})
		for i, s := range want {
			if out := slices.Contains(excluded, s.Pod); s.NotScorable != out || out != (i >= len(all)-len(excluded)) || out && (s.CachedTokens != 0 || s.MatchedBlocks != 0) {
				t.Errorf("without %v: %+v at %d", excluded, s, i)
			}
			if i > 0 && s.CachedTokens > want[i-1].CachedTokens {
				t.Errorf("without %v: %+v behind %+v", excluded, s, want[i-1])
			}
		}
		for top := 1; top <= len(all); top++ {
			for _, r := range []kvindex.Request{{Pods: all}, {Candidates: ix.Candidates("m", all)}} {
				r.Body, r.Top = tools, top
				if got := score(t, ix, r); !slices.Equal(got, want[:top]) {
					t.Errorf("without %v, the best %d: %+v, want %+v", excluded, top, got, want[:top])
				}
			}
		}
		for _, r := range []kvindex.Request{{Body: plain}, {Model: "m", Prompt: "how do boats come and go?"}} {
			score(t, ix, kvindex.Request{Body: tools}) // of which nothing stays
			for _, s := range score(t, ix, r) {
				if s.NotScorable {
					t.Errorf("without %v: %+v", excluded, s)
				}
			}
		}
	}
	raw, err := json.Marshal(score(t, ix, kvindex.Request{Body: tools, Pods: []string{"a"}}))
	if err != nil || !strings.Contains(string(raw), `"NotScorable":true`) {
		t.Errorf("%s, %v", raw, err)
	}
}

func holders(scores []kvindex.PodScore) string {
	var names []string
	for _, s := range scores {
		if s.MatchedBlocks > 0 {
			names = append(names, s.Pod)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
