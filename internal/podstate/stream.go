package podstate

import (
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Stream is a stream with its Sequencer and the ranks that it feeds: a loss of the stream is a
// loss of all of them.
type Stream struct {
	Name  string
	Seq   sequence.Sequencer
	Ranks []*Rank
	lower
	// Partial: messages since the start of the engine are missing, so a rank that is
	// new on the stream may hold more blocks than the index has.
	Partial bool
	// Skipped: messages since the start of the engine were not applied, because
	// another stream has their rank.
	Skipped bool

	// Held and the fields up to restored limit the states of the ranks (limit).
	//
	// Held: message HeldSeq waits for missing messages before it or, with HeldOld,
	// because its number goes back. HeldGap: the gap before it was counted.
	Held, HeldOld, HeldGap bool
	HeldSeq                uint64
	// Behind: older messages are being applied.
	Behind bool
	// Interrupted: the connection was lost, or another process has applied the last
	// messages, and nothing has confirmed the view since. restored: the interruption is
	// from a snapshot.
	Interrupted, restored bool

	opened      bool       // a transport follows the stream
	connected   time.Time  // since when the connection exists; zero: there is none
	LastMessage time.Time  // time of the last message; zero: there was none
	noReplay    bool       // the replay socket does not answer
	Malformed   BadMessage // the last malformed message
	Stats       stats.Traffic
}

// BadMessage is a message that could not be read.
type BadMessage struct {
	Seq  uint64
	Time time.Time
	Err  error
}

// Silent reports whether a transport follows the stream, which has brought no message yet.
// That of an offload daemon may have nothing to report.
func (st *Stream) Silent() bool { return st.opened && st.LastMessage.IsZero() && !st.Declared }

// Idle reports whether each silent stream is connected.
func (pm *Pod) Idle() bool {
	for _, st := range pm.Streams {
		if st.Silent() && st.connected.IsZero() {
			return false
		}
	}
	return true
}

// Waits reports whether older messages of the engine are still missing here.
func (st *Stream) Waits() bool { return st.Held || st.Behind }

// limit returns the state of a rank as the stream limits it. A rank that is unknown since its
// engine restarted gets the limit itself, because the awaited messages will end it.
func (st *Stream) limit(state view.State) view.State {
	var most view.State
	switch {
	case st.Interrupted:
		most = view.Uncertain
	case st.Waits():
		most = view.Replaying
	default:
		return state
	}
	if state == view.Unknown {
		return most
	}
	return min(state, most)
}

// Judge updates Partial and Skipped after a message. lost: there was a loss at the message.
func (st *Stream) Judge(v *sequence.Verdict, lost bool) {
	if v.Restarted {
		st.Partial, st.Skipped = v.Missed, false
	} else if v.Missed || lost {
		st.Partial = true
	}
}

// confirm ends an interruption: no message is missing before the present one.
func (st *Stream) confirm() { st.Interrupted, st.restored = false, false }

// Dealt updates the limits after a message. again: the message had come before; last: it is
// the message that was applied last.
//
// Only a live message that is newer than all before shows that nothing is missing. A
// repeat shows nothing, and a replay may stop half-way. But a replay that brings the
// waiting message, or a later one, has brought all messages up to a live one. After a
// snapshot, a repeat of the last message shows that the engine is the same and
// continues from there.
func (st *Stream) Dealt(m *events.Message, again, last bool) {
	came := st.Held && (m.Seq == st.HeldSeq || m.Seq > st.HeldSeq && !st.HeldOld)
	if came {
		st.Held = false
	}
	switch {
	case !again && !m.Replayed, came && !st.HeldOld:
		st.confirm()
		st.Behind = false
	case !again:
		st.Behind = true
	case last && st.restored:
		st.confirm()
		st.Behind = st.Behind || m.Replayed
	}
}

// Lacks reports whether a replay of all messages of the engine would improve the view.
func (st *Stream) Lacks() bool {
	if len(st.Ranks) == 0 {
		return st.Partial || st.Reports == view.Partial || st.Reports == view.Uncertain
	}
	return slices.ContainsFunc(st.Ranks, (*Rank).Lossy)
}

// Note updates the limits and the description of the stream.
func (st *Stream) Note(n events.Note, now time.Time) {
	switch n {
	case events.NoteOpened:
		st.opened = true
	case events.NoteTiers:
		st.Declared = true
	case events.NoteConnected:
		st.connected = now
	case events.NoteLost, events.NoteClosed:
		st.connected = time.Time{}
		st.Held, st.Behind = false, false // the held message is gone with the connection
		st.Interrupted = st.Interrupted || !st.LastMessage.IsZero()
		st.opened = st.opened && n == events.NoteLost
	case events.NoteHeld:
		st.Behind = true
	case events.NoteCurrent:
		st.current()
	case events.NoteReleased:
		st.Interrupted = st.Interrupted || st.Waits() && !st.LastMessage.IsZero()
		st.Held, st.Behind = false, false
	case events.NoteNoReplay, events.NoteReplay:
		st.noReplay = n == events.NoteNoReplay
	}
}

// current records that the transport has offered all messages of the engine.
func (st *Stream) current() {
	_, started := st.Seq.Next()
	for _, r := range st.Ranks {
		if st.Waits() || st.Interrupted {
			r.Lag = 0 // it was made up
		}
		if !started && r.State == view.Unknown { // the engine restarted, and has published nothing
			r.On(AppliedAll)
		}
	}
	if !started && len(st.Lower) > 0 && st.Reports == view.Unknown {
		st.On(AppliedAll)
	}
	st.Held, st.Behind = false, false
	st.confirm()
}

// ContestRun is the number of messages in a row that decides a contest.
const ContestRun = 16

// Contest counts the messages of other streams that had the rank before and continue.
type Contest struct {
	Open     bool // messages of other streams were not applied
	Reported bool // a Loss was reported since the rank moved
	Others   int  // messages of other streams in a row
	Own      int  // messages of the present stream in a row, while Open
}

// CountOwn counts a message of the stream that has the rank.
func (c *Contest) CountOwn() {
	c.Others = 0
	if c.Own++; c.Own >= ContestRun {
		c.Open, c.Own = false, 0
	}
}

// Moved begins a new Contest: the rank has moved. After a move by ContestRun messages only
// the move is reported.
func (c *Contest) Moved() { *c = Contest{Reported: c.Others+1 >= ContestRun} }

// EndContests ends the contests of the stream for ranks of other streams.
func (pm *Pod) EndContests(st *Stream) {
	if st.Skipped {
		for _, r := range pm.Ranks {
			r.Contest = Contest{}
		}
	}
}

// CountSilent counts the silent streams.
func (pm *Pod) CountSilent() {
	pm.Silent = 0
	for _, st := range pm.Streams {
		if st.Silent() {
			pm.Silent++
		}
	}
}
