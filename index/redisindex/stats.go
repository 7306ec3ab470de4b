package redisindex

// Stats are counts of an Index, for metrics.
type Stats struct {
	// Garbage counts values that could not be read: they are of another program with the same
	// Prefix, or damaged. What they should say is missing in answers. A value counts each
	// time it is read.
	Garbage uint64
	// Buckets is the number of buckets that this process writes. Waiting is how many of
	// them have changes that Redis does not have yet.
	Buckets, Waiting int
	// Sources is the number of sources that this process feeds and writes. Standby is the
	// number of those that it feeds and another process writes.
	Sources, Standby int
	// Trouble is why the last write failed, or nil.
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
