package index

import (
	"github.com/kvindex/kvindex/index/internal/names"
)

// tenant is the part of a source in the budget: it reports the memory of the source, and
// gives up names and stores. source.writer guards it, and ground.mu number.
type tenant struct {
	s        *source
	number   int   // in ground.all
	reported tally // the part of the source in ground.total
	reports  int   // since the bytes of the names were measured
	measured int64 // how many names there were then

	// swept is the last cycle in which all names were swept. In cycle sweeps the names
	// before position at were swept.
	swept, sweeps uint32
	at            uint64
}

// tally is the memory of sources.
type tally struct {
	names     int64
	nameBytes int64
	idle      int64 // idle names
	waits     int64 // bytes of stores that wait
	nameRoom  int64 // how many names there is room for
}

// add adds another tally.
func (t *tally) add(more *tally) {
	t.names += more.names
	t.nameBytes += more.nameBytes
	t.idle += more.idle
	t.waits += more.waits
	t.nameRoom += more.nameRoom
}

// reportsEach is how many reports share one measurement of the bytes, which takes longer
// than a removal does.
const reportsEach = 512

// report brings ground.total up to date. A change reports several times, so the numbers go
// one by one: to copy a tally that was just written takes twice as long.
func (t *tenant) report() {
	s, was, total := t.s, &t.reported, &t.s.ground.total
	names := int64(s.names.Len())
	if off := names - t.measured; t.reports == 0 || max(off, -off) > t.measured/8 {
		update(&total.nameBytes, &was.nameBytes, int64(s.nameBytes()))
		t.measured = names
	}
	if t.reports++; t.reports == reportsEach {
		t.reports = 0
	}
	update(&total.names, &was.names, names)
	update(&total.idle, &was.idle, int64(s.idle.len()))
	update(&total.waits, &was.waits, int64(s.waits.cost))
	update(&total.nameRoom, &was.nameRoom, int64(s.names.Room()))
}

// update replaces a number that was reported, in the sum too.
func update(sum, was *int64, now int64) {
	*sum += now - *was
	*was = now
}

// leave takes the numbers of the tenant out of ground.total.
func (t *tenant) leave() {
	was, total := &t.reported, &t.s.ground.total
	update(&total.names, &was.names, 0)
	update(&total.nameBytes, &was.nameBytes, 0)
	update(&total.idle, &was.idle, 0)
	update(&total.waits, &was.waits, 0)
	update(&total.nameRoom, &was.nameRoom, 0)
}

// sweep forgets the dead names of a segment. It returns its cost, in names that were
// scanned.
func (t *tenant) sweep() (cost int) {
	s, g := t.s, t.s.ground
	if t.sweeps != g.cycle {
		t.sweeps, t.at = g.cycle, 0
	}
	at := t.at
	g.picked, t.at, cost = names.Sweep(&s.names, g.picked[:0], at, s.f.DeadSlabs())
	for _, p := range g.picked {
		n := name{s, p.Hash, value(p.Value)}
		if !n.isPlain() { // another may have changed it
			s.bury(p.Hash)
		} else if n.rehome(); s.f.Dead(loc(n.value)) {
			if s.dump != nil {
				s.dump.name(p.Hash)
			}
			n.bury()
		}
	}
	if g.pages() < 2*g.reserve {
		s.names.Compact(at)
	}
	if cap(g.picked) > 1<<9 { // many of a segment
		g.picked = nil
	}
	if t.at == 0 {
		t.swept = g.cycle
	}
	return cost + 4*len(g.picked)
}

// forgetOld forgets at most stepIdle idle names of an age, and returns how many.
func (t *tenant) forgetOld(now, age uint32) (n int) {
	s := t.s
	for ; n < stepIdle && s.idle.first != 0; n++ {
		first := s.idle.at(s.idle.first)
		if now-first.since < age {
			break
		}
		oldest := s.name(first.hash)
		oldest.forget()
		s.counts.Forgotten++
	}
	return n
}

// dropOld drops at most stepParked stores of an age that wait, and returns their bytes.
func (t *tenant) dropOld(now, age uint32) (bytes int) {
	waits := &t.s.waits
	for range stepParked {
		p := waits.oldest
		if p == nil || now-p.since < age {
			break
		}
		bytes += p.cost()
		waits.drop(p)
	}
	return bytes
}
