package systemtest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/stats"
)

// siblings is the number of requests of a burst, which share a prefix.
const siblings = 8

// burst is a router for fake engines whose events the test delivers.
type burst struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	told    *kvindex.Indexer // with Routed
	blind   *kvindex.Indexer // with events alone
	engines []*burstEngine
	past    []burstPrompt // prompts of earlier bursts
	tickets []usedTicket  // not yet observed

	routed, abandoned uint64
	exact, under      uint64 // requests, by the reuse that events proved against the engine's
	followers         int    // siblings sent after another one to the same rank
	midway            int    // of them: with events of the burst in between
	evictions, far    int    // bursts with evictions; bursts over several ranks
}

type burstEngine struct {
	*fakeengine.Engine
	pod        string
	rank, size int
	seq        uint64
	late       [][]byte // published, but not delivered
}

// burstPrompt is a prompt with the tokens that the engine may have stored after it.
type burstPrompt struct {
	tokens []uint32
	salt   string
}

// usedTicket is a request that was sent.
type usedTicket struct {
	burstPrompt
	score  kvindex.PodScore
	ticket kvindex.Ticket
	handle *fakeengine.Handle
}

func newBurst(t *testing.T) *burst {
	b := &burst{t: t, r: rand.New(rand.NewPCG(1, 8)), now: time.Unix(1, 0)}
	exact := kvindex.WithProfile(func(string, string) kvindex.Profile { return kvindex.Profile{Copies: kvindex.CopiesExact} })
	seed := kvindex.WithKeySeed([16]byte{1})
	b.told = open(t, exact, seed, kvindex.WithPredictions(kvindex.PredictionConfig{Now: func() time.Time { return b.now }}))
	b.blind = open(t, exact, seed)
	for i, c := range []struct {
		pod                        string
		rank, size, blocks, budget int
	}{
		{"a", 0, 16, 300, 2048},
		{"b", 0, 32, 160, 256},
		{"c", 0, 16, 260, 128}, // two ranks of a pod
		{"c", 1, 16, 400, 512},
	} {
		e := &burstEngine{pod: c.pod, rank: c.rank, size: c.size}
		var err error
		e.Engine, err = fakeengine.New(fakeengine.Config{
			Model: "m", Rank: c.rank, BlockSize: c.size, Blocks: c.blocks, TokenBudget: c.budget, HashSeed: fmt.Sprint(i), Seed: uint64(i),
			Publish: func(p []byte) { e.late = append(e.late, p) },
		})
		must(t, err)
		b.engines = append(b.engines, e)
		b.compute(e, burstPrompt{tokens: randomTokens(b.r, 40)}) // publishes the block size
		e.Drain()
	}
	b.hearAll()
	return b
}

// hear delivers the next n messages of an engine.
func (b *burst) hear(e *burstEngine, n int) {
	for _, payload := range e.late[:n] {
		m := kvindex.Message{Pod: e.pod, Model: "m", Stream: fmt.Sprint(e.rank), Seq: e.seq, Payload: payload}
		e.seq++
		for _, ix := range []*kvindex.Indexer{b.told, b.blind} {
			if r, err := ix.IngestMessage(m); err != nil || !r.Applied {
				b.t.Fatalf("message %d of %s/%d: %+v, %v", m.Seq, e.pod, e.rank, r, err)
			}
		}
	}
	e.late = e.late[n:]
}

func (b *burst) hearAll() {
	for _, e := range b.engines {
		b.hear(e, len(e.late))
	}
}

func (b *burst) compute(e *burstEngine, p burstPrompt) *fakeengine.Handle {
	b.t.Helper()
	h, err := e.Submit(fakeengine.Request{Tokens: p.tokens, Salt: p.salt, MaxTokens: 1 + b.r.IntN(30)})
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

// beginning returns the common prefix of a burst: at least three new blocks, often behind known
// ones.
func (b *burst) beginning() burstPrompt {
	fresh := randomTokens(b.r, 96+b.r.IntN(200))
	if len(b.past) == 0 || b.r.IntN(3) == 0 {
		return burstPrompt{fresh, []string{"", "pepper"}[b.r.IntN(2)]}
	}
	p := b.past[max(0, len(b.past)-1-b.r.IntN(30))]
	return burstPrompt{slices.Concat(p.tokens[:min(len(p.tokens), 400)], fresh), p.salt}
}

// run scores, routes and sends one burst.
func (b *burst) run(n int) {
	common, same := b.beginning(), b.r.IntN(2) == 0
	spread, midway := b.r.IntN(3) == 0, b.r.IntN(3) == 0
	var sent []usedTicket
	came := map[*burstEngine]bool{}
	heard := false
	for i := range siblings {
		p := common
		if !same {
			p.tokens = slices.Concat(p.tokens, randomTokens(b.r, 1+b.r.IntN(120)))
		}
		request := kvindex.Request{Model: "m", Tokens: p.tokens, Salt: p.salt, Ranks: true}
		var answer kvindex.Answer
		if err := b.told.ScoreRequest(b.t.Context(), &request, &answer); err != nil {
			b.t.Fatal(err)
		}
		s := answer.Pods[0]
		if i == 0 || spread && b.r.IntN(3) == 0 {
			s = answer.Pods[b.r.IntN(len(answer.Pods))]
		}
		alone := b.proven(request, s)
		if alone.PredictedTokens != alone.CachedTokens || s.CachedTokens != alone.CachedTokens {
			b.t.Fatalf("burst %d, sibling %d: %+v, and without Routed %+v", n, i, s, alone)
		}
		if i > 0 && b.r.IntN(20) == 0 { // routed and abandoned first
			b.abandon(request, answer.Pods[b.r.IntN(len(answer.Pods))])
		}
		ticket, err := b.told.Routed(&answer, s.Pod, s.Rank)
		if err != nil {
			b.t.Fatal(err)
		}
		b.routed++
		e := b.engine(s)
		handle := b.compute(e, p)
		switch b.r.IntN(4) {
		case 0:
			e.Step()
		case 1:
			e.Drain()
		}
		sent = append(sent, usedTicket{p, s, ticket, handle})
		if came[e] {
			b.followers++
			if heard {
				b.midway++
			} else if s.CachedTokens >= s.PredictedTokens {
				b.t.Fatalf("burst %d, sibling %d: %+v: events prove it before any has come", n, i, s)
			}
		}
		came[e] = true
		if midway && len(e.late) > 0 && b.r.IntN(2) == 0 {
			b.hear(e, 1+b.r.IntN(len(e.late)))
			heard = true
		}
	}
	for _, e := range b.engines {
		e.Drain()
	}
	if len(came) > 1 {
		b.far++
	}
	for i, u := range sent {
		b.compare(fmt.Sprintf("burst %d, sibling %d", n, i), u)
	}
	b.tickets = append(b.tickets, sent...)
}

// compare compares the prediction with the engine's reuse.
func (b *burst) compare(name string, u usedTicket) {
	reused := u.handle.CachedTokens()
	if !u.handle.Done() || u.score.PredictedTokens != reused || u.score.CachedTokens > reused {
		b.t.Fatalf("%s of %d tokens: %+v, and the engine reused %d", name, len(u.tokens), u.score, reused)
	}
	if u.score.CachedTokens == reused {
		b.exact++
	} else {
		b.under++
	}
	b.past = append(b.past, burstPrompt{slices.Concat(u.tokens, u.handle.Output()), u.salt})
}

// proven returns the score of a rank by events alone.
func (b *burst) proven(r kvindex.Request, of kvindex.PodScore) kvindex.PodScore {
	for _, s := range score(b.t, b.blind, r) {
		if s.Pod == of.Pod && s.Rank == of.Rank {
			return s
		}
	}
	b.t.Fatalf("%+v is in no answer without Routed", of)
	return of
}

// abandon routes a request to a rank and abandons it.
func (b *burst) abandon(r kvindex.Request, to kvindex.PodScore) {
	var again kvindex.Answer
	if err := b.told.ScoreRequest(b.t.Context(), &r, &again); err != nil {
		b.t.Fatal(err)
	}
	ticket, err := b.told.Routed(&again, to.Pod, to.Rank)
	if err != nil {
		b.t.Fatal(err)
	}
	b.told.Abandon(ticket)
	b.abandoned++
}

func (b *burst) engine(s kvindex.PodScore) *burstEngine {
	i := slices.IndexFunc(b.engines, func(e *burstEngine) bool { return e.pod == s.Pod && e.rank == s.Rank })
	return b.engines[i]
}

// observe reports the engines' results of some requests, or of all.
func (b *burst) observe(all bool) {
	b.tickets = slices.DeleteFunc(b.tickets, func(u usedTicket) bool {
		if !all && b.r.IntN(4) == 0 {
			return false
		}
		b.told.Observe(u.ticket, kvindex.Usage{PromptTokens: len(u.tokens), CachedTokens: u.handle.CachedTokens()})
		return true
	})
}

// check compares the counters with the calls.
func (b *burst) check() stats.Stats {
	b.t.Helper()
	s := b.told.Stats()
	p, tickets := s.Predictions, s.Tickets
	if p.Routed != b.routed+b.abandoned || p.Routed != p.Live+counted(p.Ended) {
		b.t.Fatalf("%d routed and %d abandoned: %+v", b.routed, b.abandoned, p)
	}
	want := stats.Tickets{
		Live: uint64(len(b.tickets)), Ended: map[string]uint64{"observed": b.routed - uint64(len(b.tickets)), "abandoned": b.abandoned, "aged": 0},
	}
	if !reflect.DeepEqual(tickets, want) {
		b.t.Fatalf("%+v, want %+v", tickets, want)
	}
	return s
}

// TestSiblings: for eight requests with one prefix, all sent before the first event, the
// predictions are the engines' reuse. Without Routed no figure is, except those of the first
// sibling at each rank.
func TestSiblings(t *testing.T) {
	bursts := 1000
	if testing.Short() || raceEnabled {
		bursts = 100
	}
	b := newBurst(t)
	firsts := 0
	for n := range bursts {
		before, removed := b.followers, b.told.Stats().Events["removed"]
		b.run(n)
		firsts += siblings - (b.followers - before)
		b.check()
		if b.r.IntN(2) == 0 {
			b.observe(false) // before their events
		}
		if b.r.IntN(10) == 0 {
			b.now = b.now.Add(2 * time.Second)
		}
		b.hearAll()
		if b.told.Stats().Events["removed"] > removed {
			b.evictions++
		}
		b.observe(false)
		b.check()
		if b.r.IntN(20) == 0 { // empties a cache; the engine's next message reports it
			e := b.engines[b.r.IntN(len(b.engines))]
			e.Reset()
			b.compute(e, burstPrompt{tokens: randomTokens(b.r, 20)})
			e.Drain()
			b.hearAll()
		}
	}
	b.observe(true)
	s := b.check()
	t.Logf("%d bursts, %d over several ranks, %d with evictions; %d siblings were not the first, %d of them behind events; %+v", bursts, b.far,
		b.evictions, b.followers, b.midway, s.Predictions)
	cached, predicted := make(map[string]uint64), make(map[string]uint64)
	for _, o := range s.Observed {
		t.Logf("%+v", o)
		if o.Model != "m" || o.OtherLength != 0 {
			t.Errorf("%+v", o)
		}
		for result := range o.Cached {
			cached[result] += o.Cached[result].Requests
			predicted[result] += o.Predicted[result].Requests
		}
	}
	if predicted["exact"] != b.routed || counted(predicted) != b.routed {
		t.Errorf("predicted: %+v, want %d exact ones", predicted, b.routed)
	}
	if cached["exact"] != b.exact || cached["under"] != b.under || cached["over"] != 0 || b.exact+b.under != b.routed {
		t.Errorf("cached: %+v, want %d exact and %d under", cached, b.exact, b.under)
	}
	if quiet := uint64(b.followers - b.midway); b.under < quiet || b.exact < uint64(firsts) {
		t.Errorf("events proved %d, and %d were the first at their rank", b.exact, firsts)
	}
	p := s.Predictions
	if b.evictions*2 < bursts || b.far*10 < bursts || b.midway < bursts/2 || min(p.Ended["confirmed"], p.Ended["observed"], 10*p.Ended["expired"], 10*p.Ended["abandoned"]) < uint64(bursts) {
		t.Error("the test tests too little")
	}
}
