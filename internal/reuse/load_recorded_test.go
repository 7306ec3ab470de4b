package reuse_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recordedLoad is a row of a recorded run with a connector: its header, or a query with the
// loadable chunks and the tokens that the engine then did not compute.
type recordedLoad struct {
	Groups  []recordedGroup
	Grain   int `json:"hash_block_size"`
	Offload *recordedConnector

	Query    *struct{ Tokens []uint32 }
	GPU      int                 `json:"computed_tokens"`
	Tiers    map[string][]string // loadable
	InFlight map[string][]string `json:"in_flight"` // being stored
	Total    *int                `json:"total_tokens"`
	Eventual *int                `json:"eventual_tokens"`
}

// recordedConnector has the settings of the connector, except those that its version lacks.
type recordedConnector struct {
	Connector string
	Chunk     int `json:"blocks_per_chunk"`
	Unit      []int
	Tokens    []int `json:"chunk_tokens"`
	Windows   []int
	Eagle     []bool
	Mamba     int  `json:"mamba_align"`
	Tail      bool `json:"partial_tail"`
}

// recordedLoads counts queries.
type recordedLoads struct{ runs, totals, waiting, eventuals int }

// TestRecordedLoads applies the rule to the loadable chunks in the recorded runs of vLLM with a
// connector. The result must be the tokens that the engine did not compute.
func TestRecordedLoads(t *testing.T) {
	counts := map[string]recordedLoads{}
	for _, file := range testdata.Glob(t, "the recorded runs of vLLM", "oracle", "t*.jsonl.gz") {
		replayLoads(t, file, counts)
	}
	want := map[string]recordedLoads{
		// 150 requests waited for a chunk, so they have no total.
		"OffloadingConnector": {runs: 59, totals: 16970, waiting: 150, eventuals: 17120},
		// These runs have no later answer.
		"SimpleCPUOffloadConnector": {runs: 3, totals: 840},
	}
	if !maps.Equal(counts, want) {
		t.Errorf("%+v, want %+v", counts, want)
	}
}

// replayLoads compares all queries of a run, and counts them.
func replayLoads(t *testing.T, file string, counts map[string]recordedLoads) {
	var head recordedLoad
	var load *reuse.Load
	var n recordedLoads
	check := func(what string, q recordedLoad, held []reuse.Held, want int) {
		if got := load.Tokens(len(q.Query.Tokens), q.GPU, held); got != want {
			t.Errorf("%s: of %d tokens, %d on the gpu, with %q and %q in flight: %s is %d, want %d",
				file, len(q.Query.Tokens), q.GPU, q.Tiers, q.InFlight, what, got, want)
		}
	}
	for i, q := range testdata.Rows[recordedLoad](t, file) {
		if i == 0 {
			head, load = q, loadOf(t, file, q)
			n = counts[head.Offload.Connector]
			n.runs++
		}
		if q.Query == nil {
			continue
		}
		cpu := q.Tiers["cpu"]
		if head.Offload.Connector == "SimpleCPUOffloadConnector" {
			cpu = []string{cpu[0][:(len(q.Query.Tokens)-1)/head.Offload.Unit[0]]} // it never loads the last token
		}
		if q.Total != nil {
			n.totals++
			check("total", q, heldInTier(head, cpu), *q.Total)
		} else {
			n.waiting++
		}
		if q.Eventual != nil {
			// The engine's answer after all transfers, when the chunks being stored were loadable.
			n.eventuals++
			check("eventual", q, heldInTier(head, cpu, q.Tiers["storage"], q.InFlight["cpu"], q.InFlight["storage"]), *q.Eventual)
		}
	}
	counts[head.Offload.Connector] = n
}

// loadOf returns the rule for the groups of a header. Its derived settings must be those of the
// header.
func loadOf(t *testing.T, file string, head recordedLoad) *reuse.Load {
	t.Helper()
	o := head.Offload
	load, err := reuse.NewLoad(groupsOf(t, file, head.Groups), o.Chunk, head.Grain)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	tokens, windows, drafts, floor := load.Derived()
	if !slices.Equal(tokens, o.Tokens) || o.Windows != nil && !slices.Equal(windows, o.Windows) ||
		o.Eagle != nil && !slices.Equal(drafts, o.Eagle) || floor != o.Mamba || load.Grain() > 0 != o.Tail {
		t.Fatalf("%s: chunks of %d tokens, windows %d, drafts %t, floor %d, grain %d; want %+v", file, tokens, windows, drafts, floor, load.Grain(), *o)
	}
	return load
}

// heldInTier reads maps with a character for each boundary: 1, a chunk ends there. Chunks in any of
// the tiers can be loaded.
func heldInTier(head recordedLoad, tiers ...[]string) []reuse.Held {
	held := make([]reuse.Held, len(head.Groups))
	for i, g := range head.Groups {
		for _, tier := range tiers {
			if tier == nil {
				continue
			}
			for at := range tier[i] {
				n := (at + 1) * head.Offload.Unit[i]
				switch {
				case tier[i][at] != '1':
				case n%g.Block == 0:
					held[i].Blocks = setBit(held[i].Blocks, n/g.Block-1)
				default:
					held[i].Parts = setBit(held[i].Parts, n/head.Grain-1)
				}
			}
		}
	}
	return held
}
