package prefixcache_test

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/prefixcache"
)

// An encoding is what the tests take for one: it resumes a few bytes before each
// beginning, has a token for some bytes, and locals that depend on all that is before
// them.
type encoding struct {
	scope, text string
	unit        int // bytes of text for a local
}

var seed = maphash.MakeSeed()

func (e encoding) hash(n int) uint64 {
	return maphash.String(seed, fmt.Sprint(len(e.scope))+e.scope+e.text[:n])
}

// state is what is known of text[:at] and of the whole.
func (e encoding) state(at int, whole bool) prefixcache.State {
	resume := at
	if !whole {
		resume -= int(e.hash(at) % 17)
	}
	s := prefixcache.State{Resume: resume, Tokens: resume/4 + 1, Locals: e.locals(resume), Fold: e.hash(at)}
	if !whole {
		for i := range resume % e.unit / 4 {
			s.Tail = append(s.Tail, uint32(s.Fold)+uint32(i))
		}
	} else {
		s.Tokens++
	}
	return s
}

func (e encoding) locals(n int) []index.Local {
	var all []index.Local
	for i := e.unit; i <= n; i += e.unit {
		all = append(all, index.Local(e.hash(i)))
	}
	return all
}

func (e encoding) mark(at int, whole bool) prefixcache.Mark {
	s := e.state(at, whole)
	return prefixcache.Mark{At: at, Resume: s.Resume, Tokens: s.Tokens, Locals: len(s.Locals), Tail: s.Tail, Fold: s.Fold}
}

// ask finds a text and adds it if it is not known whole.
func (e encoding) ask(c *prefixcache.Cache, p *prefixcache.Prompt) (whole bool) {
	if c.Find(p, []byte(e.scope), e.text) {
		return true
	}
	var marks []prefixcache.Mark
	for _, at := range p.Marks() {
		marks = append(marks, e.mark(at, false))
	}
	c.Add(p, e.locals(len(e.text)), marks, e.mark(len(e.text), true))
	return false
}

func equal(a, b prefixcache.State) bool {
	return a.Resume == b.Resume && a.Tokens == b.Tokens && a.Fold == b.Fold &&
		slices.Equal(a.Locals, b.Locals) && slices.Equal(a.Tail, b.Tail)
}

func open(t testing.TB, bytes int64) *prefixcache.Cache {
	c, err := prefixcache.New(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func randomText(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return string(b)
}

// A text is known whole when it comes again, and a longer one up to the last mark.
func TestRepeatedAndGrown(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 100, 1023, 1024, 1025, 2048, 5000, 40_000} {
		c, p := open(t, 1<<20), new(prefixcache.Prompt)
		e := encoding{"scope", randomText(r, n), 64}
		if e.ask(c, p) {
			t.Fatalf("%d bytes: known before", n)
		}
		if !c.Find(p, []byte(e.scope), e.text) || !equal(p.State, e.state(n, true)) || len(p.Marks()) != 0 {
			t.Errorf("%d bytes, whole: %+v, want %+v", n, p.State, e.state(n, true))
		}
		longer := e
		longer.text += strings.Repeat("x", 100)
		var want prefixcache.State
		if n >= prefixcache.Grain {
			want = e.state(n/prefixcache.Grain*prefixcache.Grain, false)
		}
		if c.Find(p, []byte(e.scope), longer.text) || !equal(p.State, want) {
			t.Errorf("%d bytes, grown: %+v, want %+v", n, p.State, want)
		}
	}
}

// Prompts that were asked for twice outlast ten times the budget's worth of others that
// come once.
func TestOneTimePrompts(t *testing.T) {
	const budget = 8 << 20
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
	for bytes := 0; bytes < 10*budget; bytes += 32_000 * 3 / 10 {
		ask(randomText(r, 32_000))
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

// plain asks for a text of which 64 bytes are a unit.
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
