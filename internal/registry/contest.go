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

package registry

import (
	"errors"

	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
)

var errContested = errors.New("two streams speak for one rank: are two engines configured under one pod and rank?")

// stays reports that the rank of the message stays with another stream.
func (d *delivery) stays() bool {
	r, st := d.rank, d.stream
	switch fed := d.before.Stream != "" || st.Skipped; {
	case r.Stream == nil || r.Stream == st || r.Stream.Interrupted || !fed:
		return false
	case d.m.Replayed: // no sign of an engine that goes on
		return true
	}
	return d.returns() && r.Contest.Others+1 < podstate.ContestRun
}

// returns reports that the rank had the stream, in this life of its engine, and has
// another: what was said in between is not known.
func (d *delivery) returns() bool {
	r, st, before := d.rank, d.stream, d.before
	return r.Stream != nil && r.Stream != st && (before.Next > 0 && before.Epoch >= d.verdict.Epoch || st.Skipped)
}

// standBack deals with a message whose rank stays with another stream: it counts
// for its stream, and nothing of it is applied to the rank.
func (d *delivery) standBack() {
	d.contested, d.stream.Skipped = true, true
	c := &d.rank.Contest
	c.Open, c.Own = true, 0
	if !d.m.Replayed {
		c.Others++
	}
	if !c.Told {
		c.Told = true
		l := d.loss(d.rank.Number, view.LossContested)
		l.Err, l.Kept = errContested, true
		d.losses = append(d.losses, l)
	}
}
