package server

import (
	"encoding/json"
	"net/http"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A request is a kvindex.Request as JSON.
type request struct {
	Model    string          `json:"model"`
	Adapter  string          `json:"adapter"`
	Salt     string          `json:"salt"`
	Body     json.RawMessage `json:"body"`
	Path     string          `json:"path"`
	Prompt   string          `json:"prompt"`
	Rendered bool            `json:"rendered"`
	Tokens   []uint32        `json:"tokens"`
	Media    []struct {
		Hash   string `json:"hash"`
		Offset int    `json:"offset"`
		Length int    `json:"length"`
	} `json:"media"`
	Pods  []string `json:"pods"`
	Ranks bool     `json:"ranks"`
	Top   int      `json:"top"`
}

// of converts q for the library. Its error names the field as in JSON.
func (s *Server) of(q *request) (*kvindex.Request, error) {
	given := 0
	for _, is := range []bool{q.Body != nil && string(q.Body) != "null", q.Prompt != "", len(q.Tokens) > 0} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, bad("prompt: of body, prompt and tokens exactly one is needed, there are %d", given)
	case q.Rendered && q.Prompt == "":
		return nil, bad("rendered: it is about a prompt, which is missing")
	case q.Top < 0:
		return nil, bad("top: it is %d", q.Top)
	}
	r := &kvindex.Request{
		Model: q.Model, Adapter: q.Adapter, Salt: q.Salt, Body: q.Body, Path: q.Path, Prompt: q.Prompt, Rendered: q.Rendered, Tokens: q.Tokens,
		Pods: q.Pods, Ranks: q.Ranks, Top: q.Top,
	}
	if len(q.Body) == 4 && string(q.Body) == "null" {
		r.Body = nil
	}
	for _, m := range q.Media {
		r.Media = append(r.Media, kvindex.Media{Hash: m.Hash, Offset: m.Offset, Length: m.Length})
	}
	if r.Model == "" {
		if r.Body != nil {
			// The library reports a body that cannot be read.
			if body, _ := chat.Parse(r.Path, r.Body); body == nil || body.Model != "" {
				return r, nil
			}
		}
		if r.Model = s.cfg.Model; r.Model == "" {
			return nil, bad("model: it is missing, and the service has no model of its own")
		}
	}
	return r, nil
}

// An answer is a kvindex.Answer as JSON.
type answer struct {
	PromptTokens int        `json:"prompt_tokens"`
	Unknown      string     `json:"unknown,omitempty"`
	Degraded     string     `json:"degraded,omitempty"`
	Pods         []podScore `json:"pods"`
}

// A podScore is a kvindex.PodScore as JSON.
type podScore struct {
	Pod             string         `json:"pod"`
	Rank            int            `json:"rank"`
	Score           float64        `json:"score"`
	PredictedTokens int            `json:"predicted_tokens"`
	CachedTokens    int            `json:"cached_tokens"`
	LoadedTokens    int            `json:"loaded_tokens"`
	FetchedTokens   int            `json:"fetched_tokens"`
	MatchedBlocks   int            `json:"matched_blocks"`
	BlockTokens     int            `json:"block_tokens"`
	Tiers           map[string]int `json:"tiers,omitempty"`
	UpperBound      bool           `json:"upper_bound,omitempty"`
	NotScorable     bool           `json:"not_scorable,omitempty"`
	State           string         `json:"state"`
}

func (s *Server) score(r call) (any, error) {
	var q request
	if err := decode(r.body, &q, true); err != nil {
		return nil, err
	}
	of, err := s.of(&q)
	if err != nil {
		return nil, err
	}
	var a kvindex.Answer
	if err := r.ix.ScoreRequest(r.ctx, of, &a); err != nil {
		return nil, err
	}
	out := answer{PromptTokens: a.PromptTokens, Unknown: text(a.Unknown), Degraded: text(a.Degraded), Pods: make([]podScore, len(a.Pods))}
	for i := range a.Pods {
		p := &a.Pods[i]
		out.Pods[i] = podScore{
			p.Pod, p.Rank, p.Score, p.PredictedTokens, p.CachedTokens, p.LoadedTokens, p.FetchedTokens,
			p.MatchedBlocks, p.BlockTokens, byTier(p.Tiers[:]), p.UpperBound, p.NotScorable, p.State.String(),
		}
	}
	return out, nil
}

// explain answers GET with the request in the query, and POST with a body as for /v1/score.
func (s *Server) explain(r call) (any, error) {
	names := []string{"pod"}
	if r.Method != http.MethodPost {
		names = append(names, "model", "adapter", "prompt")
	}
	query, err := queryOf(r.Request, names...)
	if err != nil {
		return nil, err
	}
	q := request{Model: query.Get("model"), Adapter: query.Get("adapter"), Prompt: query.Get("prompt")}
	if r.Method == http.MethodPost {
		q = request{}
		if err := decode(r.body, &q, true); err != nil {
			return nil, err
		}
	}
	pod := query.Get("pod")
	if pod == "" {
		return nil, bad("pod: it is missing in the query")
	}
	of, err := s.of(&q)
	if err != nil {
		return nil, err
	}
	return r.ix.Explain(r.ctx, of, pod)
}

// byTier returns counts by the names of tiers, without those that are 0.
func byTier(counts []int) map[string]int {
	var by map[string]int
	for t, n := range counts {
		if n != 0 {
			if by == nil {
				by = make(map[string]int)
			}
			by[kvindex.Tier(t).String()] = n
		}
	}
	return by
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
