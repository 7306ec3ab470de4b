package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file is a Subscriber that connects: one connection to one engine, made again after each
// loss, which brings one stream.

// connect keeps one connection to the endpoint.
func (s *Subscriber) connect(ctx context.Context) error {
	var quiet silence
	defer quiet.end()
	owner := s.owners.join("") // never left: the next Run goes on with it
	var failing repeatFilter
	wait := newBackoff(s.cfg.Backoff)
	st := s.engine(owner)
	s.noteTiers(st)
	s.note(st, NoteOpened)
	defer s.note(st, NoteClosed)
	for again := false; ctx.Err() == nil; st = s.engine(owner) {
		start := time.Now()
		heard, err := s.session(ctx, st, &quiet)
		if ctx.Err() != nil {
			break
		}
		if again = !again && isOurs(err); again { // no need to report it
			if errors.Is(err, errOtherLife) {
				wait.sleep(ctx)
			}
			continue
		}
		s.note(st, NoteLost)
		s.link.failed(err)
		if heard {
			failing = repeatFilter{}
		}
		// When an engine restarts, the subscriber ends one connection and makes another. If
		// two in a row brought nothing, another engine has the replay socket.
		if (!isOurs(err) || !heard) && failing.due(err) {
			s.report(st, err)
		}
		// Do not hammer a peer that accepts connections only to drop them.
		if heard || time.Since(start) > s.cfg.Backoff {
			wait.reset()
		}
		wait.sleep(ctx)
	}
	return ctx.Err()
}

// engine returns the stream of the one engine, for its next connection.
func (s *Subscriber) engine(owner *streamOwner) *stream {
	return &stream{pod: s.cfg.Pod, model: s.cfg.Model, name: s.cfg.Endpoint, replayAt: s.cfg.Replay, owner: owner}
}

// session is one connection, from dialling to its loss. heard: it brought a message.
func (s *Subscriber) session(ctx context.Context, st *stream, quiet *silence) (heard bool, err error) {
	s.lastID++
	c := &connection{id: s.lastID, peer: s.cfg.Endpoint, quiet: quiet, stream: st}
	st.conn = c
	wire := s.wire
	wire.OnIdle = c.fallIdle
	conn, err := s.dial(ctx, c.peer, wire)
	if err != nil {
		return false, fmt.Errorf("events: subscriber: pod %q: %w", st.pod, err)
	}
	quiet.begin(s, st, c)
	begin := func(ctx context.Context) error {
		c.onIdle = func() { s.ask(ctx, st) }
		s.note(st, NoteConnected)
		return s.askFirst(ctx, st)
	}
	err = s.follow(ctx, conn, c, begin, func(ctx context.Context, topic []byte, m Message) error {
		c.heard.Store(true)
		quiet.stop()
		return s.take(ctx, st, topic, m)
	})
	return c.heard.Load(), err
}

// dial connects; in a Fleet, when the link has its turn.
func (s *Subscriber) dial(ctx context.Context, endpoint string, wire zmtp.Config) (*zmtp.Conn, error) {
	if s.link == nil {
		return zmtp.Dial(ctx, endpoint, wire)
	}
	return s.link.dial(ctx, endpoint, wire)
}

// isOurs reports whether the subscriber itself ended the connection, to make another.
func isOurs(err error) bool { return errors.Is(err, errOnceMore) || errors.Is(err, errOtherLife) }
