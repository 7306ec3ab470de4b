package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/internal/reuse"
)

// A source of one full-attention group would reuse its leading run of gpu blocks
// (cachedTokens). For any other the groups are judged together, by the rule of package
// reuse. What the rule needs beside the blocks is a plan: it follows from the groups
// that the source has announced (index.Layout) and from the Profile of the pod, and is
// kept as long as the source announces nothing new.
//
// The index does not judge hybrids. The engine's reuse follows from its version and its
// settings, and its holdings follow from its events. So the index says of each block which
// groups hold it, as bits that one pass along the prompt fills for all pods, and package reuse
// has vLLM's rule over such bits. Sources of one full-attention group have no bits and no
// rule. The index in memory gives the same layout object until an event says something new. For a
// backend that gives copies, the groups in the layout are compared.

// plan is how a source with a layout is judged.
type plan struct {
	layout *index.Layout
	rule   *reuse.Plan // nil: no group can be judged, so the run of the main one bounds what is reused
	main   int         // the full-attention group of the lowest ID, in layout.Groups; -1: none
	upper  bool        // the engine may reuse less than rule says
}

// plans has the plans of a pod and model. It is read without a lock.
type plans struct{ all atomic.Pointer[[]*plan] }

// of returns the plan for a layout, made if need be, for a pod of so many ranks. Each
// rank may have groups of its own, and others when it announces something new: the oldest
// plans give way. The pointer of a layout is looked at first, but not every index gives
// the same one again (index.Layout), so equal groups have one plan.
func (ps *plans) of(l *index.Layout, p *engine.Profile, ranks int) *plan {
	keep := 2*ranks + 2
	for {
		all := ps.all.Load()
		var old []*plan
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

func newPlan(l *index.Layout, p *engine.Profile) *plan {
	groups := make([]reuse.Group, len(l.Groups))
	grain, main := p.Grain, -1
	for i, told := range l.Groups {
		g := p.Corrected(told.Group)
		groups[i] = reuse.Group{Kind: g.Kind, Window: g.Window, Block: told.BlockSize, Draft: g.Draft}
		switch {
		case told.BlockSize == 0:
			groups[i] = reuse.Group{Kind: index.GroupOther, Block: 1}
		case g.Kind == index.GroupFull && main < 0:
			main = i
		}
		// A full-attention group tells parts of blocks whether they count or not.
		if p.Grain == 0 && g.Kind == index.GroupMamba && told.Grain < told.BlockSize && (grain == 0 || told.Grain < grain) {
			grain = told.Grain
		}
	}
	made := &plan{layout: l, main: main, upper: p.Draft == engine.DraftUnknown || p.Lists(l)}
	rule, err := reuse.New(groups, grain)
	if err != nil {
		// No engine has such groups. Those of full attention alone bound what it reuses.
		made.upper = true
		for i := range groups {
			if groups[i].Kind != index.GroupFull {
				groups[i] = reuse.Group{Kind: index.GroupOther, Block: 1}
			}
		}
		if rule, err = reuse.New(groups, 0); err != nil {
			return made
		}
	}
	made.rule, made.upper = rule, made.upper || rule.UpperBound()
	return made
}

// judge scores the rows from up to to, which are all that one source holds, with bits.
func (sc *scorer) judge(from, to int) {
	rows := sc.matches.Rows[from:to]
	first := &rows[0]
	var p *plan
	if pm := sc.set.states[first.Pod]; pm != nil {
		p = pm.plans.of(first.Layout, &pm.profile, len(pm.shown.Ranks()))
	} else {
		p = sc.x.unheard.of(first.Layout, &engine.Profile{}, engine.MaxRanks)
	}
	groups := first.Groups
	sc.held = slices.Grow(sc.held[:0], len(groups))[:len(groups)]
	clear(sc.held)
	most, at, part := -1, -1, -1
	for i := range rows {
		row := &rows[i]
		g := slices.IndexFunc(groups, func(g index.GroupLayout) bool { return g.ID == row.Group.ID })
		if g < 0 {
			continue
		}
		main := p.main < 0 || g == p.main
		switch {
		case row.BlockSize == groups[g].BlockSize:
			sc.held[g].Blocks = row.Held[TierGPU]
		case p.rule != nil && row.BlockSize == p.rule.Grain():
			sc.held[g].Parts = row.Held[TierGPU]
			if main {
				part = i
			}
			continue
		}
		if run := int(row.Run) * row.BlockSize; main && run > most {
			most, at = run, i
		}
	}
	if at < 0 {
		if at, most = part, 0; at < 0 {
			return // no block of a group that the model cannot do without
		}
	}
	length := sc.prompt.LengthIn(first)
	best := ranking.Best{Matched: most, Row: int32(from + at + 1)}
	best.Mark(ranking.Upper, p.upper || p.rule == nil)
	if p.rule != nil {
		best.Cached = p.rule.Tokens(length, sc.held)
	} else {
		best.Cached = reuse.CachedTokens(int(rows[at].GPU), rows[at].BlockSize, length)
	}
	if sc.forecast.Any() {
		at += from
		if sc.forecast.Judge(at, best.Cached, p.rule, sc.held, groups) {
			best.Cached = max(best.Cached, p.rule.Tokens(length, sc.held))
		}
		best.Marks &= sc.forecast.MarksOfRow(at)
	}
	sc.improve(first.Pod, best)
}
