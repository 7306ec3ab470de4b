package janitor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watches see by inotify what happens in the folders of a root. They are blind where the
// kernel does not see it, or has no watch left: then each scan finds what has changed.
type watches struct {
	file   *os.File
	fd     int // of file
	events chan []event

	mu     sync.Mutex // guards what follows
	places map[int32]place
	blind  error // why
}

// event is a name in a folder that came, changed or went.
type event struct {
	place
	name string
	dir  bool
	lost bool // the kernel has dropped events; there is no place
}

const watched = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR

func newWatches() (*watches, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &watches{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, events: make(chan []event), places: map[int32]place{}}
	return w, nil
}

// run reads events until close.
func (w *watches) run() {
	defer close(w.events)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		if events := w.parse(buf[:n]); len(events) > 0 {
			w.events <- events
		}
	}
}

func (w *watches) parse(b []byte) []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []event
	for len(b) >= unix.SizeofInotifyEvent {
		raw := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		wd, mask := raw.Wd, raw.Mask
		end := unix.SizeofInotifyEvent + int(raw.Len)
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
		b = b[end:]
		p, ok := w.places[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			events = append(events, event{lost: true})
		case mask&unix.IN_IGNORED != 0:
			delete(w.places, wd)
		case ok && name != "":
			events = append(events, event{place: p, name: name, dir: mask&unix.IN_ISDIR != 0})
		}
	}
	return events
}

// watch adds a watch to an open folder, unless watches are blind. Nil watches see nothing.
func (j *Janitor) watch(fd int, p place) {
	w := j.watches
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blind != nil {
		return
	}
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), watched)
	switch {
	case errors.Is(err, unix.ENOSPC):
		w.blind = fmt.Errorf("inotify has no more watches after %d (fs.inotify.max_user_watches)", len(w.places))
	case err != nil:
		w.blind = fmt.Errorf("inotify: %w", err)
	default:
		w.places[int32(wd)] = p
	}
}

// blind returns why the events do not report all changes, or nil.
func (j *Janitor) blind() error {
	if j.watches == nil {
		return j.unwatched
	}
	j.watches.mu.Lock()
	defer j.watches.mu.Unlock()
	return j.watches.blind
}

// happened brings the table up to date with an event. It reports whether a scan has to find
// the rest.
func (j *Janitor) happened(e event) (rescan bool) {
	switch {
	case e.lost:
		j.count.overflows++
		return true
	case e.level == atRoot:
		_, _, rank := parseRank(e.name)
		return !isOwn(e.name) && e.dir && (rank || isFolder(e.name))
	case e.level == atFolder:
		return e.name == "config.json"
	case e.level == atLeaf:
		h, kind := parseFile(e.outerName(), e.leafName(), e.name)
		if kind == blockFile {
			k := key{hashOf: h, space: e.space, group: e.group}
			j.look(&k, int(e.rank))
		}
		return false
	}
	q, ok := e.in(e.name)
	if !ok || !e.dir {
		return false
	}
	fd, err := j.open(q)
	if isAbsent(err) {
		// Its files are reported by its own watch, unless it has moved away.
		return true
	} else if err != nil {
		j.failed("a new folder", j.path(q), err)
		return true
	}
	defer unix.Close(fd)
	j.watch(fd, q)
	j.walkNow(fd, q)
	return false
}

// walkNow finds all files of a new folder at once.
func (j *Janitor) walkNow(fd int, p place) {
	s := &scan{j: j, files: make(chan []foundFile, 1)}
	w := &worker{scan: s, buf: make([]byte, 8<<10)}
	go func() {
		w.walkOpen(fd, p)
		w.flush()
		close(s.files)
	}()
	for files := range s.files {
		for i := range files {
			if f := &files[i]; f.kind == blockFile {
				// By now it can be another one, or none.
				k := key{hashOf: f.hashOf, space: f.space, group: f.group}
				j.look(&k, int(f.rank))
			}
		}
	}
	if s.err != nil {
		j.failed("a new folder", j.path(p), s.err)
		j.scans.again = true
	}
}
