package prefixcache

import "fmt"

// Known returns the length of the prefix that Find found.
func (p *Prompt) Known() int { return p.known }

// Cells returns the numbers of all cells and of free cells.
func (c *Cache) Cells() (all, free int) { return len(c.view()) * pageCells, c.idle }

// Plain makes c hash as under enforced FIPS 140.
func (c *Cache) Plain() { c.hash.gmac = nil }

// Check returns an error if the structure is inconsistent.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.view()
	kids, entries, cells := map[ref]int{}, map[ref]bool{}, 1
	for i := range v {
		for j := range v[i].buckets {
			for r := ref(v[i].buckets[j].Load()); r != 0; {
				k := v.cell(r)
				place, size, chain := k[wordPlace].Load(), k[wordSize].Load(), k[wordChain].Load()
				if _, ok := k.alive(); !ok || entries[r] || v.bucket(k.tag()) != &v[i].buckets[j] {
					return fmt.Errorf("entry %d is not where it belongs", r)
				}
				if found, _ := v.find(k.tag(), int(high(place)), kind(chain&1)); found != r {
					return fmt.Errorf("entry %d is not found", r)
				}
				entries[r] = true
				own := 0
				for at := r; at != 0; at = ref(low(v.cell(at)[linkWord].Load())) {
					own++
				}
				cells += own
				locals, before := high(size), uint64(0)
				if parent := ref(low(place)); parent != 0 {
					kids[parent]++
					k := v.cell(parent)
					before = k[wordSize].Load()
					if _, ok := k.alive(); !ok || kind(k[wordChain].Load()&1) != beginning || high(k[wordPlace].Load()) > high(place) {
						return fmt.Errorf("entry %d follows one that is no beginning of it", r)
					}
				}
				payload := headWords + int(locals-high(before)) + int(low(chain)>>tailShift&maxTail+1)/2
				if locals < high(before) || int(low(size)-low(before)) != own || own != (payload+dataWords-1)/dataWords {
					return fmt.Errorf("entry %d has %d cells", r, own)
				}
				r = ref(high(chain))
			}
		}
	}
	free := 0
	for r := c.free; r != 0; r = ref(low(v.cell(r)[linkWord].Load())) {
		free++
	}
	if free != c.idle || len(v) > 0 && cells+free != len(v)*pageCells || int(c.entries.Load()) != len(entries) {
		return fmt.Errorf("%d pages, %d cells in use, %d free of %d, %d entries of %d", len(v), cells, free, c.idle, len(entries), c.entries.Load())
	}
	for again := range c.leaves {
		l, now := &c.leaves[again], c.now.Load()
		for at := now - 2*(slots-1); int32(now-at) >= 0; at += 2 {
			before := ref(0)
			for r := l.slots[at/2%slots].front; r != 0; {
				w := c.second(r)[secondWord].Load()
				where, slot := c.placeOf(r)
				if !entries[r] || kids[r] != 0 || ref(high(w)) != before || where != l || slot != &l.slots[at/2%slots] || int32(at-l.oldest) < 0 {
					return fmt.Errorf("entry %d is no leaf of its slot", r)
				}
				kids[r] = -1
				before, r = r, ref(low(w))
			}
			if l.slots[at/2%slots].back != before {
				return fmt.Errorf("a slot ends elsewhere")
			}
		}
	}
	for r := range entries {
		n, leaf := kids[r], v.cell(r)[wordChain].Load()&flagLeaf != 0
		if n == 0 || leaf != (n < 0) || n > 0 && int(c.second(r)[secondWord].Load()) != n {
			return fmt.Errorf("entry %d is followed by %d", r, n)
		}
	}
	return nil
}
