// Package publish publishes KV events over ZeroMQ as vLLM does, for programs that hold blocks
// themselves: a store beside the engine, a janitor of its files, a proxy.
//
// A [Publisher] has the sockets of vLLM's ZmqEventPublisher (vllm/distributed/kv_events.py, 0.9.0 to
// 0.29) and the events of its maps, which vLLM has sent since June 2026. A Fleet or Subscriber of
// package events follows it, and so does what follows vLLM. Unlike vLLM's, live messages do not
// wait while a replay is answered, and the answer to a replay is whole.
package publish

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/publisher"
)

// maxPayload is less than what a Subscriber takes by default (SubscriberConfig.MaxMessage).
const maxPayload = 32<<20 - 1<<10

// ErrClosed is returned by Publish after Close.
var ErrClosed = errors.New("publish: the publisher is closed")

// Config has the sockets of a Publisher. The zero Config publishes under an empty topic on a free
// port of the loopback interface, without replays.
type Config struct {
	Topic    string
	Endpoint string // to listen at, such as "tcp://*:5557"; "" is tcp://127.0.0.1:0, and port 0 any free one
	Replay   string // the same for requests of replays; "": there are none
	Buffer   int    // messages that a replay can bring; 0 is 10,000
	// Held returns all that is held, as events of which the first is Cleared. If it is set,
	// the Publisher publishes that, as one message, twice in each Buffer of messages: so a replay
	// from number 0 on always brings all, and one from the last half of the Buffer begins with the
	// requested message, by which a Subscriber recognizes the Publisher. Without Held, a
	// subscriber that comes when the Buffer has lost messages receives fewer blocks than there
	// are. Held is called within Publish.
	Held func() []events.Event
}

// Publisher publishes batches of events. It is safe for concurrent use. Each of its sockets has at
// most 512 connections: a new one takes the place of the oldest that has not subscribed, and is
// closed if all have.
type Publisher struct {
	held   func() []events.Event
	most   int // messages that the buffer has
	sender *publisher.Publisher

	mu     sync.Mutex // guards what follows, and orders messages
	closed bool
	kept   int          // messages since the last of Held, with it
	buf    []byte       // of a payload
	read   events.Batch // what Decode reads of it
}

// New listens at both endpoints until Close.
func New(cfg Config) (*Publisher, error) {
	if cfg.Held != nil && cfg.Buffer == 1 {
		return nil, errors.New("publish: a Buffer of 1 has no room for what Held returns and a message behind it")
	}
	sender, err := publisher.New(publisher.Config{Topic: cfg.Topic, Endpoint: cfg.Endpoint, Replay: cfg.Replay, Buffer: cfg.Buffer})
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	p := &Publisher{held: cfg.Held, most: cfg.Buffer, sender: sender}
	if p.most == 0 {
		p.most = publisher.DefaultBuffer
	}
	return p, nil
}

// Endpoint returns where to subscribe, with the port that was free.
func (p *Publisher) Endpoint() string { return p.sender.Endpoint() }

// ReplayEndpoint returns where to request replays, or "".
func (p *Publisher) ReplayEndpoint() string { return p.sender.ReplayEndpoint() }

// Publish sends a batch as one message, and returns its number: the first is 0. A Time of 0 is the
// time of the call. Hashes are written as integers, as vLLM does by default. A batch that no engine
// can send is an error, of Batch.Validate, and so is one that events.Decode cannot read, such as a
// name that is not UTF-8. An Event.Salt, which is SGLang's, is an error: vLLM has salts in
// Event.Extra. So is Extra without HasExtra, Group without HasGroup, and a batch of nearly 32 MiB,
// which a Subscriber does not take by default. Then nothing is sent. An error about what Held
// returned comes after the batch was sent. The batch is not kept.
//
// Publish does not wait for subscribers: one that is slow loses messages when 100,000, or 256 MiB,
// wait for it.
func (p *Publisher) Publish(b *events.Batch) (seq uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, ErrClosed
	}
	if seq, err = p.publish(b); err != nil || p.held == nil || p.kept < max(2, (p.most+1)/2) {
		return seq, err
	}
	held := p.held()
	if len(held) == 0 || held[0].Kind != events.Cleared {
		return seq, errors.New("publish: Held returned events of which the first is not Cleared")
	}
	_, err = p.publish(&events.Batch{Rank: b.Rank, HasRank: b.HasRank, Events: held})
	if err != nil {
		return seq, fmt.Errorf("publish: what Held returned: %w", err)
	}
	p.kept = 1
	return seq, nil
}

func (p *Publisher) publish(b *events.Batch) (seq uint64, err error) {
	if p.buf, err = appendBatch(p.buf[:0], b, time.Now()); err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	if len(p.buf) > maxPayload {
		return 0, fmt.Errorf("publish: the batch has %d bytes, and %d are the most", len(p.buf), maxPayload)
	}
	if err := events.Decode(p.buf, &p.read); err != nil {
		return 0, fmt.Errorf("publish: no subscriber can read the batch: %w", err)
	}
	p.kept++
	return p.sender.Publish(p.buf), nil
}

// Close closes the sockets, with what waits in them, and returns when all goroutines have ended.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.sender.Close()
}
