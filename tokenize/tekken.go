package tokenize

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
)

// A tekken is a tekken.json, Mistral's form of a file of ranks (mistral-common 1.11.7,
// tokens/tokenizers/tekken.py). Its ids are its ranks behind those of its control tokens, which
// are never made from a text.
type tekken struct {
	object        // all but the vocabulary
	ranks  *vocab // by the order in the file
}

const tekkenName = "tekken.json"

// hasTekken reports whether the tokenizer of a folder is its tekken.json.
func hasTekken(dir string) bool {
	_, other := fileIn(dir, "tokenizer.json")
	_, err := fileIn(dir, tekkenName)
	return errors.Is(other, fs.ErrNotExist) && err == nil
}

// tekkenSections are the fields of a tekken.json that affect ids or describe it.
var tekkenSections = []string{"config", "vocab", "special_tokens", "type", "image", "multimodal", "audio", "model_settings_builder"}

// add reads a field of the file.
func (t *tekken) add(s *stream, name string) (err error) {
	if name == "vocab" {
		if t.ranks != nil {
			return malformed("the file has two fields %q", name)
		}
		return t.readVocab(s)
	}
	t.values[name], err = s.value(maxSection)
	return err
}

func (t *tekken) readVocab(s *stream) error {
	if s.peek() != '[' {
		return malformed("vocab is not an array")
	}
	t.ranks = new(vocab)
	var token []byte
	return s.elements(func() error {
		if s.peek() != '{' {
			return malformed("vocab: token %d is not an object", t.ranks.len())
		}
		missing := []string{"rank", "token_bytes", "token_str"}
		err := s.members(func(name []byte) (err error) {
			i := slices.Index(missing, string(name))
			if i < 0 {
				return malformed("vocab: token %d has the field %.60q, or has it twice", t.ranks.len(), name)
			}
			missing = slices.Delete(missing, i, i+1)
			switch string(name) {
			case "rank":
				id, ok, err := s.id(maxVocab)
				if err == nil && (!ok || int(id) != t.ranks.len()) {
					err = malformed("vocab: token %d has another rank, or none below %d", t.ranks.len(), maxVocab)
				}
				return err
			case "token_bytes":
				token, err = s.text(token[:0], base64.StdEncoding.EncodedLen(maxRankedToken))
			default:
				_, err = s.value(maxSetting)
			}
			return err
		})
		if err == nil && len(missing) > 0 {
			err = malformed("vocab: token %d has no %s", t.ranks.len(), missing[0])
		}
		if err != nil {
			return err
		}
		return t.addToken(token)
	})
}

func (t *tekken) addToken(token []byte) error {
	n, v := t.ranks.len(), t.ranks
	from := len(v.text)
	text, err := base64.StdEncoding.AppendDecode(v.text, token)
	if err != nil || len(text) == from || len(text)-from > maxRankedToken {
		return malformed("vocab: token %d is not base64 of 1 to %d bytes", n, maxRankedToken)
	}
	if n < 256 && !bytes.Equal(text[from:], []byte{byte(n)}) {
		return malformed("vocab: token %d is not the byte %d", n, n)
	}
	v.text = text
	v.close(uint32(n))
	return nil
}

// bpe makes the encoder.
func (t *tekken) bpe() (*BPE, error) {
	if t.ranks == nil || len(t.values["config"]) == 0 {
		return nil, malformed("a tekken.json without vocab or config")
	}
	config, err := parseObject("config", t.values["config"])
	if err != nil {
		return nil, err
	}
	regex, err := config.text("pattern")
	if err != nil {
		return nil, err
	}
	size, err := config.size("default_vocab_size")
	if err != nil {
		return nil, err
	}
	special, err := config.size("default_num_special_tokens")
	if err != nil {
		return nil, err
	}
	if n := size - special; n < 256 || n > t.ranks.len() {
		return nil, malformed("config: %d tokens, of them %d special ones, and %d in vocab", size, special, t.ranks.len())
	}
	p, ok := patternOf(regex)
	if !ok || !p.total || otherMeaning(regex) {
		return nil, unsupported("pattern %.400q", regex)
	}
	begin, err := t.beginning(special)
	if err != nil {
		return nil, err
	}
	b := newBPE()
	b.pre = preTokenizer{steps: []step{{pattern: p}}, byteLevel: true}
	b.before = []uint32{begin}
	t.ranks.keep(size - special)
	for i := range t.ranks.ids {
		t.ranks.ids[i] += uint32(special)
	}
	if i := t.ranks.index(); i >= 0 {
		return nil, malformed("vocab: token %d is repeated", i)
	}
	b.model, err = newRankModel(t.ranks)
	return b, err
}

// keep drops all texts but the first n.
func (v *vocab) keep(n int) {
	v.text = slices.Clip(v.text[:v.ends[n-1]])
	v.ends, v.ids = slices.Clip(v.ends[:n]), slices.Clip(v.ids[:n])
}

// size reads a number of tokens.
func (o object) size(name string) (int, error) {
	n, ok := parseID(o.values[name], maxVocab)
	if !ok {
		return 0, malformed("%s: field %q is not an integer below %d", o.where, name, maxVocab)
	}
	return int(n), nil
}

// beginning returns the id of <s>, 1 in a file without special tokens.
func (t *tekken) beginning(special int) (uint32, error) {
	if t.absent("special_tokens") {
		return 1, nil
	}
	var tokens []struct {
		Rank int
		Name string `json:"token_str"`
	}
	if err := json.Unmarshal(t.values["special_tokens"], &tokens); err != nil {
		return 0, malformed("special_tokens: %v", err)
	}
	for _, token := range tokens {
		if token.Name == "<s>" && token.Rank >= 0 && token.Rank < special {
			return uint32(token.Rank), nil
		}
	}
	return 0, malformed("special_tokens without <s>")
}
