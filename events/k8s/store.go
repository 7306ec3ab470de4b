// The store never removes pods in between. It changes by the events of a watch and by complete
// lists, in the order of the API server. A list that breaks off changes nothing. Lists after
// the first are at least as new as earlier events.
//
// The store is small. It has the events.Pods, and the text of refusals, so that each is
// reported once. Pods are trimmed page by page before the Reflector collects them: 800 to
// 2,200 bytes a pod with 20 KiB of specification (TestMemory).

package k8s

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kvindex/kvindex/events"
)

// A store has the events.Pods of the cluster, which a Reflector fills in. The Reflector calls
// one method at a time, and Replace first.
type store struct {
	*Config
	changed chan struct{} // has a token when the result of all has changed, and after the first Replace

	mu   sync.Mutex       // guards pods
	pods map[string]entry // by namespace/name
}

var _ cache.TransformingStore = (*store)(nil)

// An entry is a pod that can be connected to or that is refused. Other pods have none.
type entry struct {
	pod     *events.Pod // nil: it is refused
	refused string      // why
	created time.Time
	clash   bool // with ByAddress: a younger pod has the address, which was reported
}

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// Transformer returns a function that drops most of a pod before it is stored for a while.
func (s *store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if p, ok := object.(*corev1.Pod); ok {
			s.trim(p)
		}
		return object, nil
	}
}

// Add, Update and Delete are the events of a watch.
func (s *store) Add(object any) error { return s.Update(object) }

// Update sets a pod.
func (s *store) Update(object any) error { return s.put(object, s.entryOf) }

// Delete removes a pod: it is gone, or not selected any more.
func (s *store) Delete(object any) error {
	return s.put(object, func(*corev1.Pod) (entry, error) { return entry{}, nil })
}

func (s *store) put(object any, entryOf func(*corev1.Pod) (entry, error)) error {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("k8s: the API returned a %T in place of a pod", object)
	}
	is, err := entryOf(p)
	s.mu.Lock()
	was := s.pods[key(p)]
	if is.pod == nil && is.refused == "" {
		delete(s.pods, key(p))
	} else {
		is.clash = was.clash
		s.pods[key(p)] = is
	}
	s.mu.Unlock()
	if err != nil && is.refused != was.refused {
		s.OnError(err)
	}
	if !reflect.DeepEqual(is.pod, was.pod) {
		s.signal()
	}
	return nil
}

// Replace sets all pods. It gets complete lists only.
func (s *store) Replace(list []any, _ string) error {
	pods := make(map[string]entry, len(list))
	for _, object := range list {
		p, ok := object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("k8s: the API returned a %T in place of a pod", object)
		}
		if is, err := s.entryOf(p); is.pod != nil || err != nil {
			pods[key(p)] = is
		}
	}
	var refused []error
	s.mu.Lock() // all changes entries
	for k, is := range pods {
		was := s.pods[k]
		if is.refused != "" && is.refused != was.refused {
			refused = append(refused, errors.New(is.refused))
		}
		is.clash = was.clash
		pods[k] = is
	}
	s.pods = pods
	s.mu.Unlock()
	for _, err := range refused {
		s.OnError(err)
	}
	s.signal()
	return nil
}

// Resync does nothing: all pods were reported.
func (s *store) Resync() error { return nil }

func (s *store) entryOf(p *corev1.Pod) (entry, error) {
	pod, err := s.describe(p)
	is := entry{pod: pod, created: p.CreationTimestamp.Time}
	if err != nil {
		is.refused = err.Error()
	}
	return is, err
}

func (s *store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// all returns the pods by their IDs, and for each pod whose address a younger pod has an
// error, once.
func (s *store) all() (pods []events.Pod, clashes []error) {
	type candidate struct {
		key string
		entry
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	those := make([]candidate, 0, len(s.pods))
	for k, e := range s.pods {
		if e.pod != nil {
			those = append(those, candidate{k, e})
		}
	}
	slices.SortFunc(those, func(a, b candidate) int {
		return cmp.Or(strings.Compare(a.pod.ID, b.pod.ID), b.created.Compare(a.created), strings.Compare(a.key, b.key))
	})
	pods = make([]events.Pod, 0, len(those))
	for i, c := range those {
		clash := i > 0 && c.pod.ID == those[i-1].pod.ID
		if !clash {
			pods = append(pods, *c.pod)
		} else if !c.clash {
			clashes = append(clashes, fmt.Errorf("k8s: pod %s: a younger pod, %s, has its address %s", c.key, those[i-1].key, c.pod.Host))
		}
		if clash != c.clash {
			c.clash = clash
			s.pods[c.key] = c.entry
		}
	}
	return pods, clashes
}
