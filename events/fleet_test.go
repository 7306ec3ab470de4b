package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

var fleetSteps = flag.Int("fleet.steps", 400, "how many changes each schedule of TestFleetRandom makes; long form: 2000")

// fleetSink checks the order of the calls: a stream is opened once and brings messages while it is
// open, and a pod is removed when all of its streams are closed.
type fleetSink struct {
	messageSink
	mu      sync.Mutex
	open    map[string][]string // pods of each open stream
	known   map[string]map[string]bool
	heard   map[string]uint64 // messages of a pod since its removal
	removed map[string]int
	bad     []string
	refuse  func(pod string) error // the result of RemovePod
}

func newFleetSink() *fleetSink {
	return &fleetSink{open: map[string][]string{}, known: map[string]map[string]bool{}, heard: map[string]uint64{}, removed: map[string]int{}}
}

func (l *fleetSink) fail(format string, args ...any) {
	l.bad = append(l.bad, fmt.Sprintf(format, args...))
}

func (l *fleetSink) IngestMessage(m events.Message) (events.Receipt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.open[m.Stream], m.Pod) {
		l.fail("a message of %s for %s, which %q have", m.Stream, m.Pod, l.open[m.Stream])
	}
	l.heard[m.Pod]++
	return events.Receipt{Applied: true}, nil
}

func (l *fleetSink) StreamNote(pod, model, stream string, n events.Note) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n {
	case events.NoteOpened:
		for _, other := range l.open[stream] {
			if other == pod || strings.HasPrefix(topicOf(other), topicOf(pod)) || strings.HasPrefix(topicOf(pod), topicOf(other)) {
				l.fail("%s opens %s, which %s has", pod, stream, other)
			}
		}
		l.open[stream] = append(l.open[stream], pod)
		if l.known[pod] == nil {
			l.known[pod] = map[string]bool{}
		}
		l.known[pod][model+" "+stream] = true
	case events.NoteClosed:
		l.open[stream] = slices.DeleteFunc(l.open[stream], func(p string) bool { return p == pod })
	}
	return nil
}

// topicOf derives a topic from the name of a pod.
func topicOf(id string) string {
	switch id[len(id)-1] {
	case '1', '2':
		return "a"
	case '3', '4':
		return "ab"
	case '5', '6':
		return "b"
	}
	return ""
}

func (l *fleetSink) RemovePod(pod string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for stream, of := range l.open {
		if slices.Contains(of, pod) {
			l.fail("%s is forgotten, and %s is open", pod, stream)
		}
	}
	if l.refuse != nil {
		if err := l.refuse(pod); err != nil {
			return err
		}
	}
	l.removed[pod]++
	delete(l.known, pod)
	delete(l.heard, pod)
	return nil
}

func (l *fleetSink) RemoveStream(pod, model, stream string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.open[stream], pod) {
		l.fail("%s of %s is forgotten, and open", stream, pod)
	}
	delete(l.known[pod], model+" "+stream)
	return nil
}

func runFleet(t *testing.T, f *events.Fleet, sources ...events.PodSource) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, running := make(chan error, 1), make(chan bool)
	sources = append(slices.Clip(sources), events.PodSource{Name: "runs", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		close(running)
		_ = set(nil)
		<-ctx.Done()
		return ctx.Err()
	}})
	go func() { ended <- f.Run(ctx, sources...) }()
	wait(t, "Run to begin", running)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := wait(t, "Run to return", ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// listing returns a source that sets the lists sent to the channel.
func listing(name string) (events.PodSource, chan<- []events.Pod) {
	lists := make(chan []events.Pod)
	return events.PodSource{Name: name, Run: func(ctx context.Context, set func([]events.Pod) error) error {
		for {
			select {
			case l := <-lists:
				_ = set(l)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}, lists
}

func newFleet(t *testing.T, sink events.Sink, cfg events.FleetConfig) *events.Fleet {
	t.Helper()
	if cfg.Subscriber.Backoff == 0 {
		cfg.Subscriber.Backoff = 10 * time.Millisecond
	}
	f, err := events.NewFleet(sink, cfg)
	must(t, err)
	return f
}

// eventually waits until cond returns "".
func eventually(t *testing.T, cond func() string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		lacks := cond()
		if lacks == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", lacks)
		}
	}
}

// plainFleet is a model of the fleet: the pods and the sources that name them.
type plainFleet struct {
	sources []string
	says    map[string]map[string]events.Pod
	owner   map[string]string
}

func (p *plainFleet) settle(id string) {
	if own := p.owner[id]; own != "" {
		if _, ok := p.says[own][id]; ok {
			return
		}
		delete(p.owner, id)
	}
	for _, s := range p.sources {
		if _, ok := p.says[s][id]; ok {
			p.owner[id] = s
			return
		}
	}
}

func (p *plainFleet) set(source string, pods map[string]events.Pod) {
	ids := slices.Collect(maps.Keys(p.says[source]))
	p.says[source] = pods
	for _, id := range ids {
		p.settle(id)
	}
	for id := range pods {
		p.settle(id)
	}
}

// want is the expected state of a quiet fleet, a line for each pod.
func (p *plainFleet) want() (lines []string) {
	for id, source := range p.owner {
		d := p.says[source][id]
		lines = append(lines, fmt.Sprintf("%s from %s: %s %s:%d-%d+%d %q %s %v", id, source, d.Model, d.Host, d.Port, d.Ranks, d.TiersPort, d.Topic, d.UID, d.Labels))
	}
	slices.Sort(lines)
	return lines
}

func got(pods []events.FleetPod) (lines []string) {
	for _, d := range pods {
		lines = append(lines, fmt.Sprintf("%s from %s: %s %s:%d-%d+%d %q %s %v", d.ID, d.Source, d.Model, d.Host, d.Port, d.Ranks, d.TiersPort, d.Topic, d.UID, d.Labels))
	}
	return lines
}

// Random sources set random lists and single pods, at any time, before, in and between runs, while
// engines at some addresses publish. The fleet equals the model, the calls of the sink are in
// order, and at the end each open stream is that of the pod at its address.
func TestFleetRandom(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { fleetSchedule(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func fleetSchedule(t *testing.T, r *rand.Rand) {
	engines := map[string]bool{}
	for i := range 6 {
		p := publisher(t, fakeengine.PublisherConfig{Endpoint: fmt.Sprintf("tcp://127.0.77.%d:0", i+1)})
		engines[p.Endpoint()] = true
		done := make(chan struct{})
		var publishing sync.WaitGroup
		publishing.Go(func() {
			for tick := time.Tick(time.Millisecond); ; {
				select {
				case <-tick:
					p.Publish(nil)
				case <-done:
					return
				}
			}
		})
		t.Cleanup(func() { close(done); publishing.Wait() })
	}
	endpoints := slices.Sorted(maps.Keys(engines))
	sink := newFleetSink()
	sink.refuse = func(string) error {
		if r := rand.N(8); r == 0 {
			return errors.New("not now")
		}
		return nil
	}
	var told struct {
		sync.Mutex
		present map[string]bool
		links   map[string]string
		bad     []string
	}
	told.present, told.links = map[string]bool{}, map[string]string{}
	f := newFleet(t, sink, events.FleetConfig{OnChange: func(c events.FleetChange) {
		told.Lock()
		defer told.Unlock()
		was := told.present[c.Pod.ID]
		if (c.Kind == "added") == was && c.Kind != "claimed" && c.Kind != "link changed" {
			told.bad = append(told.bad, fmt.Sprintf("%v of %s, known %v", c.Kind, c.Pod.ID, was))
		}
		switch c.Kind {
		case "added":
			told.present[c.Pod.ID] = true
		case "removed":
			delete(told.present, c.Pod.ID)
		}
	}})
	plain := &plainFleet{sources: []string{"a", "b", "c"}, says: map[string]map[string]events.Pod{}, owner: map[string]string{}}
	for _, s := range plain.sources { // their order is their rank
		must(t, f.Set(s, nil))
	}
	pod := func() events.Pod {
		host, port, _ := net.SplitHostPort(strings.TrimPrefix(endpoints[r.IntN(len(endpoints))], "tcp://"))
		d := events.Pod{ID: fmt.Sprint("pod-", r.IntN(12)), Model: fmt.Sprint("m", r.IntN(8)/7), Host: host, Ranks: 1 + r.IntN(8)/7*2, UID: fmt.Sprint(r.IntN(16) / 15)}
		fmt.Sscan(port, &d.Port)
		d.Topic = topicOf(d.ID)
		if r.IntN(4) == 0 {
			d.TiersPort = d.Port - 1
		}
		if r.IntN(6) == 0 {
			d.Labels = map[string]string{"l": fmt.Sprint(r.IntN(2))}
		}
		return d
	}
	stop := func() {}
	running := false
	for range *fleetSteps {
		source := plain.sources[r.IntN(3)]
		switch r.IntN(10) {
		case 0:
			if running {
				stop()
			} else {
				stop = runFleet(t, f)
			}
			running = !running
		case 1, 2, 3:
			list := map[string]events.Pod{}
			for range r.IntN(6) {
				d := pod()
				list[d.ID] = d
			}
			if r.IntN(2) == 0 {
				maps.Copy(list, plain.says[source])
			}
			must(t, f.Set(source, slices.Collect(maps.Values(list))))
			plain.set(source, list)
		case 4, 5, 6:
			d := pod()
			list := maps.Clone(plain.says[source])
			if list == nil {
				list = map[string]events.Pod{}
			}
			list[d.ID] = d
			must(t, f.Put(source, d))
			plain.set(source, list)
		default:
			id := fmt.Sprint("pod-", r.IntN(12))
			list := maps.Clone(plain.says[source])
			delete(list, id)
			f.Remove(source, id)
			plain.set(source, list)
		}
		if r.IntN(20) == 0 && running {
			quiet(t, f, sink, plain)
		}
	}
	if !running {
		stop = runFleet(t, f)
	}
	quiet(t, f, sink, plain)
	for _, s := range plain.sources {
		must(t, f.Set(s, nil))
		plain.set(s, nil)
	}
	quiet(t, f, sink, plain)
	stop()
	told.Lock()
	defer told.Unlock()
	if len(told.present) > 0 {
		told.bad = append(told.bad, fmt.Sprintf("at the end OnChange knows %v", told.present))
	}
	for _, b := range append(told.bad, sink.bad...) {
		t.Error(b)
	}
}

// quiet waits until a fleet equals the model.
func quiet(t *testing.T, f *events.Fleet, sink *fleetSink, plain *plainFleet) {
	t.Helper()
	want := plain.want()
	eventually(t, func() string {
		pods := f.Pods(nil)
		if lines := got(pods); !slices.Equal(lines, want) {
			return fmt.Sprintf("%d pods\n got %s\nwant %s", len(lines), strings.Join(lines, "\n     "), strings.Join(want, "\n     "))
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		open := map[string]bool{}
		for stream, pods := range sink.open {
			for _, p := range pods {
				open[stream+" "+p] = true
			}
		}
		known := map[string]int{}
		for pod, streams := range sink.known {
			known[pod] = len(streams)
		}
		waiting := []events.FleetPod{}
		for _, p := range pods {
			if n := len(p.Streams); n != p.Ranks+min(p.TiersPort, 1) || p.Streams[n-1].Tiers != (p.TiersPort > 0) {
				return fmt.Sprintf("%s has %d streams", p.ID, len(p.Streams))
			}
			for _, st := range p.Streams {
				switch st.Link {
				case "waiting":
					waiting = append(waiting, p)
				case "ending", "none":
					return fmt.Sprintf("%s: link %v", p.ID, st.Link)
				default:
					if !open[st.Endpoint+" "+p.ID] {
						return fmt.Sprintf("%s of %s is not open", st.Endpoint, p.ID)
					}
					delete(open, st.Endpoint+" "+p.ID)
					known[p.ID]--
				}
			}
		}
		for id, n := range known {
			if n != 0 {
				return fmt.Sprintf("the sink knows %d streams too many of %s", n, id)
			}
		}
		if len(open) > 0 {
			return fmt.Sprintf("open, and nobody's: %v", open)
		}
		for _, w := range waiting { // another pod has the address
			if !slices.ContainsFunc(pods, func(p events.FleetPod) bool {
				return p.ID != w.ID && p.Host == w.Host
			}) {
				return fmt.Sprintf("%s waits for no other pod", w.ID)
			}
		}
		return ""
	})
}

// TestFleetChangeLogged: a logged FleetChange has its kind and its error as text.
func TestFleetChangeLogged(t *testing.T) {
	pod := events.Pod{ID: "a", Model: "m"}
	for want, c := range map[string]events.FleetChange{
		`c.kind=added c.pod=a c.model=m c.source=file`:                                                         {Kind: "added", Pod: pod, Source: "file"},
		`c.kind="link changed" c.pod=a c.model=m c.source=dns c.rank=1 c.from=live c.to=backoff c.err=refused`: {Kind: "link changed", Pod: pod, Source: "dns", Rank: 1, From: "live", To: "backoff", Err: errors.New("refused")},
	} {
		var out strings.Builder
		slog.New(slog.NewTextHandler(&out, nil)).Info("fleet", "c", c)
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}

// TestErrorsInJSON: values that a host may log as JSON have the texts of their errors.
func TestErrorsInJSON(t *testing.T) {
	err := errors.New("connection refused")
	for _, v := range []any{
		events.FleetPod{Pod: events.Pod{ID: "a"}, Streams: []events.FleetStream{{Endpoint: "tcp://a:5557", Err: err}}},
		events.FleetChange{Kind: "link changed", To: "backoff", Err: err},
	} {
		if b, err := json.Marshal(v); err != nil || !strings.Contains(string(b), `"Err":"connection refused"`) || strings.Count(string(b), "Err") != 1 {
			t.Errorf("%T: %s, %v", v, b, err)
		}
	}
	if b, err := json.Marshal(events.FleetStream{Link: "live"}); err != nil || strings.Contains(string(b), "Err") || !strings.Contains(string(b), `"Link":"live"`) {
		t.Errorf("%s, %v", b, err)
	}
}

// changeLog collects the changes passed to OnChange, as lines.
type changeLog struct {
	mu    sync.Mutex
	lines []string
}

func (h *changeLog) change(c events.FleetChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := fmt.Sprintf("%v %s %s", c.Kind, c.Pod.ID, c.Source)
	if c.Kind == "link changed" {
		line = fmt.Sprintf("%s/%d %v-%v", c.Pod.ID, c.Rank, c.From, c.To)
	}
	h.lines = append(h.lines, line)
}

func (h *changeLog) has(lines ...string) func() string {
	return func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		i := 0
		for _, line := range h.lines {
			if i < len(lines) && line == lines[i] {
				i++
			}
		}
		if i == len(lines) {
			return ""
		}
		return fmt.Sprintf("%q in %q ...", lines[i], h.lines[:min(len(h.lines), 30)])
	}
}

// linkIs waits until the first stream of a pod has this link state.
func linkIs(t *testing.T, f *events.Fleet, id string, link string) (st events.FleetStream) {
	t.Helper()
	eventually(t, func() string {
		pods := f.Pods(nil)
		for _, p := range pods {
			if p.ID == id && len(p.Streams) > 0 && p.Streams[0].Link == link {
				st = p.Streams[0]
				return ""
			}
		}
		return fmt.Sprintf("%s is not %v: %+v", id, link, pods)
	})
	return st
}

func engineAt(t *testing.T, host string) (*fakeengine.Publisher, events.Pod) {
	t.Helper()
	p := publisher(t, fakeengine.PublisherConfig{Endpoint: "tcp://" + host + ":0", Replay: "tcp://" + host + ":0"})
	return p, events.Pod{Model: "m", Host: host, Port: portOf(t, p.Endpoint()), ReplayPort: portOf(t, p.ReplayEndpoint())}
}

func named(p events.Pod, id string) events.Pod {
	p.ID = id
	return p
}

func mustSet(t *testing.T, f *events.Fleet, source string, pods ...events.Pod) {
	t.Helper()
	must(t, f.Set(source, pods))
}

// An error names each fault, and the other pods are accepted.
func TestFleetRefusesPods(t *testing.T) {
	long := strings.Repeat("x", 1025)
	good := events.Pod{ID: "good", Model: "m", Host: "10.0.0.1"}
	for _, test := range []struct {
		pod  events.Pod
		says string
	}{
		{events.Pod{Model: "m", Host: "h"}, "ID is empty"},
		{events.Pod{ID: "a", Host: "h"}, "Model is empty"},
		{events.Pod{ID: "a", Model: "m"}, "no Host"},
		{events.Pod{ID: long, Model: "m", Host: "h"}, "ID has 1025 bytes, more than 1024"},
		{events.Pod{ID: "a", Model: long, Host: "h"}, "Model has 1025 bytes"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Topic: long}, "Topic has 1025 bytes"},
		{events.Pod{ID: "a", Model: "m", Host: "h", UID: long}, "UID has 1025 bytes"},
		{events.Pod{ID: "a", Model: "m", Host: "tcp://h"}, `host "tcp://h" has ':'`},
		{events.Pod{ID: "a", Model: "m", Host: "h/path"}, `has '/'`},
		{events.Pod{ID: "a", Model: "m", Host: "h:5557"}, `has ':'`},
		{events.Pod{ID: "a", Model: "m", Host: "a b"}, `has ' '`},
		{events.Pod{ID: "a", Model: "m", Host: "0.0.0.0"}, "is not the address of a pod"},
		{events.Pod{ID: "a", Model: "m", Host: "[::]"}, "is not the address of a pod"},
		{events.Pod{ID: "a", Model: "m", Host: "224.0.0.1"}, "is not the address of a pod"},
		{events.Pod{ID: "a", Model: "m", Host: "."}, "more than a name can have"},
		{events.Pod{ID: "a", Model: "m", Host: strings.Repeat("x", 254)}, "more than a name can have"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Port: -1}, "Port -1 with 1 ranks"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Port: 65535, Ranks: 2}, "Port 65535 with 2 ranks"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Port: math.MaxInt, Ranks: 2}, "with 2 ranks"},
		{events.Pod{ID: "a", Model: "m", Host: "h", ReplayPort: math.MaxInt, Ranks: 2}, "with 2 ranks"},
		{events.Pod{ID: "a", Model: "m", Host: "h", ReplayPort: 65000, Ranks: 600}, "ReplayPort 65000 with 600 ranks"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Port: 6000, ReplayPort: 6003, Ranks: 4}, "overlap"},
		{events.Pod{ID: "a", Model: "m", Host: "h", ReplayPort: 5557}, "the ports of 1 ranks from Port 5557 and from ReplayPort 5557 overlap"},
		{events.Pod{ID: "a", Model: "m", Host: "h", TiersPort: -1}, "TiersPort -1 is not in 1..65535"},
		{events.Pod{ID: "a", Model: "m", Host: "h", TiersPort: 65536}, "TiersPort 65536 is not in"},
		{events.Pod{ID: "a", Model: "m", Host: "h", TiersPort: 5557}, "TiersPort 5557 is a port of the engine"},
		{events.Pod{ID: "a", Model: "m", Host: "h", ReplayPort: 6000, Ranks: 4, TiersPort: 6003}, "4 from Port 5557 and from ReplayPort 6000"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Ranks: 1025}, "Ranks is 1025"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Ranks: -1}, "Ranks is -1"},
		{events.Pod{ID: "a", Model: "m", Host: "h", Engine: "vllm"}, `Engine "vllm" is neither zmq nor none`},
	} {
		f := newFleet(t, newFleetSink(), events.FleetConfig{})
		err := f.Set("list", []events.Pod{test.pod, good})
		if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), `source "list"`) {
			t.Errorf("%+.200v: %v, want %s", test.pod, err, test.says)
		}
		if pods := f.Pods(nil); len(pods) != 1 || pods[0].ID != "good" || pods[0].Port != 5557 || pods[0].Ranks != 1 {
			t.Errorf("the others: %+v", pods)
		}
	}
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	other := good
	other.Host = "10.0.0.2"
	if err := f.Set("list", []events.Pod{good, other}); err == nil || !strings.Contains(err.Error(), `pod "good" is given twice`) {
		t.Error(err)
	}
	other.Host = "bad host"
	if err := f.Put("list", other); err == nil {
		t.Error("a bad host was taken")
	}
	if pods := f.Pods(nil); len(pods) != 1 || pods[0].Host != "10.0.0.1" {
		t.Errorf("a refused description changed %+v", pods)
	}
}

func TestNewFleetRefuses(t *testing.T) {
	for _, test := range []struct {
		cfg  events.FleetConfig
		says string
	}{
		{events.FleetConfig{MaxPods: -1}, "must not be negative"},
		{events.FleetConfig{Subscriber: events.SubscriberConfig{Pod: "a"}}, "must be zero: each Pod has its own"},
		{events.FleetConfig{Subscriber: events.SubscriberConfig{Bind: true}}, "must be zero: each Pod has its own"},
		{events.FleetConfig{Subscriber: events.SubscriberConfig{Tiers: true}}, "Tiers must be false"},
		{events.FleetConfig{Subscriber: events.SubscriberConfig{OnError: func(error) {}}}, "and has an OnError"},
		{events.FleetConfig{Subscriber: events.SubscriberConfig{MaxMessage: -1}}, "MaxMessage is -1, not in 0.."},
	} {
		if _, err := events.NewFleet(newFleetSink(), test.cfg); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v", test.cfg, err)
		}
	}
	if _, err := events.NewFleet(nil, events.FleetConfig{}); err == nil || !strings.Contains(err.Error(), "the sink is nil") {
		t.Error(err)
	}
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	run := func(context.Context, func([]events.Pod) error) error { return nil }
	for _, sources := range [][]events.PodSource{{{Name: "a"}}, {{Name: "a", Run: run}, {Name: "a", Run: run}}} {
		if err := f.Run(t.Context(), sources...); err == nil || !strings.Contains(err.Error(), `"a"`) {
			t.Error(err)
		}
	}
	runFleet(t, f)
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Run is already running") {
		t.Error(err)
	}
}

// A link reports the state of its connection. A repeated description does not disturb it.
func TestFleetLinks(t *testing.T) {
	engine, pod := engineAt(t, "127.0.0.1")
	var h changeLog
	sink := &dueSink{}
	connects := make(chan string, 100)
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change, Subscriber: events.SubscriberConfig{
		Backoff:   10 * time.Millisecond,
		OnConnect: func(e string) { connects <- e },
	}})
	mustSet(t, f, "host", named(pod, "a"))
	if st := f.Pods(nil)[0]; st.Source != "host" || len(st.Streams) != 0 {
		t.Errorf("before Run: %+v", st)
	}
	stop := runFleet(t, f)
	if st := linkIs(t, f, "a", "live"); st.Err != nil || st.Endpoint != engine.Endpoint() {
		t.Errorf("%+v", st)
	}
	eventually(t, h.has("added a host", "a/0 none-connecting", "a/0 connecting-replaying", "a/0 replaying-live"))
	for len(connects) > 0 {
		<-connects
	}
	since := linkIs(t, f, "a", "live").Since
	for range 100 {
		mustSet(t, f, "host", named(pod, "a"))
	}
	labelled := named(pod, "a")
	labelled.Labels = map[string]string{"zone": "1"}
	mustSet(t, f, "host", labelled)
	eventually(t, h.has("labelled a host"))
	if st := linkIs(t, f, "a", "live"); st.Since != since || len(connects) != 0 {
		t.Errorf("it was connected anew: %+v", st)
	}
	engine.Close()
	if st := linkIs(t, f, "a", "backoff"); st.Err == nil {
		t.Errorf("%+v", st)
	}
	eventually(t, h.has("a/0 live-backoff", "a/0 backoff-connecting", "a/0 connecting-backoff"))
	stop()
	eventually(t, func() string { // it was in either state
		if h.has("a/0 backoff-none")() != "" && h.has("a/0 connecting-none")() != "" {
			return h.has("a/0 backoff-none")()
		}
		return ""
	})
	if st := f.Pods(nil)[0].Streams[0]; st.Link != "none" {
		t.Errorf("after Run: %+v", st)
	}
}

// TestFleetDaemon: NoteTiers is the first note of an offload daemon's stream. The stream goes on
// while its pod has a rank and ends with the pod.
func TestFleetDaemon(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	daemon := publisher(t, fakeengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
	pod.TiersPort = portOf(t, daemon.Endpoint())
	var h changeLog
	sink := &noteSink{fleetSink: newFleetSink(), notes: map[string][]events.Note{}}
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change})
	runFleet(t, f)
	mustSet(t, f, "host", named(pod, "a"))
	eventually(t, h.has("a/-1 none-connecting", "a/-1 connecting-live"))
	linkIs(t, f, "a", "live")
	streams := f.Pods(nil)[0].Streams
	if len(streams) != 2 || streams[0].Tiers || !streams[1].Tiers || streams[1].Endpoint != daemon.Endpoint() {
		t.Fatalf("%+v", streams)
	}
	sink.mu.Lock()
	if first := sink.notes[daemon.Endpoint()][0]; first != events.NoteTiers {
		t.Errorf("the first note of the daemon is %d", first)
	}
	if slices.Contains(sink.notes[streams[0].Endpoint], events.NoteTiers) {
		t.Error("the engine is marked too")
	}
	sink.mu.Unlock()
	wider := named(pod, "a")
	wider.ReplayPort, wider.Ranks = 0, 1
	mustSet(t, f, "host", wider)
	eventually(t, h.has("replaced a host", "a/-1 connecting-live"))
	linkIs(t, f, "a", "live")
	since := f.Pods(nil)[0].Streams[1].Since
	for _, ranks := range []int{2, 1} { // no engine publishes at the address of the second
		wider.Ranks = ranks
		if wider.Port+1 == wider.TiersPort {
			break
		}
		mustSet(t, f, "host", wider)
		eventually(t, func() string {
			if streams := f.Pods(nil)[0].Streams; len(streams) != ranks+1 || streams[ranks].Since != since {
				return fmt.Sprintf("%+v", streams)
			}
			return ""
		})
	}
	mustSet(t, f, "host")
	eventually(t, h.has("removed a host"))
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if sink.removed["a"] == 0 || len(sink.bad) > 0 {
		t.Errorf("removed %v, %q", sink.removed, sink.bad)
	}
}

// noteSink also keeps the notes of each stream.
type noteSink struct {
	*fleetSink
	notes map[string][]events.Note // fleetSink.mu guards it
}

func (s *noteSink) StreamNote(pod, model, stream string, n events.Note) error {
	s.mu.Lock()
	s.notes[stream] = append(s.notes[stream], n)
	s.mu.Unlock()
	return s.fleetSink.StreamNote(pod, model, stream, n)
}

// Only one of the pods with the same address has its stream.
func TestFleetAddressGivenOn(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	var h changeLog
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnChange: h.change})
	runFleet(t, f)
	mustSet(t, f, "host", named(pod, "a"))
	linkIs(t, f, "a", "live")
	mustSet(t, f, "host", named(pod, "a"), named(pod, "b"), named(pod, "c"))
	if st := linkIs(t, f, "b", "waiting"); st.Err == nil || !strings.Contains(st.Err.Error(), `pod "a" has tcp://127.0.0.1`) {
		t.Errorf("%+v", st)
	}
	linkIs(t, f, "c", "waiting")
	f.Remove("host", "b")
	f.Remove("host", "a")
	linkIs(t, f, "c", "live")
	eventually(t, h.has("removed a host", "c/0 waiting-connecting"))
}

// The first source has a pod until it removes it, then the first one in the order of Run.
func TestFleetSources(t *testing.T) {
	var h changeLog
	one, ones := listing("one")
	two, twos := listing("two")
	three, threes := listing("three")
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnChange: h.change})
	at := func(host string) events.Pod { return events.Pod{ID: "a", Model: "m", Host: host, Port: 1} }
	mustSet(t, f, "host", at("127.0.1.4"))
	runFleet(t, f, one, two, three)
	threes <- []events.Pod{at("127.0.1.3")}
	twos <- []events.Pod{at("127.0.1.2")}
	eventually(t, h.has("added a host", "claimed a host", "claimed a host"))
	if p := f.Pods(nil)[0]; p.Host != "127.0.1.4" {
		t.Errorf("%+v", p)
	}
	mustSet(t, f, "host")
	eventually(t, h.has("handed on a two"))
	ones <- []events.Pod{at("127.0.1.1")}
	eventually(t, h.has("handed on a two", "claimed a two"))
	twos <- nil
	eventually(t, h.has("handed on a one"))
	ones <- nil
	eventually(t, h.has("handed on a one", "handed on a three"))
	threes <- nil
	eventually(t, h.has("removed a three"))
}

func TestFleetMaxPods(t *testing.T) {
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{MaxPods: 3})
	list := func(names ...string) (pods []events.Pod) {
		for _, n := range names {
			pods = append(pods, events.Pod{ID: n, Model: "m", Engine: events.EngineNone})
		}
		return pods
	}
	ids := func() (ids []string) {
		for _, p := range f.Pods(nil) {
			if p.Source != "" {
				ids = append(ids, p.ID)
			}
		}
		return ids
	}
	runFleet(t, f)
	if err := f.Set("s", list("a", "b", "c", "d")); err == nil || !strings.Contains(err.Error(), `pod "d": there are 3 pods already (MaxPods)`) {
		t.Error(err)
	}
	if err := f.Put("t", list("e")[0]); err == nil {
		t.Error("a fourth pod was taken")
	}
	if err := f.Put("t", list("a")[0]); err != nil { // the pod is another source's already
		t.Error(err)
	}
	f.Remove("t", "a")
	mustSet(t, f, "s", list("d", "e", "f")...) // three new pods
	if got := ids(); !slices.Equal(got, []string{"d", "e", "f"}) {
		t.Error(got)
	}
	eventually(t, func() string {
		if n := len(f.Pods(nil)); n > 3 {
			return fmt.Sprint(n, " pods are there")
		}
		return ""
	})
	// Pods whose removal the sink has not accepted count too, from twice MaxPods on.
	sink.mu.Lock()
	sink.refuse = func(string) error { return errors.New("not now") }
	sink.mu.Unlock()
	mustSet(t, f, "s", list("g", "h", "i")...)
	if err := f.Set("s", list("k")); err == nil {
		t.Errorf("more than twice MaxPods were taken: %+v", f.Pods(nil))
	}
	sink.mu.Lock()
	sink.refuse = nil
	sink.mu.Unlock()
	eventually(t, func() string {
		if n := len(f.Pods(nil)); n > 0 {
			return fmt.Sprint(n, " pods are there")
		}
		return ""
	})
}

// A removal that the sink rejects is reported and repeated.
func TestFleetSinkDoesNotForget(t *testing.T) {
	sink := newFleetSink()
	fails := make(chan error, 100)
	var h changeLog
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change, OnError: func(err error) { fails <- err }})
	broken := errors.New("the index does not answer")
	sink.refuse = func(string) error { return broken }
	stop := runFleet(t, f)
	mustSet(t, f, "s", events.Pod{ID: "a", Model: "m", Host: "127.0.0.1", Port: 1})
	mustSet(t, f, "s")
	for err := range fails {
		if errors.Is(err, broken) {
			if !strings.Contains(err.Error(), `pod "a"`) {
				t.Error(err)
			}
			break
		}
	}
	stop() // the pod is still to be removed
	if got := f.Pods(nil); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	sink.refuse = nil
	runFleet(t, f)
	eventually(t, h.has("removed a s"))
	if sink.removed["a"] != 1 || len(f.Pods(nil)) != 0 {
		t.Errorf("%v, %+v", sink.removed, f.Pods(nil))
	}
}

// A restored pod that no source names is removed when all sources have reported.
func TestFleetRestored(t *testing.T) {
	var h changeLog
	sink := newFleetSink()
	source, lists := listing("s")
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change, Restored: []string{"a", "b", "c"}})
	mustSet(t, f, "host", events.Pod{ID: "c", Model: "m", Engine: events.EngineNone})
	stop := runFleet(t, f, source)
	if n := len(f.Pods(nil)); n != 1 {
		t.Errorf("%d pods", n)
	}
	lists <- []events.Pod{{ID: "a", Model: "m", Engine: events.EngineNone}}
	eventually(t, h.has("removed b "))
	stop()
	if fmt.Sprint(sink.removed) != "map[b:1]" {
		t.Error(sink.removed)
	}
}

// TestFleetVersion: a removed pod is among Pods until the sink has removed it, so both changes
// change Version. The largest MaxPods is no bound.
func TestFleetVersion(t *testing.T) {
	h, sink := &changeLog{}, newFleetSink()
	sink.refuse = func(string) error { return errors.New("not now") }
	f := newFleet(t, sink, events.FleetConfig{MaxPods: math.MaxInt, OnChange: h.change})
	runFleet(t, f)
	mustSet(t, f, "list", events.Pod{ID: "a", Model: "m", Engine: events.EngineNone})
	eventually(t, h.has("added a list"))
	mustSet(t, f, "list")
	before := f.Version()
	if pods := f.Pods(nil); len(pods) != 1 || pods[0].Source != "" {
		t.Fatalf("%+v", pods)
	}
	sink.mu.Lock()
	sink.refuse = nil
	sink.mu.Unlock()
	eventually(t, h.has("removed a list"))
	if f.Version() == before || len(f.Pods(nil)) != 0 {
		t.Errorf("version %d, then %d with %+v", before, f.Version(), f.Pods(nil))
	}
}

// When Run ends, the sink keeps all pods, and Run may be called again.
func TestFleetKeeps(t *testing.T) {
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{Restored: []string{"c"}})
	_, pod := engineAt(t, "127.0.0.1")
	mustSet(t, f, "s", named(pod, "a"), events.Pod{ID: "b", Model: "m", Engine: events.EngineNone})
	silent, _ := listing("silent")
	for range 2 {
		stop := runFleet(t, f, silent)
		linkIs(t, f, "a", "live")
		stop()
		if len(sink.known) == 0 || len(sink.removed) > 0 || len(f.Pods(nil)) != 2 {
			t.Errorf("the sink has %v, and has removed %v", sink.known, sink.removed)
		}
	}
}

// A source that ends is reported and run again.
func TestFleetSourceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var fails []string
		f, err := events.NewFleet(newFleetSink(), events.FleetConfig{OnError: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fails = append(fails, err.Error())
		}})
		must(t, err)
		runs := 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err = f.Run(ctx, events.PodSource{Name: "s", Run: func(_ context.Context, set func([]events.Pod) error) error {
			runs++
			_ = set([]events.Pod{{ID: "a", Model: "m", Engine: events.EngineNone}, {ID: "bad"}})
			if runs%2 == 0 {
				return errors.New("no cluster")
			}
			return nil
		}})
		if !errors.Is(err, context.DeadlineExceeded) || runs < 8 || runs > 30 || len(f.Pods(nil)) != 1 {
			t.Errorf("%v, %d runs, %+v", err, runs, f.Pods(nil))
		}
		all := strings.Join(fails, "\n")
		for _, want := range []string{`source "s": Run of the source has returned`, `source "s": no cluster`, `source "s": pod "bad": Model is empty`} {
			if !strings.Contains(all, want) {
				t.Errorf("not reported: %s: %s", want, all)
			}
		}
		if n := strings.Count(all, `pod "bad"`); n > runs {
			t.Errorf("a repeated refusal was reported %d times in %d runs", n, runs)
		}
	})
}

// A hook that blocks does not delay the fleet, and the changes that it misses are counted.
func TestFleetSlowHook(t *testing.T) {
	begun, block := make(chan bool, 1), make(chan bool)
	fails := make(chan error, 10)
	hook := func(events.FleetChange) {
		select {
		case begun <- true:
		default:
		}
		<-block
	}
	f := newFleet(t, newFleetSink(), events.FleetConfig{MaxPods: 4, OnChange: hook, OnError: func(err error) { fails <- err }})
	stop := runFleet(t, f)
	mustSet(t, f, "s", events.Pod{ID: "a", Model: "m", Engine: events.EngineNone})
	wait(t, "the hook", begun)
	for i := range 5000 {
		mustSet(t, f, "s", events.Pod{ID: "a", Model: fmt.Sprint(i), Engine: events.EngineNone})
	}
	close(block)
	if err := wait(t, "OnError", fails); !strings.Contains(err.Error(), "OnChange is too slow: ") {
		t.Error(err)
	}
	stop()
}

func TestFleetHookCalls(t *testing.T) {
	var f *events.Fleet
	removed := make(chan bool, 1)
	f = newFleet(t, newFleetSink(), events.FleetConfig{OnChange: func(c events.FleetChange) {
		switch c.Kind {
		case "added":
			_ = f.Pods(nil)
			f.Remove("s", c.Pod.ID)
		case "removed":
			removed <- true
		}
	}})
	runFleet(t, f)
	mustSet(t, f, "s", events.Pod{ID: "a", Model: "m", Host: "127.0.0.1", Port: 1})
	wait(t, "PodRemoved", removed)
}

func TestFleetPodsAllocatesNothing(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Log("coverage allocates")
		return
	}
	f := newFleet(t, newFleetSink(), events.FleetConfig{Subscriber: events.SubscriberConfig{Backoff: 10 * time.Hour}})
	var pods []events.Pod
	for i := range 100 {
		pods = append(pods, events.Pod{ID: fmt.Sprint("pod-", i), Model: "m", Host: "127.0.0.1", Port: 1 + 2*i, Ranks: 2})
	}
	mustSet(t, f, "s", pods...)
	runFleet(t, f)
	dst := f.Pods(nil)
	eventually(t, func() string {
		dst = f.Pods(dst[:0])
		for _, p := range dst {
			for _, st := range p.Streams {
				if st.Link != "backoff" {
					return p.ID
				}
			}
		}
		return ""
	})
	if n := testing.AllocsPerRun(10, func() { dst = f.Pods(dst[:0]) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if !slices.IsSortedFunc(dst, func(a, b events.FleetPod) int { return strings.Compare(a.ID, b.ID) }) || len(dst) != 100 {
		t.Error("not ordered")
	}
}

// TestReport: a fault that a source reports comes to the Fleet's OnError with the source's name.
func TestReport(t *testing.T) {
	fails := make(chan error, 1)
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnError: func(err error) { fails <- err }})
	fault := errors.New("no such table")
	events.Report(t.Context(), fault) // without a Fleet nothing happens
	runFleet(t, f, events.PodSource{Name: "db", Run: func(ctx context.Context, _ func([]events.Pod) error) error {
		events.Report(ctx, fault)
		<-ctx.Done()
		return ctx.Err()
	}})
	if err := wait(t, "OnError", fails); !errors.Is(err, fault) || !strings.Contains(err.Error(), `source "db"`) {
		t.Error(err)
	}
}

// A pod with another address, model or engine is a new pod: the old one is removed once, and the
// new one is followed at its address.
func TestFleetReplaced(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	_, other := engineAt(t, "127.0.0.1")
	_, far := engineAt(t, "127.0.78.1")
	for _, test := range []struct {
		what   string
		change func(*events.Pod)
	}{
		{"Host", func(p *events.Pod) { p.Host = far.Host }},
		{"Port", func(p *events.Pod) { p.Port = other.Port }},
		{"ReplayPort", func(p *events.Pod) { p.ReplayPort = other.ReplayPort }},
		{"no ReplayPort", func(p *events.Pod) { p.ReplayPort = 0 }},
		{"Model", func(p *events.Pod) { p.Model = "another" }},
		{"Topic", func(p *events.Pod) { p.Topic = "kv" }},
		{"UID", func(p *events.Pod) { p.UID = "another" }},
		{"Engine", func(p *events.Pod) { p.Engine = events.EngineNone }},
		{"all", func(p *events.Pod) { *p = named(other, p.ID) }},
	} {
		t.Run(test.what, func(t *testing.T) {
			var h changeLog
			sink := newFleetSink()
			f := newFleet(t, sink, events.FleetConfig{OnChange: h.change})
			stop := runFleet(t, f)
			is := named(pod, "a")
			mustSet(t, f, "s", is)
			eventually(t, h.has("a/0 none-connecting"))
			test.change(&is)
			mustSet(t, f, "s", is)
			want := fmt.Sprintf("tcp://%s:%d", is.Host, is.Port)
			eventually(t, func() string {
				if is.Engine == events.EngineNone {
					return h.has("replaced a s")()
				}
				sink.mu.Lock()
				defer sink.mu.Unlock()
				if sink.removed["a"] == 0 || !sink.known["a"][is.Model+" "+want] {
					return fmt.Sprintf("forgotten %v, known %v, wanted %s", sink.removed, sink.known, want)
				}
				return ""
			})
			eventually(t, h.has("replaced a s"))
			stop()
			if sink.removed["a"] != 1 || len(sink.known["a"]) > 1 || len(sink.bad) > 0 {
				t.Errorf("removed %v, still there %v, %q", sink.removed, sink.known, sink.bad)
			}
		})
	}
}

func TestFleetStats(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	if got := f.Stats(); len(got.Dropped) != 3 {
		t.Errorf("without a pod: %+v", got)
	}
	stop := runFleet(t, f)
	for n := uint64(1); n < 3; n++ {
		mustSet(t, f, "s", named(pod, "a"))
		eventually(t, func() string {
			if s := f.Stats(); s.Connects != n {
				return fmt.Sprintf("%d connections, want %d", s.Connects, n)
			}
			return ""
		})
		mustSet(t, f, "s")
		eventually(t, func() string {
			if pods := f.Pods(nil); len(pods) > 0 {
				return fmt.Sprintf("%d pods", len(pods))
			}
			return ""
		})
	}
	stop()
	if s := f.Stats(); s.Connects != 2 {
		t.Errorf("%+v", s)
	}
}

// Removed ranks are reported and removed from the sink. The others go on.
func TestFleetResized(t *testing.T) {
	var h changeLog
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change})
	stop := runFleet(t, f)
	ranks := func(n int) {
		t.Helper()
		mustSet(t, f, "s", events.Pod{ID: "a", Model: "m", Host: "127.0.0.1", Port: 1, Ranks: n})
		eventually(t, func() string {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			if len(sink.known["a"]) != n || len(sink.open) < n {
				return fmt.Sprintf("%d ranks: known %v, open %v", n, sink.known, sink.open)
			}
			return ""
		})
	}
	ranks(3)
	ranks(1)
	ranks(4)
	eventually(t, h.has("added a s", "resized a s", "resized a s"))
	stop()
	if len(sink.removed) != 0 || len(sink.bad) > 0 {
		t.Errorf("forgotten %v, %q", sink.removed, sink.bad)
	}
}

// An error names the first of many refused pods and counts the others.
func TestFleetManyRefused(t *testing.T) {
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	for _, n := range []int{1, 16, 17, 1000} {
		var pods []events.Pod
		for i := range n {
			pods = append(pods, events.Pod{ID: fmt.Sprint("x", i)})
		}
		text := fmt.Sprint(f.Set("s", pods))
		if got := strings.Count(text, "Model is empty"); got != min(n, 16) {
			t.Errorf("of %d pods %d are named", n, got)
		}
		if more := fmt.Sprintf("and %d more pods are refused", n-16); strings.Contains(text, "more pods") != (n > 16) || n > 16 && !strings.Contains(text, more) {
			t.Errorf("of %d: %s", n, text)
		}
	}
}

// A repeated description, in whatever spelling, is not reported. A pod that is removed and added
// again is a new pod.
func TestFleetReportsChanges(t *testing.T) {
	var h changeLog
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{OnChange: h.change})
	mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Host: "Engine-0.example."})
	for range 2 {
		mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Host: "engine-0.example", Port: 5557, Ranks: 1, Labels: map[string]string{}})
	}
	mustSet(t, f, "list")
	stop := runFleet(t, f)
	a := events.Pod{ID: "a", Model: "m", Engine: events.EngineNone, Labels: map[string]string{"k": "1"}}
	put := func() {
		t.Helper()
		must(t, f.Put("s", a))
	}
	put()
	put()
	a.Labels["k"] = "2" // the Fleet has a copy
	put()
	f.Remove("s", "a")
	f.Remove("s", "a")
	put()
	eventually(t, h.has("removed a s", "added a s"))
	stop()
	if want := []string{"added b list", "removed b list", "added a s", "labelled a s", "removed a s", "added a s"}; !slices.Equal(h.lines, want) {
		t.Errorf("%q, want %q", h.lines, want)
	}
	if sink.removed["a"] != 1 {
		t.Error(sink.removed)
	}
}

// A repeated refusal is reported at doubling intervals.
func TestFleetSourceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan error, 1000)
		f := newFleet(t, newFleetSink(), events.FleetConfig{OnError: func(err error) { told <- err }})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_ = f.Run(ctx, events.PodSource{Name: "s", Run: func(ctx context.Context, set func([]events.Pod) error) error {
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				if set([]events.Pod{{ID: "bad"}}) == nil {
					t.Error("a bad pod was taken")
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					tick.Stop()
					return ctx.Err()
				}
			}
		}})
		if len(told) != 4 { // after 0, 1, 3 and 7 s
			t.Errorf("it was reported %d times in 10 s", len(told))
		}
	})
}

// TestFleetWords: the docs of Link and Kind list exactly the words that a Fleet uses.
func TestFleetWords(t *testing.T) {
	text, err := os.ReadFile("fleet.go")
	must(t, err)
	words := func(line string) (all []string) {
		for _, m := range regexp.MustCompile(line).FindAllSubmatch(text, -1) {
			all = append(all, string(m[1]))
		}
		return all
	}
	said := words(`(?m)^\t(?:link|pod)[A-Z]\w* += "(.+)"$`)
	if told := words(`(?m)^\t//   - "(.+?)"`); len(said) != 15 || !slices.Equal(said, told) {
		t.Errorf("the Fleet uses %q, the docs have %q", said, told)
	}
}

func TestFleetSourceSetsFromManyGoroutines(t *testing.T) {
	var mu sync.Mutex
	faults := 0
	f := newFleet(t, newFleetSink(), events.FleetConfig{OnError: func(error) {
		mu.Lock()
		defer mu.Unlock()
		faults++
	}})
	done := make(chan bool)
	runFleet(t, f, events.PodSource{Name: "many", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		var work sync.WaitGroup
		for i := range 8 {
			work.Go(func() {
				for range 20 {
					_ = set([]events.Pod{{ID: fmt.Sprint(i)}})
				}
			})
		}
		work.Wait()
		close(done)
		<-ctx.Done()
		return ctx.Err()
	}})
	wait(t, "the source", done)
	mu.Lock()
	defer mu.Unlock()
	if faults == 0 {
		t.Error("no refused pod was reported")
	}
}

// A set of a source after the end of its Run is rejected: it may be out of date.
func TestFleetSourceSetsTooLate(t *testing.T) {
	h := &changeLog{}
	f := newFleet(t, newFleetSink(), events.FleetConfig{Restored: []string{"old"}, OnChange: h.change})
	late := make(chan func([]events.Pod) error, 1)
	silent := func(ctx context.Context, set func([]events.Pod) error) error {
		select {
		case late <- set:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	}
	stop := runFleet(t, f, events.PodSource{Name: "silent", Run: silent})
	set := wait(t, "set", late)
	stop()
	runFleet(t, f, events.PodSource{Name: "silent", Run: silent})
	if err := set([]events.Pod{{ID: "a", Model: "m", Host: "h"}}); err == nil {
		t.Error("set took pods after ctx had ended")
	}
	mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Engine: events.EngineNone})
	eventually(t, h.has("added b list"))
	if pods := f.Pods(nil); len(pods) != 1 || pods[0].ID != "b" {
		t.Errorf("%+v", pods)
	}
	if h.has("removed old ")() == "" {
		t.Error("a restored pod is forgotten before its source has reported")
	}
}

// A restored pod that was added and removed is removed from the sink and reported once.
func TestFleetForgetsARestoredPodOnce(t *testing.T) {
	h := &changeLog{}
	sink := newFleetSink()
	f := newFleet(t, sink, events.FleetConfig{Restored: []string{"a"}, OnChange: h.change})
	slow, lists := listing("slow")
	runFleet(t, f, slow)
	mustSet(t, f, "list", events.Pod{ID: "a", Model: "m", Engine: events.EngineNone})
	mustSet(t, f, "list")
	eventually(t, h.has("removed a list"))
	lists <- nil
	lists <- nil // accepted when the first one is set
	mustSet(t, f, "list", events.Pod{ID: "b", Model: "m", Engine: events.EngineNone})
	mustSet(t, f, "list")
	eventually(t, h.has("removed b list"))
	if h.has("removed a ")() == "" {
		t.Error("reported twice")
	}
}

// A host has one spelling. An address that no pod can have is refused, and so is a zone that is no
// interface's name.
func TestPodHosts(t *testing.T) {
	for host, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "10.0.0.1.": "10.0.0.1", "::FFFF:10.0.0.1": "10.0.0.1", "[::1]": "::1", "[2001:DB8::0:1]": "2001:db8::1", "2001:db8:0::1": "2001:db8::1",
		"[FE80::1%eth0]": "fe80::1%eth0", "Pod-0.Engines.": "pod-0.engines", "pod_0": "pod_0",
		"0.0.0.0.": "", "[::": "", "::]": "", "[10.0.0.1": "", "fe80::1%": "", "fe80::1%a]:1/x": "", "fe80::1%a b": "", "fe80::1%" + strings.Repeat("z", 4096): "",
		"::ffff:0.0.0.0": "", "h..": "", "a..b": "", "höst": "",
	} {
		n, err := events.Pod{ID: "a", Model: "m", Host: host}.Normal()
		if (err != nil) != (want == "") || n.Host != want {
			t.Errorf("%.40q is %q, %v, want %q", host, n.Host, err, want)
		}
		if host == "höst" && !strings.Contains(err.Error(), `'ö'`) {
			t.Error(err)
		}
	}
}

// A source is not kept after Remove of its only pod, unless Set was called for it.
func TestFleetForgetsSourcesWithoutPods(t *testing.T) {
	f := newFleet(t, newFleetSink(), events.FleetConfig{})
	for i := range 100 {
		name := fmt.Sprint("source ", i)
		f.Remove(name, "a")
		_ = f.Put(name, events.Pod{ID: "a"})
		must(t, f.Put(name, events.Pod{ID: "a", Model: "m", Host: "h"}))
		f.Remove(name, "a")
	}
	if n := events.SourcesOf(f); n != 0 {
		t.Errorf("%d sources are kept", n)
	}
}

// With another engine's replay socket a link does not stay at "replaying": nothing is requested
// there before a message comes.
func TestFleetIsLiveBesideAForeignReplaySocket(t *testing.T) {
	engine, pod := engineAt(t, "127.0.0.1")
	other, foreign := engineAt(t, "127.0.0.1")
	other.Publish(clock(100))
	pod.ReplayPort = foreign.ReplayPort
	h := &changeLog{}
	l := newLedger()
	f := newFleet(t, l, events.FleetConfig{OnChange: h.change})
	runFleet(t, f)
	mustSet(t, f, "list", named(pod, "a"))
	linkIs(t, f, "a", "live")
	must(t, engine.WaitSubscribers(t.Context(), 1))
	engine.Publish(clock(0))
	engine.Publish(clock(1))
	l.expectEnd(t, "rewound")
	eventually(t, h.has("a/0 live-backoff", "a/0 connecting-replaying", "a/0 replaying-live"))
}

// OnError is not called after Run has returned, not even for a silent engine.
func TestFleetTellsNothingAfterRun(t *testing.T) {
	_, pod := engineAt(t, "127.0.0.1")
	pod.ReplayPort = 0
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		begun, returned := make(chan bool, 10), make(chan bool)
		cfg := events.FleetConfig{OnError: func(err error) {
			begun <- true
			cancel()
			select {
			case <-returned:
				t.Errorf("Run has returned before OnError: %v", err)
			case <-time.After(5 * time.Millisecond):
			}
		}}
		cfg.Subscriber.Silence = time.Millisecond
		f := newFleet(t, newFleetSink(), cfg)
		mustSet(t, f, "list", named(pod, "a"))
		_ = f.Run(ctx)
		close(returned)
		wait(t, "OnError", begun)
	}
}
