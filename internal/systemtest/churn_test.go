//go:build linux

package systemtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

var (
	churnFor  = flag.Duration("churn.for", 6*time.Second, "how long TestChurn changes pods; long form: 60s and more")
	churnSeed = flag.Uint64("churn.seed", 1, "seed of the changes of TestChurn")
)

const (
	churnPods        = 64 // for a minute and more
	churnFewPods     = 24 // otherwise: each is a process
	churnPromptCount = 1000
	churnReplayPort  = 100                   // offset from the first port
	churnEvery       = 50 * time.Millisecond // between changes
	churnHalts       = 20                    // before the end
	churnLeast       = 50                    // changes of each kind, for 60 s and more
	// churnForget is how long a removed pod may stay in answers.
	churnForget = 100 * time.Millisecond
	// churnPatience bounds the wait at a halt, in which all connections may have to be made again.
	churnPatience = time.Minute
	// churnHeap is the permitted growth of the heap.
	churnHeap = 256 << 10
	// churnReady is the reserve of an empty index: pages and slabs of each size.
	churnReady = 1 << 20
)

// churnCounting: the engines send no reports, so copies can be counted exactly.
var churnCounting = kvindex.WithProfile(func(string, string) kvindex.Profile {
	return kvindex.Profile{Copies: kvindex.CopiesExact}
})

var churnModels = []string{"m0", "m1", "m2"}

// churnPod is a pod of a source.
type churnPod struct {
	events.Pod
	source string
	setup  churnSetup
	prefix string     // of its topic, if the source has it
	peer   *churnPeer // nil: the engine is dead
	hung   int        // until this change; 0: not hung
}

func (p *churnPod) up() bool { return p.peer != nil && p.hung == 0 }

// described reports whether the pod's source has more than its address.
func (p *churnPod) described() bool { return p.source != churnDNS }

// churnRankName is a rank of a pod and model.
type churnRankName struct {
	pod, model string
	rank       int
}

// churnPair is a pod at the address of another one, for whose end it waits.
type churnPair struct {
	old, next *churnPod
	until     int // change
}

// churn is a fleet of engines in other processes, and an Indexer that follows it.
type churn struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	prompts [][]uint32
	most    int // pods
	late    context.Context
	ix      *kvindex.Indexer
	fleet   *events.Fleet
	sources churnSources

	network int // the second byte of all addresses
	port    int
	used    int                 // addresses
	left    []string            // addresses of pods that left
	retired map[string][]string // IDs of these, by source
	made    int                 // number of IDs
	changes int
	counts  map[string]int
	handed  int           // pods moved to another source
	lag     time.Duration // maximum delay of changes

	pods  []*churnPod
	pairs []churnPair // waiting pods

	mu      sync.Mutex // guards the fields below
	gone    map[churnRankName]time.Time
	here    map[churnRankName]bool // ranks described at present
	errors  []string
	told    map[string]bool // pods in the fleet, by its changes
	telling bool
	longest time.Duration // that a removed pod was in an answer
}

// churnKindsOfChange are the changes of pods. Each reports whether it was possible.
var churnKindsOfChange = []struct {
	name string
	do   func(*churn) bool
}{
	{"join", (*churn).join},
	{"leave", (*churn).leave},
	{"restart", (*churn).restart},
	{"move", (*churn).move},
	{"model", (*churn).changeModel},
	{"ranks", (*churn).changeRanks},
	{"die", (*churn).die},
	{"hang", (*churn).hang},
	{"take an address", (*churn).takeAddress},
}

// TestChurn: engines in other processes start, stop, move, crash and hang. At each halt the Indexer
// has the engines' blocks, and none of a removed pod. In the end nothing is left.
func TestChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("5 s, most of them spent waiting for processes")
	}
	zmtptest.NoLeaks(t)
	length := *churnFor
	ix := open(t, churnCounting)
	prompts := churnPrompts(*churnSeed, churnPromptCount)
	runChurn(t, ix, prompts, *churnSeed+1, 2*time.Second, 1) // one-time allocations
	before := takeStock(ix)
	began := time.Now()
	halts := int(min(churnHalts, churnHalts*length/time.Minute))
	counts := runChurn(t, ix, prompts, *churnSeed, length, halts)
	after := takeStock(ix)
	runtime.KeepAlive(prompts)
	t.Logf("%v: %v; before %+v, after %+v", time.Since(began).Round(time.Second), counts, before, after)
	for _, k := range churnKindsOfChange {
		if length >= time.Minute && counts[k.name] < churnLeast {
			t.Errorf("%d changes of the kind %q, want %d", counts[k.name], k.name, churnLeast)
		}
	}
	if after.goroutines > before.goroutines || after.files > before.files || after.heap > before.heap+churnHeap || after.ready > churnReady {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// churnStock is the process's use of resources. The heap is without the reserve of an index, which
// has its own bound.
type churnStock struct {
	goroutines, files int
	heap, ready       int
}

func takeStock(ix *kvindex.Indexer) (s churnStock) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	ready := ix.Stats().Index.Free
	return churnStock{goroutines: runtime.NumGoroutine(), files: len(files), heap: int(m.HeapAlloc) - ready, ready: ready}
}

// runChurn changes pods for some time, with halts in between and at the end, and then removes them.
// It returns how often each kind of change took place. With an even seed messages pass through a Pool.
func runChurn(t *testing.T, ix *kvindex.Indexer, prompts [][]uint32, seed uint64, length time.Duration, halts int) map[string]int {
	c := &churn{
		t: t, ix: ix, most: churnFewPods, prompts: prompts, seed: *churnSeed, r: rand.New(rand.NewPCG(seed, 5)), late: zmtptest.Context(t),
		network: 64 + os.Getpid()%128, port: 20_000 + os.Getpid()%10_000,
		counts: make(map[string]int), retired: make(map[string][]string), gone: make(map[churnRankName]time.Time), told: make(map[string]bool), here: make(map[churnRankName]bool),
	}
	if *churnFor >= time.Minute {
		c.most = churnPods
	}
	var err error
	sink := ix.Sink()
	if seed%2 == 0 {
		pool, err := events.NewPool(ix.Sink(), events.PoolConfig{OnError: func(_ events.Message, err error) { c.failed(err) }})
		c.must(err)
		defer func() { c.must(pool.Close(context.Background())) }()
		sink = pool.Sink()
	}
	c.fleet, err = events.NewFleet(sink, events.FleetConfig{
		Subscriber: events.SubscriberConfig{Backoff: 250 * time.Millisecond, Heartbeat: time.Second, ReplayTimeout: time.Second},
		OnChange:   c.changed,
		OnError:    c.failed,
	})
	c.must(err)
	defer func() {
		for len(c.pairs) > 0 {
			c.giveOn()
		}
		for _, p := range c.pods {
			p.stop()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var ran error
	stop := func() { cancel(); <-ended }
	defer stop()
	c.sources.open(c)
	defer c.sources.close()
	go func() {
		defer close(ended)
		ran = c.fleet.Run(ctx, c.sources.run...)
	}()

	for c.join() {
	}
	c.halt()
	clear(c.counts)
	total := int(length / churnEvery)
	for halt := range halts + 1 {
		c.churn(total*halt/(halts+1), total*(halt+1)/(halts+1))
		c.halt()
	}
	for len(c.pairs) > 0 {
		c.giveOn()
	}
	for len(c.pods) > 0 {
		c.remove(c.pods[0])
	}
	c.wait("the fleet is empty", func() string {
		if left := c.fleet.Pods(nil); len(left) > 0 {
			return fmt.Sprintf("%d pods: %+v", len(left), left[0])
		}
		if s := ix.Stats(); s.Pods+s.Ranks+s.Models+s.Parked+s.Unplaced+counted(s.States)+s.Connected+s.NoReplay+s.Waiting+s.Index.Prefixes+s.Index.Memberships > 0 || s.Blocks != ([index.NumTiers]int{}) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	stop()
	if !errors.Is(ran, context.Canceled) {
		t.Errorf("Run returned %v", ran)
	}
	if infos := ix.Pods(nil); len(infos) > 0 {
		t.Errorf("%d pods are left when Run has ended: %+v", len(infos), infos[0])
	}
	for id, there := range c.told {
		if there {
			t.Errorf("%s was removed without a change of the fleet", id)
		}
	}
	t.Logf("%d changes, %d pods handed over, late by %v at most; a removed pod was in answers for %v at most", c.changes, c.handed, c.lag, c.longest)
	return c.counts
}

func (c *churn) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// failed receives faults. Only those of connections are expected.
func (c *churn) failed(err error) {
	if text := err.Error(); strings.Contains(text, "events: fleet:") && !strings.Contains(text, ": discovery: ") || strings.Contains(text, "kvindex:") {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors = append(c.errors, err.Error())
	c.errors = c.errors[max(0, len(c.errors)-10):]
}

// churn makes the changes from one number to before another, each at its time, while engines serve
// prompts.
func (c *churn) churn(from, to int) {
	began := time.Now()
	lag := time.Duration(0)
	for i := from; i < to; i++ {
		at := began.Add(time.Duration(i-from) * churnEvery)
		select {
		case <-time.After(time.Until(at)):
		case <-c.late.Done():
			c.t.Fatal("no time is left")
		}
		// If this goroutine is late, others are late too.
		lag = max(lag/2, time.Since(at))
		c.lag = max(c.lag, lag)
		c.change()
		if c.r.IntN(10) == 0 {
			c.handOver()
		}
		c.work()
		limit := churnForget + 10*lag
		if raceEnabled || testing.Short() { // 64 engines are slow then, or other programs run
			limit += 20 * churnForget
		}
		c.noneReturns(limit)
	}
}

// change makes the rarest possible change.
func (c *churn) change() {
	c.changes++
	for _, p := range c.pods {
		if p.hung != 0 && p.hung < c.changes {
			c.wake(p)
		}
	}
	if len(c.pairs) > 0 && c.pairs[0].until < c.changes {
		c.giveOn()
	}
	kinds := slices.Clone(churnKindsOfChange)
	c.r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	slices.SortStableFunc(kinds, func(a, b struct {
		name string
		do   func(*churn) bool
	}) int {
		return cmp.Compare(c.counts[a.name]/3, c.counts[b.name]/3)
	})
	for _, k := range kinds {
		if k.do(c) {
			c.counts[k.name]++
			return
		}
	}
	c.t.Fatal("no change is possible")
}

// pick returns a pod that satisfies could, or nil.
func (c *churn) pick(could func(*churnPod) bool) *churnPod {
	for _, i := range c.r.Perm(len(c.pods)) {
		if could(c.pods[i]) {
			return c.pods[i]
		}
	}
	return nil
}

// newAddress returns an unused address.
func (c *churn) newAddress() string {
	c.used++
	return fmt.Sprintf("127.%d.%d.%d", c.network, c.used/250, 1+c.used%250)
}

// newPod returns a pod at an address without a source.
func (c *churn) newPod(host string) *churnPod {
	p := &churnPod{source: c.sources.fewest()}
	p.ID = fmt.Sprintf("pod-%d", c.made)
	if old := c.retired[p.source]; len(old) > 0 && c.r.IntN(2) == 0 {
		i := c.r.IntN(len(old))
		p.ID = old[i]
		c.retired[p.source] = slices.Delete(old, i, i+1)
	} else {
		c.made++
	}
	size := 16 << c.r.IntN(3)
	p.setup = churnSetup{
		Kind: c.r.IntN(len(churnKinds)), Host: host, Port: c.port, Replay: c.port + churnReplayPort, Ranks: 1 + c.r.IntN(4),
		Model: churnModels[c.r.IntN(len(churnModels))], BlockSize: size, Blocks: 1600/size + c.r.IntN(50), Seed: c.seed,
	}
	if p.source == churnDNS { // which has only addresses
		p.ID = net.JoinHostPort(host, strconv.Itoa(c.port))
		p.setup.Model, p.setup.Ranks = churnModels[0], churnDNSRanks
		return p
	}
	if c.r.IntN(2) == 0 {
		p.setup.Topic = "kv@" + p.ID
		if c.r.IntN(2) == 0 {
			p.prefix = "kv@"
		}
	}
	return p
}

// launch starts the engine of a pod.
func (c *churn) launch(p *churnPod) {
	peer, err := startPeer(p.setup)
	c.must(err)
	p.peer, p.hung = peer, 0
}

// stop ends the engine of a pod.
func (p *churnPod) stop() {
	if p.peer != nil {
		p.peer.kill()
	}
	p.peer, p.hung = nil, 0
}

// describe updates the pod in its source. Its former ranks must leave the answers.
func (c *churn) describe(p *churnPod) {
	s := p.setup
	p.Pod = events.Pod{ID: p.ID, Model: s.Model, Host: s.Host, Port: s.Port, ReplayPort: s.Replay, Ranks: s.Ranks, Topic: p.prefix}
	c.mu.Lock()
	was := c.ranksOf(p.ID)
	for _, n := range was {
		delete(c.here, n)
	}
	for r := range s.Ranks {
		n := churnRankName{p.ID, s.Model, r}
		c.here[n] = true
		delete(c.gone, n)
	}
	c.mu.Unlock()
	c.sources.put(c, p)
	if !c.sources.polled(p.source) {
		c.isGone(was)
	}
}

// forget removes the pod from its source.
func (c *churn) forget(p *churnPod) {
	if !c.sources.polled(p.source) && p.up() {
		c.keepBusy(p)
	}
	c.pods = slices.DeleteFunc(c.pods, func(o *churnPod) bool { return o == p })
	c.mu.Lock()
	was := c.ranksOf(p.ID)
	for _, n := range was {
		delete(c.here, n)
	}
	c.mu.Unlock()
	c.sources.remove(c, p)
	if !c.sources.polled(p.source) {
		c.isGone(was)
	}
	if p.source != churnDNS {
		c.retired[p.source] = append(c.retired[p.source], p.ID)
	}
}

// ranksOf returns the described ranks of a pod; c.mu is held.
func (c *churn) ranksOf(pod string) (names []churnRankName) {
	for n := range c.here {
		if n.pod == pod {
			names = append(names, n)
		}
	}
	return names
}

// isGone records ranks as removed.
func (c *churn) isGone(names []churnRankName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		if _, known := c.gone[n]; !c.here[n] && !known {
			c.gone[n] = time.Now()
		}
	}
}

// changed receives the fleet's changes in order. For a polled source that is when a pod counts as
// removed.
func (c *churn) changed(ch events.FleetChange) {
	c.mu.Lock()
	if c.telling {
		c.t.Errorf("%+v: two changes are reported at once", ch)
	}
	c.telling = true
	if added := ch.Kind == "added"; c.told[ch.Pod.ID] == added {
		c.t.Errorf("%+v: is the pod there: %v", ch, !added)
	}
	c.told[ch.Pod.ID] = ch.Kind != "removed"
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.telling = false
	}()
	var was []churnRankName
	for _, m := range churnModels {
		for r := range 4 {
			switch ch.Kind {
			case "removed":
			case "replaced", "resized":
				if m == ch.Pod.Model && r < ch.Pod.Ranks {
					continue
				}
			default:
				return
			}
			was = append(was, churnRankName{ch.Pod.ID, m, r})
		}
	}
	c.isGone(was)
}

// noneReturns fails if an answer has a rank that was removed longer ago than most.
func (c *churn) noneReturns(most time.Duration) {
	c.t.Helper()
	for _, model := range churnModels {
		asked := time.Now()
		answer := score(c.t, c.ix, kvindex.Request{Model: model, Tokens: c.prompts[c.r.IntN(len(c.prompts))], Ranks: true})
		c.mu.Lock()
		for _, s := range answer {
			since, gone := c.gone[churnRankName{s.Pod, model, s.Rank}]
			if !gone {
				continue
			}
			c.longest = max(c.longest, asked.Sub(since))
			if asked.Sub(since) > most {
				c.t.Errorf("%s, model %s, rank %d: still in an answer %v after it was removed", s.Pod, model, s.Rank, asked.Sub(since))
				delete(c.gone, churnRankName{s.Pod, model, s.Rank})
			}
		}
		c.mu.Unlock()
	}
}

// work sends prompts to engines.
func (c *churn) work() {
	for range 10 {
		p := c.pick((*churnPod).up)
		if p == nil {
			return
		}
		o := churnOrder{Rank: c.r.IntN(p.setup.Ranks), Clear: c.r.IntN(50) == 0}
		if c.r.IntN(20) == 0 {
			o.Evict = []int{c.r.IntN(len(c.prompts))}
		}
		for range 1 + c.r.IntN(3) {
			o.Prompts = append(o.Prompts, c.r.IntN(len(c.prompts)))
		}
		c.must(p.peer.order(o))
	}
}

// inAnyOrder calls both, in a random order.
func (c *churn) inAnyOrder(a, b func()) {
	if c.r.IntN(2) == 0 {
		a, b = b, a
	}
	a()
	b()
}

func (c *churn) add(p *churnPod) {
	c.inAnyOrder(func() { c.launch(p) }, func() { c.describe(p) })
	c.pods = append(c.pods, p)
}

func (c *churn) remove(p *churnPod) {
	c.inAnyOrder(p.stop, func() { c.forget(p) })
	c.left = append(c.left, p.setup.Host)
}

// keepBusy gives a pod so much work that its messages are under way for a while, and waits a short
// time for the first.
func (c *churn) keepBusy(p *churnPod) {
	began := time.Now()
	for range 40 {
		for rank := range p.setup.Ranks {
			c.must(p.peer.order(churnOrder{Rank: rank, Prompts: []int{c.r.IntN(len(c.prompts))}}))
		}
	}
	stream := fmt.Sprintf("tcp://%s:%d", p.Host, p.Port)
	busy := func() bool {
		info, _ := c.ix.Pod(p.ID, p.Model)
		return slices.ContainsFunc(info.Streams, func(s stats.Stream) bool { return s.Stream == stream && s.LastMessage.After(began) })
	}
	for time.Since(began) < churnEvery/5 && !busy() {
		<-time.After(time.Millisecond)
	}
}

func (c *churn) join() bool {
	if c.full() {
		return false
	}
	c.add(c.newPod(c.newAddress()))
	return true
}

func (c *churn) leave() bool {
	if len(c.pods) <= c.most-8 {
		return false
	}
	c.remove(c.pods[c.r.IntN(len(c.pods))])
	return true
}

// restart restarts an engine at its address, dead or alive.
func (c *churn) restart() bool {
	p := c.pick(func(p *churnPod) bool { return p.peer == nil })
	if p == nil || c.r.IntN(2) == 0 {
		p = c.pods[c.r.IntN(len(c.pods))]
	}
	p.stop()
	c.launch(p)
	return true
}

// again starts the pod's engine as a new one, and describes it. A pod of the host's may change to
// another of its sources.
func (c *churn) again(p *churnPod) {
	old := *p
	if other := churnHosts[p.source]; other != "" && c.r.IntN(2) == 0 {
		p.source = other
		c.handed++
	}
	c.inAnyOrder(func() { p.stop(); c.launch(p) }, func() {
		c.describe(p)
		if p.source != old.source {
			c.sources.remove(c, &old)
		}
	})
}

func (c *churn) move() bool {
	p := c.pick((*churnPod).described)
	c.left = append(c.left, p.setup.Host)
	p.setup.Host = c.newAddress()
	c.again(p)
	return true
}

func (c *churn) changeModel() bool {
	p := c.pick((*churnPod).described)
	i := slices.Index(churnModels, p.setup.Model)
	p.setup.Model = churnModels[(i+1+c.r.IntN(len(churnModels)-1))%len(churnModels)]
	c.again(p)
	return true
}

// changeRanks makes an engine open or close ranks. The others continue.
func (c *churn) changeRanks() bool {
	p := c.pick(func(p *churnPod) bool { return p.up() && p.described() })
	if p == nil {
		return false
	}
	p.setup.Ranks = 1 + (p.setup.Ranks+c.r.IntN(3))%4
	c.inAnyOrder(func() { c.must(p.peer.order(churnOrder{Ranks: p.setup.Ranks})) }, func() { c.describe(p) })
	return true
}

// handOver moves a pod to another source of the host, unchanged.
func (c *churn) handOver() {
	p := c.pick(func(p *churnPod) bool { return churnHosts[p.source] != "" })
	if p == nil {
		return
	}
	old := *p
	p.source = churnHosts[p.source]
	c.sources.put(c, p)
	c.sources.remove(c, &old)
	c.handed++
}

// down counts dead and hung pods.
func (c *churn) down() (n int) {
	for _, p := range c.pods {
		if !p.up() {
			n++
		}
	}
	return n
}

func (c *churn) die() bool {
	p := c.pick((*churnPod).up)
	if p == nil || c.down() > c.most/4 {
		return false
	}
	p.stop()
	return true
}

func (c *churn) hang() bool {
	p := c.pick((*churnPod).up)
	if p == nil || c.down() > c.most/4 {
		return false
	}
	c.must(p.peer.signal(syscall.SIGSTOP))
	p.hung = c.changes + 1 + c.r.IntN(100)
	return true
}

// wake ends a hang: the process continues, or is restarted.
func (c *churn) wake(p *churnPod) {
	if c.r.IntN(3) == 0 {
		p.stop()
		c.launch(p)
		return
	}
	c.must(p.peer.signal(syscall.SIGCONT))
	p.hung = 0
}

// takeAddress starts a pod at the address of an earlier pod, or of one that stops then or later.
func (c *churn) takeAddress() bool {
	old := c.pick(func(p *churnPod) bool { return !c.sources.polled(p.source) && p.Ranks >= churnDNSRanks })
	if old != nil && c.r.IntN(2) == 0 {
		c.wait("the pod whose address is taken has it", func() string { return c.notAtItsAddress(old) })
		old.stop()
		p := c.newPod(old.setup.Host)
		p.setup.Ranks = min(p.setup.Ranks, old.Ranks) // all of its ranks wait
		c.add(p)
		c.pairs = append(c.pairs, churnPair{old, p, c.changes + 20*c.r.IntN(3)})
		c.pods = slices.DeleteFunc(c.pods, func(o *churnPod) bool { return o == p || o == old })
		if last := &c.pairs[len(c.pairs)-1]; last.until == c.changes {
			c.giveOn()
		}
		return true
	}
	if len(c.left) == 0 || c.full() {
		return false
	}
	i := c.r.IntN(len(c.left))
	host := c.left[i]
	c.left = slices.Delete(c.left, i, i+1)
	c.add(c.newPod(host))
	return true
}

// notAtItsAddress describes the streams of a pod that are not at its address: a moved pod gets its
// new stream when the old ones have ended.
func (c *churn) notAtItsAddress(p *churnPod) string {
	for _, h := range c.fleet.Pods(nil) {
		if h.ID != p.ID {
			continue
		}
		for r, s := range h.Streams {
			if s.Endpoint != fmt.Sprintf("tcp://%s:%d", p.Host, p.Port+r) || s.Link == "waiting" {
				return fmt.Sprintf("%+v, and it is %+v", s, p.Pod)
			}
		}
		if len(h.Streams) == p.Ranks {
			return ""
		}
	}
	return fmt.Sprintf("%+v is not there", p.Pod)
}

// giveOn removes the first pod for whose address another one waits.
func (c *churn) giveOn() {
	pair := c.pairs[0]
	c.pairs = c.pairs[1:]
	c.pods = append(c.pods, pair.next)
	c.forget(pair.old)
}

// full reports whether the number of pods is at its maximum.
func (c *churn) full() bool { return len(c.pods)+2*len(c.pairs) >= c.most }

// wait waits until wrong returns "".
func (c *churn) wait(what string, wrong func() string) {
	c.t.Helper()
	if said := c.within(churnPatience, wrong); said != "" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.t.Fatalf("seed %d, change %d: not yet: %s: %s\nerrors: %q", *churnSeed, c.changes, what, said, c.errors)
	}
}

// within waits until wrong returns "", or returns its last result when time is up.
func (c *churn) within(limit time.Duration, wrong func() string) (said string) {
	deadline := time.Now().Add(limit)
	for said = wrong(); said != "" && time.Now().Before(deadline); said = wrong() {
		select {
		case <-time.After(pollEvery):
		case <-c.late.Done():
			return said
		}
	}
	return said
}

// truths returns the holdings of all living engines.
func (c *churn) truths() map[string]churnTruth {
	truths := make(map[string]churnTruth)
	for _, p := range c.pods {
		if p.up() {
			c.must(p.peer.order(churnOrder{Ask: true}))
		}
	}
	for _, p := range c.pods {
		if p.up() {
			t, err := p.peer.truth()
			c.must(err)
			if len(t.Ranks) != p.setup.Ranks {
				c.t.Fatalf("%s has %d ranks, not %d", p.ID, len(t.Ranks), p.setup.Ranks)
			}
			truths[p.ID] = t
		}
	}
	return truths
}

// halt waits until everything is known, and compares it with the engines' holdings. A view whose
// engine restarted while its replay socket was being tested is uncertain until the next message, so
// each engine publishes one more.
func (c *churn) halt() {
	c.t.Helper()
	began := time.Now()
	truths := c.truths()
	told := time.Since(began)
	if said := c.within(churnPatience/4, func() string { return c.notFollowed(truths) }); strings.Contains(said, "State:"+kvindex.StateUncertain.String()) {
		c.t.Logf("change %d: each engine gets one more prompt: %s", c.changes, said)
		for _, p := range c.pods {
			for rank := 0; p.up() && rank < p.setup.Ranks; rank++ {
				c.must(p.peer.order(churnOrder{Rank: rank, Prompts: []int{c.r.IntN(len(c.prompts)), c.r.IntN(len(c.prompts))}}))
			}
		}
		truths = c.truths()
	}
	c.wait("all pods are followed", func() string { return c.notFollowed(truths) })
	followed := time.Since(began)
	c.wait("all scores are the engines'", func() string { return cmp.Or(c.notFollowed(truths), c.notEqual(truths)) })
	c.t.Logf("change %d: %d pods, %d up: told after %v, followed after %v, equal after %v", c.changes, len(c.pods), len(truths), told.Round(time.Millisecond), followed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// notFollowed describes a pod that differs from its description in the fleet, or is up and not
// live.
func (c *churn) notFollowed(truths map[string]churnTruth) string {
	have := c.fleet.Pods(nil)
	want, waits := slices.Clone(c.pods), make(map[string]*churnPod)
	for _, pair := range c.pairs {
		want = append(want, pair.old, pair.next)
		waits[pair.next.ID] = pair.old
	}
	slices.SortFunc(want, func(a, b *churnPod) int { return strings.Compare(a.ID, b.ID) })
	if len(have) != len(want) {
		return fmt.Sprintf("%d pods, not %d", len(have), len(want))
	}
	c.mu.Lock()
	for _, h := range have {
		if !c.told[h.ID] {
			c.mu.Unlock()
			return fmt.Sprintf("%s is there, which was not told", h.ID)
		}
	}
	c.mu.Unlock()
	infos := make(map[string]kvindex.PodInfo)
	for _, info := range c.ix.Pods(nil) {
		if _, twice := infos[info.Pod]; twice {
			return fmt.Sprintf("%s has several models", info.Pod)
		}
		infos[info.Pod] = info
	}
	for i, p := range want {
		h := have[i]
		if h.ID != p.ID || h.Source != p.source || h.Model != p.Model || h.Host != p.Host || h.Port != p.Port || h.ReplayPort != p.ReplayPort || h.Topic != p.Topic || len(h.Streams) != p.Ranks {
			return fmt.Sprintf("%+v, and it is %+v of %s", h, p.Pod, p.source)
		}
		if old := waits[p.ID]; old != nil {
			for r, s := range h.Streams {
				if s.Link != "waiting" || s.Err == nil || !strings.Contains(s.Err.Error(), old.ID) {
					return fmt.Sprintf("%s, rank %d, has the address of %s: %+v", p.ID, r, old.ID, s)
				}
			}
		}
		t, up := truths[p.ID]
		if !up {
			continue
		}
		info := infos[p.ID]
		for r, s := range h.Streams {
			i := slices.IndexFunc(info.Streams, func(i stats.Stream) bool { return i.Stream == s.Endpoint })
			switch {
			case s.Link != "live":
				return fmt.Sprintf("%s, rank %d: %+v", p.ID, r, s)
			case i < 0:
				return fmt.Sprintf("%s has no stream %s: %+v", p.ID, s.Endpoint, info)
			case t.Ranks[r].Next > 0 && info.Streams[i].State != kvindex.StateLive.String():
				return fmt.Sprintf("%s, rank %d: %+v", p.ID, r, info.Streams[i])
			case info.Streams[i].Next != t.Ranks[r].Next:
				return fmt.Sprintf("%s, rank %d: the next message is %d, of the engine %d", p.ID, r, info.Streams[i].Next, t.Ranks[r].Next)
			}
		}
	}
	return ""
}

// notEqual describes a score that is not the engine's.
func (c *churn) notEqual(truths map[string]churnTruth) string {
	described := make(map[churnRankName]*churnPod)
	for _, p := range c.pods {
		for r := range p.Ranks {
			described[churnRankName{p.ID, p.Model, r}] = p
		}
	}
	for _, pair := range c.pairs { // blocks of the first one may still be there
		for r := range pair.old.Ranks {
			described[churnRankName{pair.old.ID, pair.old.Model, r}] = pair.old
		}
	}
	answer := kvindex.Answer{}
	for i, tokens := range c.prompts {
		for _, model := range churnModels {
			missing := make(map[churnRankName]bool)
			for n, p := range described {
				if t, up := truths[p.ID]; up && p.Model == model && (t.Ranks[n.rank].Cached[i] > 0 || t.Ranks[n.rank].Matched[i] > 0) {
					missing[n] = true
				}
			}
			c.must(c.ix.ScoreRequest(c.late, &kvindex.Request{Model: model, Tokens: tokens, Ranks: true}, &answer))
			for _, s := range answer.Pods {
				n := churnRankName{s.Pod, model, s.Rank}
				p := described[n]
				if p == nil {
					return fmt.Sprintf("prompt %d: %+v of %s is in the answer, and is not there", i, s, model)
				}
				delete(missing, n)
				t, up := truths[s.Pod]
				if !up {
					continue
				}
				rank := &t.Ranks[s.Rank]
				if s.CachedTokens != rank.Cached[i] || s.MatchedBlocks != rank.Matched[i] {
					return fmt.Sprintf("prompt %d: %+v, and the engine (%s, blocks of %d) has %d tokens, %d blocks", i, s, churnKinds[p.setup.Kind].name, p.setup.BlockSize, rank.Cached[i], rank.Matched[i])
				}
				if s.State != kvindex.StateLive && rank.Next > 0 {
					return fmt.Sprintf("prompt %d: %+v: not live", i, s)
				}
			}
			if len(missing) > 0 {
				return fmt.Sprintf("prompt %d: not in the answer: %v", i, slices.Collect(maps.Keys(missing)))
			}
		}
	}
	return ""
}

func counted[N int | uint64](words map[string]N) (sum N) {
	for _, n := range words {
		sum += n
	}
	return sum
}
