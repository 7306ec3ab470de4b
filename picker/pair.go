package picker

import (
	"context"
	"errors"

	"github.com/kvindex/kvindex"
)

// PickPair picks for engines that compute prompts at some pods, and generate at others that
// receive the cache of the prompt: a pod of decode, and one of prefill. Each Picker has the pods
// of its role, and its policy: for prefill route.Default, by cache and load, and for decode
// route.Decode(0, route.LeastTokens), by load. Both have one Indexer.
//
// There is no hop to a prefill pod, and p is nil, if at most local tokens of the prompt are not
// cached at the decode pod, or if no prefill pod is up: the decode pod computes them. With local
// below 0, decode pods compute no prompt, as in SGLang: each request has a hop, and without a
// prefill pod there is an error. Predicted tokens do not count as cached, because they may still
// be on their way.
//
// If p is not nil, send the request to p first, in the form that the engine expects (for vLLM with
// one token to generate), and end p; then send it to d. With a hop, d's load has the prompt as
// held, not as to be computed, and so has that of the pod that d.Next picks. r must not change until both picks have ended. Errors are those of
// Pick.
func PickPair(ctx context.Context, prefill, decode *Picker, r *kvindex.Request, local int) (p, d *Pick, err error) {
	if d, err = decode.Pick(ctx, r); err != nil {
		return nil, nil, err
	}
	if local >= 0 && d.PromptTokens-d.CachedTokens <= local {
		return nil, d, nil
	}
	p, err = prefill.Pick(ctx, r)
	if errors.Is(err, ErrNoPod) && local >= 0 {
		return nil, d, nil
	}
	if err != nil {
		d.Failed()
		return nil, nil, err
	}
	d.holdPrompt()
	return p, d, nil
}
