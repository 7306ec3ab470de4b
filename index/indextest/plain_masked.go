package indextest

import (
	"slices"

	"github.com/kvindex/kvindex/index"
)

// plainMaskedStore is the content of a masked store of a window group beside its hashes.
type plainMaskedStore struct {
	need     int // blocks that the window needs
	fromRoot bool
	root     index.Key
	parent   index.Hash
	units    int  // of the range
	looked   bool // in plainSource.looks
	waits    bool // for its parent
}

// mask records that a store is masked, if its group's window is known.
func (s *plainSource) mask(w *plainWait, c *index.Change) {
	g := s.groups[c.Group.ID]
	if g.Kind != index.GroupWindow || g.Window < 2 {
		return
	}
	need := (g.Window - 1 + c.BlockSize - 1) / c.BlockSize
	w.masked = &plainMaskedStore{need: need, fromRoot: !c.HasParent, root: c.Root, parent: c.Parent, units: len(c.Locals)}
	if g.Draft && !c.UncertainLocals {
		w.locals = slices.Clone(c.Locals)
	}
}

// look has a masked store looked at when the changes are applied.
func (s *plainSource) look(w *plainWait) {
	if w.masked != nil && !w.masked.looked {
		w.masked.looked = true
		s.looks = append(s.looks, w)
	}
}

// settle places the hashes of masked stores that follow from those that are known.
func (s *plainSource) settle() {
	for len(s.looks) > 0 {
		w := s.looks[0]
		s.looks = s.looks[1:]
		if !slices.Contains(s.waiting, w) {
			continue
		}
		m := s.unmask(w)
		m.place()
		w.masked.looked = false
		if w.locals != nil && !w.masked.fromRoot && len(s.names[w.masked.parent].keysIn(w.by.variant)) == 0 {
			w.masked.waits = true
		}
		if !slices.ContainsFunc(w.hashes, s.unplaced) {
			s.waiting = slices.DeleteFunc(s.waiting, func(o *plainWait) bool { return o == w })
		}
		s.join(w.by.variant, m.hashes)
	}
}

// unmask returns what follows in a masked store from what is known.
func (s *plainSource) unmask(w *plainWait) *plainUnmask {
	m := &plainUnmask{plainSource: s, w: w, draft: s.groups[w.at.group].Draft}
	m.follow()
	return m
}

// whole reports whether all hashes of the store are known or follow.
func (m *plainUnmask) whole() bool {
	return m.ordered && len(m.known)+len(m.hashes) == len(m.w.hashes)
}

// place gives the hashes that follow their keys.
func (m *plainUnmask) place() {
	for i, h := range m.hashes {
		m.plainSource.place(h, m.keys[i])
		m.deduced++
	}
}

// plainUnmask is a masked store that is being placed.
type plainUnmask struct {
	*plainSource
	w     *plainWait
	draft bool // the group keeps the block behind each boundary
	known []plainKnownHash
	// ordered: the known ones do not contradict each other.
	ordered bool
	// hashes follow, and have keys.
	hashes []index.Hash
	keys   []plainKey
}

// plainKnownHash is a hash of a masked store that has a key.
type plainKnownHash struct {
	i     int // in hashes
	key   plainKey
	block int // how many blocks it is behind the first known one
	// larger is the largest block that another group holds by the hash, in tokens.
	larger int
}

// follow finds what follows from the hashes that have keys. All hashes of the store are
// listed in the order of the prompt. They are runs of need blocks, and in a draft group
// one more behind each. A run ends at a boundary, where a block of a group with larger
// blocks ends. All runs are whole but the first.
func (m *plainUnmask) follow() {
	if m.ordered = m.know(); !m.ordered {
		return
	}
	hashes, need := m.w.hashes, m.w.masked.need
	if len(m.known) == 0 {
		if len(hashes) == 1 && need > 1 { // it is no run, so it is behind one
			m.placeAtBegin()
		}
		return
	}
	for k := len(m.known); k >= 0; k-- { // the hashes between known k-1 and known k
		var left, right plainKnownHash
		run, sure, ok := 0, false, false
		if k < len(m.known) {
			right = m.known[k]
			run, sure, ok = m.runBefore(k)
		}
		if k > 0 {
			left = m.known[k-1]
		}
		switch {
		case k == len(m.known):
			if left.i < len(hashes)-1 {
				m.placeBehind(left)
			}
		case k > 0 && right.i-left.i == right.block-left.block: // no block is left out
			m.countBack(right, right.i-left.i-1)
		case k > 0:
			if listed := right.i - left.i - 1; listed >= run {
				m.countBack(right, run)
				if listed > run {
					m.placeBehind(left)
				}
			}
		case right.i > 0:
			n := min(right.i, run)
			if right.i <= run && m.draft && !sure && m.beginsAtBoundary() {
				n-- // of two runs, if the store ends within the second
			}
			m.countBack(right, n)
			if ok && right.i == run+1 {
				m.placeAtBegin()
			}
		}
	}
}

// know finds the hashes that have a key. It returns false if one has two, or they are
// not in the order of one prompt.
func (m *plainUnmask) know() bool {
	v, blockUnits := m.w.by.variant, m.w.by.units()
	for i, h := range m.w.hashes {
		keys := m.names[h].keysIn(v)
		if m.w.gone[h] || len(keys) == 0 {
			continue
		}
		if len(keys) > 1 {
			return false
		}
		b := plainKnownHash{i: i, key: keys[0], larger: m.larger(h)}
		if n := len(m.known); n > 0 {
			left := m.known[n-1]
			units := m.between(&left.key, b.key)
			if units < 0 || units%blockUnits != 0 || units/blockUnits < i-left.i {
				return false
			}
			b.block = left.block + units/blockUnits
		}
		m.known = append(m.known, b)
	}
	return true
}

// larger returns the largest block that another group holds by a hash, in tokens; 0 if
// it is not larger than those of the store.
func (m *plainUnmask) larger(h index.Hash) (size int) {
	for id := range m.groups {
		if b := m.names[h].of(plainHolder{id, index.TierGPU}); id != m.w.at.group && b != nil && b.n > 0 {
			size = max(size, m.cutOf(b).size)
		}
	}
	if size <= m.w.by.size {
		return 0
	}
	return size
}

// between returns how many units a key is behind another one, nil standing for the
// root; -1 if it is not, or further than the store is long.
func (m *plainUnmask) between(above *plainKey, k plainKey) int {
	for n := 0; n <= m.w.masked.units; n++ {
		if above != nil && k == *above {
			return n
		}
		before, ok := m.before[k]
		if !ok {
			if above == nil && n < m.w.masked.units {
				return n + 1
			}
			return -1
		}
		k.key = before
	}
	return -1
}

// runBefore returns how many blocks the run of a known one has before it; false: it is
// not known where the run ends. It ends at a boundary of blocks that are as long as a
// run for sure. Else it ends at the last block that is known to follow without a gap, if
// that is a boundary, or behind one.
func (m *plainUnmask) runBefore(k int) (n int, sure, ok bool) {
	isSure := func(b plainKnownHash) bool { return b.larger >= m.w.masked.need*m.w.by.size }
	end := k
	for !isSure(m.known[end]) && end+1 < len(m.known) && m.known[end+1].i-m.known[end].i == m.known[end+1].block-m.known[end].block {
		end++
	}
	if b := m.known[end]; b.larger == 0 && m.draft && end > k && m.known[end-1].block == b.block-1 {
		end--
	}
	if m.known[end].larger == 0 {
		return 0, false, false
	}
	return max(m.w.masked.need-1-(m.known[end].block-m.known[k].block), 0), isSure(m.known[end]), true
}

// countBack places n hashes that are listed before a known one.
func (m *plainUnmask) countBack(b plainKnownHash, n int) {
	for i := b.i - 1; i >= b.i-n; i-- {
		for range m.w.by.units() {
			before, ok := m.before[b.key]
			if !ok {
				return
			}
			b.key.key = before
		}
		m.give(i, b.key)
	}
}

// placeBehind places the hash listed behind a boundary, in a draft group.
func (m *plainUnmask) placeBehind(b plainKnownHash) {
	begin, ok := m.begin()
	if !ok || b.larger == 0 {
		return
	}
	if units := m.between(begin, b.key); units >= 0 && units%m.w.by.units() == 0 {
		m.placeByTokens(b.i+1, b.key.key, false, units)
	}
}

// placeAtBegin places the first hash right where the store of a draft group begins, if
// that is a boundary.
func (m *plainUnmask) placeAtBegin() {
	begin, ok := m.begin()
	if !ok || !m.beginsAtBoundary() {
		return
	}
	from := m.w.masked.root
	if begin != nil {
		from = begin.key
	}
	m.placeByTokens(0, from, begin == nil, 0)
}

func (m *plainUnmask) beginsAtBoundary() bool {
	return m.w.masked.fromRoot || m.larger(m.w.masked.parent) > 0
}

// begin returns the key behind which the store begins, nil for a root.
func (m *plainUnmask) begin() (k *plainKey, ok bool) {
	if m.w.masked.fromRoot {
		return nil, true
	}
	keys := m.names[m.w.masked.parent].keysIn(m.w.by.variant)
	if len(keys) != 1 {
		return nil, false
	}
	return &keys[0], true
}

// placeByTokens places hash i behind a prefix, by the store's tokens from a unit on.
func (m *plainUnmask) placeByTokens(i int, behind index.Key, root bool, from int) {
	if to := from + m.w.by.units(); to <= len(m.w.locals) { // only those of draft groups have any
		m.give(i, m.chain(behind, root, m.w.locals[from:to], m.w.by)[0])
	}
}

// give notes the key of hash i.
func (m *plainUnmask) give(i int, k plainKey) {
	if h := m.w.hashes[i]; !m.w.gone[h] {
		m.hashes, m.keys = append(m.hashes, h), append(m.keys, k)
	}
}
