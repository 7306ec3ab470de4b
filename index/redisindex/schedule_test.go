package redisindex_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/sharedindex"
)

var (
	schedules = flag.Int("schedules", 8, "random schedules of faults of TestSchedules; long form: 40")
	seed      = flag.Uint64("seed", 0, "of the first schedule of TestSchedules; 0: a random one")
)

// TestSchedules has eight engines, two writers that both follow all of them, four readers, and faults.
//
// # What no row may claim
//
// The version of an engine is the number of events that it has sent. An Apply of event v that
// returns without an error acknowledges v. A Match begins at t0 and ends at t1. Let
//
//   - low be the least version that one of the writers had acknowledged last at t0: of
//     those that run, however slow or cut off they are, and of those that were killed less
//     than two leases ago. The row is of one of them.
//   - high be the version of the engine at t1: a version without a call of Apply yet cannot
//     be in any row.
//
// A row that is not stale claims no block that the engine did not hold in any of the versions
// from low to high. That of a new writer which begins with what the engine has in version v
// counts as having acknowledged v, and that of one which begins with the first event as having
// acknowledged 0.
//
// # What the end must be
//
// When the engines are silent, and the faults over, all rows become exact and not stale.
func TestSchedules(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-schedules %d -seed %d", *schedules, *seed)
	a, b := withLogin(t), withLogin(t)
	b.Follow(t, a)
	servers := [2]*redistest.Server{a, b}
	saw := &sightings{faults: make(map[string]int)}
	began := time.Now()
	for i := range *schedules {
		if !t.Run(strconv.FormatUint(*seed+uint64(i), 10), func(t *testing.T) {
			s := &schedule{T: t, rnd: rand.New(rand.NewPCG(*seed+uint64(i), 25)), saw: saw, servers: servers}
			s.run()
			servers = s.servers
		}) {
			break
		}
	}
	t.Logf("%d schedules took %v", *schedules, time.Since(began).Round(time.Second))
	t.Logf("faults: %v", saw.faults)
	t.Logf("%d matches, %d failed; rows: %d not stale, %d stale; %d claims",
		saw.matches.Load(), saw.errors.Load(), saw.rows.Load(), saw.stale.Load(), saw.claims.Load())
	t.Logf("Applies: %d acknowledged, %d delayed", saw.acknowledged.Load(), saw.delayed.Load())
	if t.Failed() {
		return
	}
	for _, f := range faults {
		if n := saw.faults[f.name]; n < *schedules/2 {
			t.Errorf("%s: only %d times", f.name, n)
		}
	}
	n := int64(*schedules)
	for what, enough := range map[string]bool{
		"matches": saw.matches.Load() >= 500*n, "rows": saw.rows.Load() >= 1000*n, "stale rows": saw.stale.Load() >= 50*n,
		"acknowledged": saw.acknowledged.Load() >= 500*n, "delayed": saw.delayed.Load() >= n/8,
	} {
		if !enough {
			t.Errorf("too few %s", what)
		}
	}
}

// sightings counts cases.
type sightings struct {
	faults                               map[string]int
	matches, errors, rows, stale, claims atomic.Int64
	acknowledged, delayed                atomic.Int64
}

// schedule is a run with faults.
type schedule struct {
	*testing.T
	rnd     *rand.Rand // for the test's goroutine
	saw     *sightings
	servers [2]*redistest.Server // the first is the master
	prefix  string

	prompts *prompts
	engines []*engine
	proxies []*faultproxy.Proxy // of the writers, then of the readers
	readers []*process

	mu      sync.Mutex // guards writers
	writers []*follower
	running sync.WaitGroup // followers
}

// follower is a writer that applies all events of the engines.
type follower struct {
	*process
	proxyAt int
	stop    context.CancelFunc
	first   []int          // by engine: its first version
	acked   []atomic.Int64 // by engine: the last acknowledged version
	applied []atomic.Int64 // by engine: the last applied version, maybe delayed
	killed  atomic.Int64   // when; 0: it lives
}

// faults are the faults of a schedule, in any order. They report whether the fault took place.
var faults = []struct {
	name string
	do   func(*schedule) bool
}{
	{"kill", (*schedule).kill},
	{"pause", (*schedule).pause},
	{"failover", (*schedule).failover},
	{"failover with losses", (*schedule).lossyFailover},
	{"flush", (*schedule).flush},
	{"eviction", (*schedule).evict},
	{"cut", (*schedule).cut},
	{"password changed", (*schedule).changePassword},
	{"user disabled", (*schedule).disableUser},
	{"connections refused", (*schedule).refuse},
}

func (s *schedule) run() {
	s.servers[0].Do(s, "FLUSHALL")
	s.prefix = fmt.Sprintf("s%d:", prefixes.Add(1))
	s.prompts = newPrompts(s.rnd, 10, 90)
	for i := range 8 {
		s.engines = append(s.engines, newEngine(s.prompts, fmt.Sprint("pod", i)))
	}
	for range 6 {
		proxy, err := faultproxy.Listen(s.servers[0].Addr())
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { proxy.Close() })
		s.proxies = append(s.proxies, proxy)
	}
	for i := range 2 {
		s.follow(i, false)
	}
	ctx, end := context.WithCancel(s.Context())
	var asking, sending sync.WaitGroup
	for i := range 4 {
		reader := startBehind(s, s.proxies[2+i], redisindex.Config{Prefix: s.prefix}, login...)
		s.readers = append(s.readers, reader)
		for range 2 {
			rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), 1))
			asking.Go(func() { s.read(ctx, reader, rnd) })
		}
	}
	sent, silence := context.WithCancel(s.Context())
	rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), 2))
	sending.Go(func() { s.send(sent, rnd) })
	defer func() {
		silence()
		end()
		sending.Wait()
		asking.Wait()
		for _, w := range s.all() {
			w.stop()
		}
		s.running.Wait()
	}()

	for _, i := range s.rnd.Perm(len(faults)) {
		pass(time.Duration(s.rnd.Int64N(int64(2 * lease))))
		if faults[i].do(s) {
			s.saw.faults[faults[i].name]++
		}
		if s.Failed() {
			s.Logf("after a %s", faults[i].name)
			return
		}
	}
	silence()
	sending.Wait()
	eventually(s, "the writers are done", func() error {
		for _, w := range s.living() {
			for i, e := range s.engines {
				if got := w.applied[i].Load(); got < int64(e.version()) {
					return fmt.Errorf("writer %d: %s: %d of %d", w.proxyAt, e.src.Pod, got, e.version())
				}
			}
		}
		return nil
	})
	for i, r := range s.readers {
		eventually(s, fmt.Sprintf("reader %d equals the engines", i), func() error {
			ctx, cancel := context.WithTimeout(s.Context(), patience)
			defer cancel()
			return r.equals(ctx, s.prompts, s.engines...)
		})
	}
	wantTTLs(s, s.prefix, s.servers[0])
}

// send makes the engines send events.
func (s *schedule) send(ctx context.Context, rnd *rand.Rand) {
	tick := time.NewTicker(8 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.engines[rnd.IntN(len(s.engines))].act(rnd)
		}
	}
}

// follow starts a writer. With late the engines have blocks: it begins with a report of them, or
// with their first event.
func (s *schedule) follow(at int, late bool) {
	w := &follower{
		process: startBehind(s, s.proxies[at], redisindex.Config{Prefix: s.prefix, Timeout: 2 * lease}, login...),
		proxyAt: at, first: make([]int, len(s.engines)), acked: make([]atomic.Int64, len(s.engines)), applied: make([]atomic.Int64, len(s.engines)),
	}
	w.SetTTL(4 * time.Second)
	ctx, stop := context.WithCancel(s.Context())
	w.stop = stop
	reports := make([][]index.Change, len(s.engines))
	if late && s.rnd.IntN(3) > 0 {
		for i, e := range s.engines {
			w.first[i], reports[i] = e.report()
			w.acked[i].Store(int64(w.first[i]))
		}
	}
	s.mu.Lock()
	s.writers = append(s.writers, w)
	s.mu.Unlock()
	for i, e := range s.engines {
		s.running.Go(func() { s.feed(ctx, w, i, e, reports[i]) })
	}
}

// feed applies the events of an engine.
func (s *schedule) feed(ctx context.Context, w *follower, i int, e *engine, report []index.Change) {
	version := w.first[i]
	for changes := report; ; {
		if changes != nil {
			done, err := w.Apply(ctx, e.src, e.cursor(version), changes)
			switch {
			case err == nil && !done.Duplicate:
				w.acked[i].Store(int64(version))
				s.saw.acknowledged.Add(1)
			case ctx.Err() != nil:
				return
			case errors.Is(err, sharedindex.ErrDelayed):
				s.saw.delayed.Add(1)
			default:
				s.Errorf("writer %d: %s: event %d: %v, duplicate %v", w.proxyAt, e.src.Pod, version, err, done.Duplicate)
				return
			}
			w.applied[i].Store(int64(version))
		}
		version++
		var err error
		if changes, err = e.event(ctx, version); err != nil {
			return
		}
	}
}

// all returns all writers, killed ones too.
func (s *schedule) all() []*follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writers)
}

func (s *schedule) living() []*follower {
	return slices.DeleteFunc(s.all(), func(w *follower) bool { return w.killed.Load() != 0 })
}

// read matches prompts and checks the answers.
func (s *schedule) read(ctx context.Context, r *process, rnd *rand.Rand) {
	var m index.Matches
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && !s.Failed() {
		<-tick.C
		prompt := rnd.IntN(len(s.prompts.paths))
		low, writers := s.low()
		ask, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		rows, err := r.ask(ask, s.prompts, prompt, &m)
		cancel()
		s.saw.matches.Add(1)
		if err != nil {
			s.saw.errors.Add(1)
			continue
		}
		for _, w := range s.all()[writers:] {
			for i := range low {
				low[i] = min(low[i], w.first[i])
			}
		}
		for i, e := range s.engines {
			row, ok := rows[e.src.Pod]
			switch {
			case !ok:
				continue
			case row.stale:
				s.saw.stale.Add(1)
				continue
			}
			s.saw.rows.Add(1)
			high := e.version()
			for at := range row.held {
				s.saw.claims.Add(1)
				if !e.heldBetween(at, low[i], high) {
					s.Errorf("%s: prompt %d: a row claims block %d, which was not held in versions %d to %d, but in %v",
						e.src.Pod, prompt, slices.Index(s.prompts.paths[prompt], at), low[i], high, e.spansOf(at))
					return
				}
			}
		}
	}
}

// low returns for each engine the oldest version that rows of the present writers may have, and the
// number of these writers.
func (s *schedule) low() (low []int, writers int) {
	low = make([]int, len(s.engines))
	for i, e := range s.engines {
		low[i] = e.version()
	}
	all := s.all()
	for _, w := range all {
		if killed := w.killed.Load(); killed != 0 && time.Since(time.UnixMilli(killed)) > 2*lease {
			continue
		}
		for i := range low {
			low[i] = min(low[i], int(w.acked[i].Load()))
		}
	}
	return low, len(all)
}

// some returns a living writer.
func (s *schedule) some() *follower {
	all := s.living()
	return all[s.rnd.IntN(len(all))]
}

// kill kills a writer, and later starts another one in its place.
func (s *schedule) kill() bool {
	w := s.some()
	w.kill()
	w.stop()
	w.killed.Store(time.Now().UnixMilli())
	pass(time.Duration(s.rnd.Int64N(int64(3 * lease))))
	s.follow(w.proxyAt, true)
	return true
}

// pause delays a writer's bytes for more than a lease. Meanwhile the writer may open other
// connections or be killed.
func (s *schedule) pause() bool {
	w := s.some()
	held := w.proxy.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up, After: 1 + s.rnd.IntN(2000)})
	w.proxy.Refuse(s.rnd.IntN(3) > 0)
	defer w.proxy.Refuse(false)
	for _, e := range s.engines { // rows are delayed too, and others are written then
		w.Publish(e.src, []byte(strconv.Itoa(s.rnd.IntN(1000))))
	}
	select {
	case <-held.Fired():
	case <-time.After(2 * time.Second):
		held.Disarm()
		return false
	}
	pass(lease + lease/2 + time.Duration(s.rnd.Int64N(int64(lease))))
	for _, e := range s.engines[:4] {
		e.clear() // buckets still have blocks that rows must no longer name
	}
	pass(time.Duration(s.rnd.Int64N(int64(lease / 10))))
	if s.rnd.IntN(4) > 0 {
		held.Release()
		return true
	}
	w.kill()
	w.stop()
	held.Release()
	w.killed.Store(time.Now().UnixMilli())
	w.proxy.Refuse(false)
	s.follow(w.proxyAt, true)
	return true
}

// redirect moves all clients to the former replica.
func (s *schedule) redirect() {
	s.servers[0], s.servers[1] = s.servers[1], s.servers[0]
	for _, proxy := range s.proxies {
		proxy.Redirect(s.servers[0].Addr())
		proxy.Cut()
	}
}

// caughtUp waits until the replica has the master's data.
func (s *schedule) caughtUp() {
	want, _ := strconv.Atoi(s.servers[0].Info(s, "master_repl_offset"))
	eventually(s, "the replica has everything", func() error {
		if got, _ := strconv.Atoi(s.servers[1].Info(s, "slave_repl_offset")); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// failover loses nothing.
func (s *schedule) failover() bool {
	old := s.servers[0]
	old.Set(s, "min-replicas-to-write", 1000)
	s.caughtUp()
	s.servers[1].Promote(s)
	s.redirect()
	old.Follow(s, s.servers[0])
	old.Set(s, "min-replicas-to-write", 0)
	return true
}

// lossyFailover loses the last acknowledged writes. It takes longer than a lease.
func (s *schedule) lossyFailover() bool {
	old := s.servers[0]
	s.caughtUp()
	old.CutReplication(s)
	pass(time.Duration(s.rnd.Int64N(int64(2 * lease))))
	old.Kill(s)
	pass(lease + lease/10)
	s.servers[1].Promote(s)
	s.redirect()
	pass(time.Duration(s.rnd.Int64N(int64(lease))))
	old.RestartEmpty(s)
	old.Follow(s, s.servers[0])
	return true
}

func (s *schedule) flush() bool {
	s.servers[0].Do(s, "FLUSHALL")
	return true
}

// evict evicts some keys of the server.
func (s *schedule) evict() bool {
	m := s.servers[0]
	before := m.Info(s, "evicted_keys")
	used, _ := strconv.Atoi(m.Info(s, "used_memory"))
	m.Set(s, "maxmemory-policy", []string{"allkeys-random", "allkeys-lru", "volatile-ttl"}[s.rnd.IntN(3)])
	m.Set(s, "maxmemory", used-20_000-s.rnd.IntN(60_000))
	pass(time.Duration(s.rnd.Int64N(int64(lease))))
	m.Set(s, "maxmemory", 0)
	return m.Info(s, "evicted_keys") != before
}

// cut closes connections, some in mid-message.
func (s *schedule) cut() bool {
	for _, proxy := range s.proxies {
		switch s.rnd.IntN(3) {
		case 0:
			proxy.Cut()
		case 1:
			way := []faultproxy.Direction{faultproxy.Up, faultproxy.Down}[s.rnd.IntN(2)]
			proxy.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: way, After: 1 + s.rnd.IntN(3000)})
		}
	}
	return true
}

// refusedFor is how long Redis refuses new connections.
func (s *schedule) refusedFor() time.Duration { return time.Duration(s.rnd.Int64N(int64(2 * lease))) }

func (s *schedule) changePassword() bool {
	setLogin(s, s.servers[0], "resetpass", ">another")
	pass(s.refusedFor())
	setLogin(s, s.servers[0], "resetpass", ">"+login[1])
	return true
}

func (s *schedule) disableUser() bool {
	setLogin(s, s.servers[0], "off")
	pass(s.refusedFor())
	setLogin(s, s.servers[0], "on")
	return true
}

// refuse puts a refusing proxy before Redis for some processes.
func (s *schedule) refuse() bool {
	addr := refuser(s, refusals[s.rnd.IntN(len(refusals))])
	var refused []*faultproxy.Proxy
	for _, i := range s.rnd.Perm(len(s.proxies))[:1+s.rnd.IntN(len(s.proxies))] {
		refused = append(refused, s.proxies[i])
	}
	for _, proxy := range refused {
		proxy.Redirect(addr)
		proxy.Cut()
	}
	pass(s.refusedFor())
	for _, proxy := range refused {
		proxy.Redirect(s.servers[0].Addr())
		proxy.Cut()
	}
	return true
}
