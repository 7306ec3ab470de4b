package redisindex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

func startSentinel(tb testing.TB, g *redistest.SentinelServers, c redisindex.Config) *process {
	o := g.Options()
	o.ContextTimeoutEnabled = true
	return startWith(tb, redis.NewFailoverClient(o), c)
}

func startCluster(tb testing.TB, g *redistest.ClusterServers, c redisindex.Config) *process {
	o := g.Options()
	o.ContextTimeoutEnabled = true
	return startWith(tb, redis.NewClusterClient(o), c)
}

// watch has a reader look for rows with blocks that their engines do not hold, until it is stopped.
// The engines send nothing meanwhile.
func watch(t *testing.T, p *prompts, reader *process, engines []*engine) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			ask, cancel := context.WithTimeout(ctx, time.Second)
			if err := reader.overclaims(ask, p, engines...); err != nil {
				t.Error(err)
				cancel()
				return
			}
			cancel()
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// losing makes acknowledged Applies that get lost.
func losing(t *testing.T, p *prompts, writer *process, engines []*engine) {
	for i, e := range engines {
		from := e.version()
		switch i % 2 {
		case 0:
			e.clear()
		case 1:
			for _, path := range p.paths {
				e.drop(path[len(path)/2:])
			}
		}
		for v := from + 1; v <= e.version(); v++ {
			writer.must(t, e, v)
		}
	}
}

func TestSentinelLosesWrites(t *testing.T) {
	g := redistest.Sentinel(t, 2*lease)
	p, engines := newEngines(2)
	writer, reader := startSentinel(t, g, config), startSentinel(t, g, config)
	writer.feed(t, engines...)
	var end func()
	took := g.Failover(t, func() {
		losing(t, p, writer, engines)
		end = watch(t, p, reader, engines)
	})
	t.Logf("the failover took %v", took)
	eventually(t, "all is there again", func() error { return reader.equals(t.Context(), p, engines...) })
	end()
	wantTTLs(t, prefix, g.Master(t))
}

func TestClusterLosesWrites(t *testing.T) {
	g := redistest.Cluster(t, 3, 1)
	for _, key := range []string{prefix + "{m:" + model + "}r", prefix + "{0}x", prefix + "{1}x"} {
		t.Run(key, func(t *testing.T) {
			c := config
			c.Prefix = prefix + key[len(prefix):len(prefix)+3]
			p, engines := newEngines(2)
			writer, reader := startCluster(t, g, c), startCluster(t, g, c)
			writer.feed(t, engines...)
			must(t, reader.equals(t.Context(), p, engines...))
			slot := g.Slot(t, key)
			old := g.Master(t, slot)
			replica := g.Replicas(t, slot)[0]
			old.CutReplication(t)
			losing(t, p, writer, engines)
			end := watch(t, p, reader, engines)
			old.Kill(t)
			pass(lease + lease/10)
			replica.Promote(t)
			g.Elected(t, slot, old)
			within(t, 5*time.Second, "all is there again", func() error { return reader.equals(t.Context(), p, engines...) })
			end()
			g.Heal(t)
			wantTTLs(t, c.Prefix, g.Servers...)
		})
	}
}

// TestShardAway stops one of three shards.
func TestShardAway(t *testing.T) {
	g := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			c := config
			c.Prefix = how
			p, engines := newEngines(2)
			writer, reader := startCluster(t, g, c), startCluster(t, g, c)
			writer.feed(t, engines...)
			registry := g.Master(t, g.Slot(t, c.Prefix+"{m:"+model+"}r"))
			away := g.Servers[0]
			if away == registry {
				away = g.Servers[1]
			}
			if how == "killed" {
				away.Kill(t)
			} else {
				away.Stop(t)
			}
			failed, stale, fine := 0, 0, 0
			for began := time.Now(); time.Since(began) < 4*lease; {
				for prompt, path := range p.paths {
					const bound = 200 * time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), bound)
					began := time.Now()
					var m index.Matches
					rows, err := reader.ask(ctx, p, prompt, &m)
					cancel()
					if took := time.Since(began); *promises && took > 10*bound {
						t.Errorf("Match took %v", took)
					}
					if err != nil {
						failed++
						continue
					}
					for i, e := range engines {
						if prompt%2 != i%2 {
							continue
						}
						row := rows[e.src.Pod]
						if len(row.held) != len(path) {
							t.Errorf("prompt %d: %s has %d of %d", prompt, e.src.Pod, len(row.held), len(path))
						}
						if row.stale {
							stale++
						} else {
							fine++
						}
					}
				}
			}
			t.Logf("%d matches failed; rows: %d stale, %d not", failed, stale, fine)
			for _, e := range engines {
				e.clear()
				e.storeTo(0, len(p.paths[0]))
				for v := e.version() - 1; v <= e.version(); v++ {
					began := time.Now()
					if err := writer.do(t, e, v); err != nil && !errors.Is(err, sharedindex.ErrDelayed) {
						t.Error(err)
					} else if v == e.version() {
						t.Logf("Apply: %v", err)
					}
					if took := time.Since(began); *promises && took > 2*redisindex.DefaultTimeout+lease {
						t.Errorf("Apply took %v", took)
					}
				}
			}
			if how == "killed" {
				away.Restart(t)
			} else {
				away.Cont(t)
			}
			g.WaitOK(t)
			within(t, 10*time.Second, "all is there again", func() error { return reader.equals(t.Context(), p, engines...) })
			wantTTLs(t, c.Prefix, g.Servers...)
		})
	}
}

// TestSlotMoves moves a slot to another shard while writers and readers continue.
func TestSlotMoves(t *testing.T) {
	g := redistest.Cluster(t, 3, 0)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := startCluster(t, g, config), startCluster(t, g, config)
	writer.feed(t, e)
	rnd := rand.New(rand.NewPCG(5, 6))
	goOn := func(during string) {
		failed, delayed := 0, 0
		const events = 6
		for range events {
			e.act(rnd)
			if err := writer.do(t, e, e.version()); errors.Is(err, sharedindex.ErrDelayed) {
				delayed++
			} else if err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			if err := reader.overclaims(ctx, p, e); err != nil {
				t.Errorf("%s: %v", during, err)
			}
			var m index.Matches
			for prompt := range p.paths {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err := reader.ask(ctx, p, prompt, &m)
				cancel()
				if err != nil {
					if failed++; failed == 1 {
						t.Logf("%s: Match: %v", during, err)
					}
				}
			}
			cancel()
		}
		t.Logf("%s: %d of %d matches failed, %d of %d Applies were delayed", during, failed, events*len(p.paths), delayed, events)
	}
	registry := prefix + "{m:" + model + "}r"
	bucket := ""
	for _, s := range g.Servers {
		for _, key := range s.Client(t).Keys(t.Context(), prefix+"{*}0*").Val() {
			bucket = key
		}
	}
	for _, key := range []string{registry, bucket} {
		slot := g.Slot(t, key)
		from := g.Master(t, slot)
		to := g.Servers[0]
		if to == from {
			to = g.Servers[1]
		}
		fromID, toID := from.Do(t, "CLUSTER", "MYID"), to.Do(t, "CLUSTER", "MYID")
		to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
		from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
		host, port, _ := strings.Cut(to.Addr(), ":")
		_, err := strconv.Atoi(port)
		must(t, err)
		move := func(n int) {
			keys := from.Do(t, "CLUSTER", "GETKEYSINSLOT", slot, n).([]any)
			for _, k := range keys {
				from.Do(t, "MIGRATE", host, port, k, 0, 5000)
			}
		}
		goOn("before keys move")
		move(2)
		goOn("between")
		move(1000)
		goOn("after keys moved")
		move(1000)
		for _, s := range g.Servers {
			s.Do(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		}
		within(t, 10*time.Second, fmt.Sprintf("all is there after %q moved", key), func() error {
			return reader.equals(t.Context(), p, e)
		})
	}
	wantTTLs(t, prefix, g.Servers...)
}

// TestEviction evicts keys: figures are too low, and correct again later.
func TestEviction(t *testing.T) {
	for _, policy := range []string{"allkeys-random", "allkeys-lru"} {
		t.Run(policy, func(t *testing.T) {
			s := redistest.Standalone(t)
			p, engines := newEngines(2)
			writer, reader := start(t, s, config), start(t, s, config)
			writer.SetTTL(4 * time.Second)
			writer.feed(t, engines...)
			used, err := strconv.Atoi(s.Info(t, "used_memory"))
			must(t, err)
			s.Set(t, "maxmemory-policy", policy)
			s.Set(t, "maxmemory", used-10_000)
			low := false
			for began := time.Now(); time.Since(began) < 2*lease; {
				must(t, reader.overclaims(t.Context(), p, engines...))
				low = low || reader.equals(t.Context(), p, engines...) != nil
			}
			if !low {
				t.Error("nothing is missing")
			}
			s.Set(t, "maxmemory", 0)
			within(t, 8*time.Second, "all is there again", func() error { return reader.equals(t.Context(), p, engines...) })
			wantTTLs(t, prefix, s)
		})
	}
}
