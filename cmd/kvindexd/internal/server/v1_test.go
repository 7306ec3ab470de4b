package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/kvindextest"
)

type answer struct {
	PromptTokens int `json:"prompt_tokens"`
	Unknown      string
	Error        string
	Pods         []struct {
		Pod           string
		Rank          int
		Score         float64
		CachedTokens  int `json:"cached_tokens"`
		MatchedBlocks int `json:"matched_blocks"`
		BlockTokens   int `json:"block_tokens"`
		Tiers         map[string]int
		State         string
		NotScorable   bool `json:"not_scorable"`
	}
}

// A prompt has the same score in all forms of a request.
func TestScore(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	e, _ := f.add(t, kvindextest.EngineConfig{Pod: "a"}), f.add(t, kvindextest.EngineConfig{Pod: "b"})
	const text = "<BOS><user>how do boats come and go, and where to?</user><assistant>"
	f.serve(t, e, tokensOf(text, false))
	messages := `"messages": [{"role": "user", "content": "how do boats come and go, and where to?"}]`
	for name, body := range map[string]string{
		"tokens":           js(map[string]any{"model": "m", "tokens": tokensOf(text, false)}),
		"rendered":         js(map[string]any{"prompt": text, "rendered": true}),
		"chat":             `{"body": {"model": "m", ` + messages + `}}`,
		"chat of no model": `{"body": {` + messages + `}}`,
		"chat of a MODEL":  `{"body": {"MODEL": "other", ` + messages + `}}`,
		"Messages":         `{"path": "/v1/messages", "body": {"model": "m", "max_tokens": 1, ` + messages + `}}`,
		"completion":       `{"body": {"model": "m", "add_special_tokens": false, "prompt": ` + js(text) + `}}`,
		"ids of SGLang":    `{"path": "/generate", "body": {"input_ids": ` + js(tokensOf(text, false)) + `}}`,
		"pods":             js(map[string]any{"tokens": tokensOf(text, false), "pods": []string{"b", "a"}}),
		"ranks":            js(map[string]any{"tokens": tokensOf(text, false), "ranks": true}),
	} {
		var a answer
		if code := ask(t, "POST", f.public.URL+"/v1/score", body, &a); code != http.StatusOK || len(a.Pods) != 2 || a.PromptTokens != len(text) {
			t.Errorf("%s: %d %+v", name, code, a)
			continue
		}
		p := a.Pods[0]
		n := len(text) / 16
		if p.Pod != "a" || p.MatchedBlocks != n || p.CachedTokens != 16*n || p.Score != float64(16*n) || p.BlockTokens != 16 || p.State != "live" || !maps.Equal(p.Tiers, map[string]int{"gpu": n}) {
			t.Errorf("%s: %+v, want %d blocks", name, p, n)
		}
	}
	for name, c := range map[string]struct {
		body string
		pods int
	}{
		"top":         {js(map[string]any{"tokens": []int{1, 2}, "top": 1}), 1},
		"no pods":     {js(map[string]any{"tokens": []int{1, 2}, "pods": []string{}}), 0},
		"named":       {js(map[string]any{"tokens": []int{1, 2}, "pods": []string{"nobody"}}), 1},
		"other model": {js(map[string]any{"tokens": []int{1, 2}, "model": "other"}), 0},
		"salted":      {js(map[string]any{"tokens": tokensOf(text, false), "salt": "s"}), 2},
		"adapter":     {js(map[string]any{"tokens": tokensOf(text, false), "adapter": "s"}), 2},
		"media":       {js(map[string]any{"tokens": tokensOf(text, false), "media": []any{map[string]any{"hash": "h", "offset": 0, "length": 5}}}), 2},
	} {
		var a answer
		if code := ask(t, "POST", f.public.URL+"/v1/score", c.body, &a); code != http.StatusOK || len(a.Pods) != c.pods || len(a.Pods) > 0 && a.Pods[0].Score != 0 {
			t.Errorf("%s: %d %+v", name, code, a)
		}
		if (a.Unknown != "") != (name == "other model" || name == "adapter") {
			t.Errorf("%s: unknown: %s", name, a.Unknown)
		}
	}
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{`{"tokens": [1], "prompt": "x"}`, 400, "exactly one is needed, there are 2"},
		{`{}`, 400, "exactly one is needed, there are 0"},
		{`{"body": null}`, 400, "exactly one is needed, there are 0"},
		{`{"tokens": [1], "rendered": true}`, 400, "rendered: "},
		{`{"tokens": [1], "top": -1}`, 400, "top: it is -1"},
		{`{"tokens": [-1]}`, 400, "tokens: a JSON number -1, want uint32"},
		{`{"tokens": [1], "token": 1}`, 400, `unknown field \"token\"`},
		{`[1]`, 400, "body: a JSON array, want an object"},
		{`{"tokens": [1], "pods": [""]}`, 400, "pods[0] has no name"},
		{`{"tokens": [1], "media": [{"offset": 1}]}`, 400, "Hash"},
		{`{"prompt": "x", "model": "other"}`, 404, "no tokenizer"},
		{`{"body": {"model": "other", ` + messages + `}}`, 404, "no tokenizer"},
		{`{"body": {"model": "other", "MODEL": "", ` + messages + `}}`, 404, "no tokenizer"},
		{`{"body": {"prompt": ["a", "b"]}}`, 422, "prompts"},
		{`{"body": {"input": "x", "model": "m"}, "path": "/v1/embeddings"}`, 422, "not read"},
		{`{"body": {"messages": []}}`, 400, "messages"},
		{`{"body": "x"}`, 400, "string"},
		{`{"prompt": "busy"}`, 503, "busy"},
		{`{"prompt": "broken"}`, 500, "no tokens"},
	} {
		if code, got, _ := exchange(t, "POST", f.public.URL+"/v1/score", c.body); code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.body, code, got, c.code, c.want)
		}
	}
}

type selection struct {
	ID, Pod, Host, Error, Unpredicted string
	Rank                              int
	PromptTokens                      int   `json:"prompt_tokens"`
	CachedTokens                      int   `json:"cached_tokens"`
	PredictedTokens                   int   `json:"predicted_tokens"`
	LeaseMS                           int64 `json:"lease_ms"`
}

// A selected prompt counts as cached and as load at its pod until it is done.
func TestSelect(t *testing.T) {
	f := start(t, server.Config{Model: "m", MaxReservations: 3}, kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Minute}))
	for _, pod := range []string{"a", "b"} {
		f.serve(t, f.add(t, kvindextest.EngineConfig{Pod: pod}), tokensOf("an old prompt of each pod, "+pod, true))
	}
	choose := func(fields map[string]any, code int) (s selection) {
		t.Helper()
		if got := ask(t, "POST", f.public.URL+"/v1/select", js(fields), &s); got != code {
			t.Fatalf("%v: %d %+v, want %d", fields, got, s, code)
		}
		return s
	}
	done := func(fields map[string]any, code int, ended bool) {
		t.Helper()
		var a struct{ Ended bool }
		if got := ask(t, "POST", f.public.URL+"/v1/done", js(fields), &a); got != code || a.Ended != ended {
			t.Fatalf("%v: %d %+v", fields, got, a)
		}
	}
	prompt := tokensOf(strings.Repeat("a prompt of some length, ", 20), true)
	first := choose(map[string]any{"tokens": prompt, "output_tokens": 10}, 200)
	if first.Host != "127.0.0.1" || first.PromptTokens != len(prompt) || first.PredictedTokens != 0 || first.Unpredicted != "" || first.LeaseMS != 600_000 {
		t.Errorf("the first: %+v", first)
	}
	second := choose(map[string]any{"tokens": prompt, "lease_ms": 60_000}, 200)
	if second.Pod != first.Pod || second.PredictedTokens != len(prompt)/16*16 || second.LeaseMS != 60_000 {
		t.Errorf("a sibling of %+v: %+v", first, second)
	}
	other := choose(map[string]any{"tokens": tokensOf(strings.Repeat("b", 500), true)}, 200)
	if other.Pod == first.Pod {
		t.Errorf("%s has all requests", other.Pod)
	}
	if choose(map[string]any{"tokens": prompt}, 503); true {
		done(map[string]any{"id": other.ID, "first_token": true}, 200, false)
	}
	done(map[string]any{"id": other.ID, "usage": map[string]any{"prompt_tokens": 501, "completion_tokens": 3, "prompt_tokens_details": map[string]any{"cached_tokens": 0}}}, 200, true)
	done(map[string]any{"id": other.ID}, 404, false)
	done(map[string]any{"id": first.ID, "failed": true}, 200, true)
	done(map[string]any{"id": second.ID, "usage": map[string]any{"prompt_tokens": len(prompt), "cached_tokens": 0}}, 200, true)
	if s := f.ix.Stats(); s.Tickets.Live != 0 || s.Tickets.Ended["observed"] != 2 || s.Tickets.Ended["abandoned"] != 1 {
		t.Errorf("%+v", s.Tickets)
	}
	if s := choose(map[string]any{"tokens": prompt, "pods": []string{other.Pod, "nobody"}}, 200); s.Pod != other.Pod {
		t.Errorf("of %s alone: %+v", other.Pod, s)
	} else {
		done(map[string]any{"id": s.ID, "first_token": true, "failed": true}, 400, false)
		done(map[string]any{"id": s.ID}, 200, true)
	}
	choose(map[string]any{"tokens": prompt, "pods": []string{"nobody"}}, 503)
	choose(map[string]any{"tokens": prompt, "model": "other"}, 404)
	choose(map[string]any{"prompt": "x", "model": "other"}, 404)
	choose(map[string]any{"body": map[string]any{"prompt": []string{"a", "b"}}}, 422)
	choose(map[string]any{"tokens": prompt, "top": 1}, 400)
	choose(map[string]any{"tokens": prompt, "lease_ms": 600_001}, 400)
	choose(map[string]any{"tokens": prompt, "output_tokens": -1}, 400)
	// A pod that is removed leaves nothing behind.
	choose(map[string]any{"tokens": prompt}, 200)
	f.server.Close()
	if s := f.ix.Stats(); s.Tickets.Live != 0 {
		t.Errorf("after Close: %+v", s.Tickets)
	}
	choose(map[string]any{"tokens": prompt}, 503)
}

// A reservation ends with its lease.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, err := kvindex.New()
		must(t, err)
		defer ix.Close()
		p := fakeengine.NewPrompt(1, 16, 2)
		must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 2))))
		s := server.New(server.Config{Model: "m"})
		s.Open(ix, nil)
		defer s.Close()
		post := func(path, body string) (int, selection) {
			r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(body))
			must(t, err)
			var w memory
			s.Public().ServeHTTP(&w, r)
			var v selection
			must(t, json.Unmarshal(w.Bytes(), &v))
			return w.code, v
		}
		prompt := fakeengine.NewPrompt(2, 16, 3).Tokens
		code, v := post("/v1/select", js(map[string]any{"tokens": prompt, "lease_ms": 1500}))
		if live := ix.Stats().Tickets.Live; code != 200 || live != 1 {
			t.Fatalf("%d %+v, %d tickets", code, v, live)
		}
		time.Sleep(1499 * time.Millisecond)
		synctest.Wait()
		if code, _ := post("/v1/done", js(map[string]any{"id": v.ID, "first_token": true})); code != 200 {
			t.Errorf("before the end of the lease: %d", code)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if code, _ := post("/v1/done", js(map[string]any{"id": v.ID})); code != 404 || ix.Stats().Tickets.Live != 0 {
			t.Errorf("after the lease: %d, %+v", code, ix.Stats().Tickets)
		}
	})
}

// memory is a ResponseWriter that keeps the answer.
type memory struct {
	bytes.Buffer
	code   int
	header http.Header
}

func (m *memory) WriteHeader(code int) { m.code = code }
func (m *memory) Header() http.Header {
	if m.header == nil {
		m.header = make(http.Header)
	}
	return m.header
}

// /v1/select chooses ranks that have published nothing, too.
func TestSelectRanks(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	engines, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a", Model: "m"}, 3)
	if err == nil {
		err = f.fleet.Put("test", pod)
	}
	must(t, err)
	for _, e := range engines {
		t.Cleanup(func() { _ = e.Close() })
		must(t, e.WaitSubscribers(f.ctx, 1))
	}
	f.serve(t, engines[1], tokensOf("something that rank 1 alone has", true))
	ranks := make(map[int]bool)
	for i := range 6 {
		var s selection
		if code := ask(t, "POST", f.public.URL+"/v1/select", js(map[string]any{"tokens": tokensOf(strings.Repeat(string(rune('a'+i)), 300), true)}), &s); code != 200 {
			t.Fatal(code, s)
		}
		ranks[s.Rank] = true
	}
	if len(ranks) != 3 {
		t.Errorf("only ranks %v were chosen", ranks)
	}
}

// The endpoints of the admin address for pods, events and snapshots.
func TestAdmin(t *testing.T) {
	f := start(t, server.Config{})
	engines, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a/b", Model: "m"}, 1)
	must(t, err)
	defer engines[0].Close()
	pod.ID = ""
	admin := f.admin.URL + "/v1/"
	if code, got, _ := exchange(t, "PUT", admin+"pods/a%2Fb", js(pod)); code != 200 {
		t.Fatalf("%d %s", code, got)
	}
	must(t, engines[0].WaitSubscribers(f.ctx, 1))
	f.serve(t, engines[0], tokensOf("some forty letters, more or less, of a prompt", true))
	type listing struct {
		Pods []struct {
			Pod, Model, State string
			Ranks             []struct {
				Blocks   map[string]int
				Messages uint64
			}
		}
		Fleet []struct {
			ID, Source string
			Streams    []struct{ Link string }
		}
	}
	var l listing
	if code := ask(t, "GET", admin+"pods", "", &l); code != 200 || len(l.Pods) != 1 || l.Pods[0].Pod != "a/b" || l.Pods[0].State != "live" || l.Pods[0].Ranks[0].Blocks["gpu"] != 2 || l.Fleet[0].Source != "http" || l.Fleet[0].Streams[0].Link != "live" {
		t.Errorf("%d %+v", code, l)
	}
	p := fakeengine.NewPrompt(1, 16, 4)
	payload, long := string(fakeengine.Payload(1, 0, p.Stored(0, 4))), strings.Repeat("n", 1025)
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"PUT", "pods/c", `{"id": "d", "model": "m", "host": "h"}`, 400, "id: "},
		{"PUT", "pods/c", `{"model": "m"}`, 400, "no Host"},
		{"PUT", "pods/c", `{"model": "m", "port": "x"}`, 400, "port: a JSON string"},
		{"PUT", "pods/c", `{"model": "m", "prot": 1}`, 400, `unknown field \"prot\"`},
		{"POST", "events/c?model=m&seq=x", "", 400, "seq: "},
		{"POST", "events/c?model=m&seq=18446744073709551615", "", 400, "seq: "},
		{"POST", "events/c", "", 400, "model: "},
		{"POST", "events/" + long + "?model=m", "", 400, "pod: the name has 1025 bytes"},
		{"POST", "events/c?model=" + long, "", 400, "model: the name has 1025 bytes"},
		{"POST", "events/c?model=m&seq=0&stream=" + long, payload, 400, "stream: the name has 1025 bytes"},
		{"POST", "events/%ff?model=m", payload, 400, "pod: the name is not UTF-8"},
		{"POST", "events/c?model=%ff", payload, 400, "model: the name is not UTF-8"},
		{"PUT", "pods/%ff", `{"model": "m", "engine": "none"}`, 400, "pod: the name is not UTF-8"},
		{"POST", "events/c?model=m&stream=s", "", 400, "stream: "},
		{"POST", "events/c?model=m&seq=0", "\x01", 400, "malformed"},
		{"POST", "events/c?model=m", "\x01", 400, "malformed"},
		{"GET", "explain?model=m&prompt=x", "", 400, "pod: "},
		{"GET", "explain?pod=a", "", 400, "prompt: "},
		{"GET", "explain?pod=a&model=m&prompt=x&salt=y", "", 400, "salt: the query can have pod, model, adapter, prompt"},
		{"POST", "explain?pod=a&model=m", `{"tokens": [1]}`, 400, "model: the query can have pod"},
		{"POST", "events/c?model=m&sequence=1", "", 400, "sequence: the query can have model, stream, seq"},
		{"POST", "events/c?model=m&seq=%z", "", 400, "query: "},
		{"GET", "watch?name=c", "", 400, "name: the query can have pod, model"},
		{"POST", "explain?pod=a", `{"tokens": [1], "model": "m", "top": -1}`, 400, "top: "},
	} {
		if code, got, _ := exchange(t, c.method, admin+c.path, c.body); code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, code, got, c.code, c.want)
		}
	}
	for _, c := range []struct{ query, want string }{
		{"&seq=0", `{"applied":true}`},
		{"&seq=0", `{"applied":false,"duplicate":true}`},
		{"&seq=3&stream=", `{"applied":true,"gap":{"From":1,"To":2,"Lost":true}}`},
	} {
		if code, got, _ := exchange(t, "POST", admin+"events/c?model=m"+c.query, payload); code != 200 || got != c.want {
			t.Errorf("%s: %d %s, want %s", c.query, code, got, c.want)
		}
	}
	if code, got, _ := exchange(t, "POST", admin+"events/d?model=m", payload); code != 200 || got != `{"applied":true}` {
		t.Errorf("without a number: %d %s", code, got)
	}
	var a answer
	if ask(t, "POST", f.public.URL+"/v1/score", js(map[string]any{"model": "m", "tokens": p.Tokens, "pods": []string{"c", "d"}}), &a); len(a.Pods) != 2 || a.Pods[0].MatchedBlocks != 4 || a.Pods[1].MatchedBlocks != 4 {
		t.Errorf("the events of c and d: %+v", a)
	}
	var why struct{ Cause, Model, Text string }
	if code := ask(t, "POST", admin+"explain?pod=c", js(map[string]any{"model": "m", "tokens": p.Tokens}), &why); code != 200 || why.Cause != "whole" {
		t.Errorf("%d %+v", code, why)
	}
	if code := ask(t, "GET", admin+"explain?"+url.Values{"pod": {"c"}, "model": {"m"}, "prompt": {"what nobody has"}}.Encode(), "", &why); code != 200 || why.Cause != "lost" || why.Text != "what nobody has" {
		t.Errorf("%d %+v", code, why)
	}
	code, snapshot, _ := exchange(t, "GET", admin+"snapshot", "")
	again, err := kvindex.Restore(f.ctx, strings.NewReader(snapshot))
	if code != 200 || err != nil {
		t.Fatalf("%d, %d bytes, %v", code, len(snapshot), err)
	}
	var same kvindex.Answer
	if err := again.ScoreRequest(f.ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{"c"}}, &same); err != nil || same.Pods[0].MatchedBlocks != 4 {
		t.Errorf("a replica: %+v, %v", same, err)
	}
	again.Close()
	for n := range 16 {
		code, got, _ := exchange(t, "POST", fmt.Sprintf("%sevents/c?model=m%d", admin, n), payload)
		if n < 15 && code != 200 || n == 15 && (code != 507 || !strings.Contains(got, "the pod has 16 models already")) {
			t.Errorf("model %d of a pod: %d %s", n+2, code, got)
		}
	}
	if code, got, _ := exchange(t, "DELETE", admin+"pods/c", ""); code != 200 {
		t.Errorf("%d %s", code, got)
	}
	if code, got, _ := exchange(t, "DELETE", admin+"pods/a%2Fb", ""); code != 200 {
		t.Errorf("%d %s", code, got)
	}
	for f.fleet.Pods(nil) != nil {
		select {
		case <-f.ctx.Done():
			t.Fatal("a/b stays")
		default:
		}
	}
	if ask(t, "GET", admin+"pods", "", &l); len(l.Pods) != 1 || l.Pods[0].Pod != "d" {
		t.Errorf("after c and a/b were removed: %+v", l)
	}
	f.add(t, kvindextest.EngineConfig{Pod: "e"})
	if code, got, _ := exchange(t, "PUT", admin+"pods/e", `{"model": "m", "engine": "none"}`); code != 200 {
		t.Errorf("a pod of another source is named: %d %s", code, got)
	}
	if code, got, _ := exchange(t, "DELETE", admin+"pods/e", ""); code != 409 || !strings.Contains(got, "comes from test") {
		t.Errorf("a pod of another source: %d %s", code, got)
	}
	f.fleet.Remove("test", "e")
	if pods := f.fleet.Pods(nil); len(pods) > 0 && pods[0].Source != "" {
		t.Errorf("a pod that was removed over HTTP too: %+v", pods)
	}
}

// full is a ResponseWriter that fails after so many bytes.
type full struct {
	memory
	left int
}

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return f.memory.Write(p)
}

// A snapshot that is cut off does not end like a whole one.
func TestSnapshotCutOff(t *testing.T) {
	f := start(t, server.Config{})
	for i := range uint64(50) {
		p := fakeengine.NewPrompt(i, 16, 64)
		must(t, f.ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 64))))
	}
	get := func(left int) (w full, ended any) {
		w.left = left
		r, err := http.NewRequest(http.MethodGet, "/v1/snapshot", nil)
		must(t, err)
		r.Host = "localhost"
		defer func() { ended = recover() }()
		f.server.Admin().ServeHTTP(&w, r)
		return w, nil
	}
	whole, ended := get(1 << 30)
	if ended != nil || whole.Len() < 10_000 {
		t.Fatalf("a whole one: %d bytes, %v", whole.Len(), ended)
	}
	if _, ended := get(whole.Len() - 1); ended != http.ErrAbortHandler {
		t.Errorf("without its last byte it ends with %v", ended)
	}
	if w, ended := get(0); ended != nil || w.code != http.StatusInternalServerError {
		t.Errorf("of which nothing came: %d, %v", w.code, ended)
	}
}
