// Package testdata finds what tests compare with: the folder with data of the real
// engines that the environment variable KVINDEX_TESTDATA names, prose, and what the
// package under test declares.
package testdata

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Path returns a path in the folder, or skips the test and logs what it would
// have compared with.
func Path(tb testing.TB, what string, elem ...string) string {
	tb.Helper()
	dir := os.Getenv("KVINDEX_TESTDATA")
	if dir == "" {
		tb.Skipf("KVINDEX_TESTDATA is not set: skipped %s", what)
	}
	return filepath.Join(append([]string{dir}, elem...)...)
}

// Glob returns the files that match a pattern in the folder, at least one.
func Glob(tb testing.TB, what string, elem ...string) []string {
	tb.Helper()
	pattern := Path(tb, what, elem...)
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		tb.Fatalf("no file %s: %v", pattern, err)
	}
	return found
}

// Open reads a file, unpacked if its name ends in .gz, until the test ends.
func Open(tb testing.TB, path string) io.Reader {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	if !strings.HasSuffix(path, ".gz") {
		return f
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return z
}

// Rows yields the rows of a file of JSON values, with their numbers from 0.
// Numbers without a type of their own come as json.Number.
func Rows[T any](tb testing.TB, path string) iter.Seq2[int, T] {
	tb.Helper()
	d := json.NewDecoder(Open(tb, path))
	d.UseNumber()
	return func(yield func(int, T) bool) {
		tb.Helper()
		for n := 0; d.More(); n++ {
			var row T
			if err := d.Decode(&row); err != nil {
				tb.Fatalf("%s: row %d: %v", path, n, err)
			}
			if !yield(n, row) {
				return
			}
		}
	}
}

// Each yields the rows of a file as Rows does, one on each line. It decodes those whose
// number is a multiple of every; the others are zero.
func Each[T any](tb testing.TB, path string, every int) iter.Seq2[int, T] {
	tb.Helper()
	lines := bufio.NewReaderSize(Open(tb, path), 1<<16)
	return func(yield func(int, T) bool) {
		tb.Helper()
		for n := 0; ; n++ {
			line, err := lines.ReadSlice('\n')
			whole := line
			for errors.Is(err, bufio.ErrBufferFull) {
				whole = slices.Clone(whole)
				line, err = lines.ReadSlice('\n')
				whole = append(whole, line...)
			}
			if err == io.EOF && len(whole) == 0 {
				return
			}
			if err != nil && err != io.EOF {
				tb.Fatalf("%s: row %d: %v", path, n, err)
			}
			var row T
			if n%every == 0 {
				if err := json.Unmarshal(whole, &row); err != nil {
					tb.Fatalf("%s: row %d: %v", path, n, err)
				}
			}
			if !yield(n, row) {
				return
			}
		}
	}
}
