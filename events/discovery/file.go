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

// MaxFileSize is how many bytes a file may have.
const MaxFileSize = 16 << 20

// DefaultFileInterval is what FileConfig.Interval leaves zero.
const DefaultFileInterval = time.Second

const (
	// A file is read again after this time when it has changed, and what it says holds if
	// nobody wrote to it in between. It is longer than the time between two times that a
	// file system tells apart.
	settleTime = 200 * time.Millisecond
	// restlessTime is how long a file may be written to without such a pause until that
	// is told.
	restlessTime = 10 * time.Second
)

// FileConfig configures File. The zero FileConfig is good.
type FileConfig struct {
	// Interval is the time between two readings of the file. 0 or less is
	// DefaultFileInterval.
	Interval time.Duration
	// OnError gets why the file is not taken: at once, then again after times that double
	// up to one minute, while that lasts. It is called by the goroutine of Run. If it is nil,
	// FleetConfig.OnError gets it.
	OnError func(error)
}

// File returns the pods that a file names. It is a JSON array of objects, whose keys are
// those of events.Pod:
//
//	[
//	  {"id": "vllm-0", "model": "llama", "host": "10.0.0.7", "port": 5557, "ranks": 2},
//	  {"id": "vllm-1", "model": "llama", "host": "vllm-1.example.com", "labels": {"zone": "a"}}
//	]
//
// An unknown key is an error, and so is a key that comes twice. A pod that the Fleet
// refuses does not keep the others from being taken, and is offered again at each
// reading, for there may be room later.
//
// The file is read again at each interval, through all symbolic links, and holds when it
// was the same at two readings 200 ms apart. It may be replaced by a rename, by a swap of
// a link (as with a ConfigMap of Kubernetes), or be written in place. A file that is
// missing, cannot be read, is empty, is half written or has an error changes nothing: the
// pods that were known stay, and OnError gets the reason. The list [] is a list: all pods
// go.
//
// A program that writes the file should write another file and rename that. Then no
// reading finds half a list, however slow the program is.
func File(path string, cfg FileConfig) events.Source {
	return events.Source{Name: "file:" + path, Run: func(ctx context.Context, set func([]events.Pod) error) error {
		return (&file{path: path, cfg: cfg, clock: realTime}).run(ctx, set)
	}}
}

// file is what a Run of File knows.
type file struct {
	path  string
	cfg   FileConfig
	clock clock
	while func(*os.File) io.Reader // of tests: what happens while it is read

	last     reading
	restless time.Time // when it was found changed, and has not been at rest since; zero: it is at rest

	taken [sha256.Size]byte // of the content that is decoded last
	err   error             // what is wrong with that
	pods  []events.Pod      // of the newest content without an error, until they are set
	offer bool              // pods are to be set
	told  trouble
}

func (f *file) run(ctx context.Context, set func([]events.Pod) error) error {
	f.cfg.OnError = orReport(ctx, f.cfg.OnError)
	for {
		if err := f.clock.wait(ctx, f.poll(set)); err != nil {
			return err
		}
	}
}

// poll reads the file once. It returns when to read it again.
func (f *file) poll(set func([]events.Pod) error) time.Duration {
	r, data := f.read()
	if settled := r.same(&f.last); !settled {
		f.last = r
		now := f.clock.now()
		if f.restless.IsZero() {
			f.restless = now
		}
		if now.Sub(f.restless) >= restlessTime {
			f.tell("restless", fmt.Errorf("it was written to for %v without a pause of %v", restlessTime, settleTime))
		}
		return settleTime
	}
	f.restless = time.Time{}
	if r.err == nil {
		r.err = f.take(r.sum, data)
	}
	if r.err != nil {
		f.tell(r.err.Error(), r.err)
	} else {
		f.told.end()
	}
	if f.offer {
		// The error is no news for who gave set. One pod may have had no room: see Interval.
		f.offer = set(f.pods) != nil
	}
	if f.cfg.Interval <= 0 {
		return DefaultFileInterval
	}
	return f.cfg.Interval
}

// take decodes what is new, and returns what is wrong with the content.
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

func (f *file) tell(what string, err error) {
	if f.told.tells(what, f.clock.now()) {
		f.cfg.OnError(fmt.Errorf("discovery: file %q: %w; the pods that were known stay", f.path, err))
	}
}

// A reading is what was found at one time.
type reading struct {
	err  error
	info os.FileInfo // without err
	sum  [sha256.Size]byte
	torn bool // it was written to at this time
}

// same reports whether nothing was written between two readings.
func (r *reading) same(o *reading) bool {
	switch {
	case r.torn || o.torn:
		return false
	case r.err != nil || o.err != nil:
		return r.err != nil && o.err != nil && r.err.Error() == o.err.Error()
	}
	return o.info != nil && unwritten(r.info, o.info) && r.sum == o.sum
}

func unwritten(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *file) read() (r reading, data []byte) {
	fail := func(err error) (reading, []byte) { return reading{err: err}, nil }
	// To open a pipe could take for ever.
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return fail(err)
	case !info.Mode().IsRegular():
		return fail(fmt.Errorf("it is no regular file: %v", info.Mode()))
	}
	open, err := os.Open(f.path)
	if err != nil {
		return fail(err)
	}
	defer open.Close()
	before, err := open.Stat()
	if err != nil {
		return fail(err)
	}
	var content io.Reader = open
	if f.while != nil {
		content = f.while(open)
	}
	data, err = io.ReadAll(io.LimitReader(content, MaxFileSize+1))
	switch {
	case err != nil:
		return fail(err)
	case len(data) > MaxFileSize:
		return fail(fmt.Errorf("it has more than %d bytes", MaxFileSize))
	case len(data) == 0:
		return fail(errors.New("it has 0 bytes; a list without pods is []"))
	}
	after, err := open.Stat()
	if err != nil {
		return fail(err)
	}
	return reading{info: after, sum: sha256.Sum256(data), torn: !unwritten(before, after)}, data
}
