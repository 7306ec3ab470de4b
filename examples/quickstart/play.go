package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/route"
)

// Parameters of all fleets. Caches and speed are about a twentieth of those of a GPU.
const (
	model     = "demo"
	pods      = 4
	blockSize = 16                    // tokens
	prefill   = 1_000                 // prompt tokens that a pod computes in a second, one prompt at a time
	decode    = 20 * time.Millisecond // for a token of an answer; all answers of a pod side by side
	outage    = 30 * time.Second      // of pod-0, when it restarts
)

// fleet has the parameters that differ between fleets.
type fleet struct {
	routers int
	blocks  int           // size of the cache of a pod
	restart time.Duration // time of the restart of pod-0; 0: never
}

// policy is a rule by which routers choose a pod.
type policy struct {
	name, why   string
	events      bool // routers subscribe to the KV events of all pods
	approximate bool // routers estimate the caches from what they have routed, and from usage
	choose      func(seed uint64) route.Policy
}

var (
	roundRobin = policy{
		name:   "round-robin",
		why:    "The turns of a conversation go to all pods, so each cache would have to hold all conversations.",
		choose: func(uint64) route.Policy { return route.RoundRobin() },
	}
	loadAlone = policy{
		name:   "load alone",
		why:    "A turn goes where the fewest requests are in flight, whatever is cached there.",
		choose: func(seed uint64) route.Policy { return route.TiesByChance(route.LeastRequests, seed) },
	}
	approximate = policy{
		name:        "approximate",
		why:         "A router knows only what it has routed itself, half of all requests, and the usage of these.",
		approximate: true,
		choose:      func(uint64) route.Policy { return route.Default },
	}
	byEvents = policy{
		name:   "events",
		why:    "Pods publish which blocks they store and remove, so both routers know what each pod holds.",
		events: true,
		choose: func(uint64) route.Policy { return route.Default },
	}
)

// outcome is a request that was served.
type outcome struct {
	at                        time.Duration // when it arrived
	prompt, predicted, cached int           // numbers of tokens
}

// A simulation plays a trace. Engines, sockets, events and routers are real. Time is virtual:
// it passes only between two entries of the agenda, so a slow machine changes no figure.
type simulation struct {
	policy
	now       atomic.Int64 // virtual nanoseconds; goroutines of subscribers read it
	agenda    []entry      // in order of time
	pods      map[string]*pod
	names     []string // of the pods that serve
	routers   []*router
	listening []*kvindex.Indexer // those of the routers, with events
	outcomes  []outcome
}

type entry struct {
	at time.Duration
	do func() error
}

// pod is an engine with a queue.
type pod struct {
	*kvindextest.Engine
	busy  bool // the engine is computing a prompt
	queue []*flight
}

// router has the parts of one gateway.
type router struct {
	*kvindex.Indexer
	load   route.Tracker
	choose route.Policy
}

// flight is a request that was routed.
type flight struct {
	*request
	*route.Flight
	router    *router
	ticket    kvindex.Ticket
	predicted int
}

// play has a new fleet serve a trace.
func play(ctx context.Context, trace []request, p policy, f fleet) (_ []outcome, err error) {
	s := &simulation{policy: p, pods: make(map[string]*pod)}
	ctx, cancel := context.WithCancel(ctx)
	var subscribers sync.WaitGroup
	defer func() {
		cancel()
		subscribers.Wait()
		for _, pod := range s.pods {
			_ = pod.Close()
		}
		for _, r := range s.routers {
			_ = r.Close()
		}
	}()
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: name, Model: model, BlockSize: blockSize, Blocks: f.blocks})
		if err != nil {
			return nil, err
		}
		s.pods[name], s.names = &pod{Engine: engine}, append(s.names, name)
	}
	for range f.routers {
		if err := s.addRouter(ctx, &subscribers, f); err != nil {
			return nil, err
		}
	}

	for i := range trace {
		s.schedule(trace[i].at, func() error { return s.route(ctx, &trace[i]) })
	}
	if f.restart > 0 {
		all := s.names
		s.schedule(f.restart, func() error { s.names = all[1:]; return nil }) // pod-0 serves its queue, but gets no new requests
		s.schedule(f.restart+outage, func() error { s.names = all; return s.restart(ctx, s.pods[all[0]]) })
	}
	for len(s.agenda) > 0 && err == nil {
		next := s.agenda[0]
		s.agenda = s.agenda[1:]
		s.now.Store(int64(next.at))
		err = next.do()
	}
	return s.outcomes, err
}

// schedule adds an entry to the agenda, after those for the same time.
func (s *simulation) schedule(at time.Duration, do func() error) {
	i := sort.Search(len(s.agenda), func(i int) bool { return s.agenda[i].at > at })
	s.agenda = slices.Insert(s.agenda, i, entry{at, do})
}

// addRouter makes a router, which subscribes to all pods if the policy needs events.
func (s *simulation) addRouter(ctx context.Context, running *sync.WaitGroup, f fleet) error {
	profile := kvindex.Profile{}
	if s.approximate {
		profile.Approximate = &kvindex.Approximate{BlockTokens: blockSize, Blocks: f.blocks - 1} // as in vLLM, one block stays empty
	}
	indexer, err := kvindex.New(
		kvindex.WithProfile(func(string, string) kvindex.Profile { return profile }),
		kvindex.WithPredictions(kvindex.PredictionConfig{Now: func() time.Time { return time.Unix(0, s.now.Load()) }}),
		kvindex.WithKeySeed([16]byte{1}), // a fixed seed makes all runs equal
	)
	if err != nil {
		return err
	}
	r := &router{Indexer: indexer, choose: s.choose(uint64(len(s.routers)))}
	s.routers = append(s.routers, r)
	if !s.events {
		return nil
	}
	s.listening = append(s.listening, indexer)
	for name, pod := range s.pods {
		sub, err := events.NewSubscriber(indexer.Sink(), events.SubscriberConfig{
			Endpoint: pod.Endpoint(), Pod: name, Model: model, Backoff: 10 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		running.Go(func() { _ = sub.Run(ctx) }) // until ctx ends
		if err := pod.WaitSubscribers(ctx, len(s.listening)); err != nil {
			return err
		}
	}
	return nil
}

// route is the code of a gateway: it scores a request, chooses a pod, registers the choice, and
// sends the request.
func (s *simulation) route(ctx context.Context, req *request) error {
	r := s.routers[req.router%uint(len(s.routers))]
	var answer kvindex.Answer
	if err := r.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: req.prompt, Pods: s.names}, &answer); err != nil {
		return err
	}
	candidates := answer.RoutePods(nil)
	r.load.Fill(candidates)
	best := answer.Pods[r.choose(&route.Request{Tokens: answer.PromptTokens}, candidates)]
	ticket, _ := r.Routed(&answer, best.Pod, best.Rank) // ErrBlockSize: without events there is no prediction
	sent := r.load.Sent(best.Pod, best.Rank, answer.PromptTokens, best.PredictedTokens)

	pod := s.pods[best.Pod]
	pod.queue = append(pod.queue, &flight{req, sent, r, ticket, best.PredictedTokens})
	return s.serve(ctx, pod)
}

// serve has an idle pod serve the next request of its queue. The engine does so at once, and the
// routers apply its events. Then prompt and answer take their virtual time.
func (s *simulation) serve(ctx context.Context, pod *pod) error {
	if pod.busy || len(pod.queue) == 0 {
		return nil
	}
	f := pod.queue[0]
	pod.queue, pod.busy = pod.queue[1:], true
	cached, err := pod.Serve(ctx, kvindextest.Request{Tokens: f.prompt, Output: f.answer})
	if err != nil {
		return err
	}
	for _, indexer := range s.listening {
		if err := pod.WaitApplied(ctx, indexer); err != nil {
			return err
		}
	}
	s.outcomes = append(s.outcomes, outcome{f.at, len(f.prompt), f.predicted, cached})

	firstToken := time.Duration(s.now.Load()) + time.Duration(len(f.prompt)-cached)*time.Second/prefill
	s.schedule(firstToken, func() error {
		f.FirstToken()
		pod.busy = false
		return s.serve(ctx, pod)
	})
	s.schedule(firstToken+time.Duration(len(f.answer))*decode, func() error {
		f.Done()
		f.router.Observe(f.ticket, kvindex.Usage{PromptTokens: len(f.prompt), CachedTokens: cached})
		return nil
	})
	return nil
}

// restart empties the cache of a pod. The routers learn of it only from the pod's events.
func (s *simulation) restart(ctx context.Context, pod *pod) error {
	if err := pod.Restart(); err != nil {
		return err
	}
	return pod.WaitSubscribers(ctx, len(s.listening))
}
