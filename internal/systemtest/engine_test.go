package systemtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// fleet has fake engines whose batches go to several Indexers.
type fleet struct {
	t       *testing.T
	r       *rand.Rand
	engines []*fleetEngine
	exact   *kvindex.Indexer // nil where reports are sent
	guarded *kvindex.Indexer
	talks   []talk
	seed    maphash.Seed
	lossy   bool // the transport loses, repeats and garbles messages
	lost    int

	requests, hits, evicted, afterClear, over, under int
}

type fleetEngine struct {
	*fakeengine.Engine
	pod, model string
	rank, size int
	seq        uint64
	running    []*talkRequest
	held       map[uint64]bool // prefixes cached since the last reset
	cleared    bool            // a reset was published since the last query
}

// talk is a conversation: each turn's prompt is the last one plus the answer and more.
type talk struct {
	model, adapter, salt string
	tokens               []uint32
}

type talkRequest struct {
	handle *fakeengine.Handle
	talk   talk
	from   int // index in fleet.talks, or -1 if it is over
}

func newFleet(t *testing.T, seed uint64, reports bool) *fleet {
	f := &fleet{t: t, r: rand.New(rand.NewPCG(seed, 3)), seed: maphash.MakeSeed()}
	f.guarded = open(t)
	if !reports {
		f.exact = open(t, kvindex.WithProfile(func(string, string) kvindex.Profile {
			return kvindex.Profile{Copies: kvindex.CopiesExact}
		}))
	}
	for i, c := range []struct {
		pod, model   string
		rank, size   int
		blocks, step int
		enc          fakeengine.Encoding
	}{
		{"a", "m", 0, 16, 120, 64, fakeengine.Encoding{}},
		{"a", "m", 1, 16, 90, 48, fakeengine.Encoding{}}, // two ranks of a pod
		{"b", "m", 0, 16, 150, 128, fakeengine.Encoding{Form: fakeengine.FormArrays12, ByteHashes: true}},
		{"c", "m", 0, 32, 70, 96, fakeengine.Encoding{}},
		{"b", "n", 0, 8, 200, 64, fakeengine.Encoding{}}, // two models of a pod
	} {
		e := &fleetEngine{pod: c.pod, model: c.model, rank: c.rank, size: c.size, held: map[uint64]bool{}}
		var err error
		e.Engine, err = fakeengine.New(fakeengine.Config{
			Model: c.model, Rank: c.rank, BlockSize: c.size, Blocks: c.blocks, TokenBudget: c.step, ChunkTokens: c.step / 2,
			MaxRunning: 6, AdmitByChunk: i%2 == 1, HashSeed: fmt.Sprint(i), Encoding: c.enc, Seed: seed, Publish: func(p []byte) { f.take(e, p) },
		})
		must(t, err)
		f.engines = append(f.engines, e)
	}
	return f
}

// take ingests a batch in the Indexers.
func (f *fleet) take(e *fleetEngine, payload []byte) {
	m := kvindex.Message{Pod: e.pod, Model: e.model, Stream: fmt.Sprint(e.rank), Seq: e.seq, Payload: payload}
	e.seq++
	if f.lossy {
		f.takeLossy(m)
		return
	}
	for _, ix := range []*kvindex.Indexer{f.exact, f.guarded} {
		if ix == nil {
			continue
		}
		if r, err := ix.IngestMessage(m); err != nil || !r.Applied || r.Gap.Lost || r.Restarted {
			f.t.Fatalf("message %d of %s/%d: %+v, %v", m.Seq, e.pod, e.rank, r, err)
		}
	}
}

// takeLossy ingests a message, drops it, damages it, or repeats it.
func (f *fleet) takeLossy(m kvindex.Message) {
	switch f.r.IntN(40) {
	case 0:
		f.lost++
		return
	case 1:
		f.lost++
		m.Payload = m.Payload[:len(m.Payload)-1]
	case 2:
		defer f.guarded.IngestMessage(m)
	}
	if m.Seq < 5 { // attached late
		return
	}
	if _, err := f.guarded.IngestMessage(m); err != nil && !errors.Is(err, kvindex.ErrMalformed) {
		f.t.Fatalf("message %d of %s: %v", m.Seq, m.Pod, err)
	}
}

// next returns the next request: a turn of a conversation, or a new one, sometimes in a scope of
// its own.
func (f *fleet) next() (tk talk, from int) {
	from = -1
	switch {
	case len(f.talks) > 0 && f.r.IntN(3) > 0:
		from = f.r.IntN(len(f.talks))
		tk = f.talks[from]
		tk.tokens = slices.Clone(tk.tokens)
	default:
		tk.model = []string{"m", "m", "m", "n"}[f.r.IntN(4)]
		tk.adapter = []string{"", "", "", "lora"}[f.r.IntN(4)]
		tk.salt = []string{"", "", "", "pepper"}[f.r.IntN(4)]
		system := rand.New(rand.NewPCG(uint64(f.r.IntN(3)), 9))
		tk.tokens = randomTokens(system, 16*(1+system.IntN(3)))
	}
	if f.r.IntN(4) > 0 || from < 0 {
		tk.tokens = append(tk.tokens, randomTokens(f.r, f.r.IntN(60))...)
	}
	if f.r.IntN(3) == 0 { // whole blocks, the last one computed again
		n := len(tk.tokens) / 32 * 32
		tk.tokens = tk.tokens[:max(n, 16)]
	}
	return tk, from
}

// ask compares the Indexers' scores of a prompt with the engine's reuse, between two of its steps.
func (f *fleet) ask(e *fleetEngine, tk talk) {
	if e.Pending() { // unpublished changes
		return
	}
	q := kvindex.Request{Model: e.model, Adapter: tk.adapter, Salt: tk.salt, Tokens: tk.tokens, Pods: []string{e.pod}}
	want, held := 0, 0
	for _, o := range f.engines {
		if o.pod != e.pod || o.model != e.model {
			continue
		}
		if o.Pending() {
			return
		}
		want = max(want, o.Cached(tk.tokens, tk.adapter, tk.salt))
		held = max(held, o.Held(tk.tokens, tk.adapter, tk.salt))
	}
	f.requests++
	if want > 0 {
		f.hits++
	}
	if e.cleared {
		e.cleared = false
		f.afterClear++
	}
	mine := e.Held(tk.tokens, tk.adapter, tk.salt)
	if ends := f.prefixes(tk, e.size); mine/e.size < len(ends) && e.held[ends[mine/e.size]] {
		f.evicted++
	}
	if f.exact != nil {
		if got := score(f.t, f.exact, q)[0]; got.CachedTokens != want || got.MatchedBlocks*got.BlockTokens != held {
			f.t.Fatalf("request %d: pod %s has %+v, the engine reuses %d tokens and holds %d", f.requests, e.pod, got, want, held)
		}
	}
	switch got := score(f.t, f.guarded, q)[0].CachedTokens; {
	case got > want:
		f.over++
	case got < want:
		f.under++
	}
}

// prefixes identifies the prefixes of a conversation at the end of each block.
func (f *fleet) prefixes(tk talk, size int) (ends []uint64) {
	var h maphash.Hash
	h.SetSeed(f.seed)
	h.WriteString(tk.adapter + "/" + tk.salt + "/")
	for i, t := range tk.tokens {
		h.Write(binary.LittleEndian.AppendUint32(nil, t))
		if (i+1)%size == 0 {
			ends = append(ends, h.Sum64())
		}
	}
	return ends
}

// submit submits a request, sometimes several times at once.
func (f *fleet) submit(e *fleetEngine, tk talk, from int) {
	times := 1
	if f.r.IntN(6) == 0 {
		times = 2 + f.r.IntN(2)
	}
	output := 1 + f.r.IntN(24)
	if f.r.IntN(6) == 0 {
		output = 200 // long enough to preempt others
	}
	for range times {
		h, err := e.Submit(fakeengine.Request{
			Tokens: tk.tokens, Adapter: tk.adapter, Salt: tk.salt, MaxTokens: output, Greedy: f.r.IntN(2) == 0,
			SkipReadingPrefixCache: f.r.IntN(12) == 0,
			ReportFull:             f.exact == nil && f.r.IntN(4) == 0,
		})
		if err != nil {
			f.t.Fatal(err)
		}
		e.running = append(e.running, &talkRequest{h, tk, from})
		from = -1
	}
}

// step runs a step of an engine, and collects finished requests.
func (f *fleet) step(e *fleetEngine) {
	e.Step()
	e.running = slices.DeleteFunc(e.running, func(r *talkRequest) bool {
		if !r.handle.Done() {
			return false
		}
		tk := r.talk
		tk.tokens = append(slices.Clone(tk.tokens), r.handle.Output()...)
		for i, end := range f.prefixes(tk, e.size) {
			if (i+1)*e.size < len(tk.tokens) { // the last output token is never stored
				e.held[end] = true
			}
		}
		switch {
		case len(tk.tokens) > 700 || tk.model != e.model:
		case r.from >= 0 && r.from < len(f.talks):
			f.talks[r.from] = tk
		case len(f.talks) < 40:
			f.talks = append(f.talks, tk)
		default:
			f.talks[f.r.IntN(len(f.talks))] = tk
		}
		return true
	})
}

// rest resets an idle engine. The reset is published by its next step with work.
func (f *fleet) rest(e *fleetEngine) {
	for len(e.running) > 0 {
		f.step(e)
	}
	e.Drain()
	if !e.Reset() {
		f.t.Fatal("an idle engine refuses to be reset")
	}
	clear(e.held)
	e.cleared = true
}

func (f *fleet) run(requests int) {
	for f.requests < requests {
		tk, from := f.next()
		e := f.engines[f.r.IntN(len(f.engines))]
		if f.r.IntN(120) == 0 {
			f.rest(e)
		}
		if tk.model != e.model {
			from = -1
			tk.model = e.model
		}
		f.ask(e, tk)
		f.submit(e, tk, from)
		for range f.r.IntN(6) {
			f.step(f.engines[f.r.IntN(len(f.engines))])
		}
		for len(e.running) > 8 {
			f.step(e)
		}
	}
}

func (f *fleet) copies() (removed, preempted, reported int) {
	for _, e := range f.engines {
		c := e.Counts()
		removed += c.RemovedCopies
		preempted += c.Preempted
		reported += c.Reported
	}
	return removed, preempted, reported
}

// TestAgainstEngines: cached tokens by the exact profile are those that the engine would reuse, and
// the default profile never has more.
func TestAgainstEngines(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, false)
	f.run(fewer(10_000))
	removed, preempted, _ := f.copies()
	t.Logf("%d requests: %d hits, %d end at an evicted block, %d follow a clear; %d removals of one of two copies, %d preemptions; default profile: %d over, %d under",
		f.requests, f.hits, f.evicted, f.afterClear, removed, preempted, f.over, f.under)
	if f.over > 0 {
		t.Errorf("the default profile is too high %d times", f.over)
	}
	for _, c := range []struct {
		what       string
		got, least int
	}{
		{"hits", f.hits, 4000}, {"requests that end at an evicted block", f.evicted, 400}, {"requests after a clear", f.afterClear, 40},
		{"removals of one of two copies", removed, 100}, {"preemptions", preempted, 20},
	} {
		if c.got < c.least && !testing.Short() {
			t.Errorf("%d %s, want at least %d", c.got, c.what, c.least)
		}
	}
	if f.under*12 > f.requests {
		t.Errorf("the default profile is too low %d times", f.under)
	}
}

// TestAgainstLossyTransport: after any loss, with reporting engines too, no profile overestimates.
func TestAgainstLossyTransport(t *testing.T) {
	f := newFleet(t, 3, true)
	f.lossy = true
	f.run(fewer(3000))
	n := f.guarded.Stats()
	t.Logf("%d requests: %d hits, %d messages lost, %d gaps, %d malformed, %d duplicates; %d over, %d under", f.requests, f.hits, f.lost, n.Gaps, n.Malformed, n.Duplicates, f.over, f.under)
	if f.over > 0 || !testing.Short() && (min(n.Gaps, n.Malformed, n.Duplicates) < 20 || f.requests-f.under < 500) {
		t.Errorf("%d over; %+v", f.over, n)
	}
}

// TestAgainstReportingEngines: clients that make engines publish their blocks again cannot make the
// default profile overestimate.
func TestAgainstReportingEngines(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, true)
	f.run(fewer(3000))
	removed, _, reported := f.copies()
	t.Logf("%d requests: %d hits, %d blocks reported, %d removals of one of two copies; %d over, %d under", f.requests, f.hits, reported, removed, f.over, f.under)
	if f.over > 0 || !testing.Short() && (reported < 1000 || f.hits < 1000) {
		t.Errorf("%d over, %d blocks reported, %d hits", f.over, reported, f.hits)
	}
}
