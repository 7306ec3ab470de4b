package podstate

import (
	"slices"

	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/view"
)

// lower is what a stream has that reports lower tiers alone.
type lower struct {
	// Declared: the host has declared the stream such a one.
	Declared bool
	// OfGPU: the stream has reported a gpu, or has had a rank. It is such a one no more.
	OfGPU bool
	Lower []*Rank      // the ranks that it has reported, which have it in their Lower
	Told  engine.Tiers // the tiers that it has named
	Tells view.State   // of its reports
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
			t |= o.Told
		}
	}
	return t
}

// Unfed records that tiers were emptied which other streams have named: these streams will not
// report again what they hold. st has emptied them; nil is the engine's.
func (r *Rank) Unfed(st *Stream, tiers engine.Tiers) {
	if st != nil && r.Tiers&tiers != 0 && r.State == view.Live {
		r.On(Forgotten)
	}
	for _, o := range r.Lower {
		if o != st && o.Told&tiers != 0 {
			o.On(Forgotten)
		}
	}
}

// On changes the state of the stream's reports about lower tiers.
func (st *Stream) On(e ViewEvent) { st.Tells = after(st.Tells, e) }

// State returns the worst state of the ranks of the stream or, if it reports lower tiers alone, of
// its reports.
func (st *Stream) State() view.State {
	state := view.Live
	switch {
	case st.opened && st.LastMessage.IsZero():
		return view.Silent
	case len(st.Lower) > 0:
		return st.Limit(st.Tells)
	case len(st.Ranks) == 0:
		return st.Limit(view.Partial)
	}
	for _, r := range st.Ranks {
		state = min(state, r.View())
	}
	return state
}
