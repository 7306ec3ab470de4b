package offload

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
)

// Spread returns a Backend that keeps each block on one of several, by rendezvous hashing of
// their names and the key (Thaler and Ravishankar, 1998). Processes with the same names agree.
// If a name leaves, the blocks of the others stay where they are; if one comes, it takes its
// part of the keys from each, and the blocks that are there already are not found any more.
// The Backends are called at the same time. An error of one fails the operation, and the rule of
// the Backend interface for the first n blocks holds. Close closes all.
func Spread(backends map[string]Backend) (Backend, error) {
	if len(backends) == 0 {
		return nil, errors.New("offload: Spread of no backends")
	}
	s := newSpread(backends)
	seeds := make([]uint64, len(s.names))
	for i, name := range s.names {
		seeds[i] = mixed(hashOf([]byte(name)))
	}
	s.place = func(key uint64) (place int) {
		var most uint64
		for i, seed := range seeds {
			if v := mixed(key ^ seed); i == 0 || v > most {
				place, most = i, v
			}
		}
		return place
	}
	return s, nil
}

// spread has its Backends in the order of their names.
type spread struct {
	names    []string
	backends []Backend
	place    func(key uint64) int // which Backend has a key, by its hash
}

func newSpread(backends map[string]Backend) *spread {
	s := &spread{names: slices.Sorted(maps.Keys(backends))}
	for _, name := range s.names {
		s.backends = append(s.backends, backends[name])
	}
	return s
}

func hashOf(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b) // never fails
	return h.Sum64()
}

// mixed is the finalizer of splitmix64: each bit of v changes half of the result's.
func mixed(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// part is what one Backend has of an operation.
type part struct {
	Backend
	keys []Key
	at   []int // the places of keys
}

// each calls op for the part of each Backend that has one. Of what op returns, how many blocks
// of the part are done from the first on, it returns how many of keys are.
func (s *spread) each(keys []Key, op func(part) (int, error)) (n int, err error) {
	parts := make([]part, len(s.backends))
	for i, k := range keys {
		p := &parts[s.place(hashOf(k[:]))]
		p.keys, p.at = append(p.keys, k), append(p.at, i)
	}
	done, errs := make([]int, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		parts[i].Backend = s.backends[i]
		if len(parts[i].keys) == 0 && i > 0 { // the first answers for no keys
			continue
		}
		wg.Go(func() {
			if done[i], errs[i] = op(parts[i]); errs[i] != nil {
				errs[i] = fmt.Errorf("backend %q: %w", s.names[i], errs[i])
			}
		})
	}
	wg.Wait()
	n = len(keys)
	for i, p := range parts {
		if done[i] < len(p.at) {
			n = min(n, p.at[done[i]])
		}
	}
	return n, errors.Join(errs...)
}

func (s *spread) Has(ctx context.Context, space SpaceID, keys []Key, hit []bool) error {
	if len(keys) != len(hit) {
		return fmt.Errorf("%w: %d keys and %d hits", ErrMisaligned, len(keys), len(hit))
	}
	_, err := s.each(keys, func(p part) (int, error) {
		has := make([]bool, len(p.keys))
		err := p.Has(ctx, space, p.keys, has)
		for i, at := range p.at {
			hit[at] = has[i]
		}
		return 0, err
	})
	return err
}

func (s *spread) Get(ctx context.Context, space SpaceID, keys []Key, dst [][]byte) (int, error) {
	return s.blocks(keys, dst, func(p part, bufs [][]byte) (int, error) { return p.Get(ctx, space, p.keys, bufs) })
}

func (s *spread) Put(ctx context.Context, space SpaceID, keys []Key, src [][]byte) (int, error) {
	return s.blocks(keys, src, func(p part, bufs [][]byte) (int, error) { return p.Put(ctx, space, p.keys, bufs) })
}

// blocks calls op with the part of the blocks that a Backend has.
func (s *spread) blocks(keys []Key, blocks [][]byte, op func(part, [][]byte) (int, error)) (int, error) {
	if len(keys) != len(blocks) {
		return 0, fmt.Errorf("%w: %d keys and %d blocks", ErrMisaligned, len(keys), len(blocks))
	}
	return s.each(keys, func(p part) (int, error) {
		bufs := make([][]byte, len(p.at))
		for i, at := range p.at {
			bufs[i] = blocks[at]
		}
		return op(p, bufs)
	})
}

func (s *spread) Delete(ctx context.Context, space SpaceID, keys []Key) error {
	_, err := s.each(keys, func(p part) (int, error) { return 0, p.Delete(ctx, space, p.keys) })
	return err
}

func (s *spread) Close() error {
	errs := make([]error, len(s.backends))
	for i, b := range s.backends {
		errs[i] = b.Close()
	}
	return errors.Join(errs...)
}
