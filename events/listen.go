package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file is a Subscriber that listens: engines connect to it, and each of their
// connections brings one stream or several, told apart by topic. Which of the
// connections has a stream that several bring is for owner.go to say.

var errSuperseded = errors.New("a newer connection publishes the same topic")

// connection is one of the connections to a listening Subscriber.
type connection struct {
	id      uint64 // in order of arrival
	nc      net.Conn
	heard   atomic.Bool             // it has brought a message
	streams map[string]*boundStream // by topic
}

// boundStream is a stream as one connection to a listening Subscriber brings it.
type boundStream struct {
	stream
	owner      *streamOwner
	heard      bool // on this connection
	superseded bool // a newer connection has the stream, and that was reported
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
		if c := s.admit(nc); c != nil {
			readers.Go(func() { s.attend(ctx, c) })
		}
	}
}

// admit makes room for a connection. When there are too many, the oldest one
// that never delivered a message gives way: an engine comes back by itself, and
// idlers cannot keep engines out.
func (s *Subscriber) admit(nc net.Conn) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.cfg.MaxConns {
		s.refusals.Add(1)
		idle := s.oldestIdle()
		if idle == nil {
			_ = nc.Close()
			return nil
		}
		_ = idle.nc.Close()
		delete(s.conns, idle)
	}
	s.lastID++
	c := &connection{id: s.lastID, nc: nc, streams: make(map[string]*boundStream)}
	s.conns[c] = struct{}{}
	return c
}

func (s *Subscriber) oldestIdle() (oldest *connection) {
	for c := range s.conns {
		if !c.heard.Load() && (oldest == nil || c.id < oldest.id) {
			oldest = c
		}
	}
	return oldest
}

// attend reads from one engine until its connection is lost.
func (s *Subscriber) attend(ctx context.Context, c *connection) {
	peer := zmtp.Name(c.nc.RemoteAddr())
	wire := s.wire
	idle := &idleness{ask: func() error { return s.catchUpConn(ctx, c) }}
	wire.OnIdle = idle.onIdle
	conn, err := zmtp.Handshake(ctx, c.nc, peer, wire)
	if err != nil {
		err = fmt.Errorf("events: subscriber: %w", err)
	} else {
		begin := func() error { return nil } // who it is shows by its first message
		err = s.follow(ctx, conn, peer, idle, begin, func(topic, payload []byte, seq uint64) error {
			return s.takeFrom(ctx, c, topic, Message{Seq: seq, Payload: payload})
		})
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	for topic, st := range c.streams {
		if s.owners.leave(topic, st.owner, c.id) {
			s.interrupted(&st.stream)
		}
	}
	if ctx.Err() == nil {
		s.report(err)
	}
}

// catchUpConn is catchUp for all streams that a connection brings.
func (s *Subscriber) catchUpConn(ctx context.Context, c *connection) error {
	for _, st := range c.streams {
		st.owner.mu.Lock()
		var err error
		if st.owner.claim(c.id) && c.id >= st.owner.floor && !st.forgets {
			err = s.catchUpOn(ctx, st)
		}
		st.owner.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// takeFrom delivers a message of one of the connections.
func (s *Subscriber) takeFrom(ctx context.Context, c *connection, topic []byte, m Message) error {
	st := c.streams[string(topic)]
	if st == nil {
		if st = s.newStream(c, string(topic)); st == nil {
			s.badTopics.Add(1)
			return nil
		}
		c.heard.Store(true)
	}
	// The lock keeps the messages of a stream in one row: an older connection
	// cannot slip one in after the first of a newer one.
	o := st.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.id < o.floor {
		return errOtherLife
	}
	if !o.claim(c.id) {
		s.superseded.Add(1)
		if !st.superseded {
			st.superseded = true
			s.report(fmt.Errorf("events: subscriber: %s from %s: %w", st.name, zmtp.Name(c.nc.RemoteAddr()), errSuperseded))
		}
		return nil
	}
	if !st.heard {
		st.heard = true
		// Its first message shows whether it is the engine that replays.
		if err := s.catchUpOn(ctx, st); err != nil && !errors.Is(err, errOnceMore) {
			return err
		}
	}
	st.doubted = o.doubted
	err := s.offer(ctx, &st.stream, m)
	o.doubted = st.doubted
	s.settle(st, err)
	return err
}

// catchUpOn is catchUp for a stream whose owner is locked.
func (s *Subscriber) catchUpOn(ctx context.Context, st *boundStream) error {
	err := s.catchUp(ctx, &st.stream)
	s.settle(st, err)
	return err
}

// settle ends all connections to what was the engine of a stream before it started
// anew: theirs is not the next word.
func (s *Subscriber) settle(st *boundStream, err error) {
	if errors.Is(err, errOtherLife) {
		s.mu.Lock()
		st.owner.floor = s.lastID + 1
		s.mu.Unlock()
		s.interrupted(&st.stream)
	}
}

// newStream begins a stream that a connection brings under a topic. It returns nil
// if the topic names no pod and model, or is one too many.
func (s *Subscriber) newStream(c *connection, topic string) *boundStream {
	if len(c.streams) == s.cfg.MaxTopics || len(topic) > maxTopicBytes {
		return nil
	}
	pod, model := s.cfg.Pod, s.cfg.Model
	if pod == "" || model == "" {
		topicPod, topicModel, err := s.cfg.ParseTopic(topic)
		if err != nil {
			return nil
		}
		pod, model = cmp.Or(pod, topicPod), cmp.Or(model, topicModel)
	}
	st := &boundStream{stream: stream{pod: pod, model: model, name: s.cfg.Endpoint + " " + topic}}
	if s.cfg.ReplayOf != nil {
		st.replayAt = s.cfg.ReplayOf(pod, zmtp.Name(c.nc.RemoteAddr()))
	}
	st.owner = s.owners.join(topic)
	c.streams[topic] = st
	return st
}
