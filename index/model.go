package index

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/forest"
	"github.com/kvindex/kvindex/index/internal/mem"
)

// ground is the prefix tree that all models of a Memory share, so that room which one
// gives up serves any other, and the state of its writers.
type ground struct {
	mem    mem.Count
	forest *forest.Forest
	mirror mirror // nil: there is none

	mu       turns     // of the writers of forest
	variants []Variant // of the forest's chains, by number
	graves   []*grave
	tables   int  // bytes of the tables of models and pods, and of scratches
	dumping  bool // a snapshot is being written
	dead     int  // sources that were unlinked and are not buried yet
	// Free memory.
	scratches  []*scratch
	followings []*maskedStore
	keeper
}

// About how many bytes the tables of models and pods have for one of them. sync.Map does not
// report its bytes.
const (
	modelBytes   = 512
	podBytes     = 256
	scratchBytes = int(unsafe.Sizeof(scratch{}))
	// maxScratches bounds the free scratches.
	maxScratches = 4
	// groundBytes is for small structures of which there is one.
	groundBytes = 24 << 10
)

func newGround(budget int64) *ground {
	g := new(ground)
	g.setBudget(budget)
	g.resize(0)
	g.mem.Add(g.ownBytes())
	g.forest = forest.New(&g.mem, g.budget-g.slack-g.admits-g.reserve)
	return g
}

// model is the sources of a model.
type model struct {
	id     *identity
	ground *ground
	// podsGen is raised after any change of the pods and their sources, and gen
	// after those and any change of a source's views.
	podsGen, gen atomic.Uint64
	pods         sync.Map       // podSources by name
	n            int            // pods; guarded by memory.mu
	holders      forest.Holders // guarded by ground.mu
}

// identity distinguishes a model from a later one of its name.
type identity struct{ _ byte }

type podSources struct {
	list atomic.Pointer[[]*source] // replaced, never changed in place
}

// variant returns the number of a variant, or false if there are too many. The caller holds
// g.mu.
func (g *ground) variant(v Variant) (n uint32, ok bool) {
	i := slices.Index(g.variants, v)
	if i < 0 {
		if i = len(g.variants); i == forest.MaxVariants {
			return 0, false
		}
		g.variants = append(g.variants, v)
	}
	return uint32(i), true
}

func (md *model) source(id Source) *source {
	p, ok := md.pods.Load(id.Pod)
	if !ok {
		return nil
	}
	for _, s := range *p.(*podSources).list.Load() {
		if s.id.Rank == id.Rank {
			return s
		}
	}
	return nil
}

func (g *ground) takeScratch() *scratch {
	n := len(g.scratches)
	if n == 0 {
		g.addTables(scratchBytes)
		return new(scratch)
	}
	of := g.scratches[n-1]
	g.scratches = g.scratches[:n-1]
	return of
}

func (g *ground) giveScratch(of *scratch) {
	if len(g.scratches) == maxScratches {
		g.addTables(-scratchBytes)
		return
	}
	g.scratches = append(g.scratches, of)
}

func (g *ground) takeFollowing() *maskedStore {
	n := len(g.followings)
	if n == 0 {
		return new(maskedStore)
	}
	of := g.followings[n-1]
	g.followings = g.followings[:n-1]
	return of
}

func (g *ground) giveFollowing(of *maskedStore) {
	of.s, of.p = nil, nil
	if len(g.followings) < 4 && cap(of.hashes) <= 1<<12 {
		g.followings = append(g.followings, of)
	}
}

// ownBytes returns the bytes of g and of the tables of models and pods.
func (g *ground) ownBytes() int {
	return groundBytes + mem.SizeOf[ground]() + mem.SliceSize(g.all) + g.tables
}
