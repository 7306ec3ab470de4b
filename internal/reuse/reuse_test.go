package reuse_test

import (
	"math"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
)

var (
	full   = reuse.Group{Block: 16}
	window = reuse.Group{Kind: index.GroupWindow, Window: 48, Block: 16} // needs 3 blocks
	mamba  = reuse.Group{Kind: index.GroupMamba, Block: 16}
	chunk  = reuse.Group{Kind: index.GroupChunked, Window: 64, Block: 16}
	other  = reuse.Group{Kind: index.GroupOther, Block: 16}
)

func of(g reuse.Group, block int) reuse.Group { g.Block = block; return g }

func draft(g reuse.Group) reuse.Group { g.Draft = true; return g }

func TestTokens(t *testing.T) {
	for _, c := range []struct {
		name   string
		groups []reuse.Group
		grain  int
		length int
		held   []string // of each group: a digit for each block, and behind a space one for each partial entry
		want   int
	}{
		{"no prompt", []reuse.Group{full}, 0, 0, []string{"1"}, 0},
		{"one token", []reuse.Group{{Block: 1}}, 0, 1, []string{"1"}, 0},
		{"the last token is computed", []reuse.Group{full}, 0, 64, []string{"1111"}, 48},
		{"a hole", []reuse.Group{full}, 0, 65, []string{"1101"}, 32},
		{"nothing is held", []reuse.Group{full, window}, 0, 65, nil, 0},
		{"words beyond the prompt", []reuse.Group{full}, 0, 33, []string{strings.Repeat("1", 200)}, 32},
		{"any length", []reuse.Group{full, window, chunk}, 0, math.MaxInt, []string{strings.Repeat("1", 130), strings.Repeat("1", 130)}, 2048},

		{"draft layers give up a block", []reuse.Group{draft(full)}, 0, 65, []string{"1111"}, 48},
		{"nothing to give up", []reuse.Group{draft(full)}, 0, 65, []string{"0111"}, 0},
		{"draft layers look one block further", []reuse.Group{full, draft(window)}, 0, 97, []string{"11110", "01111111"}, 64},

		{"the last window", []reuse.Group{full, window}, 0, 161, []string{"1111111111", "1110111001"}, 112},
		{"a window over two words", []reuse.Group{window}, 0, 2000, []string{strings.Repeat("0", 63) + "111" + "0011011"}, 66 * 16},
		{"a window of three words", []reuse.Group{{Kind: index.GroupWindow, Window: 2 + 129*16, Block: 16}}, 0, 9000, []string{strings.Repeat("0", 50) + strings.Repeat("1", 130) + "01"}, 180 * 16},
		{"a block too few for it", []reuse.Group{{Kind: index.GroupWindow, Window: 2 + 130*16, Block: 16}}, 0, 9000, []string{strings.Repeat("0", 50) + strings.Repeat("1", 130) + "01"}, 0},
		{"an unaligned window", []reuse.Group{of(full, 32), window}, 0, 161, []string{"11111", "0111111110"}, 128},

		{"the last state", []reuse.Group{full, mamba}, 0, 129, []string{"11111110", "01001001"}, 80},

		{"earlier chunks count", []reuse.Group{full, chunk}, 0, 161, []string{"1111111111", "0000000010"}, 144},
		{"the chunk begins with the next token", []reuse.Group{full, chunk}, 0, 129, []string{"11111111", "00000000"}, 128},
		{"a full and another group are asked once", []reuse.Group{full, {Kind: index.GroupChunked, Window: 24, Block: 16}}, 0, 81, []string{"11111", ""}, 64},

		{"equal groups hold together", []reuse.Group{window, window, full}, 0, 161, []string{"1110111111", "1111111000", "1111111111"}, 112},
		{"the shorter row of them", []reuse.Group{mamba, mamba, full}, 0, 5000, []string{"1" + strings.Repeat("0", 100) + "1", "1", strings.Repeat("1", 200)}, 16},

		{"a partial state", []reuse.Group{of(full, 64), of(mamba, 64)}, 16, 161, []string{"11", "10 000001"}, 96},
		{"a partial entry that holds too little", []reuse.Group{of(full, 64), of(mamba, 64)}, 16, 100, []string{"1 0000001", "10 0000001"}, 64},
		{"a unit is given up", []reuse.Group{draft(of(full, 64)), of(mamba, 64)}, 16, 161, []string{"11", "00 0000001"}, 112},
		{"no hits inside blocks beside larger windows", []reuse.Group{of(full, 64), of(mamba, 64), of(window, 32)}, 16, 161, []string{"11", "10 000001", "1111"}, 64},

		{"a group of another kind cuts nothing", []reuse.Group{full, other}, 0, 65, []string{"1111", ""}, 64},
		{"an unknown window cuts nothing", []reuse.Group{full, {Kind: index.GroupWindow, Block: 32}}, 0, 65, []string{"111", ""}, 48},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := reuse.New(c.groups, c.grain)
			must(t, err)
			held := make([]reuse.Held, len(c.held))
			for i, digits := range c.held {
				blocks, parts, _ := strings.Cut(digits, " ")
				held[i] = reuse.Held{Blocks: bitsOf(blocks), Parts: bitsOf(parts)}
			}
			if got := plan.Tokens(c.length, held); got != c.want {
				t.Errorf("%d tokens are reused, want %d", got, c.want)
			}
		})
	}
}

// bitsOf reads a digit for each bit.
func bitsOf(digits string) (words []uint64) {
	for i, d := range digits {
		if d == '1' {
			words = setBit(words, i)
		}
	}
	return words
}

func TestNewRefuses(t *testing.T) {
	many := make([]reuse.Group, 65)
	for i := range many {
		many[i] = full
	}
	for _, c := range []struct {
		groups []reuse.Group
		grain  int
		want   string
	}{
		{nil, 0, "no group of a known kind"},
		{[]reuse.Group{other, {Kind: index.GroupChunked, Block: 16}}, 0, "no group of a known kind"},
		{many, 0, "65 groups, at most 64"},
		{[]reuse.Group{full, {}}, 0, "group 1 of 2: block size 0,"},
		{[]reuse.Group{of(full, -16)}, 0, "block size -16,"},
		{[]reuse.Group{of(full, math.MaxInt)}, 0, "block size"},
		{[]reuse.Group{of(full, 1<<29), of(full, 3)}, 0, "no common multiple"},
		{[]reuse.Group{of(full, 1<<30-1), of(full, 1<<30-2), of(full, 1<<30-3)}, 0, "no common multiple"},
		{[]reuse.Group{{Kind: index.GroupWindow, Window: -1, Block: 16}}, 0, "negative window -1"},
		{[]reuse.Group{{Kind: index.GroupOther + 1, Block: 16}}, 0, "unknown kind 5"},
		{[]reuse.Group{full}, -1, "negative grain -1"},
		{[]reuse.Group{full, of(mamba, 40)}, 16, "group 1 of 2: the grain 16 does not divide the block size 40"},
		{[]reuse.Group{full, draft(chunk)}, 0, "chunked local attention with draft layers"},
		{[]reuse.Group{of(full, 32), chunk}, 0, "chunked local attention beside blocks of another size"},
	} {
		if _, err := reuse.New(c.groups, c.grain); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v, %d): %v, want %q", c.groups, c.grain, err, c.want)
		}
	}
}

func TestUpperBound(t *testing.T) {
	for _, c := range []struct {
		groups []reuse.Group
		want   bool
	}{
		{[]reuse.Group{full, window, mamba, chunk}, false},
		{[]reuse.Group{full, other}, true},
		{[]reuse.Group{full, {Kind: index.GroupWindow, Block: 16}}, true},
		{[]reuse.Group{full, {Kind: index.GroupChunked, Block: 16}}, true},
	} {
		plan, err := reuse.New(c.groups, 0)
		must(t, err)
		if plan.UpperBound() != c.want {
			t.Errorf("of %+v UpperBound is %t", c.groups, plan.UpperBound())
		}
	}
}

func TestTokensDoesNotAllocate(t *testing.T) {
	plan, err := reuse.New([]reuse.Group{of(full, 64), window, window, of(mamba, 64)}, 16)
	must(t, err)
	ones := reuse.Held{Blocks: bitsOf(strings.Repeat("1", 200)), Parts: bitsOf("01")}
	held := []reuse.Held{ones, ones, ones, ones}
	if n := testing.AllocsPerRun(100, func() { plan.Tokens(3000, held) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
