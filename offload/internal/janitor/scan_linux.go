package janitor

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const maxSpaces = 1 << 12

// Space is a folder of vLLM's and the folders of its ranks.
type Space struct {
	Folder string // <model>_<digest>
	Config
	Left string // why it is left alone; empty: it is not

	number  uint16
	folders uint64 // bits of the ranks that have a folder
}

// complete has the bits of all ranks whose files make a block.
func (s *Space) complete() uint64 {
	if s.folders <= 1 {
		return 1
	}
	return 1<<s.Ranks - 1
}

// place is a folder below a root.
type place struct {
	space       uint16
	group       uint16
	rank, level uint8
	outer       [3]byte
	leaf        [2]byte
}

// The levels of places.
const (
	atRoot   = iota
	atFolder // <model>_<digest>
	atRank
	atOuter
	atLeaf
)

func (p place) outerName() string { return string(p.outer[:]) }

func (p place) leafName() string { return fmt.Sprintf("%s_g%d", p.leaf[:], p.group) }

// in is the place of a folder in another one, if its name is right.
func (p place) in(name string) (place, bool) {
	switch p.level {
	case atRank:
		copy(p.outer[:], name)
		p.level = atOuter
		return p, isOuter(name)
	case atOuter:
		group, ok := parseLeaf(name)
		if !ok {
			return p, false
		}
		copy(p.leaf[:], name)
		p.group, p.level = uint16(group), atLeaf
		return p, true
	}
	return p, false
}

// of is the place of a rank's file.
func of(k *key, rank int) (p place, name string) {
	name = k.hex() + ".bin"
	p = place{space: k.space, group: k.group, rank: uint8(rank), level: atLeaf}
	copy(p.outer[:], name)
	copy(p.leaf[:], name[3:])
	return p, name
}

// foundFile is a file that a scan has found.
type foundFile struct {
	place
	hashOf
	kind  fileKind
	name  string // of a temporary one
	state fileState
}

// scan is a pass over all files of a root, by goroutines of its own. It adds a watch to each
// folder before it lists it.
type scan struct {
	j     *Janitor
	files chan []foundFile // closed after the last
	wait  sync.WaitGroup

	rearms bool // files that were read

	mu     sync.Mutex // guards what follows
	err    error      // the first of a folder or file that is there
	unread error      // of rearm
}

const (
	scanWorkers = 4
	scanBatch   = 1024
)

// newScan reads the root and begins with its ranks. stop ends it early.
func (j *Janitor) newScan(stop <-chan struct{}) (*scan, error) {
	ranks, err := j.readRoot()
	if err != nil {
		return nil, err
	}
	s := &scan{j: j, files: make(chan []foundFile, scanWorkers), rearms: j.notices()}
	work := make(chan place, scanWorkers)
	for range scanWorkers {
		s.wait.Add(1)
		go func() {
			defer s.wait.Done()
			w := &worker{scan: s, buf: make([]byte, 32<<10), stop: stop}
			for p := range work {
				w.walk(p)
			}
			w.flush()
		}()
	}
	go func() {
		w := &worker{scan: s, buf: make([]byte, 32<<10), stop: stop}
		for _, p := range ranks {
			w.each(p, func(fd int) {
				w.list(fd, p, func(name string) {
					if q, ok := p.in(name); ok {
						select {
						case work <- q:
						case <-stop:
						}
					}
				})
			})
		}
		close(work)
		s.wait.Wait()
		close(s.files)
	}()
	return s, nil
}

// failed keeps the first error, but none about something that has gone meanwhile.
func (s *scan) failed(p place, err error) {
	if isAbsent(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("%s: %w", s.j.path(p), err)
	}
}

type worker struct {
	*scan
	buf  []byte
	out  []foundFile
	stop <-chan struct{}
}

func (w *worker) flush() {
	if len(w.out) > 0 {
		select {
		case w.files <- w.out:
		case <-w.stop:
		}
		w.out = nil
	}
}

// each opens a place, watches it, and calls f.
func (w *worker) each(p place, f func(fd int)) {
	fd, err := w.j.open(p)
	if err != nil {
		w.failed(p, err)
		return
	}
	defer unix.Close(fd)
	w.j.watch(fd, p)
	f(fd)
}

func (w *worker) list(fd int, p place, f func(name string)) {
	if err := names(fd, w.buf, f); err != nil {
		w.failed(p, err)
	}
}

// walk finds all files of a folder <hhh> or <hh>_g<group>.
func (w *worker) walk(p place) {
	w.each(p, func(fd int) { w.walkOpen(fd, p) })
}

func (w *worker) walkOpen(fd int, p place) {
	if p.level == atLeaf {
		w.leaf(fd, p, p.leafName())
		return
	}
	var leaves []string
	w.list(fd, p, func(name string) {
		if _, ok := p.in(name); ok {
			leaves = append(leaves, name)
		}
	})
	for _, name := range leaves {
		q, _ := p.in(name)
		leaf, err := openDir(fd, name)
		if err != nil {
			w.failed(q, err)
			continue
		}
		w.j.watch(leaf, q)
		w.leaf(leaf, q, name)
		unix.Close(leaf)
	}
}

func (w *worker) leaf(fd int, p place, leaf string) {
	outer := p.outerName()
	w.list(fd, p, func(name string) {
		h, kind := parseFile(outer, leaf, name)
		if kind == foreign {
			return
		}
		st, err := stat(fd, name)
		if err != nil {
			w.failed(p, err)
			return
		}
		if kind == blockFile && w.rearms && st.disarmed() {
			if err := rearm(fd, name, st); err != nil && !isAbsent(err) {
				w.mu.Lock()
				w.unread = err
				w.mu.Unlock()
			}
		}
		f := foundFile{place: p, hashOf: h, kind: kind, state: st}
		if kind == temporary {
			f.name = name
		}
		if w.out = append(w.out, f); len(w.out) == scanBatch {
			w.flush()
		}
	})
}

// readRoot finds the folders in the root, and returns the places of the ranks that are not
// left alone.
func (j *Janitor) readRoot() ([]place, error) {
	root, err := openDir(j.root, ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j.cfg.Root, err)
	}
	defer unix.Close(root)
	j.watch(root, place{level: atRoot})
	type rankFolder struct {
		folder string
		rank   int
	}
	var ranks []rankFolder
	folders := map[string]struct{}{}
	err = names(root, make([]byte, 32<<10), func(name string) {
		if folder, rank, ok := parseRank(name); ok {
			ranks = append(ranks, rankFolder{folder, rank})
			folders[folder] = struct{}{}
		} else if isFolder(name) {
			folders[name] = struct{}{}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j.cfg.Root, err)
	}
	for folder, s := range j.spaces {
		if _, ok := folders[folder]; !ok && s.Left == "" {
			j.leave(s, "it is gone")
		}
	}
	had := map[string]uint64{}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		s := j.spaces[folder]
		if s == nil {
			if len(j.list) == maxSpaces {
				j.log.Warn("too many folders: left alone", "folder", folder, "most", maxSpaces)
				continue
			}
			s = &Space{Folder: folder, number: uint16(len(j.list))}
			j.spaces[folder], j.list = s, append(j.list, s)
		}
		cfg, err := j.readConfig(s)
		switch {
		case err != nil:
			j.leave(s, err.Error())
		default:
			s.Left = ""
		}
		s.Config = cfg
	}
	var places []place
	for _, r := range ranks {
		s := j.spaces[r.folder]
		if s == nil || s.Left != "" {
			continue
		}
		if r.rank >= s.Ranks {
			j.log.Warn("left alone: config.json has fewer ranks", "folder", r.folder, "rank", r.rank, "ranks", s.Ranks)
			continue
		}
		had[r.folder] |= 1 << r.rank
		places = append(places, place{space: s.number, rank: uint8(r.rank), level: atRank})
	}
	for folder := range folders {
		if s := j.spaces[folder]; s != nil && s.folders != had[folder] {
			before := s.complete()
			if s.folders = had[folder]; s.Left == "" && s.complete() != before {
				j.recheck(s)
			}
		}
	}
	return places, nil
}

// leave has a folder left alone, and logs that once. Its blocks leave the table.
func (j *Janitor) leave(s *Space, why string) {
	if s.Left != why {
		j.log.Warn("left alone", "folder", s.Folder, "because", why)
	}
	if s.folders != 0 {
		for slot := range j.table.all() {
			if b := j.table.at(slot); b.space == s.number {
				j.drop(slot, b.have(), false)
			}
		}
	}
	s.Left, s.folders = why, 0
}

func (j *Janitor) readConfig(s *Space) (Config, error) {
	fd, err := openDir(j.root, s.Folder)
	if errors.Is(err, unix.ENOENT) {
		return Config{}, errors.New("the folder of config.json is missing")
	} else if err != nil {
		return Config{}, err
	}
	defer unix.Close(fd)
	j.watch(fd, place{space: s.number, level: atFolder})
	data, err := readFile(fd, "config.json", maxConfigBytes+1)
	if err != nil {
		return Config{}, fmt.Errorf("config.json: %w", err)
	}
	cfg, folder, err := parseConfig(data)
	if err != nil {
		return Config{}, err
	}
	if folder != s.Folder {
		return Config{}, fmt.Errorf("config.json is that of %s", folder)
	}
	return cfg, nil
}

// path names a place for a person.
func (j *Janitor) path(p place) string {
	name := j.cfg.Root
	if p.level >= atFolder {
		name += "/" + j.list[p.space].Folder
	}
	if p.level >= atRank {
		name += fmt.Sprintf("_r%d", p.rank)
	}
	if p.level >= atOuter {
		name += "/" + p.outerName()
	}
	if p.level >= atLeaf {
		name += "/" + p.leafName()
	}
	return name
}

// open opens a place of a rank or below.
func (j *Janitor) open(p place) (int, error) {
	steps := []string{fmt.Sprintf("%s_r%d", j.list[p.space].Folder, p.rank)}
	if p.level >= atOuter {
		steps = append(steps, p.outerName())
	}
	if p.level >= atLeaf {
		steps = append(steps, p.leafName())
	}
	at := j.root
	for i, name := range steps {
		fd, err := openDir(at, name)
		if i > 0 {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

// ranksOf calls f for each rank of a set.
func ranksOf(set uint64, f func(rank int)) {
	for ; set != 0; set &= set - 1 {
		f(bits.TrailingZeros64(set))
	}
}

// isOwn reports whether a name in the root is that of a file of the janitor.
func isOwn(name string) bool { return strings.HasPrefix(name, ".kvoffload") }
