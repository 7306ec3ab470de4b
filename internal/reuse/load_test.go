package reuse_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
)

func TestLoadTokens(t *testing.T) {
	narrow := reuse.Group{Kind: index.GroupWindow, Window: 16, Block: 16} // needs 1 chunk
	for _, c := range []struct {
		name   string
		groups []reuse.Group
		chunk  int
		grain  int
		length int
		gpu    int
		held   []string // of each group: a digit for each block, and behind a space one for each partial entry
		want   int
	}{
		{"no prompt", []reuse.Group{full}, 1, 0, 0, 0, []string{"1"}, 0},
		{"nothing is held", []reuse.Group{full}, 1, 0, 65, 32, nil, 32},
		{"the whole prompt", []reuse.Group{full}, 1, 0, 64, 48, []string{"1111"}, 64},
		{"not the last token beside a window", []reuse.Group{full, narrow}, 1, 0, 64, 0, []string{"1111", "0001"}, 63},
		{"a hole in the tier that the gpu has", []reuse.Group{full}, 1, 0, 97, 32, []string{"001110"}, 80},
		{"a hole behind the gpu's part", []reuse.Group{full}, 1, 0, 97, 32, []string{"110111"}, 32},
		{"words beyond the prompt", []reuse.Group{full}, 1, 0, 33, 0, []string{strings.Repeat("1", 200)}, 32},
		{"any length", []reuse.Group{full, window}, 1, 0, math.MaxInt, 0, []string{strings.Repeat("1", 130), strings.Repeat("1", 130)}, 2080},

		{"the last block stands for its chunk", []reuse.Group{full}, 3, 0, 161, 0, []string{"0010011101"}, 96},
		{"a chunk at the end of a word", []reuse.Group{full}, 64, 0, 5000, 0, []string{strings.Repeat(strings.Repeat("0", 63)+"1", 3)}, 3 * 64 * 16},
		{"a chunk of more blocks than a word", []reuse.Group{full}, 100, 0, 5000, 0, []string{strings.Repeat(strings.Repeat("0", 99)+"1", 2)}, 2 * 100 * 16},
		{"a chunk cut by the missing words", []reuse.Group{full}, 60, 0, 5000, 0, []string{strings.Repeat("1", 64)}, 960},
		{"a chunk above the prompt", []reuse.Group{full}, 8, 0, 127, 0, []string{"11111111"}, 0},
		{"the chunk in which the gpu's part ends", []reuse.Group{full}, 4, 0, 257, 80, []string{"0000000100010001"}, 256},
		{"the chunk in which it ends is missing", []reuse.Group{full}, 4, 0, 257, 80, []string{"0001000000010001"}, 80},
		{"gain below a chunk", []reuse.Group{full}, 4, 0, 128, 80, []string{"00010001"}, 80},
		{"gain below the chunk of another group", []reuse.Group{full, of(narrow, 64)}, 1, 0, 129, 64, []string{"11111110", "11"}, 64},
		{"a gain below an earlier group's chunk counts", []reuse.Group{of(full, 64), narrow}, 1, 0, 129, 64, []string{"11", "00000010"}, 112},

		{"the last window", []reuse.Group{full, window}, 1, 0, 161, 0, []string{"1111111111", "1110111001"}, 112},
		{"a window over two words", []reuse.Group{window}, 1, 0, 2000, 0, []string{strings.Repeat("0", 63) + "111" + "0011011"}, 66 * 16},
		{"a window that begins with the gpu's part", []reuse.Group{full, window}, 1, 0, 161, 80, []string{"1111111111", "0000011001"}, 112},
		{"a window of one chunk", []reuse.Group{full, window}, 3, 0, 161, 0, []string{"001001001", "000001000"}, 96},
		{"a wide window before a narrow one", []reuse.Group{narrow, full, window}, 1, 0, 161, 0, []string{"0010010110", "1111111111", "0011110000"}, 96},
		{"windows are asked again", []reuse.Group{full, window, narrow}, 1, 0, 161, 0, []string{"1111111111", "0111001110", "0001010000"}, 64},

		{"the last state", []reuse.Group{full, mamba}, 1, 0, 129, 0, []string{"11111110", "01001001"}, 80},
		{"only attention chunks from the next token's on", []reuse.Group{full, chunk}, 1, 0, 161, 0, []string{"1111111111", "0000001111"}, 160},

		{"draft layers give up a chunk", []reuse.Group{draft(full)}, 2, 0, 129, 0, []string{"01010101"}, 96},
		{"draft layers look one chunk further", []reuse.Group{full, draft(narrow)}, 1, 0, 97, 0, []string{"11110", "000110"}, 64},

		{"a partial tail", []reuse.Group{of(full, 64), of(mamba, 64)}, 1, 16, 161, 0, []string{"11 0000000011", "11 0000000010"}, 144},
		{"a tail that a group lacks", []reuse.Group{of(full, 64), of(mamba, 64)}, 1, 16, 161, 0, []string{"11 000000001", "11 0000000001"}, 128},
		{"a load drops the gpu's tail", []reuse.Group{of(full, 64), of(mamba, 64)}, 1, 16, 161, 112, []string{"11", "01"}, 128},
		{"the gpu's tail is longer", []reuse.Group{of(full, 64), of(mamba, 64)}, 1, 16, 161, 112, []string{"10 0000001", "10 0000001"}, 112},
		{"no tails of larger chunks", []reuse.Group{of(full, 64), of(mamba, 64)}, 2, 16, 161, 0, []string{"11 000000001", "11 000000001"}, 128},

		{"a group of another kind may be the Mamba group", []reuse.Group{of(full, 64), other}, 1, 16, 161, 0, []string{"11 000000001"}, 144},
		{"a group of another kind cuts nothing", []reuse.Group{full, other}, 1, 0, 64, 0, []string{"1111", ""}, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			load, err := reuse.NewLoad(c.groups, c.chunk, c.grain)
			must(t, err)
			held := make([]reuse.Held, len(c.held))
			for i, digits := range c.held {
				blocks, parts, _ := strings.Cut(digits, " ")
				held[i] = reuse.Held{Blocks: bitsOf(blocks), Parts: bitsOf(parts)}
			}
			if got := load.Tokens(c.length, c.gpu, held); got != c.want {
				t.Errorf("%d tokens are saved, want %d", got, c.want)
			}
		})
	}
}

func TestNewLoadRefuses(t *testing.T) {
	for _, c := range []struct {
		groups []reuse.Group
		chunk  int
		grain  int
		want   string
	}{
		{nil, 1, 0, "no group of a known kind"},
		{[]reuse.Group{full}, 1, -1, "negative grain -1"},
		{[]reuse.Group{full}, 0, 0, "chunk of 0 blocks"},
		{[]reuse.Group{full}, math.MinInt, 0, "chunk of -"},
		{[]reuse.Group{window, full}, 1 << 27, 0, "group 0 of 2: chunk of 134217728 blocks of 16 tokens"},
		{[]reuse.Group{full}, math.MaxInt, 0, "group 0 of 1: chunk of"},
		{[]reuse.Group{mamba, full, of(mamba, 32)}, 1, 0, "group 2 of 3: blocks of another size"},
	} {
		if _, err := reuse.NewLoad(c.groups, c.chunk, c.grain); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewLoad(%+v, %d, %d): %v, want %q", c.groups, c.chunk, c.grain, err, c.want)
		}
	}
}

// TestLoadOfAnything: any lengths, parts of the GPU and words are accepted.
func TestLoadOfAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(*seed, 2))
	numbers := []int{math.MinInt, -65, -1, 0, 1, 15, 16, 17, 63, 64, 65, 1000, 1 << 30, math.MaxInt - 1, math.MaxInt}
	for _, groups := range [][]reuse.Group{
		{full}, {draft(full), draft(window), draft(mamba)}, {full, chunk, window}, {of(full, 64), of(mamba, 64)},
		slices.Repeat([]reuse.Group{full, draft(window), mamba, window}, 16),
	} {
		for _, size := range []int{1, 3, 64, 100, 1 << 24} {
			load, err := reuse.NewLoad(groups, size, 16)
			must(t, err)
			for _, length := range numbers {
				for _, gpu := range numbers {
					held := make([]reuse.Held, r.IntN(len(groups)+2))
					for i := range held {
						held[i] = reuse.Held{Blocks: randomBits(r, r.IntN(300), 1000), Parts: randomBits(r, r.IntN(300), 1000)}
					}
					if got := load.Tokens(length, gpu, held); got < gpu || got > max(length, gpu, 0) {
						t.Errorf("groups %+v, chunks of %d: of %d tokens %d are on the gpu and %d saved", groups, size, length, gpu, got)
					}
				}
			}
		}
	}
}

func TestLoadTokensDoesNotAllocate(t *testing.T) {
	ones := reuse.Held{Blocks: bitsOf(strings.Repeat("1", 200)), Parts: bitsOf("01")}
	for _, groups := range [][]reuse.Group{{full, window, draft(window), chunk}, {of(full, 64), of(mamba, 64)}} {
		load, err := reuse.NewLoad(groups, 1, 16)
		must(t, err)
		held := slices.Repeat([]reuse.Held{ones}, len(groups))
		if n := testing.AllocsPerRun(100, func() { load.Tokens(3000, 160, held) }); n > 0 {
			t.Errorf("groups %+v: %v allocations", groups, n)
		}
	}
}

// BenchmarkLoadTokens judges prompts of 512 blocks, all in a tier.
func BenchmarkLoadTokens(b *testing.B) {
	all := reuse.Held{Blocks: bitsOf(strings.Repeat("1", 512))}
	for _, c := range []struct {
		name   string
		groups []reuse.Group
		chunk  int
	}{
		{"full", []reuse.Group{full}, 1},
		{"full/chunk=4", []reuse.Group{full}, 4},
		{"full+window", []reuse.Group{full, {Kind: index.GroupWindow, Window: 1024, Block: 16}}, 1},
		{"full+window/chunk=4", []reuse.Group{full, {Kind: index.GroupWindow, Window: 1024, Block: 16}}, 4},
	} {
		b.Run(c.name, func(b *testing.B) {
			load, err := reuse.NewLoad(c.groups, c.chunk, 0)
			must(b, err)
			held := slices.Repeat([]reuse.Held{all}, len(c.groups))
			b.ReportAllocs()
			for b.Loop() {
				load.Tokens(512*16, 0, held)
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
