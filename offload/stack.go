package offload

import (
	"context"
	"errors"
	"fmt"
)

// Stack returns a Backend of several tiers, the fastest first: a local disk and a shared mount, say.
// Put writes each block to all of them, one after the other, so that the next one still has the
// blocks that one drops; a block is stored if one tier stored it. Get reads a block from the first
// tier that has it, and puts it into those before. A tier that fails, or whose block is corrupt, is
// passed over, and its error is returned beside what the others did. Close closes all.
//
// Of Segments in a Stack only the last should report to Events, which have one tier of disks.
func Stack(tiers ...Backend) (Backend, error) {
	if len(tiers) == 0 {
		return nil, errors.New("offload: Stack of no tiers")
	}
	return stack(tiers), nil
}

type stack []Backend

func ofTier(tier int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tier %d: %w", tier, err)
}

// found returns the first tier that has each key, from one on; len(s) if none has.
func (s stack) found(ctx context.Context, space SpaceID, keys []Key, from int) ([]int, error) {
	in, at := make([]int, len(keys)), make([]int, len(keys))
	for i := range keys {
		in[i], at[i] = len(s), i
	}
	var errs []error
	for tier := from; tier < len(s) && (len(at) > 0 || tier == 0); tier++ { // the first answers for no keys
		lacks, hit := make([]Key, len(at)), make([]bool, len(at))
		for i, of := range at {
			lacks[i] = keys[of]
		}
		errs = append(errs, ofTier(tier, s[tier].Has(ctx, space, lacks, hit)))
		left := at[:0]
		for i, of := range at {
			if hit[i] {
				in[of] = tier
			} else {
				left = append(left, of)
			}
		}
		at = left
	}
	return in, errors.Join(errs...)
}

func (s stack) Has(ctx context.Context, space SpaceID, keys []Key, hit []bool) error {
	if len(keys) != len(hit) {
		return fmt.Errorf("%w: %d keys and %d hits", ErrMisaligned, len(keys), len(hit))
	}
	in, err := s.found(ctx, space, keys, 0)
	for i, tier := range in {
		hit[i] = tier < len(s)
	}
	return err
}

func (s stack) Get(ctx context.Context, space SpaceID, keys []Key, dst [][]byte) (n int, err error) {
	if len(keys) != len(dst) {
		return 0, fmt.Errorf("%w: %d keys and %d buffers", ErrMisaligned, len(keys), len(dst))
	}
	in, err := s.found(ctx, space, keys, 0)
	errs := []error{err}
	for n < len(keys) && in[n] < len(s) {
		tier, end := in[n], n+1
		for end < len(keys) && in[end] == tier {
			end++
		}
		m, err := s[tier].Get(ctx, space, keys[n:end], dst[n:end])
		errs = append(errs, ofTier(tier, err))
		if m > 0 {
			_, err = s[:tier].Put(ctx, space, keys[n:n+m], dst[n:n+m])
			errs = append(errs, err)
		}
		if n += m; n < end { // it could not be read
			next, err := s.found(ctx, space, keys[n:n+1], tier+1)
			in[n] = next[0]
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

func (s stack) Put(ctx context.Context, space SpaceID, keys []Key, src [][]byte) (n int, err error) {
	errs := make([]error, len(s))
	for tier, b := range s {
		m, err := b.Put(ctx, space, keys, src)
		n, errs[tier] = max(n, m), ofTier(tier, err)
	}
	return n, errors.Join(errs...)
}

func (s stack) Delete(ctx context.Context, space SpaceID, keys []Key) error {
	errs := make([]error, len(s))
	for tier, b := range s {
		errs[tier] = ofTier(tier, b.Delete(ctx, space, keys))
	}
	return errors.Join(errs...)
}

func (s stack) Close() error {
	errs := make([]error, len(s))
	for tier, b := range s {
		errs[tier] = ofTier(tier, b.Close())
	}
	return errors.Join(errs...)
}
