package kvindex_test

import "flag"

var long = flag.Bool("long", false, "long form: run all random histories, and want each rule to fire often")

// choose returns how much a test does: by default, or with -long.
func choose(usual, all int) int {
	if *long {
		return all
	}
	return usual
}
