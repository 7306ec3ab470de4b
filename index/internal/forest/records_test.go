package forest

import (
	"maps"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// testSlab returns a slab with n written slots that stays and has no parent.
func testSlab(t *testing.T, f *Forest, root uint64, n int) uint32 {
	t.Helper()
	keys, locs := make([]Key, n), make([]Loc, n)
	k := Key(root)
	for i := range keys {
		k = chain(k, uint64(i))
		keys[i] = k
	}
	if !f.Place(0, 0, keys, locs) {
		t.Fatal("no room")
	}
	for _, l := range locs {
		f.Ref(l)
	}
	if locs[n-1].Slab() != locs[0].Slab() {
		t.Fatalf("%d keys are in more than one slab", n)
	}
	return locs[0].Slab()
}

// readHolders reads the record of a slab as readers do, by a plain walk.
func readHolders(f *Forest, id uint32) map[uint32]uint32 {
	got := map[uint32]uint32{}
	h := f.meta(id).load()
	switch h.kind() {
	case kindOne:
		got[h.ord()] = h.mask()
	case kindRecord:
		r := f.recs.at(h.record())
		for i := range r.rows() {
			mask, bitmap := r.row(i)
			for w, set := range bitmap {
				for ; set != 0; set &= set - 1 {
					got[uint32(r.first()+w)<<6|uint32(bits.TrailingZeros64(set))] |= mask
				}
			}
		}
		for _, e := range r.entries() {
			if e != 0 {
				got[uint32(e>>32)] |= uint32(e)
			}
		}
	}
	return got
}

// holderKinds draw holders and their masks: few or many holders, adjacent or scattered, with many
// or few equal masks.
var holderKinds = []struct {
	name string
	ord  func(*rand.Rand) uint32
	mask func(*rand.Rand) uint32
}{
	{"few", func(r *rand.Rand) uint32 { return r.Uint32N(4) }, (*rand.Rand).Uint32},
	{"neighbours", func(r *rand.Rand) uint32 { return 1000 + r.Uint32N(300) }, popularMask},
	{"strangers", func(r *rand.Rand) uint32 { return r.Uint32N(200) * 80_000 }, popularMask},
	{"all different", func(r *rand.Rand) uint32 { return r.Uint32N(600) }, (*rand.Rand).Uint32},
	{"all the same", func(r *rand.Rand) uint32 { return r.Uint32N(3000) }, func(r *rand.Rand) uint32 {
		return []uint32{0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFF, 0}[r.IntN(6)]
	}},
}

func popularMask(r *rand.Rand) uint32 {
	if r.IntN(8) == 0 {
		return r.Uint32()
	}
	return uint32(1)<<[]int{0, 1, 8, 31, 32}[r.IntN(5)] - 1
}

// Masks of many holders of some slabs are as set, for maskOf and for readers, in a bounded number
// of words for each holder.
func TestRecordsAgainstMap(t *testing.T) {
	for _, k := range holderKinds {
		t.Run(k.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			f := New(new(mem.Count), 1<<40)
			const slabs = 5
			var ids []uint32
			want := map[uint32]map[uint32]uint32{}
			for i := range uint64(slabs) {
				id := testSlab(t, f, i, slabSlots)
				ids = append(ids, id)
				want[id] = map[uint32]uint32{}
			}
			made, rows, most, worst := 0, 0, 0, 0.0
			for step := range choose(4_000, 16_000) {
				id := ids[r.IntN(slabs)]
				if step < 500 {
					id = ids[0]
				}
				ord, mask := k.ord(r), k.mask(r)
				if step%4000 > 3200 && r.IntN(3) > 0 { // holders leave
					mask = 0
				}
				old := header(f.meta(id).header)
				f.setMask(id, ord, mask)
				want[id][ord] = mask
				if mask == 0 {
					delete(want[id], ord)
				}
				if got := f.Mask(id, ord); got != mask {
					t.Fatalf("step %d: %d holds %b, want %b", step, ord, got, mask)
				}
				h := header(f.meta(id).header)
				if h.kind() == kindRecord && (old.kind() != kindRecord || h.record() != old.record()) {
					made++
				}
				if n := len(want[id]); h.kind() == kindRecord {
					rec := f.recs.at(h.record())
					rows, most = max(rows, rec.rows()), max(most, n)
					worst = max(worst, float64(len(rec)-8)/float64(n))
				}
				if step%choose(401, 211) == 0 {
					compareHolders(t, f, id, want[id])
				}
				if step%5 == 0 {
					f.Reclaim()
				}
			}
			for _, id := range ids {
				compareHolders(t, f, id, want[id])
				for ord := range want[id] {
					f.setMask(id, ord, 0)
				}
				if h := header(f.meta(id).header); h.kind() != kindNone {
					t.Errorf("nobody holds slab %d, whose header is %x", id, uint64(h))
				}
			}
			for range 3 {
				f.Reclaim()
			}
			t.Logf("up to %d holders, %d rows, %d records made, %.1f words a holder beside 8, %d kB in all", most, rows, made, worst, f.recs.bytes/1024)
			if worst > 4 || f.recs.waiting != 0 {
				t.Errorf("%.1f words a holder, %d pieces wait", worst, f.recs.waiting)
			}
			if made < 20 {
				t.Errorf("%d records made: the test tests too little", made)
			}
		})
	}
}

// compareHolders compares all reads of a slab's holders.
func compareHolders(t *testing.T, f *Forest, id uint32, want map[uint32]uint32) {
	t.Helper()
	if got := readHolders(f, id); !maps.Equal(got, want) {
		t.Fatalf("readers see %v, want %v", got, want)
	}
	p := Path{f: f}
	held := map[Holding]uint32{}
	h := f.meta(id).load()
	s := Span{header: h}
	var set []uint64 // empty between calls
	find := func(ord uint32) (mask uint32) {
		if more := int(ord/64) + 1 - len(set); more > 0 {
			set = append(set, make([]uint64, more)...)
		}
		set[ord/64] = 1 << (ord % 64)
		p.HoldersIn(&s, set[:ord/64+1], func(_, has uint32) { mask |= has })
		set[ord/64] = 0
		return mask
	}
	for ord, mask := range want {
		held[Holding{id, ord}] = mask
		if got := find(ord); got != mask {
			t.Fatalf("readers find %b of %d, want %b", got, ord, mask)
		}
		if want[ord^64] == 0 && (find(ord^64) != 0 || f.Mask(id, ord^64) != 0) {
			t.Fatalf("%d is found", ord^64)
		}
	}
	if err := f.checkHolders(id, h, held); err != nil {
		t.Fatal(err)
	}
	if len(held) > 0 {
		t.Fatalf("%d holders are not there", len(held))
	}
}

// Holders with equal masks take about a bit each.
func TestRecordsShareMasks(t *testing.T) {
	f := New(new(mem.Count), 1<<40)
	id := testSlab(t, f, 1, slabSlots)
	const n = 2000
	for ord := range uint32(n) {
		f.setMask(id, ord, 1)
	}
	for mask := uint32(3); mask != 0xFFFFFFFF; mask = mask<<1 | 1 { // growing chains
		for ord := range uint32(n) {
			f.setMask(id, ord, mask)
		}
	}
	r := f.recs.at(header(f.meta(id).header).record())
	t.Logf("%d words, %d rows, %d entries in use", len(r), r.rows(), r.used())
	if len(r) > n/4 {
		t.Errorf("%d words for %d holders of the same slots", len(r), n)
	}
}

// A record may be larger than a page of the arena, and its memory is reused.
func TestHugeRecords(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	f := New(new(mem.Count), 1<<40)
	id := testSlab(t, f, 1, slabSlots)
	want := map[uint32]uint32{}
	n := uint32(6500)
	pages := 0
	for round := range 2 {
		for ord := range n {
			want[ord] = 1 + r.Uint32N(1<<30)
			f.setMask(id, ord, want[ord])
			f.Reclaim()
		}
		if rec := f.recs.at(header(f.meta(id).header).record()); rec.class() != hugeClass {
			t.Fatalf("a record of %d words is of class %d", len(rec), rec.class())
		}
		compareHolders(t, f, id, want)
		for ord := range n {
			f.setMask(id, ord, 0)
			f.Reclaim()
		}
		clear(want)
		compareHolders(t, f, id, want)
		for range 3 {
			f.Reclaim()
		}
		if round == 0 {
			pages = len(*f.recs.pages.Load())
		}
	}
	t.Logf("%d pages, %d kB", len(*f.recs.pages.Load()), f.recs.bytes/1024)
	if got := len(*f.recs.pages.Load()); got > pages+1 || f.recs.waiting != 0 {
		t.Errorf("%d pages after one round, %d after two, %d pieces wait", pages, got, f.recs.waiting)
	}
}

// The memory of records does not grow with the number of changes.
func TestArenaIsReused(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	f := New(new(mem.Count), 1<<40)
	var ids []uint32
	for i := range uint64(40) {
		ids = append(ids, testSlab(t, f, i, slabSlots))
	}
	var sizes []int
	for range 10 {
		for step := range 20_000 {
			// The number of holders stays, on changing slabs: small records grow and large ones
			// shrink.
			id := ids[(step/4000*7+r.IntN(10))%len(ids)]
			f.setMask(id, r.Uint32N(300), []uint32{r.Uint32(), 0}[r.IntN(2)])
			if step%16 == 0 {
				f.Reclaim()
			}
		}
		sizes = append(sizes, f.recs.bytes)
	}
	t.Logf("bytes: %v", sizes)
	if first, last := sizes[3], sizes[len(sizes)-1]; last > first*9/8 {
		t.Errorf("%d bytes became %d", first, last)
	}
}
