// Notes: the state of a pod for processes that share an index and do not feed the pod.
//
// Rows do not show which pods exist, how far a view can be trusted, which adapters a name may
// mean, or the form of blocks of a pod that holds nothing. All this is small and changes
// seldom. So the process that feeds the pod stores it as bytes that the index does not
// interpret, and only if the facts differ from the last note. A backend then needs no type of
// the Indexer. The reader makes the same structures from a note as for a pod that it feeds
// itself, so a score has one path for both. The two are never mixed: two partial views of one
// pod would have no true state.

package podstate

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Note is a published note: the state of a rank and, in the note of rank 0, also the state of
// the pod. A Note without either withdraws the note before.
type Note struct {
	Pod  *PodNote
	Rank *RankNote
}

// PodNote is the published state of a pod for one model.
type PodNote struct {
	State    view.State
	Hybrid   bool
	Tiered   bool
	Paged    bool
	Single   bool
	Loose    bool
	Form     engine.Form
	Adapters []string
}

// RankNote is the published state of a rank.
type RankNote struct {
	State  view.State
	Lossy  bool // Rank.lacks
	Groups []stats.Group
	Unknowns
}

// noteVersion is the first byte of a note. ReadNote refuses every other version.
const noteVersion = 1

// Append appends the note.
func (n *Note) Append(b []byte) []byte {
	b = append(b, noteVersion, sections.Flags(n.Pod != nil, n.Rank != nil))
	if p := n.Pod; p != nil {
		b = append(b, byte(p.State), sections.Flags(p.Hybrid, p.Form.Pairs, p.Tiered, p.Paged, p.Loose, p.Single))
		b = engine.AppendGroups(b, p.Form.Groups)
		b = binary.AppendUvarint(b, uint64(len(p.Adapters)))
		for _, a := range p.Adapters {
			b = sections.AppendString(b, a)
		}
	}
	if r := n.Rank; r != nil {
		b = append(b, byte(r.State), sections.Flags(r.Lossy, len(r.Unrecognized) > 0, r.MayHoldLess))
		b = r.appendUnknowns(engine.AppendGroups(b, r.Groups))
	}
	return b
}

var errNote = errors.New("the note has another version")

// ReadNote reads a note. It leaves out adapters that no event can name.
func ReadNote(b []byte) (n Note, err error) {
	if len(b) < 2 || b[0] != noteVersion {
		return n, errNote
	}
	f := sections.NewFields(b[1:])
	set := f.Byte()
	if set&1 != 0 {
		p := &PodNote{State: view.State(f.Byte())}
		of := f.Byte()
		p.Hybrid, p.Form.Pairs, p.Tiered = of&1 != 0, of&2 != 0, of&4 != 0
		p.Paged, p.Loose, p.Single = of&8 != 0, of&16 != 0, of&32 != 0
		p.Form.Groups = engine.ReadGroups(f)
		for range f.Count() {
			a := f.Bytes()
			if f.Err() != nil {
				break
			}
			if len(a) > 0 && len(a) <= engine.MaxName && len(p.Adapters) < engine.MaxAdapters {
				p.Adapters = append(p.Adapters, string(a))
			}
		}
		if p.State > view.Live {
			f.Refuse(errNote)
		}
		n.Pod = p
	}
	if set&2 != 0 {
		r := &RankNote{State: view.State(f.Byte())}
		of := f.Byte()
		r.Lossy, r.Groups, r.MayHoldLess = of&1 != 0, engine.ReadGroups(f), of&4 != 0
		if of&2 != 0 && !r.readUnknowns(f) || r.State > view.Live {
			f.Refuse(errNote)
		}
		n.Rank = r
	}
	return n, f.End()
}

// publishedPod is the content of the last note about a pod, for comparison.
type publishedPod struct {
	is       bool
	facts    view.Facts
	form     *index.View
	adapters int // their number, which only grows
}

// publishedRank is the content of the last note about a rank, for comparison.
type publishedRank struct {
	is bool
	RankNote
}

// Publish calls write with the notes of ranks whose content has changed. form is that of the
// blocks of predictions.
func (pm *Pod) Publish(form *index.View, write func(rank int, note []byte)) {
	f := pm.Shown.Facts()
	f.Less = false // notes of ranks have it
	now := publishedPod{true, f, form, len(pm.Adapters)}
	zero := pm.Ranks[0]
	if now != pm.published || zero != nil && zero.isNews() {
		pm.published = now
		n := Note{Pod: &PodNote{State: f.State, Hybrid: f.Hybrid, Tiered: f.Tiered, Paged: f.Paged, Single: f.Single, Loose: f.Loose, Form: pm.Formed, Adapters: slices.Sorted(maps.Keys(pm.Adapters))}}
		if zero != nil {
			n.Rank = zero.note()
		}
		write(0, n.Append(nil))
	}
	for _, r := range pm.ByNumber {
		if r.Number != 0 && r.isNews() {
			n := Note{Rank: r.note()}
			write(r.Number, n.Append(nil))
		}
	}
}

// isNews reports whether the rank differs from its last note.
func (r *Rank) isNews() bool {
	p := &r.published
	return !p.is || p.State != r.View() || p.Lossy != r.lacks() || !slices.Equal(p.Groups, r.Groups) ||
		p.MayHoldLess != r.MayHoldLess || !slices.Equal(p.Unrecognized, r.Unrecognized)
}

// note returns the note of the rank, which the caller publishes.
func (r *Rank) note() *RankNote {
	r.published = publishedRank{true, RankNote{
		State: r.View(), Lossy: r.lacks(), Groups: slices.Clone(r.Groups),
		Unknowns: Unknowns{Unrecognized: slices.Clone(r.Unrecognized), MayHoldLess: r.MayHoldLess},
	}}
	n := r.published.RankNote
	return &n
}

// HasNote reports whether a note about the pod is published.
func (pm *Pod) HasNote() bool { return pm.published.is }

// Unpublish records that the index has no note of the rank any more, and reports whether it had
// one. The note of rank 0 was also that of the pod.
func (pm *Pod) Unpublish(r *Rank) (had bool) {
	had, r.published = r.published.is, publishedRank{}
	if r.Number == 0 {
		pm.published = publishedPod{}
	}
	return had
}

// Listing is the content of the entries of a pod and model in a sharedindex.Listing.
type Listing struct {
	PodNote
	Ranks []RankListing
}

// RankListing is the content of the entry of a rank.
type RankListing struct {
	Number int
	RankNote
	Stale bool
}

// AppendListing appends the fields of entries that ReadListing reads.
func AppendListing(b []byte, entries []sharedindex.Entry) []byte {
	for i := range entries {
		e := &entries[i]
		b = binary.AppendVarint(b, int64(e.Source.Rank))
		b = append(b, sections.Flags(e.Fed, e.Stale, e.Note == nil))
		b = sections.AppendString(b, e.Note)
	}
	return b
}

// ReadListing reads the entries of a pod and model. It returns false if they have no note of a
// pod or rank. A note that cannot be read makes its rank and its pod uncertain, and not unknown:
// another process feeds them.
func ReadListing(entries []sharedindex.Entry) (v Listing, ok bool) {
	stale := false
	v.State = view.Live
	found := false // a note of the pod
	for i := range entries {
		e := &entries[i]
		n := e.Source.Rank
		if e.Fed || (&events.Batch{Rank: n, HasRank: true}).Validate() != nil || len(v.Ranks) >= engine.MaxRanks {
			continue
		}
		note, err := ReadNote(e.Note)
		if err != nil {
			note, stale = Note{Rank: &RankNote{State: view.Uncertain}}, true
		}
		stale = stale || e.Stale
		if n == 0 && note.Pod != nil {
			v.PodNote, found = *note.Pod, true
		}
		if note.Rank != nil {
			v.Ranks = append(v.Ranks, RankListing{n, *note.Rank, e.Stale})
		}
		ok = ok || note.Pod != nil || note.Rank != nil
	}
	if stale || !found {
		v.State = min(v.State, view.Uncertain)
	}
	return v, ok
}
