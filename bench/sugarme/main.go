// Command sugarme encodes the corpus of KVINDEX_TESTDATA as
// github.com/sugarme/tokenizer does, in a process of its own because that may
// panic, and takes minutes for some texts:
//
//	sugarme FOLDER FAMILY
//
// It prints "exact N" when it has encoded all texts of up to maxText bytes, of
// which N have the recorded ids, and then "long" when it has encoded the first
// text of 100 kB as well. It is built without the race detector, which would
// make it slower still.
package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/sugarme/tokenizer"
	"github.com/sugarme/tokenizer/pretrained"
)

const maxText = 5000 // 12 texts are longer

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func run(folder, family string) error {
	file, err := open(folder, family, "tokenizer.json.gz")
	if err != nil {
		return err
	}
	t, err := pretrained.FromReader(file)
	if err != nil {
		return err
	}
	texts, err := open(folder, "corpus.jsonl.gz")
	if err != nil {
		return err
	}
	expected, err := open(folder, family, "expected.jsonl.gz")
	if err != nil {
		return err
	}
	long, exact := "", 0
	text, ids := json.NewDecoder(texts), json.NewDecoder(expected)
	for text.More() {
		var row struct {
			Text string
			IDs  []int
		}
		if err := text.Decode(&row); err != nil {
			return err
		}
		if err := ids.Decode(&row); err != nil {
			return err
		}
		switch {
		case len(row.Text) <= maxText:
			if same(t, row.Text, row.IDs) {
				exact++
			}
		case len(row.Text) == 100_000 && long == "":
			long = row.Text
		}
	}
	fmt.Println("exact", exact)
	same(t, long, nil)
	fmt.Println("long")
	return nil
}

// same reports whether text has these ids; an error or a panic is a no.
func same(t *tokenizer.Tokenizer, text string, ids []int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	e, err := t.EncodeSingle(text, false)
	return err == nil && slices.Equal(e.Ids, ids)
}

func open(elem ...string) (io.Reader, error) {
	f, err := os.Open(filepath.Join(elem...))
	if err != nil {
		return nil, err
	}
	return gzip.NewReader(f) // open until the process ends
}
