package sent

import (
	"cmp"
	"fmt"
	"slices"
)

// Empty reports whether the tree is empty.
func (t *Tree) Empty() bool {
	return t.root.child == nil && t.nodes.slots == nil && t.nodes.used == 0 && t.bytes == 0
}

// Check returns an error if t is inconsistent with itself or with all its prompts, by holder.
func (t *Tree) Check(prompts map[Holder][]Prompt) error {
	ends, through := map[*node]uint32{}, map[*node]map[Holder]uint32{}
	for h, list := range prompts {
		for _, p := range list {
			if p.end == nil {
				continue
			}
			ends[p.end]++
			for n := p.end; n != &t.root; n = n.parent {
				if through[n] == nil {
					through[n] = map[Holder]uint32{}
				}
				through[n][h]++
			}
		}
	}
	if t.root.next != nil || t.root.prev != nil || t.root.parent != nil || len(t.root.holders) > 0 || len(t.root.keys) > 0 || t.root.ends > 0 {
		return fmt.Errorf("the root is not one: %+v", t.root)
	}
	nodes, bytes := 0, int64(0)
	var walk func(n *node) error
	walk = func(n *node) error {
		children := 0
		var before *node
		for c := n.child; c != nil; before, c = c, c.next {
			children++
			if c.parent != n || c.prev != before {
				return fmt.Errorf("node %v is a child of one that is not its parent", c.keys)
			}
			if t.nodes.find(n, c.keys[0]) != c {
				return fmt.Errorf("node %v is not found", c.keys)
			}
			if err := walk(c); err != nil {
				return err
			}
		}
		if n == &t.root {
			return nil
		}
		nodes++
		bytes += nodeBytes + 8*int64(cap(n.keys)) + n.holderBytes()
		if n.ends != ends[n] || n.ends == 0 && children < 2 {
			return fmt.Errorf("node %v has %d ends of %d, and %d children", n.keys, n.ends, ends[n], children)
		}
		if len(n.holders) == 0 || len(n.holders) != len(through[n]) || cap(n.holders) > max(4*len(n.holders), leastRoom) {
			return fmt.Errorf("node %v has %d holders of %d, and room for %d", n.keys, len(n.holders), len(through[n]), cap(n.holders))
		}
		for _, s := range n.holders {
			if s.prompts != through[n][s.holder] {
				return fmt.Errorf("node %v has %d prompts of holder %d, not %d", n.keys, s.prompts, s.holder, through[n][s.holder])
			}
		}
		if !slices.IsSortedFunc(n.holders, func(a, b share) int { return cmp.Compare(a.holder, b.holder) }) {
			return fmt.Errorf("the holders of %v are not sorted", n.keys)
		}
		if least, most := max(len(n.keys), leastRoom), len(n.keys)+len(n.keys)/4+leastRoom; cap(n.keys) < least || cap(n.keys) > most {
			return fmt.Errorf("node of %d keys has room for %d", len(n.keys), cap(n.keys))
		}
		return nil
	}
	if err := walk(&t.root); err != nil {
		return err
	}
	if nodes != t.nodes.used || nodes != len(through) {
		return fmt.Errorf("%d nodes of %d, %d in the table", nodes, len(through), t.nodes.used)
	}
	taken := 0
	for i := range t.nodes.slots {
		s := &t.nodes.slots[i]
		if s.node == nil {
			continue
		}
		taken++
		if s.first != s.node.keys[0] {
			return fmt.Errorf("slot %d has another key than its node", i)
		}
	}
	if size := len(t.nodes.slots); taken != nodes || 4*taken > 3*size || size > leastSlots && size > 8*taken || size > 0 && taken == 0 {
		return fmt.Errorf("%d nodes in %d slots of %d", nodes, taken, size)
	}
	if bytes != t.bytes {
		return fmt.Errorf("%d bytes, not %d", t.bytes, bytes)
	}
	return nil
}
