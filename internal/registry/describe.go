// Describe: counters and descriptions of pods, for people.

package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/explain"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/stats"
)

// Stats adds the counters of pods, messages and predictions to s.
func (x *Registry) Stats(s *stats.Stats) {
	x.listNow()
	x.statsMu.Lock()
	n := x.stats
	x.statsMu.Unlock()
	s.Counters, s.MalformedBy = n.Counters, make(map[string]uint64)
	for i, reason := range fault.Reasons {
		s.MalformedBy[reason] = n.malformed[i]
	}
	s.Events = map[string]uint64{"stored": n.events[events.Stored], "removed": n.events[events.Removed], "cleared": n.events[events.Cleared], "unknown": n.events[0]}
	x.ledger.Stats(s)
	s.Models, s.States = x.catalog.Count(), make(map[string]int)
	if d, ok := x.Index.(index.Describer); ok {
		s.Index = d.MemoryUsage()
		for _, info := range x.sources(d) {
			s.Ranks++
			s.Parked += info.Parked
			s.Unplaced += info.Unplaced
			for t, n := range info.Blocks {
				s.Blocks[t] += n
			}
		}
	}
	var last *pod
	x.eachPod(func(p *pod, _ string, pm *podModel) {
		if p != last {
			last = p
			s.Pods++
		}
		if pm.listed != nil { // ranks of other pods were counted by Describe above
			s.Ranks += len(pm.Ranks)
		}
		pm.Count(s)
	})
}

// Pods returns descriptions of the pods.
func (x *Registry) Pods() []podstate.Info {
	if x.closed.Load() {
		return nil
	}
	x.listNow()
	known, now := x.known(), time.Now()
	pods := make([]podstate.Info, 0, x.count())
	x.eachPod(func(p *pod, model string, pm *podModel) {
		info := podstate.Info{Pod: p.name, Model: model}
		pm.Describe(&info, known, now, pm.listed != nil)
		pods = append(pods, info)
	})
	return pods
}

// Pod returns the description of one pod; false: the pod does not have the model. The index is
// called without pod.mu, because it may be busy with the pod.
func (x *Registry) Pod(name, model string) (info podstate.Info, ok bool) {
	if x.closed.Load() {
		return info, false
	}
	p, pm := x.lockServed(name, model)
	if p == nil {
		return info, false
	}
	var ranks []int
	if pm.listed == nil { // else the index here does not have them
		ranks = slices.Collect(maps.Keys(pm.Ranks))
	}
	p.mu.Unlock()
	known := make(map[index.Source]index.SourceInfo, len(ranks))
	if d, ok := x.Index.(index.Describer); ok {
		for _, n := range ranks {
			src := index.Source{Pod: name, Model: model, Rank: n}
			known[src], _ = d.DescribeSource(src)
		}
	}
	if p, pm = x.lockServed(name, model); p == nil {
		return info, false
	}
	defer p.mu.Unlock()
	info.Pod, info.Model = name, model
	pm.Describe(&info, known, time.Now(), pm.listed != nil)
	return info, true
}

// count returns the number of registered pods.
func (x *Registry) count() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.pods)
}

// eachPod calls f for each pod and model, with pod.mu held: for all models of one
// pod, then for those of the next.
func (x *Registry) eachPod(f func(p *pod, model string, pm *podModel)) {
	x.mu.RLock()
	pods := slices.AppendSeq(make([]*pod, 0, len(x.pods)), maps.Values(x.pods))
	x.mu.RUnlock()
	for _, p := range pods {
		p.mu.Lock()
		for model, pm := range p.models {
			f(p, model, pm)
		}
		p.mu.Unlock()
	}
}

// known returns the index's descriptions of its sources, if it is an index.Describer.
func (x *Registry) known() map[index.Source]index.SourceInfo {
	d, ok := x.Index.(index.Describer)
	if !ok {
		return nil
	}
	sources := x.sources(d)
	known := make(map[index.Source]index.SourceInfo, len(sources))
	for _, s := range sources {
		known[s.Source] = s
	}
	return known
}

// sources returns d's descriptions. Most pods have one source.
func (x *Registry) sources(d index.Describer) []index.SourceInfo {
	return d.Describe(make([]index.SourceInfo, 0, x.count()))
}

// FactsOf returns the state of a pod for Explain; nil: the pod is not registered.
func (x *Registry) FactsOf(pod, model string) *explain.Pod {
	known := x.known()
	p, pm := x.lockServed(pod, model)
	if p == nil {
		return nil
	}
	defer p.mu.Unlock()
	f := explain.Of(&pm.Pod, func(rank int) uint64 { return known[index.Source{Pod: pod, Model: model, Rank: rank}].Evicted })
	f.Listed = pm.listed != nil
	if a := pm.sent.Room(); a != nil {
		f.Approx = a.BlockTokens
	}
	return f
}
