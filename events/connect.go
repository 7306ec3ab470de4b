package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file is a Subscriber that connects: one connection to one engine, made
// again and again, which brings one stream.

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
	st := &s.only
	st.spoke, st.forgets = 0, false
	catchUp := func() error { return s.catchUp(ctx, st) }
	idle := &idleness{ask: func() error {
		if st.forgets {
			return nil
		}
		return catchUp()
	}}
	wire := s.wire
	wire.OnIdle = idle.onIdle
	conn, err := zmtp.Dial(ctx, s.cfg.Endpoint, wire)
	if err != nil {
		return fmt.Errorf("events: subscriber: %w", err)
	}
	err = s.follow(ctx, conn, s.cfg.Endpoint, idle, catchUp, func(_, payload []byte, seq uint64) error {
		return s.offer(ctx, st, Message{Seq: seq, Payload: payload})
	})
	s.interrupted(st)
	return err
}
