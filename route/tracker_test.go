package route_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/route"
)

// clock is a clock that a test sets.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.ns.Store(1e18)
	return c
}

func (c *clock) now() time.Time        { return time.Unix(0, c.ns.Load()) }
func (c *clock) add(d time.Duration)   { c.ns.Add(int64(d)) }
func (c *clock) start() *route.Tracker { return &route.Tracker{MaxAge: time.Minute, Now: c.now} }

// loadOf returns the load of rank 0 of a pod.
func loadOf(t *route.Tracker, pod string) route.Load { return loadOfRank(t, pod, 0) }

func loadOfRank(t *route.Tracker, pod string, rank int) route.Load {
	// Fill replaces any earlier load.
	pods := []route.Pod{{Name: pod, Rank: rank, Load: route.Load{Requests: -1, Prefill: 7, Decode: 9}}}
	t.Fill(pods)
	return pods[0].Load
}

func want(t *testing.T, when string, got, want route.Load) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

func TestFlight(t *testing.T) {
	var tr route.Tracker // the zero value, with the clock of the system
	f := tr.Sent("a", 0, 100, 30)
	want(t, "sent", loadOf(&tr, "a"), route.Load{Requests: 1, Prefill: 70})
	want(t, "another rank", loadOfRank(&tr, "a", 1), route.Load{})
	want(t, "another pod", loadOf(&tr, "b"), route.Load{})
	f.FirstToken()
	want(t, "computed", loadOf(&tr, "a"), route.Load{Requests: 1, Decode: 100})
	f.FirstToken()
	f.Tokens(5)
	f.Tokens(-5)
	want(t, "5 generated", loadOf(&tr, "a"), route.Load{Requests: 1, Decode: 105})
	g := tr.Sent("a", 0, 10, 0)
	other := tr.Sent("a", 1, 10, 0)
	f.Done()
	f.Done()
	f.Tokens(7)
	f.FirstToken()
	want(t, "one of two done", loadOf(&tr, "a"), route.Load{Requests: 1, Prefill: 10})
	want(t, "another rank", loadOfRank(&tr, "a", 1), route.Load{Requests: 1, Prefill: 10})
	g.Tokens(3)
	want(t, "tokens, which are behind the first", loadOf(&tr, "a"), route.Load{Requests: 1, Decode: 13})
	g.Done()
	other.Done()
	want(t, "all done", loadOf(&tr, "a"), route.Load{})
	var none *route.Flight
	none.FirstToken()
	none.Tokens(1)
	none.Done()
}

func TestFlightFigures(t *testing.T) {
	for _, c := range []struct {
		prompt, cached, more int
		prefill, decode      int
	}{
		{100, 100, 0, 0, 100},
		{100, 200, 0, 0, 100},
		{100, -5, 0, 100, 100},
		{-5, -5, -5, 0, 0},
		{0, 0, 3, 0, 3},
		{math.MaxInt, 0, math.MaxInt, math.MaxInt32, math.MaxInt32},
		{math.MaxInt, math.MaxInt, 0, 0, math.MaxInt32},
		{math.MinInt, math.MaxInt, math.MinInt, 0, 0},
		{10, math.MinInt, math.MaxInt, 10, math.MaxInt32},
	} {
		var tr route.Tracker
		f := tr.Sent("a", -1, c.prompt, c.cached)
		want(t, fmt.Sprint(c, " sent"), loadOfRank(&tr, "a", -1), route.Load{Requests: 1, Prefill: c.prefill})
		for range 2 {
			f.Tokens(c.more)
		}
		decode := c.decode + max(c.more, 0)
		if c.more <= 3 {
			want(t, fmt.Sprint(c, " computed"), loadOfRank(&tr, "a", -1), route.Load{Requests: 1, Decode: decode})
		} else {
			want(t, fmt.Sprint(c, " computed"), loadOfRank(&tr, "a", -1), route.Load{Requests: 1, Decode: math.MaxInt32})
		}
		f.Done()
		want(t, fmt.Sprint(c, " done"), loadOfRank(&tr, "a", -1), route.Load{})
	}
}

// TestFlightAge: a flight without Done counts until, but not including, the end of a MaxAge.
func TestFlightAge(t *testing.T) {
	for _, age := range []time.Duration{0, -1, time.Minute, 3} {
		c := newClock()
		tr := &route.Tracker{MaxAge: age, Now: c.now}
		if age <= 0 {
			age = 10 * time.Minute
		}
		f := tr.Sent("a", 0, 10, 0)
		c.add(age / 3)
		g := tr.Sent("a", 0, 20, 0)
		tr.Sent("a", 1, 5, 0).Done()
		c.add(age - age/3 - 1)
		want(t, fmt.Sprint("before ", age), loadOf(tr, "a"), route.Load{Requests: 2, Prefill: 30})
		c.add(1)
		want(t, fmt.Sprint("at ", age), loadOf(tr, "a"), route.Load{Requests: 1, Prefill: 20})
		f.FirstToken()
		f.Tokens(3)
		f.Done()
		g.FirstToken()
		c.add(age / 3)
		want(t, fmt.Sprint("after ", age), loadOf(tr, "a"), route.Load{})
		g.Done()
		want(t, fmt.Sprint("done after ", age), loadOf(tr, "a"), route.Load{})
		if tr.Aged() != 2 {
			t.Errorf("%d flights aged after %v, want 2", tr.Aged(), age)
		}
	}
	c := newClock()
	tr := &route.Tracker{MaxAge: math.MaxInt64, Now: c.now}
	tr.Sent("a", 0, 10, 0)
	c.add(30 * 365 * 24 * time.Hour)
	want(t, "after thirty years", loadOf(tr, "a"), route.Load{Requests: 1, Prefill: 10})
}

// TestClockGoesBack: flights and notes from before the clock went back end a MaxAge later.
func TestClockGoesBack(t *testing.T) {
	c := newClock()
	tr, other := c.start(), c.start()
	c.add(1000 * time.Hour)
	f := tr.Sent("a", 0, 1, 0)
	other.Sent("b", 0, 1, 0)
	merge(t, tr, "other", other.Changes())
	c.add(-1000 * time.Hour)
	tr.Sent("a", 0, 2, 0)
	want(t, "an earlier time", loadOf(tr, "a"), route.Load{Requests: 2, Prefill: 3})
	want(t, "an earlier time", loadOf(tr, "b"), route.Load{Requests: 1, Prefill: 1})
	c.add(time.Minute - 1)
	want(t, "before a MaxAge", loadOf(tr, "a"), route.Load{Requests: 2, Prefill: 3})
	c.add(1)
	want(t, "a MaxAge later", loadOf(tr, "a"), route.Load{})
	want(t, "a MaxAge later", loadOf(tr, "b"), route.Load{})
	f.Done()
	if tr.Aged() != 2 {
		t.Errorf("%d flights aged, want 2", tr.Aged())
	}
	c.add(time.Minute)
	tr.Fill(nil)
	if pods, notes := tr.InMemory(); pods+notes > 0 {
		t.Errorf("%d pods and %d notes stay", pods, notes)
	}
}

func TestForget(t *testing.T) {
	c := newClock()
	tr, other := c.start(), c.start()
	tr.Forget("a")
	f := tr.Sent("a", 0, 10, 0)
	g := tr.Sent("a", 3, 10, 0)
	h := tr.Sent("b", 0, 10, 0)
	other.Sent("a", 0, 5, 0)
	other.Sent("b", 0, 5, 0)
	n := other.Changes()
	merge(t, tr, "other", n)
	tr.Changes()
	tr.Forget("a")
	want(t, "forgotten", loadOf(tr, "a"), route.Load{})
	want(t, "another rank", loadOfRank(tr, "a", 3), route.Load{})
	want(t, "another pod", loadOf(tr, "b"), route.Load{Requests: 2, Prefill: 15})
	merge(t, tr, "other", n)
	want(t, "a note that comes again", loadOf(tr, "a"), route.Load{})
	if n := read(t, tr.Changes()); len(n.Pods) != 2 || n.Pods[0].Load != (route.Load{}) || n.Pods[1].Load != (route.Load{}) {
		t.Errorf("notes %+v, want that both ranks have nothing", n)
	}
	again := tr.Sent("a", 0, 7, 0)
	f.FirstToken()
	f.Done()
	g.Done()
	want(t, "sent again", loadOf(tr, "a"), route.Load{Requests: 1, Prefill: 7})
	merge(t, tr, "other", other.State())
	want(t, "merged again", loadOf(tr, "a"), route.Load{Requests: 2, Prefill: 12})
	again.Done()
	h.Done()
	want(t, "done", loadOf(tr, "a"), route.Load{Requests: 1, Prefill: 5})
}

// TestPodsLeaveMemory: the Tracker forgets a pod without flights unless it must still report the empty load.
func TestPodsLeaveMemory(t *testing.T) {
	notes := route.Notes{Life: 1}
	for name, report := range map[string]func(*route.Tracker, string){
		"nobody is notified": func(*route.Tracker, string) {},
		"Changes":            func(tr *route.Tracker, _ string) { tr.Changes() },
		"State":              func(tr *route.Tracker, _ string) { tr.State() },
		"Changes once": func(tr *route.Tracker, pod string) {
			if pod == "pod-0" {
				tr.Changes()
			}
		},
		"notes of another gateway": func(tr *route.Tracker, pod string) {
			notes.Seq++
			notes.Pods = []route.Note{{Pod: pod, Load: route.Load{Requests: 1}}}
			merge(t, tr, "other", notes.Encode())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			tr := c.start()
			live := tr.Sent("live", 0, 1, 0)
			for i := range 1000 {
				pod := fmt.Sprint("pod-", i)
				f, g := tr.Sent(pod, 0, 1, 0), tr.Sent(pod, 1, 1, 0)
				tr.Fill([]route.Pod{{Name: pod}, {Name: "unknown-" + pod}})
				f.Done()
				g.Done()
				report(tr, pod)
				c.add(time.Second / 10)
			}
			live.Done()
			if pods, notes := tr.InMemory(); pods > 700 || notes > 700 {
				t.Errorf("%d pods and %d notes are known", pods, notes)
			}
			c.add(2 * time.Minute)
			tr.Fill(nil)
			if pods, notes := tr.InMemory(); pods > 0 || notes > 0 {
				t.Errorf("%d pods and %d notes are known", pods, notes)
			}
		})
	}
}

// TestFindWithoutLock: after a few lookups a pod is found without a lock.
func TestFindWithoutLock(t *testing.T) {
	tr := newClock().start()
	const n = 100
	pods := make([]route.Pod, n)
	for i := range pods {
		pods[i].Name = fmt.Sprint("pod-", i)
		tr.Sent(pods[i].Name, 0, 1, 0)
	}
	tr.Fill(pods)
	tr.Fill(pods)
	if tr.Locked() {
		t.Error("pods are found with a lock")
	}
}

func TestAllocations(t *testing.T) {
	tr, pods := benchPods(256)
	if n := testing.AllocsPerRun(1000, func() { tr.Sent(pods[7].Name, 0, 100, 10).Done() }); n > 1 {
		t.Errorf("%v allocations from Sent to Done, want 1", n)
	}
	if n := testing.AllocsPerRun(1000, func() { tr.Fill(pods) }); n > 0 {
		t.Errorf("%v allocations of Fill, want 0", n)
	}
}

// TestTrackerRaces: eight goroutines call all methods of a Tracker. When all flights are done, the load is
// zero.
func TestTrackerRaces(t *testing.T) {
	const rounds = 20
	c := newClock()
	for round := range rounds {
		trackers := [2]*route.Tracker{c.start(), c.start()}
		names := [2]string{"0", "1"}
		pods := make([]route.Pod, 24)
		for i := range pods {
			pods[i] = route.Pod{Name: fmt.Sprint("pod-", i/2), Rank: i % 2}
		}
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				mine := append([]route.Pod(nil), pods...)
				var flights []*route.Flight
				for range 500 {
					i := r.IntN(2)
					tr, p := trackers[i], mine[r.IntN(len(mine))]
					switch r.IntN(16) {
					case 0:
						tr.Fill(mine)
						for _, p := range mine {
							if l := p.Load; l.Requests < 0 || l.Prefill < 0 || l.Decode < 0 {
								t.Errorf("%s has %+v", p.Name, l)
							}
						}
					case 1:
						tr.Forget(p.Name)
					case 2:
						tr.ForgetOrigin(names[1-i])
					case 3:
						merge(t, trackers[1-i], names[i], tr.State())
					case 4:
						merge(t, trackers[1-i], names[i], tr.Changes())
					case 5:
						c.add(time.Duration(r.IntN(20)) * time.Second)
					case 6:
						tr.Aged()
					case 7, 8, 9, 10, 11:
						flights = append(flights, tr.Sent(p.Name, p.Rank, r.IntN(1000), r.IntN(1000)))
					default:
						if len(flights) == 0 {
							continue
						}
						f := flights[r.IntN(len(flights))]
						switch r.IntN(3) {
						case 0:
							f.FirstToken()
						case 1:
							f.Tokens(r.IntN(100))
						default:
							f.Done()
						}
					}
				}
				for _, f := range flights {
					f.Done()
				}
			})
		}
		wg.Wait()
		for i, tr := range trackers {
			merge(t, trackers[1-i], names[i], tr.State())
		}
		for _, tr := range trackers {
			tr.Fill(pods)
			for _, p := range pods {
				want(t, p.Name+" when all is done", p.Load, route.Load{})
			}
			c.add(time.Minute)
			c.add(time.Minute)
			tr.Fill(pods)
			if known, notes := tr.InMemory(); known+notes > 0 {
				t.Errorf("%d pods and %d notes stay when all is done", known, notes)
			}
		}
	}
}

// TestSentIsNotLost: flights that many goroutines send to pods that come and go all count.
func TestSentIsNotLost(t *testing.T) {
	for range 100 {
		c := newClock()
		tr := c.start()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 210 {
					name := fmt.Sprint("pod-", i%7)
					f := tr.Sent(name, 0, 5, 0)
					if l := loadOf(tr, name); l.Requests < 1 || l.Prefill < 5 {
						t.Errorf("%s has %+v, and one was sent there", name, l)
					}
					f.Done()
					if i%30 == 29 { // altogether less than a MaxAge
						c.add(time.Second)
					}
				}
			})
		}
		wg.Wait()
		for i := range 7 {
			want(t, "all done", loadOf(tr, fmt.Sprint("pod-", i)), route.Load{})
		}
	}
}
