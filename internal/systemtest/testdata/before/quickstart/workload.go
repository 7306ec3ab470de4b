package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize"
)

// workload is conversations that go on at once. Equal workloads ask the same
// things in every play.
type workload struct {
	seed     uint64
	talks    int
	turns    int
	siblings int // how many answers each turn asks for at once; the first one is kept
}

// order is when a turn comes if all conversations go on at one pace, and in a random
// order in each round. Round-robin goes by it and not by the clock, so that it is the
// same in every play.
func (w workload) order(talk, turn int) int {
	return turn*w.talks + rand.New(rand.NewPCG(w.seed, 1<<32+uint64(turn))).Perm(w.talks)[talk]
}

// policy is a route.Policy for the n-th turn.
type policy func(n int, r *route.Request, pods []route.Pod) int

func byCache(_ int, r *route.Request, pods []route.Pod) int { return route.Default(r, pods) }

// roundRobin takes the pods in turn, whatever they hold.
func roundRobin(n int, _ *route.Request, all []route.Pod) int {
	want := fmt.Sprintf("pod-%c", 'a'+n%pods)
	return slices.IndexFunc(all, func(p route.Pod) bool { return p.Name == want })
}

// mode is how a workload is played.
type mode struct {
	choose policy
	events bool   // else the Indexer hears nothing, and goes by what is sent
	shown  *table // prints the requests; nil: nobody does
}

// play has a fresh fleet serve the workload.
func play(ctx context.Context, tok tokenize.Tokenizer, w workload, m mode) (*result, error) {
	opts := []kvindex.Option{kvindex.WithModel(model, kvindex.Model{Tokenizer: tok})}
	if !m.events {
		opts = append(opts, kvindex.WithProfile(func(string, string) kvindex.Profile {
			return kvindex.Profile{Approximate: &kvindex.Approximate{BlockTokens: blockSize, Blocks: blocks - 1}}
		}))
	}
	f, err := start(ctx, m.events, opts...)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	r := &router{fleet: f, tok: tok, mode: m, result: &result{computed: make([]int, pods)}}
	r.header()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var talks sync.WaitGroup
	for i := range w.talks {
		talks.Go(func() {
			if err := r.talk(ctx, i, w); err != nil {
				cancel(err)
			}
		})
	}
	talks.Wait()
	r.footer()
	r.result.observe(f.indexer.Stats().Observed)
	return r.result, context.Cause(ctx)
}

// router is what a gateway does with each request.
type router struct {
	mode
	fleet *fleet
	tok   tokenize.Tokenizer
	sent  route.Tracker

	mu     sync.Mutex // guards result, shown; held until the engine has the request
	result *result
}

// talk plays one conversation.
func (r *router) talk(ctx context.Context, id int, w workload) error {
	random := rand.New(rand.NewPCG(w.seed, uint64(id)))
	prompt := system
	for turn := range w.turns {
		prompt += "\nUser: " + speech(random, 12+random.IntN(40)) + "\nAssistant:"
		answer := " " + speech(random, 8+random.IntN(24))
		if err := r.turn(ctx, place{id, turn, w.order(id, turn)}, w.siblings, prompt, answer); err != nil {
			return err
		}
		prompt += answer
	}
	return nil
}

// place is where a turn stands: in which conversation, in that, and by w.order.
type place struct{ talk, turn, n int }

// turn asks for so many answers to a prompt at once, and waits for them.
func (r *router) turn(ctx context.Context, at place, siblings int, prompt, answer string) error {
	tokens, err := r.tok.Encode(ctx, nil, prompt, true)
	if err != nil {
		return err
	}
	both, err := r.tok.Encode(ctx, nil, prompt+answer, true)
	if err != nil {
		return err
	}
	sent := make([]request, siblings)
	for i := range sent {
		if sent[i], err = r.send(ctx, at, kvindextest.Request{Tokens: tokens, Output: both[len(tokens):]}); err != nil {
			return err
		}
	}
	for i := range sent {
		if err := r.finish(ctx, at, &sent[i]); err != nil {
			return err
		}
	}
	return nil
}

// request is one that was sent.
type request struct {
	prompt int // tokens
	flight *route.Flight
	scores []kvindex.PodScore
	chosen kvindex.PodScore
	ticket kvindex.Ticket
	wait   func(context.Context) (cached int, err error)
}

// send scores a request, chooses a pod, says so to the Indexer, and sends it there.
func (r *router) send(ctx context.Context, at place, req kvindextest.Request) (sent request, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var answer kvindex.Answer
	err = r.fleet.indexer.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: req.Tokens, Pods: r.fleet.names()}, &answer)
	if err != nil {
		return sent, err
	}
	all := answer.RoutePods(nil)
	r.sent.Fill(all)
	s := answer.Pods[r.choose(at.n, &route.Request{Tokens: answer.PromptTokens}, all)]
	ticket, err := r.fleet.indexer.Routed(&answer, s.Pod, s.Rank)
	if err != nil {
		return sent, err
	}
	wait, err := r.pod(s.Pod).Submit(req)
	if err != nil {
		r.fleet.indexer.Abandon(ticket)
		return sent, err
	}
	flight := r.sent.Sent(s.Pod, s.Rank, answer.PromptTokens, s.PredictedTokens)
	return request{len(req.Tokens), flight, answer.Pods, s, ticket, wait}, nil
}

// finish waits for the answer to a request, and says what the engine reports.
func (r *router) finish(ctx context.Context, at place, sent *request) error {
	cached, err := sent.wait(ctx)
	sent.flight.Done()
	if err != nil {
		r.fleet.indexer.Abandon(sent.ticket)
		return err
	}
	r.fleet.indexer.Observe(sent.ticket, kvindex.Usage{PromptTokens: sent.prompt, CachedTokens: cached})

	r.mu.Lock()
	defer r.mu.Unlock()
	pod := sent.chosen.Pod
	r.result.prompt += sent.prompt
	r.result.cached += cached
	r.result.computed[pod[len(pod)-1]-'a'] += sent.prompt - cached
	r.line(at, sent, cached)
	return nil
}

func (r *router) pod(name string) *pod {
	for _, p := range r.fleet.pods {
		if p.name == name {
			return p
		}
	}
	return nil
}

// table prints turns.
type table struct {
	out   io.Writer
	all   bool // not the first ones only
	turns int
}

const firstTurns = 8

func (r *router) header() {
	if r.shown == nil {
		return
	}
	fmt.Fprintf(r.shown.out, "%-12s %7s", "turn", "prompt")
	for _, p := range r.fleet.pods {
		fmt.Fprintf(r.shown.out, " %8s", p.name)
	}
	fmt.Fprintf(r.shown.out, " %11s %8s %8s\n", "predicted", "cached", "actual")
}

func (r *router) line(at place, sent *request, cached int) {
	t := r.shown
	if t == nil {
		return
	}
	if t.turns++; !t.all && t.turns > firstTurns {
		return
	}
	fmt.Fprintf(t.out, "%-12s %7d", fmt.Sprintf("talk %d, %d", at.talk+1, at.turn+1), sent.prompt)
	for _, p := range r.fleet.pods {
		for _, s := range sent.scores {
			mark := ""
			if p.name == sent.chosen.Pod {
				mark = ">"
			}
			if s.Pod == p.name {
				fmt.Fprintf(t.out, " %8s", fmt.Sprint(mark, s.PredictedTokens))
			}
		}
	}
	fmt.Fprintf(t.out, " %11d %8d %8d\n", sent.chosen.PredictedTokens, sent.chosen.CachedTokens, cached)
}

func (r *router) footer() {
	if t := r.shown; t != nil && !t.all && t.turns > firstTurns {
		fmt.Fprintf(t.out, "... and %d more (-v shows them)\n", t.turns-firstTurns)
	}
}

// result is what a play came to.
type result struct {
	prompt, cached int   // tokens of all prompts
	computed       []int // tokens of prompts, by pod
	// predicted and proven are how right the figures of the chosen pods were: those that
	// count what was just sent, and those that go by events alone.
	predicted, proven accuracy
}

// accuracy counts requests whose figure was exact, too high and too low.
type accuracy struct{ exact, high, low uint64 }

func (a *accuracy) add(b kvindex.Accuracy) {
	a.exact, a.high, a.low = a.exact+b.Exact, a.high+b.Over, a.low+b.Under
}

func (a accuracy) String() string {
	return fmt.Sprintf("%d were exact, %d too high and %d too low", a.exact, a.high, a.low)
}

func (a accuracy) sum() uint64 { return a.exact + a.high + a.low }

// observe takes over what the Indexer has counted by model and state.
func (r *result) observe(all []kvindex.Observations) {
	for _, o := range all {
		r.predicted.add(o.Predicted)
		r.proven.add(o.Cached)
	}
}

// missed is how many tokens of the prompts had to be computed.
func (r *result) missed() int { return r.prompt - r.cached }

// less is how many percent less had to be computed than in another play.
func (r *result) less(than *result) float64 {
	return 100 * (1 - float64(r.missed())/float64(max(than.missed(), 1)))
}

func (r *result) print(out io.Writer, name string) {
	fmt.Fprintf(out, "%-12s %8.1f%% %23d   %v\n", name, 100*float64(r.cached)/float64(max(r.prompt, 1)), r.missed(), r.computed)
}

const system = `You are the assistant of a small library in a harbour town. Readers ask you about books, opening hours and the
history of the town. Answer in two or three sentences, name the shelf where a book stands, and say so when you do not know. Never
invent a title. The reading room is open from nine to six, on Saturdays to one; the archive opens on Thursdays by appointment only.`

var words = strings.Fields(`the a book shelf harbour town archive reading room old map ship captain letter story about where when
who wrote is was found in on under near and of to history garden winter summer market tower bridge river stone paper blue green
first second new open closed today tomorrow please tell me more thank you question answer page author year visit child music`)

// speech is n words that mean nothing.
func speech(r *rand.Rand, n int) string {
	said := make([]string, n)
	for i := range said {
		said[i] = words[r.IntN(len(words))]
	}
	return strings.Join(said, " ") + "."
}
