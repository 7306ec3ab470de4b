package bench_test

import (
	"context"
	"flag"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/bench"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashunit"
	"github.com/kvindex/kvindex/internal/inmemory"
)

var allKept = flag.Bool("kept", false, "TestKept takes all traces and budgets")

// TestKept replays traces with 8 engines of 65,536 blocks. It shows which share of the hits remains
// if the index has only a part of the memory that it would take, and for models with room for the
// same part of the blocks. A block has as many units as in production.
func TestKept(t *testing.T) {
	percents, names := []int{20}, []string{"synthetic_512"}
	if !testing.Short() {
		names = append(names, "conversation_512")
	}
	if *allKept {
		percents, names = []int{10, 20, 50}, append(names, "agentic_64")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			k := newKept(t, load(t, name, 0))
			for _, percent := range percents {
				k.budget(percent)
			}
			k.play()
			for _, b := range k.budgets {
				k.judge(b)
			}
		})
	}
}

const keptPods = 8

// retention replays a trace twice: the first time to count blocks and uses.
type retention struct {
	*testing.T
	trace   *bench.Trace
	uses    bench.Uses
	hits    int   // blocks of prompts at the pods that served them
	blocks  int   // maximum at a time
	bytes   int64 // maximum of the index
	budgets []*budget
}

// budget is a part of the memory, and the remaining hits.
type budget struct {
	percent     int
	bytes, most int64 // allowed for the index, and used by it
	index       *keptIndex
	hits        int
	models      []*bench.BoundedModel // by bench.Order
	modelHits   []int
}

func (k *retention) each(do func(*bench.Op)) { bench.Play(k.trace, keptPods, 65_536, 1, do) }

func newKept(t *testing.T, trace *bench.Trace) *retention {
	k := &retention{T: t, trace: trace}
	ix := newKeptIndex(t, trace.BlockTokens, 0)
	all := bench.NewBoundedModel(math.MaxInt, bench.OldestUse, nil)
	runs := make([]int32, keptPods)
	k.each(func(op *bench.Op) {
		all.Do(op)
		k.blocks = max(k.blocks, all.Len())
		if op.Kind != bench.OpScore {
			ix.apply(op)
			return
		}
		k.uses.Add(op)
		k.hits += int(op.Runs[op.Pod])
		k.bytes = max(k.bytes, ix.bytes())
		if ix.score(ix.keys(op), runs); !slices.Equal(runs, op.Runs) {
			t.Fatalf("request %d: runs %v, want %v", op.Request, runs, op.Runs)
		}
	})
	t.Logf("%d requests, %d hits; at most %d blocks in %d bytes", len(trace.Requests), k.hits, k.blocks, k.bytes)
	return k
}

func (k *retention) budget(percent int) {
	b := &budget{percent: percent, bytes: k.bytes * int64(percent) / 100, modelHits: make([]int, 2)}
	b.index = newKeptIndex(k, k.trace.BlockTokens, b.bytes)
	for order := range bench.FarthestNext + 1 {
		b.models = append(b.models, bench.NewBoundedModel(k.blocks*percent/100, order, &k.uses))
	}
	k.budgets = append(k.budgets, b)
}

func (k *retention) play() {
	runs := make([]int32, keptPods)
	k.each(func(op *bench.Op) {
		var keys []index.Key
		for _, b := range k.budgets {
			for i, m := range b.models {
				b.modelHits[i] += m.Do(op)
			}
			if op.Kind != bench.OpScore {
				b.index.apply(op)
				continue
			}
			if keys == nil {
				keys = b.index.keys(op)
			}
			b.most = max(b.most, b.index.bytes())
			b.index.score(keys, runs)
			b.hits += int(runs[op.Pod])
			for pod, run := range runs {
				if run > op.Runs[pod] {
					k.Fatalf("request %d: pod %d has a run of %d, and %d in its engine", op.Request, pod, run, op.Runs[pod])
				}
			}
		}
	})
}

func (k *retention) judge(b *budget) {
	share := func(hits int) float64 { return 100 * float64(hits) / float64(k.hits) }
	ours, lru := share(b.hits), share(b.modelHits[bench.OldestUse])
	k.Logf("%d %% (%d blocks, %d bytes): index %.1f %% in %d bytes; LRU %.1f, optimum %.1f",
		b.percent, k.blocks*b.percent/100, b.bytes, ours, b.most, lru, share(b.modelHits[bench.FarthestNext]))
	if b.most > b.bytes {
		k.Errorf("%d bytes taken, %d allowed", b.most, b.bytes)
	}
	if ours < lru-2 {
		k.Errorf("%.1f %% kept, LRU %.1f", ours, lru)
	}
}

// keptIndex is an index of blocks of several units.
type keptIndex struct {
	testing.TB
	inmemory.Memory
	blockTokens int
	variant     index.Variant
	locals      []index.Local
	query       index.Query
	matches     index.Matches
	asked       []index.Key
}

func newKeptIndex(tb testing.TB, blockTokens int, bytes int64) *keptIndex {
	m, err := inmemory.New(index.MemoryConfig{Bytes: bytes})
	must(tb, err)
	ix := &keptIndex{TB: tb, Memory: m, blockTokens: blockTokens, variant: index.Variant{Unit: hashunit.Of(blockTokens)}}
	ix.query = index.Query{
		Candidates: index.NewCandidates("m", bench.PodNames(keptPods)),
		Keys:       func(index.Variant) ([]index.Key, error) { return ix.asked, nil },
	}
	return ix
}

// units appends the locals of a block, computed from its hash.
func (ix *keptIndex) units(dst []index.Local, h index.Hash) []index.Local {
	for i := range ix.blockTokens / ix.variant.Unit {
		dst = append(dst, index.Local(h)+index.Local(i))
	}
	return dst
}

func (ix *keptIndex) keys(op *bench.Op) (keys []index.Key) {
	var key index.Key
	for _, k := range op.Keys {
		ix.locals = ix.units(ix.locals[:0], bench.HashOf(k))
		for _, l := range ix.locals {
			key = index.Chain(key, l)
			keys = append(keys, key)
		}
	}
	return keys
}

func (ix *keptIndex) apply(op *bench.Op) {
	c := index.Change{Op: index.OpRemove, Hashes: op.Hashes}
	if op.Kind == bench.OpStore {
		ix.locals = ix.locals[:0]
		for _, h := range op.Store.Hashes {
			ix.locals = ix.units(ix.locals, h)
		}
		c = index.Change{Op: index.OpStore, Copies: index.CopiesGuarded, Hashes: op.Store.Hashes,
			Variant: ix.variant, BlockSize: ix.blockTokens, Locals: ix.locals,
			HasParent: op.Store.HasParent, Parent: op.Store.Parent}
	}
	source := index.Source{Pod: ix.query.Candidates.Pods()[op.Pod], Model: "m"}
	if _, err := ix.Apply(context.Background(), source, index.Cursor{}, []index.Change{c}); err != nil {
		ix.Fatal(err)
	}
}

func (ix *keptIndex) score(keys []index.Key, runs []int32) {
	clear(runs)
	ix.asked = keys
	if err := ix.Match(context.Background(), &ix.query, &ix.matches); err != nil {
		ix.Fatal(err)
	}
	for i := range ix.matches.Rows {
		runs[ix.matches.Rows[i].Pod] = ix.matches.Rows[i].Run
	}
}

func (ix *keptIndex) bytes() int64 { return ix.MemoryUsage().Total }

// TestBounded compares the models with a plain one.
func TestBounded(t *testing.T) {
	forgotten, hits := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		trace := &bench.Trace{BlockTokens: 64}
		for at := range 150 {
			q := bench.Request{At: int64(at) * 300, Output: r.IntN(200)}
			name := uint64(0)
			for range 1 + r.IntN(12) {
				name = name*3 + 1 + uint64(r.IntN(5)/2) // a tree, mostly its first branch
				q.Blocks = append(q.Blocks, name)
			}
			q.Input = 64 * len(q.Blocks)
			trace.Requests = append(trace.Requests, q)
		}
		engineBlocks := 24 + r.IntN(40)
		each := func(do func(*bench.Op)) { bench.Play(trace, 3, engineBlocks, seed, do) }
		p := &plain{room: 5 + r.IntN(40)}
		var uses bench.Uses
		each(func(op *bench.Op) {
			if op.Kind == bench.OpScore {
				p.asked = append(p.asked, op.Keys)
				uses.Add(op)
			}
		})
		for p.order = range bench.FarthestNext + 1 {
			p.held = make(map[index.Key]*plainBlock)
			fast := bench.NewBoundedModel(p.room, p.order, &uses)
			n := 0
			each(func(op *bench.Op) {
				got, want := fast.Do(op), p.do(op)
				if got != want || fast.Len() != len(p.held) {
					t.Fatalf("seed %d, order %d, operation %d (%+v): run of %d, %d blocks, want %d and %d",
						seed, p.order, n, *op, got, fast.Len(), want, len(p.held))
				}
				n++
				hits += want
			})
		}
		forgotten += p.forgotten
	}
	t.Logf("%d hits, %d blocks forgotten", hits, forgotten)
	if hits < 20_000 || forgotten < 20_000 {
		t.Error("too few")
	}
}

// plain is a plain model of bench.BoundedModel: a use of a block is a use of all blocks before it, and
// an eviction looks at all blocks.
type plain struct {
	room      int
	order     bench.Order
	asked     [][]index.Key // by request
	keys      map[index.Hash]index.Key
	held      map[index.Key]*plainBlock
	now       int
	forgotten int
}

type plainBlock struct {
	before index.Key // 0: the first block
	pods   map[int]bool
	at     int
}

func (p *plain) do(op *bench.Op) (run int) {
	p.now++
	switch op.Kind {
	case bench.OpScore:
		for _, k := range op.Keys {
			p.use(k, op)
		}
		for run < len(op.Keys) && p.held[op.Keys[run]] != nil && p.held[op.Keys[run]].pods[op.Pod] {
			run++
		}
	case bench.OpStore:
		p.store(op)
	case bench.OpRemove:
		for _, h := range op.Hashes {
			if b := p.held[p.keys[h]]; b != nil {
				if delete(b.pods, op.Pod); len(b.pods) == 0 {
					delete(p.held, p.keys[h])
				}
			}
		}
	}
	return run
}

func (p *plain) store(op *bench.Op) {
	key, before := op.Store.Root, index.Key(0)
	if op.Store.HasParent {
		before = p.keys[op.Store.Parent]
		key = before
	}
	if p.keys == nil {
		p.keys = make(map[index.Hash]index.Key)
	}
	known := before == 0 || p.held[before] != nil && p.held[before].pods[op.Pod]
	for i, h := range op.Store.Hashes {
		key = index.Chain(key, op.Store.Locals[i])
		p.keys[h] = key
		if !known {
			continue
		}
		if p.held[key] == nil {
			p.held[key] = &plainBlock{before: before, pods: make(map[int]bool)}
		}
		p.held[key].pods[op.Pod] = true
		p.use(key, op)
		before = key
	}
	for len(p.held) > p.room {
		p.forget()
	}
}

// use records the use of a block that is there, and of those before it.
func (p *plain) use(k index.Key, op *bench.Op) {
	for b := p.held[k]; b != nil; b = p.held[b.before] {
		if p.order == bench.FarthestNext {
			b.at = max(b.at, op.Request)
		} else {
			b.at = p.now
		}
	}
}

func (p *plain) forget() {
	leaves := maps.Clone(p.held)
	for _, b := range p.held {
		delete(leaves, b.before)
	}
	var first index.Key
	var rank [2]int
	for k, b := range leaves {
		of := [2]int{b.at, b.at}
		if p.order == bench.FarthestNext {
			of[0] = -p.next(b.at, k)
		}
		if first == 0 || slices.Compare(of[:], rank[:]) < 0 {
			first, rank = k, of
		}
	}
	delete(p.held, first)
	p.forgotten++
}

// next is the first later request with a block.
func (p *plain) next(after int, k index.Key) int {
	for i := after + 1; i < len(p.asked); i++ {
		if slices.Contains(p.asked[i], k) {
			return i
		}
	}
	return math.MaxInt32
}
