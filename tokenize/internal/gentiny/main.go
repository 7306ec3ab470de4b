// Command gentiny writes tokenize/testdata/tiny.json: a tokenizer in GPT-2's
// form that is small enough to read. Nothing imports it; it runs only by hand:
//
//	go run ./tokenize/internal/gentiny > tokenize/testdata/tiny.json
//
// Its tokens are the 256 bytes, the most frequent pairs of prose.txt, merged one
// at a time, and the special token <|end|>. The same text gives the same file.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"log"
	"maps"
	"os"
	"regexp"
	"slices"
)

//go:embed prose.txt
var prose string

const (
	maxMerges = 600
	minCount  = 2 // of a pair, to be merged
	special   = "<|end|>"
)

func main() {
	log.SetFlags(0)
	file, err := generate()
	if err != nil {
		log.Fatal("gentiny: ", err)
	}
	if _, err := os.Stdout.Write(file); err != nil {
		log.Fatal("gentiny: ", err)
	}
}

// A pair is two neighbouring tokens, as the file writes them.
type pair [2]string

// A sample is a piece of the text, cut into tokens, and how often it occurs.
type sample struct {
	tokens []string
	count  int
}

// generate returns the file, one line for each of its sections.
func generate() ([]byte, error) {
	alphabet := byteAlphabet()
	merges := train(samples(prose, alphabet), maxMerges)

	vocab := map[string]int{}
	for b := range 256 {
		vocab[alphabet[b]] = b
	}
	for _, m := range merges {
		vocab[m[0]+m[1]] = len(vocab)
	}
	type dict = map[string]any
	byteLevel := dict{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	sections := []struct {
		name  string
		value any
	}{
		{"version", "1.0"},
		{"truncation", nil},
		{"padding", nil},
		{"added_tokens", []any{dict{
			"id": len(vocab), "content": special, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true,
		}}},
		{"normalizer", nil},
		{"pre_tokenizer", byteLevel},
		{"post_processor", nil},
		{"decoder", byteLevel},
		{"model", dict{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false,
			"ignore_merges": false, "vocab": vocab, "merges": merges,
		}},
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	for i, s := range sections {
		before := ","
		if i == 0 {
			before = "{"
		}
		out.WriteString(before + `"` + s.name + `": `)
		if err := e.Encode(s.value); err != nil {
			return nil, err
		}
	}
	out.WriteString("}\n")
	return out.Bytes(), nil
}

// byteAlphabet returns the character that byte-level files write each byte with:
// GPT-2's, in which those that print in Latin-1 stand for themselves and the rest
// for the characters from U+0100 on.
func byteAlphabet() [256]string {
	var alphabet [256]string
	next := rune(0x100)
	for b := range rune(256) {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			alphabet[b] = string(b)
			continue
		}
		alphabet[b] = string(next)
		next++
	}
	return alphabet
}

// pieces is what GPT-2's pattern comes to on the text's plain English.
var pieces = regexp.MustCompile(`'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+`)

// samples returns the distinct pieces of text, sorted, cut into bytes.
func samples(text string, alphabet [256]string) []sample {
	counts := map[string]int{}
	for _, p := range pieces.FindAllString(text, -1) {
		counts[p]++
	}
	var all []sample
	for _, p := range slices.Sorted(maps.Keys(counts)) {
		s := sample{count: counts[p]}
		for _, b := range []byte(p) {
			s.tokens = append(s.tokens, alphabet[b])
		}
		all = append(all, s)
	}
	return all
}

// train merges the most frequent pair until there are n merges or none is
// frequent enough.
func train(all []sample, n int) []pair {
	var merges []pair
	for len(merges) < n {
		best, count := mostFrequent(all)
		if count < minCount {
			break
		}
		merges = append(merges, best)
		for i := range all {
			all[i].tokens = merge(all[i].tokens, best)
		}
	}
	return merges
}

// mostFrequent returns the pair that occurs most, of several the first in order.
func mostFrequent(all []sample) (best pair, count int) {
	counts := map[pair]int{}
	for _, s := range all {
		for i := 1; i < len(s.tokens); i++ {
			counts[pair{s.tokens[i-1], s.tokens[i]}] += s.count
		}
	}
	for p, n := range counts {
		if n > count || n == count && slices.Compare(p[:], best[:]) < 0 {
			best, count = p, n
		}
	}
	return best, count
}

// merge joins each occurrence of p in tokens, from the left.
func merge(tokens []string, p pair) []string {
	var out []string
	for i := 0; i < len(tokens); i++ {
		if i+1 < len(tokens) && tokens[i] == p[0] && tokens[i+1] == p[1] {
			out = append(out, p[0]+p[1])
			i++
			continue
		}
		out = append(out, tokens[i])
	}
	return out
}
