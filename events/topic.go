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

// rememberedDoubts is how many doubted topics without a connection are
// remembered, at least, and half of the most.
const rememberedDoubts = 10_000

// topics knows the topics of open connections, and which of the others are
// doubted: the next connection has to know it. Its zero value needs open.
type topics struct {
	mu   sync.Mutex // guards what follows, and the refs of topics
	open map[string]*topic
	// Doubted names without a connection, in two generations: when the younger
	// one is full, the older one is forgotten.
	young, old map[string]struct{}
}

// topic is shared by the connections that publish it.
type topic struct {
	refs int // connections; guarded by topics.mu

	mu    sync.Mutex // held while one of its messages is delivered
	owner uint64     // the link that has it; 0 is none
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
		delete(ts.young, name)
		delete(ts.old, name)
		t = &topic{doubted: young || old}
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
	if !doubted {
		return ours
	}
	if len(ts.young) == rememberedDoubts {
		ts.young, ts.old = nil, ts.young
	}
	if ts.young == nil {
		ts.young = make(map[string]struct{})
	}
	ts.young[name] = struct{}{}
	return ours
}

// claim gives the topic to a link, unless a newer one has it, and reports whether
// the link has it. The caller holds t.mu.
func (t *topic) claim(id uint64) (ours bool) {
	if id < t.owner {
		return false
	}
	t.owner = id
	return true
}
