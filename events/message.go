package events

// Message is a message of a stream, as a transport gives it to a Sink.
type Message struct {
	Pod   string
	Model string
	// Stream names the stream of Pod and Model that Seq counts.
	Stream string
	Seq    uint64
	// Payload is the batch as the engine published it. The rank is in it.
	Payload []byte
	// Err, if not nil, is the reason why the transport could not read the message. The message
	// then has no Payload and counts as malformed; Err should wrap ErrMalformed. If the number
	// could not be read either, Seq is math.MaxUint64.
	Err error
	// Hold is set by a transport that can request a replay; all others leave it
	// false. If there is or may be a gap before the message, or the engine has or may have
	// restarted, the sink does not apply a message with Hold. The Receipt then has Held, and
	// the missing numbers in Gap. The transport requests a replay, gives the answer to the sink,
	// and then this message again: without Hold if the engine did not answer.
	Hold bool
	// Replayed is set by a transport for messages of a replay. Numbers that a replay leaves
	// out are lost for good.
	Replayed bool
}

// Gap is a range of sequence numbers that did not come. The zero Gap is no gap.
type Gap struct {
	From, To uint64 // both inclusive
	Lost     bool   // there is a gap
}

// Receipt is a sink's result for a Message.
type Receipt struct {
	// Applied: the sink has applied the message. If there is no error, and Applied, Duplicate
	// and Held are false, another stream has the rank of the message. A Subscriber reports
	// that to OnError.
	Applied   bool
	Duplicate bool
	// Held: the message has Hold and was not applied, for one of four reasons. Gap is set:
	// messages before it are missing. Restarted is set: the engine seems to have restarted. Or
	// its number is lower than the one that is due, and the payload of that number is not
	// remembered. Or the sink went on from a stored cursor, and the engine may be in another
	// life; a replay that brings the message before the cursor again shows that it is not.
	Held      bool
	Gap       Gap
	Restarted bool // the engine has restarted. If Held is false, the blocks of its ranks were forgotten
	// NoRoom: the sink has no room for the message, and returns an error too. The message
	// counts as lost: do not bring it again.
	NoRoom bool
	// Unrecognized, if not nil, names parts of the message that are not known. The rest of it
	// was applied.
	Unrecognized error
}

// Position is the position of a stream. Only authors of transports and sinks need it.
type Position struct {
	Next uint64 // the number that is due; 0: no message of the engine's present life was received
	// Partial: messages of the engine's present life are missing. A replay from number 0
	// brings them, if the engine still has them.
	Partial bool
}

// Note is a report of a transport about a stream, beside its messages. Only authors of
// transports and sinks need it.
type Note uint8

// The notes.
const (
	// NoteOpened: the transport follows the stream from now on. The stream is silent until its
	// first message.
	NoteOpened Note = iota + 1
	// NoteConnected: the stream is connected.
	NoteConnected
	// NoteLost: the connection of the stream is lost. Until NoteCurrent or a newer message
	// comes, the view of the stream may be out of date.
	NoteLost
	// NoteHeld: messages of the stream wait, or older messages are being applied.
	NoteHeld
	// NoteCurrent: the sink has all messages that the engine has published. Nothing waits.
	NoteCurrent
	// NoteReleased: nothing waits any more, but some missing messages did not come.
	NoteReleased
	// NoteNoReplay: the replay socket does not answer, and no message waits for it. The
	// transport tries it again.
	NoteNoReplay
	// NoteReplay: the replay socket has answered.
	NoteReplay
	// NoteClosed: the transport no longer follows the stream.
	NoteClosed
	// NoteRestarted: the engine of the stream has restarted, or does not have the message that
	// was applied last. Its blocks are forgotten, and any number may come next.
	NoteRestarted
	// NoteRewound: all messages of the engine's present life will come, from number 0 on,
	// because some are missing. Those that were applied are forgotten.
	NoteRewound
	// NoteTiers: the stream is not the engine's. It reports lower tiers alone, such as that of
	// an offload daemon. It comes before all other notes and messages of the stream.
	NoteTiers
)

// Sink receives the messages of transports. That of an Indexer is Indexer.Sink, and a Pool has
// one too. All methods must be safe for concurrent use.
type Sink interface {
	// IngestMessage takes one message. It keeps nothing of the payload.
	IngestMessage(Message) (Receipt, error)
	// StreamNext returns the position of a stream. An unknown stream is at its beginning.
	StreamNext(pod, model, stream string) Position
	// StreamNote reports a note about a stream. NoteOpened and NoteTiers register a stream.
	// All other notes are about a registered stream. After an error of NoteRestarted or NoteRewound
	// the sink may still hold blocks that it should have forgotten; a transport ignores other
	// errors.
	StreamNote(pod, model, stream string, n Note) error
	// RemovePod forgets a pod and all its blocks. An unknown pod is no error.
	RemovePod(pod string) error
	// RemoveStream forgets a stream that no transport follows any more, with the blocks of the
	// ranks that it fed. An unknown stream is no error.
	RemoveStream(pod, model, stream string) error
}
