package redisindex

import "time"

// SetTTL sets a Config.TTL below the permitted minimum. It is called before anything is written.
func (ix *redisIndex) SetTTL(ttl time.Duration) { ix.c.TTL = ttl }

// RedisIndex is the type that New returns.
type RedisIndex = redisIndex

// Open is New.
var Open = newIndex

const DefaultTimeout = defaultTimeout

// SetBounds sets the bounds of each source.
func (ix *redisIndex) SetBounds(pendingBytes, idleNames int) {
	ix.mem.SetBounds(pendingBytes, idleNames)
}

// Trouble is the error of the last write, or nil.
func (ix *redisIndex) Trouble() error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	return ix.trouble
}

// Writes is the number of sources that this process writes, and of buckets that Redis does not have
// yet.
func (ix *redisIndex) Writes() (sources, waiting int) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for _, src := range ix.sources {
		if src.fed && src.ownership == owned {
			sources++
		}
	}
	return sources, len(ix.dirty)
}

// Prefix returns Config.Prefix, or its default.
func (ix *redisIndex) Prefix() string { return ix.c.Prefix }
