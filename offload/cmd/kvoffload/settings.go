package main

import (
	"fmt"
	"io"

	"github.com/kvindex/kvindex/offload/cmd/kvoffload/internal/settings"
)

// printSettings prints the settings of a store in the environment.
func printSettings(environ []string, out io.Writer) error {
	s, err := settings.Read(environ)
	for _, n := range s.Notes {
		fmt.Fprintln(out, "note:", n)
	}
	if err != nil {
		return err
	}
	c, d := s.Store, s.Store.Disk
	fmt.Fprintf(out, "memory_bytes=%d policy=%s small_share=%v promote_at=%d block_tokens=%d chunk_tokens=%d max_tokens=%d\n",
		c.MemoryBytes, c.Policy, c.SmallShare, c.PromoteAt, c.Space.BlockTokens, s.ChunkTokens, c.MaxTokens)
	if s.Segments != nil {
		fmt.Fprintf(out, "dir=%s ingest=%s max_in_flight=%d min_missing=%d min_missing_part=%v per_token=%v\n",
			s.Segments.Dir, d.Ingest, d.MaxInFlight, d.MinMissing, d.MinMissingPart, d.PerToken)
	}
	return nil
}
