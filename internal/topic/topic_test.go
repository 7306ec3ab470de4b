package topic_test

import (
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/topic"
)

func TestParse(t *testing.T) {
	tests := []struct{ text, pod, model string }{
		{"kv@10.0.0.1@model", "10.0.0.1", "model"},
		{"kv@10.0.0.1:8000@org/model-7b", "10.0.0.1:8000", "org/model-7b"},
		{"kv@[::1]:8000@m", "[::1]:8000", "m"},
		{"kv@pod@model@v2", "pod", "model@v2"},
		{"kv@pod@@", "pod", "@"},
		{"", "", ""},
		{"kv", "", ""},
		{"kv@", "", ""},
		{"kv@pod", "", ""},
		{"kv@pod@", "", ""},
		{"kv@SHARED_STORAGE@model", "", ""},
		{"kv@OBJECT_STORE@model", "", ""},
		{"kv@pool:redis@model", "", ""},
		{"kv@pool@model", "pool", "model"},
		{"kv@@model", "", ""},
		{"KV@pod@model", "", ""},
		{"xkv@pod@model", "", ""},
		{"kv@pod\xff@model", "", ""},
	}
	for _, tt := range tests {
		pod, model, err := topic.Parse(tt.text)
		if pod != tt.pod || model != tt.model || (err == nil) != (tt.pod != "") {
			t.Errorf("%q: got %q %q, %v", tt.text, pod, model, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("kv@10.0.0.1:8000@org/model")
	f.Add("kv@pod@model@v2")
	f.Add("kv@@")
	f.Fuzz(func(t *testing.T, text string) {
		pod, model, err := topic.Parse(text)
		if err != nil {
			if pod != "" || model != "" {
				t.Fatalf("%q %q beside an error", pod, model)
			}
			return
		}
		if pod == "" || model == "" || strings.Contains(pod, "@") || "kv@"+pod+"@"+model != text {
			t.Fatalf("%q became %q and %q", text, pod, model)
		}
	})
}
