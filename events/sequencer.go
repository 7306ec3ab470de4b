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
	// backLimit is how many messages must go back and contradict what was
	// applied until the engine counts as restarted although its clock says
	// nothing: the new host's clock may be behind.
	backLimit = 16
	// maxMarks is how many marks a stream has, spread evenly over its life.
	maxMarks = 128
)

// Digest identifies a payload to a Sequencer.
func Digest(payload []byte) uint64 { return xxh3.Hash(payload) }

// Sequencer decides, message by message, whether a stream is whole. It knows
// numbers, digests and times only: what a loss means for an index is up to the
// caller. Check says what a message is, and Advance records it once it has
// been dealt with, so that a caller who could not apply it may try again.
//
// Numbers that go back are those of messages that come again, however old
// (replays, queues that redeliver), or of an engine that started anew. It is an
// engine that started anew if the message is newer than all that was applied,
// or if 16 of them contradict it: the number had another payload, or the time is
// that of a later number. What only comes again contradicts nothing. Messages of
// the engine's life before this one are told by their time.
//
// So a redelivery is never taken for a restart, and a restart is seen at once,
// unless the new clock is behind the old one: then after 16 numbers that are
// remembered (all of the last 1,024, and some of the others), or when the numbers
// or the clock have caught up.
//
// The zero value is a stream of which nothing was heard. A Sequencer is not
// safe for concurrent use.
type Sequencer struct {
	started bool
	next    uint64
	epoch   uint64
	timed   bool    // time is known
	time    float64 // of the newest message; never NaN
	back    int     // messages that went back and contradict, since one that does not
	// other: a number came again, and not with the payload that was applied.
	// If the numbers then catch up, they are those of another engine.
	other bool
	// blind: what was applied until now was applied elsewhere.
	blind bool
	// Of the life before this one, if the clock told them apart: the number that
	// was due, and the time of the newest message.
	oldNext uint64
	oldTime float64

	recent []delivery // the last digestRing of them
	oldest int        // index of the oldest, once there are digestRing
	marks  []mark     // numbers divisible by stride, in order
	stride uint64
}

type delivery struct {
	seq, digest uint64
}

// mark is what is remembered of a number for as long as the stream lasts.
type mark struct {
	delivery
	time float64 // of the newest message then
}

// Resume makes s go on behind a cursor that was stored elsewhere: another
// process, or an earlier life of this one, has applied the stream up to there.
// What it applied is not known by digest. time is that of its newest message:
// what is older came before. If it is 0, not known, 16 numbers that go back are a
// restart.
func (s *Sequencer) Resume(epoch, next uint64, time float64) {
	*s = Sequencer{started: true, epoch: epoch, next: next, timed: time != 0, time: time, blind: true}
}

// Restart makes s await the first message of an engine that has started anew.
func (s *Sequencer) Restart() { *s = Sequencer{epoch: s.epoch + 1} }

// Await makes s await the first message of the life that it is in.
func (s *Sequencer) Await() { *s = Sequencer{epoch: s.epoch} }

// Next returns the number that is due, and whether anything of the stream was
// heard or resumed.
func (s *Sequencer) Next() (next uint64, started bool) { return s.next, s.started }

// Epoch returns how often the engine has started anew.
func (s *Sequencer) Epoch() uint64 { return s.epoch }

// Time returns the time of the newest message, 0 if it is not known.
func (s *Sequencer) Time() float64 { return s.time }

// Arrival is what a Sequencer is told of a message.
type Arrival struct {
	Seq    uint64
	Digest uint64
	// Time of the batch, if Decoded; a message that could not be decoded
	// takes part with its number and digest alone.
	Time    float64
	Decoded bool
	// Replayed: the engine sent it again on request, so it is what the engine
	// of today has under that number.
	Replayed bool
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
	case s.old(a):
		v.Duplicate, v.Next = true, s.next
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

// old reports that a message came before all that is known of the engine, by its
// time: from a life before, or before the cursor that was resumed.
func (s *Sequencer) old(a Arrival) bool {
	if !a.Decoded || a.Replayed {
		return false
	}
	return a.Seq < s.oldNext && a.Time <= s.oldTime || s.blind && s.timed && a.Time < s.time
}

// checkBack tells a duplicate from a restart.
func (s *Sequencer) checkBack(a Arrival, v *Verdict) {
	v.Duplicate = true
	v.Next = s.next
	if s.seen(a.Digest) {
		return
	}
	newer := a.Decoded && s.timed && a.Time > s.time
	if newer || a.Replayed && s.differs(a) || s.contradicts(a) && s.back+1 >= backLimit {
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
		was := *s
		*s = Sequencer{epoch: v.Epoch}
		if a.Decoded && was.timed && a.Time > was.time {
			s.oldNext, s.oldTime = max(was.next, was.oldNext), was.time
		}
	}
	if a.Decoded {
		if a.Time > s.time || !s.timed && a.Time == a.Time { // not NaN
			s.time = a.Time
		}
		s.timed = true
	}
	s.started = true
	s.next = v.Next
	s.back, s.blind = 0, false
	s.remember(delivery{a.Seq, a.Digest})
}

func (s *Sequencer) remember(d delivery) {
	if n := len(s.recent); n < digestRing {
		if n == cap(s.recent) { // append would make room for more than the ring takes
			s.recent = append(make([]delivery, 0, min(max(2*n, 16), digestRing)), s.recent...)
		}
		s.recent = append(s.recent, d)
	} else {
		s.recent[s.oldest] = d
		s.oldest = (s.oldest + 1) % digestRing
	}
	s.stride = max(s.stride, 1)
	if d.seq%s.stride != 0 {
		return
	}
	for len(s.marks) >= maxMarks && s.stride < 1<<63 {
		s.stride *= 2
		s.marks = slices.DeleteFunc(s.marks, func(m mark) bool { return m.seq%s.stride != 0 })
	}
	if d.seq%s.stride != 0 {
		return
	}
	s.marks = append(s.marks, mark{d, s.time})
}

func (s *Sequencer) seen(digest uint64) bool {
	return slices.ContainsFunc(s.recent, func(d delivery) bool { return d.digest == digest })
}

// differs reports that the number of a message was applied with another
// payload. A number that is no longer remembered does not differ.
func (s *Sequencer) differs(a Arrival) bool {
	other := func(d delivery) bool { return d.seq == a.Seq && d.digest != a.Digest }
	return slices.ContainsFunc(s.recent, other) || slices.ContainsFunc(s.marks, func(m mark) bool { return other(m.delivery) })
}

// contradicts reports that a message whose number goes back cannot be one that
// comes again.
func (s *Sequencer) contradicts(a Arrival) bool {
	if !s.timed || s.differs(a) {
		return true // if there are no times, a payload that was not seen is all there is
	}
	later := slices.IndexFunc(s.marks, func(m mark) bool { return m.seq > a.Seq })
	return a.Decoded && later >= 0 && a.Time > s.marks[later].time
}

// advanceBack counts what may be the signs of a restart.
func (s *Sequencer) advanceBack(a Arrival) {
	if s.old(a) {
		return
	}
	if s.seen(a.Digest) {
		s.back, s.other = 0, false
		return
	}
	if s.contradicts(a) {
		s.back++
	}
	// Right after Resume without a time, nothing is known of what was applied:
	// it may be another's too.
	s.other = s.other || !s.timed || slices.ContainsFunc(s.recent, func(d delivery) bool { return d.seq == a.Seq })
}
