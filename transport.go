package kvindex

import "github.com/kvindex/kvindex/events"

// RemovePod forgets a pod: its blocks, streams and states. End the Subscribers of the
// pod before, because the next message makes the pod known again, in StatePartial. A
// pod that is not known is no error. A pod that another process feeds (WithIndex) loses its
// blocks there too, and is known again as soon as that process writes of it.
func (x *Indexer) RemovePod(name string) error { return x.reg.RemovePod(name) }

// ApplyBatch is Ingest for a batch that is already decoded. A batch that no payload can
// have is an error that wraps ErrMalformed. ApplyBatch keeps nothing of b.
func (x *Indexer) ApplyBatch(podID, model string, b *events.Batch) error {
	return x.reg.ApplyBatch(podID, model, b)
}

// IngestMessage applies one message of a stream, with its sequence number. A Subscriber
// calls it. It drops messages that have come before, however late they come again. It
// notices missing messages and restarts of the engine:
//
//   - After a restart, what the ranks of the stream held is forgotten.
//   - After a loss it is forgotten too, unless WithKeepOnLoss keeps it.
//   - If the messages of a rank come over another stream than before, what the rank
//     held is forgotten. If messages of the old stream go on to come, they are not
//     applied to the rank, and count in stats.Traffic.Contested.
//
// The Receipt says what was done. A malformed message is an error that wraps
// ErrMalformed, and counts as a loss: do not bring it again. A message for a rank that
// the index has no room for is an error that wraps ErrFull, and is lost for that rank
// alone: do not bring it again either. After any other error the message may be brought
// again. Until it is applied, or the next one, the rank is StateUncertain at best.
func (x *Indexer) IngestMessage(m Message) (Receipt, error) { return x.reg.IngestMessage(m) }

// MarkLost reports a loss that the caller knows of. What the rank of the pod holds, for
// all models, is forgotten, or kept as WithKeepOnLoss says. Indexer.Pods has the ranks.
// A rank that is not known is an error.
func (x *Indexer) MarkLost(podID string, rank int) error { return x.reg.MarkLost(podID, rank) }

// Sink returns what an [events.Subscriber], an [events.Fleet] or a transport of your own
// gives what it brings to. Its IngestMessage and RemovePod are those of x. A host without
// a transport of its own calls no method of it.
//
// StreamNote of NoteOpened makes the pod and the stream known, in StateSilent. If there is
// no room for them (65,536 pods and the like), or the Profile of the pod is refused, it does
// nothing, and the first message gets the error. Any other note about a stream that is not
// known does nothing.
//
// NoteRestarted has the ranks of the stream hold nothing. If the next message is the first
// one of the engine, or if NoteCurrent comes before any message, their views are complete.
// Else they are partial. The state is StateUnknown until the next message; but if the
// connection is lost, or if messages wait, it stays what it is until that ends. NoteRewound
// is the same until the messages have come again, and neither a restart nor a loss.
//
// RemoveStream is for a pod that has fewer ranks than before: its other streams go on. Ranks
// that another stream feeds by now stay. If the stream was the last one of the pod for the
// model, and no other ranks are left, the pod is not known for the model any more. The
// stream "" is the one of Messages without a Stream, and also feeds the ranks of Ingest and
// ApplyBatch. End the transport of the stream before, because the next message makes the
// stream known again. Then it begins anew, and nothing of before returns. But if a backend
// (WithIndex) is no index.SourceRemover, it still has the engine's names of blocks that are
// gone. After an error call RemoveStream again: some ranks of the stream may hold nothing
// any more, and are partial.
//
// StreamView costs no memory, and less than Pods. Its Blocks is 0 if the index cannot tell.
func (x *Indexer) Sink() events.Sink { return x.reg }
