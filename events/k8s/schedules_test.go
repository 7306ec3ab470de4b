package k8s_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/k8s"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

var (
	schedules = flag.Int("schedules", 60, "random `schedules` of TestSchedules; long form: 200")
	firstSeed = flag.Uint64("seed", 1, "the first `seed` of them")
)

// logged is the log of client-go.
var logged struct {
	sync.Mutex
	bytes.Buffer
}

type logWriter struct{}

func (logWriter) Write(b []byte) (int, error) {
	logged.Lock()
	defer logged.Unlock()
	return logged.Write(b)
}

func TestMain(m *testing.M) {
	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(logWriter{})
	stop, err := startReal()
	if err != nil {
		if stop != nil {
			stop()
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if real != nil {
		code := m.Run() // the connections of kube-apiserver outlive the tests
		stop()
		os.Exit(code)
	}
	zmtptest.Main(m)
}

// aHundredth is the wait of sources in tests.
func aHundredth(d time.Duration) time.Duration { return min(d, 10*time.Second) / 100 }

// A cluster is an API server that tests write to, and a source reads through faults.
type cluster struct {
	own    *apiServer           // nil: kube-apiserver
	writer kubernetes.Interface // of the tests
	faults *faults
	reader kubernetes.Interface // of the source
	close  func()
}

// addresses numbers the loopback addresses of clusters, so that each can listen at its own port
// again.
var addresses atomic.Int64

func newCluster(r *rand.Rand, direct *rest.Config) (*cluster, error) {
	n := addresses.Add(1)
	addr := fmt.Sprintf("127.88.%d.%d", n/250%250, 1+n%250)
	c := &cluster{}
	var next http.Handler
	var err error
	if direct == nil {
		c.own = newAPIServer()
		c.own.page, c.own.lists = r.IntN(4), r.IntN(2) == 0
		server := httptest.NewServer(c.own)
		direct, next = &rest.Config{Host: server.URL}, c.own
		defer func() { c.close = func() { c.faults.leave(); server.CloseClientConnections(); server.Close() } }()
	} else {
		next, err = proxyTo(direct)
		defer func() { c.close = c.faults.leave }()
	}
	if err != nil {
		return nil, err
	}
	if c.faults, err = newFaults(next, addr, rand.New(rand.NewPCG(r.Uint64(), 1))); err != nil {
		return nil, err
	}
	if c.writer, err = clientOf(*direct); err != nil {
		return nil, err
	}
	c.reader, err = clientOf(rest.Config{Host: "http://" + c.faults.addr})
	return c, err
}

func clientOf(config rest.Config) (*kubernetes.Clientset, error) {
	config.QPS = -1
	config.ContentType = "application/json"
	// Each client has its own connections.
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return kubernetes.NewForConfig(&config)
}

// plain is the model of a pod.
type plain struct {
	namespace, name     string
	uid                 string
	labels, annotations map[string]string
	phase               corev1.PodPhase
	ip                  string
	ready, deleting     bool
	held                bool // by a finalizer
}

func (p *plain) key() string { return p.namespace + "/" + p.name }

func (p plain) clone() *plain {
	p.labels, p.annotations = maps.Clone(p.labels), maps.Clone(p.annotations)
	return &p
}

// The keys of the schedules' Config, with values and what they mean. -1 is an error.
var (
	ports = map[string]int{"": 5600, "5557": 5557, "65535": 65535, "abc": -1, "0": -1, "70000": -1, "-3": -1}
	ranks = map[string]int{"": 0, "1": 1, "2": 2, "8": 8, "0": -1, "1025": -1, "two": -1}
)

// want is the Fleet's pod that a source of cfg makes of p, or nil.
func (p *plain) want(cfg k8s.Config) *events.Pod {
	if p == nil || p.deleting || p.phase != corev1.PodRunning || p.ip == "" || !p.ready && !cfg.Unready ||
		p.labels["fleet"] != "ours" || cfg.Namespace != "" && cfg.Namespace != p.namespace {
		return nil
	}
	said := func(key string) string { return cmp.Or(p.labels[key], p.annotations[key]) }
	pod := &events.Pod{
		ID: p.key(), Host: p.ip, UID: p.uid, Model: cmp.Or(said("kv/model"), cfg.Model.Default),
		Port: ports[said("kv/port")], Ranks: ranks[said("kv/ranks")], Topic: said("kv/topic"),
	}
	if cfg.ByAddress {
		pod.ID = p.ip
	}
	if v := said("kv/replay"); v != "" {
		pod.ReplayPort = ports[v]
	}
	if z, ok := p.labels["zone"]; ok {
		pod.Labels = map[string]string{"zone": z}
	}
	last := max(pod.Port, pod.ReplayPort) + max(pod.Ranks-1, 0)
	if said("kv/on") != "true" || pod.Model == "" || pod.Port < 0 || pod.ReplayPort < 0 || pod.Ranks < 0 || last > 65535 {
		return nil
	}
	return pod
}

// A schedule changes the pods of a cluster and checks the sets of a source.
type schedule struct {
	*cluster
	cfg    k8s.Config
	rand   *rand.Rand
	cancel context.CancelCauseFunc

	live map[string]*corev1.Pod // on the server
	pods map[string]*plain
	ips  int

	mu      sync.Mutex // guards the fields below
	history map[string]*history
	of      map[string]string // uid to key
	last    map[string]*events.Pod
	sets    int
	news    chan struct{} // closed by the next set
}

// history is all states of a pod, in order, and the source's current one.
type history struct {
	states []*events.Pod
	at     int
}

// note adds the next state of a pod. It is called before the change.
func (s *schedule) note(p *plain, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.history[key]
	if h == nil {
		h = &history{states: []*events.Pod{nil}}
		s.history[key] = h
	}
	if p != nil && p.uid != "" {
		s.of[p.uid] = key
	}
	h.states = append(h.states, p.want(s.cfg))
}

// set checks a set of the source. Each pod must be as at some time, and not as before an earlier
// set. So a running pod is never missing.
func (s *schedule) set(pods []events.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = make(map[string]*events.Pod, len(pods))
	for _, p := range pods {
		key, known := s.of[p.UID]
		if !known || s.last[key] != nil {
			s.cancel(fmt.Errorf("set %d has a pod that never was, or twice: %+v", s.sets, p))
		}
		s.last[key] = &p
	}
	for key, h := range s.history {
		from := h.at
		for h.at < len(h.states) && !reflect.DeepEqual(h.states[h.at], s.last[key]) {
			h.at++
		}
		if h.at == len(h.states) {
			s.cancel(fmt.Errorf("set %d: pod %s is %+v, which it was not from state %d on; the last is %+v", s.sets, key, s.last[key], from, h.states[len(h.states)-1]))
			h.at = from
		}
	}
	s.sets++
	close(s.news)
	s.news = make(chan struct{})
	return nil
}

// settle waits until the set equals the model.
func (s *schedule) settle(ctx context.Context) error {
	for {
		want := make(map[string]*events.Pod)
		for key, p := range s.pods {
			if w := p.want(s.cfg); w != nil {
				want[key] = w
			}
		}
		s.mu.Lock()
		same, news, last, sets := s.sets > 0 && reflect.DeepEqual(s.last, want), s.news, s.last, s.sets
		s.mu.Unlock()
		if same {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("after %d sets: %w; have %s, want %s", sets, context.Cause(ctx), show(last), show(want))
		}
	}
}

func show(pods map[string]*events.Pod) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(pods)) {
		fmt.Fprintf(&b, "\n\t%s: %+v", key, *pods[key])
	}
	return b.String()
}

func (s *schedule) address() string {
	s.ips++
	if s.rand.IntN(3) == 0 {
		return fmt.Sprintf("fd00::%x", s.ips)
	}
	return fmt.Sprintf("10.1.%d.%d", s.ips/200, 1+s.ips%200)
}

// create creates a pod that is not scheduled yet.
func (s *schedule) create(ctx context.Context, namespace, name string) (err error) {
	p := &plain{
		namespace: namespace, name: name, phase: corev1.PodPending, held: s.rand.IntN(2) == 0,
		labels:      map[string]string{"fleet": "ours", "kv/model": "m", "kv/on": "true"},
		annotations: map[string]string{"note": strings.Repeat("x", 300)},
	}
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: p.labels, Annotations: p.annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "engine", Image: "engine"}}},
	}
	if p.held {
		object.Finalizers = []string{"kvindex.example/hold"}
	}
	if object, err = s.writer.CoreV1().Pods(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	p.uid = string(object.UID)
	s.live[p.key()], s.pods[p.key()] = object, p
	s.note(p, p.key())
	return nil
}

// status changes the kubelet's part of a pod.
func (s *schedule) status(ctx context.Context, key string, change func(*plain)) (err error) {
	p := s.pods[key].clone()
	change(p)
	s.note(p, key)
	object := s.live[key].DeepCopy()
	object.ResourceVersion = ""
	ready := corev1.ConditionFalse
	if p.ready {
		ready = corev1.ConditionTrue
	}
	object.Status = corev1.PodStatus{Phase: p.phase, PodIP: p.ip, Conditions: []corev1.PodCondition{
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: ready},
	}}
	if p.ip != "" {
		object.Status.PodIPs = []corev1.PodIP{{IP: p.ip}}
	}
	object.Status.Message = fmt.Sprint("beat ", s.rand.Int())
	s.pods[key] = p
	s.live[key], err = s.writer.CoreV1().Pods(p.namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// relabel changes the metadata of a pod.
func (s *schedule) relabel(ctx context.Context, key string, change func(*plain)) (err error) {
	p := s.pods[key].clone()
	change(p)
	s.note(p, key)
	object := s.live[key].DeepCopy()
	object.ResourceVersion, object.Labels, object.Annotations = "", p.labels, p.annotations
	s.pods[key] = p
	s.live[key], err = s.writer.CoreV1().Pods(p.namespace).Update(ctx, object, metav1.UpdateOptions{})
	return err
}

// remove deletes a pod, or removes the finalizer of a deleted one.
func (s *schedule) remove(ctx context.Context, key string) (err error) {
	p := s.pods[key].clone()
	pods := s.writer.CoreV1().Pods(p.namespace)
	switch {
	case p.held && !p.deleting:
		p.deleting = true
		s.note(p, key)
		s.pods[key] = p
		if err = pods.Delete(ctx, p.name, metav1.DeleteOptions{}); err == nil {
			s.live[key], err = pods.Get(ctx, p.name, metav1.GetOptions{})
		}
		return err
	case p.held:
		object := s.live[key].DeepCopy()
		object.ResourceVersion, object.Finalizers = "", nil
		_, err = pods.Update(ctx, object, metav1.UpdateOptions{})
	default:
		s.note(nil, key)
		err = pods.Delete(ctx, p.name, metav1.DeleteOptions{})
	}
	delete(s.pods, key)
	delete(s.live, key)
	return err
}

func anyOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// step changes the cluster, or the faults before it, in one way.
func (s *schedule) step(ctx context.Context, namespaces []string) error {
	r := s.rand
	key := ""
	if keys := slices.DeleteFunc(slices.Sorted(maps.Keys(s.pods)), func(k string) bool { return strings.Contains(k, "steady") }); len(keys) > 0 {
		key = anyOf(r, keys...)
	}
	run := func(p *plain) { p.phase, p.ip, p.ready = corev1.PodRunning, cmp.Or(p.ip, s.address()), true }
	switch n := r.IntN(100); {
	case n < 8:
		s.faults.trouble(anyOf(r, 0, 50, 70, 90))
		return nil
	case n < 14:
		s.faults.end()
		return nil
	case n < 18:
		s.faults.leave()
		return nil
	case n < 26:
		return s.faults.come()
	case n < 30:
		if s.own != nil {
			s.own.forget()
			s.faults.end()
		}
		return nil
	case n < 34:
		s.faults.trouble(0)
		return errors.Join(s.faults.come(), s.settle(ctx))
	case n < 48 || key == "":
		namespace, name := anyOf(r, namespaces...), fmt.Sprint("pod-", r.IntN(6))
		if s.pods[namespace+"/"+name] != nil {
			return s.status(ctx, namespace+"/"+name, run)
		}
		err := s.create(ctx, namespace, name)
		if err == nil && r.IntN(3) > 0 {
			err = s.status(ctx, namespace+"/"+name, run)
		}
		return err
	case n < 58:
		return s.status(ctx, key, run)
	case n < 70:
		return s.status(ctx, key, func(p *plain) {
			switch r.IntN(5) {
			case 0:
				p.phase = anyOf(r, corev1.PodFailed, corev1.PodSucceeded, corev1.PodPending)
			case 1:
				p.ip = anyOf(r, "", s.address())
			case 2, 3:
				p.ready = !p.ready
			}
		})
	case n < 88:
		return s.relabel(ctx, key, func(p *plain) {
			in := p.labels
			if r.IntN(3) == 0 {
				in = p.annotations
			}
			switch r.IntN(8) {
			case 0:
				p.labels["fleet"] = anyOf(r, "ours", "ours", "theirs")
			case 1:
				in["kv/port"] = anyOf(r, slices.Sorted(maps.Keys(ports))...)
			case 2:
				in["kv/replay"] = anyOf(r, slices.Sorted(maps.Keys(ports))...)
			case 3:
				in["kv/ranks"] = anyOf(r, slices.Sorted(maps.Keys(ranks))...)
			case 4:
				in["kv/topic"] = anyOf(r, "", "kv")
			case 5:
				in["kv/on"] = anyOf(r, "true", "true", "false", "yes")
			case 6:
				in["kv/model"] = anyOf(r, "", "m", "n")
			case 7:
				p.labels["zone"] = anyOf(r, "a", "b")
			}
		})
	default:
		return s.remove(ctx, key)
	}
}

func runSchedule(ctx context.Context, seed uint64, met func(map[string]int)) error {
	r := rand.New(rand.NewPCG(seed, 22))
	c, err := newCluster(r, real)
	if err != nil {
		return err
	}
	defer c.close()
	namespaces := []string{fmt.Sprintf("kvindex-%d-a", seed), fmt.Sprintf("kvindex-%d-b", seed)}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &schedule{
		cluster: c, rand: r, cancel: cancel,
		cfg: k8s.Config{
			LabelSelector: "fleet=ours", Switch: "kv/on", Unready: r.IntN(4) == 0, ByAddress: r.IntN(4) == 0,
			Model: k8s.From[string]{Key: "kv/model", Default: anyOf(r, "", "base")},
			Port:  k8s.From[int]{Key: "kv/port", Default: 5600}, ReplayPort: k8s.From[int]{Key: "kv/replay"},
			Ranks: k8s.From[int]{Key: "kv/ranks"}, Topic: k8s.From[string]{Key: "kv/topic"},
			Labels: []string{"zone"},
		},
		live: make(map[string]*corev1.Pod), pods: make(map[string]*plain),
		history: make(map[string]*history), of: make(map[string]string), news: make(chan struct{}),
	}
	if c.own == nil || r.IntN(2) == 0 { // kube-apiserver also has the pods of other schedules
		s.cfg.Namespace = namespaces[0]
	}
	for _, ns := range namespaces {
		if _, err := c.writer.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		// Steady pods never change, so each set has them.
		if err := s.create(ctx, ns, "steady"); err != nil {
			return err
		}
		key := ns + "/steady"
		if err := s.status(ctx, key, func(p *plain) { p.phase, p.ip, p.ready = corev1.PodRunning, s.address(), true }); err != nil {
			return err
		}
		s.history[key].at = len(s.history[key].states) - 1
	}
	source, err := k8s.SourceThatWaits(c.reader, s.cfg, aHundredth, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	c.faults.trouble(anyOf(r, 0, 50, 90))
	running, stop := context.WithCancel(ctx)
	go func() { ended <- source.Run(running, s.set) }()
	err = func() error {
		for range 40 {
			if err := s.step(ctx, namespaces); err != nil {
				return err
			}
		}
		c.faults.trouble(0)
		if err := errors.Join(c.faults.come(), s.settle(ctx)); err != nil {
			return err
		}
		// Earlier changes have all come when this pod is there.
		if err := s.create(ctx, namespaces[0], "last"); err != nil {
			return err
		}
		if err := s.status(ctx, namespaces[0]+"/last", func(p *plain) { p.phase, p.ip, p.ready = corev1.PodRunning, s.address(), true }); err != nil {
			return err
		}
		return s.settle(ctx)
	}()
	stop()
	if end := <-ended; !errors.Is(end, context.Canceled) {
		err = errors.Join(err, fmt.Errorf("Run returned %v", end))
	}
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	c.faults.mu.Lock()
	met(c.faults.met)
	c.faults.mu.Unlock()
	return err
}

// TestSchedules: whatever happens to pods and requests, the source sets the true state in the end,
// and never one that was not.
func TestSchedules(t *testing.T) {
	ctx := zmtptest.Context(t)
	all := make(map[string]int)
	var mu sync.Mutex
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range 24 { // most of the time is waits
		wg.Go(func() {
			for i := next.Add(1); i <= uint64(*schedules); i = next.Add(1) {
				seed := *firstSeed + i - 1
				err := runSchedule(ctx, seed, func(met map[string]int) {
					mu.Lock()
					defer mu.Unlock()
					for fault, n := range met {
						all[fault] += n
					}
				})
				if err != nil {
					t.Errorf("-seed %d -schedules 1: %v", seed, err)
				}
			}
		})
	}
	wg.Wait()
	t.Log(*schedules, "schedules met", all)
	for _, fault := range slices.Concat(faultsOfAll, faultsOfWatches, []string{"away", "ended"}) {
		if *schedules >= 200 && all[fault] == 0 {
			t.Errorf("no schedule met %q", fault)
		}
	}
	logged.Lock()
	defer logged.Unlock()
	if logged.Len() > 0 {
		t.Errorf("client-go logged:\n%.2000s", logged.String())
	}
}
