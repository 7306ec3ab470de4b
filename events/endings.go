package events

import "bytes"

// This file reads the common fields of a batch's events once. In most batches the block size,
// adapter, medium and group are, byte for byte, the same in all events of a kind. Comparing
// them takes no longer than reading one of them.

// An ending is the part of an event behind the fields that differ from event to event (varying
// in a layout).
type ending struct {
	fields     int // items of an array; below 0: pairs of a map
	start, end int // in the payload; both 0 if there is none
	event      int // index in Batch.events of one that has it
	entries    int // of its extra_keys
}

// repeats reads the ending that begins here if it is the latest of the kind.
func (d *decoder) repeats(here ending) bool {
	last := &d.endings[d.e.Kind]
	if last.start == 0 || last.fields != here.fields ||
		!bytes.HasPrefix(d.data[d.off:], d.data[last.start:last.end]) {
		d.ending = here
		return false
	}
	d.off += last.end - last.start
	e, like := d.e, &d.b.events[last.event]
	e.BlockSize, e.Adapter, e.Salt, e.Medium = like.BlockSize, like.Adapter, like.Salt, like.Medium
	e.Group, e.HasGroup, e.GroupKind, e.Window = like.Group, like.HasGroup, like.GroupKind, like.Window
	e.Locality, e.Ownership, e.Reused = like.Locality, like.Ownership, like.Reused
	e.HasExtra, d.entries = like.HasExtra, last.entries
	return true
}

// remember keeps the ending that was read, if other events can have it too: slices belong to
// one event.
func (d *decoder) remember() {
	if d.ending.start == 0 || d.e.Extra != nil || d.e.Remaining != nil {
		return
	}
	d.ending.end, d.ending.event, d.ending.entries = d.off, len(d.b.events)-1, d.entries
	d.endings[d.e.Kind] = d.ending
}
