// Order: what a message is to its stream.
//
// One place decides it, whatever the transport is: the Sequencer of the stream. It
// knows numbers, times and digests, and nothing of blocks. Check says what the
// message is and changes nothing. Advance records it, when all that follows is
// done. So a message that could not be applied can be offered again.
//
// A message is one of these:
//
//   - a duplicate: nothing follows;
//   - the next one: it is applied;
//   - behind a gap, or of an engine that restarted: what the ranks of the stream
//     held is settled (apply.go), and the message is applied;
//   - unreadable: its number is used up, and what it said is lost as in a gap;
//   - for a rank that the index has no room for: likewise, but for that rank alone.
//
// A transport that can ask its engine for what is missing offers its messages with
// Hold. Then a gap is an answer, the receipt, and not a fact yet: nothing is done
// until the message is offered again, behind what the engine sent. So no message
// waits here. While the engine is asked, live messages wait in the queue of the
// engine; if that overflows, it is one more gap.
//
// A rank belongs to the stream that feeds it. Another stream may speak for it, for
// example if its pod came back under another address. What was said in between is
// not known, so what the rank held is forgotten. If the stream that had the rank
// goes on, two engines have one name: contest.go.
//
// The Sequencer is here and not in the transport, so that ZeroMQ, a queue and a test are
// judged alike, and a stored cursor counts.

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

// streamName names a stream that has no name: "" is of plain Ingest.
func streamName(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// delivery is one message on its way. It lives on the stack; what needs memory is
// in its ingest.
type delivery struct {
	*ingest
	m   events.Message
	bad error // why the payload could not be read; nil: it is the batch

	// Found by address.
	stream *podstate.Stream
	rank   *podstate.Rank // that the batch is for; nil if it is bad
	moved  bool           // what the rank holds came by another way
	// before is the cursor of the stream for the rank, if another way has the
	// rank; not zero: the stream has fed it before.
	before index.Cursor
	// contested: another stream has the rank and keeps it.
	contested bool

	// What the stream says of it, for which arrival is asked.
	arrival sequence.Arrival
	verdict sequence.Verdict
}

// deliver brings the message to its stream and does what follows.
func (d *delivery) deliver() (events.Receipt, error) {
	if d.bad == nil {
		if err := d.enter(); err != nil {
			return events.Receipt{}, err
		}
	} else if !d.find() { // nobody is made known by what cannot be read
		d.tellLoss(-1)
		d.count(nil, d.malformed(d.bad))
		return events.Receipt{}, d.refusal()
	}
	defer d.leave()
	if d.m.Seq == math.MaxUint64 {
		return events.Receipt{}, d.withoutNumber()
	}
	defer d.settle()
	defer d.heard()
	if err := d.address(); err != nil {
		return events.Receipt{}, err
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

// withoutNumber takes note of a message of which not even the number could be read.
func (d *delivery) withoutNumber() error {
	st, err := d.pm.Stream(d.m.Stream)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	d.count(st, d.malformed(d.bad))
	st.Malformed = podstate.BadMessage{Seq: d.m.Seq, Time: d.now, Err: d.bad}
	return d.refusal()
}

// heard takes note that the stream has spoken. It comes last, so that whoever sees the time also
// sees what the message did.
func (d *delivery) heard() {
	if d.stream == nil {
		return
	}
	if d.stream.Silent() {
		d.pm.Silent--
	}
	d.stream.Heard = d.now
}

// address finds the stream of the message, and the rank that it is for.
func (d *delivery) address() (err error) {
	if d.stream, err = d.pm.Stream(d.m.Stream); err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	if d.bad != nil {
		return nil
	}
	n := d.batch.Rank
	if !d.batch.HasRank && len(d.stream.Ranks) > 0 {
		n = d.stream.Ranks[0].Number
	}
	if d.rank, err = d.pm.Rank(n); err != nil {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", d.pod, d.m.Stream, err)
	}
	return d.join()
}

// join prepares a rank for a stream that has not fed it. The index is asked how
// far the stream had come, for it may outlive the Indexer, or have another that
// writes, or the rank may come back to the stream.
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
	if _, heard := st.Seq.Next(); heard || cur.Epoch < st.Seq.Epoch() || cur == (index.Cursor{}) {
		return nil
	}
	if cur.Next > 0 {
		if cur, err = d.adopt(cur); err != nil {
			return err
		}
	}
	st.Seq.Resume(cur.Epoch, cur.Next, cur.Time, cur.Digest)
	if cur.Next == 0 { // its engine restarted, and nothing was heard since
		st.Seq.Await()
		return nil
	}
	st.Partial = true
	d.moved = r.Stream != st && r.State != view.Unknown
	return nil
}

// hold answers a message that is to wait until the engine was asked.
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

// deal does what the verdict says.
func (d *delivery) deal() (events.Receipt, error) {
	v := &d.verdict
	again := v.Duplicate
	var err error
	switch {
	case again:
	case d.bad != nil:
		err = d.skip()
	default:
		again, err = d.take()
	}
	full := errors.Is(err, index.ErrFull)
	if err != nil && !full {
		if d.rank != nil {
			d.setLate(d.rank, err)
		}
		return events.Receipt{}, err
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
		receipt.Unrecognized = fmt.Errorf("kvindex: pod %q: events have what this version does not know: %s", d.pod, strings.Join(what, ", "))
	}
	if d.bad != nil {
		return receipt, d.refusal()
	}
	return receipt, err
}

// tally counts a message that was dealt with. again: it had come before; full: there is
// no room for it.
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

// refusal is the error about a message that could not be read.
func (d *delivery) refusal() error {
	if d.m.Seq == math.MaxUint64 {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", d.pod, d.m.Stream, d.bad)
	}
	return fmt.Errorf("kvindex: pod %q: stream %q: message %d: %w", d.pod, d.m.Stream, d.m.Seq, d.bad)
}
