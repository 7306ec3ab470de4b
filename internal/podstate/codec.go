package podstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/view"
)

// StreamState is about the size of a stream in a snapshot, in bytes: mostly the numbers and
// digests of its last messages.
const StreamState = 10 << 10

// AppendState appends the state that a snapshot needs.
func (pm *Pod) AppendState(b []byte) []byte {
	shown, formed := pm.Shown.Facts(), len(pm.Formed.Groups) > 0
	b = append(b, sections.Flags(shown.Hybrid, shown.Tiered, shown.Paged, shown.Single, formed, formed && pm.Formed.Pairs))
	if formed {
		b = engine.AppendGroups(b, pm.Formed.Groups)
	}
	b = pm.Recent.Append(b)
	b = binary.AppendUvarint(b, uint64(len(pm.Adapters)))
	for _, a := range slices.Sorted(maps.Keys(pm.Adapters)) {
		b = sections.AppendString(b, a)
	}
	b = binary.AppendUvarint(b, uint64(len(pm.Ranks)))
	for _, r := range pm.ByNumber {
		b = r.appendState(b)
	}
	heard := slices.DeleteFunc(slices.Sorted(maps.Keys(pm.Streams)), func(st string) bool {
		return pm.Streams[st].LastMessage.IsZero() // it has no message
	})
	b = binary.AppendUvarint(b, uint64(len(heard)))
	for _, st := range heard {
		b = pm.Streams[st].appendState(b)
	}
	return b
}

func (r *Rank) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(r.Number))
	b = append(b, byte(r.State), sections.Flags(r.Kept, r.Contest.Open, r.Contest.Reported, r.Lost.Kept, len(r.Unrecognized) > 0, r.MayHoldLess, !r.Ages.isZero(), true), byte(r.Contest.Others), byte(r.Contest.Own), byte(slices.Index(view.LossNames, r.Lost.Cause)))
	b = appendTime(b, r.Lost.At)
	b = r.appendUnknowns(engine.AppendGroups(b, r.Groups))
	if !r.Ages.isZero() {
		b = r.Ages.appendState(b)
	}
	return append(b, byte(r.Tiers))
}

// appendState leaves out the notes of a transport, which will be gone after Restore.
func (st *Stream) appendState(b []byte) []byte {
	b = sections.AppendString(b, st.Name)
	b = append(b, sections.Flags(st.Partial, st.Skipped, st.Declared, st.OfGPU, len(st.Lower) > 0))
	b = appendTime(b, st.LastMessage)
	b = binary.AppendUvarint(b, uint64(len(st.Ranks)))
	for _, r := range st.Ranks {
		b = binary.AppendUvarint(b, uint64(r.Number))
	}
	if len(st.Lower) > 0 {
		b = append(b, byte(st.Named), byte(st.Reports))
		b = binary.AppendUvarint(b, uint64(len(st.Lower)))
		for _, r := range st.Lower {
			b = binary.AppendUvarint(b, uint64(r.Number))
		}
	}
	at := len(b)
	b, _ = st.Seq.AppendBinary(b) // it has no error
	return slices.Insert(b, at, binary.AppendUvarint(nil, uint64(len(b)-at))...)
}

// appendTime appends a time in nanoseconds; 0: none.
func appendTime(b []byte, t time.Time) []byte {
	n := int64(0)
	if !t.IsZero() {
		n = t.UnixNano()
	}
	return binary.LittleEndian.AppendUint64(b, uint64(n))
}

// ReadState reads the state that AppendState has written, into an empty Pod.
func (pm *Pod) ReadState(f *sections.Fields) error {
	shown := pm.Shown.Facts()
	flags := f.Byte()
	shown.Hybrid, shown.Tiered, shown.Paged, shown.Single = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	pm.Shown.Publish(shown)
	if flags&16 != 0 { // a snapshot of an earlier version does not have it
		pm.Formed = engine.Form{Groups: engine.ReadGroups(f), Pairs: flags&32 != 0}
		if len(pm.Formed.Groups) == 0 {
			f.Refuse(errors.New("a form of blocks without groups"))
		}
	}
	pm.Recent.Read(f)
	for range f.Count() {
		a := f.String()
		if _, twice := pm.Adapters[a]; twice || a == "" || len(a) > engine.MaxName || len(pm.Adapters) >= engine.MaxAdapters {
			f.Refuse(fmt.Errorf("adapter %.100q", a))
			break
		}
		pm.Adapters[a] = struct{}{}
	}
	for range f.Count() {
		if err := pm.readRank(f); err != nil {
			return err
		}
	}
	for range f.Count() {
		if err := pm.readStream(f); err != nil {
			return err
		}
	}
	for _, r := range pm.Ranks {
		r.unproven = r.Stream == nil && !r.Kept && r.State != view.Unknown
		r.Pairs = pm.Formed.Pairs
	}
	return nil
}

func (pm *Pod) readRank(f *sections.Fields) error {
	b := events.Batch{Rank: f.Int(math.MaxInt), HasRank: true}
	state, set := view.State(f.Byte()), f.Byte()
	c := Contest{Others: int(f.Byte()), Own: int(f.Byte())}
	cause, lost := int(f.Byte()), view.LastLoss{At: readTime(f)}
	groups := engine.ReadGroups(f)
	var unknowns Unknowns
	bounded := set&16 == 0 || unknowns.readUnknowns(f)
	var ages Ages
	switch {
	case set&64 != 0:
		ages = readAges(f)
	case pm.Shown.Facts().Tiered: // before there were any
		ages.Recall()
	}
	tiers := engine.LowerTiers // a snapshot of an earlier version does not have them
	if set&128 != 0 {
		tiers = engine.Tiers(f.Byte())
	}
	switch err := b.Validate(); {
	case f.Err() != nil:
		return nil
	case err != nil:
		return err
	case pm.Ranks[b.Rank] != nil:
		return fmt.Errorf("rank %d is repeated", b.Rank)
	case !bounded:
		return fmt.Errorf("rank %d: too many unrecognized parts", b.Rank)
	case state > view.Live || tiers&^engine.LowerTiers != 0 || cause >= len(view.LossNames) || c.Others >= ContestRun || c.Own >= ContestRun:
		return fmt.Errorf("rank %d: an invalid state", b.Rank)
	}
	r, err := pm.Rank(b.Rank)
	if err != nil {
		return err
	}
	c.Open, c.Reported, lost.Kept = set&2 != 0, set&4 != 0, set&8 != 0
	lost.Cause = view.LossNames[cause]
	r.State, r.Kept, r.Tiers = state, set&1 != 0, tiers
	r.Contest, r.Lost, r.Groups, r.Ages = c, lost, groups, ages
	r.Unknowns = unknowns
	r.MayHoldLess = set&32 != 0
	return nil
}

func (pm *Pod) readStream(f *sections.Fields) error {
	name, set, heard := f.String(), f.Byte(), readTime(f)
	var ranks []int
	for range min(f.Count(), engine.MaxRanks+1) {
		ranks = append(ranks, f.Int(math.MaxInt))
	}
	var of lower
	var lent []int
	if of.Declared, of.OfGPU = set&4 != 0, set&8 != 0; set&16 != 0 {
		of.Named, of.Reports = engine.Tiers(f.Byte()), view.State(f.Byte())
		for range min(f.Count(), engine.MaxRanks+1) {
			lent = append(lent, f.Int(math.MaxInt))
		}
	}
	seq := f.Bytes()
	if f.Err() != nil {
		return nil
	}
	if pm.Streams[name] != nil || name == "" {
		return fmt.Errorf("stream %q is repeated, or has no name", name)
	}
	st, err := pm.Stream(name)
	if err != nil {
		return err
	}
	for _, n := range ranks {
		r := pm.Ranks[n]
		if r == nil || r.Stream != nil {
			return fmt.Errorf("stream %q: rank %d is missing, or belongs to another stream", name, n)
		}
		pm.Bind(r, st)
	}
	if of.Named&^engine.LowerTiers != 0 || of.Reports > view.Live || len(lent) > 0 && (len(ranks) > 0 || of.OfGPU) {
		return fmt.Errorf("stream %q: an invalid state", name)
	}
	st.lower = of
	for _, n := range lent {
		r := pm.Ranks[n]
		if r == nil || slices.Contains(r.Lower, st) {
			return fmt.Errorf("stream %q: rank %d is missing, or repeated", name, n)
		}
		r.Lend(st)
	}
	if err := st.Seq.UnmarshalBinary(seq); err != nil {
		return fmt.Errorf("stream %q: %w", name, err)
	}
	st.Seq.Away()
	st.Partial, st.Skipped, st.LastMessage = set&1 != 0, set&2 != 0, heard
	st.Interrupted, st.restored = true, true
	return nil
}

func readTime(f *sections.Fields) time.Time {
	if n := int64(f.Uint64()); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// maxUnrecognizedText bounds the length of a text in Unrecognized: a name of 40 bytes, quoted.
const maxUnrecognizedText = 256

// NoteUnknown adds the parts of a batch that are not recognized.
func (u *Unknowns) NoteUnknown(what []string, mayRemove bool) {
	u.MayHoldLess = u.MayHoldLess || mayRemove
	for _, text := range what {
		if i, known := slices.BinarySearch(u.Unrecognized, text); !known && len(u.Unrecognized) < engine.MaxUnrecognized {
			u.Unrecognized = slices.Insert(u.Unrecognized, i, text)
		}
	}
}

// appendUnknowns appends the texts, if there are any.
func (u *Unknowns) appendUnknowns(b []byte) []byte {
	if len(u.Unrecognized) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(u.Unrecognized)))
	for _, text := range u.Unrecognized {
		b = sections.AppendString(b, text)
	}
	return b
}

// readUnknowns reads what appendUnknowns appended. It returns false for more than a rank keeps.
func (u *Unknowns) readUnknowns(f *sections.Fields) bool {
	n := f.Count()
	if n > engine.MaxUnrecognized {
		return false
	}
	for range n {
		text := f.String()
		if len(text) > maxUnrecognizedText {
			return false
		}
		u.NoteUnknown([]string{text}, false)
	}
	return true
}

// timeOf returns the time of a batch by its engine's clock; the zero Time if it has none.
func timeOf(b *events.Batch) time.Time {
	if !(b.Time > 0) {
		return time.Time{}
	}
	return time.Unix(0, int64(min(b.Time*1e9, math.MaxInt64/2)))
}
