package redisindex_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

const prefix = "f:"

// newEngines returns fake engines with some blocks.
func newEngines(n int) (*prompts, []*engine) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := newPrompts(rnd, 8, 80)
	var engines []*engine
	for i := range n {
		e := newEngine(p, fmt.Sprint("pod", i))
		for prompt, path := range p.paths {
			if prompt%2 == i%2 {
				e.storeTo(prompt, len(path))
			}
		}
		engines = append(engines, e)
	}
	return p, engines
}

// feed applies all events of some engines.
func (p *process) feed(tb testing.TB, engines ...*engine) {
	tb.Helper()
	for _, e := range engines {
		for v := 1; v <= e.version(); v++ {
			p.must(tb, e, v)
		}
	}
}

var config = redisindex.Config{Prefix: prefix}

// owner returns the name of the writer of an engine.
func owner(tb testing.TB, s *redistest.Server, e *engine) string {
	tb.Helper()
	row, _ := s.Do(tb, "HGET", prefix+"{m:"+model+"}r", "s0 "+e.src.Pod).(string)
	if len(row) < 8 {
		return ""
	}
	return row[:8]
}

func TestTakeOver(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(2)
	first, second, reader := start(t, s, config), start(t, s, config), start(t, s, config)
	first.feed(t, engines...)
	second.feed(t, engines...)
	equal := func() error { return reader.equals(t.Context(), p, engines...) }
	// right is equal, but for rows that are stale because the machine is busy.
	right := func() error {
		if err := equal(); *promises || !errors.Is(err, errStale) {
			return err
		}
		return nil
	}
	must(t, right())
	first.proxy.Refuse(true)
	first.proxy.Cut()
	var m index.Matches
	was := owner(t, s, engines[0])
	within(t, 3*lease, "the second takes over", func() error {
		rows, err := reader.ask(t.Context(), p, 0, &m)
		if err != nil {
			return err
		}
		if len(rows) == 0 || len(rows["pod0"].held) != len(p.paths[0]) {
			t.Fatalf("rows without the blocks: %v", rows)
		}
		if owner(t, s, engines[0]) == was {
			return errors.New("the first is named")
		}
		return nil
	})
	eventually(t, "all are not stale", equal)
	// Both continue; the first one has state that the other lacks.
	for _, e := range engines {
		for _, path := range p.paths[:2] {
			if e.drop(path[3:]) {
				second.must(t, e, e.version())
			}
		}
	}
	must(t, right())
	first.proxy.Refuse(false)
	over := time.Now().Add(4 * lease)
	for time.Now().Before(over) {
		if err := right(); err != nil {
			t.Fatalf("with the first back: %v", err)
		}
	}
	for _, e := range engines {
		first.must(t, e, e.version())
	}
	must(t, right())
	eventually(t, "all are not stale with the first back", equal)
	wantTTLs(t, prefix, s)
}

// TestLateBytes: a writer's bytes arrive after it gave up on them and wrote newer ones.
func TestLateBytes(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := start(t, s, config), start(t, s, config)
	writer.feed(t, e)
	for _, after := range []string{"clear", "remove"} {
		held := writer.proxy.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up})
		writer.Publish(e.src, []byte("a note, with which goes the row"))
		e.storeTo(0, len(p.paths[0]))
		eventually(t, "bytes that are held", func() error {
			if len(held.Held()) < 300 {
				return errors.New("none")
			}
			return nil
		})
		switch after {
		case "clear":
			e.clear()
			eventually(t, "a clear", func() error { return writer.do(t, e, e.version()) })
		case "remove":
			eventually(t, "a removal", func() error { return writer.Remove(t.Context(), e.src.Pod) })
		}
		held.Release()
		over := time.Now().Add(2 * lease)
		for time.Now().Before(over) {
			var m index.Matches
			for prompt := range p.paths {
				rows, err := reader.ask(t.Context(), p, prompt, &m)
				if err != nil || len(rows) > 0 {
					t.Fatalf("after a %s: prompt %d: %v, rows %v", after, prompt, err, rows)
				}
			}
		}
		if after == "clear" {
			e.storeTo(1, len(p.paths[1]))
			writer.must(t, e, e.version())
		}
	}
}

// wantListed waits until exactly these pods are listed.
func wantListed(tb testing.TB, p *process, want ...string) {
	tb.Helper()
	within(tb, time.Second, fmt.Sprintf("a listing of %q", want), func() error {
		l, err := p.Listing(tb.Context())
		if err != nil {
			return err
		}
		var got []string
		for _, e := range l.Entries {
			got = append(got, e.Source.Pod)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("listed: %q", got)
		}
		return nil
	})
}

func TestPausedWriter(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	first, second, reader := start(t, s, config), start(t, s, config), start(t, s, config)
	first.feed(t, e)
	second.feed(t, e)
	held := first.proxy.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up, After: 700})
	first.proxy.Refuse(true)
	e.storeTo(1, len(p.paths[1]))
	if err := first.do(t, e, e.version()); !errors.Is(err, sharedindex.ErrDelayed) {
		t.Fatalf("Apply: %v", err)
	}
	<-held.Fired()
	must(t, second.do(t, e, e.version()))
	e.drop(p.paths[0][5:])
	second.must(t, e, e.version()) // returns at once, as the second has not read the registry yet
	equal := func() error { return reader.equals(t.Context(), p, e) }
	eventually(t, "the second takes over", equal)
	e.clear()
	second.must(t, e, e.version())
	held.Release()
	first.proxy.Refuse(false)
	over := time.Now().Add(4 * lease)
	for time.Now().Before(over) {
		must(t, equal())
	}
	wantTTLs(t, prefix, s)
}

func TestCloseGivesUp(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(2)
	c := config
	c.Lease = 2 * time.Second
	first, second, reader := start(t, s, c), start(t, s, c), start(t, s, c)
	first.feed(t, engines...)
	second.feed(t, engines...)
	must(t, first.Close())
	for _, e := range engines {
		e.clear()
		e.storeTo(0, 7)
		second.must(t, e, e.version()-1)
		second.must(t, e, e.version())
	}
	within(t, c.Lease, "the second takes over", func() error { return reader.equals(t.Context(), p, engines...) })
	wantTTLs(t, prefix, s)
}

func TestEverythingLost(t *testing.T) {
	for _, how := range []string{"killed", "flushed"} {
		t.Run(how, func(t *testing.T) {
			s := redistest.Standalone(t)
			p, engines := newEngines(2)
			first, second, reader := start(t, s, config), start(t, s, config), start(t, s, config)
			first.feed(t, engines...)
			second.feed(t, engines...)
			was := s.Do(t, "GET", prefix+"root")
			if how == "killed" {
				s.RestartEmpty(t)
			} else {
				s.Do(t, "FLUSHALL")
			}
			if err := reader.overclaims(t.Context(), p, engines...); err != nil {
				t.Error(err)
			}
			eventually(t, "all is there again", func() error { return reader.equals(t.Context(), p, engines...) })
			if now := s.Do(t, "GET", prefix+"root"); now != was {
				t.Errorf("the root was %q and is %q", was, now)
			}
			another := start(t, s, config)
			if err := another.equals(t.Context(), p, engines...); err != nil {
				t.Error(err)
			}
			wantTTLs(t, prefix, s)
		})
	}
}

// TestOpenedAfterAFlush opens an index before its writers have written it again.
func TestOpenedAfterAFlush(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	writer := start(t, s, config)
	writer.feed(t, engines...)
	s.Do(t, "FLUSHALL")
	early := start(t, s, config)
	if early.Seed() == writer.Seed() {
		t.Skip("the writer was quicker")
	}
	eventually(t, "the seed is that of the writer", func() error {
		again := start(t, s, config)
		if again.Seed() != writer.Seed() {
			return errors.New("another seed")
		}
		return again.equals(t.Context(), p, engines...)
	})
	if err := early.equals(t.Context(), p, engines...); !errors.Is(err, redisindex.ErrSeed) {
		t.Errorf("Match: %v", err)
	}
	if err := writer.equals(t.Context(), p, engines...); err != nil {
		t.Error(err)
	}
}

// TestAwayAtFirst starts a writer while the server is away.
func TestAwayAtFirst(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := start(t, s, config), start(t, s, config)
	writer.proxy.Refuse(true)
	writer.proxy.Cut()
	if err := writer.do(t, e, 1); !errors.Is(err, sharedindex.ErrDelayed) {
		t.Fatalf("Apply: %v", err)
	}
	writer.proxy.Refuse(false)
	for v := 2; v <= e.version(); v++ {
		_ = writer.do(t, e, v) // it may be delayed
	}
	eventually(t, "all is there", func() error { return reader.equals(t.Context(), p, e) })
}

func TestRemove(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(3)
	first, second, reader := start(t, s, config), start(t, s, config), start(t, s, config)
	first.feed(t, engines[0], engines[2])
	second.feed(t, engines[1])
	wantListed(t, start(t, s, config), "pod0", "pod1", "pod2")
	must(t, first.Remove(t.Context(), "pod2"))
	wantListed(t, start(t, s, config), "pod0", "pod1")
	must(t, reader.Remove(t.Context(), "pod1"))
	if err := reader.equals(t.Context(), p, engines[:2]...); err != nil {
		t.Errorf("the pods of living writers: %v", err)
	}
	second.kill()
	eventually(t, "a removal", func() error {
		must(t, reader.Remove(t.Context(), "pod1"))
		var m index.Matches
		rows, err := reader.ask(t.Context(), p, 1, &m)
		must(t, err)
		if _, there := rows["pod1"]; there {
			return errors.New("there is a row")
		}
		return nil
	})
	wantListed(t, start(t, s, config), "pod0")
	if err := reader.equals(t.Context(), p, engines[0]); err != nil {
		t.Error(err)
	}
}

// login is the name and password on withLogin's servers.
var login = []string{"app", "secret"}

// withLogin starts a server with a login.
func withLogin(t *testing.T) *redistest.Server {
	return redistest.Standalone(t, redistest.UserArgs(login[0], login[1], "", "@all")...)
}

// setLogin changes the user and closes its connections: new ones are refused during their setup.
func setLogin(t testing.TB, s *redistest.Server, rules ...any) {
	s.Do(t, append([]any{"ACL", "SETUSER", login[0]}, rules...)...)
	s.Do(t, "CLIENT", "KILL", "USER", login[0])
}

// refuser is a server that answers each command with an error, during connection setup too, like a
// proxy whose Redis server is away.
func refuser(tb testing.TB, answer string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(tb, err)
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					var words, size int
					if _, err := fmt.Fscanf(r, "*%d\r\n", &words); err != nil {
						return
					}
					for range words {
						if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
							return
						}
						if _, err := r.Discard(size + 2); err != nil {
							return
						}
					}
					fmt.Fprintf(c, "-%s\r\n", answer)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// refusals are answers of a refuser.
var refusals = []string{
	"LOADING Redis is loading the dataset in memory",
	"NOPERM User app has no permissions to run the 'auth' command",
	"ERR max number of clients reached",
	"CLUSTERDOWN The cluster is down",
}

// wantTrouble checks the errors of readers and a writer while the server does not work: Match
// returns within its context, and Apply within its bound.
func wantTrouble(t *testing.T, p *prompts, e *engine, writer, strict, lax *process) {
	t.Helper()
	const bound = 400 * time.Millisecond
	for range 3 {
		var m index.Matches
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		began := time.Now()
		if rows, err := strict.ask(ctx, p, 0, &m); err == nil {
			t.Errorf("Match: no error, %d rows", len(rows))
		} else {
			t.Logf("Match: %v", err)
		}
		if took := time.Since(began); *promises && took > 2*bound {
			t.Errorf("Match took %v", took)
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), bound)
		began = time.Now()
		if _, err := lax.ask(ctx, p, 0, &m); err != nil || m.Degraded == nil {
			t.Errorf("Match with Degrade: %v, degraded: %v", err, m.Degraded)
		}
		if took := time.Since(began); *promises && took > 2*bound {
			t.Errorf("Match with Degrade took %v", took)
		}
		cancel()
	}
	wantDelayed(t, p, e, writer)
}

// wantDelayed checks that an Apply fails within its bound although the change is applied.
func wantDelayed(t *testing.T, p *prompts, e *engine, writer *process) {
	t.Helper()
	for range 2 {
		from := e.version()
		e.storeTo(2, len(p.paths[2]))
		e.drop(p.paths[2][len(p.paths[2])-3:])
		began := time.Now()
		for v := from + 1; v <= e.version(); v++ {
			if err := writer.do(t, e, v); !errors.Is(err, sharedindex.ErrDelayed) {
				t.Errorf("Apply: %v", err)
			} else {
				t.Logf("Apply: %v", err)
			}
		}
		if took := time.Since(began); *promises && took > 2*(redisindex.DefaultTimeout+lease) {
			t.Errorf("two Applies took %v", took)
		}
		changes, _ := e.event(t.Context(), e.version())
		if done, err := writer.Apply(t.Context(), e.src, e.cursor(e.version()), changes); err != nil || !done.Duplicate {
			t.Errorf("the same Apply: %v, duplicate %v", err, done.Duplicate)
		}
	}
}

// restartLoading restarts a server, which then loads its data for 40 seconds.
func restartLoading(t *testing.T, s *redistest.Server) {
	s.Do(t, "EVAL", "for i = 1, 20000 do redis.call('SET', 'filler' .. i, string.rep('x', 100)) end", 0)
	s.Do(t, "SAVE")
	s.RestartLoading(t, 2*time.Millisecond)
}

func TestServerInTrouble(t *testing.T) {
	type trouble struct {
		name     string
		set, end func(*testing.T, *redistest.Server)
		reads    bool   // readers get answers
		refusal  string // answer of a proxy
	}
	troubles := []trouble{
		{name: "stopped", set: func(t *testing.T, s *redistest.Server) { s.Stop(t) }, end: func(t *testing.T, s *redistest.Server) { s.Cont(t) }},
		{name: "killed", set: func(t *testing.T, s *redistest.Server) { s.Kill(t) }, end: func(t *testing.T, s *redistest.Server) { s.Restart(t) }},
		{name: "loading", set: restartLoading, end: func(t *testing.T, s *redistest.Server) { s.LoadFast(t) }},
		{name: "busy", set: func(t *testing.T, s *redistest.Server) {
			s.Set(t, "busy-reply-threshold", 1)
			go s.Client(t).Eval(context.Background(), "while true do end", nil)
			eventually(t, "BUSY", func() error {
				if err := s.Client(t).Get(t.Context(), "x").Err(); err == nil || err.Error()[:4] != "BUSY" {
					return fmt.Errorf("not busy: %v", err)
				}
				return nil
			})
		}, end: func(t *testing.T, s *redistest.Server) { s.Do(t, "SCRIPT", "KILL") }},
		{name: "read only", set: func(t *testing.T, s *redistest.Server) {
			s.Set(t, "replica-serve-stale-data", "yes")
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}, end: func(t *testing.T, s *redistest.Server) { s.Promote(t) }, reads: true},
		{name: "master link down", set: func(t *testing.T, s *redistest.Server) {
			s.Set(t, "replica-serve-stale-data", "no")
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}, end: func(t *testing.T, s *redistest.Server) { s.Promote(t) }},
		{name: "out of memory", set: func(t *testing.T, s *redistest.Server) { s.Set(t, "maxmemory", 1) },
			end: func(t *testing.T, s *redistest.Server) { s.Set(t, "maxmemory", 0) }, reads: true},
		{name: "no permission", set: func(t *testing.T, s *redistest.Server) {
			s.Do(t, "ACL", "SETUSER", login[0], "-evalsha", "-eval", "-mget")
		}, end: func(t *testing.T, s *redistest.Server) { s.Do(t, "ACL", "SETUSER", login[0], "+@all") }},
		{name: "password changed", set: func(t *testing.T, s *redistest.Server) { setLogin(t, s, "resetpass", ">another") },
			end: func(t *testing.T, s *redistest.Server) { setLogin(t, s, "resetpass", ">"+login[1]) }},
		{name: "user disabled", set: func(t *testing.T, s *redistest.Server) { setLogin(t, s, "off") },
			end: func(t *testing.T, s *redistest.Server) { setLogin(t, s, "on") }},
	}
	for _, answer := range refusals {
		nothing := func(*testing.T, *redistest.Server) {}
		troubles = append(troubles, trouble{name: "refused: " + answer, set: nothing, end: nothing, refusal: answer})
	}
	for _, trouble := range troubles {
		t.Run(trouble.name, func(t *testing.T) {
			s := withLogin(t)
			p, engines := newEngines(1)
			e := engines[0]
			writer := start(t, s, config, login...)
			degrading := config
			degrading.Degrade = true
			strict, lax := start(t, s, config, login...), start(t, s, degrading, login...)
			all := []*process{writer, strict, lax}
			writer.feed(t, e)
			for _, r := range all[1:] {
				must(t, r.equals(t.Context(), p, e))
			}
			trouble.set(t, s)
			if trouble.refusal != "" {
				addr := refuser(t, trouble.refusal)
				for _, r := range all {
					r.proxy.Redirect(addr)
					r.proxy.Cut()
				}
			}
			if trouble.reads {
				wantDelayed(t, p, e, writer)
				within(t, 2*lease+time.Second, "stale", func() error {
					var m index.Matches
					rows, err := strict.ask(t.Context(), p, 0, &m)
					if err == nil && !rows["pod0"].stale {
						err = errors.New("not stale")
					}
					return err
				})
			} else {
				wantTrouble(t, p, e, writer, strict, lax)
			}
			trouble.end(t, s)
			if trouble.refusal != "" {
				for _, r := range all {
					r.proxy.Redirect(s.Addr())
					r.proxy.Cut()
				}
			}
			for _, r := range all[1:] {
				within(t, 5*time.Second, "all is there again", func() error { return r.equals(t.Context(), p, e) })
			}
			e.drop(p.paths[2])
			writer.must(t, e, e.version())
			if err := strict.equals(t.Context(), p, e); err != nil {
				t.Error(err)
			}
			wantTTLs(t, prefix, s)
		})
	}
}

// TestRefusedConnection: changes applied while Redis refused the writer's connections are written
// afterwards. The lease is so long that nothing else causes the write.
func TestRefusedConnection(t *testing.T) {
	s := withLogin(t)
	c := config
	c.Lease, c.Prefix = 4*time.Second, "refused:"
	type refusal struct {
		name     string
		set, end func(*process)
	}
	all := []refusal{
		{"password changed", func(*process) { setLogin(t, s, "resetpass", ">another") }, func(*process) { setLogin(t, s, "resetpass", ">"+login[1]) }},
		{"user disabled", func(*process) { setLogin(t, s, "off") }, func(*process) { setLogin(t, s, "on") }},
	}
	to := func(addr string) func(*process) {
		return func(p *process) {
			p.proxy.Redirect(addr)
			p.proxy.Cut()
		}
	}
	for _, answer := range refusals {
		all = append(all, refusal{"refused: " + answer, to(refuser(t, answer)), to(s.Addr())})
	}
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader, outside := start(t, s, c, login...), start(t, s, c, login...), start(t, s, c)
	writer.feed(t, e)
	for i, r := range all {
		t.Run(r.name, func(t *testing.T) {
			var m index.Matches
			must(t, reader.equals(t.Context(), p, e))
			r.set(writer)
			r.set(reader)
			from := e.version()
			e.drop(p.paths[i])
			e.storeTo(i+1, len(p.paths[i+1]))
			for v := from + 1; v <= e.version(); v++ {
				if err := writer.do(t, e, v); !errors.Is(err, sharedindex.ErrDelayed) {
					t.Errorf("Apply: %v", err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			if rows, err := reader.ask(ctx, p, i, &m); err == nil {
				t.Errorf("Match: %v", rows)
			}
			cancel()
			r.end(writer)
			r.end(reader)
			for _, r := range []*process{reader, outside} {
				within(t, 2*time.Second, "all is there", func() error { return r.equals(t.Context(), p, e) })
			}
		})
	}
}

// TestOpenRefused: New's error has Redis's reason to refuse a connection.
func TestOpenRefused(t *testing.T) {
	s := withLogin(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: login[0], Password: "wrong", ContextTimeoutEnabled: true})
	defer client.Close()
	if _, err := redisindex.Open(client, config); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("New: %v", err)
	}
}

// TestOneCallsExec: all pipelines go through exec.
func TestOneCallsExec(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	var calls []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		if !strings.HasSuffix(file, "_test.go") {
			for range strings.Count(string(text), ".Exec(") + strings.Count(string(text), "ipelined(") {
				calls = append(calls, file)
			}
		}
	}
	if !slices.Equal(calls, []string{"cause.go"}) {
		t.Errorf("Exec is called in %q", calls)
	}
}

// TestReadersDoNotWaitForOthers: a slow reader does not delay another.
func TestReadersDoNotWaitForOthers(t *testing.T) {
	s := redistest.Standalone(t)
	p, _ := newEngines(1)
	reader := start(t, s, config)
	s.Stop(t)
	long, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var m index.Matches
		_, _ = reader.ask(long, p, 0, &m)
		_, _ = reader.Listing(long)
	}()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		var m index.Matches
		began := time.Now()
		if _, err := reader.ask(ctx, p, 0, &m); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); *promises && took > 300*time.Millisecond {
			t.Errorf("Match took %v", took)
		}
		began = time.Now()
		if _, err := reader.Listing(ctx); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); *promises && took > 300*time.Millisecond {
			t.Errorf("Listing took %v", took)
		}
		cancel()
	}
	cancel()
	s.Cont(t)
	<-ended
}

// TestSmallTroubles: writing and reading continue through short faults.
func TestSmallTroubles(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := start(t, s, config), start(t, s, config)
	rnd := rand.New(rand.NewPCG(3, 4))
	writer.feed(t, e)
	for i := range 60 {
		switch i % 3 {
		case 0:
			s.Do(t, "SCRIPT", "FLUSH")
		case 1:
			s.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		case 2:
			writer.proxy.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Down, After: 1 + rnd.IntN(100)})
		}
		e.act(rnd)
		writer.must(t, e, e.version())
		if err := reader.equals(t.Context(), p, e); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
}

func TestSweep(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(2)
	dead, living := start(t, s, config), start(t, s, config)
	dead.feed(t, engines[0])
	dead.kill()
	client := s.Client(t)
	tokens, err := client.Keys(t.Context(), prefix+"{*}t*").Result()
	if err != nil || len(tokens) == 0 {
		t.Fatalf("tokens %q: %v", tokens, err)
	}
	buckets := func() map[string]bool {
		all := make(map[string]bool)
		for it := client.Scan(t.Context(), 0, prefix+"{0}[012]*", 1000).Iterator(); it.Next(t.Context()); {
			all[it.Val()] = true
		}
		return all
	}
	of := buckets()
	client.Del(t.Context(), tokens...)
	living.feed(t, engines[1])
	reader := start(t, s, config)
	mine := 0
	eventually(t, "the sweep", func() error {
		if err := reader.equals(t.Context(), p, engines[1]); err != nil {
			t.Fatalf("of the living: %v", err)
		}
		now := buckets()
		mine = len(now)
		for name := range of {
			if now[name] {
				value, _ := client.Get(t.Context(), name).Result()
				if len(value) > 0 && !onlyOneSection(value) {
					return fmt.Errorf("%q has two sections", name)
				}
			}
		}
		if n := client.HLen(t.Context(), prefix+"{m:"+model+"}r").Val(); n != 2 {
			return fmt.Errorf("the registry has %d fields", n)
		}
		return nil
	})
	t.Logf("%d buckets before, %d after", len(of), mine)
	wantTTLs(t, prefix, s)
}

// onlyOneSection reports whether a bucket has the section of a single writer.
func onlyOneSection(value string) bool {
	n := int(value[18]) | int(value[19])<<8 | int(value[20])<<16
	return len(value) == 2+20+n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
