package index

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

// snapshotOf returns a snapshot of a small random index, each section after its length.
func snapshotOf(tb testing.TB, seed uint64) (all []byte) {
	r := rand.New(rand.NewPCG(seed, 11))
	m, err := newMemory(MemoryConfig{Seed: [16]byte{1}, pendingBytes: 8 << 10})
	must(tb, err)
	defer m.Close()
	for range 20 + r.IntN(500) {
		src := Source{Pod: "p", Model: "m", Rank: r.IntN(2)}
		c := randomChange(r)
		if c.Op == OpClear {
			continue
		}
		if _, err := m.Apply(context.Background(), src, Cursor{Stream: "s"}, []Change{c}); err != nil {
			tb.Fatal(err)
		}
	}
	for _, s := range sectionsOf(tb, m) {
		all = append(binary.LittleEndian.AppendUint32(all, uint32(len(s))), s...)
	}
	return all
}

// restoreAny restores arbitrary sections. They are rejected, or become an index that keeps all
// invariants; the memory is bounded by the input. It returns whether they were restored.
func restoreAny(t *testing.T, all []byte, small bool) bool {
	size := len(all)
	var sections [][]byte
	for len(all) >= 4 {
		n := int(min(binary.LittleEndian.Uint32(all), uint32(len(all)-4)))
		sections = append(sections, all[4:4+n])
		all = all[4+n:]
	}
	cfg := MemoryConfig{Seed: [16]byte{1}, pendingBytes: 4 << 10, idleNames: 20}
	if small {
		cfg.Bytes = MinMemory
	}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	var was, now runtime.MemStats
	runtime.ReadMemStats(&was)
	err = m.Restore(context.Background(), reader(sections))
	runtime.ReadMemStats(&now)
	if got := now.TotalAlloc - was.TotalAlloc; got > 1<<20+uint64(size)*restoreCost {
		t.Fatalf("%d bytes allocated for %d", got, size)
	}
	if err != nil {
		return false
	}
	must(t, m.check())
	r := rand.New(rand.NewPCG(1, 12))
	for range 30 {
		src, c := Source{Pod: "p", Model: "m", Rank: r.IntN(2)}, randomChange(r)
		if c.Op == OpStore && len(c.Locals) > 0 { // keys after forged ones may exist
			src.Pod = "q"
			c.Root ^= 1 << 40
		}
		if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.check(); err != nil {
		t.Fatal("after changes: ", err)
	}
	sectionsOf(t, m)
	return true
}

func FuzzRestore(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(snapshotOf(f, seed), seed%2 > 0)
	}
	f.Fuzz(func(t *testing.T, all []byte, small bool) { restoreAny(t, all, small) })
}

// TestRestoreOfOthers changes some bytes of snapshots.
func TestRestoreOfOthers(t *testing.T) {
	n := choose(300, 600, 4000)
	read := 0
	var of []byte
	for seed := range uint64(n) {
		if seed%50 == 0 {
			of = snapshotOf(t, seed/50)
		}
		r := rand.New(rand.NewPCG(seed, 13))
		all := append([]byte(nil), of...)
		for range r.IntN(4) {
			at, n := 4+r.IntN(len(all)-4), 1+r.IntN(12)
			switch r.IntN(4) {
			case 0:
				all[at] = byte(r.IntN(256))
			case 1:
				all[at] ^= 1 << r.IntN(8)
			case 2:
				from := 4 + r.IntN(len(all)-4)
				copy(all[at:min(at+n, len(all))], all[from:])
			case 3:
				all[at] = byte(r.IntN(4))
			}
		}
		ok := false
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { ok = restoreAny(t, all, seed%4 == 0) }) {
			t.FailNow()
		}
		if ok {
			read++
		}
	}
	t.Logf("%d of %d were read", read, n)
	if read < n/20 || read > n*9/10 {
		t.Errorf("%d of %d were read: the test tests too little", read, n)
	}
}

// restoreCost is the maximum that Restore allocates for each byte of a snapshot: a source of few
// bytes has tables of its own.
const restoreCost = 400

// TestRestoreForged replaces contents of snapshots, and then applies changes to the same sources.
// The restored index keeps all invariants but one: a forged key inside a slab gets a second place
// when a store computes it.
func TestRestoreForged(t *testing.T) {
	seeds := []uint64{2812, 3075, 5095} // they have held blocks of a store that waits for another group
	for seed := range uint64(choose(100, 500, 20000)) {
		seeds = append(seeds, seed)
	}
	read := 0
	for _, seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 13))
		all := snapshotOf(t, seed/50)
		for range 1 + r.IntN(2) {
			a, b := 4+r.IntN(len(all)-12), 4+r.IntN(len(all)-12)
			switch r.IntN(3) {
			case 0:
				copy(all[a:a+8], all[b:b+8])
			case 1:
				all[a] = byte(r.IntN(256))
			default:
				all[a] ^= 1 << r.IntN(8)
			}
		}
		var sections [][]byte
		for len(all) >= 4 {
			n := int(min(binary.LittleEndian.Uint32(all), uint32(len(all)-4)))
			sections = append(sections, all[4:4+n])
			all = all[4+n:]
		}
		m, err := newMemory(MemoryConfig{Seed: [16]byte{1}, pendingBytes: 4 << 10, idleNames: 20})
		must(t, err)
		if m.Restore(context.Background(), reader(sections)) == nil {
			read++
			r := rand.New(rand.NewPCG(seed, 12))
			for i := range 60 {
				src, c := Source{Pod: "p", Model: "m", Rank: r.IntN(2)}, randomChange(r)
				if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
					t.Fatalf("seed %d, change %d: %v", seed, i, err)
				}
				if err := m.check(); err != nil {
					if strings.HasPrefix(err.Error(), "key ") {
						break
					}
					t.Fatalf("seed %d, change %d: %v", seed, i, err)
				}
			}
		}
		m.Close()
	}
	if read < len(seeds)/10 {
		t.Errorf("%d of %d snapshots are read", read, len(seeds))
	}
}
