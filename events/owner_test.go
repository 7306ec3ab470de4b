package events_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// The newest connection owns the stream. When it ends, older ones are ended too: their messages
// may be long out of date.
func TestSubscriberNewestConnectionWins(t *testing.T) {
	const topic = "kv@pod@model"
	message := func(seq uint64) []byte { return zmtptest.Message(topic, number(seq), "x") }
	s := subscribe(t, events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	endpoint := wait(t, "OnListen", s.listening)
	expect := func(seq uint64) {
		t.Helper()
		if m := s.next(); m.Seq != seq {
			t.Fatalf("got %s, want %d", show(m), seq)
		}
	}
	older := engine(t, endpoint, message(100), message(101))
	expect(100)
	expect(101)
	newer := engine(t, endpoint, message(0), message(1))
	expect(0)
	expect(1)
	say(t, older, message(102))
	if err := wait(t, "OnError", s.errors); !strings.Contains(err.Error(), topic) {
		t.Errorf("%q does not name the topic", err)
	}
	say(t, older, slices.Concat(zmtptest.Message(topic, "no number"), message(103)))
	s.waitStats("the older one's messages", func(st events.SubscriberStats) bool {
		return st.Dropped["superseded"] == 3 && st.Dropped["malformed"] == 0
	})
	say(t, newer, message(2))
	expect(2)
	newer.Close()
	s.waitStats("the newer one to go", func(st events.SubscriberStats) bool { return st.Disconnects == 1 })
	wait(t, "OnError", s.errors)
	say(t, older, message(104))
	s.waitStats("the older one to go", func(st events.SubscriberStats) bool { return st.Disconnects == 2 })
	engine(t, endpoint, message(105))
	expect(105)
	if len(s.errors) != 0 {
		t.Errorf("more errors: %v", <-s.errors)
	}
}

// A stream in doubt stays so while no connection brings it. Peers may invent topics, so the
// memory for that is bounded.
func TestSubscriberRemembersDoubts(t *testing.T) {
	var names []string
	for i := range 2*events.RememberedTrusts + 1 {
		names = append(names, fmt.Sprint("pod-", i))
	}
	if got := events.DoubtsOf(names[:2*events.RememberedTrusts]); len(got) != 2*events.RememberedTrusts {
		t.Errorf("%d topics are doubted still, want all %d", len(got), 2*events.RememberedTrusts)
	}
	// One more topic evicts half of them.
	if got, want := events.DoubtsOf(names), names[events.RememberedTrusts:]; !slices.Equal(got, want) {
		t.Errorf("%d topics are doubted still, want the last %d", len(got), len(want))
	}
}

// TestBoundOldConnection: messages of a connection to an engine that is gone do not count, even
// if no newer connection is there and the number is the expected one.
func TestBoundOldConnection(t *testing.T) {
	old, now := life{100, 2}, life{200, 3}
	r := newLives(t, old)
	b := newBound(t, r.endpoint, events.SubscriberConfig{})
	older := b.connect(old, 1)
	b.expect(t, "0 1")
	r.waitAsked(t, 2) // for all messages, and from message 1
	r.become(now)
	b.left(b.connect(now, 2)) // it may still be the old engine's
	want := "0 1 hold 1 anew 0 1 2"
	b.expect(t, want)
	r.become(life{200, 4})
	newer := b.connect(now, 3)
	want += " 3"
	b.expect(t, want)
	newer.Close()
	b.waitDisconnects(2)
	b.say(older, old, 4)
	b.left(older)
	r.become(life{200, 6})
	b.connect(now, 4, 5)
	b.expect(t, want+" 4 5")
}
