package podstate

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
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
	Lossy  bool // Rank.Lacks
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
		p.Form.Groups = readGroups(f)
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
		r.Lossy, r.Groups, r.MayHoldLess = of&1 != 0, readGroups(f), of&4 != 0
		if of&2 != 0 && !r.readUnknowns(f) || r.State > view.Live {
			f.Refuse(errNote)
		}
		n.Rank = r
	}
	return n, f.End()
}

// readGroups reads groups, and refuses values that no engine can report.
func readGroups(f *sections.Fields) []stats.Group {
	groups, err := engine.ReadGroups(f)
	if err != nil {
		f.Refuse(err)
	}
	for i, g := range groups {
		if g.BlockSize == 0 || g.BlockSize > math.MaxInt32 || g.Window > math.MaxInt32 || slices.ContainsFunc(groups[:i], func(o stats.Group) bool { return o.ID == g.ID }) {
			f.Refuse(errNote)
		}
	}
	return groups
}
