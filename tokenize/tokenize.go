// Package tokenize turns text into the token ids that an inference engine gives
// it, so that the blocks of a prompt can be named without asking the engine.
//
// Start with [LoadPretrained], which reads a model's folder as engines do: its
// tokenizer.json and the tokenizer_config.json beside it. [Load] reads the first
// alone.
//
//	t, err := tokenize.LoadPretrained("/models/llama-3")
//	...
//	ids, err := t.Encode(ctx, nil, prompt, true)
//
// A [Pool] loads tokenizers by the names of models when they are first asked for,
// shares them, and bounds memory and how many texts are encoded at a time.
// [LoadTiktoken] reads OpenAI's files of ranks.
//
// An id that differs from the engine's makes every block after it miss, and
// nothing says so. So the package encodes exactly as HuggingFace tokenizers
// 0.23.2 does, or refuses the file: a component, a pattern or a setting that it
// does not know is an [ErrUnsupported] that names it, never an approximation. It
// reads byte-pair encoders: byte-level ones, and those in the manner of
// SentencePiece with byte fallback. WordPiece and Unigram are refused.
package tokenize

import (
	"context"
	"errors"
)

// A Tokenizer encodes text as one model does. It is safe for concurrent use.
type Tokenizer interface {
	// Encode appends the ids of text to dst and returns the result. With special,
	// they stand between the tokens that the model's post-processor adds (such as
	// a begin-of-sequence token), which is what an engine's /v1/completions
	// hashes. Special tokens that are written out in text count as themselves
	// either way.
	//
	// Bytes of text that are not UTF-8 are each taken for U+FFFD, which is what
	// encoding/json makes of them on their way to the engine.
	//
	// An error returns dst as it was: ctx's own when it is done before the
	// encoding is, or one of the implementation. The result is the caller's; an
	// implementation keeps neither it nor text.
	Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error)
}

// A Resumer is a Tokenizer that need not encode the beginning of a text again. A
// [BPE] is one, and so are the tokenizers of a [Pool].
type Resumer interface {
	Tokenizer

	// Resume returns up to where the ids of text stay as they are whatever is
	// appended to it, and EncodeFrom appends the ids of text[from:] for a position
	// from that it returned for the beginning of text.
	Resume(text string) int
	EncodeFrom(ctx context.Context, dst []uint32, text string, from int, special bool) ([]uint32, error)
}

// MaxText is the longest text that a [BPE] encodes, in bytes of UTF-8: some four
// million tokens of English. It counts as it comes and as it is normalized, where
// SentencePiece makes three bytes of each space. Encoding takes up to 60 bytes of memory for each byte
// of the longest word, which in a hostile text is all of it; a host that admits
// less says so by the size of its requests.
const MaxText = 16 << 20

var (
	// ErrUnsupported is returned for a file that asks for something this package
	// does not do. The error says what.
	ErrUnsupported = errors.New("not supported")

	// ErrMalformed is returned for a file that is damaged, contradicts itself or
	// is past a limit.
	ErrMalformed = errors.New("malformed tokenizer file")

	// ErrTextTooLong is returned for a text longer than MaxText, or than a Pool's,
	// as it comes, with U+FFFD for what is not UTF-8, or once it is normalized.
	ErrTextTooLong = errors.New("text too long")
)
