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
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

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
	DefaultBackoffMax = 10 * time.Second
	DefaultHeartbeat  = zmtp.DefaultHeartbeat
	// DefaultReplayTimeout is long beside the 100 ms for which vLLM's publisher
	// waits for batches before it looks at its replay socket.
	DefaultReplayTimeout = 2 * time.Second
)

const (
	maxTopicBytes = 1 << 10
	// connectTimeout bounds the dialling, and then the whole handshake.
	connectTimeout = 5 * time.Second
)

// ErrRunning is returned by Run while another Run of the Subscriber lasts.
var ErrRunning = errors.New("events: subscriber is running already")

var errSuperseded = errors.New("a newer connection publishes the same topic")

// SubscriberConfig says whom a Subscriber listens to. Only Endpoint is required,
// and Pod and Model if it connects; a zero limit is the default of its name.
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
	// then asked for there: when the connection is made, and when there is a gap
	// in the numbers. Meanwhile the messages that come wait. The sink must be a
	// ReplaySink.
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
	// Heartbeat is the silence after which a peer is asked for a sign of life,
	// if it speaks ZMTP 3.1 as libzmq does since 4.3. A second such silence ends
	// the connection.
	Heartbeat time.Duration

	// The hooks may be nil. They are called from the goroutines that read, from
	// several at once with Bind: they must be quick.

	// OnListen gets the endpoint, with its real port, when Bind listens.
	OnListen func(endpoint string)
	// OnConnect gets the peer's endpoint when the subscription was sent to it.
	OnConnect func(endpoint string)
	// OnReplay gets what came of asking an engine for what was missed.
	OnReplay func(Replay)
	// OnError gets what Run goes on after: lost connections, failed attempts to
	// connect, errors of the sink. Dropped messages are only counted.
	OnError func(error)
}

// SubscriberStats are counts since NewSubscriber.
type SubscriberStats struct {
	Messages    uint64 // given to the sink
	Malformed   uint64 // dropped: not [topic, 8 bytes, payload]
	BadTopics   uint64 // dropped: not subscribed to, not kv@POD@MODEL, or one too many
	Superseded  uint64 // dropped: a newer connection publishes the topic
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
// new connection, when a connection falls idle, and when a number is missing. Every answer has to begin with the last message that was
// applied, byte by byte. If it does not, the engine has started anew, or
// forgotten: the sink is told, gets all that the engine has, and the connection
// is made anew. Without a replay socket a message that is missing, or that the
// sink did not take, is gone, and the sink is left to see that by the numbers.
//
// A stream is Endpoint or, with Bind, Endpoint and the topic: an engine that
// starts anew comes on a new connection with the same topic, and the
// data-parallel ranks of one pod come with one topic to a port each. If two
// connections publish one topic, the newer one has it, for the older one is what
// a dead engine left. A connection that dies with Bind is noticed, but only the
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

	// Of a subscriber that connects; Run's goroutine has it.
	only source

	// Of a subscriber that listens.
	topics topics
	mu     sync.Mutex // guards links, lastID
	links  map[*link]struct{}
	lastID uint64
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
		only:   source{pod: cfg.Pod, model: cfg.Model, stream: cfg.Endpoint},
		topics: topics{open: make(map[string]*topic)},
		links:  make(map[*link]struct{}),
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
	if c.BackoffMin < 0 || c.BackoffMax < 0 || c.Heartbeat < 0 || c.ReplayTimeout < 0 {
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

// connect keeps one connection to the endpoint.
func (s *Subscriber) connect(ctx context.Context) error {
	wait := backoff{min: s.cfg.BackoffMin, max: s.cfg.BackoffMax}
	for again := false; ctx.Err() == nil; {
		start, before := time.Now(), s.messages.Load()
		err := s.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if again = !again && errors.Is(err, errOnceMore); again {
			continue
		}
		s.report(err)
		// A peer that takes connections only to drop them is not hammered.
		if s.messages.Load() > before || time.Since(start) > s.cfg.BackoffMax {
			wait.reset()
		}
		wait.sleep(ctx)
	}
	return ctx.Err()
}

// session is one connection, from dialling to its loss.
func (s *Subscriber) session(ctx context.Context) error {
	wire := s.wire
	catchUp := func() error {
		if s.cfg.Replay == "" {
			return nil
		}
		return s.catchUp(ctx, &s.only, s.cfg.Replay)
	}
	idle := &idleness{ask: func() error {
		if s.only.forgets {
			return nil
		}
		return catchUp()
	}}
	wire.OnIdle = idle.onIdle
	s.only.spoke, s.only.forgets = 0, false
	conn, err := zmtp.Dial(ctx, s.cfg.Endpoint, wire)
	if err != nil {
		return fmt.Errorf("events: subscriber: %w", err)
	}
	err = s.follow(ctx, conn, s.cfg.Endpoint, idle, catchUp, func(_, payload []byte, seq uint64) error {
		return s.offer(ctx, &s.only, s.cfg.Replay, Message{Seq: seq, Payload: payload})
	})
	s.interrupted(&s.only)
	return err
}

// interrupted tells the sink that the connection of a stream is lost, if it wants
// to know.
func (s *Subscriber) interrupted(from *source) {
	if sink, ok := s.sink.(ReplaySink); ok {
		sink.StreamInterrupted(from.pod, from.model, from.stream)
	}
}

// idleness makes a connection ask what it may have missed when it falls idle: the
// last message before the silence may have been lost, or published before the
// engine knew of the subscription.
type idleness struct {
	ask   func() error
	asked bool // since the last message
	err   error
}

func (i *idleness) onIdle() {
	if !i.asked && i.err == nil {
		i.asked, i.err = true, i.ask()
	}
}

// follow subscribes, calls begin, and then take with each message until the
// connection is lost or one of them, or what the connection did when it was idle,
// is in error.
func (s *Subscriber) follow(ctx context.Context, conn *zmtp.Conn, peer string, idle *idleness, begin func() error, take func(topic, payload []byte, seq uint64) error) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	prefix := []byte(s.cfg.Topic)
	if err := conn.Subscribe(s.cfg.Topic); err != nil {
		return fmt.Errorf("events: subscriber: %w", err)
	}
	s.connects.Add(1)
	defer s.disconnects.Add(1)
	if s.cfg.OnConnect != nil {
		s.cfg.OnConnect(peer)
	}
	if err := begin(); err != nil {
		return fmt.Errorf("events: subscriber: leaving %s: %w", peer, err)
	}
	for {
		m, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("events: subscriber: connection lost: %w", err)
		}
		err, idle.asked = idle.err, false
		switch {
		case err != nil:
		case len(m) != 3 || len(m[1]) != 8:
			s.malformed.Add(1)
		case !bytes.HasPrefix(m[0], prefix):
			s.badTopics.Add(1)
		default:
			err = take(m[0], m[2], binary.BigEndian.Uint64(m[1]))
		}
		if err != nil {
			return fmt.Errorf("events: subscriber: leaving %s: %w", peer, err)
		}
	}
}

// source is whose messages a stream has.
type source struct {
	pod, model, stream string
	// doubted: a message was not delivered because the engine that replays does
	// not have it.
	doubted bool
	// spoke is the number behind the last message that the present connection
	// brought and that was applied; 0 if there is none.
	spoke uint64
	// forgets: the engine behind the present connection does not keep what it
	// publishes, so it is of no use to ask when it is idle.
	forgets bool
}

// offer delivers a message. If something is missing before it, and there is a
// replay socket, the engine is asked for that first. An error ends the
// connection.
func (s *Subscriber) offer(ctx context.Context, from *source, replay string, m Message) error {
	m.Hold = replay != ""
	receipt, _ := s.deliver(from, m)
	if receipt.Held {
		came, err := s.repair(ctx, from, replay, receipt, m.Seq)
		if came || err != nil || ctx.Err() != nil {
			return err
		}
		m.Hold = false
		receipt, _ = s.deliver(from, m)
	}
	if receipt.Applied {
		from.doubted, from.spoke = false, m.Seq+1
	}
	return nil
}

// deliver gives a message to the sink, and tells of its errors.
func (s *Subscriber) deliver(from *source, m Message) (Receipt, error) {
	s.messages.Add(1)
	m.Pod, m.Model, m.Stream = from.pod, from.model, from.stream
	receipt, err := s.sink.IngestMessage(m)
	if err != nil {
		s.sinkErrors.Add(1)
		if s.cfg.OnError != nil {
			s.cfg.OnError(fmt.Errorf("events: subscriber: message %d of %s: %w", m.Seq, from.stream, err))
		}
	}
	return receipt, err
}

// sinkFailed counts and reports an error of the sink that is about no message.
func (s *Subscriber) sinkFailed(err error) {
	s.sinkErrors.Add(1)
	s.report(err)
}

func (s *Subscriber) report(err error) {
	if s.cfg.OnError != nil {
		s.cfg.OnError(err)
	}
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

// link is the connection of one engine to a listening subscriber.
type link struct {
	id      uint64 // in order of arrival
	nc      net.Conn
	heard   atomic.Bool // it has delivered a message
	sources map[string]*linkSource
}

// linkSource is a topic as one link publishes it.
type linkSource struct {
	source
	replay     string // endpoint, "" if there is none
	heard      bool   // on this link
	topic      *topic
	superseded bool // and that was reported
}

// listen accepts engines.
func (s *Subscriber) listen(ctx context.Context) error {
	ln, err := zmtp.Listen(ctx, s.cfg.Endpoint)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("events: subscriber: %w", err)
	}
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	if s.cfg.OnListen != nil {
		s.cfg.OnListen(zmtp.Name(ln.Addr()))
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	wait := backoff{min: s.cfg.BackoffMin, max: s.cfg.BackoffMax}
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close()
			}
			return ctx.Err()
		}
		if err != nil { // out of file descriptors, say: it may pass
			s.report(fmt.Errorf("events: subscriber: accepting at %s: %w", s.cfg.Endpoint, err))
			wait.sleep(ctx)
			continue
		}
		wait.reset()
		if l := s.admit(nc); l != nil {
			readers.Go(func() { s.attend(ctx, l) })
		}
	}
}

// admit makes room for a connection. When there are too many, the oldest one
// that never delivered a message gives way: an engine comes back by itself, and
// idlers cannot keep engines out.
func (s *Subscriber) admit(nc net.Conn) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.links) >= s.cfg.MaxConns {
		s.refusals.Add(1)
		idle := s.oldestIdle()
		if idle == nil {
			_ = nc.Close()
			return nil
		}
		_ = idle.nc.Close()
		delete(s.links, idle)
	}
	s.lastID++
	l := &link{id: s.lastID, nc: nc, sources: make(map[string]*linkSource)}
	s.links[l] = struct{}{}
	return l
}

func (s *Subscriber) oldestIdle() (oldest *link) {
	for l := range s.links {
		if !l.heard.Load() && (oldest == nil || l.id < oldest.id) {
			oldest = l
		}
	}
	return oldest
}

// attend reads from one engine until its connection is lost.
func (s *Subscriber) attend(ctx context.Context, l *link) {
	peer := zmtp.Name(l.nc.RemoteAddr())
	wire := s.wire
	idle := &idleness{ask: func() error { return s.catchUpLink(ctx, l) }}
	wire.OnIdle = idle.onIdle
	conn, err := zmtp.Handshake(ctx, l.nc, peer, wire)
	if err != nil {
		err = fmt.Errorf("events: subscriber: %w", err)
	} else {
		begin := func() error { return nil } // who it is shows by its first message
		err = s.follow(ctx, conn, peer, idle, begin, func(topic, payload []byte, seq uint64) error {
			return s.takeFrom(ctx, l, topic, Message{Seq: seq, Payload: payload})
		})
	}
	s.mu.Lock()
	delete(s.links, l)
	s.mu.Unlock()
	for name, src := range l.sources {
		if s.topics.leave(name, src.topic, l.id) {
			s.interrupted(&src.source)
		}
	}
	if ctx.Err() == nil {
		s.report(err)
	}
}

// catchUpLink asks for what was missed of all that a link publishes.
func (s *Subscriber) catchUpLink(ctx context.Context, l *link) error {
	for _, src := range l.sources {
		src.topic.mu.Lock()
		var err error
		if src.topic.claim(l.id) && l.id >= src.topic.floor && !src.forgets {
			err = s.catchUpOn(ctx, src)
		}
		src.topic.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// takeFrom delivers a message of one of the engines.
func (s *Subscriber) takeFrom(ctx context.Context, l *link, name []byte, m Message) error {
	src := l.sources[string(name)]
	if src == nil {
		if src = s.newSource(l, string(name)); src == nil {
			s.badTopics.Add(1)
			return nil
		}
		l.heard.Store(true)
	}
	// The lock keeps the messages of a stream in one row: an older connection
	// cannot slip one in after the first of a newer one.
	t := src.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.id < t.floor {
		return errOtherLife
	}
	if !t.claim(l.id) {
		s.superseded.Add(1)
		if !src.superseded {
			src.superseded = true
			s.report(fmt.Errorf("events: subscriber: %s from %s: %w", src.stream, zmtp.Name(l.nc.RemoteAddr()), errSuperseded))
		}
		return nil
	}
	if !src.heard {
		src.heard = true
		// Its first message shows whether it is the engine that replays.
		if err := s.catchUpOn(ctx, src); err != nil && !errors.Is(err, errOnceMore) {
			return err
		}
	}
	src.doubted = t.doubted
	err := s.offer(ctx, &src.source, src.replay, m)
	t.doubted = src.doubted
	s.settle(src, err)
	return err
}

// catchUpOn is catchUp for a topic, whose lock is held.
func (s *Subscriber) catchUpOn(ctx context.Context, src *linkSource) error {
	if src.replay == "" {
		return nil
	}
	err := s.catchUp(ctx, &src.source, src.replay)
	s.settle(src, err)
	return err
}

// settle ends all links to what was the engine of a topic before it started
// anew: theirs is not the next word.
func (s *Subscriber) settle(src *linkSource, err error) {
	if errors.Is(err, errOtherLife) {
		s.mu.Lock()
		src.topic.floor = s.lastID + 1
		s.mu.Unlock()
		s.interrupted(&src.source)
	}
}

// newSource returns nil if the topic says nothing, or is one too many.
func (s *Subscriber) newSource(l *link, name string) *linkSource {
	if len(l.sources) == s.cfg.MaxTopics || len(name) > maxTopicBytes {
		return nil
	}
	src := &linkSource{source: source{pod: s.cfg.Pod, model: s.cfg.Model, stream: s.cfg.Endpoint + " " + name}}
	if src.pod == "" || src.model == "" {
		pod, model, err := s.cfg.ParseTopic(name)
		if err != nil {
			return nil
		}
		if src.pod == "" {
			src.pod = pod
		}
		if src.model == "" {
			src.model = model
		}
	}
	if s.cfg.ReplayOf != nil {
		src.replay = s.cfg.ReplayOf(src.pod, zmtp.Name(l.nc.RemoteAddr()))
	}
	src.topic = s.topics.join(name)
	l.sources[name] = src
	return src
}
