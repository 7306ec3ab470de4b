// Sink: the methods of events.Sink, for transports that lose connections or that can request a
// replay, together with Message.Hold, Message.Replayed and Receipt.Held.
//
// # RemoveStream
//
// RemoveStream removes the sources of the stream from the index (index.SourceRemover). A clear
// would leave two things of a removed rank: the names, up to 65,536 of them, after which the blocks
// of a later rank could be placed; and the cursors, by which a stream that comes back would take
// its first messages for repeats. A backend that cannot remove one source clears it and gets a
// cursor of the next epoch, as after a restart. A rank that another stream feeds by now keeps its
// blocks, and gets such a cursor of the removed stream. If a contested rank is removed, the other
// stream becomes partial, because its messages in between were not applied. The adapters of the pod
// stay until the pod is removed, because they belong to the pod.

package registry

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// StreamNext implements events.Sink.
func (x *Registry) StreamNext(podID, model, stream string) events.Position {
	p, pm := x.lockRegistered(podID, model)
	if p == nil {
		return events.Position{}
	}
	defer p.unlock()
	name := streamName(stream)
	st := pm.Streams[name]
	if st != nil {
		if next, heard := st.Seq.Next(); heard {
			return events.Position{Next: next, Partial: st.Lacks()}
		}
	}
	if cur, _, err := x.keptCursor(p, pm, index.Source{Pod: podID, Model: model}, name); err == nil && cur.Next > 0 {
		return events.Position{Next: cur.Next, Partial: true}
	}
	return events.Position{Partial: st != nil && st.Lacks()}
}

// StreamNote implements events.Sink.
func (x *Registry) StreamNote(podID, model, stream string, n events.Note) error {
	switch n {
	case events.NoteRestarted:
		return x.beginAgain(podID, model, stream, view.LossRestart)
	case events.NoteRewound:
		return x.beginAgain(podID, model, stream, "")
	}
	return x.note(podID, model, stream, n)
}

// note is StreamNote for notes that forget nothing.
func (x *Registry) note(podID, model, stream string, n events.Note) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	if err := podstate.CheckStream(stream); err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", podID, err)
	}
	in := x.newIngest(podID, model)
	defer in.end()
	st, err := in.noted(streamName(stream), n)
	if st == nil {
		return err
	}
	defer in.leave()
	if st.Note(n, in.now); n == events.NoteClosed {
		in.close(st)
	}
	if x.leaveEmpty(in.locked, model) {
		return nil
	}
	in.pm.CountSilent()
	if in.settle(); in.from == view.Unknown && in.to == view.Silent {
		in.from = in.to // the first state of a pod is not reported
	}
	return nil
}

// noted finds the stream of a note and locks its pod, or returns nil. NoteOpened and NoteTiers
// register both.
func (in *ingest) noted(name string, n events.Note) (*podstate.Stream, error) {
	if n != events.NoteOpened && n != events.NoteTiers {
		return in.findStream(name), nil
	}
	if err := in.enter(); err != nil {
		return nil, err
	}
	st, err := in.pm.Stream(name)
	if err != nil {
		in.leave()
		return nil, fmt.Errorf("kvindex: pod %q: %w", in.pod, err)
	}
	return st, nil
}

// close ends a stream whose transport has ended. A stream without ranks is forgotten.
func (in *ingest) close(st *podstate.Stream) {
	in.pm.EndContests(st)
	if len(st.Ranks)+len(st.Lower) == 0 {
		delete(in.pm.Streams, st.Name)
	}
}

// beginAgain forgets the blocks of the ranks of a stream. cause is the loss to report, or "".
func (x *Registry) beginAgain(podID, model, stream, cause string) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	if !in.find() {
		return nil
	}
	defer in.leave()
	st, err := in.begun(streamName(stream))
	if st == nil {
		return err
	}
	defer in.settle()
	anew := index.Cursor{Stream: st.Name, Epoch: st.Seq.Epoch() + 1}
	if len(st.Lower) > 0 {
		if err := in.beginLower(st, anew, cause); err != nil {
			st.Seq.Raise(anew.Epoch) // some ranks have got anew
			return err
		}
	}
	var errs []error // the ranks of these are cleared with their next message
	for _, r := range st.Ranks {
		spared := engine.Tiers(0)
		if cause == "" { // its hashes are the same
			spared = r.Spared(in.lower)
		}
		if err := in.lose(r, podstate.Replaced, anew, spared); err != nil {
			in.setLate(r, err)
			r.Uncleared = true
			errs = append(errs, err)
		}
		r.Contest, r.Lost = podstate.Contest{}, view.LastLoss{}
		if cause != "" {
			r.Restarted()
			in.losses = append(in.losses, Loss{Pod: podID, Model: model, Stream: st.Name, Rank: r.Number, Cause: cause})
		}
	}
	if cause == "" {
		st.Seq.Await() // the engine has not restarted: its messages come again, and are no repeats
	}
	st.Seq.Restart()
	st.Partial, st.Skipped = false, false
	st.Held, st.Behind = false, st.Waits() || cause == ""
	if cause != "" {
		in.count(st, stats.Traffic{Restarts: 1})
	}
	return errors.Join(errs...)
}

// RemoveStream implements events.Sink.
func (x *Registry) RemoveStream(podID, model, stream string) error {
	if x.closed.Load() {
		return ErrClosed
	}
	in := x.newIngest(podID, model)
	defer in.end()
	if !in.find() {
		return nil
	}
	defer in.leave()
	fed, err := in.fedBy(stream)
	if err == nil {
		err = in.removeLower(in.pm.Streams[streamName(stream)])
	}
	if err == nil {
		err = in.discard(fed, streamName(stream))
	}
	if err == nil {
		in.removeStream(streamName(stream), fed)
		if x.leaveEmpty(in.locked, model) {
			return nil
		}
		in.pm.CountSilent()
	}
	in.settle()
	return err
}

// fedBy returns the ranks that a stream feeds, and those of a kept index that it fed
// last. The stream has the name that the caller gave to it.
func (in *ingest) fedBy(stream string) (ranks []*podstate.Rank, err error) {
	name := streamName(stream)
	for _, r := range in.pm.ByNumber {
		fed := stream == ""
		switch {
		case r.Stream != nil:
			fed = r.Stream.Name == name
		case r.State == view.Unknown && len(r.Lower) == 1 && r.Lower[0].Name == name:
			fed = true // nothing else is known of it
		case r.Kept:
			cur, err := in.cursorOf(r, name)
			if err != nil {
				return nil, err
			}
			if fed = cur != (index.Cursor{}); fed {
				if fed, err = in.fedLast(r, name); err != nil {
					return nil, err
				}
			}
		}
		if fed {
			ranks = append(ranks, r)
		}
	}
	return ranks, nil
}

// discard removes the ranks fed from the index, and resets the cursors of the stream for the
// other ranks.
func (in *ingest) discard(fed []*podstate.Rank, stream string) error {
	for _, r := range in.pm.ByNumber {
		its := slices.Contains(fed, r)
		if of, ok := in.x.Index.(index.SourceRemover); its && ok {
			if err := in.removeSource(of, r); err != nil {
				return in.failed(r, err)
			}
			in.pm.Unpublish(r)
			r.On(podstate.Forgotten)
			continue
		}
		cur, err := in.cursorOf(r, stream)
		if err != nil {
			return err
		}
		anew := index.Cursor{Stream: stream, Epoch: cur.Epoch + 1}
		switch {
		case its:
			err = in.lose(r, podstate.Forgotten, anew, 0)
		case cur.Next > 0:
			_, err = in.applyChanges(r, anew, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *ingest) removeSource(of index.SourceRemover, r *podstate.Rank) error {
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	return of.RemoveSource(ctx, in.source(r))
}

// removeStream forgets a stream and the ranks fed, which are no longer in the index. Ranks
// without an applied message go too: a message of the stream may have named them.
func (in *ingest) removeStream(name string, fed []*podstate.Rank) {
	pm := in.pm
	if st := pm.Streams[name]; st != nil {
		in.pm.EndContests(st)
		delete(pm.Streams, name)
	}
	if slices.ContainsFunc(fed, func(r *podstate.Rank) bool { return r.Contest != podstate.Contest{} }) {
		for _, st := range pm.Streams { // its messages for them were not applied
			st.Partial = st.Partial || st.Skipped
		}
	}
	for _, r := range fed {
		in.x.ledger.Lose(&pm.sent, r.Number, true)
		for _, o := range slices.Clone(r.Lower) { // its reports about the rank are gone
			o.On(podstate.Forgotten)
			r.Return(o)
		}
	}
	maps.DeleteFunc(pm.Ranks, func(_ int, r *podstate.Rank) bool {
		gone := slices.Contains(fed, r) || r.Stream == nil && r.State == view.Unknown && !r.Kept && len(r.Lower) == 0
		if gone {
			in.withdraw(r)
		}
		return gone
	})
	pm.ListRanks()
}

// findStream finds a registered stream and locks its pod, or returns nil.
func (in *ingest) findStream(name string) *podstate.Stream {
	if !in.find() {
		return nil
	}
	st := in.pm.Streams[streamName(name)]
	if st == nil {
		in.leave()
	}
	return st
}
