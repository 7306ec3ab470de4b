package kvindex

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// State shows how far the scores of a pod can be trusted.
//
// In StateReplaying and StateUncertain a score may count blocks that the pod has
// removed, because events about removals may be missing. In the other states it does
// not. In all states but StateLive the pod may hold blocks that its score does not
// count. In JSON a State is its String.
//
// A router can use the score in every state: a score that is too high costs the time to
// compute one prompt, and never makes an answer wrong. States are about events and not
// about health: a pod that has crashed is StateUncertain, like a pod whose connection was
// lost for any other reason.
type State uint8

// The states. Their texts are unknown, silent, uncertain, replaying, partial, live and
// approximate. Each rank and each stream of a pod has a state, and the state of the pod is
// the first of them in this order, without streams of offload daemons (stats.Stream.Tiers). So a pod with one silent stream is StateSilent, whatever
// its other streams bring. PodInfo.Ranks and an answer with Request.Ranks have the states of
// the ranks.
const (
	// StateUnknown: no event of the pod was applied, or none since the engine restarted.
	StateUnknown State = iota
	// StateSilent: a transport follows a stream of the pod that has brought no message.
	StateSilent
	// StateUncertain: the connection was lost, and no newer message has come since; or
	// there was a loss, and WithKeepOnLoss kept the blocks; or two streams contest a rank; or
	// the blocks come from a backend (WithIndex) or a snapshot (Restore), and its streams
	// have not continued; or another process feeds the pod, and has published nothing for a
	// while; or the backend refused the last message, or does not show it to other processes
	// yet.
	StateUncertain
	// StateReplaying: messages are missing, and a transport has requested a replay or
	// applies the older messages of one.
	StateReplaying
	// StatePartial: a part of the cache is not known: it was stored before the first message,
	// or forgotten after a loss or because the index was full (RankInfo.Evicted). The state
	// ends when the engine empties its cache or restarts, or when a replay brings everything.
	StatePartial
	// StateLive: everything that the engine has published since its start is known.
	StateLive
	// StateApproximate: no event has come, and none is expected. The blocks of the pod are
	// estimated from the prompts that were routed to it (Profile.Approximate). No rank or
	// stream of the pod has another state.
	StateApproximate
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

// textOf returns the text of err for JSON, "" if err is nil.
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
	State State // the first state, in the order of the constants, of its ranks and streams
	// WantsFullReport is true if the engine may hold blocks that it will never announce
	// again by itself, after a loss or an eviction from the index. vLLM since PR 45261 has a
	// request field for this: a request with
	// "vllm_xargs": {"kv_cache_report_mode": "full"} makes the engine announce again
	// the blocks that this request finds in its cache. With CopiesGuarded these
	// announcements do no harm.
	//
	// It is false for models with Mamba layers, and if a group has an unknown kind, window
	// or chunk: an announcement does not show the blocks of such a group.
	WantsFullReport bool
	// Connected is the time since which a connection to the pod exists. It is zero if there
	// is no connection, or the transport does not report it. LastMessage is the time of the last
	// message by the clock of this machine, zero if there was none.
	Connected, LastMessage time.Time
	Profile                Profile  // with its defaults filled in
	Adapters               []string // adapters that events have named, sorted; numbers of Profile.Adapters by their names
	// Unrecognized describes parts of events that this version of kvindex does not recognize,
	// since the pod was cleared: kinds of events, labels, forms of extra keys. Scores may be
	// too low then or, where PodScore.UpperBound is set, too high. If there are many, the
	// list is not complete.
	Unrecognized []string
	// Ranks are ordered by number, and Streams by name.
	Ranks   []RankInfo
	Streams []stats.Stream
}

// RankInfo describes one rank of a pod.
type RankInfo struct {
	Rank  int
	State State
	// Stream is the stream that brought the rank's newest message; "" if messages came
	// without numbers.
	Stream string
	// Lag is the delay of the view behind the engine: the time when the newest batch was
	// applied, by the clock of this machine, minus the time in the batch, by the engine's
	// clock. It is 0 if the batch has no time, and negative if the engine's clock is
	// ahead. It grows while messages wait and while the connection is lost.
	// Age is the time since the newest batch was applied; 0 if there was none.
	Lag, Age time.Duration
	// Blocks is the number of blocks that the rank holds, by Tier; 0 if the index does
	// not report it.
	Blocks [index.NumTiers]int
	// Evicted is the number of blocks, counted as in Blocks, that the index has evicted
	// since the rank was last cleared, because it had no room for them (WithMemory). If it
	// is not 0, State is StatePartial at best.
	Evicted uint64

	Messages        uint64 // applied messages
	Stored, Removed uint64 // blocks, in the applied messages
	// NotHeld is the part of Removed that the rank did not hold. A live rank has nearly none. A
	// large share means that the engine sends evictions of another tier as those of the gpu, as
	// vLLM's SimpleCPUOffloadConnector does: CachedTokens is too low then.
	NotHeld uint64
	// Groups are the KV-cache groups that events about the gpu have named since the engine
	// started.
	Groups []stats.Group
}

// Stats returns the counters. Pods that other processes feed (WithIndex) are in Models, Pods,
// Ranks and the numbers of states; the other figures are about the messages of this Indexer.
// With such a backend, Stats first requests the listing of pods, and waits a second at most.
func (x *Indexer) Stats() stats.Stats {
	var s stats.Stats
	x.reg.Stats(&s)
	for state := range StateApproximate + 1 {
		s.States[state.String()] += 0 // all words are keys
	}
	s.Scores = x.scores()
	var p prefixcache.Stats
	if x.prompts != nil {
		p = x.prompts.Stats()
	}
	s.Prompts = stats.Prompts{
		Lookups:    map[string]uint64{"whole": p.Whole, "grown": p.Grown, "unknown": p.Unknown, "past": p.Past},
		BytesKnown: p.BytesKnown, BytesEncoded: p.BytesEncoded, Entries: p.Entries, Bytes: p.Bytes, Evicted: p.Evicted,
	}
	return s
}

// Pods appends to dst the pods that have reported and those that a transport follows, ordered
// by name, then model. It also appends the pods that other processes feed (WithIndex), with
// the published fields: State, Profile, Adapters, and in Ranks Rank, State and Groups. Pods
// requests their listing from the backend, and waits a second at most: else it uses the last
// listing.
func (x *Indexer) Pods(dst []PodInfo) []PodInfo {
	from := len(dst)
	pods := x.reg.Pods()
	dst = slices.Grow(dst, len(pods))
	for i := range pods {
		dst = append(dst, infoOf(&pods[i]))
	}
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}

// Pod is Pods for one pod and model, by the last listing. It returns false for a pod that Pods
// would not name.
func (x *Indexer) Pod(pod, model string) (PodInfo, bool) {
	d, ok := x.reg.Pod(pod, model)
	if !ok {
		return PodInfo{}, false
	}
	return infoOf(&d), true
}

func infoOf(d *podstate.Info) PodInfo {
	info := PodInfo{
		Pod: d.Pod, Model: d.Model, State: State(d.State), WantsFullReport: d.WantsFullReport, Connected: d.Connected, LastMessage: d.LastMessage,
		Profile: profileOf(d.Profile), Adapters: d.Adapters, Unrecognized: d.Unrecognized, Streams: d.Streams,
	}
	if len(d.Ranks) > 0 {
		info.Ranks = make([]RankInfo, len(d.Ranks))
	}
	for i := range d.Ranks {
		r := &d.Ranks[i]
		info.Ranks[i] = RankInfo{
			Rank: r.Rank, State: State(r.State), Stream: r.Stream, Lag: r.Lag, Age: r.Age, Blocks: r.Blocks, Evicted: r.Evicted,
			Messages: r.Messages, Stored: r.Stored, Removed: r.Removed, NotHeld: r.NotHeld, Groups: r.Groups,
		}
	}
	return info
}
