package tokenize_test

import (
	"flag"
	"testing"
)

var long = flag.Bool("long", false, "long form: try all texts of the outside data with all families, and all random texts")

// sampled is n for tests that use one in n texts.
func sampled() int {
	switch {
	case *long:
		return 1
	case testing.Short():
		return 32
	}
	return 16
}

// tried are the families of the outside data for the tests.
func tried() []string {
	switch {
	case *long:
		return supported
	case testing.Short():
		return []string{"gpt2", "llama2"}
	case raced:
		return []string{"gpt2", "qwen25", "llama2"}
	}
	return []string{"gpt2", "deepseekv3", "llama2", "gemma2"}
}
