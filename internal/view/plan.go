// Plans: the rule by which the rows of a source become cached tokens.
//
// A source of one full-attention group would reuse its leading run of gpu blocks
// (reuse.CachedTokens). For any other source the groups are judged together, by the rule of
// package reuse. The rule needs a plan beside the blocks. The plan follows from the groups
// that the source has announced (index.Layout) and from the Profile of the pod, and is
// kept as long as the source announces no new group.
//
// The index does not judge hybrids. The engine's reuse follows from its version and its
// settings, and its holdings follow from its events. So the index reports for each block which
// groups hold it, as bits that one pass along the prompt fills for all pods, and package reuse
// has vLLM's rule over such bits. Sources of one full-attention group have no bits and no
// rule. The index in memory returns the same layout object until an event changes it. For a
// backend that returns copies, the groups in the layout are compared.

package view

import (
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/reuse"
)

// Plan is the rule for a source with a layout.
type Plan struct {
	layout *index.Layout
	Rule   *reuse.Plan // nil: no group can be judged, so the run of the main group is the bound
	Main   int         // the full-attention group with the lowest ID, in layout.Groups; -1: none
	Upper  bool        // the engine may reuse less than Rule returns

	groups []reuse.Group
	grain  int
	loads  atomic.Pointer[[]chunkLoad]
}

// chunkLoad is the rule of loads in chunks of so many blocks; nil: there is none.
type chunkLoad struct {
	chunk int
	rule  *reuse.Load
}

// maxLoads bounds the rules of loads of a Plan: events name the sizes of chunks.
const maxLoads = 8

// Load returns the rule of what the source loads from lower tiers in chunks of so many blocks;
// nil: no engine has such groups.
func (p *Plan) Load(chunk int) *reuse.Load {
	var known []chunkLoad
	if all := p.loads.Load(); all != nil {
		known = *all
	}
	for _, l := range known {
		if l.chunk == chunk {
			return l.rule
		}
	}
	rule, err := reuse.NewLoad(p.groups, chunk, p.grain)
	if err != nil {
		rule = nil
	}
	now := append([]chunkLoad{{chunk, rule}}, known[:min(len(known), maxLoads-1)]...)
	p.loads.Store(&now)
	return rule
}

// Plans has the plans of a pod for one model. It is safe for concurrent use.
type Plans struct{ all atomic.Pointer[[]*Plan] }

// Of returns the plan for a layout, made if needed, for a pod of so many ranks. Each rank may
// have its own groups, and new groups when it announces them: the oldest plans are dropped.
// Layouts are compared by pointer first, but not every index returns the same pointer again
// (index.Layout), so equal groups have one Plan.
func (ps *Plans) Of(l *index.Layout, p *engine.Profile, ranks int) *Plan {
	keep := 2*ranks + 2
	for {
		all := ps.all.Load()
		var old []*Plan
		if all != nil {
			old = *all
			for i := len(old) - 1; i >= 0; i-- {
				if known := old[i].layout; known == l || slices.Equal(known.Groups, l.Groups) {
					return old[i]
				}
			}
		}
		made := newPlan(l, p)
		now := append(slices.Clone(old[max(0, len(old)+1-keep):]), made)
		if ps.all.CompareAndSwap(all, &now) {
			return made
		}
	}
}

func newPlan(l *index.Layout, p *engine.Profile) *Plan {
	groups := make([]reuse.Group, len(l.Groups))
	grain, main := p.Grain, -1
	for i, announced := range l.Groups {
		g := p.Corrected(announced.Group)
		groups[i] = reuse.Group{Kind: g.Kind, Window: g.Window, Block: announced.BlockSize, Draft: g.Draft}
		switch {
		case announced.BlockSize == 0:
			groups[i] = reuse.Group{Kind: index.GroupOther, Block: 1}
		case g.Kind == index.GroupFull && main < 0:
			main = i
		}
		// A full-attention group reports parts of blocks, whether they count or not.
		if p.Grain == 0 && g.Kind == index.GroupMamba && announced.Grain < announced.BlockSize && (grain == 0 || announced.Grain < grain) {
			grain = announced.Grain
		}
	}
	made := &Plan{layout: l, Main: main, Upper: p.Draft == engine.DraftUnknown || p.Lists(l), groups: groups, grain: grain}
	rule, err := reuse.New(groups, grain)
	if err != nil {
		// No engine has such groups. The full-attention groups alone are the bound.
		made.Upper = true
		for i := range groups {
			if groups[i].Kind != index.GroupFull {
				groups[i] = reuse.Group{Kind: index.GroupOther, Block: 1}
			}
		}
		if rule, err = reuse.New(groups, 0); err != nil {
			return made
		}
	}
	made.Rule, made.Upper = rule, made.Upper || rule.UpperBound()
	return made
}
