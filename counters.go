package kvindex

import (
	"math"
	"unsafe"

	"github.com/kvindex/kvindex/stats"
)

// addCounters adds the counters of s to those of t. Both are looked at as the words
// that they are, so that a counter that is new has to be named in its struct alone;
// TestCountersAreWords holds that there is nothing else in them.
//
// The sum stays at the largest number: a pod may claim any sequence numbers, so
// Missing and PassedOver could go round.
func addCounters[T stats.Counters | stats.Traffic](t, s *T) {
	sum, more := words(t), words(s)
	for i, n := range more {
		sum[i] += min(n, math.MaxUint64-sum[i])
	}
}

func words[T stats.Counters | stats.Traffic](t *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t)), unsafe.Sizeof(*t)/8)
}
