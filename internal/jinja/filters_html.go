package jinja

// The filters of HTML and URLs (Jinja2 3.1.6, filters.py; markupsafe 3.0.3).

func escapeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("escape", "/s"); err != nil {
		return nil, err
	}
	s, err := m.escape(v)
	return Markup(s), err
}

func safeFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_mark_safe", "value"); err != nil {
		return nil, err
	}
	s, err := m.str(v)
	return Markup(s), err
}

// pair unpacks v into two.
func (m *machine) pair(v Value) (first, second Value, err error) {
	items, err := m.list(v)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case len(items) < 2:
		return nil, nil, raise("ValueError", "not enough values to unpack (expected 2, got %d)", len(items))
	case len(items) > 2:
		return nil, nil, raise("ValueError", "too many values to unpack (expected 2)")
	}
	return items[0], items[1], nil
}
