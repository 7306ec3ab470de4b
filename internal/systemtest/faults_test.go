package systemtest

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

var (
	faultsSeed = flag.Uint64("faults.seed", 1, "seed of the first schedule of TestFaults")
	faultsOnly = flag.String("faults.only", "", "the one kind of fault in the schedules of TestFaults")
	faultsN    = flag.Int("faults.n", 32, "schedules of TestFaults; long form: 1000")
)

const (
	// faultsPatience bounds each wait of a schedule; many schedules run at a time.
	faultsPatience = 3 * time.Minute
	// faultsFire bounds the wait for an armed fault that takes place unless another one prevents
	// it.
	faultsFire = 2 * time.Second
	// faultsLate is the maximum delay of timers at which another schedule begins, as those under
	// way need the machine.
	faultsLate = 100 * time.Millisecond
	// faultsLost is the time after which a schedule's last message is followed by another: it may
	// be lost between an answer to a replay and the subscription.
	faultsLost = time.Second
	// pollEvery is the interval of checks of a condition.
	pollEvery = 10 * time.Millisecond
	// handshakeOf... are the numbers of bytes that an engine's sockets send before their first
	// message: greeting and READY.
	handshakeOfPUB    = 64 + 2 + 6 + (1 + 11 + 4 + 3)
	handshakeOfROUTER = 64 + 2 + 6 + (1 + 11 + 4 + 6) + (1 + 8 + 4)
)

// fault is a kind of fault.
type fault struct {
	name string
	do   func(*schedule)
	// beyond: losses may be permanent.
	beyond bool
	// replay: needs a replay socket.
	replay bool
	// repaired: only for repairable schedules, and twice as frequent there.
	repaired bool
	// binds, dials: only for a subscriber that does.
	binds, dials bool
}

var faults = []fault{
	{name: "drop", do: (*schedule).drop},
	{name: "replay cut short", do: (*schedule).replayCutShort, replay: true},
	{name: "replay with holes", do: (*schedule).replayWithHoles, replay: true},
	{name: "duplicate", do: (*schedule).duplicate},
	{name: "late", do: (*schedule).late},
	{name: "late across a reconnect", do: (*schedule).stale, replay: true},
	{name: "replay overtaken", do: (*schedule).overtaken, replay: true},
	{name: "cut", do: (*schedule).cut},
	{name: "replay cut", do: (*schedule).cutReplay, replay: true},
	{name: "stall", do: (*schedule).stall},
	{name: "half-open", do: (*schedule).halfOpen},
	{name: "replay half-open", do: (*schedule).halfOpenReplay, replay: true},
	{name: "garbage", do: (*schedule).garbage},
	{name: "oversized", do: (*schedule).oversized},
	{name: "restart", do: (*schedule).restart},
	{name: "restart, clock behind", do: (*schedule).restartBehind, replay: true},
	{name: "restart, past the last number", do: (*schedule).restartPast, replay: true},
	{name: "older lives again", do: (*schedule).olderLives, repaired: true},
	{name: "restart within a replay", do: (*schedule).restartInReplay, beyond: true, replay: true},
	{name: "number burnt", do: (*schedule).burn, beyond: true},
	{name: "engine forgot", do: (*schedule).forgot, beyond: true},
	{name: "host dies", do: (*schedule).hostDies},
	{name: "replay falls silent", do: (*schedule).replayFallsSilent, replay: true},
	{name: "replay differs", do: (*schedule).replayDiffers, beyond: true, replay: true},
	{name: "replay of another", do: (*schedule).replayOfAnother, beyond: true, replay: true},
	{name: "kept index", do: (*schedule).keptIndex, beyond: true},
	{name: "kept index, restart, clock behind", do: (*schedule).keptIndexBehind, beyond: true, replay: true},
	{name: "snapshot", do: (*schedule).snapshot},
	{name: "snapshot, restart", do: (*schedule).snapshotAndRestart, replay: true},
	{name: "move", do: (*schedule).move, beyond: true, dials: true},
	{name: "two engines of one name", do: (*schedule).twoOfOneName, beyond: true, dials: true},
	{name: "two connections of a topic", do: (*schedule).twoConnections, binds: true},
}

// schedule is one engine behind faults, and one Indexer that follows it. The seed determines
// everything except the interleaving of goroutines.
type schedule struct {
	seed         uint64
	random       *rand.Rand
	wrongReplays []string // endpoints by index of wrongReplays
	ctx          context.Context
	lag          time.Duration // delay of timers at the start

	repairable bool // all losses are within the replay buffer
	keep       bool // KeepOnLoss
	bind       bool
	guarded    bool // default counting of copies, and reports; otherwise CopiesExact
	noReplay   bool
	wrong      int // index in wrongReplays, instead of a replay socket; -1: none
	kinds      []fault
	encoding   fakeengine.Encoding

	engine    *fakeengine.Engine
	clock     float64
	talks     []*faultTalk
	serving   []*faultTalk
	markers   uint64
	how       func(payload []byte) // publishes a batch
	batched   int
	bytes     int
	buffer    int
	last      []byte // the newest payload
	restarts  int
	setBack   bool // its clock
	resets    int
	lostAgain int // lost final messages

	publisher    *fakeengine.Publisher
	twin         *fakeengine.Publisher // publishes the same batches with other bytes, to nobody; nil unless needed
	live, replay *faultproxy.Proxy
	data         faultproxy.Direction // of live: from the engine
	indexer      *kvindex.Indexer
	memory       inmemory.Memory  // of the indexer; nil if it has its own
	reference    *kvindex.Indexer // receives the present engine's batches directly
	lives        []*engineLife    // of the engine, the present one last
	ambiguous    bool             // two engines publish for the pod
	cfg          events.SubscriberConfig
	unfollow     func() // stops the subscriber
	stops        []func()
	stream       string
	addresses    []string      // of earlier streams
	took         chan struct{} // has a token after a message was applied

	mu       sync.Mutex // guards the fields below
	losses   map[string]int
	kept     int
	connects int
	out      bool   // the replay socket failed for a while
	lossyN   int    // replay answers that lost something
	heard    uint64 // number after the last handled message, replays excluded
	errors   []string

	tally map[string]int
}

type faultTalk struct {
	handle        *fakeengine.Handle
	prompt        []uint32
	adapter, salt string
}

func (t *faultTalk) tokens() []uint32 {
	return append(slices.Clone(t.prompt), t.handle.Output()...)
}

// faultFailure is the value of a schedule's panics, as it runs outside of the test's goroutine.
type faultFailure struct{ error }

func (s *schedule) fail(format string, args ...any) {
	panic(faultFailure{fmt.Errorf(format, args...)})
}

func (s *schedule) must(err error) {
	if err != nil {
		s.fail("%w", err)
	}
}

func newSchedule(seed uint64, lag time.Duration, wrongReplays []string) *schedule {
	s := &schedule{
		seed: seed, lag: lag, wrongReplays: wrongReplays,
		random: rand.New(rand.NewPCG(seed, 0)),
		losses: make(map[string]int),
		tally:  make(map[string]int),
		took:   make(chan struct{}, 1),
		clock:  1e9,
	}
	s.repairable = s.random.IntN(10) < 5
	s.keep = s.random.IntN(2) == 0
	s.bind = s.random.IntN(4) == 0
	s.guarded = s.random.IntN(4) == 0
	s.noReplay = !s.repairable && s.random.IntN(5) == 0
	s.wrong = -1
	if s.noReplay {
		s.wrong = s.random.IntN(len(wrongReplays)+1) - 1
	}
	s.encoding.ByteHashes = s.random.IntN(2) == 0
	if s.random.IntN(3) == 0 {
		s.encoding.Form = fakeengine.FormArrays12
	}
	s.buffer = 10_000
	if !s.repairable {
		s.buffer = 12
	}
	could := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return f.beyond && s.repairable || f.repaired && !s.repairable || f.replay && s.noReplay || f.binds && !s.bind || f.dials && s.bind
	})
	if *faultsOnly != "" {
		could = slices.DeleteFunc(could, func(f fault) bool { return f.name != *faultsOnly })
		if len(could) == 0 {
			return s
		}
	}
	for _, f := range could {
		if f.repaired {
			could = append(could, f)
		}
	}
	rare := slices.DeleteFunc(slices.Clone(could), func(f fault) bool { return !f.beyond && !f.binds })
	for range 3 + s.random.IntN(6) {
		k := could[s.random.IntN(len(could))]
		if len(rare) > 0 && s.random.IntN(5) < 2 { // these suit few schedules
			k = rare[s.random.IntN(len(rare))]
		}
		s.kinds = append(s.kinds, k)
	}
	return s
}

func (s *schedule) String() string {
	var kinds []string
	for _, f := range s.kinds {
		kinds = append(kinds, f.name)
	}
	return fmt.Sprintf("repairable %v, keep %v, bind %v, guarded %v, replay %v: %s",
		s.repairable, s.keep, s.bind, s.guarded, !s.noReplay, strings.Join(kinds, "; "))
}

// has reports whether the schedule has a fault whose name contains text.
func (s *schedule) has(text string) bool {
	return slices.ContainsFunc(s.kinds, func(f fault) bool { return strings.Contains(f.name, text) })
}

// start starts the engine, the proxies and the subscriber.
func (s *schedule) start() {
	if s.has("kept index") || s.has("move") && s.random.IntN(2) == 0 {
		m, err := inmemory.New(index.MemoryConfig{})
		s.must(err)
		s.memory = m
		s.stops = append(s.stops, func() { m.Close() })
	}
	s.openIndexer()
	s.stops = append(s.stops, func() { s.indexer.Close(); s.reference.Close() })
	s.newEngine()
	s.how = s.send

	s.cfg = events.SubscriberConfig{
		Backoff:   20 * time.Millisecond,
		OnConnect: func(string) { s.note(func() { s.connects++ }) },
		OnError:   func(err error) { s.note(func() { s.errors = append(s.errors, err.Error()) }) },
	}
	if s.has("half-open") || s.has("host dies") {
		s.cfg.Heartbeat = 100*time.Millisecond + 10*s.lag
	}
	replay := func() string { return "tcp://" + s.replay.Addr() }
	switch {
	case s.wrong >= 0:
		s.cfg.ReplayTimeout = time.Hour // a message that waits for a replay never comes
		replay = func() string { return s.wrongReplays[s.wrong] }
		s.count(wrongReplays[s.wrong].name)
	case s.has("replay") || s.has("host dies"):
		s.cfg.ReplayTimeout = 200*time.Millisecond + 10*s.lag
	}
	pub := fakeengine.PublisherConfig{Topic: "kv@a@m", Buffer: s.buffer, Connect: s.bind}
	if !s.noReplay {
		pub.Replay = "tcp://127.0.0.1:0"
	}
	publish := func() {
		s.publisher = s.newPublisher(pub)
		if s.has("replay differs") {
			s.twin = s.newPublisher(fakeengine.PublisherConfig{Replay: pub.Replay, Buffer: s.buffer})
		}
		if !s.noReplay {
			p := s.proxy(s.publisher.ReplayEndpoint())
			s.note(func() { s.replay = p })
		}
		if s.random.IntN(4) == 0 { // the subscriber starts late
			s.batches(1+s.random.IntN(10), s.skip)
			s.count("late subscriber")
		}
	}
	if s.bind {
		s.cfg.Endpoint, s.cfg.Bind = "tcp://127.0.0.1:0", true
		s.stream = s.cfg.Endpoint + " " + pub.Topic
		if !s.noReplay || s.wrong >= 0 {
			s.cfg.ReplayOf = func(string, string) (endpoint string) {
				s.note(func() { endpoint = replay() })
				return endpoint
			}
		}
		s.data = faultproxy.Up
		s.live = s.proxy("")
		s.follow()
		pub.Endpoint = "tcp://" + s.live.Addr()
		s.live.Refuse(true)
		publish()
		s.live.Refuse(false)
	} else {
		publish()
		s.data = faultproxy.Down
		s.cfg.Pod, s.cfg.Model = "a", "m"
		if !s.noReplay || s.wrong >= 0 {
			s.cfg.Replay = replay()
		}
		s.live = s.proxy(s.publisher.Endpoint())
		s.cfg.Endpoint = "tcp://" + s.live.Addr()
		s.stream = s.cfg.Endpoint
		s.addresses = append(s.addresses, s.stream)
		s.follow()
	}
	s.stops = append(s.stops, func() { s.unfollow() })
	s.connected()
}

func (s *schedule) stop() {
	for _, f := range slices.Backward(s.stops) {
		f()
	}
}

func (s *schedule) newPublisher(cfg fakeengine.PublisherConfig) *fakeengine.Publisher {
	p, err := fakeengine.NewPublisher(cfg)
	s.must(err)
	s.stops = append(s.stops, func() { p.Close() })
	return p
}

func (s *schedule) proxy(endpoint string) *faultproxy.Proxy {
	p, err := faultproxy.Listen(strings.TrimPrefix(endpoint, "tcp://"))
	s.must(err)
	s.stops = append(s.stops, func() { p.Close() })
	return p
}

// follow starts a subscriber. live leads to it if it listens.
func (s *schedule) follow() {
	cfg := s.cfg
	listening := make(chan string, 1)
	cfg.OnListen = func(endpoint string) { listening <- endpoint }
	s.unfollow = s.subscribe(cfg)
	if s.bind {
		s.live.Redirect(strings.TrimPrefix(<-listening, "tcp://"))
	}
}

// subscribe runs a subscriber until end is called.
func (s *schedule) subscribe(cfg events.SubscriberConfig) (end func()) {
	sub, err := events.NewSubscriber(faultSink{s.indexer.Sink(), s}, cfg)
	s.must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = sub.Run(ctx)
	}()
	return func() { cancel(); <-ended }
}

// openIndexer opens an Indexer on the kept index, or on its own.
func (s *schedule) openIndexer() {
	options := s.options()
	if s.memory != nil {
		options = append(options, kvindex.WithIndex(s.memory))
	}
	s.indexer = s.newIndexer(s.guarded, options...)
}

// options returns those of the followed Indexer.
func (s *schedule) options() []kvindex.Option {
	options := []kvindex.Option{kvindex.WithHooks(kvindex.Hooks{Lost: s.lost})}
	if s.keep {
		options = append(options, kvindex.WithKeepOnLoss())
	}
	return options
}

func (s *schedule) newIndexer(guarded bool, options ...kvindex.Option) *kvindex.Indexer {
	ix, err := kvindex.New(append(options, counting(guarded)...)...)
	s.must(err)
	return ix
}

// counting returns the option for counting copies.
func counting(guarded bool) []kvindex.Option {
	if guarded {
		return nil
	}
	return []kvindex.Option{kvindex.WithProfile(func(string, string) kvindex.Profile {
		return kvindex.Profile{Copies: kvindex.CopiesExact}
	})}
}

func (s *schedule) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *schedule) lost(l kvindex.Loss) {
	s.note(func() {
		s.losses[l.Cause]++
		if l.Kept {
			s.kept++
		}
	})
}

func (s *schedule) count(kind string) { s.tally[kind]++ }

// faultSink signals each message that the Indexer took.
type faultSink struct {
	events.Sink
	s *schedule
}

func (f faultSink) IngestMessage(m kvindex.Message) (kvindex.Receipt, error) {
	r, err := f.Sink.IngestMessage(m)
	if !m.Replayed && !r.Held && err == nil {
		f.s.note(func() { f.s.heard = m.Seq + 1 })
	}
	select {
	case f.s.took <- struct{}{}:
	default:
	}
	return r, err
}

func (f faultSink) StreamNote(podID, model, stream string, n events.Note) error {
	if n == events.NoteNoReplay {
		f.s.note(func() { f.s.out = true })
	}
	return f.Sink.StreamNote(podID, model, stream, n)
}

// newEngine starts or restarts the engine.
func (s *schedule) newEngine() {
	if s.reference != nil {
		s.reference.Close()
	}
	s.reference = s.newIndexer(s.guarded)
	s.lives = append(s.lives[max(0, len(s.lives)-2):], &engineLife{})
	var err error
	s.engine, err = fakeengine.New(fakeengine.Config{
		Model: "m", Blocks: 24 + s.random.IntN(40), HashSeed: fmt.Sprint(s.random.Uint32()), Encoding: s.encoding,
		Seed: s.random.Uint64(), ChunkTokens: 64,
		Now:     func() float64 { s.clock += 1. / 64; return s.clock },
		Publish: func(payload []byte) { s.publish(payload) },
	})
	s.must(err)
	s.serving = nil
}

func (s *schedule) publish(payload []byte) {
	s.must(s.reference.Ingest("a", "m", payload))
	s.batched++
	s.bytes += len(payload)
	s.last = payload
	s.how(payload)
	if s.random.IntN(4) == 0 {
		s.glance()
	}
}

func (s *schedule) send(payload []byte) { s.published(s.publisher.Publish(payload), payload) }
func (s *schedule) skip(payload []byte) { s.published(s.publisher.Skip(payload), payload) }

func (s *schedule) burnt([]byte) {
	s.publisher.Burn()
	if s.twin != nil {
		s.twin.Burn()
	}
}

func (s *schedule) published(seq uint64, payload []byte) {
	life := s.lives[len(s.lives)-1]
	life.published = append(life.published, numberedPayload{seq, payload})
	if s.twin != nil {
		s.twin.Skip(otherBytes(payload))
	}
}

// batches runs the engine until it has published n batches.
func (s *schedule) batches(n int, how func([]byte)) {
	s.how = how
	defer func() { s.how = s.send }()
	for until := s.batched + n; s.batched < until; {
		if len(s.serving) < 2 || s.random.IntN(8) == 0 {
			s.submit(s.request())
		}
		switch s.random.IntN(150) {
		case 0:
			s.engine.ResetRunning()
			s.resets++
		case 1:
			s.serving[s.random.IntN(len(s.serving))].handle.Abort()
		}
		s.step()
	}
}

func (s *schedule) step() {
	s.engine.Step()
	s.serving = slices.DeleteFunc(s.serving, func(t *faultTalk) bool { return t.handle.Done() })
}

// request makes a new prompt, or prolongs an older one.
func (s *schedule) request() fakeengine.Request {
	const size, most = 16, 10
	r := fakeengine.Request{MaxTokens: 1 + s.random.IntN(24), SkipReadingPrefixCache: s.random.IntN(15) == 0, ReportFull: s.guarded && s.random.IntN(4) == 0}
	if len(s.talks) == 0 || s.random.IntN(4) == 0 {
		if s.random.IntN(4) == 0 {
			r.Adapter = "sql"
		}
		if s.random.IntN(4) == 0 {
			r.Salt = "tenant"
		}
	} else {
		t := s.talks[len(s.talks)-1-s.random.IntN(min(len(s.talks), 6))]
		r.Tokens, r.Adapter, r.Salt = t.tokens(), t.adapter, t.salt
		if s.random.IntN(3) == 0 {
			r.Tokens = r.Tokens[:1+s.random.IntN(len(r.Tokens))]
		}
	}
	for range 1 + s.random.IntN(4*size) {
		r.Tokens = append(r.Tokens, s.random.Uint32N(50_000))
	}
	r.Tokens = r.Tokens[:min(len(r.Tokens), size*most)]
	return r
}

func (s *schedule) submit(r fakeengine.Request) *faultTalk {
	h, err := s.engine.Submit(r)
	s.must(err)
	t := &faultTalk{h, r.Tokens, r.Adapter, r.Salt}
	s.talks = append(s.talks, t)
	s.serving = append(s.serving, t)
	return t
}

// connected waits until a subscriber is connected.
func (s *schedule) connected() { s.must(s.publisher.WaitSubscribers(s.ctx, 1)) }

// fired waits for a fault, and counts it if it takes place.
func (s *schedule) fired(kind string, a *faultproxy.ArmedFault) bool {
	t := time.NewTimer(faultsFire)
	defer t.Stop()
	select {
	case <-a.Fired():
		s.count(kind)
		return true
	case <-t.C:
		a.Disarm()
		s.count("did not happen: " + kind)
		return false
	}
}

// until waits for a condition, which is checked again after each message. It gives up after
// patience; 0: faultsPatience.
func (s *schedule) until(patience time.Duration, what string, cond func() bool) bool {
	deadline := time.NewTimer(faultsPatience)
	if patience > 0 {
		deadline.Reset(patience)
	}
	defer deadline.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for !cond() {
		select {
		case <-s.took:
		case <-poll.C:
		case <-s.ctx.Done():
			s.fail("%s does not come: %s", cmp.Or(what, "what is waited for"), s.situation())
		case <-deadline.C:
			if patience == 0 {
				s.fail("%s does not come: %s", what, s.situation())
			}
			return false
		}
	}
	return true
}

// situation describes a failed schedule.
func (s *schedule) situation() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("pods %+v\nthe engine's next is %d, %d subscribed, losses %v\nthe last errors:\n%s",
		s.indexer.Pods(nil), s.publisher.Next(), s.connects, s.losses,
		strings.Join(s.errors[max(0, len(s.errors)-5):], "\n"))
}

// settle publishes a last message and waits until everything is applied.
func (s *schedule) settle() {
	deadline := time.Now().Add(faultsPatience)
	for {
		s.connected()
		s.markers++
		tokens := make([]uint32, 40)
		for i := range tokens {
			tokens[i] = uint32(100_000 + 1000*s.markers + uint64(i))
		}
		t := s.submit(fakeengine.Request{Tokens: tokens, MaxTokens: 1})
		for !t.handle.Done() {
			s.step()
		}
		for len(s.serving) > 0 {
			s.step()
		}
		patience := faultsLost
		if time.Now().Add(patience).After(deadline) {
			patience = 0
		}
		if s.until(patience, "the last message", func() bool {
			next := s.indexer.Sink().StreamNext("a", "m", s.stream).Next
			return next == s.publisher.Next() && s.matched(s.indexer, t) == s.engine.Held(t.tokens(), "", "")/16
		}) {
			if s.until(faultsLost, "", s.calm) {
				s.never("over when all is applied", kvindex.StatePartial)
				return
			}
			s.until(0, "the end of a replay", func() bool { return s.state() != kvindex.StateReplaying })
			if time.Now().After(deadline) {
				s.fail("all is applied, and the pod is not calm: %s", s.situation())
			}
		}
		s.lostAgain++
		// On a busy machine a replay of many attempts can outlast the engine's wait for the
		// subscriber; meanwhile there is a next last message.
		s.publisher.LoseReplies(nil)
	}
}

// calm reports that no replay is under way, and that no connection was lost after the last message:
// with Bind only the next message shows a new one.
func (s *schedule) calm() bool {
	switch s.state() {
	case kvindex.StateReplaying:
		return false
	case kvindex.StateUncertain:
		kept := 0
		s.note(func() { kept = s.kept })
		return kept > 0
	}
	return true
}

func (s *schedule) matched(ix *kvindex.Indexer, t *faultTalk) int {
	var a kvindex.Answer
	s.must(ix.ScoreRequest(s.ctx, &kvindex.Request{Model: "m", Tokens: t.tokens(), Adapter: t.adapter, Salt: t.salt, Pods: []string{"a"}}, &a))
	return a.Pods[0].MatchedBlocks
}

func (s *schedule) some() int { return 1 + s.random.IntN(5) }

func (s *schedule) drop() {
	s.connected()
	s.batches(s.some(), s.skip)
	s.batches(s.some(), s.send)
	s.count("drop")
}

func (s *schedule) burn() {
	s.batches(1+s.random.IntN(2), s.burnt)
	s.batches(s.some(), s.send)
	s.count("number burnt")
}

func (s *schedule) forgot() {
	s.batches(s.buffer+s.some(), s.skip)
	s.batches(s.some(), s.send)
	s.count("engine forgot")
}

func (s *schedule) duplicate() {
	s.connected()
	for range s.some() {
		s.batches(1, s.send)
		s.publisher.Repeat(s.publisher.Next() - 1)
		if n := s.publisher.Next(); s.random.IntN(2) == 0 {
			s.publisher.Repeat(n - 1 - s.random.Uint64N(min(n, 30)))
		}
	}
	s.count("duplicate")
}

func (s *schedule) late() {
	s.connected()
	first := s.publisher.Next()
	n := s.some()
	s.batches(n, s.skip)
	s.batches(s.some(), s.send)
	for _, i := range s.random.Perm(n) {
		s.publisher.Repeat(first + uint64(i))
	}
	s.count("late")
}

// stale: an old connection's messages arrive after those of the new one.
func (s *schedule) stale() {
	s.connected()
	s.settle()
	s.connected()
	hold := s.live.Arm(faultproxy.Fault{Kind: faultproxy.Hold, Direction: s.data})
	if !hold.HasFired() {
		hold.Disarm()
		s.count("did not happen: late across a reconnect")
		return
	}
	s.batches(s.some()+s.random.IntN(2)*20, s.send)
	connects := s.connections()
	if s.bind {
		s.publisher.Disconnect()
		s.until(0, "a new connection", func() bool { return s.connections() > connects })
		s.settle()
		hold.Release() // on the old connection, which the subscriber still has
		s.count("late across a reconnect")
		return
	}
	var old []byte
	if !s.until(faultsFire, "", func() bool {
		old = append(old, hold.Take()...)
		return bytes.Contains(old, s.last)
	}) {
		s.count("did not happen: late across a reconnect")
		hold.Release()
		return
	}
	s.live.Cut()
	s.until(0, "a new connection", func() bool { return s.connections() > connects })
	s.settle()
	s.fired("late across a reconnect", s.live.Arm(faultproxy.Fault{Kind: faultproxy.Inject, Direction: s.data, Data: old}))
}

func (s *schedule) disconnections() (n int) {
	s.note(func() { n = len(s.errors) })
	return n
}

func (s *schedule) connections() (n int) {
	s.note(func() { n = s.connects })
	return n
}

// lossy makes answers to replays lose messages, and makes the engine lose some.
func (s *schedule) lossy(kind string, lost func(i, n int) bool) {
	before := 0
	s.note(func() { before = s.lossyN })
	s.publisher.LoseReplies(func(i, n int) bool {
		if !lost(i, n) {
			return false
		}
		s.note(func() { s.lossyN++ })
		return true
	})
	s.connected()
	s.batches(4+s.random.IntN(12), s.skip)
	s.batches(s.some(), s.send)
	happened := func() (yes bool) {
		s.note(func() { yes = s.lossyN > before })
		return yes
	}
	if s.until(faultsFire, "", happened) {
		s.count(kind)
	}
	if s.random.IntN(2) == 0 {
		s.settle()
	}
}

func (s *schedule) replayCutShort() {
	most := 3 + s.random.IntN(6)
	s.lossy("replay cut short", func(i, _ int) bool { return i >= most })
}

func (s *schedule) replayWithHoles() {
	every, phase := 2+s.random.IntN(6), s.random.IntN(6)
	s.lossy("replay with holes", func(i, _ int) bool { return i > 1 && (i+phase)%every == 0 })
}

// ask makes the subscriber request a replay.
func (s *schedule) ask() {
	s.connected()
	s.batches(s.some(), s.skip)
	s.batches(1, s.send)
}

func (s *schedule) overtaken() {
	hold := s.replay.ArmNext(faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Down, After: s.random.IntN(handshakeOfROUTER + 20)})
	s.ask()
	if s.fired("replay overtaken", hold) {
		s.batches(s.some(), s.send)
		hold.Release()
	}
}

func (s *schedule) cutReplay() {
	cut := s.replay.ArmNext(faultproxy.Fault{Kind: faultproxy.Cut, Direction: faultproxy.Down, After: 1 + s.random.IntN(handshakeOfROUTER+200)})
	s.ask()
	s.fired("replay cut", cut)
}

func (s *schedule) halfOpenReplay() {
	silence := s.replay.ArmNext(faultproxy.Fault{Kind: faultproxy.Silence, Direction: faultproxy.Down, After: s.random.IntN(handshakeOfROUTER + 200)})
	s.ask()
	s.fired("replay half-open", silence)
}

// within arms a fault for the next messages, and publishes until it must have taken place.
func (s *schedule) within(kind string, k faultproxy.Kind, most int) *faultproxy.ArmedFault {
	s.connected()
	after := s.random.IntN(most)
	a := s.live.Arm(faultproxy.Fault{Kind: k, Direction: s.data, After: after})
	for until := s.bytes + after + 1; s.bytes < until; {
		s.batches(1, s.send)
	}
	if !s.fired(kind, a) {
		return nil
	}
	return a
}

func (s *schedule) cut() {
	s.within("cut", faultproxy.Cut, 2000)
	s.batches(s.some(), s.send)
}

func (s *schedule) stall() {
	hold := s.within("stall", faultproxy.Hold, 2000)
	s.batches(s.some(), s.send)
	if hold != nil && s.random.IntN(4) > 0 {
		hold.Release()
	}
}

func (s *schedule) halfOpen() {
	lost := s.disconnections()
	happened := s.within("half-open", faultproxy.Silence, 1000) != nil
	s.batches(s.some(), s.send)
	if happened && s.bind {
		// The subscriber notices, but the engine has to reconnect, and learns late from its host
		// that the peer is gone.
		if s.until(faultsLost, "", func() bool { return s.disconnections() > lost }) {
			s.count("half-open, noticed with Bind")
		}
		s.live.Cut()
	}
}

// slip inserts bytes between messages, or at the start of a connection.
func (s *schedule) slip(kind string, b []byte) {
	f := faultproxy.Fault{Kind: faultproxy.Inject, Direction: s.data, Data: b}
	switch n := s.random.IntN(4); {
	case n == 0 && s.replay != nil:
		f.Direction, f.After = faultproxy.Down, handshakeOfROUTER*s.random.IntN(2)
		a := s.replay.ArmNext(f)
		s.ask()
		s.fired(kind, a)
	case n == 1:
		f.After = handshakeOfPUB * s.random.IntN(2)
		a := s.live.ArmNext(f)
		s.live.Cut()
		s.batches(s.some(), s.send)
		s.fired(kind, a)
	default:
		s.settle()
		s.fired(kind, s.live.Arm(f))
		s.batches(s.some(), s.send)
	}
}

func (s *schedule) garbage() {
	b := make([]byte, 1+s.random.IntN(300))
	for i := range b {
		b[i] = byte(s.random.Uint32())
	}
	s.slip("garbage", b)
}

func (s *schedule) oversized() {
	sizes := []uint64{32<<20 + 1, math.MaxUint32, 1 << 40, 1 << 60, math.MaxInt64, 1 << 63, math.MaxUint64}
	s.slip("oversized", zmtptest.LongHeader(byte(s.random.IntN(2)), sizes[s.random.IntN(len(sizes))]))
}

// beforeRestart: unapplied messages are lost with their engine.
func (s *schedule) beforeRestart() {
	if s.repairable || s.noReplay {
		s.settle()
	}
}

func (s *schedule) restartNow(kind string) {
	s.must(s.publisher.Restart())
	if s.twin != nil {
		s.must(s.twin.Restart())
	}
	s.newEngine()
	s.clock += 5
	s.restarts++
	s.count(kind)
}

func (s *schedule) restart() {
	s.beforeRestart()
	due := s.publisher.Next() // all are applied
	s.restartNow("restart")
	if s.noReplay {
		s.heardAnew(due)
	}
	s.batches(s.some(), s.send)
}

// heardAnew publishes until a message of the present engine is applied. Without a replay the engine
// looks like the one before if its first received number is the expected one: that number is not
// sent, so that losses by other faults cannot make it the first.
func (s *schedule) heardAnew(due uint64) {
	noticed := func() uint64 { st := s.indexer.Stats(); return st.Restarts + st.Gaps }
	for before := noticed(); ; s.lostAgain++ {
		s.connected()
		if s.publisher.Next() == due {
			s.batches(1, s.skip)
		}
		s.batches(1, s.send)
		if s.until(faultsLost, "", func() bool { return noticed() > before }) {
			return
		}
	}
}

func (s *schedule) behind() {
	s.clock -= 100 + 1000*s.random.Float64()
	s.setBack = true
}

// olderLives: after two restarts a queue redelivers applied messages of earlier lives. They are not
// recognizable if a clock went back, or if some were never applied.
func (s *schedule) olderLives() {
	if s.setBack || !s.repairable {
		return
	}
	for range 2 {
		s.restart()
		s.settle()
	}
	for range 3 * s.some() {
		life := s.lives[s.random.IntN(len(s.lives)-1)]
		if len(life.published) == 0 {
			continue
		}
		m := life.published[s.random.IntN(len(life.published))]
		r, err := s.indexer.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: s.stream, Seq: m.seq, Payload: m.payload})
		s.must(err)
		if !r.Duplicate {
			s.fail("message %d of an older life again: %+v", m.seq, r)
		}
		if s.random.IntN(2) == 0 {
			s.batches(1, s.send)
		}
	}
	s.count("older lives again")
}

func (s *schedule) restartBehind() {
	s.beforeRestart()
	s.restartNow("restart, clock behind")
	s.behind()
	s.batches(s.some(), s.send)
}

func (s *schedule) restartPast() {
	s.beforeRestart()
	old := s.publisher.Next()
	s.live.Refuse(true)
	s.restartNow("restart, past the last number")
	if s.random.IntN(2) == 0 {
		s.behind()
	}
	s.batches(int(old)+s.some(), s.send)
	s.live.Refuse(false)
}

// restartInReplay: another engine answers than the one that got the request.
func (s *schedule) restartInReplay() {
	wait := faultproxy.Fault{Kind: faultproxy.Hold, Direction: faultproxy.Up}
	first := s.replay.ArmNext(wait)
	s.ask()
	if !s.fired("request for a replay held", first) {
		return
	}
	second := s.replay.ArmNext(wait)
	old := s.publisher.Next()
	s.live.Refuse(true)
	s.restartNow("restart within a replay")
	if s.random.IntN(2) == 0 {
		s.behind()
	}
	s.batches(int(old)+s.some(), s.send)
	s.fired("request for a replay held", second)
	second.Release()
	s.live.Refuse(false)
}

// check compares the index with the engine, and its reports with the faults. calm is false if a
// connection was lost meanwhile, as on a busy machine.
func (s *schedule) check() (held, blocks int, calm bool) {
	over, held, blocks := s.compare()
	under := 0
	for _, t := range s.talks {
		want := s.engine.Held(t.tokens(), t.adapter, t.salt) / 16
		if s.guarded {
			want = s.matched(s.reference, t)
		}
		if s.matched(s.indexer, t) != want {
			under++
		}
	}
	want := held
	if s.guarded {
		want = s.reference.Stats().Blocks[kvindex.TierGPU]
	}
	state := s.state()
	var losses, restarts, kept int
	s.note(func() {
		restarts, kept = s.losses["restart"], s.kept
		for _, n := range s.losses {
			losses += n
		}
		losses -= restarts
	})
	if state == kvindex.StateReplaying || state == kvindex.StateUncertain && (!s.keep || kept == 0) {
		return held, blocks, false
	}
	s.count("state " + state.String())
	switch {
	case (over > 0 || blocks > held) && state == kvindex.StateUncertain && s.keep && (!s.repairable || s.replayOut()):
		s.count("over, and uncertain")
	case (over > 0 || blocks > held) && s.unverified():
		s.count("over, as its replay socket is still to show a restart")
	case over > 0 || blocks > held:
		s.fail("over: %d blocks over in prompts, %d blocks claimed, %d held: %s", over, blocks, held, s.situation())
	}
	if s.repairable && !s.serves() {
		s.count("its replay socket does not answer in the end")
	} else if s.repairable && (losses == 0 || !s.replayOut()) {
		switch {
		case restarts > s.restarts:
			s.fail("%d losses by restarts, there were %d: %s", restarts, s.restarts, s.situation())
		case losses > 0:
			s.fail("%d losses, and all could be replayed: %s", losses, s.situation())
		case state != kvindex.StateLive:
			s.fail("state %v, and all could be replayed: %s", state, s.situation())
		case under > 0 || blocks != want:
			s.fail("%d of %d prompts are wrong, %d blocks claimed, %d known, %d held: %s", under, len(s.talks), blocks, want, held, s.situation())
		}
	}
	return held, blocks, true
}

// replayOut reports whether the replay socket failed for a while, in which messages are not held
// and may be lost.
func (s *schedule) replayOut() (out bool) {
	s.note(func() { out = s.out })
	return out || s.has("replay half-open") || s.has("replay cut") || s.has("host dies")
}

// unverified reports whether the engine's present life is unverified: while its replay socket does
// not answer, only numbers show a restart.
func (s *schedule) unverified() bool { return s.restarts > 0 && !s.noReplay && !s.serves() }

// serves reports whether the replay socket answers, as far as is known.
func (s *schedule) serves() bool {
	for _, p := range s.indexer.Pods(nil) {
		for _, st := range p.Streams {
			if st.Stream == s.stream && st.Replay == "none" {
				return false
			}
		}
	}
	return !s.noReplay
}

// run is a whole schedule.
func (s *schedule) run(ctx context.Context) (held, blocks int, err error) {
	defer func() {
		if e := recover(); e != nil {
			f, ok := e.(faultFailure)
			if !ok {
				panic(e)
			}
			err = fmt.Errorf("seed %d (%v): %w", s.seed, s, f.error)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 3*faultsPatience)
	defer cancel()
	s.ctx = ctx
	defer s.stop()
	s.start()
	for _, f := range s.kinds {
		s.batches(s.some(), s.send)
		f.do(s)
		if s.random.IntN(3) == 0 {
			s.settle()
		}
	}
	s.live.Heal()
	s.ambiguous = false
	if s.replay != nil {
		s.replay.Heal()
	}
	s.publisher.LoseReplies(nil)
	s.connected()
	for try := 1; ; try++ {
		s.settle()
		s.settle() // after everything under way
		var calm bool
		if held, blocks, calm = s.check(); calm {
			return held, blocks, nil
		}
		if try == 20 {
			s.fail("uncertain without a loss that kept blocks, or replaying: %s", s.situation())
		}
	}
}

// pace measures the machine's free capacity for schedules by the delay of timers: other programs
// and schedules use it too.
type pace struct {
	late    atomic.Int64 // nanoseconds, the maximum lately
	mu      sync.Mutex   // guards running
	running int
}

// measure runs until the context ends.
func (p *pace) measure(ctx context.Context) {
	const every = 5 * time.Millisecond
	for ctx.Err() == nil {
		due := time.Now().Add(every)
		<-time.After(every)
		p.late.Store(max(int64(time.Since(due)), p.late.Load()*31/32))
	}
}

// begin waits until the machine has room for another schedule, if more than a few are running, and
// returns the delay of timers.
func (p *pace) begin() time.Duration {
	few := 4 * runtime.GOMAXPROCS(0)
	for {
		late := time.Duration(p.late.Load())
		p.mu.Lock()
		if p.running < few || late < faultsLate {
			p.running++
			p.mu.Unlock()
			return late
		}
		p.mu.Unlock()
		<-time.After(10 * time.Millisecond)
	}
}

func (p *pace) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
}

// TestFaults: engines serve behind the faults of random schedules. When all is quiet the index
// never has more than the engines hold, and the same where all losses can be replayed.
func TestFaults(t *testing.T) {
	t.Parallel()
	zmtptest.NoLeaks(t)
	n := *faultsN
	if testing.Short() {
		n = max(1, n/16)
	}
	type share struct{ schedules, held, blocks int }
	var (
		mu     sync.Mutex
		total  = make(map[string]int)
		shares = make(map[string]share)
		failed int
		work   = make(chan uint64)
		done   sync.WaitGroup

		machine pace
		latest  time.Duration
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go machine.measure(ctx)
	var wrong []string
	for _, w := range wrongReplays {
		wrong = append(wrong, w.endpoint(t))
	}
	for range 64 { // mostly waiting
		done.Go(func() {
			for seed := range work {
				s := newSchedule(seed, machine.begin(), wrong)
				held, blocks, err := s.run(t.Context())
				machine.end()
				mu.Lock()
				latest = max(latest, s.lag)
				for k, v := range s.tally {
					total[k] += v
				}
				total["resets"] += s.resets
				total["batches"] += s.batched
				total["last messages lost"] += s.lostAgain
				if err != nil {
					failed++
					text := err.Error()
					if failed > 20 { // one line each for the others
						text, _, _ = strings.Cut(text, "\n")
					}
					t.Errorf("%s\nagain by -run 'TestFaults$' -faults.n 1 -faults.seed %d", text, seed)
				} else {
					kind := fmt.Sprintf("repairable %v, keep %v, bind %v, replay %v", s.repairable, s.keep, s.bind, !s.noReplay)
					sh := shares[kind]
					shares[kind] = share{sh.schedules + 1, sh.held + held, sh.blocks + blocks}
				}
				mu.Unlock()
			}
		})
	}
	start := time.Now()
	for i := range n {
		work <- *faultsSeed + uint64(i)
	}
	close(work)
	done.Wait()
	t.Logf("%d schedules in %v, %d failed; timers were up to %v late", n, time.Since(start).Round(time.Millisecond), failed, latest.Round(time.Millisecond))
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%6d %s", total[k], k)
	}
	for _, k := range slices.Sorted(maps.Keys(shares)) {
		sh := shares[k]
		t.Logf("%s: %d schedules, %.1f %% of %d blocks retained", k, sh.schedules, 100*float64(sh.blocks)/float64(max(sh.held, 1)), sh.held)
	}
	if n < 500 || *faultsOnly != "" { // too few schedules for the rare ones
		return
	}
	for _, f := range faults {
		if least := n / 10; total[f.name] < least {
			t.Errorf("%q happened %d times, at least %d are wanted", f.name, total[f.name], least)
		}
	}
	for _, w := range wrongReplays {
		if least := n / 100; total[w.name] < least {
			t.Errorf("%q happened %d times, at least %d are wanted", w.name, total[w.name], least)
		}
	}
}
