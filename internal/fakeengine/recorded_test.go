package fakeengine_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/testdata"
)

// recording is a run of vLLM's own scheduler and block pool.
type recording struct {
	Scenario string `json:"scenario"`
	Groups   []struct {
		Kind string `json:"kind"`
	} `json:"groups"`
	Hash   string `json:"hash"`
	Seed   string `json:"seed"`
	EAGLE  bool   `json:"eagle"`
	Blocks int    `json:"num_blocks"`
	Rank   int    `json:"dp_rank"`

	rows []row
}

// row is a published batch, or a query, which has no payload.
type row struct {
	Payload string `json:"payload"`
}

func (r *recording) form() fakeengine.Form {
	switch r.Scenario[0] {
	case 'b':
		return fakeengine.FormArrays7
	case 'c':
		return fakeengine.FormArrays12
	}
	return fakeengine.FormMaps
}

// is reports whether the scenario is among these, in any version.
func (r *recording) is(scenarios ...string) bool {
	return slices.ContainsFunc(scenarios, func(s string) bool {
		return strings.HasPrefix(strings.TrimLeft(r.Scenario, "bc"), s)
	})
}

// recordings reads the runs of models with a single group, of full attention.
func recordings(t *testing.T) []*recording {
	t.Helper()
	files := testdata.Glob(t, "the recorded runs of the real engine", "oracle", "*.jsonl.gz")
	var out []*recording
	for _, f := range files {
		if strings.HasPrefix(filepath.Base(f), "t") {
			continue // with connectors and lower tiers
		}
		if r := readRecording(t, f); len(r.Groups) == 1 && r.Groups[0].Kind == "full_attention" {
			out = append(out, r)
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d recorded runs", len(out))
	}
	return out
}

func readRecording(t *testing.T, path string) *recording {
	t.Helper()
	r := &recording{}
	for n, line := range testdata.Rows[json.RawMessage](t, path) {
		var x row
		into := any(&x)
		if n == 0 {
			into = r
		}
		if err := json.Unmarshal(line, into); err != nil {
			t.Fatalf("%s: row %d: %v", path, n, err)
		}
		if n > 0 {
			r.rows = append(r.rows, x)
		}
	}
	return r
}

// batches calls f for each published batch of a recorded run.
func (r *recording) batches(t *testing.T, f func(payload []byte, b *decodedBatch)) {
	t.Helper()
	for _, x := range r.rows {
		if x.Payload == "" {
			continue
		}
		payload, err := hex.DecodeString(x.Payload)
		must(t, err)
		b, err := decode(payload)
		if err != nil {
			t.Fatalf("%s: %v", r.Scenario, err)
		}
		f(payload, b)
	}
}

// TestRecorded compares with recorded runs of the real engine. An index's answers by their events,
// and by those of the fake engine, are compared in internal/systemtest (TestRecordedRuns,
// TestAgainstEngines).
func TestRecorded(t *testing.T) {
	runs := recordings(t)
	t.Run("encoding", func(t *testing.T) { recordedEncoding(t, runs) })
	t.Run("hashes", func(t *testing.T) { recordedHashes(t, runs) })
	t.Run("laws", func(t *testing.T) { recordedLaws(t, runs) })
}

// recordedEncoding decodes the engine's payloads, encodes them again, and wants the same bytes.
func recordedEncoding(t *testing.T, recordings []*recording) {
	payloads := map[string]int{}
	for _, r := range recordings {
		if strings.HasPrefix(r.Hash, "xxhash") {
			continue // 16 bytes, no Digest
		}
		r.batches(t, func(payload []byte, b *decodedBatch) {
			e := fakeengine.Encoding{Form: r.form(), ByteHashes: b.bytes}
			if got := e.Append(nil, &b.Batch); string(got) != string(payload) {
				t.Fatalf("%s: wrote\n%x\nthe engine wrote\n%x", r.Scenario, got, payload)
			}
			payloads[fmt.Sprintf("form %d, bytes %v", e.Form, e.ByteHashes)]++
		})
	}
	t.Log("payloads:", payloads)
	if len(payloads) < 6 {
		t.Error("not every form with both kinds of hashes")
	}
}

// recordedHashes computes the hashes of recorded runs again.
func recordedHashes(t *testing.T, recordings []*recording) {
	var hasher enginehash.Hasher
	runs, blocks := 0, 0
	for _, r := range recordings {
		if r.Hash != "sha256_cbor" || r.form() == fakeengine.FormArrays7 || r.is("16_dcp2") {
			continue // arrays of 7 hide salts; with context parallelism a block has two hashed parts
		}
		runs++
		chains := map[enginehash.Digest]enginehash.Digest{} // published hash to full hash
		r.batches(t, func(_ []byte, b *decodedBatch) {
			for _, e := range b.Events {
				s, ok := e.(*fakeengine.Stored)
				if !ok {
					continue
				}
				parent := enginehash.NoneHash(r.Seed)
				if s.Parent != nil {
					parent = chains[*s.Parent]
				}
				for i, h := range s.Hashes {
					parent = hasher.Block(parent, s.Tokens[i*s.BlockSize:(i+1)*s.BlockSize], s.Extra[i])
					chains[h] = parent
					blocks++
					if parent != h && parent.Int() != h.Int() && !r.is("07_multimodal_tail") {
						t.Fatalf("%s: block of %v with %v is named %x, by the engine %x", r.Scenario, s.Tokens, s.Extra[i], parent, h)
					}
				}
			}
		})
	}
	t.Logf("%d runs, %d blocks", runs, blocks)
	if runs < 8 || blocks < 2000 {
		t.Error("too few")
	}
}

// laws hold in every event stream of such an engine.
type laws struct {
	form    fakeengine.Form
	rank    int
	room    int  // blocks that can hold something
	holes   bool // blocks were evicted by id
	reports bool // hits were published again
	drops   bool // a hit block is dropped again

	copies   map[enginehash.Digest]int
	contents map[enginehash.Digest]prefix
	children map[enginehash.Digest][]enginehash.Digest
	held     int
	lastTime float64

	shapes map[string]int
	counts map[string]int
}

func newLaws(form fakeengine.Form, rank, blocks int) *laws {
	return &laws{
		form: form, rank: rank, room: blocks - 1,
		copies:   map[enginehash.Digest]int{},
		contents: map[enginehash.Digest]prefix{},
		children: map[enginehash.Digest][]enginehash.Digest{},
		shapes:   map[string]int{},
		counts:   map[string]int{},
	}
}

func (l *laws) check(b *decodedBatch) error {
	if len(b.Events) == 0 || b.Rank != l.rank || b.Time <= l.lastTime {
		return fmt.Errorf("%d events, rank %d, time %v after %v", len(b.Events), b.Rank, b.Time, l.lastTime)
	}
	l.lastTime = b.Time
	l.counts["batches"]++
	for i, e := range b.Events {
		l.shapes[b.shapes[i]]++
		if err := l.event(e, i); err != nil {
			return fmt.Errorf("event %d of batch %d: %w", i, l.counts["batches"], err)
		}
		// Room is made before it is used, in each event.
		if l.held > l.room && !l.reports {
			return fmt.Errorf("%d blocks are held, there are %d", l.held, l.room)
		}
		if l.held == l.room {
			l.counts["events that left no room"]++
		}
	}
	if len(b.Events) == 1 && b.Events[0] == (fakeengine.Cleared{}) {
		l.counts["clears alone in a batch"]++
	}
	return nil
}

func (l *laws) event(e fakeengine.Event, at int) error {
	switch e := e.(type) {
	case *fakeengine.Stored:
		return l.stored(e)
	case *fakeengine.Removed:
		return l.removed(e)
	}
	if at != 0 {
		return fmt.Errorf("a clear that is not the first")
	}
	l.counts["clears"]++
	l.held = 0
	clear(l.copies)
	return nil
}

func (l *laws) stored(s *fakeengine.Stored) error {
	if n := len(s.Hashes); n == 0 || len(s.Tokens) != n*s.BlockSize || s.Medium != "GPU" || (l.form != fakeengine.FormArrays7 && len(s.Extra) != n) {
		return fmt.Errorf("%d hashes, %d tokens, blocks of %d, %d extra keys, medium %s", n, len(s.Tokens), s.BlockSize, len(s.Extra), s.Medium)
	}
	if s.Parent != nil && l.copies[*s.Parent] == 0 && !l.holes {
		return fmt.Errorf("parent %x is not held", *s.Parent)
	}
	parent := s.Parent
	for i := range s.Hashes {
		h := s.Hashes[i]
		var before prefix
		if parent != nil {
			before = prefix(*parent)
		}
		keys := fmt.Sprint(s.AdapterID)
		if s.Extra != nil && s.Extra[i] != nil {
			keys = fmt.Sprint(s.Extra[i])
		}
		content := before.extend(s.Tokens[i*s.BlockSize:(i+1)*s.BlockSize], keys)
		if known, ok := l.contents[h]; ok && known != content {
			return fmt.Errorf("%x names two blocks", h)
		} else if !ok && parent != nil {
			l.children[*parent] = append(l.children[*parent], h)
		}
		l.contents[h] = content
		if l.copies[h] > 0 {
			l.counts["stored, one of several"]++
		}
		l.copies[h]++
		l.held++
		l.counts["stored"]++
		parent = &s.Hashes[i]
	}
	return nil
}

func (l *laws) removed(r *fakeengine.Removed) error {
	if len(r.Hashes) != 1 || r.Medium != "GPU" {
		return fmt.Errorf("a removal of %d hashes, medium %s", len(r.Hashes), r.Medium)
	}
	h := r.Hashes[0]
	if l.copies[h] == 0 {
		return fmt.Errorf("%x is removed, but not held", h)
	}
	l.copies[h]--
	l.held--
	l.counts["removed"]++
	if l.copies[h] > 0 {
		l.counts["removed, one of several"]++
		return nil
	}
	if l.holes || l.drops {
		return nil
	}
	for _, c := range l.children[h] {
		if l.copies[c] > 0 {
			return fmt.Errorf("%x is removed before %x, which follows it", h, c)
		}
	}
	return nil
}

func recordedLaws(t *testing.T, recordings []*recording) {
	counts := map[string]int{}
	shapes := map[fakeengine.Form]map[string]int{}
	for _, r := range recordings {
		l := newLaws(r.form(), r.Rank, r.Blocks)
		l.holes, l.reports, l.drops = r.is("19_holes", "20_mix"), r.is("15_"), r.EAGLE
		r.batches(t, func(_ []byte, b *decodedBatch) {
			if err := l.check(b); err != nil {
				t.Fatalf("%s: %v", r.Scenario, err)
			}
		})
		add(counts, l.counts)
		if shapes[l.form] == nil {
			shapes[l.form] = map[string]int{}
		}
		add(shapes[l.form], l.shapes)
	}
	t.Logf("%d runs: %v", len(recordings), counts)
	for form, want := range shapesOf {
		if got := slices.Sorted(maps.Keys(shapes[form])); !slices.Equal(got, want) {
			t.Errorf("form %d: recorded shapes %v, want %v", form, got, want)
		}
	}
	atLeast(t, counts, map[string]int{
		"clears": 40, "clears alone in a batch": 10, "removed": 5000, "removed, one of several": 100,
		"stored, one of several": 100, "events that left no room": 20,
	})
}

// shapesOf are the shapes of events in each form.
var shapesOf = map[fakeengine.Form][]string{
	fakeengine.FormMaps: {
		"AllBlocksCleared{}",
		"BlockRemoved{block_hashes medium group_idx}",
		"BlockStored{block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx kv_cache_spec_kind}",
	},
	fakeengine.FormArrays12: {"AllBlocksCleared[1]", "BlockRemoved[4]", "BlockStored[12]"},
	fakeengine.FormArrays7:  {"AllBlocksCleared[1]", "BlockRemoved[3]", "BlockStored[7]"},
}

// TestLaws checks the laws of recorded runs on the fake engine.
func TestLaws(t *testing.T) {
	for form, shapes := range shapesOf {
		t.Run(fmt.Sprint("form ", form), func(t *testing.T) {
			cfg := fakeengine.Config{Blocks: 30, ChunkTokens: 48, MaxRunning: 4, Rank: 1, Encoding: fakeengine.Encoding{Form: form}}
			l, r := newLaws(form, cfg.Rank, cfg.Blocks), newRig(t, cfg)
			load := &traffic{random: rand.New(rand.NewPCG(8, 9)), blocks: 12, size: 16, memory: 6, salts: true}
			for range 3000 {
				if r.Waiting() < 3 {
					load.submit(r)
				}
				if load.disturb(r) {
					for r.Running()+r.Waiting() > 0 {
						r.step()
					}
					r.Reset()
				}
				r.step()
				load.collect()
			}
			for _, p := range r.payloads {
				b, err := decode(p)
				must(t, err)
				must(t, l.check(b))
			}
			t.Log(l.counts)
			if got := slices.Sorted(maps.Keys(l.shapes)); !slices.Equal(got, shapes) {
				t.Errorf("shapes %v, want %v", got, shapes)
			}
			atLeast(t, l.counts, map[string]int{
				"clears": 10, "clears alone in a batch": 10, "removed": 1000, "removed, one of several": 100,
				"stored, one of several": 100, "events that left no room": 10,
			})
		})
	}
}

func atLeast(t *testing.T, counts, least map[string]int) {
	t.Helper()
	for what, n := range least {
		if counts[what] < n {
			t.Errorf("%s: %d, want at least %d", what, counts[what], n)
		}
	}
}

func add(to, from map[string]int) {
	for k, n := range from {
		to[k] += n
	}
}
