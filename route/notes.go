// Gateways report figures, not changes: sums of changes would need each note exactly once. Seq
// shows which of two notes is newer, Life shows a restart, and a whole state ends everything
// that it does not name.

package route

// Notes is the load that one gateway reports to the others. A host sends the Changes of its
// Tracker to all other gateways, ten times a second for example. It sends its State to a
// gateway that requests it, and to all now and then. The receiving host passes Notes to Merge,
// with a name of the gateway that sent them. No gateway merges its own.
//
// A Note has the load that is in flight now, not the change. So Notes may be lost, and may
// come twice, late, and in another order: the note that was sent last counts. The next note
// about the pod, the next State, or a MaxAge makes up for a lost note.
type Notes struct {
	Life  int64  // when the Tracker made its first Notes; those of an earlier Tracker of a gateway are void
	Seq   uint64 // grows with each Notes of a life, from 1
	Whole bool   // pods without a Note have nothing in flight
	Pods  []Note // if a rank has two Notes, the first one counts
}

// A Note is the load of a gateway in flight at a rank of a pod.
type Note struct {
	Pod  string
	Rank int
	Load Load // each figure is kept between 0 and math.MaxInt32
}

// An originName names a gateway, or all engines: those of Reported.
type originName struct {
	gateway string
	engines bool
}

// origin is another gateway, or all engines.
type origin struct {
	life     int64
	seq      uint64 // the highest
	void     uint64 // Notes up to this Seq are void: a State was newer, or all was forgotten
	received int64
	pods     map[podRank]lastNote
}

// A lastNote is the newest note of an origin about a pod. An empty load stays for a MaxAge, so
// that a late note does not count.
type lastNote struct {
	load     Load
	seq      uint64
	received int64
}

// Changes returns the pods whose load has changed since the last call, for all other gateways.
func (t *Tracker) Changes() Notes { return t.notes(false) }

// State returns all that is in flight from here. Changes returns it, too, because State may
// not go to all gateways.
func (t *Tracker) State() Notes { return t.notes(true) }

func (t *Tracker) notes(whole bool) Notes {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seq == 0 {
		t.life = now
	}
	if !whole {
		t.lastChanges = now
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

// Merge applies the Notes of another gateway. The host names the gateways.
func (t *Tracker) Merge(from string, n Notes) {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	name := originName{gateway: from}
	o := t.origins[name]
	if o == nil || n.Life > o.life {
		t.forget(o)
		o = t.origin(name, n.Life)
	}
	if n.Life < o.life || n.Seq <= o.void {
		return
	}
	o.received, o.seq = now, max(o.seq, n.Seq)
	for _, note := range n.Pods {
		if at, l := (podRank{note.Pod, note.Rank}), note.Load; o.pods[at].seq < n.Seq {
			l = Load{int(bounded(l.Requests)), int(bounded(l.Prefill)), int(bounded(l.Decode))}
			t.replace(o, at, lastNote{l, n.Seq, now})
		}
	}
	if n.Whole {
		o.void = n.Seq
		for at, was := range o.pods {
			if was.seq < n.Seq {
				t.replace(o, at, lastNote{})
			}
		}
	}
}

// origin adds an origin, or replaces it.
func (t *Tracker) origin(name originName, life int64) *origin {
	if t.origins == nil {
		t.origins = make(map[originName]*origin)
	}
	o := &origin{life: life, pods: make(map[podRank]lastNote)}
	t.origins[name] = o
	return o
}

// replace sets the last note of an origin about a pod; the zero value: none.
func (t *Tracker) replace(o *origin, at podRank, to lastNote) {
	is, was := to.load, o.pods[at].load
	if is != was {
		t.pod(at).others.add(int32(is.Requests-was.Requests), int32(is.Prefill-was.Prefill), int32(is.Decode-was.Decode))
	}
	if o.pods[at] = to; to.seq == 0 {
		delete(o.pods, at)
	}
}

// ForgetOrigin removes the load that a gateway has reported. Its later Notes count. Call it
// when the gateway is gone.
func (t *Tracker) ForgetOrigin(from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(t.origins[originName{gateway: from}])
}

func (t *Tracker) forget(o *origin) {
	if o == nil {
		return
	}
	for at := range o.pods {
		t.replace(o, at, lastNote{})
	}
	o.void = o.seq
}

// tidyOrigins forgets the notes that were received at before or earlier. A gateway sends a
// note about a busy pod within each MaxAge, because its flights end by then. tidyOrigins
// returns when the oldest remaining note was received, or now.
func (t *Tracker) tidyOrigins(now, before int64) int64 {
	oldest := now
	for name, o := range t.origins {
		for at, was := range o.pods {
			was.received = min(was.received, now) // the clock may go back
			if was.received <= before {
				o.void = max(o.void, was.seq)
				was = lastNote{}
			} else if was.load != (Load{}) {
				oldest = min(oldest, was.received)
			}
			t.replace(o, at, was)
		}
		if o.received = min(o.received, now); o.received <= before && len(o.pods) == 0 {
			delete(t.origins, name)
		}
	}
	return oldest
}
