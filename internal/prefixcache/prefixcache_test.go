package prefixcache_test

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/prefixcache"
)

// encoding stands for a tokenizer: it resumes a few bytes before each prefix's end, has a token for
// some bytes, and locals that depend on all bytes before.
type encoding struct {
	scope, text string
	unit        int // bytes of text for a local
}

var seed = maphash.MakeSeed()

// hashes returns the hash of text[:n] for each n.
func (e encoding) hashes() func(n int) uint64 {
	all := make([]uint64, len(e.text)+1)
	var h maphash.Hash
	h.SetSeed(seed)
	fmt.Fprintf(&h, "%d %s", len(e.scope), e.scope)
	for i := range all {
		all[i] = h.Sum64()
		if i < len(e.text) {
			h.WriteByte(e.text[i])
		}
	}
	return func(n int) uint64 { return all[n] }
}

// state is the encoding's state for text[:at], or for the whole text.
func (e encoding) state(at int, whole bool) prefixcache.State {
	return e.stateBy(e.hashes(), at, whole)
}

func (e encoding) stateBy(hash func(int) uint64, at int, whole bool) prefixcache.State {
	resume := at
	if !whole {
		resume -= int(hash(at) % 17)
	}
	s := prefixcache.State{Resume: resume, Tokens: resume/4 + 1, Fold: hash(at)}
	for i := e.unit; i <= resume; i += e.unit {
		s.Locals = append(s.Locals, index.Local(hash(i)))
	}
	if whole {
		s.Tokens++
		return s
	}
	for i := range resume % e.unit / 4 {
		s.Tail = append(s.Tail, uint32(s.Fold)+uint32(i))
	}
	return s
}

// ask finds a text and adds it if it is not cached whole.
func (e encoding) ask(c *prefixcache.Cache, p *prefixcache.Prompt) (whole bool) {
	if c.Find(p, []byte(e.scope), e.text) {
		return true
	}
	e.add(c, p)
	return false
}

func (e encoding) add(c *prefixcache.Cache, p *prefixcache.Prompt) {
	hash := e.hashes()
	mark := func(at int, whole bool) prefixcache.Mark {
		s := e.stateBy(hash, at, whole)
		return prefixcache.Mark{At: at, Resume: s.Resume, Tokens: s.Tokens, Locals: len(s.Locals), Tail: s.Tail, Fold: s.Fold}
	}
	var marks []prefixcache.Mark
	for _, at := range p.Marks() {
		marks = append(marks, mark(at, false))
	}
	c.Add(p, e.stateBy(hash, len(e.text), true).Locals, marks, mark(len(e.text), true))
}

func equal(a, b prefixcache.State) bool {
	return a.Resume == b.Resume && a.Tokens == b.Tokens && a.Fold == b.Fold &&
		slices.Equal(a.Locals, b.Locals) && slices.Equal(a.Tail, b.Tail)
}

func open(t testing.TB, bytes int64) *prefixcache.Cache {
	c, err := prefixcache.New(bytes)
	must(t, err)
	return c
}

func randomText(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return string(b)
}

// Prompts requested twice survive ten times the budget in prompts requested once.
func TestOneTimePrompts(t *testing.T) {
	const budget = 4 << 20
	r := rand.New(rand.NewPCG(2, 1))
	c, p := open(t, budget), new(prefixcache.Prompt)
	ask := func(text string) (whole bool) { return plain(c, p, text) }
	var asked []string
	for i := range 120 {
		if i < 100 {
			asked = append(asked, randomText(r, 10_000))
			ask(asked[i])
		}
		if i >= 20 && !ask(asked[i-20]) {
			t.Fatal("not known after 20 others")
		}
	}
	once := randomText(r, 32_000)
	for bytes := 0; bytes < 10*budget; bytes += len(once) / 4 { // texts take at least a quarter of their length
		ask(randomText(r, 8) + once)
	}
	known := 0
	for _, text := range asked {
		if c.Find(p, nil, text); p.Resume > 0 {
			known += p.Resume
		}
	}
	if s := c.Stats(); known < 100*9000 {
		t.Errorf("%d of 1,000,000 bytes are known; %+v", known, s)
	}
}

// plain searches for a text with units of 64 bytes.
func plain(c *prefixcache.Cache, p *prefixcache.Prompt, text string) (whole bool) {
	if c.Find(p, nil, text) {
		return true
	}
	var marks []prefixcache.Mark
	for _, at := range p.Marks() {
		marks = append(marks, prefixcache.Mark{At: at, Resume: at, Tokens: at / 4, Locals: at / 64, Tail: make([]uint32, 7)})
	}
	c.Add(p, make([]index.Local, len(text)/64), marks, prefixcache.Mark{At: len(text), Resume: len(text), Tokens: len(text) / 4, Locals: len(text) / 64})
	return false
}

// history makes texts that repeat, grow, shrink, fork and change.
type history struct {
	*rand.Rand
	texts []encoding
	most  int // bytes of a text
}

func (h *history) next() encoding {
	e := encoding{scope: []string{"", "a", "b"}[h.IntN(3)], unit: 32}
	if len(h.texts) > 0 && h.IntN(8) > 0 {
		e = h.texts[h.IntN(len(h.texts))]
		if h.IntN(8) == 0 {
			e.scope += "a"[h.IntN(2):]
		}
	}
	switch n := len(e.text); h.IntN(6) {
	case 0, 1: // it grows
		e.text += randomText(h.Rand, h.IntN(1+max(0, min(5000, h.most-n))))
	case 2:
		e.text = e.text[:h.IntN(n+1)]
	case 3:
		e.text = e.text[:h.IntN(n+1)] + randomText(h.Rand, 1000)
	case 4:
		if n > 0 {
			b := []byte(e.text)
			b[h.IntN(n)] ^= 1
			e.text = string(b)
		}
	}
	if len(h.texts) < 200 {
		h.texts = append(h.texts, e)
	} else {
		h.texts[h.IntN(len(h.texts))] = e
	}
	return e
}

// judge returns the fault of a Find result.
func judge(e encoding, p *prefixcache.Prompt, whole bool) error {
	var want prefixcache.State
	if whole || p.Known() > 0 {
		want = e.state(p.Known(), whole)
	}
	if whole && p.Known() != len(e.text) || !equal(p.State, want) {
		return fmt.Errorf("%d bytes, %d known, whole %v: %+v, want %+v", len(e.text), p.Known(), whole, p.State, want)
	}
	return nil
}

// TestAgainstPlain compares with a map of all texts, without eviction.
func TestAgainstPlain(t *testing.T) {
	for seed := range uint64(8) {
		h := &history{Rand: rand.New(rand.NewPCG(seed, 3)), most: 20_000}
		c, p := open(t, 1<<30), new(prefixcache.Prompt)
		if seed%2 == 1 {
			c.Plain()
		}
		type beginning struct {
			scope, text string
			whole       bool
		}
		all := map[beginning]bool{}
		for range 400 {
			e := h.next()
			known, has := 0, all[beginning{e.scope, e.text, true}]
			if has {
				known = len(e.text)
			}
			for at := prefixcache.Grain; at <= len(e.text) && !has; at += prefixcache.Grain {
				if all[beginning{e.scope, e.text[:at], false}] {
					known = at
				}
			}
			whole := c.Find(p, []byte(e.scope), e.text)
			if whole != has || p.Known() != known {
				t.Fatalf("seed %d: %d bytes known, whole %v; want %d, %v", seed, p.Known(), whole, known, has)
			}
			if err := judge(e, p, whole); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if whole {
				continue
			}
			e.add(c, p)
			all[beginning{e.scope, e.text, true}] = true
			for at := prefixcache.Grain; at <= len(e.text); at += prefixcache.Grain {
				all[beginning{e.scope, e.text[:at], false}] = true
			}
		}
		if s := c.Stats(); s.Entries != len(all) || s.Evicted != 0 {
			t.Errorf("seed %d: %d entries, want %d", seed, s.Entries, len(all))
		}
	}
}

// TestEvicting checks the structure after each step, with little room.
func TestEvicting(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		h := &history{Rand: rand.New(rand.NewPCG(seed, 4)), most: 60_000}
		c, p := open(t, prefixcache.MinBytes), new(prefixcache.Prompt)
		other := new(prefixcache.Prompt)
		for step := range 500 {
			e := h.next()
			whole := c.Find(p, []byte(e.scope), e.text)
			if err := judge(e, p, whole); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if h.IntN(4) == 0 { // other texts between Find and Add
				for range h.IntN(30) {
					h.next().ask(c, other)
				}
			}
			e.add(c, p)
			if err := c.Check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if s := c.Stats(); s.Bytes > prefixcache.MinBytes {
				t.Fatalf("%d bytes", s.Bytes)
			}
		}
		if s := c.Stats(); s.Evicted < 1000 || s.Whole < 50 || s.Grown < 50 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

// TestRace: Find's results are right while 8 goroutines add and evict.
func TestRace(t *testing.T) {
	c := open(t, prefixcache.MinBytes)
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			// Four pairs of goroutines, each with the same texts.
			h := &history{Rand: rand.New(rand.NewPCG(g/2, 5)), most: 40_000}
			p := new(prefixcache.Prompt)
			for i := range 300 {
				e := h.next()
				if i%4 == 0 {
					e = encoding{"", randomText(h.Rand, 20_000), 32}
				}
				whole := c.Find(p, []byte(e.scope), e.text)
				if err := judge(e, p, whole); err != nil {
					t.Error(err)
					return
				}
				e.add(c, p)
			}
		})
	}
	wg.Wait()
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Evicted == 0 || s.Whole == 0 || s.Grown == 0 {
		t.Errorf("%+v", s)
	}
}

// TestHeap: the heap of a Cache stays within its bytes.
func TestHeap(t *testing.T) {
	for _, n := range []int{100, 32_000, 1_000_000} {
		for _, budget := range []int64{1 << 20, 3 << 20} {
			r := rand.New(rand.NewPCG(uint64(n), 6))
			p := new(prefixcache.Prompt)
			text := randomText(r, n)
			plain(open(t, 1<<30), p, text) // allocates p's memory
			before := heap()
			c := open(t, budget)
			if got := heap() - before; got > 64<<10 {
				t.Errorf("an empty one takes %d bytes", got)
			}
			b := []byte(text)
			for bytes := int64(0); bytes < 10*budget; bytes += int64(n) {
				copy(b, randomText(r, 8))
				plain(c, p, string(b))
			}
			if got, s := heap()-before, c.Stats(); got > budget || s.Bytes > budget || got > s.Bytes || s.Bytes < budget/2 && n < 1_000_000 {
				t.Errorf("prompts of %d bytes: %d bytes of heap, budget %d; %+v", n, got, budget, s)
			}
			runtime.KeepAlive(c)
			runtime.KeepAlive(b)
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A text of one letter has no place to resume: it is cached whole if it is short enough.
func TestOneLetter(t *testing.T) {
	c, p := open(t, 1<<20), new(prefixcache.Prompt)
	for _, n := range []int{100_000, 10_000_000} {
		text := strings.Repeat("a", n)
		c.Find(p, nil, text)
		c.Add(p, make([]index.Local, n/64), nil, prefixcache.Mark{At: n, Resume: n, Tokens: n / 4, Locals: n / 64})
		if got := c.Find(p, nil, text); got != (n == 100_000) {
			t.Errorf("%d letters: known %v", n, got)
		}
	}
}

// A prompt may take an eighth of the bytes: its prefix is kept.
func TestShare(t *testing.T) {
	c, p := open(t, 1<<20), new(prefixcache.Prompt)
	r := rand.New(rand.NewPCG(9, 1))
	text := randomText(r, 4_000_000)
	plain(c, p, text)
	all, free := c.Cells()
	if c.Find(p, nil, text) || p.Resume == 0 || (all-free)*64 > 1<<17 || (all-free)*64 < 1<<16 {
		t.Errorf("%d bytes known, %d of %d cells taken", p.Resume, all-free, all)
	}
}

// Invalid marks are left out.
func TestBadMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 1))
	text := randomText(r, 3000)
	locals := make([]index.Local, 10)
	for name, m := range map[string]prefixcache.Mark{
		"off the grain": {At: 1000}, "behind the text": {At: 4096}, "nowhere": {}, "before the text": {At: -1024},
		"resumes behind": {At: 1024, Resume: 1025}, "resumes before the text": {At: 1024, Resume: -1},
		"fewer than no tokens": {At: 1024, Tokens: -1}, "too many tokens": {At: 1024, Tokens: 1<<30 + 1},
		"more locals than there are": {At: 1024, Locals: 11}, "fewer than none": {At: 1024, Locals: -1},
		"a long tail": {At: 1024, Tail: make([]uint32, 256)},
	} {
		c, p := open(t, 1<<20), new(prefixcache.Prompt)
		c.Add(p, nil, nil, prefixcache.Mark{}) // without a Find
		c.Find(p, nil, text)
		c.Add(p, locals, []prefixcache.Mark{m}, prefixcache.Mark{At: 2999})
		if s := c.Stats(); s.Entries != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	c, p := open(t, 1<<20), new(prefixcache.Prompt)
	c.Find(p, nil, text)
	c.Add(p, locals, []prefixcache.Mark{{At: 2048, Locals: 5}, {At: 1024, Locals: 6}}, prefixcache.Mark{At: 3000, Locals: 4})
	if s := c.Stats(); s.Entries != 1 {
		t.Errorf("descending: %+v", s)
	}
}

func TestStats(t *testing.T) {
	if _, err := prefixcache.New(prefixcache.MinBytes - 1); err == nil {
		t.Error("a cache of less than MinBytes")
	}
	c, p := open(t, 1<<20), new(prefixcache.Prompt)
	r := rand.New(rand.NewPCG(11, 1))
	text := randomText(r, 1500)
	plain(c, p, text)
	plain(c, p, text)
	plain(c, new(prefixcache.Prompt), text[:1200])
	c.Pass()
	s := c.Stats()
	s.Bytes = 0
	want := prefixcache.Stats{Whole: 1, Grown: 1, Unknown: 1, Past: 1, BytesKnown: 1500 + 1024, BytesEncoded: 1500 + 176, Entries: 3}
	if s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

// FuzzPrompts draws texts from bytes; a text never gets another's state.
func FuzzPrompts(f *testing.F) {
	f.Add("some text", "some other", 4, []byte{1, 2, 3, 200, 5})
	f.Add(strings.Repeat("a", 3000), strings.Repeat("a", 2000), 1024, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, a, b string, cut int, steps []byte) {
		c, p := open(t, 1<<20), new(prefixcache.Prompt)
		a, b = a[:min(len(a), 3000)], b[:min(len(b), 3000)]
		cut = min(max(cut, 0), len(a))
		texts := []string{a, b, a[:cut], a[:cut] + b, a + b, b + a, strings.Repeat(a, 3) + b}
		for _, s := range steps[:min(len(steps), 50)] {
			e := encoding{scope: strings.Repeat("s", int(s>>6)), text: texts[int(s)%len(texts)], unit: 32}
			whole := c.Find(p, []byte(e.scope), e.text)
			must(t, judge(e, p, whole))
			if s&32 == 0 {
				e.add(c, p)
			}
		}
		must(t, c.Check())
	})
}

// BenchmarkFind finds 32 kB of text, cached whole, with one goroutine and two: one text or many.
func BenchmarkFind(b *testing.B) {
	r := rand.New(rand.NewPCG(12, 1))
	for _, n := range []int{1, 500} {
		c, err := prefixcache.New(64 << 20)
		must(b, err)
		texts := make([]string, n)
		for i := range texts {
			texts[i] = randomText(r, 32<<10)
			plain(c, new(prefixcache.Prompt), texts[i])
		}
		find := func(b *testing.B, next func() bool) {
			p := new(prefixcache.Prompt)
			for i := rand.IntN(n); next(); i++ {
				if !c.Find(p, nil, texts[i%n]) {
					b.Error("not known")
				}
			}
		}
		b.Run(fmt.Sprintf("texts=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(32 << 10)
			find(b, b.Loop)
		})
		b.Run(fmt.Sprintf("texts=%d/parallel", n), func(b *testing.B) {
			b.SetBytes(32 << 10)
			b.RunParallel(func(pb *testing.PB) { find(b, pb.Next) })
		})
	}
}

// BenchmarkAdd measures Find and Add for new texts.
func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{100, 32 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			c, err := prefixcache.New(16 << 20)
			must(b, err)
			text, p := make([]byte, n), new(prefixcache.Prompt)
			locals, marks := make([]index.Local, n/64), make([]prefixcache.Mark, 0, n/prefixcache.Grain)
			tail := make([]uint32, 7)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				binary.LittleEndian.PutUint64(text, uint64(i))
				c.Find(p, nil, string(text))
				marks = marks[:0]
				for _, at := range p.Marks() {
					marks = append(marks, prefixcache.Mark{At: at, Resume: at, Locals: at / 64, Tail: tail})
				}
				c.Add(p, locals, marks, prefixcache.Mark{At: n, Resume: n, Locals: len(locals)})
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
