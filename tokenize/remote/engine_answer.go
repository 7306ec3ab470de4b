package remote

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// An answer has the tokens of a text or body. Its fields are those of vLLM's main of autumn 2026,
// entrypoints/serve/tokenize/protocol.py (TokenizeResponse) and
// entrypoints/scale_out/token_in_token_out/protocol.py (GenerateRequest, MultiModalFeatures);
// SGLang's main of autumn 2026, srt/entrypoints/openai/protocol.py (TokenizeResponse);
// TensorRT-LLM's main of autumn 2026, serve/render/prompt_types.py (GenerateRequest). A field that
// an engine lacks is null here.
type answer struct {
	tokens []uint32 // behind those of question.dst
	count  *int
	model  string
	salt   string
	media  []chat.Media
}

// fields are those of an answer that are decoded by encoding/json.
type fields struct {
	Count     *int    `json:"count"`
	Model     *string `json:"model"`
	Salt      *string `json:"cache_salt"`
	Trusted   *bool   `json:"tokens_trusted"`
	Untrusted *string `json:"untrusted_reason"`
	Features  *struct {
		Hashes       map[string][]string `json:"mm_hashes"`
		Placeholders map[string][]struct {
			Offset *int `json:"offset"`
			Length *int `json:"length"`
		} `json:"mm_placeholders"`
	} `json:"features"`
}

// Bounds of an answer.
const (
	maxID    = math.MaxInt32 // vLLM's and SGLang's ids are signed
	maxDepth = 64            // of JSON
	maxMedia = 1 << 16
)

// decodeAnswer decodes an answer. Of completions the answer is a list of one. The ids, which are
// nearly all of it, are read in one pass; all else by encoding/json.
func decodeAnswer(raw []byte, dst []uint32, r route) (answer, error) {
	s := scanner{raw: raw}
	list := r == renderCompletion
	if list && !s.take('[') {
		return answer{}, errors.New("not a list of answers")
	}
	if !list && r >= renderCompletion && s.peek() == '[' {
		return answer{}, fmt.Errorf("a list, as of vLLM before 0.18: %w", errNoRoute)
	}
	a, err := s.object(dst)
	if err != nil {
		return answer{}, err
	}
	if list && !s.take(']') {
		if s.peek() == ',' {
			return answer{}, fmt.Errorf("%w: several prompts in one body", chat.ErrNotScorable)
		}
		return answer{}, s.wrong("the end of a list")
	}
	if s.peek() != 0 || s.at < len(raw) {
		return answer{}, s.wrong("the end")
	}
	return a, nil
}

// A scanner reads JSON.
type scanner struct {
	raw []byte
	at  int
}

func (s *scanner) wrong(want string) error { return fmt.Errorf("byte %d: not %s", s.at, want) }

// peek skips space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.raw); s.at++ {
		switch c := s.raw[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.at++
	return true
}

// object reads the object of an answer.
func (s *scanner) object(dst []uint32) (a answer, err error) {
	if !s.take('{') {
		return a, s.wrong("an object")
	}
	var others []byte // the fields that encoding/json decodes, as an object
	found := false
	for n := 0; !s.take('}'); n++ {
		if n > 0 && !s.take(',') {
			return a, s.wrong("a comma")
		}
		raw, err := s.value()
		if err != nil {
			return a, err
		}
		var key string
		if err := json.Unmarshal(raw, &key); err != nil || raw[0] != '"' {
			return a, errors.New("a key that is no string")
		}
		if !s.take(':') {
			return a, s.wrong("a colon")
		}
		s.peek()
		if key == "tokens" || key == "token_ids" {
			if found {
				return a, errors.New("tokens twice")
			}
			found = true
			if a.tokens, err = s.ids(dst); err != nil {
				return a, err
			}
			continue
		}
		value, err := s.value()
		if err != nil {
			return a, err
		}
		switch key {
		case "count", "model", "cache_salt", "tokens_trusted", "untrusted_reason", "features":
			sep := byte(',')
			if others == nil {
				sep = '{'
			}
			others = append(append(append(append(others, sep), raw...), ':'), value...)
		}
	}
	if !found {
		return a, errors.New("no tokens")
	}
	if others != nil {
		err = a.set(append(others, '}'))
	}
	return a, err
}

// value returns the next value, which is valid JSON.
func (s *scanner) value() ([]byte, error) {
	s.peek()
	from, depth := s.at, 0
	for s.at < len(s.raw) {
		switch c := s.raw[s.at]; c {
		case '"':
			for s.at++; s.at < len(s.raw) && s.raw[s.at] != '"'; s.at++ {
				if s.raw[s.at] == '\\' {
					s.at++
				}
			}
			s.at++
		case '{', '[':
			if depth++; depth > maxDepth {
				return nil, s.wrong("JSON of less depth")
			}
			s.at++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return nil, s.wrong("a value")
			}
			s.at++
		case ' ', '\t', '\n', '\r', ',', ':':
			if depth == 0 {
				return nil, s.wrong("a value")
			}
			s.at++
			continue
		default:
			end := bytes.IndexAny(s.raw[s.at:], " \t\n\r,:]}\"[{")
			if end < 0 {
				end = len(s.raw) - s.at
			}
			s.at += end
		}
		if depth == 0 {
			value := s.raw[from:min(s.at, len(s.raw))]
			if !json.Valid(value) {
				return nil, fmt.Errorf("byte %d: not JSON", from)
			}
			return value, nil
		}
	}
	return nil, s.wrong("complete")
}

// ids appends a list of token ids.
func (s *scanner) ids(dst []uint32) ([]uint32, error) {
	if !s.take('[') {
		return nil, s.wrong("a list of token ids")
	}
	if s.take(']') {
		return dst, nil
	}
	dst = slices.Grow(dst, (len(s.raw)-s.at)/8)
	for {
		s.peek()
		from, id := s.at, uint64(0)
		for s.at < len(s.raw) && s.raw[s.at]-'0' <= 9 && id <= maxID {
			id = id*10 + uint64(s.raw[s.at]-'0')
			s.at++
		}
		switch {
		case s.at == from:
			return nil, s.wrong("a token id")
		case id > maxID:
			return nil, fmt.Errorf("token %d: its id is more than %d", len(dst), maxID)
		case s.raw[from] == '0' && s.at > from+1:
			return nil, s.wrong("a token id")
		}
		dst = append(dst, uint32(id))
		if s.at < len(s.raw) && s.raw[s.at] == ',' {
			s.at++
			continue
		}
		if s.take(',') {
			continue
		}
		if s.take(']') {
			return dst, nil
		}
		return nil, s.wrong("a token id")
	}
}

// set sets what is beside the tokens.
func (a *answer) set(object []byte) error {
	var f fields
	if err := json.Unmarshal(object, &f); err != nil {
		return err
	}
	if f.Trusted != nil && !*f.Trusted {
		why := "no reason"
		if f.Untrusted != nil {
			why = *f.Untrusted
		}
		return fmt.Errorf("%w: the engine does not trust its tokens: %.100q", chat.ErrNotScorable, why)
	}
	a.count = f.Count
	if f.Model != nil {
		a.model = *f.Model
	}
	if f.Salt != nil {
		a.salt = *f.Salt
	}
	if f.Features == nil {
		return nil
	}
	for kind, places := range f.Features.Placeholders {
		hashes := f.Features.Hashes[kind]
		if len(hashes) != len(places) {
			return fmt.Errorf("media: %d hashes and %d places of %.60q", len(hashes), len(places), kind)
		}
		if len(a.media)+len(places) > maxMedia {
			return fmt.Errorf("media: more than %d", maxMedia)
		}
		last := 0
		for i, p := range places {
			if p.Offset == nil || p.Length == nil || hashes[i] == "" {
				return fmt.Errorf("media: %.60q %d lacks its offset, length or hash", kind, i)
			}
			if *p.Offset < last {
				return fmt.Errorf("media: %.60q %d is at token %d, before the end of the one before", kind, i, *p.Offset)
			}
			if *p.Length <= 0 || *p.Length > math.MaxInt32 || *p.Offset > math.MaxInt32 {
				return fmt.Errorf("media: %.60q %d has %d tokens at %d", kind, i, *p.Length, *p.Offset)
			}
			last = *p.Offset + *p.Length
			a.media = append(a.media, chat.Media{Hash: hashes[i], Offset: *p.Offset, Length: *p.Length})
		}
	}
	for kind, hashes := range f.Features.Hashes {
		if len(hashes) != len(f.Features.Placeholders[kind]) {
			return fmt.Errorf("media: %d hashes and %d places of %.60q", len(hashes), len(f.Features.Placeholders[kind]), kind)
		}
	}
	slices.SortFunc(a.media, func(x, y chat.Media) int { return cmp.Compare(x.Offset, y.Offset) })
	return nil
}

// check compares an answer with its question. from is where its tokens begin.
func (a *answer) check(q question, model string, from int) error {
	n := len(a.tokens) - from
	switch {
	case n == 0 && q.routes[0] != tokenizeText:
		return errors.New("no tokens")
	case a.count != nil && *a.count != n:
		return fmt.Errorf("%d tokens, and a count of %d", n, *a.count)
	case a.model != "" && a.model != model:
		return fmt.Errorf("of model %.100q, not %q", a.model, model)
	case len(a.media) != q.media:
		return fmt.Errorf("%d media, and the body has %d", len(a.media), q.media)
	}
	end := 0
	for i, m := range a.media {
		if m.Offset < end || m.Offset+m.Length > n {
			return fmt.Errorf("media %d: %d tokens at %d, of %d, behind one that ends at %d", i, m.Length, m.Offset, n, end)
		}
		end = m.Offset + m.Length
	}
	return nil
}
