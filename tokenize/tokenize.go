// Package tokenize turns text into the token ids that an inference engine gives
// it, so that the blocks of a prompt can be named without asking the engine.
//
// Start with [Load], which reads a model's tokenizer.json:
//
//	t, err := tokenize.Load("/models/llama-3/tokenizer.json")
//	...
//	ids, err := t.Encode(ctx, nil, prompt, true)
//
// An id that differs from the engine's makes every block after it miss, and
// nothing says so. So the package encodes exactly as HuggingFace tokenizers
// 0.23.2 does, or refuses the file: a component, a pattern or a setting that it
// does not know is an [ErrUnsupported] that names it, never an approximation.
// It reads byte-level BPE with GPT-2's or Llama 3's pre-tokenizer, without a
// normalizer.
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

// MaxText is the longest text that a [BPE] encodes, in bytes of UTF-8: some four
// million tokens of English. Encoding takes up to 60 bytes of memory for each byte
// of the longest word, which in a hostile text is all of it; a host that admits
// less says so by the size of its requests.
const MaxText = 16 << 20

var (
	// ErrUnsupported is returned by Load and Parse for a file that asks for
	// something this package does not do. The error says what.
	ErrUnsupported = errors.New("not supported")

	// ErrMalformed is returned by Load and Parse for a file that is damaged,
	// contradicts itself or is past a limit.
	ErrMalformed = errors.New("malformed tokenizer file")

	// ErrTextTooLong is returned by Encode for a text longer than MaxText.
	ErrTextTooLong = errors.New("text too long")
)
