package kvindex_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/registry"
	"github.com/kvindex/kvindex/stats"
)

// All counters are 64-bit words, because they are added as such.
func TestCountersAreWords(t *testing.T) {
	var walk func(path string, of reflect.Type) (bytes uintptr)
	walk = func(path string, of reflect.Type) (bytes uintptr) {
		switch of.Kind() {
		case reflect.Struct:
			for i := range of.NumField() {
				bytes += walk(path+"."+of.Field(i).Name, of.Field(i).Type)
			}
		case reflect.Array:
			bytes = uintptr(of.Len()) * walk(path+"[]", of.Elem())
		case reflect.Uint64:
			bytes = 8
		default:
			t.Errorf("%s is of type %v", path, of)
		}
		if bytes != of.Size() {
			t.Errorf("%s takes %d bytes, its parts %d", path, of.Size(), bytes)
		}
		return bytes
	}
	walk("Counts", reflect.TypeFor[registry.Counts]())
	walk("scores", reflect.TypeFor[kvindex.ScoreCounts]())
	walk("Traffic", reflect.TypeFor[stats.Traffic]())
}

// TestStatesAreText: each state has its own name, which JSON shows.
func TestStatesAreText(t *testing.T) {
	seen := make(map[string]bool)
	for s := range kvindex.StateApproximate + 1 {
		text, err := json.Marshal(s)
		if err != nil || string(text) != strconv.Quote(s.String()) || seen[s.String()] {
			t.Errorf("state %d: %s, %v", s, text, err)
		}
		seen[s.String()] = true
	}
	_ = (kvindex.StateApproximate + 1).String() // must not panic
}

// TestWordsAreDocumented: a string of the API is one of the words in its doc comment's list, in the
// order of the code.
func TestWordsAreDocumented(t *testing.T) {
	for file, lists := range map[string][]struct {
		before string // the line behind the list
		want   []string
	}{
		"outcomes.go":          {{"type ScoreReport struct", kvindex.OutcomeNames[1:]}},
		"options.go":           {{"	// At contested,", kvindex.LossNames[1:]}},
		"events/subscriber.go": {{"	Dropped ", slices.Sorted(maps.Keys(new(events.Subscriber).Stats().Dropped))}},
		"stats/stats.go":       {{"	Cached, Predicted map", []string{"exact", "over", "under"}}, {"	Reason string", fault.Reasons[:]}, {"	Replay        string\n", kvindex.ReplayNames}},
	} {
		for _, l := range lists {
			if got := documented(file, l.before); !slices.Equal(got, l.want) {
				t.Errorf("%s documents %q before %q, want %q", file, got, l.before, l.want)
			}
		}
	}
}

// TestWordsAreKeys: each map by word has all its words as keys before anything is counted.
func TestWordsAreKeys(t *testing.T) {
	st := open(t).Stats()
	var states []string
	for s := range kvindex.StateApproximate + 1 {
		states = append(states, s.String())
	}
	for name, of := range map[string]struct {
		keys iter.Seq[string]
		want []string
	}{
		"States":      {maps.Keys(st.States), states},
		"Outcomes":    {maps.Keys(st.Scores.Outcomes), kvindex.OutcomeNames},
		"MalformedBy": {maps.Keys(st.MalformedBy), fault.Reasons[:]},
		"Predictions": {maps.Keys(st.Predictions.Ended), documented("stats/stats.go", "	Ended map[string]uint64\n")},
		"Events":      {maps.Keys(st.Events), documented("stats/stats.go", "	Events map[string]uint64\n")},
		"Lookups":     {maps.Keys(st.Prompts.Lookups), documented("stats/stats.go", "	Lookups map[string]uint64\n")},
		"Tickets":     {maps.Keys(st.Tickets.Ended), documented("stats/stats.go", "	Ended   map[string]uint64\n")},
	} {
		if got, want := slices.Sorted(of.keys), slices.Sorted(slices.Values(of.want)); !slices.Equal(got, want) {
			t.Errorf("%s has the keys %q, want %q", name, got, want)
		}
	}
}

func counted[N int | uint64](words map[string]N) (sum N) {
	for _, n := range words {
		sum += n
	}
	return sum
}

// documented returns the words of the list in a doc comment that ends before a line.
func documented(file, before string) (words []string) {
	source, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	text, _, _ := strings.Cut(string(source), before)
	lines := strings.Split(text, "\n")
	for _, line := range slices.Backward(lines[:len(lines)-1]) {
		if word := regexp.MustCompile(`^\t?//\t([a-z_]+)  +\S`).FindStringSubmatch(line); word != nil {
			words = append(words, word[1])
		} else if len(words) > 0 {
			break
		}
	}
	slices.Reverse(words)
	return words
}

// TestFigures: the figures of a stream, its messages and its rank in Pods and Stats.
func TestFigures(t *testing.T) { synctest.Test(t, figures) }

func figures(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	started := time.Now()
	clock := func() float64 { return float64(time.Now().UnixMilli()) / 1e3 }
	pod := func() kvindex.PodInfo { return ix.Pods(nil)[0] }
	is := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	note("s", events.NoteOpened, events.NoteConnected, events.NoteNoReplay)(t, ix)
	is("no socket", pod().Streams[0].Replay, "none")
	is("no socket", ix.Stats().NoReplay, 1)
	note("s", events.NoteReplay)(t, ix)
	is("a socket", pod().Streams[0].Replay, "idle")

	time.Sleep(time.Second)
	p := fakeengine.NewPrompt(1, 16, 8)
	first := p.Stored(0, 4)
	first.Adapter = "tuned"
	at := clock()
	time.Sleep(2 * time.Second)
	brings(message("s", 0, at, 0, first, p.Removed(3)))(t, ix)
	time.Sleep(3 * time.Second)
	i := pod()
	is("connected", i.Connected.Equal(started), true)
	is("heard", i.LastMessage.Equal(started.Add(3*time.Second)), true)
	is("adapters", i.Adapters, []string{"tuned"})
	s := i.Ranks[0]
	is("lag and age", []time.Duration{s.Lag.Round(time.Millisecond), s.Age}, []time.Duration{2 * time.Second, 3 * time.Second})
	is("messages and blocks", []uint64{s.Messages, s.Stored, s.Removed}, []uint64{1, 4, 1})
	is("groups", s.Groups, []stats.Group{{BlockSize: 16}})
	text, err := json.Marshal(i)
	is("error of JSON", err, nil)
	is("state in JSON", strings.Contains(string(text), `"State":"live"`), true)

	// While a message waits, the view ages.
	brings(hold(message("s", 2, clock(), 0)))(t, ix)
	time.Sleep(4 * time.Second)
	is("lag while one waits", pod().Ranks[0].Lag.Round(time.Millisecond), 9*time.Second)
	is("replay", pod().Streams[0].Replay, "waiting")
	is("waiting", []int{ix.Stats().Waiting, ix.Stats().States["replaying"], ix.Stats().Connected}, []int{1, 1, 1})
	brings(replayed(message("s", 1, clock()-8, 0)))(t, ix)
	is("lag of an old message", pod().Ranks[0].Lag.Round(time.Millisecond), 8*time.Second)
	brings(message("s", 2, clock(), 0))(t, ix)
	is("lag when it is made up", pod().Ranks[0].Lag.Round(time.Millisecond), time.Duration(0))
	note("s", events.NoteHeld)(t, ix)
	brings(replayed(message("s", 3, clock()-5, 0)))(t, ix)
	note("s", events.NoteCurrent)(t, ix)
	is("lag behind a replay", pod().Ranks[0].Lag, time.Duration(0))
	note("s", events.NoteLost)(t, ix)
	time.Sleep(time.Second)
	is("lag while it is lost", pod().Ranks[0].Lag, time.Second)
	is("connected", pod().Connected.IsZero(), true)
	is("uncertain", ix.Stats().States["uncertain"], 1)

	bad := message("s", 4, 0, 0)
	bad.Payload = []byte{7}
	if _, err := ix.IngestMessage(bad); err == nil {
		t.Error("no error")
	}
	m := pod().Streams[0].LastMalformed
	is("malformed", []any{m.Seq, m.Time.Equal(time.Now()), m.Reason, m.Error != ""}, []any{uint64(4), true, "type", true})
	is("malformed as a loss", losses[0].Seq, uint64(4))
	gap := clock()
	brings(message("s", 9, gap, 0))(t, ix)
	l := losses[1]
	is("a gap as a loss", []any{l.Seq, l.Gap}, []any{uint64(9), lostGap(5, 8)})
	is("next", pod().Streams[0].Next, uint64(10))

	var a kvindex.Answer
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "M", Tokens: p.Tokens}, &a); err != nil {
		t.Error(err)
	}
	text, err = json.Marshal(ix.Stats())
	var back stats.Stats
	if err != nil || json.Unmarshal(text, &back) != nil || !reflect.DeepEqual(back, ix.Stats()) {
		t.Errorf("stats in JSON: %s, %v: %+v", text, err, back)
	}
}

// TestLogged: a log shows the essentials of a loss and of a score, with errors as text.
func TestLogged(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	log.Info("lost", "loss", kvindex.Loss{Pod: "a", Model: "m", Cause: "gap", Stream: "s", Seq: 9, Gap: events.Gap{From: 3, To: 8, Lost: true}, Err: errors.New("cut off")})
	log.Info("picked", "score", kvindex.PodScore{Pod: "a", Rank: 1, PredictedTokens: 48, CachedTokens: 32, MatchedBlocks: 2, State: kvindex.StateLive})
	for _, want := range []string{
		`loss.cause=gap loss.pod=a loss.model=m loss.rank=0 loss.kept=false loss.stream=s loss.seq=9 loss.from=3 loss.to=8 loss.replayed=false loss.err="cut off"`,
		`score.pod=a score.rank=1 score.score=0 score.predicted=48 score.cached=32 score.loaded=0 score.fetched=0 score.matched_blocks=2 score.state=live`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}

// TestErrorsAreTextInJSON: JSON keeps errors, as text.
func TestErrorsAreTextInJSON(t *testing.T) {
	err := errors.New("the cause")
	for want, told := range map[string]any{
		`"Unknown":"the cause"`:                    kvindex.Answer{Unknown: err},
		`"Err":"the cause","Degraded":"the cause"`: kvindex.ScoreReport{Err: err, Degraded: err},
		`"Err":"the cause"`:                        kvindex.Loss{Err: err},
	} {
		if text, err := json.Marshal(told); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%T: %s, %v, want %s", told, text, err, want)
		}
	}
	for _, told := range []any{kvindex.Answer{}, kvindex.ScoreReport{}, kvindex.Loss{}} {
		if text, err := json.Marshal(told); err != nil || strings.Contains(string(text), "Unknown") || strings.Contains(string(text), "Err") {
			t.Errorf("%T: %s, %v", told, text, err)
		}
	}
}

// Groups lists those of the GPU, each once.
func TestGroupsThatAreTold(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	group := func(id int, kind, medium string) *fakeengine.Stored {
		s := p.Stored(0, 2)
		s.Group, s.Kind, s.Medium = id, kind, medium
		return s
	}
	brings(message("s", 0, 1, 0, group(0, fakeengine.KindFullAttention, "GPU"), group(1, "mamba", "CPU"), group(2, "mamba", "GPU"), group(2, "mamba", "GPU")))(t, ix)
	want := []stats.Group{{BlockSize: 16}, {Group: index.Group{ID: 2, Kind: index.GroupMamba}, BlockSize: 16}}
	if got := ix.Pods(nil)[0].Ranks[0].Groups; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	q := fakeengine.NewPrompt(2, 32, 2)
	brings(message("s", 1, 2, 0, q.Stored(0, 1)))(t, ix)
	if got := ix.Pods(nil)[0].Ranks[0].Groups[0].BlockSize; got != 32 {
		t.Errorf("block size %d", got)
	}
}

// samePods compares Pod with the last result of Pods.
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

// Names that a pod invents are bounded, and do not block its own stream.
func TestWhatAPodMayInvent(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	for i := range 2 * kvindex.MaxStreams {
		brings(hold(message(fmt.Sprint("invented", i), 1, 1, 0)))(t, ix)
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
		brings(huge)(t, ix)
		brings(message("s", 0, ts+0.5, 0))(t, ix)
	}
	if s := ix.Stats(); s.Missing != 1<<64-1 {
		t.Errorf("%d messages are missing", s.Missing)
	}
}

// The pod of a slow call may be gone when the call proceeds.
func TestThePodOfASlowCall(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for range 200 {
		ix := open(t)
		brings(message("s", 0, 1, 0, p.Stored(0, 4)))(t, ix)
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

// TestRemovePodBesideAMessage: a pod that a message registers again during its removal is scored.
// Many predictions slow the removal down.
func TestRemovePodBesideAMessage(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	store := func(model string, blocks int) {
		if err := ix.Ingest("a", model, fakeengine.Payload(1e9, 0, p.Stored(0, blocks))); err != nil {
			t.Error(err)
		}
	}
	for range choose(30, 30) {
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
