package systemtest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
)

// recordedGroups is the header of a recorded run about the engine's groups.
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

// profile returns the profile that an operator of the engine would write.
func (h *recordedGroups) profile(copies kvindex.Copies) kvindex.Profile {
	p := kvindex.Profile{Copies: copies, Draft: kvindex.DraftNone}
	if h.Partial {
		p.Grain = h.Unit
	}
	kinds := map[string]index.GroupKind{
		"full_attention": index.GroupFull, "mla_attention": index.GroupFull, "sink_full_attention": index.GroupFull, "sliding_window": index.GroupWindow,
		"sliding_window_mla": index.GroupWindow, "mamba": index.GroupMamba, "chunked_local_attention": index.GroupChunked,
	}
	for i, g := range h.Groups {
		kind, ok := kinds[g.Kind]
		if !ok {
			panic(g.Kind)
		}
		if g.Eagle {
			p.Draft = kvindex.DraftLayers
		}
		p.Groups = append(p.Groups, index.Group{ID: i, Kind: kind, Window: max(g.Window, g.Chunk), Draft: g.Eagle})
	}
	return p
}

// unplaced bounds the answers of a recorded run that are too low with counted copies, because of
// blocks whose position is in no event.
var unplaced = map[string]int{
	"10_swa_only": 53, "09_mamba_partial": 20, "12_eagle_mamba_partial": 20, "12_eagle_masked_retain0": 2,
}

// TestRecordedHybrids checks the answers of all recorded runs of vLLM, hybrid models and draft
// layers included. With a profile, no answer is an upper bound, and only those are too high that no
// index can have right (untold). With default counting no answer is too high either, whatever
// clients request. Without a profile, answers that are too high are marked as bounds; but no event
// shows draft layers beside one full-attention group.
func TestRecordedHybrids(t *testing.T) {
	t.Parallel()
	runs, sparse := 0, tally{}
	for _, path := range third(recordings(t, "[0-9bc]*")) {
		rows, name := readRecording(t, path), strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		h := &rows[0].recordedGroups
		var exact, guarded, blind tally
		bounds, unmarked := 0, 0
		replay(t, rows, h.profile(kvindex.CopiesExact), (*recordedQuery).request, func(got kvindex.PodScore, held, computed int) {
			exact.add(got, held, computed)
			if got.UpperBound {
				bounds++
			}
		})
		replay(t, rows, h.profile(0), (*recordedQuery).request, guarded.add)
		replay(t, rows, kvindex.Profile{}, (*recordedQuery).request, func(got kvindex.PodScore, held, computed int) {
			blind.add(got, held, computed)
			if got.CachedTokens > computed && !got.UpperBound || got.UpperBound && h.oneFull() {
				unmarked++
			}
		})
		t.Logf("%-28s %d queries: exact %d over %d under; default %d over %d under; no profile %d over %d under", name, exact.queries,
			exact.over, exact.under, guarded.over, guarded.under, blind.over, blind.under)
		runs++
		limit := untold[filepath.Base(path)].over
		if reports := strings.HasPrefix(name, "15_"); !reports && exact.over > limit || exact.under > unplaced[name] || bounds > 0 {
			t.Errorf("%s: exact profile: %+v, %d upper bounds", name, exact, bounds)
		}
		if guarded.over > limit {
			t.Errorf("%s: default profile: %+v", name, guarded)
		}
		if drafts := h.Eagle && h.oneFull(); !drafts && unmarked > limit {
			t.Errorf("%s: no profile: %+v, %d not marked", name, blind, unmarked)
		}
		if name != "15_report_full_hybrid" && slices.ContainsFunc(h.profile(0).Groups, func(g index.Group) bool { return g.Kind != index.GroupFull }) {
			sparse.sum(guarded)
		}
	}
	t.Logf("%d runs; with sparse groups and the default profile %+v", runs, sparse)
	if !testing.Short() && (runs < 74 || sparse.queries < 10000 || sparse.under*100 > 5*sparse.queries) {
		t.Errorf("%d runs, %+v", runs, sparse)
	}
}

// oneFull reports whether the engine has a single group, of full attention.
func (h *recordedGroups) oneFull() bool {
	return len(h.Groups) == 1 && h.profile(0).Groups[0].Kind == index.GroupFull
}
