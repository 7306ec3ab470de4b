// Confirm: a message may show that a prompt that was sent was computed.

package kvindex

import (
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
)

// confirming looks at predictions that a message may have completed. Its memory is used again.
type confirming struct {
	predict.Confirming
	prompt  prompt.Prompt
	query   index.Query // whose Keys are the prompt's
	matches index.Matches
}

// noteApplied ends those predictions of a rank that changes have completed, or made void. The
// changes were applied. pod.mu is held.
func (in *ingest) noteApplied(r *podstate.Rank, changes []index.Change, done *index.Applied) {
	if in.confirming.Find(in.x.ledger, &in.pm.sent, r.Number, changes, done) {
		in.confirm()
	}
}

// confirm asks the index about the suspects. No lock is held but that of pod.order.
func (in *ingest) confirm() {
	c := &in.confirming
	c.query.Candidates = in.pm.self(in.x, in.pod, in.model).index
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	for i := range c.Suspects {
		s := &c.Suspects[i]
		runs, tokens := c.Prompt(s)
		c.prompt.Use(runs, tokens)
		if in.x.index.Match(ctx, &c.query, &c.matches) != nil {
			return // the TTL ends them
		}
		if s.Holds(c.matches.Rows, tokens) {
			in.x.ledger.Confirm(s)
		}
	}
}

// servedBy returns what a pod serves of a model, nil if nothing is known of it.
func (x *registry) servedBy(pod, model string) *podModel {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if md := x.models[model]; md != nil {
		return md.served(pod)
	}
	return nil
}

// self returns pm as the only candidate.
func (pm *podModel) self(x *registry, pod, model string) *candidateSet {
	c := pm.alone.Load()
	if c == nil {
		c = &podList{x: x, model: model, base: true, pods: []string{pod}}
		pm.alone.Store(c)
	}
	return c.now()
}
