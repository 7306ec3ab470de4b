package events_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
)

// A pod that is described in other words is the same pod, and nothing is told.
func TestFleetKnowsOtherWordsForAPod(t *testing.T) {
	h := &changeLog{}
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnChange: h.change})
	mustSet(t, f, "list", events.Pod{ID: "a", Model: "m", Host: "Engine-0.example."})
	for range 2 {
		mustSet(t, f, "list", events.Pod{ID: "a", Model: "m", Host: "engine-0.example", Port: 5557, Ranks: 1, Labels: map[string]string{}})
	}
	mustSet(t, f, "list")
	stop := runFleet(t, f)
	eventually(t, h.has("removed a list"))
	stop()
	if h.mu.Lock(); strings.Join(h.lines, ", ") != "added a list, removed a list" {
		t.Errorf("%q", h.lines)
	}
	h.mu.Unlock()
}

// A source may call set from several goroutines.
func TestFleetSourceSetsFromManyGoroutines(t *testing.T) {
	var mu sync.Mutex
	faults := 0
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnError: func(error) {
		mu.Lock()
		defer mu.Unlock()
		faults++
	}})
	done := make(chan bool)
	runFleet(t, f, events.Source{Name: "many", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		var work sync.WaitGroup
		for i := range 8 {
			work.Go(func() {
				for range 20 {
					_ = set([]events.Pod{{ID: fmt.Sprint(i)}})
				}
			})
		}
		work.Wait()
		close(done)
		<-ctx.Done()
		return ctx.Err()
	}})
	wait(t, "the source", done)
	mu.Lock()
	defer mu.Unlock()
	if faults == 0 {
		t.Error("no refused pod was told")
	}
}

// A set of a source whose Run is to have ended is too late: it may be old by now.
func TestFleetSourceSetsTooLate(t *testing.T) {
	h := &changeLog{}
	f := newFleet(t, newFleetSink(), events.FleetConfig{Restored: []string{"old"}, OnChange: h.change})
	late := make(chan func([]events.Pod) error, 1)
	silent := func(ctx context.Context, set func([]events.Pod) error) error {
		select {
		case late <- set:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	}
	stop := runFleet(t, f, events.Source{Name: "silent", Run: silent})
	set := wait(t, "set", late)
	stop()
	runFleet(t, f, events.Source{Name: "silent", Run: silent})
	if err := set([]events.Pod{{ID: "a", Model: "m", Host: "h"}}); err == nil {
		t.Error("set took pods after ctx had ended")
	}
	mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Engine: events.EngineNone})
	eventually(t, h.has("added b list"))
	if pods := f.Pods(nil); len(pods) != 1 || pods[0].ID != "b" {
		t.Errorf("%+v", pods)
	}
	if h.has("removed old ")() == "" {
		t.Error("a restored pod is forgotten before its source has spoken")
	}
}

// A restored pod that came and went is forgotten, and told of, once.
func TestFleetForgetsARestoredPodOnce(t *testing.T) {
	h := &changeLog{}
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{Restored: []string{"a"}, OnChange: h.change})
	speak, spoken := make(chan bool), make(chan bool)
	runFleet(t, f, events.Source{Name: "slow", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		<-speak
		_ = set(nil)
		close(spoken)
		<-ctx.Done()
		return ctx.Err()
	}})
	mustSet(t, f, "list", events.Pod{ID: "a", Model: "m", Engine: events.EngineNone})
	mustSet(t, f, "list")
	eventually(t, h.has("removed a list"))
	close(speak)
	wait(t, "the source", spoken)
	mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Engine: events.EngineNone})
	mustSet(t, f, "list")
	eventually(t, h.has("removed b list"))
	if h.has("removed a ")() == "" {
		t.Error("told twice")
	}
}

// A host is not called by a name that stands for an address that no pod has, and a zone is
// the name of an interface.
func TestFleetRefusesHostsInDisguise(t *testing.T) {
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	for _, host := range []string{
		"0.0.0.0.", "[::", "::]", "[10.0.0.1", "fe80::1%", "fe80::1%a]:1/x", "fe80::1%a b", "fe80::1%" + strings.Repeat("z", 4096), "::ffff:0.0.0.0", "h..", "a..b",
	} {
		if err := f.Put("list", events.Pod{ID: "a", Model: "m", Host: host}); err == nil {
			t.Errorf("%.40q was taken: %.80q", host, f.Pods(nil)[0].Host)
			f.Remove("list", "a")
		}
	}
	for host, is := range map[string]string{
		"[FE80::1%eth0]": "fe80::1%eth0", "::FFFF:10.0.0.1": "10.0.0.1", "[::1]": "::1", "10.0.0.1.": "10.0.0.1", "A.b.": "a.b",
	} {
		if err := f.Put("list", events.Pod{ID: "a", Model: "m", Host: host}); err != nil {
			t.Error(err)
		} else if got := f.Pods(nil)[0].Host; got != is {
			t.Errorf("%q is %q", host, got)
		}
	}
	if err := f.Put("list", events.Pod{ID: "b", Model: "m", Host: "höst"}); err == nil || !strings.Contains(err.Error(), `'ö'`) {
		t.Error(err)
	}
}

// The names of sources that Set was not given, and that have nothing, are not kept.
func TestFleetForgetsSourcesWithoutPods(t *testing.T) {
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	for i := range 100 {
		name := fmt.Sprint("source ", i)
		f.Remove(name, "a")
		_ = f.Put(name, events.Pod{ID: "a"})
		must(t, f.Put(name, events.Pod{ID: "a", Model: "m", Host: "h"}))
		f.Remove(name, "a")
	}
	if n := events.SourcesOf(f); n != 0 {
		t.Errorf("%d sources are kept", n)
	}
}

// Where a replay socket is another engine's, a connection does not stay at its replay: nobody
// asks for that before a message comes.
func TestFleetIsLiveBesideAForeignReplaySocket(t *testing.T) {
	engine, pod := engineAt(t, "127.0.0.1")
	other, foreign := engineAt(t, "127.0.0.1")
	other.Publish(clock(100))
	pod.ReplayPort = foreign.ReplayPort
	h := &changeLog{}
	l := newLedger()
	f := newFleet(t, l, events.FleetConfig{OnChange: h.change})
	runFleet(t, f)
	mustSet(t, f, "list", named(pod, "a"))
	linkIs(t, f, "a", "live")
	must(t, engine.WaitSubscribers(t.Context(), 1))
	engine.Publish(clock(0))
	engine.Publish(clock(1))
	l.expectEnd(t, "rewound")
	eventually(t, h.has("a/0 live-backoff", "a/0 connecting-replaying", "a/0 replaying-live"))
}

// Nothing calls OnError when Run has returned, also not to say that an engine is silent.
func TestFleetTellsNothingAfterRun(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	pod.ReplayPort = 0
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		begun, returned := make(chan bool, 10), make(chan bool)
		cfg := events.FleetConfig{OnError: func(err error) {
			begun <- true
			cancel()
			select {
			case <-returned:
				t.Errorf("Run has returned before OnError: %v", err)
			case <-time.After(5 * time.Millisecond):
			}
		}}
		cfg.Subscriber.Silence = time.Millisecond
		f := newFleet(t, newFleetSink(), cfg)
		mustSet(t, f, "list", named(pod, "a"))
		_ = f.Run(ctx)
		close(returned)
		wait(t, "OnError", begun)
	}
}

// With Forget the pods go too that the sink knows from before and that nobody has named.
func TestFleetForgetsAllRestored(t *testing.T) {
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{Forget: true, Restored: []string{"a"}})
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- f.Run(ctx, events.Source{Name: "silent", Run: func(ctx context.Context, _ func([]events.Pod) error) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}})
	}()
	wait(t, "Run to begin", begun)
	cancel()
	wait(t, "Run to return", ended)
	if sink.removed["a"] != 1 || len(f.Pods(nil)) != 0 {
		t.Errorf("%v, %+v", sink.removed, f.Pods(nil))
	}
}
