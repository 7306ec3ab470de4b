package podstate

import (
	"cmp"
	"encoding/binary"
	"math"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
)

// Ages is the clocks by which the lower tiers of a rank age (index.OpAge). The zero Ages is of a
// rank without blocks there.
//
// The time is that of the batches. It is divided into periods of half a MaxAge, and each is a
// generation. A block goes with the third generation after its own, so at least two whole periods
// lie between its last store and the batch that drops it, and at most three.
//
// A clock that goes back drops nothing: the latest time counts. If the clock then goes on from
// the earlier time for three periods, that time counts, because all earlier stores of the rank are
// older by any clock.
type Ages [index.NumTiers]ageClock

// ageClock is the clock of a tier, in seconds.
type ageClock struct {
	latest float64 // 0: the tier has no blocks; unknownTime: it may have some from before
	back   float64 // the earliest time since the clock went back; 0: it did not
}

const unknownTime = -1

// Recall notes that the rank may have blocks from before, in every tier.
func (a *Ages) Recall() {
	for t := index.TierCPU; t < index.NumTiers; t++ {
		a[t].latest = cmp.Or(a[t].latest, unknownTime)
	}
}

// Begin notes that a batch stores blocks in a tier.
func (a *Ages) Begin(t index.Tier, p *engine.Profile, batch float64, host time.Time) {
	if c := &a[t]; c.latest == 0 && p.MaxAgeOf(t) > 0 {
		c.latest = timeIn(p.MaxAgeOf(t), batch, host)
	}
}

// Due returns how many generations of a tier begin with a batch. batch is its time in seconds,
// and host is the clock of the host.
func (a *Ages) Due(t index.Tier, p *engine.Profile, batch float64, host time.Time) int {
	c, maxAge := &a[t], p.MaxAgeOf(t)
	if c.latest == 0 || maxAge == 0 {
		return 0
	}
	now := timeIn(maxAge, batch, host)
	period := maxAge.Seconds() / 2
	since := func(from float64) float64 { return math.Floor(now/period) - math.Floor(from/period) }
	switch {
	case c.latest == unknownTime:
		*c = ageClock{latest: now}
		return 0
	case now >= c.latest:
		n := min(since(c.latest), 3)
		*c = ageClock{latest: now}
		return int(n)
	case c.back == 0 || now < c.back:
		c.back = now
	case since(c.back) >= 3:
		*c = ageClock{latest: now}
		return 1
	}
	return 0
}

// timeIn returns the time of a batch. It is that of the host if the batch has none, or one that
// is further ahead than a MaxAge.
func timeIn(maxAge time.Duration, batch float64, host time.Time) float64 {
	now := float64(host.UnixNano()) / 1e9
	if batch > 0 && batch <= now+maxAge.Seconds() {
		return batch
	}
	return now
}

// isZero reports whether no tier has blocks.
func (a *Ages) isZero() bool { return *a == Ages{} }

func (a *Ages) appendState(b []byte) []byte {
	for _, c := range a[index.TierCPU:] {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(c.latest))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(c.back))
	}
	return b
}

// readAges reads what appendState has written. A time that no clock has is taken for unknown.
func readAges(f *sections.Fields) (a Ages) {
	for t := index.TierCPU; t < index.NumTiers; t++ {
		c := ageClock{math.Float64frombits(f.Uint64()), math.Float64frombits(f.Uint64())}
		if !(c.latest >= 0) || !(c.back >= 0) {
			c = ageClock{latest: unknownTime}
		}
		a[t] = c
	}
	return a
}
