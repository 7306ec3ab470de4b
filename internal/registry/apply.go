// Loss: the effects of a message on the ranks of its stream.
//
// The blocks of a rank are forgotten before a batch is applied to it if they may be wrong: its
// engine restarted, another stream fed it, or messages are missing and the policy is to forget. The
// clear precedes the changes of the batch, in one Apply, so an error changes nothing.
//
// The other ranks of the stream lose their blocks too, because the missing messages may have been
// theirs. Each of them is cleared by its own Apply, with the position before the message: if the Apply
// of the batch fails, an Indexer that later continues from the index still has the message to apply.
//
// To forget claims too little, never too much: the engine still holds most of the forgotten blocks,
// and will not announce them again. So the view is partial afterwards. In a partial view, and in an
// uncertain one, a store without a parent may be a report that names unknown blocks beside known
// ones. Change.Partial marks such a store, and the index does not count it as another copy.
// podstate.Rank.On has the effects on the state of a rank.
//
// # An error of the index
//
// sharedindex.ErrDelayed means that an Apply was done and that other processes do not see it yet.
// The writer has the changes in its memory, so a refused message would be applied twice. So the
// message counts, and the rank is uncertain, because readers elsewhere see an older state. A failed
// Apply leaves its rank uncertain too, until one succeeds: the transport goes on to the next
// message, and if none comes, nothing else would show that removals are missing. If a restart or
// MarkLost could not clear a rank, its next message does (podstate.Rank.Uncleared), because nobody
// may report the restart again.
//
// A rank for which the index has no room (index.ErrFull) has lost the events of its message, and
// the number of the message is used up. If the message could come again, it would be a gap for all
// ranks of its stream, and each replay would end there.

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// unnumbered applies the batch of a message without a number, unless it could not be read.
// The host guarantees order and completeness.
func (in *ingest) unnumbered(bad error) error {
	if bad != nil {
		in.count(nil, in.malformed(bad))
		return fmt.Errorf("kvindex: pod %q: %w", in.pod, bad)
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.leave()
	r, err := in.pm.Rank(in.batch.Rank)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", in.pod, err)
	}
	in.convert.Partial = r.Lossy()
	in.clearUnknown(r)
	if _, err := in.apply(r, index.Cursor{}); err != nil {
		if errors.Is(err, index.ErrFull) {
			in.noRoom(r, Loss{Pod: in.pod, Model: in.model, Rank: r.Number, Cause: view.LossFull, Err: err})
			in.count(nil, stats.Traffic{Messages: 1, NoRoom: 1})
		} else {
			in.setLate(r, err)
		}
		in.settle()
		return err
	}
	r.Unnumbered()
	r.Applied(in.batch, in.now, true)
	in.noteKinds()
	in.noteForm(r)
	in.cured(r)
	s := stats.Traffic{Messages: 1}
	if in.delayed {
		s.Delayed = 1
	}
	in.count(nil, s)
	in.settle()
	return nil
}

// take applies a readable message. again: another writer of the index had applied it.
func (d *delivery) take() (again bool, err error) {
	r, st, v := d.rank, d.stream, &d.verdict
	lost := v.Gap.Lost || v.Restarted
	if err := d.speaksOfGPU(); err != nil {
		return false, err
	}
	if err := d.settleOthers(lost); err != nil {
		return false, err
	}
	if d.stays() {
		st.Judge(v, lost)
		d.standBack()
		return false, nil
	}
	ours := lost && r.Stream == st // else the rank held nothing that this stream could lose
	kept := ours && d.keeps()
	wiped := d.moved || ours && !kept || r.Uncleared
	back := d.returns()
	// A rank that has reported before and is not lossy has its whole history,
	// although its stream has not: its cache was emptied since.
	d.convert.Partial = lost || v.Missed || back || r.State == view.Unknown && st.Partial || r.Lossy()
	if wiped {
		d.convert.Changes = engine.AppendClear(d.convert.Changes, d.spares(r))
	} else if !d.found {
		d.clearUnknown(r)
	}
	done, err := d.store(kept)
	full := errors.Is(err, index.ErrFull)
	if err != nil && !full || done.Duplicate {
		return done.Duplicate, err
	}
	if r.Stream == st {
		r.Contest.CountOwn()
	} else {
		r.Contest.Moved()
		d.pm.Bind(r, st)
	}
	st.Judge(v, lost)
	st.Partial = st.Partial || back
	switch {
	case wiped:
		r.On(podstate.Replaced)
	case kept:
		r.On(podstate.Doubted)
	case v.Missed && r.State == view.Live: // it was empty and whole, until now
		r.On(podstate.Forgotten)
	}
	if !full {
		r.Applied(d.batch, d.now, !st.Partial)
		d.noteKinds()
		d.noteForm(r)
		d.cured(r)
	}
	if d.moved || ours {
		d.noteLoss(r.Number)
	} else if lost && len(d.losses) == 0 { // a loss is reported, even if no rank had anything to lose
		d.noteLoss(-1)
	}
	if full {
		l := d.loss(r.Number, view.LossFull)
		l.Err = err
		d.noRoom(r, l)
	}
	return false, err
}

// clearUnknown clears a rank of which nothing is known before the batch: another writer may have
// left blocks. It also does a clear that has failed.
func (in *ingest) clearUnknown(r *podstate.Rank) {
	if r.Uncleared || r.State == view.Unknown && r.Stream == nil && len(r.Lower) == 0 && !in.x.OwnsIndex {
		in.convert.Changes = append(in.convert.Changes, index.Change{Op: index.OpClear})
	}
}

// store applies the batch, after the notes that must precede it.
func (d *delivery) store(kept bool) (index.Effect, error) {
	err := d.feeds()
	if err == nil && kept {
		err = d.doubts(d.rank, true)
	}
	if err != nil {
		return index.Effect{}, err
	}
	return d.apply(d.rank, d.cursor())
}

// noRoom records the loss of a batch for a rank that the index has no room for. The rank has
// no blocks in the index.
func (in *ingest) noRoom(r *podstate.Rank, l Loss) {
	r.On(podstate.Forgotten)
	in.losses = append(in.losses, l)
}

// skip records the loss of an unreadable message: its number is used up.
func (d *delivery) skip() error {
	if err := d.settleOthers(true); err != nil {
		return err
	}
	st := d.stream
	if d.lower != nil {
		if err := d.emptyLower(nil); err != nil {
			return err
		}
		d.lostLower(true)
	}
	st.Judge(&d.verdict, true)
	st.Partial = true
	if len(d.losses) == 0 {
		d.noteLoss(-1)
	}
	return nil
}

// spares returns the tiers of a rank of the engine that a loss leaves. After a restart or a move
// the hashes of the engine may be others.
func (d *delivery) spares(r *podstate.Rank) engine.Tiers {
	if d.verdict.Restarted || r == d.rank && d.moved || r.Uncleared {
		return 0
	}
	return r.Spared(d.lower)
}

// settleOthers applies a loss to the ranks of the stream, except to the rank of the batch,
// which follows. But if the message is the first of its engine, the ranks are empty and
// their views are complete.
func (d *delivery) settleOthers(lost bool) error {
	v := &d.verdict
	if _, started := d.stream.Seq.Next(); started && !lost {
		return nil
	}
	cur := d.cursor()
	if d.bad == nil {
		cur.Next, cur.Digest = d.m.Seq, 0
	}
	for _, r := range d.stream.Ranks {
		e := lossEvent(d.keeps())
		if v.Restarted {
			r.Restarted()
		}
		switch {
		case r == d.rank:
			continue
		case d.bad == nil && !v.Missed && v.Restarted:
			e = podstate.Emptied
		case !lost: // the first message since NoteRestarted, which cleared them
			e = podstate.AppliedAll
			if v.Missed {
				e = podstate.Forgotten
			}
			r.On(e)
			continue
		}
		if err := d.lose(r, e, cur, d.spares(r)); err != nil {
			d.setLate(r, err)
			return err
		}
		d.noteLoss(r.Number)
	}
	return nil
}

// keeps reports whether a loss keeps the blocks. An engine that restarted has lost them.
func (d *delivery) keeps() bool { return d.x.Keep && !d.verdict.Restarted }

// cursor returns the position of the stream after the message.
func (d *delivery) cursor() index.Cursor {
	a, v := d.arrival, d.verdict
	return index.Cursor{Stream: d.stream.Name, Epoch: v.Epoch, Next: v.Next, Time: d.stream.Seq.CursorTime(a, v), Digest: a.Digest}
}

// noteLoss adds a loss of a rank for the hook; rank -1: no rank of the stream had a view.
func (d *delivery) noteLoss(rank int) {
	v, cause := &d.verdict, view.LossMoved
	switch {
	case v.Restarted:
		cause = view.LossRestart
	case v.Gap.Lost:
		cause = view.LossGap
	case d.bad != nil:
		cause = view.LossMalformed
	}
	l := d.loss(rank, cause)
	l.Err = d.bad
	l.Replayed = cause == view.LossGap && d.m.Replayed
	l.Kept = rank >= 0 && d.keeps() && cause != view.LossMoved && d.lower == nil
	d.losses = append(d.losses, l)
}

// loss returns the Loss that the message shows.
func (d *delivery) loss(rank int, cause string) Loss {
	return Loss{Pod: d.pod, Model: d.model, Stream: d.m.Stream, Rank: rank, Cause: cause, Seq: d.m.Seq, Gap: d.verdict.Gap, Tiers: d.lower != nil}
}

// lossEvent returns the ViewEvent of a loss.
func lossEvent(kept bool) podstate.ViewEvent {
	if kept {
		return podstate.Doubted
	}
	return podstate.Forgotten
}

// lose applies a loss to a rank. Unless the event is podstate.Doubted, the index forgets the
// blocks of the rank, but for tiers that are spared, and moves its cursor to cur.
func (in *ingest) lose(r *podstate.Rank, e podstate.ViewEvent, cur index.Cursor, spared engine.Tiers) error {
	var err error
	if e == podstate.Doubted {
		err = in.doubts(r, true)
	} else {
		_, err = in.applyChanges(r, cur, engine.AppendClear(nil, spared))
	}
	if err != nil && !errors.Is(err, index.ErrFull) { // if there is no room for the rank, it has nothing to lose
		return err
	}
	r.Uncleared = r.Uncleared && e == podstate.Doubted
	r.On(e)
	in.cured(r)
	return nil
}

// apply converts the batch and applies it to a rank, after the changes that
// in.convert has already.
func (in *ingest) apply(r *podstate.Rank, cur index.Cursor) (index.Effect, error) {
	c := &in.convert
	c.Model, c.Profile, c.Recent, c.Groups = in.model, in.pm.Shown.Profile, &in.pm.Recent, r.Groups
	ages := r.Ages
	for t := index.TierCPU; t < index.NumTiers; t++ {
		for range ages.Due(t, &c.Profile, in.batch.Time, in.now) {
			c.Changes = append(c.Changes, index.Change{Op: index.OpAge, Tier: t})
		}
	}
	if named, _ := engine.TiersOf(in.batch); in.lower != nil {
		in.lower.Named |= named
	} else {
		r.Tiers |= named & engine.LowerTiers
	}
	c.Spared, c.Shared = r.Spared(in.lower), in.lower != nil || r.Others(nil).Has(index.TierCPU)
	c.Convert(in.batch)
	if c.Tiered {
		for i := range c.Changes {
			if ch := &c.Changes[i]; ch.Op == index.OpStore && ch.Tier != index.TierGPU {
				ages.Begin(ch.Tier, &c.Profile, in.batch.Time, in.now)
			}
		}
	}
	done, err := in.applyChanges(r, cur, c.Changes)
	if err != nil || done.Duplicate {
		return done, err
	}
	r.Ages = ages
	in.learnAdapters()
	r.Stored += done.Counts.Stored
	r.Removed += done.Counts.Removed
	r.NotHeld += done.Counts.UnknownRemove
	s := &in.stats
	r.NoteUnknown(c.Unrecognized, c.MayRemove)
	s.events[0] += uint64(in.batch.Unknown)
	s.Foreign += c.Skipped.Foreign
	s.Unscored += c.Skipped.Unscored
	s.Scopeless += c.Skipped.Scopeless
	s.OtherChunks += c.Skipped.Chunks
	for i := range in.batch.Events {
		s.events[in.batch.Events[i].Kind]++
	}
	return done, nil
}

// applyChanges applies changes to the index and counts their effects.
func (in *ingest) applyChanges(r *podstate.Rank, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	done, err := in.write(r, cur, changes)
	delayed := errors.Is(err, sharedindex.ErrDelayed)
	if err != nil && !delayed {
		if errors.Is(err, index.ErrFull) {
			in.x.ledger.Lose(&in.pm.sent, r.Number, false)
		}
		return done, in.failed(r, err)
	}
	in.stats.Counts.Add(done.Counts)
	r.Evicted = done.Evicted > 0
	if !done.Duplicate {
		if (r.Uncleared || len(r.Unrecognized) > 0) && slices.ContainsFunc(changes, func(ch index.Change) bool { return ch.Op == index.OpClear }) {
			r.Unrecognized, r.MayHoldLess, r.Uncleared = nil, false, false
		}
		in.setLate(r, err)
		in.delayed = in.delayed || delayed
		r.Unfed(in.lower, engine.Emptied(changes))
		in.noteApplied(r, changes, &done)
	}
	return done, nil
}

// setLate notes the error of the last Apply, or nil. After an error the rank is uncertain,
// until the next Apply or, for a sharedindex.Delay, until other processes see the changes.
func (in *ingest) setLate(r *podstate.Rank, err error) {
	r.Late = err != nil
	var seen context.Context
	var d sharedindex.Delay
	if errors.As(err, &d) {
		seen = d.Seen()
	}
	if seen == r.Seen {
		return
	}
	if r.Unwatch != nil {
		r.Unwatch()
	}
	r.Seen, r.Unwatch = seen, nil
	if seen != nil {
		x, pod, model, n := in.x, in.pod, in.model, r.Number
		r.Unwatch = context.AfterFunc(seen, func() { x.endDelay(pod, model, n, seen) })
	}
}

// endDelay ends the delay of a rank, if seen is still its context.
func (x *Registry) endDelay(pod, model string, n int, seen context.Context) {
	in := x.newIngest(pod, model)
	defer in.end()
	if !in.find() {
		return
	}
	defer in.leave()
	if r := in.pm.Ranks[n]; r != nil && r.Seen == seen {
		r.Late, r.Seen, r.Unwatch = false, nil, nil
		in.settle()
	}
}

func (in *ingest) write(r *podstate.Rank, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	return in.x.Index.Apply(ctx, in.source(r), cur, changes)
}

// Applying returns a context for a call of the index without a context of a caller. Calls of
// an Indexer's own index cannot hang, so they get no timeout.
func (x *Registry) Applying() (context.Context, context.CancelFunc) {
	if x.OwnsIndex {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), applyTimeout)
}

// source returns the index.Source of a rank.
func (in *ingest) source(r *podstate.Rank) index.Source {
	return index.Source{Pod: in.pod, Model: in.model, Rank: r.Number}
}

// failed adds the rank to an error of the index.
func (in *ingest) failed(r *podstate.Rank, err error) error {
	return in.x.Failed(fmt.Errorf("kvindex: pod %q: model %q: rank %d: %w", in.pod, in.model, r.Number, err))
}

// confirmation checks predictions that a message may have completed. Its memory is used again.
type confirmation struct {
	predict.Confirmation
	prompt  prompt.Prompt
	query   index.Query // its Keys are prompt.KeysIn
	matches index.Matches
}

// noteApplied ends the predictions of a rank that applied changes have completed or made void.
// pod.mu is held.
func (in *ingest) noteApplied(r *podstate.Rank, changes []index.Change, done *index.Effect) {
	if in.confirmation.Find(in.x.ledger, &in.pm.sent, r.Number, changes, done) {
		in.confirm()
	}
}

// confirm queries the index for the suspects. Only pod.order is held during the queries.
func (in *ingest) confirm() {
	c := &in.confirmation
	c.query.Candidates = in.x.catalog.Self(&in.pm.entry, in.pod, in.model).Index
	defer func() {
		c.query.Candidates = nil
		c.prompt.Release()
	}()
	ctx, cancel := in.locked.call(in.x)
	defer in.locked.called(cancel)
	for i := range c.Suspects {
		s := &c.Suspects[i]
		runs, tokens := c.Prompt(s)
		c.prompt.Use(runs, tokens)
		if in.x.Index.Match(ctx, &c.query, &c.matches) != nil {
			return // the TTL ends them
		}
		if s.Holds(c.matches.Rows, tokens) {
			in.x.ledger.Confirm(s)
		}
	}
}
