package index

import (
	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
	"github.com/kvindex/kvindex/index/internal/names"
)

// nameSet is the names of a source, and what the table has no room for.
type nameSet struct {
	names   names.Table[Hash, value]
	riches  pool[richName]
	copies  pool[copyCount]
	more    pool[moreKey]
	waiters pool[waiter]
	idle    idleQueue
	hidden  hiddenKeys
	shared  sharedKeys
	keyless int // names that are held and have no key
}

func newNameSet(f *forest.Forest, count *mem.Count) nameSet {
	return nameSet{
		riches:  pool[richName]{mem: count},
		copies:  pool[copyCount]{mem: count},
		more:    pool[moreKey]{mem: count},
		waiters: pool[waiter]{mem: count},
		idle:    idleQueue{f: f, pool: pool[idleName]{mem: count}},
	}
}

// nameBytes returns what the names take.
func (ns *nameSet) nameBytes() int {
	return ns.names.Bytes() + ns.riches.bytes() + ns.copies.bytes() + ns.more.bytes() + ns.idle.bytes() +
		ns.shared.names.bytes() + ns.hidden.names.bytes() + ns.waiters.bytes()
}

// hasRoom reports whether a name can be stored without more memory.
func (ns *nameSet) hasRoom(h Hash) bool {
	return ns.shared.names == nil && (ns.names.HasRoom(h) || ns.names.Get(h) != 0) && ns.riches.hasRoom() && ns.copies.hasRoom()
}

// discardNames releases the names of a source that has nothing in the forest.
func (ns *nameSet) discardNames() {
	ns.names.Release()
	ns.riches.release()
	ns.copies.release()
	ns.more.release()
	ns.idle.release()
	ns.waiters.release()
}
