package route_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvindex/kvindex/route"
)

func TestReported(t *testing.T) {
	c := newClock()
	tr := c.start()
	// Without flights of its own, the Tracker knows no length of prompts.
	tr.Reported("a", 0, 3, 1)
	want(t, "no flights yet", loadOf(tr, "a"), route.Load{Requests: 4})
	// Two of the requests that the engine reports are flights of the Tracker. Each other request counts as
	// their mean: 100 tokens, 60 of them uncached.
	one, two := tr.Sent("a", 0, 150, 50), tr.Sent("a", 0, 50, 30)
	want(t, "the report stays", loadOf(tr, "a"), route.Load{Requests: 6, Prefill: 120})
	tr.Reported("a", 0, 3, 1)
	want(t, "half of them wait", loadOf(tr, "a"), route.Load{Requests: 4, Prefill: 120 + 90, Decode: 50})
	// Flights and Notes count exactly, also after the report.
	one.FirstToken()
	two.Done()
	want(t, "flights go on", loadOf(tr, "a"), route.Load{Requests: 3, Prefill: 90, Decode: 150 + 50})
	notes := route.Notes{Life: 1, Seq: 1, Pods: []route.Note{{Pod: "a", Load: route.Load{Requests: 3, Prefill: 7}}}}
	merge(t, tr, "other", notes.Encode())
	tr.Reported("a", 0, 0, 4)
	want(t, "all are known", loadOf(tr, "a"), route.Load{Requests: 4, Prefill: 7, Decode: 150})
	tr.Reported("a", 0, 0, 6)
	tr.ForgetOrigin("other")
	tr.ForgetOrigin("")
	want(t, "gateways do not count as engines", loadOf(tr, "a"), route.Load{Requests: 3, Decode: 150 + 200})
	tr.Reported("a", 0, 0, 0)
	want(t, "taken back", loadOf(tr, "a"), route.Load{Requests: 1, Decode: 150})
	// A report of an engine is no load of this gateway.
	tr.Reported("b", 0, 5, 0)
	if n := read(t, tr.State()); len(n.Pods) != 1 || n.Pods[0].Load != (route.Load{Requests: 1, Decode: 150}) {
		t.Errorf("the state of the gateway is %+v", n)
	}
	want(t, "a pod without flights", loadOf(tr, "b"), route.Load{Requests: 5, Prefill: 300})
	tr.Forget("b")
	want(t, "forgotten", loadOf(tr, "b"), route.Load{})
	tr.Reported("b", 0, -5, 2)
	want(t, "below 0", loadOf(tr, "b"), route.Load{Requests: 2, Decode: 200})
	tr.Reported("b", 0, math.MaxInt, math.MaxInt)
	want(t, "huge", loadOf(tr, "b"), route.Load{Requests: math.MaxInt32, Prefill: math.MaxInt32, Decode: math.MaxInt32})
	// A report counts for a MaxAge, and leaves nothing in memory.
	one.Done()
	c.add(11 * time.Minute)
	want(t, "old", loadOf(tr, "b"), route.Load{})
	c.add(11 * time.Minute)
	loadOf(tr, "b")
	c.add(11 * time.Minute)
	loadOf(tr, "b")
	if pods, notes := tr.InMemory(); pods+notes > 0 {
		t.Errorf("%d pods and %d notes are left", pods, notes)
	}
}

// TestReportedAgainstPlain sends, ends and reports at random, beside another gateway.
func TestReportedAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	type flight struct {
		*route.Flight
		prefill, decode int
	}
	type pod struct {
		flights                   []*flight
		note, report              route.Load
		sent, fullness, computing float64
	}
	for range 50 {
		tr := newClock().start()
		pods := make([]pod, 3)
		var flights, prompts, prefills float64
		for step := range 200 {
			i := r.IntN(len(pods))
			p, name := &pods[i], fmt.Sprint("pod-", i)
			switch r.IntN(5) {
			case 0, 1:
				prompt := 8 * r.IntN(100)
				f := &flight{prefill: prompt - prompt/2}
				f.Flight = tr.Sent(name, 0, prompt, prompt/2)
				p.sent, p.fullness, p.computing = p.sent+1, p.fullness+float64(prompt), p.computing+float64(f.prefill)
				if r.IntN(2) == 0 {
					f.FirstToken()
					f.prefill, f.decode = 0, prompt
				}
				p.flights = append(p.flights, f)
			case 2:
				if n := len(p.flights); n > 0 {
					p.flights[n-1].Done()
					p.flights = p.flights[:n-1]
				}
			case 3:
				p.note = route.Load{Requests: r.IntN(5), Prefill: r.IntN(100), Decode: r.IntN(100)}
				merge(t, tr, "other", route.Notes{Life: 1, Seq: uint64(step + 1), Pods: []route.Note{{Pod: name, Load: p.note}}}.Encode())
			case 4:
				waiting, running := r.IntN(20), r.IntN(20)
				flights, prompts, prefills = flights+p.sent, prompts+p.fullness, prefills+p.computing
				p.sent, p.fullness, p.computing = 0, 0, 0
				p.report = route.Load{}
				if rest := waiting + running - len(p.flights) - p.note.Requests; rest > 0 {
					queued := float64(rest) * float64(waiting) / float64(waiting+running)
					p.report.Requests = rest
					if flights > 0 {
						p.report.Prefill = int(queued * prefills / flights)
						p.report.Decode = int((float64(rest) - queued) * prompts / flights)
					}
				}
				tr.Reported(name, 0, waiting, running)
			}
			expect := p.note
			expect.Requests += p.report.Requests + len(p.flights)
			expect.Prefill += p.report.Prefill
			expect.Decode += p.report.Decode
			for _, f := range p.flights {
				expect.Prefill += f.prefill
				expect.Decode += f.decode
			}
			want(t, fmt.Sprint("step ", step), loadOf(tr, name), expect)
		}
	}
}
