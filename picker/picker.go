// Package picker picks a pod for each request. It is the loop that each gateway writes around
// an Indexer: score the request, add the load in flight, let a policy choose, and register
// the request at the chosen pod, as load and as a prediction.
//
//	p, err := picker.New(index, picker.Config{})
//	...
//	err = p.Set([]picker.Pod{{Name: "a", Host: "10.0.0.7"}, {Name: "b", Host: "10.0.0.8"}})
//	...
//	pick, err := p.Pick(ctx, &kvindex.Request{Body: body, Path: path})
//	... // an error: answer with picker.Status(err); else send the request to pick.Pod.Host
//	pick.Watch(response) // or FirstToken, and then Done or Failed
//
// For a httputil.ReverseProxy, Picker.RoundTripper does all of this, with retries.
//
// All pods of a Picker serve the same models. A gateway for several groups of pods has a
// Picker for each group, around one Indexer.
package picker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/route"
)

// ErrNoPod is wrapped by errors of Pick and Next if no pod can get the request: there is none,
// all are down, or all were tried. A gateway answers 503.
var ErrNoPod = errors.New("picker: no pod")

// Config configures a Picker. The zero value is good without a Fleet.
type Config struct {
	// Policy chooses among the pods; nil: route.Default.
	Policy route.Policy
	// Affinity, if not nil, returns the route.Request.Affinity of a request, for a Policy that
	// reads it: route.Rendezvous. It is not called for a nil request, whose affinity is 0.
	Affinity func(*kvindex.Request) uint64
	// Timeout bounds the score of a request; 0: 200 ms. A request that is not scored by then
	// is picked by load.
	Timeout time.Duration
	// Fallbacks is how many Pick.Fallbacks a pick has, as far as there are pods; 0: none. For
	// each of them the policy chooses again, with route.Request.Fallback.
	Fallbacks int
	// Lease is how long a pick counts as load if nothing ends it; 0: 10 minutes. Its
	// prediction ends by itself: see kvindex.PredictionConfig.
	Lease time.Duration
	// OnEnd, if not nil, is called for each attempt of a RoundTripper, and for each answer that
	// Watch follows, when it has ended: with the result of UsageReader.Usage, or with the error
	// of the attempt or the status of the answer. It must not block.
	OnEnd func(pick *Pick, u kvindex.Usage, err error)
	// Fleet, if not nil, is the source of pods: those of the base model Model. The Picker
	// follows its changes.
	Fleet *events.Fleet
	// Host returns the Pod.Host for a pod of the Fleet; nil: its Host. It must not call the
	// Picker.
	Host func(events.Pod) string
	// Model is the base model of the pods. It is needed with a Fleet. Requests that name no
	// model are scored for it.
	Model string
}

// A Pod is a pod that requests can be sent to.
type Pod struct {
	Name  string  // as in events and scores
	Host  string  // for the host program: where the pod answers requests. A Fleet has it in events.Pod.Host
	Ranks int     // data-parallel ranks that a request can be sent to; 0: 1
	Speed float64 // relative: see route.Pod; 0: 1
	Down  bool    // the pod gets no requests
	// Labels are for the host program. They are shared: do not change them.
	Labels map[string]string
}

// A Picker picks pods. All methods are safe for concurrent use. It starts no goroutine.
type Picker struct {
	ix    *kvindex.Indexer
	cfg   Config
	loads route.Tracker

	scratch sync.Pool // of *scratch
	pool    atomic.Pointer[pool]

	mu   sync.Mutex // guards the fields below, and changes of pool
	set  []Pod      // of Set
	down map[string]bool
}

// pool is the pods at one moment. It never changes.
type pool struct {
	fleet      uint64              // Fleet.Version
	all        []Pod               // by name
	uids       map[string]string   // UIDs of pods of the Fleet
	byName     map[string]int      // places in all
	names      []string            // names of the pods that are up
	candidates *kvindex.Candidates // names
	speeds     bool                // some pods have a Speed
	ranked     bool                // some pods have several ranks
	ranks      int                 // number of ranks of all pods
	foreign    string              // a model of the Fleet that is not Config.Model; "": there is none
	firstRank  []int               // by place in all: the number of ranks before it
}

// New returns a Picker that has no pods yet, but for those of Config.Fleet.
func New(ix *kvindex.Indexer, cfg Config) (*Picker, error) {
	switch {
	case ix == nil:
		return nil, errors.New("picker: the Indexer is nil")
	case cfg.Timeout < 0:
		return nil, fmt.Errorf("picker: Timeout is %v", cfg.Timeout)
	case cfg.Fallbacks < 0:
		return nil, fmt.Errorf("picker: Fallbacks is %d", cfg.Fallbacks)
	case cfg.Lease < 0:
		return nil, fmt.Errorf("picker: Lease is %v", cfg.Lease)
	case cfg.Fleet != nil && cfg.Model == "":
		return nil, errors.New("picker: a Fleet needs Model: its pods may serve several models")
	}
	if cfg.Policy == nil {
		cfg.Policy = route.Default
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 200 * time.Millisecond
	}
	p := &Picker{ix: ix, cfg: cfg, down: make(map[string]bool)}
	p.loads.MaxAge = cfg.Lease
	p.pool.Store(new(pool))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renew()
	return p, nil
}

// Set replaces the pods of earlier calls of Set. A pod of Set replaces a pod of the Fleet with the
// same name. The load of a pod that is not there any more is forgotten; the Indexer keeps its
// blocks until RemovePod. The error names the wrong pod; nothing is changed then.
func (p *Picker) Set(pods []Pod) error {
	seen := make(map[string]bool, len(pods))
	for i, pod := range pods {
		switch {
		case pod.Name == "":
			return fmt.Errorf("picker: pods[%d] has no name", i)
		case seen[pod.Name]:
			return fmt.Errorf("picker: pod %.100q is named twice", pod.Name)
		case strings.Contains(pod.Host, "/"):
			return fmt.Errorf("picker: pod %.100q: Host is %.100q: it is an address, with or without a port", pod.Name, pod.Host)
		case !(pod.Speed >= 0):
			return fmt.Errorf("picker: pod %.100q: Speed is %v", pod.Name, pod.Speed)
		case pod.Ranks < 0 || pod.Ranks > maxRanks:
			return fmt.Errorf("picker: pod %.100q has %d ranks, from 0 to %d are possible", pod.Name, pod.Ranks, maxRanks)
		}
		seen[pod.Name] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = slices.Clone(pods)
	p.renew()
	return nil
}

// maxRanks is the bound of an events.Fleet for the ranks of a pod.
const maxRanks = 1024

// SetDown is the result of a health check: a pod that is down gets no requests. It is
// independent of Pod.Down, and lasts until it is changed or the pod is not there any more.
// A pod that is not there is ignored.
func (p *Picker) SetDown(pod string, down bool) {
	if _, ok := p.current().byName[pod]; !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down[pod] != down {
		p.down[pod] = down
		p.renew()
	}
}

// Pods returns all pods, those of the Fleet too, ordered by name. Down is true if Pod.Down or
// SetDown has excluded the pod.
func (p *Picker) Pods() []Pod { return slices.Clone(p.current().all) }

// Loads returns the Tracker of the Picker, so that several gateways can exchange their
// loads.
func (p *Picker) Loads() *route.Tracker { return &p.loads }

// current returns the present pods.
func (p *Picker) current() *pool {
	f, now := p.cfg.Fleet, p.pool.Load()
	if f == nil || now.fleet == f.Version() {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pool.Load().fleet != f.Version() { // otherwise another goroutine has renewed the pool
		p.renew()
	}
	return p.pool.Load()
}

// renew replaces the pool. The caller holds p.mu.
func (p *Picker) renew() {
	before := p.pool.Load()
	pods := make(map[string]Pod)
	next := &pool{byName: make(map[string]int), uids: make(map[string]string)}
	if f := p.cfg.Fleet; f != nil {
		next.fleet = f.Version() // Version before Pods: a change between the calls causes another renewal
		for _, m := range f.Pods(nil) {
			switch {
			case m.Source == "": // the pod is removed
			case m.Model == p.cfg.Model:
				pod := Pod{Name: m.ID, Host: m.Host, Ranks: m.Ranks, Labels: m.Labels}
				if p.cfg.Host != nil {
					pod.Host = p.cfg.Host(m.Pod)
				}
				pods[m.ID], next.uids[m.ID] = pod, m.UID
				if uid, ok := before.uids[m.ID]; ok && uid != m.UID { // another pod has the same name
					delete(p.down, m.ID)
					p.loads.Forget(m.ID)
				}
			default:
				next.foreign = m.Model
			}
		}
	}
	for _, pod := range p.set {
		pods[pod.Name] = pod
	}
	maps.DeleteFunc(p.down, func(name string, down bool) bool { return pods[name].Name == "" || !down })
	next.all = slices.SortedFunc(maps.Values(pods), func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	next.names = []string{}
	for i := range next.all {
		pod := &next.all[i]
		next.byName[pod.Name] = i
		next.firstRank = append(next.firstRank, next.ranks)
		next.ranks += max(pod.Ranks, 1)
		next.ranked = next.ranked || pod.Ranks > 1
		next.speeds = next.speeds || pod.Speed != 0
		if pod.Down = pod.Down || p.down[pod.Name]; !pod.Down {
			next.names = append(next.names, pod.Name)
		}
	}
	next.candidates = p.ix.Candidates("", next.names)
	p.pool.Store(next)
	for _, pod := range before.all {
		if pods[pod.Name].Name == "" {
			p.loads.Forget(pod.Name)
		}
	}
}

// Readiness describes the connections for the events of the pods.
type Readiness struct {
	Pods      int // pods that are not down
	Ranks     int // ranks of pods whose events a Fleet or a Subscriber follows
	Connected int // ranks of these that are connected
	Replaying int // connected ranks whose engine is sending older messages again
}

// OK reports whether there are pods, all Ranks are Connected, and none is Replaying. Then a
// gateway that has just started has views of the caches of its pods, as far as their engines
// repeat older messages. It can pick before.
func (r Readiness) OK() bool { return r.Pods > 0 && r.Connected == r.Ranks && r.Replaying == 0 }

// Ready reports the connections for events of the pods of the Picker.
func (p *Picker) Ready() Readiness {
	pool := p.current()
	r := Readiness{Pods: len(pool.names)}
	others := maps.Clone(pool.byName)
	if f := p.cfg.Fleet; f != nil {
		for _, m := range f.Pods(nil) {
			if _, ok := others[m.ID]; !ok || m.Model != p.cfg.Model {
				continue
			}
			if m.Engine == events.EngineNone {
				continue
			}
			delete(others, m.ID)
			r.Ranks += m.Ranks
			for _, s := range m.Streams {
				if !s.Tiers {
					r.count(s.Link == "live" || s.Link == "replaying", s.Link == "replaying")
				}
			}
		}
	}
	for _, info := range p.ix.Pods(nil) {
		if _, ok := others[info.Pod]; !ok || p.cfg.Model != "" && info.Model != p.cfg.Model {
			continue
		}
		for _, s := range info.Streams {
			if s.Tiers {
				continue
			}
			r.Ranks++
			r.count(!s.Connected.IsZero(), s.Replay == "waiting")
		}
	}
	return r
}

func (r *Readiness) count(connected, replaying bool) {
	if connected {
		r.Connected++
		if replaying {
			r.Replaying++
		}
	}
}
