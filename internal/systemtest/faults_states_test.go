package systemtest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/faultproxy"
)

// These faults of TestFaults may make a state promise too much. The checks run while they last.

// engineLife is the history of an engine since its start.
type engineLife struct {
	published []numberedPayload
	// view is an Indexer with all messages before a number.
	view *kvindex.Indexer
	told int // number of messages
}

type numberedPayload struct {
	seq     uint64
	payload []byte
}

// state is the state of the pod.
func (s *schedule) state() kvindex.State {
	if pods := s.indexer.Pods(nil); len(pods) > 0 {
		return pods[0].State
	}
	return kvindex.StateUnknown
}

// compare returns how many blocks the answers about prompts have too many, how many the engine
// holds, and how many are claimed.
func (s *schedule) compare() (over, held, blocks int) {
	ids := make(map[int]bool)
	for _, t := range s.talks {
		tokens := t.tokens()
		for _, id := range s.engine.BlockIDs(tokens, t.adapter, t.salt) {
			if id != 0 {
				ids[id] = true
			}
		}
		over += max(0, s.matched(s.indexer, t)-s.engine.Held(tokens, t.adapter, t.salt)/16)
	}
	return over, len(ids), s.indexer.Stats().Blocks[kvindex.TierGPU]
}

// never fails if the pod is in a state, or a better one, and claims more than the engine holds. The
// engine is idle meanwhile.
func (s *schedule) never(what string, least kvindex.State) {
	before := s.state()
	if s.ambiguous || before < least || s.unverified() {
		return
	}
	over, held, blocks := s.compare()
	if (over > 0 || blocks > held) && s.state() == before {
		s.fail("%s: %d blocks over in prompts, %d blocks claimed, %d held: %s", what, over, blocks, held, s.situation())
	}
}

// glance scores a prompt at any moment. Messages may be under way, so an answer may claim what the
// applied messages do, and those of an earlier engine until its end is known.
func (s *schedule) glance() {
	state, pos := s.state(), s.indexer.Sink().StreamNext("a", "m", s.stream)
	if s.ambiguous || state < kvindex.StatePartial || len(s.talks) == 0 {
		return
	}
	t := s.talks[len(s.talks)-1-s.random.IntN(min(len(s.talks), 6))]
	got := s.matched(s.indexer, t)
	if s.state() != state || s.indexer.Sink().StreamNext("a", "m", s.stream) != pos {
		return
	}
	most := 0
	for _, life := range slices.Backward(s.lives) {
		if most = max(most, s.matched(s.viewOf(life, pos.Next), t)); got <= most {
			s.count("glances")
			return
		}
	}
	s.fail("over at a glance: %d blocks of a prompt, %d when %d is due: %s", got, most, pos.Next, s.situation())
}

// viewOf returns an Indexer with the messages of a life before a number.
func (s *schedule) viewOf(life *engineLife, next uint64) *kvindex.Indexer {
	if n := life.told; life.view == nil || n > 0 && life.published[n-1].seq >= next {
		if life.view != nil {
			life.view.Close()
		}
		life.view, life.told = s.newIndexer(false), 0
	}
	for ; life.told < len(life.published) && life.published[life.told].seq < next; life.told++ {
		s.must(life.view.Ingest("a", "m", life.published[life.told].payload))
	}
	return life.view
}

// otherBytes returns an equal batch with another time.
func otherBytes(payload []byte) []byte {
	other := slices.Clone(payload)
	other[9] ^= 1 // after the headers of the array and of the time
	return other
}

// cutOff cuts the connection while the engine continues, and returns when the loss was noticed. New
// connections fail.
func (s *schedule) cutOff() {
	s.connected()
	s.live.Refuse(true)
	s.live.Cut()
	s.noticed()
	s.batches(5+s.random.IntN(15), s.skip)
	s.never("live while cut off", kvindex.StateLive)
}

// noticed waits until the loss of a connection is noticed.
func (s *schedule) noticed() {
	s.until(0, "the loss of a connection", func() bool { return s.state() <= kvindex.StateUncertain })
}

// taken publishes until a message of the PUB socket was handled.
func (s *schedule) taken() bool {
	for range 5 {
		s.connected()
		s.batches(1, s.send)
		due := s.publisher.Next()
		if s.until(faultsLost, "", func() (yes bool) {
			s.note(func() { yes = s.heard == due })
			return yes
		}) {
			return true
		}
	}
	return false
}

// hostDies: the connections are lost without a signal.
func (s *schedule) hostDies() {
	s.beforeRestart()
	s.connected()
	s.live.Blackhole(true)
	if s.replay != nil {
		s.replay.Blackhole(true)
	}
	s.batches(s.some(), s.send)
	s.noticed()
	if !s.noReplay && s.random.IntN(2) == 0 {
		s.restartNow("restart after its host died")
		if s.random.IntN(2) == 0 {
			s.behind()
		}
	} else {
		s.publisher.Disconnect()
	}
	s.live.Blackhole(false)
	if s.replay != nil {
		s.replay.Blackhole(false)
	}
	s.batches(s.some(), s.send)
	s.count("host dies")
}

// replayFallsSilent: an answer repeats known messages and then stalls.
func (s *schedule) replayFallsSilent() {
	s.settle()
	s.cutOff()
	asked := 0
	s.publisher.LoseReplies(func(i, _ int) bool {
		if i == 0 {
			s.note(func() { asked++ })
		}
		return i > 0
	})
	s.live.Refuse(false)
	s.connected()
	if s.bind { // its first message identifies it
		s.batches(1, s.send)
	}
	s.until(faultsFire, "", func() (again bool) {
		s.never("live when an answer fell silent", kvindex.StateLive)
		s.note(func() { again = asked > 1 })
		return again
	})
	s.publisher.LoseReplies(nil)
	s.note(func() {
		if asked > 0 {
			s.count("replay falls silent")
		}
	})
	s.batches(s.some(), s.send)
}

// replayDiffers: the engine replays its messages with other bytes.
func (s *schedule) replayDiffers() {
	asked := false
	s.twin.LoseReplies(func(int, int) bool {
		s.note(func() { asked = true })
		return false
	})
	s.replay.Redirect(strings.TrimPrefix(s.twin.ReplayEndpoint(), "tcp://"))
	if s.random.IntN(2) == 0 {
		s.settle()
		s.cutOff()
		s.live.Refuse(false)
	}
	s.ask()
	if s.until(faultsFire, "", func() (yes bool) {
		s.note(func() { yes = asked })
		return yes
	}) {
		s.count("replay differs")
	}
	s.batches(s.some(), s.send)
	s.replay.Redirect(strings.TrimPrefix(s.publisher.ReplayEndpoint(), "tcp://"))
}

// stranger is another engine with the name of the schedule's.
type stranger struct {
	*fakeengine.Engine
	s      *schedule
	random *rand.Rand
	held   int // blocks
}

func (s *schedule) newStranger(publish func([]byte)) *stranger {
	o := &stranger{s: s, random: rand.New(rand.NewPCG(s.seed, 1))}
	var err error
	o.Engine, err = fakeengine.New(fakeengine.Config{
		Model: "m", HashSeed: "another", Encoding: s.encoding,
		Now: func() float64 { s.clock += 1. / 64; return s.clock }, Publish: publish,
	})
	s.must(err)
	return o
}

// work publishes a batch or two.
func (o *stranger) work() {
	_, err := o.Submit(fakeengine.Request{Tokens: randomTokens(o.random, 16*(1+o.random.IntN(4))+1), MaxTokens: 1})
	o.s.must(err)
	o.Drain()
	c := o.Counts()
	o.held = c.Stored - c.Removed
}

// replayOfAnother: another engine, with as many messages, answers.
func (s *schedule) replayOfAnother() {
	other := s.newPublisher(fakeengine.PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	asked := false
	other.LoseReplies(func(int, int) bool {
		s.note(func() { asked = true })
		return false
	})
	engine := s.newStranger(func(payload []byte) { other.Skip(payload) })
	for until := s.publisher.Next() + s.random.Uint64N(8); other.Next() < until; {
		engine.work()
	}
	s.ambiguous = true
	s.replay.Redirect(strings.TrimPrefix(other.ReplayEndpoint(), "tcp://"))
	switch s.random.IntN(3) {
	case 0:
		s.cutOff()
		s.live.Refuse(false)
	case 1: // nothing is known
		s.unfollow()
		s.must(s.indexer.RemovePod("a"))
		s.follow()
	default:
		s.ask()
	}
	if s.taken() {
		s.ambiguous = false
		s.never("live with the blocks of another engine", kvindex.StateLive)
		s.note(func() {
			if asked {
				s.count("replay of another")
			}
		})
	}
	s.replay.Redirect(strings.TrimPrefix(s.publisher.ReplayEndpoint(), "tcp://"))
	s.ambiguous = true
	s.batches(s.some(), s.send)
	s.settle()
	s.ambiguous = false
	s.never("over when the right engine answers again", kvindex.StatePartial)
}

// reopen closes the Indexer and its subscriber, calls meanwhile, and opens both on the kept index.
func (s *schedule) reopen(meanwhile func()) {
	s.unfollow()
	s.must(s.indexer.Close())
	meanwhile()
	s.openIndexer()
	s.follow()
	s.connected()
	s.never("live on a kept index", kvindex.StateLive)
}

func (s *schedule) keptIndex() {
	s.reopen(func() {
		if s.random.IntN(2) == 0 {
			s.batches(s.some(), s.skip)
		}
	})
	if s.random.IntN(2) == 0 && s.publisher.Next() > 0 {
		s.publisher.Repeat(s.publisher.Next() - 1)
	}
	s.batches(s.some(), s.send)
	s.count("kept index")
}

// keptIndexBehind: the engine restarts with an earlier clock while nobody listens.
func (s *schedule) keptIndexBehind() {
	s.beforeRestart()
	old := s.publisher.Next()
	s.reopen(func() {
		s.restartNow("kept index, restart, clock behind")
		s.behind()
		switch s.random.IntN(3) {
		case 0:
			s.batches(s.some(), s.skip)
		case 1:
			s.batches(int(old)+s.some(), s.skip)
		}
	})
	s.batches(20+s.random.IntN(20), s.send)
}

// restore continues with a new Indexer from a snapshot of the present one, which runs on for a
// while, and calls meanwhile between the two.
func (s *schedule) restore(meanwhile func()) {
	var b bytes.Buffer
	noticed := 0
	s.note(func() { noticed -= s.losses["restart"] })
	s.must(s.indexer.Snapshot(s.ctx, &b))
	if s.random.IntN(2) == 0 {
		s.batches(s.some(), s.send)
	}
	s.unfollow()
	s.must(s.indexer.Close())
	s.note(func() { noticed += s.losses["restart"] })
	s.restarts += noticed // maybe after the snapshot: then the next Indexer notices it too
	meanwhile()
	ix, err := kvindex.Restore(s.ctx, &b, append(s.options(), counting(s.guarded)...)...)
	s.must(err)
	s.indexer, s.memory = ix, nil
	s.follow()
	s.connected()
	s.never("live behind a snapshot", kvindex.StateLive)
}

func (s *schedule) snapshot() {
	s.restore(func() {
		if s.random.IntN(2) == 0 {
			s.batches(s.some(), s.skip)
		}
	})
	if s.random.IntN(2) == 0 && s.publisher.Next() > 0 {
		s.publisher.Repeat(s.publisher.Next() - 1)
	}
	s.batches(s.some(), s.send)
	s.count("snapshot")
}

// snapshotAndRestart: the engine restarts while nobody listens.
func (s *schedule) snapshotAndRestart() {
	s.beforeRestart()
	old := s.publisher.Next()
	s.restore(func() {
		s.restartNow("snapshot, restart")
		if s.random.IntN(2) == 0 {
			s.behind()
		}
		switch s.random.IntN(3) {
		case 0:
			s.batches(s.some(), s.skip)
		case 1:
			s.batches(int(old)+s.some(), s.skip)
		}
	})
	s.batches(s.some(), s.send)
}

// move: the pod gets another address, with its engine or with a new one.
func (s *schedule) move() {
	s.beforeRestart()
	if s.memory != nil && s.random.IntN(2) == 0 {
		s.reopen(func() {})
		if s.publisher.Next() > 0 { // only a repeat resumes the stream
			s.publisher.Repeat(s.publisher.Next() - 1)
			s.until(faultsFire, "", func() bool { return s.indexer.Sink().StreamNext("a", "m", s.stream).Next > 0 })
		}
	}
	s.unfollow()
	s.live.Close()
	if s.random.IntN(2) == 0 {
		s.restartNow("restart with a move")
		if s.random.IntN(2) == 0 {
			s.behind()
		}
	} else {
		s.batches(s.random.IntN(20), s.skip)
	}
	for slices.Contains(s.addresses, s.cfg.Endpoint) { // a port may be reused
		s.live.Close()
		s.live = s.proxy(s.publisher.Endpoint())
		s.cfg.Endpoint = "tcp://" + s.live.Addr()
	}
	s.addresses = append(s.addresses, s.cfg.Endpoint)
	s.stream = s.cfg.Endpoint
	s.follow()
	s.connected()
	s.taken()
	s.count("move")
}

// twoOfOneName: two engines publish for one rank, each on its own stream.
func (s *schedule) twoOfOneName() {
	other := s.newPublisher(fakeengine.PublisherConfig{})
	engine := s.newStranger(func(payload []byte) { other.Publish(payload) })
	cfg := s.cfg
	cfg.Endpoint, cfg.Replay = other.Endpoint(), ""
	s.addresses = append(s.addresses, cfg.Endpoint)
	s.connected()
	s.ambiguous = true
	end := s.subscribe(cfg)
	s.must(other.WaitSubscribers(s.ctx, 1))
	for range s.some() {
		if s.taken() {
			s.oneOf(engine)
		}
		engine.work()
		s.until(faultsLost, "", func() bool { return s.indexer.Sink().StreamNext("a", "m", cfg.Endpoint).Next == other.Next() })
		s.oneOf(engine)
	}
	end()
	s.must(other.Close())
	s.taken()
	s.count("two engines of one name")
	s.settle()
	s.ambiguous = false
	s.never("over when one engine is left", kvindex.StatePartial)
}

// oneOf fails if more is claimed than one of two engines holds.
func (s *schedule) oneOf(o *stranger) {
	state := s.state()
	_, held, blocks := s.compare()
	if most := max(held, o.held); state == kvindex.StateLive && blocks > most && s.state() == state {
		s.fail("live with the blocks of two engines: %d claimed, %d held by one and %d by the other: %s", blocks, held, o.held, s.situation())
	}
}

// twoConnections: a newer connection of a topic is lost, and an older one that is still open
// delivers the engine's earlier messages.
func (s *schedule) twoConnections() {
	s.beforeRestart()
	s.connected()
	due := s.publisher.Next()
	hold := s.live.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: s.data})
	if !hold.HasFired() {
		hold.Disarm()
		return
	}
	s.batches(s.some(), s.send)
	if !s.until(faultsFire, "", func() bool { return strings.Contains(hold.Held(), string(s.last)) }) {
		hold.Release()
		return
	}
	connects := s.connections()
	if s.random.IntN(2) == 0 {
		s.restartNow("restart with a newer connection")
		if s.noReplay {
			s.heardAnew(due)
		}
	} else {
		s.publisher.Disconnect()
	}
	s.until(0, "a newer connection", func() bool { return s.connections() > connects })
	s.batches(1, s.send) // gives the newer one the topic
	s.settle()
	s.live.Refuse(true)
	s.live.Arm(faultproxy.Fault{Kind: faultproxy.Cut, Direction: s.data})
	s.noticed()
	s.batches(5+s.random.IntN(15), s.skip)
	if s.replay != nil && s.random.IntN(2) == 0 { // no replay reports the missing ones
		s.replay.Refuse(true)
		s.repairable = false
	}
	taken := s.indexer.Stats().Messages
	hold.Release()
	if s.until(faultsFire, "", func() bool { return s.indexer.Stats().Messages > taken }) {
		s.count("two connections of a topic, and the older one is heard")
	}
	s.never("live by an older connection", kvindex.StateLive)
	if s.replay != nil {
		s.replay.Refuse(false)
	}
	s.live.Refuse(false)
	s.batches(s.some(), s.send)
	s.settle()
	s.note(func() { // older messages may look like another life: that is forgotten, and replayed
		if n := s.losses["restart"]; n > s.restarts {
			s.restarts = n
			s.count("an older connection is taken for a restart")
		}
	})
	s.count("two connections of a topic")
}
