package chats

import "time"

const MaxModels = maxModels

func (s *Models) Remembered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.loads)
}

// SetNow sets the clock of s.
func (s *Models) SetNow(now func() time.Time) { s.now = now }
