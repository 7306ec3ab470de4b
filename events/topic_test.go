package events_test

import (
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
)

func TestParseTopic(t *testing.T) {
	tests := []struct{ topic, pod, model string }{
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
		{"kv@@model", "", ""},
		{"KV@pod@model", "", ""},
		{"xkv@pod@model", "", ""},
		{"kv@pod\xff@model", "", ""},
	}
	for _, tt := range tests {
		pod, model, err := events.ParseTopic(tt.topic)
		if pod != tt.pod || model != tt.model || (err == nil) != (tt.pod != "") {
			t.Errorf("%q: got %q %q, %v", tt.topic, pod, model, err)
		}
	}
}

func FuzzParseTopic(f *testing.F) {
	f.Add("kv@10.0.0.1:8000@org/model")
	f.Add("kv@pod@model@v2")
	f.Add("kv@@")
	f.Fuzz(func(t *testing.T, topic string) {
		pod, model, err := events.ParseTopic(topic)
		if err != nil {
			if pod != "" || model != "" {
				t.Fatalf("%q %q beside an error", pod, model)
			}
			return
		}
		if pod == "" || model == "" || strings.Contains(pod, "@") || "kv@"+pod+"@"+model != topic {
			t.Fatalf("%q became %q and %q", topic, pod, model)
		}
	})
}
