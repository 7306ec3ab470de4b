package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/events"
)

// maxFilePods bounds the pods of a file.
const maxFilePods = 1 << 16

// podKeys are the keys of a pod in a file, in the order of podFields, the fields of an
// events.Pod with such a key.
var podKeys, podFields = func() (keys []string, fields map[string]int) {
	t := reflect.TypeFor[events.Pod]()
	fields = make(map[string]int)
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		keys = append(keys, key)
		fields[key] = i
	}
	return keys, fields
}()

// engines are those of events.Pod.Engine.
var engines = []string{"zmq", events.EngineNone}

// decode reads the content of a file: all of its pods, or an error with the fault, its place
// and the pod. The Fleet checks whether a pod can be connected to.
func decode(data []byte) ([]events.Pod, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("it is empty; a list without pods is []")
	}
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"} { // of UTF-8 and UTF-16
		if bytes.HasPrefix(data, []byte(mark)) {
			return nil, fmt.Errorf("it begins with a byte order mark (%x): save it as UTF-8 without BOM", mark)
		}
	}
	if !utf8.Valid(data) {
		at := 0
		for r, n := utf8.DecodeRune(data); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(data[at:]) {
			at += n
		}
		return nil, fmt.Errorf("%s: the text is not UTF-8", place(data, at))
	}
	// Check the whole file first, so that a file with a wrong end is refused for that, and the
	// places of errors are exact.
	var all json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		at := len(data)
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			at = min(at, int(syntax.Offset))
		}
		return nil, fmt.Errorf("%s: %w", place(data, at), err)
	}
	d := decoder{json.NewDecoder(bytes.NewReader(data)), data}
	if err := d.open('[', "the file", "an array of pods"); err != nil {
		return nil, err
	}
	pods := []events.Pod{}
	for d.More() {
		if len(pods) == maxFilePods {
			return nil, fmt.Errorf("%s: there are more than %d pods", d.place(), maxFilePods)
		}
		var p events.Pod
		if err := d.pod(&p, len(pods)+1); err != nil {
			return nil, err
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// A decoder walks through valid JSON.
type decoder struct {
	*json.Decoder
	data []byte
}

func (d decoder) place() string { return place(d.data, int(d.InputOffset())) }

func place(data []byte, at int) string {
	return fmt.Sprintf("line %d, byte %d", 1+bytes.Count(data[:at], []byte("\n")), at)
}

// open enters an array or an object.
func (d decoder) open(delim json.Delim, what, needed string) error {
	token, err := d.Token()
	if err == nil && token != delim {
		err = fmt.Errorf("%s: %s is not %s", d.place(), what, needed)
	}
	return err
}

// pod reads the pod that is number n of the file.
func (d decoder) pod(p *events.Pod, n int) error {
	if err := d.open('{', fmt.Sprintf("pod %d", n), "an object"); err != nil {
		return err
	}
	value := reflect.ValueOf(p).Elem()
	seen := make(map[string]bool, len(podKeys))
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key := token.(string)
		bad := func(format string, args ...any) error {
			which := fmt.Sprintf("pod %d", n)
			if p.ID != "" {
				which += fmt.Sprintf(" (%.100q)", p.ID)
			}
			return fmt.Errorf("%s: %s: "+format, append([]any{d.place(), which}, args...)...)
		}
		// encoding/json would accept a key in another case, and the last of two.
		field, known := podFields[key]
		switch {
		case !known:
			return bad("the key %.100q is unknown; the keys are %s", key, strings.Join(podKeys, ", "))
		case seen[key]:
			return bad("the key %q is repeated", key)
		}
		seen[key] = true
		if err := d.Decode(value.Field(field).Addr().Interface()); err != nil {
			if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
				return bad("the key %q has a JSON %s where %s is needed", key, t.Value, needed(t.Type))
			}
			return bad("the key %q: %w", key, err)
		}
		if key == "engine" && !slices.Contains(engines, p.Engine) {
			return bad("the key %q: unknown engine %.100q, known are zmq and none", key, p.Engine)
		}
	}
	_, err := d.Token()
	return err
}

func needed(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Map:
		return "an object of strings"
	}
	return "a string"
}
