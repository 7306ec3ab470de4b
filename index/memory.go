package index

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Defaults of MemoryConfig.
const (
	// DefaultPendingBytes is about 15,000 blocks of one source that wait for
	// a name.
	DefaultPendingBytes = 4 << 20
	// DefaultIdleNames is the cache of a large pod: what it evicted may come
	// back as a parent or in a lower tier for about as long as it took to
	// evict. They take about 13 MB.
	DefaultIdleNames = 1 << 16
)

// MemoryConfig configures a Memory. Its zero value is the default.
type MemoryConfig struct {
	// Seed of the locals and roots; zero: a random one. Indexes that compare
	// keys need the same seed, and an adversary who knows it can forge keys.
	Seed [16]byte
	// PendingBytes bounds, for each source, what waits for a name: parked
	// stores and blocks known by hash only. 0: DefaultPendingBytes.
	PendingBytes int
	// IdleNames bounds, for each source, the names kept of blocks that nobody
	// holds. 0: DefaultIdleNames.
	IdleNames int
}

// Memory is the Index that lives in the process. It is safe for concurrent
// use: a Match waits for an Apply of the same source only, and an Apply for no
// other source.
type Memory struct {
	cfg    MemoryConfig
	closed atomic.Bool

	mu     sync.RWMutex // guards models and all below it but the sources' insides
	models map[string]*model
}

// model has a source for each pod and rank that was heard, and the variants of
// all stores ever seen for it.
type model struct {
	pods     map[string][]*source
	variants []Variant // replaced, never changed in place
}

var (
	_ Index     = (*Memory)(nil)
	_ Describer = (*Memory)(nil)
)

// NewMemory returns an empty Memory.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	if cfg.PendingBytes < 0 {
		return nil, fmt.Errorf("index: PendingBytes is %d", cfg.PendingBytes)
	}
	if cfg.IdleNames < 0 {
		return nil, fmt.Errorf("index: IdleNames is %d", cfg.IdleNames)
	}
	if cfg.PendingBytes == 0 {
		cfg.PendingBytes = DefaultPendingBytes
	}
	if cfg.IdleNames == 0 {
		cfg.IdleNames = DefaultIdleNames
	}
	if cfg.Seed == ([16]byte{}) {
		rand.Read(cfg.Seed[:]) // never fails
	}
	return &Memory{cfg: cfg, models: make(map[string]*model)}, nil
}

// Seed implements Index.
func (m *Memory) Seed() [16]byte { return m.cfg.Seed }

// Apply implements Index.
func (m *Memory) Apply(ctx context.Context, src Source, cur Cursor, changes []Change) (Applied, error) {
	if m.closed.Load() {
		return Applied{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Applied{}, err
	}
	for i := range changes {
		if err := changes[i].Validate(); err != nil {
			return Applied{}, fmt.Errorf("change %d: %w", i, err)
		}
	}
	s, err := m.source(src, changes)
	if err != nil {
		return Applied{}, err
	}
	return s.applyAll(cur, changes), nil
}

// source returns the source, made if need be, with the variants of the changes
// registered at its model.
func (m *Memory) source(id Source, changes []Change) (*source, error) {
	m.mu.RLock()
	md := m.models[id.Model]
	s := md.source(id)
	known := s != nil && md.knows(changes)
	m.mu.RUnlock()
	if known {
		return s, nil
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() { // Close came between
		return nil, ErrClosed
	}
	md = m.models[id.Model]
	if md == nil {
		md = &model{pods: make(map[string][]*source)}
		m.models[id.Model] = md
	}
	for i := range changes {
		if v := changes[i].Variant; len(changes[i].Locals) > 0 && !slices.Contains(md.variants, v) {
			md.variants = append(slices.Clone(md.variants), v)
		}
	}
	if s = md.source(id); s == nil {
		s = newSource(id, &m.cfg)
		md.pods[id.Pod] = append(md.pods[id.Pod], s)
	}
	return s, nil
}

func (md *model) source(id Source) *source {
	if md == nil {
		return nil
	}
	for _, s := range md.pods[id.Pod] {
		if s.id.Rank == id.Rank {
			return s
		}
	}
	return nil
}

func (md *model) knows(changes []Change) bool {
	for i := range changes {
		if len(changes[i].Locals) > 0 && !slices.Contains(md.variants, changes[i].Variant) {
			return false
		}
	}
	return true
}

// Match implements Index.
func (m *Memory) Match(ctx context.Context, q *Query, out *Matches) error {
	out.Reset()
	if m.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.RLock()
	md := m.models[q.Model]
	if md == nil {
		m.mu.RUnlock()
		return nil
	}
	variants := md.variants
	var sources []*source
	if q.Pods == nil {
		for _, of := range md.pods {
			sources = append(sources, of...)
		}
	}
	for _, pod := range q.Pods {
		sources = append(sources, md.pods[pod]...)
	}
	m.mu.RUnlock()

	if len(sources) == 0 {
		return nil
	}
	paths := make([]path, len(variants))
	for i, v := range variants {
		paths[i] = path{v, q.Keys(v)}
	}
	for _, s := range sources {
		s.match(paths, q.Held, out)
	}
	return nil
}

// Remove implements Index.
func (m *Memory) Remove(ctx context.Context, pod string) error {
	if m.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, md := range m.models {
		delete(md.pods, pod)
		if len(md.pods) == 0 {
			delete(m.models, name)
		}
	}
	return nil
}

// Describe implements Describer.
func (m *Memory) Describe(dst []SourceInfo) []SourceInfo {
	var sources []*source
	m.mu.RLock()
	for _, md := range m.models {
		for _, of := range md.pods {
			sources = append(sources, of...)
		}
	}
	m.mu.RUnlock()
	for _, s := range sources {
		dst = append(dst, s.describe())
	}
	return dst
}

// Close implements Index.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed.Store(true)
	m.models = nil
	return nil
}
