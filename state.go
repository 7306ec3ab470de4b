// State: what is known of a pod, as bytes of a snapshot.

package kvindex

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/view"
)

// streamState is about what there is of a stream, of which the numbers and digests of
// its last messages are remembered.
const streamState = 10 << 10

// Cut appends what is known of a pod at the moment of last, at which the index cuts it.
func (x *registry) Cut(b []byte, name string, last func() error) ([]byte, error) {
	p, err := x.lockPod(name) // keeps messages away
	if err != nil {
		return nil, err
	}
	defer p.unlock()
	_, cancel := p.call(x)
	err = last()
	p.called(cancel)
	b = p.appendState(b)
	x.mu.Lock()
	x.leaveUnknown(p)
	x.mu.Unlock()
	return b, err
}

// appendState appends all that is to be known of a pod after Restore. p.mu is held, so
// that messages wait: b grows at once for most streams.
func (p *pod) appendState(b []byte) []byte {
	for _, pm := range p.models {
		b = slices.Grow(b, len(pm.streams)*streamState)
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(p.models)), func(name string) bool {
		return p.models[name].sent.Room() != nil || p.models[name].listed != nil // nothing was heard of it
	})
	b = sections.AppendString(b, p.name)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		pm := p.models[name]
		b = sections.AppendString(b, name)
		b = append(b, sections.Flags(pm.shown.Facts().Hybrid))
		b = pm.recent.Append(b)
		b = binary.AppendUvarint(b, uint64(len(pm.adapters)))
		for _, a := range slices.Sorted(maps.Keys(pm.adapters)) {
			b = sections.AppendString(b, a)
		}
		b = binary.AppendUvarint(b, uint64(len(pm.ranks)))
		for _, r := range pm.byNumber {
			b = r.appendState(b)
		}
		heard := slices.DeleteFunc(slices.Sorted(maps.Keys(pm.streams)), func(st string) bool {
			return pm.streams[st].heard.IsZero() // nothing is known of it
		})
		b = binary.AppendUvarint(b, uint64(len(heard)))
		for _, st := range heard {
			b = pm.streams[st].appendState(b)
		}
	}
	return b
}

func (r *rank) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(r.n))
	b = append(b, byte(r.state), sections.Flags(r.kept, r.contest.open, r.contest.told, r.lost.Kept, len(r.unrecognized) > 0, r.mayHoldLess), byte(r.contest.others), byte(r.contest.own), byte(slices.Index(view.LossNames, r.lost.Cause)))
	b = appendTime(b, r.lost.At)
	b = engine.AppendGroups(b, r.groups)
	if len(r.unrecognized) > 0 {
		b = binary.AppendUvarint(b, uint64(len(r.unrecognized)))
		for _, text := range r.unrecognized {
			b = sections.AppendString(b, text)
		}
	}
	return b
}

// appendState leaves out what a transport has said of the stream: it has gone.
func (st *stream) appendState(b []byte) []byte {
	b = sections.AppendString(b, st.name)
	b = append(b, sections.Flags(st.partial, st.skipped))
	b = appendTime(b, st.heard)
	b = binary.AppendUvarint(b, uint64(len(st.ranks)))
	for _, r := range st.ranks {
		b = binary.AppendUvarint(b, uint64(r.n))
	}
	at := len(b)
	b, _ = st.seq.AppendBinary(b) // it has no error
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

// Restore reads what Cut has written of a pod.
func (x *registry) Restore(f *sections.Fields) {
	name := f.String()
	if x.pod(name) != nil {
		f.Refuse(fmt.Errorf("pod %q is there twice", name))
	}
	for range f.Count() {
		if err := x.restoreModel(name, f); err != nil {
			f.Refuse(fmt.Errorf("pod %q: %w", name, err))
		}
	}
}

// Restored works out the states behind the last Restore.
func (x *registry) Restored() error {
	if err := x.recall(); err != nil {
		return err
	}
	known := x.known()
	x.eachPod(func(p *pod, model string, pm *podModel) {
		for _, r := range pm.ranks {
			r.evicted = known[index.Source{Pod: p.name, Model: model, Rank: r.n}].Evicted > 0
		}
		pm.settle()
	})
	return nil
}

// model reads what is known of a pod for a model.
func (x *registry) restoreModel(pod string, f *sections.Fields) error {
	model := f.String()
	if f.Err() != nil {
		return nil
	}
	if err := x.check(pod, model); err != nil {
		return err
	}
	in := x.newIngest(pod, model)
	if in.find() {
		in.leave()
		return fmt.Errorf("model %q is there twice", model)
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.leave()
	shown := in.pm.shown.Facts()
	shown.Hybrid = f.Byte()&1 != 0
	in.pm.shown.Publish(shown)
	in.pm.recent.Read(f)
	for range f.Count() {
		a := f.String()
		if _, twice := in.pm.adapters[a]; twice || a == "" || len(a) > engine.MaxName || len(in.pm.adapters) >= maxAdapters {
			f.Refuse(fmt.Errorf("adapter %.100q", a))
			break
		}
		in.pm.adapters[a] = struct{}{}
		in.x.learnAdapter(a, model, pod)
	}
	for range f.Count() {
		if err := in.pm.readRank(f); err != nil {
			return err
		}
	}
	for range f.Count() {
		if err := in.pm.readStream(f); err != nil {
			return err
		}
	}
	for _, r := range in.pm.ranks {
		r.unproven = r.stream == nil && !r.kept && r.state != view.Unknown
	}
	return nil
}

func (pm *podModel) readRank(f *sections.Fields) error {
	b := events.Batch{Rank: f.Int(math.MaxInt)}
	state, set := view.State(f.Byte()), f.Byte()
	c := contest{others: int(f.Byte()), own: int(f.Byte())}
	cause, lost := int(f.Byte()), view.LastLoss{At: readTime(f)}
	groups, bad := engine.ReadGroups(f)
	var unrecognized []string
	if set&16 != 0 {
		for range min(f.Count(), engine.MaxUnrecognized+1) {
			unrecognized = append(unrecognized, f.String())
		}
	}
	switch err := b.Validate(); {
	case f.Err() != nil:
		return nil
	case bad != nil:
		return fmt.Errorf("rank %d: %w", b.Rank, bad)
	case err != nil:
		return err
	case pm.ranks[b.Rank] != nil:
		return fmt.Errorf("rank %d is there twice", b.Rank)
	case len(unrecognized) > engine.MaxUnrecognized || slices.ContainsFunc(unrecognized, func(text string) bool { return len(text) > maxUnrecognizedText }):
		return fmt.Errorf("rank %d: more that is not recognized than is kept", b.Rank)
	case state > view.Live || cause >= len(view.LossNames) || c.others >= contestRun || c.own >= contestRun:
		return fmt.Errorf("rank %d: a state that no rank has", b.Rank)
	}
	r, err := pm.rank(b.Rank)
	if err != nil {
		return err
	}
	c.open, c.told, lost.Kept = set&2 != 0, set&4 != 0, set&8 != 0
	lost.Cause = view.LossNames[cause]
	r.state, r.kept = state, set&1 != 0
	r.contest, r.lost, r.groups = c, lost, groups
	r.unknown(unrecognized, set&32 != 0)
	return nil
}

func (pm *podModel) readStream(f *sections.Fields) error {
	name, set, heard := f.String(), f.Byte(), readTime(f)
	var ranks []int
	for range min(f.Count(), engine.MaxRanks+1) {
		ranks = append(ranks, f.Int(math.MaxInt))
	}
	seq := f.Bytes()
	if f.Err() != nil {
		return nil
	}
	if pm.streams[name] != nil || name == "" {
		return fmt.Errorf("stream %q is there twice, or has no name", name)
	}
	st, err := pm.stream(name)
	if err != nil {
		return err
	}
	for _, n := range ranks {
		r := pm.ranks[n]
		if r == nil || r.stream != nil {
			return fmt.Errorf("stream %q: rank %d is not there, or another stream's", name, n)
		}
		pm.bind(r, st)
	}
	if err := st.seq.UnmarshalBinary(seq); err != nil {
		return fmt.Errorf("stream %q: %w", name, err)
	}
	st.seq.Away()
	st.partial, st.skipped, st.heard = set&1 != 0, set&2 != 0, heard
	st.interrupted, st.restored = true, true
	return nil
}

func readTime(f *sections.Fields) time.Time {
	if n := int64(f.Uint64()); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
