package systemtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/kvindextest"
)

// scripted runs a schedule whose faults the test calls. A subscriber connects; everything is known
// and live when the script begins.
func scripted(t *testing.T, replay bool, script func(*schedule)) {
	t.Helper()
	s := newSchedule(1, 0, nil)
	s.repairable, s.keep, s.bind, s.guarded, s.noReplay = true, false, false, false, !replay
	s.wrong = -1
	s.buffer = 10_000
	s.kinds = []fault{{name: "script", do: func(s *schedule) {
		s.settle()
		script(s)
	}}}
	if _, _, err := s.run(zmtptest.Context(t)); err != nil {
		t.Error(err)
	}
}

// TestCatchingUp: a view is not live while missed messages arrive.
func TestCatchingUp(t *testing.T) {
	zmtptest.NoLeaks(t)
	scripted(t, true, func(s *schedule) {
		s.unfollow()
		s.cfg.ReplayTimeout = time.Hour // a held message is not a timeout
		s.follow()
		s.settle()
		s.cutOff()
		s.batches(400, s.skip)
		hold := s.replay.ArmNext(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Down, After: handshakeOfROUTER + 20_000})
		before := s.indexer.Stats().Replayed
		s.live.Refuse(false)
		s.until(0, "a part of what was missed", func() bool { return hold.HasFired() && s.indexer.Stats().Replayed > before+10 })
		for range 20 { // all arrived messages are applied eventually
			if state := s.state(); state > kvindex.StateReplaying {
				s.fail("%v while it is caught up: %s", state, s.situation())
			}
			s.until(pollEvery, "", func() bool { return false })
		}
		hold.Release()
		s.until(0, "a live view", func() bool { return s.state() == kvindex.StateLive })
		s.never("live", kvindex.StateLive)
	})
}

// TestFarNumber: a single message with an unreachable number and time does not end a stream.
func TestFarNumber(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			scripted(t, replay, func(s *schedule) {
				seq := binary.BigEndian.AppendUint64(nil, 1<<60)
				far := zmtptest.Message("kv@a@m", string(seq), string(fakeengine.Payload(1e15, 0)))
				heard, connects := s.indexer.Stats().Messages, s.connections()
				s.live.Arm(faultproxy.Fault{Kind: faultproxy.Inject, Direction: s.data, Data: far})
				s.until(0, "the far message", func() bool { // or a connection without it
					return s.indexer.Stats().Messages > heard || s.connections() > connects
				})
				s.repairable = replay
				s.batches(40, s.send)
			})
		})
	}
}

// TestReplayComesBack: losses while the replay socket failed are repaired when it answers again and
// the engine still has its whole life.
func TestReplayComesBack(t *testing.T) {
	zmtptest.NoLeaks(t)
	scripted(t, true, func(s *schedule) {
		s.replay.Refuse(true)
		s.ask()
		s.until(0, "the loss", func() (lost bool) {
			s.note(func() { lost = s.losses["gap"] > 0 })
			return lost
		})
		s.replay.Refuse(false)
		s.until(0, "a live view", func() bool { return s.state() == kvindex.StateLive })
		s.repairable = false // the losses last for a while
	})
}

// noteSink records when its stream becomes current, while its connection lasts.
type noteSink struct {
	events.Sink
	current chan struct{}
}

func (n noteSink) StreamNote(pod, model, stream string, note events.Note) error {
	for note == events.NoteLost && len(n.current) > 0 {
		<-n.current
	}
	err := n.Sink.StreamNote(pod, model, stream, note)
	if note == events.NoteCurrent {
		n.current <- struct{}{}
	}
	return err
}

// TestNormalChanges: a start and a restart of an engine change its pod's state once, and nothing is
// reported before the connection is lost.
func TestNormalChanges(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			ctx := zmtptest.Context(t)
			type change struct{ from, to kvindex.State }
			changes, errs := make(chan change, 100), make(chan error, 100)
			ix := open(t, kvindex.WithHooks(kvindex.Hooks{State: func(_, _ string, from, to kvindex.State) { changes <- change{from, to} }}))
			engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "a", Model: "m", Replay: replay})
			must(t, err)
			t.Cleanup(func() { engine.Close() })
			sink := noteSink{ix.Sink(), make(chan struct{}, 100)}
			runSubscriber(t, sink, events.SubscriberConfig{
				Endpoint: engine.Endpoint(), Replay: engine.ReplayEndpoint(), Pod: "a", Model: "m",
				Backoff: 20 * time.Millisecond,
				OnError: func(err error) { errs <- err },
			})
			expect := func(from, to kvindex.State) {
				t.Helper()
				if got := <-changes; got != (change{from, to}) {
					t.Errorf("%+v, want %v to %v", got, from, to)
				}
			}
			r := rand.New(rand.NewPCG(1, 2))
			serve := func() {
				err := engine.WaitSubscribers(ctx, 1)
				if replay { // messages before its answer are held, which is visible
					<-sink.current
				}
				for range 3 {
					_, failed := engine.Serve(ctx, kvindextest.Request{Tokens: randomTokens(r, 100)})
					err = errors.Join(err, failed)
				}
				if err = errors.Join(err, engine.WaitApplied(ctx, ix)); err != nil {
					t.Fatal(err)
				}
			}
			serve()
			expect(kvindex.StateSilent, kvindex.StateLive)
			if len(errs) > 0 {
				t.Errorf("a normal start: %v", <-errs)
			}
			must(t, engine.Restart())
			expect(kvindex.StateLive, kvindex.StateUncertain)
			serve()
			expect(kvindex.StateUncertain, kvindex.StateLive)
			if len(changes) > 0 && len(errs) == 1 { // a second connection is reported
				t.Errorf("a change too many: %+v", <-changes)
			}
		})
	}
}
