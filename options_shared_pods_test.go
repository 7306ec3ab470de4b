package kvindex_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

// readerAndWriter are two Indexers of one index.
type readerAndWriter struct {
	*sharedIndex
	w, r           *process
	writer, reader *kvindex.Indexer
	p              fakeengine.Prompt
}

func newSharing(t testing.TB, opts ...kvindex.Option) *readerAndWriter {
	s := &readerAndWriter{sharedIndex: newShared(t), p: fakeengine.NewPrompt(1, 16, 4)}
	s.w, s.r = s.process(), s.process()
	s.writer = open(t, kvindex.WithIndex(s.w))
	s.reader = open(t, append(opts, kvindex.WithIndex(s.r))...)
	return s
}

// shownPods shows the pods of an Indexer: a/m=live[0=live].
func shownPods(ix *kvindex.Indexer) string {
	var all []string
	for _, p := range ix.Pods(nil) {
		var ranks []string
		for _, r := range p.Ranks {
			ranks = append(ranks, fmt.Sprintf("%d=%v", r.Rank, r.State))
		}
		all = append(all, fmt.Sprintf("%s/%s=%v%v", p.Pod, p.Model, p.State, ranks))
	}
	return strings.Join(all, " ")
}

func (s *readerAndWriter) reads(t *testing.T, want string) {
	t.Helper()
	if got := shownPods(s.reader); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// states shows the pods of a score: a=3/live.
func (s *readerAndWriter) states(t *testing.T, r kvindex.Request) string {
	t.Helper()
	r.Tokens = s.p.Tokens
	var all []string
	for _, p := range score(t, s.reader, r) {
		all = append(all, fmt.Sprintf("%s/%d=%d/%v", p.Pod, p.Rank, p.MatchedBlocks, p.State))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Pods appear and disappear with their rows. A pod with a stream of its own is no longer listed.
func TestListedPods(t *testing.T) {
	s := newSharing(t)
	s.reads(t, "")
	said(t, s.writer, "a", 0, s.p.Stored(0, 3))
	said(t, s.writer, "b", 2, s.p.Stored(0, 2))
	_ = s.writer.Sink().StreamNote("c", "m", "s", events.NoteOpened)
	s.reads(t, "a/m=live[0=live] b/m=live[2=live] c/m=silent[]")
	if got := s.states(t, kvindex.Request{}); got != "a/0=3/live b/2=2/live c/0=0/silent" {
		t.Error(got)
	}
	if st := s.reader.Stats(); st.Pods != 3 || st.Models != 1 || st.Ranks != 2 || st.States["silent"] != 1 {
		t.Errorf("%+v", st)
	}

	// The row of b is stale.
	s.stale("b", true)
	s.reads(t, "a/m=live[0=live] b/m=uncertain[2=uncertain] c/m=silent[]")
	if got := s.states(t, kvindex.Request{Ranks: true}); got != "a/0=3/live b/2=2/uncertain c/0=0/silent" {
		t.Error(got)
	}
	s.stale("b", false)
	s.reads(t, "a/m=live[0=live] b/m=live[2=live] c/m=silent[]")

	// Reports about a pod with a stream stay in their process.
	if err := s.reader.MarkLost("a", 0); err == nil {
		t.Error("MarkLost of a pod without a stream here succeeded")
	}
	for _, err := range []error{s.reader.Sink().StreamNote("a", "m", "default", events.NoteRestarted), s.reader.Sink().RemoveStream("a", "m", ""), s.reader.Sink().RemoveStream("c", "m", "s")} {
		if err != nil {
			t.Error(err)
		}
	}
	_ = s.reader.Sink().StreamNote("c", "m", "s", events.NoteClosed)
	if at := s.reader.Sink().StreamNext("a", "m", "default"); at.Next > 0 {
		t.Error("a stream without messages has a position")
	}
	s.reads(t, "a/m=live[0=live] b/m=live[2=live] c/m=silent[]")

	// The pod of a closed stream is gone.
	_ = s.writer.Sink().StreamNote("c", "m", "s", events.NoteClosed)
	s.reads(t, "a/m=live[0=live] b/m=live[2=live]")
	must(t, s.writer.Sink().RemoveStream("b", "m", ""))
	s.reads(t, "a/m=live[0=live]")

	// The reader's own stream of a pod counts while it lasts.
	_ = s.reader.Sink().StreamNote("a", "m", "s", events.NoteOpened)
	s.reads(t, "a/m=silent[]")
	said(t, s.writer, "b", 0, s.p.Stored(0, 1))
	s.reads(t, "a/m=silent[] b/m=live[0=live]")
	_ = s.reader.Sink().StreamNote("a", "m", "s", events.NoteClosed)
	s.reads(t, "a/m=live[0=live] b/m=live[0=live]")
	said(t, s.reader, "a", 0, s.p.Stored(0, 1)) // only a stream clears the writer's blocks
	s.reads(t, "a/m=live[0=live] b/m=live[0=live]")
	s.stale("a", true)
	s.reads(t, "a/m=live[0=live] b/m=live[0=live]")

	// A listed pod is removed for all processes.
	must(t, s.reader.RemovePod("b"))
	s.reads(t, "a/m=live[0=live]")
	if got := s.states(t, kvindex.Request{Pods: []string{"b"}}); got != "b/0=0/unknown" {
		t.Error(got)
	}
	said(t, s.writer, "b", 0, s.p.Stored(0, 2))
	if got := shownPods(s.reader); !strings.Contains(got, "b/m=") {
		t.Errorf("%s: a pod that is listed again does not come back", got)
	}
}

// A stale row makes its pod uncertain.
func TestStaleRows(t *testing.T) {
	s := newSharing(t)
	said(t, s.writer, "a", 0, s.p.Stored(0, 3))
	said(t, s.writer, "a", 1, s.p.Stored(0, 2))
	s.reads(t, "a/m=live[0=live 1=live]")
	s.r.set(func(p *process) { p.unlisted = errors.New("away") }) // so that only rows report it
	s.change(func(of map[index.Source]*sharedSource) { of[index.Source{Pod: "a", Model: "m", Rank: 1}].stale = true })
	if got := s.states(t, kvindex.Request{Ranks: true}); got != "a/0=3/live a/1=2/uncertain" {
		t.Error(got)
	}
	if got := s.states(t, kvindex.Request{}); got != "a/0=3/uncertain" {
		t.Error(got)
	}
}

// TestNotesOfOthers: an unreadable note makes its pod uncertain, and a note beyond a bound is
// ignored.
func TestNotesOfOthers(t *testing.T) {
	s := newSharing(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		switch pod {
		case "refused":
			return kvindex.Profile{Grain: -1}
		case "silent":
			return kvindex.Profile{Approximate: &kvindex.Approximate{BlockTokens: 16, Blocks: 10}}
		}
		return kvindex.Profile{}
	}))
	put := func(pod string, rank int, note ...byte) {
		s.change(func(map[index.Source]*sharedSource) {
			s.source(index.Source{Pod: pod, Model: "m", Rank: rank}).note = note
		})
	}
	live := []byte{1, 3, 5, 0, 0, 0, 5, 0, 0} // pod and rank are live
	if got, err := kvindex.NoteOf(live); err != nil || !slices.Equal(got, live) {
		t.Fatalf("%v, %v", got, err)
	}
	if got := s.states(t, kvindex.Request{Pods: []string{"silent"}}); got != "silent/0=0/approximate" {
		t.Error(got)
	}
	put("none", 0)
	put("garbage", 0, 1, 2, 3)
	put("later", 0, 2, 3, 5, 0, 0, 0, 5, 0, 0)
	put("longer", 0, append(slices.Clip(live), 0)...)
	put("gone", 0, 1, 0)
	put("good", 0, live...)
	put("good", 1, 1, 2, 4, 1, 0)
	put("half", 0, live...)
	put("half", 1, 9)
	put("lead", 3, 1, 2, 5, 0, 0) // the pod's note comes later
	put("refused", 0, live...)
	put("silent", 0, live...)
	put(strings.Repeat("n", kvindex.MaxName+1), 0, live...)
	put("rank", -1, live...)
	put("rank", 1<<16, live...)
	for n := range kvindex.MaxRanks + 2 {
		put("ranks", n, 1, 2, 5, 0, 0)
	}
	ranks := "0=live"
	for n := range kvindex.MaxRanks - 1 {
		ranks += fmt.Sprintf(" %d=live", n+1)
	}
	s.reads(t, "garbage/m=uncertain[0=uncertain] good/m=live[0=live 1=partial] half/m=uncertain[0=live 1=uncertain] "+
		"later/m=uncertain[0=uncertain] lead/m=uncertain[3=live] longer/m=uncertain[0=uncertain] none/m=uncertain[0=uncertain] "+
		"ranks/m=uncertain["+ranks+"] silent/m=live[0=live]")
	put("good", 0, 9)
	put("good", 1, 1, 0)
	put("ranks", 0, 1, 0)
	for _, p := range s.reader.Pods(nil) {
		if p.Pod == "good" && (p.State != kvindex.StateUncertain || len(p.Ranks) != 1 || p.WantsFullReport) {
			t.Errorf("%+v", p)
		}
	}
	if p := s.reader.Pods(nil); len(p[len(p)-1].Adapters) != 0 {
		t.Errorf("%+v", p[len(p)-1])
	}
}

// The bound on the models of a pod counts those of all processes.
func TestListedModels(t *testing.T) {
	s := newSharing(t)
	for n := range kvindex.MaxModels + 3 {
		s.change(func(map[index.Source]*sharedSource) {
			s.source(index.Source{Pod: "a", Model: fmt.Sprintf("m%02d", n)}).note = []byte{9}
		})
	}
	if got := len(s.reader.Pods(nil)); got != kvindex.MaxModels {
		t.Errorf("%d models", got)
	}
	s.change(func(of map[index.Source]*sharedSource) { clear(of) })
	if st := s.reader.Stats(); st.Pods != 0 || st.Models != 0 {
		t.Errorf("%+v", st)
	}
}

// TestListedAdapters: the adapters of a listed pod go with the note that has named them.
func TestListedAdapters(t *testing.T) {
	s := newSharing(t)
	lora := s.p.Stored(0, 3)
	lora.Adapter = "lora"
	q := kvindex.Request{Tokens: s.p.Tokens, Candidates: s.reader.Candidates("lora", nil)}
	for _, c := range []struct {
		stored *fakeengine.Stored
		want   error
	}{{lora, nil}, {s.p.Stored(0, 3), kvindex.ErrUnknownModel}} {
		must(t, s.writer.RemovePod("a"))
		said(t, s.writer, "a", 0, c.stored)
		var a kvindex.Answer
		if must(t, s.reader.ScoreRequest(ctx, &q, &a)); !errors.Is(a.Unknown, c.want) {
			t.Errorf("%v, want %v", a.Unknown, c.want)
		}
	}
}

// A failing Listing is an error until one succeeds.
func TestListingFails(t *testing.T) {
	s := newSharing(t)
	said(t, s.writer, "a", 0, s.p.Stored(0, 3))
	away := errors.New("away")
	s.r.set(func(p *process) { p.unlisted = away })
	var a kvindex.Answer
	if err := s.reader.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: s.p.Tokens}, &a); !errors.Is(err, away) {
		t.Errorf("%v", err)
	}
	s.reads(t, "")
	s.r.set(func(p *process) { p.unlisted = nil })
	if got := s.states(t, kvindex.Request{}); got != "a/0=3/live" {
		t.Error(got)
	}
	s.r.set(func(p *process) { p.unlisted = away })
	said(t, s.writer, "b", 0, s.p.Stored(0, 2))
	if got := s.states(t, kvindex.Request{}); got != "a/0=3/live" {
		t.Error(got)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.reader.ScoreRequest(ended, &kvindex.Request{Model: "m", Tokens: s.p.Tokens}, &a); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestToldOnce: notes are written for changes, not for messages.
func TestToldOnce(t *testing.T) {
	s := newSharing(t)
	step := func(want int, what string, f func()) {
		t.Helper()
		f()
		if got := s.w.tells(); got != want {
			t.Errorf("%s: %d notes, want %d", what, got, want)
		}
	}
	stream := func(seq uint64, rank int, evs ...fakeengine.Event) func() {
		return func() { brings(message("s", seq, float64(seq+1), rank, evs...))(t, s.writer) }
	}
	step(1, "a stream", func() { note("s", events.NoteOpened, events.NoteConnected)(t, s.writer) })
	step(1, "the first message", stream(0, 0, s.p.Stored(0, 1)))
	for seq := range uint64(20) {
		step(0, "one more", stream(seq+1, 0, s.p.Stored(0, 3)))
	}
	step(1, "another rank", stream(21, 1, s.p.Stored(0, 2)))
	step(0, "... again", stream(22, 1, s.p.Removed(1)))
	lora := s.p.Stored(0, 1)
	lora.Adapter = "lora"
	step(1, "an adapter", stream(23, 1, lora))
	step(0, "... again", stream(24, 0, lora))
	step(2, "a lost connection", func() { note("s", events.NoteLost)(t, s.writer) })
	step(0, "... again", func() { note("s", events.NoteLost)(t, s.writer) })
	step(2, "a message", stream(25, 0, s.p.Stored(0, 1)))
	step(1, "another group", func() {
		window := s.p.Stored(0, 2)
		window.Group, window.Kind, window.Window = 1, "sliding_window", 32
		stream(26, 0, window)()
	})
	step(2, "a gap", stream(28, 0, s.p.Stored(0, 1)))
	step(0, "a repeat", stream(28, 0, s.p.Stored(0, 1)))
}

// Each backend call that delays a pod's messages has a deadline.
func TestApplyTimeout(t *testing.T) {
	full := errors.New("out of time")
	calls := 0
	w := &alteredIndex{Memory: memory(t), before: func(ctx context.Context, _ string, _ index.Source) error {
		calls++
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > kvindex.ApplyTimeout || time.Until(at) < kvindex.ApplyTimeout/2 {
			t.Errorf("call %d: until %v, %t", calls, at, ok)
		}
		return full
	}}
	ix := open(t, kvindex.WithIndex(w))
	p := fakeengine.NewPrompt(1, 16, 2)
	if err := ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 1))); !errors.Is(err, full) {
		t.Error(err)
	}
	if _, err := ix.IngestMessage(at("s", 0, 0)); !errors.Is(err, full) {
		t.Error(err)
	}
	if err := ix.RemovePod("a"); !errors.Is(err, full) {
		t.Error(err)
	}
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

// TestRemovePodFails: pods that are not known take no room when their removal fails.
func TestRemovePodFails(t *testing.T) {
	ix := open(t, kvindex.WithIndex(&alteredIndex{Memory: memory(t), before: func(_ context.Context, call string, _ index.Source) error {
		if call == "Remove" {
			return errBrittle
		}
		return nil
	}}))
	for n := range 1 << 16 {
		if err := ix.RemovePod(fmt.Sprint(n)); !errors.Is(err, errBrittle) {
			t.Fatal(err)
		}
	}
	ingest(t, ix, "a")
}

// TestScoreBesideAnApply: while an Apply for a model of a pod hangs, no score and no Explain waits
// for it. That holds for each model of the pod, after a change of its rows, and for a score that
// registers the pod.
func TestScoreBesideAnApply(t *testing.T) {
	s := newSharing(t)
	said(t, s.writer, "a", 0, s.p.Stored(0, 3))
	approximate := func(_, model string) (p kvindex.Profile) {
		if strings.HasPrefix(model, "approximate") {
			p.Approximate = &kvindex.Approximate{BlockTokens: 16, Blocks: 64}
		}
		return p
	}
	held, entered := make(chan struct{}), make(chan struct{})
	ix := open(t, kvindex.WithIndex(slowProcess{s.process(), func() { close(entered); <-held }}), kvindex.WithProfile(approximate), tokenizes("m"), tokenizes("m2"))
	applied := make(chan error)
	go func() { applied <- ix.Ingest("b", "m", fakeengine.Payload(1, 0, s.p.Stored(0, 2))) }()
	<-entered

	var news byte
	limit := zmtptest.Context(t)
	try := func(kind string, call func(context.Context) error) {
		news++
		for _, model := range []string{"m", "m2"} {
			s.change(func(map[index.Source]*sharedSource) {
				s.source(index.Source{Pod: "b", Model: model, Rank: 1}).note = []byte{news}
			})
		}
		returned := make(chan error, 1)
		go func() { returned <- call(ctx) }()
		select {
		case err := <-returned:
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		case <-limit.Done():
			t.Fatalf("%s waits", kind)
		}
	}
	for kind, r := range map[string]kvindex.Request{
		"all pods of the model":       {Model: "m"},
		"the pod":                     {Model: "m", Pods: []string{"b"}},
		"Candidates":                  {Candidates: ix.Candidates("m", []string{"a", "b"})},
		"Ranks":                       {Model: "m", Ranks: true},
		"Top":                         {Model: "m", Top: 1},
		"a model that is listed":      {Model: "m2"},
		"... for the pod":             {Model: "m2", Pods: []string{"b"}},
		"... with an adapter":         {Model: "m2", Adapter: "sql"},
		"an approximate model":        {Model: "approximate", Pods: []string{"b", "c"}},
		"... of Candidates":           {Candidates: ix.Candidates("approximate 2", []string{"b"})},
		"a model that nobody knows":   {Model: "m3", Pods: []string{"b"}},
		"a text":                      {Model: "m", Prompt: "some text"},
		"a body for the listed model": {Body: []byte(`{"model": "m2", "prompt": "some text"}`)},
		"a body of ids for both pods": {Pods: []string{"a", "b"}, Body: []byte(`{"model": "m", "prompt": [1, 2, 3]}`)},
		"a salted prompt":             {Model: "m", Salt: "salt"},
	} {
		if r.Prompt == "" && r.Body == nil {
			r.Tokens = s.p.Tokens
		}
		try(kind, func(ctx context.Context) error { return ix.ScoreRequest(ctx, &r, new(kvindex.Answer)) })
		try(kind+", explained", func(ctx context.Context) error {
			e, err := ix.Explain(ctx, &r, "b")
			if err == nil && e.Cause == "error" {
				err = e.Err
			}
			return err
		})
	}
	try("Score", func(ctx context.Context) error {
		_, err := ix.Score(ctx, "some text", "m", []string{"b"})
		return err
	})
	try("Routed", func(ctx context.Context) error {
		var a kvindex.Answer
		err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "approximate", Pods: []string{"b"}, Tokens: s.p.Tokens}, &a)
		if err == nil {
			_, err = ix.Routed(&a, "b", 0)
		}
		return err
	})
	try("Pods and Stats", func(context.Context) error {
		if got, of := len(ix.Pods(nil)), ix.Stats().Pods; got < 5 || of != 3 {
			t.Errorf("%d of %d pods", got, of)
		}
		return nil
	})
	if got := score(t, ix, kvindex.Request{Tokens: s.p.Tokens}); len(got) != 2 || got[0].Pod != "a" || got[0].CachedTokens != 48 {
		t.Errorf("%+v", got)
	}
	close(held)
	if err := <-applied; err != nil {
		t.Error(err)
	}
	if got := score(t, ix, kvindex.Request{Tokens: s.p.Tokens}); len(got) != 2 || got[1].Pod != "b" || got[1].CachedTokens != 32 {
		t.Errorf("%+v", got)
	}
}

// TestHeardWithItsMessage: if Pods counts a message, its blocks are visible too.
func TestHeardWithItsMessage(t *testing.T) {
	s := newSharing(t)
	held, entered := make(chan struct{}), make(chan struct{})
	ix := open(t, kvindex.WithIndex(slowProcess{s.process(), sync.OnceFunc(func() { close(entered); <-held })}))
	applied := make(chan error)
	go func() {
		_, err := ix.IngestMessage(kvindex.Message{Pod: "b", Model: "m", Stream: "tcp", Payload: fakeengine.Payload(1, 0, s.p.Stored(0, 2))})
		applied <- err
	}()
	<-entered
	stream := func() stats.Stream {
		for _, p := range ix.Pods(nil) {
			if p.Pod == "b" && len(p.Streams) == 1 {
				return p.Streams[0]
			}
		}
		return stats.Stream{}
	}
	if st := stream(); st.Stream != "tcp" || !st.LastMessage.IsZero() || st.Next != 0 {
		t.Errorf("while the message is applied: %+v", st)
	}
	close(held)
	if err := <-applied; err != nil {
		t.Error(err)
	}
	if st := stream(); st.LastMessage.IsZero() || st.Next != 1 {
		t.Errorf("behind the message: %+v", st)
	}
}

// TestMessageBehindRemovePod: a message waits until RemovePod has removed the blocks, even if a
// score meanwhile finds the pod empty.
func TestMessageBehindRemovePod(t *testing.T) {
	entered, held := make(chan struct{}), make(chan struct{})
	r := &alteredIndex{Memory: memory(t), before: func(_ context.Context, call string, _ index.Source) error {
		if call == "Remove" {
			close(entered)
			<-held
			return nil
		}
		select {
		case <-held:
		default:
			t.Errorf("%s while the blocks of the pod are removed", call)
		}
		return nil
	}}
	ix := open(t, kvindex.WithIndex(r), kvindex.WithProfile(func(_, model string) (p kvindex.Profile) {
		if model == "refused" {
			p.Approximate = &kvindex.Approximate{} // without BlockTokens
		}
		return p
	}))
	p := fakeengine.NewPrompt(1, 16, 2)
	var all sync.WaitGroup
	all.Go(func() {
		if err := ix.RemovePod("b"); err != nil {
			t.Error(err)
		}
	})
	<-entered
	score(t, ix, kvindex.Request{Model: "refused", Pods: []string{"b"}, Tokens: p.Tokens})
	all.Go(func() {
		if err := ix.Ingest("b", "m", fakeengine.Payload(1, 0, p.Stored(0, 2))); err != nil {
			t.Error(err)
		}
	})
	for range 10_000 { // lets the message proceed as far as it can
		runtime.Gosched()
	}
	close(held)
	all.Wait()
}

// slowProcess is a process with a slow Apply.
type slowProcess struct {
	*process
	wait func()
}

func (s slowProcess) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	s.wait()
	return s.process.Apply(ctx, src, cur, changes)
}

// Pods that are fed, listed, scored and removed concurrently are all listed in the end.
func TestSharingAtOnce(t *testing.T) {
	s := newSharing(t)
	s.r.set(func(p *process) { p.stands = true })
	var all sync.WaitGroup
	const rounds = 300
	for n := range 3 {
		pod := fmt.Sprint(n)
		all.Go(func() {
			for i := range rounds {
				err := s.writer.Ingest(pod, "m", fakeengine.Payload(1, i%2, s.p.Stored(0, 1+i%4)))
				if i%20 == 0 {
					err = errors.Join(err, s.writer.RemovePod(pod))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range rounds {
				_ = s.reader.Sink().StreamNote(pod, "m", "s", events.NoteOpened)
				_ = s.reader.Sink().StreamNote(pod, "m", "s", events.NoteClosed)
			}
		})
		all.Go(func() {
			var a kvindex.Answer
			for range rounds {
				if err := s.reader.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: s.p.Tokens, Ranks: true}, &a); err != nil {
					t.Error(err)
				}
				_ = s.reader.Pods(nil)
				_ = s.reader.Stats()
			}
		})
	}
	all.Wait()
	s.change(func(map[index.Source]*sharedSource) {})
	s.reads(t, shownPods(s.writer))
}

// visibleLater is a sharedindex.Delay.
type visibleLater struct{ seen context.Context }

func (visibleLater) Error() string           { return "not seen yet" }
func (visibleLater) Unwrap() error           { return sharedindex.ErrDelayed }
func (d visibleLater) Seen() context.Context { return d.seen }

// TestDelayEnds: a rank is live once its last change is visible to others, but not by a change
// before a message that was not applied.
func TestDelayEnds(t *testing.T) {
	s := newSharing(t)
	brings(at("s", 0, 0), at("s", 1, 1))(t, s.writer)
	end := func(seq uint64) context.CancelFunc {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		s.w.set(func(p *process) { p.delay = visibleLater{ctx} })
		if r, err := s.writer.IngestMessage(at("s", seq, 0)); err != nil || !r.Applied {
			t.Fatalf("%+v, %v", r, err)
		}
		s.w.set(func(p *process) { p.delay = nil })
		return cancel
	}
	const late, live = "a/m=uncertain[0=uncertain 1=live]", "a/m=live[0=live 1=live]"
	first := end(2)
	second := end(3)
	first()
	s.reads(t, late)
	second()
	for limit := zmtptest.Context(t); shownPods(s.writer) != live && limit.Err() == nil; {
		runtime.Gosched()
	}
	s.reads(t, live)

	third := end(4)
	s.w.set(func(p *process) { p.fail = errors.New("away") })
	if r, err := s.writer.IngestMessage(at("s", 5, 0)); err == nil || r.Applied {
		t.Errorf("%+v, %v", r, err)
	}
	s.w.set(func(p *process) { p.fail = nil })
	third()
	s.reads(t, late)
	brings(at("s", 5, 0))(t, s.writer)
	s.reads(t, live)
}

// A message that is applied but not yet visible to others makes its rank uncertain.
func TestApplyDelayed(t *testing.T) {
	s := newSharing(t)
	delay := func(is bool) {
		s.w.set(func(p *process) {
			if p.delay = nil; is {
				p.delay = fmt.Errorf("behind by 3 s: %w", sharedindex.ErrDelayed)
			}
		})
	}
	brings(at("s", 0, 0), at("s", 1, 1))(t, s.writer)
	delay(true)
	receipt, err := s.writer.IngestMessage(at("s", 2, 0))
	if err != nil || !receipt.Applied {
		t.Fatalf("%+v, %v", receipt, err)
	}
	const late = "a/m=uncertain[0=uncertain 1=live]"
	s.reads(t, late)
	if got := shownPods(s.writer); got != late {
		t.Error(got)
	}
	if at := s.writer.Sink().StreamNext("a", "m", "s"); at.Next != 3 {
		t.Errorf("%+v", at)
	}
	if r, err := s.writer.IngestMessage(at("s", 2, 0)); err != nil || !r.Duplicate {
		t.Errorf("%+v, %v", r, err)
	}
	said(t, s.writer, "b", 0, s.p.Stored(0, 1))
	st := s.writer.Stats()
	if st.Delayed != 2 || st.Messages != 5 || st.Events["stored"] != 4 || s.writer.Pods(nil)[0].Streams[0].Delayed != 1 {
		t.Errorf("%+v", st)
	}
	delay(false)
	if _, err := s.writer.IngestMessage(at("s", 3, 1)); err != nil {
		t.Fatal(err)
	}
	s.reads(t, late+" b/m=uncertain[0=uncertain]")
	if _, err := s.writer.IngestMessage(at("s", 4, 0)); err != nil {
		t.Fatal(err)
	}
	s.reads(t, "a/m=live[0=live 1=live] b/m=uncertain[0=uncertain]")

	s.w.set(func(p *process) { p.fail = errors.New("away") })
	if r, err := s.writer.IngestMessage(at("s", 5, 0)); err == nil || r.Applied {
		t.Errorf("%+v, %v", r, err)
	}
	if err := s.writer.Ingest("c", "m", fakeengine.Payload(1, 0)); err == nil {
		t.Error("no error")
	}
	s.reads(t, "a/m=uncertain[0=uncertain 1=live] b/m=uncertain[0=uncertain] c/m=partial[0=unknown]")
	must(t, s.writer.RemovePod("c"))
	s.w.set(func(p *process) { p.fail = nil })
	if r, err := s.writer.IngestMessage(at("s", 5, 0)); err != nil || !r.Applied {
		t.Errorf("%+v, %v", r, err)
	}
	s.reads(t, "a/m=live[0=live 1=live] b/m=uncertain[0=uncertain]")
}

// An index that fails is reported: in the answer, in JSON, in Stats, by the hook and by Explain.
func TestDegraded(t *testing.T) {
	var scored kvindex.ScoreReport
	s := newSharing(t, kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, of kvindex.ScoreReport) { scored = of }}))
	said(t, s.writer, "a", 0, s.p.Stored(0, 3))
	q := kvindex.Request{Model: "m", Tokens: s.p.Tokens}
	var a kvindex.Answer
	ask := func() {
		t.Helper()
		must(t, s.reader.ScoreRequest(ctx, &q, &a))
	}
	if ask(); a.Degraded != nil || a.Pods[0].CachedTokens != 48 {
		t.Fatalf("%+v", a)
	}
	away := errors.New("the index is away")
	s.r.set(func(p *process) { p.degraded = away })
	if ask(); a.Degraded != away || len(a.Pods) != 1 || a.Pods[0].CachedTokens != 0 || a.Pods[0].State != kvindex.StateLive || scored.Degraded != away {
		t.Fatalf("%+v, %+v", a, scored)
	}
	if b, err := json.Marshal(a); err != nil || !strings.Contains(string(b), `"Degraded":"the index is away"`) {
		t.Errorf("%s, %v", b, err)
	}
	if b, err := json.Marshal(scored); err != nil || !strings.Contains(string(b), `"Degraded":"the index is away"`) {
		t.Errorf("%s, %v", b, err)
	}
	if e, err := s.reader.Explain(ctx, &q, "a"); err != nil || e.Cause != "error" || !errors.Is(e.Err, away) {
		t.Errorf("%+v, %v", e, err)
	}
	q.Pods = []string{}
	if ask(); a.Degraded != nil {
		t.Errorf("%v, of no pods", a.Degraded)
	}
	q.Pods = nil
	s.r.set(func(p *process) { p.degraded = nil })
	if ask(); a.Degraded != nil || a.Pods[0].CachedTokens != 48 {
		t.Fatalf("%+v", a)
	}
	if st := s.reader.Stats().Scores; st.Degraded != 1 || st.Outcomes["scored"] != 4 {
		t.Errorf("%+v", st)
	}
	if b, err := json.Marshal(a); err != nil || strings.Contains(string(b), "Degraded") {
		t.Errorf("%s, %v", b, err)
	}
}

// A reader's reasons come from its rows alone.
func TestExplainListed(t *testing.T) {
	s := newSharing(t)
	said(t, s.writer, "a", 0, s.p.Stored(0, 3), s.p.Removed(2))
	said(t, s.writer, "b", 0, s.p.Stored(0, 4))
	_ = s.writer.Sink().StreamNote("c", "m", "s", events.NoteOpened)
	q := kvindex.Request{Model: "m", Tokens: s.p.Tokens}
	for _, c := range []struct {
		ix    *kvindex.Indexer
		pod   string
		cause string
	}{
		{s.writer, "a", "evicted"}, {s.reader, "a", "elsewhere"},
		{s.writer, "b", "whole"}, {s.reader, "b", "whole"},
		{s.reader, "c", "silent"}, {s.reader, "d", "unknown_pod"},
	} {
		if e := explain(t, c.ix, q, c.pod); e.Cause != c.cause {
			t.Errorf("%s: %v", c.pod, e)
		}
	}
	must(t, s.writer.RemovePod("b"))
	if e := explain(t, s.reader, q, "a"); e.Cause != "unexplained" {
		t.Errorf("%v", e)
	}
	s.stale("a", true)
	if e := explain(t, s.reader, q, "a"); e.Cause != "held_back" {
		t.Errorf("%v", e)
	}
}

// A request can be routed to a listed pod that holds none of it: its row has the block form.
func TestRoutedToAListedPod(t *testing.T) {
	s := newSharing(t)
	said(t, s.writer, "a", 0, s.p.Stored(0, 1))
	q := fakeengine.NewPrompt(2, 16, 4)
	ticket := sends(t, s.reader, q.Tokens, 0)
	if predicted, cached := predicted(t, s.reader, q.Tokens, 0); predicted != 48 || cached != 0 {
		t.Errorf("%d, %d", predicted, cached)
	}
	s.reader.Observe(ticket, kvindex.Usage{PromptTokens: len(q.Tokens), CachedTokens: 0})
	sends(t, s.reader, q.Tokens, 0)
	must(t, s.writer.RemovePod("a"))
	if s.reads(t, ""); s.reader.Stats().Predictions.Live != 0 {
		t.Error("a prediction of a pod that has gone lives")
	}
}

// TestRoutedToAPodOnceEstimated: a pod that was estimated before its first event is listed with the
// form of its blocks.
func TestRoutedToAPodOnceEstimated(t *testing.T) {
	s := newSharing(t)
	writer := open(t, kvindex.WithIndex(s.process()), withProfile(kvindex.Profile{Approximate: &kvindex.Approximate{BlockTokens: 16, Blocks: 64}}))
	said(t, writer, "a", 0, s.p.Stored(0, 1))
	sends(t, s.reader, fakeengine.NewPrompt(2, 16, 4).Tokens, 0)
}

// A reader's snapshot has the pods of its own streams.
func TestSnapshotOfAReader(t *testing.T) {
	s := newSharing(t)
	lora := s.p.Stored(0, 3)
	lora.Adapter = "lora"
	said(t, s.writer, "a", 0, lora)
	if got := s.reader.Pods(nil); len(got) != 1 || len(got[0].Adapters) != 1 {
		t.Fatal(got)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(s.reader.Snapshot(ctx, w)) }()
	again, err := kvindex.Restore(ctx, r)
	must(t, err)
	defer again.Close()
	for _, p := range again.Pods(nil) { // of which the index holds blocks
		if p.State != kvindex.StateUncertain || len(p.Adapters) > 0 {
			t.Errorf("%+v", p)
		}
	}
}

func FuzzNote(f *testing.F) {
	s := newSharing(f)
	lora := s.p.Stored(0, 3)
	lora.Adapter = "lora"
	said(f, s.writer, "a", 0, lora)
	said(f, s.writer, "a", 1, hybrid(s.p, 3, 32)...)
	s.w.set(func(p *process) {
		for _, note := range p.told {
			f.Add([]byte(note), []byte(note))
		}
	})
	f.Fuzz(func(t *testing.T, zero, one []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		again, err := kvindex.NoteOf(zero)
		runtime.ReadMemStats(&after)
		if n, most := after.TotalAlloc-before.TotalAlloc, uint64(64*len(zero)+64<<10); n > most {
			t.Fatalf("%d bytes for a note of %d", n, len(zero))
		}
		if err == nil {
			if twice, err := kvindex.NoteOf(again); err != nil || string(twice) != string(again) {
				t.Fatalf("%x becomes %x, and that %x, %v", zero, again, twice, err)
			}
		}
		s := newSharing(t)
		s.change(func(map[index.Source]*sharedSource) {
			s.source(index.Source{Pod: "a", Model: "m"}).note = zero
			s.source(index.Source{Pod: "a", Model: "m", Rank: 1}).note = one
		})
		q := kvindex.Request{Model: "m", Tokens: s.p.Tokens, Ranks: true}
		var a kvindex.Answer
		for range 2 {
			must(t, s.reader.ScoreRequest(ctx, &q, &a))
			if len(a.Pods) > 0 {
				if _, err := s.reader.Routed(&a, "a", 1); err != nil && !errors.Is(err, kvindex.ErrBlockSize) {
					t.Fatal(err)
				}
			}
			_, _ = s.reader.Explain(ctx, &q, "a")
		}
		_ = s.reader.Pods(nil)
		_ = s.reader.Stats()
	})
}
