package podstate

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sections"
)

const disk = index.TierDisk

func unix(t float64) time.Time { return time.Unix(0, int64(t*1e9)) }

// agedBlocks are the blocks of a tier in an index.
type agedBlocks struct {
	ages    Ages
	profile engine.Profile
	clock   int // generations
	blocks  map[int]agedBlock
}

type agedBlock struct {
	generation int
	at         float64 // of its last store, by the checked clock
}

// batch stores a block, and returns the blocks dropped before.
func (a *agedBlocks) batch(batch float64, host time.Time, block int, at float64) (gone []agedBlock) {
	a.clock += a.ages.Due(disk, &a.profile, batch, host)
	for b, of := range a.blocks {
		if of.generation <= a.clock-3 {
			gone = append(gone, of)
			delete(a.blocks, b)
		}
	}
	a.ages.Begin(disk, &a.profile, batch, host)
	a.blocks[block] = agedBlock{a.clock, at}
	return gone
}

// TestAges: nothing is dropped before MaxAge, whatever the clock of the batches does. If it never
// goes back, nothing is left after one and a half.
func TestAges(t *testing.T) {
	const maxAge = 100
	early := math.Inf(1)
	drops, late, backs := 0, 0.0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := agedBlocks{blocks: map[int]agedBlock{}}
		a.profile.MaxAge[disk] = maxAge * time.Second
		now := 1e9 + 1000*r.Float64()
		offset := 0.0
		for step := range 400 {
			now += []float64{0, 1, 10, 45, 60, 130}[r.IntN(6)] * r.Float64()
			if seed%2 > 0 && r.IntN(40) == 0 { // the clock is set back permanently
				offset -= 3000 * r.Float64() * r.Float64()
				backs++
			}
			for _, b := range a.batch(now+offset, unix(now), r.IntN(50), now) {
				drops++
				if early = min(early, now-b.at); now-b.at < maxAge {
					t.Fatalf("seed %d, step %d: dropped %v after its store", seed, step, now-b.at)
				}
			}
			for _, b := range a.blocks {
				if late = max(late, now-b.at); seed%2 == 0 && now-b.at >= 1.5*maxAge {
					t.Fatalf("seed %d, step %d: held %v after its store", seed, step, now-b.at)
				}
			}
		}
	}
	t.Logf("%d blocks dropped, the first %v after its store, the last still held after %v; %d clocks went back", drops, early, late, backs)
	if drops < 10_000 || backs < 1000 || early > 1.1*maxAge {
		t.Error("the test tests too little")
	}
}

// TestAgesByWhichClock: the host's clock counts for batches without a valid time.
func TestAgesByWhichClock(t *testing.T) {
	const host = 1e9 // a period begins here
	hour := engine.Profile{}
	for name, c := range map[string]struct {
		first, second float64 // times of two batches
		want          int     // generations begun by the second
		profile       engine.Profile
		tier          index.Tier
	}{
		"no time":                       {0, 0, 2, hour, disk},
		"a time, then none":             {host - 1800, 0, 3, hour, disk},
		"no number":                     {math.NaN(), math.Inf(1), 2, hour, disk},
		"before 1970":                   {-5, -1e300, 2, hour, disk},
		"behind the host":               {100, 1900, 1, hour, disk},
		"ahead of the host":             {host, host + 3600 + 1800, 3, hour, disk},
		"too far ahead":                 {host, host + 3600 + 3601, 2, hour, disk},
		"the first is too far ahead":    {host + 1e9, host + 1800, 1, hour, disk},
		"the host memory":               {100, 1e6, 0, hour, index.TierCPU},
		"the gpu":                       {100, 1e6, 0, hour, index.TierGPU},
		"the host memory, if so chosen": {100, 100.35, 3, engine.Profile{MaxAge: [index.NumTiers]time.Duration{index.TierCPU: 200 * time.Millisecond}}, index.TierCPU},
		"never":                         {100, host, 0, engine.Profile{MaxAge: [index.NumTiers]time.Duration{disk: math.MaxInt64}}, disk},
	} {
		var a Ages
		if n := a.Due(c.tier, &c.profile, c.first, unix(host)); n != 0 {
			t.Errorf("%s: %d generations of a tier without blocks", name, n)
		}
		a.Begin(c.tier, &c.profile, c.first, unix(host))
		if n := a.Due(c.tier, &c.profile, c.second, unix(host+3600)); n != c.want {
			t.Errorf("%s: %d generations, want %d", name, n, c.want)
		}
	}
}

// TestAgesBackAndForth: while a clock is sometimes ahead, only its own times count. If it stays
// behind, its time counts after three periods.
func TestAgesBackAndForth(t *testing.T) {
	const host = 1e9
	var a Ages
	var p engine.Profile
	a.Begin(disk, &p, host, unix(host))
	total := 0
	for i := range 100 {
		total += a.Due(disk, &p, []float64{host, 1000 + 18*float64(i)}[i%2], unix(host))
	}
	if total != 0 {
		t.Errorf("%d generations began while no clock went on", total)
	}
	for i, want := range []int{0, 0, 1, 1, 0, 1} {
		if n := a.Due(disk, &p, []float64{3600, 5400, 7200, 9000, 10_799, 10_800}[i], unix(host)); n != want {
			t.Errorf("time %d of a clock that stays behind: %d generations, want %d", i, n, want)
		}
	}
}

// TestAgesKept: a snapshot keeps the clocks. Without them blocks are of an unknown time.
func TestAgesKept(t *testing.T) {
	a := Ages{disk: {latest: 1e9}, index.TierRemote: {latest: 5, back: 3}}
	b := a.appendState(nil)
	if got := readAges(sections.NewFields(b)); got != a {
		t.Errorf("got %+v, want %+v", got, a)
	}
	for i := range b {
		b[i] = 0xff // not a number
	}
	var want Ages
	want.Recall()
	if got := readAges(sections.NewFields(b)); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	a.Recall()
	if a[disk].latest != 1e9 || a[index.TierCPU].latest != unknownTime {
		t.Errorf("recalled: %+v", a)
	}
	var p engine.Profile
	if n := want.Due(disk, &p, 1e9, unix(1e9)) + want.Due(disk, &p, 1e9+1800, unix(1e9)); n != 1 {
		t.Errorf("%d generations of blocks from before", n)
	}
}
