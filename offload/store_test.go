package offload_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
)

var seeds = flag.Int("offload.seeds", 24, "long form: random histories of a store, 10000")

var ctx = context.Background()

func space(blockBytes int) offload.Space {
	return offload.Space{Model: "m", DType: "bf16", Layout: "nhd", HashAlgo: "sha256", BlockTokens: 16, BlockBytes: blockBytes, Ranks: 1}
}

var chains = sync.OnceValue(func() (all [12][]offload.Key) {
	for branch := range all {
		tokens := make([]uint32, 16*80)
		for i := 16 * 4; i < len(tokens); i++ {
			tokens[i] = uint32(branch) + 1
		}
		all[branch] = offload.Keys(offload.Key{}, 16, tokens)
	}
	return all
})

// chain returns the keys of one of 12 prompts that share their first 4 blocks.
func chain(branch, n int) []offload.Key { return chains()[branch][:n] }

// fill makes the bytes of a block from its space and key.
func fill(b []byte, id offload.SpaceID, k offload.Key) {
	for i := range b {
		b[i] = k[i%len(k)] ^ id[i%len(id)] ^ byte(i/len(k))
	}
}

func content(sp offload.Space, k offload.Key) []byte {
	b := make([]byte, sp.BlockBytes)
	fill(b, sp.ID(), k)
	return b
}

func contents(sp offload.Space, keys []offload.Key) (bs [][]byte) {
	for _, k := range keys {
		bs = append(bs, content(sp, k))
	}
	return bs
}

// TestStoreAgainstPlain compares a store with its model, step by step: resident blocks, results,
// bytes, and counters.
func TestStoreAgainstPlain(t *testing.T) {
	for _, policy := range []offload.Policy{offload.LRU, offload.FIFO, offload.S3FIFO} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			sum := make(map[string]uint64)
			for seed := range *seeds {
				history(t, policy, uint64(seed), sum)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			least := map[string]uint64{"evicted": 100, "refused": 10, "metPinned": 100, "holes": 10, "hits": 1000, "misses": 1000, "busy": 10, "deleted in a lease": 5}
			if policy == offload.S3FIFO {
				maps.Copy(least, map[string]uint64{
					"promoted": 5, "reinserted": 5, "ghostHits": 50, "ghosts are full": 1, "used four times": 5,
					"evicted of small": 50, "evicted of main": 5, "pinned in small": 50, "pinned in main": 5, "pinned all of small": 1, "pinned all of main": 1,
				})
			}
			for name, n := range least {
				if sum[name] < n*uint64(*seeds) {
					t.Errorf("%s: %d in %d histories, at least %d each", name, sum[name], *seeds, n)
				}
			}
			t.Log(sum)
		})
	}
}

func history(t *testing.T, policy offload.Policy, seed uint64, sum map[string]uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	cfg := offload.Config{Space: space(8 + r.IntN(40)), Policy: policy, SmallShare: []float64{0.1, 0.3}[r.IntN(2)], PromoteAt: 1 + r.IntN(3)}
	cfg.MemoryBytes = int64((20 + r.IntN(60)) * cfg.Space.BlockBytes)
	cfg.SlabBytes = cfg.Space.BlockBytes * (1 + r.IntN(30))
	s, err := offload.Open(cfg)
	must(t, err)
	p := newPlain(cfg)

	type heldLease struct {
		l    *offload.Lease
		bs   []*plainBlock
		keys []offload.Key // nil: from Alloc
	}
	var leases []heldLease
	for step := range 2000 {
		c := chain(r.IntN(12), 1+r.IntN(24))
		from := r.IntN(len(c) + 1)
		switch op := r.IntN(20); {
		case op < 5:
			want := len(p.prefix(c))
			if n, all, err := s.Lookup(ctx, c); n != want || all != want || err != nil {
				t.Fatalf("step %d: Lookup: %d, %v; want %d", step, n, err, want)
			}
			for _, k := range c[want:] {
				if p.blocks[k] != nil {
					sum["holes"]++
					break
				}
			}
			bs := p.acquire(c)
			l, err := s.Acquire(ctx, c)
			if l.Len() != len(bs) || err != nil {
				t.Fatalf("step %d: Acquire: %d, %v; want %d", step, l.Len(), err, len(bs))
			}
			leases = append(leases, heldLease{l, bs, c})
		case op < 8:
			dst := make([][]byte, r.IntN(len(c)+3))
			for i := range dst {
				dst[i] = make([]byte, cfg.Space.BlockBytes)
			}
			bs := p.acquire(c[:min(len(c), len(dst))])
			n, err := s.Read(ctx, c, dst)
			if n != len(bs) || err != nil {
				t.Fatalf("step %d: Read: %d, %v; want %d", step, n, err, len(bs))
			}
			p.release(bs)
			for i := range n {
				if !bytes.Equal(dst[i], content(cfg.Space, c[i])) {
					t.Fatalf("step %d: Read: block %d has other bytes", step, i)
				}
			}
		case op < 13:
			want := p.write(c[:from], c[from:])
			n, err := s.Write(ctx, c[:from], c[from:], contents(cfg.Space, c[from:]))
			if n != want || (err == nil) != (n == len(c)-from) || err != nil && !errors.Is(err, offload.ErrNoMemory) {
				t.Fatalf("step %d: Write: %d, %v; want %d of %d", step, n, err, want, len(c)-from)
			}
			if err != nil {
				sum["busy"]++
			}
		case op < 14:
			n := r.IntN(12)
			bs := p.alloc(n)
			l, err := s.Alloc(ctx, n)
			if l.Len() != len(bs) || (err == nil) != (len(bs) == n) {
				t.Fatalf("step %d: Alloc: %d, %v; want %d of %d", step, l.Len(), err, len(bs), n)
			}
			leases = append(leases, heldLease{l: l, bs: bs})
		case op < 15:
			if b := p.blocks[c[from%len(c)]]; b != nil && b.refs > 0 {
				sum["deleted in a lease"]++
			}
			p.delete(c[from%len(c)])
			if err := s.Delete(ctx, c[from%len(c)]); err != nil {
				t.Fatal(err)
			}
		case len(leases) > 0:
			at := r.IntN(len(leases))
			h := leases[at]
			if h.keys == nil && r.IntN(3) > 0 {
				keys := chain(r.IntN(12), 24)
				keys = keys[r.IntN(len(keys)-len(h.bs)+1):][:len(h.bs)]
				for i, k := range keys {
					copy(h.l.Block(i), content(cfg.Space, k))
				}
				p.commit(nil, keys, h.bs)
				if n, err := s.Commit(ctx, nil, keys, h.l); n != len(keys) || err != nil {
					t.Fatalf("step %d: Commit: %d, %v", step, n, err)
				}
			}
			for i, k := range h.keys[:min(len(h.keys), h.l.Len())] {
				if !bytes.Equal(h.l.Block(i), content(cfg.Space, k)) {
					t.Fatalf("step %d: a lease's block %d has other bytes", step, i)
				}
			}
			if n := len(h.bs); n > 0 && r.IntN(3) == 0 && h.keys != nil {
				h.l.Truncate(n / 2)
				p.release(h.bs[n/2:])
				leases[at].bs = h.bs[:n/2]
				break
			}
			h.l.Release()
			p.release(h.bs)
			leases = slices.Delete(leases, at, at+1)
		}
		keys, ghosts := s.Resident()
		if len(keys) != len(p.blocks) || ghosts > int(cfg.MemoryBytes)/cfg.Space.BlockBytes {
			t.Fatalf("step %d: %d blocks, want %d; %d ghosts", step, len(keys), len(p.blocks), ghosts)
		}
		for k := range p.blocks {
			if !keys[k] {
				t.Fatalf("step %d: %x is not there", step, k)
			}
		}
	}
	for _, h := range leases {
		h.l.Release()
		h.l.Release()
	}
	got := s.Counts()
	for name, n := range got {
		if p.count[name] != n {
			t.Errorf("%s: %d, want %d", name, n, p.count[name])
		}
	}
	for name, n := range p.count {
		sum[name] += n
	}
	if st := s.Stats(); st.Leased != 0 {
		t.Errorf("%d references are leaked", st.Leased)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStoreConcurrently has concurrent writers, readers and deleters. Each block of a lease or a
// read has the bytes of its key.
func TestStoreConcurrently(t *testing.T) {
	for _, policy := range []offload.Policy{offload.LRU, offload.FIFO, offload.S3FIFO} {
		cfg := offload.Config{Space: space(64), Policy: policy, MemoryBytes: 64 * 100, SlabBytes: 64 * 7}
		s, err := offload.Open(cfg)
		must(t, err)
		var wg sync.WaitGroup
		for worker := range 6 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(worker), 7))
				for range 400 {
					c := chain(r.IntN(12), 1+r.IntN(24))
					switch r.IntN(5) {
					case 0:
						if _, err := s.Write(ctx, nil, c, contents(cfg.Space, c)); err != nil && !errors.Is(err, offload.ErrNoMemory) {
							t.Error(err)
						}
					case 1:
						l, _ := s.Alloc(ctx, len(c))
						for i := range l.Len() {
							copy(l.Block(i), content(cfg.Space, c[i]))
						}
						if n, err := s.Commit(ctx, nil, c[:l.Len()], l); n > len(c) || err != nil {
							t.Error(n, err)
						}
					case 2:
						if err := s.Delete(ctx, c[len(c)-1]); err != nil {
							t.Error(err)
						}
					default:
						l, err := s.Acquire(ctx, c)
						for i := range l.Len() {
							if !bytes.Equal(l.Block(i), content(cfg.Space, c[i])) || err != nil {
								t.Errorf("block %d has other bytes; %v", i, err)
							}
						}
						l.Release()
					}
				}
			})
		}
		wg.Wait()
		if st := s.Stats(); st.Leased != 0 || st.Hits == 0 || st.Evicted == 0 || st.Blocks > st.Capacity {
			t.Errorf("%s: %+v", policy, st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClosed: a lease outlives its store.
func TestClosed(t *testing.T) {
	cfg := offload.Config{Space: space(64), MemoryBytes: 640}
	s, err := offload.Open(cfg)
	must(t, err)
	c := chain(1, 6)
	if n, err := s.Write(ctx, nil, c, contents(cfg.Space, c)); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	l, _ := s.Acquire(ctx, c)
	fresh, _ := s.Alloc(ctx, 2)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(l.Block(5), content(cfg.Space, c[5])) {
		t.Error("a block of a lease went with its store")
	}
	_, _, errs := s.Lookup(ctx, c)
	empty, err := s.Acquire(ctx, c)
	_, err2 := s.Write(ctx, nil, c, contents(cfg.Space, c))
	_, err3 := s.Commit(ctx, nil, c[:2], fresh)
	for i, err := range []error{errs, err, err2, err3, s.Delete(ctx, c...)} {
		if !errors.Is(err, offload.ErrClosed) {
			t.Errorf("%d: %v after Close", i, err)
		}
	}
	empty.Release()
	l.Release()
	if st := s.Stats(); st.Leased != 0 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
}

// TestMisuse has each error of a caller.
func TestMisuse(t *testing.T) {
	cfg := offload.Config{Space: space(64), MemoryBytes: 64 * 40, MaxTokens: 16 * 5}
	s, _ := offload.Open(cfg)
	defer s.Close()
	c := chain(1, 8)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Read(ctx, c, [][]byte{make([]byte, 64), make([]byte, 63)}); !errors.Is(err, offload.ErrMisaligned) {
		t.Error(err)
	}
	if _, err := s.Write(ctx, nil, c, contents(cfg.Space, c[:3])); !errors.Is(err, offload.ErrMisaligned) {
		t.Error(err)
	}
	if n, err := s.Write(ctx, c[:3], c[3:], contents(cfg.Space, c[3:])); n != 2 || !errors.Is(err, offload.ErrTooLong) {
		t.Error(n, err)
	}
	if n, err := s.Write(ctx, c[:6], c[6:], contents(cfg.Space, c[6:])); n != 0 || !errors.Is(err, offload.ErrTooLong) {
		t.Error(n, err)
	}
	if _, _, err := s.Lookup(over, c); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	l, _ := s.Alloc(ctx, 2)
	if _, err := s.Commit(ctx, nil, c[:1], l); !errors.Is(err, offload.ErrMisaligned) || l.Len() != 0 {
		t.Error(err, l.Len())
	}
	got, _ := s.Acquire(ctx, c[3:5])
	if n, err := s.Commit(ctx, nil, c[:2], got); n != 0 || err == nil {
		t.Error("blocks of Acquire were committed:", n, err)
	}
	if st := s.Stats(); st.Leased != 0 || st.Blocks != 2 {
		t.Errorf("%+v", st)
	}
	for _, change := range []func(*offload.Config){
		func(c *offload.Config) { c.MemoryBytes = 63 },
		func(c *offload.Config) { c.Policy = "mru" },
		func(c *offload.Config) { c.SlabBytes = -1 },
		func(c *offload.Config) { c.SmallShare = 1 },
		func(c *offload.Config) { c.PromoteAt = 4 },
		func(c *offload.Config) { c.MaxTokens = -1 },
		func(c *offload.Config) { c.Space.BlockTokens = 0 },
		func(c *offload.Config) { c.Space.BlockBytes = 0 },
		func(c *offload.Config) { c.Space.Rank = 1 },
		func(c *offload.Config) { c.Space.Group = -1 },
	} {
		cfg := cfg
		change(&cfg)
		if _, err := offload.Open(cfg); err == nil {
			t.Errorf("opened %+v", cfg)
		}
	}
}

// TestSpaces: only equal spaces have equal names.
func TestSpaces(t *testing.T) {
	sp := space(64)
	ids := map[offload.SpaceID]bool{sp.ID(): true}
	for _, change := range []func(*offload.Space){
		func(s *offload.Space) { s.Model, s.DType = "mb", "f16" },
		func(s *offload.Space) { s.DType = "fp8" },
		func(s *offload.Space) { s.Layout = "hnd" },
		func(s *offload.Space) { s.HashAlgo = "xxhash" },
		func(s *offload.Space) { s.BlockTokens = 32 },
		func(s *offload.Space) { s.BlockBytes = 128 },
		func(s *offload.Space) { s.Ranks = 2 },
		func(s *offload.Space) { s.Rank, s.Ranks = 1, 2 },
		func(s *offload.Space) { s.Group = 1 },
	} {
		other := sp
		change(&other)
		if ids[other.ID()] {
			t.Errorf("%+v has the name of another space", other)
		}
		ids[other.ID()] = true
	}
	if sp.ID() != space(64).ID() {
		t.Error("equal spaces have two names")
	}
}

// TestKeys: a key depends on the tokens before its block.
func TestKeys(t *testing.T) {
	tokens := make([]uint32, 50)
	for i := range tokens {
		tokens[i] = uint32(i % 16)
	}
	all := offload.Keys(offload.Key{}, 16, tokens)
	if len(all) != 3 || all[0] == all[1] || all[1] == all[2] {
		t.Errorf("%x", all)
	}
	if rest := offload.Keys(all[0], 16, tokens[16:]); !slices.Equal(rest, all[1:]) {
		t.Errorf("%x, want %x", rest, all[1:])
	}
	k, err := offload.KeyOf([]byte{1, 2, 3})
	if err != nil || k != (offload.Key{1, 2, 3}) {
		t.Error(k, err)
	}
	for _, n := range []int{0, 33} {
		if _, err := offload.KeyOf(make([]byte, n)); err == nil {
			t.Errorf("a hash of %d bytes is a key", n)
		}
	}
}

// TestOwnChain: Write and Acquire do not evict blocks of their own chain while there are others,
// even if these would be evicted later.
func TestOwnChain(t *testing.T) {
	sp, b, c := space(64), newTable(), chain(0, 3)
	b.Put(ctx, sp.ID(), c[:1], contents(sp, c[:1]))
	full := func() *offload.Store {
		s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 2, Policy: offload.LRU, Disk: offload.Disk{Backend: b, MinMissing: 1}})
		written(t, s, sp, nil, c[1:2])
		written(t, s, sp, nil, c[2:])
		return s
	}
	s := full()
	written(t, s, sp, nil, c[:2])
	if n := s.Stats().Evicted; n != 1 {
		t.Errorf("Write has evicted %d blocks", n)
	}
	closed(t, s)
	s = full()
	l, err := s.Acquire(ctx, c[:2])
	if l.Len() != 2 || err != nil {
		t.Errorf("Acquire: %d, %v", l.Len(), err)
	}
	l.Release()
	closed(t, s)
}

// TestChunks: every block is in one chunk, and Next is the following chunk.
func TestChunks(t *testing.T) {
	c := chain(1, 75)
	for tokens, n := range map[int]int{0: 32, 1: 4, 100: 6, 5000: 312, math.MaxInt: math.MaxInt} {
		sp := space(8)
		if tokens == math.MaxInt {
			sp.BlockTokens = 1
		}
		var all, ahead []offload.Key
		for chunk := range sp.Chunks(c, tokens) {
			if !slices.Equal(chunk.Prefix, all) || len(chunk.Keys) > n || len(chunk.Keys) < n && len(chunk.Next) > 0 {
				t.Errorf("%d tokens: a chunk of %d behind %d", tokens, len(chunk.Keys), len(chunk.Prefix))
			}
			if ahead != nil && !slices.Equal(ahead, chunk.Keys) {
				t.Errorf("%d tokens: the next chunk is another", tokens)
			}
			all, ahead = append(all, chunk.Keys...), chunk.Next
		}
		if !slices.Equal(all, c) || len(ahead) != 0 {
			t.Errorf("%d tokens: %d of %d blocks", tokens, len(all), len(c))
		}
	}
}

// TestTimes: an operation counts in the bucket of its time.
func TestTimes(t *testing.T) {
	var got offload.Times
	for _, took := range []time.Duration{0, 999, 1000, 3999, 4000, 1048575 * time.Microsecond, 1048576 * time.Microsecond, time.Hour} {
		got.Add(took)
	}
	want := offload.Times{N: 8, Sum: 9998 + 2097151*time.Microsecond + time.Hour, Below: [12]uint64{0: 2, 1: 2, 2: 1, 10: 1, 11: 2}}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s := opened(t, offload.Config{Space: space(40), MemoryBytes: 400})
	defer closed(t, s)
	if _, err := s.Read(ctx, chain(0, 3), nil); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Acquires.N != 1 {
		t.Errorf("%+v", st)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
