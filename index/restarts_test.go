package index_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/trace"
)

// restarts is a Memory that is at times replaced by its snapshot before an Apply.
type restarts struct {
	tb    testing.TB
	c     indextest.Config
	every int // Applies until the next restart, doubled by each

	mu     sync.RWMutex
	m      inmemory.Memory
	closed bool

	count         sync.Mutex
	applies, next int
}

// restart restores the index from its snapshot.
func (r *restarts) restart() {
	if !r.mu.TryLock() { // a Match calls Apply
		return
	}
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	var sections [][]byte
	err := r.m.Snapshot(context.Background(), func(section []byte) error {
		sections = append(sections, slices.Clone(section))
		return nil
	}, func(_ string, last func() error) error { return last() })
	if errors.Is(err, index.ErrFull) && r.c.Bytes > 0 {
		return
	}
	if err != nil {
		r.tb.Error(err)
		return
	}
	m := newBound(r.tb, r.m.Seed(), r.c)
	err = m.Restore(context.Background(), func() ([]byte, error) {
		if len(sections) == 0 {
			return nil, io.EOF
		}
		s := sections[0]
		sections = sections[1:]
		return s, nil
	})
	if err != nil {
		r.tb.Error(err)
		return
	}
	r.m.Close()
	r.m = m
}

func (r *restarts) now() inmemory.Memory {
	r.mu.RLock()
	return r.m
}

func (r *restarts) Seed() [16]byte {
	defer r.mu.RUnlock()
	return r.now().Seed()
}

func (r *restarts) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	r.count.Lock()
	n := r.applies
	r.applies++
	due := n < 30 && n%3 > 0 || n >= r.next
	if n >= r.next {
		r.next = n + max(r.every, n)
	}
	r.count.Unlock()
	if due {
		r.restart()
	}
	defer r.mu.RUnlock()
	return r.now().Apply(ctx, src, cur, changes)
}

func (r *restarts) Cursor(ctx context.Context, src index.Source, stream string) (index.Cursor, error) {
	defer r.mu.RUnlock()
	return r.now().Cursor(ctx, src, stream)
}

func (r *restarts) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	defer r.mu.RUnlock()
	return r.now().Match(ctx, q, m)
}

func (r *restarts) Remove(ctx context.Context, pod string) error {
	defer r.mu.RUnlock()
	return r.now().Remove(ctx, pod)
}

func (r *restarts) RemoveSource(ctx context.Context, src index.Source) error {
	defer r.mu.RUnlock()
	return r.now().RemoveSource(ctx, src)
}

func (r *restarts) Explain(ctx context.Context, src index.Source, b inmemory.Block) (trace.Trace, error) {
	defer r.mu.RUnlock()
	return r.now().Explain(ctx, src, b)
}

func (r *restarts) Describe(dst []index.SourceInfo) []index.SourceInfo {
	defer r.mu.RUnlock()
	return r.now().Describe(dst)
}

func (r *restarts) DescribeSource(src index.Source) (index.SourceInfo, bool) {
	defer r.mu.RUnlock()
	return r.now().DescribeSource(src)
}

func (r *restarts) MemoryUsage() index.MemoryUsage {
	defer r.mu.RUnlock()
	return r.now().MemoryUsage()
}

func (r *restarts) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.m.Close()
}

// TestMemoryRestarts: an index that is restored repeatedly passes the suite: it answers, counts and
// describes as without restarts.
func TestMemoryRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite's index is not restarted: -short")
	}
	indextest.Run(t, func(tb testing.TB, c indextest.Config) index.Index {
		return &restarts{tb: tb, c: c, every: 197, m: newBound(tb, [16]byte{}, c)}
	})
}
