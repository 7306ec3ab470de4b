package kvindex

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
)

// ingest is the memory of one ingest.
type ingest struct {
	batch   events.Batch
	convert converter
	losses  []Loss
}

func (x *Indexer) newIngest() *ingest {
	in, _ := x.ingests.Get().(*ingest)
	if in == nil {
		in = new(ingest)
	}
	in.convert.changes = in.convert.changes[:0]
	in.losses = in.losses[:0]
	return in
}

// count adds the counters of s.
func (x *Indexer) count(s Stats) {
	x.statsMu.Lock()
	defer x.statsMu.Unlock()
	t := &x.stats
	t.Messages += s.Messages
	t.Malformed += s.Malformed
	t.Duplicates += s.Duplicates
	t.Gaps += s.Gaps
	t.Missing += s.Missing
	t.Restarts += s.Restarts
	t.Marked += s.Marked
	t.UnknownEvents += s.UnknownEvents
	t.Foreign += s.Foreign
	t.Unscored += s.Unscored
	t.Scopeless += s.Scopeless
	t.Adapters += s.Adapters
	t.Counts.Add(s.Counts)
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
	if _, err := x.apply(pm, src, index.Cursor{}, r.state == StatePartial, b, in); err != nil {
		return err
	}
	if r.state == StateUnknown || clears(b) {
		r.state = StateLive
	}
	pm.settle()
	return nil
}

// apply converts and applies a batch, after the changes that in has already.
// partial: a part of the history of src was never seen. pod.mu is held.
func (x *Indexer) apply(pm *podModel, src index.Source, cur index.Cursor, partial bool, b *events.Batch, in *ingest) (index.Applied, error) {
	copies := pm.copies
	if partial && copies == CopiesGuarded {
		copies = index.CopiesPartial
	}
	skipped := in.convert.convert(x.hash, src.Model, copies, b)
	done, err := x.applyChanges(src, cur, in.convert.changes)
	if err != nil || done.Duplicate {
		return done, err
	}
	x.learnAdapters(pm, src, b)
	x.count(Stats{
		Messages:      1,
		UnknownEvents: uint64(b.Unknown),
		Foreign:       skipped.foreign,
		Unscored:      skipped.unscored,
		Scopeless:     skipped.scopeless,
	})
	return done, nil
}

// applyChanges hands changes to the index and counts what they did.
func (x *Indexer) applyChanges(src index.Source, cur index.Cursor, changes []index.Change) (index.Applied, error) {
	done, err := x.index.Apply(context.Background(), src, cur, changes)
	if err != nil {
		return done, x.failed(fmt.Errorf("kvindex: pod %q: model %q: rank %d: %w", src.Pod, src.Model, src.Rank, err))
	}
	x.count(Stats{Counts: done.Counts})
	return done, nil
}

// clears reports whether b empties the cache: what is known from then on is
// all there is.
func clears(b *events.Batch) bool {
	return slices.ContainsFunc(b.Events, func(e events.Event) bool { return e.Kind == events.Cleared })
}

// IngestMessage applies a message of a transport with sequence numbers. It
// drops what came before, notices what is missing and engines that started
// anew, and then forgets all that the ranks of the stream held, because some
// of it may have gone: what remains is never more than the truth. A rank that
// another stream fed before is forgotten too.
//
// The receipt says what became of the message. A malformed one is an error
// that wraps ErrMalformed, and a loss like any other: its number is used up
// and the ranks of its stream are forgotten. After any other error the message
// may be offered again.
func (x *Indexer) IngestMessage(m Message) (Receipt, error) {
	if err := x.check(m.Pod, m.Model); err != nil {
		return Receipt{}, err
	}
	if m.Seq == math.MaxUint64 {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: sequence number %d is a mark, not a message", m.Pod, m.Stream, m.Seq)
	}
	if m.Stream == "" {
		m.Stream = "default" // "" is of plain Ingest
	}
	in := x.newIngest()
	defer x.ingests.Put(in)
	bad := events.Decode(m.Payload, &in.batch)
	receipt, err := x.ingestMessage(&m, bad, in)
	x.tell(in.losses)
	return receipt, err
}

// tell calls the hook; no lock is held.
func (x *Indexer) tell(losses []Loss) {
	if x.hooks.Lost == nil {
		return
	}
	for _, l := range losses {
		x.hooks.Lost(l)
	}
}

func (x *Indexer) ingestMessage(m *Message, bad error, in *ingest) (Receipt, error) {
	if bad != nil && x.pod(m.Pod) == nil {
		// Nobody is made known by what cannot be read.
		in.losses = append(in.losses, lossOf(m, -1, events.Verdict{}, bad))
		x.count(Stats{Messages: 1, Malformed: 1})
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
	defer pm.settle()
	st, err := pm.stream(m.Stream)
	if err != nil {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: %w", m.Pod, err)
	}
	if bad != nil {
		return x.ingestUnreadable(m, bad, pm, st, in)
	}

	src := index.Source{Pod: m.Pod, Model: m.Model, Rank: in.batch.Rank}
	if !in.batch.HasRank && len(st.ranks) > 0 {
		src.Rank = st.ranks[0]
	}
	r, err := pm.rank(src.Rank)
	if err != nil {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: %w", m.Pod, m.Stream, err)
	}
	moved, err := x.joins(st, r, src, m.Stream)
	if err != nil {
		return Receipt{}, err
	}
	return x.ingestReadable(m, pm, st, r, src, moved, in)
}

// ingestReadable applies a decoded message to its rank. moved: what the rank
// holds came by another way.
func (x *Indexer) ingestReadable(m *Message, pm *podModel, st *stream, r *rank, src index.Source, moved bool, in *ingest) (Receipt, error) {
	a := arrivalOf(m, in.batch.Time, true)
	v := st.seq.Check(a)
	if v.Duplicate {
		st.seq.Advance(a, v)
		x.count(Stats{Messages: 1, Duplicates: 1})
		return Receipt{Duplicate: true}, nil
	}
	lost := v.Gap.Lost || v.Restarted
	wiped := moved || lost && r.stream == m.Stream
	partial := lost || v.Missed || st.partial || r.state == StatePartial
	cur := index.Cursor{Stream: m.Stream, Epoch: v.Epoch, Next: v.Next}
	if lost {
		if err := x.forget(m, pm, st, src.Rank, cur, v, nil, in); err != nil {
			return Receipt{}, err
		}
	}
	if wiped {
		in.convert.changes = append(in.convert.changes, index.Change{Op: index.OpClear})
	}
	done, err := x.apply(pm, src, cur, partial, &in.batch, in)
	if err != nil {
		return Receipt{}, err
	}
	st.seq.Advance(a, v)
	if done.Duplicate { // somebody else has applied it
		x.count(Stats{Messages: 1, Duplicates: 1})
		return Receipt{Duplicate: true}, nil
	}
	pm.bind(r, src.Rank, m.Stream)
	r.next = v.Next
	st.judge(v, lost)
	if wiped || r.state == StateUnknown {
		r.state = StateLive
		if st.partial {
			r.state = StatePartial
		}
	}
	if clears(&in.batch) {
		r.state = StateLive
	}
	x.countVerdict(v)
	if wiped {
		in.losses = append(in.losses, lossOf(m, src.Rank, v, nil))
	} else if lost && len(in.losses) == 0 {
		in.losses = append(in.losses, lossOf(m, -1, v, nil))
	}
	return Receipt{Applied: true, Gap: v.Gap, Restarted: v.Restarted}, nil
}

// ingestUnreadable deals with a message that could not be decoded: its number
// is used up, and what it said is lost.
func (x *Indexer) ingestUnreadable(m *Message, bad error, pm *podModel, st *stream, in *ingest) (Receipt, error) {
	a := arrivalOf(m, 0, false)
	v := st.seq.Check(a)
	if v.Duplicate {
		st.seq.Advance(a, v)
		x.count(Stats{Messages: 1, Duplicates: 1})
		return Receipt{Duplicate: true}, nil
	}
	cur := index.Cursor{Stream: m.Stream, Epoch: v.Epoch, Next: v.Next}
	if err := x.forget(m, pm, st, -1, cur, v, bad, in); err != nil {
		return Receipt{}, err
	}
	st.seq.Advance(a, v)
	st.judge(v, true)
	st.partial = true
	x.countVerdict(v)
	x.count(Stats{Messages: 1, Malformed: 1})
	if len(st.ranks) == 0 {
		in.losses = append(in.losses, lossOf(m, -1, v, bad))
	}
	return Receipt{Gap: v.Gap, Restarted: v.Restarted}, readError(m, bad)
}

func readError(m *Message, bad error) error {
	return fmt.Errorf("kvindex: pod %q: stream %q: message %d: %w", m.Pod, m.Stream, m.Seq, bad)
}

func arrivalOf(m *Message, time float64, decoded bool) events.Arrival {
	return events.Arrival{Seq: m.Seq, Digest: events.Digest(m.Payload), Time: time, Decoded: decoded}
}

// joins prepares a rank for a stream that has not fed it. moved: what the rank
// holds came by another way, and what that has missed is not known. The index
// is asked how far the stream had come, for it may outlive the Indexer, or
// have another that writes.
func (x *Indexer) joins(st *stream, r *rank, src index.Source, name string) (moved bool, err error) {
	if r.stream == name {
		return false, nil
	}
	done, err := x.applyChanges(src, index.Cursor{Stream: name}, nil)
	if err != nil {
		return false, err
	}
	moved = r.state != StateUnknown
	if done.Cursor.Next == 0 {
		return moved, nil
	}
	if !st.seq.Started() && !moved {
		st.seq.Resume(done.Cursor.Epoch, done.Cursor.Next)
		st.partial = true
		r.stream = name // a gap is its loss too
		st.ranks = append(st.ranks, src.Rank)
		return false, nil
	}
	return true, nil
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

// forget drops what the ranks of a stream hold, but for one whose batch
// follows.
func (x *Indexer) forget(m *Message, pm *podModel, st *stream, but int, cur index.Cursor, v events.Verdict, bad error, in *ingest) error {
	for _, n := range st.ranks {
		if n == but {
			continue
		}
		src := index.Source{Pod: m.Pod, Model: m.Model, Rank: n}
		if _, err := x.applyChanges(src, cur, []index.Change{{Op: index.OpClear}}); err != nil {
			return err
		}
		pm.ranks[n].state = StatePartial
		in.losses = append(in.losses, lossOf(m, n, v, bad))
	}
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
		if len(pm.streams) >= MaxStreams {
			return nil, fmt.Errorf("stream %q is one more than the %d that a pod may have", name, MaxStreams)
		}
		st = new(stream)
		pm.streams[name] = st
	}
	return st, nil
}

func (x *Indexer) countVerdict(v events.Verdict) {
	var s Stats
	if v.Gap.Lost {
		s.Gaps, s.Missing = 1, v.Gap.To-v.Gap.From+1
	}
	if v.Restarted {
		s.Restarts = 1
	}
	x.count(s)
}

func lossOf(m *Message, rank int, v events.Verdict, bad error) Loss {
	l := Loss{Pod: m.Pod, Model: m.Model, Stream: m.Stream, Rank: rank, Gap: v.Gap, Err: bad}
	switch {
	case v.Restarted:
		l.Cause = LossRestart
	case v.Gap.Lost:
		l.Cause = LossGap
	case bad != nil:
		l.Cause = LossMalformed
	default:
		l.Cause = LossMoved
	}
	return l
}

// MarkLost says that the host knows of a loss: all that the rank of the pod
// holds, for every model, is forgotten. A rank never heard is an error.
func (x *Indexer) MarkLost(podID string, rank int) error {
	if x.closed.Load() {
		return ErrClosed
	}
	losses, err := x.markLost(podID, rank)
	x.tell(losses)
	return err
}

func (x *Indexer) markLost(podID string, rank int) (losses []Loss, err error) {
	p := x.pod(podID)
	if p == nil {
		return nil, fmt.Errorf("kvindex: pod %q was never heard", podID)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, pm := range p.models {
		r := pm.ranks[rank]
		if r == nil {
			continue
		}
		src := index.Source{Pod: podID, Model: name, Rank: rank}
		if _, err := x.applyChanges(src, index.Cursor{}, []index.Change{{Op: index.OpClear}}); err != nil {
			return losses, err
		}
		r.state = StatePartial
		pm.settle()
		x.count(Stats{Marked: 1})
		losses = append(losses, Loss{Pod: podID, Model: name, Stream: r.stream, Rank: rank, Cause: LossMarked})
	}
	if len(losses) == 0 {
		return nil, fmt.Errorf("kvindex: pod %q has no rank %d", podID, rank)
	}
	return losses, nil
}
