package events

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// ParseTopic splits a topic of llm-d's convention, kv@POD@MODEL
// (llm-d-kv-cache, engineadapter/common.go), as engines use it that connect to a
// bound subscriber. POD is what names the pod, often IP or IP:port; it has no
// '@'. MODEL is the rest, whatever is in it.
func ParseTopic(topic string) (pod, model string, err error) {
	rest, ok := strings.CutPrefix(topic, "kv@")
	pod, model, split := strings.Cut(rest, "@")
	if !ok || !split || pod == "" || model == "" || !utf8.ValidString(topic) {
		return "", "", fmt.Errorf("events: topic %.100q is not kv@POD@MODEL", topic)
	}
	return pod, model, nil
}

// rememberedTopics is how many topics without a connection are remembered, at
// least, and half of the most.
const rememberedTopics = 10_000

// topics knows the topics of open connections, and remembers those of closed
// ones, so that an engine that comes back is told from one that is new. Its zero
// value needs open.
type topics struct {
	mu   sync.Mutex // guards what follows, and the refs of topics
	open map[string]*topic
	// Names without a connection, with their doubted, in two generations: when
	// the younger one is full, the older one is forgotten.
	young, old map[string]bool
	forgot     bool // from then on an unknown name may have been there before
}

// topic is shared by the connections that publish it.
type topic struct {
	refs int // connections; guarded by topics.mu

	mu    sync.Mutex // held while one of its messages is delivered
	owner uint64     // the link that has it; 0 is none
	known bool       // a link had it before
	// doubted is that of its source, for the link after the one that goes.
	doubted bool
	floor   uint64 // links below it may be to an engine that is no more
}

// join returns the topic for one more connection.
func (ts *topics) join(name string) *topic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.open[name]
	if t == nil {
		_, young := ts.young[name]
		_, old := ts.old[name]
		t = &topic{known: young || old || ts.forgot, doubted: ts.young[name] || ts.old[name]}
		ts.open[name] = t
	}
	t.refs++
	return t
}

// leave ends what join began for a link, and reports whether the link had it.
func (ts *topics) leave(name string, t *topic, id uint64) (ours bool) {
	t.mu.Lock()
	if ours = t.owner == id; ours {
		t.owner = 0
	}
	doubted := t.doubted
	t.mu.Unlock()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.refs--; t.refs > 0 {
		return ours
	}
	delete(ts.open, name)
	if len(ts.young) == rememberedTopics {
		ts.forgot = ts.forgot || len(ts.old) > 0
		ts.young, ts.old = nil, ts.young
	}
	if ts.young == nil {
		ts.young = make(map[string]bool)
	}
	ts.young[name] = doubted
	return ours
}

// claim says whether a message of a link is the topic's, and whether it is the
// first after another link's. The caller holds t.mu.
func (t *topic) claim(id uint64) (ours, again bool) {
	if id < t.owner {
		return false, false
	}
	again = id != t.owner && t.known
	t.owner, t.known = id, true
	return true, again
}
