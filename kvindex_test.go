package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/enginehash"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

var ctx = context.Background()

// words is a tokenizer for tests: an id a byte, and 1 in front as BOS.
type words struct{}

func (words) Encode(_ context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if text == "fail" {
		return dst, errors.New("no such text")
	}
	if special && text != "nothing" {
		dst = append(dst, 1)
	}
	for _, b := range []byte(text) {
		if text == "nothing" {
			break
		}
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

func open(t testing.TB, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ix.Close() })
	return ix
}

// prompt is a run of tokens, and the engine hashes of its blocks.
type prompt struct {
	tokens []uint32
	size   int
	hash   uint64 // of block i: hash+i
}

func newPrompt(hash uint64, size, blocks int) prompt {
	p := prompt{size: size, hash: hash << 32}
	for i := range size * blocks {
		p.tokens = append(p.tokens, uint32(hash*1000)+uint32(i))
	}
	return p
}

func (p prompt) stored(from, to int) *fakeengine.Stored {
	s := &fakeengine.Stored{Tokens: p.tokens[from*p.size : to*p.size], BlockSize: p.size, Medium: "GPU"}
	for i := from; i < to; i++ {
		s.Hashes = append(s.Hashes, fakeengine.IntHash(p.hash+uint64(i)))
	}
	if from > 0 {
		parent := fakeengine.IntHash(p.hash + uint64(from-1))
		s.Parent = &parent
	}
	return s
}

func (p prompt) removed(blocks ...int) *fakeengine.Removed {
	r := &fakeengine.Removed{Medium: "GPU"}
	for _, b := range blocks {
		r.Hashes = append(r.Hashes, fakeengine.IntHash(p.hash+uint64(b)))
	}
	return r
}

func payload(time float64, rank int, evs ...fakeengine.Event) []byte {
	return fakeengine.Encoding{}.Append(nil, &fakeengine.Batch{Time: time, Rank: rank, Events: evs})
}

func ingest(t testing.TB, ix *kvindex.Indexer, pod string, evs ...fakeengine.Event) {
	t.Helper()
	if err := ix.Ingest(pod, "m", payload(1, 0, evs...)); err != nil {
		t.Fatal(err)
	}
}

func score(t testing.TB, ix *kvindex.Indexer, r kvindex.Request) []kvindex.PodScore {
	t.Helper()
	if r.Model == "" {
		r.Model = "m"
	}
	var a kvindex.Answer
	if err := ix.ScoreRequest(ctx, &r, &a); err != nil {
		t.Fatal(err)
	}
	return a.Pods
}

// blocks returns what one pod matches of a prompt.
func blocks(t testing.TB, ix *kvindex.Indexer, pod string, p prompt) int {
	t.Helper()
	return score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: []string{pod}})[0].MatchedBlocks
}

func TestScoreText(t *testing.T) {
	ix := open(t, kvindex.WithTokenizer("m", words{}))
	text := "a prompt of some forty letters, give or take a few"
	tokens, _ := words{}.Encode(ctx, nil, text, true)
	p := prompt{tokens: tokens, size: 16, hash: 1}
	ingest(t, ix, "a", p.stored(0, 1))
	ingest(t, ix, "b", p.stored(0, 3))
	got, err := ix.Score(ctx, text, "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []kvindex.PodScore{
		{Pod: "b", Score: 48, MatchedBlocks: 3, BlockTokens: 16, Tiers: kvindex.TierCountsOf(3), CachedTokens: 48, State: kvindex.StateLive},
		{Pod: "a", Score: 16, MatchedBlocks: 1, BlockTokens: 16, Tiers: kvindex.TierCountsOf(1), CachedTokens: 16, State: kvindex.StateLive},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestScorePods(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	for _, pod := range []string{"c", "a", "b"} {
		ingest(t, ix, pod, p.stored(0, 2))
	}
	ingest(t, ix, "b", p.stored(2, 3))
	names := func(pods []string) (got string) {
		for _, s := range score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: pods}) {
			got += fmt.Sprintf("%s=%d/%v ", s.Pod, s.MatchedBlocks, s.State)
		}
		return got
	}
	for _, c := range []struct {
		pods []string
		want string
	}{
		{nil, "b=3/live a=2/live c=2/live "},
		{[]string{}, ""},
		{[]string{"c", "nobody", "a", "c"}, "a=2/live c=2/live nobody=0/unknown "},
	} {
		if got := names(c.pods); got != c.want {
			t.Errorf("pods %q: got %q, want %q", c.pods, got, c.want)
		}
	}
}

// The last token is always computed, and a block is reused whole.
func TestCachedTokens(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	ingest(t, ix, "a", p.stored(0, 4))
	for n, want := range map[int][2]int{1: {0, 0}, 15: {0, 0}, 16: {1, 0}, 17: {1, 16}, 32: {2, 16}, 33: {2, 32}, 63: {3, 48}, 64: {4, 48}} {
		s := score(t, ix, kvindex.Request{Tokens: p.tokens[:n]})[0]
		if got := [2]int{s.MatchedBlocks, s.CachedTokens}; got != want {
			t.Errorf("%d tokens: got %v, want %v", n, got, want)
		}
	}
}

func TestBlockSizes(t *testing.T) {
	ix := open(t)
	want := map[string]int{}
	tokens := newPrompt(1, 1, 1200).tokens
	for i, size := range []int{1, 2, 8, 16, 24, 32, 48, 64, 100, 528} {
		p := prompt{tokens: tokens, size: size, hash: uint64(i+1) << 32}
		pod := fmt.Sprint("by", size)
		n := 1100 / size
		ingest(t, ix, pod, p.stored(0, n))
		want[pod] = n * size
	}
	for _, s := range score(t, ix, kvindex.Request{Tokens: tokens}) {
		if got := s.MatchedBlocks * s.BlockTokens; got != want[s.Pod] || s.CachedTokens != got {
			t.Errorf("%s: %d tokens held, %d cached, want %d", s.Pod, got, s.CachedTokens, want[s.Pod])
		}
	}
}

func TestPartialTailYieldsNoKey(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 3)
	ingest(t, ix, "a", p.stored(0, 3))
	for n := 33; n < 48; n++ {
		if got := score(t, ix, kvindex.Request{Tokens: p.tokens[:n]})[0].MatchedBlocks; got != 2 {
			t.Errorf("%d tokens match %d blocks", n, got)
		}
	}
}

// Equal tokens are kept apart by rank, model, adapter and salt.
func TestScopes(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 6)
	q := prompt{p.tokens, 16, 2 << 32}
	r := prompt{p.tokens, 16, 3 << 32}
	with := func(s *fakeengine.Stored, adapter, salt string) *fakeengine.Stored {
		s.Adapter = adapter
		for i := range s.Hashes {
			var keys []enginehash.Extra
			if adapter != "" {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: adapter})
			}
			if salt != "" && i == 0 && s.Parent == nil {
				keys = append(keys, enginehash.Extra{Kind: enginehash.ExtraText, Text: salt})
			}
			s.Extra = append(s.Extra, keys)
		}
		return s
	}
	ingest(t, ix, "a", with(p.stored(0, 1), "lora", ""), with(p.stored(1, 2), "lora", ""))
	ingest(t, ix, "a", with(q.stored(0, 1), "", "pepper"), with(q.stored(1, 3), "", "pepper"))
	ingest(t, ix, "a", with(r.stored(0, 1), "lora", "pepper"), with(r.stored(1, 4), "lora", "pepper"))
	if err := ix.Ingest("a", "other", payload(1, 0, p.stored(0, 5))); err != nil {
		t.Fatal(err)
	}
	if err := ix.Ingest("a", "m", payload(1, 1, p.stored(0, 6))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model, adapter, salt string
		want, rank           int
	}{
		{"m", "", "", 6, 1},
		{"m", "lora", "", 2, 0},
		{"m", "", "pepper", 3, 0},
		{"m", "lora", "pepper", 4, 0},
		{"m", "lora", "sugar", 0, 0},
		{"m", "nora", "", 0, 0},
		{"other", "", "", 5, 0},
		{"other", "lora", "", 0, 0},
		{"lora", "", "", 2, 0}, // the adapter by its name alone
		{"lora", "", "pepper", 4, 0},
		{"never", "", "", 0, 0},
	} {
		s := score(t, ix, kvindex.Request{Model: c.model, Adapter: c.adapter, Salt: c.salt, Tokens: p.tokens, Pods: []string{"a"}})[0]
		if s.MatchedBlocks != c.want || s.Rank != c.rank {
			t.Errorf("model %q, adapter %q, salt %q: %d blocks of rank %d, want %d of %d", c.model, c.adapter, c.salt, s.MatchedBlocks, s.Rank, c.want, c.rank)
		}
	}
	if err := ix.Ingest("b", "third", payload(1, 0, with(p.stored(0, 1), "lora", ""))); err != nil {
		t.Fatal(err)
	}
	if got := score(t, ix, kvindex.Request{Model: "lora", Tokens: p.tokens, Pods: []string{"a"}})[0]; got.MatchedBlocks != 2 {
		t.Errorf("the adapter of the pods asked for: %+v", got)
	}
	err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "lora", Tokens: p.tokens}, new(kvindex.Answer))
	if !errors.Is(err, kvindex.ErrRequest) || !strings.Contains(err.Error(), `both "m" and "third"`) {
		t.Errorf("an adapter of two models: %v", err)
	}
}

// Media are told from each other and from their absence, by what they are and
// where they start; an item that lasts over several blocks is in the chain.
func TestMedia(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	s := p.stored(0, 4)
	item := func(offset int64) []enginehash.Extra {
		return []enginehash.Extra{{Kind: enginehash.ExtraMedia, Text: "cat", Int: offset}}
	}
	s.Extra = [][]enginehash.Extra{nil, item(5), item(-11), nil} // tokens 21 to 40
	ingest(t, ix, "a", s)
	for _, c := range []struct {
		media []kvindex.Media
		want  int
	}{
		{[]kvindex.Media{{Hash: "cat", Offset: 21}}, 4},
		{[]kvindex.Media{{Hash: "dog", Offset: 21}}, 1},
		{[]kvindex.Media{{Hash: "cat", Offset: 22}}, 1},
		{[]kvindex.Media{{Hash: "cat", Offset: 5}}, 0},
		{[]kvindex.Media{{Hash: "cat", Offset: 21}, {Hash: "cat", Offset: 50}}, 3},
		{nil, 1},
	} {
		if got := score(t, ix, kvindex.Request{Tokens: p.tokens, Media: c.media})[0].MatchedBlocks; got != c.want {
			t.Errorf("media %v: %d blocks, want %d", c.media, got, c.want)
		}
	}
	// What no request can name matches no request.
	for i, odd := range []enginehash.Extra{
		{Kind: enginehash.ExtraBytes, Text: "embeddings"}, {Kind: enginehash.ExtraInt, Int: 7}, {Kind: enginehash.ExtraMedia, Text: "cat", Int: 99},
	} {
		q := newPrompt(uint64(2+i), 16, 2)
		s := q.stored(0, 2)
		s.Extra = [][]enginehash.Extra{nil, {odd}}
		ingest(t, ix, "a", s)
		if got := blocks(t, ix, "a", q); got != 1 {
			t.Errorf("extra key %+v: %d blocks, want 1", odd, got)
		}
	}
	if n := ix.Stats().Unscored; n != 3 {
		t.Errorf("%d unscored stores", n)
	}
}

func TestTiers(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 6)
	tier := func(medium string, block int) *fakeengine.Stored {
		s := p.stored(block, block+1)
		s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, medium
		return s
	}
	ingest(t, ix, "a", p.stored(0, 6))
	for b, medium := range []string{"gpu", "cpu", "Disk", "object_store", "from the future", ""} {
		ingest(t, ix, "a", p.removed(b), tier(medium, b))
	}
	want := kvindex.TierCountsOf(2, 1, 1, 1, 1)
	s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]
	if s.Tiers != want || s.MatchedBlocks != 6 || s.CachedTokens != 16 {
		t.Errorf("got %+v", s)
	}
}

// Copies in another place are not the pod's own.
func TestForeignCopies(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 2)
	var b events.Batch
	for _, e := range []events.Event{{Locality: "REMOTE"}, {Ownership: "peer"}, {Locality: "local"}} {
		e.Kind, e.Hashes, e.Tokens, e.BlockSize = events.Stored, []uint64{uint64(len(b.Events))}, p.tokens[:16], 16
		if e.Locality == "REMOTE" {
			e.Hashes, e.Tokens = []uint64{8, 9}, p.tokens
		}
		b.Events = append(b.Events, e)
	}
	if err := ix.ApplyBatch("a", "m", &b); err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, ix, "a", p); got != 1 || ix.Stats().Foreign != 2 {
		t.Errorf("%d blocks, %+v", got, ix.Stats())
	}
}

func TestHybridIsAnUpperBound(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	window := p.stored(0, 4)
	window.Group, window.Kind, window.Window = 1, "sliding_window", 32
	ingest(t, ix, "a", p.stored(0, 3), window)
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; !s.UpperBound || s.MatchedBlocks != 3 {
		t.Errorf("got %+v", s)
	}
	ingest(t, ix, "a", p.removed(0)) // the window group's blocks do not stand in for it
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != 0 {
		t.Errorf("got %+v", s)
	}
	ingest(t, ix, "b", p.stored(0, 3))
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.Pod != "b" || s.UpperBound {
		t.Errorf("got %+v", s)
	}
}

// All full-attention groups have to hold a block: the one that holds the least
// counts, and one that holds nothing makes it nothing.
func TestSeveralFullGroups(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 8)
	coarse := prompt{p.tokens, 32, 2 << 32}.stored(0, 3)
	coarse.Group = 1
	ingest(t, ix, "a", p.stored(0, 8), coarse)
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.CachedTokens != 96 || s.BlockTokens != 32 || !s.UpperBound {
		t.Errorf("got %+v", s)
	}
	ingest(t, ix, "a", p.removed(1))
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.CachedTokens != 16 || s.BlockTokens != 16 {
		t.Errorf("got %+v", s)
	}
	ingest(t, ix, "a", p.removed(0))
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.CachedTokens != 0 || s.MatchedBlocks != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestManyHolders(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 2)
	for n := range 1200 {
		ingest(t, ix, fmt.Sprint("pod", n), p.stored(0, 2))
	}
	got := score(t, ix, kvindex.Request{Tokens: p.tokens})
	if len(got) != 1200 || got[1199].MatchedBlocks != 2 {
		t.Errorf("%d pods, the last %+v", len(got), got[len(got)-1])
	}
}

// A pod's adapters are found by name as long as it is there, and many of one
// pod do not push out those of another.
func TestAdaptersByName(t *testing.T) {
	ix := open(t, kvindex.WithTokenizer("taken", words{}))
	p := newPrompt(1, 16, 1)
	hash := uint64(0)
	adapter := func(pod, model, name string) {
		hash++
		s := prompt{p.tokens, 16, hash << 32}.stored(0, 1)
		s.Adapter = name
		if err := ix.Ingest(pod, model, payload(1, 0, s)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range kvindex.MaxAdapters + 2 {
		adapter("evil", "m2", fmt.Sprint("a", i))
	}
	adapter("evil", "m2", "sql")
	adapter("evil", "m2", "taken")
	adapter("good", "m", "sql")
	find := func(name string, pods ...string) int {
		return score(t, ix, kvindex.Request{Model: name, Tokens: p.tokens, Pods: pods})[0].MatchedBlocks
	}
	if find("sql", "good") != 1 || find("a5", "evil") != 1 || find("taken", "evil") != 0 {
		t.Error("adapters are not found by name")
	}
	if n := ix.Stats().Adapters; n != 4 {
		t.Errorf("%d adapters too many", n)
	}
	if err := ix.RemovePod("evil"); err != nil {
		t.Fatal(err)
	}
	if s := score(t, ix, kvindex.Request{Model: "sql", Tokens: p.tokens}); len(s) != 1 || s[0].Pod != "good" {
		t.Errorf("%+v", s)
	}
}

func TestRemovePod(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 2)
	ingest(t, ix, "a", p.stored(0, 2))
	ingest(t, ix, "b", p.stored(0, 2))
	for range 2 {
		if err := ix.RemovePod("a"); err != nil {
			t.Fatal(err)
		}
	}
	if got := score(t, ix, kvindex.Request{Tokens: p.tokens}); len(got) != 1 || got[0].Pod != "b" {
		t.Errorf("got %+v", got)
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: []string{"a"}})[0]; s.State != kvindex.StateUnknown || s.MatchedBlocks != 0 {
		t.Errorf("got %+v", s)
	}
	if n := ix.Stats(); n.Pods != 1 || n.Models != 1 || n.Sources != 1 || n.Index.Memberships != n.Blocks.Of(kvindex.TierGPU) || n.Index.Keys == 0 || n.Index.Names == 0 {
		t.Errorf("%+v", n)
	}
	if err := ix.RemovePod("b"); err != nil {
		t.Fatal(err)
	}
	if n := ix.Stats(); n.Pods != 0 || n.Models != 0 || n.Sources != 0 {
		t.Errorf("%+v", n)
	}
}

func message(stream string, seq uint64, time float64, rank int, evs ...fakeengine.Event) kvindex.Message {
	return kvindex.Message{Pod: "a", Model: "m", Stream: stream, Seq: seq, Payload: payload(time, rank, evs...)}
}

// TestMessages plays a stream with all that can happen to it.
func TestMessages(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	p := newPrompt(1, 16, 8)
	lost := func(from, to uint64) kvindex.Gap { return kvindex.Gap{From: from, To: to, Lost: true} }
	bad := message("s", 7, 7, 0)
	bad.Payload = []byte("no msgpack")
	for i, c := range []struct {
		m      kvindex.Message
		want   kvindex.Receipt
		bad    bool
		blocks int
		state  kvindex.State
	}{
		{m: message("s", 0, 1, 0, p.stored(0, 2)), want: kvindex.Receipt{Applied: true}, blocks: 2, state: kvindex.StateLive},
		{m: message("s", 1, 2, 0, p.stored(2, 4)), want: kvindex.Receipt{Applied: true}, blocks: 4, state: kvindex.StateLive},
		{m: message("s", 0, 1, 0, p.stored(0, 2)), want: kvindex.Receipt{Duplicate: true}, blocks: 4, state: kvindex.StateLive},
		{m: message("s", 4, 4, 0, p.stored(0, 3)), want: kvindex.Receipt{Applied: true, Gap: lost(2, 3)}, blocks: 3, state: kvindex.StatePartial},
		{m: message("s", 3, 3, 0, p.stored(3, 5)), want: kvindex.Receipt{Duplicate: true}, blocks: 3, state: kvindex.StatePartial},
		{m: message("s", 5, 5, 0, fakeengine.Cleared{}, p.stored(0, 1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StateLive},
		{m: message("s", 6, 6, 0, p.stored(1, 7)), want: kvindex.Receipt{Applied: true}, blocks: 7, state: kvindex.StateLive},
		{m: bad, bad: true, blocks: 0, state: kvindex.StatePartial},
		{m: message("s", 8, 8, 0, p.stored(0, 1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StatePartial},
		{m: message("s", 0, 9, 0, p.stored(0, 2)), want: kvindex.Receipt{Applied: true, Restarted: true}, blocks: 2, state: kvindex.StateLive},
		{m: message("s", 1, 10, 0, p.removed(1)), want: kvindex.Receipt{Applied: true}, blocks: 1, state: kvindex.StateLive},
		{m: message("s", 0, 11, 0, p.stored(0, 5)), want: kvindex.Receipt{Applied: true, Restarted: true}, blocks: 5, state: kvindex.StateLive},
		{m: message("s", 9, 12, 0, p.stored(0, 1)), want: kvindex.Receipt{Applied: true, Gap: lost(1, 8)}, blocks: 1, state: kvindex.StatePartial},
	} {
		got, err := ix.IngestMessage(c.m)
		if got != c.want || c.bad != errors.Is(err, kvindex.ErrMalformed) || !c.bad && err != nil {
			t.Fatalf("step %d: %+v, %v; want %+v", i, got, err, c.want)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != c.blocks || s.State != c.state {
			t.Fatalf("step %d: %d blocks, %v; want %d, %v", i, s.MatchedBlocks, s.State, c.blocks, c.state)
		}
	}
	var causes []string
	for _, l := range losses {
		causes = append(causes, l.Cause.String())
	}
	if want := []string{"gap", "malformed", "restart", "restart", "gap"}; !slices.Equal(causes, want) {
		t.Errorf("losses %v, want %v", causes, want)
	}
	n := ix.Stats()
	if n.MalformedBy.String() != "type=1" || n.MalformedBy.Of(events.ReasonType) != 1 {
		t.Errorf("malformed by reason: %v", n.MalformedBy)
	}
	if n.Messages != 13 || n.Duplicates != 2 || n.Gaps != 2 || n.Missing != 10 || n.Restarts != 2 || n.Malformed != 1 {
		t.Errorf("%+v", n)
	}
	if got := ix.Pods(nil); len(got) != 1 || got[0].State != kvindex.StatePartial || got[0].Sources[0].Stream != "s" || got[0].Sources[0].Next != 10 || got[0].Sources[0].Blocks.Of(kvindex.TierGPU) != 1 {
		t.Errorf("%+v", got)
	}
}

// An index that outlives its Indexer says how far each stream had come.
func TestMessagesAfterARestartOfTheHost(t *testing.T) {
	p := newPrompt(1, 16, 4)
	for _, c := range []struct {
		seq     uint64
		time    float64
		receipt kvindex.Receipt
		blocks  int
	}{
		{6, 2, kvindex.Receipt{Duplicate: true}, 2},
		{6, 3, kvindex.Receipt{Applied: true, Restarted: true}, 0},
		{7, 3, kvindex.Receipt{Applied: true}, 3},
		{9, 3, kvindex.Receipt{Applied: true, Gap: kvindex.Gap{From: 7, To: 8, Lost: true}}, 0},
	} {
		m, err := index.NewMemory(index.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		old := open(t, kvindex.WithIndex(m))
		for i, e := range []kvindex.Message{message("s", 8, 1, 0, p.stored(0, 1)), message("s", 6, 2, 0, p.stored(0, 2))} {
			if r, err := old.IngestMessage(e); err != nil || !r.Applied || r.Restarted != (i == 1) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		old.Close()
		ix := open(t, kvindex.WithIndex(m))
		got, err := ix.IngestMessage(message("s", c.seq, c.time, 0, p.stored(2, 3)))
		if err != nil || got != c.receipt {
			t.Errorf("message %d: %+v, %v", c.seq, got, err)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != c.blocks || s.State == kvindex.StateLive {
			t.Errorf("message %d: %+v", c.seq, s)
		}
		m.Close()
	}
}

// A loss on one stream leaves the other ranks alone, and takes all ranks of its
// own.
func TestLossByStream(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	ranks := func() (got [4]int) {
		t.Helper()
		for _, info := range ix.Pods(nil)[0].Sources {
			got[info.Rank] = info.Blocks.Of(kvindex.TierGPU)
		}
		return got
	}
	for _, m := range []kvindex.Message{
		message("s", 0, 1, 0, p.stored(0, 1)), message("s", 1, 1, 1, p.stored(0, 2)),
		message("t", 0, 1, 2, p.stored(0, 3)), message("u", 5, 1, 3, p.stored(0, 4)),
	} {
		if _, err := ix.IngestMessage(m); err != nil {
			t.Fatal(err)
		}
	}
	if got := ranks(); got != [4]int{1, 2, 3, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
	if info := ix.Pods(nil)[0]; info.State != kvindex.StatePartial || info.Sources[2].State != kvindex.StateLive {
		t.Errorf("%+v", info)
	}
	if _, err := ix.IngestMessage(message("s", 9, 2, 1, p.stored(0, 1))); err != nil {
		t.Fatal(err)
	}
	if got := ranks(); got != [4]int{0, 1, 3, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
	if err := ix.MarkLost("a", 2); err != nil {
		t.Fatal(err)
	}
	if got := ranks(); got != [4]int{0, 1, 0, 4} {
		t.Fatalf("blocks by rank %v", got)
	}
}

// What a rank held under another stream, or before it had one, may have gone.
func TestARankMovesToAnotherStream(t *testing.T) {
	p, q := newPrompt(1, 16, 2), newPrompt(2, 16, 1)
	for _, c := range []struct {
		name  string
		first func(*kvindex.Indexer) error
		seq   uint64
		want  kvindex.State
	}{
		{"a new engine", nil, 0, kvindex.StateLive},
		{"attached late", nil, 7, kvindex.StatePartial},
		{"fed without numbers before", func(ix *kvindex.Indexer) error { return ix.Ingest("a", "m", payload(1, 0, p.stored(0, 2))) }, 9, kvindex.StatePartial},
	} {
		var causes []string
		ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { causes = append(causes, l.Cause.String()) }}))
		first := c.first
		if first == nil {
			first = func(ix *kvindex.Indexer) error {
				_, err := ix.IngestMessage(message("tcp://10.0.0.1:5557", 0, 1, 0, p.stored(0, 2)))
				return err
			}
		}
		if err := first(ix); err != nil {
			t.Fatal(err)
		}
		if _, err := ix.IngestMessage(message("tcp://10.0.0.2:5557", c.seq, 2, 0, q.stored(0, 1))); err != nil {
			t.Fatal(err)
		}
		if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.MatchedBlocks != 0 || s.State != c.want || blocks(t, ix, "a", q) != 1 {
			t.Errorf("%s: %+v", c.name, s)
		}
		if !slices.Equal(causes, []string{"moved"}) {
			t.Errorf("%s: losses %v", c.name, causes)
		}
	}
}

// vLLM names the first block alike for an adapter and for a salt of its name.
func TestASaltNamedLikeAnAdapter(t *testing.T) {
	ix := open(t)
	e, err := fakeengine.New(fakeengine.Config{Model: "m", Publish: func(p []byte) { ix.Ingest("a", "m", p) }})
	if err != nil {
		t.Fatal(err)
	}
	p := newPrompt(1, 16, 3)
	for _, r := range []fakeengine.Request{{Tokens: p.tokens[:17], Adapter: "x"}, {Tokens: p.tokens, Salt: "x"}} {
		if _, err := e.Submit(r); err != nil {
			t.Fatal(err)
		}
		e.Drain()
	}
	if got := score(t, ix, kvindex.Request{Tokens: p.tokens, Adapter: "x"})[0]; got.MatchedBlocks*16 > e.Held(p.tokens, "x", "") {
		t.Errorf("claims %d blocks, the engine holds %d tokens", got.MatchedBlocks, e.Held(p.tokens, "x", ""))
	}
}

// Engines without extra_keys cannot tell a salted prompt from a plain one.
func TestScopelessEnginesAreCounted(t *testing.T) {
	ix := open(t)
	old := fakeengine.Encoding{Form: fakeengine.FormArrays7}
	if err := ix.Ingest("a", "m", old.Append(nil, &fakeengine.Batch{Events: []fakeengine.Event{newPrompt(1, 16, 1).stored(0, 1)}})); err != nil {
		t.Fatal(err)
	}
	s := newPrompt(2, 16, 1).stored(0, 1)
	s.Extra = [][]enginehash.Extra{nil}
	ingest(t, ix, "a", s)
	if n := ix.Stats().Scopeless; n != 1 {
		t.Errorf("%d scopeless stores", n)
	}
}

func TestBadBatches(t *testing.T) {
	ix := open(t)
	stored := events.Event{Kind: events.Stored, Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16}
	with := func(set func(*events.Event)) *events.Batch {
		e := stored
		set(&e)
		return &events.Batch{Events: []events.Event{e}}
	}
	for text, b := range map[string]*events.Batch{
		"no batch":              nil,
		"rank -1":               {Rank: -1},
		"unknown kind 9":        with(func(e *events.Event) { e.Kind = 9 }),
		"block size -16":        with(func(e *events.Event) { e.BlockSize = -16 }),
		"without a block_size":  with(func(e *events.Event) { e.BlockSize = 0 }),
		"not a multiple":        with(func(e *events.Event) { e.BlockSize = 5 }),
		"2 hashes for 1 blocks": with(func(e *events.Event) { e.Hashes = []uint64{1, 2} }),
		"group -1":              with(func(e *events.Event) { e.Group = -1 }),
		"are not pairs":         with(func(e *events.Event) { e.Pairs, e.Tokens = true, e.Tokens[:15] }),
		"remaining counts":      with(func(e *events.Event) { e.Remaining = []uint32{1, 2} }),
		"extra key 0":           with(func(e *events.Event) { e.Extra = []events.ExtraKey{{Block: 1}} }),
	} {
		if err := ix.ApplyBatch("a", "m", b); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := ix.ApplyBatch("a", "m", &events.Batch{Events: []events.Event{stored}}); err != nil {
		t.Error(err)
	}
	bad := open(t, kvindex.WithProfile(func(string, string) kvindex.Profile { return kvindex.Profile{Copies: 99} }))
	if err := bad.Ingest("a", "m", payload(1, 0)); err == nil || !strings.Contains(err.Error(), "WithProfile") {
		t.Errorf("a bad profile: %v", err)
	}
}

// The first message of a pod cannot be read: nothing is known to be lost, but
// what follows is not the whole history.
func TestMalformedFirst(t *testing.T) {
	var losses []kvindex.Loss
	ix := open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) { losses = append(losses, l) }}))
	bad := message("s", 0, 1, 0)
	bad.Payload = nil
	if _, err := ix.IngestMessage(bad); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("error %v", err)
	}
	if n := ix.Stats(); n.Pods != 0 || n.Messages != 1 || n.Malformed != 1 {
		t.Errorf("after a message that nobody could read: %+v", n)
	}
	p := newPrompt(1, 16, 1)
	if _, err := ix.IngestMessage(message("s", 1, 2, 0, p.stored(0, 1))); err != nil {
		t.Fatal(err)
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens})[0]; s.State != kvindex.StatePartial || s.MatchedBlocks != 1 {
		t.Errorf("got %+v", s)
	}
	if len(losses) != 1 || losses[0].Rank != -1 {
		t.Errorf("losses %+v", losses)
	}
}

// Where history is missing, a report may name blocks beside the known ones:
// counting them as copies would outlive their removal.
func TestPartialViewCountsNoReport(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 4)
	for i, e := range []fakeengine.Event{p.stored(0, 2), p.stored(0, 4), p.removed(1)} {
		if _, err := ix.IngestMessage(message("s", uint64(5+i), float64(i), 0, e)); err != nil {
			t.Fatal(err)
		}
	}
	if got := blocks(t, ix, "a", p); got != 1 {
		t.Errorf("%d blocks, want 1", got)
	}
}

func TestMalformedPayloads(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 3)
	good := payload(1, 0, p.stored(0, 2), p.stored(2, 3))
	for n := range good {
		if err := ix.Ingest("a", "m", good[:n]); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), `pod "a"`) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	if s := score(t, ix, kvindex.Request{Tokens: p.tokens, Pods: []string{"a"}})[0]; s.MatchedBlocks != 0 {
		t.Errorf("something was applied: %+v", s)
	}
	if err := ix.Ingest("a", "m", good); err != nil || blocks(t, ix, "a", p) != 3 {
		t.Errorf("the next good batch: %v", err)
	}
	for _, size := range []int{-16, math.MaxInt32} {
		s := p.stored(0, 1)
		s.BlockSize = size
		if err := ix.Ingest("a", "m", payload(1, 0, s)); !errors.Is(err, kvindex.ErrMalformed) || !strings.Contains(err.Error(), "block_size") {
			t.Errorf("block size %d: %v", size, err)
		}
	}
}

func TestBadRequests(t *testing.T) {
	ix := open(t, kvindex.WithTokenizer("m", words{}))
	tokens := []uint32{1, 2, 3}
	for _, c := range []struct {
		r    kvindex.Request
		is   error
		text string
	}{
		{kvindex.Request{Tokens: tokens}, kvindex.ErrRequest, "model is empty"},
		{kvindex.Request{Model: "m"}, kvindex.ErrRequest, "prompt is empty"},
		{kvindex.Request{Model: "m", Tokens: []uint32{}}, kvindex.ErrRequest, "prompt is empty"},
		{kvindex.Request{Model: "m", Prompt: "x", Tokens: tokens}, kvindex.ErrRequest, "both"},
		{kvindex.Request{Model: "m", Prompt: "nothing"}, kvindex.ErrRequest, "no tokens"},
		{kvindex.Request{Model: "m", Prompt: "fail"}, nil, `model "m": no such text`},
		{kvindex.Request{Model: "n", Prompt: "x"}, kvindex.ErrNoTokenizer, `model "n": register one by WithTokenizer`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Offset: 3}}}, kvindex.ErrRequest, `media "h" begins at token 3 of 3`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Offset: -1}}}, kvindex.ErrRequest, `media "h"`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Offset: 1}}}, kvindex.ErrRequest, "media 0 has no hash"},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "h", Length: -1}}}, kvindex.ErrRequest, `media "h"`},
		{kvindex.Request{Model: "m", Tokens: tokens, Media: []kvindex.Media{{Hash: "g", Offset: 1}, {Hash: "h"}}}, kvindex.ErrRequest, `media "h"`},
	} {
		a := kvindex.Answer{PromptTokens: 9, Pods: make([]kvindex.PodScore, 3)}
		err := ix.ScoreRequest(ctx, &c.r, &a)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: error %v", c.r, err)
		}
		if len(a.Pods) != 0 || a.PromptTokens != 0 {
			t.Errorf("%+v: answer %+v", c.r, a)
		}
	}
	if s := score(t, ix, kvindex.Request{Model: "never", Tokens: tokens, Pods: []string{"x"}}); len(s) != 1 || s[0] != (kvindex.PodScore{Pod: "x"}) {
		t.Errorf("a model never heard: %+v", s)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := ix.ScoreRequest(cancelled, &kvindex.Request{Model: "m", Tokens: tokens}, new(kvindex.Answer)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestBadIngests(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 1)
	for name, err := range map[string]error{
		"pod":   ix.Ingest("", "m", payload(1, 0)),
		"model": ix.Ingest("a", "", payload(1, 0)),
		"rank":  ix.MarkLost("a", 0),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "kvindex: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := message("s", math.MaxUint64, 1, 0, p.stored(0, 1))
	if _, err := ix.IngestMessage(m); err == nil || !strings.Contains(err.Error(), `stream "s"`) {
		t.Errorf("the end mark as a message: %v", err)
	}
	ingest(t, ix, "a", p.stored(0, 1))
	if err := ix.MarkLost("a", 3); err == nil || !strings.Contains(err.Error(), "no rank 3") {
		t.Errorf("MarkLost of no rank: %v", err)
	}
	// Ranks and streams are bounded.
	var last error
	for rank := range kvindex.MaxRanks + 1 {
		last = ix.Ingest("r", "m", payload(1, rank))
	}
	if last == nil || !strings.Contains(last.Error(), "rank 256") {
		t.Errorf("rank %d: %v", kvindex.MaxRanks, last)
	}
	for n := range kvindex.MaxStreams + 1 {
		m := message(fmt.Sprint(n), 0, 1, 0)
		m.Payload = nil // a stream without a rank: one with a rank would take it over
		_, last = ix.IngestMessage(m)
	}
	if last == nil || !strings.Contains(last.Error(), `stream "1024"`) {
		t.Errorf("stream %d: %v", kvindex.MaxStreams, last)
	}
}

func TestOptions(t *testing.T) {
	m, err := index.NewMemory(index.MemoryConfig{Seed: testSeed})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		want string
		opts []kvindex.Option
	}{
		{"WithKeySeed contradicts WithIndex", []kvindex.Option{kvindex.WithIndex(m), kvindex.WithKeySeed(testSeed)}},
		{"the seed is all zeros", []kvindex.Option{kvindex.WithKeySeed([16]byte{})}},
		{"the index is nil", []kvindex.Option{kvindex.WithIndex(nil)}},
		{`the tokenizer of model "x" is nil`, []kvindex.Option{kvindex.WithTokenizer("x", nil)}},
		{"the model is empty", []kvindex.Option{kvindex.WithTokenizer("", words{})}},
		{`model "x" has two tokenizers`, []kvindex.Option{kvindex.WithTokenizer("x", words{}), kvindex.WithTokenizer("x", words{})}},
		{"WithProfile: the function is nil", []kvindex.Option{kvindex.WithProfile(nil)}},
		{"WithIndex is given twice", []kvindex.Option{kvindex.WithIndex(m), kvindex.WithIndex(m)}},
		{"WithKeySeed is given twice", []kvindex.Option{kvindex.WithKeySeed(testSeed), kvindex.WithKeySeed(testSeed)}},
	} {
		if _, err := kvindex.New(c.opts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	_, err = kvindex.New(kvindex.WithIndex(nil), kvindex.WithProfile(nil))
	if err == nil || !strings.Contains(err.Error(), "index") || !strings.Contains(err.Error(), "function") {
		t.Errorf("two mistakes: %v", err)
	}

	// A backend that was given stays open, and its seed is used.
	ix := open(t, kvindex.WithIndex(m))
	p := newPrompt(1, 16, 2)
	ingest(t, ix, "a", p.stored(0, 2))
	if err := ix.Close(); err != nil {
		t.Fatal(err)
	}
	if got := open(t, kvindex.WithIndex(m)); blocks(t, got, "a", p) != 2 {
		t.Error("the backend was closed, or its seed is not used")
	}
}

// Whatever is under way when Close comes, it ends well or with ErrClosed.
func TestCloseWhileBusy(t *testing.T) {
	for range 200 {
		ix := open(t)
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				p := newPrompt(uint64(w), 16, 2)
				for {
					err := ix.Ingest(fmt.Sprint(w), fmt.Sprint(w), payload(1, 0, p.stored(0, 2)))
					if err == nil {
						err = ix.ScoreRequest(ctx, &kvindex.Request{Model: fmt.Sprint(w), Tokens: p.tokens}, new(kvindex.Answer))
					}
					if errors.Is(err, kvindex.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		ix.Close()
		wg.Wait()
	}
}

func TestClose(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 2)
	ingest(t, ix, "a", p.stored(0, 2))
	for range 2 {
		if err := ix.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, scoreErr := ix.Score(ctx, "x", "m", nil)
	_, messageErr := ix.IngestMessage(message("s", 0, 1, 0))
	for name, err := range map[string]error{
		"Score":         scoreErr,
		"ScoreRequest":  ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.tokens}, new(kvindex.Answer)),
		"Ingest":        ix.Ingest("a", "m", payload(1, 0)),
		"IngestMessage": messageErr,
		"ApplyBatch":    ix.ApplyBatch("a", "m", new(events.Batch)),
		"MarkLost":      ix.MarkLost("a", 0),
		"RemovePod":     ix.RemovePod("a"),
	} {
		if !errors.Is(err, kvindex.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := ix.Pods(nil); len(got) != 0 {
		t.Errorf("Pods: %+v", got)
	}
	if n := ix.Stats(); n.Messages != 1 || n.Blocks.Of(kvindex.TierGPU) != 0 {
		t.Errorf("Stats: %+v", n)
	}
}

// TestConcurrent has everything at once, with readers that know what can never
// be seen.
func TestConcurrent(t *testing.T) {
	ix := open(t)
	p := newPrompt(1, 16, 32)
	ingest(t, ix, "steady", p.stored(0, 32))
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			pod := fmt.Sprint("w", w)
			for i := range 300 {
				n := 1 + i%31
				ingest(t, ix, pod, p.stored(0, n))
				m := message("s", uint64(i/2), float64(i), 1, p.stored(0, n))
				m.Pod = pod
				if _, err := ix.IngestMessage(m); err != nil {
					t.Error(err)
				}
				switch i % 7 {
				case 0:
					ingest(t, ix, pod, fakeengine.Cleared{})
				case 1:
					if err := ix.RemovePod(pod); err != nil {
						t.Error(err)
					}
				}
				ix.Pods(nil)
				ix.Stats()
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			var a kvindex.Answer
			for range 500 {
				if err := ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.tokens}, &a); err != nil {
					t.Error(err)
				}
				if i := slices.IndexFunc(a.Pods, func(s kvindex.PodScore) bool { return s.Pod == "steady" }); i < 0 || a.Pods[i].MatchedBlocks != 32 {
					t.Errorf("the steady pod: %+v", a.Pods)
				}
			}
		})
	}
	wg.Wait()
}
