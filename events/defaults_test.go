package events_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
)

// TestDefaults: a zero config has the defaults in the comments of its fields.
func TestDefaults(t *testing.T) {
	s, p := events.SubscriberConfig{}.WithDefaults(), events.PoolConfig{}.WithDefaults()
	f := events.FleetConfig{}.WithDefaults()
	pod, err := events.Pod{ID: "a", Model: "m", Host: "h"}.Normal()
	must(t, err)
	tests := map[string]struct{ got, want int64 }{
		"defaultMaxMessage":    {int64(s.MaxMessage), 32 << 20},
		"defaultMaxConns":      {int64(s.MaxConns), 256},
		"defaultBackoff":       {int64(s.Backoff), int64(time.Second)},
		"defaultHeartbeat":     {int64(s.Heartbeat), int64(3 * time.Second)},
		"defaultReplayTimeout": {int64(s.ReplayTimeout), int64(2 * time.Second)},
		"defaultSilence":       {int64(s.Silence), int64(30 * time.Second)},
		"defaultConcurrency":   {int64(p.Concurrency), 64},
		"defaultPoolMessages":  {int64(p.MaxMessages), 65_536},
		"defaultMaxPods":       {int64(f.MaxPods), 16_384},
		"defaultPort":          {int64(pod.Port), 5557},
		"defaultPoolBytes":     {p.MaxBytes, 256 << 20},
	}
	for name, tt := range tests {
		if tt.got != tt.want || tt.got == 0 {
			t.Errorf("%s is %d, a zero config gives %d", name, tt.want, tt.got)
		}
	}
	files, err := filepath.Glob("*.go")
	must(t, err)
	declared := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)^(?:\t|const )(default\w+) +=`).FindAllSubmatch(text, -1) {
			if declared++; tests[string(m[1])].want == 0 {
				t.Errorf("%s is not tested", m[1])
			}
		}
	}
	if declared != len(tests) {
		t.Errorf("%d constants, %d of them tested", declared, len(tests))
	}
}

// A lower MaxMessage leaves room for messages of many engines at a time.
func TestBuffered(t *testing.T) {
	for most, want := range map[int]int64{0: 256 << 20, 1000: 256 << 20, 64 << 20: 512 << 20} {
		if got := (events.SubscriberConfig{MaxMessage: most}).Buffered(); got != want {
			t.Errorf("MaxMessage %d: %d bytes, want %d", most, got, want)
		}
	}
}
