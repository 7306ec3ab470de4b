package redisindex

// Stats are counts of an Index, for metrics.
type Stats struct {
	// Garbage counts unreadable values: of another program with the same Prefix, or damaged.
	// Answers lack them. A value counts each time it is read.
	Garbage uint64
	// Waiting is the number of this process's buckets with changes that Redis does not have yet.
	Waiting int
	// Sources is the number of sources that this process feeds and writes.
	Sources int
	// Trouble is the error of the last write, or nil.
	Trouble error
}

// Stats implements Index.
func (ix *redisIndex) Stats() Stats {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	s := Stats{Garbage: ix.garbage.Load(), Waiting: len(ix.dirty), Trouble: ix.trouble}
	for _, src := range ix.sources {
		if src.fed && src.ownership == owned {
			s.Sources++
		}
	}
	return s
}
