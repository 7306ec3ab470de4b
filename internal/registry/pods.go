// Pods: the state of a pod beside its blocks, and its locks.
//
// # Locks
//
// A writer of a pod holds pod.order, also during calls of the index, so the messages of a pod
// follow one another. pod.mu guards the fields, and is released during each call of the index
// (pod.call). A score, Explain, Pods and Stats take only pod.mu, so they never wait for a
// backend that hangs in Apply. A score reads views (package view), and takes pod.mu only to
// register a pod that is listed or approximate.
//
// # Approximate pods
//
// A pod is approximate or exact, and never both. The figure of an approximate pod is
// PredictedTokens alone, because CachedTokens promises never to be too high. The first event
// drops the estimate: from then on the rules for events hold, and the state shows the gaps.
//
// WithProfile's function is called when a request names the pod, because no event comes that
// could register it. Its results for other pods are not kept: names of pods may come from
// clients, and would fill the room for real pods. So the function is called again, until an
// event or an Approximate comes.

package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/view"
)

// Bounds on the pods that a Registry keeps. A message beyond a bound is an error, and is not
// applied; but adapters beyond engine.MaxAdapters are only counted. Pods that other processes
// feed (WithIndex) are left out beyond a bound.
const (
	maxPods   = 1 << 16
	maxModels = 16 // of a pod
)

// pod is the state of a pod, beside its blocks.
type pod struct {
	name string

	// order is held by a writer of the pod, also during calls of the index. So the messages
	// of a pod follow one another. It is taken before mu.
	order sync.Mutex

	// mu guards all below. It is free during calls of the index, so a score may take it.
	mu      sync.Mutex
	removed bool // RemovePod has removed the pod: look it up again
	calling bool // a call of the index is under way, so a score must not remove the pod
	models  map[string]*podModel
	// replies has the results of WithProfile's function for other models. No message for these
	// was applied: the Profile, or a message with it, was refused.
	replies map[string]*profileReply
}

// profileReply is a result of WithProfile's function.
type profileReply struct {
	profile engine.Profile
	err     error // the profile cannot be used
}

// podModel is a pod for one model.
type podModel struct {
	podstate.Pod
	listed *listing // not nil: another process feeds the pod, and no message came here
	sent   predict.Pod
	entry  catalog.Entry // in the catalog
}

// settle publishes the states of the ranks and of the pod, after the state of a rank or of a
// stream has changed. It returns the state of the pod before and after. pod.mu is held.
func (pm *podModel) settle() (from, to view.State) {
	if pm.sent.Room() != nil && pm.Reports() {
		pm.sent.MakeExact()
	}
	return pm.Settle(pm.sent.Room() != nil)
}

// noteKinds publishes whether the pod's model is a hybrid model, and that the pod has tiers below
// the gpu. Both stay so when its cache is emptied.
func (in *ingest) noteKinds() {
	f := in.pm.Shown.Facts()
	known := f
	f.Hybrid = slices.ContainsFunc(in.pm.ByNumber, func(r *podstate.Rank) bool { return in.pm.Shown.Profile.Hybrid(r.Groups) })
	f.Tiered, f.Paged = f.Tiered || in.convert.Tiered, f.Paged || in.convert.Paged
	f.Single = f.Single || in.convert.Single
	if f != known {
		in.pm.Shown.Publish(f)
		in.x.catalog.Changed()
	}
}

// noteForm notes the form of the rank's blocks, for prompts that are routed to ranks that hold
// nothing.
func (in *ingest) noteForm(r *podstate.Rank) {
	if in.stats.events[events.Stored] == 0 {
		return // groups from a snapshot do not show whether blocks are of pairs
	}
	formed, changed := in.convert.Form(in.pm.sent.Blocks(), r.Groups, r.Pairs)
	if !changed || formed.Equal(&in.pm.Formed) {
		return
	}
	in.pm.Formed = formed
	in.x.ledger.SetForm(&in.pm.sent, in.pm.Formed.View(&in.pm.Shown.Profile))
	in.x.catalog.Changed()
}

// pod returns a registered pod, or nil.
func (x *Registry) pod(name string) *pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[name]
}

// lock locks the pod for a writer.
func (p *pod) lock() {
	p.order.Lock()
	p.mu.Lock()
}

func (p *pod) unlock() {
	p.mu.Unlock()
	p.order.Unlock()
}

// call begins a call of the index by the caller of lock, and called ends it. Meanwhile mu is
// free: scores may add listed or approximate models to the pod, and remove these.
func (p *pod) call(x *Registry) (context.Context, context.CancelFunc) {
	p.calling = true
	p.mu.Unlock()
	return x.Applying()
}

func (p *pod) called(cancel context.CancelFunc) {
	cancel()
	p.mu.Lock()
	p.calling = false
}

// findPod returns the pod, and registers it if needed.
func (x *Registry) findPod(name string) (*pod, error) {
	if p := x.pod(name); p != nil {
		return p, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pods[name]
	if p == nil {
		if len(x.pods) >= maxPods {
			return nil, fmt.Errorf("kvindex: pod %q: %w: there are %d pods already", name, index.ErrFull, maxPods)
		}
		p = &pod{name: name, models: make(map[string]*podModel), replies: make(map[string]*profileReply)}
		x.pods[name] = p
	}
	return p, nil
}

// lockPod is findPod followed by lock.
func (x *Registry) lockPod(name string) (*pod, error) {
	for {
		p, err := x.findPod(name)
		if err != nil {
			return nil, err
		}
		p.lock()
		if !p.removed {
			return p, nil
		}
		p.unlock()
	}
}

// lockPodBriefly is lockPod for scores: it takes mu alone.
func (x *Registry) lockPodBriefly(name string) (*pod, error) {
	for {
		p, err := x.findPod(name)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		if !p.removed {
			return p, nil
		}
		p.mu.Unlock()
	}
}

// lockRegistered returns a pod that this Indexer feeds for the model, after lock, and its
// podModel; nil if there is none.
func (x *Registry) lockRegistered(name, model string) (*pod, *podModel) {
	p := x.pod(name)
	if p == nil {
		return nil, nil
	}
	p.lock()
	if pm := p.models[model]; pm != nil && pm.listed == nil && !p.removed {
		return p, pm
	}
	p.unlock()
	return nil, nil
}

// lockServed returns a pod that is registered or listed for the model, with its mu held, and
// its podModel; nil if there is none.
func (x *Registry) lockServed(name, model string) (*pod, *podModel) {
	p := x.pod(name)
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	if pm := p.models[model]; pm != nil && !p.removed {
		return p, pm
	}
	p.mu.Unlock()
	return nil, nil
}

// profileFor returns the profile of p for a model, if a batch can be applied with it. It calls
// WithProfile's function at the first time. p.mu is held.
func (x *Registry) profileFor(p *pod, model string, b *events.Batch) (profile *engine.Profile, err error) {
	if pm := p.models[model]; pm != nil {
		profile = &pm.Shown.Profile
	} else {
		a := p.replies[model]
		if a == nil {
			if len(p.models)+len(p.replies) >= maxModels {
				return nil, fmt.Errorf("kvindex: pod %q: model %q: %w: the pod has %d models already", p.name, model, index.ErrFull, maxModels)
			}
			a = &profileReply{}
			a.profile, a.err = x.Profile(p.name, model)
			p.replies[model] = a
		}
		profile, err = &a.profile, a.err
	}
	if err == nil {
		err = profile.CheckGrain(b)
	}
	if err != nil {
		return nil, fmt.Errorf("kvindex: WithProfile: pod %q: model %q: %w", p.name, model, err)
	}
	return profile, nil
}

// podModel returns the podModel of p for a model, made if needed with the profile of
// profileFor. It replaces a listed podModel. p.mu is held.
func (x *Registry) podModel(p *pod, name string, profile *engine.Profile) *podModel {
	old := p.models[name]
	if old != nil && old.listed == nil {
		return old
	}
	pm := &podModel{Pod: podstate.New()}
	pm.Shown.Profile, pm.sent.Media = *profile, profile.Media
	if profile.Approximate != nil {
		pm.sent.Approximate(profile)
		pm.Shown.Publish(view.Facts{State: view.Approximate})
	}
	p.models[name] = pm
	delete(p.replies, name)
	pm.entry.View, pm.entry.Sent = &pm.Shown, &pm.sent
	if old != nil {
		x.catalog.Replace(p.name, name, &pm.entry, &old.entry, old.Adapters)
	} else {
		x.catalog.Add(p.name, name, &pm.entry)
	}
	return pm
}

// SendTo returns the entry of a pod to which a prompt is routed before it has reported; nil:
// the form of its blocks is not known, its Profile is refused, or there are too many pods.
func (x *Registry) SendTo(pod, model string) *catalog.Entry {
	profile, err := x.Profile(pod, model)
	if err != nil || x.check(pod, model) != nil || profile.Approximate != nil {
		return nil
	}
	return x.catalog.SendTo(pod, model, &profile)
}

// learnAdapters registers the adapters of a batch, so that requests can name them.
func (in *ingest) learnAdapters() {
	for i := range in.batch.Events {
		a := in.pm.Shown.Profile.AdapterOf(&in.batch.Events[i])
		if a == "" {
			continue
		}
		if _, ok := in.pm.Adapters[a]; ok {
			continue
		}
		if len(in.pm.Adapters) >= engine.MaxAdapters || len(a) > engine.MaxName {
			in.stats.Adapters++
			continue
		}
		in.pm.Adapters[a] = struct{}{}
		in.x.catalog.LearnAdapter(a, in.model, in.pod)
	}
}

// RemovePod implements Indexer.RemovePod.
func (x *Registry) RemovePod(name string) error {
	if x.closed.Load() {
		return ErrClosed
	}
	p, err := x.lockPod(name) // keeps ingests away that would bring it back half
	if err != nil {
		return nil // there is no room for it, so it is not there
	}
	defer p.unlock()
	if err := x.removeBlocks(p); err != nil {
		x.leaveUnknown(p)
		return x.Failed(fmt.Errorf("kvindex: removing pod %q: %w", name, err))
	}
	for m, pm := range p.models {
		x.catalog.Remove(name, m, &pm.entry, pm.Adapters)
	}
	x.catalog.Leave(name)
	x.mu.Lock() // last: from then on another pod of the name can be registered
	defer x.mu.Unlock()
	p.removed = true
	delete(x.pods, name)
	return nil
}

func (x *Registry) removeBlocks(p *pod) error {
	ctx, cancel := p.call(x)
	defer p.called(cancel)
	return x.Index.Remove(ctx, p.name)
}

// drop forgets the podModel of a model. p.mu is held.
func (x *Registry) drop(p *pod, model string) {
	pm := p.models[model]
	delete(p.models, model)
	x.catalog.Remove(p.name, model, &pm.entry, pm.Adapters)
}

// leaveEmpty forgets the podModel of a model if it has no rank and no stream, and the pod if
// it has nothing else. It reports whether it did. pod.mu is held.
func (x *Registry) leaveEmpty(p *pod, model string) bool {
	pm := p.models[model]
	if len(pm.Ranks) > 0 || len(pm.Streams) > 0 || pm.sent.Room() != nil {
		return false
	}
	if pm.HasNote() {
		x.withdrawNote(index.Source{Pod: p.name, Model: model})
	}
	x.drop(p, model)
	x.directory.redo.Store(true)
	x.leaveUnknown(p)
	return true
}

// leaveUnknown forgets an empty pod, unless a call of the index is under way: the next message
// would find another pod of the same name, and would not wait for that call. p.mu is held.
func (x *Registry) leaveUnknown(p *pod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(p.models)+len(p.replies) == 0 && !p.calling {
		p.removed = true
		delete(x.pods, p.name)
	}
}

// Introduce registers a pod that has reported nothing and whose Profile has an Approximate. It
// reports whether there is such a pod. Profiles of other pods are not kept: WithProfile's
// function is called again.
func (x *Registry) Introduce(pod, model string) bool {
	if x.Estimated == nil || x.check(pod, model) != nil || !x.Estimated(pod, model) {
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
	delete(p.replies, model)
	x.leaveUnknown(p)
	return false
}

// Refused returns the error of the Profile of a pod that is not registered; nil: the Profile
// is valid, or has no Approximate.
func (x *Registry) Refused(pod, model string) error {
	if profile, err := x.Profile(pod, model); err != nil && profile.Approximate != nil {
		return fmt.Errorf("WithProfile: %w", err)
	}
	return nil
}

// makeRoom drops the estimate of a pod for one model if the pod may have no more models: a
// message counts for more than a name from a request. A model without routed prompts goes
// first. p.mu is held.
func (x *Registry) makeRoom(p *pod, model string) {
	if p.models[model] != nil || p.replies[model] != nil || len(p.models)+len(p.replies) < maxModels {
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
