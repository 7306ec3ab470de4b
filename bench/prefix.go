package bench

import (
	"container/list"
	"slices"

	"github.com/elastic/go-freelru"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/prefixcache"
)

// Beginning names an entry of a prompt cache: a beginning of a text, or a whole text.
type Beginning struct {
	Hash  uint64 // of the text
	Whole bool
}

// PrefixLRU is a plain LRU over the entries of [prefixcache.Cache], exact, with room for
// a number of them. An entry that was evicted may be in the middle of a text:
// those behind it are then found all the same.
type PrefixLRU struct {
	room    int
	order   *list.List // of Beginnings; those used last in front
	entries map[Beginning]*list.Element
}

// NewPrefixLRU returns an empty PrefixLRU.
func NewPrefixLRU(room int) *PrefixLRU {
	return &PrefixLRU{room: room, order: list.New(), entries: make(map[Beginning]*list.Element)}
}

// Ask looks up a text, given by the hashes of its beginnings at each
// [prefixcache.Grain] and of the whole, and returns the number of its bytes that are
// cached. Then it adds the text, and marks all of it as used, its beginning last.
func (l *PrefixLRU) Ask(length int, beginnings []uint64, whole uint64) (known int) {
	if l.entries[Beginning{whole, true}] != nil {
		known = length
	} else {
		for i := len(beginnings); i > 0 && known == 0; i-- {
			if l.entries[Beginning{beginnings[i-1], false}] != nil {
				known = i * prefixcache.Grain
			}
		}
	}
	l.use(Beginning{whole, true})
	for i := len(beginnings) - 1; i >= 0; i-- {
		l.use(Beginning{beginnings[i], false})
	}
	for len(l.entries) > l.room {
		delete(l.entries, l.order.Remove(l.order.Back()).(Beginning))
	}
	return known
}

func (l *PrefixLRU) use(k Beginning) {
	if e := l.entries[k]; e != nil {
		l.order.MoveToFront(e)
		return
	}
	l.entries[k] = l.order.PushFront(k)
}

// PrefixFree keeps the entries of [prefixcache.Cache] in elastic/go-freelru, each a value
// of its own, behind its lock. It has room for a number of entries, whatever they take.
type PrefixFree struct {
	entries *freelru.SyncedLRU[Beginning, prefixState]
}

// prefixState has the locals that are behind the entry before.
type prefixState struct {
	resume, tokens int
	locals         []index.Local
	tail           []uint32
	fold           uint64
}

// NewPrefixFree returns an empty PrefixFree.
func NewPrefixFree(room uint32) (*PrefixFree, error) {
	entries, err := freelru.NewSynced[Beginning, prefixState](room, func(b Beginning) uint32 { return uint32(b.Hash) })
	return &PrefixFree{entries}, err
}

// Find appends the locals of a text that is known whole.
func (f *PrefixFree) Find(dst []index.Local, beginnings []uint64, whole uint64) ([]index.Local, bool) {
	w, ok := f.entries.Get(Beginning{whole, true})
	for i := 0; i < len(beginnings) && ok; i++ {
		var s prefixState
		s, ok = f.entries.Get(Beginning{beginnings[i], false})
		dst = append(dst, s.locals...)
	}
	return append(dst, w.locals...), ok
}

// Add keeps a text, with a local for each 64 bytes and a tail of seven ids.
func (f *PrefixFree) Add(length int, beginnings []uint64, whole uint64, locals []index.Local) {
	from := 0
	for i, b := range beginnings {
		at := (i + 1) * prefixcache.Grain
		f.entries.Add(Beginning{b, false}, prefixState{at, at / 4, slices.Clone(locals[from : at/64]), make([]uint32, 7), 0})
		from = at / 64
	}
	f.entries.Add(Beginning{whole, true}, prefixState{length, length / 4, slices.Clone(locals[from:]), nil, 0})
}
