// For transports only: these methods make the Indexer an [events.ReplaySink],
// together with Message.Hold, Message.Replayed and Receipt.Held: what a transport
// needs that loses connections, or that can ask an engine to send again what was
// missed. An [events.Subscriber] uses all of them. A host that has no transport of
// its own needs none of them.

package kvindex

import (
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
)

// StreamNext returns where a stream stands: the number that is due, and whether
// anything was heard of it since the engine behind it started. Only transports
// need it.
func (x *Indexer) StreamNext(podID, model, stream string) events.Position {
	p, pm := x.lockKnown(podID, model)
	if p == nil {
		return events.Position{}
	}
	defer p.mu.Unlock()
	st := pm.streams[streamName(stream)]
	if st == nil {
		return events.Position{}
	}
	next, heard := st.seq.Next()
	return events.Position{Next: next, Heard: heard, Partial: st.partial}
}

// StreamNote takes note of what a transport tells of a stream beside its messages.
// A stream never heard of is no error. Only transports need it.
func (x *Indexer) StreamNote(podID, model, stream string, n events.Note) {
	if x.closed.Load() {
		return
	}
	in := x.newIngest(podID, model)
	defer in.end()
	st := in.findStream(stream)
	if st == nil {
		return
	}
	defer in.leave()
	if n == events.NoteLost {
		st.interrupted, st.held = true, false // what was held is gone with the connection
	}
	in.settle()
}

// StreamRestarted says that the engine behind a stream has started anew, or no
// longer knows what was applied: what its ranks held is forgotten, and its next
// message is the first that is heard of it. A stream never heard of is no
// error. Only transports need it.
func (x *Indexer) StreamRestarted(podID, model, stream string) error {
	if err := x.check(podID, model); err != nil {
		return err
	}
	in := x.newIngest(podID, model)
	defer in.end()
	st := in.findStream(stream)
	if st == nil {
		return nil
	}
	defer in.leave()
	defer in.settle()
	anew := index.Cursor{Stream: st.name, Epoch: st.seq.Epoch() + 1}
	for _, r := range st.ranks {
		if err := in.lose(r, replaced, anew); err != nil {
			return err
		}
		in.losses = append(in.losses, Loss{Pod: podID, Model: model, Stream: st.name, Rank: r.n, Cause: LossRestart})
	}
	st.seq.Restart()
	st.partial, st.held, st.interrupted = false, false, false
	in.count(st, StreamStats{Restarts: 1})
	return nil
}

// findStream finds a stream that was heard and locks its pod, or returns nil.
func (in *ingest) findStream(name string) *stream {
	if !in.find() {
		return nil
	}
	st := in.pm.streams[streamName(name)]
	if st == nil {
		in.leave()
	}
	return st
}
