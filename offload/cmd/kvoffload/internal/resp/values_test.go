package resp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/offload"
)

// clock is a fake clock.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time           { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(by time.Duration) { c.ms.Add(by.Milliseconds()) }

// made returns the bytes of a value, different from all others in every part.
func made(key string, n, size int) string {
	line := fmt.Sprintf("%s#%d.", key, n)
	return strings.Repeat(line, size/len(line)+1)[:size]
}

// fill sets other values, n times the memory.
func fill(c *client, cfg Config, n int) {
	c.t.Helper()
	for i := range n * int(cfg.MemoryBytes) / (64 << 10) {
		c.want(ok, "SET", fmt.Sprintf("other%d", i), made("other", i, 60<<10))
	}
}

func TestPairs(t *testing.T) {
	cfg, at := small(), newClock()
	cfg.Promise, cfg.MemoryBytes, cfg.MaxValue = 2*time.Second, 4<<20, 100<<10
	s, sock := serveAt(t, cfg, at.now)
	c := dial(t, sock)
	kv, meta := made("k", 1, 50_000), "28 bytes"
	nothing := func(k string) {
		t.Helper()
		c.want("*2\r\n"+null+null, "MGET", k+"kv_bytes", k+"metadata")
		c.want(zero, "EXISTS", k+"kv_bytes", k+"metadata")
		c.want(zero, "STRLEN", k+"kv_bytes")
		c.want(zero, "DEL", k+"none")
	}
	both := func(k, kv, meta string) {
		t.Helper()
		c.want("*2\r\n"+bulk(meta)+bulk(kv), "MGET", k+"metadata", k+"kv_bytes")
		c.want(":2\r\n", "EXISTS", k+"kv_bytes", k+"metadata")
		c.want(null, "GET", k)
	}
	for _, k := range []string{"vllm@m@1@0@ab", "{m@1@0@ab}:"} {
		c.want(ok, "SET", k+"kv_bytes", kv)
		nothing(k)
		c.want(ok, "SET", k+"metadata", meta)
		both(k, kv, meta)
		c.want(one, "DEL", k+"metadata")
		nothing(k)
		c.want(ok, "SET", k+"metadata", meta)
		nothing(k)
		c.want(ok, "SET", k+"kv_bytes", "first")
		both(k, "first", meta)
		c.want(ok, "SET", k+"kv_bytes", kv) // the pair is replaced when the other half comes
		both(k, "first", meta)
		c.want(ok, "SET", k+"metadata", "new")
		c.want("*2\r\n"+bulk("first")+null, "MGET", k+"kv_bytes", k+"metadata") // promised
		c.want(zero, "EXISTS", k+"metadata")
		at.advance(2 * time.Second)
		both(k, kv, "new")
		c.want(ok, "SET", k+"kv_bytes", "twice")
		c.want(ok, "SET", k+"kv_bytes", "again")
		c.want(ok, "SET", k+"metadata", meta)
		at.advance(2 * time.Second)
		both(k, "again", meta)
		c.want(":2\r\n", "DEL", k+"metadata", k+"kv_bytes", k+"metadata")
		nothing(k)
	}

	// Halves expire, and free their memory.
	c.want(ok, "SET", "oldkv_bytes", kv)
	c.want(ok, "SET", "old2metadata", meta)
	if s.values.incoming == 0 {
		t.Error("a half has no memory")
	}
	at.advance(30 * time.Second)
	s.values.Sweep()
	c.want(ok, "SET", "oldmetadata", meta)
	nothing("old")
	c.want(ok, "SET", "old2kv_bytes", kv)
	nothing("old2")
	at.advance(30 * time.Second)
	s.values.Sweep()
	if s.values.incoming != 0 || len(s.values.halves) != 0 {
		t.Errorf("%d bytes of %d halves", s.values.incoming, len(s.values.halves))
	}

	// Halves are bounded in bytes and number: the oldest is evicted.
	for i := range 60 {
		c.want(ok, "SET", fmt.Sprintf("%dkv_bytes", i), kv)
		if s.values.incoming > cfg.MemoryBytes/4 {
			t.Fatalf("%d bytes in flight", s.values.incoming)
		}
	}
	c.want(ok, "SET", "0metadata", meta)
	nothing("0")
	c.want(ok, "SET", "59metadata", meta)
	both("59", kv, meta)
	for i := range maxHalves + 10 {
		c.want(ok, "SET", fmt.Sprintf("m%dmetadata", i), meta)
	}
	if n := len(s.values.halves); n > maxHalves {
		t.Errorf("%d halves", n)
	}
	c.want("-ERR key of 9 bytes, at most 1024, or value of 2000 bytes, at most 1999\r\n", "SET", "kmetadata", strings.Repeat("x", 2000))
	c.want(ok, "SET", "kmetadata", strings.Repeat("x", 1999))
}

// TestLostHalf: bytes without room make no pair, and neither do their metadata or an older half.
func TestLostHalf(t *testing.T) {
	at := newClock()
	s, sock := serveAt(t, small(), at.now)
	c := dial(t, sock)
	lose := map[string]func(){
		"as it came": func() {
			must(t, s.values.putHalf(&half{ref: ref{pair: true, name: "k"}, part: kvBytes, lost: true}))
		},
		"for another": func() {
			c.want(ok, "SET", "kkv_bytes", "lost")
			for i := range 3 {
				c.want(ok, "SET", fmt.Sprint(i), made("other", i, 1<<20))
				c.want(ok, "SET", fmt.Sprint(i, "kv_bytes"), made("other", i, 1<<20))
			}
			c.want(ok, "SET", "last", made("last", 0, 1<<20))
		},
		"as it is too long": func() {
			if got := c.ask("SET", "kkv_bytes", strings.Repeat("x", int(s.cfg.MaxValue)+1)); !strings.HasPrefix(got, "-ERR key of ") {
				t.Error(got)
			}
		},
		"by an option": func() {
			c.want("-ERR SET with 'NX' is not served, only EX and PX\r\n", "SET", "kkv_bytes", "x", "NX")
		},
	}
	for name, lose := range lose {
		c.want(ok, "SET", "kkv_bytes", "old")
		lose()
		c.want(ok, "SET", "kmetadata", "of lost bytes")
		c.want(ok, "SET", "kkv_bytes", "next")
		if got := c.ask("GET", "kkv_bytes"); got != null {
			t.Errorf("lost %s: %q", name, got)
		}
		c.want(ok, "SET", "kmetadata", "of next")
		c.want("*2\r\n"+bulk("next")+bulk("of next"), "MGET", "kkv_bytes", "kmetadata")
		c.want(one, "DEL", "kmetadata")
	}
	// The other way round: bytes of metadata that were refused, and the next metadata.
	for _, first := range []string{"kkv_bytes", "kmetadata"} {
		long := []string{"SET", "kmetadata", strings.Repeat("x", 2000)}
		if first == "kmetadata" {
			c.ask(long...)
		}
		c.want(ok, "SET", "kkv_bytes", "of refused metadata")
		if first != "kmetadata" {
			c.ask(long...)
		}
		c.want(ok, "SET", "kmetadata", "next")
		if got := c.ask("GET", "kmetadata"); got != null {
			t.Errorf("refused metadata, %s first: %q", first, got)
		}
		c.want(zero, "DEL", "kmetadata")
	}
	sweep := func() uint64 {
		at.advance(time.Minute)
		s.values.Sweep()
		return s.values.count.halvesDropped
	}
	before := sweep()
	lose["as it came"]() // this is counted as a lost value alone
	if n := sweep(); n != before || len(s.values.halves) > 0 {
		t.Errorf("%d halves were dropped, not %d, and %d wait", n, before, len(s.values.halves))
	}
}

// TestPromise: a value promised by EXISTS, or by the metadata of a pair, is kept until its time and
// no longer.
func TestPromise(t *testing.T) {
	cfg, at := small(), newClock()
	cfg.Promise, cfg.MemoryBytes, cfg.MaxValue = 2*time.Second, 1<<20, 100<<10
	cfg.Policy = offload.LRU // requested values are evicted, too
	s, sock := serveAt(t, cfg, at.now)
	c := dial(t, sock)
	kv := made("k", 1, 50_000)
	for round := range 20 {
		plain, pair, asked := fmt.Sprintf("p%d", round), fmt.Sprintf("q%d", round), fmt.Sprintf("r%d", round)
		c.want(ok, "SET", plain, kv)
		c.want(ok, "SET", pair+"kv_bytes", kv)
		c.want(ok, "SET", pair+"metadata", "m")
		c.want(ok, "SET", asked+"kv_bytes", kv)
		c.want(ok, "SET", asked+"metadata", "m")
		c.want(one, "EXISTS", plain)
		c.want(bulk("m"), "GET", pair+"metadata")
		c.want(one, "EXISTS", asked+"metadata")
		fill(c, cfg, 3)
		at.advance(time.Second)
		c.want(bulk("m"), "GET", pair+"metadata") // promised again for 2 s
		at.advance(999 * time.Millisecond)
		c.want(bulk(kv), "GET", plain)
		c.want(bulk(kv), "GET", asked+"kv_bytes")
		at.advance(time.Millisecond)
		s.values.Sweep()
		fill(c, cfg, 3)
		c.want(null, "GET", plain)
		c.want(null, "GET", asked+"kv_bytes")
		c.want(bulk(kv), "GET", pair+"kv_bytes")
		at.advance(time.Second)
	}
	at.advance(2 * time.Second)
	s.values.Sweep()

	// A value that cannot be promised is reported as absent, and promised ones stay.
	promised := 0
	for i := range 12 {
		k := fmt.Sprintf("bound%d", i)
		c.want(ok, "SET", k, kv)
		if c.ask("EXISTS", k) == one {
			promised++
		}
	}
	if most := int(cfg.MemoryBytes / 2 / (13 * 4096)); promised != most {
		t.Errorf("%d of 12 were promised, not %d", promised, most)
	}
	fill(c, cfg, 2)
	for i := range promised {
		c.want(bulk(kv), "GET", fmt.Sprintf("bound%d", i))
	}
	if n := s.values.count.promiseRefused; n != uint64(12-promised) {
		t.Errorf("%d promises were refused", n)
	}

	// A client gets the value that it has set, promised or not.
	at.advance(2 * time.Second)
	c.want(ok, "SET", "own", "1")
	c.want(one, "EXISTS", "own")
	c.want(ok, "SET", "own", "2")
	c.want(bulk("2"), "GET", "own")
	c.want(one, "EXISTS", "own")
	c.want(one, "DEL", "own")
	c.want(null, "GET", "own")
}

// TestPromiseFlushed has FLUSHALL between the lookup and the promise of a value. A promise would
// keep it there and hide later values.
func TestPromiseFlushed(t *testing.T) {
	cfg := small()
	cfg.FlushAll = true
	s, sock := serve(t, cfg)
	c := dial(t, sock)
	c.want(ok, "SET", "k", "old")
	v, id, epoch := s.values, ref{name: "k"}, s.values.epoch.Load()
	e := v.load(id, id.firstKey(epoch))
	if e == nil {
		t.Fatal("the value is not there")
	}
	c.want(ok, "FLUSHALL")
	if v.promise(e, epoch) {
		t.Error("a value that was flushed is promised")
	}
	v.release(e)
	c.want(zero, "EXISTS", "k")
	c.want(ok, "SET", "k", "new")
	c.want(bulk("new"), "GET", "k")
}

// TestReplacedAtOnce: of two values that replace each other concurrently, one is there.
func TestReplacedAtOnce(t *testing.T) {
	_, sock := serve(t, small())
	both := []*client{dial(t, sock), dial(t, sock)}
	values := []string{made("k", 0, 20_000), made("k", 1, 20_000)}
	for i := range 5000 {
		for j, c := range both {
			c.send(array("SET", "k", values[j]))
		}
		for _, c := range both {
			if got, err := c.reply(); got != ok {
				t.Fatal(got, err)
			}
		}
		if got := both[0].ask("GET", "k"); got != bulk(values[0]) && got != bulk(values[1]) {
			t.Fatalf("round %d: %.20q", i, got)
		}
	}
}

// TestDiskFails: values stay in memory when the disk takes none, and the log has an error a minute.
func TestDiskFails(t *testing.T) {
	cfg, at, dir := small(), newClock(), filepath.Join(t.TempDir(), "kv")
	segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: dir, Bytes: 1 << 20})
	must(t, err)
	t.Cleanup(func() { segments.Close() })
	must(t, os.RemoveAll(dir)) // no file can be made
	var log []string
	cfg.Segments, cfg.Logf = segments, func(f string, a ...any) { log = append(log, fmt.Sprintf(f, a...)) }
	s, sock := serveAt(t, cfg, at.now)
	c := dial(t, sock)
	for i := range 4 {
		c.want(ok, "SET", "k", made("k", i, 100))
		must(t, s.values.store.Flush(ctx))
		c.want(bulk(made("k", i, 100)), "GET", "k")
		if len(log) != 1+i/2 || !strings.Contains(log[0], "no such file") {
			t.Fatalf("SET %d: %q", i, log)
		}
		if i == 1 {
			at.advance(time.Minute)
		}
	}
}

func TestExpiry(t *testing.T) {
	cfg, at := small(), newClock()
	s, sock := serveAt(t, cfg, at.now)
	c := dial(t, sock)
	c.want(ok, "SET", "k", "v", "EX", "10")
	c.want(ok, "SET", "pkv_bytes", "v", "PX", "9000")
	c.want(ok, "SET", "pmetadata", "m", "EX", "10")
	c.want(":10\r\n", "TTL", "k")
	c.want(":9000\r\n", "PTTL", "pmetadata")
	c.want(":3\r\n", "DBSIZE")
	at.advance(9999 * time.Millisecond)
	c.want(bulk("v"), "GET", "k")
	c.want(null, "GET", "pkv_bytes")
	c.want(":-2\r\n", "TTL", "pmetadata")
	c.want(one, "DBSIZE")
	at.advance(time.Millisecond)
	c.want(null, "GET", "k")
	c.want(zero, "EXISTS", "k")
	c.want(zero, "DEL", "k")
	c.want(zero, "DBSIZE")
	if n := s.values.store.Stats().Blocks; n != 0 {
		t.Errorf("%d pages of values whose time is over", n)
	}
	c.want(ok, "SET", "k", "v", "EX", "10")
	c.want(ok, "SET", "k", "v")
	c.want(":-1\r\n", "TTL", "k")
}

// TestPlain compares random histories with a map: a value is the last one set, and all are there if
// they fit in memory. With a disk the server is reopened in between.
func TestPlain(t *testing.T) {
	for _, test := range []struct {
		name         string
		memory, disk int64
		all          bool
	}{{"memory", 16 << 20, 0, true}, {"evicting", 256 << 10, 0, false}, {"disk", 256 << 10, 8 << 20, false}} {
		t.Run(test.name, func(t *testing.T) {
			r, at := rand.New(rand.NewPCG(1, uint64(test.memory))), newClock()
			dir := t.TempDir()
			model := make(map[string]string)
			hits, asked := 0, 0
			for epoch := range 4 {
				cfg := small()
				cfg.MemoryBytes, cfg.MaxValue = test.memory, 40<<10
				if test.disk > 0 {
					segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: dir, Bytes: test.disk, Buffered: true})
					must(t, err)
					defer segments.Close()
					cfg.Segments, cfg.EpochFile = segments, filepath.Join(dir, "epoch")
				} else if epoch > 0 {
					clear(model)
				}
				t.Run(strconv.Itoa(epoch), func(t *testing.T) {
					s, sock := serveAt(t, cfg, at.now)
					c := dial(t, sock)
					for range 1500 {
						k := "k" + strconv.Itoa(r.IntN(20))
						switch r.IntN(8) {
						case 0, 1:
							v := made(k, r.IntN(3), r.IntN(20_000))
							c.want(ok, "SET", k, v)
							model[k] = v
						case 2:
							v := made(k, r.IntN(3), r.IntN(20_000))
							c.want(ok, "SET", k+"kv_bytes", v)
							c.want(ok, "SET", k+"metadata", v[:min(len(v), 28)])
							model[k+"kv_bytes"], model[k+"metadata"] = v, v[:min(len(v), 28)]
						case 3:
							k += []string{"", "kv_bytes", "metadata"}[r.IntN(3)]
							_, had := model[k]
							if got := c.ask("DEL", k); got != zero && (got != one || !had) || test.all && had && got == zero {
								t.Fatalf("DEL %s: %q, had %v", k, got, had)
							}
							delete(model, k)
							if base, what := split(k); what != whole {
								delete(model, base+"kv_bytes")
								delete(model, base+"metadata")
							}
						default:
							k += []string{"", "kv_bytes", "metadata"}[r.IntN(3)]
							v, had := model[k]
							got := c.ask("GET", k)
							if got != null && (!had || got != bulk(v)) || test.all && had && got == null {
								t.Fatalf("GET %s: %.60q, not %.60q", k, got, v)
							}
							if had {
								asked++
								if got != null {
									hits++
								}
							}
						}
						if r.IntN(400) == 0 {
							c.want(ok, "FLUSHALL")
							clear(model)
						}
					}
					if test.all {
						c.want(fmt.Sprintf(":%d\r\n", len(model)), "DBSIZE")
					}
					if n := len(s.values.names.at); n > 80 {
						t.Errorf("%d names of 60 keys", n)
					}
				})
				if cfg.Segments != nil {
					if err := cfg.Segments.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("%d of %d are there", hits, asked)
			if hits < asked/5 && test.disk == 0 { // a slow disk stores less
				t.Errorf("%d of %d are there", hits, asked)
			}
		})
	}
}

// TestNames: SCAN returns each value, and names of evicted ones are dropped.
func TestNames(t *testing.T) {
	cfg := small()
	cfg.MemoryBytes, cfg.MaxValue = 1<<20, 100<<10
	s, sock := serve(t, cfg)
	c := dial(t, sock)
	for i := range 3000 {
		c.want(ok, "SET", fmt.Sprintf("n%d", i), "v")
	}
	fits := int(cfg.MemoryBytes / 4096)
	if n := len(s.values.names.slots); n > 3*fits {
		t.Errorf("%d names of %d values", n, fits)
	}
	found := make(map[string]bool)
	for cursor := "0"; ; {
		got := strings.Split(c.ask("SCAN", cursor, "COUNT", "7", "MATCH", "n*"), "\r\n")
		cursor = got[2]
		for i := 5; i < len(got); i += 2 {
			found[got[i]] = true
		}
		if cursor == "0" {
			break
		}
	}
	there := 0
	for i := range 3000 {
		k := fmt.Sprintf("n%d", i)
		is := c.ask("EXISTS", k) == one
		if is != found[k] {
			t.Errorf("%s: SCAN %v, EXISTS %v", k, found[k], is)
		}
		if is {
			there++
		}
	}
	c.want(fmt.Sprintf(":%d\r\n", there), "DBSIZE")
	if there != fits {
		t.Errorf("%d values are there, %d fit", there, fits)
	}
}

// TestHeader has the bounds of a header.
func TestHeader(t *testing.T) {
	page := bytes.Repeat([]byte{0xff}, dataAt)
	h := header{ref: ref{pair: true, name: strings.Repeat("n", maxName)}, meta: strings.Repeat("m", dataAt-nameAt-maxName), size: 1, ends: 2}
	h.put(page)
	if got, ok := parseHeader(page); !ok || got != h || !h.fits() {
		t.Errorf("%v %v", got, ok)
	}
	for _, h := range []header{{ref: ref{name: strings.Repeat("n", maxName+1)}}, {ref: ref{pair: true, name: "n"}, meta: strings.Repeat("m", dataAt-nameAt)}} {
		if h.fits() {
			t.Errorf("%d and %d bytes fit", len(h.name), len(h.meta))
		}
	}
	for size, want := range map[int64]int{0: 1, 4096 - dataAt: 1, 4096 - dataAt + 1: 2, 10 * 4096: 11} {
		if n := pages(size, 4096); n != want {
			t.Errorf("%d bytes in %d pages, not %d", size, n, want)
		}
	}
}

// TestEpochSynced: a FLUSHALL whose epoch cannot be synced fails. /dev/null takes all bytes and no
// sync.
func TestEpochSynced(t *testing.T) {
	cfg := small()
	cfg.EpochFile = filepath.Join(t.TempDir(), "epoch")
	must(t, os.Symlink(os.DevNull, filepath.Join(filepath.Dir(cfg.EpochFile), ".epoch")))
	_, sock := serve(t, cfg)
	c := dial(t, sock)
	c.want(ok, "SET", "k", "v")
	if got := c.ask("FLUSHALL"); !strings.HasPrefix(got, "-ERR not flushed: sync ") {
		t.Errorf("%q", got)
	}
	c.want(bulk("v"), "GET", "k")
}

// TestSweeps: without promises, halves are looked at once a second.
func TestSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(small())
		must(t, err)
		defer s.Close()
		n := 0
		s.values.now = func() time.Time { n++; return time.Now() }
		run, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer cancel()
		s.Run(run)
		if n != 10 {
			t.Errorf("%d times in 10 s", n)
		}
	})
}
