package systemtest

import (
	"context"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/sharedindex"
)

// feedableIndex is an index that an Indexer feeds, and readableIndex is the same index for an
// Indexer without streams.
type feedableIndex struct {
	inmemory.Memory
	listing *sharedindex.Listing
}

type readableIndex struct {
	index.Index
	of *feedableIndex
}

func (s *feedableIndex) Publish(src index.Source, note []byte) {
	l := &sharedindex.Listing{Entries: slices.DeleteFunc(slices.Clone(s.listing.Entries), func(e sharedindex.Entry) bool { return e.Source == src })}
	l.Entries = append(l.Entries, sharedindex.Entry{Source: src, Note: note})
	slices.SortFunc(l.Entries, func(a, b sharedindex.Entry) int { return a.Source.Rank - b.Source.Rank })
	s.listing = l
}

func (s *feedableIndex) Listing(context.Context) (*sharedindex.Listing, error) {
	return &sharedindex.Listing{}, nil
}

func (r readableIndex) Publish(index.Source, []byte) {}

func (r readableIndex) Listing(context.Context) (*sharedindex.Listing, error) {
	return r.of.listing, nil
}

// TestRecordedRunsListed: on the recorded runs of all engines, an Indexer without streams answers
// like the one with them.
func TestRecordedRunsListed(t *testing.T) {
	t.Parallel()
	var all tally
	adapters, salts, media, runs := 0, 0, 0, 0
	run := func(path string, p kvindex.Profile, ask func(*recordedQuery, *testing.T) kvindex.Request) {
		m, err := inmemory.New(index.MemoryConfig{})
		must(t, err)
		defer m.Close()
		of := &feedableIndex{m, &sharedindex.Listing{}}
		writer, reader := open(t, kvindex.WithIndex(of), withProfile(p)), open(t, kvindex.WithIndex(readableIndex{m, of}), withProfile(p))
		for i, row := range readRecording(t, path)[1:] {
			if row.Query == nil {
				payload, err := hex.DecodeString(row.Payload)
				if err == nil {
					_, err = writer.IngestMessage(kvindex.Message{Pod: "p", Model: "m", Stream: "s", Seq: row.Seq, Payload: payload})
				}
				if err != nil {
					t.Fatalf("%s: row %d: %v", path, i, err)
				}
				continue
			}
			q := ask(row.Query, t)
			q.Model, q.Ranks = "m", i%2 == 0
			want, got := score(t, writer, q), score(t, reader, q)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: row %d: %+v, the writer %+v", path, i, got, want)
			}
			if len(got) == 0 { // no event yet
				continue
			}
			all.add(got[0], 0, row.ComputedTokens)
			if got[0].CachedTokens > 0 {
				adapters += len(q.Adapter)
				salts += len(q.Salt)
				media += len(q.Media)
			}
		}
		runs++
	}
	for _, path := range third(recordings(t, "[0-9bc]*")) {
		rows := readRecording(t, path)
		run(path, rows[0].profile(kvindex.CopiesExact), (*recordedQuery).request)
		run(path, kvindex.Profile{}, (*recordedQuery).request)
	}
	for _, path := range third(sglangRecordings(t, sglangRuns...)) {
		run(path, kvindex.Profile{Media: kvindex.MediaPad}, (*recordedQuery).padded)
	}
	t.Logf("%d runs, %+v; hits with %d bytes of adapters, %d of salts, %d media", runs, all, adapters, salts, media)
	if !testing.Short() && (runs < 150 || all.hits < 10_000 || min(adapters, salts, media) < 100) {
		t.Error("the test tests too little")
	}
}
