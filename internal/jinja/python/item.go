package python

import (
	"math"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/chars"
	"github.com/kvindex/kvindex/internal/jinja/exception"
)

// Length returns Python's len(v).
func (m *Machine) Length(v Value) (int, error) {
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
		return v.Of.Len(), nil
	case *Range:
		return RangeLength(v), nil
	case *Undefined:
		return 0, nil
	case Object:
		if err := v.Refuse("the length of"); err != nil {
			return 0, err
		}
	}
	return 0, exception.New("TypeError", "object of type '%s' has no len()", TypeName(v))
}

// runes returns how many code points s has.
func (m *Machine) runes(s string) (int, error) {
	if err := m.Chars(2 * len(s)); err != nil {
		return 0, err
	}
	return utf8.RuneCountInString(s), nil
}

// RangeLength returns the length of r, however far apart its ends are, or at most 2^31-1.
func RangeLength(r *Range) int {
	low, high, step := r.Start, r.Stop, uint64(r.Step)
	if r.Step < 0 {
		low, high, step = high, low, -step
	}
	if low >= high {
		return 0
	}
	return int(min((uint64(high)-uint64(low)-1)/step, math.MaxInt32-1)) + 1
}

// At returns the i-th element, which must be there.
func (r *Range) At(i int) Value { return r.Start + int64(i)*r.Step }

// At returns the i-th element of v.
func (v *View) At(i int) Value {
	switch v.Kind {
	case ViewKeys:
		return v.Of.keys[i]
	case ViewValues:
		return v.Of.values[i]
	}
	return v.Of.Pair(i)
}

// intArgument returns an argument that must be an int and fit a ssize_t, as Python converts
// it.
func (m *Machine) intArgument(v Value) (int, error) {
	if n, ok := AsInt64(v); ok {
		return nearestInt(n), nil
	}
	if IsInt(v) {
		return 0, exception.New("OverflowError", "Python int too large to convert to C ssize_t")
	}
	return 0, exception.New("TypeError", "'%s' object cannot be interpreted as an integer", TypeName(v))
}

// nearestInt returns the int nearest to n, where an int has 32 bits.
func nearestInt(n int64) int { return int(max(math.MinInt, min(math.MaxInt, n))) }

// Index returns Python's obj[key].
func (m *Machine) Index(obj, key Value) (Value, error) {
	switch obj := obj.(type) {
	case *Dict:
		v, ok, err := obj.get(m, key)
		if err == nil && !ok {
			err = exception.New("KeyError", "no such key")
		}
		return v, err
	case *List:
		return m.indexItems("list", obj.Items, key)
	case *Tuple:
		return m.indexItems("tuple", obj.Items, key)
	case string:
		s, err := m.indexText(obj, key)
		return charValue(s), err
	case Markup, *Range:
		return nil, exception.Unsupported("an element of a %s", TypeName(obj))
	case *Undefined:
		return nil, obj.Fail()
	}
	return nil, exception.New("TypeError", "'%s' object is not subscriptable", TypeName(obj))
}

// sequencePlace returns the key of a sequence as an int.
func sequencePlace(class string, key Value) (int, error) {
	if i, ok := AsInt64(key); ok {
		return nearestInt(i), nil
	}
	if IsInt(key) {
		return 0, exception.New("IndexError", "cannot fit 'int' into an index-sized integer")
	}
	return 0, exception.New("TypeError", "%s indices must be integers or slices, not %s", class, TypeName(key))
}

func (m *Machine) indexItems(class string, items []Value, key Value) (Value, error) {
	i, err := sequencePlace(class, key)
	if err != nil {
		return nil, err
	}
	if i < 0 {
		i += len(items)
	}
	if i < 0 || i >= len(items) {
		return nil, exception.New("IndexError", "%s index out of range", class)
	}
	return items[i], nil
}

func (m *Machine) indexText(s string, key Value) (string, error) {
	i, err := sequencePlace("string", key)
	if err != nil {
		return "", err
	}
	from, err := m.offset(s, i)
	if err != nil {
		return "", err
	}
	if from == len(s) || i < 0 && from == 0 && i < -utf8.RuneCountInString(s) {
		return "", exception.New("IndexError", "string index out of range")
	}
	_, size := utf8.DecodeRuneInString(s[from:])
	return s[from : from+size], m.Alloc(16)
}

// ASCIIChars are the texts of one ASCII character.
var ASCIIChars = func() (chars [utf8.RuneSelf]Value) {
	for i := range chars {
		chars[i] = string(rune(i))
	}
	return chars
}()

// charValue returns a text of one code point as a Value, without an allocation for
// ASCII.
func charValue(s string) Value {
	if len(s) == 1 {
		return ASCIIChars[s[0]&0x7f]
	}
	return s
}

// offset returns the byte at which the i-th code point of s begins, counted from
// the end if i is negative, and the nearest end of s if there is none.
func (m *Machine) offset(s string, i int) (int, error) {
	if i >= 0 {
		at := forward(s, i)
		return at, m.Chars(2 * at)
	}
	at := backward(s, i)
	return at, m.Chars(2 * (len(s) - at))
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

// Slice returns Python's obj[start:stop:step]; each of the three may be nil.
func (m *Machine) Slice(obj, start, stop, step Value) (Value, error) {
	switch obj := obj.(type) {
	case string:
		return m.sliceText(obj, start, stop, step)
	case *List:
		items, err := m.sliceItems(obj.Items, start, stop, step)
		return &List{Items: items}, err
	case *Tuple:
		items, err := m.sliceItems(obj.Items, start, stop, step)
		return &Tuple{Items: items}, err
	case *Undefined:
		return nil, obj.Fail()
	}
	// Of constants Jinja2 makes that an Undefined, else Python a TypeError.
	return nil, exception.Unsupported("a slice of a %s", TypeName(obj))
}

// sliceBound returns a bound of a slice, or def for None.
func sliceBound(v Value, def int) (int, error) {
	if v == nil {
		return def, nil
	}
	n, ok := AsInt64(v)
	if !ok {
		return 0, exception.Unsupported("a slice by a %s", TypeName(v))
	}
	return nearestInt(n), nil
}

// A span is the part of a slice: count elements from first on, step apart.
type span struct{ first, count, step int }

// sliceSpan resolves a slice of n elements (CPython 3.11, PySlice_AdjustIndices).
func sliceSpan(n int, start, stop, step Value) (span, error) {
	by, err := sliceBound(step, 1)
	if err == nil && by == 0 {
		err = exception.New("ValueError", "slice step cannot be zero")
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

func (m *Machine) sliceItems(items []Value, start, stop, step Value) ([]Value, error) {
	s, err := sliceSpan(len(items), start, stop, step)
	if err != nil {
		return nil, err
	}
	if s.step == 1 {
		return items[s.first : s.first+s.count : s.first+s.count], m.Alloc(24)
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
func (m *Machine) makeItems(n int) error {
	if err := m.AllocMany(n+2, 16); err != nil {
		return err
	}
	return m.Step(n / 8)
}

func (m *Machine) sliceText(s string, start, stop, step Value) (string, error) {
	if by, ok := AsInt64(step); step == nil || ok && by == 1 {
		return m.substring(s, start, stop)
	}
	if err := m.Chars(4 * len(s)); err != nil {
		return "", err
	}
	sp, err := sliceSpan(utf8.RuneCountInString(s), start, stop, step)
	if err != nil {
		return "", err
	}
	if !chars.IsASCII(s) {
		return m.sliceRunes(s, sp)
	}
	if err := m.Alloc(sp.count); err != nil {
		return "", err
	}
	b := make([]byte, sp.count)
	for i := range b {
		b[i] = s[sp.first+i*sp.step]
	}
	return string(b), nil
}

func (m *Machine) sliceRunes(s string, sp span) (string, error) {
	if err := m.Alloc(5 * len(s)); err != nil {
		return "", err
	}
	if err := m.Chars(4 * len(s)); err != nil {
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
func (m *Machine) substring(s string, start, stop Value) (string, error) {
	from, to, err := m.bounds(s, start, stop)
	if err != nil || from >= to {
		return "", err
	}
	return s[from:to], m.Alloc(16)
}

// bounds returns the bytes at which s[start:stop] begins and ends.
func (m *Machine) bounds(s string, start, stop Value) (from, to int, err error) {
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

// Iterate returns Python's iter(v).
func (m *Machine) Iterate(v Value) (*Iterator, error) {
	switch v := v.(type) {
	case *List:
		return m.counted(len(v.Items), func(i int) Value { return v.Items[i] }), nil
	case *Tuple:
		return m.counted(len(v.Items), func(i int) Value { return v.Items[i] }), nil
	case *Dict:
		return m.counted(v.Len(), func(i int) Value { return v.keys[i] }), nil
	case *View:
		it := m.counted(v.Of.Len(), v.At)
		if v.Kind == ViewItems {
			next := it.Next
			it.Next = func() (Value, bool, error) {
				if err := m.Alloc(80); err != nil {
					return nil, false, err
				}
				return next()
			}
		}
		return it, nil
	case *Range:
		return m.counted(RangeLength(v), v.At), nil
	case string:
		return m.eachChar(v)
	case Markup:
		return m.eachChar(string(v))
	case *Undefined:
		return m.counted(0, nil), nil
	case *Iterator:
		return v, nil
	case Object:
		if err := v.Refuse("going through"); err != nil {
			return nil, err
		}
	}
	return nil, exception.New("TypeError", "'%s' object is not iterable", TypeName(v))
}

// counted goes through n elements.
func (m *Machine) counted(n int, at func(i int) Value) *Iterator {
	i := 0
	return &Iterator{Next: func() (Value, bool, error) {
		if i == n {
			return nil, false, nil
		}
		i++
		return at(i - 1), true, m.Alloc(16)
	}}
}

// eachChar goes through the code points of s.
func (m *Machine) eachChar(s string) (*Iterator, error) {
	if err := m.Chars(len(s)); err != nil {
		return nil, err
	}
	return &Iterator{Next: func() (Value, bool, error) {
		if s == "" {
			return nil, false, nil
		}
		_, size := utf8.DecodeRuneInString(s)
		c := s[:size]
		s = s[size:]
		return charValue(c), true, m.Alloc(16)
	}}, nil
}

// List returns the elements of v, which must not be changed.
func (m *Machine) List(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Tuple:
		return v.Items, nil
	case *Dict:
		return v.keys[:len(v.keys):len(v.keys)], nil
	}
	it, err := m.Iterate(v)
	if err != nil {
		return nil, err
	}
	var items []Value
	for {
		v, ok, err := it.Next()
		if err != nil || !ok {
			return items, err
		}
		if err := m.Step(1); err != nil {
			return nil, err
		}
		if err := m.Alloc(32); err != nil {
			return nil, err
		}
		items = append(items, v)
	}
}
