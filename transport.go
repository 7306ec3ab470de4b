package kvindex

import "github.com/kvindex/kvindex/events"

// RemovePod forgets a pod: its blocks, streams and states. End the Subscribers of the
// pod before, because the next message registers the pod again, in StatePartial. A
// pod that is not registered is no error. A pod that another process feeds (WithIndex) loses
// its blocks there too, and is registered again as soon as that process writes about it.
func (x *Indexer) RemovePod(name string) error { return x.reg.RemovePod(name) }

// ApplyBatch is Ingest for a batch that is already decoded. A batch that no payload can
// contain is an error that wraps ErrMalformed. ApplyBatch keeps nothing of b.
func (x *Indexer) ApplyBatch(podID, model string, b *events.Batch) error {
	return x.reg.ApplyBatch(podID, model, b)
}

// IngestMessage applies one message of a stream, with its sequence number. A Subscriber
// calls it. It drops messages that have come before, however late they come again. It
// detects missing messages and restarts of the engine:
//
//   - After a restart, the blocks of the ranks of the stream are forgotten.
//   - After a loss they are forgotten too, unless WithKeepOnLoss keeps them.
//   - A stream that reports lower tiers alone (events.NoteTiers) loses only these.
//   - If the messages of a rank come over another stream than before, the blocks of the
//     rank are forgotten. If more messages of the old stream come, they are not applied to
//     the rank, and count in stats.Traffic.Contested.
//
// The Receipt reports the outcome. A malformed message is an error that wraps
// ErrMalformed, and counts as a loss: do not bring it again. A message for a rank that
// the index has no room for is an error that wraps ErrFull, and is lost for that rank
// alone: do not bring it again either. After any other error the message may be brought
// again. Until it or the next message is applied, the rank is StateUncertain at best.
func (x *Indexer) IngestMessage(m Message) (Receipt, error) { return x.reg.IngestMessage(m) }

// MarkLost reports a loss that the caller has noticed. The blocks of the rank, for all
// models, are forgotten, or kept with WithKeepOnLoss. Indexer.Pods has the ranks. A rank that
// is not registered is an error. After an error of a backend (WithIndex) call MarkLost again:
// until then, or until a message is applied, the rank is StateUncertain at best.
func (x *Indexer) MarkLost(podID string, rank int) error { return x.reg.MarkLost(podID, rank) }

// Sink returns the sink of x for an [events.Subscriber], an [events.Fleet] or your own
// transport. Its IngestMessage and RemovePod are those of x. A host without its own transport
// calls no method of it.
//
// StreamNote of NoteOpened or NoteTiers registers the pod and the stream, in StateSilent. If there is
// no room for them (65,536 pods and the like), or the Profile of the pod is refused, it does
// nothing, and the first message gets the error. Any other note about a stream that is not
// registered does nothing.
//
// NoteRestarted forgets the blocks of the ranks of the stream. If the next message is the
// first message of the engine, or if NoteCurrent comes before any message, the views of the
// ranks are complete. Else they are partial. The state is StateUnknown until the next
// message; but if the connection is lost, or if messages wait, the state does not change
// until that ends. NoteRewound does the same until the messages have come again, and is
// neither a restart nor a loss. After an error of either, a rank whose blocks could not be
// forgotten is StateUncertain.
//
// RemoveStream is for a pod that has fewer ranks than before: its other streams continue.
// Ranks that another stream feeds by now stay. If the stream was the last one of the pod for
// the model, and no other ranks are left, the pod is no longer registered for the model. The
// stream "" is the one of Messages without a Stream, and also feeds the ranks of Ingest and
// ApplyBatch. End the transport of the stream before, because the next message registers the
// stream again. Then the stream starts from nothing. But if a backend (WithIndex) is no
// index.SourceRemover, it still has the engine's hashes of removed blocks. After an error
// call RemoveStream again: some ranks of the stream may have lost their blocks already, and
// are partial.
func (x *Indexer) Sink() events.Sink { return x.reg }
