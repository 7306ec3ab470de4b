package server

import (
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/engine"
)

// source is the name of the Fleet's source of pods that were registered over HTTP.
const source = "http"

// A pod is a kvindex.PodInfo as JSON.
type pod struct {
	Pod         string    `json:"pod"`
	Model       string    `json:"model"`
	State       string    `json:"state"`
	Connected   time.Time `json:"connected,omitzero"`
	LastMessage time.Time `json:"last_message,omitzero"`
	Adapters    []string  `json:"adapters,omitempty"`
	Ranks       []rank    `json:"ranks"`
}

type rank struct {
	Rank     int            `json:"rank"`
	State    string         `json:"state"`
	Blocks   map[string]int `json:"blocks,omitempty"`
	Messages uint64         `json:"messages"`
	LagMS    int64          `json:"lag_ms"`
	AgeMS    int64          `json:"age_ms"`
	Evicted  uint64         `json:"evicted,omitempty"`
}

func rankOf(k *kvindex.RankInfo) rank {
	return rank{k.Rank, k.State.String(), byTier(k.Blocks[:]), k.Messages, k.Lag.Milliseconds(), k.Age.Milliseconds(), k.Evicted}
}

// A link is a pod of the Fleet as JSON.
type link struct {
	events.Pod
	Source  string   `json:"source"`
	Streams []stream `json:"streams"`
}

type stream struct {
	Endpoint string    `json:"endpoint"`
	Link     string    `json:"link"`
	Since    time.Time `json:"since,omitzero"`
	Error    string    `json:"error,omitempty"`
}

func (s *Server) listPods(r call) (any, error) {
	out := struct {
		Pods  []pod  `json:"pods"`
		Fleet []link `json:"fleet"`
	}{[]pod{}, []link{}}
	for _, p := range r.ix.Pods(nil) {
		of := pod{p.Pod, p.Model, p.State.String(), p.Connected, p.LastMessage, p.Adapters, []rank{}}
		for i := range p.Ranks {
			of.Ranks = append(of.Ranks, rankOf(&p.Ranks[i]))
		}
		out.Pods = append(out.Pods, of)
	}
	if r.fleet != nil {
		for _, p := range r.fleet.Pods(nil) {
			of := link{Pod: p.Pod, Source: p.Source, Streams: []stream{}}
			for _, l := range p.Streams {
				of.Streams = append(of.Streams, stream{l.Endpoint, l.Link, l.Since, text(l.Err)})
			}
			out.Fleet = append(out.Fleet, of)
		}
	}
	return out, nil
}

func (s *Server) putPod(r call) (any, error) {
	var p events.Pod
	if err := decode(r.body, &p, true); err != nil {
		return nil, err
	}
	name := r.PathValue("pod")
	switch {
	case r.fleet == nil:
		return nil, status(http.StatusConflict, "pod: this service follows no pods")
	case p.ID != "" && p.ID != name:
		return nil, bad("id: it is %.100q, and the path has %.100q", p.ID, name)
	}
	if err := checkName("pod", name); err != nil {
		return nil, err
	}
	p.ID = name
	if err := r.fleet.Put(source, p); err != nil {
		return nil, bad("%v", err)
	}
	return p, nil
}

func (s *Server) deletePod(r call) (any, error) {
	name, followed := r.PathValue("pod"), false
	if r.fleet != nil {
		for _, p := range r.fleet.Pods(nil) {
			if p.ID != name || p.Source == "" {
				continue
			}
			r.fleet.Remove(source, name) // the Fleet forgets its blocks, if no other source has the pod
			if followed = true; p.Source != source {
				return nil, status(http.StatusConflict, "pod: %.100q comes from %s, which has to drop it", name, p.Source)
			}
		}
	}
	if !followed {
		if err := r.ix.RemovePod(name); err != nil {
			return nil, err
		}
	}
	s.loads.Forget(name)
	return struct {
		Pod string `json:"pod"`
	}{name}, nil
}

// checkName refuses a name that no pod, model or stream can have.
func checkName(field, name string) error {
	switch {
	case !utf8.ValidString(name):
		return bad("%s: the name is not UTF-8", field)
	case len(name) > engine.MaxName:
		return bad("%s: the name has %d bytes, more than %d", field, len(name), engine.MaxName)
	}
	return nil
}

// ingest applies a payload in the form in which an engine publishes it.
func (s *Server) ingest(r call) (any, error) {
	q, err := queryOf(r.Request, "model", "stream", "seq")
	if err != nil {
		return nil, err
	}
	m := kvindex.Message{Pod: r.PathValue("pod"), Model: q.Get("model"), Stream: q.Get("stream"), Payload: r.body}
	if m.Model == "" {
		if m.Model = s.cfg.Model; m.Model == "" {
			return nil, bad("model: it is missing in the query, and the service has no model of its own")
		}
	}
	for _, f := range []struct{ name, value string }{{"pod", m.Pod}, {"model", m.Model}, {"stream", m.Stream}} {
		if err := checkName(f.name, f.value); err != nil {
			return nil, err
		}
	}
	out := struct {
		Applied      bool        `json:"applied"`
		Duplicate    bool        `json:"duplicate,omitempty"`
		Restarted    bool        `json:"restarted,omitempty"`
		Gap          *events.Gap `json:"gap,omitempty"`
		Unrecognized string      `json:"unrecognized,omitempty"`
	}{Applied: true}
	if !q.Has("seq") {
		if m.Stream != "" {
			return nil, bad("stream: without seq nothing of a stream can be noticed")
		}
		return out, r.ix.Ingest(m.Pod, m.Model, m.Payload)
	}
	if m.Seq, err = strconv.ParseUint(q.Get("seq"), 10, 64); err != nil || m.Seq == math.MaxUint64 {
		return nil, bad("seq: %.40q is no number of a message", q.Get("seq"))
	}
	got, err := r.ix.IngestMessage(m)
	out.Applied, out.Duplicate, out.Restarted, out.Unrecognized = got.Applied, got.Duplicate, got.Restarted, text(got.Unrecognized)
	if got.Gap.Lost {
		out.Gap = &got.Gap
	}
	return out, err
}

// snapshot writes a snapshot, without a deadline.
func (s *Server) snapshot(w http.ResponseWriter, r *http.Request) {
	c := s.core.Load()
	if c == nil {
		write(w, http.StatusServiceUnavailable, s.noIndex())
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	out := &countingWriter{Writer: w}
	if r.Method == http.MethodHead {
		return
	}
	if err := c.ix.Snapshot(r.Context(), out); err != nil {
		if out.n == 0 {
			write(w, statusOf(err, false), fail("%v", err))
			return
		}
		s.cfg.Log.Error("a snapshot was cut off", "to", r.RemoteAddr, "error", err)
		panic(http.ErrAbortHandler) // otherwise the answer would end like a whole one
	}
}

// profiles are the endpoints of net/http/pprof.
func profiles() []endpoint {
	return []endpoint{
		{"GET", "/debug/pprof/{profile}", false, pprof.Index},
		{"GET", "/debug/pprof/profile", false, pprof.Profile},
		{"GET", "/debug/pprof/trace", false, pprof.Trace},
	}
}
