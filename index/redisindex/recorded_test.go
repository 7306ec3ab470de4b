package redisindex_test

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recordedRow is a row of a recorded run of vLLM's own cache manager: a published batch, or a query
// with its result.
type recordedRow struct {
	Seq     uint64
	Payload string

	Query *struct {
		Tokens []uint32
		Lora   string
		Salt   string
		MM     []struct {
			ID             string
			Offset, Length int
		}
	}
}

func (r *recordedRow) request() *kvindex.Request {
	q := &kvindex.Request{Model: "m", Adapter: r.Query.Lora, Salt: r.Query.Salt, Tokens: r.Query.Tokens}
	for _, m := range r.Query.MM {
		q.Media = append(q.Media, kvindex.Media{Hash: m.ID, Offset: m.Offset, Length: m.Length})
	}
	return q
}

// TestRecordedRuns: a reader's Indexer answers all queries of the recorded runs like the Indexer
// that received the events, in the middle of a run and at its end.
func TestRecordedRuns(t *testing.T) {
	client := redistest.Standalone(t).Client(t)
	looks, questions, hits, adapters, salts, media := 0, 0, 0, 0, 0, 0
	for _, path := range testdata.Glob(t, "the recorded runs of vLLM's cache manager", "oracle", "[0-9bc]*.jsonl.gz") {
		shared := open(t, client, redisindex.Config{})
		writer := indexerOf(t, shared)
		var asked []*recordedRow
		look := func() {
			ix := open(t, client, redisindex.Config{Prefix: shared.Prefix()})
			reader := indexerOf(t, ix)
			defer ix.Close()
			defer reader.Close()
			waitFor(t, path+": the reader answers as the writer", func() bool {
				for i, row := range asked {
					q := row.request()
					q.Ranks = i%2 == 0
					if !slices.Equal(scores(t, reader, q), scores(t, writer, q)) {
						return false
					}
				}
				return true
			})
			looks++
			questions += len(asked)
			for _, row := range asked {
				for _, s := range scores(t, reader, row.request()) {
					if s.CachedTokens > 0 {
						hits++
						adapters += len(row.Query.Lora)
						salts += len(row.Query.Salt)
						media += len(row.Query.MM)
					}
				}
			}
		}
		var rows []*recordedRow
		for _, row := range testdata.Rows[recordedRow](t, path) {
			rows = append(rows, &row)
		}
		half := false
		for i, row := range rows[1:] {
			if row.Query != nil {
				asked = append(asked, row)
				continue
			}
			if !half && i > len(rows)/2 {
				look()
				half = true
			}
			payload, err := hex.DecodeString(row.Payload)
			if err == nil {
				_, err = writer.IngestMessage(kvindex.Message{Pod: "p", Model: "m", Stream: "s", Seq: row.Seq, Payload: payload})
			}
			if err != nil {
				t.Fatalf("%s: row %d: %v", path, i, err)
			}
		}
		look()
		writer.Close()
		shared.Close()
	}
	t.Logf("%d looks, %d questions, %d hits, with %d bytes of adapters, %d of salts, %d media", looks, questions, hits, adapters, salts, media)
	if looks < 100 || questions < 5000 || min(adapters, salts, media) < 50 {
		t.Error("the test tests too little")
	}
}

func indexerOf(t *testing.T, ix *redisindex.RedisIndex) *kvindex.Indexer {
	x, err := kvindex.New(kvindex.WithIndex(ix))
	must(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

func scores(t *testing.T, x *kvindex.Indexer, q *kvindex.Request) []kvindex.PodScore {
	var answer kvindex.Answer
	must(t, x.ScoreRequest(t.Context(), q, &answer))
	return answer.Pods
}
