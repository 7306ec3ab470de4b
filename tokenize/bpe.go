package tokenize

import (
	"context"
	"fmt"
	"sync"
	"unicode/utf8"
)

// A BPE is a byte-pair encoder as tokenizer.json describes it: added tokens, a
// normalizer, a pre-tokenizer, a model and a post-processor. Load, Parse and
// their kin make one; the zero value does not encode. It is read-only, and safe
// for concurrent use.
type BPE struct {
	plain, normalized *matcher // added tokens sought before and after normalizing; nil for none
	normalizer        normalizer
	pre               preTokenizer
	model             *model
	before, after     []uint32

	scratch sync.Pool // of *scratch
}

var _ Tokenizer = (*BPE)(nil)

// A scratch is the memory of one call.
type scratch struct {
	ctx       context.Context // of the call
	unchecked int             // bytes encoded since ctx was looked at

	text      []byte
	normal    normalScratch
	rewritten [maxSteps][]byte // by depth: a piece that a step has changed
	merge     mergeScratch
}

// keepBytes is the most of a scratch's memory that outlives a call, so that one
// huge word does not stay with the pool.
const keepBytes = 4 << 20

func (w *scratch) bytes() int {
	n := cap(w.text) + w.normal.bytes() + w.merge.bytes()
	for _, b := range w.rewritten {
		n += cap(b)
	}
	return n
}

// checkEvery is how many bytes are encoded, and how many merges of one piece
// tried, between two looks at the context.
const checkEvery = 1 << 16

// spend counts n bytes of work and returns the context's error once it is done.
func (w *scratch) spend(n int) error {
	if w.unchecked += n; w.unchecked < checkEvery {
		return nil
	}
	w.unchecked = 0
	return w.ctx.Err()
}

// Encode implements [Tokenizer]. It returns ErrTextTooLong for a text of more
// than MaxText bytes. With room in dst it allocates nothing, unless the text has
// a single word of some ten thousands of bytes.
func (t *BPE) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	w := t.scratch.Get().(*scratch)
	defer func() {
		w.ctx = nil
		if w.bytes() <= keepBytes {
			t.scratch.Put(w)
		}
	}()
	w.ctx, w.unchecked = ctx, 0
	if err := w.setText(text); err != nil {
		return dst, err
	}

	ids := dst
	if special {
		ids = append(ids, t.before...)
	}
	ids, err := t.encodeText(w, ids, w.text)
	if err != nil {
		return dst, err
	}
	if special {
		ids = append(ids, t.after...)
	}
	return ids, nil
}

// setText takes s with each byte that is not UTF-8 as U+FFFD.
func (w *scratch) setText(s string) error {
	n := len(s)
	w.text = w.text[:0]
	if n <= MaxText && !utf8.ValidString(s) {
		for _, r := range s {
			w.text = utf8.AppendRune(w.text, r)
		}
		n = len(w.text)
	}
	if n > MaxText {
		return fmt.Errorf("tokenize: %w: %d bytes, at most %d", ErrTextTooLong, n, MaxText)
	}
	if len(w.text) == 0 {
		w.text = append(w.text, s...)
	}
	return nil
}

// encodeText appends the ids of s, the whole text.
func (t *BPE) encodeText(w *scratch, dst []uint32, s []byte) ([]uint32, error) {
	return t.plain.cut(dst, s, func(dst []uint32, from, to int) ([]uint32, error) {
		return t.encodeSegment(w, dst, s[from:to], from == 0)
	})
}

// encodeSegment appends the ids of s, a text without plain added tokens. first
// says whether it begins the whole text.
func (t *BPE) encodeSegment(w *scratch, dst []uint32, s []byte, first bool) ([]uint32, error) {
	s = t.normalizer.apply(&w.normal, s)
	return t.normalized.cut(dst, s, func(dst []uint32, from, to int) ([]uint32, error) {
		return t.encodePieces(w, dst, s[from:to], 0, first && from == 0)
	})
}

// encodePieces appends the ids of s, which the pre-tokenizer's steps from depth
// on have yet to cut.
func (t *BPE) encodePieces(w *scratch, dst []uint32, s []byte, depth int, first bool) ([]uint32, error) {
	if depth == len(t.pre.steps) {
		if err := w.spend(len(s)); err != nil {
			return nil, err
		}
		return t.model.encode(w, dst, s)
	}
	step := &t.pre.steps[depth]
	if step.rewrite != nil {
		w.rewritten[depth] = step.rewrite(w.rewritten[depth][:0], s, first)
		s = w.rewritten[depth]
	}
	var err error
	for i := 0; i < len(s); {
		from, to, next := step.next(s, i)
		if from < to {
			if dst, err = t.encodePieces(w, dst, s[from:to], depth+1, first && from == 0); err != nil {
				return nil, err
			}
		}
		i = next
	}
	return dst, nil
}
