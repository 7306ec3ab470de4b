package offload_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/backendtest"
)

// slotTable is a table of slots.
type slotTable struct {
	Nodes []slotNode `json:"nodes"`
}

type slotNode struct {
	Addr  string    `json:"addr"`
	Port  int       `json:"port"`
	Slots []slotRun `json:"slots"`
}

type slotRun struct {
	Start int `json:"start"`
	End   int `json:"end"`
}

func spreadSlots(slots string, names ...string) (map[string]*table, offload.Backend, error) {
	tables, backends := tablesOf(names...)
	b, err := offload.SpreadSlots([]byte(slots), backends)
	return tables, b, err
}

const twoNodes = `{"nodes": [{"addr": "10.0.0.1", "port": 7, "id": "x", "slots": [{"start": 0, "end": 3}, {"start": 6, "end": 9}]},
	{"addr": "::1", "port": 65535, "slots": [{"start": 4, "end": 5}]}]}`

func TestSpreadSlots(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) (offload.Backend, func() offload.Backend) {
		_, b, err := spreadSlots(twoNodes, "10.0.0.1:7", "[::1]:65535")
		must(t, err)
		return b, nil
	})
}

// TestSlotsRandom compares random tables with a list of slots: each node has its share of the keys,
// and a key moves only with its slot.
func TestSlotsRandom(t *testing.T) {
	const n = 4000
	sp := space(1).ID()
	keys := offload.Keys(offload.Key{}, 1, make([]uint32, n))
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		names := []string{"a:1", "b:2", "c:3"}
		owner := make([]int, 1+r.IntN(40))
		for slot := range owner {
			owner[slot] = r.IntN(len(names))
		}
		where := func() map[offload.Key]string {
			var tab slotTable
			for i, name := range names {
				node := slotNode{Addr: name[:1], Port: i + 1}
				for slot, o := range owner {
					if o == i {
						node.Slots = append(node.Slots, slotRun{slot, slot})
					}
				}
				tab.Nodes = append(tab.Nodes, node)
			}
			js, _ := json.Marshal(tab)
			tables, b, err := spreadSlots(string(js), names...)
			must(t, err)
			if got, err := b.Put(ctx, sp, keys, contents(space(1), keys)); got != n || err != nil {
				t.Fatal(got, err)
			}
			at := make(map[offload.Key]string)
			for name, tab := range tables {
				for k := range tab.blocks[sp] {
					at[k] = name
				}
			}
			return at
		}
		before := where()
		got, want := make(map[string]int), make(map[string]int)
		for _, name := range before {
			got[name]++
		}
		for _, o := range owner {
			want[names[o]]++
		}
		for _, name := range names {
			if least, most := n*want[name]/len(owner)*7/10-50, n*want[name]/len(owner)*13/10+50; got[name] < least || got[name] > most {
				t.Errorf("seed %d: %s has %d of %d keys and %d of %d slots", seed, name, got[name], n, want[name], len(owner))
			}
		}
		slot := r.IntN(len(owner))
		from, to := names[owner[slot]], (owner[slot]+1)%len(names)
		owner[slot] = to
		for k, name := range where() {
			if name != before[k] && (before[k] != from || name != names[to]) {
				t.Fatalf("seed %d: a key moved from %s to %s when a slot moved from %s to %s", seed, before[k], name, from, names[to])
			}
		}
	}
}

func TestSlotsRefused(t *testing.T) {
	node := func(name, slots string) string {
		addr, port, _ := strings.Cut(name, ":")
		return fmt.Sprintf(`{"addr": %q, "port": %s, "slots": [%s]}`, addr, port, slots)
	}
	for table, want := range map[string]string{
		"":              "unexpected end",
		`{"nodes": []}`: "a:1 is no node",
		`{"nodes": [` + node("a:1", "") + `, ` + node("b:1", "") + `]}`:                                             "no slots",
		`{"nodes": [` + node("a:1", `{"start": 0, "end": 3}`) + `]}`:                                                "b:1 is no node",
		`{"nodes": [` + node("a:1", `{"start": 0, "end": 3}`) + `, ` + node("c:1", "") + `]}`:                       "node c:1 has no Backend",
		`{"nodes": [` + node("a:1", "") + `, ` + node("a:1", "") + `]}`:                                             "node a:1 has no Backend, or is there twice",
		`{"nodes": [` + node("a:1", `{"start": 0, "end": 3}`) + `, ` + node("b:1", `{"start": 3, "end": 5}`) + `]}`: "slot 3 has two nodes, one of them b:1",
		`{"nodes": [` + node("a:1", `{"start": 0, "end": 3}`) + `, ` + node("b:1", `{"start": 5, "end": 5}`) + `]}`: "slot 4 has no node",
		`{"nodes": [` + node("a:1", `{"start": 1, "end": 3}`) + `, ` + node("b:1", `{"start": 4, "end": 5}`) + `]}`: "slot 0 has no node",
		`{"nodes": [` + node("a:1", `{"start": 4, "end": 3}`) + `]}`:                                                "node a:1 has slots that are not",
		`{"nodes": [` + node("a:1", `{"start": 0}`) + `]}`:                                                          "node a:1 has slots that are not",
		`{"nodes": [` + node("a:1", `{"start": 0, "end": 9223372036854775807}`) + `]}`:                              "node a:1 has slots that are not",
		`{"nodes": [` + node("a:0", "") + `]}`:                                                                      "node 0 has the addr",
		`{"nodes": [` + node("a:70000", "") + `]}`:                                                                  "70000",
	} {
		if _, _, err := spreadSlots(table, "a:1", "b:1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", table, err, want)
		}
	}
}

// FuzzSlots has any bytes as a table: a valid one gives each slot one node.
func FuzzSlots(f *testing.F) {
	f.Add([]byte(twoNodes))
	f.Add([]byte(`{"nodes": [{"addr": "10.0.0.1", "port": 7, "slots": []}, {"addr": "::1", "port": 65535, "slots": [{"start": 0, "end": 1099511627776}]}]}`))
	keys := chain(1, 20)
	f.Fuzz(func(t *testing.T, b []byte) {
		tables, spread, err := spreadSlots(string(b), "10.0.0.1:7", "[::1]:65535")
		if err != nil {
			return
		}
		if n, err := spread.Put(ctx, offload.SpaceID{}, keys, contents(space(1), keys)); n != len(keys) || err != nil {
			t.Fatal(n, err)
		}
		sum := 0
		for _, tab := range tables {
			sum += len(tab.blocks[offload.SpaceID{}])
		}
		var tab slotTable
		if err := json.Unmarshal(b, &tab); sum != len(keys) || err != nil || len(tab.Nodes) != 2 {
			t.Errorf("%d of %d blocks, %v, %+v", sum, len(keys), err, tab)
		}
	})
}
