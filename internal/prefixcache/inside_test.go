package prefixcache

import (
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// opened returns a Cache, and a Prompt that has searched it for a text.
func opened(t *testing.T, text string) (*Cache, *Prompt) {
	c, err := New(MinBytes)
	if err != nil {
		t.Fatal(err)
	}
	p := new(Prompt)
	askFor(c, p, text)
	return c, p
}

func askFor(c *Cache, p *Prompt, text string) {
	if c.Find(p, nil, text) {
		return
	}
	mark := func(at int) Mark {
		return Mark{At: at, Resume: at, Locals: at / 64, Tail: []uint32{1 << 31, 1 << 31, 1 << 31}}
	}
	var marks []Mark
	for _, at := range p.Marks() {
		marks = append(marks, mark(at))
	}
	c.Add(p, make([]index.Local, len(text)/64), marks, mark(len(text)))
}

// flood searches for texts that come once.
func flood(c *Cache, bytes int) {
	p, text := new(Prompt), make([]byte, 3000)
	for i := 0; i < bytes; i += len(text) {
		at := c.evicted.Load() + uint64(c.entries.Load())
		copy(text, "flood"+string(rune('a'+at%26))+string(rune('a'+at/26%26))+string(rune('a'+at/676%26))+string(rune('a'+at/17576%26)))
		askFor(c, p, string(text))
	}
}

// wholeOf returns the entry of p's whole text.
func (c *Cache) wholeOf(p *Prompt) (ref, uint32) { return c.view().find(p.whole, p.length, wholeText) }

// An entry is found only if its tag, its length and its kind are equal.
func TestTags(t *testing.T) {
	c, p := opened(t, strings.Repeat("x", 2000))
	v, of := c.view(), p.tags[1]
	if r, _ := v.find(of, 1024, beginning); r == 0 {
		t.Fatal("it is not found")
	}
	for name, found := range map[string]func() (ref, uint32){
		"another low half":  func() (ref, uint32) { return v.find(tag{of.low ^ 1<<40, of.high}, 1024, beginning) },
		"another high half": func() (ref, uint32) { return v.find(tag{of.low, of.high ^ 1}, 1024, beginning) },
		"another length":    func() (ref, uint32) { return v.find(of, 2048, beginning) },
		"another kind":      func() (ref, uint32) { return v.find(of, 1024, wholeText) },
	} {
		if r, _ := found(); r != 0 {
			t.Errorf("%s: found", name)
		}
	}
	of = c.hash.chain(&Prompt{tags: []tag{{1, 2}}}, "x")
	for _, before := range []tag{{1, 3}, {2, 2}} {
		if c.hash.chain(&Prompt{tags: []tag{before}}, "x") == of {
			t.Errorf("the tag behind %v is that behind another", before)
		}
	}
}

// Each Cache has its own key.
func TestKeys(t *testing.T) {
	c, p := opened(t, "text")
	for _, plain := range []bool{false, true} {
		d, q := opened(t, "text")
		if plain {
			c.Plain()
			d.Plain()
			c.Find(p, nil, "text")
			d.Find(q, nil, "text")
		}
		if p.whole == q.whole {
			t.Error("two have the same tag")
		}
	}
}

// A reader notices that its entry's cells were reused before it allocates by their contents.
func TestGone(t *testing.T) {
	c, p := opened(t, "text")
	r, version := c.wholeOf(p)
	c.drop(r)
	v := c.view()
	k := v.cell(c.take(2))
	v.write(k, nil, nil)
	for i := range dataWords {
		k[i].Store(pair(1<<24, 1))
	}
	if v.copy(&p.State, r, version) || cap(p.Locals) > 1<<20 {
		t.Errorf("%d locals of an entry that is gone", len(p.Locals))
	}
}

// Entries behind one that is evicted between Find and Add follow its predecessor.
func TestEvictedBetween(t *testing.T) {
	text := strings.Repeat("x", 4096+100)
	c, p := opened(t, text)
	longer := new(Prompt)
	c.Find(longer, nil, text+strings.Repeat("y", 2000))
	if longer.known != 4096 {
		t.Fatalf("%d bytes are known", longer.known)
	}
	r, _ := c.wholeOf(p)
	c.drop(r)
	r, _ = c.view().find(p.tags[4], 4096, beginning)
	c.drop(r)
	c.Add(longer, make([]index.Local, 96), []Mark{{At: 5120, Resume: 5120, Locals: 80}}, Mark{At: longer.length, Locals: 96})
	r, _ = c.view().find(longer.tags[5], 5120, beginning)
	if r == 0 {
		t.Fatal("it is not there")
	}
	parent := c.view().cell(ref(low(c.view().cell(r)[wordPlace].Load())))
	if parent == nil || high(parent[wordPlace].Load()) != 3072 {
		t.Error("it does not follow what is left")
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// A use of an entry is a use of its predecessors.
func TestAge(t *testing.T) {
	text := strings.Repeat("x", 1500)
	c, p := opened(t, text)
	flood(c, 1<<20)
	now := c.now.Load()
	if !c.Find(p, nil, text) {
		t.Fatal("it is not known")
	}
	r, _ := c.wholeOf(p)
	c.unlist(r)
	c.list(r) // as evict does
	c.drop(r)
	parent, _ := c.view().find(p.tags[1], 1024, beginning)
	if used := c.view().used(parent).Load(); used != now {
		t.Errorf("used at %d, want %d", used, now)
	}
	if c.view().cell(parent)[wordChain].Load()&flagAgain == 0 {
		t.Error("it was requested once")
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// Ages beyond all slots are kept in order, also when the clock wraps.
func TestOld(t *testing.T) {
	for _, start := range []uint32{0, 1<<32 - 10} {
		c, err := New(MinBytes)
		if err != nil {
			t.Fatal(err)
		}
		c.now.Store(start)
		c.leaves[0].oldest, c.leaves[1].oldest = start, start
		p := new(Prompt)
		askFor(c, p, "a")
		first, _ := c.wholeOf(p)
		for _, text := range []string{"b", "c"} {
			c.tick(c.slotCells() + 1)
			askFor(c, p, text)
		}
		for range 3 {
			c.tick((slots - 1) * c.slotCells())
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			if r, _ := c.last(0); r != first {
				t.Error("another is the oldest")
			}
		}
		if s := c.Stats(); s.Entries != 3 {
			t.Errorf("%+v", s)
		}
	}
}

// Favour ends when entries evicted after one use are requested, and returns when reused ones are.
func TestFavour(t *testing.T) {
	text := strings.Repeat("x", 20_000)
	c, p := opened(t, text)
	flood(c, 5<<20)
	if c.favour != c.mostFavour() {
		t.Fatal("it has learned from nothing")
	}
	askFor(c, p, text)
	if c.favour != 0 {
		t.Fatal("it lasts although evicted entries are requested")
	}
	askFor(c, p, text)
	flood(c, 5<<20)
	if askFor(c, p, text); c.favour == 0 {
		t.Error("it does not come back")
	}
}
