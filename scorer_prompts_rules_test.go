package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize"
)

// wordy is words with an identity.
type wordy struct {
	words
	before func() error // if set, called by each Encode
}

func (wordy) Identity() [32]byte { return [32]byte{'w'} }

func (w wordy) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if w.before != nil {
		if err := w.before(); err != nil {
			return dst, err
		}
	}
	return w.words.Encode(ctx, dst, text, special)
}

// flakyMarker is a marker that fails on demand.
type flakyMarker struct {
	*tokenize.BPE
	err error
}

func (f *flakyMarker) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if f.err != nil {
		return dst, f.err
	}
	return f.BPE.Encode(ctx, dst, text, special)
}

func (f *flakyMarker) EncodeMarks(ctx context.Context, dst []uint32, p tokenize.Passage) ([]uint32, []tokenize.Mark, error) {
	if f.err != nil {
		return dst, nil, f.err
	}
	return f.BPE.EncodeMarks(ctx, dst, p)
}

// prose returns a text of about size bytes, another for each seed.
func prose(seed uint64, size int) string {
	r := rand.New(rand.NewPCG(seed, 51))
	var b strings.Builder
	for b.Len() < size {
		for range 2 + r.IntN(8) {
			b.WriteByte(byte('a' + r.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// one opens Indexers with and without a cache, for a model m.
func one(tb testing.TB, t tokenize.Tokenizer, opts ...kvindex.Option) *comparison {
	tb.Helper()
	with, without := openPair(tb, []*promptModel{{name: "m", model: kvindex.Model{Tokenizer: t}}}, prefixcache.MinBytes, opts...)
	return &comparison{tb: tb, with: with, without: without, Rand: rand.New(rand.NewPCG(1, 52)), seen: map[string]int{}}
}

// ask scores with both, and returns how the cache matched the text, once for each form.
func (c *comparison) ask(r kvindex.Request) (how string) {
	c.tb.Helper()
	if r.Model == "" && r.Candidates == nil {
		r.Model = "m"
	}
	s := c.with.Stats().Prompts
	if !c.equal(&r) {
		c.tb.Fatalf("%.200q", r.Prompt)
	}
	now := c.with.Stats().Prompts
	return strings.Repeat("w", int(now.Lookups["whole"]-s.Lookups["whole"])) + strings.Repeat("g", int(now.Lookups["grown"]-s.Lookups["grown"])) +
		strings.Repeat("u", int(now.Lookups["unknown"]-s.Lookups["unknown"])) + strings.Repeat("p", int(now.Lookups["past"]-s.Lookups["past"]))
}

// hold stores a text on a pod.
func (c *comparison) hold(pod, text string, t tokenize.Tokenizer) {
	c.tb.Helper()
	c.holdAs(pod, pod, text, t)
}

// holdAs stores a text on a pod in the blocks of another pod.
func (c *comparison) holdAs(pod, as, text string, t tokenize.Tokenizer) {
	c.tb.Helper()
	tokens, err := t.Encode(ctx, nil, text, true)
	if err != nil {
		c.tb.Fatal(err)
	}
	for _, fleet := range promptFleets {
		for _, p := range fleet {
			if p.name == as {
				c.apply(pod, "m", p.stored(&kvindex.Request{}, tokens, len(tokens)))
				return
			}
		}
	}
}

// A failed encoding leaves nothing in the cache, and its error is that without a cache. A text
// without tokens is not cached either.
func TestPromptCacheErrors(t *testing.T) {
	none := one(t, wordy{})
	for range 3 {
		none.ask(kvindex.Request{Prompt: "nothing"})
		none.ask(kvindex.Request{Prompt: "fail"})
	}
	if s := none.with.Stats().Prompts; s.Entries != 0 || s.Lookups["unknown"] != 6 || none.seen["errors"] != 6 {
		t.Errorf("%+v, %v", s, none.seen)
	}
	tiny := tinyWith(t, tokensAround)
	f := &flakyMarker{BPE: tiny}
	c := one(t, f)
	text := prose(1, 5000)
	c.hold("p16", text, tiny)
	for _, err := range []error{
		tokenize.ErrBusy, tokenize.ErrTextTooLong, context.DeadlineExceeded, tokenize.ErrPoolClosed, fs.ErrNotExist, errors.New("another"),
	} {
		f.err = err
		if how := c.ask(kvindex.Request{Prompt: text}); how != "u" {
			t.Errorf("%v: %s", err, how)
		}
		if err := c.with.ScoreRequest(ctx, &kvindex.Request{Model: "m", Prompt: text}, &c.a); !errors.Is(err, f.err) {
			t.Errorf("%v is no %v", err, f.err)
		}
	}
	if s := c.with.Stats().Prompts; s.Entries != 0 {
		t.Errorf("%+v", s)
	}
	f.err = nil
	if how := c.ask(kvindex.Request{Prompt: text}); how != "u" {
		t.Error(how)
	}
	entries := c.with.Stats().Prompts.Entries
	f.err = tokenize.ErrBusy
	if how := c.ask(kvindex.Request{Prompt: text + "and more"}); how != "g" {
		t.Error(how)
	}
	if err := c.with.ScoreRequest(ctx, &kvindex.Request{Model: "m", Prompt: text}, &c.a); err != nil {
		t.Errorf("a text that is known: %v", err)
	}
	// Another unit is required, so the text has to be encoded.
	c.hold("p1", text, tiny)
	for _, prompt := range []string{text, text + "and more"} {
		if err := c.with.ScoreRequest(ctx, &kvindex.Request{Model: "m", Prompt: prompt}, &c.a); err == nil {
			t.Error("an error is hidden")
		}
		c.ask(kvindex.Request{Prompt: prompt})
	}
	if s := c.with.Stats().Prompts; s.Entries != entries {
		t.Errorf("%d entries were %d", s.Entries, entries)
	}
	f.err = nil
	if how := c.ask(kvindex.Request{Prompt: text}); how != "wu" {
		t.Error(how)
	}
}

// A fully cached prompt allocates nothing, in any scope and for any pods.
func TestPromptCacheAllocations(t *testing.T) {
	pool := openTokenizers(t, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return tinyPath, nil }})
	tiny := tinyWith(t, "{}")
	text := prose(1, 30_000)
	for name, tokenizer := range map[string]tokenize.Tokenizer{"tokenizer": tiny, "pool": pool.Tokenizer("m")} {
		with, without := openPair(t, []*promptModel{{name: "m", model: kvindex.Model{Tokenizer: tokenizer}}}, 8<<20)
		c := &comparison{tb: t, with: with, without: without}
		c.apply("p16", "m", promptFleets[0][0].stored(&kvindex.Request{Adapter: "lora"}, bytesOf(text), 10))
		c.hold("p16", text[:20_000], tiny)
		c.hold("p1", text[:10_000], tiny)
		c.hold("pairs16", text, tiny)
		for _, r := range []kvindex.Request{
			{Prompt: text},
			{Prompt: text, Salt: "pepper", Adapter: "lora"},
			{Prompt: text, Rendered: true, Candidates: c.with.Candidates("m", []string{"p16"})},
			{Prompt: text, Rendered: true, Candidates: c.with.Candidates("m", []string{"p1"})},
		} {
			if r.Candidates == nil {
				r.Candidates = c.with.Candidates("m", nil)
			}
			var a kvindex.Answer
			ask := func() {
				must(t, c.with.ScoreRequest(ctx, &r, &a))
			}
			for range 3 {
				ask()
			}
			s := c.with.Stats().Prompts
			if allocs := testing.AllocsPerRun(50, ask); allocs > 0 && !raced {
				t.Errorf("%s: %v allocations, adapter %q, salt %q", name, allocs, r.Adapter, r.Salt)
			}
			if now := c.with.Stats().Prompts; now.Lookups["unknown"] != s.Lookups["unknown"] || now.Lookups["grown"] != s.Lookups["grown"] || now.Lookups["whole"] < s.Lookups["whole"]+50 {
				t.Errorf("%s: %+v, before %+v", name, now, s)
			}
		}
	}
}

// The cache learns forms on demand: missing ones are cut once, unused ones are forgotten, and those
// of some pods stay while others are scored.
func TestPromptCacheForms(t *testing.T) {
	tiny := tinyWith(t, tokensAround)
	c := one(t, tiny)
	n := uint64(0)
	fresh := func() string { n++; return prose(n, 3000) }
	text := fresh()
	c.hold("p16", text, tiny)
	steps := []struct {
		what string
		do   func() string
		want string
	}{
		{"the first", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "u"},
		{"again", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "w"},
		{"another unit comes", func() string { c.hold("p1", text, tiny); return c.ask(kvindex.Request{Prompt: text}) }, "wu"},
		{"it is learned", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "ww"},
		{"for a new text too", func() string { return c.ask(kvindex.Request{Prompt: fresh()}) }, "uu"},
		{"one pod alone", func() string { return c.ask(kvindex.Request{Prompt: text, Pods: []string{"p16"}}) }, "ww"},
		{"a new text for one pod", func() string { return c.ask(kvindex.Request{Prompt: fresh(), Pods: []string{"p16"}}) }, "uu"},
		{"the other alone", func() string { return c.ask(kvindex.Request{Prompt: text, Pods: []string{"p1"}}) }, "ww"},
		{"a unit is cleared", func() string {
			c.apply("p1", "m", events.Event{Kind: events.Cleared})
			return c.ask(kvindex.Request{Prompt: text})
		}, "ww"},
		{"prompts may be sent to it", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "ww"},
		{"it comes again", func() string { c.hold("p1", text, tiny); return c.ask(kvindex.Request{Prompt: text}) }, "ww"},
		{"pairs come", func() string { c.hold("pairs1", text, tiny); return c.ask(kvindex.Request{Prompt: text}) }, "wwu"},
		{"they are learned", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "www"},
		{"pods go", func() string {
			for _, x := range []*kvindex.Indexer{c.with, c.without} {
				must(t, errors.Join(x.RemovePod("p1"), x.RemovePod("pairs1")))
			}
			return c.ask(kvindex.Request{Prompt: text, Pods: []string{"p16"}})
		}, "www"},
		{"their forms are forgotten", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "w"},
		{"bare media come", func() string { c.hold("bare16", text, tiny); return c.ask(kvindex.Request{Prompt: text}) }, "w"},
		{"known, but for a salt", func() string { return c.ask(kvindex.Request{Prompt: text, Salt: "pepper"}) }, "p"},
		{"a pod without bare media", func() string {
			return c.ask(kvindex.Request{Prompt: text, Salt: "pepper", Pods: []string{"p16"}})
		}, "p"},
		{"bare media go", func() string {
			for _, x := range []*kvindex.Indexer{c.with, c.without} {
				must(t, x.RemovePod("bare16"))
			}
			return c.ask(kvindex.Request{Prompt: text, Salt: "pepper", Pods: []string{"p16"}})
		}, "p"},
		{"a salt again", func() string {
			return c.ask(kvindex.Request{Prompt: text, Salt: "pepper", Pods: []string{"p16"}})
		}, "u"},
		{"salted bare media come", func() string {
			c.hold("bare16", text, tiny)
			return c.ask(kvindex.Request{Prompt: text, Salt: "pepper"})
		}, "wp"},
		{"a pod has two units", func() string {
			for _, x := range []*kvindex.Indexer{c.with, c.without} {
				must(t, x.RemovePod("bare16"))
			}
			c.holdAs("p16", "p1", text, tiny)
			return c.ask(kvindex.Request{Prompt: text})
		}, "ww"},
		{"it drops both, and has one again", func() string {
			c.apply("p16", "m", events.Event{Kind: events.Cleared})
			c.holdAs("p16", "p1", text, tiny)
			return c.ask(kvindex.Request{Prompt: text})
		}, "ww"},
		{"the other is forgotten", func() string { return c.ask(kvindex.Request{Prompt: text}) }, "w"},
	}
	for _, s := range steps {
		if how := s.do(); how != s.want {
			t.Errorf("%s: %s, want %s", s.what, how, s.want)
		}
	}
}

// Scores of single pods leave few forms.
func TestPromptCacheFewForms(t *testing.T) {
	tiny := tinyWith(t, tokensAround)
	c := one(t, tiny)
	pods := []string{"p1", "p2", "p20", "p24", "pairs16", "pairs1", "p16", "p16"}
	for _, pod := range pods {
		c.hold(pod, prose(1, 1000), tiny)
	}
	for i, pod := range pods {
		how := c.ask(kvindex.Request{Prompt: prose(uint64(i), 100), Pods: []string{pod}})
		if i == len(pods)-1 && how != "uuuu" {
			t.Error(how)
		}
	}
}

// Two names of one file share the cache, and a chat shares it with its text. A tokenizer that is no
// marker does not continue from another's entries.
func TestPromptCacheShares(t *testing.T) {
	models := ownModels(t)[:1]
	twin := *models[0]
	loaded, err := tokenize.Load(tinyPath) // a second time
	must(t, err)
	twin.name, twin.model.Tokenizer = "twin", loaded
	whole := &promptModel{name: "whole", model: kvindex.Model{Tokenizer: onlyIdentified{loaded}}}
	with, without := openPair(t, append(models, &twin, whole), prefixcache.MinBytes)
	c := &comparison{tb: t, with: with, without: without, seen: map[string]int{}}
	turn := prose(1, 3000)
	text := chatText([][2]string{{"user", turn}})
	body := []byte(fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": %q}]}`, turn))
	longer := []byte(fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": %q}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "no"}]}`, turn))
	for _, q := range []struct {
		what string
		r    kvindex.Request
		want string
	}{
		{"a chat", kvindex.Request{Model: "tiny", Body: body}, "u"},
		{"its text", kvindex.Request{Model: "tiny", Prompt: text, Rendered: true}, "w"},
		{"with special tokens", kvindex.Request{Model: "tiny", Prompt: text}, "u"},
		{"another name", kvindex.Request{Model: "twin", Body: body}, "w"},
		{"two more turns", kvindex.Request{Model: "tiny", Body: longer}, "g"},
		{"no marker", kvindex.Request{Model: "whole", Prompt: text}, "w"},
		{"more for no marker", kvindex.Request{Model: "whole", Prompt: text + "and more"}, "g"},
		{"what that found", kvindex.Request{Model: "tiny", Prompt: text + "and more"}, "w"},
		{"more behind it", kvindex.Request{Model: "tiny", Prompt: text + "and more, again"}, "g"},
		{"another salt", kvindex.Request{Model: "tiny", Body: body, Salt: "pepper"}, "u"},
		{"another adapter", kvindex.Request{Model: "tiny", Body: body, Adapter: "lora"}, "u"},
		{"token ids", kvindex.Request{Model: "tiny", Tokens: []uint32{1, 2}}, "p"},
		{"media", kvindex.Request{Model: "tiny", Prompt: text, Media: []kvindex.Media{{Hash: "1", Length: 1}}}, "p"},
	} {
		if how := c.ask(q.r); how != q.want {
			t.Errorf("%s: %s, want %s", q.what, how, q.want)
		}
	}
}

// The time of an encoding counts as tokenizing, even if only the index shows that it is needed.
func TestPromptCacheTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		ix := open(t,
			kvindex.WithModel("m", kvindex.Model{Tokenizer: wordy{before: func() error { time.Sleep(time.Second); return nil }}}),
			kvindex.WithHooks(kvindex.Hooks{Scored: func(_ context.Context, s kvindex.ScoreReport) { told = append(told, s.Tokenize, s.Match) }}))
		text := prose(1, 100)
		tokens, _ := words{}.Encode(ctx, nil, text, true)
		for _, p := range promptFleets[1][:2] {
			must(t, ix.ApplyBatch(p.name, "m", &events.Batch{Events: []events.Event{p.stored(&kvindex.Request{}, tokens, 5)}}))
			for range 2 {
				score(t, ix, kvindex.Request{Prompt: text})
			}
		}
		if want := []time.Duration{time.Second, 0, 0, 0, time.Second, 0, 0, 0}; !reflect.DeepEqual(told, want) {
			t.Errorf("the hook received %v, want %v", told, want)
		}
	})
}

// A tokenizer enables the cache by default.
func TestPromptCacheOption(t *testing.T) {
	text, tokens := kvindex.Request{Prompt: "the harbour"}, kvindex.Request{Tokens: []uint32{1}}
	model := kvindex.WithModel("m", kvindex.Model{Tokenizer: wordy{}})
	source := kvindex.WithModels(func(context.Context, string) (kvindex.Model, error) { return kvindex.Model{Tokenizer: wordy{}}, nil })
	none := stats.Prompts{Lookups: map[string]uint64{"whole": 0, "grown": 0, "unknown": 0, "past": 0}}
	used := stats.Prompts{Lookups: map[string]uint64{"whole": 1, "grown": 0, "unknown": 1, "past": 1}, BytesEncoded: 11, BytesKnown: 11, Entries: 1}
	for name, c := range map[string]struct {
		opts []kvindex.Option
		want stats.Prompts // all but Bytes
	}{
		"by default":  {[]kvindex.Option{model}, used},
		"of a source": {[]kvindex.Option{source}, used},
		"small":       {[]kvindex.Option{model, kvindex.WithPromptCache(prefixcache.MinBytes)}, used},
		"off":         {[]kvindex.Option{model, kvindex.WithPromptCache(0)}, none},
	} {
		ix := open(t, c.opts...)
		for _, r := range []kvindex.Request{text, text, tokens} {
			score(t, ix, r)
		}
		got := ix.Stats().Prompts
		if on := c.want.Entries > 0; on != (got.Bytes > 0) {
			t.Errorf("%s: %d bytes", name, got.Bytes)
		}
		got.Bytes = 0
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	ix := open(t)
	score(t, ix, tokens)
	if got := ix.Stats().Prompts; !reflect.DeepEqual(got, none) {
		t.Errorf("without a tokenizer: %+v", got)
	}
	if kvindex.DefaultPromptCache != 64<<20 {
		t.Error(kvindex.DefaultPromptCache)
	}
}

// hostilePrompts are expensive texts, in the order of the requests.
func hostilePrompts(n int) map[string][]string {
	base := prose(7, 3000)
	grown, forked, short := make([]string, n), make([]string, n), make([]string, n)
	long := prose(8, n)
	for i := range n {
		grown[i] = long[:i+1]
		forked[i] = base + prose(uint64(i), 20)
		short[i] = strings.Repeat(string(rune('a'+i%26)), 1+i%5)
	}
	letters := []string{strings.Repeat("a", n*100), strings.Repeat("a", n*100), strings.Repeat("a", n*100+1), strings.Repeat(" ", n*100), strings.Repeat("ab ", n*30)}
	return map[string][]string{"grown by a byte": grown, "forked at one place": forked, "shorter than a unit": short, "of one letter": letters}
}

// TestPromptCacheHostile: expensive texts are scored correctly, and stay within the given heap.
func TestPromptCacheHostile(t *testing.T) {
	n := 1000 + prompts()/10
	bpe := tinyWith(t, tokensAround)
	c := one(t, bpe)
	c.hold("p16", prose(7, 3000), bpe)
	c.hold("p48", prose(8, 5000), bpe)
	before := liveHeap()
	for kind, texts := range hostilePrompts(n) {
		for _, text := range texts {
			c.ask(kvindex.Request{Prompt: text})
			if s := c.with.Stats().Prompts; s.Bytes > prefixcache.MinBytes {
				t.Fatalf("%s: %+v", kind, s)
			}
		}
	}
	c.a, c.b = kvindex.Answer{}, kvindex.Answer{} // drops the keys of their prompt
	s := c.with.Stats().Prompts
	runtime.GC() // twice, to drop what is pooled for the next request
	heap := int64(liveHeap()) - int64(before)
	t.Logf("%+v; %d bytes of heap", s, heap)
	if heap > prefixcache.MinBytes+64<<10 && !raced {
		t.Error("this is too much")
	}
	runtime.KeepAlive(c)
}
