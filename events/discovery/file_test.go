package discovery_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

var (
	writes    = flag.Int("writes", 500, "random writes of a file while it is read, between the steps of a reading; long form: 10000")
	schedules = flag.Int("schedules", 60, "random schedules of DNS answers; long form: 500")
	seed      = flag.Uint64("seed", 1, "of what is random")
)

func TestMain(m *testing.M) {
	flag.Parse()
	zmtptest.Main(m)
}

// fileTest is a File run in steps: step is called in place of each wait.
type fileTest struct {
	t      *testing.T
	dir    string
	path   string
	now    time.Time
	waited []time.Duration // since the last step
	sets   [][]events.Pod
	errs   []string
	refuse error // the result of set
}

// run reads the file until step returns false.
func (f *fileTest) run(step func(n int) bool) {
	f.t.Helper()
	f.dir = f.t.TempDir()
	f.path = filepath.Join(f.dir, "pods.json")
	f.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	report := func(err error) { f.errs = append(f.errs, err.Error()) }
	n, end := 0, errors.New("no more steps")
	err := discovery.RunFile(f.t.Context(), f.path, func() time.Time { return f.now }, func(_ context.Context, d time.Duration) error {
		f.now = f.now.Add(d)
		f.waited = append(f.waited, d)
		if !step(n) {
			return end
		}
		n++
		return nil
	}, nil, report, func(pods []events.Pod) error {
		f.sets = append(f.sets, pods)
		return f.refuse
	})
	if !errors.Is(err, end) {
		f.t.Errorf("Run ended with %v", err)
	}
}

// said returns the IDs of each set, and the errors, since the last call.
func (f *fileTest) said() (sets, errs []string) {
	for _, pods := range f.sets {
		var ids []string
		for _, p := range pods {
			ids = append(ids, p.ID)
		}
		sets = append(sets, strings.Join(ids, " "))
	}
	errs = f.errs
	f.sets, f.errs = nil, nil
	return sets, errs
}

func (f *fileTest) write(content string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// TestFile has the states of a file, each for as many steps as it needs to settle.
func TestFile(t *testing.T) {
	const kept = "; the known pods stay"
	var f *fileTest
	cases := []struct {
		what string
		do   func()
		sets []string
		errs []string // parts of errors
	}{
		{"there is no file", func() {}, nil, []string{"no such file or directory" + kept}},
		{"two pods", func() { f.write(`[{"id": "a"}, {"id": "b"}]`) }, []string{"a b"}, nil},
		{"the same again", func() { f.write(`[{"id": "a"}, {"id": "b"}]`) }, nil, nil},
		{"half of it", func() { f.write(`[{"id": "a"}, {"id"`) }, nil, []string{`pods.json": line 1, byte 19: unexpected end of JSON input` + kept}},
		{"an empty file", func() { f.write("") }, nil, []string{"it has 0 bytes; a list without pods is []" + kept}},
		{"blanks", func() { f.write(" \n") }, nil, []string{"it is empty; a list without pods is []" + kept}},
		{"two lists", func() { f.write("[]\n[]") }, nil, []string{"line 2, byte 4: invalid character '[' after top-level value" + kept}},
		{"a wrong key", func() { f.write(`[{"id": "c", "hots": "h"}]`) }, nil, []string{`pod 1 ("c"): the key "hots" is unknown`}},
		{"too long", func() { f.write("[" + strings.Repeat(" ", discovery.MaxFileSize-1) + "]") }, nil, []string{"it has more than 16777216 bytes" + kept}},
		{"the file of before", func() { f.write(`[{"id": "a"}, {"id": "b"}]`) }, []string{"a b"}, nil},
		{"no file", func() { os.Remove(f.path) }, nil, []string{"no such file or directory" + kept}},
		{"the same file", func() { f.write(`[{"id": "a"}, {"id": "b"}]`) }, nil, nil},
		{"a directory", func() { os.Remove(f.path); os.Mkdir(f.path, 0o755) }, nil, []string{"it is not a regular file: drwx"}},
		{"a socket", func() {
			os.Remove(f.path)
			l, err := net.Listen("unix", f.path)
			must(t, err)
			t.Cleanup(func() { l.Close() })
		}, nil, []string{"it is not a regular file: S"}},
		{"a link", func() {
			os.Remove(f.path)
			os.WriteFile(f.dir+"/one", []byte(`[{"id": "c"}]`), 0o644)
			os.Symlink("one", f.path)
		}, []string{"c"}, nil},
		{"another link", func() {
			os.WriteFile(f.dir+"/two", []byte(`[{"id": "d"}]`), 0o644)
			os.Symlink("two", f.dir+"/next")
			os.Rename(f.dir+"/next", f.path)
		}, []string{"d"}, nil},
		{"a link to nothing", func() { os.Remove(f.dir + "/two") }, nil, []string{"no such file or directory"}},
		{"no pods", func() { os.Remove(f.path); f.write("[]") }, []string{""}, nil},
	}
	f = &fileTest{t: t}
	const steps = 3 // the change is found, then settled, then one more
	f.run(func(n int) bool {
		if n%steps == steps-1 {
			c := cases[n/steps]
			sets, errs := f.said()
			if !slices.Equal(sets, c.sets) {
				t.Errorf("%s: set %q, want %q", c.what, sets, c.sets)
			}
			if len(errs) != len(c.errs) || len(errs) > 0 && !strings.Contains(errs[0], c.errs[0]) {
				t.Errorf("%s: reported %q, want %q", c.what, errs, c.errs)
			}
			if f.waited[len(f.waited)-1] != discovery.FileInterval {
				t.Errorf("%s: the next readings came after %v", c.what, f.waited)
			}
			f.waited = nil
			if n/steps+1 == len(cases) {
				return false
			}
			cases[n/steps+1].do()
		}
		return true
	})
}

// TestFileSettles: a change in place is accepted 200 ms after it was seen.
func TestFileSettles(t *testing.T) {
	f := &fileTest{t: t}
	f.run(func(n int) bool {
		sets, _ := f.said()
		want := []string(nil)
		switch n {
		case 0:
			f.write("")
		case 2: // it has settled as empty
			f.write(`[{"id": "a"}]`)
		case 4:
			want = []string{"a"}
			if want := []time.Duration{discovery.SettleTime, discovery.SettleTime, time.Second, discovery.SettleTime, time.Second}; !slices.Equal(f.waited, want) {
				t.Errorf("readings after %v, want %v", f.waited, want)
			}
		}
		if !slices.Equal(sets, want) {
			t.Errorf("step %d: set %q, want %q", n, sets, want)
		}
		return n < 4
	})
}

// TestFileReplaced: a new file at the path is accepted by the first read that finds it, even if
// each read finds another. A truncated one is not, and is reported only after it has settled.
func TestFileReplaced(t *testing.T) {
	f := &fileTest{t: t}
	rename := func(content string) {
		path := f.path
		f.path = filepath.Join(f.dir, "next")
		f.write(content)
		f.path = path
		must(t, os.Rename(filepath.Join(f.dir, "next"), path))
	}
	f.run(func(n int) bool {
		sets, errs := f.said()
		switch {
		case n == 0 && (len(sets) > 0 || len(errs) > 0):
			t.Errorf("before there was a file: set %q, reported %q", sets, errs)
		case n > 0 && n <= 20 && !slices.Equal(sets, []string{fmt.Sprint(n)}):
			t.Errorf("list %d: set %q", n, sets)
		case n > 20 && (len(sets) > 0 || len(errs) > 0):
			t.Errorf("half a list: set %q, reported %q", sets, errs)
		}
		if n < 20 {
			rename(fmt.Sprintf(`[{"id": "%d"}]`, n+1))
		} else {
			rename(`[{"id"`)
		}
		return n < 40
	})
	for i, d := range f.waited {
		if want := discovery.FileInterval; i > 0 && i <= 20 && d != want {
			t.Errorf("reading %d came after %v, want %v", i, d, want)
		}
	}
}

// TestFileTrouble: a fault is reported at once and then at doubling intervals of at most one
// minute. Another fault is reported at once, and so is the same one after a good read.
func TestFileTrouble(t *testing.T) {
	f := &fileTest{t: t}
	var told []time.Duration
	begin, first := time.Time{}, 0
	f.run(func(n int) bool {
		switch {
		case n == 0:
			f.write("[")
		case len(f.errs) > 0 && begin.IsZero():
			begin, first = f.now, n
			fallthrough
		case len(f.errs) > 0:
			told = append(told, f.now.Sub(begin).Round(time.Second))
			f.errs = nil
		}
		switch {
		case begin.IsZero():
		case n == first+280:
			f.write("[[")
		case n == first+380:
			f.write("[]")
		case n == first+383:
			f.write("[[")
		}
		return begin.IsZero() || n < first+385
	})
	want := []time.Duration{0, 2, 6, 14, 30, 62, 122, 182, 242}
	for i := range want {
		want[i] *= time.Second
	}
	// The other fault is reported six times in 100 seconds, and again after a good read.
	if len(told) != len(want)+6+1 || !slices.Equal(told[:len(want)], want) {
		t.Errorf("reported after %v, want %v and seven more", told, want)
	}
}

// TestFileRestless: a file written to without a pause is accepted after 1 s if it is a valid list.
// Otherwise it is reported, and accepted when it is valid and has settled.
func TestFileRestless(t *testing.T) {
	for _, whole := range []bool{true, false} {
		f := &fileTest{t: t}
		var at time.Duration
		begin := time.Time{}
		f.run(func(n int) bool {
			sets, errs := f.said()
			switch {
			case n == 0:
				f.write("")
				return true
			case n == 2:
				begin = f.now // the next read finds the first change
			case n > 2 && at == 0 && len(errs) > 0:
				at = f.now.Sub(begin) - discovery.SettleTime
				if !strings.Contains(errs[0], `it was written to for 10s without a pause of 200ms; its last content: line 1, byte 13: unexpected end of JSON input; the known pods stay`) || whole {
					t.Errorf("reported %q", errs)
				}
			case n > 2 && at == 0 && len(sets) > 0:
				at = f.now.Sub(begin) - discovery.FileInterval
				if !slices.Equal(sets, []string{fmt.Sprint(10000 + n - 1)}) || !whole {
					t.Errorf("step %d: set %q", n, sets)
				}
			case at > 0:
				return len(sets) == 0
			}
			switch {
			case at > 0:
				f.write(`[]`)
			case n >= 2 && whole:
				f.write(fmt.Sprintf(`[{"id": "%d"}]`, 10000+n))
			case n >= 2:
				f.write(fmt.Sprintf(`[{"id": %d`, 10000+n))
			}
			return n < 100
		})
		want := discovery.RestlessTime
		if whole {
			want = discovery.Patience
		}
		if at != want {
			t.Errorf("whole %v: after %v, want %v", whole, at, want)
		}
	}
}

// TestFileRefused: refused pods are set again at each read until they are accepted, even while the
// file is unreadable.
func TestFileRefused(t *testing.T) {
	f := &fileTest{t: t, refuse: errors.New("no room")}
	f.run(func(n int) bool {
		switch n {
		case 0:
			f.write(`[{"id": "a"}]`)
		case 4:
			f.write(`[`)
		case 7:
			f.refuse = nil
		}
		return n < 12
	})
	sets, errs := f.said()
	if want := slices.Repeat([]string{"a"}, len(sets)); !slices.Equal(sets, want) || len(sets) != 7 {
		t.Errorf("set %q, want a at readings 1, 2, 3, 4, 6, 7 and 8", sets)
	}
	if len(errs) == 0 || strings.Contains(strings.Join(errs, ""), "no room") {
		t.Errorf("reported %q", errs)
	}
}

// TestFileReal runs File with the real clock.
func TestFileReal(t *testing.T) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	path := filepath.Join(t.TempDir(), "pods.json")
	must(t, os.WriteFile(path, []byte(`[{"id": "a", "model": "m", "host": "h"}]`), 0o644))
	source := discovery.File(path)
	if source.Name != "file:"+path {
		t.Errorf("Name %q", source.Name)
	}
	sets := make(chan []events.Pod)
	ended := make(chan error)
	go func() {
		ended <- source.Run(ctx, func(pods []events.Pod) error { sets <- pods; return nil })
	}()
	want := []events.Pod{{ID: "a", Model: "m", Host: "h"}}
	select {
	case pods := <-sets:
		if !reflect.DeepEqual(pods, want) {
			t.Errorf("set %v, want %v", pods, want)
		}
	case err := <-ended:
		t.Fatalf("Run ended: %v", err)
	case <-ctx.Done():
		t.Fatal("nothing was set")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
}

// stateText is a content of the file. All its pods have the number of the state.
func stateText(state, pods int) string {
	var b strings.Builder
	b.WriteString("[")
	for i := range pods {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n{\"id\": \"%08d/%d\", \"model\": \"m\", \"host\": \"h\", \"labels\": {\"pods\": \"%d\"}}", state, i, pods)
	}
	b.WriteString("\n")
	for bit := range 16 { // no two states have the same text
		b.WriteByte(" \t"[state>>bit&1])
	}
	b.WriteString("]\n")
	return b.String()
}

// states has all contents that were written completely.
type states struct {
	mu      sync.Mutex
	pods    []int // of each state begun
	whole   int   // the newest one that is complete
	applied int   // the newest one set, or possibly set; -1: none
	least   int   // the oldest one that this may be
	times   int   // number of sets
	wrong   error
}

// set checks a set of the source. An empty list has no number: it is any empty state not older than
// the last set.
func (s *states) set(pods []events.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := len(s.pods) - 1
	if len(pods) == 0 {
		for state >= 0 && s.pods[state] > 0 {
			state--
		}
	} else {
		number, _, _ := strings.Cut(pods[0].ID, "/")
		state, _ = strconv.Atoi(number)
	}
	switch {
	case s.wrong != nil:
	case state < 0 || state >= len(s.pods):
		s.wrong = fmt.Errorf("state %d of %d pods was set, and was never whole", state, len(pods))
	case state < s.least:
		s.wrong = fmt.Errorf("state %d was set behind state %d", state, s.least)
	case len(pods) != s.pods[state]:
		s.wrong = fmt.Errorf("%d pods of the %d of state %d were set", len(pods), s.pods[state], state)
	}
	for i, p := range pods {
		if want := fmt.Sprintf("%08d/%d", state, i); p.ID != want && s.wrong == nil {
			s.wrong = fmt.Errorf("pod %d of state %d is %s", i, state, p.ID)
		}
	}
	s.applied = state
	for len(pods) == 0 && s.least < state && s.pods[s.least] > 0 {
		s.least++
	}
	if len(pods) > 0 {
		s.least = state
	}
	s.times++
}

// A writer changes the file in steps, each after a time.
type writer struct {
	dir, path string
	r         *rand.Rand
	states    *states
	steps     []func()
	nap       func() time.Duration // between two steps of one write
	wait      []time.Duration      // before each step
	err       error
	kinds     [8]int
}

func (w *writer) check(err error) {
	if err != nil && w.err == nil {
		w.err = err
	}
}

func (w *writer) add(nap time.Duration, step func()) {
	w.steps, w.wait = append(w.steps, step), append(w.wait, nap)
}

// chunks adds steps that write a text from the beginning of an open file.
func (w *writer) chunks(f **os.File, text string, size int) {
	for at := 0; at < len(text); {
		n := min(1+w.r.IntN(size), len(text)-at)
		from := at
		w.add(w.nap(), func() {
			_, err := (*f).WriteAt([]byte(text[from:from+n]), int64(from))
			w.check(err)
		})
		at += n
	}
}

func (w *writer) end(f **os.File, then func()) {
	w.add(w.nap(), func() {
		w.check((*f).Close())
		then()
	})
}

func (w *writer) swap(target string) {
	next := w.path + ".next"
	os.Remove(next)
	w.check(os.Symlink(target, next))
	w.check(os.Rename(next, w.path))
}

// write adds the steps of a random write. Without overwrite, no step leaves a mixture of two
// contents.
func (w *writer) write(overwrite bool) {
	pods := w.r.IntN(7)
	if w.r.IntN(3) > 0 {
		pods = 3 // so that states have the same length
	}
	kind := w.r.IntN(len(w.kinds))
	if overwrite && w.r.IntN(3) > 0 {
		kind = 2
	}
	if kind == 2 && !overwrite {
		kind = 1
	}
	w.kinds[kind]++
	var f *os.File
	w.states.mu.Lock()
	state := len(w.states.pods)
	w.states.pods = append(w.states.pods, pods)
	w.states.mu.Unlock()
	text := stateText(state, pods)
	whole := func() {
		w.states.mu.Lock()
		w.states.whole = state
		w.states.mu.Unlock()
	}
	open := func(path string, flags int) func() {
		return func() {
			var err error
			f, err = os.OpenFile(path, flags|os.O_WRONLY|os.O_CREATE, 0o644)
			w.check(err)
		}
	}
	inPlace := w.path
	if target, err := os.Readlink(w.path); err == nil {
		inPlace = target
		if _, err := os.Stat(w.path); err != nil || strings.HasPrefix(target, "..data") {
			kind = 3
		}
	}
	size := 1 + len(text)/4
	switch kind {
	case 0, 1: // truncated, then in place
		w.add(w.nap(), open(inPlace, os.O_TRUNC))
		w.chunks(&f, text, size)
		w.end(&f, whole)
	case 2: // in place without truncation, faster than discovery.Patience
		w.add(w.nap(), open(inPlace, 0))
		w.chunks(&f, text, 1+w.r.IntN(40))
		w.add(w.nap(), func() { w.check(f.Truncate(int64(len(text)))) })
		w.end(&f, whole)
		var sum time.Duration
		for i, d := range w.wait {
			if sum += d; sum > discovery.Patience*8/10 {
				sum, w.wait[i] = sum-d, 0
			}
		}
	case 3: // by a rename
		temp := filepath.Join(w.dir, "temp")
		w.add(w.nap(), open(temp, os.O_TRUNC))
		w.chunks(&f, text, size)
		w.end(&f, func() {
			whole()
			w.check(os.Rename(temp, w.path))
		})
	case 4: // a link to another file
		file := filepath.Join(w.dir, fmt.Sprint("file", state))
		w.add(w.nap(), open(file, os.O_TRUNC))
		w.chunks(&f, text, size)
		w.end(&f, func() {
			whole()
			w.swap(file)
			if inPlace != w.path {
				os.Remove(inPlace)
			}
		})
	case 5: // a ConfigMap: a link to a link to a folder
		folder := filepath.Join(w.dir, fmt.Sprint("..", state))
		w.check(os.Mkdir(folder, 0o755))
		w.add(w.nap(), open(filepath.Join(folder, "pods.json"), os.O_TRUNC))
		w.chunks(&f, text, size)
		w.end(&f, func() {
			data := filepath.Join(w.dir, "..data")
			old, _ := os.Readlink(data)
			whole()
			w.check(os.Symlink(folder, data+".next"))
			w.check(os.Rename(data+".next", data))
			w.swap(filepath.Join("..data", "pods.json"))
			if old != "" {
				w.check(os.RemoveAll(old))
			}
		})
	case 6: // removed and created
		w.add(w.nap(), func() { w.check(os.Remove(w.path)) })
		w.add(w.nap(), open(w.path, os.O_EXCL))
		w.chunks(&f, text, size)
		w.end(&f, whole)
	case 7: // the writer dies in the middle, and the next one starts again
		half := text[:w.r.IntN(len(text)-3)]
		w.add(w.nap(), open(inPlace, os.O_TRUNC))
		w.chunks(&f, half, size)
		w.end(&f, func() {})
		w.add(w.nap(), open(inPlace, os.O_TRUNC))
		w.chunks(&f, text, size)
		w.end(&f, whole)
	}
}

// TestFileWhole: a file is written in every way, in small steps between those of the reader. Each
// set is a complete content, even where a mixture of two is a valid list, and after a pause the
// newest one is set.
func TestFileWhole(t *testing.T) {
	n := *writes
	r := rand.New(rand.NewPCG(*seed, 1))
	dir := t.TempDir()
	s := &states{applied: -1}
	w := &writer{dir: dir, path: filepath.Join(dir, "pods.json"), r: r, states: s}
	// Pauses within a write are shorter than those between two reads.
	w.nap = func() time.Duration {
		if r.IntN(3) > 0 {
			return time.Duration(r.IntN(8)) * time.Millisecond
		}
		return time.Duration(r.Int64N(int64(discovery.SettleTime * 8 / 10)))
	}
	// The kernel's clock is coarse: all writes within a tick have the same time.
	const tick = 10 * time.Millisecond
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w.check(os.WriteFile(w.path, []byte(stateText(0, 2)), 0o644))
	s.pods = []int{2}
	stamp := func() {
		if _, err := os.Stat(w.path); err == nil {
			w.check(os.Chtimes(w.path, now, now.Truncate(tick)))
		}
	}
	stamp()
	var due time.Duration // of the next step
	written, rests, refused, rested := 0, 0, false, false
	resting := time.Duration(0)
	// advance runs the steps that are due within d.
	advance := func(d time.Duration) {
		for {
			if len(w.steps) == 0 && resting <= 0 {
				if written == n {
					break
				}
				written++
				w.write(rested)
				rested = false
				due = w.wait[0]
				if r.IntN(4) == 0 {
					resting, rested = 3*time.Second, true // after this write
				}
			}
			if len(w.steps) == 0 || due > d {
				break
			}
			now, d = now.Add(due), d-due
			w.steps[0]()
			stamp()
			w.steps, w.wait = w.steps[1:], w.wait[1:]
			if len(w.wait) > 0 {
				due = w.wait[0]
			}
		}
		now = now.Add(d)
		if len(w.steps) > 0 {
			due -= d
		} else {
			resting -= d
		}
	}
	end := errors.New("no more")
	err := discovery.RunFile(t.Context(), w.path, func() time.Time { return now }, func(_ context.Context, d time.Duration) error {
		if len(w.steps) == 0 && resting > 0 && resting < time.Second && !refused {
			rests++
			if s.applied != s.whole && s.wrong == nil {
				s.wrong = fmt.Errorf("after a pause state %d was set, and %d is the newest", s.applied, s.whole)
			}
		}
		advance(d)
		if s.wrong != nil || w.err != nil || written == n && len(w.steps) == 0 {
			return end
		}
		return nil
	}, func(f *os.File) io.Reader {
		return readerFunc(func(b []byte) (int, error) {
			if r.IntN(2) == 0 {
				advance(time.Duration(r.IntN(6)) * time.Millisecond)
			}
			return f.Read(b[:min(len(b), 1+r.IntN(200))])
		})
	}, nil, func(pods []events.Pod) error {
		if refused = r.IntN(4) == 0; refused {
			return errors.New("no room")
		}
		s.set(pods)
		return nil
	})
	if !errors.Is(err, end) || s.wrong != nil || w.err != nil {
		t.Fatalf("seed %d, write %d: %v, %v, %v", *seed, written, s.wrong, w.err, err)
	}
	t.Logf("%d writes of each kind %v, %d lists set, the newest after %d pauses", written, w.kinds, s.times, rests)
	if rests < n/20 || s.times < n/10 || slices.Min(w.kinds[:]) < n/20 {
		t.Error("too few")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestFaultsOfAFileReachTheFleet(t *testing.T) {
	fails := make(chan error, 1)
	f, err := events.NewFleet(noopSink{}, events.FleetConfig{OnError: func(err error) { fails <- err }})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	path := filepath.Join(t.TempDir(), "pods.json")
	go func() { ended <- f.Run(ctx, discovery.File(path)) }()
	if err := <-fails; !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	cancel()
	<-ended
}

type noopSink struct{ events.Sink }

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
