// Package bench measures index.NewMemory and the prompt cache on made workloads and on
// recorded traces, beside models of what could be kept at best. Start at README.md for
// the commands, at [Memory] for the index and at [Play] for how a trace becomes
// operations.
package bench

import (
	"fmt"

	"github.com/kvindex/kvindex/index"
)

// Store is a run of consecutive blocks, one unit each. It continues the block
// Parent if HasParent, else it begins a chain at Root.
type Store struct {
	HasParent bool
	Parent    index.Hash
	Root      index.Key
	Hashes    []index.Hash
	Locals    []index.Local
}

// PodNames returns the names of n pods, in the form host:port.
func PodNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1)
	}
	return names
}
