//go:build linux

package systemtest

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
)

// churnSources are the descriptions of the pods: by calls of the host for one pod or for all, by a
// Source of the host, and by a file.
type churnSources struct {
	names []string
	run   []events.PodSource
	known map[string]map[string]events.Pod // by source and ID
	lists chan []events.Pod                // of the Source of the host
	file  string
	zone  *churnZone
}

const (
	churnDNS      = "dns:pods.test"
	churnDNSRanks = 2
)

// churnHosts are the sources that are calls of the host, each with the other.
var churnHosts = map[string]string{"put": "set", "set": "put"}

func (s *churnSources) open(c *churn) {
	s.known = make(map[string]map[string]events.Pod)
	s.lists = make(chan []events.Pod, 100)
	s.file = filepath.Join(c.t.TempDir(), "pods.json")
	s.write(c, []events.Pod{})
	s.zone = serveZone(c.t)
	dns, err := discovery.DNS(discovery.DNSConfig{
		Name: "pods.test", Pod: events.Pod{Model: churnModels[0], Port: c.port, ReplayPort: c.port + churnReplayPort, Ranks: churnDNSRanks},
		Interval: 200 * time.Millisecond, Grace: time.Second, Resolver: s.zone.resolver(),
	})
	c.must(err)
	watch := events.PodSource{Name: "watch", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		for {
			select {
			case pods := <-s.lists:
				if err := set(pods); err != nil {
					c.failed(err)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
	file := discovery.File(s.file)
	s.run = []events.PodSource{file, dns, watch}
	s.names = []string{"put", "set"}
	for _, r := range s.run {
		s.names = append(s.names, r.Name)
	}
	for _, n := range s.names {
		s.known[n] = make(map[string]events.Pod)
	}
}

func (s *churnSources) close() { s.zone.close() }

// fewest returns the source with the fewest pods.
func (s *churnSources) fewest() string {
	return slices.MinFunc(s.names, func(a, b string) int { return cmp.Compare(len(s.known[a]), len(s.known[b])) })
}

// polled reports whether changes of a source reach the fleet later.
func (s *churnSources) polled(source string) bool { return churnHosts[source] == "" }

func (s *churnSources) put(c *churn, p *churnPod) {
	s.known[p.source][p.ID] = p.Pod
	if p.source == "put" {
		c.must(c.fleet.Put(p.source, p.Pod))
		return
	}
	s.tell(c, p.source)
}

func (s *churnSources) remove(c *churn, p *churnPod) {
	delete(s.known[p.source], p.ID)
	if p.source == "put" {
		c.fleet.Remove(p.source, p.ID)
		return
	}
	s.tell(c, p.source)
}

// tell passes all pods of a source to the fleet.
func (s *churnSources) tell(c *churn, source string) {
	pods := slices.AppendSeq([]events.Pod{}, maps.Values(s.known[source]))
	switch source {
	case "set":
		c.must(c.fleet.Set(source, pods))
	case "watch":
		s.lists <- pods
	case churnDNS:
		s.zone.set(pods)
	default:
		s.write(c, pods)
	}
}

// write writes the file, by a rename or in place.
func (s *churnSources) write(c *churn, pods []events.Pod) {
	b, err := json.Marshal(pods)
	c.must(err)
	name := s.file
	if c.r.IntN(2) == 0 {
		name += ".new"
	}
	c.must(os.WriteFile(name, b, 0o600))
	if name != s.file {
		c.must(os.Rename(name, s.file))
	}
}
