package fakeengine_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// prefix names the tokens from the start to the end of a block, with their
// scope, independently of any engine's hashes.
type prefix [sha256.Size]byte

// plainIndex is the simplest index that is built from events alone: engine
// hashes are opaque, every block is counted, nothing is ever forgotten.
type plainIndex struct {
	copies   map[enginehash.Digest]int
	prefixes map[enginehash.Digest]prefix
	hashes   map[prefix]map[enginehash.Digest]bool
	everHeld map[prefix]bool
}

func newPlainIndex() *plainIndex {
	return &plainIndex{
		copies:   map[enginehash.Digest]int{},
		prefixes: map[enginehash.Digest]prefix{},
		hashes:   map[prefix]map[enginehash.Digest]bool{},
		everHeld: map[prefix]bool{},
	}
}

// extend goes on by a block. The scope is that of the chain, which events tell
// on the first block.
func (p prefix) extend(tokens []uint32, scope string) prefix {
	b := append(p[:], scope...)
	b = append(b, 0)
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint32(b, t)
	}
	return sha256.Sum256(b)
}

func scopeOf(adapter, salt string) string { return fmt.Sprintf("%q %q", adapter, salt) }

// scope reads a chain's scope from its first block.
func scope(s *fakeengine.Stored) string {
	adapter := s.Adapter
	if adapter == "" && s.AdapterID != 0 {
		adapter = fmt.Sprint("id ", s.AdapterID)
	}
	var salt string
	if len(s.Extra) > 0 {
		keys := s.Extra[0]
		if len(keys) > 0 && keys[0] == enginehash.Text(s.Adapter) && s.Adapter != "" {
			keys = keys[1:]
		}
		if len(keys) > 0 {
			salt = keys[0].Text
		}
	}
	return scopeOf(adapter, salt)
}

func (x *plainIndex) apply(payload []byte) error {
	b, err := decode(payload)
	if err != nil {
		return err
	}
	if len(b.Events) == 0 {
		return fmt.Errorf("a batch without events")
	}
	for _, e := range b.Events {
		switch e := e.(type) {
		case fakeengine.Cleared:
			clear(x.copies)
		case *fakeengine.Removed:
			for _, h := range e.Hashes {
				if x.copies[h]--; x.copies[h] < 0 {
					return fmt.Errorf("%x is removed more often than stored", h)
				}
			}
		case *fakeengine.Stored:
			if err := x.store(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *plainIndex) store(s *fakeengine.Stored) error {
	var p prefix
	chainScope := ""
	if s.Parent == nil {
		chainScope = scope(s)
	} else if known, ok := x.prefixes[*s.Parent]; ok {
		p = known
	} else {
		return fmt.Errorf("parent %x is not known", *s.Parent)
	}
	for i, h := range s.Hashes {
		p = p.extend(s.Tokens[i*s.BlockSize:(i+1)*s.BlockSize], chainScope)
		chainScope = ""
		if known, ok := x.prefixes[h]; ok && known != p {
			return fmt.Errorf("%x names two prefixes", h)
		}
		x.copies[h]++
		x.prefixes[h] = p
		x.everHeld[p] = true
		if x.hashes[p] == nil {
			x.hashes[p] = map[enginehash.Digest]bool{}
		}
		x.hashes[p][h] = true
	}
	return nil
}

// answer is what the index says of a prompt: copies of each full block, and
// whether each was ever held.
func (x *plainIndex) answer(tokens []uint32, scope string, blockSize int) (copies []int, ever []bool) {
	var p prefix
	for i := range len(tokens) / blockSize {
		p = p.extend(tokens[i*blockSize:(i+1)*blockSize], scope)
		scope = ""
		n := 0
		for h := range x.hashes[p] {
			n += x.copies[h]
		}
		copies, ever = append(copies, n), append(ever, x.everHeld[p])
	}
	return copies, ever
}

// leadingTokens is the length of the leading run of blocks that are held.
func leadingTokens(copies []int, blockSize int) int {
	n := slices.Index(copies, 0)
	if n < 0 {
		n = len(copies)
	}
	return n * blockSize
}

// traffic makes requests as clients do: conversations that grow, prompts that
// return whole, in part or changed, crowds that ask the same at once.
type traffic struct {
	random  *rand.Rand
	blocks  int // of the longest prompt
	size    int // tokens of a block
	memory  int // of how many of the last conversations to go on with
	salts   bool
	report  bool
	said    []spoken // so far
	serving []*served
	aborted int
}

// spoken is a prompt and its output, in the scope that it was asked in.
type spoken struct {
	tokens        []uint32
	adapter, salt string
}

type served struct {
	handle  *fakeengine.Handle
	request fakeengine.Request
}

func (t *traffic) fresh(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = t.random.Uint32N(50_000)
	}
	return out
}

// prompt is a prompt and the scope that it is asked in.
func (t *traffic) prompt() spoken {
	longest := t.blocks * t.size
	if len(t.said) == 0 || t.random.IntN(7) == 0 {
		adapter, salt := t.scope()
		if t.random.IntN(3) == 0 { // whole blocks
			return spoken{t.fresh(t.size * (1 + t.random.IntN(t.blocks))), adapter, salt}
		}
		return spoken{t.fresh(1 + t.random.IntN(longest)), adapter, salt}
	}
	p := t.said[len(t.said)-1-t.random.IntN(min(len(t.said), t.memory))]
	tokens := slices.Clone(p.tokens)
	switch t.random.IntN(7) {
	case 0: // as it was
	case 1:
		tokens = tokens[:1+t.random.IntN(len(tokens))]
	case 2: // whole blocks
		tokens = tokens[:max(1, t.random.IntN(len(tokens)/t.size+1)*t.size)]
	case 3:
		tokens[t.random.IntN(len(tokens))]++
	default:
		tokens = append(tokens, t.fresh(1+t.random.IntN(3*t.size))...)
	}
	p.tokens = tokens[:min(len(tokens), longest)]
	if t.random.IntN(10) == 0 {
		p.adapter, p.salt = t.scope()
	}
	return p
}

func (t *traffic) scope() (adapter, salt string) {
	if t.random.IntN(3) == 0 {
		adapter = []string{"sql", "chat"}[t.random.IntN(2)]
	}
	if t.salts && t.random.IntN(4) == 0 {
		salt = []string{"tenant-a", "tenant-b"}[t.random.IntN(2)]
	}
	return adapter, salt
}

func (t *traffic) request() fakeengine.Request {
	p := t.prompt()
	return fakeengine.Request{
		Tokens: p.tokens, Adapter: p.adapter, Salt: p.salt,
		MaxTokens: 1 + t.random.IntN(2*t.size), Greedy: t.random.IntN(2) == 0,
		SkipReadingPrefixCache: t.random.IntN(15) == 0,
		ReportFull:             t.report && t.random.IntN(2) == 0,
	}
}

// submit gives the engine a request, or the same one several times.
func (t *traffic) submit(r *rig) {
	q, n := t.request(), 1
	if t.random.IntN(6) == 0 {
		n += 1 + t.random.IntN(3)
	}
	for range n {
		t.serving = append(t.serving, &served{r.submit(q), q})
	}
}

// collect learns what ended requests said.
func (t *traffic) collect() {
	t.serving = slices.DeleteFunc(t.serving, func(s *served) bool {
		if s.handle.Done() {
			q := s.request
			t.said = append(t.said, spoken{append(slices.Clone(q.Tokens), s.handle.Output()...), q.Adapter, q.Salt})
		}
		return s.handle.Done()
	})
	if len(t.said) > 300 {
		t.said = slices.Delete(t.said, 0, 150)
	}
}

// disturb does now and then what is not a request. It reports whether the
// engine is to be left alone until it is idle.
func (t *traffic) disturb(r *rig) (idle bool) {
	switch t.random.IntN(300) {
	case 0, 1, 2, 3, 4:
		if len(t.serving) > 0 {
			t.aborted++
			t.serving[t.random.IntN(len(t.serving))].handle.Abort()
		}
	case 5:
		r.ResetRunning()
	case 6, 7, 8, 9:
		return true
	}
	return false
}

// TestReplay feeds an index with nothing but the payloads and asks it and the
// engine the same questions, between all steps.
func TestReplay(t *testing.T) {
	total := map[string]int{}
	for i, tc := range []struct {
		name string
		cfg  fakeengine.Config
	}{
		{"maps", fakeengine.Config{Blocks: 121}},
		{"maps, bytes", fakeengine.Config{Blocks: 121, Rank: 2, Encoding: fakeengine.Encoding{ByteHashes: true}}},
		{"maps, small pool", fakeengine.Config{Blocks: 25, AdmitByChunk: true, HashSeed: "42"}},
		{"maps, blocks of 1", fakeengine.Config{Blocks: 60, BlockSize: 1}},
		{"maps, blocks of 32, chunks", fakeengine.Config{Blocks: 90, BlockSize: 32, ChunkTokens: 40, TokenBudget: 120}},
		{"arrays of 12", fakeengine.Config{Blocks: 121, ChunkTokens: 32, Encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12}}},
		{"arrays of 12, bytes", fakeengine.Config{Blocks: 60, TokenBudget: 50, Encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12, ByteHashes: true}}},
		{"arrays of 7", fakeengine.Config{Blocks: 60, MaxRunning: 4, Encoding: fakeengine.Encoding{Form: fakeengine.FormArrays7}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Seed = uint64(i)
			counts := replay(t, tc.cfg, 2500)
			t.Log(counts)
			for k, n := range counts {
				total[k] += n
			}
		})
	}
	t.Log("all:", total)
	atLeast(t, total, map[string]int{
		"queries":                        10_000,
		"requests":                       4_000,
		"requests that hit":              total["requests"] * 40 / 100,
		"queries with something held":    4_000,
		"queries that end at an evicted": 400,
		"queries after a clear":          40,
		"queries with several copies":    500,
		"queries with an adapter":        1_000,
		"queries with a salt":            1_000,
		"queries capped at the last":     200,
		"blocks removed":                 5_000,
		"blocks removed, one of several": 100,
		"blocks stored, one of several":  200,
		"preempted":                      100,
		"resets":                         40,
		"resets of an engine left idle":  40,
		"aborted":                        100,
	})
}

func replay(t *testing.T, cfg fakeengine.Config, queries int) map[string]int {
	r, x := newRig(t, cfg), newPlainIndex()
	size := cfg.BlockSize
	if size == 0 {
		size = 16
	}
	load := &traffic{
		random: rand.New(rand.NewPCG(cfg.Seed, 1)), blocks: min(12, cfg.Blocks/2), size: size, memory: max(3, cfg.Blocks/8),
		salts: cfg.Encoding.Form != fakeengine.FormArrays7,
	}
	counts, applied, sinceClear, cleared := map[string]int{}, 0, 0, 0
	catchUp := func() {
		for ; applied < len(r.payloads); applied++ {
			if err := x.apply(r.payloads[applied]); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.Counts().Cleared; n > cleared && !r.Pending() {
			cleared, sinceClear = n, 0
		}
	}
	ids := map[string]int{"": 0}
	ask := func() {
		p := load.prompt()
		tokens, adapter, salt := p.tokens, p.adapter, p.salt
		name := adapter
		if cfg.Encoding.Form == fakeengine.FormArrays7 && adapter != "" {
			id, ok := ids[adapter]
			if !ok {
				return // nobody used it yet, so the engine has no id for it
			}
			name = fmt.Sprint("id ", id)
		}
		copies, ever := x.answer(tokens, scopeOf(name, salt), size)
		held := leadingTokens(copies, size)
		cached := min(held, (len(tokens)-1)/size*size)
		if want := r.Copies(tokens, adapter, salt); !slices.Equal(copies, want) {
			t.Fatalf("query %d: the index counts copies %v, the engine %v", counts["queries"], copies, want)
		}
		if h, c := r.Held(tokens, adapter, salt), r.Cached(tokens, adapter, salt); h != held || c != cached {
			t.Fatalf("query %d: held %d, cached %d, the engine says %d and %d", counts["queries"], held, cached, h, c)
		}
		counts["queries"]++
		tally := func(what string, yes bool) {
			if yes {
				counts[what]++
			}
		}
		last := len(copies) - 1
		tally("queries with something held", held > 0)
		tally("queries that end at an evicted", last >= 0 && ever[last] && copies[last] == 0)
		tally("queries after a clear", cleared > 0 && sinceClear < 5)
		tally("queries with several copies", len(copies) > 0 && slices.Max(copies) > 1)
		tally("queries with an adapter", adapter != "")
		tally("queries with a salt", salt != "")
		tally("queries capped at the last", cached < held)
		sinceClear++
	}

	for counts["queries"] < queries {
		for r.Waiting() < 3 && load.random.IntN(3) > 0 {
			load.submit(r)
		}
		for _, s := range load.serving {
			if a := s.request.Adapter; a != "" && ids[a] == 0 {
				ids[a] = len(ids)
			}
		}
		if load.disturb(r) {
			r.drain()
			load.collect()
			published := len(r.payloads)
			if !r.Reset() {
				t.Fatal("an idle engine refused to reset")
			}
			if r.step() || len(r.payloads) > published {
				t.Fatal("an idle engine published")
			}
			counts["resets of an engine left idle"]++
			continue
		}
		r.step()
		load.collect()
		catchUp()
		if !r.Pending() {
			ask()
			ask()
		}
	}

	c := r.Counts()
	if hashed := c.Stored - c.Removed; cleared == 0 && hashed > cfg.Blocks-1 {
		t.Errorf("%d blocks hold something, of %d", hashed, cfg.Blocks)
	}
	counts["requests"] = c.Requests
	counts["requests that hit"] = c.Hits
	counts["aborted"] = load.aborted
	counts["blocks removed"] = c.Removed
	counts["blocks removed, one of several"] = c.RemovedCopies
	counts["blocks stored, one of several"] = c.StoredCopies
	counts["preempted"] = c.Preempted
	counts["resets"] = c.Cleared
	return counts
}

// TestReportsChangeNothingElse: with and without reports an engine does and
// publishes the same, but for the events that announce hits again.
func TestReportsChangeNothingElse(t *testing.T) {
	run := func(report bool) (events []fakeengine.Event, counts fakeengine.Counts, cached []int) {
		r := newRig(t, fakeengine.Config{Blocks: 61, TokenBudget: 100})
		load := &traffic{random: rand.New(rand.NewPCG(1, 2)), blocks: 10, size: 16, memory: 10, salts: true, report: true}
		for range 1000 {
			q := load.request()
			q.ReportFull = q.ReportFull && report
			h := r.submit(q)
			load.serving = append(load.serving, &served{h, q})
			r.step()
			cached = append(cached, h.CachedTokens())
			load.collect()
		}
		for _, p := range r.payloads {
			b, err := decode(p)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, b.Events...)
		}
		return events, r.Counts(), cached
	}
	plain, plainCounts, plainCached := run(false)
	with, withCounts, withCached := run(true)
	if !slices.Equal(plainCached, withCached) {
		t.Error("requests hit something else")
	}
	reports, blocks := 0, 0
	for _, e := range with {
		if len(plain) > 0 && equalEvents(e, plain[0]) {
			plain = plain[1:]
			continue
		}
		s, ok := e.(*fakeengine.Stored)
		if !ok || s.Parent != nil {
			t.Fatalf("%T %+v is not a report", e, e)
		}
		reports, blocks = reports+1, blocks+len(s.Hashes)
	}
	if len(plain) > 0 || blocks != withCounts.Reported {
		t.Errorf("%d events are missing, %d blocks reported, counted %d", len(plain), blocks, withCounts.Reported)
	}
	withCounts.Reported, withCounts.Batches = plainCounts.Reported, plainCounts.Batches
	if withCounts != plainCounts {
		t.Errorf("counts %+v, without reports %+v", withCounts, plainCounts)
	}
	t.Logf("%d reports of %d blocks among %d events", reports, blocks, len(with))
	if reports < 100 {
		t.Errorf("only %d reports", reports)
	}
}
