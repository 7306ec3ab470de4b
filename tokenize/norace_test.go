//go:build !race

package tokenize_test

const raced = false
