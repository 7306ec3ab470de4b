package jinja

// dictMethods are the methods of dict that change nothing.
var dictMethods = map[string]method{
	"copy":   {nil, copyDict},
	"get":    {[]string{"/key", "/default?"}, dictGet},
	"items":  {nil, viewOf(viewItems)},
	"keys":   {nil, viewOf(viewKeys)},
	"values": {nil, viewOf(viewValues)},
}

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
