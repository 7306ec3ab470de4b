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
	"fmt"
	"maps"
	"slices"

	"github.com/kvindex/kvindex/events"
)

// introduce makes those candidates known that no event has come from, and whose Profile says
// that none will. It reports whether there are some.
func (x *registry) introduce(set *candidateSet) (some bool) {
	if !x.Profiled || set.err != nil {
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
func (x *registry) introducePod(pod, model string) bool {
	if profile, err := x.Profile(pod, model); err != nil || profile.Approximate == nil {
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
func (x *registry) refused(pod, model string) error {
	if profile, err := x.Profile(pod, model); err != nil && profile.Approximate != nil {
		return fmt.Errorf("WithProfile: %w", err)
	}
	return nil
}

// makeRoom forgets what a pod is believed to have of a model, if it may have no more models:
// a message counts for more than a name that a request has brought. A model that nothing was
// sent for goes first. p.mu is held.
func (x *registry) makeRoom(p *pod, model string) {
	if p.models[model] != nil || p.asked[model] != nil || len(p.models)+len(p.asked) < maxModels {
		return
	}
	var name string
	for _, n := range slices.Sorted(maps.Keys(p.models)) {
		pm := p.models[n]
		if pm.sent.Room() == nil || len(pm.Streams) > 0 {
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
