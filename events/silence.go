package events

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// silent is the error about an engine that is connected and publishes nothing, with the likely
// causes. dropped is the number of dropped messages: they were no events, or had other topics.
func (s *Subscriber) silent(st *stream, c *connection, dropped uint64) error {
	who := "an engine"
	if st.pod != "" { // else the pod comes from a topic
		who = fmt.Sprintf("pod %q", st.pod)
	}
	seen := "nothing"
	if dropped > 0 {
		seen = fmt.Sprintf("no KV event, but %d other messages", dropped)
	}
	topic := ""
	if s.cfg.Topic != "" {
		topic = fmt.Sprintf("; it may publish under topics that do not begin with %q", s.cfg.Topic)
	}
	if s.cfg.Bind && (s.cfg.Pod == "" || s.cfg.Model == "") {
		topic += "; its topics may name no pod and model (vLLM: topic in --kv-events-config)"
	}
	return fmt.Errorf("events: subscriber: %s has published %s for %v since %s was connected: it may have had no request yet; its KV events may be off (vLLM: enable_kv_cache_events and publisher zmq in --kv-events-config); this may be the port of another socket%s",
		who, seen, s.cfg.Silence, c.peer, topic)
}

// silence waits for the first message of an engine. For a Subscriber that connects it goes on from
// one connection to the next.
type silence struct {
	timer   *time.Timer
	reports sync.WaitGroup
	dropped atomic.Uint64 // messages that were no events, or had other topics
}

func (q *silence) begin(s *Subscriber, st *stream, c *connection) {
	if q.timer != nil {
		return
	}
	q.reports.Add(1)
	q.timer = time.AfterFunc(s.cfg.Silence, func() {
		defer q.reports.Done()
		s.report(st, s.silent(st, c, q.dropped.Load()))
	})
}

// stop ends the wait for good.
func (q *silence) stop() {
	if q.timer != nil && q.timer.Stop() {
		q.reports.Done()
	}
}

// end stops, and returns when no report is under way.
func (q *silence) end() {
	q.stop()
	q.reports.Wait()
}
