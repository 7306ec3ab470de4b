// A restart needs proof, because a message that comes again must not empty a view. A number
// that goes back is a duplicate, unless its batch is newer by the engine's clock, or backLimit
// messages contradict the applied ones. Counting unknown digests is not enough: a queue that
// redelivers more than digestRing messages would look like a restart. Messages from before a
// restart are recognised by number and time in all later lives: the number always counts, and
// the time only if two messages in a row have reached it. The price is paid twice. A queue
// that brings 16 or more messages in a row later than those that followed them looks like a
// restart. And on a stream without replay, an engine whose clock is behind that of the one
// before it is found after 16 remembered numbers, when it has caught up with the numbers, or
// with the clock; until then its messages count as repeats.
//
// A stored cursor has the digest of its last message and a time that two messages in a row
// have reached. So a host that goes on from an index can find repeats as well, and one time
// far ahead does not make all later messages old. But the host was away: other bytes under the
// last number are another engine's, and before the engine has confirmed those bytes, or a
// newer message was applied, even the next number proves nothing. A verdict without proof is
// Doubtful. The sink then holds the message if it may, once until a live message has come,
// because a thousand old messages may wait in the queue of a connection. Without a replay, an
// engine that restarted with its clock behind while the host was away is believed when its
// clock has caught up.

// Package sequence classifies the messages of a stream: the next one, a repeat, one behind a
// gap, or one of an engine that has restarted.
package sequence

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/kvindex/kvindex/events"
	"github.com/zeebo/xxh3"
)

const (
	// digestRing is how many of the last payloads of a stream are remembered to distinguish a
	// repeat from a message of an engine that restarted and counts from 0.
	digestRing = 1024
	// backLimit is how many messages must go back and contradict the applied ones before the
	// engine counts as restarted against its clock: the new host's clock may be behind.
	backLimit = 16
	// maxMarks is how many marks a stream has, spread evenly over its life.
	maxMarks = 128
)

// Digest returns the hash by which a Sequencer recognises a payload.
func Digest(payload []byte) uint64 { return xxh3.Hash(payload) }

// Sequencer finds repeats, gaps and restarts in one stream, for sinks. It uses the numbers,
// digests and times of messages only; the sink decides what follows for an index. Check
// classifies a message. Advance records that the message was settled, so that a sink that
// could not apply a message may try it again.
//
// A number that goes back is that of a repeat, however old (a replay, a queue that delivers
// twice), or that of an engine that has restarted. The engine has restarted if the message has
// a later time than all applied messages. It has also restarted if 16 messages with such
// numbers contradict the applied ones. A message contradicts if its number had another
// payload, or was left out before, or if its time is that of a later number. Messages from the
// life before this one are recognised by their times, and the last of them by their digests.
//
// So a repeat never counts as a restart. A restart is noticed at the first message, unless the
// engine's clock went back: then after 16 messages whose numbers are remembered (the last
// 1,024, and some older ones), or when the numbers or the clock have passed the old ones. One
// message with a number that is far too high stops a stream for at most 16 messages. One with a
// time far ahead makes the next restart one whose clock went back: after a loss, a late message
// may be newer than the second newest that was applied, and must not count as a restart.
//
// The zero value is a stream without messages. A Sequencer is not safe for concurrent use.
type Sequencer struct {
	started bool
	next    uint64
	epoch   uint64
	timed   bool    // time is known
	time    float64 // of the newest message; never NaN
	last    float64 // time of the last message
	sure    float64 // the newest time that two messages in a row have reached; 0: none
	back    int     // messages that went back and contradict, since the last that does not
	// other: a number came again, with another payload than the applied one. If the numbers
	// then catch up, they are those of another engine.
	other bool
	// blind: the messages until now were applied elsewhere, and the engine has not confirmed
	// them.
	blind bool
	// away: the engine may have restarted since the last message, while no host listened, and
	// has not confirmed that it has not. All applied messages are remembered.
	away  bool
	asked bool // see Ask
	had   memory
	// Of the life before this one: its messages, and if the clock separates the two, the
	// number that was due and the time of the newest message. Messages not newer than
	// olderTime came before that life too.
	before             memory
	clocked            bool
	oldNext            uint64
	oldTime, olderTime float64
}

// A memory has the remembered messages of a life.
type memory struct {
	recent []delivery // the last digestRing of them
	oldest int        // index of the oldest, once there are digestRing
	// floor: no message from here on was applied that is not in recent. Numbers below the
	// first one of the stream are so as long as few messages have followed.
	floor  uint64
	marks  []mark // numbers divisible by stride, in order
	stride uint64
}

type delivery struct {
	seq, digest uint64
}

// A mark is a number that is remembered for as long as the stream lasts.
type mark struct {
	delivery
	time float64 // of the newest message then
}

// Resume makes s go on from a stored cursor: the stream was applied up to message next-1, in
// another process or before. digest is that of message next-1, and time is the result of
// CursorTime for it. Messages with earlier times count as repeats. If time is 0, unknown, 16
// messages with lower numbers count as a restart. If digest is 0, unknown, no message is
// recognised by its payload. A time that no clock shows is unknown.
func (s *Sequencer) Resume(epoch, next uint64, time float64, digest uint64) {
	if time-time != 0 { // NaN or infinite
		time = 0
	}
	*s = Sequencer{
		started: true, epoch: epoch, next: next, blind: true, had: memory{floor: next},
		timed: time != 0, time: time, last: time, sure: time,
	}
	if next > 0 && digest != 0 {
		s.had.add(delivery{next - 1, digest}, time)
	}
}

// Restart makes s wait for the first message of an engine that has restarted, which may have
// any number. Messages of its life before are still recognised; those of older lives only when
// that message has come.
func (s *Sequencer) Restart() { *s = s.after(s.epoch + 1) }

// Await makes message 0 of the engine's present life the one that is due: all messages of this
// life will come again. Restart is for another life.
func (s *Sequencer) Await() {
	if !s.started { // it is due already, and the lives before are kept
		return
	}
	*s = Sequencer{epoch: s.epoch, before: s.before, clocked: s.clocked, oldNext: s.oldNext, oldTime: s.oldTime, olderTime: s.olderTime}
}

// after returns the Sequencer of the next life, before its first message. Until then its time
// is that of the newest message of the life that is over: the first message shows whether the
// clock separates the two.
func (s *Sequencer) after(epoch uint64) Sequencer {
	if !s.started { // and this life has no message
		n := *s
		if n.epoch = epoch; n.clocked {
			n.clocked, n.timed, n.time = false, true, n.oldTime
		}
		return n
	}
	next, time := s.end()
	n := Sequencer{
		epoch: epoch, before: s.had, timed: s.timed, time: s.time,
		oldNext: max(next, s.oldNext), oldTime: max(time, s.oldTime), olderTime: s.oldTime,
	}
	if s.epoch > 0 && !s.clocked { // the times do not identify the lives before that one
		n.olderTime = math.Inf(1)
	}
	return n
}

// begin records the first message of a life.
func (s *Sequencer) begin(a Arrival) {
	if s.clocked = s.clocked || s.timed && a.Decoded && a.Time > s.time; !s.clocked {
		s.oldNext, s.oldTime, s.olderTime = 0, 0, 0
	}
	s.timed, s.time = false, 0
}

// Away records that the engine may have published unheard since the last message, although s
// remembers all before it: s was read by UnmarshalBinary. Until the engine has confirmed that
// it has not restarted, the next message is Doubtful, and if its time is before that of the
// last one, it counts as a repeat.
func (s *Sequencer) Away() { s.away = s.started }

// IsLast reports whether a is the last settled message, byte by byte.
func (s *Sequencer) IsLast(a Arrival) bool {
	return s.started && a.Seq+1 == s.next && s.had.has(a)
}

// Next returns the number that is due, and whether a message of the stream has come or
// Resume was called.
func (s *Sequencer) Next() (next uint64, started bool) { return s.next, s.started }

// Epoch returns how many times the engine has restarted.
func (s *Sequencer) Epoch() uint64 { return s.epoch }

// Raise makes the epoch at least one that was stored with a cursor: a lower one would make the next
// messages repeats for the index. The life of the engine goes on.
func (s *Sequencer) Raise(epoch uint64) { s.epoch = max(s.epoch, epoch) }

// CursorTime returns the time to store with the cursor after a message that Check has
// classified. It is the latest time that two consecutive messages have both reached, so that
// one message with a wrong time in the future does not make all later messages old after a
// Resume. It is 0 if no time is known.
func (s *Sequencer) CursorTime(a Arrival, v Verdict) float64 {
	known := a.Decoded && a.Time == a.Time // not NaN
	switch {
	case v.Restarted || !s.timed || !s.started:
		if known {
			return a.Time
		}
		return 0
	case known:
		return max(s.sure, min(s.last, a.Time))
	}
	return cmp.Or(s.sure, s.last)
}

// An Arrival is a message as a Sequencer sees it.
type Arrival struct {
	Seq    uint64
	Digest uint64
	// Time is that of the batch, if Decoded is true. A message that could not be decoded has
	// only its number and digest.
	Time    float64
	Decoded bool
	// Replayed: a replay brought the message. So the engine of the present life has it under
	// that number.
	Replayed bool
}

// A Verdict is the result of Check.
type Verdict struct {
	Duplicate bool
	Gap       events.Gap
	Restarted bool
	// Missed: this is the first message of the engine's life that came, and not the first one
	// that the engine has published. Later losses are a Gap.
	Missed bool
	// Doubtful: the verdict is not proven. Either the message counts as a Duplicate, but the
	// payload of its number is not remembered. Or it is the next message after a stored
	// cursor, but the engine may have restarted since the cursor was stored.
	Doubtful bool
	// Epoch and Next are the cursor of the stream after the message.
	Epoch, Next uint64
}

// Check classifies the message. It changes nothing.
func (s *Sequencer) Check(a Arrival) Verdict {
	v := Verdict{Epoch: s.epoch, Next: a.Seq + 1}
	switch {
	case !s.started && !a.Replayed && s.before.has(a):
		s.checkBack(a, &v)
	case !s.started:
		v.Missed = a.Seq > 0
	case a.Seq < s.next || s.old(a):
		s.checkBack(a, &v)
	case s.other:
		v.Restarted, v.Missed, v.Epoch = true, true, s.epoch+1
	case a.Seq > s.next:
		v.Gap = events.Gap{From: s.next, To: a.Seq - 1, Lost: true}
	default:
		v.Doubtful = (s.blind || s.away) && !a.Replayed
	}
	return v
}

// Ask reports whether to ask the engine about a Doubtful message. After true it returns false
// until a message was applied that no replay brought. First give the sink the messages that
// already wait in the connection.
func (s *Sequencer) Ask() bool {
	first := !s.asked
	s.asked = true
	return first
}

// old reports whether a message came before the known part of the engine's life, by its time:
// from a life before, or before the resumed cursor; or whether the life before had it.
func (s *Sequencer) old(a Arrival) bool {
	if a.Replayed {
		return false
	}
	byTime := a.Seq < s.oldNext && a.Time <= s.oldTime || s.stale(a)
	return a.Decoded && byTime || s.before.has(a)
}

// stale reports whether a message is older than the last one, where only the engine's clock
// can show that it has restarted.
func (s *Sequencer) stale(a Arrival) bool {
	return (s.blind || s.away && a.Seq == s.next) && s.timed && a.Time < cmp.Or(s.sure, s.last)
}

// known reports whether the message is remembered as applied.
func (s *Sequencer) known(a Arrival) bool { return s.had.has(a) || s.before.has(a) }

// checkBack distinguishes a duplicate from a restart.
func (s *Sequencer) checkBack(a Arrival, v *Verdict) {
	v.Duplicate = true
	v.Next = s.next
	if s.known(a) {
		return
	}
	v.Doubtful = true
	newer := a.Decoded && s.timed && a.Time > s.time
	if newer || a.Replayed && s.had.differs(a) || s.contradicts(a) && s.back+1 >= backLimit {
		v.Missed = a.Seq > 0
		v.Duplicate, v.Doubtful, v.Restarted = false, false, true
		v.Epoch, v.Next = s.epoch+1, a.Seq+1
	}
}

// Advance records that a message was settled with v.
func (s *Sequencer) Advance(a Arrival, v Verdict) {
	if v.Duplicate {
		s.advanceBack(a)
		return
	}
	time := s.CursorTime(a, v)
	if v.Restarted {
		*s = s.after(v.Epoch)
	}
	if !s.started {
		s.begin(a)
	}
	if a.Decoded && a.Time == a.Time { // not NaN
		if s.timed {
			s.sure = time
		}
		if a.Time > s.time || !s.timed {
			s.time = a.Time
		}
		s.last = a.Time
	}
	s.timed = s.timed || a.Decoded
	s.started = true
	s.next = v.Next
	s.back, s.blind, s.away = 0, false, false
	s.asked = s.asked && a.Replayed
	s.had.add(delivery{a.Seq, a.Digest}, s.time)
}

// end returns the end of the life that is over: the number that was due, and the time of the
// newest message. If its last messages jumped, that is the newest time that two in a row have
// reached: one message with a number and a time far ahead would make all later ones old.
func (s *Sequencer) end() (next uint64, time float64) {
	due, last := s.had.floor, max(len(s.had.recent)-backLimit, 0)
	switch {
	case last > 0:
		due = s.had.at(last-1).seq + 1
	case due == 0 && len(s.had.recent) > 0: // a life may begin with any number
		due = s.had.at(0).seq
	}
	for i := last; i < len(s.had.recent); i++ {
		seq := s.had.at(i).seq
		if seq > due {
			return s.next, s.sure
		}
		due = seq + 1
	}
	return s.next, s.time
}

// contradicts reports whether a message whose number goes back cannot be a repeat.
func (s *Sequencer) contradicts(a Arrival) bool {
	if s.old(a) {
		return a.Decoded && !s.stale(a) && a.Time > s.olderTime && s.before.contradicts(a)
	}
	return !s.timed || s.had.contradicts(a) // without times, only an unknown payload proves anything
}

// advanceBack counts possible signs of a restart.
func (s *Sequencer) advanceBack(a Arrival) {
	old := s.old(a)
	if s.known(a) {
		if !old {
			s.back, s.other = 0, false
			if a.Replayed {
				s.blind, s.away = false, false
			}
		}
		return
	}
	if s.contradicts(a) {
		s.back++
	}
	// Right after Resume without a time, the applied messages are unknown: they may be another
	// engine's too.
	s.other = s.other || !old && (!s.timed || s.had.differs(a))
}

// at returns the ith of the messages in recent.
func (m *memory) at(i int) delivery { return m.recent[(m.oldest+i)%len(m.recent)] }

// add remembers a message behind all others; time is that of the newest.
func (m *memory) add(d delivery, time float64) {
	switch n := len(m.recent); {
	case n == digestRing:
		m.floor = m.recent[m.oldest].seq + 1
		m.recent[m.oldest] = d
		m.oldest = (m.oldest + 1) % digestRing
	case n == cap(m.recent): // append would allocate more than the ring takes
		m.recent = append(make([]delivery, 0, min(max(2*n, backLimit), digestRing)), m.recent...)
		fallthrough
	default:
		m.recent = append(m.recent, d)
	}
	if len(m.recent) == backLimit {
		m.floor = max(m.floor, m.recent[0].seq)
	}
	m.stride = max(m.stride, 1)
	if d.seq%m.stride != 0 {
		return
	}
	for len(m.marks) >= maxMarks && m.stride < 1<<63 {
		m.stride *= 2
		m.marks = slices.DeleteFunc(m.marks, func(k mark) bool { return k.seq%m.stride != 0 })
	}
	if d.seq%m.stride != 0 {
		return
	}
	m.marks = append(m.marks, mark{d, time})
}

// find returns the digest applied under a number, if it is remembered.
func (m *memory) find(seq uint64) (digest uint64, found bool) {
	i := sort.Search(len(m.recent), func(i int) bool { return m.at(i).seq >= seq })
	if i < len(m.recent) && m.at(i).seq == seq {
		return m.at(i).digest, true
	}
	i, found = slices.BinarySearchFunc(m.marks, seq, func(k mark, seq uint64) int { return cmp.Compare(k.seq, seq) })
	if !found {
		return 0, false
	}
	return m.marks[i].digest, true
}

// has reports whether the message is remembered.
func (m *memory) has(a Arrival) bool {
	digest, found := m.find(a.Seq)
	return found && digest == a.Digest
}

// differs reports whether the number of a message was applied with another payload. A
// forgotten number does not differ.
func (m *memory) differs(a Arrival) bool {
	digest, found := m.find(a.Seq)
	return found && digest != a.Digest
}

// contradicts reports whether a message whose number is below the next cannot be one of the
// applied ones. An engine may replay messages that were passed over.
func (m *memory) contradicts(a Arrival) bool {
	if m.differs(a) || a.Seq >= m.floor && !a.Replayed {
		return true
	}
	later := slices.IndexFunc(m.marks, func(k mark) bool { return k.seq > a.Seq })
	return a.Decoded && later >= 0 && a.Time > m.marks[later].time
}
