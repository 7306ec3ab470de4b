package kvindex_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

// fields takes the fields of batches from fuzzed bytes; behind their end all is
// zero.
type fields []byte

func (f *fields) byte() byte {
	if len(*f) == 0 {
		return 0
	}
	b := (*f)[0]
	*f = (*f)[1:]
	return b
}

// number is small most of the time, or anything.
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

// rarely is seldom more than 0.
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

// batch has valid events, and now and then another.
func (f *fields) batch() (b events.Batch) {
	for len(*f) > 0 && len(b.Events) < 64 {
		e := f.event()
		if one := (events.Batch{Events: []events.Event{e}}); f.byte() == 255 || one.Validate() == nil {
			b.Events = append(b.Events, e)
		}
	}
	return b
}

// applyAny applies a batch and asks for it. It must be refused if it is not
// valid, and for no other reason.
func applyAny(t *testing.T, b *events.Batch, form byte) kvindex.Stats {
	t.Helper()
	ix := open(t, withProfile(kvindex.Profile{Media: kvindex.MediaForm(form % 3), Copies: kvindex.Copies(form / 3 % 4)}))
	defer ix.Close()
	allowed := b.Validate()
	if err := ix.ApplyBatch("a", "m", b); (err == nil) != (allowed == nil) {
		t.Fatalf("%v, and the batch is %v", err, allowed)
	}
	if allowed != nil {
		return kvindex.Stats{}
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
	for i := range 3000 {
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
	if min(valid, stored, removed, unscored, placed) < 100 {
		t.Error("too little happened")
	}
}

// FuzzApplyBatch: whatever batch may be applied can be, and then be asked for.
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
