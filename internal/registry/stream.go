// Order: the place of a message in its stream.
//
// One place decides it, whatever the transport is: the Sequencer of the stream. It sees numbers,
// times and digests, and nothing of blocks. Check classifies the message and changes nothing.
// Advance records the message after all its effects are done. So a message that could not be
// applied can be offered again.
//
// A message is one of these:
//
//   - a duplicate: it is dropped;
//   - the next one: it is applied;
//   - after a gap, or of an engine that restarted: the blocks of the ranks of the
//     stream are forgotten or kept (apply.go), and the message is applied;
//   - unreadable: its number is used up, and its events are lost as in a gap;
//   - for a rank that the index has no room for: its events are lost for that rank alone.
//
// A transport that can request a replay offers its messages with Hold. Then a gap is only reported
// in the receipt, and nothing is done until the message is offered again, after the replayed
// messages. So no message waits here. During the replay, live messages wait in the queue of the
// engine; if the queue overflows, it is one more gap.
//
// A rank belongs to the stream that feeds it. Another stream may bring its messages, for example if
// its pod came back under another address. Messages in between may be missing, so the blocks of the
// rank are forgotten. If the stream that had the rank continues, two engines have one name:
// contest.go.
//
// The Sequencer is here and not in the transport, so that ZeroMQ, a queue and a test are judged
// alike, and a stored cursor counts.

package registry

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// streamName returns the name of a stream, "default" for a stream without one: "" stands for
// plain Ingest.
func streamName(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// delivery is the processing of one message. It lives on the stack; its ingest has the
// memory.
type delivery struct {
	*ingest
	m   events.Message
	bad error // why the payload could not be read; nil: the batch has it

	// stream and the fields up to before are set by address.
	stream *podstate.Stream
	rank   *podstate.Rank // rank of the batch; nil if bad is set
	moved  bool           // the blocks of the rank came over another stream
	// before is the cursor of the stream for the rank, if another stream has the
	// rank; not zero: the stream has fed the rank before.
	before index.Cursor
	// contested: another stream has the rank and keeps it.
	contested bool
	// found: the stream has reported lower tiers of the rank, which has no other, and turns out
	// to be its engine's.
	found bool

	// arrival describes the message to the Sequencer, and verdict is its result.
	arrival sequence.Arrival
	verdict sequence.Verdict
}

// deliver checks the message against its stream and applies it.
func (d *delivery) deliver() (events.Receipt, error) {
	if d.bad == nil {
		if err := d.enter(); err != nil {
			return events.Receipt{}, err
		}
	} else if !d.find() { // an unreadable message registers no pod
		d.noteLoss(-1)
		d.count(nil, d.malformed(d.bad))
		return events.Receipt{}, d.refusal()
	}
	defer d.leave()
	if d.m.Seq == math.MaxUint64 {
		return events.Receipt{}, d.withoutNumber()
	}
	defer d.settle()
	defer d.noteTime()
	if err := d.address(); err != nil {
		return events.Receipt{}, d.late(err)
	}
	d.arrival = sequence.Arrival{Seq: d.m.Seq, Digest: sequence.Digest(d.m.Payload), Decoded: d.bad == nil, Replayed: d.m.Replayed}
	if d.bad == nil {
		d.arrival.Time = d.batch.Time
	}
	d.verdict = d.stream.Seq.Check(d.arrival)
	if v := &d.verdict; d.m.Hold && (v.Gap.Lost || v.Missed || v.Restarted || v.Doubtful && d.stream.Seq.Ask()) {
		return d.hold(), nil
	}
	return d.deal()
}

// withoutNumber counts a message whose number could not be read either.
func (d *delivery) withoutNumber() error {
	st, err := d.pm.Stream(d.m.Stream)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	d.count(st, d.malformed(d.bad))
	st.Malformed = podstate.BadMessage{Seq: d.m.Seq, Time: d.now, Err: d.bad}
	return d.refusal()
}

// noteTime records the time of the message. It comes last, so that a reader who sees the time
// also sees the effects of the message.
func (d *delivery) noteTime() {
	if d.stream == nil {
		return
	}
	if d.stream.Silent() {
		d.pm.Silent--
	}
	d.stream.LastMessage = d.now
}

// address finds the stream and the rank of the message.
func (d *delivery) address() (err error) {
	if d.stream, err = d.pm.Stream(d.m.Stream); err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	if d.ofLower() {
		d.lower = d.stream
	}
	switch {
	case d.bad != nil && d.lower != nil:
		return d.joinLower(d.stream)
	case d.bad != nil: // it names no rank
		_, _, err = d.resume(d.stream)
		return err
	}
	n := d.batch.Rank
	if its := append(d.stream.Ranks, d.stream.Lower...); !d.batch.HasRank && len(its) > 0 {
		n = its[0].Number
	}
	if d.rank, err = d.pm.Rank(n); err != nil {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", d.pod, d.m.Stream, err)
	}
	if d.lower != nil {
		return d.joinLower(d.stream)
	}
	return d.join()
}

// join prepares a rank for a stream that does not feed it yet. It reads the cursor of the
// stream from the index: the index may outlive the Indexer or have another writer, and
// the rank may come back to the stream.
func (d *delivery) join() error {
	r, st := d.rank, d.stream
	if r.Stream == st {
		return nil
	}
	cur, err := d.cursorOf(r, st.Name)
	if err != nil {
		return err
	}
	d.moved, d.before = r.State != view.Unknown, cur
	if _, heard := st.Seq.Next(); heard || cur.Epoch < st.Seq.Epoch() {
		st.Seq.Raise(cur.Epoch) // only some ranks have got the cursor of a new epoch
		return nil
	}
	if cur, err = d.adopt(cur); err != nil || cur == (index.Cursor{}) {
		return err
	}
	st.Seq.Resume(cur.Epoch, cur.Next, cur.Time, cur.Digest)
	if cur.Next == 0 { // its engine restarted, and no message has come since
		st.Seq.Await()
		return nil
	}
	st.Partial = true
	d.moved = r.Stream != st && r.State != view.Unknown
	return nil
}

// resume makes a stream without messages go on from the last of its cursors. It returns all of them,
// in the order of the ranks, and the last; that is zero if there is none to go on from.
func (in *ingest) resume(st *podstate.Stream) (its []index.Cursor, last index.Cursor, err error) {
	if _, heard := st.Seq.Next(); heard {
		return nil, last, nil
	}
	for _, r := range in.pm.ByNumber {
		cur, err := in.cursorOf(r, st.Name)
		if err != nil {
			return nil, last, err
		}
		if its = append(its, cur); last.Before(cur) {
			last = cur
		}
	}
	if start := (index.Cursor{Epoch: st.Seq.Epoch()}); !start.Before(last) {
		return nil, index.Cursor{}, nil
	}
	st.Seq.Resume(last.Epoch, last.Next, last.Time, last.Digest)
	st.Partial = last.Next > 0
	if !st.Partial { // it restarted, and no message has come since
		st.Seq.Await()
	}
	return its, last, nil
}

// hold returns the receipt of a message that waits for a replay.
func (d *delivery) hold() events.Receipt {
	st, gap := d.stream, d.verdict.Gap
	counted := st.Held && st.HeldGap
	if gap.Lost && !counted {
		d.count(st, stats.Traffic{Gaps: 1})
	}
	st.HeldGap = gap.Lost || counted
	next, _ := st.Seq.Next()
	st.Held, st.HeldSeq, st.HeldOld = true, d.m.Seq, d.m.Seq < next
	if d.verdict.Missed {
		gap = events.Gap{From: 0, To: d.m.Seq - 1, Lost: true}
	}
	return events.Receipt{Held: true, Gap: gap, Restarted: d.verdict.Restarted}
}

// deal applies the message according to the verdict.
func (d *delivery) deal() (events.Receipt, error) {
	v := &d.verdict
	again := v.Duplicate
	var err error
	switch {
	case again:
	case d.bad != nil:
		err = d.skip()
	case d.lower != nil:
		again, err = d.takeLower()
	default:
		again, err = d.take()
	}
	full := errors.Is(err, index.ErrFull)
	if err != nil && !full {
		d.stream.Seq.Raise(v.Epoch) // some ranks may have got a cursor of it
		return events.Receipt{}, d.late(err)
	}
	last := d.stream.Seq.IsLast(d.arrival)
	d.stream.Seq.Advance(d.arrival, *v)
	d.tally(again, full)
	d.stream.Dealt(&d.m, again, last)
	if again {
		return events.Receipt{Duplicate: true}, nil
	}
	receipt := events.Receipt{Applied: d.bad == nil && !d.contested && !full, Gap: v.Gap, Restarted: v.Restarted, NoRoom: full}
	if what := d.convert.Unrecognized; receipt.Applied && len(what) > 0 {
		receipt.Unrecognized = fmt.Errorf("kvindex: pod %q: events have parts that this version does not know: %s", d.pod, strings.Join(what, ", "))
	}
	if d.bad != nil {
		return receipt, d.refusal()
	}
	return receipt, err
}

// late notes that the message was not applied to its rank, and returns the reason.
func (d *delivery) late(err error) error {
	if d.rank != nil {
		d.setLate(d.rank, err)
	}
	return err
}

// tally counts a message. again: it had come before; full: the index has no room for its
// rank.
func (d *delivery) tally(again, full bool) {
	v, s := &d.verdict, stats.Traffic{Messages: 1}
	switch {
	case again:
		s.Duplicates = 1
		d.count(d.stream, s)
		return
	case d.bad != nil:
		s = d.malformed(d.bad)
		d.stream.Malformed = podstate.BadMessage{Seq: d.m.Seq, Time: d.now, Err: d.bad}
	}
	if v.Gap.Lost {
		s.Missing = v.Gap.To - v.Gap.From + 1
		if !d.stream.Held || !d.stream.HeldGap { // else it was counted then
			s.Gaps = 1
		}
		if d.m.Replayed {
			s.PassedOver = s.Missing
		}
	}
	if v.Restarted {
		s.Restarts = 1
	}
	if d.delayed && d.bad == nil {
		s.Delayed = 1
	}
	switch {
	case d.contested:
		s.Contested = 1
	case full:
		s.NoRoom = 1
	case d.m.Replayed:
		s.Replayed = 1
	}
	d.count(d.stream, s)
}

// refusal returns the error about a message that could not be read.
func (d *delivery) refusal() error {
	if d.m.Seq == math.MaxUint64 {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", d.pod, d.m.Stream, d.bad)
	}
	return fmt.Errorf("kvindex: pod %q: stream %q: message %d: %w", d.pod, d.m.Stream, d.m.Seq, d.bad)
}
