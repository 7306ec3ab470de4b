//go:build race

package kvindex_test

// raced: the race detector makes requests ten times as slow.
const raced = true
