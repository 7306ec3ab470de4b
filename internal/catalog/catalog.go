// Package catalog resolves the names of a request: it has the models, adapters and pods that
// scores can use, with the views of the pods.
package catalog

import (
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/view"
)

// Config configures a Catalog. Resolver and Introduce are called without locks.
type Config struct {
	Resolver func(model string) (base, adapter string) // may be nil
	Given    func(model string) bool                   // reports whether WithModel has the model
	// Introduce registers a pod if its Profile has an Approximate, and reports whether it has.
	Introduce func(pod, model string) bool
}

// Catalog has the models and pods that scores can use, by their names. All methods are safe for
// concurrent use.
type Catalog struct {
	Config
	Hash   hashing.Hasher
	Ledger *predict.Ledger

	version atomic.Uint64 // raised, with mu held, when pods, models or adapters come or go
	mu      sync.RWMutex  // guards models; only Ledger.mu may be taken after it
	models  map[string]*model
}

// Entry is a pod for one model, as scores read it.
type Entry struct {
	View  *view.Pod
	Sent  *predict.Pod
	alone atomic.Pointer[List] // a list of this pod alone, for Self
}

// model is a base model with its pods. Catalog.mu guards it.
type model struct {
	everyone *List
	pods     map[string]*Entry
	// unregistered has pods to which prompts were routed and that have not reported. They are
	// in no answer to a request that does not name them. Pods without a live prediction are
	// dropped when another pod is added.
	unregistered map[string]*Entry
	adapters     map[string]map[string]bool  // by name: the pods that have named it
	forms        atomic.Pointer[recentForms] // the forms in which texts were cut last
}

// maxUnregistered bounds model.unregistered.
const maxUnregistered = 1 << 16

// New returns an empty Catalog.
func New(cc Config, h hashing.Hasher, l *predict.Ledger) *Catalog {
	return &Catalog{Config: cc, Hash: h, Ledger: l, models: make(map[string]*model)}
}

// Add registers a pod for a model.
func (c *Catalog) Add(pod, name string, e *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(pod, name, e)
}

// Replace registers e in place of old, whose events have named adapters.
func (c *Catalog) Replace(pod, name string, e, old *Entry, adapters map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(pod, name, old, adapters)
	c.addLocked(pod, name, e)
}

func (c *Catalog) addLocked(pod, name string, e *Entry) {
	md := c.models[name]
	if md == nil {
		md = &model{
			everyone: &List{catalog: c, Model: name, base: true},
			pods:     make(map[string]*Entry),
			adapters: make(map[string]map[string]bool),
		}
		c.models[name] = md
	}
	if before := md.unregistered[pod]; before != nil {
		c.Ledger.Hand(before.Sent, e.Sent)
		delete(md.unregistered, pod)
	}
	md.pods[pod] = e
	c.version.Add(1)
}

// Remove forgets a pod for a model. Its events have named adapters.
func (c *Catalog) Remove(pod, name string, e *Entry, adapters map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version.Add(1)
	c.removeLocked(pod, name, e, adapters)
}

func (c *Catalog) removeLocked(pod, name string, e *Entry, adapters map[string]struct{}) {
	c.Ledger.Lose(e.Sent, -1, true)
	md := c.models[name]
	delete(md.pods, pod)
	md.forgetAdapters(pod, adapters)
	if len(md.pods) == 0 {
		for name := range md.unregistered {
			md.dropUnregistered(c.Ledger, name)
		}
		delete(c.models, name)
	}
}

// Leave forgets an unregistered pod and its predictions, for all models.
func (c *Catalog) Leave(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version.Add(1)
	for _, md := range c.models {
		md.dropUnregistered(c.Ledger, pod)
	}
}

// Changed invalidates all Sets: a fact of a pod has changed that they keep.
func (c *Catalog) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version.Add(1)
}

// Count returns the number of models.
func (c *Catalog) Count() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.models)
}

// SendTo returns the entry of a pod to which a prompt is routed before it has reported; nil:
// the form of its blocks is not known, or there are too many pods.
func (c *Catalog) SendTo(pod, name string, profile *engine.Profile) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	md := c.models[name]
	if md == nil {
		return nil
	}
	if e := md.served(pod); e != nil {
		return e
	}
	for name, e := range md.unregistered {
		if e.Sent.Live() == 0 {
			md.dropUnregistered(c.Ledger, name)
			c.version.Add(1)
		}
	}
	if md.lent()[profile.Media] == nil || len(md.unregistered) >= maxUnregistered {
		return nil
	}
	e := &Entry{View: &view.Pod{Profile: *profile}, Sent: &predict.Pod{Media: profile.Media}}
	if md.unregistered == nil {
		md.unregistered = make(map[string]*Entry)
	}
	md.unregistered[pod] = e
	c.version.Add(1)
	return e
}

// ServedBy returns the entry of a pod for a model, or nil.
func (c *Catalog) ServedBy(pod, name string) *Entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if md := c.models[name]; md != nil {
		return md.served(pod)
	}
	return nil
}

// Self returns a Set with a pod as the only candidate.
func (c *Catalog) Self(e *Entry, pod, name string) *Set {
	l := e.alone.Load()
	if l == nil {
		l = &List{catalog: c, Model: name, base: true, Pods: []string{pod}}
		e.alone.Store(l)
	}
	return l.Now()
}

// served returns the entry of a pod, or nil. Catalog.mu is held.
func (md *model) served(pod string) *Entry {
	if e := md.pods[pod]; e != nil {
		return e
	}
	return md.unregistered[pod]
}

// dropUnregistered forgets an unregistered pod and its predictions. Catalog.mu is held.
func (md *model) dropUnregistered(l *predict.Ledger, pod string) {
	if e := md.unregistered[pod]; e != nil {
		l.Lose(e.Sent, -1, true)
		delete(md.unregistered, pod)
	}
}

// lent returns the forms of blocks that the pods of the model share. Catalog.mu is held.
func (md *model) lent() predict.Lent {
	return predict.Lend(func(yield func(*predict.Pod) bool) {
		for _, e := range md.pods {
			if !yield(e.Sent) {
				return
			}
		}
	})
}

// LearnAdapter registers that an event of a pod has named an adapter of a model.
func (c *Catalog) LearnAdapter(adapter, name, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	md := c.models[name]
	if md.adapters[adapter] == nil {
		md.adapters[adapter] = make(map[string]bool)
	}
	md.adapters[adapter][pod] = true
	c.version.Add(1)
}

// ForgetAdapters reverses LearnAdapter for adapters of a pod.
func (c *Catalog) ForgetAdapters(pod, name string, adapters map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.models[name].forgetAdapters(pod, adapters)
	c.version.Add(1)
}

func (md *model) forgetAdapters(pod string, adapters map[string]struct{}) {
	for a := range adapters {
		if delete(md.adapters[a], pod); len(md.adapters[a]) == 0 {
			delete(md.adapters, a)
		}
	}
}
