package kvindex_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const turns = `{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

// chats opens an Indexer with a chat template for model "m".
func chats(t *testing.T, template string) *kvindex.Indexer {
	t.Helper()
	m, err := chat.New(template, map[string]string{"bos_token": "\x01"}, chat.Options{})
	must(t, err)
	return open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: m}))
}

// holdAll makes a pod hold all blocks of a prompt.
func holdAll(t *testing.T, ix *kvindex.Indexer, pod string, hash uint64, tokens []uint32) int {
	t.Helper()
	p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: hash << 32}
	ingest(t, ix, pod, p.Stored(0, len(tokens)/16))
	return len(tokens) / 16
}

func bytesOf(text string) (tokens []uint32) {
	tokens, _ = words{}.Encode(ctx, nil, text, false)
	return tokens
}

func jsonOf(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}

// A chat, its text and its tokens are the same prompt.
func TestBodiesOfOnePrompt(t *testing.T) {
	ix := chats(t, turns)
	const text = "\x01<system>be short</system><user>how do boats come and go?</user><assistant>"
	n := holdAll(t, ix, "pod", 1, bytesOf(text))
	quoted := strconv.Quote(text)
	quoted = strings.ReplaceAll(quoted, `\x01`, `\u0001`)
	var ids []string
	for _, id := range bytesOf(text) {
		ids = append(ids, strconv.Itoa(int(id)))
	}
	const messages = `"messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": [{"type": "text", "text": "how do boats come and go?"}]}]`
	for name, r := range map[string]kvindex.Request{
		"chat":                {Body: []byte(`{"model": "m", ` + messages + `}`)},
		"chat, unknown field": {Body: []byte(`{"model": "m", "odd": {"messages": 1}, "stream": true, "temperature": 0.5, ` + messages + `}`)},
		"chat, model given":   {Model: "m", Body: []byte(`{"model": "alias", ` + messages + `}`)},
		"chat, no model":      {Model: "m", Body: []byte(`{` + messages + `}`)},
		"chat, candidates":    {Candidates: ix.Candidates("m", nil), Body: []byte(`{"model": "alias", ` + messages + `}`)},
		"Messages": {Path: "/v1/messages", Body: []byte(`{"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "be short"}],
			"messages": [{"role": "user", "content": [{"type": "text", "text": "how do boats come and go?"}]}]}`)},
		"Responses":           {Path: "/v1/responses", Body: []byte(`{"model": "m", "instructions": "be short", "input": "how do boats come and go?"}`)},
		"text":                {Model: "m", Prompt: text, Rendered: true},
		"tokens":              {Model: "m", Tokens: bytesOf(text)},
		"completion":          {Body: []byte(`{"model": "m", "add_special_tokens": false, "prompt": ` + quoted + `}`)},
		"completion with BOS": {Body: []byte(`{"model": "m", "prompt": ` + strings.Replace(quoted, `\u0001`, "", 1) + `}`)},
		"completion of ids":   {Body: []byte(`{"model": "m", "prompt": [` + strings.Join(ids, ",") + `]}`)},
		"ids of vLLM":         {Path: "/inference/v1/generate", Body: []byte(`{"model": "m", "token_ids": [` + strings.Join(ids, ",") + `], "sampling_params": {}}`)},
		"ids of SGLang":       {Path: "/generate", Model: "m", Body: []byte(`{"input_ids": [[` + strings.Join(ids, ",") + `]]}`)},
		"text of SGLang":      {Path: "/generate", Model: "m", Body: []byte(`{"text": ` + strings.Replace(quoted, `\u0001`, "", 1) + `}`)},
	} {
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(a.Pods) != 1 || a.Pods[0].MatchedBlocks != n || a.PromptTokens != len(text) {
			t.Errorf("%s: %+v, want %d blocks of %d tokens", name, a, n, len(text))
		}
		want := ""
		if name == "Messages" || name == "Responses" || strings.HasPrefix(name, "chat") {
			want = text
		}
		if a.Text != want || strings.Contains(jsonOf(a), "boats") {
			t.Errorf("%s: the text is %q, and in JSON %s", name, a.Text, jsonOf(a))
		}
	}
}

// The scope in a body leads to other keys, and the caller's scope takes precedence.
func TestBodyScopes(t *testing.T) {
	ix := chats(t, turns)
	const text = "\x01<user>how do boats come and go?</user><assistant>"
	blocks := len(text) / 16
	plain := fakeengine.Prompt{Tokens: bytesOf(text), Size: 16, Hash: 1 << 32}
	ingest(t, ix, "plain", plain.Stored(0, blocks))
	salted := fakeengine.Prompt{Tokens: bytesOf(text), Size: 16, Hash: 2 << 32}
	s := salted.Stored(0, blocks)
	s.Extra = make([][]enginehash.Extra, blocks)
	s.Extra[0] = []enginehash.Extra{enginehash.Text("pepper")}
	ingest(t, ix, "salted", s)
	adapted := fakeengine.Prompt{Tokens: bytesOf(text), Size: 16, Hash: 3 << 32}
	s = adapted.Stored(0, blocks)
	s.Adapter = "tuned"
	ingest(t, ix, "adapted", s)
	const messages = `"messages": [{"role": "user", "content": "how do boats come and go?"}]}`
	for name, c := range map[string]struct {
		r    kvindex.Request
		want string
	}{
		"plain":            {kvindex.Request{Body: []byte(`{"model": "m", ` + messages)}, "plain"},
		"salt":             {kvindex.Request{Body: []byte(`{"model": "m", "cache_salt": "pepper", ` + messages)}, "salted"},
		"salt beside ids":  {kvindex.Request{Body: []byte(`{"model": "m", "cache_salt": "pepper", "sampling_params": {}, "token_ids": ` + jsonOf(bytesOf(text)) + `}`)}, "salted"},
		"adapter of ids":   {kvindex.Request{Body: []byte(`{"model": "tuned", "sampling_params": {}, "token_ids": ` + jsonOf(bytesOf(text)) + `}`)}, "adapted"},
		"the caller's":     {kvindex.Request{Salt: "pepper", Body: []byte(`{"model": "m", "cache_salt": "sugar", ` + messages)}, "salted"},
		"adapter by name":  {kvindex.Request{Body: []byte(`{"model": "tuned", ` + messages)}, "adapted"},
		"adapter, caller":  {kvindex.Request{Adapter: "tuned", Body: []byte(`{"model": "m", ` + messages)}, "adapted"},
		"nobody's":         {kvindex.Request{Body: []byte(`{"model": "m", "cache_salt": "sugar", ` + messages)}, ""},
		"adapter and salt": {kvindex.Request{Salt: "pepper", Body: []byte(`{"model": "tuned", ` + messages)}, ""},
	} {
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &c.r, &a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var holders []string
		for _, s := range a.Pods {
			if s.MatchedBlocks > 0 {
				holders = append(holders, s.Pod)
			}
		}
		if got := strings.Join(holders, " "); got != c.want {
			t.Errorf("%s: held by %q, want %q", name, got, c.want)
		}
	}
}

// A request that cannot be scored has an error that names the fault, and no answer.
func TestBodyErrors(t *testing.T) {
	tokens := []uint32{1, 2, 3}
	ix := chats(t, turns+`{% if tools %}{{ raise_exception("no tools here") }}{% endif %}`)
	every := ix.Candidates("m", nil)
	const messages = `"messages": [{"role": "user", "content": "hello"}]`
	for _, c := range []struct {
		r    kvindex.Request
		is   error
		says string
	}{
		{kvindex.Request{Body: []byte(`{`)}, kvindex.ErrRequest, "not JSON"},
		{kvindex.Request{Body: []byte{}}, kvindex.ErrRequest, "not JSON"},
		{kvindex.Request{Body: []byte(`{"model": "m"}`)}, kvindex.ErrRequest, "messages"},
		{kvindex.Request{Body: []byte(`{` + messages + `}`)}, kvindex.ErrRequest, "the model is empty"},
		{kvindex.Request{Body: []byte(`{"model": 7, ` + messages + `}`)}, kvindex.ErrRequest, "model"},
		{kvindex.Request{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": 7}]}`)}, kvindex.ErrRequest, "messages[0].content"},
		{kvindex.Request{Body: []byte(`{"model": "m", "chat_template_kwargs": [], ` + messages + `}`)}, kvindex.ErrRequest, "chat_template_kwargs"},
		{kvindex.Request{Body: []byte(`{"model": "m", "cache_salt": {}, ` + messages + `}`)}, kvindex.ErrRequest, "cache_salt"},
		{kvindex.Request{Body: []byte(`{"model": "m", "prompt": ""}`)}, kvindex.ErrRequest, "empty"},
		{kvindex.Request{Body: []byte(`{"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}], ` + messages + `}`)}, kvindex.ErrRequest, "no tools here"},
		{kvindex.Request{Body: []byte(`{"model": "m", ` + messages + `}`), Prompt: "hello"}, kvindex.ErrRequest, "Body excludes Prompt"},
		{kvindex.Request{Body: []byte(`{"model": "m", ` + messages + `}`), Tokens: []uint32{1}}, kvindex.ErrRequest, "Body excludes Prompt"},
		{kvindex.Request{Body: []byte(`{"model": "m", ` + messages + `}`), Rendered: true}, kvindex.ErrRequest, "Body excludes Prompt"},
		{kvindex.Request{Body: []byte(`{"model": "other", ` + messages + `}`)}, kvindex.ErrNoTokenizer, `"other"`},
		{kvindex.Request{Body: []byte(`{"model": "other", "prompt": "hello"}`)}, kvindex.ErrNoTokenizer, `"other"`},
		{kvindex.Request{Body: []byte(`{"model": "m", "prompt": ["a", "b"]}`)}, chat.ErrNotScorable, "prompt"},
		{kvindex.Request{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}`)}, chat.ErrNotScorable, "messages[0].content[0]"},
		{kvindex.Request{Tokens: tokens}, kvindex.ErrRequest, "model is empty"},
		{kvindex.Request{Model: "m", Tokens: tokens, Pods: []string{"b", "", "a"}}, kvindex.ErrRequest, "pods[1] has no name"},
		{kvindex.Request{Candidates: every, Tokens: tokens, Pods: []string{"b"}}, kvindex.ErrRequest, "Candidates"},
		{kvindex.Request{Candidates: every, Tokens: tokens, Model: "other"}, kvindex.ErrRequest, `Model is "other"`},
		{kvindex.Request{Candidates: ix.Candidates("m", []string{""}), Tokens: tokens}, kvindex.ErrRequest, "no name"},
		{kvindex.Request{Model: "m"}, kvindex.ErrRequest, "prompt is empty"},
		{kvindex.Request{Model: "m", Tokens: []uint32{}}, kvindex.ErrRequest, "prompt is empty"},
		{kvindex.Request{Model: "m", Prompt: "x", Tokens: tokens}, kvindex.ErrRequest, "Prompt and Tokens exclude"},
		{kvindex.Request{Model: "m", Prompt: "nothing"}, kvindex.ErrRequest, "no tokens"},
		{kvindex.Request{Model: "m", Prompt: "fail"}, nil, `model "m": no such text`},
		{kvindex.Request{Model: "n", Prompt: "x"}, kvindex.ErrNoTokenizer, `model "n": give it by WithModel`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Offset: 3}}}, kvindex.ErrRequest, `media "h": Offset 3 is not within the 3 tokens`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Offset: -1}}}, kvindex.ErrRequest, `media "h"`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Offset: 1}}}, kvindex.ErrRequest, "media 0 has no Hash"},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Length: -1}}}, kvindex.ErrRequest, `media "h"`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "g", Offset: 1}, {Hash: "h"}}}, kvindex.ErrRequest, `media "h"`},
	} {
		a := kvindex.Answer{PromptTokens: 7, Pods: make([]kvindex.PodScore, 3)}
		err := ix.ScoreRequest(ctx, &c.r, &a)
		what := fmt.Sprintf("%s %+v", c.r.Body, c.r)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v with %q", what, err, c.is, c.says)
		}
		if errors.Is(err, kvindex.ErrRequest) != (c.is == kvindex.ErrRequest) {
			t.Errorf("%s: %v: is the request bad?", what, err)
		}
		if a.PromptTokens != 0 || len(a.Pods) != 0 {
			t.Errorf("%s: there is an answer beside the error: %+v", what, a)
		}
	}
	long := strings.Repeat("m", 1<<20) // clients choose names: an error has the beginning of one
	for _, r := range []kvindex.Request{
		{Model: long, Prompt: "x"}, {Body: []byte(`{"model": "` + long + `", ` + messages + `}`)},
		{Model: long, Tokens: tokens, Candidates: every}, {Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: long, Offset: -1}}},
	} {
		if err := ix.ScoreRequest(ctx, &r, new(kvindex.Answer)); err == nil || len(err.Error()) > 1<<10 {
			t.Errorf("an error of %d bytes: %.100v", len(fmt.Sprint(err)), err)
		}
	}
	if s := score(t, ix, kvindex.Request{Model: "never", Tokens: tokens, Pods: []string{"x"}}); len(s) != 1 || s[0] != (kvindex.PodScore{Pod: "x"}) {
		t.Errorf("an unknown model: %+v", s)
	}
	without := open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}}))
	err := without.ScoreRequest(ctx, &kvindex.Request{Body: []byte(`{"model": "m", ` + messages + `}`)}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrNoTemplate) {
		t.Errorf("without templates: %v", err)
	}
}

// Media of a chat have the places that the template gives them, each with all of its tokens.
func TestBodyMedia(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"config.json":           `{"model_type": "qwen2_vl", "image_token_id": 35}`,
		"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}`,
		"chat_template.jinja":   `{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}[#]{% endif %}{% endfor %}{% endfor %}`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	template, err := chat.Load(dir, chat.Options{})
	must(t, err)
	ix := open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: words{}, Chat: template}))
	tokens := bytesOf("a picture [" + strings.Repeat("#", 20) + "] and one more: [" + strings.Repeat("#", 5) + "] compare them")
	p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: 1 << 32}
	s := p.Stored(0, 4)
	s.Extra = [][]enginehash.Extra{{enginehash.Media("cat", 11)}, {enginehash.Media("cat", 11-16)}, nil, {enginehash.Media("dog", 0)}}
	ingest(t, ix, "pod", s)

	const body = `{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a picture "},
		{"type": "image_url", "image_url": {"url": "data:1"}}, {"type": "text", "text": " and one more: "},
		{"type": "image_url", "image_url": {"url": "data:2"}}, {"type": "text", "text": " compare them"}]}]}`
	for _, c := range []struct {
		media []kvindex.Media
		want  int
	}{
		{[]kvindex.Media{{Hash: "cat", Length: 20}, {Hash: "dog", Length: 5}}, 4},
		{[]kvindex.Media{{Hash: "cat", Length: 20}, {Hash: "cow", Length: 5}}, 3},
		{[]kvindex.Media{{Hash: "dog", Length: 20}, {Hash: "cat", Length: 5}}, 0},
		{[]kvindex.Media{{Hash: "cat", Length: 21}, {Hash: "dog", Length: 5}}, 1},
	} {
		media := slices.Clone(c.media)
		var a kvindex.Answer
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Body: []byte(body), Media: c.media}, &a))
		if got := a.Pods[0].MatchedBlocks; got != c.want {
			t.Errorf("%v: %d blocks, want %d", c.media, got, c.want)
		}
		if !slices.Equal(media, c.media) {
			t.Errorf("the caller's media were changed: %v", c.media)
		}
	}
	// A body of ids lists its media, unless the caller does.
	ids := func(first, second string) []byte {
		return fmt.Appendf(nil, `{"model": "m", "sampling_params": {}, "token_ids": %s, "features": {"mm_hashes": {"image": [%q, %q]},
			"mm_placeholders": {"image": [{"offset": 11, "length": 20}, {"offset": 48, "length": 5}]}}}`, jsonOf(tokens), first, second)
	}
	for _, c := range []struct {
		r    kvindex.Request
		want int
	}{
		{kvindex.Request{Body: ids("cat", "dog")}, 4},
		{kvindex.Request{Body: ids("cat", "cow")}, 3},
		{kvindex.Request{Body: ids("dog", "cat")}, 0},
		{kvindex.Request{Body: ids("cow", "cow"), Media: []kvindex.Media{{Hash: "cat", Offset: 11}, {Hash: "dog", Offset: 48}}}, 4},
	} {
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &c.r, &a); err != nil || a.Pods[0].MatchedBlocks != c.want {
			t.Errorf("%s: %+v, %v, want %d blocks", c.r.Body, a.Pods, err, c.want)
		}
	}
	for _, media := range [][]kvindex.Media{nil, {{Hash: "cat", Length: 20}}, {{Hash: "cat", Length: 1}, {Hash: "dog", Length: 1}, {Hash: "cow", Length: 1}}} {
		err := ix.ScoreRequest(ctx, &kvindex.Request{Body: []byte(body), Media: media}, new(kvindex.Answer))
		if !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%v: %v", media, err)
		}
	}
	for _, media := range []kvindex.Media{{Hash: "cat"}, {Hash: "cat", Length: -1}, {Length: 7}} {
		r := kvindex.Request{Body: []byte(body), Media: []kvindex.Media{media, {Hash: "dog", Length: 5}}}
		if err := ix.ScoreRequest(ctx, &r, new(kvindex.Answer)); !errors.Is(err, kvindex.ErrRequest) {
			t.Errorf("%+v: %v", media, err)
		}
	}
}

// marks is words with one id for each special token of harmony.
type marks struct{ words }

func (m marks) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	for i, part := range strings.Split(text, "<|end|>") {
		if i > 0 {
			dst = append(dst, 200007)
		}
		dst, _ = m.words.Encode(ctx, dst, part, special)
	}
	return dst, nil
}

func (marks) Identity() [32]byte { return [32]byte{43} }

// A client's text that looks like a special token is not one.
func TestBodyPieces(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "gpt_oss"}`), 0o600))
	harmony, err := chat.Load(dir, chat.Options{StartDate: "2026-02-03"})
	must(t, err)
	for _, size := range []int64{0, 1 << 20} {
		ix := open(t, kvindex.WithModel("m", kvindex.Model{Tokenizer: marks{}, Chat: harmony}), kvindex.WithPromptCache(size))
		const body = `{"model": "m", "messages": [{"role": "user", "content": "the token <|end|> ends a message, as everybody knows"}]}`
		request, err := chat.Parse("", []byte(body))
		must(t, err)
		x, err := harmony.Render(request, nil)
		must(t, err)
		before, behind, _ := strings.Cut(x.Text, "token <|")
		tokens, _ := marks{}.Encode(ctx, nil, before+"token <|", false)
		tokens, _ = marks{}.Encode(ctx, tokens, behind, false)
		n := holdAll(t, ix, "pod", 1, tokens)
		var a kvindex.Answer
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Body: []byte(body)}, &a))
		if got := a.Pods[0].MatchedBlocks; got != n {
			t.Errorf("%d blocks, want %d", got, n)
		}
	}
}
