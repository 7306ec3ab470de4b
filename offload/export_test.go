package offload

import (
	"bytes"
	"os"
	"time"

	"github.com/kvindex/kvindex/offload/internal/queues"
)

// Counts returns the counters of a store, by name.
func (s *Store) Counts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.count
	var p queues.S3FIFOCounts
	if of, ok := s.policy.(s3fifo); ok {
		p = of.S3FIFOCounts
	}
	return map[string]uint64{
		"metPinned": c.metPinned + p.Passed, "promoted": p.Promoted, "reinserted": p.Reinserted, "ghostHits": p.GhostHits,
		"refused": c.refused, "evicted": c.evicted, "hits": c.hits, "misses": c.misses,
	}
}

// Resident returns the keys of all blocks in memory, and the number of ghosts.
func (s *Store) Resident() (keys map[Key]bool, ghosts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys = make(map[Key]bool)
	for k := range s.mem.slots {
		keys[k] = true
	}
	if p, ok := s.policy.(s3fifo); ok {
		ghosts = p.Ghosts()
	}
	return keys, ghosts
}

func (t *Times) Add(took time.Duration) { t.add(took) }

type BlockFile = blockFile

// MaxBlock returns the size of the largest block for segments.
func (s *Segments) MaxBlock() int64 { return s.maxBlock() }

// SegmentBytes returns the bound of a file.
func (s *Segments) SegmentBytes() int64 { return s.cfg.SegmentBytes }

// OpenSegmentsOn opens a directory with replaced files.
func OpenSegmentsOn(cfg SegmentConfig, other func(BlockFile) BlockFile) (*Segments, error) {
	return openSegments(cfg, func(name string, flag int) (blockFile, bool, error) {
		f, direct, err := openBy(openDirect)(name, flag)
		if err != nil {
			return nil, false, err
		}
		return other(f), direct, nil
	})
}

// OpenSegmentsWith opens a directory with another function for direct I/O.
func OpenSegmentsWith(cfg SegmentConfig, direct func(string, int) (*os.File, error)) (*Segments, error) {
	return openSegments(cfg, openBy(direct))
}

// VerifyImage reads a segment and returns the keys of its valid blocks.
func VerifyImage(space SpaceID, b []byte) (keys []Key, v Verification, err error) {
	live := make(map[blockName]bool)
	err = v.read(bytes.NewReader(b), int64(len(b)), live)
	v.Right = len(live)
	for name := range live {
		if SpaceID(name[:len(space)]) == space {
			keys = append(keys, Key(name[len(space):]))
		}
	}
	return keys, v, err
}
