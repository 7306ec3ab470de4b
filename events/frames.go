package events

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// This file handles messages that differ from those of one engine: other frames, other topics,
// numbers that several topics share.
//
// A pod has one topic. ZeroMQ's subscriptions are prefixes, so kv@p@m brings kv@p@m2 too. The
// configured topic wins whenever it comes. Another one is a fault that is reported, and never
// part of the pod.

const (
	// maxSkip bounds the missing numbers before a number with further bytes behind it.
	maxSkip = 1 << 20
	// jointRuns is how often in a row the topic must change while the numbers go on, before
	// the topics are reported as sharing their numbers.
	jointRuns = 8
	// manyGaps is how many messages must come behind a gap, and be at least half of all.
	manyGaps = 16
)

var (
	errJoint    = errors.New("they share their numbers, so each message of another topic looks like a loss, and the blocks of a pod are forgotten each time")
	errManyGaps = errors.New("messages are lost on the way, or the publisher numbers several topics together and this subscription sees one of them")
)

// A frames reads the numbers of the messages of a connection.
type frames struct {
	next     map[string]uint64 // by topic, behind the last number with further bytes
	reported repeatFilters
}

// maxLong bounds the topics of a connection whose numbers have further bytes.
const maxLong = 64

// number returns the number of a message, or an error that wraps ErrMalformed. An engine may
// send more behind the number, such as an identity of its run. Then the numbers have to go on
// from one message to the next, because such bytes might be anything.
func (f *frames) number(m [][]byte) (seq uint64, err error) {
	switch {
	case len(m) != 3:
		return 0, malformed(fault.Errorf(fault.Frames, "%d frames where engines send 3: topic, number, payload", len(m)))
	case len(m[1]) < 8:
		return 0, malformed(fault.Errorf(fault.Frames, "a number of %d bytes where engines send 8", len(m[1])))
	}
	seq = binary.BigEndian.Uint64(m[1])
	if len(m[1]) > 8 {
		next, known := f.next[string(m[0])]
		goesOn := known && seq-next < maxSkip || !known && len(f.next) < maxLong
		if known || goesOn {
			if f.next == nil {
				f.next = make(map[string]uint64)
			}
			f.next[string(m[0])] = seq + 1
		}
		if !goesOn {
			return 0, malformed(fault.Errorf(fault.Frames, "a number of %d bytes where engines send 8, and the first 8 do not go on from the message before", len(m[1])))
		}
	}
	if seq == replayEnd {
		return 0, malformed(fault.Errorf(fault.Frames, "the number -1"))
	}
	return seq, nil
}

// unread counts a message whose number could not be read. An error ends the connection.
func (s *Subscriber) unread(ctx context.Context, c *connection, topic []byte, bad error) error {
	st := c.stream
	if st == nil {
		st = c.streams[string(topic)]
	}
	who := c.peer
	if st == nil {
		st = s.of(c)
	} else if st.topic == nil || bytes.Equal(topic, st.topic) {
		who = st.name
		waited, ours, err := s.enter(ctx, st)
		if !ours {
			return err
		}
		defer st.owner.mu.Unlock()
		_, _ = s.sink.IngestMessage(Message{Pod: st.pod, Model: st.model, Stream: st.name, Seq: math.MaxUint64, Err: bad})
		if waited {
			s.noteEnd(st)
		}
	}
	s.count.malformed.Add(1)
	c.quiet.dropped.Add(1)
	if err := fmt.Errorf("events: subscriber: a message of %s was dropped: %w", who, bad); c.frames.reported.due(err) {
		s.report(st, err)
	}
	return nil
}

// picks reports whether a topic is that of the stream. For a connection to one engine that is
// the first topic, until Topic itself comes. The stream is locked.
func (s *Subscriber) picks(st *stream, topic []byte) bool {
	first := st.topic == nil
	switch {
	case !first && bytes.Equal(topic, st.topic):
		return true
	case !first && (s.cfg.Topic == "" || string(topic) != s.cfg.Topic):
		s.dropBadTopic(st.conn)
		if st.conn.topics.isNew(topic, maxTopics) {
			s.report(st, fmt.Errorf("events: subscriber: pod %q has the topic %.100q: messages of the topic %.100q are dropped", st.pod, st.topic, topic))
		}
		return false
	}
	st.topic = append([]byte{}, topic...)
	s.setTopic(st, st.topic)
	return true
}

// setTopic sets the topic of the engine. The messages of another topic are forgotten.
func (s *Subscriber) setTopic(st *stream, topic []byte) {
	if before := st.owner.topic; before != nil && !bytes.Equal(topic, before) {
		s.restarted(st)
		s.report(st, fmt.Errorf("events: subscriber: pod %q has the topic %.100q: its blocks of the topic %.100q are forgotten", st.pod, topic, before))
	}
	st.owner.topic = topic
}

// isOther reports whether a replay socket sends another topic than the stream's. An engine may
// leave it out.
func (s *Subscriber) isOther(st *stream, topic []byte) bool {
	switch {
	case len(topic) == 0:
		return false
	case len(topic) > maxTopicBytes:
		return true
	case st.topic != nil:
		return len(st.topic) > 0 && !bytes.Equal(topic, st.topic)
	case st.owner.topic == nil && bytes.HasPrefix(topic, []byte(s.cfg.Topic)), string(topic) == s.cfg.Topic:
		s.setTopic(st, append([]byte{}, topic...))
	}
	return !bytes.Equal(topic, st.owner.topic)
}

// topics are the topics of a connection.
type topics struct {
	seen map[string]struct{}

	last []byte // the topic and the number that came last
	seq  uint64
	runs int // how often in a row the topic has changed while the numbers went on
}

func (t *topics) isNew(topic []byte, limit int) bool {
	if _, known := t.seen[string(topic)]; known || len(t.seen) == limit {
		return false
	}
	if t.seen == nil {
		t.seen = make(map[string]struct{})
	}
	t.seen[string(topic)] = struct{}{}
	return true
}

// joint reports topics that share their numbers, once.
func (s *Subscriber) joint(c *connection, topic []byte, seq uint64) {
	t := &c.topics
	before := t.seq
	t.seq = seq
	switch {
	case t.runs == jointRuns || bytes.Equal(topic, t.last):
		return
	case t.last == nil || seq != before+1:
		t.runs = 0
	default:
		if t.runs++; t.runs == jointRuns {
			s.report(s.of(c), fmt.Errorf("events: subscriber: %s sends the topics %.100q and %.100q: %w", c.peer, t.last, topic, errJoint))
		}
	}
	t.last = append(t.last[:0], topic...)
}

// gaps counts the messages of a connection, and those behind a gap.
type gaps struct {
	messages, gaps int
	reported       repeatFilter
}

// watch reports a stream that loses messages again and again.
func (s *Subscriber) watch(st *stream, receipt Receipt) {
	g := &st.conn.gaps
	g.messages++
	if !receipt.Gap.Lost {
		return
	}
	if g.gaps++; g.gaps < manyGaps || g.gaps*2 < g.messages {
		return
	}
	if err := fmt.Errorf("events: subscriber: pod %q: most messages of %s come behind a gap: %w", st.pod, st.name, errManyGaps); g.reported.due(err) {
		s.report(st, err)
	}
}

// readReply parses a message of an answer, and the error of receiving it. A skipped message
// has its number, if that could be read.
func readReply(frames [][]byte, received error) (m Message, topic []byte, err error) {
	if received != nil && !errors.Is(received, zmtp.ErrSkipped) {
		return Message{}, nil, received
	}
	n := len(frames)
	if n != 3 && n != 4 || len(frames[0]) != 0 || len(frames[n-2]) < 8 {
		return Message{}, nil, errReplayShape
	}
	m = Message{Seq: binary.BigEndian.Uint64(frames[n-2]), Payload: frames[n-1]}
	if received != nil {
		m.Payload, m.Err = nil, malformed(fault.Errorf(fault.Limit, "larger than MaxMessage: %v", received))
	}
	if n == 4 {
		topic = frames[1]
	}
	return m, topic, nil
}
