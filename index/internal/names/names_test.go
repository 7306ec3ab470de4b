package names

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

type (
	Hash  uint64
	value uint32
)

// hashKinds draw hashes. With the salt 0, 1 a mixed hash is the hash itself, so that the test can
// choose its place.
var hashKinds = []struct {
	name string
	salt [2]uint64
	draw func(*rand.Rand) Hash
}{
	{"spread", [2]uint64{0x1234567, 0x9E3779B97F4A7C15}, func(r *rand.Rand) Hash { return Hash(r.Uint64N(1<<17)) * 0x9E3779B97F4A7C15 }},
	{"small", [2]uint64{7, 0xA24BAED4963EE407}, func(r *rand.Rand) Hash { return Hash(r.Uint64N(1 << 15)) }},
	// All of a segment start in one line, and many segments are empty.
	{"one line", [2]uint64{0, 1}, func(r *rand.Rand) Hash { return Hash(r.Uint64N(1<<13))<<51 | Hash(r.Uint64N(4)) }},
	// The directory splits many times to separate these.
	{"one segment", [2]uint64{0, 1}, func(r *rand.Rand) Hash {
		x := r.Uint64N(1 << 14)
		return Hash(0xABC<<52 | x<<38 | x*0x9E3779B1&(1<<32-1))
	}},
	{"ends", [2]uint64{0, 1}, func(r *rand.Rand) Hash { return Hash(r.Uint64N(64)) - 32 }},
}

// The table is a map for all kinds of hashes: it grows, shrinks, splits, and its lines overflow.
func TestAgainstMap(t *testing.T) {
	for _, k := range hashKinds {
		t.Run(k.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var n Table[Hash, value]
			n.Init(k.salt, new(mem.Count))
			m := map[Hash]value{}
			deepest, largest := uint(0), 0
			for phase := range 8 {
				for range 6000 {
					h, v := k.draw(r), value(1+r.Uint32N(1<<31))
					adds := r.IntN(10) < []int{9, 5, 1, 0}[phase%4]
					switch {
					case adds && r.IntN(2) == 0:
						n.Put(h, v)
						m[h] = v
					case adds:
						if old := n.Add(h, v); old != m[h] {
							t.Fatalf("add of %x returns %d, want %d", h, old, m[h])
						} else if old == 0 {
							m[h] = v
						}
					default:
						n.Remove(h)
						delete(m, h)
					}
					if got := n.Get(h); got != m[h] {
						t.Fatalf("%x is %d, want %d", h, got, m[h])
					}
					if r.IntN(200) == 0 {
						n.Compact(r.Uint64())
					}
					if r.IntN(300) == 0 {
						n.Reserve(n.n + r.IntN(n.n+100))
					}
				}
				if phase == 7 {
					for h := range m {
						n.Remove(h)
					}
					clear(m)
				}
				compare(t, &n, m)
				deepest, largest = max(deepest, n.depth), max(largest, n.n)
			}
			t.Logf("up to %d names in %d places of the directory", largest, 1<<deepest)
			if k.name != "ends" && (deepest < 2 || largest < 2000) {
				t.Errorf("%d names, depth %d: the test tests too little", largest, deepest)
			}
		})
	}
}

// Nothing is removed for a hash that is not there, even where each line passes on a search.
func TestRemoveNothing(t *testing.T) {
	var n Table[Hash, value]
	n.Init([2]uint64{0, 1}, new(mem.Count)) // a mixed hash is the hash itself
	next := Hash(0)
	add := func(line, names int) (added []Hash) {
		for range names {
			next++
			h := Hash(line)<<32/minLines + next
			n.Add(h, 1)
			added = append(added, h)
		}
		return added
	}
	first := add(0, lineNames)
	add(0, 1)
	for _, h := range first[1:] {
		n.Remove(h)
	}
	for line := 1; line < minLines; line++ {
		add(line, lineNames) // one is there already
	}
	was := n.Len()
	n.Remove(next + 1)
	if err := n.Check(); err != nil || n.Len() != was {
		t.Errorf("%d names of %d, %v", n.Len(), was, err)
	}
}

// compare checks all reads of n, and that a segment has at most a line for each name, the minimum,
// or the lines of its last split.
func compare(t *testing.T, n *Table[Hash, value], m map[Hash]value) {
	t.Helper()
	if n.n != len(m) {
		t.Fatalf("%d names, want %d", n.n, len(m))
	}
	got := map[Hash]value{}
	n.Each(func(h Hash, v value) {
		if _, ok := got[h]; ok {
			t.Fatalf("%x is repeated", h)
		}
		got[h] = v
	})
	if !maps.Equal(got, m) {
		t.Fatalf("each finds %d names, want %d", len(got), len(m))
	}
	for h, v := range m {
		if p := n.find(uint64(h)); p == nil || value(*p) != v {
			t.Fatalf("%x is not found", h)
		}
		if o := h ^ 1<<40; n.find(uint64(o)) != nil && m[o] == 0 {
			t.Fatalf("%x is found", o)
		}
	}
	if err := n.Check(); err != nil {
		t.Fatal(err)
	}
	if got := n.mem.Load(); got != int64(n.Bytes()) {
		t.Fatalf("%d bytes are counted, the table has %d", got, n.Bytes())
	}
	size, lines := 0, 0
	for pos, last := uint64(0), false; !last; {
		var s *segment
		s, pos = n.at(pos)
		last = pos == 0
		behind := 0
		for i := range s.lines {
			behind += int(s.lines[i].fill >> fillBits)
			size += s.lines[i].count()
		}
		lines += len(s.lines)
		if s.n == 0 && behind != 0 || len(s.lines) > max(minLines, s.n, segmentLines) {
			t.Fatalf("a segment of %d lines has %d names and passes %d searches on", len(s.lines), s.n, behind)
		}
	}
	if size != len(m) || n.Bytes() < 64*lines {
		t.Fatalf("%d names in %d lines take %d bytes", size, lines, n.Bytes())
	}
}

// A walk in steps visits each name once, in steps of about the requested length.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, size := range []int{0, 1, 5, 100, 5000} {
		var n Table[Hash, value]
		n.Init([2]uint64{r.Uint64(), r.Uint64()}, new(mem.Count))
		for range size {
			n.Put(Hash(r.Uint64()), 1)
		}
		seen := map[Hash]int{}
		var p Position
		for done := false; !done; {
			before, step := len(seen), 1+r.IntN(20)
			var left int
			left, done = n.Walk(&p, step, func(h Hash, _ value) { seen[h]++ })
			if got := len(seen) - before; got > step+lineNames || !done && got < step || done && left != max(step-got, 0) {
				t.Fatalf("%d names: a step of %d sees %d and has %d left, done %v", size, step, got, left, done)
			}
		}
		if len(seen) != size {
			t.Errorf("%d names, %d were seen", size, len(seen))
		}
		for h, times := range seen {
			if times != 1 {
				t.Errorf("%x was seen %d times", h, times)
			}
		}
	}
}

// The lines of the table are cache lines.
func TestLayout(t *testing.T) {
	if size := unsafe.Sizeof(line{}); size != 64 {
		t.Errorf("a line has %d bytes", size)
	}
}

// sweep compacts the whole table.
func sweep(n *Table[Hash, value]) {
	for pos, last := uint64(0), false; !last; {
		_, next := n.Some(nil, pos)
		n.Compact(pos)
		pos, last = next, next == 0
	}
}

// A table that loses most names frees nearly all of its memory; if it loses all, it is as small as
// a new one.
func TestCompact(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	var n, fresh Table[Hash, value]
	salt := [2]uint64{r.Uint64(), r.Uint64()}
	var c mem.Count
	n.Init(salt, &c)
	fresh.Init(salt, new(mem.Count))
	m := map[Hash]value{}
	for range 200_000 {
		h := Hash(r.Uint64())
		n.Put(h, 1)
		m[h] = 1
	}
	sweep(&n)
	compare(t, &n, m)
	for _, size := range []int{100_000, 50_000, 5_000, 500, 50, 0} {
		for h := range m {
			if len(m) == size {
				break
			}
			n.Remove(h)
			delete(m, h)
		}
		was := n.Bytes()
		sweep(&n)
		compare(t, &n, m)
		t.Logf("%d names: %d bytes, %d were given back", size, n.Bytes(), was-n.Bytes())
		if most := 24*size + fresh.Bytes(); n.Bytes() > most {
			t.Errorf("%d names take %d bytes, want %d at most", size, n.Bytes(), most)
		}
		if size >= 500 && was < n.Bytes()*5/4 {
			t.Errorf("%d names: the test tests too little", size)
		}
		was = n.Bytes()
		if sweep(&n); n.Bytes() != was {
			t.Errorf("%d names: %d bytes when all was swept again", size, n.Bytes())
		}
	}
	n.Release()
	if c.Load() != 0 || n.Bytes() != 0 || n.Len() != 0 {
		t.Errorf("%d bytes are counted when all is released: %+v", c.Load(), n)
	}
}

// A table with reserved room grows little when it is filled, is no larger than one that grew, and
// is not reallocated.
func TestReserve(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, size := range []int{50, 3000, 100_000, 262_144} {
		var n, grown Table[Hash, value]
		n.Init([2]uint64{r.Uint64(), r.Uint64()}, new(mem.Count))
		grown.Init([2]uint64{r.Uint64(), r.Uint64()}, new(mem.Count))
		m := map[Hash]value{}
		add := func(to int) {
			for len(m) < to {
				h := Hash(r.Uint64())
				n.Put(h, 1)
				grown.Put(h, 1)
				m[h] = 1
			}
		}
		add(size / 10)
		n.Reserve(size)
		compare(t, &n, m)
		was := n.Bytes()
		add(size * 2 / 3)
		if allocs := testing.AllocsPerRun(1, func() { n.Reserve(size) }); allocs > 0 || n.Bytes() != was {
			t.Errorf("%d names: %d bytes when they were expected, %d when most are there, and %v allocations for the rest", size, was, n.Bytes(), allocs)
		}
		add(size)
		compare(t, &n, m)
		t.Logf("%d names: %d bytes, %d when all are there, %d without Reserve", size, was, n.Bytes(), grown.Bytes())
		if n.Bytes() > was*103/100 || n.Bytes() > grown.Bytes()*112/100 {
			t.Errorf("%d names: %d bytes, %d when all are there, %d without Reserve", size, was, n.Bytes(), grown.Bytes())
		}
	}
}

// Some visits each name that stays exactly once, whatever changes between segments.
func TestSomeDuringChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, k := range hashKinds[:2] {
		var n Table[Hash, value]
		n.Init(k.salt, new(mem.Count))
		stay := map[Hash]bool{}
		for range 10_000 {
			h := k.draw(r)
			n.Put(h, 1)
			stay[h] = true
		}
		var guests []Hash
		segments, depth := 0, n.depth
		seen := map[Hash]int{}
		for pos, last := uint64(0), false; !last; segments++ {
			var some []Hash
			some, pos = n.Some(nil, pos)
			last = pos == 0
			for _, h := range some {
				seen[h]++
			}
			for range 3000 {
				if h := k.draw(r); !stay[h] {
					n.Put(h, 2)
					guests = append(guests, h)
				}
			}
			for len(guests) > []int{10_000, 100}[segments/4%2] {
				i := r.IntN(len(guests))
				n.Remove(guests[i])
				guests = slices.Delete(guests, i, i+1)
			}
			for range 4 {
				n.Compact(r.Uint64())
			}
		}
		for h := range stay {
			if seen[h] != 1 {
				t.Fatalf("%s: %x was seen %d times", k.name, h, seen[h])
			}
		}
		t.Logf("%s: %d segments, depth %d, then %d", k.name, segments, depth, n.depth)
		if segments < 4 || n.depth == depth {
			t.Errorf("%s: the test tests too little", k.name)
		}
	}
}

// Some visits each name once even if segments are merged meanwhile.
func TestSomeDuringCompact(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for range 20 {
		var n Table[Hash, value]
		n.Init([2]uint64{r.Uint64(), r.Uint64()}, new(mem.Count))
		seen := map[Hash]int{}
		all := make([]Hash, 40_000)
		for i := range all {
			h := Hash(r.Uint64())
			all[i] = h
			if n.Put(h, 1); i%40 == 0 {
				seen[h] = 0
			}
		}
		for _, h := range all {
			if _, ok := seen[h]; !ok {
				n.Remove(h)
			}
		}
		depth := n.depth
		var some []Hash
		for pos, last := uint64(0), false; !last; last = pos == 0 {
			some, pos = n.Some(some[:0], pos)
			for _, h := range some {
				seen[h]++
			}
			n.Compact(pos - 1)
			n.Compact(r.Uint64())
		}
		for h, times := range seen {
			if times != 1 {
				t.Fatalf("%x was seen %d times", h, times)
			}
		}
		if n.depth == depth {
			t.Fatal("the test tests too little")
		}
	}
}
