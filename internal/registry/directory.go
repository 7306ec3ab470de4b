// Directory: pods that another process feeds.
//
// An index that several processes share may be a sharedindex.Directory. Then the Indexer that
// feeds a pod publishes the state of the pod beside its blocks there, as notes. Every other
// Indexer registers the pod from these notes: they have the states, the adapters, and the form
// of blocks in which a score must cut a prompt. Each rank has a note. The note of rank 0 also
// has the state of the pod, and exists even if no rank 0 is registered.
//
// For each model, a pod is fed here or listed. A pod that is fed here ignores the listing: if a
// listed pod gets a message here, it begins as a new pod. Nothing of a listed pod is written to
// the index.
//
// podstate.Note has the form of notes. A note comes from outside.

package registry

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
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

	mu      sync.Mutex // guards all below; taken before pod.mu
	pods    map[servedAt]*podModel
	turn    uint64 // counts the listings that were taken
	encoded []byte // memory of takePod
}

// servedAt names a podModel.
type servedAt struct{ pod, model string }

// listing is the origin of a listed podModel.
type listing struct {
	encoded []byte // its entries, one after the other
	turn    uint64 // directory.turn when it was listed last; guarded by directory.mu
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
		x.leaveUnknown(p)
	}
}

// takePod takes over the entries of a pod and model, unless the pod is fed here. It leaves out
// names that are too long, pods beyond a bound, and pods whose Profile is refused. directory.mu
// is held.
func (x *Registry) takePod(entries []sharedindex.Entry) {
	d, src := &x.directory, entries[0].Source
	if x.check(src.Pod, src.Model) != nil || !slices.ContainsFunc(entries, func(e sharedindex.Entry) bool { return !e.Fed }) {
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
			x.leaveUnknown(p)
		}
	}()
	d.encoded = podstate.AppendListing(d.encoded[:0], entries)
	pm := p.models[src.Model]
	switch {
	case pm == nil:
	case pm.listed != nil && bytes.Equal(pm.listed.encoded, d.encoded):
		pm.listed.turn = d.turn
		return
	case pm.listed == nil && !pm.isEstimate():
		return
	}
	v, ok := podstate.ReadListing(entries)
	if !ok {
		return
	}
	if pm == nil || pm.listed == nil {
		if pm = x.listedPod(p, src.Model); pm == nil {
			return
		}
	}
	d.pods[at] = pm
	pm.listed.encoded, pm.listed.turn = bytes.Clone(d.encoded), d.turn
	x.show(p.name, src.Model, pm, v)
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

// show updates a listed pod from its entries. pod.mu is held.
func (x *Registry) show(name, model string, pm *podModel, v podstate.Listing) {
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
		if !slices.ContainsFunc(v.Ranks, func(r podstate.RankListing) bool { return r.Number == n }) {
			x.ledger.Lose(&pm.sent, n, true)
			delete(pm.Ranks, n)
		}
	}
	hybrid, less := v.Hybrid, false
	for i := range v.Ranks {
		of := &v.Ranks[i]
		r := pm.Ranks[of.Number]
		if r == nil {
			r = &podstate.Rank{Number: of.Number}
			pm.Ranks[of.Number] = r
		}
		r.State, r.Groups, r.LossyThere, r.Stale = of.State, of.Groups, of.Lossy, of.Stale
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

// publish writes notes for the parts of the pod that have changed. pod.mu is held.
func (in *ingest) publish() {
	d, pm := in.x.directory.of, in.pm
	if d == nil || pm.sent.Room() != nil {
		return
	}
	pm.Publish(pm.sent.Blocks(), func(rank int, note []byte) {
		d.Publish(index.Source{Pod: in.pod, Model: in.model, Rank: rank}, note)
	})
}

// withdraw replaces the note of a removed rank by an empty one. pod.mu is held.
func (in *ingest) withdraw(r *podstate.Rank) {
	if in.pm.Unpublish(r) {
		in.x.withdrawNote(in.source(r))
	}
}

// withdrawNote replaces the note of a source by an empty one.
func (x *Registry) withdrawNote(src index.Source) {
	if d := x.directory.of; d != nil {
		d.Publish(src, (&podstate.Note{}).Append(nil))
	}
}
