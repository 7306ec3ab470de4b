package events

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file has what a Subscriber that connects (connect.go) and one that listens
// (listen.go) share: the configuration, and the way of a message from the
// connection to the sink. Both ask engines for what was missed (replay.go).

// What a SubscriberConfig leaves zero.
const (
	// DefaultMaxMessage is far above what engines send: the events of a million
	// tokens are some 10 MB.
	DefaultMaxMessage = 32 << 20
	// DefaultMaxBuffered bounds, over all connections, the memory of messages
	// that are larger than 64 KiB.
	DefaultMaxBuffered = 256 << 20
	DefaultMaxConns    = 256
	// DefaultMaxTopics is more than any engine needs, which publishes one.
	DefaultMaxTopics  = 64
	DefaultBackoffMin = 100 * time.Millisecond
	// DefaultBackoffMax is short, because what an engine publishes before it is
	// connected to is lost where there is no replay.
	DefaultBackoffMax = time.Second
	DefaultHeartbeat  = zmtp.DefaultHeartbeat
	// DefaultReplayTimeout is long beside the 100 ms for which vLLM's publisher
	// waits for batches before it looks at its replay socket.
	DefaultReplayTimeout = 2 * time.Second
	// DefaultSilence is long beside the start of an engine's first request.
	DefaultSilence = 30 * time.Second
)

const (
	maxTopicBytes = 1 << 10
	// connectTimeout bounds the dialling, and then the whole handshake.
	connectTimeout = 2 * time.Second
)

// ErrRunning is returned by Run while another Run of the Subscriber lasts.
var ErrRunning = errors.New("events: subscriber is running already")

// SubscriberConfig says whom a Subscriber listens to. Only Endpoint is required,
// and Pod and Model if it connects; a zero limit is the default of its name. The
// functions that begin with On may be nil. They are called from several goroutines
// at once, and messages may wait for them: they must be quick.
type SubscriberConfig struct {
	// Endpoint is tcp://host:port, an IPv6 host in brackets, or ipc://path. A
	// host name is resolved at every attempt to connect. With Bind the host may
	// be *, and port 0 is any free one.
	Endpoint string
	// Bind listens at Endpoint for engines that connect. (vLLM connects where its
	// endpoint has neither *, ::, ipc:// nor inproc://.)
	Bind bool
	// Topic is what a topic must begin with; "" is all.
	Topic string
	// Pod and Model say whose messages these are. With Bind, what is empty comes
	// from the topic.
	Pod, Model string
	// ParseTopic reads topics, with Bind; nil is the function ParseTopic, for
	// kv@POD@MODEL.
	ParseTopic func(topic string) (pod, model string, err error)

	// Replay is the endpoint of the engine's replay socket (vLLM's
	// replay_endpoint, which it always binds); "" is none. What was missed is
	// then asked for there: when the connection is made, when it falls idle, and
	// when there is a gap in the numbers. Meanwhile the messages that come wait.
	// For a socket that has never answered they wait half a second at most: that
	// is told to OnError and OnReplay, and it is tried again beside the stream.
	// The sink must be a ReplaySink.
	Replay string
	// ReplayOf is Replay with Bind, for each pod: peer is the remote end of its
	// connection, tcp://ip:port. nil, or "", is none.
	ReplayOf func(pod, peer string) string
	// ReplayTimeout is the silence that ends an answer of a replay socket.
	ReplayTimeout time.Duration

	MaxMessage  int   // bytes of a message; a peer that sends more is cut off
	MaxBuffered int64 // bytes of messages that are being received
	MaxConns    int   // connections, with Bind
	// MaxTopics bounds the topics of one connection, with Bind. What many
	// connections can invent, the Sink has to bound, as kvindex.MaxPods does.
	MaxTopics int

	// BackoffMin and BackoffMax bound the time between attempts to connect. It
	// doubles from one to the next and varies at random by half.
	BackoffMin, BackoffMax time.Duration
	// Silence is how long an engine may say nothing from its first connection on
	// until OnError gets a SilentError, once. With Bind, each connection.
	Silence time.Duration
	// Heartbeat is the silence after which a peer is asked for a sign of life,
	// if it speaks ZMTP 3.1 as libzmq does since 4.3. A second such silence ends
	// the connection.
	Heartbeat time.Duration

	// OnListen gets the endpoint, with its real port, when Bind listens.
	OnListen func(endpoint string)
	// OnConnect gets the peer's endpoint when the subscription was sent to it.
	OnConnect func(endpoint string)
	// OnReplay gets what came of asking an engine for what was missed.
	OnReplay func(Replay)
	// OnError gets what Run goes on after: lost connections, failed attempts to
	// connect, replay sockets that do not answer, engines that say nothing, and each
	// error of the sink. An attempt that goes on failing in one way is told again
	// after twice the time, up to a minute. Dropped messages are only counted.
	OnError func(error)
}

// SubscriberStats are counts since NewSubscriber.
type SubscriberStats struct {
	Messages    uint64 // given to the sink
	Malformed   uint64 // dropped: not [topic, 8 bytes, payload]
	BadTopics   uint64 // dropped: not subscribed to, not kv@POD@MODEL, or one too many
	Superseded  uint64 // dropped: a newer connection brings the stream
	SinkErrors  uint64
	Connects    uint64
	Disconnects uint64
	Refused     uint64 // connections closed because there were MaxConns

	Replays      uint64 // times that an engine was asked for what was missed
	Replayed     uint64 // messages that came of it, part of Messages
	ReplayErrors uint64 // of Replays, those that did not bring all
}

// Subscriber reads the events that engines publish over ZeroMQ and gives each
// message to a Sink. It connects to one engine, or listens for many.
//
// The messages of one stream are given one at a time, in the order in which
// they came; with Bind those of different connections come concurrently. What a
// message points to is valid during the call only. A sink that is slow makes
// its stream wait, in the end at the publisher, which drops what it cannot
// queue. An error of the sink is counted and reported.
//
// Where an engine has a replay socket, it is asked for what is missing: at each
// new connection, when a connection falls idle, and when a number is missing. Every
// answer has to begin with the last message that was applied, byte by byte. If it
// does not, the engine has restarted, or forgotten: the sink is told, gets all
// that the engine has, and the connection is made once more. A replay socket that
// does not have what the connection brings is another engine's: OnError is told,
// and nothing more is taken from it. Without a replay socket a message that is
// missing, or that the sink did not take, is gone, and the sink is left to see that
// by the numbers.
//
// A stream is Endpoint or, with Bind, Endpoint and the topic: an engine that
// restarts comes on a new connection with the same topic, and the
// data-parallel ranks of one pod come with one topic to a port each. If two
// connections bring one stream, the newer one has it, for the older one is what a
// dead engine left. A connection that dies with Bind is noticed, but only the
// engine can make another one; who it is shows by its first message.
//
// Peers are not trusted: see SubscriberConfig for what bounds them. But nothing
// in ZeroMQ proves that a topic is a peer's own, so listen only where engines
// alone can connect.
type Subscriber struct {
	sink    Sink
	cfg     SubscriberConfig
	wire    zmtp.Config
	running atomic.Bool

	messages, malformed, badTopics, superseded  atomic.Uint64
	sinkErrors, connects, disconnects, refusals atomic.Uint64
	replays, replayed, replayErrors             atomic.Uint64

	owners streamOwners
	mu     sync.Mutex // guards conns, lastID
	conns  map[*connection]struct{}
	lastID uint64 // of a connection
}

// NewSubscriber checks everything that can be checked without the network. Run
// does the rest.
func NewSubscriber(sink Sink, cfg SubscriberConfig) (*Subscriber, error) {
	if err := cfg.validate(sink); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Subscriber{
		sink: sink,
		cfg:  cfg,
		wire: zmtp.Config{
			Type:             zmtp.SUB,
			MaxFrame:         cfg.MaxMessage,
			MaxMessage:       cfg.MaxMessage,
			HandshakeTimeout: connectTimeout,
			Heartbeat:        cfg.Heartbeat,
			Budget:           zmtp.NewBudget(cfg.MaxBuffered),
		},
		conns: make(map[*connection]struct{}),
	}, nil
}

func (c SubscriberConfig) validate(sink Sink) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("events: subscriber: "+format, args...))
	}
	if sink == nil {
		bad("no sink")
	}
	check := zmtp.CheckDial
	if c.Bind {
		check = zmtp.CheckListen
		if c.Replay != "" {
			bad("Replay %q names one engine, and Bind is for many: set ReplayOf", c.Replay)
		}
	} else if c.Pod == "" || c.Model == "" {
		bad("connecting to an engine needs its Pod (%q) and Model (%q)", c.Pod, c.Model)
	}
	if err := check(c.Endpoint); err != nil {
		bad("%w", err)
	}
	if c.Replay != "" && !c.Bind {
		if err := zmtp.CheckDial(c.Replay); err != nil {
			bad("Replay: %w", err)
		}
	}
	if !c.Bind && c.ReplayOf != nil {
		bad("ReplayOf is for Bind: set Replay")
	}
	if _, ok := sink.(ReplaySink); !ok && sink != nil && (c.Replay != "" || c.ReplayOf != nil) {
		bad("a replay needs a ReplaySink, which %T is not", sink)
	}
	if len(c.Topic) > maxTopicBytes {
		bad("Topic has %d bytes, %d are allowed", len(c.Topic), maxTopicBytes)
	}
	if c.MaxMessage < 0 || c.MaxBuffered < 0 || c.MaxConns < 0 || c.MaxTopics < 0 {
		bad("a limit below 0")
	}
	if c.BackoffMin < 0 || c.BackoffMax < 0 || c.Heartbeat < 0 || c.ReplayTimeout < 0 || c.Silence < 0 {
		bad("a time below 0")
	}
	if d := c.withDefaults(); d.BackoffMin > d.BackoffMax {
		bad("BackoffMin %v is above BackoffMax %v", d.BackoffMin, d.BackoffMax)
	} else if d.MaxBuffered < 3*int64(d.MaxMessage) {
		// While a buffer is doubled there are two.
		bad("MaxBuffered %d is not three times MaxMessage %d", d.MaxBuffered, d.MaxMessage)
	}
	return errors.Join(errs...)
}

func (c SubscriberConfig) withDefaults() SubscriberConfig {
	c.MaxMessage = cmp.Or(c.MaxMessage, DefaultMaxMessage)
	c.MaxBuffered = cmp.Or(c.MaxBuffered, DefaultMaxBuffered)
	c.MaxConns = cmp.Or(c.MaxConns, DefaultMaxConns)
	c.MaxTopics = cmp.Or(c.MaxTopics, DefaultMaxTopics)
	c.BackoffMin = cmp.Or(c.BackoffMin, DefaultBackoffMin)
	c.BackoffMax = cmp.Or(c.BackoffMax, DefaultBackoffMax)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.ReplayTimeout = cmp.Or(c.ReplayTimeout, DefaultReplayTimeout)
	c.Silence = cmp.Or(c.Silence, DefaultSilence)
	if c.ParseTopic == nil {
		c.ParseTopic = ParseTopic
	}
	return c
}

// Run subscribes until ctx ends, waits for its goroutines and returns ctx's
// error. Before that it returns only if it cannot listen at Endpoint: a lost or
// impossible connection is tried again for ever. Run may be called again after
// it has returned, then going on with the streams it knew.
func (s *Subscriber) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer s.running.Store(false)
	if s.cfg.Bind {
		return s.listen(ctx)
	}
	return s.connect(ctx)
}

// Stats returns the counts so far.
func (s *Subscriber) Stats() SubscriberStats {
	return SubscriberStats{
		Messages:    s.messages.Load(),
		Malformed:   s.malformed.Load(),
		BadTopics:   s.badTopics.Load(),
		Superseded:  s.superseded.Load(),
		SinkErrors:  s.sinkErrors.Load(),
		Connects:    s.connects.Load(),
		Disconnects: s.disconnects.Load(),
		Refused:     s.refusals.Load(),

		Replays:      s.replays.Load(),
		Replayed:     s.replayed.Load(),
		ReplayErrors: s.replayErrors.Load(),
	}
}

// connection is one connection to an engine.
type connection struct {
	id    uint64      // in order of arrival
	peer  string      // its endpoint
	heard atomic.Bool // it has brought a message

	// Of one to a listening Subscriber.
	nc      net.Conn
	streams map[string]*stream // by topic

	idle    bool // since the last message
	onIdle  func()
	asking  sync.WaitGroup        // of askers
	leaving atomic.Pointer[error] // why it is ended from this side
	close   func() error
}

// leave ends the connection.
func (c *connection) leave(why error) {
	c.leaving.CompareAndSwap(nil, &why)
	_ = c.close()
}

// fallIdle has the engine asked what may have been missed when a connection falls
// idle: the last message before the silence may have been lost, or published before
// the engine knew of the subscription.
func (c *connection) fallIdle() {
	if !c.idle {
		c.idle = true
		c.onIdle()
	}
}

// stream is a stream as a connection brings it.
type stream struct {
	pod, model string
	name       string // Message.Stream
	replayAt   string // endpoint of the engine's replay socket; "" is none
	conn       *connection
	owner      *streamOwner // whose mu guards what follows

	superseded bool // a newer connection has the stream, and that was reported
	tested     bool // the replay socket was asked for a message of it
	// spoke is the number behind the last message that the present connection
	// brought and that was applied; 0 if there is none.
	spoke uint64
	// forgets: the engine behind the present connection does not keep what it
	// publishes, so it is of no use to ask when it is idle.
	forgets bool
	// current: the last answer of the replay socket ended as it should.
	current bool

	asking atomic.Bool // an asker of the stream is under way
}

// follow subscribes and gives take each message, until the connection is lost or
// take is in error. begin is called before the first one.
func (s *Subscriber) follow(ctx context.Context, conn *zmtp.Conn, c *connection, begin func(context.Context) error, take taker) error {
	ctx, cancel := context.WithCancel(ctx)
	c.close = conn.Close
	defer c.asking.Wait()
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	prefix := []byte(s.cfg.Topic)
	if err := conn.Subscribe(s.cfg.Topic); err != nil {
		return fmt.Errorf("events: subscriber: %w", err)
	}
	s.connects.Add(1)
	defer s.disconnects.Add(1)
	if s.cfg.OnConnect != nil {
		s.cfg.OnConnect(c.peer)
	}
	err := begin(ctx)
	for err == nil {
		var m [][]byte
		if m, err = conn.Receive(); err != nil {
			err = fmt.Errorf("events: subscriber: connection lost: %w", err)
			break
		}
		c.idle = false
		switch {
		case len(m) != 3 || len(m[1]) != 8:
			s.malformed.Add(1)
		case !bytes.HasPrefix(m[0], prefix):
			s.badTopics.Add(1)
		default:
			c.heard.Store(true)
			err = take(ctx, m[0], Message{Seq: binary.BigEndian.Uint64(m[1]), Payload: m[2]})
		}
	}
	if why := c.leaving.Load(); why != nil {
		err = *why
	}
	if isOurs(err) {
		err = fmt.Errorf("events: subscriber: leaving %s: %w", c.peer, err)
	}
	return err
}

// taker takes a message that a connection has brought.
type taker func(ctx context.Context, topic []byte, m Message) error

// take delivers a message that a stream's connection has brought, if that has the
// stream. An error ends the connection.
func (s *Subscriber) take(ctx context.Context, st *stream, m Message) error {
	waited, ours, err := s.enter(st)
	if !ours {
		return err
	}
	defer st.owner.mu.Unlock()
	err = s.settle(st, s.offer(ctx, st, m))
	if waited && err == nil {
		s.noteEnd(st)
	}
	return err
}

// enter locks a stream for its connection, if that has it. waited: an engine was
// being asked, and the sink was told that the message has to wait for that.
func (s *Subscriber) enter(st *stream) (waited, ours bool, err error) {
	o, c := st.owner, st.conn
	if !o.mu.TryLock() {
		if waited = st.asking.Load(); waited {
			s.note(st, NoteHeld)
		}
		o.mu.Lock()
	}
	if why := c.leaving.Load(); why != nil { // what was read of it before is not the next word
		o.mu.Unlock()
		return waited, false, *why
	}
	if c.id < o.floor {
		o.mu.Unlock()
		return waited, false, errOtherLife
	}
	if !o.claim(c.id) {
		o.mu.Unlock()
		s.superseded.Add(1)
		if !st.superseded {
			st.superseded = true
			s.report(fmt.Errorf("events: subscriber: %s from %s: %w", st.name, c.peer, errSuperseded))
		}
		return waited, false, nil
	}
	return waited, true, nil
}

// offer delivers a message. If something is missing before it, and there is a
// replay socket that answers, the engine is asked for that first.
func (s *Subscriber) offer(ctx context.Context, st *stream, m Message) error {
	t := &st.owner.trust
	struck := t.strikes > 0
	if (struck || t.untested) && !st.tested {
		if err := s.test(ctx, st, m); err != nil {
			return err
		}
	}
	m.Hold = st.replayAt != "" && t.holds()
	receipt, _ := s.deliver(st, m)
	held := receipt.Held
	if held {
		came, err := s.repair(ctx, st, receipt, m)
		if came || err != nil || ctx.Err() != nil {
			return err
		}
		m.Hold = false
		receipt, _ = s.deliver(st, m)
	}
	if receipt.Restarted {
		t.short, t.joint = false, 0
	}
	if receipt.Applied {
		t.doubted, st.spoke = false, m.Seq+1
		if held || struck && t.strikes == 0 {
			s.ask(ctx, st)
		}
	}
	return nil
}

// deliver gives a message to the sink, and tells of its errors.
func (s *Subscriber) deliver(st *stream, m Message) (Receipt, error) {
	s.messages.Add(1)
	m.Pod, m.Model, m.Stream = st.pod, st.model, st.name
	receipt, err := s.sink.IngestMessage(m)
	if err != nil {
		s.sinkErrors.Add(1)
		s.report(fmt.Errorf("events: subscriber: message %d of %s: %w", m.Seq, st.name, err))
	}
	return receipt, err
}

// note tells the sink what became of a stream, if it wants to know.
func (s *Subscriber) note(st *stream, n Note) {
	if sink, ok := s.sink.(ReplaySink); ok {
		sink.StreamNote(st.pod, st.model, st.name, n)
	}
}

// noteEnd tells the sink that no message of a stream waits for an answer any more.
func (s *Subscriber) noteEnd(st *stream) {
	if st.current {
		s.note(st, NoteCurrent)
	} else {
		s.note(st, NoteReleased)
	}
}

// restarted tells the sink that the engine of a stream is another one.
func (s *Subscriber) restarted(st *stream) {
	if sink, ok := s.sink.(ReplaySink); ok {
		s.failed(st, sink.StreamRestarted(st.pod, st.model, st.name))
	}
}

// rewound tells the sink that what it had of a stream comes once more. The stream
// has a replay socket, so the sink is a ReplaySink.
func (s *Subscriber) rewound(st *stream) {
	s.failed(st, s.sink.(ReplaySink).StreamRewound(st.pod, st.model, st.name))
}

// failed reports an error of the sink that is about no message.
func (s *Subscriber) failed(st *stream, err error) {
	if err != nil {
		s.sinkErrors.Add(1)
		s.report(fmt.Errorf("events: subscriber: %s: %w", st.name, err))
	}
}

func (s *Subscriber) report(err error) {
	if s.cfg.OnError != nil {
		s.cfg.OnError(err)
	}
}

// teller keeps what goes on failing in one way from being told at every attempt.
type teller struct {
	last  string
	at    time.Time
	quiet time.Duration
}

func (t *teller) tells(err error) bool {
	now, way := time.Now(), err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		way = strings.Replace(way, op.Error(), op.Op+": "+op.Err.Error(), 1) // without the port of this end
	}
	if way != t.last {
		*t = teller{last: way}
	} else if now.Sub(t.at) < t.quiet {
		return false
	}
	t.at, t.quiet = now, min(max(2*t.quiet, time.Second), time.Minute)
	return true
}

// backoff is the time between attempts: it doubles, and varies by half so that
// a fleet of subscribers does not come back all at once.
type backoff struct {
	min, max, next time.Duration
}

func (b *backoff) reset() { b.next = 0 }

// sleep returns early when ctx ends.
func (b *backoff) sleep(ctx context.Context) {
	b.next = min(max(b.next, b.min), b.max)
	t := time.NewTimer(b.next/2 + rand.N(b.next/2+1))
	defer t.Stop()
	b.next *= 2
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
