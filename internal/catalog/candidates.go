// Candidates: from the names of models and pods to their views.
//
// # Two levels
//
// Names are resolved at two levels, and each has a number that is raised when something has
// come or gone. A Set has the registered pods, their views, and the meaning of the name of the
// model. index.Candidates below it has the ordinals of the holders. A score compares the
// numbers, and resolves names again only after a change.
//
// # Names of models
//
// WithResolver's function is called once and before all else. If it does not resolve a name,
// the adapters that events have named are tried. Only the base model and the adapter as events
// name them go into keys and to tokenizers, so two names for one thing have one score.
//
// # Unknown names
//
// A name is unknown if a pod could have reported it and none has. So a model is unknown once
// there are pods for any other model. A transport that follows a pod registers the model of
// the pod, so a silent pod does not make its model unknown. An adapter is unknown once any pod
// of its model has reported. Names are looked up when candidates are resolved, and an adapter
// that a request names beside its model is looked up for each request. If a pod holds a block
// for a name, the name is known in any case.

package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/view"
)

var (
	// ErrUnknownModel and ErrUnknownAdapter are those of package kvindex.
	ErrUnknownModel   = errors.New("kvindex: unknown model")
	ErrUnknownAdapter = errors.New("kvindex: unknown adapter")
)

// List is the list behind kvindex.Candidates.
type List struct {
	catalog *Catalog
	Model   string   // the name in requests; if base is set, the name in events
	base    bool     // Model is a base model and is not resolved
	Pods    []string // sorted, without duplicates; nil: every registered pod
	bad     error    // the error about Pods
	set     atomic.Pointer[Set]
	named   atomic.Pointer[[]*List] // if Model is empty: the lists of the models that requests have named last
}

// maxNamed bounds List.named: clients may send any name.
const maxNamed = 64

// NewList returns a List of pods.
func (c *Catalog) NewList(model string, pods []string) *List {
	l := &List{catalog: c, Model: model}
	if pods != nil {
		l.Pods = slices.Clone(pods)
		slices.Sort(l.Pods)
		l.Pods = slices.Compact(l.Pods)
		if len(l.Pods) > 0 && l.Pods[0] == "" {
			l.bad = fmt.Errorf("%w: pods[%d] has no name", prompt.ErrRequest, slices.Index(pods, ""))
		}
	}
	return l
}

// In reports whether c has made l.
func (l *List) In(c *Catalog) bool { return l != nil && l.catalog == c }

// forModel returns the list of the same pods for the model that a request names.
func (l *List) forModel(model string) *List {
	if l.Model != "" {
		return l
	}
	var known []*List
	if named := l.named.Load(); named != nil {
		known = *named
	}
	for _, of := range known {
		if of.Model == model {
			return of
		}
	}
	of := &List{catalog: l.catalog, Model: strings.Clone(model), Pods: l.Pods, bad: l.bad} // model may be a part of a large body
	if len(model) > engine.MaxName {
		return of
	}
	named := append([]*List{of}, known[:min(len(known), maxNamed-1)]...)
	l.named.Store(&named) // a list that another goroutine adds meanwhile is made again
	return of
}

// meaning is the meaning of the model of a request, in the names of events.
type meaning struct {
	base, adapter string
	sure          bool // base is a base model and not the name of an adapter
	err           error
}

// Set is a resolved List. It is valid as long as Catalog.version does not change.
type Set struct {
	version       uint64
	Base, adapter string // the meaning of the model's name
	Guessed       bool   // the name was resolved as an adapter that events have named
	model         *model // the model Base; nil: it is not registered
	Unknown       error  // wraps ErrUnknownModel: Base has no pods, and other models have some
	err           error
	Names         []string          // sorted
	Pods          []*view.Pod       // by name; nil: not registered
	Sent          []*predict.Pod    // by name
	Hashes        []uint64          // by name, for ties
	Index         *index.Candidates // Names for the index
	Variants      []index.Variant   // the variants in which the pods cache
	Lent          predict.Lent      // blocks for pods that have announced none
	Approximate   bool              // some pods are estimated
	Tiered        bool              // some pod has tiers below the gpu
	Bits          bool              // some pod needs rows with bits: it may load chunks that no run shows
	Profiled      bool              // some Profile has Groups or Draft, or some pod a hybrid model
}

// Now returns the present Set of l.
func (l *List) Now() *Set {
	if set := l.set.Load(); set != nil && set.version == l.catalog.version.Load() {
		return set
	}
	var set *Set
	if l.base {
		set = l.catalog.resolve(l, meaning{base: l.Model, sure: true})
	} else {
		set = l.catalog.lookUp(l, l.catalog.meaningOf(l.Model))
	}
	l.set.Store(set)
	return set
}

// meaningOf calls the host's Resolver. No lock is held.
func (c *Catalog) meaningOf(model string) meaning {
	if c.Resolver == nil {
		return meaning{base: model}
	}
	base, adapter := c.Resolver(model)
	if base == "" {
		return meaning{base: model, err: fmt.Errorf("kvindex: WithResolver: model %.100q: the base is empty", model)}
	}
	return meaning{base: base, adapter: adapter, sure: base != model || adapter != ""}
}

// Candidates returns the candidates of a request, and its adapter. A request names a model, an
// adapter and pods, or has a List.
func (c *Catalog) Candidates(model, adapter string, pods []string, l *List) (set *Set, its string, err error) {
	if l != nil {
		l = l.forModel(model)
		if set = l.Now(); set.Guessed && adapter != "" { // then the model's name is no adapter
			set = c.lookUp(l, meaning{base: l.Model, sure: true})
		}
		return set, cmp.Or(adapter, set.adapter), set.err
	}
	m := c.meaningOf(model)
	m.sure = m.sure || adapter != ""
	if pods == nil && m.err == nil {
		set = c.everyone(m.base)
	}
	if set == nil {
		set = c.lookUp(c.NewList(model, pods), m)
	}
	return set, cmp.Or(adapter, m.adapter, set.adapter), set.err
}

// everyone returns all pods of a base model, or nil.
func (c *Catalog) everyone(base string) *Set {
	c.mu.RLock()
	md := c.models[base]
	c.mu.RUnlock()
	if md == nil {
		return nil
	}
	return md.everyone.Now()
}

// lookUp is resolve, and registers pods that are estimated (Introduce).
func (c *Catalog) lookUp(l *List, m meaning) *Set {
	set := c.resolve(l, m)
	some := false
	for i, p := range set.Pods {
		if p == nil && c.Introduce(set.Names[i], set.Base) {
			some = true
		}
	}
	if some {
		set = c.resolve(l, m)
	}
	return set
}

// resolve looks up the pods of l for a meaning of its model. If the meaning is not sure, a name
// without a model may be an adapter that events have named.
func (c *Catalog) resolve(l *List, m meaning) *Set {
	c.mu.RLock()
	defer c.mu.RUnlock()
	set := &Set{version: c.version.Load(), Base: m.base, adapter: m.adapter, err: cmp.Or(l.bad, m.err)}
	if set.err != nil {
		return set
	}
	if !m.sure && c.models[m.base] == nil && !c.Given(m.base) {
		for name, md := range c.models {
			having := md.adapters[m.base]
			if len(having) == 0 || l.Pods != nil && !slices.ContainsFunc(l.Pods, func(pod string) bool { return having[pod] }) {
				continue
			}
			if set.adapter != "" {
				set.err = fmt.Errorf("%w: %q is an adapter of both %q and %q: name the model and the adapter", prompt.ErrRequest, l.Model, min(set.Base, name), max(set.Base, name))
				set.Base, set.adapter = m.base, ""
				return set
			}
			set.Base, set.adapter, set.Guessed = name, m.base, true
		}
	}
	md := c.models[set.Base]
	set.model = md
	if md == nil && len(c.models) > 0 {
		set.Unknown = c.unknownModel(m)
		if m.base != l.Model {
			set.Unknown = fmt.Errorf("%w. WithResolver returned this name for %.100q", set.Unknown, l.Model)
		}
	}
	set.Names = l.Pods
	if l.Pods == nil && md != nil {
		for name := range md.pods {
			set.Names = append(set.Names, name)
		}
		slices.Sort(set.Names)
	}
	var cold []int32 // pods that have announced no blocks
	set.Pods = make([]*view.Pod, len(set.Names))
	set.Sent = make([]*predict.Pod, len(set.Names))
	set.Hashes = make([]uint64, len(set.Names))
	for i, name := range set.Names {
		set.Hashes[i] = c.Hash.Pod(name)
		if md != nil {
			e := md.served(name)
			if e == nil || e.Sent.Blocks() == nil {
				cold = append(cold, int32(i))
			}
			if e != nil {
				set.Pods[i], set.Sent[i] = e.View, e.Sent
				p := &e.View.Profile
				if f := e.Sent.Blocks(); f != nil {
					set.cutAs(f, p.Media)
				}
				if f := e.View.Facts(); f.Tiered { // chunks of a length that is not known may describe themselves
					set.Tiered, set.Bits = true, set.Bits || p.Chunk != 1 && !f.Paged || p.Draft == engine.DraftLayers
				}
				set.Approximate = set.Approximate || e.Sent.Room() != nil
				set.Profiled = set.Profiled || p.Draft == engine.DraftLayers || len(p.Groups) > 0 || e.View.Facts().Hybrid
			}
		}
	}
	if len(cold) > 0 {
		set.addCold(md, cold)
	}
	if set.Names == nil {
		set.Names = []string{}
	}
	set.Index = index.NewCandidates(set.Base, set.Names)
	return set
}

// unknownModel returns the error about a model, with the registered models. c.mu is held.
func (c *Catalog) unknownModel(m meaning) error {
	name, names := m.base, slices.Sorted(maps.Keys(c.models))
	for _, base := range names {
		if !m.sure && len(c.models[base].adapters[name]) > 0 {
			return fmt.Errorf("%w %.100q: it is an adapter of %.100q, but no event of the pods in the request has named it: set Model to %.100[3]q, and Adapter to the adapter", ErrUnknownModel, name, base)
		}
	}
	const most = 3
	list := fmt.Sprintf("%.100q", names[:min(most, len(names))])
	if len(names) > most {
		list = fmt.Sprintf("%s and %d more", list, len(names)-most)
	}
	return fmt.Errorf("%w %.100q: there are pods for %s only: is it one of these under another name (--served-model-name, WithResolver)? %s", ErrUnknownModel, name, list, maybeAdapter)
}

const maybeAdapter = "It may also be an adapter that no event has named yet: set Model to the base model, and Adapter to the adapter"

// UnknownAdapter returns an error if no pod has named an adapter of a model, but a pod has
// reported.
func (c *Catalog) UnknownAdapter(model, name string) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	md := c.models[model]
	if md == nil || len(md.adapters[name]) > 0 {
		return nil
	}
	for _, e := range md.pods {
		if e.View.Facts().State != view.Silent {
			return fmt.Errorf("%w %.100q of model %.100q: no event has named it, events have named %d others: either no block of it was stored yet, or the events have another name for it (SGLang's events have no adapters)", ErrUnknownAdapter, name, model, len(md.adapters))
		}
	}
	return nil
}

// Explain adds to an error about the model of set that the model is not registered, if so.
func (set *Set) Explain(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // not about the name
	case set.Unknown != nil:
		return fmt.Errorf("%w (%w)", err, set.Unknown)
	case set.model == nil:
		return fmt.Errorf("%w (no pod is known. %s)", err, maybeAdapter)
	}
	return err
}

// cutAs adds the variant of pods with such blocks.
func (set *Set) cutAs(f *index.View, media uint8) {
	if v, ok := engine.VariantOf(f.BlockSize, f.Pairs, media); ok && !slices.Contains(set.Variants, v) {
		set.Variants = append(set.Variants, v)
	}
}

// addCold adds the variants of candidates that have announced no blocks: those of the other
// pods of the model. Catalog.mu is held.
func (set *Set) addCold(md *model, cold []int32) {
	set.Lent = md.lent()
	for media, f := range set.Lent {
		if f != nil && slices.ContainsFunc(cold, func(i int32) bool {
			p := set.Pods[i]
			return p == nil || int(p.Profile.Media) == media // nil: its Profile is not known yet
		}) {
			set.cutAs(f, uint8(media))
		}
	}
}

// maxForms bounds the forms that are kept of a model.
const maxForms = 4

// recentForms are the variants that the index has requested last for prompts of a model.
type recentForms struct {
	version  uint64 // Set.version
	variants []index.Variant
}

// Forms returns the forms that the index will probably request for a text.
func (set *Set) Forms() []index.Variant {
	if set.model != nil {
		if forms := set.model.forms.Load(); forms != nil {
			return forms.variants
		}
	}
	return prompt.FirstForms
}

// LearnForms keeps the variants that the index has requested for a prompt. If the set has only
// some pods of the model, it also keeps earlier variants. It returns all of them.
func (set *Set) LearnForms(all []index.Variant) []index.Variant {
	md := set.model
	if md == nil || len(all) == 0 {
		return all
	}
	was := md.forms.Load()
	if was != nil && was.version == set.version && set != md.everyone.set.Load() {
		for _, v := range was.variants {
			if len(all) < maxForms && !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	slices.SortFunc(all, compareVariants)
	if was == nil || was.version != set.version || !slices.Equal(was.variants, all) {
		md.forms.Store(&recentForms{set.version, slices.Clone(all)})
	}
	return all
}

func compareVariants(a, b index.Variant) int {
	if a.Pairs != b.Pairs {
		return cmp.Compare(sections.Flags(a.Pairs), sections.Flags(b.Pairs))
	}
	return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Media, b.Media), cmp.Compare(a.Block, b.Block))
}
