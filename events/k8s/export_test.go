package k8s

import (
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kvindex/kvindex/events"
)

// SourceThatWaits returns a source that waits as long as wait says where client-go would wait
// for d, and gives its faults to report; nil: to the Fleet.
func SourceThatWaits(client kubernetes.Interface, cfg Config, wait func(d time.Duration) time.Duration, report func(error)) (events.Source, error) {
	s, err := newSource(client, cfg)
	s.wait, s.report = wait, report
	return events.Source{Name: s.Name, Run: s.run}, err
}

const Pause = pause

var UpToTenSeconds = upToTenSeconds
