// Package podstate has what was heard of a pod, for a model: its ranks, its streams, and how far
// each can be trusted. It knows no index and no other pod.
//
// # States say what may be wrong
//
// Views that are unknown, silent, partial or live never claim more than the truth.
//
//   - A pod is silent from the moment at which a transport opens a stream of it until the
//     stream brings a message. The worst stream counts, because a rank of which nothing is
//     known may hold anything.
//   - A replaying view may lack removals.
//   - A view whose connection was lost is uncertain, and so is the view that another process
//     has stored in a kept index.
//   - A gap that stays makes the view partial, or uncertain if the policy keeps the blocks.
//   - A clear makes it live, because from then on all is known.
//
// Two things confirm a view: a message that is newer than all before and comes by itself, and
// the end of an answer to a replay. A repeat or a replayed message confirms nothing, because a
// replay may fall silent half-way. A lost connection that comes back, and a restart behind it,
// are one change to uncertain and one back.
//
// # Evictions are no events
//
// An eviction happens to one rank while another is written, so no viewEvent stands for it.
// Rows report it to a score at once, and Describe to people. The view of the rank is partial
// at best from its own next message on.
package podstate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Pod is what was heard of a pod, for a model. Whoever changes it holds a lock of its own.
type Pod struct {
	Shown    view.Pod // what scores read, without a lock
	Ranks    map[int]*Rank
	ByNumber []*Rank // ranks in the order of their numbers
	Streams  map[string]*Stream
	Adapters map[string]struct{} // those that the model was told of
	Recent   engine.Recent
	Formed   engine.Form // that the form of predictions is of, unless that is of the profile
	Silent   int         // streams that are silent
}

func New() Pod {
	return Pod{Ranks: make(map[int]*Rank), Streams: make(map[string]*Stream), Adapters: make(map[string]struct{})}
}

// Rank is a data-parallel rank of a pod, for one model.
type Rank struct {
	Number int
	State  view.State // changed by on alone
	Shown  view.State // the view as settle found it, which scores read
	// stream is the one that feeds the rank, and has it among its ranks; nil if
	// it is fed without numbers.
	Stream  *Stream
	Contest Contest
	Kept    bool // what it holds is in the index from before, and nobody has spoken for it
	// unproven: what it holds is from a snapshot, and it is fed without numbers, so nobody
	// can know whether messages were lost since.
	unproven bool
	Doubt    bool // the index has a note that a loss was kept
	Evicted  bool // when the last message was applied, the index had given up blocks
	delay
	elsewhere
	Lost view.LastLoss
	unknowns
	traffic
	Groups []stats.Group
	Pairs  bool // its blocks are of pairs
}

// delay is that of the last Apply.
type delay struct {
	Late bool // what came last is not in the index, or not seen by others yet
	// seen is done when others see it; nil: nobody will say so. unwatch ends what waits for that.
	Seen    context.Context
	Unwatch func() bool
}

// elsewhere is what other processes know of a rank, or say of it.
type elsewhere struct {
	Told PublishedRank
	// Of a listed pod: whether it is lossy there, and that nobody has said for a while that its
	// state is what it was.
	LossyThere, Stale bool
}

// PublishedRank is what the index was told of a rank.
type PublishedRank struct {
	Is     bool
	State  view.State
	Lossy  bool
	Groups []stats.Group
}

// unknowns are what events have said that is not known, since all was cleared, sorted.
type unknowns struct {
	Unrecognized []string
	MayHoldLess  bool // some of it may have said that blocks have left the cache
}

// traffic is what a rank has said.
type traffic struct {
	Messages        uint64        // applied
	Stored, Removed uint64        // blocks
	Lag             time.Duration // of the newest batch
	At              time.Time     // when that was applied
}

// A ViewEvent is what happened to a rank, as far as it bears on how its view can
// be trusted.
type ViewEvent uint8

const (
	HeardAll  ViewEvent = iota // a batch was applied, and so was all that the engine said before it
	HeardLate                  // a batch was applied, but not all that the engine said before it
	Emptied                    // a batch was applied that says that the cache was emptied
	Doubted                    // messages were lost, and the blocks were kept
	Forgotten                  // messages were lost, and the blocks were forgotten
	Replaced                   // the blocks were forgotten: the engine, or the way to it, is another one
)

// after is the state of a rank in state s after an event. No other rule changes
// the state of a rank.
//
// A batch by itself cures no doubt: what is missing in a view stays missing,
// because an engine announces a block once. An emptied cache does, for from then
// on all is known, whatever was lost before.
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
	case e == HeardLate:
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

// Heard takes note of a batch that was applied at a time. whole: so was all that
// the engine said before it.
func (r *Rank) Heard(b *events.Batch, at time.Time, whole bool) {
	r.Messages++
	r.At, r.Lag = at, 0
	if t := TimeOf(b); !t.IsZero() {
		r.Lag = at.Sub(t)
	}
	clears := false
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case events.Cleared: // what is known from then on is all there is
			clears = true
		case events.Stored:
			r.Groups, r.Pairs = engine.Learn(r.Groups, e), e.Pairs
		}
	}
	switch {
	case clears:
		r.On(Emptied)
		r.Lost = view.LastLoss{At: at}
	case whole:
		r.On(HeardAll)
	default:
		r.On(HeardLate)
	}
}

// Lossy reports that the rank may hold more than is known, or less.
func (r *Rank) Lossy() bool { return r.State == view.Partial || r.State == view.Uncertain }

// Lacks is lossy, or that the index has given up blocks.
func (r *Rank) Lacks() bool { return r.Lossy() || r.Evicted }

// View is the state of the rank, with what its stream waits for.
func (r *Rank) View() view.State {
	state := r.State
	if r.Stream != nil {
		state = r.Stream.Limit(state)
	}
	if r.Contest.Open || r.Kept || r.unproven || r.Late || r.Stale {
		state = min(state, view.Uncertain)
	}
	if r.Evicted {
		state = min(state, view.Partial)
	}
	return state
}

// Settle works out the states that scores have, of the ranks and of the pod, after a
// rank's or a stream's has changed. It returns the pod's one before and the new one.
// heard: events of the pod have come. approximate: as long as none has, the pod is followed by
// what is sent to it.
func (pm *Pod) Settle(approximate bool) (from, to view.State, heard bool) {
	f := pm.Shown.Facts()
	from = f.State
	state, changed := view.Live, false
	f.Less = false
	for _, r := range pm.Ranks {
		f.Less = f.Less || r.MayHoldLess
		its := r.View()
		changed = changed || its != r.Shown
		r.Shown = its
		if r.State != view.Unknown || r.Stream != nil {
			state, heard = min(state, its), true
		}
	}
	if changed {
		pm.ListRanks()
	}
	switch {
	case heard:
	case approximate: // or nothing that could be applied
		pm.Shown.Publish(f)
		return from, view.Approximate, false
	default:
		state = view.Partial
		for _, st := range pm.Streams {
			state = st.Limit(state)
		}
	}
	if pm.Silent > 0 {
		state = min(state, view.Silent)
	}
	f.State = state
	pm.Shown.Publish(f)
	return from, state, heard
}

// Rank returns a rank of pm, made if need be. pod.mu is held.
func (pm *Pod) Rank(n int) (*Rank, error) {
	r := pm.Ranks[n]
	if r == nil {
		if len(pm.Ranks) >= engine.MaxRanks {
			return nil, fmt.Errorf("rank %d is one more than the %d that a pod may have", n, engine.MaxRanks)
		}
		r = &Rank{Number: n}
		pm.Ranks[n] = r
		pm.ListRanks()
	}
	return r, nil
}

// ListRanks brings byNumber up to date, and what scores read of the ranks. pod.mu is held.
func (pm *Pod) ListRanks() {
	pm.ByNumber = slices.SortedFunc(maps.Values(pm.Ranks), func(a, b *Rank) int { return a.Number - b.Number })
	shown := make([]view.Rank, len(pm.ByNumber))
	for i, r := range pm.ByNumber {
		shown[i] = view.Rank{Number: r.Number, State: r.Shown}
	}
	pm.Shown.PublishRanks(shown)
}

// Stream returns a stream of pm, made if need be. pod.mu is held.
func (pm *Pod) Stream(name string) (*Stream, error) {
	st := pm.Streams[name]
	if st == nil {
		if len(name) > engine.MaxName {
			return nil, fmt.Errorf("the name of the stream has %d bytes, more than %d: %.100q", len(name), engine.MaxName, name)
		}
		if len(pm.Streams) >= engine.MaxStreams && !pm.dropStream() {
			return nil, fmt.Errorf("stream %q is one more than the %d that a pod may have", name, engine.MaxStreams)
		}
		st = &Stream{Name: name}
		pm.Streams[name] = st
	}
	return st, nil
}

// dropStream makes room for a stream by forgetting one that feeds no rank and that
// no transport has.
func (pm *Pod) dropStream() bool {
	for name, st := range pm.Streams {
		if len(st.Ranks) == 0 && !st.opened {
			delete(pm.Streams, name)
			return true
		}
	}
	return false
}

// Bind makes a stream the one that feeds a rank. The one that fed it before goes
// with its last rank, unless a transport has it.
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
