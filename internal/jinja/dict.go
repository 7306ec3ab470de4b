package jinja

// A Dict is a dict. A host builds it by Set; a template cannot change it. The zero
// Dict is empty.
type Dict struct {
	keys, values []Value
	strings      map[string]int32 // places of string keys, once there are many
}

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
	d.keys, d.values = append(d.keys, key), append(d.values, value)
	if d.strings != nil {
		d.strings[key] = int32(len(d.keys) - 1)
	} else if len(d.keys) >= manyKeys {
		d.strings = make(map[string]int32, 2*manyKeys)
		for i, k := range d.keys {
			if s, ok := k.(string); ok {
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
		if s, ok := k.(string); ok && s == key {
			return i
		}
	}
	return -1
}
