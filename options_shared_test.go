package kvindex_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/sharedindex"
)

// sharedIndex is shared by several processes: an index in memory and a directory.
type sharedIndex struct {
	memory inmemory.Memory

	mu      sync.Mutex
	sources map[index.Source]*sharedSource
	owners  map[string]*process // by pod: the first process with news of it
	version int                 // raised by each change of sources
}

type sharedSource struct {
	feeders map[*process]bool // processes that applied one of its batches
	note    []byte
	stale   bool
}

// process is the view that one process has of a sharedIndex.
type process struct {
	inmemory.Memory
	shared *sharedIndex

	mu       sync.Mutex
	listing  *sharedindex.Listing
	version  int // of listing
	fail     error
	delay    error // error of a completed Apply
	degraded error
	unlisted error // error of Listing
	told     []string
	asked    int  // calls of Listing
	stands   bool // each pod has another process
}

func newShared(t testing.TB) *sharedIndex {
	t.Helper()
	m := memory(t)
	return &sharedIndex{memory: m, sources: make(map[index.Source]*sharedSource), owners: make(map[string]*process)}
}

func (s *sharedIndex) process() *process {
	return &process{Memory: s.memory, shared: s, version: -1}
}

// source returns a source, made if need be. mu is held.
func (s *sharedIndex) source(src index.Source) *sharedSource {
	if s.sources[src] == nil {
		s.sources[src] = &sharedSource{feeders: make(map[*process]bool)}
	}
	return s.sources[src]
}

// owns reports whether a process writes the row of a pod. mu is held.
func (s *sharedIndex) owns(p *process, pod string) bool {
	if s.owners[pod] == nil {
		s.owners[pod] = p
	}
	return s.owners[pod] == p
}

// change changes the directory.
func (s *sharedIndex) change(f func(sources map[index.Source]*sharedSource)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.sources)
	s.version++
}

// stale sets whether the writer of a pod is away.
func (s *sharedIndex) stale(pod string, is bool) {
	s.change(func(sources map[index.Source]*sharedSource) {
		for src, of := range sources {
			if src.Pod == pod {
				of.stale = is
			}
		}
	})
}

func (p *process) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	p.mu.Lock()
	fail, delay := p.fail, p.delay
	p.mu.Unlock()
	if fail != nil {
		return index.Effect{}, fail
	}
	done, err := p.Memory.Apply(ctx, src, cur, changes)
	if err != nil {
		return done, err
	}
	p.shared.mu.Lock()
	p.shared.owns(p, src.Pod)
	if of := p.shared.source(src); !of.feeders[p] {
		of.feeders[p] = true
		p.shared.version++
	}
	p.shared.mu.Unlock()
	return done, delay
}

func (p *process) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	p.mu.Lock()
	degraded := p.degraded
	p.mu.Unlock()
	if degraded != nil {
		m.Reset()
		m.Degraded = degraded
		return nil
	}
	if err := p.Memory.Match(ctx, q, m); err != nil {
		return err
	}
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for i := range m.Rows {
		row := &m.Rows[i]
		if of := p.shared.sources[row.Source]; of != nil {
			row.Stale = of.stale
		}
	}
	return nil
}

func (p *process) Remove(ctx context.Context, pod string) error {
	p.shared.change(func(sources map[index.Source]*sharedSource) {
		delete(p.shared.owners, pod)
		for src := range sources {
			if src.Pod == pod {
				delete(sources, src)
			}
		}
	})
	return p.Memory.Remove(ctx, pod)
}

func (p *process) RemoveSource(ctx context.Context, src index.Source) error {
	p.shared.change(func(sources map[index.Source]*sharedSource) { delete(sources, src) })
	return p.Memory.RemoveSource(ctx, src)
}

func (p *process) Describe(dst []index.SourceInfo) []index.SourceInfo {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for _, s := range p.Memory.Describe(nil) {
		if of := p.shared.sources[s.Source]; of != nil && of.feeders[p] {
			dst = append(dst, s)
		}
	}
	return dst
}

func (p *process) Publish(src index.Source, note []byte) {
	p.mu.Lock()
	stands := p.stands
	p.mu.Unlock()
	p.shared.mu.Lock()
	if !stands && p.shared.owns(p, src.Pod) {
		p.shared.source(src).note = note
		p.shared.version++
	}
	p.shared.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, string(note))
}

func (p *process) Listing(ctx context.Context) (*sharedindex.Listing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if err := errors.Join(ctx.Err(), p.unlisted); err != nil {
		return nil, err
	}
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	if p.version == p.shared.version {
		return p.listing, nil
	}
	l := &sharedindex.Listing{}
	for src, of := range p.shared.sources {
		l.Entries = append(l.Entries, sharedindex.Entry{Source: src, Note: of.note, Fed: of.feeders[p], Stale: of.stale})
	}
	slices.SortFunc(l.Entries, func(a, b sharedindex.Entry) int {
		x, y := a.Source, b.Source
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.Pod, y.Pod), x.Rank-y.Rank)
	})
	p.listing, p.version = l, p.shared.version
	return l, nil
}

// set changes the state of a process.
func (p *process) set(f func(p *process)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// tells returns the number of notes since the last call.
func (p *process) tells() (n int) {
	p.set(func(p *process) { n, p.told = len(p.told), nil })
	return n
}

// plainProcess is a process without RemoveSource and the optional methods about blocks.
type plainProcess struct {
	index.Index
	sharedindex.Directory
	index.Describer
}
