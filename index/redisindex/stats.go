package redisindex

// Stats are counts of an Index, for metrics.
type Stats struct {
	// Garbage counts values that made no sense: those of another program under the same
	// Prefix, or damaged ones. What they should have said is missing in the answers. A
	// value is counted each time it is read.
	Garbage uint64
	// Buckets are the buckets that this process writes, and Waiting those of them that
	// Redis does not have yet as they are.
	Buckets, Waiting int
	// Sources are the sources that this process feeds and writes. Standby are those that it
	// feeds and another process writes.
	Sources, Standby int
	// Trouble is why the last write failed; nil: it did not.
	Trouble error
}

// Stats returns what is so now. It asks nobody.
func (ix *Index) Stats() Stats {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	s := Stats{Garbage: ix.garbage.Load(), Buckets: len(ix.all), Waiting: len(ix.dirty), Trouble: ix.trouble}
	for _, src := range ix.sources {
		switch {
		case !src.fed:
		case src.standing == owned:
			s.Sources++
		case src.standing == other:
			s.Standby++
		}
	}
	return s
}
