package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

var fleetSteps = flag.Int("fleet.steps", 400, "how many changes each schedule of TestFleetRandom makes; long form: 2000")

// fleetSink is a sink that knows what may be called when: a stream is opened once, brings
// messages while it is open, and a pod is forgotten when all of its streams are closed.
type fleetSink struct {
	deaf
	mu      sync.Mutex
	open    map[string][]string // pods of each open stream
	known   map[string]map[string]bool
	heard   map[string]uint64 // messages of a pod since it was forgotten
	removed map[string]int
	bad     []string
	refuse  func(pod string) error // what RemovePod answers
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

// topicOf is the topic of a pod, which its name gives.
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

// runFleet runs a Fleet until the test ends, or until stop is called.
func runFleet(t *testing.T, f *events.Fleet, sources ...events.Source) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, running := make(chan error, 1), make(chan bool)
	sources = append(slices.Clip(sources), events.Source{Name: "runs", Run: func(ctx context.Context, set func([]events.Pod) error) error {
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

func newFleet(t *testing.T, sink events.Sink, cfg events.FleetConfig) *events.Fleet {
	t.Helper()
	if cfg.Subscriber.Backoff == 0 {
		cfg.Subscriber.Backoff = 10 * time.Millisecond
	}
	f, err := events.NewFleet(sink, cfg)
	must(t, err)
	return f
}

// eventually waits until what a condition says is "".
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

// plainFleet is which pods there are, and who says so, by the rules alone.
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

// want is what a quiet fleet has, a line a pod.
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

// Random sources say random lists and single pods, at any time, before, in and between
// runs, while engines behind some addresses publish. The fleet has what the plain rules
// say, the sink is called as it may be, and at the end each stream that is open is that of
// the pod which the address belongs to.
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
	for _, s := range plain.sources { // in this order, they have this rank
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

// quiet waits until a fleet is what the plain rules say.
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
		for _, w := range waiting { // for somebody
			if !slices.ContainsFunc(pods, func(p events.FleetPod) bool {
				return p.ID != w.ID && p.Host == w.Host
			}) {
				return fmt.Sprintf("%s waits for nobody", w.ID)
			}
		}
		return ""
	})
}

// TestFleetChangeLogged: a log shows what has changed, and errors as text.
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

// TestErrorsInJSON: what a host may log as JSON has the texts of its errors.
func TestErrorsInJSON(t *testing.T) {
	err := errors.New("connection refused")
	for _, v := range []any{
		events.FleetPod{Pod: events.Pod{ID: "a"}, Streams: []events.FleetStream{{Endpoint: "tcp://a:5557", Err: err}}},
		events.FleetChange{Kind: "link changed", To: "backoff", Err: err},
		events.Replay{Pod: "a", From: 3, Err: err},
	} {
		if b, err := json.Marshal(v); err != nil || !strings.Contains(string(b), `"Err":"connection refused"`) || strings.Count(string(b), "Err") != 1 {
			t.Errorf("%T: %s, %v", v, b, err)
		}
	}
	if b, err := json.Marshal(events.FleetStream{Link: "live"}); err != nil || strings.Contains(string(b), "Err") || !strings.Contains(string(b), `"Link":"live"`) {
		t.Errorf("%s, %v", b, err)
	}
}
