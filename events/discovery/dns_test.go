package discovery_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// dnsTest is a Run of DNS whose lookups are made in rounds, one lookup of each kind.
type dnsTest struct {
	t      *testing.T
	ctx    context.Context
	kinds  int
	arrive chan time.Duration
	leave  chan struct{}
	stop   func()

	mu     sync.Mutex
	now    time.Time
	sets   [][]events.Pod
	errs   []string
	refuse error
}

// newDNSTest starts a Run. Without a server, cfg has the resolver.
func newDNSTest(t *testing.T, server *dnsServer, cfg discovery.DNSConfig) *dnsTest {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	d := &dnsTest{t: t, ctx: ctx, kinds: 2, arrive: make(chan time.Duration), leave: make(chan struct{}), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if cfg.SRV {
		d.kinds = 1
	}
	if server != nil {
		cfg.Resolver = server.resolver()
	}
	cfg.Name = cmp.Or(cfg.Name, "pods.test")
	cfg.Pod.Model = "m"
	report := func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.errs = append(d.errs, err.Error())
	}
	ended := make(chan error, 1)
	wait := func(ctx context.Context, took time.Duration) error {
		select {
		case d.arrive <- took:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-d.leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := func() time.Time {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.now
	}
	limit := func(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
		if limit != discovery.MaxAsking {
			t.Errorf("an asking is limited to %v", limit)
		}
		ctx, cancel := context.WithCancel(ctx)
		return context.WithValue(ctx, giveUpKey{}, cancel), cancel
	}
	first := make(chan struct{})
	go func() {
		<-first
		ended <- discovery.RunDNS(ctx, cfg, now, wait, limit, report, func(pods []events.Pod) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.sets = append(d.sets, pods)
			return d.refuse
		})
	}()
	begin := sync.OnceFunc(func() { close(first) })
	d.stop = sync.OnceFunc(func() {
		begin()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(d.stop)
	return d.begun(begin)
}

// begun has the first round begin like the others.
func (d *dnsTest) begun(begin func()) *dnsTest {
	go func() {
		for range d.kinds {
			select {
			case <-d.leave:
			case <-d.ctx.Done():
				return
			}
		}
		begin()
	}()
	return d
}

// round advances the clock and has each kind looked up.
func (d *dnsTest) round(after time.Duration) {
	d.t.Helper()
	d.mu.Lock()
	d.now = d.now.Add(after)
	d.mu.Unlock()
	for range d.kinds {
		select {
		case d.leave <- struct{}{}:
		case <-d.ctx.Done():
			d.t.Fatal("no asking begins")
		}
	}
	for range d.kinds {
		select {
		case took := <-d.arrive:
			if took < discovery.DefaultDNSInterval*4/5 || took > discovery.DefaultDNSInterval*6/5 {
				d.t.Errorf("the next asking comes after %v", took)
			}
		case <-d.ctx.Done():
			d.t.Fatal("an asking does not end")
		}
	}
}

// said returns the sets and errors since the last call.
func (d *dnsTest) said() (sets [][]string, errs []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, pods := range d.sets {
		ids := []string{}
		for _, p := range pods {
			ids = append(ids, p.ID)
		}
		sets = append(sets, ids)
	}
	errs = d.errs
	d.sets, d.errs = nil, nil
	return sets, errs
}

func addrs(list ...string) (records []record) {
	for _, a := range list {
		records = append(records, record{addr: netip.MustParseAddr(a)})
	}
	return records
}

// dnsStep is a round and its result.
type dnsStep struct {
	a, aaaa behaviour
	sets    string // fmt.Sprint of the IDs; "" for no set
	errs    []string
}

func playDNS(t *testing.T, cfg discovery.DNSConfig, kind uint16, steps []dnsStep) {
	t.Helper()
	s := newDNSServer(t)
	d := newDNSTest(t, s, cfg)
	for i, step := range steps {
		s.set(kind, step.a)
		s.set(kindAAAA, step.aaaa)
		d.round(5 * time.Second)
		sets, errs := d.said()
		got := ""
		if len(sets) > 0 {
			got = fmt.Sprint(sets[len(sets)-1])
		}
		if got != step.sets {
			t.Errorf("step %d: set %v, want %s", i, sets, step.sets)
		}
		slices.Sort(errs)
		if len(errs) != len(step.errs) {
			t.Errorf("step %d: reported %q, want %q", i, errs, step.errs)
			continue
		}
		for j := range errs {
			if !strings.Contains(errs[j], step.errs[j]) {
				t.Errorf("step %d: reported %q, want %q", i, errs, step.errs)
			}
		}
	}
}

func TestDNSAddresses(t *testing.T) {
	one, two := addrs("10.0.0.1", "10.0.0.2"), addrs("fd00::2")
	nothing := behaviour{}
	playDNS(t, discovery.DNSConfig{}, kindA, []dnsStep{
		{behaviour{does: fails}, nothing, "", []string{`discovery: dns "pods.test": A: lookup pods.test.`}},
		// AAAA is answered but A is not yet: A may bring another pod.
		{behaviour{does: answers, records: one}, behaviour{records: two}, "[10.0.0.1:5557 10.0.0.2:5557 [fd00::2]:5557]", nil},
		{behaviour{does: fails}, behaviour{does: fails}, "", []string{"A: lookup", "AAAA: lookup"}},
		// Missing once, then an error, then missing twice.
		{behaviour{records: one[:1]}, behaviour{records: two}, "", nil},
		{behaviour{does: fails}, behaviour{records: two}, "", []string{"2 pods are known"}},
		{behaviour{records: one[:1]}, behaviour{records: two}, "[10.0.0.1:5557 [fd00::2]:5557]", nil},
		// The second family is removed on its own.
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "", nil},
		{behaviour{records: one[:1]}, nothing, "[10.0.0.1:5557]", nil},
		{behaviour{does: denies}, nothing, "", []string{`no such name, or no records (A AAAA), for 0s; the 1 pods that are known go when that has lasted 30s`}},
		{behaviour{does: denies}, nothing, "", []string{"for 5s"}},
		{behaviour{does: denies}, nothing, "", []string{"for 10s"}},
		{behaviour{does: sleeps}, nothing, "", []string{"A: lookup pods.test"}},
		{behaviour{does: denies}, nothing, "", []string{"for 0s"}},
	})
}

// TestDNSFirst: the first set comes after an answer or two failures for each kind.
func TestDNSFirst(t *testing.T) {
	one := behaviour{records: addrs("10.0.0.1")}
	failed := []string{"AAAA: lookup"}
	playDNS(t, discovery.DNSConfig{}, kindA, []dnsStep{
		{one, behaviour{does: fails}, "", failed},
		{one, behaviour{does: fails}, "[10.0.0.1:5557]", failed},
	})
	// A service without pods is set as empty after Grace. An error starts Grace again.
	none := []string{"no such name, or no records (A AAAA)"}
	step := func(sets string, errs []string) dnsStep {
		return dnsStep{behaviour{does: denies}, behaviour{does: denies}, sets, errs}
	}
	playDNS(t, discovery.DNSConfig{Grace: 10 * time.Second}, kindA, []dnsStep{
		step("", none), step("", none), {behaviour{does: fails}, behaviour{does: fails}, "", []string{"A: ", "AAAA: "}},
		step("", none), step("", none), step("[]", none), {one, behaviour{}, "[10.0.0.1:5557]", nil},
	})
}

func TestDNSSRV(t *testing.T) {
	cfg := discovery.DNSConfig{Name: "_kv._tcp.Pods.test.", SRV: true, Pod: events.Pod{ReplayPort: 7000, TiersPort: 5600, Ranks: 2, Topic: "kv", Labels: map[string]string{"zone": "a"}}}
	srv := func(targets ...any) behaviour {
		var b behaviour
		for i := 0; i < len(targets); i += 2 {
			b.records = append(b.records, record{target: targets[i].(string), port: uint16(targets[i+1].(int))})
		}
		return b
	}
	playDNS(t, cfg, kindSRV, []dnsStep{
		{srv("b.pods.test.", 5557, "A.Pods.Test.", 5558, "a.pods.test.", 5558), behaviour{}, "[a.pods.test:5558 b.pods.test:5557]", nil},
		{srv("b.pods.test.", 6000, "a.pods.test.", 5558), behaviour{}, "[a.pods.test:5558 b.pods.test:5557 b.pods.test:6000]", nil},
		{srv("b.pods.test.", 6000, "a.pods.test.", 5558), behaviour{}, "[a.pods.test:5558 b.pods.test:6000]", nil},
		// Invalid records are reported, and the others are an answer.
		{srv("b.pods.test.", 6000, "c.pods.test.", 0), behaviour{}, "", []string{`SRV: the target "c.pods.test" has port 0`}},
		{srv("b.pods.test.", 6000, "not a name.pods.test.", 1), behaviour{}, "[b.pods.test:6000]", []string{"SRV: lookup"}},
		// The target "." means that there is no such service.
		{srv(".", 1), behaviour{}, "", []string{"no such name, or no records (SRV)"}},
		{srv("c.pods.test.", 0), behaviour{}, "", []string{"has port 0"}},
	})
	// Fields common to all pods.
	s := newDNSServer(t)
	s.set(kindSRV, srv("a.pods.test.", 5558))
	d := newDNSTest(t, s, cfg)
	d.round(0)
	want := [][]events.Pod{{{ID: "a.pods.test:5558", Model: "m", Host: "a.pods.test", Port: 5558, ReplayPort: 7000, TiersPort: 5600, Ranks: 2, Topic: "kv", Labels: map[string]string{"zone": "a"}}}}
	if !reflect.DeepEqual(d.sets, want) {
		t.Errorf("set %+v, want %+v", d.sets, want)
	}
}

// TestDNSMaxNames: an answer has a limit of pods, and those already set are kept before new ones.
func TestDNSMaxNames(t *testing.T) {
	s := newDNSServer(t)
	d := newDNSTest(t, s, discovery.DNSConfig{})
	many := func(from byte) behaviour {
		var b behaviour
		for i := range discovery.MaxNames + 7 {
			b.records = append(b.records, record{addr: netip.AddrFrom4([4]byte{10, from, byte(i >> 8), byte(i)})})
		}
		return b
	}
	for _, from := range []byte{2, 1, 1} {
		s.set(kindA, many(from))
		d.round(5 * time.Second)
	}
	sets, errs := d.said()
	if len(sets) != 2 || len(sets[0]) != discovery.MaxNames || len(sets[1]) != discovery.MaxNames || !strings.HasPrefix(sets[0][0], "10.2.") || !strings.HasPrefix(sets[1][0], "10.1.") {
		t.Errorf("%d lists were set: %.200v", len(sets), fmt.Sprint(sets))
	}
	if len(errs) == 0 || !strings.Contains(errs[0], "A: 7 pods behind the first 2048 are ignored") {
		t.Errorf("reported %q", errs)
	}
}

// TestDNSRefused: refused pods are set again at each lookup until they are accepted.
func TestDNSRefused(t *testing.T) {
	s := newDNSServer(t)
	d := newDNSTest(t, s, discovery.DNSConfig{SRV: true})
	s.set(kindSRV, behaviour{records: []record{{target: "a.test.", port: 1}}})
	d.refuse = errors.New("no room")
	d.round(0)
	d.round(5 * time.Second)
	d.mu.Lock()
	d.refuse = nil
	d.mu.Unlock()
	for range 3 {
		d.round(5 * time.Second)
	}
	if sets, errs := d.said(); fmt.Sprint(sets) != "[[a.test:1] [a.test:1] [a.test:1]]" || len(errs) > 0 {
		t.Errorf("set %v, reported %q", sets, errs)
	}
}

// TestDNSTruncated: an answer truncated over UDP comes over TCP. One truncated over TCP too is
// rejected.
func TestDNSTruncated(t *testing.T) {
	one := addrs("10.0.0.1", "10.0.0.2")
	const whole = "[10.0.0.1:5557 10.0.0.2:5557]"
	for does, sets := range map[int]string{truncates: whole, truncatesAlone: "", truncatesAll: ""} {
		step := dnsStep{behaviour{does: does, records: one}, behaviour{}, sets, nil}
		if sets == "" {
			step.errs = []string{"A: lookup"}
		}
		playDNS(t, discovery.DNSConfig{}, kindA, []dnsStep{step})
	}
}

// TestDNSEnds: Run ends during a lookup.
func TestDNSEnds(t *testing.T) {
	for _, srv := range []bool{false, true} {
		s := newDNSServer(t)
		cfg := discovery.DNSConfig{Name: "pods.test", SRV: srv, Pod: events.Pod{Model: "m"}, Resolver: s.resolver()}
		asked := make(chan struct{}, 100)
		dial := cfg.Resolver.Dial
		cfg.Resolver.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			asked <- struct{}{}
			return &endless{c}, err
		}
		s.mu.Lock() // no answer
		source, err := discovery.DNS(cfg)
		must(t, err)
		patience := zmtptest.Context(t)
		ctx, cancel := context.WithCancel(patience)
		ended := make(chan error, 1)
		go func() { ended <- source.Run(ctx, func([]events.Pod) error { return nil }) }()
		<-asked
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
		case <-patience.Done():
			t.Error("Run does not end")
		}
		s.mu.Unlock()
	}
}

// endless is a connection that ignores deadlines.
type endless struct{ net.Conn }

func (*endless) SetDeadline(time.Time) error { return nil }

func TestDNSConfig(t *testing.T) {
	good := discovery.DNSConfig{Name: "a_b.Test.", Pod: events.Pod{Model: "m"}}
	if s, err := discovery.DNS(good); err != nil || s.Name != "dns:a_b.test" || s.Run == nil {
		t.Errorf("%v, %v", s.Name, err)
	}
	for want, wrong := range map[string]func(*discovery.DNSConfig){
		`Name "" is not a name`:                                func(c *discovery.DNSConfig) { c.Name = "" },
		`Name "." is not`:                                      func(c *discovery.DNSConfig) { c.Name = ".." },
		`Name "10.0.0.1" is not`:                               func(c *discovery.DNSConfig) { c.Name = "10.0.0.1" },
		`Name "a b" is not`:                                    func(c *discovery.DNSConfig) { c.Name = "a b" },
		`Name "a..b" is not`:                                   func(c *discovery.DNSConfig) { c.Name = "a..b" },
		`Name "` + strings.Repeat("a", 64):                     func(c *discovery.DNSConfig) { c.Name = strings.Repeat("a", 64) },
		`Name "a.a.`:                                           func(c *discovery.DNSConfig) { c.Name = strings.Repeat("a.", 128) },
		"Pod.Model is empty":                                   func(c *discovery.DNSConfig) { c.Pod.Model = "" },
		"Pod has an ID, a Host or a UID":                       func(c *discovery.DNSConfig) { c.Pod.Host = "h" },
		"Pod.Port is 5557, must be 0 with SRV":                 func(c *discovery.DNSConfig) { c.Pod.Port, c.SRV = 5557, true },
		"Pod.Port 65535, Pod.ReplayPort 0 and":                 func(c *discovery.DNSConfig) { c.Pod.Port, c.Pod.Ranks = 65535, 2 },
		"Interval is -1ns and Grace 0s, must be 0 or at least": func(c *discovery.DNSConfig) { c.Interval = -1 },
		"Interval is 5ns and Grace 0s, must be 0 or at least":  func(c *discovery.DNSConfig) { c.Interval = 5 },
		"Interval is 0s and Grace 30ns, must be 0 or at least": func(c *discovery.DNSConfig) { c.Grace = 30 },
		"Interval is 2562047h":                                 func(c *discovery.DNSConfig) { c.Interval = math.MaxInt64 },
		"Pod.TiersPort 65536 is not in 0..65535":               func(c *discovery.DNSConfig) { c.Pod.TiersPort = 65536 },
		"Pod.Port 0, Pod.ReplayPort -1 and Pod":                func(c *discovery.DNSConfig) { c.Pod.ReplayPort = -1 },
	} {
		c := good
		wrong(&c)
		if _, err := discovery.DNS(c); err == nil || !strings.Contains(err.Error(), "discovery: dns: "+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// lookup is one query of a kind of record: its time and result.
type lookup struct {
	at    time.Time
	names []string // of a good answer
	error bool
}

// present is the model: the pods that remain after all queries of a kind, each computed on its own
// from the first query, and a summary of the queries.
func present(history []lookup, grace time.Duration) (ids []string, any, gone bool, failures int) {
	all := make(map[string]bool)
	for _, h := range history {
		for _, name := range h.names {
			all[name] = true
		}
		any = any || !h.error
		if h.error {
			failures++
		}
	}
	without := func(h lookup) bool { return !h.error && len(h.names) == 0 }
	goneAt := func(i int) bool { // answers have had no records for grace
		last := history[i].at
		for ; i >= 0 && without(history[i]); i-- {
			if last.Sub(history[i].at) >= grace {
				return true
			}
		}
		return false
	}
	for name := range all {
		there, misses := false, 0
		for i, h := range history {
			switch {
			case h.error:
			case without(h):
				there = there && !goneAt(i)
			case slices.Contains(h.names, name):
				there, misses = true, 0
			default:
				if misses++; misses == 2 {
					there = false
				}
			}
		}
		if there {
			ids = append(ids, name)
		}
	}
	return ids, any, goneAt(len(history) - 1), failures
}

// TestDNSSchedules: pods come, go and change their ports while the server behaves in every way.
// After each round the set is that of the model.
func TestDNSSchedules(t *testing.T) {
	n := *schedules
	if testing.Short() {
		n /= 4
	}
	behaviours := make(map[int]int)
	removed := 0
	for i := range n {
		removed += dnsSchedule(t, *seed+uint64(i), behaviours)
		if t.Failed() {
			t.Fatalf("seed %d", *seed+uint64(i))
		}
	}
	t.Logf("%d schedules; askings by behaviour %v; %d removals", n, behaviours, removed)
	if len(behaviours) != sleeps+1 || removed < n {
		t.Error("too few")
	}
}

func dnsSchedule(t *testing.T, seed uint64, behaviours map[int]int) (removed int) {
	r := rand.New(rand.NewPCG(seed, 3))
	srv := r.IntN(2) == 0
	grace := time.Duration(r.IntN(4)) * 10 * time.Second
	server := newDNSServer(t)
	d := newDNSTest(t, server, discovery.DNSConfig{SRV: srv, Grace: grace})
	defer d.stop()
	grace = cmp.Or(grace, discovery.DefaultDNSGrace)
	kinds := []uint16{kindA, kindAAAA}
	if srv {
		kinds = []uint16{kindSRV}
	}
	zone := make(map[uint16]map[int]record)
	histories := make(map[uint16][]lookup)
	weather := make(map[uint16]int) // the usual behaviour of the server for some time
	for _, k := range kinds {
		zone[k] = make(map[int]record)
	}
	v4only := r.IntN(3) == 0
	have, saidAny := []string{}, false
	for round := range 50 {
		for _, k := range kinds {
			for range r.IntN(3) {
				p := r.IntN(6)
				if _, there := zone[k][p]; there && r.IntN(3) > 0 {
					delete(zone[k], p)
				} else if k == kindSRV {
					zone[k][p] = record{target: fmt.Sprintf("p%d.test.", p), port: uint16(5557 + r.IntN(3))}
				} else if k == kindA {
					zone[k][p] = record{addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(p + 1)})}
				} else if !v4only {
					zone[k][p] = record{addr: netip.AddrFrom16([16]byte{0xfd, 15: byte(p + 1)})}
				}
			}
			if r.IntN(6) == 0 {
				weather[k] = []int{answers, answers, denies, fails, -1}[r.IntN(5)]
			}
			b := behaviour{does: weather[k]}
			if r.IntN(3) == 0 {
				b.does = r.IntN(sleeps + 1)
			}
			behaviours[max(b.does, 0)]++
			partial := r.IntN(4) == 0
			for _, rec := range zone[k] {
				if b.does >= 0 && (!partial || r.IntN(2) == 0) {
					b.records = append(b.records, rec)
				}
			}
			b.does = max(b.does, 0) // -1: an answer without records
			server.set(k, b)
			h := lookup{error: !slices.Contains([]int{answers, denies, truncates, forges, breaks}, b.does)}
			switch {
			case b.does == breaks:
				h.error = len(b.records) > 0
			case !h.error && b.does != denies:
				for _, rec := range b.records {
					id := fmt.Sprintf("%s:%d", strings.TrimSuffix(rec.target, "."), rec.port)
					if k != kindSRV {
						id = netip.AddrPortFrom(rec.addr, 5557).String()
					}
					h.names = append(h.names, id)
				}
			}
			histories[k] = append(histories[k], h)
		}
		after := 4*time.Second + time.Duration(r.IntN(2000))*time.Millisecond
		d.round(after)
		d.mu.Lock()
		now := d.now
		d.mu.Unlock()
		var want []string
		ready, gone := true, true
		for _, k := range kinds {
			histories[k][round].at = now
			ids, any, empty, failures := present(histories[k], grace)
			want = append(want, ids...)
			ready = ready && (any || failures >= 2)
			gone = gone && empty
		}
		slices.Sort(want)
		sets, _ := d.said()
		saidAny = saidAny || ready && (len(want) > 0 || gone)
		for _, ids := range sets {
			if !slices.IsSorted(ids) || round > 0 && slices.Equal(ids, have) && len(have) > 0 {
				t.Fatalf("round %d: set %v behind %v", round, ids, have)
			}
			for _, id := range have {
				if !slices.Contains(ids, id) {
					removed++
				}
			}
			have = ids
		}
		if !saidAny {
			want = nil
		}
		if !slices.Equal(have, want) {
			t.Fatalf("round %d: the list is %v, want %v", round, have, want)
		}
	}
	return removed
}
