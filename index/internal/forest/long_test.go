package forest

import "flag"

var long = flag.Bool("long", false, "long form: run all random histories")

// choose returns the amount of work: usual, or all with -long.
func choose(usual, all int) int {
	if *long {
		return all
	}
	return usual
}
