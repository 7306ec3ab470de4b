// Directory: pods that another process feeds.
//
// An index that several processes share may be a sharedindex.Directory. Then the Indexer that
// feeds a pod publishes the state of the pod beside its blocks there, as notes. Every other
// Indexer registers the pod from these notes: they have the states, the adapters, and the form
// of blocks in which a score must cut a prompt. Each rank has a note. The note of rank 0 also
// has the state of the pod, and exists even if no rank 0 is known.
//
// For each model, a pod is fed here or listed. A pod that is fed here ignores the listing: if a
// listed pod gets a message here, it begins as a new pod. Nothing of a listed pod is written to
// the index.
//
// A note comes from outside. A note that cannot be read makes its rank and its pod uncertain,
// and not unknown: another process feeds them.
//
// # Why notes
//
// Rows do not show which pods exist, how far a view can be trusted, which adapters a name may
// mean, or the form of blocks of a pod that holds nothing. All this is small and changes
// seldom. So the writer stores it as bytes that the index does not interpret, and only if the
// facts differ from the last note. A backend then needs no type of the Indexer. The reader
// makes the same structures from a note as for a pod that it feeds itself, so a score has one
// path for both. The two are never mixed: two partial views of one pod would have no true
// state.

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

// listingTimeout limits the wait for a listing in Pods and Stats, which have no context.
const listingTimeout = time.Second

// directory has the pods that other processes feed.
type directory struct {
	of   sharedindex.Directory               // the index; nil: it is no Directory
	last atomic.Pointer[sharedindex.Listing] // the last listing that was taken; nil: none yet
	redo atomic.Bool                         // a pod is no longer fed here, so it may be listed

	mu   sync.Mutex // guards all below; taken before pod.mu
	pods map[servedAt]*podModel
	turn uint64 // counts the listings that were taken
	said []byte // memory of takePod
}

// servedAt names a podModel.
type servedAt struct{ pod, model string }

// listing is the origin of a listed podModel.
type listing struct {
	said []byte // its entries, one after the other
	turn uint64 // directory.turn when it was listed last; guarded by directory.mu
}

// List takes over the pods that other processes feed, if the listing has changed. It takes at
// most half of the time that ctx has left, because the query of the index follows. It returns
// an error only if there was never a listing.
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

// listNow is List for callers without a context. It ignores the error.
func (x *Registry) listNow() {
	if x.directory.of != nil {
		ctx, cancel := context.WithTimeout(context.Background(), listingTimeout)
		defer cancel()
		_ = x.List(ctx)
	}
}

// take updates the listed pods from a listing, and forgets pods that are not in it.
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

// unlist forgets a listed podModel, unless it was replaced or removed meanwhile.
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

// takePod takes over the entries of a pod and model, unless the pod is fed here. It leaves out
// names that are too long, pods beyond a bound, and pods whose Profile is refused. directory.mu
// is held.
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
	case pm.listed == nil && !pm.isEstimate():
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

// isOthers reports whether another process feeds the source of an entry.
func isOthers(e sharedindex.Entry) bool { return !e.Fed }

// appendEntries appends the fields of entries that viewOf reads.
func appendEntries(b []byte, entries []sharedindex.Entry) []byte {
	for i := range entries {
		e := &entries[i]
		b = binary.AppendVarint(b, int64(e.Source.Rank))
		b = append(b, sections.Flags(e.Fed, e.Stale, e.Note == nil))
		b = sections.AppendString(b, e.Note)
	}
	return b
}

// isEstimate reports whether the pod is only estimated: it has sent no message, and no transport
// follows it. pod.mu is held.
func (pm *podModel) isEstimate() bool {
	return pm.sent.Room() != nil && len(pm.Ranks) == 0 && len(pm.Streams) == 0
}

// listedPod returns a new podModel for a listed pod; nil: its Profile is refused, or the pod has
// too many models. p.mu is held.
func (x *Registry) listedPod(p *pod, model string) *podModel {
	known := p.replies[model] != nil // from a message
	profile, err := x.profileFor(p, model, &events.Batch{})
	if err != nil {
		if !known {
			delete(p.replies, model) // the function is called again
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

// podListing is the content of the entries of a pod and model.
type podListing struct {
	podstate.PodNote
	ranks []rankListing
}

// rankListing is the content of the entry of a rank.
type rankListing struct {
	n int
	podstate.RankNote
	stale bool
}

// viewOf reads entries. It returns false if they have no note of a pod or rank.
func viewOf(entries []sharedindex.Entry) (v podListing, ok bool) {
	stale := false
	v.State = view.Live
	found := false // a note of the pod
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

// show updates a listed pod from its entries. pod.mu is held.
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
	hybrid, less := v.Hybrid, false
	for i := range v.ranks {
		of := &v.ranks[i]
		r := pm.Ranks[of.n]
		if r == nil {
			r = &podstate.Rank{Number: of.n}
			pm.Ranks[of.n] = r
		}
		r.State, r.Groups, r.LossyThere, r.Stale = of.State, of.Groups, of.Lossy, of.stale
		r.Unknowns = of.Unknowns
		less = less || r.MayHoldLess
		r.Shown = r.View()
		hybrid = hybrid || pm.Shown.Profile.Hybrid(r.Groups)
	}
	pm.ListRanks()
	pm.Silent = 0
	if v.State == view.Silent {
		pm.Silent = 1
	}
	f := pm.Shown.Facts()
	known := f
	f.State, f.Hybrid, f.Less, f.Loose = v.State, hybrid, less, v.Loose
	f.Tiered, f.Paged, f.Single = f.Tiered || v.Tiered, f.Paged || v.Paged, f.Single || v.Single
	pm.Shown.Publish(f)
	if f.Hybrid == known.Hybrid && f.Tiered == known.Tiered && f.Paged == known.Paged && f.Single == known.Single && v.Form.Equal(&pm.Formed) {
		return
	}
	pm.Formed = v.Form
	x.ledger.SetForm(&pm.sent, v.Form.View(&pm.Shown.Profile))
	x.catalog.Changed()
}

// Notes.

// publishedPod is the content of the last note about a pod, for comparison.
type publishedPod struct {
	is       bool
	state    view.State
	hybrid   bool
	tiered   bool
	paged    bool
	single   bool
	loose    bool
	form     *index.View
	adapters int // their number, which only grows
}

// publish writes notes for the parts of the pod that have changed. pod.mu is held.
func (in *ingest) publish() {
	d, pm := in.x.directory.of, in.pm
	if d == nil || pm.sent.Room() != nil {
		return
	}
	f := pm.Shown.Facts()
	now := publishedPod{true, f.State, f.Hybrid, f.Tiered, f.Paged, f.Single, f.Loose, pm.sent.Blocks(), len(pm.Adapters)}
	zero := pm.Ranks[0]
	if now != pm.published || zero != nil && isNews(zero) {
		pm.published = now
		n := podstate.Note{Pod: &podstate.PodNote{State: now.state, Hybrid: now.hybrid, Tiered: now.tiered, Paged: now.paged, Single: now.single, Loose: now.loose, Form: pm.Formed, Adapters: slices.Sorted(maps.Keys(pm.Adapters))}}
		if zero != nil {
			n.Rank = noteOf(zero)
		}
		d.Publish(index.Source{Pod: in.pod, Model: in.model}, n.Append(nil))
	}
	for _, r := range pm.ByNumber {
		if r.Number != 0 && isNews(r) {
			n := podstate.Note{Rank: noteOf(r)}
			d.Publish(in.source(r), n.Append(nil))
		}
	}
}

// isNews reports whether the rank differs from its last note.
func isNews(r *podstate.Rank) bool {
	p := &r.Published
	return !p.Is || p.State != r.View() || p.Lossy != r.Lacks() || !slices.Equal(p.Groups, r.Groups) ||
		p.MayHoldLess != r.MayHoldLess || !slices.Equal(p.Unrecognized, r.Unrecognized)
}

// noteOf returns the note of the rank, which the caller publishes.
func noteOf(r *podstate.Rank) *podstate.RankNote {
	r.Published = podstate.PublishedRank{
		Is: true, State: r.View(), Lossy: r.Lacks(), Groups: slices.Clone(r.Groups),
		Unknowns: podstate.Unknowns{Unrecognized: slices.Clone(r.Unrecognized), MayHoldLess: r.MayHoldLess},
	}
	p := &r.Published
	return &podstate.RankNote{State: p.State, Lossy: p.Lossy, Groups: p.Groups, Unknowns: p.Unknowns}
}

// withdraw replaces the note of a removed rank by an empty one. pod.mu is held.
func (in *ingest) withdraw(r *podstate.Rank) {
	if r.Published.Is {
		in.x.withdrawNote(in.source(r))
	}
	in.forgetPublished(r)
}

// forgetPublished records that the index has no note of the rank any more. The note of rank 0
// was also that of the pod.
func (in *ingest) forgetPublished(r *podstate.Rank) {
	r.Published = podstate.PublishedRank{}
	if r.Number == 0 {
		in.pm.published = publishedPod{}
	}
}

// withdrawNote replaces the note of a source by an empty one.
func (x *Registry) withdrawNote(src index.Source) {
	if d := x.directory.of; d != nil {
		d.Publish(src, (&podstate.Note{}).Append(nil))
	}
}
