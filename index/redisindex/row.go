package redisindex

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/index"
)

// The registry of a model is a hash with a row for each source, by name. A row names the
// writer of the source, and maps the numbers of that writer to holders.
//
//	row     = writer:8 flags:1 groups group... holders holder... note
//	group   = id kind window draft:1 size grain
//	holder  = number group tier:1 unit media:1 block pairs:1 size evicted:1
//	cursor  = seq:8 time:8
//
// group of a holder is its place among the groups. Besides, the hash has versionField, which
// differs after each change, and begins with the seed's mark.
const (
	versionField = "v"
	rowHead      = 8

	flagBehind = 1 // the writer has seen less of the source than the one before
)

// fieldOf returns the field of a source.
func fieldOf(src index.Source) string { return "s" + strconv.Itoa(src.Rank) + " " + src.Pod }

// sourceOf is the opposite of fieldOf.
func sourceOf(model, field string) (src index.Source, ok bool) {
	rank, pod, ok := strings.Cut(field, " ")
	if !ok || rank == "" || rank[0] != 's' {
		return src, false
	}
	n, err := strconv.Atoi(rank[1:])
	src = index.Source{Pod: pod, Model: model, Rank: n}
	return src, err == nil && fieldOf(src) == field // a source has one field
}

// A row is the value of a source in a registry.
type row struct {
	writer uint64
	behind bool
	layout *index.Layout
	lanes  []lane
	note   []byte
}

// A lane is a holder of a row.
type lane struct {
	number  uint32
	group   index.Group
	tier    index.Tier
	variant index.Variant
	size    int // of a block
	evicted bool
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// appendRow appends the row of a source.
func appendRow(b []byte, writer uint64, src *source) []byte {
	b = binary.LittleEndian.AppendUint64(b, writer)
	b = append(b, flag(src.behind)*flagBehind)
	var groups []index.GroupLayout
	if src.layout != nil {
		groups = src.layout.Groups
	}
	b = binary.AppendUvarint(b, uint64(len(groups)))
	for _, g := range groups {
		b = binary.AppendUvarint(b, uint64(g.ID))
		b = append(b, byte(g.Kind))
		b = binary.AppendUvarint(b, uint64(g.Window))
		b = append(b, flag(g.Draft))
		b = binary.AppendUvarint(b, uint64(g.BlockSize))
		b = binary.AppendUvarint(b, uint64(g.Grain))
	}
	n := 0
	for _, h := range src.holders {
		if h.BlockSize > 0 {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, h := range src.holders {
		if h.BlockSize == 0 {
			continue
		}
		at := 0
		for at < len(groups)-1 && groups[at].ID != h.Group.ID {
			at++
		}
		b = binary.AppendUvarint(b, uint64(h.number))
		b = binary.AppendUvarint(b, uint64(at))
		b = append(b, byte(h.Tier))
		b = binary.AppendUvarint(b, uint64(h.Variant.Unit))
		b = append(b, h.Variant.Media)
		b = binary.AppendUvarint(b, uint64(h.Variant.Block))
		b = append(b, flag(h.Variant.Pairs))
		b = binary.AppendUvarint(b, uint64(h.BlockSize))
		b = append(b, flag(h.evicted))
	}
	return append(b, src.note...)
}

// readRow reads a row. It returns false if the row is invalid.
func readRow(s string) (of *row, ok bool) {
	r := reader{s: s}
	of = &row{writer: r.u64(), behind: r.byte()&flagBehind != 0, layout: new(index.Layout)}
	for n := r.count(6); n > 0; n-- {
		g := index.GroupLayout{Group: index.Group{
			ID: r.number(index.MaxGroups - 1), Kind: index.GroupKind(r.byte()), Window: r.number(math.MaxInt32), Draft: r.byte() == 1,
		}, BlockSize: r.number(math.MaxInt32), Grain: r.number(math.MaxInt32)}
		if last := len(of.layout.Groups) - 1; last >= 0 && of.layout.Groups[last].ID >= g.ID {
			return nil, false
		}
		of.layout.Groups = append(of.layout.Groups, g)
	}
	for n := r.count(9); n > 0; n-- {
		l := lane{number: uint32(r.number(math.MaxUint32 >> 1)), group: index.Group{ID: r.number(index.MaxGroups)}, tier: index.Tier(r.byte())}
		l.variant = index.Variant{Unit: r.number(math.MaxInt32), Media: r.byte(), Block: r.number(math.MaxInt32), Pairs: r.byte() == 1}
		l.size, l.evicted = r.number(math.MaxInt32), r.byte() == 1
		at := l.group.ID
		if r.bad || at >= len(of.layout.Groups) || l.tier >= index.NumTiers || l.variant.Unit == 0 || l.size == 0 || l.size%l.variant.Unit != 0 {
			return nil, false
		}
		l.group = of.layout.Groups[at].Group
		of.lanes = append(of.lanes, l)
	}
	of.note = []byte(r.s)
	return of, !r.bad
}

// count reads a count of things of at least so many bytes.
func (r *reader) count(bytes int) int {
	n := r.uvarint()
	if n > uint64(len(r.s)/bytes) {
		r.fail()
		return 0
	}
	return int(n)
}

// number reads a number up to most.
func (r *reader) number(most uint64) int {
	n := r.uvarint()
	if n > most {
		r.fail()
		return 0
	}
	return int(n)
}

// appendCursor appends the progress of a writer with a source: the number of its commit, and
// the engine's clock.
func appendCursor(b []byte, seq uint64, at float64) []byte {
	b = binary.LittleEndian.AppendUint64(b, seq)
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(at))
}

// readCursor returns the engine's clock of a cursor; 0: it is unknown.
func readCursor(s string) float64 {
	r := reader{s: s}
	r.u64()
	at := math.Float64frombits(r.u64())
	if r.bad || !(at >= 0 && at <= math.MaxFloat64) {
		return 0
	}
	return at
}
