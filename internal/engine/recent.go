package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/stats"
)

// Recent has the scopes of the last stores of a pod, for Explain. Of a salt it keeps only the
// root.
type Recent struct {
	Salted ring[SaltedRoot]
	Extras ring[hashing.Extra] // of media, with their unit 0
}

// SaltedRoot is the root of chains with a salt.
type SaltedRoot struct {
	Root    index.Key
	Variant index.Variant
	Adapter string
}

// Clone returns a copy of s.
func (s *Recent) Clone() Recent {
	return Recent{s.Salted.clone(), s.Extras.clone()}
}

// ring keeps the last different values.
type ring[T comparable] struct {
	Values []T
	next   int // the oldest, if it is full
}

const ringSize = 64

func (r *ring[T]) add(v T) {
	switch {
	case slices.Contains(r.Values, v):
	case len(r.Values) < ringSize:
		r.Values = append(r.Values, v)
	default:
		r.Values[r.next] = v
		r.next = (r.next + 1) % ringSize
	}
}

// at returns the ith of the values, the oldest first.
func (r *ring[T]) at(i int) T { return r.Values[(r.next+i)%len(r.Values)] }

func (r *ring[T]) clone() ring[T] { return ring[T]{slices.Clone(r.Values), r.next} }

// AppendGroups appends groups in the format of ReadGroups.
func AppendGroups(b []byte, groups []stats.Group) []byte {
	b = binary.AppendUvarint(b, uint64(len(groups)))
	for _, g := range groups {
		b = binary.AppendUvarint(b, uint64(g.ID))
		b = append(b, byte(g.Kind), sections.Flags(g.Draft))
		b = binary.AppendUvarint(b, uint64(g.Window))
		b = binary.AppendUvarint(b, uint64(g.BlockSize))
	}
	return b
}

// Append appends s in the format of Read.
func (s *Recent) Append(b []byte) []byte {
	b = append(b, byte(len(s.Salted.Values)), byte(len(s.Extras.Values)))
	for i := range s.Salted.Values {
		r := s.Salted.at(i)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Root))
		b = append(b, byte(r.Variant.Unit), r.Variant.Media, sections.Flags(r.Variant.Pairs))
		b = binary.AppendUvarint(b, uint64(r.Variant.Block))
		b = sections.AppendString(b, r.Adapter)
	}
	for i := range s.Extras.Values {
		x := s.Extras.at(i)
		b = append(b, byte(x.Kind))
		b = binary.LittleEndian.AppendUint64(b, x.ID)
		b = binary.AppendUvarint(b, uint64(x.Offset))
	}
	return b
}

// Read reads the bytes of Append. It checks no values, because they are only compared or hashed.
func (s *Recent) Read(f *sections.Fields) {
	salted, extras := f.Byte(), f.Byte()
	for range min(salted, ringSize) {
		r := SaltedRoot{Root: index.Key(f.Uint64())}
		r.Variant.Unit, r.Variant.Media, r.Variant.Pairs = int(f.Byte()), f.Byte(), f.Byte()&1 != 0
		r.Variant.Block, r.Adapter = f.Int(maxBareBlock), f.String()
		s.Salted.add(r)
	}
	for range min(extras, ringSize) {
		s.Extras.add(hashing.Extra{Kind: hashing.ExtraKind(f.Byte()), ID: f.Uint64(), Offset: uint32(f.Uvarint())})
	}
}

// ReadGroups reads the bytes of AppendGroups. It refuses values that no engine can report.
func ReadGroups(f *sections.Fields) (groups []stats.Group) {
	for range f.Count() {
		g := stats.Group{Group: index.Group{ID: f.Int(index.MaxGroups - 1), Kind: index.GroupKind(f.Byte())}}
		g.Draft, g.Window, g.BlockSize = f.Byte()&1 != 0, f.Int(math.MaxInt32), f.Int(math.MaxInt32)
		if g.Kind > index.GroupOther || g.BlockSize == 0 || slices.ContainsFunc(groups, func(o stats.Group) bool { return o.ID == g.ID }) {
			f.Refuse(fmt.Errorf("group %d of kind %d and %d tokens is invalid, or repeated", g.ID, g.Kind, g.BlockSize))
			return nil
		}
		groups = append(groups, g)
	}
	return groups
}

// Bounds on the state of a pod for one model.
const (
	MaxRanks   = 256
	MaxStreams = 1024
	// MaxAdapters is the number of adapters whose names a request can use as its model. For
	// other adapters, and for names longer than MaxName, a request must name the base model,
	// and the adapter in Request.Adapter.
	MaxAdapters = 4096
	MaxName     = 1024 // bytes of the name of a pod, a model or a stream
)

// MaxUnrecognized bounds the unrecognized parts of events that are kept of a rank: any peer can
// invent their names.
const MaxUnrecognized = 8
