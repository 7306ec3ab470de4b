// Describe: what is known of pods, for people.

package kvindex

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/explain"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// podInfo is the root's PodInfo.
type podInfo struct {
	Pod, Model       string
	State            view.State
	WantsFullReport  bool
	Connected, Heard time.Time
	Profile          *engine.Profile
	Adapters         []string
	Unrecognized     []string
	Ranks            []rankInfo
	Streams          []stats.Stream
}

// rankInfo is the root's RankInfo.
type rankInfo struct {
	Rank                      int
	State                     view.State
	Stream                    string
	Lag, Age                  time.Duration
	Blocks                    [index.NumTiers]int
	Bytes                     int
	Evicted                   uint64
	Messages, Stored, Removed uint64
	Groups                    []stats.Group
}

// Stats adds to s what is known of pods, messages and predictions.
func (x *registry) Stats(s *stats.Stats) {
	x.listNow()
	x.statsMu.Lock()
	s.Counters, s.MalformedBy = x.stats, maps.Clone(x.malformedBy)
	x.statsMu.Unlock()
	x.ledger.Stats(s)
	x.mu.RLock()
	s.Models = len(x.models)
	x.mu.RUnlock()
	if d, ok := x.index.(index.Describer); ok {
		s.Index = d.Usage()
		for _, info := range d.Describe(nil) {
			s.Ranks++
			s.Parked += info.Parked
			s.Unplaced += info.Unplaced
			for t, n := range info.Blocks {
				s.Blocks[t] += n
			}
		}
	}
	var last *pod
	x.eachPod(func(p *pod, _ string, pm *podModel) {
		if p != last {
			last = p
			s.Pods++
		}
		if pm.listed != nil { // else the index has described them
			s.Ranks += len(pm.ranks)
		}
		pm.count(s)
	})
}

// Pods returns what is known of the pods.
func (x *registry) Pods() (pods []podInfo) {
	if x.closed.Load() {
		return nil
	}
	x.listNow()
	known, now := x.known(), time.Now()
	x.eachPod(func(p *pod, model string, pm *podModel) {
		info := podInfo{Pod: p.name, Model: model}
		pm.describe(&info, known, now)
		pods = append(pods, info)
	})
	return pods
}

// count adds to s what there is now.
func (pm *podModel) count(s *stats.Stats) {
	switch pm.shown.Facts().State {
	case view.Silent:
		s.Silent++
	case view.Uncertain:
		s.Uncertain++
	case view.Replaying:
		s.Replaying++
	case view.Approximate:
		s.Approximate++
	}
	for _, st := range pm.streams {
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

// eachPod calls f for each pod and model, with pod.mu held: for all models of one
// pod, then for those of the next.
func (x *registry) eachPod(f func(p *pod, model string, pm *podModel)) {
	x.mu.RLock()
	pods := slices.Collect(maps.Values(x.pods))
	x.mu.RUnlock()
	for _, p := range pods {
		p.mu.Lock()
		for model, pm := range p.models {
			f(p, model, pm)
		}
		p.mu.Unlock()
	}
}

// known returns what the index knows of each source, if it can tell.
func (x *registry) known() map[index.Source]index.SourceInfo {
	known := make(map[index.Source]index.SourceInfo)
	if d, ok := x.index.(index.Describer); ok {
		for _, s := range d.Describe(nil) {
			known[s.Source] = s
		}
	}
	return known
}

// describe fills in all but the names. known is what the index knows. pod.mu is held.
func (pm *podModel) describe(info *podInfo, known map[index.Source]index.SourceInfo, now time.Time) {
	info.State, info.Profile = pm.shown.Facts().State, &pm.shown.Profile
	info.Adapters = slices.Sorted(maps.Keys(pm.adapters))
	for _, st := range pm.streams {
		s := st.info()
		info.Streams = append(info.Streams, s)
		if s.Heard.After(info.Heard) {
			info.Heard = s.Heard
		}
		if c := s.Connected; !c.IsZero() && (info.Connected.IsZero() || c.Before(info.Connected)) {
			info.Connected = c
		}
	}
	slices.SortFunc(info.Streams, func(a, b stats.Stream) int { return cmp.Compare(a.Stream, b.Stream) })
	for _, r := range pm.ranks {
		s := r.info(known[index.Source{Pod: info.Pod, Model: info.Model, Rank: r.n}], now)
		info.Unrecognized = append(info.Unrecognized, r.unrecognized...)
		pm.shown.Profile.Correct(s.Groups)
		info.Ranks = append(info.Ranks, s)
		if s.Evicted > 0 {
			info.State = min(info.State, view.Partial)
		}
		lacks := r.lossy() || s.Evicted > 0
		if pm.listed != nil {
			lacks = r.lossyThere
		}
		info.WantsFullReport = info.WantsFullReport || lacks && pm.shown.Profile.Reports(r.groups)
		if at := r.at.Round(0); at.After(info.Heard) { // without a stream
			info.Heard = at
		}
	}
	slices.Sort(info.Unrecognized)
	info.Unrecognized = slices.Compact(info.Unrecognized)
	slices.SortFunc(info.Ranks, func(a, b rankInfo) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (r *rank) info(in index.SourceInfo, now time.Time) rankInfo {
	s := rankInfo{
		Rank: r.n, State: r.view(), Lag: r.lag, Messages: r.messages, Stored: r.stored, Removed: r.removed,
		Blocks: in.Blocks, Bytes: in.Bytes, Evicted: in.Evicted,
	}
	if s.Evicted > 0 {
		s.State = min(s.State, view.Partial)
	}
	s.Groups = slices.Clone(r.groups)
	if !r.at.IsZero() {
		s.Age = now.Sub(r.at)
	}
	if st := r.stream; st != nil {
		if s.Stream = st.name; st.waits() || st.interrupted {
			s.Lag += s.Age
		}
	}
	return s
}

func (st *stream) info() stats.Stream {
	s := stats.Stream{Stream: st.name, Connected: st.connected.Round(0), Heard: st.heard.Round(0), Replay: st.replay(), Traffic: st.stats}
	s.Next, _ = st.seq.Next()
	if m := st.malformed; m.err != nil {
		s.LastMalformed = stats.Malformed{Seq: m.seq, Time: m.time.Round(0), Reason: fault.Reason(m.err), Error: m.err.Error()}
	}
	return s
}

// The words of stats.Stream.Replay.
const (
	replayIdle    = "idle"
	replayWaiting = "waiting"
	replayNone    = "none"
)

// replay is what is known of the stream's replay socket.
func (st *stream) replay() string {
	switch {
	case st.waits():
		return replayWaiting
	case st.noReplay:
		return replayNone
	}
	return replayIdle
}

// factsOf returns what is known of a pod beside the index; nil: nothing is.
func (x *registry) factsOf(pod, model string) *explain.Pod {
	known := x.known()
	p, pm := x.lockServed(pod, model)
	if p == nil {
		return nil
	}
	defer p.mu.Unlock()
	f := &explain.Pod{Form: pm.shown.Profile.Media, Drafts: pm.shown.Profile.Draft == engine.DraftLayers, Adapters: slices.Sorted(maps.Keys(pm.adapters)), Recent: pm.recent.Clone(), Silent: pm.silent > 0, Listed: pm.listed != nil}
	if a := pm.sent.Room(); a != nil {
		f.Approx = a.BlockTokens
	}
	for _, n := range slices.Sorted(maps.Keys(pm.ranks)) {
		r := pm.ranks[n]
		st := r.stream
		f.Ranks = append(f.Ranks, explain.Rank{
			Number: n, State: r.view(), Evicted: known[index.Source{Pod: pod, Model: model, Rank: n}].Evicted, Contested: r.contest.open, Waits: r.kept || r.stale || st != nil && (st.waits() || st.interrupted),
			Lost: r.lost, Groups: slices.Clone(r.groups),
		})
		pm.shown.Profile.Correct(f.Ranks[len(f.Ranks)-1].Groups)
		f.Unrecognized = append(f.Unrecognized, r.unrecognized...)
		f.Heard = f.Heard || r.messages > 0 || r.kept || r.state != view.Unknown
	}
	return f
}
