package server_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// No body makes a handler panic. The answer is JSON, with a status that openapi.json lists.
func FuzzBodies(f *testing.F) {
	m, err := chat.New(template, nil, chat.Options{})
	must(f, err)
	ix, err := kvindex.New(kvindex.WithModel("m", kvindex.Model{Tokenizer: letters{}, Chat: m}))
	must(f, err)
	s := server.New(server.Config{Model: "m"})
	s.Open(ix, nil)
	admin := s.Admin()
	paths := slices.Sorted(maps.Keys(bodies))
	for i, path := range paths {
		f.Add(uint8(i), []byte(bodies[path]))
	}
	f.Add(uint8(0), []byte(`{"prompt": "\ud83d\ude00\\u"}`))
	f.Fuzz(func(t *testing.T, at uint8, body []byte) {
		path := paths[int(at)%len(paths)]
		method := "POST"
		if strings.HasPrefix(path, "/v1/pods") {
			method = "PUT"
		}
		r, err := http.NewRequest(method, path, strings.NewReader(string(body)))
		must(t, err)
		r.Host = "localhost"
		var w memory
		admin.ServeHTTP(&w, r)
		switch w.code {
		case 200, 400, 404, 409, 413, 422, 500, 503:
		default:
			t.Errorf("%s %q: %d", path, body, w.code)
		}
		if w.code == 500 && !strings.Contains(w.String(), "not scorable") && !strings.Contains(w.String(), "no tokens of this") && !strings.Contains(w.String(), "no tokenizer") {
			t.Errorf("%s %q: %s", path, body, w.String())
		}
	})
}
