package jinja

import (
	"math"
	"math/big"
	"unicode/utf8"
)

// length returns Python's len(v).
func (m *machine) length(v Value) (int, error) {
	switch v := v.(type) {
	case string:
		return m.runes(v)
	case Markup:
		return m.runes(string(v))
	case *List:
		return len(v.Items), nil
	case *Tuple:
		return len(v.Items), nil
	case *Dict:
		return v.Len(), nil
	case *View:
		return v.of.Len(), nil
	case *Range:
		if n := v.length(); n >= 0 {
			return int(n), nil
		}
		return 0, raise("OverflowError", "Python int too large to convert to C ssize_t")
	case *Undefined:
		return 0, nil
	case object:
		if n, ok, err := v.attr(m, "length"); ok && v.typeName() == "LoopContext" {
			n, _ := n.(int64)
			return int(n), err
		}
	}
	return 0, raise("TypeError", "object of type '%s' has no len()", typeName(v))
}

// runes returns how many code points s has.
func (m *machine) runes(s string) (int, error) {
	if err := m.chars(2 * len(s)); err != nil {
		return 0, err
	}
	return utf8.RuneCountInString(s), nil
}

// length returns how many elements r has, or -1 if that does not fit int64.
func (r *Range) length() int64 {
	from, to, step := r.Start, r.Stop, uint64(r.Step)
	if r.Step < 0 {
		from, to, step = to, from, -step
	}
	if from >= to {
		return 0
	}
	n := (uint64(to)-uint64(from)-1)/step + 1
	if n > math.MaxInt64 {
		return -1
	}
	return int64(n)
}

// at returns the i-th element, which must be there.
func (r *Range) at(i int64) int64 { return r.Start + i*r.Step }

// has reports whether n is an element.
func (r *Range) has(n int64) bool { return r.find(n) >= 0 }

// find returns the place of n, or -1.
func (r *Range) find(n int64) int64 {
	step, off := uint64(r.Step), uint64(n)-uint64(r.Start)
	if r.Step > 0 && (n < r.Start || n >= r.Stop) || r.Step < 0 && (n > r.Start || n <= r.Stop) {
		return -1
	}
	if r.Step < 0 {
		step, off = -step, -off
	}
	if off%step != 0 {
		return -1
	}
	return int64(off / step)
}

// at returns the i-th element of v.
func (v *View) at(i int) Value {
	switch v.kind {
	case viewKeys:
		return v.of.keys[i]
	case viewValues:
		return v.of.values[i]
	}
	return v.of.pair(i)
}

// intArgument returns an argument that must be an int and fit a ssize_t, as Python converts
// it.
func (m *machine) intArgument(v Value) (int, error) {
	if n, ok := asInt64(v); ok {
		return nearestInt(n), nil
	}
	if _, ok := v.(*big.Int); ok {
		return 0, raise("OverflowError", "Python int too large to convert to C ssize_t")
	}
	return 0, raise("TypeError", "'%s' object cannot be interpreted as an integer", typeName(v))
}

// nearestInt returns the int nearest to n, where an int has 32 bits.
func nearestInt(n int64) int { return int(max(math.MinInt, min(math.MaxInt, n))) }

// index returns Python's obj[key].
func (m *machine) index(obj, key Value) (Value, error) {
	switch obj := obj.(type) {
	case *Dict:
		v, ok, err := obj.get(m, key)
		if err == nil && !ok {
			err = m.keyError(key)
		}
		return v, err
	case *List:
		return m.indexItems("list", obj.Items, key)
	case *Tuple:
		return m.indexItems("tuple", obj.Items, key)
	case string:
		s, err := m.indexText(obj, key)
		return charValue(s), err
	case Markup:
		s, err := m.indexText(string(obj), key)
		return Markup(s), err
	case *Range:
		return m.indexRange(obj, key)
	case *Undefined:
		return nil, obj.fail()
	}
	return nil, raise("TypeError", "'%s' object is not subscriptable", typeName(obj))
}

func (m *machine) keyError(key Value) error {
	s, err := m.repr(key)
	if err != nil {
		s = typeName(key)
	}
	return raise("KeyError", "%s", s)
}

// sequencePlace returns the key of a sequence as an int.
func sequencePlace(class string, key Value) (int, error) {
	if i, ok := asInt64(key); ok {
		return nearestInt(i), nil
	}
	if _, ok := key.(*big.Int); ok {
		return 0, raise("IndexError", "cannot fit 'int' into an index-sized integer")
	}
	return 0, raise("TypeError", "%s indices must be integers or slices, not %s", class, typeName(key))
}

func (m *machine) indexItems(class string, items []Value, key Value) (Value, error) {
	i, err := sequencePlace(class, key)
	if err != nil {
		return nil, err
	}
	if i < 0 {
		i += len(items)
	}
	if i < 0 || i >= len(items) {
		return nil, raise("IndexError", "%s index out of range", class)
	}
	return items[i], nil
}

func (m *machine) indexText(s string, key Value) (string, error) {
	i, err := sequencePlace("string", key)
	if err != nil {
		return "", err
	}
	from, err := m.offset(s, i)
	if err != nil {
		return "", err
	}
	if from == len(s) || i < 0 && from == 0 && i < -utf8.RuneCountInString(s) {
		return "", raise("IndexError", "string index out of range")
	}
	_, size := utf8.DecodeRuneInString(s[from:])
	return s[from : from+size], m.alloc(16)
}

// asciiChars are the texts of one ASCII character.
var asciiChars = func() (chars [utf8.RuneSelf]Value) {
	for i := range chars {
		chars[i] = string(rune(i))
	}
	return chars
}()

// charValue returns a text of one code point as a Value, without an allocation for
// ASCII.
func charValue(s string) Value {
	if len(s) == 1 {
		return asciiChars[s[0]&0x7f]
	}
	return s
}

// offset returns the byte at which the i-th code point of s begins, counted from
// the end if i is negative, and the nearest end of s if there is none.
func (m *machine) offset(s string, i int) (int, error) {
	if i >= 0 {
		at := forward(s, i)
		return at, m.chars(2 * at)
	}
	at := backward(s, i)
	return at, m.chars(2 * (len(s) - at))
}

func forward(s string, n int) int {
	for at := 0; at < len(s); at++ {
		if !utf8.RuneStart(s[at]) {
			continue
		}
		if n == 0 {
			return at
		}
		n--
	}
	return len(s)
}

func backward(s string, n int) int {
	at := len(s)
	for ; at > 0 && n < 0; n++ {
		for at--; !utf8.RuneStart(s[at]); at-- {
		}
	}
	return at
}

func (m *machine) indexRange(r *Range, key Value) (Value, error) {
	n := r.length()
	if n < 0 {
		return nil, unsupported("an element of a range that long")
	}
	i, ok := asInt64(key)
	if _, big := key.(*big.Int); !ok && !big {
		return nil, raise("TypeError", "range indices must be integers or slices, not %s", typeName(key))
	}
	if i < 0 {
		i += n
	}
	if !ok || i < 0 || i >= n {
		return nil, raise("IndexError", "range object index out of range")
	}
	return r.at(i), nil
}

// slice returns Python's obj[start:stop:step]; each of the three may be nil.
func (m *machine) slice(obj, start, stop, step Value) (Value, error) {
	switch obj := obj.(type) {
	case string:
		return m.sliceText(obj, start, stop, step)
	case Markup:
		s, err := m.sliceText(string(obj), start, stop, step)
		return Markup(s), err
	case *List:
		items, err := m.sliceItems(obj.Items, start, stop, step)
		return &List{Items: items}, err
	case *Tuple:
		items, err := m.sliceItems(obj.Items, start, stop, step)
		return &Tuple{Items: items}, err
	case *Range:
		if err := m.step(raising); err != nil {
			return nil, err
		}
		return sliceRange(obj, start, stop, step)
	case *Undefined:
		return nil, obj.fail()
	case *Dict:
		return nil, raise("TypeError", "unhashable type: 'slice'")
	}
	return nil, raise("TypeError", "'%s' object is not subscriptable", typeName(obj))
}

// sliceBound returns a bound of a slice, or def for None. Ints that do not fit are
// cut, as CPython does.
func sliceBound(v Value, def int) (int, error) {
	switch v := v.(type) {
	case nil:
		return def, nil
	case int64:
		return nearestInt(v), nil
	case bool:
		return int(boolInt(v)), nil
	case *big.Int:
		if v.Sign() < 0 {
			return math.MinInt, nil
		}
		return math.MaxInt, nil
	}
	return 0, raise("TypeError", "slice indices must be integers or None or have an __index__ method")
}

// A span is the part of a slice: count elements from first on, step apart.
type span struct{ first, count, step int }

// sliceSpan resolves a slice of n elements (CPython 3.11, PySlice_AdjustIndices).
func sliceSpan(n int, start, stop, step Value) (span, error) {
	by, err := sliceBound(step, 1)
	if err == nil && by == 0 {
		err = raise("ValueError", "slice step cannot be zero")
	}
	if err != nil {
		return span{}, err
	}
	by = max(by, -math.MaxInt)
	lowest, highest := 0, n
	from, to := 0, n
	if by < 0 {
		lowest, highest = -1, n-1
		from, to = n-1, -1
	}
	if from, err = clamped(start, from, n, lowest, highest); err != nil {
		return span{}, err
	}
	if to, err = clamped(stop, to, n, lowest, highest); err != nil {
		return span{}, err
	}
	count := 0
	switch {
	case by > 0 && from < to:
		count = (to-from-1)/by + 1
	case by < 0 && to < from:
		count = (from-to-1)/-by + 1
	}
	return span{from, count, by}, nil
}

// clamped returns a bound counted from the start and within lowest and highest.
func clamped(v Value, def, n, lowest, highest int) (int, error) {
	if v == nil {
		return def, nil
	}
	i, err := sliceBound(v, 0)
	if i < 0 {
		i += n
	}
	return max(lowest, min(i, highest)), err
}

func (m *machine) sliceItems(items []Value, start, stop, step Value) ([]Value, error) {
	s, err := sliceSpan(len(items), start, stop, step)
	if err != nil {
		return nil, err
	}
	if s.step == 1 {
		return items[s.first : s.first+s.count : s.first+s.count], m.alloc(24)
	}
	if err := m.makeItems(s.count); err != nil {
		return nil, err
	}
	picked := make([]Value, s.count)
	for i := range picked {
		picked[i] = items[s.first+i*s.step]
	}
	return picked, nil
}

// makeItems charges a list of n elements.
func (m *machine) makeItems(n int) error {
	if err := m.allocMany(n+2, 16); err != nil {
		return err
	}
	return m.step(n / 8)
}

func (m *machine) sliceText(s string, start, stop, step Value) (string, error) {
	if by, ok := asInt64(step); step == nil || ok && by == 1 {
		return m.substring(s, start, stop)
	}
	if err := m.chars(4 * len(s)); err != nil {
		return "", err
	}
	sp, err := sliceSpan(utf8.RuneCountInString(s), start, stop, step)
	if err != nil {
		return "", err
	}
	if !isASCII(s) {
		return m.sliceRunes(s, sp)
	}
	if err := m.alloc(sp.count); err != nil {
		return "", err
	}
	b := make([]byte, sp.count)
	for i := range b {
		b[i] = s[sp.first+i*sp.step]
	}
	return string(b), nil
}

func (m *machine) sliceRunes(s string, sp span) (string, error) {
	if err := m.alloc(5 * len(s)); err != nil {
		return "", err
	}
	if err := m.chars(4 * len(s)); err != nil {
		return "", err
	}
	runes := []rune(s)
	b := make([]byte, 0, sp.count)
	for i := range sp.count {
		b = utf8.AppendRune(b, runes[sp.first+i*sp.step])
	}
	return string(b), nil
}

// substring returns s[start:stop] without going further into s than needed.
func (m *machine) substring(s string, start, stop Value) (string, error) {
	from, to, err := m.bounds(s, start, stop)
	if err != nil || from >= to {
		return "", err
	}
	return s[from:to], m.alloc(16)
}

// bounds returns the bytes at which s[start:stop] begins and ends.
func (m *machine) bounds(s string, start, stop Value) (from, to int, err error) {
	to = len(s)
	if start != nil {
		i, err := sliceBound(start, 0)
		if err != nil {
			return 0, 0, err
		}
		if from, err = m.offset(s, i); err != nil {
			return 0, 0, err
		}
	}
	if stop != nil {
		i, err := sliceBound(stop, 0)
		if err != nil {
			return 0, 0, err
		}
		if to, err = m.offset(s, i); err != nil {
			return 0, 0, err
		}
	}
	return from, to, nil
}

func sliceRange(r *Range, start, stop, step Value) (Value, error) {
	n := r.length()
	if n < 0 || n > math.MaxInt {
		return nil, unsupported("a slice of a range that long")
	}
	if by, ok := asInt64(step); isInt(step) && (!ok || by != int64(int(by)) || by == math.MinInt) {
		return nil, unsupported("a step that long")
	}
	s, err := sliceSpan(int(n), start, stop, step)
	if err != nil {
		return nil, err
	}
	var by, first, end big.Int
	by.Mul(big.NewInt(r.Step), big.NewInt(int64(s.step)))
	first.Add(big.NewInt(r.Start), first.Mul(big.NewInt(int64(s.first)), big.NewInt(r.Step)))
	last, err := sliceSpanStop(int(n), stop, s.step)
	if err != nil {
		return nil, err
	}
	end.Add(big.NewInt(r.Start), end.Mul(big.NewInt(int64(last)), big.NewInt(r.Step)))
	if !by.IsInt64() || !first.IsInt64() || !end.IsInt64() {
		return nil, unsupported("a range beyond 64 bits")
	}
	return &Range{Start: first.Int64(), Stop: end.Int64(), Step: by.Int64()}, nil
}

// sliceSpanStop returns where a slice of n elements stops.
func sliceSpanStop(n int, stop Value, step int) (int, error) {
	if step < 0 {
		return clamped(stop, -1, n, -1, n-1)
	}
	return clamped(stop, n, n, 0, n)
}

// iterate returns Python's iter(v).
func (m *machine) iterate(v Value) (*Iterator, error) {
	switch v := v.(type) {
	case *List:
		return m.counted("list_iterator", len(v.Items), func(i int) Value { return v.Items[i] }), nil
	case *Tuple:
		return m.counted("tuple_iterator", len(v.Items), func(i int) Value { return v.Items[i] }), nil
	case *Dict:
		return m.counted("dict_keyiterator", v.Len(), func(i int) Value { return v.keys[i] }), nil
	case *View:
		class := [...]string{viewKeys: "dict_keyiterator", viewValues: "dict_valueiterator", viewItems: "dict_itemiterator"}[v.kind]
		it := m.counted(class, v.of.Len(), v.at)
		if v.kind == viewItems {
			next := it.next
			it.next = func() (Value, bool, error) {
				if err := m.alloc(80); err != nil {
					return nil, false, err
				}
				return next()
			}
		}
		return it, nil
	case *Range:
		n := v.length()
		if n < 0 || n > math.MaxInt {
			return nil, unsupported("going through a range that long")
		}
		return m.counted("range_iterator", int(n), func(i int) Value { return v.at(int64(i)) }), nil
	case string:
		return m.eachChar(v)
	case Markup:
		return m.eachChar(string(v))
	case *Undefined:
		return m.counted("generator", 0, nil), nil
	case *Iterator:
		return v, nil
	case object:
		if v.typeName() == "LoopContext" {
			return nil, unsupported("going through the loop variable")
		}
	}
	return nil, raise("TypeError", "'%s' object is not iterable", typeName(v))
}

// counted goes through n elements.
func (m *machine) counted(class string, n int, at func(i int) Value) *Iterator {
	i := 0
	return &Iterator{class: class, next: func() (Value, bool, error) {
		if i == n {
			return nil, false, nil
		}
		i++
		return at(i - 1), true, m.alloc(16)
	}}
}

// eachChar goes through the code points of s.
func (m *machine) eachChar(s string) (*Iterator, error) {
	if err := m.chars(len(s)); err != nil {
		return nil, err
	}
	class := "str_iterator"
	if isASCII(s) {
		class = "str_ascii_iterator"
	}
	return &Iterator{class: class, next: func() (Value, bool, error) {
		if s == "" {
			return nil, false, nil
		}
		_, size := utf8.DecodeRuneInString(s)
		c := s[:size]
		s = s[size:]
		return charValue(c), true, m.alloc(16)
	}}, nil
}

// list returns the elements of v, which must not be changed.
func (m *machine) list(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Tuple:
		return v.Items, nil
	case *Dict:
		return v.keys[:len(v.keys):len(v.keys)], nil
	}
	it, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	var items []Value
	for {
		v, ok, err := it.next()
		if err != nil || !ok {
			return items, err
		}
		if err := m.step(1); err != nil {
			return nil, err
		}
		if err := m.alloc(32); err != nil {
			return nil, err
		}
		items = append(items, v)
	}
}
