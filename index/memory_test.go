package index_test

import (
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/internal/inmemory"
)

func TestMemory(t *testing.T) {
	indextest.Run(t, func(tb testing.TB, c indextest.Config) index.Index {
		m, err := inmemory.New(index.MemoryConfig{PendingBytes: c.PendingBytes, IdleNames: c.IdleNames, Bytes: c.Bytes})
		must(tb, err)
		return m
	})
}
