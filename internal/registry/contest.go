// Contest: two streams that both continue to bring messages of one rank.
//
// A rank moves at once to a stream that has never fed it: the pod has another address. It also
// moves at once to a stream that has fed it and whose engine has restarted since, and to any stream
// if the connection of the present one is lost. But if the stream that had the rank just continues,
// two engines may have one name, and to follow both would clear the rank at every message. Then the
// present stream keeps the rank. The messages of the other stream are not applied to it, and the
// view is uncertain, because these messages may come from the same engine. The rank moves back only
// after podstate.ContestRun of them in a row without a message of the present stream. It is partial
// then, because those messages were not applied.
//
// The first message of a stream that never fed the rank moves it, because one message does not
// distinguish a second engine under the same pod and rank from a pod that has moved. Messages that
// are not applied count in stats.Traffic.Contested, and the first of them is reported as a Loss.

package registry

import (
	"errors"

	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/view"
)

var errContested = errors.New("two streams bring messages of one rank: are two engines configured under one pod and rank?")

// stays reports whether the rank of the message stays with another stream.
func (d *delivery) stays() bool {
	r, st := d.rank, d.stream
	switch fed := d.before.Stream != "" || st.Skipped; {
	case r.Stream == nil || r.Stream == st || r.Stream.Interrupted || !fed:
		return false
	case d.m.Replayed: // it does not show that the engine still runs
		return true
	}
	return d.returns() && r.Contest.Others+1 < podstate.ContestRun
}

// returns reports whether the rank moves back to a stream that has fed it since the engine
// started: messages in between may be missing.
func (d *delivery) returns() bool {
	r, st, before := d.rank, d.stream, d.before
	return r.Stream != nil && r.Stream != st && (before.Next > 0 && before.Epoch >= d.verdict.Epoch || st.Skipped)
}

// standBack skips a message whose rank stays with another stream: the message counts for its
// stream, and is not applied to the rank.
func (d *delivery) standBack() {
	d.contested, d.stream.Skipped = true, true
	c := &d.rank.Contest
	c.Open, c.Own = true, 0
	if !d.m.Replayed {
		c.Others++
	}
	if !c.Reported {
		c.Reported = true
		l := d.loss(d.rank.Number, view.LossContested)
		l.Err, l.Kept = errContested, true
		d.losses = append(d.losses, l)
	}
}
