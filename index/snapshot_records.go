package index

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"

	"github.com/kvindex/kvindex/index/internal/record"
)

// The flags of a rich name and of its copies.
const (
	richIsIdle = 1 << iota
	copyReported
	copyChained
	keyShared = 1 << 31 // of a key: several names with it were hidden
)

// drain makes records of the notes.
func (w *dumper) drain(ctx context.Context, d *sourceDump) error {
	for more := true; more; {
		if err := w.room(ctx, recordRoom); err != nil {
			return err
		}
		var overflow bool
		more, overflow = w.some(d)
		runtime.Gosched() // others that wait for the lock go first
		if overflow {
			return fmt.Errorf("index: the snapshot of pod %q is given up: more than %d bytes of notes about it", w.of.id.Pod, w.notesMax)
		}
	}
	return nil
}

// some makes records of some notes, and reports whether there are more. It ends where a
// section is full.
func (w *dumper) some(d *sourceDump) (more, overflow bool) {
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	f := w.g.forest
	for n := someNotes; n > 0 && len(w.open) <= w.size-recordRoom; n-- {
		if len(w.note) == 0 && !w.nextPiece(d) {
			return false, w.overflow
		}
		keys, size := noteSize(w.note)
		for len(w.refs) < len(keys)/4 {
			var ref uint32
			if w.open, ref = f.Dump(w.open, keyAt(keys, len(w.refs)), someSlabs); ref == 0 {
				return true, w.overflow
			}
			w.refs = append(w.refs, ref)
		}
		w.record(keys, size)
		w.unpin(keys)
		w.note = w.note[size:]
		w.refs = w.refs[:0]
	}
	return true, w.overflow
}

// nextPiece goes on to the next piece of notes.
func (w *dumper) nextPiece(d *sourceDump) bool {
	for len(w.note) == 0 && len(d.notes) > 0 {
		size := cap(d.notes[0])
		w.note, d.notes[0] = d.notes[0], nil
		d.notes = d.notes[1:]
		d.grow(-size)
		w.noted -= size
	}
	return len(w.note) > 0
}

// unpin unpins the keys of a note.
func (w *dumper) unpin(keys []byte) {
	for i := range len(keys) / 4 {
		w.g.forest.Unpin(keyAt(keys, i))
	}
}

// setOf returns the number of a set of lanes, with a record if it is new, or false if
// there are too many.
func (w *dumper) setOf(lanes []byte) (set byte, ok bool) {
	if slices.Equal(lanes, w.last) {
		return w.set, true
	}
	if set, ok = w.sets[string(lanes)]; !ok {
		if len(w.sets) == maxSets {
			return 0, false
		}
		set = byte(len(w.sets))
		w.sets[string(lanes)] = set
		w.open = append(w.open, tagSet, byte(len(lanes)-1))
		w.open = append(w.open, lanes...)
	}
	w.last, w.set = append(w.last[:0], lanes...), set
	return set, true
}

// record makes a record of the next note.
func (w *dumper) record(keys []byte, size int) {
	note := w.note[:size]
	switch note[0] {
	case tagPlain:
		w.plain(note[1:9], note[14:])
	case tagIdleName:
		w.open = append(w.open, note[:9]...)
		w.open = binary.AppendUvarint(w.open, uint64(w.refs[0]))
		w.open = append(w.open, note[13:]...)
	default:
		w.open = append(w.open, note[:richHead]...)
		for i, ref := range w.refs {
			w.open = binary.AppendUvarint(w.open, uint64(ref)<<1|uint64(keys[4*i+3]>>7))
		}
		w.open = append(w.open, note[richHead+len(keys):]...)
	}
}

// plain makes a record of a plain name, or of a rich one if there are too many sets of
// lanes.
func (w *dumper) plain(hash, lanes []byte) {
	set, ok := w.setOf(lanes)
	if !ok {
		w.open = append(append(w.open, tagRichName), hash...)
		w.open = append(w.open, 1, byte(len(lanes)), byte(len(lanes)>>8), 0)
		w.open = binary.AppendUvarint(w.open, uint64(w.refs[0])<<1)
		for _, ln := range lanes {
			w.open = appendCopy(w.open, &copyCount{lane: uint32(ln), copies: 1}, false)
		}
		return
	}
	w.open = appendPlain(w.open, set, Hash(binary.LittleEndian.Uint64(hash)), w.refs[0])
}

// noteSize returns the keys of a note, and its number of bytes.
func noteSize(note []byte) (keys []byte, size int) {
	switch note[0] {
	case tagPlain:
		return note[9:13], 15 + int(note[13])
	case tagIdleName:
		return note[9:13], 21
	}
	size = richHead + 4*int(note[9])
	keys = note[richHead:size]
	for range binary.LittleEndian.Uint16(note[10:]) {
		if size += 6; note[size-5]&copyChained != 0 {
			size += 8
		}
	}
	if note[12]&richIsIdle != 0 {
		size += 8
	}
	return keys, size
}

// richHead is how many bytes a rich name has before its keys.
const richHead = 13

func keyAt(keys []byte, i int) loc {
	return loc(binary.LittleEndian.Uint32(keys[4*i:]) &^ keyShared)
}

// stores writes the stores that waited.
func (w *dumper) stores(ctx context.Context, d *sourceDump) error {
	for i := range d.stores {
		p := &d.stores[i]
		if err := w.put(ctx, appendStore(nil, p)); err != nil {
			return err
		}
		for at := 0; at < len(p.hashes); at += someHashes {
			to := min(at+someHashes, len(p.hashes))
			b := binary.AppendUvarint([]byte{tagHashes}, uint64(to-at))
			for j := at; j < to; j++ {
				b = binary.LittleEndian.AppendUint64(b, uint64(p.hashes[j]))
				b = record.AppendBool(b, p.isVoid(j))
			}
			if err := w.put(ctx, b); err != nil {
				return err
			}
		}
		for some := range slices.Chunk(p.locals, someHashes) {
			b := binary.AppendUvarint([]byte{tagLocals}, uint64(len(some)))
			for _, l := range some {
				b = binary.LittleEndian.AppendUint64(b, uint64(l))
			}
			if err := w.put(ctx, b); err != nil {
				return err
			}
		}
	}
	for some := range slices.Chunk(d.waits, someHashes) {
		b := binary.AppendUvarint([]byte{tagWaits}, uint64(len(some)))
		for _, i := range some {
			b = binary.AppendUvarint(b, uint64(i))
		}
		if err := w.put(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// appendStore appends a store that waits, without its hashes and locals.
func appendStore(b []byte, p *waitingStore) []byte {
	b = append(b, tagStore, byte(p.group.ID), byte(p.tier))
	b = record.AppendBool(record.AppendBool(record.AppendBool(b, p.parked), p.waits), p.blind)
	b = binary.LittleEndian.AppendUint32(b, p.since)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.parent.hash))
	b = append(appendCut(b, p.cut), byte(p.parent.variant))
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.need)), uint64(p.units))
	return binary.LittleEndian.AppendUint64(record.AppendBool(b, p.fromRoot), uint64(p.root))
}

func appendPlain(b []byte, set byte, h Hash, ref uint32) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, tagPlain+set), uint64(h))
	return binary.AppendUvarint(b, uint64(ref))
}

// appendCopy appends a copyCount, with its parent if parent is true: the name has no key.
func appendCopy(p []byte, c *copyCount, parent bool) []byte {
	flags := byte(0)
	if c.reported {
		flags |= copyReported
	}
	if c.chained && parent {
		flags |= copyChained
	}
	p = append(p, byte(c.lane), flags)
	p = binary.LittleEndian.AppendUint32(p, c.copies)
	if flags&copyChained != 0 {
		p = binary.LittleEndian.AppendUint64(p, uint64(c.parent))
	}
	return p
}

func appendVariant(b []byte, v Variant) []byte {
	b = append(binary.AppendVarint(b, int64(v.Unit)), v.Media)
	return record.AppendBool(binary.AppendVarint(b, int64(v.Block)), v.Pairs)
}

func appendCut(b []byte, c cut) []byte {
	return binary.AppendVarint(appendVariant(b, c.variant), int64(c.size))
}
