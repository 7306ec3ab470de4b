// A file that was written in place counts when two readings, 200 ms apart, find it the same:
// the same file, size, time of writing and SHA-256. It is read each second as a whole, because
// two writes within one tick of the file system's clock leave the same time. A file that never
// rests would never count, so after 1 s a complete list is enough. A file that replaces
// another counts at the first reading that finds a complete list, however slow its writer is
// and however often the file is replaced. So does a file that is emptied and then written from
// its beginning on, because the first part of a JSON array is never a JSON array, and an empty
// file is no list. A file that is overwritten without being emptied can be a list of two
// halves. No reader can distinguish the pause of its writer from the end. Text behind the array is an
// error, because a shorter list leaves such text of a longer one.

package discovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvindex/kvindex/events"
)

// maxFileSize bounds a file, in bytes.
const maxFileSize = 16 << 20

const (
	// fileInterval is the time between two readings of a file.
	fileInterval = time.Second
	// A file is read again after this time when it has changed, and its list counts if nobody
	// wrote to it in between. It is longer than the resolution of a file system's times.
	settleTime = 200 * time.Millisecond
	// patience is how long a file may be written to in place without such a pause before a
	// complete list counts.
	patience = time.Second
	// restlessTime is how long a file may have no complete list before that is reported.
	restlessTime = 10 * time.Second
)

// File returns a source of the pods in a file. The file is a JSON array of objects, whose keys
// are those of events.Pod:
//
//	[
//	  {"id": "vllm-0", "model": "llama", "host": "10.0.0.7", "port": 5557, "ranks": 2},
//	  {"id": "vllm-1", "model": "llama", "host": "vllm-1.example.com", "labels": {"zone": "a"}}
//	]
//
// It has at most 16 MiB and 65,536 pods. An unknown key is an error, and so is a key that
// comes twice. A pod that the Fleet refuses does not hold up the others, and is offered again
// at each reading, because there may be room later.
//
// The file is read again each second, through all symbolic links. It may be replaced by a
// rename or by a swap of a link, as with a ConfigMap of Kubernetes: another file with a
// complete list is applied at the first reading that finds it. Or it may be written in place:
// it is applied when it was the same at two readings 200 ms apart. If it is written to for
// longer than 1 s without such a pause, the next reading that finds a complete list applies
// it. A file that is missing, cannot be read, is empty, is half written or has an error
// changes nothing: the known pods stay, and FleetConfig.OnError gets the reason. The list [] is a list:
// all pods are removed.
//
// A program that writes the file should write another file and rename that. Then no reading
// finds half a list, however slow the program is. If a program overwrites a list without
// emptying the file first, and pauses for 200 ms or takes longer than 1 s, a mixture of both
// lists may be applied.
func File(path string) events.PodSource {
	return events.PodSource{Name: "file:" + path, Run: func(ctx context.Context, set func([]events.Pod) error) error {
		return (&file{path: path, clock: realTime}).run(ctx, set)
	}}
}

// A file is the state of a Run of File.
type file struct {
	path  string
	clock clock
	while func(*os.File) io.Reader // of tests: called while it is read

	report func(error)

	last     fileState
	restless time.Time // when it was found changed; zero: it is at rest

	taken   [sha256.Size]byte // of the decoded content
	err     error             // its fault
	pods    []events.Pod      // of the newest content without an error, until they are set
	offer   bool              // pods are to be set
	failing trouble
}

func (f *file) run(ctx context.Context, set func([]events.Pod) error) error {
	f.report = reporter(ctx, f.report)
	for {
		if err := f.clock.wait(ctx, f.poll(set)); err != nil {
			return err
		}
	}
}

// poll reads the file once. It returns when to read it again.
func (f *file) poll(set func([]events.Pod) error) time.Duration {
	r, data := f.read()
	if !r.same(&f.last) {
		replaced, now := r.replaces(&f.last), f.clock.now()
		f.last = r
		if f.restless.IsZero() {
			f.restless = now
		}
		lasts := now.Sub(f.restless)
		if r.err == nil && (r.torn || !replaced && lasts < patience) {
			r.err = errWritten
		}
		if r.err == nil {
			r.err = f.take(r.sum, data)
		}
		if r.err != nil {
			if lasts >= restlessTime {
				f.fault("restless", fmt.Errorf("it was written to for %v without a pause of %v; its last content: %w", restlessTime, settleTime, r.err))
			}
			return settleTime
		}
	}
	f.restless = time.Time{}
	if r.err == nil {
		r.err = f.take(r.sum, data)
	}
	if r.err != nil {
		f.fault(r.err.Error(), r.err)
	} else {
		f.failing.end()
	}
	if f.offer {
		// The caller of set has reported the error. One pod may have had no room.
		f.offer = set(f.pods) != nil
	}
	return fileInterval
}

// take decodes new content, and returns its fault.
func (f *file) take(sum [sha256.Size]byte, data []byte) error {
	if sum == f.taken {
		return f.err
	}
	pods, err := decode(data)
	f.taken, f.err = sum, err
	if err == nil {
		f.pods, f.offer = pods, true
	}
	return err
}

func (f *file) fault(what string, err error) {
	if f.failing.due(what, f.clock.now()) {
		f.report(fmt.Errorf("discovery: file %q: %w; the known pods stay", f.path, err))
	}
}

var errWritten = errors.New("it is being written")

// A fileState is the state of the file at one time.
type fileState struct {
	err  error
	info os.FileInfo // nil: there was no file
	sum  [sha256.Size]byte
	torn bool // it was written to at this time
}

// same reports whether nothing was written between two readings.
func (r *fileState) same(o *fileState) bool {
	switch {
	case r.torn || o.torn:
		return false
	case r.err != nil || o.err != nil:
		return r.err != nil && o.err != nil && r.err.Error() == o.err.Error()
	}
	return o.info != nil && unwritten(r.info, o.info) && r.sum == o.sum
}

// replaces reports whether the file is another one than at the reading before, or the first.
func (r *fileState) replaces(o *fileState) bool {
	if o.info == nil {
		return o.err != nil
	}
	return r.info != nil && !os.SameFile(r.info, o.info)
}

func unwritten(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *file) read() (r fileState, data []byte) {
	// Opening a pipe could take for ever.
	r.info, r.err = os.Stat(f.path)
	if r.err == nil && !r.info.Mode().IsRegular() {
		r.err = fmt.Errorf("it is not a regular file: %v", r.info.Mode())
	}
	if r.err != nil {
		return r, nil
	}
	open, err := os.Open(f.path)
	if err != nil {
		r.err = err
		return r, nil
	}
	defer open.Close()
	if r.info, r.err = open.Stat(); r.err != nil {
		return r, nil
	}
	before := r.info
	var content io.Reader = open
	if f.while != nil {
		content = f.while(open)
	}
	data, r.err = io.ReadAll(io.LimitReader(content, maxFileSize+1))
	switch {
	case r.err != nil:
		return r, nil
	case len(data) > maxFileSize:
		r.err = fmt.Errorf("it has more than %d bytes", maxFileSize)
		return r, nil
	case len(data) == 0:
		r.err = errors.New("it has 0 bytes; a list without pods is []")
		return r, nil
	}
	r.info, r.err = open.Stat()
	if r.err != nil {
		return r, nil
	}
	r.sum, r.torn = sha256.Sum256(data), !unwritten(before, r.info)
	return r, data
}
