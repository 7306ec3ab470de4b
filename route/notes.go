// Gateways report figures, not changes: sums of changes would need each note exactly once. The seq
// shows which of two notes is newer, the life shows a restart, and a whole state ends everything
// that it does not name.
//
// Notes on the wire, all numbers as varints of encoding/binary:
//
//	version  1
//	whole    1: pods without a note have nothing in flight; 0: they are as before
//	life     when the Tracker made its first notes; those of an earlier life are void; signed
//	seq      grows with each notes of a life, from 1
//	number of the notes that follow, each of a rank of a pod
//	  length of the pod's name, name
//	  rank, signed
//	  requests, prefill, decode, each up to math.MaxInt32

package route

import (
	"encoding/binary"
	"fmt"
	"math"
)

// notes is the load that one gateway reports to the others.
type notes struct {
	life  int64
	seq   uint64
	whole bool
	pods  []note // if a rank has two notes, the first one counts
}

// A note is the load of a gateway in flight at a rank of a pod.
type note struct {
	at   podRank
	load Load // each figure is between 0 and math.MaxInt32
}

const (
	notesVersion = 1
	// maxNotes bounds the bytes that Merge reads: those of 300,000 ranks with names of 40 bytes.
	maxNotes = 16 << 20
	minNote  = 5 // bytes of a note on the wire: one of each number
)

func (n *notes) encode() []byte {
	whole := uint64(0)
	if n.whole {
		whole = 1
	}
	b := make([]byte, 0, 32+64*len(n.pods))
	b = binary.AppendUvarint(b, notesVersion)
	b = binary.AppendUvarint(b, whole)
	b = binary.AppendVarint(b, n.life)
	b = binary.AppendUvarint(b, n.seq)
	b = binary.AppendUvarint(b, uint64(len(n.pods)))
	for _, p := range n.pods {
		b = binary.AppendUvarint(b, uint64(len(p.at.name)))
		b = append(b, p.at.name...)
		b = binary.AppendVarint(b, int64(p.at.rank))
		for _, figure := range []int{p.load.Requests, p.load.Prefill, p.load.Decode} {
			b = binary.AppendUvarint(b, uint64(bounded(figure)))
		}
	}
	return b
}

func decodeNotes(data []byte) (n notes, err error) {
	if len(data) > maxNotes {
		return n, fmt.Errorf("%d bytes, %d at most", len(data), maxNotes)
	}
	r := noteReader{data: data}
	if v := r.number("version", math.MaxUint64); r.err == nil && v != notesVersion {
		return n, fmt.Errorf("version %d, want %d", v, notesVersion)
	}
	n.whole = r.number("whole", 1) == 1
	n.life = r.signed("life", math.MaxInt64)
	n.seq = r.number("seq", math.MaxUint64)
	for left := r.number("number of notes", uint64(len(data)/minNote)); left > 0 && r.err == nil; left-- {
		var p note
		p.at.name = r.name()
		p.at.rank = int(r.signed("rank", math.MaxInt))
		for _, to := range []*int{&p.load.Requests, &p.load.Prefill, &p.load.Decode} {
			*to = int(r.number("load", math.MaxInt32))
		}
		n.pods = append(n.pods, p)
	}
	if r.err == nil && r.at < len(data) {
		r.fail("end")
	}
	return n, r.err
}

// A noteReader reads the encoding of notes. After an error it returns zeros.
type noteReader struct {
	data []byte
	at   int // how much of data was read
	err  error
}

func (r *noteReader) fail(part string) {
	if r.err == nil {
		r.err = fmt.Errorf("no valid %s at byte %d of %d", part, r.at, len(r.data))
	}
}

func (r *noteReader) number(part string, most uint64) uint64 {
	v, n := binary.Uvarint(r.data[r.at:])
	if n <= 0 || v > most {
		r.fail(part)
	}
	if r.err != nil {
		return 0
	}
	r.at += n
	return v
}

// signed reads a number from -most-1 to most.
func (r *noteReader) signed(part string, most uint64) int64 {
	v := r.number(part, 2*most+1)
	return int64(v>>1) ^ -int64(v&1)
}

func (r *noteReader) name() string {
	n := int(r.number("length of a name", maxNotes))
	if n > len(r.data)-r.at {
		r.fail("name")
		return ""
	}
	r.at += n
	return string(r.data[r.at-n : r.at])
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
	void     uint64 // notes up to this seq are void: a State was newer, or all was forgotten
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

// Changes returns the load in flight from here at the ranks whose load has changed since the
// last call. With none it is a few bytes, which show that this gateway runs, and end the load of
// an earlier Tracker. A host sends the bytes to all other gateways, ten times a second for
// example, and each of them passes the bytes to Merge. State goes to a gateway that requests
// it, and to all now and then.
//
// The bytes have the load that is in flight now, not the change. So they may be lost, and may
// come twice, late, and in another order: those that were made last count. The next Changes
// that have the rank, the next State, or a MaxAge makes up for a loss.
func (t *Tracker) Changes() []byte { return t.notes(false) }

// State returns all that is in flight from here. Changes returns it, too, because State may
// not go to all gateways.
func (t *Tracker) State() []byte { return t.notes(true) }

func (t *Tracker) notes(whole bool) []byte {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seq == 0 {
		t.life = now
	}
	t.seq++
	if !whole {
		t.lastChanges = now
	}
	n := notes{life: t.life, seq: t.seq, whole: whole}
	for at, p := range t.pods {
		p.mu.Lock()
		load := p.own.plus(new(load))
		if whole && load != (Load{}) || !whole && p.changed {
			n.pods = append(n.pods, note{at, load})
		}
		p.changed = p.changed && whole
		p.mu.Unlock()
	}
	return n.encode()
}

// Merge applies the Changes or the State of another gateway, which the host names. No gateway
// merges its own. If the bytes are not valid, or have more than 16 MiB, nothing is applied; the
// error says where. Empty bytes change nothing.
func (t *Tracker) Merge(from string, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	n, err := decodeNotes(data)
	if err != nil {
		return fmt.Errorf("route: notes of gateway %q: %w", from, err)
	}
	t.merge(from, &n)
	return nil
}

func (t *Tracker) merge(from string, n *notes) {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	name := originName{gateway: from}
	o := t.origins[name]
	if o == nil || n.life > o.life {
		t.forget(o)
		o = t.origin(name, n.life)
	}
	if n.life < o.life || n.seq <= o.void {
		return
	}
	o.received, o.seq = now, max(o.seq, n.seq)
	for _, p := range n.pods {
		if o.pods[p.at].seq < n.seq {
			t.replace(o, p.at, lastNote{p.load, n.seq, now})
		}
	}
	if n.whole {
		o.void = n.seq
		for at, was := range o.pods {
			if was.seq < n.seq {
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

// ForgetOrigin removes the load that a gateway has reported. What it sends later counts.
// Call it when the gateway is gone.
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
