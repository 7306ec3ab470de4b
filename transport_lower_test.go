package kvindex_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

// gone is a removal in a lower tier.
func gone(medium string, r *fakeengine.Removed) *fakeengine.Removed {
	r.Medium = medium
	return r
}

// streamOf returns a stream of pod a.
func streamOf(t testing.TB, ix *kvindex.Indexer, name string) (s stats.Stream) {
	t.Helper()
	for _, pod := range ix.Pods(nil) {
		for _, of := range pod.Streams {
			if of.Stream == name {
				return of
			}
		}
	}
	return s
}

// tells shows the state of pod a and of its offload daemon, stream "d".
func tells(t testing.TB, ix *kvindex.Indexer, p fakeengine.Prompt) string {
	t.Helper()
	s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]
	d := streamOf(t, ix, "d")
	text := fmt.Sprintf("%d+%d+%d %v, %s", s.CachedTokens, s.LoadedTokens, s.FetchedTokens, s.State, d.State)
	if s.UpperBound {
		text += ", at most"
	}
	if !d.Tiers {
		text += ", any tier"
	}
	return text
}

// offloads is the profile of an engine with an offload daemon.
func offloads() kvindex.Option {
	return withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone})
}

// TestOffloadDaemon: a stream of lower tiers alone has losses, restarts and clears of its own, for
// its tiers; those of the engine do not affect them. The rows are cases outside
// TestOffloadDaemonModel.
func TestOffloadDaemon(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	engine := func(seq uint64, evs ...fakeengine.Event) act {
		return brings(message("e", seq, float64(seq), 0, evs...))
	}
	daemon := func(seq uint64, evs ...fakeengine.Event) act {
		return brings(message("d", seq, float64(seq), 0, evs...))
	}
	unread := func(stream string, seq uint64) act {
		return func(_ *testing.T, ix *kvindex.Indexer) {
			m := message(stream, seq, 1, 0)
			m.Payload = []byte("no msgpack")
			_, _ = ix.IngestMessage(m)
		}
	}
	declared := note("d", events.NoteTiers, events.NoteOpened)
	gpu := engine(0, p.Stored(0, 6), p.Removed(5, 4, 3, 2)) // stores 6 blocks, keeps 2
	cpu := daemon(0, inTier("CPU", p.Stored(0, 6)))
	type row struct {
		do   act
		want string
	}
	for name, rows := range map[string][]row{
		"late": {
			{gpu, "32+0+0 live, , any tier"}, {declared, "32+0+0 live, silent"},
			{daemon(7, inTier("CPU", p.Stored(0, 6))), "32+64+0 live, partial"},
			{daemon(8, fakeengine.Cleared{}), "32+0+0 live, live"},
		},
		"a message of the daemon that cannot be read": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{unread("d", 1), "32+0+0 live, partial"},
			{daemon(2, inTier("CPU", p.Stored(2, 3))), "32+16+0 live, partial"},
		},
		"a restart of the daemon": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{brings(message("d", 0, 50, 0, inTier("CPU", p.Stored(2, 4)))), "32+32+0 live, live"},
		},
		"a rewind of the engine": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{note("e", events.NoteRewound), "0+96+0 replaying, live"},
			{gpu, "32+64+0 live, live"},
		},
		"another address of the engine": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{brings(message("e2", 0, 50, 0, p.Stored(0, 1))), "16+0+0 live, partial"},
		},
		"the connection of the daemon": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{note("d", events.NoteLost), "32+64+0 live, uncertain, at most"},
			{engine(1, p.Stored(2, 6)), "96+0+0 live, uncertain"},
			{engine(2, p.Removed(5)), "80+16+0 live, uncertain, at most"},
			{note("d", events.NoteHeld), "80+16+0 live, uncertain, at most"},
			{note("d", events.NoteCurrent), "80+16+0 live, live"},
		},
		"the engine is removed": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{func(t *testing.T, ix *kvindex.Indexer) { removeStream(t, ix, "e") }, "0+0+0 partial, partial"},
			{daemon(1, inTier("CPU", p.Stored(0, 2))), "0+0+0 partial, partial"},
			{gpu, "32+0+0 live, partial"},
			{daemon(2, inTier("CPU", p.Stored(2, 3))), "32+16+0 live, partial"},
		},
		"a stream alone that tells of the gpu at last": { // so it is the engine's
			{brings(message("d", 0, 1, 0, inTier("CPU", p.Stored(0, 6)))), "0+0+0 partial, live"},
			{daemon(1, p.Stored(0, 6), p.Removed(5, 4)), "64+32+0 live, live, any tier"},
			{daemon(3), "0+0+0 partial, partial, any tier"},
		},
		"a daemon that tells of the gpu": { // two streams of one rank
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{daemon(1, p.Stored(0, 1)), "32+0+0 uncertain, partial, any tier"},
			{daemon(2, inTier("CPU", p.Stored(0, 6))), "32+0+0 uncertain, partial, any tier"},
		},
		"an engine that moves, and begins with the host memory": {
			{brings(message("e", 0, 1, 0, p.Stored(0, 6), p.Removed(5, 4, 3, 2))), "32+0+0 live, , any tier"},
			{daemon(9, inTier("CPU", p.Stored(2, 3))), "32+16+0 uncertain, partial"},
			{daemon(10, p.Stored(0, 1)), "16+0+0 partial, partial, any tier"},
		},
		"an event that empties the cache comes first": { // maybe the engine's
			{gpu, "32+0+0 live, , any tier"},
			{daemon(0, fakeengine.Cleared{}, inTier("CPU", p.Stored(0, 1))), "0+0+0 live, live, any tier"},
		},
		"of several ranks": {
			{declared, "0+0+0 silent, silent"}, {gpu, "32+0+0 live, silent"}, {cpu, "32+64+0 live, live"},
			{brings(message("d", 1, 1, 1, inTier("CPU", p.Stored(0, 6)))), "32+64+0 live, live"},
			{brings(message("d", 3, 1, 1, inTier("CPU", p.Stored(0, 6)))), "32+0+0 live, partial"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := open(t, offloads())
			for i, r := range rows {
				r.do(t, ix)
				if got := tells(t, ix, p); got != r.want {
					t.Errorf("step %d: %q, want %q", i, got, r.want)
				}
			}
		})
	}
}

// TestOffloadDaemonLosses: a daemon's loss is reported for lower tiers and forgets them, with
// WithKeepOnLoss too, which keeps blocks that the engine has lost.
func TestOffloadDaemonLosses(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	var losses []string
	ix := open(t, offloads(), kvindex.WithKeepOnLoss(), kvindex.WithHooks(kvindex.Hooks{Lost: func(l kvindex.Loss) {
		losses = append(losses, fmt.Sprintf("%s %s %d kept=%v tiers=%v", l.Stream, l.Cause, l.Rank, l.Kept, l.Tiers))
	}}))
	note("d", events.NoteTiers)(t, ix)
	brings(
		message("d", 0, 1, 0), message("d", 2, 2, 0),
		message("e", 0, 1, 0, p.Stored(0, 6), p.Removed(5, 4, 3, 2)), message("d", 3, 3, 0, inTier("CPU", p.Stored(0, 6))),
		message("d", 4, 4, 1, inTier("CPU", p.Stored(0, 6))),
		message("d", 6, 5, 0), message("e", 2, 2, 0),
	)(t, ix)
	if got, want := tells(t, ix, p), "32+0+0 uncertain, partial"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	restarted("d")(t, ix)
	if want := []string{
		"d gap 0 kept=false tiers=true", "d gap 1 kept=false tiers=true", "d gap 0 kept=false tiers=true", "e gap 0 kept=true tiers=false",
		"d restart 0 kept=false tiers=true", "d restart 1 kept=false tiers=true",
	}; !slices.Equal(losses, want) {
		t.Errorf("losses\n%q, want\n%q", losses, want)
	}
}

// TestOffloadDaemonAlone: without events of the GPU a daemon's blocks are unknown; and a daemon
// without events leaves its pod unchanged.
func TestOffloadDaemonAlone(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t, offloads())
	note("d", events.NoteTiers)(t, ix)
	if pods := ix.Pods(nil); len(pods) != 1 || pods[0].State != kvindex.StateSilent {
		t.Errorf("%+v", pods)
	}
	brings(message("d", 0, 1, 0, inTier("CPU", p.Stored(0, 6))))(t, ix)
	if pods := ix.Pods(nil); pods[0].State != kvindex.StatePartial || pods[0].Ranks[0].State != kvindex.StatePartial || pods[0].Ranks[0].Stream != "" || pods[0].Ranks[0].Messages != 1 {
		t.Errorf("%+v", pods)
	}
	if pods := ix.Pods(nil); pods[0].Streams[0].State != "live" || pods[0].Ranks[0].Blocks[index.TierCPU] != 6 {
		t.Errorf("%+v", pods)
	}
	removeStream(t, ix, "d")
	if pods := ix.Pods(nil); len(pods) != 0 {
		t.Errorf("%+v", pods)
	}
}

// TestOffloadDaemonResets: a second store of a chunk proves a silent reset of the host memory, but
// not with a daemon.
func TestOffloadDaemonResets(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	for tier, want := range map[string]string{"STORAGE": "0+16+80 live, live", "CPU": "0+96+0 live, live"} {
		ix := open(t, withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, ClearsGPU: true}))
		note("d", events.NoteTiers)(t, ix)
		brings(
			message("e", 0, 1, 0, p.Stored(0, 6), p.Removed(5, 4, 3, 2, 1, 0), inTier("CPU", p.Stored(0, 6))),
			message("d", 0, 1, 0, inTier(tier, p.Stored(0, 6))), message("d", 1, 1, 0, inTier(tier, p.Stored(0, 6))),
			message("e", 1, 2, 0, inTier("CPU", p.Stored(0, 1))),
		)(t, ix)
		if got := tells(t, ix, p); got != want {
			t.Errorf("%s: %q, want %q", tier, got, want)
		}
	}
}

// TestOffloadDaemonKept: a kept index does not record the tiers of a stream: a gap when it
// continues forgets all lower ones.
func TestOffloadDaemonKept(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	m := memory(t)
	before := open(t, offloads(), kvindex.WithIndex(m))
	brings(
		message("d", 0, 1, 0, inTier("CPU", p.Stored(0, 6))), message("e", 0, 1, 0, p.Stored(0, 6), p.Removed(5, 4, 3, 2)), message("d", 1, 2, 0, inTier("STORAGE", p.Stored(0, 6))),
	)(t, before)
	if got, want := tells(t, before, p), "32+64+0 live, live"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	ix := open(t, offloads(), kvindex.WithIndex(m))
	for i, c := range []struct {
		do   act
		want string
	}{
		{brings(message("e", 1, 3, 0)), "32+64+0 partial, , any tier"},
		{brings(message("d", 2, 3, 0, gone("CPU", p.Removed(5)))), "32+48+16 uncertain, partial"},
		{brings(message("e", 2, 4, 0)), "32+48+16 partial, partial"},
		{brings(message("d", 4, 4, 0)), "32+0+0 partial, partial"},
	} {
		c.do(t, ix)
		if got := tells(t, ix, p); got != c.want {
			t.Errorf("step %d: %q, want %q", i, got, c.want)
		}
	}
}

// TestFleetOffloadDaemon: a Fleet follows a pod's daemon beside its engine, and removes both.
func TestFleetOffloadDaemon(t *testing.T) {
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	p := fakeengine.NewPrompt(1, 16, 8)
	ix := open(t, offloads())
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{Subscriber: events.SubscriberConfig{Backoff: 10 * time.Millisecond}})
	must(t, err)
	pod := events.Pod{ID: "a", Model: "m", Host: "127.0.0.1"}
	publish := func(port *int) *fakeengine.Publisher {
		from, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
		must(t, err)
		t.Cleanup(func() { from.Close() })
		_, at, _ := net.SplitHostPort(strings.TrimPrefix(from.Endpoint(), "tcp://"))
		*port, _ = strconv.Atoi(at)
		return from
	}
	engine, daemon := publish(&pod.Port), publish(&pod.TiersPort)
	ended := make(chan error, 1)
	go func() { ended <- fleet.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	must(t, fleet.Put("host", pod))
	for _, from := range []*fakeengine.Publisher{engine, daemon} {
		must(t, from.WaitSubscribers(ctx, 1))
	}
	until := func(want string, got func() string) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for got() != want {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%q, want %q", got(), want)
			}
		}
	}
	answer := func() string {
		s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]
		d := streamOf(t, ix, daemon.Endpoint())
		return fmt.Sprintf("%d+%d %v, daemon %s %v", s.CachedTokens, s.LoadedTokens, s.State, d.State, d.Tiers)
	}
	engine.Publish(fakeengine.Payload(1, 0, p.Stored(0, 6), p.Removed(5, 4, 3, 2)))
	until("32+0 live, daemon silent true", answer)
	daemon.Publish(fakeengine.Payload(1, 0, inTier("CPU", p.Stored(0, 6))))
	until("32+64 live, daemon live true", answer)
	daemon.Burn()
	daemon.Publish(fakeengine.Payload(2, 0, inTier("CPU", p.Stored(0, 3))))
	until("32+16 live, daemon partial true", answer) // a gap of the daemon does not affect the gpu's blocks
	fleet.Remove("host", "a")
	until("0", func() string { return fmt.Sprint(len(ix.Pods(nil))) })
}
