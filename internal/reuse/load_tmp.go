package reuse

import "github.com/kvindex/kvindex/index"

type Load struct {
	groups       []Group
	chunk, grain int
}

func NewLoad(groups []Group, chunk, grain int) (*Load, error) {
	return &Load{groups, chunk, grain}, nil
}

func (l *Load) Tokens(length, gpu int, held []Held) int {
	// full groups only, temporary
	total := length
	size := 0
	for i, g := range l.groups {
		if g.Kind != index.GroupFull {
			return gpu
		}
		size = g.Block * l.chunk
		first := gpu / size
		n := first
		for (n+1)*size <= length && isBit(held[i].Blocks, (n+1)*l.chunk-1) {
			n++
		}
		total = min(total, n*size)
	}
	tail := gpu % l.groups[0].Block
	if total-(gpu-tail) < size {
		return gpu
	}
	return max(gpu, total)
}

func isBit(w []uint64, i int) bool { return i/64 < len(w) && w[i/64]>>(i%64)&1 == 1 }
