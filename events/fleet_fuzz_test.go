package events_test

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// FuzzPod has descriptions as a file, a DNS answer or a label may contain them. An accepted one
// has an address that a Subscriber can dial, one spelling, and names of at most MaxPodName bytes.
func FuzzPod(f *testing.F) {
	for _, host := range []string{
		"10.0.0.1", "pod-0.svc.cluster.local.", "LocalHost", "[::1]", "::ffff:10.0.0.1", "fe80::1%eth0", "fe80::1%a]]", "0.0.0.0.", "a..",
		"tcp://h", "h/path", "h:5557", "a b", "0.0.0.0", "224.0.0.1", "255.255.255.255", ".", "", "h\x00", "h\xff", "\u0130",
		strings.Repeat("x", 254),
	} {
		f.Add("id", "model", host, 5557, 5657, 5600, 4, "kv@", "", "uid", "label")
	}
	f.Add("", "", "h", 0, 0, 0, 0, "", "none", "", "")
	f.Add("id", "model", "h", 65535, 0, 65534, 2, "", "", "", "")
	f.Add("id", "model", "h", -1, -1, -1, -1, "", "", "", "")
	f.Add("id", "model", "h", 1, math.MaxInt, math.MaxInt, 1, "", "", "", "")
	f.Add("id", "model", "h", 1, 2, 3, math.MaxInt, "", "", "", "")
	f.Add("id", "model", "h", 6000, 6003, 6004, 4, "", "zmq", "", "")
	f.Add(strings.Repeat("i", 1025), strings.Repeat("m", 1025), "h", 1, 0, 0, 1, strings.Repeat("t", 1025), "", strings.Repeat("u", 1025), "")
	f.Fuzz(func(t *testing.T, id, model, host string, port, replay, tiers, ranks int, topic string, engine, uid, label string) {
		p := events.Pod{ID: id, Model: model, Host: host, Port: port, ReplayPort: replay, TiersPort: tiers, Ranks: ranks, Topic: topic, Engine: engine, UID: uid}
		if label != "" {
			p.Labels = map[string]string{label: label}
		}
		n, err := p.Normal()
		if err != nil {
			if text := err.Error(); len(text) > 8*1024 {
				t.Errorf("the error has %d bytes", len(text))
			}
			return
		}
		if n.ID != id || n.Model != model || n.UID != uid || len(id) > events.MaxPodName || len(model) > events.MaxPodName {
			t.Errorf("%+v became %+v", p, n)
		}
		if again, err := n.Normal(); err != nil || n.Engine == "" && !reflect.DeepEqual(again, n) {
			t.Errorf("%+v became %+v, %v", n, again, err)
		}
		if n.Engine != "" {
			return
		}
		if n.Ranks < 1 || n.Ranks > events.MaxPodRanks {
			t.Fatalf("%d ranks", n.Ranks)
		}
		seen := map[string]bool{}
		take := func(endpoint string) {
			if err := zmtp.CheckDial(endpoint); err != nil {
				t.Error(err)
			}
			if len(endpoint) > events.MaxPodName {
				t.Errorf("the name of the stream has %d bytes", len(endpoint))
			}
			if seen[endpoint] {
				t.Errorf("%s comes twice", endpoint)
			}
			seen[endpoint] = true
		}
		if n.TiersPort != 0 {
			take(n.TiersAt())
		}
		for rank := range n.Ranks {
			take(n.Endpoint(rank))
			if n.ReplayPort > 0 {
				take(n.ReplayAt(rank))
			}
		}
	})
}
