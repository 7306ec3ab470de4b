package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Python's datetime.now().strftime as CPython 3.11 and glibc 2.36 do it in the C
// locale: the time has no zone, so %z and %Z are nothing.

// maxWidth is how wide a timeDirective may be made. Far wider ones end as nothing in
// Python.
const maxWidth = 200

// The years that Python has dates for and that have four digits.
const (
	firstYear = 1000
	lastYear  = 9999
)

// A timeDirective is one of a format: %, flags, width, conversion.
type timeDirective struct {
	pad   byte // '-', '_' or '0'; 0: that of the conversion
	upper bool // flag ^
	swap  bool // flag #
	width int
}

func (m *machine) strftime(t time.Time, format string) (string, error) {
	if t.Year() < firstYear || t.Year() > lastYear {
		return "", unsupported("strftime_now in the year %d", t.Year())
	}
	if strings.IndexByte(format, 0) >= 0 {
		return "", unsupported("strftime_now with a NUL")
	}
	var out []byte
	for {
		text, rest, found := strings.Cut(format, "%")
		if err := m.alloc(2 * (len(text) + maxWidth)); err != nil {
			return "", err
		}
		if err := m.step(40); err != nil {
			return "", err
		}
		out = append(out, text...)
		if !found {
			return string(out), nil
		}
		d, n := parseDirective(rest)
		if d.width > maxWidth || n == len(rest) {
			return "", unsupported("strftime_now with %q", "%"+rest)
		}
		s, ok := d.format(t, rest[n], n == 0)
		if !ok {
			return "", unsupported("strftime_now with %q", "%"+rest[:n+1])
		}
		out = append(out, s...)
		format = rest[n+1:]
	}
}

// parseDirective returns the part before a conversion, and its length.
func parseDirective(s string) (d timeDirective, n int) {
	for ; n < len(s); n++ {
		switch s[n] {
		case '-', '_', '0':
			d.pad = s[n]
		case '^':
			d.upper = true
		case '#':
			d.swap = true
		default:
			for ; n < len(s) && isDigit(s[n]); n++ {
				d.width = min(10*d.width+int(s[n]-'0'), maxWidth+1)
			}
			return d, n
		}
	}
	return d, n
}

// The conversions that are made of others.
var composite = map[byte]string{
	'c': "%a %b %e %H:%M:%S %Y",
	'D': "%m/%d/%y",
	'F': "%Y-%m-%d",
	'R': "%H:%M",
	'r': "%I:%M:%S %p",
	'T': "%H:%M:%S",
	'X': "%H:%M:%S",
	'x': "%m/%d/%y",
}

// format returns a conversion of t; ok is false of one that is not known. plain: it
// has no flags and no width.
func (d timeDirective) format(t time.Time, conversion byte, plain bool) (s string, ok bool) {
	if n, digits, pad, ok := timeNumber(t, conversion); ok {
		if d.pad == 0 {
			d.pad = pad
		}
		return d.number(n, digits), true
	}
	if format, ok := composite[conversion]; ok {
		var b strings.Builder
		for format != "" {
			text, rest, found := strings.Cut(format, "%")
			b.WriteString(text)
			if !found {
				break
			}
			s, _ := timeDirective{}.format(t, rest[0], true)
			b.WriteString(s)
			format = rest[1:]
		}
		d.swap = false
		return d.text(b.String()), true
	}
	switch conversion {
	case 'a':
		s = t.Weekday().String()[:3]
	case 'A':
		s = t.Weekday().String()
	case 'b', 'h':
		s = t.Month().String()[:3]
	case 'B':
		s = t.Month().String()
	case 'p', 'P':
		s = "AM"
		if t.Hour() >= 12 {
			s = "PM"
		}
		if conversion == 'P' || d.swap {
			s, d.upper = strings.ToLower(s), false
		}
		d.swap = false
	case 'n':
		s = "\n"
	case 't':
		s = "\t"
	// Python itself reads these, and only if they are plain.
	case '%':
		return "%", plain
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), plain
	case 'z', 'Z':
		return "", plain
	default:
		return "", false
	}
	return d.text(s), true
}

// text fills a text up to the width.
func (d timeDirective) text(s string) string {
	if d.upper || d.swap {
		s = strings.ToUpper(s)
	}
	fill := " "
	if d.pad == '0' {
		fill = "0"
	}
	return strings.Repeat(fill, max(0, d.width-len(s))) + s
}

// number writes n with at least so many digits.
func (d timeDirective) number(n, digits int) string {
	s := fmt.Sprint(n)
	switch d.pad {
	case '-':
		// A width is filled none the less, with spaces.
		return d.text(s)
	case '_':
		return strings.Repeat(" ", max(0, max(digits, d.width)-len(s))) + s
	}
	return strings.Repeat("0", max(0, max(digits, d.width)-len(s))) + s
}

// timeNumber returns the number that a conversion is of, how many digits it has at
// least and with what it is filled up to them; not ok if it is of none.
func timeNumber(t time.Time, conversion byte) (n, digits int, pad byte, ok bool) {
	isoYear, isoWeek := t.ISOWeek()
	hour12 := (t.Hour()+11)%12 + 1
	sunday, monday := int(t.Weekday()), (int(t.Weekday())+6)%7
	switch conversion {
	case 'C':
		return t.Year() / 100, 2, '0', true
	case 'd':
		return t.Day(), 2, '0', true
	case 'e':
		return t.Day(), 2, '_', true
	case 'G':
		return isoYear, 1, '0', true
	case 'g':
		return isoYear % 100, 2, '0', true
	case 'H':
		return t.Hour(), 2, '0', true
	case 'I':
		return hour12, 2, '0', true
	case 'j':
		return t.YearDay(), 3, '0', true
	case 'k':
		return t.Hour(), 2, '_', true
	case 'l':
		return hour12, 2, '_', true
	case 'M':
		return t.Minute(), 2, '0', true
	case 'm':
		return int(t.Month()), 2, '0', true
	case 'S':
		return t.Second(), 2, '0', true
	case 'U':
		return (t.YearDay() + 6 - sunday) / 7, 2, '0', true
	case 'u':
		return monday + 1, 1, '0', true
	case 'V':
		return isoWeek, 2, '0', true
	case 'W':
		return (t.YearDay() + 6 - monday) / 7, 2, '0', true
	case 'w':
		return sunday, 1, '0', true
	case 'Y':
		return t.Year(), 1, '0', true
	case 'y':
		return t.Year() % 100, 2, '0', true
	}
	return 0, 0, 0, false
}
