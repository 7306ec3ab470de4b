package chatcheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

const hi = `{"messages":[{"role":"user","content":"hi"}]}`

func newModel(t *testing.T, template string, o chat.Options) *chat.Model {
	t.Helper()
	m, err := chat.New(template, map[string]string{"bos_token": "<s>", "eos_token": "</s>"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// render renders the chat of a body.
func render(t *testing.T, m *chat.Model, body string) (string, error) {
	t.Helper()
	r, err := chat.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	x, err := m.Render(r, nil)
	if err != nil {
		return "", err
	}
	return x.Text, nil
}

// bytesAs is a tokenizer with a token for each byte, and one more around a text.
type bytesAs struct{}

func (bytesAs) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if special {
		dst = append(dst, 1000)
	}
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// An engine answers /tokenize as one that renders with m.
func engine(t *testing.T, m *chat.Model, asked *int) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked++
		body, err := io.ReadAll(r.Body)
		if r.URL.Path != "/tokenize" || err != nil {
			http.NotFound(w, r)
			return
		}
		request, err := chat.Parse(body)
		if err != nil || request.Model != `na"me` {
			http.NotFound(w, r)
			return
		}
		x, err := m.Render(request, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tokens, _ := bytesAs{}.Encode(r.Context(), nil, x.Text, request.AddSpecial)
		json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "max_model_len": 99, "tokens": tokens})
	}))
	t.Cleanup(s.Close)
	return s
}

const checked = "{% for m in messages %}{{ m.role }} {{ m }}{% endfor %}{{ tools }}{{ add_generation_prompt }}"

func TestCheck(t *testing.T) {
	raises := checked + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
	for _, c := range []struct {
		name, ours, theirs string
		o                  chat.Options
		want               string // in the error
	}{
		{"equal", checked, checked, chat.Options{}, ""},
		{"both refuse", raises, raises, chat.Options{}, ""},
		{"not scorable here", "{{ ('a' * 10**9) | length }}", checked, chat.Options{}, ""},
		{"another text", checked, checked + "x", chat.Options{}, "checking a turn"},
		{"refused here", raises, checked, chat.Options{}, "checking tools"},
		{"refused there", checked, raises, chat.Options{}, "checking tools"},
		{"an older engine", checked, checked, chat.Options{Engine: "0.26"}, "an unknown field"},
	} {
		asked := 0
		m, theirs := newModel(t, c.ours, c.o), newModel(t, c.theirs, chat.Options{})
		err := chatcheck.Engine{URL: engine(t, theirs, &asked).URL + "/", Model: `na"me`}.Check(t.Context(), m, bytesAs{})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, chat.ErrCheckFailed) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want == "" && asked != 13 {
			t.Errorf("%s: asked %d times", c.name, asked)
		}
		text, rendered := render(t, m, `{"messages":[{"role":"user","content":"hi"}],"chat_template":"x"}`)
		if errors.Is(rendered, chat.ErrCheckFailed) != (c.want != "") {
			t.Errorf("%s: then %q, %v", c.name, text, rendered)
		}
		if again := (chatcheck.Engine{URL: engine(t, m, &asked).URL, Model: `na"me`}).Check(t.Context(), m, bytesAs{}); errors.Is(again, chat.ErrCheckFailed) != (c.want != "") {
			t.Errorf("%s: again %v", c.name, again)
		}
	}
}

// What is no answer is no verdict.
func TestCheckUnreachable(t *testing.T) {
	m := newModel(t, checked, chat.Options{})
	for name, handler := range map[string]http.HandlerFunc{
		"not found": http.NotFound,
		"broken":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "x") },
		"no tokens": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			io.Copy(w, io.LimitReader(zeros{}, 2<<20))
		},
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			fmt.Fprint(w, "{")
		},
	} {
		s := httptest.NewServer(handler)
		err := chatcheck.Engine{URL: s.URL, Model: "m", Client: s.Client()}.Check(t.Context(), m, bytesAs{})
		s.Close()
		if err == nil || errors.Is(err, chat.ErrCheckFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (chatcheck.Engine{URL: "http://127.0.0.1:1", Model: "m"}).Check(t.Context(), m, bytesAs{}); err == nil || errors.Is(err, chat.ErrCheckFailed) {
		t.Errorf("nobody there: %v", err)
	}
	if err := (chatcheck.Engine{URL: ":", Model: "m"}).Check(t.Context(), m, bytesAs{}); err == nil || errors.Is(err, chat.ErrCheckFailed) {
		t.Errorf("no address: %v", err)
	}
	if _, err := render(t, m, hi); err != nil {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

// An engine that takes no chats, as SGLang's /tokenize, tells nothing of the model.
func TestCheckAgainstAnotherEngine(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error": "prompt: Field required"}`, http.StatusBadRequest)
	}))
	defer s.Close()
	m := newModel(t, checked, chat.Options{})
	if err := (chatcheck.Engine{URL: s.URL, Model: "m"}).Check(t.Context(), m, bytesAs{}); err == nil || errors.Is(err, chat.ErrCheckFailed) {
		t.Error(err)
	}
	if _, err := render(t, m, hi); err != nil {
		t.Error(err)
	}
}
