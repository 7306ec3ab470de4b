package jinja

import (
	"encoding/binary"
	"math"
	"math/big"
)

// A Dict is a dict. A host builds it by Set; a template cannot change it. The zero
// Dict is empty.
type Dict struct {
	keys, values []Value
	strings      map[string]int32 // places of string keys, once there are many
	others       map[any]int32    // places of the other keys, by their hashKey
}

// lookup is the cost of a lookup for each byte of the key, in [machine.scan]: it may be
// compared with as many keys as are not in a map.
const lookup = manyKeys - 1

// manyKeys is from how many keys on a Dict looks them up in a map.
const manyKeys = 9

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// At returns the i-th key, in order of insertion, and its value.
func (d *Dict) At(i int) (key, value Value) { return d.keys[i], d.values[i] }

// Lookup returns the value of a string key.
func (d *Dict) Lookup(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// Set gives a string key a value. A key that is there keeps its place.
func (d *Dict) Set(key string, value Value) {
	if i := d.find(key); i >= 0 {
		d.values[i] = value
		return
	}
	d.add(key, key, value)
}

// SetKey is Set for a string that is a Value already, and allocates none for it.
func (d *Dict) SetKey(key, value Value) {
	s, _ := key.(string)
	if i := d.find(s); i >= 0 {
		d.values[i] = value
		return
	}
	d.add(s, key, value)
}

// push appends a key, for which keys and values get memory together. Most have two keys.
func (d *Dict) push(key, value Value) {
	if len(d.keys) == cap(d.keys) {
		n := max(2, 2*len(d.keys))
		room := make([]Value, 2*n)
		d.keys, d.values = append(room[:0:n], d.keys...), append(room[n:n], d.values...)
	}
	d.keys, d.values = append(d.keys, key), append(d.values, value)
}

// add appends a key that is not there; s is its text.
func (d *Dict) add(s string, key, value Value) {
	d.push(key, value)
	if d.strings != nil {
		d.strings[s] = int32(len(d.keys) - 1)
	} else if len(d.keys) >= manyKeys {
		d.strings = make(map[string]int32, 2*manyKeys)
		for i, k := range d.keys {
			if s, ok := asString(k); ok {
				d.strings[s] = int32(i)
			}
		}
	}
}

func (d *Dict) find(key string) int {
	if d.strings != nil {
		if i, ok := d.strings[key]; ok {
			return int(i)
		}
		return -1
	}
	for i, k := range d.keys {
		if s, ok := asString(k); ok && s == key {
			return i
		}
	}
	return -1
}

// get returns the value of a key of any type, or a TypeError if it has no hash.
func (d *Dict) get(m *machine, key Value) (Value, bool, error) {
	if s, ok := asString(key); ok {
		v, ok := d.Lookup(s)
		return v, ok, m.scan(lookup * len(s))
	}
	h, err := m.hashKey(key)
	if err != nil {
		return nil, false, err
	}
	if i, ok := d.others[h]; ok {
		return d.values[i], true, nil
	}
	return nil, false, nil
}

// set gives a key of any type a value, as Set does.
func (d *Dict) set(m *machine, key, value Value) error {
	if err := m.alloc(128); err != nil {
		return err
	}
	if err := m.step(2); err != nil {
		return err
	}
	if s, ok := asString(key); ok {
		if err := m.scan(lookup * len(s)); err != nil {
			return err
		}
		if i := d.find(s); i >= 0 {
			d.values[i] = value
			return nil
		}
		d.add(s, key, value)
		if len(d.keys) == manyKeys {
			return m.step(20) // for the map
		}
		return nil
	}
	h, err := m.hashKey(key)
	if err != nil {
		return err
	}
	if i, ok := d.others[h]; ok {
		d.values[i] = value
		return nil
	}
	if d.others == nil {
		if err := m.alloc(256); err != nil {
			return err
		}
		d.others = make(map[any]int32)
	}
	d.others[h] = int32(len(d.keys))
	d.push(key, value)
	return nil
}

// The hash keys of values that are not their own.
type (
	noneKey      struct{}
	undefinedKey struct{}
	floatKey     uint64
	bigKey       string
	tupleKey     string
	rangeKey     struct{ length, start, step int64 }
)

// hashKey returns a value that is equal, as Go compares, for keys that are equal in Python.
func (m *machine) hashKey(v Value) (any, error) {
	switch v := v.(type) {
	case nil:
		return noneKey{}, nil
	case bool, int64:
		n, _ := asInt64(v)
		return n, nil
	case *big.Int:
		if err := m.alloc(v.BitLen() / 4); err != nil {
			return nil, err
		}
		if err := m.chars(v.BitLen()); err != nil {
			return nil, err
		}
		return bigKey(v.Append(nil, 16)), nil
	case float64:
		if err := m.step(floatWork(v) / 8); err != nil {
			return nil, err
		}
		return floatHash(v)
	case string:
		return v, nil
	case Markup:
		return string(v), nil
	case *Tuple:
		return m.tupleHash(v)
	case *Range:
		return rangeHash(v), nil
	case *Undefined:
		return undefinedKey{}, nil
	case *List, *Dict:
		return nil, raise("TypeError", "unhashable type: '%s'", typeName(v))
	case *View:
		if v.kind != viewValues {
			return nil, raise("TypeError", "unhashable type: '%s'", typeName(v))
		}
		return v, nil
	case *boundMethod:
		return nil, unsupported("a method as a key")
	}
	return v, nil
}

func floatHash(f float64) (any, error) {
	switch {
	case f != f:
		return nil, unsupported("nan as a key")
	case f != math.Trunc(f) || math.IsInf(f, 0):
		return floatKey(math.Float64bits(f)), nil
	}
	switch n := floatInt(f).(type) {
	case *big.Int:
		return bigKey(n.Append(nil, 16)), nil
	default:
		return n, nil
	}
}

func rangeHash(r *Range) rangeKey {
	k := rangeKey{length: r.length(), start: r.Start, step: r.Step}
	if k.length < 2 {
		k.step = 0
	}
	if k.length < 1 {
		k.start = 0
	}
	return k
}

// tupleHash joins the hash keys of t's elements, each behind its kind and length.
func (m *machine) tupleHash(t *Tuple) (any, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	var b []byte
	part := func(kind byte, s string) error {
		if err := m.alloc(2*len(s) + 16); err != nil {
			return err
		}
		b = append(binary.AppendUvarint(append(b, kind), uint64(len(s))), s...)
		return nil
	}
	for _, item := range t.Items {
		if err := m.step(2); err != nil {
			return nil, err
		}
		h, err := m.hashKey(item)
		if err != nil {
			return nil, err
		}
		switch h := h.(type) {
		case noneKey:
			err = part('N', "")
		case undefinedKey:
			err = part('U', "")
		case int64:
			err = part('i', string(binary.AppendVarint(nil, h)))
		case floatKey:
			err = part('f', string(binary.AppendUvarint(nil, uint64(h))))
		case bigKey:
			err = part('b', string(h))
		case string:
			err = part('s', h)
		case tupleKey:
			err = part('t', string(h))
		case rangeKey:
			r := binary.AppendVarint(nil, h.length)
			err = part('r', string(binary.AppendVarint(binary.AppendVarint(r, h.start), h.step)))
		default:
			err = unsupported("%s in a tuple as a key", typeName(item))
		}
		if err != nil {
			return nil, err
		}
	}
	return tupleKey(b), nil
}
