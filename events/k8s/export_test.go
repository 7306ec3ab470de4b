package k8s

import (
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kvindex/kvindex/events"
)

// SourceThatWaits returns a source that waits wait(d) where client-go would wait d. It reports
// faults to report, or to the Fleet if that is nil.
func SourceThatWaits(client kubernetes.Interface, cfg Config, wait func(d time.Duration) time.Duration, report func(error)) (events.PodSource, error) {
	s, err := newSource(client, cfg)
	s.wait, s.report = wait, report
	return events.PodSource{Name: "k8s", Run: s.run}, err
}

const Pause = pause

var UpToTenSeconds = upToTenSeconds

// Reads replaces the pods of a store by each of the lists in turn, many times, while they are read.
func Reads(cfg Config, lists ...[]any) {
	s := &store{Config: &cfg, changed: make(chan struct{}, 1), pods: make(map[string]entry)}
	var reader sync.WaitGroup
	defer reader.Wait()
	done := make(chan struct{})
	defer close(done)
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				s.all()
			}
		}
	})
	for i := range 10_000 {
		_ = s.Replace(lists[i%len(lists)], "")
	}
}
