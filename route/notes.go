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

type podRank struct {
	name string
	rank int
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
	for name, p := range t.pods {
		for ; p != nil; p = p.next {
			p.mu.Lock()
			load := p.own.plus(new(load))
			if whole && load != (Load{}) || !whole && p.changed {
				n.Pods = append(n.Pods, Note{name, p.rank, load})
			}
			p.changed = p.changed && whole
			p.mu.Unlock()
		}
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
	if o == nil {
		o = &origin{life: n.Life, pods: make(map[podRank]told)}
		if t.origins == nil {
			t.origins = make(map[string]*origin)
		}
		t.origins[from] = o
	}
	if n.Life > o.life {
		t.forget(o)
		*o = origin{life: n.Life, pods: o.pods}
	}
	if n.Life < o.life || n.Seq <= o.least {
		return
	}
	o.heard, o.seq = now, max(o.seq, n.Seq)
	for _, note := range n.Pods {
		at, l := podRank{note.Pod, note.Rank}, note.Load
		if was := o.pods[at]; was.seq < n.Seq {
			is := Load{int(bounded(l.Requests)), int(bounded(l.Prefill)), int(bounded(l.Decode))}
			t.moveOthers(at, was.load, is)
			o.pods[at] = told{is, n.Seq, now}
		}
	}
	if !n.Whole {
		return
	}
	o.least = n.Seq
	for at, was := range o.pods {
		if was.seq < n.Seq {
			t.moveOthers(at, was.load, Load{})
			delete(o.pods, at)
		}
	}
}

// moveOthers changes what others have told of a pod. The Tracker is locked.
func (t *Tracker) moveOthers(at podRank, from, to Load) {
	if from != to {
		t.pod(at.name, at.rank).others.add(int32(to.Requests-from.Requests), int32(to.Prefill-from.Prefill), int32(to.Decode-from.Decode))
	}
}

// ForgetOrigin takes away what a gateway has told: it has gone. What it tells later counts.
func (t *Tracker) ForgetOrigin(from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.origins[from]; o != nil {
		t.forget(o)
	}
}

func (t *Tracker) forget(o *origin) {
	for at, was := range o.pods {
		t.moveOthers(at, was.load, Load{})
	}
	clear(o.pods)
	o.least = o.seq
}

// tidyOrigins forgets what was told before a time or then. A gateway tells of a pod that has
// something in flight within each MaxAge, for then its flights end. It returns when the
// oldest of the others was told, at the latest now.
func (t *Tracker) tidyOrigins(now, before int64) int64 {
	oldest := now
	for name, o := range t.origins {
		for at, was := range o.pods {
			switch {
			case was.heard <= before:
				t.moveOthers(at, was.load, Load{})
				delete(o.pods, at)
				o.least = max(o.least, was.seq)
			case was.heard > now: // the clock went back
				o.pods[at] = told{was.load, was.seq, now}
			case was.load != Load{}:
				oldest = min(oldest, was.heard)
			}
		}
		if o.heard = min(o.heard, now); o.heard <= before {
			delete(t.origins, name)
		}
	}
	return oldest
}
