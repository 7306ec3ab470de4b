// Kept: an index that outlives its Indexer, or has other writers.
//
// The blocks of a rank in such an index are true for the moment at which they were stored. They
// count from the beginning, so the rank has a state from the beginning: partial, and uncertain
// until a stream confirms it. Only the stream that fed the rank last can confirm it, if it
// continues from the cursor that it left. If another stream brings a message of the rank first, the
// blocks of the rank are forgotten.
//
// The cursors do not show which stream fed a rank last, because each stream has one. So the stream
// is noted, in a special cursor, before the first message of another stream is applied. A loss that
// was kept (WithKeepOnLoss) is noted in the same way, before the message after it is applied.
//
// An index that several processes share (directory.go) describes to each process only the ranks
// that this process feeds. So a new process keeps nothing of other ranks, and lists them.

package registry

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/zeebo/xxh3"
)

// feederCursor names the special cursor that notes which stream feeds a rank: its Epoch
// counts, and its Digest is the hash of the name of the stream.
const feederCursor = "\x00feeder"

// doubtCursor names the special cursor that notes whether a loss was kept, so that some blocks
// of the rank may be gone: its Epoch counts, and its Digest is 1 or 0.
const doubtCursor = "\x00doubt"

// Recall registers the ranks that have blocks in the index, unless a snapshot has registered
// them.
func (x *Registry) Recall() error {
	d, ok := x.Index.(index.Describer)
	if !ok {
		return nil
	}
	for _, s := range d.Describe(nil) {
		if s.Blocks == [index.NumTiers]int{} {
			continue
		}
		if err := x.checkSource(s.Source); err != nil {
			return err
		}
		in := x.newIngest(s.Source.Pod, s.Source.Model)
		if err := in.enter(); err != nil {
			return err
		}
		r, err := in.pm.Rank(s.Source.Rank)
		if err == nil && r.State == view.Unknown && r.Stream == nil {
			r.Kept, r.Tiers = true, engine.LowerTiers
			in.convert.Tiered = slices.ContainsFunc(s.Blocks[index.TierGPU+1:], func(n int) bool { return n > 0 })
			in.noteKinds()
			var doubt index.Cursor
			if doubt, err = in.cursorOf(r, doubtCursor); err == nil {
				recalled(r, doubt)
			}
		}
		if gpu := s.Blocks[index.TierGPU]; s.Blocks != [index.NumTiers]int{index.TierGPU: gpu} {
			f := in.pm.Shown.Facts()
			f.Tiered = true
			in.pm.Shown.Publish(f)
			x.catalog.Changed()
		}
		in.pm.settle()
		in.leave()
		if err != nil {
			return fmt.Errorf("kvindex: pod %q: %w", in.pod, err)
		}
	}
	return nil
}

// checkSource refuses sources that no message may have.
func (x *Registry) checkSource(src index.Source) error {
	if err := x.check(src.Pod, src.Model); err != nil {
		return err
	}
	if err := (&events.Batch{Rank: src.Rank, HasRank: true}).Validate(); err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", src.Pod, err)
	}
	return nil
}

// recalled sets the state of a rank whose blocks are in the index from before, with its
// doubtCursor.
func recalled(r *podstate.Rank, cur index.Cursor) {
	r.Ages.Recall() // when they were stored is not known
	if r.Doubt = cur.Digest == 1; r.Doubt {
		r.On(podstate.Doubted)
	} else {
		r.On(podstate.AppliedLate)
	}
}

// cured removes the note of a kept loss if the rank is no longer uncertain. If this fails, it
// is tried again after the next message.
func (in *ingest) cured(r *podstate.Rank) {
	if r.Doubt && r.State != view.Uncertain {
		_ = in.doubts(r, false)
	}
}

// doubts notes in the index whether a loss of the rank was kept. The Indexer's own index needs
// no such note.
func (in *ingest) doubts(r *podstate.Rank, doubt bool) error {
	if r.Doubt == doubt || in.x.OwnsIndex {
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

// cursorOf returns the cursor of a stream for a rank.
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
	return x.Index.Cursor(ctx, src, stream)
}

// fedLast reports whether a stream fed a rank last.
func (in *ingest) fedLast(r *podstate.Rank, stream string) (bool, error) {
	cur, err := in.cursorOf(r, feederCursor)
	return isFeeder(cur, stream), err
}

// isFeeder reports whether a stream fed a rank last, according to the rank's feederCursor.
func isFeeder(cur index.Cursor, stream string) bool {
	return cur == (index.Cursor{}) || cur.Digest == xxh3.HashString(stream)
}

// feeds notes that the stream feeds the rank from now on. The Indexer's own index needs no
// such note.
func (d *delivery) feeds() error {
	if d.rank.Stream == d.stream || d.x.OwnsIndex {
		return nil
	}
	cur, err := d.cursorOf(d.rank, feederCursor)
	if err != nil {
		return err
	}
	digest := xxh3.HashString(d.stream.Name)
	if cur.Digest != digest || cur.Epoch == 0 {
		_, err = d.applyChanges(d.rank, index.Cursor{Stream: feederCursor, Epoch: cur.Epoch + 1, Next: math.MaxUint64, Digest: digest}, nil)
	}
	return err
}

// adopt binds the stream to the ranks that it fed last. The stream continues from cur, the
// cursor of the message's rank, or from that of a rank that is further.
func (d *delivery) adopt(cur index.Cursor) (index.Cursor, error) {
	// The ranks change when the index has answered for all of them: the message may come again.
	adopted := make(map[*podstate.Rank]index.Cursor)
	for _, r := range d.pm.ByNumber {
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
		if its.Epoch > cur.Epoch { // the engine has restarted since the others were fed
			clear(adopted)
		}
		if cur.Before(its) {
			cur = its
		}
		if !last || its.Next == 0 || its.Epoch < cur.Epoch {
			continue
		}
		if adopted[r], err = d.cursorOf(r, doubtCursor); err != nil {
			return cur, err
		}
	}
	for r, doubt := range adopted {
		// Its blocks came over this stream, so a gap before this message is its loss
		// too. They may have gone since.
		recalled(r, doubt)
		d.pm.Bind(r, d.stream)
		d.stream.Interrupted = true
	}
	return cur, nil
}

// keptCursor returns the last cursor of a new stream in a kept index, and the ranks that the
// stream has fed and no stream has fed since. src has their pod and model.
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
		if last.Before(cur) {
			last = cur
		}
		if cur.Next == 0 {
			continue
		}
		feeder, err := p.cursor(x, src, feederCursor)
		if err != nil {
			return last, nil, err
		}
		if isFeeder(feeder, name) {
			ranks = append(ranks, r)
		}
	}
	return last, ranks, nil
}

// begun returns a stream that begins again; nil if it is not registered. It binds the ranks
// that the stream left in a kept index.
func (in *ingest) begun(name string) (*podstate.Stream, error) {
	st := in.pm.Streams[name]
	if st != nil {
		if _, heard := st.Seq.Next(); heard {
			return st, nil
		}
		if st.Declared {
			return st, in.joinLower(st)
		}
	}
	cur, ranks, err := in.x.keptCursor(in.locked, in.pm, index.Source{Pod: in.pod, Model: in.model}, name)
	if err != nil || len(ranks) == 0 && cur.Next == 0 {
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
