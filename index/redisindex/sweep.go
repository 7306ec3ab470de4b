package redisindex

import (
	"context"
	"crypto/rand"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each heartbeat sweeps a few buckets, in two ways. A writer checks its own buckets: keys to
// be renewed, and leftovers of removed holders (sweepOwn). And one of the writers goes through
// all keys in Redis, for leftovers of dead writers (sweepAll). A writer is dead in a part if
// it has no token there: it leaves one there before it writes anything else, and once the
// token is missing, it never writes under that name again.

// defaultSweepRate is in buckets a second. A short TTL makes a writer check more.
const defaultSweepRate = 1000

// sweepOwn checks some of the buckets of this process.
func (ix *redisIndex) sweepOwn() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	now := time.Now().Unix()
	old := now - int64(ix.c.TTL/2/time.Second)
	for n := min(ix.perBeat(max(float64(ix.sweepRate), 4*float64(len(ix.all))/ix.c.TTL.Seconds())), len(ix.all)); n > 0; n-- {
		if ix.swept >= len(ix.all) {
			ix.swept = 0
		}
		b := ix.all[ix.swept]
		ix.swept++
		if !b.dirty && (b.written < old || b.written > now || ix.hasGone(b)) {
			ix.markBucket(b)
		}
	}
}

// perBeat returns the share of a beat in so many a second, as an int of 32 bits.
func (ix *redisIndex) perBeat(second float64) int {
	return int(min(second*ix.c.Lease.Seconds()/3, math.MaxInt32-1)) + 1
}

// scanning is the progress of a sweep of all keys.
type scanning struct {
	nodes  []*redis.Client // still to be gone through, the first one from cursor on
	cursor uint64
	rests  time.Time // there is nothing to do until then
}

// sweepAll sweeps some of the keys, if this process is the sweeper.
func (ix *redisIndex) sweepAll(ctx context.Context) error {
	s := &ix.scanning
	if time.Now().Before(s.rests) {
		return nil
	}
	switch ix.client.(type) {
	case *redis.Client, *redis.ClusterClient:
	default: // with unknown servers
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ix.c.Lease/2)
	defer cancel()
	key, me := ix.names.sweeper(), bytesOf(ix.id)
	p := ix.client.Pipeline()
	p.SetNX(ctx, key, me, 4*ix.c.Lease)
	who := p.Get(ctx, key)
	if err := exec(ctx, p); err != nil {
		return err
	}
	if who.Val() != me {
		s.nodes, s.rests = nil, time.Now().Add(4*ix.c.Lease)
		return nil
	}
	p = ix.client.Pipeline()
	p.PExpire(ctx, key, 4*ix.c.Lease)
	if err := exec(ctx, p); err != nil {
		return err
	}
	if len(s.nodes) == 0 {
		s.nodes, s.cursor = ix.nodes(ctx), 0
		if len(s.nodes) == 0 {
			return nil
		}
	}
	keys, next, err := s.nodes[0].Scan(ctx, s.cursor, escape(ix.c.Prefix)+"*", int64(ix.perBeat(float64(ix.sweepRate)))).Result()
	if err == nil {
		err = ix.sweepKeys(ctx, keys)
	}
	if err != nil {
		next = 0 // it may have been removed
	}
	if s.cursor = next; next == 0 {
		if s.nodes = s.nodes[1:]; len(s.nodes) == 0 {
			s.rests = time.Now().Add(ix.c.TTL / 8)
		}
	}
	return err
}

// nodes returns a client for each master.
func (ix *redisIndex) nodes(ctx context.Context) []*redis.Client {
	switch client := ix.client.(type) {
	case *redis.Client:
		return []*redis.Client{client}
	case *redis.ClusterClient:
		found := make(chan *redis.Client, 1024)
		_ = client.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			select {
			case found <- c:
			default:
			}
			return nil
		})
		close(found)
		var all []*redis.Client
		for c := range found {
			all = append(all, c)
		}
		return all
	}
	return nil
}

// escape quotes a name for a pattern.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(name)
}

// sweepKeys deletes the leftovers of dead writers under some keys.
func (ix *redisIndex) sweepKeys(ctx context.Context, keys []string) error {
	p := ix.client.Pipeline()
	buckets := make(map[string]*redis.StringCmd)
	registries := make(map[string]*redis.MapStringStringCmd)
	for _, key := range keys {
		switch of, rest, ok := ix.names.split(key); {
		case !ok:
		case ix.names.isBucket(rest):
			buckets[key] = p.Get(ctx, key)
		case rest == "r" && strings.HasPrefix(string(of), "m:"):
			registries[key] = p.HGetAll(ctx, key)
		}
	}
	if err := exec(ctx, p); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // another program has written there
		return err
	}
	// Ask for the writers after that.
	writers := make(map[leaseKey]*redis.IntCmd)
	p = ix.client.Pipeline()
	seen := func(of part, writer uint64) {
		k := leaseKey{writer, of}
		if writer != ix.id && writers[k] == nil {
			writers[k] = p.Exists(ctx, ix.names.token(of, writer))
		}
	}
	for key, reply := range buckets {
		of, _, _ := ix.names.split(key)
		sections(reply.Val(), func(writer, _ uint64, _ string) bool { seen(of, writer); return true })
	}
	for key, reply := range registries {
		of, _, _ := ix.names.split(key)
		for field, row := range reply.Val() {
			if field != versionField && len(row) >= rowHead {
				seen(of, u64(row))
			}
		}
	}
	if err := exec(ctx, p); err != nil {
		return err
	}
	hasGone := func(of part, writer uint64) bool {
		reply := writers[leaseKey{writer, of}]
		return reply != nil && reply.Val() == 0
	}
	p = ix.client.Pipeline()
	for key, reply := range buckets {
		of, _, _ := ix.names.split(key)
		var gone []byte
		sections(reply.Val(), func(writer, _ uint64, _ string) bool {
			if hasGone(of, writer) {
				gone = append(gone, bytesOf(writer)...)
			}
			return true
		})
		if gone != nil {
			takeSections.in(ctx, p, true, []string{key}, gone)
		}
	}
	for key, reply := range registries {
		of, _, _ := ix.names.split(key)
		by := make(map[uint64][]string)
		for field, row := range reply.Val() {
			if field != versionField && len(row) >= rowHead && hasGone(of, u64(row)) {
				by[u64(row)] = append(by[u64(row)], field)
			}
		}
		for writer, fields := range by {
			ix.dropRowsOf(ctx, p, strings.TrimPrefix(string(of), "m:"), writer, fields)
		}
	}
	return exec(ctx, p)
}

// dropRowsOf deletes the rows of another writer.
func (ix *redisIndex) dropRowsOf(ctx context.Context, p redis.Pipeliner, model string, writer uint64, fields []string) {
	slices.Sort(fields)
	version := make([]byte, 16) // the writer and the commit do not matter
	rand.Read(version)
	args := []any{bytesOf(writer), ix.mark + string(version), ""}
	for _, f := range fields {
		args = append(args, f)
	}
	dropRows.in(ctx, p, true, []string{
		ix.names.registry(model), ix.names.cursors(model), ix.names.token(registryPart(model), writer),
	}, args...)
}
