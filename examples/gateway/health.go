package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/route/load"
)

const (
	maxPause     = time.Minute // the longest time between two health checks of a pod
	checkTimeout = time.Second
)

// health excludes pods that have failed: for the first pause, and then until they pass a health
// check. The pause doubles before each further check. A pod that fails again before it has
// answered a request is excluded for twice the last pause.
type health struct {
	pause  time.Duration // the first one
	client *http.Client

	mu     sync.Mutex // guards failed
	failed map[string]*failure
}

// failure is the state of a pod from its failure until it answers a request.
type failure struct {
	down  bool // the pod is excluded
	pause time.Duration
	until time.Time
}

// fail excludes a pod. Requests that fail while it is excluded do not count again.
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
	}
}

func (f *failure) longer() {
	f.pause = min(2*f.pause, maxPause)
	f.until = time.Now().Add(f.pause)
}

// succeed forgets that a pod has failed, unless it is excluded: the answer may belong to a request
// from before the failure.
func (h *health) succeed(pod string) {
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

// around returns a policy that lets p choose among the pods that are not excluded, or among all if
// all are excluded: a request is sent as long as there is a pod.
func (h *health) around(p route.Policy) route.Policy {
	up := route.Only(func(pod *route.Pod) bool { return !h.isDown(pod.Name) }, p)
	return func(r *route.Request, pods []route.Pod) int {
		if i := up(r, pods); i >= 0 {
			return i
		}
		return p(r, pods)
	}
}

// due returns the pods that need a health check now. It forgets failures of pods that are not in
// pods.
func (h *health) due(pods []picker.Pod) (due []picker.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := make(map[string]*failure)
	for _, pod := range pods {
		if f := h.failed[pod.Name]; f != nil {
			there[pod.Name] = f
			if f.down && !time.Now().Before(f.until) {
				due = append(due, pod)
			}
		}
	}
	h.failed = there
	return due
}

// check ends the pause of a pod, or begins a longer one.
func (h *health) check(ctx context.Context, pod picker.Pod) {
	resp, err := h.get(ctx, pod, "/health")
	if err == nil {
		resp.Body.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.failed[pod.Name]; f != nil { // nil: the pod has left the fleet meanwhile
		if f.down = err != nil; f.down {
			f.longer()
		}
	}
}

// get requests a page of a pod's API.
func (h *health) get(ctx context.Context, pod picker.Pod, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pod.Host+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = fmt.Errorf("it answers %s", resp.Status)
	}
	return resp, err
}

// readLoad reads the load that a pod reports, so that requests of other gateways count, too.
func (g *gateway) readLoad(ctx context.Context, pod picker.Pod) {
	resp, err := g.health.get(ctx, pod, "/metrics")
	if err == nil {
		defer resp.Body.Close()
		var reports []load.Report
		reports, err = load.Read(resp.Body, pod.Ranks)
		for _, r := range reports {
			g.picker.Loads().Reported(pod.Name, r.Rank, r.Waiting, r.Running)
		}
	}
	if err != nil && ctx.Err() == nil {
		g.log.Printf("the load of pod %s: %v", pod.Name, err)
	}
}

// watch calls ask for all pods concurrently, and waits until all calls have returned. It repeats
// that at each interval until ctx ends.
func watch(ctx context.Context, interval time.Duration, pods func() []picker.Pod, ask func(context.Context, picker.Pod)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			var asked sync.WaitGroup
			for _, pod := range pods() {
				asked.Go(func() { ask(ctx, pod) })
			}
			asked.Wait()
		}
	}
}
