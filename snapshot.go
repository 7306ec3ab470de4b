// Snapshots: the state of an Indexer, written while the Indexer runs.
//
// The index writes its blocks in its own format. For each pod it calls back at one moment
// between two messages (cut). The blocks of the pod in the index at that moment, and the state
// that is written here, fit together by the number of the last message. So after Restore the
// Sequencers judge the next messages as if nothing had happened in between.
//
// But messages may have been lost in between, and engines may have restarted. So each
// stream is interrupted, like a stream whose connection was lost, and its Sequencer was away.
// The interruption ends as for a lost connection. It also ends if the last message that was
// applied comes again: then the next message is the one that is due.
//
// Copies are counted, so a state that is off by one message would be wrong for ever. That is
// why the index and the Sequencers of a pod are cut while registry.pod.order keeps its
// messages away. After the cut no message waits for the writer.
//
// After a Restore the number that is due is doubtful: if the engine has a replay socket, the
// message before that number is requested. If that number comes with a time before that of the
// last message, it is taken for a repeat, and the next one is a gap.

package kvindex

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/sections"
)

// The kinds of sections of a snapshot.
const (
	sectionHead  sections.Kind = iota + 1 // the first one: the seed
	sectionIndex                          // written by the index
	sectionPod                            // a part of a pod: a byte that is 1 if the next section continues it, then bytes of Registry.Cut
)

var errNoSnapshot = errors.New("kvindex: the index does not support snapshots")

// Snapshot writes to w the state that Restore needs: the blocks of each pod, the states, and
// the positions of the streams. The state of each pod is that of one moment between two of
// its messages; pods may be of different moments.
//
// The Indexer works on meanwhile, and no lock is held during a write to w, so w may be slow.
// A second Snapshot waits until the first one has ended. Snapshot ends when ctx ends, or at
// Close, as soon as a write to w returns. Errors of w and ctx are returned as they are. An
// index of WithIndex that does not come from index.NewMemory is an error.
//
// A snapshot is as secret as the seed (WithKeySeed), because the seed is in it. It does not
// contain Models, tokenizers, Profiles, Hooks, predictions, estimates of pods without events,
// or notes of other processes about pods that they feed.
func (x *Indexer) Snapshot(ctx context.Context, w io.Writer) error {
	if err := x.oneSnapshot(ctx); err != nil {
		return err
	}
	defer func() { <-x.snapshot }()
	return x.writeSnapshot(ctx, w)
}

// oneSnapshot waits until no other snapshot is being written.
func (x *Indexer) oneSnapshot(ctx context.Context) error {
	select {
	case x.snapshot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (x *Indexer) writeSnapshot(ctx context.Context, w io.Writer) error {
	from, ok := x.index.(inmemory.Snapshotter)
	if !ok {
		return errNoSnapshot
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

// SaveFile writes a Snapshot to the file path, which only the owner may read. It writes to a
// temporary name beside path (path + ".unfinished"), syncs, and renames. So path is always a
// whole snapshot, the new one or the one before, also if the process or the machine stops
// meanwhile. No other process, and no other Indexer, may save to the same path.
func (x *Indexer) SaveFile(ctx context.Context, path string) error {
	if err := x.oneSnapshot(ctx); err != nil {
		return err
	}
	defer func() { <-x.snapshot }()
	unfinished := path + ".unfinished"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be a link, or be readable by others
		return err
	}
	f, err := os.OpenFile(unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = x.writeSnapshot(ctx, w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	if runtime.GOOS == "windows" { // directories cannot be synced there
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// LoadFile is Restore from a file that SaveFile has written. If there is no such file, it is
// New. A file that cannot be used is an error: a host that would rather go on without it
// calls New then.
func LoadFile(ctx context.Context, path string, opts ...Option) (*Indexer, error) {
	if configOf(opts).index != nil {
		return nil, errors.New("kvindex: WithIndex contradicts LoadFile: the index comes from the snapshot")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return New(opts...)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	x, err := Restore(ctx, bufio.NewReaderSize(f, 1<<20), opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: file %s", err, path)
	}
	return x, nil
}

// snapshot is a snapshot that is being written.
type snapshot struct {
	x   *Indexer
	ctx context.Context
	out *sections.Writer
	err error // the first error; nothing is written after it
}

// ended returns an error if the snapshot must end.
func (s *snapshot) ended() error {
	if s.x.reg.Closed() {
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

// cut writes the state of a pod at the moment of last.
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

// Restore is New with the state that Snapshot has written. The error names what is wrong with
// the options, or with the snapshot and at which of its sections and bytes; then nothing of
// the snapshot is used. Restore reads r up to the end of the snapshot and no byte further.
//
// The Indexer has the seed of the snapshot. WithKeySeed with another seed is an error, and
// so is WithIndex. If WithMemory gives less memory than the blocks need, the blocks that were
// not used for the longest time are left out, and count as evicted.
//
// Each pod of the snapshot scores at once, in StateUncertain until its stream shows that it
// continues where the snapshot ends: by the message that is due, by the last applied message
// when it comes again byte by byte, or by a replay that begins with it. A loss since then
// follows the option WithKeepOnLoss, and an engine that has restarted since then is forgotten.
// A pod whose messages have no numbers (Ingest, ApplyBatch) cannot show this: its state ends
// when the engine empties its cache.
//
// Run Subscribers with the same endpoints as before, because the endpoints name the streams.
// Call RemovePod for pods that no longer exist (Pods has all of them). Counters begin at 0,
// and RankInfo.Lag is 0 until a message comes.
func Restore(ctx context.Context, r io.Reader, opts ...Option) (*Indexer, error) {
	c := configOf(opts)
	if c.index != nil {
		c.errs = append(c.errs, errors.New("WithIndex and Restore exclude each other: the index comes from the snapshot"))
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := snapshotReader{ctx: ctx}
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

// snapshotReader is a snapshot that is being read.
type snapshotReader struct {
	x    *Indexer
	ctx  context.Context
	in   *sections.Reader
	err  error  // the first error of in
	pod  []byte // the parts of a pod read so far
	more bool   // more parts of the pod follow
}

// begin reads the head, which has the seed.
func (s *snapshotReader) begin(r io.Reader, c *config) (err error) {
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
		return s.in.Wrong(errors.New("the seed is missing"))
	}
	seed = [16]byte(head)
	if c.seed != nil && *c.seed != seed {
		return errors.New("WithKeySeed: the snapshot has another seed")
	}
	c.seed = &seed
	return nil
}

// all reads everything after the head.
func (s *snapshotReader) all() error {
	err := s.x.index.(inmemory.Snapshotter).Restore(s.ctx, s.next)
	if err == nil {
		if _, err = s.next(); err == nil {
			err = errors.New("the index has not read its whole part")
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

// next returns the next section of the index, and restores the pods before it.
func (s *snapshotReader) next() (payload []byte, err error) {
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
			s.err = s.in.Wrong(errors.New("the seed is repeated"))
		}
	}
	return nil, s.err
}

// part adds a part of a pod, and restores the pod after its last part.
func (s *snapshotReader) part(payload []byte) error {
	if len(payload) == 0 || payload[0] > 1 {
		return s.in.Wrong(errors.New("the beginning of a pod is missing"))
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
