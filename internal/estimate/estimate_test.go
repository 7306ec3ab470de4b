package estimate_test

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/estimate"
)

var steps = flag.Int("estimate.steps", 5_000, "random operations of TestRandom for each setting; long form: 20000")

// chain returns n keys behind a prefix. Equal words make equal keys only behind equal prefixes.
func chain(prefix []index.Key, word uint64, n int) []index.Key {
	keys := slices.Clone(prefix)
	for i := range n {
		h := word*0x2545f4914f6cdd1d + uint64(i) + 1
		if len(keys) > 0 {
			h ^= uint64(keys[len(keys)-1]) * 0x9e3779b97f4a7c15
		}
		keys = append(keys, index.Key(h^h>>31))
	}
	return keys
}

func seq(keys ...index.Key) []index.Key { return keys }

// wantRun checks the number of leading blocks of one unit.
func wantRun(t *testing.T, c *estimate.Cache, keys []index.Key, want int) {
	t.Helper()
	if got := c.Run(keys, 1, 0); got != want {
		t.Errorf("%d blocks of %v, want %d", got, keys, want)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// A capacity shrinks to a sixteenth of the configured one and no further, and memory shrinks with it.
func TestSmallest(t *testing.T) {
	c := estimate.New(1600, 0)
	c.Sent(chain(nil, 0, 1600), 1, 0)
	before := c.Bytes()
	a := chain(nil, 1, 20)
	for i := range 100 {
		c.Observed(c.Sent(a, 1, 0), 0, 0)
		c.Observed(c.Sent(chain(nil, uint64(i)+2, 3), 1, 0), 0, 0)
	}
	if c.Capacity() != 100 || c.Bytes() > before/10 {
		t.Errorf("a capacity of %d and %d bytes of %d", c.Capacity(), c.Bytes(), before)
	}
}

func TestTTL(t *testing.T) {
	c := estimate.New(100, time.Second)
	const start = int64(1.7e18)
	at := func(d time.Duration) int64 { return start + int64(d) }
	want := func(keys []index.Key, d time.Duration, want int) {
		t.Helper()
		if got := c.Run(keys, 1, at(d)); got != want {
			t.Errorf("after %v: %d blocks, want %d", d, got, want)
		}
	}
	a := chain(nil, 1, 4)
	c.Sent(a, 1, at(0))
	want(a, time.Second-1, 4)
	want(a, time.Second, 0)
	c.Sent(a[:2], 1, at(900*time.Millisecond))
	want(a, 1100*time.Millisecond, 2)
	want(a, -time.Hour, 4) // a clock set back stands still
	c.Sent(chain(nil, 2, 1), 1, at(1100*time.Millisecond))
	if c.Len() != 3 {
		t.Errorf("%d blocks, want 3", c.Len())
	}
	// A clock that was set back far continues from there; one that is slightly behind waits.
	c.Sent(nil, 1, at(0))
	c.Observed(estimate.Past{}, 0, at(300*time.Millisecond))
	want(a, 1899*time.Millisecond, 2)
	want(a, 1900*time.Millisecond, 0)
	c.Observed(estimate.Past{}, 0, at(-time.Hour))
	want(a, -time.Hour+799*time.Millisecond, 2)
	want(a, -time.Hour+800*time.Millisecond, 0)
	c.Observed(estimate.Past{}, 0, math.MaxInt64)
	if c.Len() != 0 {
		t.Errorf("%d blocks at the end of time", c.Len())
	}
	c.Sent(a, 1, math.MinInt64)
	c.Observed(estimate.Past{}, 0, math.MaxInt64)
	if c.Len() != 0 {
		t.Errorf("%d blocks after all time", c.Len())
	}
}

// Keys that are no chain do no harm.
func TestNoChain(t *testing.T) {
	c := estimate.New(10, 0)
	for _, keys := range [][]index.Key{seq(1, 1, 1), seq(1, 2, 3, 4), seq(7, 3), seq(9, 9, 2), seq(0, 0), nil} {
		c.Undo(c.Sent(keys, 1, 0), 0)
		c.Observed(c.Sent(keys, 1, 0), 1, 0)
		if err := c.Check(); err != nil {
			t.Fatalf("%v: %v", keys, err)
		}
	}
	wantRun(t, c, seq(1, 2, 3, 4), 4)
	// Its second key is the fourth key of a chain.
	if p := c.Sent(seq(9, 4, 8), 1, 0); p != (estimate.Past{}) {
		t.Errorf("%+v of what is no chain", p)
	}
	for _, stride := range []int{0, -1, math.MinInt, math.MaxInt} {
		if got := c.Run(seq(1, 2), stride, 0); got != 0 {
			t.Errorf("%d blocks of %d units", got, stride)
		}
		c.Observed(c.Sent(seq(1, 2), stride, 0), math.MaxInt, 0)
	}
	wantRun(t, c, seq(1, 2, 3, 4), 4)
}

func TestReaders(t *testing.T) {
	c := estimate.New(1000, time.Second)
	keys := chain(nil, 1, 500)
	c.Sent(keys, 1, 0)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for now := range int64(1000) {
				if got := c.Run(keys, 1, now); got != 500 {
					t.Errorf("%d blocks", got)
				}
			}
		})
	}
	readers.Wait()
}

func TestSizes(t *testing.T) {
	if size := unsafe.Sizeof(estimate.Past{}); size > 64 {
		t.Errorf("a Past has %d bytes", size)
	}
}

func TestRandom(t *testing.T) {
	for _, setting := range []struct {
		blocks, stride int
		ttl            time.Duration
	}{{40, 1, 0}, {40, 4, 0}, {100, 1, 3 * time.Millisecond}, {1, 1, 0}, {300, 4, 20 * time.Millisecond}, {33, 3, time.Second}} {
		random := rand.New(rand.NewPCG(uint64(setting.blocks), uint64(setting.stride)))
		c := estimate.New(setting.blocks, setting.ttl)
		m := &model{capacity: setting.blocks, told: setting.blocks, ttl: setting.ttl}
		type pastPair struct {
			c estimate.Past
			m modelPast
		}
		var flying []pastPair
		var conversations [20][]index.Key
		now, behind, undone, more, less := int64(1e15), 0, 0, 0, 0
		for i := range *steps {
			now += int64(random.IntN(100)) * 1000
			n := random.IntN(len(conversations))
			if random.IntN(4) > 0 {
				n = random.IntN(4)
			}
			keys := conversations[n]
			if len(keys) > 30*setting.stride {
				keys = nil
			}
			keys = chain(keys, random.Uint64N(3), random.IntN(6*setting.stride))
			conversations[n] = keys
			stride := setting.stride
			if random.IntN(2000) == 0 {
				stride++
			}
			got, want := c.Run(keys, stride, now), m.run(keys, stride, now)
			if got != want {
				t.Fatalf("%+v, step %d: %d blocks, want %d", setting, i, got, want)
			}
			switch {
			case random.IntN(3) > 0 || len(flying) == 0:
				flying = append(flying, pastPair{c.Sent(keys, stride, now), m.sent(keys, stride, now)})
				if m.run(keys, stride, now) < len(keys)/stride {
					behind++
				}
			case random.IntN(4) == 0:
				j := random.IntN(len(flying))
				before := c.Len()
				c.Undo(flying[j].c, now)
				m.undo(flying[j].m, now)
				undone += before - c.Len()
				flying = slices.Delete(flying, j, j+1)
			default:
				j := random.IntN(len(flying))
				f := flying[j]
				reused := f.m.run
				switch random.IntN(6) {
				case 0:
					reused += random.IntN(5)
					more++
				case 1:
					reused -= random.IntN(5)
					less++
				case 2:
					reused = random.IntN(40) - 2
				}
				c.Observed(f.c, reused, now)
				m.observed(f.m, reused, now)
				flying = slices.Delete(flying, j, j+1)
			}
			if len(flying) > 12 {
				flying = flying[1:]
			}
			if c.Len() != len(m.blocks) || c.Capacity() != m.capacity {
				t.Fatalf("%+v, step %d: %d blocks of %d, want %d of %d", setting, i, c.Len(), c.Capacity(), len(m.blocks), m.capacity)
			}
			if i%10 == 0 {
				if err := c.Check(); err != nil {
					t.Fatalf("%+v, step %d: %v", setting, i, err)
				}
			}
		}
		t.Logf("%+v: %d capacities corrected, now %d; %d blocks undone, %d prompts not all taken, %d times more and %d times less reused", setting, m.corrected, m.capacity, undone, behind, more, less)
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte("sent and observed and undone"), 10, int64(5))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 1, int64(0))
	f.Fuzz(func(t *testing.T, ops []byte, blocks int, ttl int64) {
		c := estimate.New(blocks, time.Duration(ttl))
		var past [8]estimate.Past
		now := int64(0)
		for i := 0; i+3 < len(ops); i += 4 {
			op, a, b, d := ops[i], int(ops[i+1]), int(int8(ops[i+2])), ops[i+3]
			switch op >> 4 {
			case 0:
				now = math.MaxInt64
			case 1:
				now = math.MinInt64
			case 2:
				now -= int64(a) << (d % 64)
			default:
				now += int64(a)
			}
			keys := chain(chain(nil, uint64(d%4), min(int(d%16), a%64)), uint64(b), max(a%64-int(d%16), 0))
			chained := d < 250
			if !chained {
				for j := range keys {
					keys[j] %= 5
				}
			}
			p := &past[d%8]
			switch op % 4 {
			case 0, 1:
				stride := 1 + b&1
				*p = c.Sent(keys, stride, now)
				if got, want := c.Run(keys, stride, now), min(len(keys)/stride, c.Capacity()); chained && got != want {
					t.Fatalf("%d blocks are there after %d were sent", got, want)
				}
			case 2:
				c.Observed(*p, b<<(d%60), now) // also negative or huge
			case 3:
				c.Undo(*p, now)
			}
			c.Run(keys, b, now)
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
