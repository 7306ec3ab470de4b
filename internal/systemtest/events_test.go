package systemtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
)

// TestPodBounds: an Indexer accepts what a Fleet does, with a stream for each rank. In FuzzPod of
// events stream names are no longer than pod names.
func TestPodBounds(t *testing.T) {
	const maxName, maxStreams, maxPods = 1024, 1024, 65_536 // those of an Indexer
	ix := open(t)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	put := func(nameBytes, ranks int) error {
		return fleet.Put("table", events.Pod{ID: strings.Repeat("p", nameBytes), Model: "m", Host: "127.0.0.1", Port: 5557, Ranks: ranks})
	}
	if err := put(maxName, 1); err != nil {
		t.Errorf("the longest name that an Indexer takes: %v", err)
	}
	if err := put(maxName+1, 1); err == nil {
		t.Error("a longer name is taken")
	}
	if err := put(1, maxStreams+1); err == nil {
		t.Errorf("a pod of more than %d ranks is taken", maxStreams)
	}
	pods := make([]events.Pod, maxPods+1)
	for i := range pods {
		pods[i] = events.Pod{ID: fmt.Sprint(i), Model: "m", Engine: events.EngineNone}
	}
	if err := fleet.Set("list", pods); err == nil {
		t.Errorf("more pods than the %d that an Indexer takes", maxPods)
	}
}
