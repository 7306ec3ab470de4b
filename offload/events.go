package offload

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"github.com/kvindex/kvindex/events"
)

// Tier is where a block is, by the word that vLLM's KV events have for it (medium in
// vllm/distributed/kv_events.py).
type Tier string

// The tiers.
const (
	TierMemory Tier = "CPU"
	TierDisk   Tier = "STORAGE"
)

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds, which vLLM's events call BlockStored, BlockRemoved and AllBlocksCleared.
const (
	BlocksStored EventKind = iota + 1
	BlocksRemoved
	// BlocksCleared ends all that these Events have reported before, in each tier and space.
	BlocksCleared
)

// Event is a change of what a tier holds. One of BlocksCleared has a Kind alone.
type Event struct {
	Kind   EventKind
	Tier   Tier
	Space  SpaceID
	Parent Key // before Keys[0] in its chain; zero if that is the first, on disk, and of Held
	Keys   []Key
}

// KV returns each of the events in the form that package publish of kvindex publishes. It names
// blocks alone. A program that knows the tokens of an event's keys, and Parent, can add Tokens and
// BlockSize, so that an index knows the blocks even if it never got the engine's own event of them.
// An index takes a block of an event without a group for one of each group: for a hybrid model, set
// HasGroup and Group by the Space of the event, which KV returns at the same place.
// A key of 8, 16, 24 or 32 bytes is its last 8, as vLLM's integers and an index have it.
func KV(changes []Event) []events.Event {
	kvs := make([]events.Event, 0, len(changes))
	for _, ev := range changes {
		kv := events.Event{Kind: events.Kind(ev.Kind), Medium: string(ev.Tier)}
		for _, k := range ev.Keys {
			kv.Hashes = append(kv.Hashes, k.short())
		}
		if kv.HasParent = ev.Parent != (Key{}); kv.HasParent {
			kv.Parent = ev.Parent.short()
		}
		kvs = append(kvs, kv)
	}
	return kvs
}

// short returns the last 8 bytes of the hash that a key was made of.
func (k Key) short() uint64 {
	n := len(k)
	for n > 8 && binary.BigEndian.Uint64(k[n-8:n]) == 0 {
		n -= 8
	}
	return binary.BigEndian.Uint64(k[n-8 : n])
}

// Events are the changes that stores and segments report of their blocks, in their order for
// each tier: give one to Config.Events and to Segments.Report. A Store and Segments never wait
// for the reader. They remember which blocks were reported, in some 50 bytes for each that is
// there. If more keys wait than Most, Next returns what Held does, and no block is missed.
//
// The zero Events are ready for use. One goroutine may read; any number may report.
type Events struct {
	Most int // keys that wait; 0 is 1 << 16

	mu      sync.Mutex
	held    map[heldIn]map[Key]struct{} // what is there, as was reported
	waiting []Event
	keys    int           // of waiting
	whole   bool          // Next returns held; nothing is waiting
	more    chan struct{} // is closed when something comes; nil if nobody waits
}

type heldIn struct {
	tier  Tier
	space SpaceID
}

// Next waits for events and returns all that wait. Its error is that of the context. Where the
// first event is BlocksCleared, the events are as Held returns them.
func (e *Events) Next(ctx context.Context) ([]Event, error) {
	for {
		e.mu.Lock()
		if e.whole {
			defer e.mu.Unlock()
			return e.all(), nil
		}
		if events := e.waiting; len(events) > 0 {
			e.waiting, e.keys = nil, 0
			e.mu.Unlock()
			return events, nil
		}
		if e.more == nil {
			e.more = make(chan struct{})
		}
		more := e.more
		e.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Held returns BlocksCleared and then BlocksStored of all blocks that are there, for
// publish.Config.Held. Their keys are in no order, and without Parent. Next then goes on with the
// changes after that. The goroutine that calls Next has to call it. Reports wait while it lists.
func (e *Events) Held() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all()
}

func (e *Events) all() []Event {
	e.waiting, e.keys, e.whole = nil, 0, false
	all := []Event{{Kind: BlocksCleared}}
	for in, keys := range e.held {
		all = append(all, Event{Kind: BlocksStored, Tier: in.tier, Space: in.space, Keys: slices.Collect(maps.Keys(keys))})
	}
	return all
}

// add adds an event, whose keys it copies. With nil Events it does nothing.
func (e *Events) add(ev Event) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	most := e.Most
	if most == 0 {
		most = 1 << 16
	}
	if ev.Kind == BlocksCleared {
		e.held, e.whole = nil, true
	} else if ev.Keys = e.changed(ev); len(ev.Keys) == 0 {
		return
	}
	if e.keys += len(ev.Keys); e.keys > most {
		e.whole = true
	}
	if last := len(e.waiting) - 1; e.whole {
		e.waiting, e.keys = nil, 0
	} else if ev.Kind == BlocksRemoved && last >= 0 && e.waiting[last].follows(ev) {
		e.waiting[last].Keys = append(e.waiting[last].Keys, ev.Keys...)
	} else {
		e.waiting = append(e.waiting, ev)
	}
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// changed brings held up to date, and returns the keys that were not so before.
func (e *Events) changed(ev Event) (keys []Key) {
	in := heldIn{ev.Tier, ev.Space}
	held := e.held[in]
	for _, k := range ev.Keys {
		if _, ok := held[k]; ok == (ev.Kind == BlocksStored) {
			continue
		}
		keys = append(keys, k)
		if ev.Kind == BlocksRemoved {
			delete(held, k)
			continue
		}
		if held == nil {
			if held = make(map[Key]struct{}); e.held == nil {
				e.held = make(map[heldIn]map[Key]struct{})
			}
			e.held[in] = held
		}
		held[k] = struct{}{}
	}
	if len(held) == 0 {
		delete(e.held, in)
	}
	return keys
}

// follows reports whether two events are one but for their keys.
func (ev *Event) follows(o Event) bool {
	return ev.Kind == o.Kind && ev.Tier == o.Tier && ev.Space == o.Space
}

// tellStored reports which of the keys behind prefix came into memory. Without Events there
// is no came.
func (s *Store) tellStored(prefix, keys []Key, came []bool) {
	for i := 0; i < len(came); i++ {
		if !came[i] {
			continue
		}
		ev := Event{Kind: BlocksStored, Tier: TierMemory, Space: s.space}
		if i > 0 {
			ev.Parent = keys[i-1]
		} else if len(prefix) > 0 {
			ev.Parent = prefix[len(prefix)-1]
		}
		from := i
		for i < len(came) && came[i] {
			i++
		}
		ev.Keys = keys[from:i]
		s.cfg.Events.add(ev)
	}
}

// tellLost reports which keys the Backend has no more, after an error.
func (s *Store) tellLost(keys []Key) {
	hit := make([]bool, len(keys))
	if s.cfg.Events == nil || s.cfg.Disk.Backend.Has(context.Background(), s.space, keys, hit) != nil {
		return
	}
	for i, k := range keys {
		if !hit[i] {
			s.cfg.Events.add(Event{Kind: BlocksRemoved, Tier: TierDisk, Space: s.space, Keys: []Key{k}})
		}
	}
}
