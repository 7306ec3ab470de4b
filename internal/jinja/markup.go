package jinja

import "strings"

var escaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// escape returns the text of markupsafe's escape(v) (3.0.3).
func (m *machine) escape(v Value) (string, error) {
	if s, ok := v.(Markup); ok {
		return string(s), nil
	}
	s, err := m.str(v)
	if err != nil {
		return "", err
	}
	if err := m.chars(3 * len(s)); err != nil || !strings.ContainsAny(s, `&><'"`) {
		return s, err
	}
	// Each character becomes at most five.
	if err := m.alloc(5 * len(s)); err != nil {
		return "", err
	}
	if err := m.chars(8 * len(s)); err != nil {
		return "", err
	}
	return escaper.Replace(s), nil
}

// asMarkup returns a result of a method of str as that of Markup.
func (m *machine) asMarkup(v Value) (Value, error) {
	switch v := v.(type) {
	case string:
		return Markup(v), nil
	case *List:
		items, err := m.markups(v.Items)
		return &List{Items: items}, err
	case *Tuple:
		items, err := m.markups(v.Items)
		return &Tuple{Items: items}, err
	}
	return v, nil
}

func (m *machine) markups(items []Value) ([]Value, error) {
	if err := m.makeItems(len(items)); err != nil {
		return nil, err
	}
	marked := make([]Value, len(items))
	for i, item := range items {
		marked[i] = Markup(item.(string))
	}
	return marked, nil
}

// callMarkup is callText of the methods that Markup has by itself, or whose
// arguments it escapes.
func (m *machine) callMarkup(s, name string, args arguments) (v Value, ok bool, err error) {
	switch name {
	case "removesuffix":
		a, err := args.bind(name, "suffix")
		if err != nil {
			return nil, true, err
		}
		v, err = remove(name, strings.TrimSuffix)(m, s, a)
		if err == nil {
			v = Markup(v.(string))
		}
		return v, true, err
	case "replace", "ljust", "rjust", "center":
		return m.escapedCall(s, name, args)
	case "join":
		return m.joinMarkup(s, args)
	}
	return nil, false, nil
}

// escapedCall calls a method whose second argument is escaped.
func (m *machine) escapedCall(s, name string, args arguments) (Value, bool, error) {
	method := strMethods[name]
	a, err := args.bind(name, method.params...)
	if err != nil {
		return nil, true, err
	}
	if a[1] != missing {
		if a[1], err = m.escape(a[1]); err != nil {
			return nil, true, err
		}
	}
	v, err := method.fn(m, s, a)
	if err == nil {
		v, err = m.asMarkup(v)
	}
	return v, true, err
}

func (m *machine) joinMarkup(s string, args arguments) (Value, bool, error) {
	a, err := args.fill("join", []string{"/iterable"})
	if err != nil {
		return nil, true, err
	}
	items, err := m.list(a[0])
	if err != nil {
		return nil, true, err
	}
	if err := m.makeItems(len(items)); err != nil {
		return nil, true, err
	}
	escaped := make([]Value, len(items))
	for i, item := range items {
		if escaped[i], err = m.escape(item); err != nil {
			return nil, true, err
		}
	}
	v, err := m.strJoin(s, []Value{&List{Items: escaped}})
	if err == nil {
		v = Markup(v.(string))
	}
	return v, true, err
}
