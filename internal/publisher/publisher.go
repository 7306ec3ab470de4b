// Package publisher sends batches of KV events over ZeroMQ as vLLM does. Losses and repeats, which
// tests cause, are here too, because they happen under the lock of a Publisher.
package publisher

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// The defaults of a Config are those of vLLM 0.9.0 to 0.29
// (config/kv_events.py).
const (
	DefaultBuffer = 10_000  // batches that a replay can bring back
	defaultQueue  = 100_000 // batches that wait for one subscriber
)

// defaultConns is more than gateways open, and less than common limits of file descriptors.
const defaultConns = 512

// maxQueued bounds the bytes that wait for one subscriber: vLLM bounds the number of batches alone.
const maxQueued = 256 << 20

// replayEnd is the number of the frame that ends a replay, -1 as vLLM writes it.
const replayEnd = math.MaxUint64

// ErrClosed is returned by the methods of a Publisher after Close.
var ErrClosed = errors.New("publisher is closed")

// Config is that of a Publisher. The zero value publishes with
// an empty topic on a free port of the loopback interface, without a replay
// socket.
type Config struct {
	Topic    string
	Endpoint string // "" is tcp://127.0.0.1:0; port 0 is any free one
	Replay   string // endpoint of the replay socket, always bound; "" is none
	Buffer   int    // 0 is DefaultBuffer
	Queue    int    // 0 is defaultQueue
	Connect  bool   // connect to a bound subscriber at Endpoint, again and again
	MaxConns int    // connections of each socket; 0 is defaultConns
}

// Publisher sends batches of events over ZeroMQ the way vLLM does
// (distributed/kv_events.py, 0.9.0 to 0.29): [topic, number, payload] on a PUB
// socket, and the last batches again on a ROUTER socket on request. As
// with libzmq, a batch is dropped silently for a subscriber that is too slow.
// Unlike vLLM's, live batches do not wait for an answer to a replay, and such an
// answer is whole, unless LoseReplies takes messages out.
//
// It owns its goroutines until Close and is safe for concurrent use.
type Publisher struct {
	cfg       Config
	endpoint  string
	replay    string
	listeners []net.Listener
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu          sync.Mutex // guards what follows, and the fields of subscribers
	closed      bool
	next        uint64
	buffer      []batch
	loses       func(i, n int) bool        // nil: no reply is lost
	accepted    map[*peerConn]struct{}     // until their handshake has failed or they are served to the end
	conns       map[*zmtp.Conn]*subscriber // nil: it has not subscribed
	subscribers map[*subscriber]struct{}
	changed     chan struct{} // closed when subscriptions change, and replaced
}

// peerConn is a connection of a socket that listens.
type peerConn struct {
	net.Conn
	socket net.Listener
	number uint64     // of all that the socket has accepted
	conn   *zmtp.Conn // nil: the handshake is under way
}

type batch struct {
	seq     uint64
	payload []byte
}

type subscriber struct {
	prefixes []string // of the topic, as often as subscribed
	queue    []batch
	queued   int           // bytes in queue
	next     uint64        // behind the last batch that was queued
	wake     chan struct{} // holds one token while queue may be non-empty
}

// New opens the sockets and serves them until Close.
func New(cfg Config) (*Publisher, error) {
	cfg.Endpoint = cmp.Or(cfg.Endpoint, "tcp://127.0.0.1:0")
	cfg.Buffer = cmp.Or(cfg.Buffer, DefaultBuffer)
	cfg.Queue = cmp.Or(cfg.Queue, defaultQueue)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, defaultConns)
	if cfg.Buffer < 0 || cfg.Queue < 0 || cfg.MaxConns < 0 {
		return nil, fmt.Errorf("a publisher cannot keep %d and queue %d batches, for %d connections", cfg.Buffer, cfg.Queue, cfg.MaxConns)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		cfg:         cfg,
		endpoint:    cfg.Endpoint,
		cancel:      cancel,
		accepted:    make(map[*peerConn]struct{}),
		conns:       make(map[*zmtp.Conn]*subscriber),
		subscribers: make(map[*subscriber]struct{}),
		changed:     make(chan struct{}),
	}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Publisher) open(ctx context.Context) (err error) {
	if p.cfg.Connect {
		if err := zmtp.CheckDial(p.cfg.Endpoint); err != nil {
			return err
		}
		p.done.Go(func() { p.connect(ctx) })
	} else if p.endpoint, err = p.listen(ctx, p.cfg.Endpoint, zmtp.PUB, p.publish); err != nil {
		return err
	}
	if p.cfg.Replay != "" {
		p.replay, err = p.listen(ctx, p.cfg.Replay, zmtp.ROUTER, p.answer)
	}
	return err
}

// Endpoint returns where to subscribe or, with Connect, the address of the subscriber.
func (p *Publisher) Endpoint() string { return p.endpoint }

// ReplayEndpoint returns where to request a replay, "" if there is none.
func (p *Publisher) ReplayEndpoint() string { return p.replay }

// Publish sends a batch to the subscribers and returns its number. It copies
// payload.
func (p *Publisher) Publish(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.keep(payload)
	p.send(b)
	return b.seq
}

// Skip uses up a number for a batch that is kept for replay but never sent: a
// loss on the wire.
func (p *Publisher) Skip(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keep(payload).seq
}

// Burn uses up a number for no batch, as vLLM does when it fails to encode one:
// neither the subscribers nor a replay get it.
func (p *Publisher) Burn() (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return p.next - 1
}

// Repeat sends a batch to the subscribers once more, or late after Skip. It
// reports whether the batch was still kept.
func (p *Publisher) Repeat(seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := p.find(seq)
	if found {
		p.send(p.buffer[i])
	}
	return found
}

// LoseReplies has answers to replays lose messages, as those of vLLM's ROUTER
// do that do not fit its queue. Message i of the n batches of an answer, or its
// end if i is n, is lost if lost returns true. The function is not called
// concurrently; nil ends it.
func (p *Publisher) LoseReplies(lost func(i, n int) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = lost
}

// Next returns the number of the next batch.
func (p *Publisher) Next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Sent returns the number behind the last batch that was sent to a subscriber which
// is still connected; 0: none was.
func (p *Publisher) Sent() (next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		next = max(next, s.next)
	}
	return next
}

// send queues a batch for the subscribers; p.mu is held.
func (p *Publisher) send(b batch) {
	for s := range p.subscribers {
		if len(s.prefixes) > 0 && len(s.queue) < p.cfg.Queue && s.queued+len(b.payload) <= maxQueued {
			s.queue = append(s.queue, b)
			s.queued += len(b.payload)
			s.next = max(s.next, b.seq+1)
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (p *Publisher) keep(payload []byte) batch {
	b := batch{p.next, slices.Clone(payload)}
	p.next++
	p.buffer = append(p.buffer, b)
	if len(p.buffer) > p.cfg.Buffer {
		p.buffer[0] = batch{}
		p.buffer = p.buffer[1:]
	}
	return b
}

// Restart is what a restart of the engine looks like from outside: connections
// are lost with all that waits in them, the buffer is empty, numbers begin at 0.
// The listening sockets stay open, so that nobody else can take their ports.
func (p *Publisher) Restart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.next, p.buffer = 0, nil
	p.hangUp()
	return nil
}

// Disconnect closes all connections, with all that waits in them.
func (p *Publisher) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangUp()
}

func (p *Publisher) hangUp() {
	for c := range p.conns {
		_ = c.Close()
	}
	for nc := range p.accepted { // a handshake may be under way
		_ = nc.Close()
	}
	clear(p.conns)
	clear(p.subscribers)
	p.notify()
}

func (p *Publisher) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// WaitSubscribers returns when at least n connections are subscribed to the
// topic: all batches from then on reach them.
func (p *Publisher) WaitSubscribers(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		have, changed, closed := p.count(), p.changed, p.closed
		p.mu.Unlock()
		if closed {
			return ErrClosed
		}
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d subscribers came to %s: %w", have, n, p.endpoint, ctx.Err())
		}
	}
}

func (p *Publisher) count() (n int) {
	for s := range p.subscribers {
		if len(s.prefixes) > 0 {
			n++
		}
	}
	return n
}

// Close closes the sockets and waits for the goroutines. It may be called again.
func (p *Publisher) Close() error {
	p.cancel()
	p.mu.Lock()
	var errs []error
	if !p.closed {
		p.closed = true
		for _, ln := range p.listeners {
			errs = append(errs, ln.Close())
		}
		p.hangUp()
	}
	p.mu.Unlock()
	p.done.Wait()
	return errors.Join(errs...)
}

// listen accepts connections for serve until the listener is closed.
func (p *Publisher) listen(ctx context.Context, endpoint string, t zmtp.SocketType, serve func(*zmtp.Conn)) (string, error) {
	ln, err := zmtp.Listen(ctx, endpoint)
	if err != nil {
		return "", err
	}
	p.listeners = append(p.listeners, ln)
	p.done.Go(func() {
		for number := uint64(0); ; number++ {
			nc, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				pause(ctx, time.Second)
				continue
			}
			a := &peerConn{Conn: nc, socket: ln, number: number}
			if !p.admit(a) {
				_ = nc.Close()
				continue
			}
			p.done.Go(func() {
				name := zmtp.Name(nc.RemoteAddr())
				if c, err := zmtp.Handshake(ctx, nc, name, wire(t)); err == nil {
					p.mu.Lock()
					a.conn = c
					p.mu.Unlock()
					p.attend(c, serve)
				}
				p.mu.Lock()
				delete(p.accepted, a)
				p.mu.Unlock()
			})
		}
	})
	return zmtp.Name(ln.Addr()), nil
}

// admit makes room for a connection. If its socket has too many, the oldest one that has not
// subscribed is closed: a client comes back by itself, and idle peers cannot keep subscribers out.
func (p *Publisher) admit(a *peerConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, idle := 0, (*peerConn)(nil)
	for o := range p.accepted {
		if o.socket != a.socket {
			continue
		}
		have++
		if p.conns[o.conn] == nil && (idle == nil || o.number < idle.number) {
			idle = o
		}
	}
	if have >= p.cfg.MaxConns {
		if idle == nil {
			return false
		}
		_ = idle.Close()
		delete(p.accepted, idle)
	}
	p.accepted[a] = struct{}{}
	return true
}

// connect keeps one connection to a bound subscriber.
func (p *Publisher) connect(ctx context.Context) {
	const first, most = 10 * time.Millisecond, time.Second
	wait := first
	for ctx.Err() == nil {
		c, err := zmtp.Dial(ctx, p.endpoint, wire(zmtp.PUB))
		if err == nil {
			p.attend(c, p.publish)
			wait = first
		}
		pause(ctx, wait)
		wait = min(2*wait, most)
	}
}

// wire is the configuration of a connection. Messages of subscribers and
// of replay clients are small, and a slow peer does not end a connection: ZeroMQ's
// publishers drop messages instead.
func wire(t zmtp.SocketType) zmtp.Config {
	return zmtp.Config{Type: t, MaxMessage: 64 << 10, WriteTimeout: -1}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// attend runs serve with a connection that Restart and Close can close.
func (p *Publisher) attend(c *zmtp.Conn, serve func(*zmtp.Conn)) {
	defer c.Close()
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.conns[c] = nil
	}
	p.mu.Unlock()
	if closed {
		return
	}
	serve(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// publish serves one subscriber: it follows its subscriptions while a second
// goroutine writes what is queued.
func (p *Publisher) publish(c *zmtp.Conn) {
	s := &subscriber{wake: make(chan struct{}, 1)}
	gone := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { p.write(c, s, gone) })
	for {
		topic, on, err := c.ReceiveSubscription()
		if err != nil || !p.subscribe(c, s, string(topic), on) {
			break
		}
	}
	p.mu.Lock()
	delete(p.subscribers, s)
	p.notify()
	p.mu.Unlock()
	_ = c.Close() // frees a writer that waits for the peer
	close(gone)
	writer.Wait()
}

// subscribe changes what s is subscribed to, unless Restart was faster.
func (p *Publisher) subscribe(c *zmtp.Conn, s *subscriber, topic string, on bool) bool {
	const most = 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	_, open := p.conns[c]
	switch {
	case !open:
		return false
	case !strings.HasPrefix(p.cfg.Topic, topic): // others ask for nothing that is sent
	case on && len(s.prefixes) == most:
		return false
	case on:
		s.prefixes = append(s.prefixes, topic)
	default:
		if i := slices.Index(s.prefixes, topic); i >= 0 {
			s.prefixes = slices.Delete(s.prefixes, i, i+1)
		}
	}
	p.subscribers[s], p.conns[c] = struct{}{}, s
	p.notify()
	return true
}

// write sends what is queued for s, as many batches at once as there are.
func (p *Publisher) write(c *zmtp.Conn, s *subscriber, gone <-chan struct{}) {
	topic := []byte(p.cfg.Topic)
	var batches []batch
	for {
		select {
		case <-s.wake:
		case <-gone:
			return
		}
		clear(batches)
		p.mu.Lock()
		batches, s.queue, s.queued = s.queue, batches[:0], 0
		p.mu.Unlock()
		if err := send(c, topic, batches); err != nil {
			_ = c.Close() // ends the reading of subscriptions too
			return
		}
	}
}

func send(c *zmtp.Conn, first []byte, batches []batch) error {
	for _, b := range batches {
		if err := c.Buffer(first, binary.BigEndian.AppendUint64(nil, b.seq), b.payload); err != nil {
			return err
		}
	}
	return c.Flush()
}

// answer serves one asker of replays. vLLM's ROUTER sees [peer, "", start]; on
// the wire there is no peer. It ignores any other number of frames.
func (p *Publisher) answer(c *zmtp.Conn) {
	for {
		m, err := c.Receive()
		if err != nil {
			return
		}
		if len(m) != 2 || len(m[1]) != 8 {
			continue
		}
		if send(c, nil, p.from(binary.BigEndian.Uint64(m[1]))) != nil {
			return
		}
	}
}

// from returns an answer: the kept batches from a number on, and the end, less
// the lost ones.
func (p *Publisher) from(start uint64) []batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, _ := p.find(start)
	answer := append(slices.Clone(p.buffer[i:]), batch{seq: replayEnd})
	if p.loses == nil {
		return answer
	}
	kept, n := answer[:0], len(answer)-1
	for i, b := range answer {
		if !p.loses(i, n) {
			kept = append(kept, b)
		}
	}
	return kept
}

func (p *Publisher) find(seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(p.buffer, seq, func(b batch, seq uint64) int {
		return cmp.Compare(b.seq, seq)
	})
}
