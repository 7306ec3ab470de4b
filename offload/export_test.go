package offload

// Counts returns what a store has done, by name.
func (s *Store) Counts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.count
	return map[string]uint64{
		"metPinned": c.metPinned, "promoted": c.promoted, "reinserted": c.reinserted, "ghostHits": c.ghostHits,
		"refused": c.refused, "evicted": c.evicted, "hits": c.hits, "misses": c.misses,
	}
}

// Resident returns the keys of all blocks in memory, and how many ghosts there are.
func (s *Store) Resident() (keys map[Key]bool, ghosts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys = make(map[Key]bool)
	for k := range s.slots {
		keys[k] = true
	}
	if p, ok := s.policy.(*s3fifo); ok {
		ghosts = len(p.ghosts.at)
	}
	return keys, ghosts
}

type BlockFile = blockFile

// OpenSegmentsOn opens a directory whose files are others.
func OpenSegmentsOn(cfg SegmentConfig, other func(BlockFile) BlockFile) (*Segments, error) {
	return openSegments(cfg, func(name string, flag int) (blockFile, bool, error) {
		f, direct, err := openFile(name, flag)
		if err != nil {
			return nil, false, err
		}
		return other(f), direct, nil
	})
}
