package kvindex_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	plainConfig = `{"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}`
	lfsPointer  = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 9085657\n"
)

// files are those of a model with the project's own small tokenizer, a chat template and more.
func files(t *testing.T, more map[string]string) map[string]string {
	t.Helper()
	tiny, err := os.ReadFile("tokenize/testdata/tiny.json")
	must(t, err)
	all := map[string]string{"tokenizer.json": string(tiny), "tokenizer_config.json": plainConfig, "chat_template.jinja": folderTemplate}
	for name, content := range more {
		all[name] = content
	}
	return all
}

// folderTemplate writes tools, and contents as parts.
const folderTemplate = `{% for t in tools or [] %}{{ t | tojson }}{% endfor %}` +
	`{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}<assistant>`

// folder writes all files that are not empty to a folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if content == "" {
			continue
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// cache makes a folder the snapshot of a model in a HuggingFace cache.
func cache(t *testing.T, name, dir string) string {
	t.Helper()
	root := t.TempDir()
	repo := filepath.Join(root, "models--"+strings.ReplaceAll(name, "/", "--"))
	for _, err := range []error{
		os.MkdirAll(filepath.Join(repo, "refs"), 0o700),
		os.MkdirAll(filepath.Join(repo, "snapshots"), 0o700),
		os.WriteFile(filepath.Join(repo, "refs", "main"), []byte("c0ffee"), 0o600),
		os.CopyFS(filepath.Join(repo, "snapshots", "c0ffee"), os.DirFS(dir)),
	} {
		must(t, err)
	}
	return root
}

const (
	toolBody  = `{"tools": [{"type": "function", "function": {"name": "find"}}], "messages": [{"role": "user", "content": "find the boats that come and go, and tell where they are"}]}`
	partsBody = `{"messages": [{"role": "user", "content": [{"type": "text", "text": "how do the boats "}, {"type": "text", "text": "come and go, and where are they now?"}]}]}`
	saltBody  = `{"cache_salt": "pepper", "messages": [{"role": "user", "content": "how do the boats come and go, and where are they now?"}]}`
)

// The folder of a model is enough: LoadModel and Models score its chats as with a separate
// tokenizer and template.
func TestModelFromAFolder(t *testing.T) {
	dir := folder(t, files(t, nil))
	tok, err := tokenize.LoadPretrained(dir)
	must(t, err)
	template, err := chat.Load(dir, chat.Options{})
	must(t, err)
	loaded, err := kvindex.LoadModel(dir)
	if err != nil || loaded.ChatErr != nil {
		t.Fatal(err, loaded.ChatErr)
	}
	t.Setenv("HF_HUB_CACHE", cache(t, "org/m", dir))
	hub := newModels(t, kvindex.ModelsConfig{})
	found := newModels(t, kvindex.ModelsConfig{PoolConfig: tokenize.PoolConfig{Find: func(_ context.Context, name string) (string, error) {
		if name != "org/m" {
			return "", fs.ErrNotExist
		}
		return dir, nil
	}}})
	if err := hub.Preload(ctx, "org/m"); err != nil || hub.Stats().Tokenizers != 1 {
		t.Fatal(err, hub.Stats())
	}
	for name, option := range map[string]kvindex.Option{
		"LoadModel": kvindex.WithModel("org/m", loaded),
		"the cache": kvindex.WithModels(hub.Model),
		"a Find":    kvindex.WithModels(found.Model),
	} {
		ix := open(t, option)
		for i, body := range []string{toolBody, partsBody, saltBody} {
			asked, err := chat.Parse("", []byte(body))
			must(t, err)
			text, err := template.Render(asked, nil)
			must(t, err)
			tokens, err := tok.Encode(ctx, nil, text.Text, false)
			if err != nil || len(tokens) < 17 {
				t.Fatal(len(tokens), err)
			}
			p := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(i+1) << 32}
			must(t, ix.Ingest("pod", "org/m", fakeengine.Payload(1, 0, p.Stored(0, 1))))
			var a kvindex.Answer
			if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "org/m", Body: []byte(body)}, &a); err != nil {
				t.Fatal(name, err)
			}
			want := 1
			if body == saltBody {
				want = 0 // the stored blocks have no salt
			}
			if a.PromptTokens != len(tokens) || a.Pods[0].MatchedBlocks != want {
				t.Errorf("%s: %s: %+v, want %d tokens and %d blocks", name, body, a, len(tokens), want)
			}
		}
		if scores, err := ix.Score(ctx, "a text alone", "org/m", nil); err != nil || len(scores) != 1 {
			t.Errorf("%s: %v %v", name, scores, err)
		}
	}
}

func newModels(t *testing.T, c kvindex.ModelsConfig) *kvindex.Models {
	t.Helper()
	m, err := kvindex.NewModels(c)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// Models use each model's options, end with the caller's context, and close with their pool.
func TestModels(t *testing.T) {
	dir := folder(t, files(t, map[string]string{"chat_template.jinja": `{{ messages[0].content }}{{ more }}`}))
	s := newModels(t, kvindex.ModelsConfig{
		PoolConfig: tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return dir, nil }},
		Options:    func(model string) chat.Options { return chat.Options{Kwargs: `{"more": "` + model + `"}`} },
	})
	asked, err := chat.Parse("", []byte(`{"messages": [{"role": "user", "content": "hello "}]}`))
	must(t, err)
	for _, name := range []string{"a", "b"} {
		m, err := s.Model(ctx, name)
		if err != nil || m.ChatErr != nil {
			t.Fatal(err, m.ChatErr)
		}
		if text, err := m.Chat.Render(asked, nil); err != nil || text.Text != "hello "+name {
			t.Errorf("%s: %q, %v", name, text.Text, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Model(ended, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	ix := open(t, kvindex.WithModels(s.Model))
	must(t, s.Close())
	if _, err := ix.Score(ctx, "hello", "a", nil); !errors.Is(err, tokenize.ErrPoolClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := kvindex.NewModels(kvindex.ModelsConfig{PoolConfig: tokenize.PoolConfig{Encodings: -1}}); err == nil || !strings.Contains(err.Error(), "Encodings -1") {
		t.Errorf("a bad configuration: %v", err)
	}
}

// If the engine uses mistral-common, tekken.json counts for tokenizer and chat, and tokenizer.json
// does not.
func TestModelsOfMistral(t *testing.T) {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`{"rank":%d,"token_bytes":%q,"token_str":null}`, b, base64.StdEncoding.EncodeToString([]byte{byte(b)})))
	}
	dir := folder(t, files(t, map[string]string{"tekken.json": `{"config":{"pattern":"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",` +
		`"default_vocab_size":276,"default_num_special_tokens":20,"version":"v3"},"vocab":[` + strings.Join(vocab, ",") + `],"version":1,"type":"Tekken"}`}))
	o := chat.Options{TokenizerMode: "mistral"}
	loaded, err := kvindex.LoadModel(dir, o)
	must(t, err)
	found := newModels(t, kvindex.ModelsConfig{
		PoolConfig: tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return dir, nil }},
		Options:    func(string) chat.Options { return o },
	})
	const question = "[INST]is no token here[/INST]"
	tokens := []uint32{1, 3}
	for _, c := range []byte(question) {
		tokens = append(tokens, uint32(c)+20)
	}
	tokens = append(tokens, 4)
	for name, option := range map[string]kvindex.Option{"LoadModel": kvindex.WithModel("m", loaded), "a Find": kvindex.WithModels(found.Model)} {
		ix := open(t, option, kvindex.WithPromptCache(1<<20))
		n := holdAll(t, ix, "pod", 1, tokens)
		var a kvindex.Answer
		err := ix.ScoreRequest(ctx, &kvindex.Request{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": "` + question + `"}]}`)}, &a)
		if err != nil || a.PromptTokens != len(tokens) || a.Pods[0].MatchedBlocks != n {
			t.Errorf("%s: %+v, %v, want %d tokens and %d blocks", name, a, err, len(tokens), n)
		}
	}
	if m, err := kvindex.LoadModel(dir); err != nil || !errors.Is(m.ChatErr, chat.ErrUnsupported) {
		t.Errorf("without a mode: %v, %v", err, m.ChatErr)
	}
}

// A slow Find keeps no request beyond its context, and its result serves the next request. Close
// ends its context.
func TestModelsSlowFind(t *testing.T) {
	dir := folder(t, files(t, nil))
	found, release := make(chan struct{}, 4), make(chan struct{})
	s := newModels(t, kvindex.ModelsConfig{PoolConfig: tokenize.PoolConfig{Find: func(ctx context.Context, name string) (string, error) {
		found <- struct{}{}
		if name == "never" {
			<-ctx.Done()
			return "", ctx.Err()
		}
		<-release
		return dir, ctx.Err()
	}}})
	ix := open(t, kvindex.WithModels(s.Model))
	for _, name := range []string{"m", "never"} {
		short, cancel := context.WithCancel(ctx)
		go func() {
			<-found
			cancel()
		}()
		if _, err := ix.Score(short, "hello", name, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: while Find goes on: %v", name, err)
		}
	}
	close(release)
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Body: []byte(partsBody)}, new(kvindex.Answer)); err != nil || len(found) != 1 {
		t.Errorf("when it has returned: %v, %d more calls, want that for the tokenizer", err, len(found))
	}
	must(t, s.Close())
	if m, err := s.Model(ctx, "never"); err != nil || !errors.Is(m.ChatErr, context.Canceled) {
		t.Errorf("closed: %v, %v", err, m.ChatErr)
	}
}

// The error of a wrong folder names the mistake and the cure. says are parts of the error of
// LoadModel, or of ChatErr if texts can be scored.
func TestModelMistakes(t *testing.T) {
	file := filepath.Join(folder(t, files(t, nil)), "tokenizer.json")
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	_, nameless := kvindex.LoadModel("")
	complain(t, "no name", nameless, fs.ErrInvalid, "the name of the folder of the model is empty")
	for name, c := range map[string]struct {
		dir  string
		more map[string]string
		is   error
		chat bool
		says string
	}{
		"a folder that does not exist": {dir: filepath.Join(t.TempDir(), "llama"), is: fs.ErrNotExist, says: "the folder of the model|llama"},
		"a file":                       {dir: file, is: fs.ErrInvalid, says: "tokenizer.json is a file, not the folder"},
		"no config":                    {more: map[string]string{"tokenizer_config.json": ""}, is: fs.ErrNotExist, says: "no tokenizer_config.json|Load reads a tokenizer.json alone"},
		"no tokenizer":                 {more: map[string]string{"tokenizer.json": ""}, is: fs.ErrNotExist, says: "no tokenizer.json"},
		"another tokenizer":            {more: map[string]string{"tokenizer.json": "", "tiktoken.model": "x"}, is: fs.ErrNotExist, says: "no tokenizer.json|tiktoken.model is there, which is not read"},
		"no class":                     {more: map[string]string{"tokenizer_config.json": "{}"}, is: tokenize.ErrUnsupported, says: "without tokenizer_class"},
		"an LFS tokenizer":             {more: map[string]string{"tokenizer.json": lfsPointer}, is: tokenize.ErrMalformed, says: "tokenizer.json|git LFS pointer|git lfs pull"},
		"an LFS config":                {more: map[string]string{"tokenizer_config.json": lfsPointer}, is: tokenize.ErrMalformed, says: "tokenizer_config.json|git lfs pull"},
		"an LFS template":              {more: map[string]string{"chat_template.jinja": lfsPointer}, is: chat.ErrUnsupported, chat: true, says: "chat_template.jinja|git lfs pull"},
		"no template":                  {more: map[string]string{"chat_template.jinja": ""}, is: kvindex.ErrNoTemplate, chat: true, says: "neither chat_template.jinja nor a chat_template"},
		"a bad template":               {more: map[string]string{"chat_template.jinja": "{% if %}"}, is: chat.ErrUnsupported, chat: true, says: "line 1"},
		"rendered by a program":        {more: map[string]string{"config.json": `{"model_type": "kimi_k3"}`}, is: chat.ErrUnsupported, chat: true, says: "Kimi-K3"},
	} {
		dir := c.dir
		if dir == "" {
			dir = folder(t, files(t, c.more))
		}
		m, err := kvindex.LoadModel(dir)
		if c.chat {
			if err != nil || m.Tokenizer == nil || m.Chat != nil {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
			err = m.ChatErr
		}
		complain(t, name, err, c.is, c.says)

		s := newModels(t, kvindex.ModelsConfig{PoolConfig: tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return dir, nil }}})
		if name == "a file" || name == "no config" { // Models accept these
			if err := s.Preload(ctx, "m"); err != nil {
				t.Errorf("%s, preloaded: %v", name, err)
			}
			continue
		}
		if err := s.Preload(ctx, "m"); c.is != kvindex.ErrNoTemplate {
			complain(t, name+", preloaded", err, c.is, strings.TrimPrefix(c.says, "the folder of the model|"))
		} else if err != nil {
			t.Errorf("%s, preloaded: %v", name, err)
		}
		ix := open(t, kvindex.WithModels(s.Model))
		err = ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Body: []byte(partsBody)}, new(kvindex.Answer))
		if name != "an LFS config" { // for that one the chat has an error of its own
			complain(t, name+", scored", err, c.is, "")
		}
		if _, err := ix.Score(ctx, "a text", "m", nil); (err == nil) != c.chat {
			t.Errorf("%s: a text: %v", name, err)
		}
	}
	s := newModels(t, kvindex.ModelsConfig{})
	ix := open(t, kvindex.WithModels(s.Model))
	for _, r := range []kvindex.Request{
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Prompt: "hello"},
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Body: []byte(saltBody)},
	} {
		is := kvindex.ErrNoTokenizer
		if r.Body != nil {
			is = kvindex.ErrNoTemplate
		}
		complain(t, "never downloaded", ix.ScoreRequest(ctx, &r, new(kvindex.Answer)), is,
			os.Getenv("HF_HUB_CACHE")+`|"hf download meta-llama/Llama-3.1-8B-Instruct" fetches it`)
	}
	_, err := tokenize.Hub{}.Find(ctx, "org/m@v2")
	complain(t, "a revision", err, fs.ErrNotExist, `"hf download org/m --revision v2"`)
}

// complain checks that err wraps is and has all parts in its text.
func complain(t *testing.T, name string, err, is error, parts string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("%s: %v, want one that wraps %v", name, err, is)
		return
	}
	if missing := slices.DeleteFunc(strings.Split(parts, "|"), func(part string) bool { return strings.Contains(err.Error(), part) }); len(missing) > 0 {
		t.Errorf("%s: %v: it does not say %q", name, err, missing)
	}
}

// The engine of chat.Options counts for the tokenizer too: transformers 5 replaces this class's
// pre-tokenizer, and 4.57 reads it from the file.
func TestOneEngineForTokenizerAndChats(t *testing.T) {
	all := files(t, map[string]string{
		"tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer"}`, "config.json": `{"model_type": "gpt2"}`,
	})
	const given = `"pre_tokenizer": {`
	if strings.Count(all["tokenizer.json"], given) != 1 {
		t.Fatal("no pre_tokenizer in tiny.json")
	}
	all["tokenizer.json"] = strings.Replace(all["tokenizer.json"], given,
		`"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": "h"}, "behavior": "Isolated", "invert": false}, {`, 1)
	end := strings.Index(all["tokenizer.json"], given)
	end += strings.Index(all["tokenizer.json"][end:], `"use_regex"`)
	end += strings.Index(all["tokenizer.json"][end:], "}")
	all["tokenizer.json"] = all["tokenizer.json"][:end] + "}]" + all["tokenizer.json"][end:]
	dir := folder(t, all)
	ids := func(m kvindex.Model) []uint32 {
		t.Helper()
		ids, err := m.Tokenizer.Encode(ctx, nil, "other", false)
		if err != nil || m.ChatErr != nil {
			t.Fatal(err, m.ChatErr)
		}
		return ids
	}
	models := newModels(t, kvindex.ModelsConfig{
		PoolConfig: tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return dir, nil }},
		Options:    func(model string) chat.Options { return chat.Options{Engine: model} },
	})
	for engine, like := range map[string]string{"": "main", "0.28": "main", "0.11": "0.19", "0.19": "0.11"} {
		loaded, err := kvindex.LoadModel(dir, chat.Options{Engine: engine})
		must(t, err)
		found, err := models.Model(ctx, engine)
		must(t, err)
		want, err := tokenize.LoadPretrained(dir, like)
		must(t, err)
		if want := ids(kvindex.Model{Tokenizer: want}); !slices.Equal(ids(loaded), want) || !slices.Equal(ids(found), want) {
			t.Errorf("engine %q: LoadModel %v, Models %v, want %v", engine, ids(loaded), ids(found), want)
		}
	}
	old, err := kvindex.LoadModel(dir, chat.Options{Engine: "0.11"})
	must(t, err)
	newest, err := kvindex.LoadModel(dir)
	if err != nil || slices.Equal(ids(old), ids(newest)) {
		t.Error("both versions have the same ids: this tests nothing", err)
	}
	if _, err := kvindex.LoadModel(dir, chat.Options{Engine: "six"}); err == nil || !strings.Contains(err.Error(), `"six"`) {
		t.Errorf("an engine that is none: %v", err)
	}
	if _, err := kvindex.LoadModel(dir, chat.Options{}, chat.Options{}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("two chat.Options: %v", err)
	}
	_, err = kvindex.NewModels(kvindex.ModelsConfig{PoolConfig: tokenize.PoolConfig{Engine: func(string) string { return "" }}})
	if err == nil || !strings.Contains(err.Error(), "Engine") {
		t.Errorf("an engine in two places: %v", err)
	}
}
