package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// masterName is what the sentinels call the master.
const masterName = "kvindex"

// SentinelServers are a master, two replicas, and three sentinels that watch them.
type SentinelServers struct {
	Servers   []*Server // the master and the replicas, in no order
	sentinels []*Server
}

// Sentinel starts a master, two replicas and three sentinels, and waits until all
// know each other. The first sentinel takes a server for dead that has not answered for
// downAfter, the others after half as much again each; 500 ms are enough unless the
// machine is busy. The arguments are those
// of the servers, as for Standalone.
func Sentinel(tb testing.TB, downAfter time.Duration, args ...string) *SentinelServers {
	tb.Helper()
	g := &SentinelServers{}
	for range 3 {
		g.Servers = append(g.Servers, Standalone(tb, args...))
	}
	master := g.Servers[0]
	for _, replica := range g.Servers[1:] {
		replica.Follow(tb, master)
	}
	for i := range 3 {
		// Sentinels that find the master dead at the same moment all stand for election,
		// each votes for itself, and nobody is elected.
		downAfter := downAfter + time.Duration(i)*downAfter/2
		g.sentinels = append(g.sentinels, startSentinel(tb, master, downAfter))
	}
	g.waitAgree(tb)
	return g
}

func startSentinel(tb testing.TB, master *Server, downAfter time.Duration) *Server {
	tb.Helper()
	config := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\n", masterName, master.port) +
		fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", masterName, downAfter.Milliseconds()) +
		fmt.Sprintf("sentinel failover-timeout %s 2000\n", masterName) +
		fmt.Sprintf("sentinel parallel-syncs %s 2\n", masterName)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatalf("redistest: configuration of a sentinel: %v", err)
	}
	s := start(tb, []string{config, "--sentinel"}, nil)
	// By default a sentinel looks for others every 2 s, and requests roles every 10 s.
	// Servers before 7.0 have no such command, and are slower. The ping period stays:
	// a replica whose role is older than five of them is not promoted, and while the
	// master is dead the sentinel requests roles once a second.
	_, _ = s.do(context.Background(), "SENTINEL", "DEBUG",
		"ask-period", 100, "info-period", 200, "publish-period", 200)
	return s
}

// Options returns what redis.NewFailoverClient needs.
func (g *SentinelServers) Options() *redis.FailoverOptions {
	o := &redis.FailoverOptions{MasterName: masterName}
	for _, s := range g.sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, s.Addr())
	}
	return o
}

// Master waits until the sentinels that run name the same master, and returns it.
func (g *SentinelServers) Master(tb testing.TB) *Server {
	tb.Helper()
	var master *Server
	eventually(tb, "one master", func(ctx context.Context) (err error) {
		master, err = g.master(ctx)
		return err
	})
	return master
}

func (g *SentinelServers) master(ctx context.Context) (*Server, error) {
	var master *Server
	for _, s := range running(g.sentinels) {
		answer, err := s.do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
		if err != nil {
			return nil, err
		}
		addr, _ := answer.([]any)
		if len(addr) != 2 {
			return nil, fmt.Errorf("the sentinel at %s answers %v", s.Addr(), answer)
		}
		named := byAddr(g.Servers, net.JoinHostPort(fmt.Sprint(addr[0]), fmt.Sprint(addr[1])))
		if named == nil || master != nil && named != master {
			return nil, fmt.Errorf("the sentinel at %s names %v", s.Addr(), addr)
		}
		master = named
	}
	if master == nil {
		return nil, fmt.Errorf("no sentinel runs")
	}
	return master, nil
}

// Replicas returns the servers that run, without the master.
func (g *SentinelServers) Replicas(tb testing.TB) []*Server {
	tb.Helper()
	master := g.Master(tb)
	return slices.DeleteFunc(running(g.Servers), func(s *Server) bool { return s == master })
}

// waitAgree waits until the sentinels that run know each other and all servers, name
// the same master, and the other servers that run are its replicas and connected.
func (g *SentinelServers) waitAgree(tb testing.TB) {
	tb.Helper()
	eventually(tb, "agreement of the sentinels", func(ctx context.Context) error {
		master, err := g.master(ctx)
		if err != nil {
			return err
		}
		if err := master.has(ctx, "role", "master"); err != nil {
			return err
		}
		for _, s := range running(g.Servers) {
			if s == master {
				continue
			}
			if err := s.follows(ctx, master); err != nil {
				return err
			}
		}
		for _, s := range running(g.sentinels) {
			if err := g.knows(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// knows returns nil if a sentinel knows all others and sees a healthy master.
func (g *SentinelServers) knows(ctx context.Context, s *Server) error {
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr(), DialerRetries: 1, MaxRetries: -1})
	defer client.Close()
	fields, err := client.Master(ctx, masterName).Result()
	if err != nil {
		return err
	}
	for field, want := range map[string]string{
		"flags":               "master",
		"num-slaves":          strconv.Itoa(len(g.Servers) - 1),
		"num-other-sentinels": strconv.Itoa(len(g.sentinels) - 1),
	} {
		if fields[field] != want {
			return fmt.Errorf("the sentinel at %s has %s %s, not %s", s.Addr(), field, fields[field], want)
		}
	}
	return nil
}

// Failover has the sentinels promote a replica, and waits until it takes writes. It
// returns how long that took, without the time in lose.
//
// With lose nil nothing is lost that a master acknowledged: the old master refuses
// writes with NOREPLICAS from when the replicas have everything until it is a
// replica itself.
//
// Otherwise the replication is cut, then lose is called, and then the master is
// killed. All that the master acknowledged before the call of Failover is kept, and
// all that it acknowledged during lose is lost.
func (g *SentinelServers) Failover(tb testing.TB, lose func()) time.Duration {
	tb.Helper()
	g.waitAgree(tb)
	old := g.Master(tb)
	replicas := g.Replicas(tb)
	begin := time.Now()
	if lose == nil {
		old.refuseWrites(tb)
		caughtUp(tb, old, replicas...)
		eventually(tb, "start of a failover", func(ctx context.Context) error {
			_, err := g.sentinels[0].do(ctx, "SENTINEL", "FAILOVER", masterName)
			return err
		})
	} else {
		caughtUp(tb, old, replicas...)
		begin = begin.Add(old.killAfter(tb, lose))
	}
	eventually(tb, "promotion", func(ctx context.Context) error {
		master, err := g.master(ctx)
		if err == nil && master == old {
			err = fmt.Errorf("the master is still %s", old.Addr())
		}
		if err == nil {
			_, err = master.do(ctx, "DEL", "no such key") // a write that changes nothing
		}
		return err
	})
	took := time.Since(begin)
	if lose == nil {
		old.Follow(tb, g.Master(tb))
		old.takeWrites(tb)
	}
	return took
}

// Heal starts servers and sentinels that do not run, the servers as replicas, and
// waits until all agree.
func (g *SentinelServers) Heal(tb testing.TB) {
	tb.Helper()
	for _, s := range g.sentinels {
		if !s.up() {
			s.Restart(tb)
		}
	}
	master := g.Master(tb)
	for _, s := range g.Servers {
		if s != master && !s.up() {
			s.restart(tb, "--replicaof", "127.0.0.1", strconv.Itoa(master.port))
		}
	}
	g.waitAgree(tb)
}

// running returns the servers that can answer.
func running(servers []*Server) []*Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return !s.up() })
}

func byAddr(servers []*Server, addr string) *Server {
	for _, s := range servers {
		if s.Addr() == addr {
			return s
		}
	}
	return nil
}
