package server

import (
	_ "embed" // the document of the endpoints
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
)

// healthy answers 200: the process is alive.
func (s *Server) healthy(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}

// ready answers 200 if requests should be sent here, else 503 with each check that fails.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	failing := s.failures()
	code := http.StatusOK
	if len(failing) > 0 {
		code = http.StatusServiceUnavailable
	}
	write(w, code, struct {
		Ready   bool              `json:"ready"`
		Failing map[string]string `json:"failing,omitempty"`
	}{len(failing) == 0, failing})
}

// failures returns the reasons of the checks that fail, by their names.
func (s *Server) failures() map[string]string {
	s.mu.Lock()
	failing := maps.Clone(s.failing)
	s.mu.Unlock()
	if why := s.silent(); why != "" {
		failing["pods"] = why
	}
	if s.draining.Load() {
		failing["draining"] = "the service ends"
	}
	return failing
}

// silent returns a reason if too few ranks are live, else "".
func (s *Server) silent() string {
	c := s.core.Load()
	if c == nil || c.fleet == nil || s.cfg.ReadyShare == 0 {
		return ""
	}
	ranks, live := 0, 0
	for _, p := range c.fleet.Pods(nil) {
		for _, l := range p.Streams {
			if l.Tiers || l.Link == "ending" {
				continue
			}
			if ranks++; l.Link == "live" {
				live++
			}
		}
	}
	if float64(live)/float64(ranks) >= s.cfg.ReadyShare { // 0/0 is not
		return ""
	}
	return fmt.Sprintf("%d of %d ranks are live (connected, and not replaying), a share of %v is needed", live, ranks, s.cfg.ReadyShare)
}

//go:embed openapi.json
var openAPI []byte

// document returns the handler of /openapi.json. The answer has the paths that are served at
// one address.
func document(served map[string]methods) http.HandlerFunc {
	var doc, paths map[string]json.RawMessage
	err := json.Unmarshal(openAPI, &doc)
	if err == nil {
		err = json.Unmarshal(doc["paths"], &paths)
	}
	if err != nil {
		panic(err) // the embedded file is not JSON
	}
	maps.DeleteFunc(paths, func(path string, _ json.RawMessage) bool { return served[path] == nil })
	doc["paths"], _ = json.Marshal(paths)
	return func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, doc) }
}

// A countingWriter counts the bytes that were written.
type countingWriter struct {
	io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}
