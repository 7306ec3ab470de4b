package redisindex

// Stats are counts of an Index, for metrics.
type Stats struct {
	// Garbage counts unreadable values: of another program with the same Prefix, or damaged.
	// Answers lack them. A value counts each time it is read.
	Garbage uint64
	// Buckets is the number of buckets of this process. Waiting counts those with changes that
	// Redis does not have yet.
	Buckets, Waiting int
	// Sources is the number of sources that this process feeds and writes. Standby is the
	// number of those that it feeds and another process writes.
	Sources, Standby int
	// Trouble is the error of the last write, or nil.
	Trouble error
}

// Stats implements Index.
func (ix *redisIndex) Stats() Stats {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	s := Stats{Garbage: ix.garbage.Load(), Buckets: len(ix.all), Waiting: len(ix.dirty), Trouble: ix.trouble}
	for _, src := range ix.sources {
		switch {
		case !src.fed:
		case src.ownership == owned:
			s.Sources++
		case src.ownership == other:
			s.Standby++
		}
	}
	return s
}
