// Pods to which prompts are routed: the form of their blocks, and the estimates of pods without
// events.

package predict

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/estimate"
	"github.com/kvindex/kvindex/internal/hashing"
)

// Pod is a pod for one model to which prompts are routed.
type Pod struct {
	Media uint8 // its form of media

	// form has the blocks that a rank has announced last, without a Source; nil: none has.
	form      atomic.Pointer[index.View]
	applied   atomic.Uint64                 // applied messages
	predicted atomic.Int64                  // live predictions
	approx    atomic.Pointer[approximation] // nil: the pod publishes events

	// holders and gone are guarded by Ledger.mu. holders are ordered by rank.
	holders []*holder
	gone    bool // the pod was removed
}

// Room returns the cache of an estimated pod; nil: the pod publishes events.
func (p *Pod) Room() *engine.Room {
	if a := p.approx.Load(); a != nil {
		return &a.Room
	}
	return nil
}

// Blocks returns the blocks that a rank has announced last, without a Source; nil: none has.
func (p *Pod) Blocks() *index.View { return p.form.Load() }

// Live returns the number of live predictions of the pod.
func (p *Pod) Live() int64 { return p.predicted.Load() }

// Messages returns the number of applied messages of the pod.
func (p *Pod) Messages() uint64 { return p.applied.Load() }

// MakeExact drops the estimate of the pod, because an event of it has come.
func (p *Pod) MakeExact() { p.approx.Store(nil) }

// Approximate makes the pod an estimated one, until an event comes.
func (p *Pod) Approximate(profile *engine.Profile) {
	a := profile.Approximate
	v, _ := engine.VariantOf(a.BlockTokens, false, profile.Media)
	group := profile.Corrected(index.Group{})
	p.form.Store(&index.View{Group: group, BlockSize: a.BlockTokens, Layout: &index.Layout{
		Groups: []index.GroupLayout{{Group: group, BlockSize: a.BlockTokens, Grain: a.BlockTokens}},
	}})
	p.approx.Store(&approximation{Room: *a, variant: v, stride: a.BlockTokens / v.Unit})
}

// approximation is the estimate of a pod without events. Ledger.mu guards ranks; the other
// fields do not change.
type approximation struct {
	engine.Room
	variant index.Variant
	stride  int // units of a block

	ranks []*rankEstimate // by number
}

// rankEstimate is the estimate of a rank.
type rankEstimate struct {
	view  *index.View
	cache *estimate.Cache
}

// of returns the estimate of a rank, made if needed; nil: there are too many ranks. Ledger.mu
// is held.
func (a *approximation) of(view *index.View) *rankEstimate {
	at, ok := slices.BinarySearchFunc(a.ranks, view.Source.Rank, func(e *rankEstimate, rank int) int { return e.view.Source.Rank - rank })
	if ok {
		return a.ranks[at]
	}
	if len(a.ranks) >= engine.MaxRanks {
		return nil
	}
	e := &rankEstimate{view, estimate.New(a.Blocks, a.TTL)}
	a.ranks = slices.Insert(a.ranks, at, e)
	return e
}

// estimatedPast is the data of a ticket for the estimate of its rank.
type estimatedPast struct {
	of    *rankEstimate
	block int // tokens
	past  estimate.Past
}

// Lent has the blocks of the pods of a model, by their form of media; nil: no pod has announced
// blocks, or they differ. A pod that has announced none is assumed to have these. Pods with
// another form of media have another engine.
type Lent [hashing.NumForms]*index.View

// Lend returns the blocks on which pods agree.
func Lend(pods iter.Seq[*Pod]) (lent Lent) {
	var differ [len(lent)]bool
	for p := range pods {
		if f := p.form.Load(); f != nil {
			of := &lent[p.Media]
			differ[p.Media] = differ[p.Media] || *of != nil && !sameBlocks(*of, f)
			if *of == nil || len(f.Groups) > len((*of).Groups) {
				*of = f
			}
		}
	}
	for media := range lent {
		if differ[media] {
			lent[media] = nil
		}
	}
	return lent
}

// has reports whether the lent blocks of a holder are still those of the other pods.
func (lent *Lent) has(h *holder) bool {
	f := lent[h.pod.Media]
	return f != nil && sameBlocks(f, h.view)
}

// sameBlocks reports whether ranks with these views have the same blocks for predictions.
func sameBlocks(a, b *index.View) bool {
	return a.BlockSize == b.BlockSize && a.Pairs == b.Pairs && a.Group.ID == b.Group.ID
}

// Idle reports whether no prompt was ever routed to a pod.
func (l *Ledger) Idle(p *Pod) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(p.holders) == 0
}
