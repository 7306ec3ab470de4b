package tokenize

import "context"

// The character classes, compared code point by code point.
func IsLetter(r rune) bool { return classOf(r)&letter != 0 }
func IsNumber(r rune) bool { return classOf(r)&number != 0 }
func IsSpace(r rune) bool  { return classOf(r)&space != 0 }
func IsWord(r rune) bool   { return classOf(r)&word != 0 }

const (
	MaxText   = maxText
	MaxFile   = maxFile
	MaxToken  = maxToken
	MaxAdded  = maxAdded
	MaxVocab  = maxVocab
	LongPiece = longPiece
)

var ParseTiktoken = parseTiktoken

// Resume is resume for positions in the last 64 KiB of text.
func (t *BPE) Resume(text string) int { return t.resume(text, max(1, len(text)-64<<10+1)) }

func (h *fileTokenizer) Resume(text string) int { return h.bpe.Resume(text) }

// A Marker is a BPE, or the result of a Holder.
type Marker interface {
	Identifier
	Resume(text string) int
	EncodeMarks(ctx context.Context, dst []uint32, p Passage) (ids []uint32, kept []Mark, err error)
}

// A Holder is a tokenizer of a Pool.
type Holder interface {
	Hold(ctx context.Context, text string) (Identifier, error)
}
