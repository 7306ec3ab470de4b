package kvindex

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
)

// Candidates is a list of pods to score for one model, for many requests: their names
// are looked up once and not for each request. It follows pods as they come and go. It
// is made by Indexer.Candidates, never changes for its user, and is safe for concurrent
// use.
type Candidates struct {
	x     *Indexer
	model string
	pods  []string // sorted, none twice; nil: every pod heard
	set   atomic.Pointer[candidateSet]
}

// candidateSet is what is known of candidates as long as x.heard is what it
// was.
type candidateSet struct {
	heard         uint64
	base, adapter string // what the model's name means
	known         bool   // pods are known for base
	unknown       error  // wraps ErrUnknownModel: there are none, but for other models
	err           error
	names         []string          // sorted
	states        []*podModel       // nil: never heard
	hashes        []uint64          // of names, for ties
	index         *index.Candidates // names
	profiled      bool              // some Profile has Groups or Draft
}

// Candidates returns the pods with these names as Candidates for model. With pods nil
// it is all known pods of the model, now and later; with pods empty it is none. It
// keeps nothing of pods.
func (x *Indexer) Candidates(model string, pods []string) *Candidates {
	c := &Candidates{x: x, model: model}
	if pods != nil {
		c.pods = slices.Clone(pods)
		slices.Sort(c.pods)
		c.pods = slices.Compact(c.pods)
	}
	return c
}

// now returns what is known of c now.
func (c *Candidates) now() *candidateSet {
	if set := c.set.Load(); set != nil && set.heard == c.x.heard.Load() {
		return set
	}
	set := c.x.resolve(c, "")
	c.set.Store(set)
	return set
}

// candidates returns those of a request.
func (x *Indexer) candidates(r *Request) (*candidateSet, error) {
	c := r.Candidates
	if c == nil && r.Pods == nil {
		x.mu.RLock()
		if md := x.models[r.Model]; md != nil {
			c = md.everyone
		}
		x.mu.RUnlock()
	}
	if c == nil {
		c = x.Candidates(r.Model, r.Pods)
	}
	set := c.now()
	if r.Adapter != "" && set.base != c.model { // then the model's name is no adapter
		set = x.resolve(c, r.Adapter)
	}
	return set, set.err
}

// resolve looks up what c means for a request that names an adapter, or none. A
// model name that is not known as one may be an adapter that events told of.
func (x *Indexer) resolve(c *Candidates, adapter string) *candidateSet {
	x.mu.RLock()
	defer x.mu.RUnlock()
	set := &candidateSet{heard: x.heard.Load(), base: c.model}
	if _, given := x.given[c.model]; adapter == "" && x.models[c.model] == nil && !given {
		for name, md := range x.models {
			told := md.adapters[c.model]
			if len(told) == 0 || c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] }) {
				continue
			}
			if set.adapter != "" {
				set.err = fmt.Errorf("%w: %q is an adapter of both %q and %q: name the model and the adapter", ErrRequest, c.model, min(set.base, name), max(set.base, name))
				return set
			}
			set.base, set.adapter = name, c.model
		}
	}
	md := x.models[set.base]
	if set.known = md != nil; !set.known && len(x.models) > 0 {
		set.unknown = x.unknownModel(c.model)
	}
	set.names = c.pods
	if c.pods == nil && md != nil {
		for name := range md.pods {
			set.names = append(set.names, name)
		}
		slices.Sort(set.names)
	}
	set.states = make([]*podModel, len(set.names))
	set.hashes = make([]uint64, len(set.names))
	for i, name := range set.names {
		set.hashes[i] = x.hash.pod(name)
		if md != nil {
			if set.states[i] = md.pods[name]; set.states[i] != nil {
				p := &set.states[i].profile
				set.profiled = set.profiled || p.Draft == DraftLayers || len(p.Groups) > 0
			}
		}
	}
	if set.names == nil {
		set.names = []string{}
	}
	set.index = index.NewCandidates(set.base, set.names)
	return set
}

// unknownModel says what is known instead of a model. x.mu is held.
func (x *Indexer) unknownModel(name string) error {
	names := slices.Sorted(maps.Keys(x.models))
	for _, base := range names {
		if len(x.models[base].adapters[name]) > 0 {
			return fmt.Errorf("%w %.100q: it is an adapter of %.100q, but no event of the pods in the request has named it: set Model to %.100[3]q, and Adapter to the adapter", ErrUnknownModel, name, base)
		}
	}
	const most = 3
	list := fmt.Sprintf("%.100q", names[:min(most, len(names))])
	if len(names) > most {
		list = fmt.Sprintf("%s and %d more", list, len(names)-most)
	}
	return fmt.Errorf("%w %.100q: there are pods for %s only: is it one of these under another name (--served-model-name)? %s", ErrUnknownModel, name, list, maybeAdapter)
}

const maybeAdapter = "It may also be an adapter that no event has named yet: set Model to the base model, and Adapter to the adapter"

// unknownAdapter returns an error if no pod has told of an adapter of a model, but
// some pod could have.
func (x *Indexer) unknownAdapter(model, name string) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	md := x.models[model]
	if md == nil || len(md.adapters[name]) > 0 {
		return nil
	}
	for _, pm := range md.pods {
		if State(pm.state.Load()) != StateSilent {
			return fmt.Errorf("%w %.100q of model %.100q: no event has named it, events have named %d others: either no block of it was stored yet, or the events have another name for it (SGLang's events have no adapters)", ErrUnknownAdapter, name, model, len(md.adapters))
		}
	}
	return nil
}

// explain adds to an error about the model of set that its name is not known.
func (set *candidateSet) explain(err error) error {
	switch {
	case outcomeOf(err) == OutcomeCancelled: // says nothing of the name
	case set.unknown != nil:
		return fmt.Errorf("%w (%w)", err, set.unknown)
	case !set.known:
		return fmt.Errorf("%w (no pod is known. %s)", err, maybeAdapter)
	}
	return err
}

func (set *candidateSet) state(i int32) State {
	if pm := set.states[i]; pm != nil {
		return State(pm.state.Load())
	}
	return StateUnknown
}
