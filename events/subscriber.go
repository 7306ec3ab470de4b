package events

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/internal/topic"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file has the common parts of a Subscriber that connects (connect.go) and one that
// listens (listen.go): the configuration, and the way of a message from the connection to the
// sink. Both request missed messages from engines (replay.go).

// Defaults of a SubscriberConfig.
const (
	// defaultMaxMessage is far above the messages of engines: the events of a million tokens
	// are some 10 MB.
	defaultMaxMessage = 32 << 20
	defaultMaxConns   = 256
	// defaultBackoff is short, because messages from before a connection are lost without a
	// replay.
	defaultBackoff   = time.Second
	defaultHeartbeat = zmtp.DefaultHeartbeat
	// defaultReplayTimeout is long beside the 100 ms for which vLLM's publisher waits for
	// batches before it serves its replay socket.
	defaultReplayTimeout = 2 * time.Second
	// defaultSilence is long beside the start of an engine's first request.
	defaultSilence = 30 * time.Second
)

const (
	// minBuffered and bufferedMessages bound, over all connections, the memory of messages that
	// are larger than 64 KiB: so many bytes, and so many times MaxMessage if that is more. It is
	// more than two, because while a buffer is doubled there are two.
	minBuffered      = 256 << 20
	bufferedMessages = 8
	// maxTopics bounds the topics of one connection, with Bind. An engine publishes one.
	maxTopics     = 64
	maxTopicBytes = 1 << 10
	// minTime is the least time: 5 without a unit would be a loop that does not wait.
	minTime = time.Millisecond
	// maxTime bounds the times of which there are multiples.
	maxTime = 24 * time.Hour
	// connectTimeout bounds the dialling, and then the whole handshake.
	connectTimeout = 2 * time.Second
	// endPatience is how long the end of a connection may take to arrive when the next engine
	// already answers.
	endPatience = 100 * time.Millisecond
)

// errRunning is returned by Run while another Run of the same Subscriber or Fleet is running.
var errRunning = errors.New("events: Run is already running")

// TransportError is a fault with its pod. Each error that OnError of a SubscriberConfig or a
// FleetConfig gets is a *TransportError.
type TransportError struct {
	Pod, Model string // empty if no pod is known
	// Rank is that of a Fleet's pod. It is -1 for a Subscriber of the host, for a fault of the
	// whole pod, and for its offload daemon.
	Rank int
	// Endpoint is where the engine publishes or, with Bind, the remote end of its connection.
	// A fault of a whole Subscriber that listens has the endpoint where it listens. It is
	// empty if the fault is of no connection.
	Endpoint string
	Err      error
}

// Error returns the text of Err.
func (e *TransportError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *TransportError) Unwrap() error { return e.Err }

// SubscriberConfig configures a Subscriber. Endpoint is required, and without Bind Pod and
// Model. A zero limit or time is its default, and any other time is at least 1 ms. The
// functions whose names begin with On may be nil. Several goroutines call them at once, and
// messages may wait for them, so they must be quick.
type SubscriberConfig struct {
	// Endpoint is tcp://host:port or ipc://path. An IPv6 host is in brackets. A host name
	// is resolved at every attempt to connect. With Bind the host may be *, and port 0 is
	// any free port.
	Endpoint string
	// Bind listens at Endpoint for engines that connect. (vLLM connects if its endpoint has
	// none of *, ::, ipc:// and inproc://.)
	Bind bool
	// Topic is the beginning of the accepted topics. "" accepts all. Without Bind one topic is
	// accepted: Topic itself if it comes, else the first one of a connection. Messages of
	// further topics are dropped, and OnError gets their names.
	Topic string
	// Pod and Model are the names of the pod and of its model, the model as clients name it in
	// requests. Both are required without Bind. With Bind, an empty name comes from the topic.
	Pod, Model string
	// Tiers: the peer is not the engine of Pod, but an offload daemon beside it (LMCache), which
	// publishes events about lower tiers alone. Its losses forget the blocks of these tiers, and
	// an event that empties the cache without naming a tier empties these.
	Tiers bool
	// ParseTopic parses pod and model from a topic, with Bind. nil parses topics of the form
	// kv@POD@MODEL, which llm-d uses: POD has no @, and MODEL is the rest.
	ParseTopic func(topic string) (pod, model string, err error)

	// Replay is the endpoint of the engine's replay socket (replay_endpoint, where vLLM and
	// SGLang always listen); "" is none. The Subscriber requests missing messages there, and
	// new messages wait until these have come. If the socket has never answered, messages wait
	// at most half a second: then OnError is called, messages go on, and the
	// socket is tried again in the background.
	Replay string
	// ReplayOf returns the endpoint of a pod's replay socket, with Bind. peer is the remote
	// end of its connection, tcp://ip:port. nil, or "", is none.
	ReplayOf func(pod, peer string) string
	// ReplayTimeout is how long a replay socket may send nothing before the replay fails. 0: 2
	// s. It is at most 24 hours.
	ReplayTimeout time.Duration

	// MaxMessage bounds the bytes of one message; a peer that sends more is disconnected. Messages
	// of more than 64 KiB that are being received have eight times as much in all, and at least
	// 256 MiB. 0: 32 MiB.
	MaxMessage int
	MaxConns   int // connections, with Bind; 0: 256

	// Backoff is the longest time between two attempts to connect. The time begins at a tenth
	// of it, doubles with each attempt, and varies at random by half. 0: 1 s. It is at most 24
	// hours.
	Backoff time.Duration
	// Silence: if an engine has published nothing under an accepted topic for this time since
	// its first connection (with Bind, since each connection), OnError gets the likely causes,
	// once. With a Topic, a replay does not count: its messages may lack topics. 0: 30 s.
	Silence time.Duration
	// Heartbeat: if a peer has sent nothing for this time, it gets a ping, if it supports ZMTP
	// 3.1, as libzmq does since 4.3. If it sends nothing for this time again, the connection
	// is closed. 0: 3 s.
	Heartbeat time.Duration

	// OnListen gets the endpoint, with its real port, when Bind listens.
	OnListen func(endpoint string)
	// OnConnect gets the endpoint of a peer when the subscription was sent.
	OnConnect func(endpoint string)
	// OnError gets faults that do not end Run: lost connections, failed attempts to connect,
	// replay sockets that do not answer, replays that are incomplete, engines that publish
	// nothing, two engines under one pod and rank, and each error of the sink. Each error is a
	// *TransportError. A fault that lasts is reported again, at intervals that double up to one
	// minute. Messages that are dropped because their topic does not begin with Topic, is longer
	// than 1,024 bytes, or names no pod, are only counted (SubscriberStats). The topic of a pool
	// that several pods share (kv@SHARED_STORAGE@MODEL, kv@OBJECT_STORE@MODEL,
	// kv@pool:NAME@MODEL) is reported, too: its blocks are no pod's.
	OnError func(error)

	onReplay func(replayResult) // of tests
}

// SubscriberStats are counts since NewSubscriber.
type SubscriberStats struct {
	Messages uint64 // given to the sink
	// Dropped counts messages that the sink did not get, by reason. It always has all reasons:
	//
	//	bad_topic   the topic does not begin with Topic, has more than 1,024 bytes, cannot be parsed, is of a pool of the fleet, is the 65th of its connection or, without Bind, is not the accepted one
	//	malformed   not three frames: topic, number of 8 bytes, payload
	//	superseded  a newer connection brings the stream
	Dropped     map[string]uint64
	SinkErrors  uint64
	Connects    uint64
	Disconnects uint64
	Refused     uint64 // connections closed because of MaxConns

	Replays      uint64 // requested replays
	Replayed     uint64 // messages of replays, part of Messages
	ReplayErrors uint64 // replays that did not bring all
}

// Subscriber receives the events of engines over ZeroMQ and gives each message to a
// Sink. It connects to one engine or, with Bind, listens for many.
//
// The messages of one stream come to the sink one at a time, in order. With Bind the messages
// of different connections come concurrently. The memory of a message is valid during the call
// only. If the sink is slow, messages wait in the socket, and in the end at the engine, which
// drops those that it cannot queue. An error of the sink goes to OnError, and the message is
// lost.
//
// If the engine has a replay socket (Replay), the Subscriber requests a replay at each new connection,
// when no message has come for the time of Heartbeat, and when a number is missing. The answer
// has to begin with the message that was applied last, byte by byte. If it does not, the
// engine has restarted or has dropped that message: the Subscriber gives the sink a
// NoteRestarted and all messages that the engine has, and connects again. If the replay socket
// lacks the messages of the connection, it belongs to another engine: OnError gets that, and
// this replay socket is not used. Without a replay socket, missing messages are lost, and the
// sink sees the gap in the numbers.
//
// With Bind, an engine that restarts comes on a new connection with the same topic. If two
// connections bring one stream, the newer one counts, because the older one is left from a
// dead engine. The data-parallel ranks of one pod have the same topic and different ports, so
// each port needs a Subscriber of its own. The Subscriber notices a connection that dies, but
// only the engine can connect again. The first message of a connection identifies its engine.
//
// Peers are not trusted: SubscriberConfig has the limits. But nothing in ZeroMQ proves that a
// topic belongs to a peer. So listen only where only engines can connect.
type Subscriber struct {
	sink      Sink
	cfg       SubscriberConfig
	wire      zmtp.Config
	link      *link // in a Fleet; else nil
	running   atomic.Bool
	count     subscriberCounts
	owners    streamOwners
	mu        sync.Mutex // guards what follows
	conns     map[*connection]struct{}
	lastID    uint64        // of a connection
	strangers repeatFilters // faults of connections without a message of a stream
}

// subscriberCounts are those of SubscriberStats.
type subscriberCounts struct {
	malformed, badTopics, superseded                      atomic.Uint64
	messages, sinkErrors, connects, disconnects, refusals atomic.Uint64
	replays, replayed, replayErrors                       atomic.Uint64
}

// NewSubscriber returns a Subscriber for a sink, such as Indexer.Sink. It checks all fields
// without the network; the error names each wrong field.
func NewSubscriber(sink Sink, cfg SubscriberConfig) (*Subscriber, error) {
	if err := cfg.validate(sink); err != nil {
		return nil, err
	}
	return newSubscriber(sink, cfg, cfg.newBudget()), nil
}

// newBudget returns the budget of a valid config.
func (c SubscriberConfig) newBudget() *zmtp.Budget {
	return zmtp.NewBudget(c.buffered())
}

func (c SubscriberConfig) buffered() int64 {
	return max(minBuffered, bufferedMessages*int64(c.withDefaults().MaxMessage))
}

// newSubscriber returns a Subscriber for a valid config, with a budget for messages that are
// being received.
func newSubscriber(sink Sink, cfg SubscriberConfig, room *zmtp.Budget) *Subscriber {
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
			Budget:           room,
		},
		conns: make(map[*connection]struct{}),
	}
}

func (c SubscriberConfig) validate(sink Sink) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("events: subscriber: "+format, args...))
	}
	if sink == nil {
		bad("the sink is nil")
	}
	check := zmtp.CheckDial
	if c.Bind {
		check = zmtp.CheckListen
		if c.Replay != "" {
			bad("Replay %q is the socket of one engine, but Bind is for many: set ReplayOf", c.Replay)
		}
	} else if c.Pod == "" || c.Model == "" {
		bad("Pod is %q and Model is %q, both are required without Bind", c.Pod, c.Model)
	}
	if err := check(c.Endpoint); err != nil {
		bad("%w", err)
	}
	if c.Replay != "" && !c.Bind {
		if err := zmtp.CheckDial(c.Replay); err != nil {
			bad("Replay: %w", err)
		} else if c.Replay == c.Endpoint {
			bad("Replay and Endpoint are both %s: an engine has a port for each (vLLM: replay_endpoint and endpoint)", c.Endpoint)
		}
	}
	if !c.Bind && c.ReplayOf != nil {
		bad("ReplayOf is for Bind: set Replay")
	}
	if len(c.Topic) > maxTopicBytes {
		bad("Topic has %d bytes, more than %d", len(c.Topic), maxTopicBytes)
	}
	if most := math.MaxInt / bufferedMessages; c.MaxMessage < 0 || c.MaxMessage > most {
		bad("MaxMessage is %d, not in 0..%d", c.MaxMessage, most)
	}
	if c.MaxConns < 0 {
		bad("MaxConns is %d, must not be negative", c.MaxConns)
	}
	if short := func(d time.Duration) bool { return d != 0 && d < minTime }; short(c.Backoff) || short(c.Heartbeat) || short(c.ReplayTimeout) || short(c.Silence) {
		bad("Backoff is %v, Heartbeat %v, ReplayTimeout %v and Silence %v, must be 0 or at least %v", c.Backoff, c.Heartbeat, c.ReplayTimeout, c.Silence, minTime)
	}
	if c.Backoff > maxTime || c.ReplayTimeout > maxTime {
		bad("Backoff is %v and ReplayTimeout %v, must be at most %v", c.Backoff, c.ReplayTimeout, maxTime)
	}
	return errors.Join(errs...)
}

func (c SubscriberConfig) withDefaults() SubscriberConfig {
	c.MaxMessage = cmp.Or(c.MaxMessage, defaultMaxMessage)
	c.MaxConns = cmp.Or(c.MaxConns, defaultMaxConns)
	c.Backoff = cmp.Or(c.Backoff, defaultBackoff)
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.ReplayTimeout = cmp.Or(c.ReplayTimeout, defaultReplayTimeout)
	c.Silence = cmp.Or(c.Silence, defaultSilence)
	if c.ParseTopic == nil {
		c.ParseTopic = topic.Parse
	}
	return c
}

// Run subscribes until ctx ends. It then waits for its goroutines and returns the error of
// ctx. Before that it returns only if it cannot listen at Endpoint; lost connections and
// failed attempts are tried again without end. After it has returned, Run may be called again,
// and goes on with the same streams; before that, a second Run is an error.
func (s *Subscriber) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errRunning
	}
	defer s.running.Store(false)
	if s.cfg.Bind {
		return s.listen(ctx)
	}
	return s.connect(ctx)
}

// Stats returns the counts so far.
func (s *Subscriber) Stats() (sum SubscriberStats) {
	s.count.addTo(&sum)
	return sum
}

// addTo adds the counts to a sum.
func (c *subscriberCounts) addTo(sum *SubscriberStats) {
	if sum.Dropped == nil {
		sum.Dropped = make(map[string]uint64, 3)
	}
	sum.Dropped["bad_topic"] += c.badTopics.Load()
	sum.Dropped["malformed"] += c.malformed.Load()
	sum.Dropped["superseded"] += c.superseded.Load()
	sum.Messages += c.messages.Load()
	sum.SinkErrors += c.sinkErrors.Load()
	sum.Connects += c.connects.Load()
	sum.Disconnects += c.disconnects.Load()
	sum.Refused += c.refusals.Load()

	sum.Replays += c.replays.Load()
	sum.Replayed += c.replayed.Load()
	sum.ReplayErrors += c.replayErrors.Load()
}

var errContested = errors.New("another stream has their rank: are two engines configured under one pod and rank?")

// connection is one connection to an engine.
type connection struct {
	id    uint64      // in order of arrival
	peer  string      // its endpoint
	heard atomic.Bool // it has brought a message of a stream
	quiet *silence

	// Of one to a listening Subscriber.
	nc      net.Conn
	streams map[string]*stream // by topic
	pools   repeatFilters      // topics of pools

	stream *stream // of one to an engine

	frames frames
	topics topics
	gaps   gaps

	idle    bool // since the last message
	onIdle  func()
	asking  sync.WaitGroup        // of askers
	leaving atomic.Pointer[error] // why this end closes it
	conn    *zmtp.Conn
}

// cut returns the error about a connection that the peer has ended.
func (s *Subscriber) cut(c *connection, why error) error {
	if pod := s.of(c).pod; pod != "" {
		return fmt.Errorf("events: subscriber: pod %q: connection lost: %w", pod, why)
	}
	return fmt.Errorf("events: subscriber: connection lost: %w", why) // no message has shown whose it is
}

// leave ends the connection.
func (c *connection) leave(why error) {
	c.leaving.CompareAndSwap(nil, &why)
	_ = c.conn.Close()
}

// lost ends a connection whose messages are no longer read. If the engine has ended it
// already, it returns the reason. Only its reader may call lost.
func (c *connection) lost() error {
	defer time.AfterFunc(endPatience, func() { _ = c.conn.Close() }).Stop()
	for {
		switch _, err := c.conn.Receive(); {
		case err == nil: // sent before the end
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
			return err
		default:
			return nil
		}
	}
}

// fallIdle requests possibly missed messages when a connection falls idle: the last message
// before the silence may be lost, or older than the subscription.
func (c *connection) fallIdle() {
	if !c.idle {
		c.idle = true
		c.onIdle()
	}
}

// A stream is the stream of a connection.
type stream struct {
	pod, model string
	name       string // Message.Stream
	replayAt   string // endpoint of the engine's replay socket; "" is none
	conn       *connection
	owner      *streamOwner // whose mu guards the fields below

	topic      []byte // nil: the connection has brought no message yet
	superseded bool   // a newer connection has the stream, and that was reported
	tested     bool   // a replay of one of its messages was requested
	// spoke is the number behind the last message that the present connection
	// brought and that was applied; 0 if there is none.
	spoke uint64
	// forgets: the engine behind the present connection does not keep its messages, so a
	// request when it is idle is useless.
	forgets bool
	// current: the last answer of the replay socket was complete.
	current bool
	// failing: the sink refuses messages of a replay. contested: another stream has the rank
	// of its messages. strange: unrecognized parts.
	failing, contested repeatFilter
	strange            repeatFilters

	asking atomic.Bool // an asker of the stream is under way
}

// follow subscribes and gives each message to take, until the connection is lost or take
// returns an error. begin is called before the first one.
func (s *Subscriber) follow(ctx context.Context, conn *zmtp.Conn, c *connection, begin func(context.Context) error, take receiver) error {
	ctx, cancel := context.WithCancel(ctx)
	c.conn = conn
	defer c.asking.Wait()
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	prefix := []byte(s.cfg.Topic)
	if err := conn.Subscribe(s.cfg.Topic); err != nil {
		return fmt.Errorf("events: subscriber: %w", err)
	}
	s.count.connects.Add(1)
	defer s.count.disconnects.Add(1)
	if s.cfg.OnConnect != nil {
		s.cfg.OnConnect(c.peer)
	}
	err := begin(ctx)
	for err == nil {
		var m [][]byte
		if m, err = conn.Receive(); err != nil {
			err = s.cut(c, err)
			break
		}
		c.idle = false
		if !bytes.HasPrefix(m[0], prefix) || len(m[0]) > maxTopicBytes {
			s.dropBadTopic(c)
			continue
		}
		seq, bad := c.frames.number(m)
		if bad != nil {
			err = s.unread(ctx, c, m[0], bad)
			continue
		}
		s.joint(c, m[0], seq)
		err = take(ctx, m[0], Message{Seq: seq, Payload: m[2]})
	}
	if why := c.leaving.Load(); why != nil {
		err = *why
	}
	if isOurs(err) {
		err = fmt.Errorf("events: subscriber: leaving %s: %w", c.peer, err)
	}
	return err
}

// dropBadTopic counts a message that is dropped because of its topic.
func (s *Subscriber) dropBadTopic(c *connection) {
	s.count.badTopics.Add(1)
	c.quiet.dropped.Add(1)
}

// A receiver takes the messages of a connection.
type receiver func(ctx context.Context, topic []byte, m Message) error

// take delivers a message of a stream's connection, if the connection has the stream. An error
// ends the connection.
func (s *Subscriber) take(ctx context.Context, st *stream, topic []byte, m Message) error {
	waited, ours, err := s.enter(ctx, st)
	if !ours {
		return err
	}
	defer st.owner.mu.Unlock()
	if !s.picks(st, topic) {
		return nil
	}
	err = s.settle(st, s.offer(ctx, st, m))
	if waited && err == nil {
		s.noteEnd(st)
	}
	return err
}

// enter locks a stream for its connection, if that has it and goes on. waited: a replay was
// under way, and the sink has a note that the message waits for it.
func (s *Subscriber) enter(ctx context.Context, st *stream) (waited, ours bool, err error) {
	o, c := st.owner, st.conn
	if !o.mu.TryLock() {
		if waited = st.asking.Load(); waited {
			s.note(st, NoteHeld)
		}
		o.mu.Lock()
	}
	if why := c.leaving.Load(); why != nil { // messages read from it before do not count
		o.mu.Unlock()
		return waited, false, *why
	}
	if err := ctx.Err(); err != nil { // and with it the replay
		o.mu.Unlock()
		return waited, false, err
	}
	if c.id < o.floor {
		o.mu.Unlock()
		return waited, false, errOtherLife
	}
	if !o.claim(c.id) {
		o.mu.Unlock()
		s.count.superseded.Add(1)
		if !st.superseded {
			st.superseded = true
			s.report(st, fmt.Errorf("events: subscriber: %s from %s: %w", st.name, c.peer, errSuperseded))
		}
		return waited, false, nil
	}
	return waited, true, nil
}

// offer delivers a message. If messages are missing before it, and there is a replay socket
// that answers, they are requested first.
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
		if came || err != nil {
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
		s.watch(st, receipt)
		if held || struck && t.strikes == 0 {
			s.ask(ctx, st)
		}
	}
	return nil
}

// deliver gives a message to the sink, and reports errors.
func (s *Subscriber) deliver(st *stream, m Message) (Receipt, error) {
	s.count.messages.Add(1)
	m.Pod, m.Model, m.Stream = st.pod, st.model, st.name
	receipt, err := s.sink.IngestMessage(m)
	switch {
	case err != nil:
		s.count.sinkErrors.Add(1)
		if !m.Replayed || st.failing.due(err) { // a replayed one comes again and again
			s.report(st, fmt.Errorf("events: subscriber: message %d of %s: %w", m.Seq, st.name, err))
		}
	case !receipt.Applied && !receipt.Duplicate && !receipt.Held && !m.Replayed:
		if err := fmt.Errorf("events: subscriber: pod %q: messages of %s are not applied: %w", st.pod, st.name, errContested); st.contested.due(err) {
			s.report(st, err)
		}
	}
	if receipt.Unrecognized != nil {
		s.reportUnrecognized(st, receipt.Unrecognized)
	}
	return receipt, err
}

// maxFilters bounds the kinds of faults that are reported of a stream or connection, because
// a peer chooses their texts.
const maxFilters = 16

// reportUnrecognized reports each unknown thing of a stream at doubling intervals.
func (s *Subscriber) reportUnrecognized(st *stream, what error) {
	if err := fmt.Errorf("events: subscriber: %s: %w", st.name, what); st.strange.due(err) {
		s.report(st, err)
	}
}

// repeatFilters has a filter for each text of a fault, at most maxFilters.
type repeatFilters map[string]*repeatFilter

func (t *repeatFilters) due(err error) bool {
	f := (*t)[err.Error()]
	if f == nil {
		if len(*t) == maxFilters {
			return false
		}
		if *t == nil {
			*t = make(repeatFilters)
		}
		f = new(repeatFilter)
		(*t)[err.Error()] = f
	}
	return f.due(err)
}

// noteTiers notes at the sink that a stream is not the engine's.
func (s *Subscriber) noteTiers(st *stream) {
	if s.cfg.Tiers {
		s.note(st, NoteTiers)
	}
}

// note gives the sink a note about a stream.
func (s *Subscriber) note(st *stream, n Note) {
	_ = s.sink.StreamNote(st.pod, st.model, st.name, n)
	s.link.noted(n)
}

// noteEnd records that no message of a stream waits for an answer any more.
func (s *Subscriber) noteEnd(st *stream) {
	if st.current {
		s.note(st, NoteCurrent)
	} else {
		s.note(st, NoteReleased)
	}
}

// restarted records that the engine of a stream has restarted.
func (s *Subscriber) restarted(st *stream) {
	s.failed(st, s.sink.StreamNote(st.pod, st.model, st.name, NoteRestarted))
}

// rewound records that messages of a stream that the sink has applied come again.
func (s *Subscriber) rewound(st *stream) {
	s.failed(st, s.sink.StreamNote(st.pod, st.model, st.name, NoteRewound))
}

// failed reports an error of the sink that is about no message.
func (s *Subscriber) failed(st *stream, err error) {
	if err != nil {
		s.count.sinkErrors.Add(1)
		s.report(st, fmt.Errorf("events: subscriber: %s: %w", st.name, err))
	}
}

// report gives OnError a fault of a stream, or of the whole Subscriber if st is nil.
func (s *Subscriber) report(st *stream, err error) {
	if s.cfg.OnError == nil {
		return
	}
	e := &TransportError{Pod: s.cfg.Pod, Model: s.cfg.Model, Rank: -1, Endpoint: s.cfg.Endpoint, Err: err}
	if st != nil {
		e.Pod, e.Model, e.Endpoint = st.pod, st.model, st.conn.peer
	}
	if s.link != nil {
		e.Rank = s.link.rank
	}
	s.cfg.OnError(e)
}

// thisEnd is the address of this end where an error names both.
var thisEnd = regexp.MustCompile(`\S+->`)

// A repeatFilter lets an error that repeats through at intervals that double.
type repeatFilter struct {
	last  string
	at    time.Time
	quiet time.Duration
}

func (t *repeatFilter) due(err error) bool {
	now, way := time.Now(), err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		way = strings.Replace(way, op.Error(), op.Op+": "+op.Err.Error(), 1) // without the port of this end
	}
	if strings.Contains(way, "->") { // of a name server
		way = thisEnd.ReplaceAllString(way, "->")
	}
	if way != t.last {
		*t = repeatFilter{last: way}
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

// newBackoff returns a backoff between a tenth of the longest time and that.
func newBackoff(longest time.Duration) backoff { return backoff{min: longest / 10, max: longest} }

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
