package kvindex_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

var promptsN = flag.Int("prompts.n", 0, "requests of TestPromptCacheEqual to each kind of tokenizer, and 1,000 and a tenth as many of TestPromptCacheConcurrent and TestPromptCacheHostile; 0: 1,000, with -short a third; long form: 5000")

// prompts returns -prompts.n, or its default.
func prompts() int { return cmp.Or(*promptsN, choose(1000, 1000)) }

// TestPromptCacheEqual sends the same requests and events to an Indexer with a prompt cache, which
// evicts, and to one without. It compares all fields of the answers, and Explain's. Tokenizers are
// the project's own, and those of models.
func TestPromptCacheEqual(t *testing.T) {
	t.Run("own", func(t *testing.T) { comparePrompts(t, ownModels(t)) })
	t.Run("of models", func(t *testing.T) {
		families := []string{"gpt2", "llama3", "llama2"}
		if prompts() >= 5000 {
			families = append(families, "qwen25", "deepseekv3", "o200k", "tekken", "phi3", "gemma2")
		}
		var models []*promptModel
		for i, family := range families {
			bpe, err := tokenize.Load(testdata.Path(t, "the prompt cache with the tokenizers of models", "tokens", family))
			must(t, err)
			models = append(models, newPromptModel(t, family, i, bpe, bpe,
				"<|eot_id|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|endoftext|>", "<end_of_turn>", "[INST]"))
		}
		comparePrompts(t, models)
	})
}

func comparePrompts(t *testing.T, models []*promptModel) {
	n := prompts()
	with, without := openPair(t, models, int64(choose(3<<20, 3<<20)))
	c := comparison{tb: t, with: with, without: without, Rand: rand.New(rand.NewPCG(31, uint64(n))), seen: map[string]int{}}
	for i := range n {
		m := models[i%len(models)]
		c.request(m)
		if i%(100*len(models)) < len(models) {
			c.changeFleet(m)
		}
	}
	c.report(n)
	if with.Stats().Prompts.Evicted == 0 && !testing.Short() {
		t.Error("nothing was evicted")
	}
}

// TestPromptCacheConcurrent scores from many goroutines, with a cache and a Pool that evict all the
// time, a file that is replaced repeatedly, contexts that end, and Close at the end. Each answer is
// that of an Indexer without a cache that has one of the files.
func TestPromptCacheConcurrent(t *testing.T) {
	n := 1000 + prompts()/10
	dir := t.TempDir()
	files := [2][]byte{tinyFile(t, tokensAround), tinyFile(t, otherWords)}
	tokenizers := [2]*tokenize.BPE{tinyWith(t, tokensAround), tinyWith(t, otherWords)}
	put := func(name string, file int) {
		must(t, os.WriteFile(filepath.Join(dir, name+".new"), files[file], 0o600))
		must(t, os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)))
	}
	put("0", 0)
	put("1", 0)
	put("2", 1)
	config := tokenize.PoolConfig{Find: func(_ context.Context, name string) (string, error) { return filepath.Join(dir, name), nil }}
	pool := openTokenizers(t, config)
	must(t, pool.Preload(ctx, "0", "2"))
	config.Memory = pool.Stats().Bytes * 3 / 4 // room for one of the two
	pool = openTokenizers(t, config)
	with := open(t, kvindex.WithKeySeed([16]byte{1}), kvindex.WithPromptCache(prefixcache.MinBytes),
		kvindex.WithModels(func(_ context.Context, name string) (kvindex.Model, error) {
			return kvindex.Model{Tokenizer: pool.Tokenizer(name)}, nil
		}))
	var without [2]*kvindex.Indexer
	for i, bpe := range tokenizers {
		opts := []kvindex.Option{kvindex.WithKeySeed([16]byte{1}), kvindex.WithPromptCache(0)}
		for _, name := range []string{"0", "1", "2"} {
			opts = append(opts, kvindex.WithModel(name, kvindex.Model{Tokenizer: bpe}))
		}
		without[i] = open(t, opts...)
	}

	// question is a request with the possible answers.
	type question struct {
		kvindex.Request
		want [2]kvindex.Answer
	}
	var questions []question
	r, texts := rand.New(rand.NewPCG(41, 42)), &promptTexts{rand.New(rand.NewPCG(43, 33)), []string{"<|end|>"}}
	var before []string
	for i := range 200 {
		text := texts.text(1000 + r.IntN(5000))
		if i%4 > 0 {
			old := before[r.IntN(len(before))]
			text = old[:texts.cut(old)] + texts.text(1+r.IntN(1500))
		}
		text += " and the end"
		before = append(before, text)
		q := question{Request: kvindex.Request{Model: fmt.Sprint(r.IntN(3)), Prompt: text, Rendered: r.IntN(2) == 0, Salt: []string{"", "pepper"}[r.IntN(2)], Adapter: []string{"", "lora"}[r.IntN(2)]}}
		p := promptFleets[1][r.IntN(3)]
		tokens, err := tokenizers[i%2].Encode(ctx, nil, text, !q.Rendered)
		must(t, err)
		if e := p.stored(&q.Request, tokens, 1+r.IntN(100)); len(e.Hashes) > 0 {
			for _, x := range []*kvindex.Indexer{with, without[0], without[1]} {
				must(t, x.ApplyBatch(p.name, q.Model, &events.Batch{Events: []events.Event{e}}))
			}
		}
		questions = append(questions, q)
	}
	for i := range questions {
		q := &questions[i]
		for f := range 2 {
			must(t, without[f].ScoreRequest(ctx, &q.Request, &q.want[f]))
		}
	}

	var all sync.WaitGroup
	var told, ended, closed, both atomic.Int64
	var closing atomic.Bool
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(44, uint64(g)))
			var a kvindex.Answer
			for i := 0; ; i++ {
				q := &questions[r.IntN(1+r.IntN(len(questions)))]
				c := ctx
				if r.IntN(8) == 0 {
					c = &endsAfter{ctx, r.IntN(6)}
				}
				err := with.ScoreRequest(c, &q.Request, &a)
				switch {
				case errors.Is(err, context.Canceled):
					ended.Add(1)
				case errors.Is(err, kvindex.ErrClosed), errors.Is(err, tokenize.ErrPoolClosed):
					if !closing.Load() {
						t.Error(err)
					}
					closed.Add(1)
					return
				case err != nil:
					t.Error(err)
					return
				case sameAnswers(a, q.want[1]):
					both.Add(1)
				case !sameAnswers(a, q.want[0]):
					t.Errorf("%+v: got %+v, want %+v or %+v", q.Request, a, q.want[0], q.want[1])
					return
				}
				if told.Add(1) == int64(n) {
					closing.Store(true)
					go func() {
						pool.Close()
						with.Close()
					}()
				}
				if i%16 == 0 && g == 0 {
					put("0", i/16%2)
					if err := pool.Preload(ctx, "0"); err != nil && !errors.Is(err, tokenize.ErrPoolClosed) {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	s, p := with.Stats().Prompts, pool.Stats()
	t.Logf("%d answers, %d of them the second file's; %d contexts ended, %d closed; %+v, %+v", told.Load(), both.Load(), ended.Load(), closed.Load(), s, p)
	if s.Evicted < uint64(n/10) || p.Evictions < uint64(n/100) || s.Whole < uint64(n/10) || s.Grown < uint64(n/20) || ended.Load() < int64(n/100) ||
		both.Load() < int64(n/10) || both.Load() > told.Load()*9/10 || closed.Load() != 8 {
		t.Error("too little happened")
	}
}

// endsAfter is a context that is cancelled after so many calls of Err.
type endsAfter struct {
	context.Context
	looks int
}

func (c *endsAfter) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// promptModel is a model with its fleet and its requests.
type promptModel struct {
	name   string
	plain  tokenize.Tokenizer // makes the events
	model  kvindex.Model
	fleet  []promptPod
	texts  *promptTexts
	past   bool // its tokenizer does not use the cache
	coarse bool // it caches whole texts only

	asked []promptQuery
}

type promptQuery struct {
	text  string
	chats [][2]string // roles and contents, if the text is of a chat

	rendered      bool
	adapter, salt string
}

// promptPod is an engine that publishes its blocks.
type promptPod struct {
	name  string
	size  int
	pairs bool
	media kvindex.MediaForm
}

var promptFleets = [][]promptPod{
	{{name: "p16", size: 16}, {name: "p16b", size: 16}},
	{{name: "p16", size: 16}, {name: "p1", size: 1}, {name: "p48", size: 48}},
	{{name: "p16", size: 16}, {name: "pairs16", size: 16, pairs: true, media: kvindex.MediaPad}},
	{{name: "p24", size: 24}, {name: "pairs1", size: 1, pairs: true, media: kvindex.MediaPad}},
	{{name: "p16", size: 16}, {name: "bare16", size: 16, media: kvindex.MediaBare}},
	{{name: "p1", size: 1}, {name: "p2", size: 2}, {name: "p20", size: 20}, {name: "p24", size: 24}, {name: "p32", size: 32}, {name: "pairs16", size: 16, pairs: true, media: kvindex.MediaPad}},
	{{name: "p1", size: 1}},
	{},
}

// These hide abilities of a tokenizer.
type onlyIdentified struct{ tokenize.Identifier }
type onlyTokenizer struct{ tokenize.Tokenizer }

var tinyPath = filepath.Join("tokenize", "testdata", "tiny.json")

// Sections of a tokenizer.json.
const (
	// tokensAround adds two tokens before a text, and one behind it.
	tokensAround = `{"post_processor": {"type": "TemplateProcessing", "pair": [],
		"special_tokens": {"<b>": {"id": "<b>", "ids": [3, 4], "tokens": ["a", "b"]}, "<e>": {"id": "<e>", "ids": [5], "tokens": ["c"]}},
		"single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<e>", "type_id": 0}}]}}`
	// otherWords changes the ids of a text.
	otherWords = `{"pre_tokenizer": {"type": "Metaspace", "replacement": "\u0120", "prepend_scheme": "always", "split": true}}`
)

// tinyWith returns the small tokenizer with other sections.
func tinyWith(tb testing.TB, sections string) *tokenize.BPE {
	tb.Helper()
	t, err := tokenize.Parse(bytes.NewReader(tinyFile(tb, sections)))
	must(tb, err)
	return t
}

func openTokenizers(tb testing.TB, c tokenize.PoolConfig) *tokenize.Pool {
	tb.Helper()
	pool, err := tokenize.NewPool(c)
	must(tb, err)
	tb.Cleanup(func() { pool.Close() })
	return pool
}

func tinyFile(tb testing.TB, sections string) []byte {
	tb.Helper()
	file, err := os.ReadFile(tinyPath)
	must(tb, err)
	var all map[string]json.RawMessage
	must(tb, errors.Join(json.Unmarshal(file, &all), json.Unmarshal([]byte(sections), &all)))
	if file, err = json.Marshal(all); err != nil {
		tb.Fatal(err)
	}
	return file
}

// newPromptModel returns model number i. Its special tokens occur in its texts.
func newPromptModel(tb testing.TB, name string, i int, plain, t tokenize.Tokenizer, special ...string) *promptModel {
	tb.Helper()
	template, err := chat.New(`{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`, nil, chat.Options{})
	must(tb, err)
	return &promptModel{
		name: name, plain: plain, model: kvindex.Model{Tokenizer: t, Chat: template}, fleet: promptFleets[i%len(promptFleets)],
		texts: &promptTexts{rand.New(rand.NewPCG(uint64(i), 33)), special},
	}
}

// ownModels returns those of the project's own files, a plain one first.
func ownModels(tb testing.TB) (models []*promptModel) {
	tb.Helper()
	add := func(name string, plain, t tokenize.Tokenizer) *promptModel {
		m := newPromptModel(tb, name, len(models), plain, t, "<|end|>")
		models = append(models, m)
		return m
	}
	tiny, err := tokenize.Load(tinyPath)
	must(tb, err)
	around := tinyWith(tb, tokensAround)
	pool := openTokenizers(tb, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return tinyPath, nil }})
	add("tiny", tiny, tiny)
	add("tokens around", around, around)
	add("other words", tiny, tinyWith(tb, otherWords))
	add("of a pool", tiny, pool.Tokenizer("tiny"))
	for _, m := range [][2]string{
		{"composed", `{"normalizer": {"type": "NFC"}}`},
		{"compatible", `{"normalizer": {"type": "NFKC"}}`},
		{"decomposed", `{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Replace", "pattern": {"String": "oo"}, "content": "u"}]}}`},
		{"one word", `{"added_tokens": [{"content": "<|end|>", "id": 653, "lstrip": false, "normalized": false, "rstrip": false, "single_word": true, "special": true}]}`},
		{"taking space", `{"added_tokens": [{"content": "<|end|>", "id": 653, "lstrip": true, "normalized": true, "rstrip": true, "single_word": false, "special": false}]}`},
	} {
		bpe := tinyWith(tb, m[1])
		add(m[0], bpe, bpe)
	}
	add("whole only", around, onlyIdentified{around}).coarse = true
	add("past", tiny, onlyTokenizer{tiny}).past = true
	return models
}

// openPair opens an Indexer with a prompt cache, and one without.
func openPair(tb testing.TB, models []*promptModel, bytes int64, opts ...kvindex.Option) (with, without *kvindex.Indexer) {
	tb.Helper()
	opts = append(opts, kvindex.WithKeySeed([16]byte{1, 2, 3}), kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		for _, fleet := range promptFleets {
			for _, p := range fleet {
				if p.name == pod {
					return kvindex.Profile{Media: p.media}
				}
			}
		}
		return kvindex.Profile{}
	}))
	for _, m := range models {
		opts = append(opts, kvindex.WithModel(m.name, m.model))
	}
	with = open(tb, append(opts, kvindex.WithPromptCache(bytes))...)
	without = open(tb, append(opts, kvindex.WithPromptCache(0))...)
	return with, without
}

// stored returns the event of a pod that stores at most most blocks of a prompt.
func (p promptPod) stored(r *kvindex.Request, tokens []uint32, most int) events.Event {
	e := events.Event{Kind: events.Stored, BlockSize: p.size, Adapter: r.Adapter, Pairs: p.pairs}
	n := len(tokens)
	if p.pairs {
		n--
	}
	n = min(n/p.size, most)
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q", r.Adapter, r.Salt)
	for i := range n * p.size {
		e.Tokens = append(e.Tokens, tokens[i])
		fmt.Fprintf(h, " %d", tokens[i])
		if p.pairs {
			e.Tokens = append(e.Tokens, tokens[i+1])
			fmt.Fprintf(h, "+%d", tokens[i+1])
		}
		if (i+1)%p.size == 0 {
			e.Hashes = append(e.Hashes, h.Sum64())
		}
	}
	switch {
	case p.media == kvindex.MediaPad:
		e.Salt = r.Salt
	case r.Salt != "":
		e.HasExtra = true
		e.Extra = []events.ExtraKey{{Block: 0, Kind: events.ExtraText, Text: r.Salt}}
	default:
		e.HasExtra = true
	}
	return e
}

// comparison sends the same requests to two Indexers.
type comparison struct {
	tb            testing.TB
	with, without *kvindex.Indexer
	*rand.Rand
	seen map[string]int
	a, b kvindex.Answer
}

// request scores something, and sometimes stores it on a pod.
func (c *comparison) request(m *promptModel) {
	asked, how := c.next(m)
	if c.IntN(6) == 0 {
		asked.rendered = c.IntN(2) == 0
		asked.adapter = []string{"", "", "lora", "7", "lorapepper"}[c.IntN(5)]
		asked.salt = []string{"", "", "pepper", "lora", "p"}[c.IntN(5)]
	}
	m.asked = append(m.asked, asked)
	if len(m.asked) > 60 {
		m.asked = slices.Delete(m.asked, 0, 1)
	}
	r := kvindex.Request{Model: m.name, Prompt: asked.text, Rendered: asked.rendered, Adapter: asked.adapter, Salt: asked.salt}
	body := map[string]any{"model": m.name}
	switch {
	case asked.chats != nil && asked.rendered && c.IntN(2) == 0:
		var messages []map[string]string
		for _, turn := range asked.chats {
			messages = append(messages, map[string]string{"role": turn[0], "content": turn[1]})
		}
		body["messages"] = messages
		how += ", as a chat"
	case c.IntN(8) == 0:
		body["prompt"], body["add_special_tokens"] = asked.text, !r.Rendered
		how += ", as a completion"
	default:
		body = nil
	}
	if body != nil {
		r.Prompt, r.Rendered, r.Model = "", false, ""
		var err error
		if r.Body, err = json.Marshal(body); err != nil {
			c.tb.Fatal(err)
		}
	}
	if c.IntN(6) == 0 {
		r.Top, r.Ranks = c.IntN(3), c.IntN(2) == 0
	}
	if c.IntN(6) == 0 && len(m.fleet) > 0 {
		r.Pods = []string{m.fleet[c.IntN(len(m.fleet))].name}
	}
	before := c.with.Stats().Prompts
	if !c.equal(&r) {
		c.tb.Fatalf("%s: %s, %d bytes, adapter %q, salt %q, rendered %v, %.300q", m.name, how, len(asked.text), r.Adapter, r.Salt, r.Rendered, asked.text)
	}
	if len(c.a.Pods) == 0 && c.a.PromptTokens == 0 {
		return
	}
	c.count(m, &r, asked.text, how, before)
	if c.IntN(10) == 0 {
		c.explain(&r, m)
	}
	if c.IntN(6) == 0 && len(m.fleet) > 0 && asked.text != "" {
		c.store(m, &r, asked.text)
	}
}

// equal compares both answers to a request.
func (c *comparison) equal(r *kvindex.Request) bool {
	errA, errB := c.with.ScoreRequest(ctx, r, &c.a), c.without.ScoreRequest(ctx, r, &c.b)
	if fmt.Sprint(errA) != fmt.Sprint(errB) || fmt.Sprint(c.a.Unknown) != fmt.Sprint(c.b.Unknown) {
		c.tb.Errorf("with: %v, %v, without: %v, %v", errA, c.a.Unknown, errB, c.b.Unknown)
		return false
	}
	if errA != nil {
		c.seen["errors"]++
	}
	a, b := c.a, c.b
	a.Unknown, b.Unknown = nil, nil
	if !sameAnswers(a, b) && (len(a.Pods) > 0 || len(b.Pods) > 0 || a.PromptTokens != b.PromptTokens) {
		c.tb.Errorf("with: %+v\nwithout: %+v", a, b)
		return false
	}
	if len(a.Pods) > 0 && a.Pods[0].CachedTokens > 0 {
		c.seen["hits"]++
	}
	return true
}

// explain compares both explanations, and checks that the cache is not used.
func (c *comparison) explain(r *kvindex.Request, m *promptModel) {
	pod := "nobody"
	if len(m.fleet) > 0 {
		pod = m.fleet[c.IntN(len(m.fleet))].name
	}
	s := c.with.Stats().Prompts
	a, errA := c.with.Explain(ctx, r, pod)
	b, errB := c.without.Explain(ctx, r, pod)
	if fmt.Sprint(errA, a.Err) != fmt.Sprint(errB, b.Err) {
		c.tb.Errorf("with: %v, %v, without: %v, %v", errA, a.Err, errB, b.Err)
	}
	a.Err, b.Err = nil, nil
	if !reflect.DeepEqual(a, b) {
		c.tb.Errorf("with: %+v\nwithout: %+v", a, b)
	}
	if now := c.with.Stats().Prompts; now != s {
		c.tb.Errorf("Explain changes %+v to %+v", s, now)
	}
	c.seen["explained"]++
}

func (c *comparison) count(m *promptModel, r *kvindex.Request, text, how string, before stats.Prompts) {
	s := c.with.Stats().Prompts
	switch {
	case s.Past > before.Past:
		c.seen["past"]++
		if !m.past && r.Salt == "" {
			c.tb.Fatalf("%s: a prompt went past the cache", m.name)
		}
	case m.past:
		c.tb.Fatalf("%s: a prompt did not go past the cache", m.name)
	case s.Grown > before.Grown:
		c.seen["known in part"]++
		if m.coarse {
			c.tb.Fatalf("%s: a prompt was known in part", m.name)
		}
	case s.Unknown > before.Unknown:
		c.seen["known not at all"]++
	case s.Whole > before.Whole:
		c.seen["known whole"]++
		if r.Adapter != "" {
			c.seen["known whole, with an adapter"]++
		}
		if r.Salt != "" {
			c.seen["known whole, with a salt"]++
		}
	}
	c.seen[how]++
	for _, kind := range m.texts.within(text, len(text)) {
		c.seen["ends within "+kind]++
	}
	for at := prefixcache.Grain; at < len(text); at += prefixcache.Grain {
		for _, kind := range m.texts.within(text, at) {
			c.seen["marks within "+kind]++
		}
	}
}

// store stores a prompt on a pod.
func (c *comparison) store(m *promptModel, r *kvindex.Request, text string) {
	tokens, err := m.plain.Encode(ctx, nil, text, r.Body == nil && !r.Rendered)
	if err != nil {
		c.tb.Fatal(err)
	}
	p := m.fleet[c.IntN(len(m.fleet))]
	e := p.stored(r, tokens, c.IntN(len(tokens)/p.size+2))
	if len(e.Hashes) == 0 {
		return
	}
	c.apply(p.name, m.name, e)
}

func (c *comparison) apply(pod, model string, e events.Event) {
	for _, x := range []*kvindex.Indexer{c.with, c.without} {
		if err := x.ApplyBatch(pod, model, &events.Batch{Events: []events.Event{e}}); err != nil {
			c.tb.Fatal(err)
		}
	}
}

// changeFleet replaces the pods of a model, so that units come and go.
func (c *comparison) changeFleet(m *promptModel) {
	for _, p := range m.fleet {
		if c.IntN(2) == 0 {
			continue // still in use
		}
		for _, x := range []*kvindex.Indexer{c.with, c.without} {
			if err := x.RemovePod(p.name); err != nil {
				c.tb.Fatal(err)
			}
		}
	}
	m.fleet = promptFleets[c.IntN(len(promptFleets))]
}

// report prints how often each case occurred, and requires enough of each.
func (c *comparison) report(n int) {
	c.tb.Helper()
	for _, what := range slices.Sorted(maps.Keys(c.seen)) {
		c.tb.Logf("%6d %s", c.seen[what], what)
	}
	s := c.with.Stats().Prompts
	c.tb.Logf("%+v", s)
	for what, share := range map[string]int{
		"known whole": 5, "known in part": 8, "hits": 10, "past": 50, "errors": 2000,
		"ends within a character": 100, "ends within a special token": 100, "ends within white space": 100, "ends within a combining sequence": 100,
		"marks within a character": 100, "marks within a special token": 100, "marks within white space": 100, "marks within a combining sequence": 100,
		"explained": 20, "known whole, with an adapter": 100, "known whole, with a salt": 100,
	} {
		if n >= 5000 && c.seen[what] < n/share || c.seen[what] == 0 && !testing.Short() {
			c.tb.Errorf("%d %s of %d", c.seen[what], what, n)
		}
	}
}

// next derives a text from an earlier one, mostly in the same scope.
func (c *comparison) next(m *promptModel) (asked promptQuery, how string) {
	const most = 7 << 10
	t := m.texts
	if len(m.asked) == 0 {
		return promptQuery{text: t.text(c.IntN(6000))}, "new"
	}
	asked = m.asked[len(m.asked)-1-int(float64(len(m.asked))*c.Float64()*c.Float64())]
	old, turns := asked.text, asked.chats
	asked.chats = nil
	n := c.IntN(100)
	if len(old) > most && n >= 46 && n < 72 {
		n = 99
	}
	switch {
	case n < 46:
		asked.chats = turns
		how = "repeated"
	case n < 72 && turns != nil:
		asked.chats = append(slices.Clone(turns), [2]string{"assistant", t.valid(500)}, [2]string{"user", t.valid(300)})
		how = "a further turn"
	case n < 72:
		asked.text += t.text(1 + c.IntN(1200))
		how = "grown"
	case n < 74:
		asked.text = old[:t.cut(old)]
		how = "shrunk"
	case n < 86:
		asked.text = old[:t.cut(old)] + t.text(1+c.IntN(1200))
		how = "forked"
	case n < 92:
		i := t.cut(old)
		asked.text = old[:i] + t.text(1+c.IntN(40)) + old[t.cut(old[i:])+i:]
		how = "changed in the middle"
	case n < 97:
		asked.chats = [][2]string{{"system", t.valid(2500)}, {"user", t.valid(300)}}
		how = "a new chat"
	default:
		asked.text = t.text(c.IntN(6000))
		how = "new"
	}
	if asked.chats != nil {
		asked.text, asked.rendered = chatText(asked.chats), true
	}
	return asked, how
}

func chatText(turns [][2]string) string {
	var b strings.Builder
	for _, turn := range turns {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s<|im_end|>\n", turn[0], turn[1])
	}
	b.WriteString("<|im_start|>assistant\n")
	return b.String()
}

// promptTexts makes texts that are hard to cut.
type promptTexts struct {
	*rand.Rand
	special []string
}

var promptParts = []string{
	"the", " of", " harbour", "'s", "n't", "HTTPServer", " 3.14159", " 1,234", "2024-02-30", "def f(x):\n\treturn x\n", "if (a==b) {\r\n}", " naïve", " Straße",
	"日本語", "人工智能", "привет", " שלום", "नमस्ते", "각", "ﬁ", "İ", "é", "...", "—", "▁", "<", "|", ">", "\\n", ".", ",", " a", "b", "$",
}

// part returns a part of a text, often one with a hard place inside.
func (t *promptTexts) part() string {
	switch t.IntN(12) {
	case 0:
		return t.special[t.IntN(len(t.special))]
	case 1:
		s := t.special[t.IntN(len(t.special))]
		return s[:t.IntN(len(s))]
	case 2:
		return strings.Repeat([]string{" ", "\n", "\t", " \n", "\u3000", "\r\n", "\u00a0"}[t.IntN(7)], 1+t.IntN(6))
	case 3:
		return string(rune('a'+t.IntN(26))) + strings.Repeat([]string{"\u0301", "\u0308", "\u0327", "\u0345"}[t.IntN(4)], 1+t.IntN(4))
	case 4:
		return []string{"👨‍👩‍👧‍👦", "🇩🇪🇺🇸", "1️⃣", "한국어", "\u1100\u1161\u11a8", "ก็ำ", "日"}[t.IntN(7)]
	case 5:
		return strings.Repeat(string(rune('a'+t.IntN(26))), 1+t.IntN(20))
	case 6:
		if t.IntN(8) == 0 {
			return []string{"\xff", "\xe6\x97", "\xf0\x9f\x98", "\xc3", "\x80"}[t.IntN(5)]
		}
	}
	return promptParts[t.IntN(len(promptParts))]
}

// text returns a text of about size bytes. It often ends inside a unit, and often has a hard place
// where the cache may cut it.
func (t *promptTexts) text(size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(t.part())
	}
	text := b.String()
	if size > 0 && t.IntN(2) == 0 {
		text = text[:t.cut(text)]
	}
	return text
}

// valid returns UTF-8 without special tokens.
func (t *promptTexts) valid(size int) string {
	return strings.NewReplacer("<", "", "[", "").Replace(strings.ToValidUTF8(t.text(size), ""))
}

// cut returns a position of text, often a multiple of the cache's grain or one inside a unit.
func (t *promptTexts) cut(text string) int {
	at := int(float64(len(text)) * math.Sqrt(t.Float64()))
	switch t.IntN(4) {
	case 0:
		return at / prefixcache.Grain * prefixcache.Grain
	case 1:
		return at
	}
	for try := range min(40, len(text)) {
		if i := (at + try) % len(text); len(t.within(text, i)) > 0 {
			return i
		}
	}
	return at
}

// within returns the units of text that a position is inside of.
func (t *promptTexts) within(text string, at int) (kinds []string) {
	before, _ := utf8.DecodeLastRuneInString(text[:at])
	after, _ := utf8.DecodeRuneInString(text[at:])
	switch {
	case at < len(text) && !utf8.RuneStart(text[at]), before == utf8.RuneError && at > 0 && text[at-1] >= 0x80:
		kinds = append(kinds, "a character")
	case unicode.IsSpace(before) && (at == len(text) || unicode.IsSpace(after)):
		kinds = append(kinds, "white space")
	case unicode.IsMark(after), at == len(text) && unicode.IsMark(before):
		kinds = append(kinds, "a combining sequence")
	}
	for _, s := range t.special {
		for n := 1; n < len(s) && n <= at; n++ {
			if text[at-n:at] == s[:n] && strings.HasPrefix(s[n:], text[at:min(len(text), at+len(s)-n)]) {
				return append(kinds, "a special token")
			}
		}
	}
	return kinds
}

// sameAnswers compares the fields of answers.
func sameAnswers(a, b kvindex.Answer) bool {
	return a.PromptTokens == b.PromptTokens && reflect.DeepEqual(a.Unknown, b.Unknown) && reflect.DeepEqual(a.Pods, b.Pods)
}
