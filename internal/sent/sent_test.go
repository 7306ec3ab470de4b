package sent_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/sent"
)

// chain returns the keys of units.
func chain(units ...byte) []index.Key {
	keys, last := make([]index.Key, len(units)), index.Key(1)
	for i, u := range units {
		last = index.Chain(last, index.Local(u)+1)
		keys[i] = last
	}
	return keys
}

// random returns n new keys that follow others.
func random(r *rand.Rand, keys []index.Key, n int) []index.Key {
	keys, last := slices.Clone(keys), index.Key(1)
	if len(keys) > 0 {
		last = keys[len(keys)-1]
	}
	for range n {
		last = index.Chain(last, index.Local(r.Uint64()))
		keys = append(keys, last)
	}
	return keys
}

// plain is a Tree with its plain model: lists of chains.
type plain struct {
	tree    sent.Tree
	chains  map[sent.Holder][][]index.Key
	prompts map[sent.Holder][]sent.Prompt
}

func newPlain() *plain {
	return &plain{chains: map[sent.Holder][][]index.Key{}, prompts: map[sent.Holder][]sent.Prompt{}}
}

func (p *plain) add(h sent.Holder, keys []index.Key) {
	p.chains[h] = append(p.chains[h], slices.Clone(keys))
	p.prompts[h] = append(p.prompts[h], p.tree.Add(h, keys))
	for i := range keys {
		keys[i] = 0 // the tree must not keep them
	}
}

// remove removes prompt i of a holder.
func (p *plain) remove(h sent.Holder, i int) {
	p.tree.Remove(h, p.prompts[h][i])
	p.chains[h] = slices.Delete(p.chains[h], i, i+1)
	p.prompts[h] = slices.Delete(p.prompts[h], i, i+1)
}

func (p *plain) removeAll() {
	for h := range p.chains {
		for len(p.chains[h]) > 0 {
			p.remove(h, 0)
		}
	}
}

// match is the rule of Match, key by key.
func (p *plain) match(keys []index.Key) map[sent.Holder]int {
	longest := map[sent.Holder]int{}
	for h, chains := range p.chains {
		for _, c := range chains {
			n := 0
			for n < min(len(c), len(keys)) && c[n] == keys[n] {
				n++
			}
			if n > 0 {
				longest[h] = max(longest[h], n)
			}
		}
	}
	return longest
}

// check compares the tree with the model, and checks its consistency.
func (p *plain) check(t *testing.T, asked ...[]index.Key) {
	t.Helper()
	if err := p.tree.Check(p.prompts); err != nil {
		t.Fatal(err)
	}
	for h, list := range p.prompts {
		for i, prompt := range list {
			if got := p.tree.Keys([]index.Key{7}, prompt); !slices.Equal(got, append([]index.Key{7}, p.chains[h][i]...)) {
				t.Fatalf("the keys of prompt %d of holder %d are %v, not 7 and %v", i, h, got, p.chains[h][i])
			}
		}
	}
	for _, keys := range asked {
		got, last := map[sent.Holder]int{}, 0
		p.tree.Match(keys, func(h sent.Holder, n int) {
			if _, ok := got[h]; ok || n < last {
				t.Fatalf("holder %d is found with %d after %d", h, n, last)
			}
			got[h], last = n, n
		})
		if want := p.match(keys); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v matches %v, not %v", keys, got, want)
		}
	}
}

// run makes changes drawn from bytes.
func run(t *testing.T, data []byte, each bool) {
	p := newPlain()
	for len(data) > 1 {
		what, holder, length := data[0]&3, sent.Holder(data[0]>>2&7), int(data[1]&15)
		data = data[2:]
		units := data[:min(length, len(data))]
		keys := make([]byte, len(units))
		for i, u := range units {
			keys[i] = u & 1
		}
		if what < 2 {
			data = data[len(units):]
			p.add(holder, chain(keys...))
		} else if list := p.chains[holder]; len(list) > 0 {
			p.remove(holder, length%len(list))
		}
		if each {
			p.check(t, chain(keys...))
		}
	}
	p.check(t, chain(0, 0, 0, 0), chain(0, 1, 0, 1), chain(1, 1, 1, 1, 1, 1, 1))
	p.removeAll()
	if !p.tree.Empty() {
		t.Fatalf("%d bytes are left", p.tree.Bytes())
	}
}

func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 3, 0, 1, 0, 4, 2, 0, 1, 2, 0})
	f.Add([]byte{0, 1, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 1, 2, 1, 2, 0})
	f.Add([]byte{0, 0, 4, 0, 2, 0, 6, 0})
	f.Fuzz(func(t *testing.T, data []byte) { run(t, data[:min(len(data), 1<<10)], true) })
}

// TestAgainstPlain compares random trees with lists of chains, while they grow and shrink in turn.
func TestAgainstPlain(t *testing.T) {
	steps := 30_000
	if testing.Short() {
		steps = 5_000
	}
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 23))
		holders, alphabet, longest := 1+r.IntN(70), 1+r.IntN(4), 1+r.IntN(24)
		p, live := newPlain(), 0
		some := func() []index.Key {
			units := make([]byte, r.IntN(longest+1))
			for i := range units {
				units[i] = byte(r.IntN(alphabet))
			}
			return chain(units...)
		}
		for i := range steps / 4 {
			h := sent.Holder(r.IntN(holders))
			growing := i/100%2 == 0
			switch n := len(p.chains[h]); {
			case n > 0 && (r.IntN(4) == 0 || !growing):
				p.remove(h, r.IntN(n))
				live--
			case n > 0 && r.IntN(3) == 0: // prolongs a prompt, or takes its prefix
				keys := p.chains[h][r.IntN(n)]
				keys = random(r, keys[:r.IntN(len(keys)+1)], r.IntN(3))
				p.add(sent.Holder(r.IntN(holders)), keys)
				live++
			default:
				p.add(h, some())
				live++
			}
			if i%10 == 0 || live < 10 {
				p.check(t, some(), some())
			}
		}
		p.removeAll()
		if !p.tree.Empty() {
			t.Fatalf("seed %d: %d bytes are left", seed, p.tree.Bytes())
		}
	}
}

// TestCollision has keys at two places, unlike chains.
func TestCollision(t *testing.T) {
	p := newPlain()
	p.add(1, []index.Key{5, 6})
	p.add(2, []index.Key{7})
	p.add(3, []index.Key{7, 5})
	p.add(4, []index.Key{1, 2})
	p.add(4, []index.Key{1, 2, 3})
	p.check(t, []index.Key{1, 3}, []index.Key{5, 6}, []index.Key{7, 5}, []index.Key{7, 5, 6}, []index.Key{7, 6}, []index.Key{6})
	p.removeAll()
	if !p.tree.Empty() {
		t.Errorf("%d bytes are left", p.tree.Bytes())
	}
}

// TestReaders has concurrent readers, for the race detector.
func TestReaders(t *testing.T) {
	p := newPlain()
	for i := range byte(100) {
		p.add(sent.Holder(i%7), chain(0, 1, i%5, i))
	}
	keys := chain(0, 1, 2, 3)
	want := fmt.Sprint(p.match(keys))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				got := map[sent.Holder]int{}
				p.tree.Match(keys, func(h sent.Holder, n int) { got[h] = n })
				if fmt.Sprint(got) != want {
					t.Errorf("found %v, not %v", got, want)
				}
				p.tree.Keys(nil, p.prompts[1][0])
				p.tree.Bytes()
			}
		})
	}
	wg.Wait()
}

func TestMatchAllocates(t *testing.T) {
	tree, keys := crowd(rand.New(rand.NewPCG(5, 6)), 1000)
	holders := 0
	if n := testing.AllocsPerRun(100, func() { tree.Match(keys, func(sent.Holder, int) { holders++ }) }); n > 0 || holders == 0 {
		t.Errorf("Match allocates %v times, and finds %d holders", n, holders)
	}
}

// crowd returns a tree with prompts of 512 keys, of 64 holders, that share the first 100 keys, and
// one of the prompts.
func crowd(r *rand.Rand, prompts int) (*sent.Tree, []index.Key) {
	tree, first := &sent.Tree{}, random(r, nil, 100)
	var keys []index.Key
	for i := range prompts {
		keys = random(r, first, 412)
		tree.Add(sent.Holder(i%64), keys)
	}
	return tree, keys
}

// heap returns the live bytes of the heap.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestBytes compares Bytes with the heap, and with the documented bytes for a key.
func TestBytes(t *testing.T) {
	for _, c := range []struct {
		prompts, same, keys int
		cut                 int     // the first cut keys differ for each prompt
		most                float64 // bytes a key
	}{
		{prompts: 10_000, same: 100, keys: 412, most: 10},
		{prompts: 10_000, same: 0, keys: 512, most: 10},
		{prompts: 10_000, same: 0, keys: 512, cut: 256, most: 10},
		{prompts: 30_000, same: 511, keys: 1, most: 10},
		{prompts: 100_000, same: 3, keys: 1, most: 200},
		{prompts: 100_000, same: 0, keys: 3, most: 200},
		{prompts: 15_000, same: 0, keys: 5, most: 200},
	} {
		t.Run(fmt.Sprintf("prompts=%d/same=%d/keys=%d/cut=%d", c.prompts, c.same, c.keys, c.cut), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			first := random(r, nil, c.same)
			prompts := make([]sent.Prompt, c.prompts)
			tree, before := new(sent.Tree), heap()
			for i := range prompts {
				keys := random(r, first, c.keys)
				prompts[i] = tree.Add(sent.Holder(i%64), keys)
				tree.Add(sent.Holder(i%64), keys[:c.cut])
			}
			full := heap() - before
			if got := tree.Bytes(); got < full*95/100 || got > full*105/100 {
				t.Errorf("%d bytes; the heap has %d", got, full)
			}
			perKey := float64(full) / float64(c.prompts*(c.same+c.keys))
			t.Logf("%.2f bytes a key, Bytes is %.3f of the heap", perKey, float64(tree.Bytes())/float64(full))
			if perKey > c.most {
				t.Errorf("%.1f bytes a key", perKey)
			}
			for i, p := range prompts {
				if i%10 != 0 {
					tree.Remove(sent.Holder(i%64), p)
				}
				prompts[i] = sent.Prompt{}
			}
			some := heap() - before
			if got := tree.Bytes(); got < some*90/100 || got > some*110/100 {
				t.Errorf("%d bytes of a tenth; the heap has %d", got, some)
			}
			runtime.KeepAlive(prompts)
			runtime.KeepAlive(tree)
		})
	}
}
