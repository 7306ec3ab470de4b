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

// This file asks engines for what was missed beside their connections, which go on
// being read: when a connection is made, when it falls idle, when a replay failed.
// While an engine answers, the stream is locked, and its messages wait. Before its
// replay socket has ever answered nothing waits for that, but at the beginning of a
// connection for a moment. So a socket that nobody serves costs nothing but its
// messages to OnError. What was taken without it is verified when it answers at last:
// then the engine is asked for what was applied before the connection began.
//
// What a replay socket says is believed until a message shows that it is not of the
// engine behind the connection: the socket has it with other bytes, or does not
// have it. The first message that comes behind a replay is held until that is known.
// An engine may have restarted in this moment, so the connection is made anew, and
// what was applied is forgotten. Then the first message of a connection, or behind a
// silence, has to be in the socket before it is believed again. But a socket that has
// nothing is believed where nothing is known: so does an engine answer that has restarted
// and is idle.
//
// # Why beside the connection
//
// A stock engine has no replay socket, and a socket that is configured by mistake is there on
// most days. So nothing waits for a socket that has never answered, except for half a second
// when a connection begins. The socket is asked for a number that no engine reaches
// (probeStart). Only when the end of that answer has come do messages of the stream wait. A
// socket that fails is reported at once and tried again. When it answers and the view is
// partial, the engine's whole life is asked for and takes the place of what was heard, if the
// engine still has it from message 0 on. The heartbeat of a connection goes on meanwhile, so a
// dead host is noticed in 6 seconds with a replay socket and without.
//
// # Whose socket it is
//
// At first contact nothing shows it. But the first message that the connection brings has to
// be in the socket, byte by byte, and so has the message that was applied before it. So has a
// message that is held, when a replay comes to its number. If it is not, the engine has
// restarted in this moment, or the port is another rank's, which is a likely mistake. It
// counts as a restart if the socket, asked once more, no longer has what it brought. If the
// connection has ended as well, its message is taken as lost with it, and the socket first has
// to have the first message of the next connection. If it does not, it is reported as another
// engine's, and left alone until it does.
//
// A socket that changes its mind is left alone too. The second answer in a row that does not
// have what the socket itself has just brought, and the fourth relapse within ten minutes
// (maxRelapses, grudge), have it treated as another engine's: messages of the connection
// count, and the first one behind a silence tests the socket again.

const (
	// firstAnswer is how long a connection that begins waits for a replay socket
	// that has never answered.
	firstAnswer = 500 * time.Millisecond
	// askBackoff is how many times BackoffMax lies between attempts at most.
	askBackoff = 10
	// probeStart is a number that no engine comes to: the answer is its end alone.
	probeStart = 1 << 62
)

var (
	errNotPublished = errors.New("it does not have what the engine has just published")
	errOthersReplay = fmt.Errorf("it is another engine's: %w", errNotPublished)
)

// ask begins to ask the engine of a stream for all that was not applied, if nobody
// does. settled is closed when that has ended, or seems to be in vain.
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

// askFirst asks when a connection begins to bring a stream, and returns when its
// messages can be read.
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

// keepAsking asks until the engine has answered, or the connection ends.
func (s *Subscriber) keepAsking(ctx context.Context, st *stream, settle func()) {
	o := st.owner
	wait := backoff{min: s.cfg.BackoffMin, max: askBackoff * s.cfg.BackoffMax}
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
				st.conn.leave(err) // before a message of it can be taken
			}
			o.mu.Unlock()
		}
		if err == nil || isOurs(err) || ctx.Err() != nil {
			return
		}
		if failing.due(err) {
			s.noReplay(st, err)
			if !serves && conn == nil { // else the replay has told
				r := s.newReplay(st)
				r.done.Attempts, r.done.Err = 1, err
				r.report(ctx)
			}
		}
		if serves || errors.Is(err, syscall.ECONNREFUSED) { // else the next attempt may do better
			settle()
		}
		wait.sleep(ctx)
	}
}

// noReplay tells that a replay socket is of no use now.
func (s *Subscriber) noReplay(st *stream, err error) {
	s.note(st, NoteNoReplay)
	err = fmt.Errorf("events: subscriber: pod %q: the replay socket %s does not work, so messages that are missed now are lost; it is tried again: %w", st.pod, st.replayAt, err)
	if st.owner.useless.due(err) {
		s.report(st, err)
	}
}

// reach connects to a replay socket and finds out whether it answers.
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

// askLocked has the engine send all that was not applied. conn, if not nil, has
// answered. An error of the replay socket is to be tried again; the others are
// those that end a connection.
func (s *Subscriber) askLocked(ctx context.Context, st *stream, conn *zmtp.Conn) error {
	t := &st.owner.trust
	if conn != nil {
		defer conn.Close()
		if !t.serves {
			t.serves = true
			defer s.note(st, NoteReplay) // when that which was missed has come
		}
	}
	if ctx.Err() != nil || st.owner.conn != st.conn.id || st.forgets {
		return nil
	}
	if t.strikes > 0 { // the next message has to show whose socket it is
		st.tested = false
		if at := s.position(st); t.strikes < maxStrikes && at == (Position{}) && s.saysNothing(ctx, st) {
			st.current = true
			s.note(st, NoteCurrent)
			return nil
		}
		s.link.noted(NoteReleased) // there may be none for long
		return nil
	}
	r := s.newReplay(st)
	if t.joint > 0 && t.joint < r.due { // messages were taken before anything showed whose they are
		r.due, r.done.From = t.joint, t.joint
	}
	r.conn, r.hasty = conn, t.mute
	err := s.settle(st, s.catchUp(ctx, r))
	t.mute = false
	if err == nil || isOurs(err) || ctx.Err() != nil { // its end says nothing of the socket
		return err
	}
	if errors.Is(err, errReplayShort) || errors.Is(err, errReplayPassed) || errors.Is(err, errOthersReplay) {
		return nil // asked again, it would say the same
	}
	t.serves, t.mute = false, r.done.Messages == 0
	return err
}

// saysNothing reports that an engine has published nothing, by its replay socket: most
// probably it has restarted, and is idle.
func (s *Subscriber) saysNothing(ctx context.Context, st *stream) (nothing bool) {
	err := s.request(ctx, st, 0, func(seq uint64, _ []byte) (bool, error) {
		nothing = seq == replayEnd
		return true, nil
	})
	return err == nil && nothing
}
