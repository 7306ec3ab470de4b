package server

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/kvindex/kvindex"
)

// The endpoints of llm-d's online service (examples/kv_events/online/main.go of
// llm-d-kv-cache-manager, October 2025). A score is the number of leading blocks that the pod
// holds in any tier. Differences, all on purpose:
//
//   - A prompt of whole blocks scores all of them.
//   - A chat is tokenized as the engine does it. The reference adds a second
//     beginning-of-text token before the template's own: no engine has cached such tokens.
//   - A pod of the model that holds nothing has a score of 0; the reference omits it.

// listens answers the probes of the reference's deployment. They are liveness probes, too, so
// it fails only when the reference would not listen: before the index exists and after the
// shutdown began. A check of /readyz that fails for long must not restart the process.
func (s *Server) listens(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.core.Load() == nil:
		write(w, http.StatusServiceUnavailable, s.noIndex())
	case s.draining.Load():
		write(w, http.StatusServiceUnavailable, fail("not ready: the service ends"))
	default:
		s.healthy(w, r)
	}
}

func (s *Server) scoreCompletions(r call) (any, error) {
	var q struct {
		Prompt string   `json:"prompt"`
		Model  string   `json:"model"`
		Pods   []string `json:"pods"`
	}
	if err := decode(r.body, &q, false); err != nil {
		return nil, err
	}
	if q.Prompt == "" {
		return nil, bad("prompt: it is empty")
	}
	scores, _, err := s.blocks(r, &kvindex.Request{Model: q.Model, Prompt: q.Prompt}, q.Pods)
	return scores, err
}

func (s *Server) scoreChat(r call) (any, error) {
	var fields map[string]json.RawMessage
	if err := decode(r.body, &fields, false); err != nil {
		return nil, err
	}
	var q struct {
		Model    string            `json:"model"`
		Messages []json.RawMessage `json:"messages"`
		Pods     []string          `json:"pods"`
	}
	for _, f := range []struct {
		name string
		into any
		want string
	}{{"model", &q.Model, "a string"}, {"messages", &q.Messages, "an array"}, {"pods", &q.Pods, "an array of strings"}} {
		if raw := fields[f.name]; raw != nil && json.Unmarshal(raw, f.into) != nil {
			return nil, bad("%s: want %s", f.name, f.want)
		}
	}
	if len(q.Messages) == 0 {
		return nil, bad("messages: it is empty")
	}
	body := r.body
	if set := fields["add_generation_prompt"]; set == nil || string(set) == "null" {
		// Engines add the generation prompt by default, and the reference does not. The last one
		// of equal keys counts, so the default of the reference is appended.
		end := bytes.LastIndexByte(body, '}')
		body = append(append([]byte(nil), body[:end]...), `,"add_generation_prompt":false}`...)
	}
	scores, text, err := s.blocks(r, &kvindex.Request{Model: q.Model, Body: body, Path: "/v1/chat/completions"}, q.Pods)
	if err != nil {
		return nil, err
	}
	return struct {
		Scores map[string]int `json:"podScores"`
		Text   string         `json:"templated_messages"`
	}{scores, text}, nil
}

// blocks returns the scores in blocks, and the text of a chat. pods, if there are any, narrow
// the answer.
func (s *Server) blocks(r call, q *kvindex.Request, pods []string) (map[string]int, string, error) {
	if q.Model == "" {
		if q.Model = s.cfg.Model; q.Model == "" {
			return nil, "", bad("model: it is missing, and the service has no model of its own")
		}
	}
	var a kvindex.Answer
	if err := r.ix.ScoreRequest(r.ctx, q, &a); err != nil {
		return nil, "", err
	}
	if a.Degraded != nil {
		return nil, "", a.Degraded
	}
	scores := make(map[string]int, len(a.Pods))
	for i := range a.Pods {
		p := &a.Pods[i]
		scores[p.Pod] = p.MatchedBlocks * p.BlockTokens / s.cfg.BlockTokens
	}
	if len(pods) > 0 {
		of := make(map[string]int, len(pods))
		for _, pod := range pods {
			if n, ok := scores[pod]; ok {
				of[pod] = n
			}
		}
		scores = of
	}
	return scores, a.Text, nil
}
