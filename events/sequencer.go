package events

import (
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// digestRing is how many of the last payloads of a stream are remembered
	// to tell a message that comes again from one of an engine that started
	// anew and counts from 0.
	digestRing = 1024
	// backLimit is how many messages in a row must go back, each with a
	// payload never seen, until the engine counts as restarted although its
	// clock says nothing: the new host's clock may be behind.
	backLimit = 16
)

// Digest identifies a payload to a Sequencer.
func Digest(payload []byte) uint64 { return xxh3.Hash(payload) }

// Sequencer decides, message by message, whether a stream is whole. It knows
// numbers, digests and times only: what a loss means for an index is up to the
// caller. Check says what a message is, and Advance records it once it has
// been dealt with, so that a caller who could not apply it may try again.
//
// The zero value is a stream of which nothing was heard. A Sequencer is not
// safe for concurrent use.
type Sequencer struct {
	started bool
	next    uint64
	epoch   uint64
	timed   bool    // time is known
	time    float64 // of the newest message; never NaN
	back    int     // messages in a row that went back with a payload never seen
	// other: a number came again, and not with the payload that was applied.
	// If the numbers then catch up, they are those of another engine.
	other bool

	recent []delivery // the last digestRing of them
	oldest int        // index of the oldest, once there are digestRing
}

type delivery struct {
	seq, digest uint64
}

// Resume makes s go on behind a cursor that was stored elsewhere: another
// process, or an earlier life of this one, has applied the stream up to there.
// What it applied is not known by digest, so it can be told by numbers alone.
func (s *Sequencer) Resume(epoch, next uint64) {
	*s = Sequencer{started: true, epoch: epoch, next: next}
}

// Started reports whether anything of the stream was heard or resumed.
func (s *Sequencer) Started() bool { return s.started }

// Arrival is what a Sequencer is told of a message.
type Arrival struct {
	Seq    uint64
	Digest uint64
	// Time of the batch, if Decoded; a message that could not be decoded
	// takes part with its number and digest alone.
	Time    float64
	Decoded bool
}

// Verdict is what a Sequencer says of an Arrival.
type Verdict struct {
	Duplicate bool
	Gap       Gap
	Restarted bool
	// Missed: the engine published messages before this one, since it
	// started, that this stream never had: at first contact and at restarts.
	Missed bool
	// Epoch and Next are the cursor of the stream after the message.
	Epoch, Next uint64
}

// Check says what the message is. It changes nothing.
func (s *Sequencer) Check(a Arrival) Verdict {
	v := Verdict{Epoch: s.epoch, Next: a.Seq + 1}
	switch {
	case !s.started:
		v.Missed = a.Seq > 0
	case a.Seq < s.next:
		s.checkBack(a, &v)
	case s.other:
		v.Restarted, v.Missed, v.Epoch = true, true, s.epoch+1
	case a.Seq > s.next:
		v.Gap = Gap{From: s.next, To: a.Seq - 1, Lost: true}
	}
	return v
}

// checkBack tells a duplicate from a restart.
func (s *Sequencer) checkBack(a Arrival, v *Verdict) {
	v.Duplicate = true
	v.Next = s.next
	if s.seen(a.Digest) {
		return
	}
	newer := a.Decoded && s.timed && a.Time > s.time
	if newer || s.back+1 >= backLimit {
		v.Missed = a.Seq > 0
		v.Duplicate, v.Restarted = false, true
		v.Epoch, v.Next = s.epoch+1, a.Seq+1
	}
}

// Advance records that the message was dealt with as v says.
func (s *Sequencer) Advance(a Arrival, v Verdict) {
	if v.Duplicate {
		s.advanceBack(a)
		return
	}
	if v.Restarted {
		*s = Sequencer{epoch: v.Epoch}
	}
	if a.Decoded {
		if a.Time > s.time || !s.timed && a.Time == a.Time { // not NaN
			s.time = a.Time
		}
		s.timed = true
	}
	s.started = true
	s.next = v.Next
	s.back = 0
	d := delivery{a.Seq, a.Digest}
	if len(s.recent) < digestRing {
		s.recent = append(s.recent, d)
		return
	}
	s.recent[s.oldest] = d
	s.oldest = (s.oldest + 1) % digestRing
}

func (s *Sequencer) seen(digest uint64) bool {
	return slices.ContainsFunc(s.recent, func(d delivery) bool { return d.digest == digest })
}

// advanceBack counts what may be the signs of a restart.
func (s *Sequencer) advanceBack(a Arrival) {
	if s.seen(a.Digest) {
		s.back = 0
		return
	}
	s.back++
	// Right after Resume nothing is known of what was applied: it may be
	// another's too.
	s.other = s.other || !s.timed || slices.ContainsFunc(s.recent, func(d delivery) bool { return d.seq == a.Seq })
}
