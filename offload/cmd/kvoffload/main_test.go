package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/offload"
)

var whole = flag.Bool("offload.traces", false, "long form: whole traces of KVINDEX_TESTDATA")

// made returns a trace of conversations with a common beginning, in both forms.
func made(r *rand.Rand, requests int) (ids, runs string) {
	last := make([][]int, 8)
	next := 10
	for range requests {
		c := r.IntN(len(last))
		if len(last[c]) == 0 || r.IntN(20) == 0 {
			last[c] = []int{0, 1, 2}
		}
		last[c] = last[c][:3+r.IntN(len(last[c])-2)]
		for range r.IntN(6) {
			last[c] = append(last[c], next)
			next++
		}
		ids += fmt.Sprintf(`{"timestamp":1,"hash_ids":%s}`+"\n", strings.ReplaceAll(fmt.Sprint(last[c]), " ", ","))
		runs += `{"runs":[`
		for i, id := range last[c] {
			runs += fmt.Sprintf("%s[%d,1]", map[bool]string{true: ",", false: ""}[i > 0], id)
		}
		runs += "]}\n"
	}
	return ids, runs
}

// plainOptimum evicts by Belady's rule on sets, request by request.
func plainOptimum(tr *trace, room int) (hits int) {
	var prompts [][]uint32
	for _, q := range tr.requests {
		prompts = append(prompts, list(nil, q))
	}
	next := func(t int, b uint32) (request, depth int) {
		for later := t + 1; later < len(prompts); later++ {
			if i := slices.Index(prompts[later], b); i >= 0 {
				return later, i
			}
		}
		return len(prompts), 0
	}
	held := make(map[uint32]bool)
	for t, p := range prompts {
		for i := 0; i < len(p) && held[p[i]]; i++ {
			hits++
		}
		for _, b := range p {
			held[b] = true
		}
		for len(held) > room {
			worst, at, deep := uint32(0), -1, -1
			for b := range held {
				if r, d := next(t, b); r > at || r == at && d > deep {
					worst, at, deep = b, r, d
				}
			}
			delete(held, worst)
		}
	}
	return hits
}

// best tries all sets of blocks to keep.
func best(prompts [][]uint32, held map[uint32]bool, room int) int {
	if len(prompts) == 0 {
		return 0
	}
	hits, all := 0, []uint32{}
	for ; hits < len(prompts[0]) && held[prompts[0][hits]]; hits++ {
	}
	all = append(all, prompts[0]...)
	for b := range held {
		if !slices.Contains(all, b) {
			all = append(all, b)
		}
	}
	most := 0
	for set := range 1 << len(all) {
		stay := make(map[uint32]bool)
		for i, b := range all {
			if set>>i&1 == 1 {
				stay[b] = true
			}
		}
		if len(stay) == min(room, len(all)) {
			most = max(most, best(prompts[1:], stay, room))
		}
	}
	return hits + most
}

func TestOptimum(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		ids, runs := made(r, 60)
		a, err := read(strings.NewReader(ids), 0)
		must(t, err)
		b, err := read(strings.NewReader(runs), 0)
		if err != nil || a.blocks != b.blocks || a.touched != b.touched {
			t.Fatal(a.blocks, b.blocks, err)
		}
		for _, room := range []int{1, 5, 20, 60} {
			if got, want := b.optimum(room), plainOptimum(a, room); got != want {
				t.Errorf("seed %d, room for %d: %d, want %d", seed, room, got, want)
			}
		}
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 5))
		var prompts [][]uint32
		tr := &trace{end: 20}
		for range 5 {
			p := []uint32{0, 1 + uint32(r.IntN(2)), 0}
			p[2] = 3 + 2*p[1] + uint32(r.IntN(2)) // a tree
			p = p[:1+r.IntN(3)]
			prompts = append(prompts, p)
			var q []numbers
			for _, b := range p {
				q = append(q, numbers{b, 1})
			}
			tr.requests = append(tr.requests, q)
		}
		for room := 1; room < 5; room++ {
			if got, want := tr.optimum(room), best(prompts, nil, room); got != want {
				t.Errorf("seed %d, room for %d: %d of %v, the best is %d", seed, room, got, prompts, want)
			}
		}
	}
}

var line = regexp.MustCompile(`^policy=(lru|fifo|s3fifo) share=0\.\d+ blocks=\d+ requests=\d+ prefix_hit=(0\.\d{4}) optimum=(0\.\d{4}) wrong_bytes=0$`)

// replayed runs the command and checks its lines.
func replayed(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(append([]string{"replay"}, args...), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != want {
		t.Errorf("%d lines, want %d", len(lines), want)
	}
	for _, l := range lines {
		if m := line.FindStringSubmatch(l); m == nil || m[2] > m[3] {
			t.Errorf("%q", l)
		}
	}
	return out.String()
}

func TestReplayAndVerify(t *testing.T) {
	ids, _ := made(rand.New(rand.NewPCG(1, 1)), 300)
	name, dir := filepath.Join(t.TempDir(), "trace.jsonl.gz"), t.TempDir()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	fmt.Fprint(w, ids)
	w.Close()
	if err := os.WriteFile(name, z.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	replayed(t, 6, "-trace", name, "-policy", "lru,fifo,s3fifo", "-share", "0.05,0.2", "-dir", dir)
	var out bytes.Buffer
	tr, _ := load(name, 0)
	if err := run([]string{"verify", dir}, &out); err != nil || out.String() != fmt.Sprintf("right=%d absent=0 corrupt=0\n", tr.blocks) {
		t.Errorf("%q, %v", out.String(), err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.seg"))
	b, err := os.ReadFile(files[0])
	must(t, err)
	b[64+100] ^= 1 // in the first body
	if err := os.WriteFile(files[0], b, 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := run([]string{"verify", dir}, &out); err == nil || out.String() != fmt.Sprintf("right=%d absent=0 corrupt=1\n", tr.blocks-1) {
		t.Errorf("%q, %v", out.String(), err)
	}
	for _, args := range [][]string{
		{}, {"repair"}, {"verify"}, {"verify", filepath.Join(dir, "none")}, {"replay"}, {"replay", "-trace", "none"},
		{"replay", "-trace", name, "-share", "1.5"}, {"replay", "-trace", name, "-policy", "mru"}, {"replay", "-trace", name, "-block-bytes", "7"},
	} {
		if err := run(args, &out); err == nil {
			t.Errorf("no error of %q", args)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	t.Setenv("HOME", "/home/a")
	t.Setenv("AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND", "ROCKSDB")
	t.Setenv("AIBRIX_KV_CACHE_OL_PRISKV_PASSWORD", "secret")
	const want = `note: AIBRIX_KV_CACHE_OL_PRISKV_PASSWORD: nothing: the backend is not served
memory_bytes=10737418240 policy=s3fifo small_share=0.3 promote_at=1 block_tokens=0 chunk_tokens=512 max_tokens=0
dir=/home/a/.kv_cache_ol/rocksdb/aibrix ingest=hot max_in_flight=0 min_missing=4 min_missing_part=0.1 per_token=20ms
`
	var out bytes.Buffer
	if err := run([]string{"settings"}, &out); err != nil || out.String() != want {
		t.Errorf("%s, %v", out.String(), err)
	}
	t.Setenv("AIBRIX_KV_CACHE_OL_DEVICE", "cuda")
	if err := run([]string{"settings"}, &out); err == nil || !strings.Contains(err.Error(), "AIBRIX_KV_CACHE_OL_DEVICE") {
		t.Error(err)
	}
}

// TestTraces replays recorded traces, in the short form only their beginnings. The default policy
// has the highest mean of prefixes found, and no policy that touches and stores chains from the
// first block on has as high a mean.
func TestTraces(t *testing.T) {
	data := os.Getenv("KVINDEX_TESTDATA")
	if data == "" {
		t.Skip("KVINDEX_TESTDATA names no recorded traces")
	}
	found := regexp.MustCompile(`policy=(\w+) .* prefix_hit=(\S+)`)
	means := make(map[string]float64)
	for name, n := range map[string]int{"conversation_512": 2000, "synthetic_512": 1000, "agentic_64": 100} {
		if *whole {
			n = 0
		}
		name = filepath.Join(data, "traces", name+".jsonl.gz")
		out := replayed(t, 9, "-trace", name, "-requests", strconv.Itoa(n), "-policy", "lru,fifo,s3fifo")
		t.Logf("%s:\n%s", filepath.Base(name), out)
		for _, m := range found.FindAllStringSubmatch(out, -1) {
			hit, err := strconv.ParseFloat(m[2], 64)
			must(t, err)
			means[m[1]] += hit / 9
		}
		tr, err := load(name, n)
		must(t, err)
		for _, policy := range []offload.Policy{offload.LRU, offload.FIFO, offload.S3FIFO} {
			for _, share := range []float64{0.01, 0.05, 0.2} {
				means[string(policy)+" forwards"] += tr.forwards(t, policy, share) / 9
			}
		}
	}
	t.Log(means)
	for name, mean := range means {
		if name != string(offload.DefaultPolicy) && mean >= means[string(offload.DefaultPolicy)] {
			t.Errorf("%s finds %v, and the default %v", name, mean, means[string(offload.DefaultPolicy)])
		}
	}
}

// forwards returns the share of blocks found in prefixes if each block is its own chain, so that
// the blocks of a prompt are touched and stored from the first on.
func (tr *trace) forwards(t *testing.T, policy offload.Policy, share float64) float64 {
	const size = 8
	s, err := offload.Open(offload.Config{
		Space:       offload.Space{BlockTokens: 1, BlockBytes: size, Ranks: 1},
		MemoryBytes: max(int64(share*float64(tr.blocks)), 1) * size, Policy: policy,
	})
	must(t, err)
	defer s.Close()
	ctx, block, hits := context.Background(), [][]byte{make([]byte, size)}, 0
	for _, q := range tr.requests {
		there := true
		for _, b := range list(nil, q) {
			k := []offload.Key{key(b)}
			if there {
				n, err := s.Read(ctx, k, block)
				must(t, err)
				there = n == 1
				hits += n
			}
			if !there {
				if _, err := s.Write(ctx, nil, k, block); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return float64(hits) / float64(tr.touched)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"hash_ids":[0,1,2]}` + "\n" + `{"runs":[[3,4]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 && b[0] == 0x1f {
			return // an archive can have any length
		}
		tr, err := read(bytes.NewReader(b), 10)
		if err == nil && (tr.touched == 0 || tr.blocks > tr.touched) {
			t.Errorf("%d blocks of %d", tr.blocks, tr.touched)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
