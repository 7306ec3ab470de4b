package index

import (
	"flag"
	"testing"
)

// Long is -long, for tests from outside too.
var Long = flag.Bool("long", false, "long form: run all random histories of this package; -indextest.seeds is the flag of the suite's")

// choose returns how much a test does: with -short, by default, or with -long.
func choose(short, usual, long int) int {
	switch {
	case *Long:
		return long
	case testing.Short():
		return short
	}
	return usual
}
