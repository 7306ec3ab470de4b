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
