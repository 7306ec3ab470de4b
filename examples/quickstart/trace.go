package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The parameters of the trace. All lengths are in tokens.
const (
	conversations = 64
	startEvery    = 6 * time.Second  // mean time between two starts
	turnEvery     = 20 * time.Second // mean time between two turns
	siblings      = 4                // simultaneous requests of one turn in siblingTurns
	siblingTurns  = 4
	systemPrompts = 6
)

// span is a range that values are drawn from.
type span struct{ least, most int }

func (s span) draw(r *rand.Rand) int { return s.least + r.IntN(s.most-s.least+1) }
func (s span) String() string        { return fmt.Sprintf("%d to %d", s.least, s.most) }

var (
	turns    = span{4, 12}
	system   = span{512, 1024}
	question = span{32, 320}
	answer   = span{32, 256}
)

// request is one request of a trace.
type request struct {
	at             time.Duration // time of arrival
	router         uint          // number of its router, modulo the number of routers
	prompt, answer []uint32
}

// newTrace draws conversations. The prompt of a turn is the system prompt, all earlier
// questions and answers, and a new question. Siblings have one prompt and different answers;
// the conversation goes on with the first answer.
func newTrace(seed uint64) (trace []request) {
	random := rand.New(rand.NewPCG(seed, 0))
	tokens := func(s span) []uint32 {
		text := make([]uint32, s.draw(random))
		for i := range text {
			text[i] = random.Uint32N(32_000)
		}
		return text
	}
	wait := func(mean time.Duration) time.Duration { return time.Duration(random.ExpFloat64() * float64(mean)) }

	var systems [systemPrompts][]uint32
	for i := range systems {
		systems[i] = tokens(system)
	}
	var start time.Duration
	for range conversations {
		start += wait(startEvery)
		at, prompt := start, systems[random.IntN(systemPrompts)]
		for range turns.draw(random) {
			prompt = slices.Concat(prompt, tokens(question))
			requests := 1
			if random.IntN(siblingTurns) == 0 {
				requests = siblings
			}
			first := len(trace)
			for range requests {
				trace = append(trace, request{at, random.UintN(1 << 16), prompt, tokens(answer)})
			}
			prompt = slices.Concat(prompt, trace[first].answer)
			at += turnEvery/2 + wait(turnEvery/2)
		}
	}
	slices.SortStableFunc(trace, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return trace
}
