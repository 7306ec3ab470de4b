package sections_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/sections"
	"github.com/zeebo/xxh3"
)

type section struct {
	kind     sections.Kind
	optional bool
	payload  string
}

var small = []section{{1, false, "the head"}, {2, false, ""}, {9, true, "skipped"}, {2, false, strings.Repeat("a body", 3)}}

func write(t testing.TB, all []section) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := sections.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := w.Write(s.kind, s.optional, []byte(s.payload)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// read returns the sections of the kinds 1 and 2.
func read(r io.Reader) (all []section, err error) {
	s, err := sections.NewReader(r, 1, 2)
	if err != nil {
		return nil, err
	}
	for {
		k, payload, err := s.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, section{k, false, string(payload)})
	}
}

func TestSections(t *testing.T) {
	in := bytes.NewReader(append(write(t, small), "what is behind"...))
	got, err := read(in)
	if want := []section{small[0], small[1], small[3]}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "what is behind" {
		t.Errorf("%q is left", rest)
	}
	// The largest sections.
	most := []section{{1, false, strings.Repeat("x", sections.Max)}, {2, false, strings.Repeat("y", sections.Max-1)}}
	if got, err := read(bytes.NewReader(write(t, most))); err != nil || fmt.Sprint(got) != fmt.Sprint(most) {
		t.Errorf("%d sections, %v", len(got), err)
	}
	w, _ := sections.NewWriter(io.Discard)
	if w.Write(1, false, make([]byte, sections.Max+1)) == nil || w.Write(0, false, nil) == nil {
		t.Error("a section was written that none may be")
	}
}

// TestDamage: a stream that is cut anywhere, or has one changed bit, is rejected.
func TestDamage(t *testing.T) {
	whole := write(t, small)
	for n := range whole {
		if _, err := read(bytes.NewReader(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", n)) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if got, err := read(bytes.NewReader(b)); err == nil {
			t.Errorf("bit %d: %v", bit, got)
		}
	}
}

// cut returns the bytes of each section after the header.
func cut(b []byte) (parts [][]byte) {
	parts, b = append(parts, b[:12]), b[12:]
	for len(b) > 0 {
		n := 16 + int(binary.LittleEndian.Uint32(b[4:]))
		parts, b = append(parts, b[:n]), b[n:]
	}
	return parts
}

// TestWrongPlace: sections that are reordered, repeated, omitted or from another stream are
// rejected at the first wrong one.
func TestWrongPlace(t *testing.T) {
	a := cut(write(t, small))
	b := cut(write(t, append([]section{{1, false, "another"}}, small[1:]...)))
	for name, c := range map[string]struct {
		parts [][]byte
		want  string
	}{
		"reordered":         {[][]byte{a[0], a[1], a[3], a[2], a[4], a[5]}, "section 1 at byte 36: the checksum"},
		"repeated":          {[][]byte{a[0], a[1], a[2], a[2], a[3], a[4], a[5]}, "section 2 at byte 52: the checksum"},
		"left out":          {[][]byte{a[0], a[1], a[2], a[4], a[5]}, "section 2 at byte 52: the checksum"},
		"foreign":           {[][]byte{a[0], a[1], b[2], a[3], a[4], a[5]}, "section 1 at byte 36: the checksum"},
		"the end too early": {[][]byte{a[0], a[1], a[2], a[3], a[5]}, "section 3 at byte 75: the checksum"},
		"no end":            {a[:5], "section 4 at byte 109: there is no end"},
	} {
		if _, err := read(bytes.NewReader(bytes.Join(c.parts, nil))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// fix corrects the checksums of a stream, as far as it consists of sections.
func fix(b []byte) {
	if len(b) < 12 {
		return
	}
	last := xxh3.Hash(b[:12])
	for b = b[12:]; len(b) >= 16; {
		n := uint64(binary.LittleEndian.Uint32(b[4:]))
		if n > uint64(len(b)-16) {
			return
		}
		seed := xxh3.Hash(append(binary.LittleEndian.AppendUint64(nil, last), b[:8]...))
		last = xxh3.HashSeed(b[16:16+n], seed)
		binary.LittleEndian.PutUint64(b[8:], last)
		b = b[16+n:]
	}
}

// TestRefused: an invalid stream is rejected, and the error has the reason.
func TestRefused(t *testing.T) {
	whole := write(t, small)
	for name, c := range map[string]struct {
		at    int
		to    byte
		fixed bool
		want  string
	}{
		"another file":      {0, 'x', false, "no snapshot"},
		"another version":   {8, 7, false, "version 7 of the format, and only version 1"},
		"another kind":      {12, 77, true, "section 0 at byte 12: its kind 77 is not known"},
		"an unknown flag":   {13, 2, true, "section 0 at byte 12: flags"},
		"an unknown field":  {14, 1, true, "section 0 at byte 12: flags"},
		"a length too long": {19, 1, true, "section 0 at byte 12: a length of 16777224 bytes, at most 4194304"},
		"an end of others":  {len(whole) - 8, 3, true, "section 4 at byte 109: the end counts"},
		"an end too soon":   {12, 0, true, "section 0 at byte 12: the end counts"},
	} {
		b := bytes.Clone(whole)
		b[c.at] = c.to
		if c.fixed {
			fix(b)
		}
		if _, err := read(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// faultyWriter fails after so many bytes.
type faultyWriter struct {
	left int
	err  error
}

func (f *faultyWriter) Write(b []byte) (int, error) {
	n := min(len(b), f.left)
	if f.left -= n; n < len(b) {
		return n, f.err
	}
	return n, nil
}

// TestWriterError: an error of the writer is returned unchanged, and a short write is an error.
func TestWriterError(t *testing.T) {
	broken := errors.New("broken")
	for n := range len(write(t, small)) {
		for _, want := range []error{broken, nil} {
			w, err := sections.NewWriter(&faultyWriter{n, want})
			for _, s := range small {
				if err == nil {
					err = w.Write(s.kind, s.optional, []byte(s.payload))
				}
			}
			if err == nil {
				err = w.End()
			}
			if want == nil {
				want = io.ErrShortWrite
			}
			if err != want {
				t.Fatalf("after %d bytes: %v, want %v", n, err, want)
			}
		}
	}
}

// TestClaimedLength: a declared length allocates nothing.
func TestClaimedLength(t *testing.T) {
	b := write(t, []section{{1, false, "x"}})[:12+16]
	binary.LittleEndian.PutUint32(b[16:], sections.Max)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, err := read(bytes.NewReader(b)); err == nil {
			t.Fatal("read")
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 100; n > 16<<10 {
		t.Errorf("%d bytes allocated", n)
	}
}

func TestFields(t *testing.T) {
	b := sections.AppendString(binary.AppendUvarint([]byte{7}, 300), "text")
	b = binary.LittleEndian.AppendUint64(b, 1<<40)
	f := sections.NewFields(b)
	if f.Byte() != 7 || f.Int(300) != 300 || f.String() != "text" || f.Uint64() != 1<<40 || f.End() != nil {
		t.Error(f.End())
	}
	for want, read := range map[string]func(f *sections.Fields){
		"more fields":                      func(f *sections.Fields) { f.Byte() },
		"out of bounds":                    func(f *sections.Fields) { f.Byte(); f.Int(299) },
		"fields are missing":               func(f *sections.Fields) { f.Byte(); f.Count() },
		"fields are missing: behind all":   func(f *sections.Fields) { bytesOf(f, len(b)); f.Uvarint() },
		"fields are missing: of a number":  func(f *sections.Fields) { f.Uint64(); f.Uint64(); f.Uint64() },
		"another one: what was said first": func(f *sections.Fields) { f.Refuse(errors.New("another one")); f.Uint64() },
	} {
		f := sections.NewFields(b)
		want, _, _ = strings.Cut(want, ":")
		if read(f); f.End() == nil || !strings.Contains(f.End().Error(), want) || f.Byte() != 0 || f.Uint64() != 0 || f.Uvarint() != 0 || f.String() != "" {
			t.Errorf("%v, want %q", f.End(), want)
		}
	}
}

func bytesOf(f *sections.Fields, n int) {
	for range n {
		f.Byte()
	}
}

// FuzzReader: no input panics or allocates much; half of the inputs have correct checksums.
func FuzzReader(f *testing.F) {
	f.Add(write(f, small), false)
	f.Add(write(f, small), true)
	f.Add(write(f, []section{{2, false, strings.Repeat("long", 5000)}}), true)
	f.Fuzz(func(t *testing.T, b []byte, fixed bool) {
		if fixed {
			b = bytes.Clone(b)
			fix(b)
		}
		in := bytes.NewReader(b)
		s, err := sections.NewReader(in, 1, 2)
		total := 0
		for err == nil {
			var payload []byte
			_, payload, err = s.Next()
			if total += len(payload); cap(payload) > 4096+4*len(b) {
				t.Fatalf("%d bytes for a payload of %d", cap(payload), len(payload))
			}
		}
		if total > len(b) {
			t.Fatalf("%d bytes of payloads in %d", total, len(b))
		}
		if err != io.EOF {
			return
		}
		if _, _, again := s.Next(); again != io.EOF {
			t.Fatal("there is something behind the end")
		}
	})
}
