package kvindex_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/stats"
)

// Extra keys that no request can have match no request, and are counted.
func TestOddExtraKeys(t *testing.T) {
	ix := open(t)
	for i, odd := range []enginehash.Extra{
		{Kind: enginehash.ExtraBytes, Text: "embeddings"}, {Kind: enginehash.ExtraInt, Int: 7}, {Kind: enginehash.ExtraMedia, Text: "cat", Int: 99},
	} {
		q := fakeengine.NewPrompt(uint64(1+i), 16, 2)
		s := q.Stored(0, 2)
		s.Extra = [][]enginehash.Extra{nil, {odd}}
		ingest(t, ix, "a", s)
		if got := blocks(t, ix, "a", q); got != 1 {
			t.Errorf("extra key %+v: %d blocks, want 1", odd, got)
		}
	}
	if n := ix.Stats().Unscored; n != 3 {
		t.Errorf("%d unscored stores", n)
	}
}

// Media of another form than the profile's match no request, and are counted.
func TestMediaOfAnotherForm(t *testing.T) {
	forms := []kvindex.MediaForm{kvindex.MediaOffsets, kvindex.MediaBare, kvindex.MediaPad}
	for i, extra := range []enginehash.Extra{enginehash.Media("11", 3), enginehash.Text("11")} {
		for _, form := range forms {
			ix := open(t, withProfile(kvindex.Profile{Media: form}))
			p := fakeengine.NewPrompt(1, 16, 2)
			s := p.Stored(0, 2)
			s.Extra = [][]enginehash.Extra{nil, {extra}}
			ingest(t, ix, "a", s)
			want, unscored := 1, uint64(1)
			if form == forms[i] {
				want, unscored = 2, 0
			}
			q := kvindex.Request{Tokens: p.Tokens, Media: []kvindex.Media{{Hash: "11", Offset: 19, Length: 2}}}
			if got := score(t, ix, q)[0].MatchedBlocks; got != want || ix.Stats().Unscored != unscored {
				t.Errorf("%+v, form %d: %d blocks, want %d, %d unscored", extra, form, got, want, ix.Stats().Unscored)
			}
			if got := blocks(t, ix, "a", p); got != 1 {
				t.Errorf("%+v, form %d: %d blocks without media", extra, form, got)
			}
		}
	}
}

// Pairs that do not overlap match no prompt.
func TestPairsOfNoPrompt(t *testing.T) {
	ix := open(t)
	tokens := fakeengine.NewPrompt(1, 1, 33).Tokens
	var pairs []uint32
	for i := range 32 {
		pairs = append(pairs, tokens[i], tokens[i+1])
	}
	pairs[32+2*7+1]++
	e := events.Event{Kind: events.Stored, Hashes: []uint64{1, 2}, Tokens: pairs, Pairs: true, BlockSize: 16}
	must(t, ix.ApplyBatch("a", "m", &events.Batch{Events: []events.Event{e}}))
	if got := score(t, ix, kvindex.Request{Tokens: tokens})[0].MatchedBlocks; got != 1 {
		t.Errorf("%d blocks with pairs that are no prompt's", got)
	}
	if n := ix.Stats().Unscored; n != 0 {
		t.Errorf("%d unscored", n)
	}
}

// A store of hashes alone does not prove that blocks have no pairs: a prompt that is routed later
// counts in pairs, and its blocks confirm it. So it is for a restored pod.
func TestPairsByHashAlone(t *testing.T) {
	var batches []*events.Batch
	var prompts [][]uint32
	for n := range uint64(2) {
		tokens := fakeengine.NewPrompt(n, 1, 65).Tokens
		e := events.Event{Kind: events.Stored, Pairs: true, BlockSize: 16}
		for i := range 64 {
			e.Tokens = append(e.Tokens, tokens[i], tokens[i+1])
		}
		for i := range uint64(4) {
			e.Hashes = append(e.Hashes, 10*n+i)
		}
		prompts, batches = append(prompts, tokens), append(batches, &events.Batch{Events: []events.Event{e}})
	}
	for _, restored := range []bool{false, true} {
		ix := open(t)
		must(t, ix.ApplyBatch("a", "m", batches[0]))
		if restored {
			ix = restore(t, ix)
		}
		must(t, ix.ApplyBatch("a", "m", &events.Batch{Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{3}, BlockSize: 16, Medium: "CPU"}}}))
		sends(t, ix, prompts[1], 0)
		most, _ := predicted(t, ix, prompts[1], 0)
		must(t, ix.ApplyBatch("a", "m", batches[1]))
		if _, cached := predicted(t, ix, prompts[1], 0); most != cached || ix.Stats().Predictions.Confirmed != 1 {
			t.Errorf("restored %v: predicted %d, cached %d: %+v", restored, most, cached, ix.Stats().Predictions)
		}
	}
}

// A pod with many block sizes takes no room from others.
func TestVariantsAreFew(t *testing.T) {
	ix := open(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		if pod == "bare" {
			return kvindex.Profile{Media: kvindex.MediaBare}
		}
		return kvindex.Profile{Media: kvindex.MediaPad}
	}))
	odd := 0
	for size := 1; size <= 600; size++ {
		p := fakeengine.NewPrompt(uint64(size), size, 1)
		ingest(t, ix, "bare", p.Stored(0, 1))
		if blocks(t, ix, "bare", p) == 0 {
			odd++
		}
	}
	if got := ix.Stats(); odd != 600-9 || got.Unscored != uint64(odd) || got.Counts.Dropped > 0 {
		t.Errorf("%d sizes are not scored: %+v", odd, got)
	}
	var batch events.Batch
	tokens := fakeengine.NewPrompt(1, 1, 1000).Tokens
	for _, size := range []int{1, 2, 4, 8, 16} {
		for _, e := range []events.Event{{Tokens: tokens[:size]}, {Tokens: tokens[:2*size], Pairs: true}} {
			e.Kind, e.BlockSize, e.Hashes = events.Stored, size, []uint64{uint64(len(batch.Events))}
			batch.Events = append(batch.Events, e)
		}
	}
	for _, pod := range []string{"a", "bare"} {
		must(t, ix.ApplyBatch(pod, "m", &batch))
	}
	if got := ix.Stats(); got.Counts.Dropped > 0 || got.Unscored != uint64(odd)+5 {
		t.Errorf("%+v", got)
	}
}

// A salt is published with the first block of a chain or with each: later blocks belong to the
// first one's root.
func TestASaltedChainKeepsItsRoot(t *testing.T) {
	for name, extended := range map[string]string{"without the salt": "", "with it": "pepper", "with another": "sugar"} {
		ix := open(t)
		p := fakeengine.NewPrompt(1, 16, 3)
		e := func(from, to int, salt string) events.Event {
			e := events.Event{Kind: events.Stored, Tokens: p.Tokens[from*16 : to*16], BlockSize: 16, Salt: salt, HasParent: from > 0}
			for i := from; i < to; i++ {
				e.Hashes = append(e.Hashes, p.Hash+uint64(i))
			}
			if from > 0 {
				e.Parent = p.Hash + uint64(from-1)
			}
			return e
		}
		for _, b := range []events.Batch{{Events: []events.Event{e(0, 1, "pepper")}}, {Events: []events.Event{e(1, 3, extended)}}} {
			must(t, ix.ApplyBatch("a", "m", &b))
		}
		for salt, want := range map[string]int{"pepper": 3, "": 0, "sugar": 0} {
			if got := score(t, ix, kvindex.Request{Tokens: p.Tokens, Salt: salt})[0].MatchedBlocks; got != want {
				t.Errorf("extended %s, salt %q: %d blocks, want %d", name, salt, got, want)
			}
		}
	}
}

// vLLM gives the first block the same extra key for an adapter and for a salt of the same name.
func TestASaltNamedLikeAnAdapter(t *testing.T) {
	ix := open(t)
	e, err := fakeengine.New(fakeengine.Config{Model: "m", Publish: func(p []byte) { ix.Ingest("a", "m", p) }})
	must(t, err)
	p := fakeengine.NewPrompt(1, 16, 3)
	for _, r := range []fakeengine.Request{{Tokens: p.Tokens[:17], Adapter: "x"}, {Tokens: p.Tokens, Salt: "x"}} {
		if _, err := e.Submit(r); err != nil {
			t.Fatal(err)
		}
		e.Drain()
	}
	if got := score(t, ix, kvindex.Request{Tokens: p.Tokens, Adapter: "x"})[0]; got.MatchedBlocks*16 > e.Held(p.Tokens, "x", "") {
		t.Errorf("claims %d blocks, the engine holds %d tokens", got.MatchedBlocks, e.Held(p.Tokens, "x", ""))
	}
}

// fields reads the fields of batches from fuzzed bytes, and zeros behind their end.
type fields []byte

func (f *fields) byte() byte {
	if len(*f) == 0 {
		return 0
	}
	b := (*f)[0]
	*f = (*f)[1:]
	return b
}

// number is mostly small.
func (f *fields) number() int {
	switch b := f.byte(); {
	case b < 250:
		return int(b)
	case len(*f) < 8:
		return -int(b)
	default:
		n := int(binary.LittleEndian.Uint64(*f))
		*f = (*f)[8:]
		return n
	}
}

func (f *fields) bool() bool { return f.byte()&1 == 1 }

func (f *fields) text() string {
	return []string{"", "lora", "7", "pepper", "GPU", "cpu", "REMOTE", "sliding_window", "mamba", "\xff"}[f.byte()%10]
}

// rarely is seldom above 0.
func (f *fields) rarely() int {
	if f.byte() < 230 {
		return 0
	}
	return f.number()
}

func (f *fields) event() events.Event {
	e := events.Event{
		Kind: events.Kind(f.byte() % 5), Parent: uint64(f.byte() % 64), HasParent: f.bool(), Pairs: f.bool(),
		BlockSize: []int{1, 2, 3, 16, 48, 528, f.number()}[f.byte()%7], Adapter: f.text(), Salt: f.text(), Medium: []string{"", "GPU", "gpu", f.text()}[f.byte()%4],
		HasExtra: f.bool(), Group: f.rarely(), GroupKind: f.text(), Window: f.number(), Reused: f.bool(),
	}
	if !e.HasParent {
		e.Parent = uint64(f.rarely())
	}
	if f.rarely() > 0 {
		e.Locality, e.Ownership = f.text(), f.text()
	}
	for range f.byte() % 8 {
		e.Hashes = append(e.Hashes, uint64(f.byte()%64))
	}
	tokens := int(f.byte()%9)*min(max(e.BlockSize, 0), 1000) + int(f.byte()%16/15)
	if e.Pairs {
		tokens *= 2
	}
	e.Tokens = make([]uint32, tokens)
	for range f.byte() % 8 {
		e.Extra = append(e.Extra, events.ExtraKey{Block: int(f.byte() % 4), Kind: events.ExtraKind(f.byte() % 7), Text: f.text(), Int: int64(f.number())})
	}
	if f.bool() {
		e.Remaining = make([]uint32, len(e.Hashes))
	}
	return e
}

// batch mostly has valid events.
func (f *fields) batch() (b events.Batch) {
	for len(*f) > 0 && len(b.Events) < 64 {
		e := f.event()
		if one := (events.Batch{Events: []events.Event{e}}); f.byte() == 255 || one.Validate() == nil {
			b.Events = append(b.Events, e)
		}
	}
	return b
}

// applyAny applies a batch and scores its blocks. The batch must be rejected exactly if it is
// invalid.
func applyAny(t *testing.T, b *events.Batch, form byte) stats.Stats {
	t.Helper()
	ix := open(t, withProfile(kvindex.Profile{Media: kvindex.MediaForm(form % 3), Copies: kvindex.Copies(form / 3 % 4)}))
	defer ix.Close()
	allowed := b.Validate()
	if err := ix.ApplyBatch("a", "m", b); (err == nil) != (allowed == nil) {
		t.Fatalf("%v, and the batch is %v", err, allowed)
	}
	if allowed != nil {
		return stats.Stats{}
	}
	tokens := make([]uint32, 1100)
	for _, q := range []kvindex.Request{{}, {Adapter: "lora"}, {Salt: "pepper", Media: []kvindex.Media{{Hash: "7", Offset: 5, Length: math.MaxInt}}}} {
		q.Model, q.Tokens, q.Pods = "m", tokens, []string{"a"}
		var a kvindex.Answer
		if err := ix.ScoreRequest(ctx, &q, &a); err != nil || a.Pods[0].CachedTokens >= len(tokens) {
			t.Fatal(err, a)
		}
	}
	return ix.Stats()
}

func TestApplyAnyBatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var valid, stored, removed, unscored, placed int
	for i := range choose(1000, 3000) {
		data := make(fields, 20+r.IntN(3000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		b := data.batch()
		s := applyAny(t, &b, byte(i))
		if s.Messages > 0 {
			valid++
		}
		stored += int(s.Counts.Stored)
		removed += int(s.Counts.Removed - s.Counts.UnknownRemove)
		unscored += int(s.Unscored)
		placed += s.Index.Prefixes
	}
	t.Logf("%d valid batches: %d hashes stored, %d removed, %d stores unscored, %d prefixes", valid, stored, removed, unscored, placed)
	if min(valid, stored, removed, unscored, placed) < choose(20, 100) {
		t.Error("too little happened")
	}
}

// FuzzApplyBatch: each valid batch can be applied, and its blocks can be scored.
func FuzzApplyBatch(f *testing.F) {
	r := rand.New(rand.NewPCG(2, 2))
	for form := range 12 {
		data := make([]byte, 60*form)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data, byte(form))
	}
	f.Fuzz(func(t *testing.T, data []byte, form byte) {
		in := fields(data)
		b := in.batch()
		applyAny(t, &b, form)
	})
}
