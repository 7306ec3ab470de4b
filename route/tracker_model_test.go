package route_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/route"
)

const modelAge = 10 * time.Second

// at is a rank of a pod.
type at struct {
	pod  string
	rank int
}

// modelFlight is a flight, and what the model knows of it.
type modelFlight struct {
	*route.Flight
	at               at
	sent             time.Time
	prompt, uncached int
	generated        int
	computed, ended  bool
}

// gateway is a Tracker, with a list of what was sent through it.
type gateway struct {
	*route.Tracker
	name    string
	flights []*modelFlight
	aged    uint64
}

// load adds what the gateway has in flight.
func (g *gateway) load(sum map[at]route.Load) {
	for _, f := range g.flights {
		if f.ended {
			continue
		}
		l := sum[f.at]
		l.Requests++
		if f.computed {
			l.Decode += f.prompt + f.generated
		} else {
			l.Prefill += f.uncached
		}
		sum[f.at] = l
	}
}

// letter is a note on its way.
type letter struct {
	from, to int
	notes    []byte
}

// reader has the notes that a gateway has received from another one in a life.
type reader struct {
	life       int64
	seq, whole uint64
}

// world has all gateways, the network between them, and one clock.
type world struct {
	t        *testing.T
	r        *rand.Rand
	now      time.Time
	gateways [4]*gateway
	letters  []letter
	readers  map[[2]int]reader
	places   []at
	old      []*modelFlight // of gateways that have restarted
	happened map[string]int
}

func newWorld(t *testing.T, seed uint64, happened map[string]int) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), readers: make(map[[2]int]reader), happened: happened}
	for i := range 12 {
		w.places = append(w.places, at{fmt.Sprintf("pod-%d", i/2), i % 2})
	}
	for i := range w.gateways {
		w.gateways[i] = w.start(i)
	}
	return w
}

func (w *world) start(i int) *gateway {
	return &gateway{name: fmt.Sprintf("gateway-%d", i), Tracker: &route.Tracker{MaxAge: modelAge, Now: func() time.Time { return w.now }}}
}

// fill returns the loads of all pods at a gateway.
func (w *world) fill(g *gateway) map[at]route.Load {
	pods := make([]route.Pod, 0, len(w.places)+1)
	for _, p := range w.places {
		pods = append(pods, route.Pod{Name: p.pod, Rank: p.rank})
	}
	pods = append(pods, route.Pod{Name: "unknown", Load: route.Load{Requests: 1, Prefill: 1, Decode: 1}})
	g.Fill(pods)
	all := make(map[at]route.Load)
	for _, p := range pods {
		if p.Load != (route.Load{}) {
			all[at{p.Name, p.Rank}] = p.Load
		}
	}
	return all
}

// tick lets time go by. Flights that are too old end.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	for _, g := range w.gateways {
		for _, f := range g.flights {
			if !f.ended && w.now.Sub(f.sent) >= modelAge {
				f.ended = true
				g.aged++
				w.happened["flights aged"]++
			}
		}
	}
	w.look()
}

// look checks an invariant: the loads at a gateway include its own flights.
func (w *world) look() {
	w.t.Helper()
	for _, g := range w.gateways {
		own, all := make(map[at]route.Load), w.fill(g)
		g.load(own)
		for _, p := range w.places {
			l, o := all[p], own[p]
			if l.Requests < o.Requests || l.Prefill < o.Prefill || l.Decode < o.Decode {
				w.t.Fatalf("%s: %v has %+v, of which %+v are its own", g.name, p, l, o)
			}
		}
		if n := g.Aged(); n != g.aged {
			w.t.Fatalf("%s: %d flights aged, want %d", g.name, n, g.aged)
		}
	}
}

// deliver merges a note, and counts whether it came in order.
func (w *world) deliver(l letter) {
	r, n := w.readers[[2]int{l.from, l.to}], read(w.t, l.notes)
	switch {
	case n.Life < r.life:
		w.happened["notes of an older life"]++
	case n.Life > r.life:
		r = reader{life: n.Life}
	case n.Seq < r.whole:
		w.happened["notes after a later state"]++
	case n.Seq < r.seq:
		w.happened["notes out of order"]++
	}
	if n.Life == r.life {
		r.seq = max(r.seq, n.Seq)
		if n.Whole {
			r.whole = max(r.whole, n.Seq)
		}
	}
	w.readers[[2]int{l.from, l.to}] = r
	merge(w.t, w.gateways[l.to].Tracker, w.gateways[l.from].name, l.notes)
}

// post sends a note to a gateway. The network may lose, delay or repeat it.
func (w *world) post(l letter) {
	switch w.r.IntN(5) {
	case 0:
		w.happened["notes lost"]++
	case 1:
		w.happened["notes repeated"]++
		w.deliver(l)
		w.letters = append(w.letters, l)
	case 2:
		w.letters = append(w.letters, l)
	default:
		w.deliver(l)
	}
}

// agree has all gateways send their State to all. Then the loads of all are exact, and older notes that
// arrive later change nothing.
func (w *world) agree() {
	w.t.Helper()
	want := make(map[at]route.Load)
	for from, g := range w.gateways {
		g.load(want)
		n := g.State()
		for to := range w.gateways {
			if to != from {
				w.deliver(letter{from, to, n})
			}
		}
	}
	for range w.r.IntN(5) {
		w.arrive()
	}
	for _, g := range w.gateways {
		if got := w.fill(g); !maps.Equal(got, want) {
			w.t.Fatalf("%s after the states of all: %v, want %v", g.name, got, want)
		}
	}
	w.happened["states of all"]++
}

// arrive delivers one of the delayed notes.
func (w *world) arrive() {
	if len(w.letters) == 0 {
		return
	}
	i := w.r.IntN(min(len(w.letters), 20))
	l := w.letters[i]
	w.letters = slices.Delete(w.letters, i, i+1)
	w.deliver(l)
}

// flight returns a flight of a gateway, perhaps one that has ended, or of a gateway that has
// restarted.
func (w *world) flight(g *gateway) *modelFlight {
	all := g.flights
	if w.r.IntN(20) == 0 && len(w.old) > 0 {
		all = w.old
	}
	if len(all) == 0 {
		return &modelFlight{ended: true}
	}
	return all[len(all)-1-w.r.IntN(min(len(all), 40))]
}

func (w *world) step() {
	i := w.r.IntN(len(w.gateways))
	g := w.gateways[i]
	place := w.places[w.r.IntN(len(w.places))]
	switch n := w.r.IntN(1000); {
	case n < 250:
		prompt := w.r.IntN(1000)
		cached := w.r.IntN(1200) - 100
		f := &modelFlight{Flight: g.Sent(place.pod, place.rank, prompt, cached), at: place, sent: w.now, prompt: prompt, uncached: prompt - min(max(cached, 0), prompt)}
		g.flights = append(g.flights, f)
	case n < 350:
		f := w.flight(g)
		if f.computed {
			w.happened["FirstToken twice"]++
		}
		f.FirstToken()
		f.computed = true
	case n < 450:
		f, more := w.flight(g), w.r.IntN(100)-10
		if f.ended {
			w.happened["Tokens of a flight that has ended"]++
		}
		f.Tokens(more)
		f.computed = true
		f.generated += max(more, 0)
	case n < 650:
		f := w.flight(g)
		if f.ended {
			w.happened["Done of a flight that has ended"]++
		}
		f.Done()
		f.ended = true
	case n < 750:
		notes := g.Changes()
		for to := range w.gateways {
			if to != i {
				w.post(letter{i, to, notes})
			}
		}
	case n < 770:
		if to := w.r.IntN(len(w.gateways)); to != i {
			w.post(letter{i, to, g.State()})
		}
	case n < 920:
		w.arrive()
	case n < 970:
		w.tick(time.Duration(w.r.IntN(400)) * time.Millisecond)
	case n < 980:
		w.happened["Forget"]++
		g.Forget(place.pod)
		for _, f := range g.flights {
			f.ended = f.ended || f.at.pod == place.pod
		}
	case n < 987:
		w.happened["restarts"]++
		w.tick(time.Millisecond)
		w.old = append(w.old, g.flights...)
		for _, f := range g.flights {
			f.ended = true
		}
		w.gateways[i] = w.start(i)
		for from := range w.gateways {
			delete(w.readers, [2]int{from, i})
		}
	case n < 993:
		w.happened["ForgetOrigin"]++
		g.ForgetOrigin(w.gateways[w.r.IntN(len(w.gateways))].name)
	default:
		w.agree()
	}
}

// TestTrackerModel runs four gateways that send each other their loads, through a network that loses,
// repeats, delays and reorders notes, against lists of all flights.
func TestTrackerModel(t *testing.T) {
	const seeds, steps = 4, 10_000
	happened := make(map[string]int)
	for seed := range uint64(seeds) {
		w := newWorld(t, seed, happened)
		for i := range steps {
			w.step()
			if i%4 == 0 {
				w.look()
			}
		}
		for _, g := range w.gateways {
			for _, f := range g.flights {
				f.Done()
				f.ended = true
			}
		}
		w.agree()
		for len(w.letters) > 0 {
			w.arrive()
		}
		for _, g := range w.gateways {
			if all := w.fill(g); len(all) > 0 {
				t.Fatalf("%s: %v when all is done", g.name, all)
			}
		}
		w.tick(modelAge)
		w.tick(modelAge)
		for _, g := range w.gateways {
			if pods, notes := g.InMemory(); pods+notes > 0 {
				t.Errorf("%s has %d pods and %d notes in memory when nothing is in flight", g.name, pods, notes)
			}
		}
	}
	t.Logf("%6d steps", seeds*steps)
	for _, what := range slices.Sorted(maps.Keys(happened)) {
		t.Logf("%6d %s", happened[what], what)
	}
	for _, what := range []string{
		"notes lost", "notes repeated", "notes after a later state", "notes out of order", "notes of an older life", "flights aged", "states of all",
		"FirstToken twice", "Tokens of a flight that has ended", "Done of a flight that has ended", "Forget", "restarts", "ForgetOrigin",
	} {
		if happened[what] < 100 {
			t.Errorf("%d times %s, want at least 100", happened[what], what)
		}
	}
}
