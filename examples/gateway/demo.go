package main

import (
	"context"
	"io"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// letters is the tokenizer of the demo: each byte is a token.
type letters struct{}

func (letters) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// lettersModel is a model of letters, for chats too.
func lettersModel() (kvindex.Model, error) {
	c, err := chat.New("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>", nil, chat.Options{})
	return kvindex.Model{Tokenizer: letters{}, Chat: c}, err
}

func play(ctx context.Context, out io.Writer) error { return nil }
