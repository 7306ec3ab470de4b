package sequence_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/sequence"
)

// restored returns a Sequencer that was written and read.
func restored(t testing.TB, s *sequence.Sequencer) *sequence.Sequencer {
	t.Helper()
	b := stateOf(t, s)
	var read sequence.Sequencer
	if err := read.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	if again := stateOf(t, &read); !bytes.Equal(again, b) {
		t.Fatal("what was read is written in other bytes")
	}
	return &read
}

func stateOf(t testing.TB, s *sequence.Sequencer) []byte {
	t.Helper()
	b, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// talker makes the messages of a random stream.
type talker struct {
	r          *rand.Rand
	next, life uint64
	clock      float64
	steady     bool // in order, with repeats
	sent       []sequence.Arrival
}

// says returns a message: mostly the next one, else a lost, repeated, reordered, unreadable or
// replayed one, one of an earlier or a new life, or one far ahead.
func (k *talker) says() sequence.Arrival {
	r := k.r
	what := r.IntN(24)
	if k.steady {
		what = max(what, 3)
		if what > 5 {
			what = 23
		}
	}
	switch what {
	case 0, 1:
		k.next += uint64(r.IntN(40))
	case 2: // restarts, with any clock
		k.next, k.life = uint64(r.IntN(2)*r.IntN(8)), k.life+1
		k.clock += float64(r.IntN(3)-1) * float64(r.IntN(3000))
	case 3, 4, 5:
		if n := len(k.sent); n > 0 {
			a := k.sent[n-1-r.IntN(min(n, 1+r.IntN(3000)))]
			a.Replayed = r.IntN(3) == 0
			return a
		}
	case 6:
		return at(uint64(r.IntN(int(k.next)+5)), r.Uint64(), k.clock+float64(r.IntN(2000)-1000))
	case 7:
		if r.IntN(10) == 0 {
			return at(k.next+r.Uint64N(1<<40), r.Uint64(), 1e10*r.Float64())
		}
	case 8:
		k.clock += 100 * r.NormFloat64()
	}
	k.clock += float64(r.IntN(3))
	a := at(k.next, k.life<<40|k.next, k.clock)
	switch r.IntN(60) {
	case 0:
		a.Decoded, a.Time = false, 0
	case 1:
		a.Time = math.NaN()
	case 2:
		a.Replayed = true
	case 3:
		a.Time = 0
	}
	k.next++
	k.sent = append(k.sent, a)
	return a
}

// TestSequencerAway: after a time without a listener, repeats and restarts are distinguished as
// before, and only the next message is doubtful.
func TestSequencerAway(t *testing.T) {
	replayed := func(a sequence.Arrival) sequence.Arrival { a.Replayed = true; return a }
	away := func() *sequence.Sequencer {
		var s sequence.Sequencer
		for seq := range uint64(50) {
			offer(&s, at(seq, 100+seq, 1000+float64(seq)))
		}
		r := restored(t, &s)
		r.Away()
		return restored(t, r)
	}
	for name, c := range map[string]struct {
		before []sequence.Arrival
		a      sequence.Arrival
		want   sequence.Verdict
	}{
		"the next":                     {nil, at(50, 150, 1050), sequence.Verdict{Doubtful: true, Next: 51}},
		"the next replayed":            {nil, replayed(at(50, 150, 1050)), sequence.Verdict{Next: 51}},
		"the one behind the next":      {[]sequence.Arrival{at(50, 150, 1050)}, at(51, 151, 1051), sequence.Verdict{Next: 52}},
		"the next, by another clock":   {nil, at(50, 150, 50), sequence.Verdict{Duplicate: true, Doubtful: true, Next: 50}},
		"behind the next, likewise":    {[]sequence.Arrival{at(50, 150, 50)}, at(51, 151, 51), sequence.Verdict{Gap: gap(50, 50), Next: 52}},
		"the last again":               {nil, at(49, 149, 1049), sequence.Verdict{Duplicate: true, Next: 50}},
		"an old one again":             {nil, at(3, 103, 1003), sequence.Verdict{Duplicate: true, Next: 50}},
		"confirmed, and the next":      {[]sequence.Arrival{replayed(at(49, 149, 1049))}, at(50, 150, 50), sequence.Verdict{Next: 51}},
		"not confirmed by a repeat":    {[]sequence.Arrival{at(49, 149, 1049)}, at(50, 150, 1050), sequence.Verdict{Doubtful: true, Next: 51}},
		"a gap":                        {nil, at(60, 160, 1060), sequence.Verdict{Gap: gap(50, 59), Next: 61}},
		"a restart":                    {nil, at(0, 7, 1100), sequence.Verdict{Restarted: true, Epoch: 1, Next: 1}},
		"a restart, replayed":          {nil, replayed(at(49, 7, 49)), sequence.Verdict{Restarted: true, Missed: true, Epoch: 1, Next: 50}},
		"a restart, the clock behind":  {nil, at(0, 7, 5), sequence.Verdict{Duplicate: true, Doubtful: true, Next: 50}},
		"the second of that, and more": {sixteen(), at(15, 22, 20), sequence.Verdict{Restarted: true, Missed: true, Epoch: 1, Next: 16}},
	} {
		s := away()
		for _, a := range c.before {
			offer(s, a)
		}
		if got := s.Check(c.a); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	// Other bytes with times of before are no sign of a restart, however many.
	s := away()
	for range 40 {
		if v := offer(s, at(50, 7, 50)); !v.Duplicate {
			t.Fatalf("%+v", v)
		}
	}
	// A stream that has not begun cannot have been away.
	var none sequence.Sequencer
	none.Away()
	offer(&none, at(0, 1, 1))
	if v := none.Check(at(1, 2, 0)); v.Doubtful {
		t.Errorf("%+v", v)
	}
	if s := away(); !s.IsLast(at(49, 149, 0)) || s.IsLast(at(49, 7, 0)) || s.IsLast(at(48, 148, 0)) || none.IsLast(at(1, 2, 0)) {
		t.Error("the last message is another one")
	}
}

// sixteen are 15 messages of a restarted engine with an earlier clock.
func sixteen() (all []sequence.Arrival) {
	for seq := range uint64(15) {
		all = append(all, at(seq, 7+seq, 5+float64(seq)))
	}
	return all
}

// TestSequencerStateRefused: an invalid state is an error with a reason, and changes nothing.
func TestSequencerStateRefused(t *testing.T) {
	var s sequence.Sequencer
	for seq := range uint64(3) {
		offer(&s, at(seq, 100+seq, 1))
	}
	good := stateOf(t, &s)
	// version, flags, back, next, epoch, oldNext, 5 times, then floor, stride, messages, marks
	const times = 6
	const memory = times + 5*8
	changed := func(at int, to ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], to)
		return b
	}
	nan := binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"nothing":              {nil, "missing"},
		"another version":      {changed(0, 9), "version 9, and only version 1"},
		"unknown flags":        {changed(1, 0xff), "flags"},
		"too many signs":       {changed(2, 16), "contradict"},
		"another number due":   {changed(3, 7), "due"},
		"not begun":            {changed(1, 0), "not begun"},
		"NaN":                  {changed(times, nan...), "NaN"},
		"NaN in a mark":        {changed(len(good)-4-8, nan...), "NaN"},
		"a floor ahead":        {changed(memory, 4), "due"},
		"a stride of 3":        {changed(memory+1, 3), "multiples of 3"},
		"a stride of 2":        {changed(memory+1, 2), "mark"},
		"no stride":            {changed(memory+1, 0), "multiples of 0"},
		"messages not there":   {changed(memory+2, 100), "missing"},
		"more":                 {append(bytes.Clone(good), 0), "more"},
		"marks that go back":   {changed(len(good)-4-17, 1), "mark"},
		"a mark ahead":         {changed(len(good)-4-17, 9), "due"},
		"more than 1,024":      {tooMany(good[:memory+2], 1025), "more messages than"},
		"a number that wraps":  {changed(memory+3+9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), "order"},
		"cut in a message":     {good[:memory+6], "missing"},
		"cut before the marks": {good[:len(good)-4], "missing"},
	} {
		read := *restored(t, &s)
		err := read.UnmarshalBinary(c.b)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if next, _ := read.Next(); next != 3 {
			t.Errorf("%s: it was changed", name)
		}
	}
	for n := range good {
		if err := new(sequence.Sequencer).UnmarshalBinary(good[:n]); err == nil {
			t.Errorf("%d of %d bytes are enough", n, len(good))
		}
	}
}

// tooMany is a state with n messages.
func tooMany(front []byte, n uint64) []byte {
	b := binary.AppendUvarint(bytes.Clone(front), n)
	return append(b, make([]byte, 20*n)...)
}

// FuzzSequencerState: after any input a Sequencer is bounded and does not panic, and its state can
// be read again.
func FuzzSequencerState(f *testing.F) {
	k := &talker{r: rand.New(rand.NewPCG(1, 1))}
	var s sequence.Sequencer
	for i := range 3000 {
		if i&(i+1) == 0 {
			f.Add(stateOf(f, &s), uint64(i))
		}
		offer(&s, k.says())
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		var s sequence.Sequencer
		if s.UnmarshalBinary(b) != nil {
			return
		}
		k := &talker{r: rand.New(rand.NewPCG(seed, 2))}
		k.next, _ = s.Next()
		k.next = min(k.next, 1<<62)
		copied := restored(t, &s)
		for range 200 {
			a := k.says()
			if v, w := offer(&s, a), offer(copied, a); v != w {
				t.Fatalf("%+v: %+v and %+v", a, v, w)
			}
		}
		if n := len(stateOf(t, &s)); n > 80<<10 {
			t.Fatalf("%d bytes", n)
		}
		restored(t, &s)
	})
}
