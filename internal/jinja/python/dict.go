package python

import "github.com/kvindex/kvindex/internal/jinja/exception"

// A Dict is a dict. A host builds it by Set; a template cannot change it. The zero
// Dict is empty.
type Dict struct {
	keys, values []Value
	strings      map[string]int32 // places of string keys, once there are many
	others       map[any]int32    // places of the other keys, by hashKey
}

// LookupCost is the cost of a lookup for each byte of the key, in [Machine.Scan]: it may be
// compared with as many keys as are not in a map.
const LookupCost = manyKeys - 1

// manyKeys is from how many keys on a Dict looks them up in a map.
const manyKeys = 9

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// At returns the i-th key, in order of insertion, and its value.
func (d *Dict) At(i int) (key, value Value) { return d.keys[i], d.values[i] }

// Items returns the keys, in order of insertion, and their values; they must not be changed.
func (d *Dict) Items() (keys, values []Value) { return d.keys, d.values }

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
			if s, ok := AsString(k); ok {
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
		if s, ok := AsString(k); ok && s == key {
			return i
		}
	}
	return -1
}

// get returns the value of a key of any type, or a TypeError if it has no hash.
func (d *Dict) get(m *Machine, key Value) (Value, bool, error) {
	if s, ok := AsString(key); ok {
		v, ok := d.Lookup(s)
		return v, ok, m.Scan(LookupCost * len(s))
	}
	if IsUndefined(key) {
		return nil, false, nil
	}
	h, err := hashKey(key)
	if err != nil {
		return nil, false, err
	}
	if i, ok := d.others[h]; ok {
		return d.values[i], true, nil
	}
	return nil, false, nil
}

// SetValue gives a key of any type a value, as Set does.
func (d *Dict) SetValue(m *Machine, key, value Value) error {
	if err := m.Alloc(128); err != nil {
		return err
	}
	if err := m.Step(2); err != nil {
		return err
	}
	if s, ok := AsString(key); ok {
		if err := m.Scan(LookupCost * len(s)); err != nil {
			return err
		}
		if i := d.find(s); i >= 0 {
			d.values[i] = value
			return nil
		}
		d.add(s, key, value)
		if len(d.keys) == manyKeys {
			return m.Step(20) // for the map
		}
		return nil
	}
	h, err := hashKey(key)
	if err != nil {
		return err
	}
	if i, ok := d.others[h]; ok {
		d.values[i] = value
		return nil
	}
	if d.others == nil {
		if err := m.Alloc(256); err != nil {
			return err
		}
		d.others = make(map[any]int32)
	}
	d.others[h] = int32(len(d.keys))
	d.push(key, value)
	return nil
}

// noneKey is the hash key of None.
type noneKey struct{}

// hashKey returns a value that is equal, as Go compares, for keys that are equal in Python.
// Keys are None, bools, ints of 64 bits, and strings, which are their own.
func hashKey(v Value) (any, error) {
	switch v := v.(type) {
	case nil:
		return noneKey{}, nil
	case bool, int64:
		n, _ := AsInt64(v)
		return n, nil
	case *List, *Dict:
		return nil, exception.New("TypeError", "unhashable type: '%s'", TypeName(v))
	}
	return nil, exception.Unsupported("a %s as a key", TypeName(v))
}
