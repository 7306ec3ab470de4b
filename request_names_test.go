package kvindex_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// aliases is a resolver from names to a base model and an adapter.
type aliases map[string][2]string

func (a aliases) resolve(model string) (base, adapter string) {
	if of, ok := a[model]; ok {
		return of[0], of[1]
	}
	return model, ""
}

// ways are all forms of a request for a text.
func ways(t *testing.T, ix *kvindex.Indexer, model, text string) map[string]kvindex.Request {
	t.Helper()
	quote := func(v any) string {
		b, err := json.Marshal(v)
		must(t, err)
		return string(b)
	}
	body := func(rest string) []byte { return []byte(`{"model": ` + quote(model) + `, ` + rest + `}`) }
	messages := `"messages": [{"role": "user", "content": "how do boats come and go?"}]`
	pods := []string{"a", "b", "z"}
	const nobodys = `{"model": "not looked at", `
	return map[string]kvindex.Request{
		"tokens":              {Model: model, Tokens: bytesOf(text)},
		"text":                {Model: model, Prompt: text, Rendered: true},
		"pods":                {Model: model, Prompt: text, Rendered: true, Pods: pods},
		"candidates":          {Candidates: ix.Candidates(model, nil), Tokens: bytesOf(text)},
		"candidates, pods":    {Candidates: ix.Candidates(model, pods), Model: model, Prompt: text, Rendered: true},
		"chat":                {Body: body(messages)},
		"chat, another model": {Model: model, Body: []byte(nobodys + messages + `}`)},
		"chat, candidates":    {Candidates: ix.Candidates(model, nil), Body: []byte(nobodys + messages + `}`)},
		"completion":          {Body: body(`"add_special_tokens": false, "prompt": ` + quote(text))},
		"completion of ids":   {Pods: pods, Body: body(`"prompt": ` + quote(bytesOf(text)))},
	}
}

// namesSituation has models m and n, pods a and b, and adapters of m that events have
// named: sql and two.
func namesSituation(t *testing.T, text string, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	template, err := chat.New(turns, nil, chat.Options{})
	must(t, err)
	m := kvindex.Model{Tokenizer: words{}, Chat: template}
	ix := open(t, append(opts, kvindex.WithModels(func(_ context.Context, name string) (kvindex.Model, error) {
		if !slices.Contains([]string{"m", "n", "nobody", "sql", "two"}, name) {
			t.Errorf("a tokenizer of %q", name)
		}
		return m, nil
	}))...)
	for i, c := range []struct {
		pod, model, adapter string
		blocks              int
	}{{"a", "m", "", 1}, {"b", "m", "", 2}, {"b", "m", "sql", 1}, {"a", "m", "two", 2}, {"a", "n", "", 3}} {
		s := fakeengine.Prompt{Tokens: bytesOf(text), Size: 16, Hash: uint64(i+1) << 32}.Stored(0, c.blocks)
		s.Adapter = c.adapter
		must(t, ix.Ingest(c.pod, c.model, fakeengine.Payload(1, 0, s)))
	}
	return ix
}

const namesText = "<user>how do boats come and go?</user><assistant>" // three blocks

// A name is scored as its model and adapter in each form of request.
func TestResolver(t *testing.T) {
	meanings := aliases{
		"alias": {"m", ""},
		"m-sql": {"m", "sql"},
		"m":     {"n", ""}, // an alias is resolved once
		"sql":   {"n", ""}, // events name it as an adapter of m
		"quiet": {"m", "quiet"},
		"gone":  {"nobody", ""},
		"odd":   {"sql", ""}, // final: no adapter of any event
		"two":   {"two", "sql"},
	}
	var told []kvindex.ScoreReport
	var asked []string
	ix := namesSituation(t, namesText, kvindex.WithResolver(func(model string) (string, string) {
		asked = append(asked, model)
		return meanings.resolve(model)
	}), kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { told = append(told, s) }}))
	for _, c := range []struct {
		name, base, adapter string
		held                string // pods and their blocks
		is                  error  // wrapped by Answer.Unknown
		says                string // in this order, separated by |
	}{
		{"alias", "m", "", "a1 b2", nil, ""},
		{"m-sql", "m", "sql", "b1", nil, ""},
		{"m", "n", "", "a3", nil, ""},
		{"sql", "n", "", "a3", nil, ""},
		{"n", "n", "", "a3", nil, ""},
		{"quiet", "m", "quiet", "", kvindex.ErrUnknownAdapter, `"quiet"|"m"`},
		{"gone", "nobody", "", "", kvindex.ErrUnknownModel, `"nobody"|"m" "n"|WithResolver returned this name for "gone"`},
		{"odd", "sql", "", "", kvindex.ErrUnknownModel, `"sql"|"m" "n"|WithResolver returned this name for "odd"`},
		{"two", "two", "sql", "", kvindex.ErrUnknownModel, `"two"|"m" "n"`},
		{"nobody", "nobody", "", "", kvindex.ErrUnknownModel, `"nobody"|"m" "n"|WithResolver`},
	} {
		for way, r := range ways(t, ix, c.name, namesText) {
			what := c.name + ", " + way
			told, asked = nil, nil
			var a kvindex.Answer
			if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			if !slices.Equal(asked, []string{c.name}) {
				t.Errorf("%s: resolved %q", what, asked)
			}
			if got := heldBy(a.Pods); got != c.held || a.PromptTokens != len(namesText) {
				t.Errorf("%s: %d tokens, held: %q, want %q", what, a.PromptTokens, got, c.held)
			}
			says(t, what, a.Unknown, c.is, c.says)
			if len(told) != 1 || told[0].Model != c.base || told[0].Adapter != c.adapter {
				t.Errorf("%s: the hook received %+v", what, told)
			}
			e := explain(t, ix, r, "b")
			if e.Model != c.base || e.Adapter != c.adapter {
				t.Errorf("%s: explained as %q and %q", what, e.Model, e.Adapter)
			}
		}
	}
}

// A function without an answer is an error that names the model; nothing is scored.
func TestResolverWithoutBase(t *testing.T) {
	var told []kvindex.ScoreReport
	ix := namesSituation(t, namesText, kvindex.WithResolver(aliases{"bad": {"", ""}, "bad-sql": {"", "sql"}, "m": {"", ""}, "sql": {"", ""}}.resolve),
		kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { told = append(told, s) }}))
	for _, name := range []string{"bad", "bad-sql", "m", "sql"} {
		for way, r := range ways(t, ix, name, namesText) {
			what := name + ", " + way
			told = nil
			a := kvindex.Answer{Pods: make([]kvindex.PodScore, 2)}
			err := ix.ScoreRequest(ctx, &r, &a)
			says(t, what, err, nil, `kvindex: WithResolver: model "`+name+`": the base is empty`)
			if errors.Is(err, kvindex.ErrRequest) || len(a.Pods) > 0 || a.Unknown != nil || len(told) != 1 || told[0].Outcome != "failed" || told[0].Model != name {
				t.Errorf("%s: %v, %+v, the hook received %+v", what, err, a, told)
			}
			if e := explain(t, ix, r, "b"); e.Cause != "error" {
				t.Errorf("%s: %v", what, e)
			}
		}
	}
}

// says checks that err wraps is and has the parts in its text, in order.
func says(t *testing.T, what string, err, is error, parts string) {
	t.Helper()
	if !errors.Is(err, is) && is != nil || is == nil && parts == "" && err != nil {
		t.Errorf("%s: %v, want %v", what, err, is)
	}
	rest := textOf(err)
	for part := range strings.SplitSeq(parts, "|") {
		_, behind, ok := strings.Cut(rest, part)
		if rest = behind; !ok {
			t.Errorf("%s: nothing of %q in %q", what, part, textOf(err))
		}
	}
}

// The function is called once for each score, without locks; for Candidates, after each change of
// pods or adapters.
func TestResolverIsAskedOnce(t *testing.T) {
	var ix *kvindex.Indexer
	asked, pods := 0, 0
	come := func() {
		pods++
		ingest(t, ix, fmt.Sprint("new", pods), fakeengine.NewPrompt(uint64(9+pods), 16, 1).Stored(0, 1))
	}
	ix = namesSituation(t, namesText, kvindex.WithResolver(func(model string) (string, string) {
		if asked++; model == "busy" {
			come()
			ix.Pods(nil)
		}
		return "m", "sql"
	}))
	see := func(when string, r kvindex.Request, want int) {
		t.Helper()
		asked = 0
		r.Tokens = bytesOf(namesText)
		if err := ix.ScoreRequest(ctx, &r, new(kvindex.Answer)); err != nil || asked != want {
			t.Errorf("%s: %d calls, want %d; %v", when, asked, want, err)
		}
	}
	see("a request", kvindex.Request{Model: "x"}, 1)
	see("the same", kvindex.Request{Model: "x"}, 1)
	see("with an adapter", kvindex.Request{Model: "x", Adapter: "y"}, 1)
	see("with a lock", kvindex.Request{Model: "busy"}, 1)
	see("with pods and a lock", kvindex.Request{Model: "busy", Pods: []string{"a"}}, 1)
	c := ix.Candidates("x", nil)
	see("candidates", kvindex.Request{Candidates: c}, 1)
	see("again", kvindex.Request{Candidates: c}, 0)
	see("with an adapter", kvindex.Request{Candidates: c, Adapter: "y"}, 0)
	come()
	see("a pod has come", kvindex.Request{Candidates: c, Adapter: "y"}, 1)
	see("again", kvindex.Request{Candidates: c}, 0)
	see("with a lock", kvindex.Request{Candidates: ix.Candidates("busy", nil)}, 1)
	r := kvindex.Request{Model: "x"}
	if err := ix.ScoreRequest(ctx, &r, new(kvindex.Answer)); !errors.Is(err, kvindex.ErrRequest) || asked != 1 {
		t.Errorf("a request without a prompt: %v, %d calls", err, asked)
	}
}

// fleetOf has an Indexer whose pods publish names, and one whose pods publish numbers and whose
// requests use aliases.
type fleetOf struct {
	*testing.T
	r              *rand.Rand
	plain, aliased *kvindex.Indexer
	numbers        map[string]map[string]string // by pod, if it publishes no names
	adapters       []string
}

// store stores blocks of a prompt on a pod.
func (f *fleetOf) store(pod, model, adapter, salt string, p fakeengine.Prompt, blocks int) {
	number := 0
	for n, name := range f.numbers[pod] {
		if name == adapter {
			fmt.Sscan(n, &number)
		}
	}
	event := func(numbered bool) *fakeengine.Stored {
		s := p.Stored(0, blocks)
		key := enginehash.Text(adapter)
		if s.Adapter = adapter; numbered {
			s.Adapter, s.AdapterID, key = "", number, enginehash.Int(int64(number))
		}
		s.Extra = make([][]enginehash.Extra, blocks)
		for i := range s.Extra {
			if adapter != "" {
				s.Extra[i] = append(s.Extra[i], key)
			}
			if salt != "" && i == 0 {
				s.Extra[i] = append(s.Extra[i], enginehash.Text(salt))
			}
		}
		return s
	}
	must(f, f.plain.Ingest(pod, model, fakeengine.Payload(1, 0, event(false))))
	must(f, f.aliased.Ingest(pod, model, fakeengine.Payload(1, 0, event(number > 0))))
}

// TestNamesAgainstPlain: requests by alias, in a fleet where some pods publish adapter numbers,
// have the same answers as requests by base and adapter in a fleet that publishes names.
func TestNamesAgainstPlain(t *testing.T) {
	f := &fleetOf{T: t, r: rand.New(rand.NewPCG(18, 6)), adapters: []string{"sql", "chat", "law"}, numbers: map[string]map[string]string{
		"p1": {"1": "sql", "2": "chat", "3": "law"},
		"p2": {"7": "law", "12": "sql", "3": "chat"},
	}}
	names := aliases{
		"x": {"m", ""}, "y": {"n", ""}, "x-sql": {"m", "sql"}, "y-sql": {"n", "sql"}, "x-chat": {"m", "chat"},
		"law": {"m", "law"}, "m": {"n", ""}, "z": {"nobody", ""}, "z-sql": {"nobody", "sql"}, "x-none": {"m", "none"},
	}
	f.plain = open(t, kvindex.WithKeySeed(testSeed), tokenizes("m"), tokenizes("n"))
	f.aliased = open(t, kvindex.WithKeySeed(testSeed), tokenizes("m"), tokenizes("n"), kvindex.WithResolver(names.resolve),
		kvindex.WithProfile(func(pod, _ string) kvindex.Profile { return kvindex.Profile{Adapters: f.numbers[pod]} }))
	pods := []string{"p0", "p1", "p2", "p3", "p4"}
	salts := []string{"", "pepper"}
	asked := append(slices.Sorted(maps.Keys(names)), "n", "chat", "nowhere")
	candidates := make(map[string]*kvindex.Candidates)
	fired := make(map[string]int)
	for round := range 8000 {
		n := f.r.IntN(4)
		p := fakeengine.NewPrompt(uint64(1+n), 16, 6)
		if round%20 == 0 {
			adapter := append(f.adapters, "")[f.r.IntN(4)]
			salt := salts[f.r.IntN(2)]
			s := p
			s.Hash += uint64(len(adapter)*2+len(salt)) << 20 // each scope has its own hashes
			f.store(pods[f.r.IntN(5)], []string{"m", "n"}[f.r.IntN(2)], adapter, salt, s, 1+f.r.IntN(6))
		}
		if round%500 == 499 {
			pod := pods[f.r.IntN(5)]
			must(t, errors.Join(f.plain.RemovePod(pod), f.aliased.RemovePod(pod)))
		}
		name := asked[f.r.IntN(len(asked))]
		r := kvindex.Request{Model: name, Salt: salts[f.r.IntN(2)], Tokens: p.Tokens[:1+f.r.IntN(len(p.Tokens))], Top: f.r.IntN(4)}
		if f.r.IntN(4) == 0 {
			r.Adapter = f.adapters[f.r.IntN(3)]
		}
		few := f.r.IntN(2) == 0
		if few {
			r.Pods = []string{"p3", "p1", "p9"}
		}
		want := r
		base, adapter := names.resolve(name)
		want.Model = base
		if r.Adapter == "" {
			want.Adapter = adapter
		}
		way := "a request"
		switch f.r.IntN(3) {
		case 0:
			id := fmt.Sprint(name, few)
			if candidates[id] == nil {
				candidates[id] = f.aliased.Candidates(name, r.Pods)
			}
			way, r.Model, r.Pods, r.Candidates = "candidates", "", nil, candidates[id]
		case 1:
			body, err := json.Marshal(map[string]any{"model": name, "prompt": r.Tokens})
			must(t, err)
			way, r.Model, r.Tokens, r.Body = "a body", "", nil, body
		}
		var a, b kvindex.Answer
		errA, errB := f.plain.ScoreRequest(ctx, &want, &a), f.aliased.ScoreRequest(ctx, &r, &b)
		if textOf(errA) != textOf(errB) || !slices.Equal(a.Pods, b.Pods) || a.PromptTokens != b.PromptTokens || causeOf(a.Unknown) != causeOf(b.Unknown) {
			t.Fatalf("round %d, %s for %q, adapter %q:\n%+v, %v\n%+v, %v", round, way, name, r.Adapter, b, errB, a, errA)
		}
		fired[way]++
		if a.Unknown != nil {
			fired[causeOf(a.Unknown).Error()]++
		}
		if errA != nil {
			fired["an adapter of two models"]++
		} else if len(a.Pods) > 0 && a.Pods[0].CachedTokens > 0 {
			held := "held for an alias"
			if base == name {
				held = "held for a name that is not known"
			}
			if want.Adapter != "" {
				held += " with an adapter"
				if f.numbers[a.Pods[0].Pod] != nil {
					fired["held for an adapter that has a number"]++
				}
			}
			fired[held]++
		}
		if round%10 > 0 || errA != nil {
			continue
		}
		pod := pods[f.r.IntN(5)]
		x, y := explain(t, f.plain, want, pod), explain(t, f.aliased, r, pod)
		if x.Cause == "unknown_model" { // the request's name is in these
			x.Err, y.Err, x.Why, y.Why = nil, nil, "", ""
		}
		if fmt.Sprintf("%+v", x) != fmt.Sprintf("%+v", y) {
			t.Fatalf("round %d, %s for %q: explained as\n%+v\nwant\n%+v", round, way, name, y, x)
		}
		fired["explained"]++
	}
	for _, pod := range pods {
		adaptersOf := func(ix *kvindex.Indexer) (of []string) {
			for _, info := range ix.Pods(nil) {
				if info.Pod == pod {
					of = append(of, info.Model, fmt.Sprint(info.Adapters))
				}
			}
			return of
		}
		if x, y := adaptersOf(f.plain), adaptersOf(f.aliased); !slices.Equal(x, y) {
			t.Errorf("pod %s: adapters %q, want %q", pod, y, x)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(fired)) {
		t.Logf("%5d %s", fired[what], what)
		if fired[what] < 20 {
			t.Errorf("only %d %s", fired[what], what)
		}
	}
	if len(fired) < 12 {
		t.Errorf("only %d things happened", len(fired))
	}
}

// causeOf returns which part of a name is unknown.
func causeOf(err error) error {
	for _, is := range []error{kvindex.ErrUnknownModel, kvindex.ErrUnknownAdapter} {
		if errors.Is(err, is) {
			return is
		}
	}
	return err
}

// An adapter is found by name on pods that publish its number and on pods that publish its name.
func TestAdapterNumbers(t *testing.T) {
	numbers := map[string]string{"1": "sql", "2": "chat"}
	ix := open(t, tokenizes("m"), kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		if pod == "old" {
			return kvindex.Profile{Adapters: numbers}
		}
		return kvindex.Profile{}
	}))
	p := fakeengine.NewPrompt(1, 16, 6)
	hash := uint64(1)
	// store publishes blocks in two events, each block with these extra keys.
	store := func(pod, name string, number, blocks int, extra ...enginehash.Extra) {
		t.Helper()
		hash++
		q := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: hash << 32}
		for _, of := range [][2]int{{0, 1}, {1, blocks}} {
			s := q.Stored(of[0], of[1])
			s.Adapter, s.AdapterID = name, number
			for range s.Hashes {
				s.Extra = append(s.Extra, extra)
			}
			ingest(t, ix, pod, s)
		}
	}
	store("old", "", 1, 2)
	numbers["1"], numbers["2"] = "changed", "changed" // the Indexer has a copy
	store("new", "sql", 1, 3, enginehash.Text("sql"))
	store("old", "", 2, 4, enginehash.Int(2))
	store("old", "", 3, 5)                            // without a name
	store("old", "", 1, 6, enginehash.Text("sql"))    // an engine that hashes names and publishes numbers
	store("named", "7", 0, 2, enginehash.Text("7"))   // a name like a number
	store("salted", "", 1, 2, enginehash.Text("sql")) // no profile: number 1, with a salt
	old := func() kvindex.PodInfo {
		all := ix.Pods(nil)
		return all[slices.IndexFunc(all, func(info kvindex.PodInfo) bool { return info.Pod == "old" })]
	}
	clear(old().Profile.Adapters) // the returned profile is a copy too
	if got, want := old(), []string{"3", "chat", "sql"}; !slices.Equal(got.Adapters, want) || !maps.Equal(got.Profile.Adapters, map[string]string{"1": "sql", "2": "chat"}) {
		t.Errorf("adapters %q, profile %v", got.Adapters, got.Profile.Adapters)
	}
	for _, c := range []struct {
		adapter, salt string
		held          string
	}{
		{"sql", "", "new3 old6"},
		{"chat", "", "old4"},
		{"3", "", "old5"},
		{"7", "", "named2"},
		{"2", "", ""},
		{"1", "", ""},
		{"1", "sql", "salted1"},
		{"changed", "", ""},
		{"", "", ""},
	} {
		requests := []kvindex.Request{{Model: "m", Adapter: c.adapter, Salt: c.salt}}
		if c.adapter != "" && c.held != "" {
			requests = append(requests, kvindex.Request{Model: c.adapter, Salt: c.salt})
		}
		for _, r := range requests {
			r.Tokens = p.Tokens
			if got := heldBy(score(t, ix, r)); got != c.held {
				t.Errorf("model %q, adapter %q, salt %q: held by %q, want %q", r.Model, r.Adapter, c.salt, got, c.held)
			}
		}
	}
	chat := kvindex.Request{Model: "m", Adapter: "chat", Tokens: fakeengine.NewPrompt(2, 16, 2).Tokens}
	s := fakeengine.NewPrompt(2, 16, 2).Stored(0, 1)
	s.AdapterID, s.Extra = 2, [][]enginehash.Extra{{enginehash.Int(2), enginehash.Text("pepper")}}
	ingest(t, ix, "old", s)
	if e := explain(t, ix, chat, "old"); e.Cause != "other_salt" {
		t.Errorf("%v", e)
	}
	if e := explain(t, ix, kvindex.Request{Model: "m", Adapter: "sql", Salt: "pepper", Tokens: chat.Tokens}, "old"); e.Cause != "other_adapter" || !strings.Contains(e.Detail, `"chat"`) {
		t.Errorf("%v", e)
	}
}

// heldBy shows the pods that hold something, and their blocks.
func heldBy(scores []kvindex.PodScore) string {
	var held []string
	for _, s := range scores {
		if s.MatchedBlocks > 0 {
			held = append(held, fmt.Sprint(s.Pod, s.MatchedBlocks))
		}
	}
	slices.Sort(held)
	return strings.Join(held, " ")
}

// Candidates without a model serve each model, as Request.Pods do.
func TestCandidatesOfAnyModel(t *testing.T) {
	ix := open(t, kvindex.WithModel("text", kvindex.Model{Tokenizer: words{}}))
	p := fakeengine.NewPrompt(1, 16, 4)
	for pod, model := range map[string]string{"a": "m", "b": "m2"} {
		must(t, ix.Ingest(pod, model, fakeengine.Payload(1, 0, p.Stored(0, 2))))
	}
	pods := []string{"a", "b", "c"}
	any := ix.Candidates("", pods)
	for i := range 200 {
		for _, model := range []string{"m", "m2", "nobody's", fmt.Sprint("name", i)} {
			var want, got kvindex.Answer
			must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: p.Tokens, Pods: pods}, &want))
			must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: p.Tokens, Candidates: any}, &got))
			if !slices.Equal(got.Pods, want.Pods) || fmt.Sprint(got.Unknown) != fmt.Sprint(want.Unknown) {
				t.Fatalf("%s: got %v %v, want %v %v", model, got.Pods, got.Unknown, want.Pods, want.Unknown)
			}
		}
	}
	body := kvindex.Request{Body: []byte(`{"model": "m2", "prompt": [1, 2, 3]}`), Candidates: any}
	if err := ix.ScoreRequest(ctx, &body, new(kvindex.Answer)); err != nil {
		t.Error(err)
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Tokens: p.Tokens, Candidates: any}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrRequest) {
		t.Errorf("no model: %v", err)
	}
	if e, err := ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Candidates: any}, "d"); err != nil || e.Model != "m" {
		t.Errorf("Explain: %v %v", e, err)
	}
}

// A pod's adapters are found by name until it is removed, and many adapters of one pod do not
// displace another's.
func TestAdaptersByName(t *testing.T) {
	ix := open(t, kvindex.WithModel("taken", kvindex.Model{Tokenizer: words{}}))
	p := fakeengine.NewPrompt(1, 16, 1)
	hash := uint64(0)
	adapter := func(pod, model, name string) {
		hash++
		s := fakeengine.Prompt{Tokens: p.Tokens, Size: 16, Hash: hash << 32}.Stored(0, 1)
		s.Adapter = name
		must(t, ix.Ingest(pod, model, fakeengine.Payload(1, 0, s)))
	}
	for i := range kvindex.MaxAdapters + 2 {
		adapter("evil", "m2", fmt.Sprint("a", i))
	}
	adapter("evil", "m2", "sql")
	adapter("evil", "m2", "taken")
	adapter("good", "m", "sql")
	find := func(name string, pods ...string) int {
		return score(t, ix, kvindex.Request{Model: name, Tokens: p.Tokens, Pods: pods})[0].MatchedBlocks
	}
	if find("sql", "good") != 1 || find("a5", "evil") != 1 || find("taken", "evil") != 0 {
		t.Error("adapters are not found by name")
	}
	if n := ix.Stats().Adapters; n != 4 {
		t.Errorf("%d adapters too many", n)
	}
	must(t, ix.RemovePod("evil"))
	if s := score(t, ix, kvindex.Request{Model: "sql", Tokens: p.Tokens}); len(s) != 1 || s[0].Pod != "good" {
		t.Errorf("%+v", s)
	}
}

// TestCandidatesOfAnother: only those that the Indexer has made can be scored and explained.
func TestCandidatesOfAnother(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	ix, other := open(t), open(t)
	for _, x := range []*kvindex.Indexer{ix, other} {
		ingest(t, x, "a", p.Stored(0, 1))
	}
	for rank := range 2 {
		sends(t, other, p.Tokens, rank)
	}
	sends(t, ix, p.Tokens, 0)
	for name, c := range map[string]*kvindex.Candidates{"the zero value": {}, "another Indexer's": other.Candidates("m", nil)} {
		var a kvindex.Answer
		r := kvindex.Request{Model: "m", Tokens: p.Tokens, Candidates: c}
		if err := ix.ScoreRequest(ctx, &r, &a); !errors.Is(err, kvindex.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
		if e, err := ix.Explain(ctx, &r, "a"); err != nil || !errors.Is(e.Err, kvindex.ErrRequest) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}
