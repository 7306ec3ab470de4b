package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"testing"
)

// TestCurrent: the picture in docs is the generated one, and is XML.
func TestCurrent(t *testing.T) {
	file, err := os.ReadFile("../../docs/paths.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, draw()) {
		t.Error("docs/paths.svg is old: run go generate ./internal/picture")
	}
	d := xml.NewDecoder(bytes.NewReader(file))
	for err == nil {
		_, err = d.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
