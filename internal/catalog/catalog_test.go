package catalog

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/view"
)

// fleet is a Catalog with its plain model: by model and pod, the adapters of its events.
type fleet struct {
	*rand.Rand
	*Catalog
	entries map[string]map[string]*Entry
	named   map[string]map[string]map[string]struct{}
}

func newFleet(seed uint64) *fleet {
	hash := hashing.New([16]byte{1})
	return &fleet{
		Rand: rand.New(rand.NewPCG(seed, 1)),
		Catalog: New(Config{
			Resolver:  func(name string) (base, adapter string) { return name, "" },
			Given:     func(model string) bool { return model == "given" },
			Introduce: func(pod, model string) bool { return false },
		}, hash, predict.New(nil)),
		entries: make(map[string]map[string]*Entry),
		named:   make(map[string]map[string]map[string]struct{}),
	}
}

func (f *fleet) one(of ...string) string { return of[f.IntN(len(of))] }

func (f *fleet) model() string { return f.one("m1", "m2", "m3") }
func (f *fleet) pod() string   { return f.one("a", "b", "c", "d") }
func (f *fleet) lora() string  { return f.one("l1", "l2", "l3", "given") }

// change adds or removes a pod, or registers an adapter on one.
func (f *fleet) change() {
	model, pod := f.model(), f.pod()
	e := f.entries[model][pod]
	switch {
	case e == nil:
		e = &Entry{View: new(view.Pod), Sent: new(predict.Pod)}
		if f.entries[model] == nil {
			f.entries[model], f.named[model] = make(map[string]*Entry), make(map[string]map[string]struct{})
		}
		f.entries[model][pod], f.named[model][pod] = e, make(map[string]struct{})
		f.Add(pod, model, e)
	case f.IntN(3) > 0:
		lora := f.lora()
		f.named[model][pod][lora] = struct{}{}
		f.LearnAdapter(lora, model, pod)
	default:
		f.Remove(pod, model, e, f.named[model][pod])
		delete(f.entries[model], pod)
		if len(f.entries[model]) == 0 {
			delete(f.entries, model)
		}
		delete(f.named[model], pod)
	}
}

// resolve returns the model's Candidates.
func (f *fleet) resolve(name, adapter string, pods []string) (base, lora string, names []string, err error) {
	base, lora, names = name, adapter, slices.Compact(slices.Sorted(slices.Values(pods)))
	if adapter == "" && f.entries[name] == nil && name != "given" {
		var of []string
		for model, named := range f.named {
			for pod, adapters := range named {
				if _, ok := adapters[name]; ok && (pods == nil || slices.Contains(pods, pod)) {
					of = append(of, model)
				}
			}
		}
		slices.Sort(of)
		switch of = slices.Compact(of); len(of) {
		case 0:
		case 1:
			base, lora = of[0], name
		default:
			return base, lora, names, prompt.ErrRequest
		}
	}
	if pods == nil {
		names = slices.Sorted(maps.Keys(f.entries[base]))
	}
	return base, lora, names, nil
}

func (f *fleet) check(t *testing.T) {
	name, adapter := f.one("m1", "m2", "m3", "l1", "l2", "l3", "given", "none"), f.one("", "", "l1")
	var pods []string
	if f.IntN(2) == 0 {
		pods = []string{}
		for range f.IntN(4) {
			pods = append(pods, f.one("a", "b", "c", "x"))
		}
	}
	base, lora, names, bad := f.resolve(name, adapter, pods)
	for _, list := range []*List{nil, f.NewList(name, pods)} {
		set, its, err := f.Candidates(name, adapter, pods, list)
		if !errors.Is(err, bad) {
			t.Fatalf("%q, %q, %q: %v, want %v", name, adapter, pods, err, bad)
		}
		if bad != nil {
			continue
		}
		if set.Base != base || its != lora || !slices.Equal(set.Names, names) {
			t.Fatalf("%q, %q, %q: %q, %q, %q, want %q, %q, %q", name, adapter, pods, set.Base, its, set.Names, base, lora, names)
		}
		for i, pod := range names {
			if e := f.entries[base][pod]; (e == nil) != (set.Pods[i] == nil) || e != nil && (set.Pods[i] != e.View || set.Sent[i] != e.Sent) {
				t.Fatalf("%q: pod %q is another one", base, pod)
			}
		}
		if unknown := f.entries[base] == nil && len(f.entries) > 0; errors.Is(set.Unknown, ErrUnknownModel) != unknown {
			t.Fatalf("%q: %v, want unknown: %v", base, set.Unknown, unknown)
		}
		if list != nil {
			if now := list.Now(); now != list.Now() {
				t.Fatal("a list is resolved anew although nothing has changed")
			}
		}
	}
	if f.Count() != len(f.entries) {
		t.Fatalf("%d models, want %d", f.Count(), len(f.entries))
	}
}

// TestAgainstMaps compares a Catalog with maps of the same pods and adapters.
func TestAgainstMaps(t *testing.T) {
	for seed := range uint64(20) {
		f := newFleet(seed)
		kept := f.NewList("m1", nil)
		for range 300 {
			f.change()
			f.check(t)
			if got, want := kept.Now().Names, slices.Sorted(maps.Keys(f.entries["m1"])); !slices.Equal(got, want) {
				t.Fatalf("a list that was kept has %q, want %q", got, want)
			}
		}
	}
}

// A name without a pod is an error.
func TestEmptyName(t *testing.T) {
	f := newFleet(1)
	if _, _, err := f.Candidates("m1", "", []string{"a", ""}, nil); !errors.Is(err, prompt.ErrRequest) {
		t.Error(err)
	}
}

// TestMeaning: the host's resolver precedes everything else.
func TestMeaning(t *testing.T) {
	f := newFleet(1)
	f.Resolver = func(name string) (base, adapter string) {
		switch name {
		case "alias":
			return "m1", "l1"
		case "wrong":
			return "", ""
		}
		return name, ""
	}
	f.Add("a", "m1", &Entry{View: new(view.Pod), Sent: new(predict.Pod)})
	if set, adapter, err := f.Candidates("alias", "", nil, nil); err != nil || set.Base != "m1" || adapter != "l1" || fmt.Sprint(set.Names) != "[a]" {
		t.Errorf("%v, %q, %v", set, adapter, err)
	}
	if _, adapter, _ := f.Candidates("alias", "l2", nil, nil); adapter != "l2" {
		t.Errorf("the adapter of a request is %q", adapter)
	}
	if _, _, err := f.Candidates("wrong", "", nil, nil); err == nil {
		t.Error("an empty base is taken")
	}
}

// TestDroppedEntry: a list is resolved again when SendTo drops a pod that never reported.
func TestDroppedEntry(t *testing.T) {
	f := newFleet(1)
	a := &Entry{View: new(view.Pod), Sent: new(predict.Pod)}
	f.Ledger.SetForm(a.Sent, &index.View{BlockSize: 16, Layout: &index.Layout{}})
	f.Add("a", "m1", a)
	x := f.SendTo("x", "m1", &engine.Profile{})
	list := f.NewList("m1", []string{"x"})
	if x == nil || list.Now().Sent[0] != x.Sent {
		t.Fatal("a pod to which a prompt was sent is not in the list")
	}
	if f.SendTo("y", "m1", &engine.Profile{Media: hashing.FormPad}) != nil {
		t.Fatal("a pod of another form borrows blocks")
	}
	if list.Now().Sent[0] != nil {
		t.Error("the list goes on with an entry that was dropped")
	}
}
