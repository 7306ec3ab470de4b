package kvindex

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
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

// The states. Each rank and each stream of a pod has one, and the pod has the first of
// them in this order. So a pod with one silent stream is StateSilent, whatever its other
// streams bring. PodInfo.Sources and an answer with Request.Ranks have the states of
// the ranks.
const (
	// StateUnknown: no event of the pod was applied, or none since the engine restarted.
	StateUnknown State = iota
	// StateSilent: a transport follows a stream of the pod that has brought no message.
	StateSilent
	// StateUncertain: the connection was lost, and no newer message has come since; or
	// there was a loss, and KeepOnLoss kept the blocks; or two streams contest a rank; or
	// the blocks come from a backend (WithIndex) or a snapshot (Restore), and its streams
	// have not continued; or another process feeds the pod, and nobody has said so for a
	// while; or the backend did not take the last message, or not show it to others yet.
	StateUncertain
	// StateReplaying: messages are missing, and a transport asks the engine for them, or
	// applies the older messages that it has got.
	StateReplaying
	// StatePartial: some of the past is not known: from before the first message, or
	// forgotten after a loss, or because the index was full (SourceInfo.Evicted). It ends
	// when the engine empties its cache or restarts, or when a replay brings everything.
	StatePartial
	// StateLive: all that the engine has published since its start is known.
	StateLive
	// StateApproximate: no event has come, and none is expected. What the pod holds is
	// believed, from what was sent to it (Profile.Approximate). A pod with this state has no
	// rank or stream with another one.
	StateApproximate
)

var stateNames = []string{"unknown", "silent", "uncertain", "replaying", "partial", "live", "approximate"}

func (s State) String() string { return nameOf(stateNames, s) }

// MarshalText returns the String of s.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (s *State) UnmarshalText(text []byte) error { return setByName(s, stateNames, text) }

// ReplayState says what is known of the replay socket of a stream. In JSON it is its
// String.
type ReplayState uint8

// The states of a replay.
const (
	ReplayIdle    ReplayState = iota // nothing is asked for, or there is no replay socket
	ReplayWaiting                    // messages wait for missing ones, or older messages are being applied
	ReplayNone                       // the socket does not answer: what is missed is lost
)

var replayNames = []string{"idle", "waiting", "none"}

func (s ReplayState) String() string { return nameOf(replayNames, s) }

// MarshalText returns the String of s.
func (s ReplayState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (s *ReplayState) UnmarshalText(text []byte) error { return setByName(s, replayNames, text) }

func nameOf[E ~uint8](names []string, e E) string {
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}

func setByName[E ~uint8](e *E, names []string, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("kvindex: %q is none of %s", text, strings.Join(names, ", "))
	}
	*e = E(i)
	return nil
}

// TierCounts is a number for each tier. It is comparable. The zero value has 0 for all
// tiers.
type TierCounts struct {
	n [index.NumTiers]int
}

// Of returns the number for a tier, 0 if there is no such tier.
func (c TierCounts) Of(t Tier) int {
	if int(t) < len(c.n) {
		return c.n[t]
	}
	return 0
}

// All goes through the tiers, fastest first, and their numbers.
func (c TierCounts) All() iter.Seq2[Tier, int] {
	return func(yield func(Tier, int) bool) {
		for t, n := range c.n {
			if !yield(Tier(t), n) {
				return
			}
		}
	}
}

// String names the tiers whose number is not 0, as "gpu=3 cpu=1".
func (c TierCounts) String() string { return notZero(c.All()) }

// MarshalJSON writes an object of all tiers by name.
func (c TierCounts) MarshalJSON() ([]byte, error) { return object(c.All()), nil }

// UnmarshalJSON reads what MarshalJSON has written.
func (c *TierCounts) UnmarshalJSON(b []byte) error { return readObject[Tier](b, c.n[:]) }

// ReasonCounts is a number for each reason why a payload could not be read. It is
// comparable. The zero value has 0 for all reasons.
type ReasonCounts struct {
	n [events.NumReasons]uint64
}

// Of returns the number for a reason, 0 if there is no such reason.
func (c ReasonCounts) Of(r events.Reason) uint64 {
	if int(r) < len(c.n) {
		return c.n[r]
	}
	return 0
}

// All goes through the reasons and their numbers.
func (c ReasonCounts) All() iter.Seq2[events.Reason, uint64] {
	return func(yield func(events.Reason, uint64) bool) {
		for r, n := range c.n {
			if !yield(events.Reason(r), n) {
				return
			}
		}
	}
}

// String names the reasons whose number is not 0, as "truncated=3 type=1".
func (c ReasonCounts) String() string { return notZero(c.All()) }

// MarshalJSON writes an object of all reasons by name.
func (c ReasonCounts) MarshalJSON() ([]byte, error) { return object(c.All()), nil }

// UnmarshalJSON reads what MarshalJSON has written.
func (c *ReasonCounts) UnmarshalJSON(b []byte) error { return readObject[events.Reason](b, c.n[:]) }

// textOf is what JSON has of an error; "" if it is nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func notZero[K any, N int | uint64](all iter.Seq2[K, N]) string {
	var s []string
	for k, n := range all {
		if n != 0 {
			s = append(s, fmt.Sprintf("%v=%d", k, n))
		}
	}
	return strings.Join(s, " ")
}

func object[K fmt.Stringer, N int | uint64](all iter.Seq2[K, N]) []byte {
	b := []byte{'{'}
	for k, n := range all {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:%d", k.String(), n)
	}
	return append(b, '}')
}

// readObject reads what object has written.
func readObject[K ~uint8, N int | uint64](b []byte, to []N) error {
	var by map[K]N
	err := json.Unmarshal(b, &by)
	for k, n := range by {
		to[k] = n
	}
	return err
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
	// Sources are ordered by rank, Streams by name.
	Sources []SourceInfo
	Streams []StreamInfo
}

// SourceInfo describes one rank of a pod.
type SourceInfo struct {
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
	// Blocks is the number of blocks that the rank holds, by tier. Bytes is the memory for
	// the engine's hashes of them. Both are 0 if the index cannot tell.
	Blocks TierCounts
	Bytes  int
	// Evicted is the number of blocks, counted as in Blocks, that the index has given up
	// since the rank was last cleared, because it had no room for them (WithMemory). If it
	// is not 0, State is StatePartial at best.
	Evicted uint64

	Messages        uint64 // that were applied
	Stored, Removed uint64 // blocks, in the messages that were applied
	// Groups are the KV-cache groups that events about the gpu have named.
	Groups []GroupInfo
}

// GroupInfo describes a KV-cache group of a rank.
type GroupInfo struct {
	index.Group
	BlockSize int // in tokens, of the newest event
}

// StreamInfo describes a stream of a pod and model.
type StreamInfo struct {
	Stream string
	Next   uint64 // the sequence number that is expected
	// Connected is the time since when the connection stands. It is zero if there is no
	// connection, or the transport does not report it. Heard is the time of the last
	// message, applied or not; zero if there was none.
	Connected, Heard time.Time
	Replay           ReplayState
	LastMalformed    MalformedInfo

	StreamStats
}

// MalformedInfo describes the last message of a stream that could not be read. The
// zero value is none.
type MalformedInfo struct {
	Seq    uint64    // math.MaxUint64: the number could not be read either
	Time   time.Time // when it came
	Reason events.Reason
	Error  string
}

// StreamStats counts the messages of one stream, or of all streams.
type StreamStats struct {
	Messages   uint64 // messages that came, applied or not
	Malformed  uint64 // payloads that could not be read
	Duplicates uint64 // messages that had come before
	Gaps       uint64 // gaps noticed in the sequence numbers
	Missing    uint64 // messages in gaps that no replay filled
	Replayed   uint64 // messages that a replay brought and that were applied
	PassedOver uint64 // of Missing: messages that a replay left out, because the engine did not have them
	Restarts   uint64 // restarts of engines
	Contested  uint64 // messages that were not applied, because another stream brings the rank
	Delayed    uint64 // messages that were applied, and that other processes did not see yet then (index.ErrDelayed)
	NoRoom     uint64 // messages that were not applied, because the index has no room for their rank (ErrFull)
}

// Stats has counters since New, and figures of now. Each case in which the library
// knows that a score is too low has a counter.
type Stats struct {
	// What there is now.
	Models, Pods, Sources int
	Blocks                TierCounts  // that all pods hold, by tier; 0 if the index cannot tell
	Parked                int         // events about stored blocks that wait for the parent now
	Unplaced              int         // hashes that all pods hold and of which the prefix is not known: no prompt matches them now
	Index                 index.Usage // memory of the index; 0 if it is no index.Sizer
	// Silent, Uncertain, Replaying and Approximate are numbers of pods in these states; a pod counts
	// once for each of its models. Connected, Waiting and NoReplay are numbers of streams:
	// with a connection, in ReplayWaiting, and in ReplayNone.
	Silent, Uncertain, Replaying, Approximate int
	Connected, Waiting, NoReplay              int

	Scores      ScoreStats      // since New
	Predictions PredictionStats // of Routed
	Tickets     TicketStats
	// Observed has a row for each model, and each state of the ranks that requests were sent
	// to, by model and state. With more than 1,024 rows the other models are one, "".
	Observed []Observations

	Prompts PromptStats // of the prompt cache; 0 without one. A prompt counts once for each unit that pods have blocks of

	Counters
}

// PromptStats are the counters of the prompt cache, since New, and its size.
type PromptStats struct {
	Whole   uint64 // prompts that were known whole
	Grown   uint64 // of which a beginning was known
	Unknown uint64 // of which nothing was known
	Past    uint64 // that went past the cache: see [WithPromptCache]

	BytesKnown   uint64 // of text that had not to be encoded
	BytesEncoded uint64 // of text that had

	Entries int   // beginnings and whole texts that are kept
	Bytes   int64 // of heap, at most what WithPromptCache gives
	Evicted uint64
}

// Counters counts since New. A counter stops at 2^64-1.
type Counters struct {
	StreamStats              // of all streams
	MalformedBy ReasonCounts // Malformed, by reason
	Marked      uint64       // losses that MarkLost reported, for each rank and model

	StoredEvents, RemovedEvents, ClearedEvents uint64

	UnknownEvents uint64 // events of kinds that are not known
	Foreign       uint64 // events about copies in a store that several pods share: skipped
	Unscored      uint64 // stored blocks that no prompt can match: prompt embeddings, unknown extra keys
	Scopeless     uint64 // stored blocks whose events do not say the salt, the media or the adapter, as all of SGLang: prompts with and without are taken for equal
	Adapters      uint64 // adapters beyond MaxAdapters, or with a name beyond MaxName: only Request.Adapter finds them

	// Counts are the counters of the index.
	Counts index.Counts
}

// addCounters adds the counters of s to those of t. Both are looked at as the words
// that they are, so that a counter that is new has to be named in its struct alone;
// TestCountersAreWords holds that there is nothing else in them.
//
// The sum stays at the largest number: a pod may claim any sequence numbers, so
// Missing and PassedOver could go round.
func addCounters[T Counters | StreamStats | ScoreStats](t, s *T) {
	sum, more := words(t), words(s)
	for i, n := range more {
		sum[i] += min(n, math.MaxUint64-sum[i])
	}
}

func words[T Counters | StreamStats | ScoreStats](t *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t)), unsafe.Sizeof(*t)/8)
}

// Stats returns the counters. Pods that other processes feed (WithIndex) are in Models, Pods,
// Sources and the numbers of states; the other figures are about what was heard here. Of such
// a backend Stats asks for news, and waits a second for them at most.
func (x *Indexer) Stats() Stats {
	var s Stats
	x.listNow()
	x.statsMu.Lock()
	s.Counters = x.stats
	x.statsMu.Unlock()
	s.Scores = x.scores()
	x.ledger.stats(&s)
	if x.prompts != nil {
		s.Prompts = PromptStats(x.prompts.Stats())
	}
	x.mu.RLock()
	s.Models = len(x.models)
	x.mu.RUnlock()
	if m, ok := x.index.(index.Sizer); ok {
		s.Index = m.Usage()
	}
	if d, ok := x.index.(index.Describer); ok {
		for _, info := range d.Describe(nil) {
			s.Sources++
			s.Parked += info.Parked
			s.Unplaced += info.Unplaced
			for t, n := range info.Blocks {
				s.Blocks.n[t] += n
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
			s.Sources += len(pm.ranks)
		}
		pm.count(&s)
	})
	return s
}

// count adds to s what there is now.
func (pm *podModel) count(s *Stats) {
	switch State(pm.state.Load()) {
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
		case ReplayWaiting:
			s.Waiting++
		case ReplayNone:
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
// (WithIndex), as far as these have told of them: State, Profile, Adapters, and of Sources
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
	info.State, info.Profile = State(pm.state.Load()), pm.profile
	info.Profile.Groups, info.Profile.Adapters = slices.Clone(info.Profile.Groups), maps.Clone(info.Profile.Adapters)
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
	slices.SortFunc(info.Streams, func(a, b StreamInfo) int { return cmp.Compare(a.Stream, b.Stream) })
	for _, r := range pm.ranks {
		s := r.info(known[index.Source{Pod: info.Pod, Model: info.Model, Rank: r.n}], now)
		info.Unrecognized = append(info.Unrecognized, r.unrecognized...)
		pm.profile.correct(s.Groups)
		info.Sources = append(info.Sources, s)
		if s.Evicted > 0 {
			info.State = min(info.State, StatePartial)
		}
		lacks := r.lossy() || s.Evicted > 0
		if pm.listed != nil {
			lacks = r.lossyThere
		}
		info.WantsFullReport = info.WantsFullReport || lacks && r.isReported(&pm.profile)
		if at := r.at.Round(0); at.After(info.Heard) { // without a stream
			info.Heard = at
		}
	}
	slices.Sort(info.Unrecognized)
	info.Unrecognized = slices.Compact(info.Unrecognized)
	slices.SortFunc(info.Sources, func(a, b SourceInfo) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (r *rank) info(in index.SourceInfo, now time.Time) SourceInfo {
	s := SourceInfo{
		Rank: r.n, State: r.view(), Lag: r.lag, Messages: r.messages, Stored: r.stored, Removed: r.removed,
		Blocks: TierCounts{in.Blocks}, Bytes: in.Bytes, Evicted: in.Evicted,
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

func (st *stream) info() StreamInfo {
	s := StreamInfo{Stream: st.name, Connected: st.connected.Round(0), Heard: st.heard.Round(0), Replay: st.replay(), StreamStats: st.stats}
	s.Next, _ = st.seq.Next()
	if m := st.malformed; m.err != nil {
		s.LastMalformed = MalformedInfo{m.seq, m.time.Round(0), events.ReasonOf(m.err), m.err.Error()}
	}
	return s
}

// replay is what is known of the stream's replay socket.
func (st *stream) replay() ReplayState {
	switch {
	case st.waits():
		return ReplayWaiting
	case st.noReplay:
		return ReplayNone
	}
	return ReplayIdle
}
