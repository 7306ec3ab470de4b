// Package trace describes a block that no row counts. It is for people,
// not for routing. Package index imports it, so its types have those of index as
// parameters.
package trace

import "fmt"

// Block is a block of a prompt.
type Block[Variant, Key, Local any] struct {
	Variant Variant
	Size    int     // tokens
	Number  int     // which one of the prompt it is, from 0 on
	Key     Key     // of the prefix that it ends
	Locals  []Local // of the whole prompt
}

// Check returns what makes no sense in a block of a variant with some unit, or nil.
func (b *Block[Variant, Key, Local]) Check(unit int) error {
	if b.Size <= 0 || unit <= 0 || b.Size%unit != 0 {
		return fmt.Errorf("block size %d is not a multiple of unit %d", b.Size, unit)
	}
	if b.Number < 0 {
		return fmt.Errorf("block %d", b.Number)
	}
	return nil
}

// Trace is the record in a source of a block that it does not hold.
type Trace struct {
	// Gone is the end of the block if a name of it is kept that nobody of
	// the source holds anything by. Of several such names, the highest counts.
	Gone Gone
	// Parked is the number of stores that wait for their parent, and whose blocks
	// are those of the prompt, from block ParkedAt or a later one on, as far as both
	// go; those are not counted whose first block was removed since. ParkedAt is not
	// before the block. The blocks before them are not known, and may differ.
	Parked, ParkedAt int
	// Unplaced is the number of hashes that the source holds in blocks of the same
	// variant and size, or of a size that is not known, and of which neither the prefix
	// nor the tokens are known. The block may be one of them.
	Unplaced int
}

// Note counts a store that waits and begins at a block, if it is not -1.
func (t *Trace) Note(at int) {
	if at < 0 {
		return
	}
	if t.Parked == 0 || at < t.ParkedAt {
		t.ParkedAt = at
	}
	t.Parked++
}

// Gone is how a block went.
type Gone uint8

// The ways.
const (
	GoneNever   Gone = iota // no such name is kept
	GoneCleared             // by the last OpClear, or before that
	GoneRemoved             // since the last OpClear
	GoneHidden              // likewise, but a store of it was not counted: it may be there (CopiesGuarded)
)
