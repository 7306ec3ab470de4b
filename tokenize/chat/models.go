package chat

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvindex/kvindex/tokenize"
)

// Models are the models of a fleet, each loaded when it is first asked for. The zero
// Models reads the local HuggingFace cache. It is safe for concurrent use, and not
// copied after its first use.
type Models struct {
	// Find returns the folder of a model; nil: that of a [tokenize.Hub]. It is
	// called for any name that a client sends.
	Find func(ctx context.Context, model string) (dir string, err error)
	// Options are those of a model; nil: the zero Options for all.
	Options func(model string) Options

	now   func() time.Time // nil: time.Now; for tests
	mu    sync.Mutex       // guards loads
	loads map[string]*load
}

// A load is a model that is loaded, or being so.
type load struct {
	done  chan struct{} // closed when model and err are there
	model *Model
	err   error
	used  time.Time // last; guarded by Models.mu
	ended time.Time // of an error; guarded by Models.mu
}

const (
	// maxModels is how many names are remembered. One that led to an error makes
	// room before a model, and what was not used for the longest before others.
	maxModels = 1024
	// retry is how long an error stands for further attempts.
	retry = time.Second
)

// Model returns a model by its name. It loads it at most once at a time, and waits
// for that within ctx; an error is remembered for a second.
func (s *Models) Model(ctx context.Context, name string) (*Model, error) {
	for { // until a load ends otherwise than by its own caller's context
		l, first := s.load(name, s.clock())
		if first {
			s.fill(ctx, name, l)
			return l.model, l.err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.done:
		}
		if !ended(l.err) {
			return l.model, l.err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// load returns the load of a name, and whether it is the caller's to do.
func (s *Models) load(name string, now time.Time) (l *load, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.loads[name]; l != nil && (l.ended.IsZero() || now.Sub(l.ended) < retry) {
		l.used = now
		return l, false
	}
	if s.loads == nil {
		s.loads = make(map[string]*load)
	}
	if l == nil && len(s.loads) >= maxModels {
		s.evict()
	}
	l = &load{done: make(chan struct{}), used: now}
	s.loads[name] = l
	return l, true
}

func (s *Models) clock() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

// evict forgets a name.
func (s *Models) evict() {
	var name string
	var worst *load
	for n, l := range s.loads {
		failed := !l.ended.IsZero()
		if worst == nil || failed && worst.ended.IsZero() || failed == !worst.ended.IsZero() && l.used.Before(worst.used) {
			name, worst = n, l
		}
	}
	delete(s.loads, name)
}

func (s *Models) read(ctx context.Context, name string) (*Model, error) {
	find := s.Find
	if find == nil {
		find = tokenize.Hub{}.Find
	}
	dir, err := find(ctx, name)
	if err != nil {
		return nil, err
	}
	var o Options
	if s.Options != nil {
		o = s.Options(name)
	}
	return Load(dir, o)
}

// fill does a load and lets those go on who wait for it. That a context ended is
// nobody else's error.
func (s *Models) fill(ctx context.Context, name string, l *load) {
	l.err = errors.New("chat: Find or Options did not return")
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.err != nil {
			l.ended = s.clock()
		}
		if ended(l.err) && s.loads[name] == l {
			delete(s.loads, name)
		}
		close(l.done)
	}()
	l.model, l.err = s.read(ctx, name)
}

// ended tells whether err is that of a context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
