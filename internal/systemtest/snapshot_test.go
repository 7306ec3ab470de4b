package systemtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

var (
	snapshotSeed = flag.Uint64("snapshot.seed", 1, "seed of the first schedule of TestSnapshotSchedules")
	snapshotN    = flag.Int("snapshot.n", 60, "schedules of TestSnapshotSchedules; long form: 1000")
)

// snapWorld has engines, an Indexer that follows them, and their settings.
type snapWorld struct {
	t       *testing.T
	seed    uint64
	r       *rand.Rand
	ix      *kvindex.Indexer
	engines []*snapEngine
	exact   bool // exact counting; otherwise guarded, with reports
	keep    bool // KeepOnLoss
	calm    bool // nothing is lost any more
	tally   map[string]int
}

// snapLife is the history of an engine since its start.
type snapLife struct {
	sent   [][]byte
	behind bool // its clock was set back
}

// snapEngine is an engine with its transport.
type snapEngine struct {
	*fakeengine.Engine
	w           *snapWorld
	pod, stream string
	rank        int
	numbered    bool
	replay      bool // has a replay socket
	buffer      int  // messages for replays
	clock       float64
	lives       []*snapLife
	from        int // next message of this life to deliver
	away        bool
	lost        bool // the view may lack something, or hold too much
	restarted   bool // since the last applied message of the life before
	prompts     [][]uint32
	adapters    []string
	// accepted are the applied messages of the known life, before those of the one before it.
	accepted, before []kvindex.Message
	reference        *kvindex.Indexer // receives all of this life
	applied          bool             // the last message was applied
	heard            int              // number of its life
	first            int              // first applied message since the pod is known, or -1
}

func newSnapWorld(t *testing.T, seed uint64, tally map[string]int) *snapWorld {
	w := &snapWorld{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 77)), tally: tally}
	w.exact, w.keep = w.r.IntN(3) > 0, w.r.IntN(4) == 0
	w.ix = open(t, w.options()...)
	for i, c := range []struct {
		pod              string
		rank             int
		numbered, replay bool
	}{{"queue", 0, true, false}, {"queue", 3, true, false}, {"replay", 0, true, true}, {"short", 0, true, true}, {"plain", 0, false, false}} {
		e := &snapEngine{w: w, pod: c.pod, stream: fmt.Sprint("s", c.rank), rank: c.rank, numbered: c.numbered, replay: c.replay, buffer: 1 << 20, clock: 1e6 * float64(i+1)}
		if c.pod == "short" {
			e.buffer = 12
		}
		e.start(false)
		w.engines = append(w.engines, e)
	}
	return w
}

func (w *snapWorld) options() (options []kvindex.Option) {
	if w.exact {
		options = append(options, kvindex.WithProfile(func(string, string) kvindex.Profile {
			return kvindex.Profile{Copies: kvindex.CopiesExact}
		}))
	}
	if w.keep {
		options = append(options, kvindex.WithKeepOnLoss())
	}
	return options
}

func (w *snapWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("schedule %d: %s\npods %+v", w.seed, fmt.Sprintf(format, args...), w.ix.Pods(nil))
}

// start starts the engine with an empty cache.
func (e *snapEngine) start(behind bool) {
	w := e.w
	if behind {
		e.clock -= 1e5
	} else {
		e.clock += 10
	}
	if e.reference != nil {
		e.reference.Close()
	}
	e.reference = open(w.t, w.options()...)
	life := &snapLife{behind: behind}
	e.lives, e.from, e.restarted, e.first = append(e.lives, life), 0, len(e.lives) > 0, -1
	var err error
	e.Engine, err = fakeengine.New(fakeengine.Config{
		Model: "m", Rank: e.rank, Blocks: 16 + w.r.IntN(40), HashSeed: fmt.Sprint(w.r.Uint32()), Seed: w.r.Uint64(), ChunkTokens: 64,
		Now: func() float64 { e.clock += 1. / 64; return e.clock },
		Publish: func(payload []byte) {
			life.sent = append(life.sent, payload)
			if err := e.reference.Ingest(e.pod, "m", payload); err != nil {
				w.fail("%v", err)
			}
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (e *snapEngine) life() *snapLife { return e.lives[len(e.lives)-1] }

// work makes the engine publish n messages, and delivers them unless it is away.
func (e *snapEngine) work(n int) {
	r := e.w.r
	for until := len(e.life().sent) + n; len(e.life().sent) < until; {
		if e.Waiting()+e.Running() < 2 {
			e.submit()
		}
		e.Step()
	}
	if !e.away {
		for e.from < len(e.life().sent) {
			if e.numbered && !e.w.calm && r.IntN(40) == 0 { // lost in transit
				e.from++
				e.w.tally["lost on its way"]++
				e.lost = e.lost || e.from-1 < len(e.life().sent)-e.buffer || !e.replay
				continue
			}
			e.bring()
		}
	}
}

func (e *snapEngine) submit() {
	r := e.w.r
	q := fakeengine.Request{MaxTokens: 1 + r.IntN(20), ReportFull: !e.w.exact && r.IntN(4) == 0, Adapter: []string{"", "", "sql"}[r.IntN(3)]}
	if n := len(e.prompts); n > 0 && r.IntN(4) > 0 {
		i := n - 1 - r.IntN(min(n, 8))
		q.Tokens, q.Adapter = slices.Clone(e.prompts[i]), e.adapters[i]
		q.Tokens = q.Tokens[:1+r.IntN(len(q.Tokens))]
	}
	q.Tokens = append(q.Tokens, randomTokens(r, 1+r.IntN(60))...)
	q.Tokens = q.Tokens[:min(len(q.Tokens), 160)]
	if _, err := e.Submit(q); err != nil {
		e.w.t.Fatal(err)
	}
	e.prompts, e.adapters = append(e.prompts, q.Tokens), append(e.adapters, q.Adapter)
}

func (e *snapEngine) message(life *snapLife, seq int) kvindex.Message {
	return kvindex.Message{Pod: e.pod, Model: "m", Stream: e.stream, Seq: uint64(seq), Payload: life.sent[seq]}
}

// bring delivers the next message of this life.
func (e *snapEngine) bring() {
	m := e.message(e.life(), e.from)
	e.from++
	if !e.numbered {
		e.heard = len(e.lives)
		if err := e.w.ix.Ingest(e.pod, "m", m.Payload); err != nil {
			e.w.fail("%v", err)
		}
		return
	}
	m.Hold = e.replay
	got := e.ingest(m)
	if got.Held {
		e.ask()
		m.Hold = false
		got = e.ingest(m)
	}
	// If a restart is not noticed at the engine's first message, something is lost.
	if !e.replay && (got.Gap.Lost || got.Duplicate || got.Restarted && m.Seq > 0) {
		e.lost = true
	}
}

// ingest ingests a message. The end of a life may be reported once, by a message of this life.
func (e *snapEngine) ingest(m kvindex.Message) kvindex.Receipt {
	got, err := e.w.ix.IngestMessage(m)
	if err != nil {
		e.w.fail("%v", err)
	}
	if got.Restarted && !got.Held {
		if !e.restarted {
			e.w.fail("message %d of %s/%d is taken for a restart: %+v", m.Seq, e.pod, e.rank, got)
		}
		e.tookRestart(m.Seq == 0)
	}
	if e.applied = got.Applied; e.applied {
		e.accepted = append(e.accepted, m)
		e.heard = len(e.lives)
		if e.first < 0 {
			e.first = int(m.Seq)
		}
	}
	return got
}

func (e *snapEngine) tookRestart(first bool) {
	e.restarted, e.lost = false, !first
	e.before, e.accepted = e.accepted, nil
	e.w.tally["restart noticed"]++
}

// ask does a Subscriber's replay: all from the last applied message on.
func (e *snapEngine) ask() {
	w, sent := e.w, e.life().sent
	oldest := max(0, len(sent)-e.buffer)
	next := int(w.ix.Sink().StreamNext(e.pod, "m", e.stream).Next)
	if next > 0 {
		same := next-1 >= oldest && next-1 < len(sent)
		if same {
			m := e.message(e.life(), next-1)
			m.Hold, m.Replayed = true, true
			same = e.ingest(m).Duplicate
		}
		if !same {
			if err := w.ix.Sink().StreamNote(e.pod, "m", e.stream, events.NoteRestarted); err != nil {
				w.fail("%v", err)
			}
			e.tookRestart(oldest == 0)
			e.before = nil // a Sequencer without a cursor
			next = 0
		}
	} else if oldest == 0 {
		e.restarted, e.lost = false, false
	}
	e.lost = e.lost || next < oldest
	w.tally["replay"]++
	for seq := max(next, oldest); seq < len(sent); seq++ {
		m := e.message(e.life(), seq)
		m.Replayed = true
		e.ingest(m)
	}
	e.from = len(sent)
	_ = w.ix.Sink().StreamNote(e.pod, "m", e.stream, events.NoteCurrent)
}

// restart ends this life with its connection.
func (e *snapEngine) restart(behind bool) {
	e.start(behind)
	if e.replay && !e.away {
		_ = e.w.ix.Sink().StreamNote(e.pod, "m", e.stream, events.NoteLost)
		e.ask()
	}
	if !e.numbered && !e.away { // reported by the host
		_ = e.w.ix.RemovePod(e.pod)
		e.lost = false
	}
	e.lost = e.lost || behind && !e.replay && e.numbered
}

// clear empties the cache of the engine.
func (e *snapEngine) clear() {
	for e.Waiting()+e.Running() > 0 {
		e.Step()
	}
	e.Drain()
	e.Reset()
	e.work(1)
	if !e.away && !e.restarted && e.from == len(e.life().sent) {
		e.lost = false
	}
}

// anything makes one random change.
func (w *snapWorld) anything() {
	e := w.engines[w.r.IntN(len(w.engines))]
	switch n := w.r.IntN(40); {
	case n == 0:
		e.restart(w.r.IntN(3) == 0)
		w.tally["restart"]++
	case n == 1:
		e.clear()
		w.tally["clear"]++
	case n == 2 && (e.numbered || w.exact): // without numbers, a pod that returns counts as whole, and its reports as copies
		if err := w.ix.RemovePod(e.pod); err != nil {
			w.fail("%v", err)
		}
		for _, o := range w.engines {
			if o.pod == e.pod {
				o.lost, o.accepted, o.before, o.first = true, nil, nil, -1
			}
		}
		w.tally["removal"]++
	case n < 8 && len(e.accepted) > 0:
		had := append(slices.Clone(e.before), e.accepted...)
		m := had[max(0, len(had)-1-w.r.IntN(200))]
		m.Hold, m.Replayed = false, false
		if got := e.ingest(m); !got.Duplicate {
			w.fail("message %d of %s/%d again: %+v", m.Seq, e.pod, e.rank, got)
		}
		w.tally["repeat"]++
	default:
		e.work(1 + w.r.IntN(3))
	}
}

// busyWriter is a writer during whose writes random changes are made.
type busyWriter struct {
	bytes.Buffer
	r        *rand.Rand
	at, goOn chan struct{}
}

func (s *busyWriter) Write(b []byte) (int, error) {
	if s.r.IntN(10) == 0 {
		s.at <- struct{}{}
		<-s.goOn
	}
	return s.Buffer.Write(b)
}

// snapshot writes a snapshot during random changes.
func (w *snapWorld) snapshot() []byte {
	s := &busyWriter{r: rand.New(rand.NewPCG(w.seed, 78)), at: make(chan struct{}), goOn: make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- w.ix.Snapshot(context.Background(), s) }()
	for {
		select {
		case <-s.at:
			for range w.r.IntN(4) {
				w.anything()
			}
			w.tally["stall"]++
			s.goOn <- struct{}{}
		case err := <-ended:
			if err != nil {
				w.fail("%v", err)
			}
			return s.Bytes()
		}
	}
}

// goesOn continues an engine's stream after a Restore: from its position, from before that, or from
// behind it.
func (e *snapEngine) goesOn(lives int) {
	w, r := e.w, e.w.r
	restarted := len(e.lives) > lives
	e.restarted, e.away = true, false // a former engine may have been one
	at := w.ix.Sink().StreamNext(e.pod, "m", e.stream)
	next := int(at.Next)
	e.accepted, e.before = nil, nil
	kind := "overlap"
	switch {
	case !e.numbered:
		if restarted { // reported by the host
			_ = w.ix.RemovePod(e.pod)
		}
		e.from = len(e.life().sent)
		e.lost = true
		return
	case e.replay:
		kind = "gap that a replay fills"
		if restarted {
			kind = "restarted, with replay"
		} else if next < len(e.life().sent)-e.buffer {
			kind = "gap that no replay fills"
		}
		_ = w.ix.Sink().StreamNote(e.pod, "m", e.stream, events.NoteOpened)
		_ = w.ix.Sink().StreamNote(e.pod, "m", e.stream, events.NoteConnected)
		e.ask()
		if !w.ix.Sink().StreamNext(e.pod, "m", e.stream).Partial {
			e.lost = false
		}
	case len(e.lives) != lives:
		e.from = 0
		if r.IntN(2) == 0 {
			e.from = r.IntN(len(e.life().sent) + 1)
		}
		if e.from == next { // undetectable without a replay
			e.from++
		}
		if e.from > len(e.life().sent) {
			e.work(2)
		}
		kind = "restarted, clock ahead"
		if e.life().behind {
			kind = "restarted, clock behind"
		}
		if e.from > 0 || e.life().behind {
			e.lost = true
		}
	case r.IntN(3) == 0 && next < len(e.life().sent) && next > 0:
		kind = "gap that no replay fills"
		e.from = next + 1 + r.IntN(len(e.life().sent)-next)
		e.lost = true
	default:
		e.from = next
		if e.first >= 0 { // unapplied messages do not come again
			e.from = max(min(e.first, next), next-r.IntN(30))
		}
		e.lost = e.lost || at.Partial || next == 0 && e.from > 0
	}
	w.tally[kind]++
}

// compare compares the Indexer's answers with the engines.
func (w *snapWorld) compare() {
	for _, e := range w.engines {
		for e.Pending() || e.Waiting()+e.Running() > 0 {
			if e.Waiting()+e.Running() == 0 {
				e.submit()
			}
			e.Step()
		}
		e.work(1)
		for e.Waiting()+e.Running() > 0 || e.Pending() {
			if e.Waiting()+e.Running() == 0 {
				e.submit()
			}
			e.Step()
		}
		for e.from < len(e.life().sent) {
			e.bring()
		}
		for i := max(0, len(e.prompts)-40); i < len(e.prompts); i++ {
			p := e.prompts[i]
			q := kvindex.Request{Model: "m", Tokens: p, Adapter: e.adapters[i], Pods: []string{e.pod}, Ranks: true}
			s := rankOf(score(w.t, w.ix, q), e.rank)
			got, want := s.MatchedBlocks, rankOf(score(w.t, e.reference, q), e.rank).MatchedBlocks
			switch truth := e.Held(p, e.adapters[i], "") / 16; {
			case s.State == kvindex.StateReplaying, s.State == kvindex.StateUncertain && !w.keep:
				w.fail("%s/%d ends in %v, lost %v", e.pod, e.rank, s.State, e.lost)
			case got > truth && s.State != kvindex.StateUncertain:
				w.fail("%s/%d: %d blocks, %d are held, lost %v", e.pod, e.rank, got, truth, e.lost)
			case !e.lost && got != want && (w.exact || len(e.lives) == 1):
				w.fail("%s/%d: %d blocks, the reference has %d, the engine %d", e.pod, e.rank, got, want, truth)
			}
			if w.tally["compared"]++; got > 0 {
				w.tally["not empty"]++
			}
		}
		if !e.lost {
			w.tally["nothing lost"]++
		}
	}
}

func rankOf(scores []kvindex.PodScore, rank int) kvindex.PodScore {
	for _, s := range scores {
		if s.Rank == rank {
			return s
		}
	}
	return kvindex.PodScore{State: kvindex.StatePartial}
}

func (w *snapWorld) run() {
	for range 20 + w.r.IntN(60) {
		w.anything()
	}
	var lives []int
	for _, e := range w.engines {
		lives = append(lives, e.heard)
	}
	b := w.snapshot()
	for _, e := range w.engines {
		e.away = true
	}
	for range w.r.IntN(20) {
		if e := w.engines[w.r.IntN(len(w.engines))]; w.r.IntN(6) == 0 {
			e.restart(w.r.IntN(2) == 0)
		} else {
			e.work(1 + w.r.IntN(8))
		}
	}
	w.ix.Close()
	var err error
	if w.ix, err = kvindex.Restore(context.Background(), bytes.NewReader(b), w.options()...); err != nil {
		w.t.Fatal(err)
	}
	defer w.ix.Close()
	for _, p := range w.ix.Pods(nil) {
		if p.State > kvindex.StateUncertain && p.State != kvindex.StatePartial {
			w.fail("restored as %v", p.State)
		}
	}
	for i, e := range w.engines {
		e.goesOn(lives[i])
	}
	for range 20 {
		for _, e := range w.engines {
			e.work(1 + w.r.IntN(3))
		}
	}
	for _, e := range w.engines {
		if !e.numbered {
			e.clear()
		}
	}
	for range 20 + w.r.IntN(30) {
		w.anything()
	}
	w.calm = true
	for _, e := range w.engines {
		e.work(20)
		for n := 0; e.numbered && !e.applied && n < 400; n++ {
			e.work(1) // a restart without replay and with an earlier clock is noticed late
		}
	}
	w.compare()
}

// TestSnapshotSchedules: after any changes before, during and after a snapshot, the index equals
// the engines if nothing is lost, never holds more, and takes no repeat for a restart.
func TestSnapshotSchedules(t *testing.T) {
	n := uint64(fewer(*snapshotN))
	tally := map[string]int{}
	for i := range n {
		t.Run("", func(t *testing.T) { newSnapWorld(t, *snapshotSeed+i, tally).run() })
		if t.Failed() {
			return
		}
	}
	t.Log(tally)
	for _, what := range []string{
		"stall", "restart", "clear", "removal", "repeat", "lost on its way", "replay", "restart noticed", "overlap", "gap that a replay fills",
		"gap that no replay fills", "restarted, clock ahead", "restarted, clock behind", "restarted, with replay", "nothing lost", "not empty",
	} {
		if n >= 1000 && tally[what] < 50 {
			t.Errorf("%d times %s", tally[what], what)
		}
	}
}

// TestRecordedRunsRestored: a recorded run continued from a snapshot at any of its messages has the
// same answers.
func TestRecordedRunsRestored(t *testing.T) {
	t.Parallel()
	queries, runs := 0, 0
	for i, path := range third(recordings(t, "[0-9bc]*")) {
		rows := readRecording(t, path)
		r := rand.New(rand.NewPCG(uint64(i), 5))
		for _, p := range []kvindex.Profile{rows[0].profile(kvindex.CopiesExact), {}} {
			answers := func(cut int) (all []kvindex.PodScore) {
				replayCut(t, rows, cut, []kvindex.Option{withProfile(p)}, (*recordedQuery).request, func(got kvindex.PodScore, _, _ int) {
					got.State = 0 // uncertain after a restore
					all = append(all, got)
				})
				return all
			}
			cut := r.IntN(len(rows) - 1)
			want, got := answers(-1), answers(cut)
			for n := range want {
				if got[n] != want[n] {
					t.Errorf("%s, cut before row %d: answer %d of %d is %+v, uncut %+v", path, cut, n, len(want), got[n], want[n])
					break
				}
			}
			queries += len(want)
		}
		runs++
	}
	t.Logf("%d runs, %d answers", runs, queries)
	if runs < 74 && !testing.Short() {
		t.Errorf("%d runs", runs)
	}
}
