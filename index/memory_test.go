package index_test

import (
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/internal/inmemory"
)

func TestMemory(t *testing.T) {
	indextest.Run(t, func(tb testing.TB, c indextest.Config) index.Index {
		return newBound(tb, [16]byte{}, c)
	})
}

// newBound returns a Memory with bounds.
func newBound(tb testing.TB, seed [16]byte, c indextest.Config) inmemory.Memory {
	m, err := inmemory.New(index.MemoryConfig{Seed: seed, Bytes: c.Bytes})
	must(tb, err)
	m.SetBounds(c.PendingBytes, c.IdleNames)
	return m
}
