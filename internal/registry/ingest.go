package registry

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Ingest implements Indexer.Ingest.
func (x *Registry) Ingest(podID, model string, payload []byte) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	return in.unnumbered(events.Decode(payload, in.batch))
}

// ApplyBatch implements Indexer.ApplyBatch.
func (x *Registry) ApplyBatch(podID, model string, b *events.Batch) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	in.batch = b
	return in.unnumbered(b.Validate())
}

// IngestMessage implements Indexer.IngestMessage.
func (x *Registry) IngestMessage(m events.Message) (events.Receipt, error) {
	if err := x.check(m.Pod, m.Model); err != nil {
		return events.Receipt{}, err
	}
	if m.Seq == math.MaxUint64 && m.Err == nil {
		return events.Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: sequence number %d is reserved", m.Pod, m.Stream, m.Seq)
	}
	m.Stream = streamName(m.Stream)
	if err := podstate.CheckStream(m.Stream); err != nil { // before the pod is registered
		return events.Receipt{}, fmt.Errorf("kvindex: pod %q: %w", m.Pod, err)
	}
	d := delivery{ingest: x.newIngest(m.Pod, m.Model), m: m}
	defer d.end()
	switch d.bad = m.Err; {
	case m.Err == nil:
		d.bad = events.Decode(m.Payload, d.batch)
	case !errors.Is(m.Err, events.ErrMalformed):
		d.bad = fmt.Errorf("%w: %w", events.ErrMalformed, m.Err)
	}
	return d.deliver()
}

// MarkLost implements Indexer.MarkLost.
func (x *Registry) MarkLost(podID string, rank int) error {
	if x.closed.Load() {
		return ErrClosed
	}
	p := x.pod(podID)
	if p == nil {
		return fmt.Errorf("kvindex: pod %q has not reported", podID)
	}
	marked := false
	for _, model := range p.modelNames() {
		found, err := x.markLost(podID, model, rank)
		if err != nil {
			return err
		}
		marked = marked || found
	}
	if !marked {
		return fmt.Errorf("kvindex: pod %q has no rank %d", podID, rank)
	}
	return nil
}

func (p *pod) modelNames() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.models))
}

func (x *Registry) markLost(podID, model string, n int) (found bool, err error) {
	in := x.newIngest(podID, model)
	defer in.end()
	if !in.find() {
		return false, nil
	}
	defer in.leave()
	r := in.pm.Ranks[n]
	if r == nil {
		return false, nil
	}
	defer in.settle()
	if err := in.lose(r, lossEvent(x.Keep), index.Cursor{}, 0); err != nil {
		in.setLate(r, err)
		r.Uncleared = r.Uncleared || !x.Keep
		return true, err
	}
	in.stats.Marked++
	l := Loss{Pod: podID, Model: model, Rank: n, Cause: view.LossMarked, Kept: x.Keep}
	if r.Stream != nil {
		l.Stream = r.Stream.Name
	}
	in.losses = append(in.losses, l)
	return true, nil
}

// ingest is one call that changes a pod. Its counts and losses are reported at the end, when
// no lock is held. Its memory is used again.
type ingest struct {
	x          *Registry
	pod, model string

	// locked, pm and now are set by enter and find. locked is the pod, locked until leave.
	locked *pod
	pm     *podModel
	now    time.Time

	batch   *events.Batch // the batch to apply: decoded, or the host's
	decoded events.Batch
	convert engine.Converter

	stats    Counts
	losses   []Loss
	from, to view.State // of the pod
	delayed  bool       // other processes do not see the changes yet

	// lower is the stream of the message, if it reports lower tiers alone; else nil.
	lower *podstate.Stream

	confirmation confirmation
}

func (x *Registry) newIngest(pod, model string) *ingest {
	in, _ := x.ingests.Get().(*ingest)
	if in == nil {
		in = &ingest{x: x}
		in.convert.Hash = x.hash
		in.confirmation.query.Keys = in.confirmation.prompt.KeysIn
	}
	in.pod, in.model = pod, model
	in.decoded.Events = nil // left by another call
	in.batch = &in.decoded
	in.convert.Changes = in.convert.Changes[:0]
	in.stats = Counts{}
	in.losses = in.losses[:0]
	in.from, in.to, in.delayed, in.lower = 0, 0, false, nil
	return in
}

// enter locks the pod and finds its podModel. It registers both if needed.
func (in *ingest) enter() (err error) {
	p, err := in.x.lockPod(in.pod)
	if err != nil {
		return err
	}
	in.x.makeRoom(p, in.model)
	profile, err := in.x.profileFor(p, in.model, in.batch)
	if err != nil {
		p.unlock()
		return err
	}
	in.locked, in.pm, in.now = p, in.x.podModel(p, in.model, profile), time.Now()
	return nil
}

// find is enter without registering. It returns false if this Indexer does not feed the pod for
// the model.
func (in *ingest) find() bool {
	in.locked, in.pm = in.x.lockRegistered(in.pod, in.model)
	in.now = time.Now()
	return in.pm != nil
}

func (in *ingest) leave() { in.locked.unlock() }

// settle publishes the states of the pod, notes its losses, and publishes its changed notes.
func (in *ingest) settle() {
	in.from, in.to = in.pm.settle()
	for i := range in.losses {
		l := &in.losses[i]
		if r := in.pm.Ranks[l.Rank]; r != nil && l.Cause != view.LossContested && !l.Tiers {
			r.Lost = view.LastLoss{Cause: l.Cause, Kept: l.Kept, At: in.now}
		}
	}
	in.publish()
}

// count adds to the counters of a stream, which may be nil, and to those of the Registry.
func (in *ingest) count(st *podstate.Stream, s stats.Traffic) {
	if st != nil {
		addCounters(&st.Stats, &s)
	}
	addCounters(&in.stats.Traffic, &s)
}

// malformed counts the reason why a payload could not be read, and returns the counts of the
// message.
func (in *ingest) malformed(bad error) stats.Traffic {
	in.stats.malformed[slices.Index(fault.Reasons[:], fault.Reason(bad))]++
	return stats.Traffic{Messages: 1, Malformed: 1}
}

// end counts, calls the hooks and puts in back into the pool; no lock is held. statsMu is
// the only lock for which an ingest may have to wait for another pod's.
func (in *ingest) end() {
	x := in.x
	x.statsMu.Lock()
	addCounters(&x.stats, &in.stats)
	x.statsMu.Unlock()
	if x.Lost != nil {
		for _, l := range in.losses {
			x.Lost(l)
		}
	}
	if x.State != nil && in.from != in.to {
		x.State(in.pod, in.model, in.from, in.to)
	}
	in.batch, in.locked, in.pm, in.convert.Recent = nil, nil, nil, nil
	x.ingests.Put(in)
}

// addCounters adds the counters of s to those of t. It reads both structs as words, so a
// new counter is named only in its struct; TestCountersAreWords checks that they have no
// other fields. A sum stops at the largest number: a pod may claim any sequence numbers, so Missing and
// PassedOver could overflow.
func addCounters[T Counts | stats.Traffic](t, s *T) {
	sum, more := words(t), words(s)
	for i, n := range more {
		sum[i] += min(n, math.MaxUint64-sum[i])
	}
}

func words[T Counts | stats.Traffic](t *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t)), unsafe.Sizeof(*t)/8)
}
