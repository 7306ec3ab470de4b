package events

import (
	"sync"
	"time"
)

// This file tells which connection has a stream that several connections bring, and
// what is known of the replay socket behind the stream, whichever connection has it.

// trust is what a stream has seen of its replay socket. The zero value is that of
// one that was never asked.
type trust struct {
	// serves: it answers, so that messages wait for what it sends.
	serves bool
	// mute: the last time it answered a probe, and nothing else.
	mute bool
	// doubted: a message was not delivered because the engine that replays does
	// not have it.
	doubted bool
	// strikes counts the connections, one after the other, whose own message it
	// had with other bytes, or not at all. At maxStrikes it is another engine's.
	strikes int
	// relapses counts the strikes of a socket that was believed, and struck is when the last
	// one was.
	relapses int
	struck   time.Time
	// untested: it has brought messages, and nothing has shown since that it is of
	// the engine behind the connection.
	untested bool
	// anew counts the answers in a row that did not have what was applied last, though it
	// came from there.
	anew int
	// joint is the number that was due when the first connection began of which it has not
	// shown yet whether its engine has what was applied before; 0: there is none.
	joint uint64
	// short: it no longer has the beginning of the engine's present life.
	short bool
	// From passed up to passedEnd are the numbers of the last messages in a row that the sink
	// has refused, and that were passed over.
	passed, passedEnd uint64
}

const (
	// maxStrikes is 2, for the first one may be of an engine that restarted meanwhile.
	maxStrikes = 2
	// maxRelapses is the same for a socket that was believed in between, within the time of
	// grudge.
	maxRelapses = 4
	grudge      = 10 * time.Minute
)

// holds reports whether messages wait for what the socket sends: it answers, and
// nothing speaks against it.
func (t *trust) holds() bool { return t.serves && t.strikes == 0 }

// rememberedTrusts is how many streams without a connection are remembered, at
// least, and half of the most.
const rememberedTrusts = 10_000

// streamOwners has the owner of each stream that a connection brings, by topic. Of
// the other streams it remembers what is known of their replay sockets, for the
// next connection that brings one. Its zero value has none.
type streamOwners struct {
	mu   sync.Mutex // guards what follows, and the refs of owners
	open map[string]*streamOwner
	// Streams without a connection, in two generations: when the younger one is
	// full, the older one is forgotten.
	young, old map[string]trust
}

// streamOwner says which connection has a stream: the newest of those that bring
// it, for an older one is what a dead engine left. When the newest is lost, the
// older ones are ended too: an engine that lives comes back by itself. They share it.
type streamOwner struct {
	refs int // connections that bring the stream; guarded by streamOwners.mu

	mu      sync.Mutex // held while messages of the stream are delivered
	conn    uint64     // id of the connection that has the stream; 0 is none
	floor   uint64     // connections with an id below it may be to an engine that is no more
	trust   trust
	useless repeatFilter // of a replay socket that is of no use
	topic   []byte       // that was taken last, by a Subscriber that connects; nil is none
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

// leave ends what join began for a connection, and reports whether the connection
// had the stream.
func (so *streamOwners) leave(topic string, o *streamOwner, id uint64) (ours bool) {
	o.mu.Lock()
	if ours = o.conn == id; ours {
		o.conn, o.floor = 0, max(o.floor, id+1) // what an older one has left is old
	}
	o.mu.Unlock()
	so.mu.Lock()
	defer so.mu.Unlock()
	if o.refs--; o.refs > 0 {
		return ours
	}
	delete(so.open, topic)
	if o.trust != (trust{}) { // o is nobody else's any more
		so.remember(topic, o.trust)
	}
	return ours
}

// remember keeps what is known of a stream for when it comes again.
func (so *streamOwners) remember(topic string, t trust) {
	if len(so.young) == rememberedTrusts {
		so.young, so.old = nil, so.young
	}
	if so.young == nil {
		so.young = make(map[string]trust)
	}
	so.young[topic] = t
}

// claim gives the stream to a connection, unless a newer one has it, and reports
// whether the connection has it. The caller holds o.mu.
func (o *streamOwner) claim(id uint64) (ours bool) {
	if id < o.conn {
		return false
	}
	o.conn = id
	return true
}
