package tokenize

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// A BPE is a byte-level byte-pair encoder: GPT-2's, Llama 3's and those that
// have their form. Load and Parse make one; the zero value does not encode. It
// is read-only, and safe for concurrent use.
type BPE struct {
	added         []*matcher // each looks at what those before it left
	split         splitter
	prefixSpace   bool // whether text between added tokens begins with a space
	before, after []uint32

	bytes   [256]uint32       // the id of each byte
	words   map[string]uint32 // the pieces that are one token without merging
	longest int               // bytes of the longest of words
	merges  *mergeTable

	scratch sync.Pool // of *scratch
}

var _ Tokenizer = (*BPE)(nil)

// checkEvery is how many bytes are encoded, and how many merges of one piece
// tried, between two looks at the context.
const checkEvery = 1 << 16

// Encode implements [Tokenizer]. It returns ErrTextTooLong for a text of more
// than MaxText bytes. With room in dst it allocates nothing, unless text is not
// UTF-8 or has a single word of some ten thousands of bytes, or the file has
// add_prefix_space.
func (t *BPE) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if err := ctx.Err(); err != nil {
		return dst, err
	}
	text, err := checkText(text)
	if err != nil {
		return dst, err
	}

	w := t.scratch.Get().(*scratch)
	w.unchecked = 0
	defer func() {
		if w.bytes() <= keepBytes {
			t.scratch.Put(w)
		}
	}()

	ids := dst
	if special {
		ids = append(ids, t.before...)
	}
	if ids, err = t.encode(ctx, w, ids, text, t.added); err != nil {
		return dst, err
	}
	if special {
		ids = append(ids, t.after...)
	}
	return ids, nil
}

// checkText returns s with each byte that is not UTF-8 as U+FFFD, or an error if
// it is then too long.
func checkText(s string) (string, error) {
	if len(s) <= MaxText && !utf8.ValidString(s) {
		s = replaceInvalid(s)
	}
	if len(s) > MaxText {
		return "", fmt.Errorf("tokenize: %w: %d bytes, at most %d", ErrTextTooLong, len(s), MaxText)
	}
	return s, nil
}

func replaceInvalid(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

// encode appends the ids of s, in which added have yet to look for their tokens.
func (t *BPE) encode(ctx context.Context, w *scratch, dst []uint32, s string, added []*matcher) ([]uint32, error) {
	if len(added) == 0 {
		return t.encodePieces(ctx, w, dst, s)
	}
	var err error
	m, from := added[0], 0 // s[:from] is done
	for at := 0; ; {
		token, begin := m.find(s, at)
		if token == nil {
			break
		}
		end := begin + len(token.content)
		at = end
		if token.singleWord && !alone(s, begin, end) {
			continue
		}
		if token.lstrip {
			begin = stripSpace(s, from, begin)
		}
		if token.rstrip {
			at = skip(s, end, space)
		}
		if from < begin {
			if dst, err = t.encode(ctx, w, dst, s[from:begin], added[1:]); err != nil {
				return nil, err
			}
		}
		dst = append(dst, token.id)
		from = at
	}
	if from == len(s) {
		return dst, nil
	}
	return t.encode(ctx, w, dst, s[from:], added[1:])
}

// encodePieces appends the ids of s, which has no added tokens.
func (t *BPE) encodePieces(ctx context.Context, w *scratch, dst []uint32, s string) ([]uint32, error) {
	if t.prefixSpace && s != "" && s[0] != ' ' {
		s = " " + s
	}
	for i := 0; i < len(s); {
		end := t.split(s, i)
		if w.unchecked += end - i; w.unchecked >= checkEvery {
			w.unchecked = 0
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		var err error
		if dst, err = t.encodePiece(ctx, w, dst, s[i:end]); err != nil {
			return nil, err
		}
		i = end
	}
	return dst, nil
}

func (t *BPE) encodePiece(ctx context.Context, w *scratch, dst []uint32, piece string) ([]uint32, error) {
	if len(piece) <= t.longest {
		if id, ok := t.words[piece]; ok {
			return append(dst, id), nil
		}
	}
	ids, err := t.mergePiece(ctx, w, piece)
	return append(dst, ids...), err
}

func (t *BPE) mergePiece(ctx context.Context, w *scratch, piece string) ([]uint32, error) {
	w.ids = slices.Grow(w.ids[:0], len(piece))
	for i := range len(piece) {
		w.ids = append(w.ids, t.bytes[piece[i]])
	}
	return t.merges.merge(ctx, w)
}
