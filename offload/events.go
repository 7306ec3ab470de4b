package offload

import (
	"context"
	"encoding/binary"
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

// EventKind says what happened to blocks.
type EventKind uint8

// The kinds, which vLLM's events call BlockStored, BlockRemoved and AllBlocksCleared.
const (
	BlocksStored EventKind = iota + 1
	BlocksRemoved
	// BlocksCleared says that nothing is there any more of what was told by these Events, in any
	// tier and space, but for what they tell after it.
	BlocksCleared
)

// Event is a change of what a tier holds. One of BlocksCleared has a Kind alone.
type Event struct {
	Kind   EventKind
	Tier   Tier
	Space  SpaceID
	Parent Key // before Keys[0] in its chain; zero if that is the first, and on disk
	Keys   []Key
}

// KV returns the event in the form that package publish of kvindex publishes. It names the blocks
// alone: a program that knows their tokens can add Tokens and BlockSize, so that an index knows
// the blocks even if it never got the engine's own event of them. A key of 8, 16, 24 or 32 bytes is
// its last 8, as vLLM's integers and an index have it.
func (ev Event) KV() events.Event {
	kv := events.Event{Kind: events.Kind(ev.Kind), Medium: string(ev.Tier)}
	for _, k := range ev.Keys {
		kv.Hashes = append(kv.Hashes, k.short())
	}
	if kv.HasParent = ev.Parent != (Key{}); kv.HasParent {
		kv.Parent = ev.Parent.short()
	}
	return kv
}

// short returns the last 8 bytes of the hash that a key was made of.
func (k Key) short() uint64 {
	n := len(k)
	for n > 8 && binary.BigEndian.Uint64(k[n-8:n]) == 0 {
		n -= 8
	}
	return binary.BigEndian.Uint64(k[n-8 : n])
}

// Events are what stores and segments tell of their blocks, in the order of what happened in
// each tier: give one to Config.Events and to Segments.Tell. A Store and Segments never wait
// for their reader. If more keys wait for it than Most, all that waits is forgotten, and
// BlocksCleared stands for it: then blocks that are there are not told, until they
// are stored again, and none that is not there is. A removal can be told twice.
//
// The zero Events are ready for use. One goroutine may read; any may tell.
type Events struct {
	Most int // keys that wait; 0 is 1 << 16

	mu      sync.Mutex
	waiting []Event
	keys    int           // of waiting
	more    chan struct{} // is closed when something comes; nil if nobody waits
}

// Next waits for events and returns all that wait. Its error is that of the context.
func (e *Events) Next(ctx context.Context) ([]Event, error) {
	for {
		e.mu.Lock()
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

// tell adds an event, whose keys it copies. A nil Events are told nothing.
func (e *Events) tell(ev Event) {
	if e == nil || len(ev.Keys) == 0 && ev.Kind != BlocksCleared {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	most := e.Most
	if most == 0 {
		most = 1 << 16
	}
	if e.keys+len(ev.Keys) > most || ev.Kind == BlocksCleared {
		e.waiting, e.keys = []Event{{Kind: BlocksCleared}}, 0
	}
	if n := len(ev.Keys); n > 0 && n <= most {
		e.keys += n
		if last := len(e.waiting) - 1; ev.Kind == BlocksRemoved && last >= 0 && e.waiting[last].follows(ev) {
			e.waiting[last].Keys = append(e.waiting[last].Keys, ev.Keys...)
		} else {
			ev.Keys = append([]Key(nil), ev.Keys...)
			e.waiting = append(e.waiting, ev)
		}
	}
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// follows reports whether two events are one but for their keys.
func (ev *Event) follows(o Event) bool {
	return ev.Kind == o.Kind && ev.Tier == o.Tier && ev.Space == o.Space
}

// tellStored tells which of the keys behind prefix came into memory. Without Events there
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
		s.cfg.Events.tell(ev)
	}
}

// tellLost tells which keys the Backend has no more, after an error.
func (s *Store) tellLost(keys []Key) {
	hit := make([]bool, len(keys))
	if s.cfg.Events == nil || s.cfg.Disk.Backend.Has(context.Background(), s.space, keys, hit) != nil {
		return
	}
	for i, k := range keys {
		if !hit[i] {
			s.cfg.Events.tell(Event{Kind: BlocksRemoved, Tier: TierDisk, Space: s.space, Keys: []Key{k}})
		}
	}
}
