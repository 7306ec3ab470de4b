//go:build race

package tokenize_test

// sampled is the share of the outside data that is tried, and tried the families:
// the race detector makes each row ten times as slow.
const sampled = 16

var tried = []string{"gpt2", "qwen25", "llama2"}
