package tokenize_test

import (
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

// TestConfigWithInfinity: transformers writes config.json with Python's json, which has Infinity
// and NaN. Mamba's configs have time_step_limit: [0.0, Infinity].
func TestConfigWithInfinity(t *testing.T) {
	dir := pretrained(t, nil, configOf("GPT2Tokenizer", nil))
	write(t, dir, "config.json", `{"model_type": "gpt2", "time_step_limit": [0.0, Infinity], "x": NaN, "y": -Infinity}`)
	if _, err := tokenize.LoadPretrained(dir); err != nil {
		t.Error(err)
	}
}
