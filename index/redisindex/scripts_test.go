package redisindex

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// scriptServer is a server whose keys a test of scripts sets and reads.
type scriptServer struct {
	*testing.T
	client *redis.Client
}

func (s *scriptServer) call(of *script, keys []string, args ...any) any {
	s.Helper()
	p := s.client.Pipeline()
	reply := of.in(s.Context(), p, true, keys, args...)
	if _, err := p.Exec(s.Context()); err != nil {
		s.Fatalf("script %.40q: %v", of.text, err)
	}
	return reply.Val()
}

func (s *scriptServer) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// wantValue checks the value of a key and its remaining TTL.
func (s *scriptServer) wantValue(key, want string, ttl time.Duration) {
	s.Helper()
	if got := s.client.Get(s.Context(), key).Val(); got != want {
		s.Errorf("%q is %q, want %q", key, got, want)
	}
	s.wantTTL(key, ttl)
}

func (s *scriptServer) wantTTL(key string, ttl time.Duration) {
	s.Helper()
	if got := s.client.PTTL(s.Context(), key).Val(); got > ttl || got < ttl-30*time.Second {
		s.Errorf("%q is kept for %v, want %v", key, got, ttl)
	}
}

const hour = 3_600_000 // ms

// eachScripted runs the cases of a script on an empty server.
func eachScripted[C any](t *testing.T, cases []C, name func(C) string, run func(*scriptServer, C)) {
	client := redistest.Standalone(t).Client(t)
	for _, c := range cases {
		t.Run(name(c), func(t *testing.T) {
			s := &scriptServer{t, client}
			s.must(client.FlushAll(t.Context()).Err())
			run(s, c)
		})
	}
}

// Servers know a script by the name used in calls.
func TestScriptNames(t *testing.T) {
	client := redistest.Standalone(t).Client(t)
	for i, of := range []*script{putSections, takeSections, leaveToken, writeRows, dropRows} {
		if sha, err := client.ScriptLoad(t.Context(), of.text).Result(); err != nil || sha != of.sha {
			t.Errorf("script %d is called %s, and is %s: %v", i, of.sha, sha, err)
		}
	}
	p := client.Pipeline()
	reply := takeSections.in(t.Context(), p, false, []string{"nothing"}, "")
	if _, err := p.Exec(t.Context()); err != nil || reply.Val() != int64(0) {
		t.Errorf("by its name: %v, %v", reply.Val(), err)
	}
}

func TestPutSections(t *testing.T) {
	const big = 1 << 40
	mine, other, third := section(1, 10, "mine"), section(2, 20, "other"), section(3, 30, "third")
	type putCase struct {
		name  string
		was   string
		seq   uint64
		body  string
		gone  string
		reply int64
		want  string // without the head
		ttl   time.Duration
	}
	eachScripted(t, []putCase{
		{"the first", "", 5, "new", "", 1, section(1, 5, "new"), time.Hour},
		{"beside others", valueHead + other + third, 5, "new", "", 1, other + third + section(1, 5, "new"), time.Hour},
		{"in place of its own", valueHead + other + mine + third, 11, "new", "", 1, other + third + section(1, 11, "new"), time.Hour},
		{"the same again", valueHead + mine, 10, "again", "", 1, section(1, 10, "again"), time.Hour},
		{"late", valueHead + mine + other, 9, "new", "", 0, mine + other, 2 * time.Hour},
		{"late by a high word", valueHead + section(1, big+1, "mine"), 7, "new", "", 0, section(1, big+1, "mine"), 2 * time.Hour},
		{"late by a low word", valueHead + section(1, big+1, "mine"), big, "new", "", 0, section(1, big+1, "mine"), 2 * time.Hour},
		{"newer by a high word", valueHead + section(1, 0xffffffff, "mine"), big, "new", "", 1, section(1, big, "new"), time.Hour},
		{"newer by a low word beyond int32", valueHead + section(1, 0x7fffffff, "mine"), 0xfffffffe, "new", "", 1, section(1, 0xfffffffe, "new"), time.Hour},
		{"late, behind a section that has none", valueHead + section(1, 10, ""), 9, "new", "", 0, section(1, 10, ""), 2 * time.Hour},
		{"writers that have gone", valueHead + other + mine + third, 11, "new", bytesOf(3) + bytesOf(2), 1, section(1, 11, "new"), time.Hour},
		{"one writer that has gone", valueHead + other + third, 11, "new", bytesOf(9) + bytesOf(2), 1, third + section(1, 11, "new"), time.Hour},
		{"nothing to say", valueHead + mine, 11, "", "", 1, section(1, 11, ""), time.Minute},
		{"nothing to say beside others", valueHead + mine + other, 11, "", "", 1, other + section(1, 11, ""), time.Hour},
		{"nothing to say beside others who say nothing", valueHead + mine + section(2, 20, ""), 11, "", "", 1, section(2, 20, "") + section(1, 11, ""), time.Minute},
		{"nothing to say beside one who has gone", valueHead + mine + other, 11, "", bytesOf(2), 1, section(1, 11, ""), time.Minute},
		{"binary", valueHead + other, 5, "\x00\r\n\xff", "", 1, other + section(1, 5, "\x00\r\n\xff"), time.Hour},
		{"a value that is not ours", "garbage, and longer than the head of a section", 5, "new", "", 1, section(1, 5, "new"), time.Hour},
		{"a value of another version", "K\x02" + other, 5, "new", "", 1, section(1, 5, "new"), time.Hour},
		{"a section that is cut off", valueHead + other + third[:22], 5, "new", "", 1, other + section(1, 5, "new"), time.Hour},
		{"a head that is cut off", valueHead + other + third[:19], 5, "new", "", 1, other + section(1, 5, "new"), time.Hour},
		{"a length beyond the end", valueHead + other + bytesOf(3) + bytesOf(3) + "\xff\xff\xff\xff", 5, "new", "", 1, other + section(1, 5, "new"), time.Hour},
	}, func(c putCase) string { return c.name }, func(s *scriptServer, c putCase) {
		if c.was != "" {
			s.must(s.client.Set(s.Context(), "k", c.was, 2*time.Hour).Err())
		}
		got := s.call(putSections, []string{"k"}, bytesOf(1), bytesOf(c.seq), hour, c.gone, c.body)
		if got != c.reply {
			s.Errorf("reply %v, want %d", got, c.reply)
		}
		s.wantValue("k", valueHead+c.want, c.ttl)
	})
}

// A key of another type is foreign, and does not stop a writer.
func TestPutSectionsOverAnotherType(t *testing.T) {
	s := &scriptServer{t, redistest.Standalone(t).Client(t)}
	s.must(s.client.RPush(t.Context(), "k", "a", "b").Err())
	if got := s.call(takeSections, []string{"k"}, bytesOf(1)); got != int64(0) {
		t.Errorf("sections are taken out of a list: %v", got)
	}
	if got := s.call(putSections, []string{"k"}, bytesOf(1), bytesOf(5), hour, "", "new"); got != int64(1) {
		t.Errorf("reply %v", got)
	}
	s.wantValue("k", valueHead+section(1, 5, "new"), time.Hour)
}

// Each bucket of a call is written or kept by its own contents.
func TestPutSectionsOfManyBuckets(t *testing.T) {
	s := &scriptServer{t, redistest.Standalone(t).Client(t)}
	newer, other := section(1, 9, "newer"), section(2, 9, "other")
	s.must(s.client.MSet(t.Context(), "late", valueHead+newer, "beside", valueHead+other).Err())
	s.must(s.client.RPush(t.Context(), "list", "a").Err())
	keys := []string{"beside", "late", "list", "silent", "alone"}
	if got := s.call(putSections, keys, bytesOf(1), bytesOf(5), hour, "", "b", "l", "i", "", "a"); got != int64(4) {
		t.Errorf("reply %v", got)
	}
	s.wantValue("beside", valueHead+other+section(1, 5, "b"), time.Hour)
	if got := s.client.Get(t.Context(), "late").Val(); got != valueHead+newer {
		t.Errorf("the newer one is %q", got)
	}
	s.wantValue("list", valueHead+section(1, 5, "i"), time.Hour)
	s.wantValue("silent", valueHead+section(1, 5, ""), time.Minute)
	s.wantValue("alone", valueHead+section(1, 5, "a"), time.Hour)
}

func TestTakeSections(t *testing.T) {
	one, two, three := section(1, 10, "one"), section(2, 20, ""), section(3, 30, "three")
	type takeCase struct {
		name, was, gone string
		reply           int64
		want            string
	}
	eachScripted(t, []takeCase{
		{"of nothing", "", bytesOf(1), 0, ""},
		{"of what is not ours", "garbage", bytesOf(1), 0, "garbage"},
		{"the first", valueHead + one + two + three, bytesOf(1), 1, valueHead + two + three},
		{"the last", valueHead + one + two + three, bytesOf(3), 1, valueHead + one + two},
		{"two", valueHead + one + two + three, bytesOf(3) + bytesOf(1), 1, valueHead + two},
		{"all", valueHead + one + two + three, bytesOf(3) + bytesOf(2) + bytesOf(1), 1, ""},
		{"nobody's", valueHead + one + two, bytesOf(9), 1, valueHead + one + two},
		{"before garbage", valueHead + one + two + "garbage", bytesOf(1), 1, valueHead + two},
	}, func(c takeCase) string { return c.name }, func(s *scriptServer, c takeCase) {
		if c.was != "" {
			s.must(s.client.Set(s.Context(), "k", c.was, time.Hour).Err())
		}
		if got := s.call(takeSections, []string{"k"}, c.gone); got != c.reply {
			s.Errorf("reply %v, want %d", got, c.reply)
		}
		if n := s.client.Exists(s.Context(), "k").Val(); c.want == "" && n > 0 {
			s.Error("the key is still there")
		}
		if c.want != "" {
			s.wantValue("k", c.want, time.Hour)
		}
	})
}

func TestLeaveToken(t *testing.T) {
	a, b, c := bytesOf(1), bytesOf(2), bytesOf(3)
	type tokenCase struct {
		name, was, notes string
		fresh, lease     int
		reply            int64
		want             string
	}
	eachScripted(t, []tokenCase{
		{"the first", "", "", 1, 2000, 1, c},
		{"the first again", c, "", 1, 2000, 1, c},
		{"over the last", b, b, 0, 2000, 1, c},
		{"over one of several", b, a + b, 0, 2000, 1, c},
		{"the same again", c, a, 0, 2000, 1, c},
		{"without a lease", b, b, 0, 0, 1, c},
		{"where all is lost", "", b, 0, 2000, 0, ""},
		{"where the last is lost", a, b, 0, 2000, 0, a},
		{"where nothing may be, and something older is", a, "", 1, 2000, 0, a},
		{"bytes across two notes", "\x00\x00\x00\x00\x01\x00\x00\x00", a + a, 0, 2000, 0, "\x00\x00\x00\x00\x01\x00\x00\x00"},
	}, func(c tokenCase) string { return c.name }, func(s *scriptServer, of tokenCase) {
		if of.was != "" {
			s.must(s.client.Set(s.Context(), "t", of.was, 2*time.Hour).Err())
		}
		if got := s.call(leaveToken, []string{"t", "l"}, of.notes, of.fresh, c, hour, of.lease); got != of.reply {
			s.Errorf("reply %v, want %d", got, of.reply)
		}
		lease := s.client.PTTL(s.Context(), "l").Val()
		if want := of.reply == 1 && of.lease > 0; (lease > 0) != want || lease > 2*time.Second {
			s.Errorf("the lease lasts %v, given %v", lease, want)
		}
		switch {
		case of.want == "":
			if s.client.Exists(s.Context(), "t").Val() > 0 {
				s.Error("there is a token")
			}
		case of.reply == 1:
			s.wantValue("t", of.want, time.Hour)
		default:
			s.wantValue("t", of.want, 2*time.Hour)
		}
	})
}

// tellCall is a call of writeRows for one field.
type tellCall struct{ row, cursor, from, left string }

func TestTellRows(t *testing.T) {
	me, he, who := bytesOf(1), bytesOf(2), bytesOf(3)
	type tellCase struct {
		name             string
		was, left        string // existing row and cursor
		tell             tellCall
		reply            any
		wantRow, wantCur string
		told             bool
	}
	eachScripted(t, []tellCase{
		{"a new one", "", "", tellCall{me + "new", "c1", "", ""}, int64(1), me + "new", "c1", true},
		{"its own", me + "old", "c0", tellCall{me + "new", "c1", "", ""}, int64(1), me + "new", "c1", true},
		{"its own again", me + "new", "c1", tellCall{me + "new", "c1", "", ""}, int64(1), me + "new", "c1", true},
		{"its own without a cursor", me + "old", "c0", tellCall{me + "new", "", "", ""}, int64(1), me + "new", "c0", true},
		{"a cursor", me + "old", "c0", tellCall{"", "c1", "", ""}, int64(1), me + "old", "c1", false},
		{"a cursor of no row", "", "", tellCall{"", "c1", "", ""}, int64(0), "", "", false},
		{"another's", he + "his", "c0", tellCall{me + "new", "c1", "", ""}, he + "his", he + "his", "c0", false},
		{"a cursor of another's", he + "his", "c0", tellCall{"", "c1", "", ""}, he + "his", he + "his", "c0", false},
		{"another's, taken as he left it", he + "his", "c0", tellCall{me + "new", "c1", he, "c0"}, int64(1), me + "new", "c1", true},
		{"another's, who left no cursor", he + "his", "", tellCall{me + "new", "c1", he, ""}, int64(1), me + "new", "c1", true},
		{"another's, who has gone on", he + "his", "c5", tellCall{me + "new", "c1", he, "c0"}, he + "his", he + "his", "c5", false},
		{"another's, however he left it", he + "his", "c5", tellCall{me + "new", "c1", he, "*"}, int64(1), me + "new", "c1", true},
		{"another's, which a third one has taken", who + "its", "c0", tellCall{me + "new", "c1", he, "*"}, who + "its", who + "its", "c0", false},
		{"taken already", me + "old", "c9", tellCall{me + "new", "c1", he, "c0"}, int64(1), me + "new", "c1", true},
		{"one that has gone meanwhile", "", "", tellCall{me + "new", "c1", he, "c0"}, int64(1), me + "new", "c1", true},
		{"garbage", "garbage, more of it", "", tellCall{me + "new", "c1", "", ""}, "garbage, more of it", "garbage, more of it", "", false},
		{"too little for a row", he, "c0", tellCall{me + "new", "c1", "", ""}, int64(1), me + "new", "c1", true},
		{"a cursor of too little for a row", he, "c0", tellCall{"", "c1", "", ""}, int64(0), he, "c0", false},
	}, func(c tellCase) string { return c.name }, func(s *scriptServer, c tellCase) {
		ctx := s.Context()
		s.must(s.client.HSet(ctx, "r", "x", "y", versionField, "v0").Err())
		s.must(s.client.HSet(ctx, "c", "x", "y").Err())
		if c.was != "" {
			s.must(s.client.HSet(ctx, "r", "f", c.was).Err())
		}
		if c.left != "" {
			s.must(s.client.HSet(ctx, "c", "f", c.left).Err())
		}
		reply := s.call(writeRows, []string{"r", "c", "k"}, me, "v1", bytesOf(5), hour, "f", c.tell.row, c.tell.cursor, c.tell.from, c.tell.left)
		if got := reply.([]any); len(got) != 1 || got[0] != c.reply {
			s.Errorf("reply %q, want %q", got, c.reply)
		}
		if row, cursor := s.client.HGet(ctx, "r", "f").Val(), s.client.HGet(ctx, "c", "f").Val(); row != c.wantRow || cursor != c.wantCur {
			s.Errorf("row %q, cursor %q; want %q, %q", row, cursor, c.wantRow, c.wantCur)
		}
		if v := s.client.HGet(ctx, "r", versionField).Val(); (v != "v0") != c.told || c.told && !strings.HasPrefix(v, "v1") {
			s.Errorf("version %q, written %v", v, c.told)
		}
		s.wantTTL("r", time.Hour)
		s.wantTTL("c", time.Hour)
	})
}

// Rows of one call are written independently, and the version changes with each call that writes
// one.
func TestTellRowsVersion(t *testing.T) {
	s := &scriptServer{t, redistest.Standalone(t).Client(t)}
	ctx, me, he := t.Context(), bytesOf(1), bytesOf(2)
	s.must(s.client.HSet(ctx, "r", "b", he+"his").Err())
	versions := make(map[string]bool)
	for i := range 200 {
		reply := s.call(writeRows, []string{"r", "c", "k"}, me, "v1", bytesOf(5), hour, "a", me+"row", "", "", "", "b", me+"row", "c", "", "", "c", "", "c", "", "")
		if got := fmt.Sprintf("%q", reply); got != fmt.Sprintf("%q", []any{int64(1), he + "his", int64(0)}) {
			t.Fatalf("reply %s", got)
		}
		if versions[s.client.HGet(ctx, "r", versionField).Val()] = true; len(versions) != i+1 {
			t.Fatalf("after %d calls there were %d versions", i+1, len(versions))
		}
	}
	if got := s.client.HKeys(ctx, "c").Val(); len(got) > 0 {
		t.Errorf("there are cursors of %q", got)
	}
}

func TestDropRows(t *testing.T) {
	me, he := bytesOf(1), bytesOf(2)
	type dropCase struct {
		name   string
		fields []any
		want   []string // remaining fields
		told   bool
	}
	eachScripted(t, []dropCase{
		{"its own", []any{"a"}, []string{"b", "h"}, true},
		{"two of its own", []any{"a", "b"}, []string{"h"}, true},
		{"one of nobody", []any{"x"}, []string{"a", "b", "h"}, false},
		{"another's", []any{"h"}, []string{"a", "b", "h"}, false},
		{"its own and another's", []any{"h", "b", "x"}, []string{"a", "h"}, true},
	}, func(c dropCase) string { return c.name }, func(s *scriptServer, c dropCase) {
		ctx := s.Context()
		rows := map[string]string{"a": me + "1", "b": me + "2", "h": he + "3"}
		s.must(s.client.HSet(ctx, "c", rows).Err())
		rows[versionField] = "v0"
		s.must(s.client.HSet(ctx, "r", rows).Err())
		s.must(s.client.Expire(ctx, "r", time.Hour).Err())
		s.call(dropRows, []string{"r", "c", "k"}, append([]any{me, "v1", bytesOf(5)}, c.fields...)...)
		left := s.client.HGetAll(ctx, "r").Val()
		v := left[versionField]
		delete(left, versionField)
		if got := slices.Sorted(maps.Keys(left)); !slices.Equal(got, c.want) {
			s.Errorf("the rows %q are left, want %q", got, c.want)
		}
		if got := slices.Sorted(slices.Values(s.client.HKeys(ctx, "c").Val())); !slices.Equal(got, c.want) {
			s.Errorf("the cursors %q are left, want %q", got, c.want)
		}
		if (v != "v0") != c.told || c.told && !strings.HasPrefix(v, "v1") {
			s.Errorf("version %q, written %v", v, c.told)
		}
		s.wantTTL("r", time.Hour)
	})
}

// The registry of a dropped last row keeps its TTL if it has no version.
func TestDropLastRow(t *testing.T) {
	s := &scriptServer{t, redistest.Standalone(t).Client(t)}
	s.must(s.client.HSet(t.Context(), "r", "a", bytesOf(1)+"row").Err())
	s.must(s.client.Expire(t.Context(), "r", time.Hour).Err())
	s.call(dropRows, []string{"r", "c", "k"}, bytesOf(1), "v1", "", "a")
	if ttl := s.client.PTTL(t.Context(), "r").Val(); ttl == -time.Nanosecond {
		t.Error("a key without an end is left")
	}
}

// A late command of a commit older than the writer's token does nothing.
func TestLateRows(t *testing.T) {
	s := &scriptServer{t, redistest.Standalone(t).Client(t)}
	ctx, me := t.Context(), bytesOf(1)
	s.must(s.client.HSet(ctx, "r", "a", me+"row", versionField, "v0").Err())
	rows := s.client.HGetAll(ctx, "r").Val()
	for _, token := range []uint64{6, 1 << 40} {
		s.must(s.client.Set(ctx, "k", bytesOf(token), 0).Err())
		if reply := s.call(writeRows, []string{"r", "c", "k"}, me, "v1", bytesOf(5), hour, "a", me+"old", "c", "", ""); len(reply.([]any)) > 0 {
			t.Errorf("token %d: reply %q", token, reply)
		}
		s.call(dropRows, []string{"r", "c", "k"}, me, "v1", bytesOf(5), "a")
		if now := s.client.HGetAll(ctx, "r").Val(); !maps.Equal(now, rows) {
			t.Errorf("token %d: the registry has %q, want %q", token, now, rows)
		}
	}
	s.must(s.client.Set(ctx, "k", bytesOf(5), 0).Err()) // of the same commit
	s.call(dropRows, []string{"r", "c", "k"}, me, "v1", bytesOf(5), "a")
	if s.client.HExists(ctx, "r", "a").Val() {
		t.Error("the row is still there")
	}
}
