package kvindex_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/stats"
)

func snapshot(t testing.TB, ix *kvindex.Indexer) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, ix.Snapshot(context.Background(), &b))
	return b.Bytes()
}

// restore returns an Indexer that continues from a snapshot of ix, which it closes.
func restore(t testing.TB, ix *kvindex.Indexer, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	b := snapshot(t, ix)
	ix.Close()
	return restoreBytes(t, b, opts...)
}

func restoreBytes(t testing.TB, b []byte, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.Restore(context.Background(), bytes.NewReader(b), opts...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	return ix
}

// TestRestored: a restored pod is scored at once, and is uncertain until its stream continues where
// the snapshot ends.
func TestRestored(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 40)
	next := func(seq int) kvindex.Message {
		return message("s", uint64(seq), 1000+float64(seq), 0, p.Stored(seq, seq+1))
	}
	other := func(seq int, time float64) kvindex.Message { // from a restarted engine
		return message("s", uint64(seq), time, 0, p.Stored(0, 1))
	}
	up := note("s", events.NoteOpened, events.NoteConnected)
	var behind []kvindex.Message
	for seq := range 16 {
		behind = append(behind, other(seq, 5+float64(seq)))
	}
	for name, c := range map[string]struct {
		acts   []act
		want   kvindex.State
		blocks int
		told   string // states passed to the hook
	}{
		"nothing":                         {nil, kvindex.StateUncertain, 10, ""},
		"a transport follows":             {[]act{up}, kvindex.StateUncertain, 10, ""},
		"a connection lost again":         {[]act{up, note("s", events.NoteLost)}, kvindex.StateUncertain, 10, ""},
		"the message that is due":         {[]act{up, brings(next(10))}, kvindex.StateLive, 11, "live"},
		"the last one again":              {[]act{up, brings(next(9))}, kvindex.StateLive, 10, "live"},
		"and the connection is lost":      {[]act{up, brings(next(9)), note("s", events.NoteLost), brings(next(9))}, kvindex.StateUncertain, 10, "live uncertain"},
		"one before the last again":       {[]act{up, brings(next(8))}, kvindex.StateUncertain, 10, ""},
		"the last number, other bytes":    {[]act{up, brings(other(9, 1009))}, kvindex.StateUncertain, 10, ""},
		"overlap":                         {[]act{up, brings(next(7), next(8), next(9), next(10), next(11))}, kvindex.StateLive, 12, "live"},
		"a replay that begins with it":    {[]act{up, note("s", events.NoteHeld), brings(replayed(hold(next(9))), replayed(next(10))), note("s", events.NoteCurrent)}, kvindex.StateLive, 11, "replaying live"},
		"a replay goes on":                {[]act{up, brings(replayed(next(9)), replayed(next(10)))}, kvindex.StateReplaying, 11, "replaying"},
		"a replay that begins elsewhere":  {[]act{up, brings(replayed(next(8)))}, kvindex.StateUncertain, 10, ""},
		"a replay that falls silent":      {[]act{up, brings(replayed(next(9)), replayed(next(10))), note("s", events.NoteReleased)}, kvindex.StateUncertain, 11, "replaying uncertain"},
		"a gap":                           {[]act{up, brings(next(13))}, kvindex.StatePartial, 0, "partial"},
		"a gap that a replay fills":       {[]act{up, brings(hold(next(12)), replayed(next(9)), replayed(next(10)), replayed(next(11)), next(12))}, kvindex.StateLive, 13, "replaying live"},
		"restarted, the clock ahead":      {[]act{up, brings(other(0, 2000))}, kvindex.StateLive, 1, "live"},
		"restarted, the clock behind":     {[]act{up, brings(behind...)}, kvindex.StatePartial, 1, "partial"},
		"restarted, at the number":        {[]act{up, brings(other(10, 50))}, kvindex.StateUncertain, 10, ""},
		"and goes on":                     {[]act{up, brings(other(10, 50), other(11, 51))}, kvindex.StatePartial, 1, "partial"},
		"restarted, past the number":      {[]act{up, brings(other(20, 50))}, kvindex.StatePartial, 1, "partial"},
		"restarted, by a replay":          {[]act{up, brings(replayed(hold(other(9, 50)))), restarted("s"), brings(replayed(other(0, 41)), other(1, 42))}, kvindex.StateLive, 1, "live"},
		"restarted, and nothing has come": {[]act{up, restarted("s")}, kvindex.StateUncertain, 0, ""},
		"another stream":                  {[]act{note("t", events.NoteOpened), brings(message("t", 0, 2000, 0, p.Stored(0, 2)))}, kvindex.StateLive, 2, "silent live"},
		"what cannot be read, with its due": {[]act{up, brings(next(10)), func(_ *testing.T, ix *kvindex.Indexer) {
			_, _ = ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: 11})
		}}, kvindex.StatePartial, 0, "live partial"},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t)
			for seq := range 10 {
				brings(next(seq))(t, ix)
			}
			told := ""
			ix = restore(t, ix, kvindex.WithHooks(kvindex.Hooks{State: func(_, _ string, _, to kvindex.State) { told += fmt.Sprint(" ", to) }}))
			if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0]; n != 10 || s.State != kvindex.StateUncertain || s.Ranks[0].State != s.State || told != "" {
				t.Fatalf("restored: %d blocks, %+v, states %q", n, s, told)
			}
			if at := ix.Sink().StreamNext("a", "m", "s"); at != (events.Position{Next: 10}) {
				t.Errorf("the stream stands at %+v", at)
			}
			for _, a := range c.acts {
				a(t, ix)
			}
			if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0].State; n != c.blocks || s != c.want {
				t.Errorf("%d blocks, %v; want %d, %v", n, s, c.blocks, c.want)
			}
			if told = told[min(1, len(told)):]; told != c.told {
				t.Errorf("states %q, want %q", told, c.told)
			}
		})
	}
}

// TestRestoredInfo: a restored pod has the same figures, except counters and times of batches.
func TestRestoredInfo(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t)
	brings(
		message("s", 0, 1, 0, p.Stored(0, 2)), message("s", 1, 2, 3, &fakeengine.Stored{Hashes: p.Stored(5, 6).Hashes, Tokens: p.Tokens[:16], BlockSize: 16, Medium: fakeengine.MediumGPU, Adapter: "sql"}),
		message("r", 5, 1, 1, p.Stored(0, 1)), message("q", 5, 1, 3, p.Stored(0, 1)), message("s", 2, 3, 3, p.Stored(0, 1)),
	)(t, ix)
	ingest(t, ix, "b", p.Stored(0, 3))
	note("t", events.NoteOpened)(t, ix)
	_ = ix.Sink().StreamNote("c", "n", "s", events.NoteOpened)
	want := ix.Pods(nil)
	want = slices.DeleteFunc(want, func(p kvindex.PodInfo) bool { return p.Pod == "c" }) // c has no state
	ix = restore(t, ix)
	got := ix.Pods(nil)
	for i := range want {
		w := &want[i]
		w.State, w.Connected = kvindex.StateUncertain, got[i].Connected
		if w.Pod == "b" {
			w.LastMessage = got[i].LastMessage
		}
		for j := range w.Ranks {
			s := &w.Ranks[j]
			s.State, s.Messages, s.Stored, s.Removed, s.Lag, s.Age = kvindex.StateUncertain, 0, 0, 0, 0, 0
		}
		w.Streams = slices.DeleteFunc(w.Streams, func(s stats.Stream) bool { return s.Stream == "t" })
		for j := range w.Streams {
			w.Streams[j].Traffic, w.Streams[j].State = stats.Traffic{}, "uncertain"
		}
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if s := ix.Stats(); s.Messages != 0 || s.Pods != 2 {
		t.Errorf("%+v", s)
	}
	if again := restore(t, ix).Pods(nil); fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", got) {
		t.Errorf("once more\n%+v\nwant\n%+v", again, got)
	}
}

// TestRestoredForm: prompts are routed to a restored pod in the blocks of its engine.
func TestRestoredForm(t *testing.T) {
	p, other := fakeengine.NewPrompt(1, 16, 4), fakeengine.NewPrompt(2, 16, 7)
	ix := open(t)
	ingest(t, ix, "a", p.Stored(0, 2))
	ix = restore(t, ix, kvindex.WithPredictions(kvindex.PredictionConfig{Now: new(handClock).now}))
	sends(t, ix, other.Tokens, 0)
	if got, _ := predicted(t, ix, other.Tokens, 0); got != 96 {
		t.Errorf("%d tokens are predicted", got)
	}
}

// TestRestoredIngest: without sequence numbers only a clear confirms a restored pod.
func TestRestoredIngest(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for name, c := range map[string]struct {
		act  act
		want kvindex.State
		n    int
	}{
		"a message": {func(t *testing.T, ix *kvindex.Indexer) { ingest(t, ix, "a", p.Stored(3, 4)) }, kvindex.StateUncertain, 4},
		"a clear":   {func(t *testing.T, ix *kvindex.Indexer) { ingest(t, ix, "a", fakeengine.Cleared{}, p.Stored(0, 1)) }, kvindex.StateLive, 1},
		"a loss":    {func(t *testing.T, ix *kvindex.Indexer) { _ = ix.MarkLost("a", 0) }, kvindex.StatePartial, 0},
		"a stream":  {brings(message("s", 0, 1, 0, p.Stored(0, 2))), kvindex.StateLive, 2},
	} {
		ix := open(t)
		ingest(t, ix, "a", p.Stored(0, 3))
		for range 2 {
			if ix = restore(t, ix); ix.Pods(nil)[0].State != kvindex.StateUncertain || blocks(t, ix, "a", p) != 3 {
				t.Fatalf("%+v", ix.Pods(nil))
			}
		}
		c.act(t, ix)
		if n, s := blocks(t, ix, "a", p), ix.Pods(nil)[0].State; s != c.want || n != c.n {
			t.Errorf("%s: %d blocks, %v", name, n, s)
		}
	}
}

// TestRestoredCopies: copies are counted as before, because a restored rank has its whole history.
func TestRestoredCopies(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	for _, numbered := range []bool{true, false} {
		ix := open(t)
		seq := uint64(0)
		say := func(evs ...fakeengine.Event) {
			if m := message("s", seq, float64(seq+1), 0, evs...); numbered {
				brings(m)(t, ix)
			} else {
				ingest(t, ix, "a", evs...)
			}
			seq++
		}
		say(p.Stored(0, 1))
		ix = restore(t, ix)
		if numbered {
			seq--
			say(p.Stored(0, 1))
		}
		say(p.Stored(0, 2)) // a second copy of the first; in a partial view it would be a report
		ix = restore(t, ix)
		say(p.Removed(0))
		if n := blocks(t, ix, "a", p); n != 2 {
			t.Errorf("numbered %v: %d blocks behind one of two removals", numbered, n)
		}
		say(p.Removed(0))
		if n := blocks(t, ix, "a", p); n != 0 {
			t.Errorf("numbered %v: %d blocks behind both removals", numbered, n)
		}
	}
}

// plainIndex has no optional methods.
type plainIndex struct{ index.Index }

// writer runs a function at each write after the first ones.
type writer struct {
	left int // writes
	do   func() error
}

func (w *writer) Write(b []byte) (int, error) {
	if w.left--; w.left < 0 {
		if err := w.do(); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// heard returns an Indexer with a few pods.
func heard(t testing.TB, opts ...kvindex.Option) *kvindex.Indexer {
	ix := open(t, opts...)
	p := fakeengine.NewPrompt(1, 16, 8)
	for seq := range uint64(3) {
		for _, pod := range []string{"a", "b", "c"} {
			m := message("s", seq, float64(seq+1), 0, p.Stored(int(seq), int(seq)+1))
			m.Pod = pod
			apply(t, ix, m)
		}
	}
	return ix
}

// TestSnapshotEnds: a snapshot ends by an error of the writer, which is returned unchanged, by its
// context, and by Close.
func TestSnapshotEnds(t *testing.T) {
	m := memory(t)
	if err := open(t, kvindex.WithIndex(plainIndex{m})).Snapshot(context.Background(), io.Discard); err == nil || err.Error() != "kvindex: the index does not support snapshots" {
		t.Errorf("an index without snapshots: %v", err)
	}
	broken := errors.New("broken")
	ix := heard(t)
	counting := &writer{left: 1 << 20}
	must(t, ix.Snapshot(context.Background(), counting))
	writes := 1<<20 - counting.left
	for n := range writes {
		if err := ix.Snapshot(context.Background(), &writer{n, func() error { return broken }}); err != broken {
			t.Errorf("write %d fails: %v", n, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		err := ix.Snapshot(ctx, &writer{n, func() error { cancel(); return nil }})
		if last := n >= writes-2; last != (err == nil) || !last && err != context.Canceled { // the end is two writes
			t.Errorf("canceled in write %d: %v", n, err)
		}
		cancel()
		if err := ix.Snapshot(ctx, &writer{0, func() error { t.Error("written"); return nil }}); err != context.Canceled {
			t.Errorf("canceled before: %v", err)
		}
	}
	if err := ix.Snapshot(context.Background(), &writer{3, func() error { ix.Close(); return nil }}); err != kvindex.ErrClosed {
		t.Errorf("closed meanwhile: %v", err)
	}
	if err := ix.Snapshot(context.Background(), &writer{0, func() error { t.Error("written"); return nil }}); err != kvindex.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

// TestSnapshotHangs: while a writer hangs in any of its writes, messages are applied, pods change,
// and scores succeed. A second Snapshot waits within its context.
func TestSnapshotHangs(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 200)
	for n := 0; ; n++ {
		ix := heard(t)
		hangs, goOn, ended := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
		var b bytes.Buffer
		go func() {
			w := &writer{n, func() error {
				select {
				case hangs <- struct{}{}:
				default:
				}
				<-goOn
				return nil
			}}
			ended <- ix.Snapshot(context.Background(), io.MultiWriter(w, &b))
			close(hangs)
		}()
		if _, ok := <-hangs; !ok { // no writes are left
			must(t, <-ended)
			if n < 10 {
				t.Errorf("%d writes", n)
			}
			return
		}
		for seq := 3; seq < 6; seq++ {
			brings(message("s", uint64(seq), float64(seq+1), 0, p.Stored(seq, seq+1)))(t, ix)
		}
		must(t, ix.RemovePod("b"))
		ingest(t, ix, "d", p.Stored(0, 1))
		if got := blocks(t, ix, "a", p); got != 6 {
			t.Errorf("%d blocks", got)
		}
		ctx, cancel := context.WithCancel(context.Background())
		second := make(chan error)
		go func() { second <- ix.Snapshot(ctx, io.Discard) }()
		cancel()
		if err := <-second; err != context.Canceled {
			t.Errorf("the second one: %v", err)
		}
		close(goOn)
		must(t, <-ended)
		ix = restoreBytes(t, b.Bytes())
		if got, want := blocks(t, ix, "a", p), int(ix.Sink().StreamNext("a", "m", "s").Next); got != want {
			t.Errorf("write %d: %d blocks of %d messages", n, got, want)
		}
	}
}

// partsOf returns the sections of a snapshot as kinds and payloads.
func partsOf(t testing.TB, b []byte) (kinds []sections.Kind, payloads [][]byte) {
	t.Helper()
	in, err := sections.NewReader(bytes.NewReader(b), 1, 2, 3)
	must(t, err)
	for {
		k, payload, err := in.Next()
		if err == io.EOF {
			return kinds, payloads
		}
		must(t, err)
		kinds, payloads = append(kinds, k), append(payloads, bytes.Clone(payload))
	}
}

// whole joins sections, each a kind and a payload, to a snapshot.
func whole(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := sections.NewWriter(&b)
	for _, p := range parts {
		if err == nil {
			err = w.Write(sections.Kind(p[0]), p[0] == 77, p[1:])
		}
	}
	if err == nil {
		err = w.End()
	}
	must(t, err)
	return b.Bytes()
}

// TestRestoreRefused: an invalid snapshot is rejected whole, and the error names fault and place.
func TestRestoreRefused(t *testing.T) {
	seed := [16]byte{1, 2, 3}
	good := snapshot(t, heard(t, kvindex.WithKeySeed(seed)))
	kinds, payloads := partsOf(t, good)
	var head, pod []byte
	for i, k := range kinds {
		switch {
		case k == 1:
			head = append([]byte{1}, payloads[i]...)
		case k == 3 && bytes.Contains(payloads[i], []byte("a")) && pod == nil:
			pod = append([]byte{3}, payloads[i]...)
		}
	}
	m := memory(t)
	first := bytes.Clone(pod[:len(pod)/2])
	first[1] = 1
	for name, c := range map[string]struct {
		b    []byte
		opts []kvindex.Option
		want string
	}{
		"another seed":       {good, []kvindex.Option{kvindex.WithKeySeed([16]byte{9})}, "WithKeySeed: the snapshot has another seed"},
		"a backend":          {good, []kvindex.Option{kvindex.WithIndex(m)}, "WithIndex and Restore exclude each other"},
		"a bad option":       {good, []kvindex.Option{kvindex.WithMemory(1), kvindex.WithIndex(m)}, "WithMemory: bytes is 1,"},
		"nothing":            {nil, nil, "byte 0"},
		"another file":       {[]byte("a tar ball or so"), nil, "no snapshot"},
		"empty":              {whole(t), nil, "empty"},
		"no seed":            {whole(t, pod), nil, "section 0 at byte 12: the seed is missing"},
		"a seed of zeros":    {whole(t, append([]byte{1}, make([]byte, 16)...)), nil, "the seed is missing"},
		"16 bytes of a pod":  {whole(t, append([]byte{3}, seed[:]...)), nil, "the seed is missing"},
		"half a seed":        {whole(t, head[:9]), nil, "the seed is missing"},
		"two seeds":          {whole(t, head, head), nil, "section 1 at byte 44: the seed is repeated"},
		"a pod twice":        {whole(t, head, pod, pod), nil, `pod "a" is repeated`},
		"half a pod":         {whole(t, head, first), nil, "rest of a pod"},
		"half a pod, others": {whole(t, head, first, []byte{2, 1}), nil, "rest of a pod"},
		"no index":           {whole(t, head, pod), nil, "section 2 at byte 246: index: "},
		"a pod of nothing":   {whole(t, head, []byte{3}), nil, "the beginning of a pod is missing"},
		"a pod cut short":    {whole(t, head, pod[:len(pod)-5]), nil, "section 1 at byte 44"},
		"a pod and more":     {whole(t, head, append(bytes.Clone(pod), 0)), nil, "more fields"},
		"a block of nothing": {whole(t, head, bytes.Replace(pod, []byte{1, 0, 0, 0, 0, 16}, []byte{1, 0, 0, 0, 0, 0}, 1)), nil, "group 0 of kind 0 and 0 tokens"},
		"a later kind":       {whole(t, head, []byte{78}), nil, "kind 78 is not known"},
		"no profile":         {good, []kvindex.Option{kvindex.WithProfile(func(string, string) kvindex.Profile { return kvindex.Profile{Grain: -1} })}, "Grain"},
	} {
		ix, err := kvindex.Restore(context.Background(), bytes.NewReader(c.b), c.opts...)
		if ix != nil || err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "kvindex: ") || strings.Count(err.Error(), "section ") > 1 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for n := range good {
		if _, err := kvindex.Restore(context.Background(), bytes.NewReader(good[:n])); err == nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes of %d: %v", n, len(good), err)
		}
	}
	for bit := 0; bit < 8*len(good); bit += 1 + bit/500 {
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := kvindex.Restore(context.Background(), bytes.NewReader(b)); err == nil {
			t.Fatalf("bit %d", bit)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := kvindex.Restore(ctx, bytes.NewReader(good)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	// Valid: the same seed, an optional section of a later version, and bytes behind.
	parts := [][]byte{head, {77, 1}}
	for i, k := range kinds[1:] {
		parts = append(parts, append([]byte{byte(k)}, payloads[1+i]...))
	}
	in := bytes.NewReader(append(whole(t, parts...), "behind"...))
	ix, err := kvindex.Restore(context.Background(), in, kvindex.WithKeySeed(seed))
	if err != nil || in.Len() != len("behind") || len(ix.Pods(nil)) != 3 {
		t.Fatalf("%v, %d bytes left", err, in.Len())
	}
	ix.Close()
	_, again := partsOf(t, snapshot(t, restoreBytes(t, good)))
	if !bytes.Equal(again[0], seed[:]) {
		t.Errorf("another seed: %x", again[0])
	}
}

// TestLargePod: a pod may take more than one section.
func TestLargePod(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	ix := open(t)
	name := strings.Repeat("x", kvindex.MaxName-5)
	for n := range kvindex.MaxAdapters {
		s := p.Stored(0, 1)
		s.Adapter = fmt.Sprint(name, n)
		ingest(t, ix, "a", s)
	}
	ingest(t, ix, "a", p.Stored(0, 2))
	want := fmt.Sprint(ix.Pods(nil)[0].Adapters)
	b := snapshot(t, ix)
	kinds, _ := partsOf(t, b)
	if n := len(kinds) - len(slices.DeleteFunc(kinds, func(k sections.Kind) bool { return k == 3 })); n < 2 {
		t.Errorf("%d sections", n)
	}
	ix = restoreBytes(t, b)
	if got := fmt.Sprint(ix.Pods(nil)[0].Adapters); got != want {
		t.Error("other adapters")
	}
	var a kvindex.Answer
	if err := ix.ScoreRequest(context.Background(), &kvindex.Request{Model: name + "7", Tokens: p.Tokens}, &a); err != nil || a.Unknown != nil {
		t.Errorf("an adapter is not known: %v, %v", err, a.Unknown)
	}
}

// FuzzRestorePod: a pod of any snapshot is rejected, or is like any other: it continues, and can be
// written and read again.
func FuzzRestorePod(f *testing.F) {
	kinds, payloads := partsOf(f, snapshot(f, heard(f)))
	for i, k := range kinds {
		if k == 3 {
			f.Add(payloads[i])
		}
	}
	var parts [][]byte // of an index without pods
	kinds, payloads = partsOf(f, snapshot(f, open(f)))
	for i, k := range kinds {
		parts = append(parts, append([]byte{byte(k)}, payloads[i]...))
	}
	p := fakeengine.NewPrompt(1, 16, 4)
	chunk := p.Stored(0, 2)
	chunk.Medium = "CPU"
	f.Fuzz(func(t *testing.T, pod []byte) {
		b := whole(t, append(slices.Clone(parts), append([]byte{3}, pod...))...)
		ix, err := kvindex.Restore(context.Background(), bytes.NewReader(b), kvindex.WithMemory(index.MinMemory))
		if err != nil {
			return
		}
		defer ix.Close()
		for _, info := range ix.Pods(nil) {
			for _, s := range info.Ranks {
				if s.State > kvindex.StateUncertain {
					t.Fatalf("%+v", info)
				}
			}
			for seq := range uint64(20) {
				_, _ = ix.IngestMessage(kvindex.Message{Pod: info.Pod, Model: info.Model, Stream: "s", Seq: seq, Payload: fakeengine.Payload(float64(seq), 0, p.Stored(0, 2))})
			}
			_ = ix.Ingest(info.Pod, info.Model, fakeengine.Payload(1, 0, chunk))
			if err := ix.Ingest(info.Pod, info.Model, fakeengine.Payload(1, 0, fakeengine.Cleared{}, p.Stored(0, 2))); err != nil && len(info.Ranks) < kvindex.MaxRanks {
				t.Fatal(err)
			}
		}
		want := ix.Pods(nil)
		again := restore(t, ix).Pods(nil)
		if len(again) != len(want) {
			t.Fatalf("%+v\nthen\n%+v", want, again)
		}
	})
}

// TestCausesRestored: after a restore each situation has the same score and cause, but the pod is
// uncertain.
func TestCausesRestored(t *testing.T) {
	same := 0
	for _, c := range situations {
		s := &situation{T: t, r: rand.New(rand.NewPCG(1, 3)), also: func(*kvindex.Explanation) bool { return true }}
		s.size = 16
		n := 3 + s.r.IntN(8)
		s.p, s.held = s.random(n), s.r.IntN(n)
		s.ask = kvindex.Request{Model: "m", Tokens: s.p.Tokens}
		c.make(s, n)
		var b bytes.Buffer
		s.ask.Pods = s.asked
		want := explain(t, s.ix, s.ask, "a")
		if err := s.ix.Snapshot(ctx, &b); err != nil {
			continue
		}
		ix, err := kvindex.Restore(ctx, &b, s.opts...)
		if err != nil {
			continue // it has its own backend
		}
		got := explain(t, ix, s.ask, "a")
		ix.Close()
		switch {
		case got.Cause == want.Cause && got.Detail == want.Detail:
			same++
		case got.Cause == "partial", got.Cause == "held_back": // their state is no better after a restore
		case want.Cause == "silent", strings.Contains(c.name, "excluded"): // a snapshot does not have these
		default:
			t.Errorf("%s: %v %q, want %v %q", c.name, got.Cause, got.Detail, want.Cause, want.Detail)
		}
	}
	if same < 44 {
		t.Errorf("%d causes are the same", same)
	}
}

var recordSnapshot = flag.Bool("snapshot.record", false, "have TestSnapshotOfBefore write its file: for a new version of the format, under a new name")

// TestSnapshotOfBefore: later versions read a snapshot that this version of the format wrote.
func TestSnapshotOfBefore(t *testing.T) {
	const path = "testdata/snapshot-1"
	p := fakeengine.NewPrompt(1, 16, 40)
	if *recordSnapshot {
		ix := open(t, kvindex.WithKeySeed([16]byte{1, 2, 3}))
		for seq := range 8 {
			s := p.Stored(5*seq, 5*seq+5)
			s.Adapter = "sql"
			brings(message("s", uint64(seq), float64(seq+1), seq%2, s))(t, ix)
		}
		ingest(t, ix, "b", p.Stored(0, 40), p.Removed(30))
		must(t, os.WriteFile(path, snapshot(t, ix), 0o644))
	}
	b, err := os.ReadFile(path)
	must(t, err)
	ix := restoreBytes(t, b, kvindex.WithKeySeed([16]byte{1, 2, 3}))
	pods := ix.Pods(nil)
	if len(pods) != 2 || len(pods[0].Ranks) != 2 || pods[0].Streams[0].Next != 8 || fmt.Sprint(pods[0].Adapters) != "[sql]" || pods[1].Ranks[0].Blocks[kvindex.TierGPU] != 39 {
		t.Fatalf("%+v", pods)
	}
	if got := blocks(t, ix, "b", p); got != 30 {
		t.Errorf("%d blocks", got)
	}
	brings(message("s", 7, 8, 1, func() *fakeengine.Stored { s := p.Stored(35, 40); s.Adapter = "sql"; return s }()))(t, ix)
	if got := ix.Pods(nil)[0].Ranks[0].State; got != kvindex.StateLive {
		t.Errorf("behind the last message again: %v", got)
	}
	if got := score(t, ix, kvindex.Request{Tokens: p.Tokens[:80], Adapter: "sql", Pods: []string{"a"}})[0].MatchedBlocks; got != 5 {
		t.Errorf("%d blocks of an adapter", got)
	}
}
