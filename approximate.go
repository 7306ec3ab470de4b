// Approximate: pods whose engines publish no events. Package estimate has what is believed of
// their caches.
//
// A pod is approximate or exact, and never both. Its figure is PredictedTokens alone, because
// CachedTokens promises never to be too high. The first event drops what was believed: from
// then on the rules for events hold, with a state that says what they do not know.
//
// The Profile is asked for when a request names the pod, because no event comes that could
// register it. The answers about other pods are not kept: names of pods may come from clients,
// and would fill the room for real ones. So the function is asked again, until an event or an
// Approximate comes.

package kvindex

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/estimate"
)

// Approximate describes a pod whose engine publishes no events, as far as it is followed by
// what is sent to it: see Profile.Approximate.
type Approximate struct {
	// BlockTokens is the engine's block size, in tokens.
	BlockTokens int
	// Blocks is how many blocks the cache of a rank has. A wrong number is corrected by what
	// Observe tells, between a sixteenth and 16 times it. A block takes 36 bytes.
	Blocks int
	// TTL is how long a block is believed to be there that no prompt has used; 0: until
	// others take its place.
	TTL time.Duration
}

// maxApproximate bounds Approximate.Blocks.
const maxApproximate = 1 << 26

func (a *Approximate) validate(p *Profile) error {
	switch {
	case a == nil:
		return nil
	case a.BlockTokens < 1:
		return fmt.Errorf("field Approximate: BlockTokens is %d, at least 1", a.BlockTokens)
	case a.Blocks < 1 || a.Blocks > maxApproximate:
		return fmt.Errorf("field Approximate: Blocks is %d, at least 1 and at most %d", a.Blocks, maxApproximate)
	case a.TTL < 0:
		return fmt.Errorf("field Approximate: the TTL is negative: %v", a.TTL)
	}
	if _, ok := engine.VariantOf(a.BlockTokens, false, uint8(p.Media)); !ok {
		return errors.New("field Approximate: no prompt is cut in blocks of such a BlockTokens with the Media of the Profile")
	}
	return nil
}

// approximation is what is believed of a pod that no event has come from. All of it but the
// first three is guarded by ledger.mu.
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

// approximate makes a pod one that is followed by what is sent to it, until an event comes.
func (pm *podModel) approximate() {
	a := pm.profile.Approximate
	v, _ := engine.VariantOf(a.BlockTokens, false, pm.profile.Media)
	group := pm.profile.Corrected(index.Group{})
	pm.form.Store(&index.View{Group: group, BlockSize: a.BlockTokens, Layout: &index.Layout{
		Groups:     []index.GroupLayout{{Group: group, BlockSize: a.BlockTokens, Grain: a.BlockTokens}},
		FullGroups: 1,
	}})
	pm.approx.Store(&approximation{Room: *a, variant: v, stride: a.BlockTokens / v.Unit})
	pm.state.Store(uint32(StateApproximate))
}

// introduce makes those candidates known that no event has come from, and whose Profile says
// that none will. It reports whether there are some.
func (x *Indexer) introduce(set *candidateSet) (some bool) {
	if !x.profiled || set.err != nil {
		return false
	}
	for i, pm := range set.states {
		if pm == nil && x.check(set.names[i], set.base) == nil && x.introducePod(set.names[i], set.base) {
			some = true
		}
	}
	return some
}

// introducePod is introduce for one pod. Nothing is kept of what WithProfile's function says
// of others: it is asked again.
func (x *Indexer) introducePod(pod, model string) bool {
	if profile, err := x.profile(pod, model); err != nil || profile.Approximate == nil {
		return false
	}
	p, err := x.lockPodBriefly(pod)
	if err != nil {
		return false
	}
	defer p.mu.Unlock()
	if p.models[model] != nil {
		return true
	}
	profile, err := x.profileFor(p, model, &events.Batch{})
	if err == nil && profile.Approximate != nil {
		x.podModel(p, model, profile)
		return true
	}
	delete(p.asked, model)
	x.mu.Lock()
	x.leaveUnknown(p)
	x.mu.Unlock()
	return false
}

// refused says what is wrong with the Profile of a pod that was never heard; nil: nothing,
// or it has no Approximate.
func (x *Indexer) refused(pod, model string) error {
	if profile, err := x.profile(pod, model); err != nil && profile.Approximate != nil {
		return fmt.Errorf("WithProfile: %w", err)
	}
	return nil
}

// makeRoom forgets what a pod is believed to have of a model, if it may have no more models:
// a message counts for more than a name that a request has brought. A model that nothing was
// sent for goes first. p.mu is held.
func (x *Indexer) makeRoom(p *pod, model string) {
	if p.models[model] != nil || p.asked[model] != nil || len(p.models)+len(p.asked) < maxModels {
		return
	}
	var name string
	for _, n := range slices.Sorted(maps.Keys(p.models)) {
		pm := p.models[n]
		if pm.approx.Load() == nil || len(pm.streams) > 0 {
			continue
		}
		x.ledger.mu.RLock()
		idle := len(pm.holders) == 0
		x.ledger.mu.RUnlock()
		if name == "" || idle {
			name = n
		}
		if idle {
			break
		}
	}
	if p.models[name] != nil {
		x.drop(p, name)
	}
}

// of returns what is believed of a rank, made if need be; nil: there are too many. ledger.mu
// is held.
func (a *approximation) of(view *index.View) *rankEstimate {
	at, ok := slices.BinarySearchFunc(a.ranks, view.Source.Rank, func(e *rankEstimate, rank int) int { return e.view.Source.Rank - rank })
	if ok {
		return a.ranks[at]
	}
	if len(a.ranks) >= maxRanks {
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
