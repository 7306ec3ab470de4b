package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/kvindex/kvindex/internal/topic"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file is a Subscriber that listens: engines connect to it, and each of their connections
// brings one or more streams, by topic. owner.go decides which connection has a stream that
// several bring.

var errSuperseded = errors.New("a newer connection publishes the same topic")

// listen listens at Endpoint.
func (s *Subscriber) listen(ctx context.Context) error {
	ln, err := zmtp.Listen(ctx, s.cfg.Endpoint)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("events: subscriber: %w", err)
	}
	if s.cfg.OnListen != nil {
		s.cfg.OnListen(zmtp.Name(ln.Addr()))
	}
	return s.accept(ctx, ln)
}

// accept accepts engines until ctx ends.
func (s *Subscriber) accept(ctx context.Context, ln net.Listener) error {
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var readers sync.WaitGroup
	defer readers.Wait()
	wait := newBackoff(s.cfg.Backoff)
	var failing repeatFilter
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close()
			}
			return ctx.Err()
		}
		if err != nil { // such as no file descriptors: it may pass
			if err = fmt.Errorf("events: subscriber: accepting at %s: %w", s.cfg.Endpoint, err); failing.due(err) {
				s.report(nil, err)
			}
			wait.sleep(ctx)
			continue
		}
		wait.reset()
		if c := s.admit(nc); c != nil {
			readers.Go(func() { s.attend(ctx, c) })
		}
	}
}

// admit makes room for a connection. If there are too many, the oldest one without a message of
// a stream is closed: an engine comes back by itself, and idle peers cannot keep engines out.
func (s *Subscriber) admit(nc net.Conn) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.cfg.MaxConns {
		s.count.refusals.Add(1)
		idle := s.oldestIdle()
		if idle == nil {
			_ = nc.Close()
			return nil
		}
		_ = idle.nc.Close()
		delete(s.conns, idle)
	}
	s.lastID++
	c := &connection{id: s.lastID, peer: zmtp.Name(nc.RemoteAddr()), nc: nc, quiet: new(silence), streams: make(map[string]*stream)}
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
	defer c.quiet.end()
	wire := s.wire
	wire.OnIdle = c.fallIdle
	conn, err := zmtp.Handshake(ctx, c.nc, c.peer, wire)
	if err != nil {
		err = fmt.Errorf("events: subscriber: %w", err)
	} else {
		c.quiet.begin(s, s.of(c), c)
		begin := func(ctx context.Context) error { // the first message shows the engine
			c.onIdle = func() {
				for _, st := range c.streams {
					s.ask(ctx, st)
				}
			}
			return nil
		}
		err = s.follow(ctx, conn, c, begin, func(ctx context.Context, topic []byte, m Message) error {
			return s.takeFrom(ctx, c, topic, m)
		})
	}
	c.quiet.stop()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	for topic, st := range c.streams {
		if s.owners.leave(topic, st.owner, c.id) {
			s.note(st, NoteLost)
		}
	}
	if ctx.Err() == nil && !isOurs(err) && (c.heard.Load() || s.strangerDue(c, err)) {
		s.report(s.of(c), err)
	}
}

// strangerDue reports whether to report the end of a connection that brought no stream: probes of
// the port make many, each from another port.
func (s *Subscriber) strangerDue(c *connection, err error) bool {
	address := c.nc.RemoteAddr().String()
	host, _, _ := net.SplitHostPort(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.strangers) == maxFilters {
		clear(s.strangers) // a peer that changes its fault must not hide an engine's
	}
	return s.strangers.due(errors.New(strings.ReplaceAll(err.Error(), address, host)))
}

// of returns the stream of a connection, for a fault of the connection. If the connection
// brings no stream or several, the pod is that of the configuration, or none.
func (s *Subscriber) of(c *connection) *stream {
	if c.stream != nil {
		return c.stream
	}
	if len(c.streams) == 1 {
		for _, st := range c.streams {
			return st
		}
	}
	return &stream{pod: s.cfg.Pod, model: s.cfg.Model, conn: c}
}

// takeFrom delivers a message of a connection.
func (s *Subscriber) takeFrom(ctx context.Context, c *connection, topic []byte, m Message) error {
	if st := c.streams[string(topic)]; st != nil {
		return s.take(ctx, st, topic, m)
	}
	st := s.newStream(c, string(topic))
	if st == nil {
		s.dropBadTopic(c)
		return nil
	}
	c.heard.Store(true)
	c.quiet.stop()
	// The first message shows whether the connection is to the engine that replays. So ask
	// that before delivering the message.
	_, ours, err := s.enter(ctx, st)
	if !ours {
		return err
	}
	st.owner.mu.Unlock()
	s.noteTiers(st)
	if err := s.askFirst(ctx, st); err != nil {
		return err
	}
	err = s.take(ctx, st, topic, m)
	s.note(st, NoteConnected)
	return err
}

// settle ends all connections to the engine that a stream had before its restart. The owner is
// locked.
func (s *Subscriber) settle(st *stream, err error) error {
	if s.cfg.Bind && errors.Is(err, errOtherLife) {
		s.mu.Lock()
		st.owner.floor = s.lastID + 1
		s.mu.Unlock()
		s.note(st, NoteLost)
	}
	return err
}

// newStream starts the stream of a connection and topic. It returns nil if the topic names no
// pod and model, or is one too many.
func (s *Subscriber) newStream(c *connection, text string) *stream {
	if len(c.streams) == maxTopics {
		return nil
	}
	pod, model := s.cfg.Pod, s.cfg.Model
	if pod == "" || model == "" {
		topicPod, topicModel, err := s.cfg.ParseTopic(text)
		if err != nil {
			if err = fmt.Errorf("events: subscriber: messages are dropped: %w", err); errors.Is(err, topic.ErrPool) && c.pools.due(err) {
				s.report(s.of(c), err)
			}
			return nil
		}
		pod, model = cmp.Or(pod, topicPod), cmp.Or(model, topicModel)
	}
	st := &stream{pod: pod, model: model, name: s.cfg.Endpoint + " " + text, topic: []byte(text), conn: c, owner: s.owners.join(text)}
	if s.cfg.ReplayOf != nil {
		st.replayAt = s.cfg.ReplayOf(pod, c.peer)
	}
	c.streams[text] = st
	return st
}
