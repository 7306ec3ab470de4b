// Package tokenize turns text into the token ids that an inference engine makes of it.
//
//	t, err := tokenize.LoadPretrained("/models/llama-3")
//	...
//	ids, err := t.Encode(ctx, nil, prompt, true)
//
// For one model start with [LoadPretrained]. It reads the folder of a model as engines
// do: the tokenizer.json and the tokenizer_config.json beside it. [Load] reads a
// tokenizer.json alone. [LoadTiktoken] reads OpenAI's files. For many models start with
// [NewPool]: a [Pool] loads tokenizers by the names of models at their first use, and
// bounds their memory and the texts that are encoded at a time.
//
// One wrong id makes a prompt look as if no engine had cached it from there on, without
// an error. So this package makes exactly the ids of HuggingFace tokenizers 0.23.2, or
// refuses the file: for an unknown component, pattern or setting it returns an
// [ErrUnsupported] that names it. It reads byte-pair encoders:
// byte-level ones, and those like SentencePiece with byte fallback. It refuses
// WordPiece and Unigram.
package tokenize

import (
	"context"
	"errors"
)

// A Tokenizer encodes text as one model does. It is safe for concurrent use.
type Tokenizer interface {
	// Encode appends the ids of text to dst and returns the result. If special is true,
	// the ids of the tokens that the model puts around a text are among them, such as a
	// begin-of-sequence token. Engines do so for /v1/completions. A special token that is
	// written in text, such as <|eot_id|>, becomes its own id in both cases.
	//
	// Each byte of text that is not UTF-8 counts as U+FFFD, which encoding/json makes of
	// it on the way to the engine.
	//
	// On an error Encode returns dst unchanged. The error is that of ctx if it ends before
	// the encoding, or one of the implementation. The implementation keeps neither text
	// nor the result.
	Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error)
}

// An Identifier is a Tokenizer with an identity, such as a [BPE]. Any two of them with
// equal identities give the same ids for every text.
type Identifier interface {
	Tokenizer

	// Identity returns a digest of all that ids depend on, such as the content of the
	// tokenizer's files. It never changes.
	Identity() [32]byte
}

// A Mark is a place in a text, and the encoding up to there of every text that begins
// with text[:At].
type Mark struct {
	At     int // a position in the text, in bytes
	Resume int // where EncodeMarks may go on; before At, and never 0
	Tokens int // the ids before Resume, with those that the model puts before a text
}

// A Passage is the part of a text that EncodeMarks encodes.
type Passage struct {
	Text    string
	From    int    // the part is Text[From:]
	Special bool   // as for Encode
	Marks   []Mark // with At set, ascending, none before From
}

// maxText is the length of the longest text that a BPE encodes, in bytes.
const maxText = 16 << 20

var (
	// ErrUnsupported is wrapped by errors about a file that needs something which this
	// package lacks. The error names it.
	ErrUnsupported = errors.New("not supported")

	// ErrMalformed is wrapped by errors about a file that is damaged, contradicts
	// itself, or is beyond a limit.
	ErrMalformed = errors.New("malformed tokenizer file")

	// ErrTextTooLong is wrapped by errors about a text that is longer than 16 MiB, or
	// than PoolConfig.MaxText. The length counts as the text comes, with U+FFFD for
	// bytes that are not UTF-8, and after normalizing.
	ErrTextTooLong = errors.New("text too long")
)
