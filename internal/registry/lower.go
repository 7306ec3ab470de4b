// Lower: streams that report lower tiers alone.
//
// An offload daemon beside an engine (LMCache in a process of its own) publishes what it holds
// in the memory of the host and in storage, with numbers, gaps and restarts of its own. It does
// not feed the rank of the engine. So it has no part in its state, which is about the gpu, and
// takes it from nobody.
//
// # Which streams these are
//
// Those that the host names (events.NoteTiers, SubscriberConfig.Tiers), and those whose
// events have named lower tiers and never the gpu. Both end with the first event about the gpu:
// then the stream is one like all others, and the rules of contest.go hold. The blocks of lower
// tiers that it has reported are forgotten with that, unless no other stream has the rank.
//
// Events alone are not enough. An engine that has moved to another address may begin with
// an event about the host memory, and the blocks of the gpu in the index are then an older engine's. So
// at the first message of such a stream the rank is uncertain until its own stream confirms it.
// An event that empties the cache and names no tier is the gpu's until the stream is known to be
// a daemon's: to believe that blocks stay would be worse than to forget them. Where the host
// names the stream, neither happens, and its silence makes no pod silent.
//
// # What is forgotten
//
// After a gap, a restart or a malformed message the tiers that the stream has named are empty,
// also if WithKeepOnLoss is set. So they are where the stream itself empties the cache without
// naming a tier. A gap of the engine, and its event that the cache is empty, leave the tiers
// that only a daemon has named. A tier that both have named is emptied by either: nothing shows
// whose copies are which. Then the other's view is partial.
//
// An engine that restarts, or moves, may give its blocks other hashes (vLLM without
// PYTHONHASHSEED), and the daemon's blocks have their places by the hashes of the engine. So
// all tiers are forgotten then, and the daemon's view is partial.

package registry

import (
	"errors"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
)

// ofLower reports whether the stream of the message is about lower tiers alone.
func (d *delivery) ofLower() bool {
	st := d.stream
	if len(st.Ranks) > 0 || st.OfGPU {
		return false
	}
	known := st.Declared || len(st.Lower) > 0
	if d.bad != nil {
		return known
	}
	named, clears := engine.TiersOf(d.batch)
	return !named.Has(index.TierGPU) && (known || named != 0 && !clears)
}

// joinLower continues a stream that an index has from before. It does not have the tiers of the
// stream, so they may be any.
func (in *ingest) joinLower(st *podstate.Stream) error {
	if len(st.Lower) > 0 {
		return nil
	}
	its, last, err := in.resume(st)
	if err != nil || last.Next == 0 {
		return err
	}
	st.Named, st.Interrupted = engine.LowerTiers, true
	for i, r := range in.pm.ByNumber {
		if its[i].Next > 0 && its[i].Epoch == last.Epoch {
			lent(r, st)
		}
	}
	return nil
}

// lent notes that the stream names a rank.
func lent(r *podstate.Rank, st *podstate.Stream) {
	if main := r.Stream; main != nil && !st.Declared && !slices.Contains(r.Lower, st) {
		main.Interrupted = true // st may be the engine's, at another address
	}
	r.Lend(st)
}

// takeLower applies a readable message of a stream about lower tiers alone. again:
// another writer of the index had applied it.
func (d *delivery) takeLower() (again bool, err error) {
	r, st, v := d.rank, d.stream, &d.verdict
	lost := v.Gap.Lost || v.Restarted
	if lost {
		if err := d.emptyLower(r); err != nil {
			return false, err
		}
	}
	switch {
	case !slices.Contains(r.Lower, st):
		d.clearUnknown(r)
	case lost:
		d.convert.Changes = engine.AppendClear(d.convert.Changes, r.Spared(d.lower))
		d.noteLoss(r.Number)
	}
	d.convert.Partial = r.Lossy()
	done, err := d.apply(r, d.cursor())
	full := errors.Is(err, index.ErrFull)
	if err != nil && !full || done.Duplicate {
		return done.Duplicate, err
	}
	lent(r, st)
	st.Judge(v, lost)
	d.lostLower(lost)
	_, clears := engine.TiersOf(d.batch)
	switch {
	case full:
		st.Partial = true
		st.On(podstate.Forgotten)
		l := d.loss(r.Number, view.LossFull)
		l.Err = err
		d.losses = append(d.losses, l)
		return false, err
	case clears && len(st.Lower) == 1:
		st.On(podstate.Emptied)
	case st.Partial:
		st.On(podstate.AppliedLate)
	default:
		st.On(podstate.AppliedAll)
	}
	r.Messages++
	d.noteKinds()
	return false, nil
}

// lostLower records a loss of a stream about lower tiers alone.
func (d *delivery) lostLower(lost bool) {
	switch st := d.stream; {
	case !lost:
		return
	case d.verdict.Restarted:
		st.On(podstate.Replaced)
	default:
		st.On(podstate.Forgotten)
	}
	if len(d.losses) == 0 { // a loss is reported, even if no rank had anything to lose
		d.noteLoss(-1)
	}
}

// emptyLower forgets the blocks that the stream has reported of its ranks, but for one, which follows.
func (d *delivery) emptyLower(but *podstate.Rank) error {
	for _, r := range d.stream.Lower {
		if r == but {
			continue
		}
		if err := d.loseLower(r, d.cursor()); err != nil {
			return err
		}
		d.noteLoss(r.Number)
	}
	return nil
}

// loseLower forgets the tiers of a rank that in.lower has named.
func (in *ingest) loseLower(r *podstate.Rank, cur index.Cursor) error {
	_, err := in.applyChanges(r, cur, engine.AppendClear(nil, r.Spared(in.lower)))
	if errors.Is(err, index.ErrFull) { // it has nothing to lose
		return nil
	}
	return err
}

// speaksOfGPU makes a stream about lower tiers alone one like all others.
func (d *delivery) speaksOfGPU() error {
	st := d.stream
	if len(st.Lower) == 0 {
		return nil
	}
	d.lower = st
	defer func() { d.lower = nil }()
	for _, r := range slices.Clone(st.Lower) {
		if r == d.rank && r.Stream == nil && r.State == view.Unknown { // it is the engine's
			d.found = true
			r.Tiers |= st.Named
		} else if err := d.loseLower(r, index.Cursor{}); err != nil {
			return err
		}
		r.Return(st)
	}
	st.OfGPU = true
	return nil
}

// removeLower forgets the blocks of lower tiers that a removed stream has reported.
func (in *ingest) removeLower(st *podstate.Stream) error {
	if st == nil {
		return nil
	}
	in.lower = st
	defer func() { in.lower = nil }()
	for _, r := range slices.Clone(st.Lower) {
		if err := in.loseLower(r, index.Cursor{}); err != nil {
			return err
		}
		r.Return(st)
	}
	return nil
}

// beginLower forgets the blocks of lower tiers that a stream that begins again has reported. cause is the loss to
// report, or "".
func (in *ingest) beginLower(st *podstate.Stream, anew index.Cursor, cause string) error {
	in.lower = st
	defer func() { in.lower = nil }()
	for _, r := range st.Lower {
		if err := in.loseLower(r, anew); err != nil {
			return err
		}
		if cause != "" {
			in.losses = append(in.losses, Loss{Pod: in.pod, Model: in.model, Stream: st.Name, Rank: r.Number, Cause: cause, Tiers: true})
		}
	}
	st.On(podstate.Replaced)
	return nil
}
