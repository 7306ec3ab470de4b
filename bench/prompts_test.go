package bench_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// promptWorld is a trace as texts.
type promptWorld struct {
	trace     *bench.Trace
	texts     *bench.Texts
	special   bool // special tokens are put around texts
	tokenizer *tokenize.BPE
	lengths   []int    // bytes of each id
	fresh     []int    // bytes of each request's text that none before began with
	right     []uint64 // hashes of the ids of each
	tokens    []int    // how many these are
	bytes     int
}

// In a chat each block of the trace is a message, so a special token is near.
const message = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"

var llama3Special = []string{"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}

func newPromptWorld(b *testing.B, trace string, requests int, before string) *promptWorld {
	folder := testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3")
	w := &promptWorld{trace: load(b, trace, requests), special: before == ""}
	var err error
	if w.tokenizer, err = tokenize.Load(folder); err != nil {
		b.Fatal(err)
	}
	w.lengths = idLengths(b, folder)
	pool := bench.ASCII([]byte(testdata.NewProse(b, "prompts of a trace", 1).Text(8 << 20)))
	w.texts = &bench.Texts{Pool: pool, Before: before, Size: 9*w.trace.BlockTokens/2 - len(before)} // 4 bytes a token at the mean
	shared := bench.NewShared(w.texts)
	var ids []uint32
	w.each(func(i int, text string) {
		w.fresh = append(w.fresh, len(text)-shared.Add(&w.trace.Requests[i]))
		w.bytes += len(text)
		ids = w.encode(ids[:0], text, w.special)
		w.right = append(w.right, hashOf(ids))
		w.tokens = append(w.tokens, len(ids))
	})
	return w
}

// each calls do for the text of each request.
func (w *promptWorld) each(do func(i int, text string)) {
	var buf []byte
	for i := range w.trace.Requests {
		buf = w.texts.Append(buf[:0], &w.trace.Requests[i])
		do(i, string(buf))
	}
}

func (w *promptWorld) encode(dst []uint32, text string, special bool) []uint32 {
	ids, err := w.tokenizer.Encode(context.Background(), dst, text, special)
	if err != nil {
		panic(err) // of no text here
	}
	return ids
}

var idSeed = maphash.MakeSeed()

func hashOf(ids []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(idSeed)
	for _, id := range ids {
		h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16)})
	}
	return h.Sum64()
}

// idLengths returns how many bytes of text each id stands for: a character in the
// vocabulary is a byte of text. Special tokens are 0, of those that are put around a text.
func idLengths(b *testing.B, folder string) []int {
	raw, err := io.ReadAll(testdata.Open(b, folder+"/tokenizer.json.gz"))
	var file struct {
		Model struct{ Vocab map[string]int }
		Added []struct {
			ID      int
			Content string
		} `json:"added_tokens"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &file)
	}
	if err != nil {
		b.Fatal(err)
	}
	lengths := make([]int, len(file.Model.Vocab)+len(file.Added))
	for token, id := range file.Model.Vocab {
		lengths[id] = utf8.RuneCountInString(token)
	}
	for _, a := range file.Added {
		if a.Content != "<|begin_of_text|>" {
			lengths[a.ID] = len(a.Content)
		}
	}
	return lengths
}

// promptDesign is a way to a score of a text.
type promptDesign struct {
	name string
	open func(b *testing.B, w *promptWorld) promptScorer
}

// promptScorer scores a text and returns how many bytes of it were encoded. right
// reports whether the prompt that was scored is the text's.
type promptScorer func(text string) (encoded int, right func(tokens int, hash uint64) bool)

var promptDesigns = []promptDesign{
	{"kvindex", func(b *testing.B, w *promptWorld) promptScorer {
		ix := openPrompts(b, w, 1<<40)
		r := kvindex.Request{Model: "m", Rendered: !w.special}
		var a kvindex.Answer
		return func(text string) (int, func(int, uint64) bool) {
			before := ix.Stats().Prompts.BytesEncoded
			r.Prompt = text
			if err := ix.ScoreRequest(context.Background(), &r, &a); err != nil {
				b.Fatal(err)
			}
			return int(ix.Stats().Prompts.BytesEncoded - before), func(tokens int, _ uint64) bool { return a.PromptTokens == tokens }
		}
	}},
	{"none", func(b *testing.B, w *promptWorld) promptScorer {
		return byIDs(b, w, func(dst []uint32, text string, special bool) ([]uint32, int) {
			return w.encode(dst, text, special), len(text)
		})
	}},
	{"chunks", func(b *testing.B, w *promptWorld) promptScorer {
		s, err := bench.NewChunkStore(500_000, func(id uint32) int { return w.lengths[id] }, w.encode)
		if err != nil {
			b.Fatal(err)
		}
		return byIDs(b, w, s.Ids)
	}},
	{"levels", func(b *testing.B, w *promptWorld) promptScorer {
		return byIDs(b, w, bench.NewTwoLevels(256<<20, 50<<20, llama3Special, w.encode).Ids)
	}},
	{"levels-ample", func(b *testing.B, w *promptWorld) promptScorer {
		return byIDs(b, w, bench.NewTwoLevels(math.MaxInt/2, 1<<30, llama3Special, w.encode).Ids)
	}},
}

func openPrompts(b *testing.B, w *promptWorld, cache int64) *kvindex.Indexer {
	ix, err := kvindex.New(kvindex.WithModel("m", kvindex.Model{Tokenizer: w.tokenizer}), kvindex.WithPromptCache(cache))
	if err == nil {
		b.Cleanup(func() { ix.Close() })
		err = ix.Ingest("pod", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)))
	}
	if err != nil {
		b.Fatal(err)
	}
	return ix
}

// byIDs scores by token ids what a baseline takes for them.
func byIDs(b *testing.B, w *promptWorld, ids func(dst []uint32, text string, special bool) ([]uint32, int)) promptScorer {
	ix := openPrompts(b, w, 0)
	r := kvindex.Request{Model: "m"}
	var a kvindex.Answer
	return func(text string) (encoded int, right func(int, uint64) bool) {
		r.Tokens, encoded = ids(r.Tokens[:0], text, w.special)
		if err := ix.ScoreRequest(context.Background(), &r, &a); err != nil {
			b.Fatal(err)
		}
		return encoded, func(_ int, hash uint64) bool { return hashOf(r.Tokens) == hash }
	}
}

// byteIDs are the bytes of a text, with 999 before it if special.
func byteIDs(dst []uint32, text string, special bool) []uint32 {
	if special {
		dst = append(dst, 999)
	}
	for _, c := range []byte(text) {
		dst = append(dst, uint32(c))
	}
	return dst
}

// The store of chunks takes four fifths of a text for the whole, and else encodes it.
func TestChunkStore(t *testing.T) {
	length := func(id uint32) int { return int(flagOf(id != 999)) }
	s, err := bench.NewChunkStore(100, length, byteIDs)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("0123456789abcdef", 80) // five chunks
	for _, c := range []struct {
		text         string
		ids, encoded int
	}{
		{text, 1281, 1280},
		{text, 1281, 0},
		{text + "more", 1281, 0},
		{text + text, 2561, 2560},
		{text[:1024] + strings.Repeat("x", 256), 1025, 0},
		{text[:1023] + strings.Repeat("x", 257), 1281, 1280},
	} {
		ids, encoded := s.Ids(nil, c.text, true)
		if len(ids) != c.ids || encoded != c.encoded {
			t.Errorf("%d bytes: %d ids, %d bytes encoded; want %d, %d", len(c.text), len(ids), encoded, c.ids, c.encoded)
		}
	}
}

func flagOf(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

// The two levels give the right ids, also after they had to give up entries.
func TestTwoLevels(t *testing.T) {
	const end = "<|end|>"
	for _, room := range []int{1 << 20, 2000} {
		l := bench.NewTwoLevels(room, room, []string{end}, byteIDs)
		text := "system" + end + "a" + end + "b"
		for i, want := range []int{len(text), 0, 3 + len(end), 1 + len(end), 0} {
			asked := []string{text, text, text + end + "cd", "system" + end + "z" + end, text}[i]
			ids, encoded := l.Ids(nil, asked, true)
			if !slices.Equal(ids, byteIDs(nil, asked, true)) {
				t.Errorf("room %d, %q: ids %v", room, asked, ids)
			}
			if room == 1<<20 && encoded != want {
				t.Errorf("%q: %d bytes encoded, want %d", asked, encoded, want)
			}
		}
		for i := range 100 {
			asked := fmt.Sprint("system", end, i%7, end, i, end, "more")
			if ids, _ := l.Ids(nil, asked, true); !slices.Equal(ids, byteIDs(nil, asked, true)) {
				t.Errorf("room %d, %q: ids %v", room, asked, ids)
			}
		}
	}
}

// BenchmarkPrompts scores the prompts of a trace as texts, one after the other; an operation
// is the trace. "beyond" is what was encoded of a prompt beyond what is new in it, at
// the mean; "wrong-%" are prompts whose score was of other ids.
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
			for _, d := range promptDesigns {
				b.Run("impl="+d.name, func(b *testing.B) { benchPrompts(b, w, d) })
			}
		})
	}
}

func benchPrompts(b *testing.B, w *promptWorld, d promptDesign) {
	n := len(w.trace.Requests)
	if n == 0 {
		b.Skip("no requests")
	}
	encoded, beyond, wrong, fresh := 0, make([]int, n), 0, 0
	took := make([]time.Duration, n)
	var heap float64
	for b.Loop() {
		encoded, wrong, fresh = 0, 0, 0
		before := liveHeap()
		score := d.open(b, w)
		w.each(func(i int, text string) {
			began := time.Now()
			e, right := score(text)
			took[i] = time.Since(began)
			encoded += e
			fresh += w.fresh[i]
			beyond[i] = e - w.fresh[i]
			if !right(w.tokens[i], w.right[i]) {
				wrong++
			}
		})
		heap = liveHeap() - before
		runtime.KeepAlive(score)
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
	b.ReportMetric(100*float64(wrong)/float64(n), "wrong-%")
	b.ReportMetric(heap/float64(fresh), "B/byte")
}
