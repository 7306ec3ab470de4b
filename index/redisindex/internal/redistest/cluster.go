package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// ClusterServers are the nodes of a cluster.
type ClusterServers struct {
	Servers []*Server
}

// Cluster starts masters with so many replicas each, and waits until all nodes serve
// all slots. The arguments are those of the nodes, as for Standalone;
// "--cluster-node-timeout" is 1000 ms by default.
func Cluster(tb testing.TB, masters, replicas int, args ...string) *ClusterServers {
	tb.Helper()
	c := &ClusterServers{}
	args = append([]string{
		"--cluster-enabled", "yes",
		"--cluster-config-file", nodesFile,
		"--cluster-node-timeout", "1000",
		"--cluster-replica-validity-factor", "0", // promotable after any time without a master
		"--cluster-allow-replica-migration", "no",
	}, args...)
	for range masters * (1 + replicas) {
		c.Servers = append(c.Servers, Standalone(tb, args...))
	}
	ids := make([]any, masters)
	for i, s := range c.Servers {
		s.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		for _, other := range c.Servers[:i] {
			s.Do(tb, "CLUSTER", "MEET", "127.0.0.1", other.port)
		}
		if i < masters {
			ids[i] = s.Do(tb, "CLUSTER", "MYID")
			add := []any{"CLUSTER", "ADDSLOTS"}
			for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
				add = append(add, slot)
			}
			s.Do(tb, add...)
		}
	}
	for i, s := range c.Servers[masters:] {
		eventually(tb, "replica of a cluster", func(ctx context.Context) error {
			_, err := s.do(ctx, "CLUSTER", "REPLICATE", ids[i%masters])
			return err
		})
	}
	c.WaitOK(tb)
	for i, s := range c.Servers[masters:] {
		caughtUp(tb, c.Servers[i%masters], s)
	}
	return c
}

// Addrs returns the host and port of each node.
func (c *ClusterServers) Addrs() []string {
	addrs := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Options returns what redis.NewClusterClient needs.
func (c *ClusterServers) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{Addrs: c.Addrs()}
}

// Slot returns the slot of a key.
func (c *ClusterServers) Slot(tb testing.TB, key string) int {
	tb.Helper()
	for _, s := range running(c.Servers) {
		return int(s.Do(tb, "CLUSTER", "KEYSLOT", key).(int64))
	}
	tb.Fatal("redistest: no node of the cluster runs")
	return 0
}

// Master waits until all nodes that run name the same node as the master of a slot,
// and returns it. The node itself may be dead.
func (c *ClusterServers) Master(tb testing.TB, slot int) *Server {
	tb.Helper()
	var master *Server
	eventually(tb, fmt.Sprintf("one master of slot %d", slot), func(ctx context.Context) (err error) {
		master, err = c.master(ctx, slot)
		return err
	})
	return master
}

func (c *ClusterServers) master(ctx context.Context, slot int) (*Server, error) {
	var master *Server
	for _, s := range running(c.Servers) {
		named, err := c.namedBy(ctx, s, slot)
		if err != nil {
			return nil, err
		}
		if master != nil && named != master {
			return nil, fmt.Errorf("slot %d belongs to %s according to %s, and to %s according to others",
				slot, named.Addr(), s.Addr(), master.Addr())
		}
		master = named
	}
	if master == nil {
		return nil, errors.New("no node of the cluster runs")
	}
	return master, nil
}

// namedBy returns the master of a slot according to one node.
func (c *ClusterServers) namedBy(ctx context.Context, s *Server, slot int) (*Server, error) {
	ranges, err := c.rangesBy(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if r.first <= slot && slot <= r.last {
			return r.master, nil
		}
	}
	return nil, fmt.Errorf("slot %d belongs to nobody according to %s", slot, s.Addr())
}

// slotRange is the slots from first to last, and the node that serves them.
type slotRange struct {
	first, last int
	master      *Server
}

// rangesBy returns who serves which slots according to one node. It asks with CLUSTER
// SLOTS: before 7.0 there is no CLUSTER SHARDS.
func (c *ClusterServers) rangesBy(ctx context.Context, s *Server) ([]slotRange, error) {
	answer, err := s.do(ctx, "CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	rows, _ := answer.([]any)
	var ranges []slotRange
	for _, row := range rows {
		fields, _ := row.([]any) // first, last, the master, its replicas
		if len(fields) < 3 {
			return nil, fmt.Errorf("CLUSTER SLOTS at %s has the row %v", s.Addr(), row)
		}
		first, _ := fields[0].(int64)
		last, _ := fields[1].(int64)
		node, _ := fields[2].([]any) // host, port, id
		if len(node) < 2 {
			return nil, fmt.Errorf("CLUSTER SLOTS at %s has the node %v", s.Addr(), fields[2])
		}
		master := byAddr(c.Servers, net.JoinHostPort(fmt.Sprint(node[0]), fmt.Sprint(node[1])))
		if master == nil {
			return nil, fmt.Errorf("CLUSTER SLOTS at %s has the strange node %v", s.Addr(), node)
		}
		ranges = append(ranges, slotRange{int(first), int(last), master})
	}
	return ranges, nil
}

// Replicas returns the nodes that run and are replicas of the master of a slot.
func (c *ClusterServers) Replicas(tb testing.TB, slot int) []*Server {
	tb.Helper()
	var replicas []*Server
	port := strconv.Itoa(c.Master(tb, slot).port)
	for _, s := range running(c.Servers) {
		if s.Info(tb, "role") == "slave" && s.Info(tb, "master_port") == port {
			replicas = append(replicas, s)
		}
	}
	return replicas
}

// WaitOK waits until all nodes that run say that the cluster is ok, and know all
// nodes.
func (c *ClusterServers) WaitOK(tb testing.TB) {
	tb.Helper()
	eventually(tb, "cluster ok", func(ctx context.Context) error {
		for _, s := range running(c.Servers) {
			answer, err := s.do(ctx, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			state, _ := fieldOf(answer, "cluster_state")
			known, _ := fieldOf(answer, "cluster_known_nodes")
			if state != "ok" || known != strconv.Itoa(len(c.Servers)) {
				return fmt.Errorf("the node at %s says %s, and knows %s nodes", s.Addr(), state, known)
			}
		}
		return nil
	})
}

// Failover has a replica of the master of a slot take over, and waits until all nodes
// know that and say that the cluster is ok. It returns how long that took, without
// the time in lose.
//
// With lose nil nothing is lost that a master acknowledged: the old master refuses
// writes with NOREPLICAS from when the replicas have everything until it is a replica
// itself.
//
// Otherwise the replication from the master is cut, then lose is called, and then the
// master is killed. All that the master acknowledged before the call of Failover is
// kept, and all that it acknowledged during lose is lost.
//
// No node votes, because the nodes vote about a master once in two node timeouts. For
// an election call CutReplication and Kill on the master, and then Elected.
func (c *ClusterServers) Failover(tb testing.TB, slot int, lose func()) time.Duration {
	tb.Helper()
	old := c.Master(tb, slot)
	replicas := c.Replicas(tb, slot)
	if len(replicas) == 0 {
		tb.Fatalf("redistest: the master of slot %d has no replica", slot)
	}
	begin := time.Now()
	if lose == nil {
		old.refuseWrites(tb)
		caughtUp(tb, old, replicas...)
	} else {
		caughtUp(tb, old, replicas...)
		begin = begin.Add(old.killAfter(tb, lose))
	}
	replicas[0].Promote(tb)
	c.Elected(tb, slot, old)
	took := time.Since(begin)
	if lose == nil {
		eventually(tb, "the old master is a replica", func(ctx context.Context) error {
			err := old.follows(ctx, replicas[0])
			if err != nil && replicas[0].has(ctx, "role", "slave") == nil { // both had one epoch, and the old master stayed
				_, _ = replicas[0].do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER")
			}
			return err
		})
		old.takeWrites(tb)
	}
	return took
}

// Elected waits until a slot has another master than old, and all nodes that run know
// it and say that the cluster is ok. It returns that master.
func (c *ClusterServers) Elected(tb testing.TB, slot int, old *Server) *Server {
	tb.Helper()
	var master *Server
	eventually(tb, "election", func(ctx context.Context) (err error) {
		master, err = c.master(ctx, slot)
		if err == nil && master == old {
			err = fmt.Errorf("the master of slot %d is still %s", slot, old.Addr())
		}
		return err
	})
	c.WaitOK(tb)
	return master
}

// Heal starts the nodes that do not run, and waits until the cluster is ok and each
// of those nodes is a replica, or a master as before if nobody took its place.
func (c *ClusterServers) Heal(tb testing.TB) {
	tb.Helper()
	for _, s := range c.Servers {
		if !s.up() {
			s.Restart(tb)
		}
	}
	c.WaitOK(tb)
	eventually(tb, "replicas connected", func(ctx context.Context) error {
		for _, s := range c.Servers {
			if role, err := s.info(ctx, "role"); err != nil {
				return err
			} else if role == "slave" {
				err = s.has(ctx, "master_link_status", "up")
				if err != nil {
					return err
				}
			} else if serves, err := c.serves(ctx, s); err != nil {
				return err
			} else if !serves {
				return fmt.Errorf("the node at %s is a master without slots", s.Addr())
			}
		}
		return nil
	})
}

// serves reports whether a node is the master of a slot, according to all nodes.
func (c *ClusterServers) serves(ctx context.Context, s *Server) (bool, error) {
	for _, node := range c.Servers {
		ranges, err := c.rangesBy(ctx, node)
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(ranges, func(r slotRange) bool { return r.master == s }) {
			return false, nil
		}
	}
	return true, nil
}
