// The first list waits for both families, or for two failures of one. A Fleet may forget pods
// that are missing in the first list of a source (events.FleetConfig.Restored), and an A
// answer is often there before the AAAA answer.
//
// A forgotten pod comes back empty, and a pod that stays for some seconds too long costs some
// failed connections. So a source is slow to drop a pod, and a failure removes no pod.

package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvindex/kvindex/events"
)

// Defaults of a DNSConfig, and the longest Interval.
const (
	defaultDNSInterval = 5 * time.Second
	maxDNSInterval     = 24 * time.Hour
	defaultDNSGrace    = 30 * time.Second
	defaultPort        = 5557 // as of an events.Pod
)

// maxNames bounds the pods of one kind of record (A, AAAA or SRV). Further ones are ignored.
const maxNames = 2048

const (
	// A pod is dropped after missesToGo answers in a row without it.
	missesToGo = 2
	// triesToSpeak is how often a query may fail before the other answers count without it.
	triesToSpeak = 2
)

// DNSConfig configures DNS. Name and Pod.Model are required.
type DNSConfig struct {
	// Name is the full name of a service, such as vllm.default.svc.cluster.local. The search
	// domains of the host are not tried: one name that does not exist could hide the failure
	// of another.
	Name string
	// SRV looks up SRV records in place of A and AAAA. Name then begins with a service and a
	// protocol, as in _kv._tcp.vllm.default.svc.cluster.local.
	SRV bool
	// Pod has the common fields of all pods: Model, Port, ReplayPort, TiersPort, Ranks, Topic,
	// Engine and Labels. Each pod gets its own ID and Host, and its Port with SRV.
	Pod events.Pod
	// Interval is the time between two queries; each one is up to a fifth shorter or longer. 0
	// is 5 seconds, 1 ms is the least, and 24 hours are the most.
	Interval time.Duration
	// Grace is how long each answer must be without records, or NXDOMAIN, before the pods are
	// removed. 0 is 30 seconds, and 1 ms is the least.
	Grace time.Duration
	// Resolver has the Dial for queries. Nil, or without a Dial, queries go to the servers of
	// the host (/etc/resolv.conf). Go's own resolver reads the answers, never libc.
	Resolver *net.Resolver
}

// DNS returns a source of the pods of a headless service: a name in DNS whose answers have all
// the pods. With A and AAAA records, each address is a pod whose ID is address:port. With SRV
// records, each target and port is one, with the ID target:port.
//
// One answer of DNS does not prove that a pod is gone, so:
//   - an error, a timeout, and a truncated answer that TCP does not complete change
//     nothing;
//   - pods that are missing in an answer are removed at the second such answer in a row.
//     Failures and answers without records between the two do not count;
//   - if there is no such name (NXDOMAIN) or no record, nothing changes until each query has
//     had this result for Grace. An error in between starts the time again.
//
// A and AAAA records are looked up separately, and these rules hold for each kind. A service
// with one of the two kinds is no error.
//
// The source sets no list until each kind has an answer, or two failures. A service without
// pods is set as empty after Grace.
//
// The server of the name can only name addresses, 2,048 of each kind: further ones are
// ignored.
//
// The error names each wrong field of cfg.
func DNS(cfg DNSConfig) (events.PodSource, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return events.PodSource{}, err
	}
	return events.PodSource{Name: "dns:" + cfg.Name, Run: func(ctx context.Context, set func([]events.Pod) error) error {
		return newDNS(cfg, realTime).run(ctx, set)
	}}, nil
}

// normal returns the configuration with its defaults, or an error that names each wrong
// field.
func (c DNSConfig) normal() (DNSConfig, error) {
	c.Name = strings.ToLower(strings.TrimSuffix(c.Name, "."))
	err := c.validate()
	c.Pod.Labels = maps.Clone(c.Pod.Labels)
	c.Pod.Port = cmp.Or(c.Pod.Port, defaultPort)
	c.Interval = cmp.Or(c.Interval, defaultDNSInterval)
	c.Grace = cmp.Or(c.Grace, defaultDNSGrace)
	return c, err
}

func (c *DNSConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("discovery: dns: "+format, args...)) }
	if _, err := netip.ParseAddr(c.Name); err == nil || !isName(c.Name) {
		bad("Name %.300q is not a name in DNS", c.Name)
	}
	if c.Pod.Model == "" {
		bad("Pod.Model is empty")
	}
	if c.Pod.ID != "" || c.Pod.Host != "" || c.Pod.UID != "" {
		bad("Pod has an ID, a Host or a UID, which differ for each pod")
	}
	if c.SRV && c.Pod.Port != 0 {
		bad("Pod.Port is %d, must be 0 with SRV: the records have the ports", c.Pod.Port)
	}
	last := max(c.Pod.Port, c.Pod.ReplayPort) + max(c.Pod.Ranks, 1) - 1
	if c.Pod.Port < 0 || c.Pod.ReplayPort < 0 || c.Pod.Ranks < 0 || last > 65535 {
		bad("Pod.Port %d, Pod.ReplayPort %d and Pod.Ranks %d are not all ports in 1..65535", c.Pod.Port, c.Pod.ReplayPort, c.Pod.Ranks)
	}
	if c.Pod.TiersPort < 0 || c.Pod.TiersPort > 65535 {
		bad("Pod.TiersPort %d is not in 0..65535", c.Pod.TiersPort)
	}
	if short := func(d time.Duration) bool { return d != 0 && d < leastTime }; short(c.Interval) || short(c.Grace) {
		bad("Interval is %v and Grace %v, must be 0 or at least %v", c.Interval, c.Grace, leastTime)
	}
	if c.Interval > maxDNSInterval {
		bad("Interval is %v, must be at most %v", c.Interval, maxDNSInterval)
	}
	return errors.Join(errs...)
}

// isName reports whether s can be looked up: the resolver itself answers a malformed name, as
// one that does not exist.
func isName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// dns is the state of a Run of DNS.
type dns struct {
	cfg       DNSConfig
	clock     clock
	questions []*question

	mu      sync.Mutex // guards the fields below, and the state of each question; set is called with it
	listed  bool       // set was called
	refused bool       // set had an error
	ids     []string   // the last list, in order
	nobody  trouble

	report func(error)
}

// A question is one kind of record to look up.
type question struct {
	kind string
	ask  func(ctx context.Context) ([]events.Pod, error)

	known   map[string]*namedPod // by ID
	heard   bool                 // it has an answer, also one without records
	failed  int
	empty   time.Time // since when each query has had no records; zero: the last one had some
	gone    bool      // empty has lasted for Grace
	failing trouble
}

// A namedPod is a pod of an answer.
type namedPod struct {
	events.Pod
	missed int // answers with records that lacked it, in a row
}

func newDNS(cfg DNSConfig, c clock) *dns {
	d := &dns{cfg: cfg, clock: c}
	a := podResolver{&d.cfg, resolver(cfg.Resolver)}
	add := func(kind string, ask func(context.Context) ([]events.Pod, error)) {
		d.questions = append(d.questions, &question{kind: kind, ask: ask, known: make(map[string]*namedPod)})
	}
	if cfg.SRV {
		add("SRV", a.srv)
		return d
	}
	add("A", func(ctx context.Context) ([]events.Pod, error) { return a.addresses(ctx, "ip4") })
	add("AAAA", func(ctx context.Context) ([]events.Pod, error) { return a.addresses(ctx, "ip6") })
	return d
}

// run looks up each question in a goroutine of its own, so that a slow answer to one does not
// delay the other.
func (d *dns) run(ctx context.Context, set func([]events.Pod) error) error {
	d.report = reporter(ctx, d.report)
	var wg sync.WaitGroup
	for _, q := range d.questions {
		wg.Go(func() { d.keepAsking(ctx, q, set) })
	}
	wg.Wait()
	return ctx.Err()
}

func (d *dns) keepAsking(ctx context.Context, q *question, set func([]events.Pod) error) {
	for {
		limited, cancel := d.clock.limit(ctx, maxAsking)
		pods, err := q.ask(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		for _, err := range d.hear(q, pods, err, set) {
			d.report(fmt.Errorf("discovery: dns %q: %w", d.cfg.Name, err))
		}
		if d.clock.wait(ctx, d.cfg.Interval*4/5+rand.N(d.cfg.Interval*2/5+1)) != nil {
			return
		}
	}
}

// hear applies the result of a query, and returns faults to report. Pods beside an error are
// an answer with unusable parts.
func (d *dns) hear(q *question, pods []events.Pod, err error, set func([]events.Pod) error) (faults []error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.now()
	switch {
	case len(pods) > 0:
		if more := q.named(pods); more > 0 {
			err = errors.Join(err, fmt.Errorf("%d pods behind the first %d are ignored", more, maxNames))
		}
	case err != nil:
		q.failed++
		q.empty, q.gone = time.Time{}, false
	default:
		q.without(now, d.cfg.Grace)
	}
	d.publish(set)
	if err == nil {
		q.failing.end()
	} else if q.failing.due(kindOf(err), now) {
		faults = append(faults, fmt.Errorf("%s: %w; %d pods are known", q.kind, err, len(q.known)))
	}
	return append(faults, d.lacking(now)...)
}

// named applies an answer with records. It returns how many pods there was no room for.
func (q *question) named(pods []events.Pod) (more int) {
	q.heard, q.empty, q.gone = true, time.Time{}, false
	for _, k := range q.known {
		k.missed++
	}
	for _, p := range pods {
		if k := q.known[p.ID]; k != nil {
			k.missed = 0
		}
	}
	maps.DeleteFunc(q.known, func(_ string, k *namedPod) bool { return k.missed >= missesToGo })
	for _, p := range pods {
		switch {
		case q.known[p.ID] != nil:
		case len(q.known) < maxNames:
			q.known[p.ID] = &namedPod{Pod: p}
		default:
			more++
		}
	}
	return more
}

// without applies an answer without records or NXDOMAIN.
func (q *question) without(now time.Time, grace time.Duration) {
	q.heard = true
	if q.empty.IsZero() {
		q.empty = now
	}
	if now.Sub(q.empty) >= grace {
		q.gone = true
		clear(q.known)
	}
}

// publish calls set if the list has changed.
func (d *dns) publish(set func([]events.Pod) error) {
	pods := make(map[string]events.Pod)
	empty := true // each question has an answer without pods
	for _, q := range d.questions {
		if !d.listed && !q.heard && q.failed < triesToSpeak {
			return
		}
		empty = empty && q.gone
		for id, k := range q.known {
			pods[id] = k.Pod
		}
	}
	if !d.listed && len(pods) == 0 && !empty {
		return
	}
	ids := slices.Sorted(maps.Keys(pods))
	if d.listed && !d.refused && slices.Equal(ids, d.ids) {
		return
	}
	list := make([]events.Pod, len(ids))
	for i, id := range ids {
		list[i] = pods[id]
	}
	// The caller of set has reported the error. It may be about room, which comes later.
	d.listed, d.ids, d.refused = true, ids, set(list) != nil
}

// lacking returns the faults to report about a service without any record.
func (d *dns) lacking(now time.Time) []error {
	since, kinds, known := time.Time{}, "", 0
	for _, q := range d.questions {
		if q.empty.IsZero() {
			d.nobody.end()
			return nil
		}
		if q.empty.After(since) {
			since = q.empty
		}
		kinds += " " + q.kind
		known += len(q.known)
	}
	what, then := "known", fmt.Sprintf("; the %d pods that are known go when that has lasted %v", known, d.cfg.Grace)
	if known == 0 {
		what, then = "none", "; no pods are known"
	}
	if !d.nobody.due(what, now) {
		return nil
	}
	return []error{fmt.Errorf("no such name, or no records (%s), for %v%s", kinds[1:], now.Sub(since).Round(time.Second), then)}
}
