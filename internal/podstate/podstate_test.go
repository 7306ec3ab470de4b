package podstate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// TestAfter applies each event in each state.
func TestAfter(t *testing.T) {
	const u, s, d, r, p, l = view.Unknown, view.Silent, view.Uncertain, view.Replaying, view.Partial, view.Live
	states := []view.State{u, s, d, r, p, l}
	for e, want := range [][]view.State{
		AppliedAll:  {l, s, d, r, p, l},
		AppliedLate: {p, s, d, r, p, l},
		Emptied:     {l, l, l, l, l, l},
		Doubted:     {d, d, d, d, d, d},
		Forgotten:   {p, p, p, p, p, p},
		Replaced:    {u, u, u, u, u, u},
	} {
		for i, from := range states {
			rank := Rank{State: from, unproven: true}
			if rank.On(ViewEvent(e)); rank.State != want[i] {
				t.Errorf("event %d in state %v: %v, want %v", e, from, rank.State, want[i])
			}
			if ends := ViewEvent(e) == Emptied || ViewEvent(e) == Forgotten || ViewEvent(e) == Replaced; rank.unproven == ends {
				t.Errorf("event %d: unproven is %v", e, rank.unproven)
			}
		}
	}
}

// TestView: each condition of a rank or its stream limits the state.
func TestView(t *testing.T) {
	for name, c := range map[string]struct {
		rank   Rank
		stream *Stream
		want   view.State // of a live rank; an unknown one stays unknown
		anew   view.State // of an unknown rank with the stream
	}{
		"whole":       {Rank{}, nil, view.Live, view.Unknown},
		"contest":     {Rank{Contest: Contest{Open: true}}, nil, view.Uncertain, view.Unknown},
		"kept":        {Rank{Kept: true}, nil, view.Uncertain, view.Unknown},
		"unproven":    {Rank{unproven: true}, nil, view.Uncertain, view.Unknown},
		"late":        {Rank{delay: delay{Late: true}}, nil, view.Uncertain, view.Unknown},
		"stale":       {Rank{elsewhere: elsewhere{Stale: true}}, nil, view.Uncertain, view.Unknown},
		"evicted":     {Rank{Evicted: true}, nil, view.Partial, view.Unknown},
		"stream":      {Rank{}, &Stream{}, view.Live, view.Unknown},
		"held":        {Rank{}, &Stream{Held: true}, view.Replaying, view.Replaying},
		"behind":      {Rank{}, &Stream{Behind: true}, view.Replaying, view.Replaying},
		"interrupted": {Rank{}, &Stream{Interrupted: true, Held: true}, view.Uncertain, view.Uncertain},
	} {
		r := c.rank
		r.State, r.Stream = view.Live, c.stream
		if got := r.View(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if r.State = view.Unknown; r.View() != c.anew {
			t.Errorf("%s, unknown: %v, want %v", name, r.View(), c.anew)
		}
	}
}

// TestSettle: the state of a pod is the worst of its ranks and streams.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		set         func(p *Pod)
		approximate bool
		want        view.State
		heard       bool
	}{
		"nothing":     {func(*Pod) {}, false, view.Partial, false},
		"approximate": {func(*Pod) {}, true, view.Approximate, false},
		"one rank":    {func(p *Pod) { rank(p, 0).On(AppliedAll) }, true, view.Live, true},
		"two ranks": {func(p *Pod) {
			rank(p, 0).On(AppliedAll)
			rank(p, 1).On(AppliedLate)
		}, false, view.Partial, true},
		"an unknown rank": {func(p *Pod) {
			rank(p, 0).On(AppliedAll)
			rank(p, 1)
		}, false, view.Live, true},
		"a silent stream": {func(p *Pod) {
			rank(p, 0).On(AppliedAll)
			p.Silent = 1
		}, false, view.Silent, true},
		"a stream that waits": {func(p *Pod) {
			st, _ := p.Stream("a")
			st.Held = true
		}, false, view.Replaying, false},
	} {
		p := New()
		if c.approximate {
			p.Shown.Publish(view.Facts{State: view.Approximate})
		}
		c.set(&p)
		before := p.Shown.Facts().State
		heard := p.Reports()
		from, to := p.Settle(c.approximate && !heard)
		if from != before || to != c.want || heard != c.heard || p.Shown.Facts().State != c.want {
			t.Errorf("%s: from %v to %v, received %v; published %v", name, from, to, heard, p.Shown.Facts())
		}
		for _, r := range p.ByNumber {
			if p.Shown.StateOf(r.Number) != r.View() {
				t.Errorf("%s: rank %d is published as %v", name, r.Number, p.Shown.StateOf(r.Number))
			}
		}
	}
}

func rank(p *Pod, n int) *Rank {
	r, err := p.Rank(n)
	if err != nil {
		panic(err)
	}
	return r
}

// TestBounds: the ranks and streams of a pod are bounded, and a stream without ranks makes room.
func TestBounds(t *testing.T) {
	p := New()
	for n := range engine.MaxRanks {
		rank(&p, n)
	}
	if _, err := p.Rank(engine.MaxRanks); err == nil {
		t.Error("one rank too many")
	}
	for n := range engine.MaxStreams {
		st, err := p.Stream(fmt.Sprint(n))
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			st.opened = true
		}
	}
	if _, err := p.Stream("new"); err != nil || p.Streams["0"] != nil {
		t.Errorf("%v: a stream of nobody makes no room", err)
	}
	p.Streams["new"].opened = true
	if _, err := p.Stream("newer"); err == nil {
		t.Error("one stream too many")
	}
	if _, err := p.Stream(strings.Repeat("a", engine.MaxName+1)); err == nil {
		t.Error("a name of any length")
	}
}

// random returns a pod with all kinds of state that a snapshot has.
func random(r *rand.Rand) *Pod {
	p := New()
	p.Shown.Publish(view.Facts{Hybrid: r.IntN(2) == 0})
	if r.IntN(2) == 0 {
		p.Formed = engine.Form{Groups: []stats.Group{{BlockSize: 16}}, Pairs: r.IntN(2) == 0}
	}
	for n := range r.IntN(4) {
		p.Adapters[fmt.Sprint("adapter", n)] = struct{}{}
	}
	for n := range r.IntN(5) {
		rank := rank(&p, n*3)
		rank.State, rank.Kept = view.State(r.IntN(int(view.Live)+1)), r.IntN(3) == 0
		rank.Contest = Contest{Open: r.IntN(2) == 0, Reported: r.IntN(2) == 0, Others: r.IntN(ContestRun), Own: r.IntN(ContestRun)}
		rank.Lost = view.LastLoss{Cause: view.LossNames[r.IntN(len(view.LossNames))], Kept: r.IntN(2) == 0, At: time.Unix(0, 1+r.Int64N(1e18))}
		for id := range r.IntN(3) {
			rank.Groups = append(rank.Groups, stats.Group{BlockSize: 16 << r.IntN(3)})
			rank.Groups[id].ID = id
		}
		for n := range r.IntN(3) {
			rank.NoteUnknown([]string{fmt.Sprint("event ", n)}, r.IntN(2) == 0)
		}
		if r.IntN(3) > 0 {
			st, _ := p.Stream(fmt.Sprint("stream", r.IntN(2)))
			st.Partial, st.Skipped, st.LastMessage = r.IntN(2) == 0, r.IntN(2) == 0, time.Unix(0, 1+r.Int64N(1e18))
			a := sequence.Arrival{Seq: r.Uint64N(1000), Decoded: true, Time: 1e9}
			st.Seq.Advance(a, st.Seq.Check(a))
			p.Bind(rank, st)
		}
		rank.Tiers = engine.LowerTiers & engine.Tiers(r.IntN(64))
		if r.IntN(2) == 0 {
			st, _ := p.Stream(fmt.Sprint("daemon", r.IntN(2)))
			st.Declared, st.Reports, st.LastMessage = r.IntN(2) == 0, view.State(r.IntN(int(view.Live)+1)), time.Unix(0, 1)
			st.Named = engine.LowerTiers & engine.Tiers(r.IntN(64))
			rank.Lend(st)
		}
	}
	return &p
}

func read(b []byte) (*Pod, error) {
	p, f := New(), sections.NewFields(b)
	if err := p.ReadState(f); err != nil {
		return nil, err
	}
	return &p, f.End()
}

// TestStates: a state that was read is written unchanged.
func TestStates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		b := random(r).AppendState(nil)
		p, err := read(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range p.Streams {
			if !st.Interrupted || !st.restored {
				t.Fatal("a stream goes on as if nothing had happened")
			}
		}
		if again := p.AppendState(nil); len(again) != len(b) {
			t.Fatalf("%d bytes, and %d when written again", len(b), len(again))
		}
	}
}

// FuzzState: any bytes are rejected, or are a state that is written and read again unchanged.
func FuzzState(f *testing.F) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 5 {
		f.Add(random(r).AppendState(nil))
	}
	f.Add([]byte("0\x00\x00\x0200000000000000000000\x00\x00\x00")) // a form without groups
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := read(b)
		if err != nil {
			return
		}
		once := p.AppendState(nil)
		q, err := read(once)
		if err != nil {
			t.Fatalf("what was read is not readable again: %v", err)
		}
		if twice := q.AppendState(nil); !bytes.Equal(once, twice) {
			t.Fatal("written twice, it differs")
		}
	})
}

// TestNoteOfTiers: a note reports that lower tiers may hold less.
func TestNoteOfTiers(t *testing.T) {
	for i := range 8 {
		want := PodNote{State: view.Live, Tiered: i&1 != 0, Loose: i&2 != 0, Single: i&4 != 0}
		n, err := ReadNote((&Note{Pod: &want}).Append(nil))
		if err != nil || n.Pod == nil || n.Pod.Tiered != want.Tiered || n.Pod.Loose != want.Loose || n.Pod.Single != want.Single {
			t.Errorf("%+v, %v, want %+v", n.Pod, err, want)
		}
	}
}
