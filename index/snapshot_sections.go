package index

import "context"

// sections is the memory of a snapshot: the section in progress, and those that wait until
// they are written.
type sections struct {
	m     *memory
	g     *ground
	write func([]byte) error
	size  int // of a section
	most  int // sections that wait

	open       []byte // the section in progress
	full, free [][]byte
	taken      int // bytes of all
}

// ended returns the reason why a snapshot cannot go on, or nil.
func (s *sections) ended(ctx context.Context) error {
	if s.m.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// room begins another section if the open one has no room for some more bytes.
func (s *sections) room(ctx context.Context, bytes int) error {
	if err := s.ended(ctx); err != nil {
		return err
	}
	if len(s.open) == 0 || len(s.open)+bytes <= s.size {
		return nil
	}
	s.full, s.open = append(s.full, s.open), nil
	if len(s.free) == 0 && (len(s.full) >= s.most || !s.take()) {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	s.open, s.free = s.free[len(s.free)-1], s.free[:len(s.free)-1]
	return nil
}

// take takes memory for another section, if there is room for it.
func (s *sections) take() bool {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	ok := func() bool { return g.pages() > int64(s.size) }
	if s.taken == 0 { // the first section cannot be refused
		ok = func() bool { return g.budget-g.mem.Load() > g.slack/4+int64(s.size) }
	}
	if !g.makeRoom(nil, ok) {
		return false
	}
	g.addTables(s.size)
	s.taken += s.size
	s.free = append(s.free, make([]byte, 0, s.size))
	return true
}

// flush writes all sections that are full.
func (s *sections) flush(ctx context.Context) error {
	for len(s.full) > 0 {
		if err := s.ended(ctx); err != nil {
			return err
		}
		if err := s.write(s.full[0]); err != nil {
			return err
		}
		s.free = append(s.free, s.full[0][:0])
		s.full = s.full[1:]
	}
	return nil
}
