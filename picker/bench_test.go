package picker_test

import (
	"fmt"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

// BenchmarkPick picks one of 256 pods for a prompt of 2,048 tokens, of which a third of the
// pods hold a part. by-hand makes the calls that Pick, FirstToken and Done make.
func BenchmarkPick(b *testing.B) {
	const pods, prompts, tokens = 256, 64, 2048
	for _, by := range []string{"hand", "picker"} {
		b.Run(by, func(b *testing.B) {
			ix, err := kvindex.New()
			must(b, err)
			defer ix.Close()
			var all []picker.Pod
			var names []string
			var prompt [prompts]fakeengine.Prompt
			for i := range prompt {
				prompt[i] = fakeengine.NewPrompt(uint64(i), 16, tokens/16)
			}
			for i := range pods {
				name := fmt.Sprintf("vllm-llama-70b-7d9f8b6c%04x", i*257&0xffff)
				all, names = append(all, picker.Pod{Name: name}), append(names, name)
				for j := range prompt {
					if (i+j)%3 == 0 {
						must(b, ix.Ingest(name, "m", fakeengine.Payload(1, 0, prompt[j].Stored(0, 1+(i*7+j)%(tokens/16)))))
					}
				}
			}
			requests := make([]*kvindex.Request, prompts)
			for i := range requests {
				requests[i] = &kvindex.Request{Model: "m", Tokens: prompt[i].Tokens}
			}
			usage := kvindex.Usage{PromptTokens: tokens, CachedTokens: -1}
			p, err := picker.New(ix, picker.Config{})
			must(b, err)
			must(b, p.Set(all))
			b.ReportAllocs()
			if by == "picker" {
				for i := 0; b.Loop(); i++ {
					pick, err := p.Pick(b.Context(), requests[i%prompts])
					if err != nil || pick.Err != nil {
						b.Fatal(err, pick.Err)
					}
					pick.FirstToken()
					pick.Done(usage)
				}
				return
			}
			candidates := ix.Candidates("", names)
			var answer kvindex.Answer
			var routed []route.Pod
			var loads route.Tracker
			for i := 0; b.Loop(); i++ {
				r := *requests[i%prompts]
				r.Candidates = candidates
				must(b, ix.ScoreRequest(b.Context(), &r, &answer))
				routed = answer.RoutePods(routed[:0])
				loads.Fill(routed)
				best := &answer.Pods[route.Default(&route.Request{Tokens: answer.PromptTokens}, routed)]
				flight := loads.Sent(best.Pod, best.Rank, answer.PromptTokens, best.PredictedTokens)
				ticket, err := ix.Routed(&answer, best.Pod, best.Rank)
				must(b, err)
				flight.FirstToken()
				flight.Done()
				ix.Observe(ticket, usage)
			}
		})
	}
}
