package indextest_test

import (
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
)

func TestPlain(t *testing.T) {
	indextest.Run(t, func(_ testing.TB, c indextest.Config) index.Index {
		return indextest.NewPlain([16]byte{1}, c)
	})
}
