package kvindex

import (
	"cmp"
	"fmt"
	"iter"
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
// missed; the other states say whether there may be more.
type State uint8

// The states, worst first.
const (
	StateUnknown   State = iota // never heard, or not since it started anew
	StateSilent                 // a transport is to bring it, and nothing has come yet
	StateUncertain              // messages were lost, and WithLossPolicy kept the blocks, or the connection is lost
	StateReplaying              // messages are missing, and the engine is asked for them
	StatePartial                // a part of the history was never seen, or forgotten after a loss
	StateLive                   // all of the history was seen
)

func (s State) String() string {
	switch s {
	case StateSilent:
		return "silent"
	case StateUncertain:
		return "uncertain"
	case StateReplaying:
		return "replaying"
	case StatePartial:
		return "partial"
	case StateLive:
		return "live"
	}
	return "unknown"
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

// PodInfo describes a pod for one model.
type PodInfo struct {
	Pod   string
	Model string
	State State // the worst of its sources'
	// WantsFullReport tells that the engine may hold blocks which it will never
	// announce again by itself. A request that is sent there with vLLM's
	// kv_cache_report_mode=full (vllm_xargs, since PR 45261) makes it announce
	// the blocks of that request; default counting takes them for what they are.
	WantsFullReport bool
	// Sources are ordered by rank, then stream.
	Sources []SourceInfo
}

// SourceInfo describes a rank of a pod.
type SourceInfo struct {
	Rank  int
	State State
	// Stream is the newest stream of the rank, and Next the sequence number
	// expected on it; "" and 0 if the rank was fed without numbers.
	Stream string
	Next   uint64
	// Lag is how long after its time the newest batch was applied, by the
	// engine's clock and ours; 0 if it had no time.
	Lag time.Duration
	// Blocks are the blocks held, by tier, and Bytes is what its names for them
	// take, if the index can tell.
	Blocks TierCounts
	Bytes  int

	StreamStats // of Stream; of the rank if it was fed without numbers
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
	Restarts   uint64 // engines that started anew
}

// Stats counts what happened since New. Undercounts that the library knows of
// are all here.
type Stats struct {
	// What there is now.
	Models, Pods, Sources int
	Blocks                TierCounts  // held, by tier, if the index can tell
	Parked                int         // stores that wait for their parent now
	Index                 index.Usage // what the index takes, if it can tell (index.Sizer)

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
	return s
}

// Pods appends the pods that were heard to dst, ordered by name, then model.
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
	x.mu.RLock()
	pods := make([]*pod, 0, len(x.pods))
	for _, p := range x.pods {
		pods = append(pods, p)
	}
	x.mu.RUnlock()
	from := len(dst)
	for _, p := range pods {
		p.mu.Lock()
		for name, pm := range p.models {
			dst = append(dst, pm.info(index.Source{Pod: p.name, Model: name}, known))
		}
		p.mu.Unlock()
	}
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}

// info describes the ranks of pm, by what the index knows of them. src has their
// pod and model.
func (pm *podModel) info(src index.Source, known map[index.Source]index.SourceInfo) PodInfo {
	info := PodInfo{Pod: src.Pod, Model: src.Model, State: State(pm.state.Load())}
	for n, r := range pm.ranks {
		src.Rank = n
		in := known[src]
		s := SourceInfo{
			Rank:        n,
			State:       r.view(),
			Next:        r.next,
			Lag:         r.lag,
			Blocks:      TierCounts{in.Blocks},
			Bytes:       in.Bytes,
			StreamStats: StreamStats{Messages: r.messages},
		}
		if r.stream != nil {
			s.Stream, s.StreamStats = r.stream.name, r.stream.stats
		}
		info.WantsFullReport = info.WantsFullReport || r.lossy()
		info.Sources = append(info.Sources, s)
	}
	slices.SortFunc(info.Sources, func(a, b SourceInfo) int { return cmp.Compare(a.Rank, b.Rank) })
	return info
}
