package kvindex

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
)

// ingest is the memory of one ingest.
type ingest struct {
	batch    events.Batch
	convert  converter
	losses   []Loss
	from, to State // of the pod
	stats    Stats
}

func (x *Indexer) newIngest() *ingest {
	in, _ := x.ingests.Get().(*ingest)
	if in == nil {
		in = new(ingest)
	}
	in.convert.changes = in.convert.changes[:0]
	in.losses = in.losses[:0]
	in.from, in.to = 0, 0
	in.stats = Stats{}
	return in
}

// end counts, calls the hooks and gives in back; no lock is held.
func (x *Indexer) end(in *ingest, pod, model string) {
	x.count(&in.stats)
	if x.hooks.Lost != nil {
		for _, l := range in.losses {
			x.hooks.Lost(l)
		}
	}
	if x.hooks.State != nil && in.from != in.to {
		x.hooks.State(pod, model, in.from, in.to)
	}
	x.ingests.Put(in)
}

// count adds what an ingest has counted. It is the only word to all pods that an
// ingest has to wait for.
func (x *Indexer) count(s *Stats) {
	x.statsMu.Lock()
	defer x.statsMu.Unlock()
	t := &x.stats
	t.add(s.StreamStats)
	for i, n := range s.MalformedBy {
		t.MalformedBy[i] += n
	}
	t.Marked += s.Marked
	t.StoredEvents += s.StoredEvents
	t.RemovedEvents += s.RemovedEvents
	t.ClearedEvents += s.ClearedEvents
	t.UnknownEvents += s.UnknownEvents
	t.Foreign += s.Foreign
	t.Unscored += s.Unscored
	t.Scopeless += s.Scopeless
	t.Adapters += s.Adapters
	t.Counts.Add(s.Counts)
}

// count adds to the counters of a stream, which may be nil, and of all.
func (in *ingest) count(st *stream, s StreamStats) {
	if st != nil {
		st.stats.add(s)
	}
	in.stats.add(s)
}

// countMalformed counts a message that could not be read.
func (in *ingest) countMalformed(st *stream, bad error) {
	in.count(st, StreamStats{Messages: 1, Malformed: 1})
	in.stats.MalformedBy[events.ReasonOf(bad)]++
}

// applyBatch applies a batch whose order and completeness the host vouches
// for.
func (x *Indexer) applyBatch(podID, model string, b *events.Batch, in *ingest) error {
	p, err := x.lockPod(podID)
	if err != nil {
		return err
	}
	defer p.mu.Unlock()
	pm, err := x.podModel(p, model)
	if err != nil {
		return err
	}
	r, err := pm.rank(b.Rank)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", podID, err)
	}
	src := index.Source{Pod: podID, Model: model, Rank: b.Rank}
	if _, err := x.apply(pm, src, index.Cursor{}, r.lossy(), b, in); err != nil {
		return err
	}
	if r.state == StateUnknown || clears(b) {
		r.state = StateLive
	}
	r.messages++
	r.lag = lagOf(b)
	in.count(nil, StreamStats{Messages: 1})
	pm.settle(in)
	return nil
}

// lagOf is how far behind its engine a batch comes, by the clocks of both.
func lagOf(b *events.Batch) time.Duration {
	if b.Time <= 0 {
		return 0
	}
	return time.Since(time.Unix(0, int64(min(b.Time*1e9, math.MaxInt64/2))))
}

// apply converts and applies a batch, after the changes that in has already.
// partial: a part of the history of src was never seen. pod.mu is held.
func (x *Indexer) apply(pm *podModel, src index.Source, cur index.Cursor, partial bool, b *events.Batch, in *ingest) (index.Applied, error) {
	in.convert.partial = partial
	skipped := in.convert.convert(x.hash, src.Model, pm.profile, b)
	done, err := x.applyChanges(in, src, cur, in.convert.changes)
	if err != nil || done.Duplicate {
		return done, err
	}
	x.learnAdapters(pm, src, b, in)
	s := &in.stats
	s.UnknownEvents += uint64(b.Unknown)
	s.Foreign += skipped.foreign
	s.Unscored += skipped.unscored
	s.Scopeless += skipped.scopeless
	for i := range b.Events {
		switch b.Events[i].Kind {
		case events.Stored:
			s.StoredEvents++
		case events.Removed:
			s.RemovedEvents++
		case events.Cleared:
			s.ClearedEvents++
		}
	}
	return done, nil
}

// applyChanges hands changes to the index and counts what they did.
func (x *Indexer) applyChanges(in *ingest, src index.Source, cur index.Cursor, changes []index.Change) (index.Applied, error) {
	done, err := x.index.Apply(context.Background(), src, cur, changes)
	if err != nil {
		return done, x.failed(fmt.Errorf("kvindex: pod %q: model %q: rank %d: %w", src.Pod, src.Model, src.Rank, err))
	}
	in.stats.Counts.Add(done.Counts)
	return done, nil
}

// clears reports whether b empties the cache: what is known from then on is
// all there is.
func clears(b *events.Batch) bool {
	return slices.ContainsFunc(b.Events, func(e events.Event) bool { return e.Kind == events.Cleared })
}

// IngestMessage applies a message of a transport with sequence numbers. It
// drops what came before, notices what is missing and engines that started
// anew. What the ranks of a stream held before an engine started anew is
// forgotten; what they held before a loss too, unless WithLossPolicy says
// otherwise, because some of it may have gone. A rank that another stream fed
// before is forgotten as well.
//
// A message that comes again is dropped, however often and however late it
// does: a queue may redeliver whatever it has.
//
// The receipt says what became of the message. A malformed one is an error
// that wraps ErrMalformed, and a loss like any other: its number is used up.
// After any other error the message may be offered again.
func (x *Indexer) IngestMessage(m Message) (Receipt, error) {
	if err := x.check(m.Pod, m.Model); err != nil {
		return Receipt{}, err
	}
	if m.Seq == math.MaxUint64 {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: sequence number %d is a mark, not a message", m.Pod, m.Stream, m.Seq)
	}
	m.Stream = streamName(m.Stream)
	in := x.newIngest()
	defer x.end(in, m.Pod, m.Model)
	bad := events.Decode(m.Payload, &in.batch)
	return x.ingestMessage(&m, bad, in)
}

// streamName names a stream that has no name: "" is of plain Ingest.
func streamName(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func (x *Indexer) ingestMessage(m *Message, bad error, in *ingest) (Receipt, error) {
	if bad != nil && x.pod(m.Pod) == nil {
		// Nobody is made known by what cannot be read.
		in.losses = append(in.losses, x.lossOf(m, -1, events.Verdict{}, bad))
		in.countMalformed(nil, bad)
		return Receipt{}, readError(m, bad)
	}
	p, err := x.lockPod(m.Pod)
	if err != nil {
		return Receipt{}, err
	}
	defer p.mu.Unlock()
	pm, err := x.podModel(p, m.Model)
	if err != nil {
		return Receipt{}, err
	}
	defer pm.settle(in)
	st, err := pm.stream(m.Stream)
	if err != nil {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: %w", m.Pod, err)
	}
	var t target
	if bad == nil {
		if t, err = x.target(m, pm, st, in); err != nil {
			return Receipt{}, err
		}
	}
	a := events.Arrival{Seq: m.Seq, Digest: events.Digest(m.Payload), Decoded: bad == nil, Replayed: m.Replayed}
	if bad == nil {
		a.Time = in.batch.Time
	}
	v := st.seq.Check(a)
	if m.Hold && (v.Gap.Lost || v.Missed || v.Restarted) {
		return hold(m, st, v, in), nil
	}
	return x.deal(m, bad, pm, st, t, a, v, in)
}

// hold answers a message that is to wait until the engine was asked.
func hold(m *Message, st *stream, v events.Verdict, in *ingest) Receipt {
	if v.Gap.Lost && !st.held {
		in.count(st, StreamStats{Gaps: 1})
	}
	st.held, st.heldSeq = true, m.Seq
	if v.Missed {
		v.Gap = Gap{From: 0, To: m.Seq - 1, Lost: true}
	}
	return Receipt{Held: true, Gap: v.Gap, Restarted: v.Restarted}
}

// deal does what the verdict on a message says.
func (x *Indexer) deal(m *Message, bad error, pm *podModel, st *stream, t target, a events.Arrival, v events.Verdict, in *ingest) (Receipt, error) {
	var done index.Applied
	var err error
	switch {
	case v.Duplicate:
	case bad != nil:
		err = x.ingestUnreadable(m, bad, pm, st, v, in)
	default:
		done, err = x.ingestReadable(m, pm, st, t, v, in)
	}
	if err != nil {
		return Receipt{}, err
	}
	st.seq.Advance(a, v)
	if v.Duplicate || done.Duplicate { // or somebody else has applied it
		in.count(st, StreamStats{Messages: 1, Duplicates: 1})
		st.release(m)
		return Receipt{Duplicate: true}, nil
	}
	in.countVerdict(m, st, v)
	st.release(m)
	receipt := Receipt{Applied: bad == nil, Gap: v.Gap, Restarted: v.Restarted}
	if bad != nil {
		in.countMalformed(st, bad)
		return receipt, readError(m, bad)
	}
	in.count(st, StreamStats{Messages: 1})
	return receipt, nil
}

// target is the rank that a message is for.
type target struct {
	src   index.Source
	rank  *rank
	moved bool // what the rank holds came by another way
}

func (x *Indexer) target(m *Message, pm *podModel, st *stream, in *ingest) (t target, err error) {
	b := &in.batch
	t.src = index.Source{Pod: m.Pod, Model: m.Model, Rank: b.Rank}
	if !b.HasRank && len(st.ranks) > 0 {
		t.src.Rank = st.ranks[0]
	}
	if t.rank, err = pm.rank(t.src.Rank); err != nil {
		return t, fmt.Errorf("kvindex: pod %q: stream %q: %w", m.Pod, m.Stream, err)
	}
	t.moved, err = x.joins(st, t.rank, t.src, m.Stream, in)
	return t, err
}

// ingestReadable applies a decoded message to its rank.
func (x *Indexer) ingestReadable(m *Message, pm *podModel, st *stream, t target, v events.Verdict, in *ingest) (index.Applied, error) {
	r := t.rank
	lost := v.Gap.Lost || v.Restarted
	ours := lost && r.stream == m.Stream
	kept := ours && x.keeps(v)
	wiped := t.moved || ours && !kept
	partial := lost || v.Missed || r.state == StateUnknown && st.partial || r.lossy()
	cur := st.cursor(m, v, in.batch.Time)
	if lost {
		if err := x.lose(m, pm, st, t.src.Rank, cur, v, nil, in); err != nil {
			return index.Applied{}, err
		}
	}
	if wiped || r.state == StateUnknown && r.stream == "" && !x.ownsIndex { // another may have left something
		in.convert.changes = append(in.convert.changes, index.Change{Op: index.OpClear})
	}
	done, err := x.apply(pm, t.src, cur, partial, &in.batch, in)
	if err != nil || done.Duplicate {
		return done, err
	}
	pm.bind(r, t.src.Rank, m.Stream)
	r.next, r.lag = v.Next, lagOf(&in.batch)
	st.judge(v, lost)
	switch {
	case clears(&in.batch):
		r.state = StateLive
	case kept:
		r.state = StateUncertain
	case wiped || r.state == StateUnknown:
		r.state = StateLive
		if st.partial {
			r.state = StatePartial
		}
	}
	if wiped || kept {
		in.losses = append(in.losses, x.lossOf(m, t.src.Rank, v, nil))
	} else if lost && len(in.losses) == 0 {
		in.losses = append(in.losses, x.lossOf(m, -1, v, nil))
	}
	return done, nil
}

// ingestUnreadable deals with a message that could not be decoded: its number
// is used up, and what it said is lost.
func (x *Indexer) ingestUnreadable(m *Message, bad error, pm *podModel, st *stream, v events.Verdict, in *ingest) error {
	if err := x.lose(m, pm, st, -1, st.cursor(m, v, 0), v, bad, in); err != nil {
		return err
	}
	st.judge(v, true)
	st.partial = true
	if len(st.ranks) == 0 {
		in.losses = append(in.losses, x.lossOf(m, -1, v, bad))
	}
	return nil
}

func readError(m *Message, bad error) error {
	return fmt.Errorf("kvindex: pod %q: stream %q: message %d: %w", m.Pod, m.Stream, m.Seq, bad)
}

// release is told that a message was dealt with. It ends the wait of a held one
// when that came, by itself or by a replay.
func (st *stream) release(m *Message) {
	st.interrupted = false
	if next, _ := st.seq.Next(); next > st.heldSeq || m.Seq >= st.heldSeq {
		st.held = false
	}
}

// cursor is where the stream stands behind a message.
func (st *stream) cursor(m *Message, v events.Verdict, time float64) index.Cursor {
	if !v.Restarted {
		time = max(time, st.seq.Time())
	}
	return index.Cursor{Stream: m.Stream, Epoch: v.Epoch, Next: v.Next, Time: time}
}

// joins prepares a rank for a stream that has not fed it. moved: what the rank
// holds came by another way, and what that has missed is not known. The index
// is asked how far the stream had come, for it may outlive the Indexer, or
// have another that writes, or the rank may come back to the stream.
func (x *Indexer) joins(st *stream, r *rank, src index.Source, name string, in *ingest) (moved bool, err error) {
	if r.stream == name {
		return false, nil
	}
	cur, err := x.index.Cursor(context.Background(), src, name)
	if err != nil {
		return false, x.failed(fmt.Errorf("kvindex: pod %q: model %q: rank %d: %w", src.Pod, src.Model, src.Rank, err))
	}
	moved = r.state != StateUnknown
	if _, heard := st.seq.Next(); heard || cur.Epoch < st.seq.Epoch() || cur == (index.Cursor{}) {
		return moved, nil
	}
	st.seq.Resume(cur.Epoch, cur.Next, cur.Time)
	if cur.Next == 0 { // its engine started anew, and nothing was heard since
		st.seq.Await()
		return moved, nil
	}
	st.partial = true
	if !moved {
		r.stream = name // a gap is its loss too
		st.ranks = append(st.ranks, src.Rank)
	}
	return moved, nil
}

// bind makes a stream the one that feeds a rank.
func (pm *podModel) bind(r *rank, n int, name string) {
	if r.stream == name {
		return
	}
	if old := pm.streams[r.stream]; old != nil {
		old.ranks = slices.DeleteFunc(old.ranks, func(o int) bool { return o == n })
		if len(old.ranks) == 0 {
			delete(pm.streams, r.stream)
		}
	}
	r.stream = name
	pm.streams[name].ranks = append(pm.streams[name].ranks, n)
}

// keeps reports whether a loss leaves the blocks. An engine that started anew
// has none of them.
func (x *Indexer) keeps(v events.Verdict) bool { return x.keep && !v.Restarted }

// lose settles by policy what the ranks of a stream hold, but for one whose
// batch follows.
func (x *Indexer) lose(m *Message, pm *podModel, st *stream, but int, cur index.Cursor, v events.Verdict, bad error, in *ingest) error {
	for _, n := range st.ranks {
		if n == but {
			continue
		}
		if x.keeps(v) {
			pm.ranks[n].state = StateUncertain
		} else if err := x.forget(in, pm, index.Source{Pod: m.Pod, Model: m.Model, Rank: n}, cur, StatePartial); err != nil {
			return err
		}
		in.losses = append(in.losses, x.lossOf(m, n, v, bad))
	}
	return nil
}

// forget drops what a rank holds.
func (x *Indexer) forget(in *ingest, pm *podModel, src index.Source, cur index.Cursor, then State) error {
	if _, err := x.applyChanges(in, src, cur, []index.Change{{Op: index.OpClear}}); err != nil {
		return err
	}
	pm.ranks[src.Rank].state = then
	return nil
}

// judge keeps partial after a message.
func (st *stream) judge(v events.Verdict, lost bool) {
	if v.Restarted {
		st.partial = v.Missed
	} else if v.Missed || lost {
		st.partial = true
	}
}

func (pm *podModel) stream(name string) (*stream, error) {
	st := pm.streams[name]
	if st == nil {
		if len(pm.streams) >= MaxStreams && !pm.dropStream() {
			return nil, fmt.Errorf("stream %q is one more than the %d that a pod may have", name, MaxStreams)
		}
		st = new(stream)
		pm.streams[name] = st
	}
	return st, nil
}

// dropStream makes room for a stream by forgetting one that feeds no rank.
func (pm *podModel) dropStream() bool {
	for name, st := range pm.streams {
		if len(st.ranks) == 0 {
			delete(pm.streams, name)
			return true
		}
	}
	return false
}

func (in *ingest) countVerdict(m *Message, st *stream, v events.Verdict) {
	var s StreamStats
	if v.Gap.Lost {
		s.Missing = v.Gap.To - v.Gap.From + 1
		if !st.held { // else it was counted then
			s.Gaps = 1
		}
		if m.Replayed {
			s.PassedOver = s.Missing
		}
	}
	if v.Restarted {
		s.Restarts = 1
	}
	if m.Replayed {
		s.Replayed = 1
	}
	if s != (StreamStats{}) {
		in.count(st, s)
	}
}

func (x *Indexer) lossOf(m *Message, rank int, v events.Verdict, bad error) Loss {
	l := Loss{Pod: m.Pod, Model: m.Model, Stream: m.Stream, Rank: rank, Gap: v.Gap, Err: bad}
	switch {
	case v.Restarted:
		l.Cause = LossRestart
	case v.Gap.Lost:
		l.Cause = LossGap
		l.Replayed = m.Replayed
	case bad != nil:
		l.Cause = LossMalformed
	default:
		l.Cause = LossMoved
	}
	l.Kept = rank >= 0 && x.keeps(v) && l.Cause != LossMoved
	return l
}

// StreamNext returns the number that is due on a stream, and whether anything
// was heard of it since the engine behind it started.
func (x *Indexer) StreamNext(podID, model, stream string) (next uint64, heard bool) {
	p := x.pod(podID)
	if p == nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pm := p.models[model]; pm != nil && pm.streams[streamName(stream)] != nil {
		return pm.streams[streamName(stream)].seq.Next()
	}
	return 0, false
}

// StreamInterrupted says that the connection of a stream is lost: until its next
// message nobody knows whether what its ranks hold is still there, so that they
// are StateUncertain. A stream never heard of is no error.
func (x *Indexer) StreamInterrupted(podID, model, stream string) {
	p := x.pod(podID)
	if p == nil || x.closed.Load() {
		return
	}
	in := x.newIngest()
	defer x.end(in, podID, model)
	p.mu.Lock()
	defer p.mu.Unlock()
	pm := p.models[model]
	if p.removed || pm == nil || pm.streams[streamName(stream)] == nil {
		return
	}
	st := pm.streams[streamName(stream)]
	st.interrupted, st.held = true, false // what was held is gone with the connection
	pm.settle(in)
}

// StreamRestarted says that the engine behind a stream has started anew, or no
// longer knows what was applied: what its ranks held is forgotten, and its next
// message is the first that is heard of it. A stream never heard of is no
// error.
func (x *Indexer) StreamRestarted(podID, model, stream string) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest()
	defer x.end(in, podID, model)
	return x.streamRestarted(podID, model, streamName(stream), in)
}

func (x *Indexer) streamRestarted(podID, model, name string, in *ingest) error {
	p := x.pod(podID)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pm := p.models[model]
	if p.removed || pm == nil || pm.streams[name] == nil {
		return nil
	}
	defer pm.settle(in)
	st := pm.streams[name]
	epoch := st.seq.Epoch() + 1
	for _, n := range st.ranks {
		src := index.Source{Pod: podID, Model: model, Rank: n}
		if err := x.forget(in, pm, src, index.Cursor{Stream: name, Epoch: epoch}, StateUnknown); err != nil {
			return err
		}
		in.losses = append(in.losses, Loss{Pod: podID, Model: model, Stream: name, Rank: n, Cause: LossRestart})
	}
	st.seq.Restart()
	st.partial, st.held, st.interrupted = false, false, false
	in.count(st, StreamStats{Restarts: 1})
	return nil
}

// MarkLost says that the host knows of a loss: what the rank of the pod holds,
// for every model, is forgotten, or kept as WithLossPolicy says. A rank never
// heard is an error.
func (x *Indexer) MarkLost(podID string, rank int) error {
	if x.closed.Load() {
		return ErrClosed
	}
	p := x.pod(podID)
	if p == nil {
		return fmt.Errorf("kvindex: pod %q was never heard", podID)
	}
	marked := false
	for _, model := range p.modelNames() {
		found, err := x.markLost(p, model, rank)
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

func (x *Indexer) markLost(p *pod, model string, n int) (found bool, err error) {
	in := x.newIngest()
	defer x.end(in, p.name, model)
	p.mu.Lock()
	defer p.mu.Unlock()
	pm := p.models[model]
	r := pm.ranks[n]
	if p.removed || r == nil {
		return false, nil
	}
	defer pm.settle(in)
	if x.keep {
		r.state = StateUncertain
	} else if err := x.forget(in, pm, index.Source{Pod: p.name, Model: model, Rank: n}, index.Cursor{}, StatePartial); err != nil {
		return true, err
	}
	in.stats.Marked++
	in.losses = append(in.losses, Loss{Pod: p.name, Model: model, Stream: r.stream, Rank: n, Cause: LossMarked, Kept: x.keep})
	return true, nil
}
