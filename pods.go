package kvindex

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
)

// What one pod may make the Indexer remember beside its blocks.
const (
	// MaxPods is the number of pods.
	MaxPods = 1 << 16
	// MaxModels is the number of models of a pod.
	MaxModels = 16
	// MaxRanks is the number of data-parallel ranks of a pod and model.
	MaxRanks = 256
	// MaxStreams is the number of streams of a pod and model.
	MaxStreams = 1024
	// MaxAdapters is the number of adapters of a pod and model that are found
	// by their names alone. Requests reach the others by Request.Adapter.
	MaxAdapters = 4096
)

// State says how far the view of a pod can be trusted. What is claimed was
// there, except that in StateReplaying and StateUncertain removals may have been
// missed; the other states say whether there may be more.
type State uint8

// The states, worst first.
const (
	StateUnknown   State = iota // never heard, or not since it started anew
	StateUncertain              // messages were lost, and WithLossPolicy kept the blocks, or the connection is lost
	StateReplaying              // messages are missing, and the engine is asked for them
	StatePartial                // a part of the history was never seen, or forgotten after a loss
	StateLive                   // all of the history was seen
)

func (s State) String() string {
	switch s {
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
	Blocks [NumTiers]int
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

func (s *StreamStats) add(t StreamStats) {
	// Numbers are the pod's word, so these two could go round.
	t.Missing = min(t.Missing, math.MaxUint64-s.Missing)
	t.PassedOver = min(t.PassedOver, math.MaxUint64-s.PassedOver)

	s.Messages += t.Messages
	s.Malformed += t.Malformed
	s.Duplicates += t.Duplicates
	s.Gaps += t.Gaps
	s.Missing += t.Missing
	s.Replayed += t.Replayed
	s.PassedOver += t.PassedOver
	s.Restarts += t.Restarts
}

// pod is what the Indexer knows of a pod, beside its blocks.
type pod struct {
	name string

	mu      sync.Mutex // orders the ingests of the pod; guards all below
	removed bool       // RemovePod took it: look it up again
	models  map[string]*podModel
}

type podModel struct {
	profile  Profile // complete
	ranks    map[int]*rank
	streams  map[string]*stream
	adapters map[string]struct{} // those that the model was told of
	state    atomic.Uint32       // State, the worst of ranks'; read without pod.mu
}

type rank struct {
	state State
	// stream is the one that feeds the rank, whose ranks have it; "" if it is
	// fed without numbers. next is what is expected there.
	stream string
	next   uint64

	messages uint64 // without numbers
	lag      time.Duration
}

// lossy reports that the rank may hold more than is known, or less.
func (r *rank) lossy() bool { return r.state == StatePartial || r.state == StateUncertain }

// stream is the order of a stream and the ranks seen on it: all of them lose
// when it does.
type stream struct {
	seq   events.Sequencer
	ranks []int
	// partial: messages of the engine's present life are missing, so a rank
	// that is new on the stream may hold more than is known.
	partial bool
	// held: message heldSeq waits for what is missing before it.
	held    bool
	heldSeq uint64
	// interrupted: the connection is lost, and no message has come since.
	interrupted bool
	stats       StreamStats
}

// model is what scores need to know of a model. Guarded by Indexer.mu.
type model struct {
	everyone *Candidates
	pods     map[string]*podModel
	adapters map[string]map[string]bool // to the pods that told of it
}

// lockPod returns the pod, made if need be, with its mutex held.
func (x *Indexer) lockPod(name string) (*pod, error) {
	for {
		p := x.pod(name)
		if p == nil {
			x.mu.Lock()
			if p = x.pods[name]; p == nil && len(x.pods) < MaxPods {
				p = &pod{name: name, models: make(map[string]*podModel)}
				x.pods[name] = p
			}
			x.mu.Unlock()
		}
		if p == nil {
			return nil, fmt.Errorf("kvindex: pod %q is one more than %d", name, MaxPods)
		}
		p.mu.Lock()
		if !p.removed {
			return p, nil
		}
		p.mu.Unlock()
	}
}

// pod returns a pod that was heard, or nil.
func (x *Indexer) pod(name string) *pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[name]
}

// podModel returns what p serves of a model, made if need be. p.mu is held.
func (x *Indexer) podModel(p *pod, name string) (*podModel, error) {
	if pm := p.models[name]; pm != nil {
		return pm, nil
	}
	if len(p.models) >= MaxModels {
		return nil, fmt.Errorf("kvindex: pod %q: model %q is one more than the %d that a pod may have", p.name, name, MaxModels)
	}
	var profile Profile
	if x.profile != nil {
		profile = x.profile(p.name, name)
		if err := profile.validate(); err != nil {
			return nil, fmt.Errorf("kvindex: WithProfile: pod %q: model %q: %w", p.name, name, err)
		}
	}
	pm := &podModel{
		profile:  profile.complete(),
		ranks:    make(map[int]*rank),
		streams:  make(map[string]*stream),
		adapters: make(map[string]struct{}),
	}
	p.models[name] = pm
	x.mu.Lock()
	defer x.mu.Unlock()
	md := x.models[name]
	if md == nil {
		md = &model{
			everyone: x.Candidates(name, nil),
			pods:     make(map[string]*podModel),
			adapters: make(map[string]map[string]bool),
		}
		x.models[name] = md
	}
	md.pods[p.name] = pm
	x.heard.Add(1)
	return pm, nil
}

// rank returns a rank of pm, made if need be. pod.mu is held.
func (pm *podModel) rank(n int) (*rank, error) {
	r := pm.ranks[n]
	if r == nil {
		if len(pm.ranks) >= MaxRanks {
			return nil, fmt.Errorf("rank %d is one more than the %d that a pod may have", n, MaxRanks)
		}
		r = new(rank)
		pm.ranks[n] = r
	}
	return r, nil
}

// settle works out the pod's state after a rank's or stream's changed, for in
// to tell. pod.mu is held.
func (pm *podModel) settle(in *ingest) {
	state, heard := StateLive, false
	for _, r := range pm.ranks {
		if r.state != StateUnknown || r.stream != "" {
			state, heard = min(state, pm.stateOf(r)), true
		}
	}
	if !heard { // or nothing that could be applied
		state = StatePartial
		for _, st := range pm.streams {
			state = st.limit(state)
		}
	}
	in.from, in.to = State(pm.state.Swap(uint32(state))), state
}

// stateOf is the state of a rank, with what its stream waits for.
func (pm *podModel) stateOf(r *rank) State {
	if st := pm.streams[r.stream]; st != nil {
		return st.limit(r.state)
	}
	return r.state
}

// limit is the state of a rank that has state but for its stream.
func (st *stream) limit(state State) State {
	switch {
	case st.held && state == StateUnknown: // it will be known soon
		return StateReplaying
	case st.interrupted:
		return min(state, StateUncertain)
	case st.held:
		return min(state, StateReplaying)
	}
	return state
}

// learnAdapters lets requests find the adapters of b by their names. pod.mu is
// held.
func (x *Indexer) learnAdapters(pm *podModel, src index.Source, b *events.Batch, in *ingest) {
	for i := range b.Events {
		a := b.Events[i].Adapter
		if a == "" {
			continue
		}
		if _, ok := pm.adapters[a]; ok {
			continue
		}
		if len(pm.adapters) >= MaxAdapters {
			in.stats.Adapters++
			continue
		}
		pm.adapters[a] = struct{}{}
		x.mu.Lock()
		md := x.models[src.Model]
		if md.adapters[a] == nil {
			md.adapters[a] = make(map[string]bool)
		}
		md.adapters[a][src.Pod] = true
		x.heard.Add(1)
		x.mu.Unlock()
	}
}

// RemovePod forgets a pod: its blocks, streams and states. A pod never heard of
// is no error.
func (x *Indexer) RemovePod(name string) error {
	if x.closed.Load() {
		return ErrClosed
	}
	p, err := x.lockPod(name) // keeps ingests away that would bring it back half
	if err != nil {
		return nil // there is no room for it, so it is not there
	}
	defer p.mu.Unlock()
	if err := x.index.Remove(context.Background(), name); err != nil {
		return x.failed(fmt.Errorf("kvindex: removing pod %q: %w", name, err))
	}
	p.removed = true
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.pods, name)
	x.heard.Add(1)
	for m, pm := range p.models {
		md := x.models[m]
		delete(md.pods, name)
		for a := range pm.adapters {
			if delete(md.adapters[a], name); len(md.adapters[a]) == 0 {
				delete(md.adapters, a)
			}
		}
		if len(md.pods) == 0 {
			delete(x.models, m)
		}
	}
	return nil
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
			dst = append(dst, pm.info(p.name, name, known))
		}
		p.mu.Unlock()
	}
	slices.SortFunc(dst[from:], func(a, b PodInfo) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Model, b.Model))
	})
	return dst
}

func (pm *podModel) info(pod, model string, known map[index.Source]index.SourceInfo) PodInfo {
	info := PodInfo{Pod: pod, Model: model, State: State(pm.state.Load())}
	for n, r := range pm.ranks {
		in := known[index.Source{Pod: pod, Model: model, Rank: n}]
		s := SourceInfo{
			Rank:        n,
			State:       pm.stateOf(r),
			Stream:      r.stream,
			Next:        r.next,
			Lag:         r.lag,
			Blocks:      in.Blocks,
			Bytes:       in.Bytes,
			StreamStats: StreamStats{Messages: r.messages},
		}
		if st := pm.streams[r.stream]; st != nil {
			s.StreamStats = st.stats
		}
		info.WantsFullReport = info.WantsFullReport || r.lossy()
		info.Sources = append(info.Sources, s)
	}
	slices.SortFunc(info.Sources, func(a, b SourceInfo) int { return cmp.Compare(a.Rank, b.Rank) })
	return info
}

// Stats counts what happened since New. Undercounts that the library knows of
// are all here.
type Stats struct {
	Models, Pods, Sources int
	Blocks                [NumTiers]int // held, by tier, if the index can tell
	Parked                int           // stores that wait for their parent now
	Index                 index.Usage   // what the index takes, if it is a Memory

	StreamStats                           // of all streams
	MalformedBy [events.NumReasons]uint64 // Malformed, by events.Reason
	Marked      uint64                    // ranks of a pod and model that MarkLost was told of

	StoredEvents, RemovedEvents, ClearedEvents uint64

	UnknownEvents uint64 // events of kinds that are not known
	Foreign       uint64 // events about copies that are not the pod's own
	Unscored      uint64 // stores whose blocks no prompt can name
	Scopeless     uint64 // gpu stores of engines that hide salts, media or adapters, as all of SGLang's: prompts with and without are one
	Adapters      uint64 // adapters past MaxAdapters, found by Request.Adapter alone

	// Counts are the index's own.
	Counts index.Counts
}

// Stats returns the counters.
func (x *Indexer) Stats() Stats {
	x.statsMu.Lock()
	s := x.stats
	x.statsMu.Unlock()
	x.mu.RLock()
	s.Models, s.Pods = len(x.models), len(x.pods)
	x.mu.RUnlock()
	if m, ok := x.index.(*index.Memory); ok {
		s.Index = m.Usage()
	}
	if d, ok := x.index.(index.Describer); ok {
		for _, info := range d.Describe(nil) {
			s.Sources++
			s.Parked += info.Parked
			for t, n := range info.Blocks {
				s.Blocks[t] += n
			}
		}
	}
	return s
}
