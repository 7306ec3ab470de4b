package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route/load"
)

// watchLoads asks all pods for their load each interval, until ctx ends: so the requests of other
// gateways count that send none of their own figures here.
func (g *gateway) watchLoads(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			var reads sync.WaitGroup
			for _, pod := range g.picker.Pods() {
				reads.Go(func() {
					if err := g.readLoad(ctx, pod); err != nil && ctx.Err() == nil {
						g.log.Printf("the load of pod %s: %v", pod.Name, err)
					}
				})
			}
			reads.Wait()
		}
	}
}

func (g *gateway) readLoad(ctx context.Context, pod picker.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pod.Host+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := g.health.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	reports, err := load.Read(resp.Body, pod.Ranks)
	for _, r := range reports {
		g.picker.Loads().Reported(pod.Name, r.Rank, r.Waiting, r.Running)
	}
	return err
}
