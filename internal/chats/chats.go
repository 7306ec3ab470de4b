// Package chats has the chat templates of models, by the names of the models.
package chats

import (
	"context"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Models loads the chat.Model of each name at the first request for it. The zero value reads
// the local HuggingFace cache. It is safe for concurrent use. Do not copy it after its
// first use.
type Models struct {
	// Find returns the folder of a model. nil is the Find of a [tokenize.Hub]. Clients
	// choose the names, so Find must check them. Its context has the values of that of a
	// request, and never ends, because other requests may wait for the same model. If
	// 1,024 calls of Find hang, no other model is loaded.
	Find func(ctx context.Context, model string) (dir string, err error)
	// Options returns the chat.Options of a model. With nil they are zero for all models.
	Options func(model string) chat.Options

	now   func() time.Time // nil: time.Now; for tests
	mu    sync.Mutex       // guards loads
	loads map[string]*load
}

// A load is a model that is loaded, or being so.
type load struct {
	done  chan struct{} // closed when model and err are there
	model *chat.Model
	err   error
	used  time.Time // last; guarded by Models.mu
	ended time.Time // of an error; guarded by Models.mu
}

const (
	// maxModels is how many names are remembered. One that led to an error makes
	// room before a model, and the least recently used one before others.
	maxModels = 1024
	// maxName bounds a name, in bytes, as a tokenize.Pool does: clients choose names, and those
	// that led to an error are remembered too.
	maxName = 1 << 10
	// retry is how long an error stands for further attempts.
	retry = time.Second
)

// Model returns the Model of a name, and waits until it is loaded or ctx ends. The
// loading goes on without the caller, once for all callers that wait. After an error,
// calls return the same error for one second.
func (s *Models) Model(ctx context.Context, name string) (*chat.Model, error) {
	l, err := s.load(ctx, name)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return l.model, l.err
	}
}

// load returns the load of a name, which it begins if need be.
func (s *Models) load(ctx context.Context, name string) (*load, error) {
	if len(name) > maxName {
		return nil, fmt.Errorf("chat: a model's name of %d bytes: %w", len(name), fs.ErrInvalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, l := s.clock(), s.loads[name]
	if l != nil && (l.ended.IsZero() || now.Sub(l.ended) < retry) {
		l.used = now
		return l, nil
	}
	if s.loads == nil {
		s.loads = make(map[string]*load)
	}
	if l == nil && len(s.loads) >= maxModels && !s.evict() {
		return nil, fmt.Errorf("chat: %w: model %.100q is not loaded, and %d others are being loaded", tokenize.ErrBusy, name, maxModels)
	}
	l = &load{done: make(chan struct{}), used: now}
	s.loads[name] = l
	go s.fill(context.WithoutCancel(ctx), name, l)
	return l, nil
}

func (s *Models) clock() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

// evict forgets a name that is not being loaded, and reports whether there is one.
func (s *Models) evict() bool {
	var name string
	var worst *load
	for n, l := range s.loads {
		failed := !l.ended.IsZero()
		if !l.loading() && (worst == nil || failed && worst.ended.IsZero() || failed == !worst.ended.IsZero() && l.used.Before(worst.used)) {
			name, worst = n, l
		}
	}
	delete(s.loads, name)
	return worst != nil
}

func (l *load) loading() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

func (s *Models) read(ctx context.Context, name string) (*chat.Model, error) {
	find := s.Find
	if find == nil {
		find = tokenize.Hub{}.Find
	}
	dir, err := find(ctx, name)
	if err != nil {
		return nil, err
	}
	var o chat.Options
	if s.Options != nil {
		o = s.Options(name)
	}
	return chat.Load(dir, o)
}

// fill does a load and lets those go on who wait for it.
func (s *Models) fill(ctx context.Context, name string, l *load) {
	l.model, l.err = s.read(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.err != nil {
		l.ended = s.clock()
	}
	close(l.done)
}
