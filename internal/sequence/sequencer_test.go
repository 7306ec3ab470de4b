package sequence_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/sequence"
)

// offer checks a message and advances unless the message is refused.
func offer(s *sequence.Sequencer, a sequence.Arrival) sequence.Verdict {
	v := s.Check(a)
	s.Advance(a, v)
	return v
}

func at(seq, digest uint64, time float64) sequence.Arrival {
	return sequence.Arrival{Seq: seq, Digest: digest, Time: time, Decoded: true}
}

func gap(from, to uint64) events.Gap { return events.Gap{From: from, To: to, Lost: true} }

func TestSequencer(t *testing.T) {
	type step struct {
		a    sequence.Arrival
		want sequence.Verdict
	}
	again := func(next uint64) sequence.Verdict { return sequence.Verdict{Duplicate: true, Next: next} }
	doubtful := func(next uint64) sequence.Verdict {
		return sequence.Verdict{Duplicate: true, Doubtful: true, Next: next}
	}
	undecoded := func(a sequence.Arrival) sequence.Arrival {
		a.Decoded, a.Time = false, 0
		return a
	}
	for name, steps := range map[string][]step{
		"in order": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(1, 11, 1), sequence.Verdict{Next: 2}},
		},
		"first contact late": {
			{at(7, 10, 1), sequence.Verdict{Missed: true, Next: 8}},
			{at(8, 11, 2), sequence.Verdict{Next: 9}},
		},
		"a gap": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(4, 14, 2), sequence.Verdict{Gap: gap(1, 3), Next: 5}},
			{at(5, 15, 3), sequence.Verdict{Next: 6}},
		},
		"a late one of a gap is a duplicate by its time": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(3, 13, 3), sequence.Verdict{Gap: gap(1, 2), Next: 4}},
			{at(2, 12, 2), doubtful(4)},
			{at(4, 14, 4), sequence.Verdict{Next: 5}},
		},
		"duplicates by digest, however new their time": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(1, 11, 2), sequence.Verdict{Next: 2}},
			{at(0, 10, 9), again(2)},
			{at(1, 11, 9), again(2)},
		},
		"a restart by its time": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(1, 11, 2), sequence.Verdict{Next: 2}},
			{at(0, 20, 3), sequence.Verdict{Restarted: true, Epoch: 1, Next: 1}},
			{at(1, 21, 4), sequence.Verdict{Epoch: 1, Next: 2}},
			{at(1, 22, 5), sequence.Verdict{Restarted: true, Missed: true, Epoch: 2, Next: 2}},
		},
		"the number of the last message with other bytes and a newer time": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(0, 20, 2), sequence.Verdict{Restarted: true, Epoch: 1, Next: 1}},
		},
		"NaN is never newer": {
			{at(0, 10, math.NaN()), sequence.Verdict{Next: 1}},
			{at(1, 11, math.NaN()), sequence.Verdict{Next: 2}},
			{at(0, 20, math.NaN()), doubtful(2)},
			{at(0, 21, 1), sequence.Verdict{Restarted: true, Epoch: 1, Next: 1}},
		},
		"what cannot be decoded uses up its number": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{undecoded(at(1, 11, 0)), sequence.Verdict{Next: 2}},
			{undecoded(at(5, 15, 0)), sequence.Verdict{Gap: gap(2, 4), Next: 6}},
			{undecoded(at(4, 14, 0)), doubtful(6)},
			{at(6, 17, 2), sequence.Verdict{Next: 7}},
		},
		"an engine whose clock is behind catches up": {
			{at(0, 10, 1000), sequence.Verdict{Next: 1}},
			{at(1, 11, 1001), sequence.Verdict{Next: 2}},
			{at(0, 20, 900), doubtful(2)},
			{at(1, 21, 901), doubtful(2)},
			{at(2, 22, 902), sequence.Verdict{Restarted: true, Missed: true, Epoch: 1, Next: 3}},
			{at(3, 23, 903), sequence.Verdict{Epoch: 1, Next: 4}},
		},
		"one that was missing comes late, and all goes on": {
			{at(0, 10, 1), sequence.Verdict{Next: 1}},
			{at(2, 12, 3), sequence.Verdict{Gap: gap(1, 1), Next: 3}},
			{at(1, 11, 2), doubtful(3)},
			{at(3, 13, 4), sequence.Verdict{Next: 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s sequence.Sequencer
			for i, st := range steps {
				if got := offer(&s, st.a); got != st.want {
					t.Fatalf("step %d: %+v\n got %+v\nwant %+v", i, st.a, got, st.want)
				}
			}
		})
	}
}

// After a stored cursor, lower numbers may be those of an engine that restarted while nobody
// listened.
func TestSequencerResumeBehindARestart(t *testing.T) {
	for _, time := range []float64{0, math.NaN(), math.Inf(1), math.Inf(-1)} {
		var s sequence.Sequencer
		s.Resume(0, 2, time, 0)
		for i, want := range []sequence.Verdict{
			{Duplicate: true, Doubtful: true, Next: 2}, {Duplicate: true, Doubtful: true, Next: 2}, {Restarted: true, Missed: true, Epoch: 1, Next: 3}, {Epoch: 1, Next: 4},
		} {
			if got := offer(&s, at(uint64(i), uint64(20+i), 5)); got != want {
				t.Errorf("time %v: message %d: %+v, want %+v", time, i, got, want)
			}
		}
	}
}

// After a stored cursor with a time, redelivered messages are distinguished from those of a
// restarted engine.
func TestSequencerResumeWithATime(t *testing.T) {
	resumed := func() *sequence.Sequencer {
		var s sequence.Sequencer
		s.Resume(0, 100, 1000, 0)
		return &s
	}
	redelivered := resumed()
	for seq := range uint64(100) {
		if v := offer(redelivered, at(seq, seq, 900+float64(seq))); !v.Duplicate {
			t.Fatalf("message %d again: %+v", seq, v)
		}
	}
	if v := offer(redelivered, at(100, 100, 1000)); v != (sequence.Verdict{Next: 101, Doubtful: true}) {
		t.Errorf("the next: %+v", v)
	}
	if v := offer(resumed(), at(0, 0, 1001)); !v.Restarted {
		t.Errorf("a newer one that goes back: %+v", v)
	}
	// Of an earlier life, with the expected number.
	if v := offer(resumed(), at(100, 0, 999)); !v.Duplicate {
		t.Errorf("an older one: %+v", v)
	}
}

// The state is bounded, whatever numbers a pod uses.
func TestSequencerIsBounded(t *testing.T) {
	for _, step := range []uint64{1, 2, 3, 1 << 20, 1 << 44} {
		var s sequence.Sequencer
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

// TestSequencerContradictions: numbers that are not remembered are no sign of a restart, among any
// number of signs.
func TestSequencerContradictions(t *testing.T) {
	var s sequence.Sequencer
	for seq := range uint64(2000) {
		offer(&s, at(seq, 1e6+seq, float64(seq)))
	}
	// After so many messages the multiples of 16 are marked.
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

// A replay has the engine's present messages: other bytes with a remembered number are another
// engine's.
func TestSequencerReplayed(t *testing.T) {
	var s sequence.Sequencer
	for seq := range uint64(10) {
		offer(&s, at(seq, 100+seq, float64(seq)))
	}
	replayed := func(seq, digest uint64) sequence.Verdict {
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
		t.Errorf("after a restart %d is due, received %v", next, started)
	}
	if v := offer(&s, at(3, 109, 1)); v != (sequence.Verdict{Missed: true, Epoch: 1, Next: 4}) {
		t.Errorf("first after a restart: %+v", v)
	}
}

// TestSequencerResumeWithADigest: the digest identifies the message before a cursor.
func TestSequencerResumeWithADigest(t *testing.T) {
	replayed := func(a sequence.Arrival) sequence.Arrival { a.Replayed = true; return a }
	anew := sequence.Verdict{Restarted: true, Missed: true, Epoch: 4, Next: 50}
	for name, c := range map[string]struct {
		time float64 // of the cursor
		a    sequence.Arrival
		want sequence.Verdict
	}{
		"the same bytes":                    {1000, at(49, 7, 1000), sequence.Verdict{Duplicate: true, Epoch: 3, Next: 50}},
		"the same bytes, older":             {1000, at(49, 7, 999), sequence.Verdict{Duplicate: true, Epoch: 3, Next: 50}},
		"the same bytes replayed":           {1000, replayed(at(49, 7, 1000)), sequence.Verdict{Duplicate: true, Epoch: 3, Next: 50}},
		"other bytes replayed":              {1000, replayed(at(49, 8, 900)), anew},
		"other bytes replayed, time or not": {0, replayed(at(49, 8, 900)), anew},
		"other bytes":                       {1000, at(49, 8, 900), sequence.Verdict{Duplicate: true, Doubtful: true, Epoch: 3, Next: 50}},
		"other bytes, newer":                {1000, at(49, 8, 1001), anew},
		"one before":                        {1000, at(48, 8, 900), sequence.Verdict{Duplicate: true, Doubtful: true, Epoch: 3, Next: 50}},
		"one before replayed":               {1000, replayed(at(48, 8, 900)), sequence.Verdict{Duplicate: true, Doubtful: true, Epoch: 3, Next: 50}},
		"the next, older":                   {1000, at(50, 8, 900), sequence.Verdict{Duplicate: true, Doubtful: true, Epoch: 3, Next: 50}},
		"the next":                          {1000, at(50, 8, 1001), sequence.Verdict{Doubtful: true, Epoch: 3, Next: 51}},
		"the next replayed":                 {1000, replayed(at(50, 8, 1001)), sequence.Verdict{Epoch: 3, Next: 51}},
	} {
		var s sequence.Sequencer
		s.Resume(3, 50, c.time, 7)
		if got := offer(&s, c.a); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	// Other bytes count only if the numbers then continue: they are another engine's.
	var s sequence.Sequencer
	s.Resume(3, 50, 1000, 7)
	offer(&s, at(49, 8, 1000))
	if v := offer(&s, at(50, 9, 1000)); !v.Restarted {
		t.Errorf("behind other bytes: %+v", v)
	}
}

// TestSequencerAsk: one of several doubtful messages is held, until a new message arrives on its
// own.
func TestSequencerAsk(t *testing.T) {
	var s sequence.Sequencer
	for seq := range uint64(4) {
		offer(&s, at(seq, 100+seq, 1000+float64(seq)))
	}
	ask := func(want bool) {
		t.Helper()
		if v := s.Check(at(1, 500, 900)); !v.Duplicate || !v.Doubtful {
			t.Errorf("%+v", v)
		}
		if got := s.Ask(); got != want {
			t.Errorf("held: %v, want %v", got, want)
		}
	}
	ask(true)
	ask(false)
	offer(&s, at(1, 500, 900))
	offer(&s, at(3, 103, 1003))
	ask(false)
	a := at(4, 104, 1004)
	a.Replayed = true
	offer(&s, a) // the connection's queue may have older ones
	ask(false)
	offer(&s, at(5, 105, 1005))
	ask(true)
	s.Restart()
	offer(&s, at(0, 0, 0))
	offer(&s, at(1, 0, 1))
	if !s.Ask() {
		t.Error("a message of another engine is not held")
	}
}

// TestSequencerCursorTime: a single message with a far future time does not set the time of a
// cursor.
func TestSequencerCursorTime(t *testing.T) {
	const far = 1e10
	undecoded := func(a sequence.Arrival) sequence.Arrival { a.Decoded, a.Time = false, 0; return a }
	var s sequence.Sequencer
	for i, c := range []struct {
		a    sequence.Arrival
		want float64
	}{
		{undecoded(at(0, 1, 0)), 0},
		{at(1, 2, 10), 10},
		{undecoded(at(2, 3, 0)), 10},
		{at(3, 4, 12), 10},
		{undecoded(at(4, 5, 0)), 10},
		{at(5, 6, 13), 12},
		{at(6, 7, far), 13},
		{at(7, 8, 14), 14},
		{at(8, 9, math.NaN()), 14},
		{at(9, 10, 5), 14},
		{at(1<<40, 11, far), 14},
		{at(3, 12, far+1), far + 1}, // an engine that restarted
		{at(4, 13, far+2), far + 1},
	} {
		v := s.Check(c.a)
		if got := s.CursorTime(c.a, v); got != c.want {
			t.Errorf("message %d: %v, want %v", i, got, c.want)
		}
		s.Advance(c.a, v)
	}
	// So a host that resumes after it accepts the engine's messages.
	var far2 sequence.Sequencer
	far2.Resume(0, 1<<40+1, 14, 11)
	if v := offer(&far2, at(10, 14, 15)); !v.Restarted {
		t.Errorf("resumed behind a far message: %+v", v)
	}
}

// TestSequencerClockBehindTheLifeBefore: a new engine's clock may overlap the earlier life's. Its
// messages are distinguished from that life's by number.
func TestSequencerClockBehindTheLifeBefore(t *testing.T) {
	lives := func() (s sequence.Sequencer) {
		for seq := range uint64(50) {
			offer(&s, at(seq, 1000+seq, 1000+float64(seq)))
		}
		for life := uint64(1); life < 3; life++ {
			for seq := range uint64(300) {
				offer(&s, at(seq, 2000*life+seq, 2000*float64(life)+float64(seq)))
			}
		}
		return s
	}
	s := lives()
	for seq := range uint64(20) {
		v := offer(&s, at(seq, 9000+seq, 2100+float64(seq)))
		if v.Restarted != (seq == 15) {
			t.Fatalf("message %d: %+v", seq, v)
		}
	}
	s = lives()
	for range 2 {
		for seq := range uint64(300) { // from the two earlier lives
			if v := offer(&s, at(seq, 2000+seq, 2000+float64(seq))); !v.Duplicate || v.Doubtful {
				t.Fatalf("message %d of the life before: %+v", seq, v)
			}
			if v := offer(&s, at(seq%50, 1000+seq%50, 1000+float64(seq%50))); !v.Duplicate {
				t.Fatalf("message %d of the first life: %+v", seq%50, v)
			}
		}
		for seq := range uint64(50) {
			if v := offer(&s, at(seq, 1000+seq, 1000+float64(seq))); !v.Duplicate {
				t.Fatalf("message %d of the first life: %+v", seq, v)
			}
		}
	}
	// A life that began without a clock: earlier messages are not recognized by their times.
	var unclocked sequence.Sequencer
	for _, life := range []struct{ n, digest, time uint64 }{{300, 1000, 1000}, {316, 2000, 500}, {100, 3000, 5000}} {
		for seq := range life.n {
			offer(&unclocked, at(seq, life.digest+seq, float64(life.time+seq)))
		}
	}
	if unclocked.Epoch() != 2 {
		t.Fatalf("%d restarts", unclocked.Epoch())
	}
	for seq := range uint64(300) {
		if v := offer(&unclocked, at(seq, 1000+seq, 500+float64(seq)/2)); !v.Duplicate {
			t.Fatalf("message %d of the first life: %+v", seq, v)
		}
	}
}

// farAhead is a stray message with a number and a time far ahead.
func farAhead(seq, digest uint64) sequence.Arrival {
	return at(1<<60+seq, digest, 1e10+float64(digest))
}

// TestSequencerFarMessage: stray messages with a number far ahead stop a stream for 16 messages at
// most.
func TestSequencerFarMessage(t *testing.T) {
	message := func(seq uint64) sequence.Arrival { return at(seq, 1e6+seq, 1000+float64(seq)) }
	for name, c := range map[string]struct {
		resume bool
		epoch  uint64
		first  uint64
		far    []sequence.Arrival
	}{
		"one":                           {far: []sequence.Arrival{farAhead(0, 1)}},
		"its time alone is not far":     {far: []sequence.Arrival{at(1<<60, 1, 1100)}},
		"its time is NaN":               {far: []sequence.Arrival{at(1<<60, 1, math.NaN())}},
		"twice in a row":                {far: []sequence.Arrival{farAhead(0, 1), farAhead(1, 2)}},
		"twice, with a hole":            {far: []sequence.Arrival{farAhead(0, 1), farAhead(9, 2)}},
		"the same number twice":         {far: []sequence.Arrival{farAhead(0, 1), farAhead(0, 2)}},
		"the second goes back":          {far: []sequence.Arrival{farAhead(9, 1), farAhead(0, 2)}},
		"the third goes back":           {far: []sequence.Arrival{farAhead(9, 1), farAhead(10, 2), at(3, 9, 2e10)}},
		"heard late":                    {first: 5000, far: []sequence.Arrival{farAhead(0, 1)}},
		"behind a cursor":               {resume: true, far: []sequence.Arrival{farAhead(0, 1)}},
		"behind a cursor, twice":        {resume: true, epoch: 1, far: []sequence.Arrival{farAhead(0, 1), farAhead(0, 2)}},
		"the first":                     {first: 100, far: []sequence.Arrival{farAhead(0, 1)}},
		"the first, and another":        {first: 100, far: []sequence.Arrival{farAhead(0, 1), farAhead(7, 2)}},
		"the first, and its like again": {first: 100, far: []sequence.Arrival{farAhead(0, 1), farAhead(0, 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			var s sequence.Sequencer
			seq := uint64(100)
			switch {
			case c.resume:
				s.Resume(c.epoch, seq, 1099, 1e6+seq-1)
			default:
				for before := c.first; before < seq; before++ {
					offer(&s, message(before))
				}
				if c.first > seq {
					for seq = c.first; seq < c.first+3000; seq++ {
						offer(&s, message(seq))
					}
				}
			}
			for _, a := range c.far {
				if v := offer(&s, a); v.Duplicate {
					t.Fatalf("%+v: %+v", a, v)
				}
			}
			for i := uint64(0); ; i++ {
				if v := offer(&s, message(seq+i)); !v.Duplicate {
					if i > 15 {
						t.Errorf("it goes on at message %d: %+v", i, v)
					}
					seq += i + 1
					break
				} else if i > 100 {
					t.Fatal("it does not go on")
				}
			}
			epoch := s.Epoch()
			for i := range uint64(50) {
				for _, a := range c.far[len(c.far)-1:] { // repeated
					if v := s.Check(a); !v.Duplicate {
						t.Fatalf("%+v again: %+v", a, v)
					}
				}
				if v := offer(&s, message(seq+i)); v != (sequence.Verdict{Epoch: epoch, Next: seq + i + 1}) {
					t.Fatalf("message %d: %+v", seq+i, v)
				}
			}
		})
	}
}

// TestSequencerFarTime: a far time alone stops nothing, because the numbers continue. Then 16
// numbers show a restart, as without a clock.
func TestSequencerFarTime(t *testing.T) {
	var s sequence.Sequencer
	for seq := range uint64(100) {
		a := at(seq, 100+seq, float64(seq))
		if seq == 50 {
			a.Time = 1e10
		}
		if v := offer(&s, a); v != (sequence.Verdict{Next: seq + 1}) {
			t.Fatalf("message %d: %+v", seq, v)
		}
	}
	for seq := range uint64(16) {
		if v := offer(&s, at(seq, 500+seq, 200+float64(seq))); v.Restarted != (seq == 15) {
			t.Fatalf("message %d of another engine: %+v", seq, v)
		}
	}
}

// TestSequencerLateMessages: late messages, fewer than 16 in a row, clear nothing; nor do the
// engine's repeats.
func TestSequencerLateMessages(t *testing.T) {
	message := func(seq uint64) sequence.Arrival { return at(seq, 1e6+seq, 1000+float64(seq)) }
	for _, first := range []uint64{0, 20} { // the first one received
		var s sequence.Sequencer
		for seq := first; seq < 60; seq++ {
			offer(&s, message(seq))
		}
		for seq := uint64(160); seq < 170; seq++ {
			if v := offer(&s, message(seq)); v.Duplicate || v.Restarted {
				t.Fatalf("message %d: %+v", seq, v)
			}
			for late := range uint64(15) {
				a := message(60 + 10*(seq-160) + late%10)
				if first > 0 && late < 10 {
					a = message(late)
				}
				if v := offer(&s, a); !v.Duplicate || !v.Doubtful {
					t.Fatalf("%+v: %+v", a, v)
				}
			}
		}
		for seq := uint64(60); seq < 160; seq++ {
			a := message(seq)
			a.Replayed = true
			if v := offer(&s, a); !v.Duplicate {
				t.Fatalf("replayed %+v: %+v", a, v)
			}
		}
		for seq := range first { // from before the first one received
			if v := offer(&s, message(seq)); !v.Duplicate {
				t.Fatalf("message %d: %+v", seq, v)
			}
		}
	}
}

// TestSequencerGoesOn plays engines over a transport that loses and redelivers messages, with stray
// ones in between. After any history a live stream is applied again after 16 of its messages, and a
// redelivery is never a restart.
func TestSequencerGoesOn(t *testing.T) {
	fired := map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 9))
		var s sequence.Sequencer
		clock, digest := 1e6, uint64(0)
		var before, first sequence.Arrival // first messages of the life before, and of this one
		var beforeClocked, clocked bool    // its clock distinguished it from the one before
		newest := 0.0
		var applied []sequence.Arrival // of this life, by the Sequencer
		offer := func(a sequence.Arrival) sequence.Verdict {
			v := s.Check(a)
			s.Advance(a, v)
			if v.Restarted || len(applied) == 0 {
				before, first, applied = first, a, applied[:0]
				beforeClocked, clocked = clocked, s.Epoch() == 0 || a.Time > newest
				newest = a.Time
			}
			if !v.Duplicate {
				applied, newest = append(applied, a), max(newest, a.Time)
			}
			return v
		}
		next := uint64(r.IntN(2) * r.IntN(50))
		live := func() sequence.Arrival {
			clock += r.Float64()
			digest++
			next++
			return at(next-1, digest, clock)
		}
		for range 30 {
			switch r.IntN(6) {
			case 0:
				next += uint64(r.IntN(40))
				fired["loss"]++
			case 1:
				next = 0
				fired["restart"]++
			case 2: // a new host, in a time with all its messages remembered
				next = 0
				since := first.Time + 16 // the first message remembered with its time may be a later one
				if first.Seq == 0 && before.Seq == 0 && beforeClocked {
					since = before.Time + 1
				}
				clock = max(clock-float64(r.IntN(2000)), min(since, clock))
				fired["clock behind"]++
			case 3:
				for range 1 + r.IntN(2) {
					digest++
					offer(farAhead(uint64(r.IntN(3)), digest))
				}
				fired["far"]++
			case 4:
				clock += 1e7 * float64(r.IntN(2)) // permanently
				fired["far time"]++
			}
			back := 0
			for ; offer(live()).Duplicate; back++ {
				if back > 16 {
					t.Fatalf("seed %d: stopped at number %d, clock %v: %+v", seed, next, clock, s.Epoch())
				}
			}
			fired["stopped"] += min(back, 1)
			for range r.IntN(30) {
				if v := offer(live()); v.Duplicate || v.Gap.Lost || v.Restarted {
					t.Fatalf("seed %d: number %d: %+v", seed, next-1, v)
				}
			}
			again := applied[r.IntN(len(applied)):]
			shuffled := r.IntN(2) == 0
			for i := range again {
				a := again[i]
				if shuffled {
					a = again[r.IntN(len(again))]
				}
				before := s.Epoch()
				if v := offer(a); !v.Duplicate || v.Doubtful || s.Epoch() != before {
					t.Fatalf("seed %d: %+v again: %+v", seed, a, v)
				}
				fired["again"]++
			}
		}
	}
	t.Log(fired)
	for _, what := range []string{"loss", "restart", "clock behind", "far", "far time", "stopped", "again"} {
		if fired[what] < 500 {
			t.Errorf("%d times %s", fired[what], what)
		}
	}
}

// A restart with an earlier clock is noticed after 16 messages, or after a quarter as many as came
// before. The same holds for a clock that is set back after a restart: then the engine counts as
// restarted again.
func TestSequencerClockSetBack(t *testing.T) {
	for _, before := range []uint64{20, 100, 1024, 1500, 5000, 100_000} {
		for _, own := range []uint64{0, 5} { // messages after the restart, before the clock is set back
			var s sequence.Sequencer
			say := func(life, seq uint64, time float64) sequence.Verdict {
				a := sequence.Arrival{Seq: seq, Digest: life<<32 | seq + 1, Time: time, Decoded: true}
				v := s.Check(a)
				s.Advance(a, v)
				return v
			}
			for seq := range before {
				say(1, seq, 1e6+float64(seq))
			}
			for seq := range own {
				if v := say(2, seq, 2e6+float64(seq)); v.Restarted != (seq == 0) {
					t.Fatalf("%d before: message %d: %+v", before, seq, v)
				}
			}
			seq, dropped := own, uint64(0)
			v := say(2, seq, float64(seq))
			for ; v.Duplicate; v = say(2, seq, float64(seq)) {
				seq, dropped = seq+1, dropped+1
			}
			limit := uint64(15)
			if before > 1024 {
				limit = before / 4
			}
			if !v.Restarted && seq < before || dropped > limit {
				t.Errorf("%d before, %d since: %d were dropped, then %+v", before, own, dropped, v)
			}
			if before == 100_000 && own == 0 && dropped != 15_360 {
				t.Errorf("%d were dropped", dropped)
			}
		}
	}
}
