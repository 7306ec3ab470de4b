package estimate_test

import (
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
)

// model is the plain model of a Cache: a list of blocks, the next one to be evicted first.
type model struct {
	blocks    []modelBlock
	capacity  int
	told      int
	stride    int
	ttl       time.Duration
	use       int  // number of the last use
	cut       bool // a first block was dropped for lack of room
	doubt     int
	corrected int // corrections that changed the capacity
}

type modelBlock struct {
	key  index.Key
	use  int
	when int64
	// prefix is the key of the preceding block, or 0. lost: a following block was dropped for lack
	// of room.
	prefix index.Key
	lost   bool
}

// modelPast is the model's record of a prompt.
type modelPast struct {
	keys     []index.Key // of the cached blocks
	all, run int
	used     []int // previous uses of the run
	use      int
	lost     bool // more of it was cached, and was dropped for lack of room
}

func (m *model) place(k index.Key) int {
	return slices.IndexFunc(m.blocks, func(b modelBlock) bool { return b.key == k })
}

func (m *model) blockKeys(keys []index.Key, stride int) []index.Key {
	var blocks []index.Key
	for i := stride - 1; i < len(keys); i += stride {
		blocks = append(blocks, keys[i])
	}
	return blocks
}

func (m *model) age(now int64) {
	m.blocks = slices.DeleteFunc(m.blocks, func(b modelBlock) bool { return m.ttl > 0 && now-b.when >= int64(m.ttl) })
}

func (m *model) run(keys []index.Key, stride int, now int64) int {
	if stride != m.stride {
		return 0
	}
	n := 0
	for _, k := range m.blockKeys(keys, stride) {
		if i := m.place(k); i < 0 || m.ttl > 0 && now-m.blocks[i].when >= int64(m.ttl) {
			break
		}
		n++
	}
	return n
}

// touch moves the cached blocks of keys to the end, the first one last.
func (m *model) touch(keys []index.Key, now int64) {
	m.use++
	for _, k := range slices.Backward(keys) {
		if i := m.place(k); i >= 0 {
			b := m.blocks[i]
			b.use, b.when = m.use, now
			m.blocks = append(slices.Delete(m.blocks, i, i+1), b)
		}
	}
}

func (m *model) sent(keys []index.Key, stride int, now int64) modelPast {
	blocks := m.blockKeys(keys, stride)
	if len(blocks) == 0 {
		return modelPast{}
	}
	m.age(now)
	if stride != m.stride {
		m.blocks, m.cut, m.stride = nil, false, stride
	}
	p := modelPast{all: len(blocks), keys: blocks[:min(len(blocks), m.capacity)]}
	for _, k := range p.keys {
		if i := m.place(k); i >= 0 {
			p.used = append(p.used, m.blocks[i].use)
			p.run++
		}
	}
	excess := len(m.blocks) + len(p.keys) - p.run - m.capacity
	prefix, lost := index.Key(0), m.cut
	if p.run > 0 {
		prefix = p.keys[p.run-1]
		lost = m.blocks[m.place(prefix)].lost
	}
	if excess > 0 {
		p.lost, m.doubt = lost, 0
	}
	for _, k := range p.keys[p.run:] {
		m.blocks = append(m.blocks, modelBlock{key: k, prefix: prefix})
		prefix = k
	}
	m.touch(p.keys, now)
	p.use = m.use
	m.fit()
	return p
}

// fit drops blocks without room.
func (m *model) fit() {
	for len(m.blocks) > m.capacity {
		if i := m.place(m.blocks[0].prefix); i >= 0 {
			m.blocks[i].lost = true
		} else {
			m.cut = true
		}
		m.blocks = m.blocks[1:]
	}
}

func (m *model) observed(p modelPast, reused int, now int64) {
	m.age(now)
	reused = min(max(reused, 0), p.all)
	before := m.capacity
	exact := reused == p.run || reused == p.run-1 && p.run == p.all
	if reused > p.run && p.lost {
		m.capacity = max(m.capacity, len(m.blocks)+reused-p.run)
	} else if !exact && reused < p.run {
		m.lost(p, reused)
	}
	m.capacity = min(max(m.capacity, p.all), 16*m.told)
	if m.capacity != before {
		m.corrected++
	}
	// The remaining part of the prompt, if it can be determined.
	if len(p.keys) == 0 {
		return
	}
	if m.place(p.keys[len(p.keys)-1]) >= 0 || len(m.blocks) > 0 && m.blocks[0].use == p.use {
		m.touch(p.keys, now)
	}
}

// lost: the engine has lost block i of p, and all blocks used before it.
func (m *model) lost(p modelPast, i int) {
	use := p.used[i]
	if last := p.used[p.run-1]; use != last && use != p.used[0] {
		// Only three uses are kept: others count as the latest but one that is older.
		for j := p.run - 1; p.used[j] != use; j-- {
			if p.used[j] != last {
				use = p.used[j]
				break
			}
		}
	}
	m.blocks = slices.DeleteFunc(m.blocks, func(b modelBlock) bool { return b.use <= use })
	since := max(len(m.blocks)-len(p.keys)+i, p.all, m.told/16, 1)
	if since < m.capacity/2 {
		if m.doubt == 0 {
			m.doubt = m.use
		}
		if use <= m.doubt {
			return
		}
		since, m.doubt = m.capacity/2, 0
	}
	m.capacity = min(m.capacity, since)
	m.fit()
}

func (m *model) undo(p modelPast, now int64) {
	m.age(now)
	// By the remaining blocks at the front of the list, or by its last block.
	for _, k := range p.keys[min(p.run, len(p.keys)):] {
		if i := m.place(k); i >= 0 && m.blocks[i].use == p.use {
			m.blocks = slices.Delete(m.blocks, i, i+1)
		}
	}
}
