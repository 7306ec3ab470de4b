// Pods, as far as something was sent to them: in which blocks they cache, and what is believed
// of those without events.

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

// Pod is a pod, for a model, to which prompts are sent.
type Pod struct {
	Media uint8 // its form of media

	// form is of the blocks that the last rank has announced, but for its Source; nil: none has.
	form      atomic.Pointer[index.View]
	applied   atomic.Uint64                 // messages
	predicted atomic.Int64                  // predictions that live
	approx    atomic.Pointer[approximation] // nil: an event has come, or is expected

	// Guarded by the mutex of the ledger.
	holders []*holder // of ranks, by number
	gone    bool      // the pod was removed
}

// Room returns the cache of a pod that is followed by what is sent to it; nil: it is none.
func (p *Pod) Room() *engine.Room {
	if a := p.approx.Load(); a != nil {
		return &a.Room
	}
	return nil
}

// Blocks returns the blocks that the last rank has announced, but for their Source; nil: none
// has.
func (p *Pod) Blocks() *index.View { return p.form.Load() }

// Live returns how many predictions of the pod live.
func (p *Pod) Live() int64 { return p.predicted.Load() }

// Messages returns how many messages of the pod were applied.
func (p *Pod) Messages() uint64 { return p.applied.Load() }

// Hear takes note that an event of the pod has come.
func (p *Pod) Hear() { p.approx.Store(nil) }

// Approximate makes a pod one that is followed by what is sent to it, until an event comes.
func (p *Pod) Approximate(profile *engine.Profile) {
	a := profile.Approximate
	v, _ := engine.VariantOf(a.BlockTokens, false, profile.Media)
	group := profile.Corrected(index.Group{})
	p.form.Store(&index.View{Group: group, BlockSize: a.BlockTokens, Layout: &index.Layout{
		Groups:     []index.GroupLayout{{Group: group, BlockSize: a.BlockTokens, Grain: a.BlockTokens}},
		FullGroups: 1,
	}})
	p.approx.Store(&approximation{Room: *a, variant: v, stride: a.BlockTokens / v.Unit})
}

// approximation is what is believed of a pod that no event has come from. All of it but the
// first three is guarded by Ledger.mu.
type approximation struct {
	engine.Room
	variant index.Variant
	stride  int // units of a block

	ranks []*rankEstimate // by number
}

// rankEstimate is a rank of an approximation.
type rankEstimate struct {
	view  *index.View
	cache *estimate.Cache
}

// of returns what is believed of a rank, made if need be; nil: there are too many. Ledger.mu
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

// estimatedPast is what a ticket keeps for an approximation.
type estimatedPast struct {
	of    *rankEstimate
	block int // tokens
	past  estimate.Past
}

// Lent is in which blocks pods of a model cache, by the form of their media; nil: no pod
// has told, or they differ. A pod that has told nothing is taken to have these. Those with media
// of another form are another engine's.
type Lent [hashing.NumForms]*index.View

// Lend returns the blocks of some pods.
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

// has reports whether the blocks of a holder, which its pod has not told, are those of others.
func (lent *Lent) has(h *holder) bool {
	f := lent[h.pod.Media]
	return f != nil && sameBlocks(f, h.view)
}

// sameBlocks reports whether prompts are sent in the same blocks to ranks with these views.
func sameBlocks(a, b *index.View) bool {
	return a.BlockSize == b.BlockSize && a.Pairs == b.Pairs && a.Group.ID == b.Group.ID
}

// Idle reports whether nothing was ever sent to a pod.
func (l *Ledger) Idle(p *Pod) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(p.holders) == 0
}
