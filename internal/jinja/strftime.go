package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Python's datetime.now().strftime as CPython 3.11 and glibc 2.36 do it in the C
// locale: the time has no zone, so %z and %Z are nothing.

// The years that Python has dates for and that have four digits.
const (
	firstYear = 1000
	lastYear  = 9999
)

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
		if err := m.alloc(2 * (len(text) + 100)); err != nil {
			return "", err
		}
		if err := m.step(40); err != nil {
			return "", err
		}
		out = append(out, text...)
		if !found {
			return string(out), nil
		}
		conversion, bare := strings.CutPrefix(rest, "-")
		if conversion == "" {
			return "", unsupported("strftime_now with a percent sign at the end")
		}
		s, ok := timeText(t, conversion[0], bare)
		if !ok {
			return "", unsupported("strftime_now with %q", "%"+rest[:len(rest)-len(conversion)+1])
		}
		out = append(out, s...)
		format = conversion[1:]
	}
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

// timeText returns a conversion of t; ok is false of one that is not known. bare: a
// number has no zeros or spaces before it (flag "-").
func timeText(t time.Time, conversion byte, bare bool) (s string, ok bool) {
	if n, digits, pad, ok := timeNumber(t, conversion); ok {
		s := strconv.Itoa(n)
		if bare {
			return s, true
		}
		return strings.Repeat(string(pad), max(0, digits-len(s))) + s, true
	}
	if format, ok := composite[conversion]; ok {
		var b strings.Builder
		for i := 0; i < len(format); i++ {
			if format[i] != '%' {
				b.WriteByte(format[i])
				continue
			}
			i++
			s, _ := timeText(t, format[i], false)
			b.WriteString(s)
		}
		return b.String(), true
	}
	switch conversion {
	case 'a':
		return t.Weekday().String()[:3], true
	case 'A':
		return t.Weekday().String(), true
	case 'b', 'h':
		return t.Month().String()[:3], true
	case 'B':
		return t.Month().String(), true
	case 'p', 'P':
		s = "am"
		if t.Hour() >= 12 {
			s = "pm"
		}
		if conversion == 'p' {
			s = strings.ToUpper(s)
		}
		return s, true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	// Python itself reads these, and only without a flag.
	case '%':
		return "%", !bare
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), !bare
	case 'z', 'Z':
		return "", !bare
	}
	return "", false
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
		return t.Day(), 2, ' ', true
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
		return t.Hour(), 2, ' ', true
	case 'l':
		return hour12, 2, ' ', true
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
