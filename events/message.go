package events

import "time"

// Message is one message that a transport brings.
type Message struct {
	Pod   string
	Model string
	// Stream names the stream of Pod and Model that Seq counts.
	Stream string
	Seq    uint64
	// Payload is the batch as the engine published it. The rank is in it.
	Payload []byte
	// Err, if not nil, says why the transport could not read the message: it has no Payload,
	// and is malformed; Err should wrap ErrMalformed. If its number could not be read either, Seq
	// is math.MaxUint64.
	Err error
	// Hold is set by a transport that can ask the engine for a replay; all others leave it
	// false. If there is or may be a gap before the message, or the engine has or may have
	// restarted, the sink does not apply a message with Hold. The Receipt has Held then,
	// and the missing numbers in Gap. The transport asks the engine, gives the sink what
	// the engine sends, and then this message again: without Hold if the engine did not
	// answer.
	Hold bool
	// Replayed is set by a transport for messages that a replay brought. Numbers that a
	// replay leaves out are lost for good.
	Replayed bool
}

// Gap is a range of sequence numbers that did not come. The zero Gap is no gap.
type Gap struct {
	From, To uint64 // both inclusive
	Lost     bool   // there is a gap
}

// Receipt says what a sink did with a Message.
type Receipt struct {
	// Applied: the sink has what the message says. If there is no error, and Applied,
	// Duplicate and Held are false, another stream has the rank of the message. A
	// Subscriber tells OnError of that.
	Applied   bool
	Duplicate bool
	// Held: the message has Hold and was not applied, for one of four reasons. Gap is set:
	// messages before it are missing. Restarted is set: the engine seems to have
	// restarted. Or its number is lower than the one that is due, and nobody remembers the
	// payload of that number. Or the sink went on from a stored cursor, and it is not
	// known that the engine is still in the same life; a replay that brings the message
	// before the cursor again shows that it is.
	Held      bool
	Gap       Gap
	Restarted bool // the engine has restarted. If Held is false, what its ranks held was forgotten
	// NoRoom: the sink has no room for what the message says, and returns an error too. The
	// message counts as lost: do not bring it again.
	NoRoom bool
	// Unrecognized is not nil if the message was applied but for something in it that is not
	// known, and says what.
	Unrecognized error
}

// Position is where a stream stands. Only authors of transports and sinks need it.
type Position struct {
	Next  uint64 // the number that is due
	Heard bool   // at least one message of the present life of the engine has come
	// Partial: messages of the engine's present life are missing. A replay from number 0
	// brings them, if the engine still has them.
	Partial bool
}

// Note is something that a transport reports of a stream and that is in no message.
// Only authors of transports and sinks need it.
type Note uint8

// The notes.
const (
	// NoteOpened: the transport follows the stream from now on. The stream is silent
	// until its first message.
	NoteOpened Note = iota + 1
	// NoteConnected: the connection of the stream stands.
	NoteConnected
	// NoteLost: the connection of the stream is lost. Until NoteCurrent or a newer message
	// comes, what is known of the stream may be out of date.
	NoteLost
	// NoteHeld: messages of the stream wait, or older messages are being applied.
	NoteHeld
	// NoteCurrent: the sink has got all that the engine has published. Nothing waits.
	NoteCurrent
	// NoteReleased: nothing waits any more, but some missing messages did not come.
	NoteReleased
	// NoteNoReplay: the replay socket does not answer, and no message waits for it. The
	// transport tries it again.
	NoteNoReplay
	// NoteReplay: the replay socket has answered.
	NoteReplay
	// NoteClosed: the transport does not follow the stream any more.
	NoteClosed
	// NoteRestarted: the engine of the stream has restarted, or does not have the message
	// that was applied last. What the engine held is forgotten, and any number may come
	// next.
	NoteRestarted
	// NoteRewound: all messages of the engine's present life will come, from number 0 on,
	// because some were missed. What was applied of them is forgotten.
	NoteRewound
)

// Sink takes what transports bring. The one of an Indexer is Indexer.Sink, and a Pool has
// one too. All methods must be safe for concurrent use.
type Sink interface {
	// IngestMessage takes one message. It keeps nothing of the payload.
	IngestMessage(Message) (Receipt, error)
	// StreamNext returns where a stream stands. A stream that is not known stands at its
	// beginning.
	StreamNext(pod, model, stream string) Position
	// StreamNote reports something about a stream that is in no message. NoteOpened makes a
	// stream known. All other notes are about a known stream. After an error of
	// NoteRestarted or NoteRewound the sink may hold what it was to forget; a transport
	// reports other errors to nobody.
	StreamNote(pod, model, stream string, n Note) error
	// StreamView returns what is known of a stream, and the zero StreamView if nothing is.
	StreamView(pod, model, stream string) StreamView
	// RemovePod forgets a pod and all that it held. A pod that is not known is no error.
	RemovePod(pod string) error
	// RemoveStream forgets a stream that no transport follows any more, with what the ranks
	// held that it fed. A stream that is not known is no error.
	RemoveStream(pod, model, stream string) error
}

// StreamView is what a sink knows of a stream and of the ranks that it feeds.
type StreamView struct {
	State   string        // the worst of its ranks, as the sink names it; "" is none
	Heard   time.Time     // when the last message came
	Lag     time.Duration // of the last message: from the engine to the sink
	Missing uint64        // messages that were lost
	Blocks  int           // that the ranks hold, in all tiers
}
