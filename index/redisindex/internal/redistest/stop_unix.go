//go:build unix

package redistest

import (
	"syscall"
	"testing"
)

// Stop halts the server with SIGSTOP. Its connections stay open and silent.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGSTOP)
	s.stopped.Store(true)
}

// Cont has a server that was stopped go on.
func (s *Server) Cont(tb testing.TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGCONT)
	s.stopped.Store(false)
}
