package index

import (
	"flag"
	"testing"
)

// Long is -long, also for external tests.
var Long = flag.Bool("long", false, "long form: run all random histories of this package; -indextest.seeds is the flag of the suite's")

// choose returns the amount of work: with -short, by default, or with -long.
func choose(short, usual, long int) int {
	switch {
	case *Long:
		return long
	case testing.Short():
		return short
	}
	return usual
}
