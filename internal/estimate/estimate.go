// Package estimate estimates the prefix cache of an engine that publishes no KV
// events, from the prompts that were sent to the engine.
//
// A Cache is a list of blocks in the order in which vLLM evicts them: the least
// recently used request first, and its last block first. Each answer of the engine
// reports how many blocks were reused. This corrects the list and its length.
package estimate

import (
	"math/bits"
	"time"

	"github.com/kvindex/kvindex/index"
)

// # Why a list
//
// When a request ends, its blocks go to the end of vLLM's queue of free blocks, the last one
// first, and new blocks are taken from the front. So of the request that was used least
// recently the last block goes first, and a beginning outlives what continues it. A cache that
// keeps this order has no holes, so a binary search finds the leading run of a prompt. The
// order of sending stands for the order of ending until an answer shows the end.
//
// # Corrections
//
// If the engine has reused less than estimated, the first missing block was evicted, and by the
// order every block that was used before it. All these are dropped, and the engine has no more
// blocks than were used since. If it has reused more, and the Cache was full and had evicted the
// blocks that continue the run, the engine has at least as many blocks as these need. A restart
// looks like a tiny cache, so a cut by more than half needs a second loss of a block that was
// used later; the blocks are dropped at once.

// maxCorrection is how many times larger or smaller than the configured capacity a
// corrected one may be. A figure that a person has written is wrong by the
// number of processors of a pod, or by the ratio of two block sizes; 16 is more
// than most of these. It also bounds the memory that an engine which reports
// nonsense can take.
const maxCorrection = 16

// maxBlocks bounds the configured capacity. A slot number has 32 bits.
const maxBlocks = 1 << 26

// maxTTL bounds the ttl of New; after so long the engine has restarted anyway.
const maxTTL = 365 * 24 * time.Hour

// Cache is an estimate of the prefix cache of one engine. The zero value is not
// usable: see New. A Cache is not safe for concurrent use, but several
// goroutines may call Run, Len and Bytes while none calls another method.
type Cache struct {
	// slots by number. slots[0] is no block; it is the anchor of the ring of
	// blocks: its older is the most recently used block, its younger the least.
	// Each block is younger than those that continue it, so a leading run of a
	// prompt is there, or no later block of it is.
	slots []slot
	// heads has by hash the first block of a chain of blocks. It has as many
	// elements as slots has blocks.
	heads []uint32
	free  uint32 // first of the chain of slots[:fresh] that have no block
	fresh uint32 // slots from here on have never had a block
	len   int

	configured int // blocks, by New
	capacity   int // blocks, as configured or as corrected
	stride     int // units of a block; 0 before the first prompt

	ttl  int64 // nanoseconds; 0: blocks do not age
	seen int64 // the caller's clock when it was last read
	time int64 // nanoseconds that have passed on the caller's clock since New
	last int64 // the latest stamp

	// doubt is the latest stamp when the engine had lost more than the capacity
	// explains; 0: it has not, or c has been full since.
	doubt int64
}

// cut in slot.parent: a block that continued this one was dropped for want of
// room. slots[0] has it for first blocks.
const cut = 1 << 31

type slot struct {
	key            index.Key
	stamp          int64  // its last use: c.time then, but later than each stamp before
	younger, older uint32 // neighbours in the ring
	parent         uint32 // the block that it continues, 0 if it is a first one; and cut
	chain          uint32 // next of its hash, or of the slots without a block
}

// Past has the data about a prompt that Observed and Undo need. The Cache itself keeps
// nothing for it. The zero value is a prompt without blocks.
type Past struct {
	stamp int64     // of Sent
	tail  index.Key // of the last block that is kept
	// stamps of the leading run before the prompt was sent. stamps[0] is that of
	// its last blocks, from[0] on; stamps[1] that of those before, from[1] on;
	// stamps[2] that of the first ones. If there were more stamps, those between
	// are taken for stamps[1], which is older.
	stamps [3]int64
	from   [2]uint32
	blocks uint32 // of the prompt
	kept   uint32 // of these, the leading ones that the Cache has taken
	run    uint32 // of these, the leading ones that were there before
	cut    bool   // more had been there before, and the Cache was full
}

// New returns an empty Cache for an engine with so many blocks, at least 1. A block
// that is not used for ttl is gone; with a ttl of 0 blocks
// do not age. Memory is allocated as it fills.
func New(blocks int, ttl time.Duration) *Cache {
	blocks = min(max(blocks, 1), maxBlocks)
	if ttl < 0 || ttl > maxTTL {
		ttl = 0
	}
	return &Cache{configured: blocks, capacity: blocks, ttl: int64(ttl)}
}

// Len returns the number of blocks in c. Blocks that have aged since the last change
// count.
func (c *Cache) Len() int { return c.len }

// Run returns how many leading blocks of a prompt are in c. keys are the keys of its
// units, and stride is the number of units in a block; units after the last whole block
// do not count. now is the caller's clock in nanoseconds. A clock that goes back stands
// still for Run. Run changes nothing.
func (c *Cache) Run(keys []index.Key, stride int, now int64) int {
	run, _ := c.run(keys, stride, c.at(now))
	return run
}

// run returns also the slot of the last block of the run, 0 if there is none.
// at is c.time for now.
func (c *Cache) run(keys []index.Key, stride int, at int64) (int, uint32) {
	if stride < 1 || stride != c.stride {
		return 0, 0
	}
	low, high, last := 0, min(len(keys)/stride, c.len), uint32(0)
	for low < high {
		middle := int(uint(low+high+1) / 2)
		if s := c.find(keys[middle*stride-1]); s != 0 && !c.aged(s, at) {
			low, last = middle, s
		} else {
			high = middle - 1
		}
	}
	return low, last
}

// at returns c.time for now.
func (c *Cache) at(now int64) int64 {
	if c.ttl == 0 || now <= c.seen {
		return c.time
	}
	passed := now - c.seen
	if passed < 0 || passed > 2*c.ttl {
		passed = 2 * c.ttl // more makes no difference; stamps are a little ahead of c.time
	}
	return min(c.time+passed, 1<<62)
}

func (c *Cache) aged(s uint32, at int64) bool {
	return c.ttl > 0 && at-c.slots[s].stamp >= c.ttl
}

func (c *Cache) find(k index.Key) uint32 {
	if len(c.heads) == 0 {
		return 0
	}
	s := c.heads[c.hash(k)]
	for s != 0 && c.slots[s].key != k {
		s = c.slots[s].chain
	}
	return s
}

func (c *Cache) hash(k index.Key) uint64 {
	h, _ := bits.Mul64(uint64(k)*0x9e3779b97f4a7c15, uint64(len(c.heads)))
	return h
}

// Sent records that a prompt is sent: all its blocks become the most recently
// used ones, the first of them the latest. If there are more blocks than the capacity,
// the least recently used ones go. Of a prompt that is longer than the capacity
// the beginning counts. Another stride than that of the last prompt empties c:
// the engine has other blocks.
//
// The caller passes the Past to Observed or Undo, or drops it.
func (c *Cache) Sent(keys []index.Key, stride int, now int64) Past {
	if stride < 1 || len(keys) < stride {
		return Past{}
	}
	c.pass(now)
	if stride != c.stride {
		c.clear()
		c.stride = stride
	}
	blocks := len(keys) / stride
	kept := min(blocks, c.capacity)
	c.reserve(min(c.len+kept, c.capacity))
	run, last := c.run(keys[:kept*stride], stride, c.time)
	full := c.len+kept-run > c.capacity
	p := Past{blocks: uint32(blocks), run: uint32(run), cut: full && c.slots[last].parent&cut != 0}
	if !p.remember(c, last) {
		return Past{} // equal keys are not equal prefixes
	}
	if full {
		c.doubt = 0
	}
	p.stamp = c.use(last)
	c.fit(c.capacity - (kept - run))
	for kept = run; kept < blocks && c.len < c.capacity; kept++ {
		k := keys[(kept+1)*stride-1]
		if c.find(k) != 0 {
			break // likewise
		}
		last = c.add(k, last, p.stamp)
	}
	p.kept = uint32(kept)
	if kept > 0 {
		p.tail = keys[kept*stride-1]
	}
	return p
}

// remember records the stamps of the run of blocks that ends with last. It reports
// whether the run has p.run blocks.
func (p *Past) remember(c *Cache, last uint32) bool {
	n, first := 0, int(p.run)
	for s := last; s != 0; s = c.parent(s) {
		switch stamp := c.slots[s].stamp; {
		case s == last:
			p.stamps[0] = stamp
		case stamp != p.stamps[n]:
			n = min(n+1, 2)
			p.from[n-1] = uint32(max(first, 0))
			p.stamps[n] = stamp
		}
		first--
	}
	return first == 0
}

// used returns when block i of the leading run was used before the prompt was
// sent, or an earlier stamp.
func (p *Past) used(i int) int64 {
	switch {
	case i >= int(p.from[0]):
		return p.stamps[0]
	case i >= int(p.from[1]):
		return p.stamps[1]
	}
	return p.stamps[2]
}

// Observed records how many leading blocks of a prompt the engine has reused. A number
// above that of the prompt counts as all.
//
// An engine does not reuse the last token of a prompt. So if all blocks were in c, and
// all but one are reused, the estimate was right.
//
// The end of a request is a use of its blocks, if they are still there.
func (c *Cache) Observed(p Past, reused int, now int64) {
	c.pass(now)
	reused = min(max(reused, 0), int(p.blocks))
	run := int(p.run)
	switch {
	case reused < run && (reused < run-1 || run < int(p.blocks)):
		c.lost(&p, reused)
	case reused > run && p.cut:
		c.raise(c.len + reused - run)
	}
	c.raise(int(p.blocks)) // it has computed them all
	if s := c.left(&p); s != 0 {
		c.use(s)
	}
}

// lost drops block i of p, which the engine has lost, and all blocks that were used before
// it. So the engine has at most as many blocks as were used since, unless it has restarted.
func (c *Cache) lost(p *Past, i int) {
	stamp := p.used(i)
	for s := c.oldest(); s != 0 && c.slots[s].stamp <= stamp; s = c.oldest() {
		c.drop(s)
	}
	since := max(c.len-int(p.kept)+i, int(p.blocks), c.configured/maxCorrection, 1)
	if since < c.capacity/2 {
		// The engine has restarted, or the capacity is far off. Blocks that were lost
		// with this one are no further evidence; a lost block that was used later is.
		if c.doubt == 0 {
			c.doubt = c.last
		}
		if stamp <= c.doubt {
			return
		}
		since, c.doubt = c.capacity/2, 0
	}
	c.capacity = min(c.capacity, since)
	c.fit(c.capacity)
	if c.capacity < len(c.slots)/2 {
		c.resize(c.capacity + 1)
	}
}

func (c *Cache) raise(blocks int) {
	c.capacity = min(max(c.capacity, blocks), c.configured*maxCorrection)
}

// left returns the last block of p that is there, 0 if it is not known.
func (c *Cache) left(p *Past) uint32 {
	if p.kept == 0 {
		return 0
	}
	if s := c.find(p.tail); s != 0 {
		return s
	}
	// The last block goes first, so the last block that is left is the oldest now.
	if s := c.oldest(); s != 0 && c.slots[s].stamp == p.stamp {
		return s
	}
	return 0
}

// Undo records that a prompt never reached the engine. Its blocks that were not in c before
// and that no other prompt has used are forgotten.
func (c *Cache) Undo(p Past, now int64) {
	c.pass(now)
	s := c.left(&p)
	n := 0
	for a := s; a != 0; a = c.parent(a) {
		n++
	}
	for ; n > int(p.run) && c.slots[s].stamp == p.stamp; n-- {
		parent := c.parent(s)
		c.drop(s)
		s = parent
	}
}

// pass reads the caller's clock, and drops blocks that have aged.
func (c *Cache) pass(now int64) {
	c.time = c.at(now)
	// If the clock is a little behind, another caller has overtaken this one. If it is
	// further behind, it has been set back.
	if now > c.seen || c.seen-now > c.ttl || c.seen-now < 0 {
		c.seen = now
	}
	for s := c.oldest(); s != 0 && c.aged(s, c.time); s = c.oldest() {
		c.drop(s)
	}
}

// fit drops the oldest blocks until at most so many are left.
func (c *Cache) fit(blocks int) {
	for c.len > blocks {
		s := c.oldest()
		c.slots[c.parent(s)].parent |= cut
		c.drop(s)
	}
}

// parent returns the block that s continues, 0 if it is a first one.
func (c *Cache) parent(s uint32) uint32 { return c.slots[s].parent &^ cut }

// oldest returns the block that goes next, 0 if there is none.
func (c *Cache) oldest() uint32 {
	if c.len == 0 {
		return 0
	}
	return c.slots[0].younger
}

// use makes a block and those that it continues the most recently used ones.
// It returns their stamp.
func (c *Cache) use(s uint32) int64 {
	c.last = max(c.last+1, c.time)
	for ; s != 0; s = c.parent(s) {
		c.unlink(s)
		c.link(s, 0)
		c.slots[s].stamp = c.last
	}
	return c.last
}

// link puts a block into the ring, as the next older one of another or, if that
// is 0, as the youngest.
func (c *Cache) link(s, younger uint32) {
	older := c.slots[younger].older
	c.slots[s].younger, c.slots[s].older = younger, older
	c.slots[younger].older, c.slots[older].younger = s, s
}

func (c *Cache) unlink(s uint32) {
	younger, older := c.slots[s].younger, c.slots[s].older
	c.slots[younger].older, c.slots[older].younger = older, younger
}

// add adds a block after parent, which is the block just added or the last one
// used.
func (c *Cache) add(k index.Key, parent uint32, stamp int64) uint32 {
	s := c.free
	if s != 0 {
		c.free = c.slots[s].chain
	} else {
		s = c.fresh
		c.fresh++
	}
	h := &c.heads[c.hash(k)]
	c.slots[s] = slot{key: k, stamp: stamp, parent: parent, chain: *h}
	*h = s
	c.link(s, parent)
	c.len++
	return s
}

// drop removes a block that no other one continues.
func (c *Cache) drop(s uint32) {
	c.unlink(s)
	at := &c.heads[c.hash(c.slots[s].key)]
	for *at != s {
		at = &c.slots[*at].chain
	}
	*at = c.slots[s].chain
	c.slots[s] = slot{chain: c.free}
	c.free = s
	c.len--
}

// reserve makes room for so many blocks, at most the capacity. A capacity that
// was raised, by little as a rule, gets a sixteenth more, so that the next time
// moves nothing.
func (c *Cache) reserve(blocks int) {
	if blocks < len(c.slots) {
		return
	}
	most := c.capacity + 1
	if c.capacity > c.configured {
		most += c.capacity / 16
	}
	c.resize(min(max(2*len(c.slots), blocks+1), most))
}

// resize moves the blocks to n slots, which are more than the blocks. The youngest comes
// first.
func (c *Cache) resize(n int) {
	old := c.slots
	c.slots, c.heads = make([]slot, n), make([]uint32, n)
	c.free, c.fresh = 0, 1
	if c.len == 0 {
		return
	}
	c.slots[0].parent = old[0].parent
	for o := old[0].older; o != 0; o = old[o].older {
		s := c.fresh
		c.fresh++
		b := old[o]
		// The block that b continues is younger: its chain is its new number.
		c.slots[s] = slot{key: b.key, stamp: b.stamp, parent: old[b.parent&^cut].chain | b.parent&cut}
		old[o].chain = s
		c.link(s, c.slots[0].younger)
		h := &c.heads[c.hash(b.key)]
		c.slots[s].chain, *h = *h, s
	}
}

func (c *Cache) clear() {
	c.slots, c.heads, c.free, c.fresh, c.len = nil, nil, 0, 0, 0
}
