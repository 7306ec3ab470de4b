package kvindex

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// State says how far the scores of a pod can be trusted.
//
// In StateReplaying and StateUncertain a score may count blocks that the pod has
// removed, because events about removals may be missing. In the other states it does
// not. In all states but StateLive the pod may hold blocks that its score does not
// count. In JSON a State is its String.
//
// A router can use the score in every state: a score that is too high costs the time to
// compute one prompt, and never makes an answer wrong. States are about events and not
// about health: a pod that has crashed is StateUncertain like any other lost
// connection.
type State uint8

// The states. Their texts are unknown, silent, uncertain, replaying, partial, live and
// approximate. Each rank and each stream of a pod has one, and the pod has the first of
// them in this order. So a pod with one silent stream is StateSilent, whatever its other
// streams bring. PodInfo.Ranks and an answer with Request.Ranks have the states of
// the ranks.
const (
	// StateUnknown: no event of the pod was applied, or none since the engine restarted.
	StateUnknown = State(view.Unknown)
	// StateSilent: a transport follows a stream of the pod that has brought no message.
	StateSilent = State(view.Silent)
	// StateUncertain: the connection was lost, and no newer message has come since; or
	// there was a loss, and WithKeepOnLoss kept the blocks; or two streams contest a rank; or
	// the blocks come from a backend (WithIndex) or a snapshot (Restore), and its streams
	// have not continued; or another process feeds the pod, and nobody has said so for a
	// while; or the backend did not take the last message, or not show it to others yet.
	StateUncertain = State(view.Uncertain)
	// StateReplaying: messages are missing, and a transport asks the engine for them, or
	// applies the older messages that it has got.
	StateReplaying = State(view.Replaying)
	// StatePartial: some of the past is not known: from before the first message, or
	// forgotten after a loss, or because the index was full (RankInfo.Evicted). It ends
	// when the engine empties its cache or restarts, or when a replay brings everything.
	StatePartial = State(view.Partial)
	// StateLive: all that the engine has published since its start is known.
	StateLive = State(view.Live)
	// StateApproximate: no event has come, and none is expected. What the pod holds is
	// believed, from what was sent to it (Profile.Approximate). A pod with this state has no
	// rank or stream with another one.
	StateApproximate = State(view.Approximate)
)

func (s State) String() string { return view.State(s).String() }

// MarshalText returns the String of s.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func nameOf[E ~uint8](names []string, e E) string {
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}

// textOf is what JSON has of an error; "" if it is nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// PodInfo describes a pod for one model.
type PodInfo struct {
	Pod   string
	Model string
	State State // of the pod: the first, in the order of the constants, that a rank or a stream has
	// WantsFullReport says that the engine may hold blocks that it will never announce
	// again by itself, after a loss or because the index has given them up. vLLM since PR 45261 has a request field for that: a request with
	// "vllm_xargs": {"kv_cache_report_mode": "full"} makes the engine announce again
	// the blocks that this request finds in its cache. With CopiesGuarded these
	// announcements do no harm.
	//
	// It is false for models with Mamba layers, and if a group is of an unknown kind, or of
	// an unknown window or chunk: an announcement does not show what such a group holds.
	WantsFullReport bool
	// Connected is the time since when a connection to the pod stands. It is zero if there
	// is no connection, or the transport does not report it. Heard is the time of the last
	// message by the clock of this machine, zero if there was none.
	Connected, Heard time.Time
	Profile          Profile  // with its defaults filled in
	Adapters         []string // that events have named, in the order of names; numbers of Profile.Adapters by their names
	// Unrecognized is what events have said that this version of kvindex does not know, in
	// words, since the pod was cleared: kinds of events, labels, forms of extra keys. Scores
	// may be too low then or, where PodScore.UpperBound is set, too high. It has some of
	// them if there are many.
	Unrecognized []string
	// Ranks are ordered by number, Streams by name.
	Ranks   []RankInfo
	Streams []stats.Stream
}

// RankInfo describes one rank of a pod.
type RankInfo struct {
	Rank  int
	State State
	// Stream is the stream that the rank's newest message came over; "" if messages came
	// without numbers.
	Stream string
	// Lag is how far the view is behind the engine: the time when the newest batch was
	// applied, by the clock of this machine, minus the time in the batch, by the engine's
	// clock. It is 0 if the batch has no time, and negative if the engine's clock is
	// ahead. It grows while messages wait and while the connection is lost.
	// Age is the time since the newest batch was applied; 0 if there was none.
	Lag, Age time.Duration
	// Blocks is the number of blocks that the rank holds, by Tier. Bytes is the memory for
	// the engine's hashes of them. Both are 0 if the index cannot tell.
	Blocks [index.NumTiers]int
	Bytes  int
	// Evicted is the number of blocks, counted as in Blocks, that the index has given up
	// since the rank was last cleared, because it had no room for them (WithMemory). If it
	// is not 0, State is StatePartial at best.
	Evicted uint64

	Messages        uint64 // that were applied
	Stored, Removed uint64 // blocks, in the messages that were applied
	// Groups are the KV-cache groups that events about the gpu have named.
	Groups []stats.Group
}

// addCounters adds the counters of s to those of t. Both are looked at as the words
// that they are, so that a counter that is new has to be named in its struct alone;
// TestCountersAreWords holds that there is nothing else in them.
//
// The sum stays at the largest number: a pod may claim any sequence numbers, so
// Missing and PassedOver could go round.
func addCounters[T stats.Counters | stats.Traffic | scoreCounts](t, s *T) {
	sum, more := words(t), words(s)
	for i, n := range more {
		sum[i] += min(n, math.MaxUint64-sum[i])
	}
}

func words[T stats.Counters | stats.Traffic | scoreCounts](t *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t)), unsafe.Sizeof(*t)/8)
}

// Stats returns the counters. Pods that other processes feed (WithIndex) are in Models, Pods,
// Ranks and the numbers of states; the other figures are about what was heard here. Of such
// a backend Stats asks for news, and waits a second for them at most.
func (x *Indexer) Stats() stats.Stats {
	var s stats.Stats
	x.listNow()
	x.statsMu.Lock()
	s.Counters, s.MalformedBy = x.stats, maps.Clone(x.malformedBy)
	x.statsMu.Unlock()
	s.Scores = x.scores()
	x.ledger.Stats(&s)
	if x.prompts != nil {
		s.Prompts = stats.Prompts(x.prompts.Stats())
	}
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
		pm.count(&s)
	})
	return s
}

// count adds to s what there is now.
func (pm *podModel) count(s *stats.Stats) {
	switch State(pm.shown.Facts().State) {
	case StateSilent:
		s.Silent++
	case StateUncertain:
		s.Uncertain++
	case StateReplaying:
		s.Replaying++
	case StateApproximate:
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
func (x *Indexer) eachPod(f func(p *pod, model string, pm *podModel)) {
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

// Pods appends the pods that were heard, and those that a transport is to bring, to
// dst, ordered by name, then model. So it does with those that other processes feed
// (WithIndex), as far as these have told of them: State, Profile, Adapters, and of Ranks
// Rank, State and Groups. It asks the backend for news of them, and waits a second for these
// at most: else they are as they were.
func (x *Indexer) Pods(dst []PodInfo) []PodInfo {
	if x.closed.Load() {
		return dst
	}
	x.listNow()
	from, known, now := len(dst), x.known(), time.Now()
	x.eachPod(func(p *pod, model string, pm *podModel) {
		info := PodInfo{Pod: p.name, Model: model}
		pm.describe(&info, known, now)
		dst = append(dst, info)
	})
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}

// known returns what the index knows of each source, if it can tell.
func (x *Indexer) known() map[index.Source]index.SourceInfo {
	known := make(map[index.Source]index.SourceInfo)
	if d, ok := x.index.(index.Describer); ok {
		for _, s := range d.Describe(nil) {
			known[s.Source] = s
		}
	}
	return known
}

// describe fills in all but the names. known is what the index knows. pod.mu is held.
func (pm *podModel) describe(info *PodInfo, known map[index.Source]index.SourceInfo, now time.Time) {
	info.State, info.Profile = State(pm.shown.Facts().State), profileOf(&pm.shown.Profile)
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
			info.State = min(info.State, StatePartial)
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
	slices.SortFunc(info.Ranks, func(a, b RankInfo) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (r *rank) info(in index.SourceInfo, now time.Time) RankInfo {
	s := RankInfo{
		Rank: r.n, State: State(r.view()), Lag: r.lag, Messages: r.messages, Stored: r.stored, Removed: r.removed,
		Blocks: in.Blocks, Bytes: in.Bytes, Evicted: in.Evicted,
	}
	if s.Evicted > 0 {
		s.State = min(s.State, StatePartial)
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
