package redisindex

import (
	"context"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/redis/go-redis/v9"
)

// Ownership: at each heartbeat a writer reads the registry rows of its own sources. It takes
// over sources that nobody writes any more, and deletes those that were removed.

// ownership is which process writes a source.
type ownership uint8

const (
	claimed ownership = iota // this process wants it, and has no answer yet
	owned
	other  // another process's, alive as far as is known
	taking // this process's, as soon as all its buckets are written
)

// lookAround renews the common keys, and checks the ownership of the sources.
func (ix *redisIndex) lookAround(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ix.c.Lease)
	defer cancel()
	mine := make(map[string][]*source)
	ix.mu.Lock()
	for _, src := range ix.sources {
		mine[src.Model] = append(mine[src.Model], src)
	}
	ix.mu.Unlock()
	p := ix.client.Pipeline()
	p.SetNX(ctx, ix.names.root(), ix.root(), rootLives*ix.c.TTL)
	root := p.Get(ctx, ix.names.root())
	p.PExpire(ctx, ix.names.root(), rootLives*ix.c.TTL)
	versions := make(map[string]*redis.StringCmd)
	for model := range mine {
		p.SAdd(ctx, ix.names.models(), model)
		versions[model] = p.HGet(ctx, ix.names.registry(model), versionField)
		p.PExpire(ctx, ix.names.registry(model), ix.c.TTL)
		p.PExpire(ctx, ix.names.cursors(model), ix.c.TTL)
	}
	p.PExpire(ctx, ix.names.models(), ix.c.TTL)
	if err := exec(ctx, p); err != nil {
		return err
	}
	if root.Err() == nil && root.Val() != ix.root() {
		// Another process has opened the index after it was deleted, and before a writer made
		// it again. That process has to call New again: all keys of writers have this seed.
		p := ix.client.Pipeline()
		p.Set(ctx, ix.names.root(), ix.root(), rootLives*ix.c.TTL)
		if err := exec(ctx, p); err != nil {
			return err
		}
	}
	for model, sources := range mine {
		r := ix.cacheOf(model).now.Load()
		if r == nil || versions[model].Val() != r.version {
			var err error
			if r, err = ix.fetch(ctx, model, versions[model].Val()); err != nil {
				return err
			}
		}
		if err := ix.stand(ctx, r, sources); err != nil {
			return err
		}
	}
	return nil
}

// stand checks the ownership of some sources of a model, by its registry, and takes over those
// whose writer is dead.
func (ix *redisIndex) stand(ctx context.Context, r *registry, sources []*source) error {
	rows := make(map[index.Source]*registeredSource, len(r.sources))
	for _, l := range r.sources {
		rows[l.Source] = l
	}
	gone := make(map[uint64]bool)
	var orphans []*source
	now := time.Now()
	ix.mu.Lock()
	for _, src := range sources {
		l := rows[src.Source]
		switch {
		case src.ownership == owned && (l == nil || l.writer != ix.id):
			ix.markRow(src) // the answer names the owner
		case src.ownership == other && l == nil && src.rowless.IsZero():
			src.rowless = now // its writer writes the row again, unless it is dead
		case src.ownership == other && l == nil && now.Sub(src.rowless) < ix.c.Lease:
		case src.ownership == other && l == nil:
			orphans = append(orphans, src)
		case src.ownership == other && (src.fed || src.note != nil):
			gone[l.writer] = false
			orphans = append(orphans, src)
		}
		if l != nil {
			src.rowless = time.Time{}
		}
	}
	ix.mu.Unlock()
	if len(orphans) == 0 {
		return nil
	}
	p := ix.client.Pipeline()
	lives := make(map[uint64]*redis.IntCmd)
	part := registryPart(sources[0].Model)
	for writer := range gone {
		lives[writer] = p.Exists(ctx, ix.names.lease(part, writer))
	}
	left := make([]*redis.StringCmd, len(orphans))
	for i, src := range orphans {
		left[i] = p.HGet(ctx, ix.names.cursors(src.Model), fieldOf(src.Source))
	}
	if err := exec(ctx, p); err != nil {
		return err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	taken := make(map[*source]bool)
	for i, src := range orphans {
		l := rows[src.Source]
		if src.ownership != other || l != nil && lives[l.writer].Val() > 0 {
			continue
		}
		src.ownership, src.written, src.from, src.left = taking, true, "", left[i].Val()
		if l != nil {
			src.from = bytesOf(l.writer)
		}
		src.until = readCursor(src.left)
		src.behind, src.caught = src.time < src.until, 0
		taken[src] = true
	}
	if len(taken) > 0 {
		ix.markHeld(taken)
		ready := ix.change
		for src := range taken {
			src.ready = ready
			ix.markRow(src)
		}
	}
	return nil
}

// markHeld marks all buckets of some sources as dirty.
func (ix *redisIndex) markHeld(by map[*source]bool) {
	for _, b := range ix.all {
		if ix.holds(b, by) {
			ix.markBucket(b)
		}
	}
}

// remove removes sources of a pod, and waits until Redis has the removal.
func (ix *redisIndex) remove(ctx context.Context, pod string, which func(index.Source) bool) error {
	ix.mu.Lock()
	var last *source
	for _, src := range slices.Clone(ix.byPod[pod]) {
		if !which(src.Source) {
			continue
		}
		last = src
		if src.feed != 0 { // something was applied since
			src.note = nil
			ix.markRow(src)
			continue
		}
		ix.dismiss(src)
		if src.ownership != other {
			ix.dropRow(src.Source)
		}
	}
	ix.change++
	wait := &sourceWaiter{last, ix.change, ix.moved}
	ix.mu.Unlock()
	if last != nil {
		ix.poke()
		if err := ix.await(ctx, wait); err != nil {
			return err
		}
	}
	return ix.removeLeft(ctx, which)
}

// removeLeft removes sources whose writers are dead.
func (ix *redisIndex) removeLeft(ctx context.Context, which func(index.Source) bool) error {
	registries, stale, err := ix.registries(ctx)
	if err != nil {
		return ix.failed(err)
	}
	p := ix.client.Pipeline()
	for i, r := range registries {
		for _, l := range r.sources {
			if stale[i][l.writer] && which(l.Source) && !ix.has(l.Source) {
				ix.dropRowsOf(ctx, p, l.Model, l.writer, []string{fieldOf(l.Source)})
			}
		}
	}
	if err := exec(ctx, p); err != nil {
		return ix.failed(err)
	}
	return nil
}

// has reports whether this process has a source.
func (ix *redisIndex) has(id index.Source) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.sources[id] != nil
}

// dropRow deletes a row with the next commit.
func (ix *redisIndex) dropRow(id index.Source) {
	if ix.drops == nil {
		ix.drops = make(map[string][]string)
	}
	ix.drops[id.Model] = append(ix.drops[id.Model], fieldOf(id))
}
