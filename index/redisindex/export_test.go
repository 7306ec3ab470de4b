package redisindex

import "time"

// SetTTL sets Config.TTL to less than a Config may have. It is called before anything is written.
func (ix *Index) SetTTL(ttl time.Duration) { ix.c.TTL = ttl }

const DefaultTimeout = defaultTimeout

// Prefix returns Config.Prefix, or its default.
func (ix *Index) Prefix() string { return ix.c.Prefix }
