package index

import (
	"maps"
	"slices"

	"github.com/kvindex/kvindex/index/internal/names"
)

// The sources of a pod, or one of them, are removed in three steps. They are unlinked:
// from then on no Match sees them, an Apply makes new ones, and an Apply in progress stops
// soon. They are retired when it has stopped. Then a goroutine takes their names out of
// the forest, a few hundred at a time, and ends when that is done.

// grave is a source that was removed and still has names in the forest.
type grave struct {
	s  *source
	at names.Position // of the next names
}

// unlink hides the sources of a pod for which gone is true, and returns them. A pod
// goes with its last source, a model with its last pod.
func (m *memory) unlink(pod string, gone func(*source) bool) (sources []*source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	models := maps.Clone(*m.models.Load())
	bytes := 0
	for name, md := range models {
		p, ok := md.pods.Load(pod)
		if !ok {
			continue
		}
		list := *p.(*podSources).list.Load()
		var left []*source
		for _, s := range list {
			if gone(s) {
				sources = append(sources, s)
			} else {
				left = append(left, s)
			}
		}
		if len(left) == len(list) {
			continue
		}
		p.(*podSources).list.Store(&left)
		if len(left) == 0 {
			md.pods.Delete(pod)
			md.n--
			bytes += podBytes
		}
		md.podsGen.Add(1)
		md.gen.Add(1)
		if md.n == 0 {
			delete(models, name)
			bytes += modelBytes
		}
	}
	m.models.Store(&models)
	if m.ground != nil {
		m.ground.mu.Lock()
		m.ground.dead += len(sources)
		for _, s := range sources {
			s.removed.Store(true)
			if m.ground.mirror != nil {
				m.ground.mirror.Gone(s.feed)
			}
		}
		m.ground.addTables(-bytes)
		m.ground.mu.Unlock()
	}
	return sources
}

// bury begins to tidy up a removed source.
func (m *memory) bury(s *source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return
	}
	g := m.ground
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead--
	g.dismiss(s)
	if g.graves = append(g.graves, &grave{s: s}); len(g.graves) == 1 {
		m.sweepers.Go(func() {
			for !m.closed.Load() && g.sweep() {
			}
		})
	}
}

// sweep does a step of tidying up and reports whether there is more to do.
func (g *ground) sweep() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy(yieldAfter)
	return len(g.graves) > 0
}

// tidy takes some names of removed sources out of the forest, and reclaims memory that no
// reader sees any more.
func (g *ground) tidy(names int) {
	for names > 0 && len(g.graves) > 0 {
		at := g.graves[0]
		var done bool
		if names, done = at.tidy(names); done {
			if !at.s.writer.TryLock() { // a caller that found it before reads it
				return
			}
			for _, ln := range at.s.lanes.all {
				if ln != nil {
					g.forest.RetireOrdinal(ln.ord)
				}
			}
			at.s.discard()
			at.s.writer.Unlock()
			g.graves = slices.Delete(g.graves, 0, 1)
		}
	}
	g.forest.Reclaim()
}

// tidy goes on for some names, and returns how many of them are left.
func (g *grave) tidy(names int) (left int, done bool) {
	var buf [2]loc
	return g.s.names.Walk(&g.at, names, func(h Hash, v value) {
		n := name{g.s, h, v}
		for _, l := range n.locs(&buf) {
			for _, ln := range g.s.lanes.all {
				if ln != nil {
					g.s.f.ReleaseSlab(l, ln.ord)
				}
			}
			g.s.f.Unref(l)
		}
	})
}

// retire waits for the Apply of a removed source that is in progress. It returns false if
// a snapshot still needs the source, and will bury it.
func (s *source) retire() (bury bool) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.waits.release()
	s.shared.forget()
	s.hidden.forget()
	s.ground.mu.Lock()
	defer s.ground.mu.Unlock()
	s.tenant.report()
	if s.dump != nil {
		s.dump.bury = true
		return false
	}
	return true
}
