package tokenize

import (
	"context"
	"fmt"
	"sync"
	"unicode/utf8"
)

// A BPE is a byte-pair encoder as a tokenizer.json describes it: added tokens, a
// normalizer, a pre-tokenizer, a model and a post-processor. Load, LoadPretrained,
// LoadTiktoken, Parse and ParseTiktoken make one. The zero value does not encode. It
// never changes, and is safe for concurrent use.
type BPE struct {
	plain, normalized *matcher // added tokens sought before and after normalizing; nil for none
	normalizer        normalizer
	pre               preTokenizer
	model             *model
	before, after     []uint32

	scratch sync.Pool // of *scratch
}

var _ Resumer = (*BPE)(nil)

// A scratch is the memory of one call.
type scratch struct {
	unchecked int // bytes encoded since the last pause

	text      []byte
	normal    normalScratch
	rewritten [maxSteps][]byte // by depth: a piece that a step has changed
	merge     mergeScratch
	words     wordCache
}

// keepBytes is the most of a scratch's memory that outlives a call, so that one
// huge word does not stay with the pool.
const keepBytes = 4 << 20

func (w *scratch) bytes() int {
	n := cap(w.text) + w.normal.bytes() + w.merge.bytes() + w.words.bytes()
	for _, b := range w.rewritten {
		n += cap(b)
	}
	return n
}

// checkEvery is how many bytes are encoded, and how many merges of one piece
// tried, between two pauses.
const checkEvery = 1 << 16

// A pauser is called in the midst of an encoding with the context of the call, and
// may let others go first. An error ends the encoding; the context's, if it is done.
type pauser func(context.Context) error

// A call is what a pause needs; the zero value does not pause.
type call struct {
	ctx   context.Context
	pause pauser
}

func (c *call) rest() error {
	if c.pause == nil {
		return nil
	}
	return c.pause(c.ctx)
}

// spend counts n bytes of work and pauses now and then.
func (w *scratch) spend(n int) error {
	if w.unchecked += n; w.unchecked < checkEvery {
		return nil
	}
	w.unchecked = 0
	return w.merge.rest()
}

// Encode implements [Tokenizer]. It returns ErrTextTooLong for a text of more
// than MaxText bytes. With room in dst it allocates nothing, unless the text has
// a single word of some ten thousands of bytes.
func (t *BPE) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	return t.encode(call{ctx, context.Context.Err}, dst, text, textStart, special)
}

// encode appends the ids of text, which stands at a place.
func (t *BPE) encode(c call, dst []uint32, text string, at place, special bool) ([]uint32, error) {
	if err := c.ctx.Err(); err != nil {
		return dst, err
	}
	w := t.scratch.Get().(*scratch)
	defer func() {
		w.merge.call = call{}
		if w.bytes() <= keepBytes {
			t.scratch.Put(w)
		}
	}()
	w.merge.call, w.unchecked = c, 0
	if err := w.setText(text); err != nil {
		return dst, err
	}

	ids := dst
	if special && at == textStart {
		ids = append(ids, t.before...)
	}
	ids, err := t.encodeText(w, ids, w.text, at)
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

// encodeText appends the ids of s, the whole text or the rest of it.
func (t *BPE) encodeText(w *scratch, dst []uint32, s []byte, at place) ([]uint32, error) {
	return t.plain.cut(w, dst, s, func(dst []uint32, from, to int) ([]uint32, error) {
		return t.encodeSegment(w, dst, s[from:to], at.of(from))
	})
}

// encodeSegment appends the ids of s, a text without plain added tokens.
func (t *BPE) encodeSegment(w *scratch, dst []uint32, s []byte, at place) ([]uint32, error) {
	s, err := t.normalizer.apply(&w.normal, s, at != inside)
	if err == nil {
		err = w.spend(len(s))
	}
	if err != nil {
		return nil, err
	}
	return t.normalized.cut(w, dst, s, func(dst []uint32, from, to int) ([]uint32, error) {
		return t.encodePieces(w, dst, s[from:to], 0, at.of(from))
	})
}

// encodePieces appends the ids of s, which the pre-tokenizer's steps from depth
// on have yet to cut.
func (t *BPE) encodePieces(w *scratch, dst []uint32, s []byte, depth int, at place) ([]uint32, error) {
	if depth == len(t.pre.steps) {
		if err := w.spend(len(s)); err != nil {
			return nil, err
		}
		return t.model.encode(w, dst, s)
	}
	step := &t.pre.steps[depth]
	if step.rewrite != nil {
		w.rewritten[depth] = step.rewrite(w.rewritten[depth][:0], s, at)
		s = w.rewritten[depth]
	}
	var err error
	for i := 0; i < len(s); {
		var to int
		from := i
		if step.behavior == isolated {
			to, _ = step.scan(s, i)
		} else {
			from, to = step.next(s, i)
		}
		if from < to {
			if dst, err = t.encodePieces(w, dst, s[from:to], depth+1, pieceStart); err != nil {
				return nil, err
			}
		}
		i = to
	}
	return dst, nil
}
