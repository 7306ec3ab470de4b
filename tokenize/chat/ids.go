// Bodies with token ids need no template and no tokenizer: vLLM's /inference/v1/generate and
// SGLang's /generate, which takes a text too.
//
// No Model determines the version of the engine that serves them. So a request that
// some versions refuse and others serve is not scorable.

package chat

import (
	"cmp"
	"math"
	"math/big"
	"slices"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// parseTokenRequest reads the body of vLLM's /inference/v1/generate (autumn 2026:
// entrypoints/scale_out/token_in_token_out/protocol.py, GenerateRequest; until 0.23
// entrypoints/serve/disagg/protocol.py).
func parseTokenRequest(o *python.Dict) (*Prompt, error) {
	p := new(Prompt)
	if err := p.parseNames(o); err != nil {
		return nil, err
	}
	if v, ok := optional(o, "cache_salt").(string); ok && v == "" {
		return nil, unscored("cache_salt", "empty: some versions of the engine refuse it")
	}
	switch v := optional(o, "token_ids").(type) {
	case nil:
		return nil, badField("token_ids", "missing")
	case tokenList:
		p.Tokens = v
	case *python.List:
		if len(v.Items) == 0 {
			return nil, badField("token_ids", "empty")
		}
		var err error
		if p.Tokens, err = tokenIDs("token_ids", v.Items, isLax); err != nil {
			return nil, err
		}
	default:
		return nil, wrongType("token_ids", v, "an array")
	}
	sampling, err := optionalObject(o, "sampling_params")
	switch {
	case err != nil:
		return nil, err
	case sampling == nil:
		return nil, badField("sampling_params", "missing")
	case optional(sampling, "truncate_prompt_tokens") != nil:
		return nil, unscored("sampling_params.truncate_prompt_tokens", "its effect on the tokens is not known here")
	}
	if err := refuseTransfer(o); err != nil {
		return nil, err
	}
	parts, err := optionalList(o, "content_parts")
	if err != nil {
		return nil, err
	}
	if parts != nil && len(parts.Items) > 0 {
		return nil, unscored("content_parts", "raw media: the engine's hashes of them and the numbers of their tokens are not known")
	}
	if _, ok := optional(o, "features").(string); ok {
		return nil, unscored("features", "a string: some versions of the engine refuse it")
	}
	features, err := optionalObject(o, "features")
	if err != nil || features == nil {
		return p, err
	}
	if p.Media, err = parseFeatures(features, len(p.Tokens)); err != nil {
		return nil, within(err, "features")
	}
	return p, nil
}

// parseFeatures reads the media of a prompt of so many tokens: for each kind of media the
// engine's hashes, and the places of their tokens.
func parseFeatures(o *python.Dict, tokens int) (media []Media, err error) {
	fields := [...]string{"mm_hashes", "mm_placeholders", "kwargs_data", "mm_metadata"}
	var objects [len(fields)]*python.Dict
	for i, name := range fields {
		if objects[i], err = optionalObject(o, name); err != nil {
			return nil, err
		}
	}
	hashes, places := objects[0], objects[1]
	switch {
	case hashes == nil:
		return nil, badField("mm_hashes", "missing")
	case places == nil:
		return nil, badField("mm_placeholders", "missing")
	case hashes.Len() != places.Len():
		return nil, badField("mm_placeholders", "of other kinds of media than mm_hashes")
	}
	for i := range hashes.Len() {
		key, v := hashes.At(i)
		list, ok := v.(*python.List)
		if !ok {
			return nil, within(wrongType("", v, "an array"), "mm_hashes.%.60s", key)
		}
		v, ok = places.Lookup(key.(string))
		if !ok {
			return nil, badField("mm_placeholders", "of other kinds of media than mm_hashes")
		}
		at, ok := v.(*python.List)
		switch {
		case !ok:
			return nil, within(wrongType("", v, "an array"), "mm_placeholders.%.60s", key)
		case len(at.Items) != len(list.Items):
			return nil, within(badField("", "%d of %d", len(at.Items), len(list.Items)), "mm_placeholders.%.60s", key)
		}
		for j := range list.Items {
			m, err := parsePlaceholder(at.Items[j])
			if err != nil {
				return nil, within(err, "mm_placeholders.%.60s[%d]", key, j)
			}
			switch v := list.Items[j].(type) {
			case string:
				m.Hash = v
			default:
				return nil, within(wrongType("", v, "a string"), "mm_hashes.%.60s[%d]", key, j)
			}
			if m.Hash == "" {
				return nil, within(unscored("", "empty"), "mm_hashes.%.60s[%d]", key, j)
			}
			media = append(media, m)
		}
	}
	slices.SortStableFunc(media, func(a, b Media) int { return cmp.Compare(a.Offset, b.Offset) })
	end := 0
	for _, m := range media {
		if m.Offset < end || m.Length > tokens-m.Offset {
			return nil, unscored("mm_placeholders", "media overlap, or are not within the tokens: some versions of the engine refuse it")
		}
		end = m.Offset + m.Length
	}
	return media, nil
}

// parsePlaceholder reads the place of an item.
func parsePlaceholder(v python.Value) (m Media, err error) {
	o, ok := v.(*python.Dict)
	if !ok {
		return m, wrongType("", v, "an object")
	}
	for _, f := range []struct {
		name  string
		least int64
		to    *int
	}{{"offset", 0, &m.Offset}, {"length", 1, &m.Length}} {
		v, ok := o.Lookup(f.name)
		n, integer := v.(int64)
		switch {
		case !ok:
			return m, badField(f.name, "missing")
		case integer && f.least <= n && n <= maxExpanded:
			*f.to = int(n)
		case integer && n < f.least:
			return m, badField(f.name, "less than %d", f.least)
		case isInteger(v):
			return m, unscored(f.name, "no number from %d to %d", f.least, maxExpanded)
		default:
			return m, wrongType(f.name, v, "an integer")
		}
	}
	return m, nil
}

// refusedBySGLang are fields of SGLang's /generate by which the prompt is another one than its
// text or ids, or has a cache of its own that events do not report.
var refusedBySGLang = []struct{ name, why string }{
	{"image_data", "raw media: the engine's hash of it and the number of its tokens are not known"},
	{"video_data", "raw media: the engine's hash of it and the number of its tokens are not known"},
	{"audio_data", "raw media: the engine's hash of it and the number of its tokens are not known"},
	{"input_embeds", "a prompt without token ids"},
	{"positional_embed_overrides", "a prompt without the ids of all tokens"},
	{"session_params", "the prompt goes on from an earlier one, which is not known here"},
	{"lora_path", "the adapter: events do not tell of it in each version"},
	{"extra_key", "events do not tell of it"},
}

// parseSGLangRequest reads the body of SGLang's /generate (September 2026:
// srt/managers/io_struct.py, GenerateReqInput and its normalize_batch_and_arguments;
// srt/managers/tokenizer_manager.py, _tokenize_one_request).
func parseSGLangRequest(o *python.Dict) (*Prompt, error) {
	text, ids := optional(o, "text"), optional(o, "input_ids")
	for _, f := range refusedBySGLang {
		if v := optional(o, f.name); v != nil {
			if list, ok := v.(*python.List); !ok || len(list.Items) > 0 {
				return nil, unscored(f.name, "%s", f.why)
			}
		}
	}
	switch {
	case text == nil && ids == nil:
		return nil, notScorable("it has neither text nor input_ids, as SGLang's has: it may be another engine's")
	case text != nil && ids != nil:
		return nil, unscored("text", "beside input_ids")
	}
	p := &Prompt{AddSpecial: true}
	if _, ok := optional(o, "cache_salt").(*python.List); ok {
		return nil, unscored("cache_salt", "an array, as batches have it")
	}
	err := p.parseNames(o)
	switch {
	case err != nil:
	case ids != nil:
		err = p.parseInputIDs(ids)
	default:
		err = p.parseInputText(text)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Prompt) parseInputText(v python.Value) error {
	if list, ok := v.(*python.List); ok {
		if len(list.Items) != 1 {
			return unscored("text", "%d prompts in one request", len(list.Items))
		}
		v = list.Items[0]
	}
	var ok bool
	if p.Text, ok = v.(string); !ok {
		return wrongType("text", v, "a string")
	}
	if p.Text == "" {
		return unscored("text", "empty")
	}
	return nil
}

func (p *Prompt) parseInputIDs(v python.Value) (err error) {
	path := "input_ids"
	list, ok := v.(*python.List)
	if ok && len(list.Items) > 0 {
		switch list.Items[0].(type) {
		case *python.List, tokenList:
			if len(list.Items) > 1 {
				return unscored(path, "%d prompts in one request", len(list.Items))
			}
			path, v = "input_ids[0]", list.Items[0]
		}
	}
	switch v := v.(type) {
	case tokenList:
		p.Tokens = v
	case *python.List:
		switch {
		case len(v.Items) > 0:
			p.Tokens, err = tokenIDs(path, v.Items, isInt64)
		case v == list:
			err = badField(path, "empty")
		default:
			err = unscored(path, "empty")
		}
	default:
		err = wrongType(path, v, "an array")
	}
	return err
}

// isInt64 reports whether a value is an integer to Python, of 64 bits.
func isInt64(v python.Value) bool {
	switch v.(type) {
	case int64, bool:
		return true
	}
	return false
}

// tokenIDs returns token ids. An item that is none is not scorable if the engine may take it.
func tokenIDs(path string, items []python.Value, takes func(python.Value) bool) ([]uint32, error) {
	ids := make([]uint32, len(items))
	for i, item := range items {
		id, ok := item.(int64)
		if !ok || id < 0 || id > math.MaxUint32 {
			err := badField("", "not the id of a token")
			if takes(item) {
				err = unscored("", "not the id of a token as it is written")
			}
			return nil, within(err, "%s[%d]", path, i)
		}
		ids[i] = uint32(id)
	}
	return ids, nil
}

// isLax reports whether vLLM reads a value as a token id, though it is not written as one.
func isLax(v python.Value) bool {
	switch v.(type) {
	case int64, *big.Int:
		return false
	}
	return isInteger(v)
}
