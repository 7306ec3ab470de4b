// # Why the Reflector, and no SharedInformer
//
// A SharedInformer keeps each pod twice and whole. Its waits cannot be set: up to a minute
// after an API server was away. While it waits for a watch that begins with a list, it ignores
// its context. The Reflector is the part of it that lists and watches, and takes a clock: ours
// ends its timers with the context and waits ten seconds at most.
//
// A loop of our own would have to handle expired versions, versions from the future, pages
// that expire, watches that begin with a list, and servers without such watches. The Reflector
// handles them all.
//
// client-go logs to stderr through klog. It gets a context with a logger that drops all,
// unless the context of the host has a logger.
//
// A program with client-go v0.35.4 links 40 modules more, so the package has a module of its
// own.

package k8s

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/kvindex/kvindex/events"
)

const (
	// pause is the time between two calls of set. The first of a burst waits for nothing.
	pause = 5 * time.Millisecond
	// repeat is the time after which a request that fails as before is reported again.
	repeat = time.Minute
	// room is the time after which refused pods are offered again: there may be room for them.
	room = 10 * time.Second
)

// A source follows the pods of a Config by client-go's Reflector, before a store of its own: a
// SharedInformer would keep each pod twice, and cannot set how long a Reflector waits.
type source struct {
	Config
	client kubernetes.Interface
	wait   func(time.Duration) time.Duration // how long to wait where client-go would for so long
	report func(error)                       // gets faults that do not end the source
}

// upToTenSeconds bounds the wait of a source between attempts. client-go alone would wait up
// to a minute, in which new pods get no request. A cluster has few gateways, so earlier
// attempts are no burden, and they are not simultaneous.
func upToTenSeconds(d time.Duration) time.Duration {
	return min(d, 5*time.Second+rand.N(5*time.Second))
}

// run is the Run of the events.PodSource.
func (s *source) run(ctx context.Context, set func([]events.Pod) error) error {
	if s.report == nil {
		own := *s
		own.report = func(err error) { events.Report(ctx, err) }
		s = &own
	}
	quiet := ctx
	if _, err := logr.FromContext(ctx); err != nil {
		quiet = logr.NewContext(ctx, logr.Discard()) // without this, client-go writes to stderr
	}
	known := &store{Config: &s.Config, report: s.report, changed: make(chan struct{}, 1), pods: make(map[string]entry)}
	requests := &requests{source: s, failing: make(map[string]fault)}
	reflector := cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc:  requests.list,
			WatchFuncWithContext: requests.watch,
		}, s.client),
		&corev1.Pod{}, known,
		cache.ReflectorOptions{Name: "k8s", Clock: endingClock{ctx: ctx, wait: s.wait}},
	)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { reflector.RunWithContext(quiet) })

	var refused <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-known.changed:
		case <-refused:
		}
		pods, clashes := known.all()
		for _, err := range clashes {
			s.report(err)
		}
		refused = nil
		if err := set(pods); err != nil { // the Fleet reports it
			refused = time.After(s.wait(room))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// requests makes the requests of a Reflector, and reports those that fail.
type requests struct {
	*source
	mu      sync.Mutex       // guards failing
	failing map[string]fault // by verb: the last fault, none once such a request has succeeded
}

// A fault is one that was reported.
type fault struct {
	text string
	when time.Time
}

func (r *requests) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	list, err := r.client.CoreV1().Pods(r.Namespace).List(ctx, r.selected(opts))
	r.ended(ctx, "list", err)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		r.trim(&list.Items[i])
	}
	return list, nil
}

func (r *requests) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := r.client.CoreV1().Pods(r.Namespace).Watch(ctx, r.selected(opts))
	if opts.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		return nil, err // the server is too old for a watch that begins with a list; a list follows
	}
	r.ended(ctx, "watch", err)
	return w, err
}

func (r *requests) selected(opts metav1.ListOptions) metav1.ListOptions {
	opts.LabelSelector, opts.FieldSelector = r.LabelSelector, r.FieldSelector
	return opts
}

// ended reports a failed request. An expired version is no fault: another list follows.
func (r *requests) ended(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	r.mu.Lock()
	if err == nil {
		delete(r.failing, verb)
		r.mu.Unlock()
		return
	}
	was, text := r.failing[verb], err.Error()
	again := text == was.text && time.Since(was.when) < repeat
	if !again {
		r.failing[verb] = fault{text, time.Now()}
	}
	r.mu.Unlock()
	if !again {
		r.report(fmt.Errorf("k8s: cannot %s pods: %w", verb, err))
	}
}

// endingClock is the clock of a Reflector. Its timers end with a context: some of the waits of
// a Reflector ignore theirs, and would hold up the end of a source.
type endingClock struct {
	clock.RealClock
	ctx  context.Context
	wait func(time.Duration) time.Duration
}

func (c endingClock) NewTimer(d time.Duration) clock.Timer {
	t := &endingTimer{c.RealClock.NewTimer(c.wait(d)), c}
	context.AfterFunc(c.ctx, func() { t.Timer.Reset(0) })
	return t
}

type endingTimer struct {
	clock.Timer
	endingClock
}

func (t *endingTimer) Reset(d time.Duration) bool {
	active := t.Timer.Reset(t.wait(d))
	if t.ctx.Err() != nil { // perhaps after its last call
		t.Timer.Reset(0)
	}
	return active
}
