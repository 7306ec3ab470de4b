package route

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxAge is how long a flight counts that is never done.
const DefaultMaxAge = 10 * time.Minute

// Tracker knows what each pod has in flight, from what was sent there and what has come back.
// No engine is asked. The zero value is ready; a Tracker must not be copied. All methods are
// safe for many goroutines.
//
// What other gateways send counts too: see Notes.
type Tracker struct {
	// MaxAge is how long a flight counts that is never done, and how long a gateway counts
	// that tells nothing more; 0: DefaultMaxAge. All gateways have one. It must not change
	// later.
	MaxAge time.Duration
	// Now is the clock; nil: time.Now. It is called by many goroutines at a time. It must
	// not change later.
	Now func() time.Time

	mu   sync.RWMutex // guards what follows, but not what is in a podLoad
	pods map[podRank]*podLoad

	notes   sync.Mutex // guards what follows, and changes of others; taken before mu
	life    int64      // when something was told first; 0: nothing was
	seq     uint64     // of what was told last
	origins map[string]*origin

	tidied atomic.Int64 // when
	aged   atomic.Uint64
}

type podRank struct {
	name string
	rank int
}

// podLoad is what a rank of a pod has in flight.
type podLoad struct {
	own, others load
	oldest      atomic.Int64 // when the oldest flight was sent; math.MaxInt64: there is none

	mu      sync.Mutex // guards what follows, and changes of own
	flights Flight     // a ring of those that are not done, by age
	changed bool       // own, since it was told last
	gone    bool       // it is in no Tracker any more
}

// load is a Load that is changed by one goroutine at a time.
type load struct{ requests, prefill, decode atomic.Int64 }

func (l *load) add(requests, prefill, decode int64) {
	if requests != 0 {
		l.requests.Add(requests)
	}
	if prefill != 0 {
		l.prefill.Add(prefill)
	}
	if decode != 0 {
		l.decode.Add(decode)
	}
}

func (l *load) get() Load {
	return Load{int(l.requests.Load()), int(l.prefill.Load()), int(l.decode.Load())}
}

// Flight is a request that was sent to a pod. All methods are safe for many goroutines, and
// for a nil Flight. Once a flight is done, aged, or its pod is forgotten, nothing changes it.
type Flight struct {
	at                      *podLoad
	prev, next              *Flight // nil: it has ended
	sent                    int64
	prompt, prefill, decode int64 // tokens; what is in own of it
	computed                bool
}

// maxTokens bounds each figure of a flight and of a note, so that no sum of them passes an int.
const maxTokens = 1 << 40

func bounded(n int) int64 { return int64(min(max(n, 0), maxTokens)) }

func (t *Tracker) now() int64 {
	if t.Now != nil {
		return t.Now().UnixNano()
	}
	return time.Now().UnixNano()
}

// before returns when something was sent that is too old now.
func (t *Tracker) before(now int64) int64 {
	age := t.MaxAge
	if age <= 0 {
		age = DefaultMaxAge
	}
	return now - int64(age)
}

// Sent notes that a prompt of so many tokens is sent to a rank of a pod, which has cached so
// many of them.
func (t *Tracker) Sent(pod string, rank, prompt, cached int) *Flight {
	now := t.now()
	f := &Flight{sent: now, prompt: bounded(prompt)}
	f.prefill = f.prompt - min(bounded(cached), f.prompt)
	for {
		p := t.pod(podRank{pod, rank})
		p.mu.Lock()
		if p.gone {
			p.mu.Unlock()
			continue
		}
		f.at = p
		ring := &p.flights
		if ring.next == ring {
			p.oldest.Store(now)
		}
		f.prev, f.next = ring.prev, ring
		ring.prev.next, ring.prev = f, f
		p.own.add(1, f.prefill, 0)
		p.changed = true
		if p.oldest.Load() <= t.before(now) {
			t.age(p, now)
		}
		p.mu.Unlock()
		return f
	}
}

// pod returns a pod, which is new if there was none.
func (t *Tracker) pod(at podRank) *podLoad {
	t.mu.RLock()
	p := t.pods[at]
	t.mu.RUnlock()
	if p != nil {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p = t.pods[at]; p == nil {
		p = new(podLoad)
		p.flights.prev, p.flights.next = &p.flights, &p.flights
		p.oldest.Store(math.MaxInt64)
		if t.pods == nil {
			t.pods = make(map[podRank]*podLoad)
		}
		t.pods[at] = p
	}
	return p
}

// lock locks the pod of a flight, and reports whether that has not ended.
func (f *Flight) lock() bool {
	if f == nil {
		return false
	}
	f.at.mu.Lock()
	if f.next != nil {
		return true
	}
	f.at.mu.Unlock()
	return false
}

// FirstToken notes that the prompt is computed. The pod holds it until the flight is done.
func (f *Flight) FirstToken() { f.Tokens(0) }

// Tokens notes that the pod has generated so many more tokens, and that the prompt is computed.
func (f *Flight) Tokens(n int) {
	if !f.lock() {
		return
	}
	more := min(bounded(n), maxTokens-min(f.decode, maxTokens))
	if !f.computed {
		f.computed = true
		more += f.prompt
	}
	f.at.changed = true
	f.at.own.add(0, -f.prefill, more)
	f.prefill, f.decode = 0, f.decode+more
	f.at.mu.Unlock()
}

// Done notes that the request has ended, whatever came of it.
func (f *Flight) Done() {
	if f.lock() {
		f.end()
		f.at.mu.Unlock()
	}
}

// end ends a flight of a pod that is locked.
func (f *Flight) end() {
	p := f.at
	p.own.add(-1, -f.prefill, -f.decode)
	f.prev.next, f.next.prev = f.next, f.prev
	f.prev, f.next = nil, nil
	p.changed = true
	oldest := int64(math.MaxInt64)
	if first := p.flights.next; first != &p.flights {
		oldest = first.sent
	}
	p.oldest.Store(oldest)
}

// age ends the flights of a pod that is locked that are too old.
func (t *Tracker) age(p *podLoad, now int64) {
	for f := p.flights.next; f != &p.flights && f.sent <= t.before(now); f = p.flights.next {
		f.end()
		t.aged.Add(1)
	}
}

// Fill sets the Load of each of the pods. A pod that is not known has none.
func (t *Tracker) Fill(pods []Pod) {
	now := t.now()
	t.tidy(now)
	before := t.before(now)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range pods {
		of := &pods[i]
		p := t.pods[podRank{of.Name, of.Rank}]
		if p == nil {
			of.Load = Load{}
			continue
		}
		if p.oldest.Load() <= before {
			p.mu.Lock()
			t.age(p, now)
			p.mu.Unlock()
		}
		own, others := p.own.get(), p.others.get()
		of.Load = Load{own.Requests + others.Requests, own.Prefill + others.Prefill, own.Decode + others.Decode}
	}
}

// Aged returns how many flights were never done, and have ended by age.
func (t *Tracker) Aged() uint64 { return t.aged.Load() }

// Forget ends all flights to a pod, and takes away what others have told of it.
func (t *Tracker) Forget(pod string) {
	t.notes.Lock()
	defer t.notes.Unlock()
	for _, o := range t.origins {
		for at := range o.pods {
			if at.name == pod {
				t.setOthers(at, o, told{})
				delete(o.pods, at)
			}
		}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
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

// tidyEvery is how many times in a MaxAge a Tracker looks for what can go.
const tidyEvery = 8

// tidy forgets gateways that tell nothing more, and pods that have nothing in flight.
func (t *Tracker) tidy(now int64) {
	before := t.before(now)
	if last := t.tidied.Load(); last > now-(now-before)/tidyEvery && last <= now || !t.tidied.CompareAndSwap(last, now) {
		return
	}
	t.notes.Lock()
	defer t.notes.Unlock()
	for name, o := range t.origins {
		if o.heard <= before {
			t.forgetOrigin(name)
			continue
		}
		for at, n := range o.pods {
			if n.load == (Load{}) && n.seq <= o.tidied {
				delete(o.pods, at)
			}
		}
		o.tidied = o.seq
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, p := range t.pods {
		p.mu.Lock()
		t.age(p, now)
		told := !p.changed || t.life == 0 // nobody is told
		if p.flights.next == &p.flights && told && p.others.get() == (Load{}) {
			p.gone = true
			delete(t.pods, at)
		}
		p.mu.Unlock()
	}
}
