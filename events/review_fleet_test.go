package events_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// TestReviewFleetFlapping: an engine takes connections and drops them, without a message. "What
// repeats is told at doubling times, as OnError does": OnChange, too.
func TestReviewFleetFlapping(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int32
	endpoint := listener(t, "tcp://127.0.0.1:0", func(nc net.Conn) {
		accepted.Add(1)
		_, _ = nc.Write(zmtptest.Hello(1, "PUB"))
		_, _ = nc.Read(make([]byte, 4096))
		time.Sleep(5 * time.Millisecond)
		nc.Close()
	})
	port, _ := strconv.Atoi(endpoint[strings.LastIndex(endpoint, ":")+1:])
	var changes, errs atomic.Int32
	kinds := make(chan string, 100000)
	f := newFleet(t, newFleetSink(), events.FleetConfig{
		OnChange: func(c events.FleetChange) { changes.Add(1); kinds <- fmt.Sprint(c.From, ">", c.To) },
		OnError:  func(error) { errs.Add(1) },
	})
	mustSet(t, f, "s", events.Pod{ID: "b", Model: "n", Host: "127.0.0.1", Port: port, Ranks: 1})
	stop := runFleet(t, f)
	time.Sleep(4 * time.Second)
	stop()
	if changes.Load() > 30 {
		t.Errorf("%d connections, OnChange was told %d changes, OnError %d errors: %s %s %s %s %s %s", accepted.Load(), changes.Load(), errs.Load(), <-kinds, <-kinds, <-kinds, <-kinds, <-kinds, <-kinds)
	}
}
