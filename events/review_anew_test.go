package events_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestReviewTwoRestarts: an engine restarts, says something for a while, and restarts again. Its
// replay socket is not another engine's.
func TestReviewTwoRestarts(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	l := newLedger()
	var mu sync.Mutex
	var told []string
	follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err.Error())
	}})
	now := 0
	for life := range 2 {
		if life > 0 {
			if err := engine.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		waitSubscriber(t, engine)
		time.Sleep(200 * time.Millisecond) // it is asked, and is idle
		for range 3 {
			now++
			engine.Publish(clock(now))
			time.Sleep(100 * time.Millisecond)
		}
	}
	if err := engine.Restart(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now++
		engine.Skip(clock(now))
	}
	time.Sleep(1500 * time.Millisecond)
	l.mu.Lock()
	got := strings.Join(l.entries, " ")
	l.mu.Unlock()
	if !strings.HasSuffix(got, "anew 0 1 2") {
		t.Errorf("the last life: %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, e := range told {
		if strings.Contains(e, "another engine") {
			t.Error(e)
		}
	}
}
