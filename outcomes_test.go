package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// errTokenizer is a tokenizer that fails for all texts.
type errTokenizer struct{ err error }

func (f errTokenizer) Encode(context.Context, []uint32, string, bool) ([]uint32, error) {
	return nil, f.err
}

// TestMistakes checks the report of each mistake in a request or in its setup: the error or
// Answer.Unknown names cause and cure, and the outcome is counted and passed to the hook.
func TestMistakes(t *testing.T) {
	var told []kvindex.ScoreReport
	template, err := chat.New(turns+`{% if tools %}{{ raise_exception("no tools here") }}{% endif %}`, nil, chat.Options{})
	must(t, err)
	missing := fmt.Errorf("no folder of it: %w", fs.ErrNotExist)
	with := ctx
	ix := open(t,
		kvindex.WithHooks(kvindex.Hooks{Scored: func(got context.Context, s kvindex.ScoreReport) {
			if got != with {
				t.Errorf("the hook got %v, want %v", got, with)
			}
			told = append(told, s)
		}}),
		kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: template}),
		kvindex.WithModels(func(_ context.Context, model string) (kvindex.Model, error) {
			switch model {
			case "busy":
				return kvindex.Model{Tokenizer: errTokenizer{fmt.Errorf("the pool: %w", tokenize.ErrBusy)}}, nil
			case "slow":
				return kvindex.Model{Tokenizer: errTokenizer{context.DeadlineExceeded}}, nil
			case "short":
				return kvindex.Model{Tokenizer: errTokenizer{tokenize.ErrTextTooLong}}, nil
			case "wordpiece":
				return kvindex.Model{Tokenizer: errTokenizer{tokenize.ErrUnsupported}}, nil
			case "program":
				return kvindex.Model{Tokenizer: words{}, ChatErr: fmt.Errorf("it is rendered otherwise: %w", chat.ErrUnsupported)}, nil
			case "lazy":
				return kvindex.Model{Tokenizer: errTokenizer{missing}, ChatErr: missing}, nil
			case "plain":
				return kvindex.Model{Tokenizer: words{}}, nil
			case "elsewhere", "m-nobody":
				return kvindex.Model{}, missing
			}
			return kvindex.Model{}, nil
		}))
	p := fakeengine.NewPrompt(1, 16, 1)
	for i, model := range []string{"m", "busy", "short", "wordpiece", "elsewhere", "lazy", "program", "plain", "no-text"} {
		s := p.Stored(0, 1)
		if i == 0 {
			s.Adapter = "sql"
		}
		must(t, ix.Ingest("pod", model, fakeengine.Payload(1, 0, s)))
	}
	const hello = `"messages": [{"role": "user", "content": "hello"}]`
	body := func(s string) []byte { return []byte(`{` + s + `}`) }
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		outcome string
		is      error // of the error, or of Answer.Unknown
		unknown bool
		says    string // in this order, separated by |
		r       kvindex.Request
	}{
		{"scored", nil, false, "", kvindex.Request{Model: "m", Tokens: p.Tokens}},
		{"scored", nil, false, "", kvindex.Request{Model: "sql", Tokens: p.Tokens}},
		{"scored", nil, false, "", kvindex.Request{Model: "m", Adapter: "sql", Prompt: "hello"}},
		{"unknown_model", kvindex.ErrUnknownModel, true, `"M"|"busy" "elsewhere" "lazy"|6 more|--served-model-name|adapter|Model`, kvindex.Request{Model: "M", Tokens: p.Tokens}},
		{"unknown_model", kvindex.ErrUnknownModel, true, `"M"|--served-model-name`, kvindex.Request{Model: "M", Adapter: "sql", Tokens: p.Tokens, Pods: []string{"pod"}}},
		{"unknown_model", kvindex.ErrUnknownModel, true, `"M"|--served-model-name`, kvindex.Request{Candidates: ix.Candidates("M", nil), Tokens: p.Tokens}},
		{"unknown_model", kvindex.ErrUnknownModel, true, `"sql"|adapter of "m"|no event of the pods in the request|Model to "m"`, kvindex.Request{Model: "sql", Tokens: p.Tokens, Pods: []string{"other"}}},
		{"unknown_model", kvindex.ErrNoTokenizer, false, `"M"|WithModel|unknown model|--served-model-name|adapter that no event has named yet|Model`, kvindex.Request{Model: "M", Prompt: "hello"}},
		{"unknown_model", kvindex.ErrNoTokenizer, false, `"M"|WithModel|unknown model|--served-model-name|adapter`, kvindex.Request{Body: body(`"model": "M", ` + hello)}},
		{"unknown_model", kvindex.ErrNoTokenizer, false, `"m-nobody"|no folder|unknown model|--served-model-name`, kvindex.Request{Model: "m-nobody", Prompt: "hello"}},
		{"unknown_adapter", kvindex.ErrUnknownAdapter, true, `"SQL"|"m"|1 others|no block of it was stored|another name`, kvindex.Request{Model: "m", Adapter: "SQL", Tokens: p.Tokens}},
		{"unknown_adapter", kvindex.ErrUnknownAdapter, true, `"SQL"|"m"`, kvindex.Request{Model: "m", Adapter: "SQL", Body: body(hello)}},
		{"no_tokenizer", kvindex.ErrNoTokenizer, false, `"no-text"|WithModel`, kvindex.Request{Model: "no-text", Prompt: "hello"}},
		{"no_tokenizer", kvindex.ErrNoTokenizer, false, `"elsewhere"|no folder of it`, kvindex.Request{Model: "elsewhere", Prompt: "hello"}},
		{"no_tokenizer", kvindex.ErrNoTokenizer, false, `"lazy"|no folder of it`, kvindex.Request{Model: "lazy", Prompt: "hello"}},
		{"no_tokenizer", kvindex.ErrNoTokenizer, false, `"no-text"|WithModel`, kvindex.Request{Model: "no-text", Body: body(hello)}},
		{"no_tokenizer", kvindex.ErrNoTokenizer, false, `"elsewhere"|no folder of it`, kvindex.Request{Model: "elsewhere", Body: body(hello)}},
		{"no_template", kvindex.ErrNoTemplate, false, `"plain"|no Chat|Rendered`, kvindex.Request{Model: "plain", Body: body(hello)}},
		{"no_template", kvindex.ErrNoTemplate, false, `"lazy"|no folder of it`, kvindex.Request{Model: "lazy", Body: body(hello)}},
		{"unsupported", chat.ErrUnsupported, false, `"program"|rendered otherwise`, kvindex.Request{Model: "program", Body: body(hello)}},
		{"unsupported", tokenize.ErrUnsupported, false, `"wordpiece"`, kvindex.Request{Model: "wordpiece", Prompt: "hello"}},
		{"not_scorable", chat.ErrNotScorable, false, "prompt", kvindex.Request{Body: body(`"model": "m", "prompt": ["a", "b"]`)}},
		{"refused", kvindex.ErrRequest, false, "no tools here", kvindex.Request{Body: body(`"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}], ` + hello)}},
		{"bad_request", kvindex.ErrRequest, false, "not JSON", kvindex.Request{Body: body("")[:1]}},
		{"bad_request", kvindex.ErrRequest, false, "the model is empty", kvindex.Request{Tokens: p.Tokens}},
		{"busy", tokenize.ErrBusy, false, `"busy"`, kvindex.Request{Model: "busy", Prompt: "hello"}},
		{"too_long", tokenize.ErrTextTooLong, false, `"short"`, kvindex.Request{Model: "short", Prompt: "hello"}},
		{"failed", nil, false, `"m": no such text`, kvindex.Request{Model: "m", Prompt: "fail"}},
		{"cancelled", context.Canceled, false, "", kvindex.Request{Model: "m", Top: -1}},
	} {
		told = nil
		before := ix.Stats().Scores
		with = ctx
		if c.outcome == "cancelled" {
			with = cancelled
		}
		a := kvindex.Answer{Unknown: errors.New("of the request before")}
		err := ix.ScoreRequest(with, &c.r, &a)
		what := fmt.Sprintf("%s %+v", c.outcome, c.r)
		said := err
		if c.unknown {
			said = a.Unknown
		}
		if c.unknown == (err != nil) && c.outcome != "scored" || c.unknown != (a.Unknown != nil) || !errors.Is(said, c.is) && c.outcome != "failed" {
			t.Errorf("%s: error %v, unknown %v", what, err, a.Unknown)
		}
		rest := fmt.Sprint(said)
		for _, word := range strings.Split(c.says, "|") {
			_, behind, ok := strings.Cut(rest, word)
			if rest = behind; !ok {
				t.Errorf("%s: %q is missing in %q", what, word, fmt.Sprint(said))
			}
		}
		if len(told) != 1 || told[0].Outcome != c.outcome || !errors.Is(told[0].Err, err) || told[0].PromptTokens != a.PromptTokens {
			t.Errorf("%s: the hook received %+v", what, told)
		}
		now := ix.Stats().Scores
		if before.Outcomes[c.outcome]++; !maps.Equal(now.Outcomes, before.Outcomes) {
			t.Errorf("%s: counted %v, want %v", what, now.Outcomes, before.Outcomes)
		}
		if got := now.PromptTokens - before.PromptTokens; got != uint64(a.PromptTokens) {
			t.Errorf("%s: %d prompt tokens, want %d", what, got, a.PromptTokens)
		}
	}
	with = ctx
	if _, err := ix.Score(ctx, "hello", "slow", nil); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "adapter") {
		t.Errorf("the error of a cut body is about names: %v", err)
	}
	err = ix.Ingest("pod", "m", []byte(`{"events": []}`))
	if !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), "looks like JSON: a batch is MessagePack") {
		t.Errorf("JSON for a batch: %v", err)
	}
}

// A name without events is unknown only if some pod could have published it.
func TestUnknownNames(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	c := ix.Candidates("m", nil)
	see := func(when string, q kvindex.Request, want error) {
		t.Helper()
		a := kvindex.Answer{}
		q.Tokens = p.Tokens
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil || !errors.Is(a.Unknown, want) || want == nil && a.Unknown != nil {
			t.Errorf("%s: %v, unknown: %v, want %v", when, err, a.Unknown, want)
		}
	}
	silence := func(pod, model string) {
		t.Helper()
		must(t, kvindex.Silence(ix, pod, model))
	}
	see("nobody is known", kvindex.Request{Candidates: c}, nil)
	silence("a", "other")
	see("another is awaited", kvindex.Request{Candidates: c}, kvindex.ErrUnknownModel)
	silence("b", "m")
	see("it is awaited", kvindex.Request{Candidates: c}, nil)
	see("nobody could tell of the adapter", kvindex.Request{Candidates: c, Adapter: "sql"}, nil)
	must(t, ix.RemovePod("b"))
	see("it has gone", kvindex.Request{Candidates: c}, kvindex.ErrUnknownModel)
	ingest(t, ix, "b", p.Stored(0, 1))
	see("it is heard", kvindex.Request{Candidates: c}, nil)
	see("nobody told of the adapter", kvindex.Request{Candidates: c, Adapter: "sql"}, kvindex.ErrUnknownAdapter)
	s := p.Stored(1, 2)
	s.Adapter = "sql"
	ingest(t, ix, "b", s)
	see("somebody told of it", kvindex.Request{Candidates: c, Adapter: "sql"}, nil)
	see("... and not the pods asked", kvindex.Request{Model: "m", Pods: []string{"z"}, Adapter: "sql"}, nil)

	// Without a tokenizer and pods, a name may still be an adapter's.
	err := open(t).ScoreRequest(ctx, &kvindex.Request{Model: "sql", Prompt: "x"}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrNoTokenizer) || !strings.Contains(err.Error(), "an adapter that no event has named yet: set Model to the base model") {
		t.Errorf("no tokenizer: %v", err)
	}
}

// A name is known if a pod holds its blocks, even if the Indexer has no record of the pod.
func TestAnOldIndexIsKnown(t *testing.T) {
	m := memory(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	ingest(t, open(t, kvindex.WithIndex(m)), "a", p.Stored(0, 2))
	ix := open(t, kvindex.WithIndex(struct{ index.Index }{m})) // without Describe
	must(t, ix.Ingest("b", "other", fakeengine.Payload(1, 0, p.Stored(0, 1))))
	for _, c := range []struct {
		tokens int
		pods   []string
		want   error
	}{{32, []string{"a"}, nil}, {32, nil, kvindex.ErrUnknownModel}, {15, []string{"a"}, kvindex.ErrUnknownModel}} {
		var a kvindex.Answer
		err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens[:c.tokens], Pods: c.pods}, &a)
		if err != nil || !errors.Is(a.Unknown, c.want) || c.want == nil && a.Unknown != nil {
			t.Errorf("%+v: %v, %+v", c, err, a)
		}
	}
}

// Each score is counted once, however many run at once and however long their prompts.
func TestScoresAreCounted(t *testing.T) {
	var tally kvindex.Tally
	var all sync.WaitGroup
	var want [4]uint64 // scores, prompt tokens, cached tokens, bad requests
	for _, c := range []struct {
		n       uint64
		outcome string
		prompt  int
	}{{70_000, "scored", 300}, {50, "scored", 1<<23 - 1}, {50, "scored", 1<<24 + 1}, {5000, "bad_request", 0}} {
		for range 2 {
			cached := max(c.prompt-1, 0)
			want[1] += c.n * uint64(c.prompt)
			want[2] += c.n * uint64(cached)
			if c.outcome == "scored" {
				want[0] += c.n
			} else {
				want[3] += c.n
			}
			all.Go(func() {
				for i := range c.n {
					tally.Count(c.outcome, c.prompt, cached)
					if i%1000 == 0 {
						tally.Sum()
					}
				}
			})
		}
	}
	all.Wait()
	if got := tally.Sum(); got != want {
		t.Errorf("got %d, want %d", got, want)
	}

	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	ingest(t, ix, "a", p.Stored(0, 1))
	for range 4 {
		all.Go(func() {
			for range 100 {
				if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens}, new(kvindex.Answer)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if s := ix.Stats().Scores; s.Outcomes["scored"] != 400 || s.PromptTokens != 400*32 || s.CachedTokens != 400*16 {
		t.Errorf("%+v", s)
	}
}

// sleepy takes a second for everything but the tokens.
type sleepy struct{}

func (sleepy) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	time.Sleep(time.Second)
	return words{}.Encode(ctx, dst, text, special)
}

// The hook receives the durations, and may score.
func TestScoredHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		template, err := chat.New(turns, nil, chat.Options{})
		must(t, err)
		var told []kvindex.ScoreReport
		var ix *kvindex.Indexer
		ix = open(t,
			kvindex.WithModels(func(context.Context, string) (kvindex.Model, error) {
				time.Sleep(3 * time.Second)
				return kvindex.Model{Tokenizer: sleepy{}, Chat: template}, nil
			}),
			kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) {
				if took := time.Since(s.Began); took != s.Render+s.Tokenize+s.Match {
					t.Errorf("%+v began %v ago", s, took)
				}
				s.Began = time.Time{}
				if told = append(told, s); len(told) == 1 {
					if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: bytesOf("tokens")}, new(kvindex.Answer)); err != nil {
						t.Error(err)
					}
				}
			}}))
		const text = "<user>how do boats come and go?</user><assistant>"
		s := fakeengine.Prompt{Tokens: bytesOf(text), Size: 16, Hash: 1}.Stored(0, 2)
		s.Adapter = "tuned"
		ingest(t, ix, "a", s)
		score(t, ix, kvindex.Request{Tokens: bytesOf("tokens")})
		var a kvindex.Answer
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Body: []byte(`{"model": "tuned", "messages": [{"role": "user", "content": "how do boats come and go?"}]}`)}, &a))
		score(t, ix, kvindex.Request{Tokens: bytesOf("tokens")})
		tokens := kvindex.ScoreReport{Outcome: "scored", Model: "m", PromptTokens: 6}
		want := []kvindex.ScoreReport{
			tokens, tokens, // the second one by the hook
			{Model: "m", Adapter: "tuned", Outcome: "scored", PromptTokens: len(text), CachedTokens: 32, PredictedTokens: 32, Tokenize: 4 * time.Second},
			tokens,
		}
		if !slices.Equal(told, want) {
			t.Errorf("the hook received %+v\nwant %+v", told, want)
		}
	})
}
