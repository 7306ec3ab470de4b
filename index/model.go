package index

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/index/internal/forest"
)

// model is the sources of a model and the prefix tree that they share.
type model struct {
	id *identity
	// podsGen is raised after any change of the pods and their sources, and gen
	// after those and any change of a source's views.
	podsGen, gen atomic.Uint64
	pods         sync.Map    // podSources by name
	n            int         // pods; guarded by Memory.mu
	dead         int         // sources that were unlinked and are not buried yet; so too
	gone         atomic.Bool // with its last pod

	mu     sync.Mutex // of those who write in forest
	forest *forest.Forest
	// variants are those of the forest's chains, by number.
	variants  []Variant
	graves    []*grave
	scratches []*scratch // that nobody uses
}

// identity is what tells a model from another one of its name.
type identity struct{ _ byte }

type podSources struct {
	list atomic.Pointer[[]*source] // replaced, never changed in place
}

// variant returns the number of a variant, or false if there are too many. md.mu
// is held.
func (md *model) variant(v Variant) (n uint32, ok bool) {
	i := slices.Index(md.variants, v)
	if i < 0 {
		if i = len(md.variants); i == forest.MaxVariants {
			return 0, false
		}
		md.variants = append(md.variants, v)
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

func (md *model) takeScratch() *scratch {
	n := len(md.scratches)
	if n == 0 {
		return new(scratch)
	}
	mem := md.scratches[n-1]
	md.scratches = md.scratches[:n-1]
	return mem
}

func (md *model) giveScratch(mem *scratch) {
	if len(md.scratches) < 16 {
		md.scratches = append(md.scratches, mem)
	}
}
