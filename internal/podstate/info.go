package podstate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Info has the fields of kvindex.PodInfo.
type Info struct {
	Pod, Model             string
	State                  view.State
	WantsFullReport        bool
	Connected, LastMessage time.Time
	Profile                *engine.Profile
	Adapters               []string
	Unrecognized           []string
	Ranks                  []RankInfo
	Streams                []stats.Stream
}

// RankInfo has the fields of kvindex.RankInfo.
type RankInfo struct {
	Rank                      int
	State                     view.State
	Stream                    string
	Lag, Age                  time.Duration
	Blocks                    [index.NumTiers]int
	Evicted                   uint64
	Messages, Stored, Removed uint64
	NotHeld                   uint64
	Groups                    []stats.Group
}

// Count adds the states of the pod and of its streams to s.
func (pm *Pod) Count(s *stats.Stats) {
	s.States[pm.Shown.Facts().State.String()]++
	for _, st := range pm.Streams {
		if !st.connected.IsZero() {
			s.Connected++
		}
		switch st.replay() {
		case replayWaiting:
			s.Waiting++
		case replayNone:
			s.NoReplay++
		}
	}
}

// Describe fills in all fields but the names. known has the descriptions of the index.
func (pm *Pod) Describe(info *Info, known map[index.Source]index.SourceInfo, now time.Time, listed bool) {
	info.State, info.Profile = pm.Shown.Facts().State, &pm.Shown.Profile
	info.Adapters = slices.Sorted(maps.Keys(pm.Adapters))
	for _, st := range pm.Streams {
		s := st.info()
		info.Streams = append(info.Streams, s)
		if s.LastMessage.After(info.LastMessage) {
			info.LastMessage = s.LastMessage
		}
		if c := s.Connected; !c.IsZero() && (info.Connected.IsZero() || c.Before(info.Connected)) {
			info.Connected = c
		}
	}
	slices.SortFunc(info.Streams, func(a, b stats.Stream) int { return cmp.Compare(a.Stream, b.Stream) })
	for _, r := range pm.Ranks {
		s := r.info(known[index.Source{Pod: info.Pod, Model: info.Model, Rank: r.Number}], now)
		info.Unrecognized = append(info.Unrecognized, r.Unrecognized...)
		pm.Shown.Profile.Correct(s.Groups)
		info.Ranks = append(info.Ranks, s)
		if s.Evicted > 0 {
			info.State = min(info.State, view.Partial)
		}
		lacks := r.Lossy() || s.Evicted > 0
		if listed {
			lacks = r.LossyThere
		}
		info.WantsFullReport = info.WantsFullReport || lacks && pm.Shown.Profile.Reports(r.Groups)
		if at := r.At.Round(0); at.After(info.LastMessage) { // without a stream
			info.LastMessage = at
		}
	}
	slices.Sort(info.Unrecognized)
	info.Unrecognized = slices.Compact(info.Unrecognized)
	slices.SortFunc(info.Ranks, func(a, b RankInfo) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (r *Rank) info(in index.SourceInfo, now time.Time) RankInfo {
	s := RankInfo{
		Rank: r.Number, State: r.View(), Lag: r.Lag, Messages: r.Messages, Stored: r.Stored, Removed: r.Removed, NotHeld: r.NotHeld,
		Blocks: in.Blocks, Evicted: in.Evicted,
	}
	if s.Evicted > 0 {
		s.State = min(s.State, view.Partial)
	}
	s.Groups = slices.Clone(r.Groups)
	if !r.At.IsZero() {
		s.Age = now.Sub(r.At)
	}
	if st := r.Stream; st != nil {
		if s.Stream = st.Name; st.Waits() || st.Interrupted {
			s.Lag += s.Age
		}
	}
	return s
}

func (st *Stream) info() stats.Stream {
	s := stats.Stream{Stream: st.Name, Connected: st.connected.Round(0), LastMessage: st.LastMessage.Round(0), State: st.State().String(), Tiers: st.Declared && !st.OfGPU || len(st.Lower) > 0, Replay: st.replay(), Traffic: st.Stats}
	s.Next, _ = st.Seq.Next()
	if m := st.Malformed; m.Err != nil {
		s.LastMalformed = stats.Malformed{Seq: m.Seq, Time: m.Time.Round(0), Reason: fault.Reason(m.Err), Error: m.Err.Error()}
	}
	return s
}

// The values of stats.Stream.Replay.
const (
	replayIdle    = "idle"
	replayWaiting = "waiting"
	replayNone    = "none"
)

// replay returns the state of the stream's replay socket.
func (st *Stream) replay() string {
	switch {
	case st.Waits():
		return replayWaiting
	case st.noReplay:
		return replayNone
	}
	return replayIdle
}
