package offload

import (
	"bytes"
	"os"
)

// Report makes s report its blocks to events: at once those that are there, and from then on each
// that is written, deleted, or goes with its file, whose headers are read before. A block that Get
// finds corrupt is reported by the Store that reads it. Close reports BlocksCleared.
func (s *Segments) Report(events *Events) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	files, err := s.tellFiles(events)
	if err != nil {
		return err
	}
	for f, ef := range files {
		f.reading.Lock() // without mu, which a reader of a corrupt block waits for
		if f.f != nil {
			ef.blockFile, f.f = f.f, ef
		}
		f.reading.Unlock()
	}
	open := s.open
	s.open = func(name string, flag int) (blockFile, bool, error) {
		f, direct, err := open(name, flag)
		if err != nil {
			return nil, false, err
		}
		return &eventFile{blockFile: f, s: s, events: events, name: name}, direct, nil
	}
	return nil
}

// tellFiles reports the blocks of all files.
func (s *Segments) tellFiles(events *Events) (map[*segment]*eventFile, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	files := make(map[*segment]*eventFile)
	for _, f := range s.files {
		ef := &eventFile{s: s, events: events, name: f.name, format: f.format}
		blocks, err := ef.blocks()
		if err != nil {
			return nil, err
		}
		for name, at := range blocks {
			if p := s.index[s.printOf(name)]; p.file == f.number && int64(p.at&^hotBit)*64 == at {
				ef.add(BlocksStored, name)
			}
		}
		files[f] = ef
	}
	return files, nil
}

func (s *Segments) printOf(name blockName) uint64 {
	space, key := name.parts()
	return s.print(space, key)
}

func (n blockName) parts() (SpaceID, Key) {
	return SpaceID(n[:len(SpaceID{})]), Key(n[len(SpaceID{}):])
}

// eventFile reports the blocks that are written to a file, and those that go when it is
// closed. Segments write and close with their writer lock held, which orders the reports.
type eventFile struct {
	blockFile
	s      *Segments
	events *Events
	name   string
	format format // of the header, when it is written
}

func (f *eventFile) add(kind EventKind, name blockName) {
	space, key := name.parts()
	f.events.add(Event{Kind: kind, Tier: TierDisk, Space: space, Keys: []Key{key}})
}

// blocks returns the blocks of a file that are not deleted in it, and where they are.
func (f *eventFile) blocks() (map[blockName]int64, error) {
	plain, err := os.Open(f.name) // scan reads what O_DIRECT does not
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	info, err := plain.Stat()
	if err != nil {
		return nil, err
	}
	blocks := make(map[blockName]int64)
	_, _, err = f.format.scan(plain, info.Size(), func(rec record, at int64) error {
		if rec.kind == kindDeletion {
			delete(blocks, nameOf(rec.space, rec.key))
		} else {
			blocks[nameOf(rec.space, rec.key)] = at
		}
		return nil
	})
	return blocks, err
}

func (f *eventFile) has(name blockName) bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	_, ok := f.s.index[f.s.printOf(name)]
	return ok
}

func (f *eventFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.blockFile.WriteAt(b, off)
	if off == 0 {
		f.format, _ = readFormat(bytes.NewReader(b)) // it is as create made it
		return n, err
	}
	for at := int64(0); at < int64(len(b)); {
		rec, _ := f.format.parse(b[at:], off+at)
		name := nameOf(rec.space, rec.key)
		if rec.kind == kindDeletion { // is gone even if this is not written
			f.add(BlocksRemoved, name)
		} else if err == nil {
			f.add(BlocksStored, name)
		}
		at += f.format.padded(rec.length)
	}
	return n, err
}

// Close reports the blocks that go with the file, which the index no longer has.
func (f *eventFile) Close() error {
	f.s.mu.Lock()
	closed := f.s.closed
	f.s.mu.Unlock()
	blocks, err := f.blocks()
	if closed || err != nil {
		f.events.add(Event{Kind: BlocksCleared})
		return f.blockFile.Close()
	}
	for name := range blocks {
		if !f.has(name) {
			f.add(BlocksRemoved, name)
		}
	}
	return f.blockFile.Close()
}
