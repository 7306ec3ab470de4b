package events

import (
	"sync"
	"time"
)

// This file decides which connection has a stream that several connections bring, and keeps
// the history of the stream's replay socket across connections.

// trust is the history of a stream's replay socket. The zero value is that of an unused one.
type trust struct {
	// serves: it answers, so messages wait for its answers.
	serves bool
	// mute: its last answer was to a probe, and nothing more.
	mute bool
	// doubted: a message was not delivered because the engine that replays does not have it.
	doubted bool
	// strikes counts consecutive connections whose own message it had with other bytes, or not
	// at all. At maxStrikes it is another engine's.
	strikes int
	// relapses counts the strikes of a socket that was believed, and struck is the time of the
	// last one.
	relapses int
	struck   time.Time
	// untested: it has brought messages, and nothing has shown since that it is of the engine
	// behind the connection.
	untested bool
	// anew counts consecutive answers without the message that was applied last, although the
	// socket had sent it.
	anew int
	// joint is the number that was due when the first unverified connection began: one that
	// has not shown yet whether its engine has the messages applied before; 0: there is none.
	joint uint64
	// short: it no longer has the beginning of the engine's present life.
	short bool
	// From passed up to passedEnd are the numbers of the last consecutive messages that the
	// sink has refused, and that were passed over.
	passed, passedEnd uint64
}

const (
	// maxStrikes is 2, because the first strike may be of an engine that restarted meanwhile.
	maxStrikes = 2
	// maxRelapses is the same for a socket that was believed in between, within the time of
	// grudge.
	maxRelapses = 4
	grudge      = 10 * time.Minute
)

// holds reports whether messages wait for the socket's answers: it answers, and nothing speaks
// against it.
func (t *trust) holds() bool { return t.serves && t.strikes == 0 }

// rememberedTrusts is the least number of streams without a connection that are remembered,
// and half of the most.
const rememberedTrusts = 10_000

// streamOwners has the owner of each stream that a connection brings, by topic. Of the other
// streams it keeps the trust, for the next connection that brings one. Its zero value has
// none.
type streamOwners struct {
	mu   sync.Mutex // guards what follows, and the refs of owners
	open map[string]*streamOwner
	// Streams without a connection, in two generations: when the younger one is full, the
	// older one is dropped.
	young, old map[string]trust
}

// A streamOwner is the connection that has a stream: the newest of those that bring it,
// because an older one is left from a dead engine. When the newest is lost, the older ones are
// ended too: a live engine comes back by itself. They share it.
type streamOwner struct {
	refs int // connections that bring the stream; guarded by streamOwners.mu

	mu         sync.Mutex // held while messages of the stream are delivered
	conn       uint64     // id of the connection that has the stream; 0 is none
	floor      uint64     // connections with an id below it may be to a dead engine
	trust      trust
	useless    repeatFilter // of a useless replay socket
	incomplete repeatFilter // of replays that bring only a part
	topic      []byte       // of the last applied message, by a Subscriber that connects; nil is none
}

// join returns the owner of a stream for one more connection that brings it.
func (so *streamOwners) join(topic string) *streamOwner {
	so.mu.Lock()
	defer so.mu.Unlock()
	o := so.open[topic]
	if o == nil {
		known, ok := so.young[topic]
		if !ok {
			known = so.old[topic]
		}
		delete(so.young, topic)
		delete(so.old, topic)
		o = &streamOwner{trust: known}
		if so.open == nil {
			so.open = make(map[string]*streamOwner)
		}
		so.open[topic] = o
	}
	o.refs++
	return o
}

// leave ends join for a connection, and reports whether the connection had the stream.
func (so *streamOwners) leave(topic string, o *streamOwner, id uint64) (ours bool) {
	o.mu.Lock()
	if ours = o.conn == id; ours {
		o.conn, o.floor = 0, max(o.floor, id+1) // messages of an older one are out of date
	}
	o.mu.Unlock()
	so.mu.Lock()
	defer so.mu.Unlock()
	if o.refs--; o.refs > 0 {
		return ours
	}
	delete(so.open, topic)
	if o.trust != (trust{}) { // o has no other connection
		so.remember(topic, o.trust)
	}
	return ours
}

// remember keeps the trust of a stream for its next connection.
func (so *streamOwners) remember(topic string, t trust) {
	if len(so.young) == rememberedTrusts {
		so.young, so.old = nil, so.young
	}
	if so.young == nil {
		so.young = make(map[string]trust)
	}
	so.young[topic] = t
}

// claim gives the stream to a connection, unless a newer one has it, and reports whether the
// connection has it. The caller holds o.mu.
func (o *streamOwner) claim(id uint64) (ours bool) {
	if id < o.conn {
		return false
	}
	o.conn = id
	return true
}
