package events

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file requests missed messages from engines in connections of their own, while the stream's
// connection is read on: when a connection is made, when it falls idle, when a replay failed.
// While an engine answers, the stream is locked, and its messages wait. Until its replay
// socket has answered once, nothing waits for it, except for a moment at the beginning of a
// connection. So a socket that nobody serves costs only its reports to OnError. Messages that
// were applied before are verified at its first answer: the request begins with those from
// before the connection began.
//
// A replay socket is believed until a message shows that it is not that of the engine behind
// the connection: the socket has the message with other bytes, or does not have it. The first
// message behind a replay is held until that is settled. An engine may have restarted in this
// moment, so the connection is made again, and the applied messages are forgotten. Then the
// first message of a connection, or behind a silence, has to be in the socket before the
// socket is believed again. But a socket without messages is believed for a stream without
// messages: an engine that has restarted and is idle answers like this.
//
// # Why beside the connection
//
// A stock engine has no replay socket, and a socket that is configured by mistake is there on
// most days. So nothing waits for a socket that has never answered, except for half a second
// when a connection begins. The subscriber requests a number that no engine reaches
// (probeStart). Only when the end of that answer has come do messages of the stream wait. A
// failing socket is reported at once and tried again. When it answers and the view is partial,
// the engine's whole life is requested and replaces the view, if the engine still has it from
// message 0 on. The heartbeat of a connection goes on meanwhile, so a dead host is noticed in
// 6 seconds with a replay socket and without.
//
// # Which engine has the socket
//
// At first contact nothing shows it. But the first message of the connection has to be in the
// socket, byte by byte, and so has the message that was applied before it. So has a held
// message, when a replay comes to its number. If it is not, the engine has restarted in this
// moment, or the port is another rank's, which is a likely mistake. It counts as a restart if
// the socket, at a second request, no longer has the messages that it sent. If the connection has
// ended as well, its message counts as lost with it, and the socket first has to have the
// first message of the next connection. If it does not, it is reported as another engine's,
// and not used until it does.
//
// An inconsistent socket is not used either. The second answer in a row that lacks messages
// which the socket has just sent, and the fourth relapse within ten minutes (maxRelapses,
// grudge), make it another engine's: messages of the connection count, and the first one
// behind a silence tests the socket again.

const (
	// firstAnswer is how long a new connection waits for a replay socket that has never
	// answered.
	firstAnswer = 500 * time.Millisecond
	// The time between attempts is at most askBackoff times Backoff.
	askBackoff = 10
	// No engine reaches the number probeStart: the answer is its end alone.
	probeStart = 1 << 62
)

var (
	errNotPublished = errors.New("it lacks the messages that the engine has just published")
	errOthersReplay = fmt.Errorf("it belongs to another engine: %w", errNotPublished)
)

// ask starts to request all missed messages of a stream from its engine, if no other asker
// runs. settled is closed when that has ended, or seems to be in vain.
func (s *Subscriber) ask(ctx context.Context, st *stream) (settled <-chan struct{}) {
	first := make(chan struct{})
	if st.replayAt == "" || !st.asking.CompareAndSwap(false, true) {
		close(first)
		return first
	}
	settle := sync.OnceFunc(func() { close(first) })
	st.conn.asking.Go(func() {
		defer settle()
		defer st.asking.Store(false)
		s.keepAsking(ctx, st, settle)
	})
	return first
}

// askFirst makes the request when a connection begins to bring a stream, and returns when its messages can
// be read.
func (s *Subscriber) askFirst(ctx context.Context, st *stream) error {
	if st.replayAt == "" {
		return nil
	}
	var limit <-chan time.Time
	st.owner.mu.Lock()
	st.owner.claim(st.conn.id)
	st.owner.trust.joint = cmp.Or(st.owner.trust.joint, s.position(st).Next)
	if !st.owner.trust.serves {
		t := time.NewTimer(firstAnswer)
		defer t.Stop()
		limit = t.C
	}
	st.owner.mu.Unlock()
	select {
	case <-s.ask(ctx, st):
	case <-limit:
		s.note(st, NoteNoReplay)
	case <-ctx.Done():
	}
	if why := st.conn.leaving.Load(); why != nil {
		return *why
	}
	return nil
}

// keepAsking repeats the request until the engine has answered, or the connection ends.
func (s *Subscriber) keepAsking(ctx context.Context, st *stream, settle func()) {
	o := st.owner
	wait := backoff{min: s.cfg.Backoff / 10, max: askBackoff * s.cfg.Backoff}
	var failing repeatFilter
	for ctx.Err() == nil {
		o.mu.Lock()
		serves := o.trust.serves
		o.mu.Unlock()
		var conn *zmtp.Conn
		var err error
		if !serves {
			conn, err = s.reach(ctx, st.replayAt)
		}
		if err == nil {
			o.mu.Lock()
			if err = s.askLocked(ctx, st, conn); isOurs(err) {
				st.conn.leave(err) // before a message of it is applied
			}
			o.mu.Unlock()
		}
		if err == nil || isOurs(err) || ctx.Err() != nil {
			return
		}
		if failing.due(err) {
			s.noReplay(st, err)
			if !serves && conn == nil { // else the replay has reported it
				r := s.newReplay(st)
				r.done.Attempts, r.done.Err = 1, err
				r.report(ctx, false)
			}
		}
		if serves || errors.Is(err, syscall.ECONNREFUSED) { // else the next attempt may succeed
			settle()
		}
		wait.sleep(ctx)
	}
}

// noReplay reports whether a replay socket is of no use now.
func (s *Subscriber) noReplay(st *stream, err error) {
	s.note(st, NoteNoReplay)
	err = fmt.Errorf("events: subscriber: pod %q: the replay socket %s does not work, so messages that are missed now are lost; it is tried again: %w", st.pod, st.replayAt, err)
	if st.owner.useless.due(err) {
		s.report(st, err)
	}
}

// reach connects to a replay socket and checks whether it answers.
func (s *Subscriber) reach(ctx context.Context, endpoint string) (*zmtp.Conn, error) {
	conn, err := s.dialReplay(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	silence := time.AfterFunc(s.cfg.ReplayTimeout, func() { _ = conn.Close() })
	if err = conn.Send(nil, binary.BigEndian.AppendUint64(nil, probeStart)); err == nil {
		var m [][]byte
		if m, err = conn.Receive(); err == nil {
			_, _, err = readReply(m, nil)
		}
	}
	if !silence.Stop() {
		err = errReplaySilent
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (s *Subscriber) dialReplay(ctx context.Context, endpoint string) (*zmtp.Conn, error) {
	wire := s.wire
	wire.Type, wire.Skip = zmtp.DEALER, true
	wire.HandshakeTimeout = min(connectTimeout, s.cfg.ReplayTimeout)
	return zmtp.Dial(ctx, endpoint, wire)
}

// askLocked requests all messages that were not applied. conn, if not nil, has answered. After
// an error of the replay socket try again; the other errors end a connection.
func (s *Subscriber) askLocked(ctx context.Context, st *stream, conn *zmtp.Conn) error {
	t := &st.owner.trust
	if conn != nil {
		defer conn.Close()
		if !t.serves {
			t.serves = true
			defer s.note(st, NoteReplay) // when the missed messages have come
		}
	}
	if ctx.Err() != nil || st.owner.conn != st.conn.id || st.forgets {
		return nil
	}
	if t.strikes > 0 { // the next message has to show whether it is the engine's socket
		st.tested = false
		if at := s.position(st); t.strikes < maxStrikes && at == (Position{}) && s.publishedNothing(ctx, st) {
			st.current = true
			s.note(st, NoteCurrent)
			return nil
		}
		s.link.noted(NoteReleased) // there may be no message for long
		return nil
	}
	r := s.newReplay(st)
	if t.joint > 0 && t.joint < r.due { // messages were applied before anything showed whose they are
		r.due, r.done.From = t.joint, t.joint
	}
	r.conn, r.hasty = conn, t.mute
	err := s.settle(st, s.catchUp(ctx, r))
	t.mute = false
	if err == nil || isOurs(err) || ctx.Err() != nil { // its end does not disprove the socket
		return err
	}
	if errors.Is(err, errReplayShort) || errors.Is(err, errReplayPassed) || errors.Is(err, errOthersReplay) {
		return nil // the next answer would be the same
	}
	t.serves, t.mute = false, r.done.Messages == 0
	return err
}

// publishedNothing reports whether an engine has published nothing, by its replay socket: most
// probably it has restarted, and is idle.
func (s *Subscriber) publishedNothing(ctx context.Context, st *stream) (nothing bool) {
	err := s.request(ctx, st, 0, func(seq uint64, _ []byte) (bool, error) {
		nothing = seq == replayEnd
		return true, nil
	})
	return err == nil && nothing
}
