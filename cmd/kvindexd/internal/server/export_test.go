package server

import "strings"

// Served returns the methods and paths of all endpoints, such as "get /healthz", and whether
// they are on the public address.
func (s *Server) Served() map[string]bool {
	served := make(map[string]bool)
	for _, e := range s.endpoints() {
		served[strings.ToLower(e.method)+" "+e.path] = e.public
	}
	return served
}

// InUse returns what requests hold now: bytes of bodies, and places of work.
func (s *Server) InUse() (bodies int64, working int) { return s.bodies.Load(), len(s.slots) }
