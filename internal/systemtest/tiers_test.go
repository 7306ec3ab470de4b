package systemtest

import (
	"context"
	"encoding/hex"
	"path/filepath"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/testdata"
)

// tierRow is a row of a recorded run with the offloading connector.
type tierRow struct {
	Seq     uint64
	Payload string

	Query    *recordedQuery
	Computed int  `json:"computed_tokens"`
	Total    *int `json:"total_tokens"`
	Eventual *int `json:"eventual_tokens"`

	Offload struct {
		Chunk int `json:"blocks_per_chunk"`
		Eagle []bool
	}
	recordedGroups
}

// TestRecordedTiers replays the recorded runs of vLLM's offloading connector.
func TestRecordedTiers(t *testing.T) {
	for _, file := range testdata.Glob(t, "the recorded runs of vLLM's offloading", "oracle", "t*.jsonl.gz") {
		name := filepath.Base(file)
		var ix *kvindex.Indexer
		var n, gpuOver, gpuUnder, over, under, asked, eventual int
		for i, row := range testdata.Rows[tierRow](t, file) {
			if i == 0 {
				p := kvindex.Profile{Copies: kvindex.CopiesExact, Chunk: row.Offload.Chunk, Clears: kvindex.ClearsGPU, Draft: kvindex.DraftNone}
				for _, e := range row.Offload.Eagle {
					if e {
						p.Draft = kvindex.DraftLayers
					}
				}
				var err error
				if ix, err = kvindex.New(withProfile(p)); err != nil {
					t.Fatal(err)
				}
				defer ix.Close()
				continue
			}
			if row.Query == nil {
				payload, err := hex.DecodeString(row.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := ix.IngestMessage(kvindex.Message{Pod: "p", Model: "m", Stream: "s", Seq: row.Seq, Payload: payload}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			q := row.Query.request(t)
			q.Model, q.Pods = "m", []string{"p"}
			var a kvindex.Answer
			if err := ix.ScoreRequest(context.Background(), &q, &a); err != nil {
				t.Fatal(err)
			}
			s := a.Pods[0]
			n++
			if s.CachedTokens > row.Computed {
				gpuOver++
			} else if s.CachedTokens < row.Computed {
				gpuUnder++
			}
			if row.Total != nil {
				switch got := s.CachedTokens + s.LoadedTokens; {
				case got > *row.Total:
					over++
				case got < *row.Total:
					under++
				}
			}
			if row.Eventual != nil {
				asked++
				if s.CachedTokens+s.LoadedTokens+s.FetchedTokens == *row.Eventual {
					eventual++
				}
			}
		}
		t.Logf("%-28s %4d gpu +%d -%d total +%d -%d eventual %d/%d", name, n, gpuOver, gpuUnder, over, under, eventual, asked)
	}
}
