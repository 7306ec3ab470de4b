package bench

import (
	"container/list"

	"github.com/kvindex/kvindex/internal/prefixcache"
)

// Beginning names an entry of a prompt cache: a beginning of a text, or a whole text.
type Beginning struct {
	Hash  uint64 // of the text
	Whole bool
}

// PrefixLRU is a plain LRU over the entries of [prefixcache.Cache], exact, with room for
// a number of them. An entry that was evicted may be in the middle of a text: what
// is behind it is then known all the same.
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
