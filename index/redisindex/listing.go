package redisindex

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

// A listingCache keeps the last Listing, and lets one caller at a time make another.
type listingCache struct {
	turn
	at   time.Time // of the Listing
	last *sharedindex.Listing
}

// Listing implements sharedindex.Directory.
func (ix *redisIndex) Listing(ctx context.Context) (*sharedindex.Listing, error) {
	if err := ix.usable(ctx); err != nil {
		return nil, err
	}
	c := &ix.listing
	if err := c.lock(ctx); err != nil {
		return nil, ix.failed(err)
	}
	defer c.unlock()
	if c.last != nil && time.Since(c.at) < leaseAge {
		return c.last, nil
	}
	now := time.Now()
	registries, stale, err := ix.registries(ctx)
	if err != nil {
		return nil, ix.failed(err)
	}
	entries := ix.entries(registries, stale)
	c.at = now
	if c.last == nil || !slices.EqualFunc(c.last.Entries, entries, sameEntry) {
		c.last = &sharedindex.Listing{Entries: entries}
	}
	return c.last, nil
}

func sameEntry(a, b sharedindex.Entry) bool {
	return a.Source == b.Source && a.Fed == b.Fed && a.Stale == b.Stale && string(a.Note) == string(b.Note)
}

// registries returns the registries of all models, and for each the writers whose leases have
// ended.
func (ix *redisIndex) registries(ctx context.Context) (all []*registry, stale []map[uint64]bool, err error) {
	p := ix.client.Pipeline()
	named := p.SMembers(ctx, ix.names.models())
	if err := exec(ctx, p); err != nil {
		return nil, nil, err
	}
	models := named.Val()
	slices.Sort(models)
	p = ix.client.Pipeline()
	versions := make([]*redis.StringCmd, len(models))
	for i, model := range models {
		versions[i] = p.HGet(ctx, ix.names.registry(model), versionField)
	}
	if err := exec(ctx, p); err != nil {
		return nil, nil, err
	}
	for i, model := range models {
		r := ix.cacheOf(model).now.Load()
		if r == nil || r.version != versions[i].Val() {
			if r, err = ix.fetch(ctx, model, versions[i].Val()); err != nil {
				return nil, nil, err
			}
		}
		all = append(all, r)
	}
	p = ix.client.Pipeline()
	replies := make([][]*redis.IntCmd, len(all))
	for i, r := range all {
		for _, writer := range r.writers {
			replies[i] = append(replies[i], p.Exists(ctx, ix.names.lease(registryPart(models[i]), writer)))
		}
	}
	if err := exec(ctx, p); err != nil {
		return nil, nil, err
	}
	for i, r := range all {
		gone := make(map[uint64]bool)
		for j, writer := range r.writers {
			gone[writer] = replies[i][j].Val() == 0
		}
		stale = append(stale, gone)
	}
	return all, stale, nil
}

// entries lists the sources of some registries.
func (ix *redisIndex) entries(registries []*registry, stale []map[uint64]bool) (entries []sharedindex.Entry) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for i, r := range registries {
		for _, l := range r.sources {
			src := ix.sources[l.Source]
			entries = append(entries, sharedindex.Entry{
				Source: l.Source, Note: l.note, Fed: src != nil && src.fed, Stale: l.behind || stale[i][l.writer],
			})
		}
	}
	slices.SortFunc(entries, func(a, b sharedindex.Entry) int {
		return cmp.Or(cmp.Compare(a.Source.Model, b.Source.Model), cmp.Compare(a.Source.Pod, b.Source.Pod), cmp.Compare(a.Source.Rank, b.Source.Rank))
	})
	return entries
}
