package systemtest

import (
	"path/filepath"
	"testing"

	"github.com/kvindex/kvindex"
)

// recordedGroups is what the header of a recorded run says of the engine's groups.
type recordedGroups struct {
	Groups []struct {
		Kind          string
		Window, Chunk int
		Eagle         bool
	}
	Unit    int  `json:"hash_block_size"`
	Partial bool `json:"partial_hits"`
	Eagle   bool
}

// profile is what an operator who knows the engine would write.
func (h *recordedGroups) profile(copies kvindex.Copies) kvindex.Profile {
	p := kvindex.Profile{Copies: copies, Draft: kvindex.DraftNone}
	if h.Partial {
		p.Grain = h.Unit
	}
	kinds := map[string]kvindex.GroupKind{
		"full_attention": kvindex.GroupFull, "mla_attention": kvindex.GroupFull, "sink_full_attention": kvindex.GroupFull, "sliding_window": kvindex.GroupWindow,
		"sliding_window_mla": kvindex.GroupWindow, "mamba": kvindex.GroupMamba, "chunked_local_attention": kvindex.GroupChunked,
	}
	for i, g := range h.Groups {
		kind, ok := kinds[g.Kind]
		if !ok {
			panic(g.Kind)
		}
		if g.Eagle {
			p.Draft = kvindex.DraftLayers
		}
		p.Groups = append(p.Groups, kvindex.Group{ID: i, Kind: kind, Window: max(g.Window, g.Chunk), Draft: g.Eagle})
	}
	return p
}

// TestRecordedHybrids has the answers of all recorded runs of vLLM, hybrid models and
// draft layers included.
func TestRecordedHybrids(t *testing.T) {
	for _, path := range recordings(t, "[0-9b-c]*") {
		rows := readRecording(t, path)
		var exact, guarded, blind tally
		bounds, unmarked := 0, 0
		replay(t, rows, rows[0].profile(kvindex.CopiesExact), (*recordedQuery).request, func(got kvindex.PodScore, held, computed int) {
			exact.add(got, held, computed)
			if got.UpperBound {
				bounds++
			}
		})
		replay(t, rows, rows[0].profile(0), (*recordedQuery).request, guarded.add)
		replay(t, rows, kvindex.Profile{}, (*recordedQuery).request, func(got kvindex.PodScore, held, computed int) {
			blind.add(got, held, computed)
			if got.CachedTokens > computed && !got.UpperBound {
				unmarked++
			}
		})
		t.Logf("%-32s %d queries: exact %d over %d under, %d bounds; default %d over %d under; blind %d over (%d unmarked) %d under", filepath.Base(path), exact.queries,
			exact.over, exact.under, bounds, guarded.over, guarded.under, blind.over, unmarked, blind.under)
	}
}
