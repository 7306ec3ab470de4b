package jinja

// The methods of dict and its views that change nothing.
var (
	dictMethods = map[string]method{
		"copy":   {nil, copyDict},
		"get":    {[]string{"/key", "/default?"}, dictGet},
		"items":  {nil, viewOf(viewItems)},
		"keys":   {nil, viewOf(viewKeys)},
		"values": {nil, viewOf(viewValues)},
	}
	viewMethods = map[string]method{
		"isdisjoint": {[]string{"/other"}, isDisjoint},
	}
)

// copyDict shares all that the dict holds, which no template changes.
func copyDict(m *machine, self Value, _ []Value) (Value, error) {
	d := *self.(*Dict)
	return &d, m.alloc(64)
}

func dictGet(m *machine, self Value, a []Value) (Value, error) {
	v, ok, err := self.(*Dict).get(m, a[0])
	if err == nil && !ok && a[1] != missing {
		return a[1], nil
	}
	return v, err
}

func viewOf(kind viewKind) func(*machine, Value, []Value) (Value, error) {
	return func(m *machine, self Value, _ []Value) (Value, error) {
		return &View{self.(*Dict), kind}, m.alloc(16)
	}
}

// isDisjoint reports whether a view of keys or items has no element of what is
// iterated. Of two such views the shorter is.
func isDisjoint(m *machine, self Value, a []Value) (Value, error) {
	other := a[0]
	if isSetView(other) && isSetView(self) && other.(*View).of.Len() > self.(*View).of.Len() {
		self, other = other, self
	}
	items, err := m.list(other)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if err := m.step(1); err != nil {
			return nil, err
		}
		if ok, err := m.contains(item, self); err != nil || ok {
			return false, err
		}
	}
	return true, nil
}
