package podstate

import (
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/sequence"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
)

// Stream is the order of a stream and the ranks seen on it: all of them lose
// when it does.
type Stream struct {
	Name  string
	Seq   sequence.Sequencer
	Ranks []*Rank
	// partial: messages of the engine's present life are missing, so a rank
	// that is new on the stream may hold more than is known.
	Partial bool
	// skipped: messages of the engine's present life were not applied, because
	// another stream has their rank.
	Skipped bool

	// What limits the views of the ranks, whatever they hold.
	//
	// held: message heldSeq waits for what is missing before it, or, if heldOld,
	// because its number goes back.
	// heldGap: the gap before it was counted.
	Held, HeldOld, HeldGap bool
	HeldSeq                uint64
	// behind: older messages are caught up with.
	Behind bool
	// interrupted: the connection was lost, or another process applied what is
	// known, and nothing has confirmed it since. restored: that was before a snapshot.
	Interrupted, restored bool

	opened    bool       // a transport has it
	connected time.Time  // since when its connection stands; zero: it does not
	Heard     time.Time  // when its last message came; zero: none has
	noReplay  bool       // its replay socket does not answer
	Malformed BadMessage // the last one
	Stats     stats.Traffic
}

// BadMessage is a message that could not be read.
type BadMessage struct {
	Seq  uint64
	Time time.Time
	Err  error
}

// Silent reports that the stream is to come, and has brought nothing yet.
func (st *Stream) Silent() bool { return st.opened && st.Heard.IsZero() }

// Waits reports that what the engine has said already is still to come.
func (st *Stream) Waits() bool { return st.Held || st.Behind }

// Limit is the state of a rank that has state but for its stream. A rank that
// holds nothing since its engine restarted has the state of what is waited for,
// because that will make it known.
func (st *Stream) Limit(state view.State) view.State {
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

// Judge keeps partial after a message. lost: it came behind a loss, or is one.
func (st *Stream) Judge(v *sequence.Verdict, lost bool) {
	if v.Restarted {
		st.Partial, st.Skipped = v.Missed, false
	} else if v.Missed || lost {
		st.Partial = true
	}
}

// confirm takes note that nothing is missing before what comes now.
func (st *Stream) confirm() { st.Interrupted, st.restored = false, false }

// Dealt is told that a message was dealt with; again: it had come before; last: it is
// the one that was applied last.
//
// Only what is newer than all before and comes by itself shows that nothing is
// missing. What comes again shows nothing, and a replay may fall silent half-way.
// But a replay that brings the message which waits, or one behind it, has brought
// all up to a message that came by itself. Behind a snapshot the last message shows,
// when it comes again, that the engine is the same and goes on from there.
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

// Lacks reports that a replay of all that the engine has said would make the view
// better.
func (st *Stream) Lacks() bool {
	if len(st.Ranks) == 0 {
		return st.Partial
	}
	return slices.ContainsFunc(st.Ranks, (*Rank).Lossy)
}

// Note changes what limits the views of the stream's ranks, and what is told of it.
func (st *Stream) Note(n events.Note, now time.Time) {
	switch n {
	case events.NoteOpened:
		st.opened = true
	case events.NoteConnected:
		st.connected = now
	case events.NoteLost, events.NoteClosed:
		st.connected = time.Time{}
		st.Held, st.Behind = false, false // what was held is gone with the connection
		st.Interrupted = st.Interrupted || !st.Heard.IsZero()
		st.opened = st.opened && n == events.NoteLost
	case events.NoteHeld:
		st.Behind = true
	case events.NoteCurrent:
		st.current()
	case events.NoteReleased:
		st.Interrupted = st.Interrupted || st.Waits() && !st.Heard.IsZero()
		st.Held, st.Behind = false, false
	case events.NoteNoReplay, events.NoteReplay:
		st.noReplay = n == events.NoteNoReplay
	}
}

// current takes note that all that the engine has said was offered.
func (st *Stream) current() {
	_, started := st.Seq.Next()
	for _, r := range st.Ranks {
		if st.Waits() || st.Interrupted {
			r.Lag = 0 // it was made up
		}
		if !started && r.State == view.Unknown { // the engine restarted, and has said nothing
			r.On(HeardAll)
		}
	}
	st.Held, st.Behind = false, false
	st.confirm()
}

// ContestRun is how many messages in a row decide a contest.
const ContestRun = 16

// Contest is what a rank knows of the streams that had it before and go on.
type Contest struct {
	Open   bool // they may have said what is not known
	Told   bool // since the rank moved
	Others int  // messages of them in a row
	Own    int  // messages of the present stream in a row, while open
}

// Spoke takes note of a message of the stream that has the rank.
func (c *Contest) Spoke() {
	c.Others = 0
	if c.Own++; c.Own >= ContestRun {
		c.Open, c.Own = false, 0
	}
}

// Decided takes note that the rank moves. What a run of messages decided is told
// as a move alone.
func (c *Contest) Decided() { *c = Contest{Told: c.Others+1 >= ContestRun} }

// CountSilent counts the silent streams.
func (pm *Pod) CountSilent() {
	pm.Silent = 0
	for _, st := range pm.Streams {
		if st.Silent() {
			pm.Silent++
		}
	}
}
