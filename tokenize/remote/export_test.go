package remote

import "github.com/kvindex/kvindex/tokenize/chat"

func DecodeAnswer(raw []byte) (tokens []uint32, count *int, media []chat.Media, err error) {
	a, err := decodeAnswer(raw, nil, tokenizeText)
	return a.tokens, a.count, a.media, err
}

// ReadBody returns a body with the model "m" and the number of its media.
func ReadBody(path string, raw []byte) (sent []byte, media int, err error) {
	b, err := readBody(path, raw)
	if err != nil {
		return nil, 0, err
	}
	return b.with([]byte(`"m"`)), b.media, nil
}
