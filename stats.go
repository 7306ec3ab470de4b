package kvindex

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
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

// Stats returns the counters. Pods that other processes feed (WithIndex) are in Models, Pods,
// Ranks and the numbers of states; the other figures are about what was heard here. Of such
// a backend Stats asks for news, and waits a second for them at most.
func (x *Indexer) Stats() stats.Stats {
	var s stats.Stats
	x.reg.Stats(&s)
	s.Scores = x.scores()
	if x.prompts != nil {
		s.Prompts = stats.Prompts(x.prompts.Stats())
	}
	return s
}

// Pods appends the pods that were heard, and those that a transport is to bring, to
// dst, ordered by name, then model. So it does with those that other processes feed
// (WithIndex), as far as these have told of them: State, Profile, Adapters, and of Ranks
// Rank, State and Groups. It asks the backend for news of them, and waits a second for these
// at most: else they are as they were.
func (x *Indexer) Pods(dst []PodInfo) []PodInfo {
	from := len(dst)
	for _, d := range x.reg.Pods() {
		info := PodInfo{
			Pod: d.Pod, Model: d.Model, State: State(d.State), WantsFullReport: d.WantsFullReport, Connected: d.Connected, Heard: d.Heard,
			Profile: profileOf(d.Profile), Adapters: d.Adapters, Unrecognized: d.Unrecognized, Streams: d.Streams,
		}
		for _, r := range d.Ranks {
			info.Ranks = append(info.Ranks, RankInfo{
				Rank: r.Rank, State: State(r.State), Stream: r.Stream, Lag: r.Lag, Age: r.Age, Blocks: r.Blocks, Bytes: r.Bytes, Evicted: r.Evicted,
				Messages: r.Messages, Stored: r.Stored, Removed: r.Removed, Groups: r.Groups,
			})
		}
		dst = append(dst, info)
	}
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}
