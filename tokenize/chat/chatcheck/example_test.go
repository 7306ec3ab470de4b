package chatcheck_test

import (
	"context"
	"fmt"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/kvindex/kvindex/tokenize/chat/chatcheck"
)

func ExampleEngine_Check() {
	// When a pod has started, or from time to time.
	onStart := func(ctx context.Context, pod, url string, model *chat.Model, tok tokenize.Tokenizer) {
		report, err := chatcheck.Engine{URL: url, Model: "llama-3"}.Check(ctx, model, tok)
		if err != nil {
			fmt.Println(err) // no verdict: try again later
			return
		}
		fmt.Printf("%s: %v\n", pod, report)
		if err := model.Exclude(pod, report.Differs()...); err != nil {
			fmt.Println(err)
		}
	}
	onStart(context.Background(), "pod-a", "10.0.0.7:8000", nil, nil)
	// Output: chatcheck: the address "10.0.0.7:8000" has no scheme: is it http://10.0.0.7:8000 or https://10.0.0.7:8000?
}
