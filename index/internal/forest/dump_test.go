package forest

import (
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Doubled finds a key in two slots, wherever they are and in however many parts the keys are
// scanned, and no key in one slot.
func TestDoubled(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: r}
	o.ord, _ = o.f.TakeOrdinal(new(Holders))
	for range 200 {
		o.plant()
	}
	at := func() (Loc, *uint64) {
		c := o.chains[r.IntN(len(o.chains))]
		l := c.locs[r.IntN(len(c.locs))]
		return l, &o.f.keys(l.Slab())[l.Slot()]
	}
	for range 300 {
		parts, salt := 1+r.IntN(5), r.Uint64()
		if k, ok := o.f.doubled(salt, parts); ok {
			t.Fatalf("%x is in two slots of %d keys", k, o.f.slots)
		}
		a, from := at()
		b, to := at()
		if a == b {
			continue
		}
		was := *to
		*to = *from
		if k, ok := o.f.doubled(salt, parts); !ok || uint64(k) != *from {
			t.Fatalf("%x is at %x and %x of %d keys, in %d parts: %x, %v", *from, a, b, o.f.slots, parts, k, ok)
		}
		*to = was
	}
}

// A place has a number without records exactly if its records were dumped.
func TestDumped(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	o := &orchard{t: t, f: New(new(mem.Count), 1<<40), r: r}
	o.ord, _ = o.f.TakeOrdinal(new(Holders))
	for range 40 {
		o.plant()
	}
	o.f.BeginDump()
	written := map[Loc]uint32{}
	known, unknown, grew := 0, 0, 0
	for range 4000 {
		c := o.chains[r.IntN(len(o.chains))]
		l := c.locs[r.IntN(len(c.locs))]
		if r.IntN(100) == 0 { // written to the chain's last slab or to a new one
			key := chain(c.keys[len(c.keys)-1], r.Uint64())
			at := []Loc{0}
			if !o.f.Place(c.locs[len(c.locs)-1], 0, []Key{key}, at) {
				t.Fatal("no room")
			}
			l = at[0]
			o.f.Ref(l)
			o.f.Hold(l, o.ord)
			c.keys, c.locs = append(c.keys, key), append(c.locs, l)
			grew++
		}
		number := o.f.Dumped(l)
		if was := written[l]; was != 0 && number != was {
			t.Fatalf("%x is %x, and was %x", l, number, was)
		}
		if number == 0 {
			unknown++
		} else {
			known++
		}
		records, dumped := []byte(nil), uint32(0)
		for dumped == 0 {
			records, dumped = o.f.Dump(records, l, 2)
		}
		if (number == 0) != (len(records) > 0) || number != 0 && number != dumped || o.f.Dumped(l) != dumped {
			t.Fatalf("%x is %x before %d bytes of records, %x and %x behind them", l, number, len(records), dumped, o.f.Dumped(l))
		}
		written[l] = dumped
	}
	if known < 1000 || unknown < 40 || grew < 20 {
		t.Errorf("%d places were known, %d were not, %d chains grew: the test tests too little", known, unknown, grew)
	}
	o.f.EndDump()
}
