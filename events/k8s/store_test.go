package k8s

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kvindex/kvindex/events"
)

// A pod of which nothing has changed that is read wakes nobody.
func TestSameWakesNobody(t *testing.T) {
	s := &store{Config: &Config{}, changed: make(chan struct{}, 1), pods: make(map[string]entry)}
	for i, host := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"} {
		err := s.put(&corev1.Pod{}, func(*corev1.Pod) (entry, error) {
			return entry{pod: &events.Pod{ID: "p", Host: host}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(s.changed), 1-i%2; got != want {
			t.Errorf("put %d wakes %d, want %d", i, got, want)
		}
		for len(s.changed) > 0 {
			<-s.changed
		}
	}
}
