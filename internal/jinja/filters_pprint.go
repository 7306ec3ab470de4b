package jinja

import "strings"

// The filter pprint: pprint.pformat of CPython 3.11 in its usual form: 80 wide,
// indented by 1, dicts sorted.

const pprintWidth = 80

func pprintFilter(m *machine, v Value, args arguments) (Value, error) {
	if err := args.only("do_pprint", "value"); err != nil {
		return nil, err
	}
	v, err := m.sortDicts(v)
	if err != nil {
		return nil, err
	}
	p := prettyPrinter{m: m}
	if err := p.format(v, 0, 0, 0); err != nil {
		return nil, err
	}
	return string(p.dst), nil
}

// sortDicts returns v with all dicts in it sorted, but those in what pprint takes
// for a whole.
func (m *machine) sortDicts(v Value) (Value, error) {
	switch v := v.(type) {
	case *List:
		items, err := m.sortDictsIn(v.Items)
		return &List{Items: items}, err
	case *Tuple:
		if v.names != nil {
			return v, nil
		}
		items, err := m.sortDictsIn(v.Items)
		return &Tuple{Items: items}, err
	case *Dict:
		items := make([]sortItem, 0, min(v.Len(), 16))
		for i := range v.Len() {
			if err := m.alloc(64); err != nil {
				return nil, err
			}
			items = append(items, sortItem{v.keys[i], v.values[i]})
		}
		if err := m.sortBy(items, m.safeLess); err != nil {
			return nil, err
		}
		sorted := &Dict{}
		for _, item := range items {
			sorted.keys = append(sorted.keys, item.key)
			sorted.values = append(sorted.values, item.value)
		}
		var err error
		sorted.values, err = m.sortDictsIn(sorted.values)
		return sorted, err
	}
	return v, nil
}

func (m *machine) sortDictsIn(items []Value) ([]Value, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	var sorted []Value
	for _, item := range items {
		if err := m.step(1); err != nil {
			return nil, err
		}
		if err := m.alloc(32); err != nil {
			return nil, err
		}
		item, err := m.sortDicts(item)
		if err != nil {
			return nil, err
		}
		sorted = append(sorted, item)
	}
	return sorted, nil
}

// safeLess is "<", or the order of the classes of values that have none.
func (m *machine) safeLess(a, b Value) (bool, error) {
	less, err := m.less("<", a, b)
	if !raised(err, "TypeError") {
		return less, err
	}
	classA, classB := typeName(a), typeName(b)
	if classA == classB {
		return false, unsupported("pprint of keys in the order of their addresses")
	}
	return modules[classA]+classA < modules[classB]+classB, nil
}

type prettyPrinter struct {
	m   *machine
	dst []byte
}

func (p *prettyPrinter) write(s string) error {
	if err := p.m.alloc(2 * len(s)); err != nil {
		return err
	}
	p.dst = append(p.dst, s...)
	return nil
}

// newline begins a line behind so many spaces.
func (p *prettyPrinter) newline(indent int) error {
	if err := p.m.alloc(2 * (indent + 1)); err != nil {
		return err
	}
	p.dst = append(p.dst, '\n')
	for range indent {
		p.dst = append(p.dst, ' ')
	}
	return nil
}

// separate ends the line before the i-th element, if it is not the first.
func (p *prettyPrinter) separate(i, indent int) error {
	if i == 0 {
		return nil
	}
	if err := p.write(","); err != nil {
		return err
	}
	return p.newline(indent)
}

// format prints v from the column indent on. It leaves allowance columns for the text behind v.
func (p *prettyPrinter) format(v Value, indent, allowance, level int) error {
	rep, err := p.m.repr(v)
	if err != nil {
		return err
	}
	if n, err := p.m.runes(rep); err != nil {
		return err
	} else if n <= pprintWidth-indent-allowance {
		return p.write(rep)
	}
	if err := p.m.enter(); err != nil {
		return err
	}
	defer p.m.leave()
	switch v := v.(type) {
	case string:
		return p.text(v, indent, allowance, level+1)
	case *List:
		return p.items(brackets{"[", "]"}, v.Items, indent, allowance, level+1)
	case *Tuple:
		if v.names != nil {
			break
		}
		if len(v.Items) == 1 {
			return p.items(brackets{"(", ",)"}, v.Items, indent, allowance, level+1)
		}
		return p.items(brackets{"(", ")"}, v.Items, indent, allowance, level+1)
	case *Dict:
		return p.dict(v, indent, allowance+1, level+1)
	}
	return p.write(rep)
}

// brackets are the text before and behind the items of a sequence.
type brackets struct{ open, end string }

func (p *prettyPrinter) items(b brackets, items []Value, indent, allowance, level int) error {
	if err := p.write(b.open); err != nil {
		return err
	}
	indent++
	behind := 1
	for i, item := range items {
		if err := p.separate(i, indent); err != nil {
			return err
		}
		if i == len(items)-1 {
			behind = allowance + len(b.end)
		}
		if err := p.format(item, indent, behind, level); err != nil {
			return err
		}
	}
	return p.write(b.end)
}

func (p *prettyPrinter) dict(d *Dict, indent, allowance, level int) error {
	if err := p.write("{"); err != nil {
		return err
	}
	indent++
	behind := 1
	for i, key := range d.keys {
		rep, err := p.m.repr(key)
		if err != nil {
			return err
		}
		if err := p.separate(i, indent); err != nil {
			return err
		}
		if err := p.write(rep + ": "); err != nil {
			return err
		}
		if i == d.Len()-1 {
			behind = allowance
		}
		n, err := p.m.runes(rep)
		if err != nil {
			return err
		}
		if err := p.format(d.values[i], indent+n+2, behind, level); err != nil {
			return err
		}
	}
	return p.write("}")
}

// text prints a string as one literal for each line and, of long lines, for as many
// words as fit.
func (p *prettyPrinter) text(s string, indent, allowance, level int) error {
	if level == 1 {
		indent++
		allowance++
	}
	chunks, err := p.literals(s, pprintWidth-indent, allowance)
	if err != nil {
		return err
	}
	switch len(chunks) {
	case 0:
		return p.write("''")
	case 1:
		return p.write(chunks[0])
	}
	if level == 1 {
		if err := p.write("("); err != nil {
			return err
		}
	}
	for i, c := range chunks {
		if i > 0 {
			if err := p.newline(indent); err != nil {
				return err
			}
		}
		if err := p.write(c); err != nil {
			return err
		}
	}
	if level == 1 {
		return p.write(")")
	}
	return nil
}

func (p *prettyPrinter) literals(s string, width, allowance int) ([]string, error) {
	split, err := p.m.splitLines(s, []Value{int64(1)})
	if err != nil {
		return nil, err
	}
	var chunks []string
	add := func(s string) error {
		rep, err := p.m.repr(s)
		chunks = append(chunks, rep)
		return err
	}
	fits := func(s string, width int) (bool, error) {
		rep, err := p.m.repr(s)
		if err != nil {
			return false, err
		}
		n, err := p.m.runes(rep)
		return n <= width, err
	}
	lines := split.(*List).Items
	for i, item := range lines {
		if err := p.m.step(4); err != nil {
			return nil, err
		}
		line := item.(string)
		behind := 0
		if i == len(lines)-1 {
			behind = allowance
		}
		if ok, err := fits(line, width-behind); err != nil {
			return nil, err
		} else if ok {
			if err := add(line); err != nil {
				return nil, err
			}
			continue
		}
		from, to := 0, 0 // of the line: what is gathered for the next literal
		for to < len(line) {
			next := wordEnd(line, to)
			if err := p.m.chars(4 * (next - to)); err != nil {
				return nil, err
			}
			room := width
			if next == len(line) {
				room -= behind
			}
			ok, err := fits(line[from:next], room)
			if err != nil {
				return nil, err
			}
			if !ok {
				if from < to {
					if err := add(line[from:to]); err != nil {
						return nil, err
					}
				}
				from = to
			}
			to = next
		}
		if err := add(line[from:to]); err != nil {
			return nil, err
		}
	}
	return chunks, nil
}

// wordEnd returns where the word at from and the space behind it end.
func wordEnd(s string, from int) int {
	space := strings.IndexFunc(s[from:], isSpace)
	if space < 0 {
		return len(s)
	}
	word := strings.IndexFunc(s[from+space:], notSpace)
	if word < 0 {
		return len(s)
	}
	return from + space + word
}
