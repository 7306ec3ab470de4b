package tokenize

// parsePostProcessor reads the post_processor section: the ids that it puts
// before and after a text's own.
func parsePostProcessor(file object) (before, after []uint32, err error) {
	const where = "post_processor"
	if file.absent(where) {
		return nil, nil, nil
	}
	o, err := parseComponent(where, file.values[where])
	if err != nil {
		return nil, nil, err
	}
	if o.kind != "Sequence" {
		return parseProcessor(o)
	}
	if err := o.only("processors"); err != nil {
		return nil, nil, err
	}
	items, err := o.list("processors", maxSteps)
	if err != nil {
		return nil, nil, err
	}
	adding := 0
	for _, item := range items {
		o, err := parseComponent(where, item)
		if err != nil {
			return nil, nil, err
		}
		b, a, err := parseProcessor(o)
		if err != nil {
			return nil, nil, err
		}
		if o.kind == "ByteLevel" {
			continue
		}
		if adding++; adding > 1 {
			// The official library treats a template's pieces as texts of their own: the
			// second processor gets two as a pair, and may abort on three.
			return nil, nil, unsupported("%s Sequence with a second %s", where, o.kind)
		}
		before, after = b, a
	}
	return before, after, nil
}

func parseProcessor(o component) (before, after []uint32, err error) {
	switch o.kind {
	case "ByteLevel": // it moves offsets only
		_, err := parseByteLevel(o)
		return nil, nil, err
	case "TemplateProcessing":
		return parseTemplate(o)
	case "RobertaProcessing":
		return parseRoberta(o)
	case "BertProcessing":
		return parseAround(o, "cls", "sep")
	}
	return nil, nil, unsupported("post_processor %.60q", o.kind)
}

// parseRoberta reads RobertaProcessing (tokenizers 0.23.2, processors/roberta.rs).
// Its two flags are about offsets.
func parseRoberta(o component) (before, after []uint32, err error) {
	for _, name := range []string{"trim_offsets", "add_prefix_space"} {
		if _, err := o.flag(name); err != nil {
			return nil, nil, err
		}
	}
	return parseAround(o, "cls", "sep", "trim_offsets", "add_prefix_space")
}

// parseAround reads the two tokens that BertProcessing (tokenizers 0.23.2,
// processors/bert.rs) and its like put around a text, in fields named cls and sep,
// which are among fields.
func parseAround(o component, fields ...string) (before, after []uint32, err error) {
	if err := o.only(fields...); err != nil {
		return nil, nil, err
	}
	if before, err = parseToken(o, "cls"); err != nil {
		return nil, nil, err
	}
	after, err = parseToken(o, "sep")
	return before, after, err
}

// parseToken returns the id of a field that has a token and its id.
func parseToken(o component, name string) ([]uint32, error) {
	pair, err := o.list(name, 2)
	if err != nil {
		return nil, err
	}
	if len(pair) == 2 && pair[0][0] == '"' {
		if id, ok := parseID(pair[1], maxVocab); ok {
			return []uint32{id}, nil
		}
	}
	return nil, malformed("%s: field %q is not a token and an id below %d", o.where, name, maxVocab)
}

// parseTemplate reads TemplateProcessing (tokenizers 0.23.2, processors/template.rs). Its pair
// template is for two texts, which no prompt is. It has none of ByteLevel's settings, but
// files changed from one to the other keep them, and the official library ignores them.
func parseTemplate(o component) (before, after []uint32, err error) {
	if err := o.only("single", "pair", "special_tokens", "add_prefix_space", "trim_offsets", "use_regex"); err != nil {
		return nil, nil, err
	}
	pieces, err := o.list("single", maxAround)
	if err != nil {
		return nil, nil, err
	}
	special, err := parseObject(o.where+" special_tokens", o.values["special_tokens"])
	if err != nil {
		return nil, nil, err
	}
	texts := 0
	for _, raw := range pieces {
		ids, err := parsePiece(o.where, raw, special)
		switch {
		case err != nil:
			return nil, nil, err
		case ids == nil:
			texts++
		case texts == 0:
			before = append(before, ids...)
		default:
			after = append(after, ids...)
		}
		if len(before)+len(after) > maxAround {
			return nil, nil, malformed("%s adds more than %d tokens", o.where, maxAround)
		}
	}
	if texts != 1 {
		return nil, nil, unsupported("%s with the text %d times in its template", o.where, texts)
	}
	return before, after, nil
}

// parsePiece reads one piece of a template: the ids of a special token, or nil
// for the text's place.
func parsePiece(where string, raw []byte, special object) ([]uint32, error) {
	piece, err := parseObject(where+" piece", raw)
	if err != nil {
		return nil, err
	}
	if err := piece.only("Sequence", "SpecialToken"); err != nil {
		return nil, err
	}
	if len(piece.values) != 1 {
		return nil, malformed("%s has %d values, not 1", piece.where, len(piece.values))
	}
	if raw, ok := piece.values["Sequence"]; ok {
		id, err := pieceID(where+" Sequence", raw)
		if err == nil && id != "A" {
			err = unsupported("%s with text %.60q in its single template", where, id)
		}
		return nil, err
	}
	id, err := pieceID(where+" SpecialToken", piece.values["SpecialToken"])
	if err != nil {
		return nil, err
	}
	return specialIDs(special, id)
}

func pieceID(where string, raw []byte) (string, error) {
	o, err := parseObject(where, raw)
	if err != nil {
		return "", err
	}
	if err := o.only("id", "type_id"); err != nil {
		return "", err
	}
	return o.text("id")
}

// specialIDs returns the ids of the template's special token name, never nil.
func specialIDs(special object, name string) ([]uint32, error) {
	raw, ok := special.values[name]
	if !ok {
		return nil, malformed("%s has no %.60q", special.where, name)
	}
	o, err := parseObject(special.where, raw)
	if err != nil {
		return nil, err
	}
	if err := o.only("id", "ids", "tokens"); err != nil {
		return nil, err
	}
	items, err := o.list("ids", maxAround)
	if err != nil {
		return nil, err
	}
	ids := make([]uint32, 0, len(items))
	for _, item := range items {
		id, ok := parseID(item, maxVocab)
		if !ok {
			return nil, malformed("%s: %.60q has an id that is not an integer below %d", special.where, name, maxVocab)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
