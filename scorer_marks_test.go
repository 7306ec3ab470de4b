package kvindex_test

import (
	"bytes"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestUnrecognizedInASnapshot: "the pod says so until it clears or is forgotten".
func TestUnrecognizedInASnapshot(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	stored, removed := fakeengine.Payload(1, 0, p.Stored(0, 4)), fakeengine.Payload(2, 0, p.Removed(0, 1, 2, 3))
	ix := open(t)
	m := kvindex.Message{Pod: "a", Model: "m", Stream: "s"}
	for seq, payload := range [][]byte{stored, kindOf(removed, "BlockRemoved", "BlockEvicted")} {
		m.Seq, m.Payload = uint64(seq), payload
		if _, err := ix.IngestMessage(m); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	must(t, ix.Snapshot(t.Context(), &b))
	again, err := kvindex.Restore(t.Context(), &b)
	must(t, err)
	defer again.Close()
	m.Seq, m.Payload = 2, fakeengine.Payload(3, 0)
	if _, err := again.IngestMessage(m); err != nil {
		t.Fatal(err)
	}
	s := score(t, again, kvindex.Request{Tokens: p.Tokens})[0]
	if s.CachedTokens > 0 && !s.UpperBound {
		t.Errorf("%+v, and not recognized: %q", s, again.Pods(nil)[0].Unrecognized)
	}
}

// TestClearOfTheGPU: a clear ends predictions; so does one that names the GPU.
func TestClearOfTheGPU(t *testing.T) {
	for _, clear := range [][]byte{fakeengine.Payload(2, 0, fakeengine.Cleared{}), cleared("GPU"), cleared("CPU")} {
		ix := open(t)
		p, q := fakeengine.NewPrompt(1, 16, 4), fakeengine.NewPrompt(2, 16, 4)
		must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 4))))
		r := kvindex.Request{Model: "m", Tokens: append(q.Tokens, 1)}
		var a kvindex.Answer
		must(t, ix.ScoreRequest(t.Context(), &r, &a))
		if _, err := ix.Routed(&a, "a", 0); err != nil {
			t.Fatal(err)
		}
		must(t, ix.Ingest("a", "m", clear))
		want := 0
		if bytes.Contains(clear, []byte("CPU")) {
			want = 64
		}
		if s := score(t, ix, r)[0]; s.PredictedTokens != want {
			t.Errorf("behind %q: %d tokens are predicted, want %d", clear, s.PredictedTokens, want)
		}
	}
}

// TestRewound: "all messages of the engine's present life will come, from number 0 on". They
// are applied, whoever brings them; those of the life before are still recognised.
func TestRewound(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	send := func(ix *kvindex.Indexer, seq uint64, time float64) kvindex.Receipt {
		t.Helper()
		r, err := ix.IngestMessage(message("s", seq, time, 0, p.Stored(int(seq)%4, int(seq)%4+1)))
		must(t, err)
		return r
	}
	ix := open(t)
	for seq := range uint64(6) {
		send(ix, seq, float64(1+seq))
	}
	for seq := range uint64(3) {
		send(ix, seq, float64(10+seq))
	}
	must(t, ix.Sink().StreamNote("a", "m", "s", events.NoteRewound))
	for seq := range uint64(3) {
		if r := send(ix, seq, float64(10+seq)); !r.Applied || r.Restarted {
			t.Errorf("message %d comes again: %+v", seq, r)
		}
	}
	if r := send(ix, 5, 6); !r.Duplicate {
		t.Errorf("message 5 of the life before: %+v", r)
	}
	if s := score(t, ix, kvindex.Request{Tokens: append(p.Tokens, 1)})[0]; s.CachedTokens != 48 {
		t.Errorf("%+v", s)
	}
}
