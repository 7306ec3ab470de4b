package engine

import (
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
)

// Tiers is a set of tiers.
type Tiers uint8

// LowerTiers are all tiers but the gpu.
const LowerTiers Tiers = 1<<index.NumTiers - 1<<(index.TierGPU+1)

// Has reports whether t is in the set.
func (s Tiers) Has(t index.Tier) bool { return s>>t&1 != 0 }

// TiersOf returns the tiers that the events of b name. clears: one empties the cache without
// naming a tier.
func TiersOf(b *events.Batch) (named Tiers, clears bool) {
	for i := range b.Events {
		switch e := &b.Events[i]; {
		case foreign(e):
		case e.Kind == events.Cleared && e.Medium == "":
			clears = true
		default:
			named |= 1 << placeOf(e)
		}
	}
	return named, clears
}

// ClearsGPU reports whether an event that empties a tier, or the cache, empties the gpu.
func ClearsGPU(e *events.Event) bool { return !foreign(e) && placeOf(e) == index.TierGPU }

// Emptied returns the lower tiers that changes empty.
func Emptied(changes []index.Change) (t Tiers) {
	for i := range changes {
		switch c := &changes[i]; c.Op {
		case index.OpClear:
			t = LowerTiers
		case index.OpClearTier:
			t |= 1 << c.Tier & LowerTiers
		}
	}
	return t
}
