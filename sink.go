// Sink: what a transport needs that loses connections, or
// that can ask an engine to send again what was missed, together with Message.Hold,
// Message.Replayed and Receipt.Held.
//
// # RemoveStream
//
// A stream that is removed takes its sources out of the index (index.SourceRemover). A clear
// would leave two things of a rank that has gone: the names, up to 65,536 of them, behind
// which the blocks of a later rank could be placed; and the cursors, by which a stream that
// comes back would take its first messages for repeats. A backend that cannot remove one
// source clears it, and gets a cursor of the next epoch, as after a restart. A rank that
// another stream feeds by now keeps its blocks, and gets such a cursor of the removed stream.
// If the rank of a contest goes, the other stream is partial, because its messages in between
// were not applied. Adapters that the pod has named stay until the pod goes, because they are
// the pod's.

package kvindex

import (
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// StreamNext returns where a stream goes on.
func (x *registry) StreamNext(podID, model, stream string) events.Position {
	p, pm := x.lockHeard(podID, model)
	if p == nil {
		return events.Position{}
	}
	defer p.unlock()
	name := streamName(stream)
	st := pm.streams[name]
	if st != nil {
		if next, heard := st.seq.Next(); heard {
			return events.Position{Next: next, Heard: heard, Partial: st.lacks()}
		}
	}
	if cur, _, err := x.keptCursor(p, pm, index.Source{Pod: podID, Model: model}, name); err == nil && cur.Next > 0 {
		return events.Position{Next: cur.Next, Heard: true, Partial: true}
	}
	return events.Position{Partial: st != nil && st.lacks()}
}

// lacks reports that a replay of all that the engine has said would make the view
// better.
func (st *stream) lacks() bool {
	if len(st.ranks) == 0 {
		return st.partial
	}
	return slices.ContainsFunc(st.ranks, (*rank).lossy)
}

// StreamNote takes note of what happened to the connection of a stream.
func (x *registry) StreamNote(podID, model, stream string, n events.Note) error {
	switch n {
	case events.NoteRestarted:
		return x.beginAgain(podID, model, stream, view.LossRestart)
	case events.NoteRewound:
		return x.beginAgain(podID, model, stream, "")
	}
	return x.note(podID, model, stream, n)
}

// note takes note of something that forgets nothing.
func (x *registry) note(podID, model, stream string, n events.Note) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	st := in.noted(streamName(stream), n)
	if st == nil {
		return nil
	}
	defer in.leave()
	if st.note(n, in.now); n == events.NoteClosed {
		in.close(st)
	}
	if x.leaveEmpty(in.locked, model) {
		return nil
	}
	in.pm.countSilent()
	if in.settle(); in.from == view.Unknown && in.to == view.Silent {
		in.from = in.to // so it begins: nothing has changed
	}
	return nil
}

// noted finds the stream of a note and locks its pod, or returns nil.
func (in *ingest) noted(name string, n events.Note) *stream {
	if n != events.NoteOpened {
		return in.findStream(name)
	}
	if in.enter() != nil {
		return nil
	}
	st, err := in.pm.stream(name)
	if err != nil {
		in.leave()
	}
	return st
}

// note changes what limits the views of the stream's ranks, and what is told of it.
func (st *stream) note(n events.Note, now time.Time) {
	switch n {
	case events.NoteOpened:
		st.opened = true
	case events.NoteConnected:
		st.connected = now
	case events.NoteLost, events.NoteClosed:
		st.connected = time.Time{}
		st.held, st.behind = false, false // what was held is gone with the connection
		st.interrupted = st.interrupted || !st.heard.IsZero()
		st.opened = st.opened && n == events.NoteLost
	case events.NoteHeld:
		st.behind = true
	case events.NoteCurrent:
		st.current()
	case events.NoteReleased:
		st.interrupted = st.interrupted || st.waits() && !st.heard.IsZero()
		st.held, st.behind = false, false
	case events.NoteNoReplay, events.NoteReplay:
		st.noReplay = n == events.NoteNoReplay
	}
}

// current takes note that all that the engine has said was offered.
func (st *stream) current() {
	_, started := st.seq.Next()
	for _, r := range st.ranks {
		if st.waits() || st.interrupted {
			r.lag = 0 // it was made up
		}
		if !started && r.state == view.Unknown { // the engine restarted, and has said nothing
			r.on(heardAll)
		}
	}
	st.held, st.behind = false, false
	st.confirm()
}

// close ends a stream that its transport brings no more. Without ranks it is
// forgotten.
func (in *ingest) close(st *stream) {
	in.endContests(st)
	if len(st.ranks) == 0 {
		delete(in.pm.streams, st.name)
	}
}

// endContests: ranks that others have are contested by the stream no more.
func (in *ingest) endContests(st *stream) {
	if st.skipped {
		for _, r := range in.pm.ranks {
			r.contest = contest{}
		}
	}
}

// countSilent counts the silent streams.
func (pm *podModel) countSilent() {
	pm.silent = 0
	for _, st := range pm.streams {
		if st.silent() {
			pm.silent++
		}
	}
}

// beginAgain forgets what the ranks of a stream held; cause is the loss to tell, or "".
func (x *registry) beginAgain(podID, model, stream, cause string) error {
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
	anew := index.Cursor{Stream: st.name, Epoch: st.seq.Epoch() + 1}
	for _, r := range st.ranks {
		if err := in.lose(r, replaced, anew); err != nil {
			return err
		}
		r.contest, r.lost = contest{}, view.LastLoss{}
		if cause != "" {
			in.losses = append(in.losses, loss{Pod: podID, Model: model, Stream: st.name, Rank: r.n, Cause: cause})
		}
	}
	if cause == "" {
		st.seq.Await() // the life is the same: what was applied of it is forgotten, and not old
	}
	st.seq.Restart()
	st.partial, st.skipped = false, false
	st.held, st.behind = false, st.waits() || cause == ""
	if cause != "" {
		in.count(st, stats.Traffic{Restarts: 1})
	}
	return nil
}

// RemoveStream forgets a stream and what it feeds.
func (x *registry) RemoveStream(podID, model, stream string) error {
	if x.closed.Load() {
		return errClosed
	}
	in := x.newIngest(podID, model)
	defer in.end()
	if !in.find() {
		return nil
	}
	defer in.leave()
	fed, err := in.fedBy(stream)
	if err == nil {
		err = in.discard(fed, streamName(stream))
	}
	if err != nil {
		in.settle()
		return err
	}
	in.removeStream(streamName(stream), fed)
	if !x.leaveEmpty(in.locked, model) {
		in.pm.countSilent()
		in.settle()
	}
	return nil
}

// fedBy returns the ranks that a stream feeds, also those of a kept index that it fed
// last. The stream has the name that the caller gave to it.
func (in *ingest) fedBy(stream string) (ranks []*rank, err error) {
	name := streamName(stream)
	for _, r := range in.pm.byNumber {
		fed := stream == ""
		switch {
		case r.stream != nil:
			fed = r.stream.name == name
		case r.kept:
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

// discard has the index forget some ranks that a stream feeds, and how far the stream had
// come with the others.
func (in *ingest) discard(fed []*rank, stream string) error {
	for _, r := range in.pm.byNumber {
		its := slices.Contains(fed, r)
		of, ok := in.x.index.(index.SourceRemover)
		if its && ok {
			if err := in.removeSource(of, r); err != nil {
				return in.failed(r, err)
			}
			in.forgetTold(r)
			r.on(forgotten)
			continue
		}
		cur, err := in.cursorOf(r, stream)
		if err != nil {
			return err
		}
		anew := index.Cursor{Stream: stream, Epoch: cur.Epoch + 1}
		switch {
		case its:
			err = in.lose(r, forgotten, anew)
		case cur.Next > 0:
			_, err = in.applyChanges(r, anew, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *ingest) removeSource(of index.SourceRemover, r *rank) error {
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	return of.RemoveSource(ctx, in.source(r))
}

// removeStream forgets a stream and ranks of which the index has nothing any more. A rank
// that no message was applied to goes too: a message of the stream may have named it.
func (in *ingest) removeStream(name string, fed []*rank) {
	pm := in.pm
	if st := pm.streams[name]; st != nil {
		in.endContests(st)
		delete(pm.streams, name)
	}
	if slices.ContainsFunc(fed, func(r *rank) bool { return r.contest != contest{} }) {
		for _, st := range pm.streams { // what it said of them is not known
			st.partial = st.partial || st.skipped
		}
	}
	for _, r := range fed {
		in.x.ledger.Lose(&pm.sent, r.n, true)
	}
	maps.DeleteFunc(pm.ranks, func(_ int, r *rank) bool {
		gone := slices.Contains(fed, r) || r.stream == nil && r.state == view.Unknown && !r.kept
		if gone {
			in.untell(r)
		}
		return gone
	})
	pm.listRanks()
}

// StreamView returns how a stream stands.
func (x *registry) StreamView(podID, model, stream string) (v events.StreamView) {
	if x.closed.Load() {
		return v
	}
	p, pm := x.lockServed(podID, model)
	if p == nil {
		return v
	}
	defer p.mu.Unlock()
	st := pm.streams[streamName(stream)]
	if st == nil {
		return v
	}
	state := view.Live
	if len(st.ranks) == 0 {
		state = st.limit(view.Partial)
	}
	if st.silent() {
		state = view.Silent
	}
	of, _ := x.index.(index.Describer)
	var newest time.Time
	for _, r := range st.ranks {
		state = min(state, r.view())
		if !r.at.Before(newest) {
			newest, v.Lag = r.at, r.lag
		}
		if of == nil {
			continue
		}
		info, _ := of.DescribeSource(index.Source{Pod: podID, Model: model, Rank: r.n})
		for _, n := range info.Blocks {
			v.Blocks += n
		}
		if info.Evicted > 0 {
			state = min(state, view.Partial)
		}
	}
	v.State, v.Heard, v.Missing = state.String(), st.heard.Round(0), st.stats.Missing
	return v
}

// findStream finds a stream that was heard and locks its pod, or returns nil.
func (in *ingest) findStream(name string) *stream {
	if !in.find() {
		return nil
	}
	st := in.pm.streams[streamName(name)]
	if st == nil {
		in.leave()
	}
	return st
}
