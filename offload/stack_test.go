package offload_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/backendtest"
)

func stacked(t testing.TB, tiers ...offload.Backend) offload.Backend {
	t.Helper()
	b, err := offload.Stack(tiers...)
	must(t, err)
	return b
}

func TestStack(t *testing.T) {
	if _, err := offload.Stack(); err == nil {
		t.Error("a Stack of no tiers")
	}
	backendtest.Run(t, func(t testing.TB) (offload.Backend, func() offload.Backend) {
		upper, lower := t.TempDir(), t.TempDir()
		open := func() offload.Backend {
			return stacked(t, openSegments(t, offload.SegmentConfig{Dir: upper, Bytes: 1 << 20, Buffered: true}), // too small for all blocks
				openSegments(t, offload.SegmentConfig{Dir: lower, Bytes: 1 << 26, Buffered: true}))
		}
		return open(), open
	})
}

// brittle is a table whose operations can fail and whose blocks can be corrupt.
type brittle struct {
	*table
	fails   map[string]bool
	corrupt map[offload.Key]bool
}

func (b brittle) Has(ctx context.Context, space offload.SpaceID, keys []offload.Key, hit []bool) error {
	if b.fails["has"] {
		return errTrouble
	}
	return b.table.Has(ctx, space, keys, hit)
}

func (b brittle) Get(ctx context.Context, space offload.SpaceID, keys []offload.Key, dst [][]byte) (int, error) {
	if b.fails["get"] {
		return 0, errTrouble
	}
	for i, k := range keys {
		if b.corrupt[k] && b.blocks[space][k] != nil {
			n, _ := b.table.Get(ctx, space, keys[:i], dst[:i])
			if n < i {
				return n, nil
			}
			delete(b.corrupt, k)
			delete(b.blocks[space], k)
			return n, offload.ErrCorrupt
		}
	}
	return b.table.Get(ctx, space, keys, dst)
}

func (b brittle) Put(ctx context.Context, space offload.SpaceID, keys []offload.Key, src [][]byte) (int, error) {
	if b.fails["put"] {
		n, _ := b.table.Put(ctx, space, keys[:len(keys)/2], src[:len(keys)/2])
		return n, errTrouble
	}
	return b.table.Put(ctx, space, keys, src)
}

func (b brittle) Delete(ctx context.Context, space offload.SpaceID, keys []offload.Key) error {
	if b.fails["delete"] {
		return errTrouble
	}
	return b.table.Delete(ctx, space, keys)
}

// TestStackRandom compares a Stack of up to three tiers that lose blocks, fail, and have corrupt
// ones, with the tiers. Get returns each block from the first tier that has it, ends where none
// has, and repairs the tiers above.
func TestStackRandom(t *testing.T) {
	sum := make(map[string]int)
	for seed := range uint64(*seeds) {
		r := rand.New(rand.NewPCG(seed, 5))
		sp := space(40)
		id := sp.ID()
		var tiers []brittle
		var backends []offload.Backend
		for range 1 + r.IntN(3) {
			b := brittle{newTable(), make(map[string]bool), make(map[offload.Key]bool)}
			b.blocks[id] = make(map[offload.Key][]byte)
			tiers, backends = append(tiers, b), append(backends, b)
		}
		s := stacked(t, backends...)
		for step := range 300 {
			c := chain(r.IntN(12), 1+r.IntN(24))
			trouble, must := false, false
			for _, b := range tiers {
				for _, op := range []string{"has", "get", "put", "delete"} {
					b.fails[op] = r.IntN(20) == 0
					trouble = trouble || b.fails[op]
				}
				clear(b.corrupt)
				for _, k := range c {
					switch r.IntN(15) {
					case 0:
						delete(b.blocks[id], k) // as Segments do
					case 1:
						b.corrupt[k] = true
					}
				}
			}
			switch r.IntN(8) {
			case 0, 1, 2:
				n, err := s.Put(ctx, id, c, contents(sp, c))
				most := 0
				for _, b := range tiers {
					had := 0
					for had < len(c) && b.blocks[id][c[had]] != nil {
						had++
					}
					if b.fails["put"] {
						sum["put fails"]++
						had = min(had, len(c)/2)
					}
					most = max(most, had)
				}
				if n != most || (err != nil) != fails(tiers, "put") {
					t.Fatalf("seed %d, step %d: Put: %d, %v; want %d", seed, step, n, err, most)
				}
			case 3:
				if err := s.Delete(ctx, id, c[len(c)-1:]); (err != nil) != fails(tiers, "delete") {
					t.Fatalf("seed %d, step %d: Delete: %v", seed, step, err)
				}
				for tier, b := range tiers {
					if b.blocks[id][c[len(c)-1]] != nil && !b.fails["delete"] {
						t.Fatalf("seed %d, step %d: tier %d has what was deleted", seed, step, tier)
					}
				}
			default:
				want, up := 0, make([]map[offload.Key]bool, len(tiers))
				for tier := range up {
					up[tier] = make(map[offload.Key]bool)
				}
				for want < len(c) {
					from := -1
					for tier, b := range tiers {
						switch k := c[want]; {
						case b.fails["has"], b.blocks[id][k] == nil:
							continue
						case b.fails["get"]:
							sum["get fails"]++
							must = true
							continue
						case b.corrupt[k]:
							sum["corrupt"]++
							trouble, must = true, true
							continue
						}
						from = tier
						break
					}
					if from < 0 {
						break
					}
					for tier, b := range tiers[:from] {
						if !b.fails["put"] {
							up[tier][c[want]] = true
							sum["filled"]++
						}
					}
					want++
				}
				hit := make([]bool, len(c))
				if err := s.Has(ctx, id, c, hit); err != nil && !fails(tiers, "has") {
					t.Fatalf("seed %d, step %d: Has: %v", seed, step, err)
				}
				for i, k := range c {
					there := false
					for _, b := range tiers {
						there = there || b.blocks[id][k] != nil && !b.fails["has"]
					}
					if hit[i] != there {
						t.Fatalf("seed %d, step %d: Has: block %d: %v", seed, step, i, hit[i])
					}
				}
				dst := contents(sp, c)
				for _, b := range dst {
					clear(b)
				}
				n, err := s.Get(ctx, id, c, dst)
				if n != want || err != nil && !trouble || err == nil && must {
					t.Fatalf("seed %d, step %d: Get: %d, %v; want %d", seed, step, n, err, want)
				}
				for i, k := range c[:n] {
					if !bytes.Equal(dst[i], content(sp, k)) {
						t.Fatalf("seed %d, step %d: block %d has other bytes", seed, step, i)
					}
				}
				for tier, keys := range up {
					for k := range keys {
						if tiers[tier].blocks[id][k] == nil {
							t.Fatalf("seed %d, step %d: %x was not put into tier %d", seed, step, k, tier)
						}
					}
				}
				sum["found"] += n
				if n < len(c) {
					sum["holes"]++
				}
			}
		}
	}
	t.Log(sum)
	for name, least := range map[string]int{"found": 3000, "holes": 300, "filled": 300, "corrupt": 100, "get fails": 100, "put fails": 50} {
		if sum[name] < least {
			t.Errorf("%s: %d, at least %d", name, sum[name], least)
		}
	}
}

func fails(tiers []brittle, op string) bool {
	for _, b := range tiers {
		if b.fails[op] {
			return true
		}
	}
	return false
}

// TestStackBelowStore: when the first of two disks fails, the store reads from the second and
// reports the error.
func TestStackBelowStore(t *testing.T) {
	sp, lower := space(64), newTable()
	upper := brittle{newTable(), map[string]bool{"has": true, "get": true, "put": true}, nil}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 20, Disk: offload.Disk{Backend: stacked(t, upper, lower)}})
	defer closed(t, s)
	c := chain(0, 10)
	if _, err := lower.Put(ctx, sp.ID(), c, contents(sp, c)); err != nil {
		t.Fatal(err)
	}
	if memory, all, err := s.Lookup(ctx, c); memory != 0 || all != 10 || !errors.Is(err, errTrouble) {
		t.Error(memory, all, err)
	}
	l, err := s.Acquire(ctx, c)
	if l.Len() != 10 || !errors.Is(err, errTrouble) {
		t.Error(l.Len(), err)
	}
	l.Release()
	clear(upper.fails)
	if err := s.Delete(ctx, c[0]); err != nil {
		t.Fatal(err)
	}
	if l, err := s.Acquire(ctx, c[1:]); l.Len() != 9 || err != nil {
		t.Error(l.Len(), err)
	} else {
		l.Release()
	}
}
