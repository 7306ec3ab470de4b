package kvindex_test

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestCountersAreWords of 64 bits, without exception: so they are added.
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
	walk("Counters", reflect.TypeFor[kvindex.Counters]())
	walk("ScoreStats", reflect.TypeFor[kvindex.ScoreStats]())
	walk("StreamStats", reflect.TypeFor[kvindex.StreamStats]())
}

// TestCountsByKind says 0 of what it has never heard of.
func TestCountsByKind(t *testing.T) {
	tiers := kvindex.TierCountsOf(3, 0, 1)
	if got := tiers.String(); got != "gpu=3 disk=1" || tiers.Of(kvindex.TierGPU) != 3 || tiers.Of(kvindex.TierCPU) != 0 || tiers.Of(200) != 0 {
		t.Errorf("tiers: %v", got)
	}
	var names string
	for tier, n := range tiers.All() {
		if names += tier.String(); tier == kvindex.TierDisk && n == 1 {
			break
		}
	}
	if names != "gpucpudisk" {
		t.Errorf("the tiers are %s", names)
	}
	var reasons kvindex.ReasonCounts
	n := 0
	for r, m := range reasons.All() {
		if r != events.Reason(n) || m != 0 {
			t.Errorf("reason %v: %d", r, m)
		}
		n++
	}
	if n != events.NumReasons || reasons.Of(200) != 0 || reasons.String() != "" {
		t.Errorf("%d reasons, %v", n, reasons)
	}
	text, err := json.Marshal(map[string]any{"tiers": tiers, "reasons": reasons})
	var back struct{ Tiers, Reasons map[string]int }
	if err != nil || json.Unmarshal(text, &back) != nil || back.Tiers["gpu"] != 3 || back.Tiers["disk"] != 1 || len(back.Reasons) != events.NumReasons {
		t.Errorf("%s, %v", text, err)
	}
}

// TestEnumerationsAreText: each value of an enumeration is written by its name. Those that
// can be read are read again by it, and by no other name.
func TestEnumerationsAreText(t *testing.T) {
	enumeration(t, kvindex.StateLive)
	enumeration(t, kvindex.LossFull)
	enumeration(t, kvindex.ReplayNone)
	enumeration(t, kvindex.OutcomeFailed)
	enumeration(t, kvindex.TierOther)
	enumeration(t, index.GroupOther)
	enumeration(t, events.ReasonLimit)
}

// enumeration has last for its last value.
func enumeration[E interface {
	~uint8
	fmt.Stringer
}](t *testing.T, last E) {
	t.Helper()
	_, read := any(&last).(encoding.TextUnmarshaler)
	seen := make(map[string]bool)
	for e := E(0); e <= last; e++ {
		text, err := json.Marshal(map[string]E{"e": e})
		if err != nil || !strings.Contains(string(text), `"`+e.String()+`"`) {
			t.Errorf("%T %d: %s, %v", e, e, text, err)
		}
		var back map[string]E
		if read && (json.Unmarshal(text, &back) != nil || back["e"] != e) {
			t.Errorf("%T %d: %s, read as %v", e, e, text, back)
		}
		seen[e.String()] = true
	}
	if len(seen) != int(last)+1 {
		t.Errorf("%T: %d names for %d values", last, len(seen), last+1)
	}
	if err := json.Unmarshal([]byte(`"no such name"`), &last); read && err == nil {
		t.Errorf("%T: any name is read", last)
	}
	_ = (last + 1).String() // any, and no panic
}

// TestFigures: what Pods and Stats tell of a stream, its messages and its rank.
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
	is("no socket", pod().Streams[0].Replay, kvindex.ReplayNone)
	is("no socket", ix.Stats().NoReplay, 1)
	note("s", events.NoteReplay)(t, ix)
	is("a socket", pod().Streams[0].Replay, kvindex.ReplayIdle)

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
	is("heard", i.Heard.Equal(started.Add(3*time.Second)), true)
	is("adapters", i.Adapters, []string{"tuned"})
	s := i.Sources[0]
	is("lag and age", []time.Duration{s.Lag.Round(time.Millisecond), s.Age}, []time.Duration{2 * time.Second, 3 * time.Second})
	is("messages and blocks", []uint64{s.Messages, s.Stored, s.Removed}, []uint64{1, 4, 1})
	is("groups", s.Groups, []kvindex.GroupInfo{{BlockSize: 16}})
	if text, err := json.Marshal(i); err != nil {
		t.Error(err)
	} else {
		is("state in JSON", strings.Contains(string(text), `"State":"live"`), true)
	}

	// A message waits: what is due makes the view older.
	brings(hold(message("s", 2, clock(), 0)))(t, ix)
	time.Sleep(4 * time.Second)
	is("lag while one waits", pod().Sources[0].Lag.Round(time.Millisecond), 9*time.Second)
	is("replay", pod().Streams[0].Replay, kvindex.ReplayWaiting)
	is("waiting", []int{ix.Stats().Waiting, ix.Stats().Replaying, ix.Stats().Connected}, []int{1, 1, 1})
	brings(replayed(message("s", 1, clock()-8, 0)))(t, ix)
	is("lag of an old message", pod().Sources[0].Lag.Round(time.Millisecond), 8*time.Second)
	brings(message("s", 2, clock(), 0))(t, ix)
	is("lag when it is made up", pod().Sources[0].Lag.Round(time.Millisecond), time.Duration(0))
	note("s", events.NoteHeld)(t, ix)
	brings(replayed(message("s", 3, clock()-5, 0)))(t, ix)
	note("s", events.NoteCurrent)(t, ix)
	is("lag behind a replay", pod().Sources[0].Lag, time.Duration(0))
	note("s", events.NoteLost)(t, ix)
	time.Sleep(time.Second)
	is("lag while it is lost", pod().Sources[0].Lag, time.Second)
	is("connected", pod().Connected.IsZero(), true)
	is("uncertain", ix.Stats().Uncertain, 1)

	bad := message("s", 4, 0, 0)
	bad.Payload = []byte{7}
	if _, err := ix.IngestMessage(bad); err == nil {
		t.Error("no error")
	}
	m := pod().Streams[0].LastMalformed
	is("malformed", []any{m.Seq, m.Time.Equal(time.Now()), m.Reason, m.Error != ""}, []any{uint64(4), true, events.ReasonType, true})
	is("malformed as a loss", []any{losses[0].Seq, losses[0].Time.IsZero()}, []any{uint64(4), true})
	gap := clock()
	brings(message("s", 9, gap, 0))(t, ix)
	l := losses[1]
	is("a gap as a loss", []any{l.Seq, l.Gap, l.Time.Sub(started).Round(time.Millisecond) == time.Since(started)}, []any{uint64(9), lostGap(5, 8), true})
	is("next", pod().Streams[0].Next, uint64(10))

	var a kvindex.Answer
	if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "M", Tokens: p.Tokens}, &a); err != nil {
		t.Error(err)
	}
	if text, err := json.Marshal(ix.Stats()); err != nil || !json.Valid(text) {
		t.Errorf("stats in JSON: %s, %v", text, err)
	}
}

// TestErrorsAreTextInJSON: what is told as an error is not lost in JSON.
func TestErrorsAreTextInJSON(t *testing.T) {
	err := errors.New("the cause")
	for want, told := range map[string]any{
		`"Unknown":"the cause"`:                   kvindex.Answer{Unknown: err},
		`"Err":"the cause"`:                       kvindex.Loss{Err: err},
		`"Err":"the cause","Unknown":"the cause"`: kvindex.Scored{Err: err, Unknown: err},
	} {
		if text, err := json.Marshal(told); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%T: %s, %v, want %s", told, text, err, want)
		}
	}
	for _, told := range []any{kvindex.Answer{}, kvindex.Loss{}, kvindex.Scored{}} {
		if text, err := json.Marshal(told); err != nil || strings.Contains(string(text), "Unknown") || strings.Contains(string(text), "Err") {
			t.Errorf("%T: %s, %v", told, text, err)
		}
	}
}

// TestGroupsThatAreTold are those of the gpu, each once.
func TestGroupsThatAreTold(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 8)
	group := func(id int, kind, medium string) *fakeengine.Stored {
		s := p.Stored(0, 2)
		s.Group, s.Kind, s.Medium = id, kind, medium
		return s
	}
	brings(message("s", 0, 1, 0, group(0, fakeengine.KindFullAttention, "GPU"), group(1, "mamba", "CPU"), group(2, "mamba", "GPU"), group(2, "mamba", "GPU")))(t, ix)
	want := []kvindex.GroupInfo{{BlockSize: 16}, {Group: index.Group{ID: 2, Kind: index.GroupMamba}, BlockSize: 16}}
	if got := ix.Pods(nil)[0].Sources[0].Groups; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	q := fakeengine.NewPrompt(2, 32, 2)
	brings(message("s", 1, 2, 0, q.Stored(0, 1)))(t, ix)
	if got := ix.Pods(nil)[0].Sources[0].Groups[0].BlockSize; got != 32 {
		t.Errorf("block size %d", got)
	}
}
