//go:build !unix

package redistest

import "testing"

// Stop skips the test: this system has no SIGSTOP.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	tb.Skip("redistest: no SIGSTOP on this system")
}

// Cont does nothing: nothing was stopped.
func (s *Server) Cont(testing.TB) {}
