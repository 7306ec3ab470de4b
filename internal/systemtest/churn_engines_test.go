//go:build linux

package systemtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
)

// TestChurnEngines: the engines of TestChurn hold the blocks that they publish.
func TestChurnEngines(t *testing.T) {
	prompts := churnPrompts(1, 100)
	sizes := []int{16, 32, 64}
	if testing.Short() {
		sizes = sizes[1:2]
	}
	for kind, k := range churnKinds {
		for _, size := range sizes {
			t.Run(fmt.Sprintf("%s/%d", k.name, size), func(t *testing.T) {
				ix := open(t, churnCounting)
				seq := uint64(0)
				cache := newChurnCache(churnSetup{Kind: kind, BlockSize: size, Blocks: 1600 / size, Model: "m"}, 0, func(payload []byte) {
					r, err := ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: "s", Seq: seq, Payload: payload})
					if err != nil || !r.Applied {
						t.Fatalf("message %d: %+v, %v", seq, r, err)
					}
					seq++
				})
				r := rand.New(rand.NewPCG(uint64(kind), uint64(size)))
				hits := 0
				for step := range 150 {
					if r.IntN(50) == 0 {
						cache.clear()
					}
					if r.IntN(10) == 0 {
						cache.evict(prompts[r.IntN(len(prompts))])
					}
					var served [][]uint32
					for range 1 + r.IntN(3) {
						served = append(served, prompts[r.IntN(len(prompts))])
					}
					cache.serve(served)
					if step%5 > 0 {
						continue
					}
					for i, p := range prompts {
						cached, matched := cache.held(p)
						s := score(t, ix, kvindex.Request{Model: "m", Tokens: p, Pods: []string{"a"}})[0]
						if s.CachedTokens != cached || s.MatchedBlocks != matched {
							t.Fatalf("step %d, prompt %d of %d tokens: %+v, and the engine reuses %d tokens and holds %d blocks", step, i, len(p), s, cached, matched)
						}
						hits += min(cached, 1)
					}
				}
				if hits < 100 {
					t.Errorf("%d hits", hits)
				}
			})
		}
	}
}
