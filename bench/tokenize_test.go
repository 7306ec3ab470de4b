package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unicode"

	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

// tokenizers are the families of KVINDEX_TESTDATA.
var tokenizers = []string{"deepseekv3", "gemma2", "gpt2", "llama2", "llama3", "o200k", "phi3", "qwen25", "tekken"}

// An official is the Rust library with its binding for Node.js, in its own process:
// testdata/tokenizers.js.
type official struct {
	requests *json.Encoder
	answers  *json.Decoder
}

// newOfficial starts the process, which ends with the test. Without node or the npm package it
// skips the test.
func newOfficial(tb testing.TB) *official {
	tb.Helper()
	if err := exec.Command("node", "-e", "require('tokenizers')").Run(); err != nil {
		tb.Skip("node with its package tokenizers is not there (npm install tokenizers@0.23.2, its folder in NODE_PATH): skipped the official encoder")
	}
	node := exec.Command("node", filepath.Join("testdata", "tokenizers.js"))
	in, err1 := node.StdinPipe()
	out, err2 := node.StdoutPipe()
	must(tb, errors.Join(err1, err2, node.Start()))
	tb.Cleanup(func() {
		in.Close() // which ends the process
		if err := node.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return &official{json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))}
}

func ask[T any](tb testing.TB, o *official, request any) (answer T) {
	tb.Helper()
	must(tb, o.requests.Encode(request))
	must(tb, o.answers.Decode(&answer))
	return answer
}

// load sets the family to encode with.
func (o *official) load(tb testing.TB, file string) {
	tb.Helper()
	got := ask[struct{ Version string }](tb, o, map[string]string{"file": file})
	tb.Logf("tokenizers %s", got.Version)
}

type encodings struct {
	NS  []float64
	IDs [][]uint32
}

func (o *official) encode(tb testing.TB, texts []string) encodings {
	tb.Helper()
	return ask[encodings](tb, o, map[string][]string{"texts": texts})
}

func encodeAll(tb testing.TB, t tokenize.Tokenizer, texts []string) (all encodings) {
	tb.Helper()
	for _, text := range texts {
		start := time.Now()
		ids, err := t.Encode(context.Background(), nil, text, true)
		took := time.Since(start)
		must(tb, err)
		all.NS = append(all.NS, float64(took.Nanoseconds()))
		all.IDs = append(all.IDs, ids)
	}
	return all
}

// family loads a family in both.
func (o *official) family(tb testing.TB, name string) *tokenize.BPE {
	tb.Helper()
	file := testdata.Path(tb, "the "+name+" tokenizer", "tokens", name, "tokenizer.json.gz")
	t, err := tokenize.Load(file)
	must(tb, err)
	o.load(tb, file)
	return t
}

// TestTokenizeAsOfficial has new texts in each run.
func TestTokenizeAsOfficial(t *testing.T) {
	for _, name := range tokenizers {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			p := testdata.NewProse(t, "fresh texts by the official encoder", seed)
			o := newOfficial(t)
			bpe := o.family(t, name)
			var texts []string
			for range 100 {
				texts = append(texts, scrambled(p, 1+p.IntN(400)))
			}
			us, them := encodeAll(t, bpe, texts), o.encode(t, texts)
			for i, text := range texts {
				if !slices.Equal(us.IDs[i], them.IDs[i]) {
					t.Errorf("seed %d: %q: got %v, want %v", seed, text, us.IDs[i], them.IDs[i])
				}
			}
			t.Logf("%d texts", len(texts))
		})
	}
}

var odd = []rune(" \n\r\t\u00a0\u2028\u3000'’1٣½\u0301\u200d\ufe0f▁")

// scrambled returns a text of words with random odd characters.
func scrambled(p *testdata.Prose, size int) string {
	text := []rune(p.Text(size))
	for range p.IntN(1 + len(text)/4) {
		at := p.IntN(len(text))
		switch p.IntN(4) {
		case 0:
			text[at] = odd[p.IntN(len(odd))]
		case 1:
			text[at] = unicode.ToUpper(text[at])
		case 2:
			text[at] = p.Int32N(0x3100)
		default:
			text[at] = p.Int32N(0xd800)
		}
	}
	return string(text)
}

// BenchmarkTokenize compares the tokenizer with the official one, on new texts of 36 kB. Both keep
// their memory and their words. The ids must be equal. An operation is 8 texts by each in turn. The
// figures are medians of all texts.
func BenchmarkTokenize(b *testing.B) {
	for _, name := range tokenizers {
		b.Run(name, func(b *testing.B) {
			p := testdata.NewProse(b, "comparing with the official encoder", 1)
			o := newOfficial(b)
			t := o.family(b, name)
			fresh := func() []string {
				texts := make([]string, 8)
				for i := range texts {
					texts[i] = p.Text(36 << 10)
				}
				return texts
			}
			warm := fresh()
			o.encode(b, warm)
			encodeAll(b, t, warm)
			var ours, theirs []float64
			for b.Loop() {
				texts := fresh()
				us, them := encodeAll(b, t, texts), o.encode(b, texts)
				for i := range texts {
					if !slices.Equal(us.IDs[i], them.IDs[i]) {
						b.Fatalf("other ids than the official ones for %q", texts[i])
					}
				}
				ours, theirs = append(ours, us.NS...), append(theirs, them.NS...)
			}
			us, them := middle(ours), middle(theirs)
			b.ReportMetric(0, "ns/op") // meaningless here
			b.ReportMetric(us/1e3, "us/text")
			b.ReportMetric(them/1e3, "official-us/text")
			b.ReportMetric(them/us, "ratio")
		})
	}
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
