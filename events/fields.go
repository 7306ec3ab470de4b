package events

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/fault"
)

// This file has the tables of fields, and reads the fields of an event by them: by position in
// the array form, by name in the map form. The tables of vllm.go and sglang.go have the
// versions.

// A field is a key of an event.
type field uint8

const (
	fieldHashes field = iota
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtraKeys
	fieldGroup
	fieldGroupKind
	fieldWindow
	fieldLocality
	fieldOwnership
	fieldOrigin
	fieldRemaining
	fieldCacheSalt
	fieldComponent
	fieldComponents
	fieldType
	fieldUnknown
	fieldNameOrMap    // in an array: lora_name, or SGLang's map or label
	fieldGroupOrLabel // in an array: group_idx, or SGLang's label
)

// fieldNames must agree with fieldOf.
var fieldNames = [...]string{
	fieldHashes: "block_hashes", fieldParent: "parent_block_hash", fieldTokens: "token_ids",
	fieldBlockSize: "block_size", fieldLoraID: "lora_id", fieldMedium: "medium",
	fieldLoraName: "lora_name", fieldExtraKeys: "extra_keys", fieldGroup: "group_idx",
	fieldGroupKind: "kv_cache_spec_kind", fieldWindow: "kv_cache_spec_sliding_window",
	fieldLocality: "locality", fieldOwnership: "ownership", fieldOrigin: "origin",
	fieldRemaining: "remaining_copy_counts", fieldCacheSalt: "cache_salt",
	fieldComponent: "component_type", fieldComponents: "component_types", fieldType: "type",
	fieldNameOrMap: "lora_name", fieldGroupOrLabel: "group_idx",
}

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoraName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldGroupKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "origin":
		return fieldOrigin
	case "remaining_copy_counts":
		return fieldRemaining
	case "cache_salt":
		return fieldCacheSalt
	case "component_type":
		return fieldComponent
	case "component_types":
		return fieldComponents
	case "type":
		return fieldType
	}
	return fieldUnknown
}

// A fieldSet has bit 1<<f for each field f in it.
type fieldSet uint32

func (s fieldSet) has(f field) bool { return s>>f&1 != 0 }

// A layout is the form of an event.
type layout struct {
	name       string
	positional []field  // the fields of the array form
	required   int      // the array form has that many of them at least
	order      []field  // the fields of the map form as they are written
	known      fieldSet // the keys of the map form
	always     fieldSet // the map form has these
	varying    fieldSet // fields that differ from event to event, and the type: these come first
}

// kinds has the layout of each Kind; the zero Kind stands for unknown ones.
var kinds = [...]layout{
	0: {name: "event of an unknown kind", known: 1 << fieldType},
	Stored: {
		name: "BlockStored",
		positional: []field{
			fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
			fieldNameOrMap, fieldExtraKeys, fieldGroup, fieldGroupKind, fieldWindow,
		},
		order: []field{
			fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
			fieldLoraName, fieldExtraKeys, fieldGroup, fieldGroupKind, fieldWindow,
			fieldLocality, fieldOwnership,
		},
		known:    (1<<fieldUnknown - 1) &^ (1 << fieldRemaining),
		required: 4,
		always:   1<<fieldHashes | 1<<fieldTokens,
		varying:  1<<fieldType | 1<<fieldHashes | 1<<fieldParent | 1<<fieldTokens,
	},
	Removed: {
		name:       "BlockRemoved",
		positional: []field{fieldHashes, fieldMedium, fieldGroupOrLabel},
		order:      []field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwnership},
		known: 1<<fieldType | 1<<fieldHashes | 1<<fieldMedium | 1<<fieldGroup |
			1<<fieldLocality | 1<<fieldOwnership | 1<<fieldRemaining | 1<<fieldComponent,
		required: 1,
		always:   1 << fieldHashes,
		varying:  1<<fieldType | 1<<fieldHashes,
	},
	Cleared: {name: "AllBlocksCleared", positional: []field{fieldMedium}, known: 1<<fieldType | 1<<fieldMedium},
}

// As engines write it: the names in the short form of a str, and the type first.
var (
	writtenFields = func() (w [fieldUnknown]string) {
		for f := range w {
			w[f] = shortStr(fieldNames[f])
		}
		return w
	}()
	writtenTypes = [...]string{
		Stored:  writtenFields[fieldType] + shortStr(kinds[Stored].name),
		Removed: writtenFields[fieldType] + shortStr(kinds[Removed].name),
		Cleared: writtenFields[fieldType] + shortStr(kinds[Cleared].name),
	}
)

// shortStr returns the encoding of a str of less than 32 bytes.
func shortStr(s string) string { return string([]byte{0xa0 | byte(len(s))}) + s }

// eventArray reads the array form: the name of the kind and n-1 fields.
func (d *decoder) eventArray(n int) error {
	if n == 0 {
		return fault.Errorf(fault.Missing, "an empty list is not an event")
	}
	k, err := d.kind()
	if err != nil {
		return err
	}
	n--
	d.begin(k)
	if n < kinds[k].required {
		return fault.Errorf(fault.Missing, "%s: %d fields are too few", kinds[k].name, n)
	}
	err = d.items(&kinds[k], n)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	return nil
}

// items reads n items of an array: the values of the fields that have a position.
func (d *decoder) items(l *layout, n int) error {
	read := l.positional[:min(n, len(l.positional))]
	seen := fieldSet(1 << fieldType)
	for i, f := range read {
		if err := d.value(f); err != nil {
			return fmt.Errorf("%s: %w", fieldNames[f], err)
		}
		seen |= 1 << f
		if seen == l.varying && d.repeats(ending{fields: n - i - 1, start: d.off}) {
			return nil
		}
	}
	return d.skipItems(n - len(read))
}

// eventMap reads the map form, of n keys in any order.
func (d *decoder) eventMap(n int) error {
	start := d.off
	k, at, err := d.findType(n)
	if err != nil {
		return err
	}
	d.begin(k)
	if at == n { // without a type, all pairs were skipped
		d.b.unrecognized(true, "event without a type", nil)
		return nil
	}
	var seen fieldSet
	if at == 0 { // vLLM's place
		seen = 1 << fieldType
		n--
	} else {
		d.off = start
	}
	if err := d.pairs(&kinds[k], n, &seen); err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	if missing := kinds[k].always &^ seen; missing != 0 {
		for f := range fieldUnknown {
			if missing.has(f) {
				return fault.Errorf(fault.Missing, "%s: %s is missing", kinds[k].name, fieldNames[f])
			}
		}
	}
	if err := d.end(); err != nil {
		return fmt.Errorf("%s: %w", kinds[k].name, err)
	}
	return nil
}

// findType reads the pairs of a map up to its type, the pair number at. Without a type it
// reads all n and returns n.
func (d *decoder) findType(n int) (k Kind, at int, err error) {
	for k := Stored; n > 0 && k <= Cleared; k++ {
		if d.at(writtenTypes[k]) {
			return k, 0, nil
		}
	}
	for at = range n {
		f, err := d.key()
		if err != nil {
			return 0, 0, err
		}
		if f == fieldType {
			k, err = d.kind()
			return k, at, err
		}
		if err := d.skip(); err != nil {
			return 0, 0, err
		}
	}
	return 0, n, nil
}

// pairs reads n pairs of a map: the values of the known fields, which it adds to seen. Engines
// write them in order, and leave some out.
func (d *decoder) pairs(l *layout, n int, seen *fieldSet) error {
	order := l.order
	for i := range n {
		var f field
		if len(order) > 0 && d.at(writtenFields[order[0]]) {
			f, order = order[0], order[1:]
		} else {
			var err error
			if f, err = d.key(); err != nil {
				return err
			}
			order = order[1+slices.Index(order, f):]
		}
		if !l.known.has(f) {
			if err := d.skip(); err != nil {
				return err
			}
			continue
		}
		if seen.has(f) {
			return fault.Errorf(fault.Contradiction, "the key %s is repeated", fieldNames[f])
		}
		*seen |= 1 << f
		if err := d.value(f); err != nil {
			return fmt.Errorf("%s: %w", fieldNames[f], err)
		}
		if *seen == l.varying && d.repeats(ending{fields: i + 1 - n, start: d.off}) {
			return nil
		}
	}
	return nil
}

func (d *decoder) key() (field, error) {
	key, err := d.str()
	if err != nil {
		return 0, fmt.Errorf("key: %w", err)
	}
	f := fieldOf(key)
	if f == fieldUnknown && !utf8.Valid(key) {
		return 0, fmt.Errorf("key: %w", errUTF8)
	}
	return f, nil
}

// kind reads the name of a kind: 0 for an unknown one.
func (d *decoder) kind() (Kind, error) {
	name, err := d.str()
	if err != nil {
		return 0, fmt.Errorf("kind: %w", err)
	}
	switch string(name) {
	case "BlockStored", "BlockStoredWithComponentType":
		return Stored, nil
	case "BlockRemoved", "BlockRemovedWithComponentType":
		return Removed, nil
	case "AllBlocksCleared":
		return Cleared, nil
	}
	if !utf8.Valid(name) {
		return 0, fmt.Errorf("kind: %w", errUTF8)
	}
	d.b.unrecognized(true, "event kind", name)
	return 0, nil
}
