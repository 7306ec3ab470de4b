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
	"github.com/kvindex/kvindex/internal/engine"
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

// introduce makes those candidates known that no event has come from, and whose Profile says
// that none will. It reports whether there are some.
func (x *Indexer) introduce(set *candidateSet) (some bool) {
	if !x.profiled || set.err != nil {
		return false
	}
	for i, p := range set.pods {
		if p == nil && x.check(set.names[i], set.base) == nil && x.introducePod(set.names[i], set.base) {
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
		if pm.sent.Room() == nil || len(pm.streams) > 0 {
			continue
		}
		idle := x.ledger.Idle(&pm.sent)
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
