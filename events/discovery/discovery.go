// Package discovery finds the pods of a fleet: in a file (File), or in DNS (DNS). Each
// returns an events.Source, for events.Fleet.Run.
//
// A pod is a running engine, and a source is something that knows pods. A source says all
// the pods that it knows, each time that these change. What it does not name any more is
// forgotten, with all that the index holds of it. So a source here is slow to say that a
// pod has gone: a file that cannot be read removes nobody, and neither does a DNS server
// that fails.
//
// File is for hosts that write down their pods themselves, by hand or by a program, and
// for a Kubernetes ConfigMap that is mounted. DNS is for a headless service: a name of
// which each answer has the addresses of all pods, as Kubernetes and Consul have. Package
// events/k8s asks the API of Kubernetes, which tells more: what is ready, and what is
// going down.
//
// What goes wrong is told to OnError of the source or, if that is nil, to OnError of the
// Fleet. It does not end a source.
package discovery

import (
	"context"
	"time"

	"github.com/kvindex/kvindex/events"
)

// orReport returns a host's OnError, or that of the Fleet if there is none.
func orReport(ctx context.Context, onError func(error)) func(error) {
	if onError == nil {
		return func(err error) { events.Report(ctx, err) }
	}
	return onError
}

// A clock is the time, for tests that do not wait.
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

// What lasts is told again after this time, and then each time after twice as long.
const (
	firstQuiet = 2 * time.Second
	maxQuiet   = time.Minute
)

// trouble keeps what goes on being wrong from being told each time that it is seen. The
// zero trouble is none.
type trouble struct {
	what  string
	next  time.Time
	quiet time.Duration
}

// tells reports whether to tell it now.
func (t *trouble) tells(what string, now time.Time) bool {
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
