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
	t.Counts.Add(s.Counts)
}

// applyBatch applies a batch whose order and completeness the host vouches
// for.
func (x *Indexer) applyBatch(podID, model string, b *events.Batch, in *ingest) error {
	p := x.lockPod(podID)
	defer p.mu.Unlock()
	pm := x.podModel(p, model)
	r, err := pm.rank(b.Rank)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", podID, err)
	}
	src := index.Source{Pod: podID, Model: model, Rank: b.Rank}
	if err := x.apply(pm, src, index.Cursor{}, r.state == StatePartial, b, in); err != nil {
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
func (x *Indexer) apply(pm *podModel, src index.Source, cur index.Cursor, partial bool, b *events.Batch, in *ingest) error {
	copies := pm.profile.Copies
	if partial && copies == CopiesGuarded {
		copies = index.CopiesPartial
	}
	skipped := in.convert.convert(x.hash, src.Model, copies, b)
	done, err := x.index.Apply(context.Background(), src, cur, in.convert.changes)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: model %q: rank %d: %w", src.Pod, src.Model, src.Rank, err)
	}
	x.learnAdapters(pm, src.Model, b)
	x.count(Stats{
		Messages:      1,
		UnknownEvents: uint64(b.Unknown),
		Foreign:       skipped.foreign,
		Unscored:      skipped.unscored,
		Counts:        done.Counts,
	})
	return nil
}

// clears reports whether b empties the cache: what is known from then on is
// all there is.
func clears(b *events.Batch) bool {
	return slices.ContainsFunc(b.Events, func(e events.Event) bool { return e.Kind == events.Cleared })
}

// IngestMessage applies a message of a transport with sequence numbers. It
// drops what came before, notices what is missing and engines that started
// anew, and then forgets all that the ranks of the stream held, because some
// of it may have gone: what remains is never more than the truth.
//
// The receipt says what became of the message. A malformed one is an error
// that wraps ErrMalformed, and a loss like any other: its number is used up
// and the ranks of its stream are forgotten. After any other error nothing has
// changed, and the message may be offered again.
func (x *Indexer) IngestMessage(m Message) (Receipt, error) {
	if err := x.check(m.Pod, m.Model); err != nil {
		return Receipt{}, err
	}
	if m.Seq == math.MaxUint64 {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: sequence number %d is a mark, not a message", m.Pod, m.Stream, m.Seq)
	}
	in := x.newIngest()
	defer x.ingests.Put(in)
	bad := events.Decode(m.Payload, &in.batch)
	receipt, err := x.ingestMessage(&m, bad, in)
	if x.hooks.Lost != nil {
		for _, l := range in.losses {
			x.hooks.Lost(l)
		}
	}
	return receipt, err
}

func (x *Indexer) ingestMessage(m *Message, bad error, in *ingest) (Receipt, error) {
	p := x.lockPod(m.Pod)
	defer p.mu.Unlock()
	pm := x.podModel(p, m.Model)
	st, err := pm.stream(m.Stream)
	if err != nil {
		return Receipt{}, fmt.Errorf("kvindex: pod %q: %w", m.Pod, err)
	}
	home := in.batch.Rank
	if !in.batch.HasRank && len(st.ranks) > 0 {
		home = st.ranks[0]
	}
	src := index.Source{Pod: m.Pod, Model: m.Model, Rank: home}
	var r *rank
	if bad == nil {
		if r, err = pm.rank(home); err != nil {
			return Receipt{}, fmt.Errorf("kvindex: pod %q: stream %q: %w", m.Pod, m.Stream, err)
		}
		if err := x.resume(st, src, m.Stream); err != nil {
			return Receipt{}, err
		}
	}
	a := events.Arrival{
		Seq:         m.Seq,
		Digest:      events.Digest(m.Payload),
		Time:        in.batch.Time,
		Decoded:     bad == nil,
		Reconnected: m.Reconnected,
	}
	v := st.seq.Check(a)
	if v.Duplicate {
		x.count(Stats{Messages: 1, Duplicates: 1})
		return Receipt{Duplicate: true}, nil
	}
	cur := index.Cursor{Stream: m.Stream, Epoch: v.Epoch, Next: v.Next}
	lost := v.Gap.Lost || v.Restarted || bad != nil
	if lost {
		if err := x.forget(m, st, home, bad != nil, cur, in); err != nil {
			return Receipt{}, err
		}
	}
	if bad == nil {
		partial := lost || v.Missed || r.state == StatePartial || r.state == StateUnknown && st.partial
		if err := x.apply(pm, src, cur, partial, &in.batch, in); err != nil {
			return Receipt{}, err
		}
		if !slices.Contains(st.ranks, home) {
			st.ranks = append(st.ranks, home)
		}
		r.stream, r.next = m.Stream, v.Next
	}
	st.seq.Advance(a, v)
	pm.judge(st, r, v, lost, clears(&in.batch))
	x.countVerdict(v, bad)
	if lost {
		in.losses = lossesOf(in.losses, m, st.ranks, v, bad)
	}
	receipt := Receipt{Applied: bad == nil, Gap: v.Gap, Restarted: v.Restarted}
	if bad != nil {
		return receipt, fmt.Errorf("kvindex: pod %q: stream %q: message %d: %w", m.Pod, m.Stream, m.Seq, bad)
	}
	return receipt, nil
}

// forget drops what the ranks of a stream hold. For the home rank, whose batch
// follows, it only puts the clear in front of the batch, so that both are
// applied at once.
func (x *Indexer) forget(m *Message, st *stream, home int, alone bool, cur index.Cursor, in *ingest) error {
	wipe := []index.Change{{Op: index.OpClear}}
	for _, n := range st.ranks {
		if n == home && !alone {
			in.convert.changes = append(in.convert.changes, wipe...)
			continue
		}
		src := index.Source{Pod: m.Pod, Model: m.Model, Rank: n}
		if _, err := x.index.Apply(context.Background(), src, cur, wipe); err != nil {
			return fmt.Errorf("kvindex: pod %q: forgetting rank %d: %w", m.Pod, n, err)
		}
	}
	return nil
}

// resume asks the index, at the first message of a stream, how far the stream
// had come: an index may outlive the Indexer, or have another that writes.
func (x *Indexer) resume(st *stream, src index.Source, name string) error {
	if st.resumed {
		return nil
	}
	done, err := x.index.Apply(context.Background(), src, index.Cursor{Stream: name}, nil)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", src.Pod, name, err)
	}
	st.resumed = true
	if done.Cursor.Next > 0 {
		st.seq.Resume(done.Cursor.Epoch, done.Cursor.Next)
		st.ranks, st.partial = []int{src.Rank}, true
	}
	return nil
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

func (x *Indexer) countVerdict(v events.Verdict, bad error) {
	var s Stats
	if bad != nil {
		s.Messages, s.Malformed = 1, 1
	}
	if v.Gap.Lost {
		s.Gaps, s.Missing = 1, v.Gap.To-v.Gap.From+1
	}
	if v.Restarted {
		s.Restarts = 1
	}
	x.count(s)
}

// judge sets the states of the ranks of a stream after a message. r is the
// rank whose batch was applied, nil if none was. pod.mu is held.
func (pm *podModel) judge(st *stream, r *rank, v events.Verdict, lost, cleared bool) {
	switch {
	case v.Restarted:
		st.partial = v.Missed
	case v.Missed || lost:
		st.partial = true
	}
	for _, n := range st.ranks {
		if lost {
			pm.ranks[n].state = StatePartial
		}
	}
	if r != nil {
		switch {
		case cleared, v.Restarted && !v.Missed, r.state == StateUnknown && !st.partial:
			r.state = StateLive
		case r.state == StateUnknown:
			r.state = StatePartial
		}
	}
	pm.settle()
}

// lossesOf appends a Loss for each rank of a stream.
func lossesOf(dst []Loss, m *Message, ranks []int, v events.Verdict, bad error) []Loss {
	l := Loss{Pod: m.Pod, Model: m.Model, Stream: m.Stream, Gap: v.Gap, Err: bad}
	switch {
	case v.Restarted:
		l.Cause = LossRestart
	case v.Gap.Lost:
		l.Cause = LossGap
	default:
		l.Cause = LossMalformed
	}
	if len(ranks) == 0 {
		ranks = []int{-1}
	}
	for _, l.Rank = range ranks {
		dst = append(dst, l)
	}
	return dst
}

// MarkLost says that the host knows of a loss: all that the rank of the pod
// holds, for every model, is forgotten. A rank never heard is an error.
func (x *Indexer) MarkLost(podID string, rank int) error {
	if x.closed.Load() {
		return ErrClosed
	}
	losses, err := x.markLost(podID, rank)
	if x.hooks.Lost != nil {
		for _, l := range losses {
			x.hooks.Lost(l)
		}
	}
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
		done, err := x.index.Apply(context.Background(), src, index.Cursor{}, []index.Change{{Op: index.OpClear}})
		if err != nil {
			return losses, fmt.Errorf("kvindex: pod %q: forgetting rank %d: %w", podID, rank, err)
		}
		r.state = StatePartial
		pm.settle()
		x.count(Stats{Marked: 1, Counts: done.Counts})
		losses = append(losses, Loss{Pod: podID, Model: name, Stream: r.stream, Rank: rank, Cause: LossMarked})
	}
	if len(losses) == 0 {
		return nil, fmt.Errorf("kvindex: pod %q has no rank %d", podID, rank)
	}
	return losses, nil
}
