package systemtest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recordedGroup is a group in the header of a recorded run.
type recordedGroup struct {
	BlockSize int `json:"block_size"`
	Unit      int
}

// recordedMaps are the blocks of each group in a row.
type recordedMaps struct {
	Groups  []recordedGroup
	HeldMap []string `json:"held_map"`
}

// heldIndex is an index that keeps the rows with bits of the last query.
type heldIndex struct {
	inmemory.Memory
	groups []recordedGroup
	rows   []index.Row
}

func (h *heldIndex) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	var bits index.Matches
	of := *q
	of.Held = true
	if err := h.Memory.Match(ctx, &of, &bits); err != nil {
		return err
	}
	h.rows = bits.Rows
	return h.Memory.Match(ctx, q, m)
}

// holds reports whether a group holds the block that ends at a token.
func (h *heldIndex) holds(group, n int) bool {
	return slices.ContainsFunc(h.rows, func(r index.Row) bool {
		bits := r.Held[index.TierGPU]
		b := n/r.BlockSize - 1
		return r.Group.ID == group && n%r.BlockSize == 0 && b/64 < len(bits) && bits[b/64]>>(b%64)&1 != 0
	})
}

// placing counts blocks of groups, those of an index and those of the engine.
type placing struct {
	queries, wrong, held, missing, invented int
}

func (p *placing) add(o placing) {
	p.queries += o.queries
	p.wrong += o.wrong
	p.held += o.held
	p.missing += o.missing
	p.invented += o.invented
}

// placeRecorded ingests a recorded run and compares the held blocks with its maps.
func placeRecorded(t *testing.T, rows []recording, maps []recordedMaps, copies kvindex.Copies) (all placing) {
	t.Helper()
	memory, err := inmemory.New(index.MemoryConfig{})
	must(t, err)
	h := &heldIndex{Memory: memory, groups: maps[0].Groups}
	defer h.Close()
	maps = slices.DeleteFunc(slices.Clone(maps), func(m recordedMaps) bool { return m.HeldMap == nil }) // queries have these
	ask := func(q *recordedQuery, t *testing.T) kvindex.Request {
		h.rows = nil
		return q.request(t)
	}
	replay(t, rows, rows[0].profile(copies), ask, func(kvindex.PodScore, int, int) {
		before := all.missing + all.invented
		for g, want := range maps[all.queries].HeldMap {
			for j, c := range want {
				n := (j + 1) * h.groups[g].Unit
				got, held := h.holds(g, n), c == '1'
				switch {
				case held && got:
					all.held++
				case held:
					all.missing++
				case got:
					all.invented++
				}
			}
		}
		if all.missing+all.invented > before {
			all.wrong++
		}
		all.queries++
	}, kvindex.WithIndex(h))
	return all
}

func readMaps(t *testing.T, path string) (rows []recordedMaps) {
	t.Helper()
	for _, r := range testdata.Rows[recordedMaps](t, path) {
		rows = append(rows, r)
	}
	return rows
}

// missed has, by run, how many queries lack a block with exact counting, and how many blocks they
// lack. No event names those: no group has larger blocks (10_swa_only), a part of a block follows
// units that no store names (partial), or the parent of a store is never named.
var missed = map[string]placing{
	"09_mamba_partial":        {wrong: 28, missing: 54},
	"10_swa_only":             {wrong: 78, missing: 271},
	"12_eagle_mamba_partial":  {wrong: 37, missing: 78},
	"12_eagle_masked_retain0": {wrong: 2, missing: 4},
}

// TestRecordedPlacing compares the blocks of each group with the engine's. With exact counting they
// are equal, except those in missed, media in 07_multimodal_tail, and repeated hits (15_*). With
// default counting only those media are excess blocks.
func TestRecordedPlacing(t *testing.T) {
	t.Parallel()
	var exact, guarded placing
	paths := third(recordings(t, "[0-9]*", "b*", "c0*", "c1*"))
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		rows, maps := readRecording(t, path), readMaps(t, path)
		e, g := placeRecorded(t, rows, maps, kvindex.CopiesExact), placeRecorded(t, rows, maps, 0)
		t.Logf("%-26s exact %+v default %+v", name, e, g)
		media := 0
		if name == "07_multimodal_tail" {
			media = 7
		}
		if g.invented > media {
			t.Errorf("%s: default counting: %+v", name, g)
		}
		guarded.add(g)
		if strings.HasPrefix(name, "15_") {
			continue
		}
		exact.add(e)
		want := missed[name]
		if want.invented = media; media > 0 {
			want.wrong += 5
		}
		if e.wrong > want.wrong || e.missing > want.missing || e.invented > want.invented {
			t.Errorf("%s: exact counting: %+v, want at most %+v", name, e, want)
		}
	}
	t.Logf("%d runs: exact %+v default %+v", len(paths), exact, guarded)
	if !testing.Short() && (len(paths) < 74 || exact.held < 50_000) {
		t.Errorf("%d runs, %+v: too few", len(paths), exact)
	}
	if limit := 3000; guarded.missing > limit {
		t.Errorf("default counting lacks %d blocks, want at most %d", guarded.missing, limit)
	}
}
