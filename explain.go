package kvindex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/explain"
)

// Explanation explains the score of a pod. It contains the prompt, so keep it as secret as
// the prompt. It does not contain the salt.
type Explanation struct {
	// Model and the fields up to Tokens are the request as it was read, after an error only
	// in part. Tokens were made from Text, unless the request had tokens.
	Model, Adapter string
	Media          []Media
	Text           string
	Tokens         []uint32

	// Score and Err are the results of ScoreRequest for the pod: its PodScore, and its error,
	// else Answer.Unknown or Answer.Degraded.
	Score PodScore
	Err   error

	// BlockTokens is the block size of the pod in tokens, 0 if it is not known. The prompt
	// has Blocks whole blocks. Block is the number of the first block that does not count
	// on rank Rank, from 0. If Block equals Blocks, all blocks count.
	BlockTokens, Blocks int
	Rank, Block         int
	// Held has an element for each of the Blocks: the fastest tier that holds the block on
	// Rank, by its name, or "". So holes show, and blocks behind them, which do not count. In a
	// hybrid model it is the group that decided the score. It is nil if the pod holds none.
	Held []string

	// Cause is the reason why that block does not count. Why explains it in a sentence, with
	// advice on the next step. If several causes are true, Cause is the first in this order,
	// but lost comes after memory if it is only possible, and silent comes after partial if
	// other streams of the pod are not silent:
	//
	//	error            the request is not scored: Err. Detail is the outcome (ScoreReport.Outcome)
	//	unknown_model    no pod is registered for the model: Err
	//	unknown_adapter  no event has named the adapter: Err
	//	unknown_pod      the pod is not registered for this model
	//	not_scorable     the chat uses a feature that is excluded for the pod: PodScore.NotScorable
	//	no_block         the prompt is shorter than a block of the pod
	//	approximate      the pod publishes no events (Profile.Approximate), so nothing of it is proven
	//	whole            nothing is missing: all whole blocks are in the gpu. The rest of a block, and the last token, are always computed
	//	lower_tier       the block is in a lower tier and not in the gpu
	//	group            one group of the engine holds the block; another group lacks blocks that a hit there needs, or draft layers compute the block again
	//	hidden           an event removed the block; the pod may have a copy that was not counted (CopiesGuarded)
	//	evicted          the pod held the block and has removed it
	//	lost             the block was forgotten after a loss, or its announcement was lost. Detail is the cause of the loss (Loss.Cause)
	//	cleared          the pod held the block, and then its cache was emptied
	//	parked           events that may be about the block wait for their parent, which is not known
	//	silent           a stream of the pod has brought no message yet
	//	elsewhere        other pods hold the block, and this pod has never stored it, as far as is known
	//	other_adapter    the pod holds the same tokens for another adapter: Detail
	//	other_salt       the pod holds the same tokens for another salt
	//	other_media      the pod holds the same tokens with other media
	//	contested        two streams bring messages of the rank
	//	held_back        messages wait for others, or older messages are being applied
	//	memory           the index has evicted blocks of the rank, because its memory is full (WithMemory): RankInfo.Evicted
	//	partial          some messages of the pod never arrived here
	//	unplaced         the pod holds blocks whose prefix is not known: the block may be one of them
	//	never_stored     the pod has never stored the block, as far as is known
	//	unexplained      the pod does not hold the block; the index has no more information, or it changes too fast
	Cause string
	Why   string

	Pods []string // with cause elsewhere: the first by name
	// Detail, with other causes than error and lost, is the adapter or the media for which the pod
	// holds the tokens; of a salt it has only that there is one. It may be "".
	Detail string

	salted bool
}

// MarshalJSON writes Err as its text.
func (e *Explanation) MarshalJSON() ([]byte, error) {
	type fields Explanation
	return json.Marshal(struct {
		*fields
		Err    string `json:",omitempty"`
		Detail string `json:",omitempty"`
	}{(*fields)(e), textOf(e.Err), e.Detail})
}

// maxShown and maxShownIDs limit the bytes of a text, and the token ids, in String.
const (
	maxShown    = 160
	maxShownIDs = 12
)

// String returns the explanation in several lines. Long texts and lists of tokens are cut.
func (e *Explanation) String() string {
	var b strings.Builder
	s := &e.Score
	fmt.Fprintf(&b, "pod %q: %d of %d tokens cached", s.Pod, s.CachedTokens, len(e.Tokens))
	if s.PredictedTokens > s.CachedTokens {
		fmt.Fprintf(&b, ", %d predicted", s.PredictedTokens)
	}
	fmt.Fprintf(&b, ", rank %d, %v\n", e.Rank, s.State)
	fmt.Fprintf(&b, "  request: model %q", e.Model)
	if e.Adapter != "" {
		fmt.Fprintf(&b, ", adapter %q", e.Adapter)
	}
	if e.salted {
		b.WriteString(", with a salt")
	}
	if len(e.Media) > 0 {
		fmt.Fprintf(&b, ", %d media", len(e.Media))
	}
	if e.Text != "" {
		if text := e.Text; len(text) <= maxShown {
			fmt.Fprintf(&b, "\n  text:    %q", text)
		} else {
			from, to := strings.ToValidUTF8(text[:maxShown/2], ""), strings.ToValidUTF8(text[len(text)-maxShown/2:], "")
			fmt.Fprintf(&b, "\n  text:    %q ... %q (%d bytes)", from, to, len(text))
		}
	}
	if ids := e.Tokens; len(ids) > maxShownIDs {
		fmt.Fprintf(&b, "\n  tokens:  %v ... %v", ids[:maxShownIDs-3], ids[len(ids)-3:])
	} else if len(ids) > 0 {
		fmt.Fprintf(&b, "\n  tokens:  %v", ids)
	}
	if e.BlockTokens > 0 {
		fmt.Fprintf(&b, "\n  blocks:  %d of %d tokens; held from the first on: %d", e.Blocks, e.BlockTokens, s.MatchedBlocks)
		if s.MatchedBlocks > 0 {
			var by []string
			for t, n := range s.Tiers {
				if n > 0 {
					by = append(by, fmt.Sprintf("%v=%d", Tier(t), n))
				}
			}
			fmt.Fprintf(&b, " (%s)", strings.Join(by, " "))
		}
		fmt.Fprintf(&b, "; the next is %d, from token %d on", e.Block, e.Block*e.BlockTokens)
	}
	fmt.Fprintf(&b, "\n  cause:   %s\n  %s\n", e.Cause, e.Why)
	return b.String()
}

// Explain explains the score of a pod for a request. It is for people, and slow: it takes
// up to some tens of milliseconds, and messages for the pod may wait that long.
//
// Explain runs the code of ScoreRequest. It adds the pod to Request.Pods or Candidates if
// it is not among them. Top and Ranks have no effect: the score is that of the pod's best
// rank. An error of ScoreRequest is in Explanation.Err. Explain itself returns an error only
// if the Indexer is closed, the context has ended, or pod is empty. It counts nothing in
// Stats and calls no hook.
//
// Causes come from recent history: the hashes of some evicted blocks (a quarter as many as
// the rank holds blocks, from 1,024 to 65,536), and the last 64 salts and the last 64 media of
// the pod. A pod that another process feeds (WithIndex) has no such history here: then a block
// that no pod holds has cause unexplained, or a cause from the state of the pod. Call Explain in
// the process that feeds it.
func (x *Indexer) Explain(ctx context.Context, r *Request, pod string) (*Explanation, error) {
	switch {
	case x.reg.Closed():
		return nil, ErrClosed
	case pod == "":
		return nil, errors.New("kvindex: the pod is empty")
	}
	q := r.withPod(pod)
	const tries = 4
	for try := 1; ; try++ {
		e, changed, err := x.explain(ctx, &q, pod)
		if err != nil {
			return nil, err
		}
		if !changed || try == tries {
			return e, nil
		}
	}
}

// withPod returns r with pod among its pods, without Top and Ranks.
func (r *Request) withPod(pod string) Request {
	q := *r
	q.Top, q.Ranks = min(q.Top, 0), false
	switch c := q.Candidates; {
	case c != nil && c.of == nil: // an error
	case c == nil:
		if q.Pods != nil && !slices.Contains(q.Pods, pod) {
			q.Pods = append(slices.Clone(q.Pods), pod)
		}
	case q.Pods == nil && (q.Model == "" || c.of.Model == "" || q.Model == c.of.Model) && c.of.Pods != nil && !slices.Contains(c.of.Pods, pod):
		q.Model, q.Candidates, q.Pods = cmp.Or(c.of.Model, q.Model), nil, append(slices.Clone(c.of.Pods), pod)
	}
	return q
}

// explain is one attempt. changed reports that the blocks of the pod changed meanwhile.
func (x *Indexer) explain(ctx context.Context, q *Request, pod string) (e *Explanation, changed bool, err error) {
	sc := x.newScorer()
	defer sc.release()
	sc.prompt.AllIDs = true
	var a Answer
	failed := sc.score(ctx, q, &a)
	if failed == nil && a.Degraded != nil {
		failed = x.reg.Failed(fmt.Errorf("kvindex: scoring for model %.100q: %w", sc.set.Base, a.Degraded))
	}
	if errors.Is(failed, ErrClosed) || failed != nil && outcomeOf(failed) == outcomeCancelled {
		return nil, false, failed
	}
	e = &Explanation{
		Model: q.Model, Adapter: q.Adapter, salted: q.Salt != "", Media: slices.Clone(sc.prompt.Media), Text: sc.prompt.Text, Tokens: slices.Clone(sc.prompt.IDs),
		Score: PodScore{Pod: pod}, Err: cmp.Or(failed, a.Unknown),
	}
	if q.Candidates != nil && q.Candidates.of != nil {
		e.Model = cmp.Or(q.Candidates.of.Model, e.Model)
	}
	if s := sc.prompt.Scope; s.Model != "" {
		e.Model, e.Adapter, e.salted = s.Model, s.Adapter, s.Salt != ""
	}
	ask := explain.Question{
		Index: x.index, Hasher: &x.hash, Prompt: &sc.prompt, Model: e.Model, Pod: pod, Salted: e.salted, Err: failed, Unknown: a.Unknown,
		UnknownModel: errors.Is(a.Unknown, ErrUnknownModel), UnknownAdapter: errors.Is(a.Unknown, ErrUnknownAdapter),
		Refused: func() error { return x.reg.Refused(pod, e.Model) }, SentTo: -1,
	}
	if failed == nil {
		if i := slices.Index(sc.set.Names, pod); i >= 0 {
			e.Score = a.Pods[slices.IndexFunc(a.Pods, func(s PodScore) bool { return s.Pod == pod })]
			ask.Cached, ask.Predicted, ask.UpperBound, ask.NotScorable = e.Score.CachedTokens, e.Score.PredictedTokens, e.Score.UpperBound, e.Score.NotScorable
			if ask.NotScorable {
				ask.Excluded = sc.rendering.ExcludedFor(pod)
			}
			switch b := sc.judging.Best[i]; {
			case int(b.Row) > sc.forecast.Real:
				ask.SentTo = sc.judging.RankOf(b)
			case b.Row > 0:
				ask.Row = &sc.matches.Rows[b.Row-1]
			}
		}
		ask.Facts = x.reg.FactsOf(pod, e.Model)
	}
	found, changed, err := ask.Answer(ctx)
	if err != nil {
		return nil, false, x.reg.Failed(fmt.Errorf("kvindex: explaining for model %.100q: %w", e.Model, err))
	}
	e.BlockTokens, e.Blocks, e.Rank, e.Block = found.BlockTokens, found.Blocks, found.Rank, found.Block
	e.Held = found.Held
	e.Cause, e.Why, e.Pods, e.Detail = found.Cause, found.Why, found.Pods, found.Scope
	switch e.Cause {
	case "error":
		e.Detail = outcomeOf(failed).String()
	case "lost":
		e.Detail = found.Loss
	}
	return e, changed, nil
}
