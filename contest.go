// Contest: two streams that both go on to speak for one rank.
//
// A rank moves at once to a stream that has never fed it: the pod has another
// address. So it does to one that has fed it and whose engine has restarted since,
// and to any if the connection of the present one is lost. But if the stream that
// had the rank just goes on, two engines may have one name, and to follow each of
// them would clear the rank at every message. Then the present stream keeps it. The
// messages of the other are not applied to it, and the view is uncertain, because
// they may tell of the same engine. Only when contestRun of them have come in a row,
// and none of the present stream, the rank moves back.
//
// What such a stream said in between is not known to the rank, so the rank is
// partial when it comes back.
//
// The first message of a stream that never fed the rank takes it, because two engines under
// one pod and rank cannot be told by one message from a pod that has moved. Messages that are
// not applied count in stats.Traffic.Contested, and the first of them is reported as a Loss.

package kvindex

import (
	"errors"

	"github.com/kvindex/kvindex/internal/view"
)

// contestRun is how many messages in a row decide a contest.
const contestRun = 16

var errContested = errors.New("two streams speak for one rank: are two engines configured under one pod and rank?")

// contest is what a rank knows of the streams that had it before and go on.
type contest struct {
	open   bool // they may have said what is not known
	told   bool // since the rank moved
	others int  // messages of them in a row
	own    int  // messages of the present stream in a row, while open
}

// stays reports that the rank of the message stays with another stream.
func (d *delivery) stays() bool {
	r, st := d.rank, d.stream
	switch fed := d.before.Stream != "" || st.skipped; {
	case r.stream == nil || r.stream == st || r.stream.interrupted || !fed:
		return false
	case d.m.Replayed: // no sign of an engine that goes on
		return true
	}
	return d.returns() && r.contest.others+1 < contestRun
}

// returns reports that the rank had the stream, in this life of its engine, and has
// another: what was said in between is not known.
func (d *delivery) returns() bool {
	r, st, before := d.rank, d.stream, d.before
	return r.stream != nil && r.stream != st && (before.Next > 0 && before.Epoch >= d.verdict.Epoch || st.skipped)
}

// standBack deals with a message whose rank stays with another stream: it counts
// for its stream, and nothing of it is applied to the rank.
func (d *delivery) standBack() {
	d.contested, d.stream.skipped = true, true
	c := &d.rank.contest
	c.open, c.own = true, 0
	if !d.m.Replayed {
		c.others++
	}
	if !c.told {
		c.told = true
		l := d.loss(d.rank.n, view.LossContested)
		l.Err, l.Kept = errContested, true
		d.losses = append(d.losses, l)
	}
}

// spoke takes note of a message of the stream that has the rank.
func (c *contest) spoke() {
	c.others = 0
	if c.own++; c.own >= contestRun {
		c.open, c.own = false, 0
	}
}

// decided takes note that the rank moves. What a run of messages decided is told
// as a move alone.
func (c *contest) decided() { *c = contest{told: c.others+1 >= contestRun} }
