package systemtest

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// fewer returns n, or an eighth of it with -short.
func fewer[T ~int | ~int64](n T) T {
	if testing.Short() {
		return max(1, n/8)
	}
	return n
}

// third returns paths, or every third of them with -short.
func third(paths []string) []string {
	if !testing.Short() {
		return paths
	}
	var some []string
	for i := 0; i < len(paths); i += 3 {
		some = append(some, paths[i])
	}
	return some
}

func open(t testing.TB, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.New(opts...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	return ix
}

func score(t testing.TB, ix *kvindex.Indexer, r kvindex.Request) []kvindex.PodScore {
	t.Helper()
	var a kvindex.Answer
	must(t, ix.ScoreRequest(t.Context(), &r, &a))
	return a.Pods
}

// blocks returns the number of blocks that one pod matches of a prompt of model m.
func blocks(t testing.TB, ix *kvindex.Indexer, pod string, p fakeengine.Prompt) int {
	t.Helper()
	return score(t, ix, kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{pod}})[0].MatchedBlocks
}

func randomTokens(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(150_000)
	}
	return tokens
}
