// Package cputime lets tests bound work by the time of the processor that it
// takes: other programs make a test wait, but they do not lengthen that.
package cputime

import "time"

// Of returns the processor time that the process takes while f runs, all of its
// goroutines and the garbage collector included. Where the system has no such clock,
// it is the time that passes.
func Of(f func()) time.Duration {
	before := used()
	f()
	return used() - before
}
