//go:build race

package kvindex_test

// raced: the race detector makes each request ten times as slow.
const raced = true
