package kvindex_test

import (
	"fmt"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
)

// BenchmarkRoutePods is RoutePods of a cold prompt, alone and in a whole choice: score, RoutePods,
// Default.
func BenchmarkRoutePods(b *testing.B) {
	for _, n := range []int{16, 256} {
		ix := open(b)
		names := fleet(b, ix, n)
		q := kvindex.Request{Model: "m", Tokens: make([]uint32, 8192), Candidates: ix.Candidates("m", names)}
		var a kvindex.Answer
		must(b, ix.ScoreRequest(ctx, &q, &a))
		var pods []route.Pod
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pods = a.RoutePods(pods[:0])
			}
		})
		b.Run(fmt.Sprintf("pods=%d/scored and chosen", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q.Tokens[len(q.Tokens)-1]++
				must(b, ix.ScoreRequest(ctx, &q, &a))
				pods = a.RoutePods(pods[:0])
				route.Default(&route.Request{Tokens: a.PromptTokens}, pods)
			}
		})
	}
}
