// Candidates: from names of models and pods to what a score needs of them.
//
// # Two levels
//
// Names are resolved at two levels, and each has a number that is raised when something came
// or went. Candidates of this package have the pods that were heard, their states, and the
// meaning of the name of the model. index.Candidates below them have the ordinals of the
// holders. A score compares the numbers and goes on. Only after a change it resolves anew.
//
// # Names of models
//
// The host is asked once and before all else (WithResolver). If the host does not know a name,
// the adapters that events have named are tried. Only the base model and the adapter that
// events name go into keys and to tokenizers, so two names for one thing have one score.
//
// # Unknown names
//
// A name is unknown if somebody could have reported it and nobody has. So a model is unknown
// once pods are known for any other model. A transport that is to bring a pod is enough to
// know the model of the pod, so a silent pod does not make its model unknown. An adapter is
// unknown once any pod of its model was heard. Names are looked up when candidates are
// resolved, and an adapter that a request names beside its model is looked up for each
// request. A name that turns out to be held is known in any case.

package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/internal/view"
)

var (
	// errUnknownModel and errUnknownAdapter are the root's.
	ErrUnknownModel   = errors.New("kvindex: unknown model")
	ErrUnknownAdapter = errors.New("kvindex: unknown adapter")
)

// List is the root's Candidates.
type List struct {
	catalog *Catalog
	Model   string   // as requests name it; if base is set, as events do
	base    bool     // model is a base model, and nobody is asked what it means
	Pods    []string // sorted, none twice; nil: every pod heard
	bad     error    // what is wrong with pods
	set     atomic.Pointer[Set]
}

// NewList returns pods as a list.
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

// meaning is what the model of a request means, in the names that events have.
type meaning struct {
	base, adapter string
	sure          bool // base is a base model, and not an adapter that events have named
	err           error
}

// Set is what is known of candidates as long as c.heard is what it
// was.
type Set struct {
	heard         uint64
	Base, adapter string // what the model's name means
	Guessed       bool   // events have named an adapter so
	model         *model // of base, nil: it is not known
	Unknown       error  // wraps errUnknownModel: there are none, but for other models
	err           error
	Names         []string          // sorted
	Pods          []*view.Pod       // nil: never heard
	Sent          []*predict.Pod    // of pods
	Hashes        []uint64          // of names, for ties
	Index         *index.Candidates // names
	Variants      []index.Variant   // in which the pods cache
	Lent          predict.Lent      // if some have told none
	Approximate   bool              // some pods are followed by what is sent to them
	Profiled      bool              // some Profile has Groups or Draft, or some pod a hybrid model
}

// Now returns what is known of l now.
func (l *List) Now() *Set {
	if set := l.set.Load(); set != nil && set.heard == l.catalog.heard.Load() {
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

// meaningOf asks the host what a model means. No lock is held.
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

// Candidates returns the pods of a request, and its adapter. A request names a model, an
// adapter and pods, or has a list of them.
func (c *Catalog) Candidates(model, adapter string, pods []string, l *List) (set *Set, its string, err error) {
	if l != nil {
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

// everyone returns all pods of a base model, nil if there are none.
func (c *Catalog) everyone(base string) *Set {
	c.mu.RLock()
	md := c.models[base]
	c.mu.RUnlock()
	if md == nil {
		return nil
	}
	return md.everyone.Now()
}

// lookUp is resolve, and makes pods known that are followed by what is sent to them.
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

// resolve looks up the pods of l, for what its model means. If that is not sure, a name
// that is not known as a model may be an adapter that events have named.
func (c *Catalog) resolve(l *List, m meaning) *Set {
	c.mu.RLock()
	defer c.mu.RUnlock()
	set := &Set{heard: c.heard.Load(), Base: m.base, adapter: m.adapter, err: cmp.Or(l.bad, m.err)}
	if set.err != nil {
		return set
	}
	if !m.sure && c.models[m.base] == nil && !c.Given(m.base) {
		for name, md := range c.models {
			told := md.adapters[m.base]
			if len(told) == 0 || l.Pods != nil && !slices.ContainsFunc(l.Pods, func(pod string) bool { return told[pod] }) {
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
			set.Unknown = fmt.Errorf("%w. WithResolver has this name for %.100q", set.Unknown, l.Model)
		}
	}
	set.Names = l.Pods
	if l.Pods == nil && md != nil {
		for name := range md.pods {
			set.Names = append(set.Names, name)
		}
		slices.Sort(set.Names)
	}
	var cold []int32 // they have told no blocks
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

// unknownModel says what is known instead of a model. c.mu is held.
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

// UnknownAdapter returns an error if no pod has told of an adapter of a model, but
// some pod could have.
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

// Explain adds to an error about the model of set that its name is not known.
func (set *Set) Explain(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // says nothing of the name
	case set.Unknown != nil:
		return fmt.Errorf("%w (%w)", err, set.Unknown)
	case set.model == nil:
		return fmt.Errorf("%w (no pod is known. %s)", err, maybeAdapter)
	}
	return err
}

// cutAs adds how pods with such blocks cut prompts.
func (set *Set) cutAs(f *index.View, media uint8) {
	if v, ok := engine.VariantOf(f.BlockSize, f.Pairs, media); ok && !slices.Contains(set.Variants, v) {
		set.Variants = append(set.Variants, v)
	}
}

// addCold adds how candidates cut prompts that have told no blocks: as the other pods of the
// model do. Catalog.mu is held.
func (set *Set) addCold(md *model, cold []int32) {
	set.Lent = md.lent()
	for media, f := range set.Lent {
		if f != nil && slices.ContainsFunc(cold, func(i int32) bool {
			p := set.Pods[i]
			return p == nil || int(p.Profile.Media) == media // nil: its Profile is not asked for
		}) {
			set.cutAs(f, uint8(media))
		}
	}
}

// maxForms is how many forms are remembered of a model.
const maxForms = 4

// recentForms are the variants that the index has asked for last, of prompts of a model.
type recentForms struct {
	heard    uint64 // since when: see candidateSet
	variants []index.Variant
}

// Forms returns the forms that a text is likely to be asked for in.
func (set *Set) Forms() []index.Variant {
	if set.model != nil {
		if forms := set.model.forms.Load(); forms != nil {
			return forms.variants
		}
	}
	return prompt.FirstForms
}

// LearnForms remembers what variants the index has asked for, and for some pods only,
// what it has asked for before. It returns all of them.
func (set *Set) LearnForms(all []index.Variant) []index.Variant {
	md := set.model
	if md == nil || len(all) == 0 {
		return all
	}
	was := md.forms.Load()
	if was != nil && was.heard == set.heard && set != md.everyone.set.Load() {
		for _, v := range was.variants {
			if len(all) < maxForms && !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
	}
	slices.SortFunc(all, compareVariants)
	if was == nil || was.heard != set.heard || !slices.Equal(was.variants, all) {
		md.forms.Store(&recentForms{set.heard, slices.Clone(all)})
	}
	return all
}

func compareVariants(a, b index.Variant) int {
	if a.Pairs != b.Pairs {
		return cmp.Compare(sections.Flags(a.Pairs), sections.Flags(b.Pairs))
	}
	return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Media, b.Media), cmp.Compare(a.Block, b.Block))
}
