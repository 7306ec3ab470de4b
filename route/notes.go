package route

// Notes is what one gateway tells the others of what it has in flight. A host sends the Changes
// of its Tracker to all other gateways, ten times a second, say, and its State to one that asks,
// and to all now and then. Whoever gets them passes them to Merge, with a name for the gateway
// that they came from.
//
// A Note has what is in flight now, not what has changed. So Notes may be lost, and may come
// twice, late, and in another order: what was told last counts. What was lost is right again
// with the next note of that pod, or with the next State.
type Notes struct {
	Life  int64  // when the Tracker began to tell; what an earlier Tracker of a gateway told is void
	Seq   uint64 // grows with each Notes of a life
	Whole bool   // pods without a Note have nothing in flight
	Pods  []Note
}

// Note is what a gateway has in flight at a rank of a pod.
type Note struct {
	Pod  string
	Rank int
	Load Load
}

// origin is another gateway.
type origin struct {
	life   int64
	whole  uint64 // Seq of the last State
	seq    uint64 // the highest
	tidied uint64 // seq when the Tracker was tidied last
	heard  int64
	pods   map[podRank]told
}

// told is what an origin has told last of a pod.
type told struct {
	load Load
	seq  uint64
}

// Changes returns what has changed since the last call, for all other gateways.
func (t *Tracker) Changes() Notes { return t.tell(false) }

// State returns all that is in flight from here. It does not count as told to all: Changes
// tells it as well.
func (t *Tracker) State() Notes { return t.tell(true) }

func (t *Tracker) tell(whole bool) Notes {
	now := t.now()
	t.tidy(now)
	t.notes.Lock()
	defer t.notes.Unlock()
	if t.life == 0 {
		t.life = now
	}
	t.seq++
	n := Notes{Life: t.life, Seq: t.seq, Whole: whole}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for at, p := range t.pods {
		p.mu.Lock()
		t.age(p, now)
		load := p.own.get()
		if whole && load != (Load{}) || !whole && p.changed {
			n.Pods = append(n.Pods, Note{at.name, at.rank, load})
		}
		p.changed = p.changed && whole
		p.mu.Unlock()
	}
	return n
}

// Merge takes what another gateway has told. Names of gateways are the host's.
func (t *Tracker) Merge(from string, n Notes) {
	now := t.now()
	t.tidy(now)
	t.notes.Lock()
	defer t.notes.Unlock()
	o := t.origins[from]
	if o != nil && n.Life > o.life {
		t.forgetOrigin(from)
		o = nil
	}
	if o == nil {
		o = &origin{life: n.Life, pods: make(map[podRank]told)}
		if t.origins == nil {
			t.origins = make(map[string]*origin)
		}
		t.origins[from] = o
	}
	if n.Life < o.life || n.Seq <= o.whole {
		return
	}
	o.heard, o.seq = now, max(o.seq, n.Seq)
	for _, note := range n.Pods {
		at := podRank{note.Pod, note.Rank}
		if was := o.pods[at]; n.Seq > was.seq {
			l := note.Load
			t.setOthers(at, o, told{Load{int(bounded(l.Requests)), int(bounded(l.Prefill)), int(bounded(l.Decode))}, n.Seq})
		}
	}
	if !n.Whole {
		return
	}
	o.whole = n.Seq
	for at, was := range o.pods {
		if was.seq < n.Seq {
			t.setOthers(at, o, told{})
			delete(o.pods, at)
		}
	}
}

// setOthers sets what an origin has told of a pod.
func (t *Tracker) setOthers(at podRank, o *origin, to told) {
	was := o.pods[at].load
	o.pods[at] = to
	p := t.pod(at)
	p.others.add(int64(to.load.Requests-was.Requests), int64(to.load.Prefill-was.Prefill), int64(to.load.Decode-was.Decode))
}

// ForgetOrigin takes away what a gateway has told: it has gone.
func (t *Tracker) ForgetOrigin(from string) {
	t.notes.Lock()
	defer t.notes.Unlock()
	t.forgetOrigin(from)
}

func (t *Tracker) forgetOrigin(from string) {
	if o := t.origins[from]; o != nil {
		for at := range o.pods {
			t.setOthers(at, o, told{})
		}
		delete(t.origins, from)
	}
}
