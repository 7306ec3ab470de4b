// Package hashunit has the units in which prompts are hashed.
package hashunit

// Of returns the unit of a block size, both in tokens: their greatest
// common divisor with 16, so that nearly all block sizes share one unit. The
// block size must be positive.
func Of(blockSize int) int {
	a, b := 16, blockSize
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
