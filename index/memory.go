package index

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/internal/invariants"
)

// MinMemory is the least budget of a Memory, in bytes.
const MinMemory = 1 << 20

// Defaults of MemoryConfig, and bounds of a source.
const (
	// defaultPendingBytes has room for about 10,000 stores of one block that wait for a
	// name.
	defaultPendingBytes = 4 << 20
	// defaultIdleNames is the cache of a large pod: after a clear that stands
	// for lost messages its blocks are still parents. They take about 3 MB, and
	// keep their slabs and the slabs before them: at worst all that was cleared.
	defaultIdleNames = 1 << 16
	// defaultBytes is less on machines with addresses of 32 bits.
	defaultBytes = 4 << 30 >> (3 * (^uint(0)>>63 ^ 1))
)

// MemoryConfig configures a Memory. Its zero value is the default.
type MemoryConfig struct {
	// Seed is the seed of the locals and roots; zero: a random one. Indexes that compare
	// keys need the same seed. An adversary who has it can forge keys.
	Seed [16]byte
	// Bytes bounds the heap of the Memory. At the bound it forgets first the oldest names
	// of blocks that nobody holds, then the oldest stores that wait, then the blocks that
	// were neither stored nor matched for the longest time. It forgets a block for all
	// holders, and only if it keeps nothing behind it. So the rest of a chain is a prefix
	// of the chain. (One exception: of a hash that names two prefixes, both are
	// forgotten.) The half of Bytes that was used latest stays. At least MinMemory; 0: 4
	// GiB, or 512 MiB on machines with addresses of 32 bits.
	Bytes int64

	// pendingBytes bounds, for each source, the stores that wait for a name: parked stores
	// and stores by hash only. idleNames bounds the names kept of blocks that nobody holds:
	// below that bound, a source keeps a quarter as many as it holds blocks, and at least
	// 1,024. A clear leaves more, which go as new blocks come. Only tests set the two.
	pendingBytes, idleNames int
}

// memory is the Index that lives in the process.
type memory struct {
	cfg    MemoryConfig
	salt   [2]uint64 // of the tables of names
	closed atomic.Bool

	mu     sync.Mutex // held to change models, or the pods of one
	models atomic.Pointer[map[string]*model]
	ground *ground // nil after Close; guarded by mu
	feeds  uint64  // the number of the last source; guarded by mu

	sweepers sync.WaitGroup
	dumps    chan struct{} // of the Snapshot in progress

	changes int // calls of checked; guarded by mu
}

var (
	_ Index         = (*memory)(nil)
	_ Describer     = (*memory)(nil)
	_ SourceRemover = (*memory)(nil)
)

// NewMemory returns an empty index that lives in the process: the Memory. It is a [Describer]
// and a [SourceRemover]. A Match takes no lock. Applies of one source wait for each other.
// Applies of several sources let each other in after every few hundred blocks.
func NewMemory(cfg MemoryConfig) (Index, error) {
	m, err := newMemory(cfg)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func newMemory(cfg MemoryConfig) (*memory, error) {
	if cfg.Bytes != 0 && cfg.Bytes < MinMemory {
		return nil, fmt.Errorf("index: Bytes is %d, must be at least %d", cfg.Bytes, MinMemory)
	}
	cfg.Bytes = cmp.Or(cfg.Bytes, defaultBytes)
	if cfg.Seed == ([16]byte{}) {
		rand.Read(cfg.Seed[:]) // never fails
	}
	m := &memory{cfg: cfg, ground: newGround(cfg.Bytes), dumps: make(chan struct{}, 1)}
	var salt [16]byte
	rand.Read(salt[:])
	m.salt = [2]uint64{binary.LittleEndian.Uint64(salt[:8]), binary.LittleEndian.Uint64(salt[8:])}
	m.models.Store(&map[string]*model{})
	m.SetBounds(cfg.pendingBytes, cfg.idleNames)
	return m, nil
}

// SetBounds implements inmemory.Memory.
func (m *memory) SetBounds(pendingBytes, idleNames int) {
	m.cfg.pendingBytes = cmp.Or(pendingBytes, defaultPendingBytes)
	m.cfg.idleNames = cmp.Or(idleNames, defaultIdleNames)
}

// Seed implements Index.
func (m *memory) Seed() [16]byte { return m.cfg.Seed }

// Apply implements Index.
func (m *memory) Apply(ctx context.Context, src Source, cur Cursor, changes []Change) (Effect, error) {
	if m.closed.Load() {
		return Effect{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Effect{}, err
	}
	for i := range changes {
		if err := changes[i].Validate(); err != nil {
			return Effect{}, fmt.Errorf("change %d: %w", i, err)
		}
	}
	for {
		s, err := m.source(src)
		if err != nil {
			return Effect{}, err
		}
		done, ok, err := s.applyAll(cur, changes)
		m.checked()
		if ok {
			return done, err
		}
	}
}

// source returns the source, and makes it if necessary.
func (m *memory) source(id Source) (*source, error) {
	if md := (*m.models.Load())[id.Model]; md != nil {
		if s := md.source(id); s != nil {
			return s, nil
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() { // since the last check
		return nil, ErrClosed
	}
	if !m.ground.canAdmit(nil, mem.Size(len(id.Pod)+len(id.Model))) {
		return nil, m.ground.errFull(id, "")
	}
	models := *m.models.Load()
	bytes := 0
	md := models[id.Model]
	if md == nil {
		bytes += modelBytes
		md = &model{id: new(identity), ground: m.ground}
		models = maps.Clone(models)
		models[id.Model] = md
		m.models.Store(&models)
	}
	if s := md.source(id); s != nil {
		return s, nil
	}
	m.feeds++
	s := newSource(id, m, md, m.feeds)
	p, ok := md.pods.Load(id.Pod)
	if !ok {
		bytes += podBytes
		p = new(podSources)
		p.(*podSources).list.Store(new([]*source))
		md.n++
	}
	list := append(slices.Clone(*p.(*podSources).list.Load()), s)
	p.(*podSources).list.Store(&list)
	md.pods.Store(id.Pod, p)
	m.ground.admit(s, bytes)
	md.podsGen.Add(1)
	md.gen.Add(1)
	return s, nil
}

// Cursor implements Index. It waits for the Apply of the source that is in
// progress.
func (m *memory) Cursor(ctx context.Context, src Source, stream string) (Cursor, error) {
	if m.closed.Load() {
		return Cursor{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Cursor{}, err
	}
	md := (*m.models.Load())[src.Model]
	if md == nil {
		return Cursor{}, nil
	}
	s := md.source(src)
	if s == nil {
		return Cursor{}, nil
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if i, ok := s.cursors.find(stream); ok {
		return s.cursors.all[i], nil
	}
	return Cursor{}, nil
}

// Match implements Index.
func (m *memory) Match(ctx context.Context, q *Query, out *Matches) error {
	out.Reset()
	if m.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if q.Candidates == nil {
		return fmt.Errorf("%w: the query has no Candidates", ErrInvalid)
	}
	md := (*m.models.Load())[q.Candidates.model]
	if md == nil {
		return nil
	}
	w, ok := out.Memo.(*walker)
	if !ok {
		w = new(walker)
		out.Memo = w
	}
	w.begin(md.ground.forest)
	defer w.release()
	for {
		done, err := w.answer(md, md.resolve(q.Candidates), q, out)
		if done || err != nil {
			return err
		}
	}
}

// Remove implements Index. No Match sees the pod any more when Remove returns. A goroutine
// tidies up its memory and ends when that is done. Close waits for it.
func (m *memory) Remove(ctx context.Context, pod string) error {
	return m.remove(ctx, pod, func(*source) bool { return true })
}

// RemoveSource implements SourceRemover.
func (m *memory) RemoveSource(ctx context.Context, src Source) error {
	return m.remove(ctx, src.Pod, func(s *source) bool { return s.id == src })
}

// remove forgets the sources of a pod for which gone is true.
func (m *memory) remove(ctx context.Context, pod string, gone func(*source) bool) error {
	if m.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, s := range m.unlink(pod, gone) {
		if s.retire() {
			m.bury(s)
		}
	}
	m.checked()
	return nil
}

// checked panics if a check fails, with the build tag invariants. It checks after each
// change while the index takes less than some 200 kB, and after ever fewer as it grows.
func (m *memory) checked() {
	if !invariants.Enabled {
		return
	}
	m.mu.Lock() // no sources come or go
	defer m.mu.Unlock()
	if m.ground == nil {
		return
	}
	m.changes++
	size := int(m.ground.mem.Load() / 200)
	if m.changes%(1+size/1000*size/1000) != 0 {
		return
	}
	if err := m.check(); err != nil {
		panic(err)
	}
}

// Describe implements Describer.
func (m *memory) Describe(dst []SourceInfo) []SourceInfo {
	for _, md := range *m.models.Load() {
		md.pods.Range(func(_, p any) bool {
			for _, s := range *p.(*podSources).list.Load() {
				dst = append(dst, s.describe())
			}
			return true
		})
	}
	return dst
}

// DescribeSource implements Describer.
func (m *memory) DescribeSource(src Source) (info SourceInfo, ok bool) {
	if md := (*m.models.Load())[src.Model]; md != nil {
		if s := md.source(src); s != nil {
			return s.describe(), true
		}
	}
	return SourceInfo{}, false
}

// MemoryUsage is the contents of an index in numbers, and its bytes. A backend that does not
// count one kind of bytes leaves it 0.
type MemoryUsage struct {
	Prefixes    int // keys
	Memberships int // blocks held, of all holders together

	// Free are the bytes that are ready for blocks to come. Total is the heap of the index, with
	// them and with that of removed sources until it is swept, and Budget its bound.
	Free          int
	Total, Budget int64
	// Evicted is how many holdings the index gave up at the bound.
	Evicted uint64
}

// Unswept implements inmemory.Memory.
func (m *memory) Unswept() int {
	m.mu.Lock()
	g := m.ground
	m.mu.Unlock()
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.graves) + g.dead
}

// usageParts are bytes by purpose: the keys, the table that finds them, their holders, the
// names that engines have for them, stores that wait for a name, and the empty sources.
type usageParts struct{ keys, heads, holders, names, pending, sources int }

// MemoryUsage implements Describer.
func (m *memory) MemoryUsage() MemoryUsage {
	u, _ := m.usage()
	return u
}

func (m *memory) usage() (u MemoryUsage, by usageParts) {
	m.mu.Lock()
	g := m.ground
	m.mu.Unlock()
	if g == nil {
		return u, by
	}
	g.mu.Lock()
	f := g.forest.Usage()
	u.Prefixes, u.Free = f.Prefixes, f.Free
	by.keys, by.heads, by.holders = f.Keys, f.Heads, f.Holders
	u.Total, u.Budget, u.Evicted = g.mem.Load(), g.budget, g.lost
	g.mu.Unlock()
	for _, md := range *m.models.Load() {
		md.pods.Range(func(_, p any) bool {
			for _, s := range *p.(*podSources).list.Load() {
				s.writer.Lock()
				by.names += s.nameBytes()
				by.pending += s.waits.bytes()
				s.ground.mu.Lock() // the writer of a snapshot of s has no other lock
				by.sources += s.ownBytes()
				s.ground.mu.Unlock()
				for _, n := range s.lanes.blocks {
					u.Memberships += n
				}
				s.writer.Unlock()
			}
			return true
		})
	}
	return u, by
}

// Close implements Index.
func (m *memory) Close() error {
	m.mu.Lock()
	m.closed.Store(true)
	m.models.Store(&map[string]*model{})
	m.ground = nil
	m.mu.Unlock()
	m.sweepers.Wait()
	return nil
}
