package index

import (
	"errors"
	"fmt"
	"math"
)

// ErrInvalid is wrapped by the errors about changes that contradict themselves or exceed
// a limit, and about queries without candidates.
var ErrInvalid = errors.New("index: invalid")

// MaxGroups bounds the group IDs of a source: an engine has fewer groups than layers, and a
// hostile one must not fill the index with groups.
const MaxGroups = 64

// MaxBlockUnits bounds the units of a block, which the index keeps one by one.
const MaxBlockUnits = 4096

// Validate returns an error that wraps ErrInvalid if c cannot be applied. Each
// backend calls it for all changes of an Apply before it applies the first.
func (c *Change) Validate() error {
	if c.Op == OpClear {
		return nil
	}
	switch {
	case c.Op < OpStore || c.Op > OpAge:
		return fmt.Errorf("%w: unknown op %d", ErrInvalid, c.Op)
	case c.Tier >= NumTiers:
		return fmt.Errorf("%w: unknown tier %d", ErrInvalid, c.Tier)
	case c.Op == OpAge && c.Tier == TierGPU:
		return fmt.Errorf("%w: blocks of the gpu have no generations", ErrInvalid)
	case !c.ofTier() && (c.Group.ID < 0 || c.Group.ID >= MaxGroups):
		return fmt.Errorf("%w: group %d is not in 0..%d", ErrInvalid, c.Group.ID, MaxGroups-1)
	}
	if c.ofTier() {
		return nil
	}
	if c.Op == OpRemove {
		if c.Remaining != nil && len(c.Remaining) != len(c.Hashes) {
			return fmt.Errorf("%w: %d remaining counts for %d hashes", ErrInvalid, len(c.Remaining), len(c.Hashes))
		}
		return nil
	}
	if c.Copies < CopiesGuarded || c.Copies > CopiesSet {
		return fmt.Errorf("%w: unknown copies mode %d", ErrInvalid, c.Copies)
	}
	if uint64(c.Group.Window) > math.MaxInt32 {
		return fmt.Errorf("%w: window %d is not in 0..%d", ErrInvalid, c.Group.Window, math.MaxInt32)
	}
	if len(c.Locals) == 0 {
		return nil
	}
	unit := c.Variant.Unit
	switch {
	case c.BlockSize <= 0 || unit <= 0 || c.BlockSize%unit != 0:
		return fmt.Errorf("%w: block size %d is not a multiple of unit %d", ErrInvalid, c.BlockSize, unit)
	case len(c.Locals) > math.MaxInt32/unit:
		return fmt.Errorf("%w: %d units of %d are more than %d tokens", ErrInvalid, len(c.Locals), unit, math.MaxInt32)
	case c.BlockSize/unit > MaxBlockUnits:
		return fmt.Errorf("%w: a block of %d tokens has more than %d units of %d", ErrInvalid, c.BlockSize, MaxBlockUnits, unit)
	case len(c.Locals)%(c.BlockSize/unit) != 0:
		return fmt.Errorf("%w: %d units are not whole blocks of %d tokens", ErrInvalid, len(c.Locals), c.BlockSize)
	case len(c.Hashes) > c.Blocks():
		return fmt.Errorf("%w: %d hashes for %d blocks", ErrInvalid, len(c.Hashes), c.Blocks())
	}
	return nil
}

// ofTier reports whether c is about all blocks of a tier.
func (c *Change) ofTier() bool { return c.Op == OpClearTier || c.Op == OpAge }
