package index

import (
	"container/list"
	"slices"
	"sync"
)

// source is one cache as its events describe it.
//
// The engine speaks of blocks by hash, prompts are looked up by key. So all
// that is known hangs on the name of a hash: the keys it stands for, found
// through byKey, and who holds it. A hash that no store has placed yet has a
// name without keys: it is held, and no query sees it. This makes orphans,
// masked stores and stores by hash alone one case: holding is recorded at
// once, and placing a name, whenever it happens, makes the block visible.
type source struct {
	id  Source
	cfg *MemoryConfig

	// writer orders the Applies. Long ones let go of mu now and then, so that
	// a Match never waits for more than a slice of one.
	writer sync.Mutex

	mu      sync.RWMutex // guards all below
	cursors map[string]Cursor
	groups  map[int]*group
	names   map[Hash]*name
	byKey   map[Key][]*name // exactly the names that have the key
	counts  Counts          // of the Apply in progress or the last

	// lossy: since the last clear, blocks were forgotten that the engine may
	// hold. A report can then name blocks beside the known ones.
	lossy bool

	blocks [NumTiers]int // holdings with copies, by tier
	parked int           // elements of waiting

	// idle are the names that nobody holds, oldest first, at most IdleNames of
	// them after each change. They all have keys: a name without keys and
	// holders is deleted.
	idle list.List

	// pending are the stores of which a hash had no key, oldest first;
	// pendingBytes is the sum of their costs. waiting has those among them
	// that are parked, by the parent that would place them.
	pending      list.List
	pendingBytes int
	waiting      map[place][]*pending
}

// place is a hash in a variant: what a key belongs to.
type place struct {
	hash    Hash
	variant Variant
}

// shape is how the blocks of a holder are cut. The zero shape, of blocks known
// by hash alone, stands for the shape of their group.
type shape struct {
	size    int // tokens
	variant Variant
}

type group struct {
	Group
	shape  shape         // of its gpu blocks; of the largest if sizes differ
	shapes map[shape]int // holders with a block of the shape
}

// name is what a source knows of a hash.
type name struct {
	hash    Hash
	keys    []placed
	held    []holding
	holders int           // elements of held with copies > 0
	idle    *list.Element // in source.idle if and only if holders == 0
}

// placed is a key of a name. Two with one variant make the name ambiguous.
type placed struct {
	key     Key
	variant Variant
}

// holding says that a holder has a block, or had it: one without copies is
// kept only if reported is set.
type holding struct {
	group  *group
	tier   Tier
	copies uint32
	shape  shape
	// reported: a store of the block was taken for a report. It may have been
	// a second copy, so the block may be there although copies is 0. Only gpu
	// holdings of full groups are.
	reported bool
	// parent is the block before this one, if chained.
	chained bool
	parent  Hash
}

// pending is a store of which at least one hash had no key.
type pending struct {
	group  *group
	tier   Tier
	hashes []Hash
	// Parked stores: what places the hashes once the parent has a key.
	parent place
	locals []Local
	shape  shape
	elem   *list.Element
}

const (
	// maxRestore bounds the walk of restore, in blocks: a hostile engine can
	// make the parents a circle.
	maxRestore = 1 << 12
	// maxNames bounds the hashes of one key: it takes salts that the engine
	// does not tell to have more than one.
	maxNames = 64
	// maxShapes bounds the block sizes of a group: partial entries and chunks
	// have one each.
	maxShapes = 64
)

// What a pending store costs, beside its locals: rough figures for the heap
// that its entries and the names of its hashes take.
const (
	pendingBytes     = 256
	pendingHashBytes = 256
)

func (p *pending) cost() int {
	return pendingBytes + pendingHashBytes*len(p.hashes) + 8*len(p.locals)
}

func newSource(id Source, cfg *MemoryConfig) *source {
	return &source{
		id:      id,
		cfg:     cfg,
		cursors: make(map[string]Cursor),
		groups:  make(map[int]*group),
		names:   make(map[Hash]*name),
		byKey:   make(map[Key][]*name),
		waiting: make(map[place][]*pending),
	}
}

// sliceHashes is how many hashes an Apply goes through before it lets readers
// in.
const sliceHashes = 4096

func (s *source) applyAll(cur Cursor, changes []Change) Applied {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cur != (Cursor{}) {
		if old, ok := s.cursors[cur.Stream]; ok && !old.Before(cur) {
			return Applied{Cursor: old, Duplicate: true}
		}
		s.cursors[cur.Stream] = cur
	}
	s.counts = Counts{}
	for i, done := 0, 0; i < len(changes); i++ {
		s.apply(&changes[i])
		if done += 1 + len(changes[i].Hashes); done >= sliceHashes {
			done = 0
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	return Applied{Cursor: cur, Counts: s.counts}
}

func (s *source) apply(c *Change) {
	switch c.Op {
	case OpStore:
		s.store(c)
	case OpRemove:
		s.remove(c)
	case OpClear:
		s.clear()
	}
	for s.idle.Len() > s.cfg.IdleNames {
		s.delete(s.idle.Front().Value.(*name))
		s.counts.Forgotten++
	}
}

// store places what can be placed, then counts.
func (s *source) store(c *Change) {
	g := s.group(c)
	if len(c.Hashes) == 0 {
		return
	}
	s.counts.Stored += uint64(len(c.Hashes))
	dense := len(c.Locals) > 0 && len(c.Hashes) == c.Blocks()
	held, sh := c.Hashes, shape{c.BlockSize, c.Variant}
	switch {
	case c.Tier != TierGPU && dense:
		// A chunk of a lower tier is loaded as a whole or not at all: one
		// block, named by its last hash.
		held = c.Hashes[len(c.Hashes)-1:]
		sh.size *= len(c.Hashes)
	case len(c.Locals) == 0:
		sh = shape{}
	}
	if g.shapes[sh] == 0 && len(g.shapes) >= maxShapes {
		s.counts.Dropped++
		s.lossy = true
		return
	}
	// What a lower tier says of a prefix leaves out salts and media, so it
	// names nothing.
	parked := dense && c.Tier == TierGPU && !s.place(c, sh)
	s.hold(c, g, held, sh, dense)

	if parked {
		s.park(&pending{
			group: g, tier: c.Tier, hashes: slices.Clone(c.Hashes),
			parent: place{c.Parent, c.Variant}, locals: slices.Clone(c.Locals),
			shape: sh,
		})
	} else if slices.ContainsFunc(held, s.unplaced) {
		s.await(&pending{group: g, tier: c.Tier, hashes: slices.Clone(held)})
	}
}

// unplaced reports whether h is held and has no key.
func (s *source) unplaced(h Hash) bool {
	n := s.names[h]
	return n != nil && len(n.keys) == 0
}

// group returns the group of a store, with what the store tells about it.
func (s *source) group(c *Change) *group {
	g := s.groups[c.Group.ID]
	if g == nil {
		g = &group{Group: c.Group, shapes: make(map[shape]int)}
		s.groups[c.Group.ID] = g
	}
	if c.Tier == TierGPU { // others may leave out the kind
		g.Group = c.Group
		if len(c.Locals) > 0 && c.BlockSize > g.shape.size {
			g.shape = shape{c.BlockSize, c.Variant}
		}
	}
	return g
}

// place names the hashes of a dense store and reports whether its parent was
// known. What waited for one of the names is placed too.
func (s *source) place(c *Change, sh shape) bool {
	prev := c.Root
	if c.HasParent {
		var ok bool
		if prev, ok = s.keyOf(place{c.Parent, c.Variant}); !ok {
			return false
		}
	}
	s.nameRange(prev, c.Hashes, c.Locals, sh)
	return true
}

// keyOf returns the key of a hash in a variant, if there is just one.
func (s *source) keyOf(at place) (key Key, ok bool) {
	n := s.names[at.hash]
	if n == nil {
		return 0, false
	}
	for _, p := range n.keys {
		if p.variant != at.variant {
			continue
		}
		if ok {
			return 0, false // ambiguous
		}
		key, ok = p.key, true
	}
	return key, ok
}

// nameRange gives consecutive blocks behind prev their keys, and then the
// parked stores that continue any of them, theirs. It works through a list
// because chains of orphans may be long.
func (s *source) nameRange(prev Key, hashes []Hash, locals []Local, sh shape) {
	type run struct {
		prev   Key
		hashes []Hash
		locals []Local
		shape  shape
	}
	work := []run{{prev, hashes, locals, sh}}
	for len(work) > 0 {
		r := work[len(work)-1]
		work = work[:len(work)-1]
		units := r.shape.size / r.shape.variant.Unit
		key := r.prev
		for i, h := range r.hashes {
			for _, l := range r.locals[i*units : (i+1)*units] {
				key = Chain(key, l)
			}
			s.nameOne(h, placed{key, r.shape.variant})
			at := place{h, r.shape.variant}
			k, ok := s.keyOf(at)
			for ok && len(s.waiting[at]) > 0 {
				p := s.waiting[at][0]
				s.unpark(p)
				s.counts.Joined++
				work = append(work, run{k, p.hashes, p.locals, p.shape})
			}
		}
	}
}

// nameOne records that h stands for a key.
func (s *source) nameOne(h Hash, p placed) {
	n := s.nameOf(h)
	if slices.Contains(n.keys, p) {
		return
	}
	if slices.ContainsFunc(n.keys, func(o placed) bool { return o.variant == p.variant }) {
		if n.holders == 0 {
			s.unname(n, p.variant) // the old block has gone: the hash is used anew
			s.giveUp(n)
		} else if s.counts.Ambiguous++; n.ambiguous() {
			return // two keys are enough to know that nothing can be placed by it
		}
	}
	if len(s.byKey[p.key]) >= maxNames {
		s.counts.Ambiguous++
		return
	}
	n.keys = append(n.keys, p)
	s.byKey[p.key] = append(s.byKey[p.key], n)
}

func (s *source) unname(n *name, v Variant) {
	n.keys = slices.DeleteFunc(n.keys, func(p placed) bool {
		if p.variant == v {
			s.unkey(p.key, n)
		}
		return p.variant == v
	})
}

func (s *source) unkey(k Key, n *name) {
	of := s.byKey[k]
	if len(of) == 1 {
		delete(s.byKey, k)
		return
	}
	i := slices.Index(of, n)
	s.byKey[k] = slices.Delete(of, i, i+1)
}

func (n *name) ambiguous() bool {
	for i, p := range n.keys {
		for _, o := range n.keys[:i] {
			if p.variant == o.variant {
				return true
			}
		}
	}
	return false
}

// nameOf returns the name of h, made if need be. A new one must be given a key
// or a holder before the end of the change.
func (s *source) nameOf(h Hash) *name {
	n := s.names[h]
	if n == nil {
		n = &name{hash: h}
		n.idle = s.idle.PushBack(n)
		s.names[h] = n
	}
	return n
}

// settle puts a name where it belongs after its keys or holders changed.
func (s *source) settle(n *name) {
	switch {
	case n.holders > 0:
		if n.idle != nil {
			s.idle.Remove(n.idle)
			n.idle = nil
		}
	case len(n.keys) == 0:
		s.delete(n)
	case n.idle == nil:
		n.idle = s.idle.PushBack(n)
	}
}

// delete takes away a name that nobody holds.
func (s *source) delete(n *name) {
	s.giveUp(n)
	for _, p := range n.keys {
		s.unkey(p.key, n)
	}
	n.keys = nil
	if n.idle != nil {
		s.idle.Remove(n.idle)
		n.idle = nil
	}
	delete(s.names, n.hash)
}

// hold records that the holder has the blocks, as the rules of Copies say.
func (s *source) hold(c *Change, g *group, hashes []Hash, sh shape, dense bool) {
	guarded := c.Tier == TierGPU && c.Copies.Guarded()
	full := g.Kind == GroupFull
	if guarded && full && c.HasParent {
		s.restore(c.Parent, g)
	}
	if guarded && !full && !c.HasParent && s.anyHeld(hashes, g) {
		// Reports of sparse groups name blocks that nobody holds.
		s.counts.Reports += uint64(len(hashes))
		return
	}
	report := c.Reused || guarded && !c.HasParent && (c.Copies == CopiesPartial || s.lossy || s.allSeen(hashes, g))
	for i, h := range hashes {
		n := s.nameOf(h)
		b := n.holding(g, c.Tier)
		if b == nil {
			n.held = append(n.held, holding{group: g, tier: c.Tier})
			b = &n.held[len(n.held)-1]
		}
		switch {
		case b.copies == 0:
			if b.reported {
				s.counts.Restored++
			}
			s.gain(n, b, sh)
		case c.Tier != TierGPU || c.Copies == CopiesSet:
		case report || guarded && !full:
			s.counts.Reports++
			b.reported = guarded && full
		default:
			b.copies++
		}
		switch {
		case !dense:
		case i > 0:
			b.chained, b.parent = true, hashes[i-1]
		default:
			b.chained, b.parent = c.HasParent, c.Parent
		}
		s.settle(n)
	}
}

// allSeen reports whether each block is held in the gpu tier of g, or may be.
func (s *source) allSeen(hashes []Hash, g *group) bool {
	for _, h := range hashes {
		n := s.names[h]
		if n == nil || n.holding(g, TierGPU) == nil {
			return false
		}
	}
	return true
}

// anyHeld reports whether one of the blocks is held in the gpu tier of g.
func (s *source) anyHeld(hashes []Hash, g *group) bool {
	return slices.ContainsFunc(hashes, func(h Hash) bool {
		n := s.names[h]
		if n == nil {
			return false
		}
		b := n.holding(g, TierGPU)
		return b != nil && b.copies > 0
	})
}

// restore brings back a block that was forgotten while a store of it had been
// taken for a report, and its ancestors: a gpu store of a full group that names
// it as its parent proves that they are there.
func (s *source) restore(h Hash, g *group) {
	for i := range maxRestore {
		n := s.names[h]
		if n == nil {
			return
		}
		b := n.holding(g, TierGPU)
		if b == nil || i == 0 && b.copies > 0 {
			return
		}
		if b.copies == 0 {
			s.counts.Restored++
			s.gain(n, b, b.shape)
			s.settle(n)
		}
		if !b.chained {
			return
		}
		h = b.parent
	}
}

func (n *name) holding(g *group, t Tier) *holding {
	for i := range n.held {
		if b := &n.held[i]; b.group == g && b.tier == t {
			return b
		}
	}
	return nil
}

// gain gives a holder its first copy.
func (s *source) gain(n *name, b *holding, sh shape) {
	b.copies = 1
	b.shape = sh
	b.group.shapes[sh]++
	n.holders++
	s.blocks[b.tier]++
}

// lose takes the last copy from a holder.
func (s *source) lose(n *name, b *holding) {
	b.copies = 0
	n.holders--
	s.blocks[b.tier]--
	if b.group.shapes[b.shape]--; b.group.shapes[b.shape] == 0 {
		delete(b.group.shapes, b.shape)
	}
	if b.reported {
		return
	}
	n.held = slices.DeleteFunc(n.held, func(o holding) bool { return o.group == b.group && o.tier == b.tier })
}

// giveUp drops what is remembered of blocks that may be there after all.
func (s *source) giveUp(n *name) {
	s.lossy = s.lossy || len(n.held) > 0
	n.held = nil
}

func (s *source) remove(c *Change) {
	g := s.groups[c.Group.ID]
	for i, h := range c.Hashes {
		s.counts.Removed++
		n := s.names[h]
		var b *holding
		if n != nil && g != nil {
			b = n.holding(g, c.Tier)
		}
		if b == nil || b.copies == 0 {
			s.counts.UnknownRemove++
			continue
		}
		left := b.copies - 1
		ambiguous := n.ambiguous()
		switch {
		case c.Remaining != nil:
			left = c.Remaining[i]
		case ambiguous:
			left = 0
			s.lossy = s.lossy || b.copies > 1 || b.reported
		}
		if left > 0 {
			b.copies = left
			continue
		}
		s.lose(n, b)
		if ambiguous && n.holders == 0 {
			s.delete(n) // whichever key it is used for next is the only one
			continue
		}
		s.settle(n)
	}
}

func (s *source) clear() {
	s.counts.Cleared++
	s.groups = make(map[int]*group)
	s.pending.Init()
	s.pendingBytes = 0
	s.waiting = make(map[place][]*pending)
	s.parked = 0
	s.blocks = [NumTiers]int{}
	s.lossy = false
	for _, n := range s.names { // in any order: all were left at once
		n.held, n.holders = nil, 0
		s.settle(n)
	}
}

// park keeps a store until its parent has a key.
func (s *source) park(p *pending) {
	s.counts.Parked++
	s.parked++
	s.waiting[p.parent] = append(s.waiting[p.parent], p)
	s.await(p)
}

// await keeps a store in the queue of those that hold unplaced blocks.
func (s *source) await(p *pending) {
	p.elem = s.pending.PushBack(p)
	s.pendingBytes += p.cost()
	for s.pendingBytes > s.cfg.PendingBytes {
		s.drop(s.pending.Front().Value.(*pending))
	}
}

// unpark takes a parked store from the queues.
func (s *source) unpark(p *pending) {
	s.parked--
	of := s.waiting[p.parent]
	if len(of) == 1 {
		delete(s.waiting, p.parent)
	} else {
		i := slices.Index(of, p)
		s.waiting[p.parent] = slices.Delete(of, i, i+1)
	}
	s.leave(p)
}

func (s *source) leave(p *pending) {
	s.pending.Remove(p.elem)
	s.pendingBytes -= p.cost()
}

// drop gives up a store at the bound: its blocks that still have no key are
// forgotten.
func (s *source) drop(p *pending) {
	if p.locals != nil {
		s.unpark(p)
	} else {
		s.leave(p)
	}
	lost := false
	for _, h := range p.hashes {
		n := s.names[h]
		if n == nil || len(n.keys) > 0 {
			continue
		}
		if b := n.holding(p.group, p.tier); b != nil && b.copies > 0 {
			b.reported = false
			s.lose(n, b)
			s.lossy, lost = true, true
		}
		s.settle(n)
	}
	if lost || p.locals != nil {
		s.counts.Dropped++
	}
}

func (s *source) describe() SourceInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return SourceInfo{Source: s.id, Blocks: s.blocks, Names: len(s.names), Parked: s.parked}
}
