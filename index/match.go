package index

import "slices"

// path is a prompt in one variant.
type path struct {
	variant Variant
	keys    []Key
}

// match appends the rows of s.
func (s *source) match(paths []path, held bool, out *Matches) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	full := 0
	for _, g := range s.groups {
		if g.Kind == GroupFull {
			full++
		}
	}
	for _, g := range s.groups {
		for sh := range g.shapes {
			if sh == (shape{}) {
				// Blocks known by hash alone are of the group's own shape,
				// and seen with it unless it has no others.
				if _, ok := g.shapes[g.shape]; ok || g.shape == (shape{}) {
					continue
				}
				sh = g.shape
			}
			i := slices.IndexFunc(paths, func(p path) bool { return p.variant == sh.variant })
			if i >= 0 {
				row := Row{Source: s.id, Group: g.Group, BlockSize: sh.size, Groups: len(s.groups), FullGroups: full}
				s.matchShape(g, sh, paths[i].keys, held, row, out)
			}
		}
	}
}

// matchShape fills in row and appends it if it has a block.
func (s *source) matchShape(g *group, sh shape, keys []Key, held bool, row Row, out *Matches) {
	units := sh.size / sh.variant.Unit
	blocks := len(keys) / units
	any, gpu, seen := true, true, false
	for i := range blocks {
		tiers := s.tiers(keys[(i+1)*units-1], g, sh)
		seen = seen || tiers != 0
		any = any && tiers != 0
		gpu = gpu && tiers&(1<<TierGPU) != 0
		if gpu {
			row.GPU++
		}
		if any {
			row.Run++
			row.Last = best(tiers)
			row.Tiers[row.Last]++
		} else if !held {
			break
		}
		for t := range row.Held {
			if !held || tiers&(1<<t) == 0 {
				continue
			}
			if row.Held[t] == nil {
				row.Held[t] = out.Bits(blocks)
			}
			row.Held[t][i/64] |= 1 << (i % 64)
		}
	}
	if seen {
		out.Rows = append(out.Rows, row)
	}
}

// tiers is the set of tiers, as bits, in which g holds the block of the shape
// that ends at key.
func (s *source) tiers(key Key, g *group, sh shape) (set uint8) {
	for _, n := range s.byKey[key] {
		for _, b := range n.held {
			if b.group == g && b.copies > 0 && (b.shape == sh || b.shape == (shape{}) && sh == g.shape) {
				set |= 1 << b.tier
			}
		}
	}
	return set
}

func best(tiers uint8) Tier {
	for t := Tier(0); ; t++ {
		if tiers&(1<<t) != 0 {
			return t
		}
	}
}
