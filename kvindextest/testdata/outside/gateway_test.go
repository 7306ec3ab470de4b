package gateway

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/kvindextest"
)

// fleet has three engines and the gateway in front of them.
type fleet struct {
	*testing.T
	gateway *Gateway
	engines map[string]*kvindextest.Engine
	random  *rand.Rand
	talks   [][]uint32
}

func newFleet(t *testing.T, replay bool) *fleet {
	f := &fleet{T: t, engines: make(map[string]*kvindextest.Engine), random: rand.New(rand.NewPCG(1, 2))}
	var pods []Pod
	for _, name := range []string{"pod-a", "pod-b", "pod-c"} {
		e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: name, Model: model, Blocks: 200, Replay: replay})
		f.must(err)
		t.Cleanup(func() { e.Close() })
		f.engines[name] = e
		pods = append(pods, Pod{name, e.Endpoint(), e.ReplayEndpoint()})
	}
	var err error
	f.gateway, err = New(pods)
	f.must(err)
	t.Cleanup(f.gateway.Close)
	f.wait()
	return f
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// wait waits until the gateway has applied all messages that it can get.
func (f *fleet) wait() {
	f.Helper()
	for _, e := range f.engines {
		f.must(e.WaitApplied(f.Context(), f.gateway.index))
	}
}

// chat routes the next turn of some conversation. It returns the gateway's prediction
// and the engine's figure.
func (f *fleet) chat() (predicted, cached int) {
	f.Helper()
	var prompt []uint32
	if len(f.talks) > 0 && f.random.IntN(3) > 0 {
		prompt = f.talks[len(f.talks)-1-f.random.IntN(min(len(f.talks), 10))]
	}
	prompt = append(slices.Clone(prompt), f.tokens(20+f.random.IntN(50))...)
	pod, predicted, err := f.gateway.Route(f.Context(), prompt)
	f.must(err)
	answer := f.tokens(1 + f.random.IntN(30))
	cached, err = f.engines[pod].Serve(f.Context(), kvindextest.Request{Tokens: prompt, Output: answer})
	f.must(err)
	if talk := append(prompt, answer...); len(talk) < 1000 {
		f.talks = append(f.talks, talk)
	}
	return predicted, cached
}

func (f *fleet) tokens(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = f.random.Uint32N(1000)
	}
	return tokens
}

func TestPredictions(t *testing.T) {
	f := newFleet(t, false)
	hits := 0
	for n := range 300 {
		predicted, cached := f.chat()
		if predicted != cached {
			t.Fatalf("chat %d: predicted %d, cached %d", n, predicted, cached)
		}
		hits += cached
		f.wait()
	}
	if hits == 0 {
		t.Error("nothing was cached")
	}
}

// TestFaults: after faults of engines and connections that the gateway has noticed, no
// prediction is too high. With replay sockets all predictions are exact.
func TestFaults(t *testing.T) {
	for name, replay := range map[string]bool{"no replay": false, "replay": true} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, replay)
			for n := range 100 {
				e := f.engines[[]string{"pod-a", "pod-b", "pod-c"}[n%3]]
				switch n % 10 {
				case 3:
					e.Drop(1)
					for range 2 { // the second message shows that the first is lost
						_, err := e.Serve(f.Context(), kvindextest.Request{Tokens: f.tokens(100)})
						f.must(err)
					}
				case 6:
					e.Disconnect()
				case 9:
					f.must(e.Restart())
				}
				f.wait()
				predicted, cached := f.chat()
				if predicted > cached || replay && predicted < cached {
					t.Fatalf("chat %d: predicted %d, cached %d", n, predicted, cached)
				}
			}
		})
	}
}
