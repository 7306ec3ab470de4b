package kvindex

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// keptPrompt holds the keys of the prompt of an answer for Routed, so that nothing is hashed
// twice. The next score of the answer uses its memory again.
type keptPrompt struct {
	x    *Indexer
	turn atomic.Uint64 // raised by each use: a score, and Routed
	set  *catalog.Set
	// tokens is the length of the prompt.
	tokens   int
	runs     []prompt.Run
	keys     []index.Key
	excluded []int32 // candidates for which the chat is not scorable
}

// keepFor gives the keys of the prompt to the answer, for Routed.
func (sc *scorer) keepFor(dst *Answer) {
	k := dst.sent
	if k == nil {
		if k, _ = sc.x.keptPrompts.Get().(*keptPrompt); k == nil {
			k = new(keptPrompt)
		}
		dst.sent = k
	}
	k.x, k.set, k.tokens = sc.x, sc.set, sc.prompt.Length
	sc.prompt.Swap(&k.runs, &k.keys)
	k.excluded = k.excluded[:0]
	if sc.rendering != nil {
		for pod := range sc.rendering.Excluded() {
			if at, ok := slices.BinarySearch(sc.set.Names, pod); ok {
				k.excluded = append(k.excluded, int32(at))
			}
		}
	}
	dst.turn = k.turn.Load()
}

// routed is Routed for an open Indexer.
func (x *Indexer) routed(a *Answer, pod string, rank int) (Ticket, error) {
	if a == nil || a.sent == nil || a.sent.x != x {
		return Ticket{}, fmt.Errorf("%w: the answer does not come from this Indexer", ErrNotInRequest)
	}
	k := a.sent
	if k.turn.Load() != a.turn {
		return Ticket{}, ErrAnswerUsed
	}
	at, ok := slices.BinarySearch(k.set.Names, pod)
	switch {
	case !ok:
		return Ticket{}, fmt.Errorf("%w: %.100q is not among the %d pods of the request", ErrNotInRequest, pod, len(k.set.Names))
	case rank < 0 || rank > math.MaxUint16: // no event has such a rank
		return Ticket{}, fmt.Errorf("%w: pod %.100q: a pod cannot have rank %d", ErrNotInRequest, pod, rank)
	case slices.Contains(k.excluded, int32(at)):
		return Ticket{}, fmt.Errorf("kvindex: pod %.100q: %w", pod, chat.ErrNotScorable)
	}
	sc := x.newScorer()
	defer sc.release()
	for first := true; ; first = false {
		e, err := x.sendTo(pod, k.set.Base)
		if err != nil {
			return Ticket{}, err
		}
		r := routing{sc: sc, k: k, pod: e}
		r.sending.Source, r.sending.Tokens = index.Source{Pod: pod, Model: k.set.Base, Rank: rank}, k.tokens
		if err := r.look(); err != nil {
			return Ticket{}, err
		}
		if first && !k.turn.CompareAndSwap(a.turn, a.turn+1) {
			return Ticket{}, ErrAnswerUsed
		}
		t, err := r.issue()
		if err == nil || x.names.ServedBy(pod, k.set.Base) == e {
			return t, err
		}
		sc.forecast.Clear() // the pod was registered meanwhile, or removed
	}
}

// sendTo returns the entry of a pod to which a prompt is routed.
func (x *Indexer) sendTo(pod, model string) (*catalog.Entry, error) {
	e := x.names.ServedBy(pod, model)
	if e != nil {
		return e, nil
	}
	if err := x.reg.Refused(pod, model); err != nil {
		return nil, fmt.Errorf("%w: %.100q: %w", ErrBlockSize, pod, err)
	}
	if e = x.reg.SendTo(pod, model); e == nil {
		return nil, fmt.Errorf("%w: %.100q has not reported yet, and %s", ErrBlockSize, pod, noneLent)
	}
	return e, nil
}

// routing is one call of Routed.
type routing struct {
	sc      *scorer
	k       *keptPrompt
	pod     *catalog.Entry
	sending predict.Sending
}

// noneLent is the reason why no block size was taken from other pods.
const noneLent = "the other pods of the model (those with the same Profile.Media) have no block size, or different ones: this is normal until a pod has stored its first block"

// look finds the part of the prompt that the rank holds, and the blocks in which it caches.
func (r *routing) look() error {
	s, sc := &r.sending, r.sc
	sc.set = sc.x.names.Self(r.pod, s.Source.Pod, s.Source.Model)
	sc.prompt.Use(r.k.runs, r.k.tokens)
	s.Applied = r.pod.Sent.Messages()
	sc.query.Held = true
	ctx, cancel := sc.x.reg.Applying()
	defer cancel()
	if err := sc.match(ctx); err != nil {
		return err
	}
	sc.matches.Rows = slices.DeleteFunc(sc.matches.Rows, func(row index.Row) bool { return row.Source != s.Source })
	if err := sc.predict(ctx, s.Source.Rank); err != nil {
		return err
	}
	sc.judge(false)
	best := sc.judging.Best[0]
	s.Cached, s.Predicted = sc.judging.Proven(best), best.Cached
	var row *index.Row
	if best.Row > 0 && int(best.Row) <= sc.forecast.Real {
		s.View, row = r.main(&sc.matches.Rows[best.Row-1])
	}
	if s.View == nil {
		s.View = r.pod.Sent.Blocks()
	}
	if s.View == nil {
		s.View, s.Lent = sc.set.Lent[r.pod.View.Profile.Media], true
	}
	if s.View == nil {
		return fmt.Errorf("%w: %.100q has stored nothing, and %s", ErrBlockSize, s.Source.Pod, noneLent)
	}
	var run *prompt.Run
	var ok bool
	if s.Variant, ok = engine.VariantOf(s.View.BlockSize, s.View.Pairs, r.pod.View.Profile.Media); ok {
		run = prompt.RunIn(r.k.runs, s.Variant)
	}
	if run == nil {
		return fmt.Errorf("%w: %.100q announced its first blocks, of %d tokens, after the score", ErrBlockSize, s.Source.Pod, s.View.BlockSize)
	}
	s.FindLast(run, row)
	return nil
}

// main returns the blocks of the main group of the source of a row, and its row of them; nil: it
// has none. All prompts that are sent to a rank are in the blocks of one group and size, whatever
// group or part of a block holds most of them.
func (r *routing) main(of *index.Row) (*index.View, *index.Row) {
	p := r.pod.View
	g := &of.Groups[max(p.Plans.Of(of.Layout, &p.Profile, len(p.Ranks())).Main, 0)]
	if g.BlockSize == 0 {
		return nil, nil
	}
	rows := r.sc.matches.Rows[:r.sc.forecast.Real]
	for i := range rows {
		if row := &rows[i]; row.Group.ID == g.ID && row.BlockSize == g.BlockSize {
			return row.View, row
		}
	}
	v := *of.View
	v.Group, v.BlockSize = g.Group, g.BlockSize
	return &v, nil
}

// issue makes the ticket and the prediction.
func (r *routing) issue() (Ticket, error) {
	r.sending.State = r.pod.View.StateOf(r.sending.Source.Rank).String()
	of, err := r.sc.x.ledger.Send(r.pod.Sent, &r.sending)
	return Ticket{of}, err
}
