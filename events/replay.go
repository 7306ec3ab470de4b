package events

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file requests missed messages from engines. vLLM's publisher (distributed/kv_events.py,
// 0.9.0 to 0.29), like SGLang's and TensorRT-LLM's, keeps its last batches (10,000 by default)
// and has a ROUTER socket that answers ["", start] with all of them from start on:
//
//	["", seq, payload]         vLLM until July 2026 (PR 45177), SGLang
//	["", topic, seq, payload]  vLLM since, TensorRT-LLM
//
// and a last one with seq -1 and no payload. The ROUTER silently drops messages that do not
// fit its queue of 1,000, the last one too. But the queue is empty when an answer begins, so
// the beginning of an answer is complete.
//
// Every request starts from the last message that was applied, because the engine may restart
// at any moment, and only its own bytes show that it has not. The message behind that one is
// the next that the engine has. A hole further behind is requested again, and an answer that
// falls silent is resumed where it stopped.
//
// # The beginning of an answer
//
// Numbers before the first message of an answer are gone for good, and only they are. A hole
// further behind may be a drop. Each request has a connection of its own, so that no leftover
// of an answer is read as another. Three answers in a row that bring nothing end a replay
// (replayAttempts).
//
// # The first message of an answer
//
// If the engine answers with the message that was applied last, byte by byte, it is the same
// engine. If not, it has restarted or has dropped the message, whatever its numbers are, and
// all begins again from nothing. Numbers alone cannot show an engine that restarted and is
// already past the old number. A connection that has brought messages which the engine does
// not have is ended, because it may still bring messages from before. So is the first
// connection to an engine, once, because it was there before anything was verified. A
// connection that falls idle causes a request as well: the last message before a silence may
// be lost, and no number will show it.
//
// # Messages that cannot be read
//
// A replay goes on behind them. A message that is larger than MaxMessage is skipped on the
// wire, keeps its number, and counts as malformed. A message that the sink refuses for a
// second (refusedPatience) is passed over: its number is missing, like any other that a replay
// leaves out. Otherwise the same message would end each answer, and at each silence the pod's
// view would be forgotten and read again. It is requested again only if the sink accepts no
// message behind it, as when a backend is away.
//
// # No buffer
//
// A transport that can replay only has to hold still (Message.Hold): the sink answers with the
// gap, and nothing is settled yet. So this file has no buffer for live messages. During a
// replay the subscriber does not read, and messages wait in the socket and in the publisher's
// own queue. If that overflows, it is one more gap.

const (
	// replayEnd is the number of the message that ends an answer, -1.
	replayEnd = math.MaxUint64
	// replayAttempts is how many complete answers in a row may bring nothing new.
	replayAttempts = 3
	// replayPatience is how many times ReplayTimeout an engine may take for its first answer:
	// it may be starting.
	replayPatience = 5
	// refusedPatience is the same for an engine that refuses connections.
	refusedPatience = time.Second
	// replayLimit is how many times ReplayTimeout an answer may last, while published messages
	// wait.
	replayLimit = 150
)

var (
	errReplayShape  = errors.New("the answer has a message that does not belong to a replay")
	errReplaySilent = errors.New("the replay socket does not answer")
	errReplayShort  = errors.New("the engine does not have the missing messages")
	errReplayLong   = errors.New("the answer does not end")
	errReplayPassed = errors.New("the sink refuses the last messages")
	errReplayAnew   = errors.New("the engine has restarted, or dropped the message that was applied last")
	// errOtherLife ends connections that may still bring messages from before a restart.
	errOtherLife = errors.New("the replay socket belongs to another engine than the connection")
	// errOnceMore ends the first connection to an engine: it began before anything could show
	// whether the engine that replays is the same.
	errOnceMore = errors.New("connecting once more to be sure that it is the same engine")
)

// replayResult is the result of a replay.
type replayResult struct {
	From      uint64 // the first requested number
	Messages  int    // that came
	Attempts  int    // requests sent
	Restarted bool   // the engine does not have the message that was applied last: it restarted, or has dropped the message
	Err       error  // why the replay ended before all missing messages had come; nil: all came
}

// A replay requests the missing messages of a stream. The stream is locked.
type replay struct {
	s        *Subscriber
	st       *stream
	conn     *zmtp.Conn // for the first request, if not nil
	wait     backoff    // between answers that bring nothing
	done     replayResult
	due      uint64 // the number that is expected next
	end      time.Time
	since    time.Time // when an answer last brought something, or the first one began
	fruitful bool      // the current answer has brought something
	// refused is the sink's error about the last message, which was passed over; again: so was
	// the one before. passing: the next refused message is passed over at once.
	refused        error
	again, passing bool
	// other: the requested message came under another topic, and was dropped.
	other bool
	// lost is the last gap that the sink has seen.
	lost Gap
	// hasty: the socket is mute, so one request that brings nothing is enough.
	hasty bool
	// whole: the engine's whole life is requested, to replace the applied messages. It is
	// false once number 0 has come.
	whole bool
}

func (s *Subscriber) newReplay(st *stream) *replay {
	next := s.position(st).Next
	return &replay{
		s:    s,
		st:   st,
		wait: newBackoff(s.cfg.Backoff),
		done: replayResult{From: next},
		due:  next,
		end:  time.Now().Add(replayLimit * s.cfg.ReplayTimeout),
	}
}

func (s *Subscriber) position(st *stream) Position {
	return s.sink.StreamNext(st.pod, st.model, st.name)
}

// catchUp makes the engine send all messages that were not applied. The error is that of the
// replay socket. Or, if the engine is new or unverified, it is one that ends a connection: the
// connection is made again, because it may be to another engine.
func (s *Subscriber) catchUp(ctx context.Context, r *replay) error {
	st, t, from := r.st, &r.st.owner.trust, r.due
	err := r.runAll(ctx, nil)
	if err != nil {
		return err
	}
	if err = r.done.Err; err != nil {
		st.current = false
		if errors.Is(err, errOthersReplay) {
			return s.strike(st, false)
		}
		st.forgets = st.forgets || errors.Is(err, errReplayShort)
		s.note(st, NoteReleased)
		return err
	}
	if from > 0 && st.spoke == from {
		s.believe(st)
	} else if r.due > from {
		t.untested = true
	}
	if from == 0 && r.due > 0 && !s.cfg.Bind {
		return errOnceMore
	}
	if at := s.position(st); at.Partial && !t.short {
		if err := s.rewind(ctx, st); err != nil {
			s.note(st, NoteReleased)
			return err
		}
	}
	st.current = true
	s.note(st, NoteCurrent)
	return nil
}

// rewind makes the engine send its whole life, if it still has that, to replace the applied
// part: some of it is missing.
func (s *Subscriber) rewind(ctx context.Context, st *stream) error {
	r := s.newReplay(st)
	r.due, r.done.From, r.whole = 0, 0, true
	r.run(ctx, nil)
	if r.whole { // nothing has changed
		st.owner.trust.short = errors.Is(r.done.Err, errReplayShort)
		return nil
	}
	r.report(ctx, false)
	if r.done.Err == nil { // the engine cannot bring the rest
		st.owner.trust.short = s.position(st).Partial
	}
	return r.done.Err
}

// strike handles a replay socket that lacks a message of the stream's connection. Whichever
// engine restarted or was mistaken, the applied messages are forgotten. anew: the engine is
// known to have restarted. A socket that lacks such messages again and again is not used.
func (s *Subscriber) strike(st *stream, anew bool) error {
	t := &st.owner.trust
	certain := !t.untested && !anew
	t.untested, t.joint, st.current = false, 0, false
	s.note(st, NoteReleased)
	if now := time.Now(); t.strikes == 0 {
		if now.Sub(t.struck) > grudge {
			t.relapses = 0
		}
		t.struck, t.relapses = now, min(t.relapses+1, maxRelapses)
	}
	switch {
	case t.strikes == 0 && t.relapses == maxRelapses && certain:
		t.strikes = maxStrikes
		s.noReplay(st, errOthersReplay)
	case t.strikes == 0:
		t.strikes = 1
		if anew {
			t.short = false
			s.note(st, NoteHeld) // the next message waits until the socket's engine is known
			s.restarted(st)
			return errOtherLife
		}
		s.rewound(st)
		s.report(st, fmt.Errorf("events: subscriber: pod %q: its replay socket %s is another engine's, unless the engine has restarted in this moment: its next message will show it: %w", st.pod, st.replayAt, errNotPublished))
		return errOtherLife
	case t.strikes == 1:
		t.strikes = maxStrikes
		s.noReplay(st, errOthersReplay)
	}
	return nil
}

// believe records that a replay socket has a message of the stream's connection.
func (s *Subscriber) believe(st *stream) {
	t := &st.owner.trust
	if t.strikes == maxStrikes {
		s.note(st, NoteReplay)
	}
	t.strikes, t.untested = 0, false
}

// test requests the first message of a connection from an unverified replay socket. An error ends
// the connection.
func (s *Subscriber) test(ctx context.Context, st *stream, m Message) error {
	t := &st.owner.trust
	st.tested = true
	var same bool
	err := s.insist(ctx, func() (err error) {
		same, err = s.has(ctx, st, m)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		t.serves = false
		s.noReplay(st, err)
		s.ask(ctx, st)
		return nil
	case same:
		s.believe(st)
		return nil
	}
	anew := t.strikes == 0 && s.changed(ctx, st, m)
	if anew {
		// The engine of m has ended too: m proves nothing about the engine that answers now.
		// The request is that after any lost connection.
		if err := st.conn.lost(); err != nil {
			return s.cut(st.conn, err)
		}
	}
	return s.strike(st, anew)
}

// insist requests from a replay socket until it answers, or for the time of a first answer.
func (s *Subscriber) insist(ctx context.Context, ask func() error) error {
	wait, since := newBackoff(s.cfg.Backoff), time.Now()
	err := ask()
	for err != nil && time.Since(since) < firstAnswer && ctx.Err() == nil {
		wait.sleep(ctx)
		err = ask()
	}
	return err
}

// has finds out whether a replay socket has a message and, if that is the next one, the message
// that was applied before it: another engine may have answered at its address until now.
func (s *Subscriber) has(ctx context.Context, st *stream, m Message) (same bool, err error) {
	start := m.Seq
	if start > 0 && s.position(st).Next == start {
		start--
	}
	err = s.request(ctx, st, start, func(seq uint64, payload []byte) (done bool, err error) {
		switch {
		case seq > m.Seq:
			return true, nil
		case seq == m.Seq:
			same = start == m.Seq && bytes.Equal(payload, m.Payload)
			return true, nil
		case seq == start: // else the answer is to another request
			if before, err := s.wasLast(st, seq, payload); !before {
				return true, err
			}
			start = m.Seq
		}
		return false, nil
	})
	return same, err
}

// changed finds out whether the engine behind a replay socket that lacks a message of the
// connection has restarted. The socket has sent the message that was applied last. If it still
// has that, or has the message after all, nothing shows a restart.
func (s *Subscriber) changed(ctx context.Context, st *stream, m Message) bool {
	next := s.position(st).Next
	if next == 0 {
		return false
	}
	found := false
	look := func(want uint64, is func(seq uint64, payload []byte) (bool, error)) error {
		return s.insist(ctx, func() error {
			return s.request(ctx, st, want, func(seq uint64, payload []byte) (done bool, err error) {
				if seq == want {
					found, err = is(seq, payload)
				}
				return seq >= want, err
			})
		})
	}
	err := look(next-1, func(seq uint64, payload []byte) (bool, error) { return s.wasLast(st, seq, payload) })
	if err == nil && !found && m.Seq == next { // else it was requested by itself
		err = look(next, func(_ uint64, payload []byte) (bool, error) { return bytes.Equal(payload, m.Payload), nil })
	}
	return err == nil && !found
}

// wasLast reports whether a replay socket has the message that was applied last, under its
// number.
func (s *Subscriber) wasLast(st *stream, seq uint64, payload []byte) (bool, error) {
	receipt, err := s.deliver(st, Message{Seq: seq, Payload: payload, Hold: true, Replayed: true})
	return err == nil && receipt.Duplicate, err
}

// request gets the messages of a replay socket from a number on, and gives them to take until
// take is done. The time that take needs is not the socket's.
func (s *Subscriber) request(ctx context.Context, st *stream, start uint64, take func(seq uint64, payload []byte) (done bool, err error)) error {
	conn, err := s.dialReplay(ctx, st.replayAt)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	left := min(firstAnswer, s.cfg.ReplayTimeout)
	since, silence := time.Now(), time.AfterFunc(left, func() { _ = conn.Close() })
	defer silence.Stop()
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return err
	}
	for done := false; !done; {
		m, topic, err := readReply(conn.Receive())
		if !silence.Stop() && ctx.Err() == nil {
			return errReplaySilent
		}
		if err != nil {
			return err
		}
		left -= time.Since(since)
		if m.Seq == replayEnd || !s.isOther(st, topic) {
			if done, err = take(m.Seq, m.Payload); err != nil {
				return err
			}
		}
		since = time.Now()
		silence.Reset(left)
	}
	return nil
}

// repair requests the missing messages before a held message, and reports whether the message
// came too. The error is one that ends a connection, or that of ctx.
func (s *Subscriber) repair(ctx context.Context, st *stream, held Receipt, m Message) (came bool, err error) {
	r, t := s.newReplay(st), &st.owner.trust
	known := r.due > 0
	until := &m
	if held.Restarted || m.Seq < r.due {
		until = nil
	}
	if err := r.runAll(ctx, until); err != nil {
		return false, err
	}
	switch bad := r.done.Err; {
	case errors.Is(bad, errOthersReplay):
		return false, s.strike(st, false)
	case until != nil && r.due > m.Seq:
		t.untested = false
		if !r.other {
			s.watch(st, Receipt{Gap: r.lost})
		}
		return !r.other, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case bad != nil && !errors.Is(bad, errReplayShort):
		t.serves = false
		s.noReplay(st, bad)
		return false, nil
	case !held.Restarted && until == nil, !known || t.doubted:
		return false, nil
	}
	// An engine keeps the messages that it publishes. If this is the known engine, and it
	// lacks the message, the message is another engine's. But if that happens again, the
	// engine does not keep all messages.
	t.doubted = true
	return false, errOtherLife
}

// runAll runs, again from nothing if the engine has restarted, and reports. A socket that
// lacks a message which it has just sent is not believed.
func (r *replay) runAll(ctx context.Context, until *Message) error {
	r.run(ctx, until)
	t, anew := &r.st.owner.trust, errors.Is(r.done.Err, errReplayAnew) && ctx.Err() == nil
	if anew {
		r.done.Restarted = true
		r.s.restarted(r.st)
		r.due = 0
		t.short, t.joint = false, 0
		if t.anew++; t.anew == maxStrikes {
			t.anew, t.strikes = 0, maxStrikes-1
			r.done.Err, anew = errOthersReplay, false
		} else {
			r.run(ctx, nil)
			if t.untested = r.due > 0; !t.untested && r.done.Err == nil {
				t.anew = 0 // it is idle: nothing could show that it has its messages
			}
		}
	}
	r.report(ctx, until != nil)
	if anew {
		return errOtherLife
	}
	return nil
}

// report counts a replay. missing: messages are missing, or else the replay could only show that
// none are.
func (r *replay) report(ctx context.Context, missing bool) {
	if ctx.Err() != nil {
		return
	}
	s, st, err := r.s, r.st, r.done.Err
	if err != nil {
		s.count.replayErrors.Add(1) // before the replay: whoever reads the errors last never finds a success too many
	}
	s.count.replays.Add(1)
	if s.cfg.onReplay != nil {
		s.cfg.onReplay(r.done)
	}
	// Other errors are reported as those of the socket or of the sink.
	if missing && errors.Is(err, errReplayShort) && st.owner.incomplete.due(err) {
		s.report(st, fmt.Errorf("events: subscriber: pod %q: the replay of %s from message %d is incomplete: %w", st.pod, st.name, r.done.From, err))
	}
}

// run requests until the engine has sent all its messages, or the message until, or until it
// proves to be another engine.
func (r *replay) run(ctx context.Context, until *Message) {
	r.done.Err = ctx.Err()
	r.since = time.Now()
	for short := 0; ctx.Err() == nil; {
		r.fruitful = false
		r.done.Attempts++
		ended, err := r.ask(ctx, until)
		switch r.done.Err = err; {
		case errors.Is(err, errReplayAnew), errors.Is(err, errReplayLong), errors.Is(err, errReplayShort), errors.Is(err, errOthersReplay),
			ended && err != nil:
			return
		case until != nil && r.due > until.Seq, until == nil && ended:
			r.done.Err = nil
			return
		case ended:
			r.done.Err = errReplayShort
			short++
		}
		switch {
		case r.fruitful:
			short, r.since, r.hasty = 0, time.Now(), false
			r.wait.reset()
		case short >= replayAttempts, time.Since(r.since) >= r.patience(err):
			return
		default:
			r.wait.sleep(ctx)
		}
	}
}

// patience returns how long answers may bring nothing. A socket that is closed while its
// engine publishes will hardly be opened.
func (r *replay) patience(err error) time.Duration {
	if r.hasty {
		return 0
	}
	patience := replayPatience * r.s.cfg.ReplayTimeout
	if errors.Is(err, syscall.ECONNREFUSED) {
		return min(patience, refusedPatience)
	}
	return patience
}

// ask sends one request and reads the answer: to its end, to the message until, or to a hole.
// The time that the sink needs is not the socket's.
func (r *replay) ask(ctx context.Context, until *Message) (ended bool, err error) {
	conn := r.conn
	if r.conn = nil; conn == nil {
		if conn, err = r.s.dialReplay(ctx, r.st.replayAt); err != nil {
			return false, err
		}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	left := r.s.cfg.ReplayTimeout
	silence := time.AfterFunc(left, func() { _ = conn.Close() })
	defer silence.Stop()
	start := r.due
	known := start == 0 // no applied message has to be in the engine
	if !known {
		start--
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return false, err
	}
	var strange error
	for first := true; ; silence.Reset(left) {
		since := time.Now()
		m, topic, err := readReply(conn.Receive())
		left -= time.Since(since)
		switch {
		case !silence.Stop():
			return false, cmp.Or(strange, errReplaySilent)
		case errors.Is(err, errReplayShape): // it is missing, if others come
			strange = err
			continue
		case err != nil:
			return false, err
		}
		strange = nil
		seq := m.Seq
		if start == 0 && first && (r.due == 0 || !known) && seq > 0 && seq != replayEnd {
			r.st.owner.trust.short = true
		}
		switch {
		case seq < start: // not requested
			continue
		case r.whole && seq > 0:
			return false, errReplayShort
		case !known:
			if err := r.confirm(m); err != nil {
				return false, err
			}
			known, r.st.owner.trust.joint, r.st.owner.trust.anew = true, 0, 0
		case seq == replayEnd:
			return true, r.ended()
		case seq < r.due: // again
			continue
		case seq > r.due && !first:
			return false, nil // a hole
		case until != nil && seq == until.Seq && !bytes.Equal(m.Payload, until.Payload):
			return false, errOthersReplay
		case r.s.isOther(r.st, topic):
			r.s.dropBadTopic(r.st.conn)
			r.due, first = seq+1, false
			r.other = r.other || until != nil && r.due > until.Seq
		default:
			if r.whole {
				r.whole = false
				r.s.rewound(r.st)
			}
			if _, err := r.deliver(m); err == nil {
				r.fruitful, r.refused = true, nil
			} else if !r.passes(seq, err) {
				return false, err
			}
			r.due, first = seq+1, false
			if until != nil && r.due > until.Seq {
				return false, nil
			}
			if time.Now().After(r.end) {
				return false, errReplayLong
			}
		}
		left = r.s.cfg.ReplayTimeout
	}
}

// confirm checks that an answer begins with the last message that was applied. If the present
// connection brought that message, an answer without it proves no restart: the engine does not
// keep its messages, or has ended, and the connection with it; or another engine replays.
func (r *replay) confirm(m Message) error {
	seq, ours := m.Seq, r.st.spoke == r.due
	switch {
	case seq != r.due-1 && ours && !r.st.owner.trust.untested:
		return errReplayShort
	case seq != r.due-1 && ours:
		return errOthersReplay
	case seq != r.due-1:
		return errReplayAnew
	}
	m.Hold = true
	receipt, err := r.deliver(m)
	switch {
	case err != nil || receipt.Duplicate:
		return err
	case ours:
		return errOthersReplay
	}
	return errReplayAnew
}

// deliver gives a message of an answer to the sink. The error is about a message that was not
// settled.
func (r *replay) deliver(m Message) (Receipt, error) {
	m.Replayed = true
	receipt, err := r.s.deliver(r.st, m)
	if errors.Is(err, ErrMalformed) || receipt.NoRoom {
		err = nil
	}
	if err == nil {
		r.done.Messages++
		r.s.count.replayed.Add(1)
	}
	if receipt.Gap.Lost && receipt.Applied {
		r.lost = receipt.Gap
	}
	// Answers may lack topics, so they do not show that Topic is right.
	if r.s.cfg.Topic == "" && (receipt.Applied || receipt.Duplicate) {
		r.st.conn.quiet.stop()
	}
	return receipt, err
}

// passes reports whether the replay goes on behind a message that the sink refuses again and
// again: the message then counts as missing.
func (r *replay) passes(seq uint64, err error) bool {
	t := &r.st.owner.trust
	r.again = t.passed <= seq && seq < t.passedEnd
	if !r.again && !r.passing && time.Since(r.since) < refusedPatience {
		return false
	}
	r.passing, r.refused = true, err
	if !r.again {
		if seq != t.passedEnd || t.passed == t.passedEnd {
			t.passed = seq
		}
		t.passedEnd = seq + 1
	}
	return true
}

// ended returns why a complete answer did not bring all: its last messages were refused. They
// are requested once more, but no more often.
func (r *replay) ended() error {
	if r.refused != nil && r.again {
		return fmt.Errorf("%w: %w", errReplayPassed, r.refused)
	}
	return r.refused
}
