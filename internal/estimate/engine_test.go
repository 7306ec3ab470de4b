package estimate_test

import (
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

// chat is a workload of 400 conversations that begin with one of eight system prompts, grow turn by
// turn and restart. Popular ones are drawn more often.
type chat struct {
	random        *rand.Rand
	zipf          *rand.Zipf
	systems       [][]uint32
	conversations [][]uint32
}

func newChat(seed uint64) *chat {
	w := &chat{random: rand.New(rand.NewPCG(seed, 1)), conversations: make([][]uint32, 400)}
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

// next returns a prompt that ends inside a block, so that all whole blocks can be reused.
func (w *chat) next() (prompt []uint32) {
	c := &w.conversations[w.zipf.Uint64()]
	if len(*c) == 0 || len(*c) > 150*blockTokens {
		*c = slices.Clone(w.systems[w.random.IntN(len(w.systems))])
	}
	n := (1+w.random.IntN(12))*blockTokens + 1
	if (len(*c)+n)%blockTokens == 0 {
		n++
	}
	*c = append(*c, w.text(n)...)
	return slices.Clone(*c)
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
	// Plus the null block, and a request's unfinished block.
	e, err := fakeengine.New(fakeengine.Config{BlockSize: blockTokens, Blocks: blocks + 2, TokenBudget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// An estimate is exact with true answers, for a single router, and with no answers to store.
// TestApproximateRuns and TestApproximateDisturbed of internal/systemtest cover other cases.
func TestExact(t *testing.T) {
	const blocks, requests = 2000, 3000
	w, engine := newChat(1), newEngine(t, blocks)
	c, observed := estimate.New(blocks, 0), estimate.New(blocks, 0)
	sent := map[index.Key]bool{}
	behind := 0 // evictions
	for range requests {
		prompt := w.next()
		keys := keysOf(prompt)
		h, err := engine.Submit(fakeengine.Request{Tokens: prompt})
		if err != nil {
			t.Fatal(err)
		}
		engine.Drain()
		reused := h.CachedTokens() / blockTokens
		if run, other := c.Run(keys, 1, 0), observed.Run(keys, 1, 0); run != reused || other != reused {
			t.Fatalf("%d blocks are reused, the estimate is %d, and %d where that is observed", reused, run, other)
		}
		c.Sent(keys, 1, 0)
		observed.Observed(observed.Sent(keys, 1, 0), reused, 0)
		if reused < len(keys) && sent[keys[reused]] {
			behind++
		}
		for _, k := range keys {
			sent[k] = true
		}
	}
	if observed.Capacity() != blocks || behind < requests/2 {
		t.Errorf("the capacity is %d, and %d of %d requests are behind evictions", observed.Capacity(), behind, requests)
	}
}

// Conversations that end raise no capacity: their answers are reused, but were never sent.
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
			reused = len(*keys) - 4 // including the answer
		}
		c.Observed(p, reused, 0)
		*keys = chain(*keys, random.Uint64(), 14)
	}
	if c.Capacity() > 3000 {
		t.Errorf("a capacity of %d blocks, configured 2000", c.Capacity())
	}
}
