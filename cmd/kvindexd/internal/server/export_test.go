package server

import (
	"strings"
	"time"
)

// Served returns the methods and paths of all endpoints, such as "get /healthz", and whether
// they are on the public address.
func (s *Server) Served() map[string]bool {
	served := make(map[string]bool)
	for _, e := range s.endpoints() {
		served[strings.ToLower(e.method)+" "+e.path] = e.public
	}
	return served
}

// InUse returns the bytes of the bodies that are in use, and the number of running requests.
func (s *Server) InUse() (bodies int64, working int) { return s.bodies.Load(), len(s.slots) }

// Every sets the time between two messages to a viewer.
func (s *Server) Every(d time.Duration) { s.every = d }

// SlowWrite sets the time after which a viewer that does not read is disconnected.
func (s *Server) SlowWrite(d time.Duration) { s.slow = d }

// The limits of /v1/watch and of sessions.
const (
	SessionTime = sessionTime
	MaxSessions = maxSessions
	MaxMessage  = maxMessage
	MaxViewers  = maxViewers
	MaxGone     = maxGone
)

var PageFiles = &pageFiles

// Viewers returns the number of viewers.
func (s *Server) Viewers() int64 { return s.viewers.Load() }
