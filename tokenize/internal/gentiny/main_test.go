package main

import (
	"bytes"
	"os"
	"testing"
)

func TestFileIsCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../testdata/tiny.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("tiny.json is not what gentiny makes of prose.txt: run it again")
	}
	if len(want) > 60_000 {
		t.Errorf("it has %d bytes", len(want))
	}
}
