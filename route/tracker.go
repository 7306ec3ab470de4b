// Load is counted by requests that were sent and have not come back. Engines could be polled,
// but their answers are as old as the last one, and all requests meanwhile go to the pod that
// was idle then. A Tracker is exact about this gateway at any moment. Each pod has a lock and
// a ring of its flights in the order in which they were sent, so a flight without an end is
// found at the front.

package route

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Tracker has the load of each pod in flight, from requests and answers. It polls no engine:
// a host can report the loads that it has polled (Reported).
// A host that calls Sent and Done alone gets an estimate: Requests are right, and the uncached
// part of a prompt counts as Prefill until its flight is done.
//
// The zero value is ready; a Tracker must not be copied. All methods are safe for concurrent
// use. The load of other gateways counts too: see Changes.
type Tracker struct {
	// MaxAge is how long a flight without Done counts, and how long a gateway that sends
	// nothing counts; 0: 10 minutes. All gateways have the same. It must not change later.
	MaxAge time.Duration
	// Now is the clock; nil: that of the system. Many goroutines call it at a time. It must
	// not change later.
	Now func() time.Time

	read  atomic.Pointer[map[string]ranks] // a copy of pods that never changes
	newer atomic.Bool                      // pods has some that read lacks
	due   atomic.Int64                     // when to tidy
	aged  atomic.Uint64

	mu          sync.Mutex // guards the fields below, and changes of others; taken before that of a podLoad
	pods        map[podRank]*podLoad
	missed      int    // how often a pod was not in read
	life        int64  // when the first notes were made
	seq         uint64 // of the newest notes from here; 0: there are none
	lastChanges int64  // when Changes was called last
	origins     map[originName]*origin
	sums        flightSums // of pods that were Reported
}

type podRank struct {
	name string
	rank int
}

// ranks are those of a pod. A map by name is twice as fast as one by name and rank.
type ranks struct {
	rank int
	load *podLoad
	next *ranks
}

// podLoad is the load of a rank of a pod.
type podLoad struct {
	own, others load
	_           [16]byte // Fill reads one cache line

	mu      sync.Mutex // guards the fields below, and changes of own
	flights Flight     // a ring of those that have not ended, by age
	sums    flightSums // since the pod was Reported last
	changed bool       // own, since the last Changes
	gone    bool       // it is in no Tracker any more
}

// A load is a Load that one goroutine at a time changes. It is never below 0.
type load struct{ requests, prefill, decode atomic.Int64 }

func (l *load) add(requests, prefill, decode int32) {
	l.requests.Add(int64(requests))
	l.prefill.Add(int64(prefill))
	l.decode.Add(int64(decode))
}

// plus returns the sum of two loads.
func (l *load) plus(o *load) Load {
	sum := func(a, b *atomic.Int64) int { return int(min(a.Load()+b.Load(), math.MaxInt)) }
	return Load{sum(&l.requests, &o.requests), sum(&l.prefill, &o.prefill), sum(&l.decode, &o.decode)}
}

// A Flight is a request that was sent to a pod. All methods are safe for concurrent use, and
// for a nil Flight. A flight ends when it is done, when it is too old, and when its pod is
// forgotten. After that nothing changes it.
type Flight struct {
	at                      *podLoad
	prev, next              *Flight // nil: it has ended
	sent                    int64
	prompt, prefill, decode int32 // tokens; the latter two are in own
	computed                bool
}

// bounded returns a figure such that no sum of them overflows an int64.
func bounded(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

var begun = time.Now()

// now returns a time. The clock of the system never goes back.
func (t *Tracker) now() int64 {
	if t.Now != nil {
		return t.Now().UnixNano()
	}
	return begun.Add(time.Since(begun)).UnixNano()
}

func (t *Tracker) maxAge() int64 {
	if t.MaxAge <= 0 {
		return int64(10 * time.Minute)
	}
	return int64(min(t.MaxAge, 1<<60)) // a time and an age are an int64
}

// Sent records that a prompt of so many tokens is sent to a rank of a pod, which has so many
// of them cached. Fill finds it under this name and rank only.
func (t *Tracker) Sent(pod string, rank, prompt, cached int) *Flight {
	now := t.now()
	t.tidy(now)
	f := &Flight{sent: now, prompt: bounded(prompt)}
	f.prefill = f.prompt - min(bounded(cached), f.prompt)
	at := podRank{pod, rank}
	p := t.find(at)
	for p == nil || !p.send(f) {
		t.mu.Lock()
		p = t.pod(at)
		t.mu.Unlock()
	}
	return f
}

// send adds a flight, unless the pod is gone.
func (p *podLoad) send(f *Flight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	f.at, f.prev, f.next = p, p.flights.prev, &p.flights
	f.prev.next, f.next.prev = f, f
	p.own.add(1, f.prefill, 0)
	p.sums.add(flightSums{1, float64(f.prompt), float64(f.prefill)})
	p.changed = true
	return true
}

// find returns a pod, as a rule without a lock; nil: there is none.
func (t *Tracker) find(at podRank) *podLoad {
	newer := t.newer.Load() // before read, which then has all if it is false
	if pods := t.read.Load(); pods != nil {
		first := (*pods)[at.name]
		for of := &first; of != nil; of = of.next {
			if of.rank == at.rank && of.load != nil {
				return of.load
			}
		}
	}
	if !newer {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.missed++; t.missed > len(t.pods) { // copies take no longer than the lookups that missed
		t.publish()
	}
	return t.pods[at]
}

// publish makes all pods available without a lock. The Tracker is locked.
func (t *Tracker) publish() {
	read := make(map[string]ranks, len(t.pods))
	for at, p := range t.pods {
		of := ranks{rank: at.rank, load: p}
		if others, ok := read[at.name]; ok {
			of.next = &others
		}
		read[at.name] = of
	}
	t.read.Store(&read)
	t.newer.Store(false)
	t.missed = 0
}

// pod returns a pod, and adds it if necessary. The Tracker is locked.
func (t *Tracker) pod(at podRank) *podLoad {
	p := t.pods[at]
	if p == nil {
		p = new(podLoad)
		p.flights.prev, p.flights.next = &p.flights, &p.flights
		if t.pods == nil {
			t.pods = make(map[podRank]*podLoad)
		}
		t.pods[at] = p
		t.newer.Store(true)
	}
	return p
}

// lock locks the pod of a flight, and reports whether the flight is still in the air.
func (f *Flight) lock() bool {
	if f == nil {
		return false
	}
	f.at.mu.Lock()
	if f.next == nil {
		f.at.mu.Unlock()
		return false
	}
	return true
}

// FirstToken records that the prompt is computed. The pod holds it until the flight is done.
func (f *Flight) FirstToken() { f.Tokens(0) }

// Tokens records that the pod has generated so many more tokens, and that the prompt is
// computed.
func (f *Flight) Tokens(n int) {
	if !f.lock() {
		return
	}
	held := int64(f.decode) + int64(bounded(n))
	if !f.computed {
		held += int64(f.prompt)
	}
	more := int32(min(held, math.MaxInt32)) - f.decode
	f.at.own.add(0, -f.prefill, more)
	f.at.changed = true
	f.computed, f.prefill, f.decode = true, 0, f.decode+more
	f.at.mu.Unlock()
}

// Done records that the request has ended, with or without success.
func (f *Flight) Done() {
	if f.lock() {
		f.end()
		f.at.mu.Unlock()
	}
}

// end ends a flight. Its pod is locked.
func (f *Flight) end() {
	f.at.own.add(-1, -f.prefill, -f.decode)
	f.at.changed = true
	f.prev.next, f.next.prev = f.next, f.prev
	f.prev, f.next = nil, nil
}

// Fill sets the Load of each of the pods. An unknown pod has none.
func (t *Tracker) Fill(pods []Pod) {
	t.tidy(t.now())
	for i := range pods {
		to := &pods[i]
		to.Load = Load{}
		if p := t.find(podRank{to.Name, to.Rank}); p != nil {
			to.Load = p.own.plus(&p.others)
		}
	}
}

// Aged returns how many flights ended by age, without Done.
func (t *Tracker) Aged() uint64 { return t.aged.Load() }

// Forget ends all flights to a pod, and removes the load that other gateways have reported for
// it. What they send later counts.
func (t *Tracker) Forget(pod string) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.origins {
		for at := range o.pods {
			if at.name == pod {
				t.replace(o, at, lastNote{seq: o.seq, received: now})
			}
		}
	}
	for at, p := range t.pods {
		if at.name == pod {
			p.mu.Lock()
			for p.flights.next != &p.flights {
				p.flights.next.end()
			}
			p.mu.Unlock()
		}
	}
}

// A Tracker tidies at least tidyEvery times in a MaxAge.
const tidyEvery = 8

// tidy ends flights by age, and forgets silent gateways and idle pods, if it is due.
func (t *Tracker) tidy(now int64) {
	age := t.maxAge()
	every, before := age/tidyEvery, now-age
	due := t.due.Load()
	// A long wait means that the clock went back.
	if left := due - now; left > 0 && left <= 2*every || !t.due.CompareAndSwap(due, now+every) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := min(t.tidyOrigins(now, before), before+every) // of the rest
	had := len(t.pods)
	for at, p := range t.pods {
		p.mu.Lock()
		for f := p.flights.prev; f != &p.flights && f.sent > now; f = f.prev {
			f.sent = now // the clock went back
		}
		f := p.flights.next
		for ; f != &p.flights && f.sent <= before; f = p.flights.next {
			f.end()
			t.aged.Add(1)
		}
		unsent := p.changed && t.seq > 0 && t.lastChanges > before
		if f != &p.flights {
			oldest = min(oldest, f.sent)
		} else if !unsent && p.others.plus(new(load)) == (Load{}) {
			p.gone = true
			delete(t.pods, at)
		}
		p.mu.Unlock()
	}
	if len(t.pods) < had {
		t.pods = maps.Clone(t.pods) // which is smaller
		t.publish()
	}
	t.due.Store(oldest + age)
}
