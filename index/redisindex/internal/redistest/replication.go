package redistest

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"
)

// Follow makes the server a replica of a master, and waits until it has the
// master's data. It is not for nodes of a cluster.
func (s *Server) Follow(tb testing.TB, master *Server) {
	tb.Helper()
	s.Do(tb, "REPLICAOF", "127.0.0.1", master.port)
	caughtUp(tb, master, s)
}

// Promote makes a replica a master, with the data that it has. A node of a cluster
// takes over the slots of its master, without asking the other nodes.
func (s *Server) Promote(tb testing.TB) {
	tb.Helper()
	if s.Info(tb, "cluster_enabled") == "1" {
		s.Do(tb, "CLUSTER", "FAILOVER", "TAKEOVER")
	} else {
		s.Do(tb, "REPLICAOF", "NO", "ONE")
	}
}

// CutReplication ends the replication from this master until a
// restart. The master acknowledges later writes, and no replica gets them. The
// replicas keep their data and answer.
func (s *Server) CutReplication(tb testing.TB) {
	tb.Helper()
	// A replica connects anew at once: the user that replicas connect as, the default
	// one, must not be allowed to synchronize.
	s.Do(tb, "ACL", "SETUSER", "default", "-psync", "-sync")
	s.Do(tb, "CLIENT", "KILL", "TYPE", "replica")
	eventually(tb, "replication cut", func(ctx context.Context) error {
		return s.has(ctx, "connected_slaves", "0")
	})
}

// killAfter cuts the replication from this master, calls lose, and kills the master.
// It returns the time in lose.
func (s *Server) killAfter(tb testing.TB, lose func()) time.Duration {
	tb.Helper()
	s.CutReplication(tb)
	begin := time.Now()
	lose()
	took := time.Since(begin)
	s.Kill(tb)
	return took
}

// refuseWrites has a master answer writes with NOREPLICAS. All writes that it
// acknowledged have a place in its replication when refuseWrites returns.
func (s *Server) refuseWrites(tb testing.TB) {
	tb.Helper()
	s.Set(tb, "min-replicas-to-write", 1000)
}

// takeWrites ends refuseWrites.
func (s *Server) takeWrites(tb testing.TB) {
	tb.Helper()
	s.Set(tb, "min-replicas-to-write", 0)
}

// has returns nil if a field of INFO has a value.
func (s *Server) has(ctx context.Context, field, want string) error {
	got, err := s.info(ctx, field)
	if err == nil && got != want {
		err = fmt.Errorf("%s at %s is %s, not %s", field, s.Addr(), got, want)
	}
	return err
}

// caughtUp waits until replicas have all that the master wrote before the call.
func caughtUp(tb testing.TB, master *Server, replicas ...*Server) {
	tb.Helper()
	want := offset(tb, master.Info(tb, "master_repl_offset"))
	for _, replica := range replicas {
		eventually(tb, "replica caught up", func(ctx context.Context) error {
			if err := replica.follows(ctx, master); err != nil {
				return err
			}
			if got := offset(tb, replica.Info(tb, "slave_repl_offset")); got < want {
				return fmt.Errorf("offset of the replica at %s is %d, of its master was %d", replica.Addr(), got, want)
			}
			return nil
		})
	}
}

// follows returns nil if the server is a replica of the master and connected to it.
func (s *Server) follows(ctx context.Context, master *Server) error {
	if err := s.has(ctx, "role", "slave"); err != nil {
		return err
	}
	if err := s.has(ctx, "master_port", strconv.Itoa(master.port)); err != nil {
		return err
	}
	return s.has(ctx, "master_link_status", "up")
}

func offset(tb testing.TB, value string) int {
	tb.Helper()
	n, err := strconv.Atoi(value)
	if err != nil {
		tb.Fatalf("redistest: offset of replication: %v", err)
	}
	return n
}
