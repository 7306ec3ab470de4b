package events

import (
	"fmt"
	"sync"
	"time"
)

// SilentError reports an engine that is connected and publishes nothing. Its text has
// the likely causes. It comes in a TransportError: errors.As finds it.
type SilentError struct {
	Pod, Model string // empty if they were to come from a topic
	Endpoint   string // of the engine
	Topic      string // what topics must begin with
	After      time.Duration
	// Dropped is the number of messages that came and were dropped: they were no events,
	// or had other topics.
	Dropped uint64
}

func (e *SilentError) Error() string {
	who := "an engine"
	if e.Pod != "" {
		who = fmt.Sprintf("pod %q", e.Pod)
	}
	said := "nothing"
	if e.Dropped > 0 {
		said = fmt.Sprintf("no KV event, but %d other messages", e.Dropped)
	}
	topic := ""
	if e.Topic != "" {
		topic = fmt.Sprintf("; it may publish under topics that do not begin with %q", e.Topic)
	}
	return fmt.Sprintf("events: subscriber: %s has said %s for %v since %s was connected: it may have had no request yet; its KV events may be off (vLLM: enable_kv_cache_events and publisher zmq in --kv-events-config); this may be the port of another socket%s",
		who, said, e.After, e.Endpoint, topic)
}

// silence waits for the first message of an engine. It goes on from one connection
// to the next.
type silence struct {
	timer   *time.Timer
	telling sync.WaitGroup
}

func (q *silence) begin(s *Subscriber, st *stream, c *connection) {
	if q.timer != nil {
		return
	}
	dropped := func() uint64 { return s.malformed.Load() + s.badTopics.Load() }
	before := dropped()
	q.telling.Add(1)
	q.timer = time.AfterFunc(s.cfg.Silence, func() {
		defer q.telling.Done()
		s.report(st, &SilentError{
			Pod: st.pod, Model: st.model, Endpoint: c.peer, Topic: s.cfg.Topic,
			After: s.cfg.Silence, Dropped: dropped() - before,
		})
	})
}

// stop ends the wait for good.
func (q *silence) stop() {
	if q.timer != nil && q.timer.Stop() {
		q.telling.Done()
	}
}

// end stops, and returns when nothing is being told any more.
func (q *silence) end() {
	q.stop()
	q.telling.Wait()
}
