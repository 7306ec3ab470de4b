// Package catalog has the models and pods that scores know, by their names, and resolves the
// names of a request.
package catalog

import (
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/view"
)

// Config configures a Catalog. No function is called with a lock held.
type Config struct {
	Resolver func(model string) (base, adapter string) // may be nil
	Given    func(model string) bool                   // there is a tokenizer for the model
	// Introduce makes a pod known that is followed by what is sent to it, if it is such a pod.
	Introduce func(pod, model string) bool
}

// Catalog has the models and pods that scores know, by their names. All methods are safe for
// concurrent use.
type Catalog struct {
	Config
	Hash   hashing.Hasher
	Ledger *predict.Ledger

	heard  atomic.Uint64 // raised, with mu held, when pods, models or adapters come or go
	mu     sync.RWMutex  // guards models; the last lock taken but for that of the ledger
	models map[string]*model
}

// Entry is what scores know of a pod for a model.
type Entry struct {
	View  *view.Pod
	Sent  *predict.Pod
	alone atomic.Pointer[List] // the pod
}

// model is what scores know of a model. Guarded by catalog.mu.
type model struct {
	everyone *List
	pods     map[string]*Entry
	// unheard has pods that something was sent to, and of which nothing was heard. They are
	// not known otherwise. Those without a prediction go when another one comes.
	unheard  map[string]*Entry
	adapters map[string]map[string]bool  // to the pods that told of it
	forms    atomic.Pointer[recentForms] // that texts were cut in last
}

// maxUnheard is how many pods of a model are kept that were never heard.
const maxUnheard = 1 << 16

func New(cc Config, h hashing.Hasher, l *predict.Ledger) *Catalog {
	return &Catalog{Config: cc, Hash: h, Ledger: l, models: make(map[string]*model)}
}

// Add makes a pod known for a model.
func (c *Catalog) Add(pod, name string, e *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(pod, name, e)
}

// Replace is add in place of old, whose events named adapters.
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
	if before := md.unheard[pod]; before != nil {
		c.Ledger.Hand(before.Sent, e.Sent)
		delete(md.unheard, pod)
	}
	md.pods[pod] = e
	c.heard.Add(1)
}

// Remove forgets a pod for a model. Its events named adapters.
func (c *Catalog) Remove(pod, name string, e *Entry, adapters map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.Add(1)
	c.removeLocked(pod, name, e, adapters)
}

func (c *Catalog) removeLocked(pod, name string, e *Entry, adapters map[string]struct{}) {
	c.Ledger.Lose(e.Sent, -1, true)
	md := c.models[name]
	delete(md.pods, pod)
	md.forgetAdapters(pod, adapters)
	if len(md.pods) == 0 {
		for name := range md.unheard {
			md.leaveUnheard(c.Ledger, name)
		}
		delete(c.models, name)
	}
}

// Leave forgets what was sent to a pod of which nothing was heard, for all models.
func (c *Catalog) Leave(pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.Add(1)
	for _, md := range c.models {
		md.leaveUnheard(c.Ledger, pod)
	}
}

// Changed has lists of pods resolved anew: something of a pod has changed that they keep.
func (c *Catalog) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.Add(1)
}

// Count returns how many models are known.
func (c *Catalog) Count() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.models)
}

// Unheard returns how many pods of a model are kept that were never heard.
func (c *Catalog) Unheard(name string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if md := c.models[name]; md != nil {
		return len(md.unheard)
	}
	return 0
}

// SendTo returns what is kept of a pod that something is sent to before anything of it was
// heard; nil: nobody knows in which blocks it may cache, or there are too many.
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
	for name, e := range md.unheard {
		if e.Sent.Live() == 0 {
			md.leaveUnheard(c.Ledger, name)
		}
	}
	if md.lent()[profile.Media] == nil || len(md.unheard) >= maxUnheard {
		return nil
	}
	e := &Entry{View: &view.Pod{Profile: *profile}, Sent: &predict.Pod{Media: profile.Media}}
	if md.unheard == nil {
		md.unheard = make(map[string]*Entry)
	}
	md.unheard[pod] = e
	c.heard.Add(1)
	return e
}

// ServedBy returns what is known of a pod for a model, nil if nothing is.
func (c *Catalog) ServedBy(pod, name string) *Entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if md := c.models[name]; md != nil {
		return md.served(pod)
	}
	return nil
}

// Self returns a pod as the only candidate.
func (c *Catalog) Self(e *Entry, pod, name string) *Set {
	l := e.alone.Load()
	if l == nil {
		l = &List{catalog: c, Model: name, base: true, Pods: []string{pod}}
		e.alone.Store(l)
	}
	return l.Now()
}

// served returns what is known of a pod, nil if nothing is. Catalog.mu is held.
func (md *model) served(pod string) *Entry {
	if e := md.pods[pod]; e != nil {
		return e
	}
	return md.unheard[pod]
}

// leaveUnheard forgets what was sent to a pod of which nothing was heard. Catalog.mu is held.
func (md *model) leaveUnheard(l *predict.Ledger, pod string) {
	if e := md.unheard[pod]; e != nil {
		l.Lose(e.Sent, -1, true)
		delete(md.unheard, pod)
	}
}

// lent returns the blocks of the pods. Catalog.mu is held.
func (md *model) lent() predict.Lent {
	return predict.Lend(func(yield func(*predict.Pod) bool) {
		for _, e := range md.pods {
			if !yield(e.Sent) {
				return
			}
		}
	})
}

// LearnAdapter notes that an event of a pod named an adapter of a model.
func (c *Catalog) LearnAdapter(adapter, name, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	md := c.models[name]
	if md.adapters[adapter] == nil {
		md.adapters[adapter] = make(map[string]bool)
	}
	md.adapters[adapter][pod] = true
	c.heard.Add(1)
}

// ForgetAdapters takes note that a pod has not named adapters of a model.
func (c *Catalog) ForgetAdapters(pod, name string, adapters map[string]struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.models[name].forgetAdapters(pod, adapters)
}

func (md *model) forgetAdapters(pod string, adapters map[string]struct{}) {
	for a := range adapters {
		if delete(md.adapters[a], pod); len(md.adapters[a]) == 0 {
			delete(md.adapters, a)
		}
	}
}
