package k8s_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/k8s"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// A host runs a source with a cluster.
type host struct {
	*cluster
	t    *testing.T
	ctx  context.Context
	stop context.CancelFunc
	done chan error
	sets chan []events.Pod // each call of set
	errs chan error        // each error reported

	mu     sync.Mutex // guards refuse
	refuse error      // the result of set
}

// newHost returns a host without a running source.
func newHost(t *testing.T) *host {
	c, err := newCluster(rand.New(rand.NewPCG(1, 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	h := &host{cluster: c, t: t, done: make(chan error, 1), sets: make(chan []events.Pod, 10_000), errs: make(chan error, 10_000)}
	h.ctx, h.stop = context.WithCancel(zmtptest.Context(t))
	return h
}

// run runs a source until the test ends.
func (h *host) run(cfg k8s.Config, client kubernetes.Interface, wait func(time.Duration) time.Duration) {
	h.t.Helper()
	source, err := k8s.SourceThatWaits(client, cfg, wait, func(err error) { h.errs <- err })
	if err != nil {
		h.t.Fatal(err)
	}
	go func() {
		h.done <- source.Run(h.ctx, func(pods []events.Pod) error {
			h.sets <- pods
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.refuse
		})
	}()
	h.t.Cleanup(func() {
		h.stop()
		<-h.done
	})
}

// put writes a whole pod to the server.
func (h *host) put(p *corev1.Pod) {
	h.own.write(p.Namespace+"/"+p.Name, func(*corev1.Pod) (*corev1.Pod, error) { return p.DeepCopy(), nil })
}

func (h *host) delete(p *corev1.Pod) {
	h.own.write(p.Namespace+"/"+p.Name, func(*corev1.Pod) (*corev1.Pod, error) { return nil, nil })
}

// until returns the first set for which is(set).
func (h *host) until(what string, is func([]events.Pod) bool) []events.Pod {
	h.t.Helper()
	var last []events.Pod
	for {
		select {
		case last = <-h.sets:
			if is(last) {
				return last
			}
		case <-h.ctx.Done():
			h.t.Fatalf("no set with %s; the last: %+v", what, last)
		}
	}
}

// barrier writes a pod of this name and returns the first set that has it. So the source has seen
// all earlier writes.
func (h *host) barrier(name string) []events.Pod {
	h.t.Helper()
	p := engine(name)
	h.put(p)
	pods := h.until(name, func(pods []events.Pod) bool {
		for _, p := range pods {
			if p.UID == "uid of "+name {
				return true
			}
		}
		return false
	})
	h.delete(p)
	return pods
}

// relist has the source list all pods again.
func (h *host) relist() {
	h.faults.only("error event 410")
	h.faults.end()
	h.faults.until(h.ctx, "error event 410", 1)
	h.faults.only("")
}

// engine is a running pod.
func engine(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", UID: types.UID("uid of " + name), CreationTimestamp: metav1.Unix(1_000_000, 0),
			Labels: map[string]string{"model": "m"},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

var byLabel = k8s.Config{Model: k8s.From[string]{Key: "model"}}

// full reads each field from its own key.
var full = k8s.Config{
	Switch: "on", Model: k8s.From[string]{Key: "model", Default: "base"}, Topic: k8s.From[string]{Key: "topic", Default: "kv"},
	Port: k8s.From[int]{Key: "port", Default: 5600}, ReplayPort: k8s.From[int]{Key: "replay", Default: 5700}, TiersPort: k8s.From[int]{Key: "tiers"}, Ranks: k8s.From[int]{Key: "ranks", Default: 2},
	Labels: []string{"zone"},
}

// TestPods has pods of the API and the Fleet's pods or errors for them.
func TestPods(t *testing.T) {
	now := metav1.Now()
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		p := engine("p")
		p.Labels = map[string]string{"on": "true"}
		change(p)
		return p
	}
	label := func(key, value string) *corev1.Pod {
		return with(func(p *corev1.Pod) { p.Labels[key] = value })
	}
	pod := func(change func(*events.Pod)) *events.Pod {
		p := &events.Pod{ID: "ns/p", UID: "uid of p", Host: "10.0.0.1", Model: "base", Topic: "kv", Port: 5600, ReplayPort: 5700, Ranks: 2}
		change(p)
		return p
	}
	as := func(change func(*k8s.Config)) k8s.Config {
		cfg := full
		change(&cfg)
		return cfg
	}
	none := func(*events.Pod) {}
	long := strings.Repeat("x", 1025)
	for _, c := range []struct {
		name string
		cfg  k8s.Config
		pod  *corev1.Pod
		want *events.Pod
		err  string
	}{
		{"all defaults", full, with(func(*corev1.Pod) {}), pod(none), ""},
		{"being deleted", full, with(func(p *corev1.Pod) { p.DeletionTimestamp = &now }), nil, ""},
		{"pending", full, with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), nil, ""},
		{"ended", full, with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil, ""},
		{"no address", full, with(func(p *corev1.Pod) { p.Status.PodIP = "" }), nil, ""},
		{"not Ready", full, with(func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }), nil, ""},
		{"no condition", full, with(func(p *corev1.Pod) { p.Status.Conditions = nil }), nil, ""},
		{"not Ready and taken", as(func(c *k8s.Config) { c.Unready = true }), with(func(p *corev1.Pod) { p.Status.Conditions = nil }), pod(none), ""},
		{"IPv6", full, with(func(p *corev1.Pod) { p.Status.PodIP = "fd00::7" }), pod(func(p *events.Pod) { p.Host = "fd00::7" }), ""},
		{"by address", as(func(c *k8s.Config) { c.ByAddress = true }), with(func(*corev1.Pod) {}), pod(func(p *events.Pod) { p.ID = "10.0.0.1" }), ""},
		{"switched off", full, label("on", "false"), nil, ""},
		{"no switch", full, label("on", ""), nil, ""},
		{"no switch is needed", as(func(c *k8s.Config) { c.Switch = "" }), label("on", "maybe"), pod(none), ""},
		{"another switch", full, label("on", "True"), nil, `k8s: pod ns/p: on is "True", neither true nor false`},
		{"a model", full, label("model", "a"), pod(func(p *events.Pod) { p.Model = "a" }), ""},
		{"a model in an annotation", full, with(func(p *corev1.Pod) { p.Annotations = map[string]string{"model": "org/a"} }), pod(func(p *events.Pod) { p.Model = "org/a" }), ""},
		{"a label before an annotation", full, with(func(p *corev1.Pod) {
			p.Labels["model"], p.Annotations = "a", map[string]string{"model": "b"}
		}), pod(func(p *events.Pod) { p.Model = "a" }), ""},
		{"no model", as(func(c *k8s.Config) { c.Model.Default = "" }), with(func(*corev1.Pod) {}), nil, "k8s: pod ns/p: has no model: neither a label nor an annotation model"},
		{"a long model", full, with(func(p *corev1.Pod) { p.Annotations = map[string]string{"model": long} }), nil,
			`k8s: pod ns/p: model (model) has 1025 bytes, more than 1024: "` + long[:100] + `"...`},
		{"a long topic", full, with(func(p *corev1.Pod) { p.Annotations = map[string]string{"topic": long} }), nil,
			`k8s: pod ns/p: topic (topic) has 1025 bytes, more than 1024: "` + long[:100] + `"...`},
		{"a topic", full, label("topic", "t"), pod(func(p *events.Pod) { p.Topic = "t" }), ""},
		{"a port", full, label("port", "65534"), pod(func(p *events.Pod) { p.Port = 65534 }), ""},
		{"a replay port", full, label("replay", "1"), pod(func(p *events.Pod) { p.ReplayPort = 1 }), ""},
		{"an offload daemon", full, label("tiers", "5800"), pod(func(p *events.Pod) { p.TiersPort = 5800 }), ""},
		{"an offload daemon in an annotation", full, with(func(p *corev1.Pod) { p.Annotations = map[string]string{"tiers": "5800"} }), pod(func(p *events.Pod) { p.TiersPort = 5800 }), ""},
		{"a wrong port of a daemon", full, label("tiers", "0"), nil, `k8s: pod ns/p: tiers (tiers port) is "0", not a number in 1..65535`},
		{"ranks", full, label("ranks", "1024"), pod(func(p *events.Pod) { p.Ranks = 1024 }), ""},
		{"no number", full, label("port", "abc"), nil, `k8s: pod ns/p: port (port) is "abc", not a number in 1..65535`},
		{"port 0", full, label("port", "0"), nil, `k8s: pod ns/p: port (port) is "0", not a number in 1..65535`},
		{"port 65536", full, label("replay", "65536"), nil, `k8s: pod ns/p: replay (replay port) is "65536", not a number in 1..65535`},
		{"no ranks", full, label("ranks", "0"), nil, `k8s: pod ns/p: ranks (ranks) is "0", not a number in 1..1024`},
		{"too many ranks", full, label("ranks", "1025"), nil, `k8s: pod ns/p: ranks (ranks) is "1025", not a number in 1..1024`},
		{"ports past the last", full, label("port", "65535"), nil, "k8s: pod ns/p: has 2 ranks (ranks) and so a port 65536, past 65535 (port, replay)"},
		{"replay ports past the last", full, label("replay", "65535"), nil, "k8s: pod ns/p: has 2 ranks (ranks) and so a port 65536, past 65535 (port, replay)"},
		{"a chosen label", full, label("zone", "a"), pod(func(p *events.Pod) { p.Labels = map[string]string{"zone": "a"} }), ""},
		{"another label", full, label("room", "a"), pod(none), ""},
		{"an annotation is no label", full, with(func(p *corev1.Pod) { p.Annotations = map[string]string{"zone": "a"} }), pod(none), ""},
		{"AIBrix", k8s.AIBrix(""), with(func(p *corev1.Pod) {
			p.Labels = map[string]string{"model.aibrix.ai/name": "a", "model.aibrix.ai/kv-events-enabled": "true", "model.aibrix.ai/port": "8000", "model.aibrix.ai/lora-id": "3"}
		}), &events.Pod{ID: "ns/p", UID: "uid of p", Host: "10.0.0.1", Model: "a", Port: 5557, ReplayPort: 5558,
			Labels: map[string]string{"model.aibrix.ai/port": "8000", "model.aibrix.ai/lora-id": "3"}}, ""},
		{"AIBrix without events", k8s.AIBrix(""), with(func(p *corev1.Pod) { p.Labels = map[string]string{"model.aibrix.ai/name": "a"} }), nil, ""},
		{"llm-d", k8s.LLMD("ns", "org/a"), with(func(p *corev1.Pod) {
			p.Labels = map[string]string{"llm-d.ai/inference-serving": "true", "llm-d.ai/model": "a"}
		}), &events.Pod{ID: "ns/p", UID: "uid of p", Host: "10.0.0.1", Model: "org/a", Port: 5557, Labels: map[string]string{"llm-d.ai/model": "a"}}, ""},
		{"another of llm-d", k8s.LLMD("ns", "org/a"), with(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "x"} }), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.put(c.pod)
			h.run(c.cfg, h.reader, aHundredth)
			var got *events.Pod
			if pods := h.until("anything", func([]events.Pod) bool { return true }); len(pods) > 0 {
				got = &pods[0]
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			text := ""
			select {
			case err := <-h.errs: // reported before the set
				text = err.Error()
			default:
			}
			if text != c.err {
				t.Errorf("error %s\n want %s", text, c.err)
			}
		})
	}
}

// TestConfig has the errors of a Config.
func TestConfig(t *testing.T) {
	h := newHost(t)
	for want, cfg := range map[string]k8s.Config{
		"k8s: Model has neither Key nor Default":            {},
		"k8s: LabelSelector: ":                              {Model: byLabel.Model, LabelSelector: "a in"},
		"k8s: FieldSelector: ":                              {Model: byLabel.Model, FieldSelector: "a>b"},
		"k8s: Port.Default is 65536, not in 0..65535":       {Model: byLabel.Model, Port: k8s.From[int]{Default: 65536}},
		"k8s: ReplayPort.Default is -1, not in 0..65535":    {Model: byLabel.Model, ReplayPort: k8s.From[int]{Default: -1}},
		"k8s: TiersPort.Default is 65536, not in 0..65535":  {Model: byLabel.Model, TiersPort: k8s.From[int]{Default: 65536}},
		"k8s: Ranks.Default is 1025, not in 0..1024":        {Model: byLabel.Model, Ranks: k8s.From[int]{Default: 1025}},
		"k8s: Model.Default has 1025 bytes, more than 1024": {Model: k8s.From[string]{Default: strings.Repeat("x", 1025)}},
		"k8s: Topic.Default has 1025 bytes, more than 1024": {Model: byLabel.Model, Topic: k8s.From[string]{Default: strings.Repeat("x", 1025)}},
	} {
		if source, err := k8s.Source(h.writer, cfg); err == nil || !strings.HasPrefix(err.Error(), want) || source.Run != nil {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := k8s.Source(nil, byLabel); err == nil || err.Error() != "k8s: the client is nil" {
		t.Errorf("without a client: %v", err)
	}
	if source, err := k8s.Source(h.writer, byLabel); err != nil || source.Name != "k8s" {
		t.Errorf("%q, %v", source.Name, err)
	}
}

// TestRefusedOnce: an invalid pod is reported once, and not again after a relist. It is reported
// again for another fault, or after it was valid in between.
func TestRefusedOnce(t *testing.T) {
	h := newHost(t)
	cfg := byLabel
	cfg.Port.Key = "port"
	p := engine("p")
	p.Labels["port"] = "abc"
	h.put(p)
	h.run(cfg, h.reader, aHundredth)
	told := func(n int, what string) {
		t.Helper()
		h.barrier(fmt.Sprintf("barrier-%d-of-%s", n, what))
		for range n {
			select {
			case err := <-h.errs:
				if !strings.Contains(err.Error(), what) {
					t.Errorf("%v, want %s", err, what)
				}
			default:
				t.Errorf("%q was not reported", what)
			}
		}
		select {
		case err := <-h.errs:
			t.Errorf("also reported: %v", err)
		default:
		}
	}
	told(1, `"abc"`)
	h.relist()
	h.put(p)
	told(0, "a list")
	p.Status.Message = "beat"
	h.put(p)
	told(0, "a change")
	p.Labels["port"] = "x"
	h.put(p)
	told(1, `"x"`)
	p.Labels["port"] = "7"
	h.put(p)
	h.until("the pod", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].Port == 7 })
	p.Labels["port"] = "x"
	h.put(p)
	told(1, `"x"`)
}

// TestYoungerHasTheAddress: of two pods with one address the younger one is set. This is reported
// once.
func TestYoungerHasTheAddress(t *testing.T) {
	h := newHost(t)
	cfg := byLabel
	cfg.ByAddress = true
	old, young := engine("z-old"), engine("a-young")
	h.put(old)
	h.run(cfg, h.reader, aHundredth)
	h.until("the old one", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].UID == "uid of z-old" })
	young.CreationTimestamp = metav1.Unix(1_000_001, 0)
	h.put(young)
	h.until("the young one", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].UID == "uid of a-young" })
	young.Labels["model"] = "n"
	h.put(young)
	h.until("the young one again", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].Model == "n" })
	h.relist()
	h.until("a list", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].UID == "uid of a-young" })
	h.delete(young)
	h.until("the old one", func(pods []events.Pod) bool { return len(pods) == 1 && pods[0].UID == "uid of z-old" })
	want := "k8s: pod ns/z-old: a younger pod, ns/a-young, has its address 10.0.0.1"
	if err := <-h.errs; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if len(h.errs) > 0 {
		t.Errorf("also reported: %v", <-h.errs)
	}
}

// TestListWhileReading: a list arrives during a read of the pods that marks one as without its
// address.
func TestListWhileReading(t *testing.T) {
	cfg := byLabel
	cfg.ByAddress = true
	old, young := engine("old"), engine("young")
	young.CreationTimestamp = metav1.Unix(1_000_001, 0)
	k8s.Reads(cfg, []any{old, young}, []any{old})
}

// TestSameIsNotSaid: a change of unused fields causes no set.
func TestSameIsNotSaid(t *testing.T) {
	h := newHost(t)
	h.run(byLabel, h.reader, aHundredth)
	h.until("no pod", func(pods []events.Pod) bool { return len(pods) == 0 })
	p := engine("p")
	h.put(p)
	h.until("the pod", func(pods []events.Pod) bool { return len(pods) == 1 })
	for i := range 100 {
		p.Status.Message = fmt.Sprint("beat ", i)
		h.put(p)
	}
	h.put(engine("barrier"))
	n := 0
	h.until("the barrier", func(pods []events.Pod) bool { n++; return len(pods) == 2 })
	if n != 1 {
		t.Errorf("set was called %d times more for nothing", n-1)
	}
}

// TestBurst: pods that come together cause few sets, and the last one has all.
func TestBurst(t *testing.T) {
	h := newHost(t)
	h.run(byLabel, h.reader, aHundredth)
	h.until("no pod", func(pods []events.Pod) bool { return len(pods) == 0 })
	begun := time.Now()
	for i := range 1000 {
		p := engine(fmt.Sprint("p-", i))
		p.Status.PodIP = fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)
		h.put(p)
	}
	n := 0
	h.until("1,000 pods", func(pods []events.Pod) bool { n++; return len(pods) == 1000 })
	if most := 2 + int(time.Since(begun)/k8s.Pause); n > most {
		t.Errorf("%d calls in %v, want %d at most", n, time.Since(begun), most)
	}
	t.Logf("1,000 pods in %d calls within %v", n, time.Since(begun))
}

// TestRequestFaults: a repeated failure of requests is reported once, and again after a success.
func TestRequestFaults(t *testing.T) {
	h := newHost(t)
	h.own.lists = false // else the unsupported watch is reported
	h.run(byLabel, h.reader, aHundredth)
	h.barrier("a")
	if n := len(h.errs); n > 0 {
		t.Errorf("%d reports before the first fault: %v", n, <-h.errs)
	}
	h.faults.only("403")
	h.faults.end()
	if err := <-h.errs; !strings.HasPrefix(err.Error(), "k8s: cannot ") || !strings.Contains(err.Error(), "pods: ") {
		t.Errorf("%v", err)
	}
	h.faults.until(h.ctx, "403", 8)
	// The errors of a list and of a watch may differ.
	if n := len(h.errs); n > 2 {
		t.Errorf("reported %d times more", n)
	}
	for len(h.errs) > 0 {
		<-h.errs
	}
	h.faults.only("")
	h.barrier("b")
	h.faults.only("403")
	h.faults.end()
	<-h.errs
}

// TestWatchIsForbidden: a watch that always fails is reported once, though the lists succeed.
func TestWatchIsForbidden(t *testing.T) {
	h := newHost(t)
	h.own.lists = false
	h.faults.only("watch 403")
	h.run(byLabel, h.reader, aHundredth)
	h.faults.until(h.ctx, "watch 403", 8)
	if n := len(h.errs); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

// TestOfferedAgain: refused pods are set again, as there may be room later. The Fleet reports them,
// not the source.
func TestOfferedAgain(t *testing.T) {
	h := newHost(t)
	h.refuse = errors.New("pod p: no")
	h.run(byLabel, h.reader, aHundredth)
	for range 3 {
		<-h.sets
	}
	h.mu.Lock()
	h.refuse = nil
	h.mu.Unlock()
	h.barrier("a")
	if n := len(h.errs); n > 0 {
		t.Errorf("reported %d times", n)
	}
}

// TestEndsAtOnce: a source ends without a wait for a server, even where client-go would wait.
func TestEndsAtOnce(t *testing.T) {
	forever := func(time.Duration) time.Duration { return time.Hour }
	for _, fault := range []string{"away", "429", "403", "hangs", "500 with a time"} {
		t.Run(fault, func(t *testing.T) {
			h := newHost(t)
			if fault == "away" {
				h.faults.leave()
			} else {
				h.faults.only(fault)
			}
			h.run(byLabel, h.reader, forever)
			if fault == "away" {
				<-h.errs
			} else {
				h.faults.until(h.ctx, fault, 1)
			}
			h.stop()
			if err := <-h.done; !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			h.done <- nil
		})
	}
}

// TestWaits: waits are at most ten seconds, and differ between gateways.
func TestWaits(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 100 {
		d := k8s.UpToTenSeconds(time.Minute)
		if seen[d] = true; d < 5*time.Second || d > 10*time.Second {
			t.Fatalf("%v", d)
		}
	}
	if len(seen) < 50 {
		t.Errorf("%d of 100 waits differ", len(seen))
	}
	if d := k8s.UpToTenSeconds(time.Second); d != time.Second {
		t.Errorf("%v instead of a second", d)
	}
}

// withoutLists is a client that cannot watch with an initial list, like client-go's fake.
type withoutLists struct{ kubernetes.Interface }

func (withoutLists) IsWatchListSemanticsUnSupported() bool { return true }

// TestClientWithoutLists: such a client is not used for watches with an initial list.
func TestClientWithoutLists(t *testing.T) {
	h := newHost(t)
	h.own.lists = true
	h.put(engine("p"))
	h.run(byLabel, withoutLists{h.reader}, aHundredth)
	h.until("the pod", func(pods []events.Pod) bool { return len(pods) == 1 })
	h.barrier("barrier")
	if n := h.own.begun.Load(); n > 0 {
		t.Errorf("%d watches began with a list", n)
	}
}

// TestMemory: little of a pod is kept, however large it is.
func TestMemory(t *testing.T) {
	for _, lists := range []bool{true, false} {
		t.Run(fmt.Sprint("watches that list: ", lists), func(t *testing.T) { testMemory(t, lists) })
	}
}

func testMemory(t *testing.T, lists bool) {
	const n = 500
	h := newHost(t)
	h.own.lists, h.own.page = lists, n/10
	h.own.hold, h.own.held = make(chan struct{}), make(chan struct{}, 1)
	for i := range n {
		p := engine(fmt.Sprintf("engine-%d", i))
		p.Spec.Containers = []corev1.Container{{Name: "engine", Args: []string{strings.Repeat("x", 10<<10)}}}
		p.Annotations = map[string]string{"other": strings.Repeat("y", 10<<10)}
		h.put(p)
	}
	h.own.forget()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	falls := func(when string, most int64) {
		t.Helper()
		each := (heap() - before) / n
		for ; each > most; each = (heap() - before) / n { // requests that have just ended still have memory
			if h.ctx.Err() != nil {
				t.Fatalf("%s, %d bytes are kept of a pod", when, each)
			}
		}
		t.Logf("%s, %d bytes a pod", when, each)
	}
	h.run(byLabel, h.reader, aHundredth)
	release := sync.OnceFunc(func() { close(h.own.hold) })
	defer release()
	<-h.own.held
	falls("before the list ends", 10<<10)
	release()
	h.until("all pods", func(pods []events.Pod) bool { return len(pods) == n })
	h.barrier("barrier") // the list is complete
	falls("after it", 4<<10)
}
