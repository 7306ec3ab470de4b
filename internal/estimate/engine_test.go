package estimate_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/estimate"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

const (
	blockTokens  = 4
	systemBlocks = 20
)

var seed = flag.Uint64("estimate.seed", 1, "of the conversations")

// chat is a workload: 400 conversations that begin with one of eight system
// prompts, grow turn by turn and begin again. Popular ones come more often.
type chat struct {
	random        *rand.Rand
	zipf          *rand.Zipf
	systems       [][]uint32
	conversations [][]uint32
	answer        int // tokens
}

func newChat(seed uint64, answer int) *chat {
	w := &chat{random: rand.New(rand.NewPCG(seed, 1)), answer: answer, conversations: make([][]uint32, 400)}
	w.zipf = rand.NewZipf(w.random, 1.1, 20, uint64(len(w.conversations)-1))
	for range 8 {
		w.systems = append(w.systems, w.text(systemBlocks*blockTokens))
	}
	return w
}

func (w *chat) text(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = w.random.Uint32N(30_000)
	}
	return tokens
}

// next returns a prompt and its answer. The prompt ends within a block, so that
// all its whole blocks can be reused.
func (w *chat) next() (prompt, answer []uint32) {
	c := &w.conversations[w.zipf.Uint64()]
	if len(*c) == 0 || len(*c) > 150*blockTokens {
		*c = slices.Clone(w.systems[w.random.IntN(len(w.systems))])
	}
	n := (1+w.random.IntN(12))*blockTokens + 1
	if (len(*c)+n)%blockTokens == 0 {
		n++
	}
	*c = append(*c, w.text(n)...)
	prompt, answer = slices.Clone(*c), w.text(w.answer) // of one token, which is not stored, if 0
	*c = append(*c, answer...)
	return prompt, answer
}

// keysOf returns the keys of the whole blocks.
func keysOf(tokens []uint32) []index.Key {
	var keys []index.Key
	for len(tokens) >= blockTokens {
		word := uint64(0)
		for _, t := range tokens[:blockTokens] {
			word = word*0x9e3779b97f4a7c15 + uint64(t)
		}
		keys, tokens = chain(keys, word, 1), tokens[blockTokens:]
	}
	return keys
}

// choose returns how much a test does: by default, or with 20,000 -estimate.steps.
func choose(usual, long int) int {
	if *steps < 20_000 {
		return usual
	}
	return long
}

func newEngine(t testing.TB, blocks int) *fakeengine.Engine {
	// Two more: the null block, and the unfinished block of a request.
	e, err := fakeengine.New(fakeengine.Config{BlockSize: blockTokens, Blocks: blocks + 2, TokenBudget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// traffic is what an engine gets. The router that asks an estimate sends it one
// request after the other, if nothing else is said.
type traffic struct {
	name      string
	answer    int // tokens that are stored; 0: none
	inFlight  int // requests of which the answer is still awaited when one is sent
	elsewhere int // one of so many requests goes through another router; 0: none
	restart   int // requests between two restarts; 0: none
}

// step is a prompt that is sent, or the answer of the oldest one in flight.
type step struct {
	keys   []index.Key // nil: an answer
	reused int         // blocks, as the engine says
}

// record returns what an engine makes of so many requests, and of how many it
// had evicted something.
func (f traffic) record(t *testing.T, blocks, requests int) (steps []step, behind int) {
	w := newChat(*seed, f.answer)
	random := rand.New(rand.NewPCG(*seed, 2))
	engine := newEngine(t, blocks)
	type flight struct {
		handle *fakeengine.Handle
		before int // leading blocks that were sent before
	}
	var flying []flight
	land := func() {
		for !flying[0].handle.Done() {
			engine.Step()
		}
		reused := flying[0].handle.CachedTokens() / blockTokens
		if reused < flying[0].before {
			behind++
		}
		steps, flying = append(steps, step{reused: reused}), flying[1:]
	}
	sent := map[index.Key]bool{}
	for n := 0; n < requests; {
		prompt, answer := w.next()
		keys := keysOf(prompt)
		h, err := engine.Submit(fakeengine.Request{Tokens: prompt, Output: answer})
		if err != nil {
			t.Fatal(err)
		}
		before := 0
		for before < len(keys) && sent[keys[before]] {
			before++
		}
		for _, k := range keys {
			sent[k] = true
		}
		if f.elsewhere > 0 && random.IntN(f.elsewhere) == 0 {
			engine.Drain()
			continue
		}
		steps, flying = append(steps, step{keys: keys}), append(flying, flight{h, before})
		n++
		for len(flying) > f.inFlight {
			land()
		}
		if f.restart > 0 && n%f.restart == 0 {
			for len(flying) > 0 {
				land()
			}
			engine = newEngine(t, blocks)
		}
	}
	for len(flying) > 0 {
		land()
	}
	return steps, behind
}

// replay returns the mean error of an estimate, in blocks, how many times it was
// wrong, and the last capacity.
func replay(t *testing.T, steps []step, told int, observe bool) (mean float64, wrong, capacity int) {
	c := estimate.New(told, 0)
	type flight struct {
		run  int
		past estimate.Past
	}
	var flying []flight
	sum, n := 0, 0
	for _, s := range steps {
		if s.keys != nil {
			flying = append(flying, flight{c.Run(s.keys, 1, 0), c.Sent(s.keys, 1, 0)})
			continue
		}
		if off := max(flying[0].run-s.reused, s.reused-flying[0].run); off > 0 {
			sum += off
			wrong++
		}
		if observe {
			c.Observed(flying[0].past, s.reused, 0)
		}
		flying = flying[1:]
		n++
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	return float64(sum) / float64(n), wrong, c.Capacity()
}

// Told the truth, alone, and without answers to store, an estimate is exact.
func TestExact(t *testing.T) {
	const requests = 3000
	steps, behind := traffic{}.record(t, 2000, requests)
	if behind < requests/2 {
		t.Errorf("only %d of %d requests are behind evictions", behind, requests)
	}
	for _, observe := range []bool{false, true} {
		if _, wrong, capacity := replay(t, steps, 2000, observe); wrong > 0 || capacity != 2000 {
			t.Errorf("observe %v: %d of %d estimates are wrong, and the capacity is %d", observe, wrong, requests, capacity)
		}
	}
}

// Observed makes up for a wrong figure, for restarts and for another router.
func TestObserved(t *testing.T) {
	const requests = 3000
	for i, test := range []struct {
		traffic
		// most that the mean error may be of that without Observed, told a quarter
		// of the truth, the truth, and four times as much.
		most [3]float64
	}{
		{traffic{name: "alone"}, [3]float64{0.5, 1, 0.5}},
		{traffic{name: "four in flight", inFlight: 4}, [3]float64{0.5, 0, 0.5}},
		{traffic{name: "restarts", restart: 700}, [3]float64{0.5, 1, 0.5}},
		{traffic{name: "two routers", elsewhere: 2}, [3]float64{1, 1, 1}},
		{traffic{name: "a third elsewhere", elsewhere: 3}, [3]float64{1, 1, 1}},
		{traffic{name: "answers", answer: 41}, [3]float64{0.5, 1, 0.5}},
		{traffic{name: "answers, four in flight", answer: 41, inFlight: 4}, [3]float64{0.5, 1, 0.5}},
		{traffic{name: "answers, restarts", answer: 41, restart: 700}, [3]float64{0.5, 1, 0.5}},
		{traffic{name: "answers, two routers", answer: 41, elsewhere: 2}, [3]float64{1, 1, 1}},
	} {
		if i%choose(3, 1) != 1%choose(3, 1) {
			continue
		}
		steps, behind := test.record(t, 2000, requests)
		if behind < requests/2 {
			t.Errorf("%s: only %d of %d requests are behind evictions", test.name, behind, requests)
		}
		for i, told := range []int{500, 2000, 8000} {
			without, _, _ := replay(t, steps, told, false)
			with, wrong, capacity := replay(t, steps, told, true)
			t.Logf("%s, told %d of 2000: error %.2f blocks without, %.2f with (%d of %d wrong, capacity %d, %d behind evictions)",
				test.name, told, without, with, wrong, requests, capacity, behind)
			most := max(test.most[i]*without, 0.1) // blocks
			if with > most {
				t.Errorf("%s, told %d of 2000: error %.2f blocks, at most %.2f", test.name, told, with, most)
			}
		}
	}
}

// Conversations that never come back let no capacity grow: their answers are
// reused, but were never sent.
func TestAnswersDoNotRaise(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	c := estimate.New(2000, 0)
	conversations := make([][]index.Key, 20)
	for range 20_000 {
		keys := &conversations[random.IntN(20)]
		if len(*keys) == 0 || len(*keys) > 150 {
			*keys = chain(chain(nil, random.Uint64N(8), systemBlocks), random.Uint64(), 5)
		}
		reused := c.Run(*keys, 1, 0)
		p := c.Sent(*keys, 1, 0)
		if reused > systemBlocks {
			reused = len(*keys) - 4 // with the answer
		}
		c.Observed(p, reused, 0)
		*keys = chain(*keys, random.Uint64(), 14)
	}
	if c.Capacity() > 3000 {
		t.Errorf("a capacity of %d blocks, told 2000", c.Capacity())
	}
}

// A router of 16 pods hits with estimates nearly what it hits with all that
// the engines know.
func TestRouter(t *testing.T) {
	const requests = 3000
	for _, answer := range []int{41, 0}[:choose(1, 2)] {
		exact, _ := route(t, answer, 0, false, requests)
		t.Logf("answers of %d tokens: hit rate %.3f with exact knowledge", answer, exact)
		for _, told := range []int{500, 125, 2000}[:choose(1, 3)] {
			for _, observe := range []bool{false, true} {
				hit, mean := route(t, answer, told, observe, requests)
				t.Logf("told %4d of 500, observe %-5v: hit rate %.3f (%.3f of exact), error %.2f blocks", told, observe, hit, hit/exact, mean)
				if least := 0.97 * exact; told == 500 && hit < least {
					t.Errorf("told %d of 500, observe %v: hit rate %.3f, at least %.3f", told, observe, hit, least)
				}
				if least := 0.9 * exact; observe && hit < least {
					t.Errorf("told %d of 500: hit rate %.3f, at least %.3f", told, hit, least)
				}
			}
		}
	}
}

// route sends requests to 16 engines of 500 blocks, each to the one that has
// most of it by its estimate; by itself, if told is 0. A prompt of which none has
// more than the system prompt goes anywhere. It returns the share of the blocks
// that were reused, and the mean error in blocks.
func route(t *testing.T, answer, told int, observe bool, requests int) (hit, mean float64) {
	const pods = 16
	var engines [pods]*fakeengine.Engine
	var caches [pods]*estimate.Cache
	for i := range pods {
		engines[i], caches[i] = newEngine(t, 500), estimate.New(max(told, 1), 0)
	}
	w := newChat(*seed, answer)
	random := rand.New(rand.NewPCG(*seed, 2))
	all, reused, off := 0, 0, 0
	for range requests {
		prompt, answer := w.next()
		keys := keysOf(prompt)
		pod, most := random.IntN(pods), systemBlocks
		for i := range pods {
			has := caches[i].Run(keys, 1, 0)
			if told == 0 {
				has = engines[i].Cached(prompt, "", "") / blockTokens
			}
			if has > most {
				pod, most = i, has
			}
		}
		h, err := engines[pod].Submit(fakeengine.Request{Tokens: prompt, Output: answer})
		if err != nil {
			t.Fatal(err)
		}
		run, past := caches[pod].Run(keys, 1, 0), caches[pod].Sent(keys, 1, 0)
		engines[pod].Drain()
		got := h.CachedTokens() / blockTokens
		if observe {
			caches[pod].Observed(past, got, 0)
		}
		all, reused, off = all+len(keys), reused+got, off+max(run-got, got-run)
	}
	return float64(reused) / float64(all), float64(off) / float64(requests)
}
