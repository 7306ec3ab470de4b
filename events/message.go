package events

// Message is one message of a transport.
type Message struct {
	Pod   string
	Model string
	// Stream names the stream of Pod and Model that Seq counts.
	Stream string
	Seq    uint64
	// Payload is the batch as the engine published it. The rank is in it.
	Payload []byte
	// Hold asks for a message behind a gap, or of an engine that seems to have
	// started anew, to be held back, because whoever offers it can ask the
	// engine: the Receipt is Held, and its Gap says what is missing before it.
	// The message is then to be offered again behind what came, without Hold if
	// the engine could not be asked. Only a transport that can ask sets Hold and
	// Replayed; all others leave both false.
	Hold bool
	// Replayed tells that the engine sent the message again on request, from
	// a number on that was asked for: the numbers that it passes over are lost
	// for good.
	Replayed bool
}

// Gap is a run of sequence numbers that never came. The zero Gap is none.
type Gap struct {
	From, To uint64 // both inclusive
	Lost     bool   // there is a gap
}

// Receipt says what became of a Message.
type Receipt struct {
	Applied   bool
	Duplicate bool
	// Held: nothing was done, because the message asked for it and there is
	// Gap before it, or Restarted.
	Held      bool
	Gap       Gap
	Restarted bool // the engine had started anew: all that its ranks held was dropped
}

// Sink takes the messages of a transport.
type Sink interface {
	// IngestMessage takes one message. It keeps nothing of the payload.
	IngestMessage(Message) (Receipt, error)
}

// ReplaySink is a Sink for who knows more of a stream than its messages say:
// transports that lose connections, or can have an engine send again what was
// missed, and a Pool.
type ReplaySink interface {
	Sink
	// StreamNext returns the number that is due on a stream, and whether
	// anything was heard of it since the engine behind it started.
	StreamNext(pod, model, stream string) (next uint64, heard bool)
	// StreamInterrupted tells that the connection of a stream is lost.
	StreamInterrupted(pod, model, stream string)
	// StreamRestarted tells that the engine behind a stream has started anew, or
	// does not remember what was applied: what it held before is forgotten, and
	// its next message is the first that is heard of it.
	StreamRestarted(pod, model, stream string) error
}
