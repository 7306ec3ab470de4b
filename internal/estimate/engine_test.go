package estimate_test

import (
	"fmt"
	"math"
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
	prompt, answer = slices.Clone(*c), w.text(w.answer)
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

func newEngine(t testing.TB, blocks int) *fakeengine.Engine {
	// Two more: the null block, and the unfinished block of a request.
	e, err := fakeengine.New(fakeengine.Config{BlockSize: blockTokens, Blocks: blocks + 2, TokenBudget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// fleet is a router, with an estimate of each of its engines.
type fleet struct {
	seed         uint64
	pods         int
	blocks, told int // of a pod
	observe      bool
	answer       int // tokens
	inFlight     int // requests of which the answer is awaited when one is sent

	elsewhere int  // of so many requests one goes through another router; 0: none
	restart   int  // requests between two restarts; 0: none
	exact     bool // the router asks the engines, not the estimates

	engines []*fakeengine.Engine
	caches  []*estimate.Cache
	flying  []flight
	measured
}

type flight struct {
	pod, told int
	blocks    int
	handle    *fakeengine.Handle
	past      estimate.Past
}

type measured struct {
	requests int
	wrong    int     // requests for which the estimate was not what was reused
	behind   int     // requests of which the engine had evicted something
	err      float64 // blocks, of all requests
	reused   int     // blocks
	blocks   int     // of all prompts
}

func (m measured) mean() float64    { return m.err / float64(m.requests) }
func (m measured) hitRate() float64 { return float64(m.reused) / float64(m.blocks) }

// run sends so many requests.
func (f fleet) run(t testing.TB, requests int) measured {
	f.pods = max(f.pods, 1)
	for range f.pods {
		f.engines = append(f.engines, newEngine(t, f.blocks))
		f.caches = append(f.caches, estimate.New(f.told, 0))
	}
	w := newChat(f.seed, f.answer)
	random := rand.New(rand.NewPCG(f.seed, 2))
	sent := map[index.Key]bool{}
	for n := 0; n < requests; {
		prompt, answer := w.next()
		request := fakeengine.Request{Tokens: prompt, Output: answer}
		keys := keysOf(prompt)
		pod, run := f.pick(random.IntN(f.pods), prompt, keys)
		h, err := f.engines[pod].Submit(request)
		if err != nil {
			t.Fatal(err)
		}
		before := 0
		for before < len(keys) && sent[keys[before]] {
			before++
		}
		if f.elsewhere > 0 && random.IntN(f.elsewhere) == 0 {
			f.engines[pod].Drain()
		} else {
			f.flying = append(f.flying, flight{pod, run, len(keys), h, f.caches[pod].Sent(keys, 1, 0)})
			n++
		}
		for _, k := range keys {
			sent[k] = true
		}
		for len(f.flying) > f.inFlight {
			if f.land() < before {
				f.behind++
			}
		}
		if f.restart > 0 && n%f.restart == 0 {
			for len(f.flying) > 0 {
				f.land()
			}
			for i := range f.engines {
				f.engines[i] = newEngine(t, f.blocks)
			}
		}
	}
	return f.measured
}

// pick returns the pod with most of a prompt, and what its estimate says. A
// prompt of which none has more than the system prompt goes anywhere.
func (f *fleet) pick(anywhere int, prompt []uint32, keys []index.Key) (pod, run int) {
	pod, most := anywhere, systemBlocks
	if f.pods > 1 {
		for i := range f.pods {
			has := 0
			if f.exact {
				has = f.engines[i].Cached(prompt, "", "") / blockTokens
			} else {
				has = f.caches[i].Run(keys, 1, 0)
			}
			if has > most {
				pod, most = i, has
			}
		}
	}
	return pod, f.caches[pod].Run(keys, 1, 0)
}

// land waits for the answer of the oldest request. It returns what was reused.
func (f *fleet) land() int {
	l := f.flying[0]
	f.flying = f.flying[1:]
	for !l.handle.Done() {
		f.engines[l.pod].Step()
	}
	if f.inFlight == 0 {
		f.engines[l.pod].Drain()
	}
	reused := l.handle.CachedTokens() / blockTokens
	if f.observe {
		f.caches[l.pod].Observed(l.past, reused, 0)
	}
	f.requests++
	f.blocks_(l, reused)
	return reused
}

func (f *fleet) blocks_(l flight, reused int) {
	f.err += math.Abs(float64(l.told - reused))
	if l.told != reused {
		f.wrong++
	}
	f.reused += reused
	f.measured.blocks += l.blocks
}

const capacity = 2000

func TestTable(t *testing.T) {
	for _, answer := range []int{1, 41} {
		for kind, f := range map[string]fleet{"alone": {}, "in flight": {inFlight: 4}, "two": {elsewhere: 2}, "restart": {restart: 700}} {
			for _, told := range []int{500, 2000, 8000} {
				line := ""
				for _, obs := range []bool{false, true} {
					f.seed, f.blocks, f.answer, f.told, f.observe = 1, capacity, answer, told, obs
					m := f.run(t, 3000)
					line += fmt.Sprintf(" %6.2f (wrong %d, behind %d, hit %.3f)", m.mean(), m.wrong, m.behind, m.hitRate())
				}
				t.Log(answer, kind, told, line)
			}
		}
	}
}

func TestFleetTable(t *testing.T) {
	for _, answer := range []int{1, 41} {
		f := fleet{seed: 1, pods: 16, blocks: 500, answer: answer, told: 500, exact: true}
		m := f.run(t, 4000)
		t.Logf("exact hit %.4f behind %d", m.hitRate(), m.behind)
		f.exact = false
		for _, told := range []int{125, 500, 2000} {
			for _, obs := range []bool{false, true} {
				f.told, f.observe = told, obs
				m := f.run(t, 4000)
				t.Logf("answer %d told %d observe %v hit %.4f err %.2f behind %d", answer, told, obs, m.hitRate(), m.mean(), m.behind)
			}
		}
	}
}
