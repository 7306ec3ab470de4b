package systemtest

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recordedHashes is the hash configuration of a recorded run's engine.
type recordedHashes struct {
	Hash, Seed string
}

// reporter makes vLLM's full reports for the hits of a recorded run.
type reporter struct {
	recordedGroups
	recordedHashes
	sizes []int             // of blocks, by group
	names map[string]uint64 // the engine's hash of a prefix, by its tokens
	of    map[uint64]string // and back
	batch events.Batch
}

// learn records the prefixes of a batch's hashes if they depend on tokens alone.
func (r *reporter) learn(t *testing.T, payload []byte) {
	t.Helper()
	must(t, events.Decode(payload, &r.batch))
	for i := range r.batch.Events {
		e := &r.batch.Events[i]
		prefix, ok := r.of[e.Parent]
		if e.Kind != events.Stored || len(e.Extra) > 0 || e.Adapter != "" || e.HasParent && !ok || len(e.Hashes)*e.BlockSize != len(e.Tokens) {
			continue
		}
		if !e.HasParent {
			prefix = ""
		}
		for j, h := range e.Hashes {
			prefix += keyOf(e.Tokens[j*e.BlockSize : (j+1)*e.BlockSize])
			r.names[prefix], r.of[h] = h, prefix
		}
	}
}

// hashOf returns the engine's hash of a prefix. ok: it was published, or can be computed.
func (r *reporter) hashOf(tokens []uint32) (h enginehash.Digest, ok bool) {
	if h, ok := r.names[keyOf(tokens)]; ok {
		return fakeengine.IntHash(h), true
	}
	var hasher enginehash.Hasher
	h = enginehash.NoneHash(r.Seed)
	for ; len(tokens) > 0; tokens = tokens[r.Unit:] {
		h = hasher.Block(h, tokens[:r.Unit], nil)
	}
	return h, r.Hash == "sha256_cbor"
}

func keyOf(tokens []uint32) string {
	var b []byte
	for _, n := range tokens {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return string(b)
}

// report returns the events of an engine for a request with so many cached tokens (vLLM
// 017e9f4448b7, v1/core/block_pool.py, emit_cached_block_events). nil: the engine sends none, or
// its hashes are unknown.
func (r *reporter) report(q *recordedQuery, computed int) (all []fakeengine.Event) {
	if computed == 0 || q.Lora != "" || q.Salt != "" || len(q.MM) > 0 {
		return nil
	}
	for g, size := range r.sizes {
		n := (computed + size - 1) / size
		if n*size > len(q.Tokens) {
			return nil
		}
		s := &fakeengine.Stored{Tokens: q.Tokens[:n*size], BlockSize: size, Medium: fakeengine.MediumGPU, Group: g, Kind: r.Groups[g].Kind, Window: r.Groups[g].Window}
		for i := range n {
			h, ok := r.hashOf(q.Tokens[:(i+1)*size])
			if !ok && (i+1)*size <= computed { // the next block is missing, so any hash will do
				return nil
			}
			s.Hashes = append(s.Hashes, h)
		}
		all = append(all, s)
	}
	return all
}

// TestRecordedHitsReported adds full reports to the recorded runs of hybrid models: each hit is
// published again just before its query. The engine's own results stay the same, and no score is
// too high, with all events or without the first half of a run. In the second case the reports
// restore the missed blocks.
func TestRecordedHitsReported(t *testing.T) {
	t.Parallel()
	var live, partial, without tally
	reports := 0
	for _, path := range third(recordings(t, "08_*", "09_*", "10_*", "11_*", "12_*hybrid*", "12_*ma*", "13_*hybrid", "14_*hybrid", "18_*hybrid", "19_*hybrid", "20_*hybrid")) {
		rows, name := readRecording(t, path), filepath.Base(path)
		r := &reporter{recordedGroups: rows[0].recordedGroups, names: map[string]uint64{}, of: map[uint64]string{}}
		for _, m := range testdata.Rows[recordedMaps](t, path) {
			for _, g := range m.Groups {
				r.sizes = append(r.sizes, g.BlockSize)
			}
			break
		}
		for _, h := range testdata.Rows[recordedHashes](t, path) {
			r.recordedHashes = h
			break
		}
		play := func(from int, sends bool) (c tally) {
			ix, err := kvindex.New(withProfile(r.profile(0)))
			must(t, err)
			defer ix.Close()
			seq := uint64(from)
			ingest := func(payload []byte) {
				m := kvindex.Message{Pod: "p", Model: "m", Stream: "s", Seq: seq, Payload: payload}
				if got, err := ix.IngestMessage(m); err != nil || !got.Applied {
					t.Fatalf("%s: %+v, %v", name, got, err)
				}
				seq++
			}
			for i, row := range rows[1:] {
				if row.Query == nil {
					payload, err := hex.DecodeString(row.Payload)
					must(t, err)
					r.learn(t, payload)
					if i >= from {
						ingest(payload)
					}
					continue
				}
				if i < from {
					continue
				}
				if all := r.report(row.Query, row.ComputedTokens); sends && all != nil {
					reports++
					ingest(fakeengine.Payload(float64(i), row.DPRank, all...))
				}
				q := row.Query.request(t)
				q.Model, q.Pods = "m", []string{"p"}
				var answer kvindex.Answer
				if err := ix.ScoreRequest(context.Background(), &q, &answer); err != nil {
					t.Fatalf("%s: row %d: %v", name, i, err)
				}
				c.add(answer.Pods[0], 0, row.ComputedTokens)
			}
			return c
		}
		half := len(rows) / 2
		l, p, w := play(0, true), play(half, true), play(half, false)
		t.Logf("%-26s live %+v partial %+v without reports %+v", strings.TrimSuffix(name, ".jsonl.gz"), l, p, w)
		if l.over+p.over+w.over > 0 {
			t.Errorf("%s: live %+v, partial %+v, without reports %+v", name, l, p, w)
		}
		live.sum(l)
		partial.sum(p)
		without.sum(w)
	}
	t.Logf("%d reports: live %+v partial %+v without reports %+v", reports, live, partial, without)
	if reports < 4000 && !testing.Short() || partial.under >= without.under || slices.Contains([]int{live.hits, partial.hits}, 0) {
		t.Errorf("%d reports, %+v, %+v, %+v", reports, live, partial, without)
	}
}
