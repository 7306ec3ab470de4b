package offload_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/offload"
)

// wire encodes changes as a message of vLLM.
func wire(changes []offload.Event) []byte {
	var evs []fakeengine.Event
	for _, ev := range changes {
		hashes := make([]enginehash.Digest, len(ev.Keys))
		for i, k := range ev.Keys {
			hashes[i] = enginehash.Digest(k)
		}
		switch ev.Kind {
		case offload.BlocksStored:
			evs = append(evs, &fakeengine.Stored{Hashes: hashes, Medium: string(ev.Tier)})
		case offload.BlocksRemoved:
			evs = append(evs, &fakeengine.Removed{Hashes: hashes, Medium: string(ev.Tier)})
		default:
			evs = append(evs, fakeengine.Cleared{})
		}
	}
	return fakeengine.Payload(1, 0, evs...)
}

// TestIndex: an index with the events of a store has the tier of each block of each prompt after
// each step, and none when the store is closed.
func TestIndex(t *testing.T) {
	ix, err := kvindex.New()
	must(t, err)
	defer ix.Close()
	const blocks = 40
	seq := make(map[string]uint64)
	send := func(stream string, payload []byte) {
		t.Helper()
		if _, err := ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: stream, Seq: seq[stream], Payload: payload}); err != nil {
			t.Fatal(err)
		}
		seq[stream]++
	}
	var prompts []fakeengine.Prompt
	var keys [][]offload.Key
	for n := range uint64(8) {
		p := fakeengine.NewPrompt(n+1, 16, blocks)
		stored := p.Stored(0, blocks)
		prompts = append(prompts, p)
		removed := &fakeengine.Removed{Hashes: stored.Hashes, Medium: fakeengine.MediumGPU}
		ks := make([]offload.Key, blocks)
		for i, h := range stored.Hashes {
			ks[i] = offload.Key(h)
		}
		keys = append(keys, ks)
		send("engine", fakeengine.Payload(1, 0, stored, removed)) // names the blocks without holding any
	}
	for _, note := range []events.Note{events.NoteTiers, events.NoteOpened} {
		if err := ix.Sink().StreamNote("a", "m", "store", note); err != nil {
			t.Fatal(err)
		}
	}

	cfg := offload.SegmentConfig{Dir: t.TempDir(), Bytes: 4 << 15, SegmentBytes: 1 << 15, Buffered: true}
	b, sp, changes := openSegments(t, cfg), space(600), new(offload.Events)
	if err := b.Report(changes); err != nil {
		t.Fatal(err)
	}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 600 * 100, Events: changes, Disk: offload.Disk{Backend: b, Ingest: offload.All}})
	found := make(map[string]int)
	compare := func(step int) {
		t.Helper()
		if batch, err := changes.Next(done); err == nil {
			send("store", wire(batch))
		}
		memory, _ := s.Resident()
		for n, ks := range keys {
			disk := make([]bool, blocks)
			if err := b.Has(ctx, sp.ID(), ks, disk); err != nil {
				t.Fatal(err)
			}
			e, err := ix.Explain(ctx, &kvindex.Request{Model: "m", Tokens: prompts[n].Tokens}, "a")
			must(t, err)
			for i, k := range ks {
				want, got := "", ""
				if memory[k] {
					want = "cpu"
				} else if disk[i] {
					want = "disk"
				}
				if e.Held != nil {
					got = e.Held[i]
				}
				if found[want]++; got != want {
					t.Fatalf("step %d: block %d of prompt %d is in %q, the index says %q", step, i, n, want, got)
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		ks := keys[r.IntN(len(keys))]
		from, to := r.IntN(10), 10+r.IntN(blocks-10)
		switch r.IntN(6) {
		case 0:
			if err := s.Delete(ctx, ks[to:]...); err != nil {
				t.Fatal(err)
			}
		case 1:
			l, err := s.Acquire(ctx, ks)
			l.Release()
			must(t, err)
		default:
			written(t, s, sp, ks[:from], ks[from:to])
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		compare(step)
	}
	if found[""] < 1000 || found["cpu"] < 1000 || found["disk"] < 500 {
		t.Errorf("blocks by tier: %v", found)
	}
	closed(t, s)
	compare(-1) // the disk alone
}
