package index

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/record"
)

// The restorer reads a snapshot record by record, in the order in which it was written, and
// checks each record before it uses it: it trusts a snapshot no more than the events of a
// pod. It restores by the same steps as an Apply, so it counts all counts itself.
//
//   - It places slabs key by key (Forest.Place). So two records of one key are one
//     place, as after a slab was given up while the snapshot was written, and no parents
//     can form a circle. Place does not detect a key in the middle of another slab, so
//     at the end all keys are compared.
//   - It pins a slab until the end, because the names that need it may come later.
//   - If memory runs short, it takes the pins off, and evicts the coldest slabs as any
//     writer does, with the names that are there. Names of such slabs that come later
//     count as evicted.
//   - It sorts the queue of idle names when a source is done, and keeps stores that wait
//     until then, because they refer to names.
//
// The restorer cannot check that a key follows from the one before it, because a snapshot has
// no tokens. A forged snapshot with known keys makes chains miss, and no more: a query meets a
// forged key only behind the right one, and a store that computes the key gives it a second
// place, which queries meet. If the store is of a hash that has the first place, the Apply
// forgets the source (forgetAll). To find each second place, an Apply would need all keys in a
// table, which takes a fifth of the memory and a miss for each key that is placed. The number of
// names of a source is a promise: the restorer makes room for as many names as the bytes that
// it has read pay for.

// errRecord is wrapped by the errors about a snapshot that contradicts itself.
var errRecord = errors.New("index: wrong snapshot")

// restorer reads a snapshot.
type restorer struct {
	m *memory
	g *ground
	f *forest.Forest

	section       int
	all           []byte // the section
	record.Reader        // of the section
	from          []byte // the section from the present record on
	credit        int    // bytes that names may take before they are read

	began, ended bool
	sources      uint64
	variants     []Variant
	numbers      []uint32 // of the variants here

	slabs slabTable
	tries int // to make room, since the last one that failed
	tight int // how many tries do nothing after a failure
	keys  [maxSlabKeys]forest.Key
	locs  [maxSlabKeys]loc

	restoredSource
}

// creditEach is how many bytes of room for names each byte that was read pays for.
const creditEach = 2

// Restore fills an empty index from the sections that Snapshot wrote. read returns io.EOF
// behind the last one. m must be new, and without a Mirror. An error closes it.
func (m *memory) Restore(ctx context.Context, read func() ([]byte, error)) error {
	m.mu.Lock()
	g, models := m.ground, len(*m.models.Load())
	m.mu.Unlock()
	switch {
	case g == nil:
		return ErrClosed
	case g.mirror != nil:
		return errors.New("index: an index with a mirror cannot be restored")
	case models > 0:
		return errors.New("index: only an empty index can be restored")
	}
	r := &restorer{m: m, g: g, f: g.forest, slabs: newSlabTable(g)}
	g.mu.Lock()
	g.forest.Still = true // the restorer keeps places
	g.mu.Unlock()
	err := r.run(ctx, read)
	if err != nil {
		m.Close()
		return err
	}
	m.checked()
	return nil
}

func (r *restorer) run(ctx context.Context, read func() ([]byte, error)) error {
	for ; ; r.section++ {
		if r.m.closed.Load() {
			return ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		section, err := read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		r.all, r.Rest = section, section
		r.credit += creditEach * len(section)
		if err := r.records(); err != nil {
			return fmt.Errorf("%w: section %d, at %d of %d: %w", errRecord, r.section, len(r.all)-len(r.Rest), len(r.all), err)
		}
	}
	if !r.ended {
		return fmt.Errorf("%w: it has no end", errRecord)
	}
	return r.finish()
}

// finish compares all keys, and takes the pins off.
func (r *restorer) finish() error {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if k, ok := r.f.Doubled(r.m.salt[0]); ok {
		return fmt.Errorf("%w: key %x is in two places", errRecord, k)
	}
	r.slabs.pin(false)
	r.f.Still = false
	r.g.addTables(-r.slabs.bytes)
	r.f.Reclaim()
	return nil
}

// records reads a section.
func (r *restorer) records() error {
	if len(r.Rest) > sectionLimit {
		return fmt.Errorf("%d bytes, at most %d", len(r.Rest), sectionLimit)
	}
	for len(r.Rest) > 0 {
		if r.ended {
			return errors.New("a record behind the end")
		}
		switch tag := r.Rest[0]; {
		case tag == tagBegin && !r.began:
			if err := r.begin(); err != nil {
				return err
			}
		case !r.began:
			return errors.New("it does not begin as one")
		case tag == tagSource && r.s == nil:
			if err := r.source(); err != nil {
				return err
			}
		case tag == tagEnd && r.s == nil:
			if err := r.end(); err != nil {
				return err
			}
		case r.s != nil:
			if err := r.ofSource(); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a record of kind %d, which is of a source", tag)
		}
	}
	return nil
}

// ofSource reads records of a source, up to its end.
func (r *restorer) ofSource() (err error) {
	s := r.s
	s.locked(func() {
		r.reserve()
		for n := 0; err == nil && r.s != nil && len(r.Rest) > 0; n++ {
			if n%yieldAfter == 0 {
				s.tenant.report()
				s.f.Reclaim()
			}
			r.from = r.Rest
			if tag := r.Rest[0]; tag >= tagPlain {
				err = r.plainNames()
			} else {
				r.Byte()
				err = r.other(tag)
			}
			if err == nil && r.Short {
				err = fmt.Errorf("a record of kind %d is cut off", r.from[0])
			}
			if err != nil {
				r.Rest = r.from
			}
		}
		s.tenant.report()
	})
	return err
}

// reserve makes room for the expected names, as far as bytes that were read pay for it. It
// makes none where memory may be too short for all of them.
func (r *restorer) reserve() {
	names := &r.s.names
	more := r.expected - uint64(names.Len())
	if r.credit < nameCost || r.expected <= uint64(names.Len()) || more > uint64(max(r.g.pages(), 0))/(4*nameCost) {
		return
	}
	before := names.Bytes()
	names.Reserve(names.Len() + int(min(more, uint64(r.credit/nameCost))))
	r.credit -= names.Bytes() - before
}

func (r *restorer) other(tag byte) error {
	switch tag {
	case forest.DumpSlab:
		return r.slab()
	case forest.DumpSlots:
		return r.slots()
	case tagSet:
		return r.set()
	case tagIdleName:
		return r.idleName()
	case tagRichName:
		return r.richName()
	case tagStore:
		return r.store()
	case tagHashes:
		return r.hashes()
	case tagLocals:
		return r.locals()
	case tagWaits:
		for n := r.Uvarint(); n > 0 && !r.Short; n-- {
			r.waits = append(r.waits, uint32(r.Uvarint()))
		}
		return nil
	case tagDone:
		return r.done()
	}
	return fmt.Errorf("a record of kind %d", tag)
}

func (r *restorer) begin() error {
	r.Byte()
	if v := r.Byte(); v != snapshotVersion {
		return fmt.Errorf("an index of version %d, this one reads %d", v, snapshotVersion)
	}
	if seed := r.Take(16); r.Short || [16]byte(seed) != r.m.cfg.Seed {
		return errors.New("it is of another seed")
	}
	r.began = true
	return nil
}

func (r *restorer) end() error {
	r.Byte()
	n, clock := r.Uvarint(), r.Uint32()
	switch {
	case r.Short:
		return errors.New("the end is cut off")
	case n != r.sources:
		return fmt.Errorf("%d sources, but the count is %d", r.sources, n)
	}
	r.f.SetNow(clock)
	r.ended = true
	return nil
}

func (r *restorer) variant() Variant {
	v := Variant{Unit: r.Int(), Media: r.Byte()}
	v.Block, v.Pairs = r.Int(), r.Bool()
	return v
}

// mediaForms is how many values Variant.Media has.
const mediaForms = 3

// cut reads a cut. It returns false if no blocks can have it.
func (r *restorer) cut() (c cut, ok bool) {
	c = cut{r.variant(), r.Int()}
	v := c.variant
	return c, c == (cut{}) || v.Unit > 0 && v.Media < mediaForms && c.size > 0 && c.size%v.Unit == 0
}
