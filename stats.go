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

// State says how far the view of a pod can be trusted. What is claimed was
// there, except that in StateReplaying and StateUncertain removals may have been
// missed; the other states say whether there may be more. A state has its String in
// JSON.
type State uint8

// The states, worst first. The state of a pod is the worst of its ranks' and of its
// streams': a pod of which one stream is silent is silent, whatever others bring.
const (
	StateUnknown   State = iota // never heard, or not since it restarted
	StateSilent                 // a transport has a stream of it that has brought nothing yet
	StateUncertain              // messages were lost and WithLossPolicy kept the blocks, or the connection was lost and nothing newer has come, or two streams speak for a rank
	StateReplaying              // messages are missing, and the engine is asked for them or they are caught up with
	StatePartial                // a part of the history was never seen, or forgotten after a loss
	StateLive                   // all of the history was seen
)

var stateNames = []string{"unknown", "silent", "uncertain", "replaying", "partial", "live"}

func (s State) String() string { return nameOf(stateNames, s) }

// MarshalText returns the String of s.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (s *State) UnmarshalText(text []byte) error { return setByName(s, stateNames, text) }

// ReplayState says what is known of the replay socket of a stream. It has its String
// in JSON.
type ReplayState uint8

// The states of a replay.
const (
	ReplayIdle    ReplayState = iota // nothing is waited for, or there is no replay socket
	ReplayWaiting                    // messages wait for what was missed, or older ones are caught up with
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

// TierCounts is a number for each tier. TierCounts can be compared; the zero
// value has 0 for all tiers.
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

// ReasonCounts is a number for each reason why a payload was refused.
// ReasonCounts can be compared; the zero value has 0 for all reasons.
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
	State State // the worst of its sources' and streams'
	// WantsFullReport tells that the engine may hold blocks which it will never
	// announce again by itself. A request that is sent there with vLLM's
	// kv_cache_report_mode=full (vllm_xargs, since PR 45261) makes it announce
	// the blocks of that request; default counting takes them for what they are.
	WantsFullReport bool
	// Connected is since when a connection to it stands; zero: none does, or its
	// transport does not tell. Heard is when its last message came, by this
	// host's clock; zero: none has.
	Connected, Heard time.Time
	Profile          Profile  // as it was completed
	Adapters         []string // that events told of, in order
	// Sources are ordered by rank, Streams by name.
	Sources []SourceInfo
	Streams []StreamInfo
}

// SourceInfo describes a rank of a pod.
type SourceInfo struct {
	Rank  int
	State State
	// Stream is the newest stream of the rank; "" if it was fed without numbers.
	Stream string
	// Lag is how far the view is behind the engine: how long after its time the
	// newest batch was applied, by the engine's clock and this host's; 0 if it had
	// no time, below 0 if the engine's clock is ahead. While something is due
	// (messages wait, are caught up with, or the connection is lost) it grows.
	// Age is how long ago the newest batch was applied; 0 if none was.
	Lag, Age time.Duration
	// Blocks are the blocks held, by tier, and Bytes is what its names for them
	// take, if the index can tell.
	Blocks TierCounts
	Bytes  int

	Messages        uint64 // applied
	Stored, Removed uint64 // blocks, in messages that were applied
	// Groups are the KV-cache groups whose blocks stores of the gpu told of.
	Groups []GroupInfo
}

// GroupInfo describes a KV-cache group of a rank.
type GroupInfo struct {
	index.Group
	BlockSize int // in tokens, of the newest store
}

// StreamInfo describes a stream of a pod and model.
type StreamInfo struct {
	Stream string
	Next   uint64 // the sequence number that is expected
	// Connected is since when the connection stands; zero: it does not, or the
	// transport does not tell. Heard is when the last message came, whatever
	// became of it; zero: none has.
	Connected, Heard time.Time
	Replay           ReplayState
	LastMalformed    MalformedInfo

	StreamStats
}

// MalformedInfo describes the last message of a stream that could not be read. The
// zero value is none.
type MalformedInfo struct {
	Seq    uint64
	Time   time.Time // when it came
	Reason events.Reason
	Error  string
}

// StreamStats counts what came over one stream, or all.
type StreamStats struct {
	Messages   uint64 // payloads taken, whatever became of them
	Malformed  uint64 // payloads that could not be read
	Duplicates uint64 // messages that had come before
	Gaps       uint64 // holes noticed in the numbers
	Missing    uint64 // messages in holes that were not filled
	Replayed   uint64 // messages that the engine sent again and that were applied
	PassedOver uint64 // of Missing, those that a replay passed over: the engine has them no more, or never had
	Restarts   uint64 // engines that restarted
	Contested  uint64 // messages that were not applied because another stream speaks for their rank
}

// Stats counts what happened since New. Undercounts that the library knows of
// are all here.
type Stats struct {
	// What there is now.
	Models, Pods, Sources int
	Blocks                TierCounts  // held, by tier, if the index can tell
	Parked                int         // stores that wait for their parent now
	Index                 index.Usage // what the index takes, if it can tell (index.Sizer)
	// Silent, Uncertain and Replaying count pods in that state, once for each of
	// their models. Connected, Waiting and NoReplay count streams: those with a
	// connection, in ReplayWaiting and in ReplayNone.
	Silent, Uncertain, Replaying int
	Connected, Waiting, NoReplay int

	Scores ScoreStats // since New

	Counters
}

// Counters counts what happened since New. Each counts up to 2^64-1 and then stays.
type Counters struct {
	StreamStats              // of all streams
	MalformedBy ReasonCounts // Malformed, by events.Reason
	Marked      uint64       // ranks of a pod and model that MarkLost was told of

	StoredEvents, RemovedEvents, ClearedEvents uint64

	UnknownEvents uint64 // events of kinds that are not known
	Foreign       uint64 // events about copies that are not the pod's own
	Unscored      uint64 // stores whose blocks no prompt can name
	Scopeless     uint64 // gpu stores of engines that hide salts, media or adapters, as all of SGLang's: prompts with and without are one
	Adapters      uint64 // adapters past MaxAdapters, found by Request.Adapter alone

	// Counts are the index's own.
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

// Stats returns the counters.
func (x *Indexer) Stats() Stats {
	var s Stats
	x.statsMu.Lock()
	s.Counters = x.stats
	x.statsMu.Unlock()
	s.Scores = x.scores()
	x.mu.RLock()
	s.Models, s.Pods = len(x.models), len(x.pods)
	x.mu.RUnlock()
	if m, ok := x.index.(index.Sizer); ok {
		s.Index = m.Usage()
	}
	if d, ok := x.index.(index.Describer); ok {
		for _, info := range d.Describe(nil) {
			s.Sources++
			s.Parked += info.Parked
			for t, n := range info.Blocks {
				s.Blocks.n[t] += n
			}
		}
	}
	x.eachPod(func(_ *pod, _ string, pm *podModel) { pm.count(&s) })
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

// eachPod calls f for each pod and model, with the pod's mutex held.
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
// dst, ordered by name, then model.
func (x *Indexer) Pods(dst []PodInfo) []PodInfo {
	if x.closed.Load() {
		return dst
	}
	known := make(map[index.Source]index.SourceInfo)
	if d, ok := x.index.(index.Describer); ok {
		for _, s := range d.Describe(nil) {
			known[s.Source] = s
		}
	}
	from, now := len(dst), time.Now()
	x.eachPod(func(p *pod, model string, pm *podModel) {
		info := PodInfo{Pod: p.name, Model: model}
		pm.describe(&info, now)
		for i := range info.Sources {
			s := &info.Sources[i]
			in := known[index.Source{Pod: p.name, Model: model, Rank: s.Rank}]
			s.Blocks, s.Bytes = TierCounts{in.Blocks}, in.Bytes
		}
		dst = append(dst, info)
	})
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}

// describe fills in what is known beside the index. pod.mu is held.
func (pm *podModel) describe(info *PodInfo, now time.Time) {
	info.State, info.Profile = State(pm.state.Load()), pm.profile
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
		info.Sources = append(info.Sources, r.info(now))
		info.WantsFullReport = info.WantsFullReport || r.lossy()
		if at := r.at.Round(0); at.After(info.Heard) { // without a stream
			info.Heard = at
		}
	}
	slices.SortFunc(info.Sources, func(a, b SourceInfo) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (r *rank) info(now time.Time) SourceInfo {
	s := SourceInfo{Rank: r.n, State: r.view(), Lag: r.lag, Messages: r.messages, Stored: r.stored, Removed: r.removed}
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
