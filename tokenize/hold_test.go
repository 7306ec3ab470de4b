package tokenize_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kvindex/kvindex/tokenize"
)

// hold returns the tokenizer that a pool holds for model.
func hold(t *testing.T, p *tokenize.Pool, model string) tokenize.Marker {
	t.Helper()
	held, err := p.Tokenizer(model).(tokenize.Holder).Hold(t.Context(), "the wall")
	must(t, err)
	return held.(tokenize.Marker)
}

// another returns tiny.json with other ids.
func another(tb testing.TB) []byte {
	return variant(tb, map[string]any{"pre_tokenizer": map[string]any{
		"type": "Metaspace", "replacement": "\u0120", "prepend_scheme": "always", "split": true,
	}}, nil)
}

// TestHold: a held tokenizer stays the same through an eviction and a new file under its name.
func TestHold(t *testing.T) {
	dir := tinies(t, 2)
	tiny, other := loadTiny(t), parse(t, another(t))
	const text = "the wall of the harbour"
	want, wantOther := encode(t, tiny, text, true), encode(t, other, text, true)
	if slices.Equal(want, wantOther) {
		t.Fatal("both give the same ids")
	}
	p := openPool(t, tokenize.PoolConfig{Find: finds(dir), Memory: max(tiny.Size(), other.Size())})
	first := hold(t, p, "0")
	check := func(when string, h tokenize.Identifier, want []uint32, identity [32]byte) {
		t.Helper()
		if got := encode(t, h, text, true); !slices.Equal(got, want) || h.Identity() != identity {
			t.Errorf("%s: %v of %x, want %v of %x", when, got, h.Identity(), want, identity)
		}
	}
	check("at first", first, want, tiny.Identity())
	if got := p.Stats(); got.Loads != 1 || got.Waiting != 0 || got.Encoding != 0 {
		t.Errorf("%+v", got)
	}
	hold(t, p, "1")
	if got := p.Stats(); got.Evictions != 1 || got.Tokenizers != 1 {
		t.Errorf("%+v", got)
	}
	check("evicted", first, want, tiny.Identity())
	if got := p.Stats(); got.Loads != 2 {
		t.Errorf("%+v", got)
	}
	check("loaded again", hold(t, p, "0"), want, tiny.Identity())
	must(t, os.WriteFile(filepath.Join(dir, "0"), another(t), 0o600))
	must(t, p.Preload(t.Context(), "0"))
	check("another file", hold(t, p, "0"), wantOther, other.Identity())
	check("another file meanwhile", first, want, tiny.Identity())
	if got := encode(t, p.Tokenizer("0"), text, true); !slices.Equal(got, wantOther) {
		t.Errorf("not held: %v", got)
	}
	if got, want := first.Resume(text), tiny.Resume(text); got != want {
		t.Errorf("resumes at %d, want %d", got, want)
	}
}

// TestHoldFails: Hold returns the errors of Encode, in the same order.
func TestHoldFails(t *testing.T) {
	dir := tinies(t, 1)
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		p := openPool(t, tokenize.PoolConfig{MaxText: 100_000, Find: func(_ context.Context, model string) (string, error) {
			<-proceed
			return filepath.Join(dir, model), nil
		}})
		p.SetMaxWaiting(1 << 20)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		compare := func(ctx context.Context, model, text string, want error) {
			t.Helper()
			_, err := p.Tokenizer(model).Encode(ctx, nil, text, true)
			held, holdErr := p.Tokenizer(model).(tokenize.Holder).Hold(ctx, text)
			if !errors.Is(err, want) || fmt.Sprint(err) != fmt.Sprint(holdErr) || held != nil {
				t.Errorf("%s, %d bytes: Hold %v with %v, Encode %v, want %v", model, len(text), holdErr, held, err, want)
			}
		}
		long := strings.Repeat("a", 100_001)
		compare(ended, "0", long, context.Canceled)
		compare(t.Context(), "0", long, tokenize.ErrTextTooLong)
		var waits sync.WaitGroup
		for range 32 {
			waits.Go(func() { p.Tokenizer("0").Encode(t.Context(), nil, long[:100_000], true) })
		}
		synctest.Wait()
		compare(t.Context(), "0", long[:100_000], tokenize.ErrBusy)
		close(proceed)
		waits.Wait()
		compare(t.Context(), "none", "a", fs.ErrNotExist)

		h := hold(t, p, "0")
		for name, encode := range map[string]func(ctx context.Context, dst []uint32, text string) ([]uint32, error){
			"Encode": func(ctx context.Context, dst []uint32, text string) ([]uint32, error) {
				return h.Encode(ctx, dst, text, true)
			},
			"EncodeMarks": func(ctx context.Context, dst []uint32, text string) ([]uint32, error) {
				ids, _, err := h.EncodeMarks(ctx, dst, tokenize.Passage{Text: text, Special: true, Marks: []tokenize.Mark{{At: 1}}})
				return ids, err
			},
		} {
			dst := []uint32{7}
			for _, c := range []struct {
				ctx  context.Context
				text string
				want error
			}{{ended, long, context.Canceled}, {t.Context(), long, tokenize.ErrTextTooLong}, {ended, "a", context.Canceled}} {
				if ids, err := encode(c.ctx, dst, c.text); !errors.Is(err, c.want) || !slices.Equal(ids, dst) {
					t.Errorf("%s: %v, %v, want %v", name, ids, err, c.want)
				}
			}
		}
		p.Close()
		compare(t.Context(), "0", "a", tokenize.ErrPoolClosed)
		if ids, kept, err := h.EncodeMarks(t.Context(), nil, tokenize.Passage{Text: "the wall", Special: true, Marks: []tokenize.Mark{{At: 8}}}); err != tokenize.ErrPoolClosed || ids != nil || kept != nil {
			t.Errorf("after Close: %v, %v, %v", ids, kept, err)
		}
	})
}

// TestHoldVisits: an encoding with marks is inside the gate all the time, with the bytes that it
// encodes. Hold is not.
func TestHoldVisits(t *testing.T) {
	p := openPool(t, tokenize.PoolConfig{Find: finds(tinies(t, 1)), Encodings: 1})
	h := hold(t, p, "0")
	text := strings.Repeat("the wall of the harbour ", tokenize.LongText/8)
	half := h.Resume(text[:len(text)/2])
	for _, from := range []int{0, half} {
		var marks []tokenize.Mark
		for at := half + 1<<10; at <= len(text); at += 1 << 10 {
			marks = append(marks, tokenize.Mark{At: at})
		}
		looks := 0
		ctx := turns{t.Context(), func() {
			if looks++; looks == 1 {
				return // before the gate
			}
			if got, want := p.Begun(), int64(len(text)-from); got != want || p.Stats().Encoding != 1 {
				t.Errorf("look %d: %d bytes have begun, want %d", looks, got, want)
			}
			hold(t, p, "0")
		}}
		if _, kept, err := h.EncodeMarks(ctx, nil, tokenize.Passage{Text: text, From: from, Special: true, Marks: marks}); err != nil || len(kept) != len(marks) {
			t.Fatalf("%d marks of %d, %v", len(kept), len(marks), err)
		}
		if looks < 3 {
			t.Errorf("%d looks", looks)
		}
		looks = 0
		text := text[:from+tokenize.LongText/8]
		ctx.look = func() { looks++ }
		if _, _, err := h.EncodeMarks(ctx, nil, tokenize.Passage{Text: text, From: from, Special: true, Marks: []tokenize.Mark{{At: from + 2000}, {At: len(text)}}}); err != nil || looks != 2 {
			t.Errorf("a short text: %d looks, %v", looks, err)
		}
	}
	holder := p.Tokenizer("0").(tokenize.Holder)
	if got := testing.AllocsPerRun(20, func() {
		if _, err := holder.Hold(context.Background(), text); err != nil {
			t.Fatal(err)
		}
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestHoldIsAUse: Hold makes a tokenizer the most recently used one.
func TestHoldIsAUse(t *testing.T) {
	size := loadTiny(t).Size()
	p := openPool(t, tokenize.PoolConfig{Find: finds(tinies(t, 3)), Memory: 2*size + size/2})
	hold(t, p, "0")
	hold(t, p, "1")
	hold(t, p, "0")
	hold(t, p, "2") // evicts 1
	hold(t, p, "0")
	if got := p.Stats(); got.Loads != 3 || got.Evictions != 1 {
		t.Errorf("%+v", got)
	}
}

// TestHoldRaces: with room for one of three models, and one that changes its file at each turn, all
// results of a request come from one file.
func TestHoldRaces(t *testing.T) {
	dir := tinies(t, 3)
	files := []*tokenize.BPE{loadTiny(t), parse(t, another(t))}
	contents := [][]byte{readTiny(t), another(t)}
	const text = "the wall of the harbour, and the boats that come and go"
	p := openPool(t, tokenize.PoolConfig{Find: finds(dir), Memory: max(files[0].Size(), files[1].Size()), Encodings: 2})
	each := 150
	if testing.Short() {
		each = 30
	}
	var of [2]atomic.Int64
	var callers sync.WaitGroup
	for caller := range 8 {
		r := rand.New(rand.NewPCG(31, uint64(caller)))
		callers.Go(func() {
			for i := range each {
				if caller == 0 {
					path := filepath.Join(dir, "new")
					if err := os.WriteFile(path, contents[i%2], 0o600); err != nil {
						t.Error(err)
					}
					if err := os.Rename(path, filepath.Join(dir, "0")); err != nil {
						t.Error(err)
					}
					if err := p.Preload(t.Context(), "0"); err != nil {
						t.Error(err)
					}
				}
				held, err := p.Tokenizer(fmt.Sprint(r.IntN(3))).(tokenize.Holder).Hold(t.Context(), text)
				if err != nil {
					t.Error(err)
					continue
				}
				which := slices.IndexFunc(files, func(f *tokenize.BPE) bool { return f.Identity() == held.Identity() })
				if which < 0 {
					t.Errorf("identity %x", held.Identity())
					continue
				}
				of[which].Add(1)
				var n markCounts
				all := n.checkMarks(t, held.(tokenize.Marker), text, true, textMark{}, []int{20, len(text)})
				for _, k := range all {
					n.checkMarks(t, held.(tokenize.Marker), text, true, k, nil)
				}
				if got := encode(t, held, text, true); !slices.Equal(got, encode(t, files[which], text, true)) {
					t.Errorf("file %d: %v", which, got)
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d and %d requests, %+v", of[0].Load(), of[1].Load(), p.Stats())
	if of[0].Load() == 0 || of[1].Load() == 0 || p.Stats().Evictions < uint64(each) {
		t.Error("too few of one kind")
	}
}
