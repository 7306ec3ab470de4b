package offload_test

import (
	"slices"

	"github.com/kvindex/kvindex/offload"
)

// plain is the model of a Store, without memory for blocks.
type plain struct {
	cfg      offload.Config
	capacity int
	share    int // of the small queue
	blocks   map[offload.Key]*plainBlock
	loose    int // blocks of leases that are not resident
	// The queues, newest first. LRU and FIFO use small only.
	small, main []*plainBlock
	ghosts      []offload.Key // oldest first
	count       map[string]uint64
}

type plainBlock struct {
	key      offload.Key
	resident bool
	inMain   bool
	refs     int
	uses     int
}

func newPlain(cfg offload.Config) *plain {
	n := int(cfg.MemoryBytes / int64(cfg.Space.BlockBytes))
	p := &plain{cfg: cfg, capacity: n, blocks: make(map[offload.Key]*plainBlock), count: make(map[string]uint64)}
	if cfg.Policy == offload.S3FIFO {
		p.share = int(float64(n) * cfg.SmallShare)
	}
	return p
}

func (p *plain) queue(b *plainBlock) *[]*plainBlock {
	if b.inMain {
		return &p.main
	}
	return &p.small
}

func (p *plain) push(b *plainBlock) { q := p.queue(b); *q = slices.Insert(*q, 0, b) }
func (p *plain) cut(b *plainBlock) {
	q := p.queue(b)
	*q = slices.DeleteFunc(*q, func(o *plainBlock) bool { return o == b })
}

func (p *plain) prefix(chain []offload.Key) (bs []*plainBlock) {
	for _, k := range chain {
		if p.blocks[k] == nil {
			break
		}
		bs = append(bs, p.blocks[k])
	}
	return bs
}

func (p *plain) acquire(chain []offload.Key) []*plainBlock {
	bs := p.prefix(chain)
	for _, b := range slices.Backward(bs) {
		b.refs++
		if b.uses == 3 {
			p.count["used four times"]++
		}
		b.uses = min(b.uses+1, 3)
		p.renew(b)
	}
	p.count["hits"] += uint64(len(bs))
	p.count["misses"] += uint64(len(chain) - len(bs))
	return bs
}

func (p *plain) renew(b *plainBlock) {
	if p.cfg.Policy == offload.LRU {
		p.cut(b)
		p.push(b)
	}
}

func (p *plain) release(bs []*plainBlock) {
	for _, b := range bs {
		if b.refs--; b.refs == 0 && !b.resident {
			p.loose--
		}
	}
}

// room makes room for a block, if possible.
func (p *plain) room() bool {
	if len(p.blocks)+p.loose < p.capacity {
		return true
	}
	if !slices.ContainsFunc(append(slices.Clone(p.small), p.main...), func(b *plainBlock) bool { return b.refs == 0 }) {
		return false
	}
	var passed [2]int
	names := [2]string{"small", "main"}
	for {
		q, of := &p.main, 1
		if len(p.small) > p.share || len(p.main) == 0 {
			q, of = &p.small, 0
		}
		if passed[of] >= len(*q) {
			p.count["pinned all of "+names[of]]++
			of = 1 - of
			q = [](*[]*plainBlock){&p.small, &p.main}[of]
		}
		b := (*q)[len(*q)-1]
		*q = (*q)[:len(*q)-1]
		if b.refs > 0 {
			p.push(b)
			passed[of]++
			p.count["metPinned"]++
			p.count["pinned in "+names[of]]++
			continue
		}
		passed[1] = 0
		switch {
		case p.cfg.Policy == offload.S3FIFO && of == 0 && b.uses >= p.cfg.PromoteAt:
			b.uses, b.inMain = 0, true
			p.push(b)
			p.count["promoted"]++
			continue
		case of == 1 && b.uses > 0:
			b.uses--
			p.push(b)
			p.count["reinserted"]++
			continue
		}
		if p.cfg.Policy == offload.S3FIFO && of == 0 {
			p.ghosts = append(p.ghosts, b.key)
			if most := p.capacity - p.share; len(p.ghosts) > most {
				p.ghosts = p.ghosts[1:]
				p.count["ghosts are full"]++
			}
		}
		p.count["evicted of "+names[of]]++
		delete(p.blocks, b.key)
		b.resident = false
		p.count["evicted"]++
		return true
	}
}

// alloc returns at most n blocks that are not resident.
func (p *plain) alloc(n int) (bs []*plainBlock) {
	for range n {
		if !p.room() {
			p.count["refused"] += uint64(n - len(bs))
			break
		}
		bs = append(bs, &plainBlock{refs: 1})
		p.loose++
	}
	return bs
}

func (p *plain) write(prefix, keys []offload.Key) int {
	hold := func(keys []offload.Key) (held []*plainBlock) {
		for _, k := range keys {
			if b := p.blocks[k]; b != nil {
				b.refs++
				held = append(held, b)
			}
		}
		return held
	}
	held, own, bs := hold(prefix), hold(keys), []*plainBlock(nil)
	for i, k := range keys {
		room := p.blocks[k] != nil || p.room()
		for ; !room && len(own) > 0; room = p.room() {
			p.release(own[len(own)-1:])
			own = own[:len(own)-1]
		}
		b := p.blocks[k]
		if b != nil {
			b.refs++
		} else if room {
			b = &plainBlock{refs: 1}
			p.loose++
		} else {
			p.count["refused"] += uint64(len(keys) - i)
			break
		}
		bs = append(bs, b)
	}
	if len(bs) > 0 {
		p.commit(prefix, keys[:len(bs)], bs)
	}
	p.release(own)
	p.release(bs)
	p.release(held)
	return len(bs)
}

func (p *plain) commit(prefix, keys []offload.Key, bs []*plainBlock) {
	for i, k := range slices.Backward(keys) {
		if b := p.blocks[k]; b != nil {
			p.renew(b)
			continue
		}
		b := bs[i]
		b.key, b.resident, b.uses = k, true, 0
		p.blocks[k] = b
		p.loose--
		if at := slices.Index(p.ghosts, k); at >= 0 {
			b.inMain = true
			p.ghosts[at] = offload.Key{} // still counts for the bound
			p.count["ghostHits"]++
		}
		p.push(b)
	}
	for _, k := range slices.Backward(prefix) {
		if b := p.blocks[k]; b != nil {
			p.renew(b)
		}
	}
}

func (p *plain) delete(k offload.Key) {
	b := p.blocks[k]
	if b == nil {
		return
	}
	p.cut(b)
	delete(p.blocks, k)
	b.resident = false
	if b.refs > 0 {
		p.loose++
	}
}
