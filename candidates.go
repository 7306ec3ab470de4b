package kvindex

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
)

// Candidates are pods to score for a model, whose names are resolved once and
// not for each request. They are immutable, safe for concurrent use, and follow
// the pods as they come and go. They are made by [Indexer.Candidates].
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
	err           error
	names         []string          // sorted
	states        []*podModel       // nil: never heard
	hashes        []uint64          // of names, for ties
	index         *index.Candidates // names
}

// Candidates resolves pods to score for a model. Pods nil: every pod heard for
// the model, now or later; empty: none. It keeps nothing of pods.
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
	if adapter == "" && x.models[c.model] == nil && x.tokenizers[c.model] == nil {
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
			set.states[i] = md.pods[name]
		}
	}
	if set.names == nil {
		set.names = []string{}
	}
	set.index = index.NewCandidates(set.base, set.names)
	return set
}

func (set *candidateSet) state(i int32) State {
	if pm := set.states[i]; pm != nil {
		return State(pm.state.Load())
	}
	return StateUnknown
}
