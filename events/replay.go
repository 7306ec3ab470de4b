package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file asks engines for what was missed. vLLM's publisher
// (distributed/kv_events.py, 0.9.0 to 0.29), and SGLang's and TensorRT-LLM's
// after it, keeps its last batches (10,000 by default) and has a ROUTER socket
// that answers ["", start] with all of them from start on:
//
//	["", seq, payload]         vLLM until July 2026 (PR 45177), SGLang
//	["", topic, seq, payload]  vLLM since, TensorRT-LLM
//
// and a last one with seq -1 and no payload. The ROUTER drops without a word
// what does not fit its queue of 1,000 messages, the last one too. But the queue
// is empty when an answer begins, so what an answer begins with is what the
// engine has.
//
// Every request asks from the last message that was applied, for the engine may
// restart at any moment, and only its own bytes say that it has not. The message
// behind that one is the next that the engine has. A hole further behind is
// asked for anew, and an answer that falls silent is begun again where it
// stopped.

const (
	// replayEnd is the number of the message that ends an answer, -1.
	replayEnd = math.MaxUint64
	// replayAttempts is how many whole answers in a row may bring nothing new.
	replayAttempts = 3
	// replayPatience is how many times ReplayTimeout an engine may take to answer
	// at all: it may be at its start.
	replayPatience = 5
	// replayLimit is how many times ReplayTimeout an engine may go on to answer,
	// while what it publishes waits.
	replayLimit = 150
)

var (
	errReplayShape  = errors.New("a message that is no answer to a replay request")
	errReplaySilent = errors.New("no answer in time")
	errReplayShort  = errors.New("the engine does not have what is missing")
	errReplayLong   = errors.New("the engine does not come to an end")
	errReplayAnew   = errors.New("the engine has started anew, or forgotten what was applied")
	// errOtherLife ends connections that may still bring what an engine said
	// before it started anew.
	errOtherLife = errors.New("the engine that replays is another one than is connected")
	// errOnceMore ends the first connection to an engine: it was there before
	// anything was known that could show whether the engine that replays is the
	// same.
	errOnceMore = errors.New("connecting once more to be sure that it is the same engine")
)

// Replay is what came of asking an engine for what was missed.
type Replay struct {
	Pod, Model, Stream string
	From               uint64 // the first number that was asked for
	Messages           int    // that came
	Attempts           int    // requests that were sent
	Restarted          bool   // the engine does not have what was applied last: it started anew, or forgot
	Err                error  // why it ended before all that the engine has, or all that was missing, had come
}

// replay asks for what a stream misses.
type replay struct {
	s        *Subscriber
	st       *stream
	wait     backoff // between answers that bring nothing
	done     Replay
	due      uint64 // the number that is expected next
	end      time.Time
	fruitful bool // the answer that is being read has brought something
}

func (s *Subscriber) newReplay(st *stream) *replay {
	next := s.sink.(ReplaySink).StreamNext(st.pod, st.model, st.name).Next
	return &replay{
		s:    s,
		st:   st,
		wait: backoff{min: s.cfg.BackoffMin, max: s.cfg.BackoffMax},
		done: Replay{Pod: st.pod, Model: st.model, Stream: st.name, From: next},
		due:  next,
		end:  time.Now().Add(replayLimit * s.cfg.ReplayTimeout),
	}
}

// catchUp has the engine send all that it has and that was not applied. If the
// engine is another one than was known, or none was known, that is an error: the
// connection is to be made anew, for it may be to another one. Without a replay
// socket catchUp does nothing.
func (s *Subscriber) catchUp(ctx context.Context, st *stream) error {
	if st.replayAt == "" {
		return nil
	}
	r := s.newReplay(st)
	first := r.due == 0
	err := r.runAll(ctx, nil)
	if err == nil && first && r.due > 0 {
		err = errOnceMore
	}
	st.forgets = st.forgets || errors.Is(r.done.Err, errReplayShort)
	return err
}

// repair has the engine send what is missing before a message that is held, and
// reports whether the message came too. The error is that of catchUp.
func (s *Subscriber) repair(ctx context.Context, st *stream, held Receipt, seq uint64) (came bool, err error) {
	r := s.newReplay(st)
	known := r.due > 0
	until := &seq
	if held.Restarted {
		until = nil
	}
	if err := r.runAll(ctx, until); err != nil {
		return false, err
	}
	if until != nil && r.due > seq {
		return true, nil
	}
	// An engine keeps what it publishes. If it is the one that was known, and does
	// not have the message, that is another's; but if the same happens again, it
	// is an engine that does not keep all.
	answered := r.done.Err == nil || errors.Is(r.done.Err, errReplayShort)
	if known && answered && !st.doubted {
		st.doubted = true
		return false, errOtherLife
	}
	return false, nil
}

// runAll runs, once more from nothing if the engine has restarted, and reports.
func (r *replay) runAll(ctx context.Context, until *uint64) error {
	r.run(ctx, until)
	anew := errors.Is(r.done.Err, errReplayAnew) && ctx.Err() == nil
	if anew {
		r.done.Restarted = true
		if err := r.s.sink.(ReplaySink).StreamRestarted(r.st.pod, r.st.model, r.st.name); err != nil {
			r.s.sinkFailed(fmt.Errorf("events: subscriber: %s: %w", r.st.name, err))
		}
		r.due = 0
		r.run(ctx, nil)
	}
	r.report(ctx)
	if anew {
		return errOtherLife
	}
	return nil
}

func (r *replay) report(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	s := r.s
	s.replays.Add(1)
	if r.done.Err != nil {
		s.replayErrors.Add(1)
	}
	if s.cfg.OnReplay != nil {
		done := r.done
		if done.Err != nil {
			done.Err = fmt.Errorf("events: subscriber: replay of %s from %s: %w", r.st.name, r.st.replayAt, done.Err)
		}
		s.cfg.OnReplay(done)
	}
}

// run asks until the engine has sent all that it has or, if there is a number
// that must come, until that has come; or until it is known to be another
// engine.
func (r *replay) run(ctx context.Context, until *uint64) {
	since := time.Now()
	for short := 0; ctx.Err() == nil; {
		r.fruitful = false
		r.done.Attempts++
		ended, err := r.ask(ctx, until)
		switch r.done.Err = err; {
		case errors.Is(err, errReplayAnew), errors.Is(err, errReplayLong), errors.Is(err, errReplayShort):
			return
		case until != nil && r.due > *until, until == nil && ended:
			r.done.Err = nil
			return
		case ended:
			r.done.Err = errReplayShort
			short++
		}
		switch {
		case r.fruitful:
			short, since = 0, time.Now()
			r.wait.reset()
		case short >= replayAttempts, time.Since(since) >= replayPatience*r.s.cfg.ReplayTimeout:
			return
		default:
			r.wait.sleep(ctx)
		}
	}
}

// ask sends one request and reads the answer: to its end, to the number that must
// come, or to a hole.
func (r *replay) ask(ctx context.Context, until *uint64) (ended bool, err error) {
	wire := r.s.wire
	wire.Type = zmtp.DEALER
	wire.HandshakeTimeout = min(connectTimeout, r.s.cfg.ReplayTimeout)
	conn, err := zmtp.Dial(ctx, r.st.replayAt, wire)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	silence := time.AfterFunc(r.s.cfg.ReplayTimeout, func() { _ = conn.Close() })
	defer silence.Stop()
	start := r.due
	known := start == 0 // nothing was applied that the engine would have to know
	if !known {
		start--
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
		return false, err
	}
	for first := true; ; {
		m, err := conn.Receive()
		if err != nil {
			if !silence.Stop() {
				err = errReplaySilent
			}
			return false, err
		}
		seq, payload, err := readReply(m)
		switch {
		case err != nil:
			return false, err
		case seq < start: // not what was asked for
			continue
		case !known:
			if err := r.confirm(seq, payload); err != nil {
				return false, err
			}
			known = true
		case seq == replayEnd:
			return true, nil
		case seq < r.due: // once more
			continue
		case seq > r.due && !first:
			return false, nil // a hole
		default:
			if _, err := r.deliver(Message{Seq: seq, Payload: payload}); err != nil {
				return false, err
			}
			r.due, r.fruitful, first = seq+1, true, false
			if until != nil && r.due > *until {
				return false, nil
			}
			if time.Now().After(r.end) {
				return false, errReplayLong
			}
		}
		silence.Reset(r.s.cfg.ReplayTimeout)
	}
}

// confirm checks that an answer begins with the last message that was applied. If
// the present connection brought that, an answer without it proves nothing: the
// engine does not keep what it publishes, or has ended, and with it the
// connection.
func (r *replay) confirm(seq uint64, payload []byte) error {
	if seq != r.due-1 && r.st.spoke == r.due {
		return errReplayShort
	}
	if seq != r.due-1 {
		return errReplayAnew
	}
	receipt, err := r.deliver(Message{Seq: seq, Payload: payload, Hold: true})
	if err == nil && !receipt.Duplicate {
		err = errReplayAnew
	}
	return err
}

// deliver gives a message of an answer to the sink. The error is of a message
// that was not dealt with.
func (r *replay) deliver(m Message) (Receipt, error) {
	m.Replayed = true
	receipt, err := r.s.deliver(r.st, m)
	if errors.Is(err, ErrMalformed) {
		err = nil
	}
	if err == nil {
		r.done.Messages++
		r.s.replayed.Add(1)
	}
	return receipt, err
}

// readReply takes an answer apart.
func readReply(m [][]byte) (seq uint64, payload []byte, err error) {
	n := len(m)
	if n != 3 && n != 4 || len(m[0]) != 0 || len(m[n-2]) != 8 {
		return 0, nil, errReplayShape
	}
	return binary.BigEndian.Uint64(m[n-2]), m[n-1], nil
}
