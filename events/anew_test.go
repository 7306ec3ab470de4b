package events_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestTwoRestarts: an engine restarts twice and publishes in between. Its replay socket is
// never reported as another engine's.
func TestTwoRestarts(t *testing.T) {
	t.Parallel()
	engine := publisher(t, fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	l := newLedger()
	var mu sync.Mutex
	var told []string
	_, replays, _ := follow(t, l, events.SubscriberConfig{Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err.Error())
	}})
	now := 0
	for life := range 2 {
		if life > 0 {
			must(t, engine.Restart())
		}
		waitSubscriber(t, engine)
		wait(t, "a replay", replays) // the request was answered and the engine is idle
		for i := range 3 {
			now++
			engine.Publish(clock(now))
			l.wait(t, strconv.Itoa(i), func(got string) bool { return got == "0" || strings.HasSuffix(got, fmt.Sprint(" ", i)) })
		}
	}
	must(t, engine.Restart())
	for range 3 {
		now++
		engine.Skip(clock(now))
	}
	l.expectEnd(t, "anew 0 1 2")
	mu.Lock()
	defer mu.Unlock()
	for _, e := range told {
		if strings.Contains(e, "another engine") {
			t.Error(e)
		}
	}
}
