package events

import "sync"

// This file tells which connection has a stream that several connections to a
// listening Subscriber bring.

// rememberedDoubts is how many doubted streams without a connection are
// remembered, at least, and half of the most.
const rememberedDoubts = 10_000

// streamOwners has the owner of each stream that a connection brings, by topic. Of
// the other streams it remembers those that are doubted, for the next connection
// that brings one. Its zero value has none.
type streamOwners struct {
	mu   sync.Mutex // guards what follows, and the refs of owners
	open map[string]*streamOwner
	// Doubted streams without a connection, in two generations: when the younger
	// one is full, the older one is forgotten.
	young, old map[string]struct{}
}

// streamOwner says which connection has a stream: the newest of those that bring
// it, for an older one is what a dead engine left. They share it.
type streamOwner struct {
	refs int // connections that bring the stream; guarded by streamOwners.mu

	mu      sync.Mutex // held while a message of the stream is delivered
	conn    uint64     // id of the connection that has the stream; 0 is none
	doubted bool       // stream.doubted, whichever connection has it
	floor   uint64     // connections with an id below it may be to an engine that is no more
}

// join returns the owner of a stream for one more connection that brings it.
func (so *streamOwners) join(topic string) *streamOwner {
	so.mu.Lock()
	defer so.mu.Unlock()
	o := so.open[topic]
	if o == nil {
		_, young := so.young[topic]
		_, old := so.old[topic]
		delete(so.young, topic)
		delete(so.old, topic)
		o = &streamOwner{doubted: young || old}
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
		o.conn = 0
	}
	o.mu.Unlock()
	so.mu.Lock()
	defer so.mu.Unlock()
	if o.refs--; o.refs > 0 {
		return ours
	}
	delete(so.open, topic)
	if o.doubted { // o is nobody else's any more
		so.remember(topic)
	}
	return ours
}

// remember keeps a doubted stream for when it comes again.
func (so *streamOwners) remember(topic string) {
	if len(so.young) == rememberedDoubts {
		so.young, so.old = nil, so.young
	}
	if so.young == nil {
		so.young = make(map[string]struct{})
	}
	so.young[topic] = struct{}{}
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
