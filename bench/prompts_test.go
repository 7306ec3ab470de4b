package bench_test

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
)

var (
	prompts        = flag.Int("prompts", 1000, "requests of the conversation trace that BenchmarkPrompts scores as texts; 0: all")
	agenticPrompts = flag.Int("agentic-prompts", 100, "requests of the agentic trace that it scores; 0: all")
)

// promptWorld is a trace with texts.
type promptWorld struct {
	trace     *bench.Trace
	texts     *bench.Texts
	special   bool // special tokens are added around texts
	tokenizer *tokenize.BPE
	fresh     []int // bytes of each request's text after its longest common beginning with earlier ones
	tokens    []int // of each request
	bytes     int
}

// In a chat each block of the trace is a message, with special tokens nearby.
const message = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"

func newPromptWorld(b *testing.B, trace string, requests int, before string) *promptWorld {
	folder := testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3")
	w := &promptWorld{trace: load(b, trace, requests), special: before == ""}
	var err error
	if w.tokenizer, err = tokenize.Load(folder); err != nil {
		b.Fatal(err)
	}
	pool := bench.ASCII([]byte(testdata.NewProse(b, "prompts of a trace", 1).Text(8 << 20)))
	w.texts = &bench.Texts{Pool: pool, Before: before, Size: 9*w.trace.BlockTokens/2 - len(before)} // a mean of 4 bytes a token
	shared := bench.NewSharedTexts(w.texts)
	w.each(func(i int, text string) {
		w.fresh = append(w.fresh, len(text)-shared.Add(&w.trace.Requests[i]))
		w.bytes += len(text)
		ids, err := w.tokenizer.Encode(b.Context(), nil, text, w.special)
		must(b, err)
		w.tokens = append(w.tokens, len(ids))
	})
	return w
}

func (w *promptWorld) each(do func(i int, text string)) {
	var buf []byte
	for i := range w.trace.Requests {
		buf = w.texts.Append(buf[:0], &w.trace.Requests[i])
		do(i, string(buf))
	}
}

// openPrompts returns an Indexer with a prompt cache of so many bytes.
func openPrompts(b *testing.B, w *promptWorld, cache int64) *kvindex.Indexer {
	ix, err := kvindex.New(kvindex.WithModel("m", kvindex.Model{Tokenizer: w.tokenizer}), kvindex.WithPromptCache(cache))
	if err == nil {
		b.Cleanup(func() { ix.Close() })
		err = ix.Ingest("pod", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)))
	}
	must(b, err)
	return ix
}

// BenchmarkPrompts scores the prompts of a trace as texts. An operation is the whole trace.
// "beyond" is the mean number of bytes that are encoded again in a prompt.
func BenchmarkPrompts(b *testing.B) {
	for _, tr := range []struct {
		name, form, before string
		requests           int
	}{
		{"conversation_512", "text", "", *prompts},
		{"conversation_512", "chat", message, *prompts},
		{"agentic_64", "text", "", *agenticPrompts},
	} {
		b.Run(fmt.Sprintf("trace=%s/form=%s", tr.name, tr.form), func(b *testing.B) {
			w := newPromptWorld(b, tr.name, tr.requests, tr.before)
			b.Run("cache=all", func(b *testing.B) { benchPrompts(b, w, 1<<40) })
			b.Run("cache=none", func(b *testing.B) { benchPrompts(b, w, 0) })
		})
	}
}

func benchPrompts(b *testing.B, w *promptWorld, cache int64) {
	n := len(w.trace.Requests)
	if n == 0 {
		b.Skip("no requests")
	}
	encoded, beyond, fresh := 0, make([]int, n), 0
	took := make([]time.Duration, n)
	var heap float64
	for b.Loop() {
		encoded, fresh = 0, 0
		before := liveHeap()
		ix := openPrompts(b, w, cache)
		r := kvindex.Request{Model: "m", Rendered: !w.special}
		var a kvindex.Answer
		w.each(func(i int, text string) {
			began := time.Now()
			r.Prompt = text
			err := ix.ScoreRequest(b.Context(), &r, &a)
			took[i] = time.Since(began)
			if err != nil || a.PromptTokens != w.tokens[i] {
				b.Fatalf("request %d: %d tokens, want %d: %v", i, a.PromptTokens, w.tokens[i], err)
			}
			e := len(text)
			if cache > 0 {
				e = int(ix.Stats().Prompts.BytesEncoded) - encoded
			}
			encoded += e
			fresh += w.fresh[i]
			beyond[i] = e - w.fresh[i]
		})
		heap = liveHeap() - before
		runtime.KeepAlive(ix)
	}
	var all time.Duration
	for _, t := range took {
		all += t
	}
	slices.Sort(took)
	slices.Sort(beyond)
	sum := 0
	for _, x := range beyond {
		sum += x
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(all.Microseconds())/float64(n), "us/prompt")
	b.ReportMetric(float64(took[n/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(sum)/float64(n), "beyond-B")
	b.ReportMetric(float64(beyond[n-1]), "most-beyond-B")
	b.ReportMetric(100*(1-float64(encoded)/float64(w.bytes)), "known-%")
	b.ReportMetric(100*(1-float64(fresh)/float64(w.bytes)), "seen-%")
	b.ReportMetric(heap/float64(fresh), "B/byte")
}
