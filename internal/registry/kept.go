// Kept: an index that outlives its Indexer, or has others that write to it.
//
// What such an index holds of a rank is the truth of the moment in which it was
// stored. It is claimed from the beginning, so the rank has a state from the
// beginning: partial, and uncertain until a stream confirms it. That can only be the
// stream which fed the rank last, and which goes on from the cursor that it left.
// If another one speaks for the rank first, what is held of it is forgotten.
//
// Which stream fed a rank last does not show by the cursors, because each stream
// has one. So it is noted, in a cursor of its own, before the first message of
// another stream is applied. A loss that was kept (WithKeepOnLoss) is noted in the same
// way, before the message behind it is applied.
//
// An index that several processes share (directory.go) describes to each what that one feeds.
// So a new process keeps nothing of what others feed, and lists it.

package registry

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/zeebo/xxh3"
)

// feederCursor is the stream whose cursor notes which one feeds a rank: its Epoch
// counts, and its Digest is of the name.
const feederCursor = "\x00feeder"

// doubtCursor is the stream whose cursor notes that some of what a rank holds may have
// gone, because a loss was kept: its Epoch counts, and its Digest is 1 or 0.
const doubtCursor = "\x00doubt"

// Recall makes the ranks known that the index holds something of, unless they are known
// from a snapshot.
func (x *Registry) Recall() error {
	d, ok := x.index.(index.Describer)
	if !ok {
		return nil
	}
	for _, s := range d.Describe(nil) {
		if s.Blocks == [index.NumTiers]int{} {
			continue
		}
		in := x.newIngest(s.Source.Pod, s.Source.Model)
		if err := in.enter(); err != nil {
			return err
		}
		r, err := in.pm.Rank(s.Source.Rank)
		if err == nil && r.State == view.Unknown && r.Stream == nil {
			r.Kept = true
			err = in.recalled(r)
		}
		in.pm.settle()
		in.leave()
		if err != nil {
			return fmt.Errorf("kvindex: pod %q: %w", in.pod, err)
		}
	}
	return nil
}

// recalled takes note that a rank holds what is in the index from before.
func (in *ingest) recalled(r *podstate.Rank) error {
	cur, err := in.cursorOf(r, doubtCursor)
	if err != nil {
		return err
	}
	if r.Doubt = cur.Digest == 1; r.Doubt {
		r.On(podstate.Doubted)
	} else {
		r.On(podstate.HeardLate)
	}
	return nil
}

// cured takes the note of a kept loss back, if nothing of it is left. If that fails, it is
// tried again behind the next message.
func (in *ingest) cured(r *podstate.Rank) {
	if r.Doubt && r.State != view.Uncertain {
		_ = in.doubts(r, false)
	}
}

// doubts notes in the index whether a loss was kept of what the rank holds. Nobody else
// knows of what an Indexer's own index holds.
func (in *ingest) doubts(r *podstate.Rank, doubt bool) error {
	if r.Doubt == doubt || in.x.ownsIndex {
		return nil
	}
	cur, err := in.cursorOf(r, doubtCursor)
	if err != nil {
		return err
	}
	cur = index.Cursor{Stream: doubtCursor, Epoch: cur.Epoch + 1}
	if doubt {
		cur.Digest = 1
	}
	if _, err = in.applyChanges(r, cur, nil); err == nil {
		r.Doubt = doubt
	}
	return err
}

// cursorOf returns how far a stream had come with a rank.
func (in *ingest) cursorOf(r *podstate.Rank, stream string) (index.Cursor, error) {
	cur, err := in.locked.cursor(in.x, in.source(r), stream)
	if err != nil {
		return cur, in.failed(r, err)
	}
	return cur, nil
}

func (p *pod) cursor(x *Registry, src index.Source, stream string) (index.Cursor, error) {
	ctx, cancel := p.call(x)
	defer p.called(cancel)
	return x.index.Cursor(ctx, src, stream)
}

// fedLast reports whether a stream fed a rank last, by what was noted.
func (in *ingest) fedLast(r *podstate.Rank, stream string) (bool, error) {
	cur, err := in.cursorOf(r, feederCursor)
	return cur == (index.Cursor{}) || cur.Digest == xxh3.HashString(stream), err
}

// feeds notes that the stream feeds the rank from now on. Nobody else knows of what
// an Indexer's own index holds.
func (d *delivery) feeds() error {
	if d.rank.Stream == d.stream || d.x.ownsIndex {
		return nil
	}
	cur, err := d.cursorOf(d.rank, feederCursor)
	if err != nil {
		return err
	}
	digest := xxh3.HashString(d.stream.Name)
	if cur.Digest == digest && cur.Epoch > 0 {
		return nil
	}
	_, err = d.applyChanges(d.rank, index.Cursor{Stream: feederCursor, Epoch: cur.Epoch + 1, Next: math.MaxUint64, Digest: digest}, nil)
	return err
}

// adopt gives the stream the ranks that it fed last. It goes on from cur, that of
// the message's rank, or from that of the rank which came furthest.
func (d *delivery) adopt(cur index.Cursor) (index.Cursor, error) {
	for _, n := range slices.Sorted(maps.Keys(d.pm.Ranks)) {
		r := d.pm.Ranks[n]
		if r.Stream != nil || r != d.rank && !r.Kept || r.State != view.Unknown && !r.Kept {
			continue
		}
		its, err := d.cursorOf(r, d.stream.Name)
		if err != nil {
			return cur, err
		}
		last, err := d.fedLast(r, d.stream.Name)
		if err != nil {
			return cur, err
		}
		if !last || its.Next == 0 || its.Epoch != cur.Epoch {
			continue
		}
		// What it holds came over this stream, so a gap before this message is its
		// loss too. Nobody knows whether it still holds that.
		if err := d.recalled(r); err != nil {
			return cur, err
		}
		d.pm.Bind(r, d.stream)
		d.stream.Interrupted = true
		if cur.Before(its) {
			cur = its
		}
	}
	return cur, nil
}

// keptCursor returns where a stream that was not heard yet left the ranks of a kept
// index that nothing has fed since, and those ranks. src has their pod and model.
func (x *Registry) keptCursor(p *pod, pm *podModel, src index.Source, name string) (last index.Cursor, ranks []*podstate.Rank, err error) {
	for _, r := range pm.Ranks {
		if !r.Kept || r.Stream != nil {
			continue
		}
		src.Rank = r.Number
		cur, err := p.cursor(x, src, name)
		if err != nil {
			return last, nil, err
		}
		if cur.Next > 0 {
			ranks = append(ranks, r)
		}
		if last.Before(cur) {
			last = cur
		}
	}
	return last, ranks, nil
}

// begun returns a stream that is to begin again; nil if it was never heard. What it
// left in a kept index goes with it.
func (in *ingest) begun(name string) (*podstate.Stream, error) {
	st := in.pm.Streams[name]
	if st != nil {
		if _, heard := st.Seq.Next(); heard {
			return st, nil
		}
	}
	cur, ranks, err := in.x.keptCursor(in.locked, in.pm, index.Source{Pod: in.pod, Model: in.model}, name)
	if err != nil || len(ranks) == 0 {
		return st, err
	}
	if st, err = in.pm.Stream(name); err != nil {
		return nil, err
	}
	for _, r := range ranks {
		in.pm.Bind(r, st)
		r.Kept = false
	}
	st.Seq.Resume(cur.Epoch, cur.Next, cur.Time, cur.Digest)
	return st, nil
}
