package remote_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/remote"
)

const (
	judged   = "boats"
	template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
	newline  = template + "\n"
	newTries = 50 * time.Millisecond // an Engine's Timeout in schedules
)

func templateOf(tb testing.TB, source string) *chat.Model {
	tb.Helper()
	// Jinja2 drops the last newline of a template, so it is written as an expression.
	m, err := chat.New(strings.Replace(source, "\n", "{{ '\n' }}", 1), nil, chat.Options{})
	must(tb, err)
	return m
}

// tiny loads tiny.json with a change.
func tiny(tb testing.TB, change func(file map[string]any)) *tokenize.BPE {
	tb.Helper()
	raw, err := os.ReadFile("../testdata/tiny.json")
	must(tb, err)
	var file map[string]any
	must(tb, json.Unmarshal(raw, &file))
	if change != nil {
		change(file)
	}
	raw, err = json.Marshal(file)
	path := filepath.Join(tb.TempDir(), "tokenizer.json")
	if err = errors.Join(err, os.WriteFile(path, raw, 0o600)); err != nil {
		tb.Fatal(err)
	}
	bpe, err := tokenize.Load(path)
	must(tb, err)
	return bpe
}

func withoutMerge(i int) func(map[string]any) {
	return func(file map[string]any) {
		model := file["model"].(map[string]any)
		merges := model["merges"].([]any)
		model["merges"] = append(append([]any{}, merges[:i]...), merges[i+1:]...)
	}
}

// begins adds token 1 before each text, so many times.
func begins(times int) func(map[string]any) {
	return func(file map[string]any) {
		var single []any
		for range times {
			single = append(single, map[string]any{"SpecialToken": map[string]any{"id": "!", "type_id": 0}})
		}
		single = append(single, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}})
		file["post_processor"] = map[string]any{
			"type": "TemplateProcessing", "single": single,
			"pair":           []any{map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 0}}},
			"special_tokens": map[string]any{"!": map[string]any{"id": "!", "ids": []any{1}, "tokens": []any{"!"}}},
		}
	}
}

// A judgedEngine answers like vLLM, for one model.
type judgedEngine struct {
	t    tokenize.Tokenizer
	m    *chat.Model
	asks atomic.Int64

	fault func(w http.ResponseWriter, r *http.Request, n int64) (done bool) // nil: none
}

func (e *judgedEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	if e.fault != nil && e.fault(w, r, e.asks.Add(1)) {
		return
	} else if e.fault == nil {
		e.asks.Add(1)
	}
	if r.URL.Path == "/v1/models" {
		fmt.Fprintf(w, `{"data":[{"id":%q}]}`, judged)
		return
	}
	var body struct {
		Model, Prompt string
		Messages      []any
		Special       bool `json:"add_special_tokens"`
	}
	if r.URL.Path != "/tokenize" || json.Unmarshal(raw, &body) != nil {
		http.NotFound(w, r)
		return
	}
	if body.Model != judged {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"message":"The model does not exist."}}`)
		return
	}
	if body.Messages != nil {
		prompt, err := chat.Parse("/v1/chat/completions", raw)
		var x *chat.Rendering
		if err == nil {
			x, err = e.m.RenderAnyway(prompt, nil)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body.Prompt, body.Special = x.Text, prompt.AddSpecial
	}
	ids, err := e.t.Encode(r.Context(), nil, body.Prompt, body.Special)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if ids == nil {
		ids = []uint32{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(ids), "max_model_len": 9999, "tokens": ids})
}

// judgeOf returns a Judge of a fake engine, and the errors passed to OnVerdict.
func judgeOf(tb testing.TB, e *judgedEngine) (*remote.Judge, *[]error) {
	tb.Helper()
	s := httptest.NewServer(e)
	tb.Cleanup(s.Close)
	engine := &remote.Engine{URLs: []string{s.URL}, Model: judged}
	tb.Cleanup(func() { engine.Close() })
	var told []error
	return &remote.Judge{Engine: engine, OnVerdict: func(err error) { told = append(told, err) }}, &told
}

// A difference of the tokenizer or the template is reported once, with its position and ids.
func TestJudgeFinds(t *testing.T) {
	right, one := tiny(t, nil), tiny(t, begins(1))
	for _, c := range []struct {
		name         string
		local, there tokenize.Tokenizer
		ours, theirs string
		says         string // "": no verdict
	}{
		{"equal", right, right, template, template, ""},
		{"equal, with a first token", one, one, template, template, ""},
		{"a wrong merge", tiny(t, withoutMerge(30)), right, template, template, "the text "},
		{"one more newline", right, right, newline, template, `the chat "a question"`},
		{"the first token twice", tiny(t, begins(2)), one, template, template, `with special tokens: token 1 is `},
		{"no first token", right, one, template, template, `with special tokens: token 0 is 1 in the engine`},
	} {
		e := &judgedEngine{t: c.there, m: templateOf(t, c.theirs)}
		j, told := judgeOf(t, e)
		err := j.Check(t.Context(), c.local, templateOf(t, c.ours))
		if c.says == "" {
			if err != nil || j.Verdict() != nil || len(*told) > 0 || e.asks.Load() < int64(remote.JudgeRequests) {
				t.Errorf("%s: %v, after %d requests", c.name, err, e.asks.Load())
			}
			continue
		}
		if !errors.Is(err, remote.ErrCheckFailed) || !strings.Contains(err.Error(), c.says) || len(*told) != 1 || (*told)[0] != err || j.Verdict() != err {
			t.Errorf("%s: %v, and reported %v", c.name, err, *told)
		}
		before := e.asks.Load()
		if again := j.Check(t.Context(), right, nil); again != err || len(*told) != 1 || e.asks.Load() != before {
			t.Errorf("%s: a check after the verdict: %v, reported %d", c.name, again, len(*told))
		}
		j.Reset()
		if err := j.Check(t.Context(), c.there, templateOf(t, c.theirs)); err != nil || j.Verdict() != nil {
			t.Errorf("%s: after Reset: %v", c.name, err)
		}
	}
}

// Each merge that changes one text in ten changes a text of the Judge.
func TestMergesAreFound(t *testing.T) {
	prose := testdata.NewProse(t, "texts", 1)
	var texts []string
	for range 100 {
		texts = append(texts, prose.English(300))
	}
	encoded := func(bpe *tokenize.BPE, text string) string {
		ids, err := bpe.Encode(t.Context(), nil, text, true)
		must(t, err)
		return fmt.Sprint(ids)
	}
	right := tiny(t, nil)
	var want, judges []string
	for _, text := range texts {
		want = append(want, encoded(right, text))
	}
	for _, text := range remote.JudgeTexts() {
		judges = append(judges, encoded(right, text))
	}
	needed := 0
	for i := 0; i < 397; i += 4 {
		wrong := tiny(t, withoutMerge(i))
		n, found := 0, false
		for k, text := range texts {
			if encoded(wrong, text) != want[k] {
				n++
			}
		}
		for k, text := range remote.JudgeTexts() {
			found = found || encoded(wrong, text) != judges[k]
		}
		if n >= len(texts)/10 {
			if needed++; !found {
				t.Errorf("merge %d is needed by %d of %d texts, and not found", i, n, len(texts))
			}
		}
	}
	if needed < 20 {
		t.Errorf("only %d merges were needed", needed)
	}
}

// Each token of real tokenizers that is in one text in ten is in the texts of the Judge, so its
// merge is checked.
func TestTokensAreFound(t *testing.T) {
	var texts []string
	for _, row := range testdata.Rows[struct{ Text string }](t, testdata.Path(t, "4,200 texts of 28 languages", "tokens", "corpus.jsonl.gz")) {
		texts = append(texts, row.Text)
	}
	families := []string{"llama3", "qwen25", "gemma2"}
	if testing.Short() {
		families = families[1:2]
	}
	for _, family := range families {
		bpe, err := tokenize.Load(testdata.Path(t, family, "tokens", family))
		must(t, err)
		in := map[uint32]int{}
		count := func(text string) {
			ids, err := bpe.Encode(t.Context(), nil, text, false)
			must(t, err)
			seen := map[uint32]bool{}
			for _, id := range ids {
				if !seen[id] {
					seen[id] = true
					in[id]++
				}
			}
		}
		for _, text := range texts {
			count(text)
		}
		common := map[uint32]int{}
		for id, n := range in {
			if n >= len(texts)/10 {
				common[id] = n
			}
		}
		clear(in)
		for _, text := range remote.JudgeTexts() {
			count(text)
		}
		missing := 0
		for id := range common {
			if in[id] == 0 {
				missing++
				t.Errorf("%s: token %d, of %d texts, is in none of the Judge's", family, id, common[id])
			}
		}
		t.Logf("%s: %d tokens are in a tenth of all texts, %d of them are not compared", family, len(common), missing)
	}
}

// judgeFaults are faults of an engine. Each spoils the answer to one request.
var judgeFaults = []struct {
	name string
	do   func(w http.ResponseWriter, r *http.Request)
}{
	{"stall", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
	{"502", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }},
	{"busy", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }},
	{"too many", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }},
	{"forbidden", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }},
	{"other model", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"message":"The model does not exist."}}`)
	}},
	{"refusal", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }},
	{"cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"count":3,"tokens":[1,2,`)
	}},
	{"cut, and no length", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"count":3,"tokens":[1,2`) }},
	{"fewer", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"count":3,"tokens":[1,2]}`) }},
	{"nothing", func(http.ResponseWriter, *http.Request) {}},
	{"reset", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	{"one wrong answer", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[]}`)
			return
		}
		fmt.Fprint(w, `{"count":2,"tokens":[1,2]}`)
	}},
}

var judgeSchedules = flag.Int("judge.n", 150, "schedules of failing engines; long form: 1000")

// A failing engine causes no verdict. Each schedule mixes right answers and faults of one kind.
// Some checks pass.
func TestFailingEngines(t *testing.T) {
	right, m := tiny(t, nil), templateOf(t, template)
	played := make([]atomic.Int64, len(judgeFaults))
	var passed, failed atomic.Int64
	var all sync.WaitGroup
	const workers = 8
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < *judgeSchedules; i += workers {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				often, kind := 1+random.IntN(40), i%len(judgeFaults)
				var mu sync.Mutex
				var last bool
				e := &judgedEngine{t: right, m: m, fault: func(w http.ResponseWriter, r *http.Request, _ int64) bool {
					mu.Lock()
					// A repeated wrong answer would rightly cause a verdict.
					last = random.IntN(often) == 0 && (!last || judgeFaults[kind].name != "one wrong answer")
					now := last
					mu.Unlock()
					if now {
						played[kind].Add(1)
						judgeFaults[kind].do(w, r)
					}
					return now
				}}
				s := httptest.NewServer(e)
				engine := &remote.Engine{URLs: []string{s.URL}, Model: judged, Timeout: time.Minute}
				if judgeFaults[kind].name == "stall" {
					engine.Timeout, often = newTries, 1+often%3
				}
				j := &remote.Judge{Engine: engine, OnVerdict: func(err error) { t.Errorf("schedule %d, %s: %v", i, judgeFaults[kind].name, err) }}
				if err := j.Check(t.Context(), right, m); errors.Is(err, remote.ErrCheckFailed) || j.Verdict() != nil {
					t.Errorf("schedule %d, %s: a verdict: %v", i, judgeFaults[kind].name, err)
				} else if err != nil {
					failed.Add(1)
				} else {
					passed.Add(1)
				}
				engine.Close()
				s.CloseClientConnections()
				s.Close()
			}
		})
	}
	all.Wait()
	for k := range played {
		if played[k].Load() < int64(*judgeSchedules/50) {
			t.Errorf("%s: %d times", judgeFaults[k].name, played[k].Load())
		}
	}
	if min(passed.Load(), failed.Load()) < int64(*judgeSchedules/20) {
		t.Errorf("%d checks passed, %d failed", passed.Load(), failed.Load())
	}
}

// A model without a tokenizer stays without one, and there is nothing to check.
func TestJudgeWithoutATokenizer(t *testing.T) {
	j, _ := judgeOf(t, &judgedEngine{t: tiny(t, nil)})
	if got := j.Tokenizer(nil); got != nil {
		t.Errorf("%T", got)
	}
	if err := j.Check(t.Context(), nil, nil); err == nil || errors.Is(err, remote.ErrCheckFailed) || j.Verdict() != nil {
		t.Error(err)
	}
}

// An engine that answers for any model counts only if it lists the model under check.
func TestVerdictNeedsTheModel(t *testing.T) {
	for _, c := range []struct {
		models  string
		status  int
		verdict bool
	}{
		{`{"data":[{"id":"ships"}]}`, 200, false}, {`{}`, 200, false}, {`nothing`, 200, false}, {``, 500, false},
		{`{"data":[{"id":"ships"},{"id":"boats"}]}`, 200, true}, {`{"detail":"Not Found"}`, 404, true},
	} {
		j, _ := judgeOf(t, &judgedEngine{t: tiny(t, nil), fault: func(w http.ResponseWriter, r *http.Request, _ int64) bool {
			if r.URL.Path != "/v1/models" {
				return false
			}
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.models)
			return true
		}})
		err := j.Check(t.Context(), tiny(t, withoutMerge(0)), nil)
		if err == nil || errors.Is(err, remote.ErrCheckFailed) != c.verdict || (j.Verdict() != nil) != c.verdict {
			t.Errorf("%d %s: %v", c.status, c.models, err)
		}
	}
}

// A check that began before Reset does not affect later ones. Only one of concurrent checks
// reports.
func TestChecksBesideEachOther(t *testing.T) {
	wrong := tiny(t, withoutMerge(0))
	var j *remote.Judge
	e := &judgedEngine{t: tiny(t, nil), fault: func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		if r.URL.Path == "/v1/models" {
			j.Reset()
		}
		return false
	}}
	j, told := judgeOf(t, e)
	if err := j.Check(t.Context(), wrong, nil); err == nil || errors.Is(err, remote.ErrCheckFailed) || j.Verdict() != nil || len(*told) > 0 {
		t.Errorf("a check during Reset: %v", err)
	}
	j, told = judgeOf(t, &judgedEngine{t: tiny(t, nil)})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := j.Check(t.Context(), wrong, nil); err == nil || !errors.Is(err, remote.ErrCheckFailed) || err != j.Verdict() {
				t.Errorf("a check beside others: %v", err)
			}
		})
	}
	all.Wait()
	if len(*told) != 1 {
		t.Errorf("reported %d times", len(*told))
	}
}

// A cancelled check leaves nothing behind.
func TestJudgeLeavesNothing(t *testing.T) {
	right := tiny(t, nil)
	began := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server then notices the end of the connection
		began <- struct{}{}
		<-r.Context().Done()
	}))
	defer s.Close()
	runtime.GC()
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		engine := &remote.Engine{URLs: []string{s.URL}, Model: judged}
		j := &remote.Judge{Engine: engine}
		done := make(chan error)
		go func() { done <- j.Check(ctx, right, nil) }()
		<-began
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || j.Verdict() != nil {
			t.Errorf("given up: %v", err)
		}
		engine.Close()
		if err := j.Check(t.Context(), right, nil); err == nil || j.Verdict() != nil {
			t.Errorf("a closed Engine: %v", err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines are left, of %d before", n, before)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
