package kvindex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	textSize   = 32 << 10 // bytes
	textBlocks = 1_000_000
)

// textWorld has 64 pods that hold a million blocks, and 1,000 texts of which one to eight pods hold
// the first three quarters.
type textWorld struct {
	*testdata.Prose
	tokenizer *tokenize.BPE
	chat      *chat.Model
	texts     []string
	pods      []string
	held      []func(tb testing.TB, ix *kvindex.Indexer)
	blocks    int
	turn      int // of byTurns; goes on, so that no text repeats
}

func newTextWorld(b *testing.B) *textWorld {
	w := &textWorld{Prose: testdata.NewProse(b, "texts to score", 1)}
	var err error
	if w.tokenizer, err = tokenize.Load(testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3")); err != nil {
		b.Fatal(err)
	}
	w.readChat(b)
	for i := range 64 {
		w.pods = append(w.pods, fmt.Sprint("pod", i))
	}
	for range 1000 {
		text := w.Text(textSize)
		w.texts = append(w.texts, text)
		ids, err := w.tokenizer.Encode(ctx, nil, text, true)
		must(b, err)
		w.hold(ids[:len(ids)*3/4], 1+w.IntN(8))
	}
	return w
}

func (w *textWorld) readChat(b *testing.B) {
	template, err := os.ReadFile(testdata.Path(b, "chat templates", "templates", "llama3-8b.jinja"))
	must(b, err)
	if w.chat, err = chat.New(string(template), map[string]string{"bos_token": "<|begin_of_text|>"}, chat.Options{}); err != nil {
		b.Fatal(err)
	}
}

// hold stores the blocks of a prompt on some pods.
func (w *textWorld) hold(tokens []uint32, holders int) {
	q := fakeengine.Prompt{Tokens: tokens, Size: 16, Hash: uint64(len(w.held)+1) << 32}
	first, blocks := w.IntN(len(w.pods)), len(tokens)/16
	w.blocks += blocks
	w.held = append(w.held, func(tb testing.TB, ix *kvindex.Indexer) {
		for i := range holders {
			ingest(tb, ix, w.pods[(first+i)%len(w.pods)], q.Stored(0, blocks))
		}
	})
}

// open returns an Indexer of the world.
func (w *textWorld) open(b *testing.B, opts ...kvindex.Option) *kvindex.Indexer {
	for w.blocks < textBlocks {
		w.hold(randomTokens(w.Rand, 512*16), 1)
	}
	ix := open(b, append(opts, kvindex.WithModel("m", kvindex.Model{Tokenizer: w.tokenizer, Chat: w.chat}))...)
	for _, h := range w.held {
		h(b, ix)
	}
	return ix
}

// client scores for all pods of a world.
type client struct {
	ix *kvindex.Indexer
	q  kvindex.Request
	a  kvindex.Answer
}

func (w *textWorld) client(ix *kvindex.Indexer) *client {
	return &client{ix: ix, q: kvindex.Request{Candidates: ix.Candidates("m", w.pods)}}
}

func (c *client) text(b *testing.B, text string) {
	c.q.Prompt, c.q.Body = text, nil
	c.score(b)
}

func (c *client) score(b *testing.B) {
	if err := c.ix.ScoreRequest(ctx, &c.q, &c.a); err != nil || len(c.a.Pods) != 64 {
		b.Error(err)
	}
}

// timing has the durations of one operation, allocated beforehand.
type timing struct{ took []time.Duration }

func newTiming() *timing { return &timing{make([]time.Duration, 0, 1<<17)} }

func (t *timing) do(f func()) {
	began := time.Now()
	f()
	if len(t.took) < cap(t.took) {
		t.took = append(t.took, time.Since(began))
	}
}

// median returns the median in ns.
func (t *timing) median() float64 {
	slices.Sort(t.took)
	return float64(t.took[len(t.took)/2].Nanoseconds())
}

// byTurns alternates an operation with a baseline: ns/op is the median of the operation, "of-base"
// its ratio to the baseline's. No two calls have the same i.
func (w *textWorld) byTurns(b *testing.B, base, thing func(i int)) {
	of, beside := newTiming(), newTiming()
	for range 8 {
		base(w.turn)
		thing(w.turn)
		w.turn++
	}
	b.ReportAllocs()
	for b.Loop() {
		i := w.turn
		w.turn++
		if i%2 == 0 {
			beside.do(func() { base(i) })
		}
		of.do(func() { thing(i) })
		if i%2 == 1 {
			beside.do(func() { base(i) })
		}
	}
	b.ReportMetric(of.median(), "ns/op")
	b.ReportMetric(beside.median(), "base-ns")
	b.ReportMetric(of.median()/beside.median(), "of-base")
	b.ReportMetric(beside.median()/of.median(), "times-faster")
}

// joiner joins texts without allocating. A result is valid until the next.
type joiner struct{ buf []byte }

func (j *joiner) text(parts ...string) string {
	j.buf = j.buf[:0]
	for _, p := range parts {
		j.buf = append(j.buf, p...)
	}
	return unsafe.String(unsafe.SliceData(j.buf), len(j.buf))
}

// BenchmarkPromptCache scores the texts of BenchmarkScoreText with a prompt cache, alternating each
// row with the baseline: another new text without cache. Another text is encoded between two scores
// of a row, so that the processor's caches are no warmer than a router's, except in "in-a-row".
func BenchmarkPromptCache(b *testing.B) {
	w := newTextWorld(b)
	tails := make([]string, 4096)
	for i := range tails {
		tails[i] = w.Text(1 << 10)
	}
	chats := newBodies(b, w)
	plain := w.client(w.open(b, kvindex.WithPromptCache(0)))
	split := new(kvindex.ScoreReport)
	hook := kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { *split = s }})
	cached := w.client(w.open(b, hook))
	n := len(w.texts)
	other := func(i int) { plain.text(b, w.texts[(i+n/2)%n]) }
	var here, there joiner
	// Texts never repeat: the second call would find the words in the tokenizer's cache.
	heads, asked := make([]string, 1<<12), 0
	for i := range heads {
		heads[i] = fmt.Sprintf("%08x", w.Uint32())
	}
	fresh := func(c *client, j *joiner, i int) {
		c.text(b, j.text(heads[i%len(heads)], heads[i/len(heads)%len(heads)], w.texts[i%n]))
	}
	neverSeen := func(b *testing.B) {
		w.byTurns(b, func(i int) { fresh(plain, &there, i+n/2) }, func(int) {
			asked++
			fresh(cached, &here, asked)
		})
	}
	b.Run("never-seen", neverSeen)
	b.Run("never-seen/full", func(b *testing.B) {
		for cached.ix.Stats().Prompts.Evicted == 0 {
			asked++
			fresh(cached, &here, asked)
		}
		neverSeen(b)
	})
	cached = w.client(w.open(b, hook))
	for _, text := range w.texts {
		cached.text(b, text)
	}
	b.Run("known-whole", func(b *testing.B) {
		w.byTurns(b, other, func(i int) { cached.text(b, w.texts[i%n]) })
	})
	b.Run("known-whole/in-a-row", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			cached.text(b, w.texts[i%n])
		}
	})
	b.Run("known-whole/one-text", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			cached.text(b, w.texts[0])
		}
	})
	b.Run("appended", func(b *testing.B) {
		w.byTurns(b, other, func(i int) { cached.text(b, here.text(w.texts[i%n], tails[i%len(tails)])) })
	})
	b.Run("last-another", func(b *testing.B) {
		w.byTurns(b, other, func(i int) {
			head := strings.ToValidUTF8(w.texts[i%n][:textSize-1<<10], "")
			cached.text(b, here.text(head, tails[(i+n)%len(tails)]))
		})
	})
	b.Run("body", func(b *testing.B) {
		for i := range chats.known {
			cached.body(b, here.text(chats.known[i], "]}"))
		}
		var render, tokenizing, match []time.Duration
		w.byTurns(b, func(i int) { plain.body(b, there.text(chats.body(i)...)) },
			func(i int) {
				cached.body(b, here.text(chats.body(i)...))
				render, tokenizing, match = append(render, split.Render), append(tokenizing, split.Tokenize), append(match, split.Match)
			})
		for name, took := range map[string][]time.Duration{"render-ns": render, "tokenize-ns": tokenizing, "match-ns": match} {
			b.ReportMetric((&timing{took}).median(), name)
		}
	})
	for _, c := range []struct {
		name  string
		texts int
	}{{"one", 1}, {"many", n}} {
		b.Run("two-goroutines/texts="+c.name, func(b *testing.B) { benchTwo(b, w, cached.ix, w.texts[:c.texts]) })
	}
}

func (c *client) body(b *testing.B, body string) {
	c.q.Prompt, c.q.Body = "", unsafe.Slice(unsafe.StringData(body), len(body))
	c.score(b)
}

// bodies are JSON bodies of chats with messages of 200 bytes.
type bodies struct {
	known []string // the first 98 messages
	more  []string // two more
}

// message returns a message of a chat as JSON.
func (w *textWorld) message(b *testing.B, role string, size int) string {
	raw, err := json.Marshal(map[string]string{"role": role, "content": w.Text(size)})
	must(b, err)
	return string(raw)
}

func newBodies(b *testing.B, w *textWorld) *bodies {
	say := func(role string) string { return w.message(b, role, 200) }
	c := new(bodies)
	for range 100 {
		known := make([]string, 98)
		for i := range known {
			known[i] = say([]string{"user", "assistant"}[i%2])
		}
		c.known = append(c.known, `{"messages":[`+strings.Join(known, ","))
	}
	for range 4096 {
		c.more = append(c.more, ","+say("user")+","+say("assistant")+"]}")
	}
	return c
}

func (c *bodies) body(i int) []string {
	return []string{c.known[i%len(c.known)], c.more[i%len(c.more)]}
}

// benchTwo compares the rate of two goroutines with that of one, alternating: "times-one". "best"
// is the ratio of their best rounds, the least disturbed by other processes. "cpu" is the ratio by
// processor time.
func benchTwo(b *testing.B, w *textWorld, ix *kvindex.Indexer, texts []string) {
	const scores = 500
	clients := []*client{w.client(ix), w.client(ix)}
	run := func(n int) {
		var wg sync.WaitGroup
		for g := range n {
			wg.Go(func() {
				for i := range scores {
					clients[g].text(b, texts[(i+g*len(texts)/2)%len(texts)])
				}
			})
		}
		wg.Wait()
	}
	run(2)
	var wall, cpu [2]*timing
	for n := range wall {
		wall[n], cpu[n] = newTiming(), newTiming()
	}
	for b.Loop() {
		for n := range wall {
			wall[n].do(func() { cpu[n].took = append(cpu[n].took, cputime.Of(func() { run(n + 1) })) })
		}
	}
	b.ReportMetric(2*wall[0].median()/wall[1].median(), "times-one")
	b.ReportMetric(2*float64(wall[0].took[0])/float64(wall[1].took[0]), "best-times-one")
	b.ReportMetric(4*cpu[0].median()/cpu[1].median(), "cpu-times-one")
	b.ReportMetric(cpu[0].median()/scores, "one-cpu-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPromptCacheHeap keeps 64 MB of distinct texts of 32 kB, for blocks of 16 tokens or of
// one, and reports the live heap for a byte of text.
func BenchmarkPromptCacheHeap(b *testing.B) {
	t, err := tokenize.Load(testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3"))
	must(b, err)
	for _, unit := range []int{16, 1} {
		b.Run(fmt.Sprintf("unit=%d", unit), func(b *testing.B) {
			for b.Loop() {
				ix := open(b, kvindex.WithPromptCache(1<<30), kvindex.WithModel("m", kvindex.Model{Tokenizer: t}))
				ingest(b, ix, "pod", fakeengine.NewPrompt(1, unit, 1).Stored(0, 1))
				p := testdata.NewProse(b, "texts to score", 1)
				ask := func(bytes int) (kept int) {
					for kept < bytes {
						text := p.Text(textSize)
						kept += len(text)
						score(b, ix, kvindex.Request{Prompt: text})
					}
					return kept
				}
				ask(4 << 20) // fills the tokenizer's own cache of words
				before, was := liveHeap(), ix.Stats().Prompts
				bytes := float64(ask(64 << 20))
				now := ix.Stats().Prompts
				b.ReportMetric(float64(liveHeap()-before)/bytes, "B/byte")
				b.ReportMetric(float64(now.Bytes-was.Bytes)/bytes, "stats-B/byte")
				b.ReportMetric(float64(now.Evicted), "evicted")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkLongPrompt scores prompts of some 65,000 tokens, of which one to eight of 64 pods hold
// three quarters: as token ids; as a text scored before, one with 1 kB more, and a new one; and as
// bodies of chats of 100 messages, some with two messages more. "parse-of-op" is the share of
// reading the body.
func BenchmarkLongPrompt(b *testing.B) {
	const size = 243_000 // bytes
	w := &textWorld{Prose: testdata.NewProse(b, "texts to score", 1)}
	var err error
	if w.tokenizer, err = tokenize.Load(testdata.Path(b, "the Llama 3 tokenizer", "tokens", "llama3")); err != nil {
		b.Fatal(err)
	}
	w.readChat(b)
	for i := range 64 {
		w.pods = append(w.pods, fmt.Sprint("pod", i))
	}
	var prompts [8][]uint32
	for i := range prompts {
		text := w.Text(size)
		w.texts = append(w.texts, text)
		if prompts[i], err = w.tokenizer.Encode(ctx, nil, text, true); err != nil {
			b.Fatal(err)
		}
		w.hold(prompts[i][:len(prompts[i])*3/4], 1+w.IntN(8))
	}
	c := w.client(w.open(b))
	n := 0
	next := func() int { n++; return n % len(prompts) }
	roles := []string{"user", "assistant"}
	newChat := func() string {
		messages := make([]string, 100)
		for i := range messages {
			messages[i] = w.message(b, roles[i%2], size/len(messages))
		}
		return `{"messages":[` + strings.Join(messages, ",")
	}
	var chats, known [8]string
	for i := range chats {
		chats[i] = newChat()
		known[i] = chats[i] + "]}"
		c.body(b, known[i])
		c.text(b, w.texts[i])
	}
	b.Run("ids", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.q.Prompt, c.q.Body, c.q.Tokens = "", nil, prompts[next()]
			c.score(b)
		}
		b.ReportMetric(float64(c.a.PromptTokens), "tokens")
		c.q.Tokens = nil
	})
	for _, of := range []struct {
		name  string
		score func(b *testing.B, prompt string)
		next  func() string // not timed
	}{
		{"known", c.text, func() string { return w.texts[next()] }},
		{"grown", c.text, func() string { return w.texts[next()] + w.Text(1000) }},
		{"new", c.text, func() string { return w.Text(size) }},
		{"chat/known", c.body, func() string { return known[next()] }},
		{"chat/grown", c.body, func() string {
			return chats[next()] + "," + w.message(b, roles[0], 500) + "," + w.message(b, roles[1], 500) + "]}"
		}},
		{"chat/new", c.body, func() string { return newChat() + "]}" }},
	} {
		b.Run(of.name, func(b *testing.B) {
			all, reading := newTiming(), newTiming()
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				prompt := of.next()
				b.StartTimer()
				all.do(func() { of.score(b, prompt) })
				if of.name == "chat/known" {
					b.StopTimer()
					reading.do(func() { parse(b, known[next()]) })
					b.StartTimer()
				}
			}
			if len(reading.took) > 0 {
				b.ReportMetric(reading.median()/all.median(), "parse-of-op")
			}
			b.ReportMetric(all.median(), "ns/op")
			b.ReportMetric(float64(c.a.PromptTokens), "tokens")
		})
	}
}

func parse(b *testing.B, body string) {
	if _, err := chat.Parse("", unsafe.Slice(unsafe.StringData(body), len(body))); err != nil {
		b.Error(err)
	}
}
