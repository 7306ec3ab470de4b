package resp

import "sync"

// name is a value that was there.
type name struct {
	ref
	size    int64
	content content
	ends    int64
}

// names are the values that were stored or found since the start, for SCAN and DBSIZE. Each
// that comes has two others looked at whether they are still there, so that there are about
// as many as values. Its methods may be called at the same time.
type names struct {
	mu    sync.Mutex // guards the fields below
	slots []name     // a free one is zero
	free  []int
	at    map[ref]int
	hand  int // the slot that is looked at next
}

// add notes a value. It calls holds without its lock.
func (ns *names) add(n name, holds func(name) bool) {
	ns.mu.Lock()
	if i, ok := ns.at[n.ref]; ok {
		ns.slots[i] = n
		ns.mu.Unlock()
		return
	}
	if ns.at == nil {
		ns.at = make(map[ref]int)
	}
	if last := len(ns.free) - 1; last >= 0 {
		ns.at[n.ref] = ns.free[last]
		ns.free = ns.free[:last]
	} else {
		ns.at[n.ref] = len(ns.slots)
		ns.slots = append(ns.slots, name{})
	}
	ns.slots[ns.at[n.ref]] = n
	look := make([]name, 0, 2)
	for range cap(look) {
		ns.hand = (ns.hand + 1) % len(ns.slots)
		if n := ns.slots[ns.hand]; n != (name{}) {
			look = append(look, n)
		}
	}
	ns.mu.Unlock()
	for _, n := range look {
		if !holds(n) {
			ns.lose(n)
		}
	}
}

// lose forgets a value unless it has become another.
func (ns *names) lose(n name) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if i, ok := ns.at[n.ref]; ok && ns.slots[i] == n {
		ns.drop(i)
	}
}

func (ns *names) remove(id ref) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if i, ok := ns.at[id]; ok {
		ns.drop(i)
	}
}

func (ns *names) drop(i int) {
	delete(ns.at, ns.slots[i].ref)
	ns.slots[i] = name{}
	ns.free = append(ns.free, i)
}

func (ns *names) clear() {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.slots, ns.free, ns.at, ns.hand = nil, nil, nil, 0
}

// scan returns at most n values of a database from a place on, and the place behind them, 0
// at the end. A value that is there all the time is returned once at least.
func (ns *names) scan(db uint32, from, n int) (found []name, next int) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for i := max(from, 0); i < len(ns.slots); i++ {
		if len(found) == n {
			return found, i
		}
		if s := ns.slots[i]; s != (name{}) && s.db == db {
			found = append(found, s)
		}
	}
	return found, 0
}
