package kvindextest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

const model = "m"

// rig is an engine and an Indexer that listens to it, and waits a minute for a replay: no machine
// is too slow for that.
type rig struct {
	t   *testing.T
	ctx context.Context
	*kvindextest.Engine
	ix *kvindex.Indexer
}

func newRig(t *testing.T, cfg kvindextest.EngineConfig) *rig {
	t.Helper()
	return newHastyRig(t, cfg, time.Minute)
}

// newHastyRig is newRig with an Indexer that gives up a replay after so long without an answer.
func newHastyRig(t *testing.T, cfg kvindextest.EngineConfig, mute time.Duration) *rig {
	t.Helper()
	zmtptest.NoLeaks(t)
	r := &rig{t: t, ctx: zmtptest.Context(t)}
	var err error
	r.ix, err = kvindex.New()
	r.must(err)
	t.Cleanup(func() { r.ix.Close() })
	cfg.Pod, cfg.Model = "a", model
	r.Engine, err = kvindextest.NewEngine(cfg)
	r.must(err)
	t.Cleanup(func() { r.must(r.Close()) })
	subscribe(t, r.ix, events.SubscriberConfig{
		Endpoint: r.Endpoint(), Replay: r.ReplayEndpoint(), Pod: "a", Model: model,
		Backoff: 20 * time.Millisecond, ReplayTimeout: mute,
	})
	r.must(r.WaitSubscribers(r.ctx, 1))
	return r
}

// subscribe has a Subscriber run until the test ends.
func subscribe(t *testing.T, ix *kvindex.Indexer, cfg events.SubscriberConfig) {
	t.Helper()
	sub, err := events.NewSubscriber(ix.Sink(), cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = sub.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// serve serves a prompt, without waiting for the Indexer.
func (r *rig) serve(prompt []uint32) (cached int) {
	r.t.Helper()
	cached, err := r.Serve(r.ctx, kvindextest.Request{Tokens: prompt})
	r.must(err)
	return cached
}

func (r *rig) predicted(q kvindextest.Request) (cached int, state kvindex.State) {
	r.t.Helper()
	var a kvindex.Answer
	r.must(r.ix.ScoreRequest(r.ctx, &kvindex.Request{Model: model, Tokens: q.Tokens, Adapter: q.Adapter, Salt: q.Salt, Pods: []string{"a"}}, &a))
	return a.Pods[0].CachedTokens, a.Pods[0].State
}

// expect waits for the Indexer and compares its score of a prompt.
func (r *rig) expect(prompt []uint32, cached int, state kvindex.State) {
	r.t.Helper()
	r.must(r.WaitApplied(r.ctx, r.ix))
	if got, s := r.predicted(kvindextest.Request{Tokens: prompt}); got != cached || s != state {
		r.t.Errorf("predicted %d, %v, want %d, %v", got, s, cached, state)
	}
}

// prompt returns n tokens that differ from those of all other ids.
func prompt(id, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(id*1000 + i)
	}
	return tokens
}

// TestPredictions: predictions are exact, with evicted blocks, answers, adapters
// and salts.
func TestPredictions(t *testing.T) {
	for name, cfg := range map[string]kvindextest.EngineConfig{
		"as it comes": {Blocks: 100},
		"replay":      {Blocks: 100, Replay: true},
		"blocks of 7": {Blocks: 200, BlockSize: 7, Rank: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cfg)
			random := rand.New(rand.NewPCG(1, 2))
			sum := 0
			for range 300 {
				q := kvindextest.Request{
					Tokens:  prompt(random.IntN(8), 1+random.IntN(300)),
					Output:  prompt(9, random.IntN(40)),
					Adapter: []string{"", "", "lora"}[random.IntN(3)],
					Salt:    []string{"", "", "salt"}[random.IntN(3)],
				}
				told, state := r.predicted(q)
				now := r.Cached(q)
				cached, err := r.Serve(r.ctx, q)
				r.must(err)
				if told != cached || now != cached {
					t.Fatalf("predicted %d, Cached %d, were %d; %v", told, now, cached, state)
				}
				sum += cached
				r.must(r.WaitApplied(r.ctx, r.ix))
			}
			if removed := r.ix.Pods(nil)[0].Ranks[0].Removed; sum == 0 || removed == 0 {
				t.Errorf("%d tokens were cached, %d blocks evicted", sum, removed)
			}
		})
	}
}

// TestSubmit: requests are served in the order of Submit, so all but the first request for a prompt
// find it cached.
func TestSubmit(t *testing.T) {
	r := newRig(t, kvindextest.EngineConfig{})
	for n := range 50 {
		var waits []func(context.Context) (int, error)
		for i := range 8 {
			wait, err := r.Submit(kvindextest.Request{Tokens: slices.Concat(prompt(n, 160), prompt(60+i, i))})
			r.must(err)
			waits = append(waits, wait)
		}
		for i, wait := range slices.Backward(waits) {
			want := 160
			if i == 0 {
				want = 0
			}
			if cached, err := wait(r.ctx); err != nil || cached != want {
				t.Fatalf("request %d of prompt %d: %d cached tokens, want %d; %v", i, n, cached, want, err)
			}
		}
	}
}

// TestDrop: an Indexer lacks messages that are dropped, unless they are replayed.
func TestDrop(t *testing.T) {
	for name, replay := range map[string]bool{"no replay": false, "replay": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, kvindextest.EngineConfig{Replay: replay})
			kept, dropped, next := prompt(1, 100), prompt(2, 100), prompt(3, 100)
			r.serve(kept)
			r.Drop(9)
			r.Drop(1)
			r.serve(dropped)
			r.serve(next)
			if replay {
				r.expect(kept, 96, kvindex.StateLive)
				r.expect(dropped, 96, kvindex.StateLive)
				return
			}
			r.expect(kept, 0, kvindex.StatePartial)
			r.expect(dropped, 0, kvindex.StatePartial)
			r.expect(next, 96, kvindex.StatePartial)
			if s := r.ix.Stats(); s.Missing != 1 {
				t.Errorf("%d messages are missing", s.Missing)
			}
		})
	}
}

// TestDisconnect: messages that are published without a connection are lost, unless
// they are replayed.
func TestDisconnect(t *testing.T) {
	for name, replay := range map[string]bool{"no replay": false, "replay": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, kvindextest.EngineConfig{Replay: replay})
			first, next := prompt(1, 100), prompt(2, 100)
			r.serve(first)
			r.expect(first, 96, kvindex.StateLive)
			r.Disconnect()
			if replay {
				r.serve(next)
				r.expect(next, 96, kvindex.StateLive)
				return
			}
			r.expect(first, 96, kvindex.StateUncertain)
			r.serve(next)
			r.expect(next, 96, kvindex.StateLive)
		})
	}
}

// TestRestart: an Indexer forgets the blocks from before a restart of the engine, also
// if the number of the next message is the same as before.
func TestRestart(t *testing.T) {
	for name, replay := range map[string]bool{"no replay": false, "replay": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, kvindextest.EngineConfig{Replay: replay})
			old, next := prompt(1, 100), prompt(2, 100)
			for range 20 {
				r.serve(old)
				r.expect(old, 96, kvindex.StateLive)
				r.must(r.Restart())
				if now := r.Cached(kvindextest.Request{Tokens: old}); now != 0 {
					t.Errorf("%d tokens are cached after a restart", now)
				}
				if replay {
					r.expect(old, 0, kvindex.StateLive)
				}
				r.must(r.WaitSubscribers(r.ctx, 1))
				r.serve(next)
				r.expect(old, 0, kvindex.StateLive)
				r.expect(next, 96, kvindex.StateLive)
				r.must(r.Restart())
				r.must(r.WaitSubscribers(r.ctx, 1))
			}
		})
	}
}

// TestLoseReplies: a replay that loses messages is continued. One that brings nothing
// leaves the messages missing until the socket answers again.
func TestLoseReplies(t *testing.T) {
	r := newHastyRig(t, kvindextest.EngineConfig{Replay: true}, 250*time.Millisecond)
	r.serve(prompt(1, 100))
	r.expect(prompt(1, 100), 96, kvindex.StateLive)
	lose := func(keep int) {
		r.LoseReplies(keep)
		r.Drop(3)
		for id := range 4 {
			r.serve(prompt(10*keep+id+2, 100))
		}
	}
	lose(2)
	for id := range 4 {
		r.expect(prompt(20+id+2, 100), 96, kvindex.StateLive)
	}
	lose(0)
	r.must(r.WaitApplied(r.ctx, r.ix))
	if cached, state := r.predicted(kvindextest.Request{Tokens: prompt(5, 100)}); cached != 96 || state == kvindex.StateLive {
		t.Errorf("behind what is missing: %d, %v", cached, state)
	}
	cached, state := r.predicted(kvindextest.Request{Tokens: prompt(4, 100)})
	if cached != 0 {
		t.Errorf("%d tokens of what is missing, %v", cached, state)
	}
	for r.LoseReplies(-1); state != kvindex.StateLive; {
		r.must(r.WaitApplied(r.ctx, r.ix))
		_, state = r.predicted(kvindextest.Request{Tokens: prompt(4, 100)})
	}
	r.expect(prompt(1, 100), 96, kvindex.StateLive)
	r.expect(prompt(4, 100), 96, kvindex.StateLive)
}

// TestConnect: a gateway that listens gets the names of the engine from its topic.
func TestConnect(t *testing.T) {
	zmtptest.NoLeaks(t)
	ctx := zmtptest.Context(t)
	ix, err := kvindex.New()
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	listens := make(chan string, 1)
	subscribe(t, ix, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, OnListen: func(at string) { listens <- at }})
	e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "a", Model: model, Connect: <-listens})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	r := &rig{t, ctx, e, ix}
	for range 3 {
		r.must(r.WaitSubscribers(ctx, 1))
		r.serve(prompt(1, 100))
		r.expect(prompt(1, 100), 96, kvindex.StateLive)
		r.must(r.Restart())
	}
}

// signalContext is a context that signals when Done is called.
type signalContext struct {
	context.Context
	begun chan struct{}
}

func (w signalContext) Done() <-chan struct{} {
	w.begun <- struct{}{}
	return w.Context.Done()
}

// TestServeEnds: a request ends with its context, a restart, or Close.
func TestServeEnds(t *testing.T) {
	r := newRig(t, kvindextest.EngineConfig{StepTime: time.Hour})
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	for _, end := range []struct {
		by   func() error
		want error
	}{
		{r.Restart, kvindextest.ErrRestarted},
		{func() error { cancel(); return nil }, context.Canceled},
		{r.Close, kvindextest.ErrClosed},
	} {
		w := signalContext{r.ctx, make(chan struct{})}
		if end.want == context.Canceled {
			w.Context = ctx
		}
		served := make(chan error, 1)
		go func() {
			_, err := r.Serve(w, kvindextest.Request{Tokens: prompt(1, 100)})
			served <- err
		}()
		<-w.begun
		r.must(end.by())
		select {
		case err := <-served:
			if err != end.want {
				t.Errorf("got %v, want %v", err, end.want)
			}
		case <-r.ctx.Done():
			t.Fatalf("%v does not come", end.want)
		}
		if n := r.Requests(); n > 0 && end.want != kvindextest.ErrClosed {
			t.Errorf("%v, and %d requests go on", end.want, n)
		}
	}
	for name, err := range map[string]error{
		"Serve":           func() error { _, err := r.Serve(r.ctx, kvindextest.Request{Tokens: prompt(1, 1)}); return err }(),
		"Restart":         r.Restart(),
		"WaitSubscribers": r.WaitSubscribers(r.ctx, 1),
		"WaitApplied":     r.WaitApplied(r.ctx, r.ix),
	} {
		if err != kvindextest.ErrClosed {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// TestSideBySide: requests that come at the same time are all served.
func TestSideBySide(t *testing.T) {
	r := newRig(t, kvindextest.EngineConfig{StepTime: time.Microsecond})
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			if _, err := r.Serve(r.ctx, kvindextest.Request{Tokens: prompt(i, 100), Output: prompt(30, 20)}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	for i := range 20 {
		r.expect(prompt(i, 100), 96, kvindex.StateLive)
	}
}

// TestMisuse: an error names the mistake.
func TestMisuse(t *testing.T) {
	for want, cfg := range map[string]kvindextest.EngineConfig{
		`needs a Pod without @ and a Model, not "" and "m"`:    {Model: model},
		`needs a Pod without @ and a Model, not "a" and ""`:    {Pod: "a"},
		`needs a Pod without @ and a Model, not "a@b" and "m"`: {Pod: "a@b", Model: model},
		"StepTime is -1s":                 {Pod: "a", Model: model, StepTime: -time.Second},
		"StepTokens is -1":                {Pod: "a", Model: model, StepTokens: -1},
		"BlockSize is -1":                 {Pod: "a", Model: model, BlockSize: -1},
		"Blocks is 1, must be at least 2": {Pod: "a", Model: model, Blocks: 1},
		"Rank is -1":                      {Pod: "a", Model: model, Rank: -1},
		"http://gateway":                  {Pod: "a", Model: model, Connect: "http://gateway"},
	} {
		if _, err := kvindextest.NewEngine(cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "kvindextest: ") {
			t.Errorf("got %v, want %s", err, want)
		}
	}

	r := newRig(t, kvindextest.EngineConfig{Blocks: 4})
	for want, q := range map[string]kvindextest.Request{
		`pod "a": `:     {},
		"pool holds 48": {Tokens: prompt(1, 40), Output: prompt(2, 9)},
	} {
		if _, err := r.Serve(r.ctx, q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.Serve(over, kvindextest.Request{Tokens: prompt(1, 1)}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := r.WaitSubscribers(over, 2); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 of 2 subscribers") {
		t.Error(err)
	}
	// An Indexer that no Subscriber feeds, and one with another pod.
	other, err := kvindex.New()
	r.must(err)
	defer other.Close()
	wants := func(want string) {
		t.Helper()
		if err := r.WaitApplied(over, other); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	wants(`has no such pod of model "m", but []`)
	empty := []byte("\x93\x00\x90\x00")
	r.must(other.Ingest("b", model, empty))
	wants(`but ["b" of model "m"]`)
	r.serve(prompt(1, 40))
	r.must(other.ApplyBatch("a", model, &events.Batch{Rank: 1, HasRank: true}))
	wants("received no message of rank 0, which has sent all before message 1")
	r.must(other.Ingest("a", model, empty))
	wants("no events.Subscriber feeds the Indexer")
	_, err = other.IngestMessage(kvindex.Message{Pod: "a", Model: model, Seq: 8, Payload: empty})
	r.must(err)
	wants("waits for message 9, and the engine has sent all before message 1; the state is partial")
}

// A Fleet follows the ranks of a pod at ports in a row.
func TestNewPod(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprint("replay ", replay), func(t *testing.T) { newPod(t, replay) })
	}
	for want, f := range map[string]func() error{
		"1 to 256 ranks, not 0": func() error {
			_, _, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a", Model: model}, 0)
			return err
		},
		"Rank is not set (1)": func() error {
			_, _, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a", Model: model, Rank: 1}, 2)
			return err
		},
		`needs a Pod without @`: func() error { _, _, err := kvindextest.NewPod(kvindextest.EngineConfig{Model: model}, 2); return err },
		`nor Connect ("tcp://h:5557")`: func() error {
			_, _, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a", Model: model, Connect: "tcp://h:5557"}, 2)
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func newPod(t *testing.T, replay bool) {
	zmtptest.NoLeaks(t)
	ctx := zmtptest.Context(t)
	ix, err := kvindex.New()
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	const ranks = 4
	engines, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: "a", Model: model, Replay: replay}, ranks)
	must(t, err)
	for _, e := range engines {
		t.Cleanup(func() { e.Close() })
	}
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	if err == nil {
		err = fleet.Set("test", []events.Pod{pod})
	}
	must(t, err)
	run, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = fleet.Run(run) })
	t.Cleanup(func() { stop(); running.Wait() })
	var a kvindex.Answer
	for rank, e := range engines {
		r := &rig{t, ctx, e, ix}
		r.must(r.WaitSubscribers(ctx, 1))
		r.serve(prompt(rank, 100))
		r.must(r.WaitApplied(ctx, ix))
		r.must(ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: prompt(rank, 100), Pods: []string{"a"}}, &a))
		if s := a.Pods[0]; s.Rank != rank || s.CachedTokens != 96 {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
	if st := fleet.Pods(nil)[0].Streams; len(engines) != ranks || len(st) != ranks || (pod.ReplayPort != 0) != replay || st[ranks-1].Endpoint != engines[ranks-1].Endpoint() {
		t.Errorf("%+v, %+v", pod, st)
	}
}

// Two engines with the name of one pod: OnError gets it.
func TestTwoEnginesOfOneName(t *testing.T) {
	zmtptest.NoLeaks(t)
	ctx := zmtptest.Context(t)
	ix, err := kvindex.New()
	must(t, err)
	defer ix.Close()
	told := make(chan error, 100)
	var engines []*kvindextest.Engine
	for range 2 {
		e, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "a", Model: model})
		must(t, err)
		t.Cleanup(func() { e.Close() })
		engines = append(engines, e)
		subscribe(t, ix, events.SubscriberConfig{Endpoint: e.Endpoint(), Pod: "a", Model: model, OnError: func(err error) {
			select {
			case told <- err:
			default:
			}
		}})
		must(t, e.WaitSubscribers(ctx, 1))
	}
	for i := 0; len(told) == 0; i++ {
		if _, err := engines[i%2].Serve(ctx, kvindextest.Request{Tokens: prompt(i, 20)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-told; !strings.HasPrefix(err.Error(), `events: subscriber: pod "a": messages of tcp://`) || !strings.HasSuffix(err.Error(), "are not applied: another stream has their rank: are two engines configured under one pod and rank?") {
		t.Error(err)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
