package events_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// Decode allocates at most bytesPerByte for each byte of a payload. slack is for errors and for
// the allocations of other goroutines.
const (
	bytesPerByte = 64
	slack        = 16 << 10
)

// allocated measures the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// checkBound decodes p into b, fails if that allocates too much, and returns the bytes allocated
// per byte of p.
func checkBound(t *testing.T, p []byte, b *events.Batch) float64 {
	t.Helper()
	got := allocated(func() { _ = events.Decode(p, b) })
	if most := uint64(bytesPerByte*len(p) + slack); got > most {
		t.Errorf("%d bytes allocated for a payload of %d, %d at most", got, len(p), most)
	}
	return float64(got) / float64(len(p))
}

// list is the head of a list of n items.
func list(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n)) }

// batchOf is a payload with these events.
func batchOf(events ...[]byte) []byte {
	return slices.Concat(append([][]byte{{0x92, 0}, list(len(events))}, events...)...)
}

// lists has an event for each of the lengths, with a list of so many items between head and tail.
func lists(head, tail []byte, item func(i int) []byte, lengths []int) [][]byte {
	var all [][]byte
	for _, n := range lengths {
		event := slices.Concat(head, list(n))
		for i := range n {
			event = append(event, item(i)...)
		}
		all = append(all, append(event, tail...))
	}
	return all
}

// lengths splits n in ways that make slices grow differently.
func lengths(n int) map[string][]int {
	out := map[string][]int{"at once": {n}, "twice": {n / 2, n - n/2}, "ever again": nil, "by a tenth": {n / 40}, "by doubling": {n / 16}}
	for range n / 16 {
		out["ever again"] = append(out["ever again"], 16)
	}
	for sum := n / 40; sum < n; sum += sum/10 + 1 {
		out["by a tenth"] = append(out["by a tenth"], sum/10+1)
	}
	for sum := n / 16; sum < n; sum += sum + 1 {
		out["by doubling"] = append(out["by doubling"], sum+1)
	}
	return out
}

// TestBoundedMemory decodes the payloads that cost the most memory per byte into a new batch and
// into a used one that is too small.
func TestBoundedMemory(t *testing.T) {
	raw := func(s string) []byte { return spell(t, s) }
	always := func(item string) func(int) []byte {
		b := raw(item)
		return func(int) []byte { return b }
	}
	// counted is a string of length bytes, different for each i.
	counted := func(length int) func(int) []byte {
		return func(i int) []byte {
			return append([]byte{0xd9, byte(length)}, fmt.Sprintf("%0*d", length, i%1_000_000)...)
		}
	}
	events1 := func(n int, event func(i int) []byte) []byte {
		var all [][]byte
		for i := range n {
			all = append(all, event(i))
		}
		return batchOf(all...)
	}

	worst := 0.0
	check := func(name string, p []byte) {
		t.Run(name, func(t *testing.T) {
			var fresh, used events.Batch
			if err := events.Decode(p[:0:0], &used); err == nil {
				t.Error("nothing was accepted")
			}
			must(t, events.Decode(batchOf(raw("95 ab|BlockStored| 95 01 02 03 04 05 c0 95 01 02 03 04 05 01")), &used))
			f := max(checkBound(t, p, &fresh), checkBound(t, p, &used))
			t.Logf("%.1f bytes a byte of %d", f, len(p))
			worst = max(worst, f)
		})
	}
	sizes := []int{300, 5000, 50_000}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, n := range sizes {
		for name, event := range map[string]func(int) []byte{
			"cleared":               always("91 b0|AllBlocksCleared|"),
			"cleared in maps":       always("81 a4|type| b0|AllBlocksCleared|"),
			"removed nothing":       always("92 ac|BlockRemoved| 90"),
			"stored nothing":        always("95 ab|BlockStored| 90 c0 90 00"),
			"unknown arrays":        always("91 a0"),
			"unknown maps":          always("80"),
			"about other layers":    always("84 a4|type| ac|BlockRemoved| ac|block_hashes| 90 ae|component_type| a3|swa|"),
			"no event":              always("c0"),
			"known before unknown":  func(i int) []byte { return [][]byte{raw("92 ac|BlockRemoved| 90"), raw("80")}[min(i, 1)] },
			"known among unknown":   func(i int) []byte { return [][]byte{raw("80"), raw("92 ac|BlockRemoved| 90")}[i/(n/2)] },
			"removed, distinct ids": func(i int) []byte { return slices.Concat(raw("93 ac|BlockRemoved| 90"), counted(17)(i)) },
			"adapters by id": func(i int) []byte {
				return binary.BigEndian.AppendUint64(raw("96 ab|BlockStored| 90 c0 90 00 cf"), 1<<63+uint64(i))
			},
			"salts": func(i int) []byte {
				return slices.Concat(raw("98 ab|BlockStored| 90 c0 90 00 c0 c0 81 aa|cache_salt|"), counted(33)(i))
			},
		} {
			check(fmt.Sprintf("events/%s/%d", name, n), events1(n, event))
		}
		for how, lengths := range lengths(n) {
			for _, l := range []struct {
				name, head string
				item       func(int) []byte
				tail       string
			}{
				{"hashes", "92 ac|BlockRemoved|", always("01"), ""},
				{"digests", "92 ac|BlockRemoved|", always("c4080102030405060708"), ""},
				{"tokens", "95 ab|BlockStored| 90 c0", always("01"), "01"},
				{"pairs", "95 ab|BlockStored| 90 c0", always("920101"), "01"},
				{"half a pair", "95 ab|BlockStored| 90 c0", always("9201"), ""},
				{"counts", "83 a4|type| ac|BlockRemoved| ac|block_hashes| 90 b5|remaining_copy_counts|", always("01"), ""},
				{"entries", "99 ab|BlockStored| 90 c0 c0 00 c0 c0 c0", always("c0"), ""},
				{"keys of a byte", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("01"), ""},
				{"empty keys", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("80"), ""},
				{"short keys", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("a3|abc|"), ""},
				{"opaque keys", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("93 a0 00 00"), ""},
				{"byte strings", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("c4021234"), ""},
				{"media", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", always("92 a1|x| 00"), ""},
				{"distinct texts", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", counted(8), ""},
				{"distinct long texts", "99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91", counted(33), ""},
			} {
				check(fmt.Sprintf("lists/%s/%s/%d", l.name, how, n), batchOf(lists(raw(l.head), raw(l.tail), l.item, lengths)...))
			}
		}
		// As many keys of one byte as a payload may have, and the rest in the next most expensive
		// items.
		for how, lengths := range lengths(n) {
			keys := lists(raw("99 ab|BlockStored| 91 01 c0 c0 00 c0 c0 c0 91"), nil, always("01"), lengths)
			check(fmt.Sprintf("keys and events/%s/%d", how, n), batchOf(slices.Concat(
				slices.Repeat([][]byte{raw("92 ac|BlockRemoved| 90")}, n/5), keys)...))
			check(fmt.Sprintf("keys and hashes/%s/%d", how, n), batchOf(slices.Concat(
				lists(raw("92 ac|BlockRemoved|"), nil, always("01"), []int{n, n, n + 50}), keys)...))
		}
		one := slices.Concat(list(n), slices.Repeat(raw("92 ac|BlockRemoved| 90"), n))
		check(fmt.Sprintf("repeated events/%d", n), slices.Concat(raw("84"), slices.Repeat(slices.Concat(raw("a6|events|"), one), 4)))
		check(fmt.Sprintf("nested/%d", n), slices.Concat(raw("92 00 91"), slices.Repeat(raw("91"), n)))
	}
	files, err := filepath.Glob("testdata/*.msgpack")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata: ", err)
	}
	for _, file := range files {
		p, err := os.ReadFile(file)
		must(t, err)
		check(filepath.Base(file), p)
	}
	t.Logf("%.1f bytes a byte at most", worst)
}
