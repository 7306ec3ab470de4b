package reuse_test

import (
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recordedRow is a row of a recorded run: its header, or a query with the held and the reused
// tokens.
type recordedRow struct {
	Groups  []recordedGroup
	Unit    int  `json:"hash_block_size"`
	Partial bool `json:"partial_hits"`

	Query *struct{ Tokens []uint32 }
	Held  []string `json:"held_map"`
	Want  int      `json:"computed_tokens"`
}

type recordedGroup struct {
	Kind   string
	Block  int `json:"block_size"`
	Window int
	Chunk  int
	Unit   int // tokens between two boundaries of held_map
	Eagle  bool
}

var recordedKinds = map[string]index.GroupKind{
	"full_attention": index.GroupFull, "mla_attention": index.GroupFull,
	"sliding_window": index.GroupWindow, "sliding_window_mla": index.GroupWindow,
	"mamba": index.GroupMamba, "chunked_local_attention": index.GroupChunked,
}

// TestRecorded applies the rule to the blocks that vLLM held in the recorded runs. The result must
// be the tokens that the engine reused.
func TestRecorded(t *testing.T) {
	runs, queries := 0, 0
	for i, file := range testdata.Glob(t, "the recorded runs of vLLM", "oracle", "*.jsonl.gz") {
		runs++
		if testing.Short() && i%3 > 0 {
			continue
		}
		queries += replay(t, file)
	}
	if runs < 136 {
		t.Fatalf("%d recorded runs, want 136", runs)
	}
	t.Logf("%d queries of %d runs", queries, runs)
}

// replay returns the number of queries in a file.
func replay(t *testing.T, file string) (queries int) {
	var groups []recordedGroup
	var plan *reuse.Plan
	for n, row := range testdata.Rows[recordedRow](t, file) {
		switch {
		case n == 0:
			groups, plan = row.Groups, planOf(t, file, row)
		case row.Query != nil:
			queries++
			if got := plan.Tokens(len(row.Query.Tokens), heldOf(groups, row.Held)); got != row.Want {
				t.Errorf("%s: row %d: of %d tokens with %q %d are reused, want %d", file, n, len(row.Query.Tokens), row.Held, got, row.Want)
			}
		}
	}
	return queries
}

// planOf returns the plan for the groups of a header.
func planOf(t *testing.T, file string, head recordedRow) *reuse.Plan {
	t.Helper()
	plan, err := reuse.New(groupsOf(t, file, head.Groups), head.Unit)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if fine := plan.Grain() > 0; fine != head.Partial {
		t.Fatalf("%s: grain %d, and partial_hits is %t", file, plan.Grain(), head.Partial)
	}
	return plan
}

// groupsOf returns the groups of a header.
func groupsOf(t *testing.T, file string, recorded []recordedGroup) []reuse.Group {
	t.Helper()
	groups := make([]reuse.Group, len(recorded))
	for i, g := range recorded {
		kind, ok := recordedKinds[g.Kind]
		if !ok {
			t.Fatalf("%s: group of kind %q", file, g.Kind)
		}
		groups[i] = reuse.Group{Kind: kind, Window: g.Window + g.Chunk, Block: g.Block, Draft: g.Eagle}
	}
	return groups
}

// heldOf reads maps with a character for each boundary: 1, a block ends there.
func heldOf(groups []recordedGroup, maps []string) []reuse.Held {
	held := make([]reuse.Held, len(groups))
	for i, g := range groups {
		for at, c := range maps[i] {
			if n := (at + 1) * g.Unit; c == '1' && n%g.Block == 0 {
				held[i].Blocks = setBit(held[i].Blocks, n/g.Block-1)
			} else if c == '1' {
				held[i].Parts = setBit(held[i].Parts, at)
			}
		}
	}
	return held
}

func setBit(words []uint64, i int) []uint64 {
	for i/64 >= len(words) {
		words = append(words, 0)
	}
	words[i/64] |= 1 << (i % 64)
	return words
}
