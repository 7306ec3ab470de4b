package jinja

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"
)

// tokens are what the minimiser drops: coarser than the lexer's, and never fails.
var tokens = regexp.MustCompile(`(?s)\{%[-+]?|[-+]?%\}|\{\{[-+]?|-?\}\}|\{#.*?#\}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\w+|\s+|[*/=!<>]+|.`)

// minimise makes a failure small: it drops what can be dropped while the programs
// still differ in the same way.
func (c *comparison) minimise(f *failure) *failure {
	for range 20 {
		smaller := c.smallerTemplate(f)
		smaller = c.smallerVars(smaller)
		if smaller == f {
			break
		}
		f = smaller
	}
	return f
}

// still asks which of the candidates is the first to fail as f does.
func (c *comparison) still(f *failure, candidates []*program) (int, *failure) {
	const batch = 64
	for start := 0; start < len(candidates); start += batch {
		list := candidates[start:min(start+batch, len(candidates))]
		answers, err := c.oracle.ask(list)
		if err != nil {
			return -1, nil
		}
		for k, p := range list {
			out, err := p.render()
			g := &failure{p, f.index, judge(p, answers[k], out, err), answers[k], out, err}
			if g.outcome == f.outcome && sameError(g.err, f.err) && g.theirs.Class == f.theirs.Class {
				return start + k, g
			}
		}
	}
	return -1, nil
}

func sameError(a, b error) bool {
	var x, y *Error
	if errors.As(a, &x) && errors.As(b, &y) {
		return x.Class == y.Class && firstWord(x.Message) == firstWord(y.Message)
	}
	return (a == nil) == (b == nil)
}

func firstWord(s string) string {
	s, _, _ = strings.Cut(s, " ")
	return s
}

func (c *comparison) smallerTemplate(f *failure) *failure {
	list := tokens.FindAllString(f.template, -1)
	drop := func(spans ...[2]int) *program {
		var b strings.Builder
		for i, t := range list {
			keep := true
			for _, s := range spans {
				keep = keep && (i < s[0] || i >= s[1])
			}
			if keep {
				b.WriteString(t)
			}
		}
		return &program{template: b.String(), vars: f.vars}
	}
	for {
		spans := groups(list)
		var candidates []*program
		for _, span := range spans {
			candidates = append(candidates, drop(span...))
		}
		_, g := c.still(f, candidates)
		if g == nil {
			break
		}
		f, list = g, tokens.FindAllString(g.template, -1)
	}
	for size := len(list) / 2; size > 0; {
		var candidates []*program
		for i := 0; i+size <= len(list); i += max(1, size/2) {
			candidates = append(candidates, drop([2]int{i, i + size}))
		}
		if k, g := c.still(f, candidates); g != nil {
			f = g
			i := k * max(1, size/2)
			list = append(list[:i:i], list[i+size:]...)
			size = min(size, len(list))
			continue
		}
		if size > 8 {
			size = size * 2 / 3
		} else {
			size--
		}
	}
	return f
}

// groups are spans that go together: brackets with or without what is in them,
// statements with their ends, their branches.
func groups(list []string) [][][2]int {
	var found [][][2]int
	add := func(spans ...[2]int) {
		spans = slices.DeleteFunc(spans, func(s [2]int) bool { return s[0] >= s[1] })
		if len(spans) > 0 {
			found = append(found, spans)
		}
	}
	// part adds the ways to be rid of a thing whose own tokens are tags.
	part := func(tags [][2]int) {
		first, last := tags[0], tags[len(tags)-1]
		add([2]int{0, first[0]}, [2]int{last[1], len(list)})
		add([2]int{first[0], last[1]})
		add(tags...)
		for k := 1; k < len(tags); k++ {
			add([2]int{first[0], tags[k-1][1]}, [2]int{tags[k][0], last[1]})
			add([2]int{tags[k-1][1], tags[k][0]})
			if k > 1 {
				add([2]int{tags[k-1][0], tags[k][0]})
			}
		}
	}
	type open struct {
		name string
		tags [][2]int
	}
	var brackets [][2]int
	var statements []open
	for i := 0; i < len(list); i++ {
		switch t := list[i]; {
		case t == "(" || t == "[" || t == "{":
			brackets = append(brackets, [2]int{i, i + 1})
		case (t == ")" || t == "]" || t == "}") && len(brackets) > 0:
			part([][2]int{brackets[len(brackets)-1], {i, i + 1}})
			brackets = brackets[:len(brackets)-1]
		case strings.HasPrefix(t, "{{"):
			for end := i; end < len(list); end++ {
				if strings.HasSuffix(list[end], "}}") {
					part([][2]int{{i, i + 1}, {end, end + 1}})
					break
				}
			}
		case strings.HasPrefix(t, "{%"):
			end := i
			for end < len(list)-1 && !strings.HasSuffix(list[end], "%}") {
				end++
			}
			span := [2]int{i, end + 1}
			name := strings.TrimSpace(strings.Join(list[i+1:end], ""))
			if n := strings.IndexFunc(name, func(r rune) bool { return r < 'a' || r > 'z' }); n >= 0 {
				name = name[:n]
			}
			i = end
			add(span)
			of, isEnd := strings.CutPrefix(name, "end")
			for k := len(statements) - 1; k >= 0; k-- {
				s := &statements[k]
				if isEnd && s.name == of {
					part(append(s.tags, span))
					statements = statements[:k]
					break
				}
				if (name == "else" || name == "elif") && (s.name == "if" || s.name == "for") {
					s.tags = append(s.tags, span)
					break
				}
			}
			if !isEnd && name != "else" && name != "elif" {
				statements = append(statements, open{name, [][2]int{span}})
			}
		}
	}
	return found
}

func (c *comparison) smallerVars(f *failure) *failure {
	for i := 0; i < f.vars.Len(); {
		without := &Dict{}
		for j := range f.vars.Len() {
			if k, v := f.vars.At(j); j != i {
				without.Set(k.(string), v)
			}
		}
		if _, g := c.still(f, []*program{{template: f.template, vars: without}}); g != nil {
			f = g
			continue
		}
		i++
	}
	for i := range f.vars.Len() {
		for {
			k, v := f.vars.At(i)
			var candidates []*program
			for _, smaller := range smallerValues(v) {
				vars := &Dict{}
				for j := range f.vars.Len() {
					key, value := f.vars.At(j)
					vars.Set(key.(string), value)
				}
				vars.Set(k.(string), smaller)
				candidates = append(candidates, &program{template: f.template, vars: vars})
			}
			_, g := c.still(f, candidates)
			if g == nil {
				break
			}
			f = g
		}
	}
	return f
}

// smallerValues are values like v with a part less.
func smallerValues(v Value) []Value {
	var list []Value
	switch v := v.(type) {
	case string:
		runes := []rune(v)
		for i := range runes {
			list = append(list, string(runes[:i])+string(runes[i+1:]))
		}
	case *List:
		for i := range v.Items {
			list = append(list, &List{append(append([]Value{}, v.Items[:i]...), v.Items[i+1:]...)})
		}
		for i, item := range v.Items {
			for _, smaller := range smallerValues(item) {
				items := append([]Value{}, v.Items...)
				items[i] = smaller
				list = append(list, &List{items})
			}
		}
	case *Dict:
		for i := range v.Len() {
			d := &Dict{}
			for j := range v.Len() {
				if k, value := v.At(j); j != i {
					d.Set(k.(string), value)
				}
			}
			list = append(list, d)
		}
		for i := range v.Len() {
			k, value := v.At(i)
			for _, smaller := range smallerValues(value) {
				d := &Dict{}
				for j := range v.Len() {
					key, value := v.At(j)
					d.Set(key.(string), value)
				}
				d.Set(k.(string), smaller)
				list = append(list, d)
			}
		}
	}
	return list
}

func jsonOf(v Value) string {
	var b bytes.Buffer
	appendJSON(&b, v)
	return b.String()
}
