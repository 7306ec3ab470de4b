package route_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/route"
)

func note(pod string, requests int) route.Note {
	return route.Note{Pod: pod, Load: route.Load{Requests: requests, Prefill: 10 * requests}}
}

// read returns the notes that are encoded.
func read(t *testing.T, data []byte) route.Notes {
	t.Helper()
	n, err := route.DecodeNotes(data)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func merge(t *testing.T, to *route.Tracker, from string, data []byte) {
	t.Helper()
	if err := to.Merge(from, data); err != nil {
		t.Error(err)
	}
}

func wantRequests(t *testing.T, when string, tr *route.Tracker, pod string, n int) {
	t.Helper()
	want(t, when+": "+pod, loadOf(tr, pod), note(pod, n).Load)
}

func TestChanges(t *testing.T) {
	c := newClock()
	tr := c.start()
	first := read(t, tr.Changes())
	if first.Life != c.now().UnixNano() || first.Seq != 1 || first.Whole || len(first.Pods) > 0 {
		t.Errorf("first changes %+v", first)
	}
	c.add(time.Second)
	f := tr.Sent("a", 2, 10, 3)
	sent := route.Note{Pod: "a", Rank: 2, Load: route.Load{Requests: 1, Prefill: 7}}
	state := read(t, tr.State())
	if state.Life != first.Life || state.Seq != 2 || !state.Whole || !slices.Equal(state.Pods, []route.Note{sent}) {
		t.Errorf("state %+v", state)
	}
	if n := read(t, tr.Changes()); n.Seq != 3 || n.Whole || !slices.Equal(n.Pods, []route.Note{sent}) {
		t.Errorf("changes after a state %+v, want %+v", n, sent)
	}
	if n := read(t, tr.Changes()); n.Seq != 4 || n.Whole || len(n.Pods) > 0 {
		t.Errorf("changes when nothing has changed: %+v", n)
	}
	if n := read(t, tr.State()); !slices.Equal(n.Pods, []route.Note{sent}) {
		t.Errorf("state when all was sent: %+v", n)
	}
	// A gateway does not report the load of others.
	other := c.start()
	other.Sent("b", 0, 10, 0)
	merge(t, tr, "other", other.Changes())
	f.Done()
	sent.Load = route.Load{}
	if n := read(t, tr.State()); len(n.Pods) > 0 {
		t.Errorf("state when all is done: %+v", n)
	}
	if n := read(t, tr.Changes()); !slices.Equal(n.Pods, []route.Note{sent}) {
		t.Errorf("changes when all is done: %+v, want %+v", n, sent)
	}
	// The end of a flight by age is reported, without a Fill.
	tr.Sent("a", 2, 10, 3)
	for range 2 {
		tr.Changes()
		c.add(time.Minute / 2)
	}
	if n := read(t, tr.Changes()); !slices.Equal(n.Pods, []route.Note{sent}) {
		t.Errorf("changes when a flight is too old: %+v, want %+v", n, sent)
	}
}

// TestChangesAreAll: without loss, Changes alone are enough, in any order.
func TestChangesAreAll(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := newClock()
	from, to := c.start(), c.start()
	var flights []*route.Flight
	var letters [][]byte
	for range 2000 {
		for range r.IntN(20) {
			switch pod := fmt.Sprint("pod-", r.IntN(10)); r.IntN(6) {
			case 0:
				from.Forget(pod)
			case 1, 2:
				flights = append(flights, from.Sent(pod, 0, r.IntN(100), r.IntN(100)))
			default:
				if len(flights) > 0 {
					f := flights[r.IntN(len(flights))]
					[]func(){f.FirstToken, f.Done, func() { f.Tokens(5) }}[r.IntN(3)]()
				}
			}
		}
		c.add(time.Duration(r.IntN(1000)) * time.Millisecond)
		if letters = append(letters, from.Changes()); r.IntN(5) > 0 {
			continue
		}
		r.Shuffle(len(letters), func(i, j int) { letters[i], letters[j] = letters[j], letters[i] })
		for _, n := range letters {
			merge(t, to, "from", n)
		}
		letters = letters[:0]
		for i := range 10 {
			pod := fmt.Sprint("pod-", i)
			want(t, pod, loadOf(to, pod), loadOf(from, pod))
		}
	}
}

// TestMerge: the note that was sent last counts, in any order of arrival.
func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name  string
		notes []route.Notes
		a, b  int
	}{
		{"one", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", 1), note("b", 2)}}}, 1, 2},
		{"a later one", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 2, Pods: []route.Note{note("a", 3), note("b", 2)}}}, 3, 2},
		{"one that comes late", []route.Notes{{Life: 1, Seq: 2, Pods: []route.Note{note("a", 3)}}, {Life: 1, Seq: 1, Pods: []route.Note{note("a", 1), note("b", 2)}}}, 3, 2},
		{"one that comes late, of what is done", []route.Notes{{Life: 1, Seq: 2, Pods: []route.Note{note("a", 0)}}, {Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}}, 0, 0},
		{"one that comes twice", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}}, 1, 0},
		{"a state", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 2, Whole: true, Pods: []route.Note{note("b", 2)}}}, 0, 2},
		{"a state that comes late", []route.Notes{{Life: 1, Seq: 3, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 2, Whole: true, Pods: []route.Note{note("a", 5), note("b", 2)}}}, 1, 2},
		{"a change before a state, that comes late", []route.Notes{{Life: 1, Seq: 2, Whole: true}, {Life: 1, Seq: 1, Pods: []route.Note{note("a", 1)}}}, 0, 0},
		{"a state before a state, that comes late", []route.Notes{{Life: 1, Seq: 2, Whole: true, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 1, Whole: true, Pods: []route.Note{note("b", 1)}}}, 1, 0},
		{"a new life", []route.Notes{{Life: 1, Seq: 9, Pods: []route.Note{note("a", 1)}}, {Life: 2, Seq: 1, Pods: []route.Note{note("b", 2)}}}, 0, 2},
		{"a new life after a state", []route.Notes{{Life: 1, Seq: 9, Whole: true, Pods: []route.Note{note("a", 1)}}, {Life: 2, Seq: 1, Pods: []route.Note{note("a", 2)}}}, 2, 0},
		{"an older life", []route.Notes{{Life: 2, Seq: 1, Pods: []route.Note{note("a", 1)}}, {Life: 1, Seq: 9, Whole: true, Pods: []route.Note{note("b", 2)}}}, 1, 0},
		{"a pod twice", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", 1), note("a", 2)}}}, 1, 0},
		{"no Seq", []route.Notes{{Life: 1, Pods: []route.Note{note("a", 1)}}}, 0, 0},
		{"below 0", []route.Notes{{Life: 1, Seq: 1, Pods: []route.Note{note("a", -1), note("b", math.MinInt)}}}, 0, 0},
	} {
		tr := newClock().start()
		for _, n := range c.notes {
			merge(t, tr, "other", n.Encode())
		}
		wantRequests(t, c.name, tr, "a", c.a)
		wantRequests(t, c.name, tr, "b", c.b)
	}
}

func TestForgetOrigin(t *testing.T) {
	tr := newClock().start()
	tr.ForgetOrigin("a")
	first, second := route.Notes{Life: 5, Seq: 1, Pods: []route.Note{note("b", 2)}}, route.Notes{Life: 5, Seq: 2, Pods: []route.Note{note("a", 1)}}
	merge(t, tr, "x", second.Encode())
	merge(t, tr, "y", second.Encode())
	tr.ForgetOrigin("x")
	wantRequests(t, "forgotten", tr, "a", 1)
	merge(t, tr, "x", second.Encode())
	merge(t, tr, "x", first.Encode())
	wantRequests(t, "notes that come late and again", tr, "a", 1)
	wantRequests(t, "notes that come late and again", tr, "b", 0)
	merge(t, tr, "x", route.Notes{Life: 5, Seq: 3, Pods: []route.Note{note("a", 4)}}.Encode())
	wantRequests(t, "a later note", tr, "a", 5)
	tr.ForgetOrigin("x")
	merge(t, tr, "x", route.Notes{Life: 6, Seq: 1, Pods: []route.Note{note("a", 2)}}.Encode())
	wantRequests(t, "another life", tr, "a", 3)
}

// TestOriginIsSilent: a note counts for a MaxAge, both of a gateway that sends nothing more and of
// one that sends notes about other pods.
func TestOriginIsSilent(t *testing.T) {
	c := newClock()
	tr := c.start()
	merge(t, tr, "silent", route.Notes{Life: 5, Seq: 1, Pods: []route.Note{note("a", 1), note("b", 1)}}.Encode())
	merge(t, tr, "alive", route.Notes{Life: 5, Seq: 4, Pods: []route.Note{note("a", 2), note("b", 2)}}.Encode())
	c.add(30 * time.Second)
	merge(t, tr, "alive", route.Notes{Life: 5, Seq: 5, Pods: []route.Note{note("a", 2)}}.Encode())
	c.add(30*time.Second - 1)
	wantRequests(t, "before a MaxAge", tr, "a", 3)
	wantRequests(t, "before a MaxAge", tr, "b", 3)
	c.add(1)
	wantRequests(t, "a MaxAge later", tr, "a", 2)
	wantRequests(t, "a MaxAge later", tr, "b", 0)
	merge(t, tr, "alive", route.Notes{Life: 5, Seq: 3, Pods: []route.Note{note("b", 7)}}.Encode())
	wantRequests(t, "a note that is later than a MaxAge", tr, "b", 0)
	// The gateway sends again, with an earlier Life: its clock went back.
	merge(t, tr, "silent", route.Notes{Life: 4, Seq: 1, Pods: []route.Note{note("a", 1)}}.Encode())
	wantRequests(t, "heard again", tr, "a", 3)
}

// TestNotesOnTheWire: gateways of another build read the same bytes.
func TestNotesOnTheWire(t *testing.T) {
	for _, c := range []struct {
		notes route.Notes
		hex   string
	}{
		{route.Notes{Life: 1e18, Seq: 1}, "01008080a0f6f4acdbe01b0100"},
		{route.Notes{Life: -1, Seq: math.MaxUint64, Whole: true, Pods: []route.Note{
			{Pod: "a-0", Rank: 3, Load: route.Load{Requests: 2, Prefill: 300, Decode: math.MaxInt32}},
			{Rank: -1, Load: route.Load{}},
		}}, "010101ffffffffffffffffff0102" + "03612d300602ac02ffffffff07" + "0001000000"},
	} {
		if got := hex.EncodeToString(c.notes.Encode()); got != c.hex {
			t.Errorf("%+v\n%s, want\n%s", c.notes, got, c.hex)
		}
	}
}

// TestMergeRefuses: bytes that are not valid change nothing, and the error says where.
func TestMergeRefuses(t *testing.T) {
	valid := string(route.Notes{Life: 7, Seq: 2, Whole: true, Pods: []route.Note{note("a", 1), note("b", 2)}}.Encode())
	head := valid[:5]
	for _, c := range []struct{ name, data, want string }{
		{"JSON", `{"Life":7}`, "version 123, want 1"},
		{"a later version", "\x02" + valid[1:], "version 2, want 1"},
		{"whole", "\x01\x02", "no valid whole at byte 1 of 2"},
		{"nothing behind the head", valid[:4], "no valid number of notes at byte 4 of 4"},
		{"a number without an end", valid[:3] + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "no valid seq at byte 3 of 14"},
		{"more notes than bytes", head[:4] + "\x7f" + valid[5:], "no valid number of notes at byte 4 of 17"},
		{"the second name is cut off", valid[:12], "no valid name at byte 12 of 12"},
		{"the second note is cut off", valid[:len(valid)-1], "no valid load at byte 16 of 16"},
		{"a load of 2^31", valid[:14] + "\x80\x80\x80\x80\x08" + valid[15:], "no valid load at byte 14 of 21"},
		{"bytes behind the end", valid + "\x00", "no valid end at byte 17 of 18"},
		{"too many bytes", strings.Repeat("\x01", 16<<20+1), "16777217 bytes, 16777216 at most"},
	} {
		tr := newClock().start()
		merge(t, tr, "other", route.Notes{Life: 7, Seq: 1, Pods: []route.Note{note("c", 3)}}.Encode())
		if err := tr.Merge("other", []byte(c.data)); err == nil || err.Error() != `route: notes of gateway "other": `+c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		for pod, n := range map[string]int{"a": 0, "b": 0, "c": 3} {
			wantRequests(t, c.name, tr, pod, n)
		}
		merge(t, tr, "other", nil)
		merge(t, tr, "other", []byte(valid))
		wantRequests(t, c.name+", and then valid notes", tr, "c", 0)
	}
}

// FuzzNotes merges any bytes: notes are refused, or they are what their own encoding says.
func FuzzNotes(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(route.Notes{Life: math.MinInt64, Seq: math.MaxUint64}.Encode())
	f.Add(route.Notes{Life: 1, Seq: 1, Whole: true, Pods: []route.Note{note("a", 1), {Pod: "b", Rank: math.MinInt, Load: route.Load{Decode: math.MaxInt32}}}}.Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := newClock().start()
		n, err := route.DecodeNotes(data)
		if merged := tr.Merge("other", data); (merged == nil) != (err == nil || len(data) == 0) {
			t.Fatalf("Merge says %v, and the decoder %v", merged, err)
		}
		if _, notes := tr.InMemory(); err != nil && notes > 0 || notes > 1+len(data)/5 {
			t.Fatalf("%d notes are kept of %d bytes (%v)", notes, len(data), err)
		}
		if err != nil {
			return
		}
		if again, err := route.DecodeNotes(n.Encode()); err != nil || !reflect.DeepEqual(again, n) {
			t.Fatalf("%+v, and encoded again %+v (%v)", n, again, err)
		}
	})
}

// FuzzMerge merges notes of any kind. No figure is below 0, and a state of a new life corrects all
// figures.
func FuzzMerge(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(r.Uint32() >> r.IntN(32))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		figure := func() int64 {
			switch b := next(); b % 4 {
			case 0:
				return int64(b)
			case 1:
				return []int64{math.MaxInt64, math.MinInt64, math.MaxInt32, math.MinInt32, -1, 0}[b/4%6]
			default:
				var raw [8]byte
				for i := range raw {
					raw[i] = next()
				}
				return int64(binary.LittleEndian.Uint64(raw[:]))
			}
		}
		c := newClock()
		tr := c.start()
		own := tr.Sent("0", 0, 3, 0)
		pods := []route.Pod{{Name: "0"}, {Name: "1"}, {Name: "2"}, {Name: "2", Rank: 1}, {Name: ""}}
		check := func() {
			t.Helper()
			tr.Fill(pods)
			for i, p := range pods {
				if l := p.Load; l.Requests < 0 || l.Prefill < 0 || l.Decode < 0 || i == 0 && tr.Aged() == 0 && l.Requests < 1 {
					t.Fatalf("%+v", p)
				}
			}
		}
		names := [2]string{"x", "y"}
		merged := 0
		for len(data) > 0 {
			switch next() % 8 {
			case 0:
				tr.ForgetOrigin(names[next()%2])
			case 1:
				c.add(time.Duration(next()) * time.Second)
			case 2:
				c.add(-time.Duration(next()) * time.Second)
			default:
				n := route.Notes{Life: figure(), Seq: uint64(figure()), Whole: next()%4 == 0}
				for range next() % 8 {
					p := pods[int(next())%len(pods)]
					rank := p.Rank
					if next()%16 == 0 {
						rank = int(figure())
					}
					n.Pods = append(n.Pods, route.Note{Pod: p.Name, Rank: rank, Load: route.Load{Requests: int(figure()), Prefill: int(figure()), Decode: int(figure())}})
					merged++
				}
				merge(t, tr, names[next()%2], n.Encode())
			}
			check()
			if known, notes := tr.InMemory(); known > merged+1 || notes > merged+2 {
				t.Fatalf("%d pods and %d notes, after %d were merged", known, notes, merged)
			}
		}
		own.Done()
		for _, name := range names {
			tr.ForgetOrigin(name)
		}
		tr.Fill(pods)
		for _, p := range pods {
			want(t, "an empty Tracker", p.Load, route.Load{})
		}
		c.add(20 * time.Minute) // the Tracker forgets each Life and Seq
		tr.Fill(nil)
		for _, name := range names {
			merge(t, tr, name, route.Notes{Life: math.MinInt64, Seq: 1, Whole: true, Pods: []route.Note{note("1", 1)}}.Encode())
		}
		tr.Fill(pods)
		for _, p := range pods {
			n := 0
			if p.Name == "1" {
				n = 2
			}
			want(t, "a state, "+p.Name, p.Load, note("", n).Load)
		}
	})
}

// The load of an earlier life ends at the next Changes of a gateway that is idle, whatever was
// lost or sent to others before.
func TestEarlierLife(t *testing.T) {
	for name, first := range map[string]func(*route.Tracker) []byte{"State": (*route.Tracker).State, "Changes": (*route.Tracker).Changes} {
		c := newClock()
		before, other := c.start(), c.start()
		before.Sent("a", 0, 10, 0)
		merge(t, other, "gateway", before.Changes())
		wantRequests(t, name, other, "a", 1)
		c.add(time.Second)
		now := c.start()
		first(now)
		merge(t, other, "gateway", now.Changes())
		wantRequests(t, name, other, "a", 0)
	}
}
