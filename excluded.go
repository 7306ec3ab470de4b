package kvindex

import (
	"slices"

	"github.com/kvindex/kvindex/internal/ranking"
)

// exclude takes back what was found of the pods for which the chat is not scorable.
func (sc *scorer) exclude() {
	if sc.rendering == nil {
		return
	}
	for pod := range sc.rendering.Excluded() {
		i, ok := slices.BinarySearch(sc.set.names, pod)
		if !ok {
			continue
		}
		for at := sc.entry(int32(i), 0); at < sc.entry(int32(i)+1, 0); at++ {
			sc.best[at].Cached = ranking.NotScorable
		}
	}
}
