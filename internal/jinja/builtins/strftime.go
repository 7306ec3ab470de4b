package builtins

import (
	"strconv"
	"strings"
	"time"

	"github.com/kvindex/kvindex/internal/jinja/exception"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// Python's datetime.now().strftime as CPython 3.11 and glibc 2.36 do it in the C locale, for
// the conversions that dates and times of chats are written with.

// The years that Python has dates for and that have four digits.
const (
	firstYear = 1000
	lastYear  = 9999
)

// timeFormats are Go's layouts of the conversions.
var timeFormats = map[string]string{
	"a": "Mon", "A": "Monday", "b": "Jan", "B": "January", "d": "02", "-d": "2", "H": "15", "I": "03", "-I": "3",
	"j": "002", "M": "04", "-M": "4", "m": "01", "-m": "1", "p": "PM", "S": "05", "-S": "5", "y": "06", "Y": "2006",
}

func strftime(m *python.Machine, t time.Time, format string) (string, error) {
	if t.Year() < firstYear || t.Year() > lastYear {
		return "", exception.Unsupported("strftime_now in the year %d", t.Year())
	}
	if strings.IndexByte(format, 0) >= 0 {
		return "", exception.Unsupported("strftime_now with a NUL")
	}
	var out []byte
	for {
		text, rest, found := strings.Cut(format, "%")
		if err := m.Alloc(2 * (len(text) + 100)); err != nil {
			return "", err
		}
		if err := m.Step(40); err != nil {
			return "", err
		}
		out = append(out, text...)
		if !found {
			return string(out), nil
		}
		n := min(len(rest), 1)
		if strings.HasPrefix(rest, "-") {
			n = min(len(rest), 2)
		}
		switch conversion := rest[:n]; {
		case conversion == "%":
			out = append(out, '%')
		case conversion == "-H":
			out = strconv.AppendInt(out, int64(t.Hour()), 10)
		case timeFormats[conversion] == "":
			return "", exception.Unsupported("strftime_now with %q", "%"+conversion)
		default:
			out = t.AppendFormat(out, timeFormats[conversion])
		}
		format = rest[n:]
	}
}
