// Pods: what is known of a pod beside its blocks, its locks and its states.
//
// # Locks
//
// pod.order is held by whoever changes what was heard of a pod, also during a call of the
// index, so the messages of a pod follow one another. pod.mu guards the fields, and is
// released during each call of the index (pod.call). A score, Explain, Pods and Stats take
// only pod.mu, so they never wait for a backend that hangs in Apply. A state is an atomic, and
// ranks are in a list that is replaced when one comes, so a score reads them without pod.mu.
// It takes pod.mu only to register a pod that is listed or approximate.

package kvindex

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/view"
)

// Bounds on what the Indexer remembers beside blocks. A message beyond one of them is an
// error, and is not applied; but adapters are only counted. What other processes tell
// (WithIndex) beyond a bound is left out.
const (
	maxPods   = 1 << 16
	maxModels = 16 // of a pod
)

// pod is what the Indexer knows of a pod, beside its blocks.
type pod struct {
	name string

	// order is held by whoever changes what was heard of the pod, also while the index
	// works on it. So the messages of a pod follow one another. It is taken before mu.
	order sync.Mutex

	// mu guards all below. Nobody holds it while the index works, so a score may take it.
	mu      sync.Mutex
	removed bool // RemovePod took it: look it up again
	calling bool // the index works on it, so it must not be removed by a score
	models  map[string]*podModel
	// asked has what WithProfile's function said of other models. No message for these was
	// taken: the Profile, or a message beside it, was refused.
	asked map[string]*profileReply
}

// profileReply is an answer of WithProfile's function.
type profileReply struct {
	profile engine.Profile
	err     error // the profile cannot be used
}

// podModel is what a pod serves of one model.
type podModel struct {
	podstate.Pod
	listed *listing // not nil: others feed the pod, and nothing of it was heard here
	told   publishedPod
	sent   predict.Pod
	alone  atomic.Pointer[podList] // the pod
}

// settle works out the states that scores have, of the ranks and of the pod, after a
// rank's or a stream's has changed. It returns the pod's one before and the new one.
// pod.mu is held.
func (pm *podModel) settle() (from, to view.State) {
	from, to, heard := pm.Pod.Settle(pm.sent.Room() != nil)
	if heard {
		pm.sent.Hear()
	}
	return from, to
}

// model is what scores need to know of a model. Guarded by Indexer.mu.
type model struct {
	everyone *podList
	pods     map[string]*podModel
	// unheard has pods that something was sent to, and of which nothing was heard. They are
	// not known otherwise. Those without a prediction go when another one comes.
	unheard  map[string]*podModel
	adapters map[string]map[string]bool  // to the pods that told of it
	forms    atomic.Pointer[recentForms] // that texts were cut in last
}

// noteHybrid has scores know that the pod's model is a hybrid one. So it stays if a
// rank has announced one group only since its cache was emptied.
func (in *ingest) noteHybrid(r *podstate.Rank) {
	if f := in.pm.Shown.Facts(); !f.Hybrid && in.pm.Shown.Profile.Hybrid(r.Groups) {
		f.Hybrid = true
		in.pm.Shown.Publish(f)
		in.x.mu.Lock()
		in.x.heard.Add(1)
		in.x.mu.Unlock()
	}
}

// noteForm notes in which blocks the rank caches, for prompts that are sent to ranks that hold
// nothing. Parts of blocks are smaller, and change nothing.
func (in *ingest) noteForm(r *podstate.Rank) {
	if in.stats.StoredEvents == 0 {
		return // what a snapshot has of groups does not tell pairs
	}
	known := in.pm.sent.Blocks()
	same := known != nil && known.Pairs == r.Pairs && len(known.Groups) >= len(r.Groups)
	for i := 0; same && i < len(r.Groups); i++ {
		g := &r.Groups[i]
		same = slices.ContainsFunc(known.Groups, func(k index.GroupLayout) bool {
			return k.ID == g.ID && (k.BlockSize == g.BlockSize || k.BlockSize > g.BlockSize && len(r.Groups) > 1)
		})
	}
	if same || len(r.Groups) == 0 {
		return
	}
	in.pm.Formed = engine.Form{Groups: slices.Clone(r.Groups), Pairs: r.Pairs}
	in.x.ledger.SetForm(&in.pm.sent, in.pm.Formed.View(&in.pm.Shown.Profile))
	in.x.mu.Lock()
	in.x.heard.Add(1)
	in.x.mu.Unlock()
}

// pod returns a pod that was heard, or nil.
func (x *registry) pod(name string) *pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[name]
}

// lock locks the pod for a change of what was heard of it.
func (p *pod) lock() {
	p.order.Lock()
	p.mu.Lock()
}

func (p *pod) unlock() {
	p.mu.Unlock()
	p.order.Unlock()
}

// call begins a call of the index by the caller of lock, and called ends it. Meanwhile mu is
// free: scores may add models to the pod that are listed or approximate, and remove these.
func (p *pod) call(x *registry) (context.Context, context.CancelFunc) {
	p.calling = true
	p.mu.Unlock()
	return x.applying()
}

func (p *pod) called(cancel context.CancelFunc) {
	cancel()
	p.mu.Lock()
	p.calling = false
}

// findPod returns the pod, made if need be.
func (x *registry) findPod(name string) (*pod, error) {
	if p := x.pod(name); p != nil {
		return p, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pods[name]
	if p == nil {
		if len(x.pods) >= maxPods {
			return nil, fmt.Errorf("kvindex: pod %q is one more than %d", name, maxPods)
		}
		p = &pod{name: name, models: make(map[string]*podModel), asked: make(map[string]*profileReply)}
		x.pods[name] = p
	}
	return p, nil
}

// lockPod returns the pod, made if need be, after lock.
func (x *registry) lockPod(name string) (*pod, error) {
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

// lockPodBriefly is lockPod for scores: of the locks it takes mu alone.
func (x *registry) lockPodBriefly(name string) (*pod, error) {
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

// lockHeard returns a pod that was heard for the model, after lock, and what it serves of
// the model; nil if there is none.
func (x *registry) lockHeard(name, model string) (*pod, *podModel) {
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

// lockServed returns a pod that was heard or is listed for the model, with its mu held, and
// what it serves of the model; nil if there is none.
func (x *registry) lockServed(name, model string) (*pod, *podModel) {
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

// profileFor returns the profile of p for a model, if a batch can be taken with it.
// WithProfile's function is asked if it was not asked yet. p.mu is held.
func (x *registry) profileFor(p *pod, model string, b *events.Batch) (profile *engine.Profile, err error) {
	if pm := p.models[model]; pm != nil {
		profile = &pm.Shown.Profile
	} else {
		a := p.asked[model]
		if a == nil {
			if len(p.models)+len(p.asked) >= maxModels {
				return nil, fmt.Errorf("kvindex: pod %q: model %q is one more than the %d that a pod may have", p.name, model, maxModels)
			}
			a = &profileReply{}
			a.profile, a.err = x.Profile(p.name, model)
			p.asked[model] = a
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

// podModel returns what p serves of a model, made if need be, with the profile that
// profileFor has for it. What was listed gives way to what is heard. p.mu is held.
func (x *registry) podModel(p *pod, name string, profile *engine.Profile) *podModel {
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
	delete(p.asked, name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if old != nil {
		x.forget(p.name, name, old)
	}
	md := x.models[name]
	if md == nil {
		md = &model{
			everyone: &podList{x: x, model: name, base: true},
			pods:     make(map[string]*podModel),
			adapters: make(map[string]map[string]bool),
		}
		x.models[name] = md
	}
	if sent := md.unheard[p.name]; sent != nil {
		x.ledger.Hand(&sent.sent, &pm.sent)
		delete(md.unheard, p.name)
	}
	md.pods[p.name] = pm
	x.heard.Add(1)
	return pm
}

// sendTo returns what is kept of a pod that something is sent to before anything of it was
// heard; nil: nobody knows in which blocks it may cache, its Profile is refused, or there are
// too many.
func (x *registry) sendTo(pod, model string) *podModel {
	profile, err := x.Profile(pod, model)
	if err != nil || x.check(pod, model) != nil || profile.Approximate != nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	md := x.models[model]
	if md == nil {
		return nil
	}
	if pm := md.served(pod); pm != nil {
		return pm
	}
	for name, pm := range md.unheard {
		if pm.sent.Live() == 0 {
			md.leaveUnheard(x.ledger, name)
		}
	}
	if md.lent()[profile.Media] == nil || len(md.unheard) >= maxPods {
		return nil
	}
	pm := &podModel{}
	pm.Shown.Profile, pm.sent.Media = profile, profile.Media
	if md.unheard == nil {
		md.unheard = make(map[string]*podModel)
	}
	md.unheard[pod] = pm
	x.heard.Add(1)
	return pm
}

// served returns what a pod serves of the model, nil if nothing is known of it. Indexer.mu is
// held.
func (md *model) served(pod string) *podModel {
	if pm := md.pods[pod]; pm != nil {
		return pm
	}
	return md.unheard[pod]
}

// leaveUnheard forgets what was sent to a pod of which nothing was heard. Indexer.mu is held.
func (md *model) leaveUnheard(l *predict.Ledger, pod string) {
	if pm := md.unheard[pod]; pm != nil {
		l.Lose(&pm.sent, -1, true)
		delete(md.unheard, pod)
	}
}

// lent returns the blocks of the pods. Indexer.mu is held.
func (md *model) lent() predict.Lent {
	return predict.Lend(func(yield func(*predict.Pod) bool) {
		for _, pm := range md.pods {
			if !yield(&pm.sent) {
				return
			}
		}
	})
}

// learnAdapters lets requests find the adapters of a batch by their names.
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
		in.x.learnAdapter(a, in.model, in.pod)
	}
}

// learnAdapter notes that a pod told of an adapter of a model.
func (x *registry) learnAdapter(name, model, pod string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	md := x.models[model]
	if md.adapters[name] == nil {
		md.adapters[name] = make(map[string]bool)
	}
	md.adapters[name][pod] = true
	x.heard.Add(1)
}

// RemovePod forgets a pod.
func (x *registry) RemovePod(name string) error {
	if x.closed.Load() {
		return errClosed
	}
	p, err := x.lockPod(name) // keeps ingests away that would bring it back half
	if err != nil {
		return nil // there is no room for it, so it is not there
	}
	defer p.unlock()
	if err := x.removeBlocks(p); err != nil {
		return x.failed(fmt.Errorf("kvindex: removing pod %q: %w", name, err))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p.removed = true
	delete(x.pods, name)
	x.heard.Add(1)
	for m, pm := range p.models {
		x.forget(name, m, pm)
	}
	for _, md := range x.models {
		md.leaveUnheard(x.ledger, name)
	}
	return nil
}

func (x *registry) removeBlocks(p *pod) error {
	ctx, cancel := p.call(x)
	defer p.called(cancel)
	return x.index.Remove(ctx, p.name)
}

// forget takes from a model what scores know of a pod. x.mu is held.
func (x *registry) forget(pod, model string, pm *podModel) {
	x.ledger.Lose(&pm.sent, -1, true)
	md := x.models[model]
	delete(md.pods, pod)
	md.forgetAdapters(pod, pm.Adapters)
	if len(md.pods) == 0 {
		for name := range md.unheard {
			md.leaveUnheard(x.ledger, name)
		}
		delete(x.models, model)
	}
}

// forgetAdapters takes note that a pod has not told of adapters. Indexer.mu is held.
func (md *model) forgetAdapters(pod string, adapters map[string]struct{}) {
	for a := range adapters {
		if delete(md.adapters[a], pod); len(md.adapters[a]) == 0 {
			delete(md.adapters, a)
		}
	}
}

// drop forgets what a pod serves of a model. p.mu is held.
func (x *registry) drop(p *pod, model string) {
	pm := p.models[model]
	delete(p.models, model)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heard.Add(1)
	x.forget(p.name, model, pm)
}

// leaveEmpty forgets of a pod what it was to serve of a model, if nothing of that was
// ever heard and no stream of it is to come, and the pod if it has nothing else. It
// reports whether it did. pod.mu is held.
func (x *registry) leaveEmpty(p *pod, model string) bool {
	pm := p.models[model]
	if len(pm.Ranks) > 0 || len(pm.Streams) > 0 || pm.sent.Room() != nil {
		return false
	}
	if pm.told.is {
		x.tellGone(index.Source{Pod: p.name, Model: model})
	}
	x.drop(p, model)
	x.directory.redo.Store(true)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leaveUnknown(p)
	return true
}

// leaveUnknown forgets a pod of which nothing is known, unless the index works on it: the next
// message would find another pod of the name, and wait for nothing. p.mu and x.mu are held.
func (x *registry) leaveUnknown(p *pod) {
	if len(p.models)+len(p.asked) == 0 && !p.calling {
		p.removed = true
		delete(x.pods, p.name)
	}
}
