package tokenize

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// The sections of a tokenizer.json, but the vocabulary and the merges, are read in place, from
// text that json.Valid has passed: encoding/json would match names in any case, fill a missing
// or null field with a zero and drop unknown fields, and each of these can mean other ids.

// maxFields bounds the fields of an object other than the vocabulary.
const maxFields = 1 << 12

// An object is a JSON object in the file. where names it in errors.
type object struct {
	where  string
	values map[string][]byte
}

func parseObject(where string, raw []byte) (object, error) {
	o := object{where: where, values: map[string][]byte{}}
	if len(raw) == 0 {
		return o, malformed("%s is missing", where)
	}
	if raw[0] != '{' {
		return o, malformed("%s is not an object", where)
	}
	err := eachMember(raw, func(key, value []byte) error {
		name := unquote(key)
		if _, ok := o.values[string(name)]; ok {
			return malformed("%s has two fields %.60q", where, name)
		}
		if len(o.values) == maxFields {
			return malformed("%s has more than %d fields", where, maxFields)
		}
		o.values[string(name)] = value
		return nil
	})
	return o, err
}

// only refuses a field that is not among names.
func (o object) only(names ...string) error {
	for _, name := range sortedKeys(o.values) {
		if !slices.Contains(names, name) {
			return unsupported("%s field %.60q", o.where, name)
		}
	}
	return nil
}

func sortedKeys(m map[string][]byte) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// absent reports whether the field is missing or null.
func (o object) absent(name string) bool {
	v, ok := o.values[name]
	return !ok || string(v) == "null"
}

func (o object) text(name string) (string, error) {
	v := o.values[name]
	if len(v) == 0 || v[0] != '"' {
		return "", malformed("%s: field %q is not a string", o.where, name)
	}
	return string(unquote(v)), nil
}

func (o object) flag(name string) (bool, error) {
	switch string(o.values[name]) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, malformed("%s: field %q is not true or false", o.where, name)
}

// list returns the elements of an array of at most limit.
func (o object) list(name string, limit int) ([][]byte, error) {
	var items [][]byte
	v := o.values[name]
	if len(v) == 0 || v[0] != '[' {
		return nil, malformed("%s: field %q is not an array", o.where, name)
	}
	err := eachElement(v, func(item []byte) error {
		if len(items) == limit {
			return malformed("%s: field %q has more than %d elements", o.where, name, limit)
		}
		items = append(items, item)
		return nil
	})
	return items, err
}

// A component is an object whose field "type" is its kind. That field is not among its values.
type component struct {
	object
	kind string
}

func parseComponent(where string, raw []byte) (component, error) {
	if string(raw) == "null" {
		return component{}, unsupported("%s null", where)
	}
	o, err := parseObject(where, raw)
	if err != nil {
		return component{}, err
	}
	kind, err := o.text("type")
	if err != nil {
		return component{}, err
	}
	delete(o.values, "type")
	// The kind comes from the file and may be of any length.
	o.where += " " + kind[:min(len(kind), 60)]
	return component{object: o, kind: kind}, nil
}

// parseID reads a token id: a JSON integer below limit.
func parseID(raw []byte, limit uint32) (uint32, bool) {
	id, err := strconv.ParseUint(string(raw), 10, 32)
	return uint32(id), err == nil && uint32(id) < limit
}

// unquote returns the text of a JSON string, without a copy if it has no escapes.
func unquote(raw []byte) []byte {
	body := raw[1 : len(raw)-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return body
	}
	var s string
	// No error: raw is a valid JSON string.
	_ = json.Unmarshal(raw, &s)
	return []byte(s)
}

// eachMember calls f with the name, still quoted, and the value of each member
// of a JSON object.
func eachMember(raw []byte, f func(key, value []byte) error) error {
	for i := afterSpace(raw, 1); raw[i] != '}'; {
		end := valueEnd(raw, i)
		key := raw[i:end]
		i = afterSpace(raw, afterSpace(raw, end)+1) // over the colon
		end = valueEnd(raw, i)
		if err := f(key, raw[i:end]); err != nil {
			return err
		}
		i = nextItem(raw, end)
	}
	return nil
}

// eachElement calls f with each element of a JSON array.
func eachElement(raw []byte, f func(item []byte) error) error {
	for i := afterSpace(raw, 1); raw[i] != ']'; {
		end := valueEnd(raw, i)
		if err := f(raw[i:end]); err != nil {
			return err
		}
		i = nextItem(raw, end)
	}
	return nil
}

// afterSpace skips white space from i.
func afterSpace(raw []byte, i int) int {
	for raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\t' || raw[i] == '\r' {
		i++
	}
	return i
}

// nextItem returns the start of the next item behind the one that ends at end, or the closing
// bracket.
func nextItem(raw []byte, end int) int {
	i := afterSpace(raw, end)
	if raw[i] == ',' {
		i = afterSpace(raw, i+1)
	}
	return i
}

// valueEnd returns the end of the JSON value that begins at i. A value within
// brackets always has more text after it, so that only a whole document that is
// a bare number could run out of text; parseObject refuses that one first.
func valueEnd(raw []byte, i int) int {
	switch raw[i] {
	case '"':
		return stringEnd(raw, i)
	case '{', '[':
		return bracketEnd(raw, i)
	}
	for raw[i] != ',' && raw[i] != '}' && raw[i] != ']' && raw[i] > ' ' {
		i++
	}
	return i
}

func stringEnd(raw []byte, i int) int {
	for i++; raw[i] != '"'; i++ {
		if raw[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func bracketEnd(raw []byte, i int) int {
	for depth := 0; ; {
		switch raw[i] {
		case '"':
			i = stringEnd(raw, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		i++
		if depth == 0 {
			return i
		}
	}
}
