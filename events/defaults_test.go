package events_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestDefaults: a zero config gives what the Default constants say, each of them.
func TestDefaults(t *testing.T) {
	s, p := events.SubscriberConfig{}.WithDefaults(), events.PoolConfig{}.WithDefaults()
	f := events.FleetConfig{}.WithDefaults()
	pod, err := events.Pod{ID: "a", Model: "m", Host: "h"}.Normal()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ got, want int64 }{
		"DefaultMaxMessage":    {int64(s.MaxMessage), events.DefaultMaxMessage},
		"DefaultMaxBuffered":   {s.MaxBuffered, events.DefaultMaxBuffered},
		"DefaultMaxConns":      {int64(s.MaxConns), events.DefaultMaxConns},
		"DefaultMaxTopics":     {int64(s.MaxTopics), events.DefaultMaxTopics},
		"DefaultBackoffMin":    {int64(s.BackoffMin), int64(events.DefaultBackoffMin)},
		"DefaultBackoffMax":    {int64(s.BackoffMax), int64(events.DefaultBackoffMax)},
		"DefaultHeartbeat":     {int64(s.Heartbeat), int64(events.DefaultHeartbeat)},
		"DefaultReplayTimeout": {int64(s.ReplayTimeout), int64(events.DefaultReplayTimeout)},
		"DefaultSilence":       {int64(s.Silence), int64(events.DefaultSilence)},
		"DefaultConcurrency":   {int64(p.Concurrency), events.DefaultConcurrency},
		"DefaultPoolMessages":  {int64(p.MaxMessages), events.DefaultPoolMessages},
		"DefaultMaxPods":       {int64(f.MaxPods), events.DefaultMaxPods},
		"DefaultMaxDials":      {int64(f.MaxDials), events.DefaultMaxDials},
		"DefaultPort":          {int64(pod.Port), events.DefaultPort},
		"DefaultPoolBytes":     {p.MaxBytes, events.DefaultPoolBytes},
	}
	for name, tt := range tests {
		if tt.got != tt.want || tt.got == 0 {
			t.Errorf("%s is %d, a zero config gives %d", name, tt.want, tt.got)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:\t|const )(Default\w+) +=`).FindAllSubmatch(text, -1) {
			if declared++; tests[string(m[1])].want == 0 {
				t.Errorf("%s is not tested", m[1])
			}
		}
	}
	if declared != len(tests) {
		t.Errorf("%d constants, %d of them tested", declared, len(tests))
	}
}
