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
	// Hold asks for a message behind a gap, of an engine that seems to have
	// restarted, or of which one or the other may be so, to be held back, because
	// whoever offers it can ask the engine: the Receipt is Held, and its Gap says
	// what is missing before it.
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
	// Gap before it, or Restarted; or neither, if the message goes back and its
	// payload is not remembered, or nobody has confirmed that the engine is still
	// the one of the stored cursor. The last message that was applied, sent by the
	// engine again, says that it is.
	Held      bool
	Gap       Gap
	Restarted bool // the engine had restarted: all that its ranks held was dropped
}

// Sink takes the messages of a transport.
type Sink interface {
	// IngestMessage takes one message. It keeps nothing of the payload.
	IngestMessage(Message) (Receipt, error)
}

// Position is where a stream stands.
type Position struct {
	Next  uint64 // the number that is due
	Heard bool   // something was heard of the engine behind it since that started
	// Partial: messages of the engine's present life were missed. A replay from
	// number 0 on would bring them, if the engine still has them.
	Partial bool
}

// Note is what a transport tells of a stream beside its messages.
type Note uint8

// The notes.
const (
	// NoteOpened: a transport begins to bring the stream. Until its first message
	// it is silent.
	NoteOpened Note = iota + 1
	// NoteConnected: the connection of the stream stands.
	NoteConnected
	// NoteLost: the connection of the stream is lost. Until NoteCurrent or a
	// message that is newer nobody knows whether what was said still holds.
	NoteLost
	// NoteHeld: messages of the stream wait, or older ones are caught up with.
	NoteHeld
	// NoteCurrent: all that the engine has published was offered, and nothing waits.
	NoteCurrent
	// NoteReleased: nothing waits any more, but not all that was missed has come.
	NoteReleased
	// NoteNoReplay: the replay socket does not answer, so that no message waits
	// for it. It is tried again.
	NoteNoReplay
	// NoteReplay: the replay socket has answered.
	NoteReplay
	// NoteClosed: the transport brings the stream no more.
	NoteClosed
)

// ReplaySink is a Sink for who knows more of a stream than its messages say:
// transports that lose connections, or can have an engine send again what was
// missed, and a Pool.
type ReplaySink interface {
	Sink
	// StreamNext returns where a stream stands. One never heard of stands at its
	// beginning.
	StreamNext(pod, model, stream string) Position
	// StreamNote tells what became of a stream beside its messages. NoteOpened
	// makes a stream known; all others are about one that is.
	StreamNote(pod, model, stream string, n Note)
	// StreamRestarted tells that the engine behind a stream has restarted, or
	// does not remember what was applied: what it held before is forgotten, and
	// its next message is the first that is heard of it.
	StreamRestarted(pod, model, stream string) error
	// StreamRewound tells that the engine's whole present life comes again, from
	// message 0 on, because a part of it was missed: what was applied of it is
	// forgotten.
	StreamRewound(pod, model, stream string) error
}
