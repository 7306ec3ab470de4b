package events_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// offer checks a message and, unless it is refused, advances.
func offer(s *events.Sequencer, a events.Arrival) events.Verdict {
	v := s.Check(a)
	s.Advance(a, v)
	return v
}

func at(seq, digest uint64, time float64) events.Arrival {
	return events.Arrival{Seq: seq, Digest: digest, Time: time, Decoded: true}
}

func gap(from, to uint64) events.Gap { return events.Gap{From: from, To: to, Lost: true} }

func TestSequencer(t *testing.T) {
	type step struct {
		a    events.Arrival
		want events.Verdict
	}
	again := func(next uint64) events.Verdict { return events.Verdict{Duplicate: true, Next: next} }
	undecoded := func(a events.Arrival) events.Arrival {
		a.Decoded, a.Time = false, 0
		return a
	}
	for name, steps := range map[string][]step{
		"in order": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(1, 11, 1), events.Verdict{Next: 2}},
		},
		"first contact late": {
			{at(7, 10, 1), events.Verdict{Missed: true, Next: 8}},
			{at(8, 11, 2), events.Verdict{Next: 9}},
		},
		"a gap": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(4, 14, 2), events.Verdict{Gap: gap(1, 3), Next: 5}},
			{at(5, 15, 3), events.Verdict{Next: 6}},
		},
		"a late one of a gap is a duplicate by its time": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(3, 13, 3), events.Verdict{Gap: gap(1, 2), Next: 4}},
			{at(2, 12, 2), again(4)},
			{at(4, 14, 4), events.Verdict{Next: 5}},
		},
		"duplicates by digest, however new their time": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(1, 11, 2), events.Verdict{Next: 2}},
			{at(0, 10, 9), again(2)},
			{at(1, 11, 9), again(2)},
		},
		"a restart by its time": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(1, 11, 2), events.Verdict{Next: 2}},
			{at(0, 20, 3), events.Verdict{Restarted: true, Epoch: 1, Next: 1}},
			{at(1, 21, 4), events.Verdict{Epoch: 1, Next: 2}},
			{at(1, 22, 5), events.Verdict{Restarted: true, Missed: true, Epoch: 2, Next: 2}},
		},
		"the number of the last message with other bytes and a newer time": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(0, 20, 2), events.Verdict{Restarted: true, Epoch: 1, Next: 1}},
		},
		"NaN is never newer": {
			{at(0, 10, math.NaN()), events.Verdict{Next: 1}},
			{at(1, 11, math.NaN()), events.Verdict{Next: 2}},
			{at(0, 20, math.NaN()), again(2)},
			{at(0, 21, 1), events.Verdict{Restarted: true, Epoch: 1, Next: 1}},
		},
		"what cannot be decoded uses up its number": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{undecoded(at(1, 11, 0)), events.Verdict{Next: 2}},
			{undecoded(at(5, 15, 0)), events.Verdict{Gap: gap(2, 4), Next: 6}},
			{undecoded(at(4, 14, 0)), again(6)},
			{at(6, 17, 2), events.Verdict{Next: 7}},
		},
		"an engine whose clock is behind catches up": {
			{at(0, 10, 1000), events.Verdict{Next: 1}},
			{at(1, 11, 1001), events.Verdict{Next: 2}},
			{at(0, 20, 900), again(2)},
			{at(1, 21, 901), again(2)},
			{at(2, 22, 902), events.Verdict{Restarted: true, Missed: true, Epoch: 1, Next: 3}},
			{at(3, 23, 903), events.Verdict{Epoch: 1, Next: 4}},
		},
		"one that was missing comes late, and all goes on": {
			{at(0, 10, 1), events.Verdict{Next: 1}},
			{at(2, 12, 3), events.Verdict{Gap: gap(1, 1), Next: 3}},
			{at(1, 11, 2), again(3)},
			{at(3, 13, 4), events.Verdict{Next: 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s events.Sequencer
			for i, st := range steps {
				if got := offer(&s, st.a); got != st.want {
					t.Fatalf("step %d: %+v\n got %+v\nwant %+v", i, st.a, got, st.want)
				}
			}
		})
	}
}

// A restarted engine whose clock is behind shows by 16 new messages in a row.
func TestSequencerRestartWithoutClock(t *testing.T) {
	var s events.Sequencer
	for i := range uint64(100) {
		offer(&s, at(i, i, float64(1000+i)))
	}
	for i := range uint64(15) {
		if v := offer(&s, at(i, 500+i, float64(i))); !v.Duplicate {
			t.Fatalf("message %d: %+v", i, v)
		}
	}
	if v := offer(&s, at(3, 3, 0)); !v.Duplicate { // one that is known breaks the row
		t.Fatalf("%+v", v)
	}
	for i := range uint64(15) {
		if v := offer(&s, at(i, 600+i, float64(i))); !v.Duplicate {
			t.Fatalf("message %d: %+v", i, v)
		}
	}
	want := events.Verdict{Restarted: true, Missed: true, Epoch: 1, Next: 16}
	if v := offer(&s, at(15, 615, 15)); v != want {
		t.Fatalf("got %+v, want %+v", v, want)
	}
}

// A message that was not dealt with may be offered again.
func TestSequencerRetry(t *testing.T) {
	var s events.Sequencer
	offer(&s, at(0, 10, 1))
	for range 3 {
		if v := s.Check(at(2, 12, 2)); v.Gap != gap(1, 1) {
			t.Fatalf("%+v", v)
		}
	}
	if v := offer(&s, at(1, 11, 2)); v.Duplicate || v.Gap.Lost {
		t.Fatalf("%+v", v)
	}
}

func TestSequencerResume(t *testing.T) {
	for seq, want := range map[uint64]events.Verdict{
		49: {Epoch: 3, Next: 50, Duplicate: true},
		50: {Epoch: 3, Next: 51},
		60: {Epoch: 3, Next: 61, Gap: gap(50, 59)},
	} {
		var s events.Sequencer
		s.Resume(3, 50, 0)
		if got := offer(&s, at(seq, 1, 0)); got != want {
			t.Errorf("message %d: %+v, want %+v", seq, got, want)
		}
	}
}

// Behind a stored cursor, numbers that go back may be those of an engine that
// started anew while nobody listened.
func TestSequencerResumeBehindARestart(t *testing.T) {
	var s events.Sequencer
	s.Resume(0, 2, 0)
	for i, want := range []events.Verdict{
		{Duplicate: true, Next: 2}, {Duplicate: true, Next: 2}, {Restarted: true, Missed: true, Epoch: 1, Next: 3}, {Epoch: 1, Next: 4},
	} {
		if got := offer(&s, at(uint64(i), uint64(20+i), 5)); got != want {
			t.Errorf("message %d: %+v, want %+v", i, got, want)
		}
	}
}

// Behind a stored cursor with a time, what a queue redelivers is told from an
// engine that started anew.
func TestSequencerResumeWithATime(t *testing.T) {
	resumed := func() *events.Sequencer {
		var s events.Sequencer
		s.Resume(0, 100, 1000)
		return &s
	}
	redelivered := resumed()
	for seq := range uint64(100) {
		if v := offer(redelivered, at(seq, seq, 900+float64(seq))); !v.Duplicate {
			t.Fatalf("message %d again: %+v", seq, v)
		}
	}
	if v := offer(redelivered, at(100, 100, 1000)); v != (events.Verdict{Next: 101}) {
		t.Errorf("the next: %+v", v)
	}
	if v := offer(resumed(), at(0, 0, 1001)); !v.Restarted {
		t.Errorf("a newer one that goes back: %+v", v)
	}
	// Of an earlier life, and with the number that is due.
	if v := offer(resumed(), at(100, 0, 999)); !v.Duplicate {
		t.Errorf("an older one: %+v", v)
	}
}

// TestSequencerRedelivery: a queue may redeliver all that it has, from anywhere
// and as often as it likes, and no engine has restarted.
func TestSequencerRedelivery(t *testing.T) {
	const n = 20_000
	message := func(seq uint64) events.Arrival { return at(seq, 1e6+seq, float64(seq/3)) }
	for _, first := range []uint64{0, 1, 777} {
		var s events.Sequencer
		for seq := first; seq < n; seq++ {
			offer(&s, message(seq))
		}
		for _, from := range []uint64{0, 1, 500, 10_000, n - 1025, n - 1} {
			for seq := from; seq < n; seq++ {
				if v := offer(&s, message(seq)); !v.Duplicate {
					t.Fatalf("heard from %d, message %d again: %+v", first, seq, v)
				}
			}
		}
		if v := offer(&s, message(n)); v != (events.Verdict{Next: n + 1}) {
			t.Fatalf("heard from %d, the next: %+v", first, v)
		}
	}
}

// TestSequencerRedeliveryOfALife: messages of the engine's life before come again.
func TestSequencerRedeliveryOfALife(t *testing.T) {
	var s events.Sequencer
	for seq := range uint64(8) {
		offer(&s, at(seq, 100+seq, 1000+float64(seq)))
	}
	for seq := range uint64(4) {
		if v := offer(&s, at(seq, 200+seq, 2000+float64(seq))); v.Restarted != (seq == 0) {
			t.Fatalf("the new life: %+v", v)
		}
	}
	for _, from := range []uint64{0, 3, 4} {
		for seq := from; seq < 8; seq++ {
			if v := offer(&s, at(seq, 100+seq, 1000+float64(seq))); !v.Duplicate {
				t.Fatalf("message %d of the old life: %+v", seq, v)
			}
		}
		for seq := range uint64(4) {
			if v := offer(&s, at(seq, 200+seq, 2000+float64(seq))); !v.Duplicate {
				t.Fatalf("message %d again: %+v", seq, v)
			}
		}
	}
	if v := offer(&s, at(4, 204, 2004)); v != (events.Verdict{Epoch: 1, Next: 5}) {
		t.Errorf("the next: %+v", v)
	}
}

// TestSequencerRedeliveryWithoutClock: a clock that was ahead once, or none at
// all, does not make a redelivery a restart.
func TestSequencerRedeliveryWithoutClock(t *testing.T) {
	for name, clock := range map[string]func(uint64) float64{
		"none":        func(uint64) float64 { return 0 },
		"ahead first": func(seq uint64) float64 { return float64(seq) + 1e6*float64(1-min(seq, 1)) },
	} {
		var s events.Sequencer
		message := func(seq uint64) events.Arrival { return at(seq, 1e9+seq, clock(seq)) }
		for seq := range uint64(3000) {
			offer(&s, message(seq))
		}
		for seq := range uint64(3000) {
			if v := offer(&s, message(seq)); !v.Duplicate {
				t.Fatalf("%s: message %d again: %+v", name, seq, v)
			}
		}
	}
}

// One odd repeat is forgotten when an honest one follows.
func TestSequencerOddRepeat(t *testing.T) {
	var s events.Sequencer
	for seq := range uint64(3) {
		offer(&s, at(seq, 10+seq, float64(seq)))
	}
	offer(&s, at(1, 99, 1))
	offer(&s, at(2, 12, 2))
	if v := offer(&s, at(3, 13, 3)); v != (events.Verdict{Next: 4}) {
		t.Errorf("%+v", v)
	}
}

// TestSequencerIsBounded: whatever numbers a pod uses.
func TestSequencerIsBounded(t *testing.T) {
	for _, step := range []uint64{1, 2, 3, 1 << 20, 1 << 44} {
		var s events.Sequencer
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range uint64(50_000) {
			offer(&s, at(i*step, i, float64(i)))
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
			t.Errorf("step %d: %d bytes allocated", step, n)
		}
	}
}

// TestSequencerContradictions: numbers of which nothing is remembered are no sign
// of a restart, among however many signs.
func TestSequencerContradictions(t *testing.T) {
	var s events.Sequencer
	for seq := range uint64(2000) {
		offer(&s, at(seq, 1e6+seq, float64(seq)))
	}
	// What is marked of so many are the numbers divisible by 16.
	for i := range uint64(15) {
		for _, seq := range []uint64{16*i + 1, 16 * i, 16*i + 2} {
			if v := offer(&s, at(seq, seq, float64(seq))); !v.Duplicate {
				t.Fatalf("message %d: %+v", seq, v)
			}
		}
	}
	if v := offer(&s, at(16*15, 0, 16*15)); !v.Restarted {
		t.Errorf("the 16th contradiction: %+v", v)
	}
}

// TestSequencerRestartAfterALongLife: a restart shows soon even if the new
// engine's clock is an hour behind, and nothing is remembered of most numbers.
func TestSequencerRestartAfterALongLife(t *testing.T) {
	const n = 1_000_000
	for _, first := range []uint64{0, 300_000} {
		var s events.Sequencer
		for seq := first; seq < n; seq++ {
			offer(&s, at(seq, 1e9+seq, float64(seq)))
		}
		for seq := range uint64(100) {
			if v := offer(&s, at(seq, seq, n-3600+float64(seq))); v.Restarted {
				if seq != 15 {
					t.Errorf("heard from %d: noticed at message %d", first, seq)
				}
				break
			} else if seq == 99 {
				t.Errorf("heard from %d: not noticed", first)
			}
		}
	}
}

// What the engine replays is what it has today: other bytes under a number that
// is remembered are another engine's.
func TestSequencerReplayed(t *testing.T) {
	var s events.Sequencer
	for seq := range uint64(10) {
		offer(&s, at(seq, 100+seq, float64(seq)))
	}
	replayed := func(seq, digest uint64) events.Verdict {
		a := at(seq, digest, float64(seq))
		a.Replayed = true
		return s.Check(a)
	}
	if v := replayed(9, 109); !v.Duplicate {
		t.Errorf("the same: %+v", v)
	}
	if v := replayed(9, 209); !v.Restarted || !v.Missed {
		t.Errorf("another: %+v", v)
	}
	if v := s.Check(at(9, 209, 9)); !v.Duplicate {
		t.Errorf("another that came by itself: %+v", v)
	}
	s.Restart()
	if next, started := s.Next(); started || next != 0 {
		t.Errorf("after a restart %d is due, heard %v", next, started)
	}
	if v := offer(&s, at(3, 109, 1)); v != (events.Verdict{Missed: true, Epoch: 1, Next: 4}) {
		t.Errorf("first after a restart: %+v", v)
	}
}

// TestSequencerAgainstEngine plays an engine that restarts behind a transport
// that loses and repeats, and checks each verdict against the truth.
func TestSequencerAgainstEngine(t *testing.T) {
	fired := map[string]int{}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		var s events.Sequencer
		var sent []events.Arrival // of this life of the engine
		clock, life, next, due := 0.0, uint64(0), uint64(0), uint64(0)
		heard := false
		for range 2000 {
			switch r.IntN(40) {
			case 0: // restart
				if heard {
					life, next, due, sent = life+1, 0, 0, nil
				}
			case 1, 2: // the next message is lost
				clock++
				sent = append(sent, at(next, life<<32|next, clock))
				next++
				continue
			case 3, 4: // an old one comes again
				if len(sent) == 0 || due == 0 {
					continue
				}
				a := sent[max(0, int(due)-1-r.IntN(20))]
				if a.Seq >= due {
					continue
				}
				if v := offer(&s, a); !v.Duplicate {
					t.Fatalf("seed %d: %+v again: %+v", seed, a, v)
				}
				fired["duplicate"]++
				continue
			}
			clock++
			a := at(next, life<<32|next, clock)
			sent = append(sent, a)
			restart := heard && due == 0
			before := s.Check(a)
			v := offer(&s, a)
			if v != before {
				t.Fatalf("seed %d: Check says %+v, then %+v", seed, before, v)
			}
			switch {
			case v.Duplicate, v.Restarted && !restart:
				t.Fatalf("seed %d: %+v is new: %+v", seed, a, v)
			case restart && !v.Restarted && !v.Gap.Lost && v.Next != next+1:
				t.Fatalf("seed %d: restart with %+v: %+v", seed, a, v)
			case !restart && heard && v.Gap.Lost != (next > due):
				t.Fatalf("seed %d: due %d, came %+v: %+v", seed, due, a, v)
			}
			if v.Gap.Lost {
				fired["gap"]++
			}
			if v.Restarted {
				fired["restart"]++
			}
			heard = true
			next++
			due = next
		}
	}
	t.Log(fired)
	for _, what := range []string{"duplicate", "gap", "restart"} {
		if fired[what] < 200 {
			t.Errorf("%d times %s", fired[what], what)
		}
	}
}
