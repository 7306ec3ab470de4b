package main

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

const (
	maxPause     = time.Minute // between two health checks of a pod
	checkTimeout = time.Second
)

// health leaves pods alone that have failed: for the first pause, and then until they pass a
// health check, with twice the pause before each further one. A pod that fails again before it
// has answered a request is left alone for twice as long as the last time.
type health struct {
	pause  time.Duration // the first one
	client *http.Client

	down atomic.Int32 // pods that are left alone: a request asks no further as long as it is 0

	mu     sync.Mutex // guards failed
	failed map[string]*failure
}

// failure is of a pod that has failed, until it answers a request.
type failure struct {
	down, checked bool // it is left alone, and is being checked
	pause         time.Duration
	until         time.Time
}

// fail leaves a pod alone. The requests that it had when it failed count once.
func (h *health) fail(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failed[pod]
	if f == nil {
		f = &failure{pause: h.pause / 2}
		h.failed[pod] = f
	}
	if !f.down {
		f.down = true
		f.longer()
		h.down.Add(1)
	}
}

func (f *failure) longer() {
	f.pause = min(2*f.pause, maxPause)
	f.until = time.Now().Add(f.pause)
}

// answered forgets that a pod has failed, unless it is left alone: an answer that it still owed
// says nothing of its state.
func (h *health) answered(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.failed[pod]; f != nil && !f.down {
		delete(h.failed, pod)
	}
}

func (h *health) isDown(pod string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failed[pod]
	return f != nil && f.down
}

// around is a policy that lets p choose among the pods that are not left alone, or among all if
// there is no other: a request is sent somewhere as long as there is a pod.
func (h *health) around(p route.Policy) route.Policy {
	up := route.Only(func(pod *route.Pod) bool { return !h.isDown(pod.Name) }, p)
	return func(r *route.Request, pods []route.Pod) int {
		if h.down.Load() > 0 {
			if i := up(r, pods); i >= 0 {
				return i
			}
		}
		return p(r, pods)
	}
}

// run checks pods that are left alone, until ctx ends.
func (h *health) run(ctx context.Context, pods func() []picker.Pod) {
	var checks sync.WaitGroup
	defer checks.Wait()
	ticker := time.NewTicker(h.pause / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if h.down.Load() == 0 {
				continue
			}
			for _, pod := range h.due(now, pods()) {
				checks.Go(func() { h.check(ctx, pod) })
			}
		}
	}
}

// due returns those of the pods that are to be checked, and forgets failures of all others.
func (h *health) due(now time.Time, pods []picker.Pod) (due []picker.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := make(map[string]*failure)
	for _, pod := range pods {
		f := h.failed[pod.Name]
		if f == nil {
			continue
		}
		there[pod.Name] = f
		if f.down && !f.checked && !now.Before(f.until) {
			f.checked = true
			due = append(due, pod)
		}
	}
	h.failed = there
	down := int32(0)
	for _, f := range there {
		if f.down {
			down++
		}
	}
	h.down.Store(down)
	return due
}

// check ends the pause of a pod, or begins a longer one.
func (h *health) check(ctx context.Context, pod picker.Pod) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	healthy := false
	if req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pod.Host+"/health", nil); err == nil {
		resp, err := h.client.Do(req)
		if err == nil {
			resp.Body.Close()
			healthy = resp.StatusCode == http.StatusOK
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failed[pod.Name]
	switch {
	case f == nil || !f.checked: // the pod was gone meanwhile
	case healthy:
		f.checked, f.down = false, false
		h.down.Add(-1)
	default:
		f.checked = false
		f.longer()
	}
}
