// Snapshots: what an Indexer knows, written down while it goes on.
//
// The index writes its blocks in its own way. For each pod it calls back at one moment
// between two messages (cut): what it holds of the pod then, and what is written here,
// fit together by the number of the last message. So after Restore the Sequencers say
// what the messages are that follow, as if nothing had happened in between.
//
// But messages may have been lost in between, and engines may have restarted. So each
// stream is interrupted, as one whose connection was lost, and its Sequencer was away.
// Beyond what ends that for a lost connection, so does the last message that was
// applied, if it comes again: what comes behind it is what is due.
//
// Copies are counted, so a state that is off by one message would be wrong for ever. That is
// why the index and the Sequencers of a pod are cut while pod.order keeps its messages away.
// After the cut nobody waits for the writer.
//
// Behind a Restore the number that is due is doubtful: an engine that can be asked is asked
// for the message before it. If that number comes with a time before that of the last message,
// it is taken for a repeat, and the next one is a gap.

package kvindex

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/sections"
)

// The kinds of sections of a snapshot.
const (
	sectionHead  sections.Kind = iota + 1 // the first one: the seed
	sectionIndex                          // of the index
	sectionPod                            // of what appendPod writes: a byte that is 1 if the next section goes on, then a part
)

var errNoSnapshot = errors.New("kvindex: the index takes no snapshots")

// Snapshot writes to w all that x needs to go on: what each pod holds, the states, and
// where each stream stands. Restore reads it. For each pod all is of one moment between
// two of its messages; pods may be of different moments.
//
// Nothing stops meanwhile, and no lock is held while w is written to, so w may be slow. A
// second Snapshot waits until the first one has ended. Snapshot ends when ctx ends, or at
// Close, as soon as w takes no time. An error of w is returned as it is, and one of ctx
// likewise. An index of WithIndex that is none of index.NewMemory is an error.
//
// A snapshot is as secret as the seed (WithKeySeed), because the seed is in it. Models,
// tokenizers, Profiles and Hooks are not in it, nor is what is predicted, or believed of
// pods without events, or what other processes have told of pods that they feed.
func (x *Indexer) Snapshot(ctx context.Context, w io.Writer) error {
	from, ok := x.index.(inmemory.Snapshotter)
	if !ok {
		return errNoSnapshot
	}
	select {
	case x.snapshot <- struct{}{}:
		defer func() { <-x.snapshot }()
	case <-ctx.Done():
	}
	s := &snapshot{x: x, ctx: ctx}
	if err := s.ended(); err != nil {
		return err
	}
	if s.out, s.err = sections.NewWriter(w); s.err != nil {
		return s.err
	}
	seed := x.index.Seed()
	err := s.write(sectionHead, seed[:])
	if err == nil {
		err = from.Snapshot(ctx, func(section []byte) error { return s.write(sectionIndex, section) }, s.cut)
	}
	if err == nil {
		err = s.ended()
	}
	switch {
	case s.err != nil:
		return s.err
	case err != nil:
		return x.reg.Failed(err)
	}
	return s.out.End()
}

// snapshot is one that is being written.
type snapshot struct {
	x   *Indexer
	ctx context.Context
	out *sections.Writer
	err error // why nothing can be written any more
}

// ended returns why the snapshot is to end.
func (s *snapshot) ended() error {
	if s.x.reg.Closed.Load() {
		return ErrClosed
	}
	return s.ctx.Err()
}

func (s *snapshot) write(k sections.Kind, payload []byte) error {
	if s.err == nil {
		s.err = s.ended()
	}
	if s.err == nil {
		s.err = s.out.Write(k, false, payload)
	}
	return s.err
}

// cut writes what is known of a pod at the moment of last.
func (s *snapshot) cut(name string, last func() error) error {
	b, err := s.x.reg.Cut([]byte{0}, name, last)
	for more := byte(1); err == nil && more == 1; {
		n := min(len(b), sections.Max)
		if n == len(b) {
			more = 0
		}
		b[0] = more
		err = s.write(sectionPod, b[:n])
		b = b[n-1:] // its first byte was written
	}
	return err
}

// Restore is New with what Snapshot has written. The error says what is wrong with the
// options, or with the snapshot and at which of its sections and bytes: then nothing of it
// is used. It reads r up to the end of the snapshot and no byte further.
//
// The Indexer has the seed of the snapshot. WithKeySeed with another one is an error, and
// so is WithIndex. If WithMemory gives less memory than the blocks need, those are left
// out that were not used for the longest time, and count as evicted.
//
// Each pod of the snapshot scores at once, in StateUncertain until its stream shows that it
// goes on where the snapshot ends: by the message that is due, by the last message that
// was applied when it comes again byte by byte, or by a replay that begins with it. What
// was lost since follows the option WithKeepOnLoss, and an engine that has restarted since is
// forgotten. Nobody can show this of a pod whose messages have no numbers (Ingest,
// ApplyBatch): its state ends when the engine empties its cache.
//
// Run Subscribers with the same endpoints as before, because they name the streams. Call
// RemovePod for pods that no longer exist (Pods has all of them). Counters begin at 0, and
// RankInfo.Lag is 0 until a message comes.
func Restore(ctx context.Context, r io.Reader, opts ...Option) (*Indexer, error) {
	c := configOf(opts)
	if c.index != nil {
		c.errs = append(c.errs, errors.New("WithIndex contradicts Restore: the index comes from the snapshot"))
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := restoring{ctx: ctx}
	err := s.begin(r, &c)
	if err == nil {
		s.x, err = c.open()
	}
	if err == nil {
		err = s.all()
	}
	if err != nil {
		if s.x != nil {
			_ = s.x.Close()
		}
		return nil, fmt.Errorf("kvindex: restoring: %w", err)
	}
	return s.x, nil
}

// restoring is a snapshot that is being read.
type restoring struct {
	x    *Indexer
	ctx  context.Context
	in   *sections.Reader
	err  error  // of in, once there was one
	pod  []byte // parts of it that were read
	more bool   // parts are to follow
}

// begin reads the head, which has the seed.
func (s *restoring) begin(r io.Reader, c *config) (err error) {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if s.in, err = sections.NewReader(r, sectionHead, sectionIndex, sectionPod); err != nil {
		return err
	}
	k, head, err := s.in.Next()
	var seed [16]byte
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the snapshot is empty")
	case err != nil:
		return err
	case k != sectionHead, len(head) != len(seed), [16]byte(head) == seed:
		return s.in.Wrong(errors.New("there is no seed"))
	}
	seed = [16]byte(head)
	if c.seed != nil && *c.seed != seed {
		return errors.New("WithKeySeed contradicts Restore: the snapshot has another seed")
	}
	c.seed = &seed
	return nil
}

// all reads all that is behind the head.
func (s *restoring) all() error {
	err := s.x.index.(inmemory.Snapshotter).Restore(s.ctx, s.next)
	if err == nil {
		if _, err = s.next(); err == nil {
			err = errors.New("the index has read too little")
		}
	}
	switch {
	case s.err != nil && !errors.Is(s.err, io.EOF):
		return s.err
	case s.ctx.Err() != nil:
		return s.ctx.Err()
	case !errors.Is(err, io.EOF):
		return s.in.Wrong(err)
	}
	return s.x.reg.Restored()
}

// next returns the next section of the index. What stands before it of pods is taken.
func (s *restoring) next() (payload []byte, err error) {
	for s.err == nil {
		var k sections.Kind
		k, payload, s.err = s.in.Next()
		switch {
		case s.err != nil && !s.more:
		case errors.Is(s.err, io.EOF), s.err == nil && s.more && k != sectionPod:
			s.err = errors.New("the rest of a pod is missing")
		case s.err != nil:
		case k == sectionIndex:
			if s.err = s.ctx.Err(); s.err == nil {
				return payload, nil
			}
		case k == sectionPod:
			s.err = s.part(payload)
		default:
			s.err = s.in.Wrong(errors.New("the seed comes again"))
		}
	}
	return nil, s.err
}

// part takes a part of a pod, and with the last one the pod.
func (s *restoring) part(payload []byte) error {
	if len(payload) == 0 || payload[0] > 1 {
		return s.in.Wrong(errors.New("a pod without a beginning"))
	}
	s.pod, s.more = append(s.pod, payload[1:]...), payload[0] == 1
	if s.more {
		return nil
	}
	f := sections.NewFields(s.pod)
	s.pod = s.pod[:0]
	s.x.reg.Restore(f)
	if err := f.End(); err != nil {
		return s.in.Wrong(err)
	}
	return nil
}
