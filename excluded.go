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
		if i, ok := slices.BinarySearch(sc.set.names, pod); ok {
			sc.best[i].cached = notScorable
		}
	}
}
