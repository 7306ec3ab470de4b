// Lower: the state of a stream that reports lower tiers alone, such as an offload daemon's.
//
// stats.Stream.State has the view of the daemon. While it may claim too much, the scores that
// count blocks in lower tiers are upper bounds (view.Facts.Loose). The rule of silent resets
// (index.Change.Unique) holds neither for a daemon nor for an engine whose host memory a daemon
// reports, too.

package podstate

import (
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/view"
)

// lower is what a stream has that reports lower tiers alone.
type lower struct {
	// Declared: the host has declared the stream such a one.
	Declared bool
	// OfGPU: the stream has reported a gpu, or has had a rank. It is such a one no more.
	OfGPU   bool
	Lower   []*Rank      // the ranks that it has reported, which have it in their Lower
	Named   engine.Tiers // the tiers that it has named
	Reports view.State   // of its reports
}

// Lend notes that a stream reports lower tiers of the rank.
func (r *Rank) Lend(st *Stream) {
	if !slices.Contains(r.Lower, st) {
		r.Lower, st.Lower = append(r.Lower, st), append(st.Lower, r)
	}
}

// Return ends what Lend has noted.
func (r *Rank) Return(st *Stream) {
	r.Lower = slices.DeleteFunc(r.Lower, func(o *Stream) bool { return o == st })
	st.Lower = slices.DeleteFunc(st.Lower, func(o *Rank) bool { return o == r })
}

// Others returns the lower tiers of the rank that other streams than st have named. st is nil for
// the engine's.
func (r *Rank) Others(st *Stream) (t engine.Tiers) {
	if st != nil {
		t = r.Tiers
	}
	for _, o := range r.Lower {
		if o != st {
			t |= o.Named
		}
	}
	return t
}

// Spared returns the tiers of the rank that a loss or a clear of st leaves. st is nil for the
// engine's stream.
func (r *Rank) Spared(st *Stream) engine.Tiers {
	if st != nil {
		return ^st.Named & (engine.LowerTiers | 1<<index.TierGPU)
	}
	return r.Others(nil) &^ r.Tiers
}

// Unfed records that tiers were emptied which other streams have named: these streams will not
// report again what they hold. st has emptied them; nil is the engine's.
func (r *Rank) Unfed(st *Stream, tiers engine.Tiers) {
	if st != nil && r.Tiers&tiers != 0 && r.State == view.Live {
		r.On(Forgotten)
	}
	for _, o := range r.Lower {
		if o != st && o.Named&tiers != 0 {
			o.On(Forgotten)
		}
	}
}

// On changes the state of the stream's reports about lower tiers.
func (st *Stream) On(e ViewEvent) { st.Reports = after(st.Reports, e) }

// State returns the worst state of the ranks of the stream or, if it reports lower tiers alone, of
// its reports.
func (st *Stream) State() view.State {
	state := view.Live
	switch {
	case st.opened && st.LastMessage.IsZero():
		return view.Silent
	case len(st.Lower) > 0:
		return st.limit(st.Reports)
	case len(st.Ranks) == 0:
		return st.limit(view.Partial)
	}
	for _, r := range st.Ranks {
		state = min(state, r.View())
	}
	return state
}
