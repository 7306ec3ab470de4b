package sequence_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/sequence"
)

// seqModel keeps all messages of all lives of an engine.
type seqModel struct {
	s       *sequence.Sequencer
	rng     *rand.Rand
	life    int
	now     float64 // of the engine's clock
	seq     uint64  // the engine's next number
	start   bool    // no message of this life has been applied
	applied []sequence.Arrival
	lives   []int
	log     []string
	told    bool
}

func (m *seqModel) say(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// offer passes a message to the Sequencer, and returns the verdict.
func (m *seqModel) offer(a sequence.Arrival) sequence.Verdict {
	if m.rng.IntN(10) == 0 { // a snapshot and a restore
		b, _ := m.s.AppendBinary(nil)
		n := new(sequence.Sequencer)
		if err := n.UnmarshalBinary(b); err != nil {
			panic(err)
		}
		m.s = n
	}
	v := m.s.Check(a)
	m.s.Advance(a, v)
	return v
}

// TestSequencerModel: clocks never go back; restarts are reported or not; applied messages are
// redelivered; there are gaps, and replays of the present life. Repeated messages are duplicates;
// new ones, and those that a replay was to bring, are not.
func TestSequencerModel(t *testing.T) {
	for _, mode := range []string{"silent", "told", "both"} {
		t.Run(mode, func(t *testing.T) {
			bad := map[string]int{}
			example := map[string]string{}
			runs := uint64(3000)
			if testing.Short() {
				runs = 500
			}
			for seed := range runs {
				what, log := runSequencer(seed, mode)
				if what == "" {
					continue
				}
				bad[what]++
				if e, ok := example[what]; !ok || len(log) < len(e) {
					example[what] = log
				}
			}
			for what, n := range bad {
				t.Errorf("%d of %d: %s: %s", n, runs, what, example[what])
			}
		})
	}
}

func runSequencer(seed uint64, mode string) (what, log string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	m := &seqModel{s: new(sequence.Sequencer), rng: rng, now: 1, start: true}
	digest := uint64(0)
	fail := func(what string) (string, string) { return what, strings.Join(m.log, " ") }
	for range 60 {
		switch r := rng.IntN(20); {
		case r == 0 && !m.start: // restart
			next, _ := m.s.Next()
			told := mode == "told" || mode == "both" && rng.IntN(2) == 0
			m.now += 1
			m.life++
			m.start = true
			m.seq = 0
			if rng.IntN(3) == 0 { // the first ones are lost
				m.seq = uint64(rng.IntN(3))
			}
			if told {
				m.s.Restart()
				m.say("RESTART")
			} else if m.seq >= next { // no number shows the restart
				m.seq = 0
			}
			m.told = told
		case r == 19 && (!m.start || m.told): // a replay of this life, which may be empty yet
			m.s.Await()
			m.say("AWAIT")
			for i := slices.Index(m.lives, m.life); !m.start && i < len(m.applied); i++ {
				a := m.applied[i]
				a.Replayed = true
				if v := m.offer(a); v.Duplicate || v.Restarted {
					return fail("an awaited message of a replay is dropped, or counts as a restart")
				}
			}
		case r < 6 && len(m.applied) > 0: // a repeat
			i := rng.IntN(len(m.applied))
			a := m.applied[i]
			if m.start && m.told && m.life-m.lives[i] > 1 {
				continue // until a life's first message only the life before is remembered
			}
			m.say("again %d@%v", a.Seq, a.Time)
			if v := m.offer(a); !v.Duplicate {
				where := "of this life"
				if m.lives[i] != m.life {
					where = fmt.Sprintf("of %d lives before", m.life-m.lives[i])
				}
				if m.start {
					where += ", before the first message of this one"
				}
				if !m.told {
					where += " (not told)"
				}
				return fail("applied once more " + where)
			}
		default:
			if rng.IntN(6) == 0 && !m.start {
				m.seq += uint64(1 + rng.IntN(5)) // lost
			}
			digest++
			m.now += 1
			a := sequence.Arrival{Seq: m.seq, Digest: digest, Time: m.now, Decoded: true}
			m.seq++
			m.say("%d@%v", a.Seq, a.Time)
			due, _ := m.s.Next()
			v := m.offer(a)
			first := m.start
			m.start = false
			m.applied, m.lives = append(m.applied, a), append(m.lives, m.life)
			switch {
			case v.Duplicate:
				return fail("a new message is dropped")
			case first && m.life > 0 && !m.told && !v.Restarted:
				return fail("a restart is not noticed")
			case first && m.told && v.Restarted:
				return fail("a restart was told, and a message counts as another one")
			case !first && v.Restarted:
				return fail("a message of this life counts as a restart")
			case !first && v.Gap.Lost != (a.Seq > due):
				return fail("wrong gap")
			case first && v.Missed != (a.Seq > 0):
				return fail("wrong missed")
			}
		}
	}
	return "", ""
}
