package main

import (
	"bytes"
	"os"
	"testing"
)

// The committed files are what the program makes.
func TestFilesAreCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../../testdata/tiny.json", "../../../examples/quickstart/tokenizer.json"} {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what gentiny makes of prose.txt: run it again", path)
		}
	}
	if len(want) > 60_000 {
		t.Errorf("it has %d bytes", len(want))
	}
}
