package tokenize

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"unicode/utf8"
)

// A BPE is a byte-pair encoder as a tokenizer.json describes it: added tokens, a
// normalizer, a pre-tokenizer, a model and a post-processor. Load, LoadPretrained,
// LoadTiktoken and Parse make one. The zero value does not encode. It
// never changes, and is safe for concurrent use.
type BPE struct {
	plain, normalized *matcher // added tokens searched before and after normalizing; nil for none
	normalizer        normalizer
	pre               preTokenizer
	model             *model
	before, after     []uint32
	identity          [sha256.Size]byte

	scratch sync.Pool // of *scratch
}

var _ Identifier = (*BPE)(nil)

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

// A pauser is called during an encoding with the context of the call, and may let others go
// first. An error ends the encoding; the context's, if it is done.
type pauser func(context.Context) error

// A call is the input of a pause; the zero value does not pause.
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

// Encode implements [Tokenizer]. With room in dst it allocates nothing, unless the text
// has a single word of some ten thousands of bytes.
//
// A text of more than 16 MiB of UTF-8, some four million tokens of English, is
// ErrTextTooLong. The bound holds for the text as it comes, and again after normalizing;
// SentencePiece makes three bytes of each space. Encoding takes up to 60 bytes of memory for
// each byte of the longest word, and a hostile text can be one word. To bound this memory,
// bound the size of requests, or use PoolConfig.MaxText.
func (t *BPE) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	ids, _, err := t.encode(call{ctx, context.Context.Err}, dst, Passage{Text: text, Special: special})
	return ids, err
}

// encode is EncodeMarks.
func (t *BPE) encode(c call, dst []uint32, p Passage) ([]uint32, []Mark, error) {
	if p.From < 0 || p.From > len(p.Text) {
		return dst, nil, fmt.Errorf("tokenize: position %d of a text of %d bytes", p.From, len(p.Text))
	}
	if err := c.ctx.Err(); err != nil {
		return dst, nil, err
	}
	if err := checkLength(p.Text); err != nil {
		return dst, nil, err
	}
	w := t.scratch.Get().(*scratch)
	defer func() {
		w.merge.call = call{}
		if w.bytes() <= keepBytes {
			t.scratch.Put(w)
		}
	}()
	w.merge.call, w.unchecked, w.normal.made = c, 0, [maxSteps]int{}
	if p.From > 0 && len(p.Text) > uncounted && len(t.normalizer.steps) > 0 {
		if err := t.count(w, p.Text[:p.From]); err != nil {
			return dst, nil, err
		}
	}

	ids, kept, err := t.encodePassage(w, dst, p)
	if err != nil {
		return dst, nil, err
	}
	return ids, kept, nil
}

// encodePassage appends the ids of p, which is checked except for the marks.
func (t *BPE) encodePassage(w *scratch, dst []uint32, p Passage) (ids []uint32, kept []Mark, err error) {
	ids, kept = dst, p.Marks[:0]
	if p.Special && p.From == 0 {
		ids = append(ids, t.before...)
	}
	done, last, far := p.From, p.From, maxWalk // text[:done] is encoded
	for _, m := range p.Marks {
		if m.At < last || m.At > len(p.Text) {
			return nil, nil, fmt.Errorf("tokenize: a mark at %d behind %d, of a text of %d bytes", m.At, last, len(p.Text))
		}
		m.Resume = t.resume(p.Text[:m.At], max(last, done+1, m.At-far))
		last = m.At
		if m.Resume == 0 {
			far = max(far/2, minWalk)
			continue
		}
		far = min(2*far, maxWalk)
		if ids, err = t.encodeText(w, ids, p.Text[done:m.Resume], done); err != nil {
			return nil, nil, err
		}
		done = m.Resume
		m.Tokens = len(ids) - len(dst)
		kept = append(kept, m)
	}
	if ids, err = t.encodeText(w, ids, p.Text[done:], done); err != nil {
		return nil, nil, err
	}
	if p.Special {
		ids = append(ids, t.after...)
	}
	return ids, kept, nil
}

// A place to resume from is searched in the last maxWalk bytes before a mark. If the last
// marks had none, it is searched in half as many, and half again, but in minWalk: in a text
// without places the search would take as long as the encoding.
const (
	maxWalk = 256
	minWalk = 16
)

// checkLength returns ErrTextTooLong for a text of more than maxText bytes, each that
// is not UTF-8 as U+FFFD.
func checkLength(text string) error {
	n := len(text)
	if n <= maxText && n > maxText/len("\ufffd") && !utf8.ValidString(text) {
		n = 0
		for _, r := range text {
			n += utf8.RuneLen(r)
		}
	}
	if n > maxText {
		return fmt.Errorf("tokenize: %w: %d bytes, at most %d", ErrTextTooLong, n, maxText)
	}
	return nil
}

// setText sets the text to s, with each byte that is not UTF-8 as U+FFFD.
func (w *scratch) setText(s string) {
	w.text = w.text[:0]
	if utf8.ValidString(s) {
		w.text = append(w.text, s...)
		return
	}
	for _, r := range s {
		w.text = utf8.AppendRune(w.text, r)
	}
}

// uncounted is the length of the longest text whose skipped beginning does not count for the
// bound on normalized text. The normalizers of known families make at most eleven bytes of
// one, so that such a text stays within maxText.
const uncounted = maxText / 16

// count counts the bytes of s, the beginning of a text, when normalized.
func (t *BPE) count(w *scratch, s string) error {
	w.setText(s)
	_, err := t.plain.cut(w, nil, w.text, func(dst []uint32, from, to int) ([]uint32, error) {
		_, err := t.normalizer.apply(&w.normal, w.text[from:to], true)
		if err == nil {
			err = w.spend(to - from)
		}
		return dst, err
	})
	return err
}

// encodeText appends the ids of s, a part of a text that begins at from.
func (t *BPE) encodeText(w *scratch, dst []uint32, s string, from int) ([]uint32, error) {
	w.setText(s)
	at := textStart
	if from > 0 {
		at = inside
	}
	return t.plain.cut(w, dst, w.text, func(dst []uint32, from, to int) ([]uint32, error) {
		return t.encodeSegment(w, dst, w.text[from:to], at.of(from))
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
