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

package kvindex

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// stream is the order of a stream and the ranks seen on it: all of them lose
// when it does.
type stream struct {
	name  string
	seq   sequence.Sequencer
	ranks []*rank
	// partial: messages of the engine's present life are missing, so a rank
	// that is new on the stream may hold more than is known.
	partial bool
	// skipped: messages of the engine's present life were not applied, because
	// another stream has their rank.
	skipped bool

	// What limits the views of the ranks, whatever they hold.
	//
	// held: message heldSeq waits for what is missing before it, or, if heldOld,
	// because its number goes back.
	// heldGap: the gap before it was counted.
	held, heldOld, heldGap bool
	heldSeq                uint64
	// behind: older messages are caught up with.
	behind bool
	// interrupted: the connection was lost, or another process applied what is
	// known, and nothing has confirmed it since. restored: that was before a snapshot.
	interrupted, restored bool

	opened    bool       // a transport has it
	connected time.Time  // since when its connection stands; zero: it does not
	heard     time.Time  // when its last message came; zero: none has
	noReplay  bool       // its replay socket does not answer
	malformed badMessage // the last one
	stats     stats.Traffic
}

// badMessage is a message that could not be read.
type badMessage struct {
	seq  uint64
	time time.Time
	err  error
}

// streamName names a stream that has no name: "" is of plain Ingest.
func streamName(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// silent reports that the stream is to come, and has brought nothing yet.
func (st *stream) silent() bool { return st.opened && st.heard.IsZero() }

// waits reports that what the engine has said already is still to come.
func (st *stream) waits() bool { return st.held || st.behind }

// limit is the state of a rank that has state but for its stream. A rank that
// holds nothing since its engine restarted has the state of what is waited for,
// because that will make it known.
func (st *stream) limit(state view.State) view.State {
	var most view.State
	switch {
	case st.interrupted:
		most = view.Uncertain
	case st.waits():
		most = view.Replaying
	default:
		return state
	}
	if state == view.Unknown {
		return most
	}
	return min(state, most)
}

// judge keeps partial after a message. lost: it came behind a loss, or is one.
func (st *stream) judge(v *sequence.Verdict, lost bool) {
	if v.Restarted {
		st.partial, st.skipped = v.Missed, false
	} else if v.Missed || lost {
		st.partial = true
	}
}

// confirm takes note that nothing is missing before what comes now.
func (st *stream) confirm() { st.interrupted, st.restored = false, false }

// dealt is told that a message was dealt with; again: it had come before; last: it is
// the one that was applied last.
//
// Only what is newer than all before and comes by itself shows that nothing is
// missing. What comes again shows nothing, and a replay may fall silent half-way.
// But a replay that brings the message which waits, or one behind it, has brought
// all up to a message that came by itself. Behind a snapshot the last message shows,
// when it comes again, that the engine is the same and goes on from there.
func (st *stream) dealt(m *events.Message, again, last bool) {
	came := st.held && (m.Seq == st.heldSeq || m.Seq > st.heldSeq && !st.heldOld)
	if came {
		st.held = false
	}
	switch {
	case !again && !m.Replayed, came && !st.heldOld:
		st.confirm()
		st.behind = false
	case !again:
		st.behind = true
	case last && st.restored:
		st.confirm()
		st.behind = st.behind || m.Replayed
	}
}

// delivery is one message on its way. It lives on the stack; what needs memory is
// in its ingest.
type delivery struct {
	*ingest
	m   events.Message
	bad error // why the payload could not be read; nil: it is the batch

	// Found by address.
	stream *stream
	rank   *rank // that the batch is for; nil if it is bad
	moved  bool  // what the rank holds came by another way
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
	d.verdict = d.stream.seq.Check(d.arrival)
	if v := &d.verdict; d.m.Hold && (v.Gap.Lost || v.Missed || v.Restarted || v.Doubtful && d.stream.seq.Ask()) {
		return d.hold(), nil
	}
	return d.deal()
}

// withoutNumber takes note of a message of which not even the number could be read.
func (d *delivery) withoutNumber() error {
	st, err := d.pm.stream(d.m.Stream)
	if err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	d.count(st, d.malformed(d.bad))
	st.malformed = badMessage{d.m.Seq, d.now, d.bad}
	return d.refusal()
}

// heard takes note that the stream has spoken. It comes last, so that whoever sees the time also
// sees what the message did.
func (d *delivery) heard() {
	if d.stream == nil {
		return
	}
	if d.stream.silent() {
		d.pm.silent--
	}
	d.stream.heard = d.now
}

// address finds the stream of the message, and the rank that it is for.
func (d *delivery) address() (err error) {
	if d.stream, err = d.pm.stream(d.m.Stream); err != nil {
		return fmt.Errorf("kvindex: pod %q: %w", d.pod, err)
	}
	if d.bad != nil {
		return nil
	}
	n := d.batch.Rank
	if !d.batch.HasRank && len(d.stream.ranks) > 0 {
		n = d.stream.ranks[0].n
	}
	if d.rank, err = d.pm.rank(n); err != nil {
		return fmt.Errorf("kvindex: pod %q: stream %q: %w", d.pod, d.m.Stream, err)
	}
	return d.join()
}

// join prepares a rank for a stream that has not fed it. The index is asked how
// far the stream had come, for it may outlive the Indexer, or have another that
// writes, or the rank may come back to the stream.
func (d *delivery) join() error {
	r, st := d.rank, d.stream
	if r.stream == st {
		return nil
	}
	cur, err := d.cursorOf(r, st.name)
	if err != nil {
		return err
	}
	d.moved, d.before = r.state != view.Unknown, cur
	if _, heard := st.seq.Next(); heard || cur.Epoch < st.seq.Epoch() || cur == (index.Cursor{}) {
		return nil
	}
	if cur.Next > 0 {
		if cur, err = d.adopt(cur); err != nil {
			return err
		}
	}
	st.seq.Resume(cur.Epoch, cur.Next, cur.Time, cur.Digest)
	if cur.Next == 0 { // its engine restarted, and nothing was heard since
		st.seq.Await()
		return nil
	}
	st.partial = true
	d.moved = r.stream != st && r.state != view.Unknown
	return nil
}

// hold answers a message that is to wait until the engine was asked.
func (d *delivery) hold() events.Receipt {
	st, gap := d.stream, d.verdict.Gap
	counted := st.held && st.heldGap
	if gap.Lost && !counted {
		d.count(st, stats.Traffic{Gaps: 1})
	}
	st.heldGap = gap.Lost || counted
	next, _ := st.seq.Next()
	st.held, st.heldSeq, st.heldOld = true, d.m.Seq, d.m.Seq < next
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
	last := d.stream.seq.IsLast(d.arrival)
	d.stream.seq.Advance(d.arrival, *v)
	d.tally(again, full)
	d.stream.dealt(&d.m, again, last)
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
		d.stream.malformed = badMessage{d.m.Seq, d.now, d.bad}
	}
	if v.Gap.Lost {
		s.Missing = v.Gap.To - v.Gap.From + 1
		if !d.stream.held || !d.stream.heldGap { // else it was counted then
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
