package server

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
)

// A reservation is a request for which /v1/select has chosen a pod. Until it ends, by /v1/done
// or by its lease, it counts as load of the pod, and its prompt as cached there.
type reservation struct {
	ix *kvindex.Indexer
	id string

	mu     sync.Mutex // guards the fields below; taken before Server.mu
	timer  *time.Timer
	flight *route.Flight
	ticket kvindex.Ticket
	first  bool // the first token has come
	ended  bool
}

func (s *Server) selectPod(r call) (any, error) {
	var q struct {
		request
		OutputTokens int `json:"output_tokens"`
		LeaseMS      int `json:"lease_ms"`
	}
	if err := decode(r.body, &q, true); err != nil {
		return nil, err
	}
	lease := s.cfg.Lease
	switch {
	case q.Ranks || q.Top != 0:
		return nil, bad("ranks: neither it nor top has a meaning here")
	case q.OutputTokens < 0:
		return nil, bad("output_tokens: it is %d", q.OutputTokens)
	case q.LeaseMS < 0 || time.Duration(q.LeaseMS) > lease/time.Millisecond:
		return nil, bad("lease_ms: it is %d, from 1 to %d are possible", q.LeaseMS, lease.Milliseconds())
	case q.LeaseMS > 0:
		lease = time.Duration(q.LeaseMS) * time.Millisecond
	}
	of, err := s.of(&q.request)
	if err != nil {
		return nil, err
	}
	only := of.Pods
	of.Pods, of.Ranks = nil, true // a pod that is neither scored nor in the Fleet is never chosen
	var a kvindex.Answer
	if err := r.ix.ScoreRequest(r.ctx, of, &a); err != nil {
		return nil, err
	}
	if len(a.Pods) == 0 && a.Unknown != nil {
		return nil, a.Unknown
	}
	if only != nil {
		a.Pods = slices.DeleteFunc(a.Pods, func(p kvindex.PodScore) bool { return !slices.Contains(only, p.Pod) })
	}
	fleet := r.fleetNow()
	a.Pods = fleet.addRanks(a.Pods)
	pods := a.RoutePods(nil)
	s.loads.Fill(pods)
	i := s.cfg.Policy(&route.Request{Tokens: a.PromptTokens, Output: q.OutputTokens}, pods)
	if i < 0 || i >= len(pods) {
		return nil, status(http.StatusServiceUnavailable, "pods: none of model %.100q can be chosen", cmp.Or(of.Model, s.cfg.Model))
	}
	chosen := a.Pods[i]
	v := &reservation{ix: r.ix, id: rand.Text()}
	v.mu.Lock() // the lease must not end v before its fields are set
	defer v.mu.Unlock()
	if err := s.reserve(v, lease); err != nil {
		return nil, err
	}
	v.flight = s.loads.Sent(chosen.Pod, chosen.Rank, a.PromptTokens, chosen.PredictedTokens)
	var unpredicted error
	v.ticket, unpredicted = r.ix.Routed(&a, chosen.Pod, chosen.Rank)
	return struct {
		ID              string `json:"id"`
		Pod             string `json:"pod"`
		Rank            int    `json:"rank"`
		Host            string `json:"host,omitempty"`
		PromptTokens    int    `json:"prompt_tokens"`
		CachedTokens    int    `json:"cached_tokens"`
		PredictedTokens int    `json:"predicted_tokens"`
		LeaseMS         int64  `json:"lease_ms"`
		Unknown         string `json:"unknown,omitempty"`
		Degraded        string `json:"degraded,omitempty"`
		Unpredicted     string `json:"unpredicted,omitempty"`
	}{
		v.id, chosen.Pod, chosen.Rank, fleet.of[chosen.Pod].host, a.PromptTokens, chosen.CachedTokens, chosen.PredictedTokens,
		lease.Milliseconds(), text(a.Unknown), text(a.Degraded), text(unpredicted),
	}, nil
}

// reserve lists v, for the time of its lease.
func (s *Server) reserve(v *reservation, lease time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return status(http.StatusServiceUnavailable, "not ready: the service ends")
	case len(s.reservations) >= s.cfg.MaxReservations:
		return status(http.StatusServiceUnavailable, "busy: there are %d reservations", len(s.reservations))
	}
	s.reservations[v.id] = v
	v.timer = time.AfterFunc(lease, func() {
		s.take(v.id)
		v.expire()
	})
	return nil
}

// take unlists a reservation. It returns nil if there is none.
func (s *Server) take(id string) *reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.reservations[id]
	delete(s.reservations, id)
	return v
}

func (s *Server) find(id string) *reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reservations[id]
}

// expire ends v without an answer: the lease is over.
func (v *reservation) expire() { v.end(nil) }

// end ends v with the usage that the engine has reported, or nil if there was no answer.
func (v *reservation) end(u *kvindex.Usage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.timer.Stop()
	if v.ended {
		return
	}
	v.ended = true
	v.flight.Done()
	switch {
	case v.ticket == kvindex.Ticket{}:
	case u != nil:
		v.ix.Observe(v.ticket, *u)
	case v.first:
		v.ix.Observe(v.ticket, kvindex.Usage{PromptTokens: -1, CachedTokens: -1})
	default:
		v.ix.Abandon(v.ticket)
	}
}

func (s *Server) done(r call) (any, error) {
	var q struct {
		ID         string `json:"id"`
		FirstToken bool   `json:"first_token"`
		Failed     bool   `json:"failed"`
		Usage      *struct {
			PromptTokens *int `json:"prompt_tokens"`
			CachedTokens *int `json:"cached_tokens"`
			Details      *struct {
				CachedTokens *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := decode(r.body, &q, false); err != nil { // a usage has other fields too
		return nil, err
	}
	if q.FirstToken && q.Failed || q.Failed && q.Usage != nil || q.FirstToken && q.Usage != nil {
		return nil, bad("usage: of first_token, failed and usage one at most is possible")
	}
	var answer struct {
		Ended bool `json:"ended"`
	}
	v := s.find(q.ID)
	if v == nil {
		return nil, status(http.StatusNotFound, "id: there is no such reservation: it has ended, or its lease has")
	}
	if q.FirstToken {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.first = true; !v.ended {
			v.flight.FirstToken()
		}
		return answer, nil
	}
	s.take(q.ID)
	var u *kvindex.Usage
	if !q.Failed {
		u = &kvindex.Usage{PromptTokens: -1, CachedTokens: -1}
		if q.Usage != nil {
			if q.Usage.PromptTokens != nil {
				u.PromptTokens = *q.Usage.PromptTokens
			}
			if d := q.Usage.Details; d != nil && d.CachedTokens != nil {
				u.CachedTokens = *d.CachedTokens
			}
			if q.Usage.CachedTokens != nil {
				u.CachedTokens = *q.Usage.CachedTokens
			}
		}
	}
	v.end(u)
	answer.Ended = true
	return answer, nil
}

// fleetPods are the pods of the Fleet at one moment. It never changes.
type fleetPods struct {
	version uint64
	of      map[string]fleetPod
}

type fleetPod struct {
	host  string
	ranks int
}

// fleetNow returns the pods of the Fleet, from a copy that is renewed when they change.
func (c *core) fleetNow() *fleetPods {
	if c.fleet == nil {
		return new(fleetPods)
	}
	now := c.pods.Load()
	if now != nil && now.version == c.fleet.Version() {
		return now
	}
	next := &fleetPods{version: c.fleet.Version(), of: make(map[string]fleetPod)} // Version before Pods: a change between the calls causes another reading
	for _, p := range c.fleet.Pods(nil) {
		if p.Source != "" {
			next.of[p.ID] = fleetPod{p.Host, p.Ranks}
		}
	}
	c.pods.Store(next)
	return next
}

// addRanks appends a score of 0 for each rank of the Fleet's pods that has published nothing.
func (f *fleetPods) addRanks(scores []kvindex.PodScore) []kvindex.PodScore {
	type rank struct {
		pod string
		n   int
	}
	var seen map[rank]bool
	for i, known := 0, len(scores); i < known; i++ {
		of := f.of[scores[i].Pod]
		if of.ranks <= 1 {
			continue
		}
		if seen == nil {
			seen = make(map[rank]bool)
			for _, p := range scores {
				seen[rank{p.Pod, p.Rank}] = true
			}
		}
		for n := range of.ranks {
			if at := (rank{scores[i].Pod, n}); !seen[at] {
				seen[at] = true
				scores = append(scores, kvindex.PodScore{Pod: at.pod, Rank: n})
			}
		}
	}
	return scores
}
