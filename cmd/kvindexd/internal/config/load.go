package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// maxFile and maxDepth bound the bytes and the nesting of a file.
const (
	maxFile  = 1 << 20
	maxDepth = 16
)

// Load reads the settings. args are the arguments behind the name of the program, environ is
// that of os.Environ, and readFile is os.ReadFile. The error has a line for each mistake; for
// -h or -help it is flag.ErrHelp.
func Load(args, environ []string, readFile func(string) ([]byte, error)) (*Config, error) {
	l := &loader{origins: make(map[string]value), noted: make(map[string]bool)}
	for _, layer := range []func(){
		func() { l.flags(args) },
		func() { l.environment(environ) },
		func() { l.file(readFile) },
	} {
		l.layer = make(map[string]value)
		layer()
		for name, v := range l.layer {
			if _, above := l.origins[name]; !above {
				l.origins[name] = v
			}
		}
	}
	if l.help {
		return nil, flag.ErrHelp
	}
	c := new(Config)
	for i := range settings {
		s := &settings[i]
		v, given := l.origins[s.name]
		if !given {
			v = value{s.def, "default"}
			l.origins[s.name] = v
		}
		if err := s.set(c, v.text); err != nil {
			l.fail(v, s, err)
		}
	}
	c.check(l)
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	for i := range settings {
		s := &settings[i]
		v := l.origins[s.name]
		if s.hide != nil {
			v.text = s.hide(v.text)
		}
		c.Settings = append(c.Settings, Setting{s.name, v.text, v.origin})
	}
	c.Notes = l.notes
	return c, nil
}

// value is the text of a setting, and its origin as in Setting.Origin.
type value struct{ text, origin string }

type loader struct {
	origins map[string]value // by setting: the value of the highest layer that has one
	layer   map[string]value // the same, of the layer that is being read
	notes   []string
	noted   map[string]bool
	errs    []error
	help    bool
}

// explicit returns the value of a setting, or "" for the default.
func (l *loader) explicit(name string) string {
	if v := l.origins[name]; !strings.HasPrefix(v.origin, "default") {
		return v.text
	}
	return ""
}

func (l *loader) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !l.noted[n] {
		l.noted[n] = true
		l.notes = append(l.notes, n)
	}
}

// bad records that a setting is refused.
func (l *loader) bad(name, format string, args ...any) {
	origin := l.origins[name].origin
	if origin == "default" || origin == "" {
		origin = name
	}
	l.errs = append(l.errs, fmt.Errorf("%s: %w", origin, fmt.Errorf(format, args...)))
}

// fail records that a value is refused. The error does not show a secret.
func (l *loader) fail(v value, s *setting, err error) {
	if s.hide != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: %w", v.origin, err))
		return
	}
	l.errs = append(l.errs, fmt.Errorf("%s: %.100q: %w", v.origin, v.text, err))
}

// put stores a value in the current layer. name is as written there.
func (l *loader) put(name, origin, text string, a *alias) {
	if a.to == "" {
		l.note("%s: accepted, and does nothing here: %s", origin, a.why)
		if err := a.check(text); err != nil {
			l.errs = append(l.errs, fmt.Errorf("%s: %.100q: %w", origin, text, err))
		}
		return
	}
	if a.convert != nil {
		to, err := a.convert(text)
		if err != nil {
			l.errs = append(l.errs, fmt.Errorf("%s: %.100q: %w", origin, text, err))
			return
		}
		if to == "" {
			return
		}
		text = to
	}
	if had, twice := l.layer[a.to]; twice && had.text != text {
		l.errs = append(l.errs, fmt.Errorf("%s: %s sets the same, to another value: remove one", origin, had.origin))
		return
	}
	l.layer[a.to] = value{text, origin}
}

func (l *loader) flags(args []string) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, text, has := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if name == "h" || name == "help" {
			l.help = true
			continue
		}
		if !strings.HasPrefix(arg, "-") {
			l.errs = append(l.errs, fmt.Errorf("%.100q is neither a flag nor a command: -h lists them", arg))
			continue
		}
		a := find(flagNames, name)
		if a == nil {
			l.errs = append(l.errs, fmt.Errorf("flag %.100s: unknown%s", arg, suggest(flagNames, name)))
			if !has && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // its value
			}
			continue
		}
		if !has {
			switch s := settingOf(a.to); {
			case s != nil && s.boolean:
				text = "true"
			case len(args) == 0:
				l.errs = append(l.errs, fmt.Errorf("flag -%s: a value is missing", name))
				continue
			default:
				text, args = args[0], args[1:]
			}
		}
		l.put(name, "flag -"+name, text, a)
	}
}

func (l *loader) environment(environ []string) {
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		if text == "" {
			continue // llm-d and AIBrix skip an empty variable, too
		}
		if a := find(variables, name); a != nil {
			l.put(name, "environment "+name, text, a)
		} else if own, found := strings.CutPrefix(name, ownPrefix); found && !ofKubernetes(own, text) {
			l.errs = append(l.errs, fmt.Errorf("environment %.100s: unknown%s", name, suggest(variables, name)))
		}
	}
}

// serviceLinks matches NAME=VALUE of the variables that Kubernetes sets for each Service of a
// namespace (pkg/kubelet/envvars/envvars.go). A misspelt setting does not match: the value of
// a variable that ends in _PORT must be a URL.
var serviceLinks = regexp.MustCompile(`^(.*_)?(SERVICE_HOST=[0-9a-fA-F.:]+|SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+|` +
	`PORT(_[0-9]+_[A-Z]+)?=(tcp|udp|sctp)://[^/]+|PORT_[0-9]+_[A-Z]+_(PROTO=[a-z]+|PORT=[0-9]+|ADDR=[0-9a-fA-F.:]+))$`)

// ofKubernetes reports whether Kubernetes sets such a variable for a Service that is named
// kvindexd or kvindexd-NAME.
func ofKubernetes(name, text string) bool { return serviceLinks.MatchString(name + "=" + text) }

func (l *loader) file(readFile func(string) ([]byte, error)) {
	path := l.origins["config"].text
	if path == "" {
		return
	}
	text, err := readFile(path)
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("%s: %w", l.origins["config"].origin, err))
		return
	}
	if err := l.parse(text); err != nil {
		l.errs = append(l.errs, fmt.Errorf("file %s: %w", path, err))
	}
}

// parse reads the text of a file. Its error is a syntax error of JSON; mistakes in settings go
// to l.errs.
func (l *loader) parse(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	open, err := d.Token()
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	if open != json.Delim('{') {
		return errors.New("no JSON object")
	}
	backends := make(map[string]bool)
	if err := l.object(d, "", 1, backends); err != nil {
		return fmt.Errorf("byte %d: %w", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("byte %d: there is more behind the object", d.InputOffset())
	}
	if len(backends) > 1 {
		var names []string
		for b := range backends {
			names = append(names, b)
		}
		slices.Sort(names)
		l.errs = append(l.errs, fmt.Errorf("file: kvBlockIndexConfig: more than one index: %s: keep one", strings.Join(names, ", ")))
	}
	return nil
}

// object reads the members of the object at path, from behind its opening brace.
func (l *loader) object(d *json.Decoder, path string, depth int, backends map[string]bool) error {
	if depth > maxDepth {
		return errors.New("too deep")
	}
	seen := make(map[string]bool)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key := t.(string) // the decoder refuses other keys
		at := path + key
		origin := fmt.Sprintf("file: %.200s", at)
		if seen[key] {
			l.errs = append(l.errs, fmt.Errorf("%s: this key is there twice", origin))
		}
		seen[key] = true
		var raw json.RawMessage
		short := strings.TrimPrefix(at, "indexerConfig.")
		a, inner := find(keys, short), at == "indexerConfig" || isGroup(short)
		if a == nil && inner {
			// t is null or opens an object.
			if t, err = d.Token(); err != nil {
				return err
			}
			switch t {
			case nil:
			case json.Delim('{'):
				if rest, found := strings.CutPrefix(short, "kvBlockIndexConfig."); found {
					backends[rest] = true
				}
				if err := l.object(d, at+".", depth+1, backends); err != nil {
					return err
				}
			case json.Delim('['):
				for d.More() {
					if err := d.Decode(&raw); err != nil {
						return err
					}
				}
				if _, err := d.Token(); err != nil {
					return err
				}
				fallthrough
			default:
				l.errs = append(l.errs, fmt.Errorf("%s: must be an object", origin))
			}
			continue
		}
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if a == nil {
			l.errs = append(l.errs, fmt.Errorf("%s: unknown key%s", origin, suggest(keys, short)))
			continue
		}
		if string(raw) == "null" {
			continue
		}
		text := string(raw)
		switch s := settingOf(a.to); {
		case raw[0] == '"':
			if err := json.Unmarshal(raw, &text); err != nil {
				return err
			}
			if text == "" {
				continue
			}
		case (raw[0] == '{' || raw[0] == '[') && !a.nested && (s == nil || !s.nested):
			l.errs = append(l.errs, fmt.Errorf("%s: must be one value", origin))
			continue
		}
		l.put(short, origin, text, a)
	}
	_, err := d.Token()
	return err
}

// suggest returns the name of list that is spelt most like name, if a third of its letters differ
// at most.
func suggest(list []alias, name string) string {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(s))
	}
	best, least := "", min(4, 1+len(name)/3)
	for i := range list {
		if n := distance(plain(list[i].name), plain(name), least); n < least {
			best, least = list[i].name, n
		}
	}
	if best == "" {
		return ""
	}
	return ": do you mean " + best + "?"
}

// distance returns the number of letters in which a and b differ, at most most.
func distance(a, b string, most int) int {
	if len(a) > len(b)+most || len(b) > len(a)+most || len(b) > 200 {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], most)
}
