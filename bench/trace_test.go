package bench_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/bench"
)

// write writes a trace file and returns its folder.
func write(tb testing.TB, name, lines string) string {
	tb.Helper()
	folder := tb.TempDir()
	f, err := os.Create(filepath.Join(folder, name+".jsonl.gz"))
	must(tb, err)
	defer f.Close()
	z := gzip.NewWriter(f)
	if _, err := z.Write([]byte(lines)); err != nil {
		tb.Fatal(err)
	}
	must(tb, z.Close())
	return folder
}

func TestLoad(t *testing.T) {
	const shared = 1 << 40
	for _, c := range []struct {
		name, lines string
		limit       int
		want        []bench.Request
	}{
		{"conversation_512", `{"timestamp": 9, "input_length": 1100, "output_length": 5, "hash_ids": [4, 5, 6]}
{"timestamp": 3, "input_length": 1024, "output_length": 6, "hash_ids": [4, 5]}`, 0, []bench.Request{
			{At: 3, Input: 1024, Output: 6, Blocks: []uint64{4, 5}},
			{At: 9, Input: 1100, Output: 5, Blocks: []uint64{4, 5}},
		}},
		{"agentic_64", `{"conv":"a","timestamp":0,"input_length":400,"output_length":5,"system_tokens":130,"runs":[[11,3],[20,2]]}
{"conv":"a","timestamp":50,"input_length":300,"output_length":5,"system_tokens":130,"runs":[[30,1],[12,1]]}
{"conv":"b","timestamp":20,"input_length":300,"output_length":6,"system_tokens":70,"runs":[[40,2]]}`, 0, []bench.Request{
			{Input: 400, Output: 5, Blocks: []uint64{shared, shared + 1, 13, 20, 21}},
			{At: 20, Input: 300, Output: 6, Blocks: []uint64{shared, 41}},
			{At: 50, Input: 300, Output: 5, Blocks: []uint64{30, shared + 1}},
		}},
		{"agentic_64", strings.Repeat(`{"conv":"a","timestamp":7,"input_length":64,"output_length":5,"system_tokens":0,"runs":[[1,1]]}
{"conv":"b","timestamp":5,"input_length":64,"output_length":5,"system_tokens":0,"runs":[[2,1]]}
`, 17), 33, append(
			// 34 conversations in 32 sessions: the 33rd starts when the first one to end has ended.
			slices.Concat(
				slices.Repeat([]bench.Request{{At: 5, Input: 64, Output: 5, Blocks: []uint64{2}}}, 16),
				slices.Repeat([]bench.Request{{At: 7, Input: 64, Output: 5, Blocks: []uint64{1}}}, 16)),
			bench.Request{At: 11, Input: 64, Output: 5, Blocks: []uint64{2}},
		)},
	} {
		got, err := bench.Load(write(t, c.name, c.lines), c.name, c.limit)
		must(t, err)
		if len(got.Requests) != len(c.want) {
			t.Fatalf("%s: %d requests, want %d", c.name, len(got.Requests), len(c.want))
		}
		for i, q := range got.Requests {
			if fmt.Sprint(q) != fmt.Sprint(c.want[i]) {
				t.Errorf("%s: request %d: %v, want %v", c.name, i, q, c.want[i])
			}
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"nosuch", ``, `"nosuch"`},
		{"conversation_512", `{`, "line 1"},
		{"conversation_512", "{}\n" + `{"input_length": -5}`, "line 2: -5 and 0 tokens"},
		{"conversation_512", `{"input_length": 2000000}`, "2000000 and 0 tokens"},
		{"conversation_512", `{"input_length": 512, "hash_ids": [1099511627776]}`, "block 1099511627776"},
		{"agentic_64", `{"input_length": 64}`, "0 runs"},
		{"agentic_64", `{"input_length": 640, "runs":[[1,9],[20,2]]}`, "run of 2 from 20 where 1 blocks"},
		{"agentic_64", `{"input_length": 640, "runs":[[1,18446744073709551615]]}`, "run of 18446744073709551615"},
		{"agentic_64", `{"input_length": 640, "runs":[[1,1]], "system_tokens": -1}`, "-1 system tokens"},
	} {
		_, err := bench.Load(write(t, c.name, c.lines), c.name, 0)
		if !errors.Is(err, bench.ErrTrace) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error %v, want one with %q", c.name, c.lines, err, c.want)
		}
	}
}
