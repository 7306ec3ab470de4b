// State: the state of a pod, as bytes of a snapshot.

package registry

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/sections"
)

// Cut appends the state of a pod at the moment at which the index calls last.
func (x *Registry) Cut(b []byte, name string, last func() error) ([]byte, error) {
	p, err := x.lockPod(name) // keeps messages away
	if err != nil {
		return nil, err
	}
	defer p.unlock()
	_, cancel := p.call(x)
	err = last()
	p.called(cancel)
	b = p.appendState(b)
	x.leaveUnknown(p)
	return b, err
}

// appendState appends the state of a pod that Restore needs. Messages wait meanwhile, because
// p.mu is held; so b grows once, with room for most streams.
func (p *pod) appendState(b []byte) []byte {
	for _, pm := range p.models {
		b = slices.Grow(b, len(pm.Streams)*podstate.StreamState)
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(p.models)), func(name string) bool {
		return p.models[name].sent.Room() != nil || p.models[name].listed != nil // it has no messages
	})
	b = sections.AppendString(b, p.name)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = sections.AppendString(b, name)
		b = p.models[name].AppendState(b)
	}
	return b
}

// Restore reads the state of a pod that Cut has written.
func (x *Registry) Restore(f *sections.Fields) {
	name := f.String()
	if x.pod(name) != nil {
		f.Refuse(fmt.Errorf("pod %q is repeated", name))
	}
	for range f.Count() {
		if err := x.restoreModel(name, f); err != nil {
			f.Refuse(fmt.Errorf("pod %q: %w", name, err))
		}
	}
}

// Restored publishes the states after the last Restore.
func (x *Registry) Restored() error {
	if err := x.Recall(); err != nil {
		return err
	}
	known := x.known()
	x.eachPod(func(p *pod, model string, pm *podModel) {
		for _, r := range pm.Ranks {
			r.Evicted = known[index.Source{Pod: p.name, Model: model, Rank: r.Number}].Evicted > 0
		}
		pm.settle()
	})
	return nil
}

// restoreModel reads the state of a pod for one model.
func (x *Registry) restoreModel(pod string, f *sections.Fields) error {
	model := f.String()
	if f.Err() != nil {
		return nil
	}
	if err := x.check(pod, model); err != nil {
		return err
	}
	in := x.newIngest(pod, model)
	if in.find() {
		in.leave()
		return fmt.Errorf("model %q is repeated", model)
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.leave()
	if err := in.pm.ReadState(f); err != nil {
		return err
	}
	if v := in.pm.Formed.View(&in.pm.Shown.Profile); v != nil {
		in.x.ledger.SetForm(&in.pm.sent, v)
	}
	for _, a := range slices.Sorted(maps.Keys(in.pm.Adapters)) {
		in.x.catalog.LearnAdapter(a, model, pod)
	}
	return nil
}
