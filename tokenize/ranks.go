package tokenize

import (
	"cmp"
	"slices"
	"strings"
)

// otherMeaning reports whether a pattern may have a part that means something else to tiktoken
// than to tokenizers, whose syntax patternOf reads: an interval that is possessive or lazy,
// and the end of the text that is not one of a line.
func otherMeaning(regex string) bool {
	for i := 1; i < len(regex)-1; i++ {
		interval := regex[i] == '}' && strings.IndexByte("0123456789,", regex[i-1]) >= 0
		if interval && strings.IndexByte("+?", regex[i+1]) >= 0 {
			return true
		}
	}
	return strings.Contains(regex, "$")
}

// maxRankedToken is the most bytes of a token with a rank. All its splits
// are looked up, so that a longer one takes time in proportion to the square.
const maxRankedToken = 1 << 9

// newRankModel makes a model of tokens, all bytes among them, whose ids are in the order of
// their ranks (tiktoken 0.14.0, src/lib.rs). There a pair merges if the bytes of both together
// are a token, at that token's rank; so each two tokens that make a third are a merge.
func newRankModel(ranks *vocab) (*model, error) {
	t := &model{words: ranks, uncut: true, cached: true}
	t.symbols.bytes = new([256]uint32)
	for b := range t.symbols.bytes {
		t.symbols.bytes[b], _ = ranks.id([]byte{byte(b)})
	}
	splits, err := splitsOf(ranks)
	if err != nil {
		return nil, err
	}
	t.merges = newMergeTable(len(splits))
	last := noID
	for _, s := range splits {
		if s.id != last {
			t.merges.result = append(t.merges.result, s.id)
			last = s.id
		}
		t.merges.ranks.set(s.left, s.right, uint32(len(t.merges.result)-1))
	}
	t.findAlone()
	return t, nil
}

// A split is a token as two others make it.
type split struct{ id, left, right uint32 }

// splitsOf returns all splits of all tokens, sorted by their ids.
func splitsOf(ranks *vocab) ([]split, error) {
	var splits []split
	for i, id := range ranks.ids {
		text := ranks.at(i)
		for mid := 1; mid < len(text); mid++ {
			left, ok := ranks.id(text[:mid])
			if !ok {
				continue
			}
			if right, ok := ranks.id(text[mid:]); ok {
				splits = append(splits, split{id, left, right})
			}
		}
		if len(splits) > maxMerges {
			return nil, malformed("ranks: more than %d ways to merge", maxMerges)
		}
	}
	slices.SortStableFunc(splits, func(a, b split) int { return cmp.Compare(a.id, b.id) })
	return splits, nil
}
