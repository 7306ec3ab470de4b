package offload_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/backendtest"
)

// spreadOver returns tables by name, and a Backend over them.
func spreadOver(t testing.TB, names ...string) (map[string]*table, offload.Backend) {
	t.Helper()
	tables, backends := tablesOf(names...)
	b, err := offload.Spread(backends)
	must(t, err)
	return tables, b
}

func tablesOf(names ...string) (map[string]*table, map[string]offload.Backend) {
	tables, backends := make(map[string]*table), make(map[string]offload.Backend)
	for _, name := range names {
		tables[name] = newTable()
		backends[name] = tables[name]
	}
	return tables, backends
}

func TestSpread(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) (offload.Backend, func() offload.Backend) {
		_, b := spreadOver(t, "a", "b", "c")
		return b, nil
	})
	if _, err := offload.Spread(nil); err == nil {
		t.Error("Spread of nothing is no error")
	}
}

// TestSpreadPlaces: each backend has its share of the keys, random or consecutive, and when one
// leaves only its keys move.
func TestSpreadPlaces(t *testing.T) {
	const n = 8000
	sp := offload.Space{BlockTokens: 1, BlockBytes: 1, Ranks: 1}.ID()
	for _, kind := range []string{"random", "in a row"} {
		keys := offload.Keys(offload.Key{}, 1, make([]uint32, n))
		for i := range keys {
			if kind == "in a row" {
				keys[i] = offload.Key{}
				binary.LittleEndian.PutUint32(keys[i][:], uint32(i))
			}
		}
		where := func(names ...string) (at map[offload.Key]string) {
			tables, b := spreadOver(t, names...)
			blocks := make([][]byte, n)
			for i := range blocks {
				blocks[i] = []byte{byte(i)}
			}
			if got, err := b.Put(ctx, sp, keys, blocks); got != n || err != nil {
				t.Fatal(got, err)
			}
			at = make(map[offload.Key]string)
			for name, tab := range tables {
				for k := range tab.blocks[sp] {
					at[k] = name
				}
			}
			return at
		}
		var names []string
		for i := range 8 {
			names = append(names, fmt.Sprintf("10.0.0.%d:7000", i))
		}
		before, after := where(names...), where(names[:7]...)
		count := make(map[string]int)
		for k, name := range before {
			count[name]++
			if name != names[7] && after[k] != name {
				t.Fatalf("%s: a key of %s moved to %s when %s left", kind, name, after[k], names[7])
			}
		}
		for _, name := range names {
			if c := count[name]; c < n/8*85/100 || c > n/8*115/100 {
				t.Errorf("%s: %s has %d of %d keys", kind, name, c, n)
			}
		}
	}
}

// TestSpreadHole: blocks after the first one that is missing do not count.
func TestSpreadHole(t *testing.T) {
	const n = 64
	sp := offload.Space{BlockTokens: 1, BlockBytes: 1, Ranks: 1}.ID()
	keys := offload.Keys(offload.Key{}, 1, make([]uint32, n))
	blocks := make([][]byte, n)
	for i := range blocks {
		blocks[i] = []byte{byte(i)}
	}
	for hole := range n {
		_, b := spreadOver(t, "a", "b", "c")
		if _, err := b.Put(ctx, sp, keys, blocks); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(ctx, sp, keys[hole:hole+1]); err != nil {
			t.Fatal(err)
		}
		dst := make([][]byte, n)
		for i := range dst {
			dst[i] = make([]byte, 1)
		}
		got, err := b.Get(ctx, sp, keys, dst)
		if got != hole || err != nil {
			t.Fatalf("%d blocks before the hole at %d, %v", got, hole, err)
		}
		for i := range got {
			if dst[i][0] != byte(i) {
				t.Fatalf("block %d is %d", i, dst[i][0])
			}
		}
	}
}
