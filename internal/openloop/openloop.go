// Package openloop measures how long answers take at a given load: requests come when they are
// due, and do not wait for the answers to others.
package openloop

import (
	"slices"
	"sync"
	"time"
)

// Full returns the time of a request when eight clients ask again and again, n times in all.
func Full(n int, ask func()) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				ask()
			}
		})
	}
	all.Wait()
	return time.Since(began) / time.Duration(n/8*8)
}

// Half calls base and other by turns, in each of so many rounds n times each, at half the rate
// that base can answer just then: other load of the machine affects both. It returns the medians
// of the rounds: the 99th of 100 times from when a request was due to its answer, of both, and
// other's over base's.
func Half(rounds, n int, base, other func()) (p99, ofOther time.Duration, ratio float64) {
	var bases, others []time.Duration
	var ratios []float64
	for range rounds {
		every := 2 * Full(n, base)
		b, o := at(n, every, base), at(n, every, other)
		bases, others, ratios = append(bases, b), append(others, o), append(ratios, float64(o)/float64(b))
	}
	slices.Sort(bases)
	slices.Sort(others)
	slices.Sort(ratios)
	return bases[rounds/2], others[rounds/2], ratios[rounds/2]
}

// at calls ask n times, once every so often, and returns the 99th of 100 times of an answer.
func at(n int, every time.Duration, ask func()) time.Duration {
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	began := time.Now()
	for i := range n {
		due := began.Add(time.Duration(i) * every)
		time.Sleep(time.Until(due))
		all.Go(func() {
			ask()
			took[i] = time.Since(due)
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[n*99/100]
}
