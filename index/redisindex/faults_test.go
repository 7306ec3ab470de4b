package redisindex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/faultproxy"
)

const prefix = "f:"

// newEngines returns fake engines that hold something.
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

// feed applies all that some engines have sent.
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
	if err := equal(); err != nil {
		t.Fatal(err)
	}
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
	// Both go on. The first is alone with what it knows.
	for _, e := range engines {
		for _, path := range p.paths[:2] {
			if e.drop(path[3:]) {
				second.must(t, e, e.version())
			}
		}
	}
	if err := equal(); err != nil {
		t.Error(err)
	}
	first.proxy.Refuse(false)
	over := time.Now().Add(4 * lease)
	for time.Now().Before(over) {
		if err := equal(); err != nil {
			t.Fatalf("with the first back: %v", err)
		}
	}
	for _, e := range engines {
		first.must(t, e, e.version())
	}
	if err := equal(); err != nil {
		t.Error(err)
	}
	wantTTLs(t, prefix, s)
}

// TestLateBytes has what a writer sent arrive when it has given that up, and written newer.
func TestLateBytes(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := start(t, s, config), start(t, s, config)
	writer.feed(t, e)
	for _, after := range []string{"clear", "remove"} {
		held := writer.proxy.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up})
		writer.Tell(e.src, []byte("a note, with which goes the row"))
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

// wantListed checks which pods are listed soon.
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
	if err := first.do(t, e, e.version()); !errors.Is(err, index.ErrDelayed) {
		t.Fatalf("Apply: %v", err)
	}
	<-held.Fired()
	if err := second.do(t, e, e.version()); err != nil {
		t.Fatal(err)
	}
	e.drop(p.paths[0][5:])
	second.must(t, e, e.version()) // returns at once: the second does not know yet
	equal := func() error { return reader.equals(t.Context(), p, e) }
	eventually(t, "the second takes over", equal)
	e.clear()
	second.must(t, e, e.version())
	held.Release()
	first.proxy.Refuse(false)
	over := time.Now().Add(4 * lease)
	for time.Now().Before(over) {
		if err := equal(); err != nil {
			t.Fatal(err)
		}
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
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
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

// TestOpenedAfterAFlush opens an index before its writers have made it anew.
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

// TestAwayAtFirst has the server away when a writer begins.
func TestAwayAtFirst(t *testing.T) {
	s := redistest.Standalone(t)
	p, engines := newEngines(1)
	e := engines[0]
	writer, reader := start(t, s, config), start(t, s, config)
	writer.proxy.Refuse(true)
	writer.proxy.Cut()
	if err := writer.do(t, e, 1); !errors.Is(err, index.ErrDelayed) {
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
	if err := first.Remove(t.Context(), "pod2"); err != nil {
		t.Fatal(err)
	}
	wantListed(t, start(t, s, config), "pod0", "pod1")
	if err := reader.Remove(t.Context(), "pod1"); err != nil {
		t.Fatal(err)
	}
	if err := reader.equals(t.Context(), p, engines[:2]...); err != nil {
		t.Errorf("the pods of living writers: %v", err)
	}
	second.kill()
	eventually(t, "a removal", func() error {
		if err := reader.Remove(t.Context(), "pod1"); err != nil {
			t.Fatal(err)
		}
		var m index.Matches
		rows, err := reader.ask(t.Context(), p, 1, &m)
		if err != nil {
			t.Fatal(err)
		}
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

// degrades are processes that differ in Config.Degrade.
func degrades(t *testing.T, s *redistest.Server) (strict, lax *process) {
	c := config
	strict = start(t, s, c)
	c.Degrade = true
	return strict, start(t, s, c)
}

// wantTrouble checks what readers and a writer say while the server does not work: Match says so
// within its context, and Apply within its bound.
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
		if took := time.Since(began); took > 2*bound {
			t.Errorf("Match took %v", took)
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), bound)
		began = time.Now()
		if _, err := lax.ask(ctx, p, 0, &m); err != nil || m.Degraded == nil {
			t.Errorf("Match with Degrade: %v, degraded: %v", err, m.Degraded)
		}
		if took := time.Since(began); took > 2*bound {
			t.Errorf("Match with Degrade took %v", took)
		}
		cancel()
	}
	wantDelayed(t, p, e, writer)
}

// wantDelayed checks that an Apply fails within its bound, and was done.
func wantDelayed(t *testing.T, p *prompts, e *engine, writer *process) {
	t.Helper()
	for range 2 {
		from := e.version()
		e.storeTo(2, len(p.paths[2]))
		e.drop(p.paths[2][len(p.paths[2])-3:])
		began := time.Now()
		for v := from + 1; v <= e.version(); v++ {
			if err := writer.do(t, e, v); !errors.Is(err, index.ErrDelayed) {
				t.Errorf("Apply: %v", err)
			} else {
				t.Logf("Apply: %v", err)
			}
		}
		if took := time.Since(began); took > 2*(redisindex.DefaultTimeout+lease) {
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
	for _, trouble := range []struct {
		name     string
		set, end func(*testing.T, *redistest.Server)
		reads    bool // readers get answers
	}{
		{"stopped", func(t *testing.T, s *redistest.Server) { s.Stop(t) }, func(t *testing.T, s *redistest.Server) { s.Cont(t) }, false},
		{"killed", func(t *testing.T, s *redistest.Server) { s.Kill(t) }, func(t *testing.T, s *redistest.Server) { s.Restart(t) }, false},
		{"loading", restartLoading, func(t *testing.T, s *redistest.Server) { s.LoadFast(t) }, false},
		{"busy", func(t *testing.T, s *redistest.Server) {
			s.Set(t, "busy-reply-threshold", 1)
			go s.Client(t).Eval(context.Background(), "while true do end", nil)
			eventually(t, "BUSY", func() error {
				if err := s.Client(t).Get(t.Context(), "x").Err(); err == nil || err.Error()[:4] != "BUSY" {
					return fmt.Errorf("not busy: %v", err)
				}
				return nil
			})
		}, func(t *testing.T, s *redistest.Server) { s.Do(t, "SCRIPT", "KILL") }, false},
		{"read only", func(t *testing.T, s *redistest.Server) {
			s.Set(t, "replica-serve-stale-data", "yes")
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}, func(t *testing.T, s *redistest.Server) { s.Promote(t) }, true},
		{"master link down", func(t *testing.T, s *redistest.Server) {
			s.Set(t, "replica-serve-stale-data", "no")
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}, func(t *testing.T, s *redistest.Server) { s.Promote(t) }, false},
		{"out of memory", func(t *testing.T, s *redistest.Server) { s.Set(t, "maxmemory", 1) },
			func(t *testing.T, s *redistest.Server) { s.Set(t, "maxmemory", 0) }, true},
		{"no permission", func(t *testing.T, s *redistest.Server) {
			s.Do(t, "ACL", "SETUSER", "default", "-evalsha", "-eval", "-mget")
		},
			func(t *testing.T, s *redistest.Server) { s.Do(t, "ACL", "SETUSER", "default", "+@all") }, false},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			s := redistest.Standalone(t)
			p, engines := newEngines(1)
			e := engines[0]
			writer := start(t, s, config)
			strict, lax := degrades(t, s)
			writer.feed(t, e)
			for _, r := range []*process{strict, lax} {
				if err := r.equals(t.Context(), p, e); err != nil {
					t.Fatal(err)
				}
			}
			trouble.set(t, s)
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
			for _, r := range []*process{strict, lax} {
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

// TestReadersDoNotWaitForOthers: one that waits long must not hold up another.
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
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("Match took %v", took)
		}
		began = time.Now()
		if _, err := reader.Listing(ctx); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("Listing took %v", took)
		}
		cancel()
	}
	cancel()
	s.Cont(t)
	<-ended
}

// TestSmallTroubles has writing and reading go on through what is over at once.
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

// onlyOneSection reports whether a bucket has the section of one writer.
func onlyOneSection(value string) bool {
	n := int(value[18]) | int(value[19])<<8 | int(value[20])<<16
	return len(value) == 2+20+n
}
