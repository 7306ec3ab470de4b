// Package engine interprets the events of an engine: it converts them to changes of the index, and
// derives how the engine caches from its events and its Profile.
package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/hashunit"
	"github.com/kvindex/kvindex/stats"
)

// Profile is kvindex.Profile with its defaults filled in. It is never changed.
type Profile struct {
	Media       uint8 // hashing.FormOffsets and so on
	Copies      index.Copies
	Groups      []index.Group
	Draft       uint8 // DraftUnknown and so on
	Grain       int
	Chunk       int                     // blocks of a chunk of the offloading connector; 0: not known
	ClearsGPU   bool                    // an event that empties the cache empties the gpu alone
	Weights     [index.NumTiers]float64 // of a token, by tier
	MaxAge      [index.NumTiers]time.Duration
	Adapters    map[string]string // names by numbers
	Approximate *Room             // nil: the engine publishes events
}

// WeightOf returns the weight of a token in a tier.
func (p *Profile) WeightOf(t index.Tier) float64 {
	switch w := p.Weights[t]; {
	case w != 0:
		return w
	case t == index.TierGPU:
		return 1
	case t == index.TierCPU:
		return 0.8
	}
	return 0.5
}

// defaultMaxAge is that of disk, remote and other, whose feeds announce no removals.
const defaultMaxAge = time.Hour

// MaxAgeOf returns how long the blocks of a tier are kept that are not stored again; 0: until they
// are removed.
func (p *Profile) MaxAgeOf(t index.Tier) time.Duration {
	if p.MaxAge[t] == 0 && t > index.TierCPU {
		return defaultMaxAge
	}
	return p.MaxAge[t]
}

// Room is the cache of an engine that publishes no events.
type Room struct {
	BlockTokens int
	Blocks      int // of a rank
	TTL         time.Duration
}

// The values of Profile.Draft.
const (
	DraftUnknown uint8 = iota
	DraftNone
	DraftLayers
)

// AdapterOf returns the name of the adapter of an event, if the event or the profile has it, else
// its number.
func (p *Profile) AdapterOf(e *events.Event) string {
	if name := p.Adapters[e.Adapter]; name != "" {
		return name
	}
	return e.Adapter
}

// CheckGrain returns an error if a block size in a batch is no multiple of the Grain.
func (p *Profile) CheckGrain(b *events.Batch) error {
	if p.Grain == 0 {
		return nil
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == events.Stored && tierOf(e.Medium) == index.TierGPU && e.BlockSize%p.Grain != 0 {
			return fmt.Errorf("the Grain %d does not divide the block size %d of group %d", p.Grain, e.BlockSize, e.Group)
		}
	}
	return nil
}

// Corrected returns a group of an event with the corrections of the profile.
func (p *Profile) Corrected(g index.Group) index.Group {
	drafts := p.Draft == DraftLayers && g.Kind != index.GroupChunked
	for _, own := range p.Groups {
		if own.Draft {
			drafts = false
		}
	}
	g.Draft = drafts
	if i := slices.IndexFunc(p.Groups, func(own index.Group) bool { return own.ID == g.ID }); i >= 0 {
		own := p.Groups[i]
		g.Kind, g.Draft = own.Kind, drafts || own.Draft
		if own.Window > 0 {
			g.Window = own.Window
		}
	}
	return g
}

// Correct applies Corrected to groups that events have named. Equal groups share Draft,
// because vLLM caches and looks them up together (017e9f4448b7,
// v1/core/kv_cache_coordinator.py, SpecGroup). Groups are equal as in package reuse.
func (p *Profile) Correct(groups []stats.Group) {
	for i := range groups {
		groups[i].Group = p.Corrected(groups[i].Group)
	}
	for i := range groups {
		groups[i].Draft = hasDraft(groups, groups[i])
	}
}

// hasDraft reports whether g, or a group that is equal to it, has Draft.
func hasDraft(groups []stats.Group, g stats.Group) bool {
	return g.Draft || slices.ContainsFunc(groups, func(o stats.Group) bool {
		return o.Draft && o.Kind == g.Kind && o.Window == g.Window && o.BlockSize == g.BlockSize
	})
}

// Lists reports whether the profile has groups that no event has named.
func (p *Profile) Lists(l *index.Layout) bool {
	return slices.ContainsFunc(p.Groups, func(own index.Group) bool {
		return !slices.ContainsFunc(l.Groups, func(g index.GroupLayout) bool { return g.ID == own.ID })
	})
}

// maxBareBlock is the largest block size with MediaBare; it has to be a power of
// two. vLLM's --block-size allows no others; where it chooses an odd one itself,
// for models with Mamba layers, blocks are known by hash alone. An index has
// room for a few variants of a model, and each such size is one: no pod must be
// able to fill it.
const maxBareBlock = 256

// VariantOf returns the variant in which an engine with this block size and form of media cuts
// prompts; false: no prompt can be cut so.
func VariantOf(size int, pairs bool, media uint8) (v index.Variant, ok bool) {
	v = index.Variant{Unit: hashunit.Of(size), Media: media, Pairs: pairs}
	if media == hashing.FormBare {
		v.Block = size
		return v, !pairs && size <= maxBareBlock && size&(size-1) == 0
	}
	return v, size/v.Unit <= index.MaxBlockUnits
}

// Learn adds the group of a store to groups.
func Learn(groups []stats.Group, e *events.Event) []stats.Group {
	for i := range groups {
		if g := &groups[i]; g.ID == e.Group {
			if g.BlockSize != e.BlockSize && e.BlockSize > 0 && tierOf(e.Medium) == index.TierGPU {
				g.BlockSize = e.BlockSize
			}
			return groups
		}
	}
	if e.Group < index.MaxGroups && e.BlockSize > 0 && tierOf(e.Medium) == index.TierGPU && !foreign(e) {
		groups = append(groups, stats.Group{Group: groupOf(e), BlockSize: e.BlockSize})
	}
	return groups
}

// Hybrid reports whether an engine has announced other groups than one of full attention.
func (p *Profile) Hybrid(groups []stats.Group) bool {
	return len(groups) > 1 || len(groups) == 1 && p.Corrected(groups[0].Group).Kind != index.GroupFull
}

// Reports is whether a full report shows the blocks of all groups for a next request.
func (p *Profile) Reports(groups []stats.Group) bool {
	return !slices.ContainsFunc(groups, func(announced stats.Group) bool {
		g := p.Corrected(announced.Group)
		return g.Kind != index.GroupFull && (g.Window == 0 || g.Kind != index.GroupWindow && g.Kind != index.GroupChunked)
	})
}

// Form is the form of the blocks of a rank, from its events.
type Form struct {
	Groups []stats.Group
	Pairs  bool
}

// Equal reports whether two forms are equal.
func (f *Form) Equal(o *Form) bool {
	return f.Pairs == o.Pairs && slices.Equal(f.Groups, o.Groups)
}

// View returns the blocks with the corrections of the profile, without a Source; nil: the form
// has no groups.
func (f *Form) View(p *Profile) *index.View {
	if len(f.Groups) == 0 {
		return nil
	}
	v := &index.View{Pairs: f.Pairs, Layout: &index.Layout{}}
	for _, announced := range f.Groups {
		g := p.Corrected(announced.Group)
		v.Groups = append(v.Groups, index.GroupLayout{Group: g, BlockSize: announced.BlockSize, Grain: announced.BlockSize})
	}
	slices.SortFunc(v.Groups, func(a, b index.GroupLayout) int { return a.ID - b.ID })
	main := max(0, slices.IndexFunc(v.Groups, func(g index.GroupLayout) bool { return g.Kind == index.GroupFull }))
	v.Group, v.BlockSize = v.Groups[main].Group, v.Groups[main].BlockSize
	return v
}
