//go:build !race

package tokenize_test

const sampled = 1

var tried = supported
