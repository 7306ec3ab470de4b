package jinja

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The filter urlize (Jinja2 3.1.6, filters.py and utils.py), which makes links of the
// addresses in a text.

// The patterns are for texts as patternText makes them, whose words have no space.
var (
	httpPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)^(?:(?:https?://|www\.)(?:[\wé%-]+\.)*(?:[a-z]{2,63}|xn--[\wé%]{2,59})` +
			`|(?:[\wé%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil)` +
			`|https?://(?:\d{1,3}(?:\.\d{1,3}){3}|\[(?:[\da-f]{0,4}:){2}(?:[\da-f]{0,4}:?){1,6}\]))` +
			`(?::\d{1,5})?(?:[/?#].*)?$`)
	})
	emailPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)^.+@[\wé][\wé.-]*\.[\wé]+$`)
	})
	schemePattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[\wé.+-]{2,}:/{0,2}$`)
	})
)

// patternText returns s with each character beyond ASCII as one of those that
// Python's patterns tell apart: digits, other parts of words, those whose case folds
// to ASCII, and the rest.
func patternText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x80:
			return r
		case r == 'ı' || r == 'İ':
			return 'i'
		case r == 'ſ':
			return 's'
		case r == '\u212a': // the Kelvin sign
			return 'k'
		case charOf(r).is(charDecimal):
			return '0'
		case isWord(r):
			return 'é'
		}
		return '¡'
	}, s)
}

// A linker is one urlize.
type linker struct {
	m          *machine
	limit      Value // of the texts of links; nil: none
	attributes string
	schemes    []string
}

func urlizeFilter(m *machine, v Value, args arguments) (Value, error) {
	b, err := args.bindAfter(v, "do_urlize", "value", "trim_url_limit?", "nofollow?", "target?", "rel?", "extra_schemes?")
	if err != nil {
		return nil, err
	}
	l := linker{m: m, limit: or(b[1], nil)}
	if err := l.setAttributes(or(b[4], nil), b[2], or(b[3], nil)); err != nil {
		return nil, err
	}
	if schemes := or(b[5], nil); schemes != nil {
		if err := l.setSchemes(schemes); err != nil {
			return nil, err
		}
	}
	text, err := m.escape(v)
	if err != nil {
		return nil, err
	}
	if err := m.kinds(6 * len(text)); err != nil {
		return nil, err
	}
	var out strings.Builder
	for text != "" {
		if err := m.step(40); err != nil {
			return nil, err
		}
		n := strings.IndexFunc(text, isSpace)
		if n < 0 {
			n = len(text)
		}
		word, err := l.word(text[:n])
		if err != nil {
			return nil, err
		}
		rest := strings.TrimLeftFunc(text[n:], isSpace)
		space := text[n : len(text)-len(rest)]
		if err := m.alloc(2 * (len(word) + len(space))); err != nil {
			return nil, err
		}
		out.WriteString(word)
		out.WriteString(space)
		text = rest
	}
	return out.String(), nil
}

// setAttributes sets those that all links have: rel is never without noopener
// (Jinja2's policy urlize.rel).
func (l *linker) setAttributes(rel, nofollow, target Value) error {
	parts := []string{"noopener"}
	if ok, err := l.m.truth(rel); err != nil {
		return err
	} else if ok {
		words, err := l.m.invoke(rel, "split")
		if err != nil {
			return err
		}
		for _, word := range words.(*List).Items {
			s, _ := asString(word)
			parts = append(parts, s)
		}
	}
	if ok, err := l.m.option(nofollow); err != nil {
		return err
	} else if ok {
		parts = append(parts, "nofollow")
	}
	escaped, err := l.m.escape(strings.Join(sortedSet(parts), " "))
	if err != nil {
		return err
	}
	l.attributes = ` rel="` + escaped + `"`
	if ok, err := l.m.truth(target); err != nil || !ok {
		return err
	}
	escaped, err = l.m.escape(target)
	l.attributes += ` target="` + escaped + `"`
	return err
}

func (l *linker) setSchemes(v Value) error {
	if ok, err := l.m.truth(v); err != nil {
		return err
	} else if !ok {
		// An empty text or list, or 0, which none goes through.
		_, err := l.m.iterate(v)
		return err
	}
	err := l.m.visit(v, func(v Value) error {
		s, ok := asString(v)
		if !ok {
			return raise("TypeError", "expected string or bytes-like object, got '%s'", typeName(v))
		}
		if !schemePattern().MatchString(patternText(s)) {
			return raise("FilterArgumentError", "%q is not a valid URI scheme prefix.", s)
		}
		l.schemes = append(l.schemes, s)
		return nil
	})
	if _, ok := v.(*Iterator); ok {
		// Having been looked at it has none left.
		l.schemes = nil
	}
	return err
}

// word returns a word, without space, with its link if it is an address.
func (l *linker) word(word string) (string, error) {
	middle := trimPrefixes(word)
	head := word[:len(word)-len(middle)]
	middle, tail := cutTail(middle)
	for _, pair := range [...][2]string{{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}} {
		open := strings.Count(middle, pair[0])
		if open <= strings.Count(middle, pair[1]) {
			continue
		}
		for range min(open, strings.Count(tail, pair[1])) {
			end := strings.Index(tail, pair[1]) + len(pair[1])
			if err := l.m.alloc(len(middle) + end); err != nil {
				return "", err
			}
			middle, tail = middle+tail[:end], tail[end:]
		}
	}
	middle, err := l.link(middle)
	return head + middle + tail, err
}

// trimPrefixes returns s without what opens a parenthesis at its start.
func trimPrefixes(s string) string {
	for {
		rest := strings.TrimPrefix(strings.TrimLeft(s, "(<"), "&lt;")
		if rest == s {
			return s
		}
		s = rest
	}
}

// cutTail cuts punctuation off the end of s.
func cutTail(s string) (rest, tail string) {
	rest = s
	for {
		cut := strings.TrimSuffix(strings.TrimRight(rest, ")>.,"), "&gt;")
		if cut == rest {
			return rest, s[len(rest):]
		}
		rest = cut
	}
}

func (l *linker) link(s string) (string, error) {
	pattern := patternText(s)
	if httpPattern().MatchString(pattern) {
		text, err := l.trim(s)
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(s, "https://") && !strings.HasPrefix(s, "http://") {
			s = "https://" + s
		}
		return `<a href="` + s + `"` + l.attributes + `>` + text + `</a>`, nil
	}
	if to, ok := strings.CutPrefix(s, "mailto:"); ok && emailPattern().MatchString(patternText(to)) {
		return `<a href="` + s + `">` + to + `</a>`, nil
	}
	if strings.Contains(s, "@") && !strings.HasPrefix(s, "www.") && s[0] != '@' &&
		!strings.Contains(s, ":") && emailPattern().MatchString(pattern) {
		return `<a href="mailto:` + s + `">` + s + `</a>`, nil
	}
	for _, scheme := range l.schemes {
		if err := l.m.step(1); err != nil {
			return "", err
		}
		if s == scheme || !strings.HasPrefix(s, scheme) {
			continue
		}
		if err := l.m.alloc(4 * len(s)); err != nil {
			return "", err
		}
		s = `<a href="` + s + `"` + l.attributes + `>` + s + `</a>`
	}
	return s, nil
}

// trim shortens the text of a link to the limit.
func (l *linker) trim(s string) (string, error) {
	if l.limit == nil {
		return s, nil
	}
	n, err := l.m.length(s)
	if err != nil {
		return "", err
	}
	if long, err := l.m.less(">", int64(n), l.limit); err != nil || !long {
		return s, err
	}
	cut, err := l.m.slice(s, nil, l.limit, nil)
	if err != nil {
		return "", err
	}
	return cut.(string) + "...", nil
}

// sortedSet returns words in order, each once.
func sortedSet(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
