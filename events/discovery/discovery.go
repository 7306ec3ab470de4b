// Package discovery finds the pods of a fleet: in a file (File), or in DNS (DNS). Each
// returns an events.PodSource, for events.Fleet.Run.
//
// A pod is a running engine, and a source lists pods. At each change a source gives the Fleet
// the whole list. Pods that are not in it are forgotten, with all their blocks in the index.
// So a source here is slow to drop a pod: a file that cannot be read removes no pod, and
// neither does a DNS server that fails.
//
// File is for hosts that write the list of their pods themselves, by hand or by a program, and
// for a mounted Kubernetes ConfigMap. DNS is for a headless service: a name whose answers have
// the addresses of all pods, as in Kubernetes and Consul. Package events/k8s uses the API of
// Kubernetes, which also reports pods that are not ready or are terminating.
//
// Faults go to FleetConfig.OnError: at once, then again at intervals that double up to one
// minute, while they last. They do not end a source. A source that is run without a Fleet
// reports none.
package discovery

import (
	"context"
	"time"

	"github.com/kvindex/kvindex/events"
)

// reporter returns report or, if it is nil, that of the Fleet behind ctx. Only tests have one of
// their own.
func reporter(ctx context.Context, report func(error)) func(error) {
	if report == nil {
		return func(err error) { events.Report(ctx, err) }
	}
	return report
}

// leastTime bounds what is configured: 5 without a unit would be a loop that does not wait.
const leastTime = time.Millisecond

// A clock is the time; tests replace it.
type clock struct {
	now   func() time.Time
	wait  func(ctx context.Context, d time.Duration) error // returns early, with an error, when ctx ends
	limit func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

var realTime = clock{time.Now, wait, context.WithTimeout}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// A lasting fault is reported again after this time, and then at intervals that double.
const (
	firstQuiet = 2 * time.Second
	maxQuiet   = time.Minute
)

// trouble reports a lasting fault at growing intervals. The zero trouble is none.
type trouble struct {
	what  string
	next  time.Time
	quiet time.Duration
}

// due reports whether to report the fault now.
func (t *trouble) due(what string, now time.Time) bool {
	if what != t.what {
		*t = trouble{what: what}
	} else if now.Before(t.next) {
		return false
	}
	t.quiet = min(max(2*t.quiet, firstQuiet), maxQuiet)
	t.next = now.Add(t.quiet)
	return true
}

func (t *trouble) end() { *t = trouble{} }
