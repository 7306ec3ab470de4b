// Package podstate has the ranks and streams of a pod for one model, and how far each can be
// trusted. It depends on no index and no other pod.
//
// # States show what may be wrong
//
// Views that are unknown, silent, partial or live never claim blocks that the pod lacks.
//
//   - A pod is silent from the moment at which a transport opens a stream of it until the
//     stream brings a message. The worst stream counts, because a rank that has reported
//     nothing may hold anything.
//   - A replaying view may lack removals.
//   - A view whose connection was lost is uncertain, and so is the view that another process
//     has stored in a kept index.
//   - A gap that no replay fills makes the view partial, or uncertain if the policy keeps the
//     blocks.
//   - A clear makes the view live, because from then on it is complete.
//
// Two things confirm a view: a live message that is newer than all before, and the end of a
// replay. A repeat or a replayed message confirms nothing, because a replay may stop half-way.
// A lost connection that comes back, and a restart after it, are one change to uncertain and
// one back.
//
// # Evictions are no events
//
// An eviction happens to one rank while another rank is written, so no ViewEvent stands for
// it. Rows report it to a score at once, and Describe reports it to people. The view of the
// rank is partial at best from its own next message on.
package podstate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Pod is the state of a pod for one model. It is not safe for concurrent use, except Shown: the
// registry locks it (pod.mu).
type Pod struct {
	Shown    view.Pod // the view that scores read, without a lock
	Ranks    map[int]*Rank
	ByNumber []*Rank // ranks in the order of their numbers
	Streams  map[string]*Stream
	Adapters map[string]struct{} // adapters that events have named
	Recent   engine.Recent
	Formed   engine.Form // the form of blocks that predictions use, unless it is from the profile
	Silent   int         // the number of silent streams

	published publishedPod
}

// New returns a Pod without ranks and streams.
func New() Pod {
	return Pod{Ranks: make(map[int]*Rank), Streams: make(map[string]*Stream), Adapters: make(map[string]struct{})}
}

// Rank is a data-parallel rank of a pod, for one model.
type Rank struct {
	Number int
	State  view.State // changed by On alone
	Shown  view.State // the state that Settle has published
	// Stream is the stream that feeds the rank, and has the rank in its Ranks; nil if
	// the messages of the rank have no numbers.
	Stream  *Stream
	Lower   []*Stream    // streams that report lower tiers alone, of the rank, too
	Tiers   engine.Tiers // lower tiers that events of the engine have named
	Contest Contest
	Kept    bool // its blocks are in the index from before, and no stream has brought a message
	// unproven: its blocks are from a snapshot or a kept index, and its messages have no
	// numbers, so a loss since then would not show.
	unproven bool
	Doubt    bool // the index has a note that a loss was kept
	Evicted  bool // when the last message was applied, the index had evicted blocks
	delay
	elsewhere
	Lost view.LastLoss
	Unknowns
	traffic
	Groups []stats.Group
	Pairs  bool // its blocks have pairs of tokens (EAGLE)
	Ages   Ages
}

// delay is the delay of the last Apply.
type delay struct {
	Late      bool // the last message is not in the index, or other processes do not see it yet
	Uncleared bool // its blocks should have been forgotten, and the index failed: the next message clears them
	// Seen is done when other processes see the message; nil: no such notice comes. Unwatch
	// stops the function that waits for it.
	Seen    context.Context
	Unwatch func() bool
}

// elsewhere has the published note of a rank, or the note of another process about it.
type elsewhere struct {
	published publishedRank
	// LossyThere and Stale are for listed pods: the rank is lossy in the process that feeds it,
	// and that process has not confirmed its state for a while.
	LossyThere, Stale bool
}

// Unknowns are the parts of events that are not recognized, since the last clear.
type Unknowns struct {
	Unrecognized []string // sorted
	MayHoldLess  bool     // one of them may have been a removal
}

// traffic counts the messages of a rank.
type traffic struct {
	Messages        uint64        // applied
	Stored, Removed uint64        // blocks
	NotHeld         uint64        // removals of blocks that were not held
	Lag             time.Duration // of the newest batch
	At              time.Time     // when that was applied
}

// A ViewEvent is something that happened to a rank and may change its state.
type ViewEvent uint8

const (
	AppliedAll  ViewEvent = iota // a batch was applied, after all earlier batches of the engine
	AppliedLate                  // a batch was applied, and earlier batches of the engine were not
	Emptied                      // a batch was applied with an event that the cache was emptied
	Doubted                      // messages were lost, and the blocks were kept
	Forgotten                    // messages were lost, and the blocks were forgotten
	Replaced                     // the blocks were forgotten: the engine restarted, or another stream feeds the rank
)

// after returns the state of a rank in state s after an event. No other rule changes
// the state of a rank.
//
// A batch does not make a partial or uncertain view live: missing blocks stay missing,
// because an engine announces a block once. An emptied cache does: from then on the view
// is complete, whatever was lost before.
func after(s view.State, e ViewEvent) view.State {
	switch {
	case e == Emptied:
		return view.Live
	case e == Doubted:
		return view.Uncertain
	case e == Forgotten:
		return view.Partial
	case e == Replaced:
		return view.Unknown
	case s != view.Unknown:
		return s
	case e == AppliedLate:
		return view.Partial
	}
	return view.Live
}

// On changes the state by an event.
func (r *Rank) On(e ViewEvent) {
	r.State = after(r.State, e)
	if e == Emptied || e == Forgotten || e == Replaced {
		r.unproven = false
	}
}

// Unnumbered records a message without a number: it does not show that no message before it is
// missing.
func (r *Rank) Unnumbered() { r.unproven, r.Kept = r.unproven || r.Kept, false }

// Applied records a batch that was applied at a time. whole: all earlier batches of the engine
// were applied too.
func (r *Rank) Applied(b *events.Batch, at time.Time, whole bool) {
	r.Messages++
	r.At, r.Lag = at, 0
	if t := timeOf(b); !t.IsZero() {
		r.Lag = at.Sub(t)
	}
	clears := false
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case events.Cleared: // from then on the view is complete
			clears = clears || engine.ClearsGPU(e)
		case events.Stored:
			r.Groups = engine.Learn(r.Groups, e)
			if len(e.Tokens) > 0 { // hashes alone do not show pairs
				r.Pairs = e.Pairs
			}
		}
	}
	switch {
	case clears:
		r.On(Emptied)
		r.Lost = view.LastLoss{At: at}
	case whole:
		r.On(AppliedAll)
	default:
		r.On(AppliedLate)
	}
}

// Restarted forgets the groups of the rank: those of the engine that has restarted may be others.
func (r *Rank) Restarted() { r.Groups, r.Pairs = nil, false }

// Lossy reports whether the rank may hold more or fewer blocks than the index has of it.
func (r *Rank) Lossy() bool { return r.State == view.Partial || r.State == view.Uncertain }

// lacks reports whether the rank is lossy or the index has evicted blocks of it.
func (r *Rank) lacks() bool { return r.Lossy() || r.Evicted }

// View returns the state of the rank as its stream and other conditions limit it.
func (r *Rank) View() view.State {
	state := r.State
	if r.Stream != nil {
		state = r.Stream.limit(state)
	}
	if state == view.Unknown && r.Stream == nil && len(r.Lower) > 0 {
		state = view.Partial // nothing is known of its gpu
	}
	if r.Contest.Open || r.Kept || r.unproven || r.Late || r.Uncleared || r.Stale {
		state = min(state, view.Uncertain)
	}
	if r.Evicted {
		state = min(state, view.Partial)
	}
	return state
}

// reports reports whether events of the rank have come, or a stream of it.
func (r *Rank) reports() bool { return r.State != view.Unknown || r.Stream != nil }

// Reports reports whether events of the pod have come.
func (pm *Pod) Reports() bool { return slices.ContainsFunc(pm.ByNumber, (*Rank).reports) }

// Settle publishes the states of the ranks and of the pod, after the state of a rank or of a
// stream has changed. It returns the state of the pod before and after. approximate: the pod is
// estimated, because no event of it has come.
func (pm *Pod) Settle(approximate bool) (from, to view.State) {
	f := pm.Shown.Facts()
	from = f.State
	state, heard, changed := view.Live, false, false
	f.Less, f.Loose = false, false
	for _, r := range pm.Ranks {
		f.Less = f.Less || r.MayHoldLess
		its := r.View()
		changed = changed || its != r.Shown
		r.Shown = its
		if r.reports() {
			state, heard = min(state, its), true
		}
	}
	if changed {
		pm.publishRanks()
	}
	switch {
	case heard:
	case approximate: // no event could be applied
		pm.Shown.Publish(f)
		return from, view.Approximate
	default:
		state = view.Partial
		for _, st := range pm.Streams {
			state = st.limit(state)
			if (st.opened || st.Declared) && st.LastMessage.IsZero() {
				state = min(state, view.Silent)
			}
		}
	}
	if pm.Silent > 0 {
		state = min(state, view.Silent)
	}
	for _, st := range pm.Streams {
		if len(st.Lower) > 0 {
			its := st.State()
			f.Loose = f.Loose || its == view.Uncertain || its == view.Replaying
		}
	}
	f.State = state
	pm.Shown.Publish(f)
	return from, state
}

// Rank returns a rank of pm, made if needed.
func (pm *Pod) Rank(n int) (*Rank, error) {
	r := pm.Ranks[n]
	if r == nil {
		if len(pm.Ranks) >= engine.MaxRanks {
			return nil, fmt.Errorf("rank %d: %w: the pod has %d ranks already", n, index.ErrFull, engine.MaxRanks)
		}
		r = &Rank{Number: n}
		pm.Ranks[n] = r
		pm.ListRanks()
	}
	return r, nil
}

// ListRanks updates ByNumber, and publishes the ranks.
func (pm *Pod) ListRanks() {
	pm.ByNumber = slices.SortedFunc(maps.Values(pm.Ranks), func(a, b *Rank) int { return a.Number - b.Number })
	pm.publishRanks()
}

// publishRanks publishes the ranks with their states.
func (pm *Pod) publishRanks() {
	shown := make([]view.Rank, len(pm.ByNumber))
	for i, r := range pm.ByNumber {
		shown[i] = view.Rank{Number: r.Number, State: r.Shown}
	}
	pm.Shown.PublishRanks(shown)
}

// CheckStream refuses the name of a stream that is too long.
func CheckStream(name string) error {
	if len(name) > engine.MaxName {
		return fmt.Errorf("the name of the stream has %d bytes, more than %d: %.100q", len(name), engine.MaxName, name)
	}
	return nil
}

// Stream returns a stream of pm, made if needed.
func (pm *Pod) Stream(name string) (*Stream, error) {
	st := pm.Streams[name]
	if st == nil {
		if err := CheckStream(name); err != nil {
			return nil, err
		}
		if len(pm.Streams) >= engine.MaxStreams && !pm.dropStream() {
			return nil, fmt.Errorf("stream %q: %w: the pod has %d streams already", name, index.ErrFull, engine.MaxStreams)
		}
		st = &Stream{Name: name}
		pm.Streams[name] = st
	}
	return st, nil
}

// dropStream makes room by forgetting a stream that feeds no rank and that no transport has
// opened. It reports whether it found one.
func (pm *Pod) dropStream() bool {
	for name, st := range pm.Streams {
		if len(st.Ranks)+len(st.Lower) == 0 && !st.opened {
			delete(pm.Streams, name)
			return true
		}
	}
	return false
}

// Bind makes st the stream that feeds a rank. The previous stream is forgotten with its last
// rank, unless a transport has opened it.
func (pm *Pod) Bind(r *Rank, st *Stream) {
	old := r.Stream
	if old == st {
		return
	}
	if old != nil {
		old.Ranks = slices.DeleteFunc(old.Ranks, func(o *Rank) bool { return o == r })
		if len(old.Ranks) == 0 && !old.opened {
			delete(pm.Streams, old.Name)
		}
	}
	r.Stream, r.Kept = st, false
	st.Ranks = append(st.Ranks, r)
}
