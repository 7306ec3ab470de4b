package estimate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/estimate"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

const blockTokens = 4

// chat is a workload: conversations with one of eight system prompts that grow
// turn by turn, the popular ones more often.
type chat struct {
	random *rand.Rand
	zipf   *rand.Zipf
	system [][]uint32
	convs  [][]uint32
	answer int // tokens of an answer
	last   int
}

func newChat(seed uint64, answer int) *chat {
	w := &chat{random: rand.New(rand.NewPCG(seed, 1)), answer: answer, convs: make([][]uint32, 400)}
	w.zipf = rand.NewZipf(w.random, 1.1, 20, uint64(len(w.convs)-1))
	for range 8 {
		w.system = append(w.system, w.text(20*blockTokens))
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

// next returns a prompt and its answer. No prompt is a whole number of blocks.
func (w *chat) next() (prompt, answer []uint32) {
	i := int(w.zipf.Uint64())
	if c := w.convs[i]; len(c) == 0 || len(c) > 150*blockTokens {
		w.convs[i] = append([]uint32(nil), w.system[w.random.IntN(len(w.system))]...)
	}
	n := (1+w.random.IntN(12))*blockTokens + 1
	if extra := (len(w.convs[i]) + n) % blockTokens; extra == 0 {
		n++
	}
	w.convs[i] = append(w.convs[i], w.text(n)...)
	prompt = append([]uint32(nil), w.convs[i]...)
	answer = w.text(max(w.answer, 1))
	if w.answer > 1 {
		w.convs[i] = append(w.convs[i], answer...)
	}
	return prompt, answer
}

// keysOf returns the keys of the whole blocks.
func keysOf(tokens []uint32) []index.Key {
	var keys []index.Key
	h := uint64(14695981039346656037)
	for i, t := range tokens {
		h = (h ^ uint64(t)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		if (i+1)%blockTokens == 0 {
			keys = append(keys, index.Key(h))
		}
	}
	return keys
}

func newEngine(t testing.TB, blocks int) *fakeengine.Engine {
	// One block is the null block, one the unfinished block of a request.
	e, err := fakeengine.New(fakeengine.Config{BlockSize: blockTokens, Blocks: blocks + 2, TokenBudget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

type run struct {
	seed          uint64
	blocks, told  int
	observe       bool
	requests      int
	answer        int // tokens
	foreign       float64
	restart       int // requests between
	pods          int
	exact         bool
	verbose       bool
	concurrent    int
}

type result struct {
	err, bias float64
	hit  float64
	behind float64 // requests for which the engine had evicted
	caps []int
}

type inflight struct {
	h *fakeengine.Handle
	p estimate.Past
	pod int
}

func simulate(t testing.TB, r run) result {
	w := newChat(r.seed, r.answer)
	r.pods = max(r.pods, 1)
	engines := make([]*fakeengine.Engine, r.pods)
	caches := make([]*estimate.Cache, r.pods)
	for i := range engines {
		engines[i] = newEngine(t, r.blocks)
		caches[i] = estimate.New(r.told, 0)
	}
	other := rand.New(rand.NewPCG(r.seed, 7))
	var res result
	var sum, bias, hits, total float64
	n := 0
	seen := map[index.Key]bool{}
	behind := 0
	var flying []inflight
	for i := 0; n < r.requests; i++ {
		prompt, answer := w.next()
		keys := keysOf(prompt)
		limit := (len(prompt) - 1) / blockTokens
		// pick
		best, bestRun := 0, -1
		off := other.IntN(r.pods)
		for k := range engines {
			j := (k + off) % r.pods
			var got int
			if r.exact {
				got = engines[j].Cached(prompt, "", "") / blockTokens
			} else {
				got = min(caches[j].Run(keys, 1, int64(i)), limit)
			}
			if got > bestRun {
				best, bestRun = j, got
			}
		}
		if bestRun <= 20 { // nothing but the system prompt: anywhere
			best = off
		}
		j := best
		truth := engines[j].Cached(prompt, "", "") / blockTokens
		known := 0
		for known < limit && seen[keys[known]] { known++ }
		for _, k := range keys { seen[k] = true }
		foreign := r.foreign > 0 && other.Float64() < r.foreign
		h, err := engines[j].Submit(fakeengine.Request{Tokens: prompt, Output: answer})
		if err != nil {
			t.Fatal(err)
		}
		if foreign {
			engines[j].Drain()
			continue
		}
		est := min(caches[j].Run(keys, 1, int64(i)), limit)
		n++
		sum += math.Abs(float64(est - truth))
		bias += float64(est - truth)
		hits += float64(truth)
		total += float64(limit)
		if known > truth { behind++ }
		flying = append(flying, inflight{h, caches[j].Sent(keys, 1, int64(i)), j})
		for len(flying) > r.concurrent {
			f := flying[0]
			for !f.h.Done() { engines[f.pod].Step() }
			if r.observe { caches[f.pod].Observed(f.p, f.h.CachedTokens()/blockTokens, int64(i)) }
			flying = flying[1:]
		}
		if r.concurrent == 0 { engines[j].Drain() }
		if r.restart > 0 && n%r.restart == 0 {
			for k := range engines { engines[k] = newEngine(t, r.blocks); flying = nil }
		}
		if r.verbose && n%100 == 0 {
			res.caps = append(res.caps, caches[0].Capacity())
		}
	}
	res.err, res.bias, res.hit, res.behind = sum/float64(n), bias/float64(n), hits/total, float64(behind)/float64(n)
	return res
}

func TestTable(t *testing.T) {
	for _, answer := range []int{1, 41} {
	for _, told := range []int{500, 2000, 8000} {
		for _, obs := range []bool{false, true} {
			for _, kind := range []string{"alone", "two", "restart", "four in flight"} {
				r := run{seed: 1, blocks: 2000, told: told, observe: obs, requests: 3000, answer: answer, verbose: obs}
				switch kind {
				case "two": r.foreign = 0.5
				case "restart": r.restart = 700
				case "four in flight": r.concurrent = 4
				}
				x := simulate(t, r)
				fmt.Printf("answer %2d told %5d observe %-5v %-14s err %6.2f bias %6.2f hit %.3f behind %.2f %v\n", answer, told, obs, kind, x.err, x.bias, x.hit, x.behind, x.caps)
			}
		}
	}
	}
}
