package route

// Notes is what one gateway tells the others of what it has in flight. A host sends the Changes
// of its Tracker to all other gateways, ten times a second, say, and its State to one that asks,
// and to all now and then. Whoever gets them passes them to Merge, with a name for the gateway
// that they came from. No gateway merges its own.
//
// A Note has what is in flight now, not what has changed. So Notes may be lost, and may come
// twice, late, and in another order: what was told last counts. What was lost is right again
// with the next note of that pod, with the next State, or after a MaxAge.
type Notes struct {
	Life  int64  // when the Tracker began to tell; what an earlier Tracker of a gateway told is void
	Seq   uint64 // grows with each Notes of a life, from 1
	Whole bool   // pods without a Note have nothing in flight
	Pods  []Note // of a rank that is here twice, the first counts
}

// Note is what a gateway has in flight at a rank of a pod.
type Note struct {
	Pod  string
	Rank int
	Load Load // each figure is kept between 0 and math.MaxInt32
}

// origin is another gateway.
type origin struct {
	life  int64
	seq   uint64 // the highest
	least uint64 // Notes up to this Seq are void: a State has told more, or all was forgotten
	heard int64
	pods  map[podRank]told
}

// told is what an origin has told last of a pod. A load of nothing stays for a MaxAge, so that
// a note that comes late does not count.
type told struct {
	load  Load
	seq   uint64
	heard int64
}

// Changes returns what has changed since the last call, for all other gateways.
func (t *Tracker) Changes() Notes { return t.tell(false) }

// State returns all that is in flight from here. It does not count as told to all: Changes
// tells it as well.
func (t *Tracker) State() Notes { return t.tell(true) }

func (t *Tracker) tell(whole bool) Notes {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seq == 0 {
		t.life = now
	}
	if !whole {
		t.told = now
	}
	t.seq++
	n := Notes{Life: t.life, Seq: t.seq, Whole: whole}
	for at, p := range t.pods {
		p.mu.Lock()
		load := p.own.plus(new(load))
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
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.origins[from]
	if o == nil || n.Life > o.life {
		t.forget(o)
		o = &origin{life: n.Life, pods: make(map[podRank]told)}
		if t.origins == nil {
			t.origins = make(map[string]*origin)
		}
		t.origins[from] = o
	}
	if n.Life < o.life || n.Seq <= o.least {
		return
	}
	o.heard, o.seq = now, max(o.seq, n.Seq)
	for _, note := range n.Pods {
		if at, l := (podRank{note.Pod, note.Rank}), note.Load; o.pods[at].seq < n.Seq {
			l = Load{int(bounded(l.Requests)), int(bounded(l.Prefill)), int(bounded(l.Decode))}
			t.hear(o, at, told{l, n.Seq, now})
		}
	}
	if n.Whole {
		o.least = n.Seq
		for at, was := range o.pods {
			if was.seq < n.Seq {
				t.hear(o, at, told{})
			}
		}
	}
}

// hear sets what an origin has told of a pod; the zero value: nothing.
func (t *Tracker) hear(o *origin, at podRank, to told) {
	is, was := to.load, o.pods[at].load
	if is != was {
		t.pod(at).others.add(int32(is.Requests-was.Requests), int32(is.Prefill-was.Prefill), int32(is.Decode-was.Decode))
	}
	if o.pods[at] = to; to.seq == 0 {
		delete(o.pods, at)
	}
}

// ForgetOrigin takes away what a gateway has told: it has gone. What it tells later counts.
func (t *Tracker) ForgetOrigin(from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(t.origins[from])
}

func (t *Tracker) forget(o *origin) {
	if o == nil {
		return
	}
	for at := range o.pods {
		t.hear(o, at, told{})
	}
	o.least = o.seq
}

// tidyOrigins forgets what was told before a time or then. A gateway tells of a pod that has
// something in flight within each MaxAge, for then its flights end. tidyOrigins returns when
// the oldest of what stays was told, or now.
func (t *Tracker) tidyOrigins(now, before int64) int64 {
	oldest := now
	for name, o := range t.origins {
		for at, was := range o.pods {
			was.heard = min(was.heard, now) // the clock may go back
			if was.heard <= before {
				o.least = max(o.least, was.seq)
				was = told{}
			} else if was.load != (Load{}) {
				oldest = min(oldest, was.heard)
			}
			t.hear(o, at, was)
		}
		if o.heard = min(o.heard, now); o.heard <= before && len(o.pods) == 0 {
			delete(t.origins, name)
		}
	}
	return oldest
}
