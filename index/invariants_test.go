package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkInvariants returns what in s contradicts the comments of its fields.
func (s *source) checkInvariants() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var blocks [NumTiers]int
	shapes := map[*group]map[shape]int{}
	keys := 0
	for h, n := range s.names {
		holders := 0
		for _, b := range n.held {
			if b.copies == 0 {
				if !b.reported || b.tier != TierGPU || b.group.Kind != GroupFull {
					return fmt.Errorf("name %d: a holding without copies that is no hidden one: %+v", h, b)
				}
				continue
			}
			holders++
			blocks[b.tier]++
			if shapes[b.group] == nil {
				shapes[b.group] = map[shape]int{}
			}
			shapes[b.group][b.shape]++
		}
		switch {
		case n.hash != h:
			return fmt.Errorf("name %d is called %d", h, n.hash)
		case holders != n.holders:
			return fmt.Errorf("name %d: %d holders, counted %d", h, holders, n.holders)
		case (n.idle != nil) != (holders == 0):
			return fmt.Errorf("name %d: %d holders, idle %v", h, holders, n.idle != nil)
		case holders == 0 && len(n.keys) == 0:
			return fmt.Errorf("name %d has neither keys nor holders", h)
		}
		for _, p := range n.keys {
			keys++
			if !slices.Contains(s.byKey[p.key], n) {
				return fmt.Errorf("name %d is not found by its key", h)
			}
		}
	}
	for k, of := range s.byKey {
		keys -= len(of)
		if len(of) == 0 || len(of) > maxNames {
			return fmt.Errorf("key %x has %d names", k, len(of))
		}
	}
	if keys != 0 {
		return fmt.Errorf("%d keys of names more than in byKey", keys)
	}
	if blocks != s.blocks {
		return fmt.Errorf("blocks %v, counted %v", blocks, s.blocks)
	}
	for id, g := range s.groups {
		if len(g.shapes) != len(shapes[g]) || len(g.shapes) > maxShapes {
			return fmt.Errorf("group %d: shapes %v, counted %v", id, shapes[g], g.shapes)
		}
		for sh, n := range g.shapes {
			if shapes[g][sh] != n {
				return fmt.Errorf("group %d: shapes %v, counted %v", id, shapes[g], g.shapes)
			}
		}
		delete(shapes, g)
	}
	if len(shapes) > 0 {
		return fmt.Errorf("blocks are held in groups that are gone")
	}
	for e := s.idle.Front(); e != nil; e = e.Next() {
		if n := e.Value.(*name); n.idle != e || s.names[n.hash] != n {
			return fmt.Errorf("name %d is idle and not known", n.hash)
		}
	}
	if s.idle.Len() > s.cfg.IdleNames {
		return fmt.Errorf("%d idle names", s.idle.Len())
	}
	return s.checkPending()
}

func (s *source) checkPending() error {
	cost, parked := 0, 0
	waits := map[Hash]bool{}
	for e := s.pending.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pending)
		cost += p.cost()
		for _, h := range p.hashes {
			waits[h] = true
		}
		if p.locals == nil {
			continue
		}
		parked++
		if !slices.Contains(s.waiting[p.parent], p) {
			return fmt.Errorf("a parked store does not wait for its parent %v", p.parent)
		}
	}
	if cost != s.pendingBytes || cost > s.cfg.PendingBytes {
		return fmt.Errorf("pending stores cost %d, counted %d", cost, s.pendingBytes)
	}
	for at, of := range s.waiting {
		parked -= len(of)
		if len(of) == 0 {
			return fmt.Errorf("nobody waits for %v", at)
		}
		if _, ok := s.keyOf(at); ok {
			return fmt.Errorf("a store waits for %v, which has a key", at)
		}
	}
	if parked != 0 {
		return fmt.Errorf("%d parked stores more than waiting ones", parked)
	}
	for h, n := range s.names {
		if len(n.keys) == 0 && !waits[h] {
			return fmt.Errorf("name %d is held, has no key, and is in no bounded queue", h)
		}
	}
	return nil
}

// TestInvariants has hashes, parents and keys drawn at random, so that they
// contradict each other as no engine's would, against tiny bounds.
func TestInvariants(t *testing.T) {
	var total Counts
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		m, err := NewMemory(MemoryConfig{PendingBytes: 8 << 10, IdleNames: 1 + r.IntN(20)})
		if err != nil {
			t.Fatal(err)
		}
		src := Source{Pod: "a", Model: "m"}
		for step := range 400 {
			c := randomChange(r)
			done, err := m.Apply(context.Background(), src, Cursor{}, []Change{c})
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			total.Add(done.Counts)
			if err := m.models["m"].pods["a"][0].checkInvariants(); err != nil {
				t.Fatalf("seed %d, step %d, after %+v: %v", seed, step, c, err)
			}
		}
	}
	t.Logf("%+v", total)
	if total.Parked < 500 || total.Joined < 100 || total.Dropped < 100 || total.Forgotten < 500 || total.Ambiguous < 100 || total.Restored < 20 || total.Reports < 100 || total.Cleared < 50 {
		t.Errorf("too little happened: %+v", total)
	}
}

// Whatever makes blocks of a new size, a group has a bounded number of sizes.
func TestShapesBound(t *testing.T) {
	for name, change := range map[string]func(blocks int) Change{
		"block sizes": func(n int) Change { return Change{BlockSize: 16 * n, Hashes: []Hash{Hash(n)}} },
		"chunks": func(n int) Change {
			return Change{BlockSize: 16, Hashes: make([]Hash, n), Tier: TierCPU}
		},
		"masked": func(n int) Change { return Change{BlockSize: 8 * n, Hashes: []Hash{Hash(n)}} },
	} {
		m, err := NewMemory(MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		dropped := uint64(0)
		for n := 1; n <= 3*maxShapes; n++ {
			c := change(n)
			c.Op, c.Copies = OpStore, CopiesExact
			if c.Tier == TierCPU {
				c.Hashes[n-1] = Hash(n)
			}
			c.Variant = Variant{Unit: UnitOf(c.BlockSize)}
			blocks := len(c.Hashes)
			if name == "masked" {
				blocks++
			}
			c.Locals = make([]Local, blocks*c.BlockSize/c.Variant.Unit)
			done, err := m.Apply(context.Background(), Source{Pod: "a", Model: "m"}, Cursor{}, []Change{c})
			if err != nil {
				t.Fatal(err)
			}
			dropped += done.Counts.Dropped
		}
		s := m.models["m"].pods["a"][0]
		if got := len(s.groups[0].shapes); got != maxShapes || dropped < 2*maxShapes {
			t.Errorf("%s: %d sizes, %d stores dropped", name, got, dropped)
		}
		if err := s.checkInvariants(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func randomChange(r *rand.Rand) Change {
	c := Change{
		Group:  []Group{{}, {}, {ID: 1, Kind: GroupWindow, Window: 32}}[r.IntN(3)],
		Tier:   []Tier{TierGPU, TierGPU, TierGPU, TierCPU}[r.IntN(4)],
		Copies: Copies(1 + r.IntN(4)),
	}
	hash := func() Hash { return Hash(r.IntN(40)) }
	for range 1 + r.IntN(4) {
		c.Hashes = append(c.Hashes, hash())
	}
	switch r.IntN(12) {
	case 0, 1, 2:
		c.Op = OpRemove
		if r.IntN(4) == 0 {
			c.Remaining = make([]uint32, len(c.Hashes))
			c.Remaining[0] = uint32(r.IntN(3))
		}
		return c
	case 3:
		if r.IntN(6) == 0 {
			return Change{Op: OpClear}
		}
	}
	c.Op = OpStore
	if r.IntN(6) == 0 {
		return c // by hash alone
	}
	c.BlockSize = []int{16, 16, 32, 8}[r.IntN(4)]
	c.Variant = Variant{Unit: UnitOf(c.BlockSize)}
	blocks := len(c.Hashes)
	if r.IntN(6) == 0 {
		blocks++ // masked
	}
	for range blocks * c.BlockSize / c.Variant.Unit {
		c.Locals = append(c.Locals, Local(r.IntN(2)))
	}
	c.Root = Key(r.IntN(2))
	if r.IntN(2) == 0 {
		c.HasParent, c.Parent = true, hash()
	}
	return c
}
