package kvindex_test

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// samePods compares Pod with what Pods has just returned.
func samePods(t testing.TB, ix *kvindex.Indexer, pods []kvindex.PodInfo) {
	t.Helper()
	for _, want := range pods {
		got, ok := ix.Pod(want.Pod, want.Model)
		for _, info := range []kvindex.PodInfo{got, want} {
			for i := range info.Ranks {
				info.Ranks[i].Age, info.Ranks[i].Lag = 0, 0 // they grow
			}
		}
		if !ok || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v\nPods has %+v", got, ok, want)
		}
	}
	if got, ok := ix.Pod("never", "m"); ok || !reflect.DeepEqual(got, kvindex.PodInfo{}) {
		t.Fatalf("%+v, %v", got, ok)
	}
}

func TestRemovePod(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	ingest(t, ix, "a", p.Stored(0, 2))
	ingest(t, ix, "b", p.Stored(0, 2))
	samePods(t, ix, ix.Pods(nil))
	for range 2 {
		must(t, ix.RemovePod("a"))
	}
	if got, ok := ix.Pod("a", "m"); ok {
		t.Errorf("%+v", got)
	}
	if _, ok := ix.Pod("b", "other"); ok {
		t.Error("a model that the pod does not have")
	}
	if got := score(t, ix, kvindex.Request{Tokens: p.Tokens}); len(got) != 1 || got[0].Pod != "b" {
		t.Errorf("got %+v", got)
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]; s.State != kvindex.StateUnknown || s.MatchedBlocks != 0 {
		t.Errorf("got %+v", s)
	}
	if n := ix.Stats(); n.Pods != 1 || n.Models != 1 || n.Ranks != 1 || n.Index.Memberships != n.Blocks[kvindex.TierGPU] || n.Index.Total == 0 {
		t.Errorf("%+v", n)
	}
	must(t, ix.RemovePod("b"))
	if n := ix.Stats(); n.Pods != 0 || n.Models != 0 || n.Ranks != 0 {
		t.Errorf("%+v", n)
	}
}

// TestWhatAPodMayInvent is bounded, and does not shut its own stream out.
func TestWhatAPodMayInvent(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	for i := range 2 * kvindex.MaxStreams {
		if _, err := ix.IngestMessage(hold(message(fmt.Sprint("invented", i), 1, 1, 0))); err != nil {
			t.Fatal(err)
		}
	}
	play(t, ix, p, step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive})
	for i := range 2 * kvindex.MaxModels {
		m := message("s", 0, 1, 0)
		m.Model = fmt.Sprint("model", i)
		if _, err := ix.IngestMessage(m); (err != nil) != (i >= kvindex.MaxModels-1) {
			t.Fatalf("model %d: %v", i, err)
		}
	}
	huge := message("s", 1<<64-2, 2, 0)
	for _, ts := range []float64{2, 3, 4} {
		huge.Payload = fakeengine.Payload(ts, 0)
		if _, err := ix.IngestMessage(huge); err != nil {
			t.Fatal(err)
		}
		if _, err := ix.IngestMessage(message("s", 0, ts+0.5, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if s := ix.Stats(); s.Missing != 1<<64-1 {
		t.Errorf("%d messages are missing", s.Missing)
	}
}

// TestThePodOfASlowCall may be gone when the call gets its turn.
func TestThePodOfASlowCall(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for range 200 {
		ix := open(t)
		if _, err := ix.IngestMessage(message("s", 0, 1, 0, p.Stored(0, 4))); err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		calls.Go(func() { _ = ix.Sink().StreamNote("a", "m", "s", events.NoteRestarted) })
		calls.Go(func() { _ = ix.MarkLost("a", 0) })
		calls.Go(func() { _ = ix.RemovePod("a") })
		calls.Wait()
		if s := ix.Stats(); s.Pods != 0 || s.Ranks != 0 {
			t.Fatalf("%+v", s)
		}
		if r, err := ix.IngestMessage(message("s", 0, 2, 0, p.Stored(0, 4))); err != nil || !r.Applied {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

// TestRemovePodBesideAMessage: a pod that a message brings back while it is removed is scored.
// Many predictions make the removal slow.
func TestRemovePodBesideAMessage(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	store := func(model string, blocks int) {
		if err := ix.Ingest("a", model, fakeengine.Payload(1e9, 0, p.Stored(0, blocks))); err != nil {
			t.Error(err)
		}
	}
	for range 30 {
		for model := range 8 {
			model := fmt.Sprint(model)
			store(model, 1)
			for range 300 {
				var a kvindex.Answer
				must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: p.Tokens}, &a))
				if _, err := ix.Routed(&a, "a", 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		var both sync.WaitGroup
		both.Go(func() {
			if err := ix.RemovePod("a"); err != nil {
				t.Error(err)
			}
		})
		for n := range 400 {
			both.Go(func() { store(fmt.Sprint(n%8), 1) })
			runtime.Gosched()
		}
		both.Wait()
		for model := range 8 {
			store(fmt.Sprint(model), 1)
			if s := score(t, ix, kvindex.Request{Model: fmt.Sprint(model), Tokens: p.Tokens}); len(s) != 1 || s[0].MatchedBlocks != 1 {
				t.Fatalf("model %d: %+v", model, s)
			}
		}
	}
}
