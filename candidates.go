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

package kvindex

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
	errUnknownModel   = errors.New("kvindex: unknown model")
	errUnknownAdapter = errors.New("kvindex: unknown adapter")
)

// podList is the root's Candidates.
type podList struct {
	x     *registry
	model string   // as requests name it; if base is set, as events do
	base  bool     // model is a base model, and nobody is asked what it means
	pods  []string // sorted, none twice; nil: every pod heard
	bad   error    // what is wrong with pods
	set   atomic.Pointer[candidateSet]
}

// newList returns pods as a list.
func (x *registry) newList(model string, pods []string) *podList {
	c := &podList{x: x, model: model}
	if pods != nil {
		c.pods = slices.Clone(pods)
		slices.Sort(c.pods)
		c.pods = slices.Compact(c.pods)
		if len(c.pods) > 0 && c.pods[0] == "" {
			c.bad = fmt.Errorf("%w: pods[%d] has no name", prompt.ErrRequest, slices.Index(pods, ""))
		}
	}
	return c
}

// meaning is what the model of a request means, in the names that events have.
type meaning struct {
	base, adapter string
	sure          bool // base is a base model, and not an adapter that events have named
	err           error
}

// candidateSet is what is known of candidates as long as x.heard is what it
// was.
type candidateSet struct {
	heard         uint64
	base, adapter string // what the model's name means
	guessed       bool   // events have named an adapter so
	model         *model // of base, nil: it is not known
	unknown       error  // wraps errUnknownModel: there are none, but for other models
	err           error
	names         []string          // sorted
	pods          []*view.Pod       // nil: never heard
	sent          []*predict.Pod    // of pods
	hashes        []uint64          // of names, for ties
	index         *index.Candidates // names
	variants      []index.Variant   // in which the pods cache
	lent          predict.Lent      // if some have told none
	approximate   bool              // some pods are followed by what is sent to them
	profiled      bool              // some Profile has Groups or Draft, or some pod a hybrid model
}

// now returns what is known of c now.
func (c *podList) now() *candidateSet {
	if set := c.set.Load(); set != nil && set.heard == c.x.heard.Load() {
		return set
	}
	var set *candidateSet
	if c.base {
		set = c.x.resolve(c, meaning{base: c.model, sure: true})
	} else {
		set = c.x.lookUp(c, c.x.meaningOf(c.model))
	}
	c.set.Store(set)
	return set
}

// meaningOf asks the host what a model means. No lock is held.
func (x *registry) meaningOf(model string) meaning {
	if x.Resolver == nil {
		return meaning{base: model}
	}
	base, adapter := x.Resolver(model)
	if base == "" {
		return meaning{base: model, err: fmt.Errorf("kvindex: WithResolver: model %.100q: the base is empty", model)}
	}
	return meaning{base: base, adapter: adapter, sure: base != model || adapter != ""}
}

// candidates returns the pods of a request, and its adapter. A request names a model, an
// adapter and pods, or has a list of them.
func (x *registry) candidates(model, adapter string, pods []string, l *podList) (set *candidateSet, its string, err error) {
	if l != nil {
		if set = l.now(); set.guessed && adapter != "" { // then the model's name is no adapter
			set = x.lookUp(l, meaning{base: l.model, sure: true})
		}
		return set, cmp.Or(adapter, set.adapter), set.err
	}
	m := x.meaningOf(model)
	m.sure = m.sure || adapter != ""
	if pods == nil && m.err == nil {
		set = x.everyone(m.base)
	}
	if set == nil {
		set = x.lookUp(x.newList(model, pods), m)
	}
	return set, cmp.Or(adapter, m.adapter, set.adapter), set.err
}

// everyone returns all pods of a base model, nil if there are none.
func (x *registry) everyone(base string) *candidateSet {
	x.mu.RLock()
	md := x.models[base]
	x.mu.RUnlock()
	if md == nil {
		return nil
	}
	return md.everyone.now()
}

// lookUp is resolve that asks for the Profiles of pods that are not known.
func (x *registry) lookUp(c *podList, m meaning) *candidateSet {
	set := x.resolve(c, m)
	if x.introduce(set) {
		set = x.resolve(c, m)
	}
	return set
}

// resolve looks up the pods of c, for what its model means. If that is not sure, a name
// that is not known as a model may be an adapter that events have named.
func (x *registry) resolve(c *podList, m meaning) *candidateSet {
	x.mu.RLock()
	defer x.mu.RUnlock()
	set := &candidateSet{heard: x.heard.Load(), base: m.base, adapter: m.adapter, err: cmp.Or(c.bad, m.err)}
	if set.err != nil {
		return set
	}
	if !m.sure && x.models[m.base] == nil && !x.Given(m.base) {
		for name, md := range x.models {
			told := md.adapters[m.base]
			if len(told) == 0 || c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] }) {
				continue
			}
			if set.adapter != "" {
				set.err = fmt.Errorf("%w: %q is an adapter of both %q and %q: name the model and the adapter", prompt.ErrRequest, c.model, min(set.base, name), max(set.base, name))
				set.base, set.adapter = m.base, ""
				return set
			}
			set.base, set.adapter, set.guessed = name, m.base, true
		}
	}
	md := x.models[set.base]
	set.model = md
	if md == nil && len(x.models) > 0 {
		set.unknown = x.unknownModel(m)
		if m.base != c.model {
			set.unknown = fmt.Errorf("%w. WithResolver has this name for %.100q", set.unknown, c.model)
		}
	}
	set.names = c.pods
	if c.pods == nil && md != nil {
		for name := range md.pods {
			set.names = append(set.names, name)
		}
		slices.Sort(set.names)
	}
	var cold []int32 // they have told no blocks
	set.pods = make([]*view.Pod, len(set.names))
	set.sent = make([]*predict.Pod, len(set.names))
	set.hashes = make([]uint64, len(set.names))
	for i, name := range set.names {
		set.hashes[i] = x.hash.Pod(name)
		if md != nil {
			pm := md.served(name)
			if pm == nil || pm.sent.Blocks() == nil {
				cold = append(cold, int32(i))
			}
			if pm != nil {
				set.pods[i], set.sent[i] = &pm.Shown, &pm.sent
				p := &pm.Shown.Profile
				set.addVariant(pm)
				set.approximate = set.approximate || pm.sent.Room() != nil
				set.profiled = set.profiled || p.Draft == engine.DraftLayers || len(p.Groups) > 0 || pm.Shown.Facts().Hybrid
			}
		}
	}
	if len(cold) > 0 {
		set.addCold(md, cold)
	}
	if set.names == nil {
		set.names = []string{}
	}
	set.index = index.NewCandidates(set.base, set.names)
	return set
}

// unknownModel says what is known instead of a model. x.mu is held.
func (x *registry) unknownModel(m meaning) error {
	name, names := m.base, slices.Sorted(maps.Keys(x.models))
	for _, base := range names {
		if !m.sure && len(x.models[base].adapters[name]) > 0 {
			return fmt.Errorf("%w %.100q: it is an adapter of %.100q, but no event of the pods in the request has named it: set Model to %.100[3]q, and Adapter to the adapter", errUnknownModel, name, base)
		}
	}
	const most = 3
	list := fmt.Sprintf("%.100q", names[:min(most, len(names))])
	if len(names) > most {
		list = fmt.Sprintf("%s and %d more", list, len(names)-most)
	}
	return fmt.Errorf("%w %.100q: there are pods for %s only: is it one of these under another name (--served-model-name, WithResolver)? %s", errUnknownModel, name, list, maybeAdapter)
}

const maybeAdapter = "It may also be an adapter that no event has named yet: set Model to the base model, and Adapter to the adapter"

// unknownAdapter returns an error if no pod has told of an adapter of a model, but
// some pod could have.
func (x *registry) unknownAdapter(model, name string) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	md := x.models[model]
	if md == nil || len(md.adapters[name]) > 0 {
		return nil
	}
	for _, pm := range md.pods {
		if pm.Shown.Facts().State != view.Silent {
			return fmt.Errorf("%w %.100q of model %.100q: no event has named it, events have named %d others: either no block of it was stored yet, or the events have another name for it (SGLang's events have no adapters)", errUnknownAdapter, name, model, len(md.adapters))
		}
	}
	return nil
}

// explain adds to an error about the model of set that its name is not known.
func (set *candidateSet) explain(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // says nothing of the name
	case set.unknown != nil:
		return fmt.Errorf("%w (%w)", err, set.unknown)
	case set.model == nil:
		return fmt.Errorf("%w (no pod is known. %s)", err, maybeAdapter)
	}
	return err
}

// addVariant adds how a pod cuts prompts.
func (set *candidateSet) addVariant(pm *podModel) {
	if f := pm.sent.Blocks(); f != nil {
		set.cutAs(f, pm.Shown.Profile.Media)
	}
}

func (set *candidateSet) cutAs(f *index.View, media uint8) {
	if v, ok := engine.VariantOf(f.BlockSize, f.Pairs, media); ok && !slices.Contains(set.variants, v) {
		set.variants = append(set.variants, v)
	}
}

// addCold adds how candidates cut prompts that have told no blocks: as the other pods of the
// model do. Indexer.mu is held.
func (set *candidateSet) addCold(md *model, cold []int32) {
	set.lent = md.lent()
	for media, f := range set.lent {
		if f != nil && slices.ContainsFunc(cold, func(i int32) bool {
			p := set.pods[i]
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

// formsOf returns the forms that a text is likely to be asked for in.
func (set *candidateSet) formsOf() []index.Variant {
	if set.model != nil {
		if forms := set.model.forms.Load(); forms != nil {
			return forms.variants
		}
	}
	return prompt.FirstForms
}

// learnForms remembers what variants the index has asked for, and for some pods only,
// what it has asked for before. It returns all of them.
func (set *candidateSet) learnForms(all []index.Variant) []index.Variant {
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
