package kvindex_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/vmihailenco/msgpack/v5"
)

// kindOf replaces the kind or a label of a payload's event.
func kindOf(payload []byte, from, to string) []byte {
	if len(from) != len(to) || !strings.Contains(string(payload), from) {
		panic(from)
	}
	return []byte(strings.ReplaceAll(string(payload), from, to))
}

// cleared returns a payload that clears a tier.
func cleared(medium string) []byte {
	payload := append([]byte("\x93\x01\x91\x92\xb0AllBlocksCleared"), 0xa0|byte(len(medium)))
	return append(append(payload, medium...), 0)
}

// TestUnrecognized: unrecognized parts of events are reported on the pod and in its scores until
// the pod is cleared.
func TestUnrecognized(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	stored, removed := fakeengine.Payload(1, 0, p.Stored(0, 4)), fakeengine.Payload(2, 0, p.Removed(3, 4))
	near, err := msgpack.Marshal([]any{2.0, []any{map[string]any{"type": "BlockRemoved", "block_hashes": []uint64{p.Hash + 3}, "medium": "GPU", "locality": "NEAR"}}, 0})
	must(t, err)
	for name, tt := range map[string]struct {
		payload []byte
		want    string
		upper   bool
	}{
		"a kind of event":        {kindOf(removed, "BlockRemoved", "BlockEvicted"), `event kind "BlockEvicted"`, true},
		"a tier that is cleared": {cleared("HBM"), `medium "HBM"`, true},
		"a medium":               {kindOf(stored, "GPU", "HBM"), `medium "HBM"`, false},
		"a removal somewhere":    {near, `locality "NEAR"`, true},
		"a removal in a medium":  {kindOf(removed, "GPU", "HBM"), `medium "HBM"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t)
			check := func(want []string, upper bool) {
				t.Helper()
				if got := ix.Pods(nil)[0].Unrecognized; !slices.Equal(got, want) {
					t.Errorf("the pod has %q, want %q", got, want)
				}
				for _, ranks := range []bool{false, true} {
					if s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Ranks: ranks})[0]; s.State != kvindex.StateLive || s.UpperBound != upper {
						t.Errorf("ranks %t: %+v, want UpperBound %t", ranks, s, upper)
					}
				}
				e, err := ix.Explain(t.Context(), &kvindex.Request{Model: "m", Tokens: p.Tokens}, "a")
				if err != nil || strings.Contains(e.Why, tt.want) != (want != nil) {
					t.Errorf("explained as %q, %v", e.Why, err)
				}
			}
			send := func(seq uint64, payload []byte) kvindex.Receipt {
				t.Helper()
				r, err := ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: seq, Payload: payload})
				if err != nil || !r.Applied {
					t.Fatalf("%+v, %v", r, err)
				}
				return r
			}
			if r := send(0, stored); r.Unrecognized != nil {
				t.Errorf("%v of a plain message", r.Unrecognized)
			}
			check(nil, false)
			for seq := range uint64(3) {
				if r := send(1+seq, tt.payload); r.Unrecognized == nil || !strings.Contains(r.Unrecognized.Error(), tt.want) {
					t.Errorf("the receipt has %v, want %s", r.Unrecognized, tt.want)
				}
			}
			check([]string{tt.want}, tt.upper)
			send(4, fakeengine.Payload(5, 0, fakeengine.Cleared{}, p.Stored(0, 4)))
			check(nil, false)
			send(5, tt.payload)
			must(t, ix.MarkLost("a", 0))
			if got := ix.Pods(nil)[0].Unrecognized; got != nil {
				t.Errorf("%q behind a loss", got)
			}
		})
	}
}

// TestUnrecognizedOfOthers: readers of a shared index see what its writer did not recognize.
func TestUnrecognizedOfOthers(t *testing.T) {
	s := newSharing(t)
	removed := kindOf(fakeengine.Payload(2, 0, s.p.Removed(3, 4)), "BlockRemoved", "BlockEvicted")
	for _, rank := range []int{0, 1} {
		said(t, s.writer, "a", rank, s.p.Stored(0, 4))
	}
	check := func(upper bool, want ...string) {
		t.Helper()
		got := score(t, s.reader, kvindex.Request{Model: "m", Tokens: s.p.Tokens})
		if len(got) != 1 || got[0].UpperBound != upper {
			t.Errorf("%+v, want UpperBound %t", got, upper)
		}
		if pods := s.reader.Pods(nil); !slices.Equal(pods[0].Unrecognized, want) {
			t.Errorf("the pod has %q, want %q", pods[0].Unrecognized, want)
		}
	}
	check(false)
	removed[len(removed)-1] = 1 // the rank
	must(t, s.writer.Ingest("a", "m", removed))
	check(true, `event kind "BlockEvicted"`)
	said(t, s.writer, "a", 1, fakeengine.Cleared{}, s.p.Stored(0, 4))
	check(false)
}

// TestUnrecognizedIsBounded: the kept names are bounded, however many a peer invents.
func TestUnrecognizedIsBounded(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 1)
	removed := fakeengine.Payload(2, 0, p.Removed(0, 1))
	for i := range 100 {
		name := "Block" + string([]byte{byte('a' + i%26), byte('a' + i/26)}) + "emoved"[:5]
		must(t, ix.Ingest("a", "m", kindOf(removed, "BlockRemoved", name)))
	}
	if got := ix.Pods(nil)[0].Unrecognized; len(got) != 8 {
		t.Errorf("%d kept: %q", len(got), got)
	}
}

// TestUnreadMessage: a message that a transport could not read is counted by its reason; one with a
// number is lost.
func TestUnreadMessage(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 4)
	bad := errors.New("seven frames")
	numbered, unnumbered := message("s", 1, 1, 0), message("s", math.MaxUint64, 1, 0)
	numbered.Err, unnumbered.Err = bad, bad
	if _, err := ix.IngestMessage(unnumbered); !errors.Is(err, bad) || !errors.Is(err, events.ErrMalformed) || len(ix.Pods(nil)) != 0 {
		t.Fatalf("%v, and pods %+v", err, ix.Pods(nil))
	}
	play(t, ix, p, step{message("s", 0, 1, 0, p.Stored(0, 4)), taken, 4, kvindex.StateLive})
	if _, err := ix.IngestMessage(unnumbered); !errors.Is(err, bad) {
		t.Fatal(err)
	}
	info := ix.Pods(nil)[0]
	if s := info.Streams[0]; info.State != kvindex.StateLive || s.LastMalformed.Seq != math.MaxUint64 || !strings.Contains(s.LastMalformed.Error, "seven frames") || s.Malformed != 1 {
		t.Errorf("%+v", info)
	}
	if _, err := ix.IngestMessage(numbered); !errors.Is(err, bad) {
		t.Fatal(err)
	}
	if info := ix.Pods(nil)[0]; info.State != kvindex.StatePartial || info.Streams[0].Next != 2 || ix.Stats().Malformed != 3 {
		t.Errorf("%+v, %+v", info, ix.Stats())
	}
}

// TestFieldEvents applies the rows of field/events.jsonl, events of other tools, and checks the
// pod's blocks.
func TestFieldEvents(t *testing.T) {
	dir := os.Getenv("KVINDEX_TESTDATA")
	if dir == "" {
		t.Skip("KVINDEX_TESTDATA is unset: the rows of field/events.jsonl are not read")
	}
	f, err := os.Open(filepath.Join(dir, "field", "events.jsonl"))
	must(t, err)
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); rows++ {
		var row struct {
			Name     string
			Payloads []string
			Queries  []struct {
				Tokens        []uint32
				Salt, Adapter string
				Cached        int
			}
		}
		must(t, json.Unmarshal(lines.Bytes(), &row))
		t.Run(row.Name, func(t *testing.T) {
			ix := open(t)
			for i, text := range row.Payloads {
				payload, err := hex.DecodeString(text)
				must(t, err)
				if err := ix.Ingest("a", "m", payload); err != nil {
					t.Fatalf("payload %d: %v", i, err)
				}
			}
			if info := ix.Pods(nil)[0]; info.Unrecognized != nil {
				t.Errorf("not recognized: %q", info.Unrecognized)
			}
			for i, q := range row.Queries {
				// One token more, because the last one is always computed.
				s := score(t, ix, kvindex.Request{Tokens: append(q.Tokens, 1), Salt: q.Salt, Adapter: q.Adapter})[0]
				if s.CachedTokens != q.Cached {
					t.Errorf("query %d: %d tokens cached, want %d", i, s.CachedTokens, q.Cached)
				}
			}
		})
	}
	if rows < 4 {
		t.Errorf("%d rows", rows)
	}
}

// An unrecognized event survives a snapshot.
func TestUnrecognizedInASnapshot(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 4)
	stored, removed := fakeengine.Payload(1, 0, p.Stored(0, 4)), fakeengine.Payload(2, 0, p.Removed(0, 1, 2, 3))
	ix := open(t)
	m := kvindex.Message{Pod: "a", Model: "m", Stream: "s"}
	for seq, payload := range [][]byte{stored, kindOf(removed, "BlockRemoved", "BlockEvicted")} {
		m.Seq, m.Payload = uint64(seq), payload
		brings(m)(t, ix)
	}
	var b bytes.Buffer
	must(t, ix.Snapshot(t.Context(), &b))
	again, err := kvindex.Restore(t.Context(), &b)
	must(t, err)
	defer again.Close()
	m.Seq, m.Payload = 2, fakeengine.Payload(3, 0)
	brings(m)(t, again)
	s := score(t, again, kvindex.Request{Tokens: p.Tokens})[0]
	if s.CachedTokens > 0 && !s.UpperBound {
		t.Errorf("%+v, and not recognized: %q", s, again.Pods(nil)[0].Unrecognized)
	}
}
