// Pods: what is known of a pod beside its blocks, its locks and its states.
//
// # Locks
//
// pod.order is held by whoever changes what was heard of a pod, also during a call of the
// index, so the messages of a pod follow one another. pod.mu guards the fields, and is
// released during each call of the index (pod.call). A score, Explain, Pods and Stats take
// only pod.mu, so they never wait for a backend that hangs in Apply. A state is an atomic, and
// ranks are in a list that is replaced when one comes, so a score reads them without pod.mu.
// It takes pod.mu only to register a pod that is listed or approximate.
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

package kvindex

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Bounds on what the Indexer remembers beside blocks. A message beyond one of them is an
// error, and is not applied; but adapters are only counted. What other processes tell
// (WithIndex) beyond a bound is left out.
const (
	maxPods    = 1 << 16
	maxModels  = 16   // of a pod
	maxStreams = 1024 // of a pod and model
	// maxAdapters is the number of adapters of a pod and model whose names a request can
	// use as its model. Beyond it a request has to name the base model, and the adapter in
	// Request.Adapter. So it has for an adapter whose name is longer than maxName.
	maxAdapters = 4096
)

// pod is what the Indexer knows of a pod, beside its blocks.
type pod struct {
	name string

	// order is held by whoever changes what was heard of the pod, also while the index
	// works on it. So the messages of a pod follow one another. It is taken before mu.
	order sync.Mutex

	// mu guards all below. Nobody holds it while the index works, so a score may take it.
	mu      sync.Mutex
	removed bool // RemovePod took it: look it up again
	calling bool // the index works on it, so it must not be removed by a score
	models  map[string]*podModel
	// asked has what WithProfile's function said of other models. No message for these was
	// taken: the Profile, or a message beside it, was refused.
	asked map[string]*profileReply
}

// profileReply is an answer of WithProfile's function.
type profileReply struct {
	profile engine.Profile
	err     error // the profile cannot be used
}

// podModel is what a pod serves of one model.
type podModel struct {
	listed   *listing // not nil: others feed the pod, and nothing of it was heard here
	shown    view.Pod // what scores read; read without pod.mu
	ranks    map[int]*rank
	byNumber []*rank // ranks in the order of their numbers
	streams  map[string]*stream
	adapters map[string]struct{} // those that the model was told of
	recent   engine.Recent
	formed   engine.Form // that the field form is of, unless that is of the profile
	told     publishedPod
	silent   int // streams that are silent

	sent  predict.Pod
	alone atomic.Pointer[podList] // the pod
}

// rank is a data-parallel rank of a pod, for one model.
type rank struct {
	n     int
	state view.State // changed by on alone
	shown view.State // the view as settle found it, which scores read
	// stream is the one that feeds the rank, and has it among its ranks; nil if
	// it is fed without numbers.
	stream  *stream
	contest contest
	kept    bool // what it holds is in the index from before, and nobody has spoken for it
	// unproven: what it holds is from a snapshot, and it is fed without numbers, so nobody
	// can know whether messages were lost since.
	unproven bool
	doubt    bool // the index has a note that a loss was kept
	evicted  bool // when the last message was applied, the index had given up blocks
	late     bool // what came last is not in the index, or not seen by others yet
	// seen is done when others see it; nil: nobody will say so. unwatch ends what waits for that.
	seen    context.Context
	unwatch func() bool
	told    publishedRank

	// Of a listed pod: whether it is lossy there, and that nobody has said for a while that its
	// state is what it was.
	lossyThere, stale bool
	lost              view.LastLoss

	// unrecognized is what events have said that is not known, since all was cleared, sorted;
	// mayHoldLess: some of it may have said that blocks have left the cache.
	unrecognized []string
	mayHoldLess  bool

	messages        uint64 // applied
	stored, removed uint64 // blocks
	groups          []stats.Group
	pairs           bool          // its blocks are of pairs
	lag             time.Duration // of the newest batch
	at              time.Time     // when that was applied
}

// model is what scores need to know of a model. Guarded by Indexer.mu.
type model struct {
	everyone *podList
	pods     map[string]*podModel
	// unheard has pods that something was sent to, and of which nothing was heard. They are
	// not known otherwise. Those without a prediction go when another one comes.
	unheard  map[string]*podModel
	adapters map[string]map[string]bool  // to the pods that told of it
	forms    atomic.Pointer[recentForms] // that texts were cut in last
}

// A viewEvent is what happened to a rank, as far as it bears on how its view can
// be trusted.
type viewEvent uint8

const (
	heardAll  viewEvent = iota // a batch was applied, and so was all that the engine said before it
	heardLate                  // a batch was applied, but not all that the engine said before it
	emptied                    // a batch was applied that says that the cache was emptied
	doubted                    // messages were lost, and the blocks were kept
	forgotten                  // messages were lost, and the blocks were forgotten
	replaced                   // the blocks were forgotten: the engine, or the way to it, is another one
)

// after is the state of a rank in state s after an event. No other rule changes
// the state of a rank.
//
// A batch by itself cures no doubt: what is missing in a view stays missing,
// because an engine announces a block once. An emptied cache does, for from then
// on all is known, whatever was lost before.
func after(s view.State, e viewEvent) view.State {
	switch {
	case e == emptied:
		return view.Live
	case e == doubted:
		return view.Uncertain
	case e == forgotten:
		return view.Partial
	case e == replaced:
		return view.Unknown
	case s != view.Unknown:
		return s
	case e == heardLate:
		return view.Partial
	}
	return view.Live
}

// on changes the state by an event.
func (r *rank) on(e viewEvent) {
	r.state = after(r.state, e)
	if e == emptied || e == forgotten || e == replaced {
		r.unproven = false
	}
}

// heard takes note of a batch that was applied at a time. whole: so was all that
// the engine said before it.
func (r *rank) heard(b *events.Batch, at time.Time, whole bool) {
	r.messages++
	r.at, r.lag = at, 0
	if t := timeOf(b); !t.IsZero() {
		r.lag = at.Sub(t)
	}
	clears := false
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case events.Cleared: // what is known from then on is all there is
			clears = true
		case events.Stored:
			r.groups, r.pairs = engine.Learn(r.groups, e), e.Pairs
		}
	}
	switch {
	case clears:
		r.on(emptied)
		r.lost = view.LastLoss{At: at}
	case whole:
		r.on(heardAll)
	default:
		r.on(heardLate)
	}
}

// noteHybrid has scores know that the pod's model is a hybrid one. So it stays if a
// rank has announced one group only since its cache was emptied.
func (in *ingest) noteHybrid(r *rank) {
	if f := in.pm.shown.Facts(); !f.Hybrid && in.pm.shown.Profile.Hybrid(r.groups) {
		f.Hybrid = true
		in.pm.shown.Publish(f)
		in.x.mu.Lock()
		in.x.heard.Add(1)
		in.x.mu.Unlock()
	}
}

// lossy reports that the rank may hold more than is known, or less.
func (r *rank) lossy() bool { return r.state == view.Partial || r.state == view.Uncertain }

// lacks is lossy, or that the index has given up blocks.
func (r *rank) lacks() bool { return r.lossy() || r.evicted }

// noteForm notes in which blocks the rank caches, for prompts that are sent to ranks that hold
// nothing. Parts of blocks are smaller, and change nothing.
func (in *ingest) noteForm(r *rank) {
	if in.stats.StoredEvents == 0 {
		return // what a snapshot has of groups does not tell pairs
	}
	known := in.pm.sent.Blocks()
	same := known != nil && known.Pairs == r.pairs && len(known.Groups) >= len(r.groups)
	for i := 0; same && i < len(r.groups); i++ {
		g := &r.groups[i]
		same = slices.ContainsFunc(known.Groups, func(k index.GroupLayout) bool {
			return k.ID == g.ID && (k.BlockSize == g.BlockSize || k.BlockSize > g.BlockSize && len(r.groups) > 1)
		})
	}
	if same || len(r.groups) == 0 {
		return
	}
	in.pm.formed = engine.Form{Groups: slices.Clone(r.groups), Pairs: r.pairs}
	in.x.ledger.SetForm(&in.pm.sent, in.pm.formed.View(&in.pm.shown.Profile))
	in.x.mu.Lock()
	in.x.heard.Add(1)
	in.x.mu.Unlock()
}

// view is the state of the rank, with what its stream waits for.
func (r *rank) view() view.State {
	state := r.state
	if r.stream != nil {
		state = r.stream.limit(state)
	}
	if r.contest.open || r.kept || r.unproven || r.late || r.stale {
		state = min(state, view.Uncertain)
	}
	if r.evicted {
		state = min(state, view.Partial)
	}
	return state
}

// settle works out the states that scores have, of the ranks and of the pod, after a
// rank's or a stream's has changed. It returns the pod's one before and the new one.
// pod.mu is held.
func (pm *podModel) settle() (from, to view.State) {
	f := pm.shown.Facts()
	from = f.State
	state, heard, changed := view.Live, false, false
	f.Less = false
	for _, r := range pm.ranks {
		f.Less = f.Less || r.mayHoldLess
		its := r.view()
		changed = changed || its != r.shown
		r.shown = its
		if r.state != view.Unknown || r.stream != nil {
			state, heard = min(state, its), true
		}
	}
	if changed {
		pm.listRanks()
	}
	switch {
	case heard:
		pm.sent.Hear()
	case pm.sent.Room() != nil: // or nothing that could be applied
		pm.shown.Publish(f)
		return from, view.Approximate
	default:
		state = view.Partial
		for _, st := range pm.streams {
			state = st.limit(state)
		}
	}
	if pm.silent > 0 {
		state = min(state, view.Silent)
	}
	f.State = state
	pm.shown.Publish(f)
	return from, state
}

// pod returns a pod that was heard, or nil.
func (x *registry) pod(name string) *pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.pods[name]
}

// lock locks the pod for a change of what was heard of it.
func (p *pod) lock() {
	p.order.Lock()
	p.mu.Lock()
}

func (p *pod) unlock() {
	p.mu.Unlock()
	p.order.Unlock()
}

// call begins a call of the index by the caller of lock, and called ends it. Meanwhile mu is
// free: scores may add models to the pod that are listed or approximate, and remove these.
func (p *pod) call(x *registry) (context.Context, context.CancelFunc) {
	p.calling = true
	p.mu.Unlock()
	return x.applying()
}

func (p *pod) called(cancel context.CancelFunc) {
	cancel()
	p.mu.Lock()
	p.calling = false
}

// findPod returns the pod, made if need be.
func (x *registry) findPod(name string) (*pod, error) {
	if p := x.pod(name); p != nil {
		return p, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pods[name]
	if p == nil {
		if len(x.pods) >= maxPods {
			return nil, fmt.Errorf("kvindex: pod %q is one more than %d", name, maxPods)
		}
		p = &pod{name: name, models: make(map[string]*podModel), asked: make(map[string]*profileReply)}
		x.pods[name] = p
	}
	return p, nil
}

// lockPod returns the pod, made if need be, after lock.
func (x *registry) lockPod(name string) (*pod, error) {
	for {
		p, err := x.findPod(name)
		if err != nil {
			return nil, err
		}
		p.lock()
		if !p.removed {
			return p, nil
		}
		p.unlock()
	}
}

// lockPodBriefly is lockPod for scores: of the locks it takes mu alone.
func (x *registry) lockPodBriefly(name string) (*pod, error) {
	for {
		p, err := x.findPod(name)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		if !p.removed {
			return p, nil
		}
		p.mu.Unlock()
	}
}

// lockHeard returns a pod that was heard for the model, after lock, and what it serves of
// the model; nil if there is none.
func (x *registry) lockHeard(name, model string) (*pod, *podModel) {
	p := x.pod(name)
	if p == nil {
		return nil, nil
	}
	p.lock()
	if pm := p.models[model]; pm != nil && pm.listed == nil && !p.removed {
		return p, pm
	}
	p.unlock()
	return nil, nil
}

// lockServed returns a pod that was heard or is listed for the model, with its mu held, and
// what it serves of the model; nil if there is none.
func (x *registry) lockServed(name, model string) (*pod, *podModel) {
	p := x.pod(name)
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	if pm := p.models[model]; pm != nil && !p.removed {
		return p, pm
	}
	p.mu.Unlock()
	return nil, nil
}

// profileFor returns the profile of p for a model, if a batch can be taken with it.
// WithProfile's function is asked if it was not asked yet. p.mu is held.
func (x *registry) profileFor(p *pod, model string, b *events.Batch) (profile *engine.Profile, err error) {
	if pm := p.models[model]; pm != nil {
		profile = &pm.shown.Profile
	} else {
		a := p.asked[model]
		if a == nil {
			if len(p.models)+len(p.asked) >= maxModels {
				return nil, fmt.Errorf("kvindex: pod %q: model %q is one more than the %d that a pod may have", p.name, model, maxModels)
			}
			a = &profileReply{}
			a.profile, a.err = x.Profile(p.name, model)
			p.asked[model] = a
		}
		profile, err = &a.profile, a.err
	}
	if err == nil {
		err = profile.CheckGrain(b)
	}
	if err != nil {
		return nil, fmt.Errorf("kvindex: WithProfile: pod %q: model %q: %w", p.name, model, err)
	}
	return profile, nil
}

// podModel returns what p serves of a model, made if need be, with the profile that
// profileFor has for it. What was listed gives way to what is heard. p.mu is held.
func (x *registry) podModel(p *pod, name string, profile *engine.Profile) *podModel {
	old := p.models[name]
	if old != nil && old.listed == nil {
		return old
	}
	pm := &podModel{
		ranks:    make(map[int]*rank),
		streams:  make(map[string]*stream),
		adapters: make(map[string]struct{}),
	}
	pm.shown.Profile, pm.sent.Media = *profile, profile.Media
	if profile.Approximate != nil {
		pm.sent.Approximate(profile)
		pm.shown.Publish(view.Facts{State: view.Approximate})
	}
	p.models[name] = pm
	delete(p.asked, name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if old != nil {
		x.forget(p.name, name, old)
	}
	md := x.models[name]
	if md == nil {
		md = &model{
			everyone: &podList{x: x, model: name, base: true},
			pods:     make(map[string]*podModel),
			adapters: make(map[string]map[string]bool),
		}
		x.models[name] = md
	}
	if sent := md.unheard[p.name]; sent != nil {
		x.ledger.Hand(&sent.sent, &pm.sent)
		delete(md.unheard, p.name)
	}
	md.pods[p.name] = pm
	x.heard.Add(1)
	return pm
}

// sendTo returns what is kept of a pod that something is sent to before anything of it was
// heard; nil: nobody knows in which blocks it may cache, its Profile is refused, or there are
// too many.
func (x *registry) sendTo(pod, model string) *podModel {
	profile, err := x.Profile(pod, model)
	if err != nil || x.check(pod, model) != nil || profile.Approximate != nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	md := x.models[model]
	if md == nil {
		return nil
	}
	if pm := md.served(pod); pm != nil {
		return pm
	}
	for name, pm := range md.unheard {
		if pm.sent.Live() == 0 {
			md.leaveUnheard(x.ledger, name)
		}
	}
	if md.lent()[profile.Media] == nil || len(md.unheard) >= maxPods {
		return nil
	}
	pm := &podModel{}
	pm.shown.Profile, pm.sent.Media = profile, profile.Media
	if md.unheard == nil {
		md.unheard = make(map[string]*podModel)
	}
	md.unheard[pod] = pm
	x.heard.Add(1)
	return pm
}

// served returns what a pod serves of the model, nil if nothing is known of it. Indexer.mu is
// held.
func (md *model) served(pod string) *podModel {
	if pm := md.pods[pod]; pm != nil {
		return pm
	}
	return md.unheard[pod]
}

// leaveUnheard forgets what was sent to a pod of which nothing was heard. Indexer.mu is held.
func (md *model) leaveUnheard(l *predict.Ledger, pod string) {
	if pm := md.unheard[pod]; pm != nil {
		l.Lose(&pm.sent, -1, true)
		delete(md.unheard, pod)
	}
}

// lent returns the blocks of the pods. Indexer.mu is held.
func (md *model) lent() predict.Lent {
	return predict.Lend(func(yield func(*predict.Pod) bool) {
		for _, pm := range md.pods {
			if !yield(&pm.sent) {
				return
			}
		}
	})
}

// rank returns a rank of pm, made if need be. pod.mu is held.
func (pm *podModel) rank(n int) (*rank, error) {
	r := pm.ranks[n]
	if r == nil {
		if len(pm.ranks) >= engine.MaxRanks {
			return nil, fmt.Errorf("rank %d is one more than the %d that a pod may have", n, engine.MaxRanks)
		}
		r = &rank{n: n}
		pm.ranks[n] = r
		pm.listRanks()
	}
	return r, nil
}

// listRanks brings byNumber up to date, and what scores read of the ranks. pod.mu is held.
func (pm *podModel) listRanks() {
	pm.byNumber = slices.SortedFunc(maps.Values(pm.ranks), func(a, b *rank) int { return a.n - b.n })
	shown := make([]view.Rank, len(pm.byNumber))
	for i, r := range pm.byNumber {
		shown[i] = view.Rank{Number: r.n, State: r.shown}
	}
	pm.shown.PublishRanks(shown)
}

// stream returns a stream of pm, made if need be. pod.mu is held.
func (pm *podModel) stream(name string) (*stream, error) {
	st := pm.streams[name]
	if st == nil {
		if len(name) > engine.MaxName {
			return nil, fmt.Errorf("the name of the stream has %d bytes, more than %d: %.100q", len(name), engine.MaxName, name)
		}
		if len(pm.streams) >= maxStreams && !pm.dropStream() {
			return nil, fmt.Errorf("stream %q is one more than the %d that a pod may have", name, maxStreams)
		}
		st = &stream{name: name}
		pm.streams[name] = st
	}
	return st, nil
}

// dropStream makes room for a stream by forgetting one that feeds no rank and that
// no transport has.
func (pm *podModel) dropStream() bool {
	for name, st := range pm.streams {
		if len(st.ranks) == 0 && !st.opened {
			delete(pm.streams, name)
			return true
		}
	}
	return false
}

// bind makes a stream the one that feeds a rank. The one that fed it before goes
// with its last rank, unless a transport has it.
func (pm *podModel) bind(r *rank, st *stream) {
	old := r.stream
	if old == st {
		return
	}
	if old != nil {
		old.ranks = slices.DeleteFunc(old.ranks, func(o *rank) bool { return o == r })
		if len(old.ranks) == 0 && !old.opened {
			delete(pm.streams, old.name)
		}
	}
	r.stream, r.kept = st, false
	st.ranks = append(st.ranks, r)
}

// learnAdapters lets requests find the adapters of a batch by their names.
func (in *ingest) learnAdapters() {
	for i := range in.batch.Events {
		a := in.pm.shown.Profile.AdapterOf(&in.batch.Events[i])
		if a == "" {
			continue
		}
		if _, ok := in.pm.adapters[a]; ok {
			continue
		}
		if len(in.pm.adapters) >= maxAdapters || len(a) > engine.MaxName {
			in.stats.Adapters++
			continue
		}
		in.pm.adapters[a] = struct{}{}
		in.x.learnAdapter(a, in.model, in.pod)
	}
}

// learnAdapter notes that a pod told of an adapter of a model.
func (x *registry) learnAdapter(name, model, pod string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	md := x.models[model]
	if md.adapters[name] == nil {
		md.adapters[name] = make(map[string]bool)
	}
	md.adapters[name][pod] = true
	x.heard.Add(1)
}

// RemovePod forgets a pod.
func (x *registry) RemovePod(name string) error {
	if x.closed.Load() {
		return errClosed
	}
	p, err := x.lockPod(name) // keeps ingests away that would bring it back half
	if err != nil {
		return nil // there is no room for it, so it is not there
	}
	defer p.unlock()
	if err := x.removeBlocks(p); err != nil {
		return x.failed(fmt.Errorf("kvindex: removing pod %q: %w", name, err))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p.removed = true
	delete(x.pods, name)
	x.heard.Add(1)
	for m, pm := range p.models {
		x.forget(name, m, pm)
	}
	for _, md := range x.models {
		md.leaveUnheard(x.ledger, name)
	}
	return nil
}

func (x *registry) removeBlocks(p *pod) error {
	ctx, cancel := p.call(x)
	defer p.called(cancel)
	return x.index.Remove(ctx, p.name)
}

// forget takes from a model what scores know of a pod. x.mu is held.
func (x *registry) forget(pod, model string, pm *podModel) {
	x.ledger.Lose(&pm.sent, -1, true)
	md := x.models[model]
	delete(md.pods, pod)
	md.forgetAdapters(pod, pm.adapters)
	if len(md.pods) == 0 {
		for name := range md.unheard {
			md.leaveUnheard(x.ledger, name)
		}
		delete(x.models, model)
	}
}

// forgetAdapters takes note that a pod has not told of adapters. Indexer.mu is held.
func (md *model) forgetAdapters(pod string, adapters map[string]struct{}) {
	for a := range adapters {
		if delete(md.adapters[a], pod); len(md.adapters[a]) == 0 {
			delete(md.adapters, a)
		}
	}
}

// drop forgets what a pod serves of a model. p.mu is held.
func (x *registry) drop(p *pod, model string) {
	pm := p.models[model]
	delete(p.models, model)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heard.Add(1)
	x.forget(p.name, model, pm)
}

// leaveEmpty forgets of a pod what it was to serve of a model, if nothing of that was
// ever heard and no stream of it is to come, and the pod if it has nothing else. It
// reports whether it did. pod.mu is held.
func (x *registry) leaveEmpty(p *pod, model string) bool {
	pm := p.models[model]
	if len(pm.ranks) > 0 || len(pm.streams) > 0 || pm.sent.Room() != nil {
		return false
	}
	if pm.told.is {
		x.tellGone(index.Source{Pod: p.name, Model: model})
	}
	x.drop(p, model)
	x.directory.redo.Store(true)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leaveUnknown(p)
	return true
}

// leaveUnknown forgets a pod of which nothing is known, unless the index works on it: the next
// message would find another pod of the name, and wait for nothing. p.mu and x.mu are held.
func (x *registry) leaveUnknown(p *pod) {
	if len(p.models)+len(p.asked) == 0 && !p.calling {
		p.removed = true
		delete(x.pods, p.name)
	}
}
