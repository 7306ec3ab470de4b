package kvindex_test

import (
	"testing"

	"github.com/kvindex/kvindex/internal/fakeengine"
)

// Blocks of a size that would be cut into too many units are known by their
// hashes alone, and do no harm to the rest of their batch.
func TestOddBlockSizes(t *testing.T) {
	ix := open(t)
	p := fakeengine.NewPrompt(1, 16, 2)
	odd := fakeengine.NewPrompt(2, 4099, 1)
	ingest(t, ix, "a", odd.Stored(0, 1), p.Stored(0, 2))
	if n := ix.Stats().Unscored; blocks(t, ix, "a", p) != 2 || blocks(t, ix, "a", odd) != 0 || n != 1 {
		t.Errorf("%+v", ix.Stats())
	}
}
