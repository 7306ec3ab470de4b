package janitor

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"
)

var seeds = flag.Int("janitor.seeds", 6, "long form: random histories of each model, 1000")

// plainBlock is a block of the model, with its files by rank.
type plainBlock struct {
	files         map[int]int64
	seen          map[int]bool
	used, written int64
}

func numberedKey(i int) (k key) {
	binary.BigEndian.PutUint32(k.digits[:], uint32(i%50))
	k.length, k.space, k.group = 8, uint16(i/50%2), uint16(i/100%2)
	return k
}

// TestFreshIsBounded: blocks that came and went are not kept to be queued.
func TestFreshIsBounded(t *testing.T) {
	table := newTable(S3FIFO, 0)
	for i := range 10 * slabBlocks {
		k := numberedKey(i)
		slot := table.add(&k)
		table.put(slot, 0, 1, int64(i), 0)
		table.remove(slot)
	}
	if n := len(table.fresh); n > slabBlocks+1 {
		t.Errorf("%d slots wait to be queued, and no block is there", n)
	}
}

// TestTable compares a table with maps over random histories.
func TestTable(t *testing.T) {
	for seed := range *seeds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		order, young := []Order{LRU, FIFO}[seed%2], time.Duration(r.IntN(20))
		table, model := newTable(order, young), map[key]*plainBlock{}
		remove := func(k key) {
			slot, ok := table.find(&k)
			if !ok {
				t.Fatalf("seed %d: %v is not there", seed, k.hex())
			}
			table.remove(slot)
			delete(model, k)
		}
		for step := range 1500 {
			k := numberedKey(r.IntN(200))
			rank := r.IntN(4) * r.IntN(2)
			switch op := r.IntN(20); {
			case op < 12:
				b := model[k]
				if b == nil {
					b = &plainBlock{files: map[int]int64{}, seen: map[int]bool{}}
					model[k] = b
				}
				written, used := int64(step), int64(r.IntN(2000))
				b.files[rank], b.seen[rank] = r.Int64N(1000), true
				b.written, b.used = max(b.written, written), max(b.used, used)
				table.put(table.add(&k), rank, b.files[rank], written, used)
			case op < 16:
				if slot, ok := table.find(&k); ok {
					table.drop(slot, rank)
					delete(model[k].files, rank)
					if len(model[k].files) == 0 {
						delete(model, k)
					}
				}
			case op < 17 && model[k] != nil && r.IntN(2) == 0:
				slot, _ := table.find(&k)
				table.postpone(slot, int64(step))
				model[k].written, model[k].used = max(model[k].written, int64(step)), max(model[k].used, int64(step))
			case op < 17 && model[k] != nil:
				remove(k)
			case op < 18 && step%10 == 0:
				table.unsee()
				for _, b := range model {
					clear(b.seen)
				}
			case op < 19 && len(model) > 0:
				slot, _ := table.first()
				first := table.at(slot).key
				for k, b := range model {
					if order := table.compare(b, k, model[first], first); order < 0 {
						t.Fatalf("seed %d: %s is first, and %s goes before", seed, first.hex(), k.hex())
					}
				}
				remove(first)
			}
		}
		var size int64
		for k, b := range model {
			slot, ok := table.find(&k)
			if !ok {
				t.Fatalf("seed %d: %s is missing", seed, k.hex())
			}
			var have, unseen uint64
			var bytes int64
			for rank, n := range b.files {
				have |= 1 << rank
				bytes += n
				if !b.seen[rank] {
					unseen |= 1 << rank
				}
			}
			got := table.at(slot)
			if got.have() != have || got.unseen() != unseen || got.size != bytes || got.used != b.used || got.written != b.written {
				t.Fatalf("seed %d: %s is %+v (%b, %b), want %+v", seed, k.hex(), got, got.have(), got.unseen(), b)
			}
			size += bytes
		}
		if table.len() != len(model) || table.size != size {
			t.Fatalf("seed %d: %d blocks, %d bytes; want %d, %d", seed, table.len(), table.size, len(model), size)
		}
		for slot := range table.all() { // once each, though blocks are removed meanwhile
			k := table.at(slot).key
			if model[k] == nil {
				t.Fatalf("seed %d: %s comes twice", seed, k.hex())
			}
			delete(model, k)
			if r.IntN(2) == 0 {
				table.remove(slot)
			}
		}
		if len(model) > 0 {
			t.Fatalf("seed %d: %d blocks did not come", seed, len(model))
		}
	}
}

// compare orders two blocks of the model by the comments of the orders.
func (t *table) compare(a *plainBlock, ak key, b *plainBlock, bk key) int {
	time := func(p *plainBlock) int64 {
		if t.order == FIFO {
			return p.written + t.young
		}
		return max(p.used, p.written+t.young)
	}
	if x, y := time(a), time(b); x != y {
		return int(x - y)
	}
	return cmp.Or(bytes.Compare(ak.hash(), bk.hash()), cmp.Compare(ak.group, bk.group), cmp.Compare(ak.space, bk.space))
}

// TestBytes bounds the memory for files of one rank to 100 bytes each.
func TestBytes(t *testing.T) {
	if bits.UintSize < 64 || testing.Short() {
		t.Skip("sizes are those of 64 bits")
	}
	const n = 3<<18 + 1 // the index has just grown
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table := newTable(LRU, time.Minute)
	var k key
	for i := range n {
		binary.BigEndian.PutUint64(k.digits[:], uint64(i)*0x9e3779b97f4a7c15)
		k.length = 32
		table.put(table.add(&k), 0, 1, int64(i), int64(i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.1f bytes a file, %d of them a block", each, unsafe.Sizeof(block{}))
	if each > 100 {
		t.Errorf("%.1f bytes a file", each)
	}
	runtime.KeepAlive(table)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
