package estimate

import (
	"fmt"
	"unsafe"
)

// Bytes returns the memory of c.
func (c *Cache) Bytes() int64 {
	return int64(unsafe.Sizeof(*c)) + int64(cap(c.slots))*int64(unsafe.Sizeof(slot{})) + int64(cap(c.heads))*4
}

// Capacity returns the number of blocks, as configured or corrected.
func (c *Cache) Capacity() int { return c.capacity }

// Check returns an error if c is inconsistent.
func (c *Cache) Check() error {
	if c.len == 0 && c.slots == nil {
		return nil
	}
	if c.len > c.capacity || c.capacity < c.configured/maxCorrection || c.capacity > c.configured*maxCorrection || len(c.heads) != len(c.slots) || len(c.slots)/2 > c.capacity {
		return fmt.Errorf("%d blocks of %d (configured %d), %d slots, %d heads", c.len, c.capacity, c.configured, len(c.slots), len(c.heads))
	}
	ring, before, stamp := map[uint32]bool{0: true}, uint32(0), c.last
	for s := c.slots[0].older; s != 0; s = c.slots[s].older {
		b := c.slots[s]
		switch {
		case ring[s] || b.younger != before:
			return fmt.Errorf("the ring is broken at slot %d", s)
		case !ring[c.parent(s)]:
			return fmt.Errorf("slot %d is younger than the one that it continues", s)
		case b.stamp > stamp || b.stamp <= 0:
			return fmt.Errorf("slot %d was used at %d, the one before it at %d", s, b.stamp, stamp)
		case c.find(b.key) != s:
			return fmt.Errorf("slot %d is not found", s)
		}
		ring[s], before, stamp = true, s, b.stamp
	}
	if c.slots[0].younger != before || c.slots[0].key != 0 || c.slots[0].chain != 0 || len(ring) != c.len+1 {
		return fmt.Errorf("%d blocks in the ring, counted %d", len(ring)-1, c.len)
	}
	found := 0
	for _, s := range c.heads {
		for ; s != 0; s = c.slots[s].chain {
			if found++; found > c.len || !ring[s] {
				return fmt.Errorf("slot %d is found, but is no block", s)
			}
		}
	}
	free := 0
	for s := c.free; s != 0; s = c.slots[s].chain {
		if free++; ring[s] || s >= c.fresh {
			return fmt.Errorf("slot %d is not free", s)
		}
	}
	if found != c.len || c.len+free+1 != int(c.fresh) {
		return fmt.Errorf("%d blocks, %d found, %d slots free, %d used so far", c.len, found, free, c.fresh)
	}
	return nil
}
