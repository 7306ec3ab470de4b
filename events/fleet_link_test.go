package events

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Connection attempts that fail in the same way are reported at doubling intervals. Each reported
// change of a link begins at the state in which the last one ended.
func TestFleetTellsFailuresAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fleet{cfg: FleetConfig{OnChange: func(FleetChange) {}}, wake: make(chan struct{}, 1)}
		l := &link{f: f, m: &member{}, link: linkNone}
		begin, at := time.Now(), linkNone
		told := func() (lines []string) {
			for _, c := range f.changes.all {
				if c.From != at {
					t.Errorf("reported %v-%v, but the last state was %v", c.From, c.To, at)
				}
				at = c.To
				line := fmt.Sprint(c.To)
				if c.Err != nil {
					line += fmt.Sprint(" ", c.Err)
				}
				lines = append(lines, line)
			}
			f.changes.all = nil
			return lines
		}
		want := func(what string, lines ...string) {
			t.Helper()
			if got := told(); fmt.Sprint(got) != fmt.Sprint(lines) {
				t.Errorf("%s: reported %q, want %q", what, got, lines)
			}
		}
		refused := errors.New("refused")
		fail := func(err error) {
			l.set(linkConnecting, l.err)
			l.set(linkBackoff, err)
		}
		fail(refused)
		want("the first attempt", "connecting", "backoff refused")
		var times []time.Duration
		for time.Since(begin) < 5*time.Minute {
			time.Sleep(700 * time.Millisecond)
			fail(refused)
			if len(f.changes.all) > 0 {
				times = append(times, time.Since(begin).Round(time.Second))
				want("once more", "connecting", "backoff refused")
			}
		}
		if got, want := fmt.Sprint(times), "[1s 4s 8s 16s 32s 1m4s 2m5s 3m5s 4m5s]"; got != want {
			t.Errorf("reported after %v, want %v", got, want)
		}
		fail(errors.New("no route"))
		want("another failure", "connecting", "backoff no route")
		l.set(linkConnecting, l.err)
		want("an attempt without an end")
		l.set(linkLive, nil)
		want("a connection", "connecting", "live")
		l.set(linkBackoff, refused)
		want("its loss", "backoff refused")
		fail(refused)
		want("the first attempt after it", "connecting", "backoff refused")
		l.set(linkConnecting, l.err)
		l.set(linkReplaying, nil)
		l.set(linkLive, nil)
		want("another connection", "connecting", "replaying", "live")
		time.Sleep(time.Hour)
		begin, times = time.Now(), nil
		for n := 0; time.Since(begin) < 5*time.Minute; n++ {
			lost := fmt.Errorf("reset %d", n)
			l.set(linkBackoff, lost)
			l.set(linkConnecting, lost)
			switch n % 3 {
			case 0:
				l.set(linkReplaying, nil)
				l.set(linkBackoff, lost)
				l.set(linkConnecting, lost)
				fallthrough
			case 1:
				l.set(linkReplaying, nil)
			}
			l.set(linkLive, nil)
			if got := told(); len(got) > 0 {
				times = append(times, time.Since(begin).Round(time.Second))
				if got[0] != "backoff "+lost.Error() || got[len(got)-1] != "live" {
					t.Errorf("reported %q", got)
				}
			} else if at != linkLive {
				t.Errorf("%s reported last", at)
			}
			time.Sleep(300 * time.Millisecond)
		}
		if got, want := fmt.Sprint(times), "[0s 2s 6s 14s 31s 1m3s 2m3s 3m3s 4m3s]"; got != want {
			t.Errorf("losses reported after %v, want %v", got, want)
		}
		l.set(linkBackoff, errors.New("reset"))
		want("a loss among many")
		l.set(linkConnecting, l.err)
		l.set(linkBackoff, refused)
		want("an attempt that fails behind it", "backoff refused")
		l.set(linkConnecting, l.err)
		l.set(linkLive, nil)
		want("a connection behind that", "connecting", "live")
		l.set(linkBackoff, errors.New("reset"))
		l.set(linkNone, nil)
		want("the end of Run", "none")
		l.set(linkConnecting, nil)
		l.set(linkLive, nil)
		want("another Run", "connecting", "live")
		time.Sleep(time.Hour)
		l.set(linkBackoff, refused)
		want("a loss after an hour", "backoff refused")
		fail(refused)
		want("the first attempt after it", "connecting", "backoff refused")
		l.set(linkConnecting, l.err)
		l.set(linkEnding, nil)
		want("the end of the pod", "connecting", "ending")
	})
}
