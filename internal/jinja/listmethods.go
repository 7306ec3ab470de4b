package jinja

// The methods of list and tuple that change nothing.
var (
	listMethods = map[string]method{
		"copy": {nil, func(m *machine, self Value, _ []Value) (Value, error) {
			return &List{Items: elements(self)}, m.alloc(24)
		}},
		"count": {[]string{"/value"}, countItems},
		"index": {[]string{"/value", "/start?", "/stop?"}, indexOf},
	}
	tupleMethods = map[string]method{
		"count": {[]string{"/value"}, countItems},
		"index": {[]string{"/value", "/start?", "/stop?"}, indexOf},
	}
)

func elements(v Value) []Value {
	if t, ok := v.(*Tuple); ok {
		return t.Items
	}
	return v.(*List).Items
}

func countItems(m *machine, self Value, a []Value) (Value, error) {
	n := int64(0)
	for _, item := range elements(self) {
		ok, err := m.same(item, a[0])
		if err != nil {
			return nil, err
		}
		n += boolInt(ok)
	}
	return n, nil
}

// indexOf is index of a list or a tuple.
func indexOf(m *machine, self Value, a []Value) (Value, error) {
	items := elements(self)
	from, to := 0, len(items)
	for _, bound := range []struct {
		arg Value
		to  *int
	}{{a[1], &from}, {a[2], &to}} {
		if bound.arg == missing {
			continue
		}
		if bound.arg == nil {
			return nil, raise("TypeError", "slice indices must be integers or have an __index__ method")
		}
		i, err := clamped(bound.arg, 0, len(items), 0, len(items))
		if err != nil {
			return nil, err
		}
		*bound.to = i
	}
	for i := from; i < to; i++ {
		if ok, err := m.same(items[i], a[0]); err != nil || ok {
			return int64(i), err
		}
	}
	return nil, raise("ValueError", "%s.index(x): x not in %[1]s", typeName(self))
}
