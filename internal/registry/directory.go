// Directory: pods that another process feeds.
//
// An index that several processes share may be a sharedindex.Directory. Then the Indexer that
// hears the engines of a pod tells there what it knows of the pod beside its blocks, as notes,
// and every other Indexer learns the pod from these: that it exists, how far its view can be
// trusted, and what a score needs to cut a prompt as the engine does. Rank 0 has the note
// about the pod, also if no rank 0 is known, and each rank has one of its own; that of rank 0
// is both.
//
// A pod is heard or listed, for each model. What was heard here counts, whatever is listed: so
// a pod that was listed and is heard then begins as one that was never known. Nothing of a
// listed pod is written to the index.
//
// A note comes from outside. One that cannot be read makes its rank and its pod uncertain, and
// not unknown: somebody feeds them.
//
// # Why notes
//
// Rows do not say which pods there are, how far a view can be trusted, which adapters a name
// may mean, or how the blocks of a pod that holds nothing would be cut. All that is small and
// changes seldom. So the writer leaves it as bytes that the index does not understand, and
// only if the facts differ from those of the last note. A backend then needs no word of the
// Indexer's. The reader makes of a note the same structures that it has for a pod that it
// heard, so a score takes one path for both. Heard and listed are never mixed: two views of
// one pod, each a part, would have no state that is true.

package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
)

// listingTimeout is how long Pods and Stats, which have no context, wait for a listing.
const listingTimeout = time.Second

// directory is the index, as far as it is a Directory.
type directory struct {
	of   sharedindex.Directory               // nil: it is none
	last atomic.Pointer[sharedindex.Listing] // that pods were taken from; nil: none yet
	redo atomic.Bool                         // a pod that was heard is not any more: it may be listed

	mu   sync.Mutex // guards all below; taken before pod.mu
	pods map[servedAt]*podModel
	turn uint64 // counts the listings that were taken
	said []byte // memory of take
}

// servedAt names what a pod serves of a model.
type servedAt struct{ pod, model string }

// listing is what a pod and model is made of that was not heard here.
type listing struct {
	said []byte // its entries, one after the other
	turn uint64 // of the directory, when it was listed last; guarded by directory.mu
}

// List takes over the pods that others feed, if there are news. It takes half of the time that
// there is, because the index is to be asked behind that. An error says that nothing was ever
// listed.
func (x *Registry) List(ctx context.Context) error {
	d := &x.directory
	if d.of == nil {
		return nil
	}
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	l, err := d.of.Listing(ctx)
	switch last := d.last.Load(); {
	case err == nil && (l != last || d.redo.Load()):
		x.take(l)
	case err != nil && last == nil:
		return x.Failed(fmt.Errorf("kvindex: listing the pods: %w", err))
	}
	return nil
}

// listNow is list for those who have no context, and no error.
func (x *Registry) listNow() {
	if x.directory.of != nil {
		ctx, cancel := context.WithTimeout(context.Background(), listingTimeout)
		defer cancel()
		_ = x.List(ctx)
	}
}

// take makes the listed pods what a listing says, and forgets those that it lacks.
func (x *Registry) take(l *sharedindex.Listing) {
	d := &x.directory
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.redo.Swap(false) && l == d.last.Load() {
		return
	}
	d.turn++
	for of := l.Entries; len(of) > 0; {
		n := 1
		for src := of[0].Source; n < len(of) && of[n].Source.Pod == src.Pod && of[n].Source.Model == src.Model; {
			n++
		}
		x.takePod(of[:n])
		of = of[n:]
	}
	for at, pm := range d.pods {
		if pm.listed.turn != d.turn {
			delete(d.pods, at)
			x.unlist(at, pm)
		}
	}
	d.last.Store(l)
}

// unlist forgets what was listed, unless it was heard or removed meanwhile.
func (x *Registry) unlist(at servedAt, pm *podModel) {
	p, now := x.lockServed(at.pod, at.model)
	if p == nil {
		return
	}
	defer p.mu.Unlock()
	if now == pm {
		x.drop(p, at.model)
		x.mu.Lock()
		x.leaveUnknown(p)
		x.mu.Unlock()
	}
}

// takePod takes over the entries of a pod and model, unless it is heard here. What cannot be
// taken is not known: names that are too long, what is beyond a bound, and a pod of which the
// Profile is refused. directory.mu is held.
func (x *Registry) takePod(entries []sharedindex.Entry) {
	d, src := &x.directory, entries[0].Source
	if x.check(src.Pod, src.Model) != nil || !slices.ContainsFunc(entries, isOthers) {
		return
	}
	at := servedAt{src.Pod, src.Model}
	p, err := x.lockPodBriefly(src.Pod)
	if err != nil {
		return
	}
	defer p.mu.Unlock()
	defer func() {
		if len(p.models) == 0 {
			x.mu.Lock()
			x.leaveUnknown(p)
			x.mu.Unlock()
		}
	}()
	d.said = appendEntries(d.said[:0], entries)
	pm := p.models[src.Model]
	switch {
	case pm == nil:
	case pm.listed != nil && bytes.Equal(pm.listed.said, d.said):
		pm.listed.turn = d.turn
		return
	case pm.listed == nil && !pm.unheard():
		return
	}
	v, ok := viewOf(entries)
	if !ok {
		return
	}
	if pm == nil || pm.listed == nil {
		if pm = x.listedPod(p, src.Model); pm == nil {
			return
		}
	}
	d.pods[at] = pm
	pm.listed.said, pm.listed.turn = bytes.Clone(d.said), d.turn
	x.show(p.name, src.Model, pm, v)
}

// isOthers reports whether an entry is of a source that another process feeds.
func isOthers(e sharedindex.Entry) bool { return !e.Fed }

// appendEntries appends all that is to be looked at of some entries.
func appendEntries(b []byte, entries []sharedindex.Entry) []byte {
	for i := range entries {
		e := &entries[i]
		b = binary.AppendVarint(b, int64(e.Source.Rank))
		b = append(b, sections.Flags(e.Fed, e.Stale, e.Note == nil))
		b = sections.AppendString(b, e.Note)
	}
	return b
}

// unheard reports that nothing of the pod was heard, and that no transport is to bring it: it
// is followed by what is sent to it. pod.mu is held.
func (pm *podModel) unheard() bool {
	return pm.sent.Room() != nil && len(pm.Ranks) == 0 && len(pm.Streams) == 0
}

// listedPod makes what a pod serves of a model that was not heard here; nil: its Profile is
// refused, or it has too many models. p.mu is held.
func (x *Registry) listedPod(p *pod, model string) *podModel {
	known := p.asked[model] != nil // from a message
	profile, err := x.profileFor(p, model, &events.Batch{})
	if err != nil {
		if !known {
			delete(p.asked, model) // it is asked again
		}
		return nil
	}
	exact := *profile
	exact.Approximate = nil // its engine publishes events
	if p.models[model] != nil {
		x.drop(p, model)
	}
	pm := x.podModel(p, model, &exact)
	pm.listed = &listing{}
	return pm
}

// podListing is what the entries of a pod and model say.
type podListing struct {
	podstate.PodNote
	ranks []rankListing
}

type rankListing struct {
	n int
	podstate.RankNote
	stale bool
}

// viewOf reads entries; false: they say that there is nothing.
func viewOf(entries []sharedindex.Entry) (v podListing, ok bool) {
	stale := false
	v.State = view.Live
	found := false // what is said of the pod
	for i := range entries {
		e := &entries[i]
		n := e.Source.Rank
		if e.Fed || (&events.Batch{Rank: n}).Validate() != nil || len(v.ranks) >= engine.MaxRanks {
			continue
		}
		note, err := podstate.ReadNote(e.Note)
		if err != nil {
			note, stale = podstate.Note{Rank: &podstate.RankNote{State: view.Uncertain}}, true
		}
		stale = stale || e.Stale
		if n == 0 && note.Pod != nil {
			v.PodNote, found = *note.Pod, true
		}
		if note.Rank != nil {
			v.ranks = append(v.ranks, rankListing{n, *note.Rank, e.Stale})
		}
		ok = ok || note.Pod != nil || note.Rank != nil
	}
	if stale || !found {
		v.State = min(v.State, view.Uncertain)
	}
	return v, ok
}

// show makes a listed pod what its entries say. pod.mu is held.
func (x *Registry) show(name, model string, pm *podModel, v podListing) {
	adapters := make(map[string]struct{}, len(v.Adapters))
	for _, a := range v.Adapters {
		adapters[a] = struct{}{}
	}
	if !maps.Equal(adapters, pm.Adapters) {
		x.catalog.ForgetAdapters(name, model, pm.Adapters)
		pm.Adapters = adapters
		for a := range adapters {
			x.catalog.LearnAdapter(a, model, name)
		}
	}
	for n := range pm.Ranks {
		if !slices.ContainsFunc(v.ranks, func(r rankListing) bool { return r.n == n }) {
			x.ledger.Lose(&pm.sent, n, true)
			delete(pm.Ranks, n)
		}
	}
	hybrid := v.Hybrid
	for i := range v.ranks {
		of := &v.ranks[i]
		r := pm.Ranks[of.n]
		if r == nil {
			r = &podstate.Rank{Number: of.n}
			pm.Ranks[of.n] = r
		}
		r.State, r.Groups, r.LossyThere, r.Stale = of.State, of.Groups, of.Lossy, of.stale
		r.Shown = r.View()
		hybrid = hybrid || pm.Shown.Profile.Hybrid(r.Groups)
	}
	pm.ListRanks()
	pm.Silent = 0
	if v.State == view.Silent {
		pm.Silent = 1
	}
	f := pm.Shown.Facts()
	known := f.Hybrid
	f.State, f.Hybrid = v.State, hybrid
	pm.Shown.Publish(f)
	if hybrid == known && v.Form.Equal(&pm.Formed) {
		return
	}
	pm.Formed = v.Form
	x.ledger.SetForm(&pm.sent, v.Form.View(&pm.Shown.Profile))
	x.catalog.Changed()
}

// Notes.

// publishedPod is what the index was told of a pod and model, to be compared.
type publishedPod struct {
	is       bool
	state    view.State
	hybrid   bool
	form     *index.View
	adapters int // their number: they become more only
}

// tell tells others of the pod what has changed. pod.mu is held.
func (in *ingest) tell() {
	d, pm := in.x.directory.of, in.pm
	if d == nil || pm.sent.Room() != nil {
		return
	}
	f := pm.Shown.Facts()
	now := publishedPod{true, f.State, f.Hybrid, pm.sent.Blocks(), len(pm.Adapters)}
	zero := pm.Ranks[0]
	if now != pm.told || zero != nil && tells(zero) {
		pm.told = now
		n := podstate.Note{Pod: &podstate.PodNote{State: now.state, Hybrid: now.hybrid, Form: pm.Formed, Adapters: slices.Sorted(maps.Keys(pm.Adapters))}}
		if zero != nil {
			n.Rank = noteOf(zero)
		}
		d.Tell(index.Source{Pod: in.pod, Model: in.model}, n.Append(nil))
	}
	for _, r := range pm.ByNumber {
		if r.Number != 0 && tells(r) {
			n := podstate.Note{Rank: noteOf(r)}
			d.Tell(in.source(r), n.Append(nil))
		}
	}
}

// tells reports whether others do not know of the rank what there is to know.
func tells(r *podstate.Rank) bool {
	return !r.Told.Is || r.Told.State != r.View() || r.Told.Lossy != r.Lacks() || !slices.Equal(r.Told.Groups, r.Groups)
}

// noteOf returns the note of the rank, which is to be told.
func noteOf(r *podstate.Rank) *podstate.RankNote {
	r.Told = podstate.PublishedRank{Is: true, State: r.View(), Lossy: r.Lacks(), Groups: slices.Clone(r.Groups)}
	return &podstate.RankNote{State: r.Told.State, Lossy: r.Told.Lossy, Groups: r.Told.Groups}
}

// untell tells others that there is no such rank any more. pod.mu is held.
func (in *ingest) untell(r *podstate.Rank) {
	if r.Told.Is {
		in.x.tellGone(in.source(r))
	}
	in.forgetTold(r)
}

// forgetTold takes note that the index has no note of the rank any more. That of rank 0 was
// one of the pod too.
func (in *ingest) forgetTold(r *podstate.Rank) {
	r.Told = podstate.PublishedRank{}
	if r.Number == 0 {
		in.pm.told = publishedPod{}
	}
}

// tellGone tells others that there is nothing to know of a source.
func (x *Registry) tellGone(src index.Source) {
	if d := x.directory.of; d != nil {
		d.Tell(src, (&podstate.Note{}).Append(nil))
	}
}
