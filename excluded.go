package kvindex

import "slices"

// notScorable stands for the cached tokens of a pod for which the chat is not
// scorable: it is less than those of a pod that holds nothing.
const notScorable = -1

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
			sc.best[at].cached = notScorable
		}
	}
}
