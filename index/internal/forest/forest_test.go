package forest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// trie is the plain model of a forest: the place of each key, and the keys behind it. A key stays
// while its slab does, and a slab while one of its slots is referenced or another slab is behind
// it.
type trie struct {
	f    *Forest
	at   map[Key]*trieNode
	refs map[Loc]int
	saw  trieSights
}

type trieNode struct {
	parent Key // 0: none
	loc    Loc
}

type trieSights struct {
	made, found, slabs, freed, burned, deepest int
}

func newTrie() *trie {
	return &trie{f: New(new(mem.Count), 1<<40), at: map[Key]*trieNode{}, refs: map[Loc]int{}}
}

// place places keys behind the parent, 0 for none, and checks the result.
func (tr *trie) place(t *testing.T, parent Key, keys []Key) []Loc {
	t.Helper()
	prev := Loc(0)
	if parent != 0 {
		prev = tr.at[parent].loc
	}
	locs := make([]Loc, len(keys))
	if !tr.f.Place(prev, 0, keys, locs) {
		t.Fatal("no room")
	}
	taken := map[Loc]Key{}
	for k, n := range tr.at {
		taken[n.loc] = k
	}
	for i, k := range keys {
		n := tr.at[k]
		switch {
		case n != nil && n.loc != locs[i]:
			t.Fatalf("key %x was at %x and is at %x", k, n.loc, locs[i])
		case n != nil:
			tr.saw.found++
			if tr.refs[n.loc] == 0 {
				tr.saw.burned++
			}
		case taken[locs[i]] != 0:
			t.Fatalf("keys %x and %x are at %x", k, taken[locs[i]], locs[i])
		default:
			tr.saw.made++
			if locs[i].Slot() == 0 {
				tr.saw.slabs++
			}
			tr.at[k] = &trieNode{parent, locs[i]}
		}
		if got := tr.f.Key(locs[i]); got != k {
			t.Fatalf("key %x is at the place of %x", got, k)
		}
		parent = k
	}
	return locs
}

// tidy drops the keys of slabs that are no longer needed.
func (tr *trie) tidy() {
	behind := map[uint32]uint32{} // slab to its parent slab
	for _, n := range tr.at {
		if n.loc.Slot() == 0 {
			behind[n.loc.Slab()] = 0
			if n.parent != 0 {
				behind[n.loc.Slab()] = tr.at[n.parent].loc.Slab()
			}
		}
	}
	alive := map[uint32]bool{}
	for l := range tr.refs {
		for id := l.Slab(); id != 0 && !alive[id]; id = behind[id] {
			alive[id] = true
		}
	}
	maps.DeleteFunc(tr.at, func(_ Key, n *trieNode) bool { return !alive[n.loc.Slab()] })
	tr.saw.freed += len(behind) - len(alive)
}

// compare checks all reads of the forest.
func (tr *trie) compare(t *testing.T) {
	t.Helper()
	f := tr.f
	if f.slots != len(tr.at) {
		t.Fatalf("%d keys, want %d", f.slots, len(tr.at))
	}
	for k, n := range tr.at {
		if f.Key(n.loc) != k || n.loc.Slot() >= f.meta(n.loc.Slab()).load().written() {
			t.Fatalf("key %x is not at %x", k, n.loc)
		}
		want := uint32(0)
		if n.loc.Slot() == 0 {
			want = n.loc.Slab()
		}
		if got := f.heads.find(f, k); got != want {
			t.Fatalf("the slab of key %x is %d, want %d", k, got, want)
		}
		up, depth := k, 0
		for ; up != 0; up = tr.at[up].parent {
			if got, ok := f.Between(tr.at[up].loc, n.loc, depth); !ok || got != depth {
				t.Fatalf("%x is %d, %v behind %x, want %d", k, got, ok, up, depth)
			}
			if _, ok := f.Between(n.loc, tr.at[up].loc, 1<<20); ok && depth > 0 {
				t.Fatalf("%x is behind %x", up, k)
			}
			if got := f.Up(n.loc, depth); got != tr.at[up].loc {
				t.Fatalf("%d before %x is %x, want %x", depth, n.loc, got, tr.at[up].loc)
			}
			depth++
		}
		if got, ok := f.Between(0, n.loc, depth); !ok || got != depth {
			t.Fatalf("%x is %d, %v behind the root, want %d", k, got, ok, depth)
		}
		if _, ok := f.Between(0, n.loc, depth-1); ok {
			t.Fatalf("%x is %d behind the root, and less", k, depth)
		}
		if got := f.Up(n.loc, depth); got != 0 {
			t.Fatalf("%x is before the beginning", got)
		}
		tr.saw.deepest = max(tr.saw.deepest, depth)
	}
	refs := map[uint32]uint32{}
	for l, n := range tr.refs {
		refs[l.Slab()] += uint32(n)
	}
	if err := f.Check(map[Holding]uint32{}, refs); err != nil {
		t.Fatal(err)
	}
}

func (tr *trie) ref(l Loc) {
	tr.f.Ref(l)
	tr.refs[l]++
}

func (tr *trie) unref(l Loc) {
	tr.f.Unref(l)
	if tr.refs[l]--; tr.refs[l] == 0 {
		delete(tr.refs, l)
	}
}

// Chains of all lengths are added, forked and removed.
func TestForestAgainstTrie(t *testing.T) {
	var total trieSights
	for seed := range uint64(choose(3, 6)) {
		r := rand.New(rand.NewPCG(seed, 13))
		tr := newTrie()
		letters := []int{2, 1, 40}[seed%3] // many forks, none but at the root, a wide tree
		for step := range 500 {
			if r.IntN(3) > 0 || len(tr.refs) == 0 {
				parent, root := Key(0), Key(r.IntN(3))
				if named := slices.Sorted(maps.Keys(tr.refs)); len(named) > 0 && r.IntN(2) == 0 {
					parent = tr.f.Key(named[r.IntN(len(named))])
					root = parent
				}
				keys := make([]Key, 1+r.IntN([]int{3, 20, 100}[r.IntN(3)]))
				for i := range keys {
					root = chain(root, uint64(r.IntN(letters)))
					keys[i] = root
				}
				locs := tr.place(t, parent, keys)
				every := 1 + r.IntN(4)
				for i := len(locs) - 1; i >= 0; i -= every {
					tr.ref(locs[i])
				}
			} else {
				named := slices.Sorted(maps.Keys(tr.refs))
				for range 1 + r.IntN(len(named)) {
					if l := named[r.IntN(len(named))]; tr.refs[l] > 0 {
						tr.unref(l)
					}
				}
			}
			tr.tidy()
			if r.IntN(2) == 0 {
				tr.f.Reclaim()
			}
			if step%5 == 0 {
				tr.compare(t)
			}
		}
		for l, n := range maps.Clone(tr.refs) {
			for range n {
				tr.unref(l)
			}
		}
		tr.tidy()
		tr.compare(t)
		if len(tr.at) != 0 {
			t.Fatalf("nobody refers to %d keys, which are there", len(tr.at))
		}
		total.made += tr.saw.made
		total.found += tr.saw.found
		total.slabs += tr.saw.slabs
		total.freed += tr.saw.freed
		total.burned += tr.saw.burned
		total.deepest = max(total.deepest, tr.saw.deepest)
	}
	t.Logf("%+v", total)
	if part := choose(4, 1); total.found < 10_000/part || total.slabs < 1000/part || total.freed < 1000/part || total.burned < 1000/part || total.deepest < 200 {
		t.Error("the test tests too little")
	}
}

// A run without room leaves nothing.
func TestForestWithoutRoom(t *testing.T) {
	tr := newTrie()
	keys := make([]Key, 5*slabSlots)
	k := Key(1)
	for i := range keys {
		k = chain(k, uint64(i))
		keys[i] = k
	}
	locs := tr.place(t, 0, keys[:slabSlots])
	tr.ref(locs[3])
	was := *tr.f.chunks.Load()
	room := slices.Clone(was)
	for len(room) < maxSlabs/chunkSlabs { // makes them look used
		room = append(room, was[0])
	}
	tr.f.setChunks(room)
	for len(tr.f.slabs.chunks) < len(room) {
		tr.f.slabs.chunks = append(tr.f.slabs.chunks, chunkInfo{})
	}
	took := 0
	for tr.f.takeSlab(slabSizes-1) != 0 {
		took++
	}
	if took == 0 {
		t.Fatal("there was no slab to take")
	}
	slots := tr.f.slots
	if tr.f.Place(locs[3], 0, keys[4:], make([]Loc, len(keys)-4)) {
		t.Error("there was room")
	}
	if tr.f.slots < slots || tr.f.slots > slots+slabSlots {
		t.Errorf("%d keys, then %d", slots, tr.f.slots)
	}
	if id := tr.f.heads.find(tr.f, keys[slabSlots]); id != 0 {
		t.Errorf("slab %d was left", id)
	}
}

// headKinds draw keys that collide in the table of heads.
var headKinds = []struct {
	name string
	draw func(*rand.Rand) Key
}{
	{"spread", func(r *rand.Rand) Key { return Key(r.Uint64N(1<<16)) * 0x9E3779B97F4A7C15 }},
	{"same low half", func(r *rand.Rand) Key { return Key(r.Uint64N(1<<12))<<52 | 0xFFFFFFFF }},
	{"one line", func(r *rand.Rand) Key { return Key(r.Uint64N(1<<6))<<58 | Key(r.Uint64N(1<<6)) }},
	{"one segment", func(r *rand.Rand) Key { x := r.Uint64N(1 << 12); return Key(0x5A<<56 | x<<44 | x*0x9E3779B1&(1<<44-1)) }},
	{"ends", func(r *rand.Rand) Key { return Key(r.Uint64N(64)) - 32 }},
}

// The table of heads is a map from keys to slabs.
func TestHeadsAgainstMap(t *testing.T) {
	allCleans := 0
	for _, k := range headKinds {
		t.Run(k.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(15, 16))
			f := New(new(mem.Count), 1<<40)
			m := map[Key]uint32{}
			var live []Key
			splits, cleans := 0, 0
			for step := range 15_000 {
				key := k.draw(r)
				id := m[key]
				if got := f.heads.find(f, key); got != id {
					t.Fatalf("step %d: %x is in slab %d, want %d", step, key, got, id)
				}
				switch enough := len(m) >= []int{250, 1800, 900}[step/5000]; {
				case enough:
					i := r.IntN(len(live))
					f.Unref(locOf(m[live[i]], 0))
					delete(m, live[i])
					live = slices.Delete(live, i, i+1)
				case id == 0:
					dir := f.heads.dir.Load()
					segment := dir.place(key).Load()
					m[key] = f.newSlab(key, 0, 0, 1)
					f.Ref(locOf(m[key], 0))
					live = append(live, key)
					now := f.heads.dir.Load().place(key).Load()
					switch {
					case now.depth > segment.depth:
						splits++
					case now != segment:
						cleans++
					}
				}
				f.Reclaim()
				if step%500 == 0 {
					compareHeads(t, f, m)
				}
			}
			t.Logf("%d splits, %d cleans, %d bytes", splits, cleans, f.heads.bytes)
			allCleans += cleans
			if k.name != "ends" && splits < 3 {
				t.Error("the test tests too little")
			}
		})
	}
	if allCleans < 2 {
		t.Errorf("%d cleans: the test tests too little", allCleans)
	}
}

func compareHeads(t *testing.T, f *Forest, m map[Key]uint32) {
	t.Helper()
	for key, id := range m {
		if got := f.heads.find(f, key); got != id {
			t.Fatalf("%x is in slab %d, want %d", key, got, id)
		}
	}
	dir := f.heads.dir.Load()
	found := map[Key]uint32{}
	for i := 0; i < len(dir.segs); {
		s := dir.segs[i].Load()
		n := uint32(0)
		s.each(func(id uint32) {
			found[Key(f.keys(id)[0])] = id
			n++
		})
		if n != s.live || s.live > s.used || s.used > headFull || uint(s.depth) > dir.depth {
			t.Fatalf("%d heads, counted %d of %d", n, s.live, s.used)
		}
		for range 1 << (dir.depth - uint(s.depth)) {
			if dir.segs[i].Load() != s {
				t.Fatal(fmt.Sprint("segment ", i, " is not in all its places"))
			}
			i++
		}
	}
	if !maps.Equal(found, m) {
		t.Fatalf("%d heads, want %d", len(found), len(m))
	}
}
